"""Kinds of edges, such as "cites" and "same author": each has a matrix of its own, as the adjacency is one of all edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.engine.remembered import unstacked
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.intake import float32_weights, is_missing, some

DIRECTION = "direction"  # in place of a column: the two directions of arcs are the kinds
DIRECTIONS = ("along arcs", "against arcs")
MOST_KINDS = 20  # each has hop weights of its own, and takes as many products as a whole graph


@dataclass(frozen=True, eq=False)
class Relations:
    """The edges of each kind, [n, n] each. A pair that is joined in two ways is an edge of both kinds."""

    names: tuple[str, ...]
    matrices: tuple[SparseMatrix, ...]

    @classmethod
    def of(cls, kinds: Any, entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> Relations:
        """The edges [source, target] of each kind, merged as all of them are; `kinds` has the name of each edge's."""
        codes, names = kind_codes(kinds, entries.nnz)
        source, target = entries.coords

        def edges_of(k: int) -> SparseMatrix:
            at = codes == k
            own = scipy.sparse.coo_array((entries.data[at], (source[at], target[at])), shape=entries.shape)
            return SparseMatrix.from_scipy(float32_weights(merged_edges(own, weighted=weighted, directed=directed)))

        return cls(names, tuple(map(edges_of, range(len(names)))))

    @classmethod
    def directions(cls, adjacency: SparseMatrix) -> Relations:
        """The arcs of a directed graph as two kinds: messages that go along them, and against them."""
        against = SparseMatrix.from_scipy(adjacency.to_scipy().T).to(adjacency.device)
        return cls(DIRECTIONS, (adjacency, against))

    @classmethod
    def without_edges(cls, names: Sequence[str], n: int) -> Relations:
        return cls(tuple(names), tuple(no_edges(n) for _ in names))

    @cached_property
    @unstacked()
    def smoothing(self) -> tuple[SparseMatrix, ...]:
        """D^-½ A D^-½ of each kind."""
        return tuple(matrix.symmetric_normalized() for matrix in self.matrices)

    def each(self, change: Callable[[SparseMatrix], SparseMatrix]) -> Relations:
        return Relations(self.names, tuple(map(change, self.matrices)))

    def to(self, device: torch.device | str) -> Relations:
        return self.each(lambda matrix: matrix.to(device))

    def with_self_loops(self) -> Relations:
        """With a self-loop of weight 1 for every node and kind that has none."""
        added = [loops_added(matrix) for matrix in self.matrices]
        return Relations(self.names, tuple(matrix for matrix, _ in added)) if any(n for _, n in added) else self

    def between(self, nodes: np.ndarray) -> Relations:
        """The edges between some nodes, by their positions."""
        return self.each(lambda matrix: SparseMatrix.from_scipy(matrix.to_scipy()[nodes][:, nodes]).to(matrix.device))

    def within(self, pattern: Pattern) -> Relations:
        """The edges that are also entries of a pattern; of those against arcs, whose arcs are."""
        arrays = np.ones(pattern.num_entries, np.float32), pattern.col.cpu().numpy(), pattern.rows.rowptr.cpu().numpy()
        kept = scipy.sparse.csr_array(arrays, shape=pattern.shape)
        masks = (kept, kept.T.tocsr()) if self.names == DIRECTIONS else (kept,) * len(self.names)
        both = zip(self.matrices, masks, strict=True)
        found = (SparseMatrix.from_scipy(matrix.to_scipy() * mask).to(matrix.device) for matrix, mask in both)
        return Relations(self.names, tuple(found))

    def named(self, names: Sequence[str]) -> Relations:
        """Those of the kinds that a model knows, in its order; a kind that it does not know is refused."""
        if tuple(names) == self.names:
            return self
        if unknown := [name for name in self.names if name not in names]:
            raise ValueError(
                f"edges are of the kind {unknown[0]!r:.80}, which the model has not seen; it knows {some(names, MOST_KINDS)}"
            )
        found, n = dict(zip(self.names, self.matrices, strict=True)), self.matrices[0].shape[0]
        device = self.matrices[0].device
        return Relations(tuple(names), tuple(found.get(name, no_edges(n).to(device)) for name in names))


def no_edges(n: int) -> SparseMatrix:
    nothing = torch.zeros(0, dtype=torch.int64)
    return SparseMatrix(Pattern(torch.zeros(n + 1, dtype=torch.int64), nothing, (n, n)), torch.zeros(0))


def kind_codes(kinds: Any, num_edges: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The kind of each edge as a number, [E], and the names of the kinds, sorted."""
    values = kinds.tolist() if isinstance(kinds, np.ndarray) else list(kinds)
    if len(values) != num_edges:
        raise ValueError(f"there are {len(values):,} kinds for {num_edges:,} edges; every edge has one")
    texts = ["" if is_missing(value) else str(value).strip() for value in values]
    if "" in texts:
        raise ValueError(f"edge {texts.index('')} has no kind; every edge has one")
    names = tuple(sorted(set(texts)))
    if len(names) > MOST_KINDS:
        raise ValueError(
            f"edges are of {len(names):,} kinds, {some(names)}; at most {MOST_KINDS} can have weights of their own"
        )
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.int64), names


def merged_edges(entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> scipy.sparse.csr_array:
    """Entries [source, target] as an adjacency: duplicates summed, or all of weight 1, and both directions joined."""
    matrix = entries.T.tocsr() if directed else entries.tocsr()  # sums duplicates
    if not weighted:
        matrix.data[:] = 1
    return matrix if directed else matrix.maximum(matrix.T.tocsr())


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
