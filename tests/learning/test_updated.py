"""A trained model on an updated graph: its labels vote at once, and what it knew it still knows."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import log_softmax, softmax

from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import REACH, SMOOTHING, EnsembleWeights, Parts
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.updated import Updated, among_voters
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba, predictions
from gcn_lpa.recipes import DEFAULT, LAYERS, WITHOUT_FEATURES
from gcn_lpa.target import Classes
from gcn_lpa.trained import Trained

QUICK = {"epochs": 5, "patience": 0, "hidden": 4}
OURS = DEFAULT.replace(edge_rank=3, propagation_steps=3, **QUICK)


def graph_of(edges, labels, seed=0, name="graph", **options):
    """A graph of the nodes that the edges name, in sorted order, with three features each that depend on the name alone."""
    names = sorted({end for pair in edges for end in pair[:2]} | set(labels))
    x = [np.random.default_rng([seed, *name.encode()]).normal(size=3) for name in names]
    pairs, weights = [pair[:2] for pair in edges], [pair[2] if len(pair) > 2 else 1.0 for pair in edges]
    y = [labels.get(name) for name in names]
    classes = options.pop("class_names", ("x", "y"))
    return Graph.from_edges(pairs, weights=weights, x=np.array(x), y=y, class_names=classes, node_names=names, name=name, **options)


RING = [(f"n{i:02}", f"n{(i + 1) % 12:02}") for i in range(12)] + [("n00", "n05", 2.0), ("n03", "n09")]
LABELS = {"n00": "x", "n02": "y", "n04": "x", "n06": "y", "n08": "x", "n10": "y", "n11": "x"}
NEW_EDGES = [("n01", "new-a"), ("new-a", "new-b"), ("new-b", "n07", 0.5)]


def home():
    return graph_of(RING, LABELS)


def fitted(graph, recipe):
    at = [graph.index_of(name) for name in LABELS]
    return learn(graph, at[:5], at[5:], recipe, device="cpu")


@pytest.fixture(scope="module")
def ours():
    return fitted(home(), OURS)


def row_of(table, node):
    (row,) = table[table["id"] == node].to_dict("records")
    return row


def test_the_answers_on_a_grown_graph_are_those_of_a_dense_computation():
    """f(x), hops along D^-½AD^-½, votes of all labels, and their pool, written out once more from the weights alone."""
    graph = home()
    trained = fitted(graph, OURS.replace(edges="fixed", lpa_weight=0.0, structure=False, members=""))
    labels = {**{name: label for name, label in LABELS.items() if name != "n04"}, "n01": "x", "new-b": "y", "n02": "x"}
    grown = graph_of([pair for pair in RING if pair[:2] != ("n05", "n06")] + NEW_EDGES, labels)
    table = trained.predict_updated(grown, raw=True)

    n, names = grown.num_nodes, list(grown.node_names)
    a = np.zeros((n, n))
    for one, other, *weight in [pair for pair in RING if pair[:2] != ("n05", "n06")] + NEW_EDGES:
        i, j = names.index(one), names.index(other)
        a[i, j] = a[j, i] = weight[0] if weight else 1.0
    walk = a + np.eye(n)
    walk /= np.sqrt(walk.sum(axis=1, keepdims=True) * walk.sum(axis=1))
    z = trained.scaling(np.asarray(grown.x, dtype=np.float64))
    state, body = (
        {name: tensor.double().numpy() for name, tensor in trained.model.state_dict().items()},
        "members.0.0.body",
    )
    for k in (0, 1):
        z = (z if k == 0 else np.maximum(z, 0)) @ state[f"{body}.perceptron.weights.{k}"] + state[f"{body}.perceptron.biases.{k}"]
    logits = sum(gamma * np.linalg.matrix_power(walk, k) @ z for k, gamma in enumerate(state[f"{body}.gamma"]))

    seeds = np.array([[labels.get(name) == c for c in ("x", "y")] for name in names], dtype=float)
    others = a / a.sum(axis=1, keepdims=True)
    spread = others @ seeds
    for _ in range(REACH - 1):
        spread = others @ np.where(seeds.sum(axis=1, keepdims=True) > 0, seeds, spread)
    prior = SMOOTHING * (seeds.sum(axis=0) + 1) / (seeds.sum(axis=0) + 1).sum()
    votes = [np.log((m + prior) / (m.sum(axis=1, keepdims=True) + SMOOTHING)) for m in (others @ seeds, spread)]
    parts = [log_softmax(logits, axis=1), *votes]
    pooled = sum(
        w * log_softmax(t * log, axis=1)
        for w, t, log in zip(trained.weights.weights, trained.weights.exponents, parts, strict=True)
    )
    expected = softmax(pooled, axis=1)
    assert table["label"].tolist() == [("x", "y")[k] for k in expected.argmax(axis=1)]
    assert np.allclose(table["probability"], expected.max(axis=1), atol=1e-5)


FORMS = [name for name in EDGE_FORMS if name not in ("free", "columns")]


@pytest.mark.parametrize(("edges", "members"), [*((form, "") for form in FORMS), ("cosine", "trees neighbour-lr")])
def test_what_is_not_joined_to_a_node_does_not_change_its_answer(edges, members):
    """A new component, and a new node without edges: nothing is said to the old ones."""
    graph = home()
    trained = fitted(graph, OURS.replace(edges=edges, members=members))
    grown = graph_of([*RING, ("new-a", "new-b"), ("new-b", "new-c")], {**LABELS, "new-d": None})
    assert grown.num_nodes == 16
    same = grown.subgraph([grown.index_of(name) for name in graph.node_names])
    found, expected = trained.predict_updated(grown), trained.predict_updated(same)
    stays = found[found["id"].isin(graph.node_names)]
    assert stays["label"].tolist() == expected["label"].tolist()
    assert np.allclose(stays["probability"].astype(float), expected["probability"].astype(float), atol=1e-6)
    joined = trained.predict_updated(graph_of([*RING, ("n01", "new-b"), ("new-b", "new-c")], LABELS))
    assert abs(row_of(joined, "n01")["probability"] - row_of(expected, "n01")["probability"]) > 1e-6


def test_on_the_graph_it_was_trained_on_all_labels_vote_and_nothing_else_differs(ours):
    graph = home()
    expected = predictions(ours, graph, known=graph.labeled)
    assert ours.predict_updated(graph).equals(expected)


def test_a_new_label_votes_at_once(ours):
    graph = home()
    voted = dataclasses.replace(ours, weights=dataclasses.replace(ours.weights, weights=(0.0,) * 3 + (1.0,) * 4))
    before = row_of(voted.predict_updated(graph), "n01")
    opposite = {"x": "y", "y": "x"}
    wanted = opposite[before["label"]] if before["probability"] < 1 else "x"
    after = row_of(voted.predict_updated(graph_of([*RING, ("n01", "new-a", 50.0)], {**LABELS, "new-a": wanted})), "n01")
    assert after["label"] == wanted


def test_a_model_without_votes_says_that_labels_do_not_vote():
    trained = fitted(home(), METHODS["gcn"].settings(OURS).replace(**QUICK))
    more = graph_of(RING, {**LABELS, "n01": "x"})
    assert Updated.of(trained, more).changes().votes is False
    assert trained.predict_updated(more)["probability"].equals(trained.predict_updated(home())["probability"])


def test_the_summary_counts_what_came_went_and_changed(ours):
    edges = [pair for pair in RING if "n03" not in pair] + [("n00", "n05", 3.0), *NEW_EDGES]
    edges.remove(("n00", "n05", 2.0))
    labels = {name: label for name, label in LABELS.items() if name != "n06"}
    grown = graph_of(edges, {**labels, "n02": "x", "n01": "y", "new-a": "x"}, name="next week")
    found = Updated.of(ours, grown, home()).changes()
    assert (found.graph, found.nodes, found.edges) == ("next week", 13, 14)
    assert (found.nodes_new, found.nodes_gone) == (2, 1)
    assert (found.edges_new, found.edges_gone, found.edges_reweighted) == (3, 3, 1)
    assert (found.labels, found.labels_new, found.labels_changed, found.labels_gone) == (8, 2, 1, 1)
    table = ours.predict_updated(grown, before=home())
    was = predictions(ours, home()).set_index("id")["label"]
    assert table.set_index("id")["before"].to_dict() == {name: was.get(name, "") for name in grown.node_names}
    free = table[~table["id"].isin([*labels, "n01", "new-a"]) & (table["before"] != "")]
    assert found.predictions == len(free) == 4  # n05, n06, n07, n09
    assert found.predictions_changed == int((free["label"] != free["before"]).sum())


def test_without_the_graph_before_labels_alone_are_compared(ours):
    found = Updated.of(ours, graph_of([*RING, *NEW_EDGES], {**LABELS, "n01": "x", "n02": "x"})).changes()
    assert (found.labels_new, found.labels_changed, found.labels_gone) == (1, 1, 0)
    assert found.nodes_new is found.edges_new is found.predictions is None


def test_a_label_of_an_unknown_class_does_not_vote_and_is_counted(ours):
    grown = graph_of(RING, {**LABELS, "n01": "z"}, class_names=("x", "y", "z"))
    found = Updated.of(ours, grown, home()).changes()
    assert found.unknown_classes == {"z": 1}
    assert (found.labels, found.labels_new) == (7, 0)
    assert row_of(ours.predict_updated(grown), "n01")["status"] == "reached"


def test_another_graph_with_the_same_columns_is_all_new(ours):
    other = graph_of([("a", "b"), ("b", "c")], {"a": "y"})
    found = Updated.of(ours, other, home()).changes()
    assert (found.nodes_new, found.nodes_gone, found.edges_new, found.predictions) == (3, 12, 2, 0)
    assert found.labels_gone == 7
    assert ours.predict_updated(other)["status"].tolist() == ["labeled", "reached", "reached"]


# free weights


def test_free_weights_stay_with_their_edges_and_new_edges_have_their_given_weight():
    graph = home()
    trained = fitted(graph, LAYERS.replace(edges="free", edge_init="glorot", **QUICK))
    grown = graph_of([pair for pair in RING if "n03" not in pair] + NEW_EDGES, LABELS)
    (model,) = Updated.of(trained, grown, graph).adapted.model.first

    def weights(one, on):
        prepared = trained.prepare(on)
        ends = zip(prepared.row.tolist(), prepared.col.tolist(), strict=True)
        names = [(on.node_names[i], on.node_names[j]) for i, j in ends]
        return dict(zip(names, one.edges(prepared).tolist(), strict=True))

    learned, carried = weights(trained.model.first[0], graph), weights(model, grown)
    assert len(carried) == 2 * 14 + 13  # both directions of every edge, and the self-loops
    assert all(value == learned.get(pair, 0.0) for pair, value in carried.items())
    assert sum(pair in learned for pair in carried) == len(learned) - 2 * 3 - 1  # three edges of n03 and its self-loop


def test_free_weights_need_no_permission_where_edges_only_went():
    graph = home()
    trained = fitted(graph, LAYERS.replace(edges="free", **QUICK))
    fewer = graph_of([pair for pair in RING if pair != ("n03", "n09")], LABELS)
    assert len(trained.predict_updated(fewer, before=graph)) == 12
    assert predict_proba(trained, graph).equal(predict_proba(Updated.of(trained, graph, graph).adapted, graph))


def test_free_weights_of_new_edges_are_counted_and_need_the_graph_before():
    graph = home()
    trained = fitted(graph, LAYERS.replace(edges="free", **QUICK))
    grown = graph_of([*RING, *NEW_EDGES], LABELS)
    assert Updated.of(trained, grown, graph).changes().edges_unweighted == 8  # three edges twice, and two self-loops
    assert Updated.of(trained, graph, graph).changes().edges_unweighted == 0
    with pytest.raises(ValueError, match=r"'free' keeps one weight per training edge .* 'cosine'"):
        trained.predict_updated(grown)


def test_without_features_a_new_node_has_what_its_neighbours_have():
    featureless = Graph.from_edges([pair[:2] for pair in RING], y=LABELS)
    recipe = WITHOUT_FEATURES.replace(votes=False, members="", **QUICK)
    trained = fitted(featureless, recipe)
    grown = Graph.from_edges([pair[:2] for pair in [*RING, *NEW_EDGES]], y=LABELS)
    with pytest.raises(ValueError, match=r"features='degree' makes some"):
        trained.predict_updated(grown)
    adapted = Updated.of(trained, grown, featureless)
    prepared = trained.prepare(adapted.graph)
    x = np.zeros((14, 12))
    for i, name in enumerate(grown.node_names):
        if name in featureless.node_names:
            x[i, featureless.index_of(name)] = 1
    assert np.array_equal(prepared.x.to_dense().numpy(), x)
    walk = adapted.adapted.model.transition(prepared).to_dense().detach().double().numpy()
    first, second = (weight.detach().double().numpy() for weight in adapted.adapted.model.first[0].body.weights)
    logits = walk @ np.maximum(walk @ x @ first, 0) @ second
    assert np.allclose(predict_proba(adapted.adapted, adapted.graph, raw=True), softmax(logits, axis=1), atol=1e-6)
    assert not math.isclose(logits[grown.index_of("new-a")].max(), 0)


def test_without_features_nodes_in_another_order_are_refused():
    """Places say who is who there: the same nodes, from the last to the first, would have each other's rows."""
    edges = [pair[:2] for pair in RING]
    graph = Graph.from_edges(edges, y=LABELS)
    trained = fitted(graph, WITHOUT_FEATURES.replace(votes=False, **QUICK))
    turned = Graph.from_edges(edges, y=[LABELS.get(n) for n in graph.node_names[::-1]], node_names=graph.node_names[::-1])
    with pytest.raises(ValueError, match=r"knows each node by its place, but the nodes of 'graph' are others, or in another"):
        trained.predict_updated(turned)
    assert (
        trained.predict_updated(graph).set_index("id")["label"].to_dict()
        == trained.predict_updated(turned, before=graph).set_index("id")["label"].to_dict()
    )


