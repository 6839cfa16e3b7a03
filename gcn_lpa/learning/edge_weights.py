"""How much an edge weighs by its columns: learned first, by folds, and used only where held-out labels support it.

First edges of each category alone are tried, such as those of one type, where categories are few: many edges of an idle type drown
those of a telling one, and labels are too few to teach so large a step. A model on hop columns judges them. Where one is surely
better, the others stand aside, and all that follows, the recipe too, is of the graph that they leave: nodes without an edge of it
keep theirs, unless they are few and held-out labels are likelier than along the given edges without these too.

Then a small model, hops along edges of the form `columns`, learns the functions of the columns by both losses of Eq. (18), and its
twin learns along the given edges. Where the first, with the label votes along its edges, gives held-out labels a likelihood that is
significantly higher than that of the second, every member of the ensemble, label votes and explanations walk the weights A ∘ M.
Otherwise members walk the given edges, and nothing that is trained differs by a bit from what it would be without columns of edges.

The functions that weigh the edges for predictions of a fold were learned without the labels of the fold, which chose the epoch.
Whether they are used, and which category may stand alone, all held-out labels decide together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.edge_columns import ASIDE, GONE, EdgeWeights
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, Parts, cross_fitted, parts_of
from gcn_lpa.learning.many import fit_many
from gcn_lpa.learning.tasks import Job, Task, task_of
from gcn_lpa.methods.registry import members_of
from gcn_lpa.recipes import FIXED_EDGES, HOP_COLUMNS, Recipe
from gcn_lpa.target import Target
from gcn_lpa.train import Fit, JobName, Watch, num_epochs

CLEARLY = 2.0  # standard errors by which held-out labels have to be likelier
SURELY = 3.0  # the same, where the best of several categories would be taken
MOST_BARE = 0.25  # of the nodes that may come to have no edge at all; of more, those without a telling edge keep the others
LARGEST = 1.0  # gain or loss of one label's log-likelihood that counts: else a few surely wrong ones would decide
LEARNS = {  # what differs from the first member of the ensemble
    **{"propagation": "hops", "normalization": "symmetric", "training": "joint", "gcn_layers": 2},
    **{"edges": "columns", "lpa_weight": 0.3, "loss": "held_out", "lpa_iterations": 5, "l2_edges": 2e-2},
}
VOTE_FOLDS = 5  # of validation nodes, where there are no folds


@dataclass(frozen=True, eq=False)
class Trials:
    """Small models, of which each learns without some labels and predicts them."""

    parts: Sequence[tuple[Tensor, Tensor]]  # the nodes to learn from and those that are held out, masks, [n]
    seed: int
    target: Target
    device: torch.device
    threads: int | None
    watch: Watch | None

    def tasks(self, graph: Graph, recipe: Recipe) -> list[Task]:
        return [task_of(graph, train, val, recipe, self.target) for train, val in self.parts]

    def models(self, groups: Sequence[tuple[str, Sequence[Task], Recipe]], watch: Watch | None = None) -> list[list[Any]]:
        """The models of each group, which has a name; none where one of them diverged. Ctrl-C is a KeyboardInterrupt."""
        jobs = []
        for name, tasks, recipe in groups:
            names = [JobName(f"edges-{k}", name, num_epochs(recipe)) for k in range(1, len(tasks) + 1)]
            jobs.append([Job(job, task, recipe, self.seed) for job, task in zip(names, tasks, strict=True)])
        outcomes = fit_many(jobs, device=self.device, threads=self.threads, watch=watch)
        if outcomes.interrupted:
            raise KeyboardInterrupt
        fits = [[fit for fit in of_group if isinstance(fit, Fit)] for of_group in outcomes.groups.values()]
        return [[fit.model for fit in group] for group in fits] if all(len(group) == len(self.parts) for group in fits) else []

    def likelihoods(self, tasks: Sequence[Task], models: Sequence[Any]) -> Tensor:
        """The log-likelihood of each held-out label: of the model and the label votes along its edges, [m]."""
        parts, labels, folds = [], [], []
        for k, (task, model) in enumerate(zip(tasks, models, strict=True)):
            parts.append(parts_of(Ensemble([[model]]).eval(), task.prepared.to(self.device)).of(task.val))
            labels.append(task.graph.y.cpu()[task.val])
            folds.append(torch.full((len(labels[-1]),), k))
        y, fold = torch.cat(labels), torch.cat(folds)
        fold = torch.arange(len(y)) % VOTE_FOLDS if len(tasks) == 1 else fold
        return self.target.likelihood(cross_fitted(Parts.joined(parts), y, fold), y)


def telling_edges(graph: Graph, recipe: Recipe, trials: Trials) -> EdgeWeights | None:
    """The one category whose edges surely tell more than all together: others stand aside. None: no such."""
    columns = graph.with_type_column().edge_columns
    if columns is None or not trials.parts:
        return None
    alone = [levels for levels in columns.functions.alone() if columns.idle(torch.tensor(levels)).unique().numel() == 2]
    if not alone:
        return None
    walked = _first(recipe).replace(**LEARNS).replace(**HOP_COLUMNS)
    plain = trials.tasks(graph, walked)

    def tried(ways: Sequence[Sequence[float]]) -> list[Tensor]:
        tasks = [[task.without_idle(torch.tensor(levels)) for task in plain] for levels in ways]
        models = trials.models([("alone", of, walked) for of in tasks])
        return [trials.likelihoods(*group) for group in zip(tasks, models, strict=True)] if models else []

    given, *each = tried([(0.0,) * len(alone[0]), *alone]) or [torch.zeros(0)]
    gains = zip((_gain(logs, given, SURELY) for logs in each), alone, strict=False)
    best = max(((gain, levels) for gain, levels in gains if gain[2]), default=None)
    if best is None:
        return None
    gone = tuple(GONE if level == ASIDE else level for level in best[1])
    fewer = plain[0].prepared.without_idle(torch.tensor(gone))
    bare = _without_edges(fewer).double().mean() - _without_edges(plain[0].prepared).double().mean()
    without = [_gain(logs, given, 0.0) for logs in tried([gone])] if bare <= MOST_BARE else []
    gain, levels = (without[0], gone) if without and without[0][2] else best
    return EdgeWeights(columns.functions, (levels,), *gain)


def _without_edges(graph: Graph) -> Tensor:
    """The nodes that no edge to another reaches, a mask [n] on the CPU."""
    bare = torch.ones(graph.num_nodes, dtype=torch.bool)
    bare[graph.row[graph.row != graph.col].cpu().long()] = False
    return bare


def learned_edge_weights(graph: Graph, recipe: Recipe, trials: Trials) -> EdgeWeights | None:
    """The functions of the columns of edges, learned once for each part, and whether held-out labels support them.

    None where the edges have no columns that tell any two of them apart.
    """
    graph = graph.with_type_column()
    if graph.edge_columns is None or not graph.edge_columns.differ or not trials.parts:
        return None
    columns = _first(recipe).replace(**LEARNS)
    recipes = {"columns": columns, "given": columns.replace(**FIXED_EDGES)}
    groups = [(name, trials.tasks(graph, one), one) for name, one in recipes.items()]
    if not (models := trials.models(groups, trials.watch)):
        return None
    with num_threads(trials.threads, layer=groups[0][1][0].layer(columns)):
        learned, given = (trials.likelihoods(tasks, of_group) for (_, tasks, _), of_group in zip(groups, models, strict=True))
    levels = ((model.edges.levels @ model.edges.weight).detach().cpu().tolist() for model in models[0])
    return EdgeWeights(graph.edge_columns.functions, tuple(map(tuple, levels)), *_gain(learned, given, CLEARLY))


def _first(recipe: Recipe) -> Recipe:
    """The first member of the ensemble, whose loss on held-out labels chooses the epoch."""
    return members_of(recipe)[""].replace(members="", votes=False, edge_weights=False, select="loss")


def _gain(logs: Tensor, given: Tensor, least: float) -> tuple[float, float, bool]:
    """By how much held-out labels are likelier than along the given edges, its standard error, and whether that is clear."""
    gain = (logs - given).clamp(-LARGEST, LARGEST)
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    is_clear = math.isfinite(error) and float(gain.mean()) > least * error
    return float(gain.mean()), error if math.isfinite(error) else 0.0, is_clear
