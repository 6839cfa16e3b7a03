"""The planner: formulas against the memory of a process, bytes counted by hand, and trainings that cannot fit."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import memory
from gcn_lpa.cli.app import app
from gcn_lpa.cli.options import print_room
from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.engine.sparse import Pattern
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import DEFAULT, LAYERS, PAPER, Recipe
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.scale import planner
from gcn_lpa.scale.planner import Size, estimate, require_room
from tests.helpers.random_graphs import random_graph

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


MEASURE = """
import gc, json, sys
import torch
from gcn_lpa.learning.learn import learn
from gcn_lpa.scale.planner import Size, estimate
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import Recipe
from tests.helpers.random_graphs import NUM_NODES, random_graph

def resident(name):
    with open("/proc/self/status") as facts:
        return 1024 * int(next(line for line in facts if line.startswith(name)).split()[1])

def train(graph):
    number = torch.arange(graph.num_nodes) % 10
    trained = learn(graph, number < 6, number == 6, recipe, device="cpu")
    predict_proba(trained, graph, raw=True)

recipe, shape, options = Recipe.from_dict(json.loads(sys.argv[1])), *json.loads(sys.argv[2])
train(random_graph(400, *shape, **options))  # compiles the kernels
gc.collect()
before = resident("VmRSS")
graph = random_graph(NUM_NODES, *shape, **options)
gc.collect()
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
train(graph)
print(resident("VmHWM") - before, estimate(Size.of(graph), recipe).peak)
"""

CASES = {
    "default": (DEFAULT, (10, 32, 10), {}),
    "many edges": (DEFAULT, (80, 32, 10), {"directed": True}),
    "many classes": (DEFAULT, (10, 32, 100), {}),
    "many columns": (DEFAULT.replace(edges="bilinear", propagation="layers"), (10, 300, 10), {}),
    "free edges": (PAPER["cora"], (10, 500, 10), {"sparse": True}),
    "hops": (DEFAULT.replace(propagation="hops", lpa_iterations=2, edges="gat"), (40, 32, 10), {}),
    "clusters": (DEFAULT.replace(clusters=10), (10, 32, 10), {}),
}
SLOW = ("clusters", "many edges", "many columns", "hops")  # enough for a check: the other cases


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.long) for name in CASES]
)
def test_the_estimate_is_within_a_fifth_of_what_a_process_takes(name):
    """The other road: how far the resident memory of a process grows while it trains and predicts."""
    recipe, shape, options = CASES[name]
    if recipe.clusters:
        pytest.importorskip("pymetis")
    arguments = json.dumps(recipe.replace(epochs=2, patience=0).to_dict()), json.dumps([shape, options])
    exact = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed is given back
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], env={**os.environ, **exact}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken, estimated = map(float, done.stdout.split())
    assert estimated == pytest.approx(taken, rel=planner.ACCURACY)


def test_a_gpu_holds_what_the_estimate_says(datasets):
    """The bytes were measured on an H200; the estimates beside them are those that the planner makes now."""
    measured = json.loads((RESULTS / "memory-h200.json").read_text(encoding="utf-8"))
    rows = memory.planned_anew(json.loads(json.dumps(measured)), 200_000, str(datasets))["rows"]
    assert rows == measured["rows"]
    sides = [row[side] for recipes in rows.values() for row in recipes.values() for side in ("whole", "clusters")]
    assert len(sides) == 24
    for side in sides:
        assert side["estimate"] == pytest.approx(side["bytes"], rel=planner.ACCURACY)


def test_of_a_gpu_the_whole_training_counts(monkeypatch):
    graph, gpu = random_graph(2000, 10, 8, 3), torch.device("cuda")
    needed = estimate(Size.of(graph), DEFAULT).gpu
    monkeypatch.setattr(planner, "available_memory", lambda device: needed)
    assert require_room(graph, DEFAULT, gpu).needed == needed
    monkeypatch.setattr(planner, "available_memory", lambda device: 0.7 * needed)
    with pytest.raises(ValueError, match=r"training takes about .* of memory, and .* are free; --clusters 3 would take"):
        require_room(graph, DEFAULT, gpu)


def test_features_in_a_file_are_on_the_gpu_all_the_same():
    size = Size(1000, 5000, 64, 3)
    for clusters in (0, 10):
        recipe = DEFAULT.replace(clusters=clusters)
        there = estimate(dataclasses.replace(size, mapped=True), recipe)
        assert there.gpu == estimate(size, recipe).gpu and there.features == 0


def test_parts_of_the_estimate_are_the_arrays_of_a_small_graph():
    """4 nodes, 3 edges: free weights have two means and a copy, and an index has 4 bytes up to 2³¹ entries."""
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)], x=np.ones((4, 5), dtype=np.float32), y=[0, 1, 0, 1])
    size = Size.of(graph)
    assert (size.nodes, size.entries, size.columns, size.classes) == (4, 6 + 4, 5, 2)
    assert graph.with_self_loops().adjacency.num_entries == size.entries
    recipe = Recipe(edges="free", gcn_layers=2, hidden=3, residual=False, features="raw")
    found = estimate(size, recipe)
    assert found.parameters == 4 * 4 * (5 * 3 + 3 * 2 + 10)
    assert found.features == 4 * 4 * 5
    assert size.index == Pattern(torch.tensor([0, 1]), torch.tensor([0]), (1, 1)).col.element_size()
    assert Size(1e9, 3e9, 5, 2).index == 8


def test_bytes_received_by_a_worker_are_those_counted_by_hand():
    """2 workers of 100 rows, halo 50: layers of width 8 and 3, and 2 LPA steps of width 3.

    Forward 8 + 3, backward 8 + 3, validation 8 + 3; LPA forward 3 + 3, backward 3, as the labels have no gradient.
    """
    size = Size(200, 1000, 5, 3).share(2, halo=0.5)
    recipe = Recipe(hidden=8, gcn_layers=2, lpa_iterations=2, edges="free", loss="literal")
    assert (size.nodes, size.halo) == (100, 50)
    assert estimate(size, recipe).received == 50 * 4 * (3 * (8 + 3) + 6 + 3)
    assert estimate(Size(200, 1000, 5, 3).share(1, halo=0.5), recipe).received == 0


def test_a_training_that_cannot_fit_is_refused_with_what_would(monkeypatch, tmp_path):
    graph, wide = random_graph(2000, 10, 8, 3), DEFAULT.replace(hidden=256)
    for share, advice in ((0.7, r"--clusters \d+ would take about"), (0.01, "it takes a larger machine")):
        whole = estimate(Size.of(graph), wide)
        free = share * (whole.peak - whole.loaded)
        monkeypatch.setattr(planner, "available_memory", lambda device, free=free: free)
        with pytest.raises(ValueError, match=rf"training takes about .* MB of memory, and .* are free; .*{advice}"):
            require_room(graph, wide, CPU)
    plan, digits = make_plan(Source("digits"))
    monkeypatch.setattr(planner, "available_memory", lambda device: 1000.0)
    with pytest.raises(ValueError, match="training takes about"):
        train_run(plan, digits, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_fits_is_not_refused_although_the_estimate_is_a_little_high(monkeypatch):
    monkeypatch.setattr(planner, "SMALL", 0)
    graph = random_graph(2000, 10, 8, 3)
    needed = require_room(graph, DEFAULT, CPU).needed
    monkeypatch.setattr(planner, "available_memory", lambda device: 0.85 * needed)
    assert require_room(graph, DEFAULT, CPU).needed == needed
    assert require_room(graph, DEFAULT.replace(method="appnp"), CPU) is None  # no formula


RECIPES = [DEFAULT, LAYERS, *PAPER.values(), *(Recipe(edges=form) for form in EDGE_FORMS), Recipe(hidden=400)]
RECIPES += [Recipe(gcn_layers=9), Recipe(lpa_iterations=80, loss="held_out"), Recipe(edge_rank=300)]


@pytest.mark.parametrize("shape", [(30, 3, 2, 2), (300, 2, 40, 5), (1000, 3, 2, 2), (20, 19, 500, 2), (10, 2, 5, 20)])
def test_what_is_not_estimated_takes_little(monkeypatch, shape):
    graph = random_graph(*shape)
    small = [recipe for recipe in RECIPES if require_room(graph, recipe, CPU) is None]
    monkeypatch.setattr(planner, "SMALL", 0.0)
    assert all(require_room(graph, recipe, CPU).needed < 100e6 for recipe in small)
    assert len(small) > 1 or shape[2] == 500


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_free_memory_is_less_than_the_machine_has(monkeypatch, tmp_path):
    monkeypatch.setattr(planner, "CONTAINER", str(tmp_path))  # without files: no container
    assert 0 < planner.available_memory(CPU) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_free_memory_of_a_container_is_its_limit_less_what_it_holds(monkeypatch, tmp_path):
    """1,000 bytes of which 700 are used, but 200 of these are a file that could be read again."""
    monkeypatch.setattr(planner, "CONTAINER", str(tmp_path))
    for name, text in {"max": "1000\n", "current": "700\n", "stat": "anon 500\ninactive_file 200\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert planner.available_memory(CPU) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert planner.available_memory(CPU) > 1000


def test_the_command_says_what_each_part_takes():
    asked = ["plan", "--nodes", "111e6", "--edges", "1.6e9", "--directed", "--classes", "172", "--workers", "16"]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    assert "a worker of 16: 6,937,500 rows and 6,937,500 of others, 106,937,500 entries" in said.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--set", "propagation=layers", "--set", "votes=no", "--json"]).output)
    whole = Size(111e6, 1.6e9 + 111e6, 128, 172, directed=True)
    assert found["peak"] == round(estimate(whole.share(16, 1.0), DEFAULT.replace(propagation="layers", votes=False)).peak)
    wrong = CliRunner().invoke(app, [*asked, "--set", "colour=red"])
    assert wrong.exit_code == 2
    assert "'colour=red' is not NAME=VALUE with a field of the recipe" in " ".join(wrong.output.split())


def test_a_large_training_says_on_stderr_what_it_takes(monkeypatch, capsys):
    monkeypatch.setattr(planner, "MUCH", 1.0)
    monkeypatch.setattr(planner, "SMALL", 0)
    print_room(random_graph(100, 4, 8, 3), DEFAULT, "cpu")
    assert "of memory, and" in capsys.readouterr().err
