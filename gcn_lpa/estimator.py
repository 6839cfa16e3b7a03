"""GCN-LPA as a scikit-learn classifier and regressor: `fit`, `predict`, `predict_proba`, pipelines, grid search.

Where the rows of X are the nodes of a kNN graph, a new row is attached to it at predict time as a sink: it receives messages
of its neighbours and sends none, so the answer for a row does not depend on the rows that come with it.

Where a graph is given, X is a column of node ids. Cross-validation then slices ids, and the labels of the ids that were
left out are hidden, those that the graph itself has too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
from itertools import pairwise
from typing import Any

import numpy as np
import pandas
import scipy.sparse
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from gcn_lpa.calibration import USUAL_LEVEL
from gcn_lpa.data.datasets import as_graph
from gcn_lpa.data.describe import told_by_neighbours
from gcn_lpa.data.scaling import Scaling, of_sinks
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction, edge_table
from gcn_lpa.recipes import Recipe, choose_recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.target import Classes, Target

FIELDS = ("edges", "hidden", "gcn_layers", "lpa_iterations", "lpa_weight", "loss", "dropout", "lr", "l2", "epochs")


class NodeEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: how X becomes nodes of a graph, and y their labels."""

    def __init__(
        self,
        graph: Any = None,
        *,
        unlabeled: Any = None,
        recipe: str | Recipe = "default",
        edges: str | None = None,
        hidden: int | None = None,
        gcn_layers: int | None = None,
        lpa_iterations: int | None = None,
        lpa_weight: float | None = None,
        loss: str | None = None,
        dropout: float | None = None,
        lr: float | None = None,
        l2: float | None = None,
        epochs: int | None = None,
        n_neighbors: int = 7,
        metric: str = "auto",
        random_state: Any = 0,
        device: str = "auto",
        threads: int | None = None,
    ) -> None:
        self.graph = graph
        self.unlabeled = unlabeled
        self.recipe = recipe
        self.edges = edges
        self.hidden = hidden
        self.gcn_layers = gcn_layers
        self.lpa_iterations = lpa_iterations
        self.lpa_weight = lpa_weight
        self.loss = loss
        self.dropout = dropout
        self.lr = lr
        self.l2 = l2
        self.epochs = epochs
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.random_state = random_state
        self.device = device
        self.threads = threads

    def _nodes_of(self, X: Any) -> tuple[Graph, np.ndarray]:
        """The graph of the rows of X, or the one that was given, and the node of each row."""
        self._neighborhood: Neighborhood | None = None
        if self.graph is None:
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
            self._neighborhood = Neighborhood(X, self.n_neighbors, self.metric)
            return self._neighborhood.graph, np.arange(X.shape[0])
        graph = as_graph(self.graph).to("cpu")
        return graph, self._nodes_named(X, graph, reset=True)

    def _learn(self, graph: Graph, nodes: np.ndarray, labels: np.ndarray, target: Target) -> np.ndarray:
        """Train on the graph with these labels of these nodes and no others; what is predicted for every node, [n, c]."""
        y = np.full(graph.num_nodes, target.unknown, dtype=labels.dtype)
        y[nodes] = labels
        if self._neighborhood is not None and self.metric == "auto":
            self._neighborhood = self._neighborhood.chosen(target.strata(torch.from_numpy(y)).numpy())
            graph = self._neighborhood.graph
        if len(torn := nodes[y[nodes] != labels]):
            raise ValueError(f"node {graph.node_names[torn[0]]!r} is in X more than once, with different labels")
        self.graph_ = graph.labeled_by(torch.from_numpy(y), target, published=())
        self.recipe_ = self._chosen_recipe(self.graph_)
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        trained = learn(self.graph_, recipe=self.recipe_, seed=int(seed), device=self.device, threads=self.threads)
        self.trained_ = dataclasses.replace(trained, model=trained.model.cpu())
        rows = self._predicted(self.graph_)
        if self._neighborhood is not None:
            twin = self._neighborhood.twin  # equal rows may have other neighbours, but one answer: the mean of theirs
            totals = np.zeros_like(rows)
            np.add.at(totals, twin, rows)
            rows = totals[twin] / np.bincount(twin, minlength=len(twin))[twin, None]
        return rows

    def _predicted(self, graph: Graph) -> np.ndarray:
        """What is predicted for every node of a graph, [n, c]."""
        with num_threads(self.threads, layer=graph.num_nodes * self.recipe_.hidden):
            return Prediction.of(self.trained_, graph).probabilities.numpy()

    def _for_rows(self, X: Any, of_nodes: np.ndarray) -> np.ndarray:
        """What is predicted for every row, [m, c]; `of_nodes`: for every node of the graph.

        A row that equals one of the training rows is that node of the graph; any other is attached to it.
        """
        if self._neighborhood is None:
            return np.asarray(of_nodes[self._nodes_named(X, self.graph_, reset=False)])
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        nodes = self._neighborhood.find(X)
        rows: np.ndarray = of_nodes[nodes]
        is_new = nodes < 0
        if is_new.any():
            attached = self._neighborhood.attach(X[is_new])
            rows[is_new] = self._predicted(attached)[self.graph_.num_nodes :]
        return rows

    @property
    def edge_weights_(self) -> pandas.DataFrame:
        check_is_fitted(self)
        table = edge_table(self.trained_, self.graph_)
        return table[["source", "target", "learned"]].rename(columns={"learned": "weight"}).infer_objects()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.graph is None
        tags.input_tags.string = self.graph is not None
        return tags

    def _chosen_recipe(self, graph: Graph) -> Recipe:
        """`recipe`, as `learn` would choose it, with the fields that were given one by one."""
        recipe = self.recipe
        if isinstance(recipe, str):
            has_time = choose_device(self.device).type == "cuda"
            recipe = choose_recipe(graph, graph.labeled, recipe, has_time=has_time)
        if not isinstance(recipe, Recipe):
            raise TypeError(f'recipe is "default", "best" or a gcn_lpa.Recipe, not {recipe!r}; settings are arguments')
        given = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        recipe = METHODS["gcn-lpa"].with_changes(recipe, plain)
        if recipe.method != "gcn-lpa":
            raise ValueError(f"{type(self).__name__} trains method 'gcn-lpa'; the recipe is one of {recipe.method!r}")
        if self.graph is None and recipe.features == "tfidf":
            raise ValueError("features='tfidf' needs a graph; without one, put TfidfTransformer before the estimator")
        return recipe

    def _nodes_named(self, X: Any, graph: Graph, *, reset: bool) -> np.ndarray:
        """The position of each id, [n]; the ids are an array, a series, a frame with one column, or a list."""
        ids = np.asarray(X) if hasattr(X, "__array__") else X
        if isinstance(ids, np.ndarray) and ids.ndim == 2 and ids.shape[1] == 1:
            ids = ids[:, 0]
        if scipy.sparse.issparse(ids) or (isinstance(ids, np.ndarray) and ids.ndim != 1):
            raise ValueError(f"with a graph, X is a column of node ids, [n] or [n, 1]; this X is {list(ids.shape)}")
        ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        ids = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in ids]
        validate_data(self, X if hasattr(X, "columns") else np.empty((len(ids), 1)), reset=reset, skip_check_array=True)
        return np.array([graph.index_of(name) for name in ids], dtype=np.int64)

    def _scored(self, metric: Any, X: Any, y: Any, sample_weight: Any) -> float:
        """A metric over the rows whose label is known."""
        predictions = self.predict(X)
        known, labels = self._known(y, len(predictions))
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(metric(labels, predictions[known], sample_weight=weight))

    def _known_labels(self, y: Any, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows have a label, [n], and the labels of those, as objects."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        kinds = y.dtypes if isinstance(y, pandas.DataFrame) else [getattr(y, "dtype", None)]
        if any(isinstance(kind, pandas.api.extensions.ExtensionDtype) for kind in kinds):
            y = np.asarray(y.astype(object), dtype=object)  # else a missing value makes floats of whole numbers
        # as objects: an array would make the text "nan" of a NaN beside text
        y = column_or_1d(np.array(y, dtype=object) if isinstance(y, (list, tuple)) else y, warn=True)
        if len(y) != num_rows:
            raise ValueError(f"y has {len(y)} labels for {num_rows} rows of X")
        known = ~pandas.isna(y)
        if self.unlabeled is not None:
            known[known] = y[known].astype(object) != self.unlabeled
        if not known.any():
            raise ValueError(f"none of the {len(y)} rows of y has a label")
        return known, y[known]


class GCNLPAClassifier(ClassifierMixin, NodeEstimator):  # type: ignore[misc]
    """`learn` with scikit-learn's interface: the same ensemble, label votes and calibration as on the command line.

    Rows without a label take part: their y is None or NaN (or `unlabeled`). Folds of the labelled rows choose the epochs, weigh
    the members and calibrate.

    Args:
        graph: a `Graph`, or what `as_graph` takes: a NetworkX graph, a SciPy sparse matrix, a PyG Data, pandas frames. X is then
            a column of ids of its nodes, and its own labels are not looked at. Without one, X holds features, and the graph
            joins every row to its nearest.
        unlabeled: a value of y that also means "no label", usually -1; NaN says that there is none.
        recipe: "default" or "best", which are chosen for the graph and its labels, or a `Recipe`.
        edges, hidden, gcn_layers, lpa_iterations, lpa_weight, loss, dropout, lr, l2, epochs: fields of the recipe;
            None leaves what it says.
        n_neighbors, metric: of the kNN graph, as in scikit-learn. "auto" is the Euclidean distance of the rows, or of the rows
            scaled as the models read them, where neighbours then tell more of each other's labels.
        random_state: of the folds, the initial weights and the dropout; a whole number is the seed of `learn`.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        threads: of the CPU. By default torch's setting, but one for a small graph, where sharing the work costs more.

    Attributes:
        classes_: the classes, [c].
        label_distributions_: probability of every class for every node of the graph, [n, c].
        transduction_: the likeliest class of every node, [n]. Nodes are the rows of X, or those of `graph`.
        edge_weights_: the learned transition D*⁻¹A* as a table source, target, weight; those of a target sum to 1.
        graph_: what was trained on: the graph with the labels of `fit` and no others.
        trained_, recipe_: the `Trained` model with its history, and its settings.
    """

    def fit(self, X: Any, y: Any) -> GCNLPAClassifier:
        """Train on the rows of X whose y is known; the others take part without a label."""
        graph, nodes = self._nodes_of(X)
        known, labels = self._known(y, len(nodes))
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if self.unlabeled is None and len(self.classes_) > 2 and -1 in self.classes_.tolist():
            raise ValueError(
                f"y holds -1 beside {len(self.classes_) - 1} other classes; pass unlabeled=-1 if it means 'no label', "
                "or unlabeled=float('nan') if it is a class"
            )
        target = Classes(tuple(map(str, self.classes_)))
        self.label_distributions_ = self._learn(graph, nodes[known], codes, target)
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class of `classes_` for every row, [n, c]."""
        check_is_fitted(self)
        return self._for_rows(X, self.label_distributions_)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of every row, [n]."""
        probabilities = self.predict_proba(X)  # which refuses an estimator that was not fitted
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy over the rows whose label is known."""
        return self._scored(accuracy_score, X, y, sample_weight)

    def _known(self, y: Any, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows have a label, [n], and the classes of those."""
        known, labels = self._known_labels(y, num_rows)
        if labels.dtype == object:
            is_text = {isinstance(label, str) for label in labels}
            if len(is_text) > 1:
                raise ValueError("y mixes text and numbers; give all classes as text")
            labels = labels if is_text == {True} else np.array(labels.tolist())
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        return known, labels


class GCNLPARegressor(RegressorMixin, NodeEstimator):  # type: ignore[misc]
    """`learn` for numbers with scikit-learn's interface: the same ensemble, votes and intervals as on the command line.

    Rows without a number take part: their y is None or NaN (or `unlabeled`). Arguments are those of `GCNLPAClassifier`.

    Attributes:
        transduction_: the predicted number of every node, [n]. Nodes are the rows of X, or those of `graph`.
        edge_weights_, graph_, trained_, recipe_: as of `GCNLPAClassifier`.
    """

    def fit(self, X: Any, y: Any) -> GCNLPARegressor:
        """Train on the rows of X whose y is known; the others take part without a number."""
        graph, nodes = self._nodes_of(X)
        known, labels = self._known(y, len(nodes))
        self._scores = self._learn(graph, nodes[known], labels, Numbers())
        self.transduction_ = self._numbers(self._scores[:, 0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of every row, [n]."""
        check_is_fitted(self)
        return self._numbers(self._for_rows(X, self._scores)[:, 0])

    def predict_interval(self, X: Any, level: float = USUAL_LEVEL) -> np.ndarray:
        """From where to where the number of every row is, as often as `level` says, [n, 2]; without folds infinite."""
        check_is_fitted(self)
        z, unit = self._for_rows(X, self._scores).T
        half = self.trained_.radius(level) * unit
        return np.stack([self._numbers(z + side * half) for side in (-1, 1)], axis=1)

    def _predicted(self, graph: Graph) -> np.ndarray:
        """The standard score of every node of a graph, and the unit of its interval, [n, 2]."""
        with num_threads(self.threads, layer=graph.num_nodes * self.recipe_.hidden):
            prediction = Prediction.of(self.trained_, graph)
            return torch.stack([prediction.uncalibrated[:, 0], prediction.unit], dim=1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² over the rows whose number is known."""
        return self._scored(r2_score, X, y, sample_weight)

    def _numbers(self, z: np.ndarray) -> np.ndarray:
        return self.trained_.target.words(torch.from_numpy(z))

    def _known(self, y: Any, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows have a number, [n], and those numbers."""
        known, labels = self._known_labels(y, num_rows)
        try:
            numbers_ = np.asarray(labels.tolist(), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y holds what is no number: {error}") from None
        assert_all_finite(numbers_, input_name="y")
        return known, numbers_


class Neighborhood:
    """The kNN graph of the rows of X, and where other rows are attached to it.

    Its features are the rows, centred (sparse ones are not) and divided by their root mean square length: whatever the
    units of X, one learning rate fits, and the neighbours stay the same.

    Args:
        scaling: of rows before their distances are taken; None: as they are.
    """

    def __init__(self, X: Any, n_neighbors: int, metric: str, scaling: Scaling | None = None) -> None:
        self.num_rows, self.n_neighbors, self.scaling = X.shape[0], n_neighbors, scaling
        self.is_sparse = scipy.sparse.issparse(X)
        X = self.rows = self.as_stored(X)
        metric = "euclidean" if metric == "auto" else metric
        self.nearest = NearestNeighbors(n_neighbors=n_neighbors, metric=metric).fit(self.placed(X))
        self.center = 0.0 if self.is_sparse else X.mean(axis=0)
        centred = X if self.is_sparse else X - self.center
        self.length = float(np.sqrt((centred * centred).sum() / X.shape[0])) or 1.0  # root mean square of the rows
        links = scipy.sparse.csr_array((1, 1))
        if self.num_rows > 1:
            links = self.nearest.kneighbors_graph(n_neighbors=min(n_neighbors, self.num_rows - 1))
        self.graph = with_own_features(Graph.from_scipy(links, x=self.features(X), name="neighbours"))
        keys = row_keys(X)
        self.first = {key: self.num_rows - 1 - k for k, key in enumerate(reversed(keys))}  # of equal rows, the first
        self.twin = self.find(X)  # of each row, the first that equals it

    def chosen(self, y: np.ndarray) -> Neighborhood:
        """This one, or that of scaled rows where its neighbours make each other's labels likelier.

        Args:
            y: classes of the rows, -1 where unknown.
        """
        if (y >= 0).sum() < 2 or self.num_rows < 2:
            return self
        scaled = Neighborhood(self.rows, self.n_neighbors, "euclidean", Scaling.learned("auto", self.rows))
        told = (told_by_neighbours(one.graph.to_scipy(), y, int(y.max()) + 1)[0] for one in (self, scaled))
        here, there = (float(np.log(probability).mean()) for probability in told)
        return scaled if there > here else self

    def placed(self, X: Any) -> Any:
        """The rows, between which distances are taken."""
        return X if self.scaling is None else self.scaling(X)

    def as_stored(self, X: Any) -> Any:
        """X as the first X was: sparse or dense."""
        if self.is_sparse:
            return scipy.sparse.csr_array(X)
        return X.toarray() if scipy.sparse.issparse(X) else X

    def features(self, X: Any) -> Any:
        return (X if self.is_sparse else X - self.center) / self.length

    def find(self, X: Any) -> np.ndarray:
        """The first row of the graph that equals each row, -1 where none does, [m]."""
        return np.array([self.first.get(key, -1) for key in row_keys(X)])

    def attach(self, X: Any) -> Graph:
        """The graph with a node for each row, a sink: it receives messages of its neighbours and sends none."""
        X = self.as_stored(X)
        links = self.nearest.kneighbors_graph(self.placed(X), n_neighbors=min(self.n_neighbors, self.num_rows))
        nothing = scipy.sparse.csr_array((X.shape[0], X.shape[0]))
        receives = scipy.sparse.block_array([[self.graph.to_scipy(), None], [links, nothing]])
        stack = scipy.sparse.vstack if self.is_sparse else np.vstack
        before, rows = self.graph.x, self.features(X)
        x = stack([before.to_scipy() if isinstance(before, SparseMatrix) else before.numpy(), rows])
        attached = with_own_features(Graph.from_scipy(receives.T, x=x, directed=True))
        num_cells = np.diff(rows.indptr) if self.is_sparse else (rows != 0).sum(axis=1)
        structural = self.graph.structural_features()
        columns = np.vstack([structural, of_sinks(structural, scipy.sparse.csr_array(links), num_cells)])
        # it was trained on edges without a direction; sinks alone have one
        return dataclasses.replace(attached, directed=False).with_structural_features(columns)


def with_own_features(graph: Graph) -> Graph:
    """The graph with its x taken for features, also where the rows happen to be those of the identity matrix."""
    return dataclasses.replace(graph, x_kind="given")


def row_keys(X: Any) -> list[bytes]:
    """Sixteen bytes per row, the same for equal rows, sparse or dense."""
    rows = scipy.sparse.csr_array(X, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    columns, values = rows.indices.astype(np.int64), rows.data
    parts = [slice(*ends) for ends in pairwise(rows.indptr)]
    return [hashlib.blake2b(columns[p].tobytes() + values[p].tobytes(), digest_size=16).digest() for p in parts]
