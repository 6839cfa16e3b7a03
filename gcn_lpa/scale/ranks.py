"""The processes that torchrun starts, and all that they send to each other.

Rank 0 writes what is about the whole run. An answer that does not come ends a process with one sentence: either the other one
has ended, or the time is over.

A row of a matrix, its entries, their weights, gradients and Adam's means all live with the owner of the row. Columns are its own
nodes first, then its halo, the rows of others that it reads, by owner. Before a product the owners send these rows of x; in the
backward pass their gradients come home, and are added rank by rank: the same bits at every run.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import scipy.sparse
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gcn_lpa.engine.devices import Rows
from gcn_lpa.engine.sparse import Pattern
from gcn_lpa.train import World

TIMEOUT = 300.0  # seconds
T = TypeVar("T")


class Ranks(World):
    """The processes that train together.

    `own` are the parameters that this process alone has: free edge weights, which live with their row. `received` counts the
    bytes of other processes' rows that have come here.
    """

    def __init__(self, own: Sequence[nn.Parameter] = ()) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own, self.received = own, 0

    def exchanged(self, rows: Tensor, sent: Sequence[int], wanted: Sequence[int]) -> Tensor:
        """Send the first sent[0] rows to rank 0, the next sent[1] to rank 1 …; gives what came, wanted[k] rows of rank k."""
        came = rows.new_empty(sum(wanted), *rows.shape[1:])
        with self._answered():
            dist.all_to_all_single(came, rows.contiguous(), list(wanted), list(sent))
        self.received += came.nbytes
        return came

    def total(self, values: Tensor) -> Tensor:
        values = values.detach().clone()
        with self._answered():
            dist.all_reduce(values)
        return values

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        mine = {id(parameter) for parameter in self.own}
        shared = [p.grad for p in parameters if p.grad is not None and id(p) not in mine]
        if shared:
            sums = self.total(torch.cat([grad.flatten() for grad in shared]))
            for grad, summed in zip(shared, sums.split([grad.numel() for grad in shared]), strict=True):
                grad.copy_(summed.view_as(grad))

    def collected(self, rows: Tensor) -> list[Tensor]:
        """The rows of every rank, which may differ in number, in all of them."""
        sizes, longest = self._padded(rows)
        received = [torch.empty_like(longest) for _ in sizes]
        with self._answered():
            dist.all_gather(received, longest)
        return [padded[:size] for padded, size in zip(received, sizes, strict=True)]

    def gathered(self, rows: Tensor) -> list[Tensor] | None:
        """The rows of every rank in rank 0; None in the others."""
        sizes, longest = self._padded(rows)
        received = [torch.empty_like(longest) for _ in sizes] if self.rank == 0 else None
        with self._answered():
            dist.gather(longest, received)
        return None if received is None else [padded[:size] for padded, size in zip(received, sizes, strict=True)]

    def agreed(self, work: Callable[[], T]) -> T:
        """What `work` gives in rank 0, in all of them."""
        content = bytearray(pickle.dumps(self.first(work)))
        size = torch.tensor(len(content))
        with self._answered():
            dist.broadcast(size, 0)
            sent = torch.empty(int(size), dtype=torch.uint8)
            sent = torch.frombuffer(content, dtype=torch.uint8) if self.rank == 0 else sent
            dist.broadcast(sent, 0)
        return cast(T, pickle.loads(sent.numpy().tobytes()))

    def _padded(self, rows: Tensor) -> tuple[list[int], Tensor]:
        """How many rows each rank has, and those of this one with zeros below: ranks exchange equal numbers of them."""
        sizes = self.total(torch.eye(self.size, dtype=torch.int64, device=rows.device)[self.rank] * len(rows)).tolist()
        longest = rows.new_zeros(max(sizes), *rows.shape[1:])
        longest[: len(rows)] = rows
        return sizes, longest

    def first(self, work: Callable[[], T]) -> T | None:
        """What `work` gives in rank 0, which alone does it; where it fails, rank 0 says why and all end.

        The others end without an error of theirs: at the first one torchrun would end rank 0 before it has said why.
        """
        failed, found = None, None
        if self.rank == 0:
            try:
                found = work()
            except (ValueError, OSError) as error:
                failed = error
        if int(self.total(torch.tensor(int(failed is not None)))) == 0:
            return found
        raise failed or SystemExit(0)

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(
                f"rank {self.rank} of {self.size} got no answer from the others ({_reason(error)}); what was saved before is "
                "intact, and the same command with --resume, or torchrun --max-restarts, goes on from it"
            ) from error


def _reason(error: Exception) -> str:
    """The last sentence of what torch says, without its place in torch."""
    message = str(error).strip().splitlines()[0].rpartition("] ")[2].rstrip(". ")
    return message if len(message) <= 120 else message[:120].rpartition(" ")[0] + " …"


def is_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def refused(sentence: str) -> BaseException:
    """What to raise in every rank where all of them know what is wrong: rank 0 says it, and fails for all."""
    return ValueError(sentence) if is_first() else SystemExit(0)


def num_restarts() -> int:
    """How often torchrun has started this process again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _meeting_place(limit: datetime.timedelta) -> tuple[Any, int, int]:
    """The store through which the ranks find each other, the rank of this process, and how many there are.

    On one machine torchrun keeps its store when it starts the ranks again, with the addresses of those that have ended.
    """
    from torch.distributed.rendezvous import rendezvous

    stores = torch._C._distributed_c10d
    if not is_torchrun():
        return stores.HashStore(), 0, 1
    store, rank, size = next(rendezvous("env://", timeout=limit))
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    return stores.PrefixStore(f"start-{num_restarts()}", store) if is_one_machine else store, rank, size


