"""How accurate the default recipe is on tables of nodes with columns of every kind, where 10 % of the nodes have a label.

    python benchmarks/tables.py --first 1000 --seeds 10 --out benchmarks/results/tables-cpu.json

Generators write nodes.csv and edges.csv: numbers, skewed money, yes and no, categories, dates, missing cells. In `columns` these
carry the label, by thresholds that depend on one another; in `edges` the edges do; in `both` both. `opposites` is `both` with edges
that join different classes, `scaled` is `both` with other units and zeros, `large` has ten times the nodes. In `places`
the class of a node is how many edges it has, and half as many nodes have a label as in the others; `wide` is `columns` with a text
and categories that say nothing and make hundreds of features, `many` with three hundred numbers that say nothing. The shares of
signal in TABLES were fixed before training. minesweeper is written as such a folder too; its mines were drawn by the generator
of split 0, so its seeds begin at 1.

All methods read the folder as `gcn-lpa train` does and get the same labels; those of all other nodes are kept aside and score once.
Seeds 0 to 4 are for development, `--first 1000` takes those that are reported. Every training is a line of a ledger; `--any-code`
trains nothing and takes the newest line about each, also of earlier code, which the result then names.
"""

import argparse
import csv
import datetime
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ledgers import newest

from gcn_lpa import load
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.trees import neighbour_columns
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import case_of, recipe_for
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.stats import mean_of
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

MEAN_DEGREE, LABELED = 6, 0.1
ENDINGS = (
    "ban",
    "cor",
    "dim",
    "fel",
    "gor",
    "hus",
    "jan",
    "kit",
    "lam",
    "mop",
    "nix",
    "pol",
    "qua",
    "rem",
    "sit",
    "tor",
)


@dataclass(frozen=True)
class Table:
    """How much columns and edges tell about the label."""

    rule: float  # share of nodes whose class is that of their columns; the others have a random one
    homophily: float  # share of edges whose ends have one class, or, of opposites, the two classes of a pair
    num_classes: int = 3
    opposites: bool = False
    scaled: bool = False
    num_nodes: int = 2000
    places: bool = False  # the rule is about the number of edges, which some nodes have many more of than others
    wide: bool = False  # with a text and categories of many values, which say nothing and make hundreds of features
    many: bool = False  # with three hundred numbers, which depend on one another and say nothing


TABLES = {
    "columns": Table(rule=0.85, homophily=0.4),
    "edges": Table(rule=0.15, homophily=0.8),
    "both": Table(rule=0.6, homophily=0.65),
    "opposites": Table(rule=0.6, homophily=0.65, num_classes=4, opposites=True),
    "scaled": Table(rule=0.6, homophily=0.65, scaled=True),
    "places": Table(rule=0.8, homophily=0.0, places=True, num_nodes=1000),
    "wide": Table(rule=0.85, homophily=0.4, wide=True),
    "many": Table(rule=0.85, homophily=0.4, many=True),
    "large": Table(rule=0.6, homophily=0.65, num_nodes=20_000),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(name for name in TABLES if name not in ("places", "wide", "many", "large")))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--root")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--any-code", action="store_true", help="train nothing, take also what earlier code trained")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    jobs = [
        {"graph": graph, "row": row, "seed": given.first + k}
        for k in range(given.seeds)
        for graph in given.graphs.split(",")
        for row in given.rows.split(",")
    ]
    out, trained_by = Path(given.out), {}
    if given.any_code:
        records, trained_by["codes"] = newest(out.with_suffix(".jsonl"), jobs)
    else:
        records = Ledger(out.with_suffix(".jsonl")).run(jobs, partial(scored, root=given.root), workers=given.workers)
    write_json(out, {"rows": table(records), "code": code_hash(), **trained_by, "environment": environment()})
    for graph, rows in table(records).items():
        print(graph)
        for row, facts in rows.items():
            print(f"  {row:14} {facts['accuracy']:14} {facts['difference']:14} AUC {facts['auc']}")
    return 0


