"""A graph as the files of a run folder, and back: graph.safetensors has its arrays, graph.json everything else.

Nothing of the files is trusted: arrays are checked before a kernel reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.checks import node_mask, unique_names
from gcn_lpa.data.column_types import Columns
from gcn_lpa.data.edge_types import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.json_files import encode_json
from gcn_lpa.data.scaling import Block, check_blocks
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.runs.storage import RunFolder, encode_tensors
from gcn_lpa.runs.trained_files import NAMES, X_KINDS


@dataclass(frozen=True)
class SplitFacts:
    """split.json, and the public split of a graph: positions of nodes."""

    kind: str
    seed: int | None
    hash: str
    train: list[int]
    val: list[int]
    test: list[int]
    reserved: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, parts: Split, reserved: Tensor | None = None) -> SplitFacts:
        masks = parts.train, parts.val, parts.test, torch.zeros_like(parts.test) if reserved is None else reserved
        return cls(parts.kind, parts.seed, parts.hash, *(mask.nonzero().squeeze(1).tolist() for mask in masks))

    def masks(self, num_nodes: int) -> tuple[Split, Tensor]:
        """The split and the reserved nodes, [n]."""
        train, val = node_mask(self.train, num_nodes, "train"), node_mask(self.val, num_nodes, "val")
        test, reserved = node_mask(self.test, num_nodes, "test"), node_mask(self.reserved, num_nodes, "reserved")
        parts = Split(train, val, test, self.kind, self.seed)
        if parts.hash != self.hash:
            raise ValueError(f"the hash of the split is {parts.hash}, not {self.hash!r:.40}")
        if twice := (reserved & (parts.train | parts.val | parts.test)).nonzero().tolist():
            raise ValueError(f"node {twice[0][0]} is reserved and in the split")
        return parts, reserved


@dataclass(frozen=True)
class _GraphFacts:
    """graph.json."""

    name: str
    directed: bool
    x_kind: str
    num_features: int
    class_names: tuple[str, ...]
    node_names: list[Any] | None
    notes: tuple[str, ...]
    public: SplitFacts | None
    blocks: tuple[Block, ...] = ()
    columns: Any = None
    relations: tuple[str, ...] = ()


def encode_graph(graph: Graph) -> dict[str, bytes]:
    """The files that hold a graph; only ids that are text or numbers can be kept in one."""
    names = None if isinstance(graph.node_names, range) else list(graph.node_names)
    if odd := [name for name in names or () if type(name) not in NAMES]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    tensors = {"y": graph.y} if graph.time is None else {"y": graph.y, "time": graph.time}
    kinds = EdgeTypes((), ()) if graph.edge_types is None else graph.edge_types
    edges = ((f"relation-{k}", matrix) for k, matrix in enumerate(kinds.matrices))
    for name, matrix in (("adjacency", graph.adjacency), ("x", graph.x), *edges):
        if isinstance(matrix, SparseMatrix):
            tensors[f"{name}.rowptr"], tensors[f"{name}.col"] = matrix.pattern.rows.rowptr, matrix.pattern.col
            tensors[f"{name}.values"] = matrix.values
        else:
            tensors[name] = matrix
    facts = _GraphFacts(
        graph.name,
        graph.directed,
        graph.x_kind,
        graph.num_features,
        graph.class_names,
        names,
        graph.notes,
        None if graph.public is None else SplitFacts.of(graph.public),
        graph.blocks,
        None if graph.columns is None else graph.columns.to_json(),
        kinds.names,
    )
    return {
        "graph.safetensors": encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": encode_json(dataclasses.asdict(facts), indent=None),
    }


def decode_graph(files: RunFolder, content: str | None = None) -> Graph:
    """The graph of a run folder; its arrays are checked before any kernel reads them, and against its content hash."""
    facts: _GraphFacts = files.read("graph.json", _GraphFacts)
    with files.explained("graph.safetensors"):
        tensors = files.tensors("graph.safetensors")
        y, num_classes = tensors["y"], len(facts.class_names)
        n = len(y)
        if y.dtype != torch.int64 or y.dim() != 1 or not 0 < n < 2**31:
            raise ValueError("y is not a whole number for each node")
        if not -1 <= int(y.min()) <= int(y.max()) < num_classes:
            raise ValueError(f"y holds classes beyond the {num_classes} of graph.json")
        adjacency, x = _decode_edges(tensors, "adjacency", n), _decode_features(tensors, facts, n)
        kinds = tuple(_decode_edges(tensors, f"relation-{k}", n) for k in range(len(facts.relations)))
        time = tensors.get("time")
        if time is not None and (time.shape != (n,) or time.dtype != torch.float64 or not torch.isfinite(time).all()):
            raise ValueError("time is not a finite number for each node")
    with files.explained("graph.json"):
        names = range(n) if facts.node_names is None else _decode_names(facts.node_names, n)
        if len(set(facts.class_names)) != num_classes:
            raise ValueError("class_names names a class twice")
        public = None if facts.public is None else facts.public.masks(n)[0]
        check_blocks(facts.blocks, facts.num_features)
        if len(set(facts.relations)) != len(facts.relations) or len(facts.relations) > MOST_EDGE_TYPES:
            raise ValueError(f"relations are at most {MOST_EDGE_TYPES} edge types, each named once")
        columns = None if facts.columns is None else Columns.from_json(facts.columns)
    described = facts.name, facts.directed, facts.notes, facts.x_kind
    edge_types = EdgeTypes(facts.relations, kinds) if kinds else None
    graph = Graph(
        adjacency, x, y, facts.class_names, names, *described, public, facts.blocks, columns, time, edge_types
    )
    if content is not None and graph.content_hash(64) != content:
        raise ValueError(f"{files.folder / 'graph.safetensors'} is not the graph the run was trained on")
    return graph


def _decode_names(names: list[Any], num_nodes: int) -> Any:
    if len(names) != num_nodes:
        raise ValueError(f"it names {len(names)} nodes, but the graph has {num_nodes}")
    if odd := [name for name in names if type(name) not in NAMES]:
        raise ValueError(f"node_names holds {odd[0]!r:.40}; a node is named by text or a number")
    return unique_names(names)


def _decode_edges(tensors: Mapping[str, Tensor], name: str, num_nodes: int) -> SparseMatrix:
    edges = decode_matrix(tensors, name, (num_nodes, num_nodes))
    if not ((edges.values > 0) & torch.isfinite(edges.values)).all():
        raise ValueError("an edge has a weight that is not positive and finite")
    return edges


def _decode_features(tensors: Mapping[str, Tensor], facts: _GraphFacts, num_nodes: int) -> Tensor | SparseMatrix:
    shape = num_nodes, facts.num_features
    x = tensors["x"] if "x" in tensors else decode_matrix(tensors, "x", shape)
    values = x.values if isinstance(x, SparseMatrix) else x
    if x.shape != shape or values.dtype not in (torch.float32, torch.float16) or not torch.isfinite(values).all():
        raise ValueError(f"x is not {shape[0]} rows of {shape[1]} finite numbers")
    is_identity = isinstance(x, SparseMatrix) and x.is_identity
    if facts.x_kind not in X_KINDS or (facts.x_kind == "identity" and not is_identity):
        raise ValueError(f"x is not the features that graph.json calls {facts.x_kind!r:.40}")
    return x


def decode_matrix(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> SparseMatrix:
    """A sparse matrix whose rows are ascending columns inside its shape, as the kernels trust it to be."""
    rowptr, col, values = (tensors[f"{name}.{part}"] for part in ("rowptr", "col", "values"))
    if not _is_matrix(rowptr, col, shape) or values.shape != col.shape or values.dtype != torch.float32:
        raise ValueError(f"the rows of {name} are not those of a matrix of {shape[0]} x {shape[1]}")
    return SparseMatrix(Pattern(rowptr, col, shape), values)


def _is_matrix(rowptr: Tensor, col: Tensor, shape: tuple[int, int]) -> bool:
    num_rows, num_columns = shape
    if any(index.dim() != 1 or index.dtype not in (torch.int32, torch.int64) for index in (rowptr, col)):
        return False
    if len(rowptr) != num_rows + 1 or not 0 < num_columns < 2**31:
        return False
    rowptr, col = rowptr.long(), col.long()
    if int(rowptr[0]) != 0 or int(rowptr[-1]) != len(col) or int(rowptr.diff().min()) < 0:
        return False
    if len(col) and not 0 <= int(col.min()) <= int(col.max()) < num_columns:
        return False
    row = torch.repeat_interleave(torch.arange(num_rows), rowptr.diff())
    return bool(((row * num_columns + col).diff() > 0).all())
