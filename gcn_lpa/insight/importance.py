"""Which columns matter: for all predictions, by permutation on held-out labels; and for one of them, as parts that add up.

`importance` shuffles one thing at a time between the nodes, a column, the structural features, the edges, the labels nearby, or a
column of the edges, and looks at how much worse held-out labels are then predicted: each by models that did not learn from it.
Where columns repeat each other each may matter, and none be missed. So a column is also shuffled among nodes alone of which the
other columns say nearly the same about it (Strobl et al. 2008): what is lost then is what it tells alone.

`prediction_parts` takes the information behind one prediction away piece by piece: each column of the node, the columns of all
other nodes, the labels nearby. What a piece is worth is how much the log-odds of the predicted class fall when it goes, the mean
over an order and its reverse (Shapley values of two orders). Whatever members the ensemble has, the parts sum to the difference
between the prediction and that without any of them, exactly but for rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Derived, Graph
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.learning.learn import member_jobs
from gcn_lpa.learning.tasks import Job, Task, task_of
from gcn_lpa.learning.updated import carried, has_free_weights
from gcn_lpa.predict import check_trained, posteriors
from gcn_lpa.target import Target
from gcn_lpa.trained import Trained

STRUCTURE, EDGES, LABELS, OTHERS = "structural features", "edges", "labels nearby", "columns of other nodes"
MOST_PARTS = 30  # columns of a node that are looked at one by one; the rest go together
Z = 1.96
LEAKS = 0.9  # of the labels that are not of the most frequent class: a column that alone tells so many may be the label
FOLDS = 5
LEAVES = 64  # of the tree that reads one column: more than a category has values
ALIKE = 10  # nodes that are next to each other by what the other columns say of one, among which it is shuffled
MOST_FEATURES = 1000  # of all columns together, up to which each is told from the others


@dataclass(frozen=True)
class Importance:
    """How much worse held-out labels are predicted without one thing: means over nodes, and halves of their 95 % intervals."""

    name: str
    kind: str  # "column", "structure", "edges", "labels" or "edge column"
    accuracy: float  # the fall of the accuracy
    accuracy_interval: float
    likelihood: float  # the fall of the log of the probability of the label, each at most 10
    likelihood_interval: float
    alone: float | None = None  # of a column: that fall where the other columns stand in; None: not known
    alone_interval: float | None = None
    leaks: bool = False  # whether the column alone tells nearly all labels: it may be the label in other words


@dataclass(frozen=True)
class Importances:
    """All of them, the largest first, and what they are beside."""

    accuracy: float
    majority: float  # the accuracy of always the most frequent class
    num_nodes: int  # held out
    repeats: int
    rows: tuple[Importance, ...]
    rate: str = "accuracy"  # or R², where numbers are predicted

    def to_frame(self) -> Any:
        import pandas

        return pandas.DataFrame([dataclasses.asdict(row) for row in self.rows])

    @property
    def leaking(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows if row.leaks)


def importance(
    trained: Trained,
    graph: Graph,
    *,
    repeats: int = 5,
    seed: int = 0,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Importances:
    """How much each column, the structural features, the edges, the labels nearby and columns of edges matter to predictions.

    Args:
        graph: raw, the one that the model was trained on, with its labels.
        repeats: how often each thing is shuffled.
        on_step: called with how many things are done, and of how many.
    """
    check_trained(trained)
    seed = check_seed(seed)
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}; each column is shuffled at least once")
    judges = _judges(trained, graph)
    y = torch.cat([judge.y for judge in judges])
    before = torch.cat([judge.probabilities(judge.prepared) for judge in judges])
    changes, places = _changes(trained, judges[0]), columns_of(trained, judges[0].prepared)
    rows: list[Importance] = []

    def scores(predicted: Tensor) -> Tensor:
        likelihood = trained.target.likelihood(predicted, y).clamp_min(-10)
        return torch.stack([trained.target.credit(predicted, y), likelihood])

    def fall(change: Change, orders: Callable[[np.random.Generator], np.ndarray], number: int) -> Tensor:
        """By how much the scores of each node fall: means and halves of 95 % intervals, [2, 2]."""
        rng, falls = np.random.default_rng([seed, number]), []
        for _ in range(repeats):
            order = torch.from_numpy(orders(rng))
            moved = order if change is _edges_shuffled else None
            after = torch.cat([judge.probabilities(change(judge, order, rng), moved) for judge in judges])
            falls.append(scores(before) - scores(after))
        mean = torch.stack(falls).mean(dim=0)
        return torch.stack([mean.mean(dim=1), Z * mean.std(dim=1) / max(1, len(y)) ** 0.5], dim=1)

    told = _told_by_others([at for _, at in places], judges[0].prepared.x)
    for number, (name, kind, change) in enumerate(changes):
        numbers = fall(change, lambda rng: rng.permutation(graph.num_nodes), number).flatten().tolist()
        if kind == "column" and told:
            numbers += fall(change, partial(_among_alike, told[number]), number)[1].tolist()
        rows.append(Importance(name, kind, *numbers))
        on_step(number + 1, len(changes))
    accuracy, majority = float(trained.target.credit(before, y).mean()), trained.target.chance(y)
    nodes, at_of = torch.cat([judge.nodes for judge in judges]), dict(places)
    rows = [
        dataclasses.replace(row, leaks=told_by(trained.target, judges[0].prepared.x, at_of[row.name], nodes, y) >= LEAKS)
        if row.kind == "column"
        else row
        for row in rows
    ]
    ranked = sorted(rows, key=lambda row: -row.likelihood)
    return Importances(accuracy, majority, len(y), repeats, tuple(ranked), trained.target.rate)


def _told_by_others(places: Sequence[Sequence[int]], x: Tensor | SparseMatrix) -> list[np.ndarray]:
    """What the other columns say of each at every node, in one number, [n]: ridge regression, whose penalty weighs as one node for
    each feature. With T the inverse of all correlations, what is left of columns a is X T_a T_aa⁻¹. Empty: too few, or too many.
    """
    if len(places) < 2 or sum(map(len, places)) > MOST_FEATURES:
        return []
    rows = x.double().cpu().numpy() if isinstance(x, Tensor) else x.to_scipy().toarray().astype(float)
    rows = rows[:, sorted(k for at in places for k in at)]
    rows -= rows.mean(axis=0)
    rows /= np.where(spread := rows.std(axis=0), spread, 1.0)
    inverse = np.linalg.inv((rows.T @ rows + rows.shape[1] * np.eye(rows.shape[1])) / len(rows))
    found = []
    for at in places:
        own = list(at)
        said = rows[:, own] - rows @ inverse[:, own] @ np.linalg.inv(inverse[np.ix_(own, own)])
        found.append(said @ np.linalg.eigh(said.T @ said)[1][:, -1])  # along which most of it is
    return found


def _among_alike(told: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An order in which nodes change places with some that are next to them by a number, [n]."""
    ranked = np.lexsort((rng.random(len(told)), told))
    groups = (np.arange(len(told)) + rng.integers(ALIKE)) // ALIKE
    order = np.empty_like(ranked)
    order[ranked] = ranked[np.lexsort((rng.random(len(told)), groups))]
    return order


