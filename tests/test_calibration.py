"""Confidence: probabilities that come true as often as they say, and label sets that hold what they promise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize, minimize_scalar

from gcn_lpa.calibration import (
    FEWEST,
    PULL,
    Calibration,
    Calibrator,
    Guesses,
    apply_temperature,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    fit_calibrator,
    fit_curve,
    fit_temperature,
    guesses_of,
    perfect_ece,
    reliability,
    reserve,
)


def generator(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def drawn(num_nodes, num_classes=5, scale=2.0, seed=0):
    """Logits, and labels drawn from softmax(logits): a perfectly calibrated model."""
    rng = generator(seed)
    logits = torch.from_numpy(rng.normal(0, scale, (num_nodes, num_classes)))
    cumulated = torch.softmax(logits, dim=1).cumsum(dim=1)
    y = (cumulated < torch.from_numpy(rng.random((num_nodes, 1)))).sum(dim=1).clamp_max(num_classes - 1)
    return logits, y


logits_and_labels = st.integers(2, 6).flatmap(
    lambda c: st.integers(1, 30).flatmap(
        lambda m: st.tuples(arrays(float, (m, c), elements=st.floats(-30, 30)), arrays(np.int64, m, elements=st.integers(0, c - 1)))
    )
)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_was_applied_is_found_again(temperature):
    logits, y = drawn(20_000)
    assert fit_temperature(logits * temperature, y) == pytest.approx(temperature, rel=0.03)


@pytest.mark.long
@given(logits_and_labels)
def test_no_other_temperature_is_likelier(case):
    logits, y = map(torch.from_numpy, case)
    found = fit_temperature(logits, y)

    def cost(log_beta):
        beta = math.exp(log_beta)
        return float(torch.nn.functional.cross_entropy(beta * logits, y, reduction="sum")) + (beta - 1) ** 2 / 2

    bounds = math.log(0.01), math.log(100)
    other = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    assert cost(-math.log(found)) <= other.fun + 1e-6 * max(1, other.fun)


def test_a_temperature_without_nodes_is_one_and_with_a_few_stays_near_it():
    assert fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == pytest.approx(1)
    right = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    assert 0.8 < fit_temperature(right, torch.tensor([0, 1])) < 1  # the likeliest alone would be T = 0
    with pytest.raises(ValueError, match="finite"):
        fit_temperature(torch.tensor([[0.0, -math.inf]]), torch.tensor([0]))


def test_a_temperature_keeps_the_order_and_log_probabilities_do_as_well():
    logits, _ = drawn(50)
    hot = apply_temperature(logits, 3.0)
    assert torch.equal(hot.argsort(dim=1), logits.argsort(dim=1))
    torch.testing.assert_close(apply_temperature(torch.log_softmax(logits, dim=1), 3.0), hot)


def test_the_curve_is_that_of_a_general_optimiser():
    rng = generator(1)
    confidence = torch.from_numpy(rng.uniform(0.2, 0.999, 400))
    correct = torch.from_numpy(rng.random(400)) < confidence**2
    x, t = torch.logit(confidence).numpy(), correct.numpy()

    def cost(curve):
        z = curve[0] * x + curve[1]
        return (np.logaddexp(0, z) - t * z).sum() + PULL * ((curve[0] - 1) ** 2 + curve[1] ** 2) / 2

    assert fit_curve(Guesses(confidence, correct)) == pytest.approx(minimize(cost, [1, 0], tol=1e-12).x, abs=1e-4)
    nobody = Guesses(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    assert fit_curve(nobody) == (1.0, 0.0)


def test_a_calibrator_repairs_what_a_temperature_cannot():
    """One label in five is wrong, so that a sure prediction is right four times in five."""
    logits, truth = drawn(8000, scale=4.0)
    noise = torch.from_numpy(generator(2).random(8000)) < 0.2
    y = torch.where(noise, torch.from_numpy(generator(3).integers(0, 5, 8000)), truth)
    p = torch.softmax(logits, dim=1)
    first, rest = slice(0, 4000), slice(4000, 8000)
    fitted = fit_calibrator(p[first], y[first])
    tempered = apply_temperature(logits[rest], fit_temperature(logits[first], y[first]))
    errors = [reliability(guesses_of(q, y[rest])).ece for q in (p[rest], tempered, fitted(p[rest]))]
    assert errors[0] > 0.1
    assert errors[2] < 0.5 * errors[1]
    assert errors[2] < 0.04


@given(logits_and_labels, st.floats(0.02, 50), st.floats(0.05, 3), st.floats(-3, 3))  # slopes are positive: surer stays surer
def test_calibrated_rows_are_distributions_in_the_same_order(case, temperature, slope, intercept):
    p = torch.softmax(torch.from_numpy(case[0]), dim=1)
    q = Calibrator(temperature, slope, intercept)(p)
    torch.testing.assert_close(q.sum(dim=1), torch.ones(len(q), dtype=torch.float64))
    assert (q >= 0).all()
    ranked = q.gather(1, p.argsort(dim=1, descending=True, stable=True))
    assert (ranked.diff(dim=1) <= 1e-12).all()


def test_a_calibrator_that_says_nothing_changes_nothing():
    p = torch.softmax(drawn(10)[0], dim=1)
    assert torch.equal(Calibrator()(p), p)
    assert fit_calibrator(p[:0], torch.zeros(0, dtype=torch.int64)) == Calibrator()
    assert fit_calibrator(torch.ones(4, 1), torch.zeros(4, dtype=torch.int64)) == Calibrator()


def test_the_calibration_error_of_five_nodes_by_hand():
    """Bins of a half: .5 and .4 are in the first, right once of twice; .6, .8 and 1 in the second, right twice."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.6, 0.4, 0.0], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]])
    y = torch.tensor([0, 0, 0, 1, 1])
    found = reliability(guesses_of(p.double(), y), bins=2)
    assert found.count == (2, 3)
    assert found.confidence == pytest.approx((0.45, 0.8))
    assert found.accuracy == pytest.approx((0.5, 2 / 3))
    assert found.ece == pytest.approx((2 * 0.05 + 3 * (0.8 - 2 / 3)) / 5)


