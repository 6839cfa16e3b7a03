"""Nodes as rows of a table: gradient-boosted trees and logistic regression on own columns, neighbours' columns and label votes.

Both come from scikit-learn; what they learned is kept in buffers and applied without it. Their columns are

own         the prepared and the structural features of the node; without features, the latter alone if the recipe has
            `structure`. Of more than MOST_COLUMNS, trees read the few most informative ones, and words where there is nothing else
neighbours  mean, minimum and maximum of each, of words the mean; a node without neighbours has its own
votes       log shares of the classes among the labels of neighbours, of their neighbours, and of LPA, [n, 3c]; of numbers
            their mean and their mass

A labelled node must not see its own label, nor meet it again on a walk that comes back. So labelled nodes are dealt into folds, and
the labels of the other folds vote for the nodes of a fold, for training rows and predictions alike; nodes without a label get the
votes of all. Folds have the classes in equal shares: else fewer votes for a class would tell that the node's fold has more of it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.scaling import single_columns
from gcn_lpa.engine.cpu_kernels import sums_of_trees
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods import linear
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.linear import PENALTIES, RIDGE, UNSEEN, one_thread
from gcn_lpa.recipes import Recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.target import Target

MOST_COLUMNS = 200  # prepared columns up to which neighbours' minimum and maximum are taken, and trees are grown
VOTE_FOLDS = 10
FAR_SMOOTHING = 0.01  # of the mass of LPA's votes, as in `learning.ensemble`
BLOCK = 1 << 24  # numbers in a block of neighbours' columns, 64 MB
KEPT = 1 << 26  # numbers of label votes that are kept for other models, 256 MB
ROWS = 1 << 16  # that trees predict at a time
DEPTH = 5  # of a tree
INNER, LEAVES = 2**DEPTH - 1, 2**DEPTH
ROUNDS = 100  # trees for each class at most, and where no validation node chooses
NUM_PLACES = (4, 7)  # structural features without those of filled cells, of undirected and of directed edges
LEAST_SPREAD = 0.1  # of that of all nodes: a column that hardly varies among the labelled would say anything of others
LEAST_TOTAL = 1e-12  # of a column's squares: what varies less is constant but for rounding
LEAST_FILLED = 0.05  # of the nodes, where columns are many: there is hardly a leaf for rarer categories
TELLING = 50  # columns of a wide table that trees read: the most different between the classes of the training labels
WORDS = 100  # columns that trees read where all are words
SCALES = ((1.0, 1.0), (1.0, 0.1), (0.1, 0.1))  # of own and neighbours' columns beside votes: smaller ones cost more


class NearbyColumns(AtOnce):
    """The columns that both methods read."""

    dealt_by: Tensor  # the seed: folds of labelled nodes are dealt again to predict
    num_places: Tensor | None  # how many structural features are added to the prepared ones; None: none
    picked: Tensor | None  # the columns that trees read of many; None: all

    def __init__(self, recipe: Recipe, graph: Graph, seed: int) -> None:
        super().__init__()
        self.reads_words = False
        self.recipe, self.num_classes, self.num_votes = recipe, graph.target.width, 3 * graph.target.vote_width
        self.balance = "balanced" if recipe.class_weights == "balanced" else None
        self.register_buffer("dealt_by", torch.tensor(seed))
        self.register_buffer("num_places", None)
        self.register_buffer("picked", None)
        self.has_features = graph.x_kind != "identity"  # the identity has no columns to average
        self.num_features = self.read_features(graph) if self.has_features else 0
        is_room = self.num_features + NUM_PLACES[-1] <= MOST_COLUMNS
        if is_room and self.has_features != recipe.structure:  # features that are prepared with `structure` have them
            self.num_places = torch.tensor(graph.structural_features_of_edges().shape[1])
        self.set_width()

    def read_features(self, graph: Graph) -> int:
        """The number of prepared features that are read: all of them."""
        return graph.num_features

    def set_width(self) -> None:
        self.num_own = self.num_features + (0 if self.num_places is None else int(self.num_places))
        self.is_wide = self.num_own > MOST_COLUMNS
        self.width = (2 if self.is_wide or self.reads_words else 4) * self.num_own + self.num_votes

    @property
    def seed(self) -> int:
        return int(self.dealt_by)

    def votes(self, graph: Graph, walk: SparseMatrix) -> Tensor:
        """`votes_by_others`, once for all models that are shown the same labels."""
        labels = int.from_bytes(hashlib.sha256(graph.y.cpu().numpy().tobytes()).digest()[:4])
        labels = int(walk.pattern.total(torch.tensor(labels, device=graph.device)))  # one for all processes: they walk together
        kept: dict[Any, Tensor] = graph.once("label votes", dict)
        key = labels, graph.target, self.recipe.propagation_steps, self.seed
        if key not in kept:
            votes = votes_by_others(walk, graph.y, graph.target, self.recipe.propagation_steps, self.seed)
            while kept and (len(kept) + 1) * walk.pattern.most_rows * votes.shape[1] > KEPT:
                del kept[next(iter(kept))]
            kept[key] = votes
        return kept[key]

    def columns(self, graph: Graph, nodes: Tensor | None = None) -> Tensor:
        """All columns of every node, or of these, [n, width]; where they are few."""
        walk = graph.adjacency.between_nodes()
        votes, x = self.votes(graph, walk), self.own_columns(graph)
        if nodes is not None:
            votes = votes.index_select(0, nodes)
        if x is None:
            return votes
        nearby = [neighbour_means(walk, x, nodes)] if self.reads_words else neighbour_columns(walk, x, nodes)
        return torch.cat([x if nodes is None else x.index_select(0, nodes), *nearby, votes], dim=1)

    def own_columns(self, graph: Graph) -> Tensor | None:
        if not self.num_own:
            return None
        own = [columns_of(graph, self.picked)] if self.has_features else []
        if self.num_places is not None:
            own.append(graph.structural_features_of_edges())
            if own[-1].shape[1] != int(self.num_places):
                now, then = ("directed", "undirected") if graph.directed else ("undirected", "directed")
                raise ValueError(
                    f"method {self.recipe.method!r} learned from structural features of a graph that is {then}, "
                    f"and this one is {now}"
                )
        return torch.cat(own, dim=1)

    def make_room(self, kept: Mapping[str, Tensor]) -> None:
        """Check the sizes of buffers in a file, and take them over."""
        seed, places = kept.get("dealt_by"), kept.get("num_places")
        if seed is not None and (seed.numel() != 1 or int(seed) < 0):
            raise ValueError(f"dealt_by = {seed.tolist()}; it is a seed, at least 0")
        if places is not None and self.num_places is not None:
            if places.numel() != 1 or int(places) not in NUM_PLACES:
                raise ValueError(f"num_places = {places.tolist()}; it is one of {', '.join(map(str, NUM_PLACES))}")
            self.num_places.fill_(int(places))  # only the file knows whether edges had a direction
        self.set_width()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.make_room({name: state_dict[prefix + name] for name in self._buffers if prefix + name in state_dict})
        super()._load_from_state_dict(state_dict, prefix, *rest)


class NeighbourLR(NearbyColumns):
    """Logistic regression on the columns, standardised where they are few; inner folds choose C and the scale of columns.

    With one penalty for all, a hundred uninformative columns would drown three informative votes. Of more than MOST_COLUMNS
    features, such as words, only the neighbours' mean is taken, sparse features stay sparse, and C alone is chosen.
    """

    weight: Tensor  # [width, c]
    bias: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__(recipe, graph, seed)
        self.register_buffer("weight", torch.zeros(self.width, self.num_classes))
        self.register_buffer("bias", torch.zeros(self.num_classes))

    def make_room(self, kept: Mapping[str, Tensor]) -> None:
        super().make_room(kept)
        self.weight = self.weight.new_zeros(self.width, self.num_classes)

    @one_thread()
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        shown, y = linear.only(graph, nodes), linear.labels_at(graph, nodes).numpy()
        center, spread = np.zeros(self.width), np.ones(self.width)
        if self.is_wide:
            x = self.wide_rows(shown, nodes.cpu().numpy())
        else:
            every = self.columns(shown).double()
            every[:, self.no_line] = 0
            x = graph.pattern.collected(every.index_select(0, nodes), nodes).cpu().numpy()
            center, least = x.mean(axis=0), LEAST_SPREAD * graph.pattern.moments(every)[0].sqrt().cpu().numpy()
            spread = np.maximum(x.std(axis=0), least)
            spread = np.where(spread > 1e-9, spread, 1)
            x = (x - center) / spread

        def learned() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            scale, penalty = self.chosen(x, y)
            return scale, *self.fitted(self.scaled(x, scale), y, penalty)

        scale, weight, bias = graph.pattern.agreed(learned)
        weight = weight * (scale / spread)[:, None]
        self.weight.copy_(torch.from_numpy(weight))
        self.bias.copy_(torch.from_numpy(bias - center @ weight))

    @property
    def no_line(self) -> np.ndarray:
        """Columns without a weight: of numbers the mass of votes. A node without any is far from all others on a straight line."""
        is_mass = self.num_votes != 3 * self.num_classes
        return np.arange(self.width - self.num_votes + 1, self.width, 2) if is_mass else np.arange(0)

    def wide_rows(self, graph: Graph, rows: np.ndarray) -> Any:
        walk = graph.adjacency.between_nodes()
        votes = self.votes(graph, walk).cpu().numpy()[rows]
        votes[:, self.no_line - self.width + self.num_votes] = 0
        x = graph.x.to_scipy() if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy()
        parts = x[rows], walk.to_scipy()[rows] @ x, votes
        return scipy.sparse.csr_array(scipy.sparse.hstack(parts)) if scipy.sparse.issparse(x) else np.hstack(parts)

    def fitted(self, x: Any, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.linear_model import LogisticRegression

        if y.dtype.kind == "f":
            return linear.ridge(x, y, penalty if self.is_wide else penalty * RIDGE)
        estimator = LogisticRegression(C=penalty, class_weight=self.balance, max_iter=200, random_state=self.seed)
        weight, bias = linear.affine_layers(estimator, x, y, self.num_classes, 0)[0]
        return np.broadcast_to(weight, (self.width, self.num_classes)), bias

    def scaled(self, x: Any, scale: np.ndarray) -> Any:
        return x if self.is_wide else x * scale  # of many columns no scale is chosen

    def chosen(self, x: Any, y: np.ndarray) -> tuple[np.ndarray, float]:
        """The scale of every column, [width], and C."""
        sizes = self.num_own, self.width - self.num_votes - self.num_own, self.num_votes
        scales = [np.repeat((*scale, 1.0), sizes) for scale in (SCALES[:1] if self.is_wide else SCALES)]
        folds, best = list(linear.inner_folds(y, self.seed)), (np.inf, scales[0], 1.0)
        for scale, penalty in product(scales, PENALTIES) if folds else ():
            scaled, cost = self.scaled(x, scale), 0.0
            for fit, held in folds:
                weight, bias = self.fitted(scaled[fit], y[fit], penalty)
                cost += mean_cost(scaled[held] @ weight + bias, y[held])
            if cost < best[0]:
                best = cost, scale, penalty
        return best[1:]

    def forward(self, graph: Graph) -> Tensor:
        if not self.is_wide:
            return self.columns(graph) @ self.weight + self.bias
        walk = graph.adjacency.between_nodes()
        own, mean, votes = self.weight.split([self.num_own, self.num_own, self.num_votes])
        logits: Tensor = graph.x @ own + walk @ (graph.x @ mean) + self.votes(graph, walk) @ votes + self.bias
        return logits


class Trees(NearbyColumns):
    """scikit-learn's gradient-boosted trees on the columns; a stage is a round, and validation nodes choose how many are kept.

    Trees are complete: inner node k has the children 2k + 1 (x ≤ threshold) and 2k + 2, and a leaf that scikit-learn has
    higher up is repeated below. So a file of tensors holds no link that could lead astray.
    """

    bias: Tensor  # float64
    feature: Tensor  # of each inner node, [rounds, INNER, c]
    threshold: Tensor  # of each inner node, float64
    value: Tensor  # of each leaf, float64, [rounds, LEAVES, c]

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__(recipe, graph, seed)
        self.register_buffer("bias", torch.zeros(self.num_classes, dtype=torch.float64))
        self.empty(0)
        self.rounds = ROUNDS

    def read_features(self, graph: Graph) -> int:
        """All of them, or `picked` ones where they leave no room for structural features."""
        self.num_given = graph.blocks[-1].stop if graph.blocks else graph.num_features
        num_added = 0 if self.recipe.structure else NUM_PLACES[-1]
        if self.num_given + num_added <= MOST_COLUMNS:
            return self.num_given
        columns = table_columns(graph)
        self.reads_words = not len(columns)
        self.picked = torch.arange(WORDS) if self.reads_words else columns[:TELLING]  # `fit_at_once` takes others
        return len(self.picked)

    def limit(self, stages: int) -> None:
        self.rounds = stages
        trees = self.feature, self.threshold, self.value
        self.feature, self.threshold, self.value = (tree[:stages] for tree in trees)

    def empty(self, rounds: int) -> None:
        """Buffers for a tree of each class in each round."""
        inner, leaves = (self.bias.new_zeros(rounds, size, self.num_classes) for size in (INNER, LEAVES))
        for name, buffer in (("feature", inner.long()), ("threshold", inner), ("value", leaves)):
            self.register_buffer(name, buffer)

    def make_room(self, kept: Mapping[str, Tensor]) -> None:
        picked, feature = kept.get("picked"), kept.get("feature")
        if picked is not None and self.picked is not None:
            row = torch.tensor([-1, *picked.flatten().tolist(), self.num_given])
            if picked.ndim != 1 or len(picked) > MOST_COLUMNS or not (row.diff() > 0).all():
                right = f"at most {MOST_COLUMNS} columns 0 to {self.num_given - 1:,}, each after the last"
                raise ValueError(f"picked is not a row of {right}")
            self.picked, self.num_features = torch.zeros_like(picked), len(picked)
        super().make_room(kept)
        if feature is not None and feature.ndim == 3:
            if feature.numel() and not 0 <= int(feature.min()) <= int(feature.max()) < self.width:
                raise ValueError(f"feature names columns beyond the {self.width} that the trees read")
            self.empty(len(feature))

    @one_thread()
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        shown, y = linear.only(graph, nodes), linear.labels_at(graph, nodes).numpy()
        if self.picked is not None:
            candidates = torch.arange(self.num_given) if self.reads_words else table_columns(shown)
            shares = share_between(linear.rows_of(shown, nodes, candidates.numpy()), y)
            best = np.argsort(-shares, kind="stable")[: len(self.picked)]
            self.picked.copy_(candidates[torch.from_numpy(np.sort(best))])
        x = graph.pattern.collected(self.columns(shown, nodes), nodes).double().cpu().numpy()
        bias, *trees = (torch.from_numpy(array) for array in graph.pattern.agreed(lambda: self.grown(x, y)))
        self.bias.copy_(bias)
        self.feature, self.threshold, self.value = (tree.to(self.bias.device) for tree in trees)

    def grown(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """bias, feature, threshold and value as learned from these rows."""
        if y.dtype.kind == "f":
            grown = self.estimator(y).fit(x, y)
            return grown._baseline_prediction.ravel(), *self.complete(grown._predictors, np.zeros(1, np.int64))
        seen = np.unique(y)
        bias = np.full(self.num_classes, UNSEEN)
        bias[seen] = 0
        if len(seen) == 1:
            return bias, *self.complete([], seen)
        grown = self.estimator(y).fit(x, y)
        columns = seen[-1:] if len(seen) == 2 else seen  # two classes: one column, the log-odds of the second
        bias[columns] = grown._baseline_prediction.ravel()
        return bias, *self.complete(grown._predictors, columns)

    def estimator(self, y: np.ndarray) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        options: dict[str, Any] = {"max_iter": self.rounds, "max_depth": DEPTH, "max_features": 0.5}
        options |= {"min_samples_leaf": min(20, max(2, len(y) // 20)), "l2_regularization": 10.0}
        options |= {"early_stopping": False, "random_state": self.seed}
        if y.dtype.kind == "f":
            return HistGradientBoostingRegressor(**options)
        return HistGradientBoostingClassifier(**options, class_weight=self.balance)

    def complete(self, rounds: Any, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """scikit-learn's trees, a list for each round, as complete ones of the classes `columns`: feature, threshold, value."""
        inner, leaves = ((len(rounds), size, self.num_classes) for size in (INNER, LEAVES))
        feature, threshold, value = np.zeros(inner, np.int64), np.zeros(inner), np.zeros(leaves)
        for r, trees in enumerate(rounds):
            for k, tree in zip(columns.tolist(), trees, strict=True):
                at = np.zeros(1, np.int64)  # scikit-learn's nodes at a depth, from left to right
                for depth in range(DEPTH):
                    nodes, slots = tree.nodes[at], slice(2**depth - 1, 2 ** (depth + 1) - 1)
                    splits = nodes["is_leaf"] == 0
                    feature[r, slots, k] = np.where(splits, nodes["feature_idx"], 0)
                    threshold[r, slots, k] = np.where(splits, nodes["num_threshold"], 0)
                    at = np.stack([np.where(splits, nodes[side], at) for side in ("left", "right")], axis=1).ravel()
                value[r, :, k] = tree.nodes["value"][at]
        return feature, threshold, value

    def forward(self, graph: Graph) -> Tensor:
        x = self.columns(graph)
        trees = self.feature, self.threshold, self.value, self.bias
        if x.device.type == "cpu":
            return torch.cat([sums_of_trees(rows.double(), *trees).float() for rows in x.split(ROWS)])
        every = (deque(self.rounds_on(rows.double()), maxlen=1) for rows in x.split(ROWS))
        return torch.cat([last.pop() for last in every])

    def stages(self, graph: Graph, nodes: Tensor) -> Iterator[Tensor]:
        rounds = self.rounds_on(self.columns(graph, nodes).double())
        return islice(rounds, min(1, len(self.feature)), None)

    def rounds_on(self, x: Tensor) -> Iterator[Tensor]:
        """The logits before the first round and after each, [m, c], of rows of all columns in float64: thresholds are exact."""
        logits = self.bias.repeat(len(x), 1)
        yield logits.float()
        for feature, threshold, value in zip(self.feature, self.threshold, self.value, strict=True):
            at = torch.zeros(len(x), self.num_classes, dtype=torch.int64, device=x.device)  # the node of each tree
            for _ in range(DEPTH):
                goes_right = x.gather(1, feature.gather(0, at)) > threshold.gather(0, at)
                at = 2 * at + 1 + goes_right.long()
            logits = logits + value.gather(0, at - INNER)
            yield logits.float()


