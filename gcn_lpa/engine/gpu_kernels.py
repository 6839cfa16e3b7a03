"""The kernels of sparse.py on the GPU: what is launched for a matrix, over which rows; the programs are in `gpu_programs.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gcn_lpa.engine import gpu_programs as programs
from gcn_lpa.engine.operations import version_of

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import Pattern

HAS_LOOPS = True  # those of `fused.py`, in `gpu_fused.py`
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


def schedule(pattern: Pattern) -> Schedule:
    """Worked out once for each pattern and kept with it."""
    if "schedule" not in pattern.__dict__:
        counts, longest = pattern.rowptr.diff(), longest_whole(pattern.num_entries)
        plan = Schedule(None, None, ENDLESS)
        if len(counts) and int(counts.max()) > 2 * longest:  # else two more launches would cost what they save
            row = torch.nonzero(counts > longest).squeeze(1)
            order = counts.sort(descending=True, stable=True).indices[len(row) :]
            chunks = _in_chunks(pattern, row, counts.index_select(0, row), longest)
            plan = Schedule(order.to(torch.int32), chunks, longest)
        pattern.__dict__["schedule"] = plan
    found: Schedule = pattern.__dict__["schedule"]
    return found


def _in_chunks(pattern: Pattern, row: Tensor, counts: Tensor, longest: int) -> LongRows:
    size = counts.double().sqrt().ceil().long().clamp_min(longest)
    chunks = (counts + size - 1) // size
    first = torch.cat([chunks.new_zeros(1), chunks.cumsum(0)])
    chunk = torch.arange(int(first[-1]), device=row.device)
    which = torch.repeat_interleave(torch.arange(len(row), device=row.device), chunks)
    start = pattern.rowptr[row[which]] + (chunk - first[which]) * size[which]
    end = torch.minimum(start + size[which], pattern.rowptr[row[which] + 1])
    chunk_row, one = row[which], torch.ones_like(chunk, dtype=torch.float32)
    row, first, chunk, chunk_row = (t.to(torch.int32) for t in (row, first, chunk, chunk_row))
    return LongRows(row, first, chunk, one, chunk_row, start, end)


class Listed(NamedTuple):
    """A few rows, each at most once, of which alone an array may have rows."""

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


def listed(rows: Tensor, transpose: Pattern) -> Listed:
    """Kept with `rows` and the matrix until the rows are written to: the same labelled nodes serve every step."""
    version = version_of(rows)
    kept: WeakKeyDictionary[Pattern, tuple[int, Listed]] = _LISTED.setdefault(rows, WeakKeyDictionary())
    if transpose not in kept or kept[transpose][0] != version:
        position = torch.zeros(transpose.shape[0], dtype=torch.int32, device=rows.device)
        position.index_copy_(0, rows, torch.arange(1, len(rows) + 1, dtype=torch.int32, device=rows.device))
        found = Listed(rows.to(torch.int32, copy=True), position, _near(position, len(rows), transpose))
        kept[transpose] = version, found
    return kept[transpose][1]


def _near(position: Tensor, m: int, transpose: Pattern) -> tuple[Tensor, ...]:
    """Marks of the rows within 1, 2, … hops, while the mean degree says they are few: a count would make the host wait."""
    marks, mark, n = [], position > 0, max(1, transpose.shape[0])
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


def walk(
    pattern: Pattern,
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
    random = drop or Bits(0, relu or 1.0, 0, 0, pattern.rowptr, 0)
    places = nonzero if only is None else only.position, None if of is None else of.position, wanted, held
    flags = {"HELD": mode, "DROP": drop is not None, "RELU": relu is not None}
    flags |= {"PLACED": of is not None, "WANTED": wanted is not None}
    common: dict[str, Any] = {"SUMS": out is not None, "DOTS": dot is not None, "ACC": _accumulator(x)}
    common |= {"ONLY": 2 if only is not None else 1 if nonzero is not None else 0}
    first = x.shape[1] // BLOCK * BLOCK if dot is None else 0  # a dot is a sum over all blocks, one after the other
    for c in [0] * (first > 0) + [*range(first, x.shape[1], BLOCK)]:
        part = slice(c, first if c < first else c + BLOCK)
        out_, y_, seeds_ = (None if t is None else t[:, part] for t in (out, y, seeds))
        common["ADD"] = dot is not None and (add or c > 0)
        _walk_columns(pattern, x[:, part], values, dot, out_, y_, seeds_, places, random, of, common, flags)


def _walk_columns(
    pattern: Pattern,
    x: Tensor,
    values: Tensor | None,
    dot: Tensor | None,
    out: Tensor | None,
    y: Tensor | None,
    seeds: Tensor | None,
    places: tuple[Tensor | None, ...],
    random: Bits,
    of: Listed | None,
    common: dict[str, Any],
    flags: dict[str, Any],
) -> None:
    """One launch of `walk_rows` for these columns; where rows are cut, one for their chunks and one for the chunks' sums."""
    plan, width = schedule(pattern), x.shape[1]
    d = min(width, BLOCK)
    blocks, cols = width // d, max(8, triton.next_power_of_2(d))
    given = (values, out, y, dot, *places, seeds)
    values, out_, y, dot, only, *placed, seeds = (x if t is None else t for t in given)  # unused: any pointer will do
    common = {**common, "COLS": cols, "D": d, "X_STRIDE": x.stride(0), "Y_STRIDE": y.stride(0), "BLOCKS": blocks}
    flags = {**flags, "OUT_STRIDE": out_.stride(0)}

    def launch(matrix: tuple[Tensor, ...], x: Tensor, rows: Tensor | None, n: int, by: int, options: Any) -> None:
        size, step, warps = HUBS if by == 2 else (DOTS if options["DOTS"] else SUMS)[cols]
        places = only, x if rows is None else rows, *placed, seeds
        operands = *matrix, x, out_, y, dot, *places, n, plan.longest, *random
        sizes = {"LISTED": by, "ROWS": size, "STEP": step, "num_warps": warps}
        programs.walk_rows[(triton.cdiv(n, size), blocks)](*operands, **options, **flags, **sizes)

    rows = plan.short if of is None else of.rows
    n = pattern.shape[0] if rows is None else len(rows)
    if n:
        launch((pattern.rowptr, pattern.col, values), x, rows, n, int(rows is not None), common)
    if plan.long is None:
        return
    long, dtype = plan.long, torch.float64 if x.dtype == torch.float64 else torch.float32
    partial = x.new_empty(len(long.chunk), width, dtype=dtype)
    operands = x, partial, y, dot, only, long.chunk_row, long.chunk_start, long.chunk_end, *random
    options = {**common, "DROP": int(flags["DROP"]), "STEP": HUBS[1], "num_warps": cols // 8}
    programs.walk_chunks[(len(long.chunk), blocks)](pattern.col, values, *operands, **options)
    if out is not None:
        options = {**common, "DOTS": False, "ADD": False, "ONLY": 0, "X_STRIDE": width}
        launch((long.first, long.chunk, long.one), partial, long.row, len(long.row), 2, options)


def spmm(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """Σ_j a_ij x_j for each row i, [n, d]."""
    out = x.new_empty(pattern.shape[0], x.shape[1])
    walk(pattern, x, values=values, out=out)
    return out


def spmm_backward(transpose: Pattern, values: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `spmm` for the values, in the order of the transpose, [E], and for x, [m, d], from one gather."""
    grad_values, grad_x = x.new_empty(transpose.num_entries), torch.empty_like(x)
    walk(transpose, grad, values=values, out=grad_x, y=x, dot=grad_values)
    return grad_values, grad_x


def edge_dot(pattern: Pattern, u: Tensor, v: Tensor) -> Tensor:
    """u_i · v_j for each stored (i, j), [E]."""
    dot = u.new_empty(pattern.num_entries)
    walk(pattern, v, y=u, dot=dot)
    return dot


REDUCE, REDUCE_LONG = (64, 8, 4), (1, 512, 4)  # rows a program, entries a step, warps


def _reduce(pattern: Pattern, what: int, scores: Tensor, grad: Tensor, out: Tensor) -> Tensor:
    plan = schedule(pattern)
    kinds = [(plan.short, plan.longest, REDUCE)]
    if plan.long is not None:
        kinds.append((plan.long.row, ENDLESS, REDUCE_LONG))
    for rows, longest, (size, tile, warps) in kinds:
        n, options = pattern.shape[0] if rows is None else len(rows), {"ACC": _accumulator(scores), "num_warps": warps}
        operands = pattern.rowptr, scores, grad, out, pattern.rowptr if rows is None else rows, n, longest
        if n:
            grid, by = (triton.cdiv(n, size),), int(rows is not None)
            programs.reduce_rows[grid](*operands, WHAT=what, LISTED=by, ROWS=size, TILE=tile, **options)
    return out


def row_sum(pattern: Pattern, values: Tensor) -> Tensor:
    """Σ_j of the values in each row, [n]."""
    return _reduce(pattern, 0, values, values, values.new_empty(pattern.shape[0]))


def row_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """exp(s_ij) / Σ_j exp(s_ij), each row shifted by its largest score, [E]."""
    return _reduce(pattern, 1, scores, scores, torch.empty_like(scores))


def row_softmax_backward(pattern: Pattern, weights: Tensor, grad: Tensor) -> Tensor:
    """p ∘ (g - Σ_j p g), the gradient for the scores, [E]."""
    return _reduce(pattern, 2, weights, grad, torch.empty_like(grad))


def dropout(x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int) -> Tensor:
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0; `col` None for dense x, [n, d].

    With a seed for each model of a stack, [B] on the device, x has one more dimension, [B, n, d] or [B, E].
    """
    out = torch.empty_like(x)
    seeds = seed.to(x.device) if isinstance(seed, Tensor) and seed.dim() == 1 else None
    models = 1 if seeds is None else len(seeds)
    size = x.numel() // models
    if size:
        pointers = x, row, row if col is None else col, out, row if seeds is None else seeds
        random = bits(rate, seed if seeds is None else 0, step, layer)
        flags = {"DENSE": col is None, "MANY": seeds is not None, "BLOCK": 1024}
        programs.drop_numbers[(triton.cdiv(size, 1024), models)](*pointers, size, x.shape[-1], *random, **flags)
    return out
