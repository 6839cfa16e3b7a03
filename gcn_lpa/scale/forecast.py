"""How long a training takes, before it begins: the work of each member, divided by what this machine does in a second.

Two small products say how fast the machine is; that takes a tenth of a second, once in a process. How many epochs a member needs
before it stops is known only afterwards: `USUAL` is what our benchmarks needed. Where a network stops after half or twice as many,
the forecast is as far off.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gcn_lpa.engine.devices import num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.edge_weights import LEARNS
from gcn_lpa.learning.ensemble import is_costly, is_judged
from gcn_lpa.methods.hop_columns import MOST_COLUMNS, RANK
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.methods.trees import MOST_COLUMNS as MOST_OF_TREES
from gcn_lpa.methods.trees import ROUNDS, VOTE_FOLDS, WORDS
from gcn_lpa.recipes import HOP_COLUMNS, TABLE_COLUMNS, Recipe

USUAL = {"table": 350, "words": 60, "columns": 60}  # epochs until training stops: of networks, and of hop columns
PASSES = 3  # over the edges in an epoch: forward, backward, validation
OPERATIONS = 60  # of torch in an epoch, beside the products: each costs its call
TREE = 7.5e-4  # seconds for a tree of 32 leaves, however few its rows
BINNED = 4e-9  # seconds for a row and column of a tree
TINY = 1000  # nodes and entries of a graph that is trained before its forecast is computed
LONG = 5.0  # seconds from which on a forecast is worth a line
STARTING = 2.0  # seconds: scikit-learn is imported, processes begin
STORED = 12  # multiply-adds that a number of a hidden layer or a hop costs beside its product: dropout, relu, memory
NORMED = 80  # and where each column of a layer is normalised
MOVED = 60  # multiply-adds that a number of the rows of labelled nodes costs in a step: dropout, relu, gradients
FIT = 200  # steps of scikit-learn's logistic regression


@dataclass(frozen=True)
class Speed:
    """What one core does in a second, and the seconds of a call that computes next to nothing."""

    sparse: float  # multiply-adds of a sparse product
    dense: float  # multiply-adds of a dense product
    call: float


@functools.cache
def speed() -> Speed:
    """The speed of this machine, measured once."""
    n, degree, width = 20_000, 10, 16
    random = np.random.default_rng(0)
    pairs = torch.from_numpy(random.integers(0, n, (2, n * degree)))
    matrix = SparseMatrix.from_coo(pairs[0], pairs[1], torch.ones(n * degree), (n, n))
    x, wide, one = torch.ones(n, width), torch.ones(2_000, 256), torch.ones(1)
    with num_threads(1), torch.no_grad():
        sparse, dense = best_of(lambda: matrix @ x), best_of(lambda: wide @ wide[:256, :64])
        call = best_of(lambda: one + one)
    return Speed(matrix.num_entries * width / sparse, wide.numel() * 64 / dense, 10 * call)


def best_of(work: Callable[[], object], times: int = 5) -> float:
    """The seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def forecast(graph: Graph, recipe: Recipe, *, by_folds: bool = True, workers: int = 1, machine: Speed | None = None) -> float:
    """Seconds that a recipe takes to learn a graph on so many cores: its labels by folds, or those of a split."""
    each = seconds_of_members(graph, recipe, by_folds=by_folds, machine=machine or speed())
    return STARTING + sum(each.values()) / (workers if by_folds else 1)


def seconds_of_members(graph: Graph, recipe: Recipe, *, by_folds: bool, machine: Speed) -> dict[str, float]:
    """Seconds of each member by name, on one core."""
    num_labels, trainings = int(graph.labeled.sum()), (recipe.folds if recipe.folds > 1 else 2) if by_folds else 1
    judged, seconds = by_folds and recipe.folds > 1 and is_judged(recipe, num_labels // recipe.folds), {}
    for name, member in members_of(recipe).items():
        at_once = METHODS[member.method].at_once
        each = _at_once(graph, member, num_labels, machine) if at_once else _network(graph, member, num_labels, machine)
        seconds[name] = (1 if name and judged and is_costly(member, at_once) else trainings) * each
    if recipe.edge_weights and (columns := graph.with_type_column().edge_columns) is not None and columns.differ:
        taught = members_of(recipe)[""].replace(**LEARNS)  # and its twin along the given edges
        alone, each = len(columns.functions.alone()), _network(graph, taught.replace(**HOP_COLUMNS), num_labels, machine)
        once = 2 * _network(graph, taught, num_labels, machine) + (each * (1 + alone) if alone else 0)
        seconds["edge weights"] = trainings * once
    return seconds


def _network(graph: Graph, recipe: Recipe, num_labels: int, machine: Speed) -> float:
    """One training by steps."""
    n, c, d = graph.num_nodes, graph.num_classes, graph.num_features
    entries = graph.adjacency.num_entries + n
    hidden = recipe.hidden * max(1, recipe.gcn_layers - 1)
    read = graph.x.num_entries if isinstance(graph.x, SparseMatrix) else n * d
    usual = USUAL["table" if d <= TABLE_COLUMNS else "words"]
    if recipe.propagation == "columns":
        width = (d if d <= MOST_COLUMNS else RANK) * (recipe.propagation_steps + 1)
        once = (read * width + PASSES * entries * width) / machine.sparse
        rows = (
            num_labels * (width + recipe.hidden) * MOVED / machine.sparse
            + PASSES * num_labels * width * recipe.hidden / machine.dense
        )
        return once + USUAL["columns"] * (rows + OPERATIONS * machine.call)
    steps = recipe.propagation_steps
    walked = {"grand": 2 * steps * hidden, "appnp": steps * c}.get(recipe.method, hidden + c)
    walked = steps * c if recipe.propagation != "layers" else walked
    edges = entries * (walked + (4 * recipe.edge_rank if recipe.edges != "fixed" else 0))
    columns = recipe.hidden * (2 if recipe.propagation == "layers" and recipe.residual else 1)
    columns += 2 * recipe.edge_rank if recipe.edges not in ("fixed", "free") else 0
    dense = n * (hidden * c + (0 if isinstance(graph.x, SparseMatrix) else d * columns)) / machine.dense
    sparse = (edges + (read * columns if isinstance(graph.x, SparseMatrix) else 0)) / machine.sparse
    moved = n * (STORED * (hidden + walked) + NORMED * hidden * recipe.batch_norm)
    step = PASSES * (sparse + dense + moved / machine.sparse) + OPERATIONS * machine.call
    return min(usual, recipe.epochs) * step


def _at_once(graph: Graph, recipe: Recipe, num_labels: int, machine: Speed) -> float:
    """One fit of a method without steps, and one to all labels."""
    c, entries, d = graph.num_classes, graph.adjacency.num_entries, graph.num_features
    width = 4 * min(d, MOST_OF_TREES) if d <= MOST_OF_TREES else 2 * WORDS
    votes = 6 * entries * c * (VOTE_FOLDS + 1) * recipe.propagation_steps / machine.sparse
    if recipe.method == "trees":
        trees = ROUNDS * (1 if c == 2 else c) * (TREE + num_labels * width * BINNED)
        return 1.5 * trees + 2 * votes + 4 * entries * min(d, MOST_OF_TREES) / machine.sparse
    rows = num_labels * recipe.propagation_steps * entries / machine.sparse if recipe.method == "smoothed-lr" else 0.0
    return 2 * rows + FIT * num_labels * min(d, 5000) * c / machine.dense + votes * (recipe.method == "neighbour-lr")


def duration(seconds: float) -> str:
    """12 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
