"""The cells of a column as numbers, dates or words, and the pattern that all of them follow.

Columns of plain numbers are read at once. Of any other, each distinct text is looked at once.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gcn_lpa.intake import DOUBT, FLOAT32_MAX, is_missing
from gcn_lpa.tables.columns import Series, Table, is_text, number, series

NO_VALUE = frozenset(
    ("", "na", "n/a", "nan", "null", "none", "?", "-", "--")
)  # in columns of numbers, dates, yes and no
MOSTLY = 0.8  # a column is of numbers, or of dates, if so many of its filled cells are; the others are read as missing
SAMPLE = 50  # distinct texts that a format of dates is tried on first
WORD = re.compile(r"(?u)\b\w\w+\b")  # scikit-learn's
CURRENCY = "$€£¥"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ISO = "ISO 8601"
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)?")
CLEAR_DATES = ("%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%Y-%m")
DAY_OR_MONTH_FIRST = (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y"))
TIMES = ("", " %H:%M", " %H:%M:%S")


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
        found = STYLED.fullmatch(text)
        if found is None or found["before"] + found["after"] != self.unit:
            return math.nan
        digits, thousands = found["digits"], {".": ",", ",": "."}[self.decimal]
        if THOUSANDS[self.decimal].fullmatch(digits) is None:
            return math.nan
        size = float(digits.replace(thousands, "").replace(",", "."))
        return -size if "-" in found[1] + found[3] else size


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
        values = _plain_numbers(self.column)
        return values if values is not None and bool((np.abs(values) <= FLOAT32_MAX).all()) else None

    @cached_property
    def are_single(self) -> bool:
        """Whether every cell is one value; those of a Parquet file can be lists."""
        return is_text(self.column) or not any(
            isinstance(cell, (list, tuple, dict, set, np.ndarray)) for cell in self.column
        )

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

    def is_filled(self, without: frozenset[str] = frozenset(("",))) -> np.ndarray:
        """Which of `texts` are values, and not one of those that mean none."""
        return np.array([text.lower() not in without for text in self.texts], dtype=bool)

    def where(self, text: int) -> str:
        """The place of the first cell with a text, by its position in `texts`."""
        return self.table.where(int((self.codes == text).argmax()), self.name)


def _text(cell: Any) -> str:
    """A cell of a Parquet file as it would stand in a CSV file."""
    if is_missing(cell):
        return ""
    return str(cell.isoformat()) if isinstance(cell, datetime.date) else str(cell)


def _plain_numbers(cells: Series) -> np.ndarray | None:
    if cells.dtype != object:
        try:
            return cells.astype("double[pyarrow]").to_numpy(np.float64)  # type: ignore[no-any-return]
        except ValueError:
            return None
    if len(cells) and math.isnan(number(cells.iloc[0])):
        return None
    return np.fromiter(map(number, cells), dtype=np.float64, count=len(cells))


def share_of(cells: Cells, fits: np.ndarray, filled: np.ndarray) -> float:
    """The share of the filled cells whose text fits."""
    num_filled = int(cells.counts[filled].sum())
    return float(cells.counts[filled & fits].sum() / num_filled) if num_filled else 0.0


def number_style(cells: Cells) -> NumberStyle | None:
    """How the numbers of a column are written: all in one style, or most of them plainly; None where they are not numbers."""
    filled = cells.is_filled(NO_VALUE)
    texts = list(itertools.compress(cells.texts, filled))
    first = STYLED.fullmatch(texts[0]) if texts else None
    unit = "" if first is None else first["before"] + first["after"]
    for style in (NumberStyle(unit, "."), NumberStyle(unit, ",")):
        if texts and not any(math.isnan(style.value(text)) for text in texts):
            return style
    plain = NumberStyle()
    return plain if share_of(cells, ~np.isnan(values_in(cells.texts, plain)), filled) >= MOSTLY else None


def values_in(texts: Sequence[str], style: NumberStyle) -> np.ndarray:
    return np.array([style.value(text) for text in texts], dtype=np.float64)


def day_of(text: str, form: str) -> float:
    """A date in days since 1970, with the time as a fraction; NaN where it does not have the form."""
    try:
        if form == ISO:
            found = datetime.datetime.fromisoformat(text) if ISO_DATE.fullmatch(text) else None
        else:
            found = datetime.datetime.strptime(text, form)
    except (ValueError, OverflowError):
        found = None
    if found is None:
        return math.nan
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return (found - EPOCH).total_seconds() / 86_400


def days_in(texts: Sequence[str], form: str) -> np.ndarray:
    return np.array([day_of(text, form) for text in texts], dtype=np.float64)


def date_forms(cells: Cells) -> list[str]:
    """The form that most cells of a column of dates have; two where day and month could change places, none of others."""
    filled = cells.is_filled(NO_VALUE)
    sample = list(itertools.compress(cells.texts, filled))[:SAMPLE]
    if not any(map(str.isdigit, "".join(sample[:1]))):
        return []

    def fits(form: str) -> bool:
        if not sample or np.isnan(days_in(sample, form)).mean() > 1 - MOSTLY:
            return False
        return share_of(cells, ~np.isnan(days_in(cells.texts, form)), filled) >= MOSTLY

    for form in (ISO, *(f"{date}{time}" for date in CLEAR_DATES for time in TIMES)):
        if fits(form):
            return [form]
    for forms, time in itertools.product(DAY_OR_MONTH_FIRST, TIMES):
        if found := [form for form in (f"{date}{time}" for date in forms) if fits(form)]:
            shares = [share_of(cells, ~np.isnan(days_in(cells.texts, form)), filled) for form in found]
            return [form for form, share in zip(found, shares, strict=True) if share == max(shares)]
    return []


def times_in(cells: Cells) -> np.ndarray:
    """A column of dates or of numbers, such as years, as numbers that grow with time, [n]; no cell may be missing."""
    if cells.numbers is not None:
        return cells.numbers
    forms = date_forms(cells)
    if len(forms) > 1:
        raise ValueError(f"column {cells.name!r} holds dates that could be read two ways; write them as 2024-01-31")
    moments = days_in(cells.texts, forms[0]) if forms else values_in(cells.texts, NumberStyle())
    if np.isnan(moments).any():
        k = int(np.isnan(moments).argmax())
        raise ValueError(
            f"{cells.where(k)} is {cells.texts[k]!r:.40}; a time is a date, such as 2024-01-31, or a number"
        )
    found: np.ndarray = moments[cells.codes]
    return found


def require_most(cells: Cells, values: np.ndarray, learned: str) -> None:
    """Refuse a column in which many filled cells have no value, which was learned as something else."""
    filled = cells.is_filled(NO_VALUE)
    odd = filled & np.isnan(values)
    if cells.counts[odd].sum() > (1 - MOSTLY + 1e-9) * cells.counts[filled].sum():
        k = int(odd.argmax())
        raise ValueError(f"{cells.where(k)} is {cells.texts[k]!r:.40}; the column was learned as {learned}")


def odd_cells(cells: Cells, values: np.ndarray, problem: str, read_as: str = "missing") -> list[str]:
    """A note on filled cells that have no value, and how they are read."""
    odd = cells.is_filled(NO_VALUE) & np.isnan(values)
    if not odd.any():
        return []
    k, others = int(odd.argmax()), int(cells.counts[odd].sum()) - 1
    more = f", and {others:,} more like it," if others else ","
    return [f"{DOUBT}{cells.where(k)} is {cells.texts[k]!r:.40}, {problem}{more} read as {read_as}"]
