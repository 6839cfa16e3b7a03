"""What a trained model says: probabilities, tables, the status of each node, and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.calibration import Calibration, conformal_sets, fit_calibrator
from gcn_lpa.description import node_hops
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.fusion import opinions_of
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask

if TYPE_CHECKING:
    from gcn_lpa.trained import Trained


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


def predict_proba(trained: Trained, graph: Graph, *, known: Any = None, raw: bool = False) -> Tensor:
    """The probability of each class of `trained.class_names` for each node, rows that sum to 1, [n, c], on the CPU.

    They are calibrated where the model is. A node of which the model can know nothing gets the shares of the labels
    (`with_prior`).

    Args:
        graph: raw, as it was loaded: the one that was trained on, or another with the same columns.
        known: nodes, a mask or positions, whose labels in `graph` the model may use; None: those it was trained on.
        raw: what the model itself says, without calibration and without `with_prior`.
    """
    found = posteriors(trained, trained.prepare(graph, known))
    if raw:
        return found
    labels = labels_known(trained, graph, known)
    found = with_prior(found, graph, labels)
    return found if trained.calibration is None else with_prior(trained.calibrator(found), graph, labels)


def posteriors(trained: Trained, prepared: Graph) -> Tensor:
    """What the model, and the labels that vote beside it, say on a prepared graph, [n, c], on the CPU."""
    placed = prepared.to(trained.device)
    if trained.fusion is not None:
        return trained.fusion(opinions_of(trained.model, placed))
    with torch.no_grad():
        return F.softmax(trained.model(placed).double(), dim=1).cpu()


def labels_known(trained: Trained, graph: Graph, known: Any = None) -> Tensor:
    """The classes of the labels that were given, to learn from, to choose the epoch, or as `known`, -1 elsewhere, [n]."""
    if known is None:
        return trained.known.on(graph)[0]
    return torch.where(node_mask(known, graph.num_nodes, "known"), trained.classes_of(graph), -1)


def predictions(
    trained: Trained,
    graph: Graph,
    *,
    known: Any = None,
    raw: bool = False,
    abstain: float | None = None,
    threshold: float | None = None,
    score: str = "lac",
    hops: bool = False,
) -> Any:
    """A DataFrame with a row per node: id, label, probability, runner_up, status.

    label is what the model says, also where a label was given; runner_up is the next likely class, "" where there is
    one class only. status is as in `node_status`; what a model says of a node that no label reaches comes from the
    features alone, and where there are none, it is the shares of the given labels (`with_prior`).

    Args:
        graph, known: as in `predict_proba`.
        raw: probabilities without calibration.
        abstain: below this probability the label is "", unless one was given, and "reached" becomes "abstain".
        threshold: of `conformal_threshold`, for a column `set`: the classes in the set, likeliest first, with | between.
        score: of the sets.
        hops: add a column with the number of edges to the nearest given label, None where there is no way.
    """
    labels, class_names = labels_known(trained, graph, known), trained.class_names
    given = labels >= 0
    before = predict_proba(trained.with_calibration(None), graph, known=known)
    probabilities = (
        before if raw or trained.calibration is None else with_prior(trained.calibrator(before), graph, labels)
    )
    ranked = before.argsort(dim=1, descending=True, stable=True)
    status = node_status(graph, given)
    label = ranked[:, 0]
    second = ranked[:, 1] if len(class_names) > 1 else torch.full((graph.num_nodes,), -1)
    probability = probabilities.gather(1, label.unsqueeze(1)).squeeze(1)
    if abstain is not None:
        if not 0 < abstain <= 1:
            raise ValueError(f"abstain = {abstain}; it is a probability, such as 0.6")
        doubt = (probability < abstain) & ~given
        label = label.masked_fill(doubt, -1)
        status = [
            "abstain" if doubts and was == "reached" else was
            for doubts, was in zip(doubt.tolist(), status, strict=True)
        ]
    more: dict[str, Any] = {}
    if threshold is not None:
        more["set"] = _joined(conformal_sets(before, threshold, score=score), ranked, class_names)
    if hops:
        more["hops"] = [int(hop) if math.isfinite(hop) else None for hop in node_hops(graph, given)]
    return prediction_table(graph.node_names, class_names, Likeliest(label, probability, second), status, more)


class Likeliest(NamedTuple):
    """Of every node the likeliest class, its probability, and the next class; -1: none."""

    label: Tensor
    probability: Tensor
    runner_up: Tensor


def prediction_table(
    ids: Sequence[Any],
    class_names: Sequence[str],
    guesses: Likeliest,
    status: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The DataFrame of `predictions`, with `more` columns behind."""
    import pandas

    names = [*class_names, ""]
    columns: dict[str, Any] = {
        "id": list(ids),
        "label": [names[k] for k in guesses.label.tolist()],
        "probability": guesses.probability.numpy(),
        "runner_up": [names[k] for k in guesses.runner_up.tolist()],
        "status": status,
        **(more or {}),
    }
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