def test_a_graph_is_read_with_the_direction_it_was_trained_with(ours):
    arcs = graph_of(RING, LABELS, directed=True)
    with pytest.raises(ValueError, match=r"edges of 'graph' are directed, those the model was trained on are undirected"):
        ours.predict_updated(arcs, before=home())


def test_what_is_no_graph_is_refused(ours):
    with pytest.raises(TypeError, match=r"graph is a gcn_lpa.Graph, such as load gives, not 'home'"):
        ours.predict_updated("home")


def test_a_class_without_a_voter_is_named(ours):
    one = graph_of(RING, {name: label for name, label in LABELS.items() if label == "x"})
    assert Updated.of(ours, one, home()).changes().silent_classes == ("y",)
    assert Updated.of(ours, home(), home()).changes().silent_classes == ()
    assert Updated.of(ours, graph_of(RING, {}), home()).changes().silent_classes == ()


def test_labels_of_one_class_alone_pull_no_node_there(ours):
    """They cannot tell classes apart: what is said is what the parts of the model say by themselves."""
    heavy = dataclasses.replace(ours.weights, weights=(*ours.weights.weights[: ours.weights.num_members], 3.0, 3.0, 3.0, 3.0))
    trained, one = dataclasses.replace(ours, weights=heavy), graph_of(RING, {"n00": "x", "n04": "x"})
    found = Updated.of(trained, one, home()).table().set_index("id")
    silent = dataclasses.replace(heavy, weights=ours.weights.weights[: ours.weights.num_members] + (0.0,) * 4)
    expected = predictions(dataclasses.replace(ours, weights=silent), one, known=one.labeled).set_index("id")
    assert found["label"].equals(expected["label"])
    assert np.allclose(found["probability"], expected["probability"], rtol=0, atol=1e-12)
    by_themselves = predictions(trained, one, known=one.labeled)
    assert set(by_themselves["label"]) == {"x"} != set(found["label"])


