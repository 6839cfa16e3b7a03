"""PyG's door: the same numbers as our own, in PyG's order of edges, and gradients that reach the edge weights."""

import copy
import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gcn_lpa import model, pyg
from gcn_lpa.edges import AGNN, GAT
from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.pyg import LPARegularizer
from gcn_lpa.recipes import LAYERS, LOSSES

EXAMPLE = Path(__file__).parents[1] / "examples" / "regularise_pyg_model.py"


@pytest.fixture
def shuffled(karate):
    """Karate as PyG would hold it: the edges in random order, with self-loops, 5 random features, some weights."""
    generator = torch.Generator().manual_seed(0)
    graph = karate.with_self_loops()
    order = torch.randperm(graph.pattern.num_entries, generator=generator)
    index = torch.stack([graph.col, graph.row]).long()[:, order]
    weight = torch.rand(index.shape[1], generator=generator) + 0.5
    return torch.randn(34, 5, generator=generator), index, weight, karate.y


def dense(index, weight, n=34):
    return torch.zeros(n, n).index_put((index[1], index[0]), weight)


def agnn():
    return AGNN(5, rank=4, generator=torch.Generator().manual_seed(1))


def test_weights_into_a_node_sum_to_one_in_the_order_of_the_edges(shuffled):
    _, index, weight, _ = shuffled
    regularizer = LPARegularizer(index.shape[1])
    with torch.no_grad():
        regularizer.weight.copy_(torch.linspace(-1, 1, index.shape[1]))
    learned = regularizer(index, None, weight)
    strength = dense(index, weight * regularizer.weight.exp())
    assert torch.allclose(dense(index, learned), strength / strength.sum(dim=1, keepdim=True), atol=1e-6)
    assert (learned > 0).all()


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("free", [True, False])
def test_a_regularised_net_equals_gcn_lpa(shuffled, karate, loss, free):
    """PyG's convolutions under the learned weights are Eq. (16), and the two losses together Eq. (18)."""
    conv = pytest.importorskip("torch_geometric.nn").GCNConv
    x, index, _, y = shuffled
    train, iterations = torch.arange(0, 34, 3), 2 if loss == "leave_one_out" else 3
    recipe = LAYERS.replace(loss=loss, lpa_iterations=iterations, lpa_weight=0.7, edges="free" if free else "agnn")
    recipe = recipe.replace(hidden=6, dropout=0.0, residual=False, edge_rank=4)
    graph = Graph(karate.with_self_loops().adjacency, x, y, karate.class_names)
    ours = model.GCNLPA(recipe, graph, seed=1)
    regularizer = LPARegularizer(index.shape[1] if free else agnn(), loss=loss, iterations=iterations, num_classes=2, seed=4)
    if free:
        of_edge = {(int(t), int(s)): k for k, (t, s) in enumerate(zip(graph.row, graph.col, strict=True))}
        place = [of_edge[int(t), int(s)] for s, t in index.T]
        ours.edges.weight.data = torch.linspace(-1, 1, len(place))
        regularizer.weight.data = ours.edges.weight.data[place].clone()
    else:
        ours.edges.load_state_dict(regularizer.form.state_dict())
    layers = [conv(*weight.shape, normalize=False, bias=False) for weight in ours.body.weights]
    for layer, weight in zip(layers, ours.body.weights, strict=True):
        layer.lin.weight.data = weight.data.T.clone()
    learned = regularizer(index, x)
    out = layers[1](layers[0](x, index, learned).relu(), index, learned)
    total = F.cross_entropy(out[train], y[train]) + 0.7 * regularizer.loss(index, learned, y, train)
    expected = ours.loss(graph, train, Key(4, 0))
    assert torch.allclose(out, ours(graph), atol=1e-6)
    assert torch.allclose(total, expected.total, atol=1e-6)
    total.backward()
    expected.total.backward()
    for theirs, parameter in zip(regularizer.parameters(), ours.edge_parameters(), strict=True):
        assert parameter.grad.abs().max() > 1e-4
        assert torch.allclose(theirs.grad, parameter.grad[place] if free else parameter.grad, atol=1e-6)


def test_labels_travel_from_source_to_target():
    """0 → 1 and no way back: node 1 hears class 0 alone, which is not its own, and node 0 hears nothing."""
    index, y = torch.tensor([[0], [1]]), torch.tensor([0, 1])
    cost = LPARegularizer(1).loss(index, torch.ones(1), y, torch.tensor([True, True]))
    assert cost.item() == pytest.approx((math.log(2) - math.log(1e-6 / (1 + 2e-6))) / 2, rel=1e-5)


