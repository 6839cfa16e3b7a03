"""For users of PyTorch Geometric: the LPA loss as a regulariser for any PyG model.

`edge_index` is PyG's: source above target, [2, E]. Messages are summed at the target, so it is the weights of the edges
into a node that sum to 1. Nothing here needs PyG itself.
"""

from __future__ import annotations

from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.data.checks import check_task, node_mask
from gcn_lpa.engine.fused import Remembered
from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import READINGS, labels_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.target import Classes, Target


class LPARegularizer(nn.Module):
    """Learned edge weights, and how badly they carry labels, Eq. (15), for any PyG model whose layers take edge_weight.

    ```
    weight = regularizer(edge_index, x)
    out = net(x, edge_index, weight)
    loss = cross_entropy(out[train], y[train]) + λ * regularizer.loss(edge_index, weight, y, train)
    ```
    The weights are D*⁻¹A*. They are the paper's if edge_index has self-loops (`add_remaining_self_loops`) and the
    layers neither add nor normalise, as in `GCNConv(..., normalize=False)`.
    """

    step: Tensor

    def __init__(
        self,
        edges: int | nn.Module,
        *,
        loss: str = "leave_one_out",
        iterations: int = 1,
        ratio: float = 1.0,
        num_classes: int | None = None,
        task: str = "classification",
        seed: int = 0,
        net: nn.Module | None = None,
    ) -> None:
        """Make the weights of the edges.

        Args:
            edges: the number of edges, for one free weight each, or an edge form of `gcn_lpa.edges`, such as AGNN.
            loss: official, literal, held_out, leave_one_out or influence: see `gcn_lpa.losses`.
            iterations: the number of hops a label may travel.
            ratio: the share of the labelled nodes whose labels travel.
            num_classes: without it, one more than the highest label that is scored; matters for `official` alone.
            task: "regression" where y holds numbers: the loss is the mean square of what votes are off, in spreads of the numbers.
            seed: of the choices that `held_out` and `ratio` make.
            net: the PyG model that is to read the weights; refused if it has a layer that ignores them.
        """
        super().__init__()
        if net is not None:
            require_weights(net)
        if isinstance(edges, bool) or not isinstance(edges, int | nn.Module):
            raise TypeError(
                f"edges = {edges!r:.40}; it is the number of edges, for a free weight each, or a module of gcn_lpa.edges, "
                "such as AGNN(num_features, rank=8, generator=torch.Generator())"
            )
        if iterations < 1:
            raise ValueError(f"iterations = {iterations}; a label travels at least 1 hop, or no weight is learned")
        self.form = None if isinstance(edges, int) else edges
        self.weight = nn.Parameter(torch.zeros(edges)) if isinstance(edges, int) else None
        self.recipe = Recipe(loss=loss, lpa_iterations=iterations, lpa_ratio=ratio)
        check_task(task)
        self.num_classes, self.task, self.seed, self.layout = num_classes, task, seed, Remembered(layout_of)
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))  # names the random bits of `loss`

    def forward(
        self,
        edge_index: Tensor,
        x: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
    ) -> Tensor:
        """The weight of each edge: positive, those into a node sum to 1, [E].

        Args:
            x: node features, for an edge form that reads them.
            edge_weight: what the learned factor multiplies, positive; 1 without.
        """
        highest = int(edge_index.max()) if x is None and edge_index.numel() else -1
        layout = self.layout(edge_index, num_nodes or (highest + 1 if x is None else x.shape[0]))
        if edge_weight is None:
            edge_weight = torch.ones_like(layout.order, dtype=torch.float32 if x is None else x.dtype)
        if edge_weight.shape != layout.place.shape:
            problem = f"not one weight for {len(layout.place)} edges"
            raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)}, {problem}")
        if not (edge_weight > 0).all():
            edge = int((~(edge_weight > 0)).nonzero()[0])
            raise ValueError(f"edge {edge} has weight {float(edge_weight[edge]):g}; weights are positive")
        adjacency = SparseMatrix(layout.pattern, edge_weight.index_select(0, layout.order))
        if self.form is not None:
            if x is None:
                raise ValueError("an edge form reads the features of the nodes: call the regulariser with x too")
            unknown = torch.full((adjacency.shape[0],), -1, device=adjacency.device)
            log_mask = self.form(Graph(adjacency, features_of(x), unknown))
        else:
            assert self.weight is not None
            if len(self.weight) != len(layout.place):
                raise ValueError(
                    f"there is a free weight for each of {len(self.weight)} edges, but edge_index has "
                    f"{len(layout.place)}; where edges change, use an edge form of gcn_lpa.edges, such as AGNN"
                )
            log_mask = self.weight.index_select(0, layout.order)
        return adjacency.log().add(log_mask).row_softmax().values.index_select(0, layout.place)

    def loss(self, edge_index: Tensor, edge_weight: Tensor, y: Tensor, labeled: Tensor) -> Tensor:
        """Eq. (15) under the weights that `forward` gave; `labeled` is a mask or an index, no other label is read."""
        is_number = self.task == "regression"
        for name, given in (("labeled", labeled), *(() if is_number else (("y", y),))):
            if given.is_floating_point():
                wanted = "a mask of True and False, or positions"
                if name == "y":
                    wanted = "whole numbers, such as y.long(), or task='regression' where they are numbers to predict"
                raise TypeError(f"{name} is {given.dtype}; it takes {wanted}")
        if labeled.dtype != torch.bool or labeled.shape != y.shape:
            node_mask(labeled, len(y), "labeled")
        layout = self.layout(edge_index, len(y))
        nodes = labeled.nonzero().squeeze(1) if labeled.dtype == torch.bool else labeled
        transition = SparseMatrix(layout.pattern, edge_weight.index_select(0, layout.order))
        key = Key(self.seed, self.step.clone())  # a copy: the backward pass may ask for the same bits
        self.step += self.training
        target: Target
        if is_number:
            known = y.index_select(0, nodes).double()
            mean, spread = float(known.mean()), float(known.std(correction=0)) or 1.0
            low, high = ((float(end) - mean) / spread for end in known.aminmax())
            target = Numbers(mean, spread, low, max(high, low + 1))
            y = target.translated(y.double(), Numbers())
        else:
            target = Classes(tuple(map(str, range(self.num_classes or int(y.index_select(0, nodes).max()) + 1))))
        graph = Graph(transition, features_of(edge_weight.new_zeros(len(y), 0)), y, target.names, numbers=target.scale)
        labels = labels_of(self.recipe, graph, nodes, self.seed)
        return READINGS[self.recipe.loss](transition, labels, self.recipe.lpa_iterations, key)


