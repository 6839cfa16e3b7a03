"""Graph, Split and describe, each against an answer found by another road."""

import dataclasses
import hashlib
import sys

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import describe, homophily, node_hops
from gcn_lpa.data.scaling import FEATURE_KINDS, Block
from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph

WEIGHTS = st.integers(1, 40).map(lambda quarters: quarters / 4)  # exact in 32 bits, and so are their sums
NAMES = {
    "positions": lambda n: range(n),
    "gapped": lambda n: [7 * i + 3 for i in range(n)],
    "text": lambda n: [f"node {i}" for i in range(n)],
    "mixed": lambda n: [i if i % 2 else ("pair", i) for i in range(n)],
    "huge": lambda n: [2**64 + i for i in range(n)],
}


@st.composite
def edge_lists(draw):
    """n, pairs of positions and weights, with repetitions, both directions and self-loops."""
    n = draw(st.integers(1, 7))
    node = st.integers(0, n - 1)
    rows = draw(st.lists(st.tuples(node, node, WEIGHTS), max_size=15))
    return n, [(a, b) for a, b, _ in rows], [w for _, _, w in rows]


@st.composite
def graphs(draw, directed=None):
    n, pairs, weights = draw(edge_lists())
    names = list(NAMES[draw(st.sampled_from(sorted(NAMES)))](n))
    numbers = st.lists(st.integers(-3, 3), min_size=2, max_size=2)
    x = np.array(draw(st.lists(numbers, min_size=n, max_size=n)), dtype=np.float32)
    return Graph.from_edges(
        [(names[a], names[b]) for a, b in pairs],
        weights=weights,
        node_names=names,
        x=draw(st.sampled_from([None, x, scipy.sparse.csr_array(x)])),
        y=draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)),
        class_names=("red", "green", "blue"),
        directed=draw(st.booleans()) if directed is None else directed,
    )


def dense(graph):
    return graph.adjacency.to_dense()


def features(graph):
    return graph.x.to_dense() if isinstance(graph.x, SparseMatrix) else graph.x


def test_a_path_is_the_matrix_one_would_write_down():
    graph = Graph.from_edges([(0, 1), (1, 2)], self_loops=False)
    assert dense(graph).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert (graph.num_nodes, graph.num_edges, graph.num_self_loops, graph.num_features) == (3, 2, 0, 3)
    assert graph.row.tolist() == [0, 1, 1, 2]
    assert graph.col.tolist() == [1, 0, 2, 1]
    assert graph.labeled.tolist() == [False] * 3


@given(edge_lists())
def test_weights_are_summed_within_a_direction_and_the_larger_direction_stays(edges):
    n, pairs, weights = edges
    expected = torch.zeros(n, n)
    one_way: dict[tuple[int, int], float] = {}
    for pair, weight in zip(pairs, weights, strict=True):
        one_way[pair] = one_way.get(pair, 0.0) + weight
    for a, b in one_way:
        expected[a, b] = expected[b, a] = max(one_way[a, b], one_way.get((b, a), 0.0))
    assert dense(Graph.from_edges(pairs, weights=weights, num_nodes=n)).equal(expected)


@given(edge_lists())
def test_without_weights_every_edge_weighs_one_however_often_it_is_named(edges):
    n, pairs, _ = edges
    graph = Graph.from_edges(pairs, num_nodes=n)
    once = {frozenset(pair) for pair in pairs}
    assert graph.num_edges + graph.num_self_loops == len(once)
    assert set(graph.adjacency.values.tolist()) <= {1.0}
    assert dense(graph).equal(dense(Graph.from_edges([*pairs, *pairs], num_nodes=n)))


@given(edge_lists())
def test_an_edge_of_a_directed_graph_brings_messages_to_its_target(edges):
    n, pairs, weights = edges
    expected = torch.zeros(n, n)
    for (source, target), weight in zip(pairs, weights, strict=True):
        expected[target, source] += weight
    graph = Graph.from_edges(pairs, weights=weights, num_nodes=n, directed=True)
    assert dense(graph).equal(expected)
    assert graph.num_edges == int((expected > 0).sum() - (expected.diagonal() > 0).sum())


