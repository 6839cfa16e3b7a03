"""The run folder: a trained run as files, and back.

trained.json          classes, columns, known nodes, epochs, calibration, weights of members and label votes
recipe.json           the recipe
model.safetensors     the weights of all models
labels.safetensors    the known labels, what was learned of the columns for scaling, and predictions for held-out labels

These hold a `Trained`. Beside them a run has

run.json                        the plan: where the graph comes from, seen from here, its content hash, seed and split; which nodes
                                train, validate and test; the scores and how they were measured; versions and machine
predictions.csv, report.html    for people, where they were asked for

Nothing of a folder is trusted: every file is checked against the others before anything is computed with it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed
from gcn_lpa.data.constructors import MOST_EDGE_TYPES, EdgeTypes
from gcn_lpa.data.edge_columns import EdgeWeights
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.files import decode_as, encode_json
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.data.splits import Split
from gcn_lpa.edges import Free
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.metrics import NumberScores, Scores
from gcn_lpa.recipes import Recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.runs import storage
from gcn_lpa.runs.plan import Plan
from gcn_lpa.runs.storage import RunFolder, encode_tensors
from gcn_lpa.target import Calibrated, Classes, Target
from gcn_lpa.train import Epoch, Run
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

RUN_FILES = (*storage.FILES, *storage.OUTPUTS, "run.json")  # every name under which a run may write a file
NAMES = (str, int, float)  # of nodes, as JSON knows them
MOST_COPIES = 100  # models of each member
X_KINDS = ("given", "identity", "degree")
HELD_OUT_PROTOCOLS = ("cross-validation", "validation", "reserved")  # of held-out labels
LABELS, HELD_OUT = "labels.safetensors", "held_out."  # the prefix of arrays
OF_TRAINED = ("num_columns", "x_kind", "calibration", "weights")  # fields that trained.json has as they are
OF_RUN = ("seed", "history", "best_epoch", "interrupted")
SPLIT_PARTS = ("", "train", "val", "test", "reserved")  # by the number that stands for them
PROTOCOLS = ("test", "cross-validation", "none")  # of the scores


@dataclass(frozen=True)
class Results:
    """The scores of a run and what they are scores of: "test" nodes, "cross-validation", or "none"."""

    protocol: str
    note: str
    scores: Scores | NumberScores | None = None
    folds: tuple[float, ...] = ()  # accuracy, or R², of each fold

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol is {self.protocol!r:.40}; it is one of {', '.join(PROTOCOLS)}")
        least = -math.inf if isinstance(self.scores, NumberScores) else 0
        if odd := [accuracy for accuracy in self.folds if not least <= accuracy <= 1]:
            raise ValueError(f"the accuracy of a fold is {odd[0]}; it is between 0 and 1")


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

    @property
    def run(self) -> Run:
        return self.trained.run

    @property
    def used(self) -> Tensor:
        """The nodes whose labels were given or are reserved to calibrate, [n]."""
        given = self.split.train | self.split.val
        return given if self.reserved is None else given | self.reserved


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
class _RunFacts:
    """run.json."""

    plan: dict[str, Any]  # its recipe is recipe.json
    split: SplitFacts
    results: Results
    about: dict[str, Any]  # for people
    environment: dict[str, Any]


def save_run(folder: Path, run: TrainedRun, outputs: Mapping[str, bytes] | None = None, num_edges: int | None = None) -> None:
    """Make a trained run the state of its folder, which is held, entirely or not at all.

    Args:
        outputs: files for people, of `storage.OUTPUTS`.
        num_edges: where the graph of the run is without its edges.
    """
    plan, graph = dataclasses.replace(run.plan, source=run.plan.source.seen_from(folder)).to_dict(), run.graph
    about = {
        **{"graph": graph.name, "nodes": graph.num_nodes, "edges": num_edges or graph.num_edges},
        **{"epochs": len(run.run.history), "interrupted": run.run.interrupted, "seconds": run.run.seconds},
    }
    del plan["recipe"]
    facts = _RunFacts(plan, SplitFacts.of(run.split, run.reserved), run.results, about, environment())
    files = {**encode_trained(run.trained), "run.json": encode_json(dataclasses.asdict(facts))}
    storage.replace(folder, {**files, **(outputs or {})}.items())


def load_run(folder: str | Path, data: str | Path | None = None) -> TrainedRun:
    """Read a run folder and the graph it was trained on.

    Args:
        data: where the graph is now, if not where it was.
    """
    files = storage.load(folder)
    plan, facts = read_run(files)
    trained = decode_trained(files)
    with files.explained("trained.json"):
        if trained.run.seed != plan.seed:
            raise ValueError(f"seed is {trained.run.seed}, but run.json says {plan.seed}")
    graph = graph_of(plan, files.folder, data)
    with files.explained("run.json"):
        parts, reserved = facts.split.masks(graph.num_nodes)
    _check_fit(files, trained, graph, parts)
    return TrainedRun(plan, graph, trained, parts, facts.results, files.folder, reserved if reserved.any() else None)


def save_trained(trained: Trained, folder: str | Path) -> None:
    """Keep a `Trained` alone in a folder, entirely or not at all."""
    storage.save(folder, encode_trained(trained))


def load_trained(folder: str | Path) -> Trained:
    """The `Trained` of a folder that `save_trained` or a training made."""
    return decode_trained(storage.load(folder))


def read_run(files: RunFolder) -> tuple[Plan, _RunFacts]:
    """What was planned and what came of it."""
    recipe: Recipe = files.read("recipe.json", Recipe)
    facts: _RunFacts = files.read("run.json", _RunFacts)
    with files.explained("run.json"):
        plan: Plan = decode_as(Plan, {**facts.plan, "recipe": recipe.to_dict()})
    return dataclasses.replace(plan, source=plan.source.found_from(files.folder)), facts


def graph_of(plan: Plan, folder: Path, data: str | Path | None) -> Graph:
    """The graph of a run from its source, or from `data`; it must be the one the run was trained on."""
    source = plan.source if data is None else plan.source.at(str(data))
    try:
        graph = source.load()
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the last two: options of a wrong type
        raise ValueError(
            f"the graph of {folder} cannot be read from {source.name!r} ({error}); say where it is with --data PATH"
        ) from error
    if (content := graph.content_hash(64)) != plan.content:
        raise ValueError(
            f"{source.name!r} is not the graph {folder} was trained on (content {content[:10]}…, not "
            f"{plan.content[:10]}…); say where that one is with --data PATH; for a graph that changed there is predict --on"
        )
    return graph


def _check_fit(files: RunFolder, trained: Trained, graph: Graph, parts: Split) -> None:
    """Refuse a model whose columns, labels or edges are not those of the graph and its split."""
    with files.explained("trained.json"):
        trained.check_columns(graph)
    with files.explained(LABELS):
        y, trains = trained.known.on(graph)
        given = trained.target.known(y)
        if not torch.equal(trains, parts.train) or not torch.equal(given, parts.train | parts.val):
            raise ValueError("the known labels are not those of the nodes that run.json names")
        if not torch.equal(y[given], trained.labels_of(graph)[given]):
            raise ValueError("the known labels are not those of the graph")
    free = [form for form in trained.model.modules() if isinstance(form, Free)]
    with files.explained("model.safetensors"):
        prepared = trained.prepare(graph) if free else graph
        if any(len(form(prepared)) != prepared.pattern.num_entries for form in free):
            raise ValueError("it does not have one weight for each edge of the graph")
    if (held_out := trained.held_out) is not None and len(held_out.node):
        with files.explained(LABELS):
            if int(held_out.node[-1]) >= graph.num_nodes or not graph.labeled.cpu()[held_out.node].all():
                raise ValueError("held-out nodes are not labelled nodes of the graph")
            if held_out.fold is not None and not torch.equal(held_out.node, parts.train.nonzero().squeeze(1)):
                raise ValueError("held-out nodes are not the training nodes of run.json")


# a Trained alone


@dataclass(frozen=True)
class _TrainedFacts:
    """trained.json."""

    class_names: tuple[str, ...]
    num_columns: int
    x_kind: str
    nodes: list[Any]  # of KnownLabels, as `pattern` is
    pattern: str
    copies: tuple[int, ...]  # models of each member
    relations: dict[str, float]  # the share of each edge type
    seed: int
    best_epoch: int
    interrupted: bool
    held_out: str  # the protocol; "" where no labels were held out
    history: tuple[Epoch, ...]
    calibration: Calibrated | None
    weights: EnsembleWeights | None
    columns: Any
    edge_weights: Any
    numbers: Numbers | None = None  # the scale of labels that are numbers
    left_out: dict[str, str] = field(default_factory=dict)  # members that were not trained, and why

    def __post_init__(self) -> None:
        check_seed(self.seed)
        kinds = (int,) if self.pattern else NAMES
        odd = [name for name in self.nodes if type(name) not in kinds][:1]
        shares = self.relations.values()
        number, members, ways = len(self.history), self.copies or (0,), ("", *HELD_OUT_PROTOCOLS)
        problems = {
            f"x_kind is {self.x_kind!r:.40}; it is one of {', '.join(X_KINDS)}": self.x_kind not in X_KINDS,
            f"num_columns is {self.num_columns}; it is at least 1": self.num_columns < 1,
            "it names classes, and has a scale of numbers": bool(self.class_names) and self.numbers is not None,
            "class_names names a class twice": len(set(self.class_names)) != len(self.class_names),
            f"copies is {self.copies!s:.40}; each is 1 to {MOST_COPIES}": min(members) < 1 or max(members) > MOST_COPIES,
            f"relations are at most {MOST_EDGE_TYPES} edge types": len(shares) > MOST_EDGE_TYPES,
            "relations are shares between 0 and 1": not all(0 <= share <= 1 for share in shares),
            f"held_out is {self.held_out!r:.40}; it is one of{', '.join(ways)[1:]}": self.held_out not in ways,
            f"nodes holds {str(odd)[1:-1]:.40}; a node is named by text or a number, or by its position": bool(odd),
            "nodes names a node twice": not odd and len(set(self.nodes)) != len(self.nodes),
            "the epochs are not numbered 1, 2, …": [epoch.epoch for epoch in self.history] != [*range(1, number + 1)],
            f"it has {number} epochs, but the best is {self.best_epoch}": not 1 <= self.best_epoch <= number,
        }
        for problem, holds in problems.items():
            if holds:
                raise ValueError(problem)

    @property
    def label_type(self) -> torch.dtype:
        return self.target.dtype(torch.float64)

    @property
    def label_bounds(self) -> tuple[float, ...]:
        """Of the labels of a file: numbers of classes; of standard scores that they are finite is enough."""
        return (0, len(self.class_names) - 1) if self.numbers is None else ()

    @property
    def target(self) -> Target:
        return self.numbers or Classes(self.class_names)

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
        **{name: getattr(trained, name) for name in OF_TRAINED},
        **{name: getattr(run, name) for name in OF_RUN},
        class_names=trained.class_names,
        numbers=trained.target.scale,
        nodes=storable_names(known.nodes) or list(known.nodes),
        pattern=known.pattern,
        copies=trained.model.sizes,
        relations=dict(trained.relations),
        left_out=dict(trained.left_out),
        held_out="" if held_out is None else held_out.protocol,
        columns=None if trained.columns is None else trained.columns.to_json(),
        edge_weights=None if trained.edge_weights is None else trained.edge_weights.to_json(),
    )
    arrays = {name: torch.from_numpy(array) for name, array in trained.scaling.arrays().items()}
    if known.error is not None:
        arrays["error"] = known.error
    if held_out is not None:
        more = {name: getattr(held_out, name) for name in ("node", "y", "probability", "fold", "unreachable")}
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
        edge_weights = None if facts.edge_weights is None else EdgeWeights.from_json(facts.edge_weights)
    with files.explained(LABELS):
        arrays = files.read(LABELS)
        known, scaling = _decode_labels(arrays, facts, recipe)
        held_out = _decode_held_out(arrays, facts)
    with files.explained("model.safetensors"):
        model = _decode_model(files, facts, recipe, scaling)
    made: dict[str, Any] = {"model": model, "recipe": recipe, "scaling": scaling, "known": known, "columns": columns}
    made |= {"held_out": held_out, "edge_weights": edge_weights}
    made |= {name: getattr(facts, name) for name in (*OF_TRAINED, "target", "relations", "left_out")}
    return Trained(run=Run(recipe, **{name: getattr(facts, name) for name in OF_RUN}), **made)


def _decode_labels(arrays: Mapping[str, Tensor], facts: _TrainedFacts, recipe: Recipe) -> tuple[KnownLabels, Scaling]:
    shape = (len(facts.nodes),)
    problem = f"y and trains are not those of the {shape[0]} nodes of trained.json"
    y = checked(arrays["y"], shape, facts.label_type, problem)
    trains = checked(arrays["trains"], shape, torch.bool, problem)
    checked(y, shape, facts.label_type, f"y holds labels beyond the {facts.target} of trained.json", *facts.label_bounds)
    learned = {name: array.numpy() for name, array in arrays.items() if name not in ("y", "trains", "error")}
    learned = {name: array for name, array in learned.items() if not name.startswith(HELD_OUT)}
    features = "raw" if facts.x_kind == "identity" else recipe.features
    scaling = Scaling.from_arrays(features, learned, facts.num_columns)
    if (error := arrays.get("error")) is not None:
        checked(error, shape, torch.float64, "error is not a number for each label, -1 where it was not held out", least=-1)
    return KnownLabels(facts.nodes, y, trains, facts.pattern, error, facts.target.unknown), scaling


def _decode_held_out(arrays: Mapping[str, Tensor], facts: _TrainedFacts) -> HeldOut | None:
    if not facts.held_out:
        return None
    node, fold = arrays[f"{HELD_OUT}node"], arrays.get(f"{HELD_OUT}fold")
    m, c = len(node), facts.target.vote_width + (facts.numbers is not None)  # numbers have errors nearby too
    checked(node, (m,), torch.int64, problem := "node is not a list of positions, each after the last", least=0)
    if not (node.diff() > 0).all():
        raise ValueError(problem)
    if (fold is not None) != (facts.held_out == "cross-validation"):
        raise ValueError(f"fold goes with a cross-validation, and these labels are {facts.held_out}")
    if fold is not None:
        checked(fold, (m,), torch.int64, "fold is not a number for each node", least=0)
    problem = f"y is not a label for each node, one of the {facts.target} of trained.json"
    y = checked(arrays[f"{HELD_OUT}y"], (m,), facts.label_type, problem, *facts.label_bounds)
    problem = f"probability is not {m} rows of {c} {'probabilities' if facts.numbers is None else 'finite numbers'}"
    bounds = (0, 1) if facts.numbers is None else ()
    p = checked(arrays[f"{HELD_OUT}probability"], (m, c), torch.float64, problem, *bounds)
    apart = arrays.get(f"{HELD_OUT}unreachable")
    if apart is not None:
        checked(apart, (m,), torch.bool, "unreachable is not true or false for each held-out node")
    return HeldOut(node, y, p, facts.held_out, fold, apart)


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
    if len(facts.copies) != len(recipes):
        raise ValueError(f"it has models of {len(facts.copies)} members, but the recipe names {len(recipes)}")
    pairs = zip(recipes, facts.copies, strict=True)
    built = ([METHODS[one.method].build(one, blank, facts.seed) for _ in range(number)] for one, number in pairs)
    ensemble = Ensemble([*built])
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
    y = torch.tensor([facts.target.unknown], dtype=facts.label_type)
    about: dict[str, Any] = {"edge_types": types, "blocks": blocks, "numbers": facts.numbers}
    return Graph(adjacency, x, y, facts.class_names, range(1), x_kind=facts.x_kind, **about)


def storable_names(names: Sequence[Any]) -> list[Any] | None:
    """Ids that JSON knows, text and numbers; None: positions."""
    if isinstance(names, range):
        return None
    if odd := [name for name in names if type(name) not in NAMES]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    return list(names)
