"""Every odd thing that data can hold, in memory and in files: a defined result, or an error that says where it is."""

import re
import subprocess
import sys
import time

import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

from gcn_lpa.cli.data import structural_note
from gcn_lpa.data.checks import WARNING
from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import describe, warnings_in
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.data.splits import require_classes, split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.recipes import choose_recipe
from tests.helpers.bad_files import BAD_FILES, EDGES, NODES

NAN, INF = float("nan"), float("inf")
EDGE = [(0, 1)]


def read_only(array):
    array = np.array(array, dtype=np.float32)
    array.flags.writeable = False
    return array


REFUSED = {
    "NaN weight": ({"weights": [NAN]}, "edge 0, 0 → 1, has weight nan; a weight is positive and finite"),
    "infinite weight": ({"weights": [INF]}, "edge 0, 0 → 1, has weight inf"),
    "negative weight": ({"weights": [-2]}, "edge 0, 0 → 1, has weight -2"),
    "zero weight": (
        {"weights": [0.0]},
        "edge 0, 0 → 1, has weight 0.0; a weight is positive and finite (leave the edge",
    ),
    "weight beyond 32 bits": ({"weights": [1e39]}, "edge 0, 0 → 1, has weight 1e+39"),
    "weight below 32 bits": ({"weights": [1e-60]}, "weight 1e-60 is beyond 32-bit floats"),
    "missing weight": ({"weights": [None]}, "edge 0, 0 → 1, has weight None"),
    "weight as text": ({"weights": ["2"]}, "edge 0, 0 → 1, has weight '2'"),
    "too few weights": ({"weights": []}, "weights has shape [0] for 1 edges"),
    "NaN feature": ({"x": [[0, 1], [NAN, 1]]}, "x has nan in row 1, column 0; features are finite"),
    "infinite feature": ({"x": [[0, 1], [0, -INF]]}, "x has -inf in row 1, column 1"),
    "NaN in sparse features": ({"x": scipy.sparse.csr_array([[0, 1], [0, NAN]])}, "x has nan in row 1, column 1"),
    "NaN in sparse tensor": ({"x": torch.tensor([[0, 1], [NAN, 0]]).to_sparse()}, "x has nan in row 1, column 0"),
    "feature beyond 32 bits": ({"x": [[0, 1], [1e39, 1]]}, "x has 1e+39 in row 1, column 0"),
    "huge whole number": ({"x": [[0, 1], [10**400, 1]]}, "in row 1, column 0; features are finite 32-bit floats"),
    "feature as text": ({"x": [["1", "2"], ["3", "4"]]}, "x has '1' in row 0, column 0"),
    "missing feature": ({"x": [[0, None], [0, 1]]}, "x has None in row 0, column 1"),
    "complex feature": ({"x": [[1j], [0]]}, "x has 1j in row 0, column 0"),
    "ragged features": ({"x": [[0, 1], [0]]}, "the rows of x have different lengths: [1, 2]"),
    "flat features": ({"x": [1.0, 2.0]}, "features are [2, d], a row per node; x is [2]"),
    "no columns": ({"x": np.ones((2, 0))}, "features are [2, d], a row per node; x is [2, 0]"),
    "unknown stand-in": ({"x": "onehot"}, "x is 'onehot'; without features of your own it is 'identity' or 'degree'"),
    "sizes that differ": ({"x": np.ones((3, 1)), "y": [0, 1]}, "the rows of x are 3, the labels in y are 2"),
    "too few names": ({"node_names": ["a"]}, "edge 0 starts at node 0, which node_names does not hold ('a')"),
    "names of another kind": (
        {"node_names": ["0", "1"]},
        "edge 0 starts at node 0, which node_names does not hold (0 is a number, '0' is text: ids are of one kind",
    ),
    "a name twice": ({"node_names": [0, 1, 0]}, "nodes 0 and 2 have the same name 0"),
    "a name missing": ({"node_names": [0, 1, None]}, "node 2 has no name: None"),
    "id out of range": ({"num_nodes": 1}, "edge 0 points to node 1, but num_nodes is 1"),
    "fractional label": ({"y": [0.5, 1.0], "task": "classification"}, "label 0.5 of node 0 is not a class"),
    "label that is no number": (
        {"y": ["1.5", "many"], "task": "regression"},
        "label 'many' of node 1 is no finite number",
    ),
    "unknown task": ({"task": "ranking"}, "task = 'ranking'; it is one of classification, regression"),
    "infinite label": ({"y": [0.0, INF]}, "label inf of node 1 is not a class"),
    "negative label": ({"y": [0, -2]}, "label -2 of node 1 is negative; unknown is -1"),
    "one-hot labels": ({"y": np.eye(2)}, "labels are one per node, [2]; y is [2, 2]"),
    "label of no class": (
        {"y": ["a", "b"], "class_names": ["a"]},
        "label 'b' of node 1 is not among the class_names 'a'",
    ),
    "label beyond": ({"y": [0, 5], "class_names": ["a", "b"]}, "label 5 of node 1 is beyond the 2 class_names"),
    "a class twice": ({"class_names": ["a", "a"]}, "class_names repeats 'a'"),
    "1 beside '1'": ({"y": [1, "1"]}, "labels 1 and '1' have one name"),
    "list as label": ({"y": [[0, 1], [1]]}, "label [0, 1] of node 0 is not a class"),
    "label of a node of another kind": (
        {"y": {0: "a", "1": "b"}, "num_nodes": 2},
        "y labels node '1', which the graph does not hold ('1' is text, 1 is a number: ids are of one kind everywhere)",
    ),
    "label of no node": ({"y": {7: "a"}, "num_nodes": 2}, "y labels node 7, which the graph does not hold (0, 1)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below
        Graph.from_edges(EDGE, **options)
    assert message in str(refusal.value)


REFUSED_EDGES = {
    "no id": ([(0, None)], "edge 0 has no target: None"),
    "NaN id": (np.array([[0.0, NAN]]), "edge 0 has no target: nan"),
    "fractional id": ([(0.5, 1)], "edge 0 has source 0.5"),
    "three in a pair": ([(0, 1, 2.0)], "edge 0 is (0, 1, 2.0), not a pair"),
    "text of two letters": (["ab"], "edge 0 is 'ab', not a pair"),
    "PyG's edge_index": (torch.tensor([[0, 1, 2], [1, 2, 0]]), "PyG's [2, E] goes in as edge_index.T"),
    "nothing at all": ([], "the graph has no nodes"),
}


@pytest.mark.parametrize("case", REFUSED_EDGES)
def test_refused_edges(case):
    edges, message = REFUSED_EDGES[case]
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below
        Graph.from_edges(edges)
    assert message in str(refusal.value)


def test_an_id_that_cannot_be_compared_is_refused():
    with pytest.raises(TypeError, match="edge 0 has target \\[1\\] of type list, which cannot be a node id"):
        Graph.from_edges([(0, [1])])


@pytest.mark.parametrize("big", [2**31, 2**63, 2**64])
@pytest.mark.parametrize("sign", [1, -1])
def test_big_ids_are_names_and_as_positions_out_of_range(big, sign):
    graph = Graph.from_edges([(sign * big, sign * big + 1)])
    assert graph.num_nodes == 2
    assert graph.index_of(sign * big) == 0
    with pytest.raises(ValueError, match=f"starts at node {sign * big}, but num_nodes is 3"):
        Graph.from_edges([(sign * big, 0)], num_nodes=3)


def test_big_ids_of_a_numpy_column():
    assert Graph.from_edges(np.array([[2**64 - 1, 2**63]], dtype=np.uint64)).node_names == (2**63, 2**64 - 1)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ([5, 90, 1000], (5, 90, 1000)),
        (["b", "a", "ü"], ("a", "b", "ü")),
        (["1", "01", "1.0"], ("01", "1", "1.0")),
        ([3, "3", (1, 2)], (3, "3", (1, 2))),
        ([0.0, 1.0, 2.0], range(3)),
        ([np.int32(0), np.int64(1), 2], range(3)),
        ([np.str_("a"), "b", "c"], ("a", "b", "c")),
    ],
)
def test_ids_of_any_kind_come_back(ids, names):
    graph = Graph.from_edges([(ids[0], ids[1]), (ids[1], ids[2])])
    assert graph.node_names == names
    assert graph.num_edges == 2


