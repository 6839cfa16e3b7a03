"""The audits find what was planted, know their numbers by another road, and never look at what they must not see."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import edge_ends
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.insight import audit as auditing
from gcn_lpa.insight.audit import (
    CrossFit,
    audit_edges,
    audit_labels,
    cross_fit,
    joined,
    kept_fit,
    label_evidence,
    label_folds,
    log_ratios,
    pair_evidence,
    posteriors_of,
    random_pairs,
    rank_labels,
    votes_without_own,
)
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.registry import METHODS, Method
from gcn_lpa.model import GCNLPA
from gcn_lpa.predict import Prediction
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.folder import load_run
from tests.helpers.trainings import trained_alone

QUICK = Recipe(hidden=8, edge_rank=4, epochs=30, lr=0.05)
FAST = {"device": "cpu", "threads": 1, "repeats": 1}


def given_to(graph, given=None, recipe=QUICK):
    """A model that was given the labels of `given`, or all, and stopped at once: an audit takes its recipe and its labels."""
    return trained_alone(graph, graph.labeled if given is None else given, [], recipe, stop_at=1)


def flip(graph, nodes):
    """The same graph with the labels of `nodes` turned into the next class."""
    y = graph.y.clone()
    y[nodes] = (y[nodes] + 1) % graph.num_classes
    return dataclasses.replace(graph, y=y)


def add_edges(graph, pairs):
    source, target = edge_ends(graph)
    edges = [*zip(source.tolist(), target.tolist(), strict=True), *pairs]
    return Graph.from_edges(edges, x=graph.x, y=graph.y.tolist(), name=graph.name)


@pytest.fixture(scope="module")
def community():
    """120 nodes of three classes that are easy to tell by their edges and their features."""
    return load("sbm", n=120, classes=3, features=6, degree=8.0, noise=0.5)


@pytest.fixture(scope="module")
def fitted(community):
    return cross_fit(community, recipe=QUICK, **FAST)


class Memory(AtOnce):
    """Is sure of every label it can see, when it is trained or when it predicts, and knows nothing of the others."""

    def __init__(self, recipe, graph, seed):
        super().__init__()
        self.register_buffer("seen", torch.full((graph.num_nodes,), -1))

    def fit_at_once(self, graph, nodes):
        self.seen.copy_(graph.y)  # all it can find, whatever nodes it was given

    def forward(self, graph):
        y = torch.maximum(self.seen, graph.y)
        return 20.0 * nn.functional.one_hot(y.clamp_min(0), graph.num_classes) * (y >= 0).unsqueeze(1)


@pytest.mark.long
def test_no_model_scores_a_label_it_was_shown(community, monkeypatch):
    monkeypatch.setitem(METHODS, "memory", Method("memory", Memory, QUICK, "", fields=(), at_once=True))
    found = cross_fit(community, recipe=QUICK.replace(method="memory"), repeats=2, device="cpu")
    assert torch.equal(found.probabilities, torch.full((120, 3), 1 / 3, dtype=torch.float64))


def test_every_given_node_is_in_one_fold_and_classes_are_shared_out(community):
    given = torch.arange(120) < 100
    folds = torch.stack(label_folds(community.y, given, 5, seed=(3, 0)))
    assert torch.equal(folds.sum(dim=0), given.long())
    for k in range(3):
        sizes = (folds & (community.y == k)).sum(dim=1)
        assert sizes.max() - sizes.min() <= 1


def test_votes_without_own_by_hand():
    """0 has label A and three neighbours: 1 (A), 2 (B), and 3, without a label, whose other neighbour 4 has B.

    One vote for A; one for B; and half a vote for B through 3, whose other half is 0's own label and is left out.
    """
    graph = Graph.from_edges([(0, 1), (0, 2), (0, 3), (3, 4)], y=["A", "A", "B", None, "B"])
    votes = votes_without_own(joined(graph), graph.target.seeds(graph.y, torch.float64))
    assert votes[0].tolist() == pytest.approx([1.0, 1.5])
    shares = {row.node: row.neighbours for row in audit_labels(given_to(graph), graph, folds=2, **FAST).findings}
    assert shares[0] == pytest.approx(1 / 2.5)
    assert shares[1] == pytest.approx(1.0)  # its only neighbour is 0
    assert shares[2] == pytest.approx(0.0)
    assert shares[4] == pytest.approx(0.0)  # through 3, the label of 0


@pytest.mark.parametrize("directed", [False, True])
def test_votes_are_label_propagation_with_that_node_unlabelled(directed):
    random = np.random.default_rng(0)
    edges = [(int(a), int(b)) for a, b in random.integers(0, 14, (30, 2))]
    graph = Graph.from_edges(
        edges, weights=random.uniform(0.5, 2, 30), num_nodes=14, y=random.integers(-1, 3, 14), directed=directed
    )
    around = joined(graph)
    seeds = graph.target.seeds(graph.y, torch.float64)
    votes = votes_without_own(around, seeds)
    for node in graph.labeled.nonzero().squeeze(1).tolist():
        without = seeds.clone()
        without[node] = 0
        expected = propagate_labels(around.row_normalized(), without, 2)[node]
        neighbours = int((around.pattern.row == node).sum())
        assert votes[node].tolist() == pytest.approx((neighbours * expected).tolist(), abs=1e-4)


@pytest.mark.long
def test_planted_labels_come_first(community):
    planted = [5, 23, 47, 71, 90, 111]
    noisy = flip(community, planted)
    found = rank_labels(noisy, cross_fit(noisy, recipe=QUICK, **FAST))
    assert {row.node for row in found.findings[:6]} == set(planted)
    for row in found.findings[:6]:
        assert row.suggested == community.class_names[community.y[row.node]]
        assert row.suspicion > 0.1  # .05 before anything is known
        assert row.label != row.suggested
        assert row.model < 0.2
    assert [row.suspicion for row in found.findings] == sorted((row.suspicion for row in found.findings), reverse=True)
    assert len(found.findings) == 120
    assert all(value < 0 for value in found.influence.values())  # support lowers the odds of an error


def test_nodes_without_a_label_near_are_judged_by_the_model_alone():
    """100 nodes of two cliques and 20 alone: the model is as sure of all but one of each, so only these two come first."""
    n, clique = 120, range(100)
    y = torch.arange(n) % 2
    edges = [(i, j) for i in clique for j in clique if i < j and (j - i) % 2 == 0]
    graph = Graph.from_edges(edges, num_nodes=n, y=y.numpy())
    sure = 0.55 + 0.4 * torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sure[[7, 110]] = 0.05
    of_label = torch.stack([sure, 1 - sure], dim=1)
    probabilities = torch.where((y == 0).unsqueeze(1), of_label, of_label.flip(1))
    settings = (1, 5, 1, 0, QUICK)
    found = rank_labels(graph, CrossFit(probabilities, None, torch.ones(n, dtype=torch.bool), settings, graph.target))
    assert {row.node for row in found.findings[:2]} == {7, 110}
    alone = [row.suspicion for row in found.findings if row.node >= 100 and row.node != 110]
    assert max(alone) < 0.2
    assert [row.model for row in found.findings if row.node >= 100] == sorted(sure[100:].tolist())


def test_the_evidence_is_reported_in_words():
    names = ("Theory", "Genetic", "Neural")
    said = "the model, not shown this label, predicts Theory (90 %), Genetic 8 %"
    model = np.array([0.9, 0.08, 0.02])
    assert label_evidence(names, 1, model, np.array([6, 1, 0])) == (f"6 of 7 labelled neighbours are Theory, 1 is Genetic; {said}")
    assert label_evidence(names, 1, model, np.array([1, 0, 0])) == (f"its one labelled neighbour is Theory; {said}")
    assert label_evidence(names, 2, np.array([0.999, 0.0, 0.001]), np.array([0, 1, 1])) == (
        "1 of 2 labelled neighbours is Genetic, 1 is Neural; "
        "the model, not shown this label, predicts Theory (> 99 %), Neural < 1 %"
    )
    assert label_evidence(names, 1, model, np.array([0, 0, 0])) == f"no labelled neighbour; {said}"
    assert label_evidence(names, 0, model, np.array([2, 0, 1])) == (
        "2 of 3 labelled neighbours are Theory; the model, not shown this label, predicts Theory (90 %)"
    )


@pytest.mark.long
def test_labels_that_are_not_given_change_nothing(community):
    given = split(community, seed=0).train
    other = dataclasses.replace(community, y=torch.where(given, community.y, (community.y + 1) % 3))
    hidden = community.reveal(given)
    assert not torch.equal(other.y, community.y)
    short, once = QUICK.replace(epochs=5), {"folds": 2, "device": "cpu", "threads": 1}
    for audit in (audit_labels, audit_edges):
        graphs = community, other, hidden
        found = [audit(given_to(graph, given, short), graph, repeats=1, **once) for graph in graphs]
        assert found[0] == found[1] == found[2]


@pytest.mark.long
def test_given_labels_do_change_the_audit(community, fitted):
    other = flip(community, [0, 1, 2])
    assert audit_labels(given_to(other), other, **FAST) != rank_labels(community, fitted)
    assert audit_labels(given_to(community), community, **FAST) == rank_labels(community, fitted)


@pytest.mark.long
def test_planted_edges_come_first(community):
    y = community.y.tolist()
    random = np.random.default_rng(1)
    planted = set()
    while len(planted) < 12:
        a, b = sorted(random.integers(0, 120, 2).tolist())
        if y[a] != y[b]:
            planted.add((a, b))
    present = set(zip(*(end.tolist() for end in edge_ends(community)), strict=True))
    noisy = add_edges(community, planted - present)
    found = audit_edges(given_to(noisy), noisy, **FAST)
    between = {pair for pair in present | planted if y[pair[0]] != y[pair[1]]}
    first = [(row.source, row.target) for row in found.findings[: len(between)]]
    assert len(between & set(first)) > 0.9 * len(between)  # edges between classes, planted or not
    assert len(found.findings) == noisy.num_edges
    assert found.findings[0].source_class != found.findings[0].target_class


def test_posteriors_by_hand():
    """Label 0, wrong with chance 1/10: .5 · .9 against .5 · .1; and .01 · .9 against .99 · .1."""
    p = torch.tensor([[0.5, 0.5], [0.01, 0.99], [0.3, 0.7]], dtype=torch.float64)
    found = posteriors_of(p, torch.tensor([0, 0, -1]), torch.tensor([True, True, False]), 0.1)
    assert found[0].tolist() == pytest.approx([0.9, 0.1])
    assert found[1, 0] == pytest.approx(0.009 / (0.009 + 0.099))
    assert found[2].tolist() == [0.3, 0.7]


def test_pair_evidence_is_that_of_a_dense_twin():
    random = np.random.default_rng(2)
    graph = Graph.from_edges(random.integers(0, 12, (30, 2)), num_nodes=12, x=random.normal(size=(12, 4)))
    around = joined(graph)
    dense = (around.to_dense() > 0).double()
    posteriors = torch.from_numpy(random.dirichlet([1, 1, 1], 12))
    x = torch.nn.functional.normalize(torch.from_numpy(random.normal(size=(12, 4))), dim=1)
    pairs = np.array([3, 0, 7, 3]), np.array([5, 11, 8, 4])  # in no order
    found = pair_evidence(pairs, posteriors, x, around)
    scale = 1 / (1 + dense.sum(dim=1)).log().clamp_min(0.5)
    for k, (i, j) in enumerate(zip(*pairs, strict=True)):
        assert found.agreement[k] == pytest.approx(float(posteriors[i] @ posteriors[j]))
        assert found.similarity[k] == pytest.approx(float(x[i] @ x[j]))
        assert found.common[k] == float(dense[i] @ dense[j])
        assert np.expm1(found.columns[k, 2]) == pytest.approx(float((dense[i] * dense[j]) @ scale))


def test_random_pairs_are_no_edges(karate):
    around = joined(karate)
    one, other = random_pairs(around, 100, seed=0)
    assert len({*zip(one.tolist(), other.tolist(), strict=True)}) == len(one) == 100
    assert (one < other).all()
    assert (around.to_dense()[one, other] == 0).all()


@pytest.mark.long
def test_a_learned_weight_counts_only_where_a_label_is_near(community):
    given = torch.arange(120) < 60
    found = audit_edges(given_to(community, given), community, **FAST)
    for row in found.findings:
        assert (row.weight is None) == (row.source >= 60 and row.target >= 60)
        assert ("learned weight" in row.evidence) == (row.weight is not None)
    gcn = QUICK.replace(method="gcn", edges="fixed", lpa_weight=0.0)
    fixed = audit_edges(given_to(community, given, gcn), community, **FAST)
    assert {row.weight for row in fixed.findings} == {None}


@pytest.mark.long
def test_it_abstains_where_there_is_no_feature_and_no_label_reaches(two_cliques):
    """A path 8 - 9 - 10 that no label reaches; there are no features."""
    source, target = edge_ends(two_cliques)
    edges = [*zip(source.tolist(), target.tolist(), strict=True), (8, 9), (9, 10)]
    graph = Graph.from_edges(edges, num_nodes=11, y=[0, 0, 0, 0, 1, 1, 1, 1, -1, -1, -1])
    found = audit_edges(given_to(graph), graph, folds=2, **FAST)
    assert {(row.source, row.target) for row in found.findings if row.status == "abstains"} >= {(8, 9), (9, 10)}
    assert [row.status for row in found.findings[-2:]] == ["abstains", "abstains"]
    assert all(row.similarity is None for row in found.findings)


def test_suspicion_is_the_share_of_errors_among_such_evidence():
    """1000 given labels, 50 of them drawn at random. Of the 40 with evidence "no", 38 are the random ones that show it.

    f_random(no) = 38 / 50, f_given(no) = 40 / 1000, so .05 · .76 / .04 = .95 = 38 / 40 of them are errors.
    """
    rate, random, given = 0.05, 38 / 50, 40 / 1000
    assert auditing.suspicion_of(np.log(random / given), rate) == pytest.approx(38 / 40)
    assert auditing.suspicion_of(1e9, rate) == 1


def test_the_error_model_learns_what_separates():
    """One column separates, the other is a constant: only the first may count."""
    random = np.random.default_rng(0)
    given, drawn = random.normal(1, 1, (2000, 1)), random.normal(-1, 1, (2000, 1))
    kinds = (np.hstack([rows, np.ones_like(rows)]) for rows in (given, drawn))
    coefficients, (at_zero, at_one) = log_ratios(*kinds, np.array([[0.0, 1.0], [1.0, 1.0]]))
    assert coefficients[1] == 0
    assert at_zero == pytest.approx(0, abs=0.3)  # log N(z; -1, 1) / N(z; 1, 1) = -2 z
    assert at_one - at_zero == pytest.approx(-2, abs=0.2)


def test_the_rate_scales_suspicions_and_keeps_the_order(community, fitted):
    few, many = (rank_labels(community, fitted, rate=rate).findings for rate in (0.01, 0.02))
    assert [row.node for row in few] == [row.node for row in many]
    assert [2 * row.suspicion for row in few[20:]] == pytest.approx([row.suspicion for row in many[20:]])


def test_ctrl_c_ends_the_audit(community):
    class Interrupting(GCNLPA):
        def loss(self, graph, nodes, key=None):
            if int(key.step_tensor(graph.device)) == 3:
                raise KeyboardInterrupt
            return super().loss(graph, nodes, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "interrupting", Method("interrupting", Interrupting, QUICK, "", fields=()))
        with pytest.raises(KeyboardInterrupt):
            cross_fit(community, recipe=QUICK.replace(method="interrupting"), **FAST)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 1}, "folds = 1 and repeats = 1"),
        ({"rate": 0.0}, "rate = 0.0; it is a share"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_be_audited_is_named(community, change, message):
    with pytest.raises(ValueError, match=message):
        audit_labels(given_to(community), community, **{**FAST, **change})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.arange(120) < 3, r"needs 5 labelled nodes and two classes.*there are 3 nodes"),
        ([0, 1, 2], r"needs 5 labelled nodes and two classes.*there are 3 nodes"),
        (torch.ones(4, dtype=torch.bool), r"given is a mask of \[4\] entries; the graph has 120 nodes"),
        ([120], r"given names node 120, but the graph has nodes 0..119"),
    ],
)
def test_labels_that_no_audit_can_use_are_named(community, given, message):
    with pytest.raises(ValueError, match=message):
        cross_fit(community, given, QUICK, **FAST)


def test_an_audit_of_another_graph_uses_the_labels_of_shared_nodes_or_says_that_there_are_none(community):
    names = [f"n{i}" for i in range(120)]
    trained = given_to(dataclasses.replace(community, node_names=names))
    strangers = dataclasses.replace(community, node_names=[f"m{i}" for i in range(120)])
    with pytest.raises(ValueError, match="there are 0 nodes of 0 classes"):
        audit_labels(trained, strangers, **FAST)
    with pytest.raises(ValueError, match="there are 0 nodes of 0 classes"):
        audit_edges(trained, strangers, **FAST)
    half = dataclasses.replace(community, node_names=[*names[:60], *strangers.node_names[60:]])
    found = audit_labels(trained, half, folds=2, **FAST)
    assert {row.node for row in found.findings} == set(names[:60])
    with pytest.raises(TypeError, match=r"graph is a gcn_lpa.Graph, such as load gives, not 'cora'"):
        audit_labels(trained, "cora")


@pytest.mark.long
def test_a_graph_without_edges_or_without_other_pairs_has_no_edge_audit():
    two = Graph.from_edges([], num_nodes=6, y=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="has no edge to audit"):
        audit_edges(given_to(two), two, folds=2, **FAST)
    whole = Graph.from_edges([(i, j) for i in range(6) for j in range(i)], y=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="all nodes of graph 'graph' are joined"):
        audit_edges(given_to(whole), whole, folds=2, **FAST)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder of your own CSV files, with ids that are text."""
    folder = tmp_path_factory.mktemp("audit")
    graph = load("sbm", n=60, classes=2, features=4, degree=6.0, noise=0.5)
    x = graph.x.numpy()
    lines = [f"n{i},{'red' if graph.y[i] else 'blue'}," + ",".join(f"{v:.3f}" for v in x[i]) for i in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,a,b,c,d", *lines]))
    ends = zip(*(end.tolist() for end in edge_ends(graph)), strict=True)
    (folder / "edges.csv").write_text("\n".join(["source,target", *(f"n{a},n{b}" for a, b in ends)]))
    done = CliRunner().invoke(
        app, ["train", str(folder), "--out", str(folder / "run"), "--epochs", "10", "--hidden", "8", "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    return folder / "run"


def invoke(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments), "--device", "cpu"])


@pytest.mark.long
def test_the_command_ranks_labels_and_edges_of_your_own_data(run, tmp_path):
    before = {path: path.read_bytes() for path in run.parent.rglob("*") if path.is_file()}
    done = invoke(run, "--labels", "--repeats", 1, "--json", "--top", 3)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["findings"]) == 3
    assert found["findings"][0]["node"].startswith("n")
    loaded = load_run(run)
    of_page = rank_labels(loaded.graph, kept_fit(Prediction.of(loaded.trained, loaded.graph), loaded.graph))
    asked = json.loads(invoke(run, "--labels", "--json").stdout)["findings"]
    assert [(one["node"], one["suspicion"]) for one in asked] == [(one.node, one.suspicion) for one in of_page.findings]
    out = tmp_path / "edges.csv"
    done = invoke(run, "--edges", "--repeats", 1, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"rows in {out}\n")
    assert out.read_text().startswith("source,target,source_class,target_class,suspicion,")
    done = invoke(run, "--labels", "--repeats", 1, "--folds", 2, "--top", 1)
    assert "of 60 labels are more likely wrong than right" in done.stdout
    assert before == {path: path.read_bytes() for path in run.parent.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong",
    [(), ("--labels", "--edges"), ("--labels", "--top", "0")],
)
def test_the_command_says_what_it_can_do(run, wrong):
    assert invoke(run, *wrong).exit_code == 2


