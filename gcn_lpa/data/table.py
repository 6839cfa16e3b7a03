"""Tables of nodes, edges and labels, with columns found by their names; and those in delimited text files (.csv, .tsv).

Cells of text files are text exactly as written. Errors say file, row, column and value; rows are counted as a spreadsheet shows
them, with the header as row 1.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.data.checks import FLOAT32_MAX, close_to, is_missing, meant, some

USUAL_NAMES = {
    "id": ("id", "node", "node_id", "nodeid", "name", "key", "paper", "paper_id", "user", "user_id", "account"),
    "label": ("label", "class", "y", "category", "labels", "target"),
    "source": ("source", "src", "from", "u", "head", "start", "citing", "node1", "node_1", "id1", "source_id", "a"),
    "target": ("target", "dst", "to", "v", "tail", "end", "cited", "node2", "node_2", "id2", "target_id", "b"),
    "weight": ("weight", "w", "weights", "strength"),
}
MOSTLY = 0.9  # of the ends of edges that are ids, in columns that are found by their values
MAX_COLUMNS = 20_000
AT_ONCE = 2**24  # characters of a text file, and cells of a Parquet file, that are parsed together
DELIMITERS = (",", ";", "\t", "|")
SEPARATOR = re.compile(r'"?sep=(.)"?(\r\n|\r|\n)', re.IGNORECASE)  # a first row that Excel reads and writes
QUOTED = re.compile(r'(?:^|(?<=[,;\t|\n]))"(?:[^"]|"")*"')  # a cell in quotation marks
NOT_TABLES = {  # by the first bytes
    b"pk\x03\x04": "a zip archive or an Excel workbook (save it as CSV)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (save it as CSV)",
    b"<!doctype html": "a web page, perhaps one that asks to log in",
    b"<html": "a web page, perhaps one that asks to log in",
    b"%pdf-": "a PDF",
    b"\x89png": "a picture",
    b"par1": "a Parquet file (name it .parquet)",
    b"\x1f\x8b": "compressed by gzip (unpack it)",
}
QUOTE, LF, CR = b'"\n\r'
NOT_PLAIN = np.empty(0, dtype=bool), 0
PANDAS_INDEX = "__index_level_"  # how pandas names an index without a name

Series = Any  # pandas.Series: of text (see `text_type`), or of any objects where it comes from a Parquet file


@dataclass(frozen=True)
class Table:
    """Columns by name, and the row of the file each of their cells comes from."""

    path: Path
    columns: Mapping[str, Series]
    rows: Sequence[int] | np.ndarray
    first_row_names: bool = False  # the names are the first row of a CSV file, which could be data

    def where(self, row: int, column: str) -> str:
        return f"{self.path.name}, row {self.rows[row]}, column {column!r}"

    def of(self, rows: np.ndarray) -> Table:
        """Some of its rows, a mask."""
        columns = {name: column[rows].reset_index(drop=True) for name, column in self.columns.items()}
        return Table(self.path, columns, np.asarray(self.rows)[rows], self.first_row_names)

    def find(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str | None:
        """The column that plays a role: the one asked for (none for ""), else the first free one with a usual name."""
        if wanted is not None:
            return self.stated(role, wanted) if wanted else None
        by_name = {name.lower(): name for name in reversed(list(self.columns)) if name not in taken}
        return next((by_name[usual] for usual in USUAL_NAMES[role] if usual in by_name), None)

    def stated(self, option: str, wanted: str) -> str:
        """A column asked for by its name."""
        if wanted == "":
            how = "leave the option out, or name one"
            raise ValueError(f"{option} is '', which names no column of {self.path.name}; {how}")
        if wanted not in self.columns:
            hint = meant(wanted, self.columns)
            if option == "label" and all(part in self.columns for part in wanted.split(",")):
                hint = "; a run has one label column: train once for each"
            raise ValueError(f"{self.path.name} has no column {wanted!r}; it has {some(list(self.columns), 12)}{hint}")
        return wanted

    def require(self, role: str, wanted: str | None, taken: Sequence[str] = ()) -> str:
        column = self.find(role, None, taken) if wanted is None else self.stated(role, wanted)
        if column is None:
            usual = ", ".join(USUAL_NAMES[role][:4])
            held, hint = "columns are", ""
            if self.first_row_names:
                held, hint = "first row is", ", or header=false if that row is data"
            raise ValueError(
                f"{self.path.name} has no column for the {role} (such as {usual}); its {held} "
                f"{some(list(self.columns), 6)}. Say with option {role}=… which it is{hint}"
            )
        return column

    def ids(self, column: str, *, unique: bool = False) -> Series:
        """Ids as they stand in the file; none may be missing."""
        cells = self.columns[column]
        if is_text(cells):
            missing = (cells == "").to_numpy(bool)
        else:
            cells = series([int(v) if isinstance(v, float) and v.is_integer() else v for v in self._values(column)])
            missing = np.asarray([value == "" or is_missing(value) for value in cells], dtype=bool)
        if missing.any():
            raise ValueError(f"{self.where(int(missing.argmax()), column)} is empty; every row needs an id")
        if unique and (repeats := cells.duplicated().to_numpy(bool)).any():
            i = int(repeats.argmax())
            first = next(k for k, value in enumerate(cells) if value == cells.iloc[i])
            raise ValueError(f"{self.where(i, column)} repeats the id {cells.iloc[i]!r:.80} of row {self.rows[first]}")
        return cells

    def labels(self, column: str, unknown: Sequence[str] | str) -> np.ndarray:
        """Labels as they stand in the file, None where unknown; a fraction, a date, a number below -1 is no class."""
        missing = {"", *([unknown] if isinstance(unknown, str) else map(str, unknown))}
        cells = self.columns[column]
        if is_text(cells):
            labels: np.ndarray = cells.to_numpy(object, copy=True)
            labels[cells.isin(list(missing)).to_numpy(bool)] = None
            return labels
        values = [None if is_missing(value) or str(value) in missing else value for value in self._values(column)]
        for i, value in enumerate(values):
            if value is None or isinstance(value, str):
                continue
            right = None
            if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
                right = "a label is a whole number, text, or true or false; of measurements, ranges can be predicted"
            elif value < -1:
                right = "a number as label is at least 0, -1 means unknown"
            if right:
                raise ValueError(f"{self.where(i, column)} is {value!r}; {right}")
        return series(values).to_numpy(object)  # type: ignore[no-any-return]

    def weights(self, column: str) -> np.ndarray:
        """A column of positive numbers."""
        cells = self.columns[column]
        numbers = numbers_in(cells)
        wrong = np.flatnonzero(~((numbers > 0) & (numbers <= FLOAT32_MAX)))
        if len(wrong):
            i = int(wrong[0])
            pointed = str(cells.iloc[i]).replace(",", ".")
            hint = f" (a decimal point, not a comma: {pointed})" if 0 < number(pointed) <= FLOAT32_MAX else ""
            right = "a weight is a positive number (leave the row out for 0)"
            raise ValueError(f"{self.where(i, column)} is {cells.iloc[i]!r}; {right}{hint}")
        return numbers

    def _values(self, column: str) -> list[Any]:
        """The cells of a column of ids or labels, each one value; those of a Parquet file can be lists."""
        values = list(self.columns[column])
        for i, value in enumerate(values):
            if not isinstance(value, Hashable):
                raise ValueError(f"{self.where(i, column)} is {value!r}; an id or label is one value, no list")
        return values


def columns_by_values(nodes: Table, edges: Table, named: Mapping[str, str]) -> dict[str, str]:
    """The columns of ids, sources and targets of two tables, where values say which they are: exactly two columns of edges hold
    the values of exactly one column of nodes, whose values all differ. None of them where they do not.

    Args:
        named: those that were found by their names.
    """
    found = []
    for column in [named["id"]] if "id" in named else list(nodes.columns):
        values = nodes.columns[column]
        if len(values) < 2 or values.duplicated().any() or (values == "").any() or values.isin([column]).any():
            continue
        shares = {name: float(cells.isin(values).mean()) for name, cells in edges.columns.items()}
        ends = [name for name, share in shares.items() if share >= MOSTLY]
        ends = [named[role] for role in ("source", "target")] if {"source", "target"} <= named.keys() else ends
        if len(ends) == 2 and all(shares[end] >= MOSTLY for end in ends):
            found.append({"id": column, "source": ends[0], "target": ends[1]})
    return found[0] if len(found) == 1 else {}


@dataclass
class Unlisted:
    """The first of the ids of a column that the file of nodes does not list, and their number."""

    column: str
    where: str = ""
    id: Any = None
    number: int = 0

    def with_rows(self, table: Table, ids: Series, wrong: np.ndarray) -> Unlisted:
        """Count the rows of a mask, with their ids, as well."""
        if wrong.any() and not self.number:
            self.where, self.id = table.where(int(wrong.argmax()), self.column), ids.iloc[int(wrong.argmax())]
        self.number += int(wrong.sum())
        return self

    def problem(self, names: Sequence[Any], origin: Table) -> str:
        hint = close_to(self.id, names)
        more = f"; so are {self.number - 1:,} more" if self.number > 1 else ""
        return f"{self.where} is {self.id!r:.80}, which {origin.path.name} does not list{f'; {hint}' if hint else ''}{more}"


def positions(names: Series, *ids: Series) -> np.ndarray:
    """The position of each id among the names, which differ; at least their number where an id is none of them."""
    import pandas

    codes: np.ndarray = pandas.factorize(pandas.concat([names, *ids], ignore_index=True))[0]
    return codes[len(names) :]


def text_type() -> Any:
    """The type of a column of text: Arrow's where pyarrow is installed, which pandas reads ten times faster."""
    import pandas

    try:
        import pyarrow
    except ImportError:
        return object
    return pandas.ArrowDtype(pyarrow.large_string())


