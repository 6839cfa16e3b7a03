"""Theorems 1 to 4 as measurements, and the list of every statement that can be measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import scipy.sparse
import scipy.stats
import torch
from torch import Tensor

from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.model import GCNLPA, Convolutions
from gcn_lpa.propagation import feature_influence, label_influence, propagate_labels
from gcn_lpa.stats import mean_of
from reproduction.checks import (
    ROUNDING,
    Check,
    at_most,
    equal,
    feature_rows,
    few_columns,
    label_mass,
    largest,
    sample,
    walk_matrix,
)
from reproduction.counterexamples import dead_end, diamond, double_star, line, ring, two_sides
from reproduction.energy import energy, worst_features
from reproduction.lemmas import eq_4, eq_5, lemma_1, lemma_2, lemma_3, lemma_4
from reproduction.rebuilding import least_squares, locally_linear

MEDIUM = 5000  # nodes up to which a sparse linear system takes no time


def theorem_1(graph: Graph, model: GCNLPA | None = None, seed: int = 0, nodes: int = 48, hops: int = 5) -> list[Check]:
    """Theorem 1: |y_i - Σ ã_ij y_j| ≤ L ‖ε_i‖ + o(max ‖x_j - x_i‖), ε_i = x_i - Σ ã_ij x_j.

    On a data set the remainder is unknown, so the bound is measured without it: labels as one-hot rows, L the largest
    ‖y_i - y_j‖ / ‖x_i - x_j‖ found. The node itself is no neighbour here, or every ε_i could be 0. Over k hops ã are the
    probabilities of a walk of k steps; least-squares weights take any nodes within k hops. LLE (Section 3.1) rebuilds a node
    from its neighbours with weights of sum 1 and any sign. The steps of Appendix A are measured where the mapping is known.
    """
    x, known = feature_rows(graph), graph.labeled
    y = label_mass(graph, known).numpy()
    chosen = sample(_has_known_neighbour(graph), nodes, seed)
    lipschitz, twins = _lipschitz(x, y, known.numpy(), np.union1d(chosen, sample(known, 256, seed + 1)))
    words = f"{len(chosen)} nodes, means over them, 1 to {hops} hops; L = {lipschitz:.3g}, no remainder"
    words += f"; {twins:,} pairs of equal features and unequal labels left out of L" if twins else ""
    matrices = {"given": walk_matrix(graph)} | ({} if model is None else {"learned": walk_matrix(graph, model)})
    ways = {
        name: [_others(feature_influence(matrix, chosen, k).numpy(), chosen, known) for k in range(1, hops + 1)]
        for name, matrix in matrices.items()
    }
    ways["least-squares"] = least_squares(graph, x, chosen, hops)
    ways["LLE"] = [locally_linear(graph, x, chosen)]
    checks, errors = [], {}
    for name, weights in ways.items():
        epsilon = [np.linalg.norm(x[chosen.numpy()].toarray() - w @ x, axis=1) for w in weights]
        wrong = [np.linalg.norm(y[chosen.numpy()] - w @ y, axis=1) for w in weights]
        errors[name] = tuple(float(e.mean()) for e in epsilon)
        over = np.array(wrong) - lipschitz * np.array(epsilon)  # [hops, nodes]
        broken = f"; broken in {int((over > ROUNDING).sum())} of {over.size} cases"
        checks.append(
            at_most(
                f"Theorem 1, {name} weights",
                graph.name,
                tuple(float(w.mean()) for w in wrong),
                tuple(lipschitz * e for e in errors[name]),
                words + broken,
                gap=float(over.max()),
            )
        )
    smallest = f"mean ‖ε_i‖ of features of length 1, {len(chosen)} nodes, 1 to {hops} hops, LLE: 1"
    checks += [
        equal(
            f"Theorem 1, ‖ε‖ → 0 by choice of weights: {name}",
            graph.name,
            found,
            (0.0,) * len(found),
            smallest,
            tolerance=0.01,
        )
        for name, found in errors.items()
    ]
    return [*checks, *_known_mapping(seed)]


def _known_mapping(seed: int) -> list[Check]:
    """Graphs whose labels are a known function of the features, so that L and the remainder are known too."""
    spacings, wrong = (1.0, 0.1, 0.01), []
    for spacing in spacings:
        points = line(spacing)
        y = torch.from_numpy(np.sin(feature_rows(points, "raw").toarray()))
        wrong.append(largest((y - points.adjacency.to(torch.float64).row_normalized() @ y).abs()[1:-1]))
    x, slope = np.random.default_rng(seed).random((400, 2)), np.array([3.0, 2.0])
    apart = np.linalg.norm(x[:, None] - x[None], axis=2)
    near = np.argsort(apart, axis=1)[:, 1:7]
    truth = np.sin(x @ slope)
    error = np.abs(truth - truth[near].mean(axis=1))
    epsilon = np.linalg.norm(x - x[near].mean(axis=1), axis=1)
    reach = np.take_along_axis(apart, near, axis=1).max(axis=1)
    steep = float(np.linalg.norm(slope))
    bound = steep * epsilon + 0.5 * steep**2 * reach**2
    gradient = np.cos(x @ slope)[:, None] * slope
    missing = x - x[near].mean(axis=1)  # ε_i
    along = (gradient * missing).sum(axis=1)
    steps = x[near] - x[:, None]
    remainders = truth[near] - truth[:, None] - (gradient[:, None] * steps).sum(axis=2)  # r_ij of Taylor's expansion
    rest = remainders.mean(axis=1)
    square = "400 points in a square, 6 nearest neighbours, y = sin(3x₁ + 2x₂)"
    ends = "inner points of a line, y = sin x, L = 1; ε = 0 since each point is the mean of its neighbours"
    return [
        equal(
            "Appendix A, Σ ã_ij y_j = y_i - ∇M·ε_i + Σ ã_ij r_ij",
            "400 points in a square",
            largest(torch.from_numpy(np.abs(truth[near].mean(axis=1) - (truth - along + rest)))),
            0.0,
            f"{square}; r_ij is what Taylor's line leaves of y_j; the largest difference of the two sides",
        ),
        at_most(
            "Appendix A, |∇M·ε_i| ≤ L‖ε_i‖",
            "400 points in a square",
            float(np.abs(along).mean()),
            float(steep * epsilon.mean()),
            f"{square}; means",
            gap=float((np.abs(along) - steep * epsilon).max()),
        ),
        at_most(
            "Appendix A, |Σ ã_ij r_ij| ≤ ½L²·max ‖x_j - x_i‖²",
            "400 points in a square",
            float(np.abs(rest).mean()),
            float((0.5 * steep**2 * reach**2).mean()),
            f"{square}; means; needs ã ≥ 0 and a second derivative, where the paper has o(·)",
            gap=float((np.abs(rest) - 0.5 * steep**2 * reach**2).max()),
        ),
        at_most("Theorem 1, without the remainder", "line", wrong[0], 0.0, f"{ends}; spacing 1"),
        at_most(
            "Theorem 1, the error is o(spacing)",
            "line",
            tuple(w / h for w, h in zip(wrong, spacings, strict=True)),
            tuple(h / 2 for h in spacings),
            f"{ends}; error / spacing for spacings 1, .1, .01 beside Taylor's bound",
        ),
        at_most(
            "Theorem 1, known mapping",
            "400 points in a square",
            float(error.mean()),
            float(bound.mean()),
            "y = sin(3x₁ + 2x₂), 6 nearest neighbours, L = √13, remainder ½L²·max‖x_j - x_i‖²; means",
            gap=float((error - bound).max()),
        ),
    ]


def _has_known_neighbour(graph: Graph) -> Tensor:
    """Labelled nodes with another labelled node next to them."""
    pattern, known = graph.pattern, graph.labeled.double()
    others = pattern.row_sum(pattern.spread_cols(known) * (pattern.row != pattern.col))
    return (others > 0) & graph.labeled


def _others(weights: np.ndarray, nodes: Tensor, known: Tensor) -> np.ndarray:
    """The weights without those of the node itself and of nodes whose label is unknown, each row brought back to 1."""
    weights = weights * known.numpy()
    weights[np.arange(len(nodes)), nodes.numpy()] = 0
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))


def _lipschitz(x: scipy.sparse.csr_array, y: np.ndarray, known: np.ndarray, nodes: np.ndarray) -> tuple[float, int]:
    """The largest ‖y_i - y_j‖ / ‖x_i - x_j‖ between `nodes` and all others, and how many pairs have no distance but two classes."""
    squares = np.asarray(x.multiply(x).sum(axis=1)).ravel()
    distances = squares[nodes, None] + squares[None] - 2 * (x[nodes] @ x.T).toarray()
    differ = (y[nodes] @ y.T < 0.5) & known
    apart = distances > 1e-9
    closest = distances[differ & apart]
    return (float(np.sqrt(2 / closest.min())) if len(closest) else 0.0), int((differ & ~apart).sum())


def expected_label_influence(transition: SparseMatrix, a: int, b: int, iterations: int, unlabeled: float) -> float:
    """E[I_l(v_a, v_b; k)] over all patterns of labels in which v_a has none, v_b has one, and every other node has none with
    probability β, by going through all 2^(n-2) of them."""
    n, total = transition.shape[0], 0.0
    others = [node for node in range(n) if node not in (a, b)]
    for pattern in itertools.product([False, True], repeat=len(others)):
        labeled = torch.zeros(n, dtype=torch.bool)
        labeled[b] = True
        labeled[others] = torch.tensor(pattern)
        chance = math.prod(1 - unlabeled if has else unlabeled for has in pattern)
        total += chance * float(label_influence(transition, labeled, torch.tensor([a]), iterations).total[0, b])
    return total


def cumulative_feature_influence(transition: SparseMatrix, nodes: Tensor, iterations: int, factors: Sequence[float]) -> Tensor:
    """Σ_j f_j Ĩ_f(v_a, v_b; j), the right side of Theorem 2 with f_j = β^j, [b, n]."""
    steps = (factor * feature_influence(transition, nodes, j) for j, factor in zip(range(1, iterations + 1), factors, strict=True))
    return sum(steps, torch.zeros(()))


def theorem_2(
    graph: Graph,
    model: GCNLPA | None = None,
    seed: int = 0,
    unlabeled: float = 0.4,
    iterations: int = 5,
    draws: int = 200,
) -> list[Check]:
    """Theorem 2: E[I_l(v_a, v_b; k)] = Σ_j β^j Ĩ_f(v_a, v_b; j), β the share of unlabelled nodes.

    Definition 2 takes v_a as unlabelled, which leaves j - 1 nodes of a path to be so: β^(j-1). That is exact for k = 1, and for
    k = 2 without self-loops. Else it is not either: a walk that comes back to a node asks for its label only once.
    """
    checks, looped = [], walk_matrix(diamond())
    bare = diamond(self_loops=False).adjacency.to(torch.float64).row_normalized()
    for small, k, loops in ((looped, 1, ""), (bare, 2, ", no self-loops"), (looped, 3, "")):
        exact = expected_label_influence(small, 0, 2, k, 0.5)
        words = f"all patterns of labels, β = .5, node 0 unlabelled, node 2 labelled, k = {k}{loops}"
        for name, first in (("as printed, β^j", 1), ("β^(j-1)", 0)):
            factors = [0.5 ** (j + first) for j in range(k)]
            sides = float(cumulative_feature_influence(small, torch.tensor([0]), k, factors)[0, 2])
            checks.append(equal(f"Theorem 2, {name}", "diamond", exact, sides, words))
    transition, count = walk_matrix(graph), 16
    nodes = sample(torch.ones(graph.num_nodes, dtype=torch.bool), count, seed)
    totals = _absorbed(transition, nodes, iterations, unlabeled, draws, seed)
    measured = mean_of(totals)
    exact, spread = measured.mean, measured.interval or 0.0
    words = (
        f"{draws} random patterns of labels, β = {unlabeled:g}, k = {iterations}, {len(nodes)} nodes v_a; Σ over all v_b but v_a, "
        f"mean, ± {spread:.2g} (95 %) on the left"
    )
    for name, first in (("as printed, β^j", 1), ("β^(j-1)", 0)):
        factors = [unlabeled ** (j + first) for j in range(iterations)]
        pairs = cumulative_feature_influence(transition, nodes, iterations, factors).scatter(1, nodes.unsqueeze(1), 0)
        checks.append(equal(f"Theorem 2, {name}", graph.name, exact, float(pairs.sum(dim=1).mean()), words, tolerance=spread))
    return checks


def _absorbed(transition: SparseMatrix, nodes: Tensor, iterations: int, unlabeled: float, draws: int, seed: int) -> np.ndarray:
    """Σ_b E[I_l(v_a, v_b; k) | v_b labelled], mean over the v_a, for each of so many random patterns of labels, [draws].

    A pattern of its own for every v_a, in which v_a is unlabelled. What v_b gives counts where v_b is labelled, so it is divided
    by the probability of that.
    """
    rng, columns, totals = np.random.default_rng(seed), torch.arange(len(nodes)), []
    backwards = transition.T
    for _ in range(draws):
        ends = torch.from_numpy(rng.random((transition.shape[0], len(nodes))) >= unlabeled)
        ends[nodes, columns] = False
        at, total = torch.zeros(ends.shape, dtype=torch.float64), 0.0
        at[nodes, columns] = 1
        for _ in range(iterations):
            at = backwards @ at
            total += float((at * ends).sum())
            at = at * ~ends
        totals.append(total / len(nodes) / (1 - unlabeled))
    return np.array(totals)


def theorem_3(graph: Graph, model: GCNLPA | None = None, seed: int = 0, iterations: int = 5) -> list[Check]:
    """Theorem 3: Σ I_l(v_a, v_b) over v_b of v_a's class ∝ Pr(ŷ_a = y_a). The sum is y_a[c], exactly; Pr is y_a[c] / Σ_i y_a[i],
    and that sum depends on the edge weights. So weights that raise Pr need not raise the influence.
    """
    transition, labeled = walk_matrix(graph), split(graph, seed=seed).train
    nodes = sample(_has_known_neighbour(graph), 64, seed)
    own, score, share = [], [], []
    for node in nodes.tolist():
        given = labeled.clone()
        given[node] = False  # "treat node v_a as unlabeled"
        mass, label = label_mass(graph, given), int(graph.y[node])
        votes = label_influence(transition, given, torch.tensor([node]), iterations).total[0]
        y = propagate_labels(transition, mass, iterations, labeled=given)[node]
        own.append(float(votes[graph.y == label].sum()))
        score.append(float(y[label]))
        share.append(float(y[label] / y.sum().clamp_min(1e-300)))
    words = f"{len(nodes)} nodes, each taken as unlabelled, {iterations} iterations, 60 % of the others labelled"
    worst = int(np.abs(np.array(own) - score).argmax())
    ratios = [influence / probability for influence, probability in zip(own, share, strict=True) if probability > 0]
    ranks = float(scipy.stats.spearmanr(own, share).statistic) if len({*own}) > 1 and len({*share}) > 1 else math.nan
    checks = [equal("Theorem 3, y_a[c] = Σ I_l", graph.name, score[worst], own[worst], words)]
    if ratios:
        linked = "" if math.isnan(ranks) else f"; rank correlation of the two {ranks:.2f}"
        checks.append(
            equal(
                "Theorem 3, Σ I_l ∝ Pr",
                graph.name,
                min(ratios),
                max(ratios),
                f"smallest and largest Σ I_l / Pr; {words}{linked}",
            )
        )
    probability, influence = zip(*(_vote(small) for small in (dead_end(), two_sides())), strict=True)
    checks.append(
        Check(
            "Theorem 3, more Pr is more influence",
            probability,
            influence,
            float(probability[0] - influence[0]),
            (probability[0] > probability[1]) == (influence[0] > influence[1]),
            "Pr on the left, Σ I_l on the right: weights .1 to the own class and .9 to a dead end; .6 to the own and .4 to the "
            "other class; one iteration, no self-loops",
            "same order as",
            "dead end; two sides",
        )
    )
    return checks


def _vote(graph: Graph) -> tuple[float, float]:
    """Pr(ŷ = y) and Σ I_l of node 0 after one iteration."""
    labeled = graph.labeled.clone()
    labeled[0] = False
    transition = graph.adjacency.to(torch.float64).row_normalized()
    y = propagate_labels(transition, label_mass(graph, labeled), 1, labeled=labeled)[0]
    influence = label_influence(transition, labeled, torch.tensor([0]), 1).total[0]
    return float(y[0] / y.sum()), float(influence[graph.y == graph.y[0]].sum())


def theorem_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Theorem 4: D(h) ≤ D(x). False: see `double_star`. E(x) = ½ Σ a_ij ‖x_i - x_j‖² with symmetric A does not grow.

    Since E / d_max ≤ D ≤ E / d_min, D grows at most (d_max / d_min)-fold, and not at all where all nodes have one degree.
    """
    checks = []
    for subject in (ring(), double_star(), graph):
        x = few_columns(subject, seed)
        mixed = "" if subject.num_features <= x.shape[1] else f"{x.shape[1]} random mixtures of the features; "
        checks += _shrinks(subject.name, walk_matrix(subject), subject.with_self_loops().adjacency, x, f"{mixed}given weights")
        checks += _on_the_worst_features(subject.name, walk_matrix(subject), "given weights")
    if model is not None:
        prepared = model.recipe.prepare(graph)
        with torch.no_grad():
            transition, scores = walk_matrix(graph, model), model.edge_scores(prepared)
            learned = (scores.values - scores.values.max()).exp().double()
            strength = scores.with_values(learned)
            symmetric = strength.with_values((learned + strength.reversed_values) / 2) if not graph.directed else strength
            inputs = [few_columns(prepared, seed), *(x.double() for x in hidden_layers(model, prepared))]
        checks += _on_the_worst_features(graph.name, transition, "the trained model's edges")
        for number, x in enumerate(inputs, 1):
            words = f"the trained model's edges, input of layer {number} of {len(inputs)}"
            checks += _shrinks(graph.name, transition, symmetric, x, words)
    return checks