def told_by(target: Target, x: Tensor | SparseMatrix, at: Sequence[int], nodes: Tensor, y: Tensor) -> float:
    """How much of the labels one column tells a tree, by folds, beyond one answer for all; classes weigh alike, however rare."""
    if len(y) < 2 * FOLDS or len(y.unique()) < 2:
        return 0.0
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.tree import DecisionTreeRegressor

    rows = x.cpu()[nodes][:, list(at)].numpy() if isinstance(x, Tensor) else x.to_scipy()[nodes.numpy()][:, list(at)]
    tree = DecisionTreeRegressor(max_leaf_nodes=LEAVES, random_state=0)  # squared errors of classes: their Gini index
    seeds, (_, group, counts) = target.seeds(y, torch.float64), target.strata(y).unique(return_inverse=True, return_counts=True)
    weights = 1 / (len(counts) * counts[group].double())
    cv = KFold(FOLDS, shuffle=True, random_state=0)
    told = torch.from_numpy(cross_val_predict(tree, rows, seeds.numpy(), cv=cv, params={"sample_weight": weights.numpy()}))
    answers = told, (weights @ seeds).expand_as(seeds)
    found, chance = (float(weights @ target.credit(target.voted(answer), y)) for answer in answers)
    return (found - chance) / (1 - chance)


