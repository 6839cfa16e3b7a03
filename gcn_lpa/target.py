"""What is predicted: a target holds the width of the output, what an error costs, what a label is worth, and the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.data.checks import meant, some
from gcn_lpa.metrics import METRICS, Ranking, rarest


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
class Classes:
    """One class out of several: outputs are logits or log-probabilities, [n, c]."""

    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of output columns of a model."""
        return len(self.names)

    def numbers(self, y: Tensor, names: Sequence[str]) -> Tensor:
        """Labels that are numbers of `names` as numbers of these classes, -1 where there is none or it is not among these, [n]."""
        if tuple(names) == self.names:
            return y
        place = {name: k for k, name in enumerate(self.names)}
        codes = torch.tensor([*(place.get(name, -1) for name in names), -1], device=y.device)
        return codes.index_select(0, y % len(codes))  # -1 takes the last one

    def seeds(self, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Y^(0), what a label puts into label propagation: a row of mass 1 for its class, zero rows where it is -1, [n, c]."""
        classes = torch.arange(self.width, device=y.device)
        return (y.unsqueeze(1) == classes).to(dtype or torch.get_default_dtype())

    def measured(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Number of correct predictions, and cross-entropy summed over the nodes and divided by `number`, [2]."""
        correct = (outputs.argmax(dim=1) == y).sum()
        return torch.stack([correct.double(), (F.cross_entropy(outputs, y, reduction="sum") / number).double()])

    def costs(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """For each node of a stack of models whether its prediction is correct, and its cross-entropy, float64, [B, n] each."""
        costs = F.cross_entropy(outputs.transpose(1, 2), y, reduction="none")
        return outputs.argmax(dim=2) == y, costs.double()

    def scores(
        self,
        truth: Tensor,
        guess: Tensor,
        names: Sequence[str] | None = None,
        *,
        probabilities: Tensor | None = None,
        positive: str | None = None,
    ) -> Scores:
        """The scores of guesses, numbers of these classes, for true classes, numbers of `names`; None: of these classes too.

        A node of a class that is not among these counts as an error.

        Args:
            probabilities: of these classes, [m, c]; None: what they say beyond guesses is not scored.
            positive: the class whose ranking is scored; None: the rarer of two, where it is rare.
        """
        if len(truth) == 0:
            raise ValueError("there is no node to score: the mask is empty")
        if (truth < 0).any():
            raise ValueError(f"{int((truth < 0).sum())} of the {len(truth)} nodes to score have no label")
        every = self.names if names is None else tuple(names)
        ranking, metrics, y = None, {}, self.numbers(truth, every)
        if probabilities is not None:
            ranked = self.positive(positive, y)
            if ranked is not None:
                ranking = Ranking.of(self.names[ranked], probabilities[:, ranked], y == ranked)
            if (y >= 0).all():
                metrics = {name: float(metric(probabilities, y, None, ranked)) for name, metric in METRICS.items()}
        if every != self.names:
            every = (*every, *(name for name in self.names if name not in every))
            guess = Classes(every).numbers(guess, self.names)
        c = len(every)
        confusion = torch.bincount(c * truth + guess, minlength=c * c).view(c, c).numpy()
        right, true, called = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
        parts, wholes = np.stack([right, right, 2 * right]), np.stack([called, true, true + called])
        precision, recall, f1 = np.divide(parts, wholes, out=np.zeros((3, c)), where=wholes > 0)  # 0 of nothing
        rows = zip(*(column.tolist() for column in (precision, recall, f1, true)), strict=True)
        return Scores(
            accuracy=float(right.sum() / len(truth)),
            macro_f1=float(f1[true + called > 0].mean()),
            num_nodes=len(truth),
            per_class={name: ClassScores(*row) for name, row in zip(every, rows, strict=True)},
            confusion=confusion.tolist(),
            ranking=ranking,
            metrics=metrics,
        )

    def positive(self, name: str | None, y: Tensor) -> int | None:
        """The number of the class that is ranked: the one named, or the rarer of two among the labels, where it is rare."""
        if name is None:
            return rarest(y, self.width)
        if name not in self.names:
            raise ValueError(f"positive = {name!r:.40}; it is a class: {some(self.names)}{meant(name, self.names)}")
        return self.names.index(name)
