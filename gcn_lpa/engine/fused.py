"""What makes the heart fast and changes nothing of what it computes: its loops as one operation, and results that are kept.

`propagation.py`, `model.py` and `losses.py` say what is computed. Here the same is computed with fewer passes over memory. On
a GPU a layer's product, relu, dropout and the next layer's W are one kernel, the gradients of the edge weights are summed
where they are produced, and of the last step only the rows that are read are computed. On a CPU labels of many classes walk a
block of classes at a time. A function that has nothing faster returns None, and the caller runs the loop as it is written.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gcn_lpa.engine import operations as ops
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout

TINY = 1e-6  # of label mass, so that a vote of zero has a logarithm
SMALL = 50_000  # rows below which a step is bound by its launches, and each product of its own costs more than it saves
MOST_KEPT = 2**28  # numbers that label propagation may keep for its backward pass, 1 GiB
P = ParamSpec("P")
T = TypeVar("T")


def relu_layers(
    smoothing: SparseMatrix,
    x: Tensor | SparseMatrix,
    weights: Sequence[Tensor],
    rates: tuple[float, float],
    key: Key | None = None,
    at: Tensor | None = None,
) -> Tensor | None:
    """X ← relu(A dropout(X) W) for each W, without the last relu, on a GPU.

    Few rows of a large graph are cheaper to sum first and to multiply then: (A X) W.
    """
    loops = _gpu_loops(weights[0])
    if loops is None or smoothing.pattern.is_part:
        return None
    widens = weights[-1].shape[1] > weights[-1].shape[0]
    sum_first = at is not None and len(weights) > 1 and (widens or smoothing.shape[0] >= SMALL)
    inner = list(weights[:-1] if sum_first else weights)
    if not loops.fits(inner):
        return None
    if len(weights) > 1 and isinstance(x, SparseMatrix) and x.is_identity:
        z, drop_rows = weights[0], rates[0]
    else:
        z, drop_rows = dropout(x, rates[0], key, layer=0) @ weights[0], 0.0
    options = drop_rows, rates[1], key, at, sum_first, torch.is_grad_enabled()
    out: Tensor = loops.ReluStack.apply(smoothing, _learned(smoothing), z, *options, *inner[1:])
    return out @ weights[-1] if sum_first else out


def propagate(
    walk: Callable[[Tensor], Tensor],
    transition: SparseMatrix,
    seeds: Tensor,
    iterations: int,
    clamp: bool,
    labeled: Tensor,
    at: Tensor | None,
) -> Tensor | None:
    """Y⁽ᵏ⁾ of Eqs. (1), (2) before the last reset: on a GPU as one operation, on a CPU `walk(seeds)` in blocks of classes.

    Classes never mix, so blocks are exact. A block keeps nothing for the backward pass: it walks once more there.
    """
    loops = _gpu_loops(seeds)
    if loops is not None:
        if seeds.requires_grad or not iterations or transition.pattern.is_part:
            return None
        options = seeds, labeled, iterations, clamp, at
        return loops.Propagation.apply(transition, _learned(transition), *options)  # type: ignore[no-any-return]
    width = class_block(transition.pattern.most_rows, seeds.shape[1], max(1, iterations))
    if width >= seeds.shape[1] or seeds.is_cuda or ops.is_stacked() or not torch.is_grad_enabled():
        return None
    if transition.values.requires_grad:
        _ = transition.transposed_values  # permuted once for all blocks, and not again in their second walk
    blocks = (seeds[:, k : k + width].contiguous() for k in range(0, seeds.shape[1], width))
    walked = (checkpoint(walk, block, use_reentrant=False, preserve_rng_state=False) for block in blocks)
    return torch.cat([*walked], dim=1)


def class_block(num_nodes: float, num_classes: int, steps: int) -> int:
    """How many classes may walk at a time so that their steps keep no more than MOST_KEPT numbers."""
    return max(1, min(num_classes, int(MOST_KEPT // max(1, num_nodes * steps))))


def mean_cost(values: Tensor, target: Tensor, kind: str, weight: Tensor | None = None) -> Tensor | None:
    """The mean over the rows of: cross-entropy of "logits", -log of the target's "share" of the votes, or -log of its "votes"."""
    fits = weight is None and values.dtype == torch.float32 and len(values) > 0 and values.shape[1] <= 1024
    loops = _gpu_loops(values) if fits else None
    return None if loops is None else loops.MeanCost.apply(values, target, kind, TINY)


def _gpu_loops(x: Tensor) -> ModuleType | None:
    """The loops for a tensor on a GPU; a stack of models has none."""
    if ops.is_stacked() or not ops.kernels_on(x.is_cuda).HAS_LOOPS:
        return None
    from gcn_lpa.engine import gpu_fused

    return gpu_fused


def _learned(matrix: SparseMatrix) -> Tensor | None:
    return matrix.transposed_values if matrix.values.requires_grad and torch.is_grad_enabled() else None


class Remembered(Generic[P, T]):
    """A function that keeps its last result for as long as it is called with the same arguments, whose tensors nobody wrote to.

    It keeps no graph alive that it was called with, and a copy of it remembers nothing.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self.function = function
        self.last: tuple[list[Tensor], list[Any], T] | None = None

    def __reduce__(self) -> tuple[type[Remembered[P, T]], tuple[Callable[P, T]]]:
        return Remembered, (self.function,)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> T:
        if options:
            raise TypeError("a remembered function takes its arguments by position: they tell one call from another")
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if any(tensor.requires_grad or ops.is_wrapped(tensor) for tensor in tensors):
            return self.function(*arguments, **options)  # a result with a gradient serves one backward pass
        state = [_state(argument) for argument in arguments] + [torch.is_inference_mode_enabled()]
        if self.last is None or self.last[1] != state:
            self.last = tensors, state, self.function(*arguments, **options)  # tensors: so that no id is used again
        return self.last[2]


def is_at_hand(tensor: Tensor) -> bool:
    """Whether values can be looked at: not under vmap, and not on a GPU, where a step would wait for them."""
    return tensor.device.type == "cpu" and not ops.is_wrapped(tensor)


def _state(argument: Any) -> Any:
    """What changes with an argument: of a dataclass, such as a graph, also with the tensors that are its fields."""
    if isinstance(argument, Tensor):
        return id(argument), ops.version_of(argument)
    if not dataclasses.is_dataclass(argument):
        return argument
    versions = [ops.version_of(field) for field in vars(argument).values() if isinstance(field, Tensor)]
    return weakref.ref(argument), versions