LABELS = {
    "integers": ([3, 7, 3], [0, 1, 0], ("3", "7")),
    "floats": ([1.0, NAN, 0.0], [1, -1, 0], ("0", "1")),
    "text": (["b", "", "a"], [1, -1, 0], ("a", "b")),
    "numbers as text": (["10", "9", "-2"], [2, 1, 0], ("-2", "9", "10")),
    "booleans": ([True, False, True], [1, 0, 1], ("False", "True")),
    "booleans and None": ([True, None, False], [1, -1, 0], ("False", "True")),
    "None": ([None, "a", None], [-1, 0, -1], ("a",)),
    "NaN beside text": ([NAN, "a", "b"], [-1, 0, 1], ("a", "b")),
    "-1": ([-1, 0, 1], [-1, 0, 1], ("0", "1")),
    "-1.0": ([-1.0, 0.0, 1.0], [-1, 0, 1], ("0", "1")),
    "'NA' is a class": (["NA", "nan", "a"], [0, 2, 1], ("NA", "a", "nan")),
    "pandas NA": (pandas.Series([1, None, 0], dtype="Int64"), [1, -1, 0], ("0", "1")),
    "a categorical": (pandas.Series(["x", None, "y"], dtype="category"), [0, -1, 1], ("x", "y")),
    "a column": (np.array([[0], [1], [1]]), [0, 1, 1], ("0", "1")),
    "a tensor": (torch.tensor([1, 0, -1]), [1, 0, -1], ("0", "1")),
    "NumPy text": (np.array(["u", "v", "u"]), [0, 1, 0], ("u", "v")),
    "small integers": (np.array([0, 2, 1], dtype=np.uint8), [0, 2, 1], ("0", "1", "2")),
    "huge": ([2**70, 0, 1], [2, 0, 1], ("0", "1", str(2**70))),
    "nothing": ([None, None, None], [-1, -1, -1], ()),
    "a mapping": ({2: "q"}, [-1, -1, 0], ("q",)),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels(case):
    y, expected, names = LABELS[case]
    graph = Graph.from_edges([(0, 1), (1, 2)], num_nodes=3, y=y)
    assert graph.y.tolist() == expected
    assert graph.class_names == names


FEATURES = {
    "float16": np.array([[0.5, 1], [2, 3]], dtype=np.float16),
    "bfloat16": torch.tensor([[0.5, 1], [2, 3]], dtype=torch.bfloat16),
    "float64": np.array([[0.5, 1], [2, 3]]),
    "int": np.array([[0, 1], [2, 3]]),
    "bool": np.array([[True, False], [False, True]]),
    "read-only": read_only([[0.5, 1], [2, 3]]),
    "Fortran order": np.asfortranarray([[0.5, 1], [2, 3]]),
    "a view": np.arange(16.0).reshape(4, 4)[::2, ::2],
    "big-endian": np.array([[0.5, 1], [2, 3]], dtype=">f8"),
    "a frame": pandas.DataFrame({"a": [1, 2], "b": [0.5, 0.25]}),
    "objects": np.array([[1, 2.5], [True, 4]], dtype=object),
    "constant": np.full((2, 3), 7.0),
    "1e30": np.array([[1e30, -1e30], [0, 1e-30]]),
    "list": [[1, 2], [3, 4]],
    "with gradient": torch.ones(2, 2, requires_grad=True),
}


@pytest.mark.parametrize("case", FEATURES)
def test_features_of_any_type_become_float32(case):
    x = FEATURES[case]
    graph = Graph.from_edges(EDGE, x=x)
    expected = x.detach().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x).astype(np.float64)
    assert graph.x.dtype == torch.float32
    np.testing.assert_array_equal(graph.x.numpy(), expected.astype(np.float32))
    for kind in ("row", "l2"):
        assert graph.with_features(kind).x.isfinite().all()


@pytest.mark.parametrize(
    "sparse",
    [
        scipy.sparse.csr_matrix,
        scipy.sparse.csc_array,
        scipy.sparse.coo_array,
        scipy.sparse.lil_matrix,
        lambda x: torch.from_numpy(x).to_sparse(),
        lambda x: SparseMatrix.from_scipy(scipy.sparse.csr_array(x)),
    ],
)
def test_sparse_features_stay_sparse(sparse):
    x = np.array([[0.0, 2, 0], [1, 0, 0]])
    graph = Graph.from_edges(EDGE, x=sparse(x))
    assert isinstance(graph.x, SparseMatrix)
    assert graph.x.num_entries == 2
    assert graph.x.to_dense().tolist() == x.tolist()


def test_a_graph_does_not_change_with_the_array_it_was_made_of():
    x = np.ones((2, 2), dtype=np.float32)
    graph = Graph.from_edges(EDGE, x=x)
    x[0, 0] = NAN
    assert graph.x.tolist() == [[1, 1], [1, 1]]


def test_read_only_matrices_are_accepted():
    matrix = scipy.sparse.csr_array(np.array([[0.0, 1], [1, 0]]))
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    assert Graph.from_scipy(matrix, x=matrix).num_edges == 1


def test_stored_zeros_and_repeated_entries_of_a_matrix():
    matrix = scipy.sparse.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 2])), shape=(3, 3))
    graph = Graph.from_scipy(matrix)
    assert graph.adjacency.to_dense().tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]
    assert "1 stored zeros dropped" in graph.notes
    with pytest.raises(ValueError, match=r"entry \[1, 0\] has weight -1.0"):
        Graph.from_scipy(np.array([[0, 1.0], [-1.0, 0]]))
    with pytest.raises(ValueError, match="an adjacency matrix is square; this one is 2 x 3"):
        Graph.from_scipy(np.ones((2, 3)))


def test_isolated_nodes_and_nodes_no_label_reaches_are_counted():
    graph = Graph.from_edges([(0, 1), (2, 3), (4, 4)], num_nodes=6, y=[0, -1, -1, -1, -1, 1])
    info = describe(graph)
    assert (info.components, info.isolated, info.unreachable) == (4, 2, 3)  # 2 and 3, and 4 with its self-loop


def test_a_class_without_a_labelled_node_is_kept():
    graph = Graph.from_edges(EDGE, y=[0, 2], class_names=["a", "b", "c"])
    assert describe(graph).class_sizes == {"a": 1, "b": 0, "c": 1}
    assert split(graph, (1, 0, 0), kind="stratified").train.tolist() == [True, True]


def test_one_class_only():
    info = describe(Graph.from_edges(EDGE, y=["a", "a"]))
    assert (info.edge_homophily, info.adjusted_homophily, info.intra_class_edge_rate) == (1.0, None, 1.0)


def test_one_node():
    graph = Graph.from_edges([], num_nodes=1, y=["a"])
    info = describe(graph)
    assert (info.nodes, info.edges, info.components, info.isolated, info.unreachable) == (1, 0, 1, 1, 0)
    assert info.edge_homophily is None
    assert graph.with_self_loops().adjacency.to_dense().tolist() == [[1]]
    assert split(graph).train.tolist() == [True]


