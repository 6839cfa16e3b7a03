"""Notebooks: the three of examples/ run from their first cell to their last, and what they show is HTML that nobody can break."""

import ast
import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

from gcn_lpa import (
    GCNLPAClassifier,
    Graph,
    as_graph,
    audit_edges,
    audit_labels,
    explain,
    learn,
    predictions,
    read_csv,
)
from gcn_lpa.recipes import WITHOUT_FEATURES

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = WITHOUT_FEATURES.replace(epochs=10)
HOSTILE = "<script>alert('1')</script>"


def run_notebook(path):
    """Run the code cells one after the other, as a kernel would in the folder of the notebook; what each of them shows."""
    names, shown = {"__name__": "__main__"}, []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), names)
            shown.append(None if last is None else eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    return names, shown


@pytest.fixture
def run_example(monkeypatch):
    def run(name):
        monkeypatch.chdir(EXAMPLES)
        return run_notebook(EXAMPLES / name)

    return run


@pytest.mark.long
def test_the_notebook_about_own_tables(run_example):
    names, shown = run_example("own_tables.ipynb")
    assert "34" in shown[1]._repr_html_()
    table = names["table"].set_index("id")
    assert table.loc["member-11", "label"] == "Mr. Hi"  # a friend of three who said so; as NetworkX has it
    assert len(shown[-1]) > 0
    assert names["classifier"].predict(["member-33"]).tolist() == ["Officer"]


@pytest.mark.long
def test_the_notebook_about_explaining_and_auditing(run_example):
    names, shown = run_example("explain_audit_repair.ipynb")
    assert "strongest path" in shown[2]._repr_html_()
    assert names["found"] >= 10  # of 15 planted errors; by chance it would be one
    assert names["right"] >= 10
    assert len(names["doubted"]) <= 20


@pytest.mark.long
def test_the_notebook_about_pyg_models(run_example):
    pytest.importorskip("torch_geometric")
    _, shown = run_example("regularise_pyg_model.ipynb")
    assert shown[-1]["test accuracy"] > 0.9  # LPA alone reaches 0.95 with six times the labels
    assert shown[-1]["mean weight inside a class"] > shown[-1]["mean weight between classes"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_kept_without_output(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


class Tags(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.seen, self.open = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.long
def test_what_a_notebook_shows_is_a_table_of_escaped_text():
    edges = [(f"{k}{HOSTILE}", f"{(k + 1) % 12}{HOSTILE}") for k in range(12)]
    y = {name: [HOSTILE, "b & c"][k % 2] for k, (name, _) in enumerate(edges)}
    graph = Graph.from_edges(edges, y=y, name=HOSTILE)
    graph = dataclasses.replace(graph, notes=(f"note {HOSTILE}",))
    trained = learn(graph, list(range(8)), [8, 9], QUICK)
    options = {"folds": 2, "repeats": 1}
    for shown in (
        graph,
        trained,
        explain(trained, graph, edges[10][0]),
        audit_labels(trained, graph, **options),
        audit_edges(trained, graph, **options),
    ):
        html = shown._repr_html_()
        tags = Tags(html)
        assert not tags.open
        assert tags.seen <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}, type(shown)
        assert "&lt;script&gt;" in html
    assert '<th style="text-align:left">nodes</th><td style="text-align:left">12</td>' in graph._repr_html_()


FRAME = pandas.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "a"], "weight": [1.0, 2.0, 1.0]})
MATRIX = scipy.sparse.csr_array([[0, 1, 1], [1, 0, 2], [1, 2, 0]])


def as_networkx():
    g = networkx.Graph(name="club")
    g.add_weighted_edges_from(FRAME.itertuples(index=False, name=None))
    networkx.set_node_attributes(g, {"a": "x", "b": "y"}, "label")
    return g


def as_pyg():
    pyg = pytest.importorskip("torch_geometric.data")
    index = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
    return pyg.Data(edge_index=index, edge_weight=torch.tensor([1.0, 2, 1, 1, 2, 1]), num_nodes=3, y=torch.tensor([0, 1, -1]))


def as_frames():
    return pandas.DataFrame({"id": ["a", "b", "c"], "label": ["x", "y", None], "age": [1.5, np.nan, 3]}), FRAME


@pytest.mark.parametrize("make", [as_networkx, as_pyg, as_frames, lambda: MATRIX, lambda: FRAME])
def test_what_other_libraries_call_a_graph_is_one(make):
    graph = as_graph(make())
    assert graph.to_scipy().toarray().tolist() == MATRIX.toarray().tolist()
    assert as_graph(graph) is graph


def test_frames_have_labels_and_features():
    graph = as_graph(as_frames())
    assert (graph.class_names, graph.y.tolist(), graph.name) == (("x", "y"), [0, 1, -1], "graph")
    assert list(graph.node_names) == ["a", "b", "c"]
    assert graph.num_features == 2  # the age, and whether it is missing
    nodes, edges = as_frames()
    nodes.loc[2, "id"] = "a"
    with pytest.raises(ValueError, match="the frame of nodes, row 3, column 'id' repeats the id 'a' of row 1"):
        read_csv(nodes, edges)
    with pytest.raises(ValueError, match="the frame of edges has two columns of one name"):
        read_csv(nodes, edges.set_axis(["source", "target", "target"], axis=1))
    with pytest.raises(ValueError, match="the frame of edges, row 3, column 'source' is 'c', which the frame of nodes does"):
        read_csv(nodes[:2], edges)


def test_what_is_no_graph_is_refused():
    for other in ("karate", 7, np.eye(3), (FRAME, "x")):
        with pytest.raises(TypeError, match=r"graph is a gcn_lpa\.Graph, a NetworkX graph, .* not <class"):
            as_graph(other)


@pytest.mark.long
def test_the_estimator_takes_what_other_libraries_call_a_graph(karate):
    ids, labels = list(range(0, 34, 2)), karate.y[::2].numpy()
    expected = GCNLPAClassifier(karate, epochs=5).fit(ids, labels).label_distributions_
    for graph in (karate.to_scipy(), karate.to_networkx()):
        found = GCNLPAClassifier(graph, epochs=5).fit(ids, labels)
        np.testing.assert_allclose(found.label_distributions_, expected, rtol=1e-5)
    assert len(predictions(found.trained_, found.graph_)) == 34
