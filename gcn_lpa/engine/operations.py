"""The kernels as differentiable operations, for one model or, under torch.func.vmap, for many at once.

A stack of models takes the gradient of Σ vmap(loss). Every Function has a `vmap` rule for that. A product whose matrix all
models share is one product with the columns of all models, [n, B · d]. Matrices of one pattern whose values differ from model
to model are the blocks of one block-diagonal matrix. Either way a row is summed in the same order, and each model gets the
bits it would have got alone.

Triton has the kernels on a GPU, Numba on the CPU. Nothing here builds an [E, d] array and no kernel uses atomics: the same
input gives the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _unwrap_batched
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import Pattern

# whether this runs inside torch.func, where a tensor may stand for those of many models
is_stacked: Callable[[], bool] = torch._C._are_functorch_transforms_active
# whether torch.func made a tensor: it may stand for those of many models, and is gone when torch.func ends
is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


@functools.cache  # an import statement takes longer than a call that has been made before
def kernels_on(gpu: bool) -> ModuleType:
    """The module with the kernels: Triton's on a GPU, Numba's on a CPU."""
    if gpu:
        from gcn_lpa.engine import gpu_kernels

        return gpu_kernels
    from gcn_lpa.engine import cpu_kernels

    return cpu_kernels


def kernel(name: str, *arguments: Any) -> Any:
    """Call a kernel for the device of its first tensor, with every tensor contiguous."""
    first = next(a for a in arguments if isinstance(a, Tensor))
    plain = [a.detach().contiguous() if isinstance(a, Tensor) else a for a in arguments]
    return getattr(kernels_on(first.is_cuda), name)(*plain)


def version_of(values: Tensor) -> int:
    """Changes whenever the tensor is written to."""
    return -1 if values.is_inference() else values._version


def apply(function: Any, *arguments: Any) -> Tensor:
    """`function.apply` of a torch.autograd.Function, typed; under vmap by the rule `function.vmap`.

    torch's vmap needs another form of Function, looks up its signature at every call, and walks through trees of arguments: each
    takes longer than a small kernel.
    """
    result: Tensor
    if not is_stacked():
        result = function.apply(*arguments)
        return result
    interpreter = retrieve_current_functorch_interpreter()
    if not isinstance(interpreter, VmapInterpreter):
        raise NotImplementedError("of torch.func, vmap alone works here: call backward() on the sum of the losses")
    level = interpreter.level()
    parts = [_unwrap_batched(a, level) if isinstance(a, Tensor) else (a, None) for a in arguments]
    with interpreter.lower():
        if all(dim is None for _, dim in parts):
            return apply(function, *arguments)
        tensors, dims = zip(*parts, strict=True)
        output, out_dim = function.vmap(interpreter.batch_size(), dims, *tensors)
    return _add_batch_dim(output, out_dim, level)


def _each(a: Tensor, dim: int | None, size: int) -> Tensor:
    """What each model has, [B, …]; what all models share is repeated."""
    return a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)


def _flat(a: Tensor, dim: int | None, size: int) -> Tensor:
    """The rows of all models below each other, [B · k, …]."""
    return _each(a, dim, size).flatten(0, 1)


class _ByBlocks(torch.autograd.Function):
    """A Function of a pattern and tensors; for all models at once that of a block-diagonal pattern."""

    @classmethod
    def vmap(cls, size: int, dims: Any, pattern: Pattern, *tensors: Tensor) -> tuple[Tensor, int]:
        flat = (_flat(tensor, dim, size) for tensor, dim in zip(tensors, dims[1:], strict=True))
        joined = apply(cls, pattern.repeated(size), *flat)
        return joined.view(size, -1, *joined.shape[1:]), 0


class Transpose(torch.autograd.Function):
    """The values in the order of the transpose, [E]; of several models, [B, E]. The way back needs no atomics either."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor) -> Tensor:
        ctx.pattern = pattern
        return values.index_select(-1, pattern.order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(Transpose, ctx.pattern.T, grad)

    @staticmethod
    def vmap(size: int, dims: Any, pattern: Pattern, values: Tensor) -> tuple[Tensor, int]:
        return apply(Transpose, pattern, values.movedim(dims[1], 0)), 0


class Product(torch.autograd.Function):
    """A X. The gradient of the values is given to `values_t`, in the order of the transpose.

    `matrix` is asked for its pattern and, where its values are constants (`values_t` is None), for their transpose.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Any, values: Tensor, values_t: Tensor | None, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values_t, x if values_t is not None else None)
        return kernel("spmm", matrix.pattern, values, x)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        (values_t, x), transpose = ctx.saved_tensors, ctx.matrix.pattern.T
        if grad.shape[1] == 0:  # no column, nothing that a kernel would write
            nothing = None if values_t is None else torch.zeros_like(values_t)
            return None, None, nothing, grad.new_zeros(transpose.shape[0], 0)
        if not ctx.needs_input_grad[2]:
            values_t = ctx.matrix.transposed_values if values_t is None else values_t
            return None, None, None, kernel("spmm", transpose, values_t, grad)
        if not ctx.needs_input_grad[3]:
            return None, None, kernel("edge_dot", transpose, x, grad), None
        return None, None, *kernel("spmm_backward", transpose, values_t, x, grad)

    @staticmethod
    def vmap(size: int, dims: Any, matrix: Any, values: Tensor, values_t: Tensor | None, x: Tensor) -> tuple[Tensor, int]:
        if dims[1] is None:
            x = x.movedim(dims[3], 1)
            wide = apply(Product, matrix, values, values_t, x.reshape(len(x), -1))  # all models side by side
            return wide.view(len(wide), size, -1), 1
        turned = None if values_t is None else _flat(values_t, dims[2], size)
        blocks = SimpleNamespace(pattern=matrix.pattern.repeated(size))  # `Product` is given the values beside it
        joined = apply(Product, blocks, _flat(values, dims[1], size), turned, _flat(x, dims[3], size))
        return joined.view(size, -1, joined.shape[1]), 0


class Polynomial(torch.autograd.Function):
    """Σ_k c_k A^k X for a constant A on a CPU: every hop in one operation, and no hop kept unless the c_k are learned."""

    @staticmethod
    def forward(ctx: Any, matrix: Any, coefficients: Tensor, x: Tensor) -> Tensor:
        ctx.matrix, powers = matrix, None
        if ctx.needs_input_grad[1]:
            powers = kernel("powers", matrix.pattern, matrix.values, x, len(coefficients) - 1)
        ctx.save_for_backward(coefficients, powers)
        if powers is not None:
            total: Tensor = (coefficients.detach() @ powers.flatten(1)).view(x.shape)
            return total
        return kernel("polynomial", matrix.pattern, matrix.values, x, coefficients)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        (coefficients, powers), matrix, grad_x = ctx.saved_tensors, ctx.matrix, None
        if ctx.needs_input_grad[2]:
            grad_x = kernel("polynomial", matrix.pattern.T, matrix.transposed_values, grad, coefficients)
        return None, None if powers is None else powers.flatten(1) @ grad.flatten(), grad_x

    @staticmethod
    def vmap(size: int, dims: Any, matrix: Any, coefficients: Tensor, x: Tensor) -> tuple[Tensor, int]:
        many = (_each(a, dim, size) for a, dim in zip((coefficients, x), dims[1:], strict=True))
        return torch.stack([apply(Polynomial, matrix, *of_one) for of_one in zip(*many, strict=True)]), 0


class EdgeDot(_ByBlocks):
    """u_i · v_j for each entry (i, j), [E]."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, u: Tensor, v: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(u, v)
        if u.shape[1] == 0:
            return u.new_zeros(pattern.num_entries)
        return kernel("edge_dot", pattern, u, v)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        (u, v), pattern = ctx.saved_tensors, ctx.pattern
        grad_u = kernel("spmm", pattern, grad, v) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[2]:
            return None, grad_u, None
        return None, grad_u, kernel("spmm", pattern.T, grad.index_select(0, pattern.order), u)


class RowSum(_ByBlocks):
    """Σ_j over the entries of each row, [E] -> [n]."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor) -> Tensor:
        ctx.pattern = pattern
        return kernel("row_sum", pattern, values)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(SpreadRows, ctx.pattern, grad)


class SpreadRows(_ByBlocks):
    """The number of row i at each entry (i, j), [n] -> [E]."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, per_row: Tensor) -> Tensor:
        ctx.pattern = pattern
        return per_row.index_select(0, pattern.row)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(RowSum, ctx.pattern, grad)


class RowSoftmax(_ByBlocks):
    """exp(s_ij) / Σ_j exp(s_ij), [E]."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, scores: Tensor) -> Tensor:
        weights: Tensor = kernel("row_softmax", pattern, scores)
        ctx.pattern = pattern
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (weights,) = ctx.saved_tensors
        return None, kernel("row_softmax_backward", ctx.pattern, weights, grad)


class Dropout(torch.autograd.Function):
    """The mask is never stored: the backward pass draws the same bits again.

    With a tensor of seeds, [B], x has a row for each of them, [B, n, d] or [B, E].
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int
    ) -> Tensor:
        ctx.bits = row, col, rate, seed, step, layer
        return kernel("dropout", x, *ctx.bits)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return apply(Dropout, grad, *ctx.bits), None, None, None, None, None, None

    @staticmethod
    def vmap(
        size: int, dims: Any, x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: Any, *rest: Any
    ) -> tuple[Tensor, int]:
        x = _each(x, dims[0], size)
        seeds = torch.full((size,), int(seed)) if dims[4] is None else seed
        return apply(Dropout, x, row, col, rate, seeds, *rest), 0