def test_empty_bins_count_for_nothing_and_the_ends_are_in_the_first_and_the_last():
    found = reliability(Guesses(torch.tensor([0.0, 1.0]), torch.tensor([False, True])))
    assert (found.count[0], found.count[-1], sum(found.count), found.ece) == (1, 1, 2, 0.0)
    assert reliability(Guesses(torch.zeros(0), torch.zeros(0, dtype=torch.bool))).ece == 0.0


def test_the_error_of_a_perfect_model_is_that_of_binomial_bins():
    """1,000 nodes of confidence .7 in one bin: E|k/n - .7| of a binomial k, known in closed form by its table."""
    k = np.arange(1001)
    exact = float((abs(k / 1000 - 0.7) * stats.binom.pmf(k, 1000, 0.7)).sum())
    found = perfect_ece(torch.full((1000,), 0.7), draws=4000)
    assert found.mean == pytest.approx(exact, rel=0.04)
    assert found.high == pytest.approx(1.96 * math.sqrt(0.21 / 1000), rel=0.06)
    assert perfect_ece(torch.full((1000,), 0.7), draws=5) == perfect_ece(torch.full((1000,), 0.7), draws=5)
    assert perfect_ece(torch.full((50,), 0.7), draws=50, seed=1) != perfect_ece(torch.full((50,), 0.7), draws=50, seed=2)


def test_a_calibrated_model_shows_no_more_error_than_a_perfect_one():
    logits, y = drawn(5000, seed=7)
    p = torch.softmax(logits, dim=1)
    assert reliability(guesses_of(p, y)).ece < perfect_ece(p.max(dim=1).values).high * 1.1


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_sets_hold_the_true_label_as_often_as_promised(level):
    """200 worlds, each with its own 99 calibration nodes and 100 further ones; the model is overconfident, and a rank of
    100 · level makes the expected coverage `level` exactly, where scores do not tie.
    """
    logits, y = drawn(200 * 199, num_classes=6, scale=1.0)
    p = torch.softmax(1.7 * logits, dim=1).reshape(200, 199, 6)
    covered = 0
    for one, labels in zip(p, y.reshape(200, 199), strict=True):
        threshold = conformal_threshold(one[:99], labels[:99], level)
        sets = conformal_sets(one[99:], threshold)
        covered += int(sets.gather(1, labels[99:, None]).sum())
    spread = math.sqrt(level * (1 - level) * (1 / 100 + 1 / 100) / 200)
    assert covered / 20_000 == pytest.approx(level, abs=4 * spread)


