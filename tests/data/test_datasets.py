"""Named data sets: the paper's Table 1, files in every place, and graphs made to order."""

import dataclasses
import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data import datasets as data
from gcn_lpa.data.datasets import DATASETS, list_datasets, load
from gcn_lpa.data.describe import describe
from gcn_lpa.data.splits import split

TABLE_1 = {  # nodes, edges, features, classes, intra-class edge rate in percent, as the paper prints them
    "cora": (2708, 5278, 1433, 7, 81.0),
    "citeseer": (3327, 4552, 3703, 6, 73.6),
    "pubmed": (19717, 44324, 500, 3, 80.2),
    "coauthor-cs": (18333, 81894, 6805, 15, 80.8),
    "coauthor-phy": (34493, 247962, 8415, 5, 93.1),
}
OTHERS = {
    "cora-ml": (2995, 8158, 2879, 7, 78.9),
    "actor": (7600, 26659, 932, 5, 21.7),
    "chameleon-filtered": (890, 8854, 2325, 5, 23.6),
    "squirrel-filtered": (2223, 46998, 2089, 5, 20.7),
    "squirrel-directed": (2223, 65578, 2089, 5, 21.6),  # arcs
    "minesweeper": (10000, 39402, 7, 2, 68.3),
    "streamers-engb": (7126, 35324, 3173, 2, 55.6),
    "streamers-es": (4648, 59382, 3173, 2, 58.0),
    "acm": (4019, 2179883, 1902, 3, 64.0),
}
NONZEROS = {"cora": 49216, "citeseer": 105165, "pubmed": 988031, "coauthor-cs": 1092079, "coauthor-phy": 1137311}


@pytest.mark.parametrize("name", [*TABLE_1, *OTHERS])
def test_every_data_set_has_the_counts_it_is_known_by(datasets, name):
    found = describe(load(name, datasets))
    rate = round(100 * found.intra_class_edge_rate, 1)
    assert (found.nodes, found.edges, found.features, found.classes, rate) == (TABLE_1 | OTHERS)[name]


def test_absent_files_have_no_counts(tmp_path):
    found = {one.name: one for one in list_datasets(tmp_path)}
    assert list(found) == list(DATASETS)
    for name in TABLE_1 | OTHERS:
        assert dataclasses.astuple(found[name]) == (name, DATASETS[name].summary, None, None, None, None)
    assert dataclasses.astuple(found["karate"])[2:] == (34, 78, 34, 2)


@pytest.mark.parametrize("name", NONZEROS)
def test_features_stay_sparse_and_raw(datasets, name):
    graph = load(name, datasets)
    assert graph.x.num_entries == NONZEROS[name]
    if name.startswith("coauthor"):  # word counts
        assert graph.x.values.frac().abs().max() == 0
        assert graph.x.values.max() > 50


def test_citeseer_has_15_nodes_without_a_label(datasets):
    graph = load("citeseer", datasets)
    unlabelled = ~graph.labeled
    assert int(unlabelled.sum()) == 15
    assert graph.x.row_sums()[unlabelled].abs().max() == 0
    for kind in ("uniform", "stratified", "official"):
        parts = split(graph, kind=kind)
        assert not (unlabelled & (parts.train | parts.val | parts.test)).any()
    info = describe(graph)
    assert round(100 * info.intra_class_edge_rate, 2) == 73.55
    assert round(100 * info.edge_homophily, 2) == 73.77


@pytest.mark.parametrize(("name", "num_classes"), [("cora", 7), ("citeseer", 6), ("pubmed", 3)])
def test_the_official_split_is_20_per_class_then_500_then_1000(datasets, name, num_classes):
    graph = load(name, datasets)
    parts = split(graph, kind="official")
    assert graph.y[parts.train].bincount().tolist() == [20] * num_classes
    assert parts.val.nonzero().ravel().tolist() == list(range(20 * num_classes, 20 * num_classes + 500))
    index = (datasets / "planetoid" / f"ind.{name}.test.index").read_text().split()
    assert parts.test.nonzero().ravel().tolist() == sorted(map(int, index))


