"""What a run says, as tables: predictions and learned edge weights, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gcn_lpa import storage
from gcn_lpa.calibration import (
    check_level,
    check_score,
    conformal_threshold,
)
from gcn_lpa.graph import Graph
from gcn_lpa.predict import predictions
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.codec import load_run
from gcn_lpa.runs.confidence import calibrated, calibration_evidence

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of a cell that a spreadsheet takes for a formula


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
    trained = load_run(folder, data)
    trained = trained if trained.calibration else calibrated(trained)
    table = predictions(
        trained.model,
        trained.graph,
        trained.given,
        recipe=trained.plan.recipe,
        calibrator=None if raw else trained.calibrator,
        abstain=abstain,
        threshold=None if sets is None else conformal_threshold(*calibration_evidence(trained)[:2], sets, score=score),
        score=score,
        hops=hops,
    )
    if trained.reserved is not None:
        table.loc[trained.reserved.numpy(), "status"] = "reserved"
    return table if every else table[~trained.used.numpy()]


def edge_table(model: Any, graph: Graph, *, recipe: Recipe) -> Any:
    """A DataFrame source, target, weight, learned: the weight of the input and a*_ij, the share that the message from
    source has at target, D*⁻¹A*. Both directions of every edge, and the self-loops; the shares at a target sum to 1.
    """
    import pandas

    if not hasattr(model, "transition"):
        raise ValueError(f"method {recipe.method!r} learns no edge weights that could be listed; gcn-lpa does")
    prepared = recipe.prepare(graph)
    with torch.no_grad():
        learned = model.transition(prepared).values.cpu()
    names = pandas.Series(list(graph.node_names), dtype=object)
    return pandas.DataFrame(
        {
            "source": names.iloc[prepared.col.cpu().numpy()].to_numpy(),
            "target": names.iloc[prepared.row.cpu().numpy()].to_numpy(),
            "weight": prepared.adjacency.values.cpu().numpy(),
            "learned": learned.numpy(),
        }
    )


def write_table(path: str | Path, table: Any, *, excel_safe: bool = False) -> None:
    """Write a DataFrame as CSV, entirely or not at all.

    Args:
        excel_safe: put a ' before text that a spreadsheet would run as a formula.
    """
    storage.write_atomic(path, table_text(table, excel_safe=excel_safe).encode())


def table_text(table: Any, *, excel_safe: bool = False) -> str:
    if excel_safe:
        table = table.map(
            lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
        )
    text: str = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text
