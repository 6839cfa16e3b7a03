"""GCN-LPA in one file: label propagation, graph convolution, and the loss that joins them.

Equation numbers are those of Wang & Leskovec, "Unifying Graph Convolutional Neural Networks and
Label Propagation" (2020). Symbols: A adjacency with self-loops, M learned positive mask, A* = M ∘ A,
D* = diag(row sums of A*), X features, Y labels, n nodes, c classes, m labelled nodes.

Both halves walk the same matrix, `transition` = D*⁻¹A*. That is the whole idea: labels that travel
well along an edge tell features to travel there too. What exactly Eq. (15) scores has five readings,
in `losses.py`; how strong an edge is has eight forms, in `edges.py`; predictions that walk edges, in `hops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from gcn_lpa.edges import drop_edges, edge_form, initial_weight, strengths, symmetric, symmetric_kinds
from gcn_lpa.engine import fused
from gcn_lpa.engine.class_blocks import added, by_columns, in_class_blocks
from gcn_lpa.engine.counter_random import Key, dropout
from gcn_lpa.engine.fused import accelerated
from gcn_lpa.engine.pooling import row_max
from gcn_lpa.engine.remembered import Remembered
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.hops import Hops, RelationHops
from gcn_lpa.losses import LPA_LOSSES, Labels, Votes, class_weights, cost_weights, labels_of, shared_cost
from gcn_lpa.recipes import Recipe

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in place: a layer needs no copy of what it was before
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@accelerated(fused.propagate)
def propagate_labels(
    transition: SparseMatrix,
    seeds: Tensor,
    iterations: int | None,
    *,
    clamp: bool = True,
    labeled: Tensor | None = None,
    tolerance: float = 1e-6,
) -> Tensor:
    """Spread the labels of a few nodes over the graph, Eqs. (1) and (2).

    Returns Y^(k) *before* the last reset of Eq. (2). On unlabelled nodes nothing changes; on labelled
    nodes it is what their neighbours say about them, which is what Eq. (15) has to score: after the
    reset every labelled node repeats its own label, and the loss is zero whatever the edge weights.

    Args:
        transition: D⁻¹A, [n, n].
        seeds: Y^(0), a row of label mass for labelled nodes (one-hot, soft, or scaled by confidence), zero rows
            elsewhere, [n, c].
        iterations: k, the number of hops a label may travel; None repeats until no entry moves by more than
            `tolerance`, Eq. (4).
        clamp: reset labelled nodes between iterations, Eq. (2). The authors' code does not.
        labeled: the nodes that are reset, [n]; None: those with label mass.
        rows: the nodes whose Y^(k) is wanted, each once, [m]; None, or left out, for all.
    """
    if iterations is None and not clamp:
        raise ValueError("iterations=None needs clamp=True: without Eq. (2) labels may go round in circles for ever")
    labeled = seeds.detach().sum(dim=1) > 0 if labeled is None else labeled
    y, k, moved = seeds, 0, float("inf")
    while k < iterations if iterations is not None else moved > tolerance:
        before = y
        if clamp and k > 0:
            y = torch.where(labeled.unsqueeze(1), seeds, y)  # Eq. (2)
        y = transition @ y  # Eq. (1)
        k += 1
        if iterations is None:
            moved = float((y - before).detach().abs().max()) if y.numel() else 0.0
    return y


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
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...


class Convolutions(nn.Module):
    """X^(k+1) = σ(S X^(k) W^(k)), Eqs. (3) and (16), for the matrix S it is given; the last X holds logits, [n, c].

    With `residual` a node's own x W', with `bias` a constant, and with `layer_norm` a normalisation join in. `aggregation`
    replaces S X W, the sum over neighbours j of s_ij x_j W: "max" takes their maximum in each column, and "concat" is
    [X W' | S X W], twice as wide; its last layer has c columns, X W' + S X W, which is [X | S X] times one matrix, as in
    GraphSAGE (Hamilton et al. 2017). Sum and mean differ in S alone.
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        self.concatenates = recipe.aggregation == "concat"
        width = recipe.hidden * (2 if self.concatenates else 1)
        widths = [graph.num_features, *[width] * (recipe.gcn_layers - 1), graph.num_classes]
        outputs = [*[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        self.shapes = list(zip(widths[:-1], outputs, strict=True))
        self.weights = nn.ParameterList(initial_weight(*s, init=recipe.init, generator=generator) for s in self.shapes)
        self.skips = nn.ParameterList()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:] if recipe.bias)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:-1] if recipe.layer_norm)

    def draw_skips(self, generator: torch.Generator) -> None:
        """Draw the W' of a node's own x, after the edges have drawn theirs: a seed gives the same start with and without them."""
        if self.recipe.residual or self.concatenates:
            new = (initial_weight(*s, init=self.recipe.init, generator=generator) for s in self.shapes)
            self.skips = nn.ParameterList(new)

    @accelerated(fused.convolutions)
    def forward(self, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None) -> Tensor:
        for k in range(len(self.weights)):
            x = self.layer(k, smoothing, x, key)
        return cast(Tensor, x)

    def layers(self, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None) -> list[Tensor]:
        """X^(1) … X^(K)."""
        outputs: list[Tensor] = []
        for k in range(len(self.weights)):
            outputs.append(self.layer(k, smoothing, outputs[-1] if outputs else x, key))
        return outputs

    def layer(self, k: int, smoothing: SparseMatrix, x: Tensor | SparseMatrix, key: Key | None = None) -> Tensor:
        """X^(k+1) of X^(k)."""
        x, width = dropout(x, self.dropout_rate(k), key, layer=k), self.weights[k].shape[1]
        if self.norms or self.concatenates:
            return self.columns(k, smoothing, x, slice(None))
        return by_columns(
            lambda some: self.columns(k, smoothing, x, some), x.shape[0], width, is_gpu=x.device.type == "cuda"
        )

    def columns(self, k: int, smoothing: SparseMatrix, x: Tensor | SparseMatrix, some: slice) -> Tensor:
        """Some columns of X^(k+1)."""
        recipe, is_last = self.recipe, k == len(self.weights) - 1
        z = x @ self.weights[k][:, some]
        h = row_max(smoothing, z) if recipe.aggregation == "max" else smoothing @ z  # Eq. (16)
        h = h.clone() if h is z else h  # the identity times the identity times W is W, which must not change
        del z
        if self.skips:
            own = x @ self.skips[k][:, some]
            h = torch.cat([own, h], dim=1) if self.concatenates and not is_last else added(own, h, x)
        if self.biases:
            h = h.add_(self.biases[k][some])
        if self.norms and not is_last:
            h = self.norms[k](h)
        return ACTIVATIONS[recipe.output_activation if is_last else recipe.activation](h)

    def dropout_rate(self, k: int) -> float:
        recipe = self.recipe
        return recipe.dropout if k > 0 or recipe.feature_dropout is None else recipe.feature_dropout

    @property
    def is_plain(self) -> bool:
        """Whether a layer is Eq. (16), for the matrix it is given, and nothing else."""
        recipe = self.recipe
        extras = recipe.residual or recipe.bias or recipe.layer_norm or recipe.aggregation in ("max", "concat")
        return recipe.activation == "relu" and recipe.output_activation == "identity" and not extras


