"""Training that cannot see test labels: fit, the choice of the epoch, and scores.

`fit` receives a graph from which the other labels have been removed (`graph.reveal`), `evaluate` is the only function
that reads them. A step is one pass over the whole graph, Eq. (18); its random bits are named by (seed, epoch), so that
a run that was stopped and resumed, or replayed as a CUDA graph, walks the same path bit for bit.

A model is an nn.Module with `forward(graph)`, `loss(graph, nodes, key)`, `edge_parameters()` and `weight_parameters()`;
or one without gradient steps, which has `fit_directly(graph, nodes)` instead. All it learns is in its parameters and
buffers.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa import storage
from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.graph import Graph, Split
from gcn_lpa.intake import check_seed
from gcn_lpa.model import GCNLPA, Loss, Model
from gcn_lpa.recipes import Recipe

WARM_UP = 3  # steps before a CUDA graph is captured, as torch asks; they are undone


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
    """What training did. `best_epoch` is the epoch whose weights the model has now."""

    recipe: Recipe
    seed: int
    history: tuple[Epoch, ...]
    best_epoch: int
    interrupted: bool = False

    def __repr__(self) -> str:
        judged = "" if self.best.val_accuracy is None else f" (validation {100 * self.best.val_accuracy:.1f} %)"
        stopped = "interrupted, " if self.interrupted else ""
        chosen = f"epoch {self.best_epoch} of {len(self.history)}{judged}"
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

    def after(self, epoch: Epoch, model: Model) -> Best:
        """This, or the new best if `epoch` is one; without validation the latest epoch is the best."""
        if epoch.val_accuracy is None or epoch.val_loss is None:
            score, better = self.score, True
        else:
            score = -epoch.val_loss if self.rule == "loss" else epoch.val_accuracy
            better = score >= self.score if self.rule == "last_best" else score > self.score
        if not better:
            return self
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return Best(self.rule, epoch.epoch, score, state)


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


def fit(
    model: Model,
    graph: Graph,
    train: Tensor,
    val: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    stop_at: int | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    resume: bool = False,
    capture: str = "auto",
) -> Run:
    """Train `model` on the labels of `train`, choose the epoch on those of `val`, and leave the model at that epoch.

    Ctrl-C ends the training and keeps the best so far. A loss that is not finite is a ValueError, and the model then
    has the best weights so far.

    Args:
        graph: prepared (`recipe.prepare`) and hidden (`graph.reveal(train | val)`), on the device of the model.
        train, val: boolean masks, [n]. Without validation nodes the last epoch is kept.
        stop_at: end after this epoch, although the recipe has more.
        on_epoch: called with the record of every epoch.
        checkpoint: a run folder; every `checkpoint_every` epochs all that is needed to go on is saved there.
        resume: go on from the checkpoint, if there is one.
        capture: replay each step as one CUDA graph: "auto" (on a GPU, where the model allows it), "always" or "never".
    """
    nodes, judges = _checked(graph, train, val)
    if hasattr(model, "fit_directly"):
        start = time.perf_counter()
        model.fit_directly(graph, nodes)
        epoch = Epoch(1, None, None, None, *validation(model, graph, judges), time.perf_counter() - start)
        if on_epoch is not None:
            on_epoch(epoch)
        return Run(recipe, seed, (epoch,), best_epoch=1)
    if recipe.training == "two_step" and not _lpa_can_teach(model, recipe):
        raise ValueError(
            "training 'two_step' learns the edges from the LPA loss alone: it needs an edge form that learns, "
            "and lpa_weight, lpa_iterations and lpa_ratio above 0"
        )
    on_gpu = graph.device.type == "cuda"
    training = _Training(model, graph, nodes, judges, recipe, seed)
    if resume and checkpoint is not None:
        training.load(checkpoint)
    return training.run(
        last=min(stop_at or num_epochs(recipe), num_epochs(recipe)),
        capture=capture == "always" or (capture == "auto" and on_gpu and is_capturable(model)),
        on_epoch=on_epoch,
        folder=checkpoint,
        every=checkpoint_every,
    )


def learn(
    build: Callable[[Recipe, Graph, int], Any],
    graph: Graph,
    train: Tensor,
    val: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    **options: Any,
) -> tuple[Any, Run]:
    """Prepare a raw graph, hide all labels but those of `train` and `val`, build a model and fit it.

    Args:
        build: makes the model from (recipe, prepared graph, seed); GCNLPA itself does.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        threads: of the CPU; None: see `num_threads`.
        options: those of `fit`.
    """
    check_seed(seed)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a gcn_lpa.Recipe, such as gcn_lpa.recipes.DEFAULT, not {recipe!r:.40}")
    prepared = recipe.prepare(graph.reveal(train | val))
    where = choose_device(device)
    with num_threads(threads, layer=prepared.num_nodes * max(recipe.hidden, prepared.num_classes)):
        model = build(recipe, prepared, seed).to(where)
        run = fit(model, prepared.to(where), train, val, recipe, seed=seed, **options)
    return model, run


def learn_whole(*arguments: Any, **options: Any) -> tuple[Any, Run]:
    """`learn` for those who train many models: Ctrl-C is a KeyboardInterrupt, not the end of one training.

    `fit` keeps the best so far, and so does scikit-learn's perceptron, with a warning. Counted as a result it would be wrong.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training interrupted by user")
        try:
            model, run = learn(*arguments, **options)
        except UserWarning:
            raise KeyboardInterrupt from None
    if run.interrupted:
        raise KeyboardInterrupt
    return model, run


