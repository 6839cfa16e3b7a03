"""New nodes, new labels, mini-batches: how much is lost where a model is not trained again, or on a part at a time.

    python benchmarks/growth.py inductive --graphs digits --first 1000 --out benchmarks/results/inductive-digits-cpu.json
    python benchmarks/growth.py labels --graphs digits --first 1000 --out benchmarks/results/late-labels-digits-cpu.json
    python benchmarks/growth.py clusters --graphs pubmed --first 1000 --device cuda --out benchmarks/results/clusters-h200.json

inductive: test nodes and their edges are hidden in training and come back for the prediction; beside it the same split with
all nodes there from the start. labels: a share of the nodes has labels when a model is trained, then 10, 50 and 100 % as many
come: they vote without training (`predict`), or the model is trained again. clusters: the default recipe on the whole graph,
and on ten clusters in turn, with the memory of the GPU or, on a CPU, what the process grew by.

The tables of a result are also written as FILE.md, for the pages; `--table` only does that.

All divide the nodes as `benchmarks/accuracy.py` does: 20 % choose the epoch, 20 % score once, the same in all rows; splits 0
to 4 are for development, `--first 1000` takes those that are reported. Every training is a line of a ledger beside the
result.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ledgers import newest

from gcn_lpa import load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.engine.devices import choose_device, environment
from gcn_lpa.insight.compare import compare
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import clusters
from gcn_lpa.learning.updated import Updated
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba, scores
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.stats import mean_of
from gcn_lpa.train import DivergedError
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger
from reproduction.timing import PeakMemory

ROWS = {
    "graphsage": METHODS["graphsage"].fair(DEFAULT).replace(structure=False),
    "gcn": METHODS["gcn"].fair(DEFAULT).replace(structure=False),
    "graphsage, with columns of the graph": METHODS["graphsage"].fair(DEFAULT),
    "gcn, with columns of the graph": METHODS["gcn"].fair(DEFAULT),
    **{f"ours, {form} edges": DEFAULT.replace(edges=form) for form in EDGE_FORMS},
    "ours, without columns of the graph": DEFAULT.replace(structure=False),
}
SHARES = (0.05, 0.3)  # of the nodes: those that have labels at first
ARRIVING = (0.0, 0.1, 0.5, 1.0)  # as many come later, of those there were


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("inductive", "labels", "clusters"))
    parser.add_argument("--graphs", default="pubmed,coauthor-cs,digits")
    parser.add_argument("--rows", help="of the study inductive, with ; between them", default=";".join(ROWS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", required=True)
    parser.add_argument("--table", action="store_true", help="write the tables of a result that is there, train nothing")
    parser.add_argument("--any-code", action="store_true", help="train nothing, take also what earlier code trained")
    given = parser.parse_args()
    if given.table:
        return write_tables(Path(given.out))
    cases = [{"row": row} for row in given.rows.split(";")]
    if given.study == "labels":
        cases = [{"share": share} for share in SHARES]
    elif given.study == "clusters":
        cases = [{"clusters": number} for number in (0, 10)]
    jobs = [
        {"study": given.study, "graph": graph, **case, "split": given.first + k}
        for graph in given.graphs.split(",")
        for case in cases
        for k in range(given.splits)
    ]
    out = Path(given.out)
    work = partial(STUDIES[given.study], root=given.root, device=given.device)
    ledger, trained_by = out.with_suffix(".jsonl"), {}
    if given.any_code:
        records, trained_by["codes"] = newest(ledger, jobs, by="row" if given.study == "inductive" else "graph")
    else:
        records = Ledger(ledger).run(jobs, work, workers=given.workers, on_outcome=print)
    rows = TABLES[given.study](records)
    devices = dict(Counter(record["device"] for record in records))
    about = {"devices": devices, "code": code_hash(), **trained_by, "environment": environment()}
    write_json(out, {"rows": rows, **about})
    return write_tables(out)


def write_tables(out: Path) -> int:
    """A table for each graph, beside the result."""
    tables = []
    for graph, lines in json.loads(out.read_text(encoding="utf-8"))["rows"].items():
        head = [graph, *next(iter(lines.values()))]
        cells = [head, ["---"] * len(head), *([name, *facts.values()] for name, facts in lines.items())]
        tables.append("".join(f"| {' | '.join(line)} |\n" for line in cells))
    out.with_suffix(".md").write_text("\n".join(tables), encoding="utf-8")
    print("\n".join(tables))
    return 0


def named(job, root):
    """The graph of a job; its nodes have names, by which those of a part are known again."""
    graph = load(job["graph"], root)
    return dataclasses.replace(graph, node_names=[f"n{i}" for i in range(graph.num_nodes)])


def inductive(job: dict, root: str | None, device: str) -> dict:
    graph, recipe, seed = named(job, root), ROWS[job["row"]], job["split"]
    parts = split(graph, seed=seed)
    shown = ~parts.test
    whole = steady(graph, parts.train, parts.val, recipe, seed, device)
    without = graph.subgraph(shown)
    part = steady(without, parts.train[shown], parts.val[shown], recipe, seed, device)
    updated = Updated.of(part, graph, without)
    return {
        "transductive": scores(graph, parts.test, predict_proba(whole, graph, raw=True), whole.target).accuracy,
        "inductive": scores(graph, parts.test, predict_proba(updated.adapted, graph, raw=True), part.target).accuracy,
        "nodes": int(parts.test.sum()),
        "diverged": (whole.recipe.lr != recipe.lr) + (part.recipe.lr != recipe.lr),
        "edges_hidden": graph.num_edges - without.num_edges,
        "seconds": round(whole.run.seconds + part.run.seconds, 2),
        "split_hash": parts.hash,
        "recipe_hash": recipe.hash(),
        "device": device,
    }


def steady(graph, train, val, recipe, seed, device):
    """Trained; where training diverges, at a tenth of the learning rate, as its error advises."""
    try:
        return learn(graph, train, val, recipe, seed=seed, device=device)
    except DivergedError:
        return learn(graph, train, val, recipe.replace(lr=recipe.lr / 10), seed=seed, device=device)


def late_labels(job: dict, root: str | None, device: str) -> dict:
    """Accuracy with the labels there were, with those that came as voters, and after training with all of them."""
    graph, seed, share = named(job, root), job["split"], job["share"]
    parts = split(graph, seed=seed)
    pool = parts.train.nonzero().squeeze(1).numpy()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(pool)
    num_first = round(share * int(graph.labeled.sum()))
    found = {"nodes": int(parts.test.sum()), "split_hash": parts.hash, "recipe_hash": DEFAULT.hash(), "device": device}
    first = None
    for more in ARRIVING:
        train = torch.zeros(graph.num_nodes, dtype=torch.bool)
        train[torch.from_numpy(order[: round(num_first * (1 + more))])] = True
        trained = learn(graph, train, parts.val, DEFAULT, seed=seed, device=device)
        first = first or trained
        start = time.perf_counter()
        voted = predict_proba(first, graph, known=train, raw=True)
        said = {"voted": voted, "retrained": predict_proba(trained, graph, known=train, raw=True)}
        found[f"+{more:.0%}"] = {
            **{how: scores(graph, parts.test, p, first.target).accuracy for how, p in said.items()},
            "labels": int(train.sum()),
            "seconds_to_vote": round(time.perf_counter() - start, 3),
            "seconds_to_train": round(trained.run.seconds, 2),
        }
    return found


def clusters_of(job: dict, root: str | None, device: str) -> dict:
    graph, seed = load(job["graph"], root), job["split"]
    parts, recipe = split(graph, seed=seed), DEFAULT.replace(clusters=job["clusters"])
    with PeakMemory(choose_device(device)) as peak:
        (record,) = compare(graph, ["gcn-lpa"], splits=[parts], seed=seed, recipe=recipe, device=device).records
    assert peak.mib is not None
    return {
        "accuracy": record.accuracy,
        "megabytes": peak.mib * 2**20 / 1e6,
        "cut": share_cut(graph, job["clusters"]) if job["clusters"] else 0.0,
        "best_epoch": record.best_epoch,
        "seconds": round(record.seconds, 2),
        "split_hash": parts.hash,
        "recipe_hash": recipe.hash(),
        "device": device,
    }


def share_cut(graph, number: int) -> float:
    """The share of the edges that are between two clusters, and in no batch."""
    cluster, row, col = clusters(graph, number), graph.row.cpu().numpy(), graph.col.cpu().numpy()
    return float((cluster[row] != cluster[col]).sum() / max(1, (row != col).sum()))


def clusters_table(records: list) -> dict:
    """For each graph and number of clusters accuracy, memory and time, and the paired difference to the whole graph."""
    found: dict = {}
    for record in records:
        found.setdefault(record["graph"], {}).setdefault(record["clusters"], []).append(record)
    usual = Counter(record["device"] for record in records).most_common(1)[0][0]  # whose time and memory are told

    def median(some: list, what: str) -> float:
        return float(np.median([record[what] for record in some if record["device"] == usual]))

    return {
        graph: {
            f"{number} clusters" if number else "the whole graph": {
                "accuracy": interval(record["accuracy"] for record in some),
                "difference": interval(record["accuracy"] - whole["accuracy"] for record, whole in zip(some, rows[0], strict=True)),
                "megabytes": f"{median(some, 'megabytes'):.0f}",
                "seconds": f"{median(some, 'seconds'):.1f}",
                "edges cut": f"{np.mean([record['cut'] for record in some]):.1%}",
            }
            for number, some in rows.items()
        }
        for graph, rows in found.items()
    }


def inductive_table(records: list) -> dict:
    """For each graph and row the mean and 95 % interval of both settings and of their paired difference, over splits."""
    found: dict = {}
    for record in records:
        found.setdefault(record["graph"], {}).setdefault(record["row"], []).append(record)
    return {
        graph: {
            row: {
                "transductive": interval(record["transductive"] for record in some),
                "inductive": interval(record["inductive"] for record in some),
                "difference": interval(record["inductive"] - record["transductive"] for record in some),
            }
            for row, some in rows.items()
        }
        for graph, rows in found.items()
    }


def labels_table(records: list) -> dict:
    """For each graph, share and number of new labels the gain of voting and of training again, over splits."""
    found: dict = {}
    for record in records:
        found.setdefault(record["graph"], {}).setdefault(record["share"], []).append(record)
    return {
        graph: {
            f"{share:.0%} of the nodes, +{more:.0%}": {
                "voted": interval(record[f"+{more:.0%}"]["voted"] for record in some),
                "retrained": interval(record[f"+{more:.0%}"]["retrained"] for record in some),
                "gain of voting": interval(record[f"+{more:.0%}"]["voted"] - record["+0%"]["voted"] for record in some),
                "left to training": interval(
                    record[f"+{more:.0%}"]["retrained"] - record[f"+{more:.0%}"]["voted"] for record in some
                ),
            }
            for share, some in shares.items()
            for more in ARRIVING
        }
        for graph, shares in found.items()
    }


def interval(values) -> str:
    return str(mean_of(np.array(list(values))))


STUDIES = {"inductive": inductive, "labels": late_labels, "clusters": clusters_of}
TABLES = {"inductive": inductive_table, "labels": labels_table, "clusters": clusters_table}


if __name__ == "__main__":
    sys.exit(main())
