"""Results as lines of text: what the commands print."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcn_lpa.data.datasets import DatasetSize
    from gcn_lpa.data.describe import GraphInfo
    from gcn_lpa.graph import Graph
    from gcn_lpa.insight.advise import Advice, AdviceLine
    from gcn_lpa.insight.compare import ComparisonRow
    from gcn_lpa.insight.suggest import Suggestion
    from gcn_lpa.insight.tune import Tuning, TuningTrial
    from gcn_lpa.learning.updated import Changes
    from gcn_lpa.recipes import Recipe
    from gcn_lpa.runs.folder import Results, TrainedRun
    from gcn_lpa.runs.predictions import CalibrationReport
    from gcn_lpa.scale.partition import PartFacts
    from gcn_lpa.scale.planner import Estimate, Size
    from gcn_lpa.target import Scores

CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)  # what a terminal obeys instead of showing it
MOST_COLUMNS = 40  # that `info` prints
WIDTH = 80  # of a terminal


def visible(text: str) -> str:
    """Text in which control characters, such as those of a name in somebody's file, are shown: \\x1b in place of Escape."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class VisibleStream:
    """A stream to which everything is written as `visible` text."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def advice_line(line: AdviceLine) -> tuple[str, ...]:
    from gcn_lpa.stats import signed

    over = "" if line.over_features is None else signed(line.over_features)
    return line.method, str(line.accuracy), over, signed(line.over_commonest), f"{line.seconds:.1f}"


def advice_facts(found: Advice) -> list[str]:
    known = found.homophily
    same = f"{known.edges:,} edges have both labels"
    if known.rate is not None and known.chance is not None:
        same += (
            f": {percent(known.rate)} of them join nodes of one class, by chance it would be {percent(known.chance)}"
        )
    return [
        f"  homophily  {same}",
        f"  reach      {found.unlabeled:,} nodes without a label, {found.unreachable:,} of them out of reach of any label",
        *(f"  note       {note}" for note in found.notes),
    ]


def suggestion_line(one: Suggestion) -> tuple[str, ...]:
    return str(one.id), f"{one.score:.3f}", one.guess, percent(one.probability), f"{one.reach:.2f}", one.why


def comparison_line(row: ComparisonRow) -> tuple[str, ...]:
    from gcn_lpa.stats import said_p

    difference, memory = row.difference, row.memory
    compared = ("", "") if difference is None else (str(difference), said_p(difference.p_value))
    megabytes = "–" if memory is None else f"{memory.peak if memory.gpu_peak is None else memory.gpu_peak:,.0f} MB"
    return row.method, str(row.accuracy), str(row.macro_f1), *compared, f"{row.seconds:.1f}", megabytes


def tuning_step(trial: TuningTrial, trials: int) -> str:
    reached = "pruned" if trial.val_accuracy is None else f"validation {percent(trial.val_accuracy)}"
    return f"trial {trial.number + 1} of {trials}: {reached}, {trial.seconds:.1f} s"


def tuning_lines(found: Tuning, name: str, num_val: int, out: Path) -> list[str]:
    """What a search found, and how much it may be trusted."""
    from gcn_lpa.insight.tune import BEST, FEW_NODES, PLOT

    pruned = sum(trial.val_accuracy is None for trial in found.trials)
    rates = f"{percent(found.start_accuracy)} → {percent(found.val_accuracy)} on {num_val:,} validation nodes"
    changed = ", ".join(f"{field} {before} → {after}" for field, (before, after) in found.changes.items())
    mattered = ", ".join(f"{field} {share:.2f}" for field, share in [*found.importance.items()][:5])
    return [
        f"{name}: {len(found.trials)} trials, {pruned} of them pruned: {rates}",
        *indented(changed or "no recipe was better than the one to start from"),
        *(indented(f"what mattered: {mattered}") if mattered else []),
        *(["  warning: so few validation nodes cannot tell recipes apart"] if num_val < FEW_NODES else []),
        f"best recipe in {out / BEST}, picture in {out / PLOT}",
    ]


def run_lines(trained: TrainedRun, seconds: float) -> list[str]:
    """What a training gave in `seconds`, all stages together."""
    run, recipe, folder = trained.run, trained.plan.recipe, trained.folder
    chosen = "" if run.best.val_accuracy is None else f" (validation {percent(run.best.val_accuracy)})"
    stopped = "interrupted, " if run.interrupted else ""
    head = f"{trained.graph.name}: {recipe.method}, {stopped}epoch {run.best_epoch} of {len(run.history)}{chosen}"
    kept = [] if folder is None else [f"  kept in {folder}"]
    results = [line for text in result_lines(trained.results) for line in indented(text)]
    return [
        f"{head}, {seconds:.1f} s",
        *results,
        *weights(trained),
        *relations(trained),
        *warning(trained.results),
        *doubt(trained),
        *kept,
    ]


def weights(trained: TrainedRun) -> list[str]:
    """A line that says how much models of several kinds and the votes are heard."""
    shares = trained.trained.shares
    if len(shares) < 3:
        return []
    heard = sorted(shares.items(), key=lambda item: -item[1])
    silent = [name for name, share in heard if share < 0.005]
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in heard if share >= 0.005)
    return indented(f"weight: {said}" + (f"; none: {', '.join(silent)}" if silent else ""))


def relations(trained: TrainedRun) -> list[str]:
    """A line of at most 80 columns that says how much each kind of edge tells, the strongest first."""
    shares = sorted(trained.trained.relations.items(), key=lambda item: -item[1])
    said = [f"{visible(name):.30} {f'{share:.2f}'.removeprefix('0')}" for name, share in shares]
    lines = [", ".join(said), *(f"{', '.join(said[:k])}, … {len(said)} kinds" for k in range(len(said) - 1, 0, -1))]
    return [next(line for line in (f"  relations: {line}" for line in lines) if len(line) <= 80)] if said else []


def doubt(trained: TrainedRun) -> list[str]:
    """A line where too few labels were held out to say how sure the model may be."""
    from gcn_lpa.calibration import FEWEST

    calibration = trained.trained.calibration
    number = 0 if calibration is None else calibration.num_nodes
    if trained.run.interrupted or number >= FEWEST:
        return []
    return indented(f"probabilities are not calibrated: {number} held-out labels are too few, it takes {FEWEST}")


def indented(text: str) -> list[str]:
    """Two spaces in, at most WIDTH columns wide."""
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def warning(results: Results) -> list[str]:
    """A line where a model is no better than one that looks at nothing."""
    found = results.scores
    most = 0.0 if found is None else max(one.support for one in found.per_class.values()) / found.num_nodes
    if found is None or most == 1 or found.accuracy > most:
        return []
    said = f"no better than always the most frequent class ({percent(most)}); `gcn-lpa compare` tries other methods"
    return indented(said)


def result_lines(results: Results) -> list[str]:
    """The rates, those of each fold, and how they were measured."""
    found = results.scores
    if found is None:
        return [results.note]
    rates = f"accuracy {percent(found.accuracy)}, macro-F1 {percent(found.macro_f1)} on {found.num_nodes:,} nodes"
    folds = ", ".join(f"{100 * fold:.1f}" for fold in results.folds)
    return [rates, *([f"accuracy of each fold {folds}"] if folds else []), results.note]


def run_facts(trained: TrainedRun) -> dict[str, Any]:
    run = trained.run
    return {
        "graph": trained.graph.name,
        "recipe": trained.plan.recipe.to_dict(),
        "seed": run.seed,
        "split": trained.split.hash,
        "best_epoch": run.best_epoch,
        "epochs": len(run.history),
        "val_accuracy": run.best.val_accuracy,
        "interrupted": run.interrupted,
        "seconds": run.seconds,
        "results": dataclasses.asdict(trained.results),
        **({"relations": dict(shares)} if (shares := trained.trained.relations) else {}),
        "out": None if trained.folder is None else str(trained.folder),
    }


def calibration_lines(found: CalibrationReport) -> list[str]:
    from gcn_lpa.calibration import FEWEST

    calibration, perfect = found.calibration, found.ece_perfect
    fitted = calibration.calibrator
    sizes = ", ".join(f"{count:,} × {size}" for size, count in enumerate(found.set_sizes) if count)
    low, high = found.expected_coverage
    usual = f" (by chance {100 * low:.1f} to {100 * high:.1f} %)" if found.accuracy < found.level else ""
    nodes = {"reserved": "reserved", "validation": "validation", "cross-validation": "out-of-fold"}
    which = f"{calibration.num_nodes:,} {nodes[calibration.protocol]} nodes"
    numbers = f"{fitted.temperature:.2f}, then confidence {fitted.slope:.2f} · logit {fitted.intercept:+.2f}"
    few = calibration.num_nodes < FEWEST
    return [
        f"{found.graph}: {found.method}, accuracy {percent(found.accuracy)} on {found.num_nodes:,} nodes it was not given",
        f"  temperature  none: {which} are too few to fit one to, it takes {FEWEST}"
        if few
        else f"  temperature  {numbers}, fitted to {which}",
        f"  ECE          {percent(found.ece_before)} before, {percent(found.ece_after)} after; a perfectly calibrated "
        f"model would show {percent(perfect.mean)}, at most {percent(perfect.high)} in 95 of 100 cases",
        f"  sets, {100 * found.level:g} %   hold the true label of {percent(found.coverage)}{usual}, "
        f"mean size {found.mean_set_size:.2f} ({sizes})",
        f"  promise      {found.promise}",
    ]


def change_lines(found: Changes, note: str = "") -> list[str]:
    """What is new, what is gone, what changed; `note` says why a graph before is not compared with."""
    labels = f"{found.labels_new:,} new, {found.labels_changed:,} changed, {found.labels_gone:,} gone"
    lines = [
        f"{found.graph}: {found.nodes:,} nodes, {found.edges:,} edges, {found.labels:,} labels{' that vote' if found.votes else ''}"
    ]
    if found.nodes_new is not None:
        lines += [
            f"  nodes        {found.nodes_new:,} new, {found.nodes_gone:,} gone",
            f"  edges        {found.edges_new:,} new, {found.edges_gone:,} gone, {found.edges_reweighted:,} with another weight",
        ]
    lines.append(f"  labels       {labels}")
    if found.predictions is not None:
        lines.append(f"  predictions  {found.predictions_changed:,} of {found.predictions:,} changed")
    notes = [] if found.votes else ["labels do not vote in this method: train it again to learn from new ones"]
    for name, count in found.unknown_classes.items():
        notes.append(f"{count:,} labels {name!r}: a class the model does not know; train it again to learn it")
    if found.votes and found.silent_classes:
        names = ", ".join(map(repr, found.silent_classes))
        notes.append(f"no label here is of class {names}: labels vote among the other classes only; give some of each")
    if note:
        notes.append(f"nodes, edges and predictions are not compared: {note}")
    return [*lines, *(line for one in notes for line in indented(f"note: {one}"))]


def plan_lines(found: Estimate, size: Size, recipe: Recipe, workers: int) -> list[str]:
    """What a training holds, part by part."""
    from gcn_lpa.scale.planner import gigabytes

    parts = {
        "graph": found.graph,
        "features": found.features,
        "parameters": found.parameters,
        "a gradient step": found.step,
        "validation": found.forward,
        "predictions": found.prediction,
        "preparation": found.preparation,
    }
    whose = f"a worker of {workers}: " if workers > 1 else ""
    halo = f" and {size.halo:,.0f} of others" if size.halo else ""
    lines = [
        f"{whose}{size.nodes:,.0f} rows{halo}, {size.entries:,.0f} entries, {size.columns:,} columns, {size.classes:,} classes",
        f"{recipe.method}, {recipe.origin}",
        *(f"  {name:<16}{gigabytes(held):>9}" for name, held in parts.items()),
        f"memory at the peak{gigabytes(found.peak):>9}",
    ]
    if workers > 1:
        return [*lines, f"received in an epoch {gigabytes(found.received)}"]
    return [*lines, f"on a GPU, the peak{gigabytes(found.gpu):>9}"]


def confusion_lines(found: Scores) -> Iterable[tuple[str, ...]]:
    names = list(found.per_class)
    for name, row in zip(names, found.confusion, strict=True):
        yield (name, *map(str, row))


def class_lines(found: Scores) -> Iterable[tuple[str, ...]]:
    for name, one in found.per_class.items():
        yield (name, percent(one.precision), percent(one.recall), percent(one.f1), f"{one.support:,}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(header: Iterable[str], lines: Iterable[Iterable[str]]) -> None:
    """A table with its first column to the left and the others to the right; plain text where stdout is no terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(header):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    width = None if sys.stdout.isatty() else 200  # a pipe has no width: cut nothing off
    Console(highlight=False, markup=False, soft_wrap=True, width=width, color_system=None).print(table)


