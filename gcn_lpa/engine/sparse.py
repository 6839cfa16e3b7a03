"""One sparse matrix with learnable values: the D⁻¹A that label propagation and graph convolution both walk.

`Pattern` says where the entries are; it is built once per graph and shared. `SparseMatrix` is a pattern and its
values. The product `@` is differentiable in the values and in the dense operand, and its backward pass walks
the transpose once for both gradients, so a matrix whose entries are learned costs little more than a constant one.

Nothing here builds an [E, d] array and no kernel uses atomics: the same input gives the same bits.
The kernels are in `cpu_kernels.py` (Numba) and `gpu_kernels.py` (Triton).

Random bits come by counter: a hash of (seed, step, layer, row id, column), the same on every device and in every batch. First
weights come from a `torch.Generator` instead: they are drawn once, on the CPU.
"""

from __future__ import annotations

import functools
import hashlib
import math
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from gcn_lpa.engine import operations as ops
from gcn_lpa.engine.devices import OneProcess

LARGEST_LOG = 60.0  # of a ratio of degrees: only where A is far from symmetric are there larger ones
EDGE_LAYER = 1000  # names random bits that are not a layer's dropout


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


class Pattern(OneProcess):
    """Where the entries of a matrix are: the columns of row i are col[rowptr[i] : rowptr[i + 1]], ascending.

    Nothing changes after construction, so what is derived from a pattern is worked out once and kept with it.

    Where several processes share the rows of a matrix (`scale.ranks.Part`), its columns are in the order of `ids`: sums then have
    the bits of one process.
    """

    cut_from: tuple[str, Tensor] | None = None  # fingerprint of a larger pattern, and the number of each entry there
    # arrays of the pattern whose transpose this is, and not the pattern: two that hold each other would outlive their graph
    _transpose_of: tuple[Tensor, Tensor, Tensor] | None = None
    _turned: Pattern | None = None  # the transpose, once `order` is known; None: it is the pattern itself

    def __init__(self, rowptr: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        fits = max(len(col), *shape) < 2**31
        dtype = torch.int32 if fits else torch.int64
        self.rowptr, self.col = rowptr.to(dtype), col.to(dtype)  # [n + 1], [E]
        self.shape, self.num_entries, self.device = shape, len(col), col.device
        self.most_rows = shape[0]  # of any process
        self._shares: dict[int, list[int]] = {}
        self._repeated: dict[int, Pattern] = {}

    @cached_property
    def row(self) -> Tensor:
        """The row of every entry, [E]."""
        rows = torch.arange(self.shape[0], dtype=self.col.dtype, device=self.device)
        return torch.repeat_interleave(rows, self.rowptr.diff())

    @property
    def T(self) -> Pattern:
        """The transpose: the pattern itself where both have the same entries, as in an undirected graph."""
        _ = self.order
        return self if self._turned is None else self._turned

    @cached_property
    def order(self) -> Tensor:
        """Entry k of the transpose is entry order[k] of the matrix, [E]; sorting anew would dominate the backward pass."""
        if self._transpose_of is not None:
            rowptr, row, order = self._transpose_of
            inverse = torch.empty_like(order)
            inverse[order.long()] = torch.arange(len(order), dtype=order.dtype, device=self.device)
            self._turned = Pattern(rowptr, row, (self.shape[1], self.shape[0]))
            return inverse
        if self.col.is_cuda:
            order = torch.sort(self.col, stable=True).indices.to(self.col.dtype)
            counts = torch.bincount(self.col, minlength=self.shape[1])
            rowptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(self.col.dtype)
            row = self.row.index_select(0, order)
        else:  # SciPy's counting sort is linear and keeps rows ascending
            starts, col, dtype = self.rowptr.numpy(), self.col.numpy(), self.col.dtype
            positions = np.arange(self.num_entries, dtype=col.dtype)
            csc = scipy.sparse.csr_array((positions, col, starts), shape=self.shape).tocsc()
            rowptr, row = torch.from_numpy(csc.indptr).to(dtype), torch.from_numpy(csc.indices).to(dtype)
            order = torch.from_numpy(csc.data)
        is_square = self.shape[0] == self.shape[1] and not self.is_part
        if not (is_square and torch.equal(row, self.col) and torch.equal(rowptr, self.rowptr)):
            self._turn(rowptr, row, order)
        return order

    def _turn(self, rowptr: Tensor, row: Tensor, order: Tensor) -> None:
        """Keep the transpose that has these arrays."""
        self._turned = Pattern(rowptr, row, (self.shape[1], self.shape[0]))
        self._turned._transpose_of = self.rowptr, self.col, order

    @cached_property
    def reverse(self) -> Tensor:
        """The number of the entry (j, i) for each entry (i, j), -1 where it is not stored, [E]."""
        row, col = (ends.cpu().numpy().astype(np.int64) for ends in (self.row, self.col))
        here, back = row * self.shape[1] + col, col * self.shape[1] + row  # ascending, and what is looked for in it
        at = np.minimum(np.searchsorted(here, back), max(0, len(here) - 1))
        return torch.from_numpy(np.where(here[at] == back, at, -1) if len(here) else at).to(self.device)

    def repeated(self, count: int) -> Pattern:
        """So many copies along a diagonal: a stack of matrices with these entries as one matrix."""
        blocks = self._repeated.get(count)
        if blocks is None:
            blocks = Pattern(*self._copies(count), (count * self.shape[0], count * self.shape[1]))
            at = torch.arange(count, dtype=blocks.col.dtype, device=self.device).unsqueeze(1)
            order = blocks.__dict__["order"] = (self.order + at * self.num_entries).flatten().to(blocks.col.dtype)
            if self._turned is not None:
                blocks._turn(*self._turned._copies(count), order)
            for old in list(self._repeated)[:-3]:  # stacks shrink: only the last few sizes are needed again
                self._repeated.pop(old, None)  # another thread may have been here
            self._repeated[count] = blocks
        return blocks

    def _copies(self, count: int) -> tuple[Tensor, Tensor]:
        fits = count * max(self.num_entries, *self.shape) < 2**31
        at = torch.arange(count, dtype=torch.int32 if fits else torch.int64, device=self.device).unsqueeze(1)
        starts = (self.rowptr[:-1] + at * self.num_entries).flatten()
        rowptr = torch.cat([starts, starts.new_full((1,), count * self.num_entries)])
        return rowptr, (self.col + at * self.shape[1]).flatten()

    def shares(self, num_workers: int) -> list[int]:
        """Row numbers that cut the matrix into `num_workers` runs of about equal work (entries plus rows)."""
        if num_workers not in self._shares:
            rowptr = self.rowptr.cpu().numpy().astype(np.int64)
            work = rowptr + np.arange(len(rowptr))
            cuts = np.searchsorted(work, np.linspace(0, work[-1], num_workers + 1)[1:-1])
            self._shares[num_workers] = [0, *cuts.tolist(), self.shape[0]]
        return self._shares[num_workers]

    @cached_property
    def is_identity(self) -> bool:
        n = self.shape[0]
        if self.shape[0] != self.shape[1] or self.num_entries != n:
            return False
        diagonal = torch.arange(n, device=self.device)
        return bool((self.rowptr[:-1] == diagonal).all() and (self.col == diagonal).all())

    @cached_property
    def fingerprint(self) -> str:
        """The same for equal patterns, on any device."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for array in (self.rowptr, self.col):
            digest.update(array.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> Pattern:
        if (col := self.col.to(device)) is self.col:  # it is there already
            return self
        moved = Pattern(self.rowptr.to(device), col, self.shape)
        if "order" in self.__dict__:
            order = moved.__dict__["order"] = self.order.to(device)
            if self._turned is not None:
                moved._turn(self._turned.rowptr.to(device), self._turned.col.to(device), order)
        if self.cut_from is not None:
            moved.cut_from = self.cut_from[0], self.cut_from[1].to(device)
        return moved

    def within(self, kept: Tensor) -> Pattern:
        """The pattern of the entries in a mask, [E]."""
        return Pattern(*self._entries(kept), self.shape)

    def _entries(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        return number.index_select(0, self.rowptr.long()), self.col[kept]

    def row_sum(self, values: Tensor) -> Tensor:
        """Σ_j over the entries of each row, [E] -> [n]."""
        _check_length(values, self.num_entries)
        return ops.apply(ops.RowSum, self, values)

    def spread_rows(self, per_row: Tensor) -> Tensor:
        """Give entry (i, j) the number of row i, [n] -> [E]. The gradient is a row sum, never an atomic add."""
        _check_length(per_row, self.shape[0])
        return ops.apply(ops.SpreadRows, self, per_row)

    def spread_cols(self, per_col: Tensor) -> Tensor:
        """Give entry (i, j) the number of column j, [m] -> [E]."""
        per_col = self.gathered(per_col)
        _check_length(per_col, self.shape[1])
        return ops.apply(ops.Transpose, self.T, ops.apply(ops.SpreadRows, self.T, per_col))

    def edge_dot(self, u: Tensor, v: Tensor) -> Tensor:
        """u_i · v_j for each entry (i, j), [E]."""
        v = self.gathered(v)
        if (len(u), len(v)) != self.shape or u.shape[1:] != v.shape[1:] or u.dim() != 2:
            shape = f"{self.shape[0]} x {self.shape[1]}"
            raise ValueError(f"edge_dot: a pattern {shape} cannot join rows of {tuple(u.shape)} and {tuple(v.shape)}")
        return ops.apply(ops.EdgeDot, self, u, v)

    def tanh_attention(self, u: Tensor, v: Tensor, a: Tensor) -> Tensor:
        """Σ_h a_h tanh(u_ih + v_jh) for each entry (i, j), [E]."""
        return ops.apply(ops.TanhAttention, self, u, v, a.unsqueeze(0))


def _check_length(values: Tensor, length: int) -> None:  # the kernels trust it
    if values.shape != (length,):
        raise ValueError(f"{length} numbers are needed, not {tuple(values.shape)}")


def _once(derived: Callable[[SparseMatrix], SparseMatrix]) -> Callable[[SparseMatrix], SparseMatrix]:
    """Work out what is derived of a matrix once where its values are constant, as those of a graph are."""

    @functools.wraps(derived)
    def kept(self: SparseMatrix) -> SparseMatrix:
        if not self.is_constant:
            return derived(self)
        return self._kept.get(derived.__name__) or self._kept.setdefault(derived.__name__, derived(self))

    return kept


class SparseMatrix:
    """A pattern and one value per entry, in row order; products are differentiable in both operands."""

    _turned: tuple[Tensor, int, int] | None = None  # `transposed_values`, and the versions they and the values had

    def __init__(self, pattern: Pattern, values: Tensor) -> None:
        if values.shape != (pattern.num_entries,):
            raise ValueError(f"a pattern of {pattern.num_entries} entries has that many values, not {[*values.shape]}")
        self.pattern, self.values, self._kept = pattern, values, dict[str, SparseMatrix]()
        self.shape, self.num_entries = pattern.shape, pattern.num_entries
        self.dtype, self.device = values.dtype, values.device

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """Any SciPy sparse matrix; duplicate entries are summed, columns sorted."""
        csr = scipy.sparse.csr_array(matrix)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        arrays = csr.indptr, csr.indices, csr.data  # NumPy marks read-only arrays, torch cannot: copy those
        rowptr, col, data = (torch.from_numpy(a if a.flags.writeable else a.copy()) for a in arrays)
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

    def __repr__(self) -> str:
        return f"SparseMatrix({self.shape[0]:,} x {self.shape[1]:,}, {self.num_entries:,} entries, {self.dtype}, {self.device})"

    def with_values(self, values: Tensor) -> SparseMatrix:
        """The same pattern with other values."""
        return SparseMatrix(self.pattern, values)

    def __matmul__(self, x: Tensor) -> Tensor:
        x = self.pattern.gathered(x)
        if x.dim() not in (1, 2) or self.shape[1] != x.shape[0]:
            raise ValueError(f"cannot multiply {self.shape[0]} x {self.shape[1]} by {tuple(x.shape)}")
        if x.dtype != self.dtype and not x.is_cuda:  # the GPU kernels mix types
            raise ValueError(f"cannot multiply a matrix of {self.dtype} by {x.dtype}; convert one with .to()")
        y = x.unsqueeze(1) if x.dim() == 1 else x
        if self.pattern.is_identity and not self.values.requires_grad:
            y = y if self.is_identity else y * self.values.unsqueeze(1)
        else:
            learns = self.values.requires_grad and torch.is_grad_enabled()  # inside torch.func no tensor seems to
            values_t = self.transposed_values if learns or ops.is_wrapped(self.values) else None
            y = ops.apply(ops.Product, self, self.values, values_t, y)
        return y.squeeze(1) if x.dim() == 1 else y

    def polynomial(self, coefficients: Tensor | Sequence[float], x: Tensor) -> Tensor:
        """Σ_k c_k A^k x, [n, d]."""
        if self.is_constant and not (x.is_cuda or self.pattern.is_part):
            return ops.apply(ops.Polynomial, self, torch.as_tensor(coefficients, dtype=x.dtype), x)
        total = coefficients[0] * x
        for k in range(1, len(coefficients)):
            x = self @ x
            total = total + coefficients[k] * x
        return total

    @property
    def T(self) -> SparseMatrix:
        turned = SparseMatrix(self.pattern.T, self.transposed_values)
        turned._turned = self.values, ops.version_of(turned.values), ops.version_of(self.values)
        return turned

    @property
    def transposed_values(self) -> Tensor:
        """The values in the order of the transpose, [E]: permuted once, then shared by every product.

        Products hand their gradient to this tensor, in this order, so it too is permuted back only once.
        """
        if self._turned is not None:
            turned, *versions = self._turned
            is_cut = self.values.requires_grad and torch.is_grad_enabled() and not turned.requires_grad  # by no_grad
            if not is_cut and versions == [ops.version_of(self.values), ops.version_of(turned)]:
                return turned
        turned = ops.apply(ops.Transpose, self.pattern, self.values)
        self._turned = turned, ops.version_of(self.values), ops.version_of(turned)
        if turned.requires_grad and not ops.is_wrapped(turned):
            myself = weakref.ref(self)

            def forget(_: Tensor) -> None:  # no product needs it once its gradient is there: [E] less at the peak
                if (matrix := myself()) is not None:
                    matrix._turned = None

            turned.register_hook(forget)
        return turned

    @property
    def reversed_values(self) -> Tensor:
        """The value of (j, i) at entry (i, j), 0 where it is not stored, [E]."""
        if self.pattern.T is self.pattern:
            return self.transposed_values
        back = self.pattern.reverse
        return torch.where(back >= 0, self.values.index_select(0, back.clamp_min(0)), 0)

    @property
    def is_constant(self) -> bool:
        """Whether the values are one known array, neither learned nor a stack of many models' values."""
        return not self.values.requires_grad and not ops.is_wrapped(self.values)

    @cached_property
    def is_identity(self) -> bool:
        return self.pattern.is_identity and self.is_constant and bool((self.values == 1).all())

    @cached_property
    def is_zero(self) -> bool:
        """Whether every stored value is a constant 0, such as the log of an unweighted graph."""
        return self.is_constant and not bool(self.values.any())

    def add(self, values: Tensor) -> SparseMatrix:
        return self.with_values(values if self.is_zero else self.values + values)

    @_once
    def log(self) -> SparseMatrix:
        return self.with_values(self.values.log())

    @_once
    def between_nodes(self) -> SparseMatrix:
        """D⁻¹A without its diagonal."""
        kept = self.pattern.row != self.pattern.col
        return SparseMatrix(self.pattern.within(kept), self.values[kept]).row_normalized()

    def diagonal(self) -> Tensor:
        """a_ii, zero where it is not stored, [n]."""
        on_diagonal = (self.pattern.row == self.pattern.col).to(self.dtype)
        return self.pattern.row_sum(self.values * on_diagonal)

    def row_sums(self) -> Tensor:
        return ops.apply(ops.RowSum, self.pattern, self.values)

    @_once
    def row_normalized(self) -> SparseMatrix:
        """D⁻¹A. A row without entries stays empty."""
        return self.with_values(self.values / self.pattern.spread_rows(self.row_sums()))

    @_once
    def symmetric_normalized(self) -> SparseMatrix:
        """D^-½ A D^-½ with D the row sums; for an undirected A, Kipf and Welling's matrix."""
        degree = self.row_sums()
        scale = degree.clamp_min(torch.finfo(self.dtype).tiny).rsqrt() * (degree > 0)  # 0 where nothing arrives
        return self.with_values(self.values * self.pattern.spread_rows(scale) * self.pattern.spread_cols(scale))

    def row_softmax(self) -> SparseMatrix:
        """exp(a_ij) / Σ_j exp(a_ij): row normalisation of exp(A), without overflow."""
        return self.with_values(ops.apply(ops.RowSoftmax, self.pattern, self.values))

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
        share = self.row_softmax().values
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
        kept: Tensor = (dropout(ones, rate, key, EDGE_LAYER).values > 0) | (self.pattern.row == self.pattern.col)
        return kept

    def square_norms(self, weights: Tensor | None = None) -> Tensor:
        """Σ_d w_d x_id² of each row, [n]."""
        squares = self.with_values(self.values.square())
        return squares.row_sums() if weights is None else squares @ weights

    def row_products(self, pairs: Pattern) -> SparseMatrix:
        """x_i ∘ x_j for each pair (i, j) of rows of this constant matrix, [pairs, d], as sparse as the overlap of the two.

        So Σ_d w_d x_id x_jd for all pairs is one product with w, and its gradient one product with the transpose.
        """
        matrix, row, col = self.to_scipy(), pairs.row.cpu().numpy(), pairs.col.cpu().numpy()
        block = max(1, 4_000_000 * max(1, self.shape[0]) // max(1, self.num_entries))  # few products are held twice
        parts = [matrix[row[k : k + block]].multiply(matrix[col[k : k + block]]) for k in range(0, len(row), block)]
        products = scipy.sparse.vstack(parts, format="csr") if parts else scipy.sparse.csr_array((0, self.shape[1]))
        products.sort_indices()
        return SparseMatrix.from_scipy(products, self.dtype).to(self.device)

    def to_dense(self) -> Tensor:
        flat = self.pattern.row.long() * self.shape[1] + self.pattern.col.long()
        return self.values.new_zeros(self.shape[0] * self.shape[1]).index_put((flat,), self.values).view(self.shape)

    def to_scipy(self) -> scipy.sparse.csr_array:
        arrays = (a.detach().cpu().numpy() for a in (self.values, self.pattern.col, self.pattern.rowptr))
        return scipy.sparse.csr_array(tuple(arrays), shape=self.shape)

    def to(self, target: torch.device | str | torch.dtype) -> SparseMatrix:
        """The same matrix on a device or in a floating type."""
        if isinstance(target, torch.dtype):
            return self.with_values(self.values.to(target))
        return SparseMatrix(self.pattern.to(target), self.values.to(target))

    def detach(self) -> SparseMatrix:
        return SparseMatrix(self.pattern, self.values.detach())


def dropout(x: Any, rate: float, key: Key | None, layer: int, rows: Tensor | None = None) -> Any:
    """Dropout of a Tensor or SparseMatrix by counter: without a key, or at rate 0, x itself. A pattern stays as it is.

    The bits of an element depend on (seed, step, layer, row id, column) alone, so dense and sparse, CPU and GPU,
    a batch and the whole graph drop the same elements. `rows` gives the global ids of the rows of a batch; None: those of the key.
    """
    if key is None or rate == 0:
        return x
    rows, bits = key.rows if rows is None else rows, (rate, key.seed, key.step_tensor(x.device), layer)
    if isinstance(x, Tensor):
        row = torch.arange(len(x), device=x.device) if rows is None else rows
        return ops.apply(ops.Dropout, x, row, None, *bits)
    pattern: Pattern = x.pattern
    row = pattern.row if rows is None else rows.index_select(0, pattern.row)
    col = pattern.col if pattern.ids is None else pattern.ids.index_select(0, pattern.col)
    dropped = x.with_values(ops.apply(ops.Dropout, x.values, row, col, *bits))
    dropped.__dict__["is_identity"] = False  # a step that is being recorded may not ask the device
    return dropped


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
