"""The charts of the page as points of an SVG: a training curve and a reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gcn_lpa.runs.confidence import CalibrationReport

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34


@dataclass(frozen=True)
class Frame:
    """The box of a chart and the numbers at its edges."""

    low: tuple[float, float]
    high: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        across = (x - self.low[0]) / ((self.high[0] - self.low[0]) or 1)
        up = (y - self.low[1]) / ((self.high[1] - self.low[1]) or 1)
        return round(LEFT + across * wide, 1), round(TOP + (1 - up) * tall, 1)

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join("{},{}".format(*self.at(x, y)) for x, y in points)

    def ticks(self, axis: int, number: int = 5) -> list[tuple[float, str]]:
        """Places along an axis with their numbers."""
        low, high = self.low[axis], self.high[axis]
        values = [low + (high - low) * k / (number - 1) for k in range(number)]
        corner = (values, [self.low[1]] * number) if axis == 0 else ([self.low[0]] * number, values)
        places = [self.at(x, y)[axis] for x, y in zip(*corner, strict=True)]
        digits = 0 if high - low >= number else 2
        return [(place, f"{value:.{digits}f}") for place, value in zip(places, values, strict=True)]


@dataclass(frozen=True)
class Curve:
    name: str
    points: str
    css: str


@dataclass(frozen=True)
class Chart:
    """A chart for the template: ticks, lines, and marks (x, y, height of a bar or radius, words)."""

    title: str
    x_name: str
    y_name: str
    frame: Frame
    lines: tuple[Curve, ...]
    marks: tuple[dict[str, Any], ...] = ()
    at_x: float | None = None  # of a vertical line, and what it is
    at_name: str = ""


def curve(history: Sequence[dict[str, Any]], best_epoch: int) -> list[Chart]:
    """Losses and validation accuracy over the epochs; none where there are no two epochs."""
    if len(history) < 2:
        return []
    series = {name: _series(history, name) for name in ("loss", "val_loss", "val_accuracy")}
    charts = []
    losses = [("training loss", series["loss"], "one"), ("validation loss", series["val_loss"], "two")]
    for title, y_name, lines in (
        ("Loss", "loss", losses),
        ("Validation accuracy", "accuracy", [("validation accuracy", series["val_accuracy"], "two")]),
    ):
        filled = [(name, points, css) for name, points, css in lines if len(points) > 1]
        if not filled:
            continue
        heights = [y for _, points, _ in filled for _, y in points]
        high = 1.0 if y_name == "accuracy" else sorted(heights)[int(0.99 * (len(heights) - 1))]
        frame = Frame((1, 0), (len(history), high or 1.0))
        drawn = tuple(Curve(name, frame.line([(x, min(y, high)) for x, y in ps]), css) for name, ps, css in filled)
        charts.append(Chart(title, "epoch", y_name, frame, drawn, (), frame.at(best_epoch, 0)[0], "epoch kept"))
    return charts


def _series(history: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(epoch["epoch"], epoch[name]) for epoch in history if epoch[name] is not None]


def reliability_chart(found: CalibrationReport) -> Chart:
    """Accuracy over confidence after calibration; the size of a mark says how many nodes are in its bin."""
    frame, table = Frame((0, 0), (1, 1)), found.after
    most = max(table.count)
    marks = []
    for confidence, accuracy, count in zip(table.confidence, table.accuracy, table.count, strict=True):
        if count:
            x, y = frame.at(confidence, accuracy)
            said = f"confidence {confidence:.2f}: {100 * accuracy:.0f} % of {count:,} nodes right"
            marks.append({"x": x, "y": y, "r": round(3 + 9 * (count / most) ** 0.5, 1), "said": said})
    perfect = Curve("perfectly calibrated", frame.line([(0, 0), (1, 1)]), "rule")
    return Chart("Reliability", "confidence", "accuracy", frame, (perfect,), tuple(marks))
