"""The verdicts on the paper's claims: small cases whose effects, intervals and p-values are computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from reproduction import verdicts
from reproduction.claims import CLAIMS
from reproduction.exhibits import Exhibit
from reproduction.statistics import holm, paired_rates, paired_spreads, resampled_difference
from reproduction.verdicts import Effect, Verdict

OFFICIAL, TEXT = "official", "paper"


def run_of(row, seed, test, dataset="cora", train=1.0, val=0.8, recipe="paper", **changes):
    accuracies = {"test_accuracy": test, "train_accuracy": train, "val_accuracy": val}
    settings = {"row": row, "dataset": dataset, "recipe": recipe, "changes": changes, "seed": seed}
    return {**settings, "split_hash": f"s{seed}", **accuracies}


def claim_of(kind):
    return next(claim for claim in CLAIMS if claim.kind == kind)


def test_an_interval_over_splits_allows_for_their_common_training_nodes():
    found = resampled_difference(np.array([1.0, 2.0, 3.0]), 1 / 3)
    error = math.sqrt(1 / 3 + 1 / 3)  # s = 1, k = 3
    assert found.mean == 2
    assert found.interval == pytest.approx(4.302653 * error)  # t of two degrees of freedom
    t = 2 / error
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))  # their distribution in closed form


def test_without_common_nodes_it_is_the_usual_t_test():
    values = np.array([0.3, -0.1, 0.8, 0.4])
    usual = scipy_stats.ttest_1samp(values, 0)
    found = resampled_difference(values, 0)
    assert found.p_value == pytest.approx(usual.pvalue)
    assert found.mean - found.interval == pytest.approx(usual.confidence_interval().low)


def test_one_split_and_equal_splits():
    assert resampled_difference(np.array([5.0]), 1 / 3).interval is None
    assert resampled_difference(np.array([5.0]), 1 / 3).p_value == 1
    assert resampled_difference(np.zeros(4), 1 / 3).p_value == 1
    assert resampled_difference(np.full(4, 2.0), 1 / 3).p_value == 0


def test_holm_multiplies_the_smallest_most():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 · .01, 2 · .03, and no less for .04
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_event_in_twenty_is_no_certainty():
    never = np.zeros(20, dtype=bool)
    found = paired_rates(never, never)
    assert (found.mean, found.p_value) == (0, 1)
    assert found.interval == pytest.approx(1.959964 / 22)  # √(½ + ½) / (20 + 2)


def test_paired_rates_count_the_pairs_that_differ():
    one, other = np.array([1, 1, 1, 1, 0, 1, 1, 0], dtype=bool), np.array([0, 0, 0, 0, 1, 1, 0, 0], dtype=bool)
    found = paired_rates(one, other)  # 5 for, 1 against, of 8
    assert found.mean == 0.5
    assert found.p_value == pytest.approx(2 * (1 + 6) / 2**6)
    assert found.interval == pytest.approx(1.959964 * math.sqrt(5 + 1 + 1 - 16 / 10) / 10)


def test_spreads_of_paired_samples_are_compared_by_sum_and_difference():
    one, other = np.array([1.0, 5.0, 2.0, 9.0, 4.0, 3.0]), np.array([2.0, 3.0, 2.5, 4.0, 3.5, 2.0])
    found = paired_spreads(one, other)
    assert found.mean == pytest.approx(math.log(one.std() / other.std()))
    assert found.p_value == pytest.approx(scipy_stats.pearsonr(one + other, one - other).pvalue)

    def p_at(ratio):  # of the hypothesis that one spreads `ratio` times as much as other
        return scipy_stats.pearsonr(one + ratio * other, one - ratio * other).pvalue

    for end in (-found.interval, found.interval):  # the interval holds the ratios that are not rejected
        assert p_at(math.exp(found.mean + end)) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2, 2.1, 1.9], "above"), ([-2, -2.1, -1.9], "below"), ([2, -2, 1], "noise"), ([5], "noise")],
)
def test_an_effect_beyond_its_interval_is_decided(values, expected):
    assert verdicts.effect("x", np.array(values, dtype=float)).verdict == expected


def test_the_adjusted_p_decides_and_a_count_needs_none():
    assert Effect("x", 2, 1, p_value=0.01, adjusted=0.2).verdict == "noise"
    assert Effect("x", 2, 1, p_value=0.01, adjusted=0.05).verdict == "above"
    assert Effect("x", -3).verdict == "below"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1, 1), "holds"),
        ((1, 0), "holds in part"),
        ((1, 0, -1), "mixed"),
        ((0, -1), "contradicted in part"),
        ((-1, -1), "contradicted"),
        ((0, 0), "inside the noise"),
    ],
)
def test_a_claim_of_several_parts(values, verdict):
    effects = tuple(Effect("x", value, 1, p_value=0.5 if value == 0 else 0.01) for value in values)
    assert Verdict(CLAIMS[0], TEXT, effects).verdict == verdict


def test_parts_are_counted():
    effects = tuple(Effect("x", value, 1, p_value=p) for value, p in ((1, 0.01), (1, 0.5), (2, 0.01), (-1, 0.01)))
    assert Verdict(CLAIMS[0], TEXT, effects).counts == "2 above, 1 noise, 1 below"


def test_p_values_are_adjusted_over_all_claims_of_one_reading():
    one, two = CLAIMS[:2]
    measured = [
        (one, [Effect("a", 1, 1, 0.01, reading=TEXT), Effect("b", 1, 1, 0.04, reading=OFFICIAL)]),
        (two, [Effect("c", 1, 1, 0.02, reading=TEXT), Effect("d", 1, reading=TEXT)]),
    ]
    text = verdicts.verdicts_of(measured, TEXT)
    assert [[e.adjusted for e in found.effects] for found in text] == [
        [pytest.approx(0.02)],
        [pytest.approx(0.02), None],
    ]
    (only,) = verdicts.verdicts_of(measured, OFFICIAL)
    assert (only.claim, only.effects[0].adjusted) == (one, 0.04)  # the other reading does not count


def test_the_two_readings_of_gcn_lpa_are_two_verdicts():
    claim = next(claim for claim in CLAIMS if claim.key == "gcn-lpa>gcn")
    runs = [
        run_of(row, seed, accuracy + 0.001 * seed * (row == "gcn"), dataset)
        for dataset in claim.arguments["datasets"]
        for row, accuracy in (("gcn", 0.8), ("gcn-lpa", 0.7), ("official", 0.9))
        for seed in range(4)
    ]
    found = verdicts.better(claim, Exhibit("table2", "", "", {}, runs))
    assert {effect.reading for effect in found if effect.value > 9} == {OFFICIAL}
    assert {effect.reading for effect in found if effect.value < -9} == {TEXT}
    assert len(found) == 2 * len(claim.arguments["datasets"])


def test_a_study_without_the_authors_reading_has_the_texts_alone():
    claim = next(claim for claim in CLAIMS if claim.key == "joint-beats-two-step")
    rows = {"joint": 0.8, "two-step": 0.7}
    half = rows | {"joint, official": 0.6}  # a row that Table 2 shares
    both = half | {"two-step, official": 0.7}
    for given, readings in ((rows, [TEXT] * 5), (half, [TEXT] * 5), (both, [OFFICIAL] * 5 + [TEXT] * 5)):
        runs = [
            run_of(row, seed, accuracy + 0.001 * seed, dataset)
            for dataset in claim.arguments["datasets"]
            for row, accuracy in given.items()
            for seed in range(3)
        ]
        found = verdicts.better(claim, Exhibit("table-two-step", "", "", {}, runs))
        assert [effect.reading for effect in found] == readings
        assert [effect.value for effect in found] == pytest.approx([10 if r == TEXT else -10 for r in readings])


def test_the_slope_of_accuracy_along_the_share_of_labels():
    claim = claim_of("rises")
    runs = [
        run_of(f"{loss} {percent} %", seed, 0.7 + 0.01 * seed + slope * percent / 1e4, "citeseer")
        for loss, slope in (("literal", 3), ("official", -1))
        for percent in claim.arguments["values"]
        for seed in range(4)
    ]
    found = verdicts.rises(claim, Exhibit("table3", "", "", {}, runs))
    assert [(effect.reading, round(effect.value, 9)) for effect in found] == [(OFFICIAL, -1), (TEXT, 3)]


def test_the_spread_at_the_first_share_is_compared_with_that_at_the_last():
    claim = claim_of("steadier")
    wide, narrow = np.array([-2, -1, 0, 1, 3.0]) / 100, np.array([1, -0.5, 0, 0.5, 1.0]) / 100
    runs = [
        run_of(f"{loss} {percent} %", seed, 0.7 + (wide if percent == 0 else narrow)[seed], "citeseer")
        for loss in ("literal", "official")
        for percent in claim.arguments["values"]
        for seed in range(5)
    ]
    found = verdicts.steadier(claim, Exhibit("table3", "", "", {}, runs))[0]
    assert found.value == pytest.approx(math.log(wide.std() / narrow.std()))


def sweep_runs(claim, value_of, recipe="paper"):
    """The trainings of Figure 3, with accuracies by number of iterations and seed."""
    runs = []
    for layers in claim.arguments["lines"]:
        for value in claim.arguments["values"]:
            changes = {} if layers == 2 else {"gcn_layers": layers}
            changes |= {} if value == 5 else {"lpa_iterations": value}
            for seed in range(3):
                test, val = value_of(value, seed)
                runs.append(run_of("x", seed, test, "citeseer", val=val, recipe=recipe, **changes))
    return runs


def test_the_best_inner_value_is_chosen_on_validation():
    claim = claim_of("peak")

    def value_of(value, seed):
        test = 0.9 if value == 4 else 0.8 - 0.02 * (value in (1, 9)) - 0.001 * seed * value
        return test, 0.8 if value == 3 else 0.7

    runs = sweep_runs(claim, value_of)
    found = verdicts.peak(claim, Exhibit("figure3", "", "", {}, runs))
    assert found[0].part == "1 layers, 3 over 1"
    assert found[0].value == pytest.approx(2 - 0.1 * 2)
    assert len(found) == 2 * len(claim.arguments["lines"])
    other = sweep_runs(claim, lambda value, seed: (0.5, 0.9 if value == 7 else 0.7), recipe="official")
    both = verdicts.peak(claim, Exhibit("figure3", "", "", {}, runs + other))
    assert both[len(found) :] == found  # the text's, after those of the authors' code
    assert both[0].part == "1 layers, 7 over 1"


def test_the_mean_time_of_the_sizes_has_no_interval():
    claim = claim_of("at_most")
    data = {"paper": {"extra_percent": {"1000": 40.0, "10000": 42.0, "100000": 41.0}}}
    (found,) = verdicts.at_most(claim, Exhibit("figure5", "", "", data))
    assert found.value == pytest.approx(9.2 - 41)
    assert (found.interval, found.p_value, found.verdict) == (None, None, "below")
    assert "mean of 3 sizes (40 to 42 % more time)" in found.part


def test_separable_starts_are_compared_start_by_start():
    claim = next(claim for claim in CLAIMS if claim.key == "karate-denoising")
    (more, less), *_ = claim.arguments["pairs"]
    cells = [{**more._asdict(), "wrong": [0, 0, 0, 1]}, {**less._asdict(), "wrong": [0, 3, 2, 1]}]
    (found,) = verdicts.separable(claim, Exhibit("figure2", "", "", {"untrained": cells}))
    assert found.value == 50
    assert found.p_value == 0.5  # 2 of 2 pairs that differ
    assert found.part.endswith("3 and 1 of 4 starts")
