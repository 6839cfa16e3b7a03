"""The paper's baselines (Section 4.2), adaptive LPA (Section 3.2) and today's rivals, behind the same door as GCN-LPA.

A model gives `model(graph)`, logits or log-probabilities, [n, c], and learns in one of two ways: `train.fit` follows
the gradient of `loss(graph, nodes, key)`, or `fit_directly(graph, nodes)` learns at once. Both read the labels of
`nodes` and no others. All that is learned is in parameters and buffers, so that a file of tensors can hold it; models
that need labels to predict keep those of `nodes` in the buffer `known`.

`graph` is everywhere a graph prepared by the recipe of the method.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.edges import edge_form
from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix, dropout, random_share
from gcn_lpa.graph import Graph
from gcn_lpa.model import (
    GCNLPA,
    SEED_LAYER,
    TINY,
    Loss,
    class_weights,
    initial_weight,
    lpa_loss,
    propagate_labels,
)
from gcn_lpa.recipes import DEFAULT, Recipe

LEAST = 1e-12  # probability, so that zero has a logarithm
UNSEEN = -1e4  # logit of a class that no training node has: its probability is 0 and its loss finite
BLOCK = 1 << 24  # numbers in a dense block of feature columns, 64 MB


class FeaturesOnly(nn.Module):
    """scikit-learn's logistic regression or, with `hidden` layers, perceptron; it looks at no edge.

    Of the recipe only `features` and, for MLP, `hidden` and `epochs` apply; all else is the package's default. It is
    trained until scikit-learn stops, after 100 (LR) or `epochs` (MLP) iterations at most: validation has no say. The
    coefficients are copied into buffers.
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.recipe, self.seed, self.hidden = recipe, seed, hidden
        for k, shape in enumerate(pairwise([graph.num_features, *hidden, graph.num_classes])):
            self.register_buffer(f"weight{k}", torch.zeros(shape))
            self.register_buffer(f"bias{k}", torch.zeros(shape[1]))

    def estimator(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        if self.hidden:
            return MLPClassifier(hidden_layer_sizes=self.hidden, max_iter=self.recipe.epochs, random_state=self.seed)
        return LogisticRegression(solver="lbfgs", random_state=self.seed)

    def fit_directly(self, graph: Graph, nodes: Tensor) -> None:
        x, y = feature_rows(graph, nodes), graph.y.index_select(0, nodes).cpu().numpy()
        for k, (weight, bias) in enumerate(affine_layers(self.estimator(), x, y, graph.num_classes, len(self.hidden))):
            self.get_buffer(f"weight{k}").copy_(torch.from_numpy(weight))
            self.get_buffer(f"bias{k}").copy_(torch.from_numpy(bias))

    def forward(self, graph: Graph) -> Tensor:
        x = graph.x @ self.get_buffer("weight0") + self.get_buffer("bias0")
        for k in range(1, len(self.hidden) + 1):
            x = x.relu() @ self.get_buffer(f"weight{k}") + self.get_buffer(f"bias{k}")
        return x


def feature_rows(graph: Graph, nodes: Tensor) -> Any:
    """The features of `nodes` for scikit-learn, sparse where they are."""
    rows = nodes.cpu().numpy()
    return graph.x.to_scipy()[rows] if isinstance(graph.x, SparseMatrix) else graph.x.cpu().numpy()[rows]


def affine_layers(
    estimator: Any, x: Any, y: np.ndarray, num_classes: int, num_hidden: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W, b) of each layer of a scikit-learn classifier fitted to the classes in y; all others are UNSEEN."""
    from sklearn.exceptions import ConvergenceWarning

    seen = np.unique(y)
    bias = np.full(num_classes, UNSEEN)
    bias[seen] = 0
    if len(seen) == 1:  # scikit-learn refuses; the answer is that class
        return [*[(np.zeros(()), np.zeros(()))] * num_hidden, (np.zeros(()), bias)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # that it stops at the package's default is its recipe
        estimator.fit(x, y)
    weights, biases = (
        (estimator.coefs_, estimator.intercepts_) if num_hidden else ([estimator.coef_.T], [estimator.intercept_])
    )
    columns = seen[-1:] if len(seen) == 2 else seen  # two classes: one column, the log-odds of the second
    weight = np.zeros((len(weights[-1]), num_classes))
    weight[:, columns], bias[columns] = weights[-1], biases[-1]
    return [*zip(weights[:-1], biases[:-1], strict=True), (weight, bias)]


class LabelPropagation(nn.Module):
    """LPA along the edges as they are, Eqs. (1) and (2)."""

    known: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe = recipe
        self.register_buffer("known", torch.full((graph.num_nodes,), -1))

    def fit_directly(self, graph: Graph, nodes: Tensor) -> None:
        self.known.copy_(labels_of(graph, nodes))

    def forward(self, graph: Graph) -> Tensor:
        transition = graph.adjacency.row_normalized()
        return label_distributions(transition, one_hot(self.known, graph), self.recipe.propagation_steps).log()


def labels_of(graph: Graph, nodes: Tensor) -> Tensor:
    """The labels of `nodes`, -1 elsewhere, [n]."""
    return torch.full_like(graph.y, -1).index_copy(0, nodes, graph.y.index_select(0, nodes))


def one_hot(known: Tensor, graph: Graph) -> Tensor:
    """A row of mass 1 for each known label, zero rows elsewhere, [n, c]."""
    if len(known) != graph.num_nodes:
        raise ValueError(
            f"this model keeps the labels of the {len(known)} nodes it was trained on, but the graph has "
            f"{graph.num_nodes}; train it on that graph, or use a method without labels as input, such as gcn"
        )
    return F.one_hot(known.clamp_min(0), graph.num_classes).float() * (known >= 0).unsqueeze(1)


def label_distributions(transition: SparseMatrix, seeds: Tensor, iterations: int) -> Tensor:
    """What LPA predicts, each row a distribution, [n, c]; a node that no label has reached gets the seeds' shares."""
    mass = propagate_labels(transition, seeds, iterations)
    mass = torch.where(seeds.sum(dim=1, keepdim=True) > 0, seeds, mass)  # Eq. (2)
    total, prior = mass.sum(dim=1, keepdim=True), seeds.sum(dim=0) + LEAST
    reached = total > 0
    return torch.where(reached, mass / torch.where(reached, total, 1.0), prior / prior.sum()).clamp_min(LEAST)


class AdaptiveLPA(nn.Module):
    """LPA along edges that are learned for LPA alone (Section 3.2), by one of CRITERIA."""

    known: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0, *, criterion: str = "labels") -> None:
        super().__init__()
        self.recipe, self.criterion, generator = recipe, criterion, torch.Generator().manual_seed(seed)
        self.edges = edge_form(
            recipe.edges, graph, rank=recipe.edge_rank, init=recipe.edge_init, symmetric=recipe.symmetric_edges,
            generator=generator,
        )  # fmt: skip
        self.register_buffer("known", torch.full((graph.num_nodes,), -1))

    def scores(self, graph: Graph) -> SparseMatrix:
        """log A* = log D⁻¹A + log M; the D changes nothing after row normalisation."""
        return graph.adjacency.row_normalized().log().add(self.edges(graph))

    def forward(self, graph: Graph) -> Tensor:
        transition = self.scores(graph).row_softmax()
        return label_distributions(transition, one_hot(self.known, graph), self.recipe.propagation_steps).log()

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        self.known.copy_(labels_of(graph, nodes))
        criterion = CRITERIA[self.criterion](self.scores(graph), graph, nodes, self.recipe, key)
        return Loss(criterion.new_zeros(()), criterion, 1.0)

    def edge_parameters(self) -> list[nn.Parameter]:
        return list(self.edges.parameters())

    def weight_parameters(self) -> list[nn.Parameter]:
        return []


