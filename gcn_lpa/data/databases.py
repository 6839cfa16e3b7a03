"""Databases: a table, a view or a query is read as a `Table`, and predictions are written to a new table.

    sqlite:///shop.db?table=orders                 a file of SQLite; four slashes where its path begins with one
    duckdb:///shop.duckdb?query=SELECT …           the same of DuckDB
    duckdb:SELECT … FROM 'orders.parquet'          DuckDB without a database, over CSV and Parquet files
    postgresql://ann@host/shop?table=sales.orders  a server; what is left out of it comes from PGHOST, PGUSER, …

What follows `table=` or `query=` is taken as it is. Reading changes nothing: connections are read-only, a query is one SELECT, and
the name of a table is looked up in the catalogue and quoted. A password comes from the environment of the database (PGPASSWORD,
~/.pgpass) alone; an address that holds one is refused without being repeated.

Cells become text as a CSV file would have it, NULL an empty cell. So the same rows give the same graph from whatever door, and an
id that is a number in one table and text in another is one id.
"""

from __future__ import annotations

import abc
import contextlib
import datetime
import math
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from gcn_lpa.data.checks import is_missing, meant, refuse_password, some
from gcn_lpa.data.table import Table, series, table_of, text_type

PLACE = re.compile(r"//([^?]*)\?(table|query)=(.+)", re.DOTALL)
SERVER = re.compile(r"(?:(?P<user>[^@/:]+)@)?(?P<host>[^@/:]*)(?::(?P<port>\d+))?/(?P<dbname>[^@/:]+)")
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
SQLITE_ALLOWED = dict.fromkeys(READS, sqlite3.SQLITE_OK)
NOT_SELECT = "a query that is read is one SELECT, and changes nothing"
EXACT = 2**53  # a whole number below is the same as a float
COLUMN_KINDS = {
    "f": "DOUBLE PRECISION",
    "i": "BIGINT",
    "b": "BOOLEAN",
}  # of what is written, by NumPy's letter; else TEXT
Errors = tuple[type[Exception], ...]
Rows = tuple[list[str], list[tuple[Any, ...]]]  # names of columns, and rows


@dataclass(frozen=True)
class Address:
    """A table or a query, and the database it is in."""

    engine: str
    place: str  # of the database: a path, or [user@]host[:port]/name; "" for files that DuckDB reads
    kind: str  # "table" or "query"
    what: str

    @classmethod
    def of(cls, text: str) -> Address:
        refuse_password(text)
        engine, _, rest = text.partition(":")
        if engine not in ENGINES:
            raise ValueError(f"{engine!r} is no database that is read; there are {', '.join(ENGINES)}")
        if engine == "duckdb" and not rest.startswith("//"):
            return cls(engine, "", "query", rest)
        found = PLACE.fullmatch(rest)
        if found is None or not ENGINES[engine].is_place(found[1]):
            raise ValueError(f"this is no address of {engine}, which looks like {ENGINES[engine].example}")
        return cls(engine, *found.groups())

    @property
    def database(self) -> str:
        """The database, for messages."""
        return f"{self.engine}://{self.place}" if self.place else self.engine

    @contextlib.contextmanager
    def connected(self, *, writes: bool = False) -> Iterator[Any]:
        """A connection; what goes wrong is an error that names the database."""
        engine = ENGINES[self.engine]
        try:
            errors, lost = engine.errors()
        except ImportError as error:
            raise ImportError(f"{self.engine} needs {error.name}: pip install 'gcn-lpa[sql]'") from error
        try:
            with contextlib.closing(engine.connect(self.place, writes)) as connection:
                yield connection
        except errors as error:
            problem = f"{' '.join(str(error).split()) or type(error).__name__:.300}"
            if isinstance(error, lost):
                raise ConnectionError(f"{self.database}: {problem}; nothing was written, so run it again") from error
            raise ValueError(f"{self.database}: {problem}") from error


