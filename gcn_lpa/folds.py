"""Learning from all given labels: each fold of them in turn is held out, and the models of all folds predict together."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.fusion import Opinions, fit_fusion, held_out_probabilities, opinions_of
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.learning import Lesson, learn, lesson_of, num_processes, told
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.team import Team, members_of, team_of
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.splits import label_folds
from gcn_lpa.train import DivergedError, Epoch, Kept, Run
from gcn_lpa.trained import HeldOut, Trained
from gcn_lpa.workers import Crew

NUM_FOLDS = 5
PASSES = 1.2  # of training over the folds, with what is fitted once more to all labels
UNCHOSEN = 200  # epochs where no label can choose one
MANY_LABELS = 500  # from here on, that a fold chose the epoch of its model makes its score hardly better
Options = Callable[[int], dict[str, Any]]  # of `learn`, for the fold of this number
Task = tuple[int, str]  # a fold and a member
Outcome = tuple[Mapping[str, Tensor], Run, Kept]  # the weights of a model, and those after each epoch


def learn_folds(
    graph: Graph,
    nodes: Any = None,
    recipe: Recipe = DEFAULT,
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    device: str = "auto",
    threads: int | None = None,
    minutes: float | None = None,
    options: Options | None = None,
) -> Trained:
    """Train on the labels of `nodes` without further validation nodes.

    Five models, each without one fold of the labels, which chooses its epoch. To predict, they say the mean of their
    log-probabilities; methods that choose no epoch, such as trees, are fitted to all labels for that, with five seeds where
    they depend on one.

    What is said of a fold by models without it scores them, fits the weights of members and votes, and calibrates; it is in
    `held_out` of what is returned. A fold that chose the epoch of its model would score too well, by several points where it is
    a handful of nodes: with fewer than MANY_LABELS labels, each fold is scored by another model, whose epoch the other folds
    chose.

    Where no class has two labels, a model that one is held out from does not know its class. There one model of each member
    learns from all of them for a fixed number of epochs, nothing votes, and `held_out` is None.

    Args:
        nodes: a mask or positions; None: all nodes with a label.
        classes: that the model knows; None: those that occur among these labels.
        minutes: about as long as it may take: members of the recipe for which there would be no time are left out, those
            named last first. What is trained then depends on how fast the machine is.
        options: further options of `learn` for each fold.
    """
    start = time.perf_counter()
    labeled = graph.labeled.cpu() if nodes is None else node_mask(nodes, graph.num_nodes, "nodes")
    nobody = torch.zeros_like(labeled)
    whole = lesson_of(graph, labeled, nobody, recipe, classes)
    y, names = whole.graph.y.cpu(), whole.graph.class_names
    fixed: dict[str, Any] = {"seed": seed, "classes": names, "device": device, "threads": threads}
    alone = recipe.replace(votes=False)
    if int(y[labeled].bincount().max()) < 2:
        short = alone.replace(epochs=min(alone.epochs, UNCHOSEN))
        return learn(graph, labeled, nobody, short, **fixed, **(options(0) if options else {}))
    folds = label_folds(y, labeled, min(NUM_FOLDS, int(labeled.sum())), seed=(seed, 0))
    has_few = int(labeled.sum()) < MANY_LABELS
    until = start + 60 * minutes / (PASSES * len(folds)) if minutes else None
    training = _FoldModels(graph, labeled, folds, alone, fixed, options or (lambda k: {}), until, has_few)
    workers = num_processes(graph, alone, choose_device(device), threads)
    found, interrupted = training.side_by_side(workers) if workers > 1 else training.one_by_one()
    whole = dataclasses.replace(whole, recipe=recipe.replace(members=found[0].recipe.members))
    if interrupted:
        return _joined(whole, found, interrupted=True)
    kept = training.kept
    layer = graph.num_nodes * max(recipe.hidden, whole.graph.num_classes)
    with num_threads(threads, layer=layer):
        refitting = _Refitting(whole, seed, choose_device(device))
        trained = refitting.to_all_labels(_joined(whole, found))
        scored = [one.model for one in found]
        if has_few:
            lessons = [lesson_of(graph, labeled & ~fold, nobody, found[0].recipe, names) for fold in folds]
            scored = [refitting.with_epochs_of_others(lessons[k], found, k, kept[k]) for k in range(len(folds))]
        prepared = [one.prepare(graph).to(one.device) for one in found]
        said = [opinions_of(model, known).of(fold) for model, known, fold in zip(scored, prepared, folds, strict=True)]
        return _weighed(trained, recipe, folds, said, y)


@dataclass(frozen=True, eq=False)
class _FoldModels:
    """The models of all folds: each has the other folds to learn from, and its own to choose the epoch by."""

    graph: Graph
    labeled: Tensor  # [n]
    folds: Sequence[Tensor]  # [n] each
    recipe: Recipe
    fixed: dict[str, Any]  # options of `learn`, for all folds
    options: Options
    until: float | None  # of the first fold, as in `learn`; the others have its members
    keeps: bool  # whether weights after each epoch are wanted, in `kept`
    kept: list[dict[str, Kept]] = field(default_factory=list)

    def one_by_one(self) -> tuple[list[Trained], bool]:
        """The models of the folds, and False; after Ctrl-C those that are whole, or else the first of the others, and True."""
        found: list[Trained] = []
        for k, fold in enumerate(self.folds):
            own = found[0].recipe if found else self.recipe
            self.kept.append({})
            more: dict[str, Any] = {
                "until": None if found else self.until,
                "kept": self.kept[k] if self.keeps else None,
            }
            trained = learn(self.graph, self.labeled & ~fold, fold, own, **self.fixed, **more, **self.options(k))
            if trained.run.interrupted:
                return found or [trained], True
            found.append(trained)
        return found, False

    def side_by_side(self, workers: int) -> tuple[list[Trained], bool]:
        """The same by several processes, each of which trains one member of one fold at a time."""
        members = members_of(self.recipe) if self.recipe.members else {"": self.recipe}
        options = [self.options(k) for k in range(len(self.folds))]

        def work(task: Task, tell: Callable[[Epoch], None]) -> Outcome:
            (k, name), kept = task, dict[str, Kept]()
            more = {**self.fixed, **options[k], "threads": 1, "on_epoch": tell, "kept": kept if self.keeps else None}
            if name and more.get("checkpoint") is not None:
                more["checkpoint"] = storage.inside(more["checkpoint"], name)
            try:
                with num_threads(
                    1
                ):  # a team of torch's threads does not survive a fork: waiting for it would never end
                    trained = learn(self.graph, self.labeled & ~self.folds[k], self.folds[k], members[name], **more)
            except DivergedError as error:
                error.trained = None
                raise told(error, name) from None
            return trained.model.state_dict(), trained.run, kept.get("", Kept())

        def hear(task: Task, epoch: Epoch) -> None:
            if (on_epoch := options[task[0]].get("on_epoch")) is not None:
                on_epoch(epoch)

        crew = Crew(work, min(workers, len(self.folds) * len(members)), hear)
        crew.run(self.tasks(members, crew.results))
        done = [
            {name: crew.results[k, name] for name in members if (k, name) in crew.results}
            for k in range(len(self.folds))
        ]
        self.kept.extend({name: kept for name, (_, _, kept) in outcomes.items()} for outcomes in done)
        found = [self.loaded(k, members, outcomes) for k, outcomes in enumerate(done) if "" in outcomes]
        if not crew.interrupted:
            return found, False
        if not found:
            raise KeyboardInterrupt
        most = max(len(one.best_epochs) for one in found)
        whole = [one for one in found if len(one.best_epochs) == most and not one.run.interrupted]
        return whole or found[:1], True

    def tasks(self, members: Mapping[str, Recipe], outcomes: Mapping[Task, Outcome]) -> Iterator[Task]:
        """What there is to train, fold by fold; of the first fold what there is time for, of the others the same.

        The last fold begins with what took longest: no process shall wait for another at the end.
        """
        begun: list[str] = []
        for name, own in members.items():
            longest = max((run.seconds for _, run, _ in outcomes.values()), default=0.0)
            if hasattr(METHODS[own.method].build, "fit_directly"):
                longest = 0.0
            if begun and self.until is not None and time.perf_counter() + longest > self.until:
                continue
            begun.append(name)
            yield 0, name
        last = len(self.folds) - 1
        yield from ((k, name) for k in range(1, last) for name in begun)
        took = {name: outcomes[0, name][1].seconds if (0, name) in outcomes else 0.0 for name in begun}
        yield from ((last, name) for name in sorted(begun, key=lambda name: -took[name]))

    def loaded(self, k: int, members: Mapping[str, Recipe], outcomes: Mapping[str, Outcome]) -> Trained:
        """The models of one fold, from the weights that a process has sent."""
        fold, classes = self.folds[k], self.fixed["classes"]
        lesson = lesson_of(self.graph, self.labeled & ~fold, fold, self.recipe, classes)
        done = {}
        for name, (state, run, _) in outcomes.items():
            model: Any = METHODS[members[name].method].build(members[name], lesson.prepared, self.fixed["seed"])
            model.load_state_dict(state)
            done[name] = model.eval(), run
        return lesson.together(done)


def _joined(whole: Lesson, found: Sequence[Trained], *, interrupted: bool = False) -> Trained:
    """The models of several folds as one team."""
    same = zip(*(_bags(one) for one in found), strict=True)
    team = team_of([[model for bag in member for model in bag] for member in same]).eval()
    return whole.trained(team, dataclasses.replace(found[0].run, recipe=whole.recipe, interrupted=interrupted))


def _bags(trained: Trained) -> Any:
    return trained.model.bags if isinstance(trained.model, Team) else [[trained.model]]


class _Refitting:
    """Models of the same members, fitted to other labels or for other numbers of epochs."""

    def __init__(self, whole: Lesson, seed: int, device: torch.device) -> None:
        self.whole, self.seed, self.device = whole, seed, device

    def to_all_labels(self, trained: Trained) -> Trained:
        """The same, but what needs no label to choose an epoch learns from all of them, with a seed for each model."""
        bags = [
            self.fitted_at_once(recipe, bag) if hasattr(bag[0], "fit_directly") else list(bag)
            for recipe, bag in zip(self.whole.members.values(), _bags(trained), strict=True)
        ]
        return dataclasses.replace(trained, model=team_of(bags).eval())

    def fitted_at_once(self, recipe: Recipe, bag: Any) -> list[Any]:
        number = len(bag) if getattr(bag[0], "depends_on_seed", True) else 1
        models = [self.whole.fitted(recipe, self.seed + k, self.device, like=bag)[0] for k in range(number)]
        return models if number == len(bag) else [copy.deepcopy(models[0]) for _ in bag]

    def with_epochs_of_others(self, lesson: Lesson, found: Sequence[Trained], k: int, kept: Mapping[str, Kept]) -> Team:
        """The members without fold k after as many epochs as the other folds choose: the median of them.

        Where the weights after that epoch are not among the `kept`, the member is trained once more.
        """
        bags = []
        for m, (name, recipe) in enumerate(lesson.members.items()):
            (model,) = _bags(found[k])[m]
            if not hasattr(model, "fit_directly"):
                epochs = [one.best_epochs[m] for j, one in enumerate(found) if j != k]
                stop_at = max(1, round(float(np.median(epochs))))
                if state := kept[name].after(stop_at):
                    model = copy.deepcopy(model)
                    model.load_state_dict(state)
                else:
                    model, run = lesson.fitted(recipe, self.seed, self.device, stop_at=stop_at)
                    if run.interrupted:
                        raise KeyboardInterrupt
            bags.append([model])
        return team_of(bags).eval()


def _weighed(
    trained: Trained, recipe: Recipe, folds: Sequence[Tensor], opinions: Sequence[Opinions], y: Tensor
) -> Trained:
    """With the weights of members and votes that held-out labels give them, and what is said of these labels.

    A node whose class has no label in the other folds fits no weight: a member that was never taught the class is sure that it
    is not, and one such node would silence it everywhere.
    """
    node = torch.cat([fold.nonzero().squeeze(1) for fold in folds])
    number = torch.repeat_interleave(torch.arange(len(folds)), torch.tensor([int(fold.sum()) for fold in folds]))
    joined = Opinions.joined(opinions)
    if recipe.votes:
        taught = torch.cat([_is_taught(y, fold, folds) for fold in folds])
        said = held_out_probabilities(joined, y[node], number, taught)
        fusion = fit_fusion(joined.of(taught), y[node][taught])
    else:
        said, fusion = torch.stack(joined.experts).mean(dim=0).softmax(dim=1), None
    order = node.argsort()
    held_out = HeldOut(node[order], number[order], said[order])
    return dataclasses.replace(trained, fusion=fusion, held_out=held_out)


def _is_taught(y: Tensor, fold: Tensor, folds: Sequence[Tensor]) -> Tensor:
    """For every node of a fold whether another fold has a label of its class."""
    others = torch.stack(list(folds)).any(dim=0) & ~fold
    return torch.isin(y[fold], y[others])