def test_sparse_features_are_the_same_features(shuffled):
    x, index, weight, _ = shuffled
    x, regularizer = x * (x > 0), LPARegularizer(agnn())
    assert torch.allclose(regularizer(index, x.to_sparse(), weight), regularizer(index, x, weight), atol=1e-6)


def test_gradients_belong_to_the_loss_they_came_with(shuffled):
    """A difference quotient under the same random bits, although another step was begun before the backward pass."""
    _, index, _, y = shuffled
    train, ours = torch.arange(0, 34, 2), LPARegularizer(index.shape[1], loss="held_out", iterations=3).double()
    frozen = copy.deepcopy(ours)
    costs = [frozen.loss(index, frozen(index), y, train) for _ in range(2)]
    costs[0].backward()
    entry = frozen.weight.grad.abs().argmax()
    values = []
    for change in (1e-6, -1e-6):
        nudged = copy.deepcopy(ours)
        nudged.weight.data[entry] += change
        values.append(nudged.loss(index, nudged(index), y, train))
    assert torch.allclose((values[0] - values[1]) / 2e-6, frozen.weight.grad[entry], rtol=1e-5)


def test_held_out_draws_new_halves_in_training_alone(shuffled):
    _, index, _, y = shuffled
    regularizer = LPARegularizer(index.shape[1], loss="held_out", iterations=2)
    learned = regularizer(index).detach()
    training = [float(regularizer.loss(index, learned, y, torch.arange(34))) for _ in range(3)]
    assert len(set(training)) == 3
    regularizer.eval()
    assert len({float(regularizer.loss(index, learned, y, torch.arange(34))) for _ in range(3)}) == 1


def test_masks_and_indices_are_the_same_and_other_labels_are_not_read(shuffled):
    x, index, _, y = shuffled
    mask, regularizer = torch.arange(34) % 3 == 0, LPARegularizer(agnn(), num_classes=2)
    learned = regularizer(index, x)
    costs = [
        regularizer.loss(index, learned, labels, chosen)
        for labels in (y, torch.where(mask, y, 1 - y))
        for chosen in (mask, mask.nonzero().squeeze(1))
    ]
    assert all(torch.equal(costs[0], cost) for cost in costs[1:])


@pytest.mark.parametrize(
    ("labeled", "said"),
    [
        (torch.ones(3, dtype=torch.bool), r"labeled is a mask of \[3\] entries; the graph has 34 nodes"),
        (torch.tensor([3, 34]), "labeled names node 34, but the graph has nodes 0..33"),
        (torch.tensor([2, 3]), "nodes names node 3, which has no label to learn from"),
    ],
)
def test_what_is_no_labelled_node_is_refused(shuffled, labeled, said):
    _, index, weight, y = shuffled
    with pytest.raises(ValueError, match=said):
        LPARegularizer(index.shape[1]).loss(index, weight, y.index_fill(0, torch.tensor([3]), -1), labeled)


def test_the_edges_are_sorted_once(shuffled, monkeypatch):
    x, index, weight, y = shuffled
    calls = []
    monkeypatch.setattr(pyg, "layout_of", lambda *a, make=pyg.layout_of: calls.append(a) or make(*a))
    regularizer = LPARegularizer(agnn())
    for _ in range(3):
        regularizer.loss(index, regularizer(index, x, weight), y, torch.arange(34))
        regularizer(index, x, weight * 2)
    assert len(calls) == 1
    index[:, 0] = torch.tensor([33, 4])
    regularizer(index, x, weight)
    assert len(calls) == 2


def test_weights_with_a_gradient_can_be_used_more_than_once(shuffled):
    x, index, weight, _ = shuffled
    regularizer, slopes = LPARegularizer(agnn()), torch.linspace(-1, 1, index.shape[1])
    weight.requires_grad_()
    (regularizer(index, x, weight) * slopes).sum().backward()
    once = weight.grad.clone()
    (regularizer(index, x, weight) * slopes).sum().backward()
    assert torch.allclose(weight.grad, 2 * once)
    assert once.abs().max() > 0


