"""Predict, then propagate: bodies of the model whose predictions walk the edges beside labels.

A body turns features and the matrix it is given into logits; the paper's own, `Convolutions`, is in `model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor, nn

from gcn_lpa.edges import initial_weight
from gcn_lpa.engine.class_blocks import added
from gcn_lpa.engine.counter_random import Key, dropout
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import Recipe


class Perceptron(nn.Module):
    """f(x): x ← σ(x W + b) layer by layer, without the graph; the last x holds logits, [n, c]."""

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        shapes = pairwise(widths)
        self.weights = nn.ParameterList(initial_weight(*s, init=recipe.init, generator=generator) for s in shapes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])

    def forward(self, x: Tensor | SparseMatrix, key: Key | None = None) -> Tensor:
        z = self.layer(0, x, key)
        for k in range(1, len(self.weights)):
            z = self.layer(k, z.relu_(), key)
        return z

    def layer(self, k: int, x: Tensor | SparseMatrix, key: Key | None) -> Tensor:
        x = dropout(x, self.recipe.dropout, key, layer=k)
        return added(x @ self.weights[k], self.biases[k], x)


class Hops(Perceptron):
    """Predict, then propagate: Σ_k γ_k S^k f(x), k = 0 … K, for the matrix S it is given, [n, c].

    Predictions walk the edges beside labels, and the hop weights γ are learned with the rest. They start as those of
    personalised PageRank: γ_k = α (1 - α)^k, and (1 - α)^K for the last (Klicpera et al. 2019, Chien et al. 2021).
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(recipe, graph, generator)
        self.gamma = hop_weights(recipe)

    def forward(  # type: ignore[override]
        self, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None, *, rows: Tensor | None = None
    ) -> Tensor:
        total = walk(self.gamma, smoothing, super().forward(x, key))
        return total if rows is None else total.index_select(0, rows)


class RelationHops(Perceptron):
    """Hops along each kind of edge by itself: γ_0 f(x) + Σ_r Σ_k γ_rk P_r^k f(x), k = 1 … K, for the matrices P_r it is given.

    γ starts as that of `Hops`, every kind with the same share of it.
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(recipe, graph, generator)
        if graph.relations is None:
            raise ValueError("propagation 'relations' needs kinds of edges; relation=… names the column that says them")
        number, start = len(graph.relations.names), hop_weights(recipe).detach()
        self.own = nn.Parameter(start[:1].clone())  # γ_0
        self.gamma = nn.Parameter(start[1:].repeat(number, 1) / number)  # [R, K]

    def forward(  # type: ignore[override]
        self,
        kinds: Sequence[SparseMatrix],
        x: Tensor | SparseMatrix,
        key: Key | None = None,
        *,
        rows: Tensor | None = None,
    ) -> Tensor:
        total = reduce(torch.add, self.parts(kinds, x, key))
        return total if rows is None else total.index_select(0, rows)

    def parts(self, kinds: Sequence[SparseMatrix], x: Tensor | SparseMatrix, key: Key | None = None) -> list[Tensor]:
        """What a node's own prediction says, and what comes along each kind of edge, [n, c] each."""
        return walk_kinds(self.own, self.gamma, kinds, super().forward(x, key))


def hop_weights(recipe: Recipe) -> nn.Parameter:
    """γ at the start: personalised PageRank's."""
    alpha, last = recipe.teleport, recipe.propagation_steps
    return nn.Parameter(torch.tensor([alpha * (1 - alpha) ** k for k in range(last)] + [(1 - alpha) ** last]))


def walk(gamma: Tensor, smoothing: SparseMatrix, z: Tensor) -> Tensor:
    """Σ_k γ_k S^k z."""
    total = gamma[0] * z
    for k in range(1, len(gamma)):
        z = smoothing @ z
        total = total + gamma[k] * z
    return total


def walk_kinds(own: Tensor, gamma: Tensor, kinds: Sequence[SparseMatrix], z: Tensor) -> list[Tensor]:
    """γ_0 z and, for each kind of edge, Σ_k γ_rk P_r^k z."""
    parts = [own * z]
    for r, smoothing in enumerate(kinds):
        y, total = z, torch.zeros_like(z)
        for k in range(gamma.shape[1]):
            y = smoothing @ y
            total = total + gamma[r, k] * y
        parts.append(total)
    return parts
