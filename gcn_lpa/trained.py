"""What training gives: a model with everything that a prediction needs, and the folder that keeps it.

A `Trained` predicts on the graph it was trained on and on any other with the same columns. It never reads the labels of the
graph it is given: it knows those it was trained with, by the names of their nodes, and takes others only where it is told to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.calibration import Calibration, Calibrator
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.features import Scaling
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.methods.registry import METHODS, Method
from gcn_lpa.recipes import Recipe
from gcn_lpa.tables.encoders import Columns
from gcn_lpa.train import Epoch, Run

FORMAT = 2  # of the folder; 1 was kept before there was a Trained


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The labels a model was given, by node.

    Nodes with names are found again by them. Nodes without names are positions, which mean the same nodes only in a graph
    with the same edges.
    """

    nodes: Sequence[Hashable]  # names, or positions where `pattern` says in which graph
    y: Tensor  # class of each, [m]
    trains: Tensor  # whether it was learned from; the others chose the epoch, [m]
    pattern: str = ""  # fingerprint of the edges of a graph without names

    @classmethod
    def of(cls, graph: Graph, train: Tensor, val: Tensor) -> KnownLabels:
        at = (train | val).nonzero().squeeze(1)
        is_plain = isinstance(graph.node_names, range)
        nodes = at.tolist() if is_plain else [graph.node_names[i] for i in at.tolist()]
        fingerprint = graph.pattern.fingerprint if is_plain else ""
        return cls(nodes, graph.y.cpu().index_select(0, at), train.index_select(0, at), fingerprint)

    def on(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The class of each node of a graph, -1 where none is known, [n], and which of them were learned from, [n]."""
        y = torch.full((graph.num_nodes,), -1)
        trains = torch.zeros(graph.num_nodes, dtype=torch.bool)
        is_plain = isinstance(graph.node_names, range)
        if is_plain != bool(self.pattern) or (is_plain and self.pattern != graph.pattern.fingerprint):
            return y, trains
        found = np.asarray(self.nodes, dtype=np.int64) if is_plain else graph.positions_of(self.nodes)
        here = torch.from_numpy(found >= 0)
        at = torch.from_numpy(found)[here]
        y[at], trains[at] = self.y[here], self.trains[here]
        return y, trains


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A model, its recipe, its classes, what was learned of the columns, the labels it knows, and its calibration.

    `learn` makes one; `evaluate`, `predict_proba`, `predictions`, `explain`, `suggest` take it.
    """

    model: Any  # an nn.Module of the method, in eval mode
    recipe: Recipe
    class_names: tuple[str, ...]  # of the columns of its probabilities
    num_columns: int
    x_kind: str  # of the graph it was trained on: "given", "identity" or "degree"
    scaling: Scaling
    known: KnownLabels
    run: Run
    calibration: Calibration | None = None
    columns: Columns | None = None  # what was made of each column of the table of nodes

    def __repr__(self) -> str:
        return f"Trained: {self.recipe.method}, {len(self.class_names)} classes, {self.num_columns:,} columns; {self.run!r}"

    @property
    def method(self) -> Method:
        return METHODS[self.recipe.method]

    @property
    def device(self) -> torch.device:
        tensors = [*self.model.state_dict().values()]
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def calibrator(self) -> Calibrator:
        return Calibrator() if self.calibration is None else self.calibration.calibrator

    def with_calibration(self, calibration: Calibration | None) -> Trained:
        return dataclasses.replace(self, calibration=calibration)

    def given(self, graph: Graph) -> Tensor:
        """The nodes of a graph whose labels the model was given, to learn from or to choose the epoch, [n]."""
        return self.known.on(graph)[0] >= 0

    def prepare(self, graph: Graph, known: Any = None) -> Graph:
        """A raw graph as the model reads it: columns scaled, self-loops added, and no labels but those it may use.

        Args:
            known: nodes, a mask or positions, whose labels in `graph` are used; None: the labels it was trained on.
        """
        self.check_columns(graph)
        if known is None:
            y, trains = self.known.on(graph)
            y = torch.where(trains, y, -1)
        else:
            y = torch.where(node_mask(known, graph.num_nodes, "known"), self.classes_of(graph), -1)
        shown = dataclasses.replace(graph, y=y.to(graph.device), class_names=self.class_names)
        shown = shown.with_features(self.scaling)
        return shown.with_self_loops() if self.recipe.self_loops else shown

    def check_columns(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise TypeError(f"graph is a gcn_lpa.Graph, such as load gives, not {graph!r:.40}")
        if graph.num_features == self.num_columns and graph.x_kind == self.x_kind:
            return self._check_meaning(graph)
        if self.x_kind == "identity":
            raise ValueError(
                f"the model was trained without features, on a graph of {self.num_columns:,} nodes, and knows each of them by "
                f"its position; it cannot predict on one of {graph.num_nodes:,} nodes. Train with features, or on that graph"
            )
        raise ValueError(
            f"the model was trained on {self.num_columns:,} columns ({self.x_kind}), but {graph.name!r} has "
            f"{graph.num_features:,} ({graph.x_kind}); it needs the same columns in the same order"
        )

    def _check_meaning(self, graph: Graph) -> None:
        ours, theirs = self.columns, graph.columns
        if ours is not None and theirs is not None and ours is not theirs and not ours.means_the_same(theirs):
            raise ValueError(
                f"the columns of {graph.name!r} were read otherwise than those the model was trained on, so its features mean "
                "something else; read it with columns=trained.columns"
            )

    def classes_of(self, graph: Graph) -> Tensor:
        """The labels of a graph as classes of the model, -1 where there is none or the model does not know it, [n]."""
        if graph.class_names == self.class_names:
            return graph.y.cpu()
        place = {name: k for k, name in enumerate(self.class_names)}
        codes = torch.tensor([*(place.get(name, -1) for name in graph.class_names), -1])
        return codes.index_select(0, graph.y.cpu() % len(codes))  # -1 takes the last one

    def save_pretrained(self, folder: str | Path) -> None:
        """Keep it in a folder, entirely or not at all; `from_pretrained` reads it again."""
        storage.save(folder, self.encode())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Trained:
        """What `save_pretrained` or `gcn-lpa train --out` kept in a folder."""
        return cls.decode(storage.load(folder))

    def encode(self) -> dict[str, bytes]:
        """The files that hold it."""
        known = self.known
        if odd := [name for name in known.nodes if type(name) not in (str, int, float)]:
            raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
        facts = {
            "format": FORMAT,
            "class_names": self.class_names,
            "num_columns": self.num_columns,
            "x_kind": self.x_kind,
            "features": self.scaling.kind,
            "known": {"nodes": list(known.nodes), "pattern": known.pattern},
            "seed": self.run.seed,
            "best_epoch": self.run.best_epoch,
            "interrupted": self.run.interrupted,
        }
        learned = {name: torch.from_numpy(array) for name, array in self.scaling.arrays().items()}
        files = {
            "trained.json": storage.encode_json(facts),
            "recipe.json": storage.encode_json(self.recipe.to_dict()),
            "model.safetensors": storage.encode_tensors(self.model.state_dict()),
            "labels.safetensors": storage.encode_tensors({"y": known.y, "trains": known.trains, **learned}),
            "history.jsonl": storage.encode_lines(dataclasses.asdict(epoch) for epoch in self.run.history),
        }
        if self.columns is not None:
            files["columns.json"] = storage.encode_json(self.columns.to_json(), indent=None)
        if self.calibration is not None:
            files["calibration.json"] = storage.encode_json(dataclasses.asdict(self.calibration))
        return files

    @classmethod
    def decode(cls, files: storage.RunFolder) -> Trained:
        with files.explained("a model"):
            return cls._decode(files)

    @classmethod
    def _decode(cls, files: storage.RunFolder) -> Trained:
        facts = files.json("trained.json")
        recipe = Recipe.from_dict(files.json("recipe.json"))
        if recipe.method not in METHODS:
            raise ValueError(f"{files.folder}: unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
        labels = files.tensors("labels.safetensors")
        run = Run(
            recipe,
            facts["seed"],
            tuple(Epoch(**epoch) for epoch in files.lines("history.jsonl")),
            facts["best_epoch"],
            facts["interrupted"],
        )
        known = KnownLabels(facts["known"]["nodes"], labels["y"], labels["trains"], facts["known"]["pattern"])
        check_known(known, len(facts["class_names"]), files.folder)
        trained = cls(
            model=None,
            recipe=recipe,
            class_names=tuple(facts["class_names"]),
            num_columns=facts["num_columns"],
            x_kind=facts["x_kind"],
            scaling=_decode_scaling(labels, facts, files.folder),
            known=known,
            run=run,
            calibration=_decode_calibration(files),
            columns=_decode_columns(files, facts["num_columns"]),
        )
        return dataclasses.replace(trained, model=trained.new_model(files))

    def new_model(self, files: storage.RunFolder) -> Any:
        """A model with the tensors of a folder."""
        model: Any = self.method.build(self.recipe, self.blank(), self.run.seed)
        state = files.tensors()
        if broken := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
            raise ValueError(f"{files.folder / 'model.safetensors'}: {broken[0]} holds numbers that are not finite")
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{files.folder / 'model.safetensors'} does not fit recipe.json: {error}") from error
        return model.eval()

    def blank(self) -> Graph:
        """A graph without edges that has the columns and classes of the model: enough to build it."""
        n = self.num_columns if self.x_kind == "identity" else 1
        adjacency = SparseMatrix(
            Pattern(torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), (n, n)), torch.zeros(0)
        )
        width = self.num_columns + self.scaling.num_added
        x = SparseMatrix.identity(n) if self.x_kind == "identity" else torch.zeros(1, width)
        return Graph(adjacency, x, torch.full((n,), -1), self.class_names, range(n), x_kind=self.x_kind)


def check_known(known: KnownLabels, num_classes: int, folder: Path) -> None:
    """Refuse labels that a kernel could not index with."""
    sizes = {len(known.nodes), len(known.y), len(known.trains)}
    if len(sizes) > 1 or known.trains.dtype != torch.bool or known.y.dtype != torch.int64:
        raise ValueError(f"{folder / 'labels.safetensors'} does not fit trained.json")
    if len(known.y) and not (int(known.y.min()) >= 0 and int(known.y.max()) < num_classes):
        raise ValueError(f"{folder / 'labels.safetensors'} holds classes beyond the {num_classes} of trained.json")


def _decode_scaling(labels: Mapping[str, Tensor], facts: Mapping[str, Any], folder: Path) -> Scaling:
    learned = {name: tensor.numpy() for name, tensor in labels.items() if name not in ("y", "trains")}
    try:
        return Scaling.from_arrays(facts["features"], learned, facts["num_columns"])
    except ValueError as error:
        raise ValueError(f"{folder / 'labels.safetensors'} does not fit trained.json: {error}") from error


def _decode_columns(files: storage.RunFolder, num_columns: int) -> Columns | None:
    if "columns.json" not in files.files:
        return None
    columns = Columns.from_json(files.json("columns.json"))
    if columns.num_features not in (0, num_columns):  # 0: features stood in
        raise ValueError(f"{files.folder / 'columns.json'} makes {columns.num_features} features, not {num_columns}")
    return columns


def _decode_calibration(files: storage.RunFolder) -> Calibration | None:
    if "calibration.json" not in files.files:
        return None
    facts: Mapping[str, Any] = files.json("calibration.json")
    calibrator = Calibrator(**{name: float(value) for name, value in facts["calibrator"].items()})
    return Calibration(calibrator, facts["protocol"], int(facts["num_nodes"]))