@contextlib.contextmanager
def joined(device: torch.device, *, timeout: float = TIMEOUT) -> Iterator[None]:
    """Be one of the processes of torchrun, or the only one there is, for the length of the block.

    Args:
        timeout: seconds after which an answer is not waited for any longer.
    """
    if not dist.is_available():
        raise ValueError("this build of torch has no torch.distributed; the usual ones have")
    limit = datetime.timedelta(seconds=timeout)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        store, rank, size = _meeting_place(limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"rank {os.environ.get('RANK', 0)} of {os.environ.get('WORLD_SIZE', 1)} cannot reach the others at {where} within "
            f"{timeout:g} s ({_reason(error)}); all of them must run, and see each other there"
        ) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


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
        self.halo, self.ranks, self.ids, self.most_rows = halo, ranks, halo.ids, halo.most_rows

    def gathered(self, x: Tensor) -> Tensor:
        if len(x) != self.shape[0]:
            raise ValueError(f"{self.shape[0]} rows are this rank's own, not {len(x)}")
        return _Gathered.apply(self, x)  # type: ignore[no-any-return, no-untyped-call]

    def total(self, values: Tensor) -> Tensor:
        return self.ranks.total(values)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        number = self.total(torch.tensor(float(len(x)), device=x.device))
        mean = self._sum(x) / number
        return self._sum((x - mean).square()) / number, mean

    def _sum(self, x: Tensor) -> Tensor:
        return _Total.apply(self.ranks, x.sum(dim=0))  # type: ignore[no-any-return, no-untyped-call]

    def collected(self, rows: Rows, at: Tensor) -> Rows:
        if isinstance(rows, Tensor):
            return torch.cat(self.ranks.collected(rows)).index_select(0, self._order(at)[0].to(rows.device))
        csr = scipy.sparse.csr_array(rows)
        csr.sort_indices()
        arrays = (np.diff(csr.indptr).astype(np.int64), csr.indices.astype(np.int64), csr.data)
        size, col, values = (torch.cat(self.ranks.collected(torch.from_numpy(array))).numpy() for array in arrays)
        every = scipy.sparse.csr_array((values, col, np.concatenate([[0], size.cumsum()])), (len(size), csr.shape[1]))
        return scipy.sparse.csr_array(every[self._order(at)[0].cpu().numpy()])

    def places(self, at: Tensor) -> Tensor:
        order, start = self._order(at)
        place = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
        return place[start : start + len(at)]

    def _order(self, at: Tensor) -> tuple[Tensor, int]:
        """How rows of the nodes `at`, those of rank 0 first, are brought into the order of the graph; where ours begin."""
        ids = self.ranks.collected(self.halo.ids.index_select(0, at))
        return torch.cat(ids).argsort(), sum(map(len, ids[: self.ranks.rank]))

    def agreed(self, work: Callable[[], T]) -> T:
        return self.ranks.agreed(work)

    def within(self, kept: Tensor) -> Part:
        return Part(*self._entries(kept), self.halo, self.ranks)

    def to(self, device: torch.device | str) -> Part:
        return Part(self.rowptr.to(device), self.col.to(device), self.halo.to(device), self.ranks)


class _Total(torch.autograd.Function):
    """The sum over all ranks; the gradient of each is the sum of all their gradients."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, values: Tensor) -> Tensor:
        ctx.ranks = ranks
        return ranks.total(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.ranks.total(grad)


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
        for rows, grads in zip(halo.send.split(list(halo.sent)), home.split(list(halo.sent)), strict=True):
            total.index_add_(0, rows, grads)  # no row twice: nothing depends on the order within
        return None, total
