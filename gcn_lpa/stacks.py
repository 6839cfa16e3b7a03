"""Many models of one recipe on one graph, trained as one program: folds, seeds, splits.

The model stays written for one. `torch.func` stacks the parameters of all, [B, …], and maps the loss over them; each model
has its own labels, training nodes and seed. A product whose matrix all models share is then one product, the overhead of
Python is paid once for all, and on a GPU one kernel serves a whole stack.

What has the same bits as one at a time: random bits, first weights, every sparse product and its gradients. What has not:
losses are summed over masks instead of lists of nodes, and batched dense products may round otherwise. After 50 epochs in
float32 weights agree to about 1e-4 and the chosen epochs are the same, unless two epochs are equal to rounding; a free edge
weight that hardly matters may differ by more, as Adam makes steps of gradients that are nothing but rounding errors.

On a GPU the step of a stack is recorded as one CUDA graph. On the CPU a stack is shared among threads, one smaller stack each.
Where `num_processes` says so there is no stack: each model is trained by `learn`, in one of several processes. Two processes do
in half the time what one does; two threads wait for each other in all that is not a product.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from gcn_lpa.engine.adam import Adam
from gcn_lpa.engine.captured import CapturedStep
from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.intake import check_seed
from gcn_lpa.learning import Lesson, learn_whole, lesson_of, num_processes
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.team import build_model, members_of, team_of
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.train import (
    PHASES,
    Best,
    DivergedError,
    Epoch,
    Phase,
    Run,
    epoch_of,
    is_capturable,
    is_patience_over,
    last_epoch,
)
from gcn_lpa.trained import Trained
from gcn_lpa.workers import Crew

Done = Callable[[int, Trained], None]  # (number of a model, what it has become)
FEWEST = {"cpu": 4, "cuda": 2}  # models in a stack: fewer are faster one by one
RECORDING = 50  # steps of a stack that take about as long as to record one as a CUDA graph
LARGEST = 1 << 26  # numbers in a layer of all models, or entries of their matrices, 256 MB: more make several stacks


def learn_many(
    graph: Graph,
    parts: Iterable[tuple[Any, Any]],
    recipe: Recipe = DEFAULT,
    *,
    seeds: int | Sequence[int] = 0,
    classes: Sequence[str] | None = None,
    device: str = "auto",
    threads: int | None = None,
    stop_at: int | Sequence[int | None] | None = None,
    on_model: Callable[[int, Trained], None] | None = None,
) -> list[Trained]:
    """`learn(graph, train, val, recipe, seed=…)` for each (train, val) of `parts`, all at once.

    No model sees a label that is not its own: each has the labels of its training nodes, and its choice of the epoch those
    of its validation nodes. Results are those of `learn` to rounding, see above; those of a second call have the same
    bits. Methods that cannot be stacked (scikit-learn's, PyG's, and those without a gradient) are
    trained one by one; of a recipe with members, all models of one kind, then those of the next.

    Ctrl-C is a KeyboardInterrupt. A model that diverges leaves the stack and the others go on; at the end a `DivergedError`
    names the first such model and has all others in `models`, in order, None in place of those that diverged.

    Args:
        parts: the nodes to learn from and those to choose the epoch by, as in `learn`.
        seeds: of each model, or one for all.
        stop_at: as in `learn`, for each model, or one for all.
        on_model: called with the number of a model and its Trained as soon as it is done; the order is that of finishing.
    """
    parts = list(parts)
    if not parts:
        return []
    lessons = [lesson_of(graph, train, val, recipe, classes) for train, val in parts]
    where = choose_device(device)
    workers = min(len(parts), num_processes(graph, recipe, where, threads))
    if recipe.members and workers <= 1:
        options: dict[str, Any] = {"classes": classes, "device": device, "threads": threads, "stop_at": stop_at}
        kinds = [learn_many(graph, parts, own, seeds=seeds, **options) for own in members_of(recipe).values()]
        with num_threads(threads, layer=layer_size(graph, recipe)):
            return _teams(lessons, kinds, where, on_model)
    models = [
        _Pupil(number, lesson, seed, stop)
        for number, (lesson, seed, stop) in enumerate(
            zip(lessons, _each(seeds, len(lessons), "seeds"), _each(stop_at, len(lessons), "stop_at"), strict=True)
        )
    ]
    for model in models:
        check_seed(model.seed)
    done = on_model or (lambda number, trained: None)
    shares = 1 if where.type == "cuda" else threads or torch.get_num_threads()
    if workers > 1:
        _train_in_processes(graph, models, recipe, workers, done)
    for group in _groups(models, recipe) if workers <= 1 else ():
        if _is_stack(group, recipe, where):
            size = max(2, -(-len(group) // shares))
            pieces = [group[start : start + size] for start in range(0, len(group), size)]
            with num_threads(threads, layer=layer_size(group[0].lesson.prepared, recipe)):
                _train_stacks([_Stack(piece, recipe, where) for piece in pieces], done)
        else:
            _train_one_by_one(graph, group, recipe, device, threads, done)
    if diverged := [model for model in models if model.error is not None]:
        raise _error_of(diverged[0], models)
    return [model.trained for model in models if model.trained is not None]


def are_stacked(graph: Graph, parts: Sequence[tuple[Any, Any]], recipe: Recipe, device: str = "auto") -> bool:
    """Whether `learn_many` would train these models side by side: they then share their time, too."""
    if min(len(parts), num_processes(graph, recipe, choose_device(device), None)) > 1:
        return True
    if recipe.members:
        return len(parts) >= FEWEST[choose_device(device).type]
    lessons = [lesson_of(graph, train, val, recipe) for train, val in parts]
    models = [_Pupil(number, lesson, 0, None) for number, lesson in enumerate(lessons)]
    return any(_is_stack(group, recipe, choose_device(device)) for group in _groups(models, recipe))


def _teams(
    lessons: Sequence[Lesson], kinds: Sequence[Sequence[Trained]], device: torch.device, on_model: Done | None
) -> list[Trained]:
    """The teams that the models of each member make, one for each lesson."""
    teams: list[Trained] = []
    one = lessons[0].prepared.to(device)  # all are about one graph
    for number, (lesson, models) in enumerate(zip(lessons, zip(*kinds, strict=True), strict=True)):
        own = dataclasses.replace(one, y=lesson.prepared.y.to(device), class_names=lesson.prepared.class_names)
        run = dataclasses.replace(models[0].run, recipe=lesson.recipe)
        team = team_of([[each.model] for each in models]).eval()
        teams.append(dataclasses.replace(lesson, prepared=own).trained(team, run))
        if on_model is not None:
            on_model(number, teams[-1])
    return teams


def is_stackable(model: Any) -> bool:
    """Whether `torch.func` can map the model's loss over a stack. Models but ours say so."""
    return not hasattr(model, "fit_directly") and bool(getattr(model, "stackable", isinstance(model, GCNLPA)))