def test_members_that_read_labels_are_not_heard_where_a_class_has_no_voter():
    """Trees take votes as columns: their weight goes to the others, and what all say together is as sure as before."""
    trained = fitted(home(), OURS.replace(members="trees"))
    fusion = dataclasses.replace(trained.weights, weights=(0.5, 0.3, *trained.weights.weights[2:]))
    trained = dataclasses.replace(trained, weights=fusion)
    one = graph_of(RING, {"n00": "x", "n04": "x"})
    weights = [Updated.of(trained, graph, home()).prediction.trained.weights for graph in (one, home())]
    assert weights[0].weights == pytest.approx((0.8, 0.0, *fusion.weights[2:]))
    assert weights[1] is fusion


def test_votes_tell_apart_the_classes_that_have_voters():
    """A class without one gets their mean log vote, weighed as they vote; the odds of the others are as they were."""
    random = np.random.default_rng(3)
    model, votes = (log_softmax(random.normal(size=(5, 3)), axis=1) for _ in range(2))
    weights = EnsembleWeights((0.7, 0.4), (1.0, 1.0), 1)
    members, given = (torch.from_numpy(model),), torch.from_numpy(votes)
    mean = (softmax(votes[:, [0, 2]], axis=1) * votes[:, [0, 2]]).sum(axis=1)
    expected = softmax(0.7 * model + 0.4 * np.stack([votes[:, 0], mean, votes[:, 2]], axis=1), axis=1)
    found = weights(Parts(members, (among_voters(given, torch.tensor([True, False, True])),), Classes(("a", "b", "c"))))
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    plain = weights(Parts(members, (given,), Classes(("a", "b", "c")))).numpy()
    assert np.allclose(expected[:, 0] / expected[:, 2], plain[:, 0] / plain[:, 2], rtol=1e-12)


