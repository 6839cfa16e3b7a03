"""Every door to a graph: the same people through each are the same graph, and a file is opened and parsed once."""

import sys
from pathlib import Path

import pandas
import pytest

from gcn_lpa.data.datasets import load


@pytest.mark.long
@pytest.mark.parametrize("directed", [False, True])
def test_one_graph_is_the_same_through_every_door(door, directed):
    graph = door(directed)
    arcs = [[0, 2, 0, 0], [0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0, 1.5, 3]]  # [target, source]
    joined = [[0, 2, 0.5, 0], [2, 0, 0, 0], [0.5, 0, 0, 1.5], [0, 0, 1.5, 3]]
    assert graph.adjacency.to_dense().tolist() == (arcs if directed else joined)
    assert tuple(graph.node_names) == ("ann", "bob", "cid", "dan")
    assert (graph.y.tolist(), graph.class_names) == ([1, -1, 0, -1], ("blue", "red"))
    assert graph.x.tolist() == [[30.5, 1], [41, -2], [18.25, 0], [60, 7.5]]
    assert (graph.directed, graph.x_kind, graph.num_edges, graph.num_self_loops) == (directed, "given", 3, 1)


opened = None  # names of files that are opened, while a test listens; a hook stays for ever


def listen(event, arguments):
    if opened is not None and event == "open" and isinstance(arguments[0], (str, bytes, Path)):
        opened.append(Path(str(arguments[0])).name)


sys.addaudithook(listen)


@pytest.fixture
def opens(monkeypatch):
    """The names of the files that are opened from now on."""
    monkeypatch.setattr(sys.modules[__name__], "opened", [])
    return lambda name: opened.count(name)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_each_file_of_a_folder_is_opened_once(tmp_path, opens, suffix):
    nodes = pandas.DataFrame({"id": ["a", "b", "c"], "age": [1, 2, 3], "words": ["one two", "two three", "three four"]})
    labels = pandas.DataFrame({"id": ["a", "b"], "label": ["red", "blue"]})
    edges = pandas.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})
    for name, frame in {"nodes": nodes, "edges": edges, "labels": labels}.items():
        if suffix == "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(tmp_path / f"{name}.parquet")
        else:
            frame.to_csv(tmp_path / f"{name}.{suffix}", index=False, sep="\t" if suffix == "tsv" else ",")
    before = {name: opens(f"{name}.{suffix}") for name in ("nodes", "edges", "labels")}
    assert load(tmp_path).class_names == ("blue", "red")
    assert {name: opens(f"{name}.{suffix}") - before[name] for name in before} == dict.fromkeys(before, 1)


def test_each_csv_file_is_parsed_once(tmp_path, monkeypatch):
    (tmp_path / "nodes.csv").write_text("id,label,age\na,red,1\nb,blue,2\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    parse, parsed = pandas.read_csv, []
    monkeypatch.setattr(pandas, "read_csv", lambda file, **options: parsed.append(file) or parse(file, **options))
    assert load(tmp_path).num_nodes == 2
    assert len(parsed) == 2
