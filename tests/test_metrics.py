"""The metrics: beside those of scikit-learn, by hand, and in stacks."""

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from gcn_lpa.metrics import METRICS, Curve, Ranking, metric_of, rarest, selection, suited
from gcn_lpa.recipes import SELECTION, Recipe


def drawn(seed, c=2, n=60, levels=None):
    """Probabilities, [n, c], and classes that all occur; with `levels`, many probabilities are equal."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(c), n)
    if levels:
        p = np.round(p * levels) + 1
        p = p / p.sum(axis=1, keepdims=True)
    y = np.append(np.arange(c), (generator.random(n - c) < 0.2) * generator.integers(1, c, n - c))
    return torch.from_numpy(p), torch.from_numpy(y)


OF_CLASSES = [name for name, metric in METRICS.items() if not metric.of_numbers]


def by_scikit_learn(name, p, y):
    p, y = p.numpy(), y.numpy()
    c, guess = p.shape[1], p.argmax(axis=1)
    if name == "accuracy":
        return theirs.accuracy_score(y, guess)
    if name == "balanced_accuracy":
        return theirs.balanced_accuracy_score(y, guess)
    if name == "macro_f1":
        return theirs.f1_score(y, guess, average="macro")
    if name == "log_loss":
        return theirs.log_loss(y, p)
    if name == "brier":
        return theirs.brier_score_loss(y, p[:, 1]) if c == 2 else ((p - np.eye(c)[y]) ** 2).sum(axis=1).mean()
    score = {"roc_auc": theirs.roc_auc_score, "average_precision": theirs.average_precision_score}[name]
    classes = [int(np.bincount(y).argmin())] if c == 2 else range(c)
    return np.mean([score(y == k, p[:, k]) for k in classes])


@pytest.mark.parametrize("levels", [None, 4])
@pytest.mark.parametrize("c", [2, 4])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_every_metric_is_that_of_scikit_learn(name, c, levels):
    for seed in range(5):
        p, y = drawn(seed, c, levels=levels)
        assert float(METRICS[name](p, y)) == pytest.approx(by_scikit_learn(name, p, y), abs=1e-12)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_stack_is_scored_model_by_model_on_the_nodes_that_count(name):
    models = [drawn(seed, 3, 40, levels=3) for seed in range(4)]
    p, y = (torch.stack(side) for side in zip(*models, strict=True))
    counts = torch.rand(4, 40, generator=torch.Generator().manual_seed(0)) < 0.6
    counts[:, :3] = True
    alone = [METRICS[name](p[k][counts[k]], y[k][counts[k]]) for k in range(4)]
    assert METRICS[name](p, y, counts).tolist() == pytest.approx([float(one) for one in alone], abs=1e-12)


def test_average_precision_and_auc_by_hand():
    """From the likeliest: a hit, another, a hit and another of equal probability, another."""
    score, hit = torch.tensor([0.9, 0.8, 0.5, 0.5, 0.1]), torch.tensor([True, False, True, False, False])
    curve = Curve.of(score, hit)
    assert float(curve.average_precision) == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert float(curve.auc) == pytest.approx((3 + (1 + 0.5)) / 6)


def test_a_metric_without_a_pair_to_tell_apart_says_nothing_rather_than_fail():
    p = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    y = torch.tensor([0, 0])
    assert float(METRICS["roc_auc"](p, y, positive=1)) == 0.5
    assert float(METRICS["average_precision"](p, y, positive=1)) == 0


def test_recall_counts_hits_among_the_likeliest():
    """A hundred nodes; the hits are ranked 1st, 3rd and 50th. Among equal probabilities hits are spread evenly."""
    score = torch.arange(100, 0, -1).double()
    hit = torch.zeros(100, dtype=torch.bool)
    hit[[0, 2, 49]] = True
    assert Ranking.of("fraud", score, hit).recall == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    even = Ranking.of("fraud", torch.zeros(100), hit)
    assert (even.recall, even.share) == (pytest.approx((0.01, 0.05, 0.1)), pytest.approx(0.03))
    assert even.average_precision == pytest.approx(0.03)  # the chance level
    assert even.roc_auc == 0.5


def test_a_class_is_rare_up_to_a_quarter_of_the_labels():
    assert rarest(torch.tensor([0, 0, 0, 1, -1]), 2) == 1
    assert rarest(torch.tensor([0, 0, 1, 1, 1]), 2) is None
    assert rarest(torch.tensor([0, 0, 0]), 2) is None  # it does not occur
    assert rarest(torch.tensor([0, 0, 0, 0, 1, 2]), 3) is None
    assert suited(torch.tensor([1, 1, 1, 1, 0]), 2) == "average_precision"
    assert suited(torch.tensor([1, 1, 0]), 2) == "accuracy"


def test_every_metric_can_choose_the_epoch():
    assert {selection(name) for name in METRICS} <= set(SELECTION)
    assert {Recipe(select=selection(name)).select for name in METRICS} == set(SELECTION) - {"last_best"}


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match=r"unknown metric 'auc'; there are accuracy, .*roc_auc"):
        metric_of("auc")
