"""Bodies of the model: one contract for all of them, and how hop weights start."""

import dataclasses

import numpy as np
import pytest
import torch

from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.methods.hops import hop_weights
from gcn_lpa.methods.registry import BODIES, gcn_lpa
from gcn_lpa.recipes import LAYERS, Recipe
from tests.helpers.small_graphs import random_model, twin_of
from tests.helpers.twin import Twin

CHOICES = next(field.metadata["choices"] for field in dataclasses.fields(Recipe) if field.name == "propagation")
LOGITS = {
    "layers": Twin.layers,
    "hops": Twin.hops,
    "relations": Twin.relations,
    "columns": Twin.columns,
}  # by another road


def test_every_body_has_a_name_in_recipes_and_a_dense_twin():
    assert set(BODIES) == set(CHOICES) == set(LOGITS)


def two_types(seed=0, n=12):
    """Twelve nodes of three classes, random edges of two types."""
    generator = np.random.default_rng(seed)
    edges, x = generator.integers(0, n, (4 * n, 2)), generator.random((n, 5)) + 0.1
    kinds = ["cites" if k % 2 else "same city" for k in range(len(edges))]
    return Graph.from_edges(edges, edge_types=kinds, x=x, y=np.arange(n) % 3, num_nodes=n)


@pytest.mark.parametrize("name", BODIES)
class TestEveryBody:
    @pytest.fixture
    def made(self, name):
        """A model with random parameters, float32, and its graph."""
        recipe = LAYERS.replace(propagation=name, propagation_steps=3, hidden=6, edge_rank=3)
        graph = recipe.prepare(two_types())
        return random_model(recipe, graph).float(), graph

    def test_equals_its_dense_twin(self, name, made):
        """Under the dropout of a step, and without."""
        model, graph = made
        for key in (None, Key(3, 1)):
            logits = model.body(graph, model.smoothing(graph, key), key)
            torch.testing.assert_close(logits.double(), LOGITS[name](twin_of(model, graph, key)), rtol=1e-4, atol=1e-5)

    def test_gives_the_rows_that_are_asked_for(self, name, made):
        model, graph = made
        smoothing, at = model.smoothing(graph), torch.tensor([7, 0, 3])
        logits = model.body(graph, smoothing)
        assert logits.shape == (12, 3)
        torch.testing.assert_close(model.body(graph, smoothing, None, at), logits[at])

    def test_drops_out_by_key_alone(self, name, made):
        model, graph = made
        smoothing = model.smoothing(graph)
        nothing, again, one, same, other = (
            model.body(graph, smoothing, key) for key in (None, None, Key(0, 1), Key(0, 1), Key(0, 2))
        )
        assert torch.equal(nothing, again)
        assert torch.equal(one, same)
        assert not torch.equal(one, nothing)
        assert not torch.equal(one, other)

    def test_sends_gradients_to_every_parameter(self, name, made):
        model, graph = made
        model.loss(graph, torch.arange(12)).gcn.backward()
        assert model.weight_parameters() == list(model.body.parameters())
        assert all(parameter.grad.count_nonzero() for parameter in model.weight_parameters())

    def test_scores_a_graph_that_it_has_never_seen(self, name, made):
        model, _ = made
        other = model.recipe.prepare(two_types(seed=1, n=20))
        assert model(other).shape == (20, 3)
        assert model(other).isfinite().all()

    def test_starts_from_its_seed(self, name, made):
        _, graph = made
        recipe = LAYERS.replace(propagation=name)
        one, same, other = (gcn_lpa(recipe, graph, seed).body.state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(one[key], same[key]) for key in one)
        assert all(not torch.equal(one[key], other[key]) for key in one if "weights" in key)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_hop_weights_start_as_those_of_personalised_pagerank(alpha):
    """What a walk that stops with probability α at each step, and at the last for sure, leaves at each hop."""
    gamma = hop_weights(LAYERS.replace(teleport=alpha, propagation_steps=4))
    goes_on = 1.0
    for weight in gamma[:-1]:
        assert weight == pytest.approx(alpha * goes_on)
        goes_on *= 1 - alpha
    assert gamma[-1] == pytest.approx(goes_on)
    assert sum(gamma) == pytest.approx(1)