def label_error(scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None) -> Tensor:
    """Eq. (15) as `recipe.loss` says; `leave_one_out` is the criterion of Zhang & Lee (2007)."""
    target = graph.y.index_select(0, nodes)
    return lpa_loss(
        scores.row_softmax(), nodes, target, graph.num_classes, recipe, key, importance(target, graph, recipe)
    )


def neighbourhood_error(scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None) -> Tensor:
    """Σ_i ‖x_i - Σ_j p_ij x_j‖² / Σ_i ‖x_i‖² with rows of p that sum to 1.

    As in linear neighbourhoods (Wang & Zhang 2008): the weights of locally linear embedding, kept positive. For a graph
    without self-loops: with them p = I is perfect.
    """
    return reconstruction_error(scores.row_softmax(), graph.x)


def sparse_neighbourhood_error(
    scores: SparseMatrix, graph: Graph, nodes: Tensor, recipe: Recipe, key: Key | None
) -> Tensor:
    """The same error with A* itself in place of p, plus `edge_sparsity` · Σ_ij a*_ij / n, as in Hong et al. (2009).

    The L1 norm needs weights before row normalisation, after which it is constant, and a loss that sees their scale:
    LPA does not, so beside Eq. (15) the norm would shrink all weights of a row together and drop none.
    """
    weights = scores.with_values(scores.values.exp())
    return reconstruction_error(weights, graph.x) + recipe.edge_sparsity * weights.values.sum() / graph.num_nodes


