"""A graph cut into parts, one for each process: `gcn-lpa partition` writes the folder, and each rank reads its part of it.

parts.json                what the graph and the cut are; every rank reads it
scalings.safetensors      what was learned of all features to scale them, and of the structural features
part-K.safetensors        of rank K: its rows of the adjacency, which rows it reads of others and sends to them, the features of
                          its nodes, and the labels that train or validate
nodes.json, nodes.safetensors   names, labels and status of all nodes; rank 0 reads them when it writes results

Labels of test nodes are in nodes.safetensors alone, so that no rank has them while it trains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.describe import node_hops, unreachable
from gcn_lpa.data.files import encode_json, holding
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.tasks import clusters, with_target
from gcn_lpa.predict import has_nothing, status_of
from gcn_lpa.recipes import Case, Recipe, case_of
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import SPLIT_PARTS, checked, storable_names
from gcn_lpa.runs.plan import Source
from gcn_lpa.scale.ranks import Halo, Part, Ranks

FACTS, SCALINGS, NODES, NAMES_FILE = storage.PARTS, "scalings.safetensors", "nodes.safetensors", "nodes.json"
WAYS = ("metis", "stream")
METIS_ENTRIES = 4_000_000  # of the adjacency up to which METIS cuts it: of 20 million it takes 2.5 GB
STREAMS = 10  # times that all nodes are gone through
RUNS = 64  # of each part, that are moved at a time
SLACK = 0.05  # by which a part may have more nodes than its share
STATUS = ("labeled", "reached", "unreachable")
FROM = ("train", "val", "none")  # which labels reach a node: those that train, those of validation nodes alone, or none


@dataclass(frozen=True)
class PartFacts:
    """parts.json."""

    source: Source
    content: str  # hash of the graph
    cut: str  # hash of who owns which node
    graph: str
    edges: int
    directed: bool
    x_kind: str
    num_columns: int
    class_names: tuple[str, ...]
    known: tuple[str, ...]  # the classes that occur among training and validation labels
    label_counts: tuple[int, ...]  # of each of them
    split: str
    seed: int | None  # of the split
    split_hash: str
    sizes: tuple[int, ...]  # of train, val and test
    rows: tuple[int, ...]  # of each part
    halos: tuple[int, ...]
    entries: tuple[int, ...]
    pattern: str  # fingerprint of the adjacency
    looped: str  # with self-loops
    case: Case  # of the graph and its training labels, by which a recipe is chosen
    columns: Any = None  # what was made of each column of the table of nodes

    @property
    def parts(self) -> int:
        return len(self.rows)

    @property
    def num_nodes(self) -> int:
        return sum(self.rows)


def owners(graph: Graph, parts: int, by: str | None = None) -> np.ndarray:
    """The part of each node, [n]: by METIS, so that few edges are between parts, or `streamed`; None: by the number of edges."""
    by = by or ("metis" if graph.adjacency.num_entries <= METIS_ENTRIES else "stream")
    if by not in WAYS:
        raise ValueError(f"by = {by!r}; a graph is cut by {' or '.join(WAYS)}")
    if not 1 <= parts <= graph.num_nodes:
        raise ValueError(f"parts = {parts}; {graph.name!r} has {graph.num_nodes:,} nodes to share out")
    owner = clusters(graph, parts) if by == "metis" and parts > 1 else streamed(graph, parts)
    if len(empty := np.flatnonzero(np.bincount(owner, minlength=parts) == 0)):
        raise ValueError(f"part {empty[0]} would have no node; choose fewer parts, or by='stream'")
    return owner


def streamed(graph: Graph, parts: int) -> np.ndarray:
    """The part of each node, [n]: again and again, node after node, that of most of its neighbours, times the room left there.

    Linear deterministic greedy, restreamed (Nishimura and Ugander 2013), from ranges of nodes in their order. It takes a few bytes
    for each node, of which a short run is moved at a time.
    """
    n, rowptr, col = graph.num_nodes, graph.pattern.rowptr.numpy(), graph.pattern.col.numpy()
    ranges = np.arange(n) * parts // n
    owner, size, step, capacity = ranges.copy(), np.bincount(ranges), -(-n // (RUNS * parts)), (1 + SLACK) * n / parts
    for first in itertools.chain(*[range(0, n, step)] * STREAMS):
        size = size * (first > 0)
        run = slice(first, min(first + step, n))
        number = np.repeat(np.arange(run.stop - first), np.diff(rowptr[first : run.stop + 1]))
        near = np.bincount(number * parts + owner[col[rowptr[first] : rowptr[run.stop]]], minlength=(run.stop - first) * parts)
        owner[run] = ((near.reshape(-1, parts) + 1e-3) * (1 - size / capacity).clip(0)).argmax(axis=1)
        size += np.bincount(owner[run], minlength=parts)
    return owner if size.all() else ranges


def halos_of(matrix: scipy.sparse.csr_array, owner: np.ndarray) -> list[np.ndarray]:
    """The nodes of others that each part reads, those of part 0 first."""
    halos = []
    for rank in range(int(owner.max()) + 1):
        read = np.zeros(len(owner), dtype=bool)
        read[matrix[np.flatnonzero(owner == rank)].indices] = True
        others = np.flatnonzero(read & (owner != rank))
        halos.append(others[np.argsort(owner[others], kind="stable")])
    return halos


def cut(matrix: scipy.sparse.csr_array, owner: np.ndarray, halos: Sequence[np.ndarray], rank: int) -> dict[str, Tensor]:
    """The rows of a part, and what travels between it and others: tensors by name, as in part-K.safetensors."""
    nodes, halo = np.flatnonzero(owner == rank), halos[rank]
    place = np.zeros(len(owner), dtype=np.int32)
    place[nodes], place[halo] = np.arange(len(nodes)), len(nodes) + np.arange(len(halo))
    rows = matrix[nodes]  # their entries stay in the order of the whole graph, and so do sums over them
    sent = [place[other[owner[other] == rank]] for other in halos]
    arrays = {
        "ids": np.concatenate([nodes, halo]),
        "send": np.concatenate(sent).astype(np.int64),
        "sent": np.array([len(rows_sent) for rows_sent in sent]),
        "wanted": np.bincount(owner[halo], minlength=len(halos)),
        "adjacency.rowptr": rows.indptr,
        "adjacency.col": place[rows.indices],
        "adjacency.values": rows.data,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def write_partition(
    folder: str | Path, graph: Graph, source: Source, owner: np.ndarray, parts: Split, *, overwrite: bool = False
) -> PartFacts:
    """Write a graph in parts, entirely or not at all.

    Args:
        owner: the part of each node, [n], as `owners` gives it.
        parts: which nodes train, validate and test.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or (os.listdir(folder) and not (overwrite and storage.has_file(folder, FACTS)))):
        how = "it is no partition, so that it is not replaced" if overwrite else "--overwrite replaces a partition"
        raise ValueError(f"{folder} exists; choose another folder ({how})")
    if graph.edge_types is not None:
        raise ValueError("the parts of a graph do not tell edge types apart; leave relation=… out")
    names = storable_names(graph.node_names)
    given = parts.train | parts.val
    graph.target.only_classes(
        "the parts of a graph are trained to tell classes; these labels are numbers, which one process learns"
    )
    known = graph.reveal(given)
    known = with_target(known, known.target.fitted(known.y))
    if known.num_classes < 2 or not parts.train.any():
        raise ValueError(f"to tell classes apart it takes labels of two; the {parts.kind} split gives {known.num_classes}")
    matrix = graph.adjacency.to_scipy()
    rows, halos = np.bincount(owner), halos_of(matrix, owner)
    facts = PartFacts(
        source=source,
        content=graph.content_hash(64),
        cut=hashlib.sha256(owner.astype("<i8").tobytes()).hexdigest()[:16],
        graph=graph.name,
        edges=graph.num_edges,
        directed=graph.directed,
        x_kind=graph.x_kind,
        num_columns=graph.num_features,
        class_names=graph.class_names,
        known=known.class_names,
        label_counts=tuple(torch.bincount(known.y[known.labeled], minlength=known.num_classes).tolist()),
        split=parts.kind,
        seed=parts.seed,
        split_hash=parts.hash,
        sizes=tuple(int(mask.sum()) for mask in (parts.train, parts.val, parts.test)),
        rows=tuple(rows.tolist()),
        halos=tuple(map(len, halos)),
        entries=tuple(np.bincount(owner, np.diff(matrix.indptr)).astype(int).tolist()),
        pattern=graph.pattern.fingerprint,
        looped=graph.with_self_loops().pattern.fingerprint,
        case=case_of(graph, parts.train),
        columns=None if graph.columns is None else graph.columns.to_json(),
    )
    kind = parts.train.long() + 2 * parts.val.long() + 3 * parts.test.long()  # SPLIT_PARTS
    status = torch.tensor([STATUS.index(word) for word in status_of(node_hops(graph, given))])
    reach = unreachable(graph, parts.train).long() + unreachable(graph, given)
    nothing = has_nothing(graph) & (reach == FROM.index("none"))
    x, structure = graph.x, torch.from_numpy(graph.structural_features())

    def part(rank: int) -> bytes:
        shard = cut(matrix, owner, halos, rank)
        own = shard["ids"][: rows[rank]]
        shard |= {"y": known.y[own], "kind": kind[own], "nothing": nothing[own], "reach": reach[own]}
        shard["structure"] = structure[own]
        if isinstance(x, SparseMatrix):
            cells = SparseMatrix.from_scipy(x.to_scipy()[own.numpy()])
            shard |= {"x.rowptr": cells.pattern.rowptr, "x.col": cells.pattern.col, "x.values": cells.values}
        else:
            shard["x"] = x[own]
        return storage.encode_tensors(shard)

    files = {
        FACTS: encode_json(dataclasses.asdict(facts)),
        SCALINGS: storage.encode_tensors(_scalings(graph)),
        NAMES_FILE: encode_json(names, indent=None),
        NODES: storage.encode_tensors({"y": graph.y, "kind": kind, "status": status}),
    }
    of_ranks = ((part_name(rank), part(rank)) for rank in range(facts.parts))  # made one after the other
    with holding(folder):
        storage.check_free(folder, [*files, *map(part_name, range(facts.parts))])
        storage.replace(folder, itertools.chain(files.items(), of_ranks))
    return facts