@given(edge_lists(), st.randoms(use_true_random=False))
def test_the_order_of_edges_does_not_matter(edges, random):
    n, pairs, weights = edges
    rows = list(zip(pairs, weights, strict=True))
    random.shuffle(rows)
    shuffled = Graph.from_edges([pair for pair, _ in rows], weights=[w for _, w in rows], num_nodes=n)
    assert shuffled.content_hash() == Graph.from_edges(pairs, weights=weights, num_nodes=n).content_hash()


def test_repr_says_what_was_done():
    graph = Graph.from_edges([("a", "b"), ("b", "a"), ("a", "b"), ("b", "b")], weights=[1, 5, 3, 2], name="g")
    assert repr(graph).splitlines() == [
        "Graph 'g': 2 nodes, 1 undirected edges, 1 self-loops, 2 sparse features (identity), 0 classes, 0 nodes labelled",
        "  2 nodes named by their ids",
        "  4 edge rows merged into 2 edges, weights summed, of both directions the larger",
        "  no features: the identity matrix stands in",
    ]


def test_ids_without_a_stated_number_of_nodes_are_names():
    graph = Graph.from_edges([(10, 2), (2, 700)])
    assert graph.node_names == (2, 10, 700)
    assert dense(graph).tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert Graph.from_edges([(0, 2), (2, 1)]).node_names == range(3)


@given(graphs())
def test_round_trip_through_scipy(graph):
    back = Graph.from_scipy(
        graph.to_scipy(),
        x=graph.x,
        y=graph.y,
        node_names=graph.node_names,
        class_names=graph.class_names,
        directed=graph.directed,
    )
    assert back.content_hash() == graph.content_hash()


@given(graphs())
def test_round_trip_through_networkx(graph):
    converted = graph.to_networkx()
    rows = dict(zip(graph.node_names, features(graph).numpy(), strict=True))
    networkx.set_node_attributes(converted, rows, "x")
    back = Graph.from_networkx(converted, features="x", class_names=graph.class_names, directed=graph.directed)
    assert dense(back).equal(dense(graph))
    assert features(back).equal(features(graph))
    assert back.y.equal(graph.y)
    assert list(back.node_names) == list(graph.node_names)


@pytest.mark.long
@given(graphs())
def test_round_trip_through_pyg(graph):
    pytest.importorskip("torch_geometric")
    back = Graph.from_pyg(graph.to_pyg(), directed=graph.directed)
    assert back.content_hash() == graph.content_hash()


@given(graphs())
def test_round_trip_through_pandas(graph):
    frame = graph.to_pandas()
    back = Graph.from_edges(
        frame[["source", "target"]].to_numpy(),
        weights=frame["weight"],
        node_names=graph.node_names,
        x=graph.x,
        y=graph.y,
        class_names=graph.class_names,
        directed=graph.directed,
    )
    assert back.content_hash() == graph.content_hash()


@given(graphs(directed=False))
def test_networkx_sees_the_same_edges(graph):
    matrix = networkx.to_numpy_array(graph.to_networkx(), nodelist=list(graph.node_names))
    assert matrix.tolist() == dense(graph).tolist()


def test_a_directed_networkx_graph_keeps_its_arrows():
    arrows = networkx.DiGraph([("a", "b")])
    assert Graph.from_networkx(arrows, directed=True).to_networkx().has_edge("a", "b")
    assert not Graph.from_networkx(arrows, directed=True).to_networkx().has_edge("b", "a")
    assert dense(Graph.from_networkx(arrows)).tolist() == [[0, 1], [1, 0]]


def test_parallel_networkx_edges_are_summed():
    parallel = networkx.MultiGraph()
    parallel.add_weighted_edges_from([("a", "b", 1.5), ("a", "b", 2.0)])
    assert dense(Graph.from_networkx(parallel)).tolist() == [[0, 3.5], [3.5, 0]]
    assert dense(Graph.from_networkx(parallel, weight=None)).tolist() == [[0, 1], [1, 0]]
    parallel.add_edge("b", "c")  # without the attribute: 1, as NetworkX counts
    assert dense(Graph.from_networkx(parallel))[1].tolist() == [3.5, 0, 1]


