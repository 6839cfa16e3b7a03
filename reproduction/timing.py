"""How long one training step takes, beside everything a user could pick instead, in the same run.

A step is forward, both losses, backward and Adam, on the paper's timing graphs (Section 4.4, Figure 5), in two protocols:

paper   100 training nodes whatever the size, label 0 for all: with one class the losses and gradients are 0
work    10 % of the nodes labelled, 7 classes (or 1, or 40), so that losses and gradients are not 0

Both: mean degree 5 plus self-loops, identity features, Cora's settings of Table 4 (5 layers of 32, 5 LPA iterations, dropout
0.2, L2 1e-4, λ 10), dropout and L2 on for every rival, float32. On a shared CPU only the ratios mean something.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import Key
from gcn_lpa.model import GCNLPA
from reproduction.claims import PROTOCOLS
from reproduction.timing_rivals import ON_GPU_ONLY, RIVALS, Problem, Step, optimizer_of


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
    sizes: Sequence[int],
    *,
    protocol: str = "work",
    classes: int = 7,
    hubs: float = 0.0,
    rivals: Sequence[str] = tuple(RIVALS),
    device: str = "cpu",
    repeats: int = 30,
    largest_rival: int | None = None,
    report: Callable[[Timing], None] = lambda timing: None,
) -> list[Timing]:
    """Time a training step of every rival at every size. Rivals other than ours stop at `largest_rival` nodes.

    `hubs` is that of `random_graph`.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; there are paper and work")
    place, results = torch.device(device), []
    on_gpu, bandwidth = place.type == "cuda", copy_bandwidth(place)
    for n in sizes:
        num_labeled = min(100, n) if protocol == "paper" else max(1, n // 10)
        classes = 1 if protocol == "paper" else classes
        problem = Problem.random(n, classes=classes, labeled=num_labeled, device=device, hubs=hubs)
        for name in rivals:
            too_large = largest_rival is not None and n > largest_rival and not name.startswith("our")
            if too_large or (name in ON_GPU_ONLY and not on_gpu):
                continue
            for as_graph in (False, True) if on_gpu else (False,):
                results.append(_timing(name, problem, bandwidth, as_graph=as_graph, repeats=repeats))
                report(results[-1])
                gc.collect()
                if on_gpu:
                    torch.cuda.empty_cache()
    return results


def _timing(rival: str, problem: Problem, bandwidth: float, *, as_graph: bool, repeats: int) -> Timing:
    place = problem.nodes.device
    with PeakMemory(place) as peak:
        step = RIVALS[rival](problem)
        step = captured(step) if as_graph else step
        times = milliseconds(step, place, repeats=repeats)
    graph, seconds = problem.graph, floor_bytes(problem, learned="lpa" in rival) / bandwidth
    return Timing(
        rival=rival,
        nodes=graph.num_nodes,
        entries=graph.pattern.num_entries,
        classes=graph.num_classes,
        labeled=len(problem.nodes),
        milliseconds=statistics.median(times),
        mean_milliseconds=statistics.fmean(times),
        captured=as_graph,
        peak_mib=peak.mib,
        floor_milliseconds=1000 * seconds,
    )


def best_times(timings: Sequence[Timing], rival: str) -> dict[int, float]:
    """Milliseconds of a rival at each size, captured or not, whichever is faster; the smallest size first."""
    best: dict[int, float] = {}
    for timing in timings:
        if timing.rival == rival:
            best[timing.nodes] = min(best.get(timing.nodes, float("inf")), timing.milliseconds)
    return dict(sorted(best.items()))


def extra_time(timings: Sequence[Timing]) -> dict[int, float]:
    """Per cent more time of our GCN-LPA over our GCN at each size."""
    gcn, gcn_lpa = best_times(timings, "our gcn"), best_times(timings, "our gcn-lpa")
    return {n: 100 * (gcn_lpa[n] / gcn[n] - 1) for n in gcn_lpa if n in gcn}


def growth_exponent(timings: Sequence[Timing], rival: str, *, at_least: int = 0) -> float | None:
    """The slope of log time over log nodes of a rival, by least squares."""
    best = {n: time for n, time in best_times(timings, rival).items() if n >= at_least}
    if len(best) < 2:
        return None
    return float(np.polyfit(np.log(list(best)), np.log(list(best.values())), 1)[0])


def check_same_bits(device: str, *, reruns: int = 5, n: int = 20_000) -> bool:
    """Whether `reruns` trainings of five steps from the same start end in the same bits."""
    ends = []
    for _ in range(reruns):
        problem = Problem.random(n, classes=7, labeled=n // 10, device=device)
        model = GCNLPA(problem.recipe, problem.graph.to("cpu"), seed=0).to(device)
        optimizer = optimizer_of(model.weight_parameters(), model.edge_parameters(), problem.recipe, problem.nodes.device)
        for k in range(5):
            optimizer.zero_grad()
            model.loss(problem.graph, problem.nodes, Key(0, k)).total.backward()
            optimizer.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    return all(torch.equal(a, b) for end in ends[1:] for a, b in zip(ends[0], end, strict=True))


def agreement(device: str, *, n: int = 20_000, classes: int = 7) -> float:
    """The largest relative difference between the gradients of one step here and in float64 on the CPU."""
    problem = Problem.random(n, classes=classes, labeled=n // 10, device=device)

    def gradients(place: str, dtype: torch.dtype) -> list[Tensor]:
        graph = problem.graph.to(place)
        graph = replace(graph, adjacency=graph.adjacency.to(dtype), x=graph.x.to(dtype))
        model = GCNLPA(problem.recipe, problem.graph.to("cpu"), seed=0).to(device=place, dtype=dtype)
        model.loss(graph, problem.nodes.to(place), Key(0, 1)).total.backward()
        return [p.grad.double().cpu() for p in model.parameters() if p.grad is not None]

    exact, here = gradients("cpu", torch.float64), gradients(device, torch.float32)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(here, exact, strict=True))


def agreement_by_tensor_cores() -> float:
    from gcn_lpa.engine import gpu_fused

    before, gpu_fused.PRECISION = gpu_fused.PRECISION, "tf32x3"
    try:
        return agreement("cuda")
    finally:
        gpu_fused.PRECISION = before
