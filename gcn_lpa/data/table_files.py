"""Delimited text files (.csv, .tsv), whose cells are text exactly as written, and Parquet files and DataFrames, column by column.

A Parquet file of a few bytes can hold a billion rows, or one long text a million times: what it would unpack to is counted first.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcn_lpa.data.checks import some
from gcn_lpa.data.table import MAX_COLUMNS, Series, Table, series, text_type

MAX_BYTES = 4 * 2**30  # all of them are read before the first is parsed
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


@dataclass(frozen=True)
class Format:
    """How a file is written.

    Args:
        header: whether the first row names the columns.
        delimiter: without, that of a first row "sep=;", or the most frequent one of `DELIMITERS` in the first row.
    """

    header: bool = True
    encoding: str = "utf-8-sig"
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"the delimiter is {self.delimiter!r}; it is one character")


def read_delimited(path: Path, roles: tuple[str, ...], form: Format) -> Table:
    """A table from a text file; without a header its columns are named by `roles`, then by number."""
    text = _decode(path, form.encoding)
    delimiter = form.delimiter
    if stated := SEPARATOR.match(text):
        delimiter, text = delimiter or stated[1], stated[2] + text[stated.end() :]  # the row stays, as a blank one
    cells, rows = _parse(path, text, delimiter or _delimiter(path, text))
    names = [*roles, *map(str, range(len(roles), len(cells)))]
    table = Table(path, dict(zip(names, cells, strict=False)), rows)
    return named_by_first_row(table) if form.header else table


def named_by_first_row(table: Table) -> Table:
    """The table whose first row is its header; columns without a name, such as pandas' index, are not read."""
    names = [column.iloc[0].strip() for column in table.columns.values()]
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            raise ValueError(f"{table.path.name} has two columns {name!r}; each needs a name of its own")
        seen.add(name)
    named = zip(names, table.columns.values(), strict=True)
    columns = {name: without_first(column) for name, column in named if name not in ("", "Unnamed: 0")}
    return Table(table.path, columns, table.rows[1:], first_row_names=True)


def without_first(column: Series) -> Series:
    return column.iloc[1:].reset_index(drop=True)


def _decode(path: Path, encoding: str) -> str:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read. A Parquet file takes less")
    raw = path.read_bytes()
    for start, kind in NOT_TABLES.items():
        if raw[:64].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(start):
            right = "it takes text with commas between the cells"
            raise ValueError(f"{path.name} is {kind}, whatever its name says; {right}")
    try:
        text = raw.decode(encoding)
    except LookupError as error:
        raise ValueError(f"there is no encoding {encoding!r}; common ones are utf-8, latin-1 and utf-16") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        other = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        raise ValueError(
            f"{path.name}, line {line}: byte 0x{raw[error.start]:02x} is not {encoding.removesuffix('-sig')}; "
            f"say which encoding it is, for instance with option encoding={other}"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path.name}, line {line} holds a NUL character; a CSV file is plain text")
    return text


def _delimiter(path: Path, text: str) -> str:
    first = QUOTED.sub("", text.lstrip()[:100_000]).split("\n", 1)[0]
    return "\t" if path.suffix == ".tsv" else max(DELIMITERS, key=first.count)


def _parse(path: Path, text: str, delimiter: str) -> tuple[Sequence[Series], np.ndarray]:
    """All columns, and the number of each row; blank rows are counted and left out."""
    raw = text.encode()
    is_row, width = _plain_rows(raw, delimiter)
    _check_width(path, width)
    cells, rows = _parse_plain(raw, delimiter, is_row, width) if width else _parse_odd(path, text, delimiter)
    if len(rows) == 0:
        raise ValueError(f"{path.name} is empty")
    return cells, rows


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
        is_edge = np.append(
            is_separator | (text == CR) | (text == QUOTE), True
        )  # before the first byte, and after the last
        if len(quotes) % 2 or not (is_edge[quotes[::2] - 1].all() and is_edge[quotes[1::2] + 1].all()):
            return NOT_PLAIN
        separators, returns = (
            x[np.searchsorted(quotes, x) % 2 == 0] for x in (separators, returns)
        )  # outside of cells
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


def _parse_plain(raw: bytes, delimiter: str, is_row: np.ndarray, width: int) -> tuple[Sequence[Series], np.ndarray]:
    import pandas

    frame = pandas.read_csv(
        io.BytesIO(raw),
        sep=delimiter,
        header=None,
        names=list(range(width)),
        dtype=text_type(),
        na_filter=False,
        skip_blank_lines=False,
        low_memory=False,
    )
    if not is_row.all():
        frame = frame[is_row].reset_index(drop=True)
    return [frame[column] for column in frame.columns], 1 + np.flatnonzero(is_row)


