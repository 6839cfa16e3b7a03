"""From a graph to a `Trained`: hide labels, prepare the graph, build the model of the recipe's method, and fit it."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.batches import batches_of
from gcn_lpa.engine.backends import num_cpu_threads
from gcn_lpa.engine.devices import SMALL, choose_device, num_threads
from gcn_lpa.features import Scaling
from gcn_lpa.fusion import fit_fusion, opinions_of
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.intake import check_seed, node_mask
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.team import members_of, team_of
from gcn_lpa.planner import room_for
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.splits import Split
from gcn_lpa.train import DivergedError, Epoch, Kept, Run, Validation, Watching, fit
from gcn_lpa.trained import KnownLabels, Trained
from gcn_lpa.workers import can_fork

FEWEST_NODES = 1000  # that several processes are begun for: fewer train in seconds


def learn(
    graph: Graph,
    train: Any,
    val: Any,
    recipe: Recipe = DEFAULT,
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    device: str = "auto",
    threads: int | None = None,
    stop_at: int | None = None,
    capture: str = "auto",
    on_epoch: Callable[[Epoch], None] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 50,
    checkpoint_seconds: float = 0.0,
    resume: bool = False,
    until: float | None = None,
    kept: dict[str, Kept] | None = None,
) -> Trained:
    """Train the method of a recipe on the labels of `train`, and choose the epoch by those of `val`.

    All other labels are hidden before anything is made of the graph; the labels of `val` are hidden from the model.

    Args:
        graph: raw, as it was loaded.
        train, val: nodes, as boolean masks or positions. Without validation nodes the last epoch is kept.
        classes: that the model knows; None: those that occur among the labels of `train` and `val`.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        threads: of the CPU; None: see `num_threads`.
        stop_at, capture: as in `fit`.
        on_epoch: called with the record of every epoch.
        checkpoint: a run folder; every `checkpoint_every` epochs, but not within `checkpoint_seconds` of the last time, all that
            is needed to go on is saved there.
        resume: go on from the checkpoint, if there is one.
        until: a time of `time.perf_counter`: a member of `recipe.members` that would end later, if it took as long as the longest
            before it, is left out; of those that are fitted at once, one that would begin later.
        kept: gets the weights after each epoch, by the name of the member; the first has none.
    """
    check_seed(seed)
    lesson = lesson_of(graph, train, val, recipe, classes)
    where, done, longest = choose_device(device), dict[str, tuple[Any, Run]](), 0.0
    for name, own in lesson.members.items():
        start, is_fitted_at_once = time.perf_counter(), hasattr(METHODS[own.method].build, "fit_directly")
        if done and until is not None and start + (0.0 if is_fitted_at_once else longest) > until:
            continue
        place = checkpoint if checkpoint is None or not name else storage.inside(checkpoint, name)
        identity = fingerprint(own, seed, lesson.graph, lesson.train, lesson.val) if checkpoint is not None else {}
        states = kept.setdefault(name, Kept()) if kept is not None else None
        watching = Watching(on_epoch, place, checkpoint_every, checkpoint_seconds, resume, identity, states)
        with num_threads(threads, layer=graph.num_nodes * max(own.hidden, lesson.graph.num_classes)):
            try:
                done[name] = lesson.fitted(own, seed, where, stop_at=stop_at, capture=capture, watching=watching)
            except DivergedError as error:
                raise told(error, name) from None
        longest = max(longest, time.perf_counter() - start)
        if done[name][1].interrupted:
            break
    with num_threads(threads, layer=graph.num_nodes * max(recipe.hidden, lesson.graph.num_classes)):
        return lesson.together(done)


def num_processes(graph: Graph, recipe: Recipe, device: torch.device, threads: int | None) -> int:
    """How many models to train at a time, each in a process of its own: as many as there are threads, or as memory allows.

    1 where a layer is so large that one model has all threads; where the graph is so small that it is soon done; and where
    processes cannot be forked. A model has the same bits in a process as here.
    """
    layer = graph.num_nodes * max(recipe.hidden, graph.num_classes)
    is_one = graph.num_nodes < FEWEST_NODES or layer >= SMALL or recipe.clusters
    if is_one or device.type != "cpu" or torch.cuda.is_available() or not can_fork():
        return 1
    room = room_for(graph, recipe, device)
    most = num_cpu_threads() if threads is None else threads
    return most if room is None else max(1, min(most, int(room.free / room.needed)))


def told(error: DivergedError, member: str) -> DivergedError:
    """The error, with the member of a team that it is about."""
    if member:
        error.args = (f"member {member}: {error}",)
    return error


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one model is to learn: a graph with the labels it may use, and the same graph as the recipe wants it."""

    graph: Graph  # raw, with the labels of `train` and `val`
    prepared: Graph  # with the labels of `train`
    train: Tensor  # [n]
    val: Tensor  # [n]
    scaling: Scaling
    recipe: Recipe

    @property
    def members(self) -> dict[str, Recipe]:
        """The recipes to be fitted, by name; that of a single model is the recipe itself."""
        return members_of(self.recipe) if self.recipe.members else {"": self.recipe}

    def fitted(
        self, recipe: Recipe, seed: int, device: torch.device, *, like: Sequence[Any] = (), **options: Any
    ) -> tuple[Any, Run]:
        """A model of one recipe, fitted, and how that went.

        Args:
            like: models of the same recipe for other folds: what trees choose by inner folds is taken over from them.
            options: those of `fit`.
        """
        prepared = self.prepared
        model: Any = METHODS[recipe.method].build(recipe, prepared, seed).to(device)
        if like and hasattr(model, "choose_like"):
            model.choose_like(like)
        prepared = prepared.to(device)
        found = batches_of(prepared, self.train, recipe)
        batches = [batch.to(device, waits=batch.node_ids is not None) for batch in found]
        try:
            run = fit(model, batches, validation_of(self.graph, prepared, self.val), recipe, seed=seed, **options)
        except DivergedError as error:
            if error.run is not None and error.run.best_epoch:
                error.trained = self.trained(model, error.run)
            raise
        return model, run

    def together(self, done: Mapping[str, tuple[Any, Run]]) -> Trained:
        """The models of some members, by name, as one."""
        models, runs = zip(*done.values(), strict=True)
        best = tuple(run.best_epoch for run in runs)
        if not self.recipe.members:
            return dataclasses.replace(self.trained(models[0], runs[0]), best_epochs=best)
        own = self.recipe.replace(members=" ".join(list(done)[1:]))
        run = dataclasses.replace(runs[0], recipe=own, interrupted=any(run.interrupted for run in runs))
        return dataclasses.replace(self.trained(team_of([[model] for model in models]), run), best_epochs=best)

    def trained(self, model: Any, run: Run) -> Trained:
        """The model with everything around it; where labels vote, with the weights that the validation nodes give them."""
        graph, known = self.graph, KnownLabels.of(self.graph, self.train, self.val)
        shape = graph.num_features, graph.x_kind, self.scaling
        found = Trained(model, run.recipe, graph.class_names, *shape, known, run, columns=graph.columns)
        if run.recipe.propagation == "relations":
            found = dataclasses.replace(found, relations=relation_shares(model, self.prepared.to(found.device)))
        if not run.recipe.votes or not self.val.any():
            return found
        opinions = opinions_of(model, self.prepared.to(found.device)).of(self.val)
        return dataclasses.replace(found, fusion=fit_fusion(opinions, graph.y.cpu()[self.val]))


