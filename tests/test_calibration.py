"""Confidence: probabilities that come true as often as they say, and label sets that hold what they promise."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize, minimize_scalar
from typer.testing import CliRunner

from gcn_lpa import storage
from gcn_lpa.calibration import (
    FEWEST,
    SCORES,
    Calibration,
    Calibrator,
    Guesses,
    Reliability,
    apply_temperature,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    draw_reliability,
    expected_calibration_error,
    fit_calibrator,
    fit_curve,
    fit_temperature,
    guesses_of,
    perfect_ece,
    reliability,
    reserve,
)
from gcn_lpa.cli.app import app
from gcn_lpa.fusion import fit_fusion, opinions_of
from gcn_lpa.graph import Graph
from gcn_lpa.learning import learn
from gcn_lpa.predict import node_hops, predict_proba, predictions, with_prior
from gcn_lpa.recipes import LAYERS
from gcn_lpa.runs.codec import load_run
from gcn_lpa.runs.confidence import calibrate_run, calibration_evidence, calibration_report, uncalibrated
from gcn_lpa.runs.output import predict_run
from gcn_lpa.runs.plan import Plan, Source, make_plan
from gcn_lpa.runs.stages import train_run
from gcn_lpa.splits import split
from gcn_lpa.tables.datasets import load


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
        lambda m: st.tuples(
            arrays(float, (m, c), elements=st.floats(-30, 30)), arrays(np.int64, m, elements=st.integers(0, c - 1))
        )
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
        return (np.logaddexp(0, z) - t * z).sum() + ((curve[0] - 1) ** 2 + curve[1] ** 2) / 2

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
    errors = [expected_calibration_error(q, y[rest]) for q in (p[rest], tempered, fitted(p[rest]))]
    assert errors[0] > 0.1
    assert errors[2] < 0.5 * errors[1]
    assert errors[2] < 0.04


@given(
    logits_and_labels, st.floats(0.02, 50), st.floats(0.05, 3), st.floats(-3, 3)
)  # slopes are positive: surer stays surer
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
    by_hand = (2 * 0.05 + 3 * (0.8 - 2 / 3)) / 5
    assert found.ece == pytest.approx(by_hand)
    assert expected_calibration_error(p.double(), y, bins=2) == pytest.approx(by_hand)


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
    assert perfect_ece(torch.full((50,), 0.7), draws=50, seed=1) != perfect_ece(
        torch.full((50,), 0.7), draws=50, seed=2
    )


def test_a_calibrated_model_shows_no_more_error_than_a_perfect_one():
    logits, y = drawn(5000, seed=7)
    p = torch.softmax(logits, dim=1)
    assert expected_calibration_error(p, y) < perfect_ece(p.max(dim=1).values).high * 1.1


@pytest.mark.parametrize("allow_empty", [False, True])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_sets_hold_the_true_label_as_often_as_promised(score, level, allow_empty):
    """200 worlds, each with its own 99 calibration nodes and 100 further ones; the model is overconfident, and a rank of
    100 · level makes the expected coverage `level` exactly, where scores do not tie.
    """
    logits, y = drawn(200 * 199, num_classes=6, scale=1.0)
    p = torch.softmax(1.7 * logits, dim=1).reshape(200, 199, 6)
    covered = 0
    for one, labels in zip(p, y.reshape(200, 199), strict=True):
        settings = {"score": score, "allow_empty": allow_empty}
        threshold = conformal_threshold(one[:99], labels[:99], level, **settings)
        sets = conformal_sets(one[99:], threshold, **settings)
        covered += int(sets.gather(1, labels[99:, None]).sum())
    spread = math.sqrt(level * (1 - level) * (1 / 100 + 1 / 100) / 200)
    assert covered / 20_000 == pytest.approx(level, abs=4 * spread)


def test_the_promise_costs_no_more_labels_than_needed():
    """With a score of 0 for the likeliest class, sets are no larger than where it is added afterwards."""
    logits, y = drawn(4000, num_classes=6, scale=2.0)
    p = torch.softmax(logits, dim=1)
    exact = conformal_sets(p, conformal_threshold(p, y, 0.8))
    added = conformal_sets(p, conformal_threshold(p, y, 0.8, allow_empty=True))
    assert exact.sum() <= added.sum()
    assert (exact <= added).all()


@given(logits_and_labels, st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.sampled_from([*SCORES]))
def test_sets_are_never_empty_and_grow_with_the_level(case, one, other, score):
    p, y = torch.softmax(torch.from_numpy(case[0]), dim=1), torch.from_numpy(case[1])
    low, high = (
        conformal_sets(p, conformal_threshold(p, y, level, score=score), score=score) for level in sorted((one, other))
    )
    assert low.any(dim=1).all()
    assert low.gather(1, p.argmax(dim=1, keepdim=True)).all()
    assert (low <= high).all()


def test_the_threshold_is_the_score_of_its_rank():
    """Nine nodes with 1 - p of 0.1, …, 0.9: ⌈10 · 0.8⌉ is the eighth. For 0.95 there are too few."""
    wrong = torch.arange(1, 10, dtype=torch.float64) / 10
    p, y = torch.stack([1 - wrong, wrong], dim=1), torch.zeros(9, dtype=torch.int64)
    assert conformal_threshold(p, y, 0.8, allow_empty=True) == pytest.approx(0.8)
    assert conformal_threshold(p, y, 0.9, allow_empty=True) == pytest.approx(0.9)
    assert conformal_threshold(p, y, 0.95) == math.inf
    assert conformal_sets(p, math.inf).all()
    assert conformal_threshold(p[:0], y[:0], 0.5) == math.inf
    assert conformal_threshold(p, y, 0.4) == 0.0  # four or five are the likeliest class: it alone suffices


def test_aps_adds_up_the_likelier_classes():
    p, y = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64), torch.tensor([0])
    assert conformal_threshold(p, y, 0.5, score="aps") == pytest.approx(0.8)
    assert conformal_sets(p, 0.5, score="aps").tolist() == [[False, True, True]]


def test_levels_and_scores_that_do_not_exist_are_refused(tmp_path):
    p, y = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    for level in (0, 1, 90, math.nan):
        with pytest.raises(ValueError, match=r"share between 0 and 1"):
            conformal_threshold(p, y, level)
    with pytest.raises(ValueError, match=r"unknown score 'raps'; there are lac, aps"):
        conformal_sets(p, 0.5, score="raps")
    with pytest.raises(ValueError, match=r"unknown score 'raps'"):
        predict_run(tmp_path, score="raps")  # also where no sets are asked for


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
    halves = reserve(val, share, seed)
    assert not (halves.choose & halves.reserved).any()
    assert torch.equal(halves.choose | halves.reserved, val)
    assert int(halves.reserved.sum()) == int(share * int(val.sum()))
    assert torch.equal(halves.reserved, reserve(val, share, seed).reserved)


def test_other_seeds_reserve_other_nodes_and_all_of_them_is_refused():
    val = torch.ones(100, dtype=torch.bool)
    assert not torch.equal(reserve(val, 0.5, 1).reserved, reserve(val, 0.5, 2).reserved)
    with pytest.raises(ValueError, match=r"reserve = 1"):
        reserve(val, 1)


@pytest.mark.long
def test_the_diagram_is_drawn(tmp_path):
    before = reliability(guesses_of(torch.softmax(3 * drawn(500)[0], dim=1), drawn(500)[1]))
    after = Reliability((0.5,) * 15, (0.5,) * 15, (1,) * 15)
    draw_reliability(before, after, tmp_path / "reliability.png", title="500 nodes")
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


QUICK = {"epochs": 12, "hidden": 8, "edge_rank": 4}
SBM = Source("sbm", None, {"n": 200, "classes": 3, "features": 5, "noise": 2.0})


def trained(source=SBM, out=None, **options):
    plan, graph = make_plan(source, changes=QUICK, **options)
    return train_run(plan, graph, out, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders: one with reserved nodes, one without, one of a graph of one's own with five unlabelled nodes."""
    folder = tmp_path_factory.mktemp("runs")
    graph = load("sbm", n=60, classes=2, features=4, noise=2.0)
    names = [f"n{i}" for i in range(60)]
    nodes = pandas.DataFrame(graph.x.numpy(), columns=[f"f{k}" for k in range(4)]).assign(id=names)
    nodes["label"] = [["no", "yes"][k] if i < 55 else "" for i, k in enumerate(graph.y.tolist())]
    (folder / "own").mkdir()
    nodes.to_csv(folder / "own" / "nodes.csv", index=False)
    ends = {"source": [names[i] for i in graph.row.tolist()], "target": [names[i] for i in graph.col.tolist()]}
    pandas.DataFrame(ends).to_csv(folder / "own" / "edges.csv", index=False)
    return {
        "reserved": trained(out=folder / "reserved", reserve=0.5),
        "validation": trained(out=folder / "validation"),
        "cross-validation": trained(Source(str(folder / "own")), folder / "cross"),
    }


