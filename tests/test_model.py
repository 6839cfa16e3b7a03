"""The model against its dense twin, and what a step may read, remember and leave out."""

import copy
import dataclasses
import gc
import pickle
import weakref

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.nn import functional as F

from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.engine.sparse import Key, SparseMatrix, random_share
from gcn_lpa.graph import Graph
from gcn_lpa.losses import SEED_LAYER
from gcn_lpa.model import GCNLPA, OverNodes
from gcn_lpa.recipes import DEFAULT, LAYERS, LOSSES, OFFICIAL, PAPER, WITHOUT_FEATURES
from tests.helpers import twin
from tests.helpers.small_graphs import (
    FEATURES,
    PLAIN,
    TRAIN,
    in_float64,
    one_hot,
    random_model,
    six_nodes,
    twin_of,
    with_edge_columns,
)

DTYPES = {torch.float64: 1e-10, torch.float32: 1e-5}  # and how far a result may be from the twin's
RECIPES = {
    **{f"paper, {name}": recipe for name, recipe in PAPER.items()},
    **{f"official, {name}": recipe for name, recipe in OFFICIAL.items()},
    "default, first member": DEFAULT.replace(members=""),
}


def random_graph(n=24, classes=3, seed=0):
    """Random weighted edges, features and labels; every third node has none."""
    generator = np.random.default_rng(seed)
    edges, y = generator.integers(0, n, (3 * n, 2)), generator.integers(classes, size=n)
    y[::3] = -1
    x, weights = generator.random((n, 10)) + 0.1, generator.uniform(0.5, 2, len(edges))
    return Graph.from_edges(edges, weights=weights, x=x, y=y, class_names=tuple("abc"), num_nodes=n)


def assert_equals_twin(recipe, graph, key=None, *, dtype=torch.float64):
    """Logits, both terms of the loss, their sum and the gradient of every parameter, relative to the largest number."""
    model, nodes = random_model(recipe, graph).to(dtype), graph.labeled.nonzero().squeeze(1)[::2]
    graph = in_float64(graph) if dtype == torch.float64 else graph
    loss, expected = model.loss(graph, nodes, key), twin_of(model, graph, key)
    shown = random_share(torch.arange(graph.num_nodes), 0.5, key or Key(0), SEED_LAYER)
    labels = one_hot(torch.full_like(graph.y, -1).index_copy(0, nodes, graph.y[nodes]), graph.num_classes)
    gcn, lpa, total = expected.loss(labels, shown if recipe.loss == "held_out" else None)
    pairs = {
        "gcn": (loss.gcn, gcn),
        "total": (loss.total, total),
        "logits": (model(graph), twin_of(model, graph).logits()),
    }
    if recipe.lpa_weight:
        pairs["lpa"] = loss.lpa, lpa
    loss.total.backward()
    total.backward()
    pairs |= {name: (parameter.grad, expected.p[name].grad) for name, parameter in model.named_parameters()}
    for name, (ours, theirs) in pairs.items():
        scale = theirs.abs().max()
        assert scale > 0, name
        assert (ours - theirs).abs().max() <= DTYPES[dtype] * scale, name
        assert ours.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_of_the_paper_and_the_default_equal_their_dense_twin(name, dtype):
    """A training step with the dropout of the recipe, on a weighted graph."""
    recipe = RECIPES[name]
    assert_equals_twin(recipe, recipe.prepare(random_graph()), Key(3, 1), dtype=dtype)


@pytest.mark.parametrize("propagation", ["layers", "hops"])
@pytest.mark.parametrize("normalization", ["row", "symmetric"])
@pytest.mark.parametrize("edges", twin.EDGES)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_reading_along_the_same_edges_as_features_equals_the_dense_twin(loss, edges, normalization, propagation):
    """Labels walk D*⁻¹A* under either normalisation; features, hidden layers and edges drop out."""
    recipe = LAYERS.replace(loss=loss, edges=edges, normalization=normalization, propagation=propagation)
    recipe = recipe.replace(lpa_iterations=2, lpa_weight=1.5, feature_dropout=0.2, dropout=0.4, edge_dropout=0.3)
    recipe = recipe.replace(propagation_steps=4, hidden=5, edge_rank=3)
    assert_equals_twin(recipe, recipe.prepare(random_graph()), Key(3, 1))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": True},
        {"bias": True},
        {"layer_norm": True},
        {"residual": True, "bias": True, "layer_norm": True},
    ],
    ids=str,
)
def test_without_lpa_and_with_fixed_edges_it_is_a_plain_gcn(options, layers, sparse):
    """And with what a recipe adds to a layer; features and hidden layers have a dropout each."""
    graph = six_nodes(x=scipy.sparse.csr_array(FEATURES) if sparse else FEATURES)
    recipe = PLAIN.replace(gcn_layers=layers, hidden=8, dropout=0.4, feature_dropout=0.2, **options)
    assert_equals_twin(recipe, graph, Key(3, 1))


