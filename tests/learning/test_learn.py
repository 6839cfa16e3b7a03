"""`learn` is the one way: the library, the command line and the estimator train the same models bit for bit."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import load
from gcn_lpa.estimator import GCNLPAClassifier
from gcn_lpa.learning.learn import learn, learn_many
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS, choose_recipe
from gcn_lpa.runs.folder import load_run
from gcn_lpa.trained import Trained

WORDS = [f"word{k}" for k in range(230)]


def folder_of(place, n, labels, cells, header):
    """nodes.csv and edges.csv of two classes: node i is of class i % 2, and most edges join nodes of one class."""
    random = np.random.default_rng(5)
    place.mkdir()
    with open(place / "nodes.csv", "w", newline="", encoding="utf-8") as file:
        rows = [[f"n{i}", ("blue", "red")[i % 2] if i < labels else "", *cells(random, i)] for i in range(n)]
        csv.writer(file).writerows([["id", "label", *header], *rows])
    ends = random.integers(0, n, (3 * n, 2))
    kept = [(i, j) for i, j in ends.tolist() if i % 2 == j % 2 or random.random() < 0.2]
    with open(place / "edges.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["source", "target"], *((f"n{i}", f"n{j}") for i, j in kept)])
    return place


def table(random, i):
    return [f"{random.normal() + i % 2:.3f}", f"{random.normal():.3f}", "abc"[random.integers(3)]]


def text(random, i):
    topic = WORDS[:120] if i % 2 else WORDS[110:]
    return [" ".join(random.choice(topic, 12))]


CASES = {  # what is said of a node, the columns, how many nodes and labels, and what the default then has
    "a table, few labels": (
        table,
        ("size", "weight", "kind"),
        60,
        40,
        {"edges": "fixed", "members": "trees smoothed-lr lr gcn batch-norm"},
    ),
    "a table, many labels": (table, ("size", "weight", "kind"), 120, 100, {"members": "trees layers three-layers"}),
    "words, few labels": (
        text,
        ("about",),
        60,
        40,
        {"edges": "fixed", "members": "smoothed-lr gcn appnp batch-norm grand"},
    ),
    "words, some labels": (
        text,
        ("about",),
        110,
        90,
        {"edges": "cosine", "members": "layers three-layers smoothed-lr batch-norm grand"},
    ),
    "no columns, few labels": (lambda random, i: [], (), 40, 18, {"edges": "free", "members": "hops appnp"}),
    "no columns, many labels": (lambda random, i: [], (), 60, 40, {"members": "trees neighbour-lr hops appnp"}),
}
QUICK = ("a table, few labels", "no columns, few labels")


def columns_of(graph, names, probabilities):
    """Probabilities with their columns in the order of the graph's classes."""
    return probabilities[:, [list(names).index(name) for name in graph.class_names]]