@dataclass(eq=False)
class _Pupil:
    """One model on its way from a lesson to a Trained."""

    number: int
    lesson: Lesson
    seed: int
    stop_at: int | None
    history: list[Epoch] = field(default_factory=list)
    best: Best = field(default_factory=lambda: Best("first_best"))
    trained: Trained | None = None
    error: DivergedError | None = None

    @property
    def is_done(self) -> bool:
        return self.trained is not None or self.error is not None

    @cached_property
    def num_validation(self) -> int:
        return int(self.lesson.val.sum())

    def build(self, recipe: Recipe) -> Any:
        return METHODS[recipe.method].build(recipe, self.lesson.prepared, self.seed)


def _each(values: Any, count: int, name: str) -> list[Any]:
    if isinstance(values, int) or values is None:
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers for {count} parts; give one for each, or one for all")
    return list(values)


def _groups(models: Sequence[_Pupil], recipe: Recipe) -> list[list[_Pupil]]:
    """Models of the same classes together, no more than memory allows."""
    by_classes: dict[tuple[str, ...], list[_Pupil]] = {}
    for model in models:
        by_classes.setdefault(model.lesson.graph.class_names, []).append(model)
    groups = []
    for alike in by_classes.values():
        graph = alike[0].lesson.prepared
        entries = max(x.num_entries for x in (graph.adjacency, graph.x) if isinstance(x, SparseMatrix))
        most = max(1, LARGEST // max(1, entries, layer_size(graph, recipe)))
        groups += [alike[start : start + most] for start in range(0, len(alike), most)]
    return groups


def _is_stack(models: Sequence[_Pupil], recipe: Recipe, device: torch.device) -> bool:
    is_one = not recipe.members and not recipe.clusters
    return is_one and len(models) >= FEWEST[device.type] and is_stackable(models[0].build(recipe))


def layer_size(graph: Graph, recipe: Recipe) -> int:
    return graph.num_nodes * max(recipe.hidden, graph.num_classes)


def _error_of(model: _Pupil, models: Sequence[_Pupil]) -> DivergedError:
    assert model.error is not None
    if len(models) == 1:
        return model.error
    error = DivergedError(f"model {model.number} of {len(models)} (seed {model.seed}): {model.error}")
    error.run, error.trained = model.error.run, model.error.trained
    error.number, error.models = model.number, tuple(other.trained for other in models)
    return error


def _train_one_by_one(
    graph: Graph,
    models: Sequence[_Pupil],
    recipe: Recipe,
    device: str,
    threads: int | None,
    done: Done,
) -> None:
    for model in models:
        lesson = model.lesson
        options: dict[str, Any] = {"classes": lesson.graph.class_names, "device": device, "threads": threads}
        try:
            model.trained = learn_whole(
                graph, lesson.train, lesson.val, recipe, seed=model.seed, stop_at=model.stop_at, **options
            )
        except DivergedError as error:
            model.error = error
            continue
        done(model.number, model.trained)


def _train_in_processes(graph: Graph, models: Sequence[_Pupil], recipe: Recipe, workers: int, done: Done) -> None:
    """Train each model as `learn` does, several at a time."""

    def work(number: int, tell: Callable[[Epoch], None]) -> tuple[Trained, Mapping[str, Tensor]] | DivergedError:
        model = models[number]
        options: dict[str, Any] = {"classes": model.lesson.graph.class_names, "device": "cpu", "threads": 1}
        options |= {"seed": model.seed, "stop_at": model.stop_at, "on_epoch": tell}
        try:
            with num_threads(1):  # as in `folds`
                trained = learn_whole(graph, model.lesson.train, model.lesson.val, recipe, **options)
        except DivergedError as error:
            error.trained = None
            return error
        return dataclasses.replace(trained, model=None), trained.model.state_dict()

    def finish(number: int, outcome: tuple[Trained, Mapping[str, Tensor]] | DivergedError) -> None:
        model = models[number]
        if isinstance(outcome, DivergedError):
            model.error = outcome
            return
        trained, state = outcome
        built = build_model(
            trained.recipe, model.lesson.prepared, model.seed, copies=1 if trained.recipe.members else 0
        )
        built.load_state_dict(state)
        model.trained = dataclasses.replace(trained, model=built.eval())
        done(number, model.trained)

    crew = Crew(work, workers, done=finish)
    crew.run(iter(range(len(models))))
    if crew.interrupted:
        raise KeyboardInterrupt


def _train_stacks(stacks: Sequence[_Stack], done: Done) -> None:
    """Train stacks side by side, each on a thread of its own; what is done is handed over on this one.

    Torch's own threads would wait for each other at every operation; these meet only at the end.
    """
    if len(stacks) == 1:
        stacks[0].run(done)
        return
    messages: SimpleQueue[tuple[int, Trained] | BaseException | None] = SimpleQueue()

    def work(stack: _Stack) -> None:
        try:
            with num_threads(1):
                stack.run(lambda number, trained: messages.put((number, trained)))
            messages.put(None)
        except BaseException as error:
            messages.put(error)

    workers = [Thread(target=work, args=(stack,), name=f"gcn-lpa-stack-{k}") for k, stack in enumerate(stacks)]
    try:
        for worker in workers:
            worker.start()
        running = len(workers)
        while running:
            message = messages.get()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                running -= 1
            else:
                done(*message)
    finally:  # after Ctrl-C, or an error of one
        for stack in stacks:
            stack.stopped = True
        for worker in workers:
            worker.join()


class _Call(nn.Module):
    """The loss of a model, or its logits, as a call, for `functional_call`."""

    def __init__(self, model: Any, graph: Graph) -> None:
        super().__init__()
        self.model, self.graph = model, graph

    def forward(self, y: Tensor, nodes: Tensor | None = None, key: Key | None = None) -> Any:
        graph = dataclasses.replace(self.graph, y=y)
        return self.model(graph) if nodes is None else self.model.loss(graph, nodes, key)


class _Stack:
    """The loop over the epochs of models that are trained side by side."""

    def __init__(self, models: Sequence[_Pupil], recipe: Recipe, device: torch.device) -> None:
        self.models, self.recipe, self.device = list(models), recipe, device
        self.stopped = False  # from outside: do not go on
        self.built = {model.number: model.build(recipe).to(device) for model in models}
        shape = models[0].build(recipe).to(device)  # no model's own: they are in use as soon as they are done
        self.last = {model.number: last_epoch(shape, recipe, model.stop_at) for model in models}
        self.call = _Call(shape, models[0].lesson.prepared.to(device))
        self.captures = device.type == "cuda" and is_capturable(shape)
        self.idle = 0.0  # steps that went to models that were done
        for model in models:
            model.best = Best(recipe.select)

    def run(self, done: Done) -> None:
        each = [dict(self.built[model.number].named_parameters()) for model in self.models]
        parameters: Mapping[str, Tensor]
        parameters = {name: torch.stack([one[name].detach() for one in each]) for name in each[0]}
        models, epochs = self.models, self.recipe.epochs
        for number, phase in enumerate(PHASES[self.recipe.training]):
            step = _StackedStep(self.call, models, self.recipe, phase, parameters, epoch=number * epochs + 1)
            advance = self.captured(step)
            for epoch in range(number * epochs + 1, (number + 1) * epochs + 1):
                for finished in self.take(advance, step, epoch):
                    done(*finished)
                if self.stopped or not self.models:
                    return
                self.idle += 1 - len(self.models) / len(step.models)
                if self.leaving_pays(step):
                    step, self.idle = step.only(self.models), 0.0
                    advance = self.captured(step)
            models, parameters = step.models, step.parameters

    def captured(self, step: _StackedStep) -> Callable[[], Tensor]:
        return CapturedStep(step) if self.captures else step

    def leaving_pays(self, step: _StackedStep) -> bool:
        """Whether to go on without the models that are done. On a GPU the step is then recorded anew: only when the steps that
        went to models that were done come to that."""
        return len(self.models) < len(step.models) and self.idle >= (RECORDING if self.captures else 0)

    def take(self, advance: Callable[[], Tensor], step: _StackedStep, number: int) -> list[tuple[int, Trained]]:
        """One epoch of all models; those that are done with it."""
        start = time.perf_counter()
        reports = advance().tolist()
        seconds, better, over = (time.perf_counter() - start) / len(self.models), [], dict[int, DivergedError | None]()
        for k, (model, report) in enumerate(zip(step.models, reports, strict=True)):
            if model.is_done:
                continue
            try:
                epoch = epoch_of(report, number, model.num_validation, self.recipe, seconds)
            except DivergedError as error:
                over[k] = error
                continue
            model.history.append(epoch)
            best = model.best.judged(epoch)
            if best is not model.best:
                model.best = best
                better.append(k)
            if number == self.last[model.number] or is_patience_over(self.recipe, step.phase, best, number):
                over[k] = None
        step.keep(better)
        done = [self.finish(step.models[k], step.kept(k), error) for k, error in over.items()]
        return [(model.number, model.trained) for model in done if model.trained is not None]

    def finish(self, model: _Pupil, weights: Mapping[str, Tensor], error: DivergedError | None) -> _Pupil:
        """Give a model the best of its weights and take it off the list."""
        self.models.remove(model)
        built = self.built.pop(model.number)
        run = Run(self.recipe, model.seed, tuple(model.history), model.best.epoch)
        if model.best.epoch:
            built.load_state_dict({**built.state_dict(), **weights})
        trained = model.lesson.trained(built.eval(), run)
        if error is None:
            model.trained = trained
        else:
            model.error, error.run = error, run
            error.trained = trained if model.best.epoch else None
        return model


class _StackedStep:
    """One epoch of all models as one call: a gradient, a step of Adam, then validation.

    Gives [loss, gcn, lpa, num_correct, val_loss] of each model, [B, 5], on the device; the last two only where validation
    may choose. Nothing in it waits for the device.
    """

    def __init__(
        self,
        call: _Call,
        models: Sequence[_Pupil],
        recipe: Recipe,
        phase: Phase,
        parameters: Mapping[str, Tensor],
        *,
        epoch: int,
    ) -> None:
        self.call, self.models, self.recipe, self.phase = call, list(models), recipe, phase
        device = call.graph.device
        self.epoch = torch.full((1,), epoch, dtype=torch.int64, device=device)
        self.seeds = torch.tensor([model.seed for model in models], device=device)
        lessons = [model.lesson for model in models]
        self.y = torch.stack([lesson.prepared.y for lesson in lessons]).to(device)
        self.train = torch.stack([lesson.train for lesson in lessons]).to(device)
        self.val = torch.stack([lesson.val for lesson in lessons]).to(device)
        self.target = torch.stack([lesson.graph.y for lesson in lessons]).clamp_min(0).to(device)
        self.validates = phase.selects and any(lesson.val.any() for lesson in lessons)
        self.parameters = {name: nn.Parameter(stacked.detach()) for name, stacked in parameters.items()}
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
        self.best = {name: stacked.detach().clone() for name, stacked in parameters.items()}

    def named(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        mine = {id(parameter) for parameter in parameters}
        return [name for name, parameter in self.call.model.named_parameters() if id(parameter) in mine]

    def only(self, models: Sequence[_Pupil]) -> _StackedStep:
        """The same without the other models."""
        at = torch.tensor([self.models.index(model) for model in models], device=self.call.graph.device)
        fewer = {
            name: tensor if tensor.dim() == 0 or name == "epoch" else tensor.index_select(0, at)
            for name, tensor in self.state().items()
        }
        parameters = {name: stacked.detach().index_select(0, at) for name, stacked in self.parameters.items()}
        step = _StackedStep(self.call, models, self.recipe, self.phase, parameters, epoch=0)
        step.restore(fewer)
        step.best = {name: stacked.index_select(0, at) for name, stacked in self.best.items()}
        return step

    @torch.no_grad()
    def keep(self, models: Sequence[int]) -> None:
        """The weights of these models are their best so far."""
        if len(models) == len(self.models):
            torch._foreach_copy_([*self.best.values()], [*self.parameters.values()])
        elif models:
            at = torch.tensor(models, device=self.epoch.device)
            for best, stacked in zip(self.best.values(), self.parameters.values(), strict=True):
                best.index_copy_(0, at, stacked.index_select(0, at))

    def kept(self, k: int) -> dict[str, Tensor]:
        return {name: stacked[k] for name, stacked in self.best.items()}

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
        state = {name: stacked.detach() for name, stacked in self.parameters.items()}
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
        parameters = {name: stacked.detach() for name, stacked in self.parameters.items()}
        return {"epoch": self.epoch, **parameters, **self.optimizer.state()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
