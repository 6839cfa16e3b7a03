"""Blocks of columns, each scaled by its kind; what was learned for it is kept and applied to other graphs."""

import dataclasses

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import skew
from sklearn.preprocessing import StandardScaler, normalize

from gcn_lpa.data import scaling as features
from gcn_lpa.data.scaling import Block, Scaling, inferred_kind
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import Recipe
from gcn_lpa.trained import Trained

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(0.3, (40, 12)).astype(float)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (scipy.sparse.csr_array(np.eye(12)), "words"),
        (scipy.sparse.csr_array(np.eye(3)), "numbers"),  # few columns
        (COUNTS, "words"),
        (COUNTS[:, :9], "numbers"),  # few columns
        (COUNTS + 1, "numbers"),  # no zeros
        (COUNTS - (COUNTS > 2), "words"),
        (np.where(COUNTS > 2, -1, COUNTS), "numbers"),
        (COUNTS * 0.5, "words"),
        (RNG.normal(size=(40, 12)), "numbers"),
    ],
)
def test_the_kind_of_columns_is_inferred(x, kind):
    assert inferred_kind(x) == kind


def test_plain_numbers_are_standardised_as_by_scikit_learn():
    x = RNG.normal([0, 1e4, -3], [1, 1e3, 1e-3], (50, 3))
    np.testing.assert_allclose(Scaling.learned("auto", x)(x), StandardScaler().fit_transform(x), rtol=1e-9)


def test_features_that_are_prepared_stay_what_they_are_when_prepared_again():
    """Words stay sparse; structural features stand at the end."""
    x = scipy.sparse.csr_array(np.hstack([RNG.normal(7, 2, (40, 2)), COUNTS]))
    blocks = Block("numbers", "numbers", 0, 2), Block("about", "words", 2, 14)
    ring = scipy.sparse.csr_array(np.roll(np.eye(40), 1, axis=1))
    graph = dataclasses.replace(Graph.from_scipy(ring, x=x, directed=True), blocks=blocks)
    once = graph.with_features(graph.scaling("auto", structure=True))
    assert [(block.name, block.kind, block.start, block.stop) for block in once.blocks] == [
        ("numbers", "table", 0, 2),
        ("about", "scaled words", 2, 14),
        ("structural features", "table", 14, 23),
    ]
    again = once.with_features("auto")
    assert again.blocks == once.blocks
    assert isinstance(again.x, SparseMatrix)
    assert torch.equal(again.x.to_dense(), once.x.to_dense())


def test_a_skewed_column_has_its_tail_tamed_and_a_constant_one_becomes_zero():
    money = np.exp(2 * RNG.normal(size=500))
    x = np.stack([money, np.full(500, 7.0)], axis=1)
    scaled = Scaling.learned("auto", x)(x)
    u = (money - np.median(money)) / np.median(abs(money - np.median(money)))
    by_hand = StandardScaler().fit_transform((np.sign(u) * np.log1p(abs(u)))[:, None])
    np.testing.assert_allclose(scaled[:, 0], by_hand[:, 0].clip(-5, 5), rtol=1e-6, atol=1e-6)
    assert abs(skew(scaled[:, 0])) < abs(skew(money)) / 4
    assert (scaled[:, 1] == 0).all()


def test_an_outlier_is_at_most_five_deviations_away():
    x = np.append(np.arange(99.0), 1e30)[:, None]
    scaled = Scaling.learned("auto", x)(x)
    assert scaled.max() == 5 and scaled[:99].std() > 0.05  # the others keep apart


@given(
    st.sampled_from([1e-3, 0.5, 1000, -1]),
    st.sampled_from([0, 1, -500, 1e4]),
    st.lists(st.integers(-50, 50) | st.sampled_from([1000, 20_000]), min_size=3, max_size=30),
)
def test_neither_the_unit_of_a_column_nor_its_zero_matters(unit, zero, column):
    x = np.array(column, dtype=float)[:, None]
    expected = Scaling.learned("auto", x)(x)
    other = unit * x + zero
    found = Scaling.learned("auto", other)(other)
    np.testing.assert_allclose(found * np.sign(unit), expected, atol=1e-6)


def test_blocks_are_scaled_each_by_its_kind():
    words, numbers, ready = COUNTS, RNG.normal(size=(40, 2)), RNG.normal(size=(40, 1))
    x = scipy.sparse.csr_array(np.hstack([words[:, :6], numbers[:, :1], ready, words[:, 6:], numbers[:, 1:]]))
    places = [
        ("a", "words", 0, 6),
        ("b", "numbers", 6, 7),
        ("c", "table", 7, 8),
        ("d", "words", 8, 14),
        ("e", "numbers", 14, 15),
    ]
    blocks = tuple(Block(*place) for place in places)
    standard = StandardScaler().fit_transform(numbers)
    expected = [normalize(words[:, :6]), standard[:, :1], ready, normalize(words[:, 6:]), standard[:, 1:]]
    graph = dataclasses.replace(Graph.from_edges([(0, 1)], x=x), blocks=blocks).with_features("auto")
    assert isinstance(graph.x, SparseMatrix)
    np.testing.assert_allclose(graph.x.to_dense().numpy(), np.hstack(expected), atol=1e-6)
    assert graph.with_features("auto").x.to_dense().equal(graph.x.to_dense())  # scaled once


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([("a", "words", 0, 2)], "end at column 2, but there are 3"),
        ([("a", "words", 1, 3)], "block 'a' is columns 1 to 3; the next one is 0"),
        ([("a", "words", 0, 2), ("b", "table", 2, 2)], "block 'b' is columns 2 to 2"),
        ([("a", "word", 0, 3)], "kind 'word'; there are words, numbers, table"),
    ],
)
def test_blocks_that_leave_columns_out_are_refused(blocks, problem):
    graph = Graph.from_edges([(0, 1)], x=np.eye(3) + 1)
    with pytest.raises(ValueError, match=problem):
        dataclasses.replace(graph, blocks=tuple(Block(*block) for block in blocks)).scaling("auto")


