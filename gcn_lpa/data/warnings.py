"""Warnings: what in the user's data may not be meant as it was read. Commands that train print them first."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gcn_lpa.data.hints import some, type_word
from gcn_lpa.data.table import USUAL_NAMES, Table, is_missing, is_text, number, series

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph

WARNING = "warning: "  # how such a note begins
UNKNOWN = frozenset(("?", "na", "n/a", "nan", "null", "none", "unknown", "-", "--", "missing"))
MOST_CLASSES = 200  # that are compared with each other
RARER = 10  # how many times rarer than the class it may be is a misspelt one
FEWEST_LETTERS = 4
FEWEST_LABELLED, FEWEST_OF_A_CLASS = 10, 3  # nodes, for a column to be said to tell the class
MOST_VALUES, NODES_PER_VALUE = 50, 5


def warnings_in(notes: Iterable[str]) -> tuple[str, ...]:
    """Of the notes on a graph those that are warnings."""
    return tuple(note for note in notes if note.startswith(WARNING))


def alike_names(names: Sequence[Hashable]) -> list[str]:
    """A warning where two nodes have names that print the same, such as 1 and "1"."""
    if isinstance(names, range) or len(set(map(type, names))) < 2:
        return []
    printed: dict[str, Hashable] = {}
    for name in names:
        if (other := printed.setdefault(str(name), name)) is not name:
            both = f"{other!r} ({type_word(other)}) and {name!r} ({type_word(name)})"
            return [f"{WARNING}{both} are two nodes; are ids of both kinds meant?"]
    return []


def guessed_label(table: Table, column: str, labels: Sequence[Any] | np.ndarray) -> list[str]:
    """A note on a label column that was found by its name or position; one of measurements is refused."""
    row = _first_fraction(labels)
    if row is not None:
        raise ValueError(
            f"{table.where(row, column)} is {labels[row]!r}, which is no class; the column is read as the label: say label=… "
            "which it is, or label='' for none (features=… can then name this column)"
        )
    return [f"column {column!r} is read as the label; label=… says otherwise"]


def other_labels(table: Table, taken: Sequence[str]) -> list[str]:
    """Columns beside the label that have one of its usual names and hold classes, not measurements."""
    named = [name for name in table.columns if name.lower() in USUAL_NAMES["label"] and name not in taken]
    return [name for name in named if _first_fraction(table.columns[name]) is None]


def _first_fraction(cells: Iterable[Any]) -> int | None:
    """The row where a column of numbers first has one that is not whole; None where a cell is no number."""
    rows: dict[str, int] = {}  # the first of each text
    for i, cell in enumerate(cells):
        if not is_missing(cell):
            rows.setdefault(str(cell), i)
    numbers = {text: number(text) for text in rows if text.lower() not in ("", "nan")}
    if not np.isfinite(list(numbers.values())).all():
        return None
    return next((rows[text] for text, value in numbers.items() if not value.is_integer()), None)


def graph_warnings(graph: Graph) -> list[str]:
    """Warnings about the classes and edges of a graph."""
    return [*_class_warnings(graph), *_misspelt_classes(graph), *_edge_warnings(graph)]


def _class_warnings(graph: Graph) -> list[str]:
    """Warnings about classes that may not be meant as such, or not as classes of their own."""
    notes = []
    if "-1" in graph.class_names and graph.num_classes >= 3:
        notes.append(f"{WARNING}the label '-1' is read as a class; if it means unknown, say unknown='-1'")
    alike: dict[str, list[str]] = {}
    for name in graph.class_names:
        alike.setdefault(name.strip().casefold(), []).append(name)
        if name.strip().casefold() in UNKNOWN:
            notes.append(f"{WARNING}the label {name!r} is read as a class; if it means unknown, say unknown={name!r}")
    for text, names in alike.items():
        if not text:
            how = "if it means unknown, say so with unknown=…"
            notes.append(f"{WARNING}the blank label {some(names)} is read as a class; {how}")
        elif len(names) > 1:
            how = "blanks around them" if len({name.strip() for name in names}) == 1 else "upper and lower case"
            notes.append(f"{WARNING}the labels {some(names)} differ by {how}, and are read as classes apart")
    return notes


def _misspelt_classes(graph: Graph) -> list[str]:
    """Warnings about classes one letter apart from another that is ten times as frequent."""
    sizes = np.bincount(graph.y[graph.labeled].cpu().numpy(), minlength=graph.num_classes)
    order = np.argsort(-sizes, kind="stable")[:MOST_CLASSES]
    notes = []
    for rare in order:
        for frequent in order:
            name, other = graph.class_names[rare], graph.class_names[frequent]
            if 0 < RARER * sizes[rare] <= sizes[frequent] and _is_misspelt(name, other):
                counts = f"({sizes[rare]:,} and {sizes[frequent]:,} nodes)"
                notes.append(
                    f"{WARNING}the label {name!r} may be {other!r} misspelt {counts}; they are read as two classes"
                )
    return notes


def _is_misspelt(name: str, other: str) -> bool:
    """One letter added, left out, changed, or swapped with the next; digits make different names."""
    short, long = sorted((name.casefold(), other.casefold()), key=len)
    if short == long or len(short) < FEWEST_LETTERS or len(long) - len(short) > 1:
        return False
    start = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    rest, others = short[start:], long[start:]
    if any(map(str.isdigit, rest[:1] + others[:1])):
        return False
    if len(short) < len(long):
        return rest == others[1:]
    return rest[1:] == others[1:] or (rest[:2] == others[1::-1] and rest[2:] == others[2:])


def _edge_warnings(graph: Graph) -> list[str]:
    """Warnings about a graph in which nothing can travel, and about edge types that will teach nothing."""
    notes = []
    if not graph.num_edges:
        how = "edges come from edges.csv"
        notes.append(f"{WARNING}there are no edges: every node is labelled by its features alone; {how}")
    names = () if graph.edge_types is None else graph.edge_types.names
    if len(names) == 1:
        notes.append(f"{WARNING}all edges are of one type, {names[0]!r}: there is nothing to weigh")
    elif names and graph.x_kind != "given":
        how = "--propagation relations weighs them all the same"
        notes.append(f"{WARNING}without features the default recipe does not weigh edge types; {how}")
    return notes


def telling_columns(table: Table, names: Sequence[str], labels: Sequence[Any] | np.ndarray) -> list[str]:
    """Warnings about feature columns with few values, each of which goes with one class in all labelled nodes."""
    import pandas

    known = np.array([label is not None for label in labels], dtype=bool)
    classes, _ = pandas.factorize(series([str(label) for label in np.asarray(labels, dtype=object)[known]]))
    sizes = np.sort(np.bincount(classes))[::-1]
    if len(classes) < FEWEST_LABELLED or len(sizes) < 2 or sizes[1] < FEWEST_OF_A_CLASS:
        return []
    notes = []
    for name in names:
        cells = table.columns[name][known]
        codes, values = pandas.factorize(cells if is_text(cells) else series([str(cell) for cell in cells]))
        if not 2 <= len(values) <= min(MOST_VALUES, len(codes) / NODES_PER_VALUE):
            continue
        if len(np.unique(codes.astype(np.int64) * len(sizes) + classes)) == len(values):  # one class for each value
            rest = ",".join(other for other in names if other != name)
            without = f"features={rest}" if 0 < len(rest) <= 60 else "features=…"
            notes.append(
                f"{WARNING}column {name!r} alone tells the class of every labelled node; if it says the label in other words, "
                f"{without} leaves it out"
            )
    return notes
