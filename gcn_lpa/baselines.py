"""The paper's baselines (Section 4.2) and the rivals a sceptic would ask for, behind the same door as GCN-LPA.

A model gives `model(graph)`, logits or log-probabilities [n, c], and learns in one of two ways: `loss(graph, nodes, key)`
is followed downhill by `train.fit`, or `fit_directly(graph, nodes)` learns at once. Both read the labels of `nodes` and no
others. All a model has learned is in its parameters and buffers, so that a file of tensors can hold it.

`graph` is everywhere a graph prepared by the recipe of the method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA, propagate_labels
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.sparse import SparseMatrix

DEFAULTS = "default in the packages or their open-source code"  # Section 4.2
LEAST = 1e-12  # probability, so that zero has a logarithm
UNSEEN = -1e4  # logit of a class that no training node has: its probability is 0 and its loss finite


class LabelPropagation(nn.Module):
    """LPA on the edge weights of the input, Eqs. (1) and (2); it keeps the labels it was given."""

    known: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe
        self.register_buffer("known", torch.full((graph.num_nodes,), -1))

    def fit_directly(self, graph: Graph, nodes: Tensor) -> None:
        self.known.copy_(labels_of(graph, nodes))

    def forward(self, graph: Graph) -> Tensor:
        seeds = one_hot(self.known, graph)
        return label_distributions(graph.adjacency.row_normalized(), seeds, self.recipe.propagation_steps).log()


def labels_of(graph: Graph, nodes: Tensor) -> Tensor:
    """The labels of `nodes`, -1 elsewhere, [n]."""
    return torch.full_like(graph.y, -1).index_copy(0, nodes, graph.y.index_select(0, nodes))


def one_hot(known: Tensor, graph: Graph) -> Tensor:
    """A row of label mass 1 for each known label, zero rows elsewhere, [n, c]."""
    if len(known) != graph.num_nodes:
        raise ValueError(
            f"this model keeps the labels of the {len(known)} nodes it was trained on and cannot label a graph of {graph.num_nodes}; "
            "train it again on that graph"
        )
    return F.one_hot(known.clamp_min(0), graph.num_classes).float() * (known >= 0).unsqueeze(1)


def label_distributions(transition: SparseMatrix, seeds: Tensor, iterations: int) -> Tensor:
    """What LPA predicts, each row a distribution, [n, c]: nodes no label has reached get the shares of the seeds."""
    mass = propagate_labels(transition, seeds, iterations)
    mass = torch.where(seeds.sum(dim=1, keepdim=True) > 0, seeds, mass)  # Eq. (2)
    total, prior = mass.sum(dim=1, keepdim=True), seeds.sum(dim=0) + LEAST
    reached = total > 0
    return torch.where(reached, mass / torch.where(reached, total, 1.0), prior / prior.sum()).clamp_min(LEAST)


class FeaturesOnly(nn.Module):
    """scikit-learn's logistic regression or, with `hidden` layers, perceptron; it looks at no edge.

    Of the recipe only `features` applies, everything else is the package's default. Trained until scikit-learn stops, at
    100 (LR) or 200 (MLP) iterations: no validation node has a say in it. The coefficients are copied into buffers.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.recipe, self.seed, self.hidden = recipe, seed, hidden
        widths = [graph.num_features, *hidden, graph.num_classes]
        for k, (rows, columns) in enumerate(zip(widths, widths[1:], strict=False)):
            self.register_buffer(f"weight{k}", torch.zeros(rows, columns))
            self.register_buffer(f"bias{k}", torch.zeros(columns))

    def estimator(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        if self.hidden:
            return MLPClassifier(hidden_layer_sizes=self.hidden, random_state=self.seed)
        return LogisticRegression(solver="lbfgs", random_state=self.seed)

    def fit_directly(self, graph: Graph, nodes: Tensor) -> None:
        x, y = feature_rows(graph, nodes), graph.y.index_select(0, nodes).cpu().numpy()
        classes = np.unique(y)
        depth = len(self.hidden)
        if len(classes) > 1:
            fitted = fit_quietly(self.estimator(), x, y)
            weights, biases = (
                (fitted.coefs_, fitted.intercepts_) if self.hidden else ([fitted.coef_.T], [fitted.intercept_])
            )
            if len(classes) == 2:  # one column, the log-odds of the second class
                weights = [*weights[:-1], np.pad(weights[-1], ((0, 0), (1, 0)))]
                biases = [*biases[:-1], np.pad(biases[-1], (1, 0))]
            for k in range(depth):
                self.get_buffer(f"weight{k}").copy_(torch.from_numpy(weights[k]))
                self.get_buffer(f"bias{k}").copy_(torch.from_numpy(biases[k]))
            self.get_buffer(f"weight{depth}")[:, classes] = torch.from_numpy(weights[-1]).to(
                graph.device, torch.float32
            )
        bias = torch.full((graph.num_classes,), UNSEEN)
        bias[classes] = torch.from_numpy(biases[-1]).float() if len(classes) > 1 else torch.zeros(1)
        self.get_buffer(f"bias{depth}").copy_(bias)

    def forward(self, graph: Graph) -> Tensor:
        x = graph.x @ self.get_buffer("weight0") + self.get_buffer("bias0")
        for k in range(1, len(self.hidden) + 1):
            x = x.relu() @ self.get_buffer(f"weight{k}") + self.get_buffer(f"bias{k}")
        return x


def feature_rows(graph: Graph, nodes: Tensor) -> Any:
    """The features of `nodes` for scikit-learn, sparse where they are."""
    rows = nodes.cpu().numpy()
    return graph.x.to_scipy()[rows] if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy()[rows]


def fit_quietly(estimator: Any, x: Any, y: np.ndarray) -> Any:
    """A fitted estimator; that it stops at the package's default number of iterations is no news here."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(x, y)


@dataclass(frozen=True)
class Method:
    """One row of a comparison: how its model is built and with which settings."""

    name: str
    build: Callable[[Recipe, Graph, int], nn.Module]  # of the recipe, the prepared graph and the seed
    recipe: Recipe | Callable[[Recipe], Recipe]  # its own, or made of GCN-LPA's for the same graph
    note: str = ""
    needs: str = ""  # the extra that installs what it needs

    def settings(self, gcn_lpa: Recipe = DEFAULT) -> Recipe:
        """The recipe of this method where GCN-LPA has `gcn_lpa`."""
        return self.recipe(gcn_lpa) if callable(self.recipe) else self.recipe


_PLAIN = Recipe(
    edges="fixed",
    lpa_weight=0.0,
    residual=False,
    features="row",
    epochs=200,
    patience=0,
    select="first_best",
    origin=DEFAULTS,
)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("mlp", partial(FeaturesOnly, hidden=(50,)), _PLAIN.replace(method="mlp", features="raw", self_loops=False),
               "scikit-learn's perceptron, 50 hidden units, on raw features; no epoch is selected"),
        Method("lr", FeaturesOnly, _PLAIN.replace(method="lr", features="raw", self_loops=False),
               "scikit-learn's logistic regression (lbfgs) on raw features, as rows of sum 1 would leave its penalty "
               "far too strong; no epoch is selected"),
        Method("lpa", LabelPropagation, _PLAIN.replace(method="lpa", features="raw", propagation_steps=20),
               "label propagation, 20 iterations, labels reset at each; looks at no feature"),
        Method("gcn", GCNLPA, _PLAIN.replace(method="gcn", normalization="symmetric", hidden=16, dropout=0.5, lr=0.01, l2=5e-4),
               "Kipf & Welling's settings and matrix D^-½AD^-½, without bias; L2 on both W (their TensorFlow code: the first)"),
        Method("gcn-same", GCNLPA, lambda ours: ours.replace(method="gcn-same", edges="fixed", lpa_weight=0.0),
               "GCN-LPA's settings with fixed edges and λ = 0"),
        Method("gcn-lpa", GCNLPA, lambda ours: ours.replace(method="gcn-lpa"), "learned edges that must also carry labels"),
    )
}  # fmt: skip
