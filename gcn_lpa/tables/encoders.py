"""What is made of each column of a table of nodes: numbers, booleans, categories, dates, text and bags of words -> features.

`learn_columns` looks at a table and decides; `Columns`, called with the same or another table, gives the features. What was
learned is plain JSON. No label is read.

| column | features | block |
|---|---|---|
| numbers | the number, the median where a cell is missing | numbers |
| yes and no, true and false | 1 and 0 | table |
| few distinct texts | one column each, at most 50, the rest as "other" | table |
| dates | days, standardised; month, weekday and hour on a circle, where they vary | table |
| words | TF-IDF as scikit-learn has it, of at most 5,000 words | words, one block per column |
| 20 or more columns of counts, mostly 0 | the counts, sparse | words, one block |

A column with missing cells has one feature more, which is 1 where they are missing.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from gcn_lpa.features import Block
from gcn_lpa.intake import DOUBT, FLOAT32_MAX, some
from gcn_lpa.storage import decode_as
from gcn_lpa.tables.cells import (
    NO_VALUE,
    STYLED,
    WORD,
    Cells,
    NumberStyle,
    date_forms,
    days_in,
    number_style,
    odd_cells,
    require_most,
    values_in,
)
from gcn_lpa.tables.columns import Table

MOST_CATEGORIES = 50
LIKE_NUMBERS = 0.75  # share of the values of a category that looks like numbers
MOST_TERMS = 5_000
FEWEST_COUNTS = 20  # columns of counts that make a bag of words
FARTHEST_DAYS = 5.0  # standard deviations
BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})
CYCLES = {"month": 12, "weekday": 7, "hour": 24}


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


@dataclass(frozen=True)
class Features:
    """What one column gives: raw numbers, ready columns, each [n], and words, [n, t]."""

    numbers: tuple[np.ndarray, ...] = ()
    table: tuple[np.ndarray, ...] = ()
    words: Any = None


@dataclass(frozen=True, kw_only=True)
class Encoder(ABC):
    """What was learned of one column. `missing` counts its cells without a value; with some, there is an indicator."""

    kind: ClassVar[str]
    name: str
    missing: int = 0

    @property
    def num_features(self) -> int:
        return bool(self.missing)

    @property
    def about(self) -> str:
        return ""

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

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        """Notes on what may not be meant as it was read."""
        return []

    def surprises(self, cells: Mapping[str, Cells]) -> list[str]:
        """Notes on cells of another table than it was learned from, which say what it has no feature for."""
        return []

    def _indicator(self, is_missing: np.ndarray) -> tuple[np.ndarray, ...]:
        return (is_missing.astype(np.float64),) if self.missing else ()


@dataclass(frozen=True, kw_only=True)
class NumberColumn(Encoder):
    kind: ClassVar[str] = "number"
    unit: str = ""
    decimal: str = "."
    median: float = 0.0

    @classmethod
    def learned(cls, cells: Cells, style: NumberStyle) -> NumberColumn:
        column = cls(name=cells.name, unit=style.unit, decimal=style.decimal)
        values = column._values(cells)
        is_missing = np.isnan(values)
        return dataclasses.replace(column, missing=int(is_missing.sum()), median=float(np.median(values[~is_missing])))

    @property
    def num_features(self) -> int:
        return 1 + bool(self.missing)

    @property
    def about(self) -> str:
        return ", ".join(filter(None, (self.unit, "decimal comma" if self.decimal == "," else "")))

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "median": None}

    def features(self, cells: Mapping[str, Cells]) -> Features:
        values = self._values(cells[self.name])
        is_missing = np.isnan(values)
        return Features((np.where(is_missing, self.median, values),), self._indicator(is_missing))

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        return [] if column.numbers is not None else odd_cells(column, self._parsed(column), "no number")

    surprises = doubts

    def _values(self, cells: Cells) -> np.ndarray:
        """A number for each cell, NaN where it has none."""
        if not self.unit and self.decimal == "." and cells.numbers is not None:
            return cells.numbers
        values = self._parsed(cells)
        require_most(cells, values, "numbers")
        taken: np.ndarray = values[cells.codes]
        return taken

    def _parsed(self, cells: Cells) -> np.ndarray:
        """A number for each distinct text."""
        values = values_in(cells.texts, NumberStyle(self.unit, self.decimal))
        values[~cells.is_filled(NO_VALUE)] = np.nan
        if (huge := np.flatnonzero(np.abs(values) > FLOAT32_MAX)).size:
            raise ValueError(f"{cells.where(huge[0])} is {cells.texts[huge[0]]!r:.40}; a feature is a finite number")
        return values


@dataclass(frozen=True, kw_only=True)
class BooleanColumn(Encoder):
    kind: ClassVar[str] = "boolean"
    true: str  # in lower case
    false: str

    @property
    def num_features(self) -> int:
        return 1 + bool(self.missing)

    @property
    def about(self) -> str:
        return f"1 where {self.true}"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column = cells[self.name]
        values = self._parsed(column)
        require_most(column, values, f"{self.true} or {self.false}")
        taken = values[column.codes]
        is_missing = np.isnan(taken)
        return Features(table=(np.where(is_missing, 0.5, taken), *self._indicator(is_missing)))

    def surprises(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        return odd_cells(column, self._parsed(column), f"neither {self.true} nor {self.false}")

    def _parsed(self, cells: Cells) -> np.ndarray:
        """1, 0 or NaN for each distinct text."""
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
    def num_features(self) -> int:
        return len(self.values) + self.other + bool(self.missing)

    @property
    def about(self) -> str:
        return some(self.values, 3) + (", and other" if self.other else "")

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column, width = cells[self.name], len(self.values)
        place = {text: k for k, text in enumerate(self.values)}
        places = np.array([place.get(text, -1 if text == "" else width) for text in column.texts])[column.codes]
        kept = tuple((places == k).astype(np.float64) for k in range(width + self.other))
        return Features(table=(*kept, *self._indicator(places == -1)))

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        """A note where nearly all values are numbers, but not written alike: $12 and €5, or 1,5 and 2.5."""
        units = {v: found["before"] + found["after"] for v in self.values if (found := STYLED.fullmatch(v)) is not None}
        if len(self.values) < 2 or len(units) < LIKE_NUMBERS * len(self.values):
            return []
        usual, unit = next(iter(units.items()))
        odd = next((v for v in self.values if np.isnan(NumberStyle(unit).value(v))), self.values[-1])
        place = cells[self.name].where(cells[self.name].texts.index(odd))
        said = f"{place} is {odd!r:.40} and other cells are such as {usual!r:.40}: they are read as categories"
        return [f"{DOUBT}{said}; numbers that are all written in one way, with one unit or none, are read as numbers"]

    def surprises(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        values = np.where([text == "" or text in self.values for text in column.texts], 1.0, np.nan)
        return (
            []
            if self.other
            else odd_cells(column, values, "a value that was not there when it was learned", "none of those")
        )


@dataclass(frozen=True, kw_only=True)
class DateColumn(Encoder):
    kind: ClassVar[str] = "date"
    form: str  # ISO, or as of strptime
    mean: float  # days since 1970
    deviation: float
    cycles: tuple[str, ...]  # that vary: of CYCLES

    @classmethod
    def learned(cls, cells: Cells, form: str) -> DateColumn:
        days = days_in(cells.texts, form)[cells.codes]
        is_missing = np.isnan(days)
        days = days[~is_missing]
        varies = [name for name in CYCLES if (places := _place_in_cycle(name, days)).max() > places.min()]
        return cls(
            name=cells.name,
            missing=int(is_missing.sum()),
            form=form,
            mean=float(days.mean()),
            deviation=float(days.std()),
            cycles=tuple(varies),
        )

    @property
    def num_features(self) -> int:
        return 1 + 2 * len(self.cycles) + bool(self.missing)

    @property
    def about(self) -> str:
        return ", ".join(["days", *self.cycles])

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column = cells[self.name]
        found = days_in(column.texts, self.form)
        require_most(column, found, f"dates written as {self.form}")
        days = found[column.codes]
        is_missing = np.isnan(days)
        filled = np.where(is_missing, self.mean, days)
        rate = 1 / self.deviation if self.deviation > 0 else 0.0
        columns = [np.clip((filled - self.mean) * rate, -FARTHEST_DAYS, FARTHEST_DAYS)]
        for name in self.cycles:
            angle = 2 * np.pi * _place_in_cycle(name, filled) / CYCLES[name]
            columns += [np.where(is_missing, 0, np.sin(angle)), np.where(is_missing, 0, np.cos(angle))]
        return Features(table=(*columns, *self._indicator(is_missing)))

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        column = cells[self.name]
        return odd_cells(column, days_in(column.texts, self.form), f"no date written as {self.form}")

    surprises = doubts


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

    def __post_init__(self) -> None:
        if len(self.terms) != len(self.counts) or not all(0 <= count <= self.cells for count in self.counts):
            raise ValueError(f"column {self.name!r}: {len(self.terms)} words do not fit their counts")

    @classmethod
    def learned(cls, cells: Cells) -> TextColumn:
        """The most frequent words over all cells; of equally frequent ones the first in the alphabet."""
        total: Counter[str] = Counter()
        holding: Counter[str] = Counter()
        for text, count in zip(cells.texts, cells.counts.tolist(), strict=True):
            for term, often in _words(text).items():
                total[term] += often * count
                holding[term] += count
        kept = sorted(sorted(total, key=lambda term: (-total[term], term))[:MOST_TERMS])
        if not kept:
            raise ValueError(f"{cells.table.path.name}, column {cells.name!r} has no words to make features of")
        return cls(
            name=cells.name,
            missing=int(cells.counts[~cells.is_filled()].sum()),
            terms=tuple(kept),
            counts=tuple(holding[term] for term in kept),
            cells=len(cells),
        )

    @property
    def num_features(self) -> int:
        return len(self.terms)

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "missing": False}  # a cell without words is a row of zeros

    @property
    def about(self) -> str:
        return f"TF-IDF of {len(self.terms):,} words"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column, place = cells[self.name], {term: k for k, term in enumerate(self.terms)}
        idf = 1 + np.log((1 + self.cells) / (1 + np.array(self.counts, dtype=np.float64)))
        rows = [sorted((place[t], often) for t, often in _words(text).items() if t in place) for text in column.texts]
        ends = np.cumsum([0, *map(len, rows)])
        entries = np.array(list(itertools.chain(*rows)), dtype=np.int64).reshape(-1, 2)
        values = entries[:, 1] * idf[entries[:, 0]]
        lengths = np.sqrt(np.add.reduceat(np.append(values**2, 0.0), ends[:-1])) if len(rows) else np.empty(0)
        values /= np.repeat(lengths, np.diff(ends))
        distinct = scipy.sparse.csr_array((values, entries[:, 0], ends), shape=(len(rows), len(idf)))
        return Features(words=scipy.sparse.csr_array(distinct[column.codes]))


def _words(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


@dataclass(frozen=True, kw_only=True)
class CountColumns(Encoder):
    """Columns of counts that are mostly 0, as they are."""

    kind: ClassVar[str] = "words"
    columns: tuple[str, ...]

    @property
    def num_features(self) -> int:
        return len(self.columns)

    @property
    def sources(self) -> tuple[str, ...]:
        return self.columns

    @property
    def about(self) -> str:
        return f"{len(self.columns):,} columns of counts, as they are"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        plain = [NumberColumn(name=name).features(cells).numbers[0] for name in self.columns]
        return Features(words=scipy.sparse.csr_array(np.stack(plain, axis=1)))


@dataclass(frozen=True, kw_only=True)
class LeftOut(Encoder):
    kind: ClassVar[str] = "left out"
    why: str

    @property
    def num_features(self) -> int:
        return 0

    @property
    def sources(self) -> tuple[str, ...]:
        return ()

    @property
    def about(self) -> str:
        return self.why

    def features(self, cells: Mapping[str, Cells]) -> Features:
        return Features()

    def doubts(self, cells: Mapping[str, Cells]) -> list[str]:
        return [f"{DOUBT}column {self.name!r} is left out: {self.why}"]


ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder
    for encoder in (NumberColumn, BooleanColumn, CategoryColumn, DateColumn, TextColumn, CountColumns, LeftOut)
}


@dataclass(frozen=True)
class EncodedTable:
    """The features of a table: an array, or a sparse matrix where there are words; None where no column gives any."""

    x: Any
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Columns:
    """What was learned of the columns of a table of nodes; called with a table it gives its features."""

    encoders: tuple[Encoder, ...]

    @property
    def num_features(self) -> int:
        return sum(encoder.num_features for encoder in self.encoders)

    @property
    def single_columns(self) -> list[str]:
        """The columns of the table that give features, each on its own."""
        return [e.name for e in self.encoders if e.num_features and not isinstance(e, (CountColumns, TextColumn))]

    def __call__(self, table: Table) -> EncodedTable:
        """The features of a table with these columns: numbers first, then what is ready, then words."""
        return self.read(table)[0]

    def read(self, table: Table) -> tuple[EncodedTable, list[str]]:
        """The features of a table with these columns, and notes on cells that say what there is no feature for."""
        names = [name for encoder in self.encoders for name in encoder.sources]
        if absent := [name for name in names if name not in table.columns]:
            held = some(list(table.columns), 12)
            raise ValueError(
                f"{table.path.name} has no column {absent[0]!r}, which was learned as a feature; it has {held}"
            )
        cells = {name: Cells(table, name) for name in names}
        return self.encode(cells), [note for encoder in self.encoders for note in encoder.surprises(cells)]

    def encode(self, cells: Mapping[str, Cells]) -> EncodedTable:
        """The features of columns that are at hand."""
        found = [(encoder.name, encoder.features(cells)) for encoder in self.encoders]
        numbers = [column for _, features in found for column in features.numbers]
        ready = [column for _, features in found for column in features.table]
        parts = [("numbers", "numbers", np.stack(numbers, axis=1))] if numbers else []
        parts += [("table", "table", np.stack(ready, axis=1))] if ready else []
        parts += [(name, "words", features.words) for name, features in found if features.words is not None]
        if not parts:
            return EncodedTable(None, ())
        ends = list(itertools.accumulate(part.shape[1] for *_, part in parts))
        starts = [0, *ends[:-1]]
        blocks = [Block(name, kind, *place) for (name, kind, _), *place in zip(parts, starts, ends, strict=True)]
        matrices = [matrix for *_, matrix in parts]
        is_sparse = any(map(scipy.sparse.issparse, matrices))
        x = scipy.sparse.csr_array(scipy.sparse.hstack(matrices)) if is_sparse else np.hstack(matrices)
        return EncodedTable(x, tuple(blocks))

    def summaries(self) -> tuple[ColumnSummary, ...]:
        return tuple(ColumnSummary(e.name, e.kind, e.num_features, e.missing, e.about) for e in self.encoders)

    def means_the_same(self, other: Columns) -> bool:
        """Whether a model that was trained with these columns can read features made with the others."""
        ours, theirs = (
            [encoder.meaning() for encoder in columns.encoders if encoder.num_features] for columns in (self, other)
        )
        return ours == theirs

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": encoder.kind,
                **{k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(encoder).items()},
            }
            for encoder in self.encoders
        ]

    @classmethod
    def from_json(cls, facts: Any) -> Columns:
        """The columns that `to_json` gave; whatever else is refused."""
        found = []
        for one in decode_as(list[dict[str, Any]], facts, "columns"):
            kind = one.get("kind")
            if kind not in ENCODERS:
                raise ValueError(f"unknown kind of column {kind!r:.40}; there are {', '.join(ENCODERS)}")
            fields = {name: value for name, value in one.items() if name != "kind"}
            found.append(decode_as(ENCODERS[kind], fields, str(one.get("name", ""))))
        return cls(tuple(found))


def learn_columns(
    table: Table, names: Sequence[str], texts: Sequence[str] = ()
) -> tuple[Columns, EncodedTable, list[str]]:
    """Decide what each column of a table is: what was learned, the features of the table, and notes on what is in doubt.

    Args:
        names: the columns, in this order.
        texts: those among them that are text, whatever they look like.
    """
    cells = {name: Cells(table, name) for name in names}
    counts = [name for name in names if name not in texts and _are_counts(cells[name].numbers)]
    counts = counts if len(counts) >= FEWEST_COUNTS else []
    found = [
        TextColumn.learned(cells[name]) if name in texts else _learned(cells[name])
        for name in names
        if name not in counts
    ]
    if counts:
        found.append(CountColumns(name=f"{counts[0]} … {counts[-1]}", columns=tuple(counts)))
    columns = Columns(tuple(found))
    return columns, columns.encode(cells), [note for encoder in found for note in encoder.doubts(cells)]


def _learned(cells: Cells) -> Encoder:
    """What a column is, by its cells."""
    if cells.numbers is not None:
        return NumberColumn(name=cells.name, median=float(np.median(cells.numbers)) if len(cells) else 0.0)
    if not cells.are_single:
        return LeftOut(name=cells.name, why="its cells are lists")
    if (style := number_style(cells)) is not None:
        return NumberColumn.learned(cells, style)
    filled = cells.is_filled(NO_VALUE)
    values = {text.lower() for text in itertools.compress(cells.texts, filled)}
    for pair in BOOLEANS:
        if values == pair:
            false, true = sorted(values)  # false and true, no and yes
            missing = int(cells.counts[~filled].sum())
            return BooleanColumn(name=cells.name, missing=missing, true=true, false=false)
    forms = date_forms(cells)
    if len(forms) == 2:
        return LeftOut(name=cells.name, why="day and month could change places in its dates; write them as 2024-12-31")
    return DateColumn.learned(cells, forms[0]) if forms else _learned_of_texts(cells)


def _learned_of_texts(cells: Cells) -> Encoder:
    """A category, text, or nothing: by how many distinct texts there are, and whether they have several words."""
    filled = cells.is_filled()
    distinct = {text for text in cells.texts if text}
    num_filled, most = int(cells.counts[filled].sum()), len(distinct)
    if most == 0 or (most == 1 and num_filled == len(cells)):
        why = "it says the same everywhere" if most else "no cell is filled"
        return LeftOut(name=cells.name, why=why)
    repeats = most == 1 or (most < num_filled and most <= max(2, num_filled / 2))
    if repeats and most <= MOST_CATEGORIES:
        return CategoryColumn.learned(cells)
    if 2 * sum(" " in text for text in distinct) >= most and any(_words(text) for text in distinct):
        return TextColumn.learned(cells)
    if repeats:
        return CategoryColumn.learned(cells)
    numbers = ~np.isnan(values_in(cells.texts, NumberStyle())) & cells.is_filled(NO_VALUE)
    if 2 * cells.counts[numbers].sum() >= num_filled:
        odd = int((filled & ~numbers).argmax())
        why = f"{cells.where(odd)} is {cells.texts[odd]!r:.40}, which is no number; leave the cell empty"
        return LeftOut(name=cells.name, why=why)
    return LeftOut(name=cells.name, why="its cells are nearly all different, like an id; text=… reads it as words")


def _are_counts(numbers: np.ndarray | None) -> bool:
    """Whole numbers, none negative, at least half of them 0 and some not."""
    if numbers is None or not len(numbers):
        return False
    num_zeros = len(numbers) - np.count_nonzero(numbers)
    return bool(2 * num_zeros >= len(numbers) and numbers.min() >= 0 and (numbers == np.floor(numbers)).all())
