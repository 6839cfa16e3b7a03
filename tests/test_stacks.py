"""Many models as one program: under `vmap(grad(loss))` each model of a stack gets what it gets alone."""

import dataclasses

import pytest
import scipy.sparse
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.engine.counter_random import Key, dropout
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import LOSSES, Recipe
from gcn_lpa.tables.datasets import load

B = 3  # models in a stack
N, WIDTH = 9, 5
SEEDS = torch.tensor([3, 2**40 + 1, 5])


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def directed_walk():
    """A matrix that is not symmetric, with a row of its own length each: row 0 is full, row 4 is empty."""
    dense = noise(N, N, seed=1) * (noise(N, N, seed=2) > 0.3)
    dense[0], dense[4] = 1.5, 0
    return SparseMatrix.from_scipy(scipy.sparse.csr_array(dense.numpy()))


A = directed_walk()
E = A.num_entries
X = noise(N, WIDTH, seed=3)
SYMMETRIC = load("karate").adjacency

OPERATIONS = {  # the operation, and the shape of each input that differs from model to model
    "product": (lambda values, x: A.with_values(values) @ x, (E,), (N, WIDTH)),
    "product with shared values": (lambda x: A @ x, (N, WIDTH)),
    "product with shared columns": (lambda values: A.with_values(values) @ X, (E,)),
    "product of one column": (lambda values, x: A.with_values(values) @ x, (E,), (N,)),
    "product with the transpose": (lambda values, x: A.with_values(values).T @ x, (E,), (N, WIDTH)),
    "two products with one matrix": (
        lambda values, x: (matrix := A.with_values(values)) @ (matrix @ x),
        *((E,), (N, WIDTH)),
    ),
    "edge_dot": (lambda u, v: A.pattern.edge_dot(u, v), (N, WIDTH), (N, WIDTH)),
    "edge_dot with shared ends": (lambda u: A.pattern.edge_dot(u, X), (N, WIDTH)),
    "edge_dot to shared ends": (lambda v: A.pattern.edge_dot(X, v), (N, WIDTH)),
    "edge_dot with itself": (lambda u: A.pattern.edge_dot(u, u), (N, WIDTH)),
    "row_softmax": (lambda scores: A.pattern.row_softmax(scores), (E,)),
    "row_sum": (lambda values: A.pattern.row_sum(values), (E,)),
    "col_sum": (lambda values: A.pattern.col_sum(values), (E,)),
    "spread_rows": (lambda per_row: A.pattern.spread_rows(per_row), (N,)),
    "spread_cols": (lambda per_col: A.pattern.spread_cols(per_col), (N,)),
    "permute": (lambda values: A.with_values(values).transposed_values, (E,)),
    "reversed_values": (lambda values: A.with_values(values).reversed_values, (E,)),
    "reversed_values of a symmetric pattern": (
        lambda values: SYMMETRIC.with_values(values).reversed_values,
        (SYMMETRIC.num_entries,),
    ),
    "dropout with shared seed": (lambda x: dropout(x, 0.4, Key(7, 2), 1), (N, WIDTH)),
}


def assert_same_bits(function, floats, seeds=()):
    """Values and gradients of the stack against those of each model under plain autograd, bit for bit."""
    result = function(*(part[0] for part in (*floats, *seeds)))
    upstream, places = noise(*result.shape, seed=8), tuple(range(len(floats)))
    together = vmap(function)(*floats, *seeds)
    gradients = vmap(grad(lambda *inputs: (function(*inputs) * upstream).sum(), argnums=places))(*floats, *seeds)
    for b in range(B):
        leaves = [part[b].clone().requires_grad_() for part in floats]
        alone = function(*leaves, *(part[b] for part in seeds))
        assert torch.equal(together[b], alone)
        (alone * upstream).sum().backward()
        assert all(torch.equal(found[b], leaf.grad) for found, leaf in zip(gradients, leaves, strict=True))
        assert all(leaf.grad.count_nonzero() for leaf in leaves)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_each_model_its_own_bits(name):
    function, *shapes = OPERATIONS[name]
    assert_same_bits(function, [noise(B, *shape, seed=k + 4) for k, shape in enumerate(shapes)])


@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_dropout_gives_each_model_the_bits_of_its_seed(stored):
    def drop(values, seed):
        key = Key(seed, 2)
        return dropout(values, 0.4, key, 1) if stored == "dense" else A.with_values(values).dropout(0.4, key, 1).values

    floats = [noise(B, *((N, WIDTH) if stored == "dense" else (E,)))]
    assert_same_bits(drop, floats, [SEEDS])
    same_values = floats[0][:1].expand(B, *floats[0].shape[1:])
    masks = vmap(drop)(same_values, SEEDS) != 0
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


