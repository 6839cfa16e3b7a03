"""Whether importance ranks columns as training without them does, and whether it names a column that says the label.

    PYTHONPATH=. python benchmarks/importance.py --out benchmarks/results/importance-cpu.json

`shuffled` is how much log-likelihood held-out labels lose with a column shuffled, as `gcn-lpa importance` says it; `left out` how
much they lose where the ensemble is trained again without the column. What is reported is the rank correlation of the two over the
columns of a table. The tables: `made`, of 500 nodes with numbers, categories, dates and truths that tell more or less by design,
and edges that tell something; wine, and the ten means of breast cancer, of scikit-learn, without edges. Columns of the
last say nearly the same of a tumour: where one is gone, another stands in.

The planted column is a category for each class, wrong for one node in fifty; `first` is whether it is the first of the columns,
`named` whether a warning names it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import scipy.stats
from sklearn.datasets import load_breast_cancer, load_wine

from gcn_lpa import importance, learn
from gcn_lpa.data.files import read_json, write_json, write_output
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.trained import Trained
from reproduction.code_version import code_hash

NODES, CLASSES = 500, 3
STRENGTHS = {"a": 1.2, "b": 0.9, "c": 0.6, "d": 0.3, "e": 0.0}  # distance of the means of the classes; the noise is 1
RIGHT = {"plan": 0.7, "region": 0.4}  # how often a category goes with the class
WRONG = 0.02  # of the planted column
Tables = tuple[pandas.DataFrame, pandas.DataFrame | None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--planted", action="store_true", help="Measure the planted column alone again.")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    out = Path(given.out)
    found: dict[str, Any] = read_json(out)["tables"] if out.is_file() else {}
    for name in given.tables.split(","):
        found[name] = (found[name] if given.planted else measured(*TABLES[name]())) | planted(*TABLES[name]())
        print(name, found[name], flush=True)
        write_json(out, {"tables": found, "code": code_hash(), "environment": environment()})
        write_output(out.with_suffix(".md"), markdown(found).encode())
    return 0


def measured(nodes: pandas.DataFrame, edges: pandas.DataFrame | None) -> dict[str, Any]:
    """Both rankings of the columns of one table."""
    start = time.perf_counter()
    graph, trained = trained_on(nodes, edges)
    rows = {row.name: row for row in importance(trained, graph, repeats=3).rows if row.kind == "column"}
    whole, left_out = likelihood(trained), {}
    for name in rows:
        left_out[name] = whole - likelihood(trained_on(nodes.drop(columns=name), edges)[1])
    shuffled = {name: row.likelihood for name, row in rows.items()}
    ranks = scipy.stats.spearmanr([shuffled[name] for name in rows], [left_out[name] for name in rows]).statistic
    facts = {"nodes": len(nodes), "columns": len(rows), "rank_correlation": float(ranks)}
    return {**facts, "shuffled": shuffled, "left_out": left_out, "seconds": round(time.perf_counter() - start, 1)}


def planted(nodes: pandas.DataFrame, edges: pandas.DataFrame | None) -> dict[str, bool]:
    """Whether a column that says the label is the first, and named, and no other is."""
    rng, classes = np.random.default_rng(5), sorted(nodes["label"].unique())
    said = nodes["label"].where(rng.random(len(nodes)) >= WRONG, rng.choice(classes, len(nodes)))
    code = said.map({name: f"code {k}" for k, name in enumerate(classes)})
    graph, trained = trained_on(nodes.assign(code=code), edges)
    found = importance(trained, graph, repeats=3)
    columns = [row.name for row in found.rows if row.kind == "column"]
    return {"first": columns[0] == "code", "named": found.leaking == ("code",)}


def trained_on(nodes: pandas.DataFrame, edges: pandas.DataFrame | None) -> tuple[Graph, Trained]:
    graph = read_csv(nodes, edges)
    return graph, learn(graph, device="cpu", threads=1)


def likelihood(trained: Trained) -> float:
    """The mean log of the probability of held-out labels, each at most 10 below 0."""
    held_out = trained.held_out
    assert held_out is not None
    p = held_out.probability.gather(1, held_out.y.unsqueeze(1)).squeeze(1)
    return float(p.clamp_min(1e-12).log().clamp_min(-10).mean())


def made(seed: int = 0) -> Tables:
    rng = np.random.default_rng([seed, 47])
    y = rng.integers(CLASSES, size=NODES)
    means = np.array([-1.0, 0.0, 1.0])[np.stack([rng.permutation(CLASSES) for _ in STRENGTHS])]
    columns: dict[str, Any] = {"id": [f"n{k}" for k in range(NODES)], "label": [f"class {k}" for k in y]}
    for (name, strength), mean in zip(STRENGTHS.items(), means, strict=True):
        columns[name] = (strength * mean[y] + rng.normal(size=NODES)).round(4)
    for name, right in RIGHT.items():
        value = np.where(rng.random(NODES) < right, y, rng.integers(CLASSES, size=NODES))
        columns[name] = [f"{name} {k}" for k in value]
    day = np.datetime64("2026-01-01") - (200 * (y == 0) + rng.integers(500, size=NODES))
    columns["joined"] = day.astype(str)
    columns["active"] = np.where(rng.random(NODES) < 0.5 + 0.2 * (y == 1), "yes", "no")
    ends = rng.integers(NODES, size=(2, 4 * NODES))
    kept = (y[ends[0]] == y[ends[1]]) | (rng.random(4 * NODES) < 0.4)
    edges = {side: [f"n{k}" for k in end[kept]] for side, end in zip(("source", "target"), ends, strict=True)}
    return pandas.DataFrame(columns), pandas.DataFrame(edges)


def of_sklearn(load: Any, most: int) -> Tables:
    data = load(as_frame=True)
    table = data.data.iloc[:, :most].set_axis([name.replace(" ", "_") for name in data.data.columns[:most]], axis=1)
    head = {"id": [f"n{k}" for k in range(len(table))], "label": [str(data.target_names[k]) for k in data.target]}
    return pandas.concat([pandas.DataFrame(head), table.reset_index(drop=True)], axis=1), None


TABLES = {
    "made": made,
    "wine": lambda: of_sklearn(load_wine, 13),
    "breast cancer": lambda: of_sklearn(load_breast_cancer, 10),
}


def markdown(found: dict[str, Any]) -> str:
    rows = [
        "| table | nodes | columns | rank correlation | planted column first | named |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        planted = ["yes" if one[claim] else "no" for claim in ("first", "named")]
        cells = name, str(one["nodes"]), str(one["columns"]), f"{one['rank_correlation']:.2f}", *planted
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
