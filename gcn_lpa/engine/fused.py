"""The loops of the heart (label propagation, convolutions, costs), each as one differentiable operation.

`propagation.py`, `model.py` and `losses.py` say what is computed. Here the same is computed with fewer passes over memory. On
a GPU a layer's product, relu, dropout and the next layer's W are one kernel, the gradients of the edge weights are summed
where they are produced, and of the last step only the rows that are read are computed. On a CPU labels of many classes walk a
block of classes at a time. A function that has nothing faster returns None, and the loop runs as it is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from gcn_lpa.engine.operations import apply, fused_backend
from gcn_lpa.engine.random import Key, dropout
from gcn_lpa.engine.remembered import is_stacked
from gcn_lpa.engine.sparse import SparseMatrix

TINY = 1e-6  # of label mass, so that a vote of zero has a logarithm
SMALL = 50_000  # rows below which a step is bound by its launches, and each product of its own costs more than it saves
MOST_KEPT = 2**28  # numbers that label propagation may keep for its backward pass, 1 GiB
P = ParamSpec("P")


def accelerated(
    fast: Callable[Concatenate[Callable[P, Tensor], P], Tensor | None],
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Run `fast(loop, …)` where it has an answer, and else the loop itself; both have the same signature."""

    def wrap(loop: Callable[P, Tensor]) -> Callable[P, Tensor]:
        @functools.wraps(loop)
        def run(*arguments: P.args, **options: P.kwargs) -> Tensor:
            result = fast(loop, *arguments, **options)
            return loop(*arguments, **options) if result is None else result

        return run

    return wrap


def relu_layers(
    loop: Any,
    smoothing: SparseMatrix,
    x: Tensor | SparseMatrix,
    weights: Sequence[Tensor],
    rates: tuple[float, float],
    key: Key | None = None,
    at: Tensor | None = None,
) -> Tensor | None:
    """X ← relu(A dropout(X) W) for each W, without the last relu.

    Few rows of a large graph are cheaper to sum first and to multiply then: (A X) W.
    """
    kernels = fused_backend(weights[0])
    if kernels is None or smoothing.pattern.is_part:
        return None
    widens = weights[-1].shape[1] > weights[-1].shape[0]
    sum_first = at is not None and len(weights) > 1 and (widens or smoothing.shape[0] >= SMALL)
    inner = list(weights[:-1] if sum_first else weights)
    if not kernels.fits([w.shape[1] for w in inner], weights[0].dtype):
        return None
    if len(weights) > 1 and isinstance(x, SparseMatrix) and x.is_identity:
        z, drop_rows = weights[0], rates[0]
    else:
        z, drop_rows = dropout(x, rates[0], key, layer=0) @ weights[0], 0.0
    options = drop_rows, rates[1], key, at, sum_first, torch.is_grad_enabled()
    out = apply(_ReluStack, smoothing, _learned(smoothing), z, *options, *inner[1:])
    return out @ weights[-1] if sum_first else out