def test_networkx_attributes_become_features_and_labels():
    club = networkx.Graph([("a", "b")])
    networkx.set_node_attributes(club, {"a": 1.0, "b": 2.0}, "age")
    networkx.set_node_attributes(club, {"a": 3.0, "b": 4.0}, "rank")
    club.nodes["a"]["side"] = "left"
    graph = Graph.from_networkx(club, features=["age", "rank"], label="side")
    assert graph.x.tolist() == [[1, 3], [2, 4]]
    assert (graph.y.tolist(), graph.class_names) == ([0, -1], ("left",))


@pytest.mark.long
def test_the_masks_of_a_pyg_data_are_its_official_split():
    data = pytest.importorskip("torch_geometric.data").Data(
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        x=torch.eye(3),
        y=torch.tensor([0, 1, 0]),
        train_mask=torch.tensor([True, False, False]),
        val_mask=torch.tensor([False, True, False]),
        test_mask=torch.tensor([False, False, True]),
    )
    assert split(Graph.from_pyg(data), kind="official").val.tolist() == [False, True, False]


@pytest.mark.long
def test_pyg_edges_without_weights_weigh_one_even_when_repeated():
    data = pytest.importorskip("torch_geometric.data").Data(edge_index=torch.tensor([[0, 0], [1, 1]]), x=torch.eye(2))
    assert dense(Graph.from_pyg(data)).tolist() == [[0, 1], [1, 0]]
    data.strength = torch.tensor([2.0, 3.0])
    assert dense(Graph.from_pyg(data, weight="strength")).tolist() == [[0, 5], [5, 0]]


def test_what_is_not_a_graph_is_refused():
    with pytest.raises(TypeError, match=r"from_pyg needs a torch_geometric\.data\.Data with an edge_index, not dict"):
        Graph.from_pyg({})
    with pytest.raises(ValueError, match="node_names has 1 names for 2 rows of the matrix"):
        Graph.from_scipy(np.eye(2), node_names=["a"])
    club = networkx.Graph([("a", "b")])
    with pytest.raises(ValueError, match="node 'a' has no attribute 'age'; every node needs its features"):
        Graph.from_networkx(club, features="age")
    networkx.set_node_attributes(club, {"a": 1, "b": 2}, "side")
    with pytest.raises(ValueError, match="no node has the attribute 'sied' to take as its label; the nodes have 'side'"):
        Graph.from_networkx(club, label="sied")
    with pytest.raises(TypeError, match="from_scipy needs a sparse or dense matrix, not list"):
        Graph.from_scipy([[0, 1], [1]])
    with pytest.raises(TypeError, match="from_networkx needs a NetworkX graph, not dict"):
        Graph.from_networkx({"a": ["b"]})


def test_a_missing_extra_is_named_with_its_pip_line(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match=r"pip install 'gcn-lpa\[pyg\]'"):
        tiny.to_pyg()


def test_reveal_hides_every_other_label(tiny):
    mask = torch.tensor([True, False, True, False, True])
    assert tiny.reveal(mask).y.tolist() == [0, -1, 1, -1, -1]
    assert tiny.y.tolist() == [0, 0, 1, 1, -1]
    with pytest.raises(ValueError, match="a mask is boolean"):
        tiny.reveal(torch.tensor([0, 2]))


def test_self_loops_are_added_only_where_there_is_none():
    graph = Graph.from_edges([(0, 1), (1, 1), (2, 0)], weights=[2, 3, 4])
    with_loops = graph.with_self_loops()
    assert dense(with_loops).tolist() == [[1, 2, 4], [2, 3, 0], [4, 0, 1]]
    assert with_loops.pattern.col.tolist() == [0, 1, 2, 0, 1, 0, 2]
    assert with_loops.with_self_loops() is with_loops
    assert dense(Graph.from_edges([(0, 1)], self_loops=True)).tolist() == [[1, 1], [1, 1]]
    assert graph.num_self_loops == 1


