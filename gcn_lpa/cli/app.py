"""The command line. Each command is a few lines over a function anyone can call from Python.

Results go to stdout, as text or with --json; everything else to stderr. Exit codes: 0 done, 1 it failed (one line says
why), 2 mistyped, 130 interrupted. torch and its like are imported inside the commands, so that --help is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_type_hints

import typer

from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph, GraphInfo
    from gcn_lpa.insight.advice import Advice, Line
    from gcn_lpa.insight.auditing import EdgeAudit, LabelAudit
    from gcn_lpa.insight.comparison import Record, Row
    from gcn_lpa.insight.suggestions import Suggestion
    from gcn_lpa.model import GCNLPA
    from gcn_lpa.runs.stages import CalibrationReport, Results, TrainedRun, Watch
    from gcn_lpa.tables.datasets import Counts, Table1Row
    from gcn_lpa.theory.lemmas import Check
    from gcn_lpa.train import Epoch, Scores

P = ParamSpec("P")

app = typer.Typer(
    help="Label the nodes of a graph: graph convolution and label propagation in one model (GCN-LPA).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME_OR_FOLDER", help="A data set, or a folder with nodes.csv and edges.csv.")
]
Root = Annotated[Path | None, typer.Option(help="Folder with the files of the named data sets.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="How to read or make the graph, e.g. -o label=group, -o n=1000."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Data = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Where the graph of the run is now, if not where it was.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
SetScore = Annotated[str, typer.Option(metavar="lac|aps", help="Label sets: smallest on average, or adaptive.")]
ExcelSafe = Annotated[bool, typer.Option(help="Put a ' before text that a spreadsheet would run as a formula.")]


def main() -> int:
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows a ? instead of failing
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:
        return 130
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        from gcn_lpa import __version__

        print(f"gcn-lpa {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function a command whose failures are one line on stderr."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends quietly
        except (ValueError, OSError, ImportError, MemoryError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            print(f"gcn-lpa: {message}{_as_option(message)}", file=sys.stderr)
            raise typer.Exit(1) from None

    return app.command()(run)


def _as_option(message: str) -> str:
    """How to say on the command line what a message of the library says as label=…"""
    readers = "id|label|labels|features|text|source|target|weight|unknown|header|encoding|delimiter"
    found = re.search(rf"\b({readers})=", message)
    return "" if found is None or "-o " in message else f" (on the command line: -o {found[1]}=…)"


@command
def datasets(root: Root = None, as_json: AsJson = False) -> None:
    """Print the paper's Table 1 with our counts beside the paper's, and the other data sets there are."""
    from gcn_lpa.tables.datasets import DATASETS, table1

    rows = table1(root, names=DATASETS)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        print_table(("", "nodes", "edges", "features", "classes", "intra-class"), _table1_lines(rows))


@command
def info(name: Name, root: Root = None, option: Options = None, as_json: AsJson = False) -> None:
    """Describe a graph: sizes, classes, homophily, components, and the nodes no label can reach."""
    from gcn_lpa.graph import describe
    from gcn_lpa.tables.datasets import DATASETS

    described = describe(load_graph(name, root, option))
    if as_json:
        print_json(dataclasses.asdict(described))
    else:
        print("\n".join(_info_lines(described, is_named=name.lower() in DATASETS)))


def recipe_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each field of `Recipe`; those that are used arrive in its argument `changes`."""
    fields = [spec for spec in dataclasses.fields(Recipe) if spec.name not in ("method", "origin")]
    hints = get_type_hints(Recipe)

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        changes = {spec.name: arguments.pop(spec.name) for spec in fields}
        changes = {name: value for name, value in changes.items() if value is not None}
        for spec in fields:
            if (choices := spec.metadata["choices"]) and changes.get(spec.name, choices[0]) not in choices:
                raise typer.BadParameter(f"{spec.name} is {changes[spec.name]!r}; it is one of {', '.join(choices)}")
        function(**arguments, changes=changes)

    signature = inspect.signature(function, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "changes"]
    flags = [
        inspect.Parameter(
            spec.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                hints[spec.name] | None,
                typer.Option(help=spec.metadata["help"], metavar="|".join(spec.metadata["choices"]) or None),
            ],
        )
        for spec in fields
    ]
    run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return run


