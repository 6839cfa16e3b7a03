"""What training gives comes back from its folder bit for bit, and predicts on other graphs with the same columns."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa import calibration
from gcn_lpa.calibration import Calibration, Calibrator
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import calibrate, learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction, edge_table, evaluate, predict_proba, predictions
from gcn_lpa.recipes import LAYERS, Recipe
from gcn_lpa.runs import storage
from gcn_lpa.trained import Trained

N, COLUMNS, CLASSES = 40, 6, ("red", "green", "blue")
TRAIN, VAL = list(range(0, 40, 3)), list(range(1, 40, 6))
LABELS = [CLASSES[k] for k in np.random.default_rng(9).integers(0, 3, N)]
OURS = LAYERS.replace(hidden=6, edge_rank=3, epochs=4, features="tfidf")
OTHERS = ("gcn", "lr", "mlp", "lpa", "correct-and-smooth", "label-input", "appnp")
CASES = {
    "agnn": OURS,
    "free": OURS.replace(edges="free"),
    "gaussian": OURS.replace(edges="gaussian"),
    **{name: METHODS[name].settings(OURS).replace(**{f: getattr(OURS, f) for f in ("epochs", "features")}) for name in OTHERS},
}
ANY_EDGES = [name for name in CASES if not name.startswith("free")]


def graph_of(y=None, class_names=None, names=None, x=None, seed=0):
    """40 nodes with counts as features and 90 random edges, the same for the same seed."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, N, (90, 2))
    counts = rng.poisson(1.0, (N, COLUMNS)) if x is None else x
    names = [f"n{i}" for i in range(N)] if names is None else names
    return Graph.from_edges([(names[i], names[j]) for i, j in edges], x=counts, y=y, class_names=class_names, node_names=names)


@pytest.fixture(scope="module")
def graph():
    return graph_of(LABELS, CLASSES)


@pytest.fixture(scope="module")
def fitted(graph):
    """A `Trained` of each case, made when it is first asked for."""
    made = {}

    def of(case):
        if case not in made:
            made[case] = learn(graph, TRAIN, VAL, CASES[case], device="cpu")
        return made[case]

    return of