@dataclass(frozen=True, eq=False)
class Judge:
    """Models that did not learn from some labelled nodes, and those nodes."""

    trained: Trained
    prepared: Graph
    given: Graph  # raw, before columns of edges weigh them or leave them out
    levels: Tensor | None  # of the functions of these columns
    nodes: Tensor
    y: Tensor

    def probabilities(self, prepared: Graph, moved: Tensor | None = None) -> Tensor:
        """Of its nodes in a changed graph. `moved`: node i has the edges of node moved[i], and so their free weights, [n]."""
        trained = self.trained
        if moved is not None and has_free_weights(trained.model):
            ours = self.prepared.to(trained.device)
            model = carried(trained.model, ours, prepared.pattern, moved.argsort())
            trained = dataclasses.replace(trained, model=model)
        return posteriors(trained, prepared)[self.nodes]


def _judges(trained: Trained, graph: Graph) -> list[Judge]:
    """One for each fold, or one of the validation nodes."""
    held_out, target = trained.held_out, trained.target
    if held_out is None or not len(held_out.node):
        raise ValueError("no labels were held out when the model was trained: nothing says what matters to new nodes")
    y, trains = trained.known.on(graph)
    given = graph.with_self_loops() if trained.recipe.self_loops else graph
    raw = (graph := trained.walked(graph)).labeled_by(y, target)
    if held_out.fold is None:
        val = torch.zeros_like(trains).index_fill(0, held_out.node, True)
        task = task_of(graph.labeled_by(trained.labels_of(graph), target), trains, val, trained.recipe, target)
        return [_judge(trained, given, task, None)]
    folds = []
    for k in range(int(held_out.fold.max()) + 1):
        val = torch.zeros_like(trains).index_fill(0, held_out.node[held_out.fold == k], True)
        folds.append(_judge(trained, given, task_of(raw, trains & ~val, val, trained.recipe, target), k))
    return folds


def _judge(trained: Trained, given: Graph, task: Task, fold: int | None) -> Judge:
    """The models of one fold; members that learned all labels at once learn anew, without the fold."""
    weights = trained.used_edge_weights
    levels = None if weights is None else weights.levels if fold is None else weights.of_fold(fold)
    task = task if levels is None else task.weighed(levels)
    model: Any = trained.model
    if fold is not None:
        jobs, members = member_jobs(task, trained.recipe, trained.run.seed), []
        for job, models in zip(jobs, model.members, strict=True):
            members.append([_refitted(job, models[0], trained.device) if job.method.at_once else models[fold]])
        model = Ensemble(members).eval()
    judge = dataclasses.replace(trained, model=model)
    nodes = task.val.nonzero().squeeze(1)
    return Judge(judge, task.prepared, given, levels, nodes, task.graph.y.cpu()[nodes])


def _refitted(job: Job, model: Any, device: torch.device) -> Any:
    """A model fitted at once, in as many stages as the one that knows all labels; those of the fold choose nothing."""
    nodes = job.task.train.nonzero().squeeze(1)[:1]
    stages = sum(1 for _ in model.stages(job.task.prepared.to(device), nodes.to(device)))
    unseen = dataclasses.replace(job.task, val=torch.zeros_like(job.task.val))
    return dataclasses.replace(job, task=unseen, stages=stages).run(device).model


Change = Callable[[Judge, Tensor, np.random.Generator], Graph]


def _changes(trained: Trained, judge: Judge) -> list[tuple[str, str, Change]]:
    """What is shuffled: its name, its kind, and how."""
    graph = judge.prepared
    changes: list[tuple[str, str, Change]] = [
        (name, "structure" if name == STRUCTURE else "column", _column_shuffled(torch.tensor(at)))
        for name, at in columns_of(trained, graph)
    ]
    if graph.num_edges:
        changes += [(EDGES, "edges", _edges_shuffled), (LABELS, "labels", _labels_shuffled)]
    if judge.levels is not None and (columns := judge.given.with_type_column().edge_columns) is not None:
        start = 0
        for function in columns.functions.each:
            stop = start + function.width
            changes.append((function.name, "edge column", _edge_column_shuffled(start, stop)))
            start = stop
    return changes


