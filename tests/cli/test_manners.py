"""How the command line behaves: quiet, with a traceback on request, and with a hint where something is nearly right."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pytest
import rich.progress
from typer.testing import CliRunner

from gcn_lpa.cli import options
from gcn_lpa.cli.app import app
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.insight.what_if import MOVED, what_if
from gcn_lpa.learning import many
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import Job
from gcn_lpa.predict import predict_proba, predictions
from gcn_lpa.recipes import WITHOUT_FEATURES
from gcn_lpa.train import Epoch, JobName
from tests.helpers.ring_runs import run_of


def said(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("manners")).folder


def suspicious(tmp_path):
    """A folder whose labels differ in case alone, which is warned of on stderr."""
    (tmp_path / "nodes.csv").write_text("id,label\na,Red\nb,red\nc,blue\nd,blue\ne,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nc,d\nd,e\n")
    return tmp_path


def test_quiet_leaves_warnings_out_and_keeps_errors(tmp_path):
    aloud = said("train", suspicious(tmp_path), "--epochs", 1)
    quiet = said("--quiet", "train", tmp_path, "--epochs", 1)
    assert "warning:" in aloud.stderr
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert said("-q", "evaluate", "nowhere").stderr.startswith("gcn-lpa: nowhere is not a run folder")


def test_debug_shows_where_an_error_comes_from():
    assert isinstance(said("--debug", "evaluate", "nowhere").exception, ValueError)
    assert isinstance(said("evaluate", "nowhere").exception, SystemExit)  # one line, and no longer in debug


def test_debug_shows_where_an_error_of_a_worker_process_comes_from(monkeypatch):
    def broken_in_the_loop(*_):
        raise ValueError("no such thing")

    monkeypatch.setattr(many, "FEWEST_NODES", 0)  # several processes, for a graph as small as this
    monkeypatch.setattr(Job, "run", broken_in_the_loop)
    train = "train", "karate", "--device", "cpu", "--threads", 2
    error = said("--debug", *train).exception
    shown = "".join(traceback.format_exception(error))
    assert isinstance(error, ValueError)
    assert "In a process of this training:" in shown and "in broken_in_the_loop" in shown
    assert said(*train).stderr == "gcn-lpa: no such thing\n"


NAMES = [*(JobName(f"fold-{k}", epochs=100) for k in range(1, 6)), JobName("fit", epochs=900)]  # of which 300 are usual


def epoch(number):
    return Epoch(number, 0.5, 0.5, 0.0, 0.9, 0.3, 1.0)


def test_the_time_left_is_that_of_all_models_of_the_command(monkeypatch):
    """800 epochs, of a second each but for the first, which takes a minute."""
    bars, clock = [], SimpleNamespace(now=0.0)

    class Noted(rich.progress.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, **options)
            bars.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Noted)
    monkeypatch.setattr(options.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with options.progress() as watch:
        watch.on_plan(NAMES)
        (task,) = bars[0].tasks
        assert task.total == 800
        clock.now += 60
        watch.on_epoch(NAMES[0], epoch(1))
        assert task.fields["left"] == ""  # too soon to say
        for number in range(2, 41):
            clock.now += 1
            watch.on_epoch(NAMES[0], epoch(number))
        assert task.fields["left"] == ", 13 min left"  # 760 s
        watch.on_done(NAMES[0])  # its patience is over: 100 of 800
        assert task.completed == 100
        for name in NAMES[1:]:
            watch.on_done(name)
        assert task.finished
        assert task.fields["left"] == ""


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(options.time, "monotonic", lambda: clock.now)
    with options.progress() as watch:
        watch.on_plan(NAMES)
        for number in range(1, 71):
            clock.now += 1
            watch.on_epoch(NAMES[0], epoch(number))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "gcn-lpa: fold-1 30/100 loss 0.5 validation 90.0 %, 30 of 800 epochs, 13 min left",
        "gcn-lpa: fold-1 60/100 loss 0.5 validation 90.0 %, 60 of 800 epochs, 12 min left",
    ]


def test_audit_and_compare_fit_80_columns(folder):
    audits = [said("audit", folder, what, "--folds", 2, "--repeats", 1).stdout for what in ("--labels", "--edges")]
    compared = said("compare", "karate", "--methods", "lpa,lr", "--splits", 2).stdout
    for shown in (*audits, compared):
        assert len(shown.splitlines()) > 3
        assert max(map(len, shown.splitlines())) <= 80


def test_completion_is_offered():
    assert "--install-completion" in said("--help").stdout


@pytest.mark.long
def test_every_class_has_its_probability_on_request(folder):
    rows = json.loads(said("predict", folder, "--all-classes", "--json").stdout)
    assert len(rows) == 8
    for row in rows:
        assert row["p:good"] + row["p:bad"] == pytest.approx(1)
        assert row[f"p:{row['label']}"] == pytest.approx(row["probability"])
    on = json.loads(said("predict", folder, "--all-classes", "--on", folder.parent / "data", "--json").stdout)
    assert on["predictions"] == [{**row, "before": row["label"]} for row in rows]  # the same graph


@pytest.mark.long
def test_suggest_says_when_there_are_fewer(folder):
    assert said("suggest", folder, "-n", 500).stdout.endswith("8 of the 500 asked for: no other node may be suggested\n")
    assert "asked for" not in said("suggest", folder, "-n", 3).stdout


@pytest.mark.long
def test_a_model_that_abstains_keeps_unreachable_nodes_apart():
    graph = Graph.from_edges([(0, 1), (2, 3), (4, 5)], y=[0, -1, 1, -1, -1, -1])
    trained = learn(graph, [0, 2], [])
    table = predictions(trained, graph, abstain=1.0)
    assert table["status"].tolist() == ["labeled", "abstain", "labeled", "abstain", "unreachable", "unreachable"]
    assert table["label"].tolist()[4:] == ["", ""]


def test_an_id_that_lost_its_zeros_is_named():
    graph = Graph.from_edges([("007", "0012"), ("0012", "100")])
    with pytest.raises(ValueError, match="has no node '7'; did you mean 007"):
        graph.index_of("7")
    with pytest.raises(ValueError, match="has no node '012'; did you mean 0012"):
        graph.index_of("012")


@pytest.mark.long
def test_a_what_if_can_train_again(karate):
    parts, recipe = split(karate, seed=0), WITHOUT_FEATURES.replace(epochs=20)
    trained = learn(karate, parts.train, parts.val, recipe)
    hidden = karate.reveal(parts.train | parts.val)
    first, new = (int(mask.nonzero()[0]) for mask in (parts.train, parts.test))
    given = karate.class_names[1 - int(karate.y[first])], karate.class_names[0]
    answer = what_if(trained, karate, relabel={first: given[0]}, label={new: given[1]}, retrain=True)

    y, train = hidden.y.clone(), parts.train.clone()  # by hand
    y[first], y[new], train[new] = 1 - y[first], 0, True
    other = learn(dataclasses.replace(hidden, y=y), train, parts.val, recipe)
    moves = (predict_proba(other, karate, raw=True) - predict_proba(trained, karate, raw=True)).abs().amax(dim=1)
    open_nodes = ~train
    assert answer.retrained.largest_move == pytest.approx(float(moves[open_nodes].max()), rel=1e-5)
    assert answer.retrained.num_moved == int((moves[open_nodes] > MOVED).sum())
    assert answer.notes[0].startswith("trained again: two gcn-lpa models")
    assert "gcn-lpa, trained again: " in str(answer)
    assert what_if(trained, karate, label={new: given[1]}).retrained is None

    without = what_if(trained, karate, remove_edges=[(0, 1)], retrain=True)
    kept = [(a, b) for a, b in zip(karate.row.tolist(), karate.col.tolist(), strict=True) if {a, b} != {0, 1}]
    fewer = Graph.from_edges(kept, num_nodes=34, y=hidden.y.tolist())
    again = learn(fewer, parts.train, parts.val, recipe)
    moves = (predict_proba(again, fewer, raw=True) - predict_proba(trained, karate, raw=True)).abs().amax(dim=1)
    assert without.retrained.largest_move == pytest.approx(float(moves[~parts.train].max()), rel=1e-4)


@pytest.mark.long
def test_a_run_trains_again_on_request(folder):
    text = said("what-if", folder, "--relabel", "n0=bad", "--retrain").stdout
    assert "gcn-lpa, trained again: " in text
    assert json.loads(said("what-if", folder, "--relabel", "n0=bad", "--json").stdout)["retrained"] is None


COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def on_a_terminal(*words, **environment):
    """What a command writes to a terminal."""
    import pty  # which Windows lacks

    main, terminal = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-m", "gcn_lpa", *map(str, words)]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=terminal, env=settings) as process:
        os.close(terminal)
        written = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(main, 65536):
                written += part
    os.close(main)
    assert process.returncode == 0, written
    return written


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="terminals of Windows are not opened like this")
def test_no_color_is_respected():
    words = ["train", "karate", "--epochs", "60"]
    plain = on_a_terminal(*words, NO_COLOR="1")
    assert b"karate: gcn-lpa" in plain
    assert COLOR.search(plain) is None
    assert COLOR.search(on_a_terminal(*words)) is not None  # the bar
    assert COLOR.search(on_a_terminal("-q", *words)) is None