def series(values: Sequence[Any], dtype: Any = object) -> Series:
    import pandas

    return pandas.Series(values, dtype=dtype)


def is_text(cells: Series) -> bool:
    """Whether all cells are text, as those of a CSV file are; those of a Parquet file may be anything."""
    return cells.dtype != object or set(map(type, cells)) <= {str}


def number(value: Any) -> float:
    """A cell as a number, NaN where it is none. Python would read "1_000", which no other program does."""
    try:
        return math.nan if isinstance(value, str) and "_" in value else float(value)
    except (ValueError, TypeError):
        return math.nan


def plain_numbers(cells: Series) -> np.ndarray | None:
    """A column as float64; None where Arrow, or the first cell, says that it is not one of plain numbers."""
    if cells.dtype != object:
        try:
            return cells.astype("double[pyarrow]").to_numpy(np.float64)  # type: ignore[no-any-return]
        except ValueError:
            return None
    return None if len(cells) and math.isnan(number(cells.iloc[0])) else _parsed(cells)


def numbers_in(cells: Series) -> np.ndarray:
    """A column as float64, NaN where a cell is no number."""
    numbers = plain_numbers(cells)
    return _parsed(cells) if numbers is None else numbers  # Arrow is stricter than `number`, which decides


def _parsed(cells: Series) -> np.ndarray:
    return np.fromiter(map(number, cells), dtype=np.float64, count=len(cells))


