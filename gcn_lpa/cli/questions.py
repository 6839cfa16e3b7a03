"""Questions to a trained model and to a graph: explain, what-if, audit, compare, advise, suggest."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcn_lpa.cli.options import (
    MANNERS,
    AsJson,
    Data,
    Device,
    ExcelSafe,
    Name,
    Options,
    Overwrite,
    Root,
    RunDir,
    Threads,
    check_out,
    command,
    load_graph,
    print_or_write,
    print_warnings,
    recipe_flags,
    say_record,
)
from gcn_lpa.cli.text import advice_facts, advice_line, comparison_line, print_json, print_table, suggestion_line

if TYPE_CHECKING:
    from gcn_lpa.insight.audit import EdgeAudit, LabelAudit


@command
def explain(
    run: RunDir,
    node: Annotated[str | None, typer.Option(metavar="ID", help="The node to explain.")] = None,
    every: Annotated[bool, typer.Option("--all", help="A table of the nodes that `predict` labels.")] = False,
    top: Annotated[int, typer.Option(min=1, help="--node: voters to list.")] = 10,
    hops: Annotated[int | None, typer.Option(min=1, help="How far a label travels; else as in the recipe.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--picture", "--plot", metavar="FILE", help="--node: draw it; the ending says as what (.png, .svg, .pdf)."
        ),
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
    if (plot is not None and every) or (out is not None and not every):
        raise typer.BadParameter("--picture goes with --node, --out with --all")
    from gcn_lpa.insight.drawing import draw_explanation
    from gcn_lpa.insight.explain import Explainer
    from gcn_lpa.runs.folder import load_run

    check_out(out, overwrite=overwrite)
    check_out(plot, overwrite=True)
    found = load_run(run, data)
    explainer = Explainer.of(found.trained, found.graph, hops=hops)
    if node is None:
        return print_or_write(explainer.table(~found.used), out, excel_safe, as_json)
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
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Also train two models, without and with the changes, and compare them.")
    ] = False,
    hops: Annotated[int | None, typer.Option(min=1, help="How far a label travels; else as in the recipe.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say which predictions would change with other labels or without an edge; without --retrain nothing is trained again.

    An id may hold = or a comma: the text is cut where both sides name something.
    """
    from gcn_lpa.insight.what_if import what_if as ask_what_if
    from gcn_lpa.runs.folder import load_run

    asked = {"--label": label, "--relabel": relabel, "--unlabel": unlabel, "--remove-edge": remove_edge}
    if not any(asked.values()):
        raise typer.BadParameter(f"nothing is asked: give at least one of {', '.join(asked)}")
    found = load_run(run, data)
    classes, nodes = set(found.trained.class_names), {str(name) for name in found.graph.node_names}
    answer = ask_what_if(
        found.trained,
        found.graph,
        hops=hops,
        retrain=retrain,
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
    from gcn_lpa.insight import audit as auditing
    from gcn_lpa.runs.folder import load_run
    from gcn_lpa.runs.predictions import write_table

    check_out(out, overwrite=overwrite)
    audited = load_run(run, data)
    subject = audited.trained, audited.graph
    options: dict[str, Any] = {"folds": folds, "device": device, "threads": threads}
    options["seed"] = audited.plan.seed if seed is None else seed
    rank: Callable[..., LabelAudit | EdgeAudit] = auditing.audit_labels if labels else auditing.audit_edges
    with counted("training models") as on_fit:
        found = rank(*subject, repeats=repeats, on_fit=on_fit, **options)
    rows = found.findings[: top or (None if as_json or out is not None else 20)]
    if out is not None:
        write_table(out, found.to_frame().head(len(rows)), excel_safe=excel_safe)
    if as_json:
        listed = [dataclasses.asdict(row) for row in rows] if out is None else []
        return print_json({**found.to_dict(), "findings": listed, "out": None if out is None else str(out)})
    if out is not None:
        print(f"{len(rows):,} rows in {out}")
    else:
        for row in rows:
            print(row)
        print(f"\n{found.summary}")


@contextlib.contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how much is done of how much; it reports that on stderr where that is a terminal."""
    shows = MANNERS.shows_progress
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
    from gcn_lpa.insight import compare as comparison

    check_out(out, overwrite=overwrite)
    graph = load_graph(name, root, option)
    require_classes(graph)
    print_warnings(graph.notes, as_json)
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
        write_output(out, encode_json(found.to_dict()))
    if as_json:
        return print_json(found.to_dict())
    header = ("", "accuracy", "macro-F1", f"to {found.reference}", "p", "seconds", "memory")
    print_table(header, [comparison_line(row) for row in found.rows])
    print(f"\n{found.verdict}")
    if found.not_converged:
        print(f"not converged: {', '.join(found.not_converged)}; more --epochs may help")
    for field, without in found.unused.items():
        print(f"--{field.replace('_', '-')} is not used by {', '.join(without)}")
    print(
        "±: 95 % t interval over splits. p: Wilcoxon's signed-rank test. "
        f"seconds: median of a split, on {found.device}. memory: peak of a process that trains this method alone."
    )


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
    from gcn_lpa.insight import advise as advice

    graph = load_graph(name, root, option)
    print_warnings(graph.notes, as_json)
    found = advice.advise(
        graph,
        repeats=repeats,
        seed=seed,
        recipe=recipe,
        best=best,
        device=device,
        threads=threads,
        on_record=say_record,
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
            ("", "accuracy", "against features", "against commonest class", "seconds"), map(advice_line, found.lines)
        )
        print(f"\n{found.protocol}, on {found.device}; ±: 95 % interval, widened for splits that overlap.")
    print("\n".join(advice_facts(found)))


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
    from gcn_lpa.insight import suggest as suggestions
    from gcn_lpa.runs.folder import load_run
    from gcn_lpa.runs.predictions import write_table

    check_out(out, overwrite=overwrite)
    asked = load_run(run, data)
    allowed = ~asked.split.test if candidates is None else suggestions.read_candidates(candidates, asked.graph)
    allowed &= ~asked.used
    if not allowed.any():
        why = "has a label or is a test node" if candidates is None else f"of {candidates} has a label"
        raise ValueError(f"no node is left to suggest: every node {why}; --candidates FILE says which may be suggested")
    found = suggestions.suggest(asked.trained, asked.graph, n=n, candidates=allowed)
    table = suggestions.suggestion_table(found)
    if out is not None:
        write_table(out, table, excel_safe=excel_safe)
    if as_json:
        return print_json(table.to_dict("records"))
    print_table(("id", "score", "guess", "probability", "reach", "why"), map(suggestion_line, found))
    if len(found) < n:
        print(f"\n{len(found):,} of the {n:,} asked for: no other node may be suggested")
    if out is not None:
        print(f"\n{len(table):,} rows in {out}")
