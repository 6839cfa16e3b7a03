"""Models that predict together: members of different kinds, and for each of them one model for every fold of the labels.

The members of a recipe are the recipe itself, which comes first, and those of MEMBERS that `recipe.members` names. All of them
read the same prepared graph. Their weights are fitted to held-out labels: see `votes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import FIXED_EDGES, Recipe

SHARED = (  # fields that members have as the first has
    *("features", "structure", "self_loops", "class_weights", "epochs", "patience", "select", "l2", "clusters"),
)
LEARNED_EDGES = {"edges": "cosine", "normalization": "row", "lpa_weight": 0.3, "l2_edges": 5e-3}
WIDE = {"gcn_layers": 3, "hidden": 256, "layer_norm": True, "edge_dropout": 0.2, "lr": 0.003}
MEMBERS: dict[str, Callable[[Recipe], Recipe]] = {  # the recipe of each, made of that of the first member
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
    if recipe.method not in METHODS:
        raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    if not recipe.members:
        return {"": recipe}
    first = recipe.replace(members="", votes=False)
    recipes = {"": first}
    for name in recipe.members.split():
        if name not in MEMBERS:
            raise ValueError(f"recipe: unknown member {name!r}; there are {', '.join(MEMBERS)}")
        shared = {field: getattr(first, field) for field in SHARED}
        recipes[name] = MEMBERS[name](first).replace(**shared)
    return recipes


class Ensemble(nn.Module):
    """The prediction of a member is the mean of the log-probabilities of its models; that of the ensemble the mean over members."""

    def __init__(self, members: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.ModuleList(models) for models in members)

    @classmethod
    def built(cls, recipe: Recipe, graph: Graph, seed: int, copies: int = 1) -> Ensemble:
        """An ensemble of a recipe for a prepared graph, with so many models of each member, before training."""
        recipes = members_of(recipe).values()
        return cls([[METHODS[one.method].build(one, graph, seed) for _ in range(copies)] for one in recipes])

    def models(self, member: int) -> list[Any]:
        """The models of a member, one for each fold."""
        return list(cast(nn.ModuleList, self.members[member]))

    @property
    def first(self) -> list[Any]:
        """The models of the first member, which is the recipe itself."""
        return self.models(0)

    @property
    def copies(self) -> int:
        """How many models each member has."""
        return len(self.first)

    @property
    def all_models(self) -> list[Any]:
        return [model for k in range(len(self.members)) for model in self.models(k)]

    def parts(self, graph: Graph) -> list[Tensor]:
        """The log-probabilities of each member, float64, [n, c] each."""
        logs_of, parts = graph.target.log_probabilities, []
        for k in range(len(self.members)):
            logs = [logs_of(model(graph)) for model in self.models(k)]
            parts.append(logs[0] if len(logs) == 1 else logs_of(torch.stack(logs).mean(dim=0)))
        return parts

    def forward(self, graph: Graph) -> Tensor:
        """Log-probabilities, or what a single model gives, [n, c]."""
        models = self.all_models
        if len(models) == 1:
            return cast(Tensor, models[0](graph))
        return torch.stack(self.parts(graph)).mean(dim=0)

    def transition(self, graph: Graph) -> SparseMatrix:
        """D*⁻¹A*, the mean over the models of the first member."""
        matrices: list[SparseMatrix] = [model.transition(graph) for model in self.first]
        return matrices[0].with_values(torch.stack([matrix.values for matrix in matrices]).mean(dim=0))

    def edge_parameters(self) -> list[nn.Parameter]:
        """The learned edge weights of the first member; none where it walks the given edges."""
        return [parameter for model in self.first for parameter in model.edge_parameters()]
