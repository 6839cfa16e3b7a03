"""The loops of `fused.py` on a GPU, each a differentiable operation: layers, propagation and costs with few passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gcn_lpa.engine import gpu_programs as programs
from gcn_lpa.engine.gpu_kernels import ENDLESS, HUBS, Bits, Listed, bits, listed, schedule, walk
from gcn_lpa.engine.operations import version_of

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix

PRECISION = "ieee"  # float32 products; "tf32x3" is as exact and slightly faster, see benchmarks/results
FORWARD = (16, 2, 1)  # rows a program, entries a step, warps: measured on an H200
FORWARD_HUBS = (16, 2, 4)  # for rows whose entries are chunks; tl.dot wants sixteen
DENSE = {16: (32, 1), 32: (32, 1), 64: (16, 1)}  # columns: (rows a program, warps)
PROGRAMS = 132 * 8  # of the dense backward: enough to fill the chip, few enough that adding their dW is cheap
COSTS = {"logits": 0, "share": 1, "votes": 2}


def fits(weights: Sequence[Tensor]) -> bool:
    """Whether the fused layers can run: float32, layers a program can hold."""
    return weights[0].dtype == torch.float32 and max(w.shape[1] for w in weights) <= 64


class ReluStack(torch.autograd.Function):
    """A z for the last z of: x = dropout(relu(A z)), z ← x W, for each W; with `sum_first` once more, for z ← x.

    The gradient of the values is given to `values_t`, in the order of the transpose. The rows of the first z are dropped at
    `row_rate`, without being written. `at`: of A z these rows alone. Without `keeps` there is no backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        matrix: SparseMatrix,
        values_t: Tensor | None,
        z: Tensor,
        row_rate: float,
        rate: float,
        key: Key | None,
        at: Tensor | None,
        sum_first: bool,
        keeps: bool,
        *weights: Tensor,
    ) -> Tensor:
        pattern, values = matrix.pattern, matrix.values.detach()
        layers = [*(w.contiguous() for w in weights), *[None] * sum_first]
        step = None if key is None else key.step_tensor(z.device)
        rows = None if at is None else listed(at, pattern.T)
        n, width = pattern.shape[0], z.shape[1]

        def random(of: float, layer: int) -> Bits | None:
            return None if key is None or step is None or not of else bits(of, key.seed, step, layer)

        drop_rows = random(row_rate, 0)
        xs: list[Tensor] = []
        zs = [_pad(z)]
        for k, weight in enumerate(layers):
            x, drop = z.new_empty(n, width), random(rate, k + 1)
            width = width if weight is None else weight.shape[1]
            z_next = x if weight is None else _padded(n, width, z)
            wanted = None if rows is None else rows.within(len(layers) - k)
            _layer(pattern, values, zs[-1], weight, x, z_next, drop, drop_rows if k == 0 else None, wanted)
            xs, zs = ([*xs, x], [*zs, z_next]) if keeps else ([], [z_next])
        out = torch.empty_like(zs[-1]) if rows is None else zs[-1].new_empty(len(rows.rows), zs[-1].shape[1])
        walk(pattern, zs[-1], values=values, out=out, of=rows)
        ctx.matrix, ctx.rows, ctx.drop_rows, ctx.width = matrix, rows, drop_rows, z.shape[1]
        ctx.scale = 1 / (1 - rate) if key is not None else 1.0
        ctx.depth = len(layers)
        ctx.save_for_backward(values_t, *layers, *xs, *zs)
        return out[:, :width]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        _, *kept = ctx.saved_tensors
        layers, xs, zs = kept[: ctx.depth], kept[ctx.depth : 2 * ctx.depth], kept[2 * ctx.depth :]
        transpose, values = ctx.matrix.pattern.T, ctx.matrix.transposed_values.detach()
        dot = torch.empty_like(values) if ctx.needs_input_grad[1] else None
        grads: list[Tensor] = []
        for hops, (weight, x, z) in enumerate(zip(reversed(layers), reversed(xs), reversed(zs[1:]), strict=True)):
            d_below, sparsity = x.shape[1], _sparsity(ctx.rows, hops)
            below = _padded(len(x), d_below, z, zero=d_below % 8 > 0)
            if weight is None:
                walk(transpose, grad.contiguous(), values=values, out=below, y=x, dot=dot, relu=ctx.scale, **sparsity)
            else:
                grad_z = torch.empty_like(z)
                walk(transpose, _pad(grad), values=values, out=grad_z, y=z, dot=dot, add=hops > 0, **sparsity)
                grads.insert(0, _through_weight(grad_z, x, weight, below, ctx.scale))
            grad = below
        first = torch.empty_like(zs[0])
        options = {"add": len(xs) > 0, "drop": ctx.drop_rows, **_sparsity(ctx.rows, len(xs))}
        walk(transpose, _pad(grad), values=values, out=first, y=zs[0], dot=dot, **options)
        return None, dot, first[:, : ctx.width], None, None, None, None, None, None, *grads


