"""GCN-LPA with other layers than the paper's: sums, maxima and concatenations of neighbours, and the network of Appendix E.

Labels walk D*⁻¹A* whatever features do. Where neighbours are not averaged, features walk A* itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout, glorot
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import Recipe
from reproduction.max_pooling import row_max
from reproduction.recipes import StudyRecipe

LARGEST_LOG = 10.0  # of a learned strength that no row sum divides: e^10 is 22,026
SIGMAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


class AggregatingLayers(nn.Module):
    """X^(k+1) = σ(S X^(k) W^(k)), Eq. (16), for the matrix S it is given; the last X holds logits, [n, c].

    `recipe.aggregation` replaces S X W, the sum over neighbours j of s_ij x_j W: "max" takes their maximum in each column,
    and "concat" is [X W' | S X W], twice as wide; its last layer has c columns, X W' + S X W, which is [X | S X] times one
    matrix, as in GraphSAGE (Hamilton et al. 2017). Sum and mean differ in S alone.
    """

    def begin(self, graph: Graph, smoothing: SparseMatrix) -> None: ...

    def __init__(self, recipe: StudyRecipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe, self.generator = recipe, generator
        self.concatenates = recipe.aggregation == "concat"
        width = recipe.hidden * (2 if self.concatenates else 1)
        widths = [graph.num_features, *[width] * (recipe.gcn_layers - 1), graph.num_classes]
        outputs = [*[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        self.shapes = list(zip(widths[:-1], outputs, strict=True))
        self.weights = nn.ParameterList(self.drawn(*shape) for shape in self.shapes)
        self.skips = nn.ParameterList()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _, width in pairwise(widths) if recipe.bias)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:-1] if recipe.layer_norm)

    def drawn(self, rows: int, columns: int) -> nn.Parameter:
        """A W at its start."""
        if self.recipe.init == "uniform":  # in [-1, 1], Appendix E
            return nn.Parameter(torch.rand(rows, columns, generator=self.generator) * 2 - 1)
        return glorot(rows, columns, generator=self.generator)

    def draw_skips(self) -> None:
        """Draw the W' of a node's own x, after the edges have drawn theirs: a seed gives the same start with and without them."""
        if self.recipe.residual or self.concatenates:
            self.skips = nn.ParameterList(self.drawn(*shape) for shape in self.shapes)

    def forward(self, graph: Graph, smoothing: SparseMatrix, key: Key | None = None, at: Tensor | None = None) -> Tensor:
        x = graph.x
        for k in range(len(self.weights)):
            x = self.layer(k, smoothing, dropout(x, self.rate(k), key, layer=k))
        logits = cast(Tensor, x)
        return logits if at is None else logits.index_select(0, at)

    def layer(self, k: int, smoothing: SparseMatrix, x: Tensor | SparseMatrix) -> Tensor:
        """X^(k+1) of X^(k)."""
        recipe, is_last = self.recipe, k == len(self.weights) - 1
        z = x @ self.weights[k]
        h = row_max(smoothing, z) if recipe.aggregation == "max" else smoothing @ z  # Eq. (16)
        if self.skips:
            own = x @ self.skips[k]
            h = torch.cat([own, h], dim=1) if self.concatenates and not is_last else own + h
        if self.biases:
            h = h + self.biases[k]
        if self.norms and not is_last:
            h = self.norms[k](h)
        return SIGMAS[recipe.output_activation if is_last else recipe.activation](h)

    def rate(self, k: int) -> float:
        recipe = self.recipe
        return recipe.dropout if k > 0 or recipe.feature_dropout is None else recipe.feature_dropout


class AggregatingGCNLPA(GCNLPA):
    """GCN-LPA whose body is `AggregatingLayers`."""

    recipe: StudyRecipe
    mean_degree: Tensor  # of a sum alone

    def __init__(self, recipe: StudyRecipe, graph: Graph, seed: int = 0) -> None:
        super().__init__(recipe, graph, seed, body=partial(_layers, recipe))
        cast(AggregatingLayers, self.body).draw_skips()
        if recipe.aggregation == "sum":  # of the training graph, also where the model is asked about another
            self.register_buffer("mean_degree", _mean_degree(graph.adjacency))

    @property
    def averages(self) -> bool:
        """Whether a row of what features walk sums to 1."""
        return self.recipe.aggregation not in ("sum", "max")

    @property
    def is_one_walk(self) -> bool:
        return self.averages and super().is_one_walk

    def smoothing(self, graph: Graph, key: Key | None = None, scores: SparseMatrix | None = None) -> Any:
        """A* for a maximum; for a sum A* divided by the mean degree of the training graph, so that a layer neither grows nor
        shrinks features much; else what features of the library's model walk.
        """
        if self.averages:
            return super().smoothing(graph, key, scores)
        strength = strengths(self.edge_scores(graph) if scores is None else scores)
        is_sum = self.recipe.aggregation == "sum"
        return strength.with_values(strength.values / self.mean_degree) if is_sum else strength


def _layers(recipe: StudyRecipe, _: Recipe, graph: Graph, generator: torch.Generator) -> AggregatingLayers:
    return AggregatingLayers(recipe, graph, generator)


def strengths(scores: SparseMatrix) -> SparseMatrix:
    """A* = exp(scores) itself, not divided by its row sums; of larger scores than LARGEST_LOG, exp(LARGEST_LOG)."""
    return scores.with_values(scores.values.clamp_max(LARGEST_LOG).exp())


def _mean_degree(adjacency: SparseMatrix) -> Tensor:
    """Σ a_ij / n, 1 where there is no edge; a number of its own, [1]."""
    total = adjacency.values.sum() / max(1, adjacency.shape[0])
    return torch.where(total > 0, total, 1).reshape(1)
