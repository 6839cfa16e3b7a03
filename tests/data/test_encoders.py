"""Columns of every kind: what is made of each, by hand or by scikit-learn; kept as JSON and applied to other tables."""

import dataclasses
import datetime
import decimal
import json
import math
import re
import subprocess
import sys

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import OneHotEncoder

from gcn_lpa.data import encoders
from gcn_lpa.data.checks import WARNING
from gcn_lpa.data.column_types import Cells, NumberStyle, days_in
from gcn_lpa.data.datasets import load
from gcn_lpa.data.encoders import Columns, learn_columns
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.data.scaling import Block
from gcn_lpa.data.table import Table, series, text_type
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.learning.learn import learn
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import Recipe
from gcn_lpa.trained import Trained
from tests.helpers.mixed_tables import MIXED, mixed_rows, write_mixed


def table_of(tmp_path, **columns):
    cells = {name: series(list(values), text_type()) for name, values in columns.items()}
    n = len(next(iter(cells.values())))
    return Table(tmp_path / "nodes.csv", cells, range(2, n + 2))


def dense(x):
    return x.toarray() if scipy.sparse.issparse(x) else x


@pytest.fixture
def read(tmp_path):
    """What is made of one column: its encoder, its features and the notes."""

    def read(*cells, texts=()):
        columns, encoded = learn_columns(table_of(tmp_path, c=cells), ["c"], texts)
        return columns.encoders[0], None if encoded.x is None else dense(encoded.x), encoded.warnings

    return read


