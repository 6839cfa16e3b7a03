"""GRAND against dense matrices: the mean of hops, and the agreement of two draws."""

import numpy as np
import pytest
import torch

from gcn_lpa.engine.sparse import Key, dropout
from gcn_lpa.graph import Graph
from gcn_lpa.methods import networks
from gcn_lpa.methods.networks import GRAND
from gcn_lpa.methods.registry import METHODS

RECIPE = METHODS["grand"].settings().replace(features="raw", hidden=4, propagation_steps=3, dropout=0.0)


@pytest.fixture
def small():
    """Six nodes in two classes, four of them with a label; its dense D^-½AD^-½; a model of it."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 2)]
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))
    graph = RECIPE.prepare(Graph.from_edges(edges, x=x, y=[0, 0, 1, 1, None, None]))
    a = torch.from_numpy(graph.adjacency.to_scipy().toarray()).double()
    scale = a.sum(dim=1).rsqrt()
    return graph, scale[:, None] * a * scale, GRAND(RECIPE, graph, seed=1)


def logits_of(model, s, z):
    """What the model makes of z = m ∘ x W, float64."""
    w, (b0, b1) = model.weights[1].double(), [b.double() for b in model.biases]
    mean = sum(torch.linalg.matrix_power(s, k) @ z for k in range(4)) / 4
    return (mean + b0).relu() @ w + b1


def test_it_predicts_from_the_mean_of_all_hops(small):
    graph, s, model = small
    expected = logits_of(model, s, graph.x.double() @ model.weights[0].double())
    assert torch.allclose(model.eval()(graph).double(), expected, atol=1e-6)


def test_while_training_whole_nodes_are_left_out_and_the_others_count_double(small):
    graph, s, model = small
    key = Key(7, 3)
    kept = dropout(torch.ones(6, 1), 0.5, key, 4)  # the second draw
    assert set(kept.flatten().tolist()) == {0.0, 2.0}
    z = kept.double() * (graph.x.double() @ model.weights[0].double())
    assert torch.allclose(model(graph, key, draw=1).double(), logits_of(model, s, z), atol=1e-6)


@pytest.mark.parametrize(("enough", "trust"), [(20, 4 / 40), (1, 1.0)])
def test_its_loss_is_the_mean_cost_and_the_distance_of_both_draws_from_their_sharpened_mean(small, monkeypatch, enough, trust):
    graph, _, model = small
    monkeypatch.setattr(networks, "ENOUGH", enough)
    key, nodes = Key(7, 3), torch.arange(4)
    draws = [model(graph, key, draw).double() for draw in range(2)]
    shares = [logits.softmax(dim=1) for logits in draws]
    mean = (shares[0] + shares[1]) / 2
    goal = mean**2 / (mean**2).sum(dim=1, keepdim=True)  # a temperature of ½
    cost = sum(-logits.log_softmax(dim=1)[nodes, graph.y[:4]].mean() for logits in draws) / 2
    gap = sum(((share - goal) ** 2).sum(dim=1).mean() for share in shares) / 2
    loss = model.train().loss(graph, nodes, key).total
    assert loss.item() == pytest.approx((cost + trust * gap).item(), abs=1e-6)
