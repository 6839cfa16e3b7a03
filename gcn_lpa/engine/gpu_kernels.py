"""The kernels of sparse.py on the GPU, in Triton; and, fused, the two loops of model.py that a training step spends itself on.

A program owns a block of rows and walks their entries side by side, so a row is summed by one program in one order:
no atomics, the same bits every time. A row longer than LONG entries would leave its neighbours waiting; such rows (the
hubs of a power-law graph) are cut into chunks that go to programs of their own and are added up in order.

Everything accumulates in float32 (float64 for float64), whatever the type of the operands. Under TRITON_INTERPRET=1 the
same code runs on the CPU, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gcn_lpa.engine.csr import CSR

LONG = 512  # entries of a row above which it is cut into chunks of that size


class LongRows(NamedTuple):
    """The rows with more than LONG entries, and the chunks they are cut into."""

    row: Tensor  # [r]
    first: Tensor  # [r + 1], the first chunk of each
    chunk_row: Tensor  # [k], the row of each chunk
    chunk_start: Tensor  # [k], its first entry


def _long_rows(csr: CSR) -> LongRows | None:
    """Worked out once per matrix and kept with it."""
    plan: LongRows | None
    if "long_rows" not in csr.__dict__:
        counts = csr.rowptr.diff()
        row = torch.nonzero(counts > LONG).squeeze(1)
        plan = None
        if len(row):
            chunks = (counts.index_select(0, row) + LONG - 1) // LONG
            first = torch.cat([chunks.new_zeros(1), chunks.cumsum(0)]).to(torch.int32)
            chunk_row = torch.repeat_interleave(row, chunks)
            within = torch.arange(len(chunk_row), device=row.device) - torch.repeat_interleave(first[:-1], chunks)
            start = csr.rowptr.index_select(0, chunk_row) + within * LONG
            plan = LongRows(row.to(torch.int32), first, chunk_row.to(torch.int32), start)
        csr.__dict__["long_rows"] = plan
    plan = csr.__dict__["long_rows"]
    return plan


class Listed(NamedTuple):
    """A few rows, each at most once: where an array has a row for these alone, and where not to go for the others."""

    rows: Tensor  # [m]
    position: Tensor  # [n], where each row is in `rows`, counted from one; 0 where it is not
    near: tuple[Tensor, ...]  # marks of the rows that they read over 1, 2, … hops, [n] each, as long as these are few

    def within(self, hops: int) -> Tensor | None:
        """Marks of all rows that these read over so many hops; None for (nearly) all."""
        return self.near[hops - 1] if 0 < hops <= len(self.near) else None


FEW = 0.75  # the share of rows up to which it pays to ask which they are


FAR = 8  # hops


_LISTED = (
    WeakTensorKeyDictionary()
)  # rows -> {matrix: what `listed` found}, as long as both live: a captured step reads it


def listed(rows: Tensor, transpose: CSR) -> Listed:
    """Worked out once for the same `rows` and matrix: the same labelled nodes serve every step."""
    version = -1 if rows.is_inference() else rows._version  # changes when they are written to
    kept: WeakKeyDictionary[CSR, tuple[int, Listed]] = _LISTED.setdefault(rows, WeakKeyDictionary())
    if transpose not in kept or kept[transpose][0] != version:
        position = torch.zeros(transpose.num_rows, dtype=torch.int32, device=rows.device)
        position.index_copy_(0, rows, torch.arange(1, len(rows) + 1, dtype=torch.int32, device=rows.device))
        found = Listed(rows.to(torch.int32, copy=True), position, _near(position, len(rows), transpose))
        kept[transpose] = version, found
    return kept[transpose][1]


def _near(position: Tensor, m: int, transpose: CSR) -> tuple[Tensor, ...]:
    """How many rows a hop reaches is guessed from the mean degree: to count them the host would wait for the device."""
    marks, mark, n = [], position > 0, max(1, transpose.num_rows)
    share, degree = m / n, transpose.num_entries / n
    for _ in range(FAR):
        share = 1 - (1 - share) ** degree
        if share > FEW:
            break
        mark = row_sum(transpose, mark.index_select(0, transpose.col).float()) > 0
        marks.append(mark)
    return tuple(marks)


@triton.jit
def _mix(h):
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _word(seed_low, seed_high, step_ptr, layer):
    """The 32 bits that start the hash of this (seed, step, layer)."""
    word = _mix(seed_low.to(tl.uint32) + 0x9E3779B9)
    word = _mix(word ^ seed_high.to(tl.uint32))
    word = _mix(word ^ tl.load(step_ptr).to(tl.uint32))
    return _mix(word ^ layer.to(tl.uint32))


@triton.jit
def _keep(word, row, column, threshold):
    """Whether the element (row, column) survives; `row` int64, `column` int32, both of the same shape or broadcast."""
    row_word = _mix(word ^ row.to(tl.uint32)) ^ (row >> 32).to(tl.uint32)
    bits = _mix(row_word + column.to(tl.uint32) * 0x9E3779B9)
    return (bits >> 8) >= threshold.to(tl.uint32)


@triton.jit
def _visit(
    col, values, x, y, dot, only, rows, start, count, y_scale, word, threshold, scale,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, ONLY: tl.constexpr, ACC: tl.constexpr,
    D: tl.constexpr, X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """For each row i of a block, over its entries k that point to row j of x:

    SUMS: returns Σ_k values_k x_j, [ROWS, COLS]      DOTS: dot_k = y_scale_i y_i · x_j (ADD: added to what is there)
    DROP: x_j counts as dropped, or scaled up, by the random bits of (j, j): dropout of identity features.
    ONLY: rows j without only_j are zero and are not fetched; 2: x has the others alone, that of j at only_j - 1.

    STEP entries of every row are fetched at once, so that many loads are under way; the widths are compile-time numbers,
    so that a row is fetched in 16-byte words.
    """
    cols = tl.arange(0, COLS)
    if DOTS:
        y_at = y + rows.to(tl.int64)[:, None, None] * Y_STRIDE + cols[None, None, :]
        y_i = tl.load(y_at, mask=(count > 0)[:, None, None] & (cols < D)[None, None, :], other=0).to(ACC)
        y_i = y_i * y_scale[:, None, None]
    total = tl.zeros([ROWS, STEP, COLS], dtype=ACC)
    for k0 in range(0, tl.max(count, axis=0), STEP):
        k = k0 + tl.arange(0, STEP)
        here = k[None, :] < count[:, None]
        at = start[:, None] + k[None, :]
        j = tl.load(col + at, mask=here, other=0).to(tl.int64)
        fetch, at_x = here, j
        if ONLY > 0:
            is_there = tl.load(only + j, mask=here, other=0)
            fetch = here & (is_there != 0)
        if ONLY == 2:
            at_x = is_there.to(tl.int64) - 1
        x_at = x + at_x[:, :, None] * X_STRIDE + cols[None, None, :]
        if COLS == D:
            x_j = tl.load(x_at, mask=fetch[:, :, None], other=0).to(ACC)
        else:
            x_j = tl.load(x_at, mask=fetch[:, :, None] & (cols < D)[None, None, :], other=0).to(ACC)
        if SUMS:
            a = tl.load(values + at, mask=here, other=0).to(ACC)
            if DROP:
                a = tl.where(_keep(word, j, j.to(tl.int32), threshold), a * scale, 0.0)
            total += a[:, :, None] * x_j
        if DOTS:
            product = tl.sum(y_i * x_j, axis=2)
            if ADD:
                product += tl.load(dot + at, mask=here, other=0).to(ACC)
            tl.store(dot + at, product, mask=here)
    return tl.sum(total, axis=1)


@triton.jit
def _block_of_rows(rowptr, listed, block, n, long, LISTED: tl.constexpr, ROWS: tl.constexpr):
    """(rows, which of them are ours, first entry of each, number of entries) of a block; long rows are not ours.

    LISTED: of the n rows in `listed`.
    """
    rows = block * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    if LISTED:
        rows = tl.load(listed + rows, mask=inside, other=0)
    start = tl.load(rowptr + rows, mask=inside, other=0)
    count = tl.load(rowptr + rows + 1, mask=inside, other=0) - start
    inside = inside & (count <= long)
    return rows, inside, start.to(tl.int64), tl.where(inside, count, 0).to(tl.int32)


@triton.jit(do_not_specialize=["threshold", "seed_low", "seed_high", "layer"])
def _walk_rows(
    rowptr, col, values, x, out, y, dot, only, listed, wanted, held, seeds, n, long,
    threshold, scale, seed_low, seed_high, step, layer,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, HELD: tl.constexpr, DROP: tl.constexpr, ONLY: tl.constexpr,
    LISTED: tl.constexpr, WANTED: tl.constexpr, RELU: tl.constexpr, ACC: tl.constexpr, D: tl.constexpr, X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """`_visit` for every row but the long ones.

    Rows with held_i are not summed: HELD 1, they get the row of `seeds`; 2, they get zeros (but their dots); 3, only they
    are walked, for their dots (the others' y_i are zero). DROP: sums and dots of row i are dropped or scaled up by the bits
    of (i, i). LISTED: the rows of `listed` alone, out has one row for each. WANTED: rows without wanted_i get zeros.
    RELU: the sums are gradients of y = dropout(relu(h)) and become those of h.
    """
    rows, inside, start, count = _block_of_rows(rowptr, listed, tl.program_id(0), n, long, LISTED, ROWS)
    if HELD > 0:
        is_held = tl.load(held + rows, mask=inside, other=0) != 0
        if HELD == 1:
            count = tl.where(is_held, 0, count)
        if HELD == 3:
            count = tl.where(is_held, count, 0)
    if WANTED:
        count = tl.where(tl.load(wanted + rows, mask=inside, other=0) != 0, count, 0)
    row_scale = tl.full([ROWS], 1.0, dtype=ACC)
    if DROP:
        kept = _keep(_word(seed_low, seed_high, step, layer), rows.to(tl.int64), rows, threshold)
        row_scale = tl.where(kept, row_scale * scale, 0.0)
    total = _visit(col, values, x, y, dot, only, rows, start, count, row_scale, 0, 0, 0.0,
                   SUMS, DOTS, ADD, False, ONLY, ACC, D, X_STRIDE, Y_STRIDE, ROWS, STEP, COLS)  # fmt: skip
    if SUMS:
        cols = tl.arange(0, COLS)
        ours = inside[:, None] & (cols < D)[None, :]
        place = rows.to(tl.int64)[:, None] * OUT_STRIDE + cols[None, :]
        total = total * row_scale[:, None]
        if RELU:
            y_i = tl.load(y + rows.to(tl.int64)[:, None] * Y_STRIDE + cols[None, :], mask=ours, other=0)
            total = tl.where(y_i > 0, total * scale, 0.0)
        if HELD == 1:
            seed = tl.load(seeds + place, mask=ours & is_held[:, None], other=0).to(ACC)
            total = tl.where(is_held[:, None], seed, total)
        if HELD == 2:
            total = tl.where(is_held[:, None], 0.0, total)
        if LISTED:
            place = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None] * OUT_STRIDE + cols[None, :]
        tl.store(out + place, total, mask=ours)


@triton.jit
def _walk_chunks(
    rowptr, col, values, x, partial, y, dot, only, chunk_row, chunk_start,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, ONLY: tl.constexpr, ACC: tl.constexpr, D: tl.constexpr,
    X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """`_visit` for one chunk of a long row; its sum goes to `partial`, [chunks, d]."""
    chunk = tl.program_id(0)
    row = tl.load(chunk_row + chunk + tl.arange(0, 1))
    start = tl.load(chunk_start + chunk + tl.arange(0, 1)).to(tl.int64)
    count = tl.minimum(tl.load(rowptr + row + 1) - start, CHUNK).to(tl.int32)
    total = _visit(col, values, x, y, dot, only, row, start, count, tl.full([1], 1.0, dtype=ACC), 0, 0, 0.0,
                   SUMS, DOTS, ADD, False, ONLY, ACC, D, X_STRIDE, Y_STRIDE, 1, STEP, COLS)  # fmt: skip
    if SUMS:
        cols = tl.arange(0, COLS)
        tl.store(partial + chunk.to(tl.int64) * D + cols[None, :], total, mask=(cols < D)[None, :])


@triton.jit
def _add_chunks(
    partial, out, row, first, position, held, seeds,
    HELD: tl.constexpr, LISTED: tl.constexpr, ACC: tl.constexpr, D: tl.constexpr, OUT_STRIDE: tl.constexpr,
    TILE: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Add the chunks of each long row, in order. LISTED: out has a row for those in the list alone."""
    which = tl.program_id(0)
    i = tl.load(row + which).to(tl.int64)
    start, end = tl.load(first + which), tl.load(first + which + 1)
    cols = tl.arange(0, COLS)
    total = tl.zeros([TILE, COLS], dtype=ACC)
    for k in range(start, end, TILE):
        at = k + tl.arange(0, TILE)
        mask = (at < end)[:, None] & (cols < D)[None, :]
        total += tl.load(partial + at.to(tl.int64)[:, None] * D + cols[None, :], mask=mask, other=0)
    result = tl.sum(total, axis=0)
    if HELD > 0:
        is_held = tl.load(held + i) != 0
        if HELD == 1:
            result = tl.where(is_held, tl.load(seeds + i * OUT_STRIDE + cols, mask=cols < D, other=0).to(ACC), result)
        if HELD == 2:
            result = tl.where(is_held, 0.0, result)
    if LISTED:
        i = tl.load(position + i).to(tl.int64) - 1
    if i >= 0:
        tl.store(out + i * OUT_STRIDE + cols, result, mask=cols < D)


def _accumulator(x: Tensor) -> Any:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


class Bits(NamedTuple):
    """What a kernel needs to draw the random bits of a layer."""

    threshold: int
    scale: float
    seed_low: int
    seed_high: int
    step: Tensor
    layer: int


def bits(rate: float, seed: int | Tensor, step: Tensor, layer: int) -> Bits:
    seed = int(seed)
    return Bits(round(rate * 2**24), 1 / (1 - rate), seed & 0xFFFFFFFF, seed >> 32, step, layer)


BLOCK = 32  # columns walked at once


# rows a program, entries a step, warps, by columns: for sums alone, and with dots; measured on an H200
SUMS = {8: (16, 1, 1), 16: (16, 2, 1), 32: (32, 2, 1)}


DOTS = {8: (32, 4, 1), 16: (16, 4, 1), 32: (16, 2, 1)}


def _walk(
    csr: CSR, x: Tensor, *, values: Tensor | None = None, out: Tensor | None = None, y: Tensor | None = None,
    dot: Tensor | None = None, add: bool = False, held: Tensor | None = None, seeds: Tensor | None = None, mode: int = 0,
    drop: Bits | None = None, relu: float | None = None, of: Listed | None = None, wanted: Tensor | None = None,
    only: Listed | None = None, nonzero: Tensor | None = None,
) -> None:  # fmt: skip
    """Launch the walk over all rows: sums into `out` where given, dots into `dot` where given.

    `of`: over these rows alone, for which `out` has a row each. `wanted` marks the rows whose sums will be read, [n].
    `only`: x has a row for each of these alone, the others are zero. `nonzero` marks the rows of x that are not zero.
    `relu` is the scale of the dropout behind the relu; `held`, `seeds`, `mode` and `drop` are those of `_walk_rows`.
    """
    for c in range(0, x.shape[1], BLOCK):
        part = slice(c, c + BLOCK)
        out_, y_, seeds_ = (None if t is None else t[:, part] for t in (out, y, seeds))
        _walk_block(
            csr, x[:, part], values, out_, y_, dot, add or c > 0, held, seeds_, mode, drop, relu, of, wanted, only, nonzero
        )  # fmt: skip


def _walk_block(
    csr: CSR, x: Tensor, values: Tensor | None, out: Tensor | None, y: Tensor | None, dot: Tensor | None, add: bool,
    held: Tensor | None, seeds: Tensor | None, mode: int, drop: Bits | None, relu: float | None, of: Listed | None,
    wanted: Tensor | None, only: Listed | None, nonzero: Tensor | None,
) -> None:  # fmt: skip
    n, d = csr.num_rows if of is None else len(of.rows), x.shape[1]
    if n == 0:
        return
    cols = max(8, triton.next_power_of_2(d))
    rows, step, warps = (DOTS if dot is not None else SUMS)[cols]
    unused = x  # any pointer will do
    given = (values, out, y, dot, nonzero if only is None else only.position, held, seeds)
    values, out_, y, dot_, only_, held, seeds = (unused if t is None else t for t in given)
    common = {"SUMS": out is not None, "DOTS": dot is not None, "ADD": add and dot is not None, "COLS": cols, "D": d}
    common |= {"X_STRIDE": x.stride(0), "Y_STRIDE": y.stride(0), "ACC": _accumulator(x)}
    common |= {"ONLY": 2 if only is not None else 1 if nonzero is not None else 0}
    _walk_rows[(triton.cdiv(n, rows),)](
        csr.rowptr, csr.col, values, x, out_, y, dot_, only_, unused if of is None else of.rows,
        unused if wanted is None else wanted, held, seeds, n, LONG, *(drop or Bits(0, relu or 1.0, 0, 0, csr.rowptr, 0)),
        HELD=mode, DROP=drop is not None, RELU=relu is not None, LISTED=of is not None, WANTED=wanted is not None,
        OUT_STRIDE=out_.stride(0), ROWS=rows, STEP=step, **common, num_warps=warps,
    )  # fmt: skip
    plan = _long_rows(csr)
    if plan is None:
        return
    assert drop is None and relu is None, "these have no long rows: see `fits`"
    partial = x.new_empty(len(plan.chunk_row), d, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    _walk_chunks[(len(plan.chunk_row),)](
        csr.rowptr, csr.col, values, x, partial, y, dot_, only_, plan.chunk_row, plan.chunk_start, CHUNK=LONG, STEP=32, **common
    )  # fmt: skip
    if out is not None:
        _add_chunks[(len(plan.row),)](
            partial, out, plan.row, plan.first, unused if of is None else of.position, held, seeds, HELD=mode,
            LISTED=of is not None, ACC=common["ACC"], D=d, OUT_STRIDE=out.stride(0), TILE=16, COLS=cols,
        )  # fmt: skip


def spmm(csr: CSR, values: Tensor, x: Tensor) -> Tensor:
    """Σ_j a_ij x_j for each row i, [n, d]."""
    out = x.new_empty(csr.num_rows, x.shape[1])
    _walk(csr, x, values=values, out=out)
    return out


def spmm_backward(transpose: CSR, values: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `spmm` for the values, in the order of the transpose, [E], and for x, [m, d], from one gather."""
    grad_values, grad_x = x.new_empty(transpose.num_entries), torch.empty_like(x)
    _walk(transpose, grad, values=values, out=grad_x, y=x, dot=grad_values)
    return grad_values, grad_x


def edge_dot(csr: CSR, u: Tensor, v: Tensor) -> Tensor:
    """u_i · v_j for each stored (i, j), [E]."""
    dot = u.new_empty(csr.num_entries)
    _walk(csr, v, y=u, dot=dot)
    return dot


@triton.jit
def _reduce_rows(
    rowptr, scores, grad, out, n, long, long_row,
    WHAT: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Row sums (WHAT 0), softmax (1) or the gradient of softmax (2). ROWS 1 walks the long rows, one each, TILE at a time."""
    if ROWS == 1:
        rows = tl.load(long_row + tl.program_id(0) + tl.arange(0, 1))
        inside = rows < n
    else:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = rows < n
    start = tl.load(rowptr + rows, mask=inside, other=0).to(tl.int64)
    count = tl.load(rowptr + rows + 1, mask=inside, other=0).to(tl.int64) - start
    if ROWS > 1:
        inside = inside & (count <= long)
        count = tl.where(inside, count, 0)
    most = tl.max(count, axis=0).to(tl.int32)
    lanes = tl.arange(0, TILE)
    if WHAT == 1:
        top = tl.full([ROWS, TILE], float("-inf"), dtype=ACC)
        for k in range(0, most, TILE):
            here = (k + lanes)[None, :] < count[:, None]
            s = tl.load(scores + start[:, None] + k + lanes[None, :], mask=here, other=float("-inf")).to(ACC)
            top = tl.maximum(top, s)
        shift = tl.max(top, axis=1)[:, None]
    total = tl.zeros([ROWS, TILE], dtype=ACC)
    for k in range(0, most, TILE):
        here = (k + lanes)[None, :] < count[:, None]
        s = tl.load(scores + start[:, None] + k + lanes[None, :], mask=here, other=0).to(ACC)
        if WHAT == 1:
            s = tl.where(here, tl.exp(s - shift), 0.0)
        if WHAT == 2:
            s = s * tl.load(grad + start[:, None] + k + lanes[None, :], mask=here, other=0).to(ACC)
        total += s
    summed = tl.sum(total, axis=1)
    if WHAT == 0:
        tl.store(out + rows, summed, mask=inside)
    else:
        for k in range(0, most, TILE):
            here = (k + lanes)[None, :] < count[:, None]
            at = start[:, None] + k + lanes[None, :]
            s = tl.load(scores + at, mask=here, other=0).to(ACC)
            if WHAT == 1:
                s = tl.exp(s - shift) / summed[:, None]
            else:
                s = s * (tl.load(grad + at, mask=here, other=0).to(ACC) - summed[:, None])
            tl.store(out + at, s, mask=here)


REDUCE = (64, 8, 4)  # rows a program, entries a step, warps


def _reduce(csr: CSR, what: int, scores: Tensor, grad: Tensor, out: Tensor) -> Tensor:
    plan, acc = _long_rows(csr), _accumulator(scores)
    rows, tile, warps = REDUCE
    if csr.num_rows:
        _reduce_rows[(triton.cdiv(csr.num_rows, rows),)](
            csr.rowptr,
            scores,
            grad,
            out,
            csr.num_rows,
            LONG,
            csr.rowptr,
            WHAT=what,
            ACC=acc,
            ROWS=rows,
            TILE=tile,
            num_warps=warps,
        )
    if plan is not None:
        _reduce_rows[(len(plan.row),)](
            csr.rowptr, scores, grad, out, csr.num_rows, LONG, plan.row, WHAT=what, ACC=acc, ROWS=1, TILE=1024
        )
    return out


def row_sum(csr: CSR, values: Tensor) -> Tensor:
    """Σ_j of the values in each row, [n]."""
    return _reduce(csr, 0, values, values, values.new_empty(csr.num_rows))


def row_softmax(csr: CSR, scores: Tensor) -> Tensor:
    """exp(s_ij) / Σ_j exp(s_ij), each row shifted by its largest score, [E]."""
    return _reduce(csr, 1, scores, scores, torch.empty_like(scores))


def row_softmax_backward(csr: CSR, weights: Tensor, grad: Tensor) -> Tensor:
    """p ∘ (g - Σ_j p g), the gradient for the scores, [E]."""
    return _reduce(csr, 2, weights, grad, torch.empty_like(grad))


def permute(values: Tensor, order: Tensor) -> Tensor:
    return values.index_select(0, order)


@triton.jit(do_not_specialize=["threshold", "seed_low", "seed_high", "layer"])
def _dropout_kernel(
    x, row, col, out, size, d, threshold, scale, seed_low, seed_high, step, layer, DENSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    word = _word(seed_low, seed_high, step, layer)
    if DENSE:
        i = tl.load(row + at // d, mask=inside, other=0).to(tl.int64)
        c = (at % d).to(tl.int32)
    else:
        i = tl.load(row + at, mask=inside, other=0).to(tl.int64)
        c = tl.load(col + at, mask=inside, other=0).to(tl.int32)
    number = tl.load(x + at, mask=inside, other=0)
    tl.store(out + at, tl.where(_keep(word, i, c, threshold), number * scale, 0.0), mask=inside)


def dropout(
    x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int
) -> Tensor:
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0; `col` None for dense x, [n, d].

    With a seed for each model of a stack, [B], x has one more dimension, [B, n, d] or [B, E].
    """
    out, is_stack = torch.empty_like(x), isinstance(seed, Tensor) and seed.dim() == 1
    for one, x_one, out_one in (
        zip(torch.as_tensor(seed).tolist(), x, out, strict=True) if is_stack else [(seed, x, out)]
    ):
        b = bits(rate, one, step, layer)
        if x_one.numel():
            _dropout_kernel[(triton.cdiv(x_one.numel(), 1024),)](
                x_one, row, row if col is None else col, out_one, x_one.numel(), x_one.shape[-1], b.threshold, b.scale,
                b.seed_low, b.seed_high, b.step, b.layer, DENSE=col is None, BLOCK=1024,
            )  # fmt: skip
    return out


def _padded(n: int, d: int, like: Tensor, *, zero: bool = False) -> Tensor:
    """[n, d rounded up to eight]: a gathered row starts on a sector and is fetched in 16-byte words. The padding is zero,
    and stays zero under every product here."""
    new = torch.zeros if zero else torch.empty
    return new(n, (d + 7) // 8 * 8, dtype=like.dtype, device=like.device)


def _pad(x: Tensor) -> Tensor:
    """x with zero columns up to a multiple of eight."""
    if x.shape[1] % 8 == 0:
        return x.contiguous()
    out = _padded(x.shape[0], x.shape[1], x, zero=True)
    out[:, : x.shape[1]] = x
    return out


def _block(d: int) -> int:
    return max(16, int(triton.next_power_of_2(d)))  # tl.dot wants at least sixteen
