"""The methods and recipes that only the study has: their contract, closed forms, and hashes that stay."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import LAYERS, OFFICIAL, PAPER, Recipe
from gcn_lpa.train import DivergedError
from reproduction import neighbourhoods
from reproduction.methods import settings_of, study_methods
from reproduction.neighbourhoods import reconstruction_error
from reproduction.recipes import SPACE, StudyRecipe
from reproduction.training import in_library, learn_once

OWN = [name for name, method in study_methods().items() if method is not METHODS.get(name)]
CASES = {**{name: (name, {}) for name in OWN}, "sigmoid": ("gcn-lpa", {"activation": "sigmoid", "init": "uniform"})}
TRAIN = torch.tensor([True, True, False, True, True, *[False] * 4])
VAL = torch.tensor([*[False] * 5, True, True, False, False])


@pytest.fixture
def ragged():
    """Two triangles joined by 2-3 with labels 0, 0, 1, 1; 6-7 apart; 8 alone; no training node is of class "c"."""
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5), (6, 7)]
    x = np.random.default_rng(0).integers(0, 2, (9, 6)).astype(np.float32)
    x[8] = 0
    return Graph.from_edges(edges, x=x, y=[0, 0, 1, 1, 1, 0, 2, 2, 0], class_names=["a", "b", "c"], num_nodes=9)


def sparse_twin(graph):
    return dataclasses.replace(graph, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(graph.x.numpy())))


def learned(case, graph, train=TRAIN, val=VAL, **changes):
    name, settings = CASES[case]
    recipe = settings_of(name, PAPER["citeseer"]).replace(**{"epochs": 5, "hidden": 4, **settings, **changes})
    return learn_once(graph, train, val, recipe, device="cpu")


def test_the_study_adds_to_the_methods_of_the_library():
    assert set(METHODS) < set(study_methods())
    assert OWN == ["gcn-lpa", "graphsage-sampled", "lpa-learned", "lpa-gaussian", "lpa-reconstruction", "lpa-sparse"]
    study_methods()["x"] = None
    assert "x" not in study_methods() and "x" not in METHODS  # a new dict each time


@pytest.mark.parametrize("case", CASES)
class TestContract:
    def test_rows_are_distributions_the_same_for_sparse_and_dense_features(self, ragged, case):
        found = learned(case, ragged)
        assert found.probabilities.shape == (9, 3)
        assert torch.allclose(found.probabilities.sum(dim=1), torch.ones(9, dtype=torch.float64))
        assert torch.allclose(found.probabilities, learned(case, sparse_twin(ragged)).probabilities, atol=1e-4)

    def test_test_labels_change_nothing(self, ragged, case):
        y = ragged.y.clone()
        y[[2, 7, 8]] = torch.tensor([0, -1, 2])
        first, second = (learned(case, graph) for graph in (ragged, dataclasses.replace(ragged, y=y)))
        assert torch.equal(first.probabilities, second.probabilities)
        assert first.run.best_epoch == second.run.best_epoch

    def test_the_same_seed_gives_the_same_bits(self, ragged, case):
        first, second = (learned(case, sparse_twin(ragged)).model.state_dict() for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)

    def test_edges_may_have_a_direction(self, ragged, case):
        arcs = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (6, 7)]
        graph = Graph.from_edges(arcs, x=ragged.x, y=ragged.y, directed=True, num_nodes=9, class_names=["a", "b", "c"])
        assert learned(case, graph).probabilities.isfinite().all()


@pytest.mark.parametrize("name", ["gcn-lpa", "gcn", "lpa", "lpa-leave-one-out"])
def test_a_method_of_the_library_is_trained_by_the_library(name):
    recipe = settings_of(name, PAPER["cora"])
    assert type(in_library(recipe)) is Recipe
    assert in_library(recipe).to_dict().items() <= recipe.to_dict().items()
    assert in_library(settings_of("gcn-lpa", PAPER["cora"]).replace(aggregation="sum")) is None
    assert in_library(settings_of("lpa-learned", PAPER["cora"])) is None


def test_a_training_that_diverges_counts_with_its_best_epoch(ragged):
    """The first steps are finite, a later one is not; where the first is not, there is nothing to count."""
    steep = {"features": "raw", "edges": "fixed", "lpa_weight": 0.0, "activation": "identity"}
    found = learned("sigmoid", ragged, lr=3e18, **steep)
    assert found.diverged and found.run.best_epoch >= 1
    assert found.probabilities.isfinite().all()
    assert not learned("sigmoid", ragged).diverged
    with pytest.raises(DivergedError):
        learned("sigmoid", ragged, lr=1e38, **steep)


# fields of the study


@pytest.mark.parametrize(
    ("case", "field", "value"),
    [
        *[("gcn-lpa", "activation", "sigmoid"), ("gcn-lpa", "output_activation", "sigmoid")],
        *[("gcn-lpa", "init", "uniform"), ("gcn-lpa", "aggregation", "sum"), ("lpa-sparse", "edge_sparsity", 3.0)],
        *[("graphsage-sampled", "batch_size", 2), ("graphsage-sampled", "samples", "1 1")],
    ],
)
def test_a_field_of_the_study_changes_what_is_learned_and_belongs_to_one_method(case, field, value, ragged):
    changes = {"epochs": 30, "lr": 0.3} if case == "lpa-sparse" else {}
    parts = TRAIN | VAL, torch.zeros_like(VAL)
    before, after = (learned(case, ragged, *parts, **changes, **more) for more in ({}, {field: value}))
    assert not torch.allclose(before.probabilities, after.probabilities, rtol=0, atol=1e-6)
    for name in OWN:
        method, own = study_methods()[name], settings_of(name, PAPER["cora"])
        if name != case:
            with pytest.raises(ValueError, match=f"method '{name}' does not use {field} = "):
                method.with_changes(own, {field: value})
    assert method is not None


@pytest.mark.parametrize("field", ["edge_sparsity", "batch_size"])
def test_a_negative_setting_is_refused(field):
    with pytest.raises(ValueError, match=f"recipe: {field} = -1.*; it is not negative"):
        StudyRecipe(**{field: -1})


def test_a_recipe_of_the_study_is_one_of_the_library_and_back():
    for recipe in (LAYERS, *PAPER.values(), *OFFICIAL.values()):
        assert StudyRecipe.of(recipe).of_library == recipe
    assert StudyRecipe.of(LAYERS).replace(init="uniform").of_library is None
    assert StudyRecipe.of(LAYERS).replace(batch_size=3).hash() != StudyRecipe.of(LAYERS).hash()


@pytest.mark.parametrize("setting", SPACE)
def test_the_settings_of_table_4_lie_in_the_search_space_of_appendix_f(setting):
    assert {getattr(recipe, setting) for recipe in PAPER.values()} <= set(SPACE[setting])
    assert list(SPACE[setting]) == sorted(set(SPACE[setting]))
    for value in SPACE[setting]:
        LAYERS.replace(**{setting: value, "loss": "literal"})


def test_the_search_space_has_the_sizes_of_appendix_f():
    assert {name: len(values) for name, values in SPACE.items()} == {
        **{"hidden": 3, "gcn_layers": 6, "lpa_iterations": 9, "l2": 13},
        **{"lpa_weight": 7, "dropout": 6, "lr": 6},
    }


# label propagation along edges that rebuild features


@pytest.mark.parametrize("stored", ["dense", "sparse"])
@pytest.mark.parametrize("block", [1, 20, 10_000])
def test_the_reconstruction_error_equals_a_dense_one_and_so_does_its_gradient(ragged, monkeypatch, stored, block):
    monkeypatch.setattr(neighbourhoods, "BLOCK", block)
    graph = sparse_twin(ragged) if stored == "sparse" else ragged
    values = torch.linspace(0.1, 0.9, graph.pattern.num_entries).requires_grad_()
    error = reconstruction_error(graph.adjacency.with_values(values), graph.x)
    twin_values = values.detach().clone().requires_grad_()
    weights = torch.zeros(9, 9).index_put((graph.row.long(), graph.col.long()), twin_values)
    twin = (ragged.x - weights @ ragged.x).square().sum() / ragged.x.square().sum()
    assert torch.allclose(error, twin, atol=1e-6)
    error.backward()
    twin.backward()
    assert torch.allclose(values.grad, twin_values.grad, atol=1e-6)


def planted(mixture):
    """Node 0 lies between its neighbours 1, 2, 3, which are the corners of a simplex."""
    x = np.vstack([mixture, np.eye(3)]).astype(np.float32)
    return Graph.from_edges([(0, 1), (0, 2), (0, 3)], x=x, y=[0, 0, 1, 1])


def learned_row(name, graph, **changes):
    train = torch.tensor([False, True, True, False])
    settings = {"features": "raw", "epochs": 400, "lr": 0.05, **changes}
    found = learned(name, graph, train, torch.zeros_like(train), **settings)
    scores = found.model.edge_scores(found.model.recipe.prepare(graph))
    return scores.with_values(scores.values.exp()).to_dense()[0, 1:].detach()


@pytest.mark.long
def test_reconstruction_finds_the_weights_a_node_was_mixed_with():
    row = learned_row("lpa-reconstruction", planted([0.5, 0.3, 0.2]))
    assert torch.allclose(row / row.sum(), torch.tensor([0.5, 0.3, 0.2]), atol=1e-3)


@pytest.mark.long
def test_sparsity_is_the_lasso_of_the_neighbours():
    """On orthonormal neighbours, ‖x - Σ a_j x_j‖² + s' Σ a_j has its minimum at a_j = max(0, ⟨x, x_j⟩ - s'/2)."""
    graph, sparsity = planted([0.5, 0.3, 0.05]), 0.02
    strength = sparsity / graph.num_nodes * float(graph.x.square().sum())  # s' for the error ‖·‖² / ‖X‖²
    row = learned_row("lpa-sparse", graph, edge_sparsity=sparsity)
    expected = (torch.tensor([0.5, 0.3, 0.05]) - strength / 2).clamp_min(0)
    assert torch.allclose(row, expected, atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["lpa-learned", "lpa-gaussian"])
def test_label_criteria_strengthen_edges_inside_a_class(two_cliques, name):
    train = torch.isin(torch.arange(two_cliques.num_nodes), torch.tensor([0, 1, 3, 4, 6, 7]))
    settings = {"epochs": 50, "edges": "free", "self_loops": True}
    found = learned(name, two_cliques, train, torch.zeros_like(train), **settings)
    weights = found.model.edge_scores(found.model.recipe.prepare(two_cliques)).row_softmax().to_dense()
    assert weights[3, :3].sum() > 5 * weights[3, 4]
