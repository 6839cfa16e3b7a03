"""What every encoder promises: it is fitted to a column, kept as JSON and applied to another table."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from gcn_lpa.data import encoders
from gcn_lpa.data.encoders import ENCODERS, Columns, Encoder, learn_columns
from gcn_lpa.data.table import Table, series, text_type

CASES = {  # what it is learned from, and other cells that it is applied to
    "number": (["1.5", "", "3"], ["7", "NA", "2"]),
    "boolean": (["yes", "no", ""], ["no", "", "Yes"]),
    "category": (["red", "red", "", "blue", "blue"], ["blue", "green", "", "red", "red"]),
    "date": (["2024-01-31", "", "2023-12-01", "2024-02-01"], ["2025-01-01", "2020-02-29", "", "2024-01-31"]),
    "text": (["one two", "two three", "", "three four"], ["two two", "", "five", "one four"]),
    "words": ([["0", "0", "2"]] * 20, [["1", "0", "0"]] * 20),
    "left out": (["u1", "u2", "u3"], ["u4", "u5", "u6"]),
}


def table_of(cells):
    columns = cells if isinstance(cells[0], list) else [cells]
    texts = {f"c{k}": series(column, text_type()) for k, column in enumerate(columns)}
    return Table(Path("nodes.csv"), texts, range(2, len(columns[0]) + 2))


def dense(x):
    return x.toarray() if scipy.sparse.issparse(x) else x


def test_every_encoder_has_a_case():
    family = {
        one for _, one in inspect.getmembers(encoders, inspect.isclass) if issubclass(one, Encoder) and not inspect.isabstract(one)
    }
    assert family == set(ENCODERS.values())
    assert list(CASES) == list(ENCODERS)


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_that_comes_back_from_json_gives_the_same_features(kind):
    learned, other = map(table_of, CASES[kind])
    columns, encoded = learn_columns(learned, list(learned.columns))
    (encoder,) = columns.encoders
    assert type(encoder) is ENCODERS[kind]
    again = Columns.from_json(json.loads(json.dumps(columns.to_json())))
    assert again == columns and again.means_the_same(columns)
    assert again.summaries()[0].features == encoder.num_features
    for table, expected in ((learned, encoded), (other, columns.read(other))):
        found = again.read(table)
        assert found.blocks == expected.blocks
        if encoder.num_features == 0:
            assert found.x is None
            continue
        assert dense(found.x).shape == (len(table.rows), encoder.num_features)
        assert np.array_equal(dense(found.x), dense(expected.x)) and np.isfinite(dense(found.x)).all()


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_reads_no_other_column_and_no_label(kind):
    learned = table_of(CASES[kind][0])
    columns, encoded = learn_columns(learned, list(learned.columns))
    noise = {"label": series(["x"] * len(learned.rows), text_type())}
    beside = Table(learned.path, {**noise, **learned.columns}, learned.rows)
    found = columns.read(beside)
    assert encoded.x is None or np.array_equal(dense(found.x), dense(encoded.x))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("number", {"decimal": ";"}, "decimal is ';'; it is one of . ,"),
        ("number", {"missing": -1}, ""),
        ("date", {"missing": -1}, ""),
        ("date", {"form": "%d%d"}, ""),
        ("date", {"cycles": ["year"]}, "cycles are ('year',); there are month, weekday, hour"),
        ("date", {"deviation": 1e-320}, "are no days since 1970"),
        ("date", {"mean": 1e15}, "are no days since 1970"),
        ("text", {"counts": [1]}, ""),
        ("text", {"cells": 0}, ""),
        ("words", {"columns": []}, ""),
    ],
)
def test_a_state_that_is_never_learned_is_refused(kind, changes, said):
    table = table_of(CASES[kind][0])
    (state,) = learn_columns(table, list(table.columns))[0].to_json()
    said = said or f"{kind} with settings that are never learned"
    with pytest.raises(ValueError, match=f"column 'c0.*': .*{re.escape(said)}"):
        Columns.from_json([{**state, **changes}])
