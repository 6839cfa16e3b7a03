"""The columns of a table of nodes: which type each is of, and the features that they become together.

`learn_columns` looks at a table and decides, by the cells alone: no label is read. `Columns` is what was learned, plain JSON,
and gives the features of the same or of another table.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcn_lpa.data.checks import some
from gcn_lpa.data.encoders import (
    ENCODERS,
    MOST_CATEGORIES,
    BooleanColumn,
    CategoryColumn,
    ColumnSummary,
    CountColumns,
    DateColumn,
    Encoder,
    LeftOut,
    NumberColumn,
    TextColumn,
    words_in,
)
from gcn_lpa.data.files import decode_as
from gcn_lpa.data.scaling import Block, side_by_side
from gcn_lpa.data.table import Cells, NumberStyle, Table, date_forms, number_style

FEWEST_COUNTS = 20  # columns of counts that make a bag of words
BOOLEANS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})


@dataclass(frozen=True)
class EncodedTable:
    """The features of a table: an array, or a sparse matrix where there are words; None where no column gives any."""

    x: Any
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Columns:
    """What was learned of the columns of a table of nodes."""

    encoders: tuple[Encoder, ...]

    @property
    def num_features(self) -> int:
        return sum(encoder.num_features for encoder in self.encoders)

    @property
    def single_columns(self) -> list[str]:
        """The columns of the table that give features, each on its own."""
        return [e.name for e in self.encoders if e.num_features and not isinstance(e, (CountColumns, TextColumn))]

    def read(self, table: Table) -> tuple[EncodedTable, list[str]]:
        """The features of a table with these columns, and warnings about cells that say what there is no feature for."""
        names = [name for encoder in self.encoders for name in encoder.sources]
        if absent := [name for name in names if name not in table.columns]:
            held = some(list(table.columns), 12)
            raise ValueError(
                f"{table.path.name} has no column {absent[0]!r}, which was learned as a feature; it has {held}"
            )
        cells = {name: Cells(table, name) for name in names}
        return self.encode(cells), [note for encoder in self.encoders for note in encoder.warnings(cells)]

    def encode(self, cells: Mapping[str, Cells]) -> EncodedTable:
        """The features of columns that are at hand: numbers first, then what is ready, then words."""
        features = [(encoder.name, *part) for encoder in self.encoders for part in encoder.features(cells)]
        parts = []
        for kind in ("numbers", "table"):
            if columns := [column for _, its_kind, column in features if its_kind == kind]:
                parts.append((kind, kind, np.stack(columns, axis=1)))
        parts += [(name, kind, words) for name, kind, words in features if kind == "words"]
        if not parts:
            return EncodedTable(None, ())
        ends = list(itertools.accumulate(part.shape[1] for *_, part in parts))
        bounds = zip(parts, [0, *ends], ends, strict=False)
        blocks = tuple(Block(name, kind, start, end) for (name, kind, _), start, end in bounds)
        return EncodedTable(side_by_side([part for *_, part in parts]), blocks)

    def summaries(self) -> tuple[ColumnSummary, ...]:
        return tuple(encoder.summary for encoder in self.encoders)

    def means_the_same(self, other: Columns) -> bool:
        """Whether a model that was trained with these columns can read features made with the others."""
        ours, theirs = (
            [encoder.meaning() for encoder in columns.encoders if encoder.num_features] for columns in (self, other)
        )
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


def learn_columns(
    table: Table, names: Sequence[str], texts: Sequence[str] = ()
) -> tuple[Columns, EncodedTable, list[str]]:
    """The type of each column of a table: what was learned, the features of the table, and warnings.

    Args:
        names: the columns, in this order.
        texts: those among them that are text, whatever they look like.
    """
    cells = {name: Cells(table, name) for name in names}
    counts = [name for name in names if name not in texts and _are_counts(cells[name].numbers)]
    counts = counts if len(counts) >= FEWEST_COUNTS else []
    encoders = [
        TextColumn.learned(cells[name]) if name in texts else encoder_of(cells[name])
        for name in names
        if name not in counts
    ]
    if counts:
        encoders.append(CountColumns(name=f"{counts[0]} … {counts[-1]}", columns=tuple(counts)))
    columns = Columns(tuple(encoders))
    warnings = [note for encoder in encoders for note in encoder.warnings_when_learned(cells)]
    return columns, columns.encode(cells), warnings


def encoder_of(cells: Cells) -> Encoder:
    """What a column is, by its cells."""
    if cells.numbers is not None:
        return NumberColumn.learned(cells, NumberStyle())
    if not cells.are_single:
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
    distinct = {text for text in cells.texts if text}
    num_filled, num_distinct = int(cells.counts[~cells.is_blank].sum()), len(distinct)
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
    if 2 * cells.counts[is_number].sum() >= num_filled:
        odd = int((~cells.is_blank & ~is_number).argmax())
        why = f"{cells.where(odd)} is {cells.texts[odd]!r:.40}, which is no number; leave the cell empty"
        return LeftOut(name=cells.name, why=why)
    return LeftOut(
        name=cells.name, why="its cells are nearly all different, like an id; option text=… reads it as words"
    )


def _are_counts(numbers: np.ndarray | None) -> bool:
    """Whole numbers, none negative, at least half of them 0 and some not."""
    if numbers is None or not len(numbers):
        return False
    num_zeros = len(numbers) - np.count_nonzero(numbers)
    return bool(2 * num_zeros >= len(numbers) and numbers.min() >= 0 and (numbers == np.floor(numbers)).all())
