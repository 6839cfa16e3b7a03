"""What a check of a statement is: both sides, the gap between them, and whether it holds as measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.stats
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA

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


def sample(mask: Tensor, count: int, seed: int) -> Tensor:
    """So many of the nodes in `mask`, or all of them if they are fewer."""
    nodes = mask.nonzero().squeeze(1).numpy()
    chosen = np.random.default_rng(seed).permutation(nodes)[:count]
    return torch.from_numpy(np.sort(chosen))


def random_features(graph: Graph, kind: str = "l2") -> scipy.sparse.csr_array:
    x = graph.with_features(kind).x
    return scipy.sparse.csr_array(x.to_scipy() if isinstance(x, SparseMatrix) else x.numpy()).astype(np.float64)


def few_columns(graph: Graph, seed: int, width: int = 8) -> Tensor:
    """The features, as dense columns: all of them where they are few, random mixtures of them where they are many."""
    x = random_features(graph, "raw")
    if x.shape[1] <= width:
        return torch.from_numpy(x.toarray())
    return torch.from_numpy(x @ np.random.default_rng(seed).normal(size=(x.shape[1], width)))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def is_small(transition: SparseMatrix, layers: int, outputs: int) -> Tensor:
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


def worst(on: str, transition: SparseMatrix, words: str) -> list[Check]:
    if transition.shape[0] > MEDIUM:
        return []
    x = worst_features(transition)
    x = x / energy(transition, x).sqrt()
    after, before = float(energy(transition, transition @ x)), float(energy(transition, x))
    return [
        at_most("Theorem 4, D(h) ≤ D(x) for every x", on, after, before, f"{words}, the x with the largest D(h) / D(x)")
    ]


def largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def worst_features(transition: SparseMatrix) -> Tensor:
    """The x, one number per node, for which D(h) / D(x) is largest: a generalised eigenvector, [n, 1]."""
    walk = transition.to_scipy()
    curvature = hessian(walk)
    # D is 0 where x is the same on a whole component, so a little is added to what is inverted
    below = (curvature + 1e-6 * scipy.sparse.eye_array(len(walk.indptr) - 1)).tocsc()
    inverse = scipy.sparse.linalg.LinearOperator(below.shape, matvec=scipy.sparse.linalg.splu(below).solve, dtype=float)
    first = np.random.default_rng(0).normal(size=below.shape[0])  # given, so that the same input gives the same bits
    _, x = scipy.sparse.linalg.eigsh(walk.T @ curvature @ walk, k=1, M=below, Minv=inverse, which="LA", v0=first)
    return torch.from_numpy(x)


def hessian(walk: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """∇²D for one feature: D(x) = ½ xᵀ∇²D x."""
    both = walk + walk.T
    return scipy.sparse.diags_array(both.sum(axis=1)) - both
