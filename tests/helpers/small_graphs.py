"""Six nodes to draw on paper, random walks, models whose parameters are all random, and what a reading of Eq. (15) scores."""

import dataclasses

import numpy as np
import pandas
import torch
from torch.nn import functional as F

from gcn_lpa.data.array_files import read_frame
from gcn_lpa.data.edge_columns import ListedEdges, read_edge_columns
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout
from gcn_lpa.graph import Graph
from gcn_lpa.losses import READINGS, Labels, labels_of
from gcn_lpa.methods.hops import edge_type_matrices
from gcn_lpa.methods.registry import gcn_lpa
from gcn_lpa.recipes import Recipe
from tests.helpers.twin import Twin

PAIRS = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]  # two triangles joined by 2 - 3
FEATURES = [[1.0, 0.0, 2.0], [0.0, 1.0, 0.5], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]]
LABELS = [0, 0, 1, -1, 1, -1]
TRAIN = torch.tensor([0, 1, 2, 4])
PLAIN = Recipe(edges="fixed", features="raw", lpa_weight=0, residual=False, dropout=0.0, hidden=4)


def six_nodes(x=FEATURES):
    weights = [1 + k / 4 for k in range(len(PAIRS))]
    return Graph.from_edges(PAIRS, weights=weights, x=x, y=LABELS, class_names=("a", "b"), self_loops=True)


def in_float64(graph):
    adjacency, x = graph.adjacency.to(torch.float64), graph.x.to(torch.float64)
    return dataclasses.replace(graph, adjacency=adjacency, x=x)


def sparse_of(dense):
    row, col = dense.nonzero(as_tuple=True)
    return SparseMatrix.from_coo(row, col, dense[row, col], tuple(dense.shape))


def random_walk(n, seed=0, self_loops=True):
    """A dense D⁻¹A of a connected undirected graph with random weights, float64."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(n, n, generator=generator, dtype=torch.float64) * (torch.rand(n, n, generator=generator) < 0.4)
    path = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    a = a + a.T + path + path.T
    a.fill_diagonal_(0.7 if self_loops else 0.0)
    return a / a.sum(1, keepdim=True)


def one_way(walk):
    """Some edges of the walk without their way back; rows still sum to 1."""
    kept = walk * (torch.rand(walk.shape, generator=torch.Generator().manual_seed(9)) < 0.6)
    kept.fill_diagonal_(0.2)
    assert ((kept > 0) != (kept.T > 0)).any()
    assert ((kept > 0) & (kept.T > 0)).sum() > len(walk)  # and some with
    return kept / kept.sum(1, keepdim=True)


def one_hot(labels, num_classes=2):
    """Rows of zeros where the label is -1."""
    y = torch.as_tensor(labels)
    return F.one_hot(y.clamp_min(0), num_classes).double() * (y >= 0).unsqueeze(1)


def random_model(recipe, graph, seed=0):
    """A model in float64 whose parameters are all random, edges and biases too."""
    model, generator = gcn_lpa(recipe, graph, seed).double(), torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.4)
    return model


def twin_of(model, graph, key=None):
    """The dense twin of a model in float64, with parameters of its own, which leaves out what the model does under a key."""
    recipe, n = model.recipe, graph.num_nodes
    rates, widths = [recipe.dropout] * recipe.gcn_layers, [graph.num_features, *[recipe.hidden] * recipe.gcn_layers]
    if recipe.propagation == "columns":
        widths[0] *= recipe.propagation_steps + 1
    if recipe.propagation == "layers" and recipe.feature_dropout is not None:
        rates[0] = recipe.feature_dropout
    ones = [torch.ones(n, width, dtype=torch.float64) for width in widths]
    kept = {k: dropout(ones[k], rate, key, layer=k) for k, rate in enumerate(rates)}
    kept_edges = model.transition(graph, key).to_dense().detach() > 0
    matrices = edge_type_matrices(graph) if recipe.propagation == "relations" else ()
    types = [matrix.to_dense().double() for matrix in matrices]
    p = {name: parameter.detach().double().requires_grad_() for name, parameter in model.named_parameters()}
    a, x = graph.adjacency.to_dense().double(), graph.x.to_dense().double()
    return Twin(recipe, a, x, p, kept=kept, kept_edges=kept_edges, types=types)


def labels_at(nodes, target, walk, recipe, *, num_classes=2, seed=0):
    """The labels `target` of `nodes` as a loss reads them."""
    y = torch.full((walk.shape[0],), -1).index_copy(0, nodes, target)
    names = tuple(map(str, range(num_classes)))
    return labels_of(recipe, Graph(walk, torch.zeros(len(y), 0), y, names), nodes, seed)


def lpa_cost(walk, labels, recipe, key=None):
    """L_lpa as `recipe.loss` reads it."""
    return READINGS[recipe.loss](walk, labels, recipe.lpa_iterations, key or Key(0))


class Watched(Labels):
    """Labels that tell what they were asked to score."""

    def mean_cost(self, values, kind, scored=None):
        return values, torch.ones(len(values), dtype=torch.bool) if scored is None else scored


def votes_on(walk, labels, recipe, key=None):
    """What LPA says about each of the labelled nodes, [m, c], and which of them are scored, [m]."""
    return lpa_cost(walk, Watched(*labels), recipe, key)


def rare(n=400, share=0.05, seed=0):
    """Accounts of which a few are fraud: they deal with each other, and one of three columns tells a little."""
    generator = np.random.default_rng(seed)
    fraud = generator.permutation(n) < share * n
    source = np.repeat(np.arange(n), 3)
    inside = fraud[source] & (generator.random(3 * n) < 0.6)
    target = np.where(inside, generator.choice(np.flatnonzero(fraud), 3 * n), generator.choice(n, 3 * n))
    edges = np.stack([source, target], axis=1)
    x = generator.normal(size=(n, 3)) + np.outer(fraud, [0.8, 0.0, 0.0])
    return Graph.from_edges(
        edges[edges[:, 0] != edges[:, 1]],
        num_nodes=n,
        x=x,
        y=fraud.astype(np.int64),
        class_names=("honest", "fraud"),
        name="accounts",
    )


def edge_frame(weights):
    """Columns of edges with these weights: an amount, and a kind, which is missing for some."""
    kinds = ["" if round(4 * weight) % 5 == 4 else "ab"[round(4 * weight) % 2] for weight in weights]
    return pandas.DataFrame({"amount": [round(float(weight), 3) for weight in weights], "kind": kinds})


def with_edge_columns(graph, functions=None):
    """The graph whose edges were listed once, the heaviest of them twice, with the columns of `edge_frame`."""
    row, col, weights = (part.cpu().numpy() for part in (graph.row, graph.col, graph.adjacency.values))
    once = np.flatnonzero(row < col)
    once = np.concatenate([once[weights[once].argmax(keepdims=True)] if len(once) else once, once])
    frame = edge_frame(weights[once])
    if functions is None:
        some = edge_frame([1 + k / 4 for k in range(8)])
        twice = np.array([0, 0, 1, 2, 3, 4, 5, 6])
        listed = ListedEdges(twice, twice + 1, None, False)
        functions = read_edge_columns(read_frame(some, "edges"), ["amount", "kind"], listed, (), None)[0].functions
    listed = ListedEdges(row[once], col[once], None, graph.directed)
    columns, _ = read_edge_columns(read_frame(frame, "edges"), (), listed, (), functions)
    return dataclasses.replace(graph, edge_columns=columns)
