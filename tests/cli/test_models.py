"""train, resume, evaluate, predict and edges as a user meets them: what they print, what they leave, how they end."""

import csv
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import pandas
import pytest
import sklearn.datasets
from typer.testing import CliRunner

from gcn_lpa.cli import data as demo
from gcn_lpa.cli.app import app
from gcn_lpa.cli.text import warning
from gcn_lpa.data.datasets import load
from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.metrics import ClassScores, Scores
from gcn_lpa.predict import predictions
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import Results, load_run
from gcn_lpa.runs.predictions import table_text

QUICK = ("--epochs", 5, "--hidden", 4, "--device", "cpu")
COLUMNS = ["id", "label", "probability", "runner_up", "status"]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ok(*arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output  # not a terminal: no progress bar
    return result.stdout


@pytest.fixture(scope="module")
def karate_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "karate"
    ok("train", "karate", "--out", folder, *QUICK)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Two joined cliques of five with one label missing in each, and an account that knows nobody."""
    folder = tmp_path_factory.mktemp("own")
    ids = [f"@{name}" for name in "abcdefghij"] + ["=alone()"]
    labels = ["left"] * 4 + [""] + ["right"] * 4 + ["", ""]
    pandas.DataFrame({"id": ids, "label": labels}).to_csv(folder / "nodes.csv", index=False)
    pairs = [(i, j) for start in (0, 5) for i in range(start, start + 5) for j in range(i + 1, start + 5)]
    ends = [(ids[i], ids[j]) for i, j in [*pairs, (4, 5)]]
    pandas.DataFrame(ends, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def own_run(own, tmp_path_factory):
    """The folder of a training on `own`, and what was printed."""
    folder = tmp_path_factory.mktemp("cli") / "own"
    return folder, ok("train", own, "--out", folder, "--epochs", 30, "--device", "cpu")


def test_train_says_what_it_did_and_where_it_is(tmp_path):
    lines = ok("train", "karate", "--out", tmp_path / "run", *QUICK).splitlines()
    assert lines[0].startswith("karate: gcn-lpa, epoch ")
    assert " of 5 (validation " in lines[0]
    assert lines[1].startswith("  accuracy ")
    assert lines[1].endswith("on 6 nodes")
    assert lines[2].startswith("  uniform split, seed 0: scored on test nodes")
    assert all(len(line) <= 80 for line in lines[:-1])
    assert " ".join(" ".join(lines).split()).endswith(f"kept in {tmp_path / 'run'}")
    assert "  probabilities are not calibrated: 6 held-out labels are too few, it takes 30" in lines


def test_train_as_json_holds_the_numbers_of_the_folder(tmp_path):
    facts = json.loads(ok("train", "karate", "--out", tmp_path / "run", "--json", "--seed", 3, *QUICK))
    kept = load_run(tmp_path / "run")
    assert facts["results"]["scores"]["accuracy"] == kept.results.scores.accuracy
    assert (facts["seed"], facts["epochs"], facts["best_epoch"]) == (3, 5, kept.run.best_epoch)
    assert Recipe.from_dict(facts["recipe"]) == kept.plan.recipe
    assert facts["split"] == kept.split.hash


def test_every_field_of_the_recipe_is_a_flag_with_its_help(tmp_path):
    ok(
        "train",
        "karate",
        "--out",
        tmp_path / "a",
        *QUICK,
        "--no-self-loops",
        "--loss",
        "literal",
        "--lr",
        0.2,
        "--bias",
    )
    recipe = load_run(tmp_path / "a").plan.recipe
    assert (recipe.self_loops, recipe.loss, recipe.lr, recipe.bias, recipe.epochs) == (False, "literal", 0.2, True, 5)
    ok("train", "karate", "--out", tmp_path / "b", "--recipe", tmp_path / "a" / "recipe.json")  # it is a recipe file
    assert load_run(tmp_path / "b").plan.recipe == recipe
    help_text = " ".join(ok("train", "--help").split())
    for spec in Recipe.__dataclass_fields__.values():
        if spec.name != "origin":
            assert f"--{spec.name.replace('_', '-')} " in help_text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "karate", "--loss", "best"], 2, "loss is 'best'; it is one of official"),
        (["train", "karate", "--hidden", "wide"], 2, "--hidden"),
        (["train", "karate", "--hidden", "0"], 1, "gcn-lpa: recipe: hidden = 0; it is at least 1"),
        (["train", "--resume", "--out", "nowhere"], 1, "gcn-lpa: nowhere is not a run folder"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(arguments, code, message):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "flags", "message"),
    [
        ("lr", ("--dropout", 0.1), "method 'lr' does not use dropout = 0.1; it uses features"),
        ("lpa", ("--hidden", 4, "--lr", 0.2), "method 'lpa' does not use hidden = 4, lr = 0.2; it uses self_loops"),
        ("gcn", ("--edges", "agnn"), "method 'gcn' does not use edges = 'agnn'; it uses "),
        ("label-input", ("--residual",), "method 'label-input' does not use residual = True"),
    ],
)
def test_a_field_that_the_method_does_not_use_is_refused_by_name(tmp_path, method, flags, message):
    result = run("train", "karate", "--method", method, *flags, "--out", tmp_path / "run")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith(f"gcn-lpa: {message}")
    assert not (tmp_path / "run").exists()


def test_a_recipe_file_with_a_field_that_the_method_does_not_use_is_refused_by_name(tmp_path):
    (tmp_path / "mine.json").write_text('{"method": "lr", "dropout": 0.1}')
    result = run("train", "karate", "--recipe", tmp_path / "mine.json")
    assert result.exit_code == 1
    assert result.stderr.startswith("gcn-lpa: method 'lr' does not use dropout = 0.1; it uses features")
    (tmp_path / "mine.json").write_text('{"dropout": 0.1}')
    result = run("train", "karate", "--recipe", tmp_path / "mine.json", "--method", "lpa")
    assert result.stderr.startswith("gcn-lpa: method 'lpa' does not use dropout = 0.1")


def test_compare_applies_a_flag_where_it_is_used_and_names_the_methods_without_it(monkeypatch):
    arguments = (
        "compare",
        "karate",
        "--methods",
        "lr,gcn",
        "--dropout",
        0.3,
        "--epochs",
        3,
        "--splits",
        2,
        "--device",
        "cpu",
    )
    said = ok(*arguments).splitlines()
    assert "--dropout is not used by lr" in said
    assert "--epochs is not used by lr" in said
    found = json.loads(ok(*arguments, "--json"))
    assert found["unused"] == {"dropout": ["lr"], "epochs": ["lr"]}
    assert found["recipes"]["gcn"]["dropout"] == 0.3
    result = run("compare", "karate", "--methods", "lr,lpa", "--dropout", 0.3)
    assert result.stderr == "gcn-lpa: dropout = 0.3: none of the methods lr, lpa uses it\n"


def test_a_folder_that_is_not_empty_is_refused(karate_run):
    result = run("train", "karate", "--out", karate_run, *QUICK)
    assert result.exit_code == 1
    assert f"{karate_run} is not empty; choose another folder, or --overwrite to start anew" in result.stderr
    assert ok("train", "karate", "--out", karate_run, *QUICK, "--resume").startswith("karate: gcn-lpa, epoch ")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    result = run("train", "karate", "--out", tmp_path / "run", *QUICK)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_evaluate_prints_what_to_cite(karate_run):
    lines = ok("evaluate", karate_run, "--cite").splitlines()
    assert lines[0] == "@article{wang2020unifying,"
    assert json.loads(ok("evaluate", karate_run, "--cite", "--json"))["bibtex"].splitlines() == lines
    assert run("evaluate", karate_run, "--cite", "--positive", "Officer").exit_code == 2


def test_evaluate_prints_scores_classes_and_confusion(karate_run):
    lines = ok("evaluate", karate_run).splitlines()
    results = json.loads(ok("evaluate", karate_run, "--json"))
    counts = results["scores"]["confusion"]
    assert lines[0].startswith(f"accuracy {100 * results['scores']['accuracy']:.1f} %")
    assert " ".join(" ".join(lines[2:5]).split()).endswith(
        f"balanced accuracy 100.0 %, ROC AUC 100.0 %, average precision 100.0 %, "
        f"log loss {results['scores']['metrics']['log_loss']:.3f}, Brier score {results['scores']['metrics']['brier']:.3f}"
    )
    assert [line.split()[-1] for line in lines[7:9]] == [str(sum(row)) for row in counts]
    assert [line.split()[-2:] for line in lines[-2:]] == [[str(cell) for cell in row] for row in counts]
    assert sum(map(sum, counts)) == results["scores"]["num_nodes"] == 6


def test_own_data_is_scored_by_cross_validation_and_says_so(own, own_run):
    folder, said = own_run
    rates, folds, note = lines = ok("evaluate", folder).splitlines()[:3]
    assert rates.endswith("on 8 nodes")
    assert len(folds.split(",")) == 5
    assert note.startswith("5-fold cross-validation: ")
    assert [line.strip() for line in said.splitlines()[1:3]] == [rates, folds]
    assert note in " ".join(said.split())
    assert ok("evaluate", folder, "--data", own).splitlines()[:3] == lines
    result = run("evaluate", folder, "--data", "karate")
    assert result.exit_code == 1
    assert "'karate' is not the graph" in result.stderr


@pytest.mark.parametrize(("accuracy", "said"), [(0.5, True), (0.6, True), (0.61, False)])
def test_a_model_no_better_than_the_most_frequent_class_is_told(accuracy, said):
    classes = {"a": ClassScores(0.0, 0.0, 0.0, 6), "b": ClassScores(0.0, 0.0, 0.0, 4)}
    lines = warning(Results("test", "", Scores(accuracy, 0.0, 10, classes, [[0, 0], [0, 0]])))
    expected = "no better than always the most frequent class (60.0 %); `gcn-lpa compare` tries other methods"
    assert " ".join(" ".join(lines).split()) == (expected if said else "")
    assert warning(Results("none", "")) == []


def test_what_may_not_be_meant_is_said_before_training(own, tmp_path):
    (tmp_path / "edges.csv").write_bytes((own / "edges.csv").read_bytes())
    nodes = pandas.read_csv(own / "nodes.csv", keep_default_na=False)
    nodes.assign(y=nodes["label"].map({"left": 0, "right": 1, "": 0})).to_csv(tmp_path / "nodes.csv", index=False)
    result = run("train", tmp_path, "--method", "lpa")
    assert result.exit_code == 0
    assert result.stderr.startswith("gcn-lpa: warning: 'y' could be the label too, and a feature that is one would tell")
    assert "label=y chooses it" in result.stderr
    assert ok("train", tmp_path, "--method", "lpa", "-o", "features=identity")
    assert ok("train", tmp_path, "--method", "lpa", "--json").startswith("{")


def test_predict_gives_each_unlabelled_node_a_label_under_its_own_id(own_run, tmp_path):
    out = tmp_path / "predictions.csv"
    said = ok("predict", own_run[0], "--out", out)
    assert " ".join(said.split()) == f"3 rows, 2 reached, 1 unreachable in {out}"
    header, *rows = csv.reader(io.StringIO(out.read_text()))
    assert header == COLUMNS
    assert [(row[0], row[1], row[3], row[4]) for row in rows[:2]] == [
        ("@e", "left", "right", "reached"),
        ("@j", "right", "left", "reached"),
    ]
    assert (rows[2][0], rows[2][4]) == ("=alone()", "unreachable")
    assert all(0.5 <= float(row[2]) <= 1 for row in rows)


def test_predict_all_is_the_table_of_the_library(own_run):
    folder, _ = own_run
    kept = load_run(folder)
    table = predictions(kept.trained, kept.graph)
    printed = list(csv.DictReader(io.StringIO(ok("predict", folder, "--all"))))
    assert [row["id"] for row in printed] == [*kept.graph.node_names]
    assert [row["label"] for row in printed] == table["label"].tolist()
    assert [float(row["probability"]) for row in printed] == pytest.approx(table["probability"].tolist(), rel=1e-5)
    assert [row["status"] for row in printed].count("labeled") == 8
    as_json = json.loads(ok("predict", folder, "--all", "--json"))
    assert as_json == table.to_dict("records")
    safe = csv.DictReader(io.StringIO(ok("predict", folder, "--excel-safe")))
    assert [row["id"] for row in safe] == ["'@e", "'@j", "'=alone()"]


def test_excel_safe_covers_every_start_of_a_formula_and_plain_csv_changes_nothing():
    starts = [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "＝1",
        "＋1",
        "－1",
        "＠a",
        "|calc",
        "%0a",
        "plain",
        "a=b",
    ]
    table = pandas.DataFrame({"id": starts, "probability": -0.5})
    for excel_safe in (False, True):
        rows = list(csv.DictReader(io.StringIO(table_text(table, excel_safe=excel_safe), newline="")))
        wanted = [f"'{name}" if excel_safe and name not in ("plain", "a=b") else name for name in starts]
        assert [row["id"] for row in rows] == wanted
        assert {row["probability"] for row in rows} == {"-0.5"}  # a number, not text


def test_terminal_escapes_in_names_are_shown_and_not_executed(tmp_path):
    evil = "\x1b[31mred\x1b]0;owned\x07\x9b2J\u202e"
    labels = ["", *[evil, "blue"] * 6]
    rows = [f"{evil}{i},{label},{i % 2}\n" for i, label in enumerate(labels)]
    (tmp_path / "nodes.csv").write_text("id,label,x\n" + "".join(rows), encoding="utf-8")
    edges = [f"{evil}{i},{evil}{i + 1}\n" for i in range(12)]
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(edges), encoding="utf-8")
    folder = tmp_path / "run"
    said = [run("info", tmp_path), run("train", tmp_path, "--out", folder, "--epochs", 2), run("evaluate", folder)]
    said += [run("explain", folder, "--node", f"{evil}0"), run("explain", folder, "--node", f"{evil}nobody")]
    for result in said:
        assert not set(result.stdout + result.stderr) & set("\x1b\x07\x9b\u202e")
    assert "\\x1b[31mred\\x1b]0;owned\\x07\\x9b2J\\u202e" in said[0].stdout
    assert next(csv.DictReader(io.StringIO(ok("predict", folder))))["id"] == f"{evil}0"  # a pipe gets what the file has


def test_a_message_has_an_end(tmp_path):
    (tmp_path / "nodes.csv").write_text(f"id,label\n{'a' * 100_000},x\n{'a' * 100_000},y\n")
    result = run("info", tmp_path)
    assert result.exit_code == 1
    assert 100 < len(result.stderr) < 1200


def test_edges_are_exported_both_ways(karate_run, tmp_path):
    out = tmp_path / "edges.csv"
    assert ok("edges", karate_run, "--out", out).split() == ["190", "rows", "in", str(out)]  # 2 · 78 and 34 self-loops
    table = pandas.read_csv(out)
    assert list(table.columns) == ["source", "target", "weight", "learned"]
    assert table.groupby("target")["learned"].sum().to_numpy() == pytest.approx([1.0] * 34, abs=1e-4)
    ends = set(zip(table["source"], table["target"], strict=True))
    graph = load("karate")
    assert ends == {*zip(graph.col.tolist(), graph.row.tolist(), strict=True), *((i, i) for i in range(34))}


def test_a_moved_source_is_found_with_data(own, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("nodes.csv", "edges.csv"):
        (moved / name).write_bytes((own / name).read_bytes())
    ok("train", moved, "--out", tmp_path / "run", "--method", "lpa")
    moved.rename(tmp_path / "elsewhere")
    result = run("predict", tmp_path / "run")
    assert result.exit_code == 1
    assert "say where it is with --data PATH" in result.stderr
    assert ok("predict", tmp_path / "run", "--data", tmp_path / "elsewhere").startswith("id,label")


@pytest.mark.long
def test_train_says_how_long_all_its_stages_took(own):
    start = time.perf_counter()
    shown = json.loads(ok("train", own, *QUICK, "--json"))
    waited = time.perf_counter() - start
    assert shown["seconds"] < shown["total_seconds"] < waited  # the first is that of the choice of the epoch alone


@pytest.mark.long
def test_demo_needs_no_files_and_finds_the_wrong_label(monkeypatch):
    monkeypatch.delenv("GCN_LPA_DATA", raising=False)
    found = demo.demonstrate()
    monkeypatch.setattr(demo, "demonstrate", lambda: found)
    text, shown = ok("demo"), json.loads(ok("demo", "--json"))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert (shown["train"], shown["val"], shown["test"]) == (200, 200, 1397)
    assert shown["accuracy"] > 0.9
    assert f"Of these {100 * shown['accuracy']:.1f} % are right" in text

    images = sklearn.datasets.load_digits().target.tolist()
    assert shown["true_label"] == str(images[shown["planted"]]) == shown["finding"]["suggested"]
    assert shown["finding"]["label"] != shown["true_label"]
    assert shown["finding"]["node"] == shown["planted"]
    assert shown["rank"] <= 4  # of 400
    assert f"It is number {shown['rank']} of 400 labels" in text
    assert [one["hidden_label"] for one in shown["examples"]] == [str(images[one["node"]]) for one in shown["examples"]]
    probabilities = [one["probability"] for one in shown["examples"]]
    assert probabilities == sorted(probabilities)
    assert shown["explanation"]["node"] == shown["examples"][0]["node"]
    for line in demo.NEXT:
        words = line.split()
        assert line in text
        assert words[0] == "gcn-lpa"
        assert run(words[1], "--help").exit_code == 0


@pytest.mark.long
def test_ctrl_c_keeps_what_there_is_shows_progress_and_can_be_resumed(tmp_path):
    """stderr is a terminal here; Ctrl-C comes when its progress bar shows the validation accuracy."""
    folder, settings = tmp_path / "run", ("--epochs", 400, "--hidden", 4, "--device", "cpu", "--threads", 1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gcn_lpa", "train", "karate", "--out", folder, "--report", *settings]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        bar = b""
        while b"validation" not in bar:
            bar += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
        while _more(ours):
            pass
    os.close(ours)
    assert process.returncode == 130
    assert said.startswith("karate: gcn-lpa, interrupted, epoch ")
    assert b"loss" in bar
    assert b"/400" in bar
    assert " ".join(said.split()).endswith(f"kept in {folder} `gcn-lpa train --resume --out {folder}` goes on")
    assert load_run(folder).run.interrupted
    warned = f"gcn-lpa: warning: the training of {folder} was interrupted, and this is what it had learned; `gcn-lpa train"
    for words in ((), ("--on", "karate")):
        assert run("predict", folder, *words).stderr.startswith(warned)
    assert not (folder / "report.html").exists()
    assert "interrupted" not in ok("train", "--resume", "--out", folder, "--device", "cpu", "--threads", 1)
    assert {"report.html", "predictions.csv"} <= {path.name for path in folder.iterdir()}  # as the first command asked
    ok("train", "karate", "--out", tmp_path / "whole", *settings)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_finished_run_gets_its_report_by_resume(karate_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(karate_run, folder)
    assert "the page is" in ok("train", "--resume", "--out", folder, "--report", "--device", "cpu")
    assert set(storage.listed(folder)) - set(storage.listed(karate_run)) == {"report.html", "predictions.csv"}


def test_files_of_a_run_are_not_replaced_and_another_programs_manifest_is_none(karate_run, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    for _ in range(2):
        ok("predict", karate_run, "--out", tmp_path / "model.safetensors", "--overwrite")
    (tmp_path / "link.csv").symlink_to(karate_run / "run.json")
    assert run("predict", karate_run, "--out", tmp_path / "link.csv", "--overwrite").exit_code == 1
    assert load_run(karate_run).plan.seed == 0


def test_a_method_without_edge_weights_is_an_error_and_no_note(tmp_path):
    ok("train", "karate", "--out", tmp_path / "run", "--method", "lpa", "--device", "cpu")
    result = run("edges", tmp_path / "run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("gcn-lpa: method 'lpa' learns no edge weights")


def test_the_help_names_every_edge_form():
    words = ok("train", "--help").replace(",", " ").split()
    assert set(EDGE_FORMS) <= set(words)


def _more(descriptor):
    try:
        return os.read(descriptor, 1000)
    except OSError:  # Linux says so when the other end is closed
        return b""


@pytest.mark.parametrize("mistake", [("--split", "official"), ("--device", "cuda"), ("--seed", -1), ("--lr", 1e30)])
def test_a_failed_training_does_not_keep_the_folder(karate_run, tmp_path, mistake, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = tmp_path / "run"
    assert run("train", "karate", "--out", folder, *QUICK, *mistake).exit_code == 1
    assert not folder.exists()
    shutil.copytree(karate_run, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run("train", "karate", "--out", folder, "--overwrite", *QUICK, *mistake).exit_code == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_graph_without_labels_claims_no_folder(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    result = run("train", tmp_path, "--out", tmp_path / "run", *QUICK)
    assert result.exit_code == 1
    assert "label" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_the_name_of_the_graph(tmp_path, own):
    said = ok("train", own, "-o", "name=club", "--out", tmp_path / "run", "--method", "lpa")
    assert said.startswith("club: lpa, ")
    assert load_run(tmp_path / "run").graph.name == "club"


def test_without_test_nodes_no_score_is_claimed(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\nc,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    lines = ok("train", tmp_path, "--split", "uniform", *QUICK).splitlines()
    assert lines[1] == "  uniform split, seed 0: no node was left to score"


@pytest.mark.parametrize("command", ["train", "compare"])
def test_labels_of_one_class_are_refused(tmp_path, command):
    (tmp_path / "nodes.csv").write_text("id,label\na,red\nb,red\nc,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    result = run(command, tmp_path)
    assert result.exit_code == 1
    assert f"every label of {tmp_path.name!r} is 'red'; to tell classes apart it takes labels of two" in result.stderr
