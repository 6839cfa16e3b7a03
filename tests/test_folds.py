"""Learning from all labels by folds, and teams of models: what they say is the mean of what each says."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from gcn_lpa.choice import WITHOUT_FEATURES, best_of, facts_of, recipe_for
from gcn_lpa.folds import UNCHOSEN, _FoldModels, learn_folds
from gcn_lpa.graph import Graph
from gcn_lpa.learning import learn
from gcn_lpa.methods.team import LIBRARY, EdgeTeam, Team, members_of, team_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.splits import label_folds, split
from gcn_lpa.stacks import learn_many
from gcn_lpa.tables.datasets import load
from gcn_lpa.train import DivergedError, Epoch, Kept, Run
from gcn_lpa.trained import Trained

SMALL = {"hidden": 6, "edge_rank": 4, "epochs": 5, "patience": 0, "lr": 0.05}


@pytest.fixture(scope="module")
def graph():
    return load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0)


def test_folds_share_out_each_class_evenly(graph):
    given = torch.arange(60) % 3 > 0
    folds = label_folds(graph.y, given, 5, seed=(0, 0))
    assert torch.equal(torch.stack(folds).sum(dim=0), given.long())
    for k in range(3):
        sizes = [int((fold & (graph.y == k)).sum()) for fold in folds]
        assert max(sizes) - min(sizes) <= 1


def test_a_team_says_the_mean_of_its_members_and_a_member_that_of_its_models(graph):
    recipe = DEFAULT.replace(**SMALL, propagation="hops", votes=False)
    parts = split(graph, seed=0)
    one, other, third = (learn(graph, parts.train, parts.val, recipe, seed=k, device="cpu") for k in range(3))
    prepared = one.prepare(graph)
    logs = [torch.log_softmax(each.model(prepared).double(), dim=1) for each in (one, other, third)]
    team = team_of([[one.model, other.model], [third.model, third.model]])
    assert isinstance(team, EdgeTeam)
    assert torch.allclose(team.parts(prepared)[0], (logs[0] + logs[1]) / 2)
    assert torch.allclose(team(prepared), ((logs[0] + logs[1]) / 2 + logs[2]) / 2)
    walks = [each.model.transition(prepared).values for each in (one, other)]
    assert torch.allclose(team.transition(prepared).values, (walks[0] + walks[1]) / 2)
    assert torch.allclose(team.edge_scores(prepared).row_softmax().values, (walks[0] + walks[1]) / 2, atol=1e-6)


def test_models_without_edges_make_a_team_without_edges(graph):
    parts = split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, recipe_for("default", "any").replace(method="lr"), device="cpu")
    assert type(team_of([[trained.model]])) is Team


@pytest.mark.long
@pytest.mark.parametrize("first", [DEFAULT, WITHOUT_FEATURES], ids=["features", "no features"])
def test_a_team_with_every_member_comes_back_from_its_folder(graph, tmp_path, first):
    names = "layers" if first is WITHOUT_FEATURES else " ".join(LIBRARY)
    recipe, parts = first.replace(**SMALL, members=names), split(graph, seed=0)
    if first is WITHOUT_FEATURES:
        graph = load("karate")
        parts = split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, recipe, device="cpu")
    assert trained.fusion.num_experts == (2 if first is WITHOUT_FEATURES else 1 + len(LIBRARY))
    trained.save_pretrained(tmp_path / "team")
    again = Trained.from_pretrained(tmp_path / "team")
    assert torch.equal(predict_proba(trained, graph), predict_proba(again, graph))


@pytest.mark.long
def test_the_shares_of_the_weight_are_those_of_the_fusion(graph):
    parts = split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, DEFAULT.replace(**SMALL, members="trees hops"), device="cpu")
    first, trees, hops, *votes = trained.fusion.weights
    total = sum(trained.fusion.weights)
    expected = {"gcn-lpa": first, "trees": trees, "hops": hops, "votes": sum(votes)}
    assert trained.shares == pytest.approx({name: weight / total for name, weight in expected.items()})
    assert dataclasses.replace(trained, fusion=None).shares == {}


@pytest.mark.long
def test_many_teams_are_what_each_is_alone(graph):
    parts = [split(graph, seed=k) for k in range(4)]
    recipe = DEFAULT.replace(**SMALL, members="layers trees")
    order = []
    teams = learn_many(
        graph,
        [(p.train, p.val) for p in parts],
        recipe,
        seeds=range(4),
        device="cpu",
        on_model=lambda k, _: order.append(k),
    )
    assert order == [0, 1, 2, 3]
    for seed, (part, team) in enumerate(zip(parts, teams, strict=True)):
        alone = learn(graph, part.train, part.val, recipe, seed=seed, device="cpu")
        assert team.recipe == alone.recipe
        assert torch.allclose(predict_proba(team, graph), predict_proba(alone, graph), atol=1e-3)


@pytest.mark.parametrize("columns", [False, True], ids=["edges alone", "with columns"])
def test_where_no_class_has_two_labels_all_of_them_teach(columns):
    """Two communities and the label of one member each: held out, it would leave a model that knows one class."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    ends = rng.integers(0, 60, (600, 2))
    ends = ends[(y[ends[:, 0]] == y[ends[:, 1]]) | (rng.random(600) < 0.1)]
    x = (rng.normal(size=(60, 3)) + y[:, None]).astype(np.float32) if columns else None
    known = np.where(np.arange(60) < 2, y, -1)
    graph = Graph.from_edges(ends, num_nodes=60, x=x, y=known, class_names=["even", "odd"])
    recipe = recipe_for("default", graph.name, **facts_of(graph, graph.labeled))
    trained = learn_folds(graph, recipe=recipe, device="cpu")
    assert trained.held_out is None and trained.fusion is None and trained.calibration is None
    assert len(trained.run.history) <= UNCHOSEN
    right = predict_proba(trained, graph).argmax(dim=1).numpy() == y
    assert right[2:].mean() > 0.9
    more = dataclasses.replace(graph, y=graph.y.index_fill(0, torch.tensor([2]), 0))
    assert learn_folds(more, recipe=recipe.replace(epochs=5), device="cpu").held_out is not None


