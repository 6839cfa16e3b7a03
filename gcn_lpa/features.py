"""What is done to raw features before a model reads them, and what is learned of them for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

FEATURE_KINDS = ("raw", "row", "l2", "tfidf")
PAGERANK_STEPS, DAMPING = 50, 0.85


def structure_columns(matrix: scipy.sparse.csr_array, filled: np.ndarray, directed: bool) -> np.ndarray:
    """What the place of a node in the graph says about it, [n, 6], or [n, 9] of a directed graph.

    log degree (in and out where directed) with its mean over the neighbours and over their neighbours, log PageRank, and the
    log of the number of filled cells with its mean over the neighbours.

    Args:
        matrix: entry [i, j] brings j's message to i; self-loops are left out.
        filled: the number of cells of each node that are not zero, [n].
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
    cells = np.log1p(filled.astype(np.float64))
    return np.stack([*columns, cells, walk @ cells], axis=1)


def _row_normalized(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    return scipy.sparse.csr_array(scipy.sparse.diags_array(1 / np.maximum(sums, 1)) @ matrix)


def _pagerank(present: scipy.sparse.csr_array) -> np.ndarray:
    """Where a walk along the arcs is found in the long run, times n, [n]; it starts anew with probability 0.15."""
    n = present.shape[0]
    follows = _row_normalized(scipy.sparse.csr_array(present.T)).T.tocsr()  # column j: where a walk goes from j
    ends = np.asarray(present.sum(axis=0)).ravel() == 0
    rank = np.ones(n)
    for _ in range(PAGERANK_STEPS):
        rank = (1 - DAMPING) + DAMPING * (follows @ rank + rank[ends].sum() / n)
    return rank


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features raw, divided by their row sum, by their length, or as TF-IDF; `idf` is what TF-IDF learned of each column.

    Rows of zeros stay zero and sparse stays sparse. A row sum is one of absolute values. TF-IDF is scikit-learn's:
    x_id (1 + ln((1 + n) / (1 + n_d))), then rows of length 1.
    """

    kind: str
    idf: np.ndarray | None = None  # [d]
    structure: np.ndarray | None = None  # mean and standard deviation of each column about the graph, [2, s]

    @classmethod
    def learned(cls, kind: str, x: Any) -> Scaling:
        """The scaling of a kind for the columns of x, an array or sparse matrix."""
        if kind not in FEATURE_KINDS:
            raise ValueError(f"unknown features {kind!r}; there are {', '.join(FEATURE_KINDS)}")
        if kind != "tfidf":
            return cls(kind)
        _check_counts(x)
        present = np.asarray((x != 0).sum(axis=0)).ravel()
        return cls(kind, 1 + np.log((1 + x.shape[0]) / (1 + present)))

    def __call__(self, x: Any) -> Any:
        """x scaled, in float64: the square of 1e30 is beyond float32."""
        if self.kind == "raw":
            return x
        x = x.astype(np.float64)
        if self.idf is not None:
            _check_counts(x)
            x = x * self.idf[None, :]
        sizes = abs(x).sum(axis=1) if self.kind == "row" else np.sqrt((x * x).sum(axis=1))
        sizes = np.asarray(sizes).ravel()
        scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        return scipy.sparse.csr_array(x.multiply(scale[:, None])) if scipy.sparse.issparse(x) else x * scale[:, None]


def _check_counts(x: Any) -> None:
    if x.min() < 0:
        raise ValueError("tfidf needs features that are counts, but some are negative")