SCALED = {
    "raw": lambda x: x,
    "row": lambda x: normalize(x, "l1"),
    "l2": lambda x: normalize(x, "l2"),
    "tfidf": lambda x: TfidfTransformer().fit_transform(x).toarray(),
    "auto": lambda x: normalize(x, "l2"),
}


@pytest.mark.parametrize("kind", FEATURE_KINDS)
@pytest.mark.parametrize("store", [np.asarray, scipy.sparse.csr_array])
def test_features_are_scaled_as_scikit_learn_scales_them(kind, store):
    x = np.array([[1.0, 0, 2], [0, 3, 0], [4, 0, 0], [0, 0, 0]])
    graph = dataclasses.replace(Graph.from_edges([(0, 1)], x=store(x)), blocks=(Block("x", "words", 0, 3),))
    graph = graph.with_features(kind)
    np.testing.assert_allclose(features(graph), SCALED[kind](x), rtol=1e-6)
    assert isinstance(graph.x, SparseMatrix) == (store is scipy.sparse.csr_array)


def test_row_features_of_a_non_negative_row_sum_to_one_and_a_zero_row_stays_zero(tiny):
    assert tiny.with_features("row").x.sum(dim=1).tolist() == [1, 1, 1, 1, 0]


def test_long_rows_are_scaled_without_overflow():
    graph = Graph.from_edges([(0, 1)], x=[[3e30, 4e30], [0.0, 1e-30]]).with_features("l2")
    torch.testing.assert_close(graph.x, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_identity_features_are_left_alone(karate):
    assert all(karate.with_features(kind) is karate for kind in FEATURE_KINDS)


def test_features_of_another_kind_are_refused(tiny):
    with pytest.raises(ValueError, match="unknown features 'z-score'; there are raw, row, l2, tfidf"):
        tiny.with_features("z-score")
    with pytest.raises(ValueError, match="tfidf needs features that are counts"):
        Graph.from_edges([(0, 1)], x=[[1.0], [-1.0]]).with_features("tfidf")


def test_degree_features_count_doublings():
    star = Graph.from_edges([(0, i) for i in range(1, 5)] + [(1, 1)], num_nodes=6, x="degree")
    assert features(star).argmax(dim=1).tolist() == [2, 1, 1, 1, 1, 0]  # degrees 4, 1, 1, 1, 1, 0: ⌊log2(1 + degree)⌋
    assert features(star).sum(dim=1).tolist() == [1] * 6


@pytest.mark.parametrize("sparse", [False, True])
def test_feature_dot_is_the_weighted_scalar_product_of_both_ends(karate, sparse):
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (34, 6)).astype(np.float32))
    graph = Graph.from_scipy(karate.to_scipy(), x=scipy.sparse.csr_array(x.numpy()) if sparse else x)
    weights = torch.linspace(0.5, 2, 6, requires_grad=True)
    expected = torch.stack([(x[i] * weights * x[j]).sum() for i, j in zip(graph.row, graph.col, strict=True)])
    found = graph.feature_dot(weights)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), weights)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), weights)
    torch.testing.assert_close(gradient, expected_gradient)


def test_products_of_sparse_features_are_computed_once_for_all_labellings(karate, monkeypatch):
    compute, calls = SparseMatrix.row_products, []
    monkeypatch.setattr(SparseMatrix, "row_products", lambda *given: calls.append(given) or compute(*given))
    for graph in (karate, karate.reveal(torch.zeros(34, dtype=torch.bool)), karate):
        graph.feature_dot(torch.ones(graph.num_features))
    assert len(calls) == 1
    karate.with_self_loops().feature_dot(torch.ones(karate.num_features))
    assert len(calls) == 2


def test_a_node_is_found_by_its_name():
    graph = Graph.from_edges([("paper-17", "paper-18"), ("paper-18", 42)])
    assert [graph.index_of(name) for name in graph.node_names] == [0, 1, 2]
    assert graph.index_of("42") == graph.index_of(42)
    with pytest.raises(ValueError, match="has no node 'paper-1'; close to it: paper-1"):
        graph.index_of("paper-1")
    with pytest.raises(ValueError, match=r"has no node 99; its nodes are 0\.\.33"):
        Graph.from_edges([], num_nodes=34).index_of(99)