@command
@recipe_flags
def train(
    name: Name,
    *,
    method: Annotated[str | None, typer.Option(help="Which model; gcn-lpa unless the recipe says otherwise.")] = None,
    recipe: Annotated[str, typer.Option(help="default, paper, official, or a JSON file.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the split, the first weights and dropout.")] = 0,
    split: Annotated[
        str | None,
        typer.Option(
            help="uniform (60/20/20, for named data sets), stratified, public, per_class or authors. "
            "Without one, a folder of your own trains on all its labels and is scored by cross-validation."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder to keep the result in.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in --out when the new one is complete.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out, if there is one.")] = False,
    with_data: Annotated[bool, typer.Option(help="Keep the graph in the run folder too.")] = False,
    checkpoint_every: Annotated[int, typer.Option(min=0, metavar="EPOCHS", help="0: no checkpoints.")] = 50,
    reserve: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of the validation nodes, such as 0.5, that choose nothing: label sets then keep their promise.",
        ),
    ] = 0.0,
    device: Device = "auto",
    threads: Threads = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Write curves for TensorBoard.")] = None,
    mlflow: Annotated[bool, typer.Option(help="Log to the active MLflow run.")] = False,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
    changes: dict[str, Any],
) -> None:
    """Train a model on a graph and score it; every field of the recipe is a flag."""
    from gcn_lpa.runs.stages import Source, make_plan, train_run
    from gcn_lpa.train import MLflowLogger, TensorBoardLogger

    loggers: list[Callable[[Epoch], None]] = [TensorBoardLogger(tensorboard)] if tensorboard else []
    loggers += [MLflowLogger()] if mlflow else []
    source = Source(name, None if root is None else str(root), reading(name, option))
    plan, graph = make_plan(
        source,
        method=method,
        recipe=recipe,
        changes=changes,
        seed=seed,
        split=split,
        with_data=with_data,
        checkpoint_every=checkpoint_every,
        reserve=reserve,
    )
    print_doubts(graph, as_json)
    with progress(loggers) as watch:
        trained = train_run(
            plan, graph, out, device=device, threads=threads, resume=resume, overwrite=overwrite, watch=watch
        )
    print_run(trained, as_json)


@command
def resume(
    run: RunDir, data: Data = None, device: Device = "auto", threads: Threads = None, as_json: AsJson = False
) -> None:
    """Finish a training that was stopped, as if it had not been."""
    from gcn_lpa.runs.stages import resume_run

    with progress() as watch:
        trained = resume_run(run, data, device=device, threads=threads, watch=watch)
    print_run(trained, as_json)


@command
def evaluate(run: RunDir, data: Data = None, as_json: AsJson = False) -> None:
    """Score a run: accuracy, macro-F1, each class, and which class is taken for which."""
    from gcn_lpa.runs.stages import evaluate_run

    results = evaluate_run(run, data)
    if as_json:
        return print_json(dataclasses.asdict(results))
    print(_result_line(results))
    if (found := results.scores) is not None:
        print()
        print_table(("class", "precision", "recall", "F1", "nodes"), _class_lines(found))
        print("\nrow: true class, column: predicted class, in the same order")
        print_table(("", *(str(k) for k in range(1, len(found.per_class) + 1))), _confusion_lines(found))


@command
def predict(
    run: RunDir,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file; without one, stdout.")] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also the nodes whose label was given (status labeled), with what the model says of them."
        ),
    ] = False,
    abstain: Annotated[
        float | None, typer.Option(metavar="P", help="No label where its probability is below this, such as 0.6.")
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(metavar="LEVEL", help="Add a column set: labels that hold the true one so often, such as 0.9."),
    ] = None,
    score: SetScore = "lac",
    hops: Annotated[bool, typer.Option("--hops", help="Add a column hops: edges to the nearest given label.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Probabilities as the model gives them, not calibrated.")] = False,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Label the nodes that have no label: id, label, probability (calibrated), runner_up, status.

    label is what the model says, also of a node whose label was given; it can differ from that one.
    """
    from gcn_lpa.runs.stages import predict_run

    table = predict_run(run, data, every=every, raw=raw, abstain=abstain, sets=sets, score=score, hops=hops)
    print_or_write(table, out, excel_safe, as_json)


@command
def calibrate(
    run: RunDir,
    level: Annotated[float, typer.Option(help="How often a label set shall hold the true label.")] = 0.9,
    score: SetScore = "lac",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the reliability diagram, before and after (.png).")
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say how far confidence can be trusted: calibration before and after, and what label sets hold."""
    from gcn_lpa.calibration import draw_reliability
    from gcn_lpa.runs.stages import calibrate_run

    found = calibrate_run(run, data, level=level, score=score)
    if plot is not None:
        draw_reliability(
            found.before, found.after, plot, title=f"{found.graph}, {found.method}: {found.num_nodes:,} nodes"
        )
    if as_json:
        return print_json(dataclasses.asdict(found))
    print("\n".join(_calibration_lines(found)))
    if plot is not None:
        print(f"reliability diagram in {plot}")


