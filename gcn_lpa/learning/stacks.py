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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from gcn_lpa.engine.adam import Adam, CapturedStep
from gcn_lpa.engine.random import Key
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.epochs import Best, DivergedError, Epoch, Fit, Run, Watch, epoch_of
from gcn_lpa.train import PHASES, Phase, is_patience_over, last_epoch

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.learning.tasks import Job
    from gcn_lpa.recipes import Recipe

RECORDING = 50  # steps of a stack that take about as long as to record one as a CUDA graph
LARGEST = 1 << 26  # numbers in a layer of all models, or entries of their matrices, 256 MB: more make several stacks
Outcome = Fit | DivergedError


def fit_stack(jobs: Sequence[Job], device: torch.device, watch: Watch | None = None) -> list[Outcome]:
    """Train jobs of one recipe side by side; a model that diverges leaves the stack, and the others go on."""
    outcomes: dict[int, Outcome] = {}
    for group in _groups(jobs):
        outcomes |= _Stack([jobs[k] for k in group], device, watch or Watch()).run(group)
    return [outcomes[k] for k in range(len(jobs))]


def are_stackable(jobs: Sequence[Job]) -> bool:
    """Whether a stack can train these jobs, which have one recipe."""
    return len(jobs) > 1 and not jobs[0].method.at_once and not jobs[0].recipe.clusters and jobs[0].built().stackable