def test_no_edges():
    graph = Graph.from_edges(np.empty((0, 2)), num_nodes=3)
    assert graph.adjacency.row_normalized().to_dense().tolist() == [[0] * 3] * 3
    assert describe(graph).intra_class_edge_rate is None
    assert (graph.adjacency @ torch.ones(3, 2)).tolist() == [[0, 0]] * 3


def test_no_labels():
    info = describe(Graph.from_edges(EDGE))
    assert (info.labeled, info.classes, info.unreachable, info.intra_class_edge_rate) == (0, 0, 2, None)


def test_directed_input_is_joined_unless_asked_for():
    arrows = networkx.DiGraph([(0, 1), (1, 2)])
    assert Graph.from_networkx(arrows).num_edges == 2
    directed = Graph.from_networkx(arrows, directed=True)
    assert directed.num_edges == 2
    assert directed.adjacency.to_dense().tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    info = describe(Graph.from_edges([(0, 1), (1, 2)], y=[-1, 0, -1], directed=True))
    assert info.unreachable == 1  # 0 sends to 1, nobody sends to 0
    with pytest.raises(ValueError, match="directed=True needs a DiGraph"):
        Graph.from_networkx(networkx.Graph(), directed=True)


@pytest.fixture
def folder(tmp_path):
    """A function that writes files into a folder and returns the folder."""

    def write(**files):
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else content.encode()
            (tmp_path / name.replace("_", ".")).write_bytes(raw)
        return tmp_path

    return write


def test_a_plain_folder(folder):
    graph = load(folder(nodes_csv=NODES, edges_csv=EDGES))
    assert graph.node_names == ("a", "b", "c")
    assert (graph.y.tolist(), graph.class_names) == ([1, 0, -1], ("blue", "red"))
    assert graph.x.tolist() == [[1], [2], [3]]
    assert graph.adjacency.to_dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.long