SCALINGS = {
    "l2": Scaling.learned("l2", COUNTS),
    "tfidf": Scaling.learned("tfidf", COUNTS),
    "words": Scaling.learned("auto", COUNTS),
    "numbers": Scaling.learned("auto", RNG.normal(size=(40, 12)) ** 3),
    "structure": Scaling.learned("l2", COUNTS).with_structure(RNG.normal(size=(40, 6))),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_what_was_learned_comes_back_from_its_arrays(name):
    scaling = SCALINGS[name]
    again = Scaling.from_arrays(scaling.kind, scaling.arrays(), 12)
    structure = RNG.normal(size=(40, 6)) if scaling.num_added else None
    assert np.array_equal(again(COUNTS, structure), scaling(COUNTS, structure))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tfidf", {"idf": np.ones(11)}),
        ("tfidf", {"idf": np.full(12, np.nan)}),
        ("tfidf", {"idf": None}),
        ("l2", {"idf": np.ones(12)}),
        ("structure", {"structure": np.ones((3, 6))}),
        ("structure", {"structure": np.zeros((2, 6))}),
        ("numbers", {"numbers": np.ones((4, 11))}),
        ("numbers", {"numbers": np.ones((4, 12), np.float32)}),
        ("numbers", {"numbers": None}),
        ("words", {"numbers": np.ones((4, 12))}),
        ("words", {"blocks": np.array([[0, 0, 11]])}),
        ("words", {"blocks": np.array([[4, 0, 12]])}),
        ("words", {"blocks": np.array([[-1, 0, 12]])}),
        ("words", {"blocks": np.array([0, 0, 12])}),
        ("words", {"blocks": None}),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, changes):
    arrays = {key: array for key, array in {**SCALINGS[name].arrays(), **changes}.items() if array is not None}
    with pytest.raises(ValueError, match=r"learned|numbers|blocks|structure|idf|column"):
        Scaling.from_arrays(SCALINGS[name].kind, arrays, 12)


@pytest.mark.parametrize("structure", [False, True])
def test_a_trained_model_keeps_what_it_learned_of_the_columns(tmp_path, two_cliques, structure):
    x = np.exp(np.linspace(0, 9, 16)).reshape(8, 2)
    graph = Graph.from_scipy(two_cliques.to_scipy(), x=x, y=two_cliques.y)
    recipe = Recipe(features="auto", structure=structure, epochs=3, hidden=4)
    trained = learn(graph, [0, 5], [1, 6], recipe, device="cpu")
    trained.save_pretrained(tmp_path / "run")
    again = Trained.from_pretrained(tmp_path / "run")
    other = Graph.from_edges([(0, 1), (1, 2)], x=x[:3] + 1)
    for one in (graph, other):
        assert torch.equal(predict_proba(again, one), predict_proba(trained, one))
    assert again.scaling.num_added == (6 if structure else 0)


@pytest.mark.parametrize("directed", [False, True])
def test_the_column_of_page_ranks_is_that_of_networkx_but_for_a_factor(directed):
    """Walks that end where no arc leads on, and a node without edges: a factor, which standardising takes away."""
    arcs = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (5, 6), (6, 7), (7, 5), (7, 3)]
    graph = Graph.from_edges(arcs, num_nodes=10, directed=directed)
    other = networkx.DiGraph(arcs) if directed else networkx.Graph(arcs)
    other.add_nodes_from(range(10))
    ranks = networkx.pagerank(other, alpha=0.85, tol=1e-12)
    expected = np.log([ranks[i] for i in range(10)])
    found = graph.structural_features()[:, -3]
    assert np.allclose(found - found.mean(), expected - expected.mean(), atol=1e-3)


@pytest.mark.parametrize("kind", ["raw", "row", "l2", "tfidf", "auto"])
@pytest.mark.parametrize("structure", [False, True])
def test_rows_that_are_scaled_in_blocks_are_those_scaled_at_once(kind, structure, monkeypatch):
    x = np.random.default_rng(0).poisson(2.0, (11, 4)).astype(np.float32)
    columns = np.random.default_rng(1).normal(size=(11, 3)) if structure else None
    scaling = Scaling.learned(kind, x)
    scaling = scaling.with_structure(columns) if structure else scaling
    monkeypatch.setattr(features, "ROWS_AT_ONCE", 15)
    found = scaling.in_float32(x, columns)
    assert found.dtype == np.float32
    assert np.array_equal(found, scaling(x, columns).astype(np.float32))
    file = scaling.in_float32(x, columns, mapped=True)
    assert isinstance(file, np.memmap) and np.array_equal(file, found)