@pytest.mark.parametrize("name", ["cora", "pubmed"])
@pytest.mark.long
def test_planetoid_agrees_with_pyg(datasets, name, tmp_path):
    """PyG's own reader of the same files, run on a copy so that it downloads nothing."""
    planetoid = pytest.importorskip("torch_geometric.io.planetoid")
    theirs = planetoid.read_planetoid_data(str(datasets / "planetoid"), name)
    ours = load(name, datasets)
    assert ours.y.equal(theirs.y)
    assert ours.x.to_dense().equal(theirs.x)
    proper = theirs.edge_index[:, theirs.edge_index[0] != theirs.edge_index[1]]
    assert {*zip(*proper.tolist(), strict=True)} == {
        (i, j) for i, j in zip(ours.row.tolist(), ours.col.tolist(), strict=True) if i != j
    }


def test_cora_names_its_classes(datasets):
    """The sizes of the classes are public and all different, so they identify the names."""
    sizes = describe(load("cora", datasets)).class_sizes
    assert (sizes["Neural_Networks"], sizes["Rule_Learning"], sizes["Case_Based"]) == (818, 180, 298)


MEASURE = """
import json, sys, time
import gcn_lpa.data.datasets
before, start = peak_megabytes(), time.process_time()
gcn_lpa.data.datasets.load(sys.argv[1], **json.loads(sys.argv[2]))
seconds = time.process_time() - start
print(json.dumps([peak_megabytes() - before, seconds]))
"""


@pytest.fixture
def measure(peak_megabytes):
    """Peak megabytes above the import of the package, and CPU seconds, of loading in a process of its own."""

    def run(name, **options):
        command = [sys.executable, "-c", peak_megabytes + MEASURE, name, json.dumps(options)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    return run


@pytest.mark.long
def test_coauthor_phy_loads_in_500_mb(datasets, measure):
    megabytes, _ = measure("coauthor-phy", root=str(datasets))
    assert megabytes < 500


@pytest.mark.long
def test_a_random_graph_of_a_million_nodes_is_made_in_ten_seconds(measure):
    _, seconds = measure("random", n=1_000_000)
    assert seconds < 10


@pytest.mark.slow
def test_a_random_graph_of_ten_million_nodes_is_made_in_a_minute(measure):
    _, seconds = measure("random", n=10_000_000)
    assert seconds < 60


def python2_pickle(content):
    """As Planetoid's authors wrote it: modules have their old names."""
    names = {b"numpy._core.multiarray": b"numpy.core.multiarray", b"scipy.sparse._csr": b"scipy.sparse.csr"}
    raw = pickle.dumps(content, 3)
    for new, old in names.items():
        raw = raw.replace(new, old)
    return raw


def tiny_planetoid(folder):
    """Six nodes in the Planetoid layout: 0 and 1 train, 4 and 3 (in this order) test, 5 is in no file but graph."""
    rows = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 3], [4, 0, 0], [0, 5, 0]], dtype=np.float32)  # nodes 0, 1, 2, 4, 3
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    parts = {"x": rows[:2], "allx": rows[:3], "tx": rows[3:]}
    files = {part: scipy.sparse.csr_matrix(matrix) for part, matrix in parts.items()}
    files |= {"y": labels[:2], "ally": labels[:3], "ty": labels[3:]}
    files["graph"] = {0: [1, 1, 2], 1: [0], 2: [0, 2], 3: [4], 4: [3], 5: []}
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in files.items():
        (folder / f"ind.cora.{part}").write_bytes(python2_pickle(content))
    (folder / "ind.cora.test.index").write_text("4\n3\n")


@pytest.fixture
def known_planetoid(monkeypatch):
    """A function that writes the tiny files, whose hashes then count as the published ones."""

    def write(folder):
        tiny_planetoid(folder)
        hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("ind.*")}
        monkeypatch.setattr("gcn_lpa.data.array_files.PLANETOID_SHA256", hashes)

    return write


