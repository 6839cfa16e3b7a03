"""The Triton programs that walk the rows of a sparse matrix; `gpu_kernels.py` launches them.

A program owns a block of rows and walks their entries side by side, so a row is summed by one program in one order:
no atomics, the same bits every time. A row longer than `long` entries would leave its neighbours waiting; such rows (the
hubs of a power-law graph) are cut into chunks that go to programs of their own. The sums of the chunks are then walked like
entries: a hub is a row of few chunks (LISTED 2), and all that follows a sum (relu, W, seeds) is done for it in the same way.

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

    LISTED 1: of the n rows in `listed`. LISTED 2: of the n long rows in `listed`, whose entries are their chunks: rowptr has
    an element for each of these alone.
    """
    at = block * ROWS + tl.arange(0, ROWS)
    inside = at < n
    rows = at
    if LISTED > 0:
        rows = tl.load(listed + at, mask=inside, other=0)
    if LISTED < 2:
        at = rows
    start = tl.load(rowptr + at, mask=inside, other=0)
    count = tl.load(rowptr + at + 1, mask=inside, other=0) - start
    if LISTED < 2:
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
    position,
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
    PLACED: tl.constexpr,
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
    BLOCKS: tl.constexpr,
):
    """`visit` for every row but the long ones, or for those of `block_of_rows`, and for each of BLOCKS blocks of D columns.

    Rows with held_i are not summed: HELD 1, they get the row of `seeds`; 2, they get zeros (but their dots); 3, only they
    are walked, for their dots (the others' y_i are zero). DROP: sums and dots of row i are dropped or scaled up by the bits
    of (i, i). PLACED: the sum of row i goes to row position_i - 1 of out, and nowhere where that is -1. WANTED: rows without
    wanted_i get zeros. RELU: the sums are gradients of y = dropout(relu(h)) and become those of h.
    """
    rows, inside, start, count = block_of_rows(rowptr, listed, tl.program_id(0), n, long, LISTED, ROWS)
    if BLOCKS > 1:
        shift = tl.program_id(1) * D
        x, out, y, seeds = x + shift, out + shift, y + shift, seeds + shift
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
        if PLACED:
            at = tl.load(position + rows, mask=inside, other=0).to(tl.int64) - 1
            place, ours = at[:, None] * OUT_STRIDE + cols[None, :], ours & (at >= 0)[:, None]
        tl.store(out + place, total, mask=ours)


@triton.jit(do_not_specialize=["threshold", "seed_low", "seed_high", "layer"])
def walk_chunks(
    col,
    values,
    x,
    partial,
    y,
    dot,
    only,
    chunk_row,
    chunk_start,
    chunk_end,
    threshold,
    scale,
    seed_low,
    seed_high,
    step,
    layer,
    SUMS: tl.constexpr,
    DOTS: tl.constexpr,
    ADD: tl.constexpr,
    DROP: tl.constexpr,
    ONLY: tl.constexpr,
    ACC: tl.constexpr,
    D: tl.constexpr,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    STEP: tl.constexpr,
    COLS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """`visit` for one chunk of a long row, and one block of D columns; its sum goes to `partial`, [chunks, BLOCKS · D].

    DROP 1: dots are dropped or scaled up as those of their row i are in `walk_rows`; the sums are only where they end.
    DROP 2: x_j is, as in `visit`.
    """
    chunk = tl.program_id(0)
    if BLOCKS > 1:
        shift = tl.program_id(1) * D
        x, y, partial = x + shift, y + shift, partial + shift
    row = tl.load(chunk_row + chunk + tl.arange(0, 1))
    start = tl.load(chunk_start + chunk + tl.arange(0, 1)).to(tl.int64)
    count = (tl.load(chunk_end + chunk + tl.arange(0, 1)).to(tl.int64) - start).to(tl.int32)
    word = tl.zeros([], dtype=tl.uint32)
    row_scale = tl.full([1], 1.0, dtype=ACC)
    if DROP > 0:
        word = word_of(seed_low, seed_high, step, layer)
    if DROP == 1:
        row_scale = tl.where(keeps(word, row.to(tl.int64), row.to(tl.int32), threshold), row_scale * scale, 0.0)
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
        row_scale,
        word,
        threshold,
        scale,
        SUMS,
        DOTS,
        ADD,
        DROP == 2,
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
        place = chunk.to(tl.int64) * (BLOCKS * D) + cols[None, :]
        tl.store(partial + place, total, mask=(cols < D)[None, :])


@triton.jit
def reduce_rows(
    rowptr,
    scores,
    grad,
    out,
    listed,
    n,
    long,
    WHAT: tl.constexpr,
    LISTED: tl.constexpr,
    ACC: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Row sums (WHAT 0), softmax (1) or the gradient of softmax (2), of rows of at most `long` entries, TILE at a time."""
    rows, inside, start, count = block_of_rows(rowptr, listed, tl.program_id(0), n, long, LISTED, ROWS)
    most = tl.max(count, axis=0)
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
    seeds,
    size,
    d,
    threshold,
    scale,
    seed_low,
    seed_high,
    step,
    layer,
    DENSE: tl.constexpr,
    MANY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Dropout of `size` numbers. MANY: of so many of each model, by its own seed of `seeds`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    word = word_of(seed_low, seed_high, step, layer)
    if MANY:
        seed = tl.load(seeds + tl.program_id(1))
        word = word_of(seed & 0xFFFFFFFF, seed >> 32, step, layer)
    if DENSE:
        i = tl.load(row + at // d, mask=inside, other=0).to(tl.int64)
        c = (at % d).to(tl.int32)
    else:
        i = tl.load(row + at, mask=inside, other=0).to(tl.int64)
        c = tl.load(col + at, mask=inside, other=0).to(tl.int32)
    if MANY:
        at += tl.program_id(1).to(tl.int64) * size
    number = tl.load(x + at, mask=inside, other=0)
    tl.store(out + at, tl.where(keeps(word, i, c, threshold), number * scale, 0.0), mask=inside)
