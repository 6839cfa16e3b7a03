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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gcn_lpa.data.files import decode_as, naming
from gcn_lpa.engine.adam import Adam, CapturedStep
from gcn_lpa.engine.random import Key
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.epochs import Best, Checkpoint, Checkpoints, DivergedError, Epoch, Kept, Run, epoch_of

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.losses import Loss
    from gcn_lpa.methods.contract import FittedAtOnce, Model, Predictor
    from gcn_lpa.recipes import Recipe


class Batch(NamedTuple):
    """The graph and the nodes of one gradient step. A full batch is the whole graph."""

    graph: Graph  # prepared, with the labels of the training nodes only
    nodes: Tensor  # the training nodes in it: positions, [m]
    node_ids: Tensor | None = None  # of its nodes in the whole graph, [n]; None: it is the whole graph
    random_ids: Tensor | None = None  # names of the random bits of its nodes, [n]; None: their positions
    stored: Tensor | None = None  # features of the whole graph; those of `node_ids` are read when they are needed

    def to(self, device: torch.device, *, waits: bool = False) -> Batch:
        """For steps on a device. One that waits is moved there for each of its steps, so that one at a time takes room there."""
        ids = None if self.random_ids is None else self.random_ids.to(device)
        graph = self.graph if waits else self.graph.to(device)
        for matrix in (graph.adjacency, graph.x) if waits else ():
            if isinstance(matrix, SparseMatrix):
                _ = matrix.pattern.T  # sorted once, and moved with the rest
        return self._replace(graph=graph, nodes=self.nodes.to(device), random_ids=ids)

    def read(self) -> Graph:
        """Its graph with its features, on the device."""
        graph = self.graph
        if self.stored is not None and self.node_ids is not None:
            x = self.stored.index_select(0, self.node_ids.to(self.stored.device))
            graph = dataclasses.replace(graph, x=x.to(graph.device))
        return graph.to(self.nodes.device)


class Validation(NamedTuple):
    """The nodes that choose the epoch, with labels that the model does not see."""

    graph: Graph  # as in `Batch`
    nodes: Tensor  # positions, [v]
    target: Tensor  # their classes, [v]
    everywhere: int | None = None  # how many all processes have; None: this one has all

    @property
    def number(self) -> int:
        return len(self.nodes) if self.everywhere is None else self.everywhere

    def on(self, graph: Graph) -> Validation:
        """The same nodes of the graph on another device."""
        return self._replace(graph=graph, nodes=self.nodes.to(graph.device), target=self.target.to(graph.device))


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


@dataclass(frozen=True)
class Watching:
    """Callbacks and checkpoints of the training of one model."""

    on_epoch: Callable[[Epoch], None] | None = None
    checkpoints: Checkpoints | None = None
    every: int = 50  # epochs between two checkpoints
    seconds: float = 0.0  # of training at least between two checkpoints: less is sooner done again than saved
    resume: bool = False  # go on from the checkpoint, if there is one
    fingerprint: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # facts that a checkpoint must agree with
    kept: Kept | None = None  # where the weights after each epoch go