@pytest.mark.parametrize("inner", ["planetoid", "."])
def test_a_planetoid_graph_by_hand(tmp_path, known_planetoid, inner):
    known_planetoid(tmp_path / inner)
    graph = load("cora", tmp_path)
    assert graph.x.to_dense().tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 3], [0, 5, 0], [4, 0, 0], [0, 0, 0]]
    assert graph.y.tolist() == [0, 1, 0, 0, 1, -1]
    assert sorted(zip(graph.row.tolist(), graph.col.tolist(), strict=True)) == [
        *[(0, 1), (0, 2), (1, 0), (2, 0), (2, 2), (3, 4), (4, 3)]
    ]
    assert (graph.num_edges, graph.num_self_loops) == (3, 1)
    parts = split(graph, kind="official")
    assert [mask.nonzero().ravel().tolist() for mask in (parts.train, parts.val, parts.test)] == [*[[0, 1], [2, 5], [3, 4]]]


@pytest.mark.parametrize("part", data.array_files.PLANETOID_PARTS)
def test_a_planetoid_file_that_is_not_the_published_one_is_refused_by_name(tmp_path, known_planetoid, part):
    class Touch:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    known_planetoid(tmp_path)
    (tmp_path / f"ind.cora.{part}").write_bytes(pickle.dumps(Touch(), 2))
    message = rf"^cora cannot be read from .*: ind\.cora\.{part} is refused: its sha256 is .*, the published file has "
    with pytest.raises(ValueError, match=message):
        load("cora", tmp_path)
    assert not (tmp_path / "executed").exists()


def test_arrays_that_are_not_the_known_ones_are_read_with_a_warning(tmp_path):
    tiny_npz(tmp_path / "actor.npz")
    note = load("actor", tmp_path).notes[-1]
    assert note.startswith("warning: actor.npz in") and "has another hash than the known files" in note


def test_a_file_that_is_changed_while_the_program_runs_is_hashed_again(tmp_path, known_planetoid):
    known_planetoid(tmp_path)
    assert load("cora", tmp_path).num_nodes == 6
    (tmp_path / "ind.cora.test.index").write_text("3\n4\n")
    with pytest.raises(ValueError, match=r"ind\.cora\.test\.index is refused"):
        load("cora", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cora", "coauthor-cs", "actor"])
def test_no_flipped_bit_of_a_known_file_goes_unnoticed(datasets, tmp_path, name):
    folder = DATASETS[name].find(datasets)
    true, chance = load(name, datasets).content_hash(64), random.Random(0)
    for file in DATASETS[name].files:
        shutil.copy(folder / file, tmp_path)
    for k in range(40):
        path = tmp_path / chance.choice(DATASETS[name].files)
        raw = bytearray(path.read_bytes())
        place = chance.randrange(8 * min(len(raw), 10**9 if k % 2 else 200))  # also in the header
        raw[place // 8] ^= 1 << place % 8
        whole = path.read_bytes()
        path.write_bytes(raw)
        try:
            graph = load(name, tmp_path)
        except ValueError as error:
            assert str(error).startswith(f"{name} cannot be read from {tmp_path}: ")
        else:
            assert graph.content_hash(64) == true or "another hash than the known" in graph.notes[-1]
        path.write_bytes(whole)


def tiny_npz(path, **changes):
    """Three nodes 0-1-2, two features, labels 1, 0, 1."""
    matrices = {
        "adj": scipy.sparse.csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=np.float32)),
        "attr": scipy.sparse.csr_array(np.array([[0, 7], [1, 0], [0, 0]], dtype=np.float32)),
    }
    arrays = {"labels": np.array([1, 0, 1])}
    for name, matrix in matrices.items():
        arrays |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(path, **(arrays | changes))


