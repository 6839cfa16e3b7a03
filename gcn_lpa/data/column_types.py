"""The cells of one column, as numbers, dates or texts; and the contract of an encoder that makes features of them.

A column of plain numbers is read at once. Of any other, each distinct text is read once.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gcn_lpa.data.checks import FLOAT32_MAX, UNKNOWN, WARNING, is_missing
from gcn_lpa.data.table import Series, Table, is_text, number, plain_numbers, series

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
    (f"{day}{time}", f"{month}{time}") for day, month in (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y")) for time in TIMES
)
FORMS = ((ISO,), *((form,) for form in CLEAR_DATES), *DAY_OR_MONTH_FIRST)  # those that could be confused together
STYLED = re.compile(rf"([-+]?)\s*(?P<before>[{CURRENCY}]?)\s*(-?)(?P<digits>[\d.,]+)\s*(?P<after>[{CURRENCY}%]?)", re.ASCII)
THOUSANDS = {  # by the decimal mark
    ".": re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+"),
    ",": re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+(?:,\d+)?"),
}
CYCLES = {"month": 12, "weekday": 7, "hour": 24}
WORD = re.compile(r"(?u)\b\w\w+\b")  # scikit-learn's
NEVER_LEARNED = "settings that are never learned"
Features = list[tuple[str, Any]]  # the kind of `scaling.Block`, and a column [n] or, of "words", a matrix [n, t]


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
    """One column of a table as numbers or as distinct texts, each computed once."""

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
    def _distinct(self) -> tuple[np.ndarray, list[str]]:
        import pandas

        column = self.column if is_text(self.column) else series([_text(cell) for cell in self.column])
        codes, texts = pandas.factorize(column)
        stripped, texts = pandas.factorize(series([text.strip() for text in texts.tolist()]))
        return stripped[codes], texts.tolist()

    def forget(self) -> None:
        """Keep no texts and numbers any longer: a million of them take more than their features."""
        for computed in ("_distinct", "numbers"):
            self.__dict__.pop(computed, None)

    @property
    def codes(self) -> np.ndarray:
        """Which of `texts` each cell is, [n]."""
        return self._distinct[0]

    @property
    def texts(self) -> list[str]:
        """The distinct cells, without blanks around them, as they first occur."""
        return self._distinct[1]

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each of `texts` occurs."""
        return np.bincount(self.codes, minlength=len(self.texts))

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
        """File, row and column of the first cell with a text, given by its position in `texts`."""
        return self.table.where(int((self.codes == text).argmax()), self.name)

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


def unit_of(text: str) -> str | None:
    """The currency or % beside a number, "" where there is none; None where a text does not look like a number."""
    match = STYLED.fullmatch(text)
    return None if match is None else match["before"] + match["after"]


def number_style(cells: Cells) -> NumberStyle | None:
    """How the numbers of a column are written: all in one style, or most of them plainly; None where they are not numbers."""
    texts = cells.values
    unit = unit_of(texts[0]) or "" if texts else ""
    for style in (NumberStyle(unit, "."), NumberStyle(unit, ",")):
        if texts and not any(math.isnan(style.value(text)) for text in texts):
            return style
    plain = NumberStyle()
    return plain if cells.share(~np.isnan(plain.values(cells.texts))) >= MOSTLY else None


class LabelNumbers(NamedTuple):
    """A column of labels as numbers."""

    numbers: np.ndarray  # float64, NaN where unknown or no number, [n]
    share: float  # of those that are known
    notes: list[str]
    problem: str  # what is wrong with the first label that is no number, and what would be right; "" where there is none


def label_numbers(table: Table, column: str, unknown: Sequence[str] | str) -> LabelNumbers:
    """Labels as numbers in one style, such as 1,234.50 or € 12; words such as "NA" mean unknown there."""
    cells, named = Cells(table, column), {unknown} if isinstance(unknown, str) else set(map(str, unknown))
    is_unknown = np.array([text in named or text.lower() in UNKNOWN or not text for text in cells.texts], dtype=bool)
    known = list(itertools.compress(cells.texts, ~is_unknown))
    units = Counter(unit for text in known if (unit := unit_of(text)) is not None)
    styles = [NumberStyle(units.most_common(1)[0][0] if units else "", mark) for mark in THOUSANDS]
    parsed = {style: np.where(is_unknown, math.nan, style.values(cells.texts)) for style in styles}
    style = max(styles, key=lambda one: int(cells.counts[np.isfinite(parsed[one])].sum()))
    values = parsed[style]
    is_number = np.abs(values) <= FLOAT32_MAX
    odd, number_known = ~is_number & ~is_unknown, max(1, int(cells.counts[~is_unknown].sum()))
    notes, problem = [], ""
    if words := [text for text in itertools.compress(cells.texts, is_unknown) if text and text not in named]:
        notes.append(f"column {column!r}: labels that are {' or '.join(map(repr, words))} are read as unknown")
    if style != NumberStyle():
        mark = " with a decimal comma" * (style.decimal == ",")
        notes.append(f"column {column!r} is read as numbers{style.unit and f' of {style.unit}'}{mark}")
    if odd.any():
        k, number_odd = int(odd.argmax()), int(cells.counts[odd].sum())
        text, right = cells.texts[k], "a label of task 'regression' is a finite number, such as 2.5, or nothing"
        right = "a date is no number: write years, or days since one" if ISO_DATE.fullmatch(text) else right
        fewer = f"; option unknown={text} leaves {number_odd:,} such out" if odd.sum() == 1 else ""
        problem = f"{cells.where(k)} is {text!r:.80}; {right}{fewer}"
    numbers: np.ndarray = np.where(is_number, values, math.nan)[cells.codes]
    return LabelNumbers(numbers, float(cells.counts[is_number].sum()) / number_known, notes, problem)


