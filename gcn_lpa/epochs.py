"""Records of training: epochs, the best of them by a rule, divergence, checkpoints; and the callbacks that get them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.methods.contract import Predictor


@dataclass(frozen=True)
class Epoch:
    """One line of the history; losses are those of the step, validation is after it. None: not measured."""

    epoch: int
    loss: float | None
    gcn: float | None
    lpa: float | None
    val_accuracy: float | None
    val_loss: float | None
    seconds: float


@dataclass(frozen=True, repr=False)
class Run:
    """The history of a training. `best_epoch` is the epoch whose weights the model has now."""

    recipe: Recipe
    seed: int
    history: tuple[Epoch, ...]
    best_epoch: int
    interrupted: bool = False

    def __repr__(self) -> str:
        scored = "" if self.best.val_accuracy is None else f" (validation {100 * self.best.val_accuracy:.1f} %)"
        stopped = "interrupted, " if self.interrupted else ""
        chosen = f"epoch {self.best_epoch} of {len(self.history)}{scored}"
        return f"Run: {self.recipe.method}, seed {self.seed}, {stopped}{chosen}, {self.seconds:.1f} s"

    @property
    def best(self) -> Epoch:
        return self.history[self.best_epoch - 1]

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.history)


@dataclass(frozen=True)
class Best:
    """The best epoch so far and a copy of its weights, by a rule.

    first_best  the highest validation accuracy, the earliest of equals (the paper does not say)
    last_best   the highest validation accuracy, the latest of equals (the authors' code)
    loss        the lowest validation cross-entropy
    """

    rule: str
    epoch: int = 0
    score: float = -math.inf
    state: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def after(self, epoch: Epoch, model: Predictor) -> Best:
        """This, or the new best if `epoch` is one."""
        if (found := self.judged(epoch)) is self:
            return self
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return dataclasses.replace(found, state=state)

    def judged(self, epoch: Epoch) -> Best:
        """The same without weights; without validation the latest epoch is the best."""
        if epoch.val_accuracy is None or epoch.val_loss is None:
            return Best(self.rule, epoch.epoch, self.score)
        score = -epoch.val_loss if self.rule == "loss" else epoch.val_accuracy
        better = score >= self.score if self.rule == "last_best" else score > self.score
        return Best(self.rule, epoch.epoch, score) if better else self


class Kept:
    """The weights of a model after each epoch, while all of them together take no more than `most` bytes."""

    def __init__(self, most: int = 1 << 26) -> None:
        self.left, self._states = most, dict[int, dict[str, Tensor]]()

    def keep(self, epoch: int, state: Mapping[str, Tensor]) -> None:
        self.left -= sum(tensor.nbytes for tensor in state.values())
        if self.left >= 0:
            self._states[epoch] = {name: tensor.detach().clone() for name, tensor in state.items()}

    def take_over(self, other: Kept) -> None:
        """Keep what another one has kept."""
        self.left, self._states = other.left, other._states

    def after(self, epoch: int) -> Mapping[str, Tensor] | None:
        """None: not kept."""
        return self._states.get(epoch)


class DivergedError(ValueError):
    """A loss that is not finite. The model has the best weights before it, those of `run.best_epoch`."""

    run: Run | None = None


def epoch_of(report: Sequence[float], number: int, num_validation: int, recipe: Recipe, seconds: float) -> Epoch:
    """The record of a step that gave [loss, gcn, lpa, num_correct, val_loss]; what is not finite is refused.

    Where validation does not choose, the last two are missing, or there are no validation nodes.
    """
    total, gcn, lpa, *scored = report[: None if num_validation else 3]
    accuracy, cost = (scored[0] / num_validation, scored[1]) if scored else (None, None)
    if not all(map(math.isfinite, (total, gcn, lpa, *scored))):
        other = "" if recipe.features == "l2" else ", or features = 'l2'"
        raise DivergedError(
            f"training diverged at epoch {number} with lr = {recipe.lr:g} and features = {recipe.features!r}: the "
            f"loss is {total:g}, on validation nodes {cost}; try lr = {recipe.lr / 10:g}{other}"
        )
    return Epoch(number, total, gcn, lpa, accuracy, cost, seconds)


class Checkpoint(NamedTuple):
    """The state that a training goes on from, and its files, which errors name."""

    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]  # as JSON has it
    tensors_file: Path
    meta_file: Path


class Checkpoints(Protocol):
    """The place where a training saves its state."""

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Replace the checkpoint, entirely or not at all, in all processes."""

    def latest(self) -> Checkpoint | None:
        """The state of this process in the last complete checkpoint; None if there is none."""


class Fit(NamedTuple):
    """A trained model, and the history of its training."""

    model: Any
    run: Run


class JobName(NamedTuple):
    """The name of one of the models of a training."""

    stage: str  # "fit", or "fold-1", "fold-2" …
    member: str  # "" for the first
    epochs: int  # at most


@dataclass(frozen=True, eq=False)
class Watch:
    """Callbacks and checkpoints of a training of one or many models."""

    on_plan: Callable[[Sequence[JobName]], None] | None = None  # called first, with all models that will be trained
    on_epoch: Callable[[JobName, Epoch], None] | None = None
    on_done: Callable[[JobName], None] | None = None  # called after the last epoch of a model
    checkpoints: Callable[[JobName], Checkpoints] | None = None  # where a model saves its state
    every: int = 50  # epochs between two checkpoints
    seconds: float = 0.0  # of training at least between two checkpoints: less is sooner done again than saved
    resume: bool = False  # go on from checkpoints, where there are some
    content: str = ""  # hash of the graph as it was loaded, which a checkpoint must agree with