def hidden_layers(model: GCNLPA, prepared: Graph) -> list[Tensor]:
    """X^(1) … X^(K-1) of a model of convolutions on a prepared graph."""
    smoothing, body, outputs = model.smoothing(prepared), cast(Convolutions, model.body), list[Tensor]()
    for k in range(len(body.weights) - 1):
        x = outputs[-1] if outputs else prepared.x
        h = smoothing @ (x @ body.weights[k])
        h = h + x @ body.skips[k] if body.skips else h
        h = h + body.biases[k] if body.biases else h
        outputs.append((body.norms[k](h) if body.norms else h).relu())
    return outputs


def _shrinks(on: str, transition: SparseMatrix, adjacency: SparseMatrix, x: Tensor, words: str) -> list[Check]:
    weights = adjacency.to(torch.float64)
    before, after = energy(transition, x), energy(transition, transition @ x)
    even = weights.row_normalized()
    even_before, even_after = energy(weights, x), energy(weights, even @ x)
    degrees = weights.row_sums()
    factor = float(degrees.max() / degrees.min())
    return [
        at_most("Theorem 4, D(h) ≤ D(x), as printed", on, float(after), float(before), words),
        at_most(
            "Theorem 4, D(h) ≤ (d_max / d_min) D(x)",
            on,
            float(energy(even, even @ x)),
            factor * float(energy(even, x)),
            f"{words}, (A + Aᵀ)/2 where they differ; d_max / d_min is {factor:.4g}",
        ),
        at_most(
            "Theorem 4, E(h) ≤ E(x)",
            on,
            float(even_after),
            float(even_before),
            f"{words}, (A + Aᵀ)/2 where they differ",
        ),
    ]


