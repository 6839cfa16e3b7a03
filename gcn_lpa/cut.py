"""The cut: from which probability on a node is called a hit, chosen where it pays, and what is to be expected of it.

A rule chooses it: a threshold as it is, so many nodes, a precision that held-out nodes reach, or the costs of a miss and of a
false alarm. A call pays where p · fn, what a miss would cost, is more than (1 - p) · fp: from p = fp / (fp + fn) on, if they are
calibrated. The cut with the least costs on the held-out nodes themselves follows their accidents, and costs more on others.

What a cut will do is estimated by cross-fitting: it is chosen on four fifths of the held-out nodes and counted on the last, in
turn. Nodes that are cut are predicted by the models of all folds together, which separate hits better than those of one: the share
of hits among the called is as much higher as their mean probability is. Two binomials with Jeffreys' priors, of the hits among the
called nodes and among the rest, then give the numbers to expect, with 95 % intervals. Out-of-fold predictions depend on each other,
as their models share labels, and count as fewer nodes (Bates, Hastie, Tibshirani 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FOLDS = 5  # of held-out nodes that have none: each is counted by a cut that the others chose
DRAWS = 20_000  # of the numbers to expect; the same each time
LOW, HIGH = 0.025, 0.975
DEPENDENT = 1.5  # out-of-fold predictions that count as one: of 1, 1.5 and 2.25 what held on development draws
FEWEST_CALLED = 5  # held-out nodes that a precision is estimated from at least


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a cut is chosen: exactly one of four ways."""

    threshold: float | None = None  # from this probability on
    top: int | None = None  # so many nodes, the likeliest
    precision: float | None = None  # as many as there can be so that this share of them are hits
    costs: tuple[float, float] | None = None  # of a miss and of a false alarm: where a call costs as much as none

    def __post_init__(self) -> None:
        given = [name for name in ("threshold", "top", "precision", "costs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a cut is chosen by one of threshold, top, precision and costs, not by {len(given)} of them")
        for name in ("threshold", "precision"):
            if (value := getattr(self, name)) is not None and not 0 < value < 1:
                raise ValueError(f"{name} = {value}; it is a share between 0 and 1, such as 0.3")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top = {self.top}; it is a number of nodes, at least 1")
        if self.costs is not None and not all(0 < cost < math.inf for cost in self.costs):
            raise ValueError(f"costs = {self.costs}; a miss (fn) and a false alarm (fp) each cost more than 0")

    def __str__(self) -> str:
        if self.costs is not None:
            return f"costs fn={self.costs[0]:g}, fp={self.costs[1]:g}"
        name = next(name for name in ("threshold", "top", "precision") if getattr(self, name) is not None)
        return f"{name} {getattr(self, name):g}"

    def chosen(self, score: Tensor, hit: Tensor, wanted: Tensor | None = None) -> float:
        """The cut: a node whose score is this or above is called.

        Args:
            score, hit: of held-out nodes, [m].
            wanted: the scores of the nodes that are cut, [n]; `top` counts among them.
        """
        if self.threshold is not None:
            return self.threshold
        if self.top is not None:
            among = (score if wanted is None else wanted).sort(descending=True).values
            return float(among[min(self.top, len(among)) - 1])
        if self.precision is not None:
            return Steps.of(score, hit).at_precision(self.precision)
        assert self.costs is not None
        fn, fp = self.costs
        return fp / (fp + fn)


@dataclass(frozen=True)
class Steps:
    """Held-out nodes from the likeliest down, equal scores together."""

    score: Tensor  # falling, [k]
    called: Tensor  # nodes with this score or more, [k]
    hits: Tensor  # those of them that are hits, [k]

    @classmethod
    def of(cls, score: Tensor, hit: Tensor) -> Steps:
        """The steps of nodes, at least one, for scores and hits, [m]."""
        score, order = score.double().sort(descending=True, stable=True)
        ends = torch.cat([score.diff() != 0, torch.ones(1, dtype=torch.bool)]).nonzero().squeeze(1)
        return cls(score[ends], ends + 1, hit.long()[order].cumsum(0)[ends])

    def at_precision(self, precision: float) -> float:
        """The lowest score down to which so large a share are hits."""
        share = self.hits / self.called
        enough = self.called >= min(FEWEST_CALLED, int(self.called[-1]))
        reached = ((share >= precision) & enough).nonzero()
        if not len(reached):
            best = int(torch.where(enough, share, -1).argmax())
            raise ValueError(
                f"no cut of the held-out nodes has precision {precision:g}: the highest is {float(share[best]):.2f}, of the "
                f"{int(self.called[best])} likeliest"
            )
        return float(self.score[int(reached[-1])])


@dataclass(frozen=True)
class Expected:
    """A number to expect, and between which numbers it lies in 95 of 100 cases."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: np.ndarray) -> Expected:
        return cls(float(draws.mean()), *np.quantile(draws, (LOW, HIGH)).tolist())

    def words(self, form: str = "{:.0f}", times: float = 1, unit: str = "") -> str:
        mean, low, high = (form.format(times * end) for end in (self.mean, self.low, self.high))
        return f"{mean}{unit} ({low} to {high})"


@dataclass(frozen=True)
class Cut:
    """A cut, the nodes it calls, and what is to be expected of them."""

    positive: str
    rule: str
    threshold: float  # of the probability of the class
    num_nodes: int  # that are cut
    called: int
    hits: Expected  # among the called
    precision: Expected | None  # None where nobody is called
    recall: Expected
    cost: Expected | None  # of misses and false alarms, where they have costs
    num_held_out: int  # nodes that chose it
    protocol: str  # whose labels these are: see `trained.HeldOut`

    @classmethod
    def of(
        cls,
        rule: Rule,
        held_out: tuple[Tensor, Tensor, Tensor | None],
        wanted: Tensor,
        *,
        positive: str,
        protocol: str = "",
    ) -> Cut:
        """The cut that a rule chooses.

        Args:
            held_out: of each held-out node its score, whether it is a hit, and its fold, [m] each.
            wanted: the scores of the nodes that are cut, [n].
        """
        score, hit, fold = held_out
        if not len(score) or not len(wanted):
            raise ValueError("a cut takes nodes with held-out labels, which choose it, and nodes to cut")
        if not 0 < int(hit.sum()) < len(hit):
            some = "none" if not hit.any() else "all"
            raise ValueError(f"a cut takes held-out labels of {positive!r} and of others: {some} of {len(hit)} are of it")
        threshold = rule.chosen(score, hit, wanted)
        is_called, was_called = wanted >= threshold, crossed(rule, score, hit, fold, wanted)
        called, generator = int(is_called.sum()), np.random.Generator(np.random.PCG64(0))
        better = float(wanted[is_called].mean() - score[was_called].mean()) if called and was_called.any() else 0.0

        def drawn(number: int, of: Tensor, more: float) -> np.ndarray:
            """How many hits there may be among so many nodes, by those of held-out nodes and by how much more likely they are."""
            m = int(of.sum()) / (1.0 if fold is None else DEPENDENT)
            k = m * min(1.0, max(0.0, float(hit[of].double().mean()) + more)) if m else 0.0
            return generator.binomial(number, generator.beta(k + 0.5, m - k + 0.5, DRAWS))

        hits, missed = drawn(called, was_called, better), drawn(len(wanted) - called, ~was_called, 0.0)
        all_hits = np.maximum(hits + missed, 1)
        return cls(
            positive=positive,
            rule=str(rule),
            threshold=threshold,
            num_nodes=len(wanted),
            called=called,
            hits=Expected.of(hits),
            precision=Expected.of(hits / called) if called else None,
            recall=Expected.of(np.where(hits + missed > 0, hits / all_hits, 1.0)),
            cost=None if rule.costs is None else Expected.of(rule.costs[0] * missed + rule.costs[1] * (called - hits)),
            num_held_out=len(score),
            protocol=protocol,
        )


def crossed(rule: Rule, score: Tensor, hit: Tensor, fold: Tensor | None, wanted: Tensor) -> Tensor:
    """Which held-out nodes are called, each by a cut that the other folds chose, [m]. The likeliest so many of `wanted` are as
    large a share of the held-out nodes.
    """
    if fold is None:
        fold = torch.arange(len(score)) % FOLDS
    called = torch.zeros(len(score), dtype=torch.bool)
    for k in fold.unique().tolist():
        here = fold == k
        if rule.top is not None:
            called[here] = score[here] >= share_above(score[~here], min(1.0, rule.top / len(wanted)))
        elif (~here).any():
            try:
                called[here] = score[here] >= rule.chosen(score[~here], hit[~here])
            except ValueError:  # the others reach no such precision: nobody is called
                continue
    return called


def share_above(score: Tensor, share: float) -> float:
    """The score from which on there is this share of the nodes."""
    return float(score.sort(descending=True).values[max(0, math.ceil(share * len(score)) - 1)])
