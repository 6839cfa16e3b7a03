"""The predictions of a trained model: probabilities, tables, the status of each node, and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.calibration import USUAL_LEVEL, Calibration, check_level, conformal_sets
from gcn_lpa.cut import Cut
from gcn_lpa.data.checks import node_mask
from gcn_lpa.data.describe import node_hops
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import parts_of
from gcn_lpa.metrics import NumberScores, Scores
from gcn_lpa.regression import Intervals
from gcn_lpa.target import Target
from gcn_lpa.trained import Trained


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictions of a model for every node of a graph; the models run once, whatever is asked of it afterwards."""

    trained: Trained
    graph: Graph  # with the edges that it walks
    labels: Tensor  # every label that was given, unknown elsewhere, [n]
    output: Tensor  # probabilities as the ensemble gives them, [n, c]; or standard scores and the spread around them, [n, 2]

    @classmethod
    def of(cls, trained: Trained, graph: Graph, known: Any = None) -> Prediction:
        """Run the models on a graph.

        Args:
            graph: raw, as it was loaded: the one that was trained on, or another with the same columns.
            known: nodes, a mask or positions, whose labels in `graph` the model may use; None: those it was trained on.
        """
        check_trained(trained)
        output, walked = posteriors(trained, trained.prepare(graph, known)), trained.walked(graph)
        if known is None:
            return cls(trained, walked, trained.known.on(graph)[0], output)
        mask = node_mask(known, graph.num_nodes, "known")
        return cls(trained, walked, torch.where(mask, trained.labels_of(graph), trained.target.unknown), output)

    @property
    def given(self) -> Tensor:
        """The nodes whose labels the model was given, [n]."""
        return self.trained.target.known(self.labels)

    @cached_property
    def hops(self) -> np.ndarray:
        """The number of edges from the nearest given label to each node; inf: no way, [n]."""
        return node_hops(self.graph, self.given)

    @cached_property
    def status(self) -> list[str]:
        """For each node "labeled", or whether a given label can travel to it along edges: "reached" or "unreachable"."""
        return status_of(self.hops)

    @property
    def unreachable(self) -> Tensor:
        """The nodes that no given label reaches, [n]."""
        return torch.from_numpy(np.isinf(self.hops))

    @cached_property
    def uncalibrated(self) -> Tensor:
        """The output, but the shares of the given labels for nodes of which nothing is known, [n, c]; of numbers errors nearby too.

        No given label reaches them along edges, and they have no features: none at all, or their row is zero and they have
        no neighbour. Of them a model would give what its weights happened to be before training.
        """
        outputs = self._with_prior(self.output)
        if self.trained.target.names:
            return outputs
        return torch.cat([outputs, self.trained.known.errors_near(self.graph).unsqueeze(1)], dim=1)

    @cached_property
    def probabilities(self) -> Tensor:
        """Rows that sum to 1, calibrated where the model is, [n, c]."""
        calibration = self.trained.calibration
        if not isinstance(calibration, Calibration) or not calibration.changes:
            return self.uncalibrated
        return self._with_prior(calibration(self.uncalibrated, self.unreachable))

    def _with_prior(self, probabilities: Tensor) -> Tensor:
        prior = self.trained.target.prior(self.labels) if self.is_blank.any() else None
        return probabilities if prior is None else torch.where(self.is_blank.unsqueeze(1), prior, probabilities)

    @cached_property
    def is_blank(self) -> Tensor:
        """Of each node whether nothing is known of it, [n]."""
        blank = has_nothing(self.graph)
        return blank & self.unreachable if blank.any() else blank

    def table(
        self,
        *,
        raw: bool = False,
        abstain: float | None = None,
        threshold: float | None = None,
        hops: bool = False,
        all_classes: bool = False,
        cut: Cut | None = None,
        level: float = USUAL_LEVEL,
    ) -> Any:
        """A DataFrame with a row per node: id, label, probability, runner_up, status; of numbers id, value, low, high, status.

        label is the prediction, also where a label was given; runner_up is the next likely class, "" where there is one class
        only. The prediction of a node that no label reaches comes from the features alone.

        Args:
            raw: probabilities without calibration.
            abstain: below this probability the label is "", unless one was given, and "reached" becomes "abstain".
            threshold: of `conformal_threshold`, for a column `set`: the classes in the set, likeliest first, with | between.
            hops: add a column with the number of edges to the nearest given label, None where there is no way.
            all_classes: add a column p:CLASS for each class, its probability.
            cut: from its threshold on, label is its class, and below it the likeliest of the others; the column p:CLASS of its
                class is there.
            level: how often a number shall be from `low` to `high`; they are empty where too few labels were held out.
        """
        if self.trained.target.scale is not None:
            about_classes = {"abstain": abstain, "threshold": threshold, "cut": cut, "all_classes": all_classes or None}
            if given := [name for name, value in about_classes.items() if value is not None]:
                raise ValueError(f"{given[0]} is about classes, and this model predicts numbers")
            return self._number_table(level, hops=hops)
        names, status = self.trained.class_names, self.status
        probabilities = self.uncalibrated if raw else self.probabilities
        ranked = self.uncalibrated.argsort(dim=1, descending=True, stable=True)
        label = ranked[:, 0]
        second = ranked[:, 1] if len(names) > 1 else torch.full((self.graph.num_nodes,), -1)
        if cut is not None:
            number = names.index(cut.positive)
            other = ranked[:, 0].where(ranked[:, 0] != number, second)
            is_called = probabilities[:, number] >= cut.threshold
            label, second = torch.where(is_called, number, other), torch.where(is_called, other, number)
        probability = probabilities.gather(1, label.unsqueeze(1)).squeeze(1)
        if abstain is not None:
            if not 0 < abstain <= 1:
                raise ValueError(f"abstain = {abstain}; it is a probability, such as 0.6")
            unsure = (probability < abstain) & ~self.given
            label = label.masked_fill(unsure, -1)
            pairs = zip(unsure.tolist(), status, strict=True)
            status = ["abstain" if is_unsure and was == "reached" else was for is_unsure, was in pairs]
        more: dict[str, Any] = {}
        if threshold is not None:
            if torn := [name for name in names if "|" in name]:
                raise ValueError(f"the class {torn[0]!r} holds a |, which stands between classes of a set; rename it")
            inside = conformal_sets(self.uncalibrated, threshold).gather(1, ranked)
            rows = [zip(*row, strict=True) for row in zip(ranked.tolist(), inside.tolist(), strict=True)]
            more["set"] = ["|".join(names[k] for k, is_in in row if is_in) for row in rows]
        if hops:
            more["hops"] = self._whole_hops
        table = prediction_table(self.graph.node_names, names, (label, probability, second), status, more)
        if all_classes:
            for k, name in enumerate(names):
                table[f"p:{name}"] = probabilities[:, k].numpy()
        elif cut is not None:
            table[f"p:{cut.positive}"] = probabilities[:, names.index(cut.positive)].numpy()
        return table

    def guesses(self) -> Callable[[int], tuple[str, float | None, str, float | None]]:
        """What is predicted for a node: its likeliest class and the next, each with its probability; or its number and interval."""
        target, outputs = self.trained.target, self.probabilities
        if target.scale is not None:
            value, (low, high) = target.words(outputs[:, 0]), self.interval()
            return lambda node: (f"{value[node]:.4g}", None, f"{low[node]:.4g} to {high[node]:.4g}", None)

        def classes(node: int) -> tuple[str, float | None, str, float | None]:
            first, second = outputs[node].argsort(descending=True, stable=True)[:2].tolist()
            return target.names[first], float(outputs[node, first]), target.names[second], float(outputs[node, second])

        return classes

    def number_texts(self, nodes: np.ndarray) -> dict[str, list[str]]:
        """Of numbers the predicted value of each of some nodes, with its interval, and the given one; nothing of classes."""
        target = self.trained.target
        if target.scale is None:
            return {}
        guess, given = self.guesses(), target.words(self.trained.labels_of(self.graph))
        parts = [guess(at) for at in nodes.tolist()]
        return {"values": [f"{value} ({ends})" for value, _, ends, _ in parts], "given": [f"{one:.6g}" for one in given[nodes]]}

    @property
    def _whole_hops(self) -> list[int | None]:
        return [int(hop) if math.isfinite(hop) else None for hop in self.hops]

    def interval(self, level: float = USUAL_LEVEL) -> tuple[Tensor, Tensor]:
        """From where to where numbers are, as often as `level` says, [n] each; infinite where too few labels were held out."""
        scale, z = self.trained.target.scale, self.uncalibrated[:, 0]
        assert scale is not None
        half = self.trained.radius(level) * self.unit
        return scale.undone(z - half), scale.undone(z + half)

    @cached_property
    def unit(self) -> Tensor:
        """What the errors of predicted numbers are measured in at each node, [n]."""
        intervals = cast("Intervals | None", self.trained.calibration)
        return torch.ones(self.graph.num_nodes) if intervals is None else intervals.unit(self.uncalibrated, self.unreachable)

    def _number_table(self, level: float, *, hops: bool) -> Any:
        import pandas

        check_level(level)
        low, high = (end.masked_fill(end.isinf(), math.nan) for end in self.interval(level))
        value = self.trained.target.words(self.uncalibrated[:, 0])
        columns = {"id": pandas.Series(list(self.graph.node_names), dtype=object), "value": value}
        columns |= {"low": low.masked_fill(high.isnan(), math.nan).numpy(), "high": high.numpy()}
        columns["status"] = pandas.Series(self.status, dtype=object)
        return pandas.DataFrame(columns | ({"hops": pandas.Series(self._whole_hops, dtype=object)} if hops else {}))


