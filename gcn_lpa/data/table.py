"""A table read from a file: its columns, found by their names and checked cell by cell.

Errors say file, row, column and value; rows are counted as a spreadsheet shows them, with the header as row 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.data.hints import meant, some

USUAL_NAMES = {
    "id": ("id", "node", "node_id", "nodeid", "name", "key", "paper", "paper_id", "user", "user_id", "account"),
    "label": ("label", "class", "y", "category", "labels", "target"),
    "source": ("source", "src", "from", "u", "head", "start", "citing", "node1", "node_1", "id1", "source_id", "a"),
    "target": ("target", "dst", "to", "v", "tail", "end", "cited", "node2", "node_2", "id2", "target_id", "b"),
    "weight": ("weight", "w", "weights", "strength"),
}

MAX_COLUMNS = 20_000  # of a table
FLOAT32_MAX = float(np.finfo(np.float32).max)

Series = Any  # pandas.Series: of text (see `text_type`), or of any objects where it comes from a Parquet file


@dataclass(frozen=True)
class Table:
    """Columns by name, and the row of the file each of their cells comes from."""

    path: Path
    columns: Mapping[str, Series]
    rows: Sequence[int] | np.ndarray
    first_row_names: bool = False  # the names are the first row of a CSV file, which could be data

    @property
    def name(self) -> str:
        return self.path.resolve().parent.name

    def where(self, row: int, column: str) -> str:
        return f"{self.path.name}, row {self.rows[row]}, column {column!r}"

    def find(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str | None:
        """The column that plays a role: the one asked for (none for ""), else the first free one with a usual name."""
        if wanted is not None:
            return self.stated(role, wanted) if wanted else None
        by_name = {name.lower(): name for name in reversed(list(self.columns)) if name not in taken}
        return next((by_name[usual] for usual in USUAL_NAMES[role] if usual in by_name), None)

    def stated(self, option: str, wanted: str) -> str:
        """A column asked for by its name."""
        if wanted == "":
            raise ValueError(
                f"{option} is '', which names no column of {self.path.name}; leave the option out, or name one"
            )
        if wanted not in self.columns:
            hint = meant(wanted, self.columns)
            raise ValueError(f"{self.path.name} has no column {wanted!r}; it has {some(list(self.columns), 12)}{hint}")
        return wanted

    def require(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str:
        column = self.find(role, None, taken) if wanted is None else self.stated(role, wanted)
        if column is None:
            usual = ", ".join(USUAL_NAMES[role][:4])
            raise ValueError(
                f"{self.path.name} has no column for the {role} (such as {usual}); its first row is "
                f"{some(list(self.columns), 6)}. Say {role}=… which it is, or header=False if that row is data"
            )
        return column

    def ids(self, column: str, *, unique: bool = False) -> Series:
        """Ids as they stand in the file; none may be missing."""
        cells = self.columns[column]
        if is_text(cells):
            missing = (cells == "").to_numpy(bool)
        else:
            cells = series([int(v) if isinstance(v, float) and v.is_integer() else v for v in self._values(column)])
            missing = np.asarray([value == "" or is_missing(value) for value in cells], dtype=bool)
        if missing.any():
            raise ValueError(f"{self.where(int(missing.argmax()), column)} is empty; every row needs an id")
        if unique and (repeats := cells.duplicated().to_numpy(bool)).any():
            i = int(repeats.argmax())
            first = next(k for k, value in enumerate(cells) if value == cells.iloc[i])
            raise ValueError(f"{self.where(i, column)} repeats the id {cells.iloc[i]!r:.80} of row {self.rows[first]}")
        return cells

    def labels(self, column: str, unknown: Sequence[str] | str) -> np.ndarray:
        """Labels as they stand in the file, None where unknown; a fraction, a date, a number below -1 is no class."""
        missing = {"", *([unknown] if isinstance(unknown, str) else map(str, unknown))}
        cells = self.columns[column]
        if is_text(cells):
            labels: np.ndarray = cells.to_numpy(object, copy=True)
            labels[cells.isin(list(missing)).to_numpy(bool)] = None
            return labels
        values = [None if is_missing(value) or str(value) in missing else value for value in self._values(column)]
        for i, value in enumerate(values):
            if value is None or isinstance(value, str):
                continue
            if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
                right = "a label is a whole number, text, or true or false"
                raise ValueError(f"{self.where(i, column)} is {value!r}; {right}")
            if value < -1:
                right = "a number as label is at least 0, -1 means unknown"
                raise ValueError(f"{self.where(i, column)} is {value!r}; {right}")
        return series(values).to_numpy(object)  # type: ignore[no-any-return]

    def weights(self, column: str) -> np.ndarray:
        """A column of positive numbers."""
        cells = self.columns[column]
        numbers = numbers_in(cells)
        wrong = np.flatnonzero(~((numbers > 0) & (numbers <= FLOAT32_MAX)))
        if len(wrong):
            i = int(wrong[0])
            pointed = str(cells.iloc[i]).replace(",", ".")
            hint = f" (a decimal point, not a comma: {pointed})" if 0 < number(pointed) <= FLOAT32_MAX else ""
            right = "a weight is a positive number (leave the row out for 0)"
            raise ValueError(f"{self.where(i, column)} is {cells.iloc[i]!r}; {right}{hint}")
        return numbers

    def _values(self, column: str) -> list[Any]:
        """The cells of a column of ids or labels, each one value; those of a Parquet file can be lists."""
        values = list(self.columns[column])
        for i, value in enumerate(values):
            if not isinstance(value, Hashable):
                raise ValueError(f"{self.where(i, column)} is {value!r}; an id or label is one value, no list")
        return values


def is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas' NA."""
    if type(value) is str:
        return False
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def text_type() -> Any:
    """The type of a column of text: Arrow's where pyarrow is installed, which pandas reads ten times faster."""
    import pandas

    try:
        import pyarrow
    except ImportError:
        return object
    return pandas.ArrowDtype(pyarrow.large_string())


def series(values: Sequence[Any], dtype: Any = object) -> Series:
    import pandas

    return pandas.Series(values, dtype=dtype)


def is_text(cells: Series) -> bool:
    """Whether all cells are text, as those of a CSV file are; those of a Parquet file may be anything."""
    return cells.dtype != object or set(map(type, cells)) <= {str}


def number(value: Any) -> float:
    """A cell as a number, NaN where it is none. Python would read "1_000", which no other program does."""
    try:
        return math.nan if isinstance(value, str) and "_" in value else float(value)
    except (ValueError, TypeError):
        return math.nan


def plain_numbers(cells: Series) -> np.ndarray | None:
    """A column as float64; None where Arrow, or the first cell, says that it is not one of plain numbers."""
    if cells.dtype != object:
        try:
            return cells.astype("double[pyarrow]").to_numpy(np.float64)  # type: ignore[no-any-return]
        except ValueError:
            return None
    return None if len(cells) and math.isnan(number(cells.iloc[0])) else _parsed(cells)


def numbers_in(cells: Series) -> np.ndarray:
    """A column as float64, NaN where a cell is no number."""
    numbers = plain_numbers(cells)
    return _parsed(cells) if numbers is None else numbers  # Arrow is stricter than `number`, which decides


def _parsed(cells: Series) -> np.ndarray:
    return np.fromiter(map(number, cells), dtype=np.float64, count=len(cells))