RECIPE = Recipe(
    hidden=6,
    edge_rank=4,
    dropout=0.4,
    feature_dropout=0.3,
    edge_dropout=0.2,
    lpa_iterations=2,
    lpa_weight=2.0,
    lpa_ratio=0.8,
    class_weights="balanced",
    bias=True,
    layer_norm=True,
)
BLOCKS = load("sbm", n=30, classes=3, features=5, degree=4.0, noise=1.0)
FEATURES = ("dense", "sparse", "identity")


def graph_with(features, recipe):
    """The block model, prepared; as a new object of which nothing has been worked out."""
    x = {
        "dense": lambda: BLOCKS.x,
        "sparse": lambda: SparseMatrix.from_scipy(scipy.sparse.csr_array((BLOCKS.x * (BLOCKS.x > 0)).numpy())),
        "identity": lambda: SparseMatrix.identity(BLOCKS.num_nodes),
    }[features]()
    return recipe.prepare(dataclasses.replace(BLOCKS, x=x))


class Cost(nn.Module):
    """The loss of a model as a call, for `functional_call`."""

    def __init__(self, model, graph):
        super().__init__()
        self.model, self.graph = model, graph

    def forward(self, mask, seed):
        return self.model.loss(self.graph, mask, Key(seed, 2)).total


def models_of(recipe, graph):
    """Models with different weights, none of them zero."""
    models = [GCNLPA(recipe, graph, seed) for seed in range(B)]
    with torch.no_grad():
        for seed, model in enumerate(models):
            for parameter in model.parameters():
                parameter.add_(0.2 * noise(*parameter.shape, seed=seed))
    return models


def masks_of(graph):
    return noise(B, graph.num_nodes, seed=6) > 0  # of different sizes


def stacked_gradients(models, graph, masks):
    costs = [Cost(model, graph) for model in models]
    state = {name: tensor.detach() for name, tensor in stack_module_state(costs)[0].items()}
    return vmap(grad(lambda state, mask, seed: functional_call(costs[0], state, (mask, seed))))(state, masks, SEEDS)


def assert_each_gets_what_it_gets_alone(recipe, graph):
    models, masks = models_of(recipe, graph), masks_of(graph)
    found = stacked_gradients(models, graph, masks)
    for b, model in enumerate(models):
        nodes, key = masks[b].nonzero().squeeze(1), Key(int(SEEDS[b]), 2)
        model.loss(graph, nodes, key).total.backward()
        for name, parameter in model.named_parameters():
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(found[f"model.{name}"][b], parameter.grad, rtol=1e-5, atol=1e-5 * scale)
    return found


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("edges", ["fixed", "free", "agnn"])
def test_each_model_of_a_stack_gets_the_gradients_it_gets_alone(edges, loss, features):
    """Other weights, seeds and training nodes in each; dropout of features, layers and edges on."""
    recipe = RECIPE.replace(edges=edges, loss=loss)
    found = assert_each_gets_what_it_gets_alone(recipe, graph_with(features, recipe))
    of_edges = {name: gradient for name, gradient in found.items() if name.startswith("model.edges.")}
    assert bool(of_edges) == (edges != "fixed")
    for gradient in of_edges.values():  # not silently a constant
        assert all(gradient[b].count_nonzero() > 0 for b in range(B))
        assert not torch.allclose(gradient[0], gradient[1])


@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("edges", [form for form in EDGE_FORMS if form not in ("fixed", "free", "agnn")])
def test_every_edge_form_can_be_stacked(edges, features):
    recipe = RECIPE.replace(edges=edges)
    assert_each_gets_what_it_gets_alone(recipe, graph_with(features, recipe))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalization": "symmetric"},
        {"edges": "free", "symmetric_edges": True},
        {"loss": "leave_one_out", "lpa_iterations": 1, "residual": False},
        {"loss": "literal", "lpa_iterations": 5, "gcn_layers": 3},
        {"propagation": "hops", "propagation_steps": 3},
    ],
    ids=str,
)
def test_a_stack_follows_the_recipe(changes):
    recipe = RECIPE.replace(**changes)
    assert_each_gets_what_it_gets_alone(recipe, graph_with("dense", recipe))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("edges", ["fixed", "free", "gaussian"])
def test_a_graph_is_the_same_before_and_after_a_stack(edges, features):
    """What a stack works out of a graph can be kept: afterwards one model gets the bits it gets on a new graph."""
    recipe = RECIPE.replace(edges=edges)

    def alone(graph):
        model = models_of(recipe, graph)[0]
        cost = model.loss(graph, masks_of(graph)[0], Key(3, 2)).total
        cost.backward()
        return [cost.detach(), model(graph).detach(), *(parameter.grad for parameter in model.parameters())]

    graph = graph_with(features, recipe)
    first = stacked_gradients(models_of(recipe, graph), graph, masks_of(graph))
    used, again = alone(graph), stacked_gradients(models_of(recipe, graph), graph, masks_of(graph))
    assert all(torch.equal(one, other) for one, other in zip(used, alone(graph_with(features, recipe)), strict=True))
    assert all(torch.equal(first[name], again[name]) for name in first)
