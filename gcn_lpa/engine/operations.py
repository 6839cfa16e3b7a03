"""The kernels as differentiable operations, for one model or, under torch.func, for many at once.

Every Function takes its tensors one by one and has the `setup_context` form, so that `vmap(grad(loss))` can stack models.
Their forward and backward passes call `kernel`, the only place that knows about stacks: a product whose matrix all models
share is one product with the columns of all models, [n, B · d]; what cannot be shared runs model by model. Either way each
model gets the bits it would have got alone.

Nothing here builds an [E, d] array and no kernel uses atomics: the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gcn_lpa.engine.backends import apply, kernels_for
from gcn_lpa.engine.remembered import is_stacked


def kernel(name: str, *arguments: Any) -> Any:
    """Call a kernel of the backend of its tensors, each contiguous; inside torch.func for all models of the stack."""
    return apply(_Kernel, name, *arguments) if is_stacked() else _call(name, *arguments)


def _call(name: str, *arguments: Any) -> Any:
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    floats = next((a for a in tensors if a.is_floating_point()), tensors[0])
    return getattr(kernels_for(floats), name)(*(_plain(a) if isinstance(a, Tensor) else a for a in arguments))


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
        stacked = [
            a.movedim(dim, 0) if isinstance(a, Tensor) and dim is not None else a
            for a, dim in zip(arguments, in_dims[1:], strict=True)
        ]
        is_many = [dim is not None for dim in in_dims[1:]]
        rule = RULES.get(name)
        found = None if rule is None else rule(stacked, is_many)
        return _one_by_one(info.batch_size, name, stacked, is_many) if found is None else found


def _one_by_one(size: int, name: str, arguments: list[Any], is_many: list[bool]) -> tuple[Any, Any]:
    outputs = []
    for b in range(size):
        outputs.append(kernel(name, *(a[b] if many else a for a, many in zip(arguments, is_many, strict=True))))
    if isinstance(outputs[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*outputs, strict=True)), (0,) * len(outputs[0])
    return torch.stack(outputs), 0


def _one_product(arguments: list[Any], is_many: list[bool]) -> tuple[Tensor, int] | None:
    """A shared matrix times the columns of all models, [m, B · d]."""
    csr, values, x = arguments
    if is_many[1]:
        return None
    size, _, d = x.shape
    joined = kernel("spmm", csr, values, x.movedim(0, 1).reshape(-1, size * d))
    return joined.view(len(joined), size, d), 1


def _one_permutation(arguments: list[Any], is_many: list[bool]) -> tuple[Tensor, int] | None:
    return None if is_many[1] else (arguments[0].index_select(1, arguments[1]), 0)


RULES: dict[str, Callable[[list[Any], list[bool]], Any]] = {"spmm": _one_product, "permute": _one_permutation}


class Permute(torch.autograd.Function):
    """values[order]; `inverse` is the way back, so that the gradient needs no atomics."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return kernel("permute", values, order)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return apply(Permute, grad, inverse, order), None, None


class Product(torch.autograd.Function):
    """A X. The gradient of the values is given to `values_t`, in the order of the transpose.

    `matrix` is asked for its pattern and, where its values are constants (`values_t` is None), for their transpose.
    """

    generate_vmap_rule = True

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


class EdgeDot(torch.autograd.Function):
    """u_i · v_j for each entry (i, j), [E]."""

    generate_vmap_rule = True

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


class RowSum(torch.autograd.Function):
    """Σ_j over the entries of each row, [E] -> [n]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pattern: Any, values: Tensor) -> Tensor:
        return kernel("row_sum", pattern.rows, values)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(SpreadRows, ctx.pattern, grad)


class SpreadRows(torch.autograd.Function):
    """The number of row i at each entry (i, j), [n] -> [E]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pattern: Any, per_row: Tensor) -> Tensor:
        return per_row.index_select(0, pattern.row)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pattern = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, apply(RowSum, ctx.pattern, grad)


class RowSoftmax(torch.autograd.Function):
    """exp(s_ij) / Σ_j exp(s_ij), [E]."""

    generate_vmap_rule = True

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


class Dropout(torch.autograd.Function):
    """The mask is never stored: the backward pass draws the same bits again."""

    generate_vmap_rule = True

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
