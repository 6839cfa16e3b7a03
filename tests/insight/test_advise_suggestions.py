"""Which node to label next: reach by enumeration, batches that spread, and nothing learned from hidden labels."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.insight.advise import covered, reach, read_candidates, suggest
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.contract import OnGivenEdges
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.propagation import label_influence
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Classes
from gcn_lpa.train import Run
from gcn_lpa.trained import KnownLabels, Trained

QUICK = Recipe(hidden=6, edge_rank=4, epochs=8, lr=0.05)
BARE = QUICK.replace(self_loops=False)  # the graph as it is given


def random_walk(num_nodes, seed, directed=False):
    """A small random graph with random weights and some self-loops, and D⁻¹A in float64."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(num_nodes) for j in range(i, num_nodes) if rng.random() < 0.45]
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs]
    graph = Graph.from_edges(pairs, weights=rng.uniform(0.2, 3, len(pairs)), num_nodes=num_nodes, directed=directed)
    return graph.adjacency.to(torch.float64).row_normalized()


def enumerated(transition, labeled, weight, b, hops):
    """Σ_a w_a Pr(a walk from a comes to b, and meets no labelled node before), over all walks of up to `hops` steps."""
    p, n, total = transition.to_dense().tolist(), len(labeled), 0.0
    free = [v for v in range(n) if v != b and not labeled[v]]
    for a in free:
        for length in range(hops):
            for between in itertools.product(free, repeat=length):
                path = [a, *between, b]
                total += float(weight[a]) * math.prod(p[i][j] for i, j in itertools.pairwise(path))
    return total


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_reach_is_the_sum_over_all_walks(seed, directed):
    walk = random_walk(8, seed, directed)
    labeled, weight = torch.arange(8) % 4 == 1, torch.linspace(0.1, 1, 8, dtype=torch.float64)
    found = reach(walk, labeled, weight)
    expected = [enumerated(walk, labeled, weight, b, 2) for b in range(8) if not labeled[b]]
    assert found[~labeled].tolist() == pytest.approx(expected, abs=1e-12)


def test_reach_is_lemma_2_with_one_more_label():
    walk, labeled, weight = random_walk(9, 5), torch.arange(9) < 2, torch.linspace(0.2, 1, 9, dtype=torch.float64)
    found = reach(walk, labeled, weight)
    for b in range(2, 9):
        more = labeled | (torch.arange(9) == b)
        others = (~more).nonzero().squeeze(1)
        column = label_influence(walk, more, others, 2).total[:, b]
        assert found[b].item() == pytest.approx(float(weight[others] @ column), abs=1e-12)
        assert covered(walk, more, b)[others].tolist() == pytest.approx(column.tolist(), abs=1e-12)


def test_a_chosen_node_covers_itself_and_no_labelled_one():
    walk, labeled = random_walk(6, 1), torch.tensor([True, False, True, False, False, False])
    share = covered(walk, labeled, 2)
    assert (share[0].item(), share[2].item()) == (0.0, 1.0)
    assert ((share >= 0) & (share <= 1)).all()


def test_uncertainty_is_entropy_from_0_to_1():
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    assert Classes.uncertainty(rows).tolist() == pytest.approx([0, 1, 0.5])


class Said(OnGivenEdges):
    """A model with fixed probabilities that learns no edges."""

    def __init__(self, probabilities):
        super().__init__()
        self.logits = torch.tensor(probabilities, dtype=torch.float64).clamp_min(1e-9).log()

    def forward(self, graph):
        return self.logits


def saying(probabilities, graph):
    """A trained model that says these probabilities, and was given all labels of the graph."""
    labels = KnownLabels.of(graph, graph.labeled, torch.zeros_like(graph.labeled))
    columns = graph.num_features, graph.x_kind, graph.scaling(BARE.features)
    return Trained(Ensemble([[Said(probabilities)]]).eval(), BARE, graph.target, *columns, labels, Run(BARE, 0, (), 0))