@torch.no_grad()
def validation(model: Model, graph: Graph, nodes: Tensor) -> tuple[float | None, float | None]:
    """Accuracy and mean cross-entropy on `nodes`, without dropout; None and None where there are no nodes."""
    if len(nodes) == 0:
        return None, None
    correct, cost = _judgement(model, graph, nodes).tolist()
    return correct / len(nodes), cost


def _checked(graph: Graph, train: Tensor, val: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes of the two masks, on the graph's device."""
    Split(train.cpu(), val.cpu(), torch.zeros_like(val, device="cpu"))  # boolean, of one length, without common nodes
    parts = []
    for part, mask in (("train", train), ("val", val)):
        nodes = mask.to(graph.device).nonzero().squeeze(1)
        unknown = nodes[graph.y.index_select(0, nodes) < 0]
        if len(unknown):
            raise ValueError(f"{len(unknown)} nodes of {part} have no label, the first is node {int(unknown[0])}")
        parts.append(nodes)
    if len(parts[0]) == 0:
        raise ValueError("there is no node to train on: the training mask is empty")
    return parts[0], parts[1]


def is_capturable(model: Model) -> bool:
    """Whether a step of the model can be a CUDA graph: it must never wait for the GPU. Models but ours say so."""
    return bool(getattr(model, "capturable", isinstance(model, GCNLPA)))


def _lpa_can_teach(model: Model, recipe: Recipe) -> bool:
    return bool(model.edge_parameters() and recipe.lpa_weight * recipe.lpa_iterations * recipe.lpa_ratio)


def _judgement(model: Model, graph: Graph, nodes: Tensor) -> Tensor:
    """Number of correct predictions and mean cross-entropy, [2]."""
    logits, target = model(graph).index_select(0, nodes), graph.y.index_select(0, nodes)
    correct = (logits.argmax(dim=1) == target).sum()
    return torch.stack([correct.double(), F.cross_entropy(logits, target).double()])


class _Step:
    """One epoch as one call: gradient, Adam, validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] on the device; the last two only where validation may choose.
    """

    def __init__(
        self,
        model: Model,
        graph: Graph,
        nodes: Tensor,
        judges: Tensor,
        recipe: Recipe,
        seed: int,
        phase: Phase,
        epoch: int,
    ) -> None:
        self.model, self.graph, self.nodes, self.judges = model, graph, nodes, judges
        self.phase, self.seed = phase, seed
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=graph.device)
        groups = [
            (model.weight_parameters(), recipe.l2, phase.trains_weights),
            (model.edge_parameters(), recipe.l2_edges, phase.trains_edges),
        ]
        for parameters, _, trains in groups:
            for parameter in parameters:
                parameter.requires_grad_(trains)
        self.optimizer = torch.optim.Adam(
            [
                {"params": some, "weight_decay": l2} for some, l2, trains in groups if trains and some
            ],  # ½ l2 ‖·‖² in the loss
            lr=recipe.lr,
            capturable=graph.device.type == "cuda",
            fused=True,
        )
        for (
            parameter
        ) in self.parameters():  # as Adam would at its first step; from here on it can be saved and restored
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), device=graph.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model.loss(self.graph, self.nodes, Key(self.seed, self.epoch))
        objective = self.phase.objective(loss)
        objective.backward()
        self.optimizer.step()
        self.epoch += 1
        with torch.no_grad():
            losses = torch.stack([objective.detach(), loss.gcn.detach(), loss.lpa.detach()]).double()
            if len(self.judges) == 0 or not self.phase.selects:
                return losses
            return torch.cat([losses, _judgement(self.model, self.graph, self.judges)])

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name; the tensors themselves."""
        adam = {
            f"adam.{i}.{name}": tensor
            for i, parameter in enumerate(self.parameters())
            for name, tensor in self.optimizer.state[parameter].items()
        }
        return {"epoch": self.epoch, **{f"model.{name}": t for name, t in self.model.state_dict().items()}, **adam}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class CapturedStep:
    """A step recorded once as a CUDA graph and replayed: small graphs spend their time launching kernels.

    The warm-up that torch asks for is undone, so that the first replay is the first step.
    """

    def __init__(self, step: _Step) -> None:
        before = {name: tensor.clone() for name, tensor in step.state().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        step.restore(before)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.report = step()

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.report


class _Training:
    """The loop of `fit` and what it carries from epoch to epoch."""

    def __init__(self, model: Model, graph: Graph, nodes: Tensor, judges: Tensor, recipe: Recipe, seed: int) -> None:
        self.model, self.graph, self.nodes, self.judges = model, graph, nodes, judges
        self.recipe, self.seed = recipe, seed
        self.history: list[Epoch] = []
        self.best = Best(recipe.select)
        self.saved: storage.Checkpoint | None = None

    def run(
        self,
        *,
        last: int,
        capture: bool,
        on_epoch: Callable[[Epoch], None] | None,
        folder: str | Path | None,
        every: int,
    ) -> Run:
        interrupted = False
        try:
            for number, phase in enumerate(PHASES[self.recipe.training]):
                until = min(last, (number + 1) * self.recipe.epochs)
                if len(self.history) >= until:
                    continue
                step = self.step(number, phase)
                advance = CapturedStep(step) if capture else step
                while len(self.history) < until and not self.is_patience_over(phase):
                    epoch = self.measure(advance)
                    self.history.append(epoch)
                    self.best = self.best.after(epoch, self.model)  # in one go: Ctrl-C finds the old best or the new
                    if on_epoch is not None:
                        on_epoch(epoch)
                    done = epoch.epoch == until or self.is_patience_over(phase)
                    if folder is not None and every and (epoch.epoch % every == 0 or done):
                        self.save(folder, step, number)
        except KeyboardInterrupt:
            if not self.best.epoch:
                raise
            interrupted = True
        finally:
            for parameter in (*self.model.weight_parameters(), *self.model.edge_parameters()):
                parameter.requires_grad_(True)
            if self.best.epoch:
                self.model.load_state_dict(self.best.state)
        return Run(self.recipe, self.seed, tuple(self.history), self.best.epoch, interrupted)

    def step(self, number: int, phase: Phase) -> _Step:
        step = _Step(
            self.model, self.graph, self.nodes, self.judges, self.recipe, self.seed, phase, epoch=len(self.history) + 1
        )
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
        total, gcn, lpa, *judged = advance().tolist()
        epoch, recipe = len(self.history) + 1, self.recipe
        accuracy, cost = (judged[0] / len(self.judges), judged[1]) if judged else (None, None)
        if not all(map(math.isfinite, (total, gcn, lpa, *judged))):
            other = "" if recipe.features == "l2" else ", or features = 'l2'"
            raise ValueError(
                f"training diverged at epoch {epoch} with lr = {recipe.lr:g} and features = {recipe.features!r}: the "
                f"loss is {total:g}, on validation nodes {cost}; try lr = {recipe.lr / 10:g}{other}"
            )
        return Epoch(epoch, total, gcn, lpa, accuracy, cost, time.perf_counter() - start)

    def is_patience_over(self, phase: Phase) -> bool:
        patience = self.recipe.patience
        return bool(patience and phase.selects and self.best.state and len(self.history) - self.best.epoch >= patience)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree with for the run to go on."""
        masks = torch.zeros((2, self.graph.num_nodes), dtype=torch.bool)
        masks[0, self.nodes.cpu()] = masks[1, self.judges.cpu()] = True
        return {
            "recipe": self.recipe.hash(),
            "seed": self.seed,
            "graph": self.graph.content_hash(),
            "split": Split(masks[0], masks[1], torch.zeros_like(masks[0])).hash,
        }

    def save(self, folder: str | Path, step: _Step, phase: int) -> None:
        tensors = {**step.state(), **{f"best.{name}": tensor for name, tensor in self.best.state.items()}}
        meta = {
            "of": self.fingerprint,
            "phase": phase,
            "best_epoch": self.best.epoch,
            "best_score": self.best.score if math.isfinite(self.best.score) else None,
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
        }
        storage.save_checkpoint(folder, tensors, meta)

    def load(self, folder: str | Path) -> None:
        self.saved = storage.latest_checkpoint(folder)
        if self.saved is None:
            return
        meta, here = self.saved.meta, self.fingerprint
        if other := [name for name, value in here.items() if meta["of"][name] != value]:
            raise ValueError(
                f"{folder}: the checkpoint is of another run, with another {', '.join(other)}; choose another folder"
            )
        self.history = [Epoch(**epoch) for epoch in meta["history"]]
        score = -math.inf if meta["best_score"] is None else meta["best_score"]
        self.best = Best(self.recipe.select, meta["best_epoch"], score, _part(self.saved.tensors, "best."))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
