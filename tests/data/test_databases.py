"""Graphs from SQLite, DuckDB and PostgreSQL: the same bits as from files, nothing is changed, and no password is kept."""

import contextlib
import datetime
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import gcn_lpa
from gcn_lpa.cli.app import app, main
from gcn_lpa.data.checks import refuse_password
from gcn_lpa.data.databases import ENGINES, Address, check_new_table, read_address, write_rows
from gcn_lpa.data.datasets import load
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import predict_run, table_text
from gcn_lpa.runs.train_run import train_run

CLUB = Path(__file__).parents[2] / "examples" / "club"
SECRET = "hunter2-is-secret"
FILES = ("sqlite", "duckdb")


def filled(folder, engine, **tables):
    """A database in a file, with frames as its tables; gives the start of an address."""
    path = folder / f"shop.{engine}"
    if engine == "sqlite":
        with contextlib.closing(sqlite3.connect(path)) as database:
            for name, frame in tables.items():
                frame.to_sql(name, database, index=False)
    else:
        with pytest.importorskip("duckdb").connect(str(path)) as database:
            for name, frame in tables.items():
                database.register("frame", frame)
                database.execute('CREATE TABLE "{}" AS SELECT * FROM frame'.format(name.replace('"', '""')))
    return f"{engine}:///{path}"


def executed(place, statement):
    """Change a database behind the back of an address."""
    engine, _, path = place.partition(":///")
    connect = sqlite3.connect if engine == "sqlite" else __import__("duckdb").connect
    with contextlib.closing(connect(path)) as database:
        found = database.execute(statement).fetchall()
        database.commit()
        return found


def club():
    return (pandas.read_csv(CLUB / f"{name}.csv", dtype=str) for name in ("nodes", "edges"))


@pytest.fixture(params=FILES)
def shop(request, tmp_path):
    """Five people and their five gifts, in SQLite or DuckDB."""
    people = pandas.DataFrame({"id": [1, 2, 3, 4, 5], "label": ["x", None, "y", "x", None], "age": [20.5, 31, None, 4, 5]})
    gifts = pandas.DataFrame({"source": list("12341"), "target": [2, 3, 4, 5, 5], "weight": [1.0, 2.0, 0.5, 3.0, 1.0]})
    return filled(tmp_path, request.param, people=people, gifts=gifts)


def gifts_of(shop):
    return load(f"{shop}?table=gifts", nodes=f"{shop}?table=people")


def test_ids_are_numbers_in_one_table_and_text_in_another_and_null_is_an_unknown_label(shop):
    graph = gifts_of(shop)
    assert graph.node_names == ("1", "2", "3", "4", "5")
    assert graph.y.tolist() == [0, -1, 1, 0, -1]
    assert graph.num_edges == 5
    assert graph.x[:, 0].tolist() == pytest.approx([20.5, 31, 12.75, 4, 5])  # the median stands in


def test_a_view_and_a_query_are_read_like_a_table(shop):
    executed(shop, "CREATE VIEW strong AS SELECT * FROM gifts WHERE weight >= 1")
    by_view = load(f"{shop}?table=strong", nodes=f"{shop}?table=people")
    query = f"{shop}?query=SELECT * FROM gifts WHERE weight >= 1 AND source <> '?=&%'"
    by_query = load(query, nodes=f"{shop}?table=people")
    assert by_view.num_edges == by_query.num_edges == 4
    assert by_view.content_hash() == by_query.content_hash()


def test_what_is_wrong_is_said_with_the_table_the_row_and_the_value(shop):
    executed(shop, "UPDATE gifts SET weight = -1 WHERE target = 4")
    with pytest.raises(ValueError, match=r"gifts, row 3, column 'weight' is '-1'; a weight is a positive number"):
        gifts_of(shop)
    executed(shop, "DELETE FROM people WHERE id = 4")
    executed(shop, "UPDATE gifts SET weight = 1")
    with pytest.raises(ValueError, match=r"gifts, row 4, column 'source' is '4', which people does not list"):
        gifts_of(shop)


