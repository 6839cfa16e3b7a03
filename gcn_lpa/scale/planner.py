"""How much memory a training takes, and how many bytes several workers would exchange, from the sizes of a graph alone.

The formulas follow what the CPU path holds at its peak: the graph, raw and prepared; the features, raw and scaled; the
parameters with their gradients, Adam's two means and the copy of the best epoch; what one step keeps for its backward pass;
and what predictions are made of. Tests compare them with the memory of a process. Reading the files is not in them, nor
Python and the libraries.

What a GPU holds is counted by itself (`Estimate.gpu`): what was loaded, clusters that wait for their step and the logs that
predictions are made of are not there, but workspaces of cuBLAS are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gcn_lpa.edges import FULL_KERNEL
from gcn_lpa.engine.fused import class_block
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import POOLED
from gcn_lpa.methods.registry import METHODS, gcn_lpa, members_of
from gcn_lpa.recipes import Recipe

FLOAT, DOUBLE = 4, 8  # bytes
ACCURACY = 0.2  # the estimate is this close to what is measured
EDGE_FLOATS = {
    "fixed": 0.0,
    "free": 0.0,
    "bilinear": 4.0,
    "gat": 2.0,
    "gaussian": 2.0,
}  # for each edge, of a form; else 1
GRADIENTS = 2.5  # numbers for each edge that the backward pass adds
RECORDED = 235e6  # bytes that torch keeps for cuBLAS where a step is recorded, fitted to measurements on an H200
UNRECORDED = 50e6  # and where it is not
CONTAINER = "/sys/fs/cgroup"
MUCH = 1e9  # bytes from which on it is said before training
CLUSTERS = (3, 10, 30, 100, 300, 1000)  # that are tried where the whole graph does not fit


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
    mapped: bool = False  # whether dense features are files, whose pages the system may drop: they are not counted

    @classmethod
    def of(cls, graph: Graph) -> Size:
        loops = graph.num_nodes - graph.num_self_loops
        stored = graph.x.num_entries if isinstance(graph.x, SparseMatrix) else None
        shape = graph.num_nodes, graph.adjacency.num_entries + loops, graph.num_features, graph.num_classes
        kinds = 1 if graph.edge_types is None else len(graph.edge_types.names)
        return cls(*shape, stored, graph.directed, kinds=kinds, mapped=graph.mapped)

    def share(self, parts: int, halo: float = 0.0) -> Size:
        """One of so many equal parts; `halo`: rows it reads of others for each of its own."""
        stored = None if self.stored is None else self.stored / parts
        own = self.nodes / parts
        return dataclasses.replace(
            self, nodes=own, entries=self.entries / parts, stored=stored, halo=halo * own if parts > 1 else 0.0
        )

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
    def kept(self) -> float:
        return self.graph + self.features + self.parameters

    @property
    def peak(self) -> float:
        training = self.kept + max(self.step, self.forward)
        return max(self.loaded + self.preparation, training, self.kept - self.batches + self.prediction)


def estimate(size: Size, recipe: Recipe) -> Estimate | None:
    """What training this recipe takes; of a team, its largest member. None: of a method there is no formula for."""
    members = members_of(recipe).values()
    known = [own for own in members if METHODS[own.method].build is gcn_lpa]
    found = [_Formula(size, own, len(members), recipe.votes).estimate() for own in known]
    return max(found, key=lambda one: one.peak) if found else None


class _Formula:
    """The bytes of one model on a graph of one size."""

    def __init__(self, size: Size, recipe: Recipe, parts: int, votes: bool) -> None:
        self.size, self.recipe, self.parts, self.votes = size, recipe, parts, votes
        is_bare = size.stored == size.columns == size.nodes  # the identity: columns about the graph are for trees alone
        self.columns = size.columns + (9 if size.directed else 6) * (recipe.structure and not is_bare)
        self.learns = recipe.edges != "fixed"
        self.has_lpa = bool(recipe.lpa_weight and recipe.lpa_iterations and recipe.lpa_ratio)

    def estimate(self) -> Estimate:
        recipe, size = self.recipe, self.size
        batch = self if not recipe.clusters else _Formula(size.share(recipe.clusters), recipe, self.parts, self.votes)
        batches = (self.prepared() + self.scaled_features()) * bool(recipe.clusters)  # they are graphs of their own
        copies = 2 if recipe.clusters else 1
        return Estimate(
            loaded=self.raw() + self.raw_features(),
            batches=batches,
            preparation=self.preparation(),
            graph=self.raw() + copies * self.prepared(),
            features=self.raw_features() + copies * self.scaled_features(),
            parameters=self.parameters(),
            step=batch.step(),
            forward=self.forward(),
            prediction=self.prediction(),
            received=self.received(),
            gpu=self.on_gpu(),
        )

    def on_gpu(self) -> float:
        """Of clusters one at a time is there; the whole graph is there for validation, with all its features."""
        recipe, size = self.recipe, dataclasses.replace(self.size, mapped=False)
        whole = _Formula(size, recipe, self.parts, self.votes)
        there = whole.prepared() + whole.scaled_features() + whole.parameters()
        if not recipe.clusters:
            return there + max(whole.step(), whole.forward()) + RECORDED
        batch = _Formula(size.share(recipe.clusters), recipe, self.parts, self.votes)
        there += batch.prepared() + batch.scaled_features()
        return there + max(batch.step(), whole.forward()) + UNRECORDED

    def raw(self) -> float:
        """The graph as it was loaded: compressed rows and their row numbers, labels and masks."""
        size = self.size
        return (size.entries - size.nodes) * (2 * size.index + FLOAT) + size.nodes * (size.index + 6 * DOUBLE)

    def prepared(self) -> float:
        """With self-loops, logs of the weights, and the way to the transpose and back."""
        size = self.size
        per_entry = 4 * size.index + 2 * FLOAT + (size.index if size.directed else 0)
        matrices = 2 if self.recipe.propagation == "relations" else 1  # of all edges, and those of each kind
        return matrices * (size.entries * per_entry + size.nodes * size.index * (2 if size.directed else 1))

    def raw_features(self) -> float:
        size = self.size
        if size.stored is None:
            return 0.0 if size.mapped else size.nodes * size.columns * FLOAT
        return size.stored * (FLOAT + size.index) + size.nodes * size.index

    def scaled_features(self) -> float:
        """With columns about the graph; sparse ones also with row numbers and the way to the transpose and back."""
        size, added = self.size, self.columns - self.size.columns
        if size.stored is None:
            is_new = not size.mapped and (self.recipe.features != "raw" or added > 0)
            return size.nodes * self.columns * FLOAT * is_new
        return self.stored() * (2 * FLOAT + 4 * size.index) + size.nodes * 2 * size.index

    def preparation(self) -> float:
        """Scaling is done in float64, of dense features some rows or a column at a time; PageRank on matrices of its own."""
        size = self.size
        dense = self.scaled_features() + 4 * DOUBLE * size.nodes
        scaling = dense if size.stored is None else 38 * size.stored
        return max(scaling, 58 * (size.entries - size.nodes) * self.recipe.structure)

    def stored(self) -> float:
        """Entries of sparse features once they are scaled."""
        return (self.size.stored or 0) + self.size.nodes * (self.columns - self.size.columns)

    def parameters(self) -> float:
        """Every number with two means of Adam and the copy of the best epoch; its gradient is of the step."""
        recipe, widths = self.recipe, self.widths()
        weights = sum(a * b for a, b in zip([self.columns, *self.hidden()], widths, strict=True))
        weights *= 2 if self.has_skips() else 1
        edges = {"fixed": 0.0, "free": self.size.entries}.get(recipe.edges, 2.0 * self.columns * recipe.edge_rank)
        return (weights + edges) * 4 * FLOAT

    def widths(self) -> list[int]:
        return [*[self.recipe.hidden] * (self.recipe.gcn_layers - 1), self.size.classes]

    def hidden(self) -> list[int]:
        """The width of each hidden layer."""
        return self.widths()[:-1]

    def has_skips(self) -> bool:
        return self.recipe.propagation == "layers" and self.recipe.residual

    def products(self) -> list[int]:
        """The width of each product with the matrix."""
        walks = {"layers": 0, "hops": 1, "relations": self.size.kinds}[self.recipe.propagation]
        return [self.size.classes] * (walks * self.recipe.propagation_steps) or self.widths()

    def step(self) -> float:
        """What a gradient step keeps for its backward pass, and the gradients on the way."""
        size, recipe = self.size, self.recipe
        widths, products = self.widths(), self.products()
        inputs = [0 if size.stored is not None else self.columns, *self.hidden()]
        kept = self.form_width() + sum(self.hidden())  # numbers of each own row: of the edge form, and after σ
        kept += sum(inputs) + 2 * len(inputs) if recipe.dropout else inputs[0]  # dropped out, and row numbers
        if self.learns or recipe.propagation != "layers":  # what the matrix or γ_k multiplies
            kept += sum(products)
        seen = sum(products) if self.learns else 0.0  # numbers of each row of the halo
        if self.has_lpa and self.learns:
            width = class_block(size.nodes, size.classes, recipe.lpa_iterations)
            labels = width * max(1, recipe.lpa_iterations - 1)
            kept, seen = kept + self.size.classes + labels, seen + labels
        gradients = 2 * max(widths) if self.has_skips() else size.classes
        sparse = 0.0 if size.stored is None else self.stored() * 2 * bool(recipe.dropout)
        kept += self.columns * bool(size.mapped and recipe.clusters)  # a cluster's features are read for its step
        rows = size.nodes * (kept + gradients) + size.halo * seen
        return (rows + size.entries * (self.edge_floats() + GRADIENTS * self.learns) + sparse) * FLOAT

    def form_width(self) -> float:
        """Numbers of each node that the edge form keeps."""
        name, rank = self.recipe.edges, self.recipe.edge_rank
        return {"fixed": 0.0, "free": 0.0, "gaussian": 2.0, "gat": rank + 4}.get(name, 2.0 * rank)

    def edge_floats(self) -> float:
        """Numbers for each edge that are kept: scores, their softmax and its transpose, and what the LPA loss makes of them."""
        recipe = self.recipe
        form = EDGE_FLOATS.get(recipe.edges, 1.0)
        symmetric = form + 4 if recipe.normalization == "symmetric" else 0.0
        if not self.learns:
            return 2 + symmetric / 2
        leaves_out = self.has_lpa and recipe.loss == "leave_one_out"
        return form + 2 + symmetric + (2.5 * recipe.lpa_iterations if leaves_out else 0)

    def forward(self) -> float:
        """Logits of all nodes without a gradient."""
        held = max(self.held(), self.form_width())
        return (self.size.nodes * held + self.size.entries * self.edge_floats() / 2) * FLOAT

    def held(self) -> float:
        """Numbers of each node that a forward pass holds at once: the input of a layer, its output, and what it is made of."""
        inputs, outputs = [0, *self.hidden()], [*self.hidden(), self.size.classes]
        if self.recipe.propagation == "hops":
            return max(*map(sum, zip(inputs, outputs, strict=True)), 4 * self.size.classes)
        made = outputs  # what the matrix multiplies, or the product of a node's own columns
        return max(map(sum, zip(inputs, outputs, made, strict=True)))

    def prediction(self) -> float:
        """Logs of what every part of the model and every vote says, as float64, two tempered copies of a block, and the pool."""
        number = self.parts + ((4 if self.learns else 2) if self.votes else 0)
        each = self.size.nodes * self.size.classes * DOUBLE
        return each * (number + 3) + 2 * min(number * each, DOUBLE * POOLED) if self.votes else 3 * each

    def received(self) -> float:
        """Bytes that a worker receives in an epoch of joint training: rows of its halo, and gradients of its own rows.

        Rows come in a step and once more in validation; the sums of losses and of the gradients of W are not in it. Where the
        GCN half has a normalisation of its own, degrees travel too.
        """
        size, recipe, symmetric = self.size, self.recipe, self.recipe.normalization == "symmetric"
        model, (form, is_const) = sum(self.products()), self.form_travels()
        degrees = int(symmetric and self.learns)  # of given edges they come once in a run
        steps = size.classes * recipe.lpa_iterations if self.has_lpa else 0
        walks = 2 if self.learns and class_block(size.nodes, size.classes, recipe.lpa_iterations) < size.classes else 1
        forward = 2 * (model + degrees + form) + walks * steps
        forward += int(symmetric and not self.learns and recipe.edge_dropout > 0)
        back = model + degrees + (0 if is_const else form)
        if self.has_lpa and self.learns:
            back += steps - size.classes  # the labels themselves have no gradient
        return FLOAT * (size.halo * forward + (size.halo if size.read is None else size.read) * back)

    def form_travels(self) -> tuple[int, bool]:
        """Numbers of a row that the edge form of another worker reads, and whether they are constant."""
        recipe = self.recipe
        if recipe.edges == "bilinear" and self.columns <= FULL_KERNEL:
            return self.columns, True
        return {"fixed": 0, "free": 0, "gat": 1}.get(recipe.edges, recipe.edge_rank), False


def available_memory(device: torch.device) -> float:
    """Bytes that are free: on the GPU, or on the CPU of the machine and its container; infinity where nobody says so."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    machine = _facts("/proc/meminfo").get("MemAvailable:", math.inf) * 1024
    limit, used = (_number(f"{CONTAINER}/memory.{name}") for name in ("max", "current"))
    cached = _facts(f"{CONTAINER}/memory.stat").get("inactive_file", 0.0)  # given back when it is asked for
    return min(machine, limit - used + cached) if math.isfinite(used) else machine


