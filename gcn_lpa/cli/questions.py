"""Questions to a run and to a graph: report, evaluate, explain, what-if, audit, suggest, advise, compare."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

import gcn_lpa
from gcn_lpa.cli import options, text

if TYPE_CHECKING:
    from gcn_lpa.insight.advise import Suggestion


@options.command
def report(
    run: options.RunDir,
    out: Annotated[Path | None, Option(metavar="FILE", help="Else report.html in the run folder.")] = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[bool, Option("--quick", help="Train nothing: no rivals, nothing suspicious.")] = False,
    serve: Annotated[bool, Option("--serve", help="Serve the page to this machine, with answers.")] = False,
    port: Annotated[int, Option(min=0, max=65535, help="Of --serve; 0: one that is free.")] = 0,
    data: options.Data = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Write one HTML page about a run. Scores, curves, the graph to look at, what looks wrong, what to label next."""
    from gcn_lpa.report.page import OpenRun, page_of
    from gcn_lpa.report.server import PageServer

    options.check_out(out, overwrite=overwrite)
    opened = gcn_lpa.load_run(run, data)
    if serve:
        subject = OpenRun(opened)
        with options.status() as say:
            page = page_of(subject, trains=not quick, device=device, live=True, say=say)
        with PageServer(page, subject, port) as server:
            print(f"{server.url}\nCtrl-C ends it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    with options.status() as say:
        path = gcn_lpa.write_report(opened, out, trains=not quick, device=device, say=say)
    options.show(as_json, {"out": str(path), "bytes": path.stat().st_size}, [f"the page is {path}"])


@options.command
def evaluate(
    run: options.RunDir,
    positive: options.Positive = None,
    cite: Annotated[bool, Option("--cite", help="Print BibTeX of the methods that the run uses, and no scores.")] = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Score a run: accuracy, ranking of a rare class, who is what."""
    from gcn_lpa.runs.train_run import evaluate_run

    if cite:
        if positive is not None or data is not None:
            raise BadParameter("--cite reads the recipe of the run alone; --positive and --data go with scores")
        entries = gcn_lpa.Trained.from_pretrained(run).citations()
        return text.print_json({"bibtex": entries}) if as_json else print(entries)

    results = evaluate_run(gcn_lpa.load_run(run, data), positive=positive)
    options.show(as_json, dataclasses.asdict(results), text.evaluation_lines(results))


@options.command
def explain(
    run: options.RunDir,
    node: Annotated[str | None, Option(metavar="ID", help="The node to explain.")] = None,
    every: Annotated[bool, Option("--all", help="A table of the nodes that `predict` labels.")] = False,
    top: Annotated[int, Option(min=1, help="--node: voters to list.")] = 10,
    hops: options.Hops = None,
    picture: Annotated[Path | None, Option(metavar="FILE", help=f"--node: draw it ({options.ENDINGS_HELP}).")] = None,
    out: Annotated[Path | None, Option(metavar="FILE", help="--all: CSV file; without one, stdout.")] = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say why a node has its label. Which training labels voted, along which paths, and whether model and LPA agree."""
    if every == (node is not None):
        raise BadParameter("give either --node ID or --all")
    if (picture is not None and every) or (out is not None and not every):
        raise BadParameter("--picture goes with --node, --out with --all")
    from gcn_lpa.insight.drawing import draw_explanation

    options.check_picture(picture)
    options.check_out(out, overwrite=overwrite)
    options.check_out(picture, overwrite=True)
    found = gcn_lpa.load_run(run, data)
    if node is None:
        table = gcn_lpa.explain_all(found.trained, found.graph, nodes=~found.used, hops=hops)
        return options.print_or_write(table, out, excel_safe, as_json)
    from gcn_lpa.insight.importance import prediction_parts

    why = gcn_lpa.explain(found.trained, found.graph, node, top=top, hops=hops)
    if picture is not None:
        draw_explanation(why, picture)
    at, label = found.graph.index_of(node), None if why.number else found.trained.class_names.index(why.label)
    parts = prediction_parts(found.trained, found.trained.prepare(found.graph), at, label)
    lines = [str(why), "", *map(text.visible, parts.lines()), *([] if picture is None else ["", f"drawn in {picture}"])]
    options.show(as_json, {**why.to_dict(), "parts": dataclasses.asdict(parts)}, lines)


@options.command
def importance(
    run: options.RunDir,
    repeats: Annotated[int, Option(min=1, help="How often each column is shuffled.")] = 5,
    seed: Annotated[int, Option(help="Of the shuffling.")] = 0,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which columns matter. How much worse held-out labels are predicted with a column, the edges or the labels shuffled."""
    options.check_out(out, overwrite=overwrite)
    asked = gcn_lpa.load_run(run, data)
    with options.status() as say:
        step = lambda done, total: say(f"shuffling: {done} of {total}")  # noqa: E731
        found = gcn_lpa.importance(asked.trained, asked.graph, repeats=repeats, seed=seed, on_step=step)
    if out is not None:
        return options.print_or_write(found.to_frame(), out, excel_safe, as_json)
    options.show(as_json, dataclasses.asdict(found), text.importance_lines(found))


@options.command
def what_if(
    run: options.RunDir,
    label: Annotated[list[str] | None, Option(metavar="ID=CLASS", help="Label a node that has no label.")] = None,
    relabel: Annotated[list[str] | None, Option(metavar="ID=CLASS", help="Change a training label.")] = None,
    unlabel: Annotated[list[str] | None, Option(metavar="ID", help="Remove a training label.")] = None,
    remove_edge: Annotated[list[str] | None, Option(metavar="A,B", help="Remove the edge between two nodes.")] = None,
    retrain: Annotated[bool, Option("--retrain", help="Also train with and without the changes.")] = False,
    hops: options.Hops = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which predictions other labels or edges would change.

    Without --retrain nothing is trained again. Options may be repeated. An id may hold = or a comma: the
    text is cut where both sides name something.
    """
    asked = {"--label": label, "--relabel": relabel, "--unlabel": unlabel, "--remove-edge": remove_edge}
    if not any(asked.values()):
        raise BadParameter(f"nothing is asked: give at least one of {', '.join(asked)}")
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
    options.show(as_json, answer.to_dict(), [str(answer)])


def cut(text: str, separator: str, left: set[str], right: set[str]) -> tuple[str, str]:
    """The two sides of a text whose names may hold the separator: where both sides are known, else at the last one."""
    parts = text.split(separator)
    cuts = [(separator.join(parts[:k]), separator.join(parts[k:])) for k in range(1, len(parts))]
    if not cuts:
        raise BadParameter(f"{text!r} has no {separator!r} between two names")
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


@options.command
def audit(
    run: options.RunDir,
    labels: Annotated[bool, Option("--labels", help="Rank the given labels.")] = False,
    edges: Annotated[bool, Option("--edges", help="Rank the edges.")] = False,
    top: Annotated[int | None, Option(min=1, help="Rows at most; 20 where they are printed, else all.")] = None,
    out: options.Out = None,
    folds: Annotated[
        int | None, Option(min=2, help="Train models for it, each without one of so many parts of the labels.")
    ] = None,
    repeats: Annotated[int | None, Option(min=1, help="How often that is done, with new folds.")] = None,
    seed: Annotated[int | None, Option(help="Of folds and first weights; without one, that of the run.")] = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which labels or which edges look wrong, and why. Labels of test nodes are not looked at.

    By out-of-fold predictions of the training. Where it kept none, and with --folds, --repeats or --seed, models are trained.
    `what-if --retrain` tries a repair.
    """
    if labels == edges:
        raise BadParameter("audit either --labels or --edges")
    from gcn_lpa.runs.predictions import write_table

    options.check_out(out, overwrite=overwrite)
    audited = gcn_lpa.load_run(run, data)
    asked = {"folds": folds, "repeats": repeats, "seed": seed, "device": device, "threads": threads}
    chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    with options.status() as say:
        chosen["on_fit"] = lambda done, total: say(f"training models: {done} of {total}")
        rank: Any = gcn_lpa.audit_labels if labels else gcn_lpa.audit_edges
        found = rank(audited.trained, audited.graph, **chosen)
    rows = found.findings[: top or (None if as_json or out is not None else 20)]
    facts = {**found.to_dict(), "out": None}
    lines = [*map(str, rows), "", found.summary]
    facts["findings"] = [dataclasses.asdict(row) for row in rows] if out is None else []
    if out is not None:
        write_table(out, found.to_frame().head(len(rows)), excel_safe=excel_safe)
        facts["out"], lines = str(out), [f"{len(rows):,} rows in {out}"]
    options.show(as_json, facts, lines)


@options.command
def suggest(
    run: options.RunDir,
    n: Annotated[int, Option("-n", min=1, help="How many.")] = 20,
    candidates: Annotated[
        Path | None, Option(metavar="FILE", help="Ids to choose from, one per line; else all but test nodes.")
    ] = None,
    out: Annotated[Path | None, Option(metavar="FILE", help="Also write a CSV file here.")] = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which nodes to label next. Those the model is unsure of, near others it is unsure of."""
    from gcn_lpa.insight.advise import read_candidates, suggestion_table
    from gcn_lpa.runs.predictions import write_table

    options.check_out(out, overwrite=overwrite)
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
    options.show(as_json, table.to_dict("records"), lines)


@options.command
def advise(
    name: options.Name,
    repeats: Annotated[int, Option(min=2, help="Splits of the labelled nodes, the same for all methods.")] = 10,
    metric: options.Metric = None,
    positive: options.Positive = None,
    recipe: Annotated[str, Option(help="default, paper or official, of gcn-lpa.")] = "default",
    best: Annotated[bool, Option("--best", help="Also try the recipe best, which takes longer.")] = False,
    seed: Annotated[int, Option(help="Of the first split and the first weights.")] = 0,
    device: options.Device = "auto",
    threads: options.Threads = None,
    root: options.Root = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
) -> None:
    """Say whether the graph helps. Compares features alone with methods that read the edges, on your own labels."""
    graph = options.load_graph(name, root, option)
    options.print_warnings(graph.notes, as_json)
    chosen: dict[str, Any] = {"repeats": repeats, "seed": seed, "recipe": recipe, "best": best}
    chosen |= {"metric": metric, "positive": positive}
    with options.status() as say:
        chosen["on_record"] = lambda record: say(f"{record.method}, seed {record.seed}: {text.percent(record.score)}")
        found = gcn_lpa.advise(graph, device=device, threads=threads, **chosen)
    line = found.command(name, options.graph_words(root, option))
    options.show(as_json, {**found.to_dict(), "command": line}, text.advice_lines(found, line))


@options.command
@options.recipe_flags
def compare(
    name: options.Name,
    *,
    methods: Annotated[str, Option(metavar="A,B,C", help="Methods, with commas between.")] = "mlp,lr,lpa,gcn,gcn-same,gcn-lpa",
    splits: Annotated[int, Option(min=1, help="Random 60/20/20 splits, the same for all.")] = 10,
    reference: Annotated[str | None, Option(help="Differences are to it; else gcn or the first.")] = None,
    metric: options.Metric = None,
    positive: options.Positive = None,
    recipe: Annotated[
        str, Option(help="default, paper or official, of gcn-lpa and gcn-same; the last two set all others too.")
    ] = "default",
    seed: Annotated[int, Option(help="Of the first split; the next has the next.")] = 0,
    device: options.Device = "auto",
    threads: options.Threads = None,
    root: options.Root = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
    changes: dict[str, Any],
) -> None:
    """Train methods on the same splits and compare them.

    Mean, 95 % interval, paired differences and time. A field of the recipe given as a flag is set for the methods that
    use it.
    """
    from gcn_lpa.data.splits import require_classes

    graph = options.load_graph(name, root, option)
    require_classes(graph)
    options.print_warnings(graph.notes, as_json)
    chosen: dict[str, Any] = {"splits": splits, "seed": seed, "reference": reference, "recipe": recipe}
    chosen |= {"changes": changes, "device": device, "threads": threads, "metric": metric, "positive": positive}
    with options.status() as say:
        chosen["on_record"] = lambda record: say(f"{record.method}, seed {record.seed}: {text.percent(record.score)}")
        found = gcn_lpa.compare(graph, [method.strip() for method in methods.split(",")], **chosen)
    options.show(as_json, found.to_dict(), text.comparison_lines(found))


def suggestion_lines(found: Iterable[Suggestion]) -> list[str]:
    rows = [
        (
            *(str(one.id), f"{one.score:.3f}", one.guess, text.percent(one.probability)),
            *(one.runner_up, text.percent(one.runner_up_probability), f"{one.reach:.2f}"),
        )
        for one in found
    ]
    return text.table_lines(("id", "score", "guess", "", "or", "", "reach"), rows)
