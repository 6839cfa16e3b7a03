"""The data of the study: files that are known, the authors' split, and Table 1."""

import dataclasses

import numpy as np
import pytest
import torch

from gcn_lpa.data.datasets import DATASETS, Dataset, list_datasets, load
from gcn_lpa.data.describe import describe
from gcn_lpa.graph import Graph
from reproduction import tables
from reproduction.claims import TABLE1
from reproduction.data import authors_split, load_known, with_unknown_as
from reproduction.study import Study


@pytest.mark.parametrize("n", [5, 34, 2708, 3327, 18333])
def test_the_split_of_the_authors_is_their_five_lines_of_numpy(n):
    np.random.seed(234)
    size = int(0.2 * n)
    val = np.random.choice(list(range(n)), size=size, replace=False)
    left = set(range(n)) - set(val)
    test = np.random.choice(list(left), size=size, replace=False)
    train = list(left - set(test))
    parts = authors_split(n)
    for mask, nodes in ((parts.val, val), (parts.test, test), (parts.train, train)):
        assert sorted(nodes) == mask.nonzero().ravel().tolist()


def test_unknown_labels_can_count_as_a_class(tiny):
    assert tiny.y.tolist() == [0, 0, 1, 1, -1]
    assert with_unknown_as(tiny, 0, torch.ones(5, dtype=torch.bool)).y.tolist() == [0, 0, 1, 1, 0]
    assert with_unknown_as(tiny, 0, torch.arange(5) < 4).y.tolist() == tiny.y.tolist()


def test_files_that_are_not_the_known_ones_are_refused(tmp_path, monkeypatch):
    """A data set of one file that holds a number of nodes."""
    file = tmp_path / "nodes.txt"
    file.write_text("4")

    def read(folder, name):
        return Graph.from_edges([(0, 1)], num_nodes=int((folder / "nodes.txt").read_text()))

    content = read(tmp_path, "own").content_hash(32)
    monkeypatch.setitem(DATASETS, "own", Dataset("own", read, files=("nodes.txt",), content=content))
    assert load_known("own", tmp_path).num_nodes == 4
    file.write_text("5")
    assert "nodes.txt in" in load("own", tmp_path).notes[-1]
    with pytest.raises(ValueError, match=r"^nodes\.txt in .* has another hash than the known files; the known ones"):
        load_known("own", tmp_path)


@pytest.mark.long
def test_our_counts_are_those_of_table_1(datasets, tmp_path):
    """But for Citeseer's edges and the digits that the paper does not print."""
    names = ("cora", "coauthor-phy")
    exhibit = tables.table1(Study(tmp_path, root=str(datasets), datasets=names, device="cpu"))
    assert [row["dataset"] for row in exhibit.data["rows"]] == list(names)
    for row in exhibit.data["rows"]:
        ours = row["ours"] | {"intra_class_edge_rate": round(row["ours"]["intra_class_edge_rate"], 3)}
        assert ours == row["paper"] == TABLE1[row["dataset"]]._asdict()
    with pytest.raises(FileNotFoundError, match="the files of cora were not found; name their folder with --root"):
        tables.table1(Study(tmp_path, root=str(tmp_path), datasets=names, device="cpu"))


def test_table_1_is_about_data_sets_of_the_library():
    assert {*TABLE1} <= {one.name for one in list_datasets()}
    assert {field.name for field in dataclasses.fields(describe(Graph.from_edges([(0, 1)], y=[0, 1])))} >= {*TABLE1["cora"]._fields}
