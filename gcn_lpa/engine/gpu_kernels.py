"""The kernels of sparse.py on the GPU: what is launched for a matrix, over which rows; the programs are in `gpu_programs.py`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gcn_lpa.engine.csr import CSR
from gcn_lpa.engine.gpu_programs import drop_numbers, reduce_rows, walk_chunks, walk_rows

SHORT, LONG = 16, 128  # the least and the most entries above which a row is cut: `longest_whole`
ENDLESS = 2**31 - 1


class LongRows(NamedTuple):
    """The rows that are cut, and the chunks they are cut into.

    (first, chunk, one) is a matrix with a row for each of them: it adds up its chunks.
    """

    row: Tensor  # [r]
    first: Tensor  # [r + 1], the first chunk of each
    chunk: Tensor  # [k], 0, 1, …
    one: Tensor  # [k], 1.0
    chunk_row: Tensor  # [k], the row of each chunk
    chunk_start: Tensor  # [k], its first entry
    chunk_end: Tensor  # [k], the entry behind its last


class Schedule(NamedTuple):
    """In which order the rows of a matrix are walked: a block of rows takes as long as its longest one."""

    short: Tensor | None  # where there are long rows, the others, the longest first
    long: LongRows | None
    longest: int  # entries of a row that is not long


def longest_whole(num_entries: int) -> int:
    """How many entries a row may have before it is cut into chunks of that size, or of the root of its length where that is more.

    The chip walks all rows of a small matrix at once, and is done when the longest is. A large one keeps it busy, and there the
    sums of many small chunks cost more than they save. Measured on an H200.
    """
    return min(LONG, max(SHORT, math.isqrt(num_entries) // 320 * 16))


def schedule(csr: CSR) -> Schedule:
    """Worked out once per matrix and kept with it."""
    if "schedule" not in csr.__dict__:
        counts, longest = csr.rowptr.diff(), longest_whole(csr.num_entries)
        plan = Schedule(None, None, ENDLESS)
        if len(counts) and int(counts.max()) > 2 * longest:  # else two more launches would cost what they save
            row = torch.nonzero(counts > longest).squeeze(1)
            order = counts.sort(descending=True, stable=True).indices[len(row) :]
            chunks = _in_chunks(csr, row, counts.index_select(0, row), longest)
            plan = Schedule(order.to(torch.int32), chunks, longest)
        csr.__dict__["schedule"] = plan
    found: Schedule = csr.__dict__["schedule"]
    return found


def _in_chunks(csr: CSR, row: Tensor, counts: Tensor, longest: int) -> LongRows:
    size = counts.double().sqrt().ceil().long().clamp_min(longest)
    chunks = (counts + size - 1) // size
    first = torch.cat([chunks.new_zeros(1), chunks.cumsum(0)])
    chunk = torch.arange(int(first[-1]), device=row.device)
    which = torch.repeat_interleave(torch.arange(len(row), device=row.device), chunks)
    start = csr.rowptr[row[which]] + (chunk - first[which]) * size[which]
    end = torch.minimum(start + size[which], csr.rowptr[row[which] + 1])
    chunk_row, one = row[which], torch.ones_like(chunk, dtype=torch.float32)
    row, first, chunk, chunk_row = (t.to(torch.int32) for t in (row, first, chunk, chunk_row))
    return LongRows(row, first, chunk, one, chunk_row, start, end)


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

# rows -> {matrix: what `listed` found}, as long as both live: a captured step reads it
_LISTED = WeakTensorKeyDictionary()


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
HUBS = (1, 32, 4)  # the same for the chunks of a long row


def _walk(
    csr: CSR,
    x: Tensor,
    *,
    values: Tensor | None = None,
    out: Tensor | None = None,
    y: Tensor | None = None,
    dot: Tensor | None = None,
    add: bool = False,
    held: Tensor | None = None,
    seeds: Tensor | None = None,
    mode: int = 0,
    drop: Bits | None = None,
    relu: float | None = None,
    of: Listed | None = None,
    wanted: Tensor | None = None,
    only: Listed | None = None,
    nonzero: Tensor | None = None,
) -> None:
    """Launch the walk over all rows: sums into `out` where given, dots into `dot` where given.

    Sums of many columns are one launch, a block of columns beside the other: those of a stack of models have hundreds.

    `of`: over these rows alone, for which `out` has a row each. `wanted` marks the rows whose sums will be read, [n].
    `only`: x has a row for each of these alone, the others are zero. `nonzero` marks the rows of x that are not zero.
    `relu` is the scale of the dropout behind the relu; `held`, `seeds`, `mode` and `drop` are those of `walk_rows`.
    """
    first = x.shape[1] // BLOCK * BLOCK if dot is None else 0  # a dot is a sum over all blocks, one after the other
    for c in [0] * (first > 0) + [*range(first, x.shape[1], BLOCK)]:
        part = slice(c, first if c < first else c + BLOCK)
        out_, y_, seeds_ = (None if t is None else t[:, part] for t in (out, y, seeds))
        _walk_block(
            csr,
            x[:, part],
            values,
            out_,
            y_,
            dot,
            add or c > 0,
            held,
            seeds_,
            mode,
            drop,
            relu,
            of,
            wanted,
            only,
            nonzero,
        )


def _walk_block(
    csr: CSR,
    x: Tensor,
    values: Tensor | None,
    out: Tensor | None,
    y: Tensor | None,
    dot: Tensor | None,
    add: bool,
    held: Tensor | None,
    seeds: Tensor | None,
    mode: int,
    drop: Bits | None,
    relu: float | None,
    of: Listed | None,
    wanted: Tensor | None,
    only: Listed | None,
    nonzero: Tensor | None,
) -> None:
    plan, width = schedule(csr), x.shape[1]
    d = min(width, BLOCK)
    blocks = width // d
    walked = plan.short if of is None else of.rows
    n = csr.num_rows if walked is None else len(walked)
    cols = max(8, triton.next_power_of_2(d))
    unused = x  # any pointer will do
    given = (values, out, y, dot, nonzero if only is None else only.position, held, seeds)
    values, out_, y, dot_, only_, held, seeds = (unused if t is None else t for t in given)
    common = {"SUMS": out is not None, "DOTS": dot is not None, "ADD": add and dot is not None, "COLS": cols, "D": d}
    common |= {"X_STRIDE": x.stride(0), "Y_STRIDE": y.stride(0), "ACC": _accumulator(x), "BLOCKS": blocks}
    common |= {"ONLY": 2 if only is not None else 1 if nonzero is not None else 0}
    random = drop or Bits(0, relu or 1.0, 0, 0, csr.rowptr, 0)
    rest = (unused if of is None else of.position, unused if wanted is None else wanted, held, seeds)
    flags = {"HELD": mode, "DROP": drop is not None, "RELU": relu is not None, "OUT_STRIDE": out_.stride(0)}
    flags |= {"PLACED": of is not None, "WANTED": wanted is not None}

    def walk(
        rowptr: Tensor, col: Tensor, a: Tensor, x: Tensor, rows: Tensor | None, n: int, by: int, **options: Any
    ) -> None:
        size, step, warps = HUBS if by == 2 else (DOTS if options["DOTS"] else SUMS)[cols]
        walk_rows[(triton.cdiv(n, size), blocks)](
            rowptr,
            col,
            a,
            x,
            out_,
            y,
            dot_,
            only_,
            unused if rows is None else rows,
            *rest,
            n,
            plan.longest,
            *random,
            LISTED=by,
            ROWS=size,
            STEP=step,
            **options,
            num_warps=warps,
        )

    if n:
        walk(csr.rowptr, csr.col, values, x, walked, n, int(walked is not None), **common, **flags)
    long = plan.long
    if long is None:
        return
    partial = x.new_empty(len(long.chunk), width, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    walk_chunks[(len(long.chunk), blocks)](
        csr.col,
        values,
        x,
        partial,
        y,
        dot_,
        only_,
        long.chunk_row,
        long.chunk_start,
        long.chunk_end,
        *random,
        DROP=int(drop is not None),
        STEP=HUBS[1],
        **common,
        num_warps=cols // 8,
    )
    if out is not None:
        common |= {"DOTS": False, "ADD": False, "ONLY": 0, "X_STRIDE": width}
        walk(long.first, long.chunk, long.one, partial, long.row, len(long.row), 2, **common, **flags)


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


REDUCE, REDUCE_LONG = (64, 8, 4), (1, 512, 4)  # rows a program, entries a step, warps


def _reduce(csr: CSR, what: int, scores: Tensor, grad: Tensor, out: Tensor) -> Tensor:
    plan = schedule(csr)
    short = csr.rowptr if plan.short is None else plan.short
    kinds = [
        (
            csr.num_rows if plan.short is None else len(plan.short),
            int(plan.short is not None),
            short,
            plan.longest,
            REDUCE,
        )
    ]
    if plan.long is not None:
        kinds.append((len(plan.long.row), 1, plan.long.row, ENDLESS, REDUCE_LONG))
    for n, by, listed_rows, longest, (rows, tile, warps) in kinds:
        if n:
            reduce_rows[(triton.cdiv(n, rows),)](
                csr.rowptr,
                scores,
                grad,
                out,
                listed_rows,
                n,
                longest,
                WHAT=what,
                LISTED=by,
                ACC=_accumulator(scores),
                ROWS=rows,
                TILE=tile,
                num_warps=warps,
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


def dropout(
    x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int
) -> Tensor:
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0; `col` None for dense x, [n, d].

    With a seed for each model of a stack, [B] on the device, x has one more dimension, [B, n, d] or [B, E].
    """
    out = torch.empty_like(x)
    seeds = seed.to(x.device) if isinstance(seed, Tensor) and seed.dim() == 1 else None
    models = 1 if seeds is None else len(seeds)
    size = x.numel() // models
    if size:
        drop_numbers[(triton.cdiv(size, 1024), models)](
            x,
            row,
            row if col is None else col,
            out,
            row if seeds is None else seeds,
            size,
            x.shape[-1],
            *bits(rate, seed if seeds is None else 0, step, layer),
            DENSE=col is None,
            MANY=seeds is not None,
            BLOCK=1024,
        )
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
