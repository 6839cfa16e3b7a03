"""Pictures of a run as files: the training curve, the confusion of classes, the neighbourhood of a node, a map of predictions.

Classes have the colours and shapes that they have everywhere; legends stand beside the picture.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from gcn_lpa.insight.drawing import BLUE, CLASS_COLORS, GREY, ORANGE, PALE, SHAPES, figure_at
from gcn_lpa.metrics import Scores
from gcn_lpa.report.graph_view import MOST_EDGES, MOST_NODES, learned_edges, note, positions, sample

if TYPE_CHECKING:
    from gcn_lpa.report.page import OpenRun

STYLE: dict[Any, Any] = {
    **{"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.titlesize": 10},
    **{"legend.frameon": False, "text.parse_math": False},  # a $ in a name is no formula
}
MOST_NEAR = 60  # nodes of a neighbourhood, the nearest
MOST_WRITTEN = 25  # classes whose counts are written into the confusion; more do not fit
LONGEST = 24  # characters of a name
MOST_OUTLINED = 3_000  # nodes; of more, outlines would hide the colours
KEYS = 24  # classes of a legend


def draw_curve(subject: OpenRun, path: str | Path) -> None:
    """Losses and validation accuracy over the epochs, and the epoch that was kept."""
    run = subject.run.run
    if len(run.history) < 2:
        raise ValueError(f"method {run.recipe.method!r} learns at once: there is no curve of epochs to draw")
    lines = [("training loss", "loss", BLUE, "-"), ("validation loss", "val_loss", ORANGE, "--")]
    with figure_at(path, (9, 3.4), STYLE) as figure:
        losses, accuracy = figure.subplots(1, 2)
        for axes, drawn in ((losses, lines), (accuracy, [("validation accuracy", "val_accuracy", ORANGE, "--")])):
            for name, field, color, dash in drawn:
                points = [(e.epoch, getattr(e, field)) for e in run.history if getattr(e, field) is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), dash, color=color, label=name, linewidth=1.4)
            axes.axvline(run.best_epoch, color=GREY, linewidth=1, linestyle=":")
            axes.set_xlabel("epoch")
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        accuracy.set_ylim(0, 1.02)
        figure.suptitle(f"{subject.graph.name}, {run.recipe.method}: epoch {run.best_epoch} was kept (dotted)")


def draw_confusion(subject: OpenRun, path: str | Path) -> None:
    """Which class is taken for which: nodes of each true class by the class that they were given."""
    found = subject.run.results.scores
    if found is None:
        raise ValueError(f"this run was not scored ({subject.run.results.note}): there is no confusion to draw")
    if not isinstance(found, Scores):
        raise ValueError("this run predicts numbers, and confusion is of classes")
    names, counts = [_short(name) for name in found.per_class], np.array(found.confusion)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = 2.6 + 0.42 * min(len(names), 30)
    with figure_at(path, (size + 1.6, size), STYLE) as figure:
        axes = figure.subplots()
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for (i, j), count in np.ndenumerate(counts) if len(names) <= MOST_WRITTEN else ():
            color = "white" if share[i, j] > 0.5 else "black"
            axes.text(j, i, f"{count:,}", ha="center", va="center", color=color, fontsize=8)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="predicted", ylabel="true", title=f"{subject.graph.name}: {found.num_nodes:,} nodes")
        figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class")


def draw_neighbourhood(subject: OpenRun, path: str | Path, node: Hashable, hops: int = 2) -> None:
    """A node and what is near it: colour and shape are the predicted class, the width of an edge its learned weight."""
    graph = subject.graph
    middle = graph.index_of(node)
    links = learned_edges(subject).tocsr()
    far = csgraph.dijkstra(links, directed=False, indices=middle, unweighted=True, limit=hops)
    near = np.flatnonzero(np.isfinite(far))
    kept = np.sort(near[np.argsort(far[near], kind="stable")[:MOST_NEAR]])
    left = f"; the nearest {len(kept)} of {len(near)} nodes" if len(kept) < len(near) else ""
    with figure_at(path, (9, 6), STYLE) as figure:
        axes = figure.subplots()
        xy = _draw_nodes(axes, subject, links, kept, largest=260.0)
        for k, at in enumerate(kept.tolist()):
            below = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center", "va": "top", "fontsize": 7}
            weight = "bold" if at == middle else None
            axes.annotate(_short(graph.node_names[at], 16), xy[k], fontweight=weight, **below)
        spot = xy[int(np.searchsorted(kept, middle))]
        axes.scatter(*spot, s=480, facecolor="none", edgecolor="black", linewidth=1.4, zorder=4)
        axes.set_title(f"{_short(graph.node_names[middle])} and the nodes within {hops} hops{left}")


def draw_map(subject: OpenRun, path: str | Path) -> None:
    """All nodes, or a sample of a large graph: colour and shape are the predicted class, size is confidence."""
    links = learned_edges(subject).tocsr()
    kept = sample(links, subject.least_sure, MOST_NODES)
    with figure_at(path, (10, 7), STYLE) as figure:
        axes = figure.subplots()
        _draw_nodes(axes, subject, links, kept, largest=float(np.clip(60_000 / len(kept), 5, 160)))
        inside = links[kept][:, kept].nnz
        more = note(subject.graph.num_nodes, len(kept), inside, min(inside, MOST_EDGES), "are least sure")
        title = f"{subject.graph.name}: {subject.graph.num_nodes:,} nodes{more and f'. {more}'}"
        axes.set_title(textwrap.fill(title, 100))


PICTURES: dict[str, Callable[..., None]] = {
    "curve": draw_curve,
    "confusion": draw_confusion,
    "neighbourhood": draw_neighbourhood,
    "map": draw_map,
}


def _draw_nodes(
    axes: Any, subject: OpenRun, links: scipy.sparse.csr_array, kept: np.ndarray, largest: float
) -> np.ndarray:
    """Draw nodes, with the edges between them and a legend beside; returns where they are, [n, 2]."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    inside = links[kept][:, kept].tocoo()
    xy = positions(inside.tocsr())
    heavy = np.argsort(-inside.data, kind="stable")[:MOST_EDGES]
    ends = np.stack([xy[inside.row[heavy]], xy[inside.col[heavy]]], axis=1)
    thin = min(1.0, 400 / max(len(heavy), 1)) ** 0.4  # many edges would be one grey
    width = 0.2 + 2.2 * thin * np.sqrt(inside.data[heavy] / inside.data.max(initial=1e-9))
    axes.add_collection(LineCollection(list(ends), linewidths=width, colors="#BBBBBB", alpha=thin**0.7, zorder=1))
    outline = 0.7 if len(kept) <= MOST_OUTLINED else 0.0
    drawn, names = subject.drawn_as
    label, sure = drawn[kept], subject.sure.numpy()[kept]
    given = subject.kind[kept] == 1
    reached = np.array([subject.prediction.status[at] != "unreachable" for at in kept.tolist()])
    keys: list[tuple[str, dict[str, Any], str]] = []
    for k in np.unique(label[reached]).tolist():
        look = {"color": CLASS_COLORS[k % 8], "marker": SHAPES[k % 9]}
        for here, edge in ((~given, "white"), (given, "black")):
            one = (label == k) & reached & here
            border = {"edgecolor": edge, "linewidth": outline, "zorder": 2 + (edge == "black")}
            axes.scatter(*xy[one].T, s=largest * (0.15 + 0.85 * sure[one] ** 2), **border, **look)
        keys.append((_short(names[k]), look, "none"))
    if (~reached).any():
        axes.scatter(*xy[~reached].T, s=0.3 * largest, color=PALE, edgecolor=GREY, linewidth=outline, zorder=2)
        keys.append(("out of reach of any label", {"color": PALE, "marker": "o"}, GREY))
    if given.any() and outline:
        keys.append(("label given", {"color": "white", "marker": "o"}, "black"))
    style: dict[str, Any] = {"linestyle": "", "markersize": 8}
    handles = [Line2D([], [], markeredgecolor=edge, label=name, **style, **look) for name, look, edge in keys[:KEYS]]
    if len(keys) > KEYS:
        handles.append(Line2D([], [], linestyle="", label=f"… and {len(keys) - KEYS} more"))
    axes.figure.legend(handles=handles, loc="outside right upper", title="predicted; larger: surer")
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.06)
    return xy


def _short(name: Hashable, most: int = LONGEST) -> str:
    text = str(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"
