"""What columns of edges give: the default recipe with the columns of edges.csv and without, on generated graphs.

    PYTHONPATH=. python benchmarks/edge_columns.py --seeds 10 --out benchmarks/results/edge-columns-cpu.json

Every graph has 1,000 nodes of four classes, eight columns of nodes that tell a little, and 6,000 listed edges with an amount, a
date and a type. By design an edge joins two nodes of one class with a probability that is a function of its columns: of whether
the amount is above 1,000, of how old it is, of its type, of the product of the three, or (`none`) of nothing. `bare` is `type`
without columns of nodes, with a label for 300 nodes.

The rows `without` and `with` are `learn(graph, train)` with the same seed and the same 100 labels; all other nodes are scored; the
difference is paired. The rows of `teaches` are the small model alone that learns the functions, with what teaches it: L_gcn (lambda
is 0), both losses, L_lpa alone (two steps: first the edges by L_lpa, then the rest by L_gcn), or nothing (given edges). `curve` is
the rank correlation of the learned functions with the probability behind the edges, over the pairs of knots or values that differ
in it. Each graph is a line of a ledger; a run that was ended goes on. The settings were fixed on the seeds 100 and above; those
reported are 0 and above.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

from gcn_lpa import evaluate, learn
from gcn_lpa.data.edge_columns import EdgeWeights
from gcn_lpa.data.files import write_json, write_output
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.learning.edge_weights import LEARNS
from gcn_lpa.learning.tasks import Job, task_of
from gcn_lpa.recipes import FIXED_EDGES, choose_recipe
from gcn_lpa.stats import mean_of
from gcn_lpa.train import JobName
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

NODES, EDGES, CLASSES, COLUMNS = 1000, 6000, 4, 8
SIGNAL = 0.5  # distance of the means of the classes in each column, where the noise is 1
TYPES = {"family": 0.25, "colleague": 0.35, "other": 0.4}
DAYS = 1095  # three years
HIGH = {"amount": 0.8, "recency": 0.95, "type": 0.8, "product": 0.95, "none": 0.25}  # the largest probability
GRAPHS = (*HIGH, "bare")
TEACHES = {
    "L_gcn": {"lpa_weight": 0.0},
    "both": {},
    "L_lpa alone": {"training": "two_step"},
    "given edges": FIXED_EDGES,
}
TAUGHT = 5  # seeds for which what teaches is measured
TRUTH: dict[str, dict[str, Any]] = {  # of a knot or a value: grows with the probability
    "amount": {"amount": lambda x: x > 1000},
    "recency": {"date": lambda x: x},
    "type": {"type": lambda x: x == "family"},
    "product": {"amount": lambda x: x > AMOUNT, "date": lambda x: x, "type": lambda x: x != "other"},
    "none": {},
}
AMOUNT, SPREAD = 400.0, 1.2  # median of the amounts, and the deviation of their logs: a fifth is above 1,000


def probability(graph: str, amount: np.ndarray, age: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """That an edge joins nodes of one class by design."""
    parts = {
        "amount": np.where(amount > 1000, 1.0, 0.0),
        "recency": np.exp(-age / 240),
        "type": np.where(kind == "family", 1.0, 0.0),
        "none": np.ones(len(amount)),
    }
    parts["product"] = np.where(amount > AMOUNT, 1.0, 0.1) * np.exp(-age / 900) * np.where(kind == "other", 0.1, 1.0)
    return HIGH[graph] * parts[graph]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    seeds, names = range(given.first, given.first + given.seeds), given.graphs.split(",")
    jobs = [{"graph": name, "seed": seed} for seed in seeds for name in names]
    records = Ledger(given.out.with_suffix(".jsonl")).run(jobs, measured, workers=given.workers)
    rows = {name: summary([record for record in records if record["graph"] == name]) for name in names}
    write_json(given.out, {"rows": rows, "runs": records, "code": code_hash(), "environment": environment()})
    write_output(given.out.with_suffix(".md"), markdown(rows).encode())
    print(markdown(rows))
    return 0


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Both rows, what teaches the functions, and how well they are learned, on one graph."""
    name, seed = job["graph"], job["seed"]
    graph, _ = generated("type" if name == "bare" else name, seed, bare=name == "bare")
    order = torch.from_numpy(np.random.default_rng([seed, 7]).permutation(graph.num_nodes))
    train = torch.zeros(graph.num_nodes, dtype=torch.bool)
    train[order[: 300 if name == "bare" else 100]] = True
    trained, facts = learn(graph, train, seed=seed, device="cpu", threads=1), dict[str, Any]()
    facts["with"] = facts["without"] = evaluate(trained, graph, ~train).accuracy
    weights = trained.edge_weights
    assert weights is not None
    if weights.is_used:  # where not, both are the same to the bit: a test says so
        plain = dataclasses.replace(graph, edge_columns=None)
        facts["without"] = evaluate(learn(plain, train, seed=seed, device="cpu", threads=1), plain, ~train).accuracy
    facts |= {"gain": weights.gain, "error": weights.error, "used": weights.is_used}
    facts["curve"] = curve(weights, weights.levels.numpy(), "type" if name == "bare" else name)
    if seed < TAUGHT:
        facts["teaches"] = {row: taught(graph, train, order, changes, seed) for row, changes in TEACHES.items()}
    print(job, facts, flush=True)
    return facts