def two_stars():
    """Hub 0 with leaves 1..5 and hub 6 with leaves 7..10, and node 11 alone; leaves 5 and 10 are labelled."""
    edges = [*((0, leaf) for leaf in range(1, 6)), *((6, leaf) for leaf in range(7, 11))]
    y = [-1] * 5 + [0] + [-1] * 4 + [1, -1]
    return Graph.from_edges(edges, num_nodes=12, y=y, class_names=["red", "blue"])


def test_the_hub_comes_first_then_the_other_hub_and_not_a_leaf_beside_the_first():
    graph = two_stars()
    found = suggest(saying([[0.5, 0.5]] * 12, graph), graph, n=3)
    assert [one.node for one in found[:2]] == [0, 6]
    # one step from each of 4 leaves, weight 1, arrives for certain; two steps add nothing, as leaves have one neighbour
    assert (found[0].uncertainty, found[0].reach, found[0].score) == pytest.approx((1, 4, 5))
    assert found[2].node == 11  # the leaves are covered by their hubs
    assert found[2].why == "red 50 % or blue 50 %; its label would reach no other unsure node"


def test_sure_nodes_are_left_alone():
    graph = two_stars()
    said = [[0.5, 0.5]] * 12
    said[0] = said[6] = [1.0, 0.0]
    trained = saying(said, graph)
    found = suggest(trained, graph, n=8)
    assert {one.node for one in found} == {1, 2, 3, 4, 7, 8, 9, 11}
    (one,) = suggest(trained, graph, n=1, sharpness=0)
    assert one.node == 0  # sure itself, in the midst of unsure


def test_labelled_nodes_and_those_outside_the_candidates_are_never_suggested():
    graph = two_stars()
    trained = saying([[0.5, 0.5]] * 12, graph)
    allowed = torch.arange(12) >= 5
    found = suggest(trained, graph, n=100, candidates=allowed)
    assert sorted(one.node for one in found) == [6, 7, 8, 9, 11]  # fewer than asked for; 5 and 10 have labels
    with pytest.raises(ValueError, match="no node is left to suggest"):
        suggest(trained, graph, candidates=graph.labeled)
    with pytest.raises(ValueError, match="n = 0"):
        suggest(trained, graph, n=0)
    with pytest.raises(ValueError, match=r"candidates is a mask of \[3\] entries; the graph has 12 nodes"):
        suggest(trained, graph, candidates=torch.ones(3, dtype=torch.bool))


def test_one_class_leaves_nothing_to_be_unsure_of():
    graph = Graph.from_edges([(0, 1)], y=[0, -1], class_names=["only"])
    with pytest.raises(ValueError, match="nothing to be unsure of"):
        suggest(saying([[1.0]] * 2, graph), graph)


@pytest.mark.parametrize("method", ["gcn-lpa", "gcn", "lpa", "mlp", "label-input"])
def test_hidden_labels_change_nothing_and_two_calls_agree(method):
    graph = load("sbm", n=80, classes=3, features=5, degree=4.0, noise=1.0)
    parts = split(graph, seed=1)
    given = parts.train | parts.val
    recipe = METHODS[method].settings(QUICK).replace(epochs=4)
    scrambled = dataclasses.replace(graph, y=torch.where(given, graph.y, (graph.y + 1) % 3))
    trained, other = (learn(g, parts.train, parts.val, recipe, device="cpu") for g in (graph, scrambled))
    found = suggest(trained, graph, n=6)
    assert found == suggest(trained, graph, n=6)
    assert found == suggest(trained, scrambled, n=6) == suggest(other, scrambled, n=6)
    assert not given[[one.node for one in found]].any()
    assert all(one.guess != one.runner_up and one.probability >= one.runner_up_probability for one in found)


