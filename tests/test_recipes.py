"""Recipes: the numbers of the paper's Table 4, and a settings object that says what is wrong with it."""

import dataclasses
import json

import pytest

from gcn_lpa.recipes import (
    DEFAULT,
    LAYERS,
    LOSSES,
    OFFICIAL,
    PAPER,
    WITH_FEW_LABELS,
    WITHOUT_FEATURES,
    Recipe,
    recipe_of_paper,
)

FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
TABLE_4 = {  # as printed, row by row
    "hidden": (32, 16, 32, 32, 32),
    "gcn_layers": (5, 2, 2, 2, 2),
    "lpa_iterations": (5, 5, 1, 2, 3),
    "l2": (1e-4, 5e-4, 2e-4, 1e-4, 1e-4),
    "lpa_weight": (10, 1, 1, 2, 1),
    "dropout": (0.2, 0, 0, 0.2, 0.2),
    "lr": (0.05, 0.2, 0.1, 0.1, 0.05),
}
DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-phy")


@pytest.mark.parametrize("setting", TABLE_4)
def test_the_paper_recipes_hold_the_numbers_of_table_4(setting):
    assert tuple(PAPER) == DATASETS
    assert tuple(getattr(PAPER[dataset], setting) for dataset in DATASETS) == TABLE_4[setting]


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_paper_recipes_follow_its_text(dataset):
    """Sections 2.4 and 4.3: a free variable per edge, row-normalised features, L2 on the W, 200 epochs."""
    recipe = PAPER[dataset]
    assert (recipe.edges, recipe.loss, recipe.normalization, recipe.features) == ("free", "literal", "row", "row")
    assert (recipe.epochs, recipe.patience, recipe.select, recipe.training) == (200, 0, "first_best", "joint")
    assert not (recipe.bias or recipe.residual or recipe.layer_norm or recipe.l2_edges or recipe.edge_dropout)
    assert recipe.self_loops
    assert dataset.replace("-", " ") in recipe.origin.lower().replace("-", " ")


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_official_recipes_differ_from_the_paper_where_the_authors_code_does(dataset):
    """Row softmax of Glorot-initialised free variables, no Eq. (2), L2 on the edges too, ties to the later epoch."""
    paper, official = PAPER[dataset].to_dict(), OFFICIAL[dataset].to_dict()
    changed = {name: official[name] for name in official if official[name] != paper[name]}
    assert changed.pop("origin").startswith("the authors' code")
    expected = {"loss": "official", "edge_init": "glorot", "l2_edges": paper["l2"], "select": "last_best"}
    assert changed == expected


@pytest.mark.parametrize("field", ["gcn_layers", "lpa_iterations", "propagation_steps", "hidden", "edge_rank", "heads", "epochs"])
def test_a_setting_that_would_take_all_memory_or_time_is_refused(field):
    with pytest.raises(ValueError, match=rf"recipe: {field} = 1000000000; it is at most [\d,]+"):
        Recipe(loss="held_out", **{field: 10**9})


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_help_and_its_default_is_a_choice(name):
    metadata = FIELDS[name].metadata
    assert len(metadata["help"]) > 10
    assert not metadata["choices"] or FIELDS[name].default in metadata["choices"]


def every_recipe():
    return [
        LAYERS,
        DEFAULT,
        WITH_FEW_LABELS,
        WITHOUT_FEATURES,
        *PAPER.values(),
        *OFFICIAL.values(),
        LAYERS.replace(feature_dropout=0.25),
    ]


@pytest.mark.parametrize("recipe", every_recipe(), ids=lambda recipe: recipe.origin)
def test_json_there_and_back(recipe):
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert again.hash() == recipe.hash()


def test_a_missing_field_takes_its_default():
    assert Recipe.from_dict({}) == LAYERS
    assert Recipe.from_dict({"hidden": 8}) == LAYERS.replace(hidden=8)


