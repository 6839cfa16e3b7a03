"""Commands that train a model and use it: train, predict, calibrate, edges, tune."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Context, Option

import gcn_lpa
from gcn_lpa.cli import options, text

if TYPE_CHECKING:
    from gcn_lpa.cut import Rule
    from gcn_lpa.data.edge_columns import EdgeWeights
    from gcn_lpa.runs.folder import TrainedRun
    from gcn_lpa.scale.together import Order

INPUTS = ("nodes", "edges", "labels", "features")  # files of a folder, by their stems


@options.command
@options.recipe_flags
def train(
    context: Context,
    name: options.MaybeName = None,
    *,
    nodes: Annotated[
        str | None, Option(metavar="TABLE", help="A file or an address in a database; --edges names that of edges.")
    ] = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="Run folder to keep the result in.")] = None,
    report: Annotated[bool, Option("--report", help="Also write predictions.csv and report.html.")] = False,
    recipe: Annotated[str, Option(help="default, quick, best, paper, official, or a JSON file.")] = "default",
    quick: Annotated[bool, Option("--quick", help="The recipe quick: members that are trained in seconds.")] = False,
    minutes: Annotated[
        float, Option(min=0, help="About as long as it may take; members without time are left out. 0: no limit.")
    ] = 0.0,
    split: Annotated[
        str | None,
        Option(
            help="uniform (60/20/20, for named data sets), stratified, official, per_class or time. "
            "Without one, a folder of your own trains on all its labels and is scored by cross-validation."
        ),
    ] = None,
    seed: Annotated[int, Option(help="Of the split, the first weights and dropout.")] = 0,
    metric: Annotated[
        str | None,
        Option(metavar="NAME", help="Keep the epoch that is best by it, as --select does: average_precision …"),
    ] = None,
    option: options.Options = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on with the run in --out, if there is one; it knows its graph and settings.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the run in --out at the end.")] = False,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
    method: options.Method = None,
    reserve: Annotated[
        float,
        options.more(metavar="SHARE", help="Share of validation nodes that choose nothing: label sets get a guarantee."),
    ] = 0.0,
    checkpoint_every: Annotated[int, options.more(min=0, metavar="EPOCHS", help="0: no checkpoints.")] = 50,
    threads: options.Threads = None,
    root: options.Root = None,
    data: Annotated[str | None, options.more(metavar="PATH", help="--resume: where the graph is now.")] = None,
    timeout: Annotated[
        float, options.more(min=1, metavar="SECONDS", help="Under torchrun: how long a rank waits for the others.")
    ] = 300.0,
    changes: dict[str, Any],
) -> None:
    """Train a model on a graph and score it. Every field of the recipe is a flag.

    A folder of `gcn-lpa partition` is trained by as many processes as it has parts: torchrun --nproc-per-node N -m gcn_lpa train.
    """
    from gcn_lpa.data.checks import is_address
    from gcn_lpa.engine.devices import choose_device
    from gcn_lpa.runs.storage import PARTS, has_file

    start = time.perf_counter()
    name, option = options.named_tables(name, nodes, changes, option)
    if quick and recipe not in ("default", "quick"):
        raise BadParameter(f"--quick and --recipe {recipe}: both choose the recipe; give one")
    recipe = "quick" if quick else recipe
    if metric is not None:
        from gcn_lpa.metrics import selection

        if "select" in changes:
            raise BadParameter(f"--metric {metric} and --select {changes['select']}: both choose the epoch; give one")
        changes["select"] = selection(metric)
    if name is None:
        if not resume or out is None:
            raise BadParameter("name a data set or a folder; or --resume --out DIR goes on with an unfinished run")
        if strays := options.stray_options(context, "out", "resume", "report", "data", "device", "threads", "as_json"):
            why = "goes on with the graph and the settings that the run began with"
            raise BadParameter(f"{', '.join(strays)}: --resume --out DIR, without a graph, {why}")
        report = report or began_with_report(out)
        with _going_on(out), options.progress() as watch:
            outputs = results_of if report else None
            trained = gcn_lpa.resume_run(out, data, device=device, threads=threads, watch=watch, outputs=outputs)
        return options.print_run(trained, as_json, start, has_page=report)
    if data is not None:
        raise BadParameter("--data goes with --resume --out DIR alone: where the graph of that run is now")
    if not is_address(name) and has_file(Path(name), PARTS):
        from gcn_lpa.scale.together import Order

        whole = {"--split": split, "--report": report, "--reserve": reserve, "--root": root}
        if given := [flag for flag, value in {**whole, "--minutes": minutes, "--option": option}.items() if value]:
            what = "is not for the parts of a graph, whose split was chosen with the parts"
            raise BadParameter(f"{given[0]} {what}")
        if out is None:
            raise BadParameter("the parts of a graph are trained with --out DIR, where checkpoints go")
        device = "cpu" if device == "auto" else device  # NCCL has not been tried with several ranks
        settings = Path(name), out, method, recipe, changes, seed
        order = Order(*settings, checkpoint_every, resume, overwrite, device, threads, timeout)
        return train_in_parts(order, as_json, start)
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # of torchrun
        from gcn_lpa.scale.ranks import refused

        raise refused(f"{name} is one graph: gcn-lpa partition {name} --parts N --out DIR cuts it for torchrun")
    if report and out is None:
        raise BadParameter("--report goes with --out DIR, where the page is put")
    plan, graph = gcn_lpa.make_plan(
        options.source_of(name, root, option),
        method=method,
        recipe=recipe,
        changes=changes,
        seed=seed,
        split=split,
        checkpoint_every=checkpoint_every,
        reserve=reserve,
        minutes=minutes,
        has_time=choose_device(device).type == "cuda",
    )
    options.print_warnings(graph.notes, as_json)
    options.print_room(graph, plan.recipe, device)
    options.print_forecast(graph, plan, device, threads, is_default=recipe == "default" and not changes)
    report = report or (resume and out is not None and began_with_report(out))
    plan = dataclasses.replace(plan, report=report)
    kept: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "outputs": results_of if report else None}
    with _going_on(out), options.progress() as watch:
        trained = gcn_lpa.train_run(plan, graph, out, device=device, threads=threads, watch=watch, **kept)
    options.print_run(trained, as_json, start, has_page=report and out is not None)


def began_with_report(out: Path) -> bool:
    """Whether the command that began the unfinished run of a folder had --report."""
    from gcn_lpa.runs.train_run import unfinished_plan

    plan = unfinished_plan(out)
    return plan is not None and plan.report


@contextlib.contextmanager
def _going_on(out: Path | None) -> Iterator[None]:
    """After a Ctrl-C that leaves no model, say how the run of a folder goes on."""
    from gcn_lpa.runs.train_run import is_unfinished

    try:
        yield
    except KeyboardInterrupt:
        if out is not None and is_unfinished(out):
            print(f"gcn-lpa: interrupted; {text.going_on(out)}", file=sys.stderr)
        raise


def train_in_parts(order: Order, as_json: bool, start: float) -> None:
    """Train on the parts of a graph, as one of the processes of torchrun; rank 0 prints the result."""
    from gcn_lpa.scale.ranks import is_first
    from gcn_lpa.scale.together import train_parts

    if is_first():
        options.print_received(order)
    with options.progress() if is_first() else contextlib.nullcontext() as watch:
        found = train_parts(order, watch)
    if found is not None:
        options.print_run(found, as_json, start)
    elif is_first():
        options.show(as_json, {"out": str(order.out), "finished": True}, [f"{order.out} is finished"])


def results_of(run: TrainedRun) -> dict[str, bytes]:
    """The predictions and the page of a run, as files for its folder."""
    from gcn_lpa.report.page import OpenRun, page_of
    from gcn_lpa.runs.predictions import table_text
    from gcn_lpa.runs.storage import PAGE, PREDICTIONS

    subject = OpenRun(run)
    table = gcn_lpa.predict_run(run, prediction=subject.prediction)
    with options.status() as say:
        page = page_of(subject, trains=False, say=say)
    return {PREDICTIONS: table_text(table).encode(), PAGE: page}


@options.command
def predict(
    run: options.RunDir,
    out: options.Out = None,
    every: Annotated[bool, Option("--all", help="Also nodes with a given label (status labeled).")] = False,
    abstain: Annotated[float | None, Option(metavar="P", help="No label below this probability: 0.6.")] = None,
    sets: Annotated[
        float | None,
        Option(
            metavar="LEVEL",
            help="Add a column set: labels that hold the true one so often, such as 0.9; or of low and high.",
        ),
    ] = None,
    hops: Annotated[bool, Option("--hops", help="Add a column hops: edges to the nearest given label.")] = False,
    all_classes: Annotated[bool, Option("--all-classes", help="A column p:CLASS for each class.")] = False,
    threshold: Annotated[float | None, Option(metavar="P", help="Call a rare class from this probability on.")] = None,
    top: Annotated[int | None, Option(min=1, metavar="N", help="Call so many nodes, the likeliest.")] = None,
    precision: Annotated[
        float | None, Option(metavar="P", help="Call as many as held-out labels say are right so often: 0.8.")
    ] = None,
    costs: Annotated[
        str | None, Option(metavar="fn=50,fp=1", help="Call where it pays: the cost of a miss and of a false alarm.")
    ] = None,
    positive: options.Positive = None,
    raw: Annotated[bool, Option("--raw", help="Probabilities as the model gives them, not calibrated.")] = False,
    on: Annotated[
        str | None,
        Option(metavar="FOLDER", help="The graph of the run with what is new, or one with the same columns."),
    ] = None,
    root: options.Root = None,
    option: options.Options = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Label the nodes that have no label.

    The columns are id, label, probability (calibrated), runner_up, status. label is the prediction of the model, also of a node
    whose label was given; it can differ from that one. Of numbers the columns are id, value, low, high, status: nine of ten are
    from low to high, or as many as --sets says. --threshold, --top, --precision and --costs call one class from a cut on:
    the likeliest come first, and a line says how many hits to expect. With --on every label of that graph votes at once, nothing is
    trained again, and a summary says what is new and what changed.
    """
    from gcn_lpa.runs.predictions import interruption, write_table

    options.check_out(out, overwrite=overwrite)
    wanted: dict[str, Any] = {"every": every, "raw": raw, "abstain": abstain, "sets": sets}
    wanted |= {"hops": hops, "all_classes": all_classes, "cut": rule_of(threshold, top, precision, costs)}
    if wanted["cut"] is None and positive is not None:
        raise BadParameter("--positive goes with --threshold, --top, --precision or --costs")
    if wanted["cut"] is not None and abstain is not None:
        raise BadParameter("--abstain leaves out what a cut would call; give one of them")
    wanted["positive"] = positive
    if on is None:
        if option or root is not None:
            raise BadParameter("--root and -o go with --on")
        loaded = gcn_lpa.load_run(run, data)
        table = gcn_lpa.predict_run(loaded, **wanted)
        options.print_warnings(interruption(loaded.trained, run), as_json)
        return options.print_or_write(table, out, excel_safe, as_json, table.attrs.get("cut"))
    if out is not None and Path(out).stem in INPUTS and Path(out).resolve().parent == Path(on).resolve():
        raise BadParameter(f"--out {out} is a file that is read; choose another")
    like = options.source_of(on, root, option)
    found = gcn_lpa.predict_on(run, on, data, root=root, options=like.options, **wanted)
    if as_json:
        facts = {"changes": dataclasses.asdict(found.changes), "note": found.note, "rows": len(found.table)}
        facts |= {} if found.cut is None else {"cut": dataclasses.asdict(found.cut)}
        if out is None:
            return options.show(as_json, {**facts, "predictions": options.records_of(found.table)}, ())
        write_table(out, found.table, excel_safe=excel_safe)
        return options.show(as_json, {**facts, "out": str(out)}, ())
    options.print_warnings(found.warnings, as_json)
    options.print_or_write(found.table, out, excel_safe, as_json, found.cut)
    print("\n".join(text.change_lines(found.changes, found.note)), file=sys.stdout if out is not None else sys.stderr)