def test_an_unknown_member_is_refused_by_name(graph):
    parts = split(graph, seed=0)
    with pytest.raises(ValueError, match=r"unknown member 'forest'; there are hops, linear, .*trees"):
        learn(graph, parts.train, parts.val, DEFAULT.replace(members="hops forest"), device="cpu")


def test_members_share_what_the_graph_is_prepared_with():
    recipes = members_of(best_of(recipe_for("default", "any", num_columns=5), wide=True))
    assert len({(own.features, own.structure, own.self_loops) for own in recipes.values()}) == 1
    assert "trees" in recipes
    assert "neighbour-lr" in recipes
    assert not any(own.votes or own.members for own in recipes.values())


def test_every_member_weighs_classes_as_the_first_does():
    recipe = DEFAULT.replace(members=" ".join(LIBRARY), class_weights="balanced")
    assert {own.class_weights for own in members_of(recipe).values()} == {"balanced"}


def test_on_a_table_with_many_labels_nothing_walks_learned_edges():
    """docs/accuracy.md: they cost accuracy."""
    for name, count in (("default", 3), ("best", 6)):
        recipes = members_of(recipe_for(name, "any", num_columns=20))
        assert {own.edges for own in recipes.values()} == {"fixed"}
        assert len(recipes) == 1 + count
    assert recipe_for("default", "any").edges == "cosine"


def test_the_last_fold_begins_with_what_took_longest():
    seconds = {"": 2.0, "trees": 0.5, "deep": 5.0}
    took = {(0, name): (None, Run(DEFAULT, 0, (Epoch(1, 0, 0, 0, 0, 0, s),), 1), None) for name, s in seconds.items()}
    models = _FoldModels(None, None, [None] * 3, DEFAULT, {}, lambda k: {}, None, False)
    members = dict.fromkeys(seconds, DEFAULT)
    assert list(models.tasks(members, took)) == [
        *((k, name) for k in range(2) for name in seconds),
        *((2, name) for name in ("deep", "", "trees")),
    ]
    assert sorted(models.tasks(members, {})) == sorted((k, name) for k in range(3) for name in seconds)


@pytest.mark.long
def test_without_time_members_are_left_out(graph):
    recipe = DEFAULT.replace(**SMALL, members="hops layers linear")
    few = learn_folds(graph, None, recipe, device="cpu", minutes=1e-9)
    some = learn_folds(graph, None, recipe, device="cpu", minutes=10**6)
    assert few.recipe.members == ""
    assert some.recipe == recipe
    alone = learn_folds(graph, None, recipe.replace(members=""), device="cpu")
    assert torch.equal(predict_proba(few, graph), predict_proba(alone, graph))


