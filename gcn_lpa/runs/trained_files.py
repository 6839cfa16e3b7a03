"""A `Trained` as files, and back; what is read is checked before anything is computed with it.

trained.json          classes, columns, known nodes, seed, shares of edge types
recipe.json           the recipe
model.safetensors     the weights of all models
labels.safetensors    the known labels, and what was learned of the columns for scaling
history.jsonl         the epochs of the first model
columns.json, calibration.json, weights.json, held_out.safetensors   where there are such
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.checks import check_seed
from gcn_lpa.data.column_types import Columns
from gcn_lpa.data.edge_types import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.json_files import decode_as, encode_json, encode_lines
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.epochs import Epoch, Run
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.learning.votes import EnsembleWeights
from gcn_lpa.methods.registry import METHODS
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
        history = decode_as(tuple[Epoch, ...], files.lines("history.jsonl"))
        if [epoch.epoch for epoch in history] != list(range(1, len(history) + 1)):
            raise ValueError("the epochs are not numbered 1, 2, …")
        if not 1 <= facts.best_epoch <= len(history):
            raise ValueError(f"it has {len(history)} epochs, but the best is {facts.best_epoch} in trained.json")
    with files.explained("labels.safetensors"):
        known, scaling = _decode_labels(files.tensors("labels.safetensors"), facts)
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
    state, num_bytes = files.tensors("model.safetensors"), len(files.content("model.safetensors"))
    # a model that is sized by its columns has four bytes for each; one that is not can be built for one column
    blank = _blank(facts, scaling, min(facts.num_columns, num_bytes))
    ensemble = Ensemble.built(recipe, blank, facts.seed, facts.copies)
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
        columns = Columns.from_json(files.json("columns.json"))
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
        tensors = files.tensors(HELD_OUT)
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
