"""Figures 3, 4 and 5: accuracy on Citeseer along one setting, a line for each number of GCN layers; and time along n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gcn_lpa.paper import timing, timing_rivals
from gcn_lpa.paper.canvas import draw_lines
from gcn_lpa.paper.claims import FIGURE3_ITERATIONS, FIGURE4_LAMBDAS, FIGURE_LAYERS
from gcn_lpa.paper.study import Cell, Result, Run, Study, markdown_table
from gcn_lpa.recipes import PAPER
from gcn_lpa.stats import mean_of

SIZES = (1_000, 10_000, 100_000, 1_000_000)


def figure3(study: Study) -> Result:
    """Accuracy against the number of LPA iterations."""
    title = "Figure 3: number of LPA iterations, Citeseer"
    return sweep(study, "figure3", title, "lpa_iterations", FIGURE3_ITERATIONS, "LPA iterations")


def figure4(study: Study) -> Result:
    """Accuracy against λ."""
    return sweep(study, "figure4", "Figure 4: weight of the LPA loss, Citeseer", "lpa_weight", FIGURE4_LAMBDAS, "λ")


def sweep(study: Study, name: str, title: str, setting: str, values: Sequence[float], label: str) -> Result:
    paper, cells = PAPER["citeseer"], {}
    for layers in FIGURE_LAYERS:
        for value in values:
            wanted = {"gcn_layers": layers, setting: value}
            changes = {field: new for field, new in wanted.items() if new != getattr(paper, field)}
            cells[layers, value] = Cell("citeseer", f"{layers} layers, {label} {value:g}", "gcn-lpa", changes=changes)
    runs = study.run(list(cells.values()), most=10, quick_epochs=60)
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run["row"], []).append(run)
    points: list[dict[str, Any]] = []
    for (layers, value), cell in cells.items():
        own = by_row[cell.row]
        found = mean_of(np.array([run["test_accuracy"] for run in own]))
        train = float(np.mean([run["train_accuracy"] for run in own]))
        points.append(
            {"layers": layers, setting: value, "accuracy": 100 * found.mean,
             "interval": None if found.interval is None else 100 * found.interval, "train_accuracy": 100 * train}
        )  # fmt: skip
    rows = []
    for layers in FIGURE_LAYERS:
        own_points = [point for point in points if point["layers"] == layers]
        rows.append(
            [
                f"{layers} layers",
                *(f"{p['accuracy']:.1f}" + (f" ± {p['interval']:.1f}" if p["interval"] else "") for p in own_points),
            ]
        )
    files = draw_lines(
        points, study.out / f"{name}.png", x=setting, series="layers", y="accuracy", interval="interval",
        title=title, xlabel=label, ylabel="test accuracy, %",
    )  # fmt: skip
    text = markdown_table([label, *(f"{value:g}" for value in values)], rows)
    text += f"\n\nTest accuracy in per cent, ± 95 % interval over splits; {title.split(',')[0].lower()} has no printed value."
    return Result(name, title, text, {"setting": setting, "points": points}, runs, list(files))


def figure5(study: Study) -> Result:
    """Time of a training step against the number of nodes, both protocols."""
    sizes = tuple(n for n in SIZES if n <= 100_000) if study.quick or study.device == "cpu" else SIZES
    if study.quick:
        study.note("figure5 up to 100,000 nodes, 10 steps each")
    parts, data, files = [], {}, []
    for protocol, rivals in (("paper", tuple(timing_rivals.RIVALS)), ("work", ("our gcn", "our gcn-lpa"))):
        steps = timing.epochs(
            sizes, protocol=protocol, rivals=rivals, device=study.device, repeats=10 if study.quick else 30,
            largest_rival=10_000 if study.quick else None,
        )  # fmt: skip
        path = study.out / f"figure5-{protocol}.png"
        for suffix in (".png", ".svg"):
            timing.draw_epochs(
                steps, path.with_suffix(suffix), title=f"One training step, protocol {protocol}, {study.device}"
            )
            files.append(path.with_suffix(suffix))
        header, lines = timing.epoch_table(steps)
        extra = timing.extra_time(steps)
        data[protocol] = {
            "timings": [vars(step) for step in steps],
            "extra_percent": {str(n): percent for n, percent in extra.items()},
            "extra_percent_mean": float(np.mean(list(extra.values()))),
        }
        parts += [
            f"## Protocol `{protocol}`",
            markdown_table(header, lines),
            " ".join(timing.epoch_sentences(steps)),
        ]
    return Result("figure5", "Figure 5: training time", "\n\n".join(parts), data, [], files)