def columns_of(trained: Trained, prepared: Graph) -> list[tuple[str, list[int]]]:
    """The columns of a table by name, with the positions of their features in a prepared graph; and the structural features."""
    if trained.x_kind != "given":
        return []
    width = prepared.x.shape[1]
    own = width - trained.scaling.num_added
    if trained.columns is not None and trained.columns.num_features == own:
        found = [(name, at) for name, at in trained.columns.positions().items() if at]
    else:
        found = [(f"column {k}", [k]) for k in range(own)] if own <= MOST_PARTS else [("all columns", [*range(own)])]
    return [*found, *([(STRUCTURE, [*range(own, width)])] if own < width else [])]


def _with_features(graph: Graph, x: Tensor | SparseMatrix) -> Graph:
    return dataclasses.replace(graph, x=x, _derived=Derived(before=graph._derived))


def _mixed(x: Tensor | SparseMatrix, other: Any, at: Tensor) -> Tensor | SparseMatrix:
    """x whose columns `at` are those of another matrix."""
    if isinstance(x, Tensor):
        return x.index_copy(1, at.to(x.device), other.index_select(1, at.to(x.device)))
    keeps = np.ones(x.shape[1], dtype=np.float32)
    keeps[at.numpy()] = 0
    kept, taken = (scipy.sparse.diags_array(part, format="csr") for part in (keeps, 1 - keeps))
    mixed = x.to_scipy() @ kept + other.to_scipy() @ taken
    return SparseMatrix.from_scipy(mixed).to(x.device)


def _column_shuffled(at: Tensor) -> Change:
    def change(judge: Judge, order: Tensor, rng: np.random.Generator) -> Graph:
        x = judge.prepared.x
        rows = x[order.to(x.device)] if isinstance(x, Tensor) else SparseMatrix.from_scipy(x.to_scipy()[order.numpy()])
        return _with_features(judge.prepared, _mixed(x, rows, at))

    return change


def _edges_shuffled(judge: Judge, order: Tensor, rng: np.random.Generator) -> Graph:
    """The same edges between other nodes, which keep their columns and labels."""
    graph, at = judge.prepared, order.numpy()

    def moved(matrix: SparseMatrix) -> SparseMatrix:
        return SparseMatrix.from_scipy(matrix.to_scipy()[at][:, at]).to(matrix.device)

    types = None if graph.edge_types is None else graph.edge_types.each(moved)
    structure = {"structure of edges": graph.structural_features_of_edges().cpu()[order]}
    derived = Derived(results=structure)
    return dataclasses.replace(graph, adjacency=moved(graph.adjacency), edge_types=types, _derived=derived)


def _labels_shuffled(judge: Judge, order: Tensor, rng: np.random.Generator) -> Graph:
    """The known labels at other nodes that have one."""
    y = judge.prepared.y
    known = judge.prepared.labeled.nonzero().squeeze(1)
    turned = torch.from_numpy(rng.permutation(len(known))).to(y.device)
    return dataclasses.replace(judge.prepared, y=y.index_copy(0, known, y[known[turned]]))


def _edge_column_shuffled(start: int, stop: int) -> Change:
    def change(judge: Judge, order: Tensor, rng: np.random.Generator) -> Graph:
        graph = judge.given.with_type_column()
        columns = graph.edge_columns
        assert columns is not None and judge.levels is not None
        rows = rng.permutation(columns.num_rows)
        other = SparseMatrix.from_scipy(columns.basis.to_scipy()[rows])
        basis = _mixed(columns.basis, other, torch.arange(start, stop))
        assert isinstance(basis, SparseMatrix)
        turned = dataclasses.replace(graph, edge_columns=dataclasses.replace(columns, basis=basis))
        adjacency, derived = turned.without_idle(judge.levels).weighed(judge.levels).adjacency, judge.prepared._derived
        return dataclasses.replace(judge.prepared, adjacency=adjacency.to(judge.prepared.device), _derived=Derived(before=derived))

    return change


# one prediction


@dataclass(frozen=True)
class Share:
    """What one piece of information adds to the log-odds of a predicted class, or to a number as a standard score."""

    name: str
    value: float


