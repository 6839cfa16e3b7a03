"""The study of the paper from the command line: `python -m reproduction table2`, or `python3 run.py reproduce table2`.

Every part of the study is a command: it writes a table or figure as Markdown, JSON and pictures. `measure` checks the theorems on
any graph, and `bench` times the engine. torch and its like are imported inside the commands, so that --help is quick.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcn_lpa.cli.options import (
    MANNERS,
    AsJson,
    Data,
    Device,
    Options,
    Overwrite,
    PlainCommand,
    Root,
    Threads,
    check_out,
    load_graph,
)
from gcn_lpa.cli.text import percent, print_json, table_lines

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph
    from gcn_lpa.model import GCNLPA

OUT = Path("build/study")
PARTS = {  # of `reproduce.NAMES`, in the words of --help
    "all": "Every table, figure and claim.",
    "table1": "Statistics of the data sets, beside the paper's.",
    "table2": "Accuracy of all methods on all data sets.",
    "table3": "Share of the labelled nodes that LPA may see, Citeseer.",
    "table4": "The paper's settings, as they are run.",
    "figure1": "Which edges of a toy graph training makes stronger.",
    "figure2": "The karate club, embedded by two layers.",
    "figure3": "Accuracy by the number of LPA iterations, Citeseer.",
    "figure4": "Accuracy by the weight of the LPA loss, Citeseer.",
    "figure5": "Time of a training step by the number of nodes.",
    "figure6": "How a label travels on a graph of five nodes.",
    "figure7": "The karate club, embedded by one to four layers.",
    "table-two-step": "Edges and weights together, or one after the other.",
    "table-edges": "Every edge form, with and without the LPA loss.",
    "table-lpa": "Label propagation alone, along given and learned edges.",
    "table-why": "What separates the text from the authors' code.",
    "theorems": "Both sides of every lemma and theorem, measured.",
    "influence": "From the LPA loss to accuracy, link by link.",
    "claims": "Which claims of the paper hold, by the parts in --out.",
}

app = typer.Typer(
    help="The study of the GCN-LPA paper: its tables, figures and claims, its theorems, and the speed of the engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> int:
    try:
        app(prog_name="python -m reproduction")
    except KeyboardInterrupt:
        return 130
    return 0


@app.callback()
def _top(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only, no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="The traceback of an error, to report it.")] = False,
) -> None:
    MANNERS.quiet, MANNERS.debug = quiet, debug


def reproduce(
    what: str,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this data set; may be repeated. Tables and figures of other data sets are dropped."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this row of table2, table-two-step, table-edges, table-lpa or table-why; may be repeated."),
    ] = None,
    splits: Annotated[int | None, typer.Option(min=1, help="Splits of every cell; without it those of the full study.")] = None,
    protocol: Annotated[str, typer.Option(help="ours, or paper: three repeats.")] = "ours",
    split: Annotated[
        str, typer.Option(help="uniform, or authors: the one split of the authors' code, 10 initialisations.")
    ] = "uniform",
    quick: Annotated[
        bool, typer.Option(help="One split, fewer epochs on the large graphs; the text lists the reductions.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the results and of the finished trainings; results/ has those of the pages."),
    ] = OUT,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; without it as many as fit the device.")] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Only read trainings, those of this code version, from --out."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the trainings, and how many are left.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Only train, and begin nothing after so many minutes; the next call goes on."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="With --plan or --minutes: not this method; may be repeated."),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Make a part of the study and keep it in --out; an interrupted run continues."""
    from reproduction import reproduce as parts
    from reproduction import study

    if protocol not in ("ours", "paper"):
        raise typer.BadParameter(f"protocol is {protocol!r}; it is ours or paper")
    budget = study.Study(
        out,
        splits=splits if splits is not None or protocol == "ours" else 3,
        quick=quick,
        split=split,
        datasets=tuple(name.lower() for name in dataset or study.PAPER_DATASETS),
        methods=tuple(method or ()),
        device=device,
        workers=workers,
        root=None if root is None else str(root),
        report=_say_progress,
        code=code,
    )
    if skip and not plan and minutes is None:
        raise typer.BadParameter("--skip goes with --plan or --minutes: a table needs every one of its rows")
    if plan:
        return _print_plan(parts.plan(what, budget, skip or ()), as_json=as_json)
    if minutes is not None:
        left = parts.train(what, budget, minutes=minutes, skip=skip or ())
        return print_json({"left": left}) if as_json else print(f"{left} trainings are left; the same command goes on")
    found = []
    for exhibit in parts.reproduce(what, budget, on_part=lambda name: print(f"{name} …", file=sys.stderr)):
        found.append({"name": exhibit.name, "title": exhibit.title, "data": exhibit.data, "runs": exhibit.runs})
        if not as_json:
            print(exhibit.markdown())
            print(f"kept in {out / exhibit.name}.md and .json\n", flush=True)
    if as_json:
        print_json(found)


