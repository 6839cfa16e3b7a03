"""What training gives: a model with everything that a prediction needs, and the folder that keeps it.

A `Trained` predicts on the graph it was trained on and on any other with the same columns. It knows the labels it was trained
with by the names of their nodes, and does not read those of the graph it is given unless `known` names them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.calibration import Calibration, Calibrator
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.features import Scaling
from gcn_lpa.fusion import Fusion
from gcn_lpa.graph import Graph
from gcn_lpa.growth import Grown
from gcn_lpa.intake import check_seed, node_mask, some
from gcn_lpa.markup import html_table
from gcn_lpa.methods.registry import METHODS, Method
from gcn_lpa.methods.team import Team, build_model
from gcn_lpa.recipes import Recipe
from gcn_lpa.relations import MOST_KINDS, Relations
from gcn_lpa.tables.encoders import Columns
from gcn_lpa.tables.mapped_files import NAME
from gcn_lpa.train import Epoch, Run

FORMAT = 2  # of the folder; 1 was kept before there was a Trained
NAMES = (str, int, float)  # of nodes, as JSON knows them
MOST_COPIES = 100  # models of each member of a team
X_KINDS = ("given", "identity", "degree")


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
        if is_plain and len(found) and not 0 <= found.min() <= found.max() < graph.num_nodes:
            raise ValueError(f"labels are known of node {found.max()}, but the graph has {graph.num_nodes} nodes")
        here = torch.from_numpy(found >= 0)
        at = torch.from_numpy(found)[here]
        y[at], trains[at] = self.y[here], self.trains[here]
        return y, trains


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What is said of labelled nodes by models that did not learn from their labels."""

    node: Tensor  # positions, [m]
    fold: Tensor  # the number of the fold that each is in, [m]
    probability: Tensor  # where labels vote, by weights that were fitted to the other folds, [m, c]


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
    fusion: Fusion | None = None  # how labels vote beside the model; None: they do not
    columns: Columns | None = None  # what was made of each column of the table of nodes
    held_out: HeldOut | None = None  # what the folds say of labels that they did not learn from; a run keeps it
    best_epochs: tuple[int, ...] = ()  # of the members of a team, while it is trained
    relations: Mapping[str, float] = field(default_factory=dict)  # how much each kind of edge tells

    def __repr__(self) -> str:
        return f"Trained: {self.recipe.method}, {len(self.class_names)} classes, {self.num_columns:,} columns; {self.run!r}"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        run, best = self.run, self.run.best
        rows = [
            ("method", f"{self.recipe.method}: {self.method.note}"),
            ("recipe", self.recipe.origin),
            ("classes", ", ".join(self.class_names[:20]) + (", …" if len(self.class_names) > 20 else "")),
            ("columns", f"{self.num_columns:,} ({self.x_kind})"),
            ("epoch", f"{run.best_epoch} of {len(run.history)}, {run.seconds:.1f} s"),
            ("validation", None if best.val_accuracy is None else f"{100 * best.val_accuracy:.1f} %"),
            ("probabilities", "not calibrated" if self.calibration is None else "calibrated"),
            *((f"weight of {name}", share) for name, share in self.shares.items()),
        ]
        return html_table("Trained", rows)

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

    @property
    def shares(self) -> dict[str, float]:
        """The share of the weight that the model of the recipe, each of its members, and the votes have; empty without votes."""
        if self.fusion is None:
            return {}
        names, weights = [self.recipe.method, *self.recipe.members.split()], self.fusion.weights
        found = dict(zip(names, weights, strict=False))
        found["votes"] = sum(weights[self.fusion.num_experts :])
        total = sum(found.values()) or 1.0
        return {name: weight / total for name, weight in found.items()}

    def with_calibration(self, calibration: Calibration | None) -> Trained:
        return dataclasses.replace(self, calibration=calibration)

    def predict(self, graph: Graph, *, before: Graph | None = None, extend: bool = False, **options: Any) -> Any:
        """The table of `predictions` for a graph that has grown, or for another with the same columns; its labels vote at once.

        Args:
            before, extend: as in `Grown.of`.
            options: of `predictions`.
        """
        return Grown.of(self, graph, before, extend=extend).table(**options)

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
        if self.relations:
            shown = dataclasses.replace(shown, relations=self._relations_of(graph))
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
                f"its position; it cannot predict on one of {graph.num_nodes:,} nodes. Train with features (features='degree' "
                "makes some of the edges), or on that graph; or say which graph it was trained on, before=…, and extend=True"
            )
        raise ValueError(
            f"the model was trained on {self.num_columns:,} columns ({self.x_kind}), but {graph.name!r} has "
            f"{graph.num_features:,} ({graph.x_kind}); it needs the same columns in the same order"
        )

    def _check_meaning(self, graph: Graph) -> None:
        ours, theirs = self.columns, graph.columns
        if ours is None and theirs is not None and self.x_kind == "given":
            raise ValueError(
                f"the model was trained on an array of features, such as {NAME}, but those of {graph.name!r} were read from "
                "columns of a table: nothing says that they mean the same"
            )
        if ours is not None and theirs is not None and ours is not theirs and not ours.means_the_same(theirs):
            raise ValueError(
                f"the columns of {graph.name!r} were read otherwise than those the model was trained on, so its features mean "
                "something else; read it with columns=trained.columns"
            )

    def _relations_of(self, graph: Graph) -> Relations:
        if graph.relations is None and graph.num_edges == 0:
            return Relations.without_edges(tuple(self.relations), graph.num_nodes).to(graph.device)
        if graph.relations is None:
            raise ValueError(
                f"the model weighs kinds of edges, {some(tuple(self.relations))}, but those of {graph.name!r} have none; "
                "read it with relation=…, the column of edges that says them"
            )
        return graph.relations.named(tuple(self.relations))

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
        if odd := [name for name in known.nodes if type(name) not in NAMES]:
            raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
        facts = _TrainedFacts(
            FORMAT,
            self.class_names,
            self.num_columns,
            self.x_kind,
            self.scaling.kind,
            list(known.nodes),
            known.pattern,
            self.run.seed,
            self.run.best_epoch,
            self.run.interrupted,
            self.model.copies if isinstance(self.model, Team) else 0,
            dict(self.relations),
        )
        learned = {name: torch.from_numpy(array) for name, array in self.scaling.arrays().items()}
        files = {
            "trained.json": storage.encode_json(dataclasses.asdict(facts)),
            "recipe.json": storage.encode_json(self.recipe.to_dict()),
            "model.safetensors": storage.encode_tensors(self.model.state_dict()),
            "labels.safetensors": storage.encode_tensors({"y": known.y, "trains": known.trains, **learned}),
            "history.jsonl": storage.encode_lines(dataclasses.asdict(epoch) for epoch in self.run.history),
        }
        if self.columns is not None:
            files["columns.json"] = storage.encode_json(self.columns.to_json(), indent=None)
        if self.calibration is not None:
            files["calibration.json"] = storage.encode_json(dataclasses.asdict(self.calibration))
        if self.fusion is not None:
            files["fusion.json"] = storage.encode_json(dataclasses.asdict(self.fusion))
        return files

    @classmethod
    def decode(cls, files: storage.RunFolder) -> Trained:
        """What `encode` gave, checked before anything is computed with it."""
        facts: _TrainedFacts = files.read("trained.json", _TrainedFacts)
        recipe: Recipe = files.read("recipe.json", Recipe)
        with files.explained("recipe.json"):
            if recipe.method not in METHODS:
                raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
        with files.explained("trained.json"):
            _check_facts(facts, recipe)
        with files.explained("history.jsonl"):
            history = storage.decode_as(tuple[Epoch, ...], files.lines("history.jsonl"))
            if [epoch.epoch for epoch in history] != list(range(1, len(history) + 1)):
                raise ValueError("the epochs are not numbered 1, 2, …")
            if not 1 <= facts.best_epoch <= len(history):
                raise ValueError(f"it has {len(history)} epochs, but the best is {facts.best_epoch} in trained.json")
        with files.explained("labels.safetensors"):
            known, scaling = _decode_labels(files.tensors("labels.safetensors"), facts)
        calibration = None
        if "calibration.json" in files.files:
            calibration = files.read("calibration.json", Calibration)
        fusion = files.read("fusion.json", Fusion) if "fusion.json" in files.files else None
        trained = cls(
            model=None,
            recipe=recipe,
            class_names=facts.class_names,
            num_columns=facts.num_columns,
            x_kind=facts.x_kind,
            scaling=scaling,
            known=known,
            run=Run(recipe, facts.seed, history, facts.best_epoch, facts.interrupted),
            calibration=calibration,
            fusion=fusion,
            columns=_decode_columns(files, facts.num_columns),
            relations=facts.relations,
        )
        with files.explained("model.safetensors"):
            return dataclasses.replace(trained, model=trained._decode_model(files, facts.copies))

    def _decode_model(self, files: storage.RunFolder, copies: int) -> Any:
        """A model with the tensors of a folder."""
        state, num_bytes = files.tensors(), len(files.content("model.safetensors"))
        # a model that is sized by its columns has four bytes for each; one that is not can be built for one column
        blank = self._blank(min(self.num_columns, num_bytes))
        model: Any = build_model(self.recipe, blank, self.run.seed, copies)
        for name, tensor in model.state_dict().items():
            found = state.get(name)
            if found is not None and found.dtype != tensor.dtype:
                raise ValueError(f"{name} is of {found.dtype}; it is of {tensor.dtype}")
            if found is not None and not torch.isfinite(found).all():
                raise ValueError(f"{name} holds numbers that are not finite")
        model.load_state_dict(state)
        return model.eval()

    def _blank(self, num_columns: int) -> Graph:
        """A graph of one node that has the columns and classes of the model: enough to build it."""
        nothing = torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        widths = 1, num_columns + self.scaling.num_added
        adjacency, x = (SparseMatrix(Pattern(*nothing, (1, width)), torch.zeros(0)) for width in widths)
        relations = Relations.without_edges(tuple(self.relations), 1) if self.relations else None
        known = torch.tensor([-1]), self.class_names, range(1)
        blocks = self.scaling.blocks_of(self.num_columns + self.scaling.num_added)
        return Graph(adjacency, x, *known, x_kind=self.x_kind, relations=relations, blocks=blocks)


