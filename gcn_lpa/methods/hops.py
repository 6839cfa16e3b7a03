"""Predict, then propagate: bodies of the model whose predictions walk the edges beside labels.

The paper's body, `Convolutions`, is in `model.py`. Learned hop weights are those of GPR-GNN (Chien et al. 2021), fixed ones those
of APPNP (Klicpera et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout, glorot

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.recipes import Recipe


class Perceptron(nn.Module):
    """f(x): x ← σ(x W + b) layer by layer, without the graph; the last x holds logits, [n, c]."""

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.target.width]
        self.weights = nn.ParameterList(glorot(*shape, generator=generator) for shape in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])

    def forward(self, x: Tensor | SparseMatrix, key: Key | None = None) -> Tensor:
        rate = self.recipe.dropout
        z: Tensor = dropout(x, rate, key, layer=0) @ self.weights[0] + self.biases[0]
        for k in range(1, len(self.weights)):
            z = dropout(z.relu(), rate, key, layer=k) @ self.weights[k] + self.biases[k]
        return z


class Propagated(nn.Module):
    """Predict, then propagate: the predictions of a perceptron walk the edges beside labels."""

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe, self.perceptron = recipe, Perceptron(recipe, graph, generator)

    def begin(self, graph: Graph, smoothing: SparseMatrix) -> None: ...

    def forward(self, graph: Graph, smoothing: SparseMatrix, key: Key | None = None, at: Tensor | None = None) -> Tensor:
        logits = self.walked(graph, smoothing, key)
        return logits if at is None else logits.index_select(0, at)

    def walked(self, graph: Graph, smoothing: SparseMatrix, key: Key | None) -> Tensor:
        """Z ← (1 - α) S Z + α f(x), APPNP."""
        return personalized(smoothing, self.perceptron(graph.x, key), self.recipe)


class Hops(Propagated):
    """Σ_k γ_k S^k f(x), k = 0 … K, for the matrix S it is given, [n, c].

    The hop weights γ are learned with the rest. They start as those of personalised PageRank: γ_k = α (1 - α)^k, and
    (1 - α)^K for the last.
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(recipe, graph, generator)
        self.gamma = nn.Parameter(torch.tensor(hop_weights(recipe)))

    def walked(self, graph: Graph, smoothing: SparseMatrix, key: Key | None) -> Tensor:
        return smoothing.polynomial(self.gamma, self.perceptron(graph.x, key))


class RelationHops(Propagated):
    """Hops along each edge type by itself: γ_0 f(x) + Σ_r Σ_k γ_rk P_r^k f(x), k = 1 … K, with P_r = D^-½ A_r D^-½ as given.

    γ starts as that of `Hops`, every edge type with the same share of it.
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        if graph.edge_types is None:
            raise ValueError("propagation 'relations' needs edge types; option relation=… names their column")
        super().__init__(recipe, graph, generator)
        number, start = len(graph.edge_types.names), torch.tensor(hop_weights(recipe))
        self.own = nn.Parameter(start[:1].clone())  # γ_0
        self.gamma = nn.Parameter(start[1:].repeat(number, 1) / number)  # [R, K]

    def walked(self, graph: Graph, smoothing: SparseMatrix, key: Key | None) -> Tensor:
        return reduce(torch.add, self.parts(graph, key))

    def parts(self, graph: Graph, key: Key | None = None) -> list[Tensor]:
        """The contributions of the node's own prediction and of each edge type, [n, c] each."""
        matrices = edge_type_matrices(graph, self.recipe.edge_dropout, key)
        return walk_edge_types(self.own, self.gamma, matrices, self.perceptron(graph.x, key))


def edge_type_matrices(graph: Graph, rate: float = 0.0, key: Key | None = None) -> Sequence[SparseMatrix]:
    """D^-½ A_r D^-½ of the given edges of each type; with a key, without a random share of them, but self-loops stay."""
    assert graph.edge_types is not None
    if key is None or rate == 0:
        return graph.edge_types.smoothing
    return [matrix.log().symmetric_softmax(rate, key) for matrix in graph.edge_types.matrices]


def hop_weights(recipe: Recipe) -> list[float]:
    """γ of personalised PageRank."""
    alpha, last = recipe.teleport, recipe.propagation_steps
    return [alpha * (1 - alpha) ** k for k in range(last)] + [(1 - alpha) ** last]


def walk_edge_types(own: Tensor, gamma: Tensor, matrices: Sequence[SparseMatrix], z: Tensor) -> list[Tensor]:
    """γ_0 z and, for each edge type, Σ_k γ_rk P_r^k z."""
    of_hops = nn.functional.pad(gamma, (1, 0))
    return [own * z, *(matrix.polynomial(of_hops[r], z) for r, matrix in enumerate(matrices))]


def personalized_back(adjacency: SparseMatrix, ends: Tensor, recipe: Recipe) -> Tensor:
    """Mᵀ E, where M v is `personalized` PageRank of v along D^-½AD^-½."""
    smoothing = adjacency.symmetric_normalized()
    if not smoothing.pattern.is_part:
        return personalized(smoothing.T, ends, recipe)
    start = torch.zeros_like(ends, requires_grad=True)  # the backward pass brings home what is for other processes
    with torch.enable_grad():
        walked = personalized(smoothing, start, recipe)
    return torch.autograd.grad((walked * ends).sum(), start)[0]


def personalized(smoothing: SparseMatrix, start: Tensor, recipe: Recipe, bounds: tuple[float, float] | None = None) -> Tensor:
    """Z ← (1 - α) S Z + α H from Z = H, `propagation_steps` times; `bounds` on every entry at every step."""
    if bounds is None:
        return smoothing.polynomial(hop_weights(recipe), start)
    z = start
    for _ in range(recipe.propagation_steps):
        z = (1 - recipe.teleport) * (smoothing @ z) + recipe.teleport * start
        z = z.clamp(*bounds)
    return z
