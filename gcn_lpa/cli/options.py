"""What every command shares: the options they have in common, errors as one line, progress, and how a graph is named."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_type_hints

import typer

from gcn_lpa.cli.text import VisibleStream, percent, print_json, run_facts, run_lines, visible
from gcn_lpa.recipes import Recipe

if TYPE_CHECKING:
    from gcn_lpa.epochs import Epoch, JobName, Watch
    from gcn_lpa.graph import Graph
    from gcn_lpa.insight.compare import Record
    from gcn_lpa.runs.folder import TrainedRun


P = ParamSpec("P")
LONGEST = 1000  # characters of a message


@dataclasses.dataclass
class Manners:
    """How the command behaves, as said before its name: `gcn-lpa --quiet train …`."""

    quiet: bool = False
    debug: bool = False

    @property
    def shows_progress(self) -> bool:
        return sys.stderr.isatty() and not self.quiet


MANNERS = Manners()

COMMANDS = (  # in the order of `--help`
    *("init", "info", "train", "predict", "report", "evaluate", "calibrate", "explain", "what-if", "audit", "suggest"),
    *("advise", "compare", "tune", "edges", "plan", "partition", "demo"),
)


class InOrder(typer.core.TyperGroup):
    """The commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=COMMANDS.index)


app = typer.Typer(
    cls=InOrder,
    help="Label the nodes of a graph: graph convolution and label propagation in one model (GCN-LPA).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

MORE, FIELDS = "More options", "Fields of the recipe"  # headings of `train --help`

Name = Annotated[
    str, typer.Argument(metavar="NAME_OR_FOLDER", help="A data set, or a folder with nodes.csv and edges.csv.")
]
Root = Annotated[Path | None, typer.Option(help="Folder with the files of the named data sets.", rich_help_panel=MORE)]
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
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", rich_help_panel=MORE)]
SetScore = Annotated[str, typer.Option(metavar="lac|aps", help="Label sets: smallest on average, or adaptive.")]
ExcelSafe = Annotated[bool, typer.Option(help="Put a ' before text that a spreadsheet would run as a formula.")]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")]


def check_out(*files: Path | None, overwrite: bool) -> None:
    """Refuse before the work what could not be written after it."""
    from gcn_lpa.data.files import check_output

    for file in files:
        if file is not None:
            check_output(file, overwrite=overwrite)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function a command whose failures are one line on stderr."""
    return app.command(cls=UnderHeadings)(one_line_errors(function))


class UnderHeadings(typer.core.TyperCommand):
    """A command whose --help has the options that people use first under a heading of their own."""

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


def one_line_errors(function: Callable[P, None]) -> Callable[P, None]:
    """The function, but what a user can put right is said in one line on stderr and ends the program."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _import_torch()
            with contextlib.redirect_stdout(VisibleStream(sys.stdout)):
                function(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends quietly
        except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
            if MANNERS.debug:
                raise
            message = out_of_memory(error)
            if message is None and isinstance(error, RuntimeError):
                raise  # a mistake of ours
            message = message or " ".join(_said(error).split())
            message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
            print(f"gcn-lpa: {visible(message)}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


def _said(error: Exception) -> str:
    """The message of an error; one of the system begins with the file that it is about."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _import_torch() -> None:
    """Import torch, which every command needs, and let the garbage collector work that `main` has switched off.

    Imports make a million objects, and nearly all of them stay. Walking through them on the way, and once more at the end,
    takes half as long as the imports; what is frozen is not walked through again.
    """
    import torch  # noqa: F401

    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def out_of_memory(error: Exception) -> str | None:
    """What to say of an error of torch, CUDA or NumPy that is about memory: the size asked for and what would help."""
    text = str(error)
    if not isinstance(error, MemoryError) and not re.search(
        "can't allocate memory|not enough memory|out of memory", text
    ):
        return None
    found = re.search(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", text, re.IGNORECASE)
    size = "" if found is None else f" for {_size(*found.groups())} more"
    if "CUDA" in text:
        return f"the GPU has no memory{size}; a smaller --hidden, fewer feature columns or --device cpu would help"
    return f"there is no memory{size}; a smaller --hidden or fewer feature columns would help"


def _size(number: str, unit: str) -> str:
    """A size as torch ("4096 bytes") or NumPy ("1.50 GiB") writes it, in the unit that a person would choose."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    size, place = float(number), units.index(unit) if unit in units else 0
    while size >= 1024 and place < len(units) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.3g} {units[place]}"


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
                typer.Option(
                    help=spec.metadata["help"],
                    metavar="|".join(spec.metadata["choices"]) or None,
                    rich_help_panel=FIELDS,
                ),
            ],
        )
        for spec in fields
    ]
    run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return run


def print_run(trained: TrainedRun, as_json: bool, start: float) -> None:
    """Say what a training gave, and the time of all its stages since `start`; an interrupted one ends with 130."""
    seconds = time.perf_counter() - start
    if as_json:
        print_json({**run_facts(trained), "total_seconds": seconds})
    else:
        print("\n".join(run_lines(trained, seconds)))
    if trained.run.interrupted:
        raise typer.Exit(130)


def print_or_write(table: Any, out: Path | None, excel_safe: bool, as_json: bool) -> None:
    """Give a DataFrame as CSV or JSON on stdout, or as a CSV file and a word about it."""
    from gcn_lpa.runs.predictions import table_text, write_table

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
        stdout: Any = sys.stdout
        file = (
            stdout if stdout.isatty() else getattr(stdout, "stream", stdout)
        )  # a table that is piped on stays as it is
        print(table_text(table, excel_safe=excel_safe), end="", file=file)