def test_reading_a_folder_imports_no_library_that_it_does_not_need(folder):
    code = """
import sys
from gcn_lpa.data.datasets import load
before = {"pandas"} & set(sys.modules)
load(sys.argv[1])
print(before | {"sklearn", "networkx", "scipy.stats", "matplotlib"} & set(sys.modules))
"""
    command = [sys.executable, "-c", code, str(folder(nodes_csv=NODES, edges_csv=EDGES))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


SAME_AS_PLAIN = {
    "byte order mark": {"nodes_csv": b"\xef\xbb\xbf" + NODES.encode()},
    "CRLF": {"nodes_csv": NODES.replace("\n", "\r\n"), "edges_csv": EDGES.replace("\n", "\r\n")},
    "CR": {"nodes_csv": NODES.replace("\n", "\r")},
    "no newline at the end": {"nodes_csv": NODES.strip(), "edges_csv": EDGES.strip()},
    "blank lines": {"nodes_csv": NODES.replace("\n", "\n\n"), "edges_csv": f"\n{EDGES}\n\n"},
    "semicolons": {"nodes_csv": NODES.replace(",", ";")},
    "tabs": {"nodes_csv": NODES.replace(",", "\t")},
    "bars": {"nodes_csv": NODES.replace(",", "|")},
    "quotes": {"nodes_csv": 'id,label,age\n"a","red","1"\n"b","blue",2\nc,"",3\n'},
    "capitals and spaces in the header": {"nodes_csv": NODES.replace("id,label", "ID, Label ")},
    "columns in another order": {"nodes_csv": "age,label,id\n1,red,a\n2,blue,b\n3,,c\n"},
    "other usual names": {
        "nodes_csv": NODES.replace("id,label", "node,class"),
        "edges_csv": EDGES.replace("source,target", "from,to"),
    },
    "another delimiter inside quotes": {
        "nodes_csv": '"";id;label;age\n"1,2,3,4";a;red;1\n"";b;blue;2\n"";c;;3\n',
        "edges_csv": '"source"|"target"|"a;b;c;d ""e"" f"\na|b|\nb|c|\n',
    },
    "Excel's first row": {
        "nodes_csv": "sep=;\r\n" + NODES.replace(",", ";").replace("\n", "\r\n"),
        "edges_csv": '"sep=\t"\n' + EDGES.replace(",", "\t"),
    },
    "pandas' index": {"nodes_csv": ",id,label,age\n0,a,red,1\n1,b,blue,2\n2,c,,3\n"},
    "an edge in both directions": {"edges_csv": EDGES + "b,a\nb,a\n"},
    "columns of edges that say the same everywhere": {"edges_csv": "source,target,year\na,b,1999\nb,c,1999\n"},
}


@pytest.mark.parametrize("case", SAME_AS_PLAIN)
def test_files_that_say_the_same(folder, case):
    plain = load(folder(nodes_csv=NODES, edges_csv=EDGES)).content_hash()
    assert load(folder(**SAME_AS_PLAIN[case])).content_hash() == plain


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_with_its_place(folder, case):
    files, message = BAD_FILES[case]
    path = folder(**({"nodes_csv": NODES, "edges_csv": EDGES} | files))
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below
        load(path)
    assert message in str(refusal.value)


def test_ids_and_labels_are_text_as_written(folder):
    nodes = "id,label\n001,NA\n1,null\n1.0,nan\n,None\n".replace("\n,None", "\n@x,None") + "-5,\n"
    graph = load(folder(nodes_csv=nodes, edges_csv="source,target\n001,1\n1.0,@x\n-5,1\n"))
    assert graph.node_names == ("001", "1", "1.0", "@x", "-5")
    assert graph.class_names == ("NA", "None", "nan", "null")
    assert graph.y.tolist() == [0, 3, 2, 1, -1]


def test_quoted_newlines_stay_in_their_cell(folder):
    nodes = 'id,label,age\n"a\nb",red,1\n"c,d","say ""hi""",2\ne,red,1e39\n'
    with pytest.raises(ValueError, match="row 4, column 'age' is '1e39'"):  # a spreadsheet's row, not a line of text
        load(folder(nodes_csv=nodes, edges_csv="source,target\n"))
    graph = load(folder(nodes_csv=nodes.replace("1e39", "3")))
    assert graph.node_names == ("a\nb", "c,d", "e")
    assert graph.class_names == ("red", 'say "hi"')


def test_encoding_and_delimiter_are_read_as_named(folder):
    path = folder(nodes_csv=NODES.replace("red", "rosé").encode("latin-1"), edges_csv=EDGES)
    assert load(path, encoding="latin-1").class_names == ("blue", "rosé")
    with pytest.raises(ValueError, match="there is no encoding 'utf-9'"):
        load(path, encoding="utf-9")
    path = folder(nodes_csv=NODES.replace(",", "^"), edges_csv=EDGES.replace(",", "^"))
    assert load(path, delimiter="^").class_names == ("blue", "red")
    with pytest.raises(ValueError, match="the delimiter is ', '; it is one character"):
        load(path, delimiter=", ")


def test_other_labels_can_mean_unknown(folder):
    nodes = "id,label\na,1\nb,-1\nc,0\nd,?\n"
    path = folder(nodes_csv=nodes, edges_csv="source,target\na,b\n")
    assert load(path, unknown=["-1", "?"]).y.tolist() == [1, -1, 0, -1]
    as_class = load(path, unknown="?")
    assert as_class.class_names == ("-1", "0", "1")
    assert "warning: the label '-1' is read as a class; if it means unknown, say option unknown=-1" in as_class.notes


def test_blanks_in_labels_are_kept_and_said(folder):
    path = folder(nodes_csv='id,label\na,red\nb, red\nc,"  "\n', edges_csv=EDGES)
    graph = load(path)
    assert sorted(graph.class_names) == ["  ", " red", "red"]
    assert "warning: the blank label '  ' is read as a class; if it means unknown, say so with option unknown=…" in graph.notes
    assert "warning: the labels ' red', 'red' differ by blanks around them, and are read as classes apart" in graph.notes
    assert load(path, unknown="  ").num_classes == 2
    assert not any("blank" in note for note in load(folder(nodes_csv=NODES)).notes)


def test_a_guessed_label_is_said(folder):
    said = "column 'y' is read as the label; option label=… says otherwise"
    path = folder(nodes_csv="id,y\na,1\nb,2.0\nc,\n", edges_csv=EDGES)
    assert said in load(path).notes
    assert said not in load(path, label="y").notes
    assert load(folder(nodes_csv="id\na\nb\nc\n", labels_csv="id,y\na,v1.5\nb,2.5\n")).notes.count(said) == 1


@pytest.mark.parametrize("labels", [False, True], ids=["nodes.csv", "labels.csv"])
def test_measurements_are_not_guessed_to_be_labels(folder, labels):
    files = {"nodes_csv": "id\na\nb\nc\n", "labels_csv": "id,x,y\na,1,2\nb,4.5,1.5\nc,1,\n"}
    if not labels:
        files = {"nodes_csv": "id,x,y\na,1,2\nb,4.5,1.5\nc,1,3\n"}
    path = folder(edges_csv=EDGES, **files)
    with pytest.raises(ValueError, match=r"\.csv, row 3, column 'y' is '1\.5', which is no class; .*say with option label=… which"):
        load(path)
    assert load(path, label="y").num_classes == (2 if labels else 3)  # as stated
    if not labels:
        assert load(path, label="", features=["x", "y"]).x.tolist() == [[1, 2], [4.5, 1.5], [1, 3]]


def test_a_second_column_that_could_be_the_label_is_left_aside_and_said(folder):
    nodes = "id,class,label,age\na,0,red,1\nb,1,blue,2\nc,,,3\n"
    plain = load(folder(nodes_csv=NODES, edges_csv=EDGES)).content_hash()
    graph = load(folder(nodes_csv=nodes))
    assert graph.content_hash() == plain
    assert (
        "warning: 'class' could be the label too, and a feature that is one would tell the answer: left aside; option label=class "
        "chooses it, features=… reads it as a feature"
    ) in graph.notes
    chosen = load(folder(), label="class")
    assert chosen.class_names == ("0", "1")
    assert chosen.x.tolist() == [[1], [2], [3]]
    assert any("'label' could be the label too" in note for note in chosen.notes)
    asked = load(folder(nodes_csv=nodes.replace("c,,", "c,1,")), features=["class", "age"])
    assert asked.x.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert not any("left aside" in note for note in asked.notes)


def test_a_coordinate_beside_the_label_is_a_feature(folder):
    nodes = "id,label,x,y\na,red,1,0.5\nb,blue,2,1\nc,,3,2\n"
    graph = load(folder(nodes_csv=nodes, edges_csv=EDGES))
    assert graph.x.tolist() == [[1, 0.5], [2, 1], [3, 2]]
    assert not any("left aside" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("options", "content"),
    [({"text": "abstract"}, "nodes"), ({"label": "club"}, "nodes or labels"), ({"id": "key"}, "nodes or labels")],
)
def test_a_column_of_a_file_that_is_not_there_is_refused(folder, options, content):
    (option, column) = next(iter(options.items()))
    message = f"{option}='{column}' names a column, but there is no file of {content} to read it from"
    with pytest.raises(ValueError, match=message):
        load(folder(edges_csv=EDGES), **options)
    with pytest.raises(ValueError, match=message):
        load(folder() / "edges.csv", **options)
    (folder() / "edges.csv").unlink()
    with pytest.raises(ValueError, match="source='from' names a column, but there is no file of edges"):
        load(folder(nodes_csv=NODES), source="from")


def test_nodes_that_print_the_same_are_noted():
    graph = Graph.from_edges([(1, "2"), ("1", 2)])
    assert graph.num_nodes == 4
    assert graph.notes[1] == "warning: 1 (a number) and '1' (text) are two nodes; are ids of both kinds meant?"
    named = Graph.from_edges([("a", "b")], node_names=["a", "b", 3])
    assert not any("two nodes" in note for note in named.notes)
    with pytest.raises(ValueError, match=r"has no node 1; 1 is a number, '1' is text: ids are of one kind everywhere"):
        Graph.from_edges([("1", "2")]).index_of(1)


def test_labels_in_a_file_of_their_own(folder):
    path = folder(nodes_csv="id,age\na,1\nb,2\nc,3\n", edges_csv=EDGES, labels_csv="node,class\nc,red\na,\n")
    assert load(path).y.tolist() == [-1, -1, 0]
    folder(labels_csv="node,class\nz,red\n")
    with pytest.raises(ValueError, match=r"labels\.csv, row 2, column 'node' is 'z', which nodes\.csv does not list"):
        load(path)


@pytest.mark.parametrize("header", ["vid,age", "id,age"])
def test_columns_of_a_labels_file_by_other_names(folder, header):
    path = folder(nodes_csv=f"{header}\na,1\nb,2\nc,3\n", edges_csv=EDGES, labels_csv="vid,grp\nc,red\na,\n")
    graph = load(path, id="vid", label="grp")
    assert (graph.y.tolist(), graph.x.tolist()) == ([-1, -1, 0], [[1], [2], [3]])
    with pytest.raises(ValueError, match=r"labels\.csv has no column 'group'; it has 'vid', 'grp'"):
        load(path, id="vid", label="group")
    folder(labels_csv="vid,grp\nz,red\n")
    with pytest.raises(ValueError, match=r"labels\.csv, row 2, column 'vid' is 'z', which nodes\.csv does not list"):
        load(path, id="vid", label="grp")


def test_a_label_stated_of_the_labels_file_leaves_that_of_the_nodes_aside(folder):
    path = folder(nodes_csv="id,y,age\na,7,1\nb,8,2\nc,9,3\n", edges_csv=EDGES, labels_csv="id,grp\nc,red\n")
    graph = load(path, label="grp")
    assert (graph.y.tolist(), graph.x.tolist()) == ([-1, -1, 0], [[1], [2], [3]])
    folder(nodes_csv="id,grp\na,7\nb,8\nc,9\n")
    with pytest.raises(ValueError, match=r"labels come twice: nodes\.csv has a column 'grp', and labels\.csv"):
        load(path, label="grp")


def test_edges_only(folder):
    path = folder(edges_csv="source,target,weight\nb,a,2\na,c,3\n")
    graph = load(path)
    assert graph.node_names == ("b", "a", "c")
    assert graph.adjacency.to_dense().tolist() == [[0, 2, 0], [2, 0, 3], [0, 3, 0]]
    assert graph.x_kind == "identity"
    assert "no features: the identity matrix stands in" in graph.notes
    assert load(path, features="degree").x_kind == "degree"
    assert load(path / "edges.csv").content_hash() == graph.content_hash()
    with pytest.raises(ValueError, match="there is no file of nodes to read features 'age' from"):
        load(path, features="age")


@pytest.mark.parametrize("files", [{}, {"nodes_csv": NODES}], ids=["edges only", "with nodes"])
def test_a_first_row_that_may_be_an_edge_is_refused(folder, files):
    path = folder(edges_csv="a,b\nb,c\nc,a\n", **files)
    with pytest.raises(ValueError, match=r"first row of edges\.csv is 'a', 'b', and 'a' is also a node: that row may be an"):
        load(path)
    assert load(path, source="a", target="b").num_edges == 2
    for file in path.glob("nodes.csv"):
        file.unlink()
    assert load(path, header=False).num_edges == 3
    assert load(folder(edges_csv="a,b\n1,2\n")).num_edges == 1


def test_edges_only_with_labels(folder):
    graph = load(folder(edges_csv=EDGES, labels_csv="id,label\nb,red\nd,blue\n"))
    assert graph.node_names == ("a", "b", "c", "d")
    assert graph.y.tolist() == [-1, 1, -1, 0]


def test_nodes_without_edges(tmp_path):
    (tmp_path / "n.csv").write_text(NODES)
    graph = read_csv(tmp_path / "n.csv", None)
    assert (graph.num_nodes, graph.num_edges) == (3, 0)
    with pytest.raises(ValueError, match="there is nothing to read"):
        read_csv(None, None)


def test_columns_by_other_names(folder):
    nodes = "pid,topic,n1,n2,remark\na,x,1,2,hello\nb,y,3,4,bye\n"
    path = folder(nodes_csv=nodes, edges_csv="citing_paper,cited_paper,times\na,b,7\n")
    names = {"id": "pid", "label": "topic", "source": "citing_paper", "target": "cited_paper", "weight": "times"}
    graph = load(path, features=["n2"], **names)
    assert graph.x.tolist() == [[2], [4]]
    assert graph.adjacency.to_dense().tolist() == [[0, 7], [7, 0]]
    assert load(path, **names).x.tolist() == [[1, 2], [3, 4]]  # all remarks differ: see test_encoders
    with pytest.raises(ValueError, match=r"nodes\.csv has no column 'n9'; it has 'pid', 'topic', 'n1', 'n2', 'remark'"):
        load(path, features=["n9"], **names)
    with pytest.raises(ValueError, match=r"nodes\.csv has no column 'kind'"):
        load(path, **{**names, "label": "kind"})


def test_columns_with_usual_names_can_be_left_aside(folder):
    path = folder(nodes_csv="id,class,age\na,1,5\nb,2,6\n", edges_csv="source,target,weight\na,b,7\n")
    graph = load(path, label="", weight="")
    assert (graph.num_classes, graph.x.tolist()) == (0, [[5], [6]])  # a label that is not read is no feature either
    assert "column 'class' is left aside: neither label nor feature; option features=… reads it as one" in graph.notes
    assert graph.adjacency.values.tolist() == [1, 1]
    asked = load(path, label="", features=["class", "age"])
    assert (asked.num_classes, asked.x.tolist()) == (0, [[1, 5], [2, 6]])
    assert not any("left aside" in note for note in asked.notes)
    assert load(folder(nodes_csv=NODES, edges_csv=EDGES), label="").x.tolist() == [[1], [2], [3]]  # labels of text
    assert load(folder(nodes_csv="id,y\na,1\nb,2\nc,3\n"), label="").x_kind == "identity"


def test_a_column_called_club_is_a_feature_like_any_other(folder):
    """The example of the README has a label column of this name, which nobody else's tables need to mean."""
    graph = load(folder(nodes_csv="id,club\na,chess\nb,chess\nc,judo\nd,judo\n", edges_csv=EDGES))
    assert (graph.num_classes, [column.kind for column in graph.columns.summaries()]) == (0, ["category"])
    assert load(folder(), label="club").class_names == ("chess", "judo")


@pytest.mark.parametrize("option", ["id", "source", "target", "features", "text"])
def test_an_empty_name_of_a_column_is_refused(folder, option):
    path = folder(nodes_csv=NODES, edges_csv=EDGES)
    file = "edges" if option in ("source", "target") else "nodes"
    with pytest.raises(ValueError, match=rf"{option} is '', which names no column of {file}\.csv"):
        load(path, **{option: ""})
    with pytest.raises(ValueError, match=r"features is '', which names no column of nodes\.csv"):
        load(path, features=["age", ""])


def test_files_without_a_header(folder):
    path = folder(nodes_csv="a,red,1\nb,blue,2\n", edges_csv="a,b,5\n")
    graph = load(path, header=False)
    assert (graph.node_names, graph.class_names, graph.x.tolist()) == (("a", "b"), ("blue", "red"), [[1], [2]])
    assert graph.adjacency.values.tolist() == [5, 5]
    folder(nodes_csv="a,red,1\nb,blue,1e39\n")
    with pytest.raises(ValueError, match="row 2, column '2' is '1e39'"):
        load(path, header=False)


def test_one_of_two_files_has_a_header(folder):
    path = folder(nodes_csv=NODES, edges_csv="a,b\nb,c\n")
    graph = load(path, header=False)
    assert graph.content_hash() == load(folder(edges_csv=EDGES)).content_hash()
    assert "the first row of nodes.csv names its columns, and is read as a header all the same" in graph.notes


def test_without_a_header_words_that_are_nodes_stay_data(folder):
    path = folder(edges_csv="from,to\nto,at\nat,to\n")
    assert load(path, header=False).node_names == ("from", "to", "at")


@pytest.mark.long
def test_a_text_column_becomes_tfidf(folder):
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = ["graphs and labels", "labels, labels", ""]
    nodes = "id,label,abstract\n" + "".join(f'{i},,"{text}"\n' for i, text in zip("abc", texts, strict=True))
    path = folder(nodes_csv=nodes, edges_csv=EDGES)
    graph = load(path, text="abstract")
    expected = TfidfVectorizer().fit_transform(texts).toarray()
    np.testing.assert_allclose(graph.x.to_dense().numpy(), expected, rtol=1e-6)
    assert isinstance(graph.x, SparseMatrix)
    folder(nodes_csv="id,abstract\na,?\nb,!\nc,\n")
    with pytest.raises(ValueError, match="column 'abstract' has no words to make features of"):
        load(path, text="abstract")


@pytest.mark.parametrize("features", ["identity", "degree"])
def test_feature_columns_can_be_left_aside(folder, features):
    assert load(folder(nodes_csv=NODES, edges_csv=EDGES), features=features).x_kind == features


def test_parquet_says_the_same_as_csv(tmp_path, folder):
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"id": ["a", "b", "c"], "label": ["red", "blue", None], "age": [1, 2, 3]}).to_parquet(
        tmp_path / "nodes.parquet"
    )
    pandas.DataFrame({"source": ["a", "b"], "target": ["b", "c"]}).to_parquet(tmp_path / "edges.parquet")
    parquet = load(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    assert parquet.content_hash() == load(folder(nodes_csv=NODES, edges_csv=EDGES)).content_hash()


def hostile_tables():
    """Parquet tables that take a few kilobytes, and gigabytes unpacked."""
    pyarrow = pytest.importorskip("pyarrow")
    zeros = pyarrow.array(np.zeros(3000, dtype=np.int32))
    long = pyarrow.DictionaryArray.from_arrays(zeros, pyarrow.array(["x" * 1_000_000]))
    many = pyarrow.array(np.zeros(5_000_000, dtype=np.int32))
    listed = pyarrow.ListArray.from_arrays([0, len(many)], many)
    texts = pyarrow.ListArray.from_arrays([0, 3000], long)
    yield "many rows", {"id": many}, "it says that it holds 5,000,000 cells, in"
    yield "a long list", {"id": [1], "x": listed}, "it says that it holds 5,000,001 cells, in"
    yield "a text 3,000 times", {"id": range(3000), "x": long}, "it would unpack to 3,000,"
    yield "a list of a text", {"id": [1], "x": texts}, "it would unpack to 3,000,"
    yield "columns", {f"c{k}": [1] for k in range(20_001)}, "it has 20,001 columns; at most 20,000 are read"


@pytest.mark.long
def test_a_parquet_file_that_would_unpack_to_gigabytes_is_refused_at_once(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, columns, message in hostile_tables():
        path = tmp_path / "nodes.parquet"
        parquet.write_table(pyarrow.table({k: pyarrow.array(v) for k, v in columns.items()}), path)
        assert path.stat().st_size < 10_000_000
        start = time.process_time()
        with pytest.raises(ValueError, match=re.escape(message)):
            load(tmp_path)
        assert time.process_time() - start < 3, name


def test_parquet_columns_of_lists_maps_and_bytes_do_not_keep_the_others_from_being_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    maps = pyarrow.array([[("k", "v")]] * 2, pyarrow.map_(pyarrow.string(), pyarrow.string()))
    columns = {"id": ["a", "b"], "age": [1, 2], "l": [["x"], None], "s": [{"a": "x"}] * 2, "b": [b"1", None], "m": maps}
    parquet.write_table(pyarrow.table(columns), tmp_path / "nodes.parquet")
    assert "age" in load(tmp_path).columns.single_columns


def test_parquet_columns_of_categories_and_an_index_with_a_name_are_columns(tmp_path):
    """What pandas keeps beside the cells, types and an index, does not hide them."""
    pytest.importorskip("pyarrow")
    numbers = pandas.Series([3, 5, 3, 5], dtype="category")
    frame = pandas.DataFrame({"id": list("abcd"), "size": numbers, "hue": pandas.Series(list("xyxy"), dtype="category")})
    frame.set_index("id").to_parquet(tmp_path / "nodes.parquet")
    graph = load(tmp_path)
    assert graph.node_names == ("a", "b", "c", "d")
    assert [(one.name, one.kind) for one in graph.columns.summaries()] == [("size", "number"), ("hue", "category")]
    frame.set_index("size").reset_index(drop=True).iloc[::-1].to_parquet(tmp_path / "nodes.parquet")
    assert [one.name for one in load(tmp_path).columns.summaries()] == ["hue"]


def test_parquet_keeps_numbers_as_ids(tmp_path):
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"id": [10, 20], "label": [1, None], "age": [0.5, 2.5]}).to_parquet(tmp_path / "nodes.parquet")
    pandas.DataFrame({"source": [20.0], "target": [10], "weight": [3.0]}).to_parquet(tmp_path / "edges.parquet")
    graph = load(tmp_path)
    assert graph.node_names == (10, 20)
    assert (graph.y.tolist(), graph.class_names) == ([0, -1], ("1",))
    assert graph.adjacency.values.tolist() == [3, 3]
    pandas.DataFrame({"id": [10, 20], "age": [0.5, 1e39]}).to_parquet(tmp_path / "nodes.parquet")
    with pytest.raises(ValueError, match=r"nodes\.parquet, row 2, column 'age' is '1e\+39'"):
        load(tmp_path)
    (tmp_path / "nodes.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ValueError, match="is not a Parquet file that can be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, None, 1.5], "row 3, column 'group' is 1.5; a label is a whole number, text, or true or false"),
        (
            [pandas.Timestamp(2020, 1, 1)] * 3,
            "row 1, column 'group' is Timestamp('2020-01-01 00:00:00'); a label is",
        ),
        ([0, -1, -7], "row 3, column 'group' is -7; a number as label is at least 0, -1 means unknown"),
    ],
)
def test_a_label_in_parquet_that_is_no_class_is_refused_with_its_place(tmp_path, labels, message):
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"id": ["a", "b", "c"], "group": labels}).to_parquet(tmp_path / "nodes.parquet")
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is compared below
        load(tmp_path, label="group")
    assert f"nodes.parquet, {message}" in str(refusal.value)