BODIES: dict[str, Any] = {"layers": Convolutions, "hops": Hops, "relations": RelationHops}  # by `recipe.propagation`


def lpa_votes(transition: SparseMatrix, labels: Labels, recipe: Recipe, key: Key | None = None) -> Votes:
    """Y^(k), what the labels say about the rows of `labels` under `recipe.loss`."""

    def spread(seeds: Tensor, clamp: bool = True) -> Tensor:
        labeled = labels.labeled if seeds is labels.seeds else seeds.sum(dim=1) > 0

        def walk(some: Tensor) -> Tensor:
            return propagate_labels(
                transition, some, recipe.lpa_iterations, clamp=clamp, labeled=labeled, rows=labels.rows
            )

        return in_class_blocks(walk, transition, seeds, recipe.lpa_iterations)

    return LPA_LOSSES[recipe.loss].votes(transition, labels, recipe.lpa_iterations, key or Key(0), spread)


def lpa_loss(
    transition: SparseMatrix, labels: Labels, recipe: Recipe, key: Key | None = None, importance: Tensor | None = None
) -> Tensor:
    """L_lpa: how badly the edges carry the labels to each other, Eq. (15)."""
    mass, scored = lpa_votes(transition, labels, recipe, key)
    weight = cost_weights(labels, importance, scored)
    return shared_cost(mass, labels, LPA_LOSSES[recipe.loss].kind, weight)  # Eq. (15)


def gcn_loss(logits: Tensor, labels: Labels, importance: Tensor | None = None) -> Tensor:
    """L_gcn: the cross-entropy of the rows of `labels`, Eq. (17)."""
    return shared_cost(logits, labels, "logits", cost_weights(labels, importance))  # Eq. (17)