def table_columns(graph: Graph) -> Tensor:
    """The columns of prepared features that are no words and are filled often enough, at least one, in order.

    None at all where the features are words alone, or of unknown kind.
    """
    ranges = [torch.arange(block.start, block.stop) for block in single_columns(graph.blocks)]
    if not ranges:
        return torch.zeros(0, dtype=torch.int64)
    columns, total = torch.cat(ranges), graph.pattern.total
    if isinstance(graph.x, SparseMatrix):
        filled = torch.bincount(graph.x.pattern.col.cpu().long(), minlength=int(columns[-1]) + 1)[columns]
    else:
        filled = (graph.x != 0).sum(dim=0).cpu()[columns]
    filled, number = total(filled), int(total(torch.tensor(graph.num_nodes)))
    return columns[(filled >= LEAST_FILLED * number) | (filled == filled.max())]


def columns_of(graph: Graph, columns: Tensor | None) -> Tensor:
    """These columns of the features, dense, [n, d]; None: all."""
    if columns is None:
        return graph.x.to_dense() if isinstance(graph.x, SparseMatrix) else graph.x
    if not isinstance(graph.x, SparseMatrix):
        return graph.x.index_select(1, columns.to(graph.device))
    return torch.from_numpy(graph.x.to_scipy()[:, columns.cpu().numpy()].toarray()).to(graph.device)


