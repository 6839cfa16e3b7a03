"""The command line. Each command is a few lines over a function anyone can call from Python.

Results go to stdout, as text or with --json; everything else to stderr. Exit codes: 0 done, 1 it failed (one line says
why), 2 mistyped, 130 interrupted. torch and its like are imported inside the commands, so that --help is quick.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

if TYPE_CHECKING:
    from gcn_lpa.data import Counts, Table1Row
    from gcn_lpa.graph import Graph, GraphInfo

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
            print(f"gcn-lpa: {message}", file=sys.stderr)
            raise typer.Exit(1) from None

    return app.command()(run)


@command
def datasets(root: Root = None, as_json: AsJson = False) -> None:
    """Print the paper's Table 1 with our counts beside the paper's, and the other data sets there are."""
    from gcn_lpa.data import DATASETS, table1

    rows = table1(root, names=DATASETS)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        print_table(("", "nodes", "edges", "features", "classes", "intra-class"), _table1_lines(rows))


@command
def info(name: Name, root: Root = None, option: Options = None, as_json: AsJson = False) -> None:
    """Describe a graph: sizes, classes, homophily, components, and the nodes no label can reach."""
    from gcn_lpa.graph import describe

    described = describe(load_graph(name, root, option))
    if as_json:
        print_json(dataclasses.asdict(described))
    else:
        print("\n".join(_info_lines(described)))


@command
def demo() -> None:
    """Show the graph of the handwritten digits, which come with scikit-learn."""
    from gcn_lpa.data import load
    from gcn_lpa.graph import describe, split

    graph = load("digits")
    print("\n".join(_info_lines(describe(graph))))
    print(f"\n{split(graph, seed=0)}")


def load_graph(name: str, root: Path | None, options: Iterable[str] | None) -> Graph:
    """The graph a command is about; `options` are KEY=VALUE, of the data set or of `read_csv`."""
    from gcn_lpa.data import load, reading_options

    known = reading_options(name)
    chosen: dict[str, Any] = {}
    for option in options or ():
        key, separator, value = option.partition("=")
        if not separator or key not in known:
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE with a key of: {', '.join(known) or 'none'}")
        chosen[key] = _parse(key, value, known[key])
    return load(name, root, **chosen)


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
    return value.split(",") if key in ("features", "unknown") and "," in value else value


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
    Console(highlight=False, markup=False, soft_wrap=True).print(table)


def _table1_lines(rows: list[Table1Row]) -> Iterable[tuple[str, ...]]:
    for row in rows:
        yield (row.name, *(_counts(row) if row.available else ("–",) * 4 + ("files not found",)))
        if row.paper is not None:
            yield ("  paper", *_counts(row.paper))


def _counts(row: Table1Row | Counts) -> tuple[str, ...]:
    rate = row.intra_class_edge_rate
    counts = (row.nodes, row.edges, row.features, row.classes)
    return (*(f"{count:,}" for count in counts), "–" if rate is None else f"{100 * rate:.1f} %")


def _info_lines(info: GraphInfo) -> list[str]:
    direction = "directed" if info.directed else "undirected"
    sizes = ", ".join(f"{name}: {size:,}" for name, size in info.class_sizes.items())
    classes = f"{info.classes:,} classes" + (f" ({sizes})" if sizes else "")
    return [
        f"{info.name}: {info.nodes:,} nodes, {info.edges:,} {direction} edges, {info.self_loops:,} self-loops",
        f"  features     {info.features:,} ({info.feature_kind}), {info.nonzeros:,} non-zero",
        f"  labels       {info.labeled:,} of {info.nodes:,} nodes, {classes}",
        f"  intra-class  {_percent(info.intra_class_edge_rate)} of edges as the paper counts (no label = first class), "
        f"{_percent(info.intra_class_edge_rate_known)} of those between labelled nodes",
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
