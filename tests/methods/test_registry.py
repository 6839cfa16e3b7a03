"""Every method against the package it comes from, a dense twin or a closed form; and one contract for all."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gcn_lpa.engine.sparse import Key, SparseMatrix, random_share
from gcn_lpa.graph import Graph
from gcn_lpa.losses import SEED_LAYER
from gcn_lpa.methods.label_propagation import AdaptiveLPA
from gcn_lpa.methods.linear import FeaturesOnly
from gcn_lpa.methods.networks import correct_and_smooth
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import PAPER, Recipe
from gcn_lpa.trained import Trained
from tests.helpers.small_graphs import twin_of
from tests.helpers.trainings import trained_alone

ROUGH = {"epochs": 5, "hidden": 4, "heads": 2}
EVERY_METHOD = [m if m in ("gcn-lpa", "lpa", "lr", "gcn") else pytest.param(m, marks=pytest.mark.long) for m in METHODS]
WITH_PYG = [pytest.param(name, marks=pytest.mark.long) for name in ("gat", "graphsage")]  # slow to import
OTHERS = [*WITH_PYG, "jk-net", "appnp", "label-input", "correct-and-smooth"]


@pytest.fixture
def ragged():
    """Two triangles joined by 2-3 with labels 0, 0, 1, 1; 6-7 apart; 8 alone; class "c" has no member in 0, 1, 3, 4."""
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5), (6, 7)]
    x = np.random.default_rng(0).integers(0, 2, (9, 6)).astype(np.float32)
    x[8] = 0
    return Graph.from_edges(edges, x=x, y=[0, 0, 1, 1, 1, 0, 2, 2, 0], class_names=["a", "b", "c"], num_nodes=9)


@pytest.fixture
def arrows(ragged):
    """The nodes of `ragged`, joined by arcs that have a direction; 8 is alone."""
    arcs = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (6, 7)]
    names = ragged.class_names
    return Graph.from_edges(arcs, x=ragged.x, y=ragged.y, directed=True, num_nodes=9, class_names=names), arcs


def sparse_twin(graph):
    """The same graph with its features stored as a sparse matrix."""
    import scipy.sparse

    return dataclasses.replace(graph, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(graph.x.numpy())))


def build(name, graph, seed=0, **changes):
    """An untrained model and its prepared graph."""
    if METHODS[name].needs == "pyg":
        pytest.importorskip("torch_geometric")
    recipe = METHODS[name].settings().replace(**changes)
    prepared = recipe.prepare(graph)
    return METHODS[name].build(recipe, prepared, seed), prepared


def trained(name, graph, nodes, **changes):
    """A method after a few epochs on the labels of `nodes`, with all classes of the graph."""
    if METHODS[name].needs == "pyg":
        pytest.importorskip("torch_geometric")
    recipe = METHODS[name].settings().replace(**{**ROUGH, **changes})
    return trained_alone(graph, list(nodes), [], recipe, target=graph.target)


def said(name, graph, nodes, **changes):
    """The probabilities of a method that was trained on `nodes`."""
    return predict_proba(trained(name, graph, nodes, **changes), graph, raw=True)


def only(graph, nodes):
    """The same graph with the labels of `nodes` and no others."""
    return graph.reveal(torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, torch.tensor(nodes), True))


def dense(graph):
    return graph.adjacency.to_dense().double()


def test_the_paper_s_baselines_and_the_rivals_are_there():
    paper = {"mlp", "lr", "lpa", "gcn", "gat", "jk-net", "graphsage", "gcn-lpa"}
    assert paper | {"gcn-same", "appnp", "correct-and-smooth", "label-input"} <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_names_its_method_and_where_it_comes_from(name):
    recipe = METHODS[name].settings(PAPER["cora"])
    assert (METHODS[name].name, recipe.method) == (name, name)
    assert recipe.origin and METHODS[name].note
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_gcn_same_differs_from_gcn_lpa_in_its_edges_alone():
    ours, same = (METHODS[name].settings(PAPER["cora"]).to_dict() for name in ("gcn-lpa", "gcn-same"))
    different = {field for field in ours if ours[field] != same[field]}
    assert different == {"method", "edges", "lpa_weight"}


@pytest.mark.long
def test_gcn_equals_that_of_pyg(tiny):
    conv = pytest.importorskip("torch_geometric.nn").GCNConv
    model, graph = build("gcn", tiny)
    layers = [conv(*weight.shape, bias=False) for weight in model.body.weights]
    for layer, weight in zip(layers, model.body.weights, strict=True):
        layer.lin.weight.data = weight.data.T
    index, weights = torch.stack([tiny.col, tiny.row]).long(), tiny.adjacency.values
    twin = layers[1](layers[0](graph.x, index, weights).relu(), index, weights)
    assert torch.allclose(model(graph), twin, rtol=0, atol=1e-6)


def test_fixed_edges_and_no_lpa_are_a_plain_row_normalised_gcn(tiny):
    recipe = METHODS["gcn-same"].settings(PAPER["cora"])
    graph = recipe.prepare(tiny)
    model = METHODS["gcn-same"].build(recipe, graph, 0)
    twin, a = twin_of(model, graph), graph.adjacency.to_dense().double()
    torch.testing.assert_close(twin.smoothing, a / a.sum(1, keepdim=True))
    torch.testing.assert_close(model(graph).double(), twin.logits(), rtol=1e-5, atol=1e-6)
    assert model.loss(graph, torch.tensor([0, 2, 3]), Key(0)).lpa == 0
    assert model.edge_parameters() == []


def test_lpa_sums_the_walks_that_end_at_a_label(karate):
    """Lemma 2: Y_U = Σ_{j<k} P_UU^j P_UL Y_L."""
    labeled, steps = [0, 5, 33], 20
    found = said("lpa", karate, labeled, propagation_steps=steps)
    graph = METHODS["lpa"].settings().prepare(karate)
    walk = dense(graph) / dense(graph).sum(dim=1, keepdim=True)
    free = [i for i in range(34) if i not in labeled]
    inner, outer = walk[free][:, free], walk[free][:, labeled] @ F.one_hot(karate.y[labeled], 2).double()
    mass = sum(torch.linalg.matrix_power(inner, j) @ outer for j in range(steps))
    assert torch.allclose(found[free], mass / mass.sum(dim=1, keepdim=True), atol=1e-5)
    assert torch.allclose(found[labeled], F.one_hot(karate.y[labeled], 2).double())


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("lpa")])
def test_a_node_no_label_reaches_gets_the_shares_of_the_labels(ragged, name):
    lost = said(name, ragged, [0, 1, 3])[[6, 7, 8]]
    assert torch.allclose(lost, torch.tensor([[2 / 3, 1 / 3, 0]], dtype=torch.float64).expand(3, 3), atol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", ["lr", "mlp"])
@pytest.mark.parametrize("nodes", [[0, 1, 3, 4], [0, 1, 2, 3, 4, 6, 7]])
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_scikit_learn_s_own_probabilities(ragged, name, nodes, stored):
    graph = sparse_twin(ragged) if stored == "sparse" else ragged
    ours = trained(name, graph, nodes)
    x, y = ragged.x.numpy(), ragged.y[nodes].numpy()
    twin = FeaturesOnly(ours.recipe, ragged, 0, hidden=ours.model.first[0].hidden).estimator()
    twin.fit(x[nodes], y)
    found = predict_proba(ours, graph, raw=True).numpy()
    np.testing.assert_allclose(found[:, twin.classes_], twin.predict_proba(x), atol=1e-5)
    assert (np.delete(found, twin.classes_, axis=1) == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_gat_equals_a_stack_of_pyg_s_layers(arrows, stored):
    conv, (arrow_graph, arcs) = pytest.importorskip("torch_geometric.nn").GATConv, arrows
    model, graph = build("gat", sparse_twin(arrow_graph) if stored == "sparse" else arrow_graph)
    first, second = conv(6, 8, heads=8), conv(64, 3, heads=1)
    first.load_state_dict({**model.convs[0].state_dict(), "lin.weight": model.project.weight})
    second.load_state_dict(model.convs[1].state_dict())
    x, index = model.recipe.prepare(arrow_graph).x, torch.tensor(arcs).T  # they add the self-loops
    assert torch.allclose(model(graph), second(F.elu(first(x, index)), index), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_graphsage_equals_a_stack_of_pyg_s_layers(arrows, stored):
    conv, (arrow_graph, arcs) = pytest.importorskip("torch_geometric.nn").SAGEConv, arrows
    model, graph = build("graphsage", sparse_twin(arrow_graph) if stored == "sparse" else arrow_graph)
    first, second = conv(6, 128), conv(128, 3)
    first.load_state_dict(model.convs[0].state_dict())
    second.load_state_dict(model.convs[1].state_dict())
    x, index = model.recipe.prepare(arrow_graph).x, torch.tensor(arcs).T
    assert torch.allclose(model(graph), second(first(x, index).relu(), index), atol=1e-6)


@pytest.mark.long
def test_jk_net_equals_pyg_s_jumping_knowledge(ragged):
    pyg = pytest.importorskip("torch_geometric.nn")
    model, graph = build("jk-net", ragged)
    index, x, outputs = torch.stack([ragged.col, ragged.row]).long(), graph.x, []
    for weight in model.weights:
        conv = pyg.GCNConv(*weight.shape, bias=False)
        conv.lin.weight.data = weight.data.T
        x = conv(x, index).relu()
        outputs.append(x)
    assert torch.allclose(model(graph), pyg.JumpingKnowledge("cat")(outputs) @ model.join + model.bias, atol=1e-6)


@pytest.mark.long
def test_appnp_equals_that_of_pyg(ragged):
    pyg = pytest.importorskip("torch_geometric.nn")
    model, graph = build("appnp", ragged, propagation_steps=7, teleport=0.3)
    (w1, w2), (b1, b2) = model.body.perceptron.weights, model.body.perceptron.biases
    start = (graph.x @ w1 + b1).relu() @ w2 + b2
    index = torch.stack([ragged.col, ragged.row]).long()
    assert torch.allclose(model(graph), pyg.APPNP(K=7, alpha=0.3)(start, index), atol=1e-6)


@pytest.mark.parametrize("rows", [None, torch.arange(100, 130)], ids=["of the whole graph", "of a part of it"])
def test_correct_and_smooth_learns_from_labelled_rows_what_it_would_from_all(ragged, rows):
    """The bits that drop are those of the node, wherever its row is."""
    model, graph = build("correct-and-smooth", ragged)
    nodes, found = torch.tensor([0, 1, 3, 4]), []
    key = Key(3, 5, None if rows is None else rows[: graph.num_nodes])
    of_all = lambda: F.cross_entropy(model.perceptron(graph.x, key)[nodes], graph.y[nodes])  # noqa: E731
    for cost in (lambda: model.loss(graph, nodes, key).gcn, of_all):
        model.train().zero_grad()
        cost().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(*found, strict=True))
    assert any(gradient.abs().max() > 0 for gradient in found[0])


def test_correct_and_smooth_equals_a_dense_transcription(ragged):
    """E ← α S E + (1 - α) E₀, Z + σ E / ‖E‖₁, then the same walk from the training labels and the corrected rest."""
    model, graph = build("correct-and-smooth", ragged, propagation_steps=6, teleport=0.25)
    nodes = [0, 1, 3, 4]
    (w1, w2), (b1, b2) = model.perceptron.weights, model.perceptron.biases
    a = dense(graph)
    scale = a.sum(dim=1).rsqrt()
    smoothing = scale[:, None] * a * scale
    guess = F.softmax((graph.x @ w1 + b1).relu() @ w2 + b2, dim=1).double()
    error = torch.zeros_like(guess)
    error[nodes] = F.one_hot(ragged.y[nodes], 3) - guess[nodes]
    spread = error
    for _ in range(6):
        spread = (0.75 * smoothing @ spread + 0.25 * error).clamp(-1, 1)
    size = spread.abs().sum(dim=1)
    corrected = guess.clone()
    near = size > 0
    corrected[near] += (error.abs().sum() / 4 / size[near])[:, None] * spread[near]
    corrected[nodes] = F.one_hot(ragged.y[nodes], 3).double()
    smooth = corrected
    for _ in range(6):
        smooth = (0.75 * smoothing @ smooth + 0.25 * corrected).clamp(0, 1)
    assert torch.allclose(model(only(graph, nodes)).exp().double(), smooth / smooth.sum(dim=1, keepdim=True), atol=1e-6)


@pytest.mark.long
def test_correct_and_smooth_equals_that_of_pyg(karate):
    pyg = pytest.importorskip("torch_geometric.nn")
    recipe = METHODS["correct-and-smooth"].settings()
    graph, nodes = recipe.prepare(karate), torch.tensor([0, 1, 2, 33])
    guess = F.softmax(torch.randn(34, 2, generator=torch.Generator().manual_seed(0)), dim=1)
    known = torch.zeros(34, 2).index_copy(0, nodes, F.one_hot(karate.y[nodes], 2).float())
    twin = pyg.CorrectAndSmooth(50, 0.8, 50, 0.8)(guess, karate.y[nodes], nodes, torch.stack([graph.col, graph.row]).long())
    ours = correct_and_smooth(graph.adjacency.symmetric_normalized(), guess, known, recipe).exp()
    assert torch.allclose(ours, twin / twin.sum(dim=1, keepdim=True), atol=1e-5)


def test_label_input_scores_a_node_only_where_its_label_is_hidden(ragged):
    """Flipping the label of a scored node moves the loss by the change of its own cross-entropy and nothing else."""
    model, graph = build("label-input", ragged, dropout=0.0)
    nodes, key = torch.arange(6), Key(3)
    shows = random_share(nodes, model.recipe.label_rate, key, SEED_LAYER)
    hidden = int((~shows).nonzero()[0])
    assert shows.any()
    before = model.loss(graph, nodes, key).gcn
    flipped = graph.y.clone()
    flipped[hidden] = 2
    after = model.loss(dataclasses.replace(graph, y=flipped), nodes, key).gcn
    labels = F.one_hot(graph.y, 3).float() * torch.zeros(9, 1).index_copy(0, nodes, shows.float().unsqueeze(1))
    logits = model.reading(graph, labels, None)[hidden : hidden + 1]
    change = F.cross_entropy(logits, torch.tensor([2])) - F.cross_entropy(logits, graph.y[hidden : hidden + 1])
    assert torch.allclose(after - before, change / (~shows).sum(), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("loss", ["leave_one_out", "literal", "held_out"])
def test_label_criteria_strengthen_edges_inside_a_class(two_cliques, loss):
    changes = {"epochs": 50, "edges": "free", "self_loops": True, "loss": loss}
    learned = trained("lpa-leave-one-out", two_cliques, [0, 1, 3, 4, 6, 7], **changes)
    weights = learned.model.first[0].edge_scores(learned.prepare(two_cliques)).row_softmax().to_dense()
    assert weights[3, :3].sum() > 5 * weights[3, 4]


@pytest.mark.parametrize("name", EVERY_METHOD)
class TestContract:
    """What holds for every method, on a graph with lost and isolated nodes and a class that nothing teaches."""

    nodes = (0, 1, 3, 4)

    def test_rows_are_distributions_the_same_for_sparse_and_dense_features(self, ragged, name):
        learned = trained(name, ragged, self.nodes)
        probabilities = predict_proba(learned, ragged, raw=True)
        assert probabilities.shape == (9, 3)
        assert torch.allclose(probabilities.sum(dim=1), torch.ones(9, dtype=torch.float64))
        assert (probabilities >= 0).all()
        assert torch.isfinite(learned.model(learned.prepare(ragged))).all()
        assert torch.allclose(probabilities, said(name, sparse_twin(ragged), self.nodes), atol=1e-4)

    def test_edges_may_have_a_direction(self, arrows, name):
        probabilities = said(name, arrows[0], self.nodes)
        assert torch.allclose(probabilities.sum(dim=1), torch.ones(9, dtype=torch.float64))

    def test_one_class_is_certain(self, ragged, name):
        graph = dataclasses.replace(ragged, y=torch.zeros(9, dtype=torch.int64), class_names=("a",))
        assert said(name, graph, self.nodes).tolist() == [[1.0]] * 9

    def test_what_is_kept_in_a_folder_predicts_the_same(self, ragged, name, tmp_path):
        graph = sparse_twin(ragged)
        learned = trained(name, graph, self.nodes)
        learned.save_pretrained(tmp_path / "kept")
        again = Trained.from_pretrained(tmp_path / "kept")
        assert torch.equal(predict_proba(again, graph, raw=True), predict_proba(learned, graph, raw=True))
        if learned.model.state_dict():  # label propagation learns nothing
            fresh = METHODS[name].build(learned.recipe, learned.prepare(graph), 99)
            assert not torch.equal(fresh(learned.prepare(graph)), learned.model(learned.prepare(graph)))

    def test_only_the_labels_of_the_training_nodes_are_read(self, ragged, name):
        graph = sparse_twin(ragged)
        other = graph.y.clone()
        other[[2, 5, 6, 7, 8]] = torch.tensor([0, 1, -1, 0, 2])
        results = []
        for y in (graph.y, other):
            model, prepared = build(name, dataclasses.replace(graph, y=y), **ROUGH)
            if hasattr(model, "fit_at_once"):
                model.fit_at_once(prepared, torch.tensor(self.nodes))
            else:
                model.loss(prepared, torch.tensor(self.nodes), Key(0, 1)).total.backward()
            shown = only(prepared, self.nodes)
            results.append([*model.state_dict().values(), *(p.grad for p in model.parameters()), model(shown)])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))

    def test_the_same_seed_gives_the_same_bits(self, ragged, name):
        before = torch.random.get_rng_state()
        first, second = (trained(name, sparse_twin(ragged), self.nodes).model.state_dict() for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", [*OTHERS, "gcn-lpa", "gcn"])
def test_dropout_changes_with_the_key_and_eval_never_drops_out(karate, name):
    """In eval mode the loss is that of a recipe without dropout, with or without a key."""
    (model, graph), (without, _) = build(name, karate, dropout=0.5), build(name, karate, dropout=0.0)
    nodes, keys = torch.arange(0, 34, 3), [Key(0, 1), Key(0, 2), Key(1, 1), Key(0, 1)]
    first, second, seeded, again = (float(model.loss(graph, nodes, key).gcn.detach()) for key in keys)
    assert first == again
    assert len({first, second, seeded}) == 3
    model.eval()
    for key in (*keys, None):
        assert torch.equal(model.loss(graph, nodes, key).total, without.loss(graph, nodes, key).total)
    assert torch.equal(model(graph), without(graph))


@pytest.mark.parametrize("name", OTHERS)
def test_another_seed_starts_elsewhere(karate, name):
    first, again, other = (build(name, karate, seed)[0].weight_parameters()[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.long
def test_attention_is_dropped_too(karate):
    """With nothing but the attention left to drop, two steps of GAT still differ."""
    model, graph = build("gat", karate, dropout=0.6)
    model.recipe = model.recipe.replace(dropout=0.0)
    first, again, second = (model(graph, Key(0, step)) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["gat", "graphsage"])
def test_without_pyg_the_error_names_its_pip_line(karate, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    recipe = METHODS[name].settings()
    with pytest.raises(ImportError, match=rf'{name}.*pip install "gcn-lpa\[pyg\]"'):
        METHODS[name].build(recipe, recipe.prepare(karate), 0)


def test_label_propagation_reads_the_labels_it_is_told_to_use(ragged):
    """There is nothing to learn: told of other labels, it says what it would say if it had been trained on them."""
    model = trained("lpa", ragged, [0, 3])
    found = predict_proba(model, ragged, known=[1, 4, 6], raw=True)
    assert torch.equal(found, said("lpa", ragged, [1, 4, 6]))
    assert not torch.allclose(found, predict_proba(model, ragged, raw=True))


def test_a_method_whose_features_travel_in_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="method 'lr': features = 'all'; it is one of layers, given_edges, "):
        dataclasses.replace(METHODS["lr"], features="all")


def test_a_perceptron_never_looks_at_an_edge(ragged):
    lonely = dataclasses.replace(ragged, adjacency=SparseMatrix.identity(9))
    results = [said(name, graph, [0, 1, 3, 4]) for name in ("lr", "mlp") for graph in (ragged, lonely)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])


def test_adaptive_lpa_has_edges_to_learn_and_no_w(ragged):
    model, _ = build("lpa-leave-one-out", ragged, edges="gaussian")
    assert isinstance(model, AdaptiveLPA)
    assert len(model.edge_parameters()) == 1
    assert model.weight_parameters() == []
