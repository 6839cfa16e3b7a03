"""Which node to label next: one that is predicted with little certainty, and whose label would reach others like it.

The reach of a label is Lemma 2 read backwards. I_l(v_a, v_b; k) is the probability that a walk from v_a ends at v_b when labelled
nodes absorb it. If v_b had a label, its reach would be Σ_a u_a I_l(v_a, v_b; k), with u_a the uncertainty at v_a: nodes that other
labels already cover count little, and so do certain ones. For two hops the reach of *all* nodes is two products with the transpose.
Suggestions come as a batch: a node that is chosen counts as labelled, and the nodes it reaches as that much less uncertain, so that
the next one is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import node_mask
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.trained import Trained


@dataclass(frozen=True)
class Suggestion:
    """A node worth a label. Numbers are as they were when it was chosen, after those before it in the list."""

    node: int
    id: Hashable
    score: float
    guess: str  # the predicted class
    probability: float
    runner_up: str
    runner_up_probability: float
    uncertainty: float  # entropy of the posterior, 0 sure to 1 all classes alike
    reach: float  # Σ uncertainty of other nodes, each times the influence the new label would have there

    @property
    def why(self) -> str:
        both = (
            f"{self.guess} {100 * self.probability:.0f} % or {self.runner_up} {100 * self.runner_up_probability:.0f} %"
        )
        reached = f"{self.reach:.1f} unsure nodes" if self.reach >= 0.05 else "no other unsure node"
        return f"{both}; its label would reach {reached}"


def suggest(
    trained: Trained, graph: Graph, *, n: int = 20, candidates: Any = None, sharpness: float = 2.0
) -> list[Suggestion]:
    """The `n` nodes to label next, best first; fewer where there are fewer. Labels that were not given are not read.

    The score is u² (u + reach): the uncertainty squared, times the uncertainty that the label would cover, its own included. The
    square was chosen on Citeseer, see docs/advice.md.

    Args:
        graph: raw, as it was loaded. Nodes whose labels the model was given are never suggested.
        candidates: the nodes that may be suggested, a mask or positions; None for all.
        sharpness: the exponent of the uncertainty; 0 looks for nodes amid uncertain ones, certain or not themselves.
    """
    return suggestions(Explainer.of(trained, graph), n=n, candidates=candidates, sharpness=sharpness)


def suggestions(
    explainer: Explainer, *, n: int = 20, candidates: Any = None, sharpness: float = 2.0
) -> list[Suggestion]:
    """`suggest` for a model and graph whose predictions and learned transition are at hand."""
    if n < 1:
        raise ValueError(f"n = {n}; at least one suggestion is asked for")
    graph, names, labeled = explainer.graph, explainer.trained.class_names, explainer.given >= 0
    if len(names) < 2:
        raise ValueError(f"{graph.name!r} has {len(names)} class: there is nothing to be unsure of")
    open_nodes = ~labeled if candidates is None else node_mask(candidates, graph.num_nodes, "candidates") & ~labeled
    if not open_nodes.any():
        raise ValueError("no node is left to suggest: every candidate has a label already")
    probabilities, walk = explainer.prediction.uncalibrated, explainer.transition
    unsure = uncertainty(probabilities)
    likeliest = probabilities.argsort(dim=1, descending=True, stable=True)[:, :2].tolist()
    found: list[Suggestion] = []
    for _ in range(min(n, int(open_nodes.sum()))):
        reached = reach(walk, labeled, unsure)
        score = torch.where(open_nodes, unsure**sharpness * (unsure + reached), -1.0)
        node = int(score.argmax())
        first, second = likeliest[node]
        found.append(
            Suggestion(
                node=node,
                id=graph.node_names[node],
                score=float(score[node]),
                guess=names[first],
                probability=float(probabilities[node, first]),
                runner_up=names[second],
                runner_up_probability=float(probabilities[node, second]),
                uncertainty=float(unsure[node]),
                reach=float(reached[node]),
            )
        )
        labeled[node], open_nodes[node] = True, False
        unsure = unsure * (1 - covered(walk, labeled, node))
    return found


def uncertainty(probabilities: Tensor) -> Tensor:
    """The entropy of each row as a share of the highest there is, [n]: 0 certain, 1 all classes alike."""
    nats: Tensor = torch.special.entr(probabilities).sum(dim=1)
    return nats / math.log(probabilities.shape[1])


def reach(transition: SparseMatrix, labeled: Tensor, weight: Tensor) -> Tensor:
    """Σ_a w_a I_l(v_a, v_b; 2) over the other unlabelled v_a, as if v_b alone were labelled too, for every v_b, [n].

    Exact: a walk that comes to v_b ends there, so the walks that would come back to it are taken off: those that start at v_b, and
    those that stayed there. Longer walks come back in more ways than are cheap to count.

    Args:
        weight: w, [n]; that of labelled nodes does not count.
    """
    is_open = (~labeled).double().numpy()
    away = scipy.sparse.diags_array(is_open) @ transition.to_scipy() @ scipy.sparse.diags_array(is_open)
    w, loop, back = weight.double().numpy() * is_open, away.diagonal(), away.T.tocsr()
    at_first = back @ w
    first = at_first - loop * w
    returns = away.multiply(back).sum(axis=1)  # (Ã²)_bb
    both = first + back @ at_first - returns * w - loop * first
    return torch.from_numpy(both).clamp_min(0)  # rounding leaves -1e-17 of nothing


def covered(transition: SparseMatrix, labeled: Tensor, node: int) -> Tensor:
    """I_l(v_a, v_b; 2) of one labelled v_b on every v_a, 1 on itself and 0 on other labelled nodes, [n]."""
    seed = torch.zeros(len(labeled), 1, dtype=transition.dtype)
    seed[node] = 1
    share = propagate_labels(transition, seed, 2, labeled=labeled)
    return torch.where(labeled.unsqueeze(1), seed, share).squeeze(1)


def read_candidates(path: str | Path, graph: Graph) -> Tensor:
    """The nodes a file names, one id per line, as a mask, [n]; a first line `id` is a header."""
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        name = line.strip()
        if not name or (number == 1 and name == "id"):
            continue
        try:
            mask[graph.index_of(name)] = True
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not mask.any():
        raise ValueError(f"{path} names no node; it holds one id per line")
    return mask


def suggestion_table(found: list[Suggestion]) -> Any:
    """A DataFrame id, score, guess, probability, runner_up, uncertainty, reach, why; a row per suggestion, best first."""
    import pandas

    columns = ("id", "score", "guess", "probability", "runner_up", "uncertainty", "reach", "why")
    return pandas.DataFrame({name: [getattr(one, name) for one in found] for name in columns})
