"""From a graph to a `Trained`: THE way. The command line, the estimator, comparisons and notebooks all call `learn`."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.calibration import Calibration, fit_calibrator
from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.splits import label_folds
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.epochs import DivergedError, Fit, JobName, Kept, Run, Watch
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.learning.choose_recipe import choose_recipe
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights, Parts, cross_fitted, fit_weights, parts_of
from gcn_lpa.learning.many import Outcomes, fit_many
from gcn_lpa.learning.tasks import Job, Task, task_of
from gcn_lpa.methods.hops import RelationHops
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.predict import Prediction
from gcn_lpa.recipes import Recipe
from gcn_lpa.train import num_epochs
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

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
        return Job(where, task, recipe, METHODS[recipe.method], self.seed, kept=Kept() if self.has_few else None)

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
        return dataclasses.replace(job, task=self.whole, seed=seed, kept=None, like=like).run(self.device).model

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
            fit = dataclasses.replace(job, task=unseen, stop_at=stop_at, kept=None).run(self.device)
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


VOTE_FOLDS = 5  # of validation nodes: each is calibrated by weights that were fitted to the others


def learn(
    graph: Graph,
    train: Any = None,
    val: Any = None,
    recipe: str | Recipe = "default",
    *,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    minutes: float | None = None,
    watch: Watch | None = None,
) -> Trained:
    """Learn from labelled nodes, with the recipe that suits the graph.

    All labels but those of `train` and `val` are hidden before anything is made of the graph; those of `val` are hidden from
    the models. Held-out labels choose the epochs, fit the weights of members and label votes, and calibrate probabilities:
    those of `val`, or without `val` each of five folds of the training labels in turn (`learning.folds`).

    Args:
        graph: raw, as it was loaded.
        train: nodes to learn from, a boolean mask or positions; None: all that have a label and are not in `val`.
        val: nodes to hold out; None: folds of `train`. An empty list holds out nothing: the last epoch is kept.
        recipe: "default" or "best", which are chosen for the graph (`choose_recipe`), "paper", "official", or a `Recipe`.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        threads: of the CPU; None: see `num_threads`.
        minutes: about as long as it may take: members of the recipe for which there would be no time are left out, those
            named last first. What is trained then depends on how fast the machine is.
        watch: who is told of every epoch, and where checkpoints go.
    """
    check_graph(graph)
    check_seed(seed)
    held_out = None if val is None else node_mask(val, graph.num_nodes, "val")
    nodes = _training_nodes(graph, train, held_out)
    where, chosen = choose_device(device), recipe
    if isinstance(chosen, str):
        has_time = minutes is not None or where.type == "cuda"
        chosen = choose_recipe(graph, nodes, chosen, by_folds=held_out is None, has_time=has_time)
    if held_out is None:
        return _by_folds(graph, nodes, chosen, seed, where, threads, minutes, watch)
    task = task_of(graph, nodes, held_out, chosen)
    until = None if minutes is None else time.perf_counter() + 60 * minutes
    jobs = member_jobs(task, chosen, seed)
    outcomes = fit_many([[job] for job in jobs], device=where, threads=threads, watch=watch, until=until)
    done = {jobs[number].name.member: outcome for number, (outcome,) in outcomes.groups.items()}
    with num_threads(threads, layer=graph.num_nodes * max(chosen.hidden, task.graph.target.width)):
        return together(task, chosen, done, interrupted=outcomes.interrupted)


def learn_many(
    graph: Graph,
    parts: Iterable[tuple[Any, Any]],
    recipe: Recipe,
    *,
    seeds: int | Sequence[int] = 0,
    classes: Sequence[str] | None = None,
    stop_at: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    watch: Watch | None = None,
) -> list[Trained]:
    """`learn(graph, train, val, recipe, seed=…)` for each (train, val) of `parts`, side by side: see `learning.many`.

    No model sees a label that is not its own. Ctrl-C is a KeyboardInterrupt, not the end of one training: a model that was
    stopped half-way would count as a result.

    Args:
        seeds: of each training, or one for all.
        classes: that the models know; None: those that occur among the labels of each part.
        stop_at: end after this epoch, although the recipe has more.
    """
    masks = list(parts)
    tasks = [task_of(graph, train, val, recipe, classes) for train, val in masks]
    numbers = [seeds] * len(tasks) if isinstance(seeds, int) else list(seeds)
    if len(numbers) != len(tasks):
        raise ValueError(f"seeds has {len(numbers)} numbers for {len(tasks)} parts; give one for each, or one for all")
    each = [member_jobs(task, recipe, seed, stop_at=stop_at) for task, seed in zip(tasks, numbers, strict=True)]
    if not each:
        return []
    groups = [list(group) for group in zip(*each, strict=True)]  # of each member, for all parts
    outcomes = fit_many(groups, device=choose_device(device), threads=threads, watch=watch)
    models = []
    for k, task in enumerate(tasks):
        done = {groups[number][0].name.member: group[k] for number, group in outcomes.groups.items()}
        is_whole = all(isinstance(outcome, Fit) and not outcome.run.interrupted for outcome in done.values())
        if outcomes.interrupted and not is_whole:
            raise KeyboardInterrupt
        with num_threads(threads, layer=graph.num_nodes * max(recipe.hidden, task.graph.target.width)):
            models.append(together(task, recipe, done))
    return models


def _training_nodes(graph: Graph, train: Any, val: Tensor | None) -> Tensor:
    if train is not None:
        return node_mask(train, graph.num_nodes, "train")
    labeled = graph.labeled.cpu()
    return labeled if val is None else labeled & ~val


def member_jobs(task: Task, recipe: Recipe, seed: int, *, stop_at: int | None = None) -> list[Job]:
    """A job for each member of a recipe."""
    return [
        Job(JobName("fit", name, num_epochs(member)), task, member, METHODS[member.method], seed, stop_at)
        for name, member in members_of(recipe).items()
    ]


def together(task: Task, recipe: Recipe, done: dict[str, Any], *, interrupted: bool = False) -> Trained:
    """The models of the members that were trained, by name, as one; with weights and a calibration where nodes were held out."""
    if diverged := [outcome for outcome in done.values() if isinstance(outcome, DivergedError)]:
        raise diverged[0]
    fits = {name: fit for name, fit in done.items() if isinstance(fit, Fit)}
    if "" not in fits:
        raise KeyboardInterrupt
    recipe = recipe.replace(members=" ".join(list(fits)[1:]))
    first = fits[""].run
    run = dataclasses.replace(first, recipe=recipe, interrupted=interrupted or first.interrupted)
    ensemble = Ensemble([[fit.model] for fit in fits.values()]).eval()
    learned = Learned(ensemble, recipe, run)
    if task.val.any():
        learned = _weighed_by_validation(learned, task)
    return _trained(task, learned)


def _weighed_by_validation(learned: Learned, task: Task) -> Learned:
    """With the weights that the validation nodes give to members and votes, and what is said of these nodes.

    Each is predicted by weights that were fitted to others of them.
    """
    ensemble, recipe, nodes = learned.ensemble, learned.recipe, task.val.nonzero().squeeze(1)
    prepared, y = task.prepared.to(_device_of(ensemble)), task.graph.y.cpu()[nodes]
    if not recipe.votes:
        with torch.no_grad():
            probabilities = ensemble(prepared).double().softmax(dim=1).cpu()[nodes]
        return dataclasses.replace(learned, held_out=HeldOut(nodes, y, probabilities, "validation"))
    parts = parts_of(ensemble, prepared).of(task.val)
    probabilities = cross_fitted(parts, y, torch.arange(len(y)) % VOTE_FOLDS)
    held_out = HeldOut(nodes, y, probabilities, "validation")
    return dataclasses.replace(learned, weights=fit_weights(parts, y), held_out=held_out)


def _by_folds(
    graph: Graph,
    train: Tensor,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    threads: int | None,
    minutes: float | None,
    watch: Watch | None,
) -> Trained:
    folds = Folds.of(graph, train, recipe, seed, device, threads)
    if folds is not None:
        return _trained(folds.whole, folds.learn(watch, minutes))
    # no class has two labels: one model of each member learns from all of them, for a fixed number of epochs
    short = recipe.replace(votes=False, epochs=min(recipe.epochs, UNCHOSEN))
    return learn(graph, train, [], short, seed=seed, device=str(device), threads=threads, minutes=minutes, watch=watch)


def _trained(task: Task, learned: Learned) -> Trained:
    """The models with everything around them; calibrated where labels were held out."""
    graph = task.graph
    trained = Trained(
        model=learned.ensemble,
        recipe=learned.recipe,
        target=graph.target,
        num_columns=graph.num_features,
        x_kind=graph.x_kind,
        scaling=task.scaling,
        known=KnownLabels.of(graph, task.train, task.val),
        run=learned.run,
        weights=learned.weights,
        columns=graph.columns,
        held_out=learned.held_out,
        relations=relation_shares(learned, task.prepared),
    )
    return calibrated(trained)


def calibrated(trained: Trained) -> Trained:
    """The same with probabilities that are calibrated on its held-out labels."""
    held_out = trained.held_out
    if held_out is None or not len(held_out.node):
        return trained
    return trained.with_calibration(calibration_by(held_out))


def calibration_by(held_out: HeldOut) -> Calibration:
    """The calibration that held-out predictions ask for."""
    return Calibration(fit_calibrator(held_out.probability, held_out.y), held_out.protocol, num_nodes=len(held_out.y))


def calibrate(trained: Trained, graph: Graph, nodes: Any, *, protocol: str = "reserved") -> Trained:
    """The same model with probabilities that are calibrated on the labels of `nodes`, which training must not have seen."""
    mask = node_mask(nodes, graph.num_nodes)
    seen = mask & trained.known.on(graph)[1]
    if seen.any():
        raise ValueError(f"node {int(seen.nonzero()[0])} was trained on: its label cannot calibrate the model")
    y = trained.classes_of(graph)[mask]
    if not len(y) or (y < 0).any():
        raise ValueError(
            f"{int((y < 0).sum())} of the {len(y)} nodes to calibrate on have no label that the model knows"
        )
    uncalibrated = Prediction.of(trained.with_calibration(None), graph).uncalibrated[mask]
    held_out = HeldOut(mask.nonzero().squeeze(1), y, uncalibrated, protocol)
    return calibrated(dataclasses.replace(trained, held_out=held_out))


def relation_shares(learned: Learned, prepared: Graph) -> dict[str, float]:
    """How much of what the first member says differently of different nodes comes along each edge type; empty without types.

    The rest is a node's own prediction. The γ alone do not tell: far along random edges all nodes get the same.
    """
    if learned.recipe.propagation != "relations" or prepared.edge_types is None:
        return {}
    names, shares, prepared = prepared.edge_types.names, [], prepared.to(_device_of(learned.ensemble))
    for model in learned.ensemble.first:
        with torch.no_grad():
            parts = cast(RelationHops, model.body).parts(prepared)
        spread = torch.stack([(part - part.mean(dim=0)).square().mean().sqrt() for part in parts])
        shares.append(spread / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny))
    return dict(zip(names, torch.stack(shares).mean(dim=0)[1:].tolist(), strict=True))


def _device_of(ensemble: Ensemble) -> torch.device:
    return next((tensor.device for tensor in ensemble.state_dict().values()), torch.device("cpu"))
