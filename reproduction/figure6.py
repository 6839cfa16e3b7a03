"""Figure 6: how a label travels on a graph of five nodes, wave by wave and path by path."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gcn_lpa.graph import Graph
from gcn_lpa.insight.drawing import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from gcn_lpa.propagation import propagate_labels
from reproduction.canvas import canvas, save
from reproduction.exhibits import Exhibit, markdown_table

SMALL_EDGES = [("b", "1"), ("b", "3"), ("1", "2"), ("1", "a"), ("2", "a"), ("3", "a")]  # without self-loops
SMALL_PLACES = {"b": (0.0, 0.0), "1": (1.0, 0.5), "3": (1.5, -0.7), "2": (2.1, 0.95), "a": (3.0, 0.05)}
SMALL_LABELED = ("b", "3")
WAVE_COLORS = (ORANGE, GREEN, PINK)


class Hop(NamedTuple):
    """In one iteration, the label of v_b goes from one node to another; `cut` where the target is labelled."""

    iteration: int
    wave: int  # the iteration in which it left v_b
    source: str
    target: str
    mass: Fraction
    cut: bool


def small_transition() -> dict[str, dict[str, Fraction]]:
    """ã of the small graph: what each node takes from each neighbour."""
    neighbors: dict[str, list[str]] = {name: [] for name in SMALL_PLACES}
    for one, other in SMALL_EDGES:
        neighbors[one].append(other)
        neighbors[other].append(one)
    return {node: {other: Fraction(1, len(near)) for other in near} for node, near in neighbors.items()}


def hops(iterations: int) -> list[Hop]:
    """Where the label of v_b goes in each iteration of LPA, wave by wave.

    A wave leaves v_b in every iteration, since Eq. (2) gives v_b its label back; a labelled node swallows what it receives.
    """
    transition, found = small_transition(), []
    for wave in range(1, iterations + 1):
        mass = {"b": Fraction(1)}
        for iteration in range(wave, iterations + 1):
            step = [
                Hop(iteration, wave, source, target, transition[target][source] * amount, target in SMALL_LABELED)
                for source, amount in mass.items()
                for target in transition[source]
            ]
            mass = {}
            for hop in step:
                if not hop.cut:
                    mass[hop.target] = mass.get(hop.target, Fraction(0)) + hop.mass
            found += step
    return sorted(found, key=lambda hop: (hop.iteration, hop.wave))


def paths(length: int) -> list[tuple[str, ...]]:
    """All walks from v_b to v_a of at most `length` steps whose nodes between are unlabelled, the shortest first."""
    transition = small_transition()
    found: list[tuple[str, ...]] = []
    open_ends: list[tuple[str, ...]] = [("b",)]
    for _ in range(length):
        open_ends = [(*walk, node) for walk in open_ends for node in transition[walk[-1]] if node not in SMALL_LABELED]
        found += [walk for walk in open_ends if walk[-1] == "a"]
    return found


def weight_of(walk: Sequence[str]) -> Fraction:
    """The product of ã along a walk, each step as the node that receives weighs it (Lemma 2)."""
    transition, product = small_transition(), Fraction(1)
    for source, target in itertools.pairwise(walk):
        product *= transition[target][source]
    return product


def figure6(out: Path, *, quick: bool = False, seed: int = 0) -> Exhibit:
    """LPA on a small graph: the waves of v_b's label in iterations 1 to 3, and the paths to v_a they follow.

    The caption of the paper sends v_a's label to v_b; Definition 2 and Lemma 2 send v_b's to v_a, and so does this.
    """
    iterations, moves, found = 3, hops(3), paths(3)
    graph = Graph.from_edges(SMALL_EDGES, node_names=list(SMALL_PLACES), name="Figure 6")
    seeds = torch.zeros(graph.num_nodes, 2)  # mass of v_b's label, and of v_3's
    seeds[graph.index_of("b"), 0] = seeds[graph.index_of("3"), 1] = 1
    walk = graph.adjacency.row_normalized()
    received = [float(propagate_labels(walk, seeds, k)[graph.index_of("a"), 0]) for k in range(1, iterations + 1)]
    with canvas(2, 2, (11.5, 7.4)) as (figure, axes):
        for k, plot in enumerate(axes.flat[:3], 1):
            _draw_small(plot)
            own = [hop for hop in moves if hop.iteration == k]
            for hop in own:
                same_edge = [h for h in own if (h.source, h.target) == (hop.source, hop.target)]
                _draw_hop(plot, hop, sum(h.wave < hop.wave for h in same_edge))
            plot.set_title(f"Iteration {k}: $v_a$ holds {sum(map(weight_of, paths(k)), Fraction(0))} of $v_b$'s label")
        _draw_small(axes[1, 1])
        for number, (path, color) in enumerate(zip(found, (SKY, RED), strict=True)):
            for source, target in itertools.pairwise(path):
                _arrow(axes[1, 1], source, target, color, bend=0.12 + 0.16 * number, width=2.6)
        names = ",   ".join("$" + r"\to ".join(f"v_{node}" for node in path) + f"$ carries {weight_of(path)}" for path in found)
        axes[1, 1].set_title(f"All paths of length ≤ 3 through unlabelled nodes\n{names}")
        figure.legend(handles=_wave_legend(), loc="outside lower center", ncols=3)
        files = save(figure, out / "figure6.png")
    total = sum(map(weight_of, found), Fraction(0))
    rows = [[_spelled(path), str(len(path) - 1), str(weight_of(path))] for path in found]
    text = (
        "v_b and v_3 are labelled, there are no self-loops, and every edge has weight 1. In each iteration v_b has its label back "
        "(Eq. 2) and sends out a new wave; a wave ends where a labelled node receives it.\n\n"
        + markdown_table(["path from v_b to v_a", "length", "product of ã"], rows)
        + f"\n\nTheir sum, {total} = {float(total):.4f}, is the label influence I_l(v_a, v_b; 3) of Lemma 2; label propagation "
        f"puts {received[-1]:.4f} on v_a after three iterations ({received[0]:.4f} and {received[1]:.4f} after one and two)."
    )
    data = {
        "hops": [{**hop._asdict(), "mass": str(hop.mass)} for hop in moves],
        "paths": [{"path": list(path), "weight": str(weight_of(path))} for path in found],
        "influence": str(total),
        "received": received,
    }
    return Exhibit("figure6", "Figure 6: how a label travels", text, data, [], files)


def _spelled(path: Sequence[str]) -> str:
    return " → ".join(f"v_{node}" for node in path)


def _draw_small(plot: Any) -> None:
    for one, other in SMALL_EDGES:
        plot.plot(*zip(SMALL_PLACES[one], SMALL_PLACES[other], strict=True), color="#CFCFCF", linewidth=1.5, zorder=1)
    for name, place in SMALL_PLACES.items():
        labeled = name in SMALL_LABELED
        face, rim, ink = (BLUE, BLUE, "white") if labeled else ("white", BLACK, BLACK)
        plot.scatter(*place, s=720, c=face, edgecolors=rim, linewidths=1.5, zorder=3)
        plot.annotate(f"$v_{name}$", place, ha="center", va="center", color=ink, zorder=4, fontsize=13)
    plot.set(xlim=(-0.3, 3.3), ylim=(-1.0, 1.25))
    plot.set_aspect("equal")
    plot.set_axis_off()


def _draw_hop(plot: Any, hop: Hop, others: int) -> None:
    """An arrow bent away from those of earlier waves on the same edge; a cross instead of its head where it is cut off."""
    color, bend = WAVE_COLORS[hop.wave - 1], 0.12 + 0.16 * others
    _arrow(plot, hop.source, hop.target, color, bend=bend, width=2.2, cut=hop.cut)
    if hop.cut:
        start, end = (np.array(SMALL_PLACES[name]) for name in (hop.source, hop.target))
        aside = bend * np.array([end[1] - start[1], start[0] - end[0]])
        t = 0.78  # of the way along the curve that matplotlib draws, a quadratic one
        place = (1 - t) ** 2 * start + 2 * t * (1 - t) * ((start + end) / 2 + aside) + t**2 * end
        plot.scatter(*place, s=80, marker="x", c=color, linewidths=2.6, zorder=5)


def _arrow(plot: Any, source: str, target: str, color: str, *, bend: float, width: float, cut: bool = False) -> None:
    from matplotlib.patches import FancyArrowPatch

    plot.add_patch(
        FancyArrowPatch(
            SMALL_PLACES[source],
            SMALL_PLACES[target],
            arrowstyle="-" if cut else "-|>",
            mutation_scale=15,
            color=color,
            linewidth=width,
            linestyle=(0, (3, 2)) if cut else "-",
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=15,
            shrinkB=30 if cut else 16,
            zorder=2,
        )
    )


def _wave_legend() -> list[Any]:
    from matplotlib.lines import Line2D

    waves = [
        Line2D([], [], color=color, linewidth=2.5, label=f"wave {k}: left $v_b$ in iteration {k}")
        for k, color in enumerate(WAVE_COLORS, 1)
    ]
    cross = Line2D([], [], color=BLACK, linestyle=(0, (3, 2)), marker="x", markeredgewidth=2, label="cut off at a labelled node")
    dots = [
        Line2D([], [], linestyle="", marker="o", markersize=11, color=BLUE, label="labelled"),
        Line2D([], [], linestyle="", marker="o", markersize=11, markerfacecolor="white", color=BLACK, label="unlabelled"),
    ]
    return [*waves, cross, *dots]