def check_trained(trained: Any) -> None:
    if not isinstance(trained, Trained):
        is_run = isinstance(getattr(trained, "trained", None), Trained)
        what = f"a {type(trained).__name__}; pass run.trained" if is_run else f"{trained!r:.40}"
        raise TypeError(f"trained is a gcn_lpa.Trained, such as learn gives, not {what}")


def predict_proba(trained: Trained, graph: Graph, *, known: Any = None, raw: bool = False) -> Tensor:
    """The probability of each class of `trained.class_names` for each node, rows that sum to 1, [n, c], on the CPU.

    Args:
        graph, known: as in `Prediction.of`.
        raw: the output of the ensemble, without calibration and without the shares of labels for unknown nodes.
    """
    prediction = Prediction.of(trained, graph, known)
    trained.target.only_classes("numbers have no probabilities; predictions(trained, graph) gives the numbers")
    return prediction.output if raw else prediction.probabilities


def predictions(trained: Trained, graph: Graph, *, known: Any = None, **options: Any) -> Any:
    """The table of `Prediction` as a DataFrame: id, label, probability, runner_up, status; `options` are those of its `table`."""
    return Prediction.of(trained, graph, known).table(**options)


def posteriors(trained: Trained, prepared: Graph) -> Tensor:
    """The probabilities of the ensemble and its label votes on a prepared graph, [n, c], on the CPU."""
    placed = prepared.to(trained.device)
    if trained.weights is not None:
        return trained.weights(parts_of(trained.model, placed))
    with torch.no_grad():
        return trained.target.answer(trained.model(placed).double()).cpu()