def joined(pieces: Iterable[Table]) -> Table:
    """The pieces of a table as one."""
    import pandas

    found = list(pieces)
    if len(found) == 1:
        return found[0]
    columns = {name: pandas.concat([one.columns[name] for one in found], ignore_index=True) for name in found[0].columns}
    return Table(found[0].path, columns, np.concatenate([one.rows for one in found]), found[0].first_row_names)


def delimited_pieces(
    path: Path, roles: tuple[str, ...], *, encoding: str = "utf-8-sig", delimiter: str | None = None
) -> Iterator[Table]:
    """The rows of a text file, so many characters at a time; all of them, with a header if there is one."""
    import pandas

    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"the delimiter is {delimiter!r}; it is one character")
    num_rows, first, rest = 0, list[str](), _decoded(path, encoding)
    for text in rest:
        if not num_rows and (stated := SEPARATOR.match(text)):
            delimiter, text = delimiter or stated[1], stated[2] + text[stated.end() :]  # the row stays, as a blank one
        if delimiter is None:
            line = QUOTED.sub("", text.lstrip()[:100_000]).split("\n", 1)[0]
            delimiter = "\t" if path.suffix == ".tsv" else max(DELIMITERS, key=line.count)
        raw = text.encode()
        is_row, width = _plain_rows(raw, delimiter)
        _check_width(path, width)
        if width and len(first) in (0, width):
            form_of_all = {"header": None, "names": list(range(width)), "dtype": text_type(), "skip_blank_lines": False}
            frame = pandas.read_csv(io.BytesIO(raw), sep=delimiter, na_filter=False, low_memory=False, **form_of_all)
            frame = frame if is_row.all() else frame[is_row].reset_index(drop=True)
            cells: Sequence[Series] = [frame[column] for column in frame.columns]
            rows = 1 + num_rows + np.flatnonzero(is_row)
            num_rows += len(is_row)
        else:  # where a piece ends may be inside a cell: all that follows belongs to it
            cells, rows = _parse_odd(path, "".join([text, *rest]), delimiter, first, num_rows)
        del text, raw
        if len(rows):
            first = first or [str(column.iloc[0]) for column in cells]
            names = [*roles, *map(str, range(len(roles), len(cells)))]
            yield Table(path, dict(zip(names, cells, strict=False)), rows)
    if not first:
        raise ValueError(f"{path.name} is empty")


