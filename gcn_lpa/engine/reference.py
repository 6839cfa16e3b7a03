"""The kernels of sparse.py in plain torch: slow, obvious, on any device. The oracle of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gcn_lpa.engine.csr import CSR


MASK = 0xFFFFFFFF


def spmm(csr: CSR, values: Tensor, x: Tensor) -> Tensor:
    """Σ_j a_ij x_j for each row i, [n, d]."""
    messages = values.unsqueeze(1) * x.index_select(0, csr.col)  # [E, d]: only the oracle may do this
    return x.new_zeros(csr.num_rows, x.shape[1]).index_add_(0, csr.row, messages)


def spmm_backward(transpose: CSR, values: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `spmm` for the values, in the order of the transpose, [E], and for x, [m, d]."""
    return edge_dot(transpose, x, grad), spmm(transpose, values, grad)


def edge_dot(csr: CSR, u: Tensor, v: Tensor) -> Tensor:
    """u_i · v_j for each stored (i, j), [E]."""
    return (u.index_select(0, csr.row) * v.index_select(0, csr.col)).sum(dim=1)


def row_sum(csr: CSR, values: Tensor) -> Tensor:
    """Σ_j of the values in each row, [n]."""
    return values.new_zeros(csr.num_rows).index_add_(0, csr.row, values)


def row_softmax(csr: CSR, scores: Tensor) -> Tensor:
    """exp(s_ij) / Σ_j exp(s_ij), each row shifted by its largest score, [E]."""
    top = scores.new_full((csr.num_rows,), -torch.inf).scatter_reduce_(0, csr.row.long(), scores, "amax")
    weights = (scores - top.index_select(0, csr.row)).exp()
    return weights / row_sum(csr, weights).index_select(0, csr.row)


def row_softmax_backward(csr: CSR, weights: Tensor, grad: Tensor) -> Tensor:
    """p ∘ (g - Σ_j p g), the gradient for the scores, [E]."""
    flow = weights * grad
    return flow - weights * row_sum(csr, flow).index_select(0, csr.row)


def permute(values: Tensor, order: Tensor) -> Tensor:
    return values.index_select(0, order)


def _mix(h: Tensor) -> Tensor:
    """The 32-bit finaliser of MurmurHash3, in int64 (products wrap at 2⁶⁴, which keeps the low 32 bits right)."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def random_bits(seed: int, step: Tensor, layer: int, row: Tensor, col: Tensor) -> Tensor:
    """32 bits that depend on (seed, step, layer, row, column) alone; `row` and `col` broadcast."""
    word = _mix(torch.tensor((seed + 0x9E3779B9) & MASK, device=row.device))
    word = _mix(word ^ ((seed >> 32) & MASK))
    word = _mix(word ^ (step.to(row.device).long() & MASK))
    word = _mix(word ^ layer)
    row, col = row.long(), col.long()
    row_word = _mix(word ^ (row & MASK)) ^ (row >> 32)
    return _mix((row_word + col * 0x9E3779B9) & MASK)


def dropout(
    x: Tensor, row: Tensor, col: Tensor | None, rate: float, seed: int | Tensor, step: Tensor, layer: int
) -> Tensor:
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0.

    With `col` the entries of x are single numbers at (row, col), [E]; without it x is dense, [n, d], `row` its row ids.
    """
    if isinstance(seed, Tensor) and seed.dim() == 1:  # one for each model of a stack, x with one more dimension
        return torch.stack([dropout(one, row, col, rate, k, step, layer) for one, k in zip(x, seed, strict=True)])
    seed = int(seed)
    if col is None:
        row, col = row.unsqueeze(1), torch.arange(x.shape[1], device=x.device)
    keep = (random_bits(seed, step, layer, row, col) >> 8) >= round(rate * 2**24)
    return torch.where(keep, x * (1 / (1 - rate)), torch.zeros_like(x))