def test_nodes_without_names_are_the_same_at_the_same_place():
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)], x=np.eye(4), y=[0, 1, 0, 1])
    trained = learn(graph, [0, 1], [2, 3], LAYERS.replace(edges="free", **QUICK), device="cpu")
    grown = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4)], x=np.eye(5)[:, :4], y=[0, 1, 0, 1, -1])
    found = Updated.of(trained, grown, graph).changes()
    assert (found.nodes_new, found.edges_new, found.labels_new, found.labels_gone) == (1, 1, 0, 0)


# part of a graph


@pytest.mark.parametrize("x", [None, np.arange(12.0).reshape(6, 2), "sparse"])
def test_a_part_of_a_graph_has_its_nodes_and_the_edges_between_them(x):
    x = scipy.sparse.csr_array(np.arange(12.0).reshape(6, 2)) if isinstance(x, str) else x
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("a", "f")]
    graph = Graph.from_edges(pairs, weights=[1, 2, 3, 4, 5, 6], x=x, y=["r", None, "s", "r", None, "s"], node_names="abcdef")
    part = graph.subgraph([5, 0, 1, 3])
    assert list(part.node_names) == ["a", "b", "d", "f"]
    assert part.adjacency.to_dense().tolist() == [[0, 1, 0, 6], [1, 0, 0, 0], [0, 0, 0, 0], [6, 0, 0, 0]]
    assert part.y.tolist() == [0, -1, 0, 1]
    expected = torch.eye(4) if x is None else graph.x.to_dense()[[0, 1, 3, 5]]
    assert torch.equal(part.x.to_dense(), expected)


def test_a_model_from_its_folder_predicts_the_same_on_a_grown_graph(ours, tmp_path):
    ours.save_pretrained(tmp_path / "model")
    grown = graph_of([*RING, *NEW_EDGES], {**LABELS, "new-a": "y"})
    assert Trained.from_pretrained(tmp_path / "model").predict_updated(grown).equals(ours.predict_updated(grown))