def test_files_with_ids_of_two_kinds_are_told_apart(tmp_path):
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"id": [1, 2], "label": ["red", "blue"]}).to_parquet(tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    message = (
        r"edges\.csv, row 2, column 'source' is '1', which nodes\.parquet does not list; '1' is text, 1 is a number: "
        "ids are of one kind everywhere"
    )
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("value", [[1, 2], {"part": 1}], ids=["list", "struct"])
@pytest.mark.parametrize("column", ["id", "label", "source", "target"])
def test_parquet_cells_of_several_values_are_refused(tmp_path, column, value):
    pytest.importorskip("pyarrow")
    tables = {"nodes": {"id": ["a"], "label": ["red"]}, "edges": {"source": ["a"], "target": ["a"]}}
    for name, columns in tables.items():
        changed = {key: [value] if key == column else cells for key, cells in columns.items()}
        pandas.DataFrame(changed).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=rf"s\.parquet, row 1, column '{column}' is .*; an id or label is one value"):
        load(tmp_path)


def test_a_folder_without_tables(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"needs nodes\.csv and edges\.csv, or edges\.csv alone .*; it holds 'notes\.txt'"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"there is no file .*nothing\.csv"):
        read_csv(tmp_path / "nothing.csv", tmp_path / "edges.csv")


