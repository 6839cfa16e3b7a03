"""Members and their models: what they predict together is the mean of what each predicts."""

import dataclasses

import pytest
import torch

from gcn_lpa.data.splits import split
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import MEMBERS, members_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, WITHOUT_FEATURES, Case, recipe_for
from gcn_lpa.trained import Trained

SMALL = {"hidden": 6, "edge_rank": 4, "epochs": 5, "patience": 0, "lr": 0.05}


def test_a_member_predicts_the_mean_of_its_models_and_the_ensemble_that_of_its_members(blocks):
    recipe = DEFAULT.replace(**SMALL, propagation="hops", members="", votes=False)
    parts = split(blocks, seed=0)
    trained = [learn(blocks, parts.train, parts.val, recipe, seed=k, device="cpu") for k in range(3)]
    prepared, (one, other, third) = trained[0].prepare(blocks), (each.model.first[0] for each in trained)
    logs = [torch.log_softmax(model(prepared).double(), dim=1) for model in (one, other, third)]
    ensemble = Ensemble([[one, other], [third, third]])
    first = torch.log_softmax((logs[0] + logs[1]) / 2, dim=1)
    assert torch.allclose(ensemble.parts(prepared)[0], first)
    assert torch.allclose(ensemble.parts(prepared)[1], logs[2])
    assert torch.allclose(ensemble(prepared), (first + logs[2]) / 2)
    walks = [model.transition(prepared).values for model in (one, other)]
    assert torch.allclose(ensemble.transition(prepared).values, (walks[0] + walks[1]) / 2)
    assert len(ensemble.edge_parameters()) == 2 * len(one.edge_parameters()) > 0
    assert (len(ensemble.first), ensemble.device) == (2, torch.device("cpu"))


def test_a_single_model_is_an_ensemble_that_gives_its_own_logits(blocks):
    parts, recipe = split(blocks, seed=0), DEFAULT.replace(**SMALL, members="", votes=False)
    trained = learn(blocks, parts.train, parts.val, recipe, device="cpu")
    prepared = trained.prepare(blocks)
    assert torch.equal(trained.model(prepared), trained.model.first[0](prepared))


def test_models_that_learn_no_edges_walk_the_given_ones(blocks):
    parts = split(blocks, seed=0)
    trained = learn(blocks, parts.train, parts.val, recipe_for(Case()).replace(method="lr", members=""), device="cpu")
    prepared = trained.prepare(blocks)
    assert trained.model.edge_parameters() == []
    assert torch.equal(trained.model.transition(prepared).values, prepared.adjacency.row_normalized().values)


@pytest.mark.long
@pytest.mark.parametrize("first", [DEFAULT, WITHOUT_FEATURES], ids=["features", "no features"])
def test_an_ensemble_of_every_member_comes_back_from_its_folder(blocks, karate, tmp_path, first):
    has_columns = first is DEFAULT
    graph, names = (blocks, list(MEMBERS)) if has_columns else (karate, ["layers"])
    recipe, parts = first.replace(**SMALL, members=" ".join(names)), split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, recipe, device="cpu")
    assert trained.weights.num_members == 1 + len(names)
    trained.save_pretrained(tmp_path / "model")
    again = Trained.from_pretrained(tmp_path / "model")
    assert torch.equal(predict_proba(trained, graph), predict_proba(again, graph))


@pytest.mark.long
def test_the_shares_are_those_of_the_ensemble_weights(blocks):
    parts = split(blocks, seed=0)
    trained = learn(blocks, parts.train, parts.val, DEFAULT.replace(**SMALL, members="trees hops"), device="cpu")
    first, trees, hops, *votes = trained.weights.weights
    total = sum(trained.weights.weights)
    expected = {"gcn-lpa": first, "trees": trees, "hops": hops, "votes": sum(votes)}
    assert trained.shares == pytest.approx({name: weight / total for name, weight in expected.items()})
    assert dataclasses.replace(trained, weights=None).shares == {}


def test_an_unknown_member_is_refused_by_name(blocks):
    parts = split(blocks, seed=0)
    with pytest.raises(ValueError, match=r"unknown member 'forest'; there are hops, strong-hops, .*trees"):
        learn(blocks, parts.train, parts.val, DEFAULT.replace(members="hops forest"), device="cpu")


def test_members_share_what_the_graph_is_prepared_with():
    recipes = members_of(recipe_for(Case(columns="table"), "best", has_time=True))
    assert len({(member.features, member.structure, member.self_loops) for member in recipes.values()}) == 1
    assert {"trees", "neighbour-lr", "wide"} < recipes.keys()
    assert not any(member.votes or member.members for member in recipes.values())


def test_every_member_weighs_classes_as_the_first_does():
    recipe = DEFAULT.replace(members=" ".join(MEMBERS), class_weights="balanced")
    assert {member.class_weights for member in members_of(recipe).values()} == {"balanced"}


def test_on_a_table_with_many_labels_nothing_walks_learned_edges():
    """docs/accuracy.md: they cost accuracy."""
    for name, count in (("default", 4), ("best", 7)):
        recipes = members_of(recipe_for(Case(columns="table"), name))
        assert {member.edges for member in recipes.values()} == {"fixed"}
        assert len(recipes) == 1 + count
    assert recipe_for(Case()).edges == "cosine"