@pytest.mark.long
def test_reserved_nodes_choose_nothing(runs):
    """Training with them unlabelled altogether ends in the same weights; their number is half the validation nodes."""
    run = runs["reserved"]
    parts = split(run.graph, seed=0)
    assert torch.equal(run.split.val | run.reserved, parts.val)
    assert int(run.reserved.sum()) == int(parts.val.sum()) // 2
    hidden = run.graph.reveal(~run.reserved)
    again = learn(hidden, parts.train, run.split.val, run.plan.recipe, device="cpu")
    assert again.run.best_epoch == run.run.best_epoch
    pairs = zip(again.model.parameters(), run.trained.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.long
def test_a_run_is_calibrated_on_the_nodes_it_says(runs):
    for protocol, nodes in (("reserved", runs["reserved"].reserved), ("validation", runs["validation"].split.val)):
        run = runs[protocol]
        p = predict_proba(run.trained, run.graph, raw=True)[nodes]
        if (
            protocol == "validation"
        ):  # these nodes also weigh the votes: each is scored by the weights that the others give
            opinions = opinions_of(run.trained.model, run.trained.prepare(run.graph)).of(nodes)
            p, y = torch.zeros_like(p), run.graph.y[nodes]
            for k in range(5):
                here = torch.arange(len(y)) % 5 == k
                p[here] = fit_fusion(opinions.of(~here), y[~here])(opinions.of(here))
        expected = Calibration(fit_calibrator(p, run.graph.y[nodes]), protocol, int(nodes.sum()))
        assert run.trained.calibration == expected


@pytest.mark.long
def test_ones_own_graph_is_calibrated_on_what_was_out_of_fold(runs):
    run, found = runs["cross-validation"], runs["cross-validation"].out_of_fold
    assert torch.equal(found.node, run.graph.labeled.nonzero().squeeze(1))
    assert torch.bincount(found.fold).tolist() == [11] * 5
    y = run.graph.y[found.node]
    assert run.results.scores.accuracy == pytest.approx((found.probability.argmax(dim=1) == y).double().mean().item())
    assert run.trained.calibration == Calibration(fit_calibrator(found.probability, y), "cross-validation", 55)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["reserved", "validation", "cross-validation"])
