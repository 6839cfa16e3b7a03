"""Which recipe suits a graph: the case is named, and every case has its recipe."""

import dataclasses
import itertools

import pytest
import torch

from gcn_lpa.graph import Graph
from gcn_lpa.recipes import (
    AMOUNTS,
    COLUMNS,
    DEFAULT,
    FIXED_EDGES,
    OFFICIAL,
    PAPER,
    WITH_FEW_LABELS,
    WITH_SOME_LABELS,
    WITH_STRUCTURE,
    WITHOUT_FEATURES,
    Case,
    case_of,
    choose_recipe,
    recipe_for,
)

EVERY_CASE = [
    Case(*facts)
    for facts in itertools.product(AMOUNTS, COLUMNS, (False, True))
    if facts[:2] != ("some", "none")  # without columns labels are few or many
]


def nodes(number, columns, **options):
    """Nodes in two classes, all labelled, on a ring."""
    edges = [(i, (i + 1) % number) for i in range(number)]
    return Graph.from_edges(edges, x=torch.ones(number, columns), y=[i % 2 for i in range(number)], **options)


def test_a_case_has_few_labels_below_forty_of_a_class_some_below_two_hundred_and_few_without_columns_below_ten():
    words = nodes(400, 191)
    for number, labels in ((400, "many"), (399, "some"), (80, "some"), (79, "few")):
        assert case_of(words, torch.arange(400) < number) == Case(labels)
    bare = dataclasses.replace(words, x_kind="identity")
    assert case_of(bare, torch.arange(400) < 20) == Case(columns="none")
    assert case_of(bare, torch.arange(400) < 19) == Case("few", "none")


def test_a_table_has_190_columns_at_most():
    table = nodes(100, 190)
    assert case_of(table, table.labeled).columns == "table"


def test_one_edge_type_is_none():
    for number, expected in ((1, False), (2, True)):
        graph = nodes(100, 3, edge_types=[str(i % number) for i in range(100)])
        assert case_of(graph, graph.labeled).edge_types == expected


def test_a_case_says_what_it_is():
    assert str(Case("few", columns="wide table", edge_types=True)) == "few labels, a wide table, edge types"
    assert str(Case(columns="none")) == "many labels, no columns"


def test_recipes_are_found_by_name():
    assert recipe_for(Case()) is DEFAULT
    assert recipe_for(Case("few")) is WITH_FEW_LABELS
    assert recipe_for(Case("some")) is WITH_SOME_LABELS
    assert recipe_for(Case(columns="none")) is WITH_STRUCTURE
    assert recipe_for(Case("few", columns="none")) is WITHOUT_FEATURES
    assert recipe_for(Case(columns="none"), "best").members == "trees neighbour-lr hops appnp layers"
    cora = dataclasses.replace(nodes(400, 191), name="cora")
    assert choose_recipe(cora, cora.labeled, by_folds=False) is DEFAULT
    assert choose_recipe(cora, cora.labeled, "paper", by_folds=False) is PAPER["cora"]
    assert choose_recipe(cora, cora.labeled, "official", by_folds=False) is OFFICIAL["cora"]
    with pytest.raises(ValueError, match=r"unknown recipe 'worst'.*default, quick, best, paper and official"):
        choose_recipe(cora, cora.labeled, "worst")


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_best_is_the_default_of_its_case_with_more_members(case):
    first, best = recipe_for(case), recipe_for(case, "best")
    assert best == first.replace(members=best.members, origin=best.origin)
    assert set(first.members.split()) < set(best.members.split())
    more = "" if case.labels == "few" or case.columns == "none" else " wide-three wide strong-wide narrow deep"
    more = f" trees{more}" if more and case.columns == "words" else more
    assert recipe_for(case, "best", has_time=True).members == f"{best.members}{more}"


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_trees_are_grown_on_tables_and_edges_learned_where_columns_are_many(case):
    recipe = recipe_for(case)
    has_trees = "trees" in recipe.members.split()
    assert has_trees == (case.columns in ("table", "wide table") or (case.columns == "none" and case.labels != "few"))
    if case.columns == "table":
        assert FIXED_EDGES.items() <= recipe.to_dict().items()


def test_positions_choose_as_their_mask_does(karate):
    few = torch.zeros(34, dtype=torch.bool).index_fill(0, torch.tensor([30, 33]), True)
    assert choose_recipe(karate, [30, 33]) == choose_recipe(karate, few)
