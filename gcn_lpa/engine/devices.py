"""Where a computation runs: the device, how many threads of the CPU, and the processes that share the rows of a matrix."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import scipy.sparse
import torch
from torch import Tensor

import gcn_lpa

SMALL = 2_000_000  # numbers in a layer, rows times width
Result = TypeVar("Result")
Rows = TypeVar("Rows", Tensor, scipy.sparse.csr_array)

_lock = threading.Lock()
_num_open = 0  # blocks of `num_threads` that have begun and not ended, in all threads
_outside = 0  # torch's setting before the first of them
# of the sparse kernels in this thread, where it is in such a block; models train side by side
_for_kernels: ContextVar[int | None] = ContextVar("_for_kernels", default=None)


def choose_device(device: str = "auto") -> torch.device:
    """ "auto" (a GPU where there is one), "cpu" or "cuda", or "cuda:1" and so on, as torch's."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; it is one of auto, cpu, cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is asked for, but torch sees no GPU here; use 'auto' or 'cpu'")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is asked for, but torch sees {torch.cuda.device_count()} GPUs here")
    return found


@contextlib.contextmanager
def num_threads(threads: int | None, *, layer: int | None = None) -> Iterator[None]:
    """Run the block on `threads` CPU threads. None: as many as torch has; but where a `layer` has fewer than SMALL numbers, the
    loops of torch get one thread, and the sparse kernels keep all.

    Threads of torch spin while they wait for each other: on a busy machine a small loop takes many times as long on two of them
    as on one. Threads of the sparse kernels sleep.

    Blocks may overlap in several threads. torch keeps a number for each thread that has used it and one for threads to come. A
    thread that enters while another is inside may read the number of that block, so it is given back the number from outside.
    """
    global _num_open, _outside
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}; it is at least 1")
    is_small, outer = threads is None and layer is not None and layer < SMALL, _for_kernels.get()
    with _lock:
        found = torch.get_num_threads()  # asking makes torch keep a number for this thread
        if _num_open == 0:
            _outside = found
        _num_open += 1
        before = _outside if outer is None else found
        torch.set_num_threads(1 if is_small else threads or before)
    _for_kernels.set(threads or before)
    try:
        yield
    finally:
        _for_kernels.set(outer)  # not `reset`: a generator may be closed in another context than it began in
        with _lock:
            torch.set_num_threads(before)
            _num_open -= 1


def num_cpu_threads() -> int:
    """Among how many threads the sparse kernels are shared out, which gives the same bits."""
    return _for_kernels.get() or torch.get_num_threads()


def environment() -> dict[str, Any]:
    """The versions and the machine, as environment.json of a run and every result of a benchmark keep them."""
    from importlib.metadata import version  # slow to import

    return {
        "gcn_lpa": gcn_lpa.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scipy", "numba")},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


class OneProcess:
    """What the rows of a square matrix, nodes of a graph, are to the processes that share them: here one process has all.

    `scale.ranks.Part` has the same methods for several processes. All of them call each method, in the same order.
    """

    is_part = False
    ids: Tensor | None = None  # of the columns in the whole matrix, [m]; None: their positions

    def gathered(self, x: Tensor) -> Tensor:
        """What stands in each row, [n, …], for each column, [m, …]: in a square matrix the same."""
        return x

    def total(self, values: Tensor) -> Tensor:
        """The sum of what each process has."""
        return values

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Variance and mean of each column over the nodes of all processes, [d] each."""
        return torch.var_mean(x, dim=0, correction=0)

    def collected(self, rows: Rows, at: Tensor) -> Rows:
        """`rows` belong to the nodes `at` of this process; those of all processes in the order of the whole graph."""
        return rows

    def places(self, at: Tensor) -> Tensor:
        """Which of the collected rows are those of the nodes `at` of this process, [m]."""
        return torch.arange(len(at), device=at.device)

    def agreed(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which one process does for all of them."""
        return work()
