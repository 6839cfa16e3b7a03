"""The kernels of sparse.py on the CPU: Numba loops over rows, with the gather of a row written in vector instructions.

Three things make them fast. A row of x is fetched as whole vectors: left to itself the compiler guards every
element against aliasing and negative indices and gives up. The row needed sixteen entries later is prefetched, since on
a large graph the time goes into waiting for memory. And the rows are shared out among torch.get_num_threads() threads.

Each row is summed by one thread in one order, so the result has the same bits whatever the number of threads.
The threads are Python's: those of OpenMP, which Numba could use, do not survive a fork.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from gcn_lpa.engine.devices import num_cpu_threads

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import Pattern

HAS_LOOPS = False  # those of `fused.py`
AHEAD = 16  # entries between a prefetch and its use; 8 to 32 measure alike
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}
ALONE = 4_000_000  # multiply-adds below which waking a second thread costs more than it saves

_I32, _I64, _BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


class _Row:
    """Emits loads and stores of `width` numbers at array[i, c:]; lanes that are not `inside` the row are left alone."""

    def __init__(self, builder: Any, context: Any, array_type: Any, array: Any, width: int, inside: Any) -> None:
        self.builder, self.inside = builder, inside
        self.number = context.get_value_type(array_type.dtype)
        self.size = array_type.dtype.bitwidth // 8
        self.type = ir.VectorType(self.number, width)
        self.name = f"v{width}f{array_type.dtype.bitwidth}.p0"
        proxy = context.make_array(array_type)(context, builder, array)
        self.start = builder.ptrtoint(proxy.data, _I64)
        self.stride = cgutils.unpack_tuple(builder, proxy.strides)[0]

    def address(self, i: Any, c: Any) -> Any:
        b = self.builder
        return b.add(self.start, b.add(b.mul(i, self.stride), b.mul(c, _I64(self.size))))

    def load(self, i: Any, c: Any) -> Any:
        b = self.builder
        pointer = b.inttoptr(self.address(i, c), self.type.as_pointer())
        if self.inside is None:
            return b.load(pointer, align=self.size)
        kind = ir.FunctionType(self.type, [self.type.as_pointer(), _I32, self.inside.type, self.type])
        masked = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.load.{self.name}")
        return b.call(masked, [pointer, _I32(self.size), self.inside, ir.Constant(self.type, [0.0] * self.type.count)])

    def store(self, vector: Any, i: Any, c: Any) -> None:
        b = self.builder
        pointer = b.inttoptr(self.address(i, c), self.type.as_pointer())
        if self.inside is None:
            b.store(vector, pointer, align=self.size)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.type, self.type.as_pointer(), _I32, self.inside.type])
        masked = cgutils.get_or_insert_function(b.module, kind, f"llvm.masked.store.{self.name}")
        b.call(masked, [vector, pointer, _I32(self.size), self.inside])

    def prefetch(self, i: Any, c: Any) -> None:
        b = self.builder
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        for line in range(0, self.type.count * self.size, 64):
            pointer = b.inttoptr(b.add(self.address(i, c), _I64(line)), _BYTES)
            b.call(function, [pointer, _I32(0), _I32(3), _I32(1)])  # read, keep in all caches, data

    def splat(self, number: Any) -> Any:
        b, undefined = self.builder, ir.Constant(self.type, ir.Undefined)
        first = b.insert_element(undefined, number, _I32(0))
        everywhere = ir.Constant(ir.VectorType(_I32, self.type.count), [0] * self.type.count)
        return b.shuffle_vector(first, undefined, everywhere)

    def total(self, vector: Any) -> Any:
        b = self.builder
        kind = ir.FunctionType(self.number, [self.number, self.type])
        name = f"llvm.vector.reduce.fadd.v{self.type.count}f{self.size * 8}"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        return b.call(function, [ir.Constant(self.number, 0.0), vector], fastmath=["reassoc"])


def _emit_block(
    context: Any, b: Any, kinds: Any, arguments: Any, c: Any, *, width: int, masked: bool, sums: bool, dots: bool
) -> None:
    """Code for row i and the columns c … c + width: over its entries k, with x_j the row of x that entry k points to,

    sums: out_i = Σ_k values_k x_j        dots: dot_k = y_i · x_j, continued from the columns before
    """
    i, start, end, last, col, values, x, out, y, dot = arguments
    kind_col, kind_values, kind_x, kind_out, kind_y, kind_dot = kinds[4:]
    inside = None
    if masked:  # lanes 0, 1, 2, … < d - c
        lanes = ir.VectorType(_I64, width)
        d = cgutils.unpack_tuple(b, context.make_array(kind_x)(context, b, x).shape)[1]
        room = b.insert_element(ir.Constant(lanes, ir.Undefined), b.sub(d, c), _I32(0))
        room = b.shuffle_vector(room, room, ir.Constant(ir.VectorType(_I32, width), [0] * width))
        inside = b.icmp_signed("<", ir.Constant(lanes, list(range(width))), room)
    rows = _Row(b, context, kind_x, x, width, inside)
    columns, weights, slots = (
        context.make_array(kind)(context, b, array).data
        for kind, array in ((kind_col, col), (kind_values, values), (kind_dot, dot))
    )

    def column(k: Any) -> Any:
        index = b.load(b.gep(columns, [k]))
        return index if index.type == _I64 else b.zext(index, _I64)

    total = cgutils.alloca_once(b, rows.type)
    b.store(ir.Constant(rows.type, [0.0] * width), total)
    y_i = _Row(b, context, kind_y, y, width, inside).load(i, c) if dots else None
    is_first = b.icmp_signed("==", c, _I64(0))
    with cgutils.for_range_slice(b, start, end, _I64(1), intp=_I64) as (k, _):
        ahead = b.add(k, _I64(AHEAD))
        rows.prefetch(column(b.select(b.icmp_signed("<", ahead, last), ahead, last)), c)
        x_j = rows.load(column(k), c)
        if sums:
            weight = rows.splat(b.load(b.gep(weights, [k])))
            b.store(b.fadd(b.load(total), b.fmul(weight, x_j, flags=["contract"]), flags=["contract"]), total)
        if dots:
            slot = b.gep(slots, [k])
            before = b.select(is_first, ir.Constant(rows.number, 0.0), b.load(slot))
            b.store(b.fadd(before, rows.total(b.fmul(x_j, y_i))), slot)
    if sums:
        _Row(b, context, kind_out, out, width, inside).store(b.load(total), i, c)


def _walk(*, sums: bool, dots: bool) -> Any:
    """An intrinsic that walks one row for all its columns: blocks of 32, then 16, 8, and the rest masked."""

    def typer(_, i, start, end, last, col, values, x, out, y, dot):
        def codegen(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            d = cgutils.unpack_tuple(b, context.make_array(x)(context, b, arguments[6]).shape)[1]

            def block(c: Any, width: int, masked: bool = False) -> Any:
                _emit_block(context, b, signature.args, arguments, c, width=width, masked=masked, sums=sums, dots=dots)

            c = b.and_(d, _I64(~31))
            with cgutils.for_range_slice(b, _I64(0), c, _I64(32), intp=_I64) as (at, _):
                block(at, 32)
            for width in (16, 8):  # the bits of d say which blocks follow
                with b.if_then(b.icmp_signed("!=", b.and_(d, _I64(width)), _I64(0))):
                    block(c, width)
                c = b.add(c, b.and_(d, _I64(width)))
            with b.if_then(b.icmp_signed("<", c, d)):
                block(c, 8, masked=True)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, col, values, x, out, y, dot), codegen

    return intrinsic(typer)


_sum_row = _walk(sums=True, dots=False)
_dot_row = _walk(sums=False, dots=True)
_sum_and_dot_row = _walk(sums=True, dots=True)


def _compiled(function: Any) -> Any:
    """A function compiled on its first call; kept on disk, or in memory where neither install nor home can be written to."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # Numba's "cannot cache function: no locator available"
        return njit(nogil=True, error_model="numpy")(function)