def warnings(graph):
    return [note.removeprefix(WARNING) for note in warnings_in(graph.notes)]


def labelled(folder, labels, **files):
    nodes = "id,label\n" + "".join(f"n{i},{label}\n" for i, label in enumerate(labels))
    return folder(nodes_csv=nodes, edges_csv="source,target\nn0,n1\n", **files)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["red", "blue", "?"], ["the label '?' is read as a class; if it means unknown, say option unknown=?"]),
        (
            ["red", "blue", "Unknown"],
            ["the label 'Unknown' is read as a class; if it means unknown, say option unknown=Unknown"],
        ),
        (
            ["red", "Red", "blue"],
            ["the labels 'Red', 'red' differ by upper and lower case, and are read as classes apart"],
        ),
        (
            ["red", "red ", "blue"],
            ["the labels 'red', 'red ' differ by blanks around them, and are read as classes apart"],
        ),
        (
            ["green"] * 10 + ["gren", "blue"],
            ["the label 'gren' may be 'green' misspelt (1 and 10 nodes); they are read as two classes"],
        ),
        (
            ["green"] * 10 + ["rgeen", "blue"],
            ["the label 'rgeen' may be 'green' misspelt (1 and 10 nodes); they are read as two classes"],
        ),
        (["green"] * 9 + ["gren", "blue"], []),  # not ten times rarer
        (["type1"] * 10 + ["type2"], []),  # digits make different names
        (["male"] * 10 + ["female"], []),
        (["cat"] * 10 + ["car"], []),  # short words are often one letter apart
        (["red", "blue", ""], []),
    ],
)
def test_labels_that_may_be_mistaken_are_warned_of(folder, labels, said):
    assert warnings(load(labelled(folder, labels))) == said


def test_an_unknown_label_is_none_once_it_is_named(folder):
    path = labelled(folder, ["red", "blue", "?"])
    graph = load(path, unknown="?")
    assert (graph.class_names, warnings(graph)) == (("blue", "red"), [])