def fit(
    model: Model,
    batches: Sequence[Batch],
    validation: Validation,
    recipe: Recipe,
    *,
    seed: int = 0,
    stop_at: int | None = None,
    capture: str = "auto",
    watching: Watching | None = None,
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
    """
    last = last_epoch(model, recipe, stop_at)
    is_whole = len(batches) == 1 and batches[0].node_ids is None
    may_capture = batches[0].nodes.device.type == "cuda" and model.capturable
    loop = _Loop(model, batches, validation, recipe, seed, watching or Watching(), world or World())
    return loop.run(last, capture=is_whole and (capture == "always" or (capture == "auto" and may_capture)))


def fit_at_once(
    model: FittedAtOnce,
    graph: Graph,
    nodes: Tensor,
    validation: Validation,
    recipe: Recipe,
    *,
    seed: int = 0,
    world: World | None = None,
) -> Run:
    """Fit a model without gradient steps to the labels of `nodes`, positions in a prepared graph; as a run of one epoch."""
    start = time.perf_counter()
    model.fit_at_once(graph, nodes)
    accuracy = cost = None
    if validation.number:
        correct, cost = (world or World()).total(measured(model, validation)).tolist()
        accuracy = correct / validation.number
    model.eval()
    return Run(recipe, seed, (Epoch(1, None, None, None, accuracy, cost, time.perf_counter() - start),), best_epoch=1)


@torch.no_grad()
def measured(model: Predictor, validation: Validation) -> Tensor:
    """Number of correct predictions and mean cross-entropy, [2]; of several processes, the share of this one."""
    outputs = model(validation.graph).index_select(0, validation.nodes)
    return validation.graph.target.measured(outputs, validation.target, validation.number)


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


def is_patience_over(recipe: Recipe, phase: Phase, best: Best, num_epochs: int) -> bool:
    """Whether a model has gone on for `patience` epochs without a better one."""
    return bool(recipe.patience and phase.selects and best.epoch and num_epochs - best.epoch >= recipe.patience)


class _Step:
    """One epoch as one call: for each batch a gradient and a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] on the device, the losses as means over the batches; the last two only
    where validation may choose.
    """

    def __init__(self, loop: _Loop, phase: Phase, epoch: int) -> None:
        self.loop, self.phase, self.model = loop, phase, loop.model
        recipe, batches = loop.recipe, loop.batches
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=batches[0].nodes.device)
        shorter = math.sqrt(len(batches) if recipe.clusters else 1)  # each step follows the noisy gradient of a part
        groups, rates = [], []
        for parameters, l2, lr, trains in (
            (self.model.weight_parameters(), recipe.l2, recipe.lr, phase.trains_weights),
            (self.model.edge_parameters(), recipe.l2_edges, recipe.edge_lr or recipe.lr, phase.trains_edges),
        ):
            for parameter in parameters:
                parameter.requires_grad_(trains)
            if trains and parameters:
                groups.append((parameters, l2))
                rates.append(lr / shorter)
        self.optimizer = Adam(groups, lr=rates, batches=len(batches))

    def __call__(self) -> Tensor:
        losses = [self.learn(batch) for batch in self.loop.batches]
        self.epoch += 1
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(dim=0)
        validation = self.loop.validation
        if validation.number == 0 or not self.phase.selects:
            return mean
        return torch.cat([mean, self.loop.world.total(measured(self.model, validation))])

    def learn(self, batch: Batch) -> Tensor:
        """One gradient step; [loss, gcn, lpa]."""
        self.optimizer.zero_grad()
        self.model.train()
        loss = self.model.loss(batch.read(), batch.nodes, Key(self.loop.seed, self.epoch, batch.random_ids))
        objective = self.phase.objective(loss)
        objective.backward()
        world = self.loop.world
        world.add_up(self.optimizer.parameters())
        self.optimizer.step()
        self.model.eval()
        return world.total(torch.stack([objective.detach(), loss.gcn.detach(), loss.lpa.detach()]).double())

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name; the tensors themselves."""
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return {"epoch": self.epoch, **model, **self.optimizer.state()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


@dataclass(eq=False)
class _Loop:
    """The loop of `fit` and its state between epochs."""

    model: Model
    batches: Sequence[Batch]
    validation: Validation
    recipe: Recipe
    seed: int
    watching: Watching
    world: World
    history: list[Epoch] = dataclasses.field(default_factory=list)
    saved: Checkpoint | None = None  # to go on from

    def __post_init__(self) -> None:
        self.best = Best(self.recipe.select)
        if self.watching.resume and self.watching.checkpoints is not None:
            self.saved = self.watching.checkpoints.latest()
        if self.saved is not None:
            self.load(self.saved)

    def run(self, last: int, *, capture: bool) -> Run:
        interrupted = False
        try:
            for number in range(len(PHASES[self.recipe.training])):
                until = min(last, (number + 1) * self.recipe.epochs)
                if len(self.history) < until:
                    self.run_phase(number, until, capture)
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

    def run_phase(self, number: int, until: int, capture: bool) -> None:
        phase, watching, recipe = PHASES[self.recipe.training][number], self.watching, self.recipe
        step = _Step(self, phase, epoch=len(self.history) + 1)
        if self.saved is not None and self.saved.meta["phase"] == number:
            step.restore(self.saved.tensors)
        elif self.saved is not None:  # saved at the end of the phase before: Adam starts afresh
            self.model.load_state_dict(_part(self.saved.tensors, "model."))
        self.saved = None
        advance = CapturedStep(step) if capture else step
        last_saved = time.monotonic()
        is_over = is_patience_over(recipe, phase, self.best, len(self.history))
        while len(self.history) < until and not is_over:
            start, done = time.perf_counter(), len(self.history) + 1
            report = advance().tolist()
            epoch = epoch_of(report, done, self.validation.number, recipe, time.perf_counter() - start)
            self.history.append(epoch)
            self.best = self.best.after(epoch, self.model)  # in one go: Ctrl-C finds the old best or the new
            if watching.kept is not None:
                watching.kept.keep(done, self.model.state_dict())
            if watching.on_epoch is not None:
                watching.on_epoch(epoch)
            is_over = is_patience_over(recipe, phase, self.best, done)
            is_due = watching.every and (done % watching.every == 0 or done == until or is_over)
            if watching.checkpoints is not None and is_due and time.monotonic() - last_saved >= watching.seconds:
                self.save(watching.checkpoints, step, number)
                last_saved = time.monotonic()

    def save(self, checkpoints: Checkpoints, step: _Step, phase: int) -> None:
        tensors = {**step.state(), **{f"best.{name}": tensor for name, tensor in self.best.state.items()}}
        meta = {
            "of": dict(self.watching.fingerprint),
            "phase": phase,
            "best_epoch": self.best.epoch,
            "best_score": self.best.score if math.isfinite(self.best.score) else None,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
        }
        checkpoints.save(tensors, meta)

    def load(self, saved: Checkpoint) -> None:
        with naming(saved.meta_file):
            meta: _Saved = decode_as(_Saved, saved.meta)
        if other := [name for name, value in self.watching.fingerprint.items() if meta.of.get(name) != value]:
            raise ValueError(
                f"{saved.meta_file}: the checkpoint is of another run, with another {', '.join(other)}; choose another folder"
            )
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

    of: dict[str, Any]  # `Watching.fingerprint`
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
