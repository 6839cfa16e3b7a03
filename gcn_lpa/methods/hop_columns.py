"""Hop columns: P^k x for k = 0 … K, computed once; then a perceptron on the rows of labelled nodes (SIGN, Frasca et al. 2020).

An epoch costs what the labels cost and not what the edges cost. The first layer is linear, Σ_k P^k x B V_k, so that all nodes are
predicted by K products as wide as a hidden layer; the columns of all hops of all nodes are never held at once.

P is the mean over neighbours: in D^-½ A D^-½ the rows of hubs would be far from all others. Columns are centred at each hop: where
all are far from 0, steps are of one direction. Words are first reduced: B holds the leading right singular vectors of their columns
(randomised: Halko et al. 2011). B, center and scale are learned from the columns of the training graph, without labels, and kept.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from gcn_lpa.data.scaling import single_columns
from gcn_lpa.engine.fused import Remembered
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout, glorot
from gcn_lpa.methods.linear import one_thread, rows_of

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.recipes import Recipe

MOST_COLUMNS = 256  # that are read as they are; of more, words are reduced, or all where there are no words
RANK = 128  # columns that words are reduced to
MORE = 16  # directions that are tried beside these
ITERATIONS = 3  # of the power method
SAMPLE = 20_000  # rows, evenly spread, that the directions are found on
AT_ONCE = 1 << 26  # numbers in a block of columns that walks, 256 MB
LEAST_SPREAD = 1e-6  # a column that varies less at a hop says nothing there


class HopColumns(nn.Module):
    """f(Σ_k P^k x B V_k) with a perceptron f whose first layer the V_k are; P is the matrix it is given, [n, c]."""

    basis: Tensor | None  # B, [d, r]; None: columns are read as they are
    center: Tensor  # the mean of each column at each hop, [K + 1, r]
    scale: Tensor  # one over its spread, 0 where it is constant, [K + 1, r]

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe, d, self.kept = recipe, graph.num_features, kept_columns(graph)
        width = d if self.kept is None else len(self.kept) + min(RANK, d - len(self.kept))
        self.register_buffer("basis", None if self.kept is None else torch.zeros(d, width))
        self.register_buffer("center", torch.zeros(recipe.propagation_steps + 1, width))
        self.register_buffer("scale", torch.ones(recipe.propagation_steps + 1, width))
        hops, hidden = recipe.propagation_steps + 1, [recipe.hidden] * (recipe.gcn_layers - 1)
        widths = [hops * width, *hidden, graph.target.width]
        self.weights = nn.ParameterList(glorot(*shape, generator=generator) for shape in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in widths[1:])
        self.seed = int(torch.randint(2**31, (), generator=generator))
        self._rows = {trains: Remembered(self.rows) for trains in (True, False)}  # of train and validation nodes

    def begin(self, graph: Graph, smoothing: SparseMatrix) -> None:
        """Learn B and the spreads from the columns of a graph."""
        with torch.no_grad():
            if self.basis is not None and self.kept is not None:
                key, kept = ("directions", self.seed), self.kept
                self.basis.copy_(graph.once(key, lambda: directions(graph, kept, self.scale.shape[1], self.seed)))
            spread = torch.zeros_like(self.scale)
            for columns, k, walked in self.walk(graph, smoothing):
                variance, self.center[k, columns] = graph.pattern.moments(walked)
                spread[k, columns] = variance.sqrt()
            words = slice(0 if self.kept is None else len(self.kept), None)
            if self.kept is not None:  # the directions of words keep their sizes beside one another
                spread[:, words] = spread[:, words].square().mean(dim=1, keepdim=True).sqrt()
            self.scale.copy_(torch.where(spread > LEAST_SPREAD, 1 / spread, 0.0))

    def walk(self, graph: Graph, smoothing: SparseMatrix) -> Any:
        """(columns, k, P^k x B of these columns), in blocks of columns."""
        number = self.scale.shape[1]
        width = max(1, AT_ONCE // max(1, graph.pattern.most_rows))
        for start in range(0, number, width):
            columns = slice(start, min(number, start + width))
            if self.basis is not None:
                z = graph.x @ self.basis[:, columns].contiguous()
            elif isinstance(graph.x, SparseMatrix):
                z = graph.x @ torch.eye(number, device=graph.device)[:, columns].contiguous()
            else:
                z = graph.x[:, columns].contiguous()
            yield columns, 0, z
            for k in range(1, self.scale.shape[0]):
                z = smoothing @ z
                yield columns, k, z

    def rows(self, graph: Graph, smoothing: SparseMatrix, at: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of all hops of these nodes, [m, (K + 1) r], and the numbers that name their random bits, [m]."""
        rows = torch.empty(len(at), *self.scale.shape, device=at.device)
        with torch.no_grad():
            for columns, k, walked in self.walk(graph, smoothing):
                rows[:, k, columns] = (walked.index_select(0, at) - self.center[k, columns]) * self.scale[k, columns]
        return rows.flatten(1), graph.pattern.places(at)

    def forward(self, graph: Graph, smoothing: SparseMatrix, key: Key | None = None, at: Tensor | None = None) -> Tensor:
        if at is None and key is None:
            z: Tensor = self.first_layer(graph, smoothing)
        else:
            at = torch.arange(graph.num_nodes, device=graph.device) if at is None else at
            rows, places = self._rows[self.training](graph, smoothing, at)
            key = None if key is None else key._replace(rows=places)
            z = dropout(rows, self.recipe.dropout, key, layer=0) @ self.weights[0]
        z = z + self.biases[0]
        for k in range(1, len(self.weights)):
            z = dropout(z.relu(), self.recipe.dropout, key, layer=k) @ self.weights[k] + self.biases[k]
        return z

    def first_layer(self, graph: Graph, smoothing: SparseMatrix) -> Tensor:
        """Σ_k P^k (x B V_k), from the farthest hop on, [n, hidden]."""
        each = self.weights[0].unflatten(0, self.scale.shape) * self.scale.unsqueeze(2)
        each = each if self.basis is None else self.basis @ each  # [K + 1, d, hidden]
        z: Tensor = graph.x @ each[-1].contiguous()
        for weight in each[:-1].flip(0):
            z = smoothing @ z + graph.x @ weight.contiguous()
        shift: Tensor = (self.center * self.scale).flatten() @ self.weights[0]
        return z - shift