def test_an_npz_graph_by_hand(tmp_path):
    tiny_npz(tmp_path / "actor.npz")
    graph = load("actor", tmp_path)
    assert graph.adjacency.to_dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert graph.x.to_dense().tolist() == [[0, 7], [1, 0], [0, 0]]
    assert graph.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adj_indices": np.array([1, 0, 9, 1])}, "a matrix of 3 columns with an entry in column 9"),
        ({"adj_indptr": np.array([0, 4, 1, 4])}, "a matrix whose rows overlap"),
        ({"adj_shape": np.array([3, 4])}, "square"),
        ({"attr_shape": np.array([3, 10**12])}, "a matrix of shape"),
        ({"attr_shape": np.array([3])}, "shape"),
        ({"attr_data": np.array([np.nan, 1])}, "x has nan in row 0, column 1"),
        ({"adj_data": np.array([1, 1, -1, 1])}, "entry [1, 2] has weight -1"),
        ({"labels": np.array([0, 1])}, "labels are one per node, [3]; y is [2]"),
        ({"labels": np.array(["a", "b", "c"])}, "labels.npy holds <U1, not numbers"),
    ],
)
def test_npz_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
    tiny_npz(tmp_path / "actor.npz", **changes)
    with pytest.raises(ValueError, match="actor cannot be read from") as refusal:
        load("actor", tmp_path)
    assert message in str(refusal.value)


def tiny_streamers(path, **changes):
    """Three streamers 0-1-2 who play two games."""
    tiny_npz(path)
    with np.load(path) as arrays:
        kept = {name: array for name, array in arrays.items() if name != "labels"}
    flags = {"mature": np.array([True, False, True]), "partner": np.array([False, False, True])}
    np.savez(path, **kept, **({"days": np.array([3.0, 4, 5]), "views": np.array([10.0, 0, 7])} | flags | changes))


@pytest.mark.parametrize(("target", "rest"), [("mature", [0, 0, 1]), ("partner", [1, 0, 1])])
def test_the_target_of_streamers_is_no_feature(tmp_path, target, rest):
    tiny_streamers(tmp_path / "streamers_es.npz")
    graph = load("streamers-es", tmp_path, target=target)
    assert graph.x.to_dense().tolist() == [[0, 7, 3, 10, rest[0]], [1, 0, 4, 0, rest[1]], [0, 0, 5, 7, rest[2]]]
    assert [(block.kind, block.start, block.stop) for block in graph.blocks] == [
        *[("words", 0, 2), ("numbers", 2, 4), ("table", 4, 5)]
    ]
    assert [graph.class_names[k] for k in graph.y] == [
        target if hit else f"not {target}" for hit in {"mature": [1, 0, 1], "partner": [0, 0, 1]}[target]
    ]


def test_the_views_of_streamers_are_numbers_and_no_feature(tmp_path):
    tiny_streamers(tmp_path / "streamers_es.npz")
    graph = load("streamers-es", tmp_path, target="views")
    assert graph.numbers is not None and graph.class_names == ()
    assert graph.y.dtype == torch.float64 and graph.labeled.all()
    assert [block.name for block in graph.blocks] == ["games", "days", "mature, partner"]


def test_a_target_that_streamers_do_not_have_is_refused(tmp_path):
    tiny_streamers(tmp_path / "streamers_es.npz")
    with pytest.raises(ValueError, match="target = 'games'; it is one of views, mature, partner"):
        load("streamers-es", tmp_path, target="games")


def tiny_acm(path, **changes):
    """Four papers: 0-1 share an author, 1-2 and 0-1 a subject, 3 shares nothing."""
    author = scipy.sparse.csr_array(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0] * 4, [0] * 4]))
    subject = scipy.sparse.csr_array(np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0] * 4]))
    arrays = {
        "y": np.array([0, 1, 2, 2]),
        "xd": np.array([0.5]),
        "xix": np.array([1]),
        "xip": np.array([0, 0, 1, 1, 1]),
    }
    for key, matrix in {"same_author": author, "same_subject": subject}.items():
        arrays |= {f"{key}_ip": matrix.indptr, f"{key}_ix": matrix.indices}
    for number in (20, 40, 60):
        arrays |= {f"train_{number}": np.array([0, number == 40]), f"val_{number}": np.array([2])}
        arrays |= {f"test_{number}": np.array([3])}
    np.savez(path, d=np.array(2), **(arrays | changes))


