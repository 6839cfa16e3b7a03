"""The named data sets, and the doors to a `Graph`: `load` of a name or your own files, `as_graph` of an object.

Files are looked for in `root`; without one, in $GCN_LPA_DATA and then in the user's cache. The five of the paper are
downloaded if they are nowhere: over verified TLS into memory, checked, then written whole. The hashes of all named files are
known. Other arrays are read with a warning; other Planetoid files, which are pickles, are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.data import array_files
from gcn_lpa.data.checks import WARNING, check_seed, is_address, refuse_password, similar
from gcn_lpa.data.files import write_output
from gcn_lpa.data.read_folder import read_csv, read_folder
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph

PLANETOID_URL = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
COAUTHOR_URL = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"


def karate() -> Graph:
    import networkx

    return Graph.from_networkx(networkx.karate_club_graph(), weight=None, label="club", name="karate")


def digits(neighbors: int = 10) -> Graph:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    x, y = load_digits(return_X_y=True)
    graph = Graph.from_scipy(kneighbors_graph(x, neighbors), x=x, y=y, name="digits")
    note = f"every image joined to the {neighbors} nearest, and to those that count it among theirs"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def random_graph(n: int = 1000, degree: float = 5.0, classes: int = 1, hubs: float = 0.0, seed: int = 0) -> Graph:
    """The paper's timing graphs (Section 4.4): n nodes, `degree` neighbours on average, identity features, label 0.

    With more `classes`, labels are drawn uniformly: with one class every loss and gradient is 0. With `hubs`, the expected
    degree of the r-th of the nodes is proportional to r^-hubs, as in real graphs: a power law of exponent 1 + 1 / hubs.
    """
    rng = _generator(seed, n=n >= 1, degree=degree >= 0, classes=classes >= 1, hubs=0 <= hubs < 1)
    later = np.arange(1, n + 1)  # node i may be joined to i + 1 .. n - 1
    if hubs:
        row, col = _pairs_by_rank(n, round(n * degree / 2), hubs, rng)
    else:
        row, col = _sample_pairs(later, n - later, round(n * degree / 2), rng)
    upper = scipy.sparse.coo_array((np.ones(len(row), np.float32), (row, col)), shape=(n, n)).tocsr()
    y = torch.from_numpy(rng.integers(classes, size=n))
    adjacency, names = SparseMatrix.from_scipy(upper + upper.T.tocsr()), tuple(map(str, range(classes)))
    notes = (f"random graph: mean degree {degree:g}, {f'hubs {hubs:g}, ' if hubs else ''}seed {seed}",)
    x = SparseMatrix.identity(n)
    return Graph(adjacency, x, y, names, range(n), "random", notes=notes, x_kind="identity")


def _pairs_by_rank(n: int, count: int, hubs: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """So many different pairs i < j, both drawn in proportion to rank^-hubs; ranks are dealt at random."""
    ends = np.cumsum(np.arange(1, n + 1) ** -hubs)
    codes = np.empty(0, np.int64)
    if count > n * (n - 1) // 4:
        most = "at most half of all pairs can be joined"
        raise ValueError(f"{count} edges are too many for hubs among {n} nodes; {most}")
    while len(codes) < count:
        pairs = np.searchsorted(ends, rng.random((2, count)) * ends[-1])
        low, high = pairs.min(0), pairs.max(0)
        drawn = np.concatenate([codes, (low * n + high)[low < high]])
        codes = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # in the order in which they were drawn
    low, high = np.divmod(codes[:count], n)
    name = rng.permutation(n)
    return np.minimum(name[low], name[high]), np.maximum(name[low], name[high])


def block_model(
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
    shares = {"homophily": 0 <= homophily <= 1, "features": features >= 1}
    rng = _generator(seed, n=n >= 1, degree=degree >= 0, classes=classes >= 1, **shares)
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


def _generator(seed: int, **options: bool) -> np.random.Generator:
    """The source of random numbers of a graph, if its options are right."""
    right = {"degree": "at least 0", "homophily": "a share of the edges, 0 to 1", "hubs": "at least 0 and less than 1"}
    for option, is_right in options.items():
        if not is_right:
            raise ValueError(f"{option} must be {right.get(option, 'at least 1')}")
    seed = check_seed(seed)
    return np.random.Generator(np.random.PCG64(seed))


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


@dataclass(frozen=True)
class Dataset:
    """A named data set: how to read or make it and, where it has files, where they are and how to know them."""

    summary: str
    read: Callable[..., Graph]  # of the folder of its files and its name, or of its options where it has none
    folder: str = ""
    files: tuple[str, ...] = ()
    url: str = ""  # where its files can be downloaded; without one they are only looked for
    content: str = ""  # 32 digits of `content_hash`, without options: an npz file can be packed in many ways

    def find(self, root: str | Path | None) -> Path | None:
        """The folder that holds all files, if there is one."""
        folders = [folder for top in _roots(root) for folder in (top / self.folder, top)]
        return next((folder for folder in folders if all((folder / file).is_file() for file in self.files)), None)

    def changed(self, folder: Path, graph: Graph) -> str:
        """What is wrong if the graph that was read from a folder is not the known one; else nothing. Other pickles are refused."""
        is_known = not self.content or graph.content_hash(32) == self.content
        return "" if is_known else f"{', '.join(self.files)} in {folder} has another hash than the known files"


def load(name: str | Path, root: str | Path | None = None, **options: Any) -> Graph:
    """A data set by name, or the graph in your own folder.

    Args:
        name: one of `DATASETS`; or a folder with nodes.csv and edges.csv; or a file or an address in a database that lists
            edges, whose option `nodes` names another of nodes.
        root: the folder with the files of a named data set; see the top of this module.
        options: those of the data set, such as `n` and `seed` of "random"; those of `read_csv` for your own files.
    """
    refuse_password(str(name))
    key, path = str(name).lower(), Path(name)
    dataset, known = DATASETS.get(key), reading_options(name)
    is_folder = not is_address(name) and path.is_dir()
    if dataset is None and not (is_folder or is_address(name) or path.is_file()):
        close = similar(key, DATASETS)
        hint = f"did you mean {close[0]}? " if close else ""
        named = f"{hint}the data sets are {', '.join(DATASETS)}"
        raise ValueError(f"{str(name)!r} is neither a data set nor a folder; {named}")
    if strange := [option for option in options if option not in known]:
        held = ", ".join(known) or "none"
        raise ValueError(f"{str(name)!r} has no option {strange[0]!r}; its options are: {held}")
    if dataset is None:
        return read_folder(path, **options) if is_folder else read_csv(options.pop("nodes", None), name, **options)
    if not dataset.files:
        return dataset.read(**options)
    folder = dataset.find(root) or _fetch(key, dataset, root)
    try:
        graph = dataset.read(folder, key, **options)
        plain = dataset.read(folder, key) if options else graph
    except ValueError as error:
        raise ValueError(f"{name} cannot be read from {folder}: {error}") from error
    if changed := dataset.changed(folder, plain):
        note = f"{WARNING}{changed}: this is another graph than {graph.name}"
        graph = dataclasses.replace(graph, notes=(*graph.notes, note))
    return graph


def as_graph(graph: Any) -> Graph:
    """A `Graph` of a NetworkX graph, a SciPy sparse matrix, a PyG `Data`, or of frames: one of edges or (nodes, edges).

    Labels and weights are found by their usual names. `Graph.from_networkx` and its like take options.
    """
    if isinstance(graph, Graph):
        return graph
    if scipy.sparse.issparse(graph):
        return Graph.from_scipy(graph)
    if hasattr(graph, "nodes") and hasattr(graph, "is_directed"):
        return Graph.from_networkx(graph)
    if hasattr(graph, "edge_index"):
        return Graph.from_pyg(graph)
    if hasattr(graph, "columns"):
        return read_csv(None, graph)
    if isinstance(graph, tuple) and len(graph) == 2 and all(hasattr(table, "columns") for table in graph):
        return read_csv(*graph)
    raise TypeError(
        "graph is a gcn_lpa.Graph, a NetworkX graph, a SciPy sparse matrix, a PyG Data, a frame of edges or a pair of "
        f"frames (nodes, edges), not {type(graph)}"
    )


def reading_options(name: str | Path) -> dict[str, Any]:
    """The options that `load` takes for a data set or folder, with their defaults."""
    dataset = DATASETS.get(str(name).lower())
    parameters = inspect.signature(read_csv if dataset is None else dataset.read).parameters.values()
    nodes = {"nodes": None} if dataset is None and (is_address(name) or not Path(name).is_dir()) else {}
    return {**nodes, **{p.name: p.default for p in parameters if p.default is not p.empty}}


@dataclass(frozen=True)
class DatasetSize:
    """What a named data set is and how large; None where its files are not here."""

    name: str
    summary: str
    nodes: int | None = None
    edges: int | None = None
    features: int | None = None
    classes: int | None = None


def list_datasets(root: str | Path | None = None) -> list[DatasetSize]:
    """The named data sets, counted from the files that are here, without downloading any."""
    sizes = []
    for name, dataset in DATASETS.items():
        counts: tuple[int, ...] = ()
        if not dataset.files or dataset.find(root) is not None:
            graph = load(name, root)
            counts = graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes
        sizes.append(DatasetSize(name, dataset.summary, *counts))
    return sizes


def cache_folder() -> Path:
    """Where downloads are kept, by the custom of the system; a user without a home keeps them for a while."""
    try:
        home = Path.home()
    except RuntimeError:  # neither $HOME nor an entry for this user
        home = Path(tempfile.gettempdir())
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gcn-lpa"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gcn-lpa"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "gcn-lpa"


def _roots(root: str | Path | None) -> list[Path]:
    if root is not None:
        folder = Path(root).expanduser()
        if not folder.is_dir():
            how = "make it, or name another"
            raise FileNotFoundError(f"there is no folder {folder} to look for data sets in (root); {how}")
        return [folder]
    named = os.environ.get("GCN_LPA_DATA")
    return [*([Path(named).expanduser()] if named else []), cache_folder()]


def _fetch(name: str, dataset: Dataset, root: str | Path | None) -> Path:
    """Download the files that are missing into `root` or the cache; the sentence says what to do where that fails."""
    folder = _roots(root)[-1] / dataset.folder
    wanted = f"put {', '.join(dataset.files)} into {folder}"
    if not dataset.url:
        how = f"{wanted}, or name their folder in $GCN_LPA_DATA"
        raise FileNotFoundError(f"{name} is read from local files only: {how}")
    for file in dataset.files:
        if (folder / file).is_file():
            continue
        try:
            download(f"{dataset.url}/{file}", folder / file, partial(_check, dataset, file))
        except (OSError, ValueError, HTTPException) as error:
            how = f"{wanted} (from {dataset.url})"
            problem = f"{file} could not be downloaded ({error})"
            raise FileNotFoundError(f"{name} is not here, and {problem}: {how}") from error
    return folder


def _check(dataset: Dataset, file: str, raw: bytes) -> None:
    """Accept a downloaded file: Planetoid's by its bytes, an npz by its arrays, which may be packed in many ways."""
    if file in array_files.PLANETOID_SHA256:
        return array_files.require_sha256(file, raw)
    content = array_files.parse_npz_graph(raw, file, "").content_hash(32)
    if content != dataset.content:
        raise ValueError(f"its arrays hash to {content[:16]}…, the published ones to {dataset.content[:16]}…")


