"""An ensemble: members of different kinds, one model of each for every fold of the labels, and label votes.

All members read the same prepared graph. log p = Σ_e a_e log p_e + Σ_k b_k log v_k, up to a constant. The p_e are the predictions
of the members. The label votes v_k of a node are the shares of the labels of its neighbours, and those that reach it by label
propagation, along the given edges and, where a model has learned edges, along those too. A node that is predicted or held out has
no label among the votes; at a labelled node, propagated votes hold what comes back of its own label. The few weights are fitted to
held-out labels, with a pull to equal weights of the members and none of the votes: where votes do not help, they get no weight.

Before they are pooled, every member and every vote is tempered by itself: networks are too sure, and with few labels propagated
votes are nearly flat.

Where hop columns are a member, a costly one first learns without the first fold, and goes on to the others if it makes the labels
of that fold likelier. Few labels cannot say so with confidence: a doubt is for the member.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gcn_lpa.engine.devices import num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Target


class Ensemble(nn.Module):
    """A member predicts the mean of the log-probabilities of its models; without weights, the ensemble the mean of its members."""

    def __init__(self, members: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.ModuleList(models) for models in members)

    @property
    def first(self) -> list[Any]:
        """The models of the first member, which is the recipe itself, one for each fold."""
        return list(cast(nn.ModuleList, self.members[0]))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of models of each member."""
        return tuple(len(models) for models in cast("list[nn.ModuleList]", self.members))

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))

    def parts(self, graph: Graph) -> list[Tensor]:
        """The log-probabilities or numbers of each member, float64, [n, c] each."""
        parts, said = [], graph.target.said
        for models in cast("list[nn.ModuleList]", self.members):
            logs = [said(model(graph).double()) for model in models]
            parts.append(logs[0] if len(logs) == 1 else said(torch.stack(logs).mean(dim=0)))
        return parts

    def forward(self, graph: Graph) -> Tensor:
        """Log-probabilities or numbers, or what a single model gives, [n, c]."""
        if len(self.members) == len(self.first) == 1:
            return cast(Tensor, self.first[0](graph))
        return torch.stack(self.parts(graph)).mean(dim=0)

    def transition(self, graph: Graph) -> SparseMatrix:
        """D*⁻¹A*, the mean over the models of the first member."""
        matrices: list[SparseMatrix] = [model.transition(graph) for model in self.first]
        return matrices[0].with_values(torch.stack([matrix.values for matrix in matrices]).mean(dim=0))

    def edge_parameters(self) -> list[nn.Parameter]:
        """The learned edge weights of the first member; none where it walks the given edges."""
        return [parameter for model in self.first for parameter in model.edge_parameters()]


REACH = 50  # hops a vote may travel; further ones weigh next to nothing
SMOOTHING = 0.01  # of vote mass, shared out like the labels: a class without a vote is unlikely, not impossible
PULL = 10.0  # labels that the pull to the members alone weighs as much as
NEAR = 1 << 18  # entries times classes up to which votes are counted on the CPU: launching a hop takes longer
ENOUGH = 1 << 15  # held-out labels for a few weights; of more, random ones are taken, always the same
FEWEST = 30  # held-out nodes of the first fold: of fewer, nothing can be said of a member's worth
LEAST_GAIN = 0.002  # in log likelihood, of a costly member: less is not worth its time
CROSSED = 5  # parts of that fold, each predicted by weights of the others
POOLED = 1 << 23  # numbers that are pooled at a time, 64 MB


@dataclass(frozen=True, eq=False)
class Parts:
    """Log-probabilities of the members and logs of the label votes, or numbers; [n, c] each, float64 on the CPU."""

    members: tuple[Tensor, ...]
    votes: tuple[Tensor, ...]
    target: Target

    @property
    def all(self) -> tuple[Tensor, ...]:
        return *self.members, *self.votes

    def of(self, nodes: Tensor | slice) -> Parts:
        """Those of a mask, positions or a range of nodes."""
        members, votes = (tuple(log[nodes] for log in logs) for logs in (self.members, self.votes))
        return Parts(members, votes, self.target)

    @staticmethod
    def joined(parts: Sequence[Parts]) -> Parts:
        """Parts about different nodes, one after the other."""
        members = zip(*(part.members for part in parts), strict=True)
        votes = zip(*(part.votes for part in parts), strict=True)
        return Parts(tuple(map(torch.cat, members)), tuple(map(torch.cat, votes)), parts[0].target)


def parts_of(ensemble: Ensemble, prepared: Graph) -> Parts:
    """The predictions of the members for every node of a prepared graph, and its label votes."""
    with torch.no_grad():
        members = tuple(log.cpu() for log in ensemble.parts(prepared))
        walks = [prepared.adjacency]
        if ensemble.edge_parameters():
            walks.append(ensemble.transition(prepared))
        seeds = prepared.target.seeds(prepared.y, prepared.adjacency.dtype)
        is_near = prepared.adjacency.num_entries * prepared.target.vote_width <= NEAR
        where = "cpu" if is_near and not prepared.pattern.is_part else prepared.device
        shares = [share for walk in walks for share in label_votes(walk.detach().to(where), seeds.to(where))]
    return Parts(members, tuple(map(prepared.target.voted, shares)), prepared.target)


def label_votes(matrix: SparseMatrix, seeds: Tensor) -> list[Tensor]:
    """The shares of each column of Y^(0) among the labels of the neighbours, and among those that LPA brings, [n, c] each."""
    others = matrix.with_values(matrix.values * (matrix.pattern.row != matrix.pattern.col))
    total = matrix.pattern.spread_rows(others.row_sums())
    others = others.with_values(others.values / torch.where(total > 0, total, 1))
    prior = matrix.pattern.total(seeds.sum(dim=0)) + 1.0
    prior = SMOOTHING * prior / prior.sum()
    votes = []
    for mass in (others @ seeds, propagate_labels(others, seeds, REACH)):
        share = (mass + prior) / (mass.sum(dim=1, keepdim=True) + SMOOTHING)
        votes.append(share.double().cpu())
    return votes


