"""The kernels as differentiable operations, for one model or, under torch.func, for many at once.

Every Function takes its tensors one by one and has the `setup_context` form and a `vmap` rule, so that torch.func can stack
models: the gradient of Σ vmap(loss), or vmap(grad(loss)). A product whose matrix all models share is one product with the
columns of all models, [n, B · d]. Matrices of one pattern whose values differ from model to model are the blocks of one
block-diagonal matrix. Either way a row is summed in the same order, and each model gets the bits it would have got alone.

Inside `grad` the passes of a Function call `kernel` with tensors that stand for many models; it has rules of the same kind.

Nothing here builds an [E, d] array and no kernel uses atomics: the same input gives the same bits.

Triton has the kernels on a GPU, Numba on the CPU, plain torch where neither has the type.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch.autograd_function import VmapInfo, custom_function_call
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd.function import once_differentiable

from gcn_lpa.engine import reference
from gcn_lpa.engine.remembered import is_stacked

if TYPE_CHECKING:
    from gcn_lpa.engine.csr import CSR

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


def kernel(name: str, *arguments: Any) -> Any:
    """Call a kernel of the backend of its tensors, each contiguous; inside torch.func for all models of the stack."""
    return apply(_Kernel, name, *arguments) if is_stacked() else _call(name, *arguments)


def _call(name: str, *arguments: Any) -> Any:
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    floats = next((a for a in tensors if a.is_floating_point()), tensors[0])
    return getattr(kernels_for(floats), name)(*[_plain(a) if isinstance(a, Tensor) else a for a in arguments])


def _plain(tensor: Tensor) -> Tensor:
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous()


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(name: str, *arguments: Any) -> Any:
        return _call(name, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("a kernel of gcn_lpa has a first derivative only")

    @staticmethod
    def vmap(info: Any, in_dims: Any, name: str, *arguments: Any) -> Any:
        rule = RULES.get(name)
        found = None if rule is None else rule(info.batch_size, in_dims[1:], *arguments)
        if found is not None:
            return found
        csr, *tensors = arguments
        flat = [_flat(a, dim, info.batch_size) for a, dim in zip(tensors, in_dims[2:], strict=True)]
        joined = kernel(name, csr.repeated(info.batch_size), *flat)
        if isinstance(joined, tuple):
            return tuple(_apart(part, info.batch_size) for part in joined), (0,) * len(joined)
        return _apart(joined, info.batch_size), 0


def _flat(a: Tensor, dim: int | None, size: int) -> Tensor:
    """The rows of all models below each other, [B · k, …]; of what all models share, a copy for each."""
    many = a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)
    return many.reshape(-1, *many.shape[2:])


def _apart(joined: Tensor, size: int) -> Tensor:
    return joined.view(size, len(joined) // size, *joined.shape[1:])


def _side_by_side(x: Tensor, dim: int) -> Tensor:
    """The columns of all models beside each other, [m, B · d]."""
    x = x.movedim(dim, 1)
    return x.reshape(len(x), x.shape[1] * x.shape[2])


def _one_product(size: int, dims: Any, csr: CSR, values: Tensor, x: Tensor) -> tuple[Tensor, int] | None:
    """A shared matrix times the columns of all models."""
    if dims[1] is not None:
        return None
    joined = kernel("spmm", csr, values, _side_by_side(x, dims[2]))
    return joined.view(len(joined), size, joined.shape[1] // size), 1


def _one_permutation(size: int, dims: Any, values: Tensor, order: Tensor) -> tuple[Tensor, int]:
    return values.movedim(dims[0], 0).index_select(1, order), 0


def _one_dropout(size: int, dims: Any, x: Tensor, row: Tensor, col: Any, rate: float, seed: Any, *rest: Any) -> Any:
    x, seeds = _many_seeds(size, dims[0], x, dims[4], seed)
    return kernel("dropout", x, row, col, rate, seeds, *rest), 0


RULES: dict[str, Callable[..., Any]] = {"spmm": _one_product, "permute": _one_permutation, "dropout": _one_dropout}


class Permute(torch.autograd.Function):
    """values[order]; `inverse` is the way back, so that the gradient needs no atomics."""

    @staticmethod
    def forward(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return kernel("permute", values, order) if values.dim() == 1 else values.index_select(1, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return apply(Permute, grad, inverse, order), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor, order: Tensor, inverse: Tensor) -> tuple[Tensor, int]:
        return apply(Permute, values.movedim(in_dims[0], 0), order, inverse), 0


class Product(torch.autograd.Function):
    """A X. The gradient of the values is given to `values_t`, in the order of the transpose.

    `matrix` is asked for its pattern and, where its values are constants (`values_t` is None), for their transpose.
    """

    @staticmethod
    def forward(matrix: Any, values: Tensor, values_t: Tensor | None, x: Tensor) -> Tensor:
        return kernel("spmm", matrix.pattern.rows, values, x)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.matrix, _, values_t, x = inputs
        ctx.save_for_backward(values_t, x if values_t is not None else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        values_t, x = ctx.saved_tensors
        transpose = ctx.matrix.pattern.columns
        if grad.shape[1] == 0:  # no column, nothing that a kernel would write
            empty = grad.new_zeros(transpose.num_rows, 0)
            return None, None, None if values_t is None else torch.zeros_like(values_t), empty
        if not ctx.needs_input_grad[2]:
            values_t = ctx.matrix.transposed_values if values_t is None else values_t
            return None, None, None, kernel("spmm", transpose, values_t, grad)
        if not ctx.needs_input_grad[3]:
            return None, None, kernel("edge_dot", transpose, x, grad), None
        return None, None, *kernel("spmm_backward", transpose, values_t, x, grad)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, matrix: Any, values: Tensor, values_t: Tensor | None, x: Tensor
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        if in_dims[1] is None:
            wide = apply(Product, matrix, values, values_t, _side_by_side(x, in_dims[3]))
            return wide.view(len(wide), size, wide.shape[1] // size), 1
        turned = None if values_t is None else _flat(values_t, in_dims[2], size)
        blocks = _Blocks(matrix.pattern.repeated(size))
        return _apart(
            apply(Product, blocks, _flat(values, in_dims[1], size), turned, _flat(x, in_dims[3], size)), size
        ), 0


class _Blocks(NamedTuple):
    """The matrices of all models as one, for `Product`, which is given their values beside it."""

    pattern: Any


def _by_blocks(function: Any, info: Any, in_dims: Any, pattern: Any, *tensors: Tensor) -> tuple[Tensor, int]:
    """A Function of a pattern and tensors, for all models at once."""
    size = info.batch_size
    flat = (_flat(tensor, dim, size) for tensor, dim in zip(tensors, in_dims[1:], strict=True))
    return _apart(apply(function, pattern.repeated(size), *flat), size), 0


class EdgeDot(torch.autograd.Function):
    """u_i · v_j for each entry (i, j), [E]."""

    @staticmethod
    def forward(pattern: Any, u: Tensor, v: Tensor) -> Tensor:
        if u.shape[1] == 0:
            return u.new_zeros(pattern.num_entries)
        return kernel("edge_dot", pattern.rows, u, v)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern, *ends = inputs
        ctx.save_for_backward(*ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        (u, v), pattern = ctx.saved_tensors, ctx.pattern
        grad_u = kernel("spmm", pattern.rows, grad, v) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[2]:
            return None, grad_u, None
        return None, grad_u, kernel("spmm", pattern.columns, kernel("permute", grad, pattern.order), u)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _by_blocks(EdgeDot, info, in_dims, *inputs)


class RowSum(torch.autograd.Function):
    """Σ_j over the entries of each row, [E] -> [n]."""

    @staticmethod
    def forward(pattern: Any, values: Tensor) -> Tensor:
        return kernel("row_sum", pattern.rows, values)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(SpreadRows, ctx.pattern, grad)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _by_blocks(RowSum, info, in_dims, *inputs)


class SpreadRows(torch.autograd.Function):
    """The number of row i at each entry (i, j), [n] -> [E]."""

    @staticmethod
    def forward(pattern: Any, per_row: Tensor) -> Tensor:
        return per_row.index_select(0, pattern.row)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(RowSum, ctx.pattern, grad)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _by_blocks(SpreadRows, info, in_dims, *inputs)


class RowSoftmax(torch.autograd.Function):
    """exp(s_ij) / Σ_j exp(s_ij), [E]."""

    @staticmethod
    def forward(pattern: Any, scores: Tensor) -> Tensor:
        return kernel("row_softmax", pattern.rows, scores)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern = inputs[0]
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (weights,) = ctx.saved_tensors
        return None, kernel("row_softmax_backward", ctx.pattern.rows, weights, grad)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _by_blocks(RowSoftmax, info, in_dims, *inputs)


class Dropout(torch.autograd.Function):
    """The mask is never stored: the backward pass draws the same bits again.

    With a tensor of seeds, [B], x has a row for each of them, [B, n, d] or [B, E].
    """

    @staticmethod
    def forward(
        x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int
    ) -> Tensor:
        return kernel("dropout", x, row, col, rate, seed, step, layer)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, row, col, ctx.rate, seed, step, ctx.layer = inputs
        ctx.seed = None if isinstance(seed, Tensor) else seed
        ctx.save_for_backward(row, col, step, *([seed] if ctx.seed is None else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        row, col, step, *seeds = ctx.saved_tensors
        seed = seeds[0] if seeds else ctx.seed
        return apply(Dropout, grad, row, col, ctx.rate, seed, step, ctx.layer), None, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: Any, *rest: Any
    ) -> tuple[Tensor, int]:
        x, seeds = _many_seeds(info.batch_size, in_dims[0], x, in_dims[4], seed)
        return apply(Dropout, x, row, col, rate, seeds, *rest), 0


def _many_seeds(size: int, x_dim: int | None, x: Tensor, seed_dim: int | None, seed: Any) -> tuple[Tensor, Tensor]:
    """x and the seed of each model, also of those that all models share."""
    x = x.expand(size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
    return x, seed if seed_dim is not None else torch.full((size,), int(seed))


class TanhAttention(torch.autograd.Function):
    """Σ_h a_h tanh(u_ih + v_jh) per entry, one column h at a time, [E]; the tanh are computed again in the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pattern: Any, u: Tensor, v: Tensor, a: Tensor) -> Tensor:
        score = u.new_zeros(pattern.num_entries)
        for h in range(len(a)):
            score = score + a[h] * _tanh_column(pattern, u, v, h)
        return score

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        (u, v, a), pattern = ctx.saved_tensors, ctx.pattern
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for h in range(len(a)):
            t = _tanh_column(pattern, u, v, h)
            inner = grad * a[h] * (1 - t.square())
            columns.append((pattern.row_sum(inner), pattern.col_sum(inner), (grad * t).sum()))
        grad_u, grad_v, grad_a = (torch.stack(parts, dim=-1) for parts in zip(*columns, strict=True))
        return None, grad_u, grad_v, grad_a


def _tanh_column(pattern: Any, u: Tensor, v: Tensor, h: int) -> Tensor:
    return (u[:, h].index_select(0, pattern.row) + v[:, h].index_select(0, pattern.col)).tanh_()
