"""The blocks of the pages, each a function from the folder of the repository and its arguments to lines of Markdown.

Tables and facts are made of committed results; the reference of recipes, commands and files is made of the code.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.published_numbers import PUBLISHED

FIVE = {
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
    "coauthor-cs": "Coauthor-CS",
    "coauthor-phy": "Coauthor-Phy",
}
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
BLOCKS: dict[str, Callable[..., list[str]]] = {}


def block(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    BLOCKS[function.__name__] = function
    return function


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def result(root: Path, name: str) -> Any:
    """A result by the name of its file."""
    folders = (root / "benchmarks" / "results", root / "results")
    (path,) = (folder / f"{name}.json" for folder in folders if (folder / f"{name}.json").is_file())
    return json.loads(read(path))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(";") if one.strip()]


# tables that a command has written


@block
def table(root: Path, file: str, number: str, rows: str = "", columns: str = "") -> list[str]:
    """Table `number` of a result in Markdown; of it the rows and columns that are named, in their order."""
    tables = TABLE.findall(read(root / file))
    if not int(number) <= len(tables):
        raise ValueError(f"{file} has {len(tables)} tables, no table {number}")
    heads, _, *body = ([c.strip() for c in line.strip("|").split("|")] for line in tables[int(number) - 1].splitlines())
    by_name = {cells[0].strip("*"): cells for cells in body}
    wanted = [by_name[name] for name in listed(rows)] if rows else body
    places = [0, *(heads.index(name) for name in listed(columns))] if columns else range(len(heads))
    return markdown([heads[k] for k in places], [[cells[k] for k in places] for cells in wanted])


@block
def scores(root: Path, name: str, what: str, columns: str = "", turned: str = "") -> list[str]:
    """One score of a result of benchmarks/accuracy.py or tables.py: a row for each graph, or `turned`, one for each method."""
    found = result(root, name)["rows"]
    methods = listed(columns) or [row for row in next(iter(found.values())) if what != "difference" or row != "default"]
    cells = {graph: [rows[method].get(what, "") for method in methods] for graph, rows in found.items()}
    if turned:
        return markdown(["", *found], [[method, *(c[k] for c in cells.values())] for k, method in enumerate(methods)])
    return markdown(["", *methods], [[graph, *c] for graph, c in cells.items()])


# README.md


RIVALS = {
    "label propagation": "lpa",
    "GCN, untuned": "gcn",
    "GraphSAGE, untuned": "graphsage",
    "gcn-lpa `default`": "default",
    "gcn-lpa `best`": "best + wide",
}


@block
def accuracy_and_time(root: Path) -> list[str]:
    """Accuracy on named graphs with the seconds of one training, and on tables, beside what a reader would pick."""
    sixty, tables = result(root, "accuracy-60-h200")["rows"], result(root, "tables-cpu")["rows"]
    seconds = medians(root, "accuracy-60-h200", "pubmed"), medians(root, "tables-cpu", "both")
    graphs = ("cora", "pubmed", "coauthor-cs", "squirrel-filtered")
    rows = []
    for name, row in RIVALS.items():
        cells = [sixty[graph][row]["accuracy"] for graph in graphs]
        other = {"lpa": "lpa", "default": "default", "best + wide": "best"}.get(row)
        more = [tables["both"][other]["accuracy"], time(seconds[1][other])] if other else ["", ""]
        rows.append([name, *cells, time(seconds[0][row]), *more])
    tuned = {row.graph: row.published for row in PUBLISHED if row.source.startswith("tuned")}
    rows.insert(3, ["tuned GNNs, as published, other splits", *(tuned.get(graph, "") for graph in graphs), "", "", ""])
    cells = [tables["both"]["lightgbm"]["accuracy"], time(seconds[1]["lightgbm"])]
    rows.insert(3, ["LightGBM on own and neighbours' columns", "", "", "", "", "", *cells])
    return markdown(["accuracy, %", *graphs, "time, pubmed", "a table", "time"], rows)


def medians(root: Path, name: str, graph: str) -> dict[str, float]:
    """The median seconds of each method's reported trainings on a graph."""
    found: dict[str, list[float]] = {}
    for task, facts in ledger(root, name):
        if task["graph"] == graph:
            found.setdefault(task["row"], []).append(facts["seconds"])
    return {row: statistics.median(values) for row, values in found.items()}


