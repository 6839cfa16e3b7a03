"""A forecast adds up work over speed: more of one is more seconds, and members that are tried on one fold cost one training."""

import pandas
import pytest
import torch

from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import DEFAULT, QUICK
from gcn_lpa.scale.forecast import STARTING, Speed, duration, forecast, seconds_of_members, speed

MACHINE = Speed(sparse=1e9, dense=1e10, call=1e-5)


def ring(n=3000, d=5):
    generator = torch.Generator().manual_seed(0)
    y = [k % 2 for k in range(n)]
    return Graph.from_edges([(k, (k + 1) % n) for k in range(n)], x=torch.rand(n, d, generator=generator), y=y)


def test_twice_the_speed_takes_half_the_time():
    graph, twice = ring(), Speed(2e9, 2e10, 5e-6)
    slow, fast = (forecast(graph, QUICK.replace(members=""), machine=machine) - STARTING for machine in (MACHINE, twice))
    assert slow == pytest.approx(2 * fast)


def test_a_member_that_has_to_show_its_worth_is_trained_once():
    graph, recipe = ring(), DEFAULT.replace(members="layers")
    each = seconds_of_members(graph, recipe, by_folds=True, machine=MACHINE)
    judged = seconds_of_members(graph, recipe.replace(members="hop-columns layers"), by_folds=True, machine=MACHINE)
    assert each["layers"] == pytest.approx(5 * judged["layers"])
    assert seconds_of_members(graph, recipe, by_folds=False, machine=MACHINE)["layers"] == pytest.approx(judged["layers"])


def test_edges_that_differ_cost_two_small_models_of_each_fold():
    nodes = pandas.DataFrame({"id": range(60), "size": range(60), "label": ["x", "y"] * 30})
    edges = pandas.DataFrame({"source": range(59), "target": range(1, 60), "amount": range(59)})
    recipe = DEFAULT.replace(members="", edge_weights=True)
    each = seconds_of_members(read_csv(nodes, edges), recipe, by_folds=True, machine=MACHINE)
    alike = seconds_of_members(read_csv(nodes, edges.drop(columns="amount")), recipe, by_folds=True, machine=MACHINE)
    assert (set(each), set(alike)) == ({"", "edge weights"}, {""})
    once = seconds_of_members(read_csv(nodes, edges), recipe, by_folds=False, machine=MACHINE)
    assert each["edge weights"] == pytest.approx(5 * once["edge weights"])


def test_quick_costs_less_than_the_default_and_the_machine_is_measured_once():
    graph = ring()
    assert forecast(graph, QUICK, machine=MACHINE) < forecast(graph, DEFAULT, machine=MACHINE)
    assert speed() is speed()
    assert 1e7 < speed().sparse < 1e12


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (12.4, "12 s"), (200, "3 min"), (9000, "2.5 h")])
def test_durations_are_for_people(seconds, words):
    assert duration(seconds) == words