def test_papers_of_acm_have_two_edge_types_and_three_published_splits(tmp_path):
    tiny_acm(tmp_path / "acm_kinds.npz")
    graph = load("acm", tmp_path)
    assert graph.adjacency.to_dense().tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert graph.edge_types.names == ("same author", "same subject")
    assert graph.edge_types.matrices[0].to_dense().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0] * 4, [0] * 4]
    assert graph.x.to_dense().tolist() == [[0, 0], [0, 0.5], [0, 0], [0, 0]]
    for labels, train in ((20, [0]), (40, [0, 1]), (60, [0])):
        parts = split(load("acm", tmp_path, labels=labels), kind="official")
        assert [mask.nonzero().ravel().tolist() for mask in (parts.train, parts.val, parts.test)] == [
            train,
            [2],
            [3],
        ]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"labels": 30}, "labels = 30; published splits have 20, 40, 60 a class"),
        ({"same_author_ix": np.array([9, 0])}, {}, "a matrix of 4 columns with an entry in column 9"),
        ({"val_20": np.array([4])}, {}, "acm_kinds.npz is refused"),
    ],
)
def test_arrays_of_acm_that_do_not_fit_are_refused(tmp_path, changes, options, message):
    tiny_acm(tmp_path / "acm_kinds.npz", **changes)
    with pytest.raises(ValueError, match="acm cannot be read from") as refusal:
        load("acm", tmp_path, **options)
    assert message in str(refusal.value)


def serve(server, name, monkeypatch, **changes):
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], url=server.url, **changes))


