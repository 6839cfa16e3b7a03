"""What every command shares: its common options, errors as one line, progress, and how a graph is named."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_type_hints

import typer

from gcn_lpa.cli.text import VisibleStream, cut_lines, fitted, percent, print_json, run_lines, visible
from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.cut import Cut
    from gcn_lpa.graph import Graph
    from gcn_lpa.runs.folder import TrainedRun
    from gcn_lpa.runs.plan import Plan, Source
    from gcn_lpa.scale.together import Order
    from gcn_lpa.train import Epoch, JobName, Watch


P = ParamSpec("P")
LONGEST = 1000  # characters of a message


@dataclasses.dataclass
class Manners:
    """How every command behaves: the options before its name, as in `gcn-lpa --quiet train …`."""

    quiet: bool = False
    debug: bool = False


MANNERS = Manners()
app = typer.Typer(
    help="Label the nodes of a graph: graph convolution and label propagation in one model (GCN-LPA).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

MORE, FIELDS = "More options", "Fields of the recipe"  # headings of `train --help`
more = functools.partial(typer.Option, rich_help_panel=MORE)

NAME_HELP = "A data set; a folder with nodes.csv and edges.csv; a file, or an address in a database, that lists edges."
NAME = typer.Argument(metavar="NAME_OR_FOLDER", help=NAME_HELP)
Name = Annotated[str, NAME]
MaybeName = Annotated[str | None, NAME]
Root = Annotated[Path | None, more(help="Folder with the files of the named data sets.")]
OPTION_HELP = "How to read or make the graph, e.g. -o label=group, -o n=1000."
Options = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help=OPTION_HELP)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A field of the recipe, as in train.")]
Method = Annotated[str | None, more(help="Which model; gcn-lpa unless the recipe says otherwise.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
DATA_HELP = "Where the graph of the run is now, if not where it was: a path, or a database such as sqlite:///new.db."
Data = Annotated[str | None, typer.Option(metavar="PATH", help=DATA_HELP)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, more(min=1, help="CPU threads.")]
POSITIVE_HELP = "The class to rank; else the rarer of two."
Positive = Annotated[str | None, typer.Option(metavar="CLASS", help=POSITIVE_HELP)]
METRIC_HELP = (
    "The score that counts: accuracy, balanced_accuracy, macro_f1, roc_auc, average_precision, log_loss or brier. Else "
    "accuracy, or average_precision where one of two classes is rare."
)
Metric = Annotated[str | None, typer.Option(metavar="NAME", help=METRIC_HELP)]
Hops = Annotated[int | None, typer.Option(min=1, help="How far a label travels; else as in the recipe.")]
OUT_HELP = "A file, .csv or .parquet, or a new table, sqlite:///shop.db?table=NAME; without it, stdout."
Out = Annotated[str | None, typer.Option(metavar="FILE", help=OUT_HELP)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")]
PICTURE_ENDINGS = (".png", ".svg", ".pdf")
ENDINGS_HELP = ", ".join(PICTURE_ENDINGS)
ExcelSafe = Annotated[bool, typer.Option(help="Put a ' before text that a spreadsheet would run as a formula.")]


def check_out(*files: Path | str | None, overwrite: bool) -> None:
    """Refuse before the work what could not be written after it, and the files that a run is read from."""
    from gcn_lpa.data.checks import is_address
    from gcn_lpa.data.files import FileError, check_output
    from gcn_lpa.runs import storage

    for file in files:
        if file is None:
            continue
        if is_address(file):
            from gcn_lpa.data.databases import check_new_table

            check_new_table(str(file))
            continue
        check_output(file, overwrite=overwrite)
        target, listed = Path(file).resolve(), dict[str, Any]()
        with contextlib.suppress(FileError):  # another program's manifest.json
            listed = storage.listed(target.parent)
        if listed and target.name in {storage.MANIFEST, *listed} - {*storage.OUTPUTS}:
            raise ValueError(f"{file} is a file of the run {target.parent}, which needs it; choose another file")


def check_picture(file: Path | None) -> None:
    """Refuse a picture whose ending does not say as what to draw it."""
    if file is not None and file.suffix.lower() not in PICTURE_ENDINGS:
        raise typer.BadParameter(f"--picture {file}: a picture ends in {', '.join(PICTURE_ENDINGS)}")


def stray_options(context: typer.Context, *used: str) -> list[str]:
    """The options of a command line that are not among the parameters `used`."""
    source = context.get_parameter_source
    others = [option for option in context.command.params if option.name not in used]
    sources = [(option.opts[0], source(str(option.name))) for option in others]
    return [name for name, given in sources if given is not None and given.name == "COMMANDLINE"]


class PlainCommand(typer.core.TyperCommand):
    """A command whose failures are one line on stderr, and whose --help lists the options that people use first by themselves."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that a user can put right ends the program with one line.

        torch, which every command needs, is imported here, and the garbage collector works again that `main` has switched off:
        imports make a million objects, nearly all of which stay. What is frozen is not walked through again.
        """
        try:
            import torch  # noqa: F401

            if not gc.isenabled():
                gc.freeze()
                gc.enable()
            with contextlib.redirect_stdout(VisibleStream(sys.stdout)):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends quietly
        except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
            message = out_of_memory(error)
            if MANNERS.debug or (message is None and isinstance(error, RuntimeError)):
                raise  # a RuntimeError about anything but memory is a mistake of ours
            if message is None and isinstance(error, OSError) and error.filename is not None and error.strerror:
                message = f"{error.filename}: {error.strerror}"
            message = " ".join((message or str(error)).split())
            message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
            print(f"gcn-lpa: {visible(message)}", file=sys.stderr)
            raise typer.Exit(1) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


command = app.command(cls=PlainCommand)
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def out_of_memory(error: Exception) -> str | None:
    """What to say of an error of torch, CUDA or NumPy that is about memory: the size asked for and what would help."""
    text = str(error)
    if not isinstance(error, MemoryError) and not re.search("can't allocate memory|not enough memory|out of memory", text):
        return None
    needed = ""
    if found := re.search(rf"(?:tried|unable) to allocate ([\d.]+) ({'|'.join(UNITS)})", text, re.IGNORECASE):
        size, unit = float(found[1]), UNITS.index(found[2])
        while size >= 1024 and unit < len(UNITS) - 1:  # torch counts in bytes
            size, unit = size / 1024, unit + 1
        needed = f" for {size:.3g} {UNITS[unit]} more"
    if "CUDA" in text:
        return f"the GPU has no memory{needed}; a smaller --hidden, fewer feature columns or --device cpu would help"
    return f"there is no memory{needed}; a smaller --hidden or fewer feature columns would help"


def recipe_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each field of `Recipe`; those that are used arrive in its argument `changes`."""
    fields = [spec for spec in dataclasses.fields(Recipe) if spec.name not in ("method", "origin")]
    hints = get_type_hints(Recipe)

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        flags = {spec.name: arguments.pop(spec.name) for spec in fields}
        changes = {name: value for name, value in flags.items() if value is not None}
        for spec in fields:  # before a graph is read
            if spec.name == "edges" and is_table(changes.get("edges")):
                continue  # of `train`: the table of edges
            if (choices := spec.metadata["choices"]) and changes.get(spec.name, choices[0]) not in choices:
                raise typer.BadParameter(f"{spec.name} is {changes[spec.name]!r}; it is one of {', '.join(choices)}")
        function(**arguments, changes=changes)

    signature = inspect.signature(function, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "changes"]
    for spec in fields:
        metavar = "|".join(spec.metadata["choices"]) or None
        option = typer.Option(help=spec.metadata["help"], metavar=metavar, rich_help_panel=FIELDS)
        hint: Any = Annotated[hints[spec.name] | None, option]
        parameters.append(inspect.Parameter(spec.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def is_table(name: str | None) -> bool:
    """Whether --edges names a table, a file or an address in a database, and no edge form."""
    from gcn_lpa.data.checks import is_address

    return name is not None and (is_address(name) or bool(Path(name).suffix))


def named_tables(
    name: str | None, nodes: str | None, changes: dict[str, Any], option: list[str] | None
) -> tuple[str | None, list[str] | None]:
    """The name of a graph and the options of reading it, which --nodes and --edges may give."""
    if is_table(changes.get("edges")):
        if name is not None:
            raise typer.BadParameter(f"--edges names a table, and so does {name}: give one of them")
        name = changes.pop("edges")
    if nodes is None:
        return name, option
    if name is None:
        raise typer.BadParameter("--nodes names the table of nodes; --edges names that of edges, a file or an address")
    return name, [f"nodes={nodes}", *(option or ())]


def source_of(name: str, root: Path | None, options: Iterable[str] | None) -> Source:
    """The graph that a command names; `options` are KEY=VALUE of the data set, or of `read_csv`."""
    from gcn_lpa.data.datasets import reading_options
    from gcn_lpa.runs.plan import Source

    types = {key: type(default) for key, default in reading_options(name).items() if key not in ("columns", "edge_functions")}
    return Source(name, None if root is None else str(root), _typed(options, types, "KEY=VALUE with a key of"))


def load_graph(name: str, root: Path | None, options: Iterable[str] | None) -> Graph:
    return source_of(name, root, options).load()


def graph_words(root: Path | None, options: Iterable[str] | None) -> list[str]:
    """The words of a command line that name the same graph again, after its name."""
    words = [] if root is None else ["--root", str(root)]
    return words + [word for option in options or () for word in ("-o", option)]


def recipe_fields(settings: Iterable[str] | None) -> dict[str, Any]:
    """Settings NAME=VALUE as fields of a recipe, with their types."""
    types = {name: hint if isinstance(hint, type) else float for name, hint in get_type_hints(Recipe).items()}
    del types["origin"]
    return _typed(settings, types, "NAME=VALUE with a field of the recipe")


COLUMNS = ("id", "label", "source", "target", "weight", "relation", "time")  # options of reading that name one
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _typed(texts: Iterable[str] | None, types: Mapping[str, type], what: str) -> dict[str, Any]:
    """Values by key, from texts KEY=VALUE; several unknown labels are parted by commas."""
    from gcn_lpa.data.checks import meant

    chosen: dict[str, Any] = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not separator and key in types:
            raise typer.BadParameter(f"{key!r} is not {what.split()[0]}: write {key}={'COLUMN' if key in COLUMNS else 'VALUE'}")
        if key not in types:
            raise typer.BadParameter(f"{text!r} is not {what}: {', '.join(types) or 'none'}{meant(key, types)}")
        try:
            if types[key] is bool:
                chosen[key] = TRUTHS[value.lower()]
            elif types[key] in (int, float):
                chosen[key] = types[key](value)
            else:
                chosen[key] = value.split(",") if key == "unknown" and "," in value else value
        except (KeyError, ValueError):
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}[types[key]]
            raise typer.BadParameter(f"{key} is {value!r}; it takes {wanted}") from None
    return chosen


def show(as_json: bool, facts: Any, lines: Iterable[str]) -> None:
    """Print a result: its facts as JSON, or its lines."""
    print_json(facts) if as_json else print(*fitted(lines), sep="\n")


def print_run(trained: TrainedRun, as_json: bool, start: float, *, has_page: bool = False) -> None:
    """Print the result of a training and the time of all its stages since `start`; an interrupted one ends with 130."""
    run, seconds = trained.run, time.perf_counter() - start
    facts = {
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
        "total_seconds": seconds,
    }
    page = f"  labels in {trained.folder}/predictions.csv, the page is {trained.folder}/report.html"
    show(as_json, facts, [*run_lines(trained, seconds), *([page] if has_page and not run.interrupted else [])])
    if run.interrupted:
        raise typer.Exit(130)


def print_or_write(table: Any, out: Path | str | None, excel_safe: bool, as_json: bool, cut: Cut | None = None) -> None:
    """Give a DataFrame as CSV or JSON on stdout, or as a CSV file and a word about it; and what to expect of a cut in it."""
    from gcn_lpa.runs.predictions import table_text, write_table

    if out is not None:
        write_table(out, table, excel_safe=excel_safe)
        by_status = table["status"].value_counts().to_dict() if "status" in table else {}
        parts = "".join(f", {count:,} {status}" for status, count in by_status.items())
        facts: dict[str, Any] = {"out": str(out), "rows": len(table), "status": by_status}
        facts |= {} if cut is None else {"cut": dataclasses.asdict(cut)}
        print_json(facts) if as_json else print(f"{len(table):,} rows{parts} in {out}", *cut_lines(cut), sep="\n")
    elif as_json:
        records = records_of(table)
        print_json(records if cut is None else {"cut": dataclasses.asdict(cut), "predictions": records})
    else:
        stdout: Any = sys.stdout  # a table that is piped on stays as it is, with its control characters
        file = stdout if stdout.isatty() else getattr(stdout, "stream", stdout)
        print(table_text(table, excel_safe=excel_safe), end="", file=file)
        if cut is not None and not MANNERS.quiet:
            print(*cut_lines(cut), sep="\n", file=sys.stderr)


def records_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table for JSON, which knows no NaN."""
    records: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return records


def print_warnings(notes: Iterable[str], as_json: bool) -> None:
    """Print on stderr those of the notes on a graph that are warnings."""
    from gcn_lpa.data.describe import warnings_in

    for note in warnings_in(notes) if not as_json and not MANNERS.quiet else ():
        print(f"gcn-lpa: {visible(note[:LONGEST])}", file=sys.stderr)


def print_room(graph: Graph, recipe: Recipe, device: str) -> None:
    """Print on stderr how much memory a training takes, if that is much; too little memory is an error."""
    from gcn_lpa.engine.devices import choose_device
    from gcn_lpa.scale.planner import MUCH, require_room

    room = require_room(graph, recipe, choose_device(device))
    if room is not None and room.needed >= MUCH and not MANNERS.quiet:
        print(f"gcn-lpa: {room}", file=sys.stderr)


TOLD = 1e6  # bytes of other ranks from which on they are worth a line


def print_received(order: Order) -> None:
    """Print on stderr how many bytes a rank receives of the others; what is wrong with an order, training says."""
    from gcn_lpa.scale.partition import read_facts
    from gcn_lpa.scale.planner import Size, gigabytes, received

    with contextlib.suppress(ValueError):
        facts = read_facts(order.folder)
        halo, rows, entries = max(zip(facts.halos, facts.rows, facts.entries, strict=True))
        is_bare = facts.x_kind == "identity"
        columns = rows if is_bare else facts.num_columns
        size = Size(rows, entries + rows, columns, len(facts.known), rows if is_bare else None, facts.directed, halo=halo)
        epochs, once = received(size, order.plan(facts).recipe)
        most = max(epochs.values(), default=0.0)
        if most + once >= TOLD and not MANNERS.quiet:
            each = f"up to {gigabytes(most)} in an epoch and {gigabytes(once)} once"
            print(f"gcn-lpa: each of {facts.parts} ranks receives {each} of the others", file=sys.stderr)


def print_forecast(graph: Graph, plan: Plan, device: str, threads: int | None, *, is_default: bool) -> None:
    """Print on stderr how long a training on a CPU will take, if that is long, and how long the quick recipe would."""
    from gcn_lpa.engine.devices import choose_device, num_cpu_threads
    from gcn_lpa.recipes import choose_recipe
    from gcn_lpa.scale.forecast import LONG, TINY, duration, forecast

    is_tiny = graph.num_nodes + graph.adjacency.num_entries < TINY
    if MANNERS.quiet or is_tiny or choose_device(device).type != "cpu":
        return
    how: dict[str, Any] = {"by_folds": plan.split is None, "workers": threads or num_cpu_threads()}
    if (found := forecast(graph, plan.recipe, **how)) < LONG:
        return
    line = f"training will take about {duration(found)}"
    if plan.minutes and 60 * plan.minutes < found:
        line += f"; --minutes {plan.minutes:g} leaves out the members that it has no time for"
    elif is_default and (less := forecast(graph, choose_recipe(graph, graph.labeled, "quick"), **how)) < found / 2:
        line += f", with --quick about {duration(less)}"
    columns = graph.with_type_column().edge_columns if plan.recipe.edge_weights else None
    if columns is not None and columns.functions.alone():
        line += "; if edges of one value tell more without the others, a recipe for these alone"
    print(f"gcn-lpa: {line}", file=sys.stderr)


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done, in one line on stderr where that is a terminal."""
    shows = sys.stderr.isatty() and not MANNERS.quiet

    def say(text: str) -> None:
        if shows:
            print(f"\r\033[K{text} …", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


USUAL_EPOCHS = 300  # of a training whose patience ends it
SOON = 3.0  # seconds after the first epoch until the time left is estimated: the first compiles and reads
LOG_EVERY = 30.0  # seconds between lines, where stderr is no terminal


@contextlib.contextmanager
def progress() -> Iterator[Watch]:
    """The epochs of all models that the command trains: a bar on stderr, at most 80 columns wide, or a line now and then where that
    is no terminal.
    """
    from gcn_lpa.train import Watch

    if MANNERS.quiet:
        yield Watch()
        return
    bar = None
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        stage, state = TextColumn("{task.fields[stage]}"), TextColumn("{task.fields[state]}{task.fields[left]}")
        columns = stage, BarColumn(12), state
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task("", total=None, stage="", state="", left="")
    with bar or contextlib.nullcontext():
        planned: dict[JobName, int] = {}  # epochs of each model
        done: dict[JobName, int] = {}
        before = 0  # epochs of earlier trainings of the command, whose models have the same names
        first: tuple[float, int] | None = None  # when the first epoch was done, and how many were
        said = time.monotonic()

        def on_plan(names: Iterable[JobName]) -> None:
            nonlocal before
            before += sum(planned.values())
            planned.clear()
            done.clear()
            planned.update({name: min(name.epochs, USUAL_EPOCHS) for name in names})
            if bar is not None:
                bar.update(bar.task_ids[0], total=before + sum(planned.values()))

        def advance(name: JobName, epoch: int, state: str = "") -> None:
            nonlocal first, said
            done[name] = min(epoch, planned[name])
            finished, total, now = before + sum(done.values()), before + sum(planned.values()), time.monotonic()
            first = first or (now, finished)
            left = time_left(now - first[0], finished - first[1], total - finished)
            stage = f"{name.stage} {name.member}".strip()
            if bar is not None:
                words: dict[str, Any] = {"stage": stage, "left": left, **({"state": state} if state else {})}
                bar.update(bar.task_ids[0], completed=finished, **words)
            elif now - said >= LOG_EVERY:
                said = now
                print(f"gcn-lpa: {stage} {state}, {finished:,} of {total:,} epochs{left}", file=sys.stderr, flush=True)

        def on_epoch(name: JobName, epoch: Epoch) -> None:
            loss = "" if epoch.loss is None else f"loss {epoch.loss:.3g} "
            accuracy = "" if epoch.val_accuracy is None else f"validation {percent(epoch.val_accuracy)} "
            advance(name, epoch.epoch, f"{epoch.epoch}/{name.epochs} {loss}{accuracy}".strip())

        yield Watch(on_plan=on_plan, on_epoch=on_epoch, on_done=lambda name: advance(name, planned[name]))


def time_left(seconds: float, done: int, left: int) -> str:
    """About how long the epochs that are left take, after `done` of them took so many seconds; empty where it is too soon."""
    from gcn_lpa.scale.forecast import duration

    return f", {duration(seconds / done * left)} left" if seconds >= SOON and done and left else ""
