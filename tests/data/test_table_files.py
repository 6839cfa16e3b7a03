"""Delimited files: pandas and the csv module read the same cells from whatever is written, or it is refused."""

import csv
import io
import itertools
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gcn_lpa.data import table as tables
from tests.helpers.text_tables import read_delimited

CELLS = ["a", "NA", "001", "ü", " ", "", '"', '""', '"x"', '"a,b"', '"q""r"', '"\r\n"']
PIECES = [*CELLS, ",", ",", "\n", "\n", "\r\n", "\r"]


def cells_by_the_csv_module(text, delimiter=","):
    """Rows with their numbers; None where they are not equally long or not readable."""
    try:
        rows = list(enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1))
    except csv.Error:
        return None
    rows = [(i, row) for i, row in rows if row]
    return rows if rows and len({len(row) for _, row in rows}) == 1 else None


def cells_by_us(path, delimiter=","):
    table = read_delimited(path, (), header=False, delimiter=delimiter)
    rows = zip(*table.columns.values(), strict=True)
    return list(zip(table.rows.tolist(), map(list, rows), strict=True))


@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), st.sampled_from([1, 3, 2**24]))
@example("a,b\n\n1,2\n", 2**24)
@example("\n\na,b\n1,2", 2**24)
@example("a\r\n  \r\n\r\n" + '""\r\n', 2**24)
@example('"a\nb",c\n"",""\n', 2)
@example('a,b\n\n1,2\n"x\ny",3\n4\n', 1)
@example('5" pipe,b\n', 2**24)
@example('a,b\n"1"2,3\n', 1)
def test_every_text_is_read_as_the_csv_module_reads_it(tmp_path_factory, text, at_once):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode())
    expected = cells_by_the_csv_module(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "AT_ONCE", at_once)
        if expected is None:
            with pytest.raises(ValueError, match=r"^any\.csv"):
                cells_by_us(path)
        else:
            assert cells_by_us(path) == expected


@pytest.mark.long
def test_every_short_text_is_read_as_the_csv_module_reads_it(tmp_path):
    """All texts of up to four of the characters that matter."""
    path, num_plain = tmp_path / "any.csv", 0
    for text in map("".join, itertools.chain(*(itertools.product('a",\n\r', repeat=k) for k in range(1, 5)))):
        num_plain += tables._plain_rows(text.encode(), ",")[1] > 0
        expected = cells_by_the_csv_module(text)
        if expected is not None:
            path.write_bytes(text.encode())
            assert cells_by_us(path) == expected, text
    assert num_plain > 100


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("a,b\n1,2\n", True),
        ('"a","b"\r\n1,"2,\n3"\r\n', True),
        ('"say ""hi""",b\n', True),
        ("\n\na,b\n\n", True),
        ("a,b\n1\n", False),
        ('a,b\n"1,2\n', False),
        ('a,5"\n', False),
        ('"a"b,c\n', False),
        ("\n", False),
        ("a,b\r1,2\r", False),
        ("a,b\r\n1,2", True),
        ("", False),
        ("a," + "b" * 200_000, False),
    ],
)
def test_which_files_pandas_reads(text, is_plain):
    _, width = tables._plain_rows(text.encode(), ",")
    assert bool(width) == is_plain


def test_a_table_has_at_most_20000_columns(tmp_path):
    for quote in ("", '"'):  # read by pandas, and by the csv module
        path = tmp_path / "wide.csv"
        path.write_text(",".join(f"c{k}" for k in range(20_001)) + f"\n{quote}1{quote}{quote and 'x'}" + ",1" * 20_000 + "\n")
        with pytest.raises(ValueError, match=r"wide\.csv has 20,001 columns; at most 20,000 are read"):
            read_delimited(path, ("id",))


def test_a_delimiter_of_two_bytes(tmp_path):
    (tmp_path / "a.csv").write_text("a§b\n1§2\n", encoding="utf-8")
    assert cells_by_us(tmp_path / "a.csv", "§") == [(1, ["a", "b"]), (2, ["1", "2"])]


def test_without_pyarrow_the_cells_are_the_same(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text('id,x\n001, 1.5\n"NA",-2e3\n,nan\n', encoding="utf-8")
    arrow = read_delimited(tmp_path / "a.csv", ())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert tables.text_type() is object
    plain = read_delimited(tmp_path / "a.csv", ())
    for name in ("id", "x"):
        assert plain.columns[name].tolist() == arrow.columns[name].tolist()
        assert tables.is_text(plain.columns[name])
    assert tables.numbers_in(plain.columns["x"])[:2].tolist() == [1.5, -2000]


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-0.5",
        " 2 ",
        "1e3",
        "+4",
        ".5",
        "5.",
        "inf",
        "nan",
        "",
        "1_000",
        "x",
        "0x1F",
        "1,5",
        "١",
        "1e400",
        "1e-400",
    ],
)
def test_a_number_is_what_python_calls_one_but_for_underscores(text):
    try:
        expected = float(text) if "_" not in text else float("nan")
    except ValueError:
        expected = float("nan")
    for dtype in (object, tables.text_type()):
        found = tables.numbers_in(tables.series([text, "1"], dtype))
        assert [repr(float(value)) for value in found] == [repr(expected), "1.0"]
