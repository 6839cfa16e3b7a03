"""Networks that we write ourselves: JK-Net, Correct & Smooth, label input, GRAND; and PyTorch Geometric's GAT and GraphSAGE."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout, glorot, random_share
from gcn_lpa.losses import SEED_LAYER, Labels, Loss, labels_of
from gcn_lpa.methods.contract import OnGivenEdges
from gcn_lpa.methods.hops import Perceptron, personalized
from gcn_lpa.methods.label_propagation import LEAST, known_labels
from gcn_lpa.model import GCNLPA, Convolutions

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.recipes import Recipe


NODE_DROPOUT, DRAWS, TEMPERATURE = 0.5, 2, 0.5  # of GRAND; its own code takes 2 to 4 draws, temperatures of 0.2 to 0.5
ENOUGH = 20  # labels a class from which on GRAND's draws must agree with full weight


class Network(OnGivenEdges):
    """A network on fixed edges, `forward(graph, key)`, and its cross-entropy on the labelled nodes."""

    recipe: Recipe
    capturable = stackable = True

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """As in GCNLPA: the random bits of `key` are used in `train()` mode only."""
        labels = labels_of(self.recipe, graph, nodes)
        return self.cost(labels.of(self(graph, key if self.training else None)), labels)

    def cost(self, logits: Tensor, labels: Labels, scored: Tensor | None = None) -> Loss:
        cost = labels.mean_cost(logits, "logits", scored)
        return Loss(cost, cost.new_zeros(()), 0.0)

    def weight_parameters(self) -> list[nn.Parameter]:
        return list(self.parameters())


class JKNet(Network):
    """Graph convolutions on D^-½AD^-½ whose outputs are all joined for the last layer, Xu et al. (2018), concat."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        widths = [graph.num_features, *[recipe.hidden] * recipe.gcn_layers]
        self.weights = nn.ParameterList(glorot(*shape, generator=generator) for shape in pairwise(widths))
        self.join = glorot(recipe.gcn_layers * recipe.hidden, graph.target.width, generator=generator)
        self.bias = nn.Parameter(torch.zeros(graph.target.width))

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
        smoothing, x, outputs = graph.adjacency.symmetric_normalized(), graph.x, []
        for k, weight in enumerate(self.weights):
            x = dropout((smoothing @ (x @ weight)).relu(), self.recipe.dropout, key, layer=k)
            outputs.append(x)
        return torch.cat(outputs, dim=1) @ self.join + self.bias


class CorrectAndSmooth(Network):
    """A perceptron whose errors on the labelled nodes, then its predictions, travel along edges, Huang et al. (2021).

    The epoch is chosen by the validation accuracy of the result.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe
        self.perceptron = Perceptron(recipe, graph, torch.Generator().manual_seed(seed))

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        """The perceptron alone is trained. It reads no edge: of dense features the rows of the labelled nodes suffice."""
        labels, bits = labels_of(self.recipe, graph, nodes), key if self.training else None
        if labels.nodes is None or not isinstance(graph.x, Tensor):
            return self.cost(labels.of(self.perceptron(graph.x, bits)), labels)
        bits = None if bits is None else bits._replace(rows=labels.ids(bits))
        return self.cost(self.perceptron(labels.of(graph.x), bits), labels)

    def forward(self, graph: Graph) -> Tensor:
        guess = F.softmax(self.perceptron(graph.x), dim=1)
        return correct_and_smooth(graph.adjacency.symmetric_normalized(), guess, known_labels(graph), self.recipe)


def correct_and_smooth(smoothing: SparseMatrix, guess: Tensor, truth: Tensor, recipe: Recipe) -> Tensor:
    """Log-probabilities after both steps, [n, c]; corrections have the mean size of the training errors ("autoscale").

    Args:
        guess: the base predictor's distributions.
        truth: one-hot rows of the training nodes, zero rows elsewhere.
    """
    labeled = truth.sum(dim=1, keepdim=True) > 0
    error = torch.where(labeled, truth - guess, 0.0)
    spread = personalized(smoothing, error, recipe, (-1.0, 1.0))
    total, size = smoothing.pattern.total, spread.abs().sum(dim=1, keepdim=True)
    mean = total(error.abs().sum()) / total(labeled.sum()).clamp_min(1)
    far = size * 1000 <= mean  # hardly any error arrives: their code leaves such nodes unscaled
    corrected = guess + spread * torch.where(far, 1.0, mean / torch.where(far, 1.0, size))
    smoothed = personalized(smoothing, torch.where(labeled, truth, corrected), recipe, (0.0, 1.0)) + LEAST
    return (smoothed / smoothed.sum(dim=1, keepdim=True)).log()


class LabelInput(Network):
    """A GCN that also reads labels: X^(1) = σ(S (X W + Y V)), masked as in UniMP, Shi et al. (2021).

    At each step the labels of a random `label_rate` of the training nodes are input and the others are scored, so none is
    trained on its own label. To predict, all labels are input.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.gcn = recipe, GCNLPA(recipe, graph, seed)
        generator, width = torch.Generator().manual_seed(seed + 1), self.weights[0].shape[1]
        self.label_weight = glorot(graph.target.width, width, generator=generator)

    @property
    def weights(self) -> nn.ParameterList:
        return cast(Convolutions, self.gcn.body).weights

    def smoothing(self, graph: Graph) -> SparseMatrix:
        return self.gcn.smoothing(graph)

    def forward(self, graph: Graph) -> Tensor:
        return self.reading(graph, known_labels(graph), None)

    def reading(self, graph: Graph, shown: Tensor, key: Key | None) -> Tensor:
        """The logits where the labels `shown` are input, [n, c]."""
        smoothing, weights = self.gcn.smoothing(graph), self.weights
        x: Any = graph.x
        for k, weight in enumerate(weights):
            z = dropout(x, self.recipe.dropout, key, layer=k) @ weight
            h = smoothing @ (z + shown @ self.label_weight if k == 0 else z)
            x = h if k == len(weights) - 1 else h.relu()
        return cast(Tensor, x)

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        labels, bits = labels_of(self.recipe, graph, nodes), key or Key(0)
        shows = random_share(labels.ids(bits), self.recipe.label_rate, bits, SEED_LAYER)
        logits = self.reading(graph, labels.only(shows), key if self.training else None)
        return self.cost(labels.of(logits), labels, ~shows)


