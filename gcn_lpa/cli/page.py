"""Commands that make a page or a first folder: init, report."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gcn_lpa.cli.options import AsJson, Data, Device, Overwrite, RunDir, Steps, check_out, command
from gcn_lpa.cli.text import print_json

if TYPE_CHECKING:
    from gcn_lpa.report.page import OpenRun


@command
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to put it; made if it is not there.")],
    as_json: AsJson = False,
) -> None:
    """Write an example of nodes.csv and edges.csv to replace by your own, and a README that explains the columns."""
    from gcn_lpa.cli.data import write_starter

    found = write_starter(folder)
    if as_json:
        return print_json({"files": [str(path) for path in found]})
    print(f"{', '.join(path.name for path in found)} in {folder}; next: gcn-lpa train {folder} --out run --report")


@command
def report(
    run: RunDir,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Else report.html in the run folder.")] = None,
    overwrite: Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train nothing: no rivals, no suspicious labels and edges.")
    ] = False,
    picture: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Draw one picture, --out FILE.png, .svg or .pdf: curve, confusion, map, neighbourhood."
        ),
    ] = None,
    node: Annotated[str | None, typer.Option(metavar="ID", help="The middle of a neighbourhood.")] = None,
    hops: Annotated[int | None, typer.Option(min=1, help="How far a neighbourhood reaches; else 2.")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page on this machine alone, with answers about every node.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0: one that is free.")] = 0,
    data: Data = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write one HTML file about a run: scores, curves, the graph to look at, what looks wrong, what to label next."""
    from gcn_lpa.report.page import OpenRun, write_report
    from gcn_lpa.runs.folder import load_run

    check_out(out, overwrite=overwrite)
    if picture is not None:
        check_picture(picture, out, node, hops)
    elif node is not None or hops is not None:
        raise typer.BadParameter("--node and --hops go with --picture neighbourhood")
    opened = load_run(run, data)
    if serve:
        return serve_page(OpenRun(opened), port, trains=not quick, device=device)
    if picture is not None and out is not None:
        from gcn_lpa.report.pictures import PICTURES

        PICTURES[picture](OpenRun(opened), out, **({} if node is None else {"node": node, "hops": hops or 2}))
        path = out
    else:
        with contextlib.closing(Steps()) as steps:
            path = write_report(opened, out, trains=not quick, device=device, say=steps.say)
    if as_json:
        return print_json({"out": str(path), "bytes": path.stat().st_size})
    print(f"the {'page' if picture is None else picture} is {path}")


def check_picture(picture: str, out: Path | None, node: str | None, hops: int | None) -> None:
    from gcn_lpa.report.pictures import PICTURES

    if picture not in PICTURES:
        raise typer.BadParameter(f"there is no picture {picture!r}; there are {', '.join(PICTURES)}")
    if out is None:
        raise typer.BadParameter("--picture goes with --out FILE, whose ending says as what: .png, .svg or .pdf")
    if (picture == "neighbourhood") != (node is not None) or (hops is not None and node is None):
        raise typer.BadParameter("--node ID (and --hops) goes with neighbourhood, and neighbourhood with --node ID")


def serve_page(subject: OpenRun, port: int, *, trains: bool, device: str) -> None:
    """Serve the page until Ctrl-C."""
    from gcn_lpa.report.page import page_of
    from gcn_lpa.report.server import Answers, AskServer

    with contextlib.closing(Steps()) as steps:
        page = page_of(subject, trains=trains, device=device, live=True, say=steps.say)
    with AskServer(Answers(page, subject), port) as server:
        print(f"{server.url}\nCtrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
