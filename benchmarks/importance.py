"""Whether importance ranks columns as training without them does, and whether it names a column that says the label.

    PYTHONPATH=. python benchmarks/importance.py ranks --seeds 8 --workers 16 --out benchmarks/results/importance-cpu.json
    PYTHONPATH=. python benchmarks/importance.py leaks --out benchmarks/results/leaks-cpu.json

ranks: `shuffled` is how much log-likelihood held-out labels lose with a column shuffled, `alone` the same among nodes of which the
other columns say nearly the same about it, as `gcn-lpa importance` says both; `left out` how much they lose where the ensemble is
trained again without the column. What is reported is the rank correlation of either with the last over the columns of a table, and
of `left out` with itself, as the means of half of the seeds have it and those of the others: few seeds agree little, and no ranking
can be much nearer to them than they are to themselves. All are means over seeds. The
tables: `made`, of 500 nodes with numbers, categories, dates and truths that tell more or less by design, and edges that tell
something; wine, and the ten means of breast cancer, of scikit-learn, without edges, whose columns say nearly the same of a tumour;
and two that no choice has seen: diabetes, of scikit-learn, in which a number is predicted, and `doubled`, in which some columns of
numbers are there twice, with noise.

leaks: on tables of scikit-learn, generated ones, minesweeper and streamers, how much of the labels a column tells a tree alone,
which is named from LEAKS on: the most that a column of the table tells, and a planted one. That is a category for each class,
wrong for one node in fifty, twenty or ten, or a number with a tenth of the spread of the labels; beside numbers to predict, the
number with a tenth, a fifth or a half of their spread. The limit was set on the first three tables.

Every training of `ranks` is a line of a ledger; a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import scipy.stats
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from tables import TABLES as FOLDERS
from tables import write_table

from gcn_lpa import importance, learn, load
from gcn_lpa.data.files import write_json
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.insight.importance import LEAKS, told_by
from gcn_lpa.trained import Trained
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

NODES, CLASSES = 500, 3
STRENGTHS = {"a": 1.2, "b": 0.9, "c": 0.6, "d": 0.3, "e": 0.0}  # distance of the means of the classes; the noise is 1
RIGHT = {"plan": 0.7, "region": 0.4}  # how often a category goes with the class
WRONG = (0.02, 0.05, 0.1)  # of planted columns
Tables = tuple[pandas.DataFrame, pandas.DataFrame | None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ranks", "leaks"])
    parser.add_argument("--tables", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    facts, text = (ranks if given.what == "ranks" else leaks)(given)
    write_json(given.out, {**facts, "code": code_hash(), "environment": environment()})
    given.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def ranks(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    names, ledger = given.tables.split(",") if given.tables else [*TABLES], Ledger(given.out.with_suffix(".jsonl"))
    jobs = [
        {"table": name, "seed": seed, "without": column}
        for seed in range(given.seeds)
        for name in names
        for column in ("", *TABLES[name]()[0].columns[2:])
    ]
    jobs += [{"table": name, "planted": True} for name in names[:3]]
    records, found = ledger.run(jobs, measured, workers=given.workers), {}
    heads = "| table | nodes | columns | shuffled | alone | left out, halves of the seeds | planted column first | named |"
    lines = [heads, "|---|--:|--:|--:|--:|--:|---|---|"]
    for name in names:
        mine = [record for record in records if record["table"] == name]
        planted = next((record for record in mine if "planted" in record), {})
        of = {(r["seed"], r["without"]): r for r in mine if "planted" not in r}
        columns = [*of[0, ""]["shuffled"]]
        seeds = range(given.seeds)
        left_out = np.array([[of[k, ""]["likelihood"] - of[k, column]["likelihood"] for column in columns] for k in seeds])
        facts: dict[str, Any] = {"columns": columns, "left_out": left_out.mean(axis=0).tolist()}
        for ranked in ("shuffled", "alone"):
            values = np.mean([[of[k, ""][ranked][column] for column in columns] for k in seeds], axis=0)
            facts[ranked] = values.tolist()
            facts[f"{ranked}, rank correlation"] = correlation(values, facts["left_out"])
        facts["left out, rank correlation"] = of_halves(left_out)
        found[name] = facts | {"planted": {key: planted[key] for key in ("first", "named") if key in planted}}
        cells = [name, str(of[0, ""]["nodes"]), str(len(columns))]
        cells += [
            "" if (value := facts[f"{key}, rank correlation"]) is None else f"{value:.2f}"
            for key in ("shuffled", "alone", "left out")
        ]
        cells += ["" if key not in planted else "yes" if planted[key] else "no" for key in ("first", "named")]
        lines.append(f"| {' | '.join(cells)} |")
    return {"seeds": given.seeds, "tables": found}, "\n".join([*lines, ""])


def of_halves(left_out: np.ndarray) -> float | None:
    """The mean rank correlation of the means of half of the seeds with those of the others, over all ways to halve them."""
    number = len(left_out)
    halves = [list(half) for half in itertools.combinations(range(number), number // 2)] if number > 1 else []
    pairs = [correlation(left_out[half].mean(axis=0), np.delete(left_out, half, axis=0).mean(axis=0)) for half in halves]
    return float(np.mean(pairs)) if pairs else None


def correlation(some: Any, others: Any) -> float:
    return float(scipy.stats.spearmanr(some, others).statistic)


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """The likelihood of held-out labels with or without a column; with all of them also both falls of each."""
    start, (nodes, edges) = time.perf_counter(), TABLES[job["table"]]()
    if "planted" in job:
        return planted(nodes, edges)
    if job["without"]:
        nodes = nodes.drop(columns=job["without"])
    graph, trained = trained_on(nodes, edges, job["seed"])
    facts = {"nodes": len(nodes), "likelihood": likelihood(trained)}
    if not job["without"]:
        rows = importance(trained, graph, repeats=3, seed=job["seed"]).rows
        for name in ("likelihood", "alone"):
            facts["shuffled" if name == "likelihood" else name] = {
                row.name: getattr(row, name) for row in rows if row.kind == "column"
            }
    return {**facts, "seconds": round(time.perf_counter() - start, 1)}


def planted(nodes: pandas.DataFrame, edges: pandas.DataFrame | None) -> dict[str, bool]:
    """Whether a column that says the label is the first, and named, and no other is."""
    graph, trained = trained_on(with_planted(nodes, WRONG[0]), edges)
    found = importance(trained, graph, repeats=3)
    columns = [row.name for row in found.rows if row.kind == "column"]
    return {"first": columns[0] == "code", "named": found.leaking == ("code",)}


def with_planted(nodes: pandas.DataFrame, wrong: float, *, number: bool = False) -> pandas.DataFrame:
    """The table with a column that nearly is the label."""
    rng, y = np.random.default_rng(5), nodes["label"].to_numpy()
    if nodes["label"].dtype.kind == "f":
        return nodes.assign(code=y + {0.02: 0.1, 0.05: 0.2, 0.1: 0.5}[wrong] * y.std() * rng.normal(size=len(y)))
    classes = sorted(set(y))
    said = np.where(rng.random(len(y)) < wrong, rng.choice(classes, len(y)), y)
    place = np.array([classes.index(name) for name in said])
    return nodes.assign(code=place + 0.1 * rng.normal(size=len(y)) if number else [f"code {k}" for k in place])


def leaks(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    rows: dict[str, Any] = {}
    planted = ("1 in 50", "1 in 20", "1 in 10", "a number")
    heads = ["table", "nodes", "columns", "most of any column", "named", *(f"planted: {name}" for name in planted)]
    lines, named = [heads, ["---", *["--:"] * (len(heads) - 1)]], [[] for _ in planted]
    for name, table in (TABLES | MORE | from_files(given.root)).items():
        nodes = table()[0]
        told = alone(nodes)
        found = [alone(with_planted(nodes, wrong), "code")["code"] for wrong in WRONG]
        if nodes["label"].dtype.kind != "f":
            found.append(alone(with_planted(nodes, WRONG[0], number=True), "code")["code"])
        rows[name] = {"nodes": len(nodes), "told": told, "planted": found}
        for values, value in zip(named, found, strict=False):
            values.append(value >= LEAKS)
        cells = [name, str(len(nodes)), str(len(told)), f"{max(told.values()):.2f}"]
        cells.append(", ".join(column for column, value in told.items() if value >= LEAKS))
        lines.append([*cells, *(f"{value:.2f}" for value in found), *[""] * (len(planted) - len(found))])
        print(lines[-1], flush=True)
    falsely = sum(max(row["told"].values()) >= LEAKS for row in rows.values())
    lines.append(["named", "", "", "", f"in {falsely} of {len(rows)}", *(f"{sum(each)} of {len(each)}" for each in named)])
    return {"limit": LEAKS, "tables": rows}, "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def alone(nodes: pandas.DataFrame, only: str = "") -> dict[str, float]:
    """How much of the labels each column tells, or one."""
    graph = read_csv(nodes, None)
    target = graph.target.fitted(graph.y)
    y, x = target.translated(graph.y, graph.target), graph.with_features("auto").x
    every = torch.arange(graph.num_nodes)
    return {name: told_by(target, x, at, every, y) for name, at in graph.columns.positions().items() if at and only in ("", name)}


def trained_on(nodes: pandas.DataFrame, edges: pandas.DataFrame | None, seed: int = 0) -> tuple[Graph, Trained]:
    graph = read_csv(nodes, edges)
    return graph, learn(graph, seed=seed, device="cpu", threads=1)


def likelihood(trained: Trained) -> float:
    """The mean log of the probability of held-out labels, each at most 10 below 0."""
    held_out = trained.held_out
    assert held_out is not None
    return float(trained.target.likelihood(held_out.probability, held_out.y).clamp_min(-10).mean())


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


def of_sklearn(load: Any, most: int | None = None) -> Tables:
    data = load(as_frame=True)
    table = data.data.iloc[:, :most]
    table = table.set_axis([str(name).replace(" ", "_") for name in table.columns], axis=1).reset_index(drop=True)
    is_number = not hasattr(data, "target_names")
    label = data.target.astype(float) if is_number else [str(data.target_names[k]) for k in data.target]
    return pandas.concat([pandas.DataFrame({"id": [f"n{k}" for k in range(len(table))], "label": label}), table], axis=1), None


def doubled(seed: int = 1) -> Tables:
    """Three columns, of which two are there twice and one three times, and one that nothing repeats."""
    rng = np.random.default_rng([seed, 53])
    y, columns = rng.integers(2, size=NODES), {}
    for name, strength, times in (("a", 1.2, 3), ("b", 0.8, 2), ("c", 0.5, 2), ("d", 0.5, 1), ("e", 0.0, 2)):
        true = strength * (y - 0.5) + rng.normal(size=NODES)
        for k in range(times):
            columns[f"{name}{k + 1}"] = (true + 0.1 * rng.normal(size=NODES)).round(4)
    head = {"id": [f"n{k}" for k in range(NODES)], "label": [f"class {k}" for k in y]}
    return pandas.DataFrame(head | columns), None


def of_folder(kind: str) -> Tables:
    with tempfile.TemporaryDirectory() as place:
        truth = write_table(Path(place), FOLDERS[kind], seed=3)
        nodes = pandas.read_csv(Path(place) / "nodes.csv", dtype=str, keep_default_na=False)
    return nodes.assign(label=[label for label, _ in truth]), None


def from_files(root: str | None) -> dict[str, Any]:
    return {"minesweeper": partial(mines, root)} | {
        f"{name}, {target}": partial(streamers, name, target, root)
        for name, target in (("streamers-es", "mature"), ("streamers-es", "views"), ("streamers-engb", "partner"))
    }


def mines(root: str | None) -> Tables:
    graph = load("minesweeper", root)
    x = graph.x.numpy() if isinstance(graph.x, torch.Tensor) else graph.x.to_scipy().toarray()
    head = {"id": [f"n{k}" for k in range(len(x))], "label": [graph.class_names[k] for k in graph.y.tolist()]}
    return pandas.DataFrame(head | {f"x{k}": x[:, k] for k in range(x.shape[1])}), None


def streamers(name: str, target: str, root: str | None) -> Tables:
    graph = load(name, root, target=target)
    numbers, flags = (block for block in graph.blocks[1:])
    x = graph.x.to_scipy()[:, numbers.start : flags.stop].toarray()
    is_number = graph.numbers is not None
    label = graph.y.tolist() if is_number else [graph.class_names[k] for k in graph.y.tolist()]
    names = (*numbers.name.split(", "), *flags.name.split(", "))
    head = {"id": [f"n{k}" for k in range(len(x))], "label": np.log1p(label) if is_number else label}
    return pandas.DataFrame(head | {name: x[:, k] for k, name in enumerate(names)}), None


TABLES = {
    "made": made,
    "wine": lambda: of_sklearn(load_wine),
    "breast cancer": lambda: of_sklearn(load_breast_cancer, 10),
    "diabetes": lambda: of_sklearn(load_diabetes),
    "doubled": doubled,
}
MORE = {
    "iris": lambda: of_sklearn(load_iris),
    "breast cancer, all": lambda: of_sklearn(load_breast_cancer),
    "digits": lambda: of_sklearn(load_digits),
    **{f"generated, {kind}": partial(of_folder, kind) for kind in ("columns", "both", "opposites", "places")},
}


if __name__ == "__main__":
    sys.exit(main())
