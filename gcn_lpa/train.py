"""The training loop: steps of Eq. (18), the choice of the epoch, and checkpoints.

`fit` takes a model, its batches, and the validation nodes. Their graph has the labels of the training nodes and no others: the
model cannot see the labels that choose the epoch, let alone those of test nodes. The random bits of a step are named by
(seed, epoch), so that a run that was resumed, or replayed as a CUDA graph, is the plain run bit for bit.

`methods.contract` defines a model; `fit_at_once` trains one without gradient steps.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gcn_lpa.data.files import decode_as, naming
from gcn_lpa.engine.adam import Adam, Capturable, CapturedStep
from gcn_lpa.engine.sparse import Key
from gcn_lpa.metrics import METRICS
from gcn_lpa.recipes import LEAST_WAIT, Recipe

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.learning.tasks import Batch, Kept, Validation
    from gcn_lpa.losses import Loss
    from gcn_lpa.methods.contract import FittedAtOnce, Model, Predictor
    from gcn_lpa.target import Target


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
    val_score: float | None = None  # the metric that chooses the epoch, where it is neither accuracy nor loss


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
    """The best epoch so far and a copy of its weights, by a rule; without validation the latest epoch is the best.

    first_best  the highest validation accuracy, the earliest of equals (the paper does not say)
    last_best   the highest validation accuracy, the latest of equals (the authors' code)
    loss        the lowest validation cross-entropy
    a metric    the best of it on the validation nodes, the earliest of equals
    """

    rule: str
    epoch: int = 0
    score: float = -math.inf
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def after(self, epoch: Epoch, model: Predictor | None = None) -> Best:
        """This, or the new best if `epoch` is one, with the weights of a model."""
        score = self.score
        if epoch.val_accuracy is not None and epoch.val_loss is not None:
            score = -epoch.val_loss if self.rule == "loss" else epoch.val_accuracy
            score = score if epoch.val_score is None else METRICS[self.rule].sign * epoch.val_score
            if not (score >= self.score if self.rule == "last_best" else score > self.score):
                return self
        state = {} if model is None else {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return Best(self.rule, epoch.epoch, score, state)


class DivergedError(ValueError):
    """A loss that is not finite. The model has the best weights before it, those of `run.best_epoch`."""

    run: Run | None = None


def epoch_of(report: Sequence[float], number: int, num_validation: int, recipe: Recipe, seconds: float) -> Epoch:
    """The record of a step that gave [loss, gcn, lpa, num_correct, val_loss, metric], as far as validation chooses by them."""
    total, gcn, lpa, *scored = report[: None if num_validation else 3]
    accuracy, cost = (scored[0] / num_validation, scored[1]) if scored else (None, None)
    if not all(map(math.isfinite, (total, gcn, lpa, *scored))):
        other = "" if recipe.features == "l2" else ", or features = 'l2'"
        raise DivergedError(
            f"training diverged at epoch {number} with lr = {recipe.lr:g} and features = {recipe.features!r}: the "
            f"loss is {total:g}, on validation nodes {cost}; try lr = {recipe.lr / 10:g}{other}"
        )
    return Epoch(number, total, gcn, lpa, accuracy, cost, seconds, scored[2] if len(scored) > 2 else None)


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

    stage: str = "fit"  # or "fold-1", "fold-2" …
    member: str = ""  # that of the first
    epochs: int = 0  # at most


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
    facts: Mapping[str, Any] = field(default_factory=dict)  # a checkpoint must agree with them: the hash of the graph …


class World:
    """The processes that train together: here, one."""

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradient of each parameter that all processes have, in place."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        return values


@dataclass(frozen=True)
class Phase:
    """A part of training: the objective, the parameters it moves, and whether validation may choose its epochs."""

    objective: Callable[[Loss], Tensor]
    trains_edges: bool
    trains_weights: bool
    selects: bool = True


PHASES = {
    "joint": [Phase(lambda loss: loss.total, trains_edges=True, trains_weights=True)],  # Eq. (18)
    "two_step": [
        Phase(lambda loss: loss.lpa, trains_edges=True, trains_weights=False, selects=False),  # Eq. (15)
        Phase(lambda loss: loss.gcn, trains_edges=False, trains_weights=True),  # Eq. (17)
    ],
}


def num_epochs(recipe: Recipe) -> int:
    """How many epochs a run has if nothing stops it: `recipe.epochs` for each phase."""
    return recipe.epochs * len(PHASES[recipe.training])


def fit(
    model: Model,
    batches: Sequence[Batch],
    validation: Validation,
    recipe: Recipe,
    *,
    seed: int = 0,
    stop_at: int | None = None,
    capture: str = "auto",
    name: JobName | None = None,
    watch: Watch | None = None,
    kept: Kept | None = None,
    world: World | None = None,
) -> Run:
    """Train `model` on the batches, choose the epoch by the validation nodes, and leave the model at that epoch.

    Ctrl-C ends the training and keeps the best so far. A loss that is not finite raises `DivergedError`, and the model then
    has the best weights so far.

    Args:
        batches: one gradient step each, every epoch in this order.
        validation: without nodes the last epoch is kept.
        stop_at: end after this epoch, although the recipe has more.
        capture: replay each step as one CUDA graph: "auto" (on a GPU, where the model allows it), "always" or "never".
        name: of the model, for `watch`.
        kept: gets the weights after each epoch.
    """
    last = last_epoch(model, recipe, stop_at)
    is_whole = len(batches) == 1 and batches[0].node_ids is None
    may_capture = batches[0].nodes.device.type == "cuda" and model.capturable
    captures = is_whole and (capture == "always" or (capture == "auto" and may_capture))
    options = name or JobName(), watch or Watch(), kept, world or World()
    return _Loop(model, batches, validation, recipe, seed, *options).run(last, capture=captures)


def fit_at_once(model: FittedAtOnce, graph: Graph, nodes: Tensor, validation: Validation, recipe: Recipe, **run: Any) -> Run:
    """Fit a model without gradient steps to the labels of `nodes`, positions in a prepared graph; a stage is an epoch.

    The validation loss chooses the stage: it is the smoothest. `run`: seed and world, as in `fit`.
    """
    start, scored, n = time.perf_counter(), list[Any]([(None, None)]), validation.number
    model.fit_at_once(graph, nodes)
    model.eval()
    if n:
        with torch.no_grad():
            outputs = model.stages(validation.graph, validation.nodes)
            known = torch.stack([validation.graph.target.measured(o, validation.target, n) for o in outputs])
        scored = [(correct / n, cost) for correct, cost in run.get("world", World()).total(known).tolist()]
    seconds = (time.perf_counter() - start) / len(scored)
    history = tuple(Epoch(k, None, None, None, right, cost, seconds) for k, (right, cost) in enumerate(scored, start=1))
    return Run(recipe, run.get("seed", 0), history, min(history, key=lambda epoch: epoch.val_loss or 0.0).epoch)


@torch.no_grad()
def measured(model: Predictor, validation: Validation, select: str = "loss") -> Tensor:
    """Number of correct predictions and mean cross-entropy, of several processes the share of this one; the metric `select`."""
    outputs, target = model.outputs(validation.graph, validation.nodes), validation.graph.target
    known = target.measured(outputs, validation.target, validation.number)
    scored = [METRICS[select](target.answer(outputs.double()), validation.target).view(1)] if select in METRICS else []
    return torch.cat([known, *scored])


def last_epoch(model: Model, recipe: Recipe, stop_at: int | None = None) -> int:
    """The last epoch if nothing stops training before; an impossible training is refused."""
    teaches_edges = recipe.lpa_weight * recipe.lpa_iterations * recipe.lpa_ratio and model.edge_parameters()
    if recipe.training == "two_step" and not teaches_edges:
        raise ValueError(
            "training 'two_step' learns the edges from the LPA loss alone: it needs an edge form that learns, "
            "and lpa_weight, lpa_iterations and lpa_ratio above 0"
        )
    if stop_at is not None and stop_at < 1:
        raise ValueError(f"stop_at = {stop_at}; training has at least 1 epoch")
    return min(stop_at or num_epochs(recipe), num_epochs(recipe))


def is_patience_over(recipe: Recipe, phase: Phase, best: Best, num_epochs: int, target: Target) -> bool:
    """Whether a model has gone on for `patience` epochs without a better one, or for as long as it took to find the best.

    One that gives the classes of held-out nodes 99 % has hardly anything to gain, and ends too.
    """
    is_certain = best.rule == "loss" and best.score > -target.certain
    if phase.selects and is_certain and num_epochs >= LEAST_WAIT:
        return True
    wait = min(recipe.patience, max(best.epoch, LEAST_WAIT))
    return bool(recipe.patience and phase.selects and best.epoch and num_epochs - best.epoch >= wait)


def optimizer_of(
    phase: Phase, recipe: Recipe, model: Model, parameters: Mapping[str, nn.Parameter], *, num_batches: int = 1
) -> Adam:
    """Adam on the parameters that a phase moves; all others are frozen.

    Args:
        parameters: by their names in the model; of a stack of models those of all.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shorter = math.sqrt(num_batches if recipe.clusters else 1)  # each step follows the noisy gradient of a part
    groups = []
    for of_model, l2, lr, trains in (
        (model.weight_parameters(), recipe.l2, recipe.lr, phase.trains_weights),
        (model.edge_parameters(), recipe.l2_edges, recipe.edge_lr or recipe.lr, phase.trains_edges),
    ):
        group = [parameters[names[id(parameter)]] for parameter in of_model]
        for parameter in group:
            parameter.requires_grad_(trains)
        if trains and group:
            groups.append((group, l2, lr / shorter))
    return Adam(groups, batches=num_batches)


class _Step(Capturable):
    """One epoch as one call: for each batch a gradient and a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss, metric] on the device, the losses as means over the batches: see `epoch_of`.
    """

    def __init__(self, loop: _Loop, phase: Phase, epoch: int) -> None:
        self.loop, self.phase, self.model = loop, phase, loop.model
        recipe, batches = loop.recipe, loop.batches
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=batches[0].nodes.device)
        parameters = dict(self.model.named_parameters())
        self.optimizer = optimizer_of(phase, recipe, self.model, parameters, num_batches=len(batches))

    def __call__(self) -> Tensor:
        losses, world = [], self.loop.world
        for batch in self.loop.batches:
            self.optimizer.zero_grad()
            self.model.train()
            loss = self.model.loss(batch.read(), batch.nodes, Key(self.loop.seed, self.epoch, batch.random_ids))
            objective = self.phase.objective(loss)
            objective.backward()
            world.add_up(self.optimizer.parameters())
            self.optimizer.step()
            self.model.eval()
            losses.append(world.total(torch.stack([objective.detach(), loss.gcn.detach(), loss.lpa.detach()]).double()))
        self.epoch += 1
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(dim=0)
        validation = self.loop.validation
        if validation.number == 0 or not self.phase.selects:
            return mean
        return torch.cat([mean, world.total(measured(self.model, validation, self.loop.recipe.select))])

    def state(self) -> dict[str, Tensor]:
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return {"epoch": self.epoch, **model, **self.optimizer.state()}


