"""A trained run as the files of a run folder, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.features import Block, check_blocks
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.predict import ClassScores, Scores
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.splits import Split
from gcn_lpa.tables.encoders import Columns
from gcn_lpa.train import Run
from gcn_lpa.trained import Trained

PLAN = "plan.json"
OUT_OF_FOLD = "out_of_fold.safetensors"


@dataclass(frozen=True)
class Results:
    """The scores of a run and what they are scores of: "test" nodes, "cross-validation", or "none"."""

    protocol: str
    note: str
    scores: Scores | None = None
    folds: tuple[float, ...] = ()  # accuracy of each fold


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


def save_run(folder: str | Path, run: TrainedRun) -> None:
    """Make a run folder of a trained run, entirely or not at all."""
    plan, graph = run.plan, run.graph
    facts = {
        "method": plan.recipe.method,
        "seed": plan.seed,
        "split": plan.split,
        "epochs": len(run.run.history),
        "best_epoch": run.run.best_epoch,
        "interrupted": run.run.interrupted,
        "checkpoint_every": plan.checkpoint_every,
        "reserve": plan.reserve,
        "seconds": run.run.seconds,
    }
    data = {
        **dataclasses.asdict(plan.source),
        "content": plan.content,
        "graph": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "stored": plan.with_data,
    }
    files = {
        **run.trained.encode(),
        "split.json": storage.encode_json(_encode_split(run.split, run.reserved), indent=None),
        "scores.json": storage.encode_json(dataclasses.asdict(run.results)),
        "environment.json": storage.encode_json(storage.environment()),
        "data.json": storage.encode_json(data),
        "run.json": storage.encode_json(facts),
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
    stored = "graph.safetensors" in files.files and data is None
    graph = decode_graph(files, plan.content) if stored else graph_of(plan, Path(folder), data)
    with files.explained("a run"):
        said = files.json("split.json")
        parts, reserved = _decode_split(said, graph.num_nodes), node_mask(said.get("reserved", []), graph.num_nodes)
        out_of_fold = None
        if OUT_OF_FOLD in files.files:
            out_of_fold = OutOfFold(**files.tensors(OUT_OF_FOLD))
            _check_out_of_fold(out_of_fold, graph, len(trained.class_names), files.folder)
    return TrainedRun(
        plan, graph, trained, parts, results, Path(folder), reserved if reserved.any() else None, out_of_fold
    )


def _check_out_of_fold(found: OutOfFold, graph: Graph, num_classes: int, folder: Path) -> None:
    m = len(found.node)
    shapes = (found.node.shape, found.fold.shape, found.probability.shape)
    if shapes != ((m,), (m,), (m, num_classes)) or not torch.isfinite(found.probability).all():
        raise ValueError(f"{folder / OUT_OF_FOLD} does not fit the run")
    if found.node.dtype != torch.int64 or (
        m and not (0 <= int(found.node.min()) <= int(found.node.max()) < graph.num_nodes)
    ):
        raise ValueError(f"{folder / OUT_OF_FOLD} names nodes that the graph does not have")


def finished_run(folder: Path, plan: Plan) -> TrainedRun:
    trained = load_run(folder)
    if trained.plan != plan:
        raise ValueError(f"{folder} holds a finished run with other settings or data; choose another folder")
    return trained


def read_plan(folder: Path) -> Plan:
    try:
        return Plan.from_dict(storage.read_json(folder / PLAN))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / PLAN}: not a plan that this version of gcn-lpa wrote: {error}") from error


def read_run(files: storage.RunFolder) -> tuple[Plan, Results]:
    with files.explained("a run"):
        data, facts, found = (files.json(name) for name in ("data.json", "run.json", "scores.json"))
        plan = Plan(
            Source(data["name"], data["root"], data["options"]),
            data["content"],
            Recipe.from_dict(files.json("recipe.json")),
            facts["seed"],
            facts["split"],
            data["stored"],
            facts["checkpoint_every"],
            facts["reserve"],
        )
        results = Results(found["protocol"], found["note"], _decode_scores(found["scores"]), tuple(found["folds"]))
    return plan, results


def _decode_scores(found: Mapping[str, Any] | None) -> Scores | None:
    if found is None:
        return None
    return Scores(**{**found, "per_class": {name: ClassScores(**row) for name, row in found["per_class"].items()}})


def graph_of(plan: Plan, folder: Path, data: str | Path | None) -> Graph:
    """The graph of a run from its source, or from `data`; it must be the one the run was trained on."""
    source = plan.source if data is None else dataclasses.replace(plan.source, name=str(data))
    try:
        graph = source.load()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the graph of {folder} cannot be read from {source.name!r} ({error}); say where it is with --data PATH"
        ) from error
    if (content := graph.content_hash(64)) != plan.content:
        raise ValueError(
            f"{source.name!r} is not the graph {folder} was trained on (content {content[:10]}…, not "
            f"{plan.content[:10]}…); say where that one is with --data PATH"
        )
    return graph


def _encode_split(parts: Split, reserved: Tensor | None = None) -> dict[str, Any]:
    masks = {"train": parts.train, "val": parts.val, "test": parts.test}
    masks |= {} if reserved is None else {"reserved": reserved}
    nodes = {name: mask.nonzero().squeeze(1).tolist() for name, mask in masks.items()}
    return {"kind": parts.kind, "seed": parts.seed, "hash": parts.hash, **nodes}


def _decode_split(parts: Mapping[str, Any], num_nodes: int) -> Split:
    train, val, test = (node_mask(parts[name], num_nodes, name) for name in ("train", "val", "test"))
    return Split(train, val, test, parts["kind"], parts["seed"])


def encode_graph(graph: Graph) -> dict[str, bytes]:
    """The files that hold a graph; only ids that are text or numbers can be kept in one."""
    names = None if isinstance(graph.node_names, range) else list(graph.node_names)
    if odd := [name for name in names or () if type(name) not in (str, int, float)]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    tensors = {"y": graph.y}
    for name, matrix in (("adjacency", graph.adjacency), ("x", graph.x)):
        if isinstance(matrix, SparseMatrix):
            tensors[f"{name}.rowptr"], tensors[f"{name}.col"] = matrix.pattern.rows.rowptr, matrix.pattern.col
            tensors[f"{name}.values"] = matrix.values
        else:
            tensors[name] = matrix
    facts = {
        "name": graph.name,
        "directed": graph.directed,
        "x_kind": graph.x_kind,
        "num_features": graph.num_features,
        "class_names": graph.class_names,
        "node_names": names,
        "notes": graph.notes,
        "public": None if graph.public is None else _encode_split(graph.public),
        "blocks": [dataclasses.asdict(block) for block in graph.blocks],
        "columns": None if graph.columns is None else graph.columns.to_json(),
    }
    return {
        "graph.safetensors": storage.encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": storage.encode_json(facts, indent=None),
    }


def decode_graph(files: storage.RunFolder, content: str | None = None) -> Graph:
    """The graph of a run folder; its arrays are checked before any kernel reads them, and against its content hash."""
    with files.explained("a graph"):
        graph = _decode_graph(files)
    if content is not None and graph.content_hash(64) != content:
        raise ValueError(f"{files.folder / 'graph.safetensors'} is not the graph the run was trained on")
    return graph


def _decode_graph(files: storage.RunFolder) -> Graph:
    tensors, facts = files.tensors("graph.safetensors"), files.json("graph.json")
    path, n, width = files.folder / "graph.safetensors", len(tensors["y"]), int(facts["num_features"])
    num_classes, names = len(facts["class_names"]), facts["node_names"]
    y = tensors["y"]
    if y.dtype != torch.int64 or y.dim() != 1 or (n and not (-1 <= int(y.min()) <= int(y.max()) < num_classes)):
        raise ValueError(f"{path}: y holds classes beyond the {num_classes} of graph.json")
    if names is not None and len(names) != n:
        raise ValueError(f"{files.folder / 'graph.json'} names {len(names)} nodes, but the graph has {n}")
    x = tensors["x"] if "x" in tensors else _decode_matrix(tensors, "x", (n, width), path)
    if x.shape != (n, width) or not torch.isfinite(x.values if isinstance(x, SparseMatrix) else x).all():
        raise ValueError(f"{path}: x is not {n} rows of {width} finite numbers")
    adjacency = _decode_matrix(tensors, "adjacency", (n, n), path)
    if not ((adjacency.values > 0) & torch.isfinite(adjacency.values)).all():
        raise ValueError(f"{path}: an edge has a weight that is not positive and finite")
    blocks = tuple(Block(**block) for block in facts.get("blocks", ()))
    check_blocks(blocks, width)
    return Graph(
        adjacency,
        x,
        y,
        tuple(facts["class_names"]),
        range(n) if names is None else names,
        facts["name"],
        facts["directed"],
        tuple(facts["notes"]),
        facts["x_kind"],
        None if facts["public"] is None else _decode_split(facts["public"], n),
        blocks,
        None if facts.get("columns") is None else Columns.from_json(facts["columns"]),
    )


def _decode_matrix(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int], path: Path) -> SparseMatrix:
    """A sparse matrix whose rows are ascending columns inside its shape, as the kernels trust it to be."""
    rowptr, col, values = (tensors[f"{name}.{part}"] for part in ("rowptr", "col", "values"))
    rows, entries = shape[0], len(col)
    is_integer = all(t.dim() == 1 and t.dtype in (torch.int32, torch.int64) for t in (rowptr, col))
    is_fine = is_integer and len(rowptr) == rows + 1 and values.shape == (entries,) and values.dtype == torch.float32
    if is_fine:
        rowptr, col = rowptr.long(), col.long()
        starts_right = int(rowptr[0]) == 0 and int(rowptr[-1]) == entries and bool((rowptr.diff() >= 0).all())
        is_fine = starts_right and (entries == 0 or (int(col.min()) >= 0 and int(col.max()) < shape[1]))
        if is_fine:
            row = torch.repeat_interleave(torch.arange(rows), rowptr.diff())
            is_fine = bool(((row * shape[1] + col).diff() > 0).all())
    if not is_fine:
        raise ValueError(f"{path}: the rows of {name} are not those of a matrix of {shape[0]} x {shape[1]}")
    return SparseMatrix(Pattern(rowptr, col, shape), values)
