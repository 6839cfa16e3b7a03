"""The canvas of every figure: its style, its colours, and lines with intervals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.paper import timing
from gcn_lpa.paper.claims import FIGURE5

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (  # Okabe and Ito (2008)
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip


GREY = "#8A8A8A"


CLASS_STYLES = ((BLUE, "o"), (RED, "s"))


WAVE_COLORS = (ORANGE, GREEN, PINK)


METHOD_NAMES = {"gcn": "GCN", "gcn-lpa": "GCN-LPA", "gcn-lpa held-out": "GCN-LPA, held-out loss"}


STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that pictures are the same everywhere
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "legend.frameon": False,
    "svg.hashsalt": "gcn-lpa",  # else the names inside an SVG are random
}


@contextlib.contextmanager
def canvas(rows: int, columns: int, size: tuple[float, float], *, shared: bool = False) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, [rows, columns], in the style of all our figures; `shared`: with the same limits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=size, layout="constrained", squeeze=False, sharex=shared, sharey=shared
        )
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def save(figure: Any, path: Path) -> list[Path]:
    """Write PNG and SVG beside each other, without the date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(files[0], dpi=160)
    figure.savefig(files[1], metadata={"Date": None})
    return files


def draw_lines(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    x: str,
    series: str,
    y: str,
    interval: str,
    title: str,
    xlabel: str,
    ylabel: str,
    reference_lines: Mapping[str, float] | None = None,
) -> list[Path]:
    """A line for each value of `series`, with a band of ± `interval` around it where there is one; PNG and SVG.

    Six bands on one plot hide each other, so each line has a panel of its own, with the others in grey behind it.

    Args:
        rows: a mapping per point; `x`, `series`, `y` and `interval` are its keys.
        reference_lines: a label and a height for each horizontal line.
    """
    names = list(dict.fromkeys(row[series] for row in rows))
    columns = min(3, len(names))
    count = -(-len(names) // columns)
    with canvas(count, columns, (3.7 * columns, 3 * count + 0.6), shared=True) as (figure, axes):
        for plot, shown in zip(axes.flat, names, strict=False):
            for name in names:
                own = sorted((row for row in rows if row[series] == name), key=lambda row: row[x])
                place, height = [row[x] for row in own], np.array([row[y] for row in own], dtype=float)
                if name != shown:
                    plot.plot(place, height, color="#CCCCCC", linewidth=1, zorder=1)
                    continue
                plot.plot(place, height, color=BLUE, marker="o", markersize=5, linewidth=2, zorder=3)
                if all(row[interval] is not None for row in own):
                    width = np.array([row[interval] for row in own], dtype=float)
                    plot.fill_between(
                        place, height - width, height + width, color=SKY, alpha=0.35, linewidth=0, zorder=2
                    )
            for label, value in (reference_lines or {}).items():
                plot.axhline(value, color=RED, linestyle="--", linewidth=1)
                plot.annotate(label, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=RED)
            plot.set(title=f"{series}: {shown}", xticks=sorted({row[x] for row in rows}))
            plot.grid(axis="y", alpha=0.3, linewidth=0.5)
        for plot in axes.flat[len(names) :]:
            plot.set_axis_off()
        figure.suptitle(title, fontsize=12)
        figure.supxlabel(xlabel, fontsize=10)
        figure.supylabel(ylabel, fontsize=10)
        return save(figure, path)


def draw_times(records: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Figure 5 from the records that `gcn-lpa bench epochs --out` writes, a panel for each; PNG and SVG."""
    if not records:
        raise ValueError("there is no record to draw; `gcn-lpa bench epochs --out FILE` writes one")
    with canvas(1, len(records), (5.6 * len(records), 4.4)) as (figure, axes):
        for plot, record in zip(axes[0], records, strict=True):
            timings = [timing.Timing(**timing) for timing in record["timings"]]
            timing.plot_epochs(plot, timings)
            classes = timings[0].classes
            device = record["environment"].get("cuda_device") if record["device"] == "cuda" else None
            name = (
                f"Protocol {record['protocol']}, {classes} {'class' if classes == 1 else 'classes'}, {device or 'CPU'}"
            )
            extra = record.get("extra_percent_mean")
            paper = f"(the paper: +{FIGURE5.extra_percent} %)"
            plot.set_title(
                name + (f"\nGCN-LPA over GCN: {extra:+.0f} % on average {paper}" if extra is not None else "")
            )
        return save(figure, path)
