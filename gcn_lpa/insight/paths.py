"""The strongest walks between nodes, rankings whose ties are broken alike on every machine, and values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix

EQUAL = 12  # decimals up to which two shares are the same


def strongest_paths(
    transition: SparseMatrix, labeled: Tensor, node: int, hops: int, voters: list[int]
) -> list[tuple[list[int], tuple[float, ...]]]:
    """The most probable walk of at most `hops` steps from `node` to each voter that meets no labelled node before it, and the
    weight of each of its steps. Of equals the shortest, then the one that comes through the smaller nodes.

    Found for all voters at once in O(hops · E): the best walk of j steps to v is a best one of j - 1, and one step on.
    """
    enter = transition.T.pattern.rows  # row v: the nodes u from which v is entered
    starts, source = enter.arrays
    target, weight, is_end = enter.row.numpy(), transition.transposed_values.numpy(), labeled.numpy()
    filled, n = np.diff(starts) > 0, len(is_end)
    at, best, length = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    at[node] = 1
    came_by = []  # for each number of steps, the last step of the best walk to v
    for steps in range(1, hops + 1):
        reach = at[source] * weight
        at = np.zeros(n)
        if len(reach):
            at[filled] = np.maximum.reduceat(reach, starts[:-1][filled])
        hits = np.flatnonzero((reach == at[target]) & (reach > 0))[::-1]
        last = np.full(n, -1)
        last[target[hits]] = hits  # the first of equals is written last
        came_by.append(last)
        better = is_end & (at > best * (1 + 10.0**-EQUAL))
        best[better], length[better] = at[better], steps
        at[is_end] = 0
    paths = []
    for voter in voters:
        nodes, weights = [voter], []
        for last in reversed(came_by[: length[voter]]):
            entry = last[nodes[-1]]
            nodes.append(int(source[entry]))
            weights.append(float(weight[entry]))
        paths.append((nodes[::-1], tuple(weights[::-1])))
    return paths


def part_of(matrix: SparseMatrix, kept: Tensor) -> SparseMatrix:
    """The matrix with only those entries stored that are kept."""
    coo = matrix.to_scipy().tocoo()
    keep = kept.numpy()
    return SparseMatrix.from_coo(coo.row[keep], coo.col[keep], coo.data[keep], matrix.shape)


def winners(scores: Tensor) -> np.ndarray:
    """The class with the highest score in each row, the first of equals, -1 where all are 0, [r]."""
    rounded = scores.numpy().round(EQUAL)
    first: np.ndarray = np.where(rounded.max(axis=1, initial=0) > 0, rounded.argmax(axis=1), -1)
    return first


def is_highest(scores: Tensor, classes: np.ndarray) -> np.ndarray:
    """Whether no class scores higher than the one of `classes`, for each row, bool [r]."""
    rounded = scores.numpy().round(EQUAL)
    highest: np.ndarray = rounded[np.arange(len(classes)), classes] == rounded.max(axis=1, initial=0)
    return highest


def winner(scores: Tensor) -> int:
    return int(winners(scores.unsqueeze(0))[0])


def ranked(shares: np.ndarray) -> np.ndarray:
    """The nodes with a share, the largest first, equals by their number."""
    some = np.flatnonzero(shares > 0)
    order: np.ndarray = some[np.lexsort((some, -shares[some].round(EQUAL)))]
    return order


def rounded(value: float, digits: int = 10) -> float:
    return float(f"{value:.{digits}g}")


def plain(value: Any) -> Any:
    """For JSON, see `Explanation.to_dict`."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return rounded(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
