"""Results as lines of text: what the commands print."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcn_lpa.cut import Cut
    from gcn_lpa.insight.advise import Advice
    from gcn_lpa.insight.compare import Comparison
    from gcn_lpa.insight.edge_effects import EdgeEffect
    from gcn_lpa.insight.importance import Importances
    from gcn_lpa.insight.tune import Tuning, TuningTrial
    from gcn_lpa.learning.updated import Changes
    from gcn_lpa.metrics import NumberScores, Ranking
    from gcn_lpa.runs.folder import Results, TrainedRun
    from gcn_lpa.runs.predictions import CalibrationReport, IntervalReport

# what a terminal obeys instead of showing it
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
WIDTH = 80  # of a terminal
HELD_OUT = {
    "reserved": "reserved",
    "validation": "validation",
    "cross-validation": "out-of-fold",
}  # nodes of a protocol
MOST_EFFECTS = 6  # columns of edges of which a training says what they weigh
SHORT = 16  # columns that a text of a table keeps as long as others can be cut
LABELLED = re.compile(r" {2,4}\S.{0,11}? {2,}(?=\S)")  # the beginning of a line that names what it says
WHOLE = re.compile(r"^ *`?(gcn-lpa|torchrun) | rows in |page is ")  # of lines that are to be copied


def visible(text: str) -> str:
    """Text in which control characters, such as those of a name in somebody's file, are shown: \\x1b in place of Escape."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclasses.dataclass
class VisibleStream:
    """A stream to which everything is written as `visible` text."""

    stream: Any

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def wrapped(text: str) -> list[str]:
    """A line in pieces of at most WIDTH columns, those after the first below its words, or two blanks further in."""
    named = LABELLED.match(text)
    indent = " " * (len(named[0]) if named else len(text) - len(text.lstrip()) + 2)
    whole = text.replace(" %", "\0%")  # a number stays with its unit
    lines = textwrap.wrap(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]


def fitted(lines: Iterable[str]) -> list[str]:
    """Lines of at most WIDTH columns, of longer ones; commands and the names of files stay whole, to be copied."""
    each = [line for text in lines for line in text.split("\n")]
    return [piece for line in each for piece in ([line] if len(line) <= WIDTH or WHOLE.search(line) else wrapped(line))]