def test_the_content_hash_changes_with_everything_that_matters(tiny):
    arrays = {"x": tiny.x, "y": tiny.y, "node_names": tiny.node_names}
    variants = [
        Graph.from_scipy(tiny.to_scipy(), **arrays),
        Graph.from_scipy(tiny.to_scipy() * 2, **arrays),
        Graph.from_scipy(tiny.to_scipy(), **{**arrays, "x": tiny.x + 1}),
        Graph.from_scipy(tiny.to_scipy(), **{**arrays, "y": [1, 0, 1, 1, -1]}),
        Graph.from_scipy(tiny.to_scipy(), **{**arrays, "node_names": "abcde"}),
        Graph.from_scipy(tiny.to_scipy(), **arrays, class_names=["a", "b"]),
        Graph.from_scipy(tiny.to_scipy(), **arrays, directed=True),
        tiny.with_self_loops(),
    ]
    assert variants[0].content_hash() == tiny.content_hash() == "a06feb9c07df79f7"  # on every machine
    assert len({graph.content_hash() for graph in variants}) == len(variants)


def test_the_content_hash_covers_how_columns_were_read(tmp_path):
    """A bag of words and numbers of the same values are scaled in two ways: two graphs."""
    (tmp_path / "nodes.csv").write_text("id,height\na,1\nb,2\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    graph = load(tmp_path)
    (encoder,) = graph.columns.encoders
    filled = dataclasses.replace(graph.columns, encoders=(dataclasses.replace(encoder, median=7.0),))
    others = [
        dataclasses.replace(graph, columns=filled),
        dataclasses.replace(graph, columns=None),
        dataclasses.replace(graph, blocks=(Block("height", "words", 0, 1),)),
    ]
    assert all(other.x is graph.x for other in others)
    assert len({one.content_hash() for one in (graph, *others)}) == 4
    assert dataclasses.replace(graph, notes=(), name="other").content_hash() == graph.content_hash()


def test_the_content_hash_is_computed_once(tiny, monkeypatch):
    digests = []
    sha256 = hashlib.sha256
    monkeypatch.setattr("gcn_lpa.graph.hashlib.sha256", lambda *given: digests.append(given) or sha256(*given))
    assert tiny.content_hash(64).startswith(tiny.content_hash()) and len(tiny.content_hash(64)) == 64
    assert len(digests) == 1


def test_a_notebook_says_which_edges_homophily_was_counted_over():
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)], y=["a", "a", None, "b"])
    assert "100.0 % of the 1 edge between labelled nodes join one class" in graph._repr_html_()
    assert "no edge joins two labelled nodes" in Graph.from_edges([(0, 1)])._repr_html_()


def test_an_estimator_and_its_clones_share_the_graph(tiny):
    assert clone(tiny) is tiny


def test_moving_to_the_same_device_keeps_everything(tiny):
    assert tiny.to("cpu").content_hash() == tiny.content_hash()
    assert tiny.device == torch.device("cpu")


@pytest.mark.parametrize("num_labeled", [3, 10, 34, 2708, 3312])
def test_the_uniform_split_has_the_sizes_of_the_paper(num_labeled):
    y = [0] * num_labeled + [-1] * 7
    parts = split(Graph.from_edges([], num_nodes=len(y), y=y), seed=1)
    fifth = int(0.2 * num_labeled)
    assert [int(mask.sum()) for mask in (parts.train, parts.val, parts.test)] == [num_labeled - 2 * fifth, fifth, fifth]
    assert not (parts.train | parts.val | parts.test)[num_labeled:].any()


def test_a_seed_is_a_split_on_every_machine(karate):
    assert split(karate, seed=0).hash == "1fc3927e08"
    assert split(karate, seed=0).hash != split(karate, seed=1).hash
    assert split(karate, seed=0, kind="stratified").hash == "96a96c52dd"


def test_a_split_says_what_it_is(karate):
    parts = split(karate, seed=0)
    assert repr(parts) == "Split 1fc3927e08 (uniform, seed 0): 22/6/6 nodes train/validate/test"