def require_weights(net: nn.Module) -> None:
    """Refuse a PyG model with a layer that takes no edge_weight: learned weights would not reach it."""
    layers = [(name, layer) for name, layer in net.named_modules() if hasattr(layer, "propagate")]
    if not layers:
        raise ValueError(f"{type(net).__name__} has no layer of PyTorch Geometric that could read edge weights")
    for name, layer in layers:
        if "edge_weight" not in signature(layer.forward).parameters:
            raise ValueError(
                f"layer {name or 'net'} is a {type(layer).__name__}, which takes no edge_weight: learned weights would not "
                "reach it; GCNConv(…, normalize=False) and GraphConv do"
            )


class Layout(NamedTuple):
    """Where the edges of an edge_index are in a matrix with a row for each target."""

    pattern: Pattern
    order: Tensor  # entry k of the matrix is edge order[k], [E]
    place: Tensor  # edge e is entry place[e], [E]


def layout_of(edge_index: Tensor, num_nodes: int) -> Layout:
    """Sort the edges by target and source; refuse what is no list of different edges."""
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or len(edge_index) != 2:
        raise TypeError(f"edge_index is a tensor [2, E] of sources and targets, not {type(edge_index).__name__}")
    num_edges = edge_index.shape[1]
    if num_edges and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        first, last = map(int, edge_index.aminmax())
        raise ValueError(f"edge_index names nodes {first}..{last} of {num_nodes} nodes")
    code, order = (edge_index[1] * num_nodes + edge_index[0]).sort()
    if (code[1:] == code[:-1]).any():
        twice = int(code[1:][code[1:] == code[:-1]][0])
        raise ValueError(f"edge_index has {twice % num_nodes} → {twice // num_nodes} twice; coalesce it first")
    ends = torch.bincount(edge_index[1], minlength=num_nodes).cumsum(0)
    pattern = Pattern(F.pad(ends, (1, 0)), edge_index[0].index_select(0, order), (num_nodes, num_nodes))
    return Layout(pattern, order, order.argsort())


def features_of(x: Tensor) -> Tensor | SparseMatrix:
    """x itself, or our form of a sparse tensor."""
    if x.layout == torch.strided:
        return x
    entries = x.to_sparse(layout=torch.sparse_coo).coalesce().cpu()
    row, col = entries.indices()
    return SparseMatrix.from_coo(row, col, entries.values(), (x.shape[0], x.shape[1])).to(x.device)
