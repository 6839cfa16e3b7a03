"""Numbers to predict: the target beside `target.Classes`, with the same interface, which is described there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.calibration import FEWEST, FOLDS, NEWTON_STEPS, PULL, USUAL_LEVEL, check_level, rank_of
from gcn_lpa.metrics import METRICS, NumberScores, check_known

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import SparseMatrix
    from gcn_lpa.target import Target

TINY = 1e-6  # of label mass, as in `engine.fused`; and of variances that divide
BEYOND = 0.1  # of the range of the labels, that a prediction may be outside of it
ALIKE = 1e-3  # of their spread: numbers that differ by less are the same
STRATA = 10  # ranges, of each of which every fold and split has a share
SKEWED, FEWEST_SKEWED = 1.0, 10  # skewness from which numbers are read on a log scale, where so many are known
STEPS = 16  # of a walk that meets errors nearby
USUAL_MASS = 0.1  # of such a walk, that the usual error weighs as much as
LEAST_SPREAD = 0.05  # of members, in standard scores, so that none has a logarithm
FARTHEST = 3.0  # spreads that what widens an interval counts at most
FEWEST_SPREAD = 100  # held-out numbers from which intervals may differ in width
SURE = 0.5  # standard errors by which intervals of different widths must be better: slopes are pulled to 0, so little is at stake
WIDTHS = ("the spread of members and votes", "errors nearby", "the level", "its square", "whether a label reaches the node")
TRIED = ((0, 1), (2, 3), (0, 1, 2, 3))  # of them, beside the last


@dataclass(frozen=True)
class Numbers:
    """A number for each node, as a standard score z = (f(y) - mean) / spread: outputs are z, [n, 1].

    In label propagation a number is a label that is a share u = (z - low) / (high - low) of the highest number and 1 - u of the
    lowest. A row of Y^(0) has mass 1, as that of a class has, and the share of the highest among the votes is exactly the mean of
    the numbers that vote: harmonic functions, and all that the paper proves of label propagation holds for them.
    """

    mean: float = 0.0
    spread: float = 1.0
    low: float = 0.0  # the lowest and highest standard score of the labels that it was fitted to
    high: float = 1.0
    offset: float | None = None  # f(y) = log(y + offset), where numbers are skewed; None: f(y) = y

    unknown: ClassVar[float] = math.nan
    rate: ClassVar[str] = "R²"
    certain: ClassVar[float] = 0.0  # numbers can always be closer
    names: ClassVar[tuple[str, ...]] = ()
    width: ClassVar[int] = 1
    vote_width: ClassVar[int] = 2

    def __post_init__(self) -> None:
        is_finite = all(map(math.isfinite, (self.mean, self.spread, self.low, self.high)))
        if not is_finite or self.spread <= 0 or self.low >= self.high or not (self.offset is None or self.offset > 0):
            raise ValueError(f"{self} is no scale of numbers")

    def __str__(self) -> str:
        return f"numbers{'' if self.offset is None else ' on a log scale'}"

    @property
    def scale(self) -> Numbers:
        return self

    @property
    def calibration(self) -> type[Intervals]:
        return Intervals

    @staticmethod
    def only_classes(problem: str) -> None:
        raise ValueError(problem)

    @staticmethod
    def known(y: Tensor) -> Tensor:
        return ~y.isnan()

    @staticmethod
    def filled(y: Tensor) -> Tensor:
        return y.nan_to_num(0.0)

    @staticmethod
    def dtype(dtype: torch.dtype) -> torch.dtype:
        return dtype

    @staticmethod
    def strata(y: Tensor) -> Tensor:
        """What folds and splits have alike shares of: ranges with as many numbers in each, -1 where it is not known, [n]."""
        known = (~y.isnan()).nonzero().squeeze(1).cpu()
        strata = torch.full(y.shape, -1, dtype=torch.int64)
        number = max(1, min(STRATA, len(known) // STRATA))
        order = y.cpu()[known].argsort(stable=True)
        strata[known[order]] = torch.arange(len(known)) * number // max(1, len(known))
        return strata.to(y.device)

    def translated(self, y: Tensor, other: Target) -> Tensor:
        """Labels on another scale as those of this one, NaN where there is none, [n]."""
        if other.scale is None:
            raise ValueError("the model predicts numbers, and the labels of this graph are classes: read it with task='regression'")
        return y if other == self else self.standard(other.scale.undone(y.double()))

    def standard(self, numbers: Tensor) -> Tensor:
        """Standard scores of numbers; on a log scale, one far below those that were learned from is the lowest there can be."""
        if self.offset is not None:
            numbers = (numbers + self.offset).clamp_min(self.offset / 2).log()
        return (numbers - self.mean) / self.spread

    def undone(self, z: Tensor) -> Tensor:
        """The numbers that standard scores are of."""
        numbers = self.mean + self.spread * z
        return numbers if self.offset is None else (numbers.exp() - self.offset).clamp_min(0)

    def drawn(self, z: Tensor) -> tuple[Tensor, str]:
        """Standard scores as numbers on the scale that the model learned on, and what an axis says of it."""
        return (self.undone(z), "") if self.offset is None else ((self.mean + self.spread * z) / math.log(10), " (power of ten)")

    def fitted(self, y: Tensor, train: Tensor | None = None) -> Numbers:
        """The scale of labels on this one, [n]: the mean and spread of those of the nodes `train`, a mask, or of all; in logs where
        they are skewed and none is negative.
        """
        numbers = self.undone(y[self.known(y) if train is None else self.known(y) & train].double())
        offset = None
        if len(numbers) >= FEWEST_SKEWED and float(numbers.min()) >= 0 and _skewness(numbers) > SKEWED:
            least = float(numbers[numbers > 0].min())
            if abs(_skewness((numbers + least).log())) < _skewness(numbers):
                offset = least
        read = numbers if offset is None else (numbers + offset).log()
        mean, spread = float(read.mean()), float(read.std(correction=0)) or 1.0
        z = (read - mean) / spread
        low, high = float(z.min()), float(z.max())
        return Numbers(mean, spread, *((low, high) if low < high else (-1.0, 1.0)), offset)

    def seeds(self, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Y^(0): the share of the highest number and of the lowest in each label, zero rows where there is none, [n, 2]."""
        share = (y - self.low) / (self.high - self.low)
        rows = torch.stack([share, 1 - share], dim=1).nan_to_num(0.0)
        return rows.to(dtype or torch.get_default_dtype())

    def voted(self, shares: Tensor) -> Tensor:
        """The mean of the numbers that vote, from the shares of the columns of Y^(0) among the votes, [n, 1]."""
        return self.low + (self.high - self.low) * shares[:, :1]

    def mean_cost(self, values: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
        """The mean square of the error of outputs, [m, 1], or of the mean of votes, [m, 2]; without a vote, of the middle."""
        if values.shape[1] == self.vote_width:
            values = self.voted((values + TINY) / (values.sum(dim=1, keepdim=True) + self.vote_width * TINY))
        return weighed_mean((values.squeeze(1) - target).square(), weight)

    def balance(self, y: Tensor, members: Tensor, total: Any) -> Tensor:
        raise ValueError("class_weights 'balanced' makes classes weigh the same; numbers have none: leave it 'none'")

    def vote_columns(self, mass: Tensor, smoothing: Tensor | float) -> Tensor:
        """Votes as columns of a table: their mean, drawn to 0 where they are few, and the log of their mass, [n, 2]."""
        total = mass.sum(dim=-1, keepdim=True)
        mean = (self.low * total + (self.high - self.low) * mass[..., :1]) / (total + smoothing)
        return torch.cat([mean, (total + smoothing).log()], dim=-1)

    def said(self, outputs: Tensor) -> Tensor:
        """What a model says, in the unit that votes and members are pooled in: standard scores, [n, 1].

        They end a little beyond those of the labels: at a node unlike all others a straight line would go anywhere.
        """
        beyond = BEYOND * (self.high - self.low)
        return outputs.clamp(self.low - beyond, self.high + beyond)

    def answer(self, outputs: Tensor) -> Tensor:
        """The prediction of a model that is alone: its standard score, and 0, as nobody differs, [n, 2]."""
        z = self.said(outputs)
        return torch.cat([z, torch.zeros_like(z)], dim=1)

    @staticmethod
    def tempered(parts: Sequence[Tensor], slopes: Sequence[float]) -> Tensor:
        """Each prediction times its slope: what is noisy is drawn to the mean, [k, m, 1]."""
        return torch.stack([slope * part for slope, part in zip(slopes, parts, strict=True)])

    def pooled(self, weights: Tensor, parts: Tensor) -> Tensor:
        """The prediction of weighed parts, [k] and [k, m, 1], and the spread of the parts around it, [m, 2]."""
        z = self.said(torch.einsum("k,kmc->mc", weights, parts))
        share = weights / weights.sum().clamp_min(TINY)
        around = parts - torch.einsum("k,kmc->mc", share, parts)
        return torch.cat([z, torch.einsum("k,kmc->mc", share, around.square()).sqrt()], dim=1)

    @staticmethod
    def pool_weights(stack: Tensor, y: Tensor, prior: Tensor, pull: float, start: Tensor | None = None) -> Tensor:
        """The w that minimise Σ_i (y_i - Σ_k w_k L_ki)² / 2σ² + pull ‖w - prior‖², where σ² is the mean square at the prior.

        Args:
            stack: the L of several pools side by side, [p, k, m, 1].

        Returns:
            w, [p, k]
        """
        rows, truth = stack.squeeze(3), y.to(stack.dtype)
        variance = (truth - torch.einsum("k,pkm->pm", prior, rows)).square().mean(dim=1).clamp_min(TINY)[:, None]
        square = torch.einsum("pkm,plm->pkl", rows, rows) / variance.unsqueeze(2)
        eye = 2 * pull * torch.eye(len(prior), dtype=stack.dtype)
        weights: Tensor = torch.linalg.solve(square + eye, (rows @ truth) / variance + 2 * pull * prior)
        return weights

    def tallied(self, votes: Tensor) -> Tensor:
        """What label propagation says by its votes, [n, 2]: their mean, NaN where none votes, [n, 1]."""
        total = votes.sum(dim=1, keepdim=True)
        return self.voted(votes / torch.where(total > 0, total, math.nan))

    @staticmethod
    def moves(before: Tensor, after: Tensor) -> Tensor:
        """How far predictions are from others, [n]; where one of them is none, the other's standard score."""
        before, after = before[:, 0], after[:, 0]
        alone = torch.fmax(before.abs(), after.abs()).nan_to_num(0.0)
        return torch.where(before.isnan() != after.isnan(), alone, (after - before).abs().nan_to_num(0.0))

    @staticmethod
    def score_of(predicted: Tensor, labels: Tensor) -> Tensor:
        """The standard score of each label, 0 where there is none, [n]."""
        return labels.nan_to_num(0.0)

    def texts(self, labels: Tensor) -> list[str | None]:
        """Labels as text with as many digits as matter, None where there is none."""
        return [None if math.isnan(number) else f"{number:.6g}" for number in self.undone(labels).tolist()]

    def read(self, label: Any) -> float:
        from gcn_lpa.data.table import number

        value = number(str(label))
        if not math.isfinite(value):
            raise ValueError(f"{label!r:.40} is no number; these labels are numbers, such as 2.5")
        return float(self.standard(torch.tensor(value, dtype=torch.float64)))

    @staticmethod
    def named(predicted: Tensor) -> Tensor:
        return predicted[:, 0]

    @staticmethod
    def alike(labels: Tensor, others: Tensor) -> Tensor:
        """Which labels are the same but for a thousandth of their spread, [n]."""
        return (labels - others).abs() < ALIKE

    def words(self, labels: Tensor) -> np.ndarray:
        """Labels as a user has them: numbers, NaN where there is none, [n]."""
        return self.undone(labels).numpy()

    @staticmethod
    def uncertainty(predicted: Tensor) -> Tensor:
        """The spread of members and votes around each number, as a share of the largest, [n]; 1 where nothing differs."""
        most = predicted[:, 1].max()
        return predicted[:, 1] / most if most > 0 else torch.ones_like(predicted[:, 1])

    @staticmethod
    def sureness(predicted: Tensor) -> Tensor:
        """How much members and votes agree, [n]: ½ where as usual."""
        usual = predicted[:, 1].median().clamp_min(1e-12)
        return usual / (usual + predicted[:, 1])

    def groups(self, predicted: Tensor) -> tuple[np.ndarray, tuple[str, ...]]:
        """What nodes are drawn as, [n], and the name of each: one of five ranges with as many predicted numbers."""
        values = self.words(predicted[:, 0])
        ends = np.unique([float(f"{end:.3g}") for end in np.quantile(values, [0.2, 0.4, 0.6, 0.8])])
        texts = [f"{end:g}" for end in ends]
        between = (f"{low} to {high}" for low, high in pairwise(texts))
        return np.searchsorted(ends, values), (f"below {texts[0]}", *between, f"from {texts[-1]}")

    @staticmethod
    def classes(y: Tensor) -> np.ndarray:
        return np.full(len(y), -1)

    def quartiles(self, y: Tensor) -> tuple[float, float, float] | None:
        """The least, the median and the greatest known label; None where none is."""
        numbers = self.words(y[self.known(y)].cpu())
        return (float(numbers.min()), float(np.median(numbers)), float(numbers.max())) if len(numbers) else None

    def summary(self, y: Tensor) -> str:
        if (found := self.quartiles(y)) is None:
            return "numbers to predict"
        return f"numbers from {found[0]:g} to {found[2]:g}, half of them below {found[1]:g}"

    @staticmethod
    def errors(predicted: Tensor, y: Tensor) -> Tensor:
        return (predicted[:, 0] - y).abs()

    @staticmethod
    def likelihood(predicted: Tensor, y: Tensor) -> Tensor:
        """The log-likelihood of each label around its prediction, of spread 1 and up to a constant, [m]."""
        return -(predicted[:, 0] - y).square() / 2

    @staticmethod
    def credit(predicted: Tensor, y: Tensor) -> Tensor:
        """What each prediction adds to R², [m]: their mean is R²."""
        return 1 - (predicted[:, 0] - y).square() / y.var(correction=0).clamp_min(TINY)

    @staticmethod
    def chance(y: Tensor) -> float:
        """The R² of always saying the mean."""
        return 0.0

    def prior(self, y: Tensor) -> Tensor | None:
        """The prediction for a node of which nothing is known, by labels that are: their mean and spread, [2]; None without any."""
        numbers = y[self.known(y)].double()
        return torch.stack([numbers.mean(), numbers.std(correction=0)]) if len(numbers) else None

    def measured(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """R² times `number`, as if it were a number of correct predictions, and mean square error, [2]."""
        cost = (outputs.squeeze(1) - y).square().sum().double() / number
        variance = y.double().var(correction=0).clamp_min(TINY)
        return torch.stack([len(y) * (1 - cost * number / len(y) / variance), cost])

    def costs(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """For each node of a stack of models a share of R², and its square error, float64, [B, n] each."""
        costs = (outputs.squeeze(2) - y).square().double()
        return 1 - costs, costs

    def scores(
        self,
        truth: Tensor,
        predicted: Tensor,
        other: Target | None = None,
        positive: str | None = None,
    ) -> NumberScores:
        """The scores of predictions, standard scores [m] or with a spread [m, 2], for labels on another scale; None: this one."""
        self.positive(positive, truth)
        check_known(self.known(truth))
        z = self.translated(truth, other or self).double()
        guess = (predicted if predicted.dim() == 1 else predicted[:, 0]).double()
        off = self.undone(guess) - self.undone(z)
        metrics = {name: float(METRICS[name](off.unsqueeze(1), torch.zeros_like(off))) for name in ("mae", "rmse")}
        metrics["r2"] = float(METRICS["r2"](guess.unsqueeze(1), z))
        return NumberScores(**metrics, num_nodes=len(z), log=self.offset is not None, metrics=metrics)

    def compared_by(self, metric: str | None, positive: str | None, y: Tensor) -> tuple[str, str | None]:
        """R²: means are in points, and of the metrics it alone is a share."""
        self.positive(positive, y)
        if metric not in (None, "r2"):
            raise ValueError(f"metric = {metric!r:.40}; predicted numbers are compared by 'r2'")
        return "r2", None

    def positive(self, name: str | None, y: Tensor) -> int | None:
        if name is not None:
            raise ValueError(f"positive = {name!r:.40} names a class, and these labels are numbers")
        return None


@dataclass(frozen=True)
class Intervals:
    """How wide the intervals around predicted numbers are: conformal, by the errors of held-out predictions.

    Half an interval is a quantile of |error| / unit, times the unit of the node. What a node shows without its label makes its
    unit, log unit = Σ_k slope_k · f_k: the log of the spread of members and votes around the prediction, the log of the errors of
    held-out predictions nearby, the standard score that is predicted and its square, and whether no label reaches the node. The
    slopes make held-out errors likeliest, as those of Laplace's distribution of mean |error| = unit. They are kept where other
    folds say that intervals are better so; without them all are as wide.
    """

    protocol: str  # whose errors: "reserved", "validation" or "cross-validation" nodes
    num_nodes: int
    slopes: tuple[float, ...] = (0.0,) * len(WIDTHS)
    center: tuple[float, ...] = (0.0,) * len(WIDTHS)  # of each f, and how far they spread around it
    spread: tuple[float, ...] = (1.0,) * len(WIDTHS)

    def __post_init__(self) -> None:
        for name in ("slopes", "center", "spread"):
            values = getattr(self, name)
            if len(values) != len(WIDTHS) or not all(map(math.isfinite, values)) or (name == "spread" and min(values) <= 0):
                raise ValueError(f"{name} = {values}; it is {len(WIDTHS)} finite numbers, of `spread` above 0")

    def __str__(self) -> str:
        used = [name for name, slope in zip(WIDTHS, self.slopes, strict=True) if slope]
        varies = f"as wide as {', '.join(used)} say{'s' * (len(used) == 1)}" if used else "all as wide"
        return f"intervals by the errors of {self.num_nodes:,} held-out labels, {varies}"

    def unit(self, predicted: Tensor, unreachable: Tensor | None) -> Tensor:
        """What errors are measured in at each node, [m]; of standard scores, their spread and the errors nearby, [m, 3]."""
        slopes, center, spread = (predicted.new_tensor(one) for one in (self.slopes, self.center, self.spread))
        away = (_shown(predicted, unreachable) - center) / spread
        return (away.clamp(-FARTHEST, FARTHEST) @ slopes).exp()

    def radius(self, predicted: Tensor, y: Tensor, unreachable: Tensor | None, level: float) -> float:
        """The ⌈(m + 1) · level⌉-th smallest |error| of held-out predictions, in units; infinite where they are too few."""
        check_level(level)
        errors, rank = (predicted[:, 0] - y).abs() / self.unit(predicted, unreachable), rank_of(len(y), level)
        return math.inf if rank > len(y) else float(errors.sort().values[rank - 1])

    def crossed(self, predicted: Tensor, y: Tensor, fold: Tensor, unreachable: Tensor | None, level: float) -> Tensor:
        """Half the width of the interval of each held-out node, by slopes and errors of the other folds, [m]."""
        halves, used = torch.empty_like(y), [k for k, slope in enumerate(self.slopes) if slope]
        for k in fold.unique().tolist():
            here, apart = fold == k, (None, None) if unreachable is None else (unreachable[fold != k], unreachable[fold == k])
            others = predicted[~here], y[~here], apart[0]
            one = self.of(used, *others, self.protocol)
            halves[here] = one.unit(predicted[here], apart[1]) * one.radius(*others, level)
        return halves

    @classmethod
    def of(cls, used: Sequence[int], predicted: Tensor, y: Tensor, unreachable: Tensor | None, protocol: str) -> Intervals:
        """The slopes that make errors likeliest, but for ½ PULL ‖slopes‖², of some of the f; by Newton's method: it is convex."""
        plain = cls(protocol, len(y))
        if not used or not len(y):
            return plain
        shown, error = _shown(predicted, unreachable), (predicted[:, 0] - y).abs().clamp_min(TINY)
        center, spread = shown.mean(dim=0), shown.std(dim=0, correction=0)
        spread = torch.where(spread > TINY, spread, 1.0)
        at = ((shown - center) / spread).clamp(-FARTHEST, FARTHEST)[:, used]
        at, pull = torch.cat([torch.ones_like(at[:, :1]), at], dim=1), torch.eye(len(used) + 1, dtype=at.dtype) * PULL
        pull[0, 0] = 0  # of the level of all units
        slopes = torch.zeros_like(at[0])
        slopes[0] = error.mean().log()
        for _ in range(NEWTON_STEPS):
            relative = error * (-at @ slopes).exp()
            move = torch.linalg.solve(at.T @ (at * relative.unsqueeze(1)) + pull, at.T @ (1 - relative) + pull @ slopes)
            slopes = slopes - move / max(1.0, float(move.abs().max()))
        every = torch.zeros_like(center)
        every[list(used)] = slopes[1:]
        return cls(protocol, len(y), *(tuple(one.tolist()) for one in (every, center, spread)))

    @classmethod
    def fitted(
        cls, predicted: Tensor, y: Tensor, protocol: str, fold: Tensor | None = None, unreachable: Tensor | None = None
    ) -> Intervals:
        """The intervals of those tried that are best in other folds, where that is clear.

        The score of an interval is its width and 2 / (1 - level) times how far outside the number is (Winkler 1972).
        """
        fold = torch.arange(len(y)) % FOLDS if fold is None else fold
        is_apart = unreachable is not None and min(int(unreachable.sum()), int((~unreachable).sum())) >= FEWEST
        always = (len(WIDTHS) - 1,) * is_apart

        def scores(one: Intervals) -> Tensor:
            halves = one.crossed(predicted, y, fold, unreachable, USUAL_LEVEL)
            return 2 * halves + 2 / (1 - USUAL_LEVEL) * ((predicted[:, 0] - y).abs() - halves).clamp_min(0)

        alike = cls.of(always, predicted, y, unreachable, protocol)
        if len(y) < FEWEST_SPREAD:
            return alike
        tried = [cls.of((*used, *always), predicted, y, unreachable, protocol) for used in TRIED]
        best = min(tried, key=lambda one: float(scores(one).mean()))
        gain = scores(alike) - scores(best)
        return best if float(gain.mean()) > SURE * float(gain.std()) / math.sqrt(len(gain)) else alike


def _shown(predicted: Tensor, unreachable: Tensor | None) -> Tensor:
    """The f of `Intervals`, [m, 5]."""
    z, spread, near = predicted.T
    apart = torch.zeros_like(z) if unreachable is None else unreachable.to(z.dtype)
    return torch.stack([(spread + LEAST_SPREAD).log(), near.log(), z, z.square(), apart], dim=1)


def errors_nearby(between_nodes: SparseMatrix, error: Tensor, usual: float, group: Tensor | None = None) -> Tensor:
    """The mean of the errors that a walk of up to 16 steps meets, and of the usual one, which weighs little, [n, groups].

    Args:
        error: of the prediction of each node, held out from it; NaN where there is none, [n].
        group: of each such node; each group is met alone, [n].
    """
    group = torch.zeros(len(error), dtype=torch.int64) if group is None else group
    at = (~error.isnan()).nonzero().squeeze(1)
    seeds = error.new_zeros(len(error), 2, int(group.max()) + 1)
    seeds[at, 0, group[at]], seeds[at, 1, group[at]] = 1.0, error[at]
    walk, walked, met = between_nodes.to("cpu").to(error.dtype), seeds.flatten(1), torch.zeros_like(seeds)
    for _ in range(STEPS):
        walked = walk @ walked
        met += walked.view_as(seeds) / STEPS
    mass, errors = met.unbind(1)
    return (errors + USUAL_MASS * usual) / (mass + USUAL_MASS)


def weighed_mean(costs: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of costs, [m]; `weight` of each, None: all weigh the same."""
    weight = torch.ones_like(costs) if weight is None else weight
    return (costs * weight).sum() / weight.sum().clamp_min(TINY)


def _skewness(numbers: Tensor) -> float:
    """The third moment of standard scores; 0 where all are equal."""
    around = numbers - numbers.mean()
    return float(around.pow(3).mean() / around.square().mean().pow(1.5).clamp_min(1e-300))
