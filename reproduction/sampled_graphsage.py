"""GraphSAGE as its paper trains it: mini-batches, and a few random neighbours of each node (Hamilton et al. 2017).

A sample is an approximation: the mean of a few neighbours for the mean of all, other ones at each step. To predict, and to
validate, every layer is computed for the whole graph from all neighbours, which is exact and takes no more than two
layers of memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix, dropout, glorot
from gcn_lpa.graph import Graph
from gcn_lpa.losses import Loss, labels_of
from gcn_lpa.methods.networks import Network
from gcn_lpa.recipes import MOST
from reproduction.recipes import StudyRecipe
from reproduction.sampling import sample_neighbours

MOST_DRAWN = 1000  # neighbours of a node: drawing them takes the square of it
SAMPLE_LAYER = 1100  # random bits that are not a layer's dropout


class LayerSample(NamedTuple):
    """What one layer reads: the mean over the sampled neighbours, of rows of the nodes `sources`."""

    mean: SparseMatrix  # [targets, sources]
    sources: Tensor  # ascending
    own: Tensor  # where the targets themselves are among the sources


class SampledGraphSAGE(Network):
    """X^(k+1) = σ(mean over neighbours of X^(k) W^(k) + X^(k) V^(k) + b^(k)), with a sample of them in training.

    `recipe.samples` has a number for each layer, as the paper's S₁ and S₂: 25 for the first, 10 for the last. Of the last
    layer a node of the batch reads 10 neighbours, and each of these reads 25. A node with fewer has all of them; the
    authors' code draws some twice.
    """

    stackable = False
    capturable = False

    def __init__(self, recipe: StudyRecipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        self.sizes = sample_sizes(recipe)
        widths = [graph.num_features, *[recipe.hidden] * (len(self.sizes) - 1), graph.num_classes]
        shapes = list(pairwise(widths))
        self.weights, self.own = (nn.ParameterList(glorot(*shape, generator=generator) for shape in shapes) for _ in range(2))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
        """The logits of all nodes, from all their neighbours, layer by layer."""
        mean, x = mean_matrix(graph.pattern).to(graph.adjacency.dtype), cast(Any, graph.x)
        for k in range(len(self.weights)):
            x = self.layer(k, mean, x, x)
        return cast(Tensor, x)

    def layer(self, k: int, mean: SparseMatrix, x: Any, own: Any) -> Tensor:
        h = mean @ (x @ self.weights[k]) + own @ self.own[k] + self.biases[k]
        return cast(Tensor, h if k == len(self.weights) - 1 else h.relu())

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """From samples in `train()` mode, with the bits of `key`; else exact."""
        if not self.training or key is None:
            return super().loss(graph, nodes, key)
        return self.cost(self.sampled(graph, nodes, key), labels_of(self.recipe, graph, nodes))

    def sampled(self, graph: Graph, nodes: Tensor, key: Key) -> Tensor:
        """Logits of some nodes, positions, from samples of their neighbours, with dropout, [m, c]."""
        blocks = sampled_blocks(graph.pattern, nodes, self.sizes, key)
        x: Any = selected_rows(graph.x, blocks[0].sources)
        for k, block in enumerate(blocks):
            x = dropout(x, self.recipe.dropout, key, layer=k, rows=block.sources)
            x = self.layer(k, block.mean.to(x.dtype), x, selected_rows(x, block.own))
        return cast(Tensor, x)


def sample_sizes(recipe: StudyRecipe) -> list[int]:
    """Of `recipe.samples`, a whole number above 0 for each layer, which says how many layers there are."""
    words = recipe.samples.split()
    if not 1 <= len(words) <= MOST["gcn_layers"]:
        raise ValueError(f"recipe: samples = {recipe.samples!r:.40}; it has a number of neighbours for each layer, such as '25 10'")
    for word in words:
        if not (word.isdecimal() and 1 <= int(word[:9]) <= MOST_DRAWN and len(word) < 9):
            raise ValueError(f"recipe: samples has {word!r:.40}; it is a number of neighbours, 1 to {MOST_DRAWN:,}")
    return [int(word) for word in words]


def sampled_blocks(rows: Pattern, nodes: Tensor, sizes: list[int], key: Key) -> list[LayerSample]:
    """What each layer reads so that the last one knows the `nodes`, the first layer first."""
    blocks: list[LayerSample] = []
    for k in reversed(range(len(sizes))):
        drawn = sample_neighbours(rows, nodes, sizes[k], key, SAMPLE_LAYER + k)
        sources = torch.cat([nodes, drawn.col.to(nodes.dtype)]).unique()
        col, own = (torch.searchsorted(sources, ids) for ids in (drawn.col.to(nodes.dtype), nodes))
        pattern = Pattern(drawn.rowptr, col, (len(nodes), len(sources)))
        blocks.insert(0, LayerSample(mean_matrix(pattern), sources, own))
        nodes = sources
    return blocks


def mean_matrix(pattern: Pattern) -> SparseMatrix:
    """The mean over the entries of each row, unweighted."""
    return SparseMatrix(pattern, torch.ones(pattern.num_entries, device=pattern.device)).row_normalized()


def selected_rows(x: Any, rows: Tensor) -> Any:
    """Some rows of a dense or constant sparse matrix."""
    if isinstance(x, Tensor):
        return x.index_select(0, rows)
    rowptr = x.pattern.rowptr.long()
    start, length = rowptr.index_select(0, rows), rowptr.diff().index_select(0, rows)
    ends = length.cumsum(0)
    at = torch.arange(int(length.sum()), device=rows.device) + torch.repeat_interleave(start - ends + length, length)
    pattern = Pattern(torch.cat([ends.new_zeros(1), ends]), x.pattern.col.index_select(0, at), (len(rows), x.shape[1]))
    return SparseMatrix(pattern, x.values.index_select(0, at))
