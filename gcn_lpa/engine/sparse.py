"""One sparse matrix with learnable values: the D⁻¹A that label propagation and graph convolution both walk.

`Pattern` says where the entries are; it is built once per graph and shared. `SparseMatrix` is a pattern and its
values. The product `@` is differentiable in the values and in the dense operand, and its backward pass walks
the transpose once for both gradients, so a matrix whose entries are learned costs little more than a constant one.

Nothing here builds an [E, d] array and no kernel uses atomics: the same input gives the same bits.
The kernels are in `cpu_kernels.py` (Numba), `gpu_kernels.py` (Triton) and `reference.py` (plain torch, the oracle).
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.engine import operations as ops
from gcn_lpa.engine.csr import CSR, keep_few
from gcn_lpa.engine.devices import same_device
from gcn_lpa.engine.remembered import is_wrapped, unstacked, version_of

if TYPE_CHECKING:
    from gcn_lpa.engine.random import Key

LARGEST_LOG = 60.0  # of a ratio of degrees: only where A is far from symmetric are there larger ones
EDGE_LAYER = 1000  # names random bits that are not a layer's dropout


class Pattern:
    """Where the entries of a matrix are: its compressed rows, those of its transpose, and the way between the two.

    Where several processes share the rows of a matrix (`scale.halo.Part`), `gathered`, `ids_of`, `total` and `most_rows` are
    about all of them.
    """

    is_part = False
    cut_from: tuple[str, Tensor] | None = None  # fingerprint of a larger pattern, and the number of each entry there

    def __init__(self, rowptr: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        fits = max(len(col), *shape) < 2**31
        dtype = torch.int32 if fits else torch.int64
        self.shape = shape
        self.rows = CSR(rowptr.to(dtype), col.to(dtype), shape[1])
        self._repeated: dict[int, Pattern] = {}

    @property
    def num_entries(self) -> int:
        return self.rows.num_entries

    @property
    def device(self) -> torch.device:
        return self.rows.col.device

    @property
    def row(self) -> Tensor:
        return self.rows.row

    @property
    def col(self) -> Tensor:
        return self.rows.col

    @property
    def columns(self) -> CSR:
        """The compressed rows of the transpose."""
        return self._transposed[0]

    @property
    def order(self) -> Tensor:
        """Entry k of the transpose is entry order[k] of the matrix, [E]."""
        return self._transposed[1]

    @cached_property
    @unstacked()
    def inverse_order(self) -> Tensor:
        inverse = torch.empty_like(self.order)
        inverse[self.order.long()] = torch.arange(len(inverse), dtype=inverse.dtype, device=inverse.device)
        return inverse

    @cached_property
    @unstacked()
    def _transposed(self) -> tuple[CSR, Tensor]:  # sorted once per graph: anew each time it would dominate the backward
        col, dtype = self.rows.col, self.rows.col.dtype
        if col.is_cuda:
            order = torch.sort(col, stable=True).indices.to(dtype)
            counts = torch.bincount(col, minlength=self.shape[1])
            rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(dtype)
            row = self.rows.row.index_select(0, order)
        else:  # SciPy's counting sort is linear and keeps rows ascending
            positions = np.arange(self.num_entries, dtype=np.int32 if dtype == torch.int32 else np.int64)
            arrays = self.rows.arrays
            csc = scipy.sparse.csr_array((positions, arrays[1], arrays[0]), shape=self.shape).tocsc()
            rowptr, row = torch.from_numpy(csc.indptr).to(dtype), torch.from_numpy(csc.indices).to(dtype)
            order = torch.from_numpy(csc.data)
        if self.shape[0] == self.shape[1] and torch.equal(row, col) and torch.equal(rowptr, self.rows.rowptr):
            return self.rows, order  # an undirected graph is its own transpose; only the values move
        return CSR(rowptr, row, self.shape[0]), order

    @cached_property
    @unstacked()
    def T(self) -> Pattern:
        turned = Pattern(self.columns.rowptr, self.columns.col, (self.shape[1], self.shape[0]))
        turned.rows = self.columns
        turned.__dict__["_transposed"] = (self.rows, self.inverse_order)
        return turned

    @cached_property
    @unstacked()
    def reverse(self) -> Tensor:
        """The number of the entry (j, i) for each entry (i, j), -1 where it is not stored, [E]."""
        row, col = (ends.cpu().numpy().astype(np.int64) for ends in (self.row, self.col))
        here, back = row * self.shape[1] + col, col * self.shape[1] + row  # ascending, and what is looked for in it
        at = np.minimum(np.searchsorted(here, back), max(0, len(here) - 1))
        return torch.from_numpy(np.where(here[at] == back, at, -1) if len(here) else at).to(self.device)

    @unstacked()
    def repeated(self, count: int) -> Pattern:
        """So many copies along a diagonal, see `CSR.repeated`."""
        found = self._repeated.get(count)
        if found is None:
            rows, at = self.rows.repeated(count), torch.arange(count, device=self.device).unsqueeze(1)
            found = Pattern(rows.rowptr, rows.col, (count * self.shape[0], count * self.shape[1]))
            found.rows = rows
            order = (self.order + at * self.num_entries).flatten().to(rows.col.dtype)
            found.__dict__["_transposed"] = self.columns.repeated(count), order
            keep_few(self._repeated, count, found)
        return found

    @cached_property
    @unstacked()
    def is_identity(self) -> bool:
        n = self.shape[0]
        if self.shape[0] != self.shape[1] or self.num_entries != n:
            return False
        diagonal = torch.arange(n, device=self.device)
        return bool((self.rows.rowptr[:-1] == diagonal).all() and (self.col == diagonal).all())

    @cached_property
    @unstacked()
    def fingerprint(self) -> str:
        """The same for equal patterns, on any device."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for array in (self.rows.rowptr, self.rows.col):
            digest.update(array.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> Pattern:
        if same_device(device, self.device):
            return self
        moved = Pattern(self.rows.rowptr.to(device), self.rows.col.to(device), self.shape)
        if "_transposed" in self.__dict__:
            columns, order = self._transposed
            there = moved.rows if columns is self.rows else columns.to(device)
            moved.__dict__["_transposed"] = there, order.to(device)
        if self.cut_from is not None:
            moved.cut_from = self.cut_from[0], self.cut_from[1].to(device)
        return moved

    def gathered(self, x: Tensor) -> Tensor:
        """What stands in each row, [n, …], for each column, [m, …]: in a square matrix the same."""
        return x

    def ids_of(self, columns: Tensor) -> Tensor:
        """The columns by their numbers in the whole matrix."""
        return columns

    def total(self, values: Tensor) -> Tensor:
        """The sum of what each process has."""
        return values

    @property
    def most_rows(self) -> int:
        """Of any process."""
        return self.shape[0]

    def row_sum(self, values: Tensor) -> Tensor:
        """Σ_j over the entries of each row, [E] -> [n]."""
        _check_length(values, self.num_entries)
        return ops.apply(ops.RowSum, self, values)

    def col_sum(self, values: Tensor) -> Tensor:
        """Σ_i over the entries of each column, [E] -> [m]."""
        _check_length(values, self.num_entries)
        return self.T.row_sum(_to_columns(self, values))

    def spread_rows(self, per_row: Tensor) -> Tensor:
        """Give entry (i, j) the number of row i, [n] -> [E]. The gradient is a row sum, never an atomic add."""
        _check_length(per_row, self.shape[0])
        return ops.apply(ops.SpreadRows, self, per_row)

    def spread_cols(self, per_col: Tensor) -> Tensor:
        """Give entry (i, j) the number of column j, [m] -> [E]."""
        per_col = self.gathered(per_col)
        _check_length(per_col, self.shape[1])
        return _to_rows(self, ops.apply(ops.SpreadRows, self.T, per_col))

    def row_softmax(self, scores: Tensor) -> Tensor:
        """Softmax of the scores of each row, [E]."""
        _check_length(scores, self.num_entries)
        return ops.apply(ops.RowSoftmax, self, scores)

    def edge_dot(self, u: Tensor, v: Tensor) -> Tensor:
        """u_i · v_j for each entry (i, j), [E]."""
        v = self.gathered(v)
        if (len(u), len(v)) != self.shape or u.shape[1:] != v.shape[1:] or u.dim() != 2:
            shape = f"{self.shape[0]} x {self.shape[1]}"
            raise ValueError(f"edge_dot: a pattern {shape} cannot join rows of {tuple(u.shape)} and {tuple(v.shape)}")
        return ops.apply(ops.EdgeDot, self, u, v)

    def tanh_attention(self, u: Tensor, v: Tensor, a: Tensor) -> Tensor:
        """Σ_h a_h tanh(u_ih + v_jh) for each entry (i, j), [E]."""
        return ops.apply(ops.TanhAttention, self, u, v, a)


def _check_length(values: Tensor, length: int) -> None:  # the kernels trust it
    if values.shape != (length,):
        raise ValueError(f"{length} numbers are needed, not {tuple(values.shape)}")


def _forget_turned(matrix: SparseMatrix | None) -> None:
    if matrix is not None:
        matrix._turned = None


class SparseMatrix:
    """A pattern and one value per entry, in row order; products are differentiable in both operands."""

    def __init__(self, pattern: Pattern, values: Tensor) -> None:
        if values.shape != (pattern.num_entries,):
            raise ValueError(
                f"a pattern of {pattern.num_entries} entries needs that many values, not {tuple(values.shape)}"
            )
        self.pattern = pattern
        self.values = values
        self._turned: tuple[Tensor, int, int] | None = None

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """Any SciPy sparse matrix; duplicate entries are summed, columns sorted."""
        csr = scipy.sparse.csr_array(matrix)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        # NumPy marks read-only arrays, torch cannot: copy those
        rowptr, col, data = (
            torch.from_numpy(a if a.flags.writeable else a.copy()) for a in (csr.indptr, csr.indices, csr.data)
        )
        return cls(Pattern(rowptr, col, csr.shape), data.to(dtype))

    @classmethod
    def from_coo(
        cls, row: Tensor | np.ndarray, col: Tensor | np.ndarray, values: Tensor | np.ndarray, shape: tuple[int, int]
    ) -> SparseMatrix:
        """Entries in any order; duplicates are summed."""
        values = torch.as_tensor(values)
        row, col = np.asarray(row), np.asarray(col)
        return cls.from_scipy(scipy.sparse.coo_array((values.numpy(), (row, col)), shape=shape), values.dtype)

    @classmethod
    def identity(cls, n: int, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        index = torch.arange(n + 1)
        return cls(Pattern(index, index[:-1], (n, n)), torch.ones(n, dtype=dtype))

    @property
    def is_constant(self) -> bool:
        """Whether the values are one known array, neither learned nor a stack of many models' values."""
        return not self.values.requires_grad and not is_wrapped(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def num_entries(self) -> int:
        return self.pattern.num_entries

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]:,} x {self.shape[1]:,}, {self.num_entries:,} entries, {self.dtype}, {self.device})"

    @property
    def transposed_values(self) -> Tensor:
        """The values in the order of the transpose, [E]: permuted once, then shared by every product.

        Products hand their gradient to this tensor, in this order, so it too is permuted back only once.
        """
        if self._turned is not None:
            turned, *versions = self._turned
            is_cut = self.values.requires_grad and torch.is_grad_enabled() and not turned.requires_grad  # by no_grad
            if not is_cut and versions == [version_of(self.values), version_of(turned)]:
                return turned
        with contextlib.nullcontext() if is_wrapped(self.values) else unstacked():
            turned = self._keep_turned(_to_columns(self.pattern, self.values))
        if turned.requires_grad and not is_wrapped(turned):
            # no product needs it once its gradient is there: [E] less at the peak
            myself = weakref.ref(self)
            turned.register_hook(lambda _: _forget_turned(myself()))
        return turned

    def _keep_turned(self, turned: Tensor) -> Tensor:
        self._turned = turned, version_of(self.values), version_of(turned)
        return turned

    @property
    def T(self) -> SparseMatrix:
        turned = SparseMatrix(self.pattern.T, self.transposed_values)
        turned._keep_turned(self.values)
        return turned

    def __matmul__(self, x: Tensor) -> Tensor:
        x = self.pattern.gathered(x)
        if x.dim() not in (1, 2) or self.shape[1] != x.shape[0]:
            raise ValueError(f"cannot multiply {self.shape[0]} x {self.shape[1]} by {tuple(x.shape)}")
        if x.dtype != self.dtype and not x.is_cuda:  # the GPU kernels mix types
            raise ValueError(f"cannot multiply a matrix of {self.dtype} by {x.dtype}; convert one with .to()")
        if x.dim() == 1:
            return self._product(x.unsqueeze(1)).squeeze(1)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if self.pattern.is_identity and not self.values.requires_grad:
            return x if self.is_identity else x * self.values.unsqueeze(1)
        learns = self.values.requires_grad and torch.is_grad_enabled()  # inside torch.func no tensor seems to
        values_t = self.transposed_values if learns or is_wrapped(self.values) else None
        return ops.apply(ops.Product, self, self.values, values_t, x)

    @cached_property
    def is_identity(self) -> bool:
        return self.pattern.is_identity and self._all(lambda values: values == 1)

    def _all(self, holds: Callable[[Tensor], Tensor]) -> bool:
        """Whether something is known to hold for every value."""
        with unstacked():
            return self.is_constant and bool(holds(self.values).all())

    @property
    def reversed_values(self) -> Tensor:
        """The value of (j, i) at entry (i, j), 0 where it is not stored, [E]."""
        if self.pattern.columns is self.pattern.rows:  # they are one where the pattern is symmetric
            return self.transposed_values
        back = self.pattern.reverse
        return torch.where(back >= 0, self.values.index_select(0, back.clamp_min(0)), 0)

    def diagonal(self) -> Tensor:
        """a_ii, zero where it is not stored, [n]."""
        on_diagonal = (self.pattern.row == self.pattern.col).to(self.dtype)
        return self.pattern.row_sum(self.values * on_diagonal)

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same pattern with other values."""
        return SparseMatrix(self.pattern, values)

    def add(self, values: Tensor) -> SparseMatrix:
        return self.with_values(values if self.is_zero else self.values + values)

    @cached_property
    def is_zero(self) -> bool:
        """Whether every stored value is a constant 0, such as the log of an unweighted graph."""
        return self._all(lambda values: values == 0)

    def log(self) -> SparseMatrix:
        return self._log if self.is_constant else self.with_values(self.values.log())

    @cached_property
    @unstacked()
    def _log(self) -> SparseMatrix:  # of a graph's own weights, once
        return self.with_values(self.values.log())

    def row_sums(self) -> Tensor:
        return self.pattern.row_sum(self.values)

    def row_normalized(self) -> SparseMatrix:
        """D⁻¹A. A row without entries stays empty."""
        return self.with_values(self.values / self.pattern.spread_rows(self.row_sums()))

    def symmetric_normalized(self) -> SparseMatrix:
        """D^-½ A D^-½ with D the row sums; for an undirected A, Kipf and Welling's matrix."""
        return self._symmetric if self.is_constant else self._symmetrically_divided()

    @cached_property
    @unstacked()
    def _symmetric(self) -> SparseMatrix:  # of a graph's own weights, once
        return self._symmetrically_divided()

    def _symmetrically_divided(self) -> SparseMatrix:
        degree = self.row_sums()
        scale = degree.clamp_min(torch.finfo(self.dtype).tiny).rsqrt() * (degree > 0)  # 0 where nothing arrives
        return self.with_values(self.values * self.pattern.spread_rows(scale) * self.pattern.spread_cols(scale))

    def row_softmax(self) -> SparseMatrix:
        """exp(a_ij) / Σ_j exp(a_ij): row normalisation of exp(A), without overflow."""
        return self.with_values(self.pattern.row_softmax(self.values))

    def symmetric_softmax(self, rate: float = 0.0, key: Key | None = None) -> SparseMatrix:
        """D^-½ exp(A) D^-½ with D the row sums of exp(A), each row by itself without overflow.

        With p the softmax of row i, log D_i = Σ_j p_ij (a_ij - log p_ij), and the entry is p_ij (D_i / D_j)^½. With a key,
        a random share `rate` of the entries is left out first, as in `drop_edges`.
        """
        if key is not None and rate:
            kept = self._kept_edges(rate, key)
            lowest = torch.finfo(self.dtype).min / 4  # no softmax leaves anything of it
            remaining = self.with_values(torch.where(kept, self.values, lowest)).symmetric_softmax()
            return remaining.with_values(remaining.values * kept)
        share = self.pattern.row_softmax(self.values)
        logs = self.values - share.clamp_min(torch.finfo(self.dtype).tiny).log()
        degree = self.pattern.row_sum(share * torch.where(share > 0, logs, 0))
        ratio = (self.pattern.spread_rows(degree) - self.pattern.spread_cols(degree)).clamp(-LARGEST_LOG, LARGEST_LOG)
        return self.with_values(share * (ratio / 2).exp())

    def drop_edges(self, rate: float, key: Key | None) -> SparseMatrix:
        """A random share of the entries left out and every row brought back to 1; the diagonal stays. Without a key, as it is."""
        if key is None or rate == 0:
            return self
        remaining = self.with_values(self.values * self._kept_edges(rate, key))
        total = self.pattern.spread_rows(remaining.row_sums())
        return remaining.with_values(remaining.values / torch.where(total > 0, total, 1))  # a row may have lost all

    def _kept_edges(self, rate: float, key: Key) -> Tensor:
        """Which entries a step keeps, [E]."""
        ones = SparseMatrix(self.pattern, torch.ones_like(self.values))
        return (ones.dropout(rate, key, EDGE_LAYER).values > 0) | (self.pattern.row == self.pattern.col)

    def dropout(self, rate: float, key: Key, layer: int, rows: Tensor | None = None) -> SparseMatrix:
        """Entries set to zero at random and the rest scaled up; the pattern stays. `rows` are global row ids."""
        rows = key.rows if rows is None else rows
        row = self.pattern.row if rows is None else rows.index_select(0, self.pattern.row)
        col, step = self.pattern.ids_of(self.pattern.col), key.step_tensor(self.device)
        dropped = self.with_values(ops.apply(ops.Dropout, self.values, row, col, rate, key.seed, step, layer))
        dropped.__dict__["is_identity"] = False  # a step that is being recorded may not ask the device
        return dropped

    def square_norms(self, weights: Tensor | None = None) -> Tensor:
        """Σ_d w_d x_id² of each row, [n]."""
        squares = self.with_values(self.values.square())
        return squares.row_sums() if weights is None else squares @ weights

    @unstacked()
    def row_products(self, pairs: Pattern) -> SparseMatrix:
        """x_i ∘ x_j for each pair (i, j) of rows of this constant matrix, [pairs, d], as sparse as the overlap of the two.

        So Σ_d w_d x_id x_jd for all pairs is one product with w, and its gradient one product with the transpose.
        """
        rowptr, col, values = _overlaps(pairs, self)
        return SparseMatrix(Pattern(rowptr, col, (pairs.num_entries, self.shape[1])), values)

    def to_dense(self) -> Tensor:
        flat = self.pattern.row.long() * self.shape[1] + self.pattern.col.long()
        return self.values.new_zeros(self.shape[0] * self.shape[1]).index_put((flat,), self.values).view(self.shape)

    def to_scipy(self) -> scipy.sparse.csr_array:
        arrays = (a.detach().cpu().numpy() for a in (self.values, self.pattern.col, self.pattern.rows.rowptr))
        return scipy.sparse.csr_array(tuple(arrays), shape=self.shape)

    def to(self, target: torch.device | str | torch.dtype) -> SparseMatrix:
        """The same matrix on a device or in a floating type."""
        if isinstance(target, torch.dtype):
            return self.with_values(self.values.to(target))
        return SparseMatrix(self.pattern.to(target), self.values.to(target))

    def detach(self) -> SparseMatrix:
        return SparseMatrix(self.pattern, self.values.detach())


def _overlaps(pairs: Pattern, x: SparseMatrix) -> tuple[Tensor, Tensor, Tensor]:
    """CSR arrays of `row_products`, in blocks of pairs so that no more than a few million products are held twice."""
    matrix = x.to_scipy()
    row, col = pairs.row.cpu().numpy(), pairs.col.cpu().numpy()
    block = max(1, 4_000_000 * max(1, x.shape[0]) // max(1, x.num_entries))
    parts = [matrix[row[k : k + block]].multiply(matrix[col[k : k + block]]).tocsr() for k in range(0, len(row), block)]
    product = scipy.sparse.vstack(parts, format="csr") if parts else scipy.sparse.csr_array((0, x.shape[1]))
    product.sort_indices()
    arrays = (torch.from_numpy(a).to(x.device) for a in (product.indptr, product.indices, product.data))
    rowptr, columns, values = arrays
    return rowptr, columns, values.to(x.dtype)


def _to_columns(pattern: Pattern, values: Tensor) -> Tensor:
    return ops.apply(ops.Permute, values, pattern.order, pattern.inverse_order)


def _to_rows(pattern: Pattern, values: Tensor) -> Tensor:
    return ops.apply(ops.Permute, values, pattern.inverse_order, pattern.order)
