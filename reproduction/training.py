"""Trainings of the study: models of its methods, which are the library's and a few that no other user has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.graph import Graph
from gcn_lpa.learning.many import fit_many
from gcn_lpa.learning.tasks import Batch, Job, Task, task_of
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.metrics import Scores
from gcn_lpa.predict import scores
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Classes
from gcn_lpa.train import DivergedError, Fit, JobName, Run, fit, fit_at_once
from reproduction.methods import study_methods
from reproduction.recipes import StudyRecipe


@dataclass(frozen=True, eq=False)
class Learned:
    """A fitted model and what it predicts of every node of its graph."""

    model: Any
    run: Run
    probabilities: Tensor  # [n, c], on the CPU
    target: Classes  # of the columns
    diverged: bool = False  # then the model is that of the best epoch before

    @classmethod
    def of(cls, model: Any, run: Run, task: Task, device: torch.device, *, diverged: bool = False) -> Learned:
        with torch.no_grad():
            probabilities = F.softmax(model(task.prepared.to(device)).double(), dim=1).cpu()
        return cls(model, run, probabilities, cast(Classes, task.graph.target), diverged)

    def scores(self, graph: Graph, nodes: Tensor) -> Scores:
        """Of these nodes, whose labels are those of the graph."""
        return cast(Scores, scores(graph, nodes, self.probabilities, self.target))


def learn_once(
    graph: Graph,
    train: Tensor,
    val: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
) -> Learned:
    """Train a method of the study on the labels of `train`, and choose the epoch by those of `val`; masks, [n] each.

    A training that diverges counts with its best epoch before that; without one it is a `DivergedError`. Ctrl-C is a
    KeyboardInterrupt: a model that was stopped half-way would count as a result.
    """
    recipe = StudyRecipe.of(recipe)
    task, where, method = task_of(graph, train, val, recipe), choose_device(device), study_methods()[recipe.method]
    model: Any = method.build(recipe, task.prepared, seed).to(where)
    placed, nodes, diverged = task.prepared.to(where), train.nonzero().squeeze(1), False
    validation = task.validation(placed)
    with num_threads(threads, layer=graph.num_nodes * max(recipe.hidden, graph.num_classes)):
        try:
            if method.at_once:
                run = fit_at_once(model, placed, nodes.to(where), validation, recipe, seed=seed)
            else:
                run = fit(model, batches_of(placed, nodes, recipe.batch_size), validation, recipe, seed=seed)
        except DivergedError as error:
            if error.run is None or not error.run.best_epoch:
                raise
            run, diverged = error.run, True
        if run.interrupted:
            raise KeyboardInterrupt
        return Learned.of(model, run, task, where, diverged=diverged)


def learn_many(
    graph: Graph,
    parts: Sequence[tuple[Tensor, Tensor]],
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    device: str = "auto",
    threads: int | None = None,
) -> list[Learned | DivergedError]:
    """A model of a library's recipe for each (train, val) of `parts`, side by side, or how it diverged."""
    where, tasks = choose_device(device), [task_of(graph, train, val, recipe) for train, val in parts]
    name = JobName("fit", "", recipe.epochs)
    jobs = [Job(name, task, recipe, seed) for task, seed in zip(tasks, seeds, strict=True)]
    outcomes = fit_many([jobs], device=where, threads=threads)
    if outcomes.interrupted:
        raise KeyboardInterrupt
    return [
        Learned.of(outcome.model, outcome.run, task, where) if isinstance(outcome, Fit) else outcome
        for outcome, task in zip(outcomes.groups[0], tasks, strict=True)
        if outcome is not None
    ]


def in_library(recipe: StudyRecipe) -> Recipe | None:
    """The recipe by which the library trains the same model; None where only the study has it."""
    return recipe.of_library if recipe.method in METHODS else None


def batches_of(graph: Graph, nodes: Tensor, most: int) -> list[Batch]:
    """The training nodes as one batch, or shuffled into several of at most so many nodes, the same ones in every epoch."""
    if most and len(nodes) > most:
        nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))]
    return [Batch(graph, some.to(graph.device)) for some in nodes.split(most or len(nodes))]
