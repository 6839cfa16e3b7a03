"""Graphs on which a printed statement fails, or holds with nothing to spare, each as small as we could find."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gcn_lpa.graph import Graph


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


def ring(nodes: int = 6) -> Graph:
    """A circle with self-loops, x = 1 and -1 in turn: all nodes have one degree, so that D⁻¹A is symmetric."""
    x = [[1.0 if i % 2 else -1.0] for i in range(nodes)]
    edges = [(i, (i + 1) % nodes) for i in range(nodes)]
    return Graph.from_edges(edges, x=x, y=[i % 2 for i in range(nodes)], self_loops=True, name="ring")


def diamond(*, self_loops: bool = True) -> Graph:
    """Two triangles that share the edge 2 - 3: with self-loops the walks from 0 to 2 revisit nodes within two steps."""
    edges = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    return Graph.from_edges(edges, y=[0, 0, 1, 1], self_loops=self_loops, name="diamond")


def dead_end() -> Graph:
    """Node 0 has an edge of .1 to node 1 of its own class and one of .9 to node 2, which leads nowhere."""
    return Graph.from_edges([(0, 1), (0, 2)], weights=[0.1, 0.9], y=[0, 0, -1], class_names=["own", "other"], name="dead end")


def two_sides() -> Graph:
    """Node 0 has an edge of .6 to node 1 of its own class and one of .4 to node 2 of the other."""
    return Graph.from_edges([(0, 1), (0, 2)], weights=[0.6, 0.4], y=[0, 0, 1], name="two sides")


def line(spacing: float, nodes: int = 64) -> Graph:
    """Evenly spaced points on a line, each joined to its two neighbours: ε_i = 0 at all but the ends."""
    x = (torch.arange(nodes, dtype=torch.float64) - nodes / 2 + 0.5).unsqueeze(1) * spacing
    return Graph.from_edges([(i, i + 1) for i in range(nodes - 1)], x=x.numpy(), name=f"line, spacing {spacing:g}")


COUNTEREXAMPLES: dict[str, Callable[[], Graph]] = {
    "double_star": double_star,
    "star": star,
    "ring": ring,
    "diamond": diamond,
    "dead_end": dead_end,
    "two_sides": two_sides,
}