def _layer(
    pattern: Pattern,
    values: Tensor,
    z: Tensor,
    weight: Tensor | None,
    x: Tensor,
    z_next: Tensor,
    drop: Bits | None,
    drop_rows: Bits | None,
    wanted: Tensor | None,
) -> None:
    """Launch `layer_forward` over all rows: the short ones by their entries, the long ones by their chunks."""
    plan, nothing, d = schedule(pattern), Bits(0, 1.0, 0, 0, pattern.rowptr, 0), x.shape[1]
    d_next = d if weight is None else weight.shape[1]
    flags = {"DROP": drop is not None, "LAST": weight is None, "WANTED": wanted is not None, "PRECISION": PRECISION}
    flags |= {"D": d, "D_NEXT": d_next, "NEXT_STRIDE": z_next.stride(0), "COLS": _block(d), "NEXT": _block(d_next)}

    def run(matrix: tuple[Tensor, ...], z: Tensor, rows: Tensor | None, n: int, first: Bits | None, by: int) -> None:
        block, step, warps = FORWARD_HUBS if by == 2 else FORWARD
        places = x if wanted is None else wanted, x if rows is None else rows
        operands = *matrix, z, x if weight is None else weight, x, z_next, *places, n, ENDLESS
        options = {"LISTED": by, "IN_DROP": first is not None, "STRIDE": z.stride(0), "ROWS": block, "STEP": step}
        random, grid = (*(drop or nothing), *(first or nothing)), (triton.cdiv(n, block),)
        programs.layer_forward[grid](*operands, *random, **flags, **options, num_warps=warps)

    n = pattern.shape[0] if plan.short is None else len(plan.short)
    if n:
        run((pattern.rowptr, pattern.col, values), z, plan.short, n, drop_rows, int(plan.short is not None))
    if plan.long is None:
        return
    long, stride = plan.long, z.stride(0)
    partial = z.new_empty(len(long.chunk), d)
    operands = pattern.col, values, z, partial, z, z, z, long.chunk_row, long.chunk_start, long.chunk_end
    options = {"SUMS": True, "DOTS": False, "ADD": False, "DROP": 2 if drop_rows is not None else 0, "ONLY": 0}
    options |= {"D": d, "X_STRIDE": stride, "Y_STRIDE": stride, "STEP": HUBS[1], "COLS": _block(d), "BLOCKS": 1}
    random = drop_rows or nothing
    programs.walk_chunks[(len(long.chunk),)](*operands, *random, ACC=tl.float32, **options, num_warps=HUBS[2])
    run((long.first, long.chunk, long.one), partial, long.row, len(long.row), None, 2)


def _sparsity(rows: Listed | None, hops: int) -> dict[str, Any]:
    """Which rows of a gradient are not zero, so many hops before the rows that were asked for; as options of `walk`."""
    if rows is None:
        return {}
    return {"only": rows} if hops == 0 else {"nonzero": rows.within(hops)}


def _through_weight(grad_z: Tensor, x: Tensor, weight: Tensor, below: Tensor, scale: float) -> Tensor:
    """The gradient of W in z = x W; that of h in x = dropout(relu(h)) is written to `below`."""
    (n, _), (d_below, d) = x.shape, weight.shape
    rows, warps = DENSE[max(_block(d), _block(d_below))]
    number = min(PROGRAMS, triton.cdiv(n, rows))
    partial = x.new_empty(number, d_below, d)
    options: dict[str, Any] = {"D": d, "STRIDE": grad_z.stride(0), "ROWS": rows}
    options |= {"BELOW": d_below, "BELOW_STRIDE": below.stride(0)}
    options |= {"PRECISION": PRECISION, "COLS": _block(d), "BELOW_COLS": _block(d_below), "num_warps": warps}
    programs.dense_backward[(number,)](grad_z, x, weight, below, partial, n, scale, **options)
    return partial.sum(0)


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


