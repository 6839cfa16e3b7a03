"""Edge types: each walks a matrix of its own, from the column of a file to a prediction on another graph."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.relations import write_graph
from gcn_lpa.cli.app import app
from gcn_lpa.cli.text import relations
from gcn_lpa.data.constructors import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.datasets import load
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.insight.what_if import part_of, what_if
from gcn_lpa.learning.learn import learn, learn_many, member_jobs, together
from gcn_lpa.learning.stacks import are_stackable, fit_stack
from gcn_lpa.learning.tasks import batches_of, task_of
from gcn_lpa.methods.hops import edge_type_matrices
from gcn_lpa.methods.registry import gcn_lpa
from gcn_lpa.predict import evaluate, predict_proba
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, WITH_STRUCTURE, Case, recipe_for
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.train_run import CheckpointFolder
from gcn_lpa.scale.partition import write_partition
from gcn_lpa.scale.planner import Size, estimate
from gcn_lpa.train import Watch
from gcn_lpa.trained import Trained
from tests.helpers.changed_folders import changed, entry, made, put
from tests.helpers.small_graphs import one_hot, random_model, twin_of
from tests.helpers.trainings import trained_alone

ONE = DEFAULT.replace(propagation="relations", propagation_steps=3, hidden=5, edge_rank=3, epochs=6, members="")
FIXED = ONE.replace(**FIXED_EDGES)


def three_kinds(n=12, *, weighted=True, directed=False, seed=0):
    """A graph with edges of three kinds, some pairs joined in two ways, a self-loop, and a node without edges."""
    rng = np.random.default_rng(seed)
    edges = [(int(i), int(j)) for i, j in rng.integers(0, n - 1, (3 * n, 2))] + [(0, 1), (0, 1), (2, 2)]
    kinds = ["cites", "same author", "same city"] * n + ["cites", "same city", "cites"]
    weights = rng.uniform(0.5, 2, len(edges)) if weighted else None
    x, y = rng.normal(size=(n, 4)), np.arange(n) % 3
    graph = Graph.from_edges(edges, weights=weights, edge_types=kinds, x=x, y=y, directed=directed)
    return graph, edges, kinds, weights


def dense_kinds(n, edges, kinds, weights, directed):
    """D^-½ (A_r + I) D^-½ of each kind from the list of its edges, one by one."""
    found = {}
    for kind in sorted(set(kinds)):
        a = np.zeros((n, n))
        for k, (i, j) in enumerate(edges):
            if kinds[k] == kind:
                a[j, i] = a[j, i] + weights[k] if weights is not None else 1  # the message goes from i to j
        a = a if directed else np.maximum(a, a.T)
        for i in range(n):
            a[i, i] = a[i, i] or 1
        degree = a.sum(axis=1)
        found[kind] = a / np.sqrt(np.outer(degree, degree))
    return found


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_logits_are_the_sum_over_types_and_hops_and_gradients_those_of_a_dense_twin(weighted, directed):
    graph, edges, kinds, weights = three_kinds(weighted=weighted, directed=directed)
    recipe = FIXED.replace(dropout=0.0)
    prepared = recipe.prepare(graph)
    model = random_model(recipe, prepared, seed=1).float()
    twin = twin_of(model, prepared)
    twin.types = list(map(torch.from_numpy, dense_kinds(graph.num_nodes, edges, kinds, weights, directed).values()))
    torch.testing.assert_close(model(prepared).double(), twin.logits(), rtol=1e-4, atol=1e-5)
    model.loss(prepared, torch.arange(12)).total.backward()
    twin.loss(one_hot(graph.y, 3))[0].backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), twin.p[name].grad, rtol=1e-3, atol=1e-6)


def test_a_pair_that_is_joined_in_two_ways_is_an_edge_of_both_kinds():
    graph = Graph.from_edges([(0, 1), (1, 0), (0, 1), (1, 2)], edge_types=["b", "b", "a", "a"], num_nodes=3)
    assert graph.edge_types.names == ("a", "b")
    first, second = (matrix.to_dense().tolist() for matrix in graph.edge_types.matrices)
    assert first == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert second == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert graph.adjacency.to_dense().tolist() == first  # the whole graph knows the pair once


def test_hops_along_one_kind_are_hops_along_the_graph():
    graph = dataclasses.replace(three_kinds()[0], edge_types=None)
    pairs = [(int(i), int(j)) for i, j in zip(graph.col, graph.row, strict=True)]
    same = Graph.from_edges(pairs, weights=graph.adjacency.values, edge_types=["x"] * len(pairs), x=graph.x, y=graph.y)
    prepared, plain = FIXED.prepare(same), FIXED.replace(propagation="hops").prepare(graph)
    logits = [gcn_lpa(FIXED, prepared, 3)(prepared), gcn_lpa(FIXED.replace(propagation="hops"), plain, 3)(plain)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-6)


def test_the_first_epoch_gives_every_kind_the_same_share_of_personalised_pagerank():
    graph = FIXED.prepare(three_kinds()[0])
    body = gcn_lpa(FIXED, graph).body
    assert body.own.item() == pytest.approx(0.1)
    assert body.gamma[0].tolist() == pytest.approx([0.09 / 3, 0.081 / 3, 0.729 / 3])
    assert torch.equal(body.gamma[0], body.gamma[2])


def test_dropped_edges_leave_self_loops_and_an_unbiased_pattern():
    graph = FIXED.prepare(three_kinds()[0])
    kept = edge_type_matrices(graph, 0.5, Key(1, torch.ones(1, dtype=torch.int64)))
    for matrix, whole in zip(kept, edge_type_matrices(graph), strict=True):
        loop = matrix.pattern.row == matrix.pattern.col
        assert (matrix.values[loop] > 0).all()
        assert 0 < int((matrix.values[~loop] == 0).sum()) < int((~loop).sum())
        assert torch.equal(matrix.pattern.col, whole.pattern.col)


def test_where_edges_have_kinds_the_default_walks_each_by_itself_and_its_members_do_not():
    recipe = recipe_for(Case(edge_types=True))
    assert recipe.replace(propagation="hops", origin=DEFAULT.origin) == DEFAULT
    assert recipe.propagation == "relations"
    assert recipe_for(Case()) == DEFAULT
    assert recipe_for(Case("few", edge_types=True)).propagation == "relations"
    assert recipe_for(Case(columns="none", edge_types=True)) == WITH_STRUCTURE


def test_relations_need_kinds_of_edges(karate):
    with pytest.raises(ValueError, match="'relations' needs edge types; option relation=… names their column"):
        gcn_lpa(FIXED, FIXED.prepare(karate))


# from files


def folder(place, edges, *, features=True):
    ids = sorted({end for row in edges for end in row[:2]})
    with open(place / "nodes.csv", "w", newline="", encoding="utf-8") as file:
        rows = [(name, f"{k % 7}.5", ("yes", "no")[k % 2]) if features else (name, "yes") for k, name in enumerate(ids)]
        csv.writer(file).writerows([("id", "age", "label") if features else ("id", "label"), *rows])
    with open(place / "edges.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target", "kind", "w"), *edges])
    return place


EDGES = [("a", "b", "cites", 2), ("b", "c", "same author ", 1), ("a", "b", "same author", 3), ("c", "d", "cites", 1)]


def test_a_column_says_the_kind_of_each_edge(tmp_path):
    graph = load(folder(tmp_path, EDGES), relation="kind")
    assert graph.edge_types.names == ("cites", "same author")
    cites, same = (matrix.to_dense() for matrix in graph.edge_types.matrices)
    assert cites[0].tolist() == [0, 2, 0, 0]
    assert same[0].tolist() == [0, 3, 0, 0]
    assert graph.adjacency.to_dense()[0].tolist() == [0, 5, 0, 0]
    assert "2 edge types" in repr(graph)
    assert "column 'kind' says the type of each edge: 'cites' 2, 'same author' 2" in graph.notes
    plain = load(tmp_path)
    assert plain.edge_types is None
    assert plain.edge_columns.functions.names == ("kind", "w", "number of edges")
    assert graph.content_hash() != plain.content_hash()


def test_kinds_may_be_numbers_and_truth_values():
    pandas = pytest.importorskip("pandas")
    edges = pandas.DataFrame({"source": ["a", "b"], "target": ["b", "c"], "strong": [True, False]})
    assert read_csv(None, edges, relation="strong").edge_types.names == ("False", "True")


def test_the_two_directions_of_arcs_can_be_kinds(tmp_path):
    graph = load(folder(tmp_path, EDGES), relation="direction", directed=True)
    along, against = (matrix.to_dense() for matrix in graph.edge_types.matrices)
    assert graph.edge_types.names == ("along arcs", "against arcs")
    assert along[1].tolist() == [5, 0, 0, 0]  # a -> b brings a's message to b
    assert torch.equal(against, along.T)
    with pytest.raises(ValueError, match="relation='direction' is about arcs, but these edges have no direction"):
        load(tmp_path, relation="direction")


def test_a_column_of_that_name_is_a_column(tmp_path):
    rows = [("source", "target", "direction"), ("a", "b", "up"), ("b", "c", "down")]
    (tmp_path / "edges.csv").write_text("\n".join(",".join(row) for row in rows))
    assert load(tmp_path, relation="direction").edge_types.names == ("down", "up")


@pytest.mark.parametrize(
    ("edges", "relation", "said"),
    [
        (EDGES, "knid", "edges.csv has no column 'knid'; it has 'source', 'target', 'kind', 'w'; did you mean kind?"),
        ([*EDGES, ("d", "a", " ", 1)], "kind", "edges.csv, row 6, column 'kind' is empty; every edge needs a type"),
        (EDGES, "source", "relation='source' is the column of an end of the edges"),
        (
            [(f"n{k}", "b", f"kind {k}", 1) for k in range(MOST_EDGE_TYPES + 1)],
            "kind",
            "column 'kind' of edges.csv names 21 edge types; at most 20 can be weighed",
        ),
    ],
)
def test_a_wrong_column_of_kinds_is_refused(tmp_path, edges, relation, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        load(folder(tmp_path, edges), relation=relation)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["x"], "1 edge types for 2 edges"),
        (["x", None], "edge 1 has no type"),
        (["x", " "], "edge 1 has no type"),
    ],
)
def test_wrong_kinds_of_pairs_are_refused(kinds, said):
    with pytest.raises(ValueError, match=said):
        Graph.from_edges([(0, 1), (1, 2)], edge_types=kinds)


def test_more_kinds_than_can_be_weighed_are_refused():
    pairs = [(k, k + 1) for k in range(MOST_EDGE_TYPES + 1)]
    with pytest.raises(ValueError, match=r"edges are of 21 types, '0', '1', .*; at most 20"):
        Graph.from_edges(pairs, edge_types=range(MOST_EDGE_TYPES + 1))


def test_edge_types_that_teach_nothing_are_warned_of(tmp_path):
    alike = [(a, b, "knows", w) for a, b, _, w in EDGES]
    one = load(folder(tmp_path, alike), relation="kind")
    assert "warning: all edges are of one type, 'knows': there is nothing to weigh" in one.notes
    assert not any("warning:" in note for note in load(folder(tmp_path, EDGES), relation="kind").notes)


# training


@pytest.fixture(scope="module")
def world():
    """Edges "cites" join nodes of one class, edges "same city" join nodes at random."""
    rng = np.random.default_rng(5)
    n = 120
    y = rng.integers(3, size=n)
    pairs = rng.integers(n, size=(4000, 2))
    alike = pairs[y[pairs[:, 0]] == y[pairs[:, 1]]][:200]
    edges = np.concatenate([alike, pairs[2000:2600]])
    kinds = ["cites"] * len(alike) + ["same city"] * 600
    x = np.eye(3)[y] + 2 * rng.normal(size=(n, 3))
    pairs = [(f"n{i}", f"n{j}") for i, j in edges]
    return Graph.from_edges(pairs, edge_types=kinds, x=x, y=y, node_names=[f"n{i}" for i in range(n)])


TAUGHT = ONE.replace(epochs=60, hidden=16)


@pytest.fixture(scope="module")
def trained(world):
    parts = split(world, seed=0)
    return learn(world, parts.train, parts.val, TAUGHT, device="cpu")


def test_the_kind_that_carries_labels_gets_the_weight(world, trained):
    parts = split(world, seed=0)
    plain = learn(world, parts.train, parts.val, TAUGHT.replace(propagation="hops"), device="cpu")
    assert list(trained.relations) == ["cites", "same city"]
    assert trained.relations["cites"] > 2 * trained.relations["same city"]
    assert sum(trained.relations.values()) < 1
    assert evaluate(trained, world, parts.test).accuracy > evaluate(plain, world, parts.test).accuracy
    assert plain.relations == {}


@pytest.mark.long
def test_hidden_labels_change_no_bit(world, trained):
    parts = split(world, seed=0)
    other = dataclasses.replace(world, y=torch.where(parts.test, (world.y + 1) % 3, world.y))
    twin = learn(other, parts.train, parts.val, TAUGHT, device="cpu")
    assert twin.relations == trained.relations
    assert all(torch.equal(a, b) for a, b in zip(*(t.model.state_dict().values() for t in (twin, trained)), strict=True))


@pytest.mark.long
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(world, trained, tmp_path):
    parts = split(world, seed=0)
    watch = Watch(checkpoints=lambda name: CheckpointFolder(tmp_path, name.stage), every=10)
    trained_alone(world, parts.train, parts.val, TAUGHT, stop_at=20, watch=watch)
    told = []
    watch = dataclasses.replace(watch, resume=True, on_epoch=lambda _, epoch: told.append(epoch.epoch))
    resumed = learn(world, parts.train, parts.val, TAUGHT, device="cpu", watch=watch)
    assert told[0] == 21
    pairs = zip(resumed.model.state_dict().values(), trained.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.long
def test_models_that_learn_together_become_what_they_become_alone(world):
    recipe, parts = TAUGHT.replace(epochs=15), [split(world, seed=seed) for seed in range(4)]
    many = learn_many(world, [(one.train, one.val) for one in parts], recipe, seeds=[0] * 4, device="cpu")
    tasks = [task_of(world, one.train, one.val, recipe) for one in parts]
    jobs = [job for task in tasks for job in member_jobs(task, recipe, 0)]
    assert are_stackable(jobs)
    fits = fit_stack(jobs, torch.device("cpu"))
    stacked = [together(task, recipe, {"": [fit]}) for task, fit in zip(tasks, fits, strict=True)]
    for one, *ways in zip(parts, many, stacked, strict=True):
        lone = learn(world, one.train, one.val, recipe, device="cpu")
        for found in ways:
            assert found.relations == pytest.approx(lone.relations, abs=1e-4)
            torch.testing.assert_close(predict_proba(found, world), predict_proba(lone, world), rtol=1e-4, atol=1e-4)


def test_a_trained_model_is_read_as_it_was_kept(world, trained, tmp_path):
    trained.save_pretrained(tmp_path / "kept")
    found = Trained.from_pretrained(tmp_path / "kept")
    assert found.relations == trained.relations
    assert torch.equal(predict_proba(found, world), predict_proba(trained, world))


def test_another_graph_needs_the_kinds_that_the_model_knows(world, trained):
    few = world.subgraph(torch.arange(120) < 80)
    assert few.edge_types.names == ("cites", "same city")
    wanted = predict_proba(trained, few)
    turned = dataclasses.replace(few, edge_types=few.edge_types.named(("same city", "cites")))
    assert torch.equal(predict_proba(trained, turned), wanted)  # the order of the kinds is the model's
    with pytest.raises(ValueError, match="weighs edge types, 'cites', 'same city', but the edges of 'graph' have none"):
        trained.predict_updated(dataclasses.replace(few, edge_types=None))
    pairs = [(few.node_names[i], few.node_names[j]) for i, j in zip(few.col, few.row, strict=True)]
    other = Graph.from_edges(pairs, edge_types=["married"] * len(pairs), node_names=few.node_names, x=few.x)
    with pytest.raises(ValueError, match="of the type 'married', which the model has not seen; it knows 'cites'"):
        trained.predict_updated(other)
    only = Graph.from_edges(pairs, edge_types=["cites"] * len(pairs), node_names=few.node_names, x=few.x)
    assert len(trained.predict_updated(only)) == 80


def test_the_edges_of_a_cluster_have_their_kinds(world):
    pytest.importorskip("pymetis")
    prepared = ONE.prepare(world)
    for batch in batches_of(prepared, world.labeled, ONE.replace(clusters=3)):
        inside = batch.node_ids
        for whole, part in zip(prepared.edge_types.matrices, batch.graph.edge_types.matrices, strict=True):
            assert torch.equal(part.to_dense(), whole.to_dense()[inside][:, inside])


def test_an_edge_that_is_removed_is_removed_from_its_kinds():
    graph = three_kinds()[0]
    kept = ~(((graph.row == 0) & (graph.col == 1)) | ((graph.row == 1) & (graph.col == 0)))
    fewer = graph.with_adjacency(part_of(graph.adjacency, kept))
    for before, after in zip(graph.edge_types.matrices, fewer.edge_types.matrices, strict=True):
        wanted = before.to_dense()
        wanted[0, 1] = wanted[1, 0] = 0
        assert torch.equal(after.to_dense(), wanted)


def test_what_if_an_edge_were_not_there(world, trained):
    at = int((world.row != world.col).nonzero()[0])
    ends = [world.node_names[int(side[at])] for side in (world.row, world.col)]
    found = what_if(trained, world, remove_edges=[ends])
    assert found.method == "gcn-lpa"


def test_an_explanation_says_whose_features_come_along_the_kinds(world, trained):
    explainer = Explainer.of(trained, world)
    found = explainer.explain("n7", top=None)
    body, p = trained.model.first[0].body, [m.to(torch.float64).to_dense() for m in edge_type_matrices(explainer.graph)]
    gamma, n = body.gamma.detach().double().abs(), 120
    total = body.own.detach().double().abs() * torch.eye(n, dtype=torch.float64)
    for r in range(2):
        for k in range(3):
            total = total + gamma[r, k] * torch.linalg.matrix_power(p[r], k + 1)
    shares = total[7] / total[7].sum()
    told = {one.node: one.share for one in found.features}
    assert told == pytest.approx({f"n{i}": float(shares[i]) for i in range(n) if shares[i] > 0}, abs=1e-6)
    assert sum(vote.share for vote in found.votes) == pytest.approx(sum(found.scores.values()), abs=1e-12)
    assert "predictions propagate along each edge type separately, labels vote along all edges" in " ".join(found.notes)


def test_more_kinds_take_more_memory(world):
    size = Size.of(world)
    assert size.kinds == 2
    recipe = ONE.replace(propagation_steps=10)
    assert estimate(size, recipe).step > estimate(size, recipe.replace(propagation="hops")).step


def test_the_parts_of_a_graph_have_no_kinds(world, tmp_path):
    with pytest.raises(ValueError, match="parts of a graph do not tell edge types apart; leave relation=… out"):
        write_partition(tmp_path / "parts", world, None, np.zeros(120, dtype=int), split(world, seed=0))


# commands


def line_of(shares):
    class Run:
        trained = dataclasses.make_dataclass("T", ["relations"])(shares)

    return relations(Run())


def test_a_line_has_the_share_of_each_kind():
    assert line_of({}) == []
    assert line_of({"same author": 0.347, "cites": 0.61}) == ["  relations: cites .61, same author .35"]
    (line,) = line_of({f"a rather long name of a kind, number {k}": (k + 1) / 400 for k in range(20)})
    assert line.startswith("  relations: a rather long name of a kind,  .05, ")
    assert line.count(" .0") == 20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("kinds")
    (place / "data").mkdir()
    write_graph(place / "data", "both tell", 0, nodes=150)
    options = ["--members", "layers", "--epochs", "30", "--split", "uniform", "--out", place / "run"]
    told = asked("train", place / "data", "-o", "relation=kind", *options)
    assert told.exit_code == 0, told.output
    return place, told.stdout


def asked(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.long
def test_a_command_says_what_labels_taught_and_keeps_it(run):
    place, said = run
    (line,) = [line for line in said.splitlines() if "relations:" in line]
    kept = load_run(place / "run")
    assert line == line_of(kept.trained.relations)[0]
    assert kept.trained.relations["cites"] > kept.trained.relations["same city"]
    assert kept.graph.edge_types.names == ("cites", "same city")
    assert kept.graph.content_hash() == load(place / "data", relation="kind").content_hash()


@pytest.mark.long
def test_a_run_predicts_on_a_folder_with_kinds_it_knows_and_no_others(run, tmp_path):
    place, _ = run
    rows = (place / "data" / "edges.csv").read_text().splitlines()
    for name, more in (("known", "n1,n2,cites"), ("unknown", "n1,n2,married")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text((place / "data" / "nodes.csv").read_text())
        (tmp_path / name / "edges.csv").write_text("\n".join([*rows, more]) + "\n")
    assert asked("predict", place / "run", "--on", tmp_path / "known", "--all").exit_code == 0
    told = asked("predict", place / "run", "--on", tmp_path / "unknown")
    assert told.exit_code == 1
    assert "edges are of the type 'married', which the model has not seen" in told.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("trained.json", put("relations", {"cites": 0.5}), "size mismatch"),
        ("trained.json", put("relations", {"cites": 0.5, "same city": 2.0}), "relations are shares between 0 and 1"),
        ("trained.json", put("relations", {}), "relations names 0 edge types, but propagation is 'relations'"),
        ("trained.json", put("relations", {f"k{i}": 0.01 for i in range(21)}), "at most 20 edge types"),
        ("trained.json", put("relations", {"cites": 0.5, "friends": 0.2}), "the type 'same city', which"),
        ("model.safetensors", made("members.0.0.body.gamma", entry(0, float("nan"))), "numbers that are not finite"),
    ],
)
def test_a_changed_folder_is_refused(run, tmp_path, name, change, said):
    folder = changed(run[0] / "run", tmp_path / "run", name, change)
    told = asked("evaluate", folder)
    assert told.exit_code == 1
    assert said in " ".join(told.output.split())


@pytest.mark.long
def test_one_kind_of_edges_is_no_kind_to_the_bit(tmp_path):
    write_graph(tmp_path, "one tells", 1, nodes=100)
    rows = [line for line in (tmp_path / "edges.csv").read_text().splitlines() if "same city" not in line]
    (tmp_path / "edges.csv").write_text("\n".join(rows) + "\n")
    found = []
    for options in ([], ["-o", "relation=kind"]):
        out = tmp_path / f"run{len(found)}"
        said = asked("train", tmp_path, *options, "--members", "layers", "--epochs", 10, "--out", out, "--json")
        assert said.exit_code == 0
        assert "relations" not in json.loads(said.stdout)
        weights = json.loads((out / "trained.json").read_text())["weights"]
        found.append([weights, *((out / name).read_bytes() for name in ("model.safetensors", "recipe.json"))])
    assert found[0] == found[1]


def test_an_arc_that_is_taken_away_is_gone_in_both_directions():
    arcs = [(0, 1), (1, 2), (2, 3), (3, 1)]
    graph = Graph.from_edges(arcs, x=np.eye(4), y=[0, 1, 0, 1], directed=True)
    graph = dataclasses.replace(graph, edge_types=EdgeTypes.directions(graph.adjacency))
    left = Graph.from_edges(arcs[1:], x=np.eye(4), y=[0, 1, 0, 1], directed=True).adjacency
    along, against = graph.with_adjacency(left).edge_types.matrices
    assert torch.equal(along.to_dense(), left.to_dense())
    assert torch.equal(against.to_dense(), left.to_dense().T)


def test_a_graph_without_edges_has_no_kinds_and_can_be_predicted():
    graph, *_ = three_kinds()
    trained = learn(graph, range(8), range(8, 12), FIXED, device="cpu")
    nothing = Graph.from_edges([], edge_types=[], num_nodes=12, x=graph.x, y=graph.y)
    assert nothing.edge_types is None
    alone = Graph.from_edges([(0, 0)], edge_types=["cites"], num_nodes=12, x=graph.x, y=graph.y, self_loops=True)
    expected = predict_proba(trained, alone, raw=True)  # a self-loop of weight 1 is what every node has
    torch.testing.assert_close(predict_proba(trained, nothing, raw=True)[1:], expected[1:])
