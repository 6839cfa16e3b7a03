"""A run on an updated graph: its folder is read as the run read its own, and predicted without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcn_lpa.calibration import check_score
from gcn_lpa.data.datasets import reading_options
from gcn_lpa.data.describe import warnings_in
from gcn_lpa.graph import Graph
from gcn_lpa.learning.updated import Changes, Updated, has_free_weights
from gcn_lpa.runs import storage
from gcn_lpa.runs.confidence import set_threshold
from gcn_lpa.runs.folder import graph_of, read_run
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.runs.trained_files import decode_graph, decode_trained
from gcn_lpa.trained import Trained

OF_ONE_FOLDER = ("labels", "name", "time")  # options that are not for another folder


@dataclass(frozen=True)
class UpdatedRun:
    """The table of predictions, what is new in the graph, and why the graph before is missing, "" where it is not."""

    table: Any
    changes: Changes
    note: str = ""
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
    score: str = "lac",
    **wanted: Any,
) -> UpdatedRun:
    """What a run says of another graph: its own with what is new, or one with the same columns.

    Args:
        on: a folder or the name of a data set.
        data: where the graph of the run is now, if not where it was. Where it is nowhere, nothing is compared with it.
        options: of reading, beside those that the run was read with.
        every: also the nodes that have a label of a class the model knows.
        sets, score: as in `predict_run`.
        wanted: `raw`, `abstain`, `hops`, `all_classes` of `Prediction.table`.
    """
    check_score(score)
    files = storage.load(folder)
    plan, trained = read_run(files)[0], decode_trained(files)
    threshold = None if sets is None else set_threshold(trained, str(folder), sets, score)
    graph = read_like(plan.source, trained, on, root, options or {})
    before, note = _graph_before(files, plan, data)
    if before is None and (trained.x_kind == "identity" or has_free_weights(trained.model)):
        what = "node" if trained.x_kind == "identity" else "edge"
        raise ValueError(f"the model learned weights for each {what} of the graph of the run, but {note}")
    updated = Updated.of(trained, graph, before)
    table = updated.table(threshold=threshold, score=score, **wanted)
    shown = table if every else table[(trained.classes_of(graph) < 0).numpy()]
    return UpdatedRun(shown, updated.changes(), note, tuple(warnings_in(graph.notes)))


def read_like(
    source: Source, trained: Trained, on: str | Path, root: str | Path | None, options: Mapping[str, Any]
) -> Graph:
    """A graph read with the options of a run, and its columns as the run learned to read them."""
    kept = {key: value for key, value in source.options.items() if key not in OF_ONE_FOLDER}
    if trained.columns is not None:
        kept = {key: value for key, value in kept.items() if key not in ("features", "text")}
        kept["columns"] = trained.columns
    known = reading_options(on)
    kept = {key: value for key, value in kept.items() if key in known}
    return Source(str(on), None if root is None else str(root), {**kept, **options}).load()


def _graph_before(files: storage.RunFolder, plan: Plan, data: str | Path | None) -> tuple[Graph | None, str]:
    """The graph of a run, or None and the reason why it is not there."""
    if plan.with_data and data is None:
        return decode_graph(files, plan.content), ""
    try:
        return graph_of(plan, files.folder, data), ""
    except ValueError as error:
        if data is not None:
            raise
        return None, str(error)
