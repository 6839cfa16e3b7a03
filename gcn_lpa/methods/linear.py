"""Methods that look at no edge: scikit-learn's logistic regression and perceptron."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.recipes import Recipe

UNSEEN = -1e4  # logit of a class that no training node has: its probability is 0 and its loss finite


class FeaturesOnly(AtOnce):
    """scikit-learn's logistic regression or, with `hidden` layers, perceptron; it looks at no edge.

    Of the recipe only `features` and, for MLP, `hidden` and `epochs` apply; all else is the package's default. It is
    trained until scikit-learn stops, after 100 (LR) or `epochs` (MLP) iterations at most: validation has no say. The
    coefficients are copied into buffers.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.recipe, self.seed, self.hidden = recipe, seed, hidden
        for k, shape in enumerate(pairwise([graph.num_features, *hidden, graph.num_classes])):
            self.register_buffer(f"weight{k}", torch.zeros(shape))
            self.register_buffer(f"bias{k}", torch.zeros(shape[1]))

    def estimator(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        if self.hidden:
            return MLPClassifier(hidden_layer_sizes=self.hidden, max_iter=self.recipe.epochs, random_state=self.seed)
        return LogisticRegression(solver="lbfgs", random_state=self.seed)

    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        x, y = feature_rows(graph, nodes), graph.y.index_select(0, nodes).cpu().numpy()
        for k, (weight, bias) in enumerate(affine_layers(self.estimator(), x, y, graph.num_classes, len(self.hidden))):
            self.get_buffer(f"weight{k}").copy_(torch.from_numpy(weight))
            self.get_buffer(f"bias{k}").copy_(torch.from_numpy(bias))

    def forward(self, graph: Graph) -> Tensor:
        x = graph.x @ self.get_buffer("weight0") + self.get_buffer("bias0")
        for k in range(1, len(self.hidden) + 1):
            x = x.relu() @ self.get_buffer(f"weight{k}") + self.get_buffer(f"bias{k}")
        return x


def feature_rows(graph: Graph, nodes: Tensor) -> Any:
    """The features of `nodes` for scikit-learn, sparse where they are."""
    rows = nodes.cpu().numpy()
    return graph.x.to_scipy()[rows] if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy()[rows]


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
    weights, biases = (
        (estimator.coefs_, estimator.intercepts_) if num_hidden else ([estimator.coef_.T], [estimator.intercept_])
    )
    columns = seen[-1:] if len(seen) == 2 else seen  # two classes: one column, the log-odds of the second
    weight = np.zeros((len(weights[-1]), num_classes))
    weight[:, columns], bias[columns] = weights[-1], biases[-1]
    return [*zip(weights[:-1], biases[:-1], strict=True), (weight, bias)]
