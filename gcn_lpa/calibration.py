"""Calibrated probabilities, and sets of labels that hold the true one as often as promised.

A temperature T divides the logits, softmax(z / T), and a logistic curve then corrects the probability of the likeliest class;
neither changes a prediction, only how sure it is. Both are fitted to held-out labels. A reliability diagram and its expected
calibration error (ECE) compare confidence with accuracy, beside what chance alone would show.

Numbers have intervals instead, of the same kind: see `regression.Intervals`.

Split-conformal sets (Vovk et al. 2005; on graphs, Huang et al. 2023): score how odd each label is for its node, on nodes whose
labels chose nothing, and take in every label that is no odder than all but a share 1 - level of them. The set then holds the true
label of a further node with probability at least `level`, whatever the model, if those nodes and the further ones were drawn
alike. Sets are made from uncalibrated probabilities, so that the nodes which fit the temperature may be the same.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.metrics import rarest

BINS = 15
FEWEST = 30  # nodes that three numbers are fitted to; fewer can leave probabilities worse than they were
COLDEST, HOTTEST = 0.01, 100.0
WIDEST = 1e6  # of what a calibrator may be given: far beyond what is fitted, and no quotient overflows
PULL = 30.0  # nodes that the pull to a curve that changes nothing weighs as much as: few labels would often bend it wrongly
FOLDS = 5  # of held-out nodes, each calibrated as the others ask for
USUAL_LEVEL = 0.9  # how often an interval holds the number
TINY = 1e-12  # the least probability of a label that counts
HALVINGS = 60  # of an interval of 1/T: more would not change a bit
NEWTON_STEPS, CLOSE = 30, 1e-10  # at most, and how short the last one is


def fit_temperature(logits: Tensor, y: Tensor) -> float:
    """The T that makes the labels likeliest: in β = 1/T, the minimum of Σ_i -log softmax(β z_i)[y_i] + ½ (β - 1)².

    The sum is convex; the last term weighs as little as one node, and gives one answer where a few nodes that are all
    right would ask for T = 0. T stays within 0.01 and 100. Without nodes it is 1.

    Args:
        logits: or log-probabilities, finite, [m, c].
        y: the classes, [m].
    """
    z = logits.double()
    if not torch.isfinite(z).all():
        raise ValueError("a temperature needs logits that are finite numbers")
    truth = z.gather(1, y.unsqueeze(1)).sum()

    def slope(beta: float) -> float:
        expected = (F.softmax(beta * z, dim=1) * z).sum()
        return float(expected - truth) + beta - 1

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1 / math.sqrt(low * high)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z / T) in float64, [m, c]; log-probabilities will do for z."""
    return F.softmax(logits.double() / temperature, dim=1)


class Guesses(NamedTuple):
    """How sure the likeliest class of each node was, and whether it was right."""

    confidence: Tensor  # [m]
    correct: Tensor  # bool [m]


def guesses_of(probabilities: Tensor, y: Tensor) -> Guesses:
    """The guesses that probabilities make, [m, c], beside the labels, [m]."""
    confidence, guess = probabilities.double().max(dim=1)
    return Guesses(confidence, guess == y)


def fit_curve(guesses: Guesses, pull: float = PULL) -> tuple[float, float]:
    """The a and b of σ(a · logit(confidence) + b) that make right and wrong likeliest (Platt 1999).

    Logistic regression, convex, by Newton's method; ½ pull ((a - 1)² + b²) leaves the confidence as it is where
    few nodes ask for anything else.
    """
    x, target = _logit(guesses.confidence), guesses.correct.double()
    x = torch.stack([x, torch.ones_like(x)], dim=1)
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    curve = start

    def cost(curve: Tensor) -> float:
        return float(
            F.binary_cross_entropy_with_logits(x @ curve, target, reduction="sum") + pull * (curve - start) @ (curve - start) / 2
        )

    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(x @ curve)
        gradient = x.T @ (p - target) + pull * (curve - start)
        hessian = (x * (p * (1 - p)).unsqueeze(1)).T @ x + pull * torch.eye(2, dtype=torch.float64)
        step, length = torch.linalg.solve(hessian, gradient), 1.0
        while length > 1e-6 and cost(curve - length * step) > cost(curve):
            length /= 2
        curve = curve - length * step
        if float(step.abs().max()) < CLOSE:
            break
    return float(curve[0]), float(curve[1])


