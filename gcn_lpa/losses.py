"""What the losses of GCN-LPA score: the labelled nodes, five readings of Eq. (15), and the mean cost of both halves.

Eq. (15) asks how badly the edges carry labels from one labelled node to another. What exactly is scored is a reading:

official       the authors' code: no reset between iterations, and Y^(k) used as logits of a softmax
literal        the text: Eqs. (1), (2), each row normalised to a distribution; a node still votes for itself
held_out       each step a random half of the nodes are seeds and the other half targets: none sees its own label
leave_one_out  each node is scored as if it alone were unlabelled, as Theorem 3 asks; exact for k = 1, 2
influence      the text, but y_a[c] itself: the intra-class label influence of Theorem 3, which "∝" normalises away

A vote of zero has no logarithm, so every share is smoothed: (y_a[c] + TINY) / (Σ_i y_a[i] + c · TINY).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine import fused
from gcn_lpa.engine.counter_random import Key, random_share
from gcn_lpa.engine.fused import TINY, accelerated
from gcn_lpa.engine.sparse import Pattern, SparseMatrix

SEED_LAYER, RATIO_LAYER = 1001, 1002  # random bits that are not a layer's dropout


class Labels(NamedTuple):
    """The labelled nodes that a loss is about."""

    rows: Tensor | None  # their positions, [m]; None: all n nodes, of which `counts` says which count
    target: Tensor  # their classes, [m]
    counts: Tensor | None  # weight of each, [m]; None: all count alike
    seeds: Tensor  # Y^(0), [n, c]
    labeled: Tensor  # the nodes with a row in it, [n]
    pattern: Pattern  # of the edges that they travel

    @property
    def ids(self) -> Tensor:
        """What names the random bits of each node, [m]."""
        rows = torch.arange(len(self.target), device=self.target.device) if self.rows is None else self.rows
        return self.pattern.ids_of(rows)

    def spread(self, mask: Tensor) -> Tensor:
        """A mask over the rows as one over all nodes, [n, 1]."""
        if self.rows is not None:
            mask = torch.zeros_like(self.seeds[:, 0], dtype=torch.bool).index_copy(0, self.rows, mask)
        return mask.unsqueeze(1)


def labels_of(
    y: Tensor,
    nodes: Tensor,
    num_classes: int,
    ratio: float,
    seed: int | Tensor,
    dtype: torch.dtype,
    pattern: Pattern,
) -> Labels:
    """The labels of `nodes`, and of no others, for a loss.

    Args:
        y: class of each node, [n].
        nodes: positions, [m], or a boolean mask, [n]: masks can differ from model to model in a stack.
        ratio: share of the nodes that are seeds, the same ones at every step (Table 3); all of them stay targets.
    """
    if nodes.dtype == torch.bool:
        rows, target, counts = None, y.clamp_min(0), nodes
    else:
        rows, target, counts = nodes, y.index_select(0, nodes), None
    nothing = torch.zeros(len(y), num_classes, dtype=dtype, device=y.device)
    found = Labels(rows, target, counts, nothing, y >= 0, pattern)
    shown = random_share(found.ids, ratio, Key(seed), RATIO_LAYER)
    shown = found.spread(shown if counts is None else shown & counts).squeeze(1)
    return found._replace(seeds=one_hot(torch.where(shown, y, -1), num_classes, dtype), labeled=shown)


def one_hot(y: Tensor, num_classes: int, dtype: torch.dtype | None = None) -> Tensor:
    """A row of mass 1 for each class, zero rows where it is -1, [n, c]."""
    return (y.unsqueeze(1) == torch.arange(num_classes, device=y.device)).to(dtype or torch.get_default_dtype())


class Votes(NamedTuple):
    """What LPA says about the rows of `Labels`, and which of them are scored (None: all)."""

    mass: Tensor  # [m, c]
    scored: Tensor | None = None  # [m]


Spread = Callable[..., Tensor]  # (seeds, clamp=True) -> Y^(k) of the rows of the labels: `propagate_labels`


def literal(transition: SparseMatrix, labels: Labels, iterations: int, key: Key, spread: Spread) -> Votes:
    return Votes(spread(labels.seeds))


def official(transition: SparseMatrix, labels: Labels, iterations: int, key: Key, spread: Spread) -> Votes:
    return Votes(spread(labels.seeds, clamp=False))


def held_out(transition: SparseMatrix, labels: Labels, iterations: int, key: Key, spread: Spread) -> Votes:
    half = random_share(labels.ids, 0.5, key, SEED_LAYER)
    return Votes(spread(labels.seeds * labels.spread(half)), ~half)


def leave_one_out(transition: SparseMatrix, labels: Labels, iterations: int, key: Key, spread: Spread) -> Votes:
    votes = leave_one_out_votes(transition, labels.seeds, iterations)
    return Votes(votes if labels.rows is None else votes.index_select(0, labels.rows))


def leave_one_out_votes(transition: SparseMatrix, seeds: Tensor, iterations: int) -> Tensor:
    """Y^(k) of every labelled node as if it alone had no label, Theorem 3, for one or two iterations, [n, c].

    One hop: leave out the self-loop. Two hops: leave out the walk that comes straight back through an unlabelled neighbour,
    and let the walk that stays at the node, now unlabelled, go on. Longer walks come back in more ways than are cheap to count.
    """
    off_diagonal = transition.with_values(transition.values * (transition.pattern.row != transition.pattern.col))
    one_hop = off_diagonal @ seeds
    if iterations == 1:
        return one_hop
    labeled = (seeds.detach().sum(dim=1, keepdim=True) > 0).to(seeds.dtype)
    to_unlabeled = off_diagonal.values * transition.pattern.spread_cols(1 - labeled.squeeze(1))
    comes_back = transition.pattern.row_sum(to_unlabeled * transition.reversed_values)  # Σ_j ã_aj ã_ja, unlabelled j
    two_hops = off_diagonal @ torch.where(labeled > 0, seeds, one_hop)
    votes = two_hops - comes_back.unsqueeze(1) * seeds + transition.diagonal().unsqueeze(1) * one_hop
    return torch.where(votes > TINY, votes, 0)  # what the subtraction leaves of a vote of zero is rounding


class Reading(NamedTuple):
    """How the votes of a reading are cast, and as what `mean_cost` takes them."""

    votes: Callable[[SparseMatrix, Labels, int, Key, Spread], Votes]
    kind: str


LPA_LOSSES = {
    "official": Reading(official, "logits"),
    "literal": Reading(literal, "share"),
    "held_out": Reading(held_out, "share"),
    "leave_one_out": Reading(leave_one_out, "share"),
    "influence": Reading(literal, "votes"),
}


def cost_weights(labels: Labels, importance: Tensor | None, scored: Tensor | None = None) -> Tensor | None:
    """How much each row of `labels` weighs in a mean: its class, whether it counts, whether it is scored; None: all alike."""
    weight = None if importance is None else importance.index_select(0, labels.target)
    for mask in (scored, labels.counts):
        if mask is not None:
            weight = mask.to(labels.seeds.dtype) if weight is None else weight * mask
    return weight


def class_weights(labels: Labels, num_classes: int) -> Tensor:
    """m / (c m_i) for class i with m_i of the m labels: every class weighs the same in the loss, [c]."""
    members = one_hot(labels.target, num_classes, labels.seeds.dtype)
    if labels.counts is not None:
        members = members * labels.counts.unsqueeze(1)
    sizes = labels.pattern.total(members.sum(dim=0))  # bincount would wait for the GPU
    return sizes.sum() / (num_classes * sizes.clamp_min(1))


def shared_cost(rows: Tensor, labels: Labels, kind: str, weight: Tensor | None) -> Tensor:
    """`mean_cost` over the labels of all processes: the share of this one, which add up to it."""
    return labels.pattern.share(mean_cost(rows, labels.target, kind, weight), weight, len(rows))


@accelerated(fused.mean_cost)
def mean_cost(rows: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
    """The mean over `rows` of J: cross-entropy of "logits", -log of the target's "share" of the votes, or -log of its "votes".

    Args:
        weight: of each row, [m]; None: all weigh the same.
    """
    if kind == "logits":
        costs = F.cross_entropy(rows, target, reduction="none")
    else:
        costs = -(rows.gather(1, target.unsqueeze(1)).squeeze(1) + TINY).log()
        if kind == "share":
            costs = costs + (rows.sum(dim=1) + rows.shape[1] * TINY).log()
    weight = torch.ones_like(costs) if weight is None else weight
    return (costs * weight).sum() / weight.sum().clamp_min(TINY)
