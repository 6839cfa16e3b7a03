"""Learning from all given labels: each fold of them in turn is held out, and the models of all folds predict together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.fusion import Opinions, fit_fusion, held_out_probabilities, opinions_of
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.learning import Lesson, learn, lesson_of
from gcn_lpa.methods.team import Team, team_of
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.splits import label_folds
from gcn_lpa.trained import HeldOut, Trained

NUM_FOLDS = 5
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
    options: Options | None = None,
) -> Trained:
    """Train on the labels of `nodes` without further validation nodes.

    Five models, each without one fold of the labels, which chooses its epoch. To predict, they say the mean of their
    log-probabilities; methods that choose no epoch, such as trees, are fitted to all labels for that, five times.

    What each says of its own fold scores them, fits the weights of members and votes, and calibrates; it is in `held_out` of
    what is returned. A fold has chosen the epoch of its model, which makes its score a little too good, while the five together
    are better than each of them: see docs/accuracy.md.

    Args:
        nodes: a mask or positions; None: all nodes with a label.
        classes: that the model knows; None: those that occur among these labels.
        options: further options of `learn` for each fold.
    """
    labeled = graph.labeled.cpu() if nodes is None else node_mask(nodes, graph.num_nodes, "nodes")
    nobody = torch.zeros_like(labeled)
    whole = lesson_of(graph, labeled, nobody, recipe, classes)
    folds = label_folds(whole.graph.y.cpu(), labeled, min(NUM_FOLDS, int(labeled.sum())), seed=(seed, 0))
    fixed: dict[str, Any] = {"seed": seed, "classes": whole.graph.class_names, "device": device, "threads": threads}
    alone = recipe.replace(votes=False)
    if len(folds) < 2:
        return learn(graph, labeled, nobody, alone, **fixed, **(options(0) if options else {}))
    found, opinions = [], []
    for k, fold in enumerate(folds):
        trained = learn(graph, labeled & ~fold, fold, alone, **fixed, **(options(k) if options else {}))
        found.append(trained)
        if trained.run.interrupted:
            break
        opinions.append(opinions_of(trained.model, trained.prepare(graph).to(trained.device)).of(fold))
    done = [one for one in found if not one.run.interrupted] or found
    same = zip(*(one.model.bags if isinstance(one.model, Team) else [[one.model]] for one in done), strict=True)
    bags = [[model for bag in member for model in bag] for member in same]
    if not found[-1].run.interrupted:
        bags = _without_held_out(whole, bags, seed, choose_device(device), threads)
    team = team_of(bags).eval()
    trained_recipe = recipe.replace(members=done[0].recipe.members)  # fewer, if the first fold was interrupted
    run = dataclasses.replace(done[0].run, recipe=trained_recipe, interrupted=found[-1].run.interrupted)
    trained = whole.trained(team, run)
    if run.interrupted:
        return trained
    y, node = whole.graph.y.cpu(), torch.cat([fold.nonzero().squeeze(1) for fold in folds])
    number = torch.repeat_interleave(torch.arange(len(folds)), torch.tensor([int(fold.sum()) for fold in folds]))
    joined = Opinions.joined(opinions)
    if recipe.votes:
        said, fusion = held_out_probabilities(joined, y[node], number), fit_fusion(joined, y[node])
    else:
        said, fusion = torch.stack(joined.experts).mean(dim=0).softmax(dim=1), None
    order = node.argsort()
    held_out = HeldOut(node[order], number[order], said[order])
    return dataclasses.replace(trained, fusion=fusion, held_out=held_out)


def _without_held_out(
    whole: Lesson, bags: Sequence[list[Any]], seed: int, device: torch.device, threads: int | None
) -> list[list[Any]]:
    """The same, but what needs no label to choose an epoch is learned anew from all labels, with a seed for each model."""
    found = []
    for recipe, bag in zip(whole.members.values(), bags, strict=True):
        if hasattr(bag[0], "fit_directly"):
            with num_threads(threads):
                bag = [whole.fitted(recipe, seed + k, device)[0] for k in range(len(bag))]
        found.append(bag)
    return found