def dataset_lines(found: Iterable[DatasetSize]) -> Iterator[str]:
    """A line for each data set: its counts, and what it is."""
    columns = "{:<18} {:>9} {:>9} {:>9} {:>8}  {}"
    yield columns.format("", "nodes", "edges", "features", "classes", "").rstrip()
    for one in found:
        counts = (one.nodes, one.edges, one.features, one.classes)
        summary = one.summary if one.nodes is not None else f"{one.summary} (files not found)"
        yield columns.format(one.name, *("–" if count is None else f"{count:,}" for count in counts), summary)


def part_lines(facts: PartFacts) -> Iterable[tuple[str, ...]]:
    rows = zip(facts.rows, facts.halos, facts.entries, strict=True)
    for rank, counts in enumerate(rows):
        yield (str(rank), *(f"{count:,}" for count in counts))


def structural_note(graph: Graph) -> str | None:
    """The structural features that the default recipe adds to the columns of a graph; None: nothing."""
    from gcn_lpa.data.scaling import num_structural
    from gcn_lpa.learning.choose_recipe import choose_recipe

    recipe = choose_recipe(graph, graph.labeled)
    if recipe.structure and graph.x_kind == "given":
        number = num_structural(graph.directed, with_cells=True)
        return f"degrees, PageRank, filled cells, neighbours' too -> {number} features"
    words = {"trees": "trees", "neighbour-lr": "LR"}
    readers = ", ".join(word for member, word in words.items() if member in recipe.members.split())
    number = num_structural(graph.directed, with_cells=False)
    return f"degrees, PageRank, neighbours' too -> {number} features, for {readers}" if readers else None


