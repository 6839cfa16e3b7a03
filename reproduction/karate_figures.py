"""Figures 2 and 7: pictures of the karate club's embeddings, and how many starts are linearly separable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.insight.drawing import BLACK, BLUE, GREY, ORANGE, SKY
from gcn_lpa.recipes import PAPER
from gcn_lpa.stats import mean_of
from reproduction import karate
from reproduction.canvas import CLASS_STYLES, canvas, save
from reproduction.claims import KARATE, Case
from reproduction.exhibits import Exhibit, markdown_table
from reproduction.karate import NETWORKS, TRAINED, UNTRAINED, Embedding

METHOD_NAMES = {"gcn": "GCN", "gcn-lpa": "GCN-LPA", "gcn-lpa held-out": "GCN-LPA, held-out loss"}


@dataclass(frozen=True)
class Club:
    """The tallies of Figures 2 and 7, one for each case."""

    untrained: list[dict[str, Any]]
    trained: list[dict[str, Any]]
    epochs: int


def club(
    layers: Sequence[int],
    *,
    trained_methods: Sequence[str],
    quick: bool,
    seed: int,
    starts: tuple[int, int] | None = None,
) -> Club:
    """Every method on both networks with each number of layers, over random starts: of weights, noise and split alike."""
    many, few = starts or ((40, 4) if quick else (400, 20))
    epochs = 60 if quick else PAPER["citeseer"].epochs

    def cases(methods: Sequence[str]) -> list[Case]:
        return [Case(method, network, k) for k in layers for network in NETWORKS for method in methods]

    return Club(
        [karate.tally(case, [karate.untrained(case, seed + k) for k in range(many)]) for case in cases(UNTRAINED)],
        [karate.tally(case, [karate.trained(case, seed + k, epochs) for k in range(few)]) for case in cases(trained_methods)],
        epochs,
    )


def figure2(out: Path, *, quick: bool = False, seed: int = 0) -> Exhibit:
    """The karate club, embedded by two layers: untrained as in the text, trained as in the caption."""
    found = club([KARATE.layers], trained_methods=TRAINED, quick=quick, seed=seed)
    y = karate.network("original", seed).y.numpy()
    first, second = (seed + karate.typical_start(tallies) for tallies in (found.untrained, found.trained))
    with canvas(2, 5, (16, 6.9)) as (figure, axes):
        _draw_club(axes[0, 0], first)
        _draw_shares(axes[1, 0], found)
        cases = [Case(method, network, KARATE.layers) for network in NETWORKS for method in UNTRAINED]
        for column, case in enumerate(cases, 1):
            name = f"{METHOD_NAMES[case.method]}, {case.network} network"
            kept = karate.find_tally(found.untrained, case)
            _draw_embedding(axes[0, column], karate.untrained(case, first), y, f"{name}\nuntrained: {_shares_in_words(kept)}")
            kept = karate.find_tally(found.trained, case)
            embedding = karate.trained(case, second, found.epochs)
            _draw_embedding(axes[1, column], embedding, y, f"{name}\ntrained: {_shares_in_words(kept)}")
        figure.legend(handles=_club_legend(), loc="outside lower center", ncols=5)
        files = save(figure, out / "figure2.png")
    text = f"{_about_the_club(found)}\n\n{_club_table(found)}"
    data = {"untrained": found.untrained, "trained": found.trained, **_settings(found)}
    return Exhibit("figure2", "Figure 2: the karate club in two dimensions", text, data, [], files)


def figure7(out: Path, *, quick: bool = False, seed: int = 0) -> Exhibit:
    """The same with one to four layers, a picture each for untrained and trained models, and one of all starts."""
    found = club(KARATE.layers_figure7, trained_methods=UNTRAINED, quick=quick, seed=seed)
    y = karate.network("original", seed).y.numpy()
    files: list[Path] = []
    first, second = (seed + karate.typical_start(tallies) for tallies in (found.untrained, found.trained))
    kinds: list[tuple[str, list[dict[str, Any]], Callable[[Case], Embedding]]] = [
        ("untrained", found.untrained, lambda case: karate.untrained(case, first)),
        ("trained", found.trained, lambda case: karate.trained(case, second, found.epochs)),
    ]
    for kind, tallies, embed in kinds:
        with canvas(4, 4, (13, 13)) as (figure, axes):
            for row, (network, method) in enumerate(itertools.product(NETWORKS, UNTRAINED)):
                for column, layers in enumerate(KARATE.layers_figure7):
                    case, plot = Case(method, network, layers), axes[row, column]
                    title = _shares_in_words(karate.find_tally(tallies, case))
                    above = f"{layers} layer{'s' if layers > 1 else ''}\n" if row == 0 else ""
                    _draw_embedding(plot, embed(case), y, above + title)
                axes[row, 0].set_ylabel(f"{METHOD_NAMES[method]}\n{network} network", fontsize=12)
            figure.suptitle(f"Karate club, {kind}: a typical start, and how many starts are linearly separable", fontsize=13)
            figure.legend(handles=_club_legend(noisy=False), loc="outside lower center", ncols=4)
            files += save(figure, out / ("figure7.png" if kind == "untrained" else "figure7-trained.png"))
    with canvas(1, 2, (11, 4.4)) as (figure, axes):
        for plot, (kind, tallies, _) in zip(axes[0], kinds, strict=True):
            _draw_layers(plot, tallies)
            plot.set_title(f"{kind.capitalize()}, {tallies[0]['starts']} starts")
        axes[0, 0].set_ylabel("linearly separable starts, %")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        files += save(figure, out / "figure7-separability.png")
    text = f"{_about_the_club(found)}\n\n{_club_table(found)}"
    data = {"untrained": found.untrained, "trained": found.trained, **_settings(found)}
    return Exhibit("figure7", "Figure 7: the karate club with one to four layers", text, data, [], files)


def _settings(found: Club) -> dict[str, Any]:
    layers = sorted({one["layers"] for one in found.untrained})
    methods = list(dict.fromkeys(one["method"] for one in found.trained))
    return {
        "recipes": {
            **{f"untrained, {k} layers": karate.untrained_recipe(k).hash() for k in layers},
            **{f"{m}, {k} layers": karate.trained_recipe(m, k, found.epochs).hash() for m in methods for k in layers},
        },
        "epochs": found.epochs,
    }


def _about_the_club(found: Club) -> str:
    many, few = (tallies[0]["starts"] for tallies in (found.untrained, found.trained))
    return (
        f"One-hot features, width {KARATE.width}, {KARATE.activation}, W uniform in [-1, 1].\n\n"
        f"*Untrained*, as the text of the paper has it: {many} starts; GCN-LPA is the same GCN with edges inside a class "
        f"{KARATE.strengthening:g} times stronger, which takes the classes of all nodes. *Trained*, as the caption has it: {few} "
        f"starts, {found.epochs} epochs on 60 % of the labels with the settings of Table 4 for Citeseer, edges free; the embedding "
        f"is that of the logits. Each start has its own weights, {KARATE.noisy_edges} noisy edges and split, and all methods share "
        "them.\n\n*Separable*: some straight line has all 34 nodes on the right side, with a 95 % interval (Wilson); an "
        "embedding a thousand times longer than wide counts as one-dimensional. *Wrong*: the fewest nodes on the wrong side of a "
        "line, on average. The start that is drawn is the one nearest to these averages; "
        "an embedding on one line is drawn in five rows, so that all nodes can be seen."
    )


def _club_table(found: Club) -> str:
    header = ["", "untrained: separable", "wrong", "trained: separable", "wrong", "accuracy on the other 40 %"]
    rows = []
    for case in [Case(c["method"], c["network"], c["layers"]) for c in found.trained]:
        name = f"{METHOD_NAMES[case.method]}, {case.network}, {case.layers} layer{'s' if case.layers > 1 else ''}"
        before = karate.find_tally(found.untrained, case) if case.method in UNTRAINED else None
        after = karate.find_tally(found.trained, case)
        scores = mean_of(np.array(after["test_accuracy"]))
        rows.append([name, *_separable(before), *_separable(after), str(scores)])
    return markdown_table(header, rows)


def _separable(kept: Mapping[str, Any] | None) -> list[str]:
    if kept is None:
        return ["–", "–"]
    low, high = kept["separable_interval"]
    return [f"{100 * kept['separable']:.0f} % [{100 * low:.0f}, {100 * high:.0f}]", f"{kept['mean_wrong']:.1f}"]


def _shares_in_words(kept: Mapping[str, Any]) -> str:
    return f"{100 * kept['separable']:.0f} % of {kept['starts']} separable"


def _draw_embedding(plot: Any, embedding: Embedding, y: np.ndarray, title: str) -> None:
    """The nodes where the model puts them, the best line, and a ring around each node on its wrong side.

    Drawn along the principal axes, each scaled to unit variance: deep embeddings are nearly a line, and this moves no node
    across another line.
    """
    axes, center = karate.whitening(embedding.points), embedding.points.mean(axis=0)
    points = (embedding.points - center) @ axes
    line = karate.best_line(points, y)
    if not axes[:, 1].any():
        points[:, 1] = np.argsort(np.argsort(points[:, 0])) % 5  # on one line: lift some, so that all can be seen
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.1 * np.where(high > low, high - low, 1.0)
    plot.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    foot = line.normal * line.offset / (line.normal @ line.normal)
    plot.axline(tuple(foot), tuple(foot + np.array([-line.normal[1], line.normal[0]])), color=GREY, linewidth=1.3, zorder=1)
    for c, (color, marker) in enumerate(CLASS_STYLES):
        plot.scatter(*points[y == c].T, s=34, marker=marker, c=color, alpha=0.8, linewidths=0, zorder=2)
    if line.num_wrong:
        plot.scatter(*points[line.wrong].T, s=120, facecolors="none", edgecolors=BLACK, linewidths=1.1, zorder=3)
    plot.set(xticks=[], yticks=[], title=title)
    length = np.linalg.norm(axes, axis=0)  # of the scaling along each principal axis
    stretched = f"; height stretched × {length[1] / length[0]:,.0f}" if length[1] else "; on one line, in rows"
    plot.set_xlabel(f"{line.num_wrong or 'none'} wrong here{stretched}", fontsize=9, color="#444444")


def _draw_club(plot: Any, seed: int) -> None:
    """Figure 2(a): the network, with its noisy edges dotted."""
    import networkx

    graph = karate.network("original", seed)
    places = networkx.kamada_kawai_layout(networkx.karate_club_graph(), weight=None)
    points, y = np.array([places[k] for k in range(graph.num_nodes)]), graph.y.numpy()
    for i, j in zip(graph.row.tolist(), graph.col.tolist(), strict=True):
        if i < j:
            plot.plot(*points[[i, j]].T, color="#BBBBBB", linewidth=0.8, zorder=1)
    for i, j in karate.noisy_edges(graph, KARATE.noisy_edges, seed):
        plot.plot(*points[[i, j]].T, color=BLACK, linewidth=0.9, linestyle=":", zorder=1)
    for c, (color, marker) in enumerate(CLASS_STYLES):
        plot.scatter(*points[y == c].T, s=42, marker=marker, c=color, edgecolors="white", linewidths=0.6, zorder=2)
    plot.set_title(f"Karate club with {KARATE.noisy_edges} noisy edges\n(dotted)")
    plot.set_axis_off()


def _club_legend(*, noisy: bool = True) -> list[Any]:
    from matplotlib.lines import Line2D

    names = karate.network("original", 0).class_names
    dots = [
        Line2D([], [], linestyle="", marker=marker, markersize=7, color=color, label=name)
        for (color, marker), name in zip(CLASS_STYLES, names, strict=True)
    ]
    ring = Line2D([], [], linestyle="", marker="o", markersize=11, markerfacecolor="none", color=BLACK, label="on the wrong side")
    best = Line2D([], [], color=GREY, label="line with the fewest wrong nodes")
    dotted = [Line2D([], [], color=BLACK, linestyle=":", label="noisy edge")] if noisy else []
    return [*dots, ring, best, *dotted]


def _draw_shares(plot: Any, found: Club) -> None:
    """Separable starts of every method: a bar each, with its interval."""
    lines = [("untrained", one) for one in found.untrained] + [("trained", one) for one in found.trained]
    lines = sorted(lines, key=lambda line: (line[0] == "trained", NETWORKS.index(line[1]["network"])))
    colors = {"gcn": ORANGE, "gcn-lpa": BLUE, "gcn-lpa held-out": SKY}
    labels = []
    for place, (kind, one) in enumerate(lines):
        value, (low, high) = one["separable"], one["separable_interval"]
        error = [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]
        plot.barh(place, 100 * value, color=colors[one["method"]], xerr=error, height=0.72, error_kw={"linewidth": 1})
        short = {"gcn": "GCN", "gcn-lpa": "GCN-LPA", "gcn-lpa held-out": "held-out"}[one["method"]]
        labels.append(f"{short}, {one['network']}, {kind}")
    plot.set_yticks(range(len(lines)), labels, fontsize=8.5)
    plot.invert_yaxis()
    plot.set(xlim=(0, 100), title="Linearly separable starts, %\nwith 95 % interval")


def _draw_layers(plot: Any, tallies: Sequence[Mapping[str, Any]]) -> None:
    """Separable starts over the number of layers."""
    styles = {"gcn": (ORANGE, "o"), "gcn-lpa": (BLUE, "s")}
    dashes = {"original": "-", "noisy": ":"}
    for shift, (network, method) in enumerate(itertools.product(dashes, styles)):
        color, marker = styles[method]
        own = [one for one in tallies if (one["method"], one["network"]) == (method, network)]
        value = 100 * np.array([one["separable"] for one in own])
        bounds = 100 * np.array([one["separable_interval"] for one in own])
        place = np.array([one["layers"] for one in own]) + 0.05 * (shift - 1.5)  # side by side
        plot.errorbar(
            place,
            value,
            yerr=np.maximum(0, [value - bounds[:, 0], bounds[:, 1] - value]),
            color=color,
            marker=marker,
            markerfacecolor=color if network == "original" else "white",
            linestyle=dashes[network],
            linewidth=1.8,
            elinewidth=1,
            capsize=3,
            label=f"{METHOD_NAMES[method]}, {network} network",
        )
    plot.set(xticks=KARATE.layers_figure7, xlabel="layers", ylim=(-3, 103))
    plot.grid(axis="y", alpha=0.3, linewidth=0.5)
