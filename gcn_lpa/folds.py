"""Learning from all given labels: each fold of them in turn is held out, and the models of all folds predict together."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.fusion import Opinions, fit_fusion, held_out_probabilities, opinions_of
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.learning import Lesson, learn, lesson_of
from gcn_lpa.methods.team import Team, team_of
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.splits import label_folds
from gcn_lpa.train import Kept
from gcn_lpa.trained import HeldOut, Trained

NUM_FOLDS = 5
PASSES = 1.2  # of training over the folds, with what is fitted once more to all labels
MANY_LABELS = 500  # from here on, that a fold chose the epoch of its model makes its score hardly better
Options = Callable[[int], dict[str, Any]]  # of `learn`, for the fold of this number


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
    log-probabilities; methods that choose no epoch, such as trees, are fitted to all labels for that, five times.

    What is said of a fold by models without it scores them, fits the weights of members and votes, and calibrates; it is in
    `held_out` of what is returned. A fold that chose the epoch of its model would score too well, by several points where it is
    a handful of nodes: with fewer than MANY_LABELS labels, each fold is scored by another model, whose epoch the other folds
    chose.

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
    folds = label_folds(y, labeled, min(NUM_FOLDS, int(labeled.sum())), seed=(seed, 0))
    fixed: dict[str, Any] = {"seed": seed, "classes": names, "device": device, "threads": threads}
    alone = recipe.replace(votes=False)
    if len(folds) < 2:
        return learn(graph, labeled, nobody, alone, **fixed, **(options(0) if options else {}))
    share = 60 * minutes / (PASSES * len(folds)) if minutes else None  # of each fold
    found: list[Trained] = []
    has_few, kept = int(labeled.sum()) < MANY_LABELS, [dict[str, Kept]() for _ in folds]
    for k, fold in enumerate(folds):
        own = found[0].recipe if found else alone  # with the members that the first fold had the time for
        more = {
            "until": None if share is None or found else start + share,
            "kept": kept[k] if has_few else None,
            **(options(k) if options else {}),
        }
        found.append(learn(graph, labeled & ~fold, fold, own, **fixed, **more))
        if found[-1].run.interrupted:
            whole = dataclasses.replace(whole, recipe=recipe.replace(members=found[0].recipe.members))
            return _joined(whole, [one for one in found if not one.run.interrupted] or found, interrupted=True)
    whole = dataclasses.replace(whole, recipe=recipe.replace(members=found[0].recipe.members))
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
            [self.whole.fitted(recipe, self.seed + k, self.device)[0] for k in range(len(bag))]
            if hasattr(bag[0], "fit_directly")
            else list(bag)
            for recipe, bag in zip(self.whole.members.values(), _bags(trained), strict=True)
        ]
        return dataclasses.replace(trained, model=team_of(bags).eval())

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
    """With the weights of members and votes that held-out labels give them, and what is said of these labels."""
    node = torch.cat([fold.nonzero().squeeze(1) for fold in folds])
    number = torch.repeat_interleave(torch.arange(len(folds)), torch.tensor([int(fold.sum()) for fold in folds]))
    joined = Opinions.joined(opinions)
    if recipe.votes:
        said, fusion = held_out_probabilities(joined, y[node], number), fit_fusion(joined, y[node])
    else:
        said, fusion = torch.stack(joined.experts).mean(dim=0).softmax(dim=1), None
    order = node.argsort()
    held_out = HeldOut(node[order], number[order], said[order])
    return dataclasses.replace(trained, fusion=fusion, held_out=held_out)