def taught(graph: Graph, train: torch.Tensor, order: torch.Tensor, changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """The test accuracy of the small model alone, one fifth of whose labels choose its epoch."""
    val = torch.zeros_like(train)
    val[order[: int(train.sum()) // 5]] = True
    first = choose_recipe(graph, train).replace(members="", votes=False, edge_weights=False)
    recipe = first.replace(**{**LEARNS, **changes})
    task = task_of(graph, train & ~val, val, recipe)
    model = Job(JobName(), task, recipe, seed).run(torch.device("cpu")).model
    with torch.no_grad():
        right = model(task.prepared).argmax(dim=1) == graph.y
    return float(right[~train].double().mean())


def curve(weights: EdgeWeights, levels: np.ndarray, name: str) -> float | None:
    """The mean rank correlation of the functions of the columns that tell; None where none does."""
    found, start = [], 0
    for function in weights.functions.each:
        here, start = levels[start : start + function.width], start + function.width
        if function.name in TRUTH[name]:
            points = function.knots or function.values
            truth = np.array([TRUTH[name][function.name](point) for point in points], dtype=float)
            ours = np.sign(here[: len(truth), None] - here[: len(truth)])
            theirs = np.sign(truth[:, None] - truth)
            found.append(float((ours * theirs).sum() / np.abs(theirs).sum()))
    return float(np.mean(found)) if found else None


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and 95 % intervals over seeds; of the differences, paired."""
    accuracy = {row: np.array([run[row] for run in runs]) for row in ("without", "with")}
    taught = [run["teaches"] for run in runs if "teaches" in run]
    teaches = {row: np.array([each[row] for each in taught]) for row in TEACHES}
    curves = [run["curve"] for run in runs if run["curve"] is not None]
    return {
        "seeds": len(runs),
        **{row: str(mean_of(values)) for row, values in accuracy.items()},
        "difference": str(mean_of(accuracy["with"] - accuracy["without"])),
        "used": sum(run["used"] for run in runs),
        "curve": round(float(np.mean(curves)), 3) if curves else None,
        "teaches": {row: str(mean_of(values)) for row, values in teaches.items()} if taught else None,
        "lambda": str(mean_of(teaches["both"] - teaches["L_gcn"])) if taught else None,
    }


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The table of the page, and that of what teaches the functions."""
    gains = ["| what tells | seeds | without | with | difference | used | curve |", "|---|--:|--:|--:|--:|--:|--:|"]
    teachers = [f"| what tells | {' | '.join(TEACHES)} | both - L_gcn |", f"|---|{'--:|' * (len(TEACHES) + 1)}"]
    for name, row in rows.items():
        curve = "" if row["curve"] is None else f"{row['curve']:.2f}"
        cells = row["seeds"], row["without"], row["with"], row["difference"], f"{row['used']} of {row['seeds']}", curve
        gains.append(f"| {name} | {' | '.join(map(str, cells))} |")
        if row["teaches"] is not None:
            teachers.append(f"| {name} | {' | '.join(row['teaches'].values())} | {row['lambda']} |")
    return "\n".join([*gains, "", *(teachers if len(teachers) > 2 else []), ""])


def generated(graph: str, seed: int, nodes: int = NODES, *, bare: bool = False) -> tuple[Graph, np.ndarray]:
    """A graph with columns of edges, and for each listed edge the probability behind it."""
    rng = np.random.default_rng([seed, 31])
    y = rng.integers(CLASSES, size=nodes)
    x = SIGNAL * rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(nodes, COLUMNS))
    number = EDGES * nodes // NODES
    amount = np.exp(np.log(AMOUNT) + SPREAD * rng.normal(size=number)).round(2)
    age = rng.integers(DAYS, size=number)
    kind = rng.choice(list(TYPES), p=list(TYPES.values()), size=number)
    joined = rng.random(number) < (share := probability(graph, amount, age, kind))
    source, target = rng.integers(nodes, size=(2, number))
    members = [np.flatnonzero(y == k) for k in range(CLASSES)]
    for k in np.flatnonzero(joined):
        target[k] = rng.choice(members[y[source[k]]])
    head = {"id": [f"n{i}" for i in range(nodes)], "label": [f"class {k}" for k in y]}
    columns = 0 if bare else COLUMNS
    table = pandas.DataFrame({**head, **{f"x{k}": x[:, k].round(4) for k in range(columns)}})
    when = (np.datetime64("2026-01-01") - age).astype(str)
    edges = pandas.DataFrame(
        {
            "source": [f"n{i}" for i in source],
            "target": [f"n{i}" for i in target],
            "amount": amount,
            "date": when,
            "type": kind,
        }
    )
    return read_csv(table, edges), share


if __name__ == "__main__":
    sys.exit(main())
