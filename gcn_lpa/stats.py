"""Means, paired differences, intervals and tests: the statistics that every comparison uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats has them too, and takes 0.6 s longer to import


@dataclass(frozen=True)
class Mean:
    """A mean and the half-width of its 95 % interval over splits; None where there is only one."""

    mean: float
    interval: float | None

    @property
    def is_noise(self) -> bool:
        """Of a difference: whether the interval holds 0; with one split nothing can be told."""
        return self.interval is None or abs(self.mean) <= self.interval

    def __str__(self) -> str:
        return _points(self)


@dataclass(frozen=True)
class Difference(Mean):
    """Accuracy of a method minus that of the reference, split by split."""

    p_value: float  # two-sided; Wilcoxon's signed-rank test, exact, unless another is named

    def __str__(self) -> str:
        return signed(self)


def signed(difference: Mean) -> str:
    """ "+4.1 ± 1.0", in points of accuracy."""
    return _points(difference, "+")


def _points(mean: Mean, sign: str = "") -> str:
    """Per cent, to a digit; -0.0 is 0.0."""
    spread = "" if mean.interval is None else f" ± {100 * mean.interval:.1f}"
    return f"{round(100 * mean.mean, 1) + 0.0:{sign}.1f}{spread}"


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

    That of a t test with `resampled_error`, but never less than √(q (1-q) / m) allows for m scored nodes: a few of them can
    agree in every split by luck.
    """
    k, mean = len(values), float(values.mean())
    over_splits = stdtrit(k - 1, 0.975) * resampled_error(values, test_to_train)
    q = (abs(mean) * num_scored + 1) / (num_scored + 2)  # off 0 and 1, where a handful of nodes would seem certain
    over_nodes = ndtri(0.975) * math.sqrt(q * (1 - q) / num_scored)
    return Mean(mean, float(max(over_splits, over_nodes)))


def resampled_error(values: np.ndarray, test_to_train: float) -> float:
    """s · √(1/k + test/train), Nadeau & Bengio (2003).

    1/k alone, as for independent samples, calls noise a finding far too often.
    """
    return float(values.std(ddof=1)) * math.sqrt(1 / len(values) + test_to_train)


def said_p(p_value: float) -> str:
    """Two digits of a p-value; "1" for a certainty of nothing."""
    if p_value < 0.001:
        return "< .001"
    return "1" if p_value > 0.995 else f"{p_value:.2g}".removeprefix("0")