def test_planetoid_is_downloaded_checked_and_kept(server, tmp_path, monkeypatch, known_planetoid):
    known_planetoid(server.folder)
    serve(server, "cora", monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    first = load("cora", root)
    assert {path.name for path in (root / "planetoid").iterdir()} == {path.name for path in server.folder.iterdir()}
    for path in server.folder.iterdir():
        path.unlink()
    assert load("cora", root).content_hash() == first.content_hash()


def test_without_a_root_downloads_go_into_the_cache(server, tmp_path, monkeypatch, known_planetoid):
    known_planetoid(server.folder)
    serve(server, "cora", monkeypatch)
    monkeypatch.setenv("GCN_LPA_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(data, "cache_folder", lambda: tmp_path / "cache")
    load("cora")
    assert (tmp_path / "cache" / "planetoid" / "ind.cora.x").is_file()


def test_a_planetoid_file_with_other_bytes_is_refused(server, tmp_path, monkeypatch):
    tiny_planetoid(server.folder)
    serve(server, "cora", monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"ind\.cora\.x could not be downloaded \(its sha256 is"):
        load("cora", tmp_path)
    assert not (tmp_path / "planetoid").exists()


def test_a_mistyped_root_is_named_and_not_made(server, tmp_path, monkeypatch):
    serve(server, "cora", monkeypatch)
    for ask in (lambda root: load("cora", root), list_datasets):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*dta to look for data sets in \(root\)"):
            ask(tmp_path / "dta")
    assert not (tmp_path / "dta").exists()


def test_a_coauthor_archive_is_known_by_its_arrays(server, tmp_path, monkeypatch):
    tiny_npz(tmp_path / "actor.npz")
    content = load("actor", tmp_path).content_hash(32)
    serve(server, "coauthor-cs", monkeypatch, content=content)
    with np.load(tmp_path / "actor.npz") as arrays:  # other bytes: compressed, in 64 bits, one array more
        packed = {name: array.astype(np.float64 if array.dtype.kind == "f" else np.int64) for name, array in arrays.items()}
    np.savez_compressed(server.folder / "ms_academic_cs.npz", more=np.ones(3), **packed)
    for folder in ("root", "other"):
        (tmp_path / folder).mkdir()
    assert load("coauthor-cs", tmp_path / "root").content_hash(32) == content
    packed["labels"][0] = 0
    np.savez(server.folder / "ms_academic_cs.npz", **packed)
    with pytest.raises(FileNotFoundError, match="its arrays hash to"):
        load("coauthor-cs", tmp_path / "other")
    assert not (tmp_path / "other" / "npz").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["coauthor-cs", "coauthor-phy", "streamers-engb", "streamers-es", "acm"])
def test_the_pinned_hashes_are_those_of_the_real_arrays(datasets, name):
    assert load(name, datasets).content_hash(32) == DATASETS[name].content


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_the_pinned_sha256_are_those_of_the_real_files(datasets, name):
    for file in DATASETS[name].files:
        found = hashlib.sha256((datasets / "planetoid" / file).read_bytes()).hexdigest()
        assert found == data.array_files.PLANETOID_SHA256[file]


def test_without_network_one_sentence_says_which_files_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "cora", dataclasses.replace(DATASETS["cora"], url="https://localhost:1"))
    monkeypatch.setenv("no_proxy", "localhost")
    with pytest.raises(FileNotFoundError) as refusal:
        load("cora", tmp_path)
    message = str(refusal.value)
    assert "Connection refused" in message
    assert (
        f"put {', '.join(f'ind.cora.{part}' for part in data.array_files.PLANETOID_PARTS)} into {tmp_path / 'planetoid'}" in message
    )
    with pytest.raises(FileNotFoundError, match=r"actor is read from local files only: put actor\.npz into"):
        load("actor", tmp_path)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/gcn-lpa"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/ada/.cache/gcn-lpa"),
        ("darwin", {}, "/home/ada/Library/Caches/gcn-lpa"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/gcn-lpa"),
    ],
)
def test_the_cache_is_where_the_system_keeps_caches(monkeypatch, platform, variables, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(data.Path, "home", lambda: Path("/home/ada"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert data.cache_folder().as_posix() == expected


def test_karate_is_unweighted_with_identity_features(karate):
    assert (karate.num_nodes, karate.num_edges, karate.class_names) == (34, 78, ("Mr. Hi", "Officer"))
    assert set(karate.adjacency.values.tolist()) == {1.0}
    assert karate.x.pattern.is_identity
    theirs = networkx.karate_club_graph()
    assert {frozenset(edge) for edge in theirs.edges} == {frozenset(edge) for edge in karate.to_networkx().edges}
    assert [theirs.nodes[i]["club"] for i in range(34)] == [karate.class_names[label] for label in karate.y]


@pytest.mark.long
def test_digits_joins_images_that_look_alike():
    graph = load("digits", neighbors=3)
    x = graph.x.double()
    distance = torch.cdist(x[:1], x).ravel()
    distance[0] = torch.inf
    nearest = set(distance.topk(3, largest=False).indices.tolist())
    assert nearest <= set(graph.col[graph.row == 0].tolist())
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert describe(graph).edge_homophily > 0.9


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (10, 9), (10, 7), (1000, 5), (1001, 3)])
def test_a_random_graph_has_the_degree_asked_for(n, degree):
    graph = load("random", n=n, degree=degree)
    assert graph.num_edges == round(n * degree / 2)
    assert graph.num_self_loops == 0
    matrix = graph.adjacency.to_scipy()
    assert (matrix != matrix.T).nnz == 0
    assert graph.y.tolist() == [0] * n
    assert graph.x.pattern.is_identity


@pytest.mark.parametrize("name", ["random", "sbm"])
def test_a_negative_seed_is_refused_in_words(name):
    with pytest.raises(ValueError, match=r"seed = -1; it is at least 0 and less than 2\*\*63"):
        load(name, n=10, degree=1, seed=-1)


@pytest.mark.long
def test_degrees_of_a_random_graph_with_hubs_fall_as_a_power_of_the_rank():
    graph = load("random", n=20_000, degree=8, hubs=0.5, seed=1)
    degrees = np.sort(graph.adjacency.pattern.rowptr.diff().numpy())[::-1]
    assert degrees.sum() == 2 * graph.num_edges == 160_000
    expected = 160_000 * np.arange(1, 20_001) ** -0.5 / (np.arange(1, 20_001) ** -0.5).sum()
    for low, high in ((0, 10), (10, 100), (100, 1000), (1000, 20_000)):
        assert degrees[low:high].sum() == pytest.approx(expected[low:high].sum(), rel=0.06)
    names = graph.adjacency.pattern.rowptr.diff().argsort(descending=True)[:50]
    assert names.float().mean() == pytest.approx(10_000, rel=0.3)  # the hubs may have any number


def test_every_pair_of_a_random_graph_is_equally_likely():
    graphs = [load("random", n=5, degree=2, seed=seed) for seed in range(400)]
    pairs = Counter(pair for graph in graphs for pair in zip(graph.row.tolist(), graph.col.tolist(), strict=True))
    assert len(pairs) == 20
    deviation = (400 * 0.5 * 0.5) ** 0.5  # 5 of 10 pairs each time
    assert max(abs(count - 200) for count in pairs.values()) < 4.5 * deviation


def test_a_seed_makes_the_same_graph_and_another_seed_another():
    assert load("random", seed=3).content_hash() == load("random", seed=3).content_hash()
    assert load("random", seed=3).content_hash() != load("random", seed=4).content_hash()
    assert load("sbm", seed=3).content_hash() == load("sbm", seed=3).content_hash()


@pytest.mark.parametrize("homophily", [0.0, 0.1, 0.5, 1.0])
def test_a_block_model_has_the_homophily_asked_for(homophily):
    graph = load("sbm", n=300, classes=3, degree=6, homophily=homophily, noise=0)
    info = describe(graph)
    assert info.edge_homophily == pytest.approx(homophily)
    assert (info.edges, info.class_sizes) == (900, {"0": 100, "1": 100, "2": 100})
    for label in range(3):  # without noise a class is a point on the unit sphere
        members = graph.x[graph.y == label]
        torch.testing.assert_close(members, members[:1].expand_as(members))
        assert float(members[0].norm()) == pytest.approx(1, abs=1e-6)


def test_feature_noise_has_the_deviation_asked_for():
    graph = load("sbm", n=2000, classes=2, features=8, noise=0.7)
    assert float(graph.x[graph.y == 0].std(dim=0).mean()) == pytest.approx(0.7, rel=0.05)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("corra", {}, "'corra' is neither a data set nor a folder; did you mean cora?"),
        ("random", {"nodes": 5}, "'random' has no option 'nodes'; its options are: n, degree, classes, hubs, seed"),
        ("cora", {"n": 5}, "'cora' has no option 'n'; its options are: none"),
        ("random", {"n": 4, "degree": 5}, "10 edges are asked for where 6 are possible"),
        ("random", {"n": 0}, "n must be at least 1"),
        ("random", {"hubs": 1.0}, "hubs must be at least 0 and less than 1"),
        ("random", {"n": 9, "degree": 5, "hubs": 0.5}, "22 edges are too many for hubs among 9 nodes"),
        ("sbm", {"n": 10, "degree": 8, "homophily": 1.0}, "40 edges are asked for where 8 are possible"),
        ("sbm", {"homophily": 1.5}, "homophily must be a share of the edges, 0 to 1"),
    ],
)
def test_what_cannot_be_loaded_is_said(name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)