def by_name(trained, graph, **options):
    rows = predict_proba(trained, graph, **options)
    return dict(zip(graph.node_names, rows, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_it_comes_back_from_its_folder_and_says_the_same(graph, fitted, tmp_path, case):
    before = fitted(case)
    before.save_pretrained(tmp_path / "model")
    after = Trained.from_pretrained(tmp_path / "model")
    assert torch.equal(predict_proba(after, graph), predict_proba(before, graph))
    assert (after.recipe, after.run, after.class_names) == (before.recipe, before.run, CLASSES)
    assert after.given(graph).nonzero().squeeze(1).tolist() == sorted(TRAIN + VAL)
    assert repr(after) == repr(before)
    assert not after.model.training


def test_a_calibration_and_sparse_columns_come_back_too(graph, tmp_path):
    counts = np.random.default_rng(1).poisson(0.3, (N, COLUMNS))
    sparse = graph_of(graph.y, CLASSES, x=scipy.sparse.csr_array(counts))
    before = learn(sparse, TRAIN, VAL, CASES["agnn"], device="cpu")
    before = dataclasses.replace(before, calibration=Calibration(Calibrator(2.0, 0.9, 0.1), "reserved", 40))
    before.save_pretrained(tmp_path)
    after = Trained.from_pretrained(tmp_path)
    assert after.calibration == before.calibration
    assert torch.equal(predict_proba(after, sparse), predict_proba(before, sparse))
    assert np.array_equal(after.scaling.idf, before.scaling.idf)


def test_what_was_learned_of_the_columns_is_used_on_another_graph(fitted):
    """TF-IDF of the training graph, by hand, of rows that it has never seen; LR looks at nothing else."""
    trained, other = fitted("lr"), graph_of(seed=7)
    rng = np.random.default_rng(0)
    rng.integers(0, N, (90, 2))
    seen = rng.poisson(1.0, (N, COLUMNS))
    weights = other.x.numpy() * (1 + np.log((1 + N) / (1 + (seen > 0).sum(axis=0))))
    length = np.sqrt((weights**2).sum(axis=1, keepdims=True))
    rows = np.divide(weights, length, out=np.zeros_like(weights), where=length > 0)
    state = {name: tensor.double().numpy() for name, tensor in trained.model.first[0].state_dict().items()}
    logits = rows @ state["weight0"] + state["bias0"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert predict_proba(trained, other, raw=True).numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_graph_without_labels_and_classes_gets_the_same_answers(graph, fitted, case):
    bare = graph_of()
    assert bare.class_names == ()
    assert torch.equal(predict_proba(fitted(case), bare), predict_proba(fitted(case), graph))
    table = predictions(fitted(case), bare)
    assert set(table["label"]) <= set(CLASSES)
    assert (table["status"] == "labeled").sum() == len(TRAIN + VAL)


@pytest.mark.parametrize("case", ["agnn", "lpa", "label-input"])
def test_labels_in_another_class_order_are_the_same_labels(graph, fitted, case):
    trained, nodes = fitted(case), list(range(2, 40, 3))
    turned = graph_of(LABELS, CLASSES[::-1])
    assert not torch.equal(turned.y, graph.y)
    assert torch.equal(trained.labels_of(turned), graph.y)
    assert torch.equal(predict_proba(trained, turned, known=nodes), predict_proba(trained, graph, known=nodes))
    assert evaluate(trained, turned, nodes).accuracy == evaluate(trained, graph, nodes).accuracy
    per_class = [evaluate(trained, one, nodes).per_class for one in (graph, turned)]
    assert per_class[0] == per_class[1]


def test_a_class_the_model_does_not_know_counts_as_an_error(graph, fitted):
    trained = fitted("agnn")
    labels = ["violet" if i % 5 == 0 else label for i, label in enumerate(LABELS)]
    other = graph_of(labels, ["violet", *CLASSES])
    guess = [CLASSES[k] for k in predict_proba(trained, other, raw=True).argmax(dim=1).tolist()]
    found = evaluate(trained, other, range(N))
    assert found.accuracy == sum(g == truth for g, truth in zip(guess, labels, strict=True)) / N
    assert found.per_class["violet"].recall == 0
    assert found.per_class["violet"].support == 8


@pytest.mark.parametrize("case", ANY_EDGES)
def test_nodes_in_another_order_get_the_same_answers(graph, fitted, case):
    order = np.random.default_rng(3).permutation(N)
    names = [graph.node_names[i] for i in order]
    turned = Graph.from_scipy(graph.to_scipy()[order][:, order], x=graph.x.numpy()[order], node_names=names)
    here, there = by_name(fitted(case), graph), by_name(fitted(case), turned)
    for name in names:
        torch.testing.assert_close(there[name], here[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ANY_EDGES)
def test_a_second_copy_of_the_graph_beside_it_changes_no_answer(graph, fitted, case):
    """80 nodes: the graph and a copy with other names, whose labels nobody knows."""
    names = [*graph.node_names, *(f"copy of {name}" for name in graph.node_names)]
    matrix = scipy.sparse.block_diag([graph.to_scipy()] * 2, format="csr")
    both = Graph.from_scipy(matrix, x=np.tile(graph.x.numpy(), (2, 1)), node_names=names)
    trained = fitted(case)
    found = predict_proba(trained, both, raw=True)
    expected = predict_proba(trained, graph, raw=True)
    torch.testing.assert_close(found[:N], expected, rtol=1e-4, atol=1e-5)
    assert trained.given(both).nonzero().squeeze(1).tolist() == sorted(TRAIN + VAL)
    if not trained.method.reads_labels:
        torch.testing.assert_close(found[N:], expected, rtol=1e-4, atol=1e-5)


def test_other_columns_are_refused_with_what_would_be_right(graph, fitted):
    with pytest.raises(ValueError, match=r"was trained on 6 columns \(given\), but .* has 5 \(given\); it needs the same"):
        predict_proba(fitted("agnn"), graph_of(x=np.ones((N, 5))))
    with pytest.raises(ValueError, match=r"was trained on 6 columns \(given\), but .* has 40 \(identity\)"):
        predict_proba(fitted("agnn"), graph_of(x="identity"))
    plain = graph_of(graph.y, CLASSES, x="identity")
    knows_positions = learn(plain, TRAIN, VAL, OURS.replace(features="raw"), device="cpu")
    smaller = Graph.from_edges([("n0", "n1")], x="identity")
    with pytest.raises(ValueError, match=r"trained without features, on a graph of 40 nodes, .* one of 2 nodes. Train with"):
        predict_proba(knows_positions, smaller)
    with pytest.raises(TypeError, match=r"graph is a gcn_lpa.Graph, such as load gives, not 'karate'"):
        predict_proba(knows_positions, "karate")


@pytest.mark.parametrize("case", ["free"])
def test_free_edges_are_refused_on_other_edges(fitted, case):
    with pytest.raises(ValueError, match=r"'free' keeps one weight per training edge .* train with one of 'bilinear'"):
        predict_proba(fitted(case), graph_of(seed=5))


def propagated_by_hand(graph, nodes, steps=20):
    """Eqs. (1) and (2) in NumPy on D⁻¹(A + I), each row brought to 1."""
    walk = graph.to_scipy().toarray().T.astype(np.float64)
    np.fill_diagonal(walk, np.where(walk.diagonal() > 0, walk.diagonal(), 1))
    walk /= walk.sum(axis=1, keepdims=True)
    seeds = np.zeros((N, 3))
    seeds[nodes, graph.y.numpy()[nodes]] = 1
    mass = seeds
    for _ in range(steps):
        mass = walk @ mass
        mass[nodes] = seeds[nodes]
    total = mass.sum(axis=1, keepdims=True)
    return np.where(total > 0, mass / np.where(total > 0, total, 1), seeds.sum(axis=0) / seeds.sum())


def test_new_labels_vote_where_labels_are_read(graph, fitted):
    """LPA with the labels it was given, with others, and with others as a mask, by hand."""
    trained, nodes = fitted("lpa"), list(range(2, 40, 2))
    assert predict_proba(trained, graph, raw=True).numpy() == pytest.approx(propagated_by_hand(graph, TRAIN), abs=1e-5)
    expected = propagated_by_hand(graph, nodes)
    assert predict_proba(trained, graph, known=nodes, raw=True).numpy() == pytest.approx(expected, abs=1e-5)
    mask = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor(nodes), True)
    assert predict_proba(trained, graph, known=mask, raw=True).numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_new_labels_change_the_answers_of_methods_that_read_labels_alone(graph, fitted, case):
    trained = fitted(case)
    before, after = (predict_proba(trained, graph, known=known, raw=True) for known in (None, range(N)))
    assert torch.equal(before, after) != trained.method.reads_labels


def test_without_names_labels_are_known_only_where_the_edges_are_the_same(graph):
    plain = dataclasses.replace(graph, node_names=range(N))
    trained = learn(plain, TRAIN, VAL, CASES["lpa"], device="cpu")
    again = dataclasses.replace(graph_of(), node_names=range(N))
    assert torch.equal(predict_proba(trained, again, raw=True), predict_proba(trained, plain, raw=True))
    other = dataclasses.replace(graph_of(seed=5), node_names=range(N), x=graph.x)
    assert not trained.given(other).any()
    assert predict_proba(trained, other, raw=True).numpy() == pytest.approx(1 / 3, abs=1e-6)  # nobody votes
    assert not trained.given(graph).any()  # these nodes have names


@pytest.mark.parametrize("method", METHODS)
def test_no_label_of_the_graph_it_is_given_is_used(graph, method):
    """Not outside the training nodes, and not even there: it knows those it was trained with."""
    if METHODS[method].needs == "pyg":
        pytest.importorskip("torch_geometric")
    trained = learn(graph, TRAIN, VAL, METHODS[method].settings(Recipe(hidden=4, edge_rank=3)).replace(epochs=2), device="cpu")
    honest = predict_proba(trained, graph)
    train = torch.zeros(N, dtype=torch.bool).index_fill(0, torch.tensor(TRAIN), True)
    for kept in (train, train & False):
        scrambled = dataclasses.replace(graph, y=torch.where(kept, graph.y, (graph.y + 1) % 3))
        assert torch.equal(predict_proba(trained, scrambled), honest)
        assert torch.equal(predict_proba(trained, scrambled.reveal(kept)), honest)
    right = (predict_proba(trained, graph, raw=True).argmax(dim=1) == graph.y).double().mean().item()
    assert evaluate(trained, graph, range(N)).accuracy == pytest.approx(right)


def test_calibrating_takes_labels_that_training_did_not_see(graph, fitted, monkeypatch):
    monkeypatch.setattr(calibration, "FEWEST", 20)
    trained, nodes = fitted("agnn"), [i for i in range(N) if i not in TRAIN]
    found = calibrate(trained, graph, nodes)
    p = predict_proba(trained, graph, raw=True)[nodes]
    apart = Prediction.of(trained, graph).unreachable[nodes]
    assert found.calibration == Calibration.fitted(p, graph.y[nodes], "reserved", None, apart)
    assert torch.equal(predict_proba(found, graph)[nodes], found.calibration(p))
    assert torch.equal(predict_proba(found, graph, raw=True)[nodes], p)
    assert trained.calibration.protocol == "validation"
    assert "probabilities are the model" in trained._repr_html_()  # by 7 nodes
    with pytest.raises(ValueError, match="node 0 was trained on: its label cannot calibrate the model"):
        calibrate(trained, graph, [0, 2])
    with pytest.raises(ValueError, match="2 of the 2 nodes to calibrate on have no label that the model knows"):
        calibrate(trained, graph_of(), [2, 4])


def test_a_table_of_edges_can_be_of_another_graph(fitted):
    other = graph_of(seed=7)
    table = edge_table(fitted("agnn"), other)
    assert table.groupby("target")["learned"].sum().to_numpy() == pytest.approx(np.ones(N), abs=1e-5)
    assert set(table["source"]) == set(other.node_names)


def test_names_that_json_does_not_know_are_not_stored(tmp_path):
    graph = Graph.from_edges([((1, 2), (3, 4))], x=np.eye(2) + 1, y={(1, 2): "a", (3, 4): "b"})
    trained = learn(graph, [0, 1], [], OURS.replace(features="raw"), device="cpu")
    with pytest.raises(ValueError, match=r"node \(1, 2\) cannot be stored: ids that are text or numbers can"):
        trained.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_model_alone_is_not_a_run(graph, fitted, tmp_path):
    from gcn_lpa.runs.folder import load_run

    fitted("agnn").save_pretrained(tmp_path)
    assert set(storage.load(tmp_path).files) == set(storage.FILES)
    with pytest.raises(ValueError, match=r"manifest\.json does not list run\.json, which is needed here"):
        load_run(tmp_path)