def part_name(rank: int) -> str:
    return f"part-{rank}.safetensors"


def _scalings(graph: Graph) -> dict[str, Tensor]:
    """What each kind of scaling learns of all features: a rank cannot."""
    if graph.x_kind == "identity":
        return {}
    values = graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x
    kinds = ["auto", *(["tfidf"] if values.numel() == 0 or float(values.min()) >= 0 else [])]
    arrays = {f"{kind}.{name}": array for kind in kinds for name, array in graph.scaling(kind).arrays().items()}
    columns = graph.scaling("raw", structure=True).structure
    assert columns is not None
    return {name: torch.from_numpy(array) for name, array in {**arrays, "structure": columns}.items()}


def read_facts(folder: str | Path) -> PartFacts:
    """What a folder of parts says of itself."""
    files = storage.read(Path(folder), [FACTS])
    if files is None or FACTS not in files.files:
        raise ValueError(f"{folder} holds no parts of a graph: gcn-lpa partition NAME --parts N --out DIR makes them")
    facts: PartFacts = files.read(FACTS, PartFacts)
    with files.explained(FACTS):
        if not facts.rows or len({len(facts.rows), len(facts.halos), len(facts.entries)}) != 1 or min(facts.rows) < 1:
            raise ValueError("rows, halos and entries are not a number for each part")
        if len(facts.sizes) != 3 or len(facts.label_counts) != len(facts.known) or len(facts.known) < 2:
            raise ValueError("it takes the sizes of train, val and test, and two classes or more")
    return facts


