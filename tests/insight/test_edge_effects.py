"""What columns of edges weigh, for people: against weights written out by hand."""

import math

import numpy as np
import pandas
import pytest

from gcn_lpa.data.edge_columns import GONE, EdgeFunction, EdgeFunctions, EdgeWeights
from gcn_lpa.data.encoders import CategoryColumn, DateColumn, NumberColumn
from gcn_lpa.insight.edge_effects import edge_effects, effect_sentences

AMOUNT = EdgeFunction(reader=NumberColumn(name="amount", missing=2), knots=(10, 100, 2500), shares=(0.3, 0.3, 0.2, 0.2))
KIND = EdgeFunction(reader=CategoryColumn(name="kind", values=("a", "b"), other=False), shares=(0.5, 0.5))
ISO = {"form": "ISO 8601", "mean": 0.0, "deviation": 1.0, "cycles": ()}
WHEN = EdgeFunction(reader=DateColumn(name="when", **ISO), knots=(19723.0, 19754.0), shares=(0.5, 0.5))


def weights_of(*folds, is_used=True):
    logs = tuple(tuple(map(math.log, fold)) for fold in folds)
    return EdgeWeights(EdgeFunctions((AMOUNT, KIND, WHEN)), logs, 0.1, 0.02, is_used)


ONE = (1, 2, 8, 0.5, 3, 1 / 3, 1, 1)


def test_weights_are_beside_the_median_or_an_average_edge():
    rows = edge_effects(weights_of(ONE))
    found = [(row.column, row.value, row.weight) for row in rows]
    assert found == [
        ("amount", "10", 0.5),
        ("amount", "100", 1.0),  # the median
        ("amount", "2,500", 4.0),
        ("amount", "(missing)", 0.5),
        ("kind", "a", 3.0),
        ("kind", "b", 0.3333),
        ("when", "2024-01-01", 1.0),
        ("when", "2024-02-01", 1.0),
    ]
    assert [row.share for row in rows] == [0.3, 0.3, 0.2, 0.2, 0.5, 0.5, 0.5, 0.5]
    assert all(row.low is None for row in rows)


def test_intervals_are_those_of_the_jackknife():
    folds = [tuple(value * factor if k == 4 else value for k, value in enumerate(ONE)) for factor in (1, 1.2, 1.5)]
    row = edge_effects(weights_of(*folds))[4]
    logs = np.log([3, 3.6, 4.5])
    half = 4.302653 * math.sqrt(2 / 3 * ((logs - logs.mean()) ** 2).sum())  # t of 2 degrees of freedom
    assert row.weight == pytest.approx(math.exp(logs.mean()), rel=1e-3)
    assert (row.low, row.high) == pytest.approx((math.exp(logs.mean() - half), math.exp(logs.mean() + half)), rel=1e-3)


def test_a_sentence_for_each_column_the_most_telling_first():
    first, *others = effect_sentences(weights_of(ONE, ONE))
    assert first == (
        "edges weigh what their columns say (amount, kind, when): log-likelihood of a held-out label +0.100 ± 0.039 against "
        "the given edges"
    )
    assert others[0] == "kind: a 3 × an average edge (3 to 3), b 0.33 × (0.33 to 0.33)"
    assert others[1].startswith("amount: 2,500 and more 4 × the median (4 to 4), 10 and less 0.5 × (0.5 to 0.5), (missing)")
    assert others[2] == "when: all alike"


def test_edges_that_are_left_out_are_said_so():
    gone = tuple(math.exp(GONE) if k == 5 else value for k, value in enumerate(ONE))
    _, first, *_ = effect_sentences(weights_of(gone, gone))
    assert first == "kind: a 3 × an average edge (3 to 3), b left out"
    assert [row.weight for row in edge_effects(weights_of(gone))][5] == 0


def test_what_is_not_supported_is_said_and_not_shown():
    (sentence,) = effect_sentences(weights_of(ONE, is_used=False))
    assert sentence.startswith("edges weigh what is given: held-out labels do not support weights by amount, kind, when")


def test_the_table_has_a_row_for_each_value():
    table = pandas.DataFrame(edge_effects(weights_of(ONE)))
    assert list(table.columns) == ["column", "value", "weight", "low", "high", "share"]
    assert len(table) == 8
