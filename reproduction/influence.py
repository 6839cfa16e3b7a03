"""Influences of all pairs of nodes, and those between nodes of one class, Eqs. (12) and (13)."""

from __future__ import annotations

import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.propagation import label_influence

BLOCK = 64  # columns at a time: what one step moves, [n, 64], is 5 MB for Pubmed and stays near the processor


def label_influence_matrix(transition: SparseMatrix, labeled: Tensor, iterations: int) -> Tensor:
    """I_l(v_a, v_b; k) of every pair, dense, [n, n]: for graphs small enough to look at."""
    nodes = torch.arange(transition.shape[0], device=transition.device)
    return torch.cat([label_influence(transition, labeled, some, iterations).total for some in nodes.split(BLOCK)])


def intra_class_label_influence(
    transition: SparseMatrix,
    labels: Tensor,
    labeled: Tensor,
    iterations: int,
    *,
    targets: Tensor | None = None,
    with_self: bool = True,
    num_classes: int | None = None,
) -> Tensor:
    """Σ I_l(v_a, v_b; k) over the pairs of class i, for every class, Eq. (13), [c]. All pairs at once in O(kEc).

    Args:
        labels: the class of every node, -1 where unknown, [n].
        labeled: the v_b, whose labels are propagated, boolean, [n].
        targets: the v_a, boolean, [n]; None for all that have a class.
        with_self: count v_a's own label too where v_a is labelled. Without it every v_a is a column of its own.
        num_classes: c, where the last classes may have no node.
    """
    return _intra_class(transition, labels, labeled, targets, iterations, labeled, with_self, num_classes)


def intra_class_feature_influence(
    transition: SparseMatrix,
    labels: Tensor,
    layers: int,
    *,
    targets: Tensor | None = None,
    sources: Tensor | None = None,
    with_self: bool = True,
    num_classes: int | None = None,
) -> Tensor:
    """Σ Ĩ_f(v_a, v_b; K) over the pairs of class i, for every class, Eq. (12), [c].

    Args:
        labels: the class of every node, -1 where unknown, [n].
        targets: the v_a, boolean, [n]; None for all that have a class.
        sources: the v_b, boolean, [n]; None for all that have a class.
        with_self: count the influence of a node on itself.
        num_classes: c, where the last classes may have no node.
    """
    sources = torch.ones_like(labels, dtype=torch.bool) if sources is None else sources
    return _intra_class(transition, labels, sources, targets, layers, None, with_self, num_classes)


def _intra_class(
    transition: SparseMatrix,
    labels: Tensor,
    sources: Tensor,
    targets: Tensor | None,
    steps: int,
    absorbing: Tensor | None,
    with_self: bool,
    num_classes: int | None,
) -> Tensor:
    known = labels >= 0
    targets = known if targets is None else targets & known
    num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
    classes = torch.arange(num_classes, device=labels.device)
    is_class = labels.unsqueeze(1) == classes  # [n, c]
    start = (is_class & targets.unsqueeze(1)).to(transition.dtype)  # the walks of a class go together
    ends = _where_walks_end(transition, start, steps, absorbing)
    total = (ends * (is_class & sources.unsqueeze(1))).sum(dim=0)
    if with_self:
        return total
    for nodes in (targets & sources).nonzero().squeeze(1).split(BLOCK):
        start = torch.zeros(transition.shape[0], len(nodes), dtype=transition.dtype, device=transition.device)
        ends = _where_walks_end(transition, start.scatter_(0, nodes.unsqueeze(0), 1), steps, absorbing)
        own = ends.gather(0, nodes.unsqueeze(0)).squeeze(0)  # of v_a on v_a, [b]
        total = total - own @ is_class.index_select(0, nodes).to(own.dtype)
    return total


def _where_walks_end(transition: SparseMatrix, start: Tensor, steps: int, absorbing: Tensor | None) -> Tensor:
    """All that was absorbed of the walks that begin at `start`, a column each; without absorbing nodes, where the walks are
    after the last step.
    """
    backwards, here, total = transition.detach().T, start, torch.zeros_like(start)
    ends = None if absorbing is None else absorbing.to(start.dtype).unsqueeze(1)
    for _ in range(steps):
        here = backwards @ here
        if ends is not None:
            total, here = total + here * ends, here * (1 - ends)
    return here if ends is None else total
