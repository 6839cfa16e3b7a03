"""An ensemble: members of different kinds, one model of each for every fold of the labels, and label votes.

All members read the same prepared graph. log p = Σ_e a_e log p_e + Σ_k b_k log v_k, up to a constant. The p_e are the predictions
of the members. The label votes v_k of a node are the shares of the labels of its neighbours, and those that reach it by label
propagation, along the given edges and, where a model has learned edges, along those too. A node that is predicted or held out has
no label among the votes; at a labelled node, propagated votes hold what comes back of its own label. The few weights are fitted to
held-out labels, with a pull to equal weights of the members and none of the votes: where votes do not help, they get no weight.

Before they are pooled, every member and every vote is tempered by itself: networks are too sure, and with few labels propagated
votes are nearly flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.engine.devices import num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.propagation import propagate_labels


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
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))

    def parts(self, graph: Graph) -> list[Tensor]:
        """The log-probabilities of each member, float64, [n, c] each."""
        parts = []
        for models in cast("list[nn.ModuleList]", self.members):
            logs = [F.log_softmax(model(graph).double(), dim=1) for model in models]
            parts.append(logs[0] if len(logs) == 1 else F.log_softmax(torch.stack(logs).mean(dim=0), dim=1))
        return parts

    def forward(self, graph: Graph) -> Tensor:
        """Log-probabilities, or what a single model gives, [n, c]."""
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
STEPS, CLOSE = 50, 1e-10  # of Newton's method at most, and how short the last one is
NEAR = 1 << 18  # entries times classes up to which votes are counted on the CPU: launching a hop takes longer
ENOUGH = 1 << 15  # held-out labels for a few weights; of more, random ones are taken, always the same
POOLED = 1 << 23  # numbers that are pooled at a time, 64 MB


@dataclass(frozen=True, eq=False)
class Parts:
    """Log-probabilities of the members and logs of the label votes, [n, c] each, float64 on the CPU."""

    members: tuple[Tensor, ...]
    votes: tuple[Tensor, ...]

    @property
    def all(self) -> tuple[Tensor, ...]:
        return *self.members, *self.votes

    def of(self, nodes: Tensor | slice) -> Parts:
        """Those of a mask, positions or a range of nodes."""
        return Parts(tuple(log[nodes] for log in self.members), tuple(log[nodes] for log in self.votes))

    @staticmethod
    def joined(parts: Sequence[Parts]) -> Parts:
        """Parts about different nodes, one after the other."""
        members = zip(*(part.members for part in parts), strict=True)
        votes = zip(*(part.votes for part in parts), strict=True)
        return Parts(tuple(map(torch.cat, members)), tuple(map(torch.cat, votes)))


def parts_of(ensemble: Ensemble, prepared: Graph) -> Parts:
    """The predictions of the members for every node of a prepared graph, and its label votes."""
    with torch.no_grad():
        members = tuple(log.cpu() for log in ensemble.parts(prepared))
        walks = [prepared.adjacency]
        if ensemble.edge_parameters():
            walks.append(ensemble.transition(prepared))
        seeds = prepared.target.seeds(prepared.y, prepared.adjacency.dtype)
        where = "cpu" if prepared.adjacency.num_entries * prepared.target.width <= NEAR else prepared.device
        votes = [log for walk in walks for log in label_votes(walk.detach().to(where), seeds.to(where))]
    return Parts(members, tuple(votes))


def label_votes(matrix: SparseMatrix, seeds: Tensor) -> list[Tensor]:
    """Logs of the shares of each class among the labels of the neighbours, and among those that LPA brings, [n, c] each."""
    others = matrix.with_values(matrix.values * (matrix.pattern.row != matrix.pattern.col))
    total = matrix.pattern.spread_rows(others.row_sums())
    others = others.with_values(others.values / torch.where(total > 0, total, 1))
    prior = seeds.sum(dim=0) + 1.0
    prior = SMOOTHING * prior / prior.sum()
    votes = []
    for mass in (others @ seeds, propagate_labels(others, seeds, REACH)):
        share = (mass + prior) / (mass.sum(dim=1, keepdim=True) + SMOOTHING)
        votes.append(share.double().log().cpu())
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
            raise ValueError(
                f"num_members = {self.num_members}; of {number} weights it is at least 1 and at most {number}"
            )
        for name in ("weights", "exponents"):
            for k, value in enumerate(getattr(self, name)):
                if not 0 <= value < math.inf:
                    raise ValueError(f"{name}[{k}] = {value}; it is a number, 0 or above")

    def __call__(self, parts: Parts) -> Tensor:
        """Probabilities, rows that sum to 1, [n, c]."""
        sizes = len(parts.members), len(parts.all)
        if sizes != (self.num_members, len(self.weights)):
            raise ValueError(
                f"the weights are those of {self.num_members} members and {len(self.weights) - self.num_members} label votes, "
                f"but this ensemble has {sizes[0]} and {sizes[1] - sizes[0]}"
            )
        weights = torch.tensor(self.weights, dtype=torch.float64)
        n, c = parts.members[0].shape
        rows = max(1, POOLED // (c * len(weights)))
        blocks = (parts.of(slice(start, start + rows)).all for start in range(0, max(1, n), rows))
        pooled = [torch.einsum("k,kmc->mc", weights, tempered(block, self.exponents)) for block in blocks]
        return F.softmax(torch.cat(pooled), dim=1)


def fit_weights(parts: Parts, y: Tensor) -> EnsembleWeights:
    """The weights under which held-out labels are likeliest, less the pull; none is negative.

    Args:
        y: the classes of the nodes that the parts are about, [m]; their labels neither trained nor voted.
    """
    if len(y) > ENOUGH:
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:ENOUGH]
        parts, y = parts.of(chosen), y[chosen]
    number, num_members = len(parts.all), len(parts.members)
    equal = torch.tensor([1 / num_members] * num_members + [0.0] * len(parts.votes), dtype=torch.float64)
    if len(y) == 0 or parts.members[0].shape[1] < 2:
        return EnsembleWeights(tuple(equal.tolist()), (1.0,) * number, num_members)
    with num_threads(1):  # many small steps
        each = torch.stack(parts.all).unsqueeze(1)  # each is a pool by itself
        exponents = _pool_weights(each, y, torch.ones(1, dtype=torch.float64), 1.0).squeeze(1).clamp_min(0).tolist()
        logs, used = tempered(parts.all, exponents), torch.ones(number, dtype=torch.bool)
        weights = equal.clone()
        while True:  # leave out what would get a negative weight, and fit the others anew
            weights[used] = _pool_weights(logs[used].unsqueeze(0), y, equal[used], PULL, weights[used]).squeeze(0)
            wrong = weights < 0
            if not wrong.any():
                return EnsembleWeights(tuple(weights.tolist()), tuple(exponents), num_members)
            weights[wrong], used = 0.0, used & ~wrong


def tempered(logs: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
    """Each log-distribution to the power of its exponent, normalised, [k, m, c]."""
    return torch.stack([F.log_softmax(t * log, dim=1) for t, log in zip(exponents, logs, strict=True)])


def _pool_weights(stack: Tensor, y: Tensor, prior: Tensor, pull: float, start: Tensor | None = None) -> Tensor:
    """The w that minimise -Σ_i log softmax(Σ_k w_k L_k)_i[y_i] + pull ‖w - prior‖², by Newton's method: it is convex.

    Args:
        stack: the L of several pools side by side, [p, k, m, c].
        prior: the same for all, [k].
        start: from where to go, [k]; None: from the prior.

    Returns:
        w, [p, k]
    """
    pools, number, _, c = stack.shape
    stack = stack.transpose(2, 3).contiguous()  # nodes side by side: a softmax over few classes is slow otherwise
    chosen = F.one_hot(y, c).T.to(stack.dtype)
    eye = 2 * pull * torch.eye(number, dtype=stack.dtype)

    def pool(w: Tensor) -> tuple[Tensor, Tensor]:  # [p, c, m], and the cost of each, [p]
        pooled = torch.einsum("pk,pkcm->pcm", w, stack)
        nodes = pooled.logsumexp(dim=1) - (pooled * chosen).sum(dim=1)
        return pooled, nodes.sum(dim=1) + pull * (w - prior).square().sum(dim=1)

    w = (prior if start is None else start).expand(pools, number)
    pooled, here = pool(w)
    for _ in range(STEPS):
        p = F.softmax(pooled, dim=1)
        gradient = torch.einsum("pkcm,pcm->pk", stack, p - chosen) + 2 * pull * (w - prior)
        p = p.unsqueeze(1)
        around = stack - (stack * p).sum(dim=2, keepdim=True)  # E[LL'] - E[L]E[L]' would cancel where a log is low
        spread = torch.einsum("pkcm,plcm->pkl", around * p, around)
        move = torch.linalg.solve(spread + eye, gradient)
        while True:  # half as far in the pools that would get worse
            there = w - move
            pooled, cost_there = pool(there)
            worse = (cost_there > here) & (move.abs().amax(dim=1) > CLOSE)
            if not worse.any():
                break
            move = torch.where(worse.unsqueeze(1), move / 2, move)
        w, here = there, cost_there
        if float(move.abs().max()) < CLOSE:
            break
    return w


def cross_fitted(parts: Parts, y: Tensor, folds: Tensor, fits: Tensor | None = None) -> Tensor:
    """The pooled probabilities of nodes by weights that were fitted to the other folds, [m, c].

    Args:
        folds: the number of the fold of each node, [m].
        fits: the nodes that weights are fitted to, a mask [m]; None: all.
    """
    probabilities = torch.zeros_like(parts.members[0])
    for fold in folds.unique().tolist():
        here = folds == fold
        others = ~here if fits is None else ~here & fits
        probabilities[here] = fit_weights(parts.of(others), y[others])(parts.of(here))
    return probabilities
