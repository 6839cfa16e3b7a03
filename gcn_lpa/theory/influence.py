"""The influence of one node's label or features on another, Section 2.3.

Both are probabilities of walks on `transition` = D*⁻¹A*. A walk starts at v_a and leaves a node along its row. Feature influence
(Lemma 1) is where it is after K steps. Label influence (Lemma 2) is where it ends if labelled nodes absorb it: so the influences
on v_a are the votes that label propagation counts there, and they add up to its score exactly.

Walks are followed from v_a on by products with the transpose: one node costs O(kE), a block of b nodes is b columns, and no
matrix of n x n numbers is built unless it is asked for. (Lemmas 1 and 2 print ã_{v(i-1),v(i)}; their use in Appendix B, and
Eq. (1), need ã_{v(i),v(i-1)}: each step is divided by the degree of the node it leaves.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix

BLOCK = 64  # columns at a time: what one step moves, [n, 64], is 5 MB for Pubmed and stays near the processor


@dataclass(frozen=True)
class LabelInfluence:
    """What each labelled node's label counts at each of a few nodes: I_l(v_a, v_b; k) = ∂y_a^(k) / ∂y_b, Definition 2."""

    nodes: Tensor  # [b], the v_a
    by_length: Tensor  # [k, b, n], of walks of 1, 2, … k steps; zero where v_b has no label

    @property
    def total(self) -> Tensor:
        """I_l(v_a, v_b; k), [b, n]. `total @ one_hot(labels)` is Y^(k) of `nodes`, before the last reset of Eq. (2)."""
        return self.by_length.sum(dim=0)


def label_influence(transition: SparseMatrix, labeled: Tensor, nodes: Tensor, iterations: int) -> LabelInfluence:
    """The label influence of every labelled node on each of `nodes` after k iterations, Lemma 2; one node in O(kE).

    The walk takes its first step from v_a whether v_a has a label or not, and ends at the first labelled node it meets from then
    on. So for a labelled v_a it is what its neighbours say about it, itself among them (its self-loop, and walks that come back).

    Args:
        transition: D⁻¹A, [n, n].
        labeled: which nodes have a label, boolean, [n].
        nodes: the v_a, [b].
        iterations: k, the number of hops a label may travel.
    """
    steps = _walk(transition, _start_at(transition, nodes), iterations, absorbing=_mask(transition, labeled))
    by_length = torch.stack(list(steps)).transpose(1, 2)  # a view: a copy would take longer than the walk
    return LabelInfluence(nodes, by_length)


def label_influence_blocks(
    transition: SparseMatrix, labeled: Tensor, iterations: int, nodes: Tensor | None = None, block: int = BLOCK
) -> Iterator[LabelInfluence]:
    """`label_influence` of all nodes, or of `nodes`, so many at a time."""
    nodes = torch.arange(transition.shape[0], device=transition.device) if nodes is None else nodes
    for some in nodes.split(block):
        yield label_influence(transition, labeled, some, iterations)


def label_influence_matrix(transition: SparseMatrix, labeled: Tensor, iterations: int) -> Tensor:
    """I_l(v_a, v_b; k) of every pair, dense, [n, n]: for graphs small enough to look at."""
    return torch.cat([part.total for part in label_influence_blocks(transition, labeled, iterations)])


def feature_influence(transition: SparseMatrix, nodes: Tensor, layers: int) -> Tensor:
    """The normalised feature influence Ĩ_f(v_a, v_b; K) of every node on each of `nodes`, [b, n].

    Lemma 1: the probability that a walk from v_a is at v_b after K steps, a row of transition^K. Xu et al. (2018), whose
    result it is, take each path of the ReLU network to be active with the same probability; `lemmas.lemma_1` measures what
    that leaves out.
    """
    *_, last = _walk(transition, _start_at(transition, nodes), layers)
    return last.T.contiguous()


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
    absorbing = _mask(transition, labeled)
    return _intra_class(transition, labels, absorbing, targets, iterations, absorbing, with_self, num_classes)


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
    sources = torch.ones_like(labels, dtype=torch.bool) if sources is None else _mask(transition, sources)
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
    targets = known if targets is None else _mask(transition, targets) & known
    num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
    classes = torch.arange(num_classes, device=labels.device)
    is_class = labels.unsqueeze(1) == classes  # [n, c]
    start = (is_class & targets.unsqueeze(1)).to(transition.dtype)  # the walks of a class go together
    ends = _where_walks_end(transition, start, steps, absorbing)
    total = (ends * (is_class & sources.unsqueeze(1))).sum(dim=0)
    if with_self:
        return total
    for nodes in (targets & sources).nonzero().squeeze(1).split(BLOCK):
        ends = _where_walks_end(transition, _start_at(transition, nodes), steps, absorbing)
        own = ends.gather(0, nodes.unsqueeze(0)).squeeze(0)  # of v_a on v_a, [b]
        total = total - own @ is_class.index_select(0, nodes).to(own.dtype)
    return total


def _where_walks_end(transition: SparseMatrix, start: Tensor, steps: int, absorbing: Tensor | None) -> Tensor:
    """All that was absorbed; without absorbing nodes, where the walks are after the last step."""
    total = torch.zeros_like(start)
    for step in _walk(transition, start, steps, absorbing):
        total = step if absorbing is None else total + step
    return total


def _walk(transition: SparseMatrix, start: Tensor, steps: int, absorbing: Tensor | None = None) -> Iterator[Tensor]:
    """Where the walks that begin at `start`, a column each, are after 1, 2, … steps; or what was absorbed there at that step."""
    if steps < 1:
        raise ValueError(f"a walk of {steps} steps goes nowhere; at least 1 iteration or layer is needed")
    backwards, at = transition.detach().T, start
    ends = None if absorbing is None else absorbing.to(start.dtype).unsqueeze(1)
    for _ in range(steps):
        at = backwards @ at
        if ends is None:
            yield at
        else:
            yield at * ends
            at = at * (1 - ends)


def _start_at(transition: SparseMatrix, nodes: Tensor) -> Tensor:
    """One column per node, all of its mass on it, [n, b]."""
    n = transition.shape[0]
    if len(nodes) and bool(((nodes < 0) | (nodes >= n)).any()):
        outside = int(nodes[(nodes < 0) | (nodes >= n)][0])
        raise ValueError(f"there is no node {outside}; the graph has nodes 0 to {n - 1}")
    start = torch.zeros(n, len(nodes), dtype=transition.dtype, device=transition.device)
    return start.scatter_(0, nodes.unsqueeze(0), 1)


def _mask(transition: SparseMatrix, nodes: Tensor) -> Tensor:
    if nodes.dtype != torch.bool or nodes.shape != (transition.shape[0],):
        shape = tuple(nodes.shape)
        raise ValueError(
            f"a mask of {transition.shape[0]} booleans says which nodes are meant, not {nodes.dtype} {shape}"
        )
    return nodes
