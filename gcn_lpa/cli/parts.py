"""Commands for graphs that are trained in parts: plan, partition."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

import gcn_lpa
from gcn_lpa.cli import options, text

if TYPE_CHECKING:
    from gcn_lpa.recipes import Recipe
    from gcn_lpa.scale.planner import Estimate, Size

LARGEST = 1e15  # of the counts of `plan`


@options.command
def plan(
    *,
    nodes: Annotated[float, Option(help="Number of nodes, such as 111e6.")],
    edges: Annotated[float, Option(help="Number of edges; of an undirected graph each is counted once.")],
    classes: Annotated[int, Option(help="Number of classes.")],
    features: Annotated[int, Option(help="Number of feature columns.")] = 128,
    filled: Annotated[float | None, Option(help="Filled cells of a node on average, if sparse.")] = None,
    directed: Annotated[bool, Option("--directed", help="Messages travel from source to target alone.")] = False,
    workers: Annotated[int, Option(min=1, help="Workers that share the rows: see `gcn-lpa partition`.")] = 1,
    halo: Annotated[float, Option(help="Rows of other workers that each reads, for one of its own.")] = 1.0,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how much memory a training would take, without a graph."""
    from gcn_lpa.scale.planner import Size, estimate

    recipe = gcn_lpa.DEFAULT.replace(**options.recipe_fields(settings))
    counts = {"--nodes": (nodes, 1), "--edges": (edges, 0), "--classes": (classes, 1), "--features": (features, 1)}
    counts |= {"--halo": (halo, 0)} | ({} if filled is None else {"--filled": (filled, 0)})
    for option, (value, least) in counts.items():
        if not least <= value <= LARGEST:
            raise BadParameter(f"{option} {value:g}: a number from {least} to {LARGEST:g}")
    if workers > nodes or (filled or 0) > features or edges > nodes**2:
        raise BadParameter("more workers than nodes, filled cells than columns, or edges than pairs of nodes")
    entries = (edges if directed else 2 * edges) + nodes
    stored = None if filled is None else filled * nodes
    size = Size(nodes, entries, features, classes, stored, directed).share(workers, halo)
    found = estimate(size, recipe)
    if found is None:
        raise ValueError(f"there is no formula for method {recipe.method!r}; gcn-lpa, gcn and gcn-same have one")
    facts = {**dataclasses.asdict(found), "peak": found.peak}
    lines = plan_lines(found, size, recipe, workers)
    options.show(as_json, {name: round(value) for name, value in facts.items()}, lines)


@options.command
def partition(
    name: options.Name,
    *,
    parts: Annotated[int, Option(min=1, help="How many processes shall train on the graph.")],
    out: Annotated[Path, Option(metavar="DIR", help="Folder to write the parts to.")],
    by: Annotated[str | None, Option(metavar="metis|stream", help="metis: few edges between parts; stream: less memory.")] = None,
    split: Annotated[str, Option(help="uniform (60/20/20), stratified, official or per_class.")] = "uniform",
    seed: Annotated[int, Option(help="Of the split.")] = 0,
    overwrite: Annotated[bool, Option(help="Replace the parts in --out.")] = False,
    root: options.Root = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
) -> None:
    """Cut a graph into parts, for several processes. torchrun starts one for each part; they train together."""
    from gcn_lpa.data.splits import require_classes
    from gcn_lpa.scale.partition import owners, write_partition

    if split == "time":
        raise ValueError("split 'time' trains on a graph without later nodes, which parts of the whole graph are not")
    source = options.source_of(name, root, option)
    graph = source.load()
    require_classes(graph)
    nodes = gcn_lpa.split(graph, seed=seed, kind=split)
    facts = write_partition(out, graph, source, owners(graph, parts, by), nodes, overwrite=overwrite)
    counts = zip(facts.rows, facts.halos, facts.entries, strict=True)
    rows = ((str(rank), *(f"{count:,}" for count in row)) for rank, row in enumerate(counts))
    lines = text.table_lines(("part", "rows", "of others", "entries"), rows)
    lines.append(f"torchrun --nproc-per-node {parts} -m gcn_lpa train {out} --out RUN")
    options.show(as_json, dataclasses.asdict(facts), lines)


def plan_lines(found: Estimate, size: Size, recipe: Recipe, workers: int) -> list[str]:
    """What a training holds, part by part."""
    from gcn_lpa.scale.planner import gigabytes, received

    epochs, once = received(size, recipe)
    parts = {
        "graph": found.graph,
        "features": found.features,
        "parameters": found.parameters,
        "a gradient step": found.step,
        "validation": found.forward,
        "predictions": found.prediction,
        "preparation": found.preparation,
    }
    whose = f"a worker of {workers}: " if workers > 1 else ""
    halo = f" and {size.halo:,.0f} of others" if size.halo else ""
    last = f"received in an epoch {gigabytes(max(epochs.values()))}, and once {gigabytes(once)}"
    return [
        f"{whose}{size.nodes:,.0f} rows{halo}, {size.entries:,.0f} entries, {size.columns:,} columns, {size.classes:,} classes",
        f"{recipe.method}, {recipe.origin}",
        *(f"  {name:<16}{gigabytes(held):>9}" for name, held in parts.items()),
        f"memory at the peak{gigabytes(found.peak):>9}",
        last if workers > 1 else f"on a GPU, the peak{gigabytes(found.gpu):>9}",
    ]
