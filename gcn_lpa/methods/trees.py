"""Nodes as rows of a table: gradient-boosted trees and logistic regression on own columns, neighbours' columns and votes.

Both come from scikit-learn; what they learned is kept in buffers and applied without it. Their columns are

own         the prepared features of the node and its structural features: trees take of it what they need,
            also where labels are few and the recipe has no `structure`; without features, that alone where it has; of more
            than MOST_COLUMNS, trees read the few that tell most, and no words
neighbours  mean, minimum and maximum of each; a node without neighbours has its own
votes       log shares of the classes among the labels of neighbours, of their neighbours, and of LPA, [n, 3c]

A labelled node must not see its own label, nor meet it again on a walk that comes back. So labelled nodes are dealt into
folds, and the votes for the nodes of a fold are cast by the labels of the others. That holds for training rows and, alike, for
labelled nodes that are predicted; nodes without a label get the votes of all. Folds have the classes in equal shares: where
they had not, fewer votes for a class would tell that the own fold, and so the node, is of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.scaling import single_columns
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.linear import UNSEEN, affine_layers, on_one_thread, only
from gcn_lpa.propagation import one_hot, propagate_labels
from gcn_lpa.recipes import Recipe

MOST_COLUMNS = 200  # prepared columns up to which neighbours' minimum and maximum are taken, and trees are grown
VOTE_FOLDS = 10
FAR_SMOOTHING = 0.01  # of the mass of LPA's votes, as in `fusion`
BLOCK = 1 << 24  # numbers in a block of neighbours' columns, 64 MB
ROWS = 1 << 16  # that trees are asked about at a time
INNER_FOLDS = 5  # of the training nodes, for choices inside training
MANY = 1000  # training nodes from which one of these folds is enough
FEW = 20  # training nodes below which nothing is chosen
DEPTH = 5  # of a tree
INNER, LEAVES = 2**DEPTH - 1, 2**DEPTH
ROUNDS, FEW_ROUNDS = 100, 20  # trees for each class at most, and where nothing is chosen
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # C of scikit-learn; 1 where nothing is chosen
NUM_PLACES = (4, 7)  # columns about the graph of a node without features; the latter where edges have a direction
LEAST_SPREAD = 0.1  # of that of all nodes: a column that hardly varies among the labelled would say anything of others
LEAST_FILLED = 0.05  # of the nodes, where columns are many: there is hardly a leaf for rarer categories
TELLING = 50  # columns of a wide table that trees read: those that tell most about the training labels
SCALES = (
    (1.0, 1.0),
    (1.0, 0.1),
    (0.1, 0.1),
)  # of own and of neighbours' columns beside votes: the smaller, the more they cost


class NearbyColumns(AtOnce):
    """What both methods have in common: the columns."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int) -> None:
        super().__init__()
        self.recipe, self.num_classes = recipe, graph.num_classes
        self.register_buffer("dealt_by", torch.tensor(seed))  # folds of labelled nodes are dealt again to predict
        self.has_features = graph.x_kind != "identity"  # the identity says nothing about neighbours
        self.num_features = self.read_features(graph) if self.has_features else 0
        self.set_width(0)
        is_room = self.num_features + NUM_PLACES[-1] <= MOST_COLUMNS
        if is_room and self.has_features != recipe.structure:  # features that are prepared with `structure` have them
            self.set_width(graph.structural_features_of_edges().shape[1])
            self.register_buffer("num_places", torch.tensor(self.num_own - self.num_features))

    @property
    def seed(self) -> int:
        return int(self.get_buffer("dealt_by"))

    def read_features(self, graph: Graph) -> int:
        """Make ready to read the features of such a graph, and say how many there will be: all of them."""
        return graph.num_features

    def set_width(self, num_places: int) -> None:
        self.num_own = self.num_features + num_places
        self.is_wide = self.num_own > MOST_COLUMNS
        self.width = (2 if self.is_wide else 4) * self.num_own + 3 * self.num_classes

    def read_width(self, state_dict: Any, prefix: str) -> None:
        """Take the width from a file: only that says whether edges had a direction."""
        found = state_dict.get(f"{prefix}num_places")
        if found is not None and hasattr(self, "num_places"):
            if found.numel() != 1 or int(found) not in NUM_PLACES:
                raise ValueError(f"num_places = {found.tolist()}; it is one of {', '.join(map(str, NUM_PLACES))}")
            self.set_width(int(found))

    def read_seed(self, state_dict: Any, prefix: str) -> None:
        """Refuse a file whose seed is none."""
        found = state_dict.get(f"{prefix}dealt_by")
        if found is not None and (found.numel() != 1 or int(found) < 0):
            raise ValueError(f"dealt_by = {found.tolist()}; it is a seed, at least 0")

    def columns(self, graph: Graph) -> Tensor:
        """All columns of every node, [n, width]; where they are few."""
        walk = without_loops(graph)
        votes = self.votes(graph, walk)
        if not self.num_own:
            return votes
        own = []
        if self.has_features:
            own.append(self.features(graph))
        if hasattr(self, "num_places"):
            own.append(graph.structural_features_of_edges())
            if own[-1].shape[1] != self.num_own - self.num_features:
                kinds = ("undirected", "directed") if graph.directed else ("directed", "undirected")
                raise ValueError(
                    "method {!r} learned from the places of nodes in a graph that is {}, and this one is {}".format(
                        self.recipe.method, *kinds
                    )
                )
        x = torch.cat(own, dim=1)
        return torch.cat([x, *neighbour_columns(walk, x), votes], dim=1)

    def features(self, graph: Graph) -> Tensor:
        return graph.x.to_dense() if isinstance(graph.x, SparseMatrix) else graph.x

    def votes(self, graph: Graph, walk: SparseMatrix) -> Tensor:
        return votes_by_others(walk, graph.y, graph.num_classes, self.recipe.propagation_steps, self.seed)

    @property
    def balance(self) -> str | None:
        return "balanced" if self.recipe.class_weights == "balanced" else None


