"""Zachary's karate club, Figures 2 and 7: does a straight line separate the two classes in the embedding?

The text of the paper takes an *untrained* GCN, with random weights, and imitates GCN-LPA by making edges inside a class
ten times stronger, with the classes of all nodes known. The caption of Figure 2 says *trained*. Both are done here, over
many random starts, since a single start can show anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy import stats

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import PAPER
from reproduction.aggregation import AggregatingGCNLPA
from reproduction.claims import KARATE, Case
from reproduction.recipes import StudyRecipe
from reproduction.training import learn_once

TOUCHING = 1e-6  # of the standard deviation: points nearer than this have no line between them
THIN = 1e-3  # of the length of a cloud of points: less width than this counts as none
UNTRAINED = ("gcn", "gcn-lpa")
TRAINED = ("gcn", "gcn-lpa", "gcn-lpa held-out")  # the last with the loss in which no node sees its own label
NETWORKS = ("original", "noisy")


@dataclass(frozen=True, eq=False)
class Line:
    """The straight line with the fewest points on the wrong side: normal · x = offset."""

    normal: np.ndarray  # [2]
    offset: float
    wrong: np.ndarray  # which points are on the wrong side, [n]

    @property
    def num_wrong(self) -> int:
        return int(self.wrong.sum())


def best_line(points: np.ndarray, y: np.ndarray) -> Line:
    """The straight line with the fewest points of two classes on the wrong side; of several, that with the widest gap.

    Exact, but for THIN clouds, which count as a line: the order of the points along a direction changes only where two of
    them swap, so one direction between each two such angles sees every order there is, and each order is cut at every
    place. `num_wrong` = 0 is linear separability.

    Args:
        points: [n, 2]
        y: class 0 or 1 of each point, [n]
    """
    center, axes = points.mean(axis=0), whitening(points)
    white = (points - center) @ axes
    i, j = np.triu_indices(len(points), 1)
    step = white[j] - white[i]
    swaps = np.unique(np.mod(np.arctan2(step[:, 0], -step[:, 1]), np.pi))
    angles = (swaps + np.append(swaps[1:], swaps[0] + np.pi)) / 2
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    places = directions @ white.T  # [directions, n]
    order = np.argsort(places, axis=1, kind="stable")
    places = np.take_along_axis(places, order, axis=1)
    ones_before = np.cumsum(y[order], axis=1)[:, :-1]
    before = np.arange(1, len(points))
    wrong = ones_before + (len(points) - before) - (y.sum() - ones_before)  # class 0 before the cut, class 1 behind it
    wrong = np.minimum(wrong, len(points) - wrong)
    gap = np.diff(places, axis=1)
    score = np.where(gap > TOUCHING, -wrong + gap / (1 + gap.max()), -np.inf)
    d, k = np.unravel_index(score.argmax(), score.shape)
    rarer = int(2 * y.sum() <= len(y))
    if gap[d, k] <= TOUCHING or wrong[d, k] > (y == rarer).sum():  # better to leave all points on one side
        return Line(np.array([1.0, 0.0]), float(points[:, 0].min()) - 1, y == rarer)
    normal = axes @ directions[d]
    offset = float((places[d, k] + places[d, k + 1]) / 2 + center @ normal)
    side = (points @ normal > offset).astype(int)
    misses = side != y
    return Line(normal, offset, misses if 2 * misses.sum() <= len(y) else ~misses)


def whitening(points: np.ndarray) -> np.ndarray:
    """The map to principal axes of unit variance, which moves no point across a line; a THIN axis is dropped, [2, 2].

    Training brings the embedding close to a line, the difference of the two logits, and L2 on W shrinks what is beside it.
    """
    _, size, axes = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    size = np.where(size > THIN * max(size[0], np.finfo(float).tiny), size, np.inf)
    return np.asarray(axes.T / size * np.sqrt(len(points)))


def noisy_edges(graph: Graph, count: int, seed: int) -> np.ndarray:
    """Random pairs of nodes of different classes that no edge joins yet, [count, 2]."""
    y, joined = graph.y.numpy(), graph.to_scipy().toarray() != 0
    free = np.argwhere(np.triu((y[:, None] != y[None, :]) & ~joined))
    if len(free) < count:
        raise ValueError(f"{count} noisy edges are asked for, but only {len(free)} pairs of different classes are free")
    return np.asarray(free[np.random.default_rng(seed).choice(len(free), size=count, replace=False)])


@cache
def network(kind: str, seed: int, *, strengthening: float = 1.0) -> Graph:
    """The club, "original" or "noisy": with 20 inter-class edges drawn by `seed`; intra-class edges times `strengthening`."""
    if kind not in NETWORKS:
        raise ValueError(f"unknown network {kind!r}; there are {', '.join(NETWORKS)}")
    club = load("karate")
    y = club.y.numpy()
    matrix = club.to_scipy().tocoo()
    source, target = matrix.coords
    if kind == "noisy":
        added = noisy_edges(club, KARATE.noisy_edges, seed)
        source = np.concatenate([source, added[:, 0], added[:, 1]])
        target = np.concatenate([target, added[:, 1], added[:, 0]])
    weight = np.where(y[source] == y[target], strengthening, 1.0)
    joined = scipy.sparse.coo_array((weight, (source, target)), shape=matrix.shape)
    return Graph.from_scipy(joined, y=y, class_names=club.class_names, name=f"karate, {kind}")


@dataclass(frozen=True, eq=False)
class Embedding:
    """Where a model puts the members of the club, and how well a line separates the two classes."""

    points: np.ndarray  # [34, 2]
    line: Line
    test_accuracy: float | None = None  # of a trained model, on the nodes whose labels it did not see


def untrained_recipe(layers: int) -> StudyRecipe:
    """Appendix E: width 2, sigmoid, W uniform in [-1, 1]; the edges are as given."""
    return StudyRecipe(
        edges="fixed",
        lpa_weight=0.0,
        gcn_layers=layers,
        hidden=KARATE.width,
        activation=KARATE.activation,
        output_activation=KARATE.activation,
        init="uniform",
        features="raw",
        residual=False,
        dropout=0.0,
        origin="the paper, Appendix E",
    )


def trained_recipe(method: str, layers: int, epochs: int) -> StudyRecipe:
    """The same network with logits at its end, trained as Table 4 trains on Citeseer."""
    recipe = StudyRecipe.of(PAPER["citeseer"]).replace(
        gcn_layers=layers,
        hidden=KARATE.width,
        activation=KARATE.activation,
        init="uniform",
        features="raw",
        epochs=epochs,
        origin="the paper: network of Appendix E, training of Table 4, Citeseer",
    )
    changes: dict[str, dict[str, Any]] = {
        "gcn": {"edges": "fixed", "lpa_weight": 0.0},
        "gcn-lpa": {},
        "gcn-lpa held-out": {"loss": "held_out"},
    }
    return recipe.replace(**changes[method])


def embedding(model: GCNLPA, graph: Graph, test_accuracy: float | None = None) -> Embedding:
    """The output of a model on a prepared graph, in float64: deep embeddings are nearly a line, and rounding would show."""
    double = torch.float64
    graph = dataclasses.replace(graph, adjacency=graph.adjacency.to(double), x=graph.x.to(double))
    with torch.no_grad():
        points = model.double()(graph).numpy()
    return Embedding(points, best_line(points, graph.y.numpy()), test_accuracy)


@cache
def untrained(case: Case, seed: int) -> Embedding:
    """A GCN with random weights; "gcn-lpa" is the same GCN, same weights, on strengthened intra-class edges."""
    recipe = untrained_recipe(case.layers)
    stronger = {"gcn": 1.0, "gcn-lpa": KARATE.strengthening}[case.method]
    graph = recipe.prepare(network(case.network, seed, strengthening=stronger))
    return embedding(AggregatingGCNLPA(recipe, graph, seed), graph)


@cache
def trained(case: Case, seed: int, epochs: int) -> Embedding:
    """A model trained on 60 % of the labels, at its last epoch: 34 nodes are too few to choose one."""
    recipe, graph = trained_recipe(case.method, case.layers, epochs), network(case.network, seed)
    train = split(graph, seed=seed).train
    learned = learn_once(graph, train, torch.zeros_like(train), recipe, seed=seed, device="cpu", threads=1)
    accuracy = learned.scores(graph, ~train).accuracy
    return embedding(learned.model, recipe.prepare(graph), accuracy)


def tally(case: Case, found: Sequence[Embedding]) -> dict[str, Any]:
    """What is counted of one case: every start, and the share of separable ones with its 95 % interval (Wilson)."""
    wrong = [embedding.line.num_wrong for embedding in found]
    low, high = stats.binomtest(wrong.count(0), len(wrong)).proportion_ci(method="wilson")
    counted: dict[str, Any] = {
        **case._asdict(),
        "starts": len(wrong),
        "separable": wrong.count(0) / len(wrong),
        "separable_interval": [float(low), float(high)],
        "mean_wrong": float(np.mean(wrong)),
        "wrong": wrong,
    }
    scores = [e.test_accuracy for e in found if e.test_accuracy is not None]
    return {**counted, "test_accuracy": scores} if scores else counted


def typical_start(tallies: Sequence[Mapping[str, Any]]) -> int:
    """The start whose numbers of wrong nodes are nearest to the means of all cases: the one to draw."""
    wrong = np.array([one["wrong"] for one in tallies])  # [cases, starts]
    return int(abs(wrong - wrong.mean(axis=1, keepdims=True)).sum(axis=0).argmin())


def find_tally(tallies: Sequence[Mapping[str, Any]], case: Case) -> Mapping[str, Any]:
    """The tally of a case."""
    try:
        return next(one for one in tallies if (one["method"], one["network"], one["layers"]) == tuple(case))
    except StopIteration:
        raise ValueError(f"no starts of {case}; run the figure in full") from None