def test_a_column_of_the_wrong_type_is_refused_or_left_aside(tmp_path):
    gifts = pandas.DataFrame({"source": ["a"], "target": ["b"], "weight": ["much"], "photo": [b"\x00\xff"]})
    shop = filled(tmp_path, "sqlite", gifts=gifts)
    with pytest.raises(ValueError, match=r"gifts, row 1, column 'weight' is 'much'"):
        load(f"{shop}?table=gifts")
    graph = load(f"{shop}?table=gifts", weight="")
    assert any("'photo'" in note and "left aside" in note for note in graph.notes)


@pytest.mark.parametrize(
    "wanted",
    [
        "gifts; DROP TABLE gifts",
        'gifts"; DROP TABLE gifts; --',
        "gifts WHERE 1=0",
        "(SELECT * FROM people)",
        "sqlite_master",
    ],
)
def test_a_table_has_the_name_of_one_that_is_there(shop, wanted):
    with pytest.raises(ValueError, match=r"has no table or view .*; it has 'gifts', 'people'"):
        read_address(f"{shop}?table={wanted}", "edges")
    assert executed(shop, "SELECT count(*) FROM gifts") == [(5,)]


@pytest.mark.parametrize("engine", FILES)
def test_a_table_with_a_strange_name_is_read(tmp_path, engine):
    shop = filled(tmp_path, engine, **{'a"b; --': pandas.DataFrame({"id": ["n"]})})
    table, _ = read_address(f'{shop}?table=a"b; --', "nodes")
    assert table.columns["id"].tolist() == ["n"]


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE gifts",
        "INSERT INTO gifts VALUES ('1', 2, 1)",
        "SELECT * FROM gifts; DROP TABLE gifts",
        "ATTACH 'other.db' AS other",
        "PRAGMA user_version = 7",
        "COPY gifts TO 'gifts.csv'",
        "WITH gone AS (DELETE FROM gifts RETURNING *) SELECT * FROM gone",
        "",
    ],
)
def test_a_query_is_one_select_and_changes_nothing(shop, query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"one SELECT|one statement|syntax error|address of|Parser|read-only mode"):
        read_address(f"{shop}?query={query}", "edges")
    assert executed(shop, "SELECT count(*) FROM gifts") == [(5,)]
    assert sorted(tmp_path.iterdir()) == before


def test_a_query_of_duckdb_reads_no_variable_of_python(tmp_path):
    pytest.importorskip("duckdb")
    rows = pandas.DataFrame({"id": ["n"]})
    with pytest.raises(ValueError, match="rows does not exist"):
        read_address("duckdb:SELECT * FROM rows", "nodes")
    assert len(rows) == 1


@pytest.mark.parametrize("engine", FILES)
def test_cells_are_text_as_a_csv_file_has_them(tmp_path, engine):
    frame = pandas.DataFrame({"big": [2**53 + 1, -3], "half": [0.1, 1e300], "whole": [7.0, None], "text": ["NA", ""]})
    table, _ = read_address(f"{filled(tmp_path, engine, cells=frame)}?table=cells", "nodes")
    assert {name: cells.tolist() for name, cells in table.columns.items()} == {
        "big": ["9007199254740993", "-3"],
        "half": ["0.1", "1e+300"],
        "whole": ["7", ""],
        "text": ["NA", ""],
    }


