"""Named data sets and files on disk -> Graph.

`load("cora")` and its like give the five data sets of the paper (Table 1), four more from local files, two that ship
with a dependency, and two that are made on the spot; `load("path/to/folder")` reads a folder of one's own, and
`read_csv` any two tables.

Files are looked for in `root`; without one, in $GCN_LPA_DATA and then in the user's cache. The five of the paper are
downloaded if they are nowhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.description import describe
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, Split
from gcn_lpa.intake import check_seed
from gcn_lpa.tables.csv_files import read_csv, read_folder
from gcn_lpa.tables.download import download, require_sha256
from gcn_lpa.tables.planetoid import csr_matrix, read_npz, read_pickle

__all__ = [
    "DATASETS",
    "Counts",
    "Dataset",
    "Table1Row",
    "cache_folder",
    "load",
    "read_csv",
    "reading_options",
    "table1",
]

PLANETOID_URL = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
COAUTHOR_URL = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"
PLANETOID_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
NUM_PUBLIC_VAL = 500  # Planetoid: the nodes after the training nodes
MAX_EDGE_ENDS = 1_000_000  # in a Planetoid adjacency list; Pubmed has 108 thousand

PLANETOID_SHA256 = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
}


@dataclass(frozen=True)
class Counts:
    """One data set as the paper's Table 1 prints it."""

    nodes: int
    edges: int
    features: int
    classes: int
    intra_class_edge_rate: float


@dataclass(frozen=True)
class Dataset:
    """A named data set: how to read or make it and, where it has files, where they are and how to know them."""

    summary: str
    read: Callable[..., Graph]  # of the folder of its files, or of its options where it has none
    folder: str = ""
    files: tuple[str, ...] = ()
    url: str = ""  # the public place of its files; without one they are only looked for
    content: str = ""  # `Graph.content_hash` of what a downloaded npz file must hold
    paper: Counts | None = None

    def find(self, root: str | Path | None) -> Path | None:
        """The folder that holds all files, if there is one."""
        places = [place for top in _roots(root) for place in (top / self.folder, top)]
        return next((place for place in places if all((place / file).is_file() for file in self.files)), None)


def load(name: str | Path, root: str | Path | None = None, **options: Any) -> Graph:
    """A data set by name, or the graph in a folder of one's own.

    Args:
        name: one of `DATASETS`; or a folder with nodes.csv and edges.csv; or a file that lists edges.
        root: the folder with the files of a named data set; see the top of this module.
        options: those of the data set, such as `n` and `seed` of "random"; those of `read_csv` for one's own files.
    """
    reader = _reader(name)
    strange = [option for option in options if option not in reading_options(name)]
    if strange:
        known = ", ".join(reading_options(name)) or "none"
        raise ValueError(f"{str(name)!r} has no option {strange[0]!r}; its options are: {known}")
    dataset = DATASETS.get(str(name).lower())
    if dataset is None or not dataset.files:
        return reader(**options)
    folder = dataset.find(root) or _fetch(str(name).lower(), dataset, root)
    try:
        return dataset.read(folder)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read from {folder}: {error}") from error


def reading_options(name: str | Path) -> dict[str, Any]:
    """The options that `load` takes for a data set or folder, with their defaults."""
    dataset = DATASETS.get(str(name).lower())
    if dataset is not None and dataset.files:
        return {}
    parameters = inspect.signature(read_csv if dataset is None else dataset.read).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _reader(name: str | Path) -> Callable[..., Graph]:
    dataset = DATASETS.get(str(name).lower())
    if dataset is not None:
        return dataset.read
    if Path(name).is_dir():
        return partial(read_folder, Path(name))
    if Path(name).is_file():
        return partial(read_csv, None, Path(name))
    close = difflib.get_close_matches(str(name).lower(), DATASETS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"{str(name)!r} is neither a data set nor a folder; {hint}the data sets are {', '.join(DATASETS)}")


@dataclass(frozen=True)
class Table1Row:
    """A data set as we count it, beside the paper's counts; None where its files are absent."""

    name: str
    nodes: int | None
    edges: int | None
    features: int | None
    classes: int | None
    intra_class_edge_rate: float | None
    available: bool
    paper: Counts | None


def table1(root: str | Path | None = None, names: Iterable[str] | None = None) -> list[Table1Row]:
    """The paper's Table 1 from the files that are here, without downloading any; or the same of other data sets."""
    if names is None:
        names = [name for name, dataset in DATASETS.items() if dataset.paper]
    return [_table1_row(name, DATASETS[name], root) for name in names]


def _table1_row(name: str, dataset: Dataset, root: str | Path | None) -> Table1Row:
    if dataset.files and dataset.find(root) is None:
        return Table1Row(name, None, None, None, None, None, available=False, paper=dataset.paper)
    info = describe(load(name, root))
    rate = info.intra_class_edge_rate
    return Table1Row(name, info.nodes, info.edges, info.features, info.classes, rate, True, dataset.paper)


