"""A trained run as the files of a run folder, and back.

A run folder is that of `storage` with the files of a `Trained` and, beside them:

split.json                 which nodes train, validate and test, and which were reserved to calibrate
scores.json                the scores of the run and how they were found
data.json                  where the graph comes from, and its content hash
run.json                   seed, split and epochs
environment.json           versions and machine
out_of_fold.safetensors    what a cross-validation said, where there was one
graph.safetensors, graph.json   the graph itself, where that was asked for

While a training goes on there is plan.json, which says what is to be done, with its checksum. Nothing of a folder is trusted:
every file is checked against the others, and arrays are checked before a kernel reads them.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.edges import Free
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.features import Block, check_blocks
from gcn_lpa.graph import Graph
from gcn_lpa.intake import check_seed, node_mask, unique_names
from gcn_lpa.methods.team import models_of
from gcn_lpa.predict import Scores
from gcn_lpa.recipes import Recipe
from gcn_lpa.relations import MOST_KINDS, Relations
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.splits import Split
from gcn_lpa.tables.encoders import Columns
from gcn_lpa.train import Run
from gcn_lpa.trained import NAMES, X_KINDS, Trained

PLAN = "plan.json"
OUT_OF_FOLD = "out_of_fold.safetensors"
PROTOCOLS = ("test", "cross-validation", "none")


@dataclass(frozen=True)
class Results:
    """The scores of a run and what they are scores of: "test" nodes, "cross-validation", or "none"."""

    protocol: str
    note: str
    scores: Scores | None = None
    folds: tuple[float, ...] = ()  # accuracy of each fold
    random_split: Scores | None = None  # beside the scores on the future: those of as many nodes drawn at random


class OutOfFold(NamedTuple):
    """What the cross-validation said of every labelled node, by a model that was not given its label."""

    node: Tensor  # [m]
    fold: Tensor  # [m]
    probability: Tensor  # float32 [m, c]


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with everything around it. `graph` is raw, with all its labels; `split` says which were given."""

    plan: Plan
    graph: Graph
    trained: Trained
    split: Split
    results: Results
    folder: Path | None = None
    reserved: Tensor | None = None  # validation nodes that chose nothing, [n]
    out_of_fold: OutOfFold | None = None

    @property
    def run(self) -> Run:
        return self.trained.run

    @property
    def used(self) -> Tensor:
        """The nodes whose labels were given or are reserved to calibrate, [n]."""
        given = self.split.train | self.split.val
        return given if self.reserved is None else given | self.reserved


@dataclass(frozen=True)
class _DataFacts:
    """data.json."""

    name: str
    root: str | None
    options: dict[str, Any]
    content: str
    graph: str
    nodes: int
    edges: int
    stored: bool


@dataclass(frozen=True)
class _RunFacts:
    """run.json."""

    method: str
    seed: int
    split: str | None
    epochs: int
    best_epoch: int
    interrupted: bool
    checkpoint_every: int
    reserve: float
    seconds: float
    minutes: float = 0.0


@dataclass(frozen=True)
class _SplitFacts:
    """split.json, and the public split of a graph: positions of nodes."""

    kind: str
    seed: int | None
    hash: str
    train: list[int]
    val: list[int]
    test: list[int]
    reserved: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, parts: Split, reserved: Tensor | None = None) -> _SplitFacts:
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


def save_run(folder: str | Path, run: TrainedRun) -> None:
    """Make a run folder of a trained run, entirely or not at all."""
    plan, graph, source = run.plan, run.graph, run.plan.source
    facts = _RunFacts(
        plan.recipe.method,
        plan.seed,
        plan.split,
        len(run.run.history),
        run.run.best_epoch,
        run.run.interrupted,
        plan.checkpoint_every,
        plan.reserve,
        run.run.seconds,
        plan.minutes,
    )
    data = _DataFacts(
        source.name,
        source.root,
        source.options,
        plan.content,
        graph.name,
        graph.num_nodes,
        graph.num_edges,
        plan.with_data,
    )
    files = {
        **run.trained.encode(),
        "split.json": storage.encode_json(dataclasses.asdict(_SplitFacts.of(run.split, run.reserved)), indent=None),
        "scores.json": storage.encode_json(dataclasses.asdict(run.results)),
        "environment.json": storage.encode_json(storage.environment()),
        "data.json": storage.encode_json(dataclasses.asdict(data)),
        "run.json": storage.encode_json(dataclasses.asdict(facts)),
        **({} if run.out_of_fold is None else {OUT_OF_FOLD: storage.encode_tensors(run.out_of_fold._asdict())}),
        **(encode_graph(graph) if plan.with_data else {}),
    }
    storage.save(folder, files)


