"""From a graph to a `Trained`. The command line, the estimator, comparisons and notebooks all call `learn`.

Recipe → members → models → weights: `choose_recipe` names the case of a graph and gives its recipe, `members_of` the recipe of
each member, `fit_many` trains the models of all members, and held-out labels give the weights of members and label votes
(`fit_weights`) and the calibration.

Labels are held out as given validation nodes or in folds. By folds, five models of each member learn, each without one fold, which
chooses its epoch. To predict, their log-probabilities are averaged; methods that choose no epoch, such as trees, are then fitted to
all labels, with five seeds where they depend on one. A fold that chose the epoch of its model would score too well, by several
points where it is a handful of nodes: with fewer than MANY_LABELS labels, each fold is predicted by a model whose epoch the other
folds chose.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.calibration import FEWEST
from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.describe import unreachable
from gcn_lpa.data.splits import label_folds
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.learning.ensemble import (
    Ensemble,
    EnsembleWeights,
    Parts,
    cross_fitted,
    fit_weights,
    is_costly,
    is_judged,
    parts_of,
    worth_of,
)
from gcn_lpa.learning.many import Outcomes, fit_many
from gcn_lpa.learning.tasks import Job, Kept, Task, task_of
from gcn_lpa.methods.hops import RelationHops
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import Prediction
from gcn_lpa.recipes import OURS, Recipe, choose_recipe
from gcn_lpa.target import Target
from gcn_lpa.train import DivergedError, Fit, JobName, Watch, num_epochs
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

PARTS = 5  # of the labels, of which one is held out
REFITTING = 0.2  # of the time of training over the folds: what is fitted once more to all labels
UNCHOSEN = 200  # epochs where no label can choose one
MANY_LABELS = 500  # from here on, that a fold chose the epoch of its model makes its score hardly better
ENOUGH_CUT_OFF = 300  # held-out nodes that are predicted as if no label reached them
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
    those of `val`, or without `val` each of five folds of the training labels in turn.

    Args:
        graph: raw, as it was loaded.
        train: nodes to learn from, a boolean mask or positions; None: all that have a label and are not in `val`.
        val: nodes to hold out; None: folds of `train`. An empty list holds out nothing: the last epoch is kept.
        recipe: "default" or "best", which are chosen for the graph (`choose_recipe`), "paper", "official", or a `Recipe`.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        threads: of the CPU; None: see `num_threads`.
        minutes: about as long as it may take: members of the recipe for which there would be no time are left out, those
            named last first. What is trained then depends on how fast the machine is.
        watch: what is called after each epoch, and where checkpoints go.
    """
    check_graph(graph)
    seed = check_seed(seed)
    val = None if val is None else node_mask(val, graph.num_nodes, "val")
    if train is None:
        train = graph.labeled.cpu() if val is None else graph.labeled.cpu() & ~val
    train = node_mask(train, graph.num_nodes, "train")
    where = choose_device(device)
    chooses: dict[str, Any] = {"by_folds": val is None, "has_time": minutes is not None or where.type == "cuda"}
    if isinstance(recipe, str):
        recipe = choose_recipe(graph, train, recipe, **chooses)
    whole, folds = _held_out(graph, train, val, recipe, seed)
    telling = weights = None
    if recipe.edge_weights:
        from gcn_lpa.learning.edge_weights import Trials, learned_edge_weights, telling_edges  # few graphs need it

        parts = [(train & ~fold, fold) for fold in folds] if val is None else [(train, val)] * bool(val.any())
        trials = Trials(parts, seed, whole.graph.target, where, threads, watch)
        if (telling := telling_edges(graph, recipe, trials)) is not None:
            named = [name for name in OURS if recipe == choose_recipe(graph, train, name, **chooses)]
            graph = graph.without_idle(telling.levels)
            recipe = choose_recipe(graph, train, named[0], **chooses).replace(edge_weights=True) if named else recipe
            whole, folds = _held_out(graph, train, val, recipe, seed)
            trials = dataclasses.replace(trials, parts=[(train & ~fold, fold) for fold in folds] or trials.parts)
        weights = learned_edge_weights(graph, recipe, trials)
        if weights is not None and weights.is_used:
            whole = whole.weighed(weights.levels)
    if val is None and not folds:  # one model of each member learns from all labels, for a fixed number of epochs
        recipe = recipe.replace(votes=False, epochs=min(recipe.epochs, UNCHOSEN))
    target, has_few = whole.graph.target, int(train.sum()) < MANY_LABELS
    if folds:
        tasks = [task_of(graph, train & ~fold, fold, recipe, target) for fold in folds]
        if weights is not None and weights.is_used:
            tasks = [task.weighed(weights.of_fold(k)) for k, task in enumerate(tasks)]
        jobs = [member_jobs(task, recipe, seed, f"fold-{k}", keeps=has_few) for k, task in enumerate(tasks, start=1)]
        groups = [list(group) for group in zip(*jobs, strict=True)]  # of each member
    else:
        groups = _copies(whole, recipe, seed)
    until = None if minutes is None else time.perf_counter() + 60 * minutes / (1 + REFITTING * bool(folds))
    options: dict[str, Any] = {"device": where, "threads": threads, "watch": watch, "until": until}
    if len(folds) > 1 and is_judged(recipe, int(folds[0].sum())):
        outcomes, left_out = _worthy(groups, options)
    else:
        outcomes, left_out = fit_many(groups, **options), {}
    if minutes is not None:
        without = [group[0].name.member for k, group in enumerate(groups) if k not in outcomes.groups]
        left_out |= {name: f"no time for it in {minutes:g} minutes" for name in without if name not in left_out}
    groups = [groups[number] for number in outcomes.groups]
    fits = _fits(groups, outcomes)
    if folds:
        trained = _together_by_folds(whole, recipe, groups, fits, where, threads, interrupted=outcomes.interrupted)
        trained = dataclasses.replace(trained, left_out=left_out)
    else:
        with num_threads(threads, layer=whole.layer(recipe)):
            trained = together(whole, recipe, fits, interrupted=outcomes.interrupted)
    weights = weights if telling is None else telling.along(weights, max(1, len(folds)))
    return trained if weights is None else dataclasses.replace(trained, edge_weights=weights)