def _planetoid(name: str, summary: str, class_names: tuple[str, ...] = ()) -> Dataset:
    files = tuple(f"ind.{name}.{part}" for part in array_files.PLANETOID_PARTS)

    def read(folder: Path, name: str) -> Graph:
        return array_files.read_planetoid(folder, name, class_names)

    return Dataset(summary, read, "planetoid", files, PLANETOID_URL)


def _npz(file: str, summary: str, content: str, splits: str = "", *, url: str = "", directed: bool = False) -> Dataset:
    """`splits`: 10 digits of the hash of the official splits; they are read where their file is beside the graph's."""

    def read(folder: Path, name: str) -> Graph:
        graph = array_files.read_npz_graph(folder / f"{file}.npz", name, directed=directed)
        masks = folder / f"{file.removesuffix('_directed')}_masks.npz"
        if not splits or not masks.is_file():
            return graph
        published = array_files.read_splits(masks, graph.num_nodes)
        found = hashlib.sha256("".join(parts.hash for parts in published).encode()).hexdigest()[:10]
        if found != splits:
            raise ValueError(f"{masks.name} holds other splits than the official ones: hash {found}, not {splits}")
        return dataclasses.replace(graph, published=published)

    return Dataset(summary, read, "npz", (f"{file}.npz",), url, content)