@pytest.mark.parametrize(
    ("extra", "is_telling"),
    [
        (lambda i, c: f"code-{c}", True),
        (lambda i, c: f"code-{c}{i % 2}", True),  # several values for a class
        (lambda i, c: c * 7, True),  # numbers too
        (lambda i, c: "x" if c else "", True),  # filled for one class alone
        (lambda i, c: f"code-{i % 3}", False),
        (lambda i, c: f"code-{c if i else 1 - c}", False),  # one node differs
        (lambda i, c: i, False),  # all different
    ],
)
def test_a_column_that_tells_the_label_is_said(folder, extra, is_telling):
    rows = [(f"n{i}", i % 2 if i < 20 else "", 20 + i % 5, extra(i, i % 2)) for i in range(30)]
    nodes = "id,label,age,code\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
    graph = load(folder(nodes_csv=nodes, edges_csv="source,target\nn0,n1\n"))
    said = [note for note in warnings(graph) if "alone tells the class of every labelled node" in note]
    assert len(said) == is_telling
    if is_telling:
        assert said[0].startswith("column 'code' alone tells") and "features=age leaves it out" in said[0]
        assert load(folder(nodes_csv=nodes), features="age").columns.summaries()[0].name == "age"


def test_few_labels_call_no_column_telling(folder):
    nodes = "id,label,code\n" + "".join(f"n{i},{i % 2 if i < 8 else ''},c{i % 2}\n" for i in range(30))
    assert warnings(load(folder(nodes_csv=nodes, edges_csv="source,target\nn0,n1\n"))) == []


def test_a_graph_without_edges_is_said(folder):
    path = folder(nodes_csv=NODES, edges_csv="source,target\n")
    assert warnings(load(path)) == ["there are no edges: every node is labelled by its features alone; edges come from edges.csv"]


@pytest.mark.parametrize("role", ["nodes", "edges"])
def test_a_spreadsheet_is_refused_with_what_to_do(tmp_path, role):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    (tmp_path / f"{role}.csv").rename(tmp_path / f"{role}.xlsx")
    with pytest.raises(ValueError, match=rf"holds {role}\.xlsx, which is not read: save it as {role}\.csv"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["nodes.csv", "labels.tsv", "features.npy"])
def test_what_has_the_name_of_a_file_and_is_none_is_refused(folder, name):
    path = folder(nodes_csv=NODES, edges_csv=EDGES) / name
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")
    with pytest.raises(ValueError, match=rf"{name} is a link to a file that is not there; mend it, or take it away"):
        load(path.parent)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=rf"{name} is not a file; mend it, or take it away"):
        load(path.parent)


def test_columns_of_edges_can_be_chosen_and_one_of_them_be_the_weight(folder):
    path = folder(nodes_csv=NODES, edges_csv="source,target,since,times\na,b,2020,3\nb,c,2021,4\n")
    assert load(path).edge_columns.functions.names == ("since", "times")
    assert load(path, edge_features="times").edge_columns.functions.names == ("times",)
    assert load(path, edge_features="").edge_columns is None
    assert load(path, weight="times").adjacency.values.tolist() == [3, 3, 4, 4]
    with pytest.raises(ValueError, match=r"edges\.csv has no column 'tims'; it has 'source', .*did you mean times"):
        load(path, edge_features="tims")


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("labels", "kind", "seen_by"),
    [
        (100, "a table", "every model"),
        (30, "a table", "trees"),
        (100, "words", "every model"),
        (30, "words", None),
        (100, None, "trees, LR"),
        (10, None, None),
    ],
)
def test_the_structural_features_are_those_that_the_default_adds(labels, kind, seen_by, directed):
    """As many as the prepared graph has more of, or, where trees alone see them, as trees take."""
    rng = np.random.default_rng(0)
    width = {"a table": 3, "words": 300, None: 0}[kind]
    x = rng.normal(size=(120, width)).astype(np.float32) if width else None
    y = np.where(np.arange(120) < labels, np.arange(120) % 2, -1)
    graph = Graph.from_edges(rng.integers(0, 120, (300, 2)), num_nodes=120, x=x, y=y, directed=directed)
    note = structural_note(graph)
    recipe = choose_recipe(graph, graph.labeled, by_folds=False)
    if seen_by is None:
        assert note is None
    elif seen_by == "every model":
        number = recipe.prepare(graph).num_features - width
        assert note == f"degrees, PageRank, filled cells, neighbours' too -> {number} features"
    else:
        number = METHODS["trees"].build(members_of(recipe)["trees"], recipe.prepare(graph), 0).num_own - width
        assert note == f"degrees, PageRank, neighbours' too -> {number} features, for {seen_by}"
    assert len(f"    graph      {note}") <= 80


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            6 * [*range(18, 84)],
            "warning: the labels are 66 different numbers, '18', '19', '20', … 66 in all: each is read as a class",
        ),
        (6 * [*range(0, 132, 2)], "warning: the labels are 66 different numbers"),
        (
            range(40),
            "the labels are 40 different numbers, '0', '1', '2', … 40 in all: each is read as a class, without an order",
        ),
        (["0.5", "1.25", "2"], "warning: the labels are 3 different numbers"),
        (
            ["2024-01-03", "2024-02-01"],
            "warning: the labels are dates, '2024-01-03', '2024-02-01': each is read as a class",
        ),
        (
            ["sports|music", "music", "sports|news"],
            "warning: labels such as 'sports|music' seem to name several classes",
        ),
        (range(10), None),
        (["a, b and c", "d", "e; f"], None),
        (["yes", "no", "maybe"], None),
        (["low", "Medium", "very_high"], "the classes 'Medium', 'low', 'very_high' seem ordered, which is not used"),
        (["0-10", "10-20", "> 20"], "the classes '0-10', '10-20', '> 20' seem ordered"),
        ([f"{k}.5 kg" for k in range(30)], "warning: 30 of 30 labels differ, '0.5 kg', '1.5 kg', '10.5 kg', … 30 in all: classes"),
    ],
)
def test_labels_that_may_be_meant_otherwise_than_as_classes_are_named(labels, said):
    labels = [str(label) for label in labels]
    nodes = pandas.DataFrame({"id": range(len(labels)), "label": labels})
    graph = read_csv(nodes, pandas.DataFrame({"source": [0], "target": [1]}), label="label")
    words = "different numbers", "dates", "several", "ordered", "labels differ"
    found = [note for note in graph.notes if any(word in note for word in words)]
    assert [note[: len(said)] for note in found] == [said] if said else found == []


def labelled_by(cells, **options):
    """The graph of nodes with these labels."""
    nodes = pandas.DataFrame({"id": range(len(cells)), "label": cells})
    return read_csv(nodes, pandas.DataFrame({"source": [0], "target": [1]}), label="label", **options)


NUMBERS = np.arange(30) * 137.5 + 1000.25


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{:,.2f}", None),
        ("€ {:.2f}", "column 'label' is read as numbers of €"),
        ("{:.2f}%", "column 'label' is read as numbers of %"),
        ("{:.2f} €", "column 'label' is read as numbers of € with a decimal comma"),
        ("{:.2f}", "column 'label' is read as numbers with a decimal comma"),
    ],
)
def test_labels_are_numbers_in_the_style_they_are_written_in(written, said):
    cells = [written.format(number) for number in NUMBERS]
    if said is not None and "comma" in said:
        cells = [cell.replace(".", ",") for cell in cells]
    graph = labelled_by([*cells, "", "n/a"])
    assert graph.target.words(graph.y)[:30].tolist() == NUMBERS.round(2).tolist() and int(graph.labeled.sum()) == 30
    notes = [note for note in graph.notes if note.startswith("column 'label'")]
    assert notes == ["column 'label': labels that are 'n/a' are read as unknown", *([said] if said else [])]


