r"""What kinds of edges give: the default recipe with `relation=kind`, and without reading the kind at all, on generated folders.

    PYTHONPATH=. python benchmarks/relations.py --seeds 10 --out benchmarks/results/relations-cpu.json

Every graph has 1,000 nodes of four classes, eight columns that tell a little, and two kinds of edges. In `one tells` edges "cites"
mostly join nodes of one class and edges "same city", three times as many, join nodes at random. In `both tell` there are as
many of each, and both mostly join nodes of one class. In `neither tells` the same edges have one of the two names at random. The
settings were fixed before training. Both rows are `gcn-lpa train FOLDER --split uniform` with the same seed, and so the same
nodes to learn from; the difference is paired.

    PYTHONPATH=. python benchmarks/relations.py --acm --seeds 5 --device cuda --workers 4 \
        --out benchmarks/results/relations-acm-h200.json

With --acm the graph is that of papers that share an author or a subject, on the published splits of 20, 40 and 60 labels a class,
whose validation nodes choose: with both types, with the edges of both and no types, and with the edges of either type alone. Each
training is a line of a ledger; a run that was ended goes on.
"""

import argparse
import csv
import dataclasses
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.ledgers import newest
from gcn_lpa import evaluate, learn, load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.stats import mean_of
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

NODES, CLASSES, COLUMNS = 1000, 4, 8
SIGNAL = 0.5  # distance of the means of the classes in each column, where the noise is 1
GRAPHS = {  # of each kind the mean degree, and the share of its edges that join nodes of one class by design
    "one tells": {"cites": (3, 0.6), "same city": (9, 0.0)},
    "both tell": {"cites": (4, 0.4), "same city": (4, 0.4)},
    "neither tells": {"cites": (4, 0.4), "same city": (4, 0.4)},
}
ROWS = {"default": {"edge_features": ""}, "with relations": {"relation": "kind"}}
ACM_LABELS, ACM_ROWS = (20, 40, 60), ("with types", "without", "same author", "same subject")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--acm", action="store_true")
    parser.add_argument("--any-code", action="store_true", help="--acm: train nothing, take also what earlier code trained")
    parser.add_argument("--device", default="cpu", help="of --acm")
    parser.add_argument("--workers", type=int, default=1, help="of --acm")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    if given.acm:
        return of_acm(given)
    found: dict[str, dict[str, list]] = {}
    for graph in GRAPHS:
        found[graph] = {row: [] for row in ROWS}
        for seed in range(given.seeds):
            for row, result in generated(graph, seed).items():
                found[graph][row].append(result)
            last = [runs[-1] for runs in found[graph].values()]
            print(graph, seed, *(f"{run['accuracy']:.3f}" for run in last), last[1]["shares"], flush=True)
    rows = {graph: summary(runs) for graph, runs in found.items()}
    write_json(given.out, {"rows": rows, "runs": found, "code": code_hash(), "environment": environment()})
    for graph, facts in rows.items():
        print(graph, facts)
    return 0