class TanhAttention(_ByBlocks):
    """Σ_h a_h tanh(u_ih + v_jh) per entry, one column h at a time, [E]; the tanh are computed again in the backward pass.

    `a` has a row for each block of a block-diagonal pattern, [B, h].
    """

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, u: Tensor, v: Tensor, a: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(u, v, a)
        score = u.new_zeros(len(a), pattern.num_entries // len(a))
        for h in range(a.shape[1]):
            score = score + a[:, h, None] * _tanh_column(pattern, u, v, h).view_as(score)
        return score.flatten()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        (u, v, a), pattern = ctx.saved_tensors, ctx.pattern
        grad, columns = grad.view(len(a), -1), []
        for h in range(a.shape[1]):
            t = _tanh_column(pattern, u, v, h).view_as(grad)
            inner = (grad * a[:, h, None] * (1 - t.square())).flatten()
            of_cols = pattern.T.row_sum(inner.index_select(0, pattern.order))
            columns.append((pattern.row_sum(inner), of_cols, (grad * t).sum(1)))
        grad_u, grad_v, grad_a = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
        return None, grad_u, grad_v, grad_a


def _tanh_column(pattern: Pattern, u: Tensor, v: Tensor, h: int) -> Tensor:
    return (u[:, h].index_select(0, pattern.row) + v[:, h].index_select(0, pattern.col)).tanh_()
