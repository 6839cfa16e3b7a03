"""Commands about data: datasets, info, partition."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from gcn_lpa.cli.options import AsJson, Name, Options, Root, command, load_graph, reading
from gcn_lpa.cli.text import dataset_lines, info_lines, part_lines, print_json, print_table, structural_note


@command
def datasets(root: Root = None, as_json: AsJson = False) -> None:
    """List the data sets that have a name: what they are, and how large those are whose files are here."""
    from gcn_lpa.data.datasets import list_datasets

    found = list_datasets(root)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    else:
        print("\n".join(dataset_lines(found)))


@command
def info(name: Name, root: Root = None, option: Options = None, as_json: AsJson = False) -> None:
    """Describe a graph: sizes, classes, homophily, components, and the nodes no label can reach."""
    from gcn_lpa.data.datasets import DATASETS
    from gcn_lpa.data.describe import describe

    graph = load_graph(name, root, option)
    info, structural = describe(graph), structural_note(graph)
    if as_json:
        print_json({**dataclasses.asdict(info), "structural_features": structural})
    else:
        print("\n".join(info_lines(info, structural, is_named=name.lower() in DATASETS)))


@command
def partition(
    name: Name,
    *,
    parts: Annotated[int, typer.Option(min=1, help="How many processes shall train on the graph.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the parts to.")],
    by: Annotated[
        str, typer.Option(metavar="metis|ranges", help="Few edges between parts, or nodes in their order.")
    ] = "metis",
    split: Annotated[str, typer.Option(help="uniform (60/20/20), stratified, public or per_class.")] = "uniform",
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the parts in --out.")] = False,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Cut a graph into parts, one for each process of torchrun, which then train on it together."""
    from gcn_lpa.data.splits import require_classes
    from gcn_lpa.data.splits import split as split_nodes
    from gcn_lpa.runs.plan import Source
    from gcn_lpa.scale.partition import owners, write_partition

    if split == "time":
        raise ValueError("split 'time' trains on a graph without later nodes, which parts of the whole graph are not")
    source = Source(name, None if root is None else str(root), reading(name, option))
    graph = source.load()
    require_classes(graph)
    nodes = split_nodes(graph, seed=seed, kind=split)
    facts = write_partition(out, graph, source, owners(graph, parts, by), nodes, overwrite=overwrite)
    if as_json:
        return print_json(dataclasses.asdict(facts))
    print_table(("part", "rows", "of others", "entries"), part_lines(facts))
    print(f"torchrun --nproc-per-node {parts} -m gcn_lpa train {out} --out RUN")
