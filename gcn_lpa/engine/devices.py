"""Where a computation runs: the device, and how many threads of the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from gcn_lpa.engine.backends import use_threads

SMALL = 2_000_000  # numbers in a layer, rows times width


def same_device(one: torch.device | str, other: torch.device | str) -> bool:
    """Whether two names mean one device: "cuda" is the first GPU, "cuda:0"."""
    one, other = torch.device(one), torch.device(other)
    return one.type == other.type and (one.index or 0) == (other.index or 0)


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
    """Run the block on so many CPU threads. None: torch's setting; but where a `layer` has fewer than SMALL numbers, torch's
    own loops get one thread, and the sparse kernels keep all.

    torch's threads spin while they wait for each other, so that on a busy machine a small loop shared by two of them takes
    many times as long as on one. Ours sleep.
    """
    before = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise ValueError(f"threads = {threads}; it is at least 1")
    is_small = threads is None and layer is not None and layer < SMALL
    torch.set_num_threads(1 if is_small else threads or before)
    try:
        with use_threads(threads or before):
            yield
    finally:
        torch.set_num_threads(before)
