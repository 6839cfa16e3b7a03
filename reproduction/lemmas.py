"""Eqs. (4) and (5) and Lemmas 1 to 4 as measurements: what each side is on a given graph, and whether they agree.

Nothing here asserts. Each function returns `Check`s: of the statement as printed, of the form that holds where the printed one does
not, and of the smallest graphs on which it fails. All numbers are float64. The graph is taken with self-loops, as the paper
does (Section 2.1).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import SparseMatrix, glorot
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA, Convolutions
from gcn_lpa.propagation import feature_influence, label_influence, propagate_labels
from reproduction.checks import (
    ROUNDING,
    Check,
    at_most,
    equal,
    equal_everywhere,
    feature_rows,
    few_columns,
    label_mass,
    largest,
    sample,
    walk_matrix,
)
from reproduction.counterexamples import double_star, ring, star
from reproduction.energy import energy, hessian, top_eigenvalue


def eq_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Eq. (4): the final label of a node is the weighted mean of its neighbours'. On unlabelled nodes it is."""
    transition, labeled = walk_matrix(graph), split(graph, seed=seed).train
    seeds = label_mass(graph, labeled)
    limit = propagated(transition, seeds, labeled)
    moves = (transition @ limit - limit).abs().amax(dim=1)
    words = "labels of 60 % of the nodes, propagated until nothing moves by 1e-13; the largest |y_i - Σ ã_ij y_j|"
    return [
        equal("Eq. 4, unlabelled nodes", graph.name, largest(moves[~labeled]), 0.0, words),
        equal("Eq. 4, every node, as printed", graph.name, largest(moves), 0.0, f"{words}; Eq. (2) resets labelled nodes"),
    ]


def propagated(transition: SparseMatrix, seeds: Tensor, labeled: Tensor) -> Tensor:
    """Labels after so many iterations of Eqs. (1) and (2) that no entry moves by more than 1e-13, [n, c]."""
    y, moved = seeds, math.inf
    while moved > 1e-13:
        before, y = y, torch.where(labeled.unsqueeze(1), seeds, transition @ y)
        moved = float((y - before).abs().max())
    return y