def _held_out(graph: Graph, train: Tensor, val: Tensor | None, recipe: Recipe, seed: int) -> tuple[Task, list[Tensor]]:
    """What a model of all training labels learns from, and the folds of these labels where no nodes are given to hold out."""
    whole = task_of(graph, train, torch.zeros_like(train) if val is None else val, recipe)
    return whole, _folds(whole, seed, recipe.folds) if val is None else []


def learn_many(
    graph: Graph,
    parts: Iterable[tuple[Any, Any]],
    recipe: Recipe,
    *,
    seeds: int | Sequence[int] = 0,
    target: Target | None = None,
    stop_at: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    watch: Watch | None = None,
) -> list[Trained]:
    """`learn(graph, train, val, recipe, seed=…)` for each (train, val) of `parts`, side by side: see `learning.many`.

    No model sees a label of another part. Ctrl-C is a KeyboardInterrupt, not the end of one training: a model that was
    stopped half-way would count as a result.

    Args:
        seeds: of each training, or one for all.
        target: what the models predict; None: the classes that occur among the labels of each part, or numbers on their scale.
        stop_at: end after this epoch, although the recipe has more.
    """
    tasks = [task_of(graph, train, val, recipe, target) for train, val in parts]
    numbers = [seeds] * len(tasks) if isinstance(seeds, int) else list(seeds)
    if len(numbers) != len(tasks):
        raise ValueError(f"seeds has {len(numbers)} numbers for {len(tasks)} parts; give one for each, or one for all")
    if not tasks:
        return []
    each = [_copies(task, recipe, seed, stop_at) for task, seed in zip(tasks, numbers, strict=True)]
    groups = [[job for group in of_member for job in group] for of_member in zip(*each, strict=True)]
    outcomes = fit_many(groups, device=choose_device(device), threads=threads, watch=watch)
    if outcomes.interrupted:
        raise KeyboardInterrupt
    fits, models = {name: iter(of_member) for name, of_member in _fits(groups, outcomes).items()}, []
    for task, of_task in zip(tasks, each, strict=True):
        mine = {group[0].name.member: [next(fits[group[0].name.member]) for _ in group] for group in of_task}
        with num_threads(threads, layer=task.layer(recipe)):
            models.append(together(task, recipe, mine))
    return models