def test_a_calibration_comes_back_from_its_folder(runs, protocol):
    before, after = runs[protocol], load_run(runs[protocol].folder)
    assert after.plan == before.plan
    assert after.trained.calibration == before.trained.calibration
    assert (after.reserved is None) == (before.reserved is None)
    if before.reserved is not None:
        assert torch.equal(after.reserved, before.reserved)
    if before.out_of_fold is not None:
        assert all(torch.equal(a, b) for a, b in zip(after.out_of_fold, before.out_of_fold, strict=True))
    assert calibrate_run(before.folder) == calibration_report(before)


@pytest.mark.long
def test_the_report_of_a_split_is_that_of_its_test_nodes(runs):
    run, found = runs["reserved"], calibrate_run(runs["reserved"].folder, level=0.8, score="aps")
    p = predict_proba(run.trained, run.graph, raw=True)
    test, y = run.split.test, run.graph.y
    assert found.ece_before == pytest.approx(expected_calibration_error(p[test], y[test]))
    assert found.ece_after == pytest.approx(expected_calibration_error(run.trained.calibrator(p[test]), y[test]))
    assert found.num_nodes == int(test.sum())
    threshold = conformal_threshold(p[run.reserved], y[run.reserved], 0.8, score="aps")
    sets = conformal_sets(p[test], threshold, score="aps")
    assert found.coverage == pytest.approx(sets[range(len(sets)), y[test]].double().mean().item())
    assert found.mean_set_size == pytest.approx(sets.sum().item() / len(sets))
    assert found.set_sizes == tuple((sets.sum(dim=1) == k).sum().item() for k in range(4))
    assert found.accuracy == pytest.approx(run.results.scores.accuracy)


