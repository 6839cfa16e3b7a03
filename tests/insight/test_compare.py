"""Statistics by hand and by brute force, and the same splits for all methods."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.splits import split
from gcn_lpa.insight.compare import (
    Comparison,
    ComparisonRow,
    Record,
    compare,
    recipes_of,
)
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import DEFAULT, OFFICIAL, PAPER, WITH_FEW_LABELS, WITH_STRUCTURE, Recipe
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test

QUICK = {"epochs": 3, "hidden": 4}


def test_the_interval_is_student_s():
    found = mean_of(np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2
    assert found.interval == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)  # t of 2 degrees of freedom, s = 1
    assert mean_of(np.array([0.5])) == Mean(0.5, None)


def by_all_signs(differences):
    """Wilcoxon's p-value from the rank sums of all 2^k sign patterns."""
    moved = differences[differences != 0]
    ranks = stats.rankdata(abs(moved))
    sums = np.array([ranks @ np.array(signs) for signs in itertools.product([0, 1], repeat=len(moved))])
    seen = ranks[moved > 0].sum()
    return min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))


@pytest.mark.parametrize(
    "differences",
    [[1, 2, 3, 4, 5], [1, -2, 3, -4, 5, 6], [1, 1, 1, -1, 2, 2], [0, 0, 1, 3], [-3, -1, -2], [0.0, 0.0], [2, -2]],
)
def test_the_signed_rank_test_counts_all_signs(differences):
    values = np.array(differences, dtype=float)
    assert signed_rank_test(values) == pytest.approx(by_all_signs(values))


