"""How long one product and one training step take, beside everything a user could pick instead, in the same run.

`kernels` times one product A X with learnable A, forward and both gradients. `epochs` times a full training step
(forward, both losses, backward, Adam) on the paper's timing graphs (Section 4.6, Figure 5), in two protocols:

paper   100 training nodes whatever the size, label 0 for all: with one class the losses and gradients are 0
work    10 % of the nodes labelled, 7 classes (or 1, or 40), so that the losses do something

Both: mean degree 5 plus self-loops, identity features, Cora's settings of Table 4 (5 layers of 32, 5 LPA iterations, dropout
0.2, L2 1e-4, λ 10), dropout and L2 on for every rival, float32. Speed on a shared CPU is a ratio, not a time.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.backends import apply, use_backend
from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.model import GCNLPA
from gcn_lpa.paper.timing_rivals import ON_GPU_ONLY, RIVALS, SETTINGS, Problem, Step, optimizer_of
from gcn_lpa.storage import environment
from gcn_lpa.tables.datasets import load

PAPER_EXTRA = 9.2  # per cent more time than GCN, Section 4.6


@dataclass(frozen=True)
class Timing:
    rival: str
    nodes: int
    entries: int
    classes: int
    labeled: int
    milliseconds: float  # median of a step
    mean_milliseconds: float
    captured: bool  # replayed as one CUDA graph
    peak_mib: float | None
    floor_milliseconds: float | None = None  # bytes that must move over the measured copy bandwidth


def captured(step: Step) -> Step:
    """The same step recorded as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step: Step, device: torch.device, *, repeats: int, seconds: float = 20.0) -> list[float]:
    """The time of each of up to `repeats` steps, after three for warming up; at least three, however slow."""
    for _ in range(3):
        step()
    times: list[float] = []
    begin = time.perf_counter()
    if device.type == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(marks)]
    while len(times) < repeats and (len(times) < 3 or time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return times


class PeakMemory:
    """Peak memory while the block runs: of the CUDA allocator, or the growth of the resident set on Linux."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mib: float | None = None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            self.before = _resident("VmRSS")
            if self.before is not None:
                Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.mib = torch.cuda.max_memory_allocated() / 2**20
        elif self.before is not None:
            self.mib = (_resident("VmHWM") or 0.0) - self.before


def _resident(field: str) -> float | None:
    status = Path("/proc/self/status")
    if platform.system() != "Linux" or not status.exists():
        return None
    return next(float(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(field))


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a large copy."""
    x = torch.ones(2**27 if device.type == "cuda" else 2**24, device=device)
    y = torch.empty_like(x)
    return 2 * x.numel() * 4 / (statistics.median(milliseconds(lambda: y.copy_(x), device, repeats=10)) / 1000)


def floor_bytes(problem: Problem, *, learned: bool) -> int:
    """Bytes of one step that computes every row: a gathered row read once per entry, every array of a layer written once.

    With n rows, E entries and width d, a product moves E (4 d + 8) + 4 n d; its backward pass the same, and with learned
    edges 4 n d + 4 E more. Adam moves 28 bytes per parameter.
    """
    n, entries, recipe = problem.graph.num_nodes, problem.graph.pattern.num_entries, problem.recipe
    widths = [*[recipe.hidden] * (recipe.gcn_layers - 1), problem.graph.num_classes]
    widths += [problem.graph.num_classes] * recipe.lpa_iterations if learned else []
    total = 0
    for d in widths:
        product = entries * (4 * d + 8) + 4 * n * d
        total += 2 * product + (4 * n * d + 4 * entries if learned else 0)
    parameters = n * recipe.hidden + (entries if learned else 0)
    return total + 28 * parameters


def epochs(
    sizes: Sequence[int], *, protocol: str = "work", classes: int = 7, rivals: Sequence[str] = tuple(RIVALS),
    device: str = "cpu", repeats: int = 30, capture: bool = True, largest_rival: int | None = None,
    report: Callable[[Timing], None] = lambda timing: None,
) -> list[Timing]:  # fmt: skip
    """Time a training step of every rival at every size. Rivals other than ours stop at `largest_rival` nodes."""
    if protocol not in ("paper", "work"):
        raise ValueError(f"unknown protocol {protocol!r}; there are paper and work")
    place, results = torch.device(device), []
    bandwidth = copy_bandwidth(place)
    for n in sizes:
        paper = protocol == "paper"
        problem = Problem.random(
            n, classes=1 if paper else classes, labeled=min(100, n) if paper else max(1, n // 10), device=device
        )
        for name in rivals:
            too_large = largest_rival is not None and n > largest_rival and not name.startswith("our")
            if too_large or (name in ON_GPU_ONLY and place.type != "cuda"):
                continue
            for as_graph in (False, True) if capture and place.type == "cuda" else (False,):
                with PeakMemory(place) as peak:
                    step = RIVALS[name](problem)
                    step = captured(step) if as_graph else step
                    times = milliseconds(step, place, repeats=repeats)
                floor = floor_bytes(problem, learned="lpa" in name) / bandwidth * 1000
                results.append(
                    Timing(name, n, problem.graph.pattern.num_entries, problem.graph.num_classes, len(problem.nodes),
                           statistics.median(times), statistics.fmean(times), as_graph, peak.mib, floor)
                )  # fmt: skip
                report(results[-1])
                del step
                gc.collect()
                if place.type == "cuda":
                    torch.cuda.empty_cache()
    return results


def extra_time(timings: Sequence[Timing]) -> dict[int, float]:
    """Per cent more time of our GCN-LPA over our GCN at each size (captured steps where there are)."""
    best: dict[tuple[str, int], float] = {}
    for t in timings:
        key = (t.rival, t.nodes)
        best[key] = min(best.get(key, float("inf")), t.milliseconds)
    sizes = sorted({t.nodes for t in timings if ("our gcn", t.nodes) in best and ("our gcn-lpa", t.nodes) in best})
    return {n: 100 * (best["our gcn-lpa", n] / best["our gcn", n] - 1) for n in sizes}


def growth_exponent(timings: Sequence[Timing], rival: str, *, at_least: int = 0) -> float | None:
    """The slope of log time over log nodes of a rival, by least squares."""
    best: dict[int, float] = {}
    for t in timings:
        if t.rival == rival and t.nodes >= at_least:
            best[t.nodes] = min(best.get(t.nodes, float("inf")), t.milliseconds)
    if len(best) < 2:
        return None
    return float(np.polyfit(np.log(list(best)), np.log(list(best.values())), 1)[0])


@dataclass(frozen=True)
class KernelTiming:
    kernel: str
    nodes: int
    columns: int
    milliseconds: float
    extra_mib: float | None  # peak memory above the operands
    edge_array_mib: float  # what an [E, d] array would take


def _scatter_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    from torch_geometric.utils import scatter

    row, col = matrix.pattern.row.long(), matrix.pattern.col.long()
    messages = values.unsqueeze(1) * x.index_select(0, col)
    out: Tensor = scatter(messages, row, dim=0, dim_size=matrix.shape[0], reduce="sum")
    return out


def _csr_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    rows = matrix.pattern.rows
    return torch.sparse_csr_tensor(rows.rowptr, rows.col, values, size=matrix.shape, check_invariants=False) @ x


def _chunked_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    return apply(_Chunked, matrix, values, x)


class _Chunked(torch.autograd.Function):
    """Plain torch over blocks of entries: what one would write without a kernel of one's own."""

    BLOCK = 1 << 18

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, x)
        out = x.new_zeros(matrix.shape[0], x.shape[1])
        for k in range(0, len(values), _Chunked.BLOCK):
            part = slice(k, k + _Chunked.BLOCK)
            row, col = matrix.pattern.row[part], matrix.pattern.col[part]
            out.index_add_(0, row, values[part].unsqueeze(1) * x.index_select(0, col))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        values, x = ctx.saved_tensors
        grad_values, grad_x = torch.empty_like(values), torch.zeros_like(x)
        for k in range(0, len(values), _Chunked.BLOCK):
            part = slice(k, k + _Chunked.BLOCK)
            row, col = ctx.matrix.pattern.row[part], ctx.matrix.pattern.col[part]
            g = grad.index_select(0, row)
            grad_values[part] = (g * x.index_select(0, col)).sum(dim=1)
            grad_x.index_add_(0, col, values[part].unsqueeze(1) * g)
        return None, grad_values, grad_x


PRODUCTS: dict[str, Callable[[SparseMatrix, Tensor, Tensor], Tensor]] = {
    "pyg scatter": _scatter_product,
    "torch csr": _csr_product,
    "chunked torch": _chunked_product,
    "ours": lambda matrix, values, x: matrix.with_values(values) @ x,
}


def kernels(
    sizes: Sequence[int], columns: Sequence[int] = (32, 7), *, device: str = "cpu", repeats: int = 20,
    products: Sequence[str] = tuple(PRODUCTS), report: Callable[[KernelTiming], None] = lambda timing: None,
) -> list[KernelTiming]:  # fmt: skip
    """Time A X with learnable A, mean degree 5 plus self-loops: forward and both gradients."""
    place, results = torch.device(device), []
    for n in sizes:
        matrix = load("random", n=n).with_self_loops().adjacency.to(device)
        _ = (
            matrix.pattern.columns,
            matrix.pattern.inverse_order,
            matrix.pattern.row,
        )  # built once per graph, not per product
        for d in columns:
            generator = torch.Generator().manual_seed(0)
            values = torch.rand(matrix.num_entries, generator=generator).to(device).requires_grad_()
            x = torch.rand(n, d, generator=generator).to(device).requires_grad_()
            grad = torch.rand(n, d, generator=generator).to(device)
            for name in products:
                step = _product_step(PRODUCTS[name], matrix, values, x, grad)
                if name == "torch csr" and n > 20_000:
                    continue  # its gradient for the values is a dense n x n product
                times = milliseconds(step, place, repeats=repeats)
                values.grad = x.grad = None
                with PeakMemory(place) as peak:
                    step()
                edge_array = matrix.num_entries * d * 4 / 2**20
                results.append(KernelTiming(name, n, d, statistics.median(times), peak.mib, edge_array))
                report(results[-1])
    return results


def _product_step(
    product: Callable[..., Tensor], matrix: SparseMatrix, values: Tensor, x: Tensor, grad: Tensor
) -> Step:
    def step() -> None:
        values.grad = x.grad = None
        product(matrix, values, x).backward(grad)

    return step


def record(kind: str, timings: Sequence[Any], **facts: Any) -> dict[str, Any]:
    """What goes to benchmarks/results: the timings and where they were taken."""
    return {"benchmark": kind, **facts, "environment": environment(), "timings": [asdict(t) for t in timings]}


def epoch_record(timings: Sequence[Timing], *, protocol: str, device: str) -> dict[str, Any]:
    facts = {"protocol": protocol, "device": device, "recipe": SETTINGS.to_dict(), "seed": 0}
    extra = extra_time(timings)
    return record(
        "epochs", timings, **facts, extra_percent={str(n): percent for n, percent in extra.items()},
        extra_percent_mean=statistics.fmean(extra.values()) if extra else None, extra_percent_paper=PAPER_EXTRA,
        growth_exponent=growth_exponent(timings, "our gcn-lpa", at_least=100_000), same_bits=check_same_bits(device),
        gradient_error=agreement(device), gradient_error_3xtf32=_agreement_by_tensor_cores() if device == "cuda" else None,
    )  # fmt: skip


def _agreement_by_tensor_cores() -> float:
    from gcn_lpa.engine import gpu_fused

    before, gpu_fused.PRECISION = gpu_fused.PRECISION, "tf32x3"
    try:
        return agreement("cuda")
    finally:
        gpu_fused.PRECISION = before


def epoch_table(timings: Sequence[Timing]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines: each rival at each size, how many times as long as our GCN-LPA of the same kind, and over the floor."""
    base = {(t.nodes, t.captured): t.milliseconds for t in timings if t.rival == "our gcn-lpa"}
    lines: list[tuple[str, ...]] = []
    for t in timings:
        ratio = base.get((t.nodes, t.captured))
        lines.append(
            (t.rival + (", one CUDA graph" if t.captured else ""), f"{t.nodes:,}", f"{t.classes}", f"{t.milliseconds:.3g}",
             f"{t.milliseconds / ratio:.2f}" if ratio else "–", f"{t.peak_mib:,.0f}" if t.peak_mib is not None else "–",
             f"{t.milliseconds / t.floor_milliseconds:.1f}" if t.floor_milliseconds else "–")
        )  # fmt: skip
    return ("", "nodes", "classes", "ms a step", "x our gcn-lpa", "peak MiB", "x floor"), lines


def epoch_sentences(timings: Sequence[Timing]) -> list[str]:
    lines, extra = [], extra_time(timings)
    if extra:
        each = ", ".join(f"{percent:+.0f} % at {n:,}" for n, percent in extra.items())
        lines.append(
            f"GCN-LPA over our own GCN: {each}; mean {statistics.fmean(extra.values()):+.1f} % (the paper: +{PAPER_EXTRA} %)."
        )
    exponent = growth_exponent(timings, "our gcn-lpa", at_least=100_000)
    if exponent is not None:
        lines.append(f"Time of GCN-LPA grows as nodes to the power {exponent:.2f} from 100,000 nodes on.")
    lines.append("Floor: the bytes of a step that computes every row, over the copy bandwidth measured in this run.")
    return lines


def kernel_table(timings: Sequence[KernelTiming]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    base = {(t.nodes, t.columns): t.milliseconds for t in timings if t.kernel == "ours"}
    lines: list[tuple[str, ...]] = [
        (t.kernel, f"{t.nodes:,}", f"{t.columns}", f"{t.milliseconds:.3g}",
         f"{t.milliseconds / base[t.nodes, t.columns]:.1f}" if (t.nodes, t.columns) in base else "–",
         f"{t.extra_mib:,.1f}" if t.extra_mib is not None else "–", f"{t.edge_array_mib:,.1f}")
        for t in timings
    ]  # fmt: skip
    return ("", "nodes", "columns", "ms", "x ours", "peak MiB", "[E, d] MiB"), lines


def draw_epochs(timings: Sequence[Timing], path: str | Path, *, title: str) -> None:
    """Time per epoch over the number of nodes, log-log, as the paper's Figure 5."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    plot_epochs(axes, timings)
    axes.set_title(title)
    figure.savefig(path, dpi=160)
    pyplot.close(figure)


def plot_epochs(axes: Any, timings: Sequence[Timing]) -> None:
    """The lines of `draw_epochs` on given axes: each rival at its best, captured or not."""
    styles = {"pyg gcn": ("#E69F00", "--"), "pyg gcn-lpa": ("#D55E00", "-"), "csr gcn": ("#999999", ":"),
              "our gcn": ("#56B4E9", "--"), "our gcn-lpa": ("#0072B2", "-")}  # fmt: skip
    for rival, (color, dash) in styles.items():
        best: dict[int, float] = {}
        for t in timings:
            if t.rival == rival:
                best[t.nodes] = min(best.get(t.nodes, float("inf")), t.milliseconds)
        if best:
            axes.plot(
                sorted(best), [best[n] for n in sorted(best)], dash, color=color, marker="o", markersize=4, label=rival
            )
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="milliseconds per training step")
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    axes.legend(frameon=False)


def check_same_bits(device: str, *, reruns: int = 5, n: int = 20_000) -> bool:
    """Whether `reruns` trainings of five steps from the same start end in the same bits."""
    ends = []
    for _ in range(reruns):
        problem = Problem.random(n, classes=7, labeled=n // 10, device=device)
        model = GCNLPA(problem.recipe, problem.graph.to("cpu"), seed=0).to(device)
        optimizer = optimizer_of(
            model.weight_parameters(), model.edge_parameters(), problem.recipe, problem.nodes.device
        )
        for k in range(5):
            optimizer.zero_grad()
            model.loss(problem.graph, problem.nodes, Key(0, k)).total.backward()
            optimizer.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    return all(torch.equal(a, b) for end in ends[1:] for a, b in zip(ends[0], end, strict=True))


def agreement(device: str, *, n: int = 20_000, classes: int = 7) -> float:
    """The largest relative difference between the gradients of one step here and in float64 by plain torch on the CPU."""
    problem = Problem.random(n, classes=classes, labeled=n // 10, device=device)

    def gradients(place: str, dtype: torch.dtype) -> list[Tensor]:
        graph = problem.graph.to(place)
        graph = replace(graph, adjacency=graph.adjacency.to(dtype), x=graph.x.to(dtype))
        model = GCNLPA(problem.recipe, problem.graph.to("cpu"), seed=0).to(device=place, dtype=dtype)
        model.loss(graph, problem.nodes.to(place), Key(0, 1)).total.backward()
        return [p.grad.double().cpu() for p in model.parameters() if p.grad is not None]

    with use_backend("reference"):
        exact = gradients("cpu", torch.float64)
    here = gradients(device, torch.float32)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(here, exact, strict=True))