class Engine(abc.ABC):
    """A kind of database; what is here is that of one in a file."""

    example: str
    catalogue: str  # a query for the schema and name of each table and view
    placeholder = "?"

    def is_place(self, place: str) -> bool:
        return place.startswith("/") and len(place) > 1

    @abc.abstractmethod
    def errors(self) -> tuple[Errors, Errors]:
        """The errors of the driver, and those of a lost connection."""

    @abc.abstractmethod
    def connect(self, place: str, writes: bool) -> Any:
        """A connection that only reads, unless it `writes`."""

    @abc.abstractmethod
    def rows(self, connection: Any, query: str) -> Rows:
        """What one SELECT finds."""

    def order(self, connection: Any, table: str) -> str:
        """What makes the rows of a table come in the same order each time."""
        return ""

    def create(self, connection: Any, table: str, frame: Any) -> None:
        """A table of a frame, in one transaction."""
        kinds = {name: COLUMN_KINDS.get(kind.kind, "TEXT") for name, kind in frame.dtypes.items()}
        columns = ", ".join(f"{_quoted(str(name))} {kind}" for name, kind in kinds.items())
        cells = [[_written(cell, kind) for cell in frame[name].tolist()] for name, kind in kinds.items()]
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {table} ({columns})")
        places = ", ".join([self.placeholder] * len(kinds))
        cursor.executemany(f"INSERT INTO {table} VALUES ({places})", zip(*cells, strict=True))
        connection.commit()


class Sqlite(Engine):
    """A file, by the standard library."""

    example = "sqlite:///shop.db?table=orders"
    catalogue = "SELECT 'main', name FROM sqlite_master WHERE type IN ('table', 'view')"

    def errors(self) -> tuple[Errors, Errors]:
        return (sqlite3.Error, sqlite3.Warning), ()

    def connect(self, place: str, writes: bool) -> Any:
        mode = "rwc" if writes else "ro"
        connection = sqlite3.connect(f"file:{urllib.parse.quote(str(_file(place, writes)))}?mode={mode}", uri=True)
        if not writes:
            connection.set_authorizer(lambda action, *_: SQLITE_ALLOWED.get(action, sqlite3.SQLITE_DENY))
        return connection

    def rows(self, connection: Any, query: str) -> Rows:
        try:
            return _fetched(connection.execute(query))
        except sqlite3.DatabaseError as error:
            raise (ValueError(NOT_SELECT) if "not authorized" in str(error) else error) from None

    def create(self, connection: Any, table: str, frame: Any) -> None:
        connection.execute("BEGIN")  # Python begins no transaction before CREATE
        super().create(connection, table, frame)


class DuckDB(Engine):
    """A file, or files that a query names; one thread, so that rows come in the same order each time."""

    example = "duckdb:///shop.duckdb?table=orders"
    catalogue = "SELECT table_schema, table_name FROM information_schema.tables"

    def errors(self) -> tuple[Errors, Errors]:
        import duckdb

        return (duckdb.Error,), ()

    def connect(self, place: str, writes: bool) -> Any:
        import duckdb

        own: dict[str, Any] = {"threads": 1, "python_enable_replacements": False, "autoinstall_known_extensions": False}
        return duckdb.connect(str(_file(place, writes)) if place else ":memory:", bool(place) and not writes, own)

    def rows(self, connection: Any, query: str) -> Rows:
        statements = connection.extract_statements(query)
        if [str(one.type).rpartition(".")[2] for one in statements] != ["SELECT"]:
            raise ValueError(NOT_SELECT)
        return _fetched(connection.execute(query))

    def create(self, connection: Any, table: str, frame: Any) -> None:
        connection.register("predictions to write", frame)
        connection.execute(f'CREATE TABLE {table} AS SELECT * FROM "predictions to write"')


class PostgreSQL(Engine):
    """A server, read in one read-only transaction."""

    example = "postgresql://user@host/database?table=orders"
    catalogue = (
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN "
        "('r', 'v', 'm', 'p', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
    )
    key = (
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indisprimary AND i.indrelid = %s::regclass ORDER BY array_position(i.indkey::int[], a.attnum::int)"
    )
    settings = "SET synchronize_seqscans = off; SET max_parallel_workers_per_gather = 0; SET TIME ZONE 'UTC'"
    placeholder = "%s"

    def is_place(self, place: str) -> bool:
        return SERVER.fullmatch(place) is not None

    def errors(self) -> tuple[Errors, Errors]:
        import psycopg

        return (psycopg.Error,), (psycopg.OperationalError, psycopg.InterfaceError)

    def connect(self, place: str, writes: bool) -> Any:
        import psycopg

        server = SERVER.fullmatch(place)
        assert server is not None  # `is_place`
        given: dict[str, Any] = {name: value for name, value in server.groupdict().items() if value}
        connection = psycopg.connect(**given, connect_timeout=10, application_name="gcn-lpa")
        connection.read_only = not writes
        connection.execute(self.settings)
        return connection

    def rows(self, connection: Any, query: str) -> Rows:
        return _fetched(connection.execute(query, prepare=True))  # of several statements a prepared one is refused

    def order(self, connection: Any, table: str) -> str:
        key = [_quoted(name) for (name,) in connection.execute(self.key, [table])]
        return f" ORDER BY {', '.join(key)}" if key else ""


