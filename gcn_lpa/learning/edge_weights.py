"""How much an edge weighs by its columns: learned first, by folds, and used only where held-out labels support it.

A small model, hops along edges of the form `columns`, learns the functions of the columns by both losses of Eq. (18), and its twin
learns along the given edges. Where the first, with the label votes along its edges, gives held-out labels a likelihood that is
significantly higher than that of the second, every member of the ensemble, label votes and explanations walk the weights A ∘ M.
Beside these functions, edges of each category alone are tried, such as those of one type, where categories are few: many edges
of an idle type drown those of a telling one, and labels are too few to teach so large a step. A model on hop columns judges them.
Otherwise members walk the given edges, and nothing that is trained differs by a bit from what it would be without columns of edges.

The functions that weigh the edges for predictions of a fold were learned without the labels of the fold, which chose the epoch.
Whether they are used, and which category may stand alone, all held-out labels decide together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.edge_columns import EdgeWeights
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, Parts, cross_fitted, parts_of
from gcn_lpa.learning.many import fit_many
from gcn_lpa.learning.tasks import Job, Task, task_of
from gcn_lpa.methods.registry import members_of
from gcn_lpa.recipes import FIXED_EDGES, HOP_COLUMNS, Recipe
from gcn_lpa.target import Target
from gcn_lpa.train import DivergedError, Fit, JobName, Watch, num_epochs

CLEARLY = 2.0  # standard errors by which held-out labels have to be likelier
SURELY = 3.0  # the same, where the best of several categories would be taken
LARGEST = 1.0  # gain or loss of one label's log-likelihood that counts: else a few surely wrong ones would decide
LEARNS = {  # what differs from the first member of the ensemble
    **{"propagation": "hops", "normalization": "symmetric", "training": "joint", "gcn_layers": 2},
    **{"edges": "columns", "lpa_weight": 0.3, "loss": "held_out", "lpa_iterations": 5, "l2_edges": 2e-2},
}
VOTE_FOLDS = 5  # of validation nodes, where there are no folds


def learned_edge_weights(
    graph: Graph,
    parts: Sequence[tuple[Tensor, Tensor]],
    recipe: Recipe,
    *,
    seed: int,
    target: Target,
    device: torch.device,
    threads: int | None,
    watch: Watch | None,
) -> EdgeWeights | None:
    """The functions of the columns of edges, learned once for each part, and whether held-out labels support them.

    None where the edges have no columns, and after Ctrl-C.

    Args:
        parts: for each the nodes to learn from and those that are held out, masks, [n].
    """
    graph = graph.with_type_column()
    if graph.edge_columns is None or not parts:
        return None
    first = members_of(recipe)[""].replace(members="", votes=False, edge_weights=False, select="loss")
    columns = first.replace(**LEARNS)
    recipes = {"columns": columns, "given": columns.replace(**FIXED_EDGES)}
    groups = []
    for name, one in recipes.items():
        tasks = [task_of(graph, train, val, one, target) for train, val in parts]
        names = [JobName(f"edges-{k}", name, num_epochs(one)) for k in range(1, len(parts) + 1)]
        groups.append([Job(job, task, one, seed) for job, task in zip(names, tasks, strict=True)])
    outcomes = fit_many(groups, device=device, threads=threads, watch=watch)
    if outcomes.interrupted:
        raise KeyboardInterrupt
    likelihoods = []
    for jobs, of_group in zip(groups, outcomes.groups.values(), strict=True):
        if any(isinstance(outcome, DivergedError) for outcome in of_group):
            return None
        models = [outcome.model for outcome in of_group if isinstance(outcome, Fit)]
        with num_threads(threads, layer=jobs[0].task.layer(jobs[0].recipe)):
            likelihoods.append(_log_likelihoods([job.task for job in jobs], models, device))
        if jobs is groups[0]:
            forms = [model.edges for model in models]
            levels = [tuple((form.levels @ form.weight).detach().cpu().tolist()) for form in forms]
    functions = graph.edge_columns.functions
    found = EdgeWeights(functions, tuple(levels), *_gain(likelihoods[0], likelihoods[1], CLEARLY))
    alone, walked = functions.alone(), columns.replace(**HOP_COLUMNS)
    if not alone:
        return found
    plain = [task_of(graph, train, val, walked, target) for train, val in parts]
    tried = [plain, *([task.weighed(torch.tensor(levels)) for task in plain] for levels in alone)]
    names = [JobName(f"edges-{k}", "alone", num_epochs(walked)) for k in range(1, len(parts) + 1)]
    groups = [[Job(job, task, walked, seed) for job, task in zip(names, tasks, strict=True)] for tasks in tried]
    outcomes = fit_many(groups, device=device, threads=threads)
    if outcomes.interrupted:
        raise KeyboardInterrupt
    given, *each = (
        _log_likelihoods(tasks, [outcome.model for outcome in of_group if isinstance(outcome, Fit)], device)
        for tasks, of_group in zip(tried, outcomes.groups.values(), strict=True)
    )
    ways = [EdgeWeights(functions, (one,) * len(parts), *_gain(logs, given, SURELY)) for one, logs in zip(alone, each, strict=True)]
    used = [way for way in (found, *ways) if way.is_used]
    return max(used, key=lambda way: way.gain, default=found)  # what is not used is shown as it was learned


def _gain(logs: Tensor, given: Tensor, least: float) -> tuple[float, float, bool]:
    """By how much held-out labels are likelier than along the given edges, its standard error, and whether that is clear."""
    gain = (logs - given).clamp(-LARGEST, LARGEST)
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    is_clear = math.isfinite(error) and float(gain.mean()) > least * error
    return float(gain.mean()), error if math.isfinite(error) else 0.0, is_clear


def _log_likelihoods(tasks: Sequence[Task], models: Sequence[Any], device: torch.device) -> Tensor:
    """The log-likelihood of each held-out label: of the model and the label votes along its edges, [m]."""
    parts, labels, folds = [], [], []
    for k, (task, model) in enumerate(zip(tasks, models, strict=True)):
        parts.append(parts_of(Ensemble([[model]]).eval(), task.prepared.to(device)).of(task.val))
        labels.append(task.graph.y.cpu()[task.val])
        folds.append(torch.full((len(labels[-1]),), k))
    y, fold = torch.cat(labels), torch.cat(folds)
    if len(tasks) == 1:
        fold = torch.arange(len(y)) % VOTE_FOLDS
    probabilities = cross_fitted(Parts.joined(parts), y, fold)
    return tasks[0].graph.target.likelihood(probabilities, y)
