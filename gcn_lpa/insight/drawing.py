"""Pictures with Matplotlib: of an explanation, of a search for settings; and the colours of every picture."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gcn_lpa.data.files import write_figure
from gcn_lpa.insight.explanation import EQUAL, hops_in_words, in_words

if TYPE_CHECKING:
    from gcn_lpa.insight.explanation import Explanation, NumberFacts

# those of Okabe and Ito (2008), which colour-blind readers can tell apart, and a few beside
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"  # their yellow is left out: it is lost on white
VIOLET, BROWN = "#6A4C93", "#8C5A2B"
GREY = "#8A8A8A"
PALE = "#DDDDDD"  # of what is there and says nothing, such as a node without a label

CLASS_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, BROWN)  # in the order in which classes take them
MOST_BARS = 8  # classes whose scores are drawn
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p", "h")  # of classes, for those who print in grey


@contextlib.contextmanager
def figure_at(path: str | Path, size: tuple[float, float], style: Mapping[Any, Any] | None = None, dpi: int = 150) -> Iterator[Any]:
    """A figure that is written when the block ends, as the ending says; the same drawing gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot's: a notebook keeps its way to show figures

    if not Path(path).suffix:  # Matplotlib would write another file than the one that was named
        raise ValueError(f"{path} has no ending that says as what to draw it; .png, .svg or .pdf")
    with matplotlib.rc_context({"svg.hashsalt": "gcn-lpa", **(style or {})}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower())
        write_figure(figure, path, dpi=dpi, metadata=undated)


def draw_explanation(why: Explanation, path: str | Path) -> None:
    """Draw the strongest paths of an explanation, with edge weights and votes, beside the scores of the classes.

    The file's ending says which format: .png, .svg or .pdf. The same explanation gives the same picture, and a class has the
    same colour and shape in all pictures of a graph.
    """
    looks = {name: (CLASS_COLORS[k % 8], SHAPES[k % 9]) for k, name in enumerate(why.scores)}
    if why.number is not None:
        looks = dict.fromkeys([why.label, *(vote.label for vote in why.votes)], (BLUE, "o"))
    spots = _spots(why)
    rows = 1 + max(row for _, row in spots.values())
    with figure_at(path, (11, max(3.2, 0.62 * rows + 1.2)), {"svg.fonttype": "none", "font.size": 9}) as figure:
        walks, bars = figure.subplots(1, 2, width_ratios=(3, 1.25))
        _draw_paths(walks, why, spots, looks)
        if why.number is not None:
            _draw_numbers(bars, why, why.number)
        else:
            _draw_scores(bars, why, looks)
        figure.suptitle(_short(why.title, 120), fontsize=11, fontweight="bold")


def _spots(why: Explanation) -> dict[Hashable, tuple[int, float]]:
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


