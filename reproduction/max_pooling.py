"""The largest message of each row instead of their sum: max-pooling along the entries of a sparse matrix.

It is written in plain torch for every device, in blocks of rows, so that no more than BLOCK messages are held at a time. The
largest of some numbers does not depend on their order, and gradients are summed in the order of the transpose: the same
input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gcn_lpa.engine.operations import apply
from gcn_lpa.engine.sparse import Pattern, SparseMatrix

BLOCK = 1 << 22  # numbers in a block of messages, 16 MB
_KEPT: WeakKeyDictionary[Pattern, dict[int, list[tuple[int, int, int, int]]]] = WeakKeyDictionary()


def row_max(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """max_j a_ij x_jd for each row i and column d, 0 where a row has no entry, [n, d]; differentiable in both operands."""
    learns = matrix.values.requires_grad and torch.is_grad_enabled()
    return apply(_RowMax, matrix, matrix.values, matrix.transposed_values if learns else None, x)


class _RowMax(torch.autograd.Function):
    """Where several messages are the largest, each gets an equal share of the gradient, as in `torch.amax`.

    The gradient of the values is given to `values_t`, in the order of the transpose, as in `operations.Product`.
    """

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor, values_t: Tensor | None, x: Tensor) -> Tensor:
        pattern, shape = matrix.pattern, (matrix.shape[0], x.shape[1])
        top, ties = x.new_zeros(shape), x.new_zeros(shape)
        for rows, entries, offsets in _blocks(pattern, x.shape[1]):
            messages = values[entries].unsqueeze(1) * x.index_select(0, pattern.col[entries])
            top[rows] = torch.segment_reduce(messages, "max", offsets=offsets, unsafe=True)
            is_top = (messages == top.index_select(0, pattern.row[entries])).to(x.dtype)
            ties[rows] = torch.segment_reduce(is_top, "sum", offsets=offsets, unsafe=True)
        ctx.matrix = matrix
        ctx.save_for_backward(values_t, x, top, ties)
        return torch.where(top == -torch.inf, 0, top)  # of no message

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor]:
        values_t, x, top, ties = ctx.saved_tensors
        learns, pattern = values_t is not None, ctx.matrix.pattern.T
        weights = (values_t if learns else ctx.matrix.transposed_values).detach()
        share, grad_values, grad_x = grad / ties.clamp_min(1), torch.zeros_like(weights), torch.zeros_like(x)
        for rows, entries, offsets in _blocks(pattern, x.shape[1]):
            sent, to = x.index_select(0, pattern.row[entries]), pattern.col[entries]
            weight = weights[entries].unsqueeze(1)
            is_top = weight * sent == top.index_select(0, to)
            flow = torch.where(is_top, share.index_select(0, to), 0)
            if learns:
                grad_values[entries] = (flow * sent).sum(dim=1)
            grad_x[rows] = torch.segment_reduce(flow * weight, "sum", offsets=offsets, unsafe=True)
        return None, None, grad_values if learns else None, grad_x


def _blocks(pattern: Pattern, width: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Runs of rows, of their entries, and where among these each row begins and ends."""
    for first, last, start, end in row_blocks(pattern, max(1, BLOCK // max(1, width))):
        yield slice(first, last), slice(start, end), pattern.rowptr[first : last + 1] - start


def row_blocks(pattern: Pattern, most: int) -> list[tuple[int, int, int, int]]:
    """Runs of whole rows with at most so many entries each, or of one row that has more: (rows from, to, entries from, to).

    They are worked out once for each matrix: that waits for the GPU, which a step that is recorded must not.
    """
    kept = _KEPT.setdefault(pattern, {})
    if most not in kept:
        rowptr, found, first = pattern.rowptr.cpu().numpy().astype(np.int64), [], 0
        while first < pattern.shape[0]:
            last = max(first + 1, int(np.searchsorted(rowptr, rowptr[first] + most, side="right")) - 1)
            found.append((first, last, int(rowptr[first]), int(rowptr[last])))
            first = last
        kept[most] = found
    return kept[most]
