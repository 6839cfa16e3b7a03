"""Edge types, such as "cites" and "same author": the edges of each type have a matrix of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.data.hints import some
from gcn_lpa.data.table import is_missing
from gcn_lpa.engine.remembered import unstacked
from gcn_lpa.engine.sparse import Pattern, SparseMatrix

DIRECTION = "direction"  # in place of a column: the two directions of arcs are the edge types
DIRECTIONS = ("along arcs", "against arcs")
MOST_EDGE_TYPES = 20  # each has hop weights of its own, and takes as many products as a whole graph


@dataclass(frozen=True, eq=False)
class EdgeTypes:
    """The edges of each type, [n, n] each. A pair that is joined in two ways is an edge of both types."""

    names: tuple[str, ...]
    matrices: tuple[SparseMatrix, ...]

    @classmethod
    def of(cls, types: Any, entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> EdgeTypes:
        """The edges [source, target] of each type, merged as in the adjacency; `types` names the type of each edge."""
        codes, names = type_codes(types, entries.nnz)
        source, target = entries.coords

        def edges_of(k: int) -> SparseMatrix:
            mask = codes == k
            edges = scipy.sparse.coo_array((entries.data[mask], (source[mask], target[mask])), shape=entries.shape)
            return SparseMatrix.from_scipy(float32_weights(merged_edges(edges, weighted=weighted, directed=directed)))

        return cls(names, tuple(map(edges_of, range(len(names)))))

    @classmethod
    def directions(cls, adjacency: SparseMatrix) -> EdgeTypes:
        """The arcs of a directed graph as two types: messages that go along them, and against them."""
        against = SparseMatrix.from_scipy(adjacency.to_scipy().T).to(adjacency.device)
        return cls(DIRECTIONS, (adjacency, against))

    @classmethod
    def without_edges(cls, names: Sequence[str], n: int) -> EdgeTypes:
        return cls(tuple(names), tuple(no_edges(n) for _ in names))

    @cached_property
    @unstacked()
    def smoothing(self) -> tuple[SparseMatrix, ...]:
        """D^-½ A D^-½ of each type."""
        return tuple(matrix.symmetric_normalized() for matrix in self.matrices)

    def each(self, change: Callable[[SparseMatrix], SparseMatrix]) -> EdgeTypes:
        return EdgeTypes(self.names, tuple(map(change, self.matrices)))

    def to(self, device: torch.device | str) -> EdgeTypes:
        return self.each(lambda matrix: matrix.to(device))

    def with_self_loops(self) -> EdgeTypes:
        """With a self-loop of weight 1 for every node and type that has none."""
        added = [loops_added(matrix) for matrix in self.matrices]
        return EdgeTypes(self.names, tuple(matrix for matrix, _ in added)) if any(n for _, n in added) else self

    def between(self, nodes: np.ndarray) -> EdgeTypes:
        """The edges between nodes, by their positions."""
        return self.each(lambda matrix: SparseMatrix.from_scipy(matrix.to_scipy()[nodes][:, nodes]).to(matrix.device))

    def within(self, pattern: Pattern) -> EdgeTypes:
        """The edges that are also entries of a pattern; of those against arcs, whose arcs are."""
        arrays = np.ones(pattern.num_entries, np.float32), pattern.col.cpu().numpy(), pattern.rows.rowptr.cpu().numpy()
        kept = scipy.sparse.csr_array(arrays, shape=pattern.shape)
        masks = (kept, kept.T.tocsr()) if self.names == DIRECTIONS else (kept,) * len(self.names)
        pairs = zip(self.matrices, masks, strict=True)
        matrices = (SparseMatrix.from_scipy(matrix.to_scipy() * mask).to(matrix.device) for matrix, mask in pairs)
        return EdgeTypes(self.names, tuple(matrices))

    def named(self, names: Sequence[str]) -> EdgeTypes:
        """The edge types that a model knows, in its order; one that it does not know is refused."""
        if tuple(names) == self.names:
            return self
        if unknown := [name for name in self.names if name not in names]:
            known = some(names, MOST_EDGE_TYPES)
            raise ValueError(
                f"edges are of the type {unknown[0]!r:.80}, which the model has not seen; it knows {known}"
            )
        matrices = dict(zip(self.names, self.matrices, strict=True))
        empty = no_edges(self.matrices[0].shape[0]).to(self.matrices[0].device)
        return EdgeTypes(tuple(names), tuple(matrices.get(name, empty) for name in names))


def no_edges(n: int) -> SparseMatrix:
    nothing = torch.zeros(0, dtype=torch.int64)
    return SparseMatrix(Pattern(torch.zeros(n + 1, dtype=torch.int64), nothing, (n, n)), torch.zeros(0))


def type_codes(types: Any, num_edges: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The type of each edge as a number, [E], and the names of the types, sorted."""
    values = types.tolist() if isinstance(types, np.ndarray) else list(types)
    if len(values) != num_edges:
        raise ValueError(f"there are {len(values):,} edge types for {num_edges:,} edges; every edge has one")
    texts = ["" if is_missing(value) else str(value).strip() for value in values]
    if "" in texts:
        raise ValueError(f"edge {texts.index('')} has no type; every edge has one")
    names = tuple(sorted(set(texts)))
    if len(names) > MOST_EDGE_TYPES:
        raise ValueError(
            f"edges are of {len(names):,} types, {some(names)}; at most {MOST_EDGE_TYPES} can have weights of their own"
        )
    position = {name: k for k, name in enumerate(names)}
    return np.array([position[text] for text in texts], dtype=np.int64), names


def merged_edges(entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> scipy.sparse.csr_array:
    """Entries [source, target] as an adjacency: duplicates summed, or all of weight 1, and both directions joined."""
    matrix = entries.T.tocsr() if directed else entries.tocsr()  # sums duplicates
    if not weighted:
        matrix.data[:] = 1
    return matrix if directed else matrix.maximum(matrix.T.tocsr())


def float32_weights(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    with np.errstate(over="ignore", under="ignore"):
        values = matrix.data.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(wrong):
        raise ValueError(f"weight {matrix.data[wrong[0]]} is beyond 32-bit floats; scale the weights")
    return scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def loops_added(matrix: SparseMatrix) -> tuple[SparseMatrix, int]:
    """The matrix with 1 on its diagonal where nothing is stored, and how often that is."""
    row, col = matrix.pattern.row, matrix.pattern.col
    has_loop = torch.zeros(matrix.shape[0], dtype=torch.bool, device=matrix.device)
    has_loop[row[row == col].long()] = True
    missing = (~has_loop).float().cpu().numpy()
    if not missing.any():
        return matrix, 0
    loops = scipy.sparse.diags_array(missing, dtype=np.float32, format="csr")
    loops.eliminate_zeros()
    return SparseMatrix.from_scipy(matrix.to_scipy() + loops).to(matrix.device), int(missing.sum())