def test_the_types_of_duckdb(tmp_path):
    pytest.importorskip("duckdb")
    query = (
        "SELECT 1.50::DECIMAL(8,2) a, 2.00::DECIMAL(8,2) b, true c, DATE '2024-02-29' d, TIMESTAMP '2024-02-29 12:30:00' e, "
        "TIMESTAMPTZ '2024-02-29 12:30:00+02' f, [1, 2] g, 'NaN'::DOUBLE h"
    )
    table, notes = read_address(f"duckdb:{query}", "nodes")
    assert {name: cells.tolist()[0] for name, cells in table.columns.items()} == {
        **{"a": "1.50", "b": "2", "c": "true", "d": "2024-02-29", "e": "2024-02-29 12:30:00"},
        **{"f": "2024-02-29 10:30:00", "h": ""},
    }
    assert notes == ["columns 'g' hold neither numbers, text, truths nor dates: left aside"]


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@host/shop?table=orders",
        f"postgresql://ann:{SECRET}/x@host/shop?table=orders",
        f"postgresql://host/shop?table=orders&password={SECRET}",
        f"duckdb:SELECT * FROM postgres_scan('host=h password={SECRET}', 'public', 'orders')",
        f"nodes=postgresql://ann:{SECRET}@host/shop?table=people",
        f"mysql://ann:{SECRET}@host/shop",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(text, monkeypatch, capfd):
    with pytest.raises(ValueError, match="holds a password; leave it out and set PGPASSWORD") as refused:
        refuse_password(text)
    assert SECRET not in str(refused.value)
    for start in (lambda: Source(text), lambda: Source("edges.csv", options={"nodes": text}), lambda: load(text)):
        with pytest.raises(ValueError, match="holds a password") as refused:
            start()
        assert SECRET not in str(refused.value)
    for words in (
        ["train", text],
        ["train", "cora", text],
        ["train", "--edges", text],
        [text],
        ["info", "cora", "-o", text],
    ):
        monkeypatch.setattr(sys, "argv", ["gcn-lpa", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = "".join(capfd.readouterr())
        assert "holds a password" in said
        assert SECRET not in said


@pytest.mark.parametrize(
    "text", ["postgresql://ann@host:5432/shop?query=SELECT ':@'", "sqlite:///a.db?table=b", "cora", "passwords.csv"]
)
def test_no_password_is_seen_where_there_is_none(text):
    refuse_password(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mysql://host/shop?table=orders", "'mysql' is no database that is read; there are sqlite, duckdb, postgresql"),
        ("sqlite://shop.db?table=orders", r"looks like sqlite:///shop.db\?table=orders"),
        ("sqlite:///shop.db", r"looks like sqlite:///shop.db\?table=orders"),
        ("postgresql://host?table=orders", r"looks like postgresql://user@host/database\?table=orders"),
        ("sqlite:///nowhere.db?table=orders", "there is no database nowhere.db"),
    ],
)
def test_an_address_that_is_none_is_refused_with_one(text, message):
    with pytest.raises(ValueError, match=message):
        load(text)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "a.db").write_text("id,label\n" * 200)
    for engine in FILES:
        with pytest.raises(ValueError, match=rf"{engine}:///"):
            read_address(f"{engine}:///{tmp_path}/a.db?table=a", "nodes")


@pytest.mark.parametrize(
    ("driver", "address"), [("duckdb", "duckdb:SELECT 1 AS id"), ("psycopg", "postgresql://host/shop?table=orders")]
)
def test_without_its_driver_a_database_says_what_to_install(driver, address, monkeypatch):
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ImportError, match=rf"needs {driver}: pip install 'gcn-lpa\[sql\]'"):
        read_address(address, "nodes")


