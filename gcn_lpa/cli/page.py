"""Commands that make a page, a picture or a first folder: init, report, picture, ask."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from gcn_lpa.cli.options import AsJson, Data, Device, Overwrite, RunDir, Steps, check_out, command
from gcn_lpa.cli.text import print_json

Quick = Annotated[
    bool, typer.Option("--quick", help="Train nothing: no comparison with rivals, no suspicious labels and edges.")
]


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
    quick: Quick = False,
    data: Data = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write one HTML file about a run: scores, curves, the graph to look at, what looks wrong, what to label next."""
    from gcn_lpa.report.page import write_report

    check_out(out, overwrite=overwrite)
    with contextlib.closing(Steps()) as steps:
        path = write_report(run, out, data=data, trains=not quick, device=device, say=steps.say)
    if as_json:
        return print_json({"out": str(path), "bytes": path.stat().st_size})
    print(f"the page is {path}")


@command
def picture(
    run: RunDir,
    what: Annotated[str, typer.Argument(metavar="curve|confusion|neighbourhood|map", help="What to draw.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The ending says as what: .png, .svg or .pdf.")],
    node: Annotated[str | None, typer.Option(metavar="ID", help="neighbourhood: its middle.")] = None,
    hops: Annotated[int | None, typer.Option(min=1, help="neighbourhood: how far it reaches; else 2.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Draw the training curve of a run, which class is taken for which, what is near a node, or a map of all predictions."""
    from gcn_lpa.report.contents import OpenRun
    from gcn_lpa.report.pictures import PICTURES
    from gcn_lpa.runs.folder import load_run

    if what not in PICTURES:
        raise typer.BadParameter(f"there is no picture {what!r}; there are {', '.join(PICTURES)}")
    if (what == "neighbourhood") != (node is not None) or (hops is not None and node is None):
        raise typer.BadParameter("--node ID (and --hops) goes with neighbourhood, and neighbourhood with --node ID")
    check_out(out, overwrite=overwrite)
    about = {"node": node, "hops": hops or 2} if node is not None else {}
    PICTURES[what](OpenRun(load_run(run, data)), out, **about)
    if as_json:
        return print_json({"out": str(out)})
    print(f"drawn in {out}")


@command
def ask(
    run: RunDir,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in your browser.")] = False,
    data: Data = None,
) -> None:
    """Serve the page of a run on this machine alone, with what-ifs and explanations of every node. Ctrl-C ends it."""
    from gcn_lpa.report.contents import OpenRun
    from gcn_lpa.report.server import Answers, AskServer
    from gcn_lpa.runs.folder import load_run

    with contextlib.closing(Steps()) as steps:
        answers = Answers.of(OpenRun(load_run(run, data)), say=steps.say)
    with AskServer(answers, port) as server:
        print(f"{server.url}\nCtrl-C ends it", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
