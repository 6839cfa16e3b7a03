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
from gcn_lpa.calibration import (
    Calibrator,
)
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph, Split
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import ClassScores, Scores, predict_proba, with_prior
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.train import Epoch, Run

PLAN = "plan.json"


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
class Calibration:
    """How the probabilities of a run are corrected, and by which nodes: a key of PROMISES, and their number."""

    calibrator: Calibrator
    protocol: str
    num_nodes: int


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with everything around it. `graph` is raw, with all its labels; `split` says which were given."""

    plan: Plan
    graph: Graph
    model: Any
    run: Run
    split: Split
    results: Results
    folder: Path | None = None
    reserved: Tensor | None = None  # validation nodes that chose nothing, [n]
    out_of_fold: OutOfFold | None = None
    calibration: Calibration | None = None  # None: no label was left to calibrate on

    @property
    def given(self) -> Tensor:
        """The nodes whose labels the model was given, [n]."""
        return self.split.train | self.split.val

    @property
    def used(self) -> Tensor:
        """The nodes whose labels were given or are reserved to calibrate, [n]."""
        return self.given if self.reserved is None else self.given | self.reserved

    @property
    def calibrator(self) -> Calibrator:
        return Calibrator() if self.calibration is None else self.calibration.calibrator

    def probabilities(self) -> Tensor:
        """What the model says of every node, before calibration, [n, c]."""
        found = predict_proba(self.model, self.graph, recipe=self.plan.recipe)
        return with_prior(found, self.graph, self.given)


def save_run(folder: str | Path, trained: TrainedRun) -> None:
    """Make a run folder of a trained run, entirely or not at all."""
    plan, run, graph, parts = trained.plan, trained.run, trained.graph, trained.split
    files = {
        "recipe.json": storage.encode_json(plan.recipe.to_dict()),
        "model.safetensors": storage.encode_tensors(trained.model.state_dict()),
        "history.jsonl": storage.encode_lines(dataclasses.asdict(epoch) for epoch in run.history),
        "split.json": storage.encode_json(_encode_split(parts, trained.reserved), indent=None),
        "scores.json": storage.encode_json(dataclasses.asdict(trained.results)),
        "environment.json": storage.encode_json(storage.environment()),
        "data.json": storage.encode_json(
            {
                **dataclasses.asdict(plan.source),
                "content": plan.content,
                "graph": graph.name,
                "nodes": graph.num_nodes,
                "edges": graph.num_edges,
                "stored": plan.with_data,
            }
        ),
        "run.json": storage.encode_json(
            {
                "method": plan.recipe.method,
                "seed": run.seed,
                "split": plan.split,
                "epochs": len(run.history),
                "best_epoch": run.best_epoch,
                "interrupted": run.interrupted,
                "checkpoint_every": plan.checkpoint_every,
                "reserve": plan.reserve,
                "seconds": run.seconds,
            }
        ),
        **encode_calibration(trained),
        **(encode_graph(graph) if plan.with_data else {}),
    }
    storage.save(folder, files)


def load_run(folder: str | Path, data: str | Path | None = None) -> TrainedRun:
    """Read a run folder and the graph it was trained on.

    Args:
        data: where the graph is now, if not where it was.
    """
    files = storage.load(folder)
    plan, run, results = read_run(files)
    stored = "graph.safetensors" in files.files and data is None
    graph = decode_graph(files) if stored else graph_of(plan, Path(folder), data)
    said = files.json("split.json")
    parts, reserved = _decode_split(said, graph.num_nodes), _mask(said.get("reserved", []), graph.num_nodes)
    given = parts.train | parts.val
    model = METHODS[plan.recipe.method].build(plan.recipe, plan.recipe.prepare(graph.reveal(given)), plan.seed)
    try:
        model.load_state_dict(files.tensors())
    except RuntimeError as error:
        raise ValueError(
            f"{Path(folder) / 'model.safetensors'} does not fit recipe.json and the graph: {error}"
        ) from error
    trained = TrainedRun(plan, graph, model, run, parts, results, Path(folder))
    return dataclasses.replace(trained, reserved=reserved if reserved.any() else None, **_decode_calibration(files))


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


def read_run(files: storage.RunFolder) -> tuple[Plan, Run, Results]:
    try:
        data, facts, found = (files.json(name) for name in ("data.json", "run.json", "scores.json"))
        recipe = Recipe.from_dict(files.json("recipe.json"))
        plan = Plan(
            Source(data["name"], data["root"], data["options"]),
            data["content"],
            recipe,
            facts["seed"],
            facts["split"],
            data["stored"],
            facts["checkpoint_every"],
            facts.get("reserve", 0.0),
        )
        history = tuple(Epoch(**epoch) for epoch in files.lines("history.jsonl"))
        run = Run(recipe, facts["seed"], history, facts["best_epoch"], facts["interrupted"])
        results = Results(found["protocol"], found["note"], _decode_scores(found["scores"]), tuple(found["folds"]))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{files.folder}: not a run that this version of gcn-lpa wrote: {error!r}") from error
    if recipe.method not in METHODS:
        raise ValueError(f"{files.folder}: unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    return plan, run, results


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


def encode_calibration(trained: TrainedRun) -> dict[str, bytes]:
    """The files that hold a calibration and what it came from; none where there is none."""
    files: dict[str, bytes] = {}
    if trained.calibration is not None:
        files["calibration.json"] = storage.encode_json(dataclasses.asdict(trained.calibration))
    if trained.out_of_fold is not None:
        files["out_of_fold.safetensors"] = storage.encode_tensors(trained.out_of_fold._asdict())
    return files


def _decode_calibration(files: storage.RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        if "calibration.json" in files.files:
            said = files.json("calibration.json")
            calibrator = Calibrator(**{name: float(value) for name, value in said["calibrator"].items()})
            found["calibration"] = Calibration(calibrator, said["protocol"], int(said["num_nodes"]))
        if "out_of_fold.safetensors" in files.files:
            found["out_of_fold"] = OutOfFold(**files.tensors("out_of_fold.safetensors"))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{files.folder}: not a calibration that this version of gcn-lpa wrote: {error!r}") from error
    return found


def _encode_split(parts: Split, reserved: Tensor | None = None) -> dict[str, Any]:
    masks = {"train": parts.train, "val": parts.val, "test": parts.test}
    masks |= {} if reserved is None else {"reserved": reserved}
    nodes = {name: mask.nonzero().squeeze(1).tolist() for name, mask in masks.items()}
    return {"kind": parts.kind, "seed": parts.seed, "hash": parts.hash, **nodes}


def _decode_split(parts: Mapping[str, Any], num_nodes: int) -> Split:
    train, val, test = (_mask(parts[name], num_nodes) for name in ("train", "val", "test"))
    return Split(train, val, test, parts["kind"], parts["seed"])


def _mask(nodes: list[int], num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.tensor(nodes, dtype=torch.int64)] = True
    return mask


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
    }
    return {
        "graph.safetensors": storage.encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": storage.encode_json(facts, indent=None),
    }


def decode_graph(files: storage.RunFolder) -> Graph:
    tensors, facts = files.tensors("graph.safetensors"), files.json("graph.json")
    n = len(tensors["y"])

    def matrix(name: str, width: int) -> Tensor | SparseMatrix:
        if name in tensors:
            return tensors[name]
        pattern = Pattern(tensors[f"{name}.rowptr"], tensors[f"{name}.col"], (n, width))
        return SparseMatrix(pattern, tensors[f"{name}.values"])

    adjacency = matrix("adjacency", n)
    assert isinstance(adjacency, SparseMatrix)
    return Graph(
        adjacency,
        matrix("x", facts["num_features"]),
        tensors["y"],
        tuple(facts["class_names"]),
        range(n) if facts["node_names"] is None else facts["node_names"],
        facts["name"],
        facts["directed"],
        tuple(facts["notes"]),
        facts["x_kind"],
        None if facts["public"] is None else _decode_split(facts["public"], n),
    )
