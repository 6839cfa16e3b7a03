"""The cut: rules by hand, what is expected of one beside what comes, and a cut that no node has a say in."""

import dataclasses

import numpy as np
import pytest
import torch

from gcn_lpa.cut import Cut, Expected, Rule, Steps, crossed, share_above

SCORE = torch.tensor([0.9, 0.8, 0.8, 0.6, 0.5, 0.3, 0.2, 0.1])
HIT = torch.tensor([True, True, False, True, True, False, False, False])


def by_brute_force(precision):
    """The lowest of all scores down to which five nodes or more are called, so large a share of them hits."""
    fits = [t for t in SCORE.tolist() if (t <= SCORE).sum() >= 5 and HIT[t <= SCORE].float().mean() >= precision]
    return min(fits, default=None)


@pytest.mark.parametrize("precision", [0.5, 0.6, 0.75, 0.8])
def test_a_precision_is_reached_with_as_many_nodes_as_can_be(precision):
    assert Rule(precision=precision).chosen(SCORE, HIT) == pytest.approx(by_brute_force(precision))


def test_a_precision_that_no_cut_has_is_refused_with_the_highest():
    with pytest.raises(ValueError, match=r"no cut of the held-out nodes has precision 0.95: the highest is 0.80, of the 5 like"):
        Rule(precision=0.95).chosen(SCORE, HIT)


def test_equal_scores_are_called_together():
    steps = Steps.of(SCORE, HIT)
    assert steps.called.tolist() == [1, 3, 4, 5, 6, 7, 8]
    assert steps.hits.tolist() == [1, 2, 3, 4, 4, 4, 4]
    assert share_above(SCORE, 0.2) == pytest.approx(0.8)


def test_costs_call_where_a_miss_would_cost_more_than_an_alarm():
    threshold = Rule(costs=(3.0, 1.0)).chosen(SCORE, HIT)
    assert threshold == 0.25
    p = np.linspace(0.01, 0.99, 99)
    assert ((p >= threshold) == (3 * p >= 1 - p)).all()


def test_the_top_is_so_many_of_the_nodes_that_are_cut():
    wanted = torch.tensor([0.1, 0.7, 0.4, 0.9])
    assert Rule(top=2).chosen(SCORE, HIT, wanted) == pytest.approx(0.7)
    assert Rule(top=9).chosen(SCORE, HIT, wanted) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "not by 0 of them"),
        ({"top": 3, "threshold": 0.3}, "not by 2 of them"),
        ({"threshold": 1.0}, "threshold = 1.0; it is a share between 0 and 1"),
        ({"precision": 0.0}, "precision = 0.0"),
        ({"top": 0}, "top = 0; it is a number of nodes, at least 1"),
        ({"costs": (1.0, 0.0)}, "each cost more than 0"),
        ({"costs": (float("nan"), 1.0)}, "each cost more than 0"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Rule(**options)


def drawn(seed, n):
    """Scores that are right: a node is a hit with just that probability."""
    generator = np.random.default_rng(seed)
    p = generator.beta(0.4, 1.2, n)
    return torch.from_numpy(p), torch.from_numpy(generator.random(n) < p)


@pytest.mark.parametrize("rule", [Rule(precision=0.7), Rule(top=60), Rule(threshold=0.4), Rule(costs=(5.0, 1.0))], ids=str)
def test_what_is_promised_comes_in_ninety_five_of_a_hundred_draws(rule):
    """400 held-out nodes choose, and 500 others are cut; hits, precision, recall and costs lie in their intervals."""
    inside, draws = dict.fromkeys(("hits", "precision", "recall", "cost"), 0), 150
    for seed in range(draws):
        score, hit = drawn([seed, 0], 400)
        wanted, truth = drawn([seed, 1], 500)
        cut = Cut.of(rule, (score, hit, None), wanted, positive="hit")
        called = wanted >= cut.threshold
        assert cut.called == int(called.sum())
        hits = int((truth & called).sum())
        came = {"hits": hits, "precision": hits / cut.called, "recall": hits / int(truth.sum())}
        came["cost"] = 5 * int((truth & ~called).sum()) + cut.called - hits
        for name, value in came.items():
            expected = getattr(cut, name)
            inside[name] += expected is None or expected.low - 1e-9 <= value <= expected.high + 1e-9
    assert min(inside.values()) >= 0.9 * draws, inside  # 95 % but for 3.3 standard errors, and what choosing on few nodes adds


def test_no_node_is_counted_by_a_cut_that_it_chose():
    """The counts are those of five cuts by hand, each chosen by four folds and counted on the fifth."""
    score, hit = drawn(3, 300)
    fold = torch.arange(300) % 5
    counted = crossed(Rule(precision=0.5), score, hit, fold, score)
    for k in range(5):
        here = fold == k
        threshold = Rule(precision=0.5).chosen(score[~here], hit[~here])
        assert counted[here].tolist() == (score[here] >= threshold).tolist()


def test_the_called_are_as_much_better_as_their_probabilities():
    """With the same held-out nodes, nodes that are .1 more likely have a share of hits that is .1 higher."""
    score, hit = drawn(5, 4000)
    sure = score[score >= 0.6]
    same, more = (Cut.of(Rule(threshold=0.6), (score, hit, None), wanted, positive="hit") for wanted in (sure, sure + 0.1))
    assert more.precision.mean - same.precision.mean == pytest.approx(0.1, abs=0.01)


def test_out_of_fold_predictions_count_as_fewer():
    score, hit = drawn(6, 600)
    alone, of_folds = (
        Cut.of(Rule(threshold=0.6), (score, hit, fold), score, positive="hit").precision for fold in (None, torch.arange(600) % 5)
    )
    assert of_folds.low < alone.low < alone.high < of_folds.high


def test_a_cut_takes_hits_and_others():
    score = torch.tensor([0.5, 0.6])
    for labels, word in (([True, True], "all"), ([False, False], "none")):
        with pytest.raises(ValueError, match=f"held-out labels of 'fraud' and of others: {word} of 2 are of it"):
            Cut.of(Rule(threshold=0.5), (score, torch.tensor(labels), None), score, positive="fraud")


def test_the_same_cut_is_expected_to_do_the_same_each_time():
    score, hit = drawn(0, 100)
    first, again = (Cut.of(Rule(top=10), (score, hit, None), score, positive="hit") for _ in range(2))
    assert dataclasses.asdict(first) == dataclasses.asdict(again)
    assert isinstance(first.hits, Expected) and first.hits.low <= first.hits.mean <= first.hits.high <= 10