@dataclass(frozen=True)
class PredictionParts:
    """The pieces behind one prediction, the weightiest first: base + Σ values is the log-odds of the label, or the number."""

    label: str
    log_odds: float
    base: float  # without any of them
    parts: tuple[Share, ...]

    def lines(self, most: int = 10) -> list[str]:
        what = f"log-odds of {self.label}" if self.label else "standard score"
        total = f"{what} {self.log_odds:+.2f}, without any of these {self.base:+.2f}"
        rest = self.parts[most:]
        rows = [f"  {part.value:+.2f}  {part.name}" for part in self.parts[:most]]
        more = [f"  {sum(part.value for part in rest):+.2f}  {len(rest)} others"] if rest else []
        return [f"what moved the prediction: {total}", *rows, *more]


def prediction_parts(trained: Trained, prepared: Graph, at: int, label: int | None) -> PredictionParts:
    """What the columns of a node, those of all others and the labels nearby add to the log-odds of a class of it.

    Args:
        prepared: as `trained.prepare` gives it.
        at: the position of the node.
        label: the position of the class; None: a number is predicted.
    """
    own = columns_of(trained, prepared)
    x = prepared.x
    if isinstance(x, SparseMatrix) and own:  # of words those that the node has, each by itself
        own = _filled(own, prepared, at)

    def log_odds(gone: Sequence[str]) -> float:
        graph = prepared
        if own:
            graph = _with_features(graph, _without(x, at, [k for name, k in own if name in gone], OTHERS in gone))
        if LABELS in gone:
            graph = dataclasses.replace(graph, y=torch.full_like(graph.y, graph.target.unknown))
        predicted = posteriors(trained, graph)[at]
        if label is None:
            return float(predicted[0])
        p = float(predicted[label].clamp(1e-9, 1 - 1e-9))
        return float(np.log(p) - np.log1p(-p))

    names = [*([OTHERS] if own else []), LABELS, *(name for name, _ in own)]
    worth = dict.fromkeys(names, 0.0)
    whole, nothing = log_odds(()), log_odds(names)
    for order in (names, names[::-1]):
        before = whole
        for k in range(len(order)):
            after = nothing if k == len(order) - 1 else log_odds(order[: k + 1])
            worth[order[k]] += (before - after) / 2
            before = after
    parts = sorted((Share(name, value) for name, value in worth.items()), key=lambda part: -abs(part.value))
    return PredictionParts("" if label is None else prepared.class_names[label], whole, nothing, tuple(parts))


def _filled(own: list[tuple[str, list[int]]], prepared: Graph, at: int) -> list[tuple[str, list[int]]]:
    """The columns that are not zero at a node; those beyond MOST_PARTS together."""
    assert isinstance(prepared.x, SparseMatrix)
    here = set(prepared.x.to_scipy()[[at]].indices.tolist())
    found = [(name, [k for k in places if k in here]) for name, places in own]
    one_by_one = [
        (f"{name} [{k}]" if len(places) > 1 else name, [k]) for name, places in found if name != STRUCTURE for k in places
    ]
    found = one_by_one if len(one_by_one) <= MOST_PARTS else [pair for pair in found if pair[0] != STRUCTURE]
    return [pair for pair in (*found, *(pair for pair in own if pair[0] == STRUCTURE)) if pair[1]]


def _without(x: Any, at: int, gone: Sequence[Sequence[int]], others: bool) -> Tensor | SparseMatrix:
    """The features with the columns `gone` of a node, and with `others` all rows but its own, as they are on average; sparse ones,
    which are mostly zero, with zeros.
    """
    columns = [k for group in gone for k in group]
    if isinstance(x, Tensor):
        empty = x.mean(dim=0, keepdim=True)
        changed = empty.expand_as(x).clone() if others else x.clone()
        changed[at] = x[at]
        changed[at, columns] = empty[0, columns]
        return changed
    matrix = x.to_scipy()
    row = matrix[[at]].tolil()
    row[0, columns] = 0
    keeps = np.full(matrix.shape[0], 0.0 if others else 1.0, dtype=np.float32)
    keeps[at] = 0
    place = scipy.sparse.csr_array((np.ones(1, np.float32), ([at], [0])), shape=(matrix.shape[0], 1))
    changed = scipy.sparse.diags_array(keeps, format="csr") @ matrix + place @ scipy.sparse.csr_array(row)
    changed.eliminate_zeros()
    return SparseMatrix.from_scipy(changed).to(x.device)