class NeighbourLR(NearbyColumns):
    """Logistic regression on the columns, standardised where they are few; inner folds choose C and how much columns cost.

    One penalty for all would have a hundred columns that say little drown three votes that say much. Of more than
    MOST_COLUMNS features, such as words, the neighbours' mean is taken alone, sparse stays sparse, and C alone is chosen.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__(recipe, graph, seed)
        self.register_buffer("weight", torch.zeros(self.width, self.num_classes))
        self.register_buffer("bias", torch.zeros(self.num_classes))

    @on_one_thread
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        shown, rows = only(graph, nodes), nodes.cpu().numpy()
        y = shown.y.index_select(0, nodes).cpu().numpy()
        center, spread = np.zeros(self.width), np.ones(self.width)
        if self.is_wide:
            x = self.wide_rows(shown, rows)
        else:
            every = self.columns(shown).double().cpu().numpy()
            x = every[rows]
            center, least = x.mean(axis=0), LEAST_SPREAD * np.array([column.std() for column in every.T])
            spread = np.maximum(x.std(axis=0), least)
            spread = np.where(spread > 1e-9, spread, 1)
            x = (x - center) / spread
        scale, penalty = self.chosen(x, y)
        weight, bias = self.fitted(self.scaled(x, scale), y, penalty)
        weight = weight * (scale / spread)[:, None]
        self.get_buffer("weight").copy_(torch.from_numpy(weight))
        self.get_buffer("bias").copy_(torch.from_numpy(bias - center @ weight))

    def fitted(self, x: Any, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.linear_model import LogisticRegression

        estimator = LogisticRegression(C=penalty, class_weight=self.balance, max_iter=200, random_state=self.seed)
        weight, bias = affine_layers(estimator, x, y, self.num_classes, 0)[0]
        return np.broadcast_to(weight, (self.width, self.num_classes)), bias

    def scaled(self, x: Any, scale: np.ndarray) -> Any:
        return x if self.is_wide else x * scale  # of many columns no scale is chosen

    def chosen(self, x: Any, y: np.ndarray) -> tuple[np.ndarray, float]:
        """The scale of every column, [width], and C."""
        sizes = self.num_own, self.width - 3 * self.num_classes - self.num_own, 3 * self.num_classes
        scales = [np.repeat((*scale, 1.0), sizes) for scale in (SCALES[:1] if self.is_wide else SCALES)]
        folds, best = list(inner_folds(y, self.seed)), (np.inf, scales[0], 1.0)
        for scale, penalty in product(scales, PENALTIES) if folds else ():
            scaled, cost = self.scaled(x, scale), 0.0
            for fit, held in folds:
                weight, bias = self.fitted(scaled[fit], y[fit], penalty)
                cost += mean_cost(scaled[held] @ weight + bias, y[held])
            if cost < best[0]:
                best = cost, scale, penalty
        return best[1:]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """As torch does it, after room is made for as many columns as there were."""
        self.read_seed(state_dict, prefix)
        self.read_width(state_dict, prefix)
        weight = self.get_buffer("weight")
        self.register_buffer("weight", weight.new_zeros(self.width, self.num_classes))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def wide_rows(self, graph: Graph, rows: np.ndarray) -> Any:
        walk = without_loops(graph)
        votes = self.votes(graph, walk).cpu().numpy()[rows]
        x = graph.x.to_scipy() if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy()
        parts = x[rows], walk.to_scipy()[rows] @ x, votes
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts)) if scipy.sparse.issparse(x) else np.hstack(parts)

    def forward(self, graph: Graph) -> Tensor:
        weight, bias = self.get_buffer("weight"), self.get_buffer("bias")
        if not self.is_wide:
            return self.columns(graph) @ weight + bias
        walk = without_loops(graph)
        own, mean, votes = weight.split([self.num_own, self.num_own, 3 * self.num_classes])
        logits: Tensor = graph.x @ own + walk @ (graph.x @ mean) + self.votes(graph, walk) @ votes + bias
        return logits


class Trees(NearbyColumns):
    """scikit-learn's gradient-boosted trees on the columns; inner folds choose the number of rounds, all nodes are then fitted.

    Trees are complete: inner node k has the children 2k + 1 (x ≤ threshold) and 2k + 2, and a leaf that scikit-learn has
    higher up is repeated below. So a file of tensors holds no link that could lead astray.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__(recipe, graph, seed)
        if self.is_wide:
            raise ValueError(
                f"method 'trees' takes at most {MOST_COLUMNS} columns, and the graph has {self.num_own:,}; "
                "'neighbour-lr' takes any number"
            )
        self.register_buffer("bias", torch.zeros(self.num_classes, dtype=torch.float64))
        self.make_room(0)
        self.rounds: int | None = None  # None: inner folds choose

    def read_features(self, graph: Graph) -> int:
        """All of them, or, of a table without room for them and what is added about the graph, `picked` ones."""
        self.num_given = graph.blocks[-1].stop if graph.blocks else graph.num_features
        num_added = 0 if self.recipe.structure else NUM_PLACES[-1]
        if self.num_given + num_added <= MOST_COLUMNS or not len(columns := table_columns(graph)):
            return self.num_given
        self.register_buffer("picked", columns[:TELLING])  # room for those that `pick` takes
        return len(self.get_buffer("picked"))

    def pick(self, graph: Graph, nodes: Tensor) -> None:
        """Take the columns of a wide table that tell most about the labels of `nodes`."""
        columns = table_columns(graph)
        told = share_told(columns_of(graph, columns).index_select(0, nodes), graph.y.index_select(0, nodes))
        best = told.argsort(descending=True, stable=True)[:TELLING].cpu()
        self.get_buffer("picked").copy_(columns[best].sort().values)

    def features(self, graph: Graph) -> Tensor:
        return columns_of(graph, self.get_buffer("picked")) if hasattr(self, "picked") else super().features(graph)

    def choose_like(self, others: Sequence[Trees]) -> None:
        """Take as many rounds as others chose for most of the same nodes: the median of them."""
        if others:
            self.rounds = max(1, round(float(np.median([len(other.get_buffer("feature")) for other in others]))))

    def make_room(self, rounds: int) -> None:
        """Buffers for a tree of each class in each round."""
        for name, size, dtype in (
            ("feature", INNER, torch.int64),
            ("threshold", INNER, torch.float64),
            ("value", LEAVES, torch.float64),
        ):
            empty = torch.zeros(rounds, size, self.num_classes, dtype=dtype, device=self.get_buffer("bias").device)
            self.register_buffer(name, empty)

    @on_one_thread
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        shown = only(graph, nodes)
        if hasattr(self, "picked"):
            self.pick(shown, nodes)
        x = self.columns(shown).index_select(0, nodes).double().cpu().numpy()
        y = shown.y.index_select(0, nodes).cpu().numpy()
        seen = np.unique(y)
        bias = np.full(self.num_classes, UNSEEN)
        bias[seen] = 0
        self.make_room(0)
        if len(seen) > 1:
            grown = self.estimator(self.rounds or self.chosen_rounds(x, y), len(y)).fit(x, y)
            columns = seen[-1:] if len(seen) == 2 else seen  # two classes: one column, the log-odds of the second
            bias[columns] = grown._baseline_prediction.ravel()
            self.keep(grown._predictors, columns)
        self.get_buffer("bias").copy_(torch.from_numpy(bias))

    def estimator(self, rounds: int, num_rows: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_iter=rounds,
            max_depth=DEPTH,
            min_samples_leaf=min(20, max(2, num_rows // 20)),
            max_features=0.5,
            l2_regularization=10.0,
            early_stopping=False,
            class_weight=self.balance,
            random_state=self.seed,
        )

    def chosen_rounds(self, x: np.ndarray, y: np.ndarray) -> int:
        costs = np.zeros(ROUNDS)
        for fit, held in inner_folds(y, self.seed):
            if len(np.unique(y[fit])) > 1:
                grown = self.estimator(ROUNDS, len(fit)).fit(x[fit], y[fit])
                logits = np.full((ROUNDS, len(held), self.num_classes), UNSEEN)
                for k, shares in enumerate(grown.staged_predict_proba(x[held])):
                    logits[k][:, grown.classes_] = np.log(np.maximum(shares, 1e-12))
                costs += [mean_cost(stage, y[held]) for stage in logits]
        return int(costs.argmin()) + 1 if costs.any() else FEW_ROUNDS

    def keep(self, rounds: Any, columns: np.ndarray) -> None:
        """Copy scikit-learn's trees, a list for each round, into complete ones of the classes `columns`."""
        self.make_room(len(rounds))
        feature, threshold, value = (self.get_buffer(name).cpu() for name in ("feature", "threshold", "value"))
        for r, trees in enumerate(rounds):
            for k, tree in zip(columns.tolist(), trees, strict=True):
                todo = [(0, 0, 0)]  # a node of scikit-learn's, its depth, and its place among those of that depth
                while todo:
                    at, depth, place = todo.pop()
                    node = tree.nodes[at]
                    if node["is_leaf"]:
                        below = 2 ** (DEPTH - depth)
                        value[r, place * below : (place + 1) * below, k] = float(node["value"])
                    else:
                        slot = 2**depth - 1 + place
                        feature[r, slot, k], threshold[r, slot, k] = int(node["feature_idx"]), node["num_threshold"]
                        todo += [(node["left"], depth + 1, 2 * place), (node["right"], depth + 1, 2 * place + 1)]
        for name, tensor in (("feature", feature), ("threshold", threshold), ("value", value)):
            self.get_buffer(name).copy_(tensor)

    def forward(self, graph: Graph) -> Tensor:
        return torch.cat([self.logits(rows.double()) for rows in self.columns(graph).split(ROWS)])

    def logits(self, x: Tensor) -> Tensor:
        """What the trees say of rows of all columns in float64, in which thresholds are exact, [m, c]."""
        logits = self.get_buffer("bias").repeat(len(x), 1)
        for feature, threshold, value in zip(
            self.get_buffer("feature"), self.get_buffer("threshold"), self.get_buffer("value"), strict=True
        ):
            at = torch.zeros(len(x), self.num_classes, dtype=torch.int64, device=x.device)  # the node of each tree
            for _ in range(DEPTH):
                goes_right = x.gather(1, feature.gather(0, at)) > threshold.gather(0, at)
                at = 2 * at + 1 + goes_right.long()
            logits = logits + value.gather(0, at - INNER)
        return logits.float()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """As torch does it, after room is made for as many rounds as there are."""
        picked = state_dict.get(f"{prefix}picked")
        if picked is not None and hasattr(self, "picked"):
            row = torch.tensor([-1, *picked.flatten().tolist(), self.num_given])
            if picked.ndim != 1 or len(picked) > MOST_COLUMNS or not (row.diff() > 0).all():
                raise ValueError(
                    f"picked is not a row of at most {MOST_COLUMNS} columns 0 to {self.num_given - 1:,}, each after the last"
                )
            self.register_buffer("picked", torch.zeros_like(picked))
            self.num_features = len(picked)
            self.set_width(0)
        self.read_seed(state_dict, prefix)
        self.read_width(state_dict, prefix)
        feature = state_dict.get(f"{prefix}feature")
        if feature is not None and feature.ndim == 3:
            if feature.numel() and not 0 <= int(feature.min()) <= int(feature.max()) < self.width:
                raise ValueError(f"feature names columns beyond the {self.width} that the trees read")
            self.make_room(len(feature))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def without_loops(graph: Graph) -> SparseMatrix:
    """D⁻¹A without self-loops: whom a node hears but itself."""
    matrix = graph.adjacency.to_scipy()
    matrix = matrix - scipy.sparse.diags_array(matrix.diagonal(), format="csr")
    matrix.eliminate_zeros()
    return SparseMatrix.from_scipy(matrix).row_normalized().to(graph.device)


def table_columns(graph: Graph) -> Tensor:
    """The columns of prepared features that are no words and are filled often enough, at least one, in order.

    None at all where the features are words alone, or it is not known what they are.
    """
    ranges = [torch.arange(block.start, block.stop) for block in single_columns(graph.blocks)]
    if not ranges:
        return torch.zeros(0, dtype=torch.int64)
    columns = torch.cat(ranges)
    if isinstance(graph.x, SparseMatrix):
        filled = torch.bincount(graph.x.pattern.col.cpu().long(), minlength=int(columns[-1]) + 1)[columns]
    else:
        filled = (graph.x != 0).sum(dim=0).cpu()[columns]
    return columns[(filled >= LEAST_FILLED * graph.num_nodes) | (filled == filled.max())]


def columns_of(graph: Graph, columns: Tensor) -> Tensor:
    """Some columns of the features, [n, d]."""
    if not isinstance(graph.x, SparseMatrix):
        return graph.x.index_select(1, columns.to(graph.device))
    chosen = graph.x.to_scipy()[:, columns.cpu().numpy()].toarray()
    return torch.from_numpy(chosen).to(graph.device)


def share_told(x: Tensor, y: Tensor) -> Tensor:
    """The share of the variance of each column that is between the classes y, in [0, 1], [d]; 0 of a constant one."""
    x, seeds = x.double() - x.double().mean(dim=0), one_hot(y, int(y.max()) + 1, torch.float64)
    sizes = seeds.sum(dim=0).clamp_min(1).unsqueeze(1)
    between, total = ((seeds.T @ x).square() / sizes).sum(dim=0), x.square().sum(dim=0)
    return torch.where(total > 0, between / total.clamp_min(1e-300), 0)


def neighbour_columns(walk: SparseMatrix, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, minimum and maximum of each column over the neighbours, [n, d] each; without neighbours the own value."""
    rowptr = walk.pattern.rows.rowptr.long()
    alone = (rowptr.diff() == 0).unsqueeze(1)
    width = max(1, BLOCK // max(1, walk.num_entries))
    found: dict[str, list[Tensor]] = {"min": [], "max": []}
    for block in x.split(width, dim=1):
        sent = block.index_select(0, walk.pattern.col.long())
        for name, parts in found.items():
            parts.append(torch.segment_reduce(sent, name, offsets=rowptr, axis=0, unsafe=True))
    least, most = (torch.where(alone, x, torch.cat(parts, dim=1)) for parts in found.values())
    return torch.where(alone, x, walk @ x), least, most


def votes_by_others(walk: SparseMatrix, y: Tensor, num_classes: int, steps: int, seed: int) -> Tensor:
    """Log shares of the classes among the labels that reach a node, but for those of its own fold, [n, 3c]."""
    folds = vote_folds(y, seed)
    votes = label_shares(walk, one_hot(y, num_classes), steps)
    for fold in range(int(folds.max()) + 1):
        here = folds == fold
        votes[here] = label_shares(walk, one_hot(torch.where(here, -1, y), num_classes), steps)[here]
    return votes


def vote_folds(y: Tensor, seed: int) -> Tensor:
    """A fold for every labelled node, -1 for the others, [n]; each class is spread over the folds as evenly as can be."""
    nodes = np.flatnonzero(y.cpu().numpy() >= 0)
    folds = torch.full((len(y),), -1)
    folds[torch.from_numpy(nodes)] = torch.from_numpy(stratified_folds(y.cpu().numpy()[nodes], VOTE_FOLDS, seed))
    return folds.to(y.device)


def stratified_folds(y: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Folds 0..number-1 of the classes y, dealt like cards that are sorted by class and shuffled within, [m]."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    folds = np.empty(len(y), dtype=np.int64)
    folds[order] = np.arange(len(y)) % number
    return folds


def label_shares(walk: SparseMatrix, seeds: Tensor, steps: int) -> Tensor:
    """Logs of the shares of each class after one hop, after two, and after `steps` of LPA, [n, 3c].

    Shares are smoothed towards all classes alike: by the weight of one neighbour, and for LPA by FAR_SMOOTHING. So one vote says
    less than three, and a node that no label reaches has the same for every class.
    """
    one_neighbour = 1 / walk.pattern.rows.rowptr.diff().clamp_min(1).to(seeds.dtype).unsqueeze(1)
    one = walk @ seeds
    masses = (one, one_neighbour), (walk @ one, one_neighbour), (propagate_labels(walk, seeds, steps), FAR_SMOOTHING)
    c = seeds.shape[1]
    return torch.cat([((m + s / c) / (m.sum(dim=1, keepdim=True) + s)).log() for m, s in masses], dim=1)


def inner_folds(y: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows to fit, rows to score) for choices inside training: none where rows are few, one where they are many."""
    folds = stratified_folds(y, INNER_FOLDS, seed)
    for fold in range(0 if len(y) < FEW else 1 if len(y) > MANY else INNER_FOLDS):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)


def mean_cost(logits: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy; no row costs more than 10, as one of a class that the fit had no row of would."""
    logits = logits - logits.max(axis=1, keepdims=True)
    right = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))
    return float(np.minimum(-right, 10).mean())
