"""What a run says, as tables: predictions and learned edge weights, and how they are written."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from gcn_lpa.calibration import check_score
from gcn_lpa.data.files import write_output
from gcn_lpa.predict import Prediction
from gcn_lpa.runs.confidence import set_threshold
from gcn_lpa.runs.folder import TrainedRun

FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠|%")  # of a cell that some spreadsheet takes for a formula or a command


def predict_run(
    run: TrainedRun,
    *,
    every: bool = False,
    sets: float | None = None,
    score: str = "lac",
    prediction: Prediction | None = None,
    **options: Any,
) -> Any:
    """The predictions of a run as a DataFrame, with calibrated probabilities.

    Args:
        every: also the nodes whose labels were given, and those reserved for calibration, whose status is "reserved".
        sets: how often the set of a node shall hold its true label, such as 0.9.
        score: of the sets, a key of `calibration.SCORES`.
        prediction: of the run's graph, where it is known.
        options: `raw`, `abstain`, `hops`, `all_classes` of `Prediction.table`.
    """
    check_score(score)
    threshold = None if sets is None else set_threshold(run.trained, str(run.folder or "the run"), sets, score)
    prediction = prediction or Prediction.of(run.trained, run.graph)
    table = prediction.table(threshold=threshold, score=score, **options)
    if run.reserved is not None:
        table.loc[run.reserved.numpy(), "status"] = "reserved"
    return table if every else table[~run.used.numpy()]


def write_table(path: str | Path, table: Any, *, excel_safe: bool = False) -> None:
    """Write a DataFrame as CSV, entirely or not at all; a file that is there is replaced.

    Args:
        excel_safe: put a ' before text that a spreadsheet would run as a formula.
    """
    write_output(path, table_text(table, excel_safe=excel_safe).encode())


def table_text(table: Any, *, excel_safe: bool = False) -> str:
    if excel_safe:
        table = table.map(
            lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
        )
    options: dict[str, Any] = {"index": False, "float_format": "%.6g", "lineterminator": "\n"}
    text: str = table.to_csv(**options)
    if "\r" in text:  # which Python's csv module does not put into quotation marks by itself
        text = table.to_csv(quoting=csv.QUOTE_NONNUMERIC, **options)
    return text
