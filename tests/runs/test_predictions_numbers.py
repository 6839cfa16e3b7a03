"""A run of numbers: kept, read again, resumed, and what its commands say."""

import dataclasses

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.predict import predictions
from gcn_lpa.runs import train_run as stages
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import calibrate_run, predict_run
from gcn_lpa.runs.train_run import evaluate_run, resume_run, train_run
from gcn_lpa.train import Watch

SMALL = {"hidden": 8, "epochs": 12, "members": "neighbour-lr"}


def houses(folder, n=90, seed=0):
    """Houses on a ring; of two thirds the price is known."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n).round(3)
    price = np.exp(2 * np.sin(2 * np.pi * np.arange(n) / n) + size + 0.2 * rng.normal(size=n)).round(3)
    nodes = pandas.DataFrame({"id": [f"h{i}" for i in range(n)], "price": price, "size": size})
    nodes["price"] = nodes["price"].astype(object).where(np.arange(n) % 3 > 0, "")
    ends = [(f"h{i}", f"h{(i + k) % n}") for i in range(n) for k in (1, 2)]
    nodes.to_csv(folder / "nodes.csv", index=False)
    pandas.DataFrame(ends, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    data = houses(tmp_path_factory.mktemp("houses"))
    plan, graph = make_plan(Source(str(data), options={"label": "price"}), changes=SMALL)
    out = tmp_path_factory.mktemp("run") / "run"
    return data, out, train_run(plan, graph, out, device="cpu", threads=1)


def test_a_column_of_many_numbers_is_predicted_as_numbers_and_that_is_said(kept):
    graph = kept[2].graph
    (note,) = [note for note in graph.notes if "numbers to predict" in note]
    assert note.startswith("warning: column 'price' holds ")
    assert "option task=classification reads each as a class" in note
    assert graph.numbers is not None and int(graph.labeled.sum()) == 60 and graph.class_names == ()


@pytest.mark.parametrize(
    ("labels", "is_number"),
    [
        ([str(k / 4) for k in range(60)], True),
        (["0.5", "1.5", "2.5"] * 20, False),  # three versions of something
        ([str(k * k) for k in range(60)], True),
        ([str(k) for k in range(60)], False),  # codes
        ([str(1000 + k % 25) for k in range(300)], False),  # more than five of each
        (["low", *map(str, range(60))], False),
    ],
)
def test_a_label_is_a_number_where_many_are_different(labels, is_number):
    nodes = pandas.DataFrame({"id": range(len(labels)), "label": labels})
    graph = read_csv(nodes, pandas.DataFrame({"source": [0], "target": [1]}), label="label")
    assert (graph.numbers is not None) == is_number
    as_classes = read_csv(nodes, None, label="label", task="classification", features="identity")
    assert as_classes.numbers is None and as_classes.num_classes == len(set(labels))


def test_a_label_that_is_no_number_is_named_where_numbers_are_asked_for(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label\na,1.5\nb,many\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    with pytest.raises(ValueError, match=r"nodes\.csv, row 3, column 'label' is 'many'; a label of task 'regression'"):
        Source(str(tmp_path), options={"task": "regression"}).load()


def test_a_run_comes_back_from_its_folder(kept):
    _, out, run = kept
    again = load_run(out)
    assert again.trained.target == run.trained.target and again.results == run.results
    assert again.trained.calibration == run.trained.calibration
    pandas.testing.assert_frame_equal(predict_run(again), predict_run(run))
    assert evaluate_run(again).scores.r2 > 0.5


def test_a_run_that_was_stopped_ends_where_an_undisturbed_one_does(kept, tmp_path, monkeypatch):
    data, _, run = kept
    monkeypatch.setattr(stages, "CHECKPOINT_SECONDS", 0.0)
    plan, graph = make_plan(Source(str(data), options={"label": "price"}), changes=SMALL, checkpoint_every=2)
    seen = []

    def stop(name, epoch):
        seen.append(name)
        if len(seen) == 17:
            raise KeyboardInterrupt

    stopped = train_run(plan, graph, tmp_path / "run", device="cpu", threads=1, watch=Watch(on_epoch=stop))
    assert stopped.run.interrupted
    resumed = resume_run(tmp_path / "run", device="cpu", threads=1)
    for name, tensor in run.trained.model.state_dict().items():
        assert torch.equal(tensor, resumed.trained.model.state_dict()[name]), name
    assert torch.equal(resumed.trained.held_out.probability, run.trained.held_out.probability)
    assert resumed.results == run.results


def test_intervals_are_those_of_the_other_folds_by_hand(kept):
    run = kept[2]
    held_out, found = run.trained.held_out, calibrate_run(run, level=0.8)
    off = (held_out.probability[:, 0] - held_out.y).abs()
    assert not any(found.intervals.slopes)
    inside = []
    for k in held_out.fold.unique():
        others = off[held_out.fold != k].sort().values
        inside.append(off[held_out.fold == k] <= others[int(np.ceil((len(others) + 1) * 0.8)) - 1])
    assert found.coverage == pytest.approx(float(torch.cat(inside).double().mean()))
    assert found.expected_coverage[0] <= found.coverage + 0.1
    few = dataclasses.replace(run.trained, held_out=None)
    assert predictions(few, run.graph)[["low", "high"]].isna().all(axis=None)


def test_every_command_speaks_of_numbers(kept, tmp_path):
    _, out, _ = kept
    said = {}
    for words in (
        "evaluate",
        "calibrate",
        "explain --node h3",
        "what-if --relabel h1=2.5",
        "suggest -n 2",
        "predict --sets 0.8",
    ):
        command, *options = words.split()
        done = CliRunner().invoke(app, [command, str(out), *options])
        assert done.exit_code == 0, (words, done.output)
        said[command] = done.stdout
        if command in ("evaluate", "calibrate"):
            assert max(map(len, done.stdout.splitlines())) <= 100
    done = CliRunner().invoke(app, ["explain", str(out), "--node", "h3", "--picture", str(tmp_path / "why.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "why.png").read_bytes()[1:4] == b"PNG"
    assert "R² " in said["evaluate"] and "mean absolute error" in said["evaluate"]
    assert "of 90 %" in said["calibrate"]
    assert "LPA predicts" in said["explain"] and "standard score" in said["explain"]
    assert said["predict"].splitlines()[0] == "id,value,low,high,status"
    for words, problem in {
        "predict --top 3": "a cut is for a class",
        "audit --edges": "edges are judged by the classes of their ends",
        "evaluate --positive yes": "names a class, and these labels are numbers",
    }.items():
        command, *options = words.split()
        done = CliRunner().invoke(app, [command, str(out), *options])
        assert done.exit_code == 1 and problem in done.output + (done.stderr or ""), (words, done.output)