def scored(job: dict, root: str | None) -> dict:
    seed = job["seed"]
    with tempfile.TemporaryDirectory() as place:
        if job["graph"] == "minesweeper":
            truth = write_minesweeper(Path(place), seed + 1, root)
        else:
            truth = write_table(Path(place), TABLES[job["graph"]], seed)
        start = time.perf_counter()
        probabilities, classes, facts = ROWS[job["row"]](place, seed)
        seconds = time.perf_counter() - start
    test = [i for i, (_, is_given) in enumerate(truth) if not is_given]
    y = np.array([classes.index(truth[i][0]) for i in test])
    found = probabilities.numpy()[test]
    return {
        "accuracy": float((found.argmax(axis=1) == y).mean()),
        "auc": area_under_curve(found, y),
        "log_likelihood": float(np.log(np.maximum(found[np.arange(len(y)), y], 1e-9)).mean()),
        "nodes": len(test),
        "seconds": round(seconds, 1),
        **facts,
    }


def write_table(folder: Path, kind: Table, seed: int) -> list[tuple[str, bool]]:
    """Write a folder, and return the true class of each node and whether the folder tells it."""
    rng = np.random.default_rng([seed, 11])
    n, c = kind.num_nodes, kind.num_classes
    age, income = rng.normal(45, 15, n).clip(18, 95), rng.lognormal(10, 1.2, n)
    days, active, plan = rng.integers(0, 2000, n), rng.random(n) < 0.5, rng.integers(0, 4, n)
    by_income = np.where(income > np.quantile(income, 0.6), 0, np.where(age < 45, 1, 2))
    by_date = np.where(days > 1200, 1, np.where(plan >= 2, 2, c - 1 if c > 3 else 0))
    y = np.where(active, by_income, by_date)
    ends = uneven_pairs(n, rng) if kind.places else None
    if ends is not None:
        number = np.bincount(np.ravel(ends), minlength=n) + rng.random(n) / 2
        y = number.argsort().argsort() * c // n
    y = np.where(rng.random(n) < kind.rule, y, rng.integers(0, c, n))
    unit, zero = (1e6, 5e8) if kind.scaled else (1, 0)
    start = datetime.date(2019, 1, 1)
    columns = {
        "age": [f"{a * unit + zero:.3f}" for a in age],
        "income": holes([f"{m * unit:.2f}" for m in income], 0.1, rng),
        "joined": holes([(start + datetime.timedelta(days=int(d))).isoformat() for d in days], 0.05, rng),
        "active": ["yes" if a else "no" for a in active],
        "plan": holes([("free", "basic", "pro", "team")[p] for p in plan], 0.05, rng),
        "balance": holes([f"{b * unit + zero:.2f}" for b in rng.normal(0, 1e3, n)], 0.2, rng),  # says nothing, as do:
        "visits": [str(v) for v in rng.poisson(4, n)],
        "region": [f"region {r}" for r in rng.integers(0, 8, n)],
        "newsletter": ["yes" if r else "no" for r in rng.random(n) < 0.3],
    }
    if kind.wide:
        columns |= empty_words(n, np.random.default_rng([seed, 12]))
    if kind.many:
        columns |= empty_numbers(n, np.random.default_rng([seed, 13]))
    given = rng.permutation(n) < LABELED * n
    write_folder(folder, columns, [f"class {k}" for k in y], given, ends or pairs(y, kind, rng))
    return [(f"class {k}", bool(g)) for k, g in zip(y, given, strict=True)]


def empty_words(n: int, rng: np.random.Generator) -> dict[str, list[str]]:
    """A text of eight words, and places of work of which a few have many nodes and many have a few."""
    vocabulary = [first + last for first in ("ka", "lo", "mi", "ne", "pu", "ra", "so", "ti", "vu", "ze") for last in ENDINGS]
    return {
        "about": [" ".join(rng.choice(vocabulary, 8)) for _ in range(n)],
        **{name: [f"{name}{k % most}" for k in rng.zipf(1.3, n)] for name, most in (("city", 80), ("employer", 120))},
    }