@pytest.mark.long
def test_the_report_of_a_cross_validation_judges_each_fold_by_the_others(runs):
    run = runs["cross-validation"]
    found, (_, fold, p) = calibration_report(run, level=0.8), run.out_of_fold
    p, y = p.double(), run.graph.y[run.out_of_fold.node]
    after, covered = p.clone(), 0
    for i in range(55):
        others = fold != fold[i]
        after[i] = fit_calibrator(p[others], y[others])(p[i : i + 1])[0]
        covered += int(conformal_sets(p[i : i + 1], conformal_threshold(p[others], y[others], 0.8))[0, y[i]])
    assert found.ece_after == pytest.approx(expected_calibration_error(after, y))
    assert found.coverage == pytest.approx(covered / 55)
    assert (found.num_nodes, found.calibration.protocol) == (55, "cross-validation")


@pytest.mark.long
def test_a_run_without_a_calibration_is_calibrated_when_asked(runs, tmp_path):
    files = storage.load(runs["validation"].folder).files
    old = {name: data for name, data in files.items() if name != "calibration.json"}
    storage.save(tmp_path / "old", old)
    assert load_run(tmp_path / "old").trained.calibration is None
    assert calibrate_run(tmp_path / "old").calibration == runs["validation"].trained.calibration
    assert storage.load(tmp_path / "old").files == old  # asking changes nothing
    own = {n: d for n, d in storage.load(runs["cross-validation"].folder).files.items() if "fold" not in n}
    storage.save(tmp_path / "own", own)
    with pytest.raises(ValueError, match="keeps no labels to calibrate on"):
        calibrate_run(tmp_path / "own")


@pytest.mark.long
def test_a_calibration_that_was_tampered_with_is_refused(runs, tmp_path):
    files = {**storage.load(runs["validation"].folder).files, "calibration.json": b'{"calibrator": {"heat": 1}}'}
    storage.save(tmp_path / "run", files)
    with pytest.raises(ValueError, match=r"calibration\.json: calibrator has a field 'heat'; there are temperature"):
        load_run(tmp_path / "run")


@pytest.mark.long
def test_predictions_are_calibrated_and_sets_are_not(runs):
    run = runs["reserved"]
    p = predict_proba(run.trained, run.graph, raw=True)
    rows = ~run.used
    table = predict_run(run.folder, sets=0.9, hops=True)
    assert table["id"].tolist() == [name for name, row in zip(run.graph.node_names, rows.tolist(), strict=True) if row]
    assert table["probability"].tolist() == pytest.approx(run.trained.calibrator(p)[rows].max(dim=1).values.tolist())
    raw = predict_run(run.folder, raw=True)
    assert raw["probability"].tolist() == pytest.approx(p[rows].max(dim=1).values.tolist())
    assert raw["label"].tolist() == table["label"].tolist()
    sets = conformal_sets(p[rows], conformal_threshold(p[run.reserved], run.graph.y[run.reserved], 0.9))
    names = np.array(run.graph.class_names)
    assert [set(cell.split("|")) for cell in table["set"]] == [{*names[row.numpy()]} for row in sets]
    assert [cell.split("|")[0] for cell in table["set"]] == table["label"].tolist()
    every = predict_run(run.folder, every=True)
    assert (every["status"] == "reserved").tolist() == run.reserved.tolist()


