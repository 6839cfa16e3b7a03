"""Scores of probabilities: accuracy and its like, and for a rare class how well it is ranked.

Every metric is a function of probabilities, [..., n, c], classes, [..., n], and the nodes that count, a mask [..., n]: the
same formula scores one model and, while they train, a stack of models. None has a shape that depends on the data, so that a
step with it can be a CUDA graph. Nodes of equal probability are one step of a curve, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RARE = 0.25  # share of the labels up to which the rarer of two classes is judged by its ranking
TOP = (0.01, 0.05, 0.1)  # shares of the nodes, the likeliest first, in which hits are counted
TINY = 1e-12  # the least probability that log_loss sees

Formula = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]


@dataclass(frozen=True)
class Metric:
    """A score: its name, its words, whether more is better, and its formula."""

    name: str
    words: str
    formula: Formula
    sign: int = 1  # -1 where less is better
    of_numbers: bool = False  # of predicted numbers, [..., n, 1], for numbers, [..., n]
    constant: str = "chance"  # what a model that looks at nothing is called

    def __call__(self, probabilities: Tensor, y: Tensor, counts: Tensor | None = None, positive: int | None = None) -> Tensor:
        """The score of each batch, float64, [...].

        Args:
            counts: the nodes that are scored, a mask [..., n]; None: all.
            positive: the class that is ranked; None: the rarer of two, or the mean over the classes that occur.
        """
        counts = torch.ones_like(y, dtype=torch.bool) if counts is None else counts
        y = y if self.of_numbers else y.clamp_min(0)
        return self.formula(probabilities.double(), y, counts, positive)


def recall(p: Tensor, y: Tensor, counts: Tensor, _: int | None) -> Tensor:
    true, _called, right = _counted(p, y, counts)
    return _mean(right / true.clamp_min(1), true > 0)


def f1(p: Tensor, y: Tensor, counts: Tensor, _: int | None) -> Tensor:
    true, called, right = _counted(p, y, counts)
    return _mean(2 * right / (true + called).clamp_min(1), true + called > 0)


def log_loss(p: Tensor, y: Tensor, counts: Tensor, _: int | None) -> Tensor:
    return _mean(-p.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(TINY).log(), counts)


def brier(p: Tensor, y: Tensor, counts: Tensor, _: int | None) -> Tensor:
    squares = (p - _one_hot(y, p.shape[-1])).square().sum(dim=-1)
    return _mean(squares / 2 if p.shape[-1] == 2 else squares, counts)  # of two classes that of either


def r2(p: Tensor, y: Tensor, counts: Tensor, _: int | None) -> Tensor:
    around = torch.where(counts, y - _mean(torch.where(counts, y, 0), counts).unsqueeze(-1), 0)
    return 1 - _mean(_errors(p, y, counts).square(), counts) / _mean(around.square(), counts).clamp_min(TINY)


COMMONEST, MEAN = "always saying the commonest class", "always saying the mean"
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", lambda p, y, n, _: _mean((p.argmax(-1) == y).double(), n), constant=COMMONEST),
        Metric("balanced_accuracy", "balanced accuracy", recall),
        Metric("macro_f1", "macro-F1", f1),
        Metric("roc_auc", "ROC AUC", lambda p, y, n, k: _ranked(p, y, n, k, lambda curve: curve.auc)),
        Metric(
            "average_precision",
            "average precision",
            lambda p, y, n, k: _ranked(p, y, n, k, lambda curve: curve.average_precision),
        ),
        Metric("log_loss", "log loss", log_loss, -1),
        Metric("brier", "Brier score", brier, -1),
        Metric("r2", "R²", r2, of_numbers=True, constant=MEAN),
        Metric("mae", "mean absolute error", lambda p, y, n, _: _mean(_errors(p, y, n).abs(), n), -1, True),
        Metric("rmse", "root mean square error", lambda p, y, n, _: _mean(_errors(p, y, n).square(), n).sqrt(), -1, True),
    )
}


def metric_of(name: str) -> Metric:
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r:.40}; there are {', '.join(METRICS)}")
    return METRICS[name]


def selection(metric: str) -> str:
    """The `select` of a recipe that keeps the epoch with the best of a metric on validation nodes; of numbers the lowest loss."""
    chosen = metric_of(metric)
    return "loss" if chosen.of_numbers else {"accuracy": "first_best", "log_loss": "loss"}.get(metric, metric)


class Curve(NamedTuple):
    """Nodes from the highest score to the lowest, equal ones together: at each, all down to the last of its equals."""

    hit: Tensor  # 1 where the node counts and is a hit, [..., n]
    hits: Tensor  # so far, [..., n]
    seen: Tensor  # nodes that count so far, [..., n]
    score: Tensor  # [..., n]

    @classmethod
    def of(cls, score: Tensor, hit: Tensor, counts: Tensor | None = None) -> Curve:
        """The curve of scores, [..., n], for hits, a mask."""
        counts = torch.ones_like(hit) if counts is None else counts
        score, order = score.double().sort(dim=-1, descending=True, stable=True)
        weight = counts.double().gather(-1, order)
        hit = hit.double().gather(-1, order) * weight
        falling = (-score).contiguous()
        last = torch.searchsorted(falling, falling, right=True) - 1
        return cls(hit, hit.cumsum(-1).gather(-1, last), weight.cumsum(-1).gather(-1, last), score)

    @property
    def average_precision(self) -> Tensor:
        """Σ over hits of the precision down to each, by the number of hits; 0 where there is none."""
        precision = self.hits / self.seen.clamp_min(1)
        return (self.hit * precision).sum(-1) / self.hits[..., -1].clamp_min(1)

    @property
    def auc(self) -> Tensor:
        """The share of pairs of a hit and another in which the hit is higher, half where they are equal; ½ without pairs."""
        hits, others = self.hits[..., -1], (self.seen - self.hits)[..., -1]
        above = self.seen - self.hits  # others that are higher or equal
        falling = (-self.score).contiguous()
        first = torch.searchsorted(falling, falling)
        higher = torch.where(first > 0, above.gather(-1, (first - 1).clamp_min(0)), 0)
        below = (self.hit * (others.unsqueeze(-1) - (above + higher) / 2)).sum(-1)
        pairs = hits * others
        return torch.where(pairs > 0, below / pairs.clamp_min(1), 0.5)


def rarest(y: Tensor, num_classes: int) -> int | None:
    """The rarer of two classes among labels, -1 where there is none, if it has at most a share RARE of them; else None."""
    counts = torch.bincount(y[y >= 0].cpu(), minlength=num_classes)
    if num_classes != 2 or not 0 < int(counts.min()) <= RARE * int(counts.sum()):
        return None
    return int(counts.argmin())


@dataclass(frozen=True)
class Ranking:
    """How well the probability of one class ranks nodes."""

    positive: str
    share: float  # of the nodes that are of it: the average precision of a random order
    roc_auc: float
    average_precision: float
    recall: tuple[float, ...]  # of the hits, the share among the likeliest 1, 5 and 10 % of the nodes

    def __post_init__(self) -> None:
        _check_shares(self, "share", "roc_auc", "average_precision")
        if len(self.recall) != len(TOP) or not all(0 <= share <= 1 for share in self.recall):
            raise ValueError(f"recall is {len(TOP)} shares, 0 to 1, not {self.recall!s:.60}")

    @classmethod
    def of(cls, positive: str, score: Tensor, hit: Tensor) -> Ranking:
        """The ranking of nodes by a score, [n]; `hit`: which are of the class."""
        curve = Curve.of(score, hit)
        ends = np.append(0.0, curve.seen.numpy()), np.append(0.0, curve.hits.numpy())  # among equal ones hits are even
        share = float(hit.double().mean())
        recall = [float(np.interp(top * len(hit), *ends) / max(1.0, ends[1][-1])) for top in TOP]
        return cls(positive, share, float(curve.auc), float(curve.average_precision), tuple(recall))


@dataclass(frozen=True)
class ClassScores:
    precision: float
    recall: float
    f1: float
    support: int

    def __post_init__(self) -> None:
        _check_shares(self, "precision", "recall", "f1")
        if self.support < 0:
            raise ValueError(f"support = {self.support}; it is a number of nodes")


@dataclass(frozen=True)
class Scores:
    """How well a model does on some nodes. Row i, column j of `confusion`: nodes of class i that were called j."""

    accuracy: float
    macro_f1: float  # mean over the classes that occur, or are predicted, among these nodes; as in scikit-learn
    num_nodes: int
    per_class: dict[str, ClassScores]
    confusion: list[list[int]]
    ranking: Ranking | None = None  # of the rarer of two classes where it is rare, or of a class that was asked for
    metrics: dict[str, float] = field(default_factory=dict)  # each of METRICS; empty where only the labels are known

    @property
    def score(self) -> float:
        """The accuracy."""
        return self.accuracy

    def __post_init__(self) -> None:
        _check_shares(self, "accuracy", "macro_f1")
        c = len(self.per_class)
        if c == 0 or self.num_nodes < 1 or [len(row) for row in self.confusion] != [c] * c:
            raise ValueError(f"the table of confusion is not one of {c} classes")
        if any(count < 0 for row in self.confusion for count in row):
            raise ValueError("the table of confusion holds a negative count")


def _check_shares(scores: object, *names: str) -> None:
    for name in names:
        if not 0 <= (value := getattr(scores, name)) <= 1:
            raise ValueError(f"{name} = {value}; it is a share, 0 to 1")


@dataclass(frozen=True)
class NumberScores:
    """How well a model predicts numbers: the share of their variance that it explains, and errors in their own unit."""

    r2: float  # on the scale that the model learned on
    mae: float
    rmse: float
    num_nodes: int
    log: bool = False  # whether that scale is a log scale
    metrics: dict[str, float] = field(default_factory=dict)  # each of METRICS that is of numbers

    @property
    def score(self) -> float:
        """R²."""
        return self.r2

    def __post_init__(self) -> None:
        if not self.r2 <= 1 or self.mae < 0 or self.rmse < 0 or self.num_nodes < 1:
            raise ValueError(f"r2 = {self.r2}, mae = {self.mae}, rmse = {self.rmse} of {self.num_nodes} nodes are no scores")


def check_known(is_known: Tensor) -> None:
    """Refuse to score no node, or nodes of which some have no known label, [m]."""
    if len(is_known) == 0:
        raise ValueError("there is no node to score: the mask is empty")
    if not is_known.all():
        raise ValueError(f"{int((~is_known).sum())} of the {len(is_known)} nodes to score have no label")


def suited(y: Tensor, num_classes: int) -> str:
    """The metric that suits labels: R² of numbers, average precision where one of two classes is rare, else accuracy."""
    if y.is_floating_point():
        return "r2"
    return "accuracy" if rarest(y, num_classes) is None else "average_precision"


def _ranked(p: Tensor, y: Tensor, counts: Tensor, positive: int | None, of: Callable[[Curve], Tensor]) -> Tensor:
    if positive is not None:
        return of(Curve.of(p[..., positive], y == positive, counts))
    members = _one_hot(y, p.shape[-1]) * counts.unsqueeze(-1)
    sizes = members.sum(dim=-2)  # [..., c]
    each = torch.stack([of(Curve.of(p[..., k], y == k, counts)) for k in range(p.shape[-1])], dim=-1)
    if p.shape[-1] == 2:
        return each.gather(-1, sizes.argmin(dim=-1, keepdim=True)).squeeze(-1)
    return _mean(each, sizes > 0)


def _counted(p: Tensor, y: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class how many nodes are of it, are called it, and are both, [..., c] each."""
    true, called = (_one_hot(of, p.shape[-1]) * counts.unsqueeze(-1) for of in (y, p.argmax(dim=-1)))
    return true.sum(dim=-2), called.sum(dim=-2), (true * called).sum(dim=-2)


def _one_hot(y: Tensor, number: int) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(number, device=y.device)).double()


def _errors(p: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts, p[..., 0] - y, 0)


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    return (values * counts).sum(dim=-1) / counts.sum(dim=-1).clamp_min(1)