def test_the_signed_rank_test_is_scipy_s_where_scipy_is_exact():
    values = np.random.default_rng(0).normal(0.3, 1, 14)
    assert signed_rank_test(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


def test_differences_that_only_rounding_tells_apart_are_ties():
    """.3 - .1 is less than .2 in the last bit, which would give the one loss the lowest rank."""
    assert 0.3 - 0.1 != 0.2
    values = np.array([0.1 - 0.3, 0.2, 0.2, 0.2, 0.2])
    assert signed_rank_test(values) == pytest.approx(by_all_signs(np.array([-1.0, 1, 1, 1, 1])))


def test_every_method_meets_the_same_splits_as_alone(karate):
    both = compare(karate, ["gcn", "lpa"], splits=3, seed=5, changes=QUICK)
    alone = compare(karate, ["lpa"], splits=3, seed=5)
    expected = [split(karate, seed=seed).hash for seed in (5, 6, 7)]
    for name in ("gcn", "lpa"):
        assert [record.split for record in both.records if record.method == name] == expected
    timeless = [[dataclasses.replace(r, seconds=0) for r in c.records if r.method == "lpa"] for c in (both, alone)]
    assert timeless[0] == timeless[1]
    assert both.num_splits == 3


def test_a_record_is_what_learn_and_evaluate_give(karate):
    found = compare(karate, ["gcn"], splits=1, seed=2, changes=QUICK)
    part, recipe = split(karate, seed=2), METHODS["gcn"].fair(WITH_STRUCTURE).replace(**QUICK)
    trained = learn(karate, part.train, part.val, recipe, seed=2, device="cpu")
    scores = evaluate(trained, karate, part.test)
    (record,) = found.records
    assert (record.accuracy, record.macro_f1) == (scores.accuracy, scores.macro_f1)
    assert record.best_epoch == trained.run.best_epoch
    assert found.recipes["gcn"] == recipe


@pytest.mark.long
def test_differences_are_paired(karate):
    found = compare(karate, ["lpa", "mlp", "lr"], splits=4, reference="lr")
    accuracy = {n: np.array([r.accuracy for r in found.records if r.method == n]) for n in ("lpa", "mlp", "lr")}
    rows = {row.method: row for row in found.rows}
    assert rows["lr"].difference is None
    for name in ("lpa", "mlp"):
        gain = accuracy[name] - accuracy["lr"]
        interval = stats.t.interval(0.95, 3, gain.mean(), stats.sem(gain)) if gain.std() else (gain[0], gain[0])
        assert rows[name].difference.mean == pytest.approx(gain.mean())
        assert rows[name].difference.interval == pytest.approx((interval[1] - interval[0]) / 2)
        assert rows[name].accuracy.mean == pytest.approx(accuracy[name].mean())


def made_up(differences, num_splits=10):
    """A comparison whose rows have the differences given by name; None is the reference."""
    rows = tuple(
        ComparisonRow(name, Mean(0.8, 0.01), Mean(0.8, 0.01), d, 1.0, "", Mean(0.8, 0.01)) for name, d in differences.items()
    )
    records = tuple(Record(name, str(k), k, 0.8, 0.8, 0.8, 1, 1.0, 0.8) for name in differences for k in range(num_splits))
    return Comparison("made up", "gcn", rows, records, {}, "cpu", {})


def test_the_verdict_says_what_is_noise():
    found = made_up(
        {
            "gcn": None,
            "gcn-lpa": Difference(0.002, 0.004, 0.3),
            "appnp": Difference(0.011, 0.004, 0.002),
            "lr": Difference(-0.1, 0.02, 0.002),
        }
    )
    assert found.verdict == (
        "Against gcn, in points of accuracy on 10 splits: "
        "better: appnp (+1.1 ± 0.4); worse: lr (-10.0 ± 2.0); inside the noise: gcn-lpa (+0.2 ± 0.4)."
    )


@pytest.mark.parametrize("num_splits", [3, 5, 6])
def test_the_verdict_warns_where_no_p_value_could_be_small(num_splits):
    """All differences of one sign are the strongest evidence there can be."""
    least = by_all_signs(np.arange(1.0, num_splits + 1))
    verdict = made_up({"gcn": None, "lr": Difference(-0.1, 0.02, least)}, num_splits).verdict
    assert verdict.endswith(f"below p = {least:.2g}.") == (least > 0.05)


def test_labels_that_leave_none_to_score_are_too_few(karate):
    few = dataclasses.replace(karate, y=torch.where(torch.arange(34) % 33 == 0, karate.y, -1))
    with pytest.raises(ValueError, match="'karate' has 2 labelled nodes: too few to learn from and to score"):
        compare(few, ["lpa"])


def test_one_split_tells_nothing():
    found = made_up({"gcn": None, "lr": Difference(-0.1, None, 1.0)}, num_splits=1)
    assert "cannot tell" in found.verdict
    assert found.rows[1].difference.is_noise


def test_recipe_is_that_of_gcn_lpa_and_changes_are_for_all(karate):
    ours = METHODS["gcn-lpa"].settings().replace(hidden=3, edges="free", loss="held_out")
    found = compare(karate, ["gcn-same", "gcn"], splits=1, recipe=ours, changes={"epochs": 2})
    fixed = {"edges": "fixed", "lpa_weight": 0.0, "members": ""}
    assert found.recipes["gcn-same"] == ours.replace(method="gcn-same", epochs=2, **fixed)
    assert found.recipes["gcn"] == METHODS["gcn"].fair(ours).replace(epochs=2)


def test_a_change_is_made_where_it_is_used_and_the_other_methods_are_named(karate):
    found = compare(karate, ["gcn", "lpa", "lr"], splits=1, changes={"epochs": 2, "features": "l2"})
    assert found.unused == {"epochs": ("lpa", "lr"), "features": ("lpa",)}
    assert found.recipes["gcn"] == METHODS["gcn"].fair(WITH_STRUCTURE).replace(epochs=2, features="l2")
    assert found.recipes["lr"] == METHODS["lr"].fair(WITH_STRUCTURE).replace(features="l2")
    assert found.recipes["lpa"] == METHODS["lpa"].fair()
    assert found.to_dict()["unused"] == found.unused


@pytest.fixture
def named_cora(karate):
    """A small graph that the recipes "paper" and "official" take for Cora."""
    return dataclasses.replace(karate, name="cora")


def test_rivals_have_published_settings_beside_published_recipes_and_working_ones_elsewhere(named_cora):
    methods = list(METHODS)
    for recipe, ours in (("paper", PAPER["cora"]), ("official", OFFICIAL["cora"])):
        found = recipes_of(named_cora, methods, recipe, {})
        assert found == {name: METHODS[name].settings(ours) for name in methods}
    fair = recipes_of(named_cora, methods, DEFAULT, {})
    wanted = {"features": "auto", "structure": True, "epochs": 1000, "patience": 100, "hidden": 64}
    for name in set(methods) - {"gcn-lpa", "gcn-same"}:
        own = {"gat": {"hidden"}, "gcn-tuned": {"hidden", "epochs", "patience"}}  # as published in any comparison
        fields = set(METHODS[name].fields) - own.get(name, set())
        assert {field: getattr(fair[name], field) for field in set(wanted) & fields} == {
            field: value for field, value in wanted.items() if field in fields
        }
        published = METHODS[name].settings()
        others = {spec.name for spec in dataclasses.fields(Recipe)} - set(wanted) - {"propagation_steps", "origin"}
        assert all(getattr(fair[name], field) == getattr(published, field) for field in others)
    assert (fair["gat"].hidden, fair["gat"].heads) == (8, 8)
    assert (fair["lpa"].propagation_steps, fair["lpa-leave-one-out"].propagation_steps) == (50, 50)
    assert fair["appnp"].propagation_steps == 10
    assert fair["gcn-lpa"] == DEFAULT
    assert not any(one.structure for one in recipes_of(named_cora, methods, WITH_FEW_LABELS, {}).values())


@pytest.mark.parametrize(
    ("epochs", "patience", "best", "cut_short"),
    [
        (200, 0, 190, False),
        (200, 0, 191, True),
        (1000, 100, 960, True),
        (1000, 100, 900, False),
        (1000, 10, 960, False),
    ],
)
def test_a_best_epoch_among_the_last_has_not_converged(epochs, patience, best, cut_short):
    """Unless patience ended the training: with 10, one whose best epoch is 960 ends at 970."""
    recipe = METHODS["gcn"].settings().replace(epochs=epochs, patience=patience)
    found = dataclasses.replace(made_up({"gcn": None, "lpa": None}, 2), recipes={"gcn": recipe})
    first, *others = found.records
    found = dataclasses.replace(found, records=(dataclasses.replace(first, best_epoch=best), *others))
    assert found.not_converged == (("gcn",) if cut_short else ())
    assert found.to_dict()["not_converged"] == found.not_converged


def test_methods_that_choose_no_epoch_have_converged(karate):
    assert compare(karate, ["lpa", "lr", "mlp"], splits=1).not_converged == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["gnc"]}, "unknown method 'gnc'; there are mlp, lr"),
        ({"methods": []}, "no method to compare"),
        ({"methods": ["lpa"], "reference": "gcn"}, "reference 'gcn' is not among the methods lpa"),
        ({"methods": ["lpa"], "splits": 0}, "no split to compare on"),
        ({"methods": ["lpa"], "seed": -1}, r"seed = -1; it is at least 0 and less than 2\*\*63"),
        ({"methods": ["lpa"], "seed": 2**63 - 5}, f"seed = {2**63}; it is at least 0"),
        ({"methods": ["lpa"], "recipe": "paper"}, "no settings for 'karate'"),
        ({"methods": ["lpa", "lr"], "changes": {"epochs": 3}}, "epochs = 3: none of the methods lpa, lr uses it"),
        ({"methods": ["lpa"], "changes": {"epoch": 3}}, "epoch"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_trained(karate, arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(karate, **arguments)


def test_the_command_prints_a_table_or_json(monkeypatch):
    found, asked = made_up({"gcn": None, "lr": Difference(-0.1, 0.02, 0.002)}), {}
    found = dataclasses.replace(found, recipes={"gcn": METHODS["gcn"].settings().replace(epochs=1)})

    def noted(graph, methods, **options):
        asked.update(options, graph=graph.name, methods=methods)
        return found

    monkeypatch.setattr("gcn_lpa.compare", noted)
    arguments = ["compare", "karate", "--methods", "gcn, lr", "--splits", "7", "--epochs", "2"]
    table = CliRunner().invoke(app, arguments)
    assert table.exit_code == 0, table.output
    lines = [line.split() for line in table.stdout.splitlines()]
    assert lines[0] == ["accuracy", "macro-F1", "to", "gcn", "p", "seconds"]
    assert lines[1] == ["gcn", *("80.0", "±", "1.0") * 2, "1.0"]
    assert lines[2] == ["lr", *("80.0", "±", "1.0") * 2, "-10.0", "±", "2.0", ".002", "1.0"]
    assert found.verdict in table.stdout
    assert "not converged: gcn; more --epochs may help\n" in table.stdout
    assert (asked["graph"], asked["methods"], asked["splits"]) == ("karate", ["gcn", "lr"], 7)
    assert asked["changes"] == {"epochs": 2}
    printed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert printed["verdict"] == found.verdict
    assert printed["rows"][1]["difference"] == {"mean": -0.1, "interval": 0.02, "p_value": 0.002}


def test_a_comparison_is_json(karate):
    found = compare(karate, ["lpa", "lpa-leave-one-out"], splits=2, changes={"epochs": 3})
    back = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert back["recipes"]["lpa-leave-one-out"]["epochs"] == 3
    assert len(back["records"]) == 4
    assert back["environment"]["torch"] == str(torch.__version__)
