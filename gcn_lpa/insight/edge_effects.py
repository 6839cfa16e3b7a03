"""What the columns of edges say about how much an edge weighs, for people: a row for each value, and a sentence for each column.

The weight of an edge is the product of what its columns say. Of a number or a date it is given beside that of the median, of a
category or a missing cell beside that of the average edge. Intervals are those of the jackknife over the folds, on logs: each fold
learned without a part of the labels.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from gcn_lpa.data.column_types import EPOCH
from gcn_lpa.data.edge_columns import ASIDE, EdgeFunction, EdgeWeights
from gcn_lpa.data.encoders import DateColumn

MISSING = "(missing)"
ALIKE = ": all alike"  # of a column that does not tell edges apart
MANY_DIGITS = 1e12  # numbers from here on are written with an exponent
MOST_NAMES = 8  # of columns in one sentence
PLAINLY = 1.1  # times: what weighs less differently than that is said to be alike


@dataclass(frozen=True)
class EdgeEffect:
    """How much an edge weighs where a column has a value, all else alike."""

    column: str
    value: str  # of numbers and dates a knot, between which weights change in straight lines on a log scale
    weight: float  # times that of the median, or of the average edge; 0 where its edges are left out
    low: float | None  # 95 % interval; None without folds
    high: float | None
    share: float  # of the listed edges: those nearest to a knot, those of a value


def edge_effects(weights: EdgeWeights) -> list[EdgeEffect]:
    """A row for each knot or value of each column."""
    folds, start, rows = np.array(weights.folds), 0, []
    for function in weights.functions.each:
        here, start = folds[:, start : start + function.width], start + function.width
        number = len(function.knots)
        if number:  # beside the knot at which half of the edges are
            shares = np.cumsum(function.shares[:number])
            here[:, :number] -= here[:, [int(np.searchsorted(shares, shares[-1] / 2))]]
        logs, half = here.mean(axis=0), _half_widths(here)
        values = [*map(_written(function), function.knots or function.values)]
        values += [MISSING] * bool(function.reader.missing)
        for k, value in enumerate(values):
            low, high = (None, None) if half is None else (_times(logs[k] - half[k]), _times(logs[k] + half[k]))
            share = float(f"{function.shares[k]:.4g}")
            rows.append(EdgeEffect(function.name, value, _times(logs[k]), low, high, share))
    return rows


def _times(log: float) -> float:
    return 0.0 if log <= ASIDE / 2 else float(f"{math.exp(log):.4g}")


def _half_widths(logs: np.ndarray) -> np.ndarray | None:
    """Half of the 95 % interval of each mean, by the jackknife: folds share most of their labels."""
    k = len(logs)
    if k < 2:
        return None
    spread = np.sqrt((k - 1) / k * ((logs - logs.mean(axis=0)) ** 2).sum(axis=0))
    return np.asarray(stdtrit(k - 1, 0.975) * spread)


def _written(function: EdgeFunction) -> Any:
    """How a knot or a value is written."""
    if not function.knots:
        return str
    if isinstance(function.reader, DateColumn):
        return lambda days: (EPOCH + datetime.timedelta(days=days)).date().isoformat()
    return lambda value: f"{value:,.0f}" if 10_000 <= abs(value) < MANY_DIGITS else f"{value:,.4g}"


def effect_sentences(weights: EdgeWeights) -> list[str]:
    """A sentence for each column, the one that tells edges apart most first; and one on whether it is used."""
    rows, said = edge_effects(weights), list[tuple[float, str]]()
    for function in weights.functions.each:
        own = [row for row in rows if row.column == function.name]
        spread = math.sqrt(sum(row.share * math.log(row.weight or math.exp(ASIDE)) ** 2 for row in own))
        said.append((spread, _sentence(function, own)))
    columns = [sentence for _, sentence in sorted(said, key=lambda pair: -pair[0])]
    return [verdict(weights), *columns] if weights.is_used else [verdict(weights)]


def verdict(weights: EdgeWeights) -> str:
    """Whether held-out labels support what was learned."""
    every = weights.functions.names
    names = ", ".join(every if len(every) <= MOST_NAMES else (*every[:MOST_NAMES], f"{len(every) - MOST_NAMES} more"))
    gain = f"{weights.gain:+.3f} ± {1.96 * weights.error:.3f}"
    measured = f"log-likelihood of a held-out label {gain} against the given edges"
    if weights.is_used:
        return f"edges weigh what their columns say ({names}): {measured}"
    return f"edges weigh what is given: held-out labels do not support weights by {names}; {measured}"


def _sentence(function: EdgeFunction, rows: Sequence[EdgeEffect]) -> str:
    points = [row for row in rows if row.value != MISSING]
    ends = [points[-1], points[0]] if function.knots else sorted(points, key=lambda row: -row.weight)
    ends = [*(ends if len(ends) <= 4 else [*ends[:3], ends[-1]]), *(row for row in rows if row.value == MISSING)]
    ends = [row for row in ends if row.weight >= PLAINLY or row.weight <= 1 / PLAINLY]
    if not ends:
        return f"{function.name}{ALIKE}"
    is_date = isinstance(function.reader, DateColumn)
    words = ("from {} on", "until {}") if is_date else ("{} and more", "{} and less")
    beside = "the median" if function.knots else "an average edge"
    parts = []
    for k, row in enumerate(ends):
        name = row.value
        if function.knots and row.value != MISSING:
            name = words[0 if row is points[-1] else 1].format(row.value)
        interval = "" if row.low is None else f" ({row.low:.2g} to {row.high:.2g})"
        if not row.weight:
            parts.append(f"{name} left out")
            continue
        beside_it = "an average edge" if row.value == MISSING and function.knots else beside
        beside_it = beside_it if k == 0 or beside_it != beside else ""
        parts.append(f"{name} {row.weight:.2g} × {beside_it}".rstrip() + interval)
    return f"{function.name}: {', '.join(parts)}"
