"""Figures 3, 4 and 5: accuracy on Citeseer along one setting, a line for each number of GCN layers; and time along n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.palette import BLUE, SKY
from gcn_lpa.paper import timing, timing_report, timing_rivals
from gcn_lpa.paper.canvas import canvas, save
from gcn_lpa.paper.claims import FIGURE3_ITERATIONS, FIGURE4_LAMBDAS, FIGURE_LAYERS, PROTOCOLS
from gcn_lpa.paper.exhibits import Exhibit, LedgerLine, markdown_table
from gcn_lpa.paper.study import Cell, Study
from gcn_lpa.recipes import PAPER
from gcn_lpa.stats import mean_of

SIZES = (1_000, 10_000, 100_000, 1_000_000)


def figure3(study: Study) -> Exhibit:
    """Accuracy against the number of LPA iterations."""
    title = "Figure 3: number of LPA iterations, Citeseer"
    return sweep(study, "figure3", title, "lpa_iterations", FIGURE3_ITERATIONS, "LPA iterations")


def figure4(study: Study) -> Exhibit:
    """Accuracy against λ."""
    return sweep(study, "figure4", "Figure 4: weight of the LPA loss, Citeseer", "lpa_weight", FIGURE4_LAMBDAS, "λ")


def sweep(study: Study, name: str, title: str, setting: str, values: Sequence[float], label: str) -> Exhibit:
    """Test accuracy at each of `values` of a setting, for each number of layers."""
    paper, cells = PAPER["citeseer"], {}
    for layers in FIGURE_LAYERS:
        for value in values:
            wanted = {"gcn_layers": layers, setting: value}
            changes = {field: new for field, new in wanted.items() if new != getattr(paper, field)}
            cells[layers, value] = Cell("citeseer", f"{layers} layers, {label} {value:g}", "gcn-lpa", changes=changes)
    runs = study.run(list(cells.values()), most=10, quick_epochs=60)
    points = [
        {"layers": layers, setting: value, **_accuracies([run for run in runs if run["row"] == cell.row])}
        for (layers, value), cell in cells.items()
    ]
    rows = []
    for layers in FIGURE_LAYERS:
        own = [point for point in points if point["layers"] == layers]
        spreads = [f" ± {point['interval']:.1f}" if point["interval"] else "" for point in own]
        shown = (f"{point['accuracy']:.1f}{spread}" for point, spread in zip(own, spreads, strict=True))
        rows.append([f"{layers} layers", *shown])
    files = draw_sweep(points, setting, study.out / f"{name}.png", title=title, label=label)
    text = markdown_table([label, *(f"{value:g}" for value in values)], rows)
    text += f"\n\nTest accuracy in per cent, ± 95 % interval over splits; {title.split(',')[0].lower()} has no printed value."
    return Exhibit(name, title, text, {"setting": setting, "points": points}, runs, files)


def _accuracies(runs: Sequence[LedgerLine]) -> dict[str, float | None]:
    """In per cent, over the trainings of one cell."""
    found = mean_of(np.array([run["test_accuracy"] for run in runs]))
    return {
        "accuracy": 100 * found.mean,
        "interval": None if found.interval is None else 100 * found.interval,
        "train_accuracy": 100 * float(np.mean([run["train_accuracy"] for run in runs])),
    }


def draw_sweep(points: Sequence[Mapping[str, Any]], setting: str, path: Path, *, title: str, label: str) -> list[Path]:
    """A line for each number of layers, with a band of ± the interval around it where there is one; PNG and SVG.

    Six bands on one plot hide each other, so each line has a panel of its own, with the others in grey behind it.
    """
    depths = list(dict.fromkeys(point["layers"] for point in points))
    columns = min(3, len(depths))
    count = -(-len(depths) // columns)
    with canvas(count, columns, (3.7 * columns, 3 * count + 0.6), shared=True) as (figure, axes):
        for plot, shown in zip(axes.flat, depths, strict=False):
            for layers in depths:
                own = sorted((point for point in points if point["layers"] == layers), key=lambda p: p[setting])
                place, height = [p[setting] for p in own], np.array([p["accuracy"] for p in own], dtype=float)
                if layers != shown:
                    plot.plot(place, height, color="#CCCCCC", linewidth=1, zorder=1)
                    continue
                plot.plot(place, height, color=BLUE, marker="o", markersize=5, linewidth=2, zorder=3)
                if all(p["interval"] is not None for p in own):
                    width = np.array([p["interval"] for p in own], dtype=float)
                    low, high = height - width, height + width
                    plot.fill_between(place, low, high, color=SKY, alpha=0.35, linewidth=0, zorder=2)
            plot.set(title=f"layers: {shown}", xticks=sorted({p[setting] for p in points}))
            plot.grid(axis="y", alpha=0.3, linewidth=0.5)
        for plot in axes.flat[len(depths) :]:
            plot.set_axis_off()
        figure.suptitle(title, fontsize=12)
        figure.supxlabel(label, fontsize=10)
        figure.supylabel("test accuracy, %", fontsize=10)
        return save(figure, path)


def figure5(study: Study) -> Exhibit:
    """Time of a training step against the number of nodes, both protocols."""
    sizes = tuple(n for n in SIZES if n <= 100_000) if study.quick or study.device == "cpu" else SIZES
    if study.quick:
        study.note("figure5 up to 100,000 nodes, 10 steps each")
    parts, data, files = [], {}, []
    for protocol, rivals in (("paper", tuple(timing_rivals.RIVALS)), ("work", ("our gcn", "our gcn-lpa"))):
        steps = timing.epochs(
            sizes,
            protocol=protocol,
            rivals=rivals,
            device=study.device,
            repeats=10 if study.quick else 30,
            largest_rival=10_000 if study.quick else None,
        )
        title = f"One training step: {PROTOCOLS[protocol]}; {study.device}"
        for suffix in (".png", ".svg"):
            files.append(study.out / f"figure5-{protocol}{suffix}")
            timing_report.draw_epochs(steps, files[-1], title=title)
        extra = timing.extra_time(steps)
        data[protocol] = {
            "timings": [vars(step) for step in steps],
            "extra_percent": {str(n): percent for n, percent in extra.items()},
            "extra_percent_mean": float(np.mean(list(extra.values()))),
        }
        table = markdown_table(*timing_report.epoch_table(steps))
        parts += [f"## {PROTOCOLS[protocol]}", table, " ".join(timing_report.epoch_sentences(steps))]
    return Exhibit("figure5", "Figure 5: training time", "\n\n".join(parts), data, [], files)
