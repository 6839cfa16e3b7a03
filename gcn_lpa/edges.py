"""Edge forms: how strong an edge is, as a function of its two ends (Sections 2.4, 3.2 and 3.3 of the paper).

The contract: `form(graph)` is log M_ij for every entry of the graph's adjacency, any real number, [E]. Logs make M positive by
construction, make row normalisation a stable softmax, and treat attention scores and kernel exponents alike. No form builds an
[E, d] array. Every form but `Free` can score a graph it has never seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.engine.sparse import SparseMatrix, glorot
from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph

SOFTPLUS_ONE = math.log(math.e - 1)  # its softplus is 1
FULL_KERNEL = 512  # features up to which `bilinear` learns a full H; beyond, H = U Vᵀ


class Fixed(nn.Module):
    """log M_ij = 0: the edge weights of the input, as in a plain GCN."""

    def forward(self, graph: Graph) -> Tensor:
        return torch.zeros_like(graph.adjacency.values)


class Free(nn.Module):
    """log M_ij = w_ij, one free number per edge of the training graph (Section 2.4), or the log of its softplus."""

    def __init__(self, recipe: Recipe, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.mask = recipe.edge_mask
        start = torch.zeros(graph.pattern.num_entries)
        if recipe.edge_init == "glorot":  # the authors' code: fan-in and fan-out of a vector are its length
            start.uniform_(-1, 1, generator=generator).mul_(math.sqrt(3 / max(1, len(start))))
        self.weight = nn.Parameter(start)
        self.fingerprint = graph.pattern.fingerprint

    def get_extra_state(self) -> Tensor:
        """The edges that the weights belong to, as bytes: the fingerprint of their pattern."""
        return torch.frombuffer(bytearray.fromhex(self.fingerprint), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self.fingerprint = state.cpu().numpy().tobytes().hex()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *options: Any) -> None:
        weight = state.get(f"{prefix}weight")
        if isinstance(weight, Tensor) and weight.dim() == 1 and weight.shape != self.weight.shape:
            self.weight = nn.Parameter(torch.zeros_like(weight))  # built for no graph: as many weights as were kept
        super()._load_from_state_dict(state, prefix, *options)

    def forward(self, graph: Graph) -> Tensor:
        weight = self.of_entries(graph)
        return weight if self.mask == "exp" else log_softplus(weight + SOFTPLUS_ONE)

    def of_entries(self, graph: Graph) -> Tensor:
        """w_ij of every entry, [E]; for a cluster of the graph with a sparse gradient, so that Adam moves no other weight."""
        pattern = graph.pattern
        if pattern.cut_from is not None and pattern.cut_from[0] == self.fingerprint:
            return torch.gather(self.weight, 0, pattern.cut_from[1], sparse_grad=True)
        if pattern.fingerprint != self.fingerprint:
            raise ValueError(
                "edge form 'free' keeps one weight per training edge and cannot score a graph with other edges; "
                f"train with one of {forms_for_new_edges()} for inductive use"
            )
        return self.weight


class Bilinear(nn.Module):
    """M_ij = log(1 + exp(x_iᵀ H x_j)), Section 2.4; H is full up to FULL_KERNEL features, else H = U Vᵀ of rank `rank`."""

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        is_full = num_features <= FULL_KERNEL
        self.left = glorot(num_features, num_features if is_full else rank, generator=generator)
        self.right = None if is_full else glorot(num_features, rank, generator=generator)

    def forward(self, graph: Graph) -> Tensor:
        right = graph.x if self.right is None else graph.x @ self.right
        right = right.to_dense() if isinstance(right, SparseMatrix) else right  # at most FULL_KERNEL wide
        return log_softplus(graph.pattern.edge_dot(graph.x @ self.left, right))


def log_softplus(score: Tensor) -> Tensor:
    """log(log(1 + eˢ)), which is s itself far below zero; no NaN in the gradient there."""
    return torch.where(score < -15, score, F.softplus(score.clamp_min(-15)).log())


class GAT(nn.Module):
    """log M_ij = LeakyReLU(aᵀ [W x_i ‖ W x_j]), Velickovic et al. (2018)."""

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.project = glorot(num_features, rank, generator=generator)
        self.attend = glorot(rank, 2, generator=generator)  # the halves of a, for i and for j

    def forward(self, graph: Graph) -> Tensor:
        ends = graph.x @ self.project @ self.attend  # [n, 2]
        score = graph.pattern.spread_rows(ends[:, 0].contiguous()) + graph.pattern.spread_cols(ends[:, 1].contiguous())
        return F.leaky_relu(score, 0.2)


class AGNN(nn.Module):
    """log M_ij = a · cos(W x_i, W x_j), Thekumparampil et al. (2018)."""

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.project = glorot(num_features, rank, generator=generator)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, graph: Graph) -> Tensor:
        direction = F.normalize(graph.x @ self.project, dim=1)
        return self.scale * graph.pattern.edge_dot(direction, direction)


class Cosine(AGNN):
    """log M_ij = β · cos(W x_i, W x_j) between two nodes, and one learned number for all self-loops.

    β starts at 0, so that the first epoch has the given graph. In AGNN a self-loop always has the highest score, as its cosine
    is 1, and takes weight from the neighbours; here labels decide how much a node keeps of itself.
    """

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__(num_features, rank=rank, generator=generator)
        self.scale = nn.Parameter(torch.zeros(1))
        self.own = nn.Parameter(torch.zeros(1))

    def forward(self, graph: Graph) -> Tensor:
        return torch.where(graph.pattern.row == graph.pattern.col, self.own, super().forward(graph))


class GaAN(nn.Module):
    """log M_ij = (W₁ x_i)ᵀ W₂ x_j, Zhang et al. (2018)."""

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.left = glorot(num_features, rank, generator=generator)
        self.right = glorot(num_features, rank, generator=generator)

    def forward(self, graph: Graph) -> Tensor:
        return graph.pattern.edge_dot(graph.x @ self.left, graph.x @ self.right)


class GeniePath(GaAN):
    """log M_ij = aᵀ tanh(W₁ x_i + W₂ x_j), Liu et al. (2019)."""

    def __init__(self, num_features: int, *, rank: int, generator: torch.Generator) -> None:
        super().__init__(num_features, rank=rank, generator=generator)
        self.attend = nn.Parameter(glorot(rank, 1, generator=generator).squeeze(1).detach())

    def forward(self, graph: Graph) -> Tensor:
        right = graph.pattern.gathered(graph.x @ self.right)
        return graph.pattern.tanh_attention(graph.x @ self.left, right, self.attend)


class Gaussian(nn.Module):
    """log M_ij = -Σ_d (x_id - x_jd)² / σ_d²: nearby features, strong edge (Section 3.2).

    Every σ_d² starts at the mean squared distance across an edge, so that a typical edge starts at log M = -1.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        distances = _square_distances(graph, torch.ones(graph.num_features)).clamp_min(0)
        mean = float(distances.mean()) if len(distances) else 1.0
        start = 0.5 * math.log(mean) if mean > 0 else 0.0
        self.log_sigma = nn.Parameter(torch.full((graph.num_features,), start))

    def forward(self, graph: Graph) -> Tensor:
        return -_square_distances(graph, (-2 * self.log_sigma).exp())