Criterion = Callable[[SparseMatrix, Graph, Tensor, Recipe, Key | None], Tensor]
CRITERIA: dict[str, Criterion] = {
    "labels": label_error,
    "reconstruction": neighbourhood_error,
    "sparse": sparse_neighbourhood_error,
}


def reconstruction_error(weights: SparseMatrix, x: Tensor | SparseMatrix) -> Tensor:
    """‖X - P X‖² / ‖X‖², differentiable in P; of a sparse X only a block of columns is dense at a time."""
    error: Tensor = _Reconstruction.apply(weights.pattern, weights.values, x)  # type: ignore[no-untyped-call]
    size = (x.values if isinstance(x, SparseMatrix) else x).square().sum()
    return error / size.clamp_min(TINY)


class _Reconstruction(torch.autograd.Function):
    """‖X - P X‖²; its gradient -2 r_i·x_j, r = X - P X, is found in the same pass."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor, x: Tensor | SparseMatrix) -> Tensor:
        error, gradient = values.new_zeros(()), torch.zeros_like(values)
        for block in column_blocks(x):
            residual = block - SparseMatrix(pattern, values) @ block
            error += residual.square().sum()
            gradient -= 2 * pattern.edge_dot(residual, block)
        ctx.save_for_backward(gradient)
        return error

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return None, grad * gradient, None


def column_blocks(x: Tensor | SparseMatrix) -> Iterator[Tensor]:
    """The columns of x, dense, a block at a time, each [n, about BLOCK / n]."""
    width = max(1, BLOCK // max(1, x.shape[0]))
    if isinstance(x, Tensor):
        yield from torch.split(x, width, dim=1)
        return
    columns, starts = x.T, x.pattern.T.rows.rowptr.tolist()
    for first in range(0, x.shape[1], width):
        last = min(first + width, x.shape[1])
        here = slice(starts[first], starts[last])
        block = x.values.new_zeros(x.shape[0], last - first)
        block[columns.pattern.col[here].long(), columns.pattern.row[here].long() - first] = columns.values[here]
        yield block


def importance(target: Tensor, graph: Graph, recipe: Recipe) -> Tensor | None:
    return class_weights(target, graph.num_classes) if recipe.class_weights == "balanced" else None


class Network(nn.Module):
    """What networks on fixed edges share: `forward(graph, key)` and cross-entropy on the labelled nodes."""

    recipe: Recipe

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        target, logits = graph.y.index_select(0, nodes), self(graph, key)
        cost = F.cross_entropy(logits.index_select(0, nodes), target, importance(target, graph, self.recipe))
        return Loss(cost, cost.new_zeros(()), 0.0)

    def edge_parameters(self) -> list[nn.Parameter]:
        return []

    def weight_parameters(self) -> list[nn.Parameter]:
        return list(self.parameters())


class JKNet(Network):
    """Graph convolutions on D^-½AD^-½ whose outputs are all joined for the last layer, Xu et al. (2018), concat."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        new = partial(initial_weight, init=recipe.init, generator=generator)
        widths = [graph.num_features, *[recipe.hidden] * recipe.gcn_layers]
        self.weights = nn.ParameterList(new(*shape) for shape in pairwise(widths))
        self.join = new(recipe.gcn_layers * recipe.hidden, graph.num_classes)
        self.bias = nn.Parameter(torch.zeros(graph.num_classes))

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
        smoothing, x, outputs = graph.adjacency.symmetric_normalized(), graph.x, []
        for k, weight in enumerate(self.weights):
            x = dropout((smoothing @ (x @ weight)).relu(), self.recipe.dropout, key, layer=k)
            outputs.append(x)
        return torch.cat(outputs, dim=1) @ self.join + self.bias


