"""What one model is to learn: labels are hidden, and the graph prepared, before anything is trained.

Mini-batches are clusters of the graph with few edges between them (Chiang et al. 2019), one gradient step for each. An edge between
two clusters is in no batch: while training, convolutions, hops and label propagation stop at the border, and a free weight of such
an edge stays as it is given. That is an approximation. Validation and predictions have the whole graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask, some
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.methods.registry import METHODS, Method, members_of
from gcn_lpa.metrics import METRICS
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Target
from gcn_lpa.train import DivergedError, Fit, JobName, Watch, fit, fit_at_once


class Batch(NamedTuple):
    """The graph and the nodes of one gradient step. A full batch is the whole graph."""

    graph: Graph  # prepared, with the labels of the training nodes only
    nodes: Tensor  # the training nodes in it: positions, [m]
    node_ids: Tensor | None = None  # of its nodes in the whole graph, [n]; None: it is the whole graph
    random_ids: Tensor | None = None  # names of the random bits of its nodes, [n]; None: their positions
    stored: Tensor | None = None  # features of the whole graph; those of `node_ids` are read when they are needed

    def to(self, device: torch.device, *, waits: bool = False) -> Batch:
        """For steps on a device. One that waits is moved there for each of its steps, so that one at a time takes room there."""
        ids = None if self.random_ids is None else self.random_ids.to(device)
        graph = self.graph if waits else self.graph.to(device)
        for matrix in (graph.adjacency, graph.x) if waits else ():
            if isinstance(matrix, SparseMatrix):
                _ = matrix.pattern.T  # sorted once, and moved with the rest
        return self._replace(graph=graph, nodes=self.nodes.to(device), random_ids=ids)

    def read(self) -> Graph:
        """Its graph with its features, on the device."""
        graph = self.graph
        if self.node_ids is None:
            return graph
        if self.stored is not None:
            x = self.stored.index_select(0, self.node_ids.to(self.stored.device))
            graph = dataclasses.replace(graph, x=x.to(graph.device))
        return graph.to(self.nodes.device)


class Validation(NamedTuple):
    """The nodes that choose the epoch, with labels that the model does not see."""

    graph: Graph  # as in `Batch`
    nodes: Tensor  # positions, [v]
    target: Tensor  # their classes or numbers, [v]
    number: int  # of them in all processes


@dataclass(frozen=True, eq=False)
class Task:
    """A graph with the labels that training may use, and the same graph as the recipe wants it."""

    graph: Graph  # raw, with the labels of `train` and `val`
    prepared: Graph  # with the labels of `train`
    train: Tensor  # [n]
    val: Tensor  # [n]
    scaling: Scaling

    def weighed(self, levels: Tensor) -> Task:
        """The same, along edges that weigh what functions of their columns say: see `Graph.weighed`."""
        return dataclasses.replace(self, prepared=self.prepared.weighed(levels))

    def without_idle(self, levels: Tensor) -> Task:
        """The same, without the edges that functions of their columns leave out: see `Graph.without_idle`."""
        return dataclasses.replace(self, prepared=self.prepared.without_idle(levels))

    def cut_off(self, recipe: Recipe) -> Graph:
        """The prepared graph as it would be if no validation node had an edge."""
        kept = scipy.sparse.diags_array((~self.val).numpy().astype(np.float32))
        matrix = scipy.sparse.csr_array(kept @ self.graph.adjacency.to_scipy() @ kept)
        matrix.eliminate_zeros()
        fewer = self.graph.with_adjacency(SparseMatrix.from_scipy(matrix), edge_columns=None)
        fewer = fewer.reveal(self.train).with_features(self.scaling)
        return fewer.with_self_loops() if recipe.self_loops else fewer

    def validation(self, prepared: Graph) -> Validation:
        """Its validation nodes in the prepared graph on the device of a model."""
        nodes = self.val.nonzero().squeeze(1)
        target = self.graph.y.cpu().index_select(0, nodes).to(prepared.device)
        target = target.to(prepared.target.dtype(prepared.adjacency.dtype))
        return Validation(prepared, nodes.to(prepared.device), target, len(nodes))

    def layer(self, recipe: Recipe) -> int:
        """Numbers in a layer of a model."""
        return self.graph.num_nodes * max(recipe.hidden, self.graph.target.width)


def task_of(graph: Graph, train: Any, val: Any, recipe: Recipe, target: Target | None = None) -> Task:
    """Hide all labels but those of `train` and `val`, and only then make anything of the graph.

    Args:
        train, val: masks or positions, without a node in common, all of them labelled.
        target: what models predict; None: the classes that occur among the labels of `train` and `val`, or numbers on the scale
            that those of `train` give.
    """
    check_graph(graph)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is the name of a recipe or a gcn_lpa.Recipe, not {recipe!r:.40}")
    train, val = node_mask(train, graph.num_nodes, "train"), node_mask(val, graph.num_nodes, "val")
    Split(train, val, torch.zeros_like(val))  # refuses common nodes
    for part, mask in (("train", train), ("val", val)):
        unknown = (mask & ~graph.labeled.cpu()).nonzero()
        if len(unknown):
            raise ValueError(f"{len(unknown)} nodes of {part} have no label, the first is node {int(unknown[0])}")
    if not train.any():
        raise ValueError("there is no node to train on: the training mask is empty")
    require_fit(graph.target, recipe)
    graph = graph.reveal(train | val)
    if target is None:
        target = graph.target.fitted(graph.y, train.to(graph.device))
    graph = with_target(graph, target)
    scaling = graph.scaling(recipe.features, structure=recipe.structure)
    return Task(graph, recipe.prepare(graph.reveal(train)), train, val, scaling)


def with_target(graph: Graph, target: Target) -> Graph:
    """The graph with its labels as those of a target: with these classes and no others, or with numbers on this scale."""
    return graph if target == graph.target else graph.labeled_by(target.translated(graph.y, graph.target), target)


def require_fit(target: Target, recipe: Recipe) -> None:
    """Refuse a recipe that is about classes where numbers are predicted."""
    if target.names:
        return
    methods = {name: METHODS[member.method] for name, member in members_of(recipe).items()}
    if classes := [name or recipe.method for name, method in methods.items() if not method.for_numbers]:
        able = some([name for name, method in METHODS.items() if method.for_numbers], 20)
        target.only_classes(f"method {classes[0]!r} predicts classes, and these labels are numbers; {able} do both")
    if recipe.select in METRICS:
        target.only_classes(f"select = {recipe.select!r} is a score of classes, and these labels are numbers")
    if recipe.class_weights != "none":
        target.only_classes(f"class_weights = {recipe.class_weights!r} weighs classes, and these labels are numbers")


@dataclass
class Kept:
    """The weights of a model after each epoch, by its number, while all of them together take few bytes."""

    left: int = 1 << 26  # bytes that may still be kept
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def keep(self, epoch: int, state: Mapping[str, Tensor]) -> None:
        self.left -= sum(tensor.nbytes for tensor in state.values())
        if self.left >= 0:
            self.states[epoch] = {name: tensor.detach().clone() for name, tensor in state.items()}


@dataclass(frozen=True, eq=False)
class Job:
    """One model to train."""

    name: JobName
    task: Task
    recipe: Recipe  # of one member
    seed: int
    stop_at: int | None = None  # end after this epoch, although the recipe has more
    kept: Kept | None = None  # gets the weights after each epoch
    stages: int = 0  # of a method that is fitted at once; 0: as many as validation chooses

    @property
    def method(self) -> Method:
        return METHODS[self.recipe.method]

    def built(self) -> Any:
        """The model before training."""
        return self.method.build(self.recipe, self.task.prepared, self.seed)

    def run(self, device: torch.device, watch: Watch | None = None, *, capture: str = "auto") -> Fit:
        """Train it here."""
        check_seed(self.seed)
        watch, train = watch or Watch(), self.task.train
        model, prepared = self.built().to(device), self.task.prepared.to(device)
        validation = self.task.validation(prepared)
        try:
            if self.method.at_once:
                if self.stages:
                    model.limit(self.stages)
                nodes = train.nonzero().squeeze(1).to(device)
                run = fit_at_once(model, prepared, nodes, validation, self.recipe, seed=self.seed)
                if watch.on_epoch is not None:
                    watch.on_epoch(self.name, run.history[-1])
                if self.kept is None and validation.number:
                    model.limit(run.best_epoch)
                return Fit(model, run)
            model.begin(prepared)
            parts = batches_of(prepared, train, self.recipe)
            batches = [batch.to(device, waits=batch.node_ids is not None) for batch in parts]
            split = Split(train, self.task.val, torch.zeros_like(train)).hash if watch.checkpoints is not None else ""
            watch = dataclasses.replace(watch, facts={**watch.facts, "split": split})
            options: dict[str, Any] = {"seed": self.seed, "stop_at": self.stop_at, "capture": capture}
            options |= {"name": self.name, "watch": watch, "kept": self.kept}
            return Fit(model, fit(model, batches, validation, self.recipe, **options))
        except DivergedError as error:
            if self.name.member:
                error.args = (f"member {self.name.member}: {error}",)
            raise


def batches_of(prepared: Graph, train: Tensor, recipe: Recipe) -> list[Batch]:
    """The training nodes of a prepared graph, a mask [n], as one batch, or one of each cluster that has any."""
    if not recipe.clusters:
        return [Batch(prepared, train.nonzero().squeeze(1))]
    cluster, sliceable = clusters(prepared, recipe.clusters), dataclasses.replace(prepared, x_kind="given")
    stored = prepared.x if prepared.mapped and isinstance(prepared.x, Tensor) else None
    if stored is not None:
        sliceable = dataclasses.replace(sliceable, x=stored[:, :0])
    batches = []
    for k in range(recipe.clusters):
        inside = torch.from_numpy(cluster == k)
        if (train & inside).any():
            part = dataclasses.replace(sliceable.subgraph(inside), x_kind=prepared.x_kind)
            here = inside.to(prepared.device)
            entries = (here.index_select(0, prepared.row) & here.index_select(0, prepared.col)).nonzero().squeeze(1)
            part.pattern.cut_from = prepared.pattern.fingerprint, entries  # in the order that `subgraph` has them
            at = inside.nonzero().squeeze(1)
            batches.append(Batch(part, train[inside].nonzero().squeeze(1), at, stored=stored))
    return batches


def clusters(graph: Graph, number: int) -> np.ndarray:
    """The cluster of each node, 0 … number - 1, [n]: about as many nodes in each, few edges between them, by METIS."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("clusters are found by METIS: pip install 'gcn-lpa[scale]'") from error
    if not 1 <= number <= graph.num_nodes:
        raise ValueError(f"clusters = {number}; {graph.name!r} has {graph.num_nodes:,} nodes to cut into clusters")
    matrix = graph.adjacency.to_scipy()
    joined = scipy.sparse.csr_array(matrix + matrix.T if graph.directed else matrix)
    others = joined - scipy.sparse.diags_array(joined.diagonal())  # a new matrix: ours shares its arrays with the graph
    others.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(others.indptr, others.indices)
    return np.array(pymetis.part_graph(number, adjacency).vertex_part)