def test_candidates_are_read_from_a_file_of_ids(tmp_path):
    graph = Graph.from_edges([("a", "b"), ("b", "id")], y={"a": "x"})
    (tmp_path / "ids.txt").write_text("id\n\n b \n", encoding="utf-8-sig")
    assert read_candidates(tmp_path / "ids.txt", graph).nonzero().squeeze(1).tolist() == [1]
    (tmp_path / "ids.txt").write_text("a\nnobody\n")
    with pytest.raises(ValueError, match=r"ids.txt, line 2: graph 'graph' has no node 'nobody'"):
        read_candidates(tmp_path / "ids.txt", graph)
    (tmp_path / "ids.txt").write_text("id\n")
    with pytest.raises(ValueError, match="names no node"):
        read_candidates(tmp_path / "ids.txt", graph)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A run on your own folder: a club of 34 in which ten members have said to which half they belong."""
    folder = tmp_path_factory.mktemp("suggest")
    club, graph = folder / "club", load("karate")
    club.mkdir()
    labels = [graph.class_names[k] if i % 3 == 0 else "" for i, k in enumerate(graph.y.tolist())]
    ids = [f"m-{i}" for i in range(34)]
    pandas.DataFrame({"id": ids, "label": labels}).to_csv(club / "nodes.csv", index=False)
    edges = graph.to_pandas()
    pandas.DataFrame({"source": edges.source.map(ids.__getitem__), "target": edges.target.map(ids.__getitem__)}).to_csv(
        club / "edges.csv", index=False
    )
    done = run("train", club, "--out", folder / "run", "--epochs", 5, "--hidden", 4, "--device", "cpu")
    assert done.exit_code == 0, done.output
    return folder / "run"


@pytest.mark.long
def test_the_command_prints_a_table_json_and_a_file(own_run, tmp_path):
    shown = run("suggest", own_run, "-n", 4)
    assert (shown.exit_code, shown.stderr) == (0, "")
    header, *lines = shown.stdout.splitlines()
    assert header.split() == ["id", "score", "guess", "or", "reach"]
    rows = json.loads(run("suggest", own_run, "-n", 4, "--json").stdout)
    assert [line.split()[0] for line in lines] == [row["id"] for row in rows]
    assert all(int(row["id"].split("-")[1]) % 3 for row in rows)  # every third has a label
    (tmp_path / "ids.txt").write_text("m-1\nm-2\nm-3\n")
    chosen = run("suggest", own_run, "--candidates", tmp_path / "ids.txt", "--out", tmp_path / "s.csv")
    assert chosen.stdout.endswith(f"2 rows in {tmp_path / 's.csv'}\n")
    assert sorted(pandas.read_csv(tmp_path / "s.csv").id) == ["m-1", "m-2"]  # m-3 has a label


def test_test_nodes_are_suggested_only_when_they_are_named(tmp_path):
    assert run("train", "karate", "--out", tmp_path / "run", "--epochs", 2, "--device", "cpu").exit_code == 0
    refused = run("suggest", tmp_path / "run")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("gcn-lpa: no node is left to suggest: every node has a label or is a test node")
    (tmp_path / "all.txt").write_text("".join(f"{i}\n" for i in range(34)))
    named = json.loads(run("suggest", tmp_path / "run", "--candidates", tmp_path / "all.txt", "--json").stdout)
    assert len(named) == 6  # int(0.2 * 34) test nodes


def test_nodes_whose_labels_are_reserved_have_one_already(tmp_path):
    arguments = ("train", "karate", "--out", tmp_path / "run", "--epochs", 2, "--reserve", 0.5, "--device", "cpu")
    assert run(*arguments).exit_code == 0
    assert run("suggest", tmp_path / "run").stderr.startswith("gcn-lpa: no node is left to suggest")
    (tmp_path / "all.txt").write_text("".join(f"{i}\n" for i in range(34)))
    named = json.loads(run("suggest", tmp_path / "run", "--candidates", tmp_path / "all.txt", "--json").stdout)
    predicted = json.loads(run("predict", tmp_path / "run", "--json").stdout)
    explained = json.loads(run("explain", tmp_path / "run", "--all", "--json").stdout)
    assert {row["id"] for row in named} == {row["id"] for row in predicted} == {row["id"] for row in explained}