@dataclass(frozen=True)
class _TrainedFacts:
    """trained.json."""

    format: int
    class_names: tuple[str, ...]
    num_columns: int
    x_kind: str
    features: str
    nodes: list[Any]  # of KnownLabels, as `pattern` is
    pattern: str
    seed: int
    best_epoch: int
    interrupted: bool
    copies: int = 0  # of a team: models of each member
    relations: dict[str, float] = field(default_factory=dict)


def _check_facts(facts: _TrainedFacts, recipe: Recipe) -> None:
    if facts.format != FORMAT:
        raise ValueError(f"format {facts.format}, but this version of gcn-lpa reads format {FORMAT}")
    if facts.x_kind not in X_KINDS:
        raise ValueError(f"x_kind is {facts.x_kind!r:.40}; it is one of {', '.join(X_KINDS)}")
    if facts.num_columns < 1:
        raise ValueError(f"num_columns is {facts.num_columns}; it is at least 1")
    features = "raw" if facts.x_kind == "identity" else recipe.features
    if facts.features != features:
        raise ValueError(f"features is {facts.features!r:.40}, but recipe.json says {features!r}")
    if len(set(facts.class_names)) != len(facts.class_names):
        raise ValueError("class_names names a class twice")
    if not (1 if recipe.members else 0) <= facts.copies <= MOST_COPIES:
        raise ValueError(f"copies is {facts.copies}; it is 1 to {MOST_COPIES}, or 0 for a single model")
    if bool(facts.relations) != (recipe.propagation == "relations"):
        said = f"{recipe.propagation!r} in recipe.json"
        raise ValueError(f"relations names {len(facts.relations)} kinds of edges, but propagation is {said}")
    if len(facts.relations) > MOST_KINDS or not all(0 <= share <= 1 for share in facts.relations.values()):
        raise ValueError(f"relations are at most {MOST_KINDS} kinds of edges, each with a share between 0 and 1")
    check_seed(facts.seed)
    kinds = (int,) if facts.pattern else NAMES
    if odd := [name for name in facts.nodes if type(name) not in kinds]:
        raise ValueError(f"nodes holds {odd[0]!r:.40}; a node is named by text or a number, or by its position")
    if len(set(facts.nodes)) != len(facts.nodes):
        raise ValueError("nodes names a node twice")


def _decode_labels(tensors: Mapping[str, Tensor], facts: _TrainedFacts) -> tuple[KnownLabels, Scaling]:
    y, trains = tensors["y"], tensors["trains"]
    wanted = (len(facts.nodes),)
    if y.shape != wanted or trains.shape != wanted or (y.dtype, trains.dtype) != (torch.int64, torch.bool):
        raise ValueError(f"y and trains are not those of the {wanted[0]} nodes of trained.json")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(facts.class_names):
        raise ValueError(f"y holds classes beyond the {len(facts.class_names)} of trained.json")
    learned = {name: tensor.numpy() for name, tensor in tensors.items() if name not in ("y", "trains")}
    scaling = Scaling.from_arrays(facts.features, learned, facts.num_columns)
    return KnownLabels(facts.nodes, y, trains, facts.pattern), scaling


def _decode_columns(files: storage.RunFolder, num_columns: int) -> Columns | None:
    if "columns.json" not in files.files:
        return None
    with files.explained("columns.json"):
        columns = Columns.from_json(files.json("columns.json"))
        if columns.num_features not in (0, num_columns):  # 0: features stood in
            raise ValueError(f"it makes {columns.num_features} features, not {num_columns}")
    return columns
