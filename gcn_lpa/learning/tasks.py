"""What one model is to learn: labels are hidden, and the graph prepared, before anything is trained.

Mini-batches are clusters of the graph with few edges between them (Chiang et al. 2019), one gradient step for each. An edge between
two clusters is in no batch: while training, convolutions, hops and label propagation stop at the border, and a free weight of such
an edge stays as it is given. That is an approximation. Validation and predictions have the whole graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.data.splits import Split
from gcn_lpa.epochs import DivergedError, Fit, JobName, Kept, Watch
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.methods.registry import METHODS, Method
from gcn_lpa.recipes import Recipe
from gcn_lpa.target import Classes
from gcn_lpa.train import Batch, Validation, Watching, fit, fit_at_once


@dataclass(frozen=True, eq=False)
class Task:
    """A graph with the labels that training may use, and the same graph as the recipe wants it."""

    graph: Graph  # raw, with the labels of `train` and `val`
    prepared: Graph  # with the labels of `train`
    train: Tensor  # [n]
    val: Tensor  # [n]
    scaling: Scaling

    @property
    def validation(self) -> Validation:
        nodes = self.val.nonzero().squeeze(1)
        return Validation(self.prepared, nodes, self.graph.y.cpu().index_select(0, nodes))

    def layer(self, recipe: Recipe) -> int:
        """Numbers in a layer of a model."""
        return self.graph.num_nodes * max(recipe.hidden, self.graph.target.width)


def task_of(graph: Graph, train: Any, val: Any, recipe: Recipe, classes: Sequence[str] | None = None) -> Task:
    """Hide all labels but those of `train` and `val`, and only then make anything of the graph.

    Args:
        train, val: masks or positions, without a node in common, all of them labelled.
        classes: that models know; None: those that occur among the labels of `train` and `val`.
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
    graph = with_classes(graph.reveal(train | val), classes)
    scaling = graph.scaling(recipe.features, structure=recipe.structure)
    prepared = graph.reveal(train).with_features(scaling)
    return Task(graph, prepared.with_self_loops() if recipe.self_loops else prepared, train, val, scaling)


def with_classes(graph: Graph, classes: Sequence[str] | None = None) -> Graph:
    """The graph with the classes that its labels have and no others, or with those that are named."""
    if classes is None:
        present = torch.bincount(graph.y[graph.labeled], minlength=graph.num_classes).cpu() > 0
        classes = [name for name, occurs in zip(graph.class_names, present.tolist(), strict=True) if occurs]
    target = Classes(tuple(classes))
    if target == graph.target:
        return graph
    return dataclasses.replace(graph, y=target.numbers(graph.y, graph.class_names), class_names=target.names)


@dataclass(frozen=True, eq=False)
class Job:
    """One model to train."""

    name: JobName
    task: Task
    recipe: Recipe  # of one member
    seed: int
    stop_at: int | None = None  # end after this epoch, although the recipe has more
    kept: Kept | None = None  # gets the weights after each epoch
    like: Sequence[Any] = ()  # models of the same recipe for other folds, whose choices by inner folds trees take over

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
        on_epoch = None if watch.on_epoch is None else partial(watch.on_epoch, self.name)
        model, prepared = self.built().to(device), self.task.prepared.to(device)
        validation = self.task.validation.on(prepared)
        try:
            if self.method.at_once:
                model.choose_like(self.like)
                nodes = train.nonzero().squeeze(1).to(device)
                run = fit_at_once(model, prepared, nodes, validation, self.recipe, seed=self.seed)
                if on_epoch is not None:
                    on_epoch(run.history[0])
                return Fit(model, run)
            batches = [
                batch.to(device, waits=batch.node_ids is not None) for batch in batches_of(prepared, train, self.recipe)
            ]
            checkpoints = None if watch.checkpoints is None else watch.checkpoints(self.name)
            identity = {}  # what a checkpoint must agree with for this training to go on from it
            if checkpoints is not None:
                split = Split(train, self.task.val, torch.zeros_like(train)).hash
                identity = {"recipe": self.recipe.hash(), "seed": self.seed, "graph": watch.content, "split": split}
            watching = Watching(on_epoch, checkpoints, watch.every, watch.seconds, watch.resume, identity, self.kept)
            options: dict[str, Any] = {"seed": self.seed, "stop_at": self.stop_at, "capture": capture}
            return Fit(model, fit(model, batches, validation, self.recipe, watching=watching, **options))
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
