"""A block of columns at a time, where all at once would keep too much: labels that walk, and layers without a gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gcn_lpa.engine.remembered import is_stacked
from gcn_lpa.engine.sparse import SparseMatrix

FEW, COLUMNS = 1 << 22, 32  # numbers of a layer that is computed at once, 16 MB, and columns of a larger one at a time
MOST_KEPT = 2**28  # numbers that label propagation may keep for its backward pass, 1 GiB


def in_class_blocks(walk: Callable[[Tensor], Tensor], transition: SparseMatrix, seeds: Tensor, steps: int) -> Tensor:
    """`walk` of the seeds, a block of classes at a time where all of them would keep too much for the backward pass.

    Classes walk beside each other and never mix, so this is exact. A block keeps nothing: it walks once more in the backward
    pass. On a GPU, and in a stack of models, all classes walk at once.
    """
    width = class_block(transition.pattern.most_rows, seeds.shape[1], steps)
    if width >= seeds.shape[1] or seeds.is_cuda or is_stacked():
        return walk(seeds)
    if transition.values.requires_grad:
        _ = transition.transposed_values  # permuted once for all blocks, and not again in their second walk
    blocks = (seeds[:, k : k + width].contiguous() for k in range(0, seeds.shape[1], width))
    walked = [checkpoint(walk, block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(walked, dim=1)


def class_block(num_nodes: float, num_classes: int, steps: int) -> int:
    """How many classes may walk at a time so that their steps keep no more than MOST_KEPT numbers."""
    return max(1, min(num_classes, int(MOST_KEPT // max(1, num_nodes * steps))))


def by_columns(make: Callable[[slice], Tensor], num_rows: int, width: int, *, is_gpu: bool) -> Tensor:
    """`make` of all columns, [n, width]; of a large layer without a gradient, on a CPU, a block of columns at a time.

    So what it is made of is held for some columns alone. On a GPU the launches would cost more than they save.
    """
    if torch.is_grad_enabled() or is_stacked() or num_rows * width <= FEW or width <= COLUMNS or is_gpu:
        return make(slice(None))
    first = make(slice(0, COLUMNS))
    found = first.new_empty(num_rows, width)
    found[:, :COLUMNS] = first
    for start in range(COLUMNS, width, COLUMNS):
        found[:, start : start + COLUMNS] = make(slice(start, start + COLUMNS))
    return found


def added(product: Tensor, more: Tensor, x: Tensor | SparseMatrix) -> Tensor:
    """x W + more, in place where x W is an array of its own: with the identity for x it is W itself."""
    return product.add_(more) if isinstance(x, Tensor) else product + more