def with_prior(probabilities: Tensor, graph: Graph, labels: Tensor) -> Tensor:
    """The probabilities, [n, c], but the shares of the given labels for unreached nodes without features.

    No given label reaches them along edges, and they have no features: none at all, or their row is zero and they have
    no neighbour. A model would answer with what its weights happened to be before training.

    Args:
        labels: the class of every given label, -1 elsewhere, [n].
    """
    blank, given = has_nothing(graph), labels >= 0
    counts = torch.bincount(labels[given], minlength=probabilities.shape[1]).double()
    if blank.any():
        blank &= torch.from_numpy(np.isinf(node_hops(graph, given)))
    if not blank.any() or counts.sum() == 0:
        return probabilities
    return torch.where(blank.unsqueeze(1), counts / counts.sum(), probabilities)


def has_nothing(graph: Graph) -> Tensor:
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


def evaluate(trained: Trained, graph: Graph, nodes: Any) -> Scores:
    """Compare what the model says with the labels of `nodes`; the only function that reads test labels.

    A node whose class the model does not know counts as an error.

    Args:
        graph: raw, as in `predict_proba`.
        nodes: a boolean mask or positions.
    """
    return scores(graph, nodes, predict_proba(trained, graph, raw=True), trained.class_names)


def scores(graph: Graph, nodes: Any, probabilities: Tensor, class_names: Sequence[str] | None = None) -> Scores:
    """The scores of class probabilities, [n, c], on `nodes`; their columns are `class_names`, or the classes of the graph."""
    mask = node_mask(nodes, graph.num_nodes)
    return scores_of(graph.y.cpu()[mask], probabilities[mask].argmax(dim=1), graph.class_names, class_names)


def scores_of(truth: Tensor, guess: Tensor, names: tuple[str, ...], class_names: Sequence[str] | None = None) -> Scores:
    """The scores of guesses, numbers of `class_names`, for the true classes, numbers of `names`; None: both are of `names`."""
    if len(truth) == 0:
        raise ValueError("there is no node to score: the mask is empty")
    if (truth < 0).any():
        raise ValueError(f"{int((truth < 0).sum())} of the {len(truth)} nodes to score have no label")
    if class_names is not None and tuple(class_names) != names:
        names = (*names, *(name for name in class_names if name not in names))
        guess = torch.tensor([names.index(name) for name in class_names])[guess]
    c = len(names)
    confusion = torch.bincount(c * truth + guess, minlength=c * c).view(c, c).numpy()
    right, true, called = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = _share(2 * right, true + called)
    rows = zip(*(column.tolist() for column in (_share(right, called), _share(right, true), f1, true)), strict=True)
    return Scores(
        accuracy=float(right.sum() / len(truth)),
        macro_f1=float(f1[true + called > 0].mean()),
        num_nodes=len(truth),
        per_class={name: ClassScores(*row) for name, row in zip(names, rows, strict=True)},
        confusion=confusion.tolist(),
    )


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 where the whole is 0."""
    share: np.ndarray = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return share


def calibrate(trained: Trained, graph: Graph, nodes: Any, *, protocol: str = "reserved") -> Trained:
    """The same model with probabilities that are calibrated on the labels of `nodes`, which training must not have seen."""
    mask = node_mask(nodes, graph.num_nodes)
    seen = mask & trained.known.on(graph)[1]
    if seen.any():
        raise ValueError(f"node {int(seen.nonzero()[0])} was trained on: its label cannot calibrate the model")
    y = trained.classes_of(graph)[mask]
    if not len(y) or (y < 0).any():
        raise ValueError(
            f"{int((y < 0).sum())} of the {len(y)} nodes to calibrate on have no label that the model knows"
        )
    found = predict_proba(trained.with_calibration(None), graph)[mask]
    return trained.with_calibration(Calibration(fit_calibrator(found, y), protocol, len(y)))


def edge_table(trained: Trained, graph: Graph) -> Any:
    """A DataFrame source, target, weight, learned: the weight of the input and a*_ij, the share that the message from
    source has at target, D*⁻¹A*. Both directions of every edge, and the self-loops; the shares at a target sum to 1.
    """
    import pandas

    if not hasattr(trained.model, "transition"):
        raise ValueError(f"method {trained.recipe.method!r} learns no edge weights that could be listed; gcn-lpa does")
    prepared = trained.prepare(graph)
    with torch.no_grad():
        learned = trained.model.transition(prepared.to(trained.device)).values.cpu()
    names = pandas.Series(list(graph.node_names), dtype=object)
    return pandas.DataFrame(
        {
            "source": names.iloc[prepared.col.cpu().numpy()].to_numpy(),
            "target": names.iloc[prepared.row.cpu().numpy()].to_numpy(),
            "weight": prepared.adjacency.values.cpu().numpy(),
            "learned": learned.numpy(),
        }
    )