@command
def edges(
    run: RunDir,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file; without one, stdout.")] = None,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the learned edge weights: source, target, weight (as given), learned (its share at the target)."""
    from gcn_lpa.runs.stages import edge_table, load_run

    trained = load_run(run, data)
    table = edge_table(trained.model, trained.graph, recipe=trained.plan.recipe)
    print_or_write(table, out, excel_safe, as_json)


@command
def explain(
    run: RunDir,
    node: Annotated[str | None, typer.Option(metavar="ID", help="The node to explain.")] = None,
    every: Annotated[bool, typer.Option("--all", help="A table of the nodes that `predict` labels.")] = False,
    top: Annotated[int, typer.Option(min=1, help="--node: voters to list.")] = 10,
    hops: Annotated[int | None, typer.Option(min=1, help="How far a label travels; else as in the recipe.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="--node: draw it; the ending says as what (.png, .svg, .pdf).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="--all: CSV file; without one, stdout.")] = None,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say why a node has its label: the training labels that voted, along which paths, and whether model and LPA agree."""
    if every == (node is not None):
        raise typer.BadParameter("give either --node ID or --all")
    if (plot is not None and every) or (out is not None and not every):
        raise typer.BadParameter("--plot goes with --node, --out with --all")
    from gcn_lpa.insight.explanation import Explainer, draw_explanation
    from gcn_lpa.runs.stages import load_run

    trained = load_run(run, data)
    explainer = Explainer.of_run(trained, hops=hops)
    if node is None:
        return print_or_write(explainer.table(~trained.used), out, excel_safe, as_json)
    why = explainer.explain(node, top=top)
    if plot is not None:
        draw_explanation(why, plot)
    if as_json:
        return print_json(why.to_dict())
    print(why)
    if plot is not None:
        print(f"\ndrawn in {plot}")


@command
def what_if(
    run: RunDir,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=CLASS", help="Give a node without a training label one. This and all below may be repeated."
        ),
    ] = None,
    relabel: Annotated[
        list[str] | None, typer.Option(metavar="ID=CLASS", help="Give a node another training label.")
    ] = None,
    unlabel: Annotated[list[str] | None, typer.Option(metavar="ID", help="Take a training label away.")] = None,
    remove_edge: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Take the edge between two nodes away.")
    ] = None,
    hops: Annotated[int | None, typer.Option(min=1, help="How far a label travels; else as in the recipe.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say which predictions would change with other labels or without an edge; nothing is trained again.

    An id may hold = or a comma: the text is cut where both sides name something.
    """
    from gcn_lpa.insight.explanation import Explainer
    from gcn_lpa.runs.stages import load_run

    asked = {"--label": label, "--relabel": relabel, "--unlabel": unlabel, "--remove-edge": remove_edge}
    if not any(asked.values()):
        raise typer.BadParameter(f"nothing is asked: give at least one of {', '.join(asked)}")
    trained = load_run(run, data)
    classes, nodes = set(trained.graph.class_names), {str(name) for name in trained.graph.node_names}
    answer = Explainer.of_run(trained, hops=hops).what_if(
        label=_once(cut(one, "=", nodes, classes) for one in label or ()),
        relabel=_once(cut(one, "=", nodes, classes) for one in relabel or ()),
        unlabel=unlabel or (),
        remove_edges=[cut(one, ",", nodes, nodes) for one in remove_edge or ()],
    )
    if as_json:
        return print_json(answer.to_dict())
    print(answer)


def cut(text: str, separator: str, left: set[str], right: set[str]) -> tuple[str, str]:
    """The two sides of a text whose names may hold the separator: where both sides are known, else at the last one."""
    parts = text.split(separator)
    cuts = [(separator.join(parts[:k]), separator.join(parts[k:])) for k in range(1, len(parts))]
    if not cuts:
        raise typer.BadParameter(f"{text!r} has no {separator!r} between two names")
    known = [(a, b) for a, b in cuts if a in left and b in right]
    if len(known) > 1:
        ways = " or ".join(f"{a!r} and {b!r}" for a, b in known)
        raise ValueError(f"{text!r} can be read as {ways}; in Python, `what_if` takes the two apart")
    return known[0] if known else cuts[-1]


def _once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Node and class of each option; a node may be named once."""
    named: dict[str, str] = {}
    for node, name in pairs:
        if node in named:
            raise ValueError(f"node {node!r} is named twice; one change of its label at a time")
        named[node] = name
    return named


@command
def audit(
    run: RunDir,
    labels: Annotated[bool, typer.Option("--labels", help="Rank the given labels.")] = False,
    edges: Annotated[bool, typer.Option("--edges", help="Rank the edges.")] = False,
    top: Annotated[int | None, typer.Option(min=1, help="Rows at most; 20 where they are printed, else all.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file; without one, stdout.")] = None,
    drop_edges: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Also retrain without this share of the edges, the most suspicious first."),
    ] = None,
    relabel: Annotated[bool, typer.Option("--relabel", help="Also retrain with the suggested labels.")] = False,
    splits: Annotated[int, typer.Option(min=2, help="--drop-edges, --relabel: random splits to try it on.")] = 5,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the labels, each hidden from a model in turn.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often that is done, with new folds.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Of folds and first weights; without one, that of the run.")] = None,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Say which labels or which edges look wrong, and why. Labels of test nodes are not looked at.

    With --relabel or --drop-edges also what the repair does to validation accuracy. It is only tried: no file changes.
    """
    if drop_edges is not None and not 0 < drop_edges < 1:
        raise typer.BadParameter(f"drop-edges is {drop_edges:g}; it is a share above 0 and below 1, such as 0.05")
    of_labels, of_edges = labels or relabel, edges or drop_edges is not None
    if of_labels == of_edges:
        raise typer.BadParameter("audit either --labels (and --relabel) or --edges (and --drop-edges)")
    from gcn_lpa.insight import auditing
    from gcn_lpa.runs.stages import load_run, write_table

    if out is not None and not out.parent.is_dir():  # said before the training, not after
        raise FileNotFoundError(f"there is no folder {out.parent} to write {out.name} in")
    trained = load_run(run, data)
    subject = trained.graph, trained.given, trained.plan.recipe
    options: dict[str, Any] = {"folds": folds, "device": device, "threads": threads}
    options["seed"] = trained.plan.seed if seed is None else seed
    rank: Callable[..., LabelAudit | EdgeAudit] = auditing.audit_labels if of_labels else auditing.audit_edges
    with counted("training models") as on_fit:
        found = rank(*subject, repeats=repeats, on_fit=on_fit, **options)
    effect = None
    if relabel or drop_edges is not None:
        with counted("trying it on splits") as on_split:
            effect = auditing.try_cleaning(
                *subject, drop_edges=drop_edges or 0.0, relabel=relabel, splits=splits, on_split=on_split, **options
            )
    rows = found.findings[: top or (None if as_json or out is not None else 20)]
    if out is not None:
        write_table(out, found.to_frame().head(len(rows)), excel_safe=excel_safe)
    if as_json:
        listed = [dataclasses.asdict(row) for row in rows] if out is None else []
        added = {"out": None if out is None else str(out), "cleaning": None if effect is None else effect.to_dict()}
        return print_json({**found.to_dict(), "findings": listed, **added})
    if out is not None:
        print(f"{len(rows):,} rows in {out}")
    else:
        for row in rows:
            print(row)
        print(f"\n{found.summary}")
    if effect is not None:
        print(f"\n{effect.verdict}")


@contextlib.contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how much is done of how much, and says so on stderr where that is a terminal."""
    shows = sys.stderr.isatty()
    yield lambda done, total: print(f"\r{what}: {done} of {total} ", end="", file=sys.stderr) if shows else None
    if shows:
        print("\r\033[K", end="", file=sys.stderr)


@command
@recipe_flags
def compare(
    name: Name,
    *,
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Methods, with commas between.")
    ] = "mlp,lr,lpa,gcn,gcn-same,gcn-lpa",
    splits: Annotated[int, typer.Option(min=1, help="Random 60/20/20 splits, the same for all.")] = 10,
    reference: Annotated[
        str | None, typer.Option(help="What differences are taken to; gcn, or else the first method.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="default, paper or official, of gcn-lpa and gcn-same; all others have their own.")
    ] = "default",
    seed: Annotated[int, typer.Option(help="Of the first split; the next has the next.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON here.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
    changes: dict[str, Any],
) -> None:
    """Train methods on the same splits: mean, 95 % interval, paired differences, time and memory.

    A field of the recipe given as a flag is set for every method.
    """
    from gcn_lpa.insight import comparison
    from gcn_lpa.storage import write_json

    graph = load_graph(name, root, option)
    print_doubts(graph, as_json)
    found = comparison.compare(
        graph,
        [method.strip() for method in methods.split(",")],
        splits=splits,
        seed=seed,
        reference=reference,
        recipe=recipe,
        changes=changes,
        device=device,
        threads=threads,
        on_record=say_record,
    )
    if out is not None:
        write_json(out, found.to_dict())
    if as_json:
        return print_json(found.to_dict())
    header = ("", "accuracy", "macro-F1", f"to {found.reference}", "p", "seconds", "memory")
    print_table(header, [_comparison_line(row) for row in found.rows])
    print(f"\n{found.verdict}")
    print(
        "±: 95 % t interval over splits. p: Wilcoxon's signed-rank test. "
        f"seconds: median of a split, on {found.device}. memory: peak of a process that trains this method alone."
    )


@command
def advise(
    name: Name,
    repeats: Annotated[int, typer.Option(min=2, help="Splits of the labelled nodes, the same for all methods.")] = 10,
    recipe: Annotated[str, typer.Option(help="default, paper or official, of gcn-lpa.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the first split and the first weights.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Does the graph help? Compare features alone with methods that read the edges, on your own labels."""
    from gcn_lpa.insight import advice

    graph = load_graph(name, root, option)
    print_doubts(graph, as_json)
    found = advice.advise(
        graph, repeats=repeats, seed=seed, recipe=recipe, device=device, threads=threads, on_record=say_record
    )
    where = [("--root", str(root))] if root is not None else []
    said = [word for pair in [*where, *(("-o", each) for each in option or ())] for word in pair]
    line = found.command(name, said)
    if as_json:
        return print_json({**found.to_dict(), "command": line})
    print(found.sentence)
    print(f"\n  {line}\n")
    if found.lines:
        print_table(
            ("", "accuracy", "against features", "against commonest class", "seconds"), map(_advice_line, found.lines)
        )
        print(f"\n{found.protocol}, on {found.device}; ±: 95 % interval, widened for splits that overlap.")
    print("\n".join(_advice_facts(found)))


@command
def suggest(
    run: RunDir,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 20,
    candidates: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ids that may be suggested, one per line; without, all but test nodes."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a CSV file here.")] = None,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Which nodes to label next: those the model is unsure of and whose label would reach others it is unsure of."""
    from gcn_lpa.insight import suggestions
    from gcn_lpa.runs.stages import load_run, write_table

    trained = load_run(run, data)
    allowed = ~trained.split.test if candidates is None else suggestions.read_candidates(candidates, trained.graph)
    allowed &= ~trained.used
    if not allowed.any():
        why = "has a label or is a test node" if candidates is None else f"of {candidates} has a label"
        raise ValueError(f"no node is left to suggest: every node {why}; --candidates FILE says which may be suggested")
    found = suggestions.suggest(
        trained.model, trained.graph, trained.given, recipe=trained.plan.recipe, n=n, candidates=allowed
    )
    table = suggestions.suggestion_table(found)
    if out is not None:
        write_table(out, table, excel_safe=excel_safe)
    if as_json:
        return print_json(table.to_dict("records"))
    print_table(("id", "score", "guess", "probability", "reach", "why"), map(_suggestion_line, found))
    if out is not None:
        print(f"\n{len(table):,} rows in {out}")


@command
def bench(
    what: Annotated[str, typer.Argument(metavar="epochs|kernels", help="A training step, or one product.")],
    protocol: Annotated[
        str, typer.Option(help="epochs: work (10 % labelled) or paper (100 labelled nodes, one class).")
    ] = "work",
    classes: Annotated[int, typer.Option(min=1, help="epochs, protocol work: number of classes.")] = 7,
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of nodes.")] = "1000,10000,100000",
    repeats: Annotated[int, typer.Option(min=3, help="Steps timed; the median counts.")] = 30,
    largest_rival: Annotated[int | None, typer.Option(help="Nodes up to which the others run.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write JSON here, and a plot beside it.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Time our engine beside PyTorch Geometric and torch's own CSR product, in one run."""
    import torch

    from gcn_lpa.paper import timing
    from gcn_lpa.storage import write_json
    from gcn_lpa.train import choose_device

    if what not in ("epochs", "kernels"):
        raise typer.BadParameter(f"{what!r} is neither epochs nor kernels")
    nodes = _node_counts(sizes)
    place = str(choose_device(device))
    if threads is not None:
        torch.set_num_threads(threads)

    def say(timing: Any) -> None:
        print(".", end="", file=sys.stderr, flush=True)

    if what == "kernels":
        products = timing.kernels(nodes, device=place, repeats=repeats, report=say)
        found = timing.record("kernels", products, device=place)
        header, lines = timing.kernel_table(products)
    else:
        steps = timing.epochs(
            nodes,
            protocol=protocol,
            classes=classes,
            device=place,
            repeats=repeats,
            largest_rival=largest_rival,
            report=say,
        )
        found = timing.epoch_record(steps, protocol=protocol, device=place)
        header, lines = timing.epoch_table(steps)
    print(file=sys.stderr)
    if out is not None:
        write_json(out, found)
        if what == "epochs":
            timing.draw_epochs(steps, out.with_suffix(".png"), title=f"One training step, protocol {protocol}, {place}")
    if as_json:
        return print_json(found)
    print_table(header, lines)
    if what == "epochs":
        print("\n".join(timing.epoch_sentences(steps)))


@command
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="all, table1 to table4, figure1 to figure7, table-two-step, table-edges, table-lpa, theorems, influence or claims."
        ),
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this data set; may be repeated. Of all, what is about others is left out."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this row of table2 or a table with a name; may be repeated.")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(min=1, help="Splits of every cell; as in the full study without.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="ours, or paper: three repeats.")] = "ours",
    split: Annotated[
        str, typer.Option(help="uniform, or authors: the one split of the authors' code, 10 initialisations.")
    ] = "uniform",
    quick: Annotated[
        bool, typer.Option(help="One split, fewer epochs on the large graphs; says what it reduces.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results and finished runs are kept.")] = Path(
        "reproduction"
    ),
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; as many as fit the device without.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper: each table and figure as Markdown, JSON and pictures; goes on where it was interrupted."""
    from gcn_lpa.paper import reproduction, study

    if protocol not in ("ours", "paper"):
        raise typer.BadParameter(f"protocol is {protocol!r}; it is ours or paper")
    if what not in reproduction.NAMES:
        raise typer.BadParameter(f"{what!r} is none of {', '.join(reproduction.NAMES)}")
    budget = study.Study(
        out,
        splits=splits if splits is not None or protocol == "ours" else 3,
        quick=quick,
        split=split,
        datasets=tuple(name.lower() for name in dataset or study.DATASETS),
        methods=tuple(method or ()),
        device=device,
        workers=workers,
        root=None if root is None else str(root),
        report=_say_progress,
    )
    found = []
    for result in reproduction.reproduce(what, budget, on_part=lambda name: print(f"{name} …", file=sys.stderr)):
        found.append(result)
        if not as_json:
            print(result.markdown())
            print(f"kept in {out / result.name}.md and .json\n", flush=True)
    if as_json:
        print_json(
            [{"name": result.name, "title": result.title, "data": result.data, "runs": result.runs} for result in found]
        )


def _say_progress(progress: Any) -> None:
    """One line on stderr that counts the trainings and says how long the rest will take."""
    task, result = progress.task, progress.result
    words = f"{progress.done} of {progress.total}: {task['dataset']}, {task['method']}, seed {task['seed']}"
    line = f"{words}, {_percent(result['test_accuracy'])}, about {progress.seconds_left / 60:.1f} min left"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="" if progress.done < progress.total else "\n", file=sys.stderr, flush=True)
    elif progress.done % max(1, progress.total // 20) == 0:
        print(line, file=sys.stderr, flush=True)


@command
def theorems(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_FOLDER", help="A data set, a folder with nodes.csv and edges.csv, or a run folder."
        ),
    ] = "karate",
    check: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one, such as theorem-4; may be repeated.")
    ] = None,
    train: Annotated[
        bool, typer.Option(help="Train a model first, for what is said of learned edges; a run folder brings its own.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the labels, nodes and weights that are drawn.")] = 0,
    data: Data = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure the paper's lemmas and theorems on a graph and on the graphs where they fail: both sides, and what holds."""
    from gcn_lpa.theory.lemmas import LEARNED, check_theorems, known_names

    wanted = known_names(check)
    trains = train and not {*LEARNED}.isdisjoint(wanted)
    graph, model = subject_of(name, root, option, data=data, train=trains, seed=seed)
    checks = check_theorems(graph, wanted, model, seed)
    if as_json:
        return print_json({"graph": graph.name, "seed": seed, "checks": [one.to_dict() for one in checks]})
    print("\n".join(_check_lines(checks)))


def subject_of(
    name: str, root: Path | None, options: list[str] | None, *, data: Path | None, train: bool, seed: int
) -> tuple[Graph, GCNLPA | None]:
    """The graph, and the GCN-LPA of a run folder or one trained here by the paper's recipe, or else the default one."""
    from gcn_lpa.graph import split
    from gcn_lpa.model import GCNLPA
    from gcn_lpa.recipes import PAPER, recipe_for
    from gcn_lpa.runs.stages import load_run
    from gcn_lpa.train import learn_whole, num_epochs

    if (Path(name) / "recipe.json").is_file():
        trained = load_run(name, data)
        return trained.graph, trained.model if isinstance(trained.model, GCNLPA) else None
    graph = load_graph(name, root, options)
    if not train:
        return graph, None
    settings = "paper" if graph.name in PAPER else "default"
    recipe, parts = recipe_for(settings, graph.name, has_features=graph.x_kind == "given"), split(graph, seed=seed)
    with progress() as watch:
        on_epoch = watch("training", num_epochs(recipe))
        model, _ = learn_whole(GCNLPA, graph, parts.train, parts.val, recipe, seed=seed, on_epoch=on_epoch)
    return graph, model


@command
def demo(as_json: AsJson = False) -> None:
    """Train GCN-LPA on handwritten digits, joined to their nearest, and compare it with simpler methods."""
    from gcn_lpa.graph import split
    from gcn_lpa.insight import comparison
    from gcn_lpa.methods.registry import METHODS
    from gcn_lpa.tables.datasets import load

    graph, methods = load("digits"), ("gcn-lpa", "gcn-same", "lpa", "mlp")
    parts = split(graph, seed=0)
    found = comparison.compare(graph, methods, splits=[parts], device="cpu", isolate=False)
    if as_json:
        return print_json(found.to_dict())
    sizes = [f"{int(mask.sum()):,}" for mask in (parts.train, parts.val, parts.test)]
    print(f"{graph.num_nodes:,} images of digits, each joined to the 10 nearest, {graph.num_edges:,} edges:")
    print(f"{sizes[0]} labels train, {sizes[1]} choose the epoch, {sizes[2]} test.\n")
    lines = [
        (record.method, _percent(record.accuracy), _percent(record.macro_f1), f"{record.seconds:.1f} s")
        for record in found.records
    ]
    print_table(("", "accuracy", "macro-F1", "training"), lines)
    print("\n" + "\n".join(f"{name}: {METHODS[name].note}" for name in methods))
    print("One split tells little: `gcn-lpa compare digits` trains on ten and gives intervals.")


def print_run(trained: TrainedRun, as_json: bool) -> None:
    """Say what a training gave; one that was interrupted ends the command with 130."""
    if as_json:
        print_json(_run_facts(trained))
    else:
        print("\n".join(_run_lines(trained)))
    if trained.run.interrupted:
        raise typer.Exit(130)


def print_or_write(table: Any, out: Path | None, excel_safe: bool, as_json: bool) -> None:
    """Give a DataFrame as CSV or JSON on stdout, or as a CSV file and a word about it."""
    from gcn_lpa.runs.stages import table_text, write_table

    if out is not None:
        write_table(out, table, excel_safe=excel_safe)
        by_status = table["status"].value_counts().to_dict() if "status" in table else {}
        if as_json:
            print_json({"out": str(out), "rows": len(table), "status": by_status})
        else:
            parts = "".join(f", {count:,} {status}" for status, count in by_status.items())
            print(f"{len(table):,} rows{parts} in {out}")
    elif as_json:
        print_json(table.to_dict("records"))
    else:
        print(table_text(table, excel_safe=excel_safe), end="")


@contextlib.contextmanager
def progress(loggers: Iterable[Callable[[Epoch], None]] = ()) -> Iterator[Watch]:
    """What is told of every epoch: the loggers, of the first stage, and a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}")
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def watch(stage: str, num_epochs: int) -> Callable[[Epoch], None]:
            task = bar.add_task(stage, total=num_epochs, state="")

            def on_epoch(epoch: Epoch) -> None:
                losses = {"loss": epoch.loss, "gcn": epoch.gcn, "lpa": epoch.lpa}
                words = [f"{name} {value:.3f}" for name, value in losses.items() if value is not None]
                accuracy = [] if epoch.val_accuracy is None else [f"validation {_percent(epoch.val_accuracy)}"]
                bar.update(task, completed=epoch.epoch, state=", ".join([*words, *accuracy]))
                for logger in loggers if stage in ("fit", "choose") else ():
                    logger(epoch)

            return on_epoch

        yield watch


def load_graph(name: str, root: Path | None, options: Iterable[str] | None) -> Graph:
    """The graph a command is about."""
    from gcn_lpa.runs.stages import Source

    return Source(name, None if root is None else str(root), reading(name, options)).load()


def print_doubts(graph: Graph, as_json: bool) -> None:
    """Say on stderr what in the user's files may not be meant as it was read."""
    from gcn_lpa.intake import DOUBT

    for note in graph.notes if not as_json else ():
        if note.startswith(DOUBT):
            print(f"gcn-lpa: {note}{_as_option(note)}", file=sys.stderr)


def reading(name: str, options: Iterable[str] | None) -> dict[str, Any]:
    """Options KEY=VALUE of a data set, or of `read_csv`, with their types."""
    from gcn_lpa.tables.datasets import reading_options

    known = reading_options(name)
    chosen: dict[str, Any] = {}
    for option in options or ():
        key, separator, value = option.partition("=")
        if not separator or key not in known:
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE with a key of: {', '.join(known) or 'none'}")
        chosen[key] = _parse(key, value, known[key])
    return chosen


def _parse(key: str, value: str, default: Any) -> Any:
    """The text of an option as the type of its default; a list where it holds commas."""
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if isinstance(default, (int, float)):
            return type(default)(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise typer.BadParameter(f"{key} is {value!r}; it takes {wanted}") from None
    return value.split(",") if key == "unknown" and "," in value else value


def _node_counts(sizes: str) -> list[int]:
    """The numbers of nodes in a text such as 1000,1e5."""
    try:
        counts = [int(float(size)) for size in sizes.split(",")]
    except (ValueError, OverflowError):
        counts = []
    if not counts or min(counts) < 1:
        raise typer.BadParameter(f"sizes is {sizes!r}; it takes numbers of nodes with commas between")
    return counts


def say_record(record: Record) -> None:
    """One result of a comparison, on stderr where that is a terminal."""
    if sys.stderr.isatty():
        rate, seconds = _percent(record.accuracy), record.seconds
        print(f"{record.method}, seed {record.seed}: {rate}, {seconds:.1f} s", file=sys.stderr)


def _advice_line(line: Line) -> tuple[str, ...]:
    from gcn_lpa.insight.advice import signed

    over = "" if line.over_features is None else signed(line.over_features)
    return line.method, str(line.accuracy), over, signed(line.over_commonest), f"{line.seconds:.1f}"


def _advice_facts(found: Advice) -> list[str]:
    known = found.homophily
    same = f"{known.edges:,} edges have both labels"
    if known.rate is not None and known.chance is not None:
        same += (
            f": {_percent(known.rate)} of them join nodes of one class, by chance it would be {_percent(known.chance)}"
        )
    return [
        f"  homophily  {same}",
        f"  reach      {found.unlabeled:,} nodes without a label, {found.unreachable:,} of them out of reach of any label",
        *(f"  note       {note}" for note in found.notes),
    ]


def _suggestion_line(one: Suggestion) -> tuple[str, ...]:
    return str(one.id), f"{one.score:.3f}", one.guess, _percent(one.probability), f"{one.reach:.2f}", one.why


def _comparison_line(row: Row) -> tuple[str, ...]:
    difference, memory = row.difference, row.memory
    told = ("", "") if difference is None else (str(difference), f"{difference.p_value:.3f}")
    megabytes = "–" if memory is None else f"{memory.peak if memory.gpu_peak is None else memory.gpu_peak:,.0f} MB"
    return row.method, str(row.accuracy), str(row.macro_f1), *told, f"{row.seconds:.1f}", megabytes


def _check_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Each statement with its two sides and whether it holds, and below it what was measured."""
    held, total = 0, 0
    for check in checks:
        sides = f"{_side(check.lhs)} {check.relation} {_side(check.rhs)}"
        yield f"{check.name} [{check.on}]: {'holds' if check.holds else 'DOES NOT HOLD'}"
        yield f"    {sides}    gap {check.gap:.3g}"
        yield from textwrap.wrap(check.assumptions, 110, initial_indent="    ", subsequent_indent="    ")
        held, total = held + check.holds, total + 1
    yield f"\n{held} of {total} hold as measured. For = the gap is |left - right|, for ≤ it is left - right; in both the largest."


def _side(value: float | tuple[float, ...]) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"({', '.join(f'{part:.4g}' for part in value)})"


def _run_lines(trained: TrainedRun) -> list[str]:
    run, recipe, folder = trained.run, trained.plan.recipe, trained.folder
    chosen = "" if run.best.val_accuracy is None else f" (validation {_percent(run.best.val_accuracy)})"
    stopped = "interrupted, " if run.interrupted else ""
    head = f"{trained.graph.name}: {recipe.method}, {stopped}epoch {run.best_epoch} of {len(run.history)}{chosen}"
    kept = [] if folder is None else [f"  kept in {folder}"]
    return [f"{head}, {run.seconds:.1f} s", f"  {_result_line(trained.results)}", *_warning(trained.results), *kept]


def _warning(results: Results) -> list[str]:
    """A line where a model is no better than one that looks at nothing."""
    found = results.scores
    most = 0.0 if found is None else max(one.support for one in found.per_class.values()) / found.num_nodes
    if found is None or most == 1 or found.accuracy > most:
        return []
    return [
        f"  no better than always the most frequent class ({_percent(most)}); `gcn-lpa compare` tries other methods"
    ]


def _result_line(results: Results) -> str:
    found = results.scores
    if found is None:
        return results.note
    spread = f" (folds {', '.join(f'{100 * fold:.1f}' for fold in results.folds)})" if results.folds else ""
    rates = f"accuracy {_percent(found.accuracy)}{spread}, macro-F1 {_percent(found.macro_f1)}"
    return f"{rates} on {found.num_nodes:,} nodes; {results.note}"


def _run_facts(trained: TrainedRun) -> dict[str, Any]:
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
        "out": None if trained.folder is None else str(trained.folder),
    }


def _calibration_lines(found: CalibrationReport) -> list[str]:
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
        f"{found.graph}: {found.method}, accuracy {_percent(found.accuracy)} on {found.num_nodes:,} nodes it was not given",
        f"  temperature  none: {which} are too few to fit one to, it takes {FEWEST}"
        if few
        else f"  temperature  {numbers}, fitted to {which}",
        f"  ECE          {_percent(found.ece_before)} before, {_percent(found.ece_after)} after; a perfectly calibrated "
        f"model would show {_percent(perfect.mean)}, at most {_percent(perfect.high)} in 95 of 100 cases",
        f"  sets, {100 * found.level:g} %   hold the true label of {_percent(found.coverage)}{usual}, "
        f"mean size {found.mean_set_size:.2f} ({sizes})",
        f"  promise      {found.promise}",
    ]


def _confusion_lines(found: Scores) -> Iterable[tuple[str, ...]]:
    names = list(found.per_class)
    for name, row in zip(names, found.confusion, strict=True):
        yield (name, *map(str, row))


def _class_lines(found: Scores) -> Iterable[tuple[str, ...]]:
    for name, one in found.per_class.items():
        yield (name, _percent(one.precision), _percent(one.recall), _percent(one.f1), f"{one.support:,}")


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
    Console(highlight=False, markup=False, soft_wrap=True, width=width).print(table)


def _table1_lines(rows: list[Table1Row]) -> Iterable[tuple[str, ...]]:
    for row in rows:
        yield (row.name, *(_counts(row) if row.available else ("–",) * 4 + ("files not found",)))
        if row.paper is not None:
            yield ("  paper", *_counts(row.paper))


def _counts(row: Table1Row | Counts) -> tuple[str, ...]:
    rate = row.intra_class_edge_rate
    counts = (row.nodes, row.edges, row.features, row.classes)
    return (*(f"{count:,}" for count in counts), "–" if rate is None else f"{100 * rate:.1f} %")


def _info_lines(info: GraphInfo, is_named: bool) -> list[str]:
    known = f"{_percent(info.intra_class_edge_rate_known)} of"
    paper = (
        f"{_percent(info.intra_class_edge_rate)} of edges as the paper counts (no label = first class), {known} those"
    )
    direction = "directed" if info.directed else "undirected"
    sizes = ", ".join(f"{name}: {size:,}" for name, size in info.class_sizes.items())
    classes = f"{info.classes:,} classes" + (f" ({sizes})" if sizes else "")
    return [
        f"{info.name}: {info.nodes:,} nodes, {info.edges:,} {direction} edges, {info.self_loops:,} self-loops",
        f"  features     {info.features:,} ({info.feature_kind}), {info.nonzeros:,} non-zero",
        f"  labels       {info.labeled:,} of {info.nodes:,} nodes, {classes}",
        f"  intra-class  {paper if is_named else f'{known} edges'} between labelled nodes",
        f"  homophily    edge {_score(info.edge_homophily)}, node {_score(info.node_homophily)}, "
        f"adjusted {_score(info.adjusted_homophily)}",
        f"  reach        components {info.components:,}, isolated nodes {info.isolated:,}, "
        f"nodes that no label can reach {info.unreachable:,}",
        *(f"  note         {note}" for note in info.notes),
    ]


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