def of_acm(given: argparse.Namespace) -> int:
    out = Path(given.out)
    jobs = [
        {"labels": labels, "row": row, "seed": seed} for seed in range(given.seeds) for labels in ACM_LABELS for row in ACM_ROWS
    ]
    work, rows, trained_by = partial(papers, device=given.device), {}, {}
    if given.any_code:
        records, trained_by["codes"] = newest(out.with_suffix(".jsonl"), jobs)
    else:
        records = Ledger(out.with_suffix(".jsonl")).run(jobs, work, workers=given.workers)
    for labels in ACM_LABELS:
        of = {row: np.array([r["accuracy"] for r in records if (r["labels"], r["row"]) == (labels, row)]) for row in ACM_ROWS}
        facts = {row: {"accuracy": str(mean_of(values))} for row, values in of.items()}
        for row in ACM_ROWS[1:]:
            facts[row]["with types is above by"] = str(mean_of(of["with types"] - of[row]))
        rows[f"{labels} a class"] = facts
        print(labels, facts)
    write_json(out, {"rows": rows, "code": code_hash(), **trained_by, "environment": environment()})
    lines = [f"| labels | {' | '.join(ACM_ROWS)} |", f"|---|{'--:|' * len(ACM_ROWS)}"]
    lines += [f"| {name} | {' | '.join(facts[row]['accuracy'] for row in ACM_ROWS)} |" for name, facts in rows.items()]
    out.with_suffix(".md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return 0


def papers(job: dict, device: str) -> dict:
    graph, start = load("acm", labels=job["labels"]), time.perf_counter()
    parts = split(graph, kind="official")
    types = graph.edge_types
    if job["row"] != "with types":
        graph = dataclasses.replace(graph, edge_types=None)
    if job["row"] in types.names:
        graph = dataclasses.replace(graph, adjacency=types.matrices[types.names.index(job["row"])])
    trained = learn(graph, parts.train, parts.val, seed=job["seed"], device=device, threads=1)
    weights = trained.edge_weights
    facts = {"accuracy": evaluate(trained, graph, parts.test).accuracy, "shares": dict(trained.relations)}
    facts |= {"edge_weights": None if weights is None else {"used": weights.is_used, "gain": weights.gain}}
    facts |= {"seconds": round(time.perf_counter() - start, 1), "device": device}
    print(job, facts, flush=True)
    return facts


def generated(graph: str, seed: int) -> dict[str, dict]:
    with tempfile.TemporaryDirectory() as place:
        write_graph(Path(place), graph, seed)
        return {row: scored(place, options, seed) for row, options in ROWS.items()}


def write_graph(folder: Path, graph: str, seed: int, nodes: int = NODES) -> None:
    rng = np.random.default_rng([seed, 29])
    y = rng.integers(CLASSES, size=nodes)
    x = SIGNAL * rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(nodes, COLUMNS))
    members = [np.flatnonzero(y == k) for k in range(CLASSES)]
    edges = []
    for kind, (degree, planted) in GRAPHS[graph].items():
        for i in rng.integers(nodes, size=nodes * degree // 2):
            j = rng.choice(members[y[i]]) if rng.random() < planted else rng.integers(nodes)
            name = rng.choice(list(GRAPHS[graph])) if graph == "neither tells" else kind
            edges.append((f"n{i}", f"n{j}", name))
    with open(folder / "nodes.csv", "w", newline="", encoding="utf-8") as file:
        head = ("id", "label", *(f"x{k}" for k in range(COLUMNS)))
        rows = ((f"n{i}", f"class {y[i]}", *(f"{cell:.4f}" for cell in x[i])) for i in range(nodes))
        csv.writer(file).writerows([head, *rows])
    with open(folder / "edges.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target", "kind"), *edges])


def scored(place: str, options: dict[str, str], seed: int) -> dict:
    plan, graph = make_plan(Source(place, None, options), seed=seed, split="uniform")
    start = time.perf_counter()
    run = train_run(plan, graph, device="cpu")
    seconds = round(time.perf_counter() - start, 1)
    shares = {name: round(share, 3) for name, share in run.trained.relations.items()}
    return {"accuracy": run.results.scores.accuracy, "seconds": seconds, "shares": shares}


def summary(runs: dict[str, list]) -> dict:
    """Mean and 95 % interval over seeds of both rows, of their paired difference, and of what each kind weighs."""
    accuracy = {row: np.array([run["accuracy"] for run in each]) for row, each in runs.items()}
    shares = [run["shares"] for run in runs["with relations"]]
    return {
        **{row: str(mean_of(values)) for row, values in accuracy.items()},
        "difference": str(mean_of(accuracy["with relations"] - accuracy["default"])),
        "shares": {kind: str(mean_of(np.array([share[kind] for share in shares]))) for kind in shares[0]},
    }


if __name__ == "__main__":
    sys.exit(main())
