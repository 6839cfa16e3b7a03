"""`tune`: it searches where it says, by validation nodes alone, and a search that is killed goes on."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.splits import split
from gcn_lpa.insight import tune as tuning
from gcn_lpa.insight.tune import SPACE, Search, choices_of, tune
from gcn_lpa.recipes import DEFAULT, PAPER
from tests.helpers.searches import APPENDIX_F, QUICK, WALKS, one_at_a_time, searched

ROOT = Path(__file__).parents[2]
GOAL = {"hidden": 16, "gcn_layers": 3, "lpa_iterations": 7, "l2": 2e-6, "lpa_weight": 2, "dropout": 0.3, "lr": 0.2}


@pytest.fixture
def settings_alone(monkeypatch):
    """Trials without training: a recipe reaches the share of its settings that are those of GOAL."""

    def reached(graph, parts, recipe, **options):
        right = sum(getattr(recipe, name) == value for name, value in GOAL.items())
        return [SimpleNamespace(run=SimpleNamespace(best=SimpleNamespace(val_accuracy=right / len(GOAL))))] * len(parts)

    monkeypatch.setattr(tuning, "learn_many", reached)


@pytest.mark.long
def test_one_setting_at_a_time_finds_the_best_of_each(karate, tmp_path, settings_alone):
    space = {name: APPENDIX_F[name] for name in ("hidden", "gcn_layers", "dropout", "lr")}
    found = one_at_a_time(karate, tmp_path, Search(trials=500, space=space))
    assert {name: getattr(found.recipe, name) for name in space} == {name: GOAL[name] for name in space}
    one_round = 1 + sum(len(values) - 1 for values in space.values())  # Table 4's Cora is in the space
    known = len(space["lr"]) - 1  # of the second round, which finds nothing: the last setting was tried with the best others
    assert len(found.trials) == one_round + (one_round - 1) - known
    start = {name: getattr(PAPER["cora"], name) for name in space}
    assert [dict(t.settings.items() - start.items()) for t in found.trials[:3]] == [{}, {"hidden": 8}, {"hidden": 16}]


@pytest.mark.long
def test_a_search_tries_the_values_it_is_given_and_says_which_settings_mattered(karate, tmp_path, settings_alone):
    space = {"hidden": (8, 16), "lr": (0.05, 0.2), "dropout": (0.2, 0.3)}
    found = searched(karate, tmp_path, Search(trials=30, space=space))
    assert found.trials[0].settings == {"hidden": 32, "lr": 0.05, "dropout": 0.2}  # where it starts
    tried = {(t.settings["hidden"], t.settings["lr"], t.settings["dropout"]) for t in found.trials}
    assert tried <= {(h, r, d) for h in (8, 16, 32) for r in (0.05, 0.2) for d in (0.2, 0.3)}
    assert (found.recipe.hidden, found.recipe.lr, found.recipe.dropout) == (16, 0.2, 0.3)
    assert set(found.importance) == {"hidden", "lr", "dropout"}


@pytest.mark.long
def test_a_search_with_more_trials_goes_on_from_those_it_has(karate, tmp_path, settings_alone):
    first = searched(karate, tmp_path, Search(trials=7))
    again = searched(karate, tmp_path, Search(trials=12))
    assert len(again.trials) == 12
    assert again.trials[:7] == first.trials
    assert len({str(t.settings) for t in again.trials}) > 10  # a sampler with the old seed would draw the same again
    assert searched(karate, tmp_path, Search(trials=3)).trials == again.trials


def test_a_search_is_not_mixed_with_another(karate, two_cliques, tmp_path, settings_alone):
    searched(karate, tmp_path / "search", Search(trials=1))
    for other, word in (({"graph": two_cliques}, "graph"), ({"start": PAPER["pubmed"]}, "recipe")):
        with pytest.raises(ValueError, match=rf"search holds a search with another .*{word}"):
            searched(**{"graph": karate, **other}, out=tmp_path / "search", search=Search(trials=2))
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="holds something else than a search"):
        searched(karate, tmp_path, Search(trials=1))


def test_settings_that_a_recipe_refuses_are_not_tried():
    assert choices_of(DEFAULT, APPENDIX_F)["lpa_iterations"] == (1, 2)  # leave_one_out is exact for two at most
    assert choices_of(PAPER["cora"], APPENDIX_F) == APPENDIX_F
    assert "lpa_weight" not in choices_of(DEFAULT.replace(method="gcn-same"), SPACE)
    with pytest.raises(ValueError, match="method 'trees' uses no setting of this space"):
        choices_of(DEFAULT.replace(method="trees"), APPENDIX_F)


@pytest.mark.long
def test_permuting_test_labels_changes_no_trial(karate, tmp_path):
    parts = split(karate, seed=0)
    y = karate.y.clone()
    y[parts.test] = 1 - y[parts.test]
    other = dataclasses.replace(karate, y=y)
    found = [
        tune(graph, parts.train, parts.val, QUICK, tmp_path / name, Search(trials=6))
        for name, graph in (("as it is", karate), ("permuted", other))
    ]
    assert [t.settings for t in found[0].trials] == [t.settings for t in found[1].trials]
    assert [t.val_score for t in found[0].trials] == [t.val_score for t in found[1].trials]
    assert found[0].recipe == found[1].recipe
    y[parts.val] = 1 - y[parts.val]  # what the trials do look at
    third = tune(other, parts.train, parts.val, QUICK, tmp_path / "third", Search(trials=6))
    assert [t.val_score for t in third.trials] != [t.val_score for t in found[0].trials]


@pytest.mark.long
def test_trials_that_fall_behind_are_pruned_and_a_diverged_one_is_no_result(karate, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "REPORTED", 1)
    space = {"lr": (1e-9, 2e-9, 0.02, 0.03, 0.04, 0.05, 0.06, 1e30)}
    start = QUICK.replace(lr=0.01, epochs=60)
    found = one_at_a_time(karate, tmp_path, Search(trials=20, space=space), start)
    values = {t.settings["lr"]: t.val_score for t in found.trials}
    assert values[0.02] is not None
    assert values[1e30] is None
    states = {t.params["lr"]: t for t in optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path}/study.db").trials}
    assert len(states[0.02].intermediate_values) == 60
    assert found.val_score == max(v for v in values.values() if v is not None)


SEARCH = """
import sys, time
from pathlib import Path
from gcn_lpa.data.datasets import load
from tests.helpers.searches import APPENDIX_F, QUICK, WALKS, Search
search = Search(trials=9, space=APPENDIX_F)
told = lambda trial: (print(trial.number, flush=True), time.sleep(0.2))
WALKS[sys.argv[2]](load("karate"), Path(sys.argv[1]), search, QUICK, on_trial=told)
"""


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["optuna", "coordinate"])
def test_a_killed_search_loses_no_finished_trial(karate, tmp_path, strategy):
    walk, search = WALKS[strategy], Search(trials=9, space=APPENDIX_F)
    command = [sys.executable, "-c", SEARCH, str(tmp_path / "killed"), strategy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        for _ in range(4):
            process.stdout.readline()
        time.sleep(0.25)  # in the middle of the fifth
        process.send_signal(signal.SIGKILL)
    url = f"sqlite:///{tmp_path}/killed/study.db"
    before = {t.number: t for t in optuna.load_study(study_name=None, storage=url).trials if t.state.is_finished()}
    assert len(before) >= 4
    assert json.loads((tmp_path / "killed" / "best.json").read_text())["method"] == "gcn-lpa"
    resumed = walk(karate, tmp_path / "killed", search, QUICK)
    after = {t.number: t.val_score for t in resumed.trials}
    assert {number: after[number] for number in before} == {number: t.value for number, t in before.items()}
    assert len(resumed.trials) == 9
    if strategy == "coordinate":  # as if it had not been killed
        whole = walk(karate, tmp_path / "whole", search, QUICK)
        assert [(t.settings, t.val_score) for t in whole.trials] == [(t.settings, t.val_score) for t in resumed.trials]


@pytest.mark.long
def test_the_command_writes_a_recipe_that_train_takes(tmp_path):
    def said(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    out = tmp_path / "a?b"  # a name that is no address
    words = ["tune", "karate", "--trials", 3, "--set", "epochs=5", "--out", out]
    done = said(*words)
    assert done.exit_code == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a?b"]
    assert sorted(os.listdir(out)) == ["best.json", "study.db"]
    assert "on 6 validation nodes" in done.stdout
    assert "so few validation nodes cannot tell recipes apart" in done.stdout
    line = done.stdout.splitlines()[-1].split()
    assert line[:3] == ["gcn-lpa", "train", "karate"]
    scored = json.loads(said("train", "karate", "--recipe", out / "best.json", *line[5:], "--json").stdout)
    best = json.loads((out / "best.json").read_text())
    assert {name: scored["recipe"][name] for name in best} == best
    again = json.loads(said(*words, "--json").stdout)
    assert math.isclose(again["val_score"], max(t["val_score"] for t in again["trials"]))


@pytest.mark.slow
def test_a_recipe_tuned_on_cora_is_scored_once_on_test(datasets, tmp_path):
    done = CliRunner().invoke(app, ["tune", "cora", "--trials", "20", "--out", str(tmp_path / "s"), "--json"])
    found = json.loads(done.stdout)
    assert len(found["trials"]) == 20
    assert found["val_score"] >= found["start_score"] > 0.8
    trained = CliRunner().invoke(app, [*found["command"].split()[1:], "--json"])
    assert json.loads(trained.stdout)["results"]["scores"]["accuracy"] > 0.84  # GCN's on random splits is 0.86 to 0.88


def test_without_validation_nodes_there_is_nothing_to_choose_by(karate, tmp_path):
    nobody = torch.zeros(34, dtype=torch.bool)
    with pytest.raises(ValueError, match="no validation node to choose a recipe by"):
        tune(karate, karate.labeled, nobody, QUICK, tmp_path)