def share_between(x: Any, y: np.ndarray) -> np.ndarray:
    """The share of the variance of each column, dense or sparse, that is between the classes y, or ranges of numbers, [d]; 0 of a
    constant one.

    Dense columns are centred first; sparse ones, which are words of length 1 at most, would fill.
    """
    x, y = x.astype(np.float64), Numbers.strata(torch.from_numpy(y)).numpy() if y.dtype.kind == "f" else y
    if not scipy.sparse.issparse(x):
        x = x - x.mean(axis=0)
    seeds = np.eye(int(y.max()) + 1)[y]
    sums, sizes, squares = seeds.T @ x, seeds.sum(axis=0).clip(1)[:, None], np.asarray((x * x).sum(axis=0)).ravel()
    mean = sums.sum(axis=0) ** 2 / len(y)
    total = squares - mean
    between = (sums**2 / sizes).sum(axis=0) - mean
    return np.where(total > LEAST_TOTAL * squares, between / np.maximum(total, 1e-300), 0)


def neighbour_means(walk: SparseMatrix, x: Tensor, nodes: Tensor | None = None) -> Tensor:
    """The mean of each column over the neighbours, of these nodes or of all, [n, d]; a node without neighbours has its own."""
    rows, given, own = _rows_of(walk, x, nodes)
    return torch.where((rows.pattern.rowptr.long().diff() == 0).unsqueeze(1), own, rows @ given)


