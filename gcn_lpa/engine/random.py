"""Random bits by counter: a hash of (seed, step, layer, row id, column), the same on every device and in every batch.

First weights come from a `torch.Generator` instead: they are drawn once, on the CPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gcn_lpa.engine.operations import Dropout, apply


class Key(NamedTuple):
    """Names the random bits of one training step. The same key gives the same bits on every device and rank.

    `step` may be a tensor on the device, so that a captured step draws new bits at each replay; so may `seed`, so that a
    stack of models has one each. `rows` are the ids of a process's rows, where it does not have all.
    """

    seed: int | Tensor
    step: int | Tensor = 0
    rows: Tensor | None = None

    def step_tensor(self, device: torch.device) -> Tensor:
        if isinstance(self.step, Tensor):
            return self.step
        return torch.full((1,), self.step, dtype=torch.int64, device=device)


def dropout(x: Any, rate: float, key: Key | None, layer: int, rows: Tensor | None = None) -> Any:
    """Dropout of a Tensor or SparseMatrix by counter: without a key, or at rate 0, x itself.

    The bits of an element depend on (seed, step, layer, row id, column) alone, so dense and sparse, CPU and GPU,
    a batch and the whole graph drop the same elements. `rows` gives the global ids of the rows of a batch; None: those of the key.
    """
    if key is None or rate == 0:
        return x
    if not isinstance(x, Tensor):
        return x.dropout(rate, key, layer, rows)
    rows = key.rows if rows is None else rows
    row = torch.arange(len(x), device=x.device) if rows is None else rows
    return apply(Dropout, x, row, None, rate, key.seed, key.step_tensor(x.device), layer)


def random_share(rows: Tensor, share: float, key: Key, layer: int) -> Tensor:
    """A random choice of about `share` of the rows, by their ids, as a boolean mask; all of them at share 1."""
    if not 0 < share < 1:
        return torch.full((len(rows),), share >= 1, device=rows.device)
    kept: Tensor = dropout(torch.ones(len(rows), 1, device=rows.device), 1 - share, key, layer, rows)
    return kept.squeeze(1) > 0


def glorot(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """Uniform in ±√(6 / (fan_in + fan_out)), Glorot and Bengio (2010)."""
    bound = math.sqrt(6 / (shape[0] + shape[-1]))
    return nn.Parameter((torch.rand(*shape, generator=generator) * 2 - 1) * bound)
