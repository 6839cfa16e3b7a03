"""GCN-LPA: a graph convolutional network whose edge weights must also carry labels.

Equation numbers are those of Wang & Leskovec, "Unifying Graph Convolutional Neural Networks and Label Propagation" (2020).
Symbols: A adjacency with self-loops, M learned positive mask, A* = M ∘ A, D* = diag(row sums of A*), X features, Y labels, n nodes,
c classes, m labelled nodes.

Both halves walk the same matrix, `transition` = D*⁻¹A*. That is the whole idea: labels that travel well along an edge tell
features to travel there too. How labels travel is in `propagation.py`, how strong an edge is in `edges.py` (nine forms), what
exactly Eq. (15) scores in `losses.py` (five readings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn

from gcn_lpa.edges import edge_form
from gcn_lpa.engine import fused
from gcn_lpa.engine.fused import Remembered
from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix, dropout, glorot
from gcn_lpa.losses import READINGS, Loss, labels_of
from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph


class Body(Protocol):
    """The part of the model that turns features into logits, [n, c], along the matrix it is given.

    `at` are the nodes whose logits are wanted, [m]; None: all. Random bits are those of `key`; without one nothing is dropped.
    """

    def __call__(self, graph: Graph, smoothing: SparseMatrix, key: Key | None = None, at: Tensor | None = None) -> Tensor: ...
    def begin(self, graph: Graph, smoothing: SparseMatrix) -> None:
        """Learn what is learned of columns alone, before the first step."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


