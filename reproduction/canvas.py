"""The canvas of every figure: its style, and the looks of the two classes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gcn_lpa.data.files import write_figure
from gcn_lpa.insight.drawing import BLUE, RED

CLASS_STYLES = ((BLUE, "o"), (RED, "s"))  # shapes too, for those who print in grey

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
def canvas(rows: int, columns: int, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, [rows, columns], in the style of all our figures."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Any, path: Path) -> list[Path]:
    """Write PNG and SVG beside each other, without the date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    write_figure(figure, files[0], dpi=160)
    write_figure(figure, files[1], metadata={"Date": None})
    return files