def _draw_paths(axes: Any, why: Explanation, spots: dict[Hashable, tuple[int, float]], looks: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    weights = {
        ends: weight
        for vote in why.votes
        for ends, weight in zip(pairwise(vote.path.nodes), vote.path.weights, strict=True)
        if ends[0] != ends[1]
    }
    for (a, b), weight in weights.items():
        (x0, y0), (x1, y1) = spots[a], spots[b]
        axes.plot([x0, x1], [y0, y1], color="#999999", linewidth=0.8 + 5 * weight, zorder=1, solid_capstyle="round")
        at = 0.62  # nearer to the far end, where edges have spread
        box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"}
        style = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "#333333", "bbox": box, "zorder": 2}
        axes.text(x0 + at * (x1 - x0), y0 + at * (y1 - y0), f"{weight:.2f}", **style)
    votes = {vote.node: vote for vote in why.votes}
    for node, (x, y) in spots.items():
        vote, is_start = votes.get(node), node == why.node
        label = why.label if is_start else vote.label if vote is not None else None
        color, shape = looks[label] if label is not None else (PALE, "o")
        share = 0.0 if vote is None else vote.share
        size = 420 if is_start else 45 if vote is None else 90 + 600 * share
        outline = {"edgecolor": "black", "linewidth": 1.8 if is_start else 0.6}
        axes.scatter([x], [y], s=size, color=color, marker=shape, zorder=3, **outline)
        text = _short(node, 16) + (f"  {in_words(share)}" if vote is not None else "")
        text += f"  {label}" if why.number is not None and label is not None else ""
        beside = vote is not None and not is_start
        offset, ha, va = ((14, 0), "left", "center") if beside else ((0, -15), "center", "top")
        style = {"ha": ha, "va": va, "fontsize": 8, "fontweight": "bold" if is_start else None, "zorder": 4}
        axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", **style)
    deepest, lowest = max(x for x, _ in spots.values()), max(y for _, y in spots.values())
    axes.set(xlim=(-0.35, max(1, deepest) + 0.75), ylim=(lowest + 0.8, -0.8))
    axes.set_axis_off()
    if not why.votes:
        axes.text(0.4, 0, f"no label within {hops_in_words(why.hops)}", va="center", fontsize=10)
    axes.set_title("the strongest path of each vote: learned weight on the edges, share beside the voter", fontsize=9)
    labels = {why.label, *(vote.label for vote in why.votes)}
    keys = [(_short(name, 24), *look) for name, look in looks.items() if name in labels and why.number is None]
    if len(spots) > len({why.node, *votes}):
        keys.append(("no training label", PALE, "o"))
    handles = [
        Line2D([], [], color=color, marker=shape, linestyle="", markeredgecolor="black", label=name) for name, color, shape in keys
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), ncols=4, frameon=False, fontsize=8)


def _draw_scores(axes: Any, why: Explanation, looks: dict[str, Any]) -> None:
    """Two bars for each of the likeliest classes: its probability and its score of LPA."""
    size = {name: max(why.scores[name], why.probabilities[name]) for name in why.scores}
    ranked = sorted(size, key=lambda name: -round(size[name], EQUAL))
    shown = [name for rank, name in enumerate(ranked[:MOST_BARS]) if rank < 2 or size[name] >= 0.005]
    for row, name in enumerate(shown):
        color = looks[name][0]
        for shift, value, hatch in ((-0.2, why.probabilities[name], ""), (0.2, why.scores[name], "////")):
            axes.barh(row + shift, value, 0.36, color=color if not hatch else "white", edgecolor=color, hatch=hatch)
            axes.text(value + 0.02, row + shift, f"{value:.2f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(shown)), [_short(name, 24) for name in shown])
    axes.set(xlim=(0, 1.16), ylim=(max(2, len(shown) - 1) + 0.6, -0.6), xticks=(0, 0.5, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"full: {why.method}   hatched: LPA, {hops_in_words(why.hops)}", fontsize=9)


def _draw_numbers(axes: Any, why: Explanation, number: NumberFacts) -> None:
    """The predicted number with its interval, that of LPA, and those that vote, as large as their share."""
    if (offset := number.log_offset) is not None:  # read far below every number, it has no logarithm
        functions = (lambda x: np.log(np.maximum(x + offset, 1e-300)), lambda z: np.exp(np.minimum(z, 700)) - offset)
        axes.set_xscale("function", functions=functions)
    if number.low is not None and number.high is not None:
        axes.plot([number.low, number.high], [0, 0], color=BLUE, linewidth=6, alpha=0.3, solid_capstyle="butt")
    axes.scatter([number.value], [0], color=BLUE, s=90, edgecolor="black", zorder=3)
    if number.lpa is not None:
        axes.scatter([number.lpa], [1], color="white", s=90, edgecolor=BLUE, zorder=3)
    sizes = [40 + 600 * vote.share for vote in why.votes]
    axes.scatter(number.votes, [2] * len(number.votes), s=sizes, color=BLUE, alpha=0.6, edgecolor="black")
    axes.set_yticks(range(3), [why.method, f"LPA, {hops_in_words(why.hops)}", "votes"])
    axes.set(ylim=(2.6, -0.6))
    axes.locator_params(axis="x", nbins=4)
    axes.spines[["top", "right"]].set_visible(False)


def _short(name: Hashable, most: int) -> str:
    text = str(name)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")  # not a formula
