"""What a run says, as tables: predictions and learned edge weights, and how they are written."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from gcn_lpa.calibration import check_level, check_score
from gcn_lpa.files import write_output
from gcn_lpa.predict import predict_proba, predictions
from gcn_lpa.runs.codec import load_run
from gcn_lpa.runs.confidence import set_threshold

FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠|%")  # of a cell that some spreadsheet takes for a formula or a command


def predict_run(
    folder: str | Path,
    data: str | Path | None = None,
    *,
    every: bool = False,
    raw: bool = False,
    abstain: float | None = None,
    sets: float | None = None,
    score: str = "lac",
    hops: bool = False,
) -> Any:
    """The `predictions` of a run as a DataFrame, with calibrated probabilities.

    Args:
        every: also the nodes whose labels were given, and those reserved for calibration, whose status is "reserved".
        raw: probabilities as the model gives them.
        abstain: below this probability, no label.
        sets: how often the set of a node shall hold its true label, such as 0.9.
        score: of the sets, a key of `calibration.SCORES`.
    """
    if sets is not None:
        check_level(sets)
    check_score(score)
    run = load_run(folder, data)
    table = predictions(
        run.trained,
        run.graph,
        raw=raw,
        abstain=abstain,
        threshold=None if sets is None else set_threshold(run, sets, score),
        score=score,
        hops=hops,
    )
    if run.reserved is not None:
        table.loc[run.reserved.numpy(), "status"] = "reserved"
    return table if every else table[~run.used.numpy()]


def class_table(folder: str | Path, data: str | Path | None = None, *, raw: bool = False) -> Any:
    """A DataFrame with a column "p:CLASS" for each class: its probability for every node of a run, by position."""
    import pandas

    run = load_run(folder, data)
    trained = run.trained.with_calibration(None) if raw else run.trained
    names = [f"p:{name}" for name in trained.class_names]
    return pandas.DataFrame(predict_proba(trained, run.graph).numpy(), columns=names)


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
