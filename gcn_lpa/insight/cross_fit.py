"""Models that were not shown the label in question: repeated folds over the given labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.splits import label_folds, split
from gcn_lpa.epochs import Epoch
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.learning.tasks import JobName, Watch
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.trained import Trained

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
    given: Any = None,
    recipe: Recipe = DEFAULT,
    *,
    folds: int = 5,
    repeats: int = 3,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_fit: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Train `folds` · `repeats` models, each without the labels of one fold, and predict with each the nodes it was not shown.

    The number of epochs is found first, with a fifth of the labels, where their loss is lowest: ranking needs
    probabilities, and those of a model trained for accuracy are too sure. That number is all that a label contributes
    to its own score.

    Args:
        given: the nodes whose labels may be used, a mask or positions; None: all labelled ones. Others are not read.
        repeats: with new folds and first weights each; probabilities are averaged.
        on_fit: called with the number of models trained and of all.
    """
    check_seed(seed)
    check_seed(seed + repeats - 1)
    given, recipe = checked_given(graph, given, folds, repeats), recipe.replace(members="")  # the first model alone
    labels, nobody = graph.y.cpu(), torch.zeros_like(given)
    hidden, total = graph.reveal(given), folds * repeats + 1
    options: dict[str, Any] = {"classes": graph.class_names, "device": device, "threads": threads}
    parts = split(hidden, (0.8, 0.2, 0.0), seed)
    searching = recipe.replace(select="loss", patience=PATIENCE)
    (searched,) = learn_many(hidden, [(parts.train, parts.val)], searching, seeds=seed, **options)
    epochs = searched.run.best_epoch
    if on_fit is not None:
        on_fit(1, total)
    rounds = [label_folds(labels, given, folds, seed=(seed, repeat)) for repeat in range(repeats)]
    left_out = [(repeat, fold) for repeat, masks in enumerate(rounds) for fold in masks]
    models = learn_many(
        hidden,
        [(given & ~fold, nobody) for _, fold in left_out],
        recipe,
        seeds=[seed + repeat for repeat, _ in left_out],
        stop_at=epochs,
        watch=Watch(on_epoch=_counted(epochs, total, on_fit)),
        **options,
    )
    out_of_fold = torch.zeros(graph.num_nodes, graph.num_classes, dtype=torch.float64)
    log_weights = torch.zeros(graph.adjacency.num_entries, dtype=torch.float64)
    for (_, fold), trained in zip(left_out, models, strict=True):
        found = predict_proba(trained, hidden, raw=True)
        out_of_fold[fold] += found[fold] / repeats
        out_of_fold[~given] += found[~given] / (repeats * folds)
        if learns_edges(recipe):
            log_weights += log_multiples(trained, hidden) / (repeats * folds)
    weights = log_weights.exp() if learns_edges(recipe) else None
    return CrossFit(out_of_fold, weights, given, epochs, folds, repeats, seed, recipe)


def _counted(
    epochs: int, total: int, on_fit: Callable[[int, int], None] | None
) -> Callable[[JobName, Epoch], None] | None:
    """Count the models that have reached their last epoch, beside the one that was trained before."""
    if on_fit is None:
        return None
    num_done = 1

    def on_epoch(name: JobName, epoch: Epoch) -> None:
        nonlocal num_done
        if epoch.epoch == epochs:
            num_done += 1
            on_fit(num_done, total)

    return on_epoch


def log_multiples(trained: Trained, graph: Graph) -> Tensor:
    """log a*_ij / a_ij, both row-normalised, for each entry of the raw graph's adjacency, [E]."""
    prepared = trained.prepare(graph).to(trained.device)
    with torch.no_grad():
        learned = trained.model.transition(prepared).values
    given = prepared.adjacency.row_normalized().values
    logs = [values.cpu().double().clamp_min(TINY).log() for values in (learned, given)]
    multiples: Tensor = (logs[0] - logs[1]).index_select(0, positions(graph, prepared))
    return multiples


def checked_given(graph: Graph, given: Any, folds: int, repeats: int) -> Tensor:
    """The mask of the labels that may be used, on the CPU, if there is something to audit."""
    check_graph(graph)
    mask = graph.labeled.cpu() if given is None else node_mask(given, graph.num_nodes, "given")
    labels = graph.y.cpu()[mask]
    if (labels < 0).any():
        raise ValueError(f"{int((labels < 0).sum())} of the {len(labels)} nodes of `given` have no label")
    if repeats < 1 or folds < 2:
        raise ValueError(f"folds = {folds} and repeats = {repeats}; they are at least 2 and 1")
    if len(labels) < folds or len(labels.unique()) < 2:
        raise ValueError(
            f"an audit with {folds} folds needs {folds} labelled nodes and two classes among them; "
            f"there are {len(labels)} nodes of {len(labels.unique())} classes"
        )
    return mask


def learns_edges(recipe: Recipe) -> bool:
    return recipe.method == "gcn-lpa" and recipe.edges != "fixed"


def positions(graph: Graph, prepared: Graph) -> Tensor:
    """Where each entry of the graph's adjacency is among those of the prepared one, which also has self-loops, [E]."""
    own, all_ = (g.row.cpu().long() * g.num_nodes + g.col.cpu().long() for g in (graph, prepared))
    return torch.searchsorted(all_, own)


def settings_of(fitted: CrossFit) -> tuple[int, int, int, int, Recipe]:
    return fitted.epochs, fitted.folds, fitted.repeats, fitted.seed, fitted.recipe
