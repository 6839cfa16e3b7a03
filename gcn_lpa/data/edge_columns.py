"""The columns of a list of edges, and the short functions of them that say how much an edge weighs.

An edge e of a list weighs a_e exp(Σ_c f_c(e)), with a_e as given. f_c of a number or a date is piecewise linear between quantiles
of the column, of a category one number for each value; a missing cell has one of its own. All f_c are 0 on average over the edges
they were learned for, so that an average edge keeps its weight. Edges between the same two nodes add up: M_ij is the mean of
exp(Σ_c f_c) over them, weighed by a_e, and how many there are is a column too.

`edges.Columns` learns the f_c. Nothing here reads a label.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import is_missing, some
from gcn_lpa.data.column_types import Cells, Encoder
from gcn_lpa.data.constructors import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.encoders import BooleanColumn, CategoryColumn, Columns, DateColumn, LeftOut, NumberColumn, encoder_of
from gcn_lpa.data.files import decode_as
from gcn_lpa.data.table import Table
from gcn_lpa.engine.sparse import Pattern, SparseMatrix

KNOTS = 10  # of a column of numbers or dates, at its quantiles .05, .15 … .95
FARTHEST = 20.0  # |Σ_c f_c|: no edge weighs more than e^20 times another
ASIDE, GONE = -100.0, -200.0  # levels of edges that stay at nodes without any other, or nowhere
MOST_ALONE = 12  # categories that are tried alone
MOST = 1e6  # of one value, which a file may hold
COUNT, TYPE = "number of edges", "edge type"  # columns that no file names
OTHER = "(other)"
KINDS = (NumberColumn, DateColumn, BooleanColumn, CategoryColumn)


@dataclass(frozen=True, kw_only=True)
class EdgeFunction:
    """What was learned of one column: how its cells are read, where its function bends, and how often each of its values occurs."""

    reader: Encoder
    knots: tuple[float, ...] = ()  # of numbers, and of dates in days since 1970, ascending; (): a category
    shares: tuple[float, ...] = ()  # the mean of each column of the basis where it was learned

    def __post_init__(self) -> None:
        """Refuse a state, which may come from a file, that is no function."""
        if not isinstance(self.reader, KINDS):
            raise ValueError(f"column {self.name!r:.40}: edges are not weighed by one of kind {self.reader.kind!r}")
        is_smooth = isinstance(self.reader, (NumberColumn, DateColumn))
        if bool(self.knots) != is_smooth or not (np.diff(self.knots) > 0).all() or len(self.knots) > KNOTS:
            right = f"numbers and dates have at most {KNOTS} ascending knots, others none"
            raise ValueError(f"column {self.name!r:.40}: knots are {self.knots!r:.40}; {right}")
        if len(self.shares) != self.width or not all(0 <= share <= 1 for share in self.shares):
            raise ValueError(f"column {self.name!r:.40}: shares are {self.width} numbers between 0 and 1")

    @property
    def name(self) -> str:
        return self.reader.name

    @property
    def values(self) -> tuple[str, ...]:
        """The values of a category, in the order of its basis; of yes and no the one that is 0 first."""
        if isinstance(self.reader, BooleanColumn):
            return self.reader.false, self.reader.true
        if isinstance(self.reader, CategoryColumn):
            return (*self.reader.values, *([OTHER] if self.reader.other else []))
        return ()

    @property
    def width(self) -> int:
        """The number of columns of its basis: knots or values, and one for missing cells."""
        return (len(self.knots) or len(self.values)) + bool(self.reader.missing)

    @classmethod
    def learned(cls, reader: Encoder, values: np.ndarray) -> EdgeFunction | None:
        """The function of a column with these values, see `values_of`; None where all cells say the same."""
        is_smooth = isinstance(reader, (NumberColumn, DateColumn))
        knots = quantiles(values) if is_smooth else ()
        if is_smooth and len(knots) + bool(reader.missing) < 2:
            return None
        blank = object.__new__(cls)  # without shares, which its basis gives
        blank.__dict__.update(reader=reader, knots=knots, shares=())
        basis = blank.basis(values)
        shares = np.clip(basis.sum(axis=0) / max(1, len(values)), 0, 1)
        return cls(reader=reader, knots=knots, shares=tuple(shares.tolist()))

    def basis(self, values: np.ndarray) -> scipy.sparse.csr_array:
        """[rows, width]: between two knots a row has two numbers that sum to 1, elsewhere a 1; a value that is new has none."""
        shape, is_missing = (len(values), self.width), np.isnan(values)
        gone = np.flatnonzero(is_missing) if self.reader.missing else np.empty(0, np.int64)
        here = np.flatnonzero(~is_missing)
        if self.knots:
            knots, last = np.array(self.knots), len(self.knots) - 1
            x = np.clip(values[here], knots[0], knots[-1])
            left = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, max(0, last - 1))
            right = np.minimum(left + 1, last)
            part = (x - knots[left]) / np.where(right > left, knots[right] - knots[left], 1.0)
            entries = [(1 - part, here, left), (part, here, right)]
        else:
            here = here[values[here] < len(self.values)]
            entries = [(np.ones(len(here)), here, values[here].astype(np.int64))]
        entries.append((np.ones(len(gone)), gone, np.full(len(gone), shape[1] - 1)))
        data, row, column = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        basis = scipy.sparse.coo_array((data, (row, column)), shape=shape).tocsr()
        basis.eliminate_zeros()
        return basis

    def levels(self) -> np.ndarray:
        """The matrix that turns what is learned into the values of the function, [width, learned].

        Of knots the steps from one to the next are learned: pulled to 0, they make a smooth function where little is known. A
        missing cell is then pulled to the mean of the others.
        """
        number = len(self.knots)
        levels = np.eye(self.width)
        if not number:
            return levels
        steps, shares = np.tril(np.ones((number, number))), np.array(self.shares[:number])
        levels[:number, :number] = steps - shares @ steps / (shares.sum() or 1.0)
        return levels[:, 1:]


def values_of(reader: Encoder, cells: Cells) -> np.ndarray:
    """The cells of a column: numbers, days since 1970, 0 and 1, or the number of a category; NaN where missing, [rows]."""
    if isinstance(reader, CategoryColumn):
        codes = reader.codes(cells).astype(np.float64)
        return np.where(codes < 0, np.nan, codes)
    assert isinstance(reader, (NumberColumn, DateColumn, BooleanColumn))
    return reader.values(cells)


def quantiles(values: np.ndarray) -> tuple[float, ...]:
    """Where the function of a column bends: at its distinct values, or, where there are more, at quantiles."""
    values = values[~np.isnan(values)]
    distinct = np.unique(values)
    if len(distinct) > KNOTS:
        distinct = np.unique(np.quantile(values, (np.arange(KNOTS) + 0.5) / KNOTS, method="nearest"))
    return tuple(distinct.tolist())


@dataclass(frozen=True)
class EdgeFunctions:
    """The functions of all columns, side by side."""

    each: tuple[EdgeFunction, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(function.name for function in self.each)

    @property
    def width(self) -> int:
        return sum(function.width for function in self.each)

    def summaries(self) -> tuple[str, ...]:
        """How each column is read, for a person."""
        lines = []
        for f in self.each:
            words, gone = f"{len(f.knots)} knots" if f.knots else some(f.values, 3), f.reader.summary.missing
            missing = f", {gone:,} cell{'s' * (gone > 1)} missing" if gone else ""
            lines.append(f"{f.name} -> {f.reader.kind} ({words}){missing}")
        return tuple(lines)

    def alone(self) -> list[tuple[float, ...]]:
        """The values of all functions under which edges of one category stand alone, for the columns with fewest."""
        starts = np.cumsum([0, *(f.width for f in self.each)]).tolist()
        narrow = sorted((f.width, start, f) for f, start in zip(self.each, starts, strict=False) if f.values)
        found: list[tuple[float, ...]] = []
        for _, start, f in narrow:
            if len(found) + len(f.values) > MOST_ALONE:
                break
            others = np.zeros((len(f.values), self.width))
            others[:, start : start + f.width] = ASIDE
            others[np.arange(len(f.values)), start + np.arange(len(f.values))] = 0.0
            found += map(tuple, others.tolist())
        return found

    def idle(self, levels: Tensor) -> tuple[set[str], float]:
        """The values whose edges stand aside, and what these weigh where they stay: as many telling edges as there are for each."""
        values = [value for f in self.each for value in (*f.values, *[""] * (f.width - len(f.values)))]
        shares = [share for f in self.each for share in f.shares]
        at = [k for k, level in enumerate(levels.tolist()) if level <= ASIDE / 2]
        share = sum(shares[k] for k in at)
        is_gone = bool(levels.min() < (ASIDE + GONE) / 2)
        return {values[k] for k in at}, 0.0 if is_gone else min(1.0, (1 - share) / share) if share else 1.0

    def levels(self) -> Tensor:
        """What is learned of all functions to their values, less the mean over the edges, [width, learned]."""
        blocks = []
        for function in self.each:
            levels = function.levels()
            blocks.append(levels - np.array(function.shares) @ levels)
        whole = scipy.sparse.block_diag(blocks).toarray()
        return torch.from_numpy(np.asarray(whole, dtype=np.float32))

    def to_json(self) -> dict[str, Any]:
        readers = Columns(tuple(function.reader for function in self.each)).to_json()
        return {
            "readers": readers,
            **{name: [list(getattr(f, name)) for f in self.each] for name in ("knots", "shares")},
        }

    @classmethod
    def from_json(cls, state: Any) -> EdgeFunctions:
        """The functions that `to_json` gave; whatever else is refused."""
        facts = decode_as(dict[str, Any], state, "edge columns")
        if set(facts) != {"readers", "knots", "shares"}:
            raise ValueError(f"edge columns have readers, knots and shares, not {', '.join(facts)}")
        knots, shares = (decode_as(list[tuple[float, ...]], facts[name], name) for name in ("knots", "shares"))
        readers = Columns.from_json(facts["readers"]).encoders
        if not len(readers) == len(knots) == len(shares):
            raise ValueError("edge columns have as many readers as knots and shares")
        each = zip(readers, knots, shares, strict=True)
        return cls(tuple(EdgeFunction(reader=reader, knots=k, shares=s) for reader, k, s in each))


@dataclass(frozen=True)
class EdgeWeights:
    """What was learned of the functions, and whether held-out labels support it."""

    functions: EdgeFunctions
    folds: tuple[tuple[float, ...], ...]  # the values of all functions, [functions.width], of the model of each fold
    gain: float  # the mean over held-out labels of how much higher the log of their probability is than along the given edges
    error: float  # its standard error
    is_used: bool

    def __post_init__(self) -> None:
        wrong = [levels for levels in self.folds if len(levels) != self.functions.width]
        if wrong or not self.folds:
            number = len((wrong or [()])[0])
            raise ValueError(f"edge weights have {self.functions.width} values for each fold, not {number}")
        if any(abs(level) > MOST for levels in self.folds for level in levels):
            raise ValueError(f"edge weights are logs of at most {MOST:g}")

    def along(self, later: EdgeWeights | None, number: int) -> EdgeWeights:
        """These weights with those that were then learned of the edges that they leave, for a number of folds."""
        if later is None or not later.is_used:
            return dataclasses.replace(self, folds=self.folds[:1] * number)
        folds = tuple(tuple(np.add(levels, self.folds[0]).tolist()) for levels in later.folds)
        return EdgeWeights(self.functions, folds, self.gain + later.gain, math.hypot(self.error, later.error), True)

    def to_json(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("gain", "error", "is_used")}
        return {"functions": self.functions.to_json(), "folds": [list(levels) for levels in self.folds], **facts}

    @classmethod
    def from_json(cls, state: Any) -> EdgeWeights:
        """The weights that `to_json` gave; whatever else is refused."""
        facts = decode_as(dict[str, Any], state, "edge_weights")
        functions = EdgeFunctions.from_json(facts.pop("functions", None))
        kinds = {"folds": tuple[tuple[float, ...], ...], "gain": float, "error": float, "is_used": bool}
        if facts.keys() != kinds.keys():
            raise ValueError(f"edge_weights have functions, {', '.join(kinds)}, not {', '.join(facts)}")
        return cls(functions, **{name: decode_as(kind, facts[name], name) for name, kind in kinds.items()})

    @property
    def levels(self) -> Tensor:
        """The mean over the folds, float32, [functions.width]."""
        return torch.tensor(self.folds, dtype=torch.float64).mean(dim=0).float()

    def of_fold(self, k: int) -> Tensor:
        return torch.tensor(self.folds[k], dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class EdgeColumns:
    """The edges as they were listed, [rows], with what their columns say; nodes are positions in the graph."""

    functions: EdgeFunctions
    row: Tensor  # the receiving end of each, int64
    col: Tensor  # the sending end
    weight: Tensor  # as given, or 1
    basis: SparseMatrix  # [rows, functions.width]
    directed: bool = False
    _shares: weakref.WeakKeyDictionary[Pattern, tuple[SparseMatrix, Tensor]] = field(default_factory=weakref.WeakKeyDictionary)

    @classmethod
    def of_types(cls, types: EdgeTypes, known: EdgeFunctions | None, *, directed: bool) -> EdgeColumns:
        """The edges of each type, whose type is their one column."""
        is_known = known is not None and known.names == (TYPE,)
        types = types.named(known.each[0].values) if known is not None and is_known else types
        rows, columns, weights, codes = [], [], [], []
        for k, matrix in enumerate(types.matrices):
            row, col = matrix.pattern.row.cpu().long(), matrix.pattern.col.cpu().long()
            once = torch.ones_like(row, dtype=torch.bool) if directed else row <= col
            rows.append(row[once])
            columns.append(col[once])
            weights.append(matrix.values.detach().cpu()[once])
            codes.append(np.full(int(once.sum()), k))
        reader, values = CategoryColumn(name=TYPE, values=types.names, other=False), np.concatenate(codes).astype(float)
        function = known.each[0] if known is not None and is_known else EdgeFunction.learned(reader, values)
        assert function is not None
        basis = SparseMatrix.from_scipy(function.basis(values))
        ends = torch.cat(rows), torch.cat(columns)
        return cls(EdgeFunctions((function,)), *ends, torch.cat(weights), basis, directed)

    @property
    def num_rows(self) -> int:
        return len(self.row)

    def to(self, device: torch.device | str) -> EdgeColumns:
        parts = {name: getattr(self, name).to(device) for name in ("row", "col", "weight", "basis")}
        if parts["row"] is self.row:
            return self
        return dataclasses.replace(self, **parts, _shares=weakref.WeakKeyDictionary())

    def between(self, nodes: np.ndarray, num_nodes: int) -> EdgeColumns:
        """The edges between nodes, by their positions in a graph of so many."""
        at = np.full(num_nodes, -1)
        at[nodes] = np.arange(len(nodes))
        row, col = torch.from_numpy(at[self.row.cpu().numpy()]), torch.from_numpy(at[self.col.cpu().numpy()])
        return dataclasses.replace(self, row=row, col=col).of((row >= 0) & (col >= 0))

    def of(self, kept: Tensor) -> EdgeColumns:
        """The listed edges of a mask, [rows]."""
        parts = {name: getattr(self, name).cpu()[kept] for name in ("row", "col", "weight")}
        basis = SparseMatrix.from_scipy(self.basis.to_scipy()[kept.numpy()])
        return dataclasses.replace(self, **parts, basis=basis, _shares=weakref.WeakKeyDictionary()).to(self.row.device)

    def idle(self, levels: Tensor) -> Tensor:
        """The listed edges that stand aside, because a category of another value stands alone: a mask [rows] on the CPU."""
        at = (levels.cpu() <= ASIDE / 2).numpy()
        return torch.from_numpy(self.basis.to_scipy()[:, at].sum(axis=1) > 0)

    @property
    def differ(self) -> bool:
        """Whether the columns tell any two listed edges apart."""
        basis = self.basis.to_scipy()
        return self.num_rows > 1 and bool((basis.max(axis=0) - basis.min(axis=0)).max() > 0)

    def shares(self, pattern: Pattern) -> tuple[SparseMatrix, Tensor]:
        """The share of each listed edge in the weight of each entry of a pattern, [E, rows], and which entries have none, [E]."""
        if pattern not in self._shares:
            n = pattern.shape[1]
            row, col = self.row.cpu().numpy(), self.col.cpu().numpy()
            number = np.arange(len(row))
            if not self.directed:
                turns = row != col
                pairs = (row, col[turns]), (col, row[turns]), (number, number[turns])
                row, col, number = map(np.concatenate, pairs)
            cells = pattern.row.cpu().numpy().astype(np.int64) * n + pattern.col.cpu().numpy()
            wanted = row * n + col
            at = np.minimum(np.searchsorted(cells, wanted), max(0, len(cells) - 1))
            there = cells[at] == wanted if len(cells) else np.zeros(len(wanted), dtype=bool)
            at, number = at[there], number[there]
            weight = self.weight.cpu().numpy().astype(np.float64)[number]
            total = np.bincount(at, weights=weight, minlength=len(cells))
            entries = (weight / total[at], (at, number))
            matrix = scipy.sparse.coo_array(entries, shape=(len(cells), self.num_rows)).tocsr()
            has_none = torch.from_numpy(total == 0).to(torch.float32)
            shares = SparseMatrix.from_scipy(matrix).to(pattern.device), has_none.to(pattern.device)
            self._shares[pattern] = shares
        return self._shares[pattern]

    def scores(self, levels: Tensor) -> Tensor:
        """Σ_c f_c of each listed edge, where the functions have these values, [width] -> [rows]."""
        basis = self.basis if self.basis.dtype == levels.dtype else self.basis.to(levels.dtype)
        return (basis @ levels).clamp(-FARTHEST, FARTHEST)

    def log_mask(self, pattern: Pattern, levels: Tensor) -> Tensor:
        """log M_ij of every entry of a pattern: 0 where no edge is listed, as at added self-loops, [E]."""
        shares, has_none = self.shares(pattern)
        shares, has_none = shares.to(levels.dtype), has_none.to(levels.dtype)
        return (shares @ self.scores(levels).exp() + has_none).log()

    def parts(self) -> tuple[Any, ...]:
        """All that was read, for a hash."""
        pattern = self.basis.pattern
        return self.row, self.col, self.weight, pattern.rowptr.long(), pattern.col.long(), self.basis.values


@dataclass(frozen=True)
class ListedEdges:
    """The edges of a table: positions of both ends, and the weight of each; None where they have none."""

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    directed: bool

    def counts(self) -> np.ndarray:
        """How many edges of the list join the two nodes of each, in the same direction."""
        pairs = self.source.astype(np.int64) * (1 + max(self.target, default=0)) + self.target
        _, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        return counts[which].astype(np.float64)


def read_edge_columns(
    table: Table, names: Sequence[str], listed: ListedEdges, types: Sequence[str], known: EdgeFunctions | None
) -> tuple[EdgeColumns | None, list[str]]:
    """The columns of a table of edges, and notes on how they were read; None where none can tell edges apart.

    Args:
        types: columns that are categories whatever they look like.
        known: functions that were learned of another list; the table needs their columns.
    """
    cells = {name: Cells(table, name) for name in names}
    counts, notes, functions, values = listed.counts(), list[str](), list[EdgeFunction](), list[np.ndarray]()
    if known is not None:
        wanted = [name for name in known.names if name not in (COUNT, TYPE)]
        if absent := [name for name in wanted if name not in table.columns]:
            held = f"it has {some(list(table.columns), 12)}"
            raise ValueError(f"{table.path.name} has no column {absent[0]!r}, by which the model weighs edges; {held}")
        cells = {name: Cells(table, name) for name in wanted}
        functions = list(known.each)
        values = [counts if f.name == COUNT else values_of(f.reader, cells[f.name]) for f in functions]
        notes = [note for f in functions if f.name != COUNT for note in f.reader.warnings(cells)]
    else:
        for name, column in cells.items():
            reader = CategoryColumn.learned(column) if name in types else encoder_of(column)
            if not isinstance(reader, KINDS):
                why = reader.summary.about if isinstance(reader, LeftOut) else "edges are not weighed by texts"
                notes.append(f"column {name!r} of {table.path.name} is left aside: {why}")
                continue
            notes += reader.warnings_when_learned(cells)
            these = values_of(reader, column)
            if (function := EdgeFunction.learned(reader, these)) is not None:
                functions.append(function)
                values.append(these)
        count = EdgeFunction.learned(NumberColumn(name=COUNT), counts) if len(counts) else None
        if count is not None:
            functions.append(count)
            values.append(counts)
    if not functions:
        return None, notes
    parts = [function.basis(these) for function, these in zip(functions, values, strict=True)]
    basis = SparseMatrix.from_scipy(scipy.sparse.hstack(parts, format="csr"))
    weights = np.ones(len(counts)) if listed.weight is None else listed.weight
    row, col = (torch.from_numpy(side.astype(np.int64)) for side in (listed.target, listed.source))
    weight = torch.from_numpy(weights.astype(np.float32))
    return EdgeColumns(EdgeFunctions(tuple(functions)), row, col, weight, basis, listed.directed), notes


def edge_types_in(table: Table, column: str) -> list[str]:
    """The type of each edge; an empty cell, or more types than can be weighed, are refused."""
    types = ["" if is_missing(cell) else str(cell).strip() for cell in table.columns[column]]
    if "" in types:
        raise ValueError(f"{table.where(types.index(''), column)} is empty; every edge needs a type")
    if (number := len(set(types))) > MOST_EDGE_TYPES:
        raise ValueError(
            f"column {column!r} of {table.path.name} names {number:,} edge types; at most {MOST_EDGE_TYPES} can be weighed. "
            "Put rare ones together, or name another column with option relation=…"
        )
    return types
