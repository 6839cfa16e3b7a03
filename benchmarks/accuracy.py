"""How accurate the default recipe is, beside its own ingredients removed one by one, and beside other methods.

    python benchmarks/accuracy.py --graphs cora,citeseer --splits 5 --out benchmarks/results/accuracy-dev-cpu.json

All methods get the same labels: 60 % train, 20 % choose the epoch and fit the weights of the votes, 20 % score once. Splits 0 to 4
are for development; `--first 1000` takes those that are reported. Every training is a line of a ledger beside the result, so that
a run that was stopped goes on, and none is done twice. On minesweeper, whose mines were drawn by the generator of split 0, splits
are best taken from `--first 1`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gcn_lpa import load, split
from gcn_lpa.learning import learn_whole
from gcn_lpa.predict import evaluate, predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS
from gcn_lpa.runs.code_version import code_hash
from gcn_lpa.runs.ledger import Ledger
from gcn_lpa.stats import mean_of
from gcn_lpa.storage import environment, write_json

FIXED = {"edges": "fixed", "lpa_weight": 0.0}
PATIENT = {"epochs": 1000, "patience": 100}
ROWS = {
    "default": DEFAULT,
    "- learned edges": DEFAULT.replace(**FIXED),
    "- λ": DEFAULT.replace(lpa_weight=0.0),
    "- votes": DEFAULT.replace(votes=False),
    "- columns of the graph": DEFAULT.replace(structure=False),
    "- convolutions": DEFAULT.replace(propagation="hops"),
    "- hops": DEFAULT.replace(propagation="layers", normalization="symmetric", **FIXED),
    "first edition's default": LAYERS,
    "gcn": LAYERS.replace(method="gcn", residual=False, normalization="symmetric", features="auto", **FIXED, **PATIENT),
    "graphsage": LAYERS.replace(
        method="graphsage", residual=False, self_loops=False, features="auto", **FIXED, **PATIENT
    ),
    "lpa": LAYERS.replace(method="lpa", residual=False, propagation_steps=50, features="raw", **FIXED),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="cora,citeseer,cora-ml,chameleon-filtered,squirrel-filtered,digits")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    jobs = [
        {"graph": graph, "row": row, "split": given.first + k}
        for graph in given.graphs.split(",")
        for row in given.rows.split(",")
        for k in range(given.splits)
    ]
    out = Path(given.out)
    ledger = Ledger(out.with_suffix(".jsonl"))
    records = ledger.run(jobs, partial(train, root=given.root, device=given.device), workers=given.workers)
    write_json(out, {"rows": table(records), "code": code_hash(), "environment": environment(), "records": records})
    for graph, rows in table(records).items():
        print(graph)
        for row, facts in rows.items():
            print(f"  {row:26} {facts['accuracy']}   {facts['difference']}")
    return 0


def train(job: dict, root: str | None, device: str) -> dict:
    graph, recipe = load(job["graph"], root), ROWS[job["row"]]
    seed = job["split"]
    parts = split(graph, seed=seed)
    trained = learn_whole(graph, parts.train, parts.val, recipe, seed=seed, device=device)
    return {
        "accuracy": evaluate(trained, graph, parts.test).accuracy,
        "nodes": int(parts.test.sum()),
        "log_likelihood": log_likelihood(predict_proba(trained, graph, raw=True)[parts.test], graph.y[parts.test]),
        "best_epoch": trained.run.best_epoch,
        "epochs": len(trained.run.history),
        "seconds": round(trained.run.seconds, 2),
        "split_hash": parts.hash,
        "recipe_hash": recipe.hash(),
        "device": device,
    }


def log_likelihood(probabilities: torch.Tensor, y: torch.Tensor) -> float:
    return float(probabilities.gather(1, y.unsqueeze(1)).clamp_min(1e-9).log().mean())


def table(records: list) -> dict:
    """For each graph and row the mean and 95 % interval over splits, and of the paired difference to the default."""
    found: dict = {}
    for graph in dict.fromkeys(record["graph"] for record in records):
        of = {
            row: np.array(
                [record["accuracy"] for record in records if (record["graph"], record["row"]) == (graph, row)]
            )
            for row in dict.fromkeys(record["row"] for record in records)
        }
        found[graph] = {
            row: {
                "accuracy": str(mean_of(accuracies)),
                "difference": "" if row == "default" else str(mean_of(accuracies - of["default"])),
            }
            for row, accuracies in of.items()
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