@dataclass(frozen=True, eq=False)
class RankPart:
    """What one rank knows of a graph: prepared for a recipe, with the labels of its training nodes."""

    graph: Graph
    train: Tensor  # positions
    val: Tensor
    val_y: Tensor  # classes of `val`
    nothing: Tensor  # nodes of which nothing is known: neither features nor a label that could reach them, [own]
    reach: Tensor  # numbers of FROM, [own]
    scaling: Scaling

    @property
    def halo(self) -> Halo:
        pattern = self.graph.pattern
        assert isinstance(pattern, Part)
        return pattern.halo

    @property
    def ids(self) -> Tensor:
        """Of its own nodes in the whole graph, [own]."""
        return self.halo.ids[: self.graph.num_nodes]


def read_part(folder: str | Path, facts: PartFacts, recipe: Recipe, ranks: Ranks) -> RankPart:
    """The part of this rank, prepared as the recipe says; its arrays are checked before any kernel reads them."""
    name, own, halo_size = part_name(ranks.rank), facts.rows[ranks.rank], facts.halos[ranks.rank]
    files = storage.read(Path(folder), [name, SCALINGS])
    assert files is not None
    with files.explained(SCALINGS):
        scaling = _scaling_of(recipe, facts, files.read(SCALINGS))
    with files.explained(name):
        tensors = files.read(name)
        halo = _halo_of(tensors, facts, ranks.rank)
        adjacency = decode_matrix(tensors, "adjacency", (own, own + halo_size), halo.ids)
        if not ((adjacency.values > 0) & torch.isfinite(adjacency.values)).all():
            raise ValueError("an edge has a weight that is not positive and finite")
        problem = f"kind, y and nothing are not a part of the split, one of {len(facts.known)} classes and a mark for each node"
        kind = checked(tensors["kind"], (own,), torch.int64, problem, 0, 3)
        y = checked(tensors["y"], (own,), torch.int64, problem, -1, len(facts.known) - 1)
        nothing = checked(tensors["nothing"], (own,), torch.bool, problem)
        reach = checked(tensors["reach"], (own,), torch.int64, "reach does not say whose labels reach a node", 0, 2)
        structure = tensors["structure"].numpy()
        if structure.ndim != 2 or len(structure) != own or not np.isfinite(structure).all():
            raise ValueError(f"structure is not a row of finite numbers for each of {own} nodes")
        train, val = (kind == SPLIT_PARTS.index(part) for part in ("train", "val"))
        if (y[train | val] < 0).any():
            raise ValueError(f"y is not one of {len(facts.known)} classes wherever nodes train or validate")
        shape = own, facts.num_columns
        problem = f"x is not {own} rows of {facts.num_columns} finite numbers"
        if "x" in tensors:
            raw = checked(tensors["x"], shape, (torch.float32, torch.float16), problem).numpy()
        else:
            cells = decode_matrix(tensors, "x", shape)
            checked(cells.values, cells.values.shape, torch.float32, problem)
            raw = cells.to_scipy()
        scaled = scaling(raw, structure if scaling.num_added else None)
        if scaled.shape != (own, facts.num_columns + scaling.num_added):
            raise ValueError(problem)
    is_sparse = scipy.sparse.issparse(scaled)
    x = SparseMatrix.from_scipy(scaled) if is_sparse else torch.from_numpy(scaled.astype(np.float32))
    rowptr, col, values = adjacency.pattern.rowptr, adjacency.pattern.col, adjacency.values
    if recipe.self_loops:
        rowptr, col, values = with_loops(adjacency, halo.ids)
    part, shown = SparseMatrix(Part(rowptr, col, halo, ranks), values), torch.where(train, y, -1)
    about = facts.known, range(own), facts.graph, facts.directed
    blocks = scaling.blocks_of(x.shape[1])
    graph = Graph(part, x, shown, *about, x_kind=facts.x_kind, blocks=blocks)
    graph = graph.with_structural_features(structure)
    train_at, val_at = (mask.nonzero().squeeze(1) for mask in (train, val))
    return RankPart(graph, train_at, val_at, y[val], nothing, reach, scaling)