def _groups(jobs: Sequence[Job]) -> list[list[int]]:
    """Jobs of the same classes together, no more than memory allows, by their positions."""
    by_classes: dict[tuple[str, ...], list[int]] = {}
    for k, job in enumerate(jobs):
        by_classes.setdefault(job.task.graph.class_names, []).append(k)
    groups = []
    for alike in by_classes.values():
        graph, recipe = jobs[alike[0]].task.prepared, jobs[alike[0]].recipe
        entries = max(x.num_entries for x in (graph.adjacency, graph.x) if isinstance(x, SparseMatrix))
        layer = graph.num_nodes * max(recipe.hidden, graph.target.width)
        most = max(1, LARGEST // max(1, entries, layer))
        groups += [alike[start : start + most] for start in range(0, len(alike), most)]
    return groups


class _Call(nn.Module):
    """The loss of a model, or its logits, as a call, for `functional_call`."""

    def __init__(self, model: Any, graph: Graph) -> None:
        super().__init__()
        self.model, self.graph = model, graph

    def forward(self, y: Tensor, nodes: Tensor | None = None, key: Key | None = None) -> Any:
        graph = dataclasses.replace(self.graph, y=y)
        return self.model(graph) if nodes is None else self.model.loss(graph, nodes, key)


class _Progress:
    """How far one job is."""

    def __init__(self, job: Job, number: int, last: int) -> None:
        self.job, self.number, self.last = job, number, last
        self.num_validation = int(job.task.val.sum())
        self.history: list[Epoch] = []
        self.best = Best(job.recipe.select)
        self.is_done = False


class _Stack:
    """The loop over the epochs of models that are trained side by side."""

    def __init__(self, jobs: Sequence[Job], device: torch.device, watch: Watch) -> None:
        self.jobs, self.recipe, self.device, self.watch = jobs, jobs[0].recipe, device, watch
        self.models = [job.built().to(device) for job in jobs]
        shape = jobs[0].built().to(device)  # no model's own: they are in use as soon as they are done
        self.call = _Call(shape, jobs[0].task.prepared.to(device))
        self.captures = device.type == "cuda" and shape.capturable
        self.running = [_Progress(job, k, last_epoch(shape, self.recipe, job.stop_at)) for k, job in enumerate(jobs)]
        self.idle = 0.0  # steps that went to models that were done
        self.outcomes: dict[int, Outcome] = {}

    def run(self, numbers: Sequence[int]) -> dict[int, Outcome]:
        """The outcomes, by the numbers that the jobs are known by."""
        each = [dict(model.named_parameters()) for model in self.models]
        parameters: Mapping[str, Tensor]
        parameters = {name: torch.stack([one[name].detach() for one in each]) for name in each[0]}
        stacked, epochs = list(self.running), self.recipe.epochs
        for number, phase in enumerate(PHASES[self.recipe.training]):
            step = _StackedStep(self.call, stacked, self.recipe, phase, parameters, epoch=number * epochs + 1)
            advance = self.captured(step)
            for epoch in range(number * epochs + 1, (number + 1) * epochs + 1):
                self.take(advance, step, epoch)
                if not self.running:
                    return {numbers[k]: outcome for k, outcome in self.outcomes.items()}
                self.idle += 1 - len(self.running) / len(step.stacked)
                if self.leaving_pays(step):
                    step, self.idle = step.only(self.running), 0.0
                    advance = self.captured(step)
            stacked, parameters = step.stacked, step.parameters
        raise AssertionError("every model ends at its last epoch")

    def captured(self, step: _StackedStep) -> Callable[[], Tensor]:
        return CapturedStep(step) if self.captures else step

    def leaving_pays(self, step: _StackedStep) -> bool:
        """Whether to go on without the models that are done. The step is then recorded anew: only when the steps that went to
        models that were done come to that."""
        return len(self.running) < len(step.stacked) and self.idle >= (RECORDING if self.captures else 0)

    def take(self, advance: Callable[[], Tensor], step: _StackedStep, number: int) -> None:
        """One epoch of all models; those that are done with it get their outcome."""
        start = time.perf_counter()
        reports = advance().tolist()
        seconds, better = (time.perf_counter() - start) / len(self.running), []
        over: dict[int, DivergedError | None] = {}
        for k, (progress, report) in enumerate(zip(step.stacked, reports, strict=True)):
            if progress.is_done:
                continue
            try:
                epoch = epoch_of(report, number, progress.num_validation, self.recipe, seconds)
            except DivergedError as error:
                over[k] = error
                continue
            progress.history.append(epoch)
            if progress.job.kept is not None:
                progress.job.kept.keep(number, step.now(k))
            if self.watch.on_epoch is not None:
                self.watch.on_epoch(progress.job.name, epoch)
            best = progress.best.judged(epoch)
            if best is not progress.best:
                progress.best = best
                better.append(k)
            if number == progress.last or is_patience_over(self.recipe, step.phase, best, number):
                over[k] = None
        step.keep(better)
        for k, problem in over.items():
            self.finish(step.stacked[k], step.kept(k), problem)

    def finish(self, progress: _Progress, weights: Mapping[str, Tensor], error: DivergedError | None) -> None:
        """Give a model the best of its weights and take it off the list."""
        self.running.remove(progress)
        progress.is_done = True
        model = self.models[progress.number]
        run = Run(self.recipe, progress.job.seed, tuple(progress.history), progress.best.epoch)
        if progress.best.epoch:
            model.load_state_dict({**model.state_dict(), **weights})
        if error is not None:
            error.run = run
        self.outcomes[progress.number] = Fit(model.eval(), run) if error is None else error


class _StackedStep:
    """One epoch of all models as one call: a gradient, a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] of each model, [B, 5], on the device; the last two only where validation
    may choose. Nothing in it waits for the device.
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
        self.target = torch.stack([task.graph.y for task in tasks]).clamp_min(0).to(device)
        self.validates = phase.selects and any(task.val.any() for task in tasks)
        self.parameters = {name: nn.Parameter(stack.detach()) for name, stack in parameters.items()}
        groups = [
            (self.named(call.model.weight_parameters()), recipe.l2, recipe.lr, phase.trains_weights),
            (
                self.named(call.model.edge_parameters()),
                recipe.l2_edges,
                recipe.edge_lr or recipe.lr,
                phase.trains_edges,
            ),
        ]
        for names, *_, trains in groups:
            for name in names:
                self.parameters[name].requires_grad_(trains)
        moving = [(names, l2, lr) for names, l2, lr, trains in groups if trains and names]
        parts = [([self.parameters[name] for name in names], l2) for names, l2, _ in moving]
        self.optimizer = Adam(parts, lr=[lr for *_, lr in moving])
        self.best = {name: stack.detach().clone() for name, stack in parameters.items()}

    def named(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        mine = {id(parameter) for parameter in parameters}
        return [name for name, parameter in self.call.model.named_parameters() if id(parameter) in mine]

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

    def kept(self, k: int) -> dict[str, Tensor]:
        """The best weights of a model."""
        return {name: stack[k] for name, stack in self.best.items()}

    def now(self, k: int) -> dict[str, Tensor]:
        """The weights of a model after this step."""
        return {name: stack[k].detach() for name, stack in self.parameters.items()}

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
        """Number of correct predictions and mean cross-entropy on the validation nodes of each, [B, 2]."""
        state = {name: stack.detach() for name, stack in self.parameters.items()}
        logits = vmap(lambda state, y: self.called(state, y))(state, self.y)  # [B, n, c]
        correct = (logits.argmax(dim=2) == self.target) & self.val
        costs = F.cross_entropy(logits.transpose(1, 2), self.target, reduction="none").double()
        size = self.val.sum(dim=1)
        mean = torch.where(self.val, costs, 0).sum(dim=1) / size.clamp_min(1)
        return torch.stack([correct.sum(dim=1).double(), mean], dim=1)

    def called(self, state: Mapping[str, Tensor], *arguments: Any) -> Any:
        named = {f"model.{name}": tensor for name, tensor in state.items()}
        return functional_call(self.call, named, arguments)

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name; the tensors themselves."""
        parameters = {name: stack.detach() for name, stack in self.parameters.items()}
        return {"epoch": self.epoch, **parameters, **self.optimizer.state()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
