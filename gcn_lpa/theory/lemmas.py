"""The paper's lemmas, theorems and fixed points as measurements: what each side is on a given graph, and whether they agree.

Nothing here asserts. Each function returns `Check`s: of the statement as printed, of the form that holds where the printed one does
not, and of the smallest graphs on which it fails. All numbers are float64. `THEOREMS` lists the functions, `check_theorems`
runs them. The graph is taken with self-loops, as the paper does (Section 2.1).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.stats
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.edges import glorot
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph, split
from gcn_lpa.model import GCNLPA, propagate_labels
from gcn_lpa.theory.influence import feature_influence, label_influence

Side = float | tuple[float, ...]
ROUNDING = 1e-9  # two float64 sides that differ by less are equal
SMALL = 500  # nodes up to which a dense eigenvalue problem takes no time
MEDIUM = 5000  # nodes up to which a sparse linear system does


@dataclass(frozen=True)
class Check:
    """One statement, measured. For "=" the gap is the largest |lhs - rhs|, for "≤" the largest lhs - rhs."""

    name: str
    lhs: Side
    rhs: Side
    gap: float
    holds: bool
    assumptions: str  # under which it was measured, in words
    relation: str = "="
    on: str = ""  # the graph

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def equal(name: str, on: str, lhs: Side, rhs: Side, assumptions: str, tolerance: float = ROUNDING) -> Check:
    gap = max(abs(left - right) for left, right in _pairs(lhs, rhs))
    return Check(name, lhs, rhs, gap, gap <= tolerance, assumptions, "=", on)


def at_most(name: str, on: str, lhs: Side, rhs: Side, assumptions: str, gap: float | None = None) -> Check:
    """`gap` where it is not that of the sides shown, such as the worst of many nodes beside their mean."""
    gap = max(left - right for left, right in _pairs(lhs, rhs)) if gap is None else gap
    size = max(1.0, *(abs(right) for _, right in _pairs(lhs, rhs)))
    return Check(name, lhs, rhs, gap, gap <= ROUNDING * size, assumptions, "≤", on)


def _pairs(lhs: Side, rhs: Side) -> Iterator[tuple[float, float]]:
    left, right = (side if isinstance(side, tuple) else (side,) for side in (lhs, rhs))
    return zip(left, right, strict=True)


# The graphs on which statements fail. Each is as small as we could find.


def double_star(leaves: int = 6) -> Graph:
    """Two joined hubs, each with its leaves, self-loops; x = 1 on one star and -1 on the other. D(x) grows from 1/2 to 33/64."""
    edges = [(0, 1), *((hub, 2 + hub * leaves + leaf) for hub in (0, 1) for leaf in range(leaves))]
    x = [[1.0], [-1.0], *[[1.0]] * leaves, *[[-1.0]] * leaves]
    y = [0 if row[0] > 0 else 1 for row in x]
    return Graph.from_edges(edges, x=x, y=y, self_loops=True, name="double star")


def star(leaves: int = 6) -> Graph:
    """A hub and its leaves with self-loops: 2I - ∇²D has the eigenvalue -2.5."""
    edges = [(0, leaf) for leaf in range(1, leaves + 1)]
    return Graph.from_edges(edges, x=[[1.0], *[[-1.0]] * leaves], y=[0, *[1] * leaves], self_loops=True, name="star")


def diamond() -> Graph:
    """Two triangles that share the edge 2 - 3, self-loops: the walks from 0 to 2 revisit nodes."""
    edges = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    return Graph.from_edges(edges, y=[0, 0, 1, 1], self_loops=True, name="diamond")


def dead_end() -> Graph:
    """Node 0 has an edge of .1 to node 1 of its own class and one of .9 to node 2, which leads nowhere."""
    return Graph.from_edges(
        [(0, 1), (0, 2)], weights=[0.1, 0.9], y=[0, 0, -1], class_names=["own", "other"], name="dead end"
    )


def two_sides() -> Graph:
    """Node 0 has an edge of .6 to node 1 of its own class and one of .4 to node 2 of the other."""
    return Graph.from_edges([(0, 1), (0, 2)], weights=[0.6, 0.4], y=[0, 0, 1], name="two sides")


def line(spacing: float, nodes: int = 64) -> Graph:
    """Evenly spaced points on a line, each joined to its two neighbours: ε_i = 0 at all but the ends."""
    x = (torch.arange(nodes, dtype=torch.float64) - nodes / 2 + 0.5).unsqueeze(1) * spacing
    return Graph.from_edges([(i, i + 1) for i in range(nodes - 1)], x=x.numpy(), name=f"line, spacing {spacing:g}")


COUNTEREXAMPLES: dict[str, Callable[[], Graph]] = {
    "double_star": double_star, "star": star, "diamond": diamond, "dead_end": dead_end, "two_sides": two_sides,
}  # fmt: skip


def walk_matrix(graph: Graph, model: GCNLPA | None = None) -> SparseMatrix:
    """D⁻¹A of a graph with self-loops, or the D*⁻¹A* of a trained model, in float64."""
    if model is None:
        return graph.with_self_loops().adjacency.to(torch.float64).row_normalized()
    with torch.no_grad():
        return model.transition(model.recipe.prepare(graph)).to(torch.float64).row_normalized()


def energy(weights: SparseMatrix, x: Tensor) -> Tensor:
    """½ Σ w_ij ‖x_i - x_j‖² over the entries (i, j): with w = D⁻¹A the D(x) of Theorem 4."""
    pattern, squares = weights.pattern, (x * x).sum(dim=1)
    distances = pattern.spread_rows(squares) + pattern.spread_cols(squares) - 2 * pattern.edge_dot(x, x)
    return 0.5 * (weights.values * distances).sum()


def label_mass(graph: Graph, labeled: Tensor) -> Tensor:
    """One-hot rows of the labelled nodes, zero rows elsewhere, [n, c]."""
    return F.one_hot(graph.y.clamp_min(0), graph.num_classes).to(torch.float64) * labeled.unsqueeze(1)


def _sample(mask: Tensor, count: int, seed: int) -> Tensor:
    """So many of the nodes in `mask`, or all of them if they are fewer."""
    nodes = mask.nonzero().squeeze(1).numpy()
    chosen = np.random.default_rng(seed).permutation(nodes)[:count]
    return torch.from_numpy(np.sort(chosen))


def _features(graph: Graph, kind: str = "l2") -> scipy.sparse.csr_array:
    x = graph.with_features(kind).x
    return scipy.sparse.csr_array(x.to_scipy() if isinstance(x, SparseMatrix) else x.numpy()).astype(np.float64)


def _few_columns(graph: Graph, seed: int, width: int = 8) -> Tensor:
    """The features, as dense columns: all of them where they are few, random mixtures of them where they are many."""
    x = _features(graph, "raw")
    if x.shape[1] <= width:
        return torch.from_numpy(x.toarray())
    return torch.from_numpy(x @ np.random.default_rng(seed).normal(size=(x.shape[1], width)))


# Eqs. (4) and (5)


def eq_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Eq. (4): the final label of a node is the weighted mean of its neighbours'. On unlabelled nodes it is."""
    transition, labeled = walk_matrix(graph), split(graph, seed=seed).train
    seeds = label_mass(graph, labeled)
    limit = torch.where(labeled.unsqueeze(1), seeds, propagate_labels(transition, seeds, None, tolerance=1e-13))
    moves = (transition @ limit - limit).abs().amax(dim=1)
    words = "labels of 60 % of the nodes, propagated until nothing moves by 1e-13; the largest |y_i - Σ ã_ij y_j|"
    return [
        equal("Eq. 4, unlabelled nodes", graph.name, _top(moves[~labeled]), 0.0, words),
        equal("Eq. 4, every node, as printed", graph.name, _top(moves), 0.0, f"{words}; Eq. (2) resets labelled nodes"),
    ]


