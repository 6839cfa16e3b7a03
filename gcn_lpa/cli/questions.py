"""Questions to a trained model and to a graph: explain, what-if, audit, compare, advise, suggest; and the page, report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import gcn_lpa
from gcn_lpa.cli.options import (
    AsJson,
    Data,
    Device,
    ExcelSafe,
    Hops,
    Name,
    Options,
    Out,
    Overwrite,
    Root,
    RunDir,
    Threads,
    check_out,
    command,
    graph_words,
    load_graph,
    print_or_write,
    print_warnings,
    recipe_flags,
    show,
    status,
)
from gcn_lpa.cli.text import advice_lines, comparison_lines, percent, suggestion_lines


@command
def explain(
    run: RunDir,
    node: Annotated[str | None, typer.Option(metavar="ID", help="The node to explain.")] = None,
    every: Annotated[bool, typer.Option("--all", help="A table of the nodes that `predict` labels.")] = False,
    top: Annotated[int, typer.Option(min=1, help="--node: voters to list.")] = 10,
    hops: Hops = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="--node: draw it; the ending says as what (.png, .svg, .pdf)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="--all: CSV file; without one, stdout.")] = None,
    overwrite: Overwrite = False,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say why a node has its label: the training labels that voted, along which paths, and whether model and LPA agree."""
    if every == (node is not None):
        raise typer.BadParameter("give either --node ID or --all")
    if (picture is not None and every) or (out is not None and not every):
        raise typer.BadParameter("--picture goes with --node, --out with --all")
    from gcn_lpa.insight.drawing import draw_explanation

    check_out(out, overwrite=overwrite)
    check_out(picture, overwrite=True)
    found = gcn_lpa.load_run(run, data)
    if node is None:
        table = gcn_lpa.explain_all(found.trained, found.graph, nodes=~found.used, hops=hops)
        return print_or_write(table, out, excel_safe, as_json)
    why = gcn_lpa.explain(found.trained, found.graph, node, top=top, hops=hops)
    if picture is not None:
        draw_explanation(why, picture)
    show(as_json, why.to_dict(), [str(why), *([] if picture is None else ["", f"drawn in {picture}"])])


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
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Also train two models, without and with the changes, and compare them.")
    ] = False,
    hops: Hops = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say which predictions would change with other labels or without an edge; without --retrain nothing is trained again.

    An id may hold = or a comma: the text is cut where both sides name something.
    """
    asked = {"--label": label, "--relabel": relabel, "--unlabel": unlabel, "--remove-edge": remove_edge}
    if not any(asked.values()):
        raise typer.BadParameter(f"nothing is asked: give at least one of {', '.join(asked)}")
    found = gcn_lpa.load_run(run, data)
    classes, nodes = set(found.trained.class_names), {str(name) for name in found.graph.node_names}
    answer = gcn_lpa.what_if(
        found.trained,
        found.graph,
        hops=hops,
        retrain=retrain,
        label=_once(cut(one, "=", nodes, classes) for one in label or ()),
        relabel=_once(cut(one, "=", nodes, classes) for one in relabel or ()),
        unlabel=unlabel or (),
        remove_edges=[cut(one, ",", nodes, nodes) for one in remove_edge or ()],
    )
    show(as_json, answer.to_dict(), [str(answer)])


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
    out: Out = None,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the labels, each hidden from a model in turn.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often that is done, with new folds.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Of folds and first weights; without one, that of the run.")] = None,
    overwrite: Overwrite = False,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Say which labels or which edges look wrong, and why. Labels of test nodes are not looked at.

    `what-if --retrain` tries a repair.
    """
    if labels == edges:
        raise typer.BadParameter("audit either --labels or --edges")
    from gcn_lpa.runs.predictions import write_table

    check_out(out, overwrite=overwrite)
    audited = gcn_lpa.load_run(run, data)
    options: dict[str, Any] = {"folds": folds, "repeats": repeats, "device": device, "threads": threads}
    options["seed"] = audited.plan.seed if seed is None else seed
    with status() as say:
        options["on_fit"] = lambda done, total: say(f"training models: {done} of {total}")
        rank: Any = gcn_lpa.audit_labels if labels else gcn_lpa.audit_edges
        found = rank(audited.trained, audited.graph, **options)
    rows = found.findings[: top or (None if as_json or out is not None else 20)]
    facts, lines = {**found.to_dict(), "out": None}, [*map(str, rows), "", found.summary]
    facts["findings"] = [dataclasses.asdict(row) for row in rows] if out is None else []
    if out is not None:
        write_table(out, found.to_frame().head(len(rows)), excel_safe=excel_safe)
        facts["out"], lines = str(out), [f"{len(rows):,} rows in {out}"]
    show(as_json, facts, lines)


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
        str,
        typer.Option(
            help="default, paper or official, of gcn-lpa and gcn-same; with the last two all others as published."
        ),
    ] = "default",
    seed: Annotated[int, typer.Option(help="Of the first split; the next has the next.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON here.")] = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    threads: Threads = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
    changes: dict[str, Any],
) -> None:
    """Train methods on the same splits: mean, 95 % interval, paired differences, time and memory.

    A field of the recipe given as a flag is set for the methods that use it.
    """
    from gcn_lpa.data.files import encode_json, write_output
    from gcn_lpa.data.splits import require_classes

    check_out(out, overwrite=overwrite)
    graph = load_graph(name, root, option)
    require_classes(graph)
    print_warnings(graph.notes, as_json)
    options: dict[str, Any] = {"splits": splits, "seed": seed, "reference": reference, "recipe": recipe}
    options |= {"changes": changes, "device": device, "threads": threads}
    with status() as say:
        options["on_record"] = lambda record: say(f"{record.method}, seed {record.seed}: {percent(record.accuracy)}")
        found = gcn_lpa.compare(graph, [method.strip() for method in methods.split(",")], **options)
    if out is not None:
        write_output(out, encode_json(found.to_dict()))
    show(as_json, found.to_dict(), comparison_lines(found))