def with_loops(matrix: SparseMatrix, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """rowptr, col and values with a self-loop of weight 1 in every row without one; `ids` are the columns in the whole graph."""
    row, col = matrix.pattern.row.long(), matrix.pattern.col.long()
    own = torch.arange(matrix.shape[0])
    missing = own[~torch.zeros(len(own), dtype=torch.bool).index_fill(0, row[row == col], True)]
    row, col = torch.cat([row, missing]), torch.cat([col, missing])
    values = torch.cat([matrix.values, torch.ones(len(missing))])
    order = torch.from_numpy(np.lexsort((ids[col].numpy(), row.numpy())))
    rowptr = torch.cat([torch.zeros(1, dtype=torch.int64), row.bincount(minlength=len(own)).cumsum(0)])
    return rowptr, col[order], values[order]


def decode_matrix(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int], ids: Tensor | None = None) -> SparseMatrix:
    """A sparse matrix whose rows are ascending columns inside its shape, as the kernels trust it to be.

    Args:
        ids: by which the columns ascend; None: by their numbers.
    """
    rowptr, col, values = (tensors[f"{name}.{part}"] for part in ("rowptr", "col", "values"))
    problem = f"the rows of {name} are not those of a matrix of {shape[0]} x {shape[1]}"
    (num_rows, num_columns), m, whole = shape, len(col), (torch.int32, torch.int64)
    checked(rowptr, (num_rows + 1,), whole, problem, 0, m)
    checked(col, (m,), whole, problem, 0, min(num_columns, 2**31) - 1)
    if values.shape != (m,) or values.dtype != torch.float32 or num_columns < 1:
        raise ValueError(problem)
    size = rowptr.long().diff()
    if int(rowptr[0]) != 0 or int(rowptr[-1]) != m or int(size.min()) < 0:
        raise ValueError(problem)
    width, number = (num_columns, col) if ids is None else (int(ids.max()) + 1, ids[col.long()])
    place = torch.repeat_interleave(torch.arange(num_rows), size) * width + number
    if not (place.diff() > 0).all():
        raise ValueError(problem)
    return SparseMatrix(Pattern(rowptr, col, shape), values)


