"""A rank's rows of a matrix, and the rows of others that its columns read: its halo.

A row, its entries, their weights, gradients and Adam's means all live with the owner of the row. Columns are its own nodes first,
then its halo, by owner. Before a product the owners send the rows of x that others read; in the backward pass the gradients of
these rows come home, and are added rank by rank: the same bits at every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gcn_lpa.engine.sparse import Pattern
from gcn_lpa.scale.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Halo:
    """Which rows a rank sends to each other one, and how many it gets of each."""

    ids: Tensor  # of its own nodes, then of its halo, in the whole graph
    send: Tensor  # positions of its own rows that others read: those of rank 0 first
    sent: Sequence[int]  # how many of them each rank reads
    wanted: Sequence[int]  # rows of each rank in its halo
    most_rows: int  # of any rank

    def to(self, device: torch.device | str) -> Halo:
        return Halo(self.ids.to(device), self.send.to(device), self.sent, self.wanted, self.most_rows)


class Part(Pattern):
    """The rows of one rank: [own, own + halo]."""

    is_part = True

    def __init__(self, rowptr: Tensor, col: Tensor, halo: Halo, ranks: Ranks) -> None:
        super().__init__(rowptr, col, (len(rowptr) - 1, len(halo.ids)))
        self.halo, self.ranks = halo, ranks

    def gathered(self, x: Tensor) -> Tensor:
        if len(x) != self.shape[0]:
            raise ValueError(f"{self.shape[0]} rows are this rank's own, not {len(x)}")
        return _Gathered.apply(self, x)  # type: ignore[no-any-return, no-untyped-call]

    def ids_of(self, columns: Tensor) -> Tensor:
        return self.halo.ids.index_select(0, columns)

    def total(self, values: Tensor) -> Tensor:
        return self.ranks.total(values)

    @property
    def most_rows(self) -> int:
        return self.halo.most_rows

    def to(self, device: torch.device | str) -> Part:
        return Part(self.rows.rowptr.to(device), self.rows.col.to(device), self.halo.to(device), self.ranks)


class _Gathered(torch.autograd.Function):
    """Own rows, and below them those of the halo."""

    @staticmethod
    def forward(ctx: Any, part: Part, x: Tensor) -> Tensor:
        ctx.part, halo = part, part.halo
        return torch.cat([x, part.ranks.exchanged(x.index_select(0, halo.send), halo.sent, halo.wanted)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        halo, ranks, own = ctx.part.halo, ctx.part.ranks, ctx.part.shape[0]
        home = ranks.exchanged(grad[own:], halo.wanted, halo.sent)
        total = grad[:own].clone()
        for rows, some in zip(halo.send.split(list(halo.sent)), home.split(list(halo.sent)), strict=True):
            total.index_add_(0, rows, some)  # no row twice: nothing depends on the order within
        return None, total