def status_of(hops: np.ndarray) -> list[str]:
    """The status of nodes that are so many hops from the nearest given label."""
    words = ["labeled", "reached"]
    return np.select([hops == 0, np.isfinite(hops)], words, "unreachable").tolist()  # type: ignore[no-any-return]


def prediction_table(
    ids: Sequence[Any],
    class_names: Sequence[str],
    guesses: tuple[Tensor, Tensor, Tensor],
    status: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The DataFrame of `predictions`, with `more` columns behind.

    Args:
        guesses: of every node the likeliest class, its probability, and the next class; -1: none.
    """
    import pandas

    names, (label, probability, runner_up) = [*class_names, ""], guesses
    columns: dict[str, Any] = {
        "id": list(ids),
        "label": [names[k] for k in label.tolist()],
        "probability": probability.numpy(),
        "runner_up": [names[k] for k in runner_up.tolist()],
        "status": status,
        **(more or {}),
    }
    types = {name: float if name == "probability" else object for name in columns}
    return pandas.DataFrame({name: pandas.Series(column, dtype=types[name]) for name, column in columns.items()})


def has_nothing(graph: Graph) -> Tensor:
    """Nodes that have neither features nor a neighbour, bool [n]; all where the graph has no features."""
    if graph.x_kind == "identity":
        return torch.ones(graph.num_nodes, dtype=torch.bool)
    x = graph.x
    size = x.square_norms() if isinstance(x, SparseMatrix) else x.square().sum(dim=1)
    alone = torch.ones(graph.num_nodes, dtype=torch.bool, device=graph.device)
    alone[graph.row[graph.row != graph.col].long()] = False
    return (alone & (size == 0)).cpu()


def evaluate(trained: Trained, graph: Graph, nodes: Any, *, positive: str | None = None) -> Scores | NumberScores:
    """Compare the labels of `predictions` with those of `nodes`. A node whose class the model does not know counts as an error.

    Args:
        graph: raw, as in `predict_proba`.
        nodes: a boolean mask or positions.
        positive: the class whose ranking is scored; None: the rarer of two, where it is rare.
    """
    return scores(graph, nodes, Prediction.of(trained, graph).uncalibrated, trained.target, positive)


def scores(
    graph: Graph, nodes: Any, probabilities: Tensor, target: Target | None = None, positive: str | None = None
) -> Scores | NumberScores:
    """The scores of probabilities, [n, c], for the labels of `nodes`; their columns are those of `target`, or of the graph's."""
    mask = node_mask(nodes, graph.num_nodes)
    return (target or graph.target).scores(graph.y.cpu()[mask], probabilities[mask], graph.target, positive)


def edge_table(trained: Trained, graph: Graph) -> Any:
    """A DataFrame source, target, weight, learned: the weight of the input and a*_ij, the share that the message from
    source has at target, D*⁻¹A*. Both directions of every edge, and the self-loops; the shares at a target sum to 1.
    """
    import pandas

    check_trained(trained)
    if not trained.method.has_edge_weights:
        raise ValueError(f"method {trained.recipe.method!r} learns no edge weights that could be listed; gcn-lpa does")
    prepared = trained.prepare(graph)
    with torch.no_grad():
        learned = trained.model.transition(prepared.to(trained.device)).values.cpu()
    names = pandas.Series(list(graph.node_names), dtype=object)
    given = graph.with_self_loops() if trained.recipe.self_loops else graph  # before columns of edges weigh them
    source, target = (names.iloc[ends.cpu().numpy()].to_numpy() for ends in (given.col, given.row))
    keys, walked = (g.row.cpu().numpy().astype(np.int64) * g.num_nodes + g.col.cpu().numpy() for g in (given, prepared))
    shares = np.zeros(len(keys), dtype=np.float32)  # of edges that are left out
    shares[np.searchsorted(keys, walked)] = learned.numpy()
    weights = {"weight": given.adjacency.values.cpu().numpy(), "learned": shares}
    return pandas.DataFrame({"source": source, "target": target, **weights})
