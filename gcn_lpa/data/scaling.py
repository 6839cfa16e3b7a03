"""Scaling of raw features before a model reads them, and structural features: degree, PageRank … of a node as columns."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

FEATURE_KINDS = ("raw", "row", "l2", "tfidf", "auto")
BLOCK_KINDS = ("words", "numbers", "table", "scaled words")
WORDS = ("words", "scaled words")
STRUCTURAL = "structural features"  # the name of their block
SCALED = "scaled"  # the name of the block of all columns, where it is not known what they are
FEWEST_WORDS = 10  # fewer columns of counts are numbers
SKEWED = 2.0  # that of an exponential distribution; beyond it a logarithm is taken
ROWS_AT_ONCE = 1 << 20  # numbers in a block of rows that is scaled, 8 MB
ROWS_JOINED = 1 << 16  # of sparse matrices side by side
FARTHEST = 5.0  # standard deviations
LEAST_SPREAD = 1e-9  # a structural feature that varies less is constant


@dataclass(frozen=True)
class Block:
    """Columns start..stop-1 of the features, and what they are.

    "words" are counts or TF-IDF of words: rows are scaled to length 1. "numbers" are raw: columns are standardised.
    "table" and "scaled words" are ready as they are.
    """

    name: str
    kind: str  # one of BLOCK_KINDS
    start: int
    stop: int


def check_kind(kind: str) -> None:
    if kind not in FEATURE_KINDS:
        raise ValueError(f"unknown features {kind!r}; there are {', '.join(FEATURE_KINDS)}")


def inferred_kind(x: Any) -> str:
    """What the columns of an array or sparse matrix seem to be: words where they are many, and mostly zero and never less."""
    number = x.count_nonzero() if scipy.sparse.issparse(x) else np.count_nonzero(x)
    is_many = x.shape[1] >= FEWEST_WORDS and x.shape[0] > 0
    return "words" if is_many and 2 * number <= x.shape[0] * x.shape[1] and x.min() >= 0 else "numbers"


def check_blocks(blocks: Sequence[Block], num_columns: int) -> None:
    """Refuse blocks that do not cover all columns, one after the other."""
    start = 0
    for block in blocks:
        if block.kind not in BLOCK_KINDS:
            raise ValueError(f"block {block.name!r} has kind {block.kind!r}; there are {', '.join(BLOCK_KINDS)}")
        if block.start != start or block.stop <= start:
            raise ValueError(f"block {block.name!r} is columns {block.start} to {block.stop}; the next one is {start}")
        start = block.stop
    if blocks and start != num_columns:
        raise ValueError(f"the blocks end at column {start:,}, but there are {num_columns:,}")


def single_columns(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of columns that have a meaning each, unlike words; empty where it is not known what the columns are."""
    single = [block for block in blocks if block.kind not in WORDS]
    return [] if all(block.name in (STRUCTURAL, SCALED) for block in single) else single


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features raw, divided by their row sum, by their length, as TF-IDF, or each block by its kind; and what was learned for it.

    Rows of zeros stay zero and sparse stays sparse. A row sum is one of absolute values. TF-IDF is scikit-learn's:
    x_id (1 + ln((1 + n) / (1 + n_d))), then rows of length 1.

    "auto" divides the rows of each block of words by their length and standardises each column of numbers: of a skewed one
    sign(u) ln(1 + |u|) with u = (v - median) / (median distance to it), then mean 0, deviation 1, at most 5 from the mean.
    So neither the unit of a column nor its zero matters. A constant column becomes 0.
    """

    kind: str
    idf: np.ndarray | None = None  # tfidf, [d]
    structure: np.ndarray | None = None  # mean and standard deviation of each structural feature, [2, s]
    blocks: tuple[Block, ...] = ()  # auto
    numbers: np.ndarray | None = None  # auto, of the columns in blocks of numbers: see `_learned_numbers`, [4, m]

    @classmethod
    def learned(cls, kind: str, x: Any, blocks: Sequence[Block] = ()) -> Scaling:
        """The scaling of a kind for the columns of x, an array or sparse matrix; "auto" infers blocks that are not given."""
        check_kind(kind)
        if kind == "auto":
            blocks = tuple(blocks) or (Block("x", inferred_kind(x), 0, x.shape[1]),)
            check_blocks(blocks, x.shape[1])
            numbers = [_learned_numbers(_columns(x, block)) for block in blocks if block.kind == "numbers"]
            return cls(kind, blocks=blocks, numbers=np.hstack(numbers) if numbers else None)
        if kind == "tfidf":
            _check_counts(x)
            present = np.asarray((x != 0).sum(axis=0)).ravel()
            return cls(kind, 1 + np.log((1 + x.shape[0]) / (1 + present)))
        return cls(kind)

    def with_structure(self, columns: np.ndarray) -> Scaling:
        """The same with structural features beside the columns, as learned from these, [n, s]."""
        spread = np.where(columns.std(axis=0) > LEAST_SPREAD, columns.std(axis=0), 1)
        return dataclasses.replace(self, structure=np.stack([columns.mean(axis=0), spread]))

    @property
    def num_added(self) -> int:
        """How many structural features are added."""
        return 0 if self.structure is None else int(self.structure.shape[1])

    def blocks_of(self, num_columns: int) -> tuple[Block, ...]:
        """What the scaled columns are, with the structural features: ready as they are, and words by themselves."""
        kinds = ["scaled words" if block.kind in WORDS else "table" for block in self.blocks]
        scaled = [dataclasses.replace(block, kind=kind) for block, kind in zip(self.blocks, kinds, strict=True)]
        start, name = (scaled[-1].stop, STRUCTURAL) if scaled else (0, SCALED)
        return (*scaled, *([Block(name, "table", start, num_columns)] if start < num_columns else []))

    def arrays(self) -> dict[str, np.ndarray]:
        """What was learned; `from_arrays` takes it back."""
        bounds = [(BLOCK_KINDS.index(block.kind), block.start, block.stop) for block in self.blocks]
        blocks = np.array(bounds, dtype=np.int64) if bounds else None
        arrays = {"idf": self.idf, "structure": self.structure, "blocks": blocks, "numbers": self.numbers}
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, np.ndarray], num_columns: int) -> Scaling:
        """The scaling that gave `arrays`; those that do not fit its kind or the number of columns are refused."""
        check_kind(kind)
        idf, structure, bounds, numbers = (arrays.get(name) for name in ("idf", "structure", "blocks", "numbers"))
        for name, array, owner in (("idf", idf, "tfidf"), ("blocks", bounds, "auto")):
            if (array is not None) != (kind == owner):
                raise ValueError(f"{name} goes with features {owner!r} and no others; these are {kind!r}")
        blocks = () if bounds is None else _blocks_in(bounds)
        check_blocks(blocks, num_columns)
        num_numbers = sum(block.stop - block.start for block in blocks if block.kind == "numbers")
        if (numbers is None) != (num_numbers == 0):
            raise ValueError(f"the blocks have {num_numbers} columns of numbers, but numbers is {numbers}")
        if idf is not None and not _is_finite(idf, (num_columns,)):
            raise ValueError(f"idf is not a finite number for each of the {num_columns} columns")
        if numbers is not None and not _is_finite(numbers, (4, num_numbers)):
            raise ValueError(f"numbers is not four finite numbers for each of the {num_numbers} columns of numbers")
        num_added = 0 if structure is None else structure.shape[-1]
        if structure is not None and not (_is_finite(structure, (2, num_added)) and (structure[1] > LEAST_SPREAD).all()):
            raise ValueError("structure is not a mean and a positive deviation for each structural feature")
        return cls(kind, idf, structure, blocks, numbers)

    def __call__(self, x: Any, structure: np.ndarray | None = None) -> Any:
        """x scaled, in float64 (the square of 1e30 is beyond float32); beside it structural features, if they were learned."""
        scaled = x if self.kind == "raw" else self._scaled(x.astype(np.float64))
        if self.structure is None or structure is None:
            return scaled
        mean, spread = self.structure
        return side_by_side([scaled, (structure - mean) / spread])

    def in_float32(self, x: Any, structure: np.ndarray | None = None, *, mapped: bool = False) -> Any:
        """The same in float32; of a dense x, a block of rows at a time, so that few are held in float64.

        With `mapped` the result is a temporary file, memory-mapped, which is gone when it is no longer used.
        """
        if scipy.sparse.issparse(x):
            return self(x, structure).astype(np.float32)
        shape = len(x), x.shape[1] + (0 if structure is None else self.num_added)
        result = np.empty(shape, dtype=np.float32)
        if mapped and result.size:
            with tempfile.TemporaryFile() as file:
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not the end of the process later
                    os.posix_fallocate(file.fileno(), 0, result.nbytes)
                result = np.memmap(file, np.float32, "w+", shape=shape)
        num_rows = max(1, ROWS_AT_ONCE // max(1, shape[1]))
        for start in range(0, len(x), num_rows):
            rows = slice(start, start + num_rows)
            result[rows] = self(x[rows], None if structure is None else structure[rows])
        return result

    def _scaled(self, x: Any) -> Any:
        if self.kind == "auto":
            return self._by_block(x)
        if self.idf is not None:
            _check_counts(x)
            x = x * self.idf[None, :]
        return _rows_divided(x, abs(x).sum(axis=1) if self.kind == "row" else _lengths(x))

    def _by_block(self, x: Any) -> Any:
        parts, first = [], 0
        for block in self.blocks:
            part = _columns(x, block)
            if block.kind == "words":
                part = _rows_divided(part, _lengths(part))
            elif block.kind == "numbers" and self.numbers is not None:
                center, scale, mean, rate = self.numbers[:, first : first + part.shape[1]]
                first += part.shape[1]
                u, skewed = part - center, scale > 0
                u[:, skewed] = _tamed(u[:, skewed] / scale[skewed])
                part = np.clip((u - mean) * rate, -FARTHEST, FARTHEST)
            parts.append(part)
        return side_by_side(parts)


def _blocks_in(bounds: np.ndarray) -> tuple[Block, ...]:
    """Blocks from the position of their kind in BLOCK_KINDS, their start and their stop, [b, 3]."""
    if bounds.dtype != np.int64 or bounds.ndim != 2 or bounds.shape[1] != 3 or not len(bounds):
        raise ValueError(f"blocks is {bounds.dtype} {list(bounds.shape)}, not int64 [b, 3]")
    if not (bounds[:, 0].min() >= 0 and bounds[:, 0].max() < len(BLOCK_KINDS)):
        raise ValueError(f"blocks has a kind that is not one of 0..{len(BLOCK_KINDS) - 1}")
    return tuple(Block("", BLOCK_KINDS[kind], start, stop) for kind, start, stop in bounds.tolist())


def _learned_numbers(x: np.ndarray) -> np.ndarray:
    """For each column: median, median distance to it (0: no logarithm is taken), mean, and 1 / standard deviation, [4, m]."""
    center, scale, mean, rate = np.zeros((4, x.shape[1]))
    for k in range(x.shape[1]):
        column = x[:, k].astype(np.float64)
        center[k] = np.median(column)
        if column.max() == column.min():
            continue  # it keeps the rate 0
        u = column - center[k]
        z = (u - u.mean()) / u.std()
        if abs((z**3).mean()) > SKEWED:
            scale[k] = np.median(np.abs(u[u != 0]))
            u = _tamed(u / scale[k])
        mean[k], rate[k] = u.mean(), 1 / u.std()
    return np.stack([center, scale, mean, rate])


def _tamed(u: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.sign(u) * np.log1p(np.abs(u))
    return result


def _columns(x: Any, block: Block) -> Any:
    """The columns of a block; those of words sparse if x is, others dense."""
    part = x if x.shape[1] == block.stop - block.start else x[:, block.start : block.stop]
    return part if block.kind in WORDS or not scipy.sparse.issparse(part) else part.toarray()


def side_by_side(parts: Sequence[Any], dtype: Any = None) -> Any:
    """Matrices as one; it is sparse where one of them is."""
    if not any(map(scipy.sparse.issparse, parts)):
        return np.asarray(parts[0] if len(parts) == 1 else np.hstack(parts), dtype=dtype)
    runs = range(0, parts[0].shape[0], ROWS_JOINED) or range(1)  # of rows: SciPy takes three times what it joins
    each = ([scipy.sparse.csr_array(part[k : k + ROWS_JOINED], dtype=dtype) for part in parts] for k in runs)
    rows = [scipy.sparse.hstack(run, format="csr") for run in each]
    return rows[0] if len(rows) == 1 else scipy.sparse.csr_array(scipy.sparse.vstack(rows, format="csr"))


def _lengths(x: Any) -> Any:
    return np.sqrt((x * x).sum(axis=1))


def _rows_divided(x: Any, sizes: Any) -> Any:
    """Each row divided by its size, where that is not 0."""
    sizes = np.asarray(sizes).ravel()
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    return scipy.sparse.csr_array(x.multiply(scale[:, None])) if scipy.sparse.issparse(x) else x * scale[:, None]


def _check_counts(x: Any) -> None:
    if x.min() < 0:
        raise ValueError("tfidf needs features that are counts, but some are negative")


def _is_finite(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    return array.shape == shape and array.dtype == np.float64 and bool(np.isfinite(array).all())


PAGERANK_STEPS, DAMPING = 50, 0.85


def num_structural(directed: bool, *, with_cells: bool) -> int:
    """How many columns `structural_features` gives."""
    return (7 if directed else 4) + 2 * with_cells


def structural_features(matrix: scipy.sparse.csr_array, directed: bool, num_cells: np.ndarray | None = None) -> np.ndarray:
    """log degree (in and out where directed) with its mean over the neighbours and over their neighbours; log PageRank;
    and, with `num_cells`, the log of the number of filled cells with its mean over the neighbours, [n, s].

    Args:
        matrix: entry [i, j] brings j's message to i; self-loops are left out.
        num_cells: how many features of each node are not zero, [n].
    """
    matrix = scipy.sparse.csr_array(matrix)
    if matrix.diagonal().any():
        matrix = scipy.sparse.csr_array(matrix - scipy.sparse.diags_array(matrix.diagonal()))
        matrix.eliminate_zeros()
    present = scipy.sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    sides = [present, present.T] if directed else [present]
    degrees, rank = [np.asarray(side.sum(axis=1)).ravel() for side in sides], _pagerank(present)
    around = (present + present.T != 0).astype(np.float64).tocsr() if directed else present
    walk, columns, size = around, [], np.diff(around.indptr)
    for k in range(0, len(size), ROWS_JOINED):  # in place: a second array would be the largest of all
        run = slice(k, k + ROWS_JOINED)
        walk.data[walk.indptr[k] : walk.indptr[min(k + ROWS_JOINED, len(size))]] = np.repeat(
            1 / np.maximum(size[run], 1), size[run]
        )
    for degree in map(np.log1p, degrees):
        near = walk @ degree
        columns += [degree, near, walk @ near]
    columns.append(np.log(rank))
    if num_cells is not None:
        cells = np.log1p(num_cells.astype(np.float64))
        columns += [cells, walk @ cells]
    return np.stack(columns, axis=1)


def of_sinks(graph: np.ndarray, links: scipy.sparse.csr_array, num_cells: np.ndarray) -> np.ndarray:
    """The structural features of nodes that receive messages from nodes of an undirected graph and send none, [m, s].

    Each is what it would be if this node alone were attached, so it does not depend on the others.

    Args:
        graph: the structural features of the graph's nodes, with those of cells, [n, s].
        links: entry [i, j] where node i receives a message from j of the graph, [m, n].
        num_cells: how many features of each of the nodes are not zero, [m].
    """
    present = (links != 0).astype(np.float64).tocsr()
    num_links = np.diff(present.indptr)
    walk = scipy.sparse.diags_array(1 / np.maximum(num_links, 1)) @ present
    degree, near, _, rank, cells, _ = graph.T
    passed_on = np.exp(rank) / (np.expm1(degree) + 1)  # by a node that sends to one more
    ranks = (1 - DAMPING) + DAMPING * num_links * (walk @ passed_on)
    own = [np.log1p(num_links), walk @ degree, walk @ near, np.log(ranks), np.log1p(num_cells), walk @ cells]
    return np.stack(own, axis=1)


def _pagerank(present: scipy.sparse.csr_array) -> np.ndarray:
    """How often walks come by that start at every node alike and end with probability 0.15 at each step, [n].

    A walk also ends where no arc leads on. The usual PageRank lets it go on from any node, which multiplies all ranks by one
    number that depends on the whole graph: a new node without edges would change every row.
    """
    share = 1 / np.maximum(np.asarray(present.sum(axis=0)).ravel(), 1)  # of a walk that goes from j to one of those after it
    rank = np.ones(present.shape[0])
    for _ in range(PAGERANK_STEPS):
        rank = (1 - DAMPING) + DAMPING * (present @ (share * rank))
    return rank
