"""What may not be meant as it was read: a refusal where the answer would be wrong, else a note that says so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gcn_lpa.graph import Graph
from gcn_lpa.intake import DOUBT, is_missing, of_another_kind, some
from gcn_lpa.tables.columns import USUAL_NAMES, Table, number


def guessed_label(table: Table, column: str, labels: Sequence[Any] | np.ndarray) -> list[str]:
    """A note on a label column that was found by its name or place; one of measurements is refused."""
    i = _first_fraction(labels)
    if i is not None:
        raise ValueError(
            f"{table.where(i, column)} is {labels[i]!r}, which is no class; the column is read as the label: say label=… "
            "which it is, or label='' for none (features=… can then name this column)"
        )
    return [f"column {column!r} is read as the label; label=… says otherwise"]


def other_labels(table: Table, taken: Sequence[str]) -> list[str]:
    """Columns beside the label that have one of its usual names and hold classes, not measurements."""
    named = [name for name in table.columns if name.lower() in USUAL_NAMES["label"] and name not in taken]
    return [name for name in named if _first_fraction(table.columns[name]) is None]


def _first_fraction(cells: Iterable[Any]) -> int | None:
    """Where a column of numbers first has one that is not whole; None where some cell is no number."""
    places: dict[str, int] = {}  # of each text, the first
    for i, cell in enumerate(cells):
        if not is_missing(cell):
            places.setdefault(str(cell), i)
    numbers = {text: number(text) for text in places if text.lower() not in ("", "nan")}
    if not np.isfinite(list(numbers.values())).all():
        return None
    return next((places[text] for text, value in numbers.items() if not value.is_integer()), None)


def require_header(table: Table, guessed: Sequence[str], names: Sequence[Any]) -> None:
    """Refuse a first row taken for a header by its usual names where one of these is also the id of a node."""
    node = next((name for name in guessed if name in names), None)
    if table.first_row_names and node is not None:
        raise ValueError(
            f"the first row of {table.path.name} is {some(list(table.columns))}, and {node!r} is also a node: that row may be "
            "an edge. Say header=False if it is, or source=… and target=… if these are names of columns"
        )


def unknown_id(table: Table, column: str, row: int, value: Any, names: Sequence[Any], origin: Table) -> ValueError:
    """The error for an id that the file of nodes does not list, with the ids that are close to it."""
    hint = of_another_kind(value, names)
    close = difflib.get_close_matches(str(value), [str(node) for node in names][:20_000], n=3)
    hint = f"; {hint}" if hint else f"; close to it: {', '.join(close)}" if close else ""
    return ValueError(f"{table.where(row, column)} is {value!r}, which {origin.path.name} does not list{hint}")


def doubtful_classes(graph: Graph) -> list[str]:
    """Notes on classes that may not be meant as such, or not as classes of their own."""
    notes = []
    if "-1" in graph.class_names and graph.num_classes >= 3:
        notes.append(f"{DOUBT}the label '-1' is read as a class; if it means unknown, say unknown='-1'")
    alike: dict[str, list[str]] = {}
    for name in graph.class_names:
        alike.setdefault(name.strip(), []).append(name)
    for text, names in alike.items():
        if not text:
            notes.append(
                f"{DOUBT}the blank label {some(names)} is read as a class; if it means unknown, say so with unknown=…"
            )
        elif len(names) > 1:
            notes.append(f"{DOUBT}the labels {some(names)} differ by blanks around them, and are read as classes apart")
    return notes