def load_run(folder: str | Path, data: str | Path | None = None) -> TrainedRun:
    """Read a run folder and the graph it was trained on.

    Args:
        data: where the graph is now, if not where it was.
    """
    files = storage.load(folder)
    plan, results = read_run(files)
    trained = Trained.decode(files)
    with files.explained("trained.json"):
        if trained.run.seed != plan.seed:
            raise ValueError(f"seed is {trained.run.seed}, but run.json says {plan.seed}")
    is_stored = plan.with_data and data is None
    graph = decode_graph(files, plan.content) if is_stored else graph_of(plan, Path(folder), data)
    with files.explained("split.json"):
        parts, reserved = files.read("split.json", _SplitFacts).masks(graph.num_nodes)
    _check_fit(files, trained, graph, parts)
    found = None
    if OUT_OF_FOLD in files.files:
        with files.explained(OUT_OF_FOLD):
            found = OutOfFold(**files.tensors(OUT_OF_FOLD))
            _check_out_of_fold(found, graph, len(trained.class_names))
    return TrainedRun(plan, graph, trained, parts, results, files.folder, reserved if reserved.any() else None, found)


def _check_fit(files: storage.RunFolder, trained: Trained, graph: Graph, parts: Split) -> None:
    """Refuse a model whose columns, labels or edges are not those of the graph and its split."""
    with files.explained("trained.json"):
        trained.check_columns(graph)
    with files.explained("labels.safetensors"):
        y, trains = trained.known.on(graph)
        if not torch.equal(trains, parts.train) or not torch.equal(y >= 0, parts.train | parts.val):
            raise ValueError("the known labels are not those of the nodes that split.json names")
        if not torch.equal(y, torch.where(y >= 0, trained.classes_of(graph), -1)):
            raise ValueError("the known labels are not those of the graph")
    free = [model.edges for model in models_of(trained.model) if isinstance(getattr(model, "edges", None), Free)]
    with files.explained("model.safetensors"):
        prepared = trained.prepare(graph) if free else graph
        if any(len(edges(prepared)) != prepared.pattern.num_entries for edges in free):  # type: ignore[operator]
            raise ValueError("it does not have one weight for each edge of the graph")


def _check_out_of_fold(found: OutOfFold, graph: Graph, num_classes: int) -> None:
    m, p = len(found.node), found.probability
    if found.node.dtype != torch.int64 or not torch.equal(found.node, graph.labeled.nonzero().squeeze(1)):
        raise ValueError("its nodes are not the labelled nodes of the graph")
    if found.fold.shape != (m,) or found.fold.dtype != torch.int64 or (m and int(found.fold.min()) < 0):
        raise ValueError("fold is not a number for each node")
    if p.shape != (m, num_classes) or p.dtype != torch.float32 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"probability is not {m} rows of {num_classes} probabilities")


def finished_run(folder: Path, plan: Plan) -> TrainedRun:
    """The run of a folder, which must be that of the plan."""
    trained = load_run(folder)
    if trained.plan != plan:
        raise ValueError(f"{folder} holds a finished run with other settings or data; choose another folder")
    return trained


def write_plan(folder: Path, plan: Plan) -> None:
    said = plan.to_dict()
    storage.write_json(folder / PLAN, {"plan": said, "sha256": storage.sha256_of(said)})


