"""Training on clusters of a graph: every training node once, no edge between clusters, predictions on the whole graph."""

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.engine.adam import Adam
from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.learning import tasks
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import batches_of, clusters, task_of
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import DEFAULT, LAYERS
from gcn_lpa.runs.plan import Source, make_plan

pytest.importorskip("pymetis")
QUICK = {"epochs": 3, "patience": 0, "hidden": 4}


def cliques(number, size=6, bridges=()):
    """Cliques of `size` nodes each, and bridges between some nodes."""
    pairs = [(size * k + i, size * k + j) for k in range(number) for i in range(size) for j in range(i)]
    x = np.random.default_rng(0).normal(size=(number * size, 3))
    return Graph.from_edges([*pairs, *bridges], x=x, y=np.arange(number * size) % 2)


@pytest.mark.parametrize("features", ["given", "identity"])
def test_a_batch_is_a_cluster_with_the_edges_inside_it(features):
    graph = cliques(3, bridges=[(0, 6), (7, 12), (13, 1)])
    if features == "identity":
        graph = Graph.from_scipy(graph.to_scipy(), y=graph.y.numpy())
    recipe = LAYERS.replace(clusters=3, features="raw")
    train = torch.zeros(18, dtype=torch.bool)
    train[[0, 2, 7, 8, 15]] = True
    prepared = recipe.prepare(graph)
    found = batches_of(prepared, train, recipe)
    assert sorted(node for batch in found for node in batch.node_ids[batch.nodes].tolist()) == [0, 2, 7, 8, 15]
    dense, x = prepared.adjacency.to_dense(), prepared.x.to_dense()
    for batch in found:
        at = batch.node_ids
        assert sorted(i // 6 for i in at.tolist()) == [int(at[0]) // 6] * 6
        assert torch.equal(batch.graph.adjacency.to_dense(), dense[at][:, at])
        assert torch.equal(batch.graph.x.to_dense(), x[at])
        assert torch.equal(batch.graph.y, prepared.y[at])


def test_a_batch_that_waits_stays_here_and_is_moved_for_its_step_transposed_and_all():
    pairs, x = (
        [(0, 1), (1, 2), (0, 2), (2, 3), (4, 3), (5, 4), (3, 5)],
        [[0, 1.0], [2, 0], [0, 3], [4, 0], [0, 5], [6, 0]],
    )
    recipe = LAYERS.replace(clusters=2, features="raw", self_loops=False)
    graph = recipe.prepare(Graph.from_edges(pairs, x=scipy.sparse.csr_array(x), y=[0, 1, 0, 1, 0, 1], directed=True))
    there = torch.device("meta")
    for batch in batches_of(graph, torch.ones(6, dtype=torch.bool), recipe):
        waiting = batch.to(there, waits=True)
        assert waiting.nodes.device == there and waiting.graph is batch.graph
        read = waiting.read()
        assert {read.device, read.x.pattern.device, read.y.device} == {there}
        for here, moved in ((batch.graph.adjacency, read.adjacency), (batch.graph.x, read.x)):
            assert moved.pattern.T.col.device == there  # were it not moved, it would be sorted there anew
            assert moved.pattern.T.shape[0] == here.shape[1]
            assert moved.pattern.order.shape == here.pattern.order.shape
        assert batch.to(there).graph.device == there


def test_an_undirected_graph_is_its_own_transpose_wherever_it_is_moved():
    pattern = cliques(2).pattern
    assert pattern.T is pattern
    moved = pattern.to("meta")
    assert moved.T is moved and moved.order.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("edges", ["free", "cosine"])
def test_clusters_that_wait_train_as_those_that_are_there(edges, monkeypatch):
    graph = load("digits")
    parts, recipe = split(graph, seed=0), LAYERS.replace(edges=edges, clusters=4, epochs=5)
    waiting = learn(graph, parts.train, parts.val, recipe, device="cuda")
    move = tasks.Batch.to
    monkeypatch.setattr(tasks.Batch, "to", lambda batch, device, waits: move(batch, device))
    staying = learn(graph, parts.train, parts.val, recipe, device="cuda")
    for (name, a), b in zip(waiting.model.state_dict().items(), staying.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_where_no_edge_is_cut_the_losses_of_the_batches_average_to_that_of_the_graph():
    graph = cliques(2)
    train = np.array([0, 1, 2, 6, 7, 8])
    recipe = DEFAULT.replace(dropout=0.0, structure=False, **QUICK)
    task = task_of(graph, train, [3, 9], recipe)
    model = METHODS["gcn-lpa"].build(recipe, task.prepared, 0)
    whole = model.loss(task.prepared, task.train.nonzero().squeeze(1), Key(0, 1))
    parts = [
        model.loss(batch.graph, batch.nodes, Key(0, 1))
        for batch in batches_of(task.prepared, task.train, recipe.replace(clusters=2))
    ]
    assert len(parts) == 2
    for term in ("gcn", "lpa"):
        mean = sum(float(getattr(part, term).detach()) for part in parts) / 2
        assert mean == pytest.approx(float(getattr(whole, term).detach()), rel=1e-5)


def test_a_cluster_without_a_training_node_is_no_batch():
    train = torch.zeros(12, dtype=torch.bool)
    train[[0, 3]] = True
    recipe = LAYERS.replace(clusters=2)
    (batch,) = batches_of(recipe.prepare(cliques(2)), train, recipe)
    assert batch.node_ids.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_directed_graph_is_cut_along_its_edges_in_either_direction():
    pairs = [(6 * k + i, 6 * k + (i + 1) % 6) for k in range(2) for i in range(6)]
    cluster = clusters(Graph.from_edges(pairs, num_nodes=12, directed=True), 2)
    assert len(set(cluster[:6])) == len(set(cluster[6:])) == 1
    assert cluster[0] != cluster[6]


def test_what_cannot_be_cut_is_refused():
    graph = cliques(2)
    with pytest.raises(ValueError, match=r"clusters = 20; 'graph' has 12 nodes"):
        learn(graph, [0, 6], [1, 7], LAYERS.replace(clusters=20), device="cpu")
    with pytest.raises(ValueError, match=r"method 'lr' does not use clusters = 3"):
        make_plan(Source("karate"), method="lr", changes={"clusters": 3})
    with pytest.raises(ValueError, match="clusters = -1; it is not negative"):
        LAYERS.replace(clusters=-1)


def test_free_weights_of_a_cluster_are_found_by_their_edges_and_alone_have_a_gradient():
    """Beside the same weights in a model of the cluster alone; both clusters have the same pattern."""
    graph = cliques(2, bridges=[(0, 6)])
    recipe = LAYERS.replace(clusters=2, edges="free", loss="literal", **QUICK)
    prepared = recipe.prepare(graph)
    model = METHODS["gcn-lpa"].build(recipe, prepared, 0)
    with torch.no_grad():
        model.edges.weight.copy_(torch.arange(len(model.edges.weight)).sin())
    first, second = batches_of(prepared, torch.ones(12, dtype=torch.bool), recipe)
    assert first.graph.pattern.fingerprint == second.graph.pattern.fingerprint
    scores = prepared.adjacency.with_values(model.edges(prepared).detach()).to_dense()
    for batch in (first, second):
        alone = METHODS["gcn-lpa"].build(recipe, batch.graph, 0)
        alone.body.load_state_dict(model.body.state_dict())
        at, pattern = batch.node_ids, batch.graph.pattern
        inside = scores[at][:, at][pattern.row.long(), pattern.col.long()]
        assert torch.equal(model.edges(batch.graph), inside)
        with torch.no_grad():
            alone.edges.weight.copy_(inside)
        found, other = (one.loss(batch.graph, batch.nodes, Key(0, 1)).total for one in (model, alone))
        assert torch.equal(found, other)
        given, twin = (
            torch.autograd.grad(found, model.edges.weight)[0],
            torch.autograd.grad(other, alone.edges.weight)[0],
        )
        dense = torch.zeros(12, 12).index_put((at[pattern.row.long()], at[pattern.col.long()]), twin)
        weight = torch.nn.Parameter(given.to_dense())
        model.edges._parameters["weight"], kept = weight, model.edges.weight
        spread = prepared.adjacency.with_values(model.edges(prepared).detach()).to_dense()
        model.edges._parameters["weight"] = kept
        torch.testing.assert_close(spread, dense)


def test_free_weights_between_clusters_stay_as_they_are_given_and_the_others_learn():
    graph = cliques(2, bridges=[(0, 6), (3, 9)])
    recipe = LAYERS.replace(clusters=2, edges="free", l2_edges=0.1, loss="literal", **QUICK)
    trained = learn(graph, [0, 1, 7, 8], [2, 9], recipe, device="cpu")
    prepared = recipe.prepare(graph)
    is_between = (prepared.row < 6) != (prepared.col < 6)
    weight = trained.model.first[0].edges.weight
    assert is_between.sum() == 4 and not weight[is_between].any()
    assert (weight[~is_between] != 0).sum() > 20


@pytest.mark.parametrize("train, steps", [([0, 1, 2], 1), ([0, 6, 12], 3)], ids=["in one clique", "in three"])
def test_steps_are_shorter_by_the_root_of_how_many_an_epoch_has(monkeypatch, train, steps):
    """Of four clusters, those with a training node make a step."""
    rates = []

    class Spied(Adam):
        def __init__(self, groups, **options):
            rates.append([rate for *_, rate in groups])
            super().__init__(groups, **options)

    monkeypatch.setattr("gcn_lpa.train.Adam", Spied)
    for number in (0, 4):
        learn(cliques(4), train, [3], LAYERS.replace(clusters=number, lr=0.01, epochs=1, patience=0), device="cpu")
    assert rates == [[0.01] * 2, pytest.approx([0.01 / steps**0.5] * 2)]


def test_trees_beside_a_model_on_clusters_learn_from_the_whole_graph():
    graph = cliques(4, bridges=[(0, 6), (7, 12), (13, 18)])
    recipe = DEFAULT.replace(clusters=2, members="trees", **QUICK)
    trained = learn(graph, [0, 7, 14, 21], [1, 8], recipe, device="cpu")
    alone = learn(graph, [0, 7, 14, 21], [1, 8], recipe.replace(clusters=0), device="cpu")
    grown, other = (one.model.members[1][0].state_dict() for one in (trained, alone))
    assert grown.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in grown.items())


def test_the_same_seed_gives_the_same_bits():
    graph = cliques(4, bridges=[(0, 6), (7, 12), (13, 18)])
    one, two = (learn(graph, [0, 7, 14, 21], [1, 8], DEFAULT.replace(clusters=2, **QUICK), device="cpu") for _ in "ab")
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name])


@pytest.mark.long
def test_on_digits_ten_clusters_are_nearly_as_good_as_the_whole_graph():
    """Band: the 95 % interval of the difference on development splits, benchmarks/growth.py clusters."""
    graph = load("digits")
    parts = split(graph, seed=0)
    recipe = DEFAULT.replace(members="", epochs=30, patience=0)
    accuracy = [
        evaluate(learn(graph, parts.train, parts.val, one, device="cpu"), graph, parts.test).accuracy
        for one in (recipe.replace(epochs=300), recipe.replace(clusters=10))
    ]
    assert accuracy[1] > accuracy[0] - 0.015