def test_what_was_evaluated_in_inference_mode_can_be_trained(shuffled):
    _, index, _, _ = shuffled
    regularizer = LPARegularizer(index.shape[1])
    with torch.inference_mode():
        regularizer(index)
    regularizer(index).square().sum().backward()
    assert regularizer.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("index", "weight", "message"),
    [
        ([[0, 0], [1, 1]], None, "0 → 1 twice; coalesce"),
        ([[0, 5], [1, 1]], None, r"names nodes 0\.\.5 of 3 nodes"),
        ([[0, 1], [1, 2]], [1.0], "one weight for 2 edges"),
        ([[0, 1], [1, 2]], [1.0, -2.0], "edge 1 has weight -2; weights are positive"),
        ([[0, 1], [1, 2]], [float("nan"), 1.0], "edge 0 has weight nan"),
    ],
)
def test_what_is_wrong_with_the_edges_is_said(index, weight, message):
    weight = None if weight is None else torch.tensor(weight)
    with pytest.raises(ValueError, match=message):
        LPARegularizer(2)(torch.tensor(index), torch.eye(3), weight)


def test_what_a_regulariser_lacks_is_said(shuffled):
    _, index, _, _ = shuffled
    with pytest.raises(ValueError, match="a free weight for each of 7 edges, but edge_index has 190"):
        LPARegularizer(7)(index)
    with pytest.raises(ValueError, match="call the regulariser with x too"):
        LPARegularizer(GAT(5, rank=2, generator=torch.Generator()))(index)
    with pytest.raises(TypeError, match=r"edge_index is a tensor \[2, E\]"):
        LPARegularizer(190)(index.T)


def test_a_state_dict_brings_the_weights_and_the_step_back(shuffled):
    x, index, _, y = shuffled
    one, other = (LPARegularizer(GAT(5, rank=2, generator=torch.Generator().manual_seed(k))) for k in (1, 2))
    one.loss(index, one(index, x), y, torch.arange(34))
    assert not torch.equal(one(index, x), other(index, x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(index, x), other(index, x))
    assert int(other.step) == 1


@pytest.mark.long
def test_the_example_runs_and_learns(capsys):
    pytest.importorskip("torch_geometric.nn")
    runpy.run_path(str(EXAMPLE))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("epoch 100:")
    assert float(last.split()[-1]) > max(0.9, float(first.split()[-1]))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"edges": "agnn"},
            TypeError,
            "edges = 'agnn'; it is the number of edges, for a free weight each, or a module",
        ),
        ({"edges": True}, TypeError, "edges = True"),
        ({"edges": 4, "iterations": 0}, ValueError, "iterations = 0; a label travels at least 1 hop"),
        ({"edges": 4, "loss": "nope"}, ValueError, "loss = 'nope'; it is one of official"),
    ],
)
def test_a_regulariser_refuses_what_it_cannot_use(arguments, error, said):
    with pytest.raises(error, match=said):
        LPARegularizer(**arguments)


@pytest.mark.long
def test_a_layer_that_would_ignore_the_weights_is_refused():
    nets = pytest.importorskip("torch_geometric.nn")
    LPARegularizer(4, net=nets.GCN(3, 4, 2, normalize=False))
    LPARegularizer(4, net=nets.GraphConv(3, 4))
    with pytest.raises(ValueError, match=r"layer convs\.0 is a SAGEConv, which takes no edge_weight: learned weights would"):
        LPARegularizer(4, net=nets.GraphSAGE(3, 4, 2))
    with pytest.raises(ValueError, match="layer net is a GATConv, which takes no edge_weight"):
        LPARegularizer(4, net=nets.GATConv(3, 4))
    with pytest.raises(ValueError, match="Linear has no layer of PyTorch Geometric that could read edge weights"):
        LPARegularizer(4, net=nn.Linear(3, 4))


def test_labels_that_are_no_whole_numbers_are_refused_in_a_sentence():
    index, y = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1])
    regularizer = LPARegularizer(2)
    weight = regularizer(index)
    with pytest.raises(TypeError, match=r"y is torch.float32; it takes whole numbers, such as y.long\(\)"):
        regularizer.loss(index, weight, y.float(), torch.tensor([True, True]))
    with pytest.raises(TypeError, match=r"labeled is torch.float32; it takes a mask"):
        regularizer.loss(index, weight, y, torch.ones(2))


def test_of_numbers_the_loss_is_the_mean_square_of_what_the_votes_are_off():
    """A path of four, all numbers known: each end hears its neighbour, each middle the mean of two; in spreads of the numbers."""
    index = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    y, known = torch.tensor([1.0, 2.0, 4.0, 7.0]), torch.ones(4, dtype=torch.bool)
    regularizer = LPARegularizer(6, task="regression")
    found = regularizer.loss(index, regularizer(index), y, known)
    off = torch.tensor([2.0 - 1.0, 2.5 - 2.0, 4.5 - 4.0, 4.0 - 7.0])
    assert found.item() == pytest.approx(float(off.square().mean() / y.var(correction=0)), rel=1e-4)
    found.backward()
    assert regularizer.weight.grad.abs().max() > 0
