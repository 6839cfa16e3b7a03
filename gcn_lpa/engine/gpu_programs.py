"""The Triton programs that walk the rows of a sparse matrix, and those of the loops of `fused.py`; `gpu_kernels.py` launches them.

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

BITS = ["threshold", "seed_low", "seed_high", "layer"]  # of a layer's dropout: one program serves all layers


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
    col, values, x, y, dot, only, rows, start, count, y_scale, word, threshold, scale,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, ONLY: tl.constexpr,
    ACC: tl.constexpr, D: tl.constexpr, X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr,
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


@triton.jit(do_not_specialize=BITS)
def walk_rows(
    rowptr, col, values, x, out, y, dot, only, listed, position, wanted, held, seeds, n, long,
    threshold, scale, seed_low, seed_high, step, layer,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, HELD: tl.constexpr, DROP: tl.constexpr,
    ONLY: tl.constexpr, LISTED: tl.constexpr, PLACED: tl.constexpr, WANTED: tl.constexpr, RELU: tl.constexpr,
    ACC: tl.constexpr, D: tl.constexpr, X_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
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
        col, values, x, y, dot, only, rows, start, count, row_scale, 0, 0, 0.0,
        SUMS, DOTS, ADD, False, ONLY, ACC, D, X_STRIDE, Y_STRIDE, ROWS, STEP, COLS,
    )  # fmt: skip
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


@triton.jit(do_not_specialize=BITS)
def walk_chunks(
    col, values, x, partial, y, dot, only, chunk_row, chunk_start, chunk_end,
    threshold, scale, seed_low, seed_high, step, layer,
    SUMS: tl.constexpr, DOTS: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, ONLY: tl.constexpr,
    ACC: tl.constexpr, D: tl.constexpr, X_STRIDE: tl.constexpr, Y_STRIDE: tl.constexpr, STEP: tl.constexpr,
    COLS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
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
        col, values, x, y, dot, only, row, start, count, row_scale, word, threshold, scale,
        SUMS, DOTS, ADD, DROP == 2, ONLY, ACC, D, X_STRIDE, Y_STRIDE, 1, STEP, COLS,
    )  # fmt: skip
    if SUMS:
        cols = tl.arange(0, COLS)
        place = chunk.to(tl.int64) * (BLOCKS * D) + cols[None, :]
        tl.store(partial + place, total, mask=(cols < D)[None, :])


@triton.jit
def reduce_rows(
    rowptr, scores, grad, out, listed, n, long,
    WHAT: tl.constexpr, LISTED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
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


@triton.jit(do_not_specialize=BITS)
def drop_numbers(
    x, row, col, out, seeds, size, d, threshold, scale, seed_low, seed_high, step, layer,
    DENSE: tl.constexpr, MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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


@triton.jit(do_not_specialize=[*BITS, *(f"in_{name}" for name in BITS)])
def layer_forward(
    rowptr, col, values, z, weight, x, z_next, wanted, listed, n, long,
    threshold, scale, seed_low, seed_high, step, layer,
    in_threshold, in_scale, in_seed_low, in_seed_high, in_step, in_layer,
    DROP: tl.constexpr, IN_DROP: tl.constexpr, LAST: tl.constexpr, WANTED: tl.constexpr, LISTED: tl.constexpr,
    D: tl.constexpr, STRIDE: tl.constexpr, D_NEXT: tl.constexpr, NEXT_STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, COLS: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    """x = dropout(relu(A z)) and z' = x W': one layer of Eq. (3) and the product that starts the next, in one pass.

    IN_DROP: z is the W of identity features, whose rows are dropped here. LAST: x alone is wanted. WANTED: rows without
    wanted_i get zeros. LISTED is that of `block_of_rows`.
    """
    rows, inside, start, count = block_of_rows(rowptr, listed, tl.program_id(0), n, long, LISTED, ROWS)
    if WANTED:
        count = tl.where(tl.load(wanted + rows, mask=inside, other=0) != 0, count, 0)
    word = tl.zeros([], dtype=tl.uint32)
    if IN_DROP:
        word = word_of(in_seed_low, in_seed_high, in_step, in_layer)
    h = visit(
        col, values, z, z, z, z, rows, start, count, in_scale, word, in_threshold, in_scale,
        True, False, False, IN_DROP, 0, tl.float32, D, STRIDE, STRIDE, ROWS, STEP, COLS,
    )  # fmt: skip
    h = tl.maximum(h, 0.0)
    ids, cols, next_cols = rows.to(tl.int64), tl.arange(0, COLS), tl.arange(0, NEXT)
    if DROP:
        keep = keeps(word_of(seed_low, seed_high, step, layer), ids[:, None], cols[None, :], threshold)
        h = tl.where(keep, h * scale, 0.0)
    tl.store(x + ids[:, None] * D + cols[None, :], h, mask=inside[:, None] & (cols < D)[None, :])
    if not LAST:
        in_weight = (cols < D)[:, None] & (next_cols < D_NEXT)[None, :]
        w = tl.load(weight + cols[:, None] * D_NEXT + next_cols[None, :], mask=in_weight, other=0)
        product = tl.dot(h, w, input_precision=PRECISION)
        ours = inside[:, None] & (next_cols < NEXT_STRIDE)[None, :]  # the padding too: it must be zero
        tl.store(z_next + ids[:, None] * NEXT_STRIDE + next_cols[None, :], product, mask=ours)


@triton.jit
def dense_backward(
    grad_z, x, weight, below, partial, n, scale,
    D: tl.constexpr, STRIDE: tl.constexpr, BELOW: tl.constexpr, BELOW_STRIDE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, BELOW_COLS: tl.constexpr,
):  # fmt: skip
    """The backward pass of z = x W and x = dropout(relu(h)) in one pass over the rows:

    dW = Σ_j x_j dz_jᵀ,   dh_j = (dz_j Wᵀ) ∘ [x_j > 0] · scale.
    A program takes every num_programs-th block of rows, so that its share of dW stays in registers.
    """
    cols, below_cols = tl.arange(0, COLS), tl.arange(0, BELOW_COLS)
    in_weight = (cols < D)[:, None] & (below_cols < BELOW)[None, :]
    w_t = tl.load(weight + below_cols[None, :] * D + cols[:, None], mask=in_weight, other=0)
    grad_weight = tl.zeros([BELOW_COLS, COLS], dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside, ids = rows < n, rows.to(tl.int64)
        in_row, ours = inside[:, None] & (cols < D)[None, :], inside[:, None] & (below_cols < BELOW)[None, :]
        dz_j = tl.load(grad_z + ids[:, None] * STRIDE + cols[None, :], mask=in_row, other=0)
        x_j = tl.load(x + ids[:, None] * BELOW + below_cols[None, :], mask=ours, other=0)
        grad_weight += tl.dot(tl.trans(x_j), dz_j, input_precision=PRECISION)
        down = tl.where(x_j > 0, tl.dot(dz_j, w_t, input_precision=PRECISION) * scale, 0.0)
        tl.store(below + ids[:, None] * BELOW_STRIDE + below_cols[None, :], down, mask=ours)
    spot = partial + tl.program_id(0).to(tl.int64) * BELOW * D
    of_weight = (below_cols < BELOW)[:, None] & (cols < D)[None, :]
    tl.store(spot + below_cols[:, None] * D + cols[None, :], grad_weight, mask=of_weight)


@triton.jit
def cost_rows(
    values, target, out, upstream, m, tiny,
    KIND: tl.constexpr, BACKWARD: tl.constexpr, D: tl.constexpr, STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The cost of each row of `values` against its target class, or (BACKWARD) the gradient of their mean.

    KIND 0: cross-entropy of logits; 1: -log of the target's share of the votes; 2: -log of the target's votes.
    """
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, ids, cols = at < m, at.to(tl.int64)[:, None], tl.arange(0, COLS)
    own = tl.load(target + at, mask=inside, other=0).to(tl.int32)
    in_row = inside[:, None] & (cols < D)[None, :]
    row = tl.load(values + ids * STRIDE + cols[None, :], mask=in_row, other=0).to(tl.float32)
    is_own = cols[None, :] == own[:, None]
    if KIND == 0:
        row = tl.where(in_row, row, float("-inf"))
        shifted = row - tl.max(row, axis=1)[:, None]
        weight = tl.exp(shifted)
        total = tl.sum(weight, axis=1)
        if BACKWARD:
            result = weight / total[:, None] - tl.where(is_own, 1.0, 0.0)
        else:
            cost = tl.log(total) - tl.sum(tl.where(is_own, shifted, 0.0), axis=1)
    else:
        votes = tl.sum(tl.where(is_own, row, 0.0), axis=1) + tiny
        total = tl.sum(row, axis=1) + D * tiny
        if BACKWARD:
            result = tl.where(is_own, -1.0 / votes[:, None], 0.0)
            if KIND == 1:
                result += 1.0 / total[:, None]
        else:
            cost = -tl.log(votes)
            if KIND == 1:
                cost += tl.log(total)
    if BACKWARD:
        result = result * (tl.load(upstream) / m)
        tl.store(out + ids * OUT_STRIDE + cols[None, :], result, mask=in_row)
    else:
        tl.store(out + at, cost, mask=inside)
