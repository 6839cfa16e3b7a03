"""The list of named data sets, and `load`: a data set or your own files -> Graph.

`load("cora")` and its like give the five data sets of the paper (Table 1), four more from local files, two that ship
with a dependency, and two random ones; `load("path/to/folder")` reads your own tables.

Files are looked for in `root`; without one, in $GCN_LPA_DATA and then in the user's cache. The five of the paper are
downloaded if they are nowhere. The hashes of all named files are known: others are read with a note that says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from gcn_lpa.description import describe
from gcn_lpa.graph import Graph
from gcn_lpa.intake import DOUBT, similar
from gcn_lpa.tables.download import download, require_sha256
from gcn_lpa.tables.generators import block_model, digits, karate, random_graph
from gcn_lpa.tables.npz_files import read_npz_graph
from gcn_lpa.tables.own_files import read_csv, read_folder
from gcn_lpa.tables.planetoid import PLANETOID_PARTS, PLANETOID_SHA256, read_planetoid

PLANETOID_URL = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
COAUTHOR_URL = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"


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
    content: str = ""  # `Graph.content_hash` of an npz file, whose arrays may be packed in many ways
    paper: Counts | None = None

    def find(self, root: str | Path | None) -> Path | None:
        """The folder that holds all files, if there is one."""
        places = [place for top in _roots(root) for place in (top / self.folder, top)]
        return next((place for place in places if all((place / file).is_file() for file in self.files)), None)

    def changed_files(self, folder: Path, graph: Graph) -> list[str]:
        """The files that are not the known ones; `graph` is what was read from them."""
        if self.content:
            return [] if graph.content_hash(64) == self.content else list(self.files)
        return [file for file in self.files if _sha256(folder / file) != PLANETOID_SHA256[file]]


def load(name: str | Path, root: str | Path | None = None, **options: Any) -> Graph:
    """A data set by name, or the graph in your own folder.

    Args:
        name: one of `DATASETS`; or a folder with nodes.csv and edges.csv; or a file that lists edges.
        root: the folder with the files of a named data set; see the top of this module.
        options: those of the data set, such as `n` and `seed` of "random"; those of `read_csv` for your own files.
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
        graph = dataset.read(folder)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read from {folder}: {error}") from error
    if changed := dataset.changed_files(folder, graph):
        note = f"{DOUBT}{_said_of(changed, folder)}: this is another graph than {graph.name}"
        graph = dataclasses.replace(graph, notes=(*graph.notes, note))
    return graph


def load_known(name: str, root: str | Path | None = None) -> Graph:
    """A named data set like `load`; files that are not the known ones are refused."""
    graph, dataset = load(name, root), DATASETS[name.lower()]
    folder = dataset.find(root)
    if folder is not None and (changed := dataset.changed_files(folder, graph)):
        raise ValueError(f"{_said_of(changed, folder)}; the known ones are needed here, from {dataset.url or name}")
    return graph


def _said_of(changed: Sequence[str], folder: Path) -> str:
    return (
        f"{', '.join(changed)} in {folder} {'has' if len(changed) == 1 else 'have'} another hash than the known files"
    )


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
    close = similar(str(name).lower(), DATASETS)
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


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256_of(path: Path, size: int, mtime_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(dataset: Dataset, file: str, path: Path) -> None:
    """Accept a downloaded file: Planetoid's by its bytes, an npz by its arrays, which may be packed in many ways."""
    if file in PLANETOID_SHA256:
        return require_sha256(path, PLANETOID_SHA256[file])
    content = read_npz_graph(path, "").content_hash(64)
    if content != dataset.content:
        raise ValueError(f"its arrays hash to {content[:16]}…, the published ones to {dataset.content[:16]}…")


def _planetoid(name: str, summary: str, paper: Counts, class_names: tuple[str, ...] = ()) -> Dataset:
    files = tuple(f"ind.{name}.{part}" for part in PLANETOID_PARTS)
    read = partial(read_planetoid, name=name, class_names=class_names)
    return Dataset(summary, read, "planetoid", files, PLANETOID_URL, paper=paper)


def _npz(name: str, file: str, summary: str, url: str = "", content: str = "", paper: Counts | None = None) -> Dataset:
    return Dataset(summary, lambda folder: read_npz_graph(folder / file, name), "npz", (file,), url, content, paper)


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
    "cora-ml": _npz(
        "cora-ml",
        "cora_ml.npz",
        "machine-learning papers, another cut",
        content="36462e4c0b27c56c6226f964eff19e4ca7069ca563cc349f6c6e11035a9a831c",
    ),
    "actor": _npz(
        "actor",
        "actor.npz",
        "actors on one page; heterophilous",
        content="55a052173e28056ba07da3d840eb7e9192448a1d2f652a512cdedd8c8c8c72f0",
    ),
    "chameleon-filtered": _npz(
        "chameleon-filtered",
        "chameleon_filtered.npz",
        "encyclopedia pages; heterophilous",
        content="24093f8b69ff672c35d5f871b64d17d2b67cc08d75b8403a5072b9f4826de5b7",
    ),
    "squirrel-filtered": _npz(
        "squirrel-filtered",
        "squirrel_filtered.npz",
        "encyclopedia pages; heterophilous",
        content="b4a13125a22d24ac52e1aae90087343ebee71a8e2a8f97fb172e32aa627e4964",
    ),
    "squirrel-directed": Dataset(
        "the same pages with the direction of their links",
        lambda folder: read_npz_graph(folder / "squirrel_filtered_directed.npz", "squirrel-directed", directed=True),
        "npz",
        ("squirrel_filtered_directed.npz",),
        content="97d180a79090b1abc2ea51a32517cccbe75a04152e9963295873e0de236ef806",
    ),
    "minesweeper": _npz(
        "minesweeper",
        "minesweeper.npz",
        "a board with mines; a table of 7 columns, score by AUC",
        content="a0558ad64ff78fc5bebc4351fce5b8df57f630628fdac76446d143a4c888099c",
    ),
    "karate": Dataset("a karate club that split in two (NetworkX)", karate),
    "digits": Dataset("handwritten digits joined to their nearest (scikit-learn)", digits),
    "random": Dataset("the paper's timing graphs, any size", random_graph),
    "sbm": Dataset("block model with chosen homophily and noise", block_model),
}