def table_lines(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Columns two blanks apart: the first and those of text to the left, numbers to the right. Where they are wider than WIDTH, …
    stands for the middle of long texts, those of the first column last of all.
    """
    from rich.cells import cell_len, set_cell_size  # a Chinese character takes two columns

    def cut(cell: str, width: int) -> str:
        head, tail = width // 2, (width - 1) // 2
        return f"{set_cell_size(cell, head)}…{set_cell_size(cell[::-1], tail)[::-1]}"

    columns = [list(map(visible, column)) for column in zip(tuple(header), *map(tuple, rows), strict=True)]
    padded, widths = [], [max(map(cell_len, column)) for column in columns]
    is_number = [
        k > 0 and all(cell == "" or cell[0] in "0123456789.+-<–" for cell in column[1:]) for k, column in enumerate(columns)
    ]
    texts = [k for k in range(len(columns)) if is_number[-1] and not is_number[k]]  # a last one of text can be wrapped
    for least in (SHORT, 1):
        for k in sorted(texts, key=lambda k: (k == 0, -widths[k])):
            widths[k] -= max(0, min(sum(widths) + 2 * len(widths) - 2 - WIDTH, widths[k] - least))
    for column, width, number in zip(columns, widths, is_number, strict=True):
        cells = [cell if cell_len(cell) <= width else cut(cell, width) for cell in column]
        blanks = [" " * (width - cell_len(cell)) for cell in cells]
        pairs = zip(blanks, cells, strict=True) if number else zip(cells, blanks, strict=True)
        padded.append(["".join(parts) for parts in pairs])
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def tuning_step(trial: TuningTrial, trials: int) -> str:
    reached = "pruned" if trial.val_score is None else f"validation {percent(trial.val_score)}"
    return f"trial {trial.number + 1} of {trials}: {reached}, {trial.seconds:.1f} s"


def tuning_lines(found: Tuning, name: str, num_val: int, out: Path) -> list[str]:
    """What a search found, and how much it may be trusted."""
    from gcn_lpa.insight.tune import BEST, FEW_NODES
    from gcn_lpa.metrics import METRICS

    pruned = sum(trial.val_score is None for trial in found.trials)
    words = "" if found.metric == "accuracy" else f"{METRICS[found.metric].words} "
    rates = f"{words}{percent(found.start_score)} → {percent(found.val_score)} on {num_val:,} validation nodes"
    changed = ", ".join(f"{field} {before} → {after}" for field, (before, after) in found.changes.items())
    mattered = ", ".join(f"{field} {share:.2f}" for field, share in [*found.importance.items()][:5])
    return [
        f"{name}: {len(found.trials)} trials, {pruned} of them pruned: {rates}",
        f"  {changed or 'no recipe was better than the one to start from'}",
        *([f"  what mattered: {mattered}"] if mattered else []),
        *(["  warning: so few validation nodes cannot tell recipes apart"] if num_val < FEW_NODES else []),
        f"best recipe in {out / BEST}",
    ]


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def run_lines(trained: TrainedRun, seconds: float) -> list[str]:
    """The result of a training that took `seconds`, all stages together."""
    from gcn_lpa.calibration import FEWEST

    run, calibration = trained.run, trained.trained.calibration
    score, is_of_classes = run.best.val_accuracy, bool(trained.trained.class_names)
    shown = "" if score is None else percent(score) if is_of_classes else f"R² {score:.3f}"
    chosen = f" (validation {shown})" if shown else ""
    stopped = "interrupted, " if run.interrupted else ""
    lines = [
        f"{trained.graph.name}: {trained.plan.recipe.method}, {stopped}epoch {run.best_epoch} of {len(run.history)}{chosen}, "
        f"{seconds:.1f} s"
    ]
    lines += [f"  {line}" for line in result_lines(trained.results)]
    shares = sorted(trained.trained.shares.items(), key=lambda item: -item[1])
    if len(shares) > 2:
        used = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= 0.005)
        unused = ", ".join(name for name, share in shares if share < 0.005)
        lines.append(f"  weight: {used}{unused and f'; none: {unused}'}")
    lines += [f"  left out: {name}, {why}" for name, why in trained.trained.left_out.items()]
    lines += [*relations(trained), *weighed_edges(trained), *warning(trained.results)]
    held_out = 0 if calibration is None else calibration.num_nodes
    if not run.interrupted and held_out < FEWEST:
        few = f"{counted(held_out, 'held-out label')} {'is' if held_out == 1 else 'are'} too few, it takes {FEWEST}"
        lines.append(f"  {'probabilities are not calibrated' if is_of_classes else 'intervals are rough'}: {few}")
    elif not run.interrupted and calibration is not None:
        lines.append(f"  {calibration}")
    if trained.folder is None:
        return lines
    lines.append(f"  kept in {trained.folder}")
    return [*lines, f"  {going_on(trained.folder)}"] if run.interrupted else lines


def going_on(folder: Path) -> str:
    return f"`gcn-lpa train --resume --out {shlex.quote(str(folder))}` goes on"


def result_lines(results: Results) -> list[str]:
    """The rates, those of each fold, and how they were measured."""
    found = results.scores
    if found is None:
        return [results.note]
    from gcn_lpa.metrics import NumberScores

    if isinstance(found, NumberScores):
        folds = ", ".join(f"{fold:.3f}" for fold in results.folds)
        return [number_line(found), *([f"R² of each fold {folds}"] if folds else []), results.note]
    on = counted(found.num_nodes, "node")
    rates = f"accuracy {percent(found.accuracy)}, macro-F1 {percent(found.macro_f1)} on {on}"
    folds = ", ".join(f"{100 * fold:.1f}" for fold in results.folds)
    return [*ranking_lines(found.ranking), rates, *([f"accuracy of each fold {folds}"] if folds else []), results.note]


def number_line(found: NumberScores) -> str:
    """How far predicted numbers are off, and which share of their variance is explained."""
    size = f"mean absolute error {found.mae:.4g}, root mean square {found.rmse:.4g}"
    return f"R² {found.r2:.3f}{' on a log scale' if found.log else ''}, {size} on {counted(found.num_nodes, 'node')}"


def ranking_lines(found: Ranking | None) -> list[str]:
    """How well a rare class is ranked, beside a random order."""
    from gcn_lpa.metrics import TOP

    if found is None:
        return []
    tops = " / ".join(f"{100 * top:g}" for top in TOP)
    hits = " / ".join(f"{100 * share:.0f}" for share in found.recall)
    precision = f"average precision {percent(found.average_precision)} (by chance {percent(found.share)})"
    return [
        f"{found.positive}: {precision}, ROC AUC {percent(found.roc_auc)}",
        f"recall {hits} % among the likeliest {tops} % of the nodes",
    ]


def cut_lines(found: Cut | None) -> list[str]:
    """How many nodes a cut calls, and what to expect of them."""
    if found is None:
        return []
    share = ("{:.1f}", 100, " %")
    precision = "" if found.precision is None else f"precision {found.precision.words(*share)}, "
    cost = "" if found.cost is None else f", costs {found.cost.words('{:,.0f}')}"
    return fitted(
        [
            f"{found.positive}: {found.called:,} of {found.num_nodes:,} nodes, by {found.rule}: from probability "
            f"{found.threshold:.3g} on",
            f"  expected     {found.hits.words()} hits, {precision}recall {found.recall.words(*share)}{cost}",
            f"  counted on   {found.num_held_out:,} {HELD_OUT[found.protocol]} nodes; in 95 of 100 cases within the numbers "
            "in brackets",
        ]
    )


def relations(trained: TrainedRun) -> list[str]:
    """The share of each edge type, the largest first."""
    shares = sorted(trained.trained.relations.items(), key=lambda item: -item[1])
    parts = [f"{visible(name):.30} {f'{share:.2f}'.removeprefix('0')}" for name, share in shares]
    return [f"  relations: {', '.join(parts)}"] if parts else []


def weighed_edges(trained: TrainedRun) -> list[str]:
    """Whether columns of edges weigh them, and how."""
    if (weights := trained.trained.edge_weights) is None:
        return []
    from gcn_lpa.insight.edge_effects import ALIKE, effect_sentences

    first, *others = effect_sentences(weights)
    others = [line for line in others if not line.endswith(ALIKE)]
    rest = len(others) - MOST_EFFECTS
    more = [f"… and {rest} columns that tell less; gcn-lpa edges RUN --columns shows them"] if rest > 0 else []
    return [f"  {first}", *(f"    {line}" for line in (*others[:MOST_EFFECTS], *more))]


def effect_lines(said: Sequence[str], rows: Iterable[EdgeEffect]) -> list[str]:
    """The sentences, and below them a line for each value of each column."""
    cells = [
        (
            *(visible(one.column)[:24], visible(one.value)[:24], f"{one.weight:.3g}"),
            "" if one.low is None or one.high is None else f"{one.low:.2g} to {one.high:.2g}",
            f"{100 * one.share:.0f} %",
        )
        for one in rows
    ]
    return [*said, "", *table_lines(("column", "value", "weight", "95 % interval", "edges"), cells)]


def importance_lines(found: Importances) -> list[str]:
    """How well held-out labels are predicted, and how much worse with each thing shuffled."""
    rows = [
        (
            *(visible(row.name)[:28], row.kind, f"{100 * row.accuracy:+.1f} ± {100 * row.accuracy_interval:.1f}"),
            f"{row.likelihood:+.3f} ± {row.likelihood_interval:.3f}",
            "" if row.alone is None else f"{row.alone:+.3f} ± {row.alone_interval:.3f}",
        )
        for row in found.rows
    ]
    nodes = f"{found.rate} {percent(found.accuracy)} on {counted(found.num_nodes, 'held-out label')}; how much less, each shuffled"
    lines = [f"{nodes} {counted(found.repeats, 'time')}:", ""]
    lines += table_lines(("name", "kind", f"{found.rate}, points", "log-likelihood", "it alone"), rows)
    for name in found.leaking:
        leak = f"warning: column {visible(name)!r} alone tells nearly all labels, and may be the label in other words"
        lines += ["", f"{leak}; option features=… leaves it out"]
    return lines


def warning(results: Results) -> list[str]:
    """A line where a model is no better than one that looks at nothing."""
    from gcn_lpa.metrics import NumberScores

    found = results.scores
    if isinstance(found, NumberScores):
        always = "  no better than always the mean (R² 0); `gcn-lpa compare` tries other methods"
        return [] if found.r2 > 0 else [always]
    most = 0.0 if found is None else max(one.support for one in found.per_class.values()) / found.num_nodes
    if found is None or most == 1 or found.accuracy > most:
        return []
    if (ranked := found.ranking) is not None and ranked.average_precision > 2 * ranked.share:
        rest = f"accuracy is no better than never saying {ranked.positive} ({percent(most)}): cut the ranking where it pays"
        return [f"  {rest}, `gcn-lpa predict --top`, `--precision` or `--costs`"]
    always = f"no better than always the most frequent class ({percent(most)})"
    return [f"  {always}; `gcn-lpa compare` tries other methods"]


def evaluation_lines(results: Results) -> list[str]:
    """The rates, each class, and which class is taken for which."""
    from gcn_lpa.metrics import METRICS, NumberScores

    if (found := results.scores) is None or isinstance(found, NumberScores):
        return result_lines(results)
    classes = (
        (name, percent(one.precision), percent(one.recall), percent(one.f1), f"{one.support:,}")
        for name, one in found.per_class.items()
    )
    confusion = ((name, *map(str, row)) for name, row in zip(found.per_class, found.confusion, strict=True))
    more = ", ".join(
        f"{METRICS[name].words} {f'{value:.3f}' if METRICS[name].sign < 0 else percent(value)}"
        for name, value in found.metrics.items()
        if name not in ("accuracy", "macro_f1") and (found.ranking is None or name not in ("roc_auc", "average_precision"))
    )
    return [
        *result_lines(results),
        *([more] if more else []),
        "",
        *table_lines(("class", "precision", "recall", "F1", "nodes"), classes),
        "",
        "row: true class, column: predicted class, in the same order",
        *table_lines(("", *(str(k) for k in range(1, len(found.per_class) + 1))), confusion),
    ]


def _interval_lines(found: IntervalReport) -> list[str]:
    low, high = found.expected_coverage
    tenth, half, most = (f"{width:.4g}" for width in found.widths)
    return [
        f"{found.graph}: {found.method}, {number_line(found.scores)} it was not given",
        f"  {found.intervals}, {HELD_OUT[found.intervals.protocol]} nodes",
        f"  of {100 * found.level:g} %{'':6} hold {percent(found.coverage)} of the numbers (by chance {100 * low:.1f} to "
        f"{100 * high:.1f} %); width: a tenth below {tenth}, half below {half}, nine tenths below {most}",
        f"  promise      {found.promise}",
    ]


def calibration_lines(found: CalibrationReport | IntervalReport) -> list[str]:
    from gcn_lpa.calibration import FEWEST, Calibrator
    from gcn_lpa.runs.predictions import IntervalReport

    if isinstance(found, IntervalReport):
        return _interval_lines(found)
    calibration, perfect = found.calibration, found.ece_perfect
    fitted = calibration.calibrator
    sizes = ", ".join(f"{count:,} × {size}" for size, count in enumerate(found.set_sizes) if count)
    low, high = found.expected_coverage
    usual = f" (by chance {100 * low:.1f} to {100 * high:.1f} %)" if found.accuracy < found.level else ""
    which = counted(calibration.num_nodes, f"{HELD_OUT[calibration.protocol]} node")
    curve = f"{fitted.slope:.2f} · logit {fitted.intercept:+.2f}"
    numbers = f"temperature  {fitted.temperature:.2f}, then confidence {curve}, fitted to {which}"
    if fitted.positive is not None:
        numbers = f"rare class   {curve}, fitted to {which}"
    elif fitted == Calibrator():
        numbers = f"temperature  none: by {which}, correcting would not make labels likelier"
    apart = calibration.unreachable
    own = "as the model gives them" if apart == Calibrator() else calibration.apart
    few = calibration.num_nodes < FEWEST
    return [
        f"{found.graph}: {found.method}, accuracy {percent(found.accuracy)} on {counted(found.num_nodes, 'node')} it was not given",
        f"  temperature  none: {which} are too few to fit one to, it takes {FEWEST}" if few else f"  {numbers}",
        *([] if apart is None else [f"  unreachable  nodes that no label reaches: {own}"]),
        f"  ECE          {percent(found.ece_before)} before, {percent(found.ece_after)} after; a perfectly calibrated "
        f"model would show {percent(perfect.mean)}, at most {percent(perfect.high)} in 95 of 100 cases",
        f"  sets, {100 * found.level:g} %   hold the true label of {percent(found.coverage)}{usual}, "
        f"mean size {found.mean_set_size:.2f} ({sizes})",
        f"  promise      {found.promise}",
    ]


def change_lines(found: Changes, note: str = "") -> list[str]:
    """What is new, what is gone, what changed; `note`: why the graph is not compared with the one before."""
    votes = f" that vote{'s' * (found.labels == 1)}" if found.votes else ""
    sizes = counted(found.nodes, "node"), counted(found.edges, "edge"), counted(found.labels, "label")
    lines = [f"{found.graph}: {', '.join(sizes)}{votes}"]
    if found.nodes_new is not None:
        lines += [
            f"  nodes        {found.nodes_new:,} new, {found.nodes_gone:,} gone",
            f"  edges        {found.edges_new:,} new, {found.edges_gone:,} gone, {found.edges_reweighted:,} with another weight",
        ]
    lines.append(f"  labels       {found.labels_new:,} new, {found.labels_changed:,} changed, {found.labels_gone:,} gone")
    if found.predictions is not None:
        lines.append(f"  predictions  {found.predictions_changed:,} of {found.predictions:,} changed")
    notes = [] if found.votes else ["labels do not vote in this method: train it again to learn from new ones"]
    for name, count in found.unknown_classes.items():
        notes.append(f"{counted(count, 'label')} {name!r}: a class the model does not know; train it again to learn it")
    if found.votes and found.silent_classes:
        names = ", ".join(map(repr, found.silent_classes))
        notes.append(f"no label here is of class {names}: labels vote among the other classes only; give some of each")
    if note:
        notes.append(f"nodes, edges and predictions are not compared: {note}")
    return [*lines, *(line for one in notes for line in wrapped(f"  note: {one}"))]


def comparison_lines(found: Comparison) -> list[str]:
    """A line for each method, the verdict, and how to read both."""
    from gcn_lpa.metrics import METRICS
    from gcn_lpa.stats import said_p

    rows, is_of_classes = [], any(row.accuracy is not None for row in found.rows)
    for row in found.rows:
        compared = ("", "") if row.difference is None else (str(row.difference), said_p(row.difference.p_value))
        scored = () if found.metric in ("accuracy", "macro_f1") else (str(row.score),)
        of_classes = (str(row.accuracy), str(row.macro_f1)) if is_of_classes else ()
        rows.append((row.method, *scored, *of_classes, *compared, f"{row.seconds:.1f}"))
    named = () if found.metric in ("accuracy", "macro_f1") else (METRICS[found.metric].words,)
    header = ("", *named, *(("accuracy", "macro-F1") if is_of_classes else ()), f"to {found.reference}", "p", "seconds")
    lines = [found.verdict]
    if found.not_converged:
        lines.append(f"not converged: {', '.join(found.not_converged)}; more --epochs may help")
    for field, without in found.unused.items():
        lines.append(f"--{field.replace('_', '-')} is not used by {', '.join(without)}")
    lines.append(f"±: 95 % t interval over splits. p: Wilcoxon's signed-rank test. seconds: median of a split, on {found.device}.")
    return [*table_lines(header, rows), "", *lines]


def advice_lines(found: Advice, command: str) -> list[str]:
    """The advice, the command that follows it, and what it rests on."""
    from gcn_lpa.metrics import METRICS
    from gcn_lpa.stats import signed

    lines = [found.sentence, "", f"  {command}", ""]
    if found.lines:
        rows = (
            (
                line.method,
                str(line.score),
                "" if line.over_features is None else signed(line.over_features),
                signed(line.over_chance),
                f"{line.seconds:.1f}",
            )
            for line in found.lines
        )
        chance = "commonest class" if found.metric == "accuracy" else "chance"
        heads = ("", METRICS[found.metric].words, "against features", f"against {chance}", "seconds")
        lines += table_lines(heads, rows)
        lines += ["", f"{found.protocol}, on {found.device}; ±: 95 % interval, widened for splits that overlap."]
    known, chance = found.homophily, ""
    if known.rate is not None and known.chance is not None:
        rate, by_chance = percent(known.rate), percent(known.chance)
        chance = f": {rate} of them join nodes of one class, by chance it would be {by_chance}"
    about = [
        *([f"  homophily  {known.edges:,} edges have both labels{chance}"] if known.edges else []),
        f"  reach      {found.unlabeled:,} nodes without a label, {found.unreachable:,} of them out of reach of any label",
        *(f"  note       {note}" for note in found.notes),
    ]
    return [*lines, *about]
