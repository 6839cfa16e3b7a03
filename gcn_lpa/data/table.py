"""A table read from a file: its columns, found by their names and checked cell by cell.

Errors say file, row, column and value; rows are counted as a spreadsheet shows them, with the header as row 1.

Columns of plain numbers are read at once. Of any other, each distinct text is looked at once.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.data.checks import FLOAT32_MAX, WARNING, is_missing, meant, some

USUAL_NAMES = {
    "id": ("id", "node", "node_id", "nodeid", "name", "key", "paper", "paper_id", "user", "user_id", "account"),
    "label": ("label", "class", "y", "category", "labels", "target"),
    "source": ("source", "src", "from", "u", "head", "start", "citing", "node1", "node_1", "id1", "source_id", "a"),
    "target": ("target", "dst", "to", "v", "tail", "end", "cited", "node2", "node_2", "id2", "target_id", "b"),
    "weight": ("weight", "w", "weights", "strength"),
}

MAX_COLUMNS = 20_000  # of a table

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
                f"{some(list(self.columns), 6)}. Say with option {role}=… which it is, or header=false if that row is data"
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


NO_VALUE = frozenset(("", "na", "n/a", "nan", "null", "none", "?", "-", "--"))  # of numbers, dates, yes and no
MOSTLY = 0.8  # a column is of numbers, or of dates, if so many of its filled cells are; the others are read as missing
SAMPLE = 50  # distinct texts that a format of dates is tried on first
CURRENCY = "$€£¥"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ISO = "ISO 8601"
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)?")
TIMES = ("", " %H:%M", " %H:%M:%S")
CLEAR_DATES = tuple(
    f"{date}{time}"
    for date in ("%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%Y-%m")
    for time in TIMES
)
DAY_OR_MONTH_FIRST = tuple(
    (f"{day}{time}", f"{month}{time}")
    for day, month in (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y"))
    for time in TIMES
)
STYLED = re.compile(
    rf"([-+]?)\s*(?P<before>[{CURRENCY}]?)\s*(-?)(?P<digits>[\d.,]+)\s*(?P<after>[{CURRENCY}%]?)", re.ASCII
)
THOUSANDS = {  # by the decimal mark
    ".": re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+"),
    ",": re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+(?:,\d+)?"),
}


@dataclass(frozen=True)
class NumberStyle:
    """How numbers are written: with a currency or % beside them, and whether "," is the decimal mark or for thousands."""

    unit: str = ""
    decimal: str = "."

    def value(self, text: str) -> float:
        """The number that a text is in this style, NaN where it is none."""
        if not self.unit and self.decimal == "." and "," not in text:
            return number(text)
        match = STYLED.fullmatch(text)
        if match is None or match["before"] + match["after"] != self.unit:
            return math.nan
        digits, thousands = match["digits"], {".": ",", ",": "."}[self.decimal]
        if THOUSANDS[self.decimal].fullmatch(digits) is None:
            return math.nan
        size = float(digits.replace(thousands, "").replace(",", "."))
        return -size if "-" in match[1] + match[3] else size

    def values(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([self.value(text) for text in texts], dtype=np.float64)


class Cells:
    """One column of a table, looked at in several ways, each computed once."""

    def __init__(self, table: Table, name: str) -> None:
        self.table, self.name = table, name
        self.column: Series = table.columns[name]

    def __len__(self) -> int:
        return len(self.column)

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """The column as float64 where every cell is a plain finite number that fits into 32 bits."""
        values = plain_numbers(self.column)
        return values if values is not None and bool((np.abs(values) <= FLOAT32_MAX).all()) else None

    @cached_property
    def are_single(self) -> bool:
        """Whether every cell is one value; those of a Parquet file can be lists."""
        several = (list, tuple, dict, set, np.ndarray)
        return is_text(self.column) or not any(isinstance(cell, several) for cell in self.column)

    @cached_property
    def _distinct(self) -> tuple[np.ndarray, list[str]]:
        import pandas

        column = self.column if is_text(self.column) else series([_text(cell) for cell in self.column])
        codes, texts = pandas.factorize(column)
        return codes, [text.strip() for text in texts.tolist()]

    @property
    def codes(self) -> np.ndarray:
        """Which of `texts` each cell is, [n]."""
        return self._distinct[0]

    @property
    def texts(self) -> list[str]:
        """The distinct cells, without blanks around them."""
        return self._distinct[1]

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each of `texts` occurs."""
        return np.bincount(self.codes, minlength=len(self.texts))

    @cached_property
    def is_blank(self) -> np.ndarray:
        """Which of `texts` are empty."""
        return np.array([text == "" for text in self.texts], dtype=bool)

    @cached_property
    def is_value(self) -> np.ndarray:
        """Which of `texts` are values, and not one of those that mean none, such as "NA"."""
        return np.array([text.lower() not in NO_VALUE for text in self.texts], dtype=bool)

    @property
    def values(self) -> list[str]:
        """Those of `texts` that are values."""
        return list(itertools.compress(self.texts, self.is_value))

    def share(self, fits: np.ndarray) -> float:
        """The share of the cells with a value whose text fits."""
        num_values = int(self.counts[self.is_value].sum())
        return float(self.counts[self.is_value & fits].sum() / num_values) if num_values else 0.0

    def where(self, text: int) -> str:
        """The place of the first cell with a text, by its position in `texts`."""
        return self.table.where(int((self.codes == text).argmax()), self.name)

    def require_most(self, parsed: np.ndarray, learned: str) -> None:
        """Refuse a column many values of which parse to NaN: it was learned as something else."""
        odd = self.is_value & np.isnan(parsed)
        if self.counts[odd].sum() > (1 - MOSTLY + 1e-9) * self.counts[self.is_value].sum():
            k = int(odd.argmax())
            raise ValueError(f"{self.where(k)} is {self.texts[k]!r:.40}; the column was learned as {learned}")

    def odd_values(self, parsed: np.ndarray, problem: str, read_as: str = "missing") -> list[str]:
        """A warning about values that parse to NaN, and how they are read."""
        odd = self.is_value & np.isnan(parsed)
        if not odd.any():
            return []
        k, others = int(odd.argmax()), int(self.counts[odd].sum()) - 1
        more = f", and {others:,} more like it," if others else ","
        return [f"{WARNING}{self.where(k)} is {self.texts[k]!r:.40}, {problem}{more} read as {read_as}"]


