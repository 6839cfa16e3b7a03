"""What a trained model says: probabilities, tables, the status of each node, and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.calibration import Calibrator, conformal_sets
from gcn_lpa.description import node_hops
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.model import Model
from gcn_lpa.recipes import Recipe


@dataclass(frozen=True)
class ClassScores:
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Scores:
    """How well a model does on some nodes. Row i, column j of `confusion`: nodes of class i that were called j."""

    accuracy: float
    macro_f1: float  # mean over the classes that occur, or are predicted, among these nodes; as in scikit-learn
    num_nodes: int
    per_class: dict[str, ClassScores]
    confusion: list[list[int]]


def predict_proba(model: Model, graph: Graph, *, recipe: Recipe | None = None) -> Tensor:
    """The probability of each class for each node, rows that sum to 1, [n, c], on the CPU.

    Args:
        graph: prepared as for `fit`; or raw, together with the `recipe` that prepares it.
    """
    prepared = graph if recipe is None else recipe.prepare(graph)
    tensors = [*model.state_dict().values()]
    with torch.no_grad():
        logits = model(prepared.to(tensors[0].device) if tensors else prepared)
    return F.softmax(logits.double(), dim=1).cpu()


def predictions(
    model: Model,
    graph: Graph,
    given: Tensor,
    *,
    recipe: Recipe | None = None,
    calibrator: Calibrator | None = None,
    abstain: float | None = None,
    threshold: float | None = None,
    score: str = "lac",
    hops: bool = False,
) -> Any:
    """A DataFrame with a row per node: id, label, probability, runner_up, status; `graph` as in `predict_proba`.

    label is what the model says, also where a label was given; runner_up is the next likely class, "" where there is
    one class only. status is as in `node_status`; what a model says of a node that no label reaches comes from the
    features alone, and where there are none, it is the shares of the given labels (`with_prior`).

    Args:
        given: the nodes whose labels the model was given, [n].
        calibrator: what makes the probabilities calibrated.
        abstain: below this probability the label is "" and the status "abstain", unless a label was given.
        threshold: of `conformal_threshold`, for a column `set`: the classes in the set, likeliest first, with | between.
        score: of the sets.
        hops: add a column with the number of edges to the nearest given label, None where there is no way.
    """
    import pandas

    raw = with_prior(predict_proba(model, graph, recipe=recipe), graph, given)
    probabilities = raw if calibrator is None else with_prior(calibrator(raw), graph, given)
    ranked = raw.argsort(dim=1, descending=True, stable=True)
    names, status = [*graph.class_names, ""], node_status(graph, given)
    label = ranked[:, 0]
    second = ranked[:, 1] if graph.num_classes > 1 else torch.full((graph.num_nodes,), -1)
    probability = probabilities.gather(1, label.unsqueeze(1)).squeeze(1)
    if abstain is not None:
        if not 0 < abstain <= 1:
            raise ValueError(f"abstain = {abstain}; it is a probability, such as 0.6")
        doubt = (probability < abstain) & ~given.cpu()
        label = label.masked_fill(doubt, -1)
        status = ["abstain" if doubts else said for doubts, said in zip(doubt.tolist(), status, strict=True)]
    columns: dict[str, Any] = {
        "id": list(graph.node_names),
        "label": [names[k] for k in label.tolist()],
        "probability": probability.numpy(),
        "runner_up": [names[k] for k in second.tolist()],
        "status": status,
    }
    if threshold is not None:
        columns["set"] = _joined(conformal_sets(raw, threshold, score=score), ranked, graph.class_names)
    if hops:
        columns["hops"] = [int(hop) if math.isfinite(hop) else None for hop in node_hops(graph, given)]
    return pandas.DataFrame({name: pandas.Series(column, dtype=_column_type(name)) for name, column in columns.items()})


def _column_type(name: str) -> Any:
    return float if name == "probability" else object


def _joined(sets: Tensor, ranked: Tensor, names: Sequence[str]) -> list[str]:
    """The names of the classes in each set, in the order of `ranked`."""
    if torn := [name for name in names if "|" in name]:
        raise ValueError(
            f"the class {torn[0]!r} holds a |, which stands between the classes of a set; rename the class"
        )
    inside = sets.gather(1, ranked)
    rows = zip(ranked.tolist(), inside.tolist(), strict=True)
    return ["|".join(names[k] for k, is_in in zip(*row, strict=True) if is_in) for row in rows]


def with_prior(probabilities: Tensor, graph: Graph, given: Tensor) -> Tensor:
    """The probabilities, [n, c], but the shares of the given labels for nodes of which the model can know nothing.

    No given label reaches them along edges, and they have no features: none at all, or their row is zero and they have
    no neighbour. A model would answer with what its weights happened to be before training.
    """
    blank, given = _has_nothing(graph), given.cpu()
    counts = torch.bincount(graph.y.cpu()[given].clamp_min(0), minlength=graph.num_classes).double()
    if blank.any():
        blank &= torch.from_numpy(np.isinf(node_hops(graph, given)))
    if not blank.any() or counts.sum() == 0:
        return probabilities
    return torch.where(blank.unsqueeze(1), counts / counts.sum(), probabilities)


def _has_nothing(graph: Graph) -> Tensor:
    """Nodes without features of their own or of a neighbour, bool [n]."""
    if graph.x_kind == "identity":
        return torch.ones(graph.num_nodes, dtype=torch.bool)
    x = graph.x
    size = x.square_norms() if isinstance(x, SparseMatrix) else x.square().sum(dim=1)
    alone = torch.ones(graph.num_nodes, dtype=torch.bool, device=graph.device)
    alone[graph.row[graph.row != graph.col].long()] = False
    return (alone & (size == 0)).cpu()


def node_status(graph: Graph, given: Tensor) -> list[str]:
    """For each node "labeled", or whether a given label can travel to it along edges: "reached" or "unreachable"."""
    hops = node_hops(graph, given)
    return np.select([hops == 0, np.isfinite(hops)], ["labeled", "reached"], "unreachable").tolist()  # type: ignore[no-any-return]


def evaluate(model: Model, graph: Graph, mask: Tensor, *, recipe: Recipe | None = None) -> Scores:
    """Compare predictions with the labels of the nodes in `mask`; the only function that reads test labels.

    `graph` as in `predict_proba`.
    """
    return scores(graph, mask, predict_proba(model, graph, recipe=recipe))


def scores(graph: Graph, mask: Tensor, probabilities: Tensor) -> Scores:
    """The scores of class probabilities, [n, c], on the nodes of `mask`."""
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    mask = mask.cpu()
    truth, guess = graph.y.cpu()[mask].numpy(), probabilities[mask].argmax(dim=1).numpy()
    if len(truth) == 0:
        raise ValueError("there is no node to score: the mask is empty")
    if (truth < 0).any():
        raise ValueError(f"{int((truth < 0).sum())} of the {len(truth)} nodes to score have no label")
    classes = range(graph.num_classes)
    columns = precision_recall_fscore_support(truth, guess, labels=classes, zero_division=0)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return Scores(
        accuracy=float(accuracy_score(truth, guess)),
        macro_f1=float(f1_score(truth, guess, average="macro", zero_division=0)),
        num_nodes=len(truth),
        per_class={name: ClassScores(*row) for name, row in zip(graph.class_names, rows, strict=True)},
        confusion=confusion_matrix(truth, guess, labels=classes).tolist(),
    )