def member_jobs(
    task: Task, recipe: Recipe, seed: int, stage: str = "fit", *, stop_at: int | None = None, keeps: bool = False
) -> list[Job]:
    """A job for each member of a recipe; `keeps`: the weights after each epoch are kept."""
    return [
        Job(JobName(stage, name, num_epochs(member)), task, member, seed, stop_at, Kept() if keeps else None)
        for name, member in members_of(recipe).items()
    ]


def _copies(task: Task, recipe: Recipe, seed: int, stop_at: int | None = None) -> list[list[Job]]:
    """The jobs of each member where nodes to hold out are given: `recipe.models`, one of what is fitted at once."""
    number = recipe.models if task.val.any() else 1
    jobs = [member_jobs(task, recipe, seed + k, f"model-{k + 1}" if k else "fit", stop_at=stop_at) for k in range(number)]
    return [list(group[: 1 if group[0].method.at_once else number]) for group in zip(*jobs, strict=True)]


def _worthy(groups: Sequence[Sequence[Job]], options: dict[str, Any]) -> tuple[Outcomes, dict[str, str]]:
    """`fit_many`, but for costly members that bring nothing on the first fold; those, and why, by name."""
    costly = [k for k, group in enumerate(groups) if k and is_costly(group[0].recipe, group[0].method.at_once)]
    first = [k for k in range(len(groups)) if k not in costly]
    done = fit_many([groups[k] for k in first], **options)
    outcomes = Outcomes({k: done.groups[j] for j, k in enumerate(first) if j in done.groups}, done.interrupted)
    if not costly or outcomes.interrupted:
        return outcomes, {}
    tried = fit_many([groups[k][:1] for k in costly], **options, must_begin=False)
    each = {**{k: of[0] for k, of in outcomes.groups.items()}, **{costly[j]: of[0] for j, of in tried.groups.items()}}
    if tried.interrupted or not all(isinstance(fit, Fit) for fit in each.values()):
        return Outcomes(outcomes.groups, tried.interrupted), {}
    job, order = groups[0][0], sorted(each)
    models = [[cast(Fit, each[k]).model] for k in order]
    parts = parts_of(Ensemble(models).eval(), job.task.prepared.to(options["device"])).of(job.task.val)
    y, known, left_out = job.task.graph.y.cpu()[job.task.val], [order.index(k) for k in outcomes.groups], {}
    for k in [k for k in order if k in costly]:
        worth = worth_of(parts, y, known, order.index(k))
        if worth.is_enough:
            known.append(order.index(k))
        else:
            left_out[groups[k][0].name.member] = str(worth)
    goes_on = [k for k in costly if k in each and groups[k][0].name.member not in left_out]
    rest = fit_many([groups[k][1:] for k in goes_on], **options, must_begin=False) if goes_on else Outcomes({})
    more = {goes_on[j]: [each[goes_on[j]], *of] for j, of in rest.groups.items()}
    return Outcomes(dict(sorted({**outcomes.groups, **more}.items())), rest.interrupted), left_out


def _folds(task: Task, seed: int, number: int) -> list[Tensor]:
    """The training labels in folds, masks, or one part of them to hold out.

    None where no class has two labels: the model of a fold would not know its class.
    """
    strata = task.graph.target.strata(task.graph.y.cpu())
    if int(strata[task.train].bincount().max()) < 2:
        return []
    parts = number if number > 1 else PARTS
    return label_folds(strata, task.train, min(parts, int(task.train.sum())), seed=(seed, 0))[:number]