@_compiled
def _spmm(lo, hi, rowptr, col, values, x, out):
    last = np.int64(len(col) - 1)
    for i in range(lo, hi):
        _sum_row(i, np.int64(rowptr[i]), np.int64(rowptr[i + 1]), last, col, values, x, out, x, values)


@_compiled
def _powers(rowptr, col, values, powers):
    for k in range(1, len(powers)):
        _spmm(0, len(rowptr) - 1, rowptr, col, values, powers[k - 1], powers[k])


@_compiled
def _horner_rows(lo, hi, rowptr, col, values, before, x, number, out):
    """out = A before + number · x."""
    _spmm(lo, hi, rowptr, col, values, before, out)
    for i in range(lo, hi):
        for c in range(x.shape[1]):
            out[i, c] += number * x[i, c]


@_compiled
def _horner(rowptr, col, values, x, coefficients, before, out):
    for k in range(len(coefficients) - 2, -1, -1):
        _horner_rows(0, len(rowptr) - 1, rowptr, col, values, before, x, coefficients[k], out)
        before, out = out, before


@_compiled
def _breadth_first(rowptr, col, queue, length, hops):
    at = 0
    while at < length:
        node = queue[at]
        for k in range(rowptr[node], rowptr[node + 1]):
            if hops[col[k]] < 0:
                hops[col[k]] = hops[node] + 1
                queue[length] = col[k]
                length += 1
        at += 1


