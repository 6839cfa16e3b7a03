"""Encoders: what the cells of a column become. Each is fitted to a column, kept as JSON, and applied to other tables.

| column | features | block |
|---|---|---|
| numbers | the number, the median where a cell is missing | numbers |
| yes and no, true and false | 1 and 0 | table |
| few distinct texts | one column each, at most 50, the rest as "other" | table |
| dates | days, standardised; month, weekday and hour on a circle, where they vary | table |
| words | TF-IDF as scikit-learn has it, of at most 5,000 words | words, one block per column |
| 20 or more columns of counts, mostly 0 | the counts, sparse | words, one block |

A column with missing cells has one feature more, which is 1 where they are missing. No label is read.
`column_types` decides which encoder a column gets.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from gcn_lpa.data.checks import WARNING, some
from gcn_lpa.data.table import (
    CLEAR_DATES,
    DAY_OR_MONTH_FIRST,
    FLOAT32_MAX,
    ISO,
    STYLED,
    THOUSANDS,
    Cells,
    NumberStyle,
    days_in,
)

MOST_CATEGORIES = 50
LIKE_NUMBERS = 0.75  # share of the values of a category that looks like numbers
MOST_TERMS = 5_000
FARTHEST_DAYS = 5.0  # standard deviations
LAST_DAY = 3_000_000  # after 1970: datetime ends in the year 9999
CYCLES = {"month": 12, "weekday": 7, "hour": 24}
Features = list[
    tuple[str, Any]
]  # ("numbers" or "table", a column [n]) or ("words", a matrix [n, t]): see `scaling.Block`
WORD = re.compile(r"(?u)\b\w\w+\b")  # scikit-learn's


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
        missing = f", {self.missing:,} cells missing" if self.missing else ""
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
        """Refuse a state that `learned` never gives: it may come from a file."""
        if self.missing < 0 or not self.is_sound():
            raise ValueError(f"column {self.name!r:.40}: {self.kind} with settings that are never learned")

    def is_sound(self) -> bool:
        return True

    @property
    @abstractmethod
    def summary(self) -> ColumnSummary: ...

    def made(self, num_features: int, about: str = "") -> ColumnSummary:
        return ColumnSummary(self.name, self.kind, num_features, self.missing, about)

    @property
    def num_features(self) -> int:
        return self.summary.features

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
        """Warnings about cells that no feature says, of the table it was learned from or of another."""
        return []

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        """Warnings about what may not be meant as it was learned."""
        return self.warnings(cells)

    def ready(self, columns: Iterable[np.ndarray], is_missing: np.ndarray) -> Features:
        """Columns that need no scaling, and the indicator of missing cells."""
        return [("table", column) for column in (*columns, *([is_missing.astype(np.float64)] if self.missing else []))]


@dataclass(frozen=True, kw_only=True)
class ParsedColumn(Encoder):
    """A column each distinct text of which is parsed to one number."""

    @abstractmethod
    def parsed(self, cells: Cells) -> np.ndarray:
        """A number for each distinct text, NaN where it has none."""

    @abstractmethod
    def expected(self) -> tuple[str, str]:
        """What the column was learned as, and what is wrong with a cell that is none."""

    def values(self, cells: Cells) -> np.ndarray:
        """A number for each cell, NaN where it has none, [n]."""
        parsed = self.parsed(cells)
        cells.require_most(parsed, self.expected()[0])
        values: np.ndarray = parsed[cells.codes]
        return values

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        return column.odd_values(self.parsed(column), self.expected()[1])


@dataclass(frozen=True, kw_only=True)
class NumberColumn(ParsedColumn):
    kind: ClassVar[str] = "number"
    unit: str = ""
    decimal: str = "."
    median: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decimal not in THOUSANDS:
            raise ValueError(
                f"column {self.name!r}: decimal is {self.decimal!r:.40}; it is one of {' '.join(THOUSANDS)}"
            )

    @classmethod
    def learned(cls, cells: Cells, style: NumberStyle) -> NumberColumn:
        column = cls(name=cells.name, unit=style.unit, decimal=style.decimal)
        values = column.values(cells)
        is_missing = np.isnan(values)
        median = float(np.median(values[~is_missing])) if len(values) else 0.0
        return dataclasses.replace(column, missing=int(is_missing.sum()), median=median)

    @property
    def summary(self) -> ColumnSummary:
        return self.made(
            1 + bool(self.missing), ", ".join(filter(None, (self.unit, "decimal comma" if self.decimal == "," else "")))
        )

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "median": None}

    def expected(self) -> tuple[str, str]:
        return "numbers", "no number"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        values = self.values(cells[self.name])
        is_missing = np.isnan(values)
        return [("numbers", np.where(is_missing, self.median, values)), *self.ready([], is_missing)]

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        return [] if cells[self.name].numbers is not None else super().warnings(cells)

    def values(self, cells: Cells) -> np.ndarray:
        is_plain = not self.unit and self.decimal == "."
        return cells.numbers if is_plain and cells.numbers is not None else super().values(cells)

    def parsed(self, cells: Cells) -> np.ndarray:
        values = NumberStyle(self.unit, self.decimal).values(cells.texts)
        values[~cells.is_value] = np.nan
        if (huge := np.flatnonzero(np.abs(values) > FLOAT32_MAX)).size:
            raise ValueError(f"{cells.where(huge[0])} is {cells.texts[huge[0]]!r:.40}; a feature is a finite number")
        return values


@dataclass(frozen=True, kw_only=True)
class BooleanColumn(ParsedColumn):
    kind: ClassVar[str] = "boolean"
    true: str  # in lower case
    false: str

    @property
    def summary(self) -> ColumnSummary:
        return self.made(1 + bool(self.missing), f"1 where {self.true}")

    def expected(self) -> tuple[str, str]:
        return f"{self.true} or {self.false}", f"neither {self.true} nor {self.false}"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        values = self.values(cells[self.name])
        is_missing = np.isnan(values)
        return self.ready([np.where(is_missing, 0.5, values)], is_missing)

    def parsed(self, cells: Cells) -> np.ndarray:
        return np.array([{self.true: 1.0, self.false: 0.0}.get(text.lower(), np.nan) for text in cells.texts])


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Encoder):
    """One column for each of `values`, which are sorted; none of them is 1 where a value is new and there is no "other"."""

    kind: ClassVar[str] = "category"
    values: tuple[str, ...]
    other: bool

    @classmethod
    def learned(cls, cells: Cells) -> CategoryColumn:
        counts: Counter[str] = Counter()
        for text, count in zip(cells.texts, cells.counts.tolist(), strict=True):
            counts[text] += count
        missing = counts.pop("", 0)
        kept = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
        return cls(name=cells.name, missing=missing, values=tuple(sorted(kept)), other=len(counts) > len(kept))

    @property
    def summary(self) -> ColumnSummary:
        return self.made(
            len(self.values) + self.other + bool(self.missing),
            some(self.values, 3) + (", and other" if self.other else ""),
        )

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column, width = cells[self.name], len(self.values)
        position = {text: k for k, text in enumerate(self.values)}
        codes = np.array([position.get(text, -1 if text == "" else width) for text in column.texts])[column.codes]
        return self.ready(((codes == k).astype(np.float64) for k in range(width + self.other)), codes == -1)

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        if self.other:
            return []
        column, known = cells[self.name], {"", *self.values}
        codes = np.where([text in known for text in column.texts], 1.0, np.nan)
        return column.odd_values(codes, "a value that was not there when it was learned", "none of those")

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        """A warning where nearly all values are numbers, but not written alike: $12 and €5, or 1,5 and 2.5."""
        units = {v: match["before"] + match["after"] for v in self.values if (match := STYLED.fullmatch(v)) is not None}
        if len(self.values) < 2 or len(units) < LIKE_NUMBERS * len(self.values):
            return []
        usual, unit = next(iter(units.items()))
        odd = next((v for v in self.values if np.isnan(NumberStyle(unit).value(v))), self.values[-1])
        where = cells[self.name].where(cells[self.name].texts.index(odd))
        return [
            f"{WARNING}{where} is {odd!r:.40} and other cells are such as {usual!r:.40}: they are read as categories; "
            "numbers that are all written in one way, with one unit or none, are read as numbers"
        ]


@dataclass(frozen=True, kw_only=True)
class DateColumn(ParsedColumn):
    kind: ClassVar[str] = "date"
    form: str  # ISO, or as of strptime
    mean: float  # days since 1970
    deviation: float
    cycles: tuple[str, ...]  # that vary: of CYCLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not set(self.cycles) <= set(CYCLES):
            raise ValueError(f"column {self.name!r}: cycles are {self.cycles!r:.60}; there are {', '.join(CYCLES)}")
        has_rate = self.deviation == 0 or sys.float_info.min <= self.deviation <= LAST_DAY  # whose inverse is a number
        if not abs(self.mean) <= LAST_DAY or not has_rate:
            raise ValueError(f"column {self.name!r}: {self.mean} ± {self.deviation} are no days since 1970")

    @classmethod
    def learned(cls, cells: Cells, form: str) -> DateColumn:
        days = days_in(cells.texts, form)[cells.codes]
        is_missing = np.isnan(days)
        days = days[~is_missing]
        return cls(
            name=cells.name,
            missing=int(is_missing.sum()),
            form=form,
            mean=float(days.mean()),
            deviation=float(days.std()),
            cycles=tuple(name for name in CYCLES if np.ptp(_place_in_cycle(name, days)) > 0),
        )

    def is_sound(self) -> bool:
        return self.form in (ISO, *CLEAR_DATES, *itertools.chain(*DAY_OR_MONTH_FIRST))

    @property
    def summary(self) -> ColumnSummary:
        return self.made(1 + 2 * len(self.cycles) + bool(self.missing), ", ".join(["days", *self.cycles]))

    def expected(self) -> tuple[str, str]:
        return f"dates written as {self.form}", f"no date written as {self.form}"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        days = self.values(cells[self.name])
        is_missing = np.isnan(days)
        filled = np.where(is_missing, self.mean, days)
        rate = 1 / self.deviation if self.deviation > 0 else 0.0
        columns = [np.clip((filled - self.mean) * rate, -FARTHEST_DAYS, FARTHEST_DAYS)]
        for name in self.cycles:
            angle = 2 * np.pi * _place_in_cycle(name, filled) / CYCLES[name]
            columns += [np.where(is_missing, 0, np.sin(angle)), np.where(is_missing, 0, np.cos(angle))]
        return self.ready(columns, is_missing)

    def parsed(self, cells: Cells) -> np.ndarray:
        return days_in(cells.texts, self.form)


def _place_in_cycle(name: str, days: np.ndarray) -> np.ndarray:
    """The month (0 to 11), the weekday (0 to 6) or the hour (0 to 23, with its minutes) of days since 1970."""
    whole = np.floor(days)
    if name == "hour":
        return np.asarray((days - whole) * 24)
    if name == "weekday":
        return np.asarray((whole + 3) % 7)  # 1 January 1970 was a Thursday
    return np.asarray(whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12)


@dataclass(frozen=True, kw_only=True)
class TextColumn(Encoder):
    """TF-IDF as TfidfVectorizer has it: words of two letters or more, x_id (1 + ln((1 + n) / (1 + n_d))), rows of length 1."""

    kind: ClassVar[str] = "text"
    terms: tuple[str, ...]  # sorted
    counts: tuple[int, ...]  # n_d, the cells that hold each
    cells: int  # n

    @classmethod
    def learned(cls, cells: Cells) -> TextColumn:
        """The most frequent words over all cells; of equally frequent ones the first in the alphabet."""
        total: Counter[str] = Counter()
        holding: Counter[str] = Counter()
        for text, count in zip(cells.texts, cells.counts.tolist(), strict=True):
            for term, often in words_in(text).items():
                total[term] += often * count
                holding[term] += count
        kept = sorted(sorted(total, key=lambda term: (-total[term], term))[:MOST_TERMS])
        if not kept:
            raise ValueError(f"{cells.table.path.name}, column {cells.name!r} has no words to make features of")
        return cls(
            name=cells.name,
            missing=int(cells.counts[cells.is_blank].sum()),
            terms=tuple(kept),
            counts=tuple(holding[term] for term in kept),
            cells=len(cells),
        )

    def is_sound(self) -> bool:
        return len(self.terms) == len(self.counts) and all(0 <= count <= self.cells for count in self.counts)

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "missing": False}  # a cell without words is a row of zeros

    @property
    def summary(self) -> ColumnSummary:
        return self.made(len(self.terms), f"TF-IDF of {len(self.terms):,} words")

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column, position = cells[self.name], {term: k for k, term in enumerate(self.terms)}
        idf = 1 + np.log((1 + self.cells) / (1 + np.array(self.counts, dtype=np.float64)))
        rows = [
            sorted((position[term], often) for term, often in words_in(text).items() if term in position)
            for text in column.texts
        ]
        ends = np.cumsum([0, *map(len, rows)])
        entries = np.array(list(itertools.chain(*rows)), dtype=np.int64).reshape(-1, 2)
        values = entries[:, 1] * idf[entries[:, 0]]
        lengths = np.sqrt(np.add.reduceat(np.append(values**2, 0.0), ends[:-1])) if len(rows) else np.empty(0)
        values /= np.repeat(lengths, np.diff(ends))
        distinct = scipy.sparse.csr_array((values, entries[:, 0], ends), shape=(len(rows), len(idf)))
        return [("words", scipy.sparse.csr_array(distinct[column.codes]))]


def words_in(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


@dataclass(frozen=True, kw_only=True)
class CountColumns(Encoder):
    """Columns of counts that are mostly 0, as they are."""

    kind: ClassVar[str] = "words"
    columns: tuple[str, ...]

    def is_sound(self) -> bool:
        return bool(self.columns)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.columns

    @property
    def summary(self) -> ColumnSummary:
        return self.made(len(self.columns), f"{len(self.columns):,} columns of counts, as they are")

    def features(self, cells: Mapping[str, Cells]) -> Features:
        plain = [NumberColumn(name=name).features(cells)[0][1] for name in self.columns]
        return [("words", scipy.sparse.csr_array(np.stack(plain, axis=1)))]


@dataclass(frozen=True, kw_only=True)
class LeftOut(Encoder):
    kind: ClassVar[str] = "left out"
    why: str

    @property
    def sources(self) -> tuple[str, ...]:
        return ()

    @property
    def summary(self) -> ColumnSummary:
        return self.made(0, self.why)

    def features(self, cells: Mapping[str, Cells]) -> Features:
        return []

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        return [f"{WARNING}column {self.name!r} is left out: {self.why}"]


ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder
    for encoder in (NumberColumn, BooleanColumn, CategoryColumn, DateColumn, TextColumn, CountColumns, LeftOut)
}