def eq_5(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Eq. (5): the limit of x ← D⁻¹A x. It is one number per connected component: all else is smoothed away."""
    transition, x = walk_matrix(graph), _few_columns(graph, seed)
    strength = graph.with_self_loops().adjacency.to(torch.float64).row_sums()
    _, component = connected_components(graph.to_scipy(), directed=False)
    member = torch.from_numpy(component).long()
    share = strength / torch.zeros(int(member.max()) + 1, dtype=torch.float64).index_add(0, member, strength)[member]
    means = torch.zeros(int(member.max()) + 1, x.shape[1], dtype=torch.float64).index_add(
        0, member, share.unsqueeze(1) * x
    )
    limit = means[member]
    steps, left, now = (1, 10, 100, 1000), [], x
    weight = strength.sqrt().unsqueeze(1)
    for step in range(1, steps[-1] + 1):
        now = transition @ now
        if step in steps:
            left.append(float((weight * (now - limit)).norm() / (weight * (x - limit)).norm().clamp_min(1e-300)))
    undirected = "; of undirected graphs only" if graph.directed else ""
    words = f"σ and W the identity; the mean of each component, weighted by degree{undirected}"
    return [
        equal(
            "Eq. 5, the mean of its component at every node is a fixed point", graph.name,
            _top((transition @ limit - limit).abs()), 0.0, f"{words}; the largest |x_i - Σ ã_ij x_j|",
        ),
        at_most(
            "Eq. 5, all else fades: after 1, 10, 100, 1000 steps", graph.name, tuple(left), (1.0, *left[:-1]),
            f"{words}; distance to it, relative to the start, beside the one before. So the limit tells the component and no more",
        ),
    ]  # fmt: skip


# Lemmas 1 and 2: influence


def jacobian(
    transition: SparseMatrix, x: Any, weights: Sequence[Tensor], node: int, sources: Tensor,
    activation: Callable[[Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """∂x_a^(K) / ∂x_b of a GCN, Eq. (3), for one v_a and every v_b in `sources`, by autograd, [d_K, b, d_0].

    Autograd goes back to X W⁰ only: ∂x_a / ∂x_b = ∂x_a / ∂(x_b W⁰) · W⁰ᵀ.
    """
    start = torch.from_numpy(x @ weights[0].numpy()).requires_grad_()
    h = transition @ start
    for weight in weights[1:]:
        h = transition @ (activation(h) @ weight)
    rows = [torch.autograd.grad(output, start, retain_graph=True)[0] for output in h[node]]
    return torch.stack([row.index_select(0, sources) @ weights[0].T for row in rows])


def lemma_1(graph: Graph, model: GCNLPA | None = None, seed: int = 0, draws: int = 32, layers: int = 2) -> list[Check]:
    """Lemma 1: Ĩ_f(v_a, v_b; K) is the probability that a walk of K steps from v_a ends at v_b.

    Exact without σ. With ReLU it is Xu et al.'s under their assumption that every path is open with the same probability,
    whatever W; measured here under that assumption, and with the gates that the features really open. Over a symmetric
    distribution of W the expected Jacobian of Definition 1 is 0, so what is averaged over is said each time.
    """
    transition, x, rng = walk_matrix(graph), _features(graph), torch.Generator().manual_seed(seed)
    shapes = list(itertools.pairwise([x.shape[1], *[16] * (layers - 1), graph.num_classes]))
    size = x.shape[1] * graph.num_classes
    nodes = _sample(_is_small(transition, layers, size), 3, seed).tolist()

    def gate(h: Tensor) -> Tensor:
        return h * torch.randint(2, h.shape, generator=rng)

    def redraw() -> list[Tensor]:
        return [glorot(*shape, generator=rng).detach().double() for shape in shapes]

    fixed, at_data = redraw(), "Glorot's W, the features of the graph"
    kinds: list[tuple[str, str, int, Callable[[], list[Tensor]], Callable[[Tensor], Tensor]]] = [
        ("no σ", "W fixed", 1, lambda: fixed, lambda h: h),
        ("each gate open by a coin", f"W fixed, {draws} draws of the gates", draws, lambda: fixed, gate),
        ("ReLU, W fixed", f"one draw of {at_data}", 1, lambda: fixed, torch.relu),
        ("ReLU, W drawn", f"mean over {draws} draws of {at_data}", draws, redraw, torch.relu),
    ]
    checks = [
        _lemma_1(f"Lemma 1, {name}", graph, transition, x, nodes, layers, number, draw, sigma, words)
        for name, words, number, draw, sigma in kinds
    ]
    if model is not None and model.is_plain:
        learned = [weight.detach().cpu().double() for weight in model.weights]
        inputs = _features(graph, model.recipe.features)
        matrix, depth = walk_matrix(graph, model), len(learned)
        some = _sample(_is_small(matrix, depth, size), 3, seed).tolist()
        words = f"the trained model's W and edges, {depth} layers"
        checks.append(
            _lemma_1("Lemma 1, trained", graph, matrix, inputs, some, depth, 1, lambda: learned, torch.relu, words)
        )
    printed = feature_influence(transition.T, torch.tensor(nodes), layers).sum(dim=1)
    checks.append(
        _worst_pair("Lemma 1, ã indexed as printed", graph.name, printed, torch.ones_like(printed),
              f"Σ_b Ĩ_f(v_a, v_b), which is 1 by Definition 1; {len(nodes)} nodes, the one that is furthest from it; "
              "ã_{v(i-1),v(i)} divides by the degree of the node that is entered")
    )  # fmt: skip
    return checks


def _lemma_1(
    name: str, graph: Graph, transition: SparseMatrix, x: Any, nodes: list[int], layers: int, draws: int,
    draw: Callable[[], list[Tensor]], sigma: Callable[[Tensor], Tensor], words: str,
) -> Check:  # fmt: skip
    """The pair where autograd and the walk differ most. It holds if they differ no more than two halves of the draws do."""
    worst, distances, noises, slow, quick = (0.0, 0.0), [], [], 0.0, 0.0
    for node in nodes:
        start = time.perf_counter()
        walk = feature_influence(transition, torch.tensor([node]), layers)[0]
        quick += time.perf_counter() - start
        sources, start = walk.nonzero().squeeze(1), time.perf_counter()
        walk = walk[sources]
        halves = [torch.zeros(()), torch.zeros(())]
        for number in range(draws):
            halves[number % 2] = halves[number % 2] + jacobian(transition, x, draw(), node, sources, sigma)
        found = _influence_of(halves[0] + halves[1])
        slow += time.perf_counter() - start
        noises.append(_distance(*map(_influence_of, halves)) if draws > 1 else 0.0)
        distances.append(_distance(found, walk))
        pair = int((found - walk).abs().argmax())
        worst = max(worst, (float(found[pair]), float(walk[pair])), key=lambda sides: abs(sides[0] - sides[1]))
    mean, noise = float(np.mean(distances)), float(np.mean(noises))
    size = x.shape[1] * graph.num_classes * graph.num_nodes * 8 / 1e6
    cost = (
        f"autograd {slow / len(nodes):.2g} s a node and {size:,.3g} MB for all v_b, the walk {quick / len(nodes):.1g} s"
    )
    told = f"{words}; mean ½Σ|difference| {mean:.3g}" + (f", of which chance {noise:.2g}" if draws > 1 else "")
    gap = abs(worst[0] - worst[1])
    return Check(name, *worst, gap, mean <= max(ROUNDING, noise), f"{told}; {cost}", "=", graph.name)


def _influence_of(jacobian: Tensor) -> Tensor:
    """The L1 norm of each v_b's part, normalised to sum 1, [b]; all 0 where every path is closed."""
    norms = jacobian.abs().sum(dim=(0, 2)) if jacobian.dim() == 3 else jacobian.new_zeros(1)
    return norms / norms.sum().clamp_min(1e-300)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def _is_small(transition: SparseMatrix, layers: int, outputs: int) -> Tensor:
    """The nodes with neighbours whose Jacobian within `layers` hops has at most a few million numbers."""
    pattern, one = transition.pattern, torch.ones(transition.num_entries, dtype=torch.float64)
    reach = pattern.row_sum(one)
    has_neighbours = reach > 1
    for _ in range(layers - 1):
        reach = (transition.with_values(one) @ reach).clamp_max(
            transition.shape[0]
        )  # at most so many, counted twice at times
    fits = has_neighbours & (reach * outputs <= 3e7)
    return fits if bool(fits.any()) else has_neighbours & (reach == reach[has_neighbours].min())


def lemma_2(graph: Graph, model: GCNLPA | None = None, seed: int = 0, iterations: int = 5) -> list[Check]:
    """Lemma 2: I_l(v_a, v_b; k) sums the walks from v_a that end at v_b, the first labelled node they meet."""
    transition, labeled = walk_matrix(graph), split(graph, seed=seed).train
    nodes = _sample(~labeled, 8, seed)
    labels = labeled.double().unsqueeze(1).requires_grad_()
    scores = propagate_labels(transition, labels, iterations, labeled=labeled)
    gradients = [torch.autograd.grad(scores[node, 0], labels, retain_graph=True)[0].squeeze(1) for node in nodes]
    gradient = torch.stack(gradients) * labeled
    words = f"{len(nodes)} unlabelled nodes, {iterations} iterations, 60 % labelled; the pair that differs most"
    return [
        _worst_pair("Lemma 2", graph.name, gradient, label_influence(transition, labeled, nodes, iterations).total,
                    f"∂y_a/∂y_b by autograd beside the absorbing walk; {words}"),
        _worst_pair("Lemma 2, ã indexed as printed", graph.name, gradient,
                    label_influence(transition.T, labeled, nodes, iterations).total,
                    f"ã_{{v(i-1),v(i)}} divides by the degree of the node that is entered; {words}"),
    ]  # fmt: skip


def _worst_pair(name: str, on: str, lhs: Tensor, rhs: Tensor, words: str) -> Check:
    apart = (lhs - rhs).abs()
    at = int(apart.argmax() if bool(apart.any()) else lhs.argmax())
    return equal(name, on, float(lhs.flatten()[at]), float(rhs.flatten()[at]), words)


# Lemmas 3 and 4, Theorem 4: smoothing shrinks distances, or not


def lemma_3(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Lemma 3: h = x - ∇D(x). Its proof drops half of the gradient: x_i also stands in the terms of its neighbours.

    With symmetric A and E(x) = ½ Σ a_ij ‖x_i - x_j‖² the step is h = x - ½ D⁻¹ ∇E(x), exactly.
    """
    checks = []
    for subject in (double_star(), graph):
        transition, x = walk_matrix(subject), _few_columns(subject, seed).requires_grad_()
        adjacency = subject.with_self_loops().adjacency.to(torch.float64)
        after = (transition @ x).detach()
        (of_d,) = torch.autograd.grad(energy(transition, x), x)
        (of_e,) = torch.autograd.grad(energy(adjacency, x), x)
        symmetric = x.detach() - 0.5 * of_e / adjacency.row_sums().unsqueeze(1)
        words = "true gradient by autograd; the entry of h that differs most"
        checks += [
            _worst_pair("Lemma 3, as printed", subject.name, after, x.detach() - of_d, words),
            _worst_pair("Lemma 3, h = x - ½D⁻¹∇E", subject.name, after, symmetric, f"{words}; needs symmetric A"),
        ]
    return checks


def lemma_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Lemma 4: ∇²D ⪯ 2I. The matrix it bounds, I - D⁻¹A, is not the Hessian, which is symmetric and can exceed 2I.

    With symmetric A: ½∇²E = D - A ⪯ 2D, that is, no eigenvalue of I - D^-½ A D^-½ exceeds 2.
    """
    checks = []
    for subject in (star(), graph):
        walk = walk_matrix(subject).to_scipy()
        normal = subject.with_self_loops().adjacency.to(torch.float64).symmetric_normalized().to_scipy()
        laplacian = scipy.sparse.eye_array(subject.num_nodes) - (normal + normal.T) / 2
        checks += [
            at_most("Lemma 4, as printed", subject.name, _top_eigenvalue(_hessian(walk)), 2.0,
                    "largest eigenvalue of the true ∇²D; every eigenvalue of I - D⁻¹A is in [0, 2], but that is not ∇²D"),
            at_most("Lemma 4, ½∇²E ⪯ 2D", subject.name, _top_eigenvalue(laplacian), 2.0,
                    "largest eigenvalue of I - D^-½AD^-½; needs symmetric A"),
        ]  # fmt: skip
    return checks


def _top_eigenvalue(matrix: scipy.sparse.csr_array) -> float:
    if matrix.shape[0] <= SMALL:
        return float(np.linalg.eigvalsh(matrix.toarray())[-1])
    first = np.random.default_rng(0).normal(size=matrix.shape[0])  # given, so that the same input gives the same bits
    return float(scipy.sparse.linalg.eigsh(matrix, k=1, which="LA", v0=first, return_eigenvectors=False)[0])


def theorem_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Theorem 4: D(h) ≤ D(x). False: see `double_star`. E(x) = ½ Σ a_ij ‖x_i - x_j‖² with symmetric A does not grow."""
    checks = []
    for subject in (double_star(), graph):
        x = _few_columns(subject, seed)
        mixed = "" if subject.num_features <= x.shape[1] else f"{x.shape[1]} random mixtures of the features; "
        checks += _shrinks(
            subject.name, walk_matrix(subject), subject.with_self_loops().adjacency, x, f"{mixed}given weights"
        )
        checks += _worst(subject.name, walk_matrix(subject), "given weights")
    if model is not None:
        prepared = model.recipe.prepare(graph)
        with torch.no_grad():
            transition, scores = walk_matrix(graph, model), model.edge_scores(prepared)
            learned = (scores.values - scores.values.max()).exp().double()
            strength = scores.with_values(learned)
            symmetric = strength.with_values((learned + strength.T_values) / 2) if not graph.directed else strength
            outputs = model.layers(model.smoothing(prepared, model.transition(prepared)), prepared.x)
            inputs = [_few_columns(prepared, seed), *(output.double() for output in outputs[:-1])]
        checks += _worst(graph.name, transition, "the trained model's edges")
        for number, x in enumerate(inputs, 1):
            words = f"the trained model's edges, input of layer {number} of {len(inputs)}"
            checks += _shrinks(graph.name, transition, symmetric, x, words)
    return checks


def _shrinks(on: str, transition: SparseMatrix, adjacency: SparseMatrix, x: Tensor, words: str) -> list[Check]:
    weights = adjacency.to(torch.float64)
    before, after = energy(transition, x), energy(transition, transition @ x)
    even_before, even_after = energy(weights, x), energy(weights, weights.row_normalized() @ x)
    return [
        at_most("Theorem 4, D(h) ≤ D(x), as printed", on, float(after), float(before), words),
        at_most("Theorem 4, E(h) ≤ E(x)", on, float(even_after), float(even_before), f"{words}, (A + Aᵀ)/2 where they differ"),
    ]  # fmt: skip


def _worst(on: str, transition: SparseMatrix, words: str) -> list[Check]:
    if transition.shape[0] > MEDIUM:
        return []
    x = worst_features(transition)
    x = x / energy(transition, x).sqrt()
    after, before = float(energy(transition, transition @ x)), float(energy(transition, x))
    return [
        at_most("Theorem 4, D(h) ≤ D(x) for every x", on, after, before, f"{words}, the x with the largest D(h) / D(x)")
    ]


def worst_features(transition: SparseMatrix) -> Tensor:
    """The x, one number per node, for which D(h) / D(x) is largest: a generalised eigenvector, [n, 1]."""
    walk = transition.to_scipy()
    hessian = _hessian(walk)
    # D is 0 where x is the same on a whole component, so a little is added to what is inverted
    below = (hessian + 1e-6 * scipy.sparse.eye_array(len(walk.indptr) - 1)).tocsc()
    inverse = scipy.sparse.linalg.LinearOperator(below.shape, matvec=scipy.sparse.linalg.splu(below).solve, dtype=float)
    first = np.random.default_rng(0).normal(size=below.shape[0])  # given, so that the same input gives the same bits
    _, x = scipy.sparse.linalg.eigsh(walk.T @ hessian @ walk, k=1, M=below, Minv=inverse, which="LA", v0=first)
    return torch.from_numpy(x)


def _hessian(walk: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """∇²D for one feature: D(x) = ½ xᵀ∇²D x."""
    both = walk + walk.T
    return scipy.sparse.diags_array(both.sum(axis=1)) - both


# Theorem 1: smooth features, smooth labels


def theorem_1(graph: Graph, model: GCNLPA | None = None, seed: int = 0, nodes: int = 48, hops: int = 5) -> list[Check]:
    """Theorem 1: |y_i - Σ ã_ij y_j| ≤ L ‖ε_i‖ + o(max ‖x_j - x_i‖), ε_i = x_i - Σ ã_ij x_j.

    On a data set the remainder is unknown, so the bound is measured without it: labels as one-hot rows, L the largest
    ‖y_i - y_j‖ / ‖x_i - x_j‖ found. The node itself is no neighbour here, or every ε_i could be 0. Over k hops ã are the
    probabilities of a walk of k steps; least-squares weights take any nodes within k hops.
    """
    x, known = _features(graph), graph.labeled
    y = label_mass(graph, known).numpy()
    chosen = _sample(_has_known_neighbour(graph), nodes, seed)
    lipschitz, twins = _lipschitz(x, y, known.numpy(), np.union1d(chosen, _sample(known, 256, seed + 1)))
    told = f"{len(chosen)} nodes, means over them, 1 to {hops} hops; L = {lipschitz:.3g}, no remainder"
    told += f"; {twins:,} pairs of equal features and unequal labels left out of L" if twins else ""
    matrices = {"given": walk_matrix(graph)} | ({} if model is None else {"learned": walk_matrix(graph, model)})
    ways = {
        name: [_others(feature_influence(matrix, chosen, k).numpy(), chosen, known) for k in range(1, hops + 1)]
        for name, matrix in matrices.items()
    }
    ways["least-squares"] = _least_squares(graph, x, chosen, hops)
    checks, errors = [], {}
    for name, weights in ways.items():
        epsilon = [np.linalg.norm(x[chosen.numpy()].toarray() - w @ x, axis=1) for w in weights]
        wrong = [np.linalg.norm(y[chosen.numpy()] - w @ y, axis=1) for w in weights]
        errors[name] = tuple(float(e.mean()) for e in epsilon)
        over = np.array(wrong) - lipschitz * np.array(epsilon)  # [hops, nodes]
        broken = f"; broken in {int((over > ROUNDING).sum())} of {over.size} cases"
        checks.append(
            at_most(f"Theorem 1, {name} weights", graph.name, tuple(float(w.mean()) for w in wrong),
                    tuple(lipschitz * e for e in errors[name]), told + broken, gap=float(over.max()))
        )  # fmt: skip
    smallest = f"mean ‖ε_i‖ of features of length 1, {len(chosen)} nodes, 1 to {hops} hops"
    checks += [
        equal(
            f"Theorem 1, ‖ε‖ → 0 by choice of weights: {name}",
            graph.name,
            found,
            (0.0,) * hops,
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
        y = torch.from_numpy(np.sin(_features(points, "raw").toarray()))
        wrong.append(_top((y - points.adjacency.to(torch.float64).row_normalized() @ y).abs()[1:-1]))
    x, slope = np.random.default_rng(seed).random((400, 2)), np.array([3.0, 2.0])
    apart = np.linalg.norm(x[:, None] - x[None], axis=2)
    near = np.argsort(apart, axis=1)[:, 1:7]
    truth = np.sin(x @ slope)
    error = np.abs(truth - truth[near].mean(axis=1))
    epsilon = np.linalg.norm(x - x[near].mean(axis=1), axis=1)
    reach = np.take_along_axis(apart, near, axis=1).max(axis=1)
    steep = float(np.linalg.norm(slope))
    bound = steep * epsilon + 0.5 * steep**2 * reach**2
    ends = "inner points of a line, y = sin x, L = 1; ε = 0 since each point is the mean of its neighbours"
    return [
        at_most("Theorem 1, without the remainder", "line", wrong[0], 0.0, f"{ends}; spacing 1"),
        at_most("Theorem 1, the error is o(spacing)", "line", tuple(w / h for w, h in zip(wrong, spacings, strict=True)),
                tuple(h / 2 for h in spacings), f"{ends}; error / spacing for spacings 1, .1, .01 beside Taylor's bound"),
        at_most("Theorem 1, known mapping", "400 points in a square", float(error.mean()), float(bound.mean()),
                "y = sin(3x₁ + 2x₂), 6 nearest neighbours, L = √13, remainder ½L²·max‖x_j - x_i‖²; means",
                gap=float((error - bound).max())),
    ]  # fmt: skip


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


def _least_squares(graph: Graph, x: scipy.sparse.csr_array, nodes: Tensor, hops: int) -> list[np.ndarray]:
    """For each number of hops, the weights ≥ 0 of sum 1 on the labelled nodes within it that rebuild x_i best, [b, n] each."""
    matrix, known = graph.to_scipy(), graph.labeled.numpy()
    found = [np.zeros((len(nodes), graph.num_nodes)) for _ in range(hops)]
    for row, node in enumerate(nodes.tolist()):
        inside, weights = np.zeros(graph.num_nodes, dtype=bool), np.zeros(graph.num_nodes)
        inside[node] = True
        for k in range(hops):
            inside |= (matrix @ inside.astype(np.float32)) > 0
            others = np.flatnonzero(inside & known & (np.arange(len(inside)) != node))
            start = weights[others] if weights.any() else np.full(len(others), 1 / len(others))
            weights = np.zeros(graph.num_nodes)
            weights[others] = simplex_fit(x[others], x[[node]].toarray().ravel(), start)
            found[k][row] = weights
    return found


def simplex_fit(rows: scipy.sparse.csr_array, target: np.ndarray, weights: np.ndarray, steps: int = 100) -> np.ndarray:
    """The weights ≥ 0 of sum 1 for which Σ w_j row_j is nearest to the target: Nesterov's gradient steps, the best one kept."""
    columns = rows.T.tocsr()
    vector = np.ones(len(weights)) / math.sqrt(len(weights))
    for _ in range(10):
        vector = rows @ (columns @ vector)
        vector /= max(np.linalg.norm(vector), 1e-300)
    length = 1.5 * float(np.linalg.norm(rows @ (columns @ vector))) + 1e-12  # above the largest eigenvalue
    best, least, ahead = weights, float(np.linalg.norm(columns @ weights - target)), weights
    for step in range(steps):
        moved = _onto_simplex(ahead - (rows @ (columns @ ahead - target)) / length)
        ahead = moved + step / (step + 3) * (moved - weights)
        weights, error = moved, float(np.linalg.norm(columns @ moved - target))
        if error < least:
            best, least = moved, error
    return best


def _onto_simplex(values: np.ndarray) -> np.ndarray:
    """The nearest weights ≥ 0 of sum 1."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0))


# Theorems 2 and 3: label influence


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


def cumulative_feature_influence(
    transition: SparseMatrix, nodes: Tensor, iterations: int, factors: Sequence[float]
) -> Tensor:
    """Σ_j f_j Ĩ_f(v_a, v_b; j), the right side of Theorem 2 with f_j = β^j, [b, n]."""
    steps = (
        factor * feature_influence(transition, nodes, j)
        for j, factor in zip(range(1, iterations + 1), factors, strict=True)
    )
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

    Definition 2 takes v_a as unlabelled, which leaves j - 1 nodes of a path to be so: β^(j-1). That is exact for k = 1. For more
    it is not either: a walk that comes back to a node asks for its label only once.
    """
    checks, small = [], walk_matrix(diamond())
    for k in (1, 3):
        exact = expected_label_influence(small, 0, 2, k, 0.5)
        words = "all patterns of labels, β = .5, node 0 unlabelled, node 2 labelled, k = "
        for name, first in (("as printed, β^j", 1), ("β^(j-1)", 0)):
            factors = [0.5 ** (j + first) for j in range(k)]
            sides = float(cumulative_feature_influence(small, torch.tensor([0]), k, factors)[0, 2])
            checks.append(equal(f"Theorem 2, {name}", "diamond", exact, sides, f"{words}{k}"))
    transition, count = walk_matrix(graph), 16
    nodes = _sample(torch.ones(graph.num_nodes, dtype=torch.bool), count, seed)
    totals = _absorbed(transition, nodes, iterations, unlabeled, draws, seed)
    exact, spread = (
        float(totals.mean()),
        float(scipy.stats.t.ppf(0.975, draws - 1) * totals.std(ddof=1) / math.sqrt(draws)),
    )
    words = (
        f"{draws} random patterns of labels, β = {unlabeled:g}, k = {iterations}, {len(nodes)} nodes v_a; Σ over all v_b but v_a, "
        f"mean, ± {spread:.2g} (95 %) on the left"
    )
    for name, first in (("as printed, β^j", 1), ("β^(j-1)", 0)):
        factors = [unlabeled ** (j + first) for j in range(iterations)]
        pairs = cumulative_feature_influence(transition, nodes, iterations, factors).scatter(1, nodes.unsqueeze(1), 0)
        checks.append(
            equal(f"Theorem 2, {name}", graph.name, exact, float(pairs.sum(dim=1).mean()), words, tolerance=spread)
        )
    return checks


def _absorbed(
    transition: SparseMatrix, nodes: Tensor, iterations: int, unlabeled: float, draws: int, seed: int
) -> np.ndarray:
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
    nodes = _sample(_has_known_neighbour(graph), 64, seed)
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
    told = f"{len(nodes)} nodes, each taken as unlabelled, {iterations} iterations, 60 % of the others labelled"
    worst = int(np.abs(np.array(own) - score).argmax())
    ratios = [influence / probability for influence, probability in zip(own, share, strict=True) if probability > 0]
    ranks = float(scipy.stats.spearmanr(own, share).statistic) if len({*own}) > 1 and len({*share}) > 1 else math.nan
    checks = [equal("Theorem 3, y_a[c] = Σ I_l", graph.name, score[worst], own[worst], told)]
    if ratios:
        linked = "" if math.isnan(ranks) else f"; rank correlation of the two {ranks:.2f}"
        checks.append(
            equal(
                "Theorem 3, Σ I_l ∝ Pr",
                graph.name,
                min(ratios),
                max(ratios),
                f"smallest and largest Σ I_l / Pr; {told}{linked}",
            )
        )
    probability, influence = zip(*(_vote(small) for small in (dead_end(), two_sides())), strict=True)
    checks.append(
        Check("Theorem 3, more Pr is more influence", probability, influence, float(probability[0] - influence[0]),
              (probability[0] > probability[1]) == (influence[0] > influence[1]),
              "Pr on the left, Σ I_l on the right: weights .1 to the own class and .9 to a dead end; .6 to the own and .4 to the "
              "other class; one iteration, no self-loops", "same order as", "dead end; two sides")
    )  # fmt: skip
    return checks


def _vote(graph: Graph) -> tuple[float, float]:
    """Pr(ŷ = y) and Σ I_l of node 0 after one iteration."""
    labeled = graph.labeled.clone()
    labeled[0] = False
    transition = graph.adjacency.to(torch.float64).row_normalized()
    y = propagate_labels(transition, label_mass(graph, labeled), 1, labeled=labeled)[0]
    influence = label_influence(transition, labeled, torch.tensor([0]), 1).total[0]
    return float(y[0] / y.sum()), float(influence[graph.y == graph.y[0]].sum())


def _top(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


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


def check_theorems(
    graph: Graph, names: Sequence[str] | None = None, model: GCNLPA | None = None, seed: int = 0
) -> list[Check]:
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