def check_one_default(folder, out, **options):
    graph = load(folder, **options)
    trained = learn(graph, device="cpu")
    said, raw = (predict_proba(trained, graph, raw=raw) for raw in (False, True))
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = CliRunner().invoke(app, ["train", str(folder), *words, "--out", str(out), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    run = load_run(out)
    assert torch.equal(predict_proba(run.trained, run.graph), said)
    assert torch.equal(predict_proba(run.trained, run.graph, raw=True), raw)
    ids = [name for name, y in zip(graph.node_names, graph.y.tolist(), strict=True) if y >= 0]
    labels = [graph.class_names[y] for y in graph.y.tolist() if y >= 0]
    classifier = GCNLPAClassifier(graph=load(folder, **options), device="cpu").fit(ids, labels)
    found = torch.from_numpy(classifier.label_distributions_)
    assert torch.equal(columns_of(graph, classifier.classes_, found), said)
    assert trained.recipe == run.trained.recipe == classifier.trained_.recipe
    assert trained.recipe == choose_recipe(graph, graph.labeled)
    return trained


@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_the_default_is_one_in_the_library_on_the_command_line_and_in_the_estimator(tmp_path, case):
    cells, header, n, labels, expected = CASES[case]
    folder = folder_of(tmp_path / "home", n, labels, cells, header)
    trained = check_one_default(folder, tmp_path / "run")
    assert {name: getattr(trained.recipe, name) for name in expected} == expected


@pytest.mark.slow
def test_the_default_is_one_on_a_citation_graph(datasets, tmp_path):
    """Cora with twenty labels a class, written as a folder."""
    cora = load("cora", datasets)
    home = tmp_path / "home"
    home.mkdir()
    given = set(np.concatenate([np.flatnonzero(cora.y.numpy() == k)[:20] for k in range(7)]).tolist())
    with open(home / "nodes.csv", "w", newline="") as file:
        names = [cora.class_names[k] if i in given else "" for i, k in enumerate(cora.y.tolist())]
        csv.writer(file).writerows([["id", "label"], *enumerate(names)])
    with open(home / "edges.csv", "w", newline="") as file:
        ends = zip(cora.row.tolist(), cora.col.tolist(), strict=True)
        csv.writer(file).writerows([["source", "target"], *((i, j) for i, j in ends if i < j)])
    np.save(home / "features.npy", cora.x.to_dense().numpy())
    check_one_default(home, tmp_path / "run")


def test_the_names_of_recipes_are_chosen_for_the_graph_as_it_is(blocks):
    nodes = torch.arange(60) < 45
    small = {"epochs": 2, "hidden": 4, "members": "", "patience": 0}
    chosen = choose_recipe(blocks, nodes, "default", by_folds=False)
    by_name = learn(blocks, nodes, ~nodes, chosen.replace(**small), device="cpu")
    assert by_name.recipe == chosen.replace(**small)
    with pytest.raises(ValueError, match="unknown recipe 'fancy'; there are default, quick, best, paper and official"):
        learn(blocks, nodes, ~nodes, "fancy", device="cpu")
    with pytest.raises(ValueError, match="recipe 'paper' has no settings for 'sbm'"):
        learn(blocks, nodes, ~nodes, "paper", device="cpu")
    with pytest.raises(TypeError, match=r"recipe is the name of a recipe or a gcn_lpa\.Recipe, not 7"):
        learn(blocks, nodes, ~nodes, 7, device="cpu")


@pytest.mark.parametrize("members", ["", "hops"])
def test_many_parts_are_learned_as_each_by_itself(blocks, members):
    recipe = LAYERS.replace(epochs=4, hidden=4, votes=True, members=members)
    order = torch.arange(60)
    parts = [(order % 3 == k, order % 3 == (k + 1) % 3) for k in range(3)]
    together = learn_many(blocks, parts, recipe, seeds=[5, 6, 7], device="cpu")
    for (train, val), seed, trained in zip(parts, (5, 6, 7), together, strict=True):
        alone = learn(blocks, train, val, recipe, seed=seed, device="cpu")
        assert torch.equal(predict_proba(alone, blocks), predict_proba(trained, blocks))
        assert (alone.weights, alone.calibration) == (trained.weights, trained.calibration)


def test_without_a_second_label_of_a_class_one_model_learns_for_a_fixed_time(blocks):
    nodes = [int((blocks.y == k).nonzero()[0]) for k in range(3)]
    trained = learn(blocks, nodes, recipe=DEFAULT.replace(epochs=300, hidden=4, members="", structure=False), device="cpu")
    assert trained.held_out is None and trained.weights is None and trained.calibration is None
    assert len(trained.model.first) == 1
    assert trained.run.best_epoch == len(trained.run.history) == 200


def test_models_of_a_member_are_those_of_several_seeds(tmp_path):
    """Their log-probabilities are averaged; what is fitted at once learns once; splits side by side have the same ones."""
    karate = load("karate")
    val = torch.arange(34) % 3 == 0
    recipe = LAYERS.replace(models=3, members="hops smoothed-lr", epochs=8)
    trained = learn(karate, ~val, val, recipe, seed=4, device="cpu")
    assert trained.model.sizes == (3, 3, 1)
    logs = []
    for member in ("", "hops"):
        alone = [learn(karate, ~val, val, members_of(recipe.replace(models=1))[member], seed=4 + k, device="cpu") for k in range(3)]
        logs.append(torch.stack([predict_proba(one, karate, raw=True).log() for one in alone]).mean(dim=0))
    prepared = trained.prepare(karate)
    for found, wanted in zip(trained.model.parts(prepared), logs, strict=False):
        torch.testing.assert_close(found.softmax(dim=1), wanted.softmax(dim=1), rtol=1e-5, atol=1e-6)
    (beside,) = learn_many(karate, [(~val, val)], recipe, seeds=4, device="cpu")
    assert torch.equal(predict_proba(beside, karate), predict_proba(trained, karate))
    trained.save_pretrained(tmp_path / "model")
    assert torch.equal(predict_proba(Trained.from_pretrained(tmp_path / "model"), karate), predict_proba(trained, karate))
