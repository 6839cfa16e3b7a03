"""What may not be meant as it was read: a refusal where the answer would be wrong, else a note that says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gcn_lpa.graph import Graph
from gcn_lpa.intake import DOUBT, is_missing, of_another_kind, similar, some, written_alike
from gcn_lpa.relations import MOST_KINDS
from gcn_lpa.tables.columns import USUAL_NAMES, Table, is_text, number, series

UNKNOWN = frozenset(("?", "na", "n/a", "nan", "null", "none", "unknown", "-", "--", "missing"))
MOST_CLASSES = 200  # that are compared with each other
RARER = 10  # how many times rarer than the class it may be is a misspelt one
FEWEST_LETTERS = 4
FEWEST_LABELLED, FEWEST_OF_A_CLASS = 10, 3  # nodes, for a column to be called telling
MOST_VALUES, NODES_PER_VALUE = 50, 5


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
    close = written_alike(str(value), map(str, names)) or similar(str(value), map(str, names))
    hint = f"; {hint}" if hint else f"; close to it: {', '.join(close)}" if close else ""
    return ValueError(f"{table.where(row, column)} is {value!r:.80}, which {origin.path.name} does not list{hint}")


def doubtful_classes(graph: Graph) -> list[str]:
    """Notes on classes that may not be meant as such, or not as classes of their own."""
    notes = []
    if "-1" in graph.class_names and graph.num_classes >= 3:
        notes.append(f"{DOUBT}the label '-1' is read as a class; if it means unknown, say unknown='-1'")
    alike: dict[str, list[str]] = {}
    for name in graph.class_names:
        alike.setdefault(name.strip().casefold(), []).append(name)
        if name.strip().casefold() in UNKNOWN:
            notes.append(f"{DOUBT}the label {name!r} is read as a class; if it means unknown, say unknown={name!r}")
    for text, names in alike.items():
        if not text:
            notes.append(
                f"{DOUBT}the blank label {some(names)} is read as a class; if it means unknown, say so with unknown=…"
            )
        elif len(names) > 1:
            how = "blanks around them" if len({name.strip() for name in names}) == 1 else "upper and lower case"
            notes.append(f"{DOUBT}the labels {some(names)} differ by {how}, and are read as classes apart")
    return [*notes, *_misspelt_classes(graph)]


def _misspelt_classes(graph: Graph) -> list[str]:
    """Notes on classes one letter apart from another that is ten times as frequent."""
    sizes = np.bincount(graph.y[graph.labeled].cpu().numpy(), minlength=graph.num_classes)
    order = np.argsort(-sizes, kind="stable")[:MOST_CLASSES]
    notes = []
    for rare in order:
        for frequent in order:
            name, other = graph.class_names[rare], graph.class_names[frequent]
            if 0 < RARER * sizes[rare] <= sizes[frequent] and _is_misspelt(name, other):
                counts = f"{sizes[rare]:,} and {sizes[frequent]:,} nodes"
                notes.append(
                    f"{DOUBT}the label {name!r} may be {other!r} misspelt ({counts}); they are read as two classes"
                )
    return notes


def _is_misspelt(name: str, other: str) -> bool:
    """One letter added, left out, changed, or changed places with the next; digits make different names."""
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


def telling_columns(table: Table, names: Sequence[str], labels: Sequence[Any] | np.ndarray) -> list[str]:
    """Notes on feature columns with few values, each of which goes with one class in all labelled nodes."""
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
        pairs = len(np.unique(codes.astype(np.int64) * len(sizes) + classes))
        if pairs == len(values):
            rest = ",".join(other for other in names if other != name)
            without = f"features={rest}" if 0 < len(rest) <= 60 else "features=…"
            notes.append(
                f"{DOUBT}column {name!r} alone tells the class of every labelled node; if it says the label in other words, "
                f"{without} leaves it out"
            )
    return notes


def edge_kinds(table: Table, column: str, ends: Sequence[str]) -> list[str]:
    """The kind of each edge, a column of text; an empty cell, an end, or more kinds than can be weighed are refused."""
    if column in ends:
        raise ValueError(f"relation={column!r} is the column of an end of the edges; it names that of their kinds")
    kinds = ["" if is_missing(cell) else str(cell).strip() for cell in table.columns[column]]
    if "" in kinds:
        raise ValueError(f"{table.where(kinds.index(''), column)} is empty; every edge needs a kind")
    if (number := len(set(kinds))) > MOST_KINDS:
        raise ValueError(
            f"column {column!r} of {table.path.name} names {number:,} kinds of edges; at most {MOST_KINDS} can be weighed. "
            "Put rare ones together, or name another column with relation=…"
        )
    return kinds


def doubtful_kinds(graph: Graph) -> list[str]:
    """A note where kinds of edges will teach nothing."""
    names = () if graph.relations is None else graph.relations.names
    if len(names) == 1:
        return [f"{DOUBT}all edges are of one kind, {names[0]!r}: there is nothing to weigh"]
    if names and graph.x_kind != "given":
        how = "--propagation relations weighs them all the same"
        return [f"{DOUBT}without features the default recipe does not weigh kinds of edges; {how}"]
    return []


def no_edges(graph: Graph) -> list[str]:
    """A note on a graph in which nothing can travel."""
    if graph.num_edges:
        return []
    return [f"{DOUBT}there are no edges: every node is labelled by its features alone; edges come from edges.csv"]