def cache_folder() -> Path:
    """Where downloads are kept, by the custom of the system."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gcn-lpa"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gcn-lpa"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "gcn-lpa"


def _roots(root: str | Path | None) -> list[Path]:
    if root is not None:
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(
                f"there is no folder {folder} to look for data sets in (root); make it, or name another"
            )
        return [folder]
    named = os.environ.get("GCN_LPA_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def _fetch(name: str, dataset: Dataset, root: str | Path | None) -> Path:
    """Download the files that are missing into `root` or the cache; the sentence says what to do where that fails."""
    folder = _roots(root)[-1] / dataset.folder
    wanted = f"put {', '.join(dataset.files)} into {folder}"
    if not dataset.url:
        raise FileNotFoundError(
            f"{name} is read from local files only: {wanted}, or name their folder in $GCN_LPA_DATA"
        )
    for file in dataset.files:
        if (folder / file).is_file():
            continue
        try:
            download(f"{dataset.url}/{file}", folder / file, partial(_check, dataset, file))
        except (OSError, ValueError, HTTPException) as error:
            raise FileNotFoundError(
                f"{name} is not here, and {file} could not be downloaded ({error}): {wanted} (from {dataset.url})"
            ) from error
    return folder


def _check(dataset: Dataset, file: str, path: Path) -> None:
    """Accept a downloaded file: Planetoid's by its bytes, an npz by its arrays, which may be packed in many ways."""
    if file in PLANETOID_SHA256:
        return require_sha256(path, PLANETOID_SHA256[file])
    content = _read_npz_file(path, "").content_hash(64)
    if content != dataset.content:
        raise ValueError(f"its arrays hash to {content[:16]}…, the published ones to {dataset.content[:16]}…")


def _planetoid(name: str, summary: str, paper: Counts, class_names: tuple[str, ...] = ()) -> Dataset:
    files = tuple(f"ind.{name}.{part}" for part in PLANETOID_PARTS)
    read = partial(_read_planetoid, name=name, class_names=class_names)
    return Dataset(summary, read, "planetoid", files, PLANETOID_URL, paper=paper)


def _npz(name: str, file: str, summary: str, url: str = "", content: str = "", paper: Counts | None = None) -> Dataset:
    return Dataset(summary, lambda folder: _read_npz_file(folder / file, name), "npz", (file,), url, content, paper)


def _read_planetoid(folder: Path, name: str, class_names: tuple[str, ...]) -> Graph:
    """A Planetoid data set with its public split: 20 nodes per class train, the next 500 validate, test.index tests.

    Nodes that are in neither `allx` nor the test index (15 of Citeseer) have no features and no label.
    """
    parts = {part: read_pickle(folder / f"ind.{name}.{part}") for part in PLANETOID_PARTS[:-1]}
    test = _read_index(folder / f"ind.{name}.test.index")
    _check_planetoid(name, parts, test)
    n, num_all = len(parts["graph"]), parts["allx"].shape[0]
    place = np.full(n, num_all + len(test))  # of each node among the rows of allx, tx, and one row of zeros
    place[:num_all] = np.arange(num_all)
    place[test] = num_all + np.arange(len(test))
    num_features, num_classes = parts["allx"].shape[1], parts["ally"].shape[1]
    x = scipy.sparse.vstack([parts["allx"], parts["tx"], scipy.sparse.csr_array((1, num_features))]).tocsr()[place]
    one_hot = np.concatenate([parts["ally"], parts["ty"], np.zeros((1, num_classes))])[place]
    y = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    graph = Graph.from_edges(
        _adjacency_pairs(name, parts["graph"]),
        num_nodes=n,
        x=x,
        y=y,
        class_names=class_names if len(class_names) == num_classes else map(str, range(num_classes)),
        name=name,
    )
    train, val, tested = (torch.zeros(n, dtype=torch.bool) for _ in range(3))
    num_train = len(parts["y"])
    train[:num_train] = True
    val[num_train : num_train + NUM_PUBLIC_VAL] = True
    tested[torch.from_numpy(test)] = True
    return dataclasses.replace(graph, public=Split(train, val & ~tested, tested, "public"))


def _read_index(path: Path) -> np.ndarray:
    lines = path.read_bytes()[: 2**20].split()
    if not lines or not all(line.isdigit() and len(line) < 10 for line in lines):
        raise ValueError(f"{path.name} is not a list of node numbers")
    return np.asarray([int(line) for line in lines])


