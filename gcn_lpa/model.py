"""GCN-LPA in one file: label propagation, graph convolution, and the loss that joins them.

Equation numbers are those of Wang & Leskovec, "Unifying Graph Convolutional Neural Networks and
Label Propagation" (2020). Symbols: A adjacency with self-loops, M learned positive mask, A* = M ∘ A,
D* = diag(row sums of A*), X features, Y labels, n nodes, c classes, m labelled nodes.

Both halves walk the same matrix, `transition` = D*⁻¹A*. That is the whole idea: labels that travel
well along an edge tell features to travel there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.edges import edge_form, glorot
from gcn_lpa.engine import fused
from gcn_lpa.engine.counter_random import Key, dropout, random_share
from gcn_lpa.engine.sparse import SparseMatrix, version_of
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import Recipe

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
TINY = 1e-6  # of label mass, so that a vote of zero has a logarithm
EDGE_LAYER, SEED_LAYER, RATIO_LAYER = 1000, 1001, 1002  # random bits that are not a layer's dropout


def propagate_labels(
    transition: SparseMatrix, seeds: Tensor, iterations: int | None, *, clamp: bool = True, tolerance: float = 1e-6,
    labeled: Tensor | None = None, rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Spread the labels of a few nodes over the graph, Eqs. (1) and (2).

    Returns Y^(k) *before* the last reset of Eq. (2). On unlabelled nodes nothing changes; on labelled
    nodes it is what their neighbours say about them, which is what Eq. (15) has to score: after the
    reset every labelled node repeats its own label, and the loss is zero whatever the edge weights.

    Args:
        transition: D⁻¹A, [n, n].
        seeds: Y^(0), a row of label mass for labelled nodes (one-hot, soft, or scaled by confidence), zero rows elsewhere, [n, c].
        iterations: k, the number of hops a label may travel; None repeats until no entry moves by more than `tolerance`, Eq. (4).
        clamp: reset labelled nodes between iterations, Eq. (2). The authors' code does not.
        labeled: the rows of `seeds` that are not zero, [n], where the caller knows them.
        rows: the nodes whose Y^(k) is wanted, each once, [m]; None for all.
    """
    if iterations is None and not clamp:
        raise ValueError("iterations=None needs clamp=True: without Eq. (2) labels may go round in circles for ever")
    labeled = seeds.detach().sum(dim=1) > 0 if labeled is None else labeled
    if iterations is not None:
        fast = fused.propagate(transition, seeds, labeled, iterations, clamp, rows)
        if fast is not None:
            return fast
    y, k, moved = seeds, 0, float("inf")
    while k < iterations if iterations is not None else moved > tolerance:
        before = y
        if clamp and k > 0:
            y = torch.where(labeled.unsqueeze(1), seeds, y)  # Eq. (2)
        y = transition @ y  # Eq. (1)
        k += 1
        if iterations is None:
            moved = float((y - before).detach().abs().max()) if y.numel() else 0.0
    return select(y, rows)


