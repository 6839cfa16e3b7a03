"""Label propagation along edges that rebuild each node's features from its neighbours' (Section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import Loss
from gcn_lpa.methods.label_propagation import AdaptiveLPA
from reproduction.recipes import StudyRecipe

BLOCK = 1 << 24  # numbers in a dense block of feature columns, 64 MB
TINY = 1e-6  # of ‖X‖², where there are no features


class NeighbourhoodLPA(AdaptiveLPA):
    """Σ_i ‖x_i - Σ_j p_ij x_j‖² / Σ_i ‖x_i‖² with rows of p that sum to 1.

    As in linear neighbourhoods (Wang & Zhang 2008): the weights of locally linear embedding, kept positive. For a graph
    without self-loops: with them p = I is perfect.
    """

    stackable = False

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        error = self.error(self.edge_scores(graph), graph)
        return Loss(error.new_zeros(()), error, 1.0)

    def error(self, scores: SparseMatrix, graph: Graph) -> Tensor:
        return reconstruction_error(scores.row_softmax(), graph.x)


class SparseNeighbourhoodLPA(NeighbourhoodLPA):
    """The same error with A* itself in place of p, plus `edge_sparsity` · Σ_ij a*_ij / n, as in Hong et al. (2009).

    The L1 norm needs weights before row normalisation, after which it is constant, and a loss that sees their scale:
    LPA does not, so beside Eq. (15) the norm would shrink all weights of a row together and drop none.
    """

    recipe: StudyRecipe

    def error(self, scores: SparseMatrix, graph: Graph) -> Tensor:
        weights = scores.with_values(scores.values.exp())
        norm = weights.values.sum() / graph.num_nodes
        return reconstruction_error(weights, graph.x) + self.recipe.edge_sparsity * norm


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
    columns, starts = x.T, x.pattern.T.rowptr.tolist()
    for first in range(0, x.shape[1], width):
        last = min(first + width, x.shape[1])
        here = slice(starts[first], starts[last])
        block = x.values.new_zeros(x.shape[0], last - first)
        block[columns.pattern.col[here].long(), columns.pattern.row[here].long() - first] = columns.values[here]
        yield block
