"""The scores beside those of scikit-learn, bit for bit."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from gcn_lpa.graph import Graph
from gcn_lpa.predict import ClassScores, scores


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
