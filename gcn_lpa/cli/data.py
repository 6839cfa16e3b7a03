"""Commands to begin with: init, info, demo."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

import gcn_lpa
from gcn_lpa.cli import options, text

if TYPE_CHECKING:
    from gcn_lpa.data.datasets import DatasetSize
    from gcn_lpa.data.describe import GraphInfo
    from gcn_lpa.graph import Graph
    from gcn_lpa.insight.explanation import Explanation
    from gcn_lpa.insight.findings import LabelFinding

STARTER = ("nodes.csv", "edges.csv", "README.md")
MOST_COLUMNS = 40  # that `info` prints


@options.command
def init(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Where to put it; made if it is not there.")],
    as_json: options.AsJson = False,
) -> None:
    """Write an example of nodes.csv and edges.csv, with a README."""
    paths = write_starter(folder)
    names = ", ".join(path.name for path in paths)
    line = f"{names} in {folder}; next: gcn-lpa train {folder} --out run --report"
    options.show(as_json, {"files": [str(path) for path in paths]}, [line])


def write_starter(folder: str | Path) -> list[Path]:
    """Write nodes.csv, edges.csv and README.md into a folder that has none of them, and return their paths."""
    from gcn_lpa.data.files import write_output

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder to write the example into")
    paths = [folder / name for name in STARTER]
    if there := [path for path in paths if path.exists()]:
        raise ValueError(f"{there[0]} is there already and would be overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        text = (files("gcn_lpa.cli") / "starter" / path.name).read_text(encoding="utf-8")
        write_output(path, text.replace("{folder}", str(folder)).encode())
    return paths


@options.command
def info(
    name: options.MaybeName = None,
    root: options.Root = None,
    option: options.Options = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a graph; without a name, list the data sets.

    Sizes, what is made of each column, classes, homophily, components, and which nodes labels reach.
    """
    from gcn_lpa.data.datasets import DATASETS, list_datasets

    if name is None:
        found = list_datasets(root)
        return options.show(as_json, [dataclasses.asdict(one) for one in found], dataset_lines(found))
    graph = options.load_graph(name, root, option)
    facts, structural = gcn_lpa.describe(graph), structural_note(graph)
    lines = info_lines(facts, structural, is_named=name.lower() in DATASETS)
    options.show(as_json, {**dataclasses.asdict(facts), "structural_features": structural}, lines)


def dataset_lines(found: Iterable[DatasetSize]) -> list[str]:
    """A line for each data set: its counts, and what it is."""
    rows = []
    for one in found:
        counts = ("–" if n is None else f"{n:,}" for n in (one.nodes, one.edges, one.features, one.classes))
        rows.append((one.name, *counts, f"{one.summary}{' (files not found)' if one.nodes is None else ''}"))
    return text.table_lines(("", "nodes", "edges", "features", "classes", ""), rows)


def structural_note(graph: Graph) -> str | None:
    """The structural features that the default recipe adds to the columns of a graph; None: nothing."""
    from gcn_lpa.data.scaling import num_structural
    from gcn_lpa.recipes import choose_recipe

    recipe = choose_recipe(graph, graph.labeled)
    if recipe.structure and graph.x_kind == "given":
        number = num_structural(graph.directed, with_cells=True)
        return f"degrees, PageRank, filled cells, neighbours' too -> {number} features"
    words = {"trees": "trees", "neighbour-lr": "LR"}
    readers = ", ".join(word for member, word in words.items() if member in recipe.members.split())
    number = num_structural(graph.directed, with_cells=False)
    return f"degrees, PageRank, neighbours' too -> {number} features, for {readers}" if readers else None


def info_lines(info: GraphInfo, structural: str | None, is_named: bool) -> list[str]:
    counted = f"the {info.labeled_edges:,} edge{'s' * (info.labeled_edges > 1)}"
    known = f"{text.percent(info.edge_homophily)} of {counted}" if info.labeled_edges else "no edge"
    paper = f"{text.percent(info.intra_class_edge_rate)} of all edges as the paper counts (no label = first class), "
    direction = "directed" if info.directed else "undirected"
    homophily = {"edge": info.edge_homophily, "node": info.node_homophily, "adjusted": info.adjusted_homophily}
    measured = ", ".join(f"{name} {'–' if value is None else f'{value:.3f}'}" for name, value in homophily.items())
    of_classes = [
        f"  intra-class  {paper if is_named else ''}{known} between labelled nodes",
        f"  homophily    {measured}",
    ]
    more = len(info.columns) - MOST_COLUMNS
    return [
        f"{info.name}: {info.nodes:,} nodes, {info.edges:,} {direction} edges, {info.self_loops:,} self-loops",
        f"  features     {info.features:,} ({info.feature_kind}), {info.nonzeros:,} non-zero",
        *(f"    column     {column}" for column in info.columns[:MOST_COLUMNS]),
        *([f"    column     … and {more:,} more"] if more > 0 else []),
        *([] if structural is None else [f"    graph      {structural}"]),
        *(f"  edge column  {column}" for column in info.edge_columns[:MOST_COLUMNS]),
        f"  labels       {info.labeled:,} of {info.nodes:,} nodes, {info.labels}",
        *(of_classes if info.classes or not info.labeled else []),
        f"  reach        components {info.components:,}, isolated nodes {info.isolated:,}, "
        f"nodes that no label can reach {info.unreachable:,}",
        *(f"  note         {note}" for note in info.notes),
    ]