def relation_shares(model: Any, prepared: Graph) -> dict[str, float]:
    """How much of what a model says differently of different nodes comes along each kind of edge; of a team, its first member.

    The rest is a node's own prediction. The γ alone do not tell: far along random edges all nodes get the same.
    """
    assert prepared.relations is not None
    each = []
    for one in getattr(model, "first", [model]):
        with torch.no_grad():
            parts = one.body.parts(one.smoothing(prepared), prepared.x)
        spread = torch.stack([(part - part.mean(dim=0)).square().mean().sqrt() for part in parts])
        each.append(spread / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny))
    return dict(zip(prepared.relations.names, torch.stack(each).mean(dim=0)[1:].tolist(), strict=True))


def lesson_of(graph: Graph, train: Any, val: Any, recipe: Recipe, classes: Sequence[str] | None = None) -> Lesson:
    """Hide all labels but those of `train` and `val`, and only then make anything of the graph."""
    check_graph(graph)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a gcn_lpa.Recipe, such as gcn_lpa.DEFAULT, not {recipe!r:.40}")
    if recipe.method not in METHODS:
        raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    train, val = checked_nodes(graph, train, val)
    graph = with_classes(graph.reveal(train | val), classes)
    scaling = graph.scaling(recipe.features, structure=recipe.structure)
    prepared = graph.reveal(train).with_features(scaling)
    return Lesson(graph, prepared.with_self_loops() if recipe.self_loops else prepared, train, val, scaling, recipe)


def learn_whole(*arguments: Any, **options: Any) -> Trained:
    """`learn` for those who train many models: Ctrl-C is a KeyboardInterrupt, not the end of one training.

    `fit` keeps the best so far, and so does scikit-learn's perceptron, with a warning. Counted as a result it would be wrong.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training interrupted by user")
        try:
            trained = learn(*arguments, **options)
        except UserWarning:
            raise KeyboardInterrupt from None
    if trained.run.interrupted:
        raise KeyboardInterrupt
    return trained


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


def validation_of(graph: Graph, prepared: Graph, val: Tensor) -> Validation:
    nodes = val.nonzero().squeeze(1)
    target = graph.y.cpu().index_select(0, nodes)
    return Validation(prepared, nodes.to(prepared.device), target.to(prepared.device))


def fingerprint(recipe: Recipe, seed: int, graph: Graph, train: Tensor, val: Tensor) -> dict[str, Any]:
    """What a checkpoint must agree with for a run to go on."""
    return {
        "recipe": recipe.hash(),
        "seed": seed,
        "graph": graph.content_hash(),
        "split": Split(train, val, torch.zeros_like(val)).hash,
    }
