"""Does the graph help? Verdicts on graphs whose answer is known, folds that score every label, honest intervals."""

import dataclasses
import json
import math

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import describe, homophily
from gcn_lpa.graph import Graph
from gcn_lpa.insight import advise as advice
from gcn_lpa.insight.advise import AdviceLine, advise, stratified_folds
from gcn_lpa.insight.compare import compare
from gcn_lpa.metrics import METRICS
from gcn_lpa.recipes import case_of, recipe_for
from gcn_lpa.stats import Mean, resampled_mean
from tests.helpers.small_graphs import rare

QUICK = {"changes": {"epochs": 15, "members": ""}, "device": "cpu", "repeats": 5}


def shuffled(graph, seed=0):
    """The same graph with its labels dealt out at random."""
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(graph, y=graph.y[order])


@pytest.mark.long
def test_where_edges_know_nothing_of_classes_the_graph_hurts():
    graph = load("sbm", n=300, classes=4, homophily=0.25, features=8, noise=0.3, degree=20.0)
    found = advise(graph, **QUICK)
    assert (found.verdict, found.method) == (advice.HURTS, "lr")
    assert found.sentence.startswith("Your graph hurts: use lr.")
    assert found.command("my folder") == "gcn-lpa train 'my folder' --method lr --recipe default"
    assert found.homophily.rate == pytest.approx(found.homophily.chance, abs=0.01)


def test_a_graph_by_which_our_model_gains_is_not_said_to_hurt_where_labels_are_too_few_to_tell():
    def line(method, score, over):
        none, sure = Mean(0.0, 0.01), Mean(score - 0.03, 0.05)
        return AdviceLine(method, over, sure, None if method == "gcn-lpa" else none, 1.0, "", Mean(score, 0.1))

    def verdict(gain):
        lines = line("lr", 0.88, None), line("gcn", 0.04, Mean(-0.84, 0.12)), line("gcn-lpa", 0.88 + gain.mean, gain)
        return advice._verdict(lines, METRICS["average_precision"], "fraud")[0]

    assert verdict(Mean(0.06, 0.14)) == advice.TOO_FEW
    assert verdict(Mean(0.005, 0.02)) == verdict(Mean(-0.06, 0.14)) == advice.HURTS
    assert verdict(Mean(0.06, 0.02)) == advice.HELPS


@pytest.mark.long
def test_where_features_are_noise_label_propagation_wins():
    graph = load("sbm", n=200, classes=3, homophily=0.95, features=4, noise=5.0)
    found = advise(graph, **QUICK)
    assert (found.verdict, found.method) == (advice.HELPS, "lpa")
    assert found.sentence.startswith("The graph helps: lpa is right for ")
    mlp, lr, lpa, *_ = found.lines
    features = max(mlp, lr, key=lambda line: line.score.mean)
    assert (features.over_features, lpa.over_best) == (None, None)
    assert lpa.over_features.mean == pytest.approx(lpa.score.mean - features.score.mean)


@pytest.mark.long
def test_labels_dealt_at_random_are_predicted_by_nothing():
    graph = shuffled(load("sbm", n=500, classes=6, homophily=0.9, features=2))
    found = advise(graph, device="cpu", changes={"epochs": 5, "members": ""})
    assert found.verdict == advice.UNPREDICTABLE
    assert found.sentence.startswith("Nothing predicts these labels, neither features nor edges: ")
    few = shuffled(load("sbm", n=40, classes=2, homophily=0.9, features=4))
    assert advise(few, **QUICK).verdict == advice.TOO_FEW  # forty could hide a lot


@pytest.mark.long
def test_a_rare_class_is_judged_by_its_ranking_and_not_by_accuracy():
    """Never saying the rare class is right for 95 %, and no model that ranks well has to be above that."""
    graph = rare(n=500, share=0.05)
    found = advise(graph, **QUICK)
    assert (found.metric, found.positive, found.verdict) == ("average_precision", "fraud", advice.HELPS)
    assert "average precision of fraud" in found.sentence
    best = max(found.lines, key=lambda line: line.score.mean)
    shares = [(graph.y[part.test] == 1).double().mean() for part in stratified_folds(graph, 5)]
    assert best.over_chance.mean == pytest.approx(best.score.mean - float(sum(shares)) / 5)
    assert best.over_chance.mean > 0.3
    assert advise(graph, metric="accuracy", **QUICK).metric == "accuracy"


@pytest.mark.long
def test_without_features_the_perceptron_is_left_out_and_the_reader_told(karate):
    found = advise(karate, **QUICK)
    assert [line.method for line in found.lines] == ["lpa", "gcn", "gcn-lpa"]
    assert all(line.over_features is None for line in found.lines)
    assert "there are no features to compare with" in found.sentence
    assert found.notes[0].startswith("no features: mlp and lr have nothing to read")