def _check_planetoid(name: str, parts: dict[str, Any], test: np.ndarray) -> None:
    """The eight files must belong together."""
    for part in ("x", "tx", "allx"):
        if not scipy.sparse.issparse(parts[part]):
            raise ValueError(f"ind.{name}.{part} is not a sparse matrix")
    for part in ("y", "ty", "ally"):
        if not isinstance(parts[part], np.ndarray) or parts[part].ndim != 2:
            raise ValueError(f"ind.{name}.{part} is not an array of one-hot labels")
    if not isinstance(parts["graph"], dict):
        raise ValueError(f"ind.{name}.graph is not an adjacency list")
    for features, labels in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        sizes = parts[features].shape, parts[labels].shape
        expected = (sizes[0][0], parts["allx"].shape[1]), (sizes[0][0], parts["ally"].shape[1])
        if sizes != expected:
            raise ValueError(f"ind.{name}.{features} and ind.{name}.{labels} have shapes {sizes}, not {expected}")
    n = len(parts["graph"])
    if len(test) != parts["tx"].shape[0] or len(set(test.tolist())) != len(test) or not test.max() < n:
        raise ValueError(f"ind.{name}.test.index does not number the {parts['tx'].shape[0]} rows of tx among {n} nodes")
    if parts["allx"].shape[0] > n or parts["x"].shape[0] > n:
        raise ValueError(f"ind.{name}.allx has more rows than ind.{name}.graph has nodes")


def _adjacency_pairs(name: str, adjacency: dict[Any, Any]) -> np.ndarray:
    """Every (node, neighbour) of an adjacency list, [E, 2]."""
    if not all(isinstance(neighbours, list) for neighbours in adjacency.values()):
        raise ValueError(f"ind.{name}.graph has a node without a list of neighbours")
    counts = [len(neighbours) for neighbours in adjacency.values()]
    if sum(counts) > MAX_EDGE_ENDS:  # one list can stand in a pickle many times
        raise ValueError(f"ind.{name}.graph has {sum(counts):,} edges, more than {MAX_EDGE_ENDS:,}")
    ends = [end for neighbours in adjacency.values() for end in neighbours]
    if not all(type(node) is int for node in (*adjacency, *ends)):
        raise ValueError(f"ind.{name}.graph has a node that is not a number")
    return np.stack([np.repeat(np.fromiter(adjacency, np.int64), counts), np.asarray(ends, dtype=np.int64)], axis=1)


def _read_npz_file(path: Path, name: str) -> Graph:
    """A graph from CSR arrays adj_* and attr_* and a list of labels; word counts stay counts."""
    keys = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")]
    arrays = read_npz(path, [*keys, "labels"])
    adjacency, features = (
        csr_matrix(*(arrays[f"{matrix}_{part}"] for part in ("data", "indices", "indptr", "shape")))
        for matrix in ("adj", "attr")
    )
    return Graph.from_scipy(adjacency, x=features, y=arrays["labels"], name=name)


def _karate() -> Graph:
    import networkx

    return Graph.from_networkx(networkx.karate_club_graph(), weight=None, label="club", name="karate")