@pytest.mark.parametrize("edges", [name for name in EDGE_FORMS if name != "fixed"])
def test_gradients_of_the_joint_loss_equal_finite_differences(edges):
    """Along a random direction in the space of all parameters, dropout of features, hidden layers and edges on."""
    recipe = PLAIN.replace(edges=edges, loss="held_out", lpa_weight=2.0, lpa_iterations=2, bias=True, residual=True)
    recipe = recipe.replace(dropout=0.3, edge_dropout=0.2, class_weights="balanced", edge_rank=3)
    given = with_edge_columns(six_nodes()) if edges == "columns" else six_nodes()
    model, graph = random_model(recipe, given), in_float64(given)
    parameters, generator = list(model.parameters()), torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    model.loss(graph, TRAIN, Key(1, 2)).total.backward()
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction, strict=True)).item()

    def moved(step):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(step * d)
            cost = model.loss(graph, TRAIN, Key(1, 2)).total.item()
            for p, d in zip(parameters, direction, strict=True):
                p.sub_(step * d)
        return cost

    assert (moved(1e-5) - moved(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-7)


# what a step reads and remembers


@pytest.mark.parametrize("off", [{"lpa_ratio": 0.0}, {"lpa_iterations": 0}, {"lpa_weight": 0.0}])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_labels_iterations_or_weight_the_lpa_term_is_zero(loss, off):
    recipe = PLAIN.replace(**{"edges": "free", "loss": loss, "lpa_weight": 2.0, **off})
    graph = six_nodes()
    cost = GCNLPA(recipe, graph).loss(graph, TRAIN, Key(0))
    assert cost.lpa.item() == 0
    assert cost.total.item() == cost.gcn.item()


@pytest.mark.parametrize("loss", LOSSES)
def test_no_label_outside_the_given_nodes_is_read(loss):
    """Scramble all others: the same bits of loss and gradients."""
    recipe = LAYERS.replace(loss=loss, lpa_iterations=2, class_weights="balanced", features="raw")
    graph, results = six_nodes(), []
    nodes = torch.tensor([0, 2, 4])
    for others in ([0, 1, 0], [1, 0, 1], [-1, -1, -1]):
        y = graph.y.clone()
        y[torch.tensor([1, 3, 5])] = torch.tensor(others)
        scrambled = dataclasses.replace(graph, y=y)
        model = GCNLPA(recipe, scrambled)
        cost = model.loss(scrambled, nodes, Key(0, 3))
        cost.total.backward()
        results.append([cost.total.item(), *(p.grad.numpy().tobytes() for p in model.parameters())])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("change", ["labels", "nodes", "labels in place", "nodes in place", "seed"])
def test_what_one_step_worked_out_is_not_used_for_another_question(change):
    """The same model asked twice gives what a new model gives."""
    recipe = PLAIN.replace(edges="free", loss="literal", lpa_weight=1.0, lpa_iterations=2, lpa_ratio=0.5)
    graph, nodes, key = six_nodes(), TRAIN.clone(), Key(0)
    graph = dataclasses.replace(graph, y=torch.tensor([0, 0, 1, 0, 1, 1]))
    model = GCNLPA(recipe, graph)
    before = model.loss(graph, nodes, key)
    if change == "labels":
        graph = dataclasses.replace(graph, y=graph.y.roll(1))
    elif change == "nodes":
        nodes = nodes + 1
    elif change == "labels in place":
        graph.y.copy_(graph.y.roll(1))
    elif change == "nodes in place":
        nodes.add_(1)
    else:
        key = Key(4)
    after, fresh = model.loss(graph, nodes, key), GCNLPA(recipe, graph).loss(graph, nodes, key)
    assert (after.gcn.item(), after.lpa.item()) == (fresh.gcn.item(), fresh.lpa.item())
    assert (after.gcn.item(), after.lpa.item()) != (before.gcn.item(), before.lpa.item())


def test_a_model_keeps_no_graph_alive_and_a_copy_brings_none_along():
    graph = six_nodes()
    model = GCNLPA(LAYERS, graph)
    size, seen = len(pickle.dumps(model)), weakref.ref(graph)
    cost = model.loss(graph, TRAIN, Key(0, 1)).total.item()
    assert len(pickle.dumps(model)) == size
    assert copy.deepcopy(model).loss(graph, TRAIN, Key(0, 1)).total.item() == cost
    del graph
    gc.collect()
    assert seen() is None


def test_a_model_that_took_a_step_in_float32_takes_the_next_in_float64():
    """What it kept of the labels is not of the old type; both steps give what a new model gives."""
    recipe = PLAIN.replace(edges="free", loss="leave_one_out", lpa_weight=1.0, lpa_iterations=2)
    graph = six_nodes()
    model, wide = GCNLPA(recipe, graph), in_float64(graph)
    narrow = model.loss(graph, TRAIN, Key(0, 1)).total
    found = model.double().loss(wide, TRAIN, Key(0, 1)).total
    assert (narrow.dtype, found.dtype) == (torch.float32, torch.float64)
    assert found.item() == GCNLPA(recipe, graph).double().loss(wide, TRAIN, Key(0, 1)).total.item()
    assert found.item() == pytest.approx(narrow.item(), rel=1e-5)
    assert model.float().loss(graph, TRAIN, Key(0, 1)).total.item() == narrow.item()


def test_positions_and_a_mask_are_the_same_question():
    mask = torch.zeros(6, dtype=torch.bool).index_fill(0, TRAIN, True)
    for loss in LOSSES:
        recipe = PLAIN.replace(edges="free", loss=loss, lpa_weight=1.0, lpa_ratio=0.7, class_weights="balanced")
        graph = six_nodes()
        model = GCNLPA(recipe.replace(dropout=0.5), graph)
        by_position, by_mask = (model.loss(graph, nodes, Key(2, 1)) for nodes in (TRAIN, mask))
        torch.testing.assert_close(by_mask.total, by_position.total)
        torch.testing.assert_close(by_mask.lpa, by_position.lpa)


@pytest.mark.parametrize(
    ("nodes", "error", "said"),
    [
        ([0, 1], TypeError, "nodes is a tensor, a boolean mask or positions as int64, not \\[0, 1\\]"),
        (np.array([0, 1]), TypeError, "nodes is a tensor"),
        (torch.tensor([0.0]), TypeError, "nodes is a tensor"),
        (torch.tensor([True]), ValueError, r"nodes is a mask of \[1\] entries; the graph has 6 nodes"),
        (torch.tensor([0, 9]), ValueError, "nodes names node 9, but the graph has nodes 0..5"),
        (torch.tensor([0, 3]), ValueError, "nodes names node 3, which has no label to learn from"),
        (torch.ones(6, dtype=torch.bool), ValueError, "nodes names node 3, which has no label to learn from"),
    ],
)
def test_what_is_no_labelled_node_is_refused(nodes, error, said):
    graph = six_nodes()
    model = GCNLPA(LAYERS, graph)
    for _ in range(2):
        with pytest.raises(error, match=said):
            model.loss(graph, nodes)


# how a model starts


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    graph = six_nodes()
    recipe = PLAIN.replace(edges="gaan", residual=True, bias=True, layer_norm=True)
    one, same, other = (GCNLPA(recipe, graph, seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if name.startswith(("body.weights.", "body.skips.", "edges."))]
    assert len(drawn) == 6
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_a_recipe_that_is_no_stack_of_convolutions_is_not_taken_for_one():
    with pytest.raises(ValueError, match=r"propagation 'hops' needs a body; use METHODS\['gcn-lpa'\]\.build"):
        GCNLPA(DEFAULT, six_nodes())


def test_the_seed_of_the_model_is_not_the_global_one():
    graph = six_nodes()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    GCNLPA(LAYERS, graph).loss(graph, TRAIN, Key(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_plain_model_has_the_parameters_of_the_paper_and_no_more(karate):
    """Cora's settings on the karate club: five W and one number per edge."""
    graph = karate.with_self_loops()
    model = GCNLPA(PAPER["cora"], graph)
    shapes = [tuple(weight.shape) for weight in model.weight_parameters()]
    assert shapes == [(34, 32), (32, 32), (32, 32), (32, 32), (32, 2)]
    assert [tuple(weight.shape) for weight in model.edge_parameters()] == [(2 * 78 + 34,)]
    assert len(list(model.parameters())) == 6


# randomness of a step


def test_dropout_acts_in_training_alone_and_by_key():
    graph, recipe = six_nodes(), PLAIN.replace(dropout=0.5, hidden=16)
    model = GCNLPA(recipe, graph)
    one, same, other = (model.loss(graph, TRAIN, key).gcn.item() for key in (Key(0, 1), Key(0, 1), Key(0, 2)))
    assert one == same != other
    assert model.loss(graph, TRAIN, Key(1, 1)).gcn.item() not in (one, other)
    assert torch.equal(model(graph), GCNLPA(recipe.replace(dropout=0.0), graph)(graph))
    torch.testing.assert_close(model.loss(graph, TRAIN).gcn, F.cross_entropy(model(graph)[TRAIN], graph.y[TRAIN]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("normalization", ["row", "symmetric"])
def test_eval_never_drops_out_with_or_without_a_key(loss, normalization):
    """Features, hidden layers and edges: in eval mode the loss is that of a recipe without any dropout."""
    recipe = PLAIN.replace(edges="agnn", loss=loss, lpa_weight=1.0, normalization=normalization, hidden=16)
    drops = recipe.replace(dropout=0.5, feature_dropout=0.4, edge_dropout=0.3)
    graph = six_nodes()
    model, without = GCNLPA(drops, graph), GCNLPA(recipe, graph)
    for key in (Key(3, 1), Key(3, 2), None):
        model.eval()
        expected = without.loss(graph, TRAIN, key)
        assert [term.item() for term in model.loss(graph, TRAIN, key)[:2]] == [term.item() for term in expected[:2]]
        model.train()
        assert (model.loss(graph, TRAIN, key).gcn.item() == expected.gcn.item()) == (key is None)


# graphs at the edge of what is defined


HARD = {
    "isolated node": Graph.from_edges([(0, 1)], x=[[1.0], [2.0], [3.0]], y=[0, 1, 0]),
    "no edges": Graph.from_edges([], x=[[1.0], [2.0], [3.0]], y=[0, 1, 0]),
    "one class": Graph.from_edges([(0, 1), (1, 2)], x=[[1.0], [2.0], [3.0]], y=[0, 0, 0]),
    "a class without labels": Graph.from_edges([(0, 1), (1, 2)], x=[[1.0], [2.0], [3.0]], y=[0, 1, 1], class_names=("a", "b", "c")),
    "no features": Graph.from_edges([(0, 1), (1, 2)], x=[[0.0], [0.0], [0.0]], y=[0, 1, 0]),
}


@pytest.mark.parametrize("normalization", ["row", "symmetric"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", HARD)
def test_odd_graphs_have_finite_losses_and_gradients(case, loss, normalization):
    graph = HARD[case]
    for edges in ("free", "agnn", "gaussian"):
        recipe = LAYERS.replace(loss=loss, edges=edges, normalization=normalization, lpa_iterations=2, edge_dropout=0.5)
        model = GCNLPA(recipe, graph)
        cost = model.loss(graph, torch.tensor([0, 1, 2]), Key(0)).total
        cost.backward()
        assert cost.isfinite()
        assert model(graph).softmax(1).sum(1).tolist() == pytest.approx([1, 1, 1])
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("changes", [{"dropout": 0.0}, {"bias": True}], ids=["training", "prediction"])
def test_where_nothing_is_joined_a_layer_leaves_its_weights_alone(changes):
    """Neither columns nor edges: the identity times the identity times W is W itself."""
    bare = Graph.from_edges(np.empty((0, 2), dtype=int), num_nodes=6, y=[0, 1, 0, 1, 0, 1])
    recipe = WITHOUT_FEATURES.replace(edges="fixed", lpa_weight=0.0, **changes)
    prepared = recipe.prepare(bare)
    model = GCNLPA(recipe, prepared, 0)
    for parameter in model.parameters():
        parameter.data.sub_(0.1)  # some are negative: relu would show
    before = [parameter.detach().clone() for parameter in model.parameters()]
    first = model(prepared).detach().clone()
    model.train()
    model.loss(prepared, torch.tensor([0, 1]), Key(0)).total.backward()
    model.eval()
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))
    assert torch.equal(model(prepared), first)


def test_batch_norm_is_that_of_torch_with_the_whole_graph_as_the_batch():
    x, norm, theirs = torch.randn(50, 6) * 3 + 1, OverNodes(6), torch.nn.BatchNorm1d(6)
    with torch.no_grad():
        for one in (norm.scale, theirs.weight):
            one.copy_(torch.linspace(0.5, 2, 6))
        for one in (norm.shift, theirs.bias):
            one.copy_(torch.linspace(-1, 1, 6))
    expected, pattern = theirs(x), SparseMatrix.identity(50).pattern
    assert torch.allclose(norm(x, pattern), expected, atol=1e-6)
    assert torch.equal(norm.eval()(x, pattern), norm.train()(x, pattern))


def test_batch_norm_and_layer_norm_exclude_each_other():
    with pytest.raises(ValueError, match="layer_norm and batch_norm are both on"):
        LAYERS.replace(layer_norm=True, batch_norm=True)