def test_every_node_is_as_likely_to_test_as_any_other(karate):
    counts = sum(split(karate, seed=seed).test.float() for seed in range(600))
    expected, deviation = 600 * 6 / 34, (600 * 6 / 34 * 28 / 34) ** 0.5
    assert (counts - expected).abs().max() < 5 * deviation


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 3))
def test_a_stratified_split_divides_every_class_alike(sizes, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    graph = Graph.from_edges([], num_nodes=len(y), y=y)
    parts = split(graph, seed=seed, kind="stratified")
    assert int(parts.val.sum()) == int(parts.test.sum()) == int(0.2 * len(y))
    for label, size in enumerate(sizes):
        members = torch.from_numpy(y == label)
        assert abs(int((parts.val & members).sum()) - 0.2 * size) <= 1.5
        assert int((parts.train & members).sum()) >= 1


def test_k_per_class_train_the_stated_number_validates_and_the_rest_tests(karate):
    parts = split(karate, kind="per_class", per_class=3, num_val=10, seed=5)
    assert karate.y[parts.train].bincount().tolist() == [3, 3]
    assert (int(parts.val.sum()), int(parts.test.sum())) == (10, 18)
    with pytest.raises(ValueError, match=r"class 'Mr\. Hi' has 17 labelled nodes, 20 are asked for"):
        split(karate, kind="per_class")
    with pytest.raises(ValueError, match="500 validation nodes are asked for, but 28 labelled nodes are left"):
        split(karate, kind="per_class", per_class=3)


def test_fractions_below_one_leave_nodes_out(karate):
    parts = split(karate, (0.1, 0.5, 0.2))
    assert [int(mask.sum()) for mask in (parts.train, parts.val, parts.test)] == [3, 17, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": (0.6, 0.3, 0.2)}, "sum to at most 1"),
        ({"fractions": (0.0, 0.5, 0.5)}, "no node is left to train on"),
        ({"kind": "official"}, "'karate' has no official split here"),
        ({"seed": -1}, r"seed = -1; it is at least 0 and less than 2\*\*63"),
        ({"seed": -1, "kind": "stratified"}, "seed = -1; it is at least 0"),
        ({"kind": "random"}, "unknown split 'random'; there are uniform, stratified, official, per_class, time"),
    ],
)
def test_an_impossible_split_is_refused(karate, options, message):
    with pytest.raises(ValueError, match=message):
        split(karate, **options)


def test_a_graph_without_labels_has_no_split():
    with pytest.raises(ValueError, match="has no labelled node to train on"):
        split(Graph.from_edges([(0, 1)]))


def test_a_split_has_no_node_twice():
    yes, no = torch.tensor([True, False]), torch.tensor([False, False])
    with pytest.raises(ValueError, match="node 0 is in more than one"):
        Split(yes, no, yes)
    with pytest.raises(ValueError, match="val must be a boolean mask"):
        Split(yes, torch.tensor([0, 1]), no)


def test_homophily_by_hand():
    """0-1 same class, 1-2 and 2-3 not, 3-4 with an unlabelled end, a self-loop at 0."""
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (0, 0)], y=["a", "a", "b", "a", None])
    info = describe(graph)
    assert info.edge_homophily == pytest.approx(1 / 3)
    assert info.intra_class_edge_rate == pytest.approx(2 / 4)  # node 4 counted as class a
    assert info.node_homophily == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    chance = (4 / 6) ** 2 + (2 / 6) ** 2  # of the six ends of three edges, four are a
    assert info.adjusted_homophily == pytest.approx((1 / 3 - chance) / (1 - chance))
    assert (info.edges, info.self_loops, info.labeled, info.class_sizes) == (4, 1, 4, {"a": 3, "b": 1})
    assert info.labeled_edges == 3
    found = homophily(graph)
    assert (found.edges, found.rate, found.chance) == (3, info.edge_homophily, pytest.approx(chance))
    assert (found.node, found.adjusted) == (info.node_homophily, info.adjusted_homophily)