class GRAND(Network):
    """A perceptron whose first layer reads the mean of several hops from a random half of the nodes, Feng et al. (2020).

    h = σ(1/(K + 1) Σ_k S^k (m ∘ x W) + b), k = 0 … K, where m drops whole nodes while training. Two draws of m must agree on all
    nodes: each is held to their sharpened mean, with a weight that grows with the number of labels, up to 1 at 20 a class. Hops
    follow the product with W, which leaves the sum as it is and sparse x sparse.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        widths = [graph.num_features, recipe.hidden, graph.target.width]
        self.weights = nn.ParameterList(glorot(*shape, generator=generator) for shape in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])

    def forward(self, graph: Graph, key: Key | None = None, draw: int = 0) -> Tensor:
        smoothing = graph.adjacency.symmetric_normalized()
        rate, steps = self.recipe.dropout, self.recipe.propagation_steps
        z = dropout(graph.x, rate, key, layer=3 * draw) @ self.weights[0]
        z = z * dropout(z.new_ones(len(z), 1), NODE_DROPOUT, key, layer=3 * draw + 1)
        total = z
        for _ in range(steps):
            z = smoothing @ z
            total = total + z
        h = (total / (steps + 1) + self.biases[0]).relu()
        logits: Tensor = dropout(h, rate, key, layer=3 * draw + 2) @ self.weights[1] + self.biases[1]
        return logits

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        labels, bits = labels_of(self.recipe, graph, nodes), key if self.training else None
        draws = [self(graph, bits, draw) for draw in range(DRAWS)]
        cost = torch.stack([labels.mean_cost(labels.of(logits), "logits") for logits in draws]).mean()
        shares = torch.stack([F.softmax(logits, dim=1) for logits in draws])
        goal = F.softmax(shares.mean(dim=0).clamp_min(LEAST).log() / TEMPERATURE, dim=1).detach()
        gap = (shares - goal).square().sum(dim=2).mean()
        weight = torch.ones_like(labels.target, dtype=cost.dtype) if labels.weight is None else labels.weight
        number = weight.sum()
        if labels.total is not None:  # each process has its share of the mean
            gap = gap * (len(goal) / labels.total(gap.new_tensor(len(goal))))
            number = labels.total(number)
        trust = (number / (ENOUGH * graph.target.width)).clamp_max(1.0)
        return Loss(cost + trust * gap, cost.new_zeros(()), 0.0)


class GATNetwork(Network):
    """PyG's GATConv, Velickovic et al. (2018); the first X W is our product, as PyG refuses a sparse X."""

    capturable = stackable = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        conv, self.recipe = pyg_layers("gat").GATConv, recipe
        hidden = [(recipe.hidden, recipe.heads)] * (recipe.gcn_layers - 1)
        width, convs = graph.num_features, []
        with random_bits(torch.device("cpu"), seed):
            for out, heads in [*hidden, (graph.target.width, 1)]:
                convs.append(conv(width, out, heads=heads, dropout=recipe.dropout, add_self_loops=False))
                width = out * heads
        self.convs, self.project = nn.ModuleList(convs), convs[0].lin
        convs[0].lin = nn.Identity()  # its input is x W already

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
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

    capturable = stackable = False

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        conv, self.recipe = pyg_layers("graphsage").SAGEConv, recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.target.width]
        with random_bits(torch.device("cpu"), seed):
            self.convs = nn.ModuleList(conv(*shape, aggr="mean") for shape in pairwise(widths))

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
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