def _text(cell: Any) -> str:
    """A cell of a Parquet file as it would stand in a CSV file."""
    if is_missing(cell):
        return ""
    return str(cell.isoformat()) if isinstance(cell, datetime.date) else str(cell)


def number_style(cells: Cells) -> NumberStyle | None:
    """How the numbers of a column are written: all in one style, or most of them plainly; None where they are not numbers."""
    texts = cells.values
    first = STYLED.fullmatch(texts[0]) if texts else None
    unit = "" if first is None else first["before"] + first["after"]
    for style in (NumberStyle(unit, "."), NumberStyle(unit, ",")):
        if texts and not any(math.isnan(style.value(text)) for text in texts):
            return style
    plain = NumberStyle()
    return plain if cells.share(~np.isnan(plain.values(cells.texts))) >= MOSTLY else None


def day_of(text: str, form: str) -> float:
    """A date in days since 1970, with the time as a fraction; NaN where it does not have the form."""
    try:
        if form == ISO:
            moment = datetime.datetime.fromisoformat(text) if ISO_DATE.fullmatch(text) else None
        else:
            moment = datetime.datetime.strptime(text, form)
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        return math.nan
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - EPOCH).total_seconds() / 86_400


def days_in(texts: Sequence[str], form: str) -> np.ndarray:
    return np.array([day_of(text, form) for text in texts], dtype=np.float64)


def date_forms(cells: Cells) -> list[str]:
    """The form that most cells of a column of dates have; two where day and month could change places, none of others."""
    sample = cells.values[:SAMPLE]
    if not any(map(str.isdigit, "".join(sample[:1]))):
        return []

    def share(form: str) -> float:
        if np.isnan(days_in(sample, form)).mean() > 1 - MOSTLY:
            return 0.0
        return cells.share(~np.isnan(days_in(cells.texts, form)))

    for forms in ((ISO,), *((form,) for form in CLEAR_DATES), *DAY_OR_MONTH_FIRST):
        shares = [share(form) for form in forms]
        if max(shares) >= MOSTLY:
            return [form for form, share in zip(forms, shares, strict=True) if share == max(shares)]
    return []


def times_in(cells: Cells) -> np.ndarray:
    """A column of dates or of numbers, such as years, as numbers that grow with time, [n]; no cell may be missing."""
    if cells.numbers is not None:
        return cells.numbers
    forms = date_forms(cells)
    if len(forms) > 1:
        raise ValueError(f"column {cells.name!r} holds dates that could be read two ways; write them as 2024-01-31")
    moments = days_in(cells.texts, forms[0]) if forms else NumberStyle().values(cells.texts)
    if np.isnan(moments).any():
        k = int(np.isnan(moments).argmax())
        right = "a time is a date, such as 2024-01-31, or a number"
        raise ValueError(f"{cells.where(k)} is {cells.texts[k]!r:.40}; {right}")
    times: np.ndarray = moments[cells.codes]
    return times
