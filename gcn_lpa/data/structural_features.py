"""Structural features: what the edges of a node say about it, as columns beside its own."""

from __future__ import annotations

import numpy as np
import scipy.sparse

PAGERANK_STEPS, DAMPING = 50, 0.85


def num_structural(directed: bool, *, with_cells: bool) -> int:
    """How many columns `structural_features` gives."""
    return (7 if directed else 4) + 2 * with_cells


def structural_features(
    matrix: scipy.sparse.csr_array, directed: bool, num_cells: np.ndarray | None = None
) -> np.ndarray:
    """log degree (in and out where directed) with its mean over the neighbours and over their neighbours; log PageRank;
    and, with `num_cells`, the log of the number of filled cells with its mean over the neighbours, [n, s].

    Args:
        matrix: entry [i, j] brings j's message to i; self-loops are left out.
        num_cells: how many features of each node are not zero, [n].
    """
    matrix = scipy.sparse.csr_array(matrix)
    matrix = matrix - scipy.sparse.diags_array(matrix.diagonal())
    present = (matrix != 0).astype(np.float64).tocsr()
    around = present if not directed else (present + present.T != 0).astype(np.float64).tocsr()
    walk = _row_normalized(around)
    columns = []
    for side in [present, present.T] if directed else [present]:
        degree = np.log1p(np.asarray(side.sum(axis=1)).ravel())
        columns += [degree, walk @ degree, walk @ (walk @ degree)]
    columns.append(np.log(_pagerank(present)))
    if num_cells is not None:
        cells = np.log1p(num_cells.astype(np.float64))
        columns += [cells, walk @ cells]
    return np.stack(columns, axis=1)


def of_sinks(graph: np.ndarray, links: scipy.sparse.csr_array, num_cells: np.ndarray) -> np.ndarray:
    """The structural features of nodes that receive messages from nodes of an undirected graph and send none, [m, s].

    Each is what it would be if this node alone were attached, so it does not depend on the others.

    Args:
        graph: the structural features of the graph's nodes, with those of cells, [n, s].
        links: entry [i, j] where node i receives a message from j of the graph, [m, n].
        num_cells: how many features of each of the nodes are not zero, [m].
    """
    walk = _row_normalized((links != 0).astype(np.float64).tocsr())
    degree, near, _, rank, cells, _ = graph.T
    passed_on = np.exp(rank) / (np.expm1(degree) + 1)  # by a node that sends to one more
    num_links = np.diff(walk.indptr)
    ranks = (1 - DAMPING) + DAMPING * num_links * (walk @ passed_on)
    own = [np.log1p(num_links), walk @ degree, walk @ near, np.log(ranks), np.log1p(num_cells), walk @ cells]
    return np.stack(own, axis=1)


def _row_normalized(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    return scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.maximum(sums, 1)) @ matrix)


def _pagerank(present: scipy.sparse.csr_array) -> np.ndarray:
    """How often walks come by that start at every node alike and end with probability 0.15 at each step, [n].

    A walk also ends where no arc leads on. The usual PageRank lets it go on from any node, which multiplies all ranks by one
    number that depends on the whole graph: a new node without edges would change every row.
    """
    follows = _row_normalized(scipy.sparse.csr_array(present.T)).T.tocsr()  # column j: where a walk goes from j
    rank = np.ones(present.shape[0])
    for _ in range(PAGERANK_STEPS):
        rank = (1 - DAMPING) + DAMPING * (follows @ rank)
    return rank