def _streamers(file: str, who: str, content: str) -> Dataset:
    def read(folder: Path, name: str, *, target: str = "mature") -> Graph:
        return array_files.read_streamers(folder / f"{file}.npz", name, target=target)

    return Dataset(f"{who}; target mature, partner or views", read, "npz", (f"{file}.npz",), content=content)


CORA_CLASSES = (
    *("Theory", "Reinforcement_Learning", "Genetic_Algorithms", "Neural_Networks"),
    *("Probabilistic_Methods", "Case_Based", "Rule_Learning"),
)
PAGES = "encyclopedia pages; heterophilous"
CITESEER_CLASSES = ("AI", "ML", "IR", "DB", "Agents", "HCI")

DATASETS: dict[str, Dataset] = {
    "cora": _planetoid("cora", "machine-learning papers", CORA_CLASSES),
    "citeseer": _planetoid("citeseer", "computer-science papers", CITESEER_CLASSES),
    "pubmed": _planetoid("pubmed", "papers on diabetes"),
    "coauthor-cs": _npz("ms_academic_cs", "computer scientists", "56fea6cc0248a4a7dfb12b2f2fa3086e", url=COAUTHOR_URL),
    "coauthor-phy": _npz("ms_academic_phy", "physicists", "1adaee8216aea95f23e406e2f690565a", url=COAUTHOR_URL),
    "cora-ml": _npz("cora_ml", "machine-learning papers, another cut", "36462e4c0b27c56c6226f964eff19e4c"),
    "actor": _npz("actor", "actors on one page; heterophilous", "55a052173e28056ba07da3d840eb7e91", "a9ec73633d"),
    "chameleon-filtered": _npz("chameleon_filtered", PAGES, "24093f8b69ff672c35d5f871b64d17d2", "ad501fc425"),
    "squirrel-filtered": _npz("squirrel_filtered", PAGES, "b4a13125a22d24ac52e1aae90087343e", "40faee21cd"),
    "squirrel-directed": _npz(
        "squirrel_filtered_directed", "directed links", "97d180a79090b1abc2ea51a32517cccb", "40faee21cd", directed=True
    ),
    "minesweeper": _npz("minesweeper", "a board with mines; use AUC", "a0558ad64ff78fc5bebc4351fce5b8df", "863d8a4ea1"),
    "streamers-engb": _streamers("streamers_engb", "English streamers", "7367bc8c2adeb90d9314b1110eb19203"),
    "streamers-es": _streamers("streamers_es", "Spanish streamers", "3878aacf21bcdbe42c4734a6d5a59caa"),
    "acm": Dataset(
        "papers with two edge types; labels 20, 40 or 60 a class",
        array_files.read_acm,
        "npz",
        ("acm_kinds.npz",),
        content="9250a333dbde2062bdd9926cabe60784",
    ),
    "karate": Dataset("a karate club that split in two (NetworkX)", karate),
    "digits": Dataset("handwritten digits joined to their nearest (scikit-learn)", digits),
    "random": Dataset("the paper's timing graphs, any size", random_graph),
    "sbm": Dataset("block model with chosen homophily and noise", block_model),
}


TIMEOUT_SECONDS = 30
MAX_SECONDS = 900
MAX_BYTES = 64 * 2**20


def download(url: str, path: Path, check: Callable[[bytes], None]) -> None:
    """Write what `url` serves to `path`, if `check` accepts it; else nothing is left behind.

    Only https is spoken, also after a redirect, with certificates checked against the system's authorities
    (and those in $SSL_CERT_FILE).
    """
    opener = urllib.request.OpenerDirector()  # without http, ftp and file, so that no redirect leads to them
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    blocks, size, start = [], 0, time.monotonic()
    with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
        while block := response.read(2**16):
            blocks.append(block)
            size += len(block)
            if size > MAX_BYTES:
                raise ValueError(f"{url} serves more than {MAX_BYTES:,} bytes")
            if time.monotonic() - start > MAX_SECONDS:  # a server may send a byte now and then, for ever
                raise ValueError(f"{url} was not served within {MAX_SECONDS} seconds")
    received = b"".join(blocks)
    check(received)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, received)