def test_predictions_go_to_a_new_table_with_their_types(tmp_path, shop):
    cells = {"id": ["a", "b"], "label": ["x", None], "probability": [0.25, 1.0], "hops": [1, 2], "sure": [False, True]}
    frame = pandas.DataFrame(cells)
    write_rows(f"{shop}?table=my labels", frame)
    assert executed(shop, 'SELECT * FROM "my labels"') == [("a", "x", 0.25, 1, False), ("b", None, 1.0, 2, True)]
    for name in ("my labels", "gifts"):
        with pytest.raises(ValueError, match=rf"has a table '{name}', and none is replaced"):
            check_new_table(f"{shop}?table={name}")
    with pytest.raises(ValueError, match="to a table, not to a query"):
        check_new_table(f"{shop}?query=SELECT 1")
    engine = shop.partition(":")[0]
    write_rows(f"{engine}:///{tmp_path}/new.db?table=labels", frame)  # a database that was not there
    assert read_address(f"{engine}:///{tmp_path}/new.db?table=labels", "labels")[0].columns["id"].tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="there is no database"):
        check_new_table(f"{engine}:///{tmp_path}/nowhere/new.db?table=labels")


def test_a_table_is_written_entirely_or_not_at_all(tmp_path):
    shop = filled(tmp_path, "sqlite", gifts=pandas.DataFrame({"id": ["a"]}))
    frame = pandas.DataFrame({"id": ["a", "b\ud800"]}, dtype=object)  # half a character, which no file holds
    with pytest.raises(ValueError, match="surrogates"):
        write_rows(f"{shop}?table=found", frame)
    check_new_table(f"{shop}?table=found")


def trained_bits(source, folder):
    """The predictions of a short training from a source, after the run was loaded again; and the folder's bytes."""
    plan, graph = make_plan(source, changes={"epochs": 3})
    train_run(plan, graph, folder)
    table = table_text(predict_run(gcn_lpa.load_run(folder), every=True))
    return graph, table, b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.long
@pytest.mark.parametrize("engine", FILES)
def test_the_club_is_the_same_bits_from_a_database_and_from_files(tmp_path, engine):
    nodes, edges = club()
    shop = filled(tmp_path, engine, nodes=nodes, edges=edges)
    files, table, _ = trained_bits(Source(str(CLUB), options={"label": "club"}), tmp_path / "files")
    options = {"nodes": f"{shop}?table=nodes", "label": "club"}
    graph, same, _ = trained_bits(Source(f"{shop}?table=edges", options=options), tmp_path / "run")
    assert graph.content_hash(64) == files.content_hash(64)
    assert same == table
    moved = tmp_path / "moved.db"
    Path(shop.partition(":///")[2]).rename(moved)
    with pytest.raises(ValueError, match=r"there is no database .*say where it is with --data"):
        gcn_lpa.load_run(tmp_path / "run")
    for data in (f"{engine}:///{moved}", CLUB):  # the database elsewhere; or the same graph as files
        assert table_text(predict_run(gcn_lpa.load_run(tmp_path / "run", data), every=True)) == table


@pytest.mark.long
def test_the_command_line_reads_tables_and_writes_one(tmp_path, monkeypatch):
    nodes, edges = club()
    shop, run = filled(tmp_path, "sqlite", nodes=nodes, edges=edges), str(tmp_path / "run")

    def command(*words):
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.stdout + done.stderr

    tables = ["--nodes", f"{shop}?table=nodes", "--edges", f"{shop}?table=edges"]
    assert command("train", *tables, "-o", "label=club", "--epochs", "2", "--out", run)[0] == 0
    assert "34 nodes, 78" in command("info", f"{shop}?table=edges", "-o", f"nodes={shop}?table=nodes")[1]
    assert command("predict", run, "--out", f"{shop}?table=found")[0] == 0
    assert executed(shop, "SELECT count(*), min(status) FROM found") == [(28, "reached")]
    code, said = command("predict", run, "--out", f"{shop}?table=found")
    assert (code, "has a table 'found', and none is replaced" in " ".join(said.split())) == (1, True)
    assert command("predict", run, "--out", str(tmp_path / "found.parquet"))[0] == 0
    assert len(pandas.read_parquet(tmp_path / "found.parquet")) == 28
    assert command("predict", run, "--on", f"{shop}?table=edges", "-o", f"nodes={shop}?table=nodes")[0] == 0
    for words, right in (
        (["--nodes", f"{shop}?table=nodes"], "--edges names that of edges"),
        (["cora", "--edges", "friends.csv"], "give one of them"),
    ):
        code, said = command("train", *words)
        assert code == 2
        assert right in " ".join(said.replace("│", " ").split())


