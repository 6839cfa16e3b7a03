"""What `bench` and Figure 5 show of the timings: records, tables, sentences and the plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gcn_lpa.data.files import write_figure
from gcn_lpa.engine.devices import environment
from gcn_lpa.insight.drawing import BLUE, ORANGE, RED, SKY
from reproduction.claims import FIGURE5
from reproduction.kernel_timing import KernelTiming
from reproduction.timing import (
    Timing,
    agreement,
    agreement_by_tensor_cores,
    best_times,
    check_same_bits,
    extra_time,
    growth_exponent,
)
from reproduction.timing_rivals import SETTINGS

LINES = {  # of the plot: colour and dash
    "pyg gcn": (ORANGE, "--"),
    "pyg gcn-lpa": (RED, "-"),
    "csr gcn": ("#999999", ":"),
    "our gcn": (SKY, "--"),
    "our gcn-lpa": (BLUE, "-"),
}


def record(kind: str, timings: Sequence[Any], **facts: Any) -> dict[str, Any]:
    """What goes to benchmarks/results: the timings and where they were taken."""
    return {"benchmark": kind, **facts, "environment": environment(), "timings": [asdict(t) for t in timings]}


def epoch_record(timings: Sequence[Timing], *, protocol: str, device: str, hubs: float = 0.0) -> dict[str, Any]:
    """The timings, what they say of GCN-LPA, and whether the steps that were timed are right."""
    extra = extra_time(timings)
    return record(
        "epochs",
        timings,
        protocol=protocol,
        device=device,
        hubs=hubs,
        recipe=SETTINGS.to_dict(),
        seed=0,
        extra_percent={str(n): percent for n, percent in extra.items()},
        extra_percent_mean=statistics.fmean(extra.values()) if extra else None,
        extra_percent_paper=FIGURE5.extra_percent,
        growth_exponent=growth_exponent(timings, "our gcn-lpa", at_least=100_000),
        same_bits=check_same_bits(device),
        gradient_error=agreement(device),
        gradient_error_3xtf32=agreement_by_tensor_cores() if device == "cuda" else None,
    )


def epoch_table(timings: Sequence[Timing]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines: each rival at each size, beside our GCN-LPA of the same kind and beside the floor."""
    base = {(t.nodes, t.captured): t.milliseconds for t in timings if t.rival == "our gcn-lpa"}
    lines: list[tuple[str, ...]] = []
    for t in timings:
        name = t.rival + (", one CUDA graph" if t.captured else "")
        ratio = _ratio(t.milliseconds, base.get((t.nodes, t.captured)), 2)
        floor = _ratio(t.milliseconds, t.floor_milliseconds, 1)
        peak = "–" if t.peak_mib is None else f"{t.peak_mib:,.0f}"
        lines.append((name, f"{t.nodes:,}", f"{t.classes}", f"{t.milliseconds:.3g}", ratio, peak, floor))
    return ("", "nodes", "classes", "ms a step", "x our gcn-lpa", "peak MiB", "x floor"), lines


def epoch_sentences(timings: Sequence[Timing]) -> list[str]:
    """How much more time GCN-LPA takes than GCN, how its time grows, and what the floor is."""
    lines, extra = [], extra_time(timings)
    if extra:
        each = ", ".join(f"{percent:+.0f} % at {n:,}" for n, percent in extra.items())
        mean = statistics.fmean(extra.values())
        lines.append(f"GCN-LPA over our own GCN: {each}; mean {mean:+.1f} % (the paper: +{FIGURE5.extra_percent} %).")
    exponent = growth_exponent(timings, "our gcn-lpa", at_least=100_000)
    if exponent is not None:
        lines.append(f"Time of GCN-LPA grows as nodes to the power {exponent:.2f} from 100,000 nodes on.")
    lines.append("Floor: the bytes of a step that computes every row, over the copy bandwidth measured in this run.")
    return lines


def kernel_table(timings: Sequence[KernelTiming]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines: each product at each size, beside ours, and its memory beside an [E, d] array."""
    base = {(t.nodes, t.columns): t.milliseconds for t in timings if t.kernel == "ours"}
    lines: list[tuple[str, ...]] = []
    for t in timings:
        ratio = _ratio(t.milliseconds, base.get((t.nodes, t.columns)), 1)
        extra = "–" if t.extra_mib is None else f"{t.extra_mib:,.1f}"
        size, array = (f"{t.nodes:,}", f"{t.columns}"), f"{t.edge_array_mib:,.1f}"
        lines.append((t.kernel, *size, f"{t.milliseconds:.3g}", ratio, extra, array))
    return ("", "nodes", "columns", "ms", "x ours", "peak MiB", "[E, d] MiB"), lines


def _ratio(value: float, base: float | None, digits: int) -> str:
    return f"{value / base:.{digits}f}" if base else "–"


def draw_epochs(panels: Mapping[str, Sequence[Timing]], path: Path) -> None:
    """Time per step over the number of nodes, log-log, as the paper's Figure 5; each rival at its best. A panel per title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 5 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, (title, timings) in zip(axes, panels.items(), strict=True):
        for rival, (color, dash) in LINES.items():
            if best := best_times(timings, rival):
                place.plot(list(best), list(best.values()), dash, color=color, marker="o", markersize=4, label=rival)
        place.set(xscale="log", yscale="log", xlabel="nodes", title=title)
        place.grid(alpha=0.3, which="both", linewidth=0.5)
    axes[0].set_ylabel("milliseconds per training step")
    axes[0].legend(frameon=False)
    write_figure(figure, path, dpi=160)