NUM_LABELS = 200  # that train; as many choose the epoch, weigh the votes and calibrate
NEXT = {
    "gcn-lpa compare digits": "ten splits, with intervals",
    "gcn-lpa train digits --out runs/digits": "a model to keep and to ask",
    "gcn-lpa advise FOLDER": "your own nodes.csv and edges.csv",
}


@options.command
def demo(as_json: options.AsJson = False) -> None:
    """Label handwritten digits: how sure, why, which label is wrong."""
    options.show(as_json, *demonstrate())


def demonstrate() -> tuple[dict[str, Any], list[str]]:
    """Hide most labels of the digits, make one of the others wrong, and see what can be done: as facts and as lines."""
    from gcn_lpa.metrics import Scores

    start, true = time.perf_counter(), gcn_lpa.load("digits")
    share = NUM_LABELS / true.num_nodes
    parts = gcn_lpa.split(true, (share, share, 1 - 2 * share), seed=0)
    y, planted = true.y.clone(), int(parts.train.nonzero()[0])
    y[planted] = (y[planted] + true.num_classes // 2) % true.num_classes
    graph = dataclasses.replace(true, y=y)
    trained = gcn_lpa.learn(graph, parts.train, parts.val, device="cpu")
    scores = gcn_lpa.evaluate(trained, graph, parts.test)
    assert isinstance(scores, Scores)
    table = gcn_lpa.predictions(trained, graph)[parts.test.numpy()].sort_values("probability", kind="stable")
    chosen = table.iloc[[0, len(table) // 20, len(table) // 2]][["id", "label", "probability", "runner_up"]]
    examples = chosen.rename(columns={"id": "node"}).to_dict("records")
    for one in examples:
        one["hidden_label"] = graph.class_names[int(graph.y[graph.index_of(one["node"])])]
    why = gcn_lpa.explain(trained, graph, examples[0]["node"], top=3)
    findings = gcn_lpa.audit_labels(trained, graph, folds=3, repeats=1, device="cpu").findings
    rank = next(k for k, row in enumerate(findings) if row.node == planted)
    facts = {
        **{part: int(getattr(parts, part).sum()) for part in ("train", "val", "test")},
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "examples": examples,
        "mean_probability": float(table["probability"].mean()),
        "explanation": why.to_dict(),
        "planted": planted,
        "true_label": true.class_names[int(true.y[planted])],
        "rank": rank + 1,
        "finding": dataclasses.asdict(findings[rank]),
        "seconds": time.perf_counter() - start,
    }
    return facts, demo_lines(graph, facts, why, findings[rank])


def demo_lines(graph: Graph, facts: dict[str, Any], why: Explanation, finding: LabelFinding) -> list[str]:
    lines = [
        f"{graph.num_nodes:,} images of digits, each joined to the 10 nearest, {graph.num_edges:,} edges.",
        f"{facts['train']} labels train, {facts['val']} choose the epoch and calibrate, {facts['test']:,} are hidden.",
        f"Of these {text.percent(facts['accuracy'])} are right (macro-F1 {text.percent(facts['macro_f1'])}).",
        "",
        "How sure? Calibrated probabilities: the lowest, one at 5 %, and the median.",
        *(
            f"  image {one['node']:<5} {one['label']}  {text.percent(one['probability']):>7}  "
            f"runner-up {one['runner_up']}; it is {one['hidden_label']}"
            for one in facts["examples"]
        ),
        f"Their mean over the hidden images is {text.percent(facts['mean_probability'])}.",
        "",
        "Why? The least sure image:",
        *(f"  {line}" if line else "" for line in str(why).splitlines()),
        "",
        f"A wrong label: image {facts['planted']} is a {facts['true_label']}, and we called it a {finding.label}.",
        f"It is number {facts['rank']} of {facts['train'] + facts['val']} labels, the most suspicious first:",
        *(f"  {line}" for line in str(finding).splitlines()),
        "",
        "Next:",
        *(f"  {line:<40}{what}" for line, what in NEXT.items()),
        "",
        f"All of this took {facts['seconds']:.0f} s.",
    ]
    return lines
