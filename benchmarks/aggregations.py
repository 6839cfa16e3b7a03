"""Learned edges in layers that do not average: mean, sum, maximum and concatenation, the second open question of the paper.

    python benchmarks/aggregations.py --plan
    python benchmarks/aggregations.py --device cuda --workers 15 --minutes 3 --out benchmarks/results/aggregations-h200.json
    python benchmarks/aggregations.py --table --out benchmarks/results/aggregations-h200.json

Two layers of 64 (`recipes.LAYERS`, without the node's own x W', which a concatenation has by itself) on given edges, on
learned ones without the LPA loss (λ = 0), and with it. Learned edges are the form `cosine`, which starts at the given graph
for every aggregation. The splits are those that are reported, from 1000 on: ten of Cora, Citeseer and Pubmed and five of the
coauthor graphs, 60 % of the nodes train, 20 % choose the epoch, 20 % score once, the same in all rows; nothing is tuned.

Every training is a line of a ledger beside the result, so that a run that was stopped goes on. `--table` trains nothing: it
writes the result as a table, FILE.md.
"""

import argparse
import json
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from gcn_lpa import load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.predict import scores
from gcn_lpa.recipes import LAYERS
from gcn_lpa.stats import mean_of
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger
from reproduction.recipes import AGGREGATIONS, StudyRecipe
from reproduction.training import learn_once

ROOT = Path(__file__).parents[1]
SPLITS = {"coauthor-phy": 5, "coauthor-cs": 5, "pubmed": 10, "citeseer": 10, "cora": 10}  # the long ones first
OURS = StudyRecipe.of(LAYERS).replace(edges="cosine", residual=False)
EDGES = {"fixed": {"edges": "fixed", "lpa_weight": 0.0}, "λ = 0": {"lpa_weight": 0.0}, "λ": {}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(SPLITS))
    parser.add_argument("--splits", type=int, help="of each graph; without it ten, of the coauthor graphs five")
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=OURS.epochs)
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="after which no training is begun; the same command goes on")
    parser.add_argument("--plan", action="store_true", help="say how many trainings there are, and train nothing")
    parser.add_argument("--table", action="store_true", help="write a result as a table beside it")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "aggregations-h200.json")
    given = parser.parse_args()
    if given.table:
        return write_table(given.out)
    jobs = [
        {"graph": graph, "aggregation": name, "edges": edges, "split": given.first + k, "epochs": given.epochs}
        for graph in given.graphs.split(",")
        for k in range(given.splits or SPLITS[graph])
        for name in ("max", *(other for other in AGGREGATIONS if other != "max"))  # the longest first
        for edges in EDGES
    ]
    ledger = Ledger(given.out.with_suffix(".jsonl"))
    if given.plan:
        return say_plan(jobs, ledger, given.workers, given.minutes)
    until = None if given.minutes is None else time.perf_counter() + 60 * given.minutes
    work = partial(train_each, root=given.root, device=given.device)
    left = ledger.fill([[job] for job in jobs], work, workers=given.workers, on_outcome=print, until=until)
    if left:
        print(f"{left} of {len(jobs)} trainings are left; the same command goes on")
        return 1
    rows = table(ledger.read(jobs))
    write_json(given.out, {"rows": rows, "code": code_hash(), "environment": environment()})
    print(markdown(rows))
    return 0


def say_plan(jobs: list, ledger: Ledger, workers: int, minutes: float | None) -> int:
    missing = ledger.missing(jobs)
    for graph in dict.fromkeys(job["graph"] for job in jobs):
        here = [ledger.read([job])[0]["wall"] for job in jobs if job["graph"] == graph and job not in missing]
        mean = f", {np.mean(here):.2f} s each so far" if here else ""
        print(f"{graph:14} {sum(job['graph'] == graph for job in jobs):4} trainings, {len(here)} done{mean}")
    each = f"; in {minutes:g} minutes one may take {60 * minutes * workers / max(1, len(missing)):.1f} s" if minutes else ""
    print(f"{len(missing)} of {len(jobs)} trainings are left, {workers} at a time{each}")
    return 0


@cache
def graph_of(name: str, root: str | None):
    return load(name, root)


def train_each(jobs: list, root: str | None, device: str) -> list:
    return [train(job, root, device) for job in jobs]


def train(job: dict, root: str | None, device: str) -> dict:
    start = time.perf_counter()
    graph, seed = graph_of(job["graph"], root), job["split"]
    parts = split(graph, seed=seed)
    recipe = OURS.replace(aggregation=job["aggregation"], epochs=job["epochs"], **EDGES[job["edges"]])
    learned = learn_once(graph, parts.train, parts.val, recipe, seed=seed, device=device, threads=1)
    return {
        "accuracy": scores(graph, parts.test, learned.probabilities, learned.target).accuracy,
        "best_epoch": learned.run.best_epoch,
        "seconds": round(learned.run.seconds, 3),
        "wall": round(time.perf_counter() - start, 3),
        "split_hash": parts.hash,
        "recipe_hash": recipe.hash(),
        "device": device,
    }


def table(records: list) -> dict:
    """For each graph and aggregation the accuracy on each kind of edges, and the paired differences, over splits."""
    found: dict = {}
    for record in records:
        of = found.setdefault(record["graph"], {}).setdefault(record["aggregation"], {})
        of.setdefault(record["edges"], []).append(record["accuracy"])
    rows: dict = {}
    for graph in reversed(found):  # the paper's order: Cora first
        for name in AGGREGATIONS:
            fixed, learned, ours = (np.array(found[graph][name][edges]) for edges in EDGES)
            average = np.array(found[graph]["mean"]["λ"])
            rows.setdefault(graph, {})[name] = {
                "fixed": str(mean_of(fixed)),
                "λ = 0": str(mean_of(learned)),
                f"λ = {OURS.lpa_weight}": str(mean_of(ours)),
                "λ = 0 less fixed": str(mean_of(learned - fixed)),
                f"λ = {OURS.lpa_weight} less λ = 0": str(mean_of(ours - learned)),
                "less the mean": str(mean_of(ours - average)) if name != "mean" else "",
            }
    return rows


def markdown(rows: dict) -> str:
    head = ["", *next(iter(next(iter(rows.values())).values()))]
    lines = [[f"{graph}, {name}", *cells.values()] for graph, each in rows.items() for name, cells in each.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]) + "\n"


def write_table(out: Path) -> int:
    """The result beside itself as a table."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    out.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
