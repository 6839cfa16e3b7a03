"""Commands about data: info, partition; and demo, with the files to begin with that `init` writes."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gcn_lpa.cli.options import AsJson, Name, Options, Root, command, load_graph, reading
from gcn_lpa.cli.text import dataset_lines, info_lines, part_lines, percent, print_json, print_table, structural_note
from gcn_lpa.data.files import write_output

if TYPE_CHECKING:
    from gcn_lpa.data.splits import Split
    from gcn_lpa.graph import Graph
    from gcn_lpa.insight.answers import Explanation
    from gcn_lpa.insight.audit import LabelFinding
    from gcn_lpa.trained import Trained


@command
def info(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME_OR_FOLDER", help="A data set, or a folder with nodes.csv and edges.csv."),
    ] = None,
    root: Root = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Describe a graph: sizes, classes, homophily, components, reach; without a name, list the data sets that have one."""
    from gcn_lpa.data.datasets import DATASETS, list_datasets
    from gcn_lpa.data.describe import describe

    if name is None:
        found = list_datasets(root)
        return (
            print_json([dataclasses.asdict(one) for one in found])
            if as_json
            else print(*dataset_lines(found), sep="\n")
        )
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


NODES = """\
id,label,age,city,about
anna,chess,34,Lyon,opening theory and long endgames
ben,chess,29,Lyon,blitz games in the park
carla,,41,Turin,endgames and problem solving
dmitri,chess,52,Lyon,club captain
eva,,27,,plays online
farid,,38,Turin,opening theory
gina,go,33,Turin,territory and influence
hugo,,45,Nice,"stones, boards and tea"
ines,go,24,Nice,joseki study group
jan,,31,Nice,territory games
kim,go,36,Turin,life and death problems
lena,,48,Nice,joseki and tea
"""

EDGES = """\
source,target,weight
anna,ben,3
anna,carla,2
anna,dmitri,4
ben,dmitri,1
ben,eva,2
carla,farid,1
dmitri,farid,2
eva,farid,1
farid,gina,1
gina,hugo,2
gina,ines,3
gina,kim,4
hugo,jan,1
hugo,lena,2
ines,jan,2
ines,kim,1
jan,lena,1
kim,lena,3
"""

README = """\
# A graph for gcn-lpa

`nodes.csv`: one row for each node.

- `id`: any text or number, each once; it comes back unchanged in the output.
- `label`: the class of the node, empty where it is not known. At least two classes need a labelled node; a few of each are better.
- Any other columns become features: numbers (`age`), categories (`city`), text (`about`), dates, yes and no. Empty cells are fine.

`edges.csv`: one row for each edge.

- `source` and `target`: two ids of `nodes.csv`. Edges have no direction unless you say `-o directed=true`.
- `weight`: a positive number, larger for stronger; the column may be left out.

Replace the rows by your own, then:

    gcn-lpa info {folder}                        what is read, and what is made of each column
    gcn-lpa train {folder} --out run --report    labels in run/predictions.csv, the page in run/report.html
    gcn-lpa report run --serve                   the page with answers to further questions

Your columns have other names? `-o id=NAME -o label=NAME -o source=NAME -o target=NAME` says which is which.
"""