def ledger(root: Path, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Task and result of each reported training."""
    lines = map(json.loads, read(root / "benchmarks" / "results" / f"{name}.jsonl").splitlines())
    pairs = [(line["task"], line["result"]) for line in lines]
    return [(task, facts) for task, facts in pairs if task.get("split", task.get("seed")) >= 1000]


def time(seconds: float) -> str:
    if seconds < 0.1:
        return "< 0.1 s"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


@block
def worth(root: Path) -> list[str]:
    """What learned edges and λ are worth: on average, and where most."""
    edges, types = result(root, "our-claims")["learned edges"], result(root, "relations-cpu")["rows"]
    mean, interval = (100 * edges[name] for name in ("mean", "interval"))
    noise = result(root, "accuracy-noise-h200")["rows"]
    without = [rows["- learned edges"]["difference"].split(" ± ") for rows in noise.values()]
    forms = result(root, "aggregations-h200")["rows"]
    typed = "; ".join(types[name]["difference"] for name in ("one tells", "neither tells"))
    weighed = result(root, "edge-columns-cpu")["rows"]
    telling = ", ".join(weighed[name]["difference"] for name in ("amount", "recency", "type"))
    columns = f"{telling}; {weighed['none']['difference']}"
    gains = [forms[graph]["mean"]["λ = 0 less fixed"] for graph in ("pubmed", "coauthor-cs", "coauthor-phy")]
    return markdown(
        ["learned of edges", "gain, points of accuracy", "file"],
        [
            [
                f"weights and λ, in the default ensemble, mean over {len(edges['graphs'])} graphs",
                f"{mean + 0.0:.1f} ± {interval:.1f}".replace("-0.0", "0.0"),
                "our-claims.json",
            ],
            [
                f"the same, with as many random edges added; {', '.join(noise)}",
                ", ".join(f"{-float(less):.1f} ± {interval}" for less, interval in without),
                "accuracy-noise-h200.json",
            ],
            [
                "cosine edges in one two-layer GCN (mean); pubmed, coauthor-cs, coauthor-phy",
                ", ".join(gains),
                "aggregations-h200.json",
            ],
            ["edge types, generated graphs: one type tells the class; neither tells", typed, "relations-cpu.json"],
            ["edge columns, generated graphs: amount, date, type; none tells", columns, "edge-columns-cpu.json"],
        ],
    )


# accuracy, cost


@block
def cost(root: Path) -> list[str]:
    """Seconds of one training on two CPU cores and on a GPU."""
    sizes = {"both": "a table of 2,000 nodes", "large": "a table of 20,000 nodes"}
    rows: dict[str, dict[str, str]] = {}
    for device, name in (("two CPU cores", "cost-cpu"), ("one H200", "cost-h200")):
        for line in result(root, name)["rows"]:
            what = sizes.get(line.get("table"), line.get("graph"))
            how = line.get("recipe") or f"default by {line['held_out']}"
            rows.setdefault(f"{what}, {how}", {})[device] = time(line["seconds"])
    devices = ("two CPU cores", "one H200")
    return markdown(["one training", *devices], [[name, *(cells.get(d, "") for d in devices)] for name, cells in rows.items()])


@block
def many_splits(root: Path) -> list[str]:
    """Ten splits together, as `compare` trains them, in units of one."""
    rows = []
    for device, name in (("two CPU cores", "stacks-cpu"), ("one H200", "stacks-h200")):
        many = {(line["recipe"], line["models"]): line["seconds"] for line in result(root, name)["rows"]}
        rows.append([device, *(f"{many[recipe, 10] / many[recipe, 1]:.1f}" for recipe in ("default", "hops", "gcn"))])
    return markdown(["ten splits over one", "default", "hops", "gcn"], rows)


@block
def relations(root: Path) -> list[str]:
    """Edge types on generated graphs."""
    rows = [
        [name, cells["default"], cells["with relations"], cells["difference"]]
        for name, cells in result(root, "relations-cpu")["rows"].items()
    ]
    return markdown(["which types tell the class", "without", "with types", "gain"], rows)


# confidence, auditing, advice, explaining


def plus_minus(found: Any, digits: int = 1, scale: float = 100, sign: bool = False) -> str:
    mean, interval = (found["mean"], found["interval"]) if isinstance(found, dict) else (found.mean, found.interval)
    return f"{scale * mean:{'+' if sign else ''}.{digits}f} ± {scale * interval:.{digits}f}"


@block
def calibration(root: Path) -> list[str]:
    rows = []
    for file in ("calibration-small-cpu", "calibration-large-h200"):
        for one in result(root, file)["summary"]:
            if one["protocol"] == "reserved" and one["method"] != "gcn":
                ece, perfect, sets = one["ece"], one["ece_perfect"], one["sets"]["lac 0.9"]
                cells = [f"{100 * ece[kind]:.2f}" for kind in ("model", "temperature", "calibrated")]
                most = f"{100 * perfect['high']:.2f}"
                rows.append([FIVE[one["dataset"]], *cells, most, plus_minus(sets["coverage"]), f"{sets['size']['mean']:.2f}"])
    heads = ["ECE, %", "model", "temperature", "calibrated", "perfect, at most", "90 % sets cover", "their size"]
    return markdown(heads, rows)


@block
def own_folders(root: Path) -> list[str]:
    """ECE of hidden labels by the probabilities of the model, calibrated with next to no pull, and as training does."""
    rows = []
    for name, found in result(root, "confidence-cpu")["rows"].items():
        ways = [f"{found[way]['ece']:.2f}" for way in ("model", "hardly pulled", "calibrated")]
        rows.append([f"graphs the pull was {name}" if name == "chosen on" else "graphs left out of that", *ways])
        rows[-1] += [found["calibrated"]["to model"], str(found["runs"])]
    return markdown(["ECE, %", "model", "calibrated, hardly pulled", "calibrated", "against the model", "runs"], rows)


@block
def out_of_reach(root: Path) -> list[str]:
    """How often nodes out of reach are right, and what is stated, calibrated as all others and apart."""
    found = result(root, "confidence-alone-cpu")["rows"]
    stated = [f"{100 * found[way]['stated']:.1f}" for way in ("as others", "apart")]
    heads = ["nodes that no label reaches", "right, %", "stated, as others", "stated, apart", "runs"]
    return markdown(heads, [[f"{found['nodes']:,}", f"{100 * found['right']:.1f}", *stated, str(found["runs"])]])


def audited(root: Path, what: str, names: dict[str, str], files: Sequence[str]) -> list[str]:
    found: dict[str, Any] = {}
    for file in files:
        found |= result(root, file)["summary"]
    rows = [[said, *(plus_minus(found[graph][name][what], 3, 1) for graph in found)] for said, name in names.items()]
    return markdown(["", *(FIVE[graph] for graph in found)], rows)


@block
def audit_labels(root: Path) -> list[str]:
    """Precision at the number of planted errors."""
    names = {
        "gcn-lpa audit": "ours",
        "training loss, GCN-LPA": "own loss, gcn-lpa",
        "training loss, GCN": "own loss, gcn",
        "self-confidence of the same models": "self-confidence, our models",
        "self-confidence, 5-fold (cleanlab)": "self-confidence",
        "confidence margin, 5-fold (cleanlab)": "confidence margin",
        "leave-one-out LPA": "leave-one-out LPA",
    }
    return audited(root, "precision", names, ("audit-labels-small-cpu", "audit-labels-pubmed-h200"))


@block
def audit_edges(root: Path) -> list[str]:
    """AUC for added against original edges between two unlabelled nodes."""
    names = {
        "gcn-lpa audit": "ours",
        "disagreement of predictions": "posteriors disagree",
        "feature cosine": "feature cosine",
        "cosine edges, learned": "cosine edges",
        "free weights, log M": "free weights, log M",
        "GAT attention times degree": "GAT attention × degree",
        "common neighbours": "common neighbours",
    }
    return audited(root, "unlabelled", names, ("audit-edges-cora-cpu", "audit-edges-pubmed-h200"))


@block
def suggested(root: Path) -> list[str]:
    rows = []
    for dataset, place in (("cora", "cpu"), ("pubmed", "h200")):
        found = {one["strategy"]: one for one in result(root, f"suggest-{dataset}-{place}")["summary"]}
        cells = [plus_minus(found[strategy]["accuracy"]) for strategy in ("random", "entropy", "suggest")]
        rows.append(
            [
                FIVE[dataset],
                plus_minus(found["random"]["start"]),
                *cells,
                plus_minus(found["suggest"]["final"], sign=True),
            ]
        )
    return markdown(["", "start", "50 random", "50 of highest entropy", "50 suggested", "suggested less random"], rows)


@block
def explanations(root: Path) -> list[str]:
    rows = []
    for one in result(root, "explain-cpu")["results"]:
        times = f"{one['one_node_ms']:.0f} ms", f"{one['further_node_ms']:.0f} ms", f"{one['all_nodes_seconds']:.1f} s"
        rows.append([FIVE[one["dataset"]], str(one["lpa_hops"]), *times, f"{one['largest_gap']:.0e}"])
    return markdown(["", "hops", "one node", "a further node", "all nodes", "largest gap of votes to score"], rows)


@block
def pages_drawn(root: Path) -> list[str]:
    rows = []
    for said, kind in (("this page", "results"), ("Plotly, the graph alone", "plotly")):
        for one in result(root, "report-cpu")[kind]:
            cells = f"{one['nodes']:,}", f"{one['file_megabytes']:.1f}", f"{one['drawn_seconds']:.2f}"
            rows.append([said, *cells, f"{one['browser_growth_megabytes']:.0f}"])
    return markdown(["", "nodes", "file, MB", "drawn after, s", "browser grows by, MB"], rows)


# large graphs


@block
def memory(root: Path, name: str) -> list[str]:
    """Memory of a training, whole and in ten clusters; in brackets what `plan` says."""
    rows = []
    for graph, recipes in result(root, name)["rows"].items():
        for recipe, facts in recipes.items():
            sides = (f"{facts[s]['bytes'] / 1e6:.0f} ({facts[s]['estimate'] / 1e6:.0f})" for s in ("whole", "clusters"))
            rows.append([f"{graph}, {recipe}", *sides])
    return markdown(["MB (planned)", "whole graph", "ten clusters"], rows)


@block
def together(root: Path) -> list[str]:
    found = result(root, "distributed")
    gaps = {
        dtype: max(gap["weights"] for world, gap in found["gaps"].items() if world.endswith(dtype))
        for dtype in ("float64", "float32")
    }
    kills = found["kills_while_saving"]
    rows = [
        *([f"largest gap of weights to one process, {dtype}", f"{gap:.1e}"] for dtype, gap in gaps.items()),
        ["kills while checkpoints were saved", f"{kills['kills']}"],
        ["torn checkpoints", f"{kills['torn']}"],
    ]
    return markdown([f"{found['steps']} steps by up to four ranks", ""], rows)


@block
def ensembles_in_parts(root: Path) -> list[str]:
    rows = []
    for name, facts in result(root, "ensembles-in-parts")["cases"].items():
        rows.append([name, f"{facts['classes that differ']} of {facts['nodes predicted']:,}"])
        rows[-1].append(f"{facts['largest gap of a probability']:.0e}")
        rows[-1].append(" / ".join(f"{max(facts[name]) / 1e6:.2f}" for name in ("bytes received", "planned")))
    return markdown(["graph, recipe", "classes that differ", "largest gap of a probability", "MB received / planned"], rows)


@block
def partition(root: Path) -> list[str]:
    heads = ["", "`partition`", "one part, read for training", "ratio", "edges between parts", "processor seconds"]
    rows = []
    for name, facts in result(root, "partition-cpu")["rows"].items():
        rows.append([name, *(f"{facts[key] / 1e9:.2f} GB" for key in ("partition", "one part")), f"{facts['share']:.2f}"])
        rows[-1] += [f"{100 * facts['between parts']:.0f} %", f"{facts['cpu']:.0f}"]
    return markdown(heads, rows)


# performance


PRODUCTS = {
    "PyG GCN-LPA": "pyg gcn-lpa",
    "PyG GCN": "pyg gcn",
    "GCN on torch's CSR product": "csr gcn",
    "our GCN": "our gcn",
    "our GCN-LPA": "our gcn-lpa",
}


@block
def steps(root: Path, name: str) -> list[str]:
    """Milliseconds of a training step by the number of nodes."""
    found = {(t["rival"], t["nodes"]): t["milliseconds"] for t in result(root, name)["timings"] if t["captured"]}
    sizes = sorted({nodes for _, nodes in found})
    rows = [[said, *(f"{found[rival, n]:#.3g}" if (rival, n) in found else "" for n in sizes)] for said, rival in PRODUCTS.items()]
    return markdown(["ms a step, nodes:", *(f"{n:,}" for n in sizes)], rows)


@block
def million(root: Path) -> list[str]:
    """A million nodes in four settings."""
    rows = []
    for said, name in (
        ("7 classes, degrees alike", "epochs-work-7-h200"),
        ("7 classes, hubs", "epochs-hubs-7-h200"),
        ("40 classes, degrees alike", "epochs-work-40-h200"),
        ("40 classes, hubs", "epochs-hubs-40-h200"),
    ):
        found = {t["rival"]: t["milliseconds"] for t in result(root, name)["timings"] if t["captured"] and t["nodes"] == 10**6}
        ours, theirs = found["our gcn-lpa"], found["pyg gcn-lpa"]
        rows.append(
            [
                said,
                f"{ours:.2f}",
                f"{theirs:.1f}",
                f"{theirs / ours:.1f}",
                f"{100 * (ours / found['our gcn'] - 1):.0f} %",
            ]
        )
    return markdown(["a million nodes", "our GCN-LPA, ms", "PyG's, ms", "ratio", "more than our GCN"], rows)


@block
def limits(root: Path) -> list[str]:
    """What else was measured on the GPU."""
    seven = result(root, "epochs-work-7-h200")
    one = {t["rival"]: t for t in seven["timings"] if t["captured"] and t["nodes"] == 10**6}
    most = next(t for t in result(root, "epochs-largest-h200")["timings"] if t["captured"] and t["rival"] == "our gcn-lpa")
    ours, theirs = one["our gcn-lpa"], one["pyg gcn-lpa"]
    paper = result(root, "figure5")["data"]["paper"]["extra_percent_mean"]
    rows = [
        [
            "time over that of copying the bytes of the step, a million nodes",
            f"{ours['milliseconds'] / ours['floor_milliseconds']:.1f}",
        ],
        ["peak memory, GiB, a million nodes (PyG)", f"{ours['peak_mib'] / 1024:.1f} ({theirs['peak_mib'] / 1024:.1f})"],
        ["time grows as nodes to the power", f"{seven['growth_exponent']:.2f}"],
        ["largest graph: nodes, entries", f"{most['nodes']:,}, {most['entries']:,}"],
        ["its step, ms, and memory, GiB", f"{most['milliseconds']:.0f}, {most['peak_mib'] / 1024:.0f}"],
        ["gradients, relative distance to float64", f"{seven['gradient_error']:.1e}"],
        [
            "GCN-LPA over our GCN, mean of sizes (7 classes; the paper's graphs)",
            f"{seven['extra_percent_mean']:.0f} %, {paper:.0f} %",
        ],
    ]
    return markdown(["", "one H200"], rows)


@block
def products(root: Path) -> list[str]:
    kernels = {(t["kernel"], t["nodes"], t["columns"]): t["milliseconds"] for t in result(root, "kernels-cpu")["timings"]}
    rows = []
    for n in (10_000, 300_000):
        for d in (32, 7):
            each = [kernels[name, n, d] for name in ("pyg scatter", "chunked torch", "ours")]
            rows.append([f"{n:,} × {d}", *(f"{t:#.3g}".removesuffix(".") for t in each), f"{each[0] / each[2]:.1f}"])
    return markdown(["ms, nodes × columns", "PyG scatter", "torch, blocks of edges", "ours", "PyG / ours"], rows)


@block
def trainings(root: Path) -> list[str]:
    rows = []
    for dataset in ("cora", "coauthor-cs"):
        found = result(root, f"training-{dataset}-cpu")
        times = found["results"][0]
        names = ("pyg gcn, dense features", "pyg gcn, sparse features", "our gcn-lpa")
        cells = [f"{statistics.median(times[name]):.1f}" for name in names]
        rows.append([f"{dataset}, {found['epochs']} epochs", *cells, f"{times['ratio']:.1f}"])
    return markdown(["seconds", "PyG GCN, dense", "PyG GCN, sparse", "our GCN-LPA", "PyG's faster / ours"], rows)


@block
def first_page(root: Path) -> list[str]:
    seconds = result(root, "first-page-cpu")["seconds"]
    words = {
        "git clone": "clone",
        "pip install": "install, from an index nearby",
        "gcn-lpa train": "train and write the page",
    }
    rows = [[next(said for start, said in words.items() if name.startswith(start)), time(s)] for name, s in seconds.items()]
    return markdown(["from a clone to the page of `examples/club`", ""], rows)


@block
def end_to_end(root: Path) -> list[str]:
    way = result(root, "end-to-end-cpu")
    heads = ["from files to predictions", *way["seconds"], "in all", "memory"]
    cells = [f"{way['settings']['nodes']:,} nodes, {way['settings']['edges']:,} edges"]
    return markdown(heads, [[*cells, *(time(s) for s in way["seconds"].values()), time(way["total"]), f"{way['megabytes']:,} MB"]])


@block
def quick(root: Path) -> list[str]:
    """Processor seconds of the whole command and accuracy, of each graph and row; differences to the default before."""
    heads = ["graph", "", "draws", "processor seconds", "accuracy", "less the default before"]
    rows = [
        [graph, row, str(facts["draws"]), time(facts["cpu"]), facts["accuracy"], facts["difference"]]
        for graph, found in result(root, "quick-cpu")["rows"].items()
        for row, facts in found.items()
    ]
    return markdown(heads, rows)


@block
def quick_large(root: Path) -> list[str]:
    """What generated graphs take, from two CSV files to a table of predictions."""
    heads = ["nodes / edges", "minutes", "processor minutes", "memory", "accuracy"]
    rows = [
        [" / ".join(f"{float(size):,.0f}" for size in graph.split("/"))]
        + [f"{facts[name] / 60:.1f}" for name in ("seconds", "cpu")]
        + [f"{facts['megabytes'] / 1000:.1f} GB", facts["accuracy"]]
        for graph, found in result(root, "quick-large-cpu")["rows"].items()
        for facts in found.values()
    ]
    return markdown(heads, rows)