def eq_5(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Eq. (5): the limit of x ← D⁻¹A x. It is one number per connected component: all else is smoothed away."""
    transition, x = walk_matrix(graph), few_columns(graph, seed)
    strength = graph.with_self_loops().adjacency.to(torch.float64).row_sums()
    _, component = connected_components(graph.to_scipy(), directed=False)
    member = torch.from_numpy(component).long()
    share = strength / torch.zeros(int(member.max()) + 1, dtype=torch.float64).index_add(0, member, strength)[member]
    means = torch.zeros(int(member.max()) + 1, x.shape[1], dtype=torch.float64).index_add(0, member, share.unsqueeze(1) * x)
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
            "Eq. 5, the mean of its component at every node is a fixed point",
            graph.name,
            largest((transition @ limit - limit).abs()),
            0.0,
            f"{words}; the largest |x_i - Σ ã_ij x_j|",
        ),
        at_most(
            "Eq. 5, all else fades: after 1, 10, 100, 1000 steps",
            graph.name,
            tuple(left),
            (1.0, *left[:-1]),
            f"{words}; distance to it, relative to the start, beside the one before. So the limit tells the component and no more",
        ),
    ]


def jacobian(
    transition: SparseMatrix,
    x: Any,
    weights: Sequence[Tensor],
    node: int,
    sources: Tensor,
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    """∂x_a^(K) / ∂x_b of a GCN, Eq. (3), for one v_a and every v_b in `sources`, by autograd, [d_K, b, d_0].

    Autograd goes back to X W⁰ only: ∂x_a / ∂x_b = ∂x_a / ∂(x_b W⁰) · W⁰ᵀ.
    """
    start = torch.from_numpy(x @ weights[0].numpy()).requires_grad_()
    h = transition @ start
    for weight in weights[1:]:
        h = transition @ (activation(h) @ weight)
    rows = [torch.autograd.grad(output, start, retain_graph=True)[0] for output in h[node]]
    return torch.stack([row.index_select(0, sources) @ weights[0].T for row in rows])


class _Subject(NamedTuple):
    """A GCN without its weights: what Lemma 1 is measured on."""

    graph: Graph
    transition: SparseMatrix
    x: Any  # [n, d]
    layers: int
    nodes: list[int]  # the v_a


class _Drawing(NamedTuple):
    """How weights and gates come about, and over how many draws the Jacobian is averaged."""

    name: str
    words: str
    draws: int
    weights: Callable[[], list[Tensor]]
    activation: Callable[[Tensor], Tensor]


def lemma_1(graph: Graph, model: GCNLPA | None = None, seed: int = 0, draws: int = 32, layers: int = 2) -> list[Check]:
    """Lemma 1: Ĩ_f(v_a, v_b; K) is the probability that a walk of K steps from v_a ends at v_b.

    Exact without σ. With ReLU it is Xu et al.'s under their assumption that every path is open with the same probability,
    whatever W; measured here under that assumption, and with the gates that the features really open. Over a symmetric
    distribution of W the expected Jacobian of Definition 1 is 0, so each check says what it averages over.
    """
    transition, x, rng = walk_matrix(graph), feature_rows(graph), torch.Generator().manual_seed(seed)
    shapes = list(itertools.pairwise([x.shape[1], *[16] * (layers - 1), graph.num_classes]))
    size = x.shape[1] * graph.num_classes
    nodes = sample(_is_small(transition, layers, size), 3, seed).tolist()

    def gate(h: Tensor) -> Tensor:
        return h * torch.randint(2, h.shape, generator=rng)

    def redraw() -> list[Tensor]:
        return [glorot(*shape, generator=rng).detach().double() for shape in shapes]

    fixed, at_data = redraw(), "Glorot's W, the features of the graph"
    drawings = [
        _Drawing("no σ", "W fixed", 1, lambda: fixed, lambda h: h),
        _Drawing("each gate open by a coin", f"W fixed, {draws} draws of the gates", draws, lambda: fixed, gate),
        _Drawing("ReLU, W fixed", f"one draw of {at_data}", 1, lambda: fixed, torch.relu),
        _Drawing("ReLU, W drawn", f"mean over {draws} draws of {at_data}", draws, redraw, torch.relu),
    ]
    untrained = _Subject(graph, transition, x, layers, nodes)
    checks = [_by_autograd(untrained, drawing) for drawing in drawings]
    if model is not None and not (model.recipe.residual or model.recipe.bias or model.recipe.layer_norm):
        learned = [weight.detach().cpu().double() for weight in cast(Convolutions, model.body).weights]
        matrix, depth = walk_matrix(graph, model), len(learned)
        some = sample(_is_small(matrix, depth, size), 3, seed).tolist()
        trained = _Subject(graph, matrix, feature_rows(graph, model.recipe.features), depth, some)
        words = f"the trained model's W and edges, {depth} layers"
        checks.append(_by_autograd(trained, _Drawing("trained", words, 1, lambda: learned, torch.relu)))
    printed = feature_influence(transition.T, torch.tensor(nodes), layers).sum(dim=1)
    words = (
        f"Σ_b Ĩ_f(v_a, v_b), which is 1 by Definition 1; {len(nodes)} nodes, the one that is furthest from it; "
        "ã_{v(i-1),v(i)} divides by the degree of the node that is entered"
    )
    name = "Lemma 1, ã indexed as printed"
    return [*checks, equal_everywhere(name, graph.name, printed, torch.ones_like(printed), words)]


def _is_small(transition: SparseMatrix, layers: int, outputs: int) -> Tensor:
    """The nodes with neighbours whose Jacobian within `layers` hops has at most a few million numbers."""
    pattern, one = transition.pattern, torch.ones(transition.num_entries, dtype=torch.float64)
    reach = pattern.row_sum(one)
    has_neighbours = reach > 1
    for _ in range(layers - 1):
        reach = (transition.with_values(one) @ reach).clamp_max(transition.shape[0])  # an upper bound: some count twice
    fits = has_neighbours & (reach * outputs <= 3e7)
    return fits if bool(fits.any()) else has_neighbours & (reach == reach[has_neighbours].min())


def _by_autograd(subject: _Subject, drawing: _Drawing) -> Check:
    """The pair where autograd and the walk differ most. It holds if they differ no more than two halves of the draws do."""
    graph, transition, draws = subject.graph, subject.transition, drawing.draws
    worst, distances, noises, slow, quick = (0.0, 0.0), [], [], 0.0, 0.0
    for node in subject.nodes:
        start = time.perf_counter()
        walk = feature_influence(transition, torch.tensor([node]), subject.layers)[0]
        quick += time.perf_counter() - start
        sources, start = walk.nonzero().squeeze(1), time.perf_counter()
        walk = walk[sources]
        halves = [torch.zeros(()), torch.zeros(())]
        for k in range(draws):
            found = jacobian(transition, subject.x, drawing.weights(), node, sources, drawing.activation)
            halves[k % 2] = halves[k % 2] + found
        influence = _influence_of(halves[0] + halves[1])
        slow += time.perf_counter() - start
        noises.append(_distance(*map(_influence_of, halves)) if draws > 1 else 0.0)
        distances.append(_distance(influence, walk))
        pair = int((influence - walk).abs().argmax())
        worst = max(worst, (float(influence[pair]), float(walk[pair])), key=lambda sides: abs(sides[0] - sides[1]))
    mean, noise = float(np.mean(distances)), float(np.mean(noises))
    size, num_nodes = subject.x.shape[1] * graph.num_classes * graph.num_nodes * 8 / 1e6, len(subject.nodes)
    words = f"{drawing.words}; mean ½Σ|difference| {mean:.3g}" + (f", of which chance {noise:.2g}" if draws > 1 else "")
    words += f"; autograd {slow / num_nodes:.2g} s a node and {size:,.3g} MB for all v_b, the walk {quick / num_nodes:.1g} s"
    holds, gap = mean <= max(ROUNDING, noise), abs(worst[0] - worst[1])
    return Check(f"Lemma 1, {drawing.name}", *worst, gap, holds, words, "=", graph.name)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def _influence_of(jacobian: Tensor) -> Tensor:
    """The L1 norm of each v_b's part, normalised to sum 1, [b]; all 0 where every path is closed."""
    norms = jacobian.abs().sum(dim=(0, 2)) if jacobian.dim() == 3 else jacobian.new_zeros(1)
    return norms / norms.sum().clamp_min(1e-300)


def lemma_2(graph: Graph, model: GCNLPA | None = None, seed: int = 0, iterations: int = 5) -> list[Check]:
    """Lemma 2: I_l(v_a, v_b; k) sums the walks from v_a that end at v_b, the first labelled node they meet."""
    transition, labeled = walk_matrix(graph), split(graph, seed=seed).train
    nodes = sample(~labeled, 8, seed)
    labels = labeled.double().unsqueeze(1).requires_grad_()
    scores = propagate_labels(transition, labels, iterations, labeled=labeled)
    gradients = [torch.autograd.grad(scores[node, 0], labels, retain_graph=True)[0].squeeze(1) for node in nodes]
    gradient = torch.stack(gradients) * labeled
    words = f"{len(nodes)} unlabelled nodes, {iterations} iterations, 60 % labelled; the pair that differs most"
    return [
        equal_everywhere(
            "Lemma 2",
            graph.name,
            gradient,
            label_influence(transition, labeled, nodes, iterations).total,
            f"∂y_a/∂y_b by autograd beside the absorbing walk; {words}",
        ),
        equal_everywhere(
            "Lemma 2, ã indexed as printed",
            graph.name,
            gradient,
            label_influence(transition.T, labeled, nodes, iterations).total,
            f"ã_{{v(i-1),v(i)}} divides by the degree of the node that is entered; {words}",
        ),
    ]


def lemma_3(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Lemma 3: h = x - ∇D(x). Its proof drops half of the gradient: x_i also stands in the terms of its neighbours.

    With symmetric A and E(x) = ½ Σ a_ij ‖x_i - x_j‖² the step is h = x - ½ D⁻¹ ∇E(x), exactly. Where all nodes have one
    degree that is h = x - ½∇D(x): the lemma, for D with every edge counted once.
    """
    checks = []
    for subject in (double_star(), graph):
        transition, x = walk_matrix(subject), few_columns(subject, seed).requires_grad_()
        adjacency = subject.with_self_loops().adjacency.to(torch.float64)
        after = (transition @ x).detach()
        (of_d,) = torch.autograd.grad(energy(transition, x), x)
        (of_e,) = torch.autograd.grad(energy(adjacency, x), x)
        symmetric = x.detach() - 0.5 * of_e / adjacency.row_sums().unsqueeze(1)
        words = "true gradient by autograd; the entry of h that differs most"
        checks += [
            equal_everywhere("Lemma 3, as printed", subject.name, after, x.detach() - of_d, words),
            equal_everywhere("Lemma 3, h = x - ½D⁻¹∇E", subject.name, after, symmetric, f"{words}; needs symmetric A"),
        ]
    even = ring()
    transition, x = walk_matrix(even), few_columns(even, seed).requires_grad_()
    (of_d,) = torch.autograd.grad(energy(transition, x), x)
    words = "all nodes have one degree; true gradient by autograd; the entry of h that differs most"
    after = (transition @ x).detach()
    return [*checks, equal_everywhere("Lemma 3, h = x - ½∇D", even.name, after, x.detach() - 0.5 * of_d, words)]


def lemma_4(graph: Graph, model: GCNLPA | None = None, seed: int = 0) -> list[Check]:
    """Lemma 4: ∇²D ⪯ 2I. The matrix it bounds, I - D⁻¹A, is not the Hessian, which is symmetric and can exceed 2I.

    With symmetric A: ½∇²E = D - A ⪯ 2D, that is, no eigenvalue of I - D^-½ A D^-½ exceeds 2. Where all nodes have one
    degree that is ½∇²D ⪯ 2I: the lemma, for D with every edge counted once.
    """
    even = ring()
    checks = [
        at_most(
            "Lemma 4, ½∇²D ⪯ 2I",
            even.name,
            top_eigenvalue(hessian(walk_matrix(even).to_scipy())) / 2,
            2.0,
            "largest eigenvalue of ½∇²D; all nodes have one degree",
        )
    ]
    for subject in (star(), graph):
        walk = walk_matrix(subject).to_scipy()
        normal = subject.with_self_loops().adjacency.to(torch.float64).symmetric_normalized().to_scipy()
        laplacian = scipy.sparse.eye_array(subject.num_nodes) - (normal + normal.T) / 2
        checks += [
            at_most(
                "Lemma 4, as printed",
                subject.name,
                top_eigenvalue(hessian(walk)),
                2.0,
                "largest eigenvalue of the true ∇²D; every eigenvalue of I - D⁻¹A is in [0, 2], but that is not ∇²D",
            ),
            at_most(
                "Lemma 4, ½∇²E ⪯ 2D",
                subject.name,
                top_eigenvalue(laplacian),
                2.0,
                "largest eigenvalue of I - D^-½AD^-½; needs symmetric A",
            ),
        ]
    return checks