def command_of(part: str) -> Callable[..., None]:
    """`reproduce` of one part, with its options."""

    @functools.wraps(reproduce)
    def run(**options: Any) -> None:
        reproduce(part, **options)

    signature = inspect.signature(reproduce, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "what"]
    run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return run


for _name, _said in PARTS.items():
    app.command(_name, cls=PlainCommand, help=_said)(command_of(_name))


def _print_plan(lines: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        return print_json(lines)
    total = sum(line["cost"] for line in lines) or 1
    shown = [
        (
            *(line["part"], line["dataset"], line["method"], line["recipe"] or ""),
            ", ".join(f"{name} = {value}" for name, value in (line["changes"] or {}).items()),
            *(f"{line['trainings']}", f"{line['left']}", f"{100 * line['cost'] / total:.1f}"),
        )
        for line in lines
    ]
    header = ("part", "data set", "method", "recipe", "changes", "trainings", "left", "% of the time")
    print(*table_lines(header, shown), sep="\n")
    print(f"{sum(line['left'] for line in lines):,} of {sum(line['trainings'] for line in lines):,} trainings are left")


def _say_progress(progress: Any) -> None:
    """One line on stderr that counts the trainings and says how long the rest will take."""
    job = progress.job
    words = f"{progress.done} of {progress.total}: {job['dataset']}, {job['method']}, seed {job['seed']}"
    line = f"{words}, {percent(progress.outcome['test_accuracy'])}, about {progress.seconds_left / 60:.1f} min left"
    if MANNERS.quiet:
        return
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="" if progress.done < progress.total else "\n", file=sys.stderr, flush=True)
    elif progress.done % max(1, progress.total // 20) == 0:
        print(line, file=sys.stderr, flush=True)


@app.command(cls=PlainCommand)
def measure(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME_OR_FOLDER", help="A data set, a folder with nodes.csv and edges.csv, or a run folder."),
    ] = "karate",
    check: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one, such as theorem-4; may be repeated.")
    ] = None,
    train: Annotated[
        bool, typer.Option(help="Train a model first, for the checks of learned edges; a run folder has its own.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the labels, nodes and weights that are drawn.")] = 0,
    data: Data = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Measure both sides of the paper's lemmas and theorems on a graph, and on the graphs where they fail."""
    from reproduction.checks import check_lines
    from reproduction.theorems import LEARNED, check_theorems, known_names

    wanted = known_names(check)
    trains = train and not {*LEARNED}.isdisjoint(wanted)
    graph, model = subject_of(name, root, option, data=data, train=trains, seed=seed)
    checks = check_theorems(graph, wanted, model, seed)
    if as_json:
        return print_json({"graph": graph.name, "seed": seed, "checks": [one.to_dict() for one in checks]})
    print("\n".join(check_lines(checks)))


