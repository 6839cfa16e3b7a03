"""Weights that rebuild the features of a node from those of others, for Theorem 1."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
from torch import Tensor

from gcn_lpa.graph import Graph


def least_squares(graph: Graph, x: scipy.sparse.csr_array, nodes: Tensor, hops: int) -> list[np.ndarray]:
    """For each number of hops, the weights ≥ 0 of sum 1 on the labelled nodes within it that rebuild x_i best, [b, n] each."""
    matrix, known = graph.to_scipy(), graph.labeled.numpy()
    found = [np.zeros((len(nodes), graph.num_nodes)) for _ in range(hops)]
    for row, node in enumerate(nodes.tolist()):
        inside, weights = np.zeros(graph.num_nodes, dtype=bool), np.zeros(graph.num_nodes)
        inside[node] = True
        for k in range(hops):
            inside |= (matrix @ inside.astype(np.float32)) > 0
            others = np.flatnonzero(inside & known & (np.arange(len(inside)) != node))
            start = weights[others] if weights.any() else np.full(len(others), 1 / len(others))
            weights = np.zeros(graph.num_nodes)
            weights[others] = simplex_fit(x[others], x[[node]].toarray().ravel(), start)
            found[k][row] = weights
    return found


def locally_linear(graph: Graph, x: scipy.sparse.csr_array, nodes: Tensor, ridge: float = 1e-3) -> np.ndarray:
    """The weights of LLE, Roweis & Saul (2000): of sum 1 and any sign, on the labelled neighbours, [b, n].

    Args:
        ridge: of the trace, added to the diagonal where neighbours are more than features, or alike.
    """
    matrix, known = graph.to_scipy(), graph.labeled.numpy()
    found = np.zeros((len(nodes), graph.num_nodes))
    for row, node in enumerate(nodes.tolist()):
        others = np.setdiff1d(matrix[[node]].indices, [node])
        others = others[known[others]]
        steps = x[others].toarray() - x[[node]].toarray()
        gram = steps @ steps.T
        weights = np.linalg.solve(gram + ridge * max(np.trace(gram), 1e-12) * np.eye(len(others)), np.ones(len(others)))
        found[row, others] = weights / weights.sum()
    return found


def simplex_fit(rows: scipy.sparse.csr_array, target: np.ndarray, weights: np.ndarray, steps: int = 100) -> np.ndarray:
    """The weights ≥ 0 of sum 1 for which Σ w_j row_j is nearest to the target: Nesterov's gradient steps, the best one kept."""
    columns = rows.T.tocsr()
    vector = np.ones(len(weights)) / math.sqrt(len(weights))
    for _ in range(10):
        vector = rows @ (columns @ vector)
        vector /= max(np.linalg.norm(vector), 1e-300)
    length = 1.5 * float(np.linalg.norm(rows @ (columns @ vector))) + 1e-12  # above the largest eigenvalue
    best, least, ahead = weights, float(np.linalg.norm(columns @ weights - target)), weights
    for step in range(steps):
        moved = _onto_simplex(ahead - (rows @ (columns @ ahead - target)) / length)
        ahead = moved + step / (step + 3) * (moved - weights)
        weights, error = moved, float(np.linalg.norm(columns @ moved - target))
        if error < least:
            best, least = moved, error
    return best


def _onto_simplex(values: np.ndarray) -> np.ndarray:
    """The nearest weights ≥ 0 of sum 1."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0))