@pytest.mark.long
def test_a_file_that_cannot_be_written_is_named_before_anything_is_trained(run, tmp_path, monkeypatch):
    monkeypatch.setattr(auditing, "cross_fit", None)
    done = invoke(run, "--edges", "--out", tmp_path / "nowhere" / "edges.csv")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"there is no folder {tmp_path / 'nowhere'} to write edges.csv in" in done.stderr


def test_training_by_folds_kept_what_a_label_audit_needs(karate):
    wrong = 0  # the instructor himself
    graph = flip(karate, [wrong])
    kept = kept_fit(Prediction.of(learn(graph, recipe="quick", device="cpu", threads=1), graph), graph)
    assert kept.given.all()
    assert rank_labels(graph, kept).findings[0].node == graph.node_names[wrong]
    trained = learn(graph, recipe="quick", device="cpu", threads=1)
    assert audit_labels(trained, graph).findings == rank_labels(graph, kept).findings
    assert audit_labels(trained, graph, folds=3).findings != rank_labels(graph, kept).findings


def test_labels_that_training_did_not_hold_out_are_not_audited_from_what_it_kept(karate):
    with pytest.raises(ValueError, match="did not hold out each label in turn"):
        kept_fit(Prediction.of(given_to(karate), karate), karate)


@pytest.mark.parametrize("planted", [0, 6])
def test_a_rare_class_is_not_suspicious_as_a_whole_and_wrong_labels_in_it_are_found(planted):
    """3 % of 2,000 nodes are rare, and probabilities are right but unsure; labels of the rare class are planted on sure nodes."""
    draw = np.random.default_rng(planted)
    p = draw.beta(0.15, 4.85, 2000)
    rare = draw.random(2000) < p
    wrong = draw.choice(np.flatnonzero(~rare & (p < 1e-4)), planted, replace=False)
    y = rare.copy()
    y[wrong] = True
    graph = Graph.from_edges([(0, 1)], num_nodes=2000, y=y.astype(int), class_names=("common", "rare"))
    probabilities = torch.from_numpy(np.stack([1 - p, p], axis=1))
    found = rank_labels(graph, CrossFit(probabilities, None, graph.labeled, (1, 5, 1, 0, QUICK), graph.target))
    called = {one.node for one in found.findings if one.suspicion >= 4 * found.rate}
    assert set(wrong.tolist()) <= {one.node for one in found.findings[: 2 * planted]}
    assert len(called & set(np.flatnonzero(rare).tolist())) < 0.2 * rare.sum()
    assert found.findings[0].suspicion <= 1
