"""Figure 1: which edges of a toy graph training makes stronger. Are they those inside a class?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.graph import Graph
from gcn_lpa.insight.drawing import BLACK, GREY
from gcn_lpa.recipes import PAPER, Recipe
from gcn_lpa.stats import mean_of
from reproduction.canvas import CLASS_STYLES, canvas, save
from reproduction.exhibits import Exhibit, markdown_table
from reproduction.recipes import StudyRecipe
from reproduction.training import learn_once

EDGE_COLUMNS = {
    "gain": "intra-class among stronger edges, minus among all",
    "stronger_intra": "among stronger ones",
    "weaker_intra": "among weaker ones",
    "ends_2": "intra-class edges made stronger: both ends labelled",
    "ends_1": "one end",
    "ends_0": "none",
    "accuracy": "accuracy on unlabelled nodes",
}


class Toy(NamedTuple):
    """Two classes of eight nodes, half of them labelled, and some edges between the classes."""

    graph: Graph
    labeled: Tensor  # [16]
    places: np.ndarray  # [16, 2]


def toy_graph(seed: int) -> Toy:
    """Each class is a ring of seven nodes around an eighth, joined to four of them, with two chords; six edges lead across."""
    rng, size = np.random.default_rng(seed), 8
    angle = 0.08 + 2 * np.pi * np.arange(size - 1) / (size - 1)  # turned, so that no edge passes through a node
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    edges: list[tuple[int, int]] = []
    for first in (0, size):
        hub = first + size - 1
        edges += [(first + k, first + (k + 1) % (size - 1)) for k in range(size - 1)]
        edges += [(hub, first + int(k)) for k in rng.choice(size - 1, size=4, replace=False)]
        edges += [(first + int(k), first + (int(k) + 2) % (size - 1)) for k in rng.choice(size - 1, size=2, replace=False)]
    facing = list(itertools.product((0, 1, 6), repeat=2))
    edges += [(facing[k][0], size + facing[k][1]) for k in rng.choice(len(facing), size=6, replace=False)]
    left = np.vstack([ring, [0, 0]]) - np.array([1.7, 0])
    places = np.vstack([left, left * np.array([-1, 1])])  # face to face
    labeled = torch.zeros(2 * size, dtype=torch.bool)
    for first in (0, size):
        labeled[first + torch.from_numpy(rng.choice(size, size=4, replace=False))] = True
    graph = Graph.from_edges(edges, y=[0] * size + [1] * size, class_names=["blue", "red"], name="toy")
    return Toy(graph, labeled, places)


class LearnedEdge(NamedTuple):
    """An edge of the toy and what training did to it; its weight is ã_ij + ã_ji, what its ends take from each other."""

    source: int
    target: int
    intra_class: bool
    labeled_ends: int
    before: float
    after: float

    @property
    def is_stronger(self) -> bool:
        return self.after > self.before


def learned_edges(toy: Toy, recipe: Recipe, seed: int) -> tuple[list[LearnedEdge], float]:
    """Every edge before and after a run of GCN-LPA on the labels of the toy, and the accuracy on its unlabelled nodes."""
    no_val = torch.zeros_like(toy.labeled)
    model = learn_once(toy.graph, toy.labeled, no_val, recipe, seed=seed, device="cpu", threads=1).model
    graph = recipe.prepare(toy.graph)
    with torch.no_grad():
        after, guess = model.transition(graph).to_dense(), model(graph).argmax(dim=1)
    before, y = graph.adjacency.row_normalized().to_dense(), graph.y
    edges = [
        LearnedEdge(
            source=i,
            target=j,
            intra_class=bool(y[i] == y[j]),
            labeled_ends=int(toy.labeled[i]) + int(toy.labeled[j]),
            before=float(before[i, j] + before[j, i]),
            after=float(after[i, j] + after[j, i]),
        )
        for i, j in zip(graph.row.tolist(), graph.col.tolist(), strict=True)
        if i < j
    ]
    return edges, float((guess == y)[~toy.labeled].double().mean())


def figure1(out: Path, *, quick: bool = False, seed: int = 0) -> Exhibit:
    """A toy graph, the edges that GCN-LPA made stronger, and the share of them that is inside a class, over many toys."""
    recipe = PAPER["citeseer"].replace(features="raw")
    variants = {
        "GCN-LPA": recipe,
        "GCN-LPA, held-out loss": recipe.replace(loss="held_out"),
        "trainable edges, λ = 0": recipe.replace(lpa_weight=0.0),
    }
    starts, shown = range(seed, seed + (4 if quick else 20)), toy_graph(seed)
    rows, data = [], {}
    for name, settings in variants.items():
        runs = [learned_edges(toy_graph(k), settings, k) for k in starts]
        facts = _edge_facts(runs)
        data[name] = {**facts, "recipe": StudyRecipe.of(settings).hash()}
        rows.append([name, *(_percent(facts[key]) for key in EDGE_COLUMNS)])
    edges, _ = learned_edges(shown, recipe, seed)
    stronger = [edge for edge in edges if edge.is_stronger]
    intra, all_intra = (sum(edge.intra_class for edge in part) for part in (stronger, edges))
    shares = [f"{100 * intra / len(stronger):.0f}", f"{100 * all_intra / len(edges):.0f}"]
    text = (
        f"Of the {len(edges)} edges drawn, {len(stronger)} became stronger; {intra} of these, {shares[0]} %, are inside a class, "
        f"against {shares[1]} % of all edges. Over {len(starts)} random toys with 16 nodes, 8 of "
        "them labelled, training as on Citeseer (Table 4) with one-hot features:\n\n"
        + markdown_table(["", *EDGE_COLUMNS.values()], rows)
        + "\n\nAn edge is stronger where ã_ij + ã_ji grew, what its two ends take from each other; ± is a 95 % interval over toys."
    )
    with canvas(1, 2, (12, 4.1)) as (figure, axes):
        _draw_toy(axes[0, 0], shown, None)
        _draw_toy(axes[0, 1], shown, edges)
        axes[0, 0].set_title("Two classes; white nodes are unlabelled")
        axes[0, 1].set_title(
            f"Bold: the {len(stronger)} of {len(edges)} edges that training made stronger.\n{shares[0]} % of them are inside a "
            f"class, of all edges {shares[1]} %"
        )
        figure.legend(handles=_toy_legend(), loc="outside lower center", ncols=6)
        files = save(figure, out / "figure1.png")
    drawn = [{**edge._asdict(), "stronger": edge.is_stronger} for edge in edges]
    return Exhibit("figure1", "Figure 1: the edges that training strengthens", text, {"drawn": drawn, "toys": data}, [], files)


def _edge_facts(runs: Sequence[tuple[list[LearnedEdge], float]]) -> dict[str, Any]:
    """Shares over all toys, each with the half-width of its interval; and the gain of each toy."""

    def share(chosen: Callable[[LearnedEdge], bool], wanted: Callable[[LearnedEdge], bool]) -> list[float | None]:
        groups = [[wanted(edge) for edge in edges if chosen(edge)] for edges, _ in runs]
        shares = np.array([np.mean(group) for group in groups if group])
        return [*vars(mean_of(shares)).values()] if len(shares) else [None, None]

    accuracy = mean_of(np.array([accuracy for _, accuracy in runs]))
    gains = [_intra_class_gain(edges) for edges, _ in runs]
    gain = mean_of(np.array(gains))
    return {
        "gains": gains,
        "gain": [gain.mean, gain.interval],
        "stronger_intra": share(lambda e: e.is_stronger, lambda e: e.intra_class),
        "weaker_intra": share(lambda e: not e.is_stronger, lambda e: e.intra_class),
        **{
            f"ends_{k}": share(lambda e, k=k: e.intra_class and e.labeled_ends == k, lambda e: e.is_stronger)  # type: ignore[misc]
            for k in (2, 1, 0)
        },
        "accuracy": [accuracy.mean, accuracy.interval],
    }


def _intra_class_gain(edges: Sequence[LearnedEdge]) -> float:
    """The share of intra-class edges among the stronger ones, minus that among all."""
    stronger = [edge.intra_class for edge in edges if edge.is_stronger]
    return float(np.mean(stronger) - np.mean([edge.intra_class for edge in edges])) if stronger else 0.0


def _percent(share: Sequence[float | None]) -> str:
    value, interval = share
    spread = "" if interval is None else f" ± {100 * interval:.0f}"
    return "–" if value is None else f"{100 * value:.0f}{spread} %"


def _draw_toy(plot: Any, toy: Toy, edges: Sequence[LearnedEdge] | None) -> None:
    from matplotlib.patches import Circle

    changes = {(edge.source, edge.target): edge for edge in edges or ()}
    for i, j in zip(toy.graph.row.tolist(), toy.graph.col.tolist(), strict=True):
        if i < j:
            plot.plot(*toy.places[[i, j]].T, zorder=1, **_edge_style(changes.get((i, j))))
    for c, (color, marker) in enumerate(CLASS_STYLES):
        own = (toy.graph.y == c).numpy()
        for labeled, face in ((True, color), (False, "white")):
            part = toy.places[own & (toy.labeled.numpy() == labeled)]
            known = labeled or edges is not None  # the class of a white node is unknown before training
            shape, rim = (marker, color) if known else ("o", BLACK)
            plot.scatter(*part.T, s=190, marker=shape, c=face, edgecolors=rim, linewidths=1.6, zorder=2)
        center = toy.places[own].mean(axis=0)
        plot.add_patch(Circle(tuple(center), 1.35, fill=False, linestyle=":", edgecolor=color, linewidth=1.6))
    plot.set_aspect("equal")
    plot.set_axis_off()


def _edge_style(edge: LearnedEdge | None) -> dict[str, Any]:
    """Of an edge before training (None), one that became stronger, and one that became weaker."""
    if edge is None:
        return {"color": GREY, "linewidth": 1.2}
    if edge.is_stronger:
        return {"color": BLACK, "linewidth": 2.2 + 2.5 * min(1.0, edge.after - edge.before)}
    return {"color": GREY, "linewidth": 0.9, "linestyle": (0, (2, 2))}


def _toy_legend() -> list[Any]:
    from matplotlib.lines import Line2D

    dots = [
        Line2D([], [], linestyle="", marker=marker, markersize=10, color=color, label=f"{name}, labelled")
        for (color, marker), name in zip(CLASS_STYLES, ("blue", "red"), strict=True)
    ]
    white = Line2D([], [], linestyle="", marker="o", markersize=10, markerfacecolor="white", color=BLACK, label="unlabelled")
    bold = Line2D([], [], color=BLACK, linewidth=3, label="stronger")
    thin = Line2D([], [], color=GREY, linewidth=1, linestyle=(0, (2, 2)), label="weaker")
    return [*dots, white, bold, thin]