def select(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values.index_select(0, rows)


class Seeds(NamedTuple):
    """Y^(0) and the nodes it labels."""

    mass: Tensor  # [n, c]
    labeled: Tensor  # [n], boolean


class Kept(NamedTuple):
    """What `GCNLPA.labels` worked out, and for what."""

    y: Tensor
    nodes: Tensor
    versions: tuple[int, int]  # of y and nodes, which may be written to
    seed: int
    target: Tensor
    seeds: Seeds


class Loss(NamedTuple):
    """The two terms of Eq. (18)."""

    gcn: Tensor
    lpa: Tensor
    lpa_weight: float

    @property
    def total(self) -> Tensor:
        return self.gcn + self.lpa_weight * self.lpa if self.lpa_weight else self.gcn  # Eq. (18)


class Model(Protocol):
    """What training asks of a model; `loss` and the parameter lists only where there is no `fit_directly`."""

    def __call__(self, graph: Graph) -> Tensor: ...
    def loss(self, graph: Graph, nodes: Tensor, key: Key) -> Loss: ...
    def edge_parameters(self) -> list[nn.Parameter]: ...
    def weight_parameters(self) -> list[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any: ...


class GCNLPA(nn.Module):
    """A GCN whose edge weights must also carry labels, Section 2.4.

    `graph` is everywhere a graph prepared by the recipe (`recipe.prepare`): self-loops added, features normalised.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        self._kept: Kept | None = None
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList(
            initial_weight(*shape, init=recipe.init, generator=generator) for shape in shapes
        )
        self.edges = edge_form(recipe.edges, graph, rank=recipe.edge_rank, init=recipe.edge_init,
                               symmetric=recipe.symmetric_edges, generator=generator)  # fmt: skip
        skips = shapes if recipe.residual else []
        self.skips = nn.ParameterList(initial_weight(*shape, init=recipe.init, generator=generator) for shape in skips)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(w)) for w in widths[1:] if recipe.bias)
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:-1] if recipe.layer_norm)

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log A + log M, one number per edge."""
        return graph.adjacency.log().add(self.edges(graph))

    def transition(self, graph: Graph, key: Key | None = None) -> SparseMatrix:
        """D*⁻¹A* with A* = M ∘ A. In logs this is a softmax over each node's neighbours."""
        transition = self.edge_scores(graph).row_softmax()
        return drop_edges(transition, self.recipe.edge_dropout, key)

    def smoothing(self, graph: Graph, transition: SparseMatrix, key: Key | None = None) -> SparseMatrix:
        """The matrix the GCN half walks: `transition` as in the paper, or D*^-½ A* D*^-½ as in Kipf & Welling."""
        if self.recipe.normalization == "row":
            return transition
        scores = self.edge_scores(graph)
        top = scores.values.detach().max() if scores.num_entries else 0
        strength = (scores.values - top).exp()
        if key is not None and self.recipe.edge_dropout:
            strength = strength * kept_edges(scores, self.recipe.edge_dropout, key)
        return scores.with_values(strength).symmetric_normalized()

    def layers(self, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None) -> list[Tensor]:
        """X^(1) … X^(K) with X^(k+1) = σ(D*⁻¹A* X^(k) W^(k)), Eqs. (3) and (16); the last one holds logits, [n, c].

        `key` names the random bits of this step (seed, step); without one there is no dropout.
        """
        recipe, outputs = self.recipe, []
        for k, weight in enumerate(self.weights):
            x = dropout(x, self.dropout_rate(k), key, layer=k)
            h = smoothing @ (x @ weight)  # Eq. (16)
            if self.skips:
                h = h + x @ self.skips[k]
            if self.biases:
                h = h + self.biases[k]
            is_last = k == len(self.weights) - 1
            if self.norms and not is_last:
                h = self.norms[k](h)
            x = ACTIVATIONS[recipe.output_activation if is_last else recipe.activation](h)
            outputs.append(x)
        return outputs

    def convolve(
        self, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """The last of `layers`, or `rows` of it, each once: on a GPU, for the plain layers of the paper, by fused kernels."""
        if self.is_plain:
            rates = self.dropout_rate(0), self.recipe.dropout
            if (logits := fused.relu_stack(smoothing, x, list(self.weights), rates, key, rows)) is not None:
                return logits
        return select(self.layers(smoothing, x, key)[-1], rows)

    def dropout_rate(self, k: int) -> float:
        recipe = self.recipe
        return recipe.dropout if k > 0 or recipe.feature_dropout is None else recipe.feature_dropout

    @property
    def is_plain(self) -> bool:
        """Whether a layer is Eq. (16) and nothing else."""
        recipe = self.recipe
        extras = recipe.residual or recipe.bias or recipe.layer_norm
        return recipe.activation == "relu" and recipe.output_activation == "identity" and not extras

    def forward(self, graph: Graph) -> Tensor:
        return self.convolve(self.smoothing(graph, self.transition(graph)), graph.x)

    def embed(self, graph: Graph) -> list[tuple[Tensor | SparseMatrix, Tensor]]:
        """(h^(k), x^(k+1)) of every layer: aggregation and transformation, Eqs. (19) to (21)."""
        smoothing = self.smoothing(graph, self.transition(graph))
        x: Tensor | SparseMatrix = graph.x
        pairs: list[tuple[Tensor | SparseMatrix, Tensor]] = []
        for output in self.layers(smoothing, graph.x):
            pairs.append((smoothing.detach().times(x) if isinstance(x, SparseMatrix) else smoothing @ x, output))
            x = output
        return pairs

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """L_gcn and L_lpa over the labelled `nodes`, Eqs. (15), (17), (18). Only labels of `nodes` are read."""
        transition, (target, seeds) = self.transition(graph, key), self.labels(graph, nodes, key)
        importance = class_weights(target, graph.num_classes) if self.recipe.class_weights == "balanced" else None
        logits = self.convolve(self.smoothing(graph, transition, key), graph.x, key, rows=nodes)
        gcn = mean_cost(logits, target, "logits", importance=importance)  # Eq. (17)
        lpa = logits.new_zeros(())
        if self.recipe.lpa_weight and self.recipe.lpa_iterations and self.recipe.lpa_ratio:
            lpa = lpa_loss(
                transition, nodes, target, graph.num_classes, self.recipe, key, importance, seeds
            )  # Eq. (15)
        return Loss(gcn, lpa, self.recipe.lpa_weight)

    def labels(self, graph: Graph, nodes: Tensor, key: Key | None) -> tuple[Tensor, Seeds]:
        """The classes of `nodes` and the seeds they make, kept from step to step while graph, nodes and seed stay the same."""
        kept, seed, versions = self._kept, key.seed if key is not None else 0, (version_of(graph.y), version_of(nodes))
        if kept is None or kept.y is not graph.y or kept.nodes is not nodes or kept[2:4] != (versions, seed):
            target = graph.y.index_select(0, nodes)
            is_seed = random_share(nodes, self.recipe.lpa_ratio, Key(seed), RATIO_LAYER)
            seeds = label_seeds(nodes, target, graph.num_nodes, graph.num_classes, is_seed, dtype=graph.adjacency.dtype)
            kept = self._kept = Kept(graph.y, nodes, versions, seed, target, seeds)
        return kept.target, kept.seeds

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        edges = {id(p) for p in self.edge_parameters()}
        return [p for p in self.parameters() if id(p) not in edges]


def lpa_loss(
    transition: SparseMatrix, nodes: Tensor, target: Tensor, num_classes: int, recipe: Recipe,
    key: Key | None = None, importance: Tensor | None = None, seeds: Seeds | None = None,
) -> Tensor:  # fmt: skip
    """L_lpa of Eq. (15): how badly the edges carry the labels of `nodes` to each other. `recipe.loss` says what is scored:

    official       the authors' code: no reset between iterations, and Y^(k) used as logits of a softmax
    literal        the text: Eqs. (1), (2), each row normalised to a distribution; a node still votes for itself
    held_out       each step a random half of the nodes are seeds and the other half targets: none sees its own label
    leave_one_out  each node is scored as if it alone were unlabelled, as Theorem 3 asks; exact for k = 1, 2
    influence      the text, but y_a[c] itself: the intra-class label influence of Theorem 3, which "∝" normalises away
    """
    votes, scored = lpa_votes(transition, nodes, target, num_classes, recipe, key, seeds, rows=nodes)
    kind = {"official": "logits", "influence": "votes"}.get(recipe.loss, "share")
    return mean_cost(votes, target, kind, scored=scored, importance=importance)


def mean_cost(
    rows: Tensor, target: Tensor, kind: str, *, scored: Tensor | None = None, importance: Tensor | None = None
) -> Tensor:
    """The mean over `rows` of J: cross-entropy of "logits", -log of the target's "share" of the votes, or -log of its "votes".

    Args:
        scored: the rows that count, a mask; None for all.
        importance: the weight of each class, [c].
    """
    if scored is None and importance is None and (cost := fused.mean_cost(rows, target, kind, TINY)) is not None:
        return cost
    if kind == "logits":
        costs = F.cross_entropy(rows, target, reduction="none")
    else:
        costs = -(rows.gather(1, target.unsqueeze(1)).squeeze(1) + TINY).log()
        if kind == "share":
            costs = costs + (rows.sum(dim=1) + rows.shape[1] * TINY).log()
    weight = torch.ones_like(costs) if importance is None else importance.index_select(0, target)
    weight = weight if scored is None else weight * scored
    return (costs * weight).sum() / weight.sum().clamp_min(TINY)


def lpa_votes(
    transition: SparseMatrix, nodes: Tensor, target: Tensor, num_classes: int, recipe: Recipe, key: Key | None = None,
    seeds: Seeds | None = None, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Y^(k), what the labels of `nodes` say about every node (or about `rows`) under `recipe.loss`, [n, c]; and which `nodes`
    are scored (None: all).

    `lpa_ratio` thins the seeds, the same ones at every step (Table 3); `held_out` draws its half anew.
    """
    key, scored = key or Key(0), None
    if seeds is None or recipe.loss == "held_out":
        is_seed = random_share(nodes, recipe.lpa_ratio, Key(key.seed), RATIO_LAYER)
        if recipe.loss == "held_out":
            half = random_share(nodes, 0.5, key, SEED_LAYER)
            is_seed, scored = is_seed & half, ~half
        seeds = label_seeds(nodes, target, transition.shape[0], num_classes, is_seed, dtype=transition.dtype)
    if recipe.loss == "leave_one_out":
        return select(leave_one_out_votes(transition, seeds.mass, recipe.lpa_iterations), rows), scored
    votes = propagate_labels(
        transition, seeds.mass, recipe.lpa_iterations, clamp=recipe.loss != "official", labeled=seeds.labeled, rows=rows
    )
    return votes, scored


def label_seeds(
    nodes: Tensor, target: Tensor, num_nodes: int, num_classes: int, is_seed: Tensor, dtype: torch.dtype
) -> Seeds:
    """One-hot rows for those of `nodes` that are seeds, zero rows elsewhere."""
    one_hot = F.one_hot(target, num_classes).to(dtype) * is_seed.unsqueeze(1)
    mass = one_hot.new_zeros(num_nodes, num_classes).index_copy(0, nodes, one_hot)
    return Seeds(mass, torch.zeros(num_nodes, dtype=torch.bool, device=nodes.device).index_copy(0, nodes, is_seed))


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
    comes_back = transition.pattern.row_sum(to_unlabeled * transition.T_values).unsqueeze(
        1
    )  # Σ_j ã_aj ã_ja over unlabelled j
    two_hops = off_diagonal @ torch.where(labeled > 0, seeds, one_hop)
    votes = two_hops - comes_back * seeds + transition.diagonal().unsqueeze(1) * one_hop
    return torch.where(votes > TINY, votes, 0)  # what the subtraction leaves of a vote of zero is rounding


def class_weights(target: Tensor, num_classes: int) -> Tensor:
    """m / (c m_i) for class i with m_i of the m labels: every class weighs the same in the loss, [c]."""
    counts = F.one_hot(target, num_classes).sum(dim=0)  # bincount would wait for the GPU
    return len(target) / (num_classes * counts.clamp_min(1).to(torch.get_default_dtype()))


def drop_edges(transition: SparseMatrix, rate: float, key: Key | None) -> SparseMatrix:
    """A random share of the edges left out and every row brought back to 1; self-loops stay."""
    if key is None or rate == 0:
        return transition
    remaining = transition.with_values(transition.values * kept_edges(transition, rate, key))
    total = transition.pattern.spread_rows(remaining.row_sums())
    return remaining.with_values(remaining.values / torch.where(total > 0, total, 1))  # a row may have lost all


def kept_edges(transition: SparseMatrix, rate: float, key: Key) -> Tensor:
    """Which entries this step keeps, [E]."""
    ones = transition.with_values(torch.ones_like(transition.values))
    return (ones.dropout(rate, key, EDGE_LAYER).values > 0) | (transition.pattern.row == transition.pattern.col)


def initial_weight(rows: int, columns: int, *, init: str, generator: torch.Generator) -> nn.Parameter:
    """Glorot, or uniform in [-1, 1] as in the paper's Figure 7."""
    if init == "uniform":
        return nn.Parameter(torch.rand(rows, columns, generator=generator) * 2 - 1)
    return glorot(rows, columns, generator=generator)