def _fits(groups: Sequence[Sequence[Job]], outcomes: Outcomes) -> dict[str, list[Fit]]:
    """The models of each member by its name.

    After Ctrl-C those of the members that are whole; or else those of the first member that are, or its first model.
    """
    fits = {}
    for group, of_group in zip(groups, outcomes.groups.values(), strict=True):
        if diverged := [outcome for outcome in of_group if isinstance(outcome, DivergedError)]:
            raise diverged[0]
        fits[group[0].name.member] = [outcome for outcome in of_group if isinstance(outcome, Fit)]
    if outcomes.interrupted:
        whole = {name: [fit for fit in group if not fit.run.interrupted] for name, group in fits.items()}
        sizes = {group[0].name.member: len(group) for group in groups}
        kept = {name: group for name, group in whole.items() if len(group) == sizes[name]}
        fits = kept if "" in kept else {"": whole[""] or fits[""][:1]}
        if not fits[""]:
            raise KeyboardInterrupt
    return fits


def together(task: Task, recipe: Recipe, fits: Mapping[str, Sequence[Fit]], *, interrupted: bool = False) -> Trained:
    """The models of each member, by name, as one; the validation nodes weigh members and label votes."""
    ensemble = Ensemble([[fit.model for fit in of_member] for of_member in fits.values()]).eval()
    weights = held_out = None
    if task.val.any():
        nodes, prepared = task.val.nonzero().squeeze(1), task.prepared.to(ensemble.device)
        y = task.graph.y.cpu()[nodes]
        if recipe.votes:
            weights, probabilities = weighed_by_validation(parts_of(ensemble, prepared).of(task.val), y)
        else:
            with torch.no_grad():
                probabilities = task.graph.target.answer(ensemble(prepared).double()).cpu()[nodes]
        held_out = HeldOut(nodes, y, probabilities, "validation", None, unreachable(task.graph, task.train)[nodes])
    first = {name: of_member[0] for name, of_member in fits.items()}
    return _trained(task, recipe, first, ensemble, weights, held_out, interrupted=interrupted)


def weighed_by_validation(parts: Parts, y: Tensor) -> tuple[EnsembleWeights, Tensor]:
    """The weights that validation nodes ask for; and the pooled prediction for each by weights fitted to others, [m, c]."""
    probabilities = cross_fitted(parts, y, torch.arange(len(y)) % VOTE_FOLDS)
    return fit_weights(parts, y), probabilities


def _together_by_folds(
    whole: Task,
    recipe: Recipe,
    groups: Sequence[Sequence[Job]],
    fits: Mapping[str, Sequence[Fit]],
    device: torch.device,
    threads: int | None,
    *,
    interrupted: bool,
) -> Trained:
    """The models of all folds as one; out-of-fold predictions score them, and weigh members and label votes.

    After Ctrl-C the models as they are, without weights.
    """
    first = {name: group[0] for name, group in fits.items()}
    members = [[fit.model for fit in group] for group in fits.values()]
    if interrupted:
        return _trained(whole, recipe, first, Ensemble(members).eval(), interrupted=True)
    with num_threads(threads, layer=whole.layer(recipe)):
        refitted = [
            _refitted(whole, group[0], of_member, device, threads) for group, of_member in zip(groups, fits.values(), strict=True)
        ]
        tasks, parts, alone = [job.task for job in groups[0]], [], []
        number = _num_cut_off(whole, tasks)
        for k, task in enumerate(tasks):
            of_members = zip(groups, fits.values(), strict=True)
            models = [[_without_fold(group[k], of_member, k, device)] for group, of_member in of_members]
            ensemble = Ensemble(models).eval()
            parts.append(parts_of(ensemble, task.prepared.to(device)).of(task.val))
            if k < number:
                alone.append(parts_of(ensemble, task.cut_off(recipe).to(device)).of(task.val))
        weights, held_out = _weighed_by_folds(whole, tasks, parts, recipe.votes)
        if alone:
            y = torch.cat([task.graph.y.cpu()[task.val] for task in tasks[:number]])
            held_out = dataclasses.replace(held_out, cut_off=(_pooled(Parts.joined(alone), weights), y))
        return _trained(whole, recipe, first, Ensemble(refitted).eval(), weights, held_out)