def subject_of(
    name: str, root: Path | None, options: list[str] | None, *, data: str | None, train: bool, seed: int
) -> tuple[Graph, GCNLPA | None]:
    """The graph, and a GCN-LPA of convolutions: of a run folder, or trained here by the paper's recipe, or else by LAYERS."""
    from gcn_lpa.data.splits import split
    from gcn_lpa.model import GCNLPA, Convolutions
    from gcn_lpa.recipes import LAYERS, PAPER, WITHOUT_FEATURES
    from gcn_lpa.runs.folder import load_run
    from reproduction.training import learn_once

    if (Path(name) / "recipe.json").is_file():
        run = load_run(name, data)
        model = run.trained.model.first[0]
        is_printed = isinstance(model, GCNLPA) and isinstance(model.body, Convolutions)
        return run.graph, model if is_printed else None
    graph = load_graph(name, root, options)
    if not train:
        return graph, None
    recipe = PAPER.get(graph.name, LAYERS if graph.x_kind == "given" else WITHOUT_FEATURES)
    parts = split(graph, seed=seed)
    return graph, learn_once(graph, parts.train, parts.val, recipe, seed=seed).model


@app.command(cls=PlainCommand)
def bench(
    what: Annotated[str, typer.Argument(metavar="epochs|kernels", help="A training step, or one product.")],
    protocol: Annotated[str, typer.Option(help="epochs: work (10 % labelled) or paper (100 labelled nodes, one class).")] = "work",
    classes: Annotated[int, typer.Option(min=1, help="epochs, protocol work: number of classes.")] = 7,
    hubs: Annotated[float, typer.Option(min=0, max=0.99, help="epochs: 0.75 for a power law of degrees, 0 for none.")] = 0.0,
    sizes: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of nodes.")] = "1000,10000,100000",
    repeats: Annotated[int, typer.Option(min=3, help="Steps timed; the median counts.")] = 30,
    largest_rival: Annotated[int | None, typer.Option(help="Largest number of nodes at which the rivals run.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JSON here, and a plot beside it.")] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Time our engine beside PyTorch Geometric and torch's own CSR product, in one run."""
    import torch

    from gcn_lpa.data.files import encode_json, write_output
    from gcn_lpa.engine.devices import choose_device
    from reproduction import kernel_timing, timing, timing_report

    if what not in ("epochs", "kernels"):
        raise typer.BadParameter(f"{what!r} is neither epochs nor kernels")
    check_out(out, overwrite=overwrite)
    nodes = _node_counts(sizes)
    place = str(choose_device(device))
    if threads is not None:
        torch.set_num_threads(threads)

    def say(timing: Any) -> None:
        print(".", end="", file=sys.stderr, flush=True)

    if what == "kernels":
        products = kernel_timing.kernels(nodes, device=place, repeats=repeats, report=say)
        found = timing_report.record("kernels", products, device=place)
        header, lines = timing_report.kernel_table(products)
    else:
        steps = timing.epochs(
            nodes,
            protocol=protocol,
            classes=classes,
            hubs=hubs,
            device=place,
            repeats=repeats,
            largest_rival=largest_rival,
            report=say,
        )
        found = timing_report.epoch_record(steps, protocol=protocol, device=place, hubs=hubs)
        header, lines = timing_report.epoch_table(steps)
    print(file=sys.stderr)
    if out is not None:
        write_output(out, encode_json(found))
        if what == "epochs":
            title = f"One training step, protocol {protocol}, {place}{', hubs' if hubs else ''}"
            timing_report.draw_epochs({title: steps}, out.with_suffix(".png"))
    if as_json:
        return print_json(found)
    print(*table_lines(header, lines), sep="\n")
    if what == "epochs":
        print("\n".join(timing_report.epoch_sentences(steps)))


def _node_counts(sizes: str) -> list[int]:
    """The numbers of nodes in a text such as 1000,1e5."""
    try:
        counts = [int(float(size)) for size in sizes.split(",")]
    except (ValueError, OverflowError):
        counts = []
    if not counts or min(counts) < 1:
        raise typer.BadParameter(f"sizes is {sizes!r}; it takes numbers of nodes, separated by commas")
    return counts