def different(name, default):
    """A value that the field may have besides its default."""
    choices = FIELDS[name].metadata["choices"]
    if choices:
        return next(choice for choice in choices if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return default + "-other"
    return 0.25 if default is None or isinstance(default, float) else default + 1


@pytest.mark.parametrize("name", FIELDS)
def test_the_hash_changes_with_every_field_but_the_origin(name):
    changed = LAYERS.replace(**{name: different(name, FIELDS[name].default)})
    assert changed != LAYERS
    assert (changed.hash() == LAYERS.hash()) == (name == "origin")
    assert len(changed.hash()) == 12


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if isinstance(field.default, float)])
def test_one_and_one_point_zero_are_the_same_setting(name):
    value = 1 if name in ("lpa_weight", "lpa_ratio", "l2", "l2_edges", "lr", "teleport", "edge_sparsity") else 0
    whole, broken = LAYERS.replace(**{name: value}), LAYERS.replace(**{name: float(value)})
    assert whole == broken
    assert whole.hash() == broken.hash()


WRONG = {
    **dict.fromkeys(("gcn_layers", "hidden", "edge_rank", "epochs"), (0, -1, 2.5, "two", None, True)),
    **dict.fromkeys(("lpa_iterations", "patience"), (-1, 0.5, "x", None)),
    **{name: (-0.1, float("nan"), float("inf"), "x", None) for name in ("lpa_weight", "l2", "l2_edges")},
    **{name: (-0.1, 1.0, 1.5, float("nan"), "x", False) for name in ("dropout", "edge_dropout", "feature_dropout")},
    "lr": (0, -0.1, float("nan"), float("inf"), "fast"),
    "lpa_ratio": (-0.1, 1.1, float("nan")),
    **dict.fromkeys(("bias", "residual", "layer_norm", "self_loops"), (1, "yes", None)),
    **{name: ("other", 3, None) for name, field in FIELDS.items() if field.metadata["choices"]},
    **dict.fromkeys(("method", "edges", "origin"), (3, None)),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_an_error_names_the_field_and_the_value(name, value):
    for make in (lambda **settings: Recipe(**settings), LAYERS.replace, lambda **settings: Recipe.from_dict(settings)):
        with pytest.raises(ValueError, match=rf"^recipe: {name} = ") as error:
            make(**{name: value})
        assert f"= {value}" in str(error.value) or f"= {value!r}" in str(error.value)


@pytest.mark.parametrize("field", [name for name in FIELDS if FIELDS[name].metadata["choices"]])
def test_an_unknown_choice_is_answered_with_the_known_ones(field):
    with pytest.raises(ValueError, match=", ".join(FIELDS[field].metadata["choices"])):
        LAYERS.replace(**{field: "other"})


def test_an_unknown_field_is_answered_with_the_known_ones():
    for make in (LAYERS.replace, lambda **settings: Recipe.from_dict(settings)):
        with pytest.raises(ValueError, match=r"no field 'depth'; it has .*gcn_layers.*origin"):
            make(depth=3)


def test_leave_one_out_is_refused_where_it_is_not_exact():
    with pytest.raises(ValueError, match=r"leave_one_out is exact for one or two LPA iterations, not 3.*held_out"):
        LAYERS.replace(loss="leave_one_out", lpa_iterations=3)
    for loss in set(LOSSES) - {"leave_one_out"}:
        LAYERS.replace(loss=loss, lpa_iterations=9)


def test_a_recipe_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAYERS.lr = 1.0


def test_the_recipes_of_the_paper_are_found_by_name_and_data_set():
    assert recipe_of_paper("paper", "cora") is PAPER["cora"]
    assert recipe_of_paper("official", "coauthor-phy") is OFFICIAL["coauthor-phy"]
    with pytest.raises(ValueError, match=r"unknown recipe 'worst'.*default, quick, best, paper and official"):
        recipe_of_paper("worst", "cora")
    with pytest.raises(ValueError, match=r"'paper' has no settings for 'karate'.*cora, citeseer.*'default'"):
        recipe_of_paper("paper", "karate")


def test_preparing_a_graph_normalises_features_and_adds_self_loops(tiny):
    """Row 0 of the tiny graph's features is (1, 0, 2)."""
    by_row = PAPER["cora"].prepare(tiny)
    assert by_row.x[0].tolist() == pytest.approx([1 / 3, 0, 2 / 3])
    assert by_row.num_self_loops == 5
    by_length = LAYERS.replace(self_loops=False).prepare(tiny)
    assert by_length.x[0].tolist() == pytest.approx([1 / 5**0.5, 0, 2 / 5**0.5])
    assert by_length.num_self_loops == 0
