"""How long one product A X with learnable A takes, forward and both gradients: ours beside PyG and plain torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.datasets import load
from gcn_lpa.engine.operations import apply
from gcn_lpa.engine.sparse import SparseMatrix
from reproduction.timing import PeakMemory, milliseconds
from reproduction.timing_rivals import Step


@dataclass(frozen=True)
class KernelTiming:
    kernel: str
    nodes: int
    columns: int
    milliseconds: float
    extra_mib: float | None  # peak memory above the operands
    edge_array_mib: float  # what an [E, d] array would take


def _scatter_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    from torch_geometric.utils import scatter

    row, col = matrix.pattern.row.long(), matrix.pattern.col.long()
    messages = values.unsqueeze(1) * x.index_select(0, col)
    out: Tensor = scatter(messages, row, dim=0, dim_size=matrix.shape[0], reduce="sum")
    return out


def _csr_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    pattern = matrix.pattern
    return torch.sparse_csr_tensor(pattern.rowptr, pattern.col, values, size=matrix.shape, check_invariants=False) @ x


def _chunked_product(matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
    return apply(_Chunked, matrix, values, x)


class _Chunked(torch.autograd.Function):
    """Plain torch over blocks of entries: what a user would write without a kernel."""

    BLOCK = 1 << 18

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, x)
        out = x.new_zeros(matrix.shape[0], x.shape[1])
        for k in range(0, len(values), _Chunked.BLOCK):
            part = slice(k, k + _Chunked.BLOCK)
            row, col = matrix.pattern.row[part], matrix.pattern.col[part]
            out.index_add_(0, row, values[part].unsqueeze(1) * x.index_select(0, col))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        values, x = ctx.saved_tensors
        grad_values, grad_x = torch.empty_like(values), torch.zeros_like(x)
        for k in range(0, len(values), _Chunked.BLOCK):
            part = slice(k, k + _Chunked.BLOCK)
            row, col = ctx.matrix.pattern.row[part], ctx.matrix.pattern.col[part]
            g = grad.index_select(0, row)
            grad_values[part] = (g * x.index_select(0, col)).sum(dim=1)
            grad_x.index_add_(0, col, values[part].unsqueeze(1) * g)
        return None, grad_values, grad_x


PRODUCTS: dict[str, Callable[[SparseMatrix, Tensor, Tensor], Tensor]] = {
    "pyg scatter": _scatter_product,
    "torch csr": _csr_product,
    "chunked torch": _chunked_product,
    "ours": lambda matrix, values, x: matrix.with_values(values) @ x,
}


def kernels(
    sizes: Sequence[int],
    columns: Sequence[int] = (32, 7),
    *,
    device: str = "cpu",
    repeats: int = 20,
    products: Sequence[str] = tuple(PRODUCTS),
    report: Callable[[KernelTiming], None] = lambda timing: None,
) -> list[KernelTiming]:
    """Time A X with learnable A, mean degree 5 plus self-loops: forward and both gradients."""
    place, results = torch.device(device), []
    for n in sizes:
        matrix = load("random", n=n).with_self_loops().adjacency.to(device)
        pattern = matrix.pattern
        _ = pattern.T.order, pattern.row  # built once per graph, not per product
        for d in columns:
            generator = torch.Generator().manual_seed(0)
            values = torch.rand(matrix.num_entries, generator=generator).to(device).requires_grad_()
            x = torch.rand(n, d, generator=generator).to(device).requires_grad_()
            grad = torch.rand(n, d, generator=generator).to(device)
            for name in products:
                if name == "torch csr" and n > 20_000:
                    continue  # its gradient for the values is a dense n x n product
                step = _product_step(PRODUCTS[name], matrix, values, x, grad)
                times = milliseconds(step, place, repeats=repeats)
                values.grad = x.grad = None
                with PeakMemory(place) as peak:
                    step()
                edge_array = matrix.num_entries * d * 4 / 2**20
                results.append(KernelTiming(name, n, d, statistics.median(times), peak.mib, edge_array))
                report(results[-1])
    return results


def _product_step(product: Callable[..., Tensor], matrix: SparseMatrix, values: Tensor, x: Tensor, grad: Tensor) -> Step:
    def step() -> None:
        values.grad = x.grad = None
        product(matrix, values, x).backward(grad)

    return step