def _scaling_of(recipe: Recipe, facts: PartFacts, learned: Mapping[str, Tensor]) -> Scaling:
    if facts.x_kind == "identity":
        return Scaling("raw")
    prefix = f"{recipe.features}."
    arrays = {name.removeprefix(prefix): array.numpy() for name, array in learned.items() if name.startswith(prefix)}
    if recipe.features == "tfidf" and not arrays:
        raise ValueError("tfidf needs features that are counts, but some are negative")
    if recipe.structure:
        arrays["structure"] = learned["structure"].numpy()
    return Scaling.from_arrays(recipe.features, arrays, facts.num_columns)


def _halo_of(tensors: Mapping[str, Tensor], facts: PartFacts, rank: int) -> Halo:
    own, size = facts.rows[rank], facts.halos[rank]
    sent, wanted = tensors["sent"].tolist(), tensors["wanted"].tolist()
    fits = len(sent) == len(wanted) == facts.parts and min(*sent, *wanted) >= 0 and sent[rank] == wanted[rank] == 0
    problem = "what it sends and gets is not what its halo needs"
    if not fits or sum(wanted) != size:
        raise ValueError(problem)
    ids = checked(tensors["ids"], (own + size,), torch.int64, problem, 0, facts.num_nodes - 1)
    send = checked(tensors["send"], (sum(sent),), torch.int64, problem, 0, own - 1)
    return Halo(ids, send, sent, wanted, max(facts.rows))


@dataclass(frozen=True, eq=False)
class AllNodes:
    """What rank 0 knows of all nodes when it writes results."""

    names: Any
    y: Tensor  # as classes of the graph, [n]
    split: Split
    status: Tensor  # numbers of STATUS, [n]


def read_nodes(folder: str | Path, facts: PartFacts) -> AllNodes:
    files = storage.read(Path(folder), [NODES, NAMES_FILE])
    assert files is not None
    n = facts.num_nodes
    with files.explained(NODES):
        tensors, num_classes = files.read(NODES), len(facts.class_names)
        problem = f"y is not one of the {num_classes} classes of {FACTS} for each of {n} nodes"
        y = checked(tensors["y"], (n,), torch.int64, problem, -1, num_classes - 1)
        problem = f"kind is not the split of {FACTS}, or status is not one of {', '.join(STATUS)}"
        kind = checked(tensors["kind"], (n,), torch.int64, problem, 0, 3)
        status = checked(tensors["status"], (n,), torch.int64, problem, 0, len(STATUS) - 1)
        train, val, test = (kind == code for code in (1, 2, 3))
        parts = Split(train, val, test, facts.split)
        if parts.hash != facts.split_hash:
            raise ValueError(problem)
    with files.explained(NAMES_FILE):
        names = files.read(NAMES_FILE)
        if names is not None and (len(names) != n or len(set(names)) != n):
            raise ValueError(f"it does not name {n} nodes")
    return AllNodes(range(n) if names is None else names, y, parts, status)
