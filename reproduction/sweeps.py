"""Figures 3, 4 and 5: accuracy on Citeseer along one setting, a line for each number of GCN layers; and time along n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.insight.drawing import BLUE, SKY
from gcn_lpa.recipes import OFFICIAL, PAPER
from gcn_lpa.stats import mean_of
from reproduction import timing, timing_report, timing_rivals
from reproduction.canvas import canvas, save
from reproduction.claims import FIGURE3_ITERATIONS, FIGURE4_LAMBDAS, FIGURE_LAYERS, PROTOCOLS, READINGS
from reproduction.exhibits import Exhibit, LedgerLine, markdown_table
from reproduction.study import Cell, Grid, Study, by_split

SIZES = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Sweep:
    """Test accuracy at each of `values` of a setting, for each number of layers, by the authors' code and by the text."""

    name: str
    title: str
    setting: str
    values: Sequence[float]
    label: str

    def cells(self) -> dict[tuple[str, int, float], Cell]:
        """By reading, number of layers and value."""
        found = {}
        for reading, recipes in (("official", OFFICIAL), ("paper", PAPER)):
            own = recipes["citeseer"]
            for layers in FIGURE_LAYERS:
                for value in self.values:
                    wanted = {"gcn_layers": layers, self.setting: value}
                    changes = {name: new for name, new in wanted.items() if new != getattr(own, name)}
                    row = f"{layers} layers, {self.label} {value:g}" + (", official" if reading == "official" else "")
                    found[reading, layers, value] = Cell("citeseer", row, "gcn-lpa", reading, changes)
        return found

    def grid(self, study: Study) -> Grid:
        """Of an earlier edition the readings that it has in full."""
        cells = self.cells()
        there = study.available(study.by_text_if_quick(cells.values()))
        absent = {cell.recipe for cell in cells.values() if cell not in there}
        return Grid([cell for cell in there if cell.recipe not in absent], most=10, quick_epochs=60)

    def __call__(self, study: Study) -> Exhibit:
        grid = self.grid(study)
        runs = study.run(grid)
        points = [
            {"reading": reading, "layers": layers, self.setting: value, **_accuracies(runs, cell)}
            for (reading, layers, value), cell in self.cells().items()
            if cell in grid.cells
        ]
        parts, files = [], []
        for reading, said in READINGS.items():
            own = [point for point in points if point["reading"] == reading]
            if not own:
                continue  # an earlier edition
            name = self.name if reading == "paper" else f"{self.name}-{reading}"
            place = study.out / f"{name}.png"
            files += draw_sweep(own, self.setting, place, title=f"{self.title}, {said}", label=self.label)
            parts += [f"## By {said}", markdown_table([self.label, *(f"{v:g}" for v in self.values)], _lines(own))]
        what = self.title.split(":")[0]
        parts.append(f"Test accuracy in per cent, ± 95 % interval over splits; {what} of the paper prints no value.")
        data = {"setting": self.setting, "points": points}
        return Exhibit(self.name, self.title, "\n\n".join(parts), data, runs, files)


figure3 = Sweep("figure3", "Figure 3: number of LPA iterations, Citeseer", "lpa_iterations", FIGURE3_ITERATIONS, "LPA iterations")
figure4 = Sweep("figure4", "Figure 4: weight of the LPA loss, Citeseer", "lpa_weight", FIGURE4_LAMBDAS, "λ")


def _lines(points: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for layers in FIGURE_LAYERS:
        own = [point for point in points if point["layers"] == layers]
        spreads = [f" ± {point['interval']:.1f}" if point["interval"] else "" for point in own]
        shown = (f"{point['accuracy']:.1f}{spread}" for point, spread in zip(own, spreads, strict=True))
        rows.append([f"{layers} layers", *shown])
    return rows


def _accuracies(runs: Sequence[LedgerLine], cell: Cell) -> dict[str, float | None]:
    """In per cent, over the trainings of one cell."""
    test, train = (by_split(runs, cell.row, cell.dataset, f"{part}_accuracy")[1] for part in ("test", "train"))
    found = mean_of(test)
    return {
        "accuracy": 100 * found.mean,
        "interval": None if found.interval is None else 100 * found.interval,
        "train_accuracy": 100 * float(train.mean()),
    }


def draw_sweep(points: Sequence[Mapping[str, Any]], setting: str, path: Path, *, title: str, label: str) -> list[Path]:
    """A line for each number of layers, with a band of ± the interval around it where there is one; PNG and SVG.

    Six bands on one plot hide each other, so each line has a panel of its own, with the others in grey behind it. The
    deepest network, which hardly trains, has a scale of its own; the others share theirs.
    """
    depths = list(dict.fromkeys(point["layers"] for point in points))
    columns = min(3, len(depths))
    count = -(-len(depths) // columns)
    with canvas(count, columns, (3.7 * columns, 3 * count + 0.6)) as (figure, axes):
        shared = [
            float(p["accuracy"] + sign * (p["interval"] or 0)) for p in points if p["layers"] != depths[-1] for sign in (-1, 1)
        ]
        for plot, shown in zip(axes.flat, depths, strict=False):
            for layers in depths:
                own = sorted((point for point in points if point["layers"] == layers), key=lambda p: p[setting])
                place, height = [p[setting] for p in own], np.array([p["accuracy"] for p in own], dtype=float)
                if layers != shown and layers == depths[-1]:
                    continue  # far below the others
                if layers != shown:
                    plot.plot(place, height, color="#CCCCCC", linewidth=1, zorder=1)
                    continue
                plot.plot(place, height, color=BLUE, marker="o", markersize=5, linewidth=2, zorder=3)
                if all(p["interval"] is not None for p in own):
                    width = np.array([p["interval"] for p in own], dtype=float)
                    low, high = height - width, height + width
                    plot.fill_between(place, low, high, color=SKY, alpha=0.35, linewidth=0, zorder=2)
            has_own = len(depths) > 1 and shown == depths[-1]
            plot.set(
                title=f"layers: {shown}{', its own scale' if has_own else ''}",
                xticks=sorted({p[setting] for p in points}),
            )
            if shared and not has_own:
                room = 0.05 * (max(shared) - min(shared)) or 1
                plot.set_ylim(min(shared) - room, max(shared) + room)
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
            timing_report.draw_epochs({title: steps}, files[-1])
        extra = timing.extra_time(steps)
        data[protocol] = {
            "timings": [vars(step) for step in steps],
            "extra_percent": {str(n): percent for n, percent in extra.items()},
            "extra_percent_mean": float(np.mean(list(extra.values()))),
        }
        table = markdown_table(*timing_report.epoch_table(steps))
        parts += [f"## {PROTOCOLS[protocol]}", table, " ".join(timing_report.epoch_sentences(steps))]
    return Exhibit("figure5", "Figure 5: training time", "\n\n".join(parts), data, [], files)
