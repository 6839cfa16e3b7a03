"""A few neighbours of each node, drawn at random: uniformly, without replacement, by counter-based bits.

Which neighbours a node draws depends on (seed, step, layer, node) alone: not on the batch it is in, nor on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gcn_lpa.engine.sparse import Key, Pattern

MASK = 0xFFFFFFFF


def sample_neighbours(rows: Pattern, nodes: Tensor, size: int, key: Key, layer: int) -> Pattern:
    """`size` neighbours of each of the `nodes`, all of those of a node that has no more, in rows of [m, n].

    Floyd's algorithm, all nodes side by side: the t-th draw is among the first degree - size + t + 1 places, and the last of
    them where it was drawn before. The cost is size² for each node, whatever its degree.
    """
    start = rows.rowptr.index_select(0, nodes).long()
    degree = rows.rowptr.index_select(0, nodes + 1).long() - start
    step = key.step_tensor(nodes.device)
    places = torch.full((len(nodes), size), -1, device=nodes.device)
    for t in range(size):
        last = (degree - size + t).clamp_min(0)
        drawn = random_bits(int(key.seed), step, layer, nodes, torch.full_like(nodes, t)) % (last + 1)
        is_taken = (places[:, :t] == drawn.unsqueeze(1)).any(dim=1)
        places[:, t] = torch.where(degree <= size, t, torch.where(is_taken, last, drawn))
    exists = places < degree.unsqueeze(1)
    places = torch.where(exists, places, torch.iinfo(torch.int64).max).sort(dim=1).values  # columns stay ascending
    taken = degree.clamp_max(size)
    exists = torch.arange(size, device=nodes.device) < taken.unsqueeze(1)
    at = (start.unsqueeze(1) + torch.where(exists, places, 0))[exists]
    rowptr = torch.cat([taken.new_zeros(1), taken.cumsum(0)])
    return Pattern(rowptr, rows.col.index_select(0, at), (len(nodes), rows.shape[1]))


def random_bits(seed: int, step: Tensor, layer: int, row: Tensor, col: Tensor) -> Tensor:
    """32 bits that depend on (seed, step, layer, row, column) alone; `row` and `col` broadcast."""
    word = _mix(torch.tensor((seed + 0x9E3779B9) & MASK, device=row.device))
    word = _mix(word ^ ((seed >> 32) & MASK))
    word = _mix(word ^ (step.to(row.device).long() & MASK))
    word = _mix(word ^ layer)
    row, col = row.long(), col.long()
    row_word = _mix(word ^ (row & MASK)) ^ (row >> 32)
    return _mix((row_word + col * 0x9E3779B9) & MASK)


def _mix(h: Tensor) -> Tensor:
    """The 32-bit finaliser of MurmurHash3, in int64 (products wrap at 2⁶⁴, which keeps the low 32 bits right)."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)