@contextlib.contextmanager
def progress() -> Iterator[Watch]:
    """A bar on stderr where that is a terminal.

    One bar, at most 80 columns wide, for all models that the command trains; several may be under way.
    """
    from gcn_lpa.epochs import Watch

    if not MANNERS.shows_progress:
        yield Watch()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    forecast = Forecast()
    columns = TextColumn("{task.fields[stage]}"), BarColumn(12), TextColumn("{task.fields[state]}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, stage="", state="")

        def on_epoch(name: JobName, epoch: Epoch) -> None:
            forecast.step(name, epoch.seconds)
            loss = "" if epoch.loss is None else f"loss {epoch.loss:.3g} "
            accuracy = "" if epoch.val_accuracy is None else f"validation {percent(epoch.val_accuracy)} "
            state = f"{epoch.epoch}/{name.epochs} {loss}{accuracy}{clock(forecast.left)} left"
            stage = f"{name.stage} {name.member}".strip()
            bar.update(task, completed=forecast.share, stage=stage, state=state)

        yield Watch(on_plan=forecast.planned.extend, on_epoch=on_epoch, on_done=forecast.done.add)


USUAL_EPOCHS = 300  # that a training takes before its patience is over, where none has ended yet


class Forecast:
    """How long the models of a command will still take: all of them, not only those under way."""

    def __init__(self) -> None:
        self.planned: list[JobName] = []
        self.epochs: dict[JobName, int] = {}
        self.seconds: dict[JobName, float] = {}
        self.done: set[JobName] = set()

    def step(self, name: JobName, seconds: float) -> None:
        """A model has one more epoch."""
        self.epochs[name] = self.epochs.get(name, 0) + 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @property
    def left(self) -> float:
        """Seconds, if as many models are trained at a time as now."""
        running = [name for name in self.seconds if name not in self.done]
        waiting = [name for name in self.planned if name not in self.seconds and name not in self.done]
        ahead = sum(max(0.0, self.whole(name) - self.seconds[name]) for name in running)
        return (ahead + sum(map(self.whole, waiting))) / max(1, len(running))

    @property
    def share(self) -> float:
        worked, at_a_time = sum(self.seconds.values()), max(1, len(self.seconds) - len(self.done))
        return worked / max(worked + self.left * at_a_time, 1e-9)

    def whole(self, name: JobName) -> float:
        """The seconds that a model takes: as the others of its member, or by its epochs so far, or as all on average."""
        ended = [self.seconds[other] for other in self.done if other in self.seconds and other.member == name.member]
        if ended:
            return sum(ended) / len(ended)
        begun = [other for other in self.seconds if other.member == name.member]
        if begun:
            each = sum(self.seconds[other] for other in begun) / sum(self.epochs[other] for other in begun)
            return each * min(name.epochs, USUAL_EPOCHS)
        others = [self.whole(other) for other in self.seconds]
        return sum(others) / max(1, len(others))


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def load_graph(name: str, root: Path | None, options: Iterable[str] | None) -> Graph:
    """The graph a command is about."""
    from gcn_lpa.runs.plan import Source

    return Source(name, None if root is None else str(root), reading(name, options)).load()


def print_warnings(notes: Iterable[str], as_json: bool) -> None:
    """Print on stderr those of the notes on a graph that are warnings."""
    from gcn_lpa.data.describe import warnings_in

    for note in warnings_in(notes) if not as_json and not MANNERS.quiet else ():
        print(f"gcn-lpa: {visible(note[:LONGEST])}", file=sys.stderr)


def print_room(graph: Graph, recipe: Recipe, device: str) -> None:
    """Say on stderr how much memory a training takes, if that is much; where there is not enough, the training itself says so."""
    from gcn_lpa.engine.devices import choose_device
    from gcn_lpa.scale.planner import MUCH, room_for

    room = room_for(graph, recipe, choose_device(device))
    if room is not None and room.is_enough and room.needed >= MUCH and not MANNERS.quiet:
        print(f"gcn-lpa: {room}", file=sys.stderr)


def reading(name: str, options: Iterable[str] | None) -> dict[str, Any]:
    """Options KEY=VALUE of a data set, or of `read_csv`, with their types."""
    from gcn_lpa.data.checks import meant
    from gcn_lpa.data.datasets import reading_options

    known = {key: default for key, default in reading_options(name).items() if key != "columns"}
    chosen: dict[str, Any] = {}
    for option in options or ():
        key, separator, value = option.partition("=")
        if not separator or key not in known:
            keys = f"{', '.join(known) or 'none'}{meant(key, known)}"
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE with a key of: {keys}")
        chosen[key] = _parse(key, value, known[key])
    return chosen


def recipe_fields(settings: Iterable[str] | None) -> dict[str, Any]:
    """Settings NAME=VALUE as fields of a recipe, with their types."""
    from gcn_lpa.data.checks import meant

    known = {spec.name: spec.default for spec in dataclasses.fields(Recipe) if spec.name != "origin"}
    chosen: dict[str, Any] = {}
    for setting in settings or ():
        name, separator, value = setting.partition("=")
        if not separator or name not in known:
            names = f"{', '.join(known)}{meant(name, known)}"
            raise typer.BadParameter(f"{setting!r} is not NAME=VALUE with a field of the recipe: {names}")
        chosen[name] = _parse(name, value, known[name])
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


def say_record(record: Record) -> None:
    """One result of a comparison, on stderr where that is a terminal."""
    if MANNERS.shows_progress:
        rate, seconds = percent(record.accuracy), record.seconds
        print(f"{record.method}, seed {record.seed}: {rate}, {seconds:.1f} s", file=sys.stderr)


class Steps:
    """Says on stderr, where that is a terminal, what is being done."""

    def __init__(self) -> None:
        self.shows = MANNERS.shows_progress

    def say(self, text: str) -> None:
        if self.shows:
            print(f"\r\033[K{text} …", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