class GCNLPA(nn.Module):
    """A GCN whose edge weights must also carry labels, Section 2.4.

    `graph` is everywhere a graph prepared by the recipe (`recipe.prepare`): self-loops added, features normalised.

    Random bits have a name: the `key` (seed, step) of a training step. In `train()` mode `loss` drops out with the bits of its
    key, so that the same key gives the same loss; in `eval()` mode nothing is dropped, with or without a key. `forward` has no
    key and never drops out.
    """

    mean_degree: Tensor  # of a sum alone

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, body: Any = None) -> None:
        """`body(recipe, graph, generator)` makes the part that turns features into logits along the edges.

        None: that of `recipe.propagation`.
        """
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        self.body: Any = (body or BODIES[recipe.propagation])(recipe, graph, generator)
        self.edges = edge_form(recipe, graph, generator=generator)
        if isinstance(self.body, Convolutions):
            self.body.draw_skips(generator)
        self.stackable = recipe.aggregation != "max"  # see `stacks.is_stackable`
        if recipe.aggregation == "sum":  # of the training graph, also where the model is asked about another
            self.register_buffer("mean_degree", _mean_degree(graph.adjacency))
        self._labels, self._given = Remembered(labels_of), Remembered(_symmetric)

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log A + log M, one number per edge."""
        return graph.adjacency.log().add(self.edges(graph))

    def transition(self, graph: Graph, key: Key | None = None) -> SparseMatrix:
        """D*⁻¹A* with A* = M ∘ A. In logs this is a softmax over each node's neighbours."""
        return drop_edges(self.edge_scores(graph).row_softmax(), self.recipe.edge_dropout, key)

    def smoothing(self, graph: Graph, key: Key | None = None, scores: SparseMatrix | None = None) -> Any:
        """What features walk: `transition` as in the paper, or D*^-½ A* D*^-½ as in Kipf & Welling.

        Where neighbours are not averaged, features walk A* itself: for a maximum as it is, for a sum divided by the mean degree
        of the given graph, one number for all, so that a layer neither grows nor shrinks them much. With kinds of edges they
        walk D^-½ A D^-½ of each kind, as given. `scores` are those of `edge_scores`, where they are known.
        """
        recipe, rate, kind = self.recipe, self.recipe.edge_dropout, self.walked_by_features
        if kind == "kinds":
            return symmetric_kinds(graph, rate, key)
        if kind == "symmetric" and not self.edge_parameters() and not (key is not None and rate):
            return self._given(graph.adjacency.values, graph.adjacency)
        scores = self.edge_scores(graph) if scores is None else scores
        if kind == "symmetric":
            return symmetric(scores, rate, key)
        if kind == "transition":
            return drop_edges(scores.row_softmax(), rate, key)
        strength = strengths(scores)
        return strength if recipe.aggregation == "max" else strength.with_values(strength.values / self.mean_degree)

    @property
    def walked_by_features(self) -> str:
        """Which of the matrices of `smoothing`."""
        recipe = self.recipe
        if recipe.propagation == "relations":
            return "kinds"
        if recipe.aggregation in ("sum", "max"):
            return "strengths"
        return "transition" if recipe.normalization == "row" else "symmetric"

    def walks(self, graph: Graph, key: Key | None = None) -> tuple[SparseMatrix, Any]:
        """What labels walk, `transition`, and what features walk, `smoothing`; edges are scored once."""
        scores = self.edge_scores(graph)
        transition = drop_edges(scores.row_softmax(), self.recipe.edge_dropout, key)
        is_one = self.walked_by_features == "transition"
        return transition, transition if is_one else self.smoothing(graph, key, scores)

    def forward(self, graph: Graph) -> Tensor:
        return cast(Tensor, self.body(self.smoothing(graph), graph.x))

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """L_gcn and L_lpa over the labelled `nodes`, Eqs. (15), (17), (18). Only labels of `nodes` are read.

        Args:
            nodes: their positions, [m], or a boolean mask, [n].
        """
        recipe, bits = self.recipe, key if self.training else None
        labels = self.labels(graph, nodes, key)
        importance = class_weights(labels, graph.num_classes) if recipe.class_weights == "balanced" else None
        has_lpa = recipe.lpa_weight and recipe.lpa_iterations and recipe.lpa_ratio
        transition, smoothing = self.walks(graph, bits) if has_lpa else (None, self.smoothing(graph, bits))
        logits = self.body(smoothing, graph.x, bits, rows=labels.rows)
        gcn = gcn_loss(logits, labels, importance)
        lpa = gcn.new_zeros(()) if transition is None else lpa_loss(transition, labels, recipe, key, importance)
        return Loss(gcn, lpa, recipe.lpa_weight)

    def labels(self, graph: Graph, nodes: Tensor, key: Key | None) -> Labels:
        seed, adjacency = key.seed if key is not None else 0, graph.adjacency
        settings = graph.num_classes, self.recipe.lpa_ratio, seed, adjacency.dtype
        return self._labels(graph.y, nodes, *settings, adjacency.pattern)

    def embed(self, graph: Graph) -> list[tuple[Tensor | SparseMatrix, Tensor]]:
        """(h^(k), x^(k+1)) of every layer: aggregation and transformation, Eqs. (19) to (21)."""
        if self.recipe.aggregation == "max":
            raise ValueError(
                "aggregation 'max' is of transformed features, x W: there is no h before the transformation"
            )
        smoothing = self.smoothing(graph)
        x: Tensor | SparseMatrix = graph.x
        pairs: list[tuple[Tensor | SparseMatrix, Tensor]] = []
        for output in self.body.layers(smoothing, graph.x):
            pairs.append((smoothing.detach().times(x) if isinstance(x, SparseMatrix) else smoothing @ x, output))
            x = output
        return pairs

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        return list(self.body.parameters())


def _mean_degree(adjacency: SparseMatrix) -> Tensor:
    """Σ a_ij / n, 1 where there is no edge; a number of its own, [1]."""
    total = adjacency.values.sum() / max(1, adjacency.shape[0])
    return torch.where(total > 0, total, 1).reshape(1)


def _symmetric(values: Tensor, adjacency: SparseMatrix) -> SparseMatrix:
    return adjacency.symmetric_normalized()