def propagate(
    loop: Callable[..., Tensor],
    transition: SparseMatrix,
    seeds: Tensor,
    iterations: int,
    *,
    clamp: bool = True,
    labeled: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor | None:
    """Y⁽ᵏ⁾ of Eqs. (1), (2) before the last reset."""
    kernels = fused_backend(seeds)
    if kernels is None:
        width = class_block(transition.pattern.most_rows, seeds.shape[1], iterations or 1)
        is_whole = width >= seeds.shape[1] or seeds.is_cuda or is_stacked() or not torch.is_grad_enabled()
        options = {"clamp": clamp, "labeled": labeled, "at": at}
        return None if is_whole else _in_class_blocks(loop, transition, seeds, width, iterations, **options)
    if seeds.requires_grad or not iterations or transition.pattern.is_part:
        return None
    held = seeds.sum(dim=1) > 0 if labeled is None else labeled
    return apply(_Propagation, transition, _learned(transition), seeds, held, iterations, clamp, at)


def _in_class_blocks(
    loop: Callable[..., Tensor],
    transition: SparseMatrix,
    seeds: Tensor,
    width: int,
    iterations: int,
    **options: Any,
) -> Tensor:
    """The walk of a few classes at a time. Classes never mix, so this is exact.

    A block keeps nothing for the backward pass: it walks once more there.
    """
    labeled = seeds.detach().sum(dim=1) > 0 if options["labeled"] is None else options["labeled"]
    if transition.values.requires_grad:
        _ = transition.transposed_values  # permuted once for all blocks, and not again in their second walk
    blocks = (seeds[:, k : k + width].contiguous() for k in range(0, seeds.shape[1], width))

    def walk(block: Tensor) -> Tensor:
        return loop(transition, block, iterations, **{**options, "labeled": labeled})

    walked = [checkpoint(walk, block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(walked, dim=1)


def class_block(num_nodes: float, num_classes: int, steps: int) -> int:
    """How many classes may walk at a time so that their steps keep no more than MOST_KEPT numbers."""
    return max(1, min(num_classes, int(MOST_KEPT // max(1, num_nodes * steps))))


COSTS = {"logits": 0, "share": 1, "votes": 2}


def mean_cost(loop: Any, values: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> Tensor | None:
    """The mean over the rows of: cross-entropy of "logits", -log of the target's "share" of the votes, or -log of its "votes"."""
    kernels = fused_backend(values)
    if kernels is None or weight is not None or len(values) == 0:
        return None
    if values.dtype != torch.float32 or values.shape[1] > 1024:
        return None
    return apply(_MeanCost, values, target, COSTS[kind], TINY)


def _learned(matrix: SparseMatrix) -> Tensor | None:
    return matrix.transposed_values if matrix.values.requires_grad and torch.is_grad_enabled() else None


class _ReluStack(torch.autograd.Function):
    """Ends in A (x W) with the last of `weights`; with `sum_first`, in A x with the x behind them."""

    @staticmethod
    def forward(
        ctx: Any,
        matrix: SparseMatrix,
        values_t: Tensor | None,
        z: Tensor,
        row_rate: float,
        rate: float,
        key: Key | None,
        rows: Tensor | None,
        sum_first: bool,
        keeps: bool,
        *weights: Tensor,
    ) -> Tensor:
        kernels = fused_backend(z)
        assert kernels is not None
        step = key.step_tensor(z.device) if key is not None else None
        weights = tuple(w.contiguous() for w in weights)
        layers = [*weights, *[None] * sum_first]
        drop = [kernels.bits(rate, key.seed, step, k + 1) if key and rate else None for k in range(len(layers))]
        drop_rows = kernels.bits(row_rate, key.seed, step, 0) if key and row_rate else None
        ctx.rows = None if rows is None else kernels.listed(rows, matrix.pattern.columns)
        values = matrix.values.detach()
        out, xs, zs = kernels.relu_stack(matrix.pattern.rows, values, z, layers, drop, drop_rows, ctx.rows, keeps)
        ctx.matrix, ctx.kernels, ctx.drop_rows = matrix, kernels, drop_rows
        ctx.scale = 1 / (1 - rate) if key is not None else 1.0
        ctx.save_for_backward(values_t, *weights, *xs, *zs)
        ctx.counts, ctx.width = (len(weights), len(xs)), z.shape[1]
        return out[:, : weights[-1].shape[1] if weights else z.shape[1]]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        num_weights, depth = ctx.counts
        weights, rest = list(ctx.saved_tensors[1 : 1 + num_weights]), ctx.saved_tensors[1 + num_weights :]
        layers = weights + [None] * (depth - num_weights)
        values = ctx.matrix.transposed_values.detach()
        dot = torch.empty_like(values) if ctx.needs_input_grad[1] else None
        first, grads = ctx.kernels.relu_stack_backward(
            ctx.matrix.pattern.columns,
            values,
            grad,
            layers,
            rest[:depth],
            rest[depth:],
            ctx.scale,
            dot,
            ctx.drop_rows,
            ctx.rows,
        )
        return None, dot, first[:, : ctx.width], None, None, None, None, None, None, *grads


class _Propagation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        matrix: SparseMatrix,
        values_t: Tensor | None,
        seeds: Tensor,
        held: Tensor,
        iterations: int,
        clamp: bool,
        rows: Tensor | None,
    ) -> Tensor:
        kernels = fused_backend(seeds)
        assert kernels is not None
        ctx.rows = None if rows is None else kernels.listed(rows, matrix.pattern.columns)
        values = matrix.values.detach()
        keeps = values_t is not None
        steps = kernels.propagation(matrix.pattern.rows, values, seeds, held, iterations, clamp, ctx.rows, keeps)
        ctx.matrix, ctx.kernels, ctx.clamp = matrix, kernels, clamp
        ctx.save_for_backward(values_t, held, *steps)
        return steps[-1][:, : seeds.shape[1]]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values_t, held, *steps = ctx.saved_tensors
        dot = ctx.kernels.propagation_backward(
            ctx.matrix.pattern.columns, values_t.detach(), grad, steps, held, ctx.clamp, ctx.rows
        )
        return None, dot, None, None, None, None, None


class _MeanCost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, target: Tensor, kind: int, tiny: float) -> Tensor:
        kernels = fused_backend(values)
        assert kernels is not None
        ctx.kernels, ctx.options = kernels, (kind, tiny)
        ctx.save_for_backward(values, target)
        return kernels.costs(values, target, kind, tiny).mean()  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values, target = ctx.saved_tensors
        return ctx.kernels.costs_backward(values, target, grad, *ctx.options), None, None, None
