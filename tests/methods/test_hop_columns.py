"""Columns that walk before training: the reduction of words against a full decomposition, and what is learned without labels."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.scaling import Block
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods import hop_columns
from gcn_lpa.methods.hop_columns import leading
from gcn_lpa.methods.registry import gcn_lpa
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import QUICK

SMALL = QUICK.replace(hidden=6, epochs=8, members="", structure=False)


def wordy(seed=0, n=60, d=30):
    """Nodes with words and, in the last two columns, numbers, on random edges; three classes."""
    random = np.random.default_rng(seed)
    words, numbers = (random.random((n, d)) < 0.2).astype(float), random.normal(size=(n, 2))
    x = scipy.sparse.csr_array(np.hstack([words, numbers]))
    blocks = (Block("text", "words", 0, d), Block("age", "numbers", d, d + 2))
    graph = Graph.from_edges(random.integers(0, n, (150, 2)), x=x, y=random.integers(0, 3, n), num_nodes=n)
    return dataclasses.replace(graph, blocks=blocks)


@pytest.mark.parametrize("stored", [scipy.sparse.csr_array, np.asarray])
def test_leading_directions_span_those_of_a_full_decomposition(stored):
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 4)) @ random.normal(size=(4, 30)) + 0.01 * random.normal(size=(80, 30))
    found, exact = leading(stored(x), 4, seed=1), np.linalg.svd(x)[2][:4].T
    np.testing.assert_allclose(found @ found.T, exact @ exact.T, atol=1e-6)
    assert np.array_equal(found, leading(stored(x), 4, seed=1))
    assert leading(stored(x[:2]), 4, seed=1).shape == (30, 4)  # fewer rows than directions


def test_words_are_reduced_and_numbers_are_not(monkeypatch):
    monkeypatch.setattr(hop_columns, "MOST_COLUMNS", 10)
    monkeypatch.setattr(hop_columns, "RANK", 4)
    graph = SMALL.prepare(wordy())
    model = gcn_lpa(SMALL, graph)
    model.begin(graph)
    body, x, walk = model.body, graph.x.to_dense(), model.smoothing(graph).to_dense()
    assert body.basis.shape == (32, 6)
    z = walk @ walk @ x @ body.basis
    z = (z - z.mean(dim=0)) / z.std(dim=0, correction=0)
    rows, numbers = body.rows(graph, model.smoothing(graph), torch.tensor([5, 2]))
    rows = rows.view(2, 4, 6)
    assert numbers.tolist() == [0, 1]
    torch.testing.assert_close(rows[:, 2, :2], z[[5, 2], :2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(body(graph, model.smoothing(graph), None, torch.tensor([5, 2])), model(graph)[[5, 2]])


def test_what_is_learned_of_columns_reads_no_label():
    graph = wordy()
    other = dataclasses.replace(graph, y=(graph.y + 1) % 3)
    states = []
    for one in (graph, other):
        model = gcn_lpa(SMALL, SMALL.prepare(one))
        model.begin(SMALL.prepare(one))
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_constant_column_is_left_out_and_new_nodes_are_predicted(tmp_path):
    graph = wordy()
    graph = dataclasses.replace(graph, x=graph.x.to_dense().index_fill(1, torch.tensor([31]), 0.0), blocks=())
    trained = learn(graph, recipe=SMALL, device="cpu")
    assert predict_proba(trained, graph).isfinite().all()
    again = learn(graph, recipe=SMALL, device="cpu")
    assert torch.equal(predict_proba(trained, graph), predict_proba(again, graph))


def test_one_part_is_held_out_and_then_all_labels_are_learned():
    graph = wordy()
    trained = learn(graph, recipe=SMALL.replace(folds=1), device="cpu")
    assert (len(trained.model.first), trained.held_out.protocol) == (1, "validation")
    assert len(trained.held_out.node) == 12
    assert int(trained.known.trains.sum()) == 60