@pytest.mark.long
def test_advice_is_the_same_each_time_and_moves_with_the_labels():
    graph = load("sbm", n=60, classes=3, features=4).reveal(torch.arange(60) % 2 == 0)
    options = {**QUICK, "repeats": 2}
    first, again, other = (advise(g, **options) for g in (graph, graph, shuffled(graph)))
    timeless = [[dataclasses.replace(record, seconds=0) for record in one.records] for one in (first, again)]
    assert timeless[0] == timeless[1]
    assert [record.accuracy for record in first.records] != [record.accuracy for record in other.records]
    assert (first.labeled, first.unlabeled) == (30, 30)


def test_a_handful_of_labels_is_told_apart_without_training():
    graph = Graph.from_edges([(i, i + 1) for i in range(20)], y=[0, 1] * 4 + [-1] * 13, x=np.ones((21, 2)))
    found = advise(graph)
    assert (found.verdict, found.lines, found.device) == (advice.TOO_FEW, (), None)
    assert found.sentence == (
        "Too few labels to tell: 8 labelled nodes in 2 classes; a comparison needs 10 labels and two classes."
    )
    alike = advise(Graph.from_edges([(i, i + 1) for i in range(20)], y=[0] * 21, class_names=["a", "b"]))
    assert "21 labelled nodes in 1 class;" in alike.sentence
    edgeless = advise(Graph.from_edges([], num_nodes=21, y=[0, 1] * 10 + [-1], x=np.ones((21, 2))))
    assert (edgeless.verdict, edgeless.sentence[:23]) == (advice.NEUTRAL, "The graph has no edges:")
    with pytest.raises(ValueError, match="repeats = 1"):
        advise(graph, repeats=1)


def test_five_folds_score_every_label_once_and_divide_classes_alike():
    graph = load("sbm", n=103, classes=3, features=2).reveal(torch.arange(103) % 4 != 0)
    splits = stratified_folds(graph, 10, seed=7)
    for start in (0, 5):
        scored = torch.stack([part.test for part in splits[start : start + 5]]).sum(dim=0)
        assert torch.equal(scored == 1, graph.labeled)
    for part in splits:
        assert torch.equal(part.train | part.val | part.test, graph.labeled)
        counts = [torch.bincount(graph.y[mask], minlength=3) for mask in (part.train, part.val, part.test)]
        total = sum(counts)
        for count, share in zip(counts, (0.6, 0.2, 0.2), strict=True):
            assert (count - share * total).abs().max() <= 1.5
    assert len({part.hash for part in splits}) == 10
    assert [part.hash for part in splits] == [part.hash for part in stratified_folds(graph, 10, seed=7)]


def test_a_class_of_one_label_is_named():
    y = [0, 1] * 6 + [2]
    graph = Graph.from_edges([(i, i + 1) for i in range(12)], y=y, class_names=["a", "b", "rare"])
    assert advice.notes_on(graph, torch.bincount(graph.y))[-1].startswith("fewer than 5 labels in 'rare'")
    assert len(stratified_folds(graph, 5)) == 5


def test_columns_of_very_different_scale_are_pointed_out():
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(2e4, 9e4, 12), rng.uniform(20, 60, 12), rng.uniform(0, 1, 12)], axis=1)
    graph = Graph.from_edges([(i, i + 1) for i in range(11)], x=x, y=[0, 1] * 6)
    assert "bring them to one scale first" in advice.notes_on(graph, torch.bincount(graph.y))[0]
    assert advice.notes_on(dataclasses.replace(graph, x=graph.x[:, 1:]), torch.bincount(graph.y)) == ()


def test_homophily_counts_edges_between_labelled_nodes(tiny, two_cliques):
    found = homophily(tiny)  # labels 0 0 1 1 -: of the edges 01, 12, 23, 13 two join one class
    assert (found.edges, found.rate) == (4, 0.5)
    assert found.chance == 0.5  # of the eight ends four are of each class
    whole, info = homophily(two_cliques), describe(two_cliques)
    assert whole.rate == info.edge_homophily
    assert (whole.rate - whole.chance) / (1 - whole.chance) == pytest.approx(info.adjusted_homophily)
    none = homophily(Graph.from_edges([(0, 1)], y=[0, -1]))
    assert (none.edges, none.rate, none.chance) == (0, None, None)