def with_header(pieces: Iterable[Table]) -> Iterator[Table]:
    """The table whose first row is its header; columns without a name, such as pandas' index, are not read."""
    names: dict[str, str] = {}
    for k, piece in enumerate(pieces):
        for key, column in piece.columns.items() if k == 0 else ():
            name = column.iloc[0].strip()
            if name and name in names.values():
                raise ValueError(f"{piece.path.name} has two columns {name!r}; each needs a name of its own")
            names[key] = name
        kept = {name: piece.columns[key] for key, name in names.items() if name not in ("", "Unnamed: 0")}
        named = Table(piece.path, kept, piece.rows, first_row_names=True)
        yield named if k else named.of(np.arange(len(piece.rows)) > 0)


def names_columns(table: Table, roles: tuple[str, ...]) -> bool:
    """Whether the first row names the columns, although it is said to be data."""
    cells = [column.iloc[0] for column in table.columns.values() if len(column.iloc[0]) > 1]  # "a" is no clear name
    names = [next((cell for cell in cells if cell.strip().lower() in USUAL_NAMES[role]), None) for role in roles[:2]]
    return None not in names and not any(column.iloc[1:].isin(names).any() for column in table.columns.values())


def _decoded(path: Path, encoding: str) -> Iterator[str]:
    """The text of a file, whole lines, so many characters at a time."""
    lines = 1
    try:
        with path.open("rb") as raw:
            start = raw.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
            if kind := next((kind for first, kind in NOT_TABLES.items() if start.startswith(first)), None):
                right = "it takes text with commas between the cells"
                raise ValueError(f"{path.name} is {kind}, whatever its name says; {right}")
            raw.seek(0)
            file = io.TextIOWrapper(raw, encoding, newline="")
            while text := file.read(AT_ONCE):
                text += file.readline()
                if "\0" in text:
                    line = lines + text.count("\n", 0, text.index("\0"))
                    raise ValueError(f"{path.name}, line {line} holds a NUL character; a CSV file is plain text")
                yield text
                lines += text.count("\n")
    except LookupError as error:
        raise ValueError(f"there is no encoding {encoding!r}; common ones are utf-8, latin-1 and utf-16") from error
    except UnicodeDecodeError:
        data = path.read_bytes()
        try:
            data.decode(encoding)
        except UnicodeDecodeError as error:  # counted in the whole file
            line = data.count(b"\n", 0, error.start) + 1
            other = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
            raise ValueError(
                f"{path.name}, line {line}: byte 0x{data[error.start]:02x} is not {encoding.removesuffix('-sig')}; "
                f"say which encoding it is, for instance with option encoding={other}"
            ) from error
        raise