def _digits(neighbors: int = 10) -> Graph:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    x, y = load_digits(return_X_y=True)
    graph = Graph.from_scipy(kneighbors_graph(x, neighbors), x=x, y=y, name="digits")
    note = f"every image joined to the {neighbors} nearest, and to those that count it among theirs"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def _random(n: int = 1000, degree: float = 5.0, classes: int = 1, seed: int = 0) -> Graph:
    """The paper's timing graphs (Section 4.4): n nodes, `degree` neighbours on average, identity features, label 0.

    With more `classes`, labels are drawn uniformly: with one class every loss and gradient is 0.
    """
    _require(n=n >= 1, degree=degree >= 0, classes=classes >= 1)
    check_seed(seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    later = np.arange(1, n + 1)  # node i may be joined to i + 1 .. n - 1
    row, col = _sample_pairs(later, n - later, round(n * degree / 2), rng)
    upper = scipy.sparse.coo_array((np.ones(len(row), np.float32), (row, col)), shape=(n, n)).tocsr()
    y = torch.from_numpy(rng.integers(classes, size=n))
    return Graph(
        adjacency=SparseMatrix.from_scipy(upper + upper.T.tocsr()),
        x=SparseMatrix.identity(n),
        y=y,
        class_names=tuple(map(str, range(classes))),
        node_names=range(n),
        name="random",
        notes=(f"random graph: mean degree {degree:g}, seed {seed}",),
        x_kind="identity",
    )


def _sbm(
    n: int = 1000,
    classes: int = 4,
    degree: float = 10.0,
    homophily: float = 0.8,
    features: int = 16,
    noise: float = 0.5,
    seed: int = 0,
) -> Graph:
    """A contextual stochastic block model: classes of equal size, and a mean feature vector of length 1 for each.

    Args:
        degree: mean number of neighbours.
        homophily: share of edges that join two nodes of one class; exact.
        noise: standard deviation of every feature around the mean of its class.
    """
    _require(n=n >= 1, degree=degree >= 0, classes=classes >= 1, homophily=0 <= homophily <= 1, features=features >= 1)
    check_seed(seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    block = np.sort(np.arange(n) % classes)
    block_end = np.searchsorted(block, block, side="right")
    position, num_edges = np.arange(n), round(n * degree / 2)
    num_intra = round(homophily * num_edges)
    intra = _sample_pairs(position + 1, block_end - position - 1, num_intra, rng)
    inter = _sample_pairs(block_end, n - block_end, num_edges - num_intra, rng)
    order = rng.permutation(n)  # so that the number of a node does not tell its class
    pairs = order[np.concatenate([intra, inter], axis=1).T]
    y = np.empty(n, dtype=np.int64)
    y[order] = block
    means = rng.standard_normal((classes, features))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    x = means[y] + noise * rng.standard_normal((n, features))
    graph = Graph.from_edges(pairs, num_nodes=n, x=x, y=y, class_names=map(str, range(classes)), name="sbm")
    note = f"block model: mean degree {degree:g}, homophily {homophily:g}, feature noise {noise:g}, seed {seed}"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def _require(**options: bool) -> None:
    right = {"degree": "at least 0", "homophily": "a share of the edges, 0 to 1"}
    for option, is_right in options.items():
        if not is_right:
            raise ValueError(f"{option} must be {right.get(option, 'at least 1')}")


def _sample_pairs(
    first: np.ndarray, num_partners: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`count` different pairs (i, first[i] + k), k < num_partners[i], all equally likely; sorted."""
    starts = np.concatenate([[0], np.cumsum(num_partners)])
    if not 0 <= count <= starts[-1]:
        raise ValueError(f"{count:,} edges are asked for where {starts[-1]:,} are possible; lower degree or raise n")
    codes = _sample(int(starts[-1]), count, rng)
    row = np.repeat(np.arange(len(first)), np.diff(np.searchsorted(codes, starts)))
    return row, codes - starts[row] + first[row]


def _sample(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` different numbers below `total`, sorted."""
    if count > total // 2:
        left_out = _sample(total, total - count, rng)
        return np.delete(np.arange(total), left_out)
    codes = np.empty(0, dtype=np.int64)
    while len(codes) < count:  # almost all at once; then those that were drawn twice
        codes = np.concatenate([codes, rng.integers(total, size=count - len(codes))])
        codes.sort()
        codes = codes[np.diff(codes, prepend=-1) > 0]
    return codes


CORA_CLASSES = (
    *("Theory", "Reinforcement_Learning", "Genetic_Algorithms", "Neural_Networks"),
    *("Probabilistic_Methods", "Case_Based", "Rule_Learning"),
)
CITESEER_CLASSES = ("AI", "ML", "IR", "DB", "Agents", "HCI")

DATASETS: dict[str, Dataset] = {
    "cora": _planetoid("cora", "machine-learning papers", Counts(2708, 5278, 1433, 7, 0.810), CORA_CLASSES),
    "citeseer": _planetoid("citeseer", "computer-science papers", Counts(3327, 4552, 3703, 6, 0.736), CITESEER_CLASSES),
    "pubmed": _planetoid("pubmed", "papers on diabetes", Counts(19717, 44324, 500, 3, 0.802)),
    "coauthor-cs": _npz(
        "coauthor-cs",
        "ms_academic_cs.npz",
        "authors in computer science",
        COAUTHOR_URL,
        "56fea6cc0248a4a7dfb12b2f2fa3086eb2c4fa0bd149db6da2e8970831854bf9",
        Counts(18333, 81894, 6805, 15, 0.808),
    ),
    "coauthor-phy": _npz(
        "coauthor-phy",
        "ms_academic_phy.npz",
        "authors in physics",
        COAUTHOR_URL,
        "1adaee8216aea95f23e406e2f690565a0279b55d3049d040374ff9e71332e026",
        Counts(34493, 247962, 8415, 5, 0.931),
    ),
    "cora-ml": _npz("cora-ml", "cora_ml.npz", "machine-learning papers, another cut"),
    "actor": _npz("actor", "actor.npz", "actors on one page; heterophilous"),
    "chameleon-filtered": _npz("chameleon-filtered", "chameleon_filtered.npz", "encyclopedia pages; heterophilous"),
    "squirrel-filtered": _npz("squirrel-filtered", "squirrel_filtered.npz", "encyclopedia pages; heterophilous"),
    "karate": Dataset("a karate club that split in two (NetworkX)", _karate),
    "digits": Dataset("handwritten digits joined to their nearest (scikit-learn)", _digits),
    "random": Dataset("the paper's timing graphs, any size", _random),
    "sbm": Dataset("block model with chosen homophily and noise", _sbm),
}
