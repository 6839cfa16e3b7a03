"""The fields a method declares are those it uses: changing one changes what is learned, any other is refused by name."""

import dataclasses

import numpy as np
import pytest
import torch

from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import Recipe

FIELDS = [spec.name for spec in dataclasses.fields(Recipe) if spec.name not in ("method", "origin")]
N = 24


def weighted_graph():
    """A ring with chords and three classes; weights and counts that differ, so that no normalisation is idle."""
    rng = np.random.default_rng(0)
    pairs = [(i, (i + step) % N) for step in (1, 3, 7) for i in range(N)]
    y = [0 if i % 4 else 1 + i % 8 // 4 for i in range(N)]  # 18, 3 and 3 nodes
    x = rng.integers(0, 4, (N, 6)) + 3 * np.eye(3, 6)[y].astype(int) * rng.integers(0, 2, (N, 1))
    return Graph.from_edges(pairs, weights=rng.uniform(0.2, 3, len(pairs)), x=x.astype(np.float32), y=y)


GRAPH = weighted_graph()
VAL = torch.arange(N) % 3 == 2
QUICK = {"epochs": 4, "hidden": 5, "edge_rank": 3, "heads": 2, "propagation_steps": 4, "gcn_layers": 2, "lr": 0.05}
CARRIES_LABELS = {"edges": "agnn", "lpa_weight": 1.0, "loss": "literal", "lpa_iterations": 2}
BASE = {  # what has to hold for a field to matter
    **dict.fromkeys(("lpa_iterations", "lpa_weight", "lpa_ratio", "loss", "training"), CARRIES_LABELS),
    **{name: {"edges": "agnn"} for name in ("features", "structure", "edge_rank", "edge_lr", "l2_edges")},
    "edge_init": {"edges": "free"},
    "edge_mask": {"edges": "free", "edge_init": "glorot"},  # at 0 both masks are 1, and some losses teach few weights
    **{name: {"epochs": 25} for name in ("patience", "select")},
    **{name: {"propagation": "hops"} for name in ("propagation_steps", "teleport")},
    **{name: {name: 0.0} for name in ("dropout", "l2")},
    **{name: {"propagation": "layers", "members": ""} for name in ("bias", "residual", "batch_norm", "feature_dropout")},
    "layer_norm": {"propagation": "layers", "members": "", "batch_norm": False},
}
OTHER = {  # values of each field; the first that the base does not have is the change
    "features": ("tfidf",),
    "self_loops": (True, False),
    "gcn_layers": (3,),
    "hidden": (7,),
    "lpa_iterations": (1, 2),
    "lpa_weight": (5.0,),
    "lpa_ratio": (0.4,),
    "loss": ("held_out",),
    "training": ("two_step",),
    "edges": ("gaan",),
    "edge_rank": (2,),
    "edge_init": ("glorot",),
    "edge_mask": ("softplus",),
    "edge_lr": (0.5,),
    "normalization": ("row", "symmetric"),
    "dropout": (0.7,),
    "feature_dropout": (0.3,),
    "edge_dropout": (0.5,),
    "bias": (True, False),
    "residual": (True, False),
    "layer_norm": (True,),
    "batch_norm": (True, False),
    "class_weights": ("balanced",),
    "lr": (0.2,),
    "l2": (0.1,),
    "l2_edges": (0.5,),
    "heads": (3,),
    "propagation_steps": (1,),
    "teleport": (0.7,),
    "label_rate": (0.2,),
    "propagation": ("hops", "layers"),
    "structure": (True, False),
    "votes": (True, False),
    "clusters": (2,),
    "members": ("hops",),
    "edge_weights": (True, False),
    "folds": (3,),
    "models": (2,),
    "epochs": (7,),
    "patience": (1,),
    "select": ("first_best", "last_best"),
}


def test_every_field_of_a_recipe_is_here():
    assert set(OTHER) == set(FIELDS)


def other(name, recipe):
    """Another value of a field than the recipe has."""
    return next(value for value in OTHER[name] if value != getattr(recipe, name))


def result(recipe, val):
    """What the method says after training, and how training went."""
    trained = learn(GRAPH, ~VAL, VAL if val else [], recipe, device="cpu")
    return predict_proba(trained, GRAPH, raw=True), (len(trained.run.history), trained.run.best_epoch)


def cases(*, used):
    marks = [pytest.mark.long] if used else []
    pairs = [(method.name, name) for method in METHODS.values() for name in FIELDS if (name in method.fields) == used]
    if used:
        pairs.remove(("gcn-lpa", "folds"))  # matters without validation nodes: test_learn_folds.py
        pairs.remove(("gcn-lpa", "edge_weights"))  # matters with columns of edges that tell: test_edge_weights.py
    return [pytest.param(*pair, marks=marks) for pair in pairs]


@pytest.mark.parametrize(("method", "name"), cases(used=True))
def test_a_field_that_is_declared_changes_what_is_learned(method, name):
    """Or, for those that end training or choose the epoch, how training went."""
    method = METHODS[method]
    if method.needs == "pyg":
        pytest.importorskip("torch_geometric")
    needed = {field: value for field, value in BASE.get(name, {}).items() if field in method.fields}
    base = method.settings().replace(**{**QUICK, **needed})
    is_about_epochs = name in ("epochs", "patience", "select")
    has_val = is_about_epochs or name in ("votes", "models")
    (said, went), (said_then, went_then) = (
        result(recipe, has_val) for recipe in (base, method.with_changes(base, {name: other(name, base)}))
    )
    has_changed = not torch.allclose(said, said_then, rtol=0, atol=1e-6)
    assert has_changed or (is_about_epochs and went != went_then)


@pytest.mark.parametrize(("method", "name"), cases(used=False))
def test_a_field_that_is_not_declared_is_refused_by_name(method, name):
    method = METHODS[method]
    value = other(name, method.settings())
    with pytest.raises(ValueError, match=f"method '{method.name}' does not use {name} = {value!r}; it uses "):
        method.with_changes(method.settings(), {name: value})