@_compiled
def _spmm_backward(lo, hi, rowptr, col, values, grad, grad_x, x, grad_values):
    last = np.int64(len(col) - 1)
    for i in range(lo, hi):
        start, end = np.int64(rowptr[i]), np.int64(rowptr[i + 1])
        _sum_and_dot_row(i, start, end, last, col, values, grad, grad_x, x, grad_values)


@_compiled
def _edge_dot(lo, hi, rowptr, col, v, u, dot):
    last = np.int64(len(col) - 1)
    for i in range(lo, hi):
        _dot_row(i, np.int64(rowptr[i]), np.int64(rowptr[i + 1]), last, col, dot, v, v, u, dot)


@_compiled
def _row_sum(lo, hi, rowptr, values, out):
    for i in range(lo, hi):
        total = values.dtype.type(0)
        for k in range(rowptr[i], rowptr[i + 1]):
            total += values[k]
        out[i] = total


@_compiled
def _below_row_max(lo, hi, rowptr, scores, out):
    for i in range(lo, hi):
        top = -np.inf
        for k in range(rowptr[i], rowptr[i + 1]):
            top = max(top, scores[k])
        for k in range(rowptr[i], rowptr[i + 1]):
            out[k] = scores[k] - top


@_compiled
def _over_row_sum(lo, hi, rowptr, weights):
    for i in range(lo, hi):
        total = weights.dtype.type(0)
        for k in range(rowptr[i], rowptr[i + 1]):
            total += weights[k]
        for k in range(rowptr[i], rowptr[i + 1]):
            weights[k] /= total


@_compiled
def _row_softmax_backward(lo, hi, rowptr, weights, grad, out):
    for i in range(lo, hi):
        total = weights.dtype.type(0)
        for k in range(rowptr[i], rowptr[i + 1]):
            total += weights[k] * grad[k]
        for k in range(rowptr[i], rowptr[i + 1]):
            out[k] = weights[k] * (grad[k] - total)


@_compiled
def _mix(h):
    h = np.uint32(h ^ (h >> np.uint32(16)))
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@_compiled
def _word(seed, step, layer):
    """The 32 bits that start the hash of this (seed, step, layer)."""
    word = _mix(np.uint32(seed + np.uint64(0x9E3779B9)))
    word = _mix(word ^ np.uint32(seed >> np.uint64(32)))
    word = _mix(word ^ np.uint32(step))
    return _mix(word ^ np.uint32(layer))


@_compiled
def _row_word(word, row):
    return np.uint32(_mix(np.uint32(word ^ np.uint32(row))) ^ np.uint32(np.uint64(row) >> np.uint64(32)))