@pytest.mark.long
def test_trees_learn_from_all_labels_to_predict_with_the_rounds_that_folds_chose(graph, monkeypatch):
    given = torch.arange(60) % 2 == 0
    recipe = DEFAULT.replace(**SMALL, members="trees", votes=False)
    options = {"device": "cpu", "classes": graph.class_names}
    trained, alone = learn_folds(graph, given, recipe, **options), members_of(recipe)["trees"]
    folds = label_folds(graph.y, given, 5, seed=(0, 0))
    rounds = sorted(len(learn(graph, given & ~fold, fold, alone, **options).model.feature) for fold in folds)
    monkeypatch.setattr("gcn_lpa.methods.tabular.Trees.chosen_rounds", lambda *_: rounds[2])
    for k, model in enumerate(trained.model.bags[1]):
        whole = learn(graph, given, [], alone, seed=k, **options)
        states = model.state_dict(), whole.model.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


@pytest.mark.parametrize("bytes_kept", [0, 20_000])
def test_weights_kept_while_training_are_those_of_another_training(graph, monkeypatch, bytes_kept):
    monkeypatch.setattr("gcn_lpa.folds.MANY_LABELS", 10**9)
    recipe = DEFAULT.replace(**SMALL, members="layers")
    kept = learn_folds(graph, recipe=recipe, device="cpu")
    monkeypatch.setattr(Kept.__init__, "__defaults__", (bytes_kept,))
    again = learn_folds(graph, recipe=recipe, device="cpu")
    assert kept.fusion == again.fusion
    assert torch.equal(kept.held_out.probability, again.held_out.probability)


@pytest.mark.long
@pytest.mark.parametrize("many", [0, 10**9])
def test_processes_give_the_bits_of_one_and_tell_every_epoch(graph, monkeypatch, many):
    monkeypatch.setattr("gcn_lpa.learning.FEWEST_NODES", 0)
    monkeypatch.setattr("gcn_lpa.folds.MANY_LABELS", many)
    recipe, heard = DEFAULT.replace(**SMALL, members="layers linear"), []
    options = {"recipe": recipe, "device": "cpu"}
    alone = learn_folds(graph, **options, threads=1)
    monkeypatch.setattr("gcn_lpa.folds._FoldModels.one_by_one", None)
    team = learn_folds(
        graph, **options, threads=2, options=lambda k: {"on_epoch": lambda e: heard.append((k, e.epoch))}
    )
    assert sorted(heard) == sorted((k, e) for k in range(5) for e in range(1, 6) for _ in range(3))
    assert team.fusion == alone.fusion
    assert torch.equal(team.held_out.probability, alone.held_out.probability)
    assert torch.equal(predict_proba(team, graph), predict_proba(alone, graph))


@pytest.mark.long
def test_processes_leave_out_members_without_time_and_name_the_one_that_diverges(graph, monkeypatch):
    monkeypatch.setattr("gcn_lpa.learning.FEWEST_NODES", 0)
    recipe = DEFAULT.replace(**SMALL, members="hops layers")
    options = {"device": "cpu", "threads": 2}
    assert learn_folds(graph, None, recipe, **options, minutes=1e-9).recipe.members == ""
    assert learn_folds(graph, None, recipe, **options, minutes=10**6).recipe == recipe
    with pytest.raises(DivergedError, match="training diverged at epoch"):
        learn_folds(graph, None, recipe.replace(lr=1e30), **options)


FORKED = """
import sys, torch
from gcn_lpa.folds import learn_folds
from gcn_lpa.recipes import FIXED_EDGES, DEFAULT
from gcn_lpa.stacks import learn_many
from gcn_lpa.splits import split
from gcn_lpa.tables.datasets import load
torch.set_num_threads(2)
(torch.ones(10**6) + 1).sum()  # torch has a team of two threads, which a forked process has not
graph = load("sbm", n=34_000, classes=3, features=5, degree=4.0)
assert graph.adjacency.num_entries > 2**15 < graph.num_nodes
recipe = DEFAULT.replace(**FIXED_EDGES, members="", votes=False, hidden=4, epochs=2, patience=0)
learn_folds(graph, recipe=recipe, device="cpu", options=lambda k: {"checkpoint": f"{sys.argv[1]}/{k}"})
parts = split(graph, seed=0)
learn_many(graph, [(parts.train, parts.val)] * 2, recipe, seeds=[0, 1], device="cpu")
print("done")
"""


@pytest.mark.long
def test_forked_processes_wait_for_no_thread_of_their_parent(tmp_path):
    """torch shares loops of 32,768 numbers among threads; those of the parent are not there after a fork."""
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == "done\n", ended.stderr