@pytest.mark.parametrize(("name", "sizes"), [("chameleon-filtered", (409, 287, 194)), ("squirrel-directed", (1053, 718, 452))])
def test_ten_official_splits_are_numbered_by_the_seed(datasets, name, sizes):
    graph = load(name, datasets)
    parts = [split(graph, kind="official", seed=k) for k in range(10)]
    assert [int(mask.sum()) for mask in (parts[0].train, parts[0].val, parts[0].test)] == list(sizes)
    assert len({one.hash for one in parts}) == 10
    assert all((one.train | one.val | one.test).all() for one in parts)
    with pytest.raises(ValueError, match=f"'{name}' has 10 official splits, 0 to 9; seed 10 names none"):
        split(graph, kind="official", seed=10)


def test_other_masks_than_the_official_ones_are_refused(datasets, tmp_path):
    folder = tmp_path / "npz"
    folder.mkdir()
    shutil.copy(datasets / "npz" / "chameleon_filtered.npz", folder)
    assert load("chameleon-filtered", tmp_path).published == ()
    masks = dict(np.load(datasets / "npz" / "chameleon_filtered_masks.npz"))
    for change, words in (
        ({name: masks[name][::-1] for name in ("train", "val", "test")}, "holds other splits than the official ones"),
        ({"num_nodes": np.array(889)}, "its masks are of 889 nodes; the graph has 890"),
        ({"val": masks["train"]}, "is in more than one of train, val and test"),
    ):
        np.savez(folder / "chameleon_filtered_masks.npz", **{**masks, **change})
        with pytest.raises(ValueError, match=words):
            load("chameleon-filtered", tmp_path)