def info_lines(info: GraphInfo, structural: str | None, is_named: bool) -> list[str]:
    counted = f"the {info.labeled_edges:,} edge{'s' * (info.labeled_edges > 1)}"
    known = f"{percent(info.edge_homophily)} of {counted}" if info.labeled_edges else "no edge"
    paper = f"{percent(info.intra_class_edge_rate)} of all edges as the paper counts (no label = first class), "
    direction = "directed" if info.directed else "undirected"
    sizes = ", ".join(f"{name}: {size:,}" for name, size in info.class_sizes.items())
    classes = f"{info.classes:,} classes" + (f" ({sizes})" if sizes else "")
    return [
        f"{info.name}: {info.nodes:,} nodes, {info.edges:,} {direction} edges, {info.self_loops:,} self-loops",
        f"  features     {info.features:,} ({info.feature_kind}), {info.nonzeros:,} non-zero",
        *(f"    column     {column}" for column in info.columns[:MOST_COLUMNS]),
        *([f"    column     … and {more:,} more"] if (more := len(info.columns) - MOST_COLUMNS) > 0 else []),
        *([] if structural is None else [f"    graph      {structural}"]),
        f"  labels       {info.labeled:,} of {info.nodes:,} nodes, {classes}",
        f"  intra-class  {paper if is_named else ''}{known} between labelled nodes",
        f"  homophily    edge {_score(info.edge_homophily)}, node {_score(info.node_homophily)}, "
        f"adjusted {_score(info.adjusted_homophily)}",
        f"  reach        components {info.components:,}, isolated nodes {info.isolated:,}, "
        f"nodes that no label can reach {info.unreachable:,}",
        *(f"  note         {note}" for note in info.notes),
    ]


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