def days_in(texts: Sequence[str], form: str) -> np.ndarray:
    """Dates in days since 1970, with the time as a fraction; NaN where a text does not have the form."""
    days = np.full(len(texts), np.nan)
    for k, text in enumerate(texts):
        if form == ISO and not ISO_DATE.fullmatch(text):
            continue
        try:
            moment = datetime.datetime.fromisoformat(text) if form == ISO else datetime.datetime.strptime(text, form)
        except (ValueError, OverflowError):
            continue
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        days[k] = (moment - EPOCH).total_seconds() / 86_400
    return days


def date_forms(cells: Cells) -> list[str]:
    """The form that most cells of a column of dates have; two where day and month could change places, none of others."""
    sample = cells.values[:SAMPLE]
    if not any(map(str.isdigit, "".join(sample[:1]))):
        return []

    def share(form: str) -> float:
        if np.isnan(days_in(sample, form)).mean() > 1 - MOSTLY:
            return 0.0
        return cells.share(~np.isnan(days_in(cells.texts, form)))

    for forms in FORMS:
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


def place_in_cycle(name: str, days: np.ndarray) -> np.ndarray:
    """The month (0 to 11), the weekday (0 to 6) or the hour (0 to 23, with its minutes) of days since 1970."""
    whole = np.floor(days)
    if name == "hour":
        return np.asarray((days - whole) * 24)
    if name == "weekday":
        return np.asarray((whole + 3) % 7)  # 1 January 1970 was a Thursday
    return np.asarray(whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12)


def words_in(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


@dataclass(frozen=True)
class ColumnSummary:
    """What was made of a column, for a person."""

    name: str
    kind: str
    features: int
    missing: int  # cells, where it was learned
    about: str

    def __str__(self) -> str:
        number = "no features" if not self.features else f"{self.features:,} feature{'s' * (self.features > 1)}"
        missing = f", {self.missing:,} cell{'s' * (self.missing > 1)} missing" if self.missing else ""
        return f"{self.name} -> {self.kind}{f' ({self.about})' if self.about else ''}, {number}{missing}"


@dataclass(frozen=True, kw_only=True)
class Encoder(ABC):
    """What was learned of one column; its fields are its JSON state.

    `missing` counts the cells without a value when it was learned; with any, there is an indicator.
    """

    kind: ClassVar[str]
    name: str
    missing: int = 0

    def __post_init__(self) -> None:
        if problem := f"{self.kind} with {NEVER_LEARNED}" if self.missing < 0 else self.problem():
            raise ValueError(f"column {self.name!r:.40}: {problem}")

    def problem(self) -> str:
        """What is wrong with a state, which may come from a file; else nothing."""
        return ""

    @abstractmethod
    def made(self) -> tuple[int, str]:
        """The number of features, and what else a person wants to know of them."""

    @property
    def num_features(self) -> int:
        return self.made()[0]

    @property
    def summary(self) -> ColumnSummary:
        num_features, about = self.made()
        return ColumnSummary(self.name, self.kind, num_features, self.missing, about)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that it reads."""
        return (self.name,)

    def meaning(self) -> dict[str, Any]:
        """What two tables must agree on for a model to read both."""
        return {"kind": self.kind, **dataclasses.asdict(self), "missing": bool(self.missing)}

    @abstractmethod
    def features(self, cells: Mapping[str, Cells]) -> Features:
        """The features that the cells of a table become."""

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        """Warnings about cells that are not what the column was learned as."""
        return []

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        """Warnings about what may not be meant as it was learned."""
        return self.warnings(cells)

    def indicator(self, is_missing: np.ndarray) -> Features:
        return [("table", is_missing)] if self.missing else []


class ParsedColumn(Encoder):
    """A column each distinct text of which is parsed to one number."""

    @abstractmethod
    def parsed(self, cells: Cells) -> np.ndarray:
        """A number for each distinct text, NaN where it has none."""

    @abstractmethod
    def columns(self, values: np.ndarray, is_missing: np.ndarray) -> Features:
        """The features of the numbers of all cells."""

    @abstractmethod
    def expected(self) -> tuple[str, str]:
        """What the column was learned as, and what is wrong with a cell that is none."""

    def values(self, cells: Cells) -> np.ndarray:
        """A number for each cell, NaN where it has none, [n]; a column with many such cells is refused."""
        parsed = self.parsed(cells)
        odd = cells.is_value & np.isnan(parsed)
        if cells.counts[odd].sum() > (1 - MOSTLY + 1e-9) * cells.counts[cells.is_value].sum():
            k, learned = int(odd.argmax()), self.expected()[0]
            raise ValueError(f"{cells.where(k)} is {cells.texts[k]!r:.40}; the column was learned as {learned}")
        values: np.ndarray = parsed[cells.codes]
        return values

    def features(self, cells: Mapping[str, Cells]) -> Features:
        values = self.values(cells[self.name])
        is_missing = np.isnan(values)
        return [*self.columns(values, is_missing), *self.indicator(is_missing)]

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        return column.odd_values(self.parsed(column), self.expected()[1])
