"""What is predicted: a target holds the width of the output, what an error costs, what a label is worth, and the scores.

Both kinds have one interface: `Classes`, here, and `regression.Numbers`. Labels of a graph are in units of its target: the
number of a class, -1 where there is none, or a standard score, NaN where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.checks import meant, similar, some
from gcn_lpa.engine import fused
from gcn_lpa.engine.fused import TINY
from gcn_lpa.metrics import METRICS, ClassScores, Ranking, Scores, check_known, metric_of, rarest
from gcn_lpa.regression import Intervals, Numbers, weighed_mean

EQUAL = 12  # decimals up to which two scores are the same
STEPS, CLOSE = 50, 1e-10  # of Newton's method at most, and how short the last one is


@dataclass(frozen=True)
class Classes:
    """One class out of several: outputs are logits or log-probabilities, [n, c]."""

    names: tuple[str, ...]

    unknown: ClassVar[int] = -1  # of a node without a label
    rate: ClassVar[str] = "accuracy"  # the mean of `credit`
    certain: ClassVar[float] = 0.01  # validation loss below which longer training would gain no more than that
    calibration: ClassVar[type[Calibration]] = Calibration  # of held-out predictions
    scale: ClassVar[None] = None  # of numbers

    def __str__(self) -> str:
        return f"{len(self.names):,} classes, {some(self.names)}" if self.names else "no class"

    @property
    def width(self) -> int:
        """The number of output columns of a model."""
        return len(self.names)

    @property
    def vote_width(self) -> int:
        """The number of columns of Y^(0)."""
        return len(self.names)

    def only_classes(self, problem: str) -> None:
        """Refuse what is about classes: a ValueError where numbers are predicted."""

    @staticmethod
    def known(y: Tensor) -> Tensor:
        """Which labels are known, [n]."""
        return y >= 0

    @staticmethod
    def filled(y: Tensor) -> Tensor:
        """Labels with some class where there is none, [n]."""
        return y.clamp_min(0)

    @staticmethod
    def dtype(dtype: torch.dtype) -> torch.dtype:
        """The type of labels beside outputs of a type."""
        return torch.int64

    @staticmethod
    def strata(y: Tensor) -> Tensor:
        """What folds and splits have alike shares of: the class of each node, -1 where it is not known, [n]."""
        return y

    def translated(self, y: Tensor, other: Target) -> Tensor:
        """Labels of another target as those of this one, -1 where there is none or it is not among these classes, [n]."""
        names = other.names
        if names == self.names:
            return y
        place = {name: k for k, name in enumerate(self.names)}
        codes = torch.tensor([*(place.get(name, -1) for name in names), -1], device=y.device)
        return codes.index_select(0, y % len(codes))  # -1 takes the last one

    def fitted(self, y: Tensor, train: Tensor | None = None) -> Classes:
        """The classes that occur among labels, [n]; also where none of the nodes `train`, a mask, has it."""
        present = torch.bincount(y[y >= 0], minlength=self.width).cpu() > 0
        return Classes(tuple(name for name, occurs in zip(self.names, present.tolist(), strict=True) if occurs))

    def seeds(self, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Y^(0), what a label puts into label propagation: a row of mass 1 for its class, zero rows where it is -1, [n, c]."""
        classes = torch.arange(self.width, device=y.device)
        return (y.unsqueeze(1) == classes).to(dtype or torch.get_default_dtype())

    @staticmethod
    def mean_cost(values: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
        """The mean over rows of J: cross-entropy of "logits", -log of the target's "share" of the votes, or -log of its "votes".

        Args:
            values: [m, c].
            weight: of each row, [m]; None: all weigh the same.
        """
        faster = fused.mean_cost(values, target, kind, weight)
        if faster is not None:
            return faster
        if kind == "logits":
            costs = F.cross_entropy(values, target, reduction="none")
        else:
            costs = -(values.gather(1, target.unsqueeze(1)).squeeze(1) + TINY).log()
            if kind == "share":
                costs = costs + (values.sum(dim=1) + values.shape[1] * TINY).log()
        return weighed_mean(costs, weight)

    def balance(self, y: Tensor, members: Tensor, total: Any) -> Tensor:
        """The weight of each label under which every class weighs the same, [m]; `members`: rows of Y^(0), of those that count."""
        sizes = members.sum(dim=0) if total is None else total(members.sum(dim=0))  # bincount would wait for the GPU
        return (sizes.sum() / (self.width * sizes.clamp_min(1))).index_select(0, y)

    @staticmethod
    def voted(shares: Tensor) -> Tensor:
        """What votes say, from the shares of each column of Y^(0) among them: log-probabilities, [n, c]."""
        return shares.log()

    def vote_columns(self, mass: Tensor, smoothing: Tensor | float) -> Tensor:
        """Votes as columns of a table, from the mass of each class: logs of shares, smoothed towards equal ones, [n, c]."""
        return ((mass + smoothing / self.width) / (mass.sum(dim=-1, keepdim=True) + smoothing)).log()

    @staticmethod
    def said(outputs: Tensor) -> Tensor:
        """What a model says, in the unit that votes and members are pooled in: log-probabilities, [n, c]."""
        return F.log_softmax(outputs, dim=1)

    @staticmethod
    def answer(outputs: Tensor) -> Tensor:
        """The prediction of a model that is alone: probabilities, [n, c]."""
        return F.softmax(outputs, dim=1)

    @staticmethod
    def tempered(logs: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
        """Each log-distribution to the power of its exponent, normalised, [k, m, c]."""
        return torch.stack([F.log_softmax(t * log, dim=1) for t, log in zip(exponents, logs, strict=True)])

    @staticmethod
    def pooled(weights: Tensor, parts: Tensor) -> Tensor:
        """The prediction of weighed parts, [k] and [k, m, c]: probabilities, [m, c]."""
        return F.softmax(torch.einsum("k,kmc->mc", weights, parts), dim=1)

    @staticmethod
    def pool_weights(stack: Tensor, y: Tensor, prior: Tensor, pull: float, start: Tensor | None = None) -> Tensor:
        """The w that minimise -Σ_i log softmax(Σ_k w_k L_k)_i[y_i] + pull ‖w - prior‖², by Newton's method: it is convex.

        Args:
            stack: the L of several pools side by side, [p, k, m, c].
            prior: the same for all, [k].
            start: from where to go, [k]; None: from the prior.

        Returns:
            w, [p, k]
        """
        pools, number, _, c = stack.shape
        stack = stack.transpose(2, 3).contiguous()  # nodes side by side: a softmax over few classes is slow otherwise
        chosen = F.one_hot(y, c).T.to(stack.dtype)
        eye = 2 * pull * torch.eye(number, dtype=stack.dtype)

        def pool(w: Tensor) -> tuple[Tensor, Tensor]:  # [p, c, m], and the cost of each, [p]
            pooled = torch.einsum("pk,pkcm->pcm", w, stack)
            nodes = pooled.logsumexp(dim=1) - (pooled * chosen).sum(dim=1)
            return pooled, nodes.sum(dim=1) + pull * (w - prior).square().sum(dim=1)

        w = (prior if start is None else start).expand(pools, number)
        pooled, here = pool(w)
        for _ in range(STEPS):
            p = F.softmax(pooled, dim=1)
            gradient = torch.einsum("pkcm,pcm->pk", stack, p - chosen) + 2 * pull * (w - prior)
            p = p.unsqueeze(1)
            around = stack - (stack * p).sum(dim=2, keepdim=True)  # E[LL'] - E[L]E[L]' would cancel where a log is low
            spread = torch.einsum("pkcm,plcm->pkl", around * p, around)
            move = torch.linalg.solve(spread + eye, gradient)
            while True:  # half as far in the pools that would get worse
                there = w - move
                pooled, cost_there = pool(there)
                worse = (cost_there > here) & (move.abs().amax(dim=1) > CLOSE)
                if not worse.any():
                    break
                move = torch.where(worse.unsqueeze(1), move / 2, move)
            w, here = there, cost_there
            if float(move.abs().max()) < CLOSE:
                break
        return w

    @staticmethod
    def named(predicted: Tensor) -> Tensor:
        """The label that is predicted for each node, the class with the most, the first of equals, -1 where all are 0, [n]."""
        shown = predicted.round(decimals=EQUAL)
        return torch.where(shown.amax(dim=1) > 0, shown.argmax(dim=1), -1)

    @staticmethod
    def tallied(votes: Tensor) -> Tensor:
        """What label propagation says by its votes, [n, c]: the votes themselves."""
        return votes

    @staticmethod
    def moves(before: Tensor, after: Tensor) -> Tensor:
        """How far predictions are from others, [n]: the largest difference between two scores of a class."""
        return (after - before).abs().amax(dim=1)

    @staticmethod
    def score_of(predicted: Tensor, labels: Tensor) -> Tensor:
        """The score of a label of each row, 0 where there is none, [n]."""
        return torch.where(labels >= 0, predicted.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1), 0.0)

    def texts(self, labels: Tensor) -> list[str | None]:
        """Labels as text, None where there is none."""
        names = [*self.names, None]
        return [names[k] for k in labels.tolist()]

    def read(self, label: Any) -> int:
        """A label that a user names."""
        if label not in self.names:
            close = similar(str(label), self.names)
            hint = f"close to it: {', '.join(close)}" if close else f"there are {', '.join(self.names[:12])}"
            raise ValueError(f"there is no class {label!r}; {hint}")
        return self.names.index(label)

    @staticmethod
    def alike(labels: Tensor, others: Tensor) -> Tensor:
        """Which labels are the same, [n]."""
        return labels == others

    def words(self, labels: Tensor) -> np.ndarray:
        """Labels as a user has them: names of classes, "" where there is none, [n]."""
        names = [*self.names, ""]
        return np.array([names[k] for k in labels.tolist()], dtype=object)

    @staticmethod
    def uncertainty(predicted: Tensor) -> Tensor:
        """The entropy of each row of probabilities as a share of the highest there is, [n]: 0 certain, 1 all classes alike."""
        nats: Tensor = torch.special.entr(predicted).sum(dim=1)
        return nats / math.log(predicted.shape[1])

    @staticmethod
    def sureness(predicted: Tensor) -> Tensor:
        """How sure each prediction is, [n]: the probability of the likeliest class."""
        return predicted.amax(dim=1)

    def groups(self, predicted: Tensor) -> tuple[np.ndarray, tuple[str, ...]]:
        """What nodes are drawn as, [n], and the name of each: their predicted class."""
        return predicted.argmax(dim=1).numpy(), self.names

    def classes(self, y: Tensor) -> np.ndarray:
        """The class of each node, -1 where there is none, [n]."""
        return y.cpu().numpy()

    @staticmethod
    def quartiles(y: Tensor) -> None:
        """Classes have no least and no greatest."""

    def summary(self, y: Tensor) -> str:
        """How many labels there are of what, in words."""
        sizes = torch.bincount(y[y >= 0], minlength=self.width).tolist()
        listed = ", ".join(f"{name}: {size:,}" for name, size in zip(self.names, sizes, strict=True))
        return f"{self.width:,} classes{listed and f' ({listed})'}"

    @staticmethod
    def errors(predicted: Tensor, y: Tensor) -> None:
        """How far each number is off, [m]; classes are right or wrong."""

    @staticmethod
    def likelihood(predicted: Tensor, y: Tensor) -> Tensor:
        """The log-likelihood of each label, [m], by its predicted probabilities, [m, c]."""
        return predicted.gather(1, y.unsqueeze(1)).squeeze(1).clamp_min(1e-12).log()

    @staticmethod
    def credit(predicted: Tensor, y: Tensor) -> Tensor:
        """Which predictions are right, [m]: their mean is the accuracy."""
        return (predicted.argmax(dim=1) == y).double()

    @staticmethod
    def chance(y: Tensor) -> float:
        """The accuracy of always saying the most frequent class."""
        return float(torch.bincount(y).max()) / len(y)

    def prior(self, y: Tensor) -> Tensor | None:
        """The prediction for a node of which nothing is known, by labels that are: their shares, [c]; None where there is none."""
        counts = torch.bincount(y[y >= 0], minlength=self.width).double()
        return counts / counts.sum() if counts.sum() else None

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
        predicted: Tensor,
        other: Target | None = None,
        positive: str | None = None,
    ) -> Scores:
        """The scores of probabilities of these classes, [m, c], or of guesses, their numbers [m], for true classes of another
        target; None: of these classes too. A node of a class that is not among these counts as an error.

        Args:
            positive: the class whose ranking is scored; None: the rarer of two, where it is rare.
        """
        check_known(truth >= 0)
        other, guess = other or self, predicted if predicted.dim() == 1 else predicted.argmax(dim=1)
        every, y = other.names, self.translated(truth, other)
        ranking, metrics = None, {}
        if predicted.dim() == 2:
            ranked = self.positive(positive, y)
            if ranked is not None:
                ranking = Ranking.of(self.names[ranked], predicted[:, ranked], y == ranked)
            if (y >= 0).all():
                every_metric = [metric for metric in METRICS.values() if not metric.of_numbers]
                metrics = {metric.name: float(metric(predicted, y, None, ranked)) for metric in every_metric}
        if every != self.names:
            every = (*every, *(name for name in self.names if name not in every))
            guess = Classes(every).translated(guess, self)
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

    def compared_by(self, metric: str | None, positive: str | None, y: Tensor) -> tuple[str, str | None]:
        """The metric that suits labels, or the one asked for; and the class that is ranked, of two the rarer one."""
        ranked = self.positive(positive, y)
        chosen = metric_of(metric or ("accuracy" if ranked is None else "average_precision"))
        if chosen.of_numbers:
            raise ValueError(f"metric = {metric!r} is a score of numbers, and these labels are classes")
        return chosen.name, None if ranked is None else self.names[ranked]

    def positive(self, name: str | None, y: Tensor) -> int | None:
        """The number of the class that is ranked: the one named, or the rarer of two among the labels, where it is rare."""
        if name is None:
            return rarest(y, self.width)
        if name not in self.names:
            raise ValueError(f"positive = {name!r:.40}; it is a class: {some(self.names)}{meant(name, self.names)}")
        return self.names.index(name)


Target: TypeAlias = Classes | Numbers
Calibrated: TypeAlias = Calibration | Intervals  # what the two are calibrated by
