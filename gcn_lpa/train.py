"""The training loop: steps of Eq. (18), the choice of the epoch, and checkpoints.

`fit` is handed a model, its batches, and the validation nodes. Their graph shows the labels of the training nodes and no
others: the model cannot see the labels that choose the epoch, let alone those of test nodes. The random bits of a step are
named by (seed, epoch), so that a run that was stopped and resumed, or replayed as a CUDA graph, walks the same path bit for bit.

What a model is, `methods.contract` says; one without gradient steps is trained by `fit_at_once`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
    """What one gradient step is about. A full batch is the whole graph."""

    graph: Graph  # prepared, with the labels of the training nodes only
    nodes: Tensor  # the training nodes in it: positions, [m]
    node_ids: Tensor | None = None  # of its nodes in the whole graph, [n]; None: it is the whole graph
    random_ids: Tensor | None = None  # what names the random bits of its nodes, [n]; None: their positions
    stored: Tensor | None = None  # features of the whole graph; those of `node_ids` are read when they are needed

    @property
    def device(self) -> torch.device:
        """Where its step is taken."""
        return self.nodes.device

    def to(self, device: torch.device, *, waits: bool = False) -> Batch:
        """For steps on a device. One that waits is moved there for each of its steps: of many, one at a time takes room there."""
        ids = None if self.random_ids is None else self.random_ids.to(device)
        graph = self.graph if waits else self.graph.to(device)
        for matrix in (graph.adjacency, graph.x) if waits else ():
            if isinstance(matrix, SparseMatrix):
                _ = matrix.pattern.columns  # sorted once, and moved with the rest
        return self._replace(graph=graph, nodes=self.nodes.to(device), random_ids=ids)

    def read(self) -> Graph:
        """Its graph with its features, on the device."""
        graph = self.graph
        if self.stored is not None and self.node_ids is not None:
            x = self.stored.index_select(0, self.node_ids.to(self.stored.device))
            graph = dataclasses.replace(graph, x=x.to(graph.device))
        return graph.to(self.device)


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


class World(Protocol):
    """The processes that train together."""

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradient of each parameter that all processes have, in place."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""


class Alone:
    """One process."""

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        pass

    def total(self, values: Tensor) -> Tensor:
        return values


ALONE = Alone()


@dataclass(frozen=True)
class Phase:
    """A stretch of training: what is minimised, over which parameters, and whether validation may choose its epochs."""

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
    """What happens beside the training: who is told of each epoch, and where checkpoints go."""

    on_epoch: Callable[[Epoch], None] | None = None
    checkpoints: Checkpoints | None = None  # where every `every` epochs what is needed to go on is saved
    every: int = 50
    seconds: float = 0.0  # of training at least between two of them: what takes less is sooner done again than saved
    resume: bool = False  # go on from the checkpoint, if there is one
    fingerprint: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what a checkpoint must agree with
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
    world: World = ALONE,
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
    watching = watching or Watching()
    last = last_epoch(model, recipe, stop_at)
    on_gpu, is_whole = batches[0].device.type == "cuda", len(batches) == 1 and batches[0].node_ids is None
    training = _Training(model, batches, validation, recipe, seed, watching, world)
    if watching.resume and watching.checkpoints is not None:
        training.load(watching.checkpoints.latest())
    return training.run(
        last=last,
        capture=is_whole and (capture == "always" or (capture == "auto" and on_gpu and model.capturable)),
    )


def fit_at_once(
    model: FittedAtOnce,
    graph: Graph,
    nodes: Tensor,
    validation: Validation,
    recipe: Recipe,
    *,
    seed: int = 0,
    world: World = ALONE,
) -> Run:
    """Fit a model without gradient steps to the labels of `nodes`, positions in a prepared graph; as a run of one epoch."""
    start = time.perf_counter()
    model.fit_at_once(graph, nodes)
    accuracy, cost = validate(model, validation, world)
    model.eval()
    return Run(recipe, seed, (Epoch(1, None, None, None, accuracy, cost, time.perf_counter() - start),), best_epoch=1)


def last_epoch(model: Model, recipe: Recipe, stop_at: int | None = None) -> int:
    """Where training ends if nothing stops it before; a training that cannot be is refused."""
    if recipe.training == "two_step" and not _lpa_can_teach(model, recipe):
        raise ValueError(
            "training 'two_step' learns the edges from the LPA loss alone: it needs an edge form that learns, "
            "and lpa_weight, lpa_iterations and lpa_ratio above 0"
        )
    if stop_at is not None and stop_at < 1:
        raise ValueError(f"stop_at = {stop_at}; training has at least 1 epoch")
    return min(stop_at or num_epochs(recipe), num_epochs(recipe))


def _lpa_can_teach(model: Model, recipe: Recipe) -> bool:
    return bool(model.edge_parameters() and recipe.lpa_weight * recipe.lpa_iterations * recipe.lpa_ratio)


@torch.no_grad()
def validate(model: Predictor, validation: Validation, world: World = ALONE) -> tuple[float | None, float | None]:
    """Accuracy and mean cross-entropy on the validation nodes, without dropout; None and None where there are none."""
    if validation.number == 0:
        return None, None
    correct, cost = world.total(measured(model, validation)).tolist()
    return correct / validation.number, cost


def measured(model: Predictor, validation: Validation) -> Tensor:
    """Number of correct predictions and mean cross-entropy, [2]; of several processes, what this one adds to them."""
    outputs = model(validation.graph).index_select(0, validation.nodes)
    return validation.graph.target.measured(outputs, validation.target, validation.number)


def is_patience_over(recipe: Recipe, phase: Phase, best: Best, num_epochs: int) -> bool:
    """Whether a model has gone on for `patience` epochs without a better one."""
    return bool(recipe.patience and phase.selects and best.epoch and num_epochs - best.epoch >= recipe.patience)


class _Step:
    """One epoch as one call: for each batch a gradient and a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] on the device, the losses as means over the batches; the last two only
    where validation may choose.
    """

    def __init__(self, training: _Training, phase: Phase, epoch: int) -> None:
        self.training, self.phase, self.model = training, phase, training.model
        recipe, device = training.recipe, training.batches[0].device
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=device)
        steps = len(training.batches) if recipe.clusters else 1
        shorter = math.sqrt(steps)  # each by the noisy gradient of a part
        groups = [
            (self.model.weight_parameters(), recipe.l2, recipe.lr / shorter, phase.trains_weights),
            (
                self.model.edge_parameters(),
                recipe.l2_edges,
                (recipe.edge_lr or recipe.lr) / shorter,
                phase.trains_edges,
            ),
        ]
        for parameters, *_, trains in groups:
            for parameter in parameters:
                parameter.requires_grad_(trains)
        moving = [(some, l2, lr) for some, l2, lr, trains in groups if trains and some]
        rates, number = [lr for *_, lr in moving], len(training.batches)
        self.optimizer = Adam([(some, l2) for some, l2, _ in moving], lr=rates, batches=number)

    def __call__(self) -> Tensor:
        losses = [self.learn(batch) for batch in self.training.batches]
        self.epoch += 1
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(dim=0)
        validation = self.training.validation
        if validation.number == 0 or not self.phase.selects:
            return mean
        with torch.no_grad():
            return torch.cat([mean, self.training.world.total(measured(self.model, validation))])

    def learn(self, batch: Batch) -> Tensor:
        """One gradient step; [loss, gcn, lpa]."""
        self.optimizer.zero_grad()
        self.model.train()
        loss = self.model.loss(batch.read(), batch.nodes, Key(self.training.seed, self.epoch, batch.random_ids))
        objective = self.phase.objective(loss)
        objective.backward()
        world = self.training.world
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


class _Training:
    """The loop of `fit` and what it carries from epoch to epoch."""

    def __init__(
        self,
        model: Model,
        batches: Sequence[Batch],
        validation: Validation,
        recipe: Recipe,
        seed: int,
        watching: Watching,
        world: World,
    ) -> None:
        self.model, self.batches, self.validation = model, batches, validation
        self.recipe, self.seed, self.watching, self.world = recipe, seed, watching, world
        self.history: list[Epoch] = []
        self.best = Best(recipe.select)
        self.saved: Checkpoint | None = None

    def run(self, *, last: int, capture: bool) -> Run:
        interrupted = False
        try:
            for number, phase in enumerate(PHASES[self.recipe.training]):
                until = min(last, (number + 1) * self.recipe.epochs)
                if len(self.history) < until:
                    self.run_phase(number, phase, until, capture)
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

    def run_phase(self, number: int, phase: Phase, until: int, capture: bool) -> None:
        step = self.step(number, phase)
        advance = CapturedStep(step) if capture else step
        on_epoch, checkpoints, every = self.watching.on_epoch, self.watching.checkpoints, self.watching.every
        last_saved = time.monotonic()
        while len(self.history) < until and not self.is_patience_over(phase):
            epoch = self.measure(advance)
            self.history.append(epoch)
            self.best = self.best.after(epoch, self.model)  # in one go: Ctrl-C finds the old best or the new
            if self.watching.kept is not None:
                self.watching.kept.keep(epoch.epoch, self.model.state_dict())
            if on_epoch is not None:
                on_epoch(epoch)
            done = epoch.epoch == until or self.is_patience_over(phase)
            is_due = every and (epoch.epoch % every == 0 or done)
            if checkpoints is not None and is_due and time.monotonic() - last_saved >= self.watching.seconds:
                self.save(checkpoints, step, number)
                last_saved = time.monotonic()

    def step(self, number: int, phase: Phase) -> _Step:
        step = _Step(self, phase, epoch=len(self.history) + 1)
        if self.saved is not None:
            if self.saved.meta["phase"] == number:
                step.restore(self.saved.tensors)
            else:  # it was saved at the end of the phase before: Adam starts afresh
                self.model.load_state_dict(_part(self.saved.tensors, "model."))
            self.saved = None
        return step

    def measure(self, advance: Callable[[], Tensor]) -> Epoch:
        """Take one step; refuse what is not a number."""
        start = time.perf_counter()
        report, number = advance().tolist(), len(self.history) + 1
        return epoch_of(report, number, self.validation.number, self.recipe, time.perf_counter() - start)

    def is_patience_over(self, phase: Phase) -> bool:
        return is_patience_over(self.recipe, phase, self.best, len(self.history))

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

    def load(self, saved: Checkpoint | None) -> None:
        if saved is None:
            return
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
        self.saved, self.history = saved, list(meta.history)
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
    """Refuse tensors that are not, by name, shape and type, those that a training goes on with."""
    for name in sorted(found.keys() ^ wanted.keys()):
        raise ValueError(f"{name} is {'missing' if name in wanted else 'not of this training'}")
    for name, tensor in wanted.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            is_now, expected = (f"{tuple(t.shape)} of {t.dtype}" for t in (found[name], tensor))
            raise ValueError(f"{name} is {is_now}; it is {expected}")


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