def read_plan(folder: Path) -> Plan:
    path = folder / PLAN
    said = storage.decode_json(storage.read_plain(path), path)
    if not isinstance(said, dict) or said.keys() != {"plan", "sha256"}:
        command = f"gcn-lpa train NAME_OR_FOLDER --out {shlex.quote(str(folder))} --overwrite"
        raise ValueError(f"{path}: not a plan that this version of gcn-lpa wrote; start anew: {command}")
    if storage.sha256_of(said["plan"]) != said["sha256"]:
        raise ValueError(f"{path}: its sha256 is not the one it names: changed after it was written")
    with storage.RunFolder(folder, {}).explained(PLAN):
        plan = Plan.from_dict(said["plan"])
        check_seed(plan.seed)
    return plan


def read_run(files: storage.RunFolder) -> tuple[Plan, Results]:
    """What was planned and what came of it."""
    data: _DataFacts = files.read("data.json", _DataFacts)
    facts: _RunFacts = files.read("run.json", _RunFacts)
    results: Results = files.read("scores.json", Results)
    with files.explained("run.json"):
        check_seed(facts.seed)
    with files.explained("scores.json"):
        _check_results(results)
    plan = Plan(
        Source(data.name, data.root, data.options),
        data.content,
        files.read("recipe.json", Recipe),
        facts.seed,
        facts.split,
        data.stored,
        facts.checkpoint_every,
        facts.reserve,
        facts.minutes,
    )
    return plan, results


def _check_results(results: Results) -> None:
    if results.protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {results.protocol!r:.40}; it is one of {', '.join(PROTOCOLS)}")
    if (found := results.scores) is None:
        return
    c = len(found.per_class)
    if c == 0 or found.num_nodes < 1 or [len(row) for row in found.confusion] != [c] * c:
        raise ValueError(f"the table of confusion is not one of {c} classes")


def graph_of(plan: Plan, folder: Path, data: str | Path | None) -> Graph:
    """The graph of a run from its source, or from `data`; it must be the one the run was trained on."""
    source = plan.source if data is None else dataclasses.replace(plan.source, name=str(data))
    try:
        graph = source.load()
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the last two: options of a wrong type
        raise ValueError(
            f"the graph of {folder} cannot be read from {source.name!r} ({error}); say where it is with --data PATH"
        ) from error
    if (content := graph.content_hash(64)) != plan.content:
        raise ValueError(
            f"{source.name!r} is not the graph {folder} was trained on (content {content[:10]}…, not "
            f"{plan.content[:10]}…); say where that one is with --data PATH"
        )
    return graph


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
    public: _SplitFacts | None
    blocks: tuple[Block, ...] = ()
    columns: Any = None
    relations: tuple[str, ...] = ()


def encode_graph(graph: Graph) -> dict[str, bytes]:
    """The files that hold a graph; only ids that are text or numbers can be kept in one."""
    names = None if isinstance(graph.node_names, range) else list(graph.node_names)
    if odd := [name for name in names or () if type(name) not in NAMES]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    tensors = {"y": graph.y} if graph.time is None else {"y": graph.y, "time": graph.time}
    kinds = Relations((), ()) if graph.relations is None else graph.relations
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
        None if graph.public is None else _SplitFacts.of(graph.public),
        graph.blocks,
        None if graph.columns is None else graph.columns.to_json(),
        kinds.names,
    )
    return {
        "graph.safetensors": storage.encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": storage.encode_json(dataclasses.asdict(facts), indent=None),
    }


def decode_graph(files: storage.RunFolder, content: str | None = None) -> Graph:
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
        if len(set(facts.relations)) != len(facts.relations) or len(facts.relations) > MOST_KINDS:
            raise ValueError(f"relations are at most {MOST_KINDS} kinds of edges, each named once")
        columns = None if facts.columns is None else Columns.from_json(facts.columns)
    described = facts.name, facts.directed, facts.notes, facts.x_kind
    relations = Relations(facts.relations, kinds) if kinds else None
    graph = Graph(adjacency, x, y, facts.class_names, names, *described, public, facts.blocks, columns, time, relations)
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
