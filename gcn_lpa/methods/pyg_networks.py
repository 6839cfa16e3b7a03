"""PyTorch Geometric's layers with the interface of our own models: GAT and GraphSAGE."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.engine.random import Key, dropout
from gcn_lpa.graph import Graph
from gcn_lpa.methods.networks import Network
from gcn_lpa.recipes import Recipe


class GATNetwork(Network):
    """PyG's GATConv, Velickovic et al. (2018); the first X W is our own product, as PyG refuses a sparse X."""

    stackable = False
    capturable = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        conv, self.recipe = pyg_layers("gat").GATConv, recipe
        hidden = [(recipe.hidden, recipe.heads)] * (recipe.gcn_layers - 1)
        width, convs = graph.num_features, []
        with random_bits(torch.device("cpu"), seed):
            for out, heads in [*hidden, (graph.num_classes, 1)]:
                convs.append(conv(width, out, heads=heads, dropout=recipe.dropout, add_self_loops=False))
                width = out * heads
        self.convs, self.project = nn.ModuleList(convs), convs[0].lin
        convs[0].lin = nn.Identity()  # its input is x W already

    def logits(self, graph: Graph, key: Key | None = None) -> Tensor:
        edges = edge_index(graph)
        x = dropout(graph.x, self.recipe.dropout, key, layer=0) @ self.project.weight.T
        for k, conv in enumerate(self.convs):
            x = x if k == 0 else dropout(F.elu(x), self.recipe.dropout, key, layer=k)
            with random_bits(graph.device, *(key or Key(0))[:2], k):  # of the attention's dropout
                x = conv.train(key is not None)(x, edges)
        return cast(Tensor, x)


class GraphSAGENetwork(Network):
    """PyG's SAGEConv with the mean of all neighbours, unweighted, Hamilton et al. (2017); no sampling.

    Sparse features are multiplied first: W mean(x) = mean(W x).
    """

    stackable = False
    capturable = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        conv, self.recipe = pyg_layers("graphsage").SAGEConv, recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        with random_bits(torch.device("cpu"), seed):
            self.convs = nn.ModuleList(conv(*shape, aggr="mean") for shape in pairwise(widths))

    def logits(self, graph: Graph, key: Key | None = None) -> Tensor:
        edges, first = edge_index(graph), cast(Any, self.convs[0])
        x = dropout(graph.x, self.recipe.dropout, key, layer=0)
        mean = first.propagate(edges, x=(x @ first.lin_l.weight.T, None), size=(graph.num_nodes,) * 2)
        x = mean + first.lin_l.bias + x @ first.lin_r.weight.T
        for k, conv in enumerate(self.convs[1:], start=1):
            x = conv(dropout(x.relu(), self.recipe.dropout, key, layer=k), edges)
        return cast(Tensor, x)


def pyg_layers(method: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PyG's own affair with torch.jit
            import torch_geometric.nn
    except ImportError as error:
        raise ImportError(f'method {method!r} needs PyTorch Geometric: pip install "gcn-lpa[pyg]"') from error
    return torch_geometric.nn


def edge_index(graph: Graph) -> Tensor:
    """PyG's form of the edges: source above target, [2, E]."""
    return torch.stack([graph.col, graph.row]).long()


@contextlib.contextmanager
def random_bits(device: torch.device, *name: int | Tensor) -> Iterator[None]:
    """Give torch's global generators the bits of this name inside the block, and leave them as they were."""
    numbers = ",".join(str(int(number)) for number in name)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(numbers.encode()).digest()[:7], "big"))
        yield