def _logit(confidence: Tensor) -> Tensor:
    return torch.logit(confidence.double(), eps=1e-9)


@dataclass(frozen=True)
class Calibrator:
    """From the probabilities of a model to calibrated ones: a temperature, then a curve for the likeliest class."""

    temperature: float = 1.0
    slope: float = 1.0
    intercept: float = 0.0
    positive: int | None = None  # a rare class of two, whose probability the curve corrects; None: the likeliest

    def __post_init__(self) -> None:
        if self.positive not in (None, 0, 1):
            raise ValueError(f"positive = {self.positive}; it is one of two classes, 0 or 1")
        if not 1 / WIDEST <= self.temperature <= WIDEST:
            raise ValueError(f"temperature = {self.temperature}; it is above 0, from {1 / WIDEST:g} to {WIDEST:g}")

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Calibrated probabilities in float64, [n, c]; the order of the classes of a node stays.

        Where the likeliest class becomes more likely, the others share what is left in proportion; where it becomes
        less likely, all move towards 1 / c.
        """
        if self == Calibrator():
            return probabilities.double()
        if self.positive is not None:
            return self._of_rare(probabilities.double())
        p = apply_temperature(_log(probabilities), self.temperature)
        first, least = probabilities.argmax(dim=1, keepdim=True), 1 / p.shape[1]
        top = p.gather(1, first)
        lowest = least + 0.01 * (top - least)  # at 1 / c itself the order of the classes would be lost
        wanted = torch.sigmoid(self.slope * _logit(top) + self.intercept).maximum(lowest)
        shrunk = least + (p - least) * ((wanted - least) / (top - least).clamp_min(1e-12))
        others = p * ((1 - wanted) / (1 - top).clamp_min(1e-12))
        grown = others.scatter(1, first, wanted)
        calibrated = torch.where(wanted < top, shrunk, grown)
        return calibrated / calibrated.sum(dim=1, keepdim=True)

    def _of_rare(self, probabilities: Tensor) -> Tensor:
        """The curve of a rare class, [n, 2]; a probability stays on its side of one half, where the prediction would change."""
        raw = probabilities[:, self.positive]
        p = torch.sigmoid(self.slope * _logit(raw) + self.intercept)
        edge = 0.5 + 0.01 * (raw - 0.5)  # at one half itself the order of nodes would be lost
        p = torch.where(raw > 0.5, p.maximum(edge), p.minimum(edge))
        return torch.stack([p, 1 - p] if self.positive == 0 else [1 - p, p], dim=1)


@dataclass(frozen=True)
class Calibration:
    """How the probabilities of a model are corrected, and by which labels: "reserved", "validation" or "cross-validation"
    nodes, and how many of them. Nodes that no given label reaches may have a calibrator of their own.
    """

    calibrator: Calibrator
    protocol: str
    num_nodes: int
    unreachable: Calibrator | None = None  # of these nodes; None: as the others
    num_unreachable: int = 0  # of the held-out nodes

    def __str__(self) -> str:
        if not self.changes:
            return "probabilities are the model's own"
        is_plain = self.calibrator == Calibrator()
        on = "the model's own" if is_plain else f"calibrated on {self.num_nodes:,} held-out labels"
        apart = "" if self.unreachable in (None, Calibrator()) else f"; of nodes that no label reaches, {self.apart}"
        return f"probabilities are {on}{apart}"

    @property
    def apart(self) -> str:
        """What calibrates nodes that no label reaches, where they are calibrated apart."""
        if self.num_unreachable >= FEWEST:
            return f"calibrated on {self.num_unreachable:,} of their own"
        return "calibrated on held-out nodes that were predicted without their edges"

    @property
    def changes(self) -> bool:
        """Whether any probability is corrected."""
        return self.calibrator != Calibrator() or self.unreachable not in (None, Calibrator())

    def __call__(self, probabilities: Tensor, unreachable: Tensor | None = None) -> Tensor:
        """Calibrated probabilities, [n, c]; `unreachable`: the nodes that no given label reaches, a mask [n]."""
        calibrated = self.calibrator(probabilities)
        if self.unreachable is None or unreachable is None:
            return calibrated
        return torch.where(unreachable.unsqueeze(1), self.unreachable(probabilities), calibrated)

    @classmethod
    def fitted(
        cls,
        probabilities: Tensor,
        y: Tensor,
        protocol: str,
        fold: Tensor | None = None,
        unreachable: Tensor | None = None,
    ) -> Calibration:
        """The calibration that held-out labels ask for.

        Args:
            probabilities, y: of held-out nodes, [m, c] and [m].
            fold: of each, [m], as intervals want it.
            unreachable: the nodes that no label reached when they were predicted, [m].
        """
        apart = torch.zeros_like(y, dtype=torch.bool) if unreachable is None else unreachable
        number = int(apart.sum())
        if number < FEWEST or len(y) - number < FEWEST:
            apart = torch.zeros_like(apart)
        own = fit_calibrator(probabilities[apart], y[apart]) if apart.any() else None
        return cls(fit_calibrator(probabilities[~apart], y[~apart]), protocol, len(y), own, number)

    def with_cut_off(self, probabilities: Tensor, y: Tensor) -> Calibration:
        """The same, with a calibrator for nodes that no label reaches by held-out nodes that were predicted without their edges,
        [m, c] and [m].
        """
        return dataclasses.replace(self, unreachable=fit_calibrator(probabilities, y)) if len(y) >= FEWEST else self


def fit_calibrator(probabilities: Tensor, y: Tensor, *, fewest: int = FEWEST) -> Calibrator:
    """Fit both to held-out labels, [m, c] and [m]. With fewer than `fewest` of them nothing is changed.

    Of two classes of which one is rare, the curve is that of the rare one: a curve of the likeliest would follow the many nodes
    that are surely of the other, and say little of those that matter.
    """
    if len(y) < fewest or probabilities.shape[1] < 2:
        return Calibrator()
    if (rare := rarest(y, probabilities.shape[1])) is not None:
        slope, intercept = fit_curve(Guesses(probabilities.double()[:, rare], y == rare), pull=1.0)  # few are of it
        return Calibrator(1.0, slope, intercept, rare) if slope > 0 else Calibrator()  # the order of nodes stays
    temperature = fit_temperature(_log(probabilities), y)
    slope, intercept = fit_curve(guesses_of(apply_temperature(_log(probabilities), temperature), y))
    return Calibrator(temperature, slope, intercept)


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(1e-300).log()


@dataclass(frozen=True)
class Reliability:
    """In equally wide bins of confidence the mean confidence, the accuracy (both 0 in an empty bin), the number of nodes."""

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def ece(self) -> float:
        """The expected calibration error: |accuracy - confidence| of a bin, averaged over nodes."""
        gaps = (abs(a - c) * n for c, a, n in zip(self.confidence, self.accuracy, self.count, strict=True))
        return sum(gaps) / max(1, sum(self.count))


def reliability(guesses: Guesses, bins: int = BINS) -> Reliability:
    """Bin k of K holds the confidences in (k/K, (k+1)/K]; 0 is in the first."""
    bin_of = _bins(guesses.confidence, bins)
    count = torch.bincount(bin_of, minlength=bins)
    filled = count.clamp_min(1)
    confidence = torch.bincount(bin_of, guesses.confidence, minlength=bins) / filled
    accuracy = torch.bincount(bin_of, guesses.correct.double(), minlength=bins) / filled
    return Reliability(tuple(confidence.tolist()), tuple(accuracy.tolist()), tuple(count.tolist()))


class PerfectECE(NamedTuple):
    """The ECE by chance alone: its mean, and the value that 95 % of the draws do not pass."""

    mean: float
    high: float


def perfect_ece(confidence: Tensor, draws: int = 200, seed: int = 0) -> PerfectECE:
    """What the ECE of a perfectly calibrated model with these confidences would be: each node is right with just that
    probability, drawn again and again. It is not 0, since a bin of few nodes is never quite right.

    Args:
        confidence: the probability of the likeliest class, [m].
    """
    bin_of, generator = _bins(confidence, BINS), np.random.Generator(np.random.PCG64(seed))
    chance = confidence.double().numpy()
    errors = []
    for _ in range(draws):
        missing = torch.from_numpy((generator.random(len(chance)) < chance) - chance)
        errors.append(float(torch.bincount(bin_of, missing, minlength=BINS).abs().sum()) / max(1, len(chance)))
    return PerfectECE(float(np.mean(errors)), float(np.quantile(errors, 0.95)))


def _bins(confidence: Tensor, bins: int) -> Tensor:
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    return torch.bucketize(confidence.double(), edges)


def nonconformity(probabilities: Tensor) -> Tensor:
    """How odd each class is for each node, 1 - p, [m, c]: least ambiguous sets, the smallest on average (Sadinle et al. 2019).

    The likeliest class is not odd at all: it has the score 0 before and after the threshold is chosen, so that it is in every
    set and the promise stays exact.
    """
    p = probabilities.double()
    return (1 - p).scatter(1, p.argmax(dim=1, keepdim=True), 0.0)


def conformal_threshold(probabilities: Tensor, y: Tensor, level: float = 0.9) -> float:
    """The ⌈(m + 1) · level⌉-th smallest score of the true labels of the calibration nodes.

    Infinite, so that a set holds all classes, where m < level / (1 - level): 9 nodes for 0.9, 99 for 0.99.

    Args:
        probabilities, y: of nodes that chose neither the weights, the epoch nor the temperature, [m, c] and [m].
        level: how often a set shall hold the true label, between 0 and 1.
    """
    check_level(level)
    odd = nonconformity(probabilities).gather(1, y.unsqueeze(1)).squeeze(1)
    rank = rank_of(len(odd), level)
    return math.inf if rank > len(odd) else float(odd.sort().values[rank - 1])


def conformal_sets(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes are in the set of each node, bool [n, c]."""
    return nonconformity(probabilities) <= threshold


