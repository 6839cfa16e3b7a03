"""Models that were not shown the label in question: repeated folds over the given labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.intake import check_seed
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.splits import split
from gcn_lpa.train import fit

TINY = 1e-12  # share of an edge, so that zero has a logarithm
PATIENCE = 20  # epochs without a lower validation loss before the search for the number of epochs ends


@dataclass(frozen=True)
class CrossFit:
    """What models that were not shown a node's label say of it.

    `weights` are those the models learned for each entry of the graph's adjacency, as multiples of the given ones;
    None where they learn none.
    """

    probabilities: Tensor  # [n, c], float64; of an unlabelled node the mean over all models
    weights: Tensor | None  # [E]
    given: Tensor  # [n], the nodes whose labels were used
    epochs: int  # of every model
    folds: int
    repeats: int
    seed: int
    recipe: Recipe


def cross_fit(
    graph: Graph,
    given: Tensor | None = None,
    recipe: Recipe = DEFAULT,
    *,
    folds: int = 5,
    repeats: int = 3,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_fit: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Train `folds` · `repeats` models, each without the labels of one fold, and let each speak of the nodes it was not shown.

    The number of epochs is found first, with a fifth of the labels, where their loss is lowest: ranking needs
    probabilities, and those of a model trained for accuracy are too sure. That number is all a label can tell about
    itself.

    Args:
        given: the nodes whose labels may be used, [n]; all labelled ones by default. Other labels are not looked at.
        repeats: with new folds and first weights each; probabilities are averaged.
        on_fit: told the number of models trained and of all.
    """
    check_seed(seed)
    check_seed(seed + repeats - 1)
    given = checked_given(graph, given, folds, repeats)
    prepared = recipe.prepare(graph.reveal(given))
    where = choose_device(device)
    moved = prepared if where.type == "cpu" else prepared.to(where)
    labels, nobody = graph.y.cpu(), torch.zeros_like(given)
    build, total = METHODS[recipe.method].build, folds * repeats + 1
    out_of_fold = torch.zeros(graph.num_nodes, graph.num_classes, dtype=torch.float64)
    log_weights = torch.zeros(graph.adjacency.num_entries, dtype=torch.float64)
    log_given = prepared.adjacency.row_normalized().values.cpu().double().clamp_min(TINY).log()
    entries = positions(graph, prepared) if learns_edges(recipe) else None

    def model_of(
        train: Tensor, val: Tensor, settings: Recipe, seed: int, stop_at: int | None = None
    ) -> tuple[Any, int]:
        shown = train | val
        model: Any = build(settings, prepared.reveal(shown), seed).to(where)
        run = fit(model, moved.reveal(shown), train, val, settings, seed=seed, stop_at=stop_at)
        if run.interrupted:  # by Ctrl-C, which `fit` takes for the end of this training
            raise KeyboardInterrupt
        return model, run.best_epoch

    with num_threads(threads, layer=graph.num_nodes * max(recipe.hidden, graph.num_classes)):
        parts = split(graph.reveal(given), (0.8, 0.2, 0.0), seed)
        _, epochs = model_of(parts.train, parts.val, recipe.replace(select="loss", patience=PATIENCE), seed)
        if on_fit is not None:
            on_fit(1, total)
        for repeat in range(repeats):
            for k, fold in enumerate(label_folds(labels, given, folds, seed=(seed, repeat))):
                rest = given & ~fold
                model, _ = model_of(rest, nobody, recipe, seed + repeat, epochs)
                said = predict_proba(model, moved.reveal(rest))
                out_of_fold[fold] += said[fold] / repeats
                out_of_fold[~given] += said[~given] / (repeats * folds)
                if entries is not None:
                    with torch.no_grad():
                        learned = model.transition(moved.reveal(rest)).values.cpu().double().clamp_min(TINY).log()
                    log_weights += (learned - log_given)[entries] / (repeats * folds)
                if on_fit is not None:
                    on_fit(2 + repeat * folds + k, total)
    weights = None if entries is None else log_weights.exp()
    return CrossFit(out_of_fold, weights, given, epochs, folds, repeats, seed, recipe)


def checked_given(graph: Graph, given: Tensor | None, folds: int, repeats: int) -> Tensor:
    """The mask of the labels that may be used, on the CPU, if there is something to audit."""
    check_graph(graph)
    given = graph.labeled.cpu() if given is None else given.cpu()
    if given.dtype != torch.bool or given.shape != graph.y.shape:
        raise ValueError(
            f"given is a boolean mask of the nodes, [{graph.num_nodes}], not {given.dtype} {list(given.shape)}"
        )
    labels = graph.y.cpu()[given]
    if (labels < 0).any():
        raise ValueError(f"{int((labels < 0).sum())} of the {len(labels)} nodes of `given` have no label")
    if repeats < 1 or folds < 2:
        raise ValueError(f"folds = {folds} and repeats = {repeats}; they are at least 2 and 1")
    if len(labels) < folds or len(labels.unique()) < 2:
        raise ValueError(
            f"an audit with {folds} folds needs {folds} labelled nodes and two classes among them; "
            f"there are {len(labels)} nodes of {len(labels.unique())} classes"
        )
    return given


def label_folds(labels: Tensor, given: Tensor, folds: int, *, seed: tuple[int, int]) -> list[Tensor]:
    """Masks that share out the given nodes at random, those of a class evenly, [n] each."""
    nodes = np.random.Generator(np.random.PCG64(seed)).permutation(np.flatnonzero(given.numpy()))
    nodes = nodes[np.argsort(labels.numpy()[nodes], kind="stable")]
    masks = torch.zeros((folds, len(given)), dtype=torch.bool)
    for k, mask in enumerate(masks):
        mask[torch.from_numpy(nodes[k::folds].copy())] = True
    return list(masks)


def learns_edges(recipe: Recipe) -> bool:
    return recipe.method == "gcn-lpa" and recipe.edges != "fixed"


def positions(graph: Graph, prepared: Graph) -> Tensor:
    """Where each entry of the graph's adjacency is among those of the prepared one, which also has self-loops, [E]."""
    own, all_ = (g.row.cpu().long() * g.num_nodes + g.col.cpu().long() for g in (graph, prepared))
    return torch.searchsorted(all_, own)


def one_hot(labels: Tensor, given: Tensor, num_classes: int) -> Tensor:
    return F.one_hot(torch.where(given, labels, 0), num_classes).double() * given.unsqueeze(1)


def settings_of(fitted: CrossFit) -> tuple[int, int, int, int, Recipe]:
    return fitted.epochs, fitted.folds, fitted.repeats, fitted.seed, fitted.recipe