class OverNodes(nn.Module):
    """Each column with mean 0 and variance 1 over the nodes of the graph, then scaled and shifted: batch norm without a memory.

    The whole graph is the batch, in training and after, so no running mean is kept.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, pattern: Pattern) -> Tensor:
        variance, mean = pattern.moments(x)
        return (x - mean) * (self.scale * (variance + 1e-5).rsqrt()) + self.shift


class Convolutions(nn.Module):
    """X^(k+1) = σ(S X^(k) W^(k)), Eqs. (3) and (16), along a matrix S; the last X holds logits, [n, c].

    `residual` adds X W' of the node itself, `bias` a constant; `layer_norm` normalises each row of a hidden layer, `batch_norm`
    each column over all nodes.
    """

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.target.width]
        self.weights = nn.ParameterList(glorot(*shape, generator=generator) for shape in pairwise(widths))
        self.skips = nn.ParameterList()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:] if recipe.bias)
        norm = nn.LayerNorm if recipe.layer_norm else OverNodes if recipe.batch_norm else None
        self.norms = nn.ModuleList(norm(width) for width in widths[1:-1] if norm is not None)

    def begin(self, graph: Graph, smoothing: SparseMatrix) -> None: ...

    def forward(self, graph: Graph, smoothing: SparseMatrix, key: Key | None = None, at: Tensor | None = None) -> Tensor:
        recipe, x, last = self.recipe, graph.x, len(self.weights) - 1
        rates = recipe.dropout if recipe.feature_dropout is None else recipe.feature_dropout, recipe.dropout
        if not (recipe.residual or recipe.bias or self.norms):
            faster = fused.relu_layers(smoothing, x, list(self.weights), rates, key, at)
            if faster is not None:
                return faster
        for k, weight in enumerate(self.weights):
            x = dropout(x, rates[min(k, 1)], key, layer=k)
            own, x = (x @ self.skips[k] if self.skips else None), x @ weight  # frees the old x before the product
            x = smoothing @ x  # Eq. (16)
            x = x if own is None else own + x
            if self.biases:
                x = x + self.biases[k]
            if k < last:
                x = (self.normed(k, x, smoothing) if self.norms else x).relu()
        logits = cast(Tensor, x)
        return logits if at is None else logits.index_select(0, at)

    def normed(self, k: int, x: Tensor, smoothing: SparseMatrix) -> Tensor:
        norm = self.norms[k]
        return cast(Tensor, norm(x, smoothing.pattern) if isinstance(norm, OverNodes) else norm(x))


class GCNLPA(nn.Module):
    """A GCN whose edge weights must also carry labels, Section 2.4.

    `graph` is everywhere a graph prepared by the recipe (`recipe.prepare`): self-loops added, features normalised.

    Random bits have a name: the `key` (seed, step) of a training step. In `train()` mode `loss` drops out with the bits of its
    key, so that the same key gives the same loss; in `eval()` mode nothing is dropped, with or without a key. `forward` has no
    key and never drops out.
    """

    def __init__(
        self,
        recipe: Recipe,
        graph: Graph,
        seed: int = 0,
        *,
        body: Callable[[Recipe, Graph, torch.Generator], Body] | None = None,
    ) -> None:
        """`body` makes the part that reads features; None: `Convolutions`."""
        super().__init__()
        if body is None and recipe.propagation != "layers":
            raise ValueError(f"propagation {recipe.propagation!r} needs a body; use METHODS['gcn-lpa'].build")
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        self.capturable, self.stackable = True, recipe.propagation != "columns"  # see `methods.contract.Model`
        self.body: Body = (body or Convolutions)(recipe, graph, generator)
        self.edges = edge_form(recipe, graph, generator=generator)
        if recipe.residual and isinstance(self.body, Convolutions):  # W' after the edges: the same start without them
            skips = (glorot(*weight.shape, generator=generator) for weight in self.body.weights)
            self.body.skips = nn.ParameterList(skips)
        self._labels = Remembered(labels_of)  # the same at every step

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log A + log M, one number per edge."""
        return graph.adjacency.log().add(self.edges(graph))

    def transition(self, graph: Graph, key: Key | None = None, scores: SparseMatrix | None = None) -> SparseMatrix:
        """D*⁻¹A* with A* = M ∘ A. In logs this is a softmax over each node's neighbours."""
        scores = self.edge_scores(graph) if scores is None else scores
        return scores.row_softmax().drop_edges(self.recipe.edge_dropout, key)

    def smoothing(self, graph: Graph, key: Key | None = None, scores: SparseMatrix | None = None) -> SparseMatrix:
        """The matrix that features walk: `transition` as in the paper, or D*^-½ A* D*^-½ as in Kipf & Welling."""
        if not self.edge_parameters() and (key is None or not self.recipe.edge_dropout):
            matrix = graph.adjacency
            return matrix.row_normalized() if self.is_one_walk else matrix.symmetric_normalized()
        if self.is_one_walk:
            return self.transition(graph, key, scores)
        scores = self.edge_scores(graph) if scores is None else scores
        return scores.symmetric_softmax(self.recipe.edge_dropout, key)

    def begin(self, graph: Graph) -> None:
        """Learn what the body learns of columns alone, before the first step."""
        self.body.begin(graph, self.smoothing(graph))

    def forward(self, graph: Graph) -> Tensor:
        return self.body(graph, self.smoothing(graph))

    def outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        """The logits of these nodes alone, [m, c]."""
        return self.body(graph, self.smoothing(graph), None, nodes)

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """L_gcn and L_lpa over the labelled `nodes`, Eqs. (15), (17), (18). Only labels of `nodes` are read.

        Args:
            nodes: their positions, [m], or a boolean mask, [n].
        """
        recipe, bits, key = self.recipe, key if self.training else None, key or Key(0)
        labels = self._labels(recipe, graph, nodes, key.seed, key.rows)
        has_lpa = recipe.lpa_weight and recipe.lpa_iterations and recipe.lpa_ratio
        scores = self.edge_scores(graph) if has_lpa else None  # shared by both walks
        transition = None if scores is None else self.transition(graph, bits, scores)
        smoothing = transition if transition is not None and self.is_one_walk else self.smoothing(graph, bits, scores)
        gcn = labels.mean_cost(self.body(graph, smoothing, bits, labels.nodes), "logits")  # Eq. (17)
        if transition is None:
            return Loss(gcn, gcn.new_zeros(()), recipe.lpa_weight)
        lpa = READINGS[recipe.loss](transition, labels, recipe.lpa_iterations, key)  # Eq. (15)
        return Loss(gcn, lpa, recipe.lpa_weight)

    @property
    def is_one_walk(self) -> bool:
        """Whether features walk the matrix that labels walk."""
        return self.recipe.normalization == "row"

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        return list(self.body.parameters())