@pytest.mark.long
def test_below_the_threshold_there_is_no_label(runs):
    plain = predict_run(runs["validation"].folder)
    half = plain["probability"].median()
    careful, doubtful = predict_run(runs["validation"].folder, abstain=half), plain["probability"] < half
    assert 0 < doubtful.sum() < len(plain)
    assert (careful["label"] == "").tolist() == doubtful.tolist()
    assert (careful["status"] == "abstain").tolist() == doubtful.tolist()
    assert careful["label"][~doubtful].tolist() == plain["label"][~doubtful].tolist()
    everyone = predict_run(runs["validation"].folder, abstain=1.0, every=True)
    assert (everyone["status"] == "labeled").tolist() == runs["validation"].used.tolist()  # those stay as they are
    with pytest.raises(ValueError, match=r"abstain = 60; it is a probability"):
        predict_run(runs["validation"].folder, abstain=60)


@pytest.mark.long
def test_reserving_needs_a_split_and_enough_nodes(runs, tmp_path):
    own = runs["cross-validation"].plan.source
    with pytest.raises(ValueError, match="the cross-validation calibrates"):
        make_plan(own, reserve=0.5)
    with pytest.raises(ValueError, match=r"reserve = 0.1 of 6 validation nodes is not one node"):
        trained(Source("karate"), tmp_path / "run", reserve=0.1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reserve", [0.0, 0.5])
def test_calibration_does_not_see_test_labels(reserve):
    """Other labels for the test nodes: the same calibrator, threshold and sets. Other labels for those that calibrate: not."""
    graph, seed = load("sbm", n=300, classes=3, features=5, noise=2.0), 0
    parts = split(graph, seed=seed)

    def calibrated_on(y):
        changed = dataclasses.replace(graph, y=y)
        plan = Plan(SBM, changed.content_hash(64), LAYERS.replace(**QUICK), seed, "uniform", reserve=reserve)
        run = train_run(plan, changed, device="cpu")
        evidence = calibration_evidence(run)
        threshold = conformal_threshold(evidence.probabilities, evidence.y, 0.8)
        return run.trained.calibrator, threshold, conformal_sets(uncalibrated(run), threshold).tolist()

    def scrambled(nodes):
        return torch.where(nodes, (graph.y + 1) % 3, graph.y)

    honest = calibrated_on(graph.y)
    assert calibrated_on(scrambled(parts.test)) == honest
    assert calibrated_on(scrambled(parts.val))[0] != honest[0]


def test_hops_count_edges_to_the_nearest_label():
    path = Graph.from_edges([(0, 1), (1, 2), (2, 3), (4, 5)], num_nodes=6)
    given = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.bool)
    assert node_hops(path, given).tolist() == [0, 1, 2, 3, math.inf, math.inf]
    assert node_hops(path, ~given & False).tolist() == [math.inf] * 6


def test_a_node_of_which_nothing_is_known_gets_the_shares_of_the_labels():
    """Without features, d and e are known by nothing. With features only a lone node whose row is zero is."""
    edges, y = [("a", "b"), ("b", "c"), ("d", "e")], ["p", "p", "q", None, None, None]
    bare = Graph.from_edges(edges, node_names=[*"abcdef"], y=y)
    flat = torch.full((6, 2), 0.5, dtype=torch.float64)
    prior = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    torch.testing.assert_close(with_prior(flat, bare, bare.y), torch.cat([flat[:3], prior.expand(3, 2)]))
    x = np.ones((6, 3))
    x[[0, 4, 5]] = 0
    for features in (x, scipy.sparse.csr_array(x)):
        graph = Graph.from_edges(edges, node_names=[*"abcdef"], y=y, x=features)
        torch.testing.assert_close(with_prior(flat, graph, graph.y), torch.cat([flat[:5], prior.expand(1, 2)]))


