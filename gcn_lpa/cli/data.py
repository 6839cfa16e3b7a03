"""Commands about data: datasets, info."""

from __future__ import annotations

import dataclasses

from gcn_lpa.cli.frame import AsJson, Name, Options, Root, command, load_graph
from gcn_lpa.cli.text import info_lines, print_json, print_table, table1_lines


@command
def datasets(root: Root = None, as_json: AsJson = False) -> None:
    """Print the paper's Table 1 with our counts beside the paper's, and the other data sets there are."""
    from gcn_lpa.tables.datasets import DATASETS, table1

    rows = table1(root, names=DATASETS)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
    else:
        print_table(("", "nodes", "edges", "features", "classes", "intra-class"), table1_lines(rows))


@command
def info(name: Name, root: Root = None, option: Options = None, as_json: AsJson = False) -> None:
    """Describe a graph: sizes, classes, homophily, components, and the nodes no label can reach."""
    from gcn_lpa.description import describe
    from gcn_lpa.tables.datasets import DATASETS

    described = describe(load_graph(name, root, option))
    if as_json:
        print_json(dataclasses.asdict(described))
    else:
        print("\n".join(info_lines(described, is_named=name.lower() in DATASETS)))