def _refitted(whole: Task, job: Job, fits: Sequence[Fit], device: torch.device, threads: int | None) -> list[Any]:
    """The models of a member; those that are fitted at once learn from all labels, with a seed for each.

    Where one part was held out, every model learns from all labels, for as many epochs as that part chose.
    """
    best = _median_epoch(fits)
    if not job.method.at_once:
        if len(fits) > 1:
            return [fit.model for fit in fits]
        return [dataclasses.replace(job, task=whole, kept=None, stop_at=best).run(device).model]
    job = dataclasses.replace(job, task=whole, kept=None, stages=best)
    if fits[0].model.depends_on_seed:
        seeds = [dataclasses.replace(job, seed=job.seed + k) for k in range(len(fits))]
        outcomes = fit_many([seeds], device=device, threads=threads)
        if outcomes.interrupted:
            raise KeyboardInterrupt
        return [cast(Fit, fit).model for fit in outcomes.groups[0]]
    return [job.run(device).model]


def _median_epoch(fits: Sequence[Fit]) -> int:
    return max(1, round(float(np.median([fit.run.best_epoch for fit in fits]))))


def _without_fold(job: Job, fits: Sequence[Fit], k: int, device: torch.device) -> Any:
    """The model that predicts fold k: that of the fold, with few labels after the median of the epochs that other folds chose.

    Where the weights after that epoch were not kept, the model is trained once more.
    """
    if job.kept is None or len(fits) == 1:
        return fits[k].model
    stop_at = _median_epoch([fit for j, fit in enumerate(fits) if j != k])
    if job.method.at_once:
        model = copy.deepcopy(fits[k].model)
        model.limit(stop_at)
        return model
    state = job.kept.states.get(stop_at)
    if state is None:
        unseen = dataclasses.replace(job.task, val=torch.zeros_like(job.task.val))  # the fold chooses nothing
        fit = dataclasses.replace(job, task=unseen, stop_at=stop_at, kept=None).run(device)
        if fit.run.interrupted:
            raise KeyboardInterrupt
        return fit.model
    model = copy.deepcopy(fits[k].model)
    model.load_state_dict({**model.state_dict(), **state})
    return model


def _weighed_by_folds(
    whole: Task, tasks: Sequence[Task], parts: Sequence[Parts], votes: bool
) -> tuple[EnsembleWeights | None, HeldOut]:
    """The weights of members and label votes, and out-of-fold predictions by weights that were fitted to the other folds.

    Nodes whose class is absent from the other folds are excluded when fitting weights: a member that never saw the class
    gives it probability ~0, and one such node would drive that member's weight to 0.
    """
    nodes = [task.val.nonzero().squeeze(1) for task in tasks]
    node, labels, joined, weights = torch.cat(nodes), whole.graph.y.cpu(), Parts.joined(parts), None
    y, strata = labels[node], whole.graph.target.strata(labels)
    is_one = len(tasks) == 1
    fold = torch.cat([torch.full_like(at, k) for k, at in enumerate(nodes)])
    fold = torch.arange(len(y)) % VOTE_FOLDS if is_one else fold
    if votes:
        known = torch.cat([torch.isin(strata[task.val], strata[task.train]) for task in tasks])
        probabilities = cross_fitted(joined, y, fold, known)
        weights = fit_weights(joined.of(known), y[known])
    else:
        probabilities = _pooled(joined, None)
    order, apart = node.argsort(), torch.cat([unreachable(task.graph, task.train)[task.val] for task in tasks])
    rest = (None, apart[order]) if is_one else (fold[order], apart[order])
    protocol = "validation" if is_one else "cross-validation"
    return weights, HeldOut(node[order], y[order], probabilities[order], protocol, *rest)


