"""Learning from all given labels: each fold of them in turn is held out, and the models of all folds predict together."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.splits import label_folds
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.epochs import DivergedError, Kept, Run
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, members_of
from gcn_lpa.learning.many import Outcomes, fit_many
from gcn_lpa.learning.tasks import Fit, Job, JobName, Task, Watch, task_of
from gcn_lpa.learning.votes import EnsembleWeights, Parts, cross_fitted, fit_weights, parts_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.train import num_epochs
from gcn_lpa.trained import HeldOut

NUM_FOLDS = 5
REFITTING = 0.2  # of the time of training over the folds: what is fitted once more to all labels
UNCHOSEN = 200  # epochs where no label can choose one
MANY_LABELS = 500  # from here on, that a fold chose the epoch of its model makes its score hardly better


@dataclass(frozen=True, eq=False)
class Learned:
    """What training gives, before it is put together with the rest of a `Trained`."""

    ensemble: Ensemble
    recipe: Recipe  # without members that there was no time for
    run: Run
    weights: EnsembleWeights | None = None
    held_out: HeldOut | None = None


@dataclass(frozen=True, eq=False)
class Folds:
    """Labels in folds. Five models of each member learn, each without one fold, which chooses its epoch.

    To predict, their log-probabilities are averaged; methods that choose no epoch, such as trees, are fitted to all labels for
    that, with five seeds where they depend on one.

    Out-of-fold predictions score the models, fit the weights of members and votes, and calibrate. A fold that chose the epoch of
    its model would score too well, by several points where it is a handful of nodes: with fewer than MANY_LABELS labels, each fold
    is predicted by a model whose epoch the other folds chose.
    """

    graph: Graph
    whole: Task  # with all labels to learn from
    recipe: Recipe
    seed: int
    device: torch.device
    threads: int | None
    masks: tuple[Tensor, ...]  # of each fold, [n]

    @classmethod
    def of(
        cls, graph: Graph, train: Tensor, recipe: Recipe, seed: int, device: torch.device, threads: int | None
    ) -> Folds | None:
        """None where no class has two labels: a model that one is held out from would not know its class."""
        whole = task_of(graph, train, torch.zeros_like(train), recipe)
        y = whole.graph.y.cpu()
        if int(y[train].bincount().max()) < 2:
            return None
        masks = label_folds(y, train, min(NUM_FOLDS, int(train.sum())), seed=(seed, 0))
        return cls(graph, whole, recipe, seed, device, threads, tuple(masks))

    @property
    def labels(self) -> Tensor:
        """The class of every node, [n]."""
        return self.whole.graph.y.cpu()

    @property
    def has_few(self) -> bool:
        return int(self.whole.train.sum()) < MANY_LABELS

    def learn(self, watch: Watch | None, minutes: float | None) -> Learned:
        classes = self.whole.graph.class_names
        tasks = [task_of(self.graph, self.whole.train & ~fold, fold, self.recipe, classes) for fold in self.masks]
        groups = [
            [self.job(name, recipe, *task) for task in enumerate(tasks)]
            for name, recipe in members_of(self.recipe).items()
        ]
        until = None if minutes is None else time.perf_counter() + 60 * minutes / (1 + REFITTING)
        outcomes = fit_many(groups, device=self.device, threads=self.threads, watch=watch, until=until)
        fits, recipe = self.finished(groups, outcomes)
        first = fits[0][0].run
        if outcomes.interrupted:
            run = Run(recipe, self.seed, first.history, first.best_epoch, interrupted=True)
            return Learned(Ensemble([[fit.model for fit in member] for member in fits]).eval(), recipe, run)
        with num_threads(
            self.threads, layer=self.graph.num_nodes * max(recipe.hidden, len(self.whole.graph.class_names))
        ):
            jobs = [group for number, group in enumerate(groups) if number in outcomes.groups]
            ensemble = self.refitted(jobs, fits)
            weights, held_out = self.weighed(recipe, self.out_of_fold(jobs, fits))
        return Learned(ensemble, recipe, Run(recipe, self.seed, first.history, first.best_epoch), weights, held_out)

    def job(self, name: str, recipe: Recipe, k: int, task: Task) -> Job:
        where = JobName(f"fold-{k + 1}", name, num_epochs(recipe))
        return Job(where, task, recipe, self.seed, kept=Kept() if self.has_few else None)

    def finished(self, groups: Sequence[Sequence[Job]], outcomes: Outcomes) -> tuple[list[list[Fit]], Recipe]:
        """The models of each member that was trained, and the recipe of those.

        After Ctrl-C the members that are whole; or else the folds of the first member that are, or its first model.
        """
        for group in outcomes.groups.values():
            for outcome in group:
                if isinstance(outcome, DivergedError):
                    raise outcome
        fits = {
            groups[number][0].name.member: [outcome for outcome in group if isinstance(outcome, Fit)]
            for number, group in outcomes.groups.items()
        }
        if outcomes.interrupted:
            whole = {name: [fit for fit in group if not fit.run.interrupted] for name, group in fits.items()}
            kept = {name: group for name, group in whole.items() if len(group) == len(self.masks)}
            fits = kept if "" in kept else {"": whole[""] or fits[""][:1]}
            if not fits[""]:
                raise KeyboardInterrupt
        return list(fits.values()), self.recipe.replace(members=" ".join(list(fits)[1:]))

    def refitted(self, jobs: Sequence[Sequence[Job]], fits: Sequence[Sequence[Fit]]) -> Ensemble:
        """The models of all folds; what needs no label to choose an epoch learns from all labels, with a seed for each model."""
        members = []
        for group, models in zip(jobs, ([fit.model for fit in member] for member in fits), strict=True):
            if group[0].is_at_once:
                number = len(models) if models[0].depends_on_seed else 1
                refits = [self.refit(group[0], self.seed + k, models) for k in range(number)]
                models = refits if number > 1 else [copy.deepcopy(refits[0]) for _ in models]
            members.append(models)
        return Ensemble(members).eval()

    def refit(self, job: Job, seed: int, like: Sequence[Any]) -> Any:
        return Job(job.name, self.whole, job.recipe, seed, like=like).run(self.device).model

    def out_of_fold(self, jobs: Sequence[Sequence[Job]], fits: Sequence[Sequence[Fit]]) -> list[Parts]:
        """What models without a fold, and the labels of the others, say of it, for each fold."""
        parts = []
        for k, fold in enumerate(self.masks):
            models = [
                [self.with_epoch_of_others(group[k], [fit.run.best_epoch for fit in member], member[k].model, k)]
                for group, member in zip(jobs, fits, strict=True)
            ]
            prepared = jobs[0][k].task.prepared.to(self.device)
            parts.append(parts_of(Ensemble(models).eval(), prepared).of(fold))
        return parts

    def with_epoch_of_others(self, job: Job, best_epochs: Sequence[int], model: Any, k: int) -> Any:
        """With few labels, the model of a fold after as many epochs as the other folds choose: the median of them.

        Where the weights after that epoch were not kept, the model is trained once more.
        """
        if not self.has_few or job.is_at_once:
            return model
        others = [epoch for j, epoch in enumerate(best_epochs) if j != k]
        stop_at = max(1, round(float(np.median(others))))
        state = None if job.kept is None else job.kept.after(stop_at)
        if state is None:
            unseen = dataclasses.replace(job.task, val=torch.zeros_like(job.task.val))  # the fold chooses nothing
            fit = Job(job.name, unseen, job.recipe, job.seed, stop_at=stop_at).run(self.device)
            if fit.run.interrupted:
                raise KeyboardInterrupt
            return fit.model
        found = copy.deepcopy(model)
        found.load_state_dict({**found.state_dict(), **state})
        return found

    def weighed(self, recipe: Recipe, parts: Sequence[Parts]) -> tuple[EnsembleWeights | None, HeldOut]:
        """The weights of members and votes, and out-of-fold predictions by weights that were fitted to the other folds.

        Nodes whose class is absent from the other folds are excluded when fitting weights: a member that never saw the class
        gives it probability ~0, and one such node would drive that member's weight to 0.
        """
        node = torch.cat([fold.nonzero().squeeze(1) for fold in self.masks])
        sizes = torch.tensor([int(fold.sum()) for fold in self.masks])
        number = torch.repeat_interleave(torch.arange(len(self.masks)), sizes)
        joined, y, weights = Parts.joined(parts), self.labels[node], None
        if recipe.votes:
            known = torch.cat([self.has_class_elsewhere(fold) for fold in self.masks])
            probabilities = cross_fitted(joined, y, number, known)
            weights = fit_weights(joined.of(known), y[known])
        else:
            probabilities = torch.stack(joined.members).mean(dim=0).softmax(dim=1)
        order = node.argsort()
        return weights, HeldOut(node[order], y[order], probabilities[order], "cross-validation", number[order])

    def has_class_elsewhere(self, fold: Tensor) -> Tensor:
        """For every node of a fold whether another fold has a label of its class."""
        others = self.whole.train & ~fold
        return torch.isin(self.labels[fold], self.labels[others])
