"""Means, paired differences, intervals and tests: the statistics that every comparison uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, ndtri, stdtr, stdtrit  # scipy.stats has them too, and takes 0.6 s longer to import


@dataclass(frozen=True)
class Mean:
    """A mean and the half-width of its 95 % t interval over splits; None where there is only one."""

    mean: float
    interval: float | None

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" ± {100 * self.interval:.1f}"
        return f"{_points(self.mean):.1f}{spread}"


@dataclass(frozen=True)
class Difference:
    """Accuracy of a method minus that of the reference, split by split."""

    mean: float
    interval: float | None
    p_value: float  # two-sided; Wilcoxon's signed-rank test, exact, where nothing else is said

    @property
    def is_noise(self) -> bool:
        """Whether the 95 % interval holds 0; with one split nothing can be told."""
        return self.interval is None or abs(self.mean) <= self.interval

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" ± {100 * self.interval:.1f}"
        return f"{_points(self.mean):+.1f}{spread}"


def _points(share: float) -> float:
    """Per cent, to a digit, and 0 without a sign."""
    return round(100 * share, 1) + 0.0


def mean_of(values: np.ndarray) -> Mean:
    """The mean and its 95 % t interval: t_{.975, k-1} · s / √k."""
    k = len(values)
    if k < 2:
        return Mean(float(values.mean()), None)
    return Mean(float(values.mean()), float(stdtrit(k - 1, 0.975) * values.std(ddof=1) / math.sqrt(k)))


def signed_rank_test(differences: np.ndarray) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test, exact with ties; differences of zero are left out.

    Under the null hypothesis each sign is a coin, so the sums of the positive ranks are counted over all 2^k signs.
    """
    moved = np.round(differences, 12)  # equal differences of accuracies are equal but for rounding
    moved = moved[moved != 0]
    _, place, count = np.unique(abs(moved), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[place]  # twice the rank: the mean of a tie's places can end in ½
    ways = np.ones(1)
    for rank in ranks:
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    positive = int(ranks[moved > 0].sum())
    share = ways / ways.sum()
    return float(min(1.0, 2 * min(share[: positive + 1].sum(), share[positive:].sum())))


def resampled_mean(values: np.ndarray, test_to_train: float, num_scored: int) -> Mean:
    """The mean of a rate or of a difference of rates, and its 95 % interval over splits whose training sets overlap.

    That of `resampled_difference`, but never less than √(q (1-q) / m) allows for m scored nodes: a few of them can agree in
    every split by luck.
    """
    k, mean = len(values), float(values.mean())
    over_splits = stdtrit(k - 1, 0.975) * _resampled_error(values, test_to_train)
    q = (abs(mean) * num_scored + 1) / (num_scored + 2)  # off 0 and 1, where a handful of nodes would seem certain
    over_nodes = ndtri(0.975) * math.sqrt(q * (1 - q) / num_scored)
    return Mean(mean, float(max(over_splits, over_nodes)))


def resampled_difference(values: np.ndarray, test_to_train: float) -> Difference:
    """The mean of differences over splits whose training sets overlap, its 95 % interval and the p-value of the same t test.

    With `test_to_train` = 0, of independent samples, it is the usual t test.
    """
    k, mean = len(values), float(values.mean())
    if k < 2:
        return Difference(mean, None, 1.0)
    error = _resampled_error(values, test_to_train)
    p_value = 2 * stdtr(k - 1, -abs(mean) / error) if error > 0 else float(mean == 0)
    return Difference(mean, float(stdtrit(k - 1, 0.975) * error), float(p_value))


def _resampled_error(values: np.ndarray, test_to_train: float) -> float:
    """s · √(1/k + test/train), Nadeau & Bengio (2003).

    1/k alone, as for independent samples, calls noise a finding far too often.
    """
    return float(values.std(ddof=1)) * math.sqrt(1 / len(values) + test_to_train)


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


def said_p(p_value: float) -> str:
    """Two digits of a p-value; "1" for a certainty of nothing."""
    if p_value < 0.001:
        return "< .001"
    return "1" if p_value > 0.995 else f"{p_value:.2g}".removeprefix("0")


def signed(difference: Mean) -> str:
    """ "+4.1 ± 1.0", in points of accuracy."""
    return f"{'+' if difference.mean >= 0 else ''}{difference}"


def is_noise(mean: Mean) -> bool:
    return mean.interval is None or abs(mean.mean) <= mean.interval