def _pooled(parts: Parts, weights: EnsembleWeights | None) -> Tensor:
    return parts.target.answer(torch.stack(parts.members).mean(dim=0)) if weights is None else weights(parts)


def _num_cut_off(whole: Task, tasks: Sequence[Task]) -> int:
    """How many folds are predicted once more as if no label reached them: as many as calibrate the nodes that none reaches."""
    graph = whole.graph
    if not graph.target.names or graph.x_kind != "given" or not unreachable(graph, whole.train).any():
        return 0
    if sum(int(unreachable(task.graph, task.train)[task.val].sum()) for task in tasks) >= FEWEST:
        return 0  # there are enough of them among held-out nodes
    sizes = np.cumsum([int(task.val.sum()) for task in tasks])
    return min(len(tasks), 1 + int((sizes < ENOUGH_CUT_OFF).sum()))


def _trained(
    task: Task,
    recipe: Recipe,
    fits: Mapping[str, Fit],
    ensemble: Ensemble,
    weights: EnsembleWeights | None = None,
    held_out: HeldOut | None = None,
    *,
    interrupted: bool = False,
) -> Trained:
    """The ensemble with everything around it; calibrated where labels were held out.

    Args:
        fits: the first model of each member that was trained, by name; the run is that of the first member.
    """
    graph, recipe = task.graph, recipe.replace(members=" ".join(list(fits)[1:]))
    error = None if held_out is None else held_out.errors(graph)
    held_out = None if held_out is None else held_out.with_errors_near(graph)
    return Trained(
        model=ensemble,
        recipe=recipe,
        target=graph.target,
        num_columns=graph.num_features,
        x_kind=graph.x_kind,
        scaling=task.scaling,
        known=KnownLabels.of(graph, task.train, task.val, error),
        run=dataclasses.replace(fits[""].run, recipe=recipe, interrupted=interrupted),
        calibration=None if held_out is None else held_out.calibration(graph.target),
        weights=weights,
        columns=graph.columns,
        held_out=held_out,
        relations=_relation_shares(ensemble, recipe, task.prepared),
    )


def _relation_shares(ensemble: Ensemble, recipe: Recipe, prepared: Graph) -> dict[str, float]:
    """The share of each edge type in how far the predictions of the first member differ between nodes; empty without types.

    The rest comes from a node itself. The γ alone do not show it: far along random edges all nodes get the same.
    """
    if recipe.propagation != "relations" or prepared.edge_types is None:
        return {}
    names, shares, prepared = prepared.edge_types.names, [], prepared.to(ensemble.device)
    for model in ensemble.first:
        with torch.no_grad():
            parts = cast(RelationHops, model.body).parts(prepared)
        spread = torch.stack([(part - part.mean(dim=0)).square().mean().sqrt() for part in parts])
        shares.append(spread / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny))
    return dict(zip(names, torch.stack(shares).mean(dim=0)[1:].tolist(), strict=True))


def calibrate(trained: Trained, graph: Graph, nodes: Any) -> Trained:
    """The same model with probabilities that are calibrated on the labels of `nodes`, which training must not have seen."""
    mask = node_mask(nodes, graph.num_nodes)
    seen = mask & trained.known.on(graph)[1]
    if seen.any():
        raise ValueError(f"node {int(seen.nonzero()[0])} was trained on: its label cannot calibrate the model")
    y = trained.labels_of(graph)[mask]
    unknown = ~trained.target.known(y)
    if not len(y) or unknown.any():
        raise ValueError(f"{int(unknown.sum())} of the {len(y)} nodes to calibrate on have no label that the model knows")
    found = Prediction.of(trained, graph)
    held_out = HeldOut(mask.nonzero().squeeze(1), y, found.uncalibrated[mask], "reserved", None, found.unreachable[mask])
    return dataclasses.replace(trained, held_out=held_out, calibration=held_out.calibration(trained.target))
