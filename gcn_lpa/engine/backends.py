"""Which kernels a tensor gets: Triton on a GPU, Numba on the CPU, plain torch where neither has the type."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch.autograd_function import VmapInfo, custom_function_call
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._functorch.utils import unwrap_dead_wrappers

from gcn_lpa.engine import reference
from gcn_lpa.engine.remembered import is_stacked

BACKENDS = ("auto", "cpu", "triton", "reference")
_forced: str = "auto"


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run every product inside the block on one backend: "auto", "cpu", "triton" or "reference"."""
    global _forced
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; there are {', '.join(BACKENDS)}")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


@contextlib.contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Share the CPU kernels of the block among so many threads, whatever torch's own setting. The bits are the same."""
    from gcn_lpa.engine import cpu_kernels

    with cpu_kernels.use_threads(threads):
        yield


def num_cpu_threads() -> int:
    """Among how many threads CPU kernels are shared out."""
    from gcn_lpa.engine import cpu_kernels

    return cpu_kernels.num_threads()


def runs_on_triton(x: Tensor) -> bool:
    return _forced == "triton" or (_forced == "auto" and x.is_cuda)


def kernels_for(x: Tensor) -> ModuleType:
    """The backend for a tensor: Triton on a GPU, Numba on the CPU, plain torch where neither has the type."""
    if _forced == "reference":
        return reference
    if runs_on_triton(x):
        return _gpu_kernels()
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return _cpu_kernels()
    return reference


@functools.cache  # an import statement takes longer than a call that has been made before
def _gpu_kernels() -> ModuleType:
    from gcn_lpa.engine import gpu_kernels

    return gpu_kernels


@functools.cache
def _cpu_kernels() -> ModuleType:
    from gcn_lpa.engine import cpu_kernels

    return cpu_kernels


def fused_backend(x: Tensor) -> ModuleType | None:
    """The kernels of the fused loops of `fused.py`, where the backend of this tensor has them."""
    if not runs_on_triton(x) or is_stacked():  # a stack of models has none
        return None
    from gcn_lpa.engine import gpu_fused

    return gpu_fused


def apply(function: Any, *arguments: Any) -> Tensor:
    """`function.apply` of a torch.autograd.Function, typed.

    Written out, as torch's own looks up the signature of `forward` at every call, makes a node of the graph where nothing has
    a gradient, and under vmap walks through trees of arguments: each takes longer than a small kernel.
    """
    result: Tensor
    if not torch._C._are_functorch_transforms_active():
        arguments = unwrap_dead_wrappers(arguments)
        learns = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        is_plain = function.setup_context is not torch.autograd.Function.setup_context  # `forward` has no ctx
        run = function.forward if is_plain and not learns else super(torch.autograd.Function, function).apply
        result = run(*arguments)
        return result
    interpreter = retrieve_current_functorch_interpreter()
    if not isinstance(interpreter, VmapInterpreter) or function.generate_vmap_rule:
        result = custom_function_call(function, *arguments)
        return result
    level = interpreter.level()
    parts = [_unwrap_batched(a, level) if isinstance(a, Tensor) else (a, None) for a in arguments]
    dims = [dim for _, dim in parts]
    with interpreter.lower():
        if all(dim is None for dim in dims):
            return apply(function, *arguments)
        info = VmapInfo(interpreter.batch_size(), interpreter.randomness())
        output, out_dims = function.vmap(info, dims, *(part for part, _ in parts))
    if isinstance(output, tuple):
        result = tuple(_add_batch_dim(one, dim, level) for one, dim in zip(output, out_dims, strict=True))  # type: ignore[assignment]
        return result
    return _add_batch_dim(output, out_dims, level)