def neighbour_columns(walk: SparseMatrix, x: Tensor, nodes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, minimum and maximum of each column over the neighbours, of these nodes or of all, [n, d] each; a node without
    neighbours has its own.
    """
    rows, given, own = _rows_of(walk, x, nodes)
    rowptr = rows.pattern.rowptr.long()
    alone = (rowptr.diff() == 0).unsqueeze(1)
    width = max(1, BLOCK // max(1, rows.num_entries))
    least, most = torch.empty_like(own), torch.empty_like(own)
    for k in range(0, x.shape[1], width):
        sent = given[:, k : k + width].index_select(0, rows.pattern.col.long())
        for name, columns in (("min", least), ("max", most)):
            columns[:, k : k + width] = torch.segment_reduce(sent, name, offsets=rowptr, axis=0, unsafe=True)
    mean = torch.where(alone, own, rows @ given)
    return mean, torch.where(alone, own, least), torch.where(alone, own, most)


def _rows_of(walk: SparseMatrix, x: Tensor, nodes: Tensor | None) -> tuple[SparseMatrix, Tensor, Tensor]:
    """The rows of a matrix for these nodes, or for all, what they are multiplied with, and x of these nodes."""
    given = walk.pattern.gathered(x)
    if nodes is None:
        return SparseMatrix(Pattern(walk.pattern.rowptr, walk.pattern.col, walk.shape), walk.values), given, x
    csr = walk.to_scipy()[nodes.cpu().numpy()]  # entries stay in their order, and so do sums over them
    rowptr, col, values = (torch.from_numpy(array).to(walk.device) for array in (csr.indptr, csr.indices, csr.data))
    return SparseMatrix(Pattern(rowptr, col, csr.shape), values), given, x.index_select(0, nodes)


def votes_by_others(walk: SparseMatrix, y: Tensor, target: Target, steps: int, seed: int) -> Tensor:
    """What the labels that reach a node say, but for those of its own fold: `target.vote_columns`, three times, [n, 3c]."""
    folds, seeds = vote_folds(target.strata(y), seed, walk.pattern), target.seeds(y)
    votes, numbers = label_shares(walk, seeds, target, steps), torch.arange(VOTE_FOLDS, device=y.device)
    # folds side by side: a wide product is as fast
    at_once = max(1, BLOCK // max(1, 3 * seeds.shape[1] * walk.pattern.most_rows))
    for hidden in numbers.split(at_once):
        shown = (folds.unsqueeze(1) != hidden).to(seeds.dtype)
        shares = label_shares(walk, seeds.unsqueeze(1) * shown.unsqueeze(2), target, steps)
        for k, fold in enumerate(hidden):
            votes[folds == fold] = shares[folds == fold, k]
    return votes


def vote_folds(y: Tensor, seed: int, pattern: Pattern) -> Tensor:
    """A fold for every labelled node, -1 for the others, [n]; each class is spread over the folds as evenly as can be."""
    nodes = (y >= 0).nonzero().squeeze(1)
    every = linear.stratified_folds(pattern.collected(y[nodes], nodes).cpu().numpy(), VOTE_FOLDS, seed)
    folds = torch.full((len(y),), -1, device=y.device)
    folds[nodes] = torch.from_numpy(every).to(y.device)[pattern.places(nodes)]
    return folds


def label_shares(walk: SparseMatrix, seeds: Tensor, target: Target, steps: int) -> Tensor:
    """Of classes logs of their shares, of numbers mean and mass: after one hop, after two, and after `steps` of LPA.

    From seeds [n, …, c] come [n, …, 3c].

    Shares are smoothed towards equal ones: by the weight of one neighbour, and for LPA by FAR_SMOOTHING. So one vote counts
    less than three, and a node that no label reaches has equal shares.
    """
    degrees = walk.pattern.rowptr.diff().clamp_min(1).to(seeds.dtype)
    one_neighbour = 1 / degrees.view(-1, *[1] * (seeds.dim() - 1))

    def hop(mass: Tensor) -> Tensor:
        return (walk @ mass.flatten(1)).view_as(mass)

    one, labeled = hop(seeds), seeds.sum(dim=-1, keepdim=True) > 0
    far = one if steps else seeds
    for _ in range(steps - 1):
        far = hop(torch.where(labeled, seeds, far))  # Eqs. (1), (2)
    masses = (one, one_neighbour), (hop(one), one_neighbour), (far, FAR_SMOOTHING)
    return torch.cat([target.vote_columns(m, s) for m, s in masses], dim=-1)


def mean_cost(logits: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy; no row costs more than 10, as one of a class that the fit had no row of would. Of numbers mean square."""
    if y.dtype.kind == "f":
        return float(np.square(logits[:, 0] - y).mean())
    logits = logits - logits.max(axis=1, keepdims=True)
    right = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))
    return float(np.minimum(-right, 10).mean())
