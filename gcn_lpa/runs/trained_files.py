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
from collections.abc import Mapping
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
    if odd := [name for name in known.nodes if type(name) not in NAMES]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    facts = _TrainedFacts(
        format=FORMAT,
        class_names=trained.class_names,
        num_columns=trained.num_columns,
        x_kind=trained.x_kind,
        features=trained.scaling.kind,
        nodes=list(known.nodes),
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
    with files.explained("history.jsonl"):
        history = files.read("history.jsonl", tuple[Epoch, ...])
        if [epoch.epoch for epoch in history] != list(range(1, len(history) + 1)):
            raise ValueError("the epochs are not numbered 1, 2, …")
        if not 1 <= facts.best_epoch <= len(history):
            raise ValueError(f"it has {len(history)} epochs, but the best is {facts.best_epoch} in trained.json")
    with files.explained("labels.safetensors"):
        known, scaling = _decode_labels(files.read("labels.safetensors"), facts)
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
        run=Run(recipe, facts.seed, history, facts.best_epoch, facts.interrupted),
        calibration=files.read("calibration.json", Calibration) if "calibration.json" in files.files else None,
        weights=_decode_weights(files, model),
        columns=_decode_columns(files, facts.num_columns),
        held_out=_decode_held_out(files, facts),
        relations=facts.relations,
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
    y, trains = tensors["y"], tensors["trains"]
    wanted = (len(facts.nodes),)
    if y.shape != wanted or trains.shape != wanted or (y.dtype, trains.dtype) != (torch.int64, torch.bool):
        raise ValueError(f"y and trains are not those of the {wanted[0]} nodes of trained.json")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(facts.class_names):
        raise ValueError(f"y holds classes beyond the {len(facts.class_names)} of trained.json")
    learned = {name: tensor.numpy() for name, tensor in tensors.items() if name not in ("y", "trains")}
    scaling = Scaling.from_arrays(facts.features, learned, facts.num_columns)
    return KnownLabels(facts.nodes, y, trains, facts.pattern), scaling


def _decode_model(files: RunFolder, facts: _TrainedFacts, recipe: Recipe, scaling: Scaling) -> Ensemble:
    """An ensemble with the tensors of a folder."""
    state, num_bytes = files.read("model.safetensors"), len(files.content("model.safetensors"))
    # a model that is sized by its columns has four bytes for each; one that is not can be built for one column
    blank = _blank(facts, scaling, min(facts.num_columns, num_bytes))
    recipes = members_of(recipe).values()
    ensemble = Ensemble(
        [[METHODS[one.method].build(one, blank, facts.seed) for _ in range(facts.copies)] for one in recipes]
    )
    for name, tensor in ensemble.state_dict().items():
        kept = state.get(name)
        if kept is not None and kept.dtype != tensor.dtype:
            raise ValueError(f"{name} is of {kept.dtype}; it is of {tensor.dtype}")
        if kept is not None and not torch.isfinite(kept).all():
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


def _decode_weights(files: RunFolder, model: Ensemble) -> EnsembleWeights | None:
    if "weights.json" not in files.files:
        return None
    weights: EnsembleWeights = files.read("weights.json", EnsembleWeights)
    with files.explained("weights.json"):
        if weights.num_members != len(model.members):
            raise ValueError(f"num_members is {weights.num_members}, but recipe.json has {len(model.members)}")
    return weights


def _decode_columns(files: RunFolder, num_columns: int) -> Columns | None:
    if "columns.json" not in files.files:
        return None
    with files.explained("columns.json"):
        columns = Columns.from_json(files.read("columns.json"))
        if columns.num_features not in (0, num_columns):  # 0: features stood in
            raise ValueError(f"it makes {columns.num_features} features, not {num_columns}")
    return columns


def _decode_held_out(files: RunFolder, facts: _TrainedFacts) -> HeldOut | None:
    if bool(facts.held_out) != (HELD_OUT in files.files):
        with files.explained("trained.json"):
            raise ValueError(
                f"held_out is {facts.held_out!r}, but there is {'no' if facts.held_out else 'a'} {HELD_OUT}"
            )
    if not facts.held_out:
        return None
    with files.explained(HELD_OUT):
        tensors = files.read(HELD_OUT)
        node, y, p, fold = tensors["node"], tensors["y"], tensors["probability"], tensors.get("fold")
        m, c = len(node), len(facts.class_names)
        if node.dtype != torch.int64 or node.dim() != 1 or (m and (int(node[0]) < 0 or not (node.diff() > 0).all())):
            raise ValueError("node is not a list of positions, each after the last")
        if (fold is not None) != (facts.held_out == "cross-validation"):
            raise ValueError(f"fold goes with a cross-validation, and these labels are {facts.held_out}")
        if fold is not None and (fold.shape != (m,) or fold.dtype != torch.int64 or (m and int(fold.min()) < 0)):
            raise ValueError("fold is not a number for each node")
        if y.shape != (m,) or y.dtype != torch.int64 or (m and not 0 <= int(y.min()) <= int(y.max()) < c):
            raise ValueError(f"y is not a class for each node, one of the {c} of trained.json")
        if p.shape != (m, c) or p.dtype != torch.float64 or not ((p >= 0) & (p <= 1)).all():
            raise ValueError(f"probability is not {m} rows of {c} probabilities")
    return HeldOut(node, y, p, facts.held_out, fold)


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
            tensors[f"{name}.rowptr"], tensors[f"{name}.col"] = matrix.pattern.rowptr, matrix.pattern.col
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
        tensors = files.read("graph.safetensors")
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