def test_intervals_are_wider_than_those_of_independent_splits():
    values = np.array([0.70, 0.74, 0.69, 0.75, 0.72])
    plain = 2.7764451 * values.std(ddof=1) / math.sqrt(5)  # t of four degrees of freedom
    found = resampled_mean(values, 1 / 3, num_scored=10**6)
    assert found.interval == pytest.approx(plain * math.sqrt(1 + 5 / 3))
    agreed = resampled_mean(np.ones(5), 1 / 3, num_scored=10)  # ten nodes, all right in every split
    assert agreed == Mean(1.0, pytest.approx(1.959964 * math.sqrt(11 / 12 * 1 / 12 / 10)))


def test_widened_intervals_seldom_call_noise_a_finding():
    """Two coins of the same make, compared on folds whose errors are shared: about one in twenty, not one in three."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        shared = rng.normal(0, 0.02)  # what overlapping training sets have in common
        found += not resampled_mean(shared + rng.normal(0, 0.035, 10), 1 / 3, 500).is_noise
    assert found / 400 < 0.08


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    """Your own folder: text ids, odd labels, an account without edges, 14 labels."""
    folder = tmp_path_factory.mktemp("accounts")
    ids = [f"user {k:02d}" for k in range(24)] + ["alone"]
    labels = [("bot" if k < 12 else "human") if k % 12 < 7 else "" for k in range(24)] + [""]
    pandas.DataFrame({"id": ids, "label": labels, "posts": range(25)}).to_csv(folder / "nodes.csv", index=False)
    pairs = [(ids[i], ids[j]) for s in (0, 12) for i in range(s, s + 12) for j in (s + (i + 1) % 12, s + (i + 5) % 12)]
    pandas.DataFrame(pairs, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    return folder


@pytest.mark.long
def test_the_command_speaks_plainly(accounts):
    shown = run("advise", accounts, "--repeats", 2, "--device", "cpu", "-o", "label=label")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    lines = shown.stdout.splitlines()
    (command,) = (k for k, line in enumerate(lines) if line.startswith("  gcn-lpa "))
    assert lines[command].startswith(f"  gcn-lpa train {accounts} --method ")
    assert lines[command].endswith(" --recipe default -o label=label")
    assert [line.split()[0] for line in lines[command + 3 : command + 8]] == ["mlp", "lr", "lpa", "gcn", "gcn-lpa"]
    assert "2 splits of the labelled nodes, stratified, 9 / 2 / 3 to train" in lines[command + 9]
    assert "11 nodes without a label, 1 of them out of reach of any label" in " ".join(shown.stdout.split())
    assert all(len(line) <= 80 for k, line in enumerate(lines) if k != command)


@pytest.mark.long
def test_json_is_json_and_nothing_else(accounts):
    shown = run("advise", accounts, "--repeats", 2, "--device", "cpu", "--json")
    found = json.loads(shown.stdout)
    assert (found["labeled"], found["unreachable"], len(found["records"])) == (14, 1, 10)
    assert found["command"].startswith(f"gcn-lpa train {accounts} --method {found['method']}")
    wrong = run("advise", accounts / "nobody", "--json")
    assert (wrong.exit_code, wrong.stdout, wrong.stderr.count("\n")) == (1, "", 1)


def test_without_a_label_or_a_graph_there_is_nothing_to_advise():
    with pytest.raises(ValueError, match="has no labelled node to train on"):
        advise(Graph.from_edges([(0, 1), (1, 2)]))
    with pytest.raises(TypeError, match=r"graph is a gcn_lpa.Graph, such as load gives, not 'cora'"):
        advise("cora")


@pytest.mark.long
def test_the_recipe_best_is_advised_only_where_it_is_ahead_by_more_than_noise(monkeypatch):
    graph = load("sbm", n=90, classes=3, homophily=0.9, features=4, noise=1.0)
    measured = compare(
        graph,
        ["mlp", "lr", "lpa", "gcn", "gcn-lpa", "best"],
        splits=stratified_folds(graph, 2),
        changes={"epochs": 3},
    )
    assert measured.recipes["best"].members == recipe_for(case_of(graph, graph.labeled), "best").members
    assert "strong-hops" in measured.recipes["best"].members
    for ahead, advised, how in [
        (0.501, "gcn-lpa", "--method gcn-lpa --recipe default"),
        (0.98, "best", "--recipe best"),
    ]:
        accuracy = {"best": ahead, "gcn-lpa": 0.5}
        records = [
            dataclasses.replace(record, score=accuracy.get(record.method, 0.3) + 0.001 * (k % 2))
            for k, record in enumerate(measured.records)
        ]
        asked = []

        def compared(graph, methods, *, asked=asked, records=records, **options):
            asked += methods
            return dataclasses.replace(measured, records=tuple(records))

        monkeypatch.setattr(advice, "compare", compared)
        found = advise(graph, repeats=2, best=True)
        assert asked == [line.method for line in found.lines] == list(measured.recipes)
        assert found.method == advised
        assert found.command("x") == f"gcn-lpa train x {how}"
