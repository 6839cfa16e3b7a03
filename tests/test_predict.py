"""Predictions: the status of a node, what is said where nothing is known, and the table."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.describe import node_hops
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.insight.advise import suggest
from gcn_lpa.insight.audit import audit_edges, audit_labels
from gcn_lpa.insight.explain import explain, explain_all
from gcn_lpa.insight.what_if import what_if
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction, edge_table, evaluate, predict_proba, predictions, status_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.folder import TrainedRun
from tests.helpers.trainings import trained_alone

RECIPE = Recipe(hidden=8, epochs=12, edge_rank=4, dropout=0.5, lr=0.05)
EVERY_METHOD = [m if m in ("gcn-lpa", "lpa", "mlp") else pytest.param(m, marks=pytest.mark.long) for m in METHODS]


@pytest.fixture(scope="module")
def world(blocks):
    """A small block model, the nodes of its parts, and a model of it."""
    parts = split(blocks, seed=1)
    return blocks, parts, learn(blocks, parts.train, parts.val, RECIPE, device="cpu")


def test_evaluate_takes_the_raw_graph_and_prepares_it(world):
    graph, parts, trained = world
    found = evaluate(trained, graph, parts.test)
    by_hand = trained.model(RECIPE.prepare(graph)).argmax(dim=1)[parts.test] == graph.y[parts.test]
    assert found.accuracy == pytest.approx(by_hand.double().mean().item())
    assert found == evaluate(trained, graph, parts.test.nonzero().squeeze(1))


def test_what_is_no_trained_model_is_refused_at_every_door(world):
    graph, parts, trained = world
    run = TrainedRun(plan=None, graph=graph, trained=trained, split=parts, results=None)
    questions = (
        *(predict_proba, predictions, edge_table, suggest, audit_labels, audit_edges, explain_all, what_if),
        lambda trained, graph: evaluate(trained, graph, [0]),
        lambda trained, graph: explain(trained, graph, 0),
    )
    for ask in questions:
        with pytest.raises(TypeError, match=r"trained is a gcn_lpa.Trained, .* not a TrainedRun; pass run.trained"):
            ask(run, graph)
    with pytest.raises(TypeError, match=r"trained is a gcn_lpa.Trained, such as learn gives, not Graph"):
        predict_proba(graph, trained)


ISLANDS = {"edges": [("a", "b"), ("b", "c"), ("d", "e")], "node_names": [*"abcdef"]}  # f stands alone


def test_the_status_says_which_nodes_a_label_can_reach():
    graph = Graph.from_edges(**ISLANDS)
    given = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.bool)
    assert status_of(node_hops(graph, given)) == [
        "labeled",
        "reached",
        "reached",
        "unreachable",
        "unreachable",
        "unreachable",
    ]
    one_way = Graph.from_edges([("a", "b"), ("c", "a")], node_names=[*"abc"], directed=True)
    assert status_of(node_hops(one_way, given[:3])) == ["labeled", "reached", "unreachable"]


def islands(y, **options):
    rng = np.random.Generator(np.random.PCG64(0))
    return Graph.from_edges(**ISLANDS, x=rng.standard_normal((6, 3)), y=y, **options)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_nodes_that_no_label_reaches_get_a_defined_answer(method):
    """Two of three given labels are "p", none is "r", and d, e, f are out of reach."""
    pytest.importorskip("torch_geometric") if METHODS[method].needs == "pyg" else None
    graph = islands(["p", "q", "p", None, None, None], class_names=["p", "q", "r"])
    recipe = METHODS[method].settings(RECIPE).replace(epochs=3)
    trained = trained_alone(graph, graph.labeled, [], recipe, target=graph.target)
    table = predictions(trained, graph)
    assert table["status"].tolist() == ["labeled"] * 3 + ["unreachable"] * 3
    assert table["id"].tolist() == [*"abcdef"]
    assert table["probability"].between(1 / 3 - 1e-9, 1).all()
    proba = predict_proba(trained, graph, raw=True)
    torch.testing.assert_close(proba.sum(dim=1), torch.ones(6, dtype=torch.float64))
    if method.startswith("lpa"):
        prior = torch.tensor([2 / 3, 1 / 3, 0.0], dtype=torch.float64).expand(3, 3)
        torch.testing.assert_close(proba[3:], prior, atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_with_one_class_every_node_has_it_for_certain(method):
    pytest.importorskip("torch_geometric") if METHODS[method].needs == "pyg" else None
    graph = islands(["p", "p", None, "p", None, None])
    recipe = METHODS[method].settings(RECIPE).replace(epochs=2)
    table = predictions(learn(graph, graph.labeled, [], recipe, device="cpu"), graph)
    assert set(zip(table["label"], table["probability"], table["runner_up"], strict=True)) == {("p", 1.0, "")}


def test_the_runner_up_is_the_second_likely_class(world):
    graph, _, trained = world
    table = predictions(trained, graph)
    proba = predict_proba(trained, graph).numpy()
    best, second = np.sort(proba, axis=1)[:, -1], np.sort(proba, axis=1)[:, -2]
    assert (table["probability"] == best).all()
    place = {name: k for k, name in enumerate(graph.class_names)}
    assert [proba[i, place[name]] for i, name in enumerate(table["runner_up"])] == second.tolist()


def test_hops_count_edges_to_the_nearest_label():
    path = Graph.from_edges([(0, 1), (1, 2), (2, 3), (4, 5)], num_nodes=6)
    given = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.bool)
    assert node_hops(path, given).tolist() == [0, 1, 2, 3, math.inf, math.inf]
    assert node_hops(path, ~given & False).tolist() == [math.inf] * 6


def said_of(graph, output):
    """What is said of the nodes of a graph, all of whose labels were given, where the models say `output`."""
    return Prediction(SimpleNamespace(target=graph.target), graph, graph.y, output).uncalibrated


def test_a_node_of_which_nothing_is_known_gets_the_shares_of_the_labels():
    """Without features, d and e are known by nothing. With features only a lone node whose row is zero is."""
    edges, y = [("a", "b"), ("b", "c"), ("d", "e")], ["p", "p", "q", None, None, None]
    bare = Graph.from_edges(edges, node_names=[*"abcdef"], y=y)
    flat = torch.full((6, 2), 0.5, dtype=torch.float64)
    prior = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    torch.testing.assert_close(said_of(bare, flat), torch.cat([flat[:3], prior.expand(3, 2)]))
    x = np.ones((6, 3))
    x[[0, 4, 5]] = 0
    for features in (x, scipy.sparse.csr_array(x)):
        graph = Graph.from_edges(edges, node_names=[*"abcdef"], y=y, x=features)
        torch.testing.assert_close(said_of(graph, flat), torch.cat([flat[:5], prior.expand(1, 2)]))


def test_a_class_whose_name_holds_a_bar_is_refused_in_sets():
    graph = Graph.from_edges([(0, 1)], x=np.eye(2), y=["a|b", "c"])
    fitted = learn(graph, [0, 1], [], RECIPE, device="cpu")
    with pytest.raises(ValueError, match=r"the class 'a\|b' holds a \|"):
        predictions(fitted, graph, threshold=0.5)


def test_scores_are_those_of_the_table_also_where_nothing_is_known():
    """Nodes 4 to 7 have no features and no way to a label: they get the commoner class, in the table and in the score."""
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (6, 7)]
    y = [1, 1, 0, 1, 1, 1, 1, 1]
    graph = Graph.from_edges(edges, num_nodes=8, y=y)
    trained = learn(graph, [0, 1, 2], [], METHODS["lpa"].settings(), device="cpu")
    table = predictions(trained, graph)
    hidden = [3, 4, 5, 6, 7]
    right = np.mean([graph.class_names[y[i]] == table["label"][i] for i in hidden])
    assert evaluate(trained, graph, hidden).accuracy == right == 0.8
