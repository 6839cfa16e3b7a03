"""The picture of an explanation: the paths of its votes, and the scores of the classes."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from pathlib import Path
from typing import Any

from gcn_lpa.data.files import write_figure
from gcn_lpa.insight.answers import Explanation
from gcn_lpa.insight.paths import EQUAL
from gcn_lpa.insight.wording import hops_in_words, number_in_words, title
from gcn_lpa.palette import CLASS_COLORS, PALE, SHAPES


def draw_explanation(why: Explanation, path: str | Path) -> None:
    """Draw the strongest paths of an explanation, with edge weights and votes, beside the scores of the classes.

    The file's ending says which format: .png, .svg or .pdf. The same explanation gives the same picture, and a class has the
    same colour and shape in all pictures of a graph.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not Path(path).suffix:  # Matplotlib would write another file than the one that was named
        raise ValueError(f"{path} has no ending that says as what to draw it; .png, .svg or .pdf")
    looks = {name: (CLASS_COLORS[k % 8], SHAPES[k % 9]) for k, name in enumerate(why.scores)}
    places = _places(why)
    rows = 1 + max(row for _, row in places.values())
    with matplotlib.rc_context({"svg.hashsalt": "gcn-lpa", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(11, max(3.2, 0.62 * rows + 1.2)), layout="constrained")
        walks, bars = figure.subplots(1, 2, width_ratios=(3, 1.25))
        _draw_paths(walks, why, places, looks)
        _draw_scores(bars, why, looks)
        figure.suptitle(_short(title(why), 120), fontsize=11, fontweight="bold")
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower())
        write_figure(figure, path, dpi=150, metadata=undated)


def _places(why: Explanation) -> dict[Hashable, tuple[int, float]]:
    """Where each node of the paths is drawn: column by its steps from the explained node, rows so that branches do not cross."""
    children: dict[Hashable, list[Hashable]] = {why.node: []}
    depth = {why.node: 0}
    for vote in why.votes:  # the strongest first: a node hangs where it is first met
        for parent, node in pairwise(vote.path.nodes):
            if node not in depth:
                depth[node] = depth[parent] + 1
                children[parent].append(node)
                children[node] = []
    rows: dict[Hashable, float] = {}
    free = iter(range(len(depth)))

    def settle(node: Hashable) -> float:
        below = [settle(child) for child in children[node]]
        rows[node] = sum(below) / len(below) if below else float(next(free))
        return rows[node]

    settle(why.node)
    return {node: (depth[node], rows[node]) for node in depth}


def _draw_paths(axes: Any, why: Explanation, places: dict[Hashable, tuple[int, float]], looks: dict[str, Any]) -> None:
    steps = {
        (a, b): weight
        for vote in why.votes
        for (a, b), weight in zip(pairwise(vote.path.nodes), vote.path.weights, strict=True)
        if a != b
    }
    for (a, b), weight in steps.items():
        (x0, y0), (x1, y1) = places[a], places[b]
        axes.plot([x0, x1], [y0, y1], color="#999999", linewidth=0.8 + 5 * weight, zorder=1, solid_capstyle="round")
        at = 0.62  # nearer to the far end, where edges have spread
        box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"}
        style = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "#333333", "bbox": box, "zorder": 2}
        axes.text(x0 + at * (x1 - x0), y0 + at * (y1 - y0), f"{weight:.2f}", **style)
    votes = {vote.node: vote for vote in why.votes}
    for node, (x, y) in places.items():
        vote, is_start = votes.get(node), node == why.node
        label = why.label if is_start else vote.label if vote is not None else None
        color, shape = looks[label] if label is not None else (PALE, "o")
        share = 0.0 if vote is None else vote.share
        size = 420 if is_start else 45 if vote is None else 90 + 600 * share
        axes.scatter(
            [x], [y], s=size, color=color, marker=shape, edgecolor="black", linewidth=1.8 if is_start else 0.6, zorder=3
        )
        text = _short(node, 16) + (f"  {number_in_words(share)}" if vote is not None else "")
        beside = vote is not None and not is_start
        offset, ha, va = ((14, 0), "left", "center") if beside else ((0, -15), "center", "top")
        style = {"ha": ha, "va": va, "fontsize": 8, "fontweight": "bold" if is_start else None, "zorder": 4}
        axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", **style)
    deepest, lowest = max(x for x, _ in places.values()), max(y for _, y in places.values())
    axes.set(xlim=(-0.35, max(1, deepest) + 0.75), ylim=(lowest + 0.8, -0.8))
    axes.set_axis_off()
    if not why.votes:
        axes.text(0.4, 0, f"no label within {hops_in_words(why.hops)}", va="center", fontsize=10)
    axes.set_title(
        "the strongest path of each vote: learned weight on the edges, share of the vote beside the voter", fontsize=9
    )
    _add_legend(axes, why, places, looks)


def _add_legend(axes: Any, why: Explanation, places: dict[Hashable, tuple[int, float]], looks: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    labels = {why.label, *(vote.label for vote in why.votes)}
    keys = [(_short(name, 24), *look) for name, look in looks.items() if name in labels]
    if len(places) > len({why.node, *(vote.node for vote in why.votes)}):
        keys.append(("no training label", PALE, "o"))
    handles = [
        Line2D([], [], color=c, marker=m, linestyle="", markeredgecolor="black", label=name) for name, c, m in keys
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), ncols=4, frameon=False, fontsize=8)


def _draw_scores(axes: Any, why: Explanation, looks: dict[str, Any], most: int = 8) -> None:
    """Two bars for each class that has something to say: what the model and what LPA gives it."""
    size = {name: max(why.scores[name], why.probabilities[name]) for name in why.scores}
    ranked = sorted(size, key=lambda name: -round(size[name], EQUAL))
    shown = [name for rank, name in enumerate(ranked[:most]) if rank < 2 or size[name] >= 0.005]
    for row, name in enumerate(shown):
        color = looks[name][0]
        for shift, value, hatch in ((-0.2, why.probabilities[name], ""), (0.2, why.scores[name], "////")):
            axes.barh(row + shift, value, 0.36, color=color if not hatch else "white", edgecolor=color, hatch=hatch)
            axes.text(value + 0.02, row + shift, f"{value:.2f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(shown)), [_short(name, 24) for name in shown])
    axes.set(xlim=(0, 1.16), ylim=(max(2, len(shown) - 1) + 0.6, -0.6), xticks=(0, 0.5, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"full: {why.method}   hatched: LPA, {hops_in_words(why.hops)}", fontsize=9)


def _short(name: Hashable, most: int) -> str:
    text = str(name)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")  # not a formula