@given(logits_and_labels, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_sets_are_never_empty_and_grow_with_the_level(case, one, other):
    p, y = torch.softmax(torch.from_numpy(case[0]), dim=1), torch.from_numpy(case[1])
    low, high = (conformal_sets(p, conformal_threshold(p, y, level)) for level in sorted((one, other)))
    assert low.any(dim=1).all()
    assert low.gather(1, p.argmax(dim=1, keepdim=True)).all()
    assert (low <= high).all()


def test_the_threshold_is_the_score_of_its_rank():
    """Nine nodes with 1 - p of 0.1, …, 0.9: ⌈10 · 0.8⌉ is the eighth. For 0.95 there are too few."""
    wrong = torch.arange(1, 10, dtype=torch.float64) / 10
    p, y = torch.stack([1 - wrong, wrong], dim=1), torch.zeros(9, dtype=torch.int64)
    assert conformal_threshold(p, y, 0.8) == pytest.approx(0.8)
    assert conformal_threshold(p, y, 0.9) == pytest.approx(0.9)
    assert conformal_threshold(p, y, 0.95) == math.inf
    assert conformal_sets(p, math.inf).all()
    assert conformal_threshold(p[:0], y[:0], 0.5) == math.inf
    assert conformal_threshold(p, y, 0.4) == 0.0  # four or five are the likeliest class: it alone suffices


def test_levels_that_do_not_exist_are_refused():
    p, y = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    for level in (0, 1, 90, math.nan):
        with pytest.raises(ValueError, match=r"share between 0 and 1"):
            conformal_threshold(p, y, level)


def test_the_range_of_coverage_is_that_of_drawn_ranks():
    """Among m + n uniform scores, how many of the n are below the rank-th smallest of the m."""
    rng = generator(4)
    draws = rng.random((20_000, 50 + 80))
    threshold = np.sort(draws[:, :50], axis=1)[:, math.ceil(51 * 0.9) - 1]
    covered = (draws[:, 50:] <= threshold[:, None]).mean(axis=1)
    low, high = coverage_range(50, 80, 0.9)
    assert (low, high) == pytest.approx(np.quantile(covered, [0.025, 0.975]), abs=0.013)
    assert coverage_range(8, 80, 0.9) == (1.0, 1.0)


@given(arrays(bool, st.integers(0, 60)), st.floats(0, 0.99), st.integers(0, 2**40))
def test_reserved_nodes_are_a_share_of_the_validation_nodes_and_no_others(mask, share, seed):
    val = torch.from_numpy(mask)
    kept = reserve(val, share, seed)
    assert not (kept & ~val).any()
    assert int(kept.sum()) == int(share * int(val.sum()))
    assert torch.equal(kept, reserve(val, share, seed))


def test_other_seeds_reserve_other_nodes_and_all_of_them_is_refused():
    val = torch.ones(100, dtype=torch.bool)
    assert not torch.equal(reserve(val, 0.5, 1), reserve(val, 0.5, 2))
    with pytest.raises(ValueError, match=r"reserve = 1"):
        reserve(val, 1)


def test_few_labels_leave_the_probabilities_as_they_are():
    probabilities = torch.tensor([[0.9, 0.1]]).repeat(FEWEST, 1)
    y = torch.arange(FEWEST) % 2
    assert fit_calibrator(probabilities[:-1], y[:-1]) == Calibrator()
    assert fit_calibrator(probabilities, y) != Calibrator()


def coin(m, seed, truth=lambda p: p):
    """Probabilities of two classes, half and half, and labels; the true probability of the second is truth(p)."""
    chance = generator(seed)
    p = chance.random(m)
    y = torch.from_numpy((chance.random(m) < truth(p)).astype(np.int64))
    return torch.from_numpy(np.stack([1 - p, p], axis=1)), y


def test_what_is_right_already_is_hardly_changed():
    """Fitted to honest probabilities, a curve follows chance; the pull takes most of that back."""
    p, y = zip(*(coin(60, seed) for seed in range(40)), strict=True)
    pairs = [guesses_of(*pair) for pair in zip(p, y, strict=True)]
    pulled, free = (
        [1 / (1 + math.exp(-(a * math.log(9) + b))) for a, b in curves]
        for curves in ([fit_curve(pair) for pair in pairs], [fit_curve(pair, pull=1.0) for pair in pairs])
    )
    assert np.std(pulled) < 0.5 * np.std(free)
    assert np.mean(pulled) == pytest.approx(0.9, abs=0.02)


def test_what_is_too_sure_is_calibrated():
    p, y = coin(300, 0, lambda p: 0.3 + 0.4 * p)
    found = Calibration.fitted(p, y, "reserved")
    assert found.calibrator == fit_calibrator(p, y) != Calibrator()
    sure = torch.tensor([[0.05, 0.95]], dtype=torch.float64)
    assert float(found(sure)[0, 1]) < 0.85
    assert "calibrated on 300 held-out labels" in str(found)


def test_nodes_that_no_label_reaches_are_calibrated_apart():
    """They are right half of the time whatever the model says; the others are as sure as they should be."""
    near, far = coin(200, 1), coin(100, 2, lambda p: 0.5 + 0 * p)
    p, y = (torch.cat(pair) for pair in zip(near, far, strict=True))
    apart = torch.arange(300) >= 200
    found = Calibration.fitted(p, y, "reserved", None, apart)
    assert (found.num_nodes, found.num_unreachable) == (300, 100)
    assert found.unreachable == fit_calibrator(*far)
    sure = torch.tensor([[0.05, 0.95]], dtype=torch.float64)
    assert found(sure, torch.tensor([True]))[0, 1] < 0.7
    assert torch.equal(found(sure, torch.tensor([False])), found.calibrator(sure))
    few = Calibration.fitted(p[:210], y[:210], "reserved", None, apart[:210])
    assert (few.unreachable, few.num_unreachable) == (None, 10)  # too few to fit anything to


def test_without_enough_unreachable_nodes_those_predicted_without_their_edges_calibrate_them():
    near, cut_off = coin(200, 1), coin(100, 2, lambda p: 0.5 + 0 * p)
    found = Calibration.fitted(*near, "reserved").with_cut_off(*cut_off)
    assert found.unreachable == fit_calibrator(*cut_off)
    assert found.calibrator == Calibration.fitted(*near, "reserved").calibrator
    assert found.changes
    few = tuple(part[:10] for part in cut_off)
    assert Calibration.fitted(*near, "reserved").with_cut_off(*few).unreachable is None


def test_the_curve_of_a_rare_class_is_right_where_it_is_unlikely():
    """The model says a third of what is true; the curve of the likeliest class would follow the many surely honest."""
    chance = generator()
    true = chance.beta(0.2, 4.0, 4000)
    p, y = torch.from_numpy(true / 3), torch.from_numpy((chance.random(4000) < true).astype(np.int64))
    fitted = fit_calibrator(torch.stack([1 - p, p], dim=1), y)
    assert fitted.positive == 1
    found = fitted(torch.stack([1 - p, p], dim=1))[:, 1]
    for low, high in ((0.001, 0.01), (0.01, 0.05), (0.05, 0.2), (0.2, 0.5)):
        here = torch.from_numpy((true >= low) & (true < high))
        assert float(found[here].mean()) == pytest.approx(float(true[here.numpy()].mean()), rel=0.35)
    assert ((found > 0.5) == (p > 0.5)).all()  # the prediction stays
    assert (found[p.argsort()].diff() >= 0).all()  # and so does the order


@pytest.mark.parametrize("positive", [2, -1])
def test_a_rare_class_is_one_of_two(positive):
    with pytest.raises(ValueError, match=f"positive = {positive}; it is one of two classes"):
        Calibrator(positive=positive)
