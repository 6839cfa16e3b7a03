"""Where the entries of a sparse matrix are, row by row, and how its rows are shared out among workers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.remembered import unstacked


def keep_few(kept: dict[int, Any], size: int, made: Any) -> None:
    """Keep what was made for a stack of this size; stacks shrink, so that only the last few sizes are needed again."""
    for old in list(kept)[:-3]:
        kept.pop(old, None)  # another thread may have been here
    kept[size] = made


class CSR:
    """Compressed rows: the columns of row i are col[rowptr[i] : rowptr[i + 1]], ascending.

    Nothing here changes after construction, so what the kernels derive from it (row numbers, the shares of
    the threads) is worked out once and kept.
    """

    def __init__(self, rowptr: Tensor, col: Tensor, num_cols: int) -> None:
        self.rowptr = rowptr  # [n + 1]
        self.col = col  # [E]
        self.num_cols = num_cols
        self._shares: dict[int, list[int]] = {}
        self._repeated: dict[int, CSR] = {}

    @property
    def num_rows(self) -> int:
        return len(self.rowptr) - 1

    @property
    def num_entries(self) -> int:
        return len(self.col)

    @cached_property
    @unstacked()
    def row(self) -> Tensor:
        """The row of every entry, [E]."""
        rows = torch.arange(self.num_rows, dtype=self.col.dtype, device=self.col.device)
        return torch.repeat_interleave(rows, self.rowptr.diff())

    @cached_property
    @unstacked()
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(rowptr, col) as NumPy views, for the CPU kernels."""
        return self.rowptr.numpy(), self.col.numpy()

    def shares(self, num_workers: int) -> list[int]:
        """Row numbers that cut the matrix into `num_workers` runs of about equal work (entries plus rows)."""
        if num_workers not in self._shares:
            rowptr = self.rowptr.cpu().numpy().astype(np.int64)
            work = rowptr + np.arange(len(rowptr))
            targets = np.linspace(0, work[-1], num_workers + 1)[1:-1]
            cuts = np.searchsorted(work, targets)
            self._shares[num_workers] = [0, *cuts.tolist(), self.num_rows]
        return self._shares[num_workers]

    @unstacked()
    def repeated(self, count: int) -> CSR:
        """So many copies along a diagonal: a stack of matrices with these entries as one matrix."""
        found = self._repeated.get(count)
        if found is None:
            fits = count * max(self.num_entries, self.num_rows, self.num_cols) < 2**31
            dtype, device = torch.int32 if fits else torch.int64, self.col.device
            at = torch.arange(count, dtype=dtype, device=device).unsqueeze(1)
            starts = (self.rowptr[:-1].to(dtype) + at * self.num_entries).flatten()
            rowptr = torch.cat([starts, starts.new_full((1,), count * self.num_entries)])
            col = (self.col.to(dtype) + at * self.num_cols).flatten()
            found = CSR(rowptr, col, count * self.num_cols)
            keep_few(self._repeated, count, found)
        return found

    def to(self, device: torch.device | str) -> CSR:
        return CSR(self.rowptr.to(device), self.col.to(device), self.num_cols)