class _Loop:
    """The loop of `fit` and its state between epochs."""

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        validation: Validation,
        recipe: Recipe,
        seed: int,
        name: JobName,
        watch: Watch,
        kept: Kept | None,
        world: World,
    ) -> None:
        self.model, self.batches, self.validation, self.recipe, self.seed = model, batches, validation, recipe, seed
        self.name, self.watch, self.kept, self.world = name, watch, kept, world
        self.checkpoints = None if watch.checkpoints is None else watch.checkpoints(name)
        self.best, self.history = Best(recipe.select), list[Epoch]()

    def run(self, last: int, *, capture: bool) -> Run:
        interrupted, saved = False, self.checkpoints.latest() if self.checkpoints and self.watch.resume else None
        if saved is not None:
            self.load(saved)
        try:
            for number in range(len(PHASES[self.recipe.training])):
                until = min(last, (number + 1) * self.recipe.epochs)
                if len(self.history) < until:
                    self.run_phase(number, until, capture, saved)
                    saved = None
        except KeyboardInterrupt:
            if not self.best.epoch:
                raise
            interrupted = True
        except DivergedError as error:
            error.run = Run(self.recipe, self.seed, tuple(self.history), self.best.epoch)
            raise
        finally:
            for parameter in (*self.model.weight_parameters(), *self.model.edge_parameters()):
                parameter.requires_grad_(True)
            self.model.eval()
            if self.best.epoch:
                self.model.load_state_dict(self.best.state)
        return Run(self.recipe, self.seed, tuple(self.history), self.best.epoch, interrupted)

    def run_phase(self, number: int, until: int, capture: bool, saved: Checkpoint | None) -> None:
        phase, watch, recipe = PHASES[self.recipe.training][number], self.watch, self.recipe
        step = _Step(self, phase, epoch=len(self.history) + 1)
        if saved is not None and saved.meta["phase"] == number:
            step.restore(saved.tensors)
        elif saved is not None:  # at the end of the phase before: Adam starts afresh
            self.model.load_state_dict(_part(saved.tensors, "model."))
        advance = CapturedStep(step) if capture else step
        last_saved = time.monotonic()
        is_over = is_patience_over(recipe, phase, self.best, len(self.history), self.validation.graph.target)
        while len(self.history) < until and not is_over:
            start, done = time.perf_counter(), len(self.history) + 1
            report = advance().tolist()
            epoch = epoch_of(report, done, self.validation.number, recipe, time.perf_counter() - start)
            self.history.append(epoch)
            self.best = self.best.after(epoch, self.model)  # in one go: Ctrl-C finds the old best or the new
            if self.kept is not None:
                self.kept.keep(done, self.model.state_dict())
            if watch.on_epoch is not None:
                watch.on_epoch(self.name, epoch)
            is_over = is_patience_over(recipe, phase, self.best, done, self.validation.graph.target)
            is_due = watch.every and (done % watch.every == 0 or done == until or is_over)
            if self.checkpoints is not None and is_due and time.monotonic() - last_saved >= watch.seconds:
                self.save(self.checkpoints, step, number)
                last_saved = time.monotonic()

    def facts(self) -> dict[str, Any]:
        """What a checkpoint must agree with for this training to go on from it."""
        return {"recipe": self.recipe.hash(), "seed": self.seed, **self.watch.facts}

    def save(self, checkpoints: Checkpoints, step: _Step, phase: int) -> None:
        tensors = {**step.state(), **{f"best.{name}": tensor for name, tensor in self.best.state.items()}}
        meta = {
            "of": self.facts(),
            "phase": phase,
            "best_epoch": self.best.epoch,
            "best_score": self.best.score if math.isfinite(self.best.score) else None,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
        }
        checkpoints.save(tensors, meta)

    def load(self, saved: Checkpoint) -> None:
        with naming(saved.meta_file):
            meta: _Saved = decode_as(_Saved, saved.meta)
        if other := [name for name, value in self.facts().items() if meta.of.get(name) != value]:
            names = f"another {', '.join(other)}; choose another folder"
            raise ValueError(f"{saved.meta_file}: the checkpoint is of another run, with {names}")
        with naming(saved.meta_file):
            meta.check(self.recipe)
        with naming(saved.tensors_file):
            step = _Step(self, PHASES[self.recipe.training][meta.phase], epoch=len(meta.history) + 1)
            best = {f"best.{name}": tensor for name, tensor in self.model.state_dict().items()}
            _check_tensors(saved.tensors, {**step.state(), **best})
            if int(saved.tensors["epoch"]) != int(step.epoch):
                raise ValueError(f"epoch is {int(saved.tensors['epoch'])}, after {len(meta.history)} in meta.json")
        self.history = list(meta.history)
        score = -math.inf if meta.best_score is None else meta.best_score
        self.best = Best(self.recipe.select, meta.best_epoch, score, _part(saved.tensors, "best."))