class Propagation(torch.autograd.Function):
    """Y⁽ᵏ⁾ of Eqs. (1), (2): `held` rows are reset between iterations but not after the last. `at`: of Y⁽ᵏ⁾ these rows alone."""

    @staticmethod
    def forward(
        ctx: Any,
        matrix: SparseMatrix,
        values_t: Tensor | None,
        seeds: Tensor,
        held: Tensor,
        iterations: int,
        clamp: bool,
        at: Tensor | None,
    ) -> Tensor:
        rows = None if at is None else listed(at, matrix.pattern.T)
        steps = propagation(matrix, seeds, held, iterations, clamp, rows, keeps=values_t is not None)
        ctx.matrix, ctx.clamp, ctx.rows = matrix, clamp, rows
        ctx.save_for_backward(values_t, held, *steps)
        return steps[-1][:, : seeds.shape[1]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values_t, held, *steps = ctx.saved_tensors
        values, transpose, last = values_t.detach(), ctx.matrix.pattern.T, len(steps) - 1
        dot = torch.empty_like(values) if last > 1 else torch.zeros_like(values)
        grad = _pad(grad)
        for k in reversed(range(1, last)):
            below, sparsity = torch.empty_like(steps[k]), _sparsity(ctx.rows, last - 1 - k)
            options = {"add": k < last - 1, "held": held, "mode": 2 if ctx.clamp else 0, **sparsity}
            walk(transpose, grad, values=values, out=below, y=steps[k], dot=dot, **options)
            grad = below
        options = {"add": last > 1, "held": held, "mode": 3, **_sparsity(ctx.rows, last - 1)}
        walk(transpose, grad, y=steps[0], dot=dot, **options)  # others' y_i are zero
        return None, dot, None, None, None, None, None


def propagation(
    matrix: SparseMatrix, seeds: Tensor, held: Tensor, iterations: int, clamp: bool, rows: Listed | None, keeps: bool
) -> list[Tensor]:
    """Y⁽⁰⁾ … Y⁽ᵏ⁾, padded; of the last one `rows` alone. Without `keeps` only the first and the last."""
    version = version_of(seeds)
    if seeds.__dict__.get("padded", (None,))[0] != version:
        seeds.__dict__["padded"] = version, _pad(seeds)  # the same seeds serve every step
    steps, values = [seeds.__dict__["padded"][1]], matrix.values.detach()
    for k in range(iterations):
        is_last = k == iterations - 1
        of = rows if is_last else None
        out = steps[0].new_empty(matrix.shape[0] if of is None else len(of.rows), steps[0].shape[1])
        reset = {"held": held, "seeds": steps[0], "mode": 1 if clamp and not is_last else 0}
        nonzero = held if k == 0 else None  # at first only the seeds have a row that is not zero
        wanted = None if rows is None else rows.within(iterations - 1 - k)
        walk(matrix.pattern, steps[-1], values=values, out=out, of=of, wanted=wanted, nonzero=nonzero, **reset)
        steps.append(out)
        if not keeps:
            del steps[1:-1]
    return steps


class MeanCost(torch.autograd.Function):
    """The mean cost of the rows, see `cost_rows`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, target: Tensor, kind: str, tiny: float) -> Tensor:
        ctx.options = COSTS[kind], tiny
        ctx.save_for_backward(values, target)
        costs = torch.empty(len(values), dtype=torch.float32, device=values.device)
        return _costs(values, target, costs, None, *ctx.options).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values, target = ctx.saved_tensors
        return _costs(values, target, values.new_empty(values.shape), grad.contiguous(), *ctx.options), None, None, None


def _costs(values: Tensor, target: Tensor, out: Tensor, upstream: Tensor | None, kind: int, tiny: float) -> Tensor:
    (m, d), cols = values.shape, max(8, triton.next_power_of_2(values.shape[1]))
    rows, given = max(1, 1024 // cols), out if upstream is None else upstream
    options: dict[str, Any] = {"D": d, "STRIDE": values.stride(0), "OUT_STRIDE": out.stride(0)}
    options |= {"ROWS": rows, "COLS": cols, "KIND": kind, "BACKWARD": upstream is not None}
    programs.cost_rows[(triton.cdiv(m, rows),)](values, target, out, given, m, tiny, **options)
    return out