def empty_numbers(n: int, rng: np.random.Generator) -> dict[str, list[str]]:
    """Three hundred columns that follow twenty hidden ones, with noise."""
    hidden, mixed = rng.normal(size=(n, 20)), 0.2 * rng.normal(size=(20, 300))
    numbers = hidden @ mixed + rng.normal(size=(n, 300))
    return {f"sensor{k}": [f"{number:.3f}" for number in column] for k, column in enumerate(numbers.T)}


def holes(cells: list[str], share: float, rng: np.random.Generator) -> list[str]:
    return ["" if missing else cell for cell, missing in zip(cells, rng.random(len(cells)) < share, strict=True)]


def pairs(y: np.ndarray, kind: Table, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Edges of which a share join alike (or opposite) classes and the others nodes at random."""
    members = [np.flatnonzero(y == k) for k in range(kind.num_classes)]
    chance = 1 / kind.num_classes
    planted = (kind.homophily - chance) / (1 - chance)  # the others hit such a pair by chance
    found: set[tuple[int, int]] = set()
    while len(found) < kind.num_nodes * MEAN_DEGREE // 2:
        i = int(rng.integers(kind.num_nodes))
        wanted = int(y[i]) ^ 1 if kind.opposites else int(y[i])
        j = int(rng.choice(members[wanted]) if rng.random() < planted else rng.integers(kind.num_nodes))
        if i != j:
            found.add((min(i, j), max(i, j)))
    return sorted(found)


def uneven_pairs(n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Edges between nodes at random, some of which are much likelier than others."""
    liking = rng.lognormal(0, 1, n)
    found: set[tuple[int, int]] = set()
    while len(found) < n * MEAN_DEGREE // 2:
        i, j = (int(end) for end in rng.choice(n, 2, p=liking / liking.sum()))
        if i != j:
            found.add((min(i, j), max(i, j)))
    return sorted(found)


def write_minesweeper(folder: Path, seed: int, root: str | None) -> list[tuple[str, bool]]:
    graph = load("minesweeper", root)
    x = graph.x.to_dense() if hasattr(graph.x, "to_dense") else graph.x
    given = np.random.default_rng([seed, 11]).permutation(graph.num_nodes) < LABELED * graph.num_nodes
    labels = [f"class {k}" for k in graph.y.tolist()]
    columns = {f"x{k}": [f"{v:g}" for v in column] for k, column in enumerate(x.T.tolist())}
    edges = [(i, j) for i, j in zip(graph.row.tolist(), graph.col.tolist(), strict=True) if i < j]
    write_folder(folder, columns, labels, given, edges)
    return list(zip(labels, given.tolist(), strict=True))


def write_folder(
    folder: Path, columns: dict[str, list[str]], labels: list[str], given: np.ndarray, edges: list[tuple[int, int]]
) -> None:
    shown = [label if is_given else "" for label, is_given in zip(labels, given, strict=True)]
    ids = [f"n{i}" for i in range(len(labels))]
    with open(folder / "nodes.csv", "w", newline="", encoding="utf-8") as file:
        rows = zip(ids, shown, *columns.values(), strict=True)
        csv.writer(file).writerows([("id", "label", *columns), *rows])
    with open(folder / "edges.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *((f"n{i}", f"n{j}") for i, j in edges)])


Said = tuple[torch.Tensor, list[str], dict]  # probabilities [n, c], the names of the classes, and facts for the ledger


def as_train_does(place: str, seed: int, *, recipe: str = "default") -> Said:
    """`gcn-lpa train FOLDER`, and what it then says."""
    plan, graph = make_plan(Source(place), recipe=recipe, seed=seed)
    run = train_run(plan, graph, device="cpu")
    facts = {"recipe_hash": plan.recipe.hash(), "best_epoch": run.run.best_epoch}
    return predict_proba(run.trained, graph), list(run.trained.class_names), facts


def as_method(place: str, seed: int, *, method: str) -> Said:
    """A method that is fitted at once to all labels, with the columns that the default recipe sees."""
    graph = load(place)
    recipe = METHODS[method].fair(recipe_for(case_of(graph, graph.labeled)))
    trained = learn(graph, graph.labeled, [], recipe, seed=seed, device="cpu")
    return predict_proba(trained, graph), list(trained.class_names), {"recipe_hash": recipe.hash()}


def nearby(place: str) -> tuple[Graph, np.ndarray, np.ndarray]:
    """The graph, own and neighbours' columns and those about the structure, and the nodes with a label."""
    graph = load(place)
    prepared = recipe_for(case_of(graph, graph.labeled)).prepare(graph)
    x = prepared.x.to_dense() if hasattr(prepared.x, "to_dense") else prepared.x
    columns = torch.cat([x, *neighbour_columns(graph.adjacency.between_nodes(), x)], dim=1).double().numpy()
    return graph, columns, np.flatnonzero(graph.labeled.numpy())


def logistic_regression(place: str, seed: int) -> Said:
    """scikit-learn's, on standardised columns, C by five-fold cross-validation."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    graph, x, rows = nearby(place)
    options = {"Cs": [0.001, 0.01, 0.1, 1, 10], "cv": 5, "scoring": "neg_log_loss", "max_iter": 1000}
    classifier = LogisticRegressionCV(**options, l1_ratios=(0.0,), use_legacy_attributes=False)
    model = make_pipeline(StandardScaler(), classifier).fit(x[rows], graph.y.numpy()[rows])
    return torch.from_numpy(model.predict_proba(x)), list(graph.class_names), {}


def lightgbm(place: str, seed: int) -> Said:
    """LightGBM; five-fold cross-validation chooses the smallest leaf and the number of rounds."""
    import lightgbm

    graph, x, rows = nearby(place)
    y = graph.y.numpy()[rows]
    best: tuple[float, int, dict] | None = None
    for smallest in (5, 20):
        settings = {
            "objective": "multiclass",
            "num_class": graph.num_classes,
            "learning_rate": 0.05,
            "min_data_in_leaf": smallest,
            "feature_fraction": 0.5,
            "deterministic": True,
            "num_threads": 1,
            "seed": seed,
            "verbosity": -1,
        }
        stops = [lightgbm.early_stopping(20, verbose=False)]
        found = lightgbm.cv(settings, lightgbm.Dataset(x[rows], y), 500, nfold=5, seed=seed, callbacks=stops)
        costs = found["valid multi_logloss-mean"]
        if best is None or costs[-1] < best[0]:
            best = costs[-1], len(costs), settings
    _, rounds, settings = best
    model = lightgbm.train(settings, lightgbm.Dataset(x[rows], y), rounds)
    facts = {"rounds": rounds, "min_data_in_leaf": settings["min_data_in_leaf"], "lightgbm": lightgbm.__version__}
    return torch.from_numpy(model.predict(x)), list(graph.class_names), facts


ROWS: dict[str, Callable[[str, int], Said]] = {
    "default": as_train_does,
    "best": partial(as_train_does, recipe="best"),
    "lpa": partial(as_method, method="lpa"),
    "lr": partial(as_method, method="lr"),
    "lr nearby": logistic_regression,
    "lightgbm": lightgbm,
    "neighbour-lr": partial(as_method, method="neighbour-lr"),
    "trees": partial(as_method, method="trees"),
}


def area_under_curve(probabilities: np.ndarray, y: np.ndarray) -> float:
    """The mean over the classes of the area under the ROC curve, each against the others."""
    from sklearn.metrics import roc_auc_score

    return float(np.mean([roc_auc_score(y == k, probabilities[:, k]) for k in np.unique(y)]))


def table(records: list) -> dict:
    """For each graph and row the mean and 95 % interval over seeds; and of the default less the row, paired."""
    found: dict = {}
    for graph in dict.fromkeys(record["graph"] for record in records):
        mine = [record for record in records if record["graph"] == graph]
        rows = list(dict.fromkeys(record["row"] for record in mine))
        of = {row: {key: np.array([r[key] for r in mine if r["row"] == row]) for key in ("accuracy", "auc")} for row in rows}
        found[graph] = {
            row: {
                "accuracy": str(mean_of(of[row]["accuracy"])),
                "auc": str(mean_of(of[row]["auc"])),
                "difference": ""
                if row == "default" or "default" not in of
                else str(mean_of(of["default"]["accuracy"] - of[row]["accuracy"])),
            }
            for row in rows
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