@command
def advise(
    name: Name,
    repeats: Annotated[int, typer.Option(min=2, help="Splits of the labelled nodes, the same for all methods.")] = 10,
    recipe: Annotated[str, typer.Option(help="default, paper or official, of gcn-lpa.")] = "default",
    best: Annotated[
        bool, typer.Option("--best", help="Also try the recipe best; it takes several times as long.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the first split and the first weights.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Does the graph help? Compare features alone with methods that read the edges, on your own labels."""
    graph = load_graph(name, root, option)
    print_warnings(graph.notes, as_json)
    options: dict[str, Any] = {"repeats": repeats, "seed": seed, "recipe": recipe, "best": best}
    with status() as say:
        options["on_record"] = lambda record: say(f"{record.method}, seed {record.seed}: {percent(record.accuracy)}")
        found = gcn_lpa.advise(graph, device=device, threads=threads, **options)
    line = found.command(name, graph_words(root, option))
    show(as_json, {**found.to_dict(), "command": line}, advice_lines(found, line))


@command
def suggest(
    run: RunDir,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 20,
    candidates: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ids that may be suggested, one per line; without, all but test nodes."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a CSV file here.")] = None,
    overwrite: Overwrite = False,
    excel_safe: ExcelSafe = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Which nodes to label next: those the model is unsure of and whose label would reach others it is unsure of."""
    from gcn_lpa.insight.suggest import read_candidates, suggestion_table
    from gcn_lpa.runs.predictions import write_table

    check_out(out, overwrite=overwrite)
    asked = gcn_lpa.load_run(run, data)
    allowed = ~asked.split.test if candidates is None else read_candidates(candidates, asked.graph)
    allowed &= ~asked.used
    if not allowed.any():
        why = "has a label or is a test node" if candidates is None else f"of {candidates} has a label"
        raise ValueError(f"no node is left to suggest: every node {why}; --candidates FILE says which may be suggested")
    found = gcn_lpa.suggest(asked.trained, asked.graph, n=n, candidates=allowed)
    table, lines = suggestion_table(found), suggestion_lines(found)
    if len(found) < n:
        lines += ["", f"{len(found):,} of the {n:,} asked for: no other node may be suggested"]
    if out is not None:
        write_table(out, table, excel_safe=excel_safe)
        lines += ["", f"{len(table):,} rows in {out}"]
    show(as_json, table.to_dict("records"), lines)


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
    from gcn_lpa.report.page import OpenRun, page_of
    from gcn_lpa.report.pictures import PICTURES
    from gcn_lpa.report.server import PageServer

    check_out(out, overwrite=overwrite)
    if picture is None and (node is not None or hops is not None):
        raise typer.BadParameter("--node and --hops go with --picture neighbourhood")
    if picture not in (None, *PICTURES):
        raise typer.BadParameter(f"there is no picture {picture!r}; there are {', '.join(PICTURES)}")
    if picture is not None and out is None:
        raise typer.BadParameter("--picture goes with --out FILE, whose ending says as what: .png, .svg or .pdf")
    if (picture == "neighbourhood") != (node is not None) or (hops is not None and node is None):
        raise typer.BadParameter("--node ID (and --hops) goes with neighbourhood, and neighbourhood with --node ID")
    opened = gcn_lpa.load_run(run, data)
    if serve:
        subject = OpenRun(opened)
        with status() as say:
            page = page_of(subject, trains=not quick, device=device, live=True, say=say)
        with PageServer(page, subject, port) as server:
            print(f"{server.url}\nCtrl-C ends it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    if picture is not None and out is not None:
        PICTURES[picture](OpenRun(opened), out, **({} if node is None else {"node": node, "hops": hops or 2}))
        path = out
    else:
        with status() as say:
            path = gcn_lpa.write_report(opened, out, trains=not quick, device=device, say=say)
    facts = {"out": str(path), "bytes": path.stat().st_size}
    show(as_json, facts, [f"the {'page' if picture is None else picture} is {path}"])
