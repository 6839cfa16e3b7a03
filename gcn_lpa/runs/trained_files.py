"""A `Trained` as files, and back; what is read is checked before anything is computed with it.

trained.json          classes, columns, known nodes, epochs, calibration, weights of members and label votes
recipe.json           the recipe
model.safetensors     the weights of all models
labels.safetensors    the known labels, what was learned of the columns for scaling, and predictions for held-out labels

A graph is kept as graph.safetensors, its arrays, and graph.json, everything else; arrays are checked before a kernel reads them.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.checks import check_seed, unique_names
from gcn_lpa.data.constructors import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.files import encode_json
from gcn_lpa.data.scaling import Block, Scaling, check_blocks
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.train import Epoch, Run
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.storage import RunFolder, encode_tensors
from gcn_lpa.target import Classes
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

NAMES = (str, int, float)  # of nodes, as JSON knows them
MOST_COPIES = 100  # models of each member
X_KINDS = ("given", "identity", "degree")
PROTOCOLS = ("cross-validation", "validation", "reserved")  # of held-out labels
LABELS, HELD_OUT = "labels.safetensors", "held_out."  # the prefix of arrays
SPLIT_PARTS = ("", "train", "val", "test", "reserved")  # by the number that stands for them


@dataclass(frozen=True)
class _TrainedFacts:
    """trained.json."""

    class_names: tuple[str, ...]
    num_columns: int
    x_kind: str
    nodes: list[Any]  # of KnownLabels, as `pattern` is
    pattern: str
    copies: int
    relations: dict[str, float]  # the share of each edge type
    seed: int
    best_epoch: int
    interrupted: bool
    held_out: str  # the protocol; "" where no labels were held out
    history: tuple[Epoch, ...]
    calibration: Calibration | None
    weights: EnsembleWeights | None
    columns: Any

    def __post_init__(self) -> None:
        check_seed(self.seed)
        kinds = (int,) if self.pattern else NAMES
        odd = [name for name in self.nodes if type(name) not in kinds][:1]
        shares = self.relations.values()
        problems = {
            f"x_kind is {self.x_kind!r:.40}; it is one of {', '.join(X_KINDS)}": self.x_kind not in X_KINDS,
            f"num_columns is {self.num_columns}; it is at least 1": self.num_columns < 1,
            "class_names names a class twice": len(set(self.class_names)) != len(self.class_names),
            f"copies is {self.copies}; it is 1 to {MOST_COPIES}": not 1 <= self.copies <= MOST_COPIES,
            f"relations are at most {MOST_EDGE_TYPES} edge types, each with a share between 0 and 1": (
                len(shares) > MOST_EDGE_TYPES or not all(0 <= share <= 1 for share in shares)
            ),
            f"held_out is {self.held_out!r:.40}; it is one of {', '.join(PROTOCOLS)}": (
                self.held_out not in ("", *PROTOCOLS)
            ),
            f"nodes holds {str(odd)[1:-1]:.40}; a node is named by text or a number, or by its position": bool(odd),
            "nodes names a node twice": not odd and len(set(self.nodes)) != len(self.nodes),
            "the epochs are not numbered 1, 2, …": (
                [epoch.epoch for epoch in self.history] != list(range(1, len(self.history) + 1))
            ),
            f"it has {len(self.history)} epochs, but the best is {self.best_epoch}": (
                not 1 <= self.best_epoch <= len(self.history)
            ),
        }
        for problem, holds in problems.items():
            if holds:
                raise ValueError(problem)

    def check_fit(self, recipe: Recipe) -> None:
        """Refuse what does not go with the recipe."""
        if bool(self.relations) != (recipe.propagation == "relations"):
            propagation = f"{recipe.propagation!r} in recipe.json"
            raise ValueError(f"relations names {len(self.relations)} edge types, but propagation is {propagation}")
        num_members = len(members_of(recipe))
        if self.weights is not None and self.weights.num_members != num_members:
            raise ValueError(f"num_members is {self.weights.num_members}, but recipe.json has {num_members}")


def encode_trained(trained: Trained) -> dict[str, bytes]:
    """The files that hold it."""
    known, run, held_out = trained.known, trained.run, trained.held_out
    facts = _TrainedFacts(
        class_names=trained.class_names,
        num_columns=trained.num_columns,
        x_kind=trained.x_kind,
        nodes=storable_names(known.nodes) or list(known.nodes),
        pattern=known.pattern,
        copies=trained.model.copies,
        relations=dict(trained.relations),
        seed=run.seed,
        best_epoch=run.best_epoch,
        interrupted=run.interrupted,
        held_out="" if held_out is None else held_out.protocol,
        history=run.history,
        calibration=trained.calibration,
        weights=trained.weights,
        columns=None if trained.columns is None else trained.columns.to_json(),
    )
    arrays = {name: torch.from_numpy(array) for name, array in trained.scaling.arrays().items()}
    if held_out is not None:
        more = {name: getattr(held_out, name) for name in ("node", "y", "probability", "fold")}
        arrays |= {HELD_OUT + name: tensor for name, tensor in more.items() if tensor is not None}
    return {
        "trained.json": encode_json(dataclasses.asdict(facts), indent=None),
        "recipe.json": encode_json(trained.recipe.to_dict()),
        "model.safetensors": encode_tensors(trained.model.state_dict()),
        LABELS: encode_tensors({"y": known.y, "trains": known.trains, **arrays}),
    }


def decode_trained(files: RunFolder) -> Trained:
    """What `encode_trained` gave."""
    facts: _TrainedFacts = files.read("trained.json", _TrainedFacts)
    recipe: Recipe = files.read("recipe.json", Recipe)
    with files.explained("recipe.json"):
        if recipe.method not in METHODS:
            raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    with files.explained("trained.json"):
        facts.check_fit(recipe)
        columns = None if facts.columns is None else Columns.from_json(facts.columns)
        if columns is not None and columns.num_features not in (0, facts.num_columns):  # 0: features stood in
            raise ValueError(f"columns make {columns.num_features} features, not {facts.num_columns}")
    with files.explained(LABELS):
        arrays = files.read(LABELS)
        known, scaling = _decode_labels(arrays, facts, recipe)
        held_out = _decode_held_out(arrays, facts)
    with files.explained("model.safetensors"):
        model = _decode_model(files, facts, recipe, scaling)
    return Trained(
        model=model,
        recipe=recipe,
        target=Classes(facts.class_names),
        num_columns=facts.num_columns,
        x_kind=facts.x_kind,
        scaling=scaling,
        known=known,
        run=Run(recipe, facts.seed, facts.history, facts.best_epoch, facts.interrupted),
        calibration=facts.calibration,
        weights=facts.weights,
        columns=columns,
        held_out=held_out,
        relations=facts.relations,
    )


def _decode_labels(arrays: Mapping[str, Tensor], facts: _TrainedFacts, recipe: Recipe) -> tuple[KnownLabels, Scaling]:
    shape, num_classes = (len(facts.nodes),), len(facts.class_names)
    problem = f"y and trains are not those of the {shape[0]} nodes of trained.json"
    y, trains = checked(arrays["y"], shape, torch.int64, problem), checked(arrays["trains"], shape, torch.bool, problem)
    checked(y, shape, torch.int64, f"y holds classes beyond the {num_classes} of trained.json", 0, num_classes - 1)
    learned = {name: array.numpy() for name, array in arrays.items() if name not in ("y", "trains")}
    learned = {name: array for name, array in learned.items() if not name.startswith(HELD_OUT)}
    features = "raw" if facts.x_kind == "identity" else recipe.features
    scaling = Scaling.from_arrays(features, learned, facts.num_columns)
    return KnownLabels(facts.nodes, y, trains, facts.pattern), scaling


def _decode_held_out(arrays: Mapping[str, Tensor], facts: _TrainedFacts) -> HeldOut | None:
    if not facts.held_out:
        return None
    node, fold = arrays[f"{HELD_OUT}node"], arrays.get(f"{HELD_OUT}fold")
    m, c = len(node), len(facts.class_names)
    checked(node, (m,), torch.int64, problem := "node is not a list of positions, each after the last", least=0)
    if not (node.diff() > 0).all():
        raise ValueError(problem)
    if (fold is not None) != (facts.held_out == "cross-validation"):
        raise ValueError(f"fold goes with a cross-validation, and these labels are {facts.held_out}")
    if fold is not None:
        checked(fold, (m,), torch.int64, "fold is not a number for each node", least=0)
    problem = f"y is not a class for each node, one of the {c} of trained.json"
    y = checked(arrays[f"{HELD_OUT}y"], (m,), torch.int64, problem, 0, c - 1)
    problem = f"probability is not {m} rows of {c} probabilities"
    p = checked(arrays[f"{HELD_OUT}probability"], (m, c), torch.float64, problem, 0, 1)
    return HeldOut(node, y, p, facts.held_out, fold)


def checked(
    tensor: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype | tuple[torch.dtype, ...],
    problem: str,
    least: float = -sys.float_info.max,
    most: float = sys.float_info.max,
) -> Tensor:
    """A tensor of a file, which has this shape and type, and numbers from `least` to `most`; else `problem` says what is wrong."""
    fits = tensor.shape == torch.Size(shape) and tensor.dtype in (dtype if isinstance(dtype, tuple) else (dtype,))
    if fits and tensor.numel() and tensor.dtype != torch.bool:
        low, high = map(float, tensor.aminmax())
        fits = least <= low and high <= most  # not a NaN either
    if not fits:
        raise ValueError(problem)
    return tensor


def _decode_model(files: RunFolder, facts: _TrainedFacts, recipe: Recipe, scaling: Scaling) -> Ensemble:
    """An ensemble with the tensors of a folder."""
    state, num_bytes = files.read("model.safetensors"), len(files.files["model.safetensors"])
    # a model that is sized by its columns has four bytes for each; one that is not can be built for one column
    blank = _blank(facts, scaling, min(facts.num_columns, num_bytes))
    recipes = members_of(recipe).values()
    ensemble = Ensemble(
        [[METHODS[one.method].build(one, blank, facts.seed) for _ in range(facts.copies)] for one in recipes]
    )
    for name, tensor in ensemble.state_dict().items():
        kept = state.get(name, tensor)
        if kept.dtype != tensor.dtype:
            raise ValueError(f"{name} is of {kept.dtype}; it is of {tensor.dtype}")
        if not torch.isfinite(kept).all():
            raise ValueError(f"{name} holds numbers that are not finite")
    ensemble.load_state_dict(state)
    return ensemble.eval()


def _blank(facts: _TrainedFacts, scaling: Scaling, num_columns: int) -> Graph:
    """A graph of one node that has the columns and classes of the model: enough to build it."""
    nothing = torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    widths = 1, num_columns + scaling.num_added
    adjacency, x = (SparseMatrix(Pattern(*nothing, (1, width)), torch.zeros(0)) for width in widths)
    types = EdgeTypes.without_edges(tuple(facts.relations), 1) if facts.relations else None
    blocks = scaling.blocks_of(facts.num_columns + scaling.num_added)
    y, names = torch.tensor([-1]), facts.class_names
    return Graph(adjacency, x, y, names, range(1), x_kind=facts.x_kind, edge_types=types, blocks=blocks)


@dataclass(frozen=True)
class SplitFacts:
    """A split and the reserved nodes, as JSON."""

    kind: str
    seed: int | None
    hash: str
    nodes: str  # one digit for each: its place in SPLIT_PARTS

    @classmethod
    def of(cls, parts: Split, reserved: Tensor | None = None) -> SplitFacts:
        number = parts.train + 2 * parts.val.byte() + 3 * parts.test.byte()
        number += 0 if reserved is None else 4 * reserved.byte()
        return cls(parts.kind, parts.seed, parts.hash, (number + ord("0")).numpy().tobytes().decode())

    def masks(self, num_nodes: int) -> tuple[Split, Tensor]:
        """The split and the reserved nodes, [n]."""
        if re.fullmatch(f"[0-4]{{{num_nodes}}}", self.nodes) is None:
            raise ValueError(f"the split is not one digit from 0 to 4 for each of {num_nodes} nodes")
        number = torch.frombuffer(bytearray(self.nodes.encode()), dtype=torch.uint8) - ord("0")
        train, val, test, reserved = (number == k for k in range(1, 5))
        parts = Split(train, val, test, self.kind, self.seed)
        if parts.hash != self.hash:
            raise ValueError(f"the hash of the split is {parts.hash}, not {self.hash!r:.40}")
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


def storable_names(names: Sequence[Any]) -> list[Any] | None:
    """Ids that JSON knows, text and numbers; None: positions."""
    if isinstance(names, range):
        return None
    if odd := [name for name in names if type(name) not in NAMES]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    return list(names)


def encode_graph(graph: Graph) -> dict[str, bytes]:
    """The files that hold a graph; only ids that are text or numbers can be kept in one."""
    names = storable_names(graph.node_names)
    tensors = {"y": graph.y} if graph.time is None else {"y": graph.y, "time": graph.time}
    kinds = EdgeTypes((), ()) if graph.edge_types is None else graph.edge_types
    edges = ((f"relation-{k}", matrix) for k, matrix in enumerate(kinds.matrices))
    for name, matrix in (("adjacency", graph.adjacency), ("x", graph.x), *edges):
        if isinstance(matrix, SparseMatrix):
            tensors[f"{name}.rowptr"], tensors[f"{name}.col"] = matrix.pattern.rowptr, matrix.pattern.col
            tensors[f"{name}.values"] = matrix.values
        else:
            tensors[name] = matrix
    facts = _GraphFacts(
        **{name: getattr(graph, name) for name in ("name", "directed", "x_kind", "class_names", "notes", "blocks")},
        num_features=graph.num_features,
        node_names=names,
        public=None if graph.public is None else SplitFacts.of(graph.public),
        columns=None if graph.columns is None else graph.columns.to_json(),
        relations=kinds.names,
    )
    return {
        "graph.safetensors": encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": encode_json(dataclasses.asdict(facts), indent=None),
    }


def decode_graph(files: RunFolder, content: str | None = None) -> Graph:
    """The graph of a run folder; its arrays are checked before any kernel reads them, and against its content hash."""
    facts: _GraphFacts = files.read("graph.json", _GraphFacts)
    num_classes = len(facts.class_names)
    with files.explained("graph.safetensors"):
        tensors = files.read("graph.safetensors")
        n, time = len(tensors["y"]), tensors.get("time")
        problem = f"y is not -1 or one of the {num_classes} classes of graph.json for each node"
        y = checked(tensors["y"], (n,), torch.int64, problem, -1, num_classes - 1)
        if not 0 < n < 2**31:
            raise ValueError(f"y is of {n} nodes")
        adjacency, x = decode_edges(tensors, "adjacency", (n, n)), _decode_features(tensors, facts, n)
        kinds = tuple(decode_edges(tensors, f"relation-{k}", (n, n)) for k in range(len(facts.relations)))
        if time is not None:
            checked(time, (n,), torch.float64, "time is not a finite number for each node")
    with files.explained("graph.json"):
        names: Any = range(n)
        if (given := facts.node_names) is not None:
            if len(given) != n:
                raise ValueError(f"it names {len(given)} nodes, but the graph has {n}")
            if odd := [name for name in given if type(name) not in NAMES]:
                raise ValueError(f"node_names holds {odd[0]!r:.40}; a node is named by text or a number")
            names = unique_names(given)
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


def decode_edges(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> SparseMatrix:
    edges = decode_matrix(tensors, name, shape)
    if not ((edges.values > 0) & torch.isfinite(edges.values)).all():
        raise ValueError("an edge has a weight that is not positive and finite")
    return edges


def _decode_features(tensors: Mapping[str, Tensor], facts: _GraphFacts, num_nodes: int) -> Tensor | SparseMatrix:
    shape, dtypes = (num_nodes, facts.num_features), (torch.float32, torch.float16)
    x = tensors["x"] if "x" in tensors else decode_matrix(tensors, "x", shape)
    problem = f"x is not {shape[0]} rows of {shape[1]} finite numbers"
    if isinstance(x, SparseMatrix):
        checked(x.values, x.values.shape, dtypes, problem)
    else:
        checked(x, shape, dtypes, problem)
    is_identity = isinstance(x, SparseMatrix) and x.is_identity
    if facts.x_kind not in X_KINDS or (facts.x_kind == "identity" and not is_identity):
        raise ValueError(f"x is not the features that graph.json calls {facts.x_kind!r:.40}")
    return x


def decode_matrix(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> SparseMatrix:
    """A sparse matrix whose rows are ascending columns inside its shape, as the kernels trust it to be."""
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
    place = torch.repeat_interleave(torch.arange(num_rows), size) * num_columns + col
    if not (place.diff() > 0).all():
        raise ValueError(problem)
    return SparseMatrix(Pattern(rowptr, col, shape), values)