def write_starter(folder: str | Path) -> list[Path]:
    """Write nodes.csv, edges.csv and README.md into a folder that has none of them, and return their paths."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder to write the example into")
    texts = {"nodes.csv": NODES, "edges.csv": EDGES, "README.md": README.replace("{folder}", str(folder))}
    if there := [name for name in texts if (folder / name).exists()]:
        raise ValueError(f"{folder / there[0]} is there already and would be overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_output(folder / name, text.encode())
    return [folder / name for name in texts]


# That train; as many choose the epoch, weigh the votes and calibrate. The size was chosen among four for an earlier default, by
# looking at the results: gcn-lpa and lpa are about level on this graph, and the demo claims no more than its one split shows.
NUM_LABELS = 200
METHODS_SHOWN = ("gcn-lpa", "lpa", "gcn")
WIDTH = 80
NEXT = (
    ("gcn-lpa compare digits", "ten splits, with intervals"),
    ("gcn-lpa train digits --out runs/digits", "a model to keep and to ask"),
    ("gcn-lpa advise FOLDER", "your own nodes.csv and edges.csv"),
)


@dataclass(frozen=True)
class Shown:
    """One method on the one split."""

    method: str
    accuracy: float
    macro_f1: float
    seconds: float


@dataclass(frozen=True)
class Example:
    """What the model says of a node whose label was hidden."""

    node: int
    label: str
    probability: float
    runner_up: str
    hidden_label: str


@dataclass(frozen=True)
class Demonstration:
    """All that the demo shows."""

    graph: Graph
    parts: Split
    methods: tuple[Shown, ...]
    examples: tuple[Example, ...]  # the least sure, the one at 5 % and the median
    mean_probability: float  # of the nodes that are scored
    explanation: Explanation  # of the first example
    planted: int  # the node whose label was made wrong
    true_label: str
    rank: int  # of its label among those that look wrong, from 1
    finding: LabelFinding
    seconds: float

    @property
    def num_given(self) -> int:
        return int((self.parts.train | self.parts.val).sum())

    def to_dict(self) -> dict[str, Any]:
        sizes = {part: int(getattr(self.parts, part).sum()) for part in ("train", "val", "test")}
        return {
            **sizes,
            "methods": [dataclasses.asdict(one) for one in self.methods],
            "examples": [dataclasses.asdict(one) for one in self.examples],
            "mean_probability": self.mean_probability,
            "explanation": self.explanation.to_dict(),
            "planted": self.planted,
            "true_label": self.true_label,
            "rank": self.rank,
            "finding": dataclasses.asdict(self.finding),
            "seconds": self.seconds,
        }


def demonstrate() -> Demonstration:
    """Hide most labels of the digits, make one of the others wrong, and see what can be done."""
    from gcn_lpa.data.datasets import load
    from gcn_lpa.data.splits import split
    from gcn_lpa.insight.audit import audit_labels
    from gcn_lpa.insight.compare import recipes_of
    from gcn_lpa.insight.explain import explain
    from gcn_lpa.learning.learn import learn
    from gcn_lpa.predict import evaluate

    start, true = time.perf_counter(), load("digits")
    share = NUM_LABELS / true.num_nodes
    parts = split(true, (share, share, 1 - 2 * share), seed=0)
    graph, planted = with_wrong_label(true, parts)
    models, methods = {}, []
    for name, recipe in recipes_of(graph.reveal(parts.train), METHODS_SHOWN, "default", {}).items():
        begin = time.perf_counter()
        models[name] = learn(graph, parts.train, parts.val, recipe, device="cpu")
        seconds, found = time.perf_counter() - begin, evaluate(models[name], graph, parts.test)
        methods.append(Shown(name, found.accuracy, found.macro_f1, seconds))
    trained = models["gcn-lpa"]
    examples, mean_probability = examples_of(trained, graph, parts)
    audit = audit_labels(trained, graph, folds=3, repeats=1, device="cpu")
    rank = next(k for k, row in enumerate(audit.findings) if row.node == planted)
    return Demonstration(
        graph=graph,
        parts=parts,
        methods=tuple(methods),
        examples=examples,
        mean_probability=mean_probability,
        explanation=explain(trained, graph, examples[0].node, top=3),
        planted=planted,
        true_label=true.class_names[int(true.y[planted])],
        rank=rank + 1,
        finding=audit.findings[rank],
        seconds=time.perf_counter() - start,
    )


def with_wrong_label(graph: Graph, parts: Split) -> tuple[Graph, int]:
    """The graph with another label at its first training node, and that node."""
    node = int(parts.train.nonzero()[0])
    y = graph.y.clone()
    y[node] = (y[node] + graph.num_classes // 2) % graph.num_classes
    return dataclasses.replace(graph, y=y), node


def examples_of(trained: Trained, graph: Graph, parts: Split) -> tuple[tuple[Example, ...], float]:
    """The scored nodes of lowest probability, at its 5 % quantile and its median, and the mean probability of all of them."""
    from gcn_lpa.predict import predictions

    table = predictions(trained, graph)[parts.test.numpy()].sort_values("probability", kind="stable")
    chosen = table.iloc[[0, len(table) // 20, len(table) // 2]]
    examples = (
        Example(
            row.id,
            row.label,
            float(row.probability),
            row.runner_up,
            graph.class_names[int(graph.y[graph.index_of(row.id)])],
        )
        for row in chosen.itertuples()
    )
    return tuple(examples), float(table["probability"].mean())


def demo_lines(found: Demonstration) -> list[str]:
    """What follows the table of methods."""
    row, accuracy = found.finding, percent(found.methods[0].accuracy)
    num_scored = int(found.parts.test.sum())
    apart = round(abs(found.methods[0].accuracy - found.methods[1].accuracy) * num_scored)
    says = [
        f"  image {one.node:<5} {one.label}  {percent(one.probability):>7}  "
        f"runner-up {one.runner_up}; it is {one.hidden_label}"
        for one in found.examples
    ]
    return [
        f"The first two differ by {apart} of {num_scored:,} images, on one split: no sign which is better.",
        "",
        "How sure? Calibrated probabilities: the lowest, one at 5 %, and the median.",
        *says,
        f"Their mean over the hidden images is {percent(found.mean_probability)}; {accuracy} are right.",
        "",
        "Why? The least sure image, before calibration:",
        *(f"  {line}" if line else "" for line in str(found.explanation).splitlines()),
        "",
        f"A wrong label: image {found.planted} is a {found.true_label}, and we called it a {row.label}.",
        f"It is number {found.rank} of {found.num_given} labels, the most suspicious first:",
        *(f"  {line}" for line in str(row).splitlines()),
        "",
        "Next:",
        *(f"  {line:<40}{what}" for line, what in NEXT),
        "",
        f"All of this took {found.seconds:.0f} s.",
    ]


def wrapped(line: str) -> list[str]:
    """A line in pieces of at most WIDTH columns, indented as it is."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent) if len(line) > WIDTH else [line]


@command
def demo(as_json: AsJson = False) -> None:
    """Label handwritten digits from a few hundred labels: how sure, why, and which label is wrong."""
    found = demonstrate()
    if as_json:
        return print_json(found.to_dict())
    graph = found.graph
    train, val, test = (int(mask.sum()) for mask in (found.parts.train, found.parts.val, found.parts.test))
    print(f"{graph.num_nodes:,} images of digits, each joined to the 10 nearest, {graph.num_edges:,} edges.")
    print(f"{train} labels train, {val} choose the epoch and calibrate, {test:,} are hidden.\n")
    rates = [
        (one.method, percent(one.accuracy), percent(one.macro_f1), f"{one.seconds:.1f} s") for one in found.methods
    ]
    print_table(("", "accuracy", "macro-F1", "training"), rates)
    for line in demo_lines(found):
        print("\n".join(wrapped(line)))
