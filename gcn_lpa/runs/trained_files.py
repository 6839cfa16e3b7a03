"""A `Trained` as files, and back; what is read is checked before anything is computed with it.

trained.json          classes, columns, known nodes, seed, shares of edge types
recipe.json           the recipe
model.safetensors     the weights of all models
labels.safetensors    the known labels, and what was learned of the columns for scaling
history.jsonl         the epochs of the first model
columns.json, calibration.json, weights.json, held_out.safetensors   where there are such

A graph is kept as graph.safetensors, its arrays, and graph.json, everything else; arrays are checked before a kernel reads them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.checks import check_seed, node_mask, unique_names
from gcn_lpa.data.constructors import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.files import encode_json, encode_lines
from gcn_lpa.data.scaling import Block, Scaling, check_blocks
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.epochs import Epoch, Run
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.storage import RunFolder, encode_tensors
from gcn_lpa.target import Classes
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

FORMAT = 3  # of the files; 2 was kept before out-of-fold predictions belonged to a Trained
NAMES = (str, int, float)  # of nodes, as JSON knows them
MOST_COPIES = 100  # models of each member
X_KINDS = ("given", "identity", "degree")
PROTOCOLS = ("cross-validation", "validation", "reserved")  # of held-out labels
HELD_OUT = "held_out.safetensors"
MORE_FILES = ("columns.json", "calibration.json", "weights.json", HELD_OUT)


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
    copies: int
    relations: dict[str, float] = field(default_factory=dict)
    held_out: str = ""  # the protocol


def encode_trained(trained: Trained) -> dict[str, bytes]:
    """The files that hold it."""
    known, held_out = trained.known, trained.held_out
    facts = _TrainedFacts(
        format=FORMAT,
        class_names=trained.class_names,
        num_columns=trained.num_columns,
        x_kind=trained.x_kind,
        features=trained.scaling.kind,
        nodes=storable_names(known.nodes) or list(known.nodes),
        pattern=known.pattern,
        seed=trained.run.seed,
        best_epoch=trained.run.best_epoch,
        interrupted=trained.run.interrupted,
        copies=trained.model.copies,
        relations=dict(trained.relations),
        held_out="" if held_out is None else held_out.protocol,
    )
    learned = {name: torch.from_numpy(array) for name, array in trained.scaling.arrays().items()}
    files = {
        "trained.json": encode_json(dataclasses.asdict(facts)),
        "recipe.json": encode_json(trained.recipe.to_dict()),
        "model.safetensors": encode_tensors(trained.model.state_dict()),
        "labels.safetensors": encode_tensors({"y": known.y, "trains": known.trains, **learned}),
        "history.jsonl": encode_lines(dataclasses.asdict(epoch) for epoch in trained.run.history),
    }
    if trained.columns is not None:
        files["columns.json"] = encode_json(trained.columns.to_json(), indent=None)
    if trained.calibration is not None:
        files["calibration.json"] = encode_json(dataclasses.asdict(trained.calibration))
    if trained.weights is not None:
        files["weights.json"] = encode_json(dataclasses.asdict(trained.weights))
    if held_out is not None:
        fold = {} if held_out.fold is None else {"fold": held_out.fold}
        files[HELD_OUT] = encode_tensors(
            {"node": held_out.node, "y": held_out.y, "probability": held_out.probability, **fold}
        )
    return files


def decode_trained(files: RunFolder) -> Trained:
    """What `encode_trained` gave."""
    facts: _TrainedFacts = files.read("trained.json", _TrainedFacts)
    recipe: Recipe = files.read("recipe.json", Recipe)
    with files.explained("recipe.json"):
        if recipe.method not in METHODS:
            raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    with files.explained("trained.json"):
        _check_facts(facts, recipe)
        if bool(facts.held_out) != (HELD_OUT in files.files):
            there = f"there is {'no' if facts.held_out else 'a'} {HELD_OUT}"
            raise ValueError(f"held_out is {facts.held_out!r}, but {there}")
    with files.explained("history.jsonl"):
        history = files.read("history.jsonl", tuple[Epoch, ...])
        if [epoch.epoch for epoch in history] != list(range(1, len(history) + 1)):
            raise ValueError("the epochs are not numbered 1, 2, …")
        if not 1 <= facts.best_epoch <= len(history):
            raise ValueError(f"it has {len(history)} epochs, but the best is {facts.best_epoch} in trained.json")
    with files.explained("labels.safetensors"):
        known, scaling = _decode_labels(files.read("labels.safetensors"), facts)
    with files.explained("model.safetensors"):
        num_bytes = len(files.files["model.safetensors"])
        model = _decode_model(files.read("model.safetensors"), num_bytes, facts, recipe, scaling)
    more: dict[str, Any] = {}
    if "calibration.json" in files.files:
        more["calibration"] = files.read("calibration.json", Calibration)
    if "weights.json" in files.files:
        more["weights"] = files.read("weights.json", EnsembleWeights)
        with files.explained("weights.json"):
            if (number := more["weights"].num_members) != len(model.members):
                raise ValueError(f"num_members is {number}, but recipe.json has {len(model.members)}")
    if "columns.json" in files.files:
        with files.explained("columns.json"):
            more["columns"] = _decode_columns(files.read("columns.json"), facts.num_columns)
    if facts.held_out:
        with files.explained(HELD_OUT):
            more["held_out"] = _decode_held_out(files.read(HELD_OUT), facts.held_out, len(facts.class_names))
    return Trained(
        model=model,
        recipe=recipe,
        target=Classes(facts.class_names),
        num_columns=facts.num_columns,
        x_kind=facts.x_kind,
        scaling=scaling,
        known=known,
        run=Run(recipe, facts.seed, history, facts.best_epoch, facts.interrupted),
        relations=facts.relations,
        **more,
    )


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
    if not 1 <= facts.copies <= MOST_COPIES:
        raise ValueError(f"copies is {facts.copies}; it is 1 to {MOST_COPIES}")
    if bool(facts.relations) != (recipe.propagation == "relations"):
        propagation = f"{recipe.propagation!r} in recipe.json"
        raise ValueError(f"relations names {len(facts.relations)} edge types, but propagation is {propagation}")
    if len(facts.relations) > MOST_EDGE_TYPES or not all(0 <= share <= 1 for share in facts.relations.values()):
        raise ValueError(f"relations are at most {MOST_EDGE_TYPES} edge types, each with a share between 0 and 1")
    if facts.held_out and facts.held_out not in PROTOCOLS:
        raise ValueError(f"held_out is {facts.held_out!r:.40}; it is one of {', '.join(PROTOCOLS)}")
    check_seed(facts.seed)
    kinds = (int,) if facts.pattern else NAMES
    if odd := [name for name in facts.nodes if type(name) not in kinds]:
        raise ValueError(f"nodes holds {odd[0]!r:.40}; a node is named by text or a number, or by its position")
    if len(set(facts.nodes)) != len(facts.nodes):
        raise ValueError("nodes names a node twice")


def _decode_labels(tensors: Mapping[str, Tensor], facts: _TrainedFacts) -> tuple[KnownLabels, Scaling]:
    shape, num_classes = (len(facts.nodes),), len(facts.class_names)
    problem = f"y and trains are not those of the {shape[0]} nodes of trained.json"
    y, trains = (
        checked(tensors["y"], shape, torch.int64, problem),
        checked(tensors["trains"], shape, torch.bool, problem),
    )
    checked(y, shape, torch.int64, f"y holds classes beyond the {num_classes} of trained.json", 0, num_classes - 1)
    learned = {name: tensor.numpy() for name, tensor in tensors.items() if name not in ("y", "trains")}
    scaling = Scaling.from_arrays(facts.features, learned, facts.num_columns)
    return KnownLabels(facts.nodes, y, trains, facts.pattern), scaling


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


def _decode_model(
    state: Mapping[str, Tensor], num_bytes: int, facts: _TrainedFacts, recipe: Recipe, scaling: Scaling
) -> Ensemble:
    """An ensemble with the tensors of a file of so many bytes."""
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


def _decode_columns(states: Any, num_columns: int) -> Columns:
    columns = Columns.from_json(states)
    if columns.num_features not in (0, num_columns):  # 0: features stood in
        raise ValueError(f"it makes {columns.num_features} features, not {num_columns}")
    return columns


def _decode_held_out(tensors: Mapping[str, Tensor], protocol: str, num_classes: int) -> HeldOut:
    node, fold, m = tensors["node"], tensors.get("fold"), len(tensors["node"])
    checked(node, (m,), torch.int64, problem := "node is not a list of positions, each after the last", least=0)
    if not (node.diff() > 0).all():
        raise ValueError(problem)
    if (fold is not None) != (protocol == "cross-validation"):
        raise ValueError(f"fold goes with a cross-validation, and these labels are {protocol}")
    if fold is not None:
        checked(fold, (m,), torch.int64, "fold is not a number for each node", least=0)
    problem = f"y is not a class for each node, one of the {num_classes} of trained.json"
    y = checked(tensors["y"], (m,), torch.int64, problem, 0, num_classes - 1)
    problem = f"probability is not {m} rows of {num_classes} probabilities"
    p = checked(tensors["probability"], (m, num_classes), torch.float64, problem, 0, 1)
    return HeldOut(node, y, p, protocol, fold)


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
        problem = f"y is not a whole number for each node, beyond none of the {num_classes} classes of graph.json"
        y = checked(tensors["y"], (n,), torch.int64, problem, -1, num_classes - 1)
        if not 0 < n < 2**31:
            raise ValueError(f"y is of {n} nodes")
        adjacency, x = decode_edges(tensors, "adjacency", (n, n)), _decode_features(tensors, facts, n)
        kinds = tuple(decode_edges(tensors, f"relation-{k}", (n, n)) for k in range(len(facts.relations)))
        if time is not None:
            checked(time, (n,), torch.float64, "time is not a finite number for each node")
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
