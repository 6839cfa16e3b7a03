"""Logistic regression on columns that personalised PageRank has smoothed, taught twice: then also by what it is surest of.

With five labels a class, a network has next to nothing to choose its hundred thousand weights by. This has one weight for each
column and class, no epoch to choose, and the nodes that look most like each class to learn from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.hops import personalized
from gcn_lpa.methods.linear import affine_layers
from gcn_lpa.methods.trees import on_one_thread, only
from gcn_lpa.recipes import Recipe

PENALTY = 10.0  # C of scikit-learn, for rows of length 1 on average
SUREST = 700  # nodes in all, at most, that the model itself labels for the second fit; as many of each class, where there are
BLOCK = 1 << 24  # numbers in a block of walks, 64 MB


class SmoothedLR(AtOnce):
    """softmax(M x W + b), where M v is `personalized` PageRank of v along D^-½AD^-½; W and b by scikit-learn.

    The second fit has the labels and, for each class, the nodes that the first fit is surest of; together these weigh as much
    as the labels of the class. Rows of M x are computed for those nodes alone: smoothing fills what was sparse.
    """

    depends_on_seed = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.num_classes = recipe, graph.num_classes
        self.register_buffer("weight", torch.zeros(graph.num_features, graph.num_classes))
        self.register_buffer("bias", torch.zeros(graph.num_classes))

    @on_one_thread
    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        nodes, y = nodes.cpu(), only(graph, nodes).y.cpu()
        taught, rows = y[nodes], self.rows(graph, nodes)
        scale = float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).mean())) or 1.0
        self.learn(rows, taught, np.ones(len(nodes)), scale)
        surest = list(self.surest(graph, y))
        if surest:
            number = torch.bincount(taught, minlength=self.num_classes)
            weights = [np.full(len(some), int(number[k]) / len(some)) for k, some in surest]
            classes = [torch.full_like(some, k) for k, some in surest]
            every = self.rows(graph, torch.cat([nodes, *(some for _, some in surest)]))
            self.learn(every, torch.cat([taught, *classes]), np.concatenate([np.ones(len(nodes)), *weights]), scale)

    def learn(self, rows: np.ndarray, y: Tensor, weights: np.ndarray, scale: float) -> None:
        """Fit W and b to rows, which are divided by `scale` in place."""
        from sklearn.linear_model import LogisticRegression

        rows /= scale
        if self.recipe.class_weights == "balanced":
            mass = np.bincount(y.numpy(), weights)
            weights = weights * mass.sum() / ((mass > 0).sum() * mass[y.numpy()])
        estimator = LogisticRegression(C=PENALTY, max_iter=200)
        weight, bias = affine_layers(estimator, rows, y.numpy(), self.num_classes, 0, weights)[0]
        shape = self.get_buffer("weight").shape
        self.get_buffer("weight").copy_(torch.from_numpy(np.broadcast_to(weight / scale, shape).copy()))
        self.get_buffer("bias").copy_(torch.from_numpy(bias))

    def rows(self, graph: Graph, nodes: Tensor) -> np.ndarray:
        """Rows of M x, [m, d]: (Mᵀ E)ᵀ x, where column j of E is 1 at the j-th of the nodes."""
        back, start = self.smoothing(graph).T, 0
        found = np.empty((len(nodes), graph.num_features), dtype=np.float32)
        for some in nodes.split(max(1, BLOCK // graph.num_nodes)):
            ends = torch.zeros(graph.num_nodes, len(some), device=graph.device)
            ends[some.to(graph.device), torch.arange(len(some), device=graph.device)] = 1
            walked = personalized(back, ends, self.recipe)
            rows = (graph.x.T @ walked).T if isinstance(graph.x, SparseMatrix) else walked.T @ graph.x
            found[start : start + len(some)] = rows.cpu().numpy()
            start += len(some)
        return found

    def surest(self, graph: Graph, y: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class with a label the nodes without one that are called it with the highest probability."""
        with torch.no_grad():
            sureness, said = self(graph).cpu().double().log_softmax(dim=1).max(dim=1)
        for k in y[y >= 0].unique().tolist():
            nodes = ((said == k) & (y < 0)).nonzero().squeeze(1)
            order = sureness[nodes].argsort(descending=True, stable=True)
            if len(nodes):
                yield k, nodes[order[: max(1, SUREST // self.num_classes)]]

    def smoothing(self, graph: Graph) -> SparseMatrix:
        return graph.adjacency.symmetric_normalized()

    def forward(self, graph: Graph) -> Tensor:
        logits = personalized(self.smoothing(graph), graph.x @ self.get_buffer("weight"), self.recipe)
        return logits + self.get_buffer("bias")
