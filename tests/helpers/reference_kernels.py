"""The kernels of the engine in plain torch: slow, obvious, on any device. What the others are compared with."""

import contextlib

import pytest
import torch

from gcn_lpa.engine import operations
from reproduction.sampling import random_bits

HAS_LOOPS = False


@contextlib.contextmanager
def use_kernels(kernels):
    """Run every product inside the block by the functions of this module, whatever the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "kernels_on", lambda gpu: kernels)
        yield


def spmm(pattern, values, x):
    """Σ_j a_ij x_j for each row i, [n, d]."""
    messages = values.unsqueeze(1) * x.index_select(0, pattern.col)  # [E, d]: only the oracle may do this
    return x.new_zeros(pattern.shape[0], x.shape[1]).index_add_(0, pattern.row, messages)


def spmm_backward(transpose, values, x, grad):
    """Gradients of `spmm` for the values, in the order of the transpose, [E], and for x, [m, d]."""
    return edge_dot(transpose, x, grad), spmm(transpose, values, grad)


def edge_dot(pattern, u, v):
    """u_i · v_j for each stored (i, j), [E]."""
    return (u.index_select(0, pattern.row) * v.index_select(0, pattern.col)).sum(dim=1)


def row_sum(pattern, values):
    """Σ_j of the values in each row, [n]."""
    return values.new_zeros(pattern.shape[0]).index_add_(0, pattern.row, values)


def row_softmax(pattern, scores):
    """exp(s_ij) / Σ_j exp(s_ij), each row shifted by its largest score, [E]."""
    top = scores.new_full((pattern.shape[0],), -torch.inf).scatter_reduce_(0, pattern.row.long(), scores, "amax")
    weights = (scores - top.index_select(0, pattern.row)).exp()
    return weights / row_sum(pattern, weights).index_select(0, pattern.row)


def row_softmax_backward(pattern, weights, grad):
    """p ∘ (g - Σ_j p g), the gradient for the scores, [E]."""
    flow = weights * grad
    return flow - weights * row_sum(pattern, flow).index_select(0, pattern.row)


def dropout(x, row, col, rate, seed, step, layer):
    """x / (1 - rate) where the random bits of (row, col) say keep, else 0.

    With `col` the entries of x are single numbers at (row, col), [E]; without it x is dense, [n, d], `row` its row ids.
    """
    if isinstance(seed, torch.Tensor) and seed.dim() == 1:  # one for each model of a stack, x with one more dimension
        return torch.stack([dropout(one, row, col, rate, k, step, layer) for one, k in zip(x, seed, strict=True)])
    seed = int(seed)
    if col is None:
        row, col = row.unsqueeze(1), torch.arange(x.shape[1], device=x.device)
    keep = (random_bits(seed, step, layer, row, col) >> 8) >= round(rate * 2**24)
    return torch.where(keep, x * (1 / (1 - rate)), torch.zeros_like(x))
