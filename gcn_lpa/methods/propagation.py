"""Label propagation along the edges as they are, and along edges learned for it alone (Section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gcn_lpa.edges import edge_form
from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.fused import TINY
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import Labels, class_weights, labels_of, one_hot
from gcn_lpa.model import Loss, lpa_loss, propagate_labels
from gcn_lpa.recipes import Recipe

LEAST = 1e-12  # probability, so that zero has a logarithm
BLOCK = 1 << 24  # numbers in a dense block of feature columns, 64 MB


class LabelPropagation(nn.Module):
    """LPA along the edges as they are, Eqs. (1) and (2), from the labels of the graph it is given."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe

    def fit_directly(self, graph: Graph, nodes: Tensor) -> None:
        """There is nothing to learn."""

    def forward(self, graph: Graph) -> Tensor:
        transition = graph.adjacency.row_normalized()
        return label_distributions(transition, known_labels(graph), self.recipe.propagation_steps).log()


def known_labels(graph: Graph) -> Tensor:
    """Y^(0) of all labels of a graph, [n, c]."""
    return one_hot(graph.y, graph.num_classes, graph.adjacency.dtype)


def label_distributions(transition: SparseMatrix, seeds: Tensor, iterations: int) -> Tensor:
    """What LPA predicts, each row a distribution, [n, c]; a node that no label has reached gets the seeds' shares."""
    mass = propagate_labels(transition, seeds, iterations)
    mass = torch.where(seeds.sum(dim=1, keepdim=True) > 0, seeds, mass)  # Eq. (2)
    total, prior = mass.sum(dim=1, keepdim=True), transition.pattern.total(seeds.sum(dim=0)) + LEAST
    reached = total > 0
    return torch.where(reached, mass / torch.where(reached, total, 1.0), prior / prior.sum()).clamp_min(LEAST)


class AdaptiveLPA(nn.Module):
    """LPA along edges that are learned for LPA alone (Section 3.2), by one of CRITERIA."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, criterion: str = "labels") -> None:
        super().__init__()
        self.recipe, self.criterion, self.stackable = recipe, criterion, criterion == "labels"
        self.edges = edge_form(recipe, graph, generator=torch.Generator().manual_seed(seed))

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log D⁻¹A + log M; the D changes nothing after row normalisation."""
        return graph.adjacency.row_normalized().log().add(self.edges(graph))

    def forward(self, graph: Graph) -> Tensor:
        transition = self.edge_scores(graph).row_softmax()
        return label_distributions(transition, known_labels(graph), self.recipe.propagation_steps).log()

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        criterion = CRITERIA[self.criterion](self.edge_scores(graph), graph, nodes, self.recipe, key)
        return Loss(criterion.new_zeros(()), criterion, 1.0)

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        return []


def label_error(scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None) -> Tensor:
    """Eq. (15) as `recipe.loss` says; `leave_one_out` is the criterion of Zhang & Lee (2007)."""
    labels = training_labels(graph, nodes, recipe, key)
    return lpa_loss(scores.row_softmax(), labels, recipe, key, importance(labels, graph, recipe))


def neighbourhood_error(scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None) -> Tensor:
    """Σ_i ‖x_i - Σ_j p_ij x_j‖² / Σ_i ‖x_i‖² with rows of p that sum to 1.

    As in linear neighbourhoods (Wang & Zhang 2008): the weights of locally linear embedding, kept positive. For a graph
    without self-loops: with them p = I is perfect.
    """
    return reconstruction_error(scores.row_softmax(), graph.x)


def sparse_neighbourhood_error(
    scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None
) -> Tensor:
    """The same error with A* itself in place of p, plus `edge_sparsity` · Σ_ij a*_ij / n, as in Hong et al. (2009).

    The L1 norm needs weights before row normalisation, after which it is constant, and a loss that sees their scale:
    LPA does not, so beside Eq. (15) the norm would shrink all weights of a row together and drop none.
    """
    weights = scores.with_values(scores.values.exp())
    return reconstruction_error(weights, graph.x) + recipe.edge_sparsity * weights.values.sum() / graph.num_nodes


Criterion = Callable[[SparseMatrix, Graph, Tensor, Recipe, Key | None], Tensor]


CRITERIA: dict[str, Criterion] = {
    "labels": label_error,
    "reconstruction": neighbourhood_error,
    "sparse": sparse_neighbourhood_error,
}


def reconstruction_error(weights: SparseMatrix, x: Tensor | SparseMatrix) -> Tensor:
    """‖X - P X‖² / ‖X‖², differentiable in P; of a sparse X only a block of columns is dense at a time."""
    error: Tensor = _Reconstruction.apply(weights.pattern, weights.values, x)  # type: ignore[no-untyped-call]
    size = (x.values if isinstance(x, SparseMatrix) else x).square().sum()
    return error / size.clamp_min(TINY)


class _Reconstruction(torch.autograd.Function):
    """‖X - P X‖²; its gradient -2 r_i·x_j, r = X - P X, is found in the same pass."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor, x: Tensor | SparseMatrix) -> Tensor:
        error, gradient = values.new_zeros(()), torch.zeros_like(values)
        for block in column_blocks(x):
            residual = block - SparseMatrix(pattern, values) @ block
            error += residual.square().sum()
            gradient -= 2 * pattern.edge_dot(residual, block)
        ctx.save_for_backward(gradient)
        return error

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return None, grad * gradient, None


def column_blocks(x: Tensor | SparseMatrix) -> Iterator[Tensor]:
    """The columns of x, dense, a block at a time, each [n, about BLOCK / n]."""
    width = max(1, BLOCK // max(1, x.shape[0]))
    if isinstance(x, Tensor):
        yield from torch.split(x, width, dim=1)
        return
    columns, starts = x.T, x.pattern.T.rows.rowptr.tolist()
    for first in range(0, x.shape[1], width):
        last = min(first + width, x.shape[1])
        here = slice(starts[first], starts[last])
        block = x.values.new_zeros(x.shape[0], last - first)
        block[columns.pattern.col[here].long(), columns.pattern.row[here].long() - first] = columns.values[here]
        yield block


def training_labels(graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None) -> Labels:
    seed, adjacency = key.seed if key is not None else 0, graph.adjacency
    settings = graph.num_classes, recipe.lpa_ratio, seed, adjacency.dtype
    return labels_of(graph.y, nodes, *settings, adjacency.pattern)


def importance(labels: Labels, graph: Graph, recipe: Recipe) -> Tensor | None:
    return class_weights(labels, graph.num_classes) if recipe.class_weights == "balanced" else None
