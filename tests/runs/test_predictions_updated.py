"""Runs on folders that grow: prediction from the command line in one command, and training on the past alone."""

import csv
import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import predict_on
from gcn_lpa.runs.train_run import evaluate_run, past_of, resume_run, train_run
from gcn_lpa.train import Watch
from tests.helpers.mixed_tables import mixed_rows, write_mixed

ROOT = Path(__file__).parents[2]
CHANGES = {"epochs": 4, "patience": 0, "hidden": 4}


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def trained_run(folder, out, changes=CHANGES, **options):
    plan, graph = make_plan(Source(str(folder), None, options), changes=changes)
    return train_run(plan, graph, out, device="cpu")


def write(folder, nodes, edges, header=("id", "label", "a", "b")):
    folder.mkdir(exist_ok=True)
    for name, head, rows in (("nodes", header, nodes), ("edges", ("source", "target"), edges)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder with columns of every kind, a run on it, and the same folder a week later."""
    place = tmp_path_factory.mktemp("mixed")
    rows = list(mixed_rows(60))
    week = [(f"v{i}", *row[1:]) for i, row in enumerate(mixed_rows(5, seed=9))]
    week[0] = (*week[0][:7], "enterprise", *week[0][8:])  # a plan that no row had
    week[1] = (week[1][0], "", *week[1][2:])
    home, grown = write_mixed(place / "home", rows), write_mixed(place / "grown", [*rows[2:], *week])
    trained_run(home, place / "run")
    return grown, place / "run"


@pytest.mark.long
def test_a_grown_folder_is_predicted_in_one_command(mixed, tmp_path):
    grown, run = mixed
    done = call("predict", run, "--on", grown, "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.stderr
    assert "  nodes        5 new, 2 gone" in done.stdout.splitlines()
    graph, columns = load(grown), load_run(run).trained.columns
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [n for n, y in zip(graph.node_names, graph.y.tolist(), strict=True) if y < 0]
    assert {row["id"] for row in rows if row["before"] == ""} == {row["id"] for row in rows if row["id"][0] == "v"}
    expected = load_run(run).trained.predict_updated(load(grown, columns=columns)).set_index("id")
    for row in rows:
        assert row["label"] == expected.loc[row["id"], "label"]
        assert float(row["probability"]) == pytest.approx(expected.loc[row["id"], "probability"], rel=1e-5)


@pytest.mark.long
def test_the_summary_is_json_on_request_and_beside_the_table_on_stderr(mixed, tmp_path):
    grown, run = mixed
    found = json.loads(call("predict", run, "--on", grown, "--json").stdout)
    assert (found["changes"]["nodes_new"], found["rows"]) == (5, len(found["predictions"]))
    found = json.loads(call("predict", run, "--on", grown, "--json", "--out", tmp_path / "o.csv").stdout)
    assert (found["out"], found["rows"]) == (
        str(tmp_path / "o.csv"),
        len((tmp_path / "o.csv").read_text().splitlines()) - 1,
    )
    done = call("predict", run, "--on", grown, "--all", "--sets", "0.9")
    assert done.stdout.startswith("id,label,probability,runner_up,status,set,before\n")
    assert "5 new, 2 gone" in done.stderr
    assert len(done.stdout.splitlines()) == 1 + 63


@pytest.mark.long
def test_a_folder_that_grew_in_place_is_predicted_and_says_what_cannot_be_compared(tmp_path):
    rows = list(mixed_rows(40))
    home = write_mixed(tmp_path / "home", rows)
    trained_run(home, tmp_path / "run")
    write_mixed(home, [*rows, *((f"v{i}", *row[1:]) for i, row in enumerate(mixed_rows(3, seed=5)))])
    found = predict_on(tmp_path / "run", home)
    assert found.changes.nodes_new is None
    assert "is not the graph" in found.note
    assert "before" not in found.table
    done = call("predict", tmp_path / "run", "--on", home)
    assert "  note: nodes, edges and predictions are not compared:" in done.stderr


@pytest.mark.long
def test_a_run_whose_folder_was_changed_compares_with_a_copy(tmp_path):
    nodes = [(f"n{i}", "xy"[i % 2] if i < 12 else "", i % 3, i % 5) for i in range(16)]
    ring = [(f"n{i}", f"n{(i + 1) % 16}") for i in range(16)]
    home, copy = (write(tmp_path / name, nodes, ring) for name in ("home", "copy"))
    trained_run(home, tmp_path / "run", changes={**CHANGES, "edges": "free"})
    write(home, [*nodes, ("new", "", 1, 1)], [*ring, ("new", "n0")])
    with pytest.raises(ValueError, match="the model learned weights for each edge of the graph of the run, but"):
        predict_on(tmp_path / "run", home)
    found = predict_on(tmp_path / "run", home, copy)
    assert found.changes.edges_unweighted == 3
    assert (found.changes.nodes_new, found.changes.edges_new, found.note) == (1, 1, "")
    assert found.table["id"].tolist()[-1] == "new"


def test_what_goes_with_on_is_refused_without_it(tmp_path):
    for words in (["-o", "label=x"], ["--root", tmp_path]):
        done = call("predict", tmp_path, *words)
        assert done.exit_code == 2
        assert "go with --on" in done.stderr


# the past and the future


def timed(y, time):
    names = [f"n{i}" for i in range(len(y))]
    graph = Graph.from_edges(pairwise(names), x=np.eye(len(y)), y=y, node_names=names)
    return dataclasses.replace(graph, time=None if time is None else torch.tensor(time, dtype=torch.float64))


def test_the_split_by_time_keeps_the_order_and_what_came_together():
    graph = timed([0, 1, 0, 1, 0, 1, 0, 1, 0, -1], [5, 1, 1, 2, 2, 3, 3, 4, 4, 9])
    found = split(graph, kind="time")
    at = [mask.nonzero().squeeze(1).tolist() for mask in (found.train, found.val, found.test)]
    assert at == [[1, 2, 3, 4, 5, 6], [7, 8], [0]]  # 6 of 9 are nearest to 60 %, 8 of 9 to 80 %
    past, then = past_of(graph, found)
    assert list(past.node_names) == [f"n{i}" for i in range(1, 9)]
    assert (past.num_edges, int(then.test.sum())) == (7, 0)


@pytest.mark.parametrize(
    ("time", "message"),
    [(None, "does not say when its nodes came"), ([1, 1, 2, 2], "came at 2 times; it takes three")],
)
def test_a_split_by_time_needs_three_times(time, message):
    with pytest.raises(ValueError, match=message):
        split(timed([0, 1, 0, 1], time), kind="time")


def drifting(folder, future=lambda i, row: row):
    """80 nodes that came on 80 days; what tells the classes apart is column a until day 50, and b from then on."""
    draw, nodes = np.random.default_rng(0), []
    for i in range(80):
        c = int(draw.integers(2))
        signal, noise = 3 * (2 * c - 1) + draw.normal(), 3 * draw.normal()
        a, b = (signal, noise) if i < 64 else (noise, signal)
        row = [f"n{i:02}", "xy"[c], f"{a:.3f}", f"{b:.3f}", f"2024-{1 + i // 28:02}-{1 + i % 28:02}"]
        nodes.append(row if i < 64 else future(i, row))
    edges = [(f"n{i:02}", f"n{draw.integers(i):02}") for i in range(1, 80)]
    return write(folder, nodes, edges, ("id", "label", "a", "b", "day"))


@pytest.mark.long
def test_training_on_the_past_sees_nothing_of_the_future(tmp_path):
    one = trained_run(drifting(tmp_path / "one"), None, time="day")
    other = drifting(tmp_path / "two", lambda i, row: [row[0], "yx"[row[1] == "y"], "99", "-99", row[4]])
    with open(other / "edges.csv", "a", encoding="utf-8") as file:
        file.write("".join(f"n{i},n01\n" for i in range(64, 80)))
    two = trained_run(other, None, time="day")
    assert int(one.split.test.sum()) == 16
    assert not (one.split.test & (one.graph.time < one.graph.time[64])).any()
    for name, tensor in one.trained.model.state_dict().items():
        assert torch.equal(tensor, two.trained.model.state_dict()[name]), name
    assert one.trained.weights == two.trained.weights


@pytest.mark.long
def test_the_future_is_scored_by_a_model_of_the_past(tmp_path):
    folder = drifting(tmp_path / "drift")
    done = call(
        *(
            "train",
            folder,
            "-o",
            "time=day",
            "--out",
            tmp_path / "run",
            "--epochs",
            150,
            "--hidden",
            8,
            "--device",
            "cpu",
        )
    )
    assert done.exit_code == 0, done.stderr
    assert "trained on the past (64 nodes and the 63 edges between them), scored on the future" in " ".join(done.stdout.split())
    results = evaluate_run(load_run(tmp_path / "run"))
    assert results.protocol == "test"
    assert results.scores.num_nodes == 16 and results.scores.accuracy < 0.8  # the future is told by another column
    assert load_run(tmp_path / "run").graph.columns.single_columns == ["a", "b"]  # the day is no feature
    later = predict_on(tmp_path / "run", folder, every=True)
    assert (later.changes.labels_new, later.changes.nodes_new) == (16, 0)  # the labels of the future vote now


@pytest.mark.long
def test_a_run_over_time_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
    plan, graph = make_plan(Source(str(drifting(tmp_path / "drift")), None, {"time": "day"}), changes=CHANGES)
    whole = train_run(plan, graph, tmp_path / "whole", device="cpu")

    def on_epoch(_, epoch):
        if epoch.epoch == 3:
            raise KeyboardInterrupt

    watch = Watch(on_epoch=on_epoch)
    assert train_run(plan, graph, tmp_path / "part", device="cpu", watch=watch).run.interrupted
    finished = resume_run(tmp_path / "part", device="cpu")
    assert finished.results == whole.results
    for name, tensor in whole.trained.model.state_dict().items():
        assert torch.equal(tensor, finished.trained.model.state_dict()[name])
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


@pytest.mark.long
def test_validation_nodes_that_are_reserved_are_of_the_past(tmp_path):
    source = Source(str(drifting(tmp_path / "drift")), None, {"time": "day"})
    plan, graph = make_plan(source, changes=CHANGES, reserve=0.5)
    run = train_run(plan, graph, device="cpu")
    assert "trained on the past (64 nodes and the 63 edges between them)" in run.results.note
    assert int(run.reserved.sum()) == 8


def test_free_weights_and_models_without_features_cannot_score_the_future(tmp_path):
    folder = drifting(tmp_path / "drift")
    with pytest.raises(ValueError, match=r"'free' keeps one weight per training edge .* choose one of 'bilinear'"):
        make_plan(Source(str(folder), None, {"time": "day"}), changes={"edges": "free"})
    with pytest.raises(ValueError, match=r"knows nodes by their place: features='degree' scores"):
        make_plan(Source(str(folder), None, {"time": "day", "features": "identity"}))


@pytest.mark.parametrize("cell", ["", "soon"])
def test_a_time_is_a_date_or_a_number(tmp_path, cell):
    folder = drifting(tmp_path / "drift", lambda i, row: [*row[:4], cell if i == 70 else row[4]])
    with pytest.raises(ValueError, match=rf"row 72, column 'day' is '{cell}'; a time is a date, such as 2024-01-31"):
        load(folder, time="day")
    with pytest.raises(ValueError, match=r"no column 'when'"):
        load(folder, time="when")


def test_a_folder_without_columns_that_was_changed_in_place_is_refused(tmp_path):
    """The model has a row of weights for each node, by its place; without the graph of the run nothing says which is which."""
    nodes = [(f"n{i}", "ab"[i % 2] if i < 8 else "") for i in range(12)]
    edges = [(f"n{i}", f"n{j}") for i, j in pairwise(range(12))]
    home = write(tmp_path / "home", nodes, edges, header=("id", "label"))
    copy = write(tmp_path / "copy", nodes, edges, header=("id", "label"))
    trained_run(home, tmp_path / "run", changes={"epochs": 4})
    write(home, nodes[::-1], edges, header=("id", "label"))
    found = call("predict", tmp_path / "run", "--on", home)
    assert found.exit_code == 1
    assert "the model learned weights for each node of the graph of the run, but" in found.stderr
    assert "--data PATH" in found.stderr
    given = call("predict", tmp_path / "run", "--on", home, "--data", copy)
    assert given.exit_code == 0, given.stderr
    assert "0 of 4 changed" in given.stderr


def test_predictions_do_not_replace_what_they_are_read_from(tmp_path):
    nodes = [(f"n{i}", "ab"[i % 2] if i < 8 else "", i % 3, i % 5) for i in range(12)]
    home = write(tmp_path / "home", nodes, [(f"n{i}", f"n{j}") for i, j in pairwise(range(12))])
    before = (home / "nodes.csv").read_bytes()
    found = call("predict", tmp_path / "run", "--on", home, "--out", home / "nodes.csv", "--overwrite")
    assert found.exit_code == 2
    assert "nodes.csv is a file that is read; choose another" in " ".join(found.stderr.split())
    assert (home / "nodes.csv").read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        "--nodes -5 --edges 3 --classes 2",
        "--nodes nan --edges 3 --classes 2",
        "--nodes inf --edges 3 --classes 2",
        "--nodes 1e6 --edges -1 --classes 2",
        "--nodes 1e6 --edges 3e6 --classes 0",
        "--nodes 1e6 --edges 3e6 --classes 2 --features -3",
        "--nodes 1e6 --edges 3e6 --classes 2 --filled 1000",
        "--nodes 1e6 --edges 3e6 --classes 2 --workers 4 --halo nan",
        "--nodes 10 --edges 1e6 --classes 2",
        "--nodes 10 --edges 20 --classes 2 --workers 11",
    ],
)
def test_a_plan_of_what_cannot_be_is_refused(words):
    found = call("plan", *words.split())
    assert found.exit_code == 2
    assert "MB" not in found.stdout