CALENDAR = ["2024-01-31", "2023-12-01", "2024-01-31"]
KINDS = {
    "whole numbers": (["1", "2", "30"], "number"),
    "0 and 1": (["0", "1", "1"], "number"),
    "exponents": (["1e3", "-2.5E-2", "+7"], "number"),
    "blanks around numbers": ([" 1", "2 ", " 3 "], "number"),
    "thousands": (["1,234.5", "12", "1,000,000"], "number"),
    "percent": (["12 %", "7%", "0.5 %"], "number"),
    "money": (["$3.20", "-$1,000", "$-4"], "number"),
    "money behind": (["3,20 €", "1.000 €", "7 €"], "number"),
    "decimal comma": (["1,5", "2", "1.234,25"], "number"),
    "missing numbers": (["1", "NA", "?", "-", "null", "n/a", "2"], "number"),
    "a few that are none": (["1", "2", "3", "4", "old"], "number"),
    "two units": (["$3", "3 €", "$3", "3 €", "$3"], "category"),
    "yes and no": (["yes", "no", "Yes", "NO"], "boolean"),
    "true and false": (["True", "False", "NA"], "boolean"),
    "yes alone": (["yes", "yes", "yes"], "left out"),
    "a mark or none": (["x", "", "", "x"], "category"),
    "categories": (["red", "blue", "red", "blue", "green", "red"], "category"),
    "categories with spaces": (["dark red", "light blue"] * 4, "category"),
    "text": (["a long text", "another one", "words and words", "the end"], "text"),
    "ids": (["u1", "u2", "u3", "u4"], "left out"),
    "uuids": (["0a1b2c3d-0000-4000-8000-00000000000" + str(k) for k in range(4)], "left out"),
    "nearly all different": (["u1", "u2", "u3", "u4", "u4"], "left out"),
    "numbers and words": (["1", "2", "3", "old"], "left out"),
    "empty": (["", "", ""], "left out"),
    "ISO": (CALENDAR, "date"),
    "ISO with time": (
        ["2024-01-31T12:30:00", "2024-02-01 06:00", "2024-02-01T06:00:00Z", "2024-02-01T06:00+02:00"],
        "date",
    ),
    "slashes, year first": (["2024/01/31", "2024/02/01"], "date"),
    "points": (["31.01.2024", "1.2.2024"], "date"),
    "day first": (["31/01/2024", "01/02/2024"], "date"),
    "month first": (["01/31/2024", "02/01/2024"], "date"),
    "day or month first": (["01/02/2024", "03/04/2024"], "left out"),
    "named months": (["31 Jan 2024", "1 Feb 2024"], "date"),
    "months in full": (["January 31, 2024", "February 1, 2024"], "date"),
    "with minutes": (["31.01.2024 12:30", "01.02.2024 06:00"], "date"),
    "months": (["2024-01", "2024-02"], "date"),
    "no such day": (["2024-02-31", "2024-02-30"], "left out"),
    "year 0": (["0000-01-01", "0000-01-02"], "left out"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_column_is_found(read, name):
    cells, kind = KINDS[name]
    encoder, x, _ = read(*cells)
    assert encoder.kind == kind
    assert encoder.num_features == (0 if x is None else x.shape[1])
    assert x is None or np.isfinite(x).all()


@pytest.mark.parametrize(
    ("text", "style", "value"),
    [
        ("1,234.5", NumberStyle(), 1234.5),
        ("1,5", NumberStyle(), math.nan),
        ("1.234,5", NumberStyle(decimal=","), 1234.5),
        ("1.5", NumberStyle(decimal=","), math.nan),
        ("-12 %", NumberStyle("%"), -12.0),
        ("12", NumberStyle("%"), math.nan),
        ("-$1,000.25", NumberStyle("$"), -1000.25),
        ("$-3", NumberStyle("$"), -3.0),
        ("€ 3,20", NumberStyle("€", ","), 3.2),
        ("$", NumberStyle("$"), math.nan),
        ("1,2,3", NumberStyle(), math.nan),
        ("1_000", NumberStyle(), math.nan),
    ],
)
def test_a_number_is_read_in_its_style(text, style, value):
    assert style.value(text) == pytest.approx(value, nan_ok=True)


@given(st.floats(-1e9, 1e9))
def test_numbers_with_thousands_read_as_python_writes_them(value):
    assert NumberStyle().value(f"{value:,.3f}") == float(f"{value:.3f}")
    assert NumberStyle("$").value(f"${value:,.3f}") == float(f"{value:.3f}")


def test_missing_numbers_are_the_median_with_an_indicator(read):
    encoder, x, notes = read("1", "", "7", "NA", "3")
    assert x.tolist() == [[1, 0], [3, 1], [7, 0], [3, 1], [3, 0]]
    assert (encoder.missing, notes) == (2, [])


def test_a_few_cells_that_are_no_numbers_are_missing_and_said(read):
    _, x, notes = read("1", "2", "3", "4", "old", "5", "6", "7", "8", "9", "old")
    assert x[:, 1].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert notes == [f"{WARNING}nodes.csv, row 6, column 'c' is 'old', no number, and 1 more like it, read as missing"]


def test_booleans_are_one_and_zero(read):
    assert read("no", "Yes", "", "yes")[1].tolist() == [[0, 0], [1, 0], [0.5, 1], [1, 0]]


def test_categories_are_those_of_scikit_learn(read):
    cells = ["red", "blue", "red", "blue", "green", "red", "blue"]
    expected = OneHotEncoder(sparse_output=False).fit_transform(np.array(cells)[:, None])
    assert read(*cells)[1].tolist() == expected.tolist()  # both in the order of the alphabet
    assert read("red", "", "blue", "red", "blue")[1].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_the_most_frequent_fifty_categories_are_kept(read):
    cells = [f"c{k:02d}" for k in range(60) for _ in range(2 + (k >= 15))]  # the first 15 are rarer
    encoder, x, _ = read(*cells)
    kept = [f"c{k:02d}" for k in (*range(5), *range(15, 60))]
    assert encoder.values == tuple(kept) and x.shape[1] == 51
    is_other = np.array([cell not in kept for cell in cells])
    assert x[:, 50].tolist() == is_other.tolist() and (x.sum(axis=1) == 1).all()


def test_dates_are_days_and_circles_where_they_vary(read):
    days = np.array([(pandas.Timestamp(text) - pandas.Timestamp(1970, 1, 1)).days for text in CALENDAR])
    encoder, x, _ = read(*CALENDAR)
    assert encoder.cycles == ("month", "weekday")
    np.testing.assert_allclose(x[:, 0], (days - days.mean()) / days.std())
    month, weekday = 2 * np.pi * np.array([0, 11, 0]) / 12, 2 * np.pi * np.array([2, 4, 2]) / 7  # Wednesday, Friday
    np.testing.assert_allclose(x[:, 1:3], np.stack([np.sin(month), np.cos(month)], axis=1), atol=1e-12)
    np.testing.assert_allclose(x[:, 3:5], np.stack([np.sin(weekday), np.cos(weekday)], axis=1), atol=1e-12)
    encoder, x, _ = read("2024-01-01 06:00", "2024-01-01 18:00", "", "2024-01-01 06:00")
    assert encoder.cycles == ("hour",)
    np.testing.assert_allclose(x[:, 1:], [[1, 0, 0], [-1, 0, 0], [0, 0, 1], [1, 0, 0]], atol=1e-12)


@given(st.datetimes(), st.sampled_from(["%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M:%S", "%B %d, %Y", "%Y/%m/%d"]))
def test_a_date_is_as_many_days_after_1970_as_numpy_counts(moment, form):
    moment = moment.replace(year=max(1000, moment.year))  # strftime writes fewer digits of earlier ones
    text = moment.strftime(form)
    seen = moment.strptime(text, form)
    (found,) = days_in([text], "ISO 8601" if form.startswith("%Y-") else form)
    assert found == pytest.approx((np.datetime64(seen) - np.datetime64("1970-01-01")) / np.timedelta64(1, "D"))


TEXTS = ["Graphs and labels", "labels, labels; LABELS!", "", "Größe 42 im_Graph x", "graphs", "and the rest of it"]


def test_text_is_the_tfidf_of_scikit_learn(read):
    words = TfidfVectorizer()
    expected = words.fit_transform(TEXTS)
    encoder, x, _ = read(*TEXTS, texts=["c"])
    assert list(encoder.terms) == list(words.get_feature_names_out())
    np.testing.assert_allclose(x, expected.toarray(), rtol=1e-7)


@given(st.lists(st.text("ab ,.é1_", max_size=12), min_size=1, max_size=8))
def test_any_text_is_the_tfidf_of_scikit_learn(tmp_path_factory, texts):
    words = TfidfVectorizer()
    table = table_of(tmp_path_factory.getbasetemp(), c=texts)
    try:
        expected = words.fit_transform(texts).toarray()
    except ValueError:
        with pytest.raises(ValueError, match="column 'c' has no words to make features of"):
            learn_columns(table, ["c"], ["c"])
    else:
        np.testing.assert_allclose(learn_columns(table, ["c"], ["c"])[1].x.toarray(), expected, rtol=1e-7)


def test_the_most_frequent_words_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "MOST_TERMS", 2)
    texts = ["aa aa aa bb", "bb bb cc cc", "cc dd", "aa aa bb bb"]
    words = TfidfVectorizer(max_features=2)
    expected = words.fit_transform(texts).toarray()
    columns, encoded = learn_columns(table_of(tmp_path, c=texts), ["c"], ["c"])
    assert columns.encoders[0].terms == ("aa", "bb") == tuple(words.get_feature_names_out())
    np.testing.assert_allclose(encoded.x.toarray(), expected, rtol=1e-7)


def test_columns_of_counts_are_one_sparse_block_as_they_are(tmp_path):
    counts = np.random.default_rng(0).poisson(0.2, (30, 25))
    columns = {f"w{k}": map(str, counts[:, k]) for k in range(25)}
    ages = [str(20 + i) for i in range(30)]
    found, encoded = learn_columns(table_of(tmp_path, age=ages, **columns), ["age", *columns])
    assert encoded.blocks == (Block("numbers", "numbers", 0, 1), Block("w0 … w24", "words", 1, 26))
    assert scipy.sparse.issparse(encoded.x)
    assert encoded.x.toarray().tolist() == np.column_stack([np.arange(20, 50), counts]).tolist()
    few = learn_columns(table_of(tmp_path, **{f"w{k}": map(str, counts[:, k]) for k in range(19)}), list(columns)[:19])
    assert few[1].blocks == (Block("numbers", "numbers", 0, 19),) and isinstance(few[1].x, np.ndarray)
    assert [one.kind for one in found.summaries()] == ["number", "words"]


def test_plain_numbers_stay_raw_in_their_order(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,b,a\nx,1,1e30\ny,-2,0.5\n")
    (tmp_path / "edges.csv").write_text("source,target\nx,y\n")
    graph = load(tmp_path)
    assert graph.x.tolist() == [[1, torch.tensor(1e30).item()], [-2, 0.5]]
    assert graph.blocks == (Block("numbers", "numbers", 0, 2),)


@pytest.fixture
def mixed(tmp_path):
    return write_mixed(tmp_path / "mixed", mixed_rows(60))


MADE = {
    **{"age": "number", "income": "number", "fee": "number", "share": "number", "joined": "date", "plan": "category"},
    **{"active": "boolean", "bio": "text", "email": "left out"},
}


def test_every_column_of_a_mixed_table_is_read(mixed):
    graph = load(mixed)
    assert {one.name: one.kind for one in graph.columns.summaries()} == MADE
    assert [(block.name, block.kind) for block in graph.blocks] == [
        ("numbers", "numbers"),
        ("table", "table"),
        ("bio", "words"),
    ]
    assert graph.columns.num_features == graph.num_features == graph.blocks[-1].stop
    assert isinstance(graph.x, SparseMatrix)
    assert [note for note in graph.notes if note.startswith(WARNING)] == [
        f"{WARNING}column 'email' is left out: its cells are nearly all different, like an id; option text=… reads it as words"
    ]


def test_rows_in_another_order_give_the_same_features_in_that_order(tmp_path):
    rows = list(mixed_rows(60))
    order = np.random.default_rng(1).permutation(60)
    one = load(write_mixed(tmp_path / "one", rows))
    other = load(write_mixed(tmp_path / "other", [rows[i] for i in order]))
    np.testing.assert_allclose(other.x.to_dense(), one.x.to_dense()[order], rtol=1e-6, atol=1e-6)


def test_columns_in_another_order_are_the_same_features_when_applied(tmp_path, mixed):
    graph = load(mixed)
    order = [0, 1, *range(len(MIXED) - 1, 1, -1)]
    rows = [[row[i] for i in order] for row in mixed_rows(60)]
    other = load(write_mixed(tmp_path / "other", rows, [MIXED[i] for i in order]), columns=graph.columns)
    assert other.content_hash() == graph.content_hash()


def test_what_was_learned_comes_back_from_json_and_gives_the_same_bits(mixed):
    graph = load(mixed)
    again = Columns.from_json(json.loads(json.dumps(graph.columns.to_json())))
    assert again == graph.columns
    assert load(mixed, columns=again).content_hash() == graph.content_hash()


def test_another_table_gets_the_features_that_were_learned(tmp_path, mixed):
    columns = load(mixed).columns
    row = dict(zip(MIXED, next(mixed_rows(1)), strict=True))
    new = {**row, "id": "new", "age": "?", "plan": "gold", "joined": "", "bio": "unheard of money", "fee": "$7"}
    path = write_mixed(tmp_path / "other", [list(row.values()), list(new.values())])
    graph = load(path, columns=columns)
    numbers, table, words = (graph.x.to_dense().numpy()[:, block.start : block.stop] for block in graph.blocks)
    by_name = {encoder.name: encoder for encoder in columns.encoders}
    assert numbers[1].tolist() == pytest.approx([by_name["age"].median, numbers[0, 1], 7, numbers[0, 3]])
    plan = table[:, -5:-1]  # free, pro, team, missing; before active
    assert plan[1].tolist() == [0, 0, 0, 0] and plan[0].sum() == 1
    assert words[1].nonzero()[0].tolist() == [by_name["bio"].terms.index("money")]


def test_cells_of_another_table_that_no_feature_says_are_noted(tmp_path, mixed):
    columns = load(mixed).columns
    rows = [dict(zip(MIXED, row, strict=True)) for row in mixed_rows(80)]
    usual = load(write_mixed(tmp_path / "usual", [list(row.values()) for row in rows]), columns=columns)
    assert [note for note in usual.notes if note.startswith(WARNING)] == []
    rows[1]["age"], rows[2]["plan"], rows[3]["plan"], rows[4]["joined"] = "old", "gold", "silver", "soon"
    rows[5]["active"] = "perhaps"
    odd = load(write_mixed(tmp_path / "odd", [list(row.values()) for row in rows]), columns=columns)
    found = sorted(note.removeprefix(WARNING) for note in odd.notes if note.startswith(WARNING))
    age, plan, joined, active = found
    assert age == "nodes.csv, row 3, column 'age' is 'old', no number, read as missing"
    assert plan == (
        "nodes.csv, row 4, column 'plan' is 'gold', a value that was not there when it was learned, and 1 more like it, "
        "read as none of those"
    )
    assert joined == "nodes.csv, row 6, column 'joined' is 'soon', no date written as ISO 8601, read as missing"
    assert re.fullmatch(r"nodes.csv, row 7, column 'active' is 'perhaps', neither \w+ nor \w+, read as missing", active)


def test_a_column_that_another_table_lacks_is_named(tmp_path, mixed):
    columns = load(mixed).columns
    path = write_mixed(tmp_path / "other", [row[:-2] for row in mixed_rows(3)], MIXED[:-2])
    with pytest.raises(ValueError, match=r"nodes\.csv has no column 'bio', which was learned as a feature; it has 'id'"):
        load(path, columns=columns)
    rows = [(*row[:2], "old", *row[3:]) for row in mixed_rows(3)]
    with pytest.raises(ValueError, match=r"nodes\.csv, row 2, column 'age' is 'old'; the column was learned as numbers"):
        load(write_mixed(tmp_path / "third", rows), columns=columns)
    with pytest.raises(ValueError, match="leave features= and text= out"):
        load(mixed, columns=columns, text="bio")
    with pytest.raises(ValueError, match=r"there is no file of nodes, such as nodes\.csv"):
        read_csv(None, mixed / "edges.csv", columns=columns)


def test_a_trained_model_keeps_its_columns_and_refuses_others(tmp_path, mixed):
    graph = load(mixed)
    nodes = graph.labeled.nonzero().squeeze(1)
    recipe = Recipe(features="auto", structure=True, epochs=2, hidden=4)
    trained = learn(graph, nodes[::2], nodes[1::2], recipe, device="cpu")
    trained.save_pretrained(tmp_path / "run")
    again = Trained.from_pretrained(tmp_path / "run")
    assert again.columns == graph.columns
    other = write_mixed(tmp_path / "other", mixed_rows(60, seed=5))
    read = load(other, columns=again.columns)
    assert torch.equal(predict_proba(again, read), predict_proba(trained, read))
    wrong = dataclasses.replace(load(other), x=read.x)  # as many columns by chance
    with pytest.raises(ValueError, match=r"read it with columns=trained\.columns"):
        predict_proba(again, wrong)


@pytest.mark.long
def test_applying_needs_no_scikit_learn(mixed):
    code = (
        "import sys\nfrom gcn_lpa.data.datasets import load\n"
        f"graph = load({str(mixed)!r})\nload({str(mixed)!r}, columns=graph.columns)\n"
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_columns_can_be_named_and_several_be_text(tmp_path, mixed):
    graph = load(mixed, features="age,plan", text="bio,email")
    assert [(one.name, one.kind) for one in graph.columns.summaries()] == [
        ("age", "number"),
        ("plan", "category"),
        ("bio", "text"),
        ("email", "text"),
    ]
    assert load(mixed, text=["email"]).columns.summaries()[-1].kind == "text"


@pytest.mark.parametrize("kind", ["floats", "dates", "booleans", "decimals"])
def test_parquet_cells_are_read_by_what_they_are(tmp_path, kind):
    pytest.importorskip("pyarrow")
    cells = {
        "floats": ([0.5, None, 2.5], "number", 1),
        "dates": ([datetime.date(2024, 1, 31), None, datetime.date(2024, 2, 1)], "date", 1),
        "booleans": ([True, None, False], "boolean", 1),
        "decimals": ([decimal.Decimal("1.5"), decimal.Decimal("2"), None], "number", 1),
    }
    values, expected, missing = cells[kind]
    pandas.DataFrame({"id": ["a", "b", "c"], "c": values}).to_parquet(tmp_path / "nodes.parquet")
    summary = read_csv(tmp_path / "nodes.parquet", None).columns.summaries()[0]
    assert (summary.kind, summary.missing) == (expected, missing)


def test_a_column_of_lists_is_left_out(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"id": ["a", "b"], "age": [1, 2], "vector": [[1.0, 2.0], [3.0]]})
    frame.to_parquet(tmp_path / "nodes.parquet")
    graph = read_csv(tmp_path / "nodes.parquet", None)
    assert graph.x.tolist() == [[1], [2]]
    assert f"{WARNING}column 'vector' is left out: its cells are lists" in graph.notes


HOSTILE = {
    "huge": (["1", "2", "1e400"], r"row 4, column 'c' is '1e400'; a feature is a finite number"),
    "beyond 32 bits": (["1e39", "2", "3"], r"row 2, column 'c' is '1e39'; a feature is a finite number"),
    "huge with commas": (["1,5", "9" * 400 + ",5", "2"], r"row 3, column 'c' is '9+; a feature is a finite number"),
    "infinite": (["1", "2", "-inf"], r"row 4, column 'c' is '-inf'; a feature is a finite number"),
    "many digits": (["9" * 5_000, "1", "2"], r"row 2, column 'c' is '9+…?"),
    "long cells": (["a " * 50_000, "b " * 50_000, "c d"], None),
    "control characters": (["\x01 \x02", "\x1b[31m red", "\x7f x"], None),
    "other digits": (["١", "٢", "٣"], None),
    "far dates": (["9999-12-31", "0001-01-01", "2024-01-01"], None),
    "beyond dates": (["10000-01-01", "2024-13-01", "-2024-01-01"], None),
    "a zone far away": (["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2024-01-01T00:00:00Z"], None),
    "lines": (["a\nb", "c\r\nd e", "f\ng"], None),
    "quotes": (['"', "'", "`"], None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cells_give_a_defined_result_or_an_error_with_their_place(read, name):
    cells, problem = HOSTILE[name]
    if problem is None:
        encoder, x, _ = read(*cells)
        assert (x is None) == (encoder.num_features == 0) and (x is None or np.isfinite(x).all())
    else:
        with pytest.raises(ValueError, match=problem):
            read(*cells)


@pytest.mark.long
@given(st.lists(st.text(max_size=8), min_size=1, max_size=12))
def test_any_cells_give_finite_features_or_an_error(tmp_path_factory, cells):
    table = table_of(tmp_path_factory.getbasetemp(), c=cells)
    try:
        columns, encoded = learn_columns(table, ["c"])
    except ValueError as error:
        assert str(error).startswith("nodes.csv, row ")
        return
    assert columns.num_features == (0 if encoded.x is None else encoded.x.shape[1])
    assert encoded.x is None or np.isfinite(dense(encoded.x)).all()
    again = Columns.from_json(json.loads(json.dumps(columns.to_json()))).read(table)
    assert encoded.x is None or np.array_equal(dense(again.x), dense(encoded.x))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "picture"}, "unknown kind of column 'picture'; there are number, boolean"),
        ({"counts": [1]}, "column 'bio': text with settings that are never learned"),
        ({"counts": [-1] * 1000}, "column 'bio': text with settings that are never learned"),
    ],
)
def test_json_that_does_not_fit_is_refused(mixed, changes, problem):
    facts = load(mixed).columns.to_json()
    (bio,) = [one for one in facts if one["name"] == "bio"]
    bio.update(changes)
    with pytest.raises(ValueError, match=problem):
        Columns.from_json(facts)


def test_without_pyarrow_the_features_are_the_same(mixed, monkeypatch):
    graph = load(mixed)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    plain = load(mixed)
    assert plain.content_hash() == graph.content_hash() and plain.columns == graph.columns


@pytest.mark.long
def test_info_says_what_was_made_of_each_column(mixed):
    done = subprocess.run(
        [sys.executable, "-m", "gcn_lpa", "info", mixed], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    lines = [line.split("column", 1)[1].strip() for line in done.stdout.splitlines() if line.startswith("    column")]
    assert [line.split(" -> ")[0] for line in lines] == list(MADE)
    rows = list(mixed_rows(60))
    missing = sum(row[MIXED.index("income")] == "" for row in rows)
    assert lines[0] == "age -> number, 1 feature"
    assert lines[1] == f"income -> number, 2 features, {missing} cells missing"
    assert lines[4].startswith("joined -> date (days, month, weekday), 6 features")


def test_cells_are_looked_at_once(tmp_path):
    cells = Cells(table_of(tmp_path, c=["a ", "b", "", "a "]), "c")
    assert (cells.texts, cells.counts.tolist(), cells.numbers) == (["a", "b", ""], [2, 1, 1], None)
    assert cells.where(1) == "nodes.csv, row 3, column 'c'"
