"""scikit-learn's logistic regression and perceptron on a node's columns, and logistic regression on smoothed ones; of numbers ridge
regression.

Five labels a class are too few for the hundred thousand weights of a network. `SmoothedLR` has one weight for each column and
class and no epoch to choose, and learns in addition from the nodes it is most certain of.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.hops import personalized, personalized_back
from gcn_lpa.recipes import Recipe
from gcn_lpa.regression import Numbers

UNSEEN = -1e4  # logit of a class that no training node has: its probability is 0 and its loss finite
PENALTY = 10.0  # C of scikit-learn, for rows of length 1 on average
SUREST = 700  # nodes at most, in equal numbers of each class, that the model itself labels for the second fit
BLOCK = 1 << 24  # numbers of four bytes in a block of walks, 64 MB
AT_ONCE = 1 << 14  # rows that are read in float64
INNER_FOLDS = 5  # of the training nodes, for choices inside training
MANY = 1000  # training nodes from which one of these folds is enough
FEW = 20  # training nodes below which nothing is chosen
RIDGE = 0.1  # where columns are standardised and few, 1 / alpha for a C of 1
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # C of scikit-learn; 1 where nothing is chosen


class FeaturesOnly(AtOnce):
    """scikit-learn's logistic regression or, with `hidden` layers, perceptron; it reads no edge.

    Of the recipe only `features` and, for MLP, `hidden` and `epochs` apply; all else is the package's default. It is
    trained until scikit-learn stops, after at most 100 (LR) or `epochs` (MLP) iterations; validation nodes are not used.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.recipe, self.seed, self.hidden = recipe, seed, hidden
        for k, shape in enumerate(pairwise([graph.num_features, *hidden, graph.target.width])):
            self.register_buffer(f"weight{k}", torch.zeros(shape))
            self.register_buffer(f"bias{k}", torch.zeros(shape[1]))

    def estimator(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        if self.hidden:
            return MLPClassifier(hidden_layer_sizes=self.hidden, max_iter=self.recipe.epochs, random_state=self.seed)
        return LogisticRegression(solver="lbfgs", random_state=self.seed)

    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        x, y = rows_of(graph, nodes), labels_at(graph, nodes).numpy()

        def layers() -> list[tuple[np.ndarray, np.ndarray]]:
            if y.dtype.kind != "f":
                return affine_layers(self.estimator(), x, y, graph.target.width, len(self.hidden))
            return self.perceptron_layers(x, y) if self.hidden else [chosen_ridge(x, y, self.seed)]

        found = graph.pattern.agreed(layers)
        for k, (weight, bias) in enumerate(found):
            self.get_buffer(f"weight{k}").copy_(torch.from_numpy(weight))
            self.get_buffer(f"bias{k}").copy_(torch.from_numpy(bias))

    def perceptron_layers(self, x: Any, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """(W, b) of each layer of scikit-learn's perceptron for numbers."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor

        options: dict[str, Any] = {"hidden_layer_sizes": self.hidden, "max_iter": self.recipe.epochs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # as of classes
            fitted = MLPRegressor(**options, random_state=self.seed).fit(x, y)
        return list(zip(fitted.coefs_, fitted.intercepts_, strict=True))

    def forward(self, graph: Graph) -> Tensor:
        x = graph.x @ self.get_buffer("weight0") + self.get_buffer("bias0")
        for k in range(1, len(self.hidden) + 1):
            x = x.relu() @ self.get_buffer(f"weight{k}") + self.get_buffer(f"bias{k}")
        return x


def affine_layers(
    estimator: Any, x: Any, y: np.ndarray, num_classes: int, num_hidden: int, row_weights: np.ndarray | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W, b) of each layer of a scikit-learn classifier fitted to the classes in y; all others are UNSEEN.

    Args:
        row_weights: [m]; None: all alike.
    """
    from sklearn.exceptions import ConvergenceWarning

    seen = np.unique(y)
    bias = np.full(num_classes, UNSEEN)
    bias[seen] = 0
    if len(seen) == 1:  # scikit-learn refuses; the answer is that class
        return [*[(np.zeros(()), np.zeros(()))] * num_hidden, (np.zeros(()), bias)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # that it stops at the package's default is its recipe
        estimator.fit(x, y, **({} if row_weights is None else {"sample_weight": row_weights}))
    if num_hidden:
        weights, biases = estimator.coefs_, estimator.intercepts_
    else:
        weights, biases = [estimator.coef_.T], [estimator.intercept_]
    columns = seen[-1:] if len(seen) == 2 else seen  # two classes: one column, the log-odds of the second
    weight = np.zeros((len(weights[-1]), num_classes))
    weight[:, columns], bias[columns] = weights[-1], biases[-1]
    return [*zip(weights[:-1], biases[:-1], strict=True), (weight, bias)]


def ridge(x: Any, y: np.ndarray, penalty: float = 1.0, row_weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """W, [d, 1], and b, [1], of scikit-learn's ridge regression; `penalty` is 1 / its alpha, as C is of a logistic one."""
    from sklearn.linear_model import Ridge

    solver = "sparse_cg" if scipy.sparse.issparse(x) else "auto"
    fitted = Ridge(alpha=1 / penalty, solver=solver, tol=1e-6).fit(x, y, row_weights)
    return fitted.coef_[:, None], np.array([fitted.intercept_])


def chosen_ridge(x: Any, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`ridge` with the penalty that inner folds choose: by far too strong where columns are many and rows of length 1."""
    folds, best = list(inner_folds(y, seed)), (np.inf, 1.0)
    for penalty in PENALTIES if folds else ():
        cost = 0.0
        for fit, held in folds:
            weight, bias = ridge(x[fit], y[fit], penalty)
            cost += float(np.square(x[held] @ weight[:, 0] + bias - y[held]).sum())
        best = min(best, (cost, penalty))
    return ridge(x, y, best[1])


def stratified_folds(y: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Folds 0..number-1 of the classes y, dealt like cards that are sorted by class and shuffled within, [m]."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    folds = np.empty(len(y), dtype=np.int64)
    folds[order] = np.arange(len(y)) % number
    return folds


def inner_folds(y: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows to fit, rows to score) for choices inside training: none where rows are few, one where they are many."""
    strata = Numbers.strata(torch.from_numpy(y)).numpy() if y.dtype.kind == "f" else y
    folds = stratified_folds(strata, INNER_FOLDS, seed)
    for fold in range(0 if len(y) < FEW else 1 if len(y) > MANY else INNER_FOLDS):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """scikit-learn on one thread: several times as fast for a few hundred rows, and sums are added in one order."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes is greater")  # as labels were read, that was said
        yield


def rows_of(graph: Graph, nodes: Tensor, columns: np.ndarray | None = None) -> Any:
    """The features of nodes, of all processes, a sparse matrix or an array, [m, d].

    Args:
        columns: that are wanted; None: all.
    """
    at = nodes.cpu().numpy()
    x = (graph.x.to_scipy() if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy())[at]
    x = x if columns is None else x[:, columns]
    if scipy.sparse.issparse(x):
        return graph.pattern.collected(scipy.sparse.csr_array(x), nodes)
    return graph.pattern.collected(torch.from_numpy(x), nodes).numpy()


def labels_at(graph: Graph, nodes: Tensor) -> Tensor:
    """The labels of nodes, of all processes, on the CPU, [m]."""
    labels: Tensor = graph.pattern.collected(graph.y.index_select(0, nodes), nodes)
    return labels.cpu()


def only(graph: Graph, nodes: Tensor) -> Graph:
    """The graph with the labels of `nodes` and no others."""
    return graph.reveal(torch.zeros_like(graph.labeled).index_fill(0, nodes, True))


class SmoothedLR(AtOnce):
    """softmax(M x W + b), where M v is `personalized` PageRank of v along D^-½AD^-½; W and b by scikit-learn.

    Of prepared columns it reads those that were given: structural ones, of another size, have no weight. The second fit has the
    labels and, for each class, the nodes that the first fit is most certain of; together these weigh as
    much as the labels of the class. Rows of M x are computed for those nodes alone: smoothing fills what was sparse.
    """

    depends_on_seed = False
    weight: Tensor
    bias: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.num_classes = recipe, graph.target.width
        self.num_given = graph.blocks[-1].stop if graph.blocks else graph.num_features
        self.register_buffer("weight", torch.zeros(graph.num_features, self.num_classes))
        self.register_buffer("bias", torch.zeros(self.num_classes))

    @one_thread()
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        y, collected = only(graph, nodes).y, graph.pattern.collected
        labels, rows = labels_at(graph, nodes), self.rows(graph, nodes)
        scale = float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).mean())) or 1.0
        learn, agreed = self.learned, graph.pattern.agreed
        self.keep(*agreed(lambda: learn(rows, labels, np.ones(len(rows)), scale)))
        if labels.is_floating_point():  # a predicted number is no label to learn from: it would say the same again
            return
        at, classes, weights = [nodes], [y[nodes]], [torch.ones(len(nodes), dtype=torch.float64, device=y.device)]
        with torch.no_grad():
            certainty, guess = self(graph).double().log_softmax(dim=1).max(dim=1)
        for k in labels.unique().tolist():
            surest, number = self.surest(graph.pattern, certainty, (guess == k) & (y < 0))
            at.append(surest)
            classes.append(torch.full_like(surest, k))
            weights.append(weights[0].new_full((len(surest),), int((labels == k).sum()) / max(1, number)))
        every, order = torch.cat(at).sort()
        labels, mass = (collected(torch.cat(array)[order], every).cpu() for array in (classes, weights))
        more = self.rows(graph, every)
        if len(labels) > len(rows):
            self.keep(*agreed(lambda: learn(more, labels, mass.numpy(), scale)))

    def learned(self, rows: np.ndarray, y: Tensor, weights: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """W and b fitted to rows, which are divided by `scale` in place."""
        from sklearn.linear_model import LogisticRegression

        rows /= scale
        if y.is_floating_point():
            weight, bias = ridge(rows, y.numpy(), PENALTY)
            return weight / scale, bias
        if self.recipe.class_weights == "balanced":
            mass = np.bincount(y.numpy(), weights)
            weights = weights * mass.sum() / ((mass > 0).sum() * mass[y.numpy()])
        estimator = LogisticRegression(C=PENALTY, max_iter=200)
        weight, bias = affine_layers(estimator, rows, y.numpy(), self.num_classes, 0, weights)[0]
        return weight / scale, bias

    def keep(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Take over W, of the given columns, and b."""
        shape = self.num_given, self.num_classes
        self.weight[: self.num_given] = torch.from_numpy(np.broadcast_to(weight, shape).copy())
        self.bias.copy_(torch.from_numpy(bias))

    def rows(self, graph: Graph, nodes: Tensor) -> np.ndarray:
        """Rows of M x, of the nodes of all processes, [m, d]: (Mᵀ E)ᵀ x, where column j of E is 1 at the j-th of the nodes.

        Sums are in float64: in float32 the solver magnifies in which order they were added.
        """
        pattern, places, adjacency = graph.pattern, graph.pattern.places(nodes), graph.adjacency.to(torch.float64)
        number = int(pattern.total(torch.tensor(len(nodes))))
        found = np.empty((number, self.num_given), dtype=np.float32)
        width = max(1, BLOCK // (2 * pattern.most_rows))
        for start in range(0, number, width):
            stop = min(number, start + width)
            here = (places >= start) & (places < stop)
            ends = torch.zeros(graph.num_nodes, stop - start, dtype=torch.float64, device=graph.device)
            ends[nodes[here], places[here] - start] = 1
            walked, x = personalized_back(adjacency, ends, self.recipe), graph.x
            if isinstance(x, SparseMatrix):
                rows = (x.to(torch.float64).T @ walked).T
            else:
                rows = torch.zeros(stop - start, x.shape[1], dtype=torch.float64, device=x.device)
                for some in torch.arange(len(x), device=x.device).split(AT_ONCE):
                    rows += walked[some].T @ x[some].double()
            found[start:stop] = pattern.total(rows[:, : self.num_given].contiguous()).cpu().numpy()
        return found

    def surest(self, pattern: Pattern, certainty: Tensor, among: Tensor) -> tuple[Tensor, int]:
        """The nodes of a mask, of all processes, of which the model is most certain: those of this process, and how many in all."""
        nodes, most = among.nonzero().squeeze(1), max(1, SUREST // self.num_classes)
        nodes = nodes[certainty[nodes].argsort(descending=True, stable=True)[:most]]
        order = pattern.collected(certainty[nodes], nodes).argsort(descending=True, stable=True)[:most]
        return nodes[torch.isin(pattern.places(nodes), order)], len(order)

    def forward(self, graph: Graph) -> Tensor:
        return personalized(graph.adjacency.symmetric_normalized(), graph.x @ self.weight, self.recipe) + self.bias
