"""Your own files -> Graph: a table of nodes, one of edges, maybe one of labels, as CSV, Parquet or in a database.

Ids and labels of a CSV file are text, exactly as written: "001" is not 1, and "NA" is a class. An empty label is
unknown. Columns are found by their usual names, which options override. Errors say file, row, column and value;
rows are counted as a spreadsheet shows them, with the header as row 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.array_files import FEATURES_FILE, mapped_features, parquet_pieces, read_frame
from gcn_lpa.data.checks import WARNING, Ends, check_task, is_address, some
from gcn_lpa.data.column_types import MOSTLY, Cells, label_numbers, times_in
from gcn_lpa.data.constructors import DIRECTION, EdgeTypes
from gcn_lpa.data.describe import (
    graph_warnings,
    guessed_label,
    harmful_edges,
    label_asked_for,
    look_like_numbers,
    other_labels,
    telling_columns,
)
from gcn_lpa.data.edge_columns import EdgeFunctions, ListedEdges, edge_types_in, read_edge_columns
from gcn_lpa.data.encoders import Columns, EncodedTable, learn_columns
from gcn_lpa.data.scaling import Block
from gcn_lpa.data.table import (
    Series,
    Table,
    Unlisted,
    columns_by_values,
    delimited_pieces,
    joined,
    names_columns,
    positions,
    series,
    text_type,
    with_header,
)
from gcn_lpa.graph import Graph

NODE_ROLES, EDGE_ROLES = ("id", "label"), ("source", "target", "weight")
STAND_INS = ("identity", "degree")
UNLISTED = ("refuse", "drop")
ALSO = "; also: "  # between problems that are said together
DataFrame = Any  # of pandas, which is imported only where it is needed
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")


def read_csv(
    nodes: str | Path | DataFrame | None,
    edges: str | Path | DataFrame | None,
    *,
    labels: str | Path | DataFrame | None = None,
    id: str | None = None,
    label: str | None = None,
    features: Sequence[str] | str | None = None,
    text: Sequence[str] | str | None = None,
    time: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    relation: str | None = None,
    edge_features: Sequence[str] | str | None = None,
    task: str | None = None,
    unknown: Sequence[str] | str = "",
    unlisted: str = "refuse",
    directed: bool = False,
    header: bool = True,
    encoding: str = "utf-8-sig",
    delimiter: str | None = None,
    name: str | None = None,
    columns: Columns | None = None,
    edge_functions: EdgeFunctions | None = None,
) -> Graph:
    """A graph from a table of nodes and one of edges; CSV, or Parquet where the name ends in .parquet.

    Frames of pandas or polars, Arrow tables and addresses in a database do as well: see `gcn_lpa.data.databases`.

    Args:
        nodes: id, label and features of each node; None where there is only a list of edges.
        edges: source, target and, where there is such a column, weight; None where there are none.
        labels: id and label, where they have a file of their own.
        features: feature columns; without, all columns of `nodes` that play no other role, each by what it holds: see
            `gcn_lpa.data.encoders`. "identity" or "degree" reads none and puts the identity matrix or degrees in their
            place; so does a file without any.
        text: columns that are text whatever they look like, turned into TF-IDF features; others are found by themselves.
        time: column of `nodes` that says when each came, dates or numbers; it is no feature, and the split "time" goes by it.
        label, weight: "" leaves a column that has one of the usual names aside; the label is then no feature either. A
            column beside the label that could be the label too is left aside unless `features` names it.
        relation: column of `edges` that says of which type each edge is, any text: a model then learns how much each type
            tells. "direction", where there is no such column, takes the two directions of directed edges for types.
        edge_features: columns of `edges` that may say how much an edge weighs; without, all that play no other role, and those
            of weights and types as well: see `gcn_lpa.data.edge_columns`. "" reads none.
        task: "classification", each label is a class, or "regression", it is a number to predict; without, numbers with many values
            are numbers.
        unknown: label or labels that mean unknown, beside the empty one.
        unlisted: "drop" leaves out edges and labels of nodes that the file of nodes does not list; they are refused otherwise.
        header: False where the first row is data; the columns are then id, label and features, or source, target and
            weight, in this order. A file whose first row has usual names for both id and label, or source and target, keeps it.
        encoding: of CSV files; the default is UTF-8 with or without a byte order mark.
        delimiter: of CSV files; without, that of a first row "sep=;", or the one of , ; tab and | that is most frequent
            in the first row, outside quotes.
        columns: what was learned of another table, `graph.columns` or `trained.columns`: this one gets the same features.
        edge_functions: the same of the columns of edges, `trained.edge_weights.functions`.
    """
    given = locals()
    if unlisted not in UNLISTED:
        raise ValueError(f"unlisted = {unlisted!r:.40}; it is one of {', '.join(UNLISTED)}")
    reading = _Reading(**{spec.name: given[spec.name] for spec in dataclasses.fields(_Reading) if spec.name in given})
    return reading.graph(nodes, edges, labels, directed=directed, name=name)


def read_folder(folder: Path, **options: Any) -> Graph:
    """The graph in a folder with edges.csv and, where there are any, nodes.csv and labels.csv (or .tsv, .parquet)."""
    nodes, edges, labels = (_table_in(folder, role) for role in ("nodes", "edges", "labels"))
    if nodes is None and edges is None:
        held = some(sorted(path.name for path in folder.iterdir()), 8) or "nothing"
        needed = "nodes.csv and edges.csv, or edges.csv alone (or .tsv, .parquet)"
        raise ValueError(f"{folder} needs {needed}; it holds {held}")
    options = {"labels": labels, "name": folder.resolve().name, **options}
    file = folder / FEATURES_FILE
    if not _is_file(file):
        return read_csv(nodes, edges, **options)
    if options.get("columns") is not None:
        raise ValueError(
            f"{file} holds the features here, but the model was trained on columns of nodes.csv: take {file.name} away, "
            "or train on it"
        )
    if nodes is None or any(options.get(name) is not None for name in ("features", "text")):
        raise ValueError(f"{file} holds the features, a row for each of nodes.csv: name no columns beside it")
    graph = read_csv(nodes, edges, **{**options, "features": "degree"})
    x = mapped_features(file, graph.num_nodes)
    note = f"features are the {x.shape[1]:,} columns of {file.name}, which stay on the disk; other columns are not read"
    notes = (*(note for note in graph.notes if not note.startswith("no features")), note)
    return dataclasses.replace(graph, x=x, x_kind="given", mapped=True, blocks=(), notes=notes)


def _table_in(folder: Path, role: str) -> Path | None:
    tables = [path for suffix in (".csv", ".tsv", ".parquet") if _is_file(path := folder / f"{role}{suffix}")]
    sheets = [path.name for suffix in SPREADSHEETS if (path := folder / f"{role}{suffix}").is_file()]
    if sheets and not tables:
        raise ValueError(f"{folder} holds {sheets[0]}, which is not read: save it as {role}.csv (CSV, UTF-8)")
    if len(tables) > 1:
        raise ValueError(f"{folder} holds {' and '.join(path.name for path in tables)}; which one?")
    return tables[0] if tables else None


def _is_file(path: Path) -> bool:
    """Whether a file is there; what has its name and is none, such as a link to nowhere, is refused."""
    if path.is_file() or not os.path.lexists(path):
        return path.is_file()
    what = "a link to a file that is not there" if path.is_symlink() and not path.exists() else "not a file"
    raise ValueError(f"{path} is {what}; mend it, or take it away")


@dataclass(frozen=True)
class NodeColumns:
    """What was read of the nodes."""

    names: Series
    x: Any
    y: Any = None
    blocks: tuple[Block, ...] = ()
    columns: Columns | None = None
    time: Tensor | None = None


@dataclass(frozen=True)
class ReadEdges:
    """What was read of the edges."""

    ends: tuple[str, str]  # columns
    source: np.ndarray  # positions of the nodes
    target: np.ndarray
    names: Series  # of the nodes
    weights: np.ndarray | None = None
    types: list[str] | None = None
    table: Table | None = None  # columns beside the ends
    read: Sequence[str] = ()  # those that may weigh edges


@dataclass
class _Reading:
    """Files on their way to a graph: the columns that the caller names, as in `read_csv`, the tables, and notes."""

    id: str | None
    label: str | None
    features: Sequence[str] | str | None
    text: Sequence[str] | str | None
    time: str | None
    source: str | None
    target: str | None
    weight: str | None
    relation: str | None
    edge_features: Sequence[str] | str | None
    edge_functions: EdgeFunctions | None
    task: str | None
    unknown: Sequence[str] | str
    columns: Columns | None
    header: bool
    encoding: str
    delimiter: str | None
    unlisted: str
    notes: list[str] = field(default_factory=list)
    node_table: Table | None = None
    label_table: Table | None = None
    matched: dict[str, str] = field(default_factory=dict)  # columns by their roles that were found by their values
    not_listed: list[Unlisted] = field(default_factory=list)
    num_left_out: int = 0

    def graph(self, nodes: Any, edges: Any, labels: Any, *, directed: bool, name: str | None) -> Graph:
        """The graph that the files describe; an edge or a label of a node that is not listed is refused."""
        import pandas

        check_task(self.task)
        self.node_table = self.table(nodes, NODE_ROLES, "nodes")
        self.label_table = self.table(labels, NODE_ROLES, "labels")
        pieces = iter(()) if edges is None else self.pieces(edges, EDGE_ROLES, "edges")
        first = next(pieces, None)
        self.require_files(first)
        self.require_columns(first)
        origin = self.node_table or first  # the file that says which nodes there are
        if origin is None:
            raise ValueError("there is nothing to read: give a file of nodes, of edges, or both")
        nothing, none = series([], text_type()), np.empty(0, np.int32)
        id_column, ids, given = self.label_file(self.label_table) if self.label_table else ("", nothing, None)
        listed = self.listed_nodes(self.node_table) if self.node_table else NodeColumns(nothing, self.stand_in())
        read = ReadEdges(("", ""), none, none, listed.names) if first is None else self.edges(first, pieces, listed.names)
        y, nodes_of = listed.y, read.names
        if self.node_table is None:
            nodes_of = pandas.concat([nodes_of, ids], ignore_index=True).drop_duplicates()
        if self.label_table is not None and given is not None:
            labelled = positions(nodes_of, ids)
            self.not_listed.append(Unlisted(id_column).with_rows(self.label_table, ids, labelled >= len(nodes_of)))
            y = np.full(len(nodes_of), None)
            y[labelled[labelled < len(nodes_of)]] = given[labelled < len(nodes_of)]
        names = nodes_of.to_numpy(object).tolist()
        if first is not None and first.first_row_names:
            guessed = [end for end in read.ends if end not in (self.source, self.target)]
            if (node := next((end for end in guessed if end in names), None)) is not None:
                raise ValueError(
                    f"the first row of {first.path.name} is {some(list(first.columns))}, and {node!r} is also a node: "
                    "that row may be an edge. Say option header=false if it is, or source=… and target=… if these are names of "
                    "columns"
                )
        problems = [unlisted.problem(names, origin) for unlisted in self.not_listed if unlisted.number]
        if problems and self.unlisted != "drop":
            raise ValueError(f"{ALSO.join(problems)}. Option unlisted=drop leaves such rows out")
        if self.num_left_out:
            left_out = f"{self.num_left_out:,} edges are left out: {origin.path.name} does not list their nodes"
            self.notes.append(f"{WARNING}{left_out}")
        ends = Ends(read.source, read.target, are_positions=True)
        options: dict[str, Any] = {
            "x": listed.x,
            "y": y,
            "task": self.task or "classification",
            "directed": directed,
            "name": name or origin.path.resolve().parent.name,
        }
        graph = Graph.from_edges(ends, weights=read.weights, edge_types=read.types, node_names=names, **options)
        edge_types = graph.edge_types
        if self.relation == DIRECTION and edge_types is None:
            if not directed:
                right = "option directed=true keeps it"
                raise ValueError(f"relation='direction' is about arcs, but these edges have no direction; {right}")
            edge_types = EdgeTypes.directions(graph.adjacency)
        learned: dict[str, Any] = {"blocks": listed.blocks, "columns": listed.columns, "time": listed.time}
        if read.table is not None and (read.read or self.edge_functions is not None):
            rows = ListedEdges(read.source, read.target, read.weights, directed)
            by_type = [] if read.types is None else [str(self.relation)]
            learned["edge_columns"], notes = read_edge_columns(read.table, read.read, rows, by_type, self.edge_functions)
            self.notes += notes
        graph = dataclasses.replace(graph, edge_types=edge_types, **learned)
        notes = [*graph.notes, *self.notes, *graph_warnings(graph), *harmful_edges(graph)]
        if self.node_table is not None and listed.columns is not None and y is not None and graph.numbers is None:
            notes += telling_columns(self.node_table, listed.columns.single_columns, y)
        return dataclasses.replace(graph, notes=tuple(notes))

    def table(self, file: Any, roles: tuple[str, ...], content: str) -> Table | None:
        """A file or frame with its header; None where there is none."""
        return None if file is None else joined(self.pieces(file, roles, content))

    def pieces(self, file: Any, roles: tuple[str, ...], content: str) -> Iterator[Table]:
        """Its rows, so many at a time."""
        if hasattr(file, "columns"):
            yield read_frame(file, content)
        elif is_address(file):
            from gcn_lpa.data.databases import read_address

            table, notes = read_address(file, content)
            self.notes += notes
            yield table
        elif not (path := Path(file)).is_file():
            raise ValueError(f"there is no file {path}")
        elif path.suffix == ".parquet":
            yield from parquet_pieces(path)
        else:
            pieces = delimited_pieces(path, roles, encoding=self.encoding, delimiter=self.delimiter)
            first = next(pieces)
            every, is_named = itertools.chain([first], pieces), self.header or names_columns(first, roles)
            if is_named > self.header:
                self.notes.append(f"the first row of {path.name} names its columns, and is read as a header all the same")
            for piece in with_header(every) if is_named else every:
                yield dataclasses.replace(piece, first_row_names=self.header)

    def require_files(self, edges: Table | None) -> None:
        """Refuse a column that is asked for where there is no file that could have it."""
        if self.columns is not None and self.node_table is None:
            which = "such as nodes.csv in the folder"
            raise ValueError(f"there is no file of nodes, {which}, to read the model's columns from")
        for table, content, options in (
            (self.node_table, "nodes", ("text", "time")),
            (self.node_table or self.label_table, "nodes or labels", ("id", "label")),
            (edges, "edges", (*EDGE_ROLES, "relation")),
        ):
            for option in options:
                if table is None and (column := getattr(self, option)):
                    problem = f"there is no file of {content} to read it from"
                    raise ValueError(f"{option}={column!r} names a column, but {problem}")

    def require_columns(self, edges: Table | None) -> None:
        """Find the columns of ids and of both ends, by their names or else by their values; say all that are missing at once."""
        roles = [(self.node_table, "id"), (edges, "source"), (edges, "target")]
        named, missing = dict[str, str](), []
        for table, role in roles:
            if table is not None:
                wanted = _meant_for(table, self.id, self.label_table) if role == "id" else getattr(self, role)
                try:
                    named[role] = table.require(
                        role, wanted, taken=[named["source"]] if "source" in named and role == "target" else ()
                    )
                except ValueError as error:
                    missing.append((role, wanted, error))
        is_open = bool(missing) and all(wanted is None for _, wanted, _ in missing)
        if is_open and self.node_table is not None and edges is not None:
            self.matched = columns_by_values(self.node_table, edges, named)
        if self.matched:
            ends = f"{self.matched['source']!r} and {self.matched['target']!r} of edges hold ids"
            self.notes.append(f"columns {ends} of column {self.matched['id']!r} of nodes: they are read as source and target")
            return
        if missing:
            raise ValueError(ALSO.join(str(error) for *_, error in missing))

    def edges(self, first: Table, pieces: Iterable[Table], names: Series) -> ReadEdges:
        """What is read of the edges, so many at a time.

        Without a table of nodes these are the ids at the ends as they first occur.
        """
        import pandas

        source = self.matched.get("source") or first.require("source", self.source)
        target = self.matched.get("target") or first.require("target", self.target, taken=(source,))
        ends, at, others = (source, target), list[np.ndarray](), list[Table]()
        weight = first.find("weight", self.weight, taken=ends)
        is_column = self.relation is not None and (self.relation != DIRECTION or DIRECTION in first.columns)
        if is_column and self.relation in ends:
            raise ValueError(f"relation={self.relation!r} is the column of an end of the edges; it names that of their types")
        relation = first.stated("relation", str(self.relation)) if is_column else None
        read = [column for column in first.columns if column not in ends]
        kept = {*(read if self.edge_functions is not None else ()), weight, relation}
        if self.edge_features is not None:
            several = _several(self.edge_features, first) if self.edge_features else []
            read = [first.stated("edge_features", column) for column in several]
        self.not_listed = [Unlisted(end) for end in ends]
        for piece in itertools.chain([first], pieces):
            ids = [piece.ids(end) for end in ends]
            if self.node_table is None:
                row_by_row = np.arange(2 * len(piece.rows)).reshape(2, -1).T.ravel()
                every = pandas.concat([names, pandas.concat(ids, ignore_index=True).iloc[row_by_row]], ignore_index=True)
                names = every.drop_duplicates()
            found = positions(names, *ids).reshape(2, -1).astype(np.int32)
            for unlisted, cells, of_end in zip(self.not_listed, ids, found, strict=True):
                unlisted.with_rows(piece, cells, of_end >= len(names))
            is_listed = np.asarray((found < len(names)).all(axis=0))
            self.num_left_out += int((~is_listed).sum())
            at.append(found[:, is_listed])
            columns = {name: cells for name, cells in piece.columns.items() if name in kept or name in read}
            rest = Table(piece.path, columns, piece.rows if columns else (), piece.first_row_names)
            others.append(rest if is_listed.all() or not columns else rest.of(is_listed))
        rest, (sources, targets) = joined(others), np.concatenate(at, axis=1)
        weights = None if weight is None else rest.weights(weight)
        types = None if relation is None else edge_types_in(rest, relation)
        if weight is not None and self.weight is None:
            self.notes.append(f"column {weight!r} is read as the weight of each edge; option weight='' leaves it aside")
        if types is not None:
            counts = ", ".join(f"{name!r:.40} {count:,}" for name, count in Counter(types).most_common())
            self.notes.append(f"column {relation!r} says the type of each edge: {counts}")
        return ReadEdges(ends, sources, targets, names, weights, types, rest, read)

    def label_file(self, table: Table) -> tuple[str, Series, np.ndarray]:
        """The column of ids in a file of labels, the ids and the labels."""
        id_column = table.require("id", _meant_for(table, self.id, self.node_table))
        wanted = _meant_for(table, self.label or None, self.node_table)
        label_column = table.require("label", wanted, taken=(id_column,))
        labels = self.labels_in(table, label_column, is_guessed=wanted is None)
        return id_column, table.ids(id_column, unique=True), labels

    def labels_in(self, table: Table, column: str, *, is_guessed: bool) -> np.ndarray:
        """The labels in a column, None where unknown; numbers, NaN where unknown, where that is the task, or what they look like.

        Args:
            is_guessed: whether the column was found by its name or position.
        """
        if self.task != "classification":
            found = label_numbers(table, column, self.unknown)
            note = look_like_numbers(column, found.numbers) if self.task is None and found.share >= MOSTLY else None
            if self.task is None and note is not None:
                self.task = "regression"
                self.notes.append(note)
            if self.task == "regression":
                if found.problem:
                    raise ValueError(found.problem if note is None else f"{found.problem}; task=classification reads classes")
                self.notes += found.notes
                return found.numbers
        labels = table.labels(column, self.unknown)
        if is_guessed:
            self.notes.append(guessed_label(table, column, labels))
        return labels

    def stand_in(self) -> Any:
        """What stands in for features where there is no file of nodes."""
        if self.features is not None and self.features not in STAND_INS:
            stand_ins = "'identity' or 'degree' can stand in"
            raise ValueError(f"there is no file of nodes to read features {self.features!r} from; {stand_ins}")
        return self.features

    def listed_nodes(self, table: Table) -> NodeColumns:
        """The nodes of a file of nodes."""
        id_column = self.matched.get("id") or table.require("id", _meant_for(table, self.id, self.label_table))
        is_elsewhere = self.label is not None and _meant_for(table, self.label, self.label_table) is None
        is_aside = self.label == "" or is_elsewhere
        chosen = table.find("label", None if is_aside else self.label, taken=(id_column,))
        label_column, aside = (None, chosen) if is_aside else (chosen, None)
        if self.label_table is not None and label_column is not None:
            both = f"{table.path.name} has a column {label_column!r}, and {self.label_table.path.name}"
            raise ValueError(f"labels come twice: {both}")
        names = table.ids(id_column, unique=True)
        y = None if label_column is None else self.labels_in(table, label_column, is_guessed=self.label is None)
        others = [] if chosen is None else other_labels(table, taken=(id_column, chosen))
        time_column = None if self.time is None else table.stated("time", self.time)
        time = None if time_column is None else torch.from_numpy(times_in(Cells(table, time_column)).copy())
        columns, encoded = self.encoded(table, {id_column, chosen, time_column, *others})
        self.notes.extend(encoded.warnings)
        if chosen is None and self.label is None and self.label_table is None and self.columns is None and columns is not None:
            self.notes += label_asked_for(columns.summaries())
        if aside is not None and aside not in _several(self.features, table):
            how = "neither label nor feature; option features=… reads it as one"
            self.notes.append(f"column {aside!r} is left aside: {how}")
        if others and self.features is None:
            self.notes.append(
                f"{WARNING}{some(others)} could be the label too, and a feature that is one would tell the answer: left aside; "
                f"option label={others[0]} chooses it, features=… reads it as a feature"
            )
        return NodeColumns(names, encoded.x, y, encoded.blocks, columns, time)

    def encoded(self, table: Table, taken: Collection[str | None]) -> tuple[Columns | None, EncodedTable]:
        """What was learned of the columns of a table of nodes, and their features."""
        if self.columns is not None:
            if self.features is not None or self.text is not None:
                raise ValueError("columns= says which features there are: leave features= and text= out")
            return self.columns, self.columns.read(table)
        texts = [table.stated("text", column) for column in _several(self.text, table)]
        if self.features in STAND_INS:
            if texts:
                raise ValueError(f"features={self.features!r} reads no column, but text= names {some(texts)}")
            return None, EncodedTable(self.features)
        names = [column for column in table.columns if column not in taken]
        if self.features is not None:
            names = [table.stated("features", column) for column in _several(self.features, table)]
        return learn_columns(table, list(dict.fromkeys([*names, *texts])), texts)


def _meant_for(table: Table, wanted: str | None, other: Table | None) -> str | None:
    """A stated column, or None where it is one of another file and not of this one."""
    return None if other is not None and wanted in other.columns and wanted not in table.columns else wanted


def _several(names: Sequence[str] | str | None, table: Table) -> list[str]:
    """Columns by name; text with commas is several of them, unless one column has that very name."""
    if isinstance(names, str):
        return [names] if names in table.columns else names.split(",")
    return list(names or ())