@dataclass(frozen=True)
class EnsembleWeights:
    """The weights of the members and, behind them, of the label votes; and the exponent that each was tempered with before."""

    weights: tuple[float, ...]
    exponents: tuple[float, ...]
    num_members: int

    def __post_init__(self) -> None:
        number = len(self.weights)
        if len(self.exponents) != number:
            raise ValueError(f"there are {number} weights and {len(self.exponents)} exponents; each weight has one")
        if not 1 <= self.num_members <= number:
            raise ValueError(f"num_members = {self.num_members}; of {number} weights it is 1 to {number}")
        for name in ("weights", "exponents"):
            for k, value in enumerate(getattr(self, name)):
                if not 0 <= value < math.inf:
                    raise ValueError(f"{name}[{k}] = {value}; it is a number, 0 or above")

    def __call__(self, parts: Parts) -> Tensor:
        """Probabilities, rows that sum to 1, [n, c]; or numbers and the spread of the parts around them, [n, 2]."""
        sizes = len(parts.members), len(parts.all)
        if sizes != (self.num_members, len(self.weights)):
            raise ValueError(
                f"the weights are those of {self.num_members} members and {len(self.weights) - self.num_members} label votes, "
                f"but this ensemble has {sizes[0]} and {sizes[1] - sizes[0]}"
            )
        weights = torch.tensor(self.weights, dtype=torch.float64)
        (n, c), target = parts.members[0].shape, parts.target
        rows = max(1, POOLED // (c * len(weights)))
        blocks = (parts.of(slice(start, start + rows)).all for start in range(0, max(1, n), rows))
        return torch.cat([target.pooled(weights, target.tempered(block, self.exponents)) for block in blocks])


def fit_weights(parts: Parts, y: Tensor) -> EnsembleWeights:
    """The weights under which held-out labels are likeliest, or square errors least, less the pull; none is negative.

    Args:
        y: the labels of the nodes that the parts are about, [m]; they neither trained nor voted.
    """
    if len(y) > ENOUGH:
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:ENOUGH]
        parts, y = parts.of(chosen), y[chosen]
    number, num_members, target = len(parts.all), len(parts.members), parts.target
    equal = torch.tensor([1 / num_members] * num_members + [0.0] * len(parts.votes), dtype=torch.float64)
    if len(y) == 0 or target.vote_width < 2:
        return EnsembleWeights(tuple(equal.tolist()), (1.0,) * number, num_members)
    with num_threads(1):  # many small steps
        each = torch.stack(parts.all).unsqueeze(1)  # each is a pool by itself
        alone = target.pool_weights(each, y, torch.ones(1, dtype=torch.float64), 1.0)
        exponents = alone.squeeze(1).clamp_min(0).tolist()
        logs, used = target.tempered(parts.all, exponents), torch.ones(number, dtype=torch.bool)
        weights = equal.clone()
        while True:  # leave out what would get a negative weight, and fit the others anew
            weights[used] = target.pool_weights(logs[used].unsqueeze(0), y, equal[used], PULL, weights[used]).squeeze(0)
            wrong = weights < 0
            if not wrong.any():
                return EnsembleWeights(tuple(weights.tolist()), tuple(exponents), num_members)
            weights[wrong], used = 0.0, used & ~wrong


def cross_fitted(parts: Parts, y: Tensor, folds: Tensor, fits: Tensor | None = None) -> Tensor:
    """What is pooled for nodes by weights that were fitted to the other folds, [m, c].

    Args:
        folds: the number of the fold of each node, [m].
        fits: the nodes that weights are fitted to, a mask [m]; None: all.
    """
    probabilities = torch.zeros(len(y), parts.target.vote_width, dtype=torch.float64)
    for fold in folds.unique().tolist():
        here = folds == fold
        others = ~here if fits is None else ~here & fits
        probabilities[here] = fit_weights(parts.of(others), y[others])(parts.of(here))
    return probabilities


@dataclass(frozen=True)
class Worth:
    """What a member adds to the log likelihood of a held-out label, and one standard error of it."""

    gain: float
    noise: float

    @property
    def is_enough(self) -> bool:
        return self.gain > LEAST_GAIN

    def __str__(self) -> str:
        return f"a held-out label gets {self.gain:+.4f} ± {self.noise:.4f} likelier (log) with it, on the first fold"


def is_judged(recipe: Recipe, num_held_out: int) -> bool:
    """Whether the costly members of an ensemble have to show their worth."""
    return "hop-columns" in recipe.members.split() and num_held_out >= FEWEST


def is_costly(member: Recipe, at_once: bool) -> bool:
    """Whether an epoch of a member walks all edges."""
    return not at_once and member.propagation != "columns"


def worth_of(parts: Parts, y: Tensor, known: list[int], number: int) -> Worth:
    """The worth of member `number` beside the members `known`, on the held-out nodes that the parts are about.

    Both pools predict these nodes by weights that were fitted to others of them.

    Args:
        y: the labels of these nodes, [m].
    """
    fold = torch.arange(len(y)) % CROSSED

    def logs(members: list[int]) -> Tensor:
        chosen = dataclasses.replace(parts, members=tuple(parts.members[k] for k in members))
        return parts.target.likelihood(cross_fitted(chosen, y, fold), y)

    gain = logs([*known, number]) - logs(known)
    return Worth(float(gain.mean()), float(gain.std()) / math.sqrt(len(gain)))
