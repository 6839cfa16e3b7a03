"""How much memory a training takes, and how many bytes several workers would exchange, from the sizes of a graph alone.

The formulas count what the CPU path holds at its peak. Tests compare them with the memory of a process. Reading the files is
not in them, nor Python and the libraries. A GPU (`Estimate.gpu`) holds neither what was loaded nor clusters that wait nor the
logs that predictions are made of, but workspaces of cuBLAS.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from gcn_lpa.edges import FULL_KERNEL
from gcn_lpa.engine.fused import class_block
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import POOLED, REACH
from gcn_lpa.methods.hop_columns import AT_ONCE, MOST_COLUMNS, RANK
from gcn_lpa.methods.linear import SUREST
from gcn_lpa.methods.networks import DRAWS
from gcn_lpa.methods.registry import METHODS, gcn_lpa, members_of
from gcn_lpa.methods.trees import MOST_COLUMNS as MOST_OF_TREES
from gcn_lpa.methods.trees import NUM_PLACES, VOTE_FOLDS, WORDS, NeighbourLR, Trees
from gcn_lpa.recipes import Recipe

FLOAT, DOUBLE = 4, 8  # bytes
ACCURACY = 0.2  # the estimate is this close to what is measured
EDGE_FLOATS = {"fixed": 0.0, "free": 0.0, "bilinear": 4.0, "gat": 2.0, "gaussian": 2.0}  # for each edge; others 1
GRADIENTS = 2.5  # numbers for each edge that the backward pass adds
RECORDED, UNRECORDED = 235e6, 50e6  # bytes for cuBLAS where a step is recorded and where not, measured on an H200
WALKS = ("appnp", "grand", "smoothed-lr")  # methods that walk with personalised PageRank
BESIDE = (*WALKS, "trees", "neighbour-lr")  # members whose bytes are counted, beside those that are built as the first
CONTAINER = "/sys/fs/cgroup"
MUCH = 1e9  # bytes from which on the estimate is printed before training
SMALL = 5e6  # rows and entries times columns; training on fewer takes less than 100 MB
CLUSTERS = (3, 10, 30, 100, 300, 1000)  # tried where the whole graph does not fit


@dataclass(frozen=True)
class Size:
    """How large a graph is, or a worker's part of one.

    `nodes` are its own rows, `halo` those it reads of other workers, `read` its own that others read, each as often as there
    are workers that do; None: as many as its halo.
    """

    nodes: float
    entries: float  # of the adjacency, with a self-loop at every node
    columns: int  # of the features
    classes: int
    stored: float | None = None  # features that are stored, where they are sparse; None: dense
    directed: bool = False
    halo: float = 0.0
    read: float | None = None
    kinds: int = 1  # of edges that predictions walk by themselves
    labeled: float | None = None  # nodes with a label; None: all
    mapped: bool = False  # whether dense features are files, whose pages the system may drop: they are not counted

    @classmethod
    def of(cls, graph: Graph) -> Size:
        loops = graph.num_nodes - graph.num_self_loops
        stored = graph.x.num_entries if isinstance(graph.x, SparseMatrix) else None
        shape = graph.num_nodes, graph.adjacency.num_entries + loops, graph.num_features, graph.num_classes
        kinds = 1 if graph.edge_types is None else len(graph.edge_types.names)
        return cls(*shape, stored, graph.directed, kinds=kinds, labeled=int(graph.labeled.sum()), mapped=graph.mapped)

    def share(self, parts: int, halo: float = 0.0) -> Size:
        """One of so many equal parts; `halo`: rows it reads of others for each of its own."""
        stored = None if self.stored is None else self.stored / parts
        own = self.nodes / parts
        return dataclasses.replace(
            self, nodes=own, entries=self.entries / parts, stored=stored, halo=halo * own if parts > 1 else 0.0
        )

    @property
    def is_bare(self) -> bool:
        """Whether the features are the identity matrix."""
        return self.stored == self.nodes <= self.columns

    @property
    def index(self) -> int:
        """Bytes of a node or an edge number."""
        return 4 if max(self.nodes, self.entries) < 2**31 else 8


@dataclass(frozen=True)
class Estimate:
    """Bytes of memory. `step`, `forward` and `prediction` come one after the other, beside what is kept."""

    loaded: float  # the graph and its features as they were read; part of `graph` and `features`
    batches: float  # the clusters, which are gone when predictions are made; part of `graph` and `features`
    preparation: float  # of the features, beside what was loaded
    graph: float
    features: float
    parameters: float
    step: float  # a gradient step
    forward: float  # validation
    prediction: float
    received: float  # from other workers, in an epoch
    gpu: float  # the peak on a GPU that trains

    @property
    def peak(self) -> float:
        kept = self.graph + self.features + self.parameters
        training = kept + max(self.step, self.forward)
        return max(self.loaded + self.preparation, training, kept - self.batches + self.prediction)


def estimate(size: Size, recipe: Recipe) -> Estimate | None:
    """What training this recipe takes; of an ensemble, its largest member. None: of a method there is no formula for."""
    members = members_of(recipe).values()
    known = [_MemberMemory(own, len(members), recipe.votes) for own in members if METHODS[own.method].build is gcn_lpa]
    return max((model.estimate(size) for model in known), key=lambda found: found.peak, default=None)


def received(size: Size, recipe: Recipe) -> tuple[dict[str, float], float]:
    """Bytes of rows of others that a worker receives: in an epoch of each member by its name, and once of all of them together.

    Of members that are neither built as the first nor in BESIDE there is no formula.
    """
    members = {name: m for name, m in members_of(recipe).items() if METHODS[m.method].build is gcn_lpa or m.method in BESIDE}
    each = {name: _MemberMemory(member, len(members), recipe.votes and not name) for name, member in members.items()}
    fixed = {m.method in WALKS or (m.normalization == "symmetric" and m.edges == "fixed") for m in members.values()}
    epochs = {name: each[name].received(size) for name, member in members.items() if not METHODS[member.method].at_once}
    once = FLOAT * size.halo * any(fixed) + sum(one.received_once(size) for one in each.values())
    methods = [member.method for member in members.values()]
    if {"trees", "neighbour-lr"} <= set(methods):  # label votes of both
        once -= FLOAT * size.halo * each[next(n for n, m in members.items() if m.method == "trees")].nearby_votes(size)
    return epochs, once


class _Held(NamedTuple):
    """Bytes of one graph, whole or a cluster, and of one model on it; the fields are those of `Estimate`, in parts."""

    raw: float
    prepared: float
    raw_features: float
    scaled_features: float
    preparation: float
    parameters: float
    step: float
    forward: float


class _MemberMemory:
    """One member of an ensemble: how much it holds on a graph of a size."""

    def __init__(self, recipe: Recipe, num_members: int, votes: bool) -> None:
        self.recipe, self.num_members, self.votes = recipe, num_members, votes
        self.learns = recipe.edges != "fixed"
        self.has_lpa = bool(recipe.lpa_weight and recipe.lpa_iterations and recipe.lpa_ratio)
        self.hidden = [recipe.hidden] * (recipe.gcn_layers - 1)

    def estimate(self, size: Size) -> Estimate:
        clusters, whole = self.recipe.clusters, self.held(size)
        batches = (whole.prepared + whole.scaled_features) * bool(clusters)  # they are graphs of their own
        loaded = size if not size.mapped else dataclasses.replace(size, mapped=False)  # a GPU holds what a file holds
        there = whole if not size.mapped else self.held(loaded)
        gpu = there.prepared + there.scaled_features + there.parameters
        if clusters:
            step, part = self.held(size.share(clusters)).step, self.held(loaded.share(clusters))
            gpu += part.prepared + part.scaled_features + max(part.step, there.forward) + UNRECORDED
        else:
            step = whole.step
            gpu += max(there.step, there.forward) + RECORDED
        return Estimate(
            loaded=whole.raw + whole.raw_features,
            batches=batches,
            preparation=whole.preparation,
            graph=whole.raw + whole.prepared + (whole.prepared if clusters else 0),
            features=whole.raw_features + whole.scaled_features + (whole.scaled_features if clusters else 0),
            parameters=whole.parameters,
            step=step,
            forward=whole.forward,
            prediction=self.prediction(size),
            received=self.received(size) if size.halo or size.read else 0.0,
            gpu=gpu,
        )

    def columns(self, size: Size) -> int:
        """With the structural features; those of a graph without columns are for trees alone."""
        return size.columns + (9 if size.directed else 6) * (self.recipe.structure and not size.is_bare)

    def products(self, size: Size) -> list[int]:
        """The width of each product with the matrix."""
        if self.recipe.method in WALKS:
            return [self.recipe.hidden if self.recipe.method == "grand" else size.classes] * self.recipe.propagation_steps
        walks = {"layers": 0, "columns": 0, "hops": 1, "relations": size.kinds}[self.recipe.propagation]
        return [size.classes] * (walks * self.recipe.propagation_steps) or [*self.hidden, size.classes]

    def held(self, size: Size) -> _Held:
        recipe, n, entries, index, sparse = self.recipe, size.nodes, size.entries, size.index, size.stored
        columns, widths, products = self.columns(size), [*self.hidden, size.classes], self.products(size)
        added, rank, learns = columns - size.columns, recipe.edge_rank, self.learns
        has_skips = recipe.propagation == "layers" and recipe.residual

        # Compressed rows and their row numbers, labels and masks; then self-loops, logs of the weights, and the way to the
        # transpose and back, of all edges and of those of each type.
        raw = (entries - n) * (2 * index + FLOAT) + n * (index + 6 * DOUBLE)
        each = 4 * index + 2 * FLOAT + (index if size.directed else 0)
        prepared = entries * each + n * index * (2 if size.directed else 1)
        prepared *= 2 if recipe.propagation == "relations" else 1

        # Sparse features also have row numbers and the way to the transpose and back. Scaling is done in float64, of dense
        # features one block of rows or a column at a time; PageRank takes matrices of its own.
        if sparse is None:
            stored, raw_features = 0.0, 0.0 if size.mapped else n * size.columns * FLOAT
            scaled = n * columns * FLOAT * (not size.mapped and (recipe.features != "raw" or added > 0))
            preparation = scaled + 4 * DOUBLE * n
        else:
            stored, raw_features = sparse + n * added, sparse * (FLOAT + index) + n * index
            scaled, preparation = stored * (2 * FLOAT + 4 * index) + n * 2 * index, 38 * sparse
        preparation = max(preparation, 58 * (entries - n) * recipe.structure)

        # Every number with two means of Adam and the copy of the best epoch; its gradient is of the step.
        weights = sum(a * b for a, b in zip([columns, *self.hidden], widths, strict=True)) * (2 if has_skips else 1)
        of_edges = {"fixed": 0.0, "free": entries}.get(recipe.edges, 2.0 * columns * rank)
        parameters = (weights + of_edges) * 4 * FLOAT

        # Numbers for each edge that are kept: scores, their softmax and its transpose, and what the LPA loss makes of them.
        form = EDGE_FLOATS.get(recipe.edges, 1.0)
        symmetric = form + 4 if recipe.normalization == "symmetric" else 0.0
        leaves_out = 2.5 * recipe.lpa_iterations if self.has_lpa and recipe.loss == "leave_one_out" else 0
        of_edge = form + 2 + symmetric + leaves_out if learns else 2 + symmetric / 2

        # What a step keeps for its backward pass, of its own rows and of those of its halo, and the gradients on the way:
        # of the edge form, after σ, dropped out with row numbers, what the matrix or γ_k multiplies, and label votes.
        inputs = [0 if sparse is not None else columns, *self.hidden]
        of_form = {"fixed": 0.0, "free": 0.0, "gaussian": 2.0, "gat": rank + 4}.get(recipe.edges, 2.0 * rank)
        kept = of_form + sum(self.hidden) + (sum(inputs) + 2 * len(inputs) if recipe.dropout else inputs[0])
        kept += sum(products) if learns or recipe.propagation != "layers" else 0
        seen = sum(products) if learns else 0.0
        if self.has_lpa and learns:
            labels = class_block(n, size.classes, recipe.lpa_iterations) * max(1, recipe.lpa_iterations - 1)
            kept, seen = kept + size.classes + labels, seen + labels
        kept += columns * bool(size.mapped and recipe.clusters)  # a cluster's features are read for its step
        kept += 2 * max(widths) if has_skips else size.classes
        step = n * kept + size.halo * seen + entries * (of_edge + GRADIENTS * learns) + stored * 2 * bool(recipe.dropout)

        # Validation: the input of a layer, its output, and what the matrix multiplies or the product of a node's own columns.
        layers = [sum(layer) for layer in zip([0, *self.hidden], widths, strict=True)]
        if recipe.propagation == "hops":
            at_once = max(*layers, 4 * size.classes)
        else:
            at_once = max(a + b for a, b in zip(layers, widths, strict=True))
        forward = (n * max(at_once, of_form) + entries * of_edge / 2) * FLOAT
        if recipe.propagation == "columns":  # rows of all hops with dropout and gradients; two blocks that walk
            width, block = columns if columns <= MOST_COLUMNS else RANK, min(AT_ONCE, n * columns)
            rows = (n if size.labeled is None else size.labeled) * (recipe.propagation_steps + 1) * width
            step, forward = 4 * rows + 2 * block, n * (2 * max(self.hidden, default=0) + size.classes) * FLOAT
        return _Held(raw, prepared, raw_features, scaled, preparation, parameters, step * FLOAT, forward)

    def prediction(self, size: Size) -> float:
        """Logs of every part of the ensemble and of every vote in float64, two tempered copies of a block, and the pool."""
        each = size.nodes * size.classes * DOUBLE
        if not self.votes:
            return 3 * each
        number = self.num_members + (4 if self.learns else 2)
        return each * (number + 3) + 2 * min(number * each, DOUBLE * POOLED)

    def received(self, size: Size) -> float:
        """Bytes that a worker receives in an epoch of joint training: rows of its halo, and gradients of its own rows.

        Rows come in a step and once more in validation; the sums of losses and of the gradients of W are not in it. Where the
        GCN half has a normalisation of its own, degrees travel too.
        """
        recipe, symmetric, (model, form, degrees) = self.recipe, self.recipe.normalization == "symmetric", self.sent(size)
        if recipe.propagation == "columns":
            return 0.0
        draws = DRAWS if recipe.method == "grand" else 1
        is_kernel = recipe.edges == "bilinear" and form == self.columns(size)
        steps = size.classes * recipe.lpa_iterations if self.has_lpa else 0
        walks = 2 if self.learns and class_block(size.nodes, size.classes, recipe.lpa_iterations) < size.classes else 1
        forward = (1 + draws) * model + 2 * (degrees + form) + walks * steps
        forward += int(symmetric and not self.learns and recipe.edge_dropout > 0)
        back = draws * model + degrees + (0 if is_kernel else form)  # the columns of a kernel are constant
        if self.has_lpa and self.learns:
            back += steps - size.classes  # the labels themselves have no gradient
        return FLOAT * (size.halo * forward + (size.halo if size.read is None else size.read) * back)

    def sent(self, size: Size) -> tuple[int, int, int]:
        """Numbers for each row of a halo that a forward pass takes: of the model, of the edge form, and degrees."""
        columns, rank = self.columns(size), self.recipe.edge_rank
        form = {"fixed": 0, "free": 0, "gat": 1, "bilinear": min(columns, rank if columns > FULL_KERNEL else columns)}
        degrees = int(self.recipe.normalization == "symmetric" and self.learns)  # of given edges they come once in a run
        return sum(self.products(size)), form.get(self.recipe.edges, rank), degrees

    def received_once(self, size: Size) -> float:
        """Bytes that a worker receives beside epochs: what is computed of columns before them, and predictions after them."""
        recipe, columns, walks = self.recipe, self.columns(size), 2 if self.learns else 1
        numbers: float = self.votes * (walks * (REACH + 1) * size.classes + self.sent(size)[1])
        if METHODS[recipe.method].build in (Trees, NeighbourLR):  # own columns to fit, to score and to predict; label votes
            own = (NUM_PLACES[size.directed] if size.is_bare or not recipe.structure else 0) + columns * (not size.is_bare)
            numbers += 3 * (own if own <= MOST_OF_TREES else WORDS) + self.nearby_votes(size)
        elif recipe.method == "smoothed-lr":  # walks of both fits in float64, forward and back, at most; predictions
            rows = 2 * (size.nodes if size.labeled is None else size.labeled) + SUREST
            numbers += recipe.propagation_steps * (3 * size.classes + 2 * rows * (1 + (size.read or size.halo) / (size.halo or 1)))
        elif recipe.propagation == "columns":  # their spread, rows of training and of validation nodes, predictions
            numbers += recipe.propagation_steps * (3 * (columns if columns <= MOST_COLUMNS else RANK) + recipe.hidden)
        else:
            model, form, degrees = self.sent(size)
            numbers += model + 2 * (form + degrees)  # edges are weighed once more before the first epoch
        return FLOAT * size.halo * numbers

    def nearby_votes(self, size: Size) -> int:
        """Numbers for each row of a halo that the votes of every fold of the labels take."""
        return (VOTE_FOLDS + 1) * (self.recipe.propagation_steps + 1) * size.classes


def available_memory(device: torch.device) -> float:
    """Bytes that are free: on the GPU, or on the CPU of the machine and its container; infinity where neither is known."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    machine = _numbers("/proc/meminfo").get("MemAvailable:", math.inf) * 1024
    limit, used = (_numbers(f"{CONTAINER}/memory.{name}").get("", math.inf) for name in ("max", "current"))
    cached = _numbers(f"{CONTAINER}/memory.stat").get("inactive_file", 0.0)  # given back when it is asked for
    return min(machine, limit - used + cached) if math.isfinite(used) else machine