@_compiled
def _dropout_rows(lo, hi, x, row, threshold, scale, seeds, step, layer, out):
    """Of the rows of all models below each other, those of one after those of another."""
    n = len(row)
    for i in range(lo, hi):
        row_word = _row_word(_word(seeds[i // n], step, layer), row[i % n])
        for c in range(x.shape[1]):
            bits = _mix(np.uint32(row_word + np.uint32(c) * np.uint32(0x9E3779B9)))
            out[i, c] = x[i, c] * scale if (bits >> np.uint32(8)) >= threshold else x.dtype.type(0)


@_compiled
def _dropout_entries(lo, hi, x, row, col, threshold, scale, seeds, step, layer, out):
    n, at = len(row), lo
    while at < hi:  # one model after another
        model = at // n
        word, last = _word(seeds[model], step, layer), min(hi, (model + 1) * n)
        for i in range(at, last):
            k = i - model * n
            bits = _mix(np.uint32(_row_word(word, row[k]) + np.uint32(col[k]) * np.uint32(0x9E3779B9)))
            out[i] = x[i] * scale if (bits >> np.uint32(8)) >= threshold else x.dtype.type(0)
        at = last


@_compiled
def _descend(lo, hi, x, feature, threshold, value, bias, out):
    inner = feature.shape[1]
    for i in range(lo, hi):
        for k in range(out.shape[1]):
            total = bias[k]
            for r in range(feature.shape[0]):
                at = 0
                while at < inner:
                    at = 2 * at + 1 + (x[i, feature[r, at, k]] > threshold[r, at, k])
                total += value[r, at - inner, k]
            out[i, k] = total


_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:  # threads do not cross a fork
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _share(kernel: Any, cuts: list[int], *arguments: Any) -> None:
    """Run kernel(lo, hi, …) for each run of rows between two cuts, the first one on this thread."""
    global _pool
    if len(cuts) > 2 and _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="gcn-lpa")
    waiting = [_pool.submit(kernel, lo, hi, *arguments) for lo, hi in pairwise(cuts[1:])] if _pool else []
    kernel(cuts[0], cuts[1], *arguments)
    for one in waiting:
        one.result()


def _workers(pattern: Pattern, width: int) -> int:
    return min(num_cpu_threads(), 1 + pattern.num_entries * width // ALONE)


def _over_rows(kernel: Any, pattern: Pattern, width: int, *tensors: Tensor) -> None:
    _share(kernel, pattern.shares(_workers(pattern, width)), *[tensor.numpy() for tensor in tensors])


def _empty(*shape: int, like: Tensor) -> Tensor:
    """A new tensor in NumPy's memory, which asks for huge pages: a fresh [n, d] would else cost a page fault every 4 kB."""
    if like.dtype not in NUMBERS:
        raise TypeError(f"on a CPU a sparse matrix has numbers of float32 or float64, not {like.dtype}")
    return torch.from_numpy(np.empty(shape, dtype=NUMBERS[like.dtype]))


def spmm(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """Σ_j a_ij x_j for each row i, [n, d]."""
    out = _empty(pattern.shape[0], x.shape[1], like=x)
    _over_rows(_spmm, pattern, x.shape[1], pattern.rowptr, pattern.col, values, x, out)
    return out


def spmm_backward(transpose: Pattern, values: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `spmm` for the values, in the order of the transpose, [E], and for x, [m, d], from one gather."""
    grad_values, grad_x = _empty(transpose.num_entries, like=x), _empty(*x.shape, like=x)
    tensors = transpose.rowptr, transpose.col, values, grad, grad_x, x, grad_values
    _over_rows(_spmm_backward, transpose, x.shape[1], *tensors)
    return grad_values, grad_x


def powers(pattern: Pattern, values: Tensor, x: Tensor, last: int) -> Tensor:
    """A^k x for k = 0 … last, [last + 1, n, d]."""
    out = _empty(last + 1, *x.shape, like=x)
    out[0] = x
    if _workers(pattern, x.shape[1]) == 1:  # one call for all hops of a small graph
        _powers(pattern.rowptr.numpy(), pattern.col.numpy(), values.numpy(), out.numpy())
        return out
    for before, after in pairwise(out):
        _over_rows(_spmm, pattern, x.shape[1], pattern.rowptr, pattern.col, values, before, after)
    return out


def polynomial(pattern: Pattern, values: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
    """Σ_k c_k A^k x by Horner's rule, [n, d]: two arrays, however many hops there are."""
    numbers, before, out = coefficients.numpy(), coefficients[-1] * x, _empty(*x.shape, like=x)
    arrays = pattern.rowptr, pattern.col, values
    if _workers(pattern, x.shape[1]) == 1:
        _horner(*(array.numpy() for array in (*arrays, x, coefficients, before, out)))
        return out if len(numbers) % 2 == 0 else before
    cuts = pattern.shares(_workers(pattern, x.shape[1]))
    for number in numbers[-2::-1]:
        _share(_horner_rows, cuts, *(array.numpy() for array in (*arrays, before, x)), number, out.numpy())
        before, out = out, before
    return before


def breadth_first(pattern: Pattern, starts: Tensor) -> Tensor:
    """The number of entries from the nearest start to each node, from row to column; -1: there is no way, [n]."""
    hops, queue = torch.full((pattern.shape[0],), -1), torch.empty(pattern.shape[0], dtype=torch.int64)
    hops[starts], queue[: len(starts)] = 0, starts
    arrays = pattern.rowptr.cpu().numpy(), pattern.col.cpu().numpy()
    _breadth_first(*arrays, queue.numpy(), len(starts), hops.numpy())
    return hops


def edge_dot(pattern: Pattern, u: Tensor, v: Tensor) -> Tensor:
    """u_i · v_j for each stored (i, j), [E]."""
    dot = _empty(pattern.num_entries, like=u)
    _over_rows(_edge_dot, pattern, u.shape[1], pattern.rowptr, pattern.col, v, u, dot)
    return dot


def row_sum(pattern: Pattern, values: Tensor) -> Tensor:
    """Σ_j of the values in each row, [n]."""
    out = _empty(pattern.shape[0], like=values)
    _over_rows(_row_sum, pattern, 1, pattern.rowptr, values, out)
    return out


def row_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """exp(s_ij) / Σ_j exp(s_ij), each row shifted by its largest score, [E]."""
    weights = _empty(*scores.shape, like=scores)
    _over_rows(_below_row_max, pattern, 1, pattern.rowptr, scores, weights)
    weights.exp_()  # torch has a vector exp, Numba has not
    _over_rows(_over_row_sum, pattern, 1, pattern.rowptr, weights)
    return weights


def row_softmax_backward(pattern: Pattern, weights: Tensor, grad: Tensor) -> Tensor:
    """p ∘ (g - Σ_j p g), the gradient for the scores, [E]."""
    out = _empty(*grad.shape, like=grad)
    _over_rows(_row_softmax_backward, pattern, 1, pattern.rowptr, weights, grad, out)
    return out


def dropout(x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int) -> Tensor:
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0; `col` None for dense x, [n, d].

    With a seed for each model of a stack, [B], x has one more dimension, [B, n, d] or [B, E].
    """
    seeds = np.array(seed.tolist() if isinstance(seed, Tensor) else seed, dtype=np.uint64).reshape(-1)
    out, items = _empty(*x.shape, like=x), len(seeds) * len(row)
    scale = NUMBERS[x.dtype](1 / (1 - rate))
    bits = np.uint32(round(rate * 2**24)), scale, seeds, np.uint64(int(step)), np.uint32(layer)
    workers = min(num_cpu_threads(), 1 + x.numel() * 4 // ALONE)
    cuts = [items * k // workers for k in range(workers + 1)]
    shape = (-1,) if col is not None else (-1, x.shape[-1])
    numbers, kept = (tensor.numpy().reshape(shape) for tensor in (x, out))
    if col is None:
        _share(_dropout_rows, cuts, numbers, row.numpy(), *bits, kept)
    else:
        _share(_dropout_entries, cuts, numbers, row.numpy(), col.numpy(), *bits, kept)
    return out


def sums_of_trees(x: Tensor, feature: Tensor, threshold: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """For each row of x the bias and the leaf it reaches in each tree, summed in the order of the rounds, [m, c].

    Args:
        feature, threshold: of each inner node of complete trees, [rounds, inner, c]; greater values go to the right.
        value: of each leaf, [rounds, leaves, c].
    """
    out, workers = bias.new_empty(len(x), len(bias)), num_cpu_threads()
    cuts = [len(x) * k // workers for k in range(workers + 1)]
    _share(_descend, cuts, *(tensor.contiguous().numpy() for tensor in (x, feature, threshold, value, bias, out)))
    return out
