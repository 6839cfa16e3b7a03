"""What one model is to learn: labels are hidden, and the graph prepared, before anything is trained.

Mini-batches are clusters of the graph with few edges between them (Chiang et al. 2019), one gradient step for each. An edge between
two clusters is in no batch: while training, convolutions, hops and label propagation stop at the border, and a free weight of such
an edge stays as it is given. That is an approximation, and `share_cut` says of how many edges. Validation and predictions have
the whole graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.data.splits import Split
from gcn_lpa.epochs import DivergedError, Fit, JobName, Kept, Watch
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.recipes import Recipe
from gcn_lpa.train import Batch, Validation, Watching, fit, fit_at_once

if TYPE_CHECKING:
    from gcn_lpa.methods.registry import Method


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


def task_of(graph: Graph, train: Any, val: Any, recipe: Recipe, classes: Sequence[str] | None = None) -> Task:
    """Hide all labels but those of `train` and `val`, and only then make anything of the graph.

    Args:
        classes: that models know; None: those that occur among the labels of `train` and `val`.
    """
    check_graph(graph)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is the name of a recipe or a gcn_lpa.Recipe, not {recipe!r:.40}")
    train, val = checked_nodes(graph, train, val)
    graph = with_classes(graph.reveal(train | val), classes)
    scaling = graph.scaling(recipe.features, structure=recipe.structure)
    prepared = graph.reveal(train).with_features(scaling)
    return Task(graph, prepared.with_self_loops() if recipe.self_loops else prepared, train, val, scaling)


def checked_nodes(graph: Graph, train: Any, val: Any) -> tuple[Tensor, Tensor]:
    """The nodes to learn from and to choose by as masks without a node in common, all of them labelled."""
    masks = {"train": node_mask(train, graph.num_nodes, "train"), "val": node_mask(val, graph.num_nodes, "val")}
    Split(masks["train"], masks["val"], torch.zeros_like(masks["val"]))  # refuses common nodes
    for part, mask in masks.items():
        unknown = (mask & ~graph.labeled.cpu()).nonzero()
        if len(unknown):
            raise ValueError(f"{len(unknown)} nodes of {part} have no label, the first is node {int(unknown[0])}")
    if not masks["train"].any():
        raise ValueError("there is no node to train on: the training mask is empty")
    return masks["train"], masks["val"]


def with_classes(graph: Graph, classes: Sequence[str] | None = None) -> Graph:
    """The graph with the classes that its labels have and no others, or with those that are named."""
    if classes is None:
        present = torch.bincount(graph.y[graph.labeled], minlength=graph.num_classes).cpu() > 0
        classes = [name for name, occurs in zip(graph.class_names, present.tolist(), strict=True) if occurs]
    if tuple(classes) == graph.class_names:
        return graph
    place = {name: k for k, name in enumerate(classes)}
    codes = torch.tensor([*(place.get(name, -1) for name in graph.class_names), -1], device=graph.device)
    return dataclasses.replace(graph, y=codes.index_select(0, graph.y % len(codes)), class_names=tuple(classes))


@dataclass(frozen=True, eq=False)
class Job:
    """One model to train."""

    name: JobName
    task: Task
    recipe: Recipe  # of one member
    method: Method  # that of the recipe
    seed: int
    stop_at: int | None = None  # end after this epoch, although the recipe has more
    kept: Kept | None = None  # gets the weights after each epoch
    like: Sequence[
        Any
    ] = ()  # models of the same recipe for other folds: what trees choose by inner folds is taken over

    @property
    def is_at_once(self) -> bool:
        return self.method.at_once

    def built(self) -> Any:
        """The model before training."""
        return self.method.build(self.recipe, self.task.prepared, self.seed)

    def run(self, device: torch.device, watch: Watch | None = None, *, capture: str = "auto") -> Fit:
        """Train it here."""
        check_seed(self.seed)
        watch = watch or Watch()
        model, prepared = self.built().to(device), self.task.prepared.to(device)
        validation = self.task.validation.on(prepared)
        try:
            if self.is_at_once:
                model.choose_like(self.like)
                nodes = self.task.train.nonzero().squeeze(1).to(device)
                run = fit_at_once(model, prepared, nodes, validation, self.recipe, seed=self.seed)
                if watch.on_epoch is not None:
                    watch.on_epoch(self.name, run.history[0])
                return Fit(model, run)
            batches = [
                batch.to(device, waits=batch.node_ids is not None)
                for batch in batches_of(prepared, self.task.train, self.recipe)
            ]
            options: dict[str, Any] = {"seed": self.seed, "stop_at": self.stop_at, "capture": capture}
            return Fit(model, fit(model, batches, validation, self.recipe, watching=self.watching(watch), **options))
        except DivergedError as error:
            if self.name.member:
                error.args = (f"member {self.name.member}: {error}",)
            raise

    def watching(self, watch: Watch) -> Watching:
        """What `fit` is told of a watch."""
        name, on_epoch = self.name, watch.on_epoch
        checkpoints = None if watch.checkpoints is None else watch.checkpoints(name)
        return Watching(
            None if on_epoch is None else lambda epoch: on_epoch(name, epoch),
            checkpoints,
            watch.every,
            watch.seconds,
            watch.resume,
            {} if checkpoints is None else self.fingerprint(watch.content),
            self.kept,
        )

    def fingerprint(self, content: str) -> dict[str, Any]:
        """What a checkpoint must agree with for this training to go on from it."""
        parts = Split(self.task.train, self.task.val, torch.zeros_like(self.task.val))
        return {"recipe": self.recipe.hash(), "seed": self.seed, "graph": content, "split": parts.hash}


def batches_of(prepared: Graph, train: Tensor, recipe: Recipe) -> list[Batch]:
    """The training nodes of a prepared graph, a mask [n], as one batch, or one of each cluster that has some of them.

    A method that follows no gradient, such as a team's trees, learns from all nodes at once.
    """
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
            part.pattern.cut_from = prepared.pattern.fingerprint, entries_inside(prepared, inside)
            at = inside.nonzero().squeeze(1)
            batches.append(Batch(part, train[inside].nonzero().squeeze(1), at, stored=stored))
    return batches


def entries_inside(graph: Graph, nodes: Tensor) -> Tensor:
    """The numbers of the entries between two of the nodes, a mask: those of their `subgraph`, in its order."""
    nodes = nodes.to(graph.device)
    return (nodes.index_select(0, graph.row) & nodes.index_select(0, graph.col)).nonzero().squeeze(1)


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


def share_cut(graph: Graph, cluster: np.ndarray) -> float:
    """The share of the edges that are between two clusters, and in no batch."""
    joins = (graph.row != graph.col).cpu().numpy()
    between = cluster[graph.row.cpu().numpy()] != cluster[graph.col.cpu().numpy()]
    return float(between.sum() / max(1, joins.sum()))
