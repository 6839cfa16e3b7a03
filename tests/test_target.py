"""The scores: beside those of scikit-learn bit for bit, and counted by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn import metrics

from gcn_lpa.graph import Graph
from gcn_lpa.metrics import ClassScores
from gcn_lpa.predict import scores


@pytest.mark.filterwarnings("ignore:A single label was found")  # scikit-learn, about a matrix of one class
@pytest.mark.parametrize("seed", range(12))
def test_scores_are_those_of_scikit_learn(seed):
    """Also where a class does not occur, is never called, or neither; where there is one node, and where all is right."""
    generator = np.random.default_rng(seed)
    c, n = int(generator.integers(1, 6)), int(generator.choice([1, 4, 50]))
    truth, guess = generator.integers(c, size=n), generator.integers(c, size=n)
    guess = truth if seed % 4 == 0 else guess
    names = [*"abcde"[:c]]
    graph = Graph.from_edges([(0, 0)], num_nodes=n + c, y=[names[k] for k in [*truth, *range(c)]])
    called = torch.eye(c, dtype=torch.float64)[torch.tensor([*guess, *[0] * c])]
    found = scores(graph, torch.arange(n + c) < n, called)
    assert found.accuracy == metrics.accuracy_score(truth, guess)
    assert found.macro_f1 == metrics.f1_score(truth, guess, average="macro", zero_division=0)
    assert found.confusion == metrics.confusion_matrix(truth, guess, labels=range(c)).tolist()
    columns = metrics.precision_recall_fscore_support(truth, guess, labels=range(c), zero_division=0)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert found.per_class == {name: ClassScores(*row) for name, row in zip(names, rows, strict=True)}


def test_scores_are_those_counted_by_hand():
    """Six scored nodes: classes a a a b b c are called a a b b c c; the seventh is not scored."""
    graph = Graph.from_edges([(0, 1)], num_nodes=7, y=list("aaabbca"))
    called = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 0, 1, 1, 2, 2, 2])]
    found = scores(graph, torch.tensor([True] * 6 + [False]), called)
    assert found.confusion == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert (found.accuracy, found.num_nodes) == (4 / 6, 6)
    rows = {"a": (1.0, 2 / 3, 0.8, 3), "b": (0.5, 0.5, 0.5, 2), "c": (0.5, 1.0, 2 / 3, 1)}
    assert {name: dataclasses.astuple(row) for name, row in found.per_class.items()} == {
        name: pytest.approx(row) for name, row in rows.items()
    }
    assert found.macro_f1 == pytest.approx((0.8 + 0.5 + 2 / 3) / 3)


def test_scores_need_a_label_on_every_node_they_count(tiny):
    called = torch.full((5, 2), 0.5)
    with pytest.raises(ValueError, match="mask is empty"):
        scores(tiny, torch.zeros(5, dtype=torch.bool), called)
    with pytest.raises(ValueError, match="1 of the 5 nodes to score have no label"):
        scores(tiny, torch.ones(5, dtype=torch.bool), called)
