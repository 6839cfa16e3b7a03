"""Tests of the claims: paired differences, rates and spreads, and what many of them together may say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import bdtr, ndtri, stdtr, stdtrit

from gcn_lpa.stats import Difference, resampled_error


def resampled_difference(values: np.ndarray, test_to_train: float) -> Difference:
    """The mean of differences over splits whose training sets overlap, its 95 % interval and the p-value of the same t test.

    With `test_to_train` = 0, of independent samples, it is the usual t test.
    """
    k, mean = len(values), float(values.mean())
    if k < 2:
        return Difference(mean, None, 1.0)
    error = resampled_error(values, test_to_train)
    p_value = 2 * stdtr(k - 1, -abs(mean) / error) if error > 0 else float(mean == 0)
    return Difference(mean, float(stdtrit(k - 1, 0.975) * error), float(p_value))


def paired_rates(one: np.ndarray, other: np.ndarray) -> Difference:
    """The rate of `one` minus that of `other`, two outcomes of the same cases, [k] booleans each.

    The interval is that of Agresti & Min (2005): half a case is added to each kind of pair, so that no event in k cases is not
    taken for certainty. The p-value is that of McNemar's exact test.
    """
    k, more, less = len(one), int((one & ~other).sum()), int((other & ~one).sum())
    spread = more + less + 1 - (more - less) ** 2 / (k + 2)
    p_value = min(1.0, 2 * float(bdtr(min(more, less), more + less, 0.5))) if more + less else 1.0
    return Difference((more - less) / k, float(ndtri(0.975)) * math.sqrt(spread) / (k + 2), p_value)


def paired_spreads(one: np.ndarray, other: np.ndarray) -> Difference:
    """log of the standard deviation of `one` over that of `other`, two paired samples, by Pitman and Morgan (1939).

    Spreads are equal where sum and difference are uncorrelated; an F test would take the samples for independent.
    """
    k = len(one)
    if k < 3:
        return Difference(0.0, None, 1.0)
    shared = np.corrcoef(one, other)[0, 1] ** 2
    t = stdtrit(k - 2, 0.975)
    width = math.acosh(1 + 2 * (1 - shared) * t**2 / (k - 2)) / 2
    r = np.corrcoef(one + other, one - other)[0, 1]
    p_value = 2 * stdtr(k - 2, -abs(r) * math.sqrt((k - 2) / (1 - r**2)))
    return Difference(math.log(one.std(ddof=1) / other.std(ddof=1)), width, float(p_value))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values as Holm (1979) adjusts them: at most one in twenty families has a false finding among those below .05."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
