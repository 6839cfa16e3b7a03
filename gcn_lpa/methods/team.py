"""Models that predict together: members of different kinds, and for each of them one model for every fold of the labels.

The members of a recipe are the recipe itself, which comes first, and those of LIBRARY that `recipe.members` names. All of them
read the same prepared graph. How much each is heard is fitted to held-out labels: see `fusion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import FIXED_EDGES, Recipe

SHARED = (  # members have them as the first has
    *("features", "structure", "self_loops", "class_weights", "epochs", "patience", "select", "l2", "clusters"),
)
LEARNED_EDGES = {"edges": "cosine", "normalization": "row", "lpa_weight": 0.3, "l2_edges": 5e-3}
WIDE = {"gcn_layers": 3, "hidden": 256, "layer_norm": True, "edge_dropout": 0.2, "lr": 0.003}
LIBRARY: dict[str, Callable[[Recipe], Recipe]] = {
    "hops": lambda first: first.replace(propagation="hops", **FIXED_EDGES),
    "linear": lambda first: first.replace(propagation="hops", gcn_layers=1, **FIXED_EDGES),
    "cosine-hops": lambda first: first.replace(propagation="hops", **LEARNED_EDGES),
    "layers": lambda first: first.replace(propagation="layers", bias=True, **FIXED_EDGES),
    "deep": lambda first: first.replace(propagation="layers", bias=True, gcn_layers=3, **FIXED_EDGES),
    "cosine-layers": lambda first: first.replace(propagation="layers", **LEARNED_EDGES),
    "label-input": lambda first: METHODS["label-input"].fair(first),
    "correct-and-smooth": lambda first: METHODS["correct-and-smooth"].fair(first).replace(propagation_steps=20),
    "neighbour-lr": lambda first: METHODS["neighbour-lr"].fair(first),
    "trees": lambda first: METHODS["trees"].fair(first),
    "smoothed-lr": lambda first: METHODS["smoothed-lr"].fair(first),
    "wide": lambda first: first.replace(propagation="layers", **FIXED_EDGES, **WIDE),
}


def members_of(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe of each member by its name; the first has none."""
    first = recipe.replace(members="", votes=False)
    found = {"": first}
    for name in recipe.members.split():
        if name not in LIBRARY:
            raise ValueError(f"recipe: unknown member {name!r}; there are {', '.join(LIBRARY)}")
        found[name] = LIBRARY[name](first.replace(aggregation="mean")).replace(
            **{field: getattr(first, field) for field in SHARED}
        )
    return found


def build_model(recipe: Recipe, graph: Graph, seed: int, copies: int = 0) -> Any:
    """The model of a recipe for a prepared graph; with `copies`, a team with so many models of each member."""
    members = members_of(recipe)
    if copies == 0:
        return METHODS[recipe.method].build(recipe, graph, seed)
    return team_of([[METHODS[own.method].build(own, graph, seed) for _ in range(copies)] for own in members.values()])


class Team(nn.Module):
    """What a member says is the mean of the log-probabilities of its models; what the team says is the mean over members."""

    def __init__(self, bags: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.ModuleList(bag) for bag in bags)

    @property
    def copies(self) -> int:
        return len(self.first)

    @property
    def first(self) -> Any:
        """The models of the first member."""
        return self.bags[0]

    def parts(self, graph: Graph) -> list[Tensor]:
        """The log-probabilities of each member, [n, c] each."""
        logs = [[F.log_softmax(model(graph).double(), dim=1) for model in bag] for bag in self.bags]  # type: ignore[attr-defined]
        return [torch.stack(bag).mean(dim=0) for bag in logs]

    def forward(self, graph: Graph) -> Tensor:
        return torch.stack(self.parts(graph)).mean(dim=0)


class EdgeTeam(Team):
    """A team whose first member knows the weight of each edge."""

    def transition(self, graph: Graph, key: Key | None = None) -> SparseMatrix:
        """D*⁻¹A*, the mean over the models of the first member."""
        return _mean_matrix([model.transition(graph, key) for model in self.first])

    def edge_scores(self, graph: Graph) -> SparseMatrix:
        """log A*, up to a constant of each row."""
        return self.transition(graph).log()

    def edge_parameters(self) -> list[nn.Parameter]:
        return [parameter for model in self.first for parameter in model.edge_parameters()]


def team_of(bags: Sequence[Sequence[nn.Module]]) -> Team:
    kind = EdgeTeam if all(hasattr(model, "edge_scores") for model in bags[0]) else Team
    return kind(bags)


def models_of(model: nn.Module) -> list[nn.Module]:
    """The models of a team, or the model itself."""
    return [one for bag in model.bags for one in bag] if isinstance(model, Team) else [model]  # type: ignore[attr-defined]


def _mean_matrix(matrices: Sequence[SparseMatrix]) -> SparseMatrix:
    values = torch.stack([matrix.values for matrix in matrices]).mean(dim=0)
    return matrices[0].with_values(values)
