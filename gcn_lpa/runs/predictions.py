"""Predictions of a run as tables, with calibration and label sets; also on an updated graph, without training."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.calibration import (
    FEWEST,
    USUAL_LEVEL,
    Calibration,
    PerfectECE,
    Reliability,
    check_level,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    guesses_of,
    perfect_ece,
    reliability,
)
from gcn_lpa.cut import Cut, Rule
from gcn_lpa.data.checks import WARNING, is_address, some
from gcn_lpa.data.datasets import reading_options
from gcn_lpa.data.describe import warnings_in
from gcn_lpa.data.edge_columns import TYPE
from gcn_lpa.data.files import write_output
from gcn_lpa.graph import Graph
from gcn_lpa.learning.updated import Changes, Updated, has_free_weights
from gcn_lpa.metrics import NumberScores
from gcn_lpa.predict import Prediction
from gcn_lpa.regression import Intervals
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import TrainedRun, decode_trained, graph_of, read_run
from gcn_lpa.runs.plan import Source
from gcn_lpa.trained import HeldOut, Trained

PROMISES = {  # of label sets and of intervals, by the protocol of the held-out labels
    "reserved": "the reserved nodes chose nothing, so {one} holds the {truth} of a further node drawn like them with at least "
    "this probability",
    "validation": "approximate: the validation nodes also chose the epoch, so {many} may hold the {truth} a little less often; "
    "`train --reserve 0.5` keeps some of them apart",
    "cross-validation": "approximate: the {scores} are those of models without the node's label, the {many} those of all "
    "models together, which are rarely worse",
}
OF_SETS = {"one": "a set", "many": "sets", "truth": "true label", "scores": "scores"}
OF_INTERVALS = {"one": "an interval", "many": "intervals", "truth": "number", "scores": "errors"}


@dataclass(frozen=True)
class CalibrationReport:
    """How sure a run is and how sure it may be, on nodes whose labels it was not given.

    Of a split, the test nodes. Of a cross-validation, every labelled node, its fold scored by what the others give.
    """

    graph: str
    method: str
    calibration: Calibration
    promise: str
    num_nodes: int  # scored
    accuracy: float
    before: Reliability
    after: Reliability
    ece_before: float
    ece_after: float
    ece_perfect: PerfectECE  # with the confidences after
    level: float
    coverage: float
    expected_coverage: tuple[float, float]  # in 95 of 100 cases, where accuracy is below the level
    mean_set_size: float
    set_sizes: tuple[int, ...]  # number of sets with 0, 1, 2, … labels


def calibrate_run(
    run: TrainedRun, *, level: float = USUAL_LEVEL, prediction: Prediction | None = None
) -> CalibrationReport | IntervalReport:
    """How well a run is calibrated, before and after, and what its label sets or intervals hold.

    Args:
        level: how often a set shall hold the true label, or an interval the number.
        prediction: of the run's graph, where it is known.
    """
    check_level(level)
    trained, held_out = run.trained, held_out_of(run.trained, str(run.folder or "the run"))
    if not isinstance(trained.calibration, Calibration):
        return _intervals_of(run, held_out, level, prediction)
    y, is_promised = held_out.y, held_out.protocol == "reserved" or len(held_out.node) >= FEWEST
    if held_out.fold is not None:
        before, truth, fold = held_out.probability, y, held_out.fold
        after, sets = held_out.crossed(), torch.zeros(before.shape, dtype=torch.bool)
        for k in fold.unique().tolist():
            here, others = fold == k, fold != k
            threshold = conformal_threshold(before[others], y[others], level)
            sets[here] = conformal_sets(before[here], threshold)
    else:
        if not run.split.test.any():
            raise ValueError("the run has no test nodes on which its confidence could be scored")
        classes = trained.labels_of(run.graph)
        known = run.split.test & (classes >= 0)
        found = prediction or Prediction.of(trained, run.graph)
        before, truth = found.uncalibrated[known], classes[known]
        after = trained.calibration(before, found.unreachable[known])
        threshold = conformal_threshold(held_out.probability, y, level)
        sets = conformal_sets(before, threshold)
    guesses, sizes = guesses_of(after, truth), sets.sum(dim=1)
    tables = reliability(guesses_of(before, truth)), reliability(guesses)
    promise = PROMISES[held_out.protocol].format(**OF_SETS)
    if not is_promised:
        promise = f"none: {'1 label is' if len(y) == 1 else f'{len(y)} labels are'} too few, it takes {FEWEST}"
    return CalibrationReport(
        graph=run.graph.name,
        method=run.plan.recipe.method,
        calibration=trained.calibration,
        promise=promise,
        num_nodes=len(truth),
        accuracy=float(guesses.correct.double().mean()),
        before=tables[0],
        after=tables[1],
        ece_before=tables[0].ece,
        ece_after=tables[1].ece,
        ece_perfect=perfect_ece(guesses.confidence),
        level=level,
        coverage=float(sets.gather(1, truth.unsqueeze(1)).double().mean()),
        expected_coverage=coverage_range(len(y), len(truth), level),
        mean_set_size=float(sizes.double().mean()),
        set_sizes=tuple(torch.bincount(sizes, minlength=len(trained.class_names) + 1).tolist()),
    )


@dataclass(frozen=True)
class IntervalReport:
    """How often intervals hold the number of nodes whose labels a run was not given, and how wide they are."""

    graph: str
    method: str
    intervals: Intervals
    promise: str
    num_nodes: int  # scored
    scores: NumberScores
    level: float
    coverage: float
    expected_coverage: tuple[float, float]  # in 95 of 100 cases
    widths: tuple[float, float, float]  # a tenth are narrower, half are, and nine tenths are, in the unit of the labels


def _intervals_of(run: TrainedRun, held_out: HeldOut, level: float, prediction: Prediction | None) -> IntervalReport:
    """What the intervals of a run are worth, on its test nodes; of a cross-validation on every node, by errors of other folds."""
    trained, y = run.trained, held_out.y
    intervals, scale = trained.calibration, trained.target.scale
    assert isinstance(intervals, Intervals) and scale is not None
    predicted, truth = held_out.probability, y
    if held_out.fold is not None:
        half = intervals.crossed(predicted, y, held_out.fold, held_out.unreachable, level)
    else:
        labels = trained.labels_of(run.graph)
        known = run.split.test & trained.target.known(labels)
        if not known.any():
            raise ValueError("the run has no test nodes on which its intervals could be scored")
        prediction = prediction or Prediction.of(trained, run.graph)
        predicted, truth = prediction.uncalibrated[known], labels[known]
        half = trained.radius(level) * prediction.unit[known]
    z = predicted[:, 0]
    widths = (scale.undone(z + half) - scale.undone(z - half)).quantile(z.new_tensor([0.1, 0.5, 0.9]))
    promise = PROMISES[held_out.protocol].format(**OF_INTERVALS)
    if not half.isfinite().all():
        promise = "none: too few labels were held out for intervals of this level"
    return IntervalReport(
        graph=run.graph.name,
        method=run.plan.recipe.method,
        intervals=intervals,
        promise=promise,
        num_nodes=len(truth),
        scores=scale.scores(truth, z),
        level=level,
        coverage=float(((z - truth).abs() <= half).double().mean()),
        expected_coverage=coverage_range(len(y), len(truth), level),
        widths=tuple(widths.tolist()),
    )


def held_out_of(trained: Trained, where: str) -> HeldOut:
    """The held-out predictions of a model that was kept somewhere; none is a ValueError."""
    held_out = trained.held_out
    if held_out is None or not len(held_out.node):
        raise ValueError(
            f"{where} keeps no labels to calibrate on: no validation nodes, and no predictions of a cross-validation; train "
            "it anew, with two labels of a class or more"
        )
    return held_out


def set_threshold(trained: Trained, where: str, level: float) -> float | None:
    """Where the label sets of a model end, None of numbers; a ValueError where too few labels were held out to promise anything."""
    check_level(level)
    if not trained.target.names:
        return None
    held_out = held_out_of(trained, where)
    if held_out.protocol != "reserved" and len(held_out.node) < FEWEST:  # reserved nodes keep the promise however few
        raise ValueError(
            f"label sets need {FEWEST} labels that training did not learn from, and there are {len(held_out.y)}: with so few, "
            "a set could promise nothing. Predict without --sets, or label more nodes"
        )
    return conformal_threshold(held_out.probability, held_out.y, level)


def cut_of(
    trained: Trained,
    where: str,
    prediction: Prediction,
    nodes: Tensor,
    rule: Rule,
    *,
    positive: str | None = None,
    raw: bool = False,
) -> Cut:
    """The cut that a rule chooses for some nodes, and what is to be expected of it.

    Args:
        where: of the model, for messages.
        prediction: for the graph of the nodes.
        nodes: that are cut, a mask.
        positive: the class that is called; None: the rarer of two.
        raw: by probabilities without calibration.
    """
    trained.target.only_classes("a cut is for a class; of numbers, sort predictions.csv by its column value")
    held_out = held_out_of(trained, where)
    if len(held_out.node) < FEWEST:
        raise ValueError(
            f"a cut needs {FEWEST} labels that training did not learn from, and there are {len(held_out.y)}: nothing could be "
            "said of what it calls. Label more nodes"
        )
    if positive is None and len(trained.class_names) != 2:
        raise ValueError(f"positive names the class that is called, one of {some(trained.class_names)}")
    number = trained.target.positive(positive, held_out.y)
    if number is None:  # both are frequent
        number = int(2 * int(held_out.y.sum()) <= len(held_out.y))
    wanted = (prediction.uncalibrated if raw else prediction.probabilities)[nodes, number]
    scores = (held_out.probability if raw else held_out.crossed())[:, number]
    about: dict[str, Any] = {"positive": trained.class_names[number], "protocol": held_out.protocol}
    return Cut.of(rule, (scores, held_out.y == number, held_out.fold), wanted, **about)


FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠|%")  # of a cell that some spreadsheet takes for a formula or a command


def predict_run(
    run: TrainedRun,
    *,
    every: bool = False,
    sets: float | None = None,
    cut: Rule | Cut | None = None,
    positive: str | None = None,
    prediction: Prediction | None = None,
    **options: Any,
) -> Any:
    """The predictions of a run as a DataFrame, with calibrated probabilities.

    Args:
        every: also the nodes whose labels were given, and those reserved for calibration, whose status is "reserved".
        sets: how often the set of a node shall hold its true label, such as 0.9; or the interval its number.
        cut: call nodes of the class `positive` from a cut on: one that `cut_of` gave, or a rule that chooses one. The likeliest
            come first then, with their probability as column p:CLASS, and the table has the `Cut` in its `attrs`.
        prediction: of the run's graph, where it is known.
        options: `raw`, `abstain`, `hops`, `all_classes` of `Prediction.table`.
    """
    threshold = None if sets is None else set_threshold(run.trained, str(run.folder or "the run"), sets)
    options |= {} if sets is None else {"level": sets}
    prediction = prediction or Prediction.of(run.trained, run.graph)
    if isinstance(cut, Rule):
        about: dict[str, Any] = {"positive": positive, "raw": options.get("raw", False)}
        cut = cut_of(run.trained, str(run.folder or "the run"), prediction, ~run.used, cut, **about)
    table = prediction.table(threshold=threshold, cut=cut, **options)
    if run.reserved is not None:
        table.loc[run.reserved.numpy(), "status"] = "reserved"
    return ranked(table if every else table[~run.used.numpy()], cut)


def ranked(table: Any, cut: Cut | None) -> Any:
    """The rows of a table with a cut, the likeliest first; without one as they are."""
    if cut is None:
        return table
    table = table.sort_values(f"p:{cut.positive}", ascending=False, kind="stable")
    table.attrs["cut"] = cut
    return table


def write_table(path: str | Path, table: Any, *, excel_safe: bool = False) -> None:
    """Write a DataFrame, entirely or not at all: as CSV or, where the name ends so, as .parquet; or as a table of a database.

    A file that is there is replaced; a table of a database is not, see `gcn_lpa.data.databases`.

    Args:
        excel_safe: put a ' before text that a spreadsheet would run as a formula, in CSV.
    """
    if is_address(path):
        from gcn_lpa.data.databases import write_rows

        write_rows(str(path), table)
    elif Path(path).suffix == ".parquet":
        file = io.BytesIO()
        try:
            table.to_parquet(file, index=False)
        except ImportError as error:
            raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
        write_output(path, file.getvalue())
    else:
        write_output(path, table_text(table, excel_safe=excel_safe).encode())


def table_text(table: Any, *, excel_safe: bool = False) -> str:
    if excel_safe:
        starts = FORMULA_STARTS
        table = table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(starts) else cell)
    options: dict[str, Any] = {"index": False, "float_format": "%.6g", "lineterminator": "\n"}
    text: str = table.to_csv(**options)
    if "\r" in text:  # which Python's csv module does not put into quotation marks by itself
        text = table.to_csv(quoting=csv.QUOTE_NONNUMERIC, **options)
    return text


@dataclass(frozen=True)
class UpdatedRun:
    """The table of predictions, what is new in the graph, and why the graph before is missing, "" where it is not."""

    table: Any
    changes: Changes
    note: str = ""
    cut: Cut | None = None
    warnings: tuple[str, ...] = ()  # what may not be meant in the table that was read


def predict_on(
    folder: str | Path,
    on: str | Path,
    data: str | Path | None = None,
    *,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    every: bool = False,
    sets: float | None = None,
    cut: Rule | None = None,
    positive: str | None = None,
    **wanted: Any,
) -> UpdatedRun:
    """The predictions of a run for another graph: its own with what is new, or one with the same columns.

    Args:
        on: a folder or the name of a data set.
        data: where the graph of the run is now, if not where it was. Where it is nowhere, nothing is compared with it.
        options: of reading, beside those that the run was read with.
        every: also the nodes that have a label of a class the model knows.
        sets, cut, positive: as in `predict_run`.
        wanted: `raw`, `abstain`, `hops`, `all_classes` of `Prediction.table`.
    """
    files = storage.load(folder)
    plan, trained = read_run(files)[0], decode_trained(files)
    threshold = None if sets is None else set_threshold(trained, str(folder), sets)
    wanted |= {} if sets is None else {"level": sets}
    graph = read_like(plan.source, trained, on, root, options or {})
    before, note = None, ""
    try:
        before = graph_of(plan, files.folder, data)
    except ValueError as error:
        if data is not None:
            raise
        note = str(error)
    if before is None and (trained.x_kind == "identity" or has_free_weights(trained.model)):
        what = "node" if trained.x_kind == "identity" else "edge"
        raise ValueError(f"the model learned weights for each {what} of the graph of the run, but {note}")
    updated = Updated.of(trained, graph, before)
    open_nodes, chosen = ~trained.target.known(trained.labels_of(graph)), None
    if cut is not None:
        about: dict[str, Any] = {"positive": positive, "raw": wanted.get("raw", False)}
        chosen = cut_of(trained, str(folder), updated.prediction, open_nodes, cut, **about)
    table = updated.table(threshold=threshold, cut=chosen, **wanted)
    shown = ranked(table if every else table[open_nodes.numpy()], chosen)
    warnings = *interruption(trained, files.folder), *warnings_in(graph.notes)
    return UpdatedRun(shown, updated.changes(), note, chosen, warnings)


def interruption(trained: Trained, folder: Path) -> tuple[str, ...]:
    """A warning where the training of a run was interrupted."""
    if not trained.run.interrupted:
        return ()
    how = f"`gcn-lpa train --resume --out {shlex.quote(str(folder))}` finishes it"
    return (f"{WARNING}the training of {folder} was interrupted, and this is what it had learned; {how}",)


def read_like(source: Source, trained: Trained, on: str | Path, root: str | Path | None, options: Mapping[str, Any]) -> Graph:
    """A graph read with the options of a run, and its columns as the run learned to read them."""
    known = reading_options(on)
    columns: dict[str, Any] = {} if trained.columns is None else {"columns": trained.columns}
    other = {"nodes", "labels", "name", "time"} | ({"features", "text"} if columns else set())  # not for another folder
    weights = trained.used_edge_weights
    if weights is not None and TYPE not in weights.functions.names:
        columns["edge_functions"], other = weights.functions, other | {"edge_features"}
    kept = {**source.options, **columns}
    kept = {key: value for key, value in kept.items() if key in known and key not in other}
    return Source(str(on), None if root is None else str(root), {**kept, **options}).load()