class GAT(Network):
    """PyG's GATConv, Velickovic et al. (2018); the first X W is our own product, as PyG refuses a sparse X."""

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

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
        edges = edge_index(graph)
        x = dropout(graph.x, self.recipe.dropout, key, layer=0) @ self.project.weight.T
        for k, conv in enumerate(self.convs):
            x = x if k == 0 else dropout(F.elu(x), self.recipe.dropout, key, layer=k)
            with random_bits(graph.device, *(key or Key(0)), k):  # of the attention's dropout
                x = conv.train(key is not None)(x, edges)
        return cast(Tensor, x)


class GraphSAGE(Network):
    """PyG's SAGEConv with the mean of all neighbours, unweighted, Hamilton et al. (2017); no sampling.

    Sparse features are multiplied first: W mean(x) = mean(W x).
    """

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        conv, self.recipe = pyg_layers("graphsage").SAGEConv, recipe
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
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


class Perceptron(nn.Module):
    """x ← σ(x W + b) layer by layer, without the graph: what APPNP and Correct & Smooth start from."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, generator = recipe, torch.Generator().manual_seed(seed)
        widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
        new = partial(initial_weight, init=recipe.init, generator=generator)
        self.weights = nn.ParameterList(new(*shape) for shape in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths[1:])

    def forward(self, x: Tensor | SparseMatrix, key: Key | None = None) -> Tensor:
        z = self.layer(0, x, key)
        for k in range(1, len(self.weights)):
            z = self.layer(k, z.relu(), key)
        return z

    def layer(self, k: int, x: Tensor | SparseMatrix, key: Key | None) -> Tensor:
        return cast(Tensor, dropout(x, self.recipe.dropout, key, layer=k) @ self.weights[k] + self.biases[k])


class APPNP(Network):
    """A perceptron whose predictions H travel: Z ← (1 - α) D^-½AD^-½ Z + α H, Klicpera et al. (2019)."""

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.perceptron = recipe, Perceptron(recipe, graph, seed)

    def forward(self, graph: Graph, key: Key | None = None) -> Tensor:
        return personalized(graph.adjacency.symmetric_normalized(), self.perceptron(graph.x, key), self.recipe)


def personalized(
    smoothing: SparseMatrix, start: Tensor, recipe: Recipe, bounds: tuple[float, float] | None = None
) -> Tensor:
    """Z ← (1 - α) S Z + α H from Z = H, `propagation_steps` times; `bounds` on every entry at every step."""
    z = start
    for _ in range(recipe.propagation_steps):
        z = (1 - recipe.teleport) * (smoothing @ z) + recipe.teleport * start
        z = z if bounds is None else z.clamp(*bounds)
    return z


class CorrectAndSmooth(Network):
    """A perceptron whose errors on the training nodes, then its predictions, travel along edges, Huang et al. (2021).

    The epoch is chosen by the validation accuracy of the result.
    """

    known: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.perceptron = recipe, Perceptron(recipe, graph, seed)
        self.register_buffer("known", torch.full((graph.num_nodes,), -1))

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        self.known.copy_(labels_of(graph, nodes))
        target, logits = graph.y.index_select(0, nodes), self.perceptron(graph.x, key)
        cost = F.cross_entropy(logits.index_select(0, nodes), target, importance(target, graph, self.recipe))
        return Loss(cost, cost.new_zeros(()), 0.0)

    def forward(self, graph: Graph) -> Tensor:
        guess = F.softmax(self.perceptron(graph.x), dim=1)
        return correct_and_smooth(
            graph.adjacency.symmetric_normalized(), guess, one_hot(self.known, graph), self.recipe
        )


def correct_and_smooth(smoothing: SparseMatrix, guess: Tensor, truth: Tensor, recipe: Recipe) -> Tensor:
    """Log-probabilities after both steps, [n, c]; corrections have the mean size of the training errors ("autoscale").

    Args:
        guess: the base predictor's distributions.
        truth: one-hot rows of the training nodes, zero rows elsewhere.
    """
    labeled = truth.sum(dim=1, keepdim=True) > 0
    error = torch.where(labeled, truth - guess, 0.0)
    spread = personalized(smoothing, error, recipe, (-1.0, 1.0))
    size, mean = spread.abs().sum(dim=1, keepdim=True), error.abs().sum() / labeled.sum().clamp_min(1)
    far = size * 1000 <= mean  # hardly any error arrives: their code leaves such nodes unscaled
    corrected = guess + spread * torch.where(far, 1.0, mean / torch.where(far, 1.0, size))
    smoothed = personalized(smoothing, torch.where(labeled, truth, corrected), recipe, (0.0, 1.0)) + LEAST
    return (smoothed / smoothed.sum(dim=1, keepdim=True)).log()


class LabelInput(Network):
    """A GCN that also reads labels: X^(1) = σ(S (X W + Y V)), masked as in UniMP, Shi et al. (2021).

    At each step a random `label_rate` of the training nodes show their label and the others are scored, so none is
    trained on its own label. To predict, all of them show it.
    """

    known: Tensor

    def __init__(self, recipe: Recipe, graph: Graph, seed: int = 0) -> None:
        super().__init__()
        self.recipe, self.layers, generator = (
            recipe,
            GCNLPA(recipe, graph, seed),
            torch.Generator().manual_seed(seed + 1),
        )
        width = self.layers.weights[0].shape[1]
        self.label_weight = initial_weight(graph.num_classes, width, init=recipe.init, generator=generator)
        self.register_buffer("known", torch.full((graph.num_nodes,), -1))

    def forward(self, graph: Graph) -> Tensor:
        return self.logits(graph, one_hot(self.known, graph), None)

    def logits(self, graph: Graph, shown: Tensor, key: Key | None) -> Tensor:
        smoothing, recipe = self.layers.smoothing(graph, self.layers.transition(graph)), self.recipe
        x: Any = graph.x
        for k, weight in enumerate(self.layers.weights):
            z = dropout(x, recipe.dropout, key, layer=k) @ weight
            h = smoothing @ (z + shown @ self.label_weight if k == 0 else z)
            x = h if k == len(self.layers.weights) - 1 else h.relu()
        return cast(Tensor, x)

    def loss(self, graph: Graph, nodes: Tensor, key: Key | None = None) -> Loss:
        self.known.copy_(labels_of(graph, nodes))
        target, labels = graph.y.index_select(0, nodes), one_hot(self.known, graph)
        shows = random_share(nodes, self.recipe.label_rate, key or Key(0), SEED_LAYER)
        mask = labels.new_zeros(graph.num_nodes, 1).index_copy(0, nodes, shows.unsqueeze(1).to(labels.dtype))
        logits = self.logits(graph, labels * mask, key).index_select(0, nodes)
        weight = (~shows).to(logits.dtype)
        if (by_class := importance(target, graph, self.recipe)) is not None:
            weight = weight * by_class.index_select(0, target)
        cost = (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum().clamp_min(TINY)
        return Loss(cost, cost.new_zeros(()), 0.0)


@dataclass(frozen=True)
class Method:
    """One row of a comparison: how its model is built and with which settings."""

    name: str
    build: Callable[[Recipe, Graph, int], nn.Module]  # of the recipe, the prepared graph and the seed
    recipe: Recipe | Callable[[Recipe], Recipe]  # its own, or made of GCN-LPA's for the same graph
    note: str
    needs: str = ""  # the extra that installs what it needs

    def settings(self, gcn_lpa: Recipe = DEFAULT) -> Recipe:
        """The recipe of this method where GCN-LPA has `gcn_lpa`."""
        return self.recipe(gcn_lpa) if callable(self.recipe) else self.recipe


_PLAIN = Recipe(
    features="row", edges="fixed", lpa_weight=0.0, residual=False, epochs=200, patience=0, select="first_best",
    origin="default in the packages or their open-source code",  # Section 4.2
)  # fmt: skip
_ADAPTIVE = _PLAIN.replace(
    features="l2", edges="free", loss="literal", lpa_iterations=5, lpa_weight=1.0, lr=0.05,
    origin="our first choice for Section 3.2",
)  # fmt: skip

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "mlp",
            lambda recipe, graph, seed: FeaturesOnly(recipe, graph, seed, hidden=(recipe.hidden,)),
            _PLAIN.replace(method="mlp", features="raw", self_loops=False, hidden=50),
            "scikit-learn's perceptron with 50 hidden units, on raw features; no epoch is selected",
        ),
        Method(
            "lr",
            FeaturesOnly,
            _PLAIN.replace(method="lr", features="raw", self_loops=False),
            "scikit-learn's logistic regression (lbfgs) on raw features, as its default penalty is far too strong for "
            "rows of sum 1; no epoch is selected",
        ),
        Method(
            "lpa",
            LabelPropagation,
            _PLAIN.replace(method="lpa", features="raw", propagation_steps=20),
            "label propagation, 20 iterations, labels reset at each; looks at no feature",
        ),
        Method(
            "gcn",
            GCNLPA,
            _PLAIN.replace(method="gcn", normalization="symmetric", hidden=16, dropout=0.5, lr=0.01, l2=5e-4),
            "Kipf & Welling: D^-½AD^-½, 2 layers, width 16, no bias; L2 on both W (their first code: on the first W)",
        ),
        Method(
            "gat",
            GAT,
            _PLAIN.replace(method="gat", hidden=8, heads=8, dropout=0.6, lr=0.005, l2=5e-4),
            "PyG's GATConv, 2 layers, 8 heads of 8; 200 epochs as all (their code: until 100 without improvement)",
            needs="pyg",
        ),
        Method(
            "jk-net",
            JKNet,
            _PLAIN.replace(method="jk-net", gcn_layers=6, hidden=16, dropout=0.5, lr=0.005, l2=5e-4),
            "concat of 6 layers of width 16, dropout after each",
        ),
        Method(
            "graphsage",
            GraphSAGE,
            _PLAIN.replace(method="graphsage", self_loops=False, hidden=128, dropout=0.0, lr=0.01, l2=0.0),
            "PyG's SAGEConv, 2 layers, width 128, mean of all neighbours (their code: of a sample of 25 and 10)",
            needs="pyg",
        ),
        Method(
            "gcn-lpa",
            GCNLPA,
            lambda ours: ours.replace(method="gcn-lpa"),
            "the paper's model: learned edges that must also carry labels",
        ),
        Method(
            "gcn-same",
            GCNLPA,
            lambda ours: ours.replace(method="gcn-same", edges="fixed", lpa_weight=0.0, training="joint"),
            "GCN-LPA's settings with fixed edges and λ = 0",
        ),
        Method(
            "appnp",
            APPNP,
            _PLAIN.replace(method="appnp", hidden=64, dropout=0.5, propagation_steps=10, teleport=0.1),
            "perceptron of width 64, 10 steps of personalised PageRank, α = 0.1",
        ),
        Method(
            "correct-and-smooth",
            CorrectAndSmooth,
            _PLAIN.replace(method="correct-and-smooth", hidden=64, dropout=0.5, propagation_steps=50, teleport=0.2),
            "perceptron of width 64, then 50 steps each of correcting and smoothing, α = 0.8, autoscale",
        ),
        Method(
            "label-input",
            LabelInput,
            _PLAIN.replace(method="label-input", normalization="symmetric", hidden=64, dropout=0.5, label_rate=0.625),
            "GCN of width 64 that reads the labels of a random 62.5 % of the training nodes and is scored on the rest",
        ),
        Method(
            "lpa-learned",
            AdaptiveLPA,
            _ADAPTIVE.replace(method="lpa-learned"),
            "LPA with a free weight per edge, learned by Eq. (15) as it is printed",
        ),
        Method(
            "lpa-leave-one-out",
            AdaptiveLPA,
            _ADAPTIVE.replace(method="lpa-leave-one-out", edges="agnn", loss="leave_one_out", lpa_iterations=1),
            "LPA with weights from the cosine of projected features, learned by the leave-one-out loss at one hop",
        ),
        Method(
            "lpa-gaussian",
            AdaptiveLPA,
            _ADAPTIVE.replace(method="lpa-gaussian", edges="gaussian"),
            "LPA with a Gaussian kernel of the features, its σ learned by Eq. (15)",
        ),
        Method(
            "lpa-reconstruction",
            partial(AdaptiveLPA, criterion="reconstruction"),
            _ADAPTIVE.replace(method="lpa-reconstruction", self_loops=False),
            "LPA with the positive weights that best rebuild each node's features from its neighbours'",
        ),
        Method(
            "lpa-sparse",
            partial(AdaptiveLPA, criterion="sparse"),
            _ADAPTIVE.replace(method="lpa-sparse", self_loops=False, edge_sparsity=0.1),
            "the same with weights that need not sum to 1 and an L1 penalty on them",
        ),
    )
}
