"""Our numbers beside published ones, on their own splits.

    python benchmarks/published.py --device cuda --out benchmarks/results/published-h200.json
    python benchmarks/published.py --only chameleon,cora --recipes default --out benchmarks/results/published-cpu.json

Every row of `published_numbers.py` is a data set with its protocol: the official splits, or shares of the labelled nodes. Training
nodes train, validation nodes choose epochs and weigh the ensemble, test nodes score once. Planetoid has one split; there the seeds
differ. Every training is a line of a ledger; `--any-code` trains nothing and takes the newest line about each, of any code.
"""

import argparse
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
from ledgers import newest
from published_numbers import PUBLISHED, Row
from sklearn.metrics import roc_auc_score

from gcn_lpa import load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import choose_recipe
from gcn_lpa.stats import mean_of
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="graphs whose name begins so, with commas between")
    parser.add_argument("--recipes", default="default,best,gcn-tuned", help="default, best or a method of METHODS")
    parser.add_argument("--seeds", type=int, help="at most so many splits of each")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--any-code", action="store_true")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    chosen = [row for row in PUBLISHED if not given.only or row.graph.startswith(tuple(given.only.split(",")))]
    jobs = [
        {"graph": row.graph, "kind": row.kind, "train": row.fractions[0], "recipe": recipe, "seed": seed}
        for row in chosen
        for seed in range(min(row.seeds, given.seeds or row.seeds))
        for recipe in given.recipes.split(",")
    ]
    out, trained_by = Path(given.out), {}
    if given.any_code:
        records, trained_by["codes"] = newest(out.with_suffix(".jsonl"), jobs, by="recipe")
    else:
        ledger = Ledger(out.with_suffix(".jsonl"))
        records = ledger.run(jobs, partial(scored, root=given.root, device=given.device), workers=given.workers)
    found = [summary(row, records) for row in chosen]
    write_json(out, {"rows": found, "code": code_hash(), **trained_by, "environment": environment()})
    out.with_suffix(".md").write_text(as_table(found, given.recipes.split(",")), encoding="utf-8")
    print(out.with_suffix(".md").read_text(encoding="utf-8"))
    return 0


@cache
def graph_of(name: str, root: str | None) -> Graph:
    return load(name, root)


def scored(job: dict, root: str | None, device: str) -> dict:
    graph, seed = graph_of(job["graph"], root), job["seed"]
    row = next(
        row for row in PUBLISHED if (row.graph, row.kind, row.fractions[0]) == tuple(job[k] for k in ("graph", "kind", "train"))
    )
    parts = split(graph, row.fractions, seed=seed, kind=row.kind)
    recipe, start = job["recipe"], time.perf_counter()
    if recipe in METHODS:
        recipe = METHODS[recipe].fair(choose_recipe(graph, parts.train, by_folds=False))
    else:
        recipe = choose_recipe(graph, parts.train, recipe, by_folds=False, has_time=True)
    trained = learn(graph, parts.train, parts.val, recipe, seed=seed, device=device)
    seconds = time.perf_counter() - start
    probabilities, y = predict_proba(trained, graph, raw=True)[parts.test], trained.labels_of(graph)[parts.test]
    result = {"accuracy": 100 * float((probabilities.argmax(dim=1) == y).double().mean())}
    if probabilities.shape[1] == 2:
        result["AUC"] = 100 * float(roc_auc_score(y.numpy(), probabilities[:, 1].numpy()))
    return {**result, "seconds": round(seconds, 1), "split_hash": parts.hash, "device": device}


def summary(row: Row, records: list) -> dict:
    """Mean and 95 % interval of each recipe over the splits, beside what was published."""
    names = ("graph", "kind", "train")
    here = [one for one in records if tuple(one[name] for name in names) == (row.graph, row.kind, row.fractions[0])]
    found = {}
    for recipe in dict.fromkeys(one["recipe"] for one in here):
        values = np.array([one[row.metric] for one in here if one["recipe"] == recipe])
        found[recipe] = {
            "mean": round(float(values.mean()), 2),
            "interval": str(mean_of(values / 100)) if len(values) > 1 else f"{values[0]:.1f}",
            "less_published": round(float(values.mean()) - float(row.published.split()[0]), 2),
            "splits": len(values),
        }
    shares = "/".join(f"{100 * share:.0f}" for share in row.fractions)
    protocol = "official splits" if row.kind == "official" else f"{row.kind} {shares}"
    return {**row._asdict(), "protocol": protocol, "ours": found}


def as_table(rows: list, recipes: list[str]) -> str:
    header = ["data", "protocol", "metric", "published", *recipes, "best less published", "splits"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in rows:
        ours = row["ours"]
        top = max(ours.values(), key=lambda facts: facts["mean"])
        cells = [row["graph"], row["protocol"], row["metric"], f"{row['published']}, {row['source']}"]
        cells += [ours[recipe]["interval"] if recipe in ours else "" for recipe in recipes]
        lines.append("| " + " | ".join([*cells, f"{top['less_published']:+.1f}", str(top["splits"])]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
