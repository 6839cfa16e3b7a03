"""A user's own files: a table of nodes, one of edges, maybe one of labels, as CSV or Parquet.

Ids and labels of a CSV file are text, exactly as written: "001" is not 1, and "NA" is a class. An empty label is
unknown. Columns are found by their usual names, which options override. Errors say file, row, column and value;
rows are counted as a spreadsheet shows them, with the header as row 1.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
import itertools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.graph import Graph
from gcn_lpa.intake import DOUBT, FLOAT32_MAX, Ends, is_missing, of_another_kind, some

USUAL_NAMES = {
    "id": ("id", "node", "node_id", "nodeid", "name", "key", "paper", "paper_id", "user", "user_id", "account"),
    "label": ("label", "class", "y", "category", "labels", "target", "club"),
    "source": ("source", "src", "from", "u", "head", "start", "citing", "node1", "node_1", "id1", "source_id", "a"),
    "target": ("target", "dst", "to", "v", "tail", "end", "cited", "node2", "node_2", "id2", "target_id", "b"),
    "weight": ("weight", "w", "weights", "strength"),
}
NODE_ROLES, EDGE_ROLES = ("id", "label"), ("source", "target", "weight")
DELIMITERS = (",", ";", "\t", "|")
SEPARATOR = re.compile(r'"?sep=(.)"?(\r\n|\r|\n)', re.IGNORECASE)  # a first row that Excel reads and writes
QUOTED = re.compile(r'(?:^|(?<=[,;\t|\n]))"(?:[^"]|"")*"')  # a cell in quotation marks
STAND_INS = ("identity", "degree")


def read_csv(
    nodes: str | Path | None,
    edges: str | Path | None,
    *,
    labels: str | Path | None = None,
    id: str | None = None,
    label: str | None = None,
    features: Sequence[str] | str | None = None,
    text: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    unknown: Sequence[str] | str = "",
    directed: bool = False,
    header: bool = True,
    encoding: str = "utf-8-sig",
    delimiter: str | None = None,
    name: str | None = None,
) -> Graph:
    """A graph from a file of nodes and one of edges; CSV, or Parquet where the name ends in .parquet.

    Args:
        nodes: id, label and features of each node; None where there is only a list of edges.
        edges: source, target and, where there is such a column, weight; None where there are none.
        labels: id and label, where they have a file of their own.
        features: feature columns; without, all columns of `nodes` that play no other role. "identity" or "degree"
            reads none and puts the identity matrix or degrees in their place; so does a file without any.
        text: one column of text, turned into TF-IDF features by scikit-learn.
        label, weight: "" leaves a column that has one of the usual names aside; the label is then no feature either. A
            column beside the label that could be the label too is left aside unless `features` names it.
        unknown: label or labels that mean unknown, beside the empty one.
        header: False where the first row is data; the columns are then id, label and features, or source, target and
            weight, in this order. A file whose first row clearly names id and label, or source and target, keeps it.
        encoding: of CSV files; the default is UTF-8 with or without a byte order mark.
        delimiter: of CSV files; without, that of a first row "sep=;", or the one of , ; tab and | that is most frequent
            in the first row, outside quotes.
    """

    def read(path: str | Path | None, roles: tuple[str, ...]) -> Table | None:
        if path is None:
            return None
        table = read_table(Path(path), roles, header, encoding, delimiter)
        named = None if header else _with_header(table, roles, stated_names)
        if named is not None:
            headers.append(
                f"the first row of {table.path.name} names its columns, and is read as a header all the same"
            )
        return named or table

    stated_names = {"id": id, "label": label, "source": source, "target": target}
    headers: list[str] = []
    node_table, edge_table, label_table = read(nodes, NODE_ROLES), read(edges, EDGE_ROLES), read(labels, NODE_ROLES)
    first = node_table or edge_table
    if first is None:
        raise ValueError("there is nothing to read: give a file of nodes, of edges, or both")
    _require_files({"text": text}, "nodes", node_table)
    _require_files({"id": id, "label": label}, "nodes or labels", node_table or label_table)
    _require_files({"source": source, "target": target, "weight": weight}, "edges", edge_table)
    ends, weights, ignored = _edge_columns(edge_table, source, target, weight)
    label_id, own_labels, guessed = _label_columns(label_table, node_table, id, label, unknown)
    if node_table is None:
        names = list(
            dict.fromkeys([*(node for pair in zip(*ends.values(), strict=True) for node in pair), *own_labels])
        )
        x, y = _stand_in(features), None
        notes: list[str] = []
    else:
        id = node_table.require("id", _meant_for(node_table, id, label_table))
        elsewhere = label is not None and _meant_for(node_table, label, label_table) is None
        aside = node_table.find("label", None, taken=(id,)) if label == "" or elsewhere else None
        stated = label
        label = node_table.find("label", "" if elsewhere else label, taken=(id,))
        if label_table is not None and label is not None:
            raise ValueError(
                f"labels come twice: {node_table.path.name} has a column {label!r}, and {label_table.path.name}"
            )
        names = node_table.ids(id, unique=True)
        y = None if label is None else node_table.labels(label, unknown)
        if label is not None and y is not None and stated is None:
            guessed = node_table.guessed_label(label, y)
        chosen = label or aside
        others = [] if chosen is None else node_table.other_labels(taken=(id, chosen))
        x, notes = _feature_columns(node_table, [name for name in (id, label, aside, *others) if name], features, text)
        if aside is not None and aside not in _several(features, node_table):
            notes.append(f"column {aside!r} is left aside: neither label nor feature; features=… reads it as one")
        if others and features is None and text is None:
            notes.append(
                f"{DOUBT}{some(others)} could be the label too, and a feature that is one would tell the answer: left aside; "
                f"label={others[0]} chooses it, features=… reads it as a feature"
            )
    known = set(names)
    if edge_table is not None:
        edge_table.require_header([column for column in ends if column not in (source, target)], known)
        for column, ids in ends.items():
            edge_table.require_known(column, ids, known, first)
    if label_table is not None:
        label_table.require_known(label_id, list(own_labels), known, first)
        y = [own_labels.get(node) for node in names]
    graph = Graph.from_edges(
        Ends(*ends.values()), weights=weights, node_names=names, x=x, y=y, directed=directed, name=name or first.name
    )
    return dataclasses.replace(
        graph, notes=(*graph.notes, *headers, *guessed, *notes, *ignored, *_doubtful_classes(graph))
    )


def _require_files(stated: Mapping[str, str | None], content: str, table: Table | None) -> None:
    """Refuse a column that is asked for where there is no file that could have it."""
    for option, column in stated.items():
        if column and table is None:
            raise ValueError(f"{option}={column!r} names a column, but there is no file of {content} to read it from")


def read_folder(folder: Path, **options: Any) -> Graph:
    """The graph in a folder with edges.csv and, where there are any, nodes.csv and labels.csv (or .tsv, .parquet)."""
    found = {role: _table_in(folder, role) for role in ("nodes", "edges", "labels")}
    if found["nodes"] is None and found["edges"] is None:
        held = some(sorted(path.name for path in folder.iterdir()), 8) or "nothing"
        raise ValueError(
            f"{folder} needs nodes.csv and edges.csv, or edges.csv alone (or .tsv, .parquet); it holds {held}"
        )
    return read_csv(
        found["nodes"], found["edges"], **{"labels": found["labels"], "name": folder.resolve().name, **options}
    )


def _table_in(folder: Path, role: str) -> Path | None:
    found = [path for suffix in (".csv", ".tsv", ".parquet") if (path := folder / f"{role}{suffix}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} holds {' and '.join(path.name for path in found)}; which one?")
    return found[0] if found else None


@dataclass(frozen=True)
class Table:
    """Columns by name, and the row of the file each of their cells comes from."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[int]
    first_row_names: bool = False  # the names are the first row of a CSV file, which could be data

    @property
    def name(self) -> str:
        return self.path.resolve().parent.name

    def where(self, row: int, column: str) -> str:
        return f"{self.path.name}, row {self.rows[row]}, column {column!r}"

    def find(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str | None:
        """The column that plays a role: the one asked for (none for ""), else the first free one with a usual name."""
        if wanted == "":
            return None
        if wanted is not None:
            return self.stated(role, wanted)
        by_name = {name.lower(): name for name in reversed(list(self.columns)) if name not in taken}
        return next((by_name[usual] for usual in USUAL_NAMES[role] if usual in by_name), None)

    def other_labels(self, taken: Sequence[str]) -> list[str]:
        """Columns beside the label that have one of its usual names and hold classes, not measurements."""
        named = [name for name in self.columns if name.lower() in USUAL_NAMES["label"] and name not in taken]
        return [name for name in named if not _fractions(self.columns[name])]

    def stated(self, option: str, wanted: str) -> str:
        """A column asked for by its name."""
        if wanted == "":
            raise ValueError(
                f"{option} is '', which names no column of {self.path.name}; leave the option out, or name one"
            )
        if wanted not in self.columns:
            raise ValueError(f"{self.path.name} has no column {wanted!r}; it has {some(list(self.columns), 12)}")
        return wanted

    def require(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str:
        found = self.find(role, wanted, taken) if wanted is None else self.stated(role, wanted)
        if found is None:
            usual = ", ".join(USUAL_NAMES[role][:4])
            raise ValueError(
                f"{self.path.name} has no column for the {role} (such as {usual}); its first row is "
                f"{some(list(self.columns), 6)}. Say {role}=… which it is, or header=False if that row is data"
            )
        return found

    def ids(self, column: str, *, unique: bool = False) -> list[Any]:
        """Ids as they stand in the file; none may be missing."""
        ids = self.cells(column)
        if set(map(type, ids)) != {str}:  # of a Parquet file
            ids = [int(value) if isinstance(value, float) and value.is_integer() else value for value in ids]
        for i, value in enumerate(ids):
            if value == "" or is_missing(value):
                raise ValueError(f"{self.where(i, column)} is empty; every row needs an id")
        if unique and len(set(ids)) < len(ids):
            first: dict[Any, int] = {}
            i = next(i for i, value in enumerate(ids) if first.setdefault(value, i) != i)
            raise ValueError(f"{self.where(i, column)} repeats the id {ids[i]!r} of row {self.rows[first[ids[i]]]}")
        return ids

    def labels(self, column: str, unknown: Sequence[str] | str) -> list[Any]:
        """Labels as they stand in the file, None where unknown."""
        missing = {"", *([unknown] if isinstance(unknown, str) else unknown)}
        cells = self.cells(column)
        labels = [None if is_missing(value) or str(value) in missing else value for value in cells]
        if set(map(type, cells)) != {str}:  # of a Parquet file
            self._require_classes(column, labels)
        return labels

    def _require_classes(self, column: str, labels: Sequence[Any]) -> None:
        """Refuse what is no class: a fraction, a date, a number below -1."""
        for i, value in enumerate(labels):
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if not (value is None or is_whole or isinstance(value, str)):
                right = "a label is a whole number, text, or true or false"
                raise ValueError(f"{self.where(i, column)} is {value!r}; {right}")
            if is_whole and value < -1:
                raise ValueError(
                    f"{self.where(i, column)} is {value!r}; a number as label is at least 0, -1 means unknown"
                )

    def cells(self, column: str) -> list[Any]:
        """The cells of a column of ids or labels, each one value."""
        cells = list(self.columns[column])
        for i, value in enumerate(cells):
            if type(value) is not str and not isinstance(value, Hashable):  # of a Parquet file
                raise ValueError(f"{self.where(i, column)} is {value!r}; an id or label is one value, no list")
        return cells

    def guessed_label(self, column: str, labels: Sequence[Any]) -> list[str]:
        """A note on a column of labels found by its name or place, which measurements are not."""
        for i in _fractions(labels)[:1]:
            raise ValueError(
                f"{self.where(i, column)} is {labels[i]!r}, which is no class; the column is read as the label: say label=… "
                "which it is, or label='' for none (features=… can then name this column)"
            )
        return [f"column {column!r} is read as the label; label=… says otherwise"]

    def numbers(self, column: str, fits: Callable[[np.ndarray], np.ndarray], right: str) -> np.ndarray:
        """A column of numbers, each of which `fits`; `right` says what would be right."""
        values = self.columns[column]
        numbers = np.fromiter(map(_number, values), dtype=np.float64, count=len(values))
        wrong = np.flatnonzero(~fits(numbers))
        if len(wrong):
            i = int(wrong[0])
            pointed = str(values[i]).replace(",", ".")
            hint = f" (a decimal point, not a comma: {pointed})" if fits(np.array([_number(pointed)]))[0] else ""
            raise ValueError(f"{self.where(i, column)} is {values[i]!r}; {right}{hint}")
        return numbers

    def require_header(self, guessed: Sequence[str], known: set[Any]) -> None:
        """Refuse a first row taken for a header by its usual names where one of these is also the id of a node."""
        node = next((name for name in guessed if name in known), None)
        if self.first_row_names and node is not None:
            raise ValueError(
                f"the first row of {self.path.name} is {some(list(self.columns))}, and {node!r} is also a node: that row may be "
                "an edge. Say header=False if it is, or source=… and target=… if these are names of columns"
            )

    def require_known(self, column: str, ids: Sequence[Any], known: set[Any], origin: Table) -> None:
        for i, value in enumerate(ids):
            if value not in known:
                hint = of_another_kind(value, known)
                close = difflib.get_close_matches(str(value), [str(node) for node in known][:20_000], n=3)
                hint = f"; {hint}" if hint else f"; close to it: {', '.join(close)}" if close else ""
                raise ValueError(f"{self.where(i, column)} is {value!r}, which {origin.path.name} does not list{hint}")


def _number(value: Any) -> float:
    """A cell as a number, NaN where it is none. Python would read "1_000", which no other program does."""
    try:
        return float("nan") if isinstance(value, str) and "_" in value else float(value)
    except (ValueError, TypeError):
        return float("nan")


def _fractions(cells: Sequence[Any]) -> list[int]:
    """Where a column of numbers has one that is not whole; nowhere where some cell is no number."""
    known = [(i, cell) for i, cell in enumerate(cells) if not is_missing(cell) and str(cell).lower() not in ("", "nan")]
    numbers = np.fromiter((_number(cell) for _, cell in known), dtype=np.float64, count=len(known))
    if not np.isfinite(numbers).all():
        return []
    return [known[k][0] for k in np.flatnonzero(numbers != np.floor(numbers))]


def _is_feature(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(numbers) <= FLOAT32_MAX)


def _is_weight(numbers: np.ndarray) -> np.ndarray:
    return np.asarray((numbers > 0) & (numbers <= FLOAT32_MAX))


def _edge_columns(
    table: Table | None, source: str | None, target: str | None, weight: str | None
) -> tuple[dict[str, list[Any]], np.ndarray | None, list[str]]:
    """Source and target ids by column name, the weights if there are any, and a note on columns that are not read."""
    if table is None:
        return {"source": [], "target": []}, None, []
    source = table.require("source", source)
    target = table.require("target", target, taken=(source,))
    weight = table.find("weight", weight, taken=(source, target))
    right = "a weight is a positive number (leave the row out for 0)"
    weights = None if weight is None else table.numbers(weight, _is_weight, right)
    unread = [column for column in table.columns if column not in (source, target, weight)]
    note = [f"columns of {table.path.name} not read: {some(unread)}"] if unread else []
    return {source: table.ids(source), target: table.ids(target)}, weights, note


def _label_columns(
    table: Table | None, nodes: Table | None, id: str | None, label: str | None, unknown: Sequence[str] | str
) -> tuple[str, dict[Any, Any], list[str]]:
    """The column of ids in a file of labels, its labels by id, and a note on a column of labels that was guessed."""
    if table is None:
        return "", {}, []
    id = table.require("id", _meant_for(table, id, nodes))
    stated = _meant_for(table, label or None, nodes)
    column = table.require("label", stated, taken=(id,))
    labels = table.labels(column, unknown)
    note = table.guessed_label(column, labels) if stated is None else []
    return id, dict(zip(table.ids(id, unique=True), labels, strict=True)), note


def _meant_for(table: Table, wanted: str | None, other: Table | None) -> str | None:
    """A stated column, or None where it is one of another file and not of this one."""
    return None if other is not None and wanted in other.columns and wanted not in table.columns else wanted


def _feature_columns(
    table: Table, taken: list[str], features: Sequence[str] | str | None, text: str | None
) -> tuple[Any, list[str]]:
    """The features of a table of nodes, and notes on how they were read."""
    if text is not None:
        if features is not None:
            raise ValueError("features come from one text column or from columns of numbers: give text= or features=")
        return _tfidf(table, table.stated("text", text))
    if features in STAND_INS:
        return features, []
    columns = (
        [column for column in table.columns if column not in taken] if features is None else _several(features, table)
    )
    for column in columns:
        table.stated("features", column)
    right = "a feature is a finite number; name the label column with label=, the feature columns with features="
    values = [table.numbers(column, _is_feature, f"{right}, or text={column} for words") for column in columns]
    return (np.stack(values, axis=1) if values else None), []


def _several(names: Sequence[str] | str | None, table: Table) -> list[str]:
    """Columns by name; text with commas is several of them, unless one column has that very name."""
    if isinstance(names, str):
        return [names] if names in table.columns else names.split(",")
    return list(names or ())


def _tfidf(table: Table, column: str) -> tuple[Any, list[str]]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer()
    try:
        x = words.fit_transform("" if is_missing(cell) else str(cell) for cell in table.columns[column])
    except ValueError as error:
        raise ValueError(f"{table.path.name}, column {column!r} has no words to make features of") from error
    return x, [f"text column {column!r} as TF-IDF of {x.shape[1]:,} words"]


def _stand_in(features: Sequence[str] | str | None) -> Any:
    if features is not None and features not in STAND_INS:
        raise ValueError(
            f"there is no file of nodes to read features {features!r} from; 'identity' or 'degree' can stand in"
        )
    return features


def _doubtful_classes(graph: Graph) -> list[str]:
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


def read_table(path: Path, roles: tuple[str, ...], header: bool, encoding: str, delimiter: str | None) -> Table:
    """A CSV or Parquet file; without a header its columns are named by `roles`, then by number."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"the delimiter is {delimiter!r}; it is one character")
    text = _decode(path, encoding)
    if stated := SEPARATOR.match(text):
        delimiter, text = delimiter or stated[1], stated[2] + text[stated.end() :]  # the row stays, as a blank one
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or _delimiter(path, text), strict=True)
    rows = ((number, row) for number, row in enumerate(reader, 1) if row)  # a blank line is no row
    seen = 0
    try:
        seen, first = next(rows, (0, None))
        if first is None:
            raise ValueError(f"{path.name} is empty")
        names = (
            _column_names(path, first) if header else [*roles, *map(str, range(len(roles), len(first)))][: len(first)]
        )
        columns: list[list[str]] = [[] for _ in names]
        numbers = []
        data = rows if header else itertools.chain([(seen, first)], rows)
        for seen, row in data:
            if len(row) != len(names):
                raise ValueError(
                    f"{path.name}, row {seen} has {len(row)} cells; the first row has {len(names)}: {some(row)}"
                )
            numbers.append(seen)
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise ValueError(f"{path.name}, row {seen + 1}: {_explained(error)}") from error
    return Table(path, {name: column for name, column in zip(names, columns, strict=True) if name}, numbers, header)


def _explained(error: csv.Error) -> str:
    """What the csv module found wrong, in the words of one who made the file."""
    said = str(error)
    if said.startswith("field larger"):
        return (
            f"a cell has more than {csv.field_size_limit():,} characters; is a quotation mark not closed? "
            "Long texts can come from a Parquet file"
        )
    if said.startswith("unexpected end"):
        return "a quotation mark is opened and not closed"
    return said


def _with_header(table: Table, roles: tuple[str, ...], stated: Mapping[str, str | None]) -> Table | None:
    """A table read without a header whose first row clearly is one: it names both roles, and no cell below says the same.

    A name of one letter is no clear one.
    """
    if table.path.suffix == ".parquet" or not table.rows:
        return None
    first = {column: cells[0].strip() for column, cells in table.columns.items()}
    naming = []
    for role in roles[:2]:
        clear = {usual for usual in USUAL_NAMES[role] if len(usual) > 1}
        asked = None if stated[role] in table.columns else stated[role]
        naming.append(
            next((column for column, cell in first.items() if cell and (cell == asked or cell.lower() in clear)), None)
        )
    below = {cell for column in naming if column is not None for cell in table.columns[column][1:]}
    if None in naming or len(set(naming)) < 2 or any(first[column] in below for column in naming if column is not None):
        return None
    names = _column_names(table.path, list(first.values()))
    columns = {name: cells[1:] for name, cells in zip(names, table.columns.values(), strict=True) if name}
    return Table(table.path, columns, table.rows[1:])


def _column_names(path: Path, first: list[str]) -> list[str]:
    """The names in a header; columns without one, such as pandas' index, are not read."""
    names = [name.strip() for name in first]
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            raise ValueError(f"{path.name} has two columns {name!r}; each needs a name of its own")
        seen.add(name)
    return ["" if name == "Unnamed: 0" else name for name in names]


def _decode(path: Path, encoding: str) -> str:
    raw = path.read_bytes()
    try:
        text = raw.decode(encoding)
    except LookupError as error:
        raise ValueError(f"there is no encoding {encoding!r}; common ones are utf-8, latin-1 and utf-16") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        other = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        raise ValueError(
            f"{path.name}, line {line}: byte 0x{raw[error.start]:02x} is not {encoding.removesuffix('-sig')}; "
            f"say which encoding it is, for instance encoding='{other}'"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path.name}, line {line} holds a NUL character; a CSV file is plain text")
    return text


def _delimiter(path: Path, text: str) -> str:
    first = QUOTED.sub("", text.lstrip()[:100_000]).split("\n", 1)[0]
    return "\t" if path.suffix == ".tsv" else max(DELIMITERS, key=first.count)


def _read_parquet(path: Path) -> Table:
    import pandas

    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error})") from error
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    return Table(path, columns, range(1, len(frame) + 1))
