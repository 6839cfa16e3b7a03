"""Label propagation along the edges as they are, and along edges learned for it alone (Section 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gcn_lpa.edges import edge_form
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.losses import READINGS, Loss, labels_of
from gcn_lpa.methods.contract import AtOnce, OnGivenEdges
from gcn_lpa.propagation import propagate_labels

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.recipes import Recipe

LEAST = 1e-12  # probability, so that zero has a logarithm


class LabelPropagation(AtOnce):
    """LPA along the given edges, Eqs. (1) and (2), from the labels of the graph it predicts on."""

    depends_on_seed = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe

    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        """Nothing is learned."""

    def forward(self, graph: Graph) -> Tensor:
        transition = graph.adjacency.row_normalized()
        return graph.target.voted(label_distributions(transition, known_labels(graph), self.recipe.propagation_steps))


def known_labels(graph: Graph) -> Tensor:
    """Y^(0) of all labels of a graph, [n, c]."""
    return graph.target.seeds(graph.y, graph.adjacency.dtype)


def label_distributions(transition: SparseMatrix, seeds: Tensor, iterations: int) -> Tensor:
    """The predictions of LPA, each row a distribution, [n, c]; a node that no label has reached gets the seeds' shares."""
    mass = propagate_labels(transition, seeds, iterations)
    mass = torch.where(seeds.sum(dim=1, keepdim=True) > 0, seeds, mass)  # Eq. (2)
    total, prior = mass.sum(dim=1, keepdim=True), transition.pattern.total(seeds.sum(dim=0)) + LEAST
    reached = total > 0
    return torch.where(reached, mass / torch.where(reached, total, 1.0), prior / prior.sum()).clamp_min(LEAST)


class AdaptiveLPA(OnGivenEdges):
    """LPA along edges that are learned for LPA alone (Section 3.2).

    The loss is Eq. (15) as `recipe.loss` reads it; `leave_one_out` is the criterion of Zhang & Lee (2007).
    """

    capturable, stackable = False, True

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe
        self.edges = edge_form(recipe, graph, generator=torch.Generator().manual_seed(seed))

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log D⁻¹A + log M; the D changes nothing after row normalisation."""
        return graph.adjacency.row_normalized().log().add(self.edges(graph))

    def transition(self, graph: Graph) -> SparseMatrix:
        return self.edge_scores(graph).row_softmax()

    def forward(self, graph: Graph) -> Tensor:
        shares = label_distributions(self.transition(graph), known_labels(graph), self.recipe.propagation_steps)
        return graph.target.voted(shares)

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        recipe, key = self.recipe, key or Key(0)
        labels = labels_of(recipe, graph, nodes, key.seed, key.rows)
        cost = READINGS[recipe.loss](self.transition(graph), labels, recipe.lpa_iterations, key)
        return Loss(cost.new_zeros(()), cost, 1.0)

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        return []
