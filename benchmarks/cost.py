"""What training costs: folders of your own with the recipes `default` and `best`, and `best` against `default` on one split.

    python benchmarks/cost.py [--repeats 3] [--what folders,budget,splits] [--root DIR] [--out benchmarks/results/cost-cpu.json]
    python benchmarks/cost.py --what splits,held-out --device cuda --out benchmarks/results/cost-h200.json

Folders are those of benchmarks/tables.py: `both` has 2,000 nodes, `large` 20,000. They are trained as `gcn-lpa train FOLDER` does.
Cora and Pubmed are trained on development splits. `held-out` trains the default on the labels of `large`, with a fifth of them held
out and by five folds. For each training: seconds on the clock,
processor seconds of this process and of those it forked, and how many processes wanted the processor (load). On a busy machine
seconds on the clock say little; `parallel` is what a quiet one would take if forked processes shared all its cores evenly:
own + forked / cores.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from ledgers import newest
from tables import TABLES, write_table

from gcn_lpa import learn, load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import Recipe, case_of, recipe_for
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

FOLDERS = [("both", "default", 0.0), ("large", "best", 0.0)]  # table, recipe, minutes
BUDGET = [("large", "best", 5.0)]
HELD_OUT = [("large", "one part"), ("large", "five folds")]
SPLITS = [(graph, recipe) for graph in ("cora", "pubmed") for recipe in ("default", "best")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--what", default="folders,splits")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu", help="of all but folders")
    parser.add_argument("--out", default="benchmarks/results/cost-cpu.json")
    parser.add_argument("--any-code", action="store_true", help="train nothing, take also what earlier code trained")
    given = parser.parse_args()
    folders, budget = (
        [{"table": table, "recipe": recipe, "minutes": minutes} for table, recipe, minutes in each] for each in (FOLDERS, BUDGET)
    )
    splits = [{"graph": graph, "recipe": recipe} for graph, recipe in SPLITS]
    held_out = [{"table": table, "held_out": how} for table, how in HELD_OUT]
    kinds = [
        kind
        for name in given.what.split(",")
        for kind in {"folders": folders, "budget": budget, "splits": splits, "held-out": held_out}[name]
    ]
    jobs = [{**kind, "repeat": k} for k in range(given.repeats) for kind in kinds]
    out, work = Path(given.out), partial(measured, root=given.root, device=given.device)
    ledger = out.with_suffix(".jsonl")
    records = newest(ledger, jobs, by="recipe")[0] if given.any_code else Ledger(ledger).run(jobs, work, workers=1)
    rows = [medians(kind, records) for kind in kinds]
    write_json(out, {"rows": rows, "code": code_hash(), "environment": environment()})
    for row in rows:
        print(row)
    return 0


def measured(job: dict, root: str | None, device: str) -> dict:
    """Train once. The seeds of tables and splits are those of development."""
    if "table" in job:
        with tempfile.TemporaryDirectory() as place:
            write_table(Path(place), TABLES[job["table"]], job["repeat"])
            minutes = job.get("minutes", 0.0)
            plan, graph = make_plan(Source(place), recipe=job.get("recipe", "default"), minutes=minutes, has_time=minutes > 0)
        if "held_out" in job:
            labeled, val = graph.labeled.cpu(), None
            if job["held_out"] == "one part":
                val = torch.zeros_like(labeled).index_fill(0, labeled.nonzero().squeeze(1)[::5], True)
            for recipe in (
                plan.recipe.replace(epochs=5),
                plan.recipe,
            ):  # first, kernels are compiled and libraries loaded
                found = timed(partial(learned, graph, val, recipe, device))
            return found
        return timed(lambda: train_run(plan, graph, device="cpu").plan.recipe)
    graph = load(job["graph"], root)
    parts = split(graph, seed=job["repeat"])
    recipe = recipe_for(case_of(graph, parts.train), job["recipe"])
    if device != "cpu":  # kernels are compiled and libraries loaded
        learn(graph, parts.train, parts.val, recipe.replace(epochs=5), device=device)
    return timed(lambda: learn(graph, parts.train, parts.val, recipe, device=device).recipe)


def learned(graph: Graph, val, recipe: Recipe, device: str) -> Recipe:
    return learn(graph, None, val, recipe, device=device).recipe


def timed(train) -> dict:
    start, own, forked = time.perf_counter(), *map(processor_seconds, WHO)
    recipe = train()
    own, forked = (processor_seconds(who) - before for who, before in zip(WHO, (own, forked), strict=True))
    return {
        "seconds": time.perf_counter() - start,
        "own": own,
        "forked": forked,
        "parallel": own + forked / (os.cpu_count() or 1),
        "load": os.getloadavg()[0],
        "members": recipe.members,
    }


WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def medians(kind: dict, records: list) -> dict:
    mine = [record for record in records if all(record.get(name) == value for name, value in kind.items())]
    numbers = ("seconds", "own", "forked", "parallel", "load")
    found = {name: round(statistics.median(record[name] for record in mine), 2) for name in numbers}
    return {**kind, **found, "repeats": len(mine), "members": mine[0]["members"], "code": mine[0]["code"]}


if __name__ == "__main__":
    sys.exit(main())