ENGINES: dict[str, Engine] = {"sqlite": Sqlite(), "duckdb": DuckDB(), "postgresql": PostgreSQL()}


def _written(cell: Any, kind: str) -> Any:
    return None if is_missing(cell) else str(cell) if kind == "TEXT" else cell


def _file(place: str, writes: bool) -> Path:
    path = Path(place.removeprefix("/"))
    if not (path.is_file() or (writes and not path.exists() and path.parent.is_dir())):
        raise ValueError(f"there is no database {path}")
    return path


def _fetched(cursor: Any) -> Rows:
    if cursor.description is None:
        raise ValueError(NOT_SELECT)
    return [column[0] for column in cursor.description], cursor.fetchall()


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def read_address(text: str, content: str) -> tuple[Table, list[str]]:
    """The table at an address, all cells text, and notes; `content` says what it holds, such as "edges"."""
    address = Address.of(text)
    engine = ENGINES[address.engine]
    with address.connected() as connection:
        query = address.what
        if address.kind == "table":
            table = ".".join(map(_quoted, _listed(address, connection)))
            query = f"SELECT * FROM {table}{engine.order(connection, table)}"
        names, rows = engine.rows(connection, query)
    columns = [list(map(_text, column)) for column in zip(*rows, strict=True)] or [[] for _ in names]
    unread = [name for name, cells in zip(names, columns, strict=True) if None in cells]
    notes = [f"columns {some(unread)} hold neither numbers, text, truths nor dates: left aside"] if unread else []
    cells_of = zip(names, columns, strict=True)
    kept = [(name, series(cells, text_type())) for name, cells in cells_of if name not in unread]
    title = address.what if address.kind == "table" else f"the query for {content}"
    path = Path(Path(address.place).stem or "graph", title.replace("/", "|"))
    return table_of(path, [name for name, _ in kept], [cells for _, cells in kept]), notes


def _listed(address: Address, connection: Any) -> tuple[str, str]:
    """The schema and name of a table that is there."""
    listed = _matches(address, connection)
    if not listed:
        _, rows = ENGINES[address.engine].rows(connection, ENGINES[address.engine].catalogue)
        names = sorted(name for _, name in rows)
        held = f"it has {some(names, 12)}{meant(address.what, names)}" if names else "it has none"
        raise ValueError(f"{address.database} has no table or view {address.what!r}; {held}")
    if len(listed) > 1:
        several = " or ".join(".".join(pair) for pair in listed)
        raise ValueError(f"{address.database} has several tables {address.what!r}; which one: {several}?")
    return listed[0]


def _matches(address: Address, connection: Any) -> list[tuple[str, str]]:
    _, rows = ENGINES[address.engine].rows(connection, ENGINES[address.engine].catalogue)
    return [(schema, name) for schema, name in rows if address.what in (name, f"{schema}.{name}")]


def _text(value: Any) -> str | None:
    """A cell as a CSV file has it, the same from every database; None for what no cell can hold."""
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (float, Decimal)):
        if not math.isfinite(value):
            return "" if math.isnan(value) else str(value)
        whole = int(value)
        if value == whole and abs(whole) < EXACT:
            return str(whole)
        return repr(value) if isinstance(value, float) else f"{value:f}"
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        return str(value.isoformat(" "))
    return str(value) if isinstance(value, (int, datetime.date, UUID)) else None


def check_new_table(address: str) -> None:
    """Refuse an address that `write_table` could not write: a query, a table that is there, a server that is not."""
    target = Address.of(address)
    if target.kind != "table":
        raise ValueError("predictions go to a table, not to a query: …?table=NAME")
    if target.engine != "postgresql" and not _file(target.place, True).exists():
        return
    with target.connected() as connection:
        if _matches(target, connection):
            raise ValueError(f"{target.database} has a table {target.what!r}, and none is replaced: name another")


def write_rows(address: str, frame: Any) -> None:
    """Write a DataFrame to a table that is made for it, entirely or not at all."""
    check_new_table(address)
    target = Address.of(address)
    parts: Sequence[str] = target.what.split(".", 1) if target.engine == "postgresql" else [target.what]
    with target.connected(writes=True) as connection:
        ENGINES[target.engine].create(connection, ".".join(map(_quoted, parts)), frame)
