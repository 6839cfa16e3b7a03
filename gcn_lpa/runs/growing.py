"""A run on a graph that has grown: the folder is read as the run read its own, and predicted without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcn_lpa import storage
from gcn_lpa.calibration import check_level, check_score
from gcn_lpa.edges import has_free_weights
from gcn_lpa.graph import Graph
from gcn_lpa.growth import Grown, Growth, induced
from gcn_lpa.intake import DOUBT
from gcn_lpa.predict import Scores
from gcn_lpa.runs.codec import decode_graph, graph_of, load_run, read_run
from gcn_lpa.runs.confidence import set_threshold
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.splits import Split
from gcn_lpa.tables.datasets import reading_options
from gcn_lpa.trained import Trained

OF_ONE_FOLDER = ("labels", "name", "time")  # options that are not for another folder


@dataclass(frozen=True)
class GrownRun:
    """The table of predictions, what is new in the graph, and why a graph before is missing, "" where it is not."""

    table: Any
    growth: Growth
    note: str = ""
    doubts: tuple[str, ...] = ()  # what may not be meant in the table that was read


def predict_on(
    folder: str | Path,
    on: str | Path,
    data: str | Path | None = None,
    *,
    root: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    extend: bool = False,
    every: bool = False,
    sets: float | None = None,
    score: str = "lac",
    **wanted: Any,
) -> GrownRun:
    """What a run says of another graph: its own with what is new, or one with the same columns.

    Args:
        on: a folder or the name of a data set.
        data: where the graph of the run is now, if not where it was. Where it is nowhere, nothing is compared with it.
        options: of reading, beside those that the run was read with.
        extend: as in `Grown.of`.
        every: also the nodes that have a label of a class the model knows.
        sets, score: as in `predict_run`; they need the graph of the run.
        wanted: `raw`, `abstain`, `hops` of `predictions`.
    """
    if sets is not None:
        check_level(sets)
    check_score(score)
    files = storage.load(folder)
    plan, trained = read_run(files)[0], Trained.decode(files)
    graph = read_like(plan.source, trained, on, root, options or {})
    before, note = _graph_before(files, plan, data)
    if extend and before is None:
        raise ValueError(f"extend keeps the weights that were learned for the edges of the graph before, but {note}")
    if before is None and (trained.x_kind == "identity" or has_free_weights(trained.model)):
        what = "node" if trained.x_kind == "identity" else "edge"
        raise ValueError(f"the model learned weights for each {what} of the graph of the run, but {note}")
    threshold = None
    if sets is not None:
        threshold = set_threshold(load_run(folder, data), sets, score)
    grown = Grown.of(trained, graph, before, extend=extend)
    table = grown.table(threshold=threshold, score=score, **wanted)
    shown = table if every else table[(trained.classes_of(graph) < 0).numpy()]
    return GrownRun(shown, grown.growth(), note, tuple(said for said in graph.notes if said.startswith(DOUBT)))


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


def past_of(graph: Graph, parts: Split) -> tuple[Graph, Split]:
    """The graph as it was before the first test node came, and the split of that graph."""
    assert graph.time is not None
    was_there = graph.time < graph.time[parts.test].min()
    train, val, test = (mask[was_there] for mask in (parts.train, parts.val, parts.test))
    return induced(graph, was_there), Split(train, val, test, parts.kind, parts.seed)


def time_note(past: Graph, future: Scores, drawn: Scores | None) -> str:
    """What the scores of a split by time are, and how much better as many nodes drawn at random look."""
    said = f"trained on the past ({past.num_nodes:,} nodes and the {past.num_edges:,} edges between them), scored on the future"
    if drawn is None:
        return said
    gap = 100 * (drawn.accuracy - future.accuracy)
    verdict = f"{gap:.1f} points too optimistic" if gap > 0 else f"{-gap:.1f} points lower" if gap < 0 else "the same"
    return f"{said}; a random split of the same sizes says {100 * drawn.accuracy:.1f} %: {verdict}"