def kept_columns(graph: Graph) -> Tensor | None:
    """The columns of a prepared graph that are read as they are, where the others are reduced; None: all."""
    if graph.num_features <= MOST_COLUMNS:
        return None
    ranges = [torch.arange(block.start, block.stop) for block in single_columns(graph.blocks)]
    columns = torch.cat([torch.zeros(0, dtype=torch.int64), *ranges])
    return columns if len(columns) <= MOST_COLUMNS else columns[:0]


def directions(graph: Graph, kept: Tensor, width: int, seed: int) -> Tensor:
    """B, [d, r]: a column of the identity for each kept one, then the leading directions of the others."""
    pattern, d = graph.pattern, graph.num_features
    number, at = int(pattern.total(torch.tensor(graph.num_nodes))), torch.arange(graph.num_nodes, device=graph.device)
    if number > SAMPLE:
        chosen = torch.from_numpy(np.linspace(0, number - 1, SAMPLE).astype(np.int64)).to(graph.device)
        at = at[torch.isin(at if pattern.ids is None else pattern.ids[: len(at)], chosen)]
    x = rows_of(graph, at)
    others, rank = np.setdiff1d(np.arange(d), kept.numpy()), width - len(kept)
    basis = np.zeros((d, width), dtype=np.float32)
    basis[kept.numpy(), np.arange(len(kept))] = 1
    basis[others, len(kept) :] = pattern.agreed(lambda: leading(x[:, others], rank, seed))
    return torch.from_numpy(basis)


def leading(x: Any, rank: int, seed: int) -> np.ndarray:
    """The right singular vectors of the `rank` largest singular values, [d, rank], to the accuracy of a few power iterations."""
    x = scipy.sparse.csr_array(x, dtype=np.float64) if scipy.sparse.issparse(x) else x.astype(np.float64)
    width = min(rank + MORE, *x.shape)
    with one_thread():  # sums are added in one order
        q = x @ np.random.Generator(np.random.PCG64(seed)).standard_normal((x.shape[1], width))
        for _ in range(ITERATIONS):
            back, _ = np.linalg.qr(x.T @ np.linalg.qr(q)[0])
            q = x @ back
        found = np.linalg.svd((x.T @ np.linalg.qr(q)[0]).T, full_matrices=False)[2][:rank].T
    return np.pad(found, ((0, 0), (0, rank - found.shape[1])))