def _check_width(path: Path, width: int) -> None:
    if width > MAX_COLUMNS:
        hint = "Words can go into one column"
        raise ValueError(f"{path.name} has {width:,} columns; at most {MAX_COLUMNS:,} are read. {hint}")


def _plain_rows(raw: bytes, delimiter: str) -> tuple[np.ndarray, int]:
    """Whether each row holds cells, or is blank; and how many cells, 0 where the file is not plain.

    A file is plain if pandas reads the same cells from it as the csv module: quotation marks enclose whole cells (or are
    doubled inside them), rows end with LF or CR LF and have equally many cells, none too long for the csv module.
    """
    if not delimiter.isascii() or delimiter in '"\r\n':
        return NOT_PLAIN
    text = np.frombuffer(raw, np.uint8)
    is_separator = (text == ord(delimiter)) | (text == LF)
    separators, returns = np.flatnonzero(is_separator), np.flatnonzero(text == CR)
    quotes = np.flatnonzero(text == QUOTE)
    if len(quotes):
        # every second mark begins a cell and the next one ends it; a doubled one does both inside a cell
        is_edge = np.append(is_separator | (text == CR) | (text == QUOTE), True)  # -1: before the first byte
        if len(quotes) % 2 or not (is_edge[quotes[::2] - 1].all() and is_edge[quotes[1::2] + 1].all()):
            return NOT_PLAIN
        outside = [x[np.searchsorted(quotes, x) % 2 == 0] for x in (separators, returns)]  # of cells in quotes
        separators, returns = outside
    if len(returns) and not (returns[-1] + 1 < len(text) and (text[returns + 1] == LF).all()):
        return NOT_PLAIN
    if np.diff(separators, prepend=-1, append=len(text)).max() > csv.field_size_limit():
        return NOT_PLAIN
    is_end = text[separators] == LF
    ends, delimiters = separators[is_end], separators[~is_end]
    if len(text) and text[-1] != LF:
        ends = np.append(ends, len(text))
    starts = np.concatenate([[0], ends + 1])[:-1]
    is_row = ends - starts > (text[ends - 1] == CR)
    widths = 1 + np.diff(np.searchsorted(delimiters, ends), prepend=0)[is_row]
    return (is_row, int(widths[0])) if len(widths) and (widths == widths[0]).all() else NOT_PLAIN


def _parse_odd(path: Path, text: str, delimiter: str, first: list[str], before: int) -> tuple[Sequence[Series], np.ndarray]:
    """All columns, and the number of each row, by the csv module, which refuses what is wrong.

    Args:
        first: the first row of the file, where so many rows of it are `before` the text.
    """
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), before + 1):
            if not row:
                continue
            _check_width(path, len(row))
            first = first or row
            if len(row) != len(first):
                problem = f"the first row has {len(first)}: {some(row)}"
                raise ValueError(f"{path.name}, row {number} has {len(row)} cells; {problem}")
            rows.append(row)
            numbers.append(number)
    except csv.Error as error:
        problem = str(error)
        if problem.startswith("field larger"):
            most = f"a cell has more than {csv.field_size_limit():,} characters"
            problem = f"{most}; is a quotation mark not closed? Long texts can come from a Parquet file"
        elif problem.startswith("unexpected end"):
            problem = "a quotation mark is opened and not closed"
        raise ValueError(f"{path.name}, row {numbers[-1] + 1 if numbers else before + 1}: {problem}") from error
    return [series(column, text_type()) for column in zip(*rows, strict=True)], np.asarray(numbers)


def table_of(path: Path, names: list[str], columns: list[Series], start: int = 0) -> Table:
    """A table of these columns; `start`: rows of the file that are before it."""
    if len(set(names)) < len(names):
        raise ValueError(f"{path.name} has two columns of one name among {some(names)}; each needs a name of its own")
    kept = {name: column for name, column in zip(names, columns, strict=True) if not name.startswith(PANDAS_INDEX)}
    return Table(path, kept, range(start + 1, start + 1 + max(map(len, columns), default=0)))