def test_two_cliques_have_the_homophily_one_counts(two_cliques):
    info = describe(two_cliques)
    assert info.edge_homophily == pytest.approx(12 / 13)
    assert info.node_homophily == pytest.approx((6 + 2 * 3 / 4) / 8)
    assert info.adjusted_homophily == pytest.approx((12 / 13 - 0.5) / 0.5)


@given(graphs())
def test_components_and_reach_agree_with_networkx(graph):
    info = describe(graph)
    walk = graph.to_networkx()
    undirected = walk.to_undirected()
    assert info.components == networkx.number_connected_components(undirected)
    assert info.isolated == sum(not set(undirected[node]) - {node} for node in undirected)
    labelled = [node for node, data in walk.nodes(data=True) if "label" in data]
    reached = set(labelled).union(*(networkx.descendants(walk, node) for node in labelled))
    assert info.unreachable == graph.num_nodes - len(reached)


@given(graphs(), st.randoms(use_true_random=False))
def test_hops_are_the_shortest_ways_that_networkx_finds(graph, random):
    starts = random.sample(range(graph.num_nodes), random.randint(0, graph.num_nodes))
    walk = networkx.DiGraph(zip(graph.col.tolist(), graph.row.tolist(), strict=True))  # from sender to receiver
    walk.add_nodes_from(range(graph.num_nodes))
    expected = np.full(graph.num_nodes, np.inf)
    for start in starts:
        for node, length in networkx.single_source_shortest_path_length(walk, start).items():
            expected[node] = min(expected[node], length)
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mask[starts] = True
    for given_nodes in (mask, mask.numpy(), np.asarray(starts, dtype=np.int64)):
        assert node_hops(graph, given_nodes).tolist() == expected.tolist()


@pytest.mark.long
def test_hops_along_a_chain_of_a_hundred_thousand_nodes():
    n = 100_000
    chain = Graph.from_edges(np.stack([np.arange(n - 1), np.arange(1, n)], axis=1), num_nodes=n)
    assert node_hops(chain, np.asarray([0])).tolist() == list(range(n))


@given(graphs(), st.randoms(use_true_random=False))
def test_numbering_the_nodes_anew_changes_no_count(graph, random):
    order = list(range(graph.num_nodes))
    random.shuffle(order)
    names = [graph.node_names[i] for i in order]
    frame = graph.to_pandas()
    turned = Graph.from_edges(
        frame[["source", "target"]].to_numpy(),
        weights=frame["weight"],
        node_names=names,
        x=scipy.sparse.csr_array(features(graph)[order].numpy()),
        y=graph.y[order],
        class_names=graph.class_names,
        directed=graph.directed,
    )
    before, after = describe(graph), describe(turned)
    for count in ("edges", "self_loops", "nonzeros", "class_sizes", "components", "isolated", "unreachable"):
        assert getattr(before, count) == getattr(after, count)
    for rate in ("intra_class_edge_rate", "edge_homophily", "node_homophily", "adjusted_homophily"):
        assert getattr(before, rate) == pytest.approx(getattr(after, rate))


def test_a_copy_with_other_features_or_edges_derives_nothing_from_the_old(tiny):
    """What was worked out of a graph is shared by copies with other labels, and by no others."""
    before, loops = tiny.with_features("l2").x, tiny.with_self_loops().adjacency
    assert tiny.reveal(tiny.labeled & False).with_features("l2").x is before
    doubled = dataclasses.replace(tiny, x=tiny.x.flip(1))
    torch.testing.assert_close(doubled.with_features("l2").x, before.flip(1))
    sparse = dataclasses.replace(tiny, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(tiny.x.numpy())))
    torch.testing.assert_close(sparse.with_features("l2").x.to_dense(), before)
    ones = torch.ones(tiny.num_features)
    torch.testing.assert_close(sparse.feature_dot(ones), tiny.feature_dot(ones))
    heavier = dataclasses.replace(tiny, adjacency=tiny.adjacency.with_values(tiny.adjacency.values * 2))
    difference = heavier.with_self_loops().adjacency.to_dense() - loops.to_dense()
    torch.testing.assert_close(difference, tiny.adjacency.to_dense())
    assert tiny.with_features("l2").x is before
