"""A check is a statement with both sides measured, their gap, and whether it holds; and what checks are measured on."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA

Side = float | tuple[float, ...]
ROUNDING = 1e-9  # two float64 sides that differ by less are equal


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


def equal_everywhere(name: str, on: str, lhs: Tensor, rhs: Tensor, words: str) -> Check:
    """Whether two tensors are equal; the sides are those of the entry that differs most."""
    apart = (lhs - rhs).abs()
    at = int(apart.argmax() if bool(apart.any()) else lhs.argmax())
    return equal(name, on, float(lhs.flatten()[at]), float(rhs.flatten()[at]), words)


def at_most(name: str, on: str, lhs: Side, rhs: Side, assumptions: str, gap: float | None = None) -> Check:
    """`gap` where it is not that of the sides shown, such as the worst of many nodes beside their mean."""
    gap = max(left - right for left, right in _pairs(lhs, rhs)) if gap is None else gap
    size = max(1.0, *(abs(right) for _, right in _pairs(lhs, rhs)))
    return Check(name, lhs, rhs, gap, gap <= ROUNDING * size, assumptions, "≤", on)


def _pairs(lhs: Side, rhs: Side) -> Iterator[tuple[float, float]]:
    left, right = (side if isinstance(side, tuple) else (side,) for side in (lhs, rhs))
    return zip(left, right, strict=True)


def check_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Each statement with its two sides and whether it holds, and below it what was measured."""
    held, total = 0, 0
    for check in checks:
        sides = f"{_side(check.lhs)} {check.relation} {_side(check.rhs)}"
        yield f"{check.name} [{check.on}]: {'holds' if check.holds else 'DOES NOT HOLD'}"
        yield f"    {sides}    gap {check.gap:.3g}"
        yield from textwrap.wrap(check.assumptions, 110, initial_indent="    ", subsequent_indent="    ")
        held, total = held + check.holds, total + 1
    yield f"\n{held} of {total} hold as measured. For = the gap is |left - right|, for ≤ it is left - right; in both the largest."


def _side(value: float | tuple[float, ...]) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"({', '.join(f'{part:.4g}' for part in value)})"


def walk_matrix(graph: Graph, model: GCNLPA | None = None) -> SparseMatrix:
    """D⁻¹A of a graph with self-loops, or the D*⁻¹A* of a trained model, in float64."""
    if model is None:
        return graph.with_self_loops().adjacency.to(torch.float64).row_normalized()
    with torch.no_grad():
        return model.transition(model.recipe.prepare(graph)).to(torch.float64).row_normalized()


def label_mass(graph: Graph, labeled: Tensor) -> Tensor:
    """One-hot rows of the labelled nodes, zero rows elsewhere, [n, c]."""
    return F.one_hot(graph.y.clamp_min(0), graph.num_classes).to(torch.float64) * labeled.unsqueeze(1)


def sample(mask: Tensor, count: int, seed: int) -> Tensor:
    """`count` nodes of the mask drawn at random, or all if they are fewer; in order."""
    nodes = mask.nonzero().squeeze(1).numpy()
    chosen = np.random.default_rng(seed).permutation(nodes)[:count]
    return torch.from_numpy(np.sort(chosen))


def feature_rows(graph: Graph, kind: str = "l2") -> scipy.sparse.csr_array:
    """The features of a graph, prepared as `kind`, in float64, [n, d]."""
    x = graph.with_features(kind).x
    return scipy.sparse.csr_array(x.to_scipy() if isinstance(x, SparseMatrix) else x.numpy()).astype(np.float64)


def few_columns(graph: Graph, seed: int, width: int = 8) -> Tensor:
    """The features, as dense columns: all of them where they are few, random mixtures of them where they are many."""
    x = feature_rows(graph, "raw")
    if x.shape[1] <= width:
        return torch.from_numpy(x.toarray())
    return torch.from_numpy(x @ np.random.default_rng(seed).normal(size=(x.shape[1], width)))


def largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
