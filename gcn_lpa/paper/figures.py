"""The paper's figures: those that need no data set are computed and drawn here, for the others there are `draw_…` functions.

Each `figureN(out)` writes pictures (PNG and SVG, the same bytes for the same seed) to `out` and returns the numbers behind
them. Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and classes differ in shape too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.paper import karate
from gcn_lpa.paper.canvas import BLACK, BLUE, CLASS_STYLES, GREY, METHOD_NAMES, ORANGE, SKY, canvas, save
from gcn_lpa.paper.claims import KARATE, Case
from gcn_lpa.paper.karate import NETWORKS, TRAINED, UNTRAINED, Embedding
from gcn_lpa.paper.study import Result, markdown_table
from gcn_lpa.recipes import PAPER, Recipe
from gcn_lpa.stats import mean_of
from gcn_lpa.train import learn_whole


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
        edges += [
            (first + int(k), first + (int(k) + 2) % (size - 1)) for k in rng.choice(size - 1, size=2, replace=False)
        ]
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
    nobody = torch.zeros_like(toy.labeled)
    model, _ = learn_whole(GCNLPA, toy.graph, toy.labeled, nobody, recipe, seed=seed, device="cpu", threads=1)
    graph = recipe.prepare(toy.graph)
    with torch.no_grad():
        after, guess = model.transition(graph).to_dense(), model(graph).argmax(dim=1)
    before, y = graph.adjacency.row_normalized().to_dense(), graph.y
    edges = [
        LearnedEdge(
            i, j, bool(y[i] == y[j]), int(toy.labeled[i]) + int(toy.labeled[j]),
            float(before[i, j] + before[j, i]), float(after[i, j] + after[j, i]),
        )
        for i, j in zip(graph.row.tolist(), graph.col.tolist(), strict=True) if i < j
    ]  # fmt: skip
    return edges, float((guess == y)[~toy.labeled].double().mean())


def figure1(out: Path, *, quick: bool = False, seed: int = 0) -> Result:
    """A toy graph, and the edges that a run of GCN-LPA made stronger: mostly those inside a class?"""
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
        data[name] = {**facts, "recipe": settings.hash()}
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
    return Result(
        "figure1", "Figure 1: the edges that training strengthens", text, {"drawn": drawn, "toys": data}, [], files
    )


EDGE_COLUMNS = {
    "gain": "intra-class among stronger edges, minus among all",
    "stronger_intra": "among stronger ones",
    "weaker_intra": "among weaker ones",
    "ends_2": "intra-class edges made stronger: both ends labelled",
    "ends_1": "one end",
    "ends_0": "none",
    "accuracy": "accuracy on unlabelled nodes",
}


def _edge_facts(runs: Sequence[tuple[list[LearnedEdge], float]]) -> dict[str, list[float | None]]:
    """Shares over all toys, each with the half-width of its interval."""

    def share(chosen: Callable[[LearnedEdge], bool], wanted: Callable[[LearnedEdge], bool]) -> list[float | None]:
        groups = [[wanted(edge) for edge in edges if chosen(edge)] for edges, _ in runs]
        shares = np.array([np.mean(group) for group in groups if group])
        return [*vars(mean_of(shares)).values()] if len(shares) else [None, None]

    accuracy = mean_of(np.array([accuracy for _, accuracy in runs]))
    gain = mean_of(np.array([_intra_class_gain(edges) for edges, _ in runs]))
    return {
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
            edge = changes.get((i, j))
            style = {"color": GREY, "linewidth": 1.2}
            if edge is not None:
                style = (
                    {"color": BLACK, "linewidth": 2.2 + 2.5 * min(1.0, edge.after - edge.before)}
                    if edge.is_stronger
                    else {"color": GREY, "linewidth": 0.9, "linestyle": (0, (2, 2))}
                )
            plot.plot(*toy.places[[i, j]].T, zorder=1, **style)
    for c, (color, marker) in enumerate(CLASS_STYLES):
        own = (toy.graph.y == c).numpy()
        for labeled, face in ((True, color), (False, "white")):
            part = toy.places[own & (toy.labeled.numpy() == labeled)]
            shape = (
                marker if labeled or edges is not None else "o"
            )  # before training nobody knows the class of a white node
            rim = color if labeled or edges is not None else BLACK
            plot.scatter(*part.T, s=190, marker=shape, c=face, edgecolors=rim, linewidths=1.6, zorder=2)
        center = toy.places[own].mean(axis=0)
        plot.add_patch(Circle(tuple(center), 1.35, fill=False, linestyle=":", edgecolor=color, linewidth=1.6))
    plot.set_aspect("equal")
    plot.set_axis_off()


def _toy_legend() -> list[Any]:
    from matplotlib.lines import Line2D

    dots = [
        Line2D([], [], linestyle="", marker=marker, markersize=10, color=color, label=f"{name}, labelled")
        for (color, marker), name in zip(CLASS_STYLES, ("blue", "red"), strict=True)
    ]
    white = Line2D(
        [], [], linestyle="", marker="o", markersize=10, markerfacecolor="white", color=BLACK, label="unlabelled"
    )
    bold = Line2D([], [], color=BLACK, linewidth=3, label="stronger")
    thin = Line2D([], [], color=GREY, linewidth=1, linestyle=(0, (2, 2)), label="weaker")
    return [*dots, white, bold, thin]


@dataclass(frozen=True)
class Club:
    """The starts of Figures 2 and 7 and what became of them."""

    untrained: list[dict[str, Any]]
    trained: list[dict[str, Any]]
    epochs: int


def club(
    layers: Sequence[int], *, trained_methods: Sequence[str], quick: bool, seed: int, starts: tuple[int, int] | None = None
) -> Club:  # fmt: skip
    """Every method on both networks with each number of layers, over random starts: of weights, noise and split alike."""
    many, few = starts or ((40, 4) if quick else (400, 20))
    epochs = 60 if quick else PAPER["citeseer"].epochs

    def cases(methods: Sequence[str]) -> list[Case]:
        return [Case(method, network, k) for k in layers for network in NETWORKS for method in methods]

    return Club(
        [karate.cell(case, [karate.untrained(case, seed + k) for k in range(many)]) for case in cases(UNTRAINED)],
        [
            karate.cell(case, [karate.trained(case, seed + k, epochs) for k in range(few)])
            for case in cases(trained_methods)
        ],
        epochs,
    )


def figure2(out: Path, *, quick: bool = False, seed: int = 0) -> Result:
    """The karate club, embedded by two layers: untrained as in the text, trained as in the caption."""
    found = club([KARATE.layers], trained_methods=TRAINED, quick=quick, seed=seed)
    y = karate.network("original", seed).y.numpy()
    first, second = (seed + karate.typical_start(cells) for cells in (found.untrained, found.trained))
    with canvas(2, 5, (16, 6.9)) as (figure, axes):
        _draw_club(axes[0, 0], first)
        _draw_shares(axes[1, 0], found)
        cases = [Case(method, network, KARATE.layers) for network in NETWORKS for method in UNTRAINED]
        for column, case in enumerate(cases, 1):
            name = f"{METHOD_NAMES[case.method]}, {case.network} network"
            kept = karate.find_cell(found.untrained, case)
            _draw_embedding(
                axes[0, column], karate.untrained(case, first), y, f"{name}\nuntrained: {_shares_in_words(kept)}"
            )
            kept = karate.find_cell(found.trained, case)
            embedding = karate.trained(case, second, found.epochs)
            _draw_embedding(axes[1, column], embedding, y, f"{name}\ntrained: {_shares_in_words(kept)}")
        figure.legend(handles=_club_legend(), loc="outside lower center", ncols=5)
        files = save(figure, out / "figure2.png")
    text = f"{_about_the_club(found)}\n\n{_club_table(found)}"
    data = {"untrained": found.untrained, "trained": found.trained, **_settings(found)}
    return Result("figure2", "Figure 2: the karate club in two dimensions", text, data, [], files)


def figure7(out: Path, *, quick: bool = False, seed: int = 0) -> Result:
    """The same with one to four layers, a picture each for untrained and trained models, and one of all starts."""
    found = club(KARATE.layers_figure7, trained_methods=UNTRAINED, quick=quick, seed=seed)
    y = karate.network("original", seed).y.numpy()
    files: list[Path] = []
    first, second = (seed + karate.typical_start(cells) for cells in (found.untrained, found.trained))
    kinds: list[tuple[str, list[dict[str, Any]], Callable[[Case], Embedding]]] = [
        ("untrained", found.untrained, lambda case: karate.untrained(case, first)),
        ("trained", found.trained, lambda case: karate.trained(case, second, found.epochs)),
    ]
    for kind, cells, embed in kinds:
        with canvas(4, 4, (13, 13)) as (figure, axes):
            for row, (network, method) in enumerate(itertools.product(NETWORKS, UNTRAINED)):
                for column, layers in enumerate(KARATE.layers_figure7):
                    case, plot = Case(method, network, layers), axes[row, column]
                    title = _shares_in_words(karate.find_cell(cells, case))
                    above = f"{layers} layer{'s' if layers > 1 else ''}\n" if row == 0 else ""
                    _draw_embedding(plot, embed(case), y, above + title)
                axes[row, 0].set_ylabel(f"{METHOD_NAMES[method]}\n{network} network", fontsize=12)
            figure.suptitle(
                f"Karate club, {kind}: a typical start, and how many starts are linearly separable", fontsize=13
            )
            figure.legend(handles=_club_legend(noisy=False), loc="outside lower center", ncols=4)
            files += save(figure, out / ("figure7.png" if kind == "untrained" else "figure7-trained.png"))
    with canvas(1, 2, (11, 4.4)) as (figure, axes):
        for plot, (kind, cells, _) in zip(axes[0], kinds, strict=True):
            _draw_layers(plot, cells)
            plot.set_title(f"{kind.capitalize()}, {cells[0]['starts']} starts")
        axes[0, 0].set_ylabel("linearly separable starts, %")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        files += save(figure, out / "figure7-separability.png")
    text = f"{_about_the_club(found)}\n\n{_club_table(found)}"
    data = {"untrained": found.untrained, "trained": found.trained, **_settings(found)}
    return Result("figure7", "Figure 7: the karate club with one to four layers", text, data, [], files)


def _settings(found: Club) -> dict[str, Any]:
    layers = sorted({cell["layers"] for cell in found.untrained})
    methods = list(dict.fromkeys(cell["method"] for cell in found.trained))
    return {
        "recipes": {
            **{f"untrained, {k} layers": karate.untrained_recipe(k).hash() for k in layers},
            **{f"{m}, {k} layers": karate.trained_recipe(m, k, found.epochs).hash() for m in methods for k in layers},
        },
        "epochs": found.epochs,
    }


def _about_the_club(found: Club) -> str:
    many, few = (cells[0]["starts"] for cells in (found.untrained, found.trained))
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
        before = karate.find_cell(found.untrained, case) if case.method in UNTRAINED else None
        after = karate.find_cell(found.trained, case)
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
    plot.axline(
        tuple(foot), tuple(foot + np.array([-line.normal[1], line.normal[0]])), color=GREY, linewidth=1.3, zorder=1
    )
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
    ring = Line2D(
        [], [], linestyle="", marker="o", markersize=11, markerfacecolor="none", color=BLACK, label="on the wrong side"
    )
    best = Line2D([], [], color=GREY, label="line with the fewest wrong nodes")
    dotted = [Line2D([], [], color=BLACK, linestyle=":", label="noisy edge")] if noisy else []
    return [*dots, ring, best, *dotted]


def _draw_shares(plot: Any, found: Club) -> None:
    """Separable starts of every method: a bar each, with its interval."""
    lines = [("untrained", cell) for cell in found.untrained] + [("trained", cell) for cell in found.trained]
    lines = sorted(lines, key=lambda line: (line[0] == "trained", NETWORKS.index(line[1]["network"])))
    colors = {"gcn": ORANGE, "gcn-lpa": BLUE, "gcn-lpa held-out": SKY}
    labels = []
    for place, (kind, cell) in enumerate(lines):
        value, (low, high) = cell["separable"], cell["separable_interval"]
        error = [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]
        plot.barh(place, 100 * value, color=colors[cell["method"]], xerr=error, height=0.72, error_kw={"linewidth": 1})
        short = {"gcn": "GCN", "gcn-lpa": "GCN-LPA", "gcn-lpa held-out": "held-out"}[cell["method"]]
        labels.append(f"{short}, {cell['network']}, {kind}")
    plot.set_yticks(range(len(lines)), labels, fontsize=8.5)
    plot.invert_yaxis()
    plot.set(xlim=(0, 100), title="Linearly separable starts, %\nwith 95 % interval")


def _draw_layers(plot: Any, cells: Sequence[Mapping[str, Any]]) -> None:
    """Separable starts over the number of layers."""
    styles = {("gcn", "original"): (ORANGE, "o", "-"), ("gcn-lpa", "original"): (BLUE, "s", "-"),
              ("gcn", "noisy"): (ORANGE, "o", ":"), ("gcn-lpa", "noisy"): (BLUE, "s", ":")}  # fmt: skip
    for shift, ((method, network), (color, marker, dash)) in enumerate(styles.items()):
        own = [cell for cell in cells if (cell["method"], cell["network"]) == (method, network)]
        value = 100 * np.array([cell["separable"] for cell in own])
        bounds = 100 * np.array([cell["separable_interval"] for cell in own])
        place = np.array([cell["layers"] for cell in own]) + 0.05 * (shift - 1.5)  # side by side
        plot.errorbar(
            place, value, yerr=np.maximum(0, [value - bounds[:, 0], bounds[:, 1] - value]), color=color, marker=marker,
            linestyle=dash, linewidth=1.8, elinewidth=1, capsize=3, label=f"{METHOD_NAMES[method]}, {network} network",
            markerfacecolor=color if network == "original" else "white",
        )  # fmt: skip
    plot.set(xticks=KARATE.layers_figure7, xlabel="layers", ylim=(-3, 103))
    plot.grid(axis="y", alpha=0.3, linewidth=0.5)