def test_a_class_whose_name_holds_a_bar_is_refused_in_sets():
    graph = Graph.from_edges([(0, 1)], x=np.eye(2), y=["a|b", "c"])
    fitted = learn(graph, [0, 1], [], LAYERS.replace(**QUICK), device="cpu")
    with pytest.raises(ValueError, match=r"the class 'a\|b' holds a \|"):
        predictions(fitted, graph, threshold=0.5)


def told(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["reserved", "validation", "cross-validation"])
def test_calibrate_says_what_the_library_found(runs, protocol):
    folder = runs[protocol].folder
    found = calibration_report(runs[protocol], level=0.8)
    assert json.loads(told("calibrate", folder, "--level", 0.8, "--json")) == json.loads(
        json.dumps(dataclasses.asdict(found))
    )
    text = told("calibrate", folder, "--level", 0.8)
    assert f"{100 * found.ece_before:.1f} % before, {100 * found.ece_after:.1f} % after" in text
    assert f"hold the true label of {100 * found.coverage:.1f} %" in text
    assert found.promise in text


@pytest.mark.long
def test_predict_writes_sets_and_abstains(runs, tmp_path):
    folder = runs["validation"].folder
    said = told("predict", folder, "--sets", 0.9, "--abstain", 1, "--hops", "--out", tmp_path / "p.csv")
    assert "abstain" in said
    kept = pandas.read_csv(tmp_path / "p.csv", keep_default_na=False, dtype={"set": str})
    table = predict_run(folder, sets=0.9, abstain=1, hops=True)
    assert kept.columns.tolist() == ["id", "label", "probability", "runner_up", "status", "set", "hops"]
    assert kept["set"].tolist() == table["set"].tolist()
    json.loads(told("predict", folder, "--sets", 0.9, "--hops", "--json"))
    assert (
        told("predict", folder, "--sets", 90, code=1)
        == "gcn-lpa: level = 90.0; it is a share between 0 and 1, such as 0.9\n"
    )


@pytest.mark.long
def test_the_session_of_the_page_prints_what_it_shows_but_for_its_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "confidence.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"^\$ gcn-lpa ", block, flags=re.MULTILINE)[1:]:
        arguments, *shown = part.rstrip("\n").split("\n")
        printed, wanted = (
            [re.sub(r"[\d,.]*\d", "#", line) for line in lines]
            for lines in (told(*arguments.split()).splitlines(), shown)
        )
        for line in wanted:
            line = re.sub(r"\(# × #.*", "", line)  # how many sizes there are is a number too
            assert any(one.startswith(line) for one in printed), (line, printed)


def test_few_labels_leave_the_probabilities_as_they_are():
    probabilities = torch.tensor([[0.9, 0.1]]).repeat(FEWEST, 1)
    y = torch.arange(FEWEST) % 2
    assert fit_calibrator(probabilities[:-1], y[:-1]) == Calibrator()
    assert fit_calibrator(probabilities, y) != Calibrator()


def test_with_few_labels_no_set_is_promised(tmp_path):
    (tmp_path / "nodes.csv").write_text(
        "id,label\n" + "".join(f"n{i},{'ab'[i % 2] if i < 12 else ''}\n" for i in range(20))
    )
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i + 2}\n" for i in range(18)))
    plan, graph = make_plan(Source(str(tmp_path)), changes={"epochs": 2})
    run = train_run(plan, graph, tmp_path / "run", device="cpu")
    assert run.trained.calibration.calibrator == Calibrator()
    with pytest.raises(
        ValueError, match=r"label sets need 30 labels that training did not learn from, and there are 12"
    ):
        predict_run(tmp_path / "run", sets=0.9)
    assert calibrate_run(tmp_path / "run").promise == "none: 12 labels are too few, it takes 30"
    assert len(predict_run(tmp_path / "run")) == 8