def _on_the_worst_features(on: str, transition: SparseMatrix, words: str) -> list[Check]:
    """Theorem 4 for every x: measured on the x on which D grows most; of large graphs nothing."""
    if transition.shape[0] > MEDIUM:
        return []
    x = worst_features(transition)
    x = x / energy(transition, x).sqrt()
    after, before = float(energy(transition, transition @ x)), float(energy(transition, x))
    return [at_most("Theorem 4, D(h) ≤ D(x) for every x", on, after, before, f"{words}, the x with the largest D(h) / D(x)")]


Theorem = Callable[..., list[Check]]  # of (graph, model, seed)
THEOREMS: dict[str, Theorem] = {
    "eq-4": eq_4,
    "eq-5": eq_5,
    "lemma-1": lemma_1,
    "lemma-2": lemma_2,
    "lemma-3": lemma_3,
    "lemma-4": lemma_4,
    "theorem-1": theorem_1,
    "theorem-2": theorem_2,
    "theorem-3": theorem_3,
    "theorem-4": theorem_4,
}
LEARNED = ("lemma-1", "theorem-1", "theorem-4")  # those that say more where there is a trained model


def known_names(names: Sequence[str] | None) -> list[str]:
    """The names as they are, all of THEOREMS for None; an unknown one is a ValueError."""
    names = [names] if isinstance(names, str) else names
    if unknown := [name for name in names or () if name not in THEOREMS]:
        raise ValueError(f"there is no check {unknown[0]!r}; there are {', '.join(THEOREMS)}")
    return list(THEOREMS) if names is None else list(names)


def check_theorems(graph: Graph, names: Sequence[str] | None = None, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Measure the statements of the paper on a graph and on their counterexamples.

    Args:
        names: keys of THEOREMS; all of them without.
        model: a trained GCN-LPA of this graph, for the checks of learned edges and layers.
        seed: of the labels that are given, the nodes that are looked at, and all else that is drawn.
    """
    check_graph(graph)
    if not isinstance(model, GCNLPA | None):
        raise TypeError(f"model is a GCNLPA, or None, not {type(model).__name__}")
    names, graph = known_names(names), graph.to("cpu")
    if int(graph.labeled.sum()) < 5 or not bool(_has_known_neighbour(graph).any()):
        raise ValueError(f"{graph.name!r} has too few labels: at least 5 nodes need one, two of them neighbours")
    model = None if model is None else model.to("cpu")
    return [check for name in names for check in THEOREMS[name](graph, model, seed)]
