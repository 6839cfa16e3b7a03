"""Five readings of the LPA loss, Eq. (15), and the mean cost of both halves of Eq. (18).

Eq. (15) asks how badly the edges carry labels from one labelled node to another. What exactly is scored is a reading:

official       the authors' code: no reset between iterations, and Y^(k) used as logits of a softmax
literal        the text: Eqs. (1), (2), each row normalised to a distribution; a node still votes for itself
held_out       each step a random half of the nodes are seeds and the other half targets: none sees its own label
leave_one_out  each node is scored as if it alone were unlabelled, as Theorem 3 asks; exact for k = 1, 2
influence      the text, but y_a[c] itself: the intra-class label influence of Theorem 3, which "∝" normalises away

A vote of zero has no logarithm, so every share is smoothed: (y_a[c] + TINY) / (Σ_i y_a[i] + c · TINY). Where labels are numbers,
the cost is the square of the error of the mean of the votes, in all five.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gcn_lpa.data.checks import node_mask
from gcn_lpa.engine import fused
from gcn_lpa.engine.fused import TINY
from gcn_lpa.engine.sparse import Key, SparseMatrix, random_share
from gcn_lpa.propagation import leave_one_out_votes, propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Classes, Target

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph

SEED_LAYER, RATIO_LAYER = 1001, 1002  # random bits that are not a layer's dropout


class Loss(NamedTuple):
    """The two terms of Eq. (18)."""

    gcn: Tensor
    lpa: Tensor
    lpa_weight: float

    @property
    def total(self) -> Tensor:
        return self.gcn + self.lpa_weight * self.lpa if self.lpa_weight else self.gcn  # Eq. (18)


class Labels(NamedTuple):
    """The labelled nodes that a loss is about."""

    nodes: Tensor | None  # positions, [m]; None: all n nodes, and `weight` says which count
    target: Tensor  # their classes or numbers, [m]
    weight: Tensor | None  # of each node's cost, [m]; None: all weigh the same
    seeds: Tensor  # Y^(0), [n, c]
    labeled: Tensor  # the nodes with a row in it, [n]
    total: Callable[[Tensor], Tensor] | None = None  # sums over processes that share the nodes; None: there is one
    predicts: Target = Classes(())  # says what an error costs

    def ids(self, key: Key) -> Tensor:
        """The ids that name the random bits of each target, [m]."""
        nodes = torch.arange(len(self.target), device=self.target.device) if self.nodes is None else self.nodes
        return nodes if key.rows is None else key.rows.index_select(0, nodes)

    def only(self, shown: Tensor) -> Tensor:
        """Y^(0) with the labels of the targets in the mask alone, [m] -> [n, c]."""
        if self.nodes is not None:
            shown = torch.zeros_like(self.labeled).index_copy(0, self.nodes, shown)
        return self.seeds * shown.unsqueeze(1)

    def of(self, rows: Tensor) -> Tensor:
        """The rows of the targets, [n, …] -> [m, …]."""
        return rows if self.nodes is None else rows.index_select(0, self.nodes)

    def mean_cost(self, values: Tensor, kind: str, scored: Tensor | None = None) -> Tensor:
        """The mean of the target's `mean_cost` over the nodes, or over those of the mask `scored`.

        Of several processes, each has its share of the mean: the shares add up to it.
        """
        weight = self.weight
        if scored is not None:
            weight = scored.to(self.seeds.dtype) if weight is None else weight * scored
        cost = self.predicts.mean_cost(values, self.target, kind, weight)
        if self.total is None:
            return cost
        size = cost.new_tensor(len(values)) if weight is None else weight.sum()
        return cost * (size / self.total(size).clamp_min(TINY))


def labels_of(recipe: Recipe, graph: Graph, nodes: Tensor, seed: int | Tensor = 0, ids: Tensor | None = None) -> Labels:
    """The labels of `nodes`, and of no others, for a loss.

    Args:
        nodes: positions, [m], or a boolean mask, [n]: masks can differ from model to model in a stack.
        seed, ids: name the random choice of the seeds where `recipe.lpa_ratio` is below 1: the same ones at every step
            (Table 3). All nodes stay targets.
    """
    if not isinstance(nodes, Tensor) or nodes.dtype not in (torch.bool, torch.int64):
        raise TypeError(f"nodes is a tensor, a boolean mask or positions as int64, not {nodes!r:.60}")
    y, predicts, dtype, is_mask = graph.y, graph.target, graph.adjacency.dtype, nodes.dtype == torch.bool
    if fused.is_at_hand(nodes):
        unknown = (node_mask(nodes, len(y)) & ~predicts.known(y)).nonzero()
        if len(unknown):
            raise ValueError(f"nodes names node {int(unknown[0])}, which has no label to learn from")
    total = graph.pattern.total if graph.pattern.is_part else None
    target, weight = (predicts.filled(y), nodes.to(dtype)) if is_mask else (y.index_select(0, nodes), None)
    if recipe.class_weights == "balanced":
        members = predicts.seeds(target, dtype)
        importance = predicts.balance(target, members if weight is None else members * weight.unsqueeze(1), total)
        weight = importance if weight is None else importance * weight
    ids = torch.arange(len(y), device=y.device) if ids is None else ids
    among = nodes if is_mask else torch.zeros_like(y, dtype=torch.bool).index_fill(0, nodes, True)
    labeled = among & random_share(ids, recipe.lpa_ratio, Key(seed), RATIO_LAYER)
    seeds = predicts.seeds(torch.where(labeled, y, predicts.unknown), dtype)
    target = target.to(predicts.dtype(dtype))
    return Labels(None if is_mask else nodes, target, weight, seeds, labeled, total, predicts)


def literal(transition: SparseMatrix, labels: Labels, iterations: int, key: Key) -> Tensor:
    votes = propagate_labels(transition, labels.seeds, iterations, labeled=labels.labeled, at=labels.nodes)
    return labels.mean_cost(votes, "share")


def official(transition: SparseMatrix, labels: Labels, iterations: int, key: Key) -> Tensor:
    votes = propagate_labels(transition, labels.seeds, iterations, clamp=False, labeled=labels.labeled, at=labels.nodes)
    return labels.mean_cost(votes, "logits")


def held_out(transition: SparseMatrix, labels: Labels, iterations: int, key: Key) -> Tensor:
    is_seed = random_share(labels.ids(key), 0.5, key, SEED_LAYER)
    votes = propagate_labels(transition, labels.only(is_seed), iterations, at=labels.nodes)
    return labels.mean_cost(votes, "share", scored=~is_seed)


def leave_one_out(transition: SparseMatrix, labels: Labels, iterations: int, key: Key) -> Tensor:
    return labels.mean_cost(labels.of(leave_one_out_votes(transition, labels.seeds, iterations)), "share")  # Theorem 3


def influence(transition: SparseMatrix, labels: Labels, iterations: int, key: Key) -> Tensor:
    votes = propagate_labels(transition, labels.seeds, iterations, labeled=labels.labeled, at=labels.nodes)
    return labels.mean_cost(votes, "votes")


READINGS: dict[str, Callable[[SparseMatrix, Labels, int, Key], Tensor]] = {  # of Eq. (15)
    reading.__name__: reading for reading in (official, literal, held_out, leave_one_out, influence)
}