def rule_of(threshold: float | None, top: int | None, precision: float | None, costs: str | None) -> Rule | None:
    """The rule of a cut, where a command line has one."""
    from gcn_lpa.cut import Rule

    chosen: dict[str, Any] = {"threshold": threshold, "top": top, "precision": precision, "costs": costs}
    given = {name: value for name, value in chosen.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise BadParameter(f"{' and '.join(f'--{name}' for name in given)} each choose the cut; give one")
    if costs is not None:
        parts = dict(part.split("=", 1) for part in costs.split(",") if "=" in part)
        try:
            given["costs"] = float(parts.pop("fn")), float(parts.pop("fp"))
        except (KeyError, ValueError):
            parts = {"": ""}
        if parts:
            raise BadParameter(f"--costs {costs}: say what a miss and a false alarm cost, as in fn=50,fp=1")
    return Rule(**given)


@options.command
def calibrate(
    run: options.RunDir,
    level: Annotated[float, Option(help="How often a label set shall hold the true label.")] = 0.9,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how far confidence can be trusted. Calibration before and after, and what label sets hold."""
    from gcn_lpa.runs.predictions import calibrate_run

    found = calibrate_run(gcn_lpa.load_run(run, data), level=level)
    options.show(as_json, dataclasses.asdict(found), text.calibration_lines(found))


@options.command
def edges(
    run: options.RunDir,
    columns: Annotated[bool, Option("--columns", help="What each column of the edges says about their weight, instead.")] = False,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    excel_safe: options.ExcelSafe = False,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """List the learned edge weights. Columns: source, target, weight (as given), learned (its share at the target).

    With --columns: column, value, weight (times that of the median, or of the average edge), its 95 % interval over folds, and
    the share of the edges.
    """
    options.check_out(out, overwrite=overwrite)
    found = gcn_lpa.load_run(run, data)
    weights = found.trained.edge_weights
    if columns:
        if weights is None:
            raise ValueError(f"{run}: nothing was learned of columns of edges; edges.csv has none, or the recipe reads none")
        return print_edge_effects(weights, out, excel_safe, as_json)
    table = gcn_lpa.edge_table(found.trained, found.graph)
    if not found.trained.model.edge_parameters() and found.trained.used_edge_weights is None:
        print("note: this model learned no edge weights; `learned` is the share that was given", file=sys.stderr)
    options.print_or_write(table, out, excel_safe, as_json)


def print_edge_effects(weights: EdgeWeights, out: str | None, excel_safe: bool, as_json: bool) -> None:
    """What each column of the edges says about their weight: sentences and a table for people, or a file of it."""
    from gcn_lpa.insight.edge_effects import edge_effects, effect_sentences

    if out is not None:
        import pandas

        return options.print_or_write(pandas.DataFrame(edge_effects(weights)), out, excel_safe, as_json)
    rows, said = edge_effects(weights), effect_sentences(weights)
    facts = {"used": weights.is_used, "gain": weights.gain, "error": weights.error, "sentences": said}
    options.show(as_json, {**facts, "effects": [dataclasses.asdict(row) for row in rows]}, text.effect_lines(said, rows))


@options.command
def tune(
    name: options.Name,
    *,
    out: Annotated[Path, Option(metavar="DIR", help="Folder of the search; one that was stopped goes on.")],
    trials: Annotated[int, Option(min=1, help="Finished trials in all.")] = 50,
    metric: options.Metric = None,
    method: Annotated[str | None, Option(help="Which model; gcn-lpa unless the recipe says otherwise.")] = None,
    recipe: Annotated[str, Option(help="Where to start: default, paper, official, or a JSON file.")] = "default",
    settings: options.Settings = None,
    seed: Annotated[int, Option(help="Of the split, the first weights and the order of trials.")] = 0,
    split: Annotated[
        str | None, Option(help="As in train; else uniform for named data sets, stratified or time for a folder.")
    ] = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    root: options.Root = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
) -> None:
    """Search for the recipe that does best on validation nodes. `train --recipe` then scores it once on test nodes."""
    from gcn_lpa.insight.tune import BEST, Search
    from gcn_lpa.metrics import suited
    from gcn_lpa.runs.train_run import past_of

    source = options.source_of(name, root, option)
    kind = split or ("uniform" if source.is_named else "time" if "time" in source.options else "stratified")
    changes = options.recipe_fields(settings)
    plan, graph = gcn_lpa.make_plan(source, method=method, recipe=recipe, changes=changes, seed=seed, split=kind)
    options.print_warnings(graph.notes, as_json)
    chosen = metric or suited(graph.y, graph.num_classes)
    chosen = "accuracy" if metric is None and changes.get("select") and chosen != "r2" else chosen
    search = Search(trials, seed, device, threads, chosen)
    parts = gcn_lpa.split(graph, seed=seed, kind=kind)
    if kind == "time":
        graph, parts = past_of(graph, parts)
    num_val = int(parts.val.sum())
    with options.status() as say:
        found = gcn_lpa.tune(
            graph, parts.train, parts.val, plan.recipe, out, search, lambda trial: say(text.tuning_step(trial, trials))
        )
    words = ["gcn-lpa", "train", name, *options.graph_words(root, option), "--recipe", str(out / BEST)]
    line = shlex.join([*words, "--split", kind, "--seed", str(seed)])
    facts = {**found.to_dict(), "validation_nodes": num_val, "command": line}
    lines = text.tuning_lines(found, graph.name, num_val, out)
    options.show(as_json, facts, [*lines, "score it once on test nodes:", f"  {line}"])