@dataclass(frozen=True)
class _Saved:
    """meta.json of a checkpoint."""

    of: dict[str, Any]  # `_Loop.facts`
    phase: int
    best_epoch: int
    best_score: float | None
    history: tuple[Epoch, ...]

    def check(self, recipe: Recipe) -> None:
        num_phases, done = len(PHASES[recipe.training]), len(self.history)
        if not 0 <= self.phase < num_phases:
            raise ValueError(f"phase is {self.phase}; training {recipe.training!r} has phases 0 to {num_phases - 1}")
        if [epoch.epoch for epoch in self.history] != list(range(1, done + 1)) or done > num_epochs(recipe):
            raise ValueError(f"the epochs are not numbered 1, 2, … to {num_epochs(recipe)} at most")
        if not 1 <= self.best_epoch <= done:
            raise ValueError(f"best_epoch is {self.best_epoch}, of {done} epochs")


def _check_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse tensors that differ by name, shape or type from those of the training."""
    for name in sorted(found.keys() ^ wanted.keys()):
        raise ValueError(f"{name} is {'missing' if name in wanted else 'not of this training'}")
    for name, tensor in wanted.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            is_now, expected = (f"{tuple(t.shape)} of {t.dtype}" for t in (found[name], tensor))
            raise ValueError(f"{name} is {is_now}; it is {expected}")


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
