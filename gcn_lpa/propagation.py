"""Label propagation, Eqs. (1) and (2), and the influence of one node on another, Section 2.3.

Labels and features walk the same matrix, `transition` = D*⁻¹A*. A walk starts at v_a and leaves each node along its row. Feature
influence (Lemma 1) is the probability of where it is after K steps. Label influence (Lemma 2) is the probability of where it ends
if labelled nodes absorb it: the influences on v_a are the votes that label propagation counts there, and sum to its score exactly.

Walks are followed from v_a by products with the transpose: one node costs O(kE), a block of b nodes is b columns, and no n x n
matrix is built. (Lemmas 1 and 2 print ã_{v(i-1),v(i)}; their use in Appendix B, and Eq. (1), need ã_{v(i),v(i-1)}: each step is
divided by the degree of the node it leaves.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gcn_lpa.engine.fused import TINY, propagate
from gcn_lpa.engine.sparse import SparseMatrix


def propagate_labels(
    transition: SparseMatrix,
    seeds: Tensor,
    iterations: int,
    *,
    clamp: bool = True,
    labeled: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Spread labels over the graph, Eqs. (1) and (2): Y^(k) *before* the last reset, [n, c].

    On unlabelled nodes the reset changes nothing. On labelled nodes this is the vote of their neighbours, which Eq. (15) has to
    score: after the reset every labelled node has its own label again, and the loss is zero whatever the edge weights. With
    more and more iterations Y^(k) converges to Eq. (4).

    Args:
        transition: D⁻¹A, [n, n].
        seeds: Y^(0), a row of label mass for labelled nodes (one-hot, soft, or scaled by confidence), zero rows
            elsewhere, [n, c].
        iterations: k, the number of hops a label may travel.
        clamp: reset labelled nodes between iterations, Eq. (2). The authors' code does not.
        labeled: the nodes that are reset, [n]; None: those with label mass.
        at: the nodes whose Y^(k) is wanted, each once, [m]; None: all.
    """
    if iterations < 0:
        raise ValueError(f"iterations = {iterations}; a label travels at least 0 hops")
    labeled = seeds.detach().sum(dim=1) > 0 if labeled is None else labeled
    walk = partial(propagate_labels, transition, iterations=iterations, clamp=clamp, labeled=labeled, at=at)
    faster = propagate(walk, transition, seeds, iterations, clamp, labeled, at)
    if faster is not None:
        return faster
    y = seeds
    for k in range(iterations):
        if clamp and k > 0:
            y = torch.where(labeled.unsqueeze(1), seeds, y)  # Eq. (2)
        y = transition @ y  # Eq. (1)
    return y if at is None else y.index_select(0, at)


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


@dataclass(frozen=True)
class LabelInfluence:
    """The weight of each label in the score of each of several nodes: I_l(v_a, v_b; k) = ∂y_a^(k) / ∂y_b, Definition 2."""

    nodes: Tensor  # [b], the v_a
    by_length: Tensor  # [k, b, n], of walks of 1, 2, … k steps; zero where v_b has no label

    @property
    def total(self) -> Tensor:
        """I_l(v_a, v_b; k), [b, n]. `total @ seeds` is Y^(k) of `nodes`, before the last reset of Eq. (2)."""
        return self.by_length.sum(dim=0)


def label_influence(transition: SparseMatrix, labeled: Tensor, nodes: Tensor, iterations: int) -> LabelInfluence:
    """The label influence of every labelled node on each of `nodes` after k iterations, Lemma 2; one node in O(kE).

    The walk takes its first step from v_a whether v_a has a label or not, and ends at the first labelled node it meets after
    that. So a labelled v_a may count itself: by its self-loop, and by walks that come back.

    Args:
        transition: D⁻¹A, [n, n].
        labeled: which nodes have a label, boolean, [n].
        nodes: the v_a, [b].
        iterations: k, the number of hops a label may travel.
    """
    n = transition.shape[0]
    if labeled.dtype != torch.bool or labeled.shape != (n,):
        given = f"{labeled.dtype} {tuple(labeled.shape)}"
        raise ValueError(f"a mask of {n} booleans says which nodes are meant, not {given}")
    steps = _walks_from(nodes, transition, iterations, absorbing=labeled)
    by_length = torch.stack(list(steps)).transpose(1, 2)  # a view: a copy would take longer than the walk
    return LabelInfluence(nodes, by_length)


def feature_influence(transition: SparseMatrix, nodes: Tensor, layers: int) -> Tensor:
    """The normalised feature influence Ĩ_f(v_a, v_b; K) of every node on each of `nodes`, [b, n].

    Lemma 1: the probability that a walk from v_a is at v_b after K steps, a row of transition^K. Xu et al. (2018), whose
    result it is, take each path of the ReLU network to be active with the same probability.
    """
    *_, last = _walks_from(nodes, transition, layers)
    return last.T.contiguous()


def _walks_from(nodes: Tensor, transition: SparseMatrix, steps: int, absorbing: Tensor | None = None) -> Iterator[Tensor]:
    """The probability of where walks from `nodes` are after 1, 2, … steps, or are absorbed at that step, [n, b] each."""
    if steps < 1:
        raise ValueError(f"a walk of {steps} steps goes nowhere; at least 1 iteration or layer is needed")
    n, is_outside = transition.shape[0], (nodes < 0) | (nodes >= transition.shape[0])
    if is_outside.any():
        raise ValueError(f"there is no node {int(nodes[is_outside][0])}; the graph has nodes 0 to {n - 1}")
    at = torch.zeros(n, len(nodes), dtype=transition.dtype, device=transition.device)
    at.scatter_(0, nodes.unsqueeze(0), 1)
    backwards = transition.detach().T
    ends = None if absorbing is None else absorbing.to(at.dtype).unsqueeze(1)
    for _ in range(steps):
        at = backwards @ at
        yield at if ends is None else at * ends
        at = at if ends is None else at * (1 - ends)