def _square_distances(graph: Graph, scale: Tensor) -> Tensor:
    """Σ_d s_d (x_id - x_jd)² for every edge, [E], from dot products and norms."""
    dot = graph.feature_dot(scale)
    length = graph.x.square_norms(scale) if isinstance(graph.x, SparseMatrix) else graph.x.square() @ scale
    return graph.pattern.spread_rows(length) + graph.pattern.spread_cols(length) - 2 * dot


class ByColumns(nn.Module):
    """log M_ij = log of the mean of exp(Σ_c f_c(e)) over the edges e between i and j: see `data.edge_columns`.

    Every f_c starts at 0, which is the given graph. What is learned are its steps from knot to knot and its values for categories.
    """

    levels: Tensor

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        if graph.edge_columns is None:
            raise ValueError("edge form 'columns' needs columns of the edges that tell them apart; this graph has none")
        levels = graph.edge_columns.functions.levels()
        self.register_buffer("levels", levels)
        self.weight = nn.Parameter(torch.zeros(levels.shape[1]))

    def forward(self, graph: Graph) -> Tensor:
        if graph.edge_columns is None:
            raise ValueError(f"the model weighs edges by their columns, but the edges of {graph.name!r} have none")
        return graph.edge_columns.log_mask(graph.pattern, self.levels @ self.weight)


Builder = Callable[[Recipe, "Graph", torch.Generator], nn.Module]


def _of_features(form: Any) -> Builder:
    return lambda recipe, graph, generator: form(graph.num_features, rank=recipe.edge_rank, generator=generator)


EDGE_FORMS: dict[str, Builder] = {
    "fixed": lambda recipe, graph, generator: Fixed(),
    "free": Free,
    "bilinear": _of_features(Bilinear),
    "gat": _of_features(GAT),
    "agnn": _of_features(AGNN),
    "cosine": _of_features(Cosine),
    "gaan": _of_features(GaAN),
    "geniepath": _of_features(GeniePath),
    "gaussian": lambda recipe, graph, generator: Gaussian(graph),
    "columns": lambda recipe, graph, generator: ByColumns(graph),
}


def forms_for_new_edges() -> str:
    """The names of the learned forms that can score edges they have never seen."""
    return ", ".join(repr(name) for name in EDGE_FORMS if name not in ("fixed", "free"))


def edge_form(recipe: Recipe, graph: Graph, *, generator: torch.Generator) -> nn.Module:
    """A new edge form for a graph (on the CPU), by its name in EDGE_FORMS."""
    if recipe.edges not in EDGE_FORMS:
        raise ValueError(f"unknown edge form {recipe.edges!r}; there are {', '.join(EDGE_FORMS)}")
    return EDGE_FORMS[recipe.edges](recipe, graph, generator)