def _numbers(path: str) -> dict[str, float]:
    """The lines `name number` of a file of the system, or its one number as ""; nothing where there is no such file."""
    try:
        lines = re.findall(r"^(?:(\S+) +)?(\d+)\b", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return {}
    return {name: float(number) for name, number in lines}


@dataclass(frozen=True)
class Room:
    """What a training takes beside the graph that is loaded, and what is free."""

    needed: float
    free: float

    @property
    def is_enough(self) -> bool:
        """An estimate that is too high by its accuracy refuses nothing that would fit."""
        return (1 - ACCURACY) * self.needed <= self.free

    def __str__(self) -> str:
        return f"training takes about {gigabytes(self.needed)} of memory, and {gigabytes(self.free)} are free"


def require_room(graph: Graph, recipe: Recipe, device: torch.device) -> Room | None:
    """Whether a training fits into the memory of a device; one that cannot fit is an error that says what would.

    None where there is no formula for the method, and on a CPU of a graph so small that the answer is known.
    """
    width = graph.num_features + recipe.hidden * recipe.gcn_layers + recipe.edge_rank
    width += graph.num_classes * (recipe.lpa_iterations + recipe.propagation_steps)
    if device.type == "cpu" and (graph.num_nodes + graph.adjacency.num_entries + width) * width < SMALL:
        return None
    size, free = Size.of(graph), available_memory(device)
    for clusters in (recipe.clusters, *(number for number in CLUSTERS if recipe.clusters < number <= size.nodes)):
        found = estimate(size, recipe.replace(clusters=clusters))
        if found is None:
            return None
        needed = found.gpu if device.type == "cuda" else found.peak - found.loaded
        if clusters == recipe.clusters:
            room = Room(needed, free)
            if room.is_enough:
                return room
        if Room(needed, free).is_enough:
            raise ValueError(f"{room}; --clusters {clusters} would take about {gigabytes(needed)}")
    raise ValueError(f"{room}; no number of clusters would fit: it takes a larger machine")


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