@pytest.mark.parametrize("options", [{}, {"task": "regression"}])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (["inf"], "row 31, column 'label' is 'inf'; a label of task 'regression' is a finite number, such as 2.5, or nothing"),
        (["see note"], "is 'see note'; .* or nothing; option unknown=see note leaves 1 such out"),
        (["ask", "none of them"], "is 'ask'; a label of task 'regression' is a finite number, such as 2.5, or nothing(; task|$)"),
        (["2024-01-31"], "is '2024-01-31'; a date is no number: write years, or days since one"),
    ],
)
def test_a_label_among_numbers_that_is_none_is_an_error_that_says_what_helps(odd, said, options):
    cells = [*map(str, NUMBERS), *odd]
    with pytest.raises(ValueError, match=said) as error:
        labelled_by(cells, **options)
    assert str(error.value).endswith("; task=classification reads classes") == (not options)
    assert int(labelled_by(cells, unknown=odd, **options).labeled.sum()) == 30
    assert labelled_by(cells, task="classification").num_classes == len(cells)


def test_numbers_that_may_be_ids_are_read_and_doubted():
    (note,) = [note for note in labelled_by([str(k) for k in range(1000, 1030)]).notes if "numbers to predict" in note]
    assert "read as numbers to predict, though each occurs once, as ids do; option" in note


def test_several_label_columns_are_several_runs(tmp_path):
    nodes = pandas.DataFrame({"id": [0, 1], "a": ["x", "y"], "b": ["y", "x"]})
    with pytest.raises(ValueError, match=r"no column 'a,b'; .*; a run has one label column: train once for each"):
        read_csv(nodes, pandas.DataFrame({"source": [0], "target": [1]}), label="a,b")
    with pytest.raises(ValueError, match=r"y is \[2, 3\]; of several labels a node, each column is a run of its own"):
        Graph.from_edges([(0, 1)], num_nodes=2, y=np.eye(2, 3, dtype=int))


# columns that no usual name tells


PEOPLE = pandas.DataFrame({"holder": ["a1", "a2", "a3"], "label": ["x", "y", ""], "age": ["30", "40", "50"]})
MONEY = pandas.DataFrame({"on": ["mon", "tue"], "sender": ["a1", "a2"], "receiver": ["a3", "a1"]})


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ({}, {}),
        ({"holder": "id"}, {}),
        ({}, {"sender": "source", "receiver": "target"}),
        ({"holder": "account_id"}, {"sender": "citing_doi", "receiver": "cited_doi"}),
    ],
)
def test_ids_and_ends_are_found_by_their_values_where_names_do_not_say(nodes, edges):
    graph = read_csv(PEOPLE.rename(columns=nodes), MONEY.rename(columns=edges), directed=True)
    assert list(graph.node_names) == ["a1", "a2", "a3"]
    assert sorted(zip(graph.col.tolist(), graph.row.tolist(), strict=True)) == [(0, 2), (1, 0)]
    (note,) = [note for note in graph.notes if "read as source and target" in note]
    assert repr(next(iter(edges.values()), "sender")) in note


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (PEOPLE.assign(card=PEOPLE["holder"]), MONEY),  # two columns of nodes could be ids
        (PEOPLE, MONEY.assign(paid_by=MONEY["sender"])),  # three columns of edges could be ends
        (PEOPLE, MONEY.assign(receiver=["b1", "b2"])),  # one is not of these nodes
        (PEOPLE.assign(holder=["a1", "a1", "a3"]), MONEY),  # ids that repeat
    ],
)
def test_what_values_do_not_tell_is_asked_for_all_at_once(nodes, edges):
    with pytest.raises(ValueError, match=r"no column for the id.*; also: .*for the source.*; also: .*for the target"):
        read_csv(nodes, edges)


def test_rows_of_nodes_that_are_not_listed_are_refused_together_or_left_out():
    nodes = pandas.DataFrame({"id": ["a", "b", "c"], "age": ["1", "2", "3"]})
    edges = pandas.DataFrame(
        {
            "source": ["a", "b", "q", "r"],
            "target": ["b", "c", "a", "zz"],
            "weight": ["1", "2", "3", "4"],
            "kind": list("uvuv"),
        }
    )
    labels = pandas.DataFrame({"id": ["a", "c", "gone"], "label": ["x", "y", "x"]})
    with pytest.raises(
        ValueError, match=r"column 'source' is 'q'.*1 more.*; also: .*'target' is 'zz'.*; also: .*'gone'.*unlisted=drop"
    ):
        read_csv(nodes, edges, labels=labels)
    graph = read_csv(nodes, edges, labels=labels, relation="kind", unlisted="drop")
    kept = read_csv(nodes, edges[:2], labels=labels[:2], relation="kind")
    assert graph.content_hash() == kept.content_hash()
    assert graph.to_scipy().toarray().tolist() == [[0, 1, 0], [1, 0, 2], [0, 2, 0]]
    assert any("2 edges are left out" in note for note in warnings_in(graph.notes))
    with pytest.raises(ValueError, match=r"unlisted = 'skip'; it is one of refuse, drop"):
        read_csv(nodes, edges, unlisted="skip")


def test_a_column_that_could_be_the_label_is_asked_for():
    n = 40
    table = {
        "id": np.arange(n),
        "segment": np.where(np.arange(n) % 3, ["red", "blue"] * (n // 2), ""),
        "age": np.arange(n) * 1.5,
    }
    nodes, edges = pandas.DataFrame(table), pandas.DataFrame({"source": np.arange(n - 1), "target": np.arange(1, n)})
    graph = read_csv(nodes, edges)
    (warning,) = warnings_in(graph.notes)
    assert "no column is read as the label, and 'segment'" in warning
    with pytest.raises(ValueError, match=r"no labelled node to train on; no column is read as the label.*label=segment says"):
        require_classes(graph)
    assert warnings_in(read_csv(nodes, edges, label="").notes) == ()
    assert warnings_in(read_csv(nodes, edges, label="segment").notes) == ()
    beside = read_csv(nodes, edges, labels=nodes[["id", "segment"]].rename(columns={"segment": "label"}))
    assert not any("no column is read as the label" in note for note in beside.notes)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_file_of_edges_is_read_piece_by_piece(tmp_path, monkeypatch, suffix, listed):
    """The same graph, the same row of what is wrong, whatever is read at once."""
    chance = np.random.default_rng(0)
    ends = pandas.DataFrame(chance.integers(0, 40, (300, 2)).astype(str), columns=["source", "target"])
    edges = ends.assign(kind=chance.choice(["a", "b"], 300), weight=1.5 + chance.integers(0, 3, 300))
    write = "to_parquet" if suffix == "parquet" else "to_csv"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    getattr(edges, write)(tmp_path / f"edges.{suffix}", index=False)
    if listed:
        pandas.DataFrame({"id": list(map(str, range(39))), "label": "x", "age": range(39)}).to_csv(
            tmp_path / "nodes.csv", index=False
        )
    options = {"relation": "kind", "unlisted": "drop", "edge_features": "weight"}
    graphs, problems = [], []
    for at_once in (2**24, 100):
        for module in ("table", "array_files", "constructors"):
            monkeypatch.setattr(f"gcn_lpa.data.{module}.AT_ONCE", at_once)
        graphs.append(load(tmp_path, **options))
        if listed:
            with pytest.raises(ValueError, match=r"which nodes\.csv does not list") as caught:
                load(tmp_path)
            problems.append(str(caught.value))
    one, pieces = graphs
    assert pieces.content_hash() == one.content_hash() and pieces.notes == one.notes
    assert pieces.num_nodes == (39 if listed else 40)
    if listed:
        rows = {side: int((ends[side] == "39").to_numpy().argmax()) + (2 if suffix == "csv" else 1) for side in ends}
        assert problems[0] == problems[1]
        assert all(f"row {row}, column {side!r} is '39'" in problems[0] for side, row in rows.items())
