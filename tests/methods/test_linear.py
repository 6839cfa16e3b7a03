"""Logistic regression on smoothed columns, against dense matrices and scikit-learn itself."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods import linear as smoothed
from gcn_lpa.methods.linear import PENALTY, SUREST
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, WITH_FEW_LABELS
from tests.helpers.trainings import trained_alone

RECIPE = METHODS["smoothed-lr"].fair(DEFAULT).replace(features="raw", structure=False, propagation_steps=4)


def world(directed=False, sparse=False, classes=3, n=60):
    random = np.random.default_rng(7)
    y = random.integers(0, classes, n)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and random.random() < (0.12 if y[i] == y[j] else 0.01)]
    x = random.normal(size=(n, 5)) + 1.5 * np.eye(5)[y]
    x[random.random((n, 5)) < 0.5] = 0
    graph = Graph.from_edges(pairs, x=x, y=y, directed=directed)
    if sparse:
        import scipy.sparse

        graph = Graph.from_scipy(graph.to_scipy(), x=scipy.sparse.csr_array(x), y=y, directed=directed)
        assert isinstance(graph.x, SparseMatrix)
    return graph, x.astype(np.float32).astype(np.float64)


def dense_smoothing(graph, steps, alpha):
    """M = α Σ_k (1 - α)^k S^k + (1 - α)^K S^K for S = D^-½ (A + I) D^-½, where row i of A is whom node i hears."""
    a = graph.to_scipy().T.toarray().astype(np.float64) + np.eye(graph.num_nodes)
    s = a / np.sqrt(np.outer(a.sum(axis=1), a.sum(axis=1)))
    powers = [np.linalg.matrix_power(s, k) for k in range(steps + 1)]
    return sum(alpha * (1 - alpha) ** k * powers[k] for k in range(steps)) + (1 - alpha) ** steps * powers[steps]


def by_another_road(z, y, nodes, number):
    """Two fits of scikit-learn on dense rows; the probabilities of every node."""
    scale = np.sqrt((z[nodes] ** 2).sum(axis=1).mean())
    z = z / scale
    first = LogisticRegression(C=PENALTY, max_iter=200).fit(z[nodes], y[nodes])
    said = first.predict_proba(z)
    rows, classes, weights = list(nodes), list(y[nodes]), [1.0] * len(nodes)
    for place, k in enumerate(first.classes_):
        others = [i for i in range(len(y)) if i not in set(nodes) and said[i].argmax() == place]
        others = sorted(others, key=lambda i: -said[i, place])[: number // 3]
        rows, classes = rows + others, classes + [k] * len(others)
        weights += [(y[nodes] == k).sum() / len(others)] * len(others) if others else []
    second = LogisticRegression(C=PENALTY, max_iter=200).fit(z[rows], classes, sample_weight=weights)
    return second.predict_proba(z)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_it_is_scikit_learn_on_smoothed_rows_taught_twice(monkeypatch, directed, sparse):
    monkeypatch.setattr(smoothed, "SUREST", 24)
    monkeypatch.setattr(smoothed, "BLOCK", 130)  # two walks at a time
    graph, x = world(directed, sparse)
    nodes = np.concatenate([np.flatnonzero(graph.y.numpy() == k)[:4] for k in range(3)])
    trained = learn(graph, nodes, [], RECIPE, device="cpu")
    expected = by_another_road(dense_smoothing(graph, 4, 0.1) @ x, graph.y.numpy(), nodes, 24)
    found = predict_proba(trained, graph, raw=True)
    assert np.allclose(found, expected, rtol=0, atol=2e-4)


def test_what_it_is_surest_of_counts():
    """Without the second fit the answers are others."""
    graph, x = world()
    nodes = np.concatenate([np.flatnonzero(graph.y.numpy() == k)[:2] for k in range(3)])
    z = dense_smoothing(graph, 4, 0.1) @ x
    z /= np.sqrt((z[nodes] ** 2).sum(axis=1).mean())
    once = LogisticRegression(C=PENALTY, max_iter=200).fit(z[nodes], graph.y.numpy()[nodes]).predict_proba(z)
    found = predict_proba(learn(graph, nodes, [], RECIPE, device="cpu"), graph, raw=True).numpy()
    assert np.abs(found - once).max() > 0.05
    assert SUREST > 100


def test_it_sees_the_labels_it_is_given_and_no_others():
    graph, _ = world()
    nodes = np.arange(9)
    found = predict_proba(trained_alone(graph, nodes, [], RECIPE, target=graph.target), graph, raw=True)
    y = graph.y.clone()
    y[9:] = (y[9:] + 1) % 3
    other = Graph.from_scipy(graph.to_scipy(), x=graph.x.numpy(), y=y.numpy(), class_names=graph.class_names)
    assert torch.equal(found, predict_proba(trained_alone(other, nodes, [], RECIPE, target=graph.target), other, raw=True))


@pytest.mark.parametrize("known", [1, 2])
def test_a_class_without_a_label_is_never_said(known):
    graph, _ = world()
    nodes = np.flatnonzero(graph.y.numpy() < known)[:8]
    trained = trained_alone(graph, nodes, [], RECIPE, target=graph.target)
    found = predict_proba(trained, graph, raw=True)
    assert not found[:, known:].any()
    assert torch.allclose(found.sum(dim=1), torch.ones(graph.num_nodes, dtype=torch.float64))


def test_a_graph_where_every_node_has_a_label_has_none_to_add():
    graph, x = world()
    trained = learn(graph, np.arange(60), [], RECIPE, device="cpu")
    z = dense_smoothing(graph, 4, 0.1) @ x
    z /= np.sqrt((z**2).sum(axis=1).mean())
    expected = LogisticRegression(C=PENALTY, max_iter=200).fit(z, graph.y.numpy())
    weight = trained.model.first[0].get_buffer("weight").numpy().astype(np.float64)
    logits = dense_smoothing(graph, 4, 0.1) @ (x @ weight) + trained.model.first[0].get_buffer("bias").numpy()
    assert np.allclose(softmax(logits, axis=1), expected.predict_proba(z), atol=2e-4)


def test_with_few_labels_it_is_a_member_and_is_fitted_to_all_labels_once(monkeypatch):
    graph, x = world(n=90)
    calls = []
    fit = smoothed.SmoothedLR.fit_at_once
    monkeypatch.setattr(smoothed.SmoothedLR, "fit_at_once", lambda model, *more: (calls.append(len(more[1])), fit(model, *more))[1])
    labeled = np.concatenate([np.flatnonzero(graph.y.numpy() == k)[:10] for k in range(3)])
    recipe = WITH_FEW_LABELS.replace(epochs=5, patience=0, features="raw")
    trained = learn(graph, labeled, None, recipe, device="cpu")
    assert recipe.members.split()[0] == "smoothed-lr"
    assert calls == [24] * 5 + [30]  # without each fold, and with all
    bag = trained.model.members[1]
    assert all(torch.equal(model.get_buffer("weight"), bag[0].get_buffer("weight")) for model in bag)
    logits = dense_smoothing(graph, 10, 0.1) @ (x @ bag[0].get_buffer("weight").double().numpy())
    said = trained.model.parts(trained.prepare(graph))[1]
    assert np.allclose(said, log_softmax(logits + bag[0].get_buffer("bias").numpy(), axis=1), atol=1e-4)


def test_a_class_with_one_label_does_not_silence_it():
    """The fold that holds that label out would fit a weight of 0 to a member that is sure no node is of the class."""
    graph, _ = world(n=90)
    y = graph.y.numpy()
    labeled = np.concatenate([np.flatnonzero(y == k)[:number] for k, number in enumerate((10, 10, 1))])
    trained = learn(graph, labeled, None, WITH_FEW_LABELS.replace(epochs=20, patience=0, features="raw"), device="cpu")
    assert trained.shares["smoothed-lr"] > 0.1
    assert trained.weights.exponents[1] > 0.1


def test_balanced_classes_weigh_alike_in_both_fits(monkeypatch):
    """A weight of m / (c · m_k) for each class of mass m_k, also where nodes that were taught weigh less than one."""
    graph, _ = world()
    nodes, seen = torch.arange(40), []
    fitted = smoothed.affine_layers

    def spied(estimator, rows, y, number, hidden, weights):
        seen.append(np.bincount(y, weights))
        return fitted(estimator, rows, y, number, hidden, weights)

    monkeypatch.setattr(smoothed, "affine_layers", spied)
    for balance in ("none", "balanced"):
        learn(graph, nodes, [], RECIPE.replace(class_weights=balance), device="cpu")
    plain, balanced = seen[:2], seen[2:]
    assert all(np.ptp(masses) > 1 for masses in plain)
    for masses, one in zip(balanced, plain, strict=True):
        np.testing.assert_allclose(masses, one.sum() / 3)
