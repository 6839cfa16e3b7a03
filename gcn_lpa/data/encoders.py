"""The columns of a table of nodes: what type each is of, and the features that its cells become.

| column | features | block |
|---|---|---|
| numbers | the number, the median where a cell is missing | numbers |
| yes and no, true and false | 1 and 0 | table |
| few distinct texts | one column each, at most 50, the rest as "other" | table |
| dates | days, standardised; month, weekday and hour on a circle, where they vary | table |
| words | TF-IDF as scikit-learn has it, of at most 5,000 words | words, one block per column |
| 20 or more columns of counts, mostly 0 | the counts, sparse | words, one block |

A column with missing cells has one more feature, which is 1 where they are missing. `learn_columns` fits an `Encoder` to each
column, by the cells alone: no label is read. `Columns` keeps them as JSON and applies them to other tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from gcn_lpa.data.checks import FLOAT32_MAX, WARNING, some
from gcn_lpa.data.column_types import (
    CYCLES,
    FORMS,
    NEVER_LEARNED,
    THOUSANDS,
    Cells,
    ColumnSummary,
    Encoder,
    Features,
    NumberStyle,
    ParsedColumn,
    date_forms,
    days_in,
    number_style,
    place_in_cycle,
    unit_of,
    words_in,
)
from gcn_lpa.data.files import decode_as
from gcn_lpa.data.scaling import Block, side_by_side
from gcn_lpa.data.table import Table, is_text

MOST_CATEGORIES = 50
LIKE_NUMBERS = 0.75  # share of the values of a category that looks like numbers
MOST_TERMS = 5_000
FARTHEST_DAYS = 5.0  # standard deviations
LAST_DAY = 3_000_000  # after 1970: datetime ends in the year 9999
FEWEST_COUNTS = 20  # columns of counts that make a bag of words
BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})


@dataclass(frozen=True, kw_only=True)
class NumberColumn(ParsedColumn):
    kind: ClassVar[str] = "number"
    unit: str = ""
    decimal: str = "."
    median: float = 0.0

    def problem(self) -> str:
        wrong = f"decimal is {self.decimal!r:.40}; it is one of {' '.join(THOUSANDS)}"
        return "" if self.decimal in THOUSANDS else wrong

    @classmethod
    def learned(cls, cells: Cells, style: NumberStyle) -> NumberColumn:
        column = cls(name=cells.name, unit=style.unit, decimal=style.decimal)
        values = column.values(cells)
        is_missing = np.isnan(values)
        median = float(np.median(values[~is_missing])) if len(values) else 0.0
        return dataclasses.replace(column, missing=int(is_missing.sum()), median=median)

    def made(self) -> tuple[int, str]:
        style = [self.unit] * bool(self.unit) + ["decimal comma"] * (self.decimal == ",")
        return 1 + bool(self.missing), ", ".join(style)

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "median": None}

    def expected(self) -> tuple[str, str]:
        return "numbers", "no number"

    def columns(self, values: np.ndarray, is_missing: np.ndarray) -> Features:
        return [("numbers", np.where(is_missing, self.median, values))]

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        return [] if cells[self.name].numbers is not None else super().warnings(cells)

    def values(self, cells: Cells) -> np.ndarray:
        is_plain = not self.unit and self.decimal == "."
        return cells.numbers if is_plain and cells.numbers is not None else super().values(cells)

    def parsed(self, cells: Cells) -> np.ndarray:
        values = NumberStyle(self.unit, self.decimal).values(cells.texts)
        values[~cells.is_value] = np.nan
        if (huge := np.flatnonzero(np.abs(values) > FLOAT32_MAX)).size:
            where, text = cells.where(huge[0]), cells.texts[huge[0]]
            raise ValueError(f"{where} is {text!r:.40}; a feature is a finite number, at most {FLOAT32_MAX:.1e}")
        return values


@dataclass(frozen=True, kw_only=True)
class BooleanColumn(ParsedColumn):
    kind: ClassVar[str] = "boolean"
    true: str  # in lower case
    false: str

    def made(self) -> tuple[int, str]:
        return 1 + bool(self.missing), f"1 where {self.true}"

    def expected(self) -> tuple[str, str]:
        return f"{self.true} or {self.false}", f"neither {self.true} nor {self.false}"

    def columns(self, values: np.ndarray, is_missing: np.ndarray) -> Features:
        return [("table", np.where(is_missing, 0.5, values))]

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
        counts = dict(zip(cells.texts, cells.counts.tolist(), strict=True))
        missing = counts.pop("", 0)
        kept = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
        return cls(name=cells.name, missing=missing, values=tuple(sorted(kept)), other=len(counts) > len(kept))

    def made(self) -> tuple[int, str]:
        about = some(self.values, 3) + (", and other" if self.other else "")
        return len(self.values) + self.other + bool(self.missing), about

    def codes(self, column: Cells) -> np.ndarray:
        """The number of the value of each cell; -1 where it is missing, the number of values where it is another, [n]."""
        position, width = {text: k for k, text in enumerate(self.values)}, len(self.values)
        of_texts = [position.get(text, -1 if text == "" else width) for text in column.texts]
        codes: np.ndarray = np.array(of_texts, dtype=np.int64)[column.codes]
        return codes

    def features(self, cells: Mapping[str, Cells]) -> Features:
        codes, width = self.codes(cells[self.name]), len(self.values)
        return [*(("table", codes == k) for k in range(width + self.other)), *self.indicator(codes == -1)]

    def warnings(self, cells: Mapping[str, Cells]) -> list[str]:
        if self.other:
            return []
        column, known = cells[self.name], {"", *self.values}
        codes = np.where([text in known for text in column.texts], 1.0, np.nan)
        return column.odd_values(codes, "a value that was not there when it was learned", "none of those")

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        """A warning where nearly all values are numbers, but not written alike: $12 and €5, or 1,5 and 2.5."""
        units = {v: unit for v in self.values if (unit := unit_of(v)) is not None}
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

    def problem(self) -> str:
        if not set(self.cycles) <= set(CYCLES):
            return f"cycles are {self.cycles!r:.60}; there are {', '.join(CYCLES)}"
        has_rate = self.deviation == 0 or sys.float_info.min <= self.deviation <= LAST_DAY  # whose inverse is a number
        if not abs(self.mean) <= LAST_DAY or not has_rate:
            return f"{self.mean} ± {self.deviation} are no days since 1970"
        is_known = self.form in itertools.chain(*FORMS)
        return "" if is_known else f"date with {NEVER_LEARNED}"

    @classmethod
    def learned(cls, cells: Cells, form: str) -> DateColumn:
        days = days_in(cells.texts, form)[cells.codes]
        is_missing = np.isnan(days)
        days = days[~is_missing]
        cycles = tuple(name for name in CYCLES if np.ptp(place_in_cycle(name, days)) > 0)
        moments = {"mean": float(days.mean()), "deviation": float(days.std())}
        return cls(name=cells.name, missing=int(is_missing.sum()), form=form, cycles=cycles, **moments)

    def made(self) -> tuple[int, str]:
        return 1 + 2 * len(self.cycles) + bool(self.missing), ", ".join(["days", *self.cycles])

    def expected(self) -> tuple[str, str]:
        return f"dates written as {self.form}", f"no date written as {self.form}"

    def columns(self, values: np.ndarray, is_missing: np.ndarray) -> Features:
        filled = np.where(is_missing, self.mean, values)
        rate = 1 / self.deviation if self.deviation > 0 else 0.0
        columns = [np.clip((filled - self.mean) * rate, -FARTHEST_DAYS, FARTHEST_DAYS)]
        for name in self.cycles:
            angle = 2 * np.pi * place_in_cycle(name, filled) / CYCLES[name]
            columns += [np.where(is_missing, 0, np.sin(angle)), np.where(is_missing, 0, np.cos(angle))]
        return [("table", column) for column in columns]

    def parsed(self, cells: Cells) -> np.ndarray:
        return days_in(cells.texts, self.form)


@dataclass(frozen=True, kw_only=True)
class TextColumn(Encoder):
    """TF-IDF as TfidfVectorizer has it: words of two letters or more, x_id (1 + ln((1 + n) / (1 + n_d))), rows of length 1."""

    kind: ClassVar[str] = "text"
    terms: tuple[str, ...]  # sorted
    counts: tuple[int, ...]  # n_d, the cells that hold each
    cells: int  # n

    def problem(self) -> str:
        are_counts = len(self.terms) == len(self.counts) and all(0 <= count <= self.cells for count in self.counts)
        return "" if are_counts else f"text with {NEVER_LEARNED}"

    @classmethod
    def learned(cls, cells: Cells) -> TextColumn:
        """The most frequent words over all cells; of equally frequent ones the first in the alphabet."""
        total: Counter[str] = Counter()
        holding: Counter[str] = Counter()
        missing = 0
        for text, count in zip(cells.texts, cells.counts.tolist(), strict=True):
            missing += count * (text == "")
            for term, often in words_in(text).items():
                total[term] += often * count
                holding[term] += count
        terms = tuple(sorted(sorted(total, key=lambda term: (-total[term], term))[:MOST_TERMS]))
        if not terms:
            raise ValueError(f"{cells.table.path.name}, column {cells.name!r} has no words to make features of")
        counts = tuple(holding[term] for term in terms)
        return cls(name=cells.name, missing=missing, terms=terms, counts=counts, cells=len(cells))

    def meaning(self) -> dict[str, Any]:
        return {**super().meaning(), "missing": False}  # a cell without words is a row of zeros

    def made(self) -> tuple[int, str]:
        return len(self.terms), f"TF-IDF of {len(self.terms):,} words"

    def features(self, cells: Mapping[str, Cells]) -> Features:
        column, position = cells[self.name], {term: k for k, term in enumerate(self.terms)}
        idf = 1 + np.log((1 + self.cells) / (1 + np.array(self.counts, dtype=np.float64)))
        pairs, ends = array("i"), array("q", [0])  # a tuple for each would take ten times as much
        for text in column.texts:
            row = sorted((position[term], often) for term, often in words_in(text).items() if term in position)
            pairs.extend(itertools.chain(*row))
            ends.append(len(pairs) // 2)
        (terms, often), size = np.array(pairs, dtype=np.int32).reshape(-1, 2).T, np.diff(ends)
        values = often * idf[terms]
        lengths = np.sqrt(np.add.reduceat(np.append(values**2, 0.0), ends[:-1])) if len(size) else np.empty(0)
        values /= np.repeat(lengths, size)
        distinct = scipy.sparse.csr_array((values, terms, ends), shape=(len(size), len(idf)))
        return [("words", scipy.sparse.csr_array(distinct[column.codes]))]


@dataclass(frozen=True, kw_only=True)
class CountColumns(Encoder):
    """Columns of counts that are mostly 0, as they are."""

    kind: ClassVar[str] = "words"
    columns: tuple[str, ...]

    def problem(self) -> str:
        return "" if self.columns else f"words with {NEVER_LEARNED}"

    @property
    def sources(self) -> tuple[str, ...]:
        return self.columns

    def made(self) -> tuple[int, str]:
        return len(self.columns), f"{len(self.columns):,} columns of counts, as they are"

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

    def made(self) -> tuple[int, str]:
        return 0, self.why

    def features(self, cells: Mapping[str, Cells]) -> Features:
        return []

    def warnings_when_learned(self, cells: Mapping[str, Cells]) -> list[str]:
        return [f"{WARNING}column {self.name!r} is left out: {self.why}"]


ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder
    for encoder in (NumberColumn, BooleanColumn, CategoryColumn, DateColumn, TextColumn, CountColumns, LeftOut)
}


@dataclass(frozen=True)
class EncodedTable:
    """The features of a table: an array, or a sparse matrix where there are words; None where no column gives any."""

    x: Any
    blocks: tuple[Block, ...] = ()
    warnings: Sequence[str] = ()  # about how the cells were read


@dataclass(frozen=True)
class Columns:
    """What was learned of the columns of a table of nodes."""

    encoders: tuple[Encoder, ...]

    @property
    def num_features(self) -> int:
        return sum(encoder.num_features for encoder in self.encoders)

    @property
    def single_columns(self) -> list[str]:
        """The columns of the table that give features, but for words and counts."""
        return [e.name for e in self.encoders if e.num_features and not isinstance(e, (CountColumns, TextColumn))]

    def read(self, table: Table) -> EncodedTable:
        """The features of a table that has these columns."""
        names = [name for encoder in self.encoders for name in encoder.sources]
        if absent := [name for name in names if name not in table.columns]:
            held = f"it has {some(list(table.columns), 12)}"
            raise ValueError(f"{table.path.name} has no column {absent[0]!r}, which was learned as a feature; {held}")
        cells = {name: Cells(table, name) for name in names}
        return self.encode(cells, [note for encoder in self.encoders for note in encoder.warnings(cells)])

    def encode(self, cells: Mapping[str, Cells], warnings: Sequence[str]) -> EncodedTable:
        """The features of columns that are at hand: numbers first, then what is ready, then words."""
        features, parts = [], []
        for encoder in self.encoders:
            features += [(encoder.name, *part) for part in encoder.features(cells)]
            for name in encoder.sources:
                cells[name].forget()
        for kind in ("numbers", "table"):
            if columns := [column for _, its_kind, column in features if its_kind == kind]:
                parts.append((kind, kind, np.stack(columns, axis=1, dtype=np.result_type(*columns, np.bool_), casting="same_kind")))
        parts += [(name, kind, words) for name, kind, words in features if kind == "words"]
        if not parts:
            return EncodedTable(None, (), warnings)
        ends = list(itertools.accumulate(part.shape[1] for *_, part in parts))
        bounds = zip(parts, [0, *ends], ends, strict=False)
        blocks = tuple(Block(name, kind, start, end) for (name, kind, _), start, end in bounds)
        return EncodedTable(side_by_side([part for *_, part in parts], np.float32), blocks, warnings)

    def positions(self) -> dict[str, list[int]]:
        """Where the features of each column are among all: see `encode`."""
        counts = []
        for encoder in self.encoders:
            is_number, has_words = isinstance(encoder, NumberColumn), isinstance(encoder, (TextColumn, CountColumns))
            number, words = int(is_number), encoder.num_features * has_words
            counts.append((encoder.name, (number, encoder.num_features - number - words, words)))
        found: dict[str, list[int]] = {name: [] for name, _ in counts}
        start = 0
        for k in range(3):  # numbers, what is ready, words
            for name, sizes in counts:
                found[name] += range(start, start + sizes[k])
                start += sizes[k]
        return found

    def cells_of(self, row: np.ndarray) -> list[tuple[str, str]]:
        """Each column and what a row of features says of its cell; words and counts are left out."""
        places, found = self.positions(), []
        for one in self.encoders:
            values, text = row[places[one.name]], ""
            if isinstance(one, NumberColumn):
                text = f"{values[0]:.6g}{one.unit and f' {one.unit}'}"
            elif isinstance(one, BooleanColumn):
                text = one.true if values[0] == 1 else one.false
            elif isinstance(one, CategoryColumn) and values.any():
                text = (*one.values, *(["other"] * one.other), "")[int(values.argmax())]
            elif isinstance(one, DateColumn):
                text = str(np.datetime64(round(one.mean + one.deviation * float(values[0])), "D"))
            if one.num_features and not isinstance(one, (TextColumn, CountColumns)):
                found.append((one.name, "" if one.missing and values[-1] == 1 else text))
        return found

    def summaries(self) -> tuple[ColumnSummary, ...]:
        return tuple(encoder.summary for encoder in self.encoders)

    def means_the_same(self, other: Columns) -> bool:
        """Whether a model that was trained with these columns can read features made with the others."""
        ours, theirs = ([e.meaning() for e in columns.encoders if e.num_features] for columns in (self, other))
        return ours == theirs

    def to_json(self) -> list[dict[str, Any]]:
        """A value of JSON, with lists in place of tuples."""
        states = [{"kind": encoder.kind, **dataclasses.asdict(encoder)} for encoder in self.encoders]
        return [{key: list(v) if isinstance(v, tuple) else v for key, v in state.items()} for state in states]

    @classmethod
    def from_json(cls, states: Any) -> Columns:
        """The columns that `to_json` gave; whatever else is refused."""
        encoders = []
        for state in decode_as(list[dict[str, Any]], states, "columns"):
            kind = state.pop("kind", None)
            if kind not in ENCODERS:
                raise ValueError(f"unknown kind of column {kind!r:.40}; there are {', '.join(ENCODERS)}")
            encoders.append(decode_as(ENCODERS[kind], state, str(state.get("name", ""))))
        return cls(tuple(encoders))


def learn_columns(table: Table, names: Sequence[str], texts: Sequence[str] = ()) -> tuple[Columns, EncodedTable]:
    """What is learned of the columns of a table, and its features.

    Args:
        names: the columns, in this order.
        texts: those among them that are text, whatever they look like.
    """
    cells = {name: Cells(table, name) for name in names}
    counts = [name for name in names if name not in texts and _are_counts(cells[name].numbers)]
    counts = counts if len(counts) >= FEWEST_COUNTS else []
    encoders = [
        TextColumn.learned(cells[name]) if name in texts else encoder_of(cells[name]) for name in names if name not in counts
    ]
    if counts:
        encoders.append(CountColumns(name=f"{counts[0]} … {counts[-1]}", columns=tuple(counts)))
    columns = Columns(tuple(encoders))
    return columns, columns.encode(cells, [note for e in encoders for note in e.warnings_when_learned(cells)])


def encoder_of(cells: Cells) -> Encoder:
    """What a column is, by its cells."""
    if cells.numbers is not None:
        return NumberColumn.learned(cells, NumberStyle())
    several = (list, tuple, dict, set, np.ndarray)  # in a cell of a Parquet file
    if not is_text(cells.column) and any(isinstance(cell, several) for cell in cells.column):
        return LeftOut(name=cells.name, why="its cells are lists")
    if (style := number_style(cells)) is not None:
        return NumberColumn.learned(cells, style)
    values = {text.lower() for text in cells.values}
    if values in BOOLEANS:
        false, true = sorted(values)  # false and true, no and yes
        missing = int(cells.counts[~cells.is_value].sum())
        return BooleanColumn(name=cells.name, missing=missing, true=true, false=false)
    forms = date_forms(cells)
    if len(forms) == 2:
        return LeftOut(name=cells.name, why="day and month could change places in its dates; write them as 2024-12-31")
    return DateColumn.learned(cells, forms[0]) if forms else _encoder_of_texts(cells)


def _encoder_of_texts(cells: Cells) -> Encoder:
    """A category, text, or nothing: by how many distinct texts there are, and whether they have several words."""
    distinct = [text for text in cells.texts if text]
    is_filled = np.array([text != "" for text in cells.texts], dtype=bool)
    num_filled, num_distinct = int(cells.counts[is_filled].sum()), len(distinct)
    if num_distinct == 0 or (num_distinct == 1 and num_filled == len(cells)):
        return LeftOut(name=cells.name, why="it says the same everywhere" if distinct else "no cell is filled")
    repeats = num_distinct == 1 or (num_distinct < num_filled and num_distinct <= max(2, num_filled / 2))
    if repeats and num_distinct <= MOST_CATEGORIES:
        return CategoryColumn.learned(cells)
    if 2 * sum(" " in text for text in distinct) >= num_distinct and any(words_in(text) for text in distinct):
        return TextColumn.learned(cells)
    if repeats:
        return CategoryColumn.learned(cells)
    is_number = ~np.isnan(NumberStyle().values(cells.texts)) & cells.is_value
    why = "its cells are nearly all different, like an id; option text=… reads it as words"
    if 2 * cells.counts[is_number].sum() >= num_filled:
        odd = int((is_filled & ~is_number).argmax())
        why = f"{cells.where(odd)} is {cells.texts[odd]!r:.40}, which is no number; leave the cell empty"
    return LeftOut(name=cells.name, why=why)


def _are_counts(numbers: np.ndarray | None) -> bool:
    """Whole numbers, none negative, at least half of them 0 and some not."""
    if numbers is None or not len(numbers):
        return False
    num_zeros = len(numbers) - np.count_nonzero(numbers)
    return bool(2 * num_zeros >= len(numbers) and numbers.min() >= 0 and (numbers == np.floor(numbers)).all())
