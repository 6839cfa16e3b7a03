"""Calibration knows no order of classes: other columns first, and the same answers in those columns."""

import numpy as np
import pandas
import pytest
import torch

from gcn_lpa.calibration import (
    Calibration,
    Calibrator,
    conformal_sets,
    conformal_threshold,
    fit_calibrator,
    guesses_of,
    nonconformity,
    reliability,
)
from gcn_lpa.graph import Graph
from gcn_lpa.predict import predictions
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Classes
from gcn_lpa.train import Run
from gcn_lpa.trained import KnownLabels, Trained

ORDERS = [(1, 2, 3, 0), (3, 2, 1, 0), (2, 0, 3, 1)]


def drawn(seed, num_nodes=80, num_classes=4):
    """Probabilities without ties, and labels that are likely under them; the classes are far from equally common."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_nodes, num_classes)) * 2 + np.array([1.5, 0.0, -0.5, -2.0])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(num_classes, p=row) for row in p])
    return torch.from_numpy(p), torch.from_numpy(y)


def permuted(probabilities, y, order):
    """Column k is class order[k] of before."""
    place = torch.empty(len(order), dtype=torch.int64)
    place[list(order)] = torch.arange(len(order))
    return probabilities[:, list(order)], place[y]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("calibrator", [None, Calibrator(2.0, 0.7, -0.4), Calibrator(0.5, 1.6, 0.8)])
def test_permuted_classes_have_permuted_calibrated_probabilities(order, calibrator):
    p, y = drawn(0)
    q, z = permuted(p, y, order)
    fitted, again = (fit_calibrator(p, y), fit_calibrator(q, z)) if calibrator is None else (calibrator, calibrator)
    assert fitted != Calibrator()
    for name in ("temperature", "slope", "intercept"):
        assert getattr(fitted, name) == pytest.approx(getattr(again, name), abs=1e-9)
    assert torch.allclose(fitted(p)[:, list(order)], again(q), rtol=0, atol=1e-9)
    assert torch.equal(fitted(p).argmax(dim=1), p.argmax(dim=1))
    errors = [reliability(guesses_of(*pair)).ece for pair in ((fitted(p), y), (again(q), z))]
    assert errors[0] == pytest.approx(errors[1], abs=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_permuted_classes_have_permuted_sets_and_the_same_threshold(order):
    p, y = drawn(1)
    q, z = permuted(p, y, order)
    odd = nonconformity(p)
    assert torch.allclose(odd[:, list(order)], nonconformity(q), rtol=0, atol=1e-12)
    threshold = conformal_threshold(p, y, 0.8)
    assert threshold == pytest.approx(conformal_threshold(q, z, 0.8), abs=1e-12)
    between = threshold + 1e-9  # not at the score of a node, where rounding would decide
    sets = conformal_sets(p, between)
    assert torch.equal(sets[:, list(order)], conformal_sets(q, between))
    assert 1 < sets.sum(dim=1).double().mean() < 4


def test_oddness_is_that_of_the_class_in_its_own_column():
    """By hand: the class of .2 is .8 odd. Sorting these three is a cycle."""
    p = torch.tensor([[0.2, 0.1, 0.7]], dtype=torch.float64)
    assert nonconformity(p)[0].tolist() == pytest.approx([0.8, 0.9, 0.0])


class Said:
    """A model with fixed logits."""

    device = torch.device("cpu")

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, graph):
        return self.logits


@pytest.mark.parametrize("order", ORDERS)
def test_a_model_with_its_classes_in_another_order_predicts_the_same_names(order):
    p, y = drawn(2)
    graph = Graph.from_edges([(i, i + 1) for i in range(79)], x=np.ones((80, 1)), y=y.numpy(), class_names="abcd")
    nobody, recipe = torch.zeros(80, dtype=torch.bool), Recipe(features="raw")
    tables = []
    for columns in (range(4), order):
        q, z = permuted(p, y, columns)
        calibration = Calibration(fit_calibrator(q, z), "reserved", 80)
        names, scaling = tuple("abcd"[k] for k in columns), graph.scaling("raw")
        labels, run = KnownLabels.of(graph, nobody, nobody), Run(recipe, 0, (), 0)
        trained = Trained(Said(q.log()), recipe, Classes(names), 1, "given", scaling, labels, run, calibration)
        threshold = conformal_threshold(q, z, 0.8) + 1e-9
        tables.append(predictions(trained, graph, threshold=threshold))
    pandas.testing.assert_frame_equal(*tables, rtol=0, atol=1e-9)
    assert tables[0].label.tolist() == ["abcd"[k] for k in p.argmax(dim=1)]
    assert {len(one.split("|")) for one in tables[0].set} >= {1, 2}