def _facts(path: str) -> dict[str, float]:
    """The lines `name number` of a file of the system; none where there is no such file."""
    try:
        return {name: float(number) for name, number, *_ in map(str.split, Path(path).read_text().splitlines())}
    except OSError:
        return {}


def _number(path: str) -> float:
    """The number in a file of the system; infinity where it holds none."""
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return math.inf


@dataclass(frozen=True)
class Room:
    """What a training takes beside the graph that is loaded, what is free, and what would fit where it does not."""

    needed: float
    free: float
    advice: str = ""

    @property
    def is_enough(self) -> bool:
        """An estimate that is too high by its accuracy refuses nothing that would fit."""
        return (1 - ACCURACY) * self.needed <= self.free

    def __str__(self) -> str:
        return f"training takes about {gigabytes(self.needed)} of memory, and {gigabytes(self.free)} are free"


def room_for(graph: Graph, recipe: Recipe, device: torch.device) -> Room | None:
    """Whether a training fits into the memory of a device; None where there is no formula for the method."""
    size, free = Size.of(graph), available_memory(device)
    is_gpu = device.type == "cuda"

    def needed(chosen: Recipe) -> float | None:
        found = estimate(size, chosen)
        return None if found is None else found.gpu if is_gpu else found.peak - found.loaded

    total = needed(recipe)
    if total is None:
        return None
    room = Room(total, free)
    if room.is_enough:
        return room
    for changes in _smaller(recipe, size):
        less = needed(recipe.replace(**changes))
        if less is not None and Room(less, free).is_enough:
            flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
            return dataclasses.replace(room, advice=f"{flags} would take about {gigabytes(less)}")
    return dataclasses.replace(room, advice="no number of clusters would fit: it takes a larger machine")


def _smaller(recipe: Recipe, size: Size) -> Iterator[dict[str, Any]]:
    """Changes under which a training takes less."""
    yield from ({"clusters": number} for number in CLUSTERS if recipe.clusters < number <= size.nodes)


def require_room(graph: Graph, recipe: Recipe, device: torch.device) -> Room | None:
    """`room_for`, but a training that cannot fit is an error that says what would."""
    room = room_for(graph, recipe, device)
    if room is not None and not room.is_enough:
        raise ValueError(f"{room}; {room.advice}")
    return room


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