def coverage_range(num_calibration: int, num_nodes: int, level: float = 0.9) -> tuple[float, float]:
    """Where the coverage of `num_nodes` further nodes lies in 95 of 100 cases, if scores do not tie.

    The number of nodes covered is beta-binomial (Vovk 2012): few calibration nodes make a threshold that is off by
    chance, few nodes a share that is. Where the likeliest class alone is right more often than `level`, coverage is higher.
    """
    rank = rank_of(num_calibration, level)
    if rank > num_calibration:
        return 1.0, 1.0
    from scipy.stats import betabinom  # 0.8 s, for `calibrate` alone

    covered = betabinom(num_nodes, rank, num_calibration + 1 - rank)
    return float(covered.ppf(0.025)) / num_nodes, float(covered.ppf(0.975)) / num_nodes


def rank_of(num_calibration: int, level: float) -> int:
    return math.ceil((num_calibration + 1) * level - 1e-9)  # 10 · 0.9 is 9, whatever floats make of it


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level = {level}; it is a share between 0 and 1, such as 0.9")


def reserve(val: Tensor, share: float = 0.5, seed: int = 0) -> Tensor:
    """A random share of the validation nodes, kept apart from all choices for label sets, a mask; the same seed, the same nodes."""
    if not 0 <= share < 1:
        raise ValueError(f"reserve = {share}; it is a share of the validation nodes, at least 0 and less than 1")
    nodes = val.cpu().nonzero().squeeze(1).numpy()
    shuffled = np.random.Generator(np.random.PCG64([seed, 1])).permutation(nodes)  # not the stream that made the split
    kept = torch.zeros_like(val, device="cpu")
    kept[torch.from_numpy(shuffled[: int(share * len(nodes))])] = True
    return kept