# PostgreSQL


class Server:
    """A cluster of its own in a folder, with a reader who may read and nothing else, and needs a password."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        user = "postgres" if os.geteuid() == 0 else None  # the server refuses to be started by root
        if user:
            shutil.chown(folder, user)
        (folder / "first").write_text(SECRET)
        (folder / "first").chmod(0o644)
        self.options = {"user": user, "cwd": folder, "check": True, "stdout": subprocess.DEVNULL}
        self.owner = user or os.environ.get("USER", "postgres")
        for words in (
            ["initdb", "-D", "data", "-U", self.owner, "-A", "scram-sha-256", "--pwfile", "first", "-N"],
            ["pg_ctl", "-D", "data", "-w", "-l", str(self.log), "-o", self.settings, "start"],
        ):
            subprocess.run(words, **self.options)

    @property
    def settings(self):
        return f"-p {self.port} -h 127.0.0.1 -k '' -F"

    def control(self, *words):
        subprocess.run(["pg_ctl", "-D", "data", "-w", "-m", "immediate", *words], **self.options)

    def address(self, what, user="reader"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres?{what}"


@pytest.fixture(scope="module")
def server():
    psycopg = pytest.importorskip("psycopg")
    if shutil.which("pg_ctl") is None or shutil.which("initdb") is None:
        pytest.skip("there is no PostgreSQL here: no pg_ctl and initdb")
    with tempfile.TemporaryDirectory(prefix="postgres-") as place:
        running = Server(Path(place))
        try:
            owner = {"host": "127.0.0.1", "port": running.port, "user": running.owner, "password": SECRET}
            with psycopg.connect(**owner, dbname="postgres", autocommit=True) as connection:
                for statement in SETUP.split(";\n"):
                    connection.execute(statement)
                nodes, edges = club()
                insert = connection.cursor().executemany
                insert(
                    "INSERT INTO members VALUES (%s, %s)",
                    [[i, None if c != c else c] for i, c in nodes.to_numpy().tolist()],
                )
                insert("INSERT INTO ties VALUES (%s, %s)", edges.to_numpy().tolist())
            yield running
        finally:
            running.control("stop")


SETUP = f"""CREATE TABLE members (id text PRIMARY KEY, club text);
CREATE TABLE ties (source text, target text);
CREATE SCHEMA sales;
CREATE TABLE sales.ties AS SELECT 1 AS source, '2' AS target;
CREATE TABLE sales.wide (id int, amount numeric(8, 2), paid boolean, at timestamptz, note jsonb);
INSERT INTO sales.wide VALUES (1, 1.50, true, '2024-02-29 12:30:00+02', '[1]');
CREATE ROLE reader LOGIN PASSWORD '{SECRET}';
GRANT USAGE ON SCHEMA sales TO reader;
GRANT SELECT ON ALL TABLES IN SCHEMA public, sales TO reader;
CREATE TABLE hidden (id text);
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader"""


@pytest.fixture
def password(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", SECRET)


@pytest.mark.slow
def test_the_club_from_postgresql_is_the_same_bits_and_no_password_is_kept(server, password, tmp_path, capfd):
    files, table, _ = trained_bits(Source(str(CLUB), options={"label": "club"}), tmp_path / "files")
    options = {"nodes": server.address("table=members"), "label": "club"}
    source = Source(server.address("table=public.ties"), options=options)
    graph, same, kept = trained_bits(source, tmp_path / "run")
    assert graph.content_hash(64) == files.content_hash(64)
    assert same == table
    assert SECRET.encode() not in kept
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_read_only_user_suffices_and_can_change_nothing(server, password, monkeypatch):
    assert len(read_address(server.address("table=members"), "nodes")[0].rows) == 34
    for user in ("reader", server.owner):  # whatever the user may do
        for query in (
            "DELETE FROM ties",
            "WITH gone AS (DELETE FROM ties RETURNING *) SELECT * FROM gone",
            "SELECT * FROM ties; COMMIT; DELETE FROM ties",
            "COMMIT",
            "SELECT set_config('transaction_read_only', 'off', false), lo_create(7)",
            "COPY ties TO STDOUT",
        ):
            with pytest.raises((ValueError, ConnectionError)):
                read_address(server.address(f"query={query}", user), "edges")
    assert len(read_address(server.address("table=public.ties"), "edges")[0].rows) == 78
    with pytest.raises(ValueError, match="permission denied for table hidden"):
        read_address(server.address("table=hidden"), "nodes")
    with pytest.raises(ValueError, match=r"permission denied|read-only"):
        write_rows(server.address("table=labels"), pandas.DataFrame({"id": ["a"]}))


@pytest.mark.slow
def test_names_types_and_mistakes_of_postgresql(server, password, monkeypatch):
    with pytest.raises(ValueError, match=r"several tables 'ties'; which one: (public|sales)\.ties or (public|sales)\.ties"):
        read_address(server.address("table=ties"), "edges")
    assert read_address(server.address("table=sales.ties"), "edges")[0].columns["source"].tolist() == ["1"]
    with pytest.raises(ValueError, match="has no table or view 'members; DROP TABLE ties'"):
        read_address(server.address("table=members; DROP TABLE ties"), "edges")
    table, notes = read_address(server.address("table=sales.wide"), "nodes")
    assert {name: cells.tolist() for name, cells in table.columns.items()} == {
        **{"id": ["1"], "amount": ["1.50"], "paid": ["true"], "at": ["2024-02-29 10:30:00"]}
    }
    assert "'note'" in notes[0]
    write_rows(
        server.address("table=sales.labels", server.owner),
        pandas.DataFrame({"id": [7, "a"], "p": [0.5, None], "sure": True}),
    )
    assert read_address(server.address("table=sales.labels", server.owner), "x")[0].columns["p"].tolist() == ["0.5", ""]
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(ConnectionError, match="password authentication failed") as refused:
        read_address(server.address("table=members"), "nodes")
    assert SECRET not in str(refused.value)


@pytest.mark.slow
def test_a_connection_that_is_lost_is_an_error_with_the_way_on(server, password):
    address = server.address("query=SELECT pg_terminate_backend(pg_backend_pid())", server.owner)
    with pytest.raises(ConnectionError, match=r"postgresql://.*; nothing was written, so run it again"):
        read_address(address, "edges")
    server.control("-l", str(server.log), "-o", server.settings, "restart")
    assert len(read_address(server.address("table=members"), "nodes")[0].rows) == 34
    gone = server.address("table=members").replace(f":{server.port}/", ":1/")
    with pytest.raises(ConnectionError, match="refused"):
        read_address(gone, "nodes")


def test_every_engine_has_an_example_that_is_an_address():
    for name, engine in ENGINES.items():
        assert Address.of(engine.example).engine == name
        assert Address.of(engine.example).what == "orders"


def test_a_decimal_that_no_float_holds(monkeypatch):
    from gcn_lpa.data.databases import _text

    assert [_text(Decimal(text)) for text in ("1E+2", "0.10", "NaN", "12345678901234567890.5")] == [
        *("100", "0.10", "", "12345678901234567890.5")
    ]
    assert _text(datetime.datetime(2024, 1, 1)) == "2024-01-01 00:00:00"


def test_frames_of_other_kinds_are_read_and_what_is_none_is_named():
    class Odd:
        columns = ("id",)

    with pytest.raises(TypeError, match=r"the frame of edges is a .*Odd; a frame is one of pandas or polars"):
        read_csv(None, Odd())