def _parse_odd(path: Path, text: str, delimiter: str) -> tuple[Sequence[Series], np.ndarray]:
    """The same with the csv module, which refuses what is wrong."""
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1):
            if not row:
                continue
            _check_width(path, len(row))
            if rows and len(row) != len(rows[0]):
                raise ValueError(
                    f"{path.name}, row {number} has {len(row)} cells; the first row has {len(rows[0])}: {some(row)}"
                )
            rows.append(row)
            numbers.append(number)
    except csv.Error as error:
        raise ValueError(f"{path.name}, row {numbers[-1] + 1 if numbers else 1}: {_explained(error)}") from error
    return [series(column, text_type()) for column in zip(*rows, strict=True)], np.asarray(numbers)


def _explained(error: csv.Error) -> str:
    """What the csv module found wrong, in the words of one who made the file."""
    if str(error).startswith("field larger"):
        return (
            f"a cell has more than {csv.field_size_limit():,} characters; is a quotation mark not closed? "
            "Long texts can come from a Parquet file"
        )
    return "a quotation mark is opened and not closed" if str(error).startswith("unexpected end") else str(error)


FREE_CELLS, CELLS_PER_BYTE = 2_000_000, 100  # that a file may hold: beyond, no table of nodes or edges is so uniform
FREE_BYTES, BYTES_PER_BYTE = 100 * 2**20, 100  # the same of its text, unpacked
PANDAS_INDEX = "__index_level_"  # how pandas names an index without a name


def read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    try:
        with path.open("rb") as file:
            table = _read(file, path.stat().st_size, pyarrow.parquet)
        names = [str(name) for name in table.column_names]
        columns = [series(_cells(column)) for column in table.columns]
    except MemoryError:
        raise
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error!s:.300})") from error
    return _table(path, names, columns, table.num_rows)


def read_frame(frame: Any, role: str) -> Table:
    """A table of a DataFrame; errors call it by its role and count its rows from 1."""
    columns = [series(frame.iloc[:, k].tolist()) for k in range(frame.shape[1])]
    return _table(Path("graph", f"the frame of {role}"), list(map(str, frame.columns)), columns, len(frame))


def _table(path: Path, names: list[str], columns: list[Series], num_rows: int) -> Table:
    if len(set(names)) < len(names):
        raise ValueError(f"{path.name} has two columns of one name among {some(names)}; each needs a name of its own")
    kept = {name: column for name, column in zip(names, columns, strict=True) if not name.startswith(PANDAS_INDEX)}
    return Table(path, kept, range(1, num_rows + 1))


def _read(file: Any, size: int, parquet: Any) -> Any:
    """The Arrow table in a file, whose texts are stored once each; one that would unpack to far more is refused."""
    facts = parquet.read_metadata(file)
    if facts.num_columns > MAX_COLUMNS:
        raise ValueError(f"it has {facts.num_columns:,} columns; at most {MAX_COLUMNS:,} are read")
    groups = [facts.row_group(k) for k in range(facts.num_row_groups)]
    values = sum(group.column(k).num_values for group in groups for k in range(facts.num_columns))
    cells, unpacked = max(values, facts.num_rows), sum(group.total_byte_size for group in groups)
    if cells > FREE_CELLS + CELLS_PER_BYTE * size:
        raise ValueError(f"it says that it holds {cells:,} cells, in {size:,} bytes")
    if unpacked <= FREE_BYTES + BYTES_PER_BYTE * size:
        leaves = [facts.schema.column(k) for k in range(facts.num_columns)]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        table = parquet.ParquetFile(file, metadata=facts, read_dictionary=texts).read()
        unpacked = sum(_num_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if unpacked > FREE_BYTES + BYTES_PER_BYTE * size:
        raise ValueError(f"it would unpack to {unpacked:,} bytes, from {size:,}")
    return table


def _cells(column: Any) -> list[Any]:
    import pyarrow

    try:
        return list(column.to_pandas().tolist())
    except pyarrow.ArrowNotImplementedError:  # lists of texts that are stored once each
        return list(column.to_pylist())


def _num_bytes(array: Any) -> int:
    """How many bytes an Arrow array has when each cell has a text of its own."""
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind) and not pyarrow.types.is_primitive(kind.value_type):
        lengths = compute.cast(compute.binary_length(array.dictionary), pyarrow.int64())
        return compute.sum(lengths.take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_num_bytes, array.flatten()))
    return _num_bytes(array.values) if pyarrow.types.is_nested(kind) else array.nbytes
