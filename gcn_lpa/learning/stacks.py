"""Many models of one recipe on one graph, trained as one program on a GPU: folds, seeds, splits.

The model stays written for one. `torch.func` stacks the parameters of all, [B, …], and maps the loss over them; each model
has its own labels, training nodes and seed. A product whose matrix all models share is then one product, and the step of a
stack is recorded as one CUDA graph: small graphs spend their time launching kernels.

What has the same bits as one at a time: random bits, first weights, every sparse product and its gradients. What has not:
losses are summed over masks instead of lists of nodes, and batched dense products may round otherwise. After 50 epochs in
float32 weights agree to about 1e-4 and the chosen epochs are the same, unless two epochs are equal to rounding; a free edge
weight that hardly matters may differ by more, as Adam makes steps of gradients that are nothing but rounding errors.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gcn_lpa.engine.adam import Capturable, CapturedStep
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.metrics import METRICS
from gcn_lpa.train import (
    PHASES,
    Best,
    DivergedError,
    Epoch,
    Fit,
    Phase,
    Run,
    Watch,
    epoch_of,
    is_patience_over,
    last_epoch,
    optimizer_of,
)

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.learning.tasks import Job
    from gcn_lpa.recipes import Recipe
    from gcn_lpa.target import Target

RECORDING = 50  # steps of a stack that take about as long as to record one as a CUDA graph
LARGEST = 1 << 26  # numbers in a layer of all models, or entries of their matrices, 256 MB: more make several stacks
Outcome = Fit | DivergedError


def are_stackable(jobs: Sequence[Job]) -> bool:
    """Whether a stack can train these jobs, which have one recipe; where each fold has weights of its own, it cannot."""
    if any(job.task.prepared.adjacency is not jobs[0].task.prepared.adjacency for job in jobs):
        return False
    return len(jobs) > 1 and not jobs[0].method.at_once and not jobs[0].recipe.clusters and jobs[0].built().stackable


def fit_stack(jobs: Sequence[Job], device: torch.device, watch: Watch | None = None) -> list[Outcome]:
    """Train jobs of one recipe side by side; a model that diverges leaves the stack, and the others go on.

    Jobs of the same target are one stack, or several where memory asks for it.
    """
    outcomes: dict[int, Outcome] = {}
    by_target: dict[Target, list[int]] = {}
    for k, job in enumerate(jobs):
        by_target.setdefault(job.task.graph.target, []).append(k)
    for numbers in by_target.values():
        task, recipe = jobs[numbers[0]].task, jobs[numbers[0]].recipe
        matrices = [x for x in (task.prepared.adjacency, task.prepared.x) if isinstance(x, SparseMatrix)]
        most = max(1, LARGEST // max(1, task.layer(recipe), *(matrix.num_entries for matrix in matrices)))
        for start in range(0, len(numbers), most):
            part = numbers[start : start + most]
            outcomes |= zip(part, _Stack([jobs[k] for k in part], device, watch or Watch()).run(), strict=True)
    return [outcomes[k] for k in range(len(jobs))]


class _Call(nn.Module):
    """The loss of a model, or its logits, as a call, for `functional_call`."""

    def __init__(self, model: Any, graph: Graph) -> None:
        super().__init__()
        self.model, self.graph = model, graph

    def forward(self, y: Tensor, nodes: Tensor | None = None, key: Key | None = None) -> Any:
        graph = dataclasses.replace(self.graph, y=y)
        return self.model(graph) if nodes is None else self.model.loss(graph, nodes, key)


@dataclass(eq=False)
class _Progress:
    """How far one job is."""

    job: Job
    model: Any
    last: int  # epoch
    num_validation: int
    best: Best
    history: list[Epoch] = field(default_factory=list)
    outcome: Outcome | None = None  # where it is done


class _Stack:
    """The loop over the epochs of models that are trained side by side."""

    def __init__(self, jobs: Sequence[Job], device: torch.device, watch: Watch) -> None:
        self.recipe, self.watch = jobs[0].recipe, watch
        shape = jobs[0].built().to(device)  # not one that is trained: those are used as soon as they are done
        self.call = _Call(shape, jobs[0].task.prepared.to(device))
        self.captures = device.type == "cuda" and shape.capturable
        self.all = list[_Progress]()
        for job in jobs:
            last, num_validation = last_epoch(shape, self.recipe, job.stop_at), int(job.task.val.sum())
            self.all.append(_Progress(job, job.built().to(device), last, num_validation, Best(self.recipe.select)))

    def run(self) -> list[Outcome]:
        each = [dict(progress.model.named_parameters()) for progress in self.all]
        parameters: Mapping[str, Tensor]
        parameters = {name: torch.stack([one[name].detach() for one in each]) for name in each[0]}
        stacked, epochs, idle = self.all, self.recipe.epochs, 0.0  # idle: steps that went to models that were done
        for number, phase in enumerate(PHASES[self.recipe.training]):
            step = _StackedStep(self.call, stacked, self.recipe, phase, parameters, epoch=number * epochs + 1)
            advance = CapturedStep(step) if self.captures else step
            for epoch in range(number * epochs + 1, (number + 1) * epochs + 1):
                self.take(advance, step, epoch)
                running = [progress for progress in step.stacked if progress.outcome is None]
                if not running:
                    return [progress.outcome for progress in self.all if progress.outcome is not None]
                idle += 1 - len(running) / len(step.stacked)
                if len(running) < len(step.stacked) and idle >= (RECORDING if self.captures else 0):
                    step, idle = step.only(running), 0.0
                    advance = CapturedStep(step) if self.captures else step
            stacked, parameters = step.stacked, step.parameters
        raise AssertionError("every model ends at its last epoch")

    def take(self, advance: Callable[[], Tensor], step: _StackedStep, number: int) -> None:
        """One epoch of all models; those that are done with it get their outcome, with the best of their weights."""
        start = time.perf_counter()
        reports = advance().tolist()
        running = {k: progress for k, progress in enumerate(step.stacked) if progress.outcome is None}
        seconds, better = (time.perf_counter() - start) / len(running), []
        over: dict[int, DivergedError | None] = {}
        for k, progress in running.items():
            try:
                epoch = epoch_of(reports[k], number, progress.num_validation, self.recipe, seconds)
            except DivergedError as error:
                over[k] = error
                continue
            progress.history.append(epoch)
            if progress.job.kept is not None:
                progress.job.kept.keep(number, {name: stack[k].detach() for name, stack in step.parameters.items()})
            if self.watch.on_epoch is not None:
                self.watch.on_epoch(progress.job.name, epoch)
            best = progress.best.after(epoch)
            if best is not progress.best:
                progress.best = best
                better.append(k)
            target = progress.job.task.graph.target
            if number == progress.last or is_patience_over(self.recipe, step.phase, best, number, target):
                over[k] = None
        step.keep(better)
        for k, problem in over.items():
            progress, model = running[k], running[k].model
            run = Run(self.recipe, progress.job.seed, tuple(progress.history), progress.best.epoch)
            if progress.best.epoch:
                model.load_state_dict({**model.state_dict(), **{name: stack[k] for name, stack in step.best.items()}})
            if problem is not None:
                problem.run = run
            progress.outcome = Fit(model.eval(), run) if problem is None else problem


class _StackedStep(Capturable):
    """One epoch of all models as one call: a gradient, a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] of each model, [B, 5], on the device, and behind them the metric where the
    recipe selects by one; the last ones only where validation may choose. Nothing in it waits for the device.
    """

    def __init__(
        self,
        call: _Call,
        stacked: Sequence[_Progress],
        recipe: Recipe,
        phase: Phase,
        parameters: Mapping[str, Tensor],
        *,
        epoch: int,
    ) -> None:
        self.call, self.stacked, self.recipe, self.phase = call, list(stacked), recipe, phase
        device, tasks = call.graph.device, [progress.job.task for progress in stacked]
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=device)
        self.seeds = torch.tensor([progress.job.seed for progress in stacked], device=device)
        self.y = torch.stack([task.prepared.y for task in tasks]).to(device)
        self.train = torch.stack([task.train for task in tasks]).to(device)
        self.val = torch.stack([task.val for task in tasks]).to(device)
        of = call.graph.target  # labels that validate: those of training are in `y`
        target = of.filled(torch.stack([task.graph.y for task in tasks]))
        self.target = target.to(device, of.dtype(call.graph.adjacency.dtype))
        self.validates = phase.selects and any(task.val.any() for task in tasks)
        self.parameters = {name: nn.Parameter(stack.detach()) for name, stack in parameters.items()}
        self.best = {name: stack.detach().clone() for name, stack in parameters.items()}
        self.optimizer = optimizer_of(phase, recipe, call.model, self.parameters)

    def only(self, running: Sequence[_Progress]) -> _StackedStep:
        """The same without the models that are done."""
        at = torch.tensor([self.stacked.index(progress) for progress in running], device=self.call.graph.device)
        fewer = {
            name: tensor if tensor.dim() == 0 or name == "epoch" else tensor.index_select(0, at)
            for name, tensor in self.state().items()
        }
        parameters = {name: stack.detach().index_select(0, at) for name, stack in self.parameters.items()}
        step = _StackedStep(self.call, running, self.recipe, self.phase, parameters, epoch=0)
        step.restore(fewer)
        step.best = {name: stack.index_select(0, at) for name, stack in self.best.items()}
        return step

    @torch.no_grad()
    def keep(self, models: Sequence[int]) -> None:
        """The weights of these models are their best so far."""
        if len(models) == len(self.stacked):
            torch._foreach_copy_([*self.best.values()], [*self.parameters.values()])
        elif models:
            at = torch.tensor(models, device=self.epoch.device)
            for best, stack in zip(self.best.values(), self.parameters.values(), strict=True):
                best.index_copy_(0, at, stack.index_select(0, at))

    def __call__(self) -> Tensor:
        losses = self.learn()
        self.epoch += 1
        return torch.cat([losses, self.validate()], dim=1) if self.validates else losses

    def learn(self) -> Tensor:
        """One gradient step; [loss, gcn, lpa] of each, [B, 3]."""
        self.call.train()
        self.optimizer.zero_grad()

        def losses_of(state: Any, y: Tensor, nodes: Tensor, seed: Tensor) -> Tensor:
            loss = self.called(state, y, nodes, Key(seed, self.epoch))
            return torch.stack([self.phase.objective(loss), loss.gcn, loss.lpa])

        losses = vmap(losses_of)(self.parameters, self.y, self.train, self.seeds)  # [B, 3]
        losses[:, 0].sum().backward()  # no model is in the loss of another
        for parameter in self.optimizer.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()  # Adam reads memory in the order of the parameter
        self.optimizer.step()
        self.call.eval()
        return losses.detach().double()

    @torch.no_grad()
    def validate(self) -> Tensor:
        """Number of correct predictions and mean cross-entropy on the validation nodes of each, [B, 2]; behind them the metric,
        where the recipe selects by one.
        """
        state = {name: stack.detach() for name, stack in self.parameters.items()}
        logits = vmap(lambda state, y: self.called(state, y))(state, self.y)  # [B, n, c]
        right, costs = self.call.graph.target.costs(logits, self.target)
        mean = torch.where(self.val, costs, 0).sum(dim=1) / self.val.sum(dim=1).clamp_min(1)
        known = torch.stack([(right & self.val).sum(dim=1).double(), mean], dim=1)
        if self.recipe.select not in METRICS:
            return known
        score = METRICS[self.recipe.select](logits.double().softmax(dim=2), self.target, self.val)
        return torch.cat([known, score.unsqueeze(1)], dim=1)

    def called(self, state: Mapping[str, Tensor], *arguments: Any) -> Any:
        named = {f"model.{name}": tensor for name, tensor in state.items()}
        return functional_call(self.call, named, arguments)

    def state(self) -> dict[str, Tensor]:
        parameters = {name: stack.detach() for name, stack in self.parameters.items()}
        return {"epoch": self.epoch, **parameters, **self.optimizer.state()}
