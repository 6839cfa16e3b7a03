"""The Triton programs that walk the rows of a sparse matrix; `gpu_kernels.py` launches them.

A program owns a block of rows and walks their entries side by side, so a row is summed by one program in one order:
no atomics, the same bits every time. A row longer than `long` entries would leave its neighbours waiting; such rows (the
hubs of a power-law graph) are cut into chunks that go to programs of their own and are added up in order.

Everything accumulates in ACC: float32 (float64 for float64), whatever the type of the operands. Under TRITON_INTERPRET=1
the same code runs on the CPU, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(h):
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def word_of(seed_low, seed_high, step_ptr, layer):
    """The 32 bits that start the hash of this (seed, step, layer)."""
    word = mix(seed_low.to(tl.uint32) + 0x9E3779B9)
    word = mix(word ^ seed_high.to(tl.uint32))
    word = mix(word ^ tl.load(step_ptr).to(tl.uint32))
    return mix(word ^ layer.to(tl.uint32))


@triton.jit
def keeps(word, row, column, threshold):
    """Whether the element (row, column) survives; `row` int64, `column` int32, both of the same shape or broadcast."""
    row_word = mix(word ^ row.to(tl.uint32)) ^ (row >> 32).to(tl.uint32)
    bits = mix(row_word + column.to(tl.uint32) * 0x9E3779B9)
    return (bits >> 8) >= threshold.to(tl.uint32)


@triton.jit
def visit(
    col,
    values,
    x,
    y,
    dot,
    only,
    rows,
    start,
    count,
    y_scale,
    word,
    threshold,
    scale,
    SUMS: tl.constexpr,
    DOTS: tl.constexpr,
    ADD: tl.constexpr,
    DROP: tl.constexpr,
    ONLY: tl.constexpr,
    ACC: tl.constexpr,
    D: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    COLS: tl.constexpr,
):
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
                a = tl.where(keeps(word, j, j.to(tl.int32), threshold), a * scale, 0.0)
            total += a[:, :, None] * x_j
        if DOTS:
            product = tl.sum(y_i * x_j, axis=2)
            if ADD:
                product += tl.load(dot + at, mask=here, other=0).to(ACC)
            tl.store(dot + at, product, mask=here)
    return tl.sum(total, axis=1)


@triton.jit
def block_of_rows(rowptr, listed, block, n, long, LISTED: tl.constexpr, ROWS: tl.constexpr):
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
def walk_rows(
    rowptr,
    col,
    values,
    x,
    out,
    y,
    dot,
    only,
    listed,
    wanted,
    held,
    seeds,
    n,
    long,
    threshold,
    scale,
    seed_low,
    seed_high,
    step,
    layer,
    SUMS: tl.constexpr,
    DOTS: tl.constexpr,
    ADD: tl.constexpr,
    HELD: tl.constexpr,
    DROP: tl.constexpr,
    ONLY: tl.constexpr,
    LISTED: tl.constexpr,
    WANTED: tl.constexpr,
    RELU: tl.constexpr,
    ACC: tl.constexpr,
    D: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    COLS: tl.constexpr,
):
    """`visit` for every row but the long ones.

    Rows with held_i are not summed: HELD 1, they get the row of `seeds`; 2, they get zeros (but their dots); 3, only they
    are walked, for their dots (the others' y_i are zero). DROP: sums and dots of row i are dropped or scaled up by the bits
    of (i, i). LISTED: the rows of `listed` alone, out has one row for each. WANTED: rows without wanted_i get zeros.
    RELU: the sums are gradients of y = dropout(relu(h)) and become those of h.
    """
    rows, inside, start, count = block_of_rows(rowptr, listed, tl.program_id(0), n, long, LISTED, ROWS)
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
        kept = keeps(word_of(seed_low, seed_high, step, layer), rows.to(tl.int64), rows, threshold)
        row_scale = tl.where(kept, row_scale * scale, 0.0)
    total = visit(
        col,
        values,
        x,
        y,
        dot,
        only,
        rows,
        start,
        count,
        row_scale,
        0,
        0,
        0.0,
        SUMS,
        DOTS,
        ADD,
        False,
        ONLY,
        ACC,
        D,
        X_STRIDE,
        Y_STRIDE,
        ROWS,
        STEP,
        COLS,
    )
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
def walk_chunks(
    rowptr,
    col,
    values,
    x,
    partial,
    y,
    dot,
    only,
    chunk_row,
    chunk_start,
    SUMS: tl.constexpr,
    DOTS: tl.constexpr,
    ADD: tl.constexpr,
    ONLY: tl.constexpr,
    ACC: tl.constexpr,
    D: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
    COLS: tl.constexpr,
):
    """`visit` for one chunk of a long row; its sum goes to `partial`, [chunks, d]."""
    chunk = tl.program_id(0)
    row = tl.load(chunk_row + chunk + tl.arange(0, 1))
    start = tl.load(chunk_start + chunk + tl.arange(0, 1)).to(tl.int64)
    count = tl.minimum(tl.load(rowptr + row + 1) - start, CHUNK).to(tl.int32)
    total = visit(
        col,
        values,
        x,
        y,
        dot,
        only,
        row,
        start,
        count,
        tl.full([1], 1.0, dtype=ACC),
        0,
        0,
        0.0,
        SUMS,
        DOTS,
        ADD,
        False,
        ONLY,
        ACC,
        D,
        X_STRIDE,
        Y_STRIDE,
        1,
        STEP,
        COLS,
    )
    if SUMS:
        cols = tl.arange(0, COLS)
        tl.store(partial + chunk.to(tl.int64) * D + cols[None, :], total, mask=(cols < D)[None, :])


@triton.jit
def add_chunks(
    partial,
    out,
    row,
    first,
    position,
    held,
    seeds,
    HELD: tl.constexpr,
    LISTED: tl.constexpr,
    ACC: tl.constexpr,
    D: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TILE: tl.constexpr,
    COLS: tl.constexpr,
):
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


@triton.jit
def reduce_rows(
    rowptr,
    scores,
    grad,
    out,
    n,
    long,
    long_row,
    WHAT: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
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


@triton.jit(do_not_specialize=["threshold", "seed_low", "seed_high", "layer"])
def drop_numbers(
    x,
    row,
    col,
    out,
    size,
    d,
    threshold,
    scale,
    seed_low,
    seed_high,
    step,
    layer,
    DENSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    word = word_of(seed_low, seed_high, step, layer)
    if DENSE:
        i = tl.load(row + at // d, mask=inside, other=0).to(tl.int64)
        c = (at % d).to(tl.int32)
    else:
        i = tl.load(row + at, mask=inside, other=0).to(tl.int64)
        c = tl.load(col + at, mask=inside, other=0).to(tl.int32)
    number = tl.load(x + at, mask=inside, other=0)
    tl.store(out + at, tl.where(keeps(word, i, c, threshold), number * scale, 0.0), mask=inside)
