"""Time to labels: the whole command, and how accurate it is, beside an earlier version, a plain GCN and boosted trees.

    python benchmarks/quick.py --graphs both,streamers-engb,pubmed --seeds 10 --base ../main --out benchmarks/results/quick-cpu.json

A folder is written in which 10 % of the nodes have a label, the same for all rows. `default` and `quick` are the commands `gcn-lpa
train FOLDER --out RUN` and `gcn-lpa predict RUN`, started anew; `base default` is the same with the package of --base. `pyg gcn` is
PyG's GCN of 200 epochs, `trees nearby` scikit-learn's boosted trees on own and neighbours' columns. Seconds are those of the clock
and of the processor; on a busy machine only the latter mean something. Differences in accuracy are paired to `base default`, or to
`default` where there is no base.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas
import torch
from tables import LABELED, TABLES, nearby, write_folder, write_minesweeper, write_table

from gcn_lpa import load
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import case_of, recipe_for
from gcn_lpa.stats import mean_of

ROWS = ("base default", "default", "quick", "pyg gcn", "trees nearby")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="columns,both,opposites,minesweeper,streamers-engb,pubmed")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--base", help="the root of another checkout")
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    ledger = given.out.with_suffix(".jsonl")
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    records = {(r["graph"], r["seed"], r["row"]): r for r in map(json.loads, lines)}
    for seed in range(given.first, given.first + given.seeds):
        for graph in given.graphs.split(","):
            rows = [row for row in given.rows.split(",") if (graph, seed, row) not in records]
            with tempfile.TemporaryDirectory() as place:
                truth = written(Path(place), graph, seed, given.root) if rows else []
                for row in rows if given.base else [row for row in rows if row != "base default"]:
                    record = {"graph": graph, "seed": seed, "row": row, **measured(place, truth, row, seed, given.base)}
                    records[graph, seed, row] = record
                    with ledger.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(json.dumps(record), flush=True)
    write_json(given.out, {"rows": summary(list(records.values())), "environment": environment()})
    return 0


def written(folder: Path, graph: str, seed: int, root: str | None) -> list[tuple[str, bool]]:
    """Write a folder, and return the class of each node and whether the folder tells it."""
    if graph in TABLES:
        return write_table(folder, TABLES[graph], seed)
    if graph == "minesweeper":
        return write_minesweeper(folder, seed, root)
    if "/" in graph:  # nodes/edges, generated
        return write_large(folder, *(int(float(number)) for number in graph.split("/")), seed)
    found = load(graph, root)
    x = found.x.to_scipy()
    words = [" ".join(f"w{j}" for j in x.indices[x.indptr[i] : x.indptr[i + 1]]) for i in range(found.num_nodes)]
    labels = [found.class_names[k] for k in found.y.tolist()]
    given = np.random.default_rng([seed, 11]).permutation(found.num_nodes) < LABELED * found.num_nodes
    edges = [(i, j) for i, j in zip(found.row.tolist(), found.col.tolist(), strict=True) if i < j]
    write_folder(folder, {"words": words}, labels, given, edges)
    return list(zip(labels, given.tolist(), strict=True))


def write_large(folder: Path, num_nodes: int, num_edges: int, seed: int) -> list[tuple[str, bool]]:
    """Ten classes, degrees by a power law, eight numbers, a category and a text; half of the edges stay in a class, 1 % of the
    nodes have a label.
    """
    random, count = np.random.default_rng([seed, 29]), 10
    classes = random.integers(0, count, num_nodes)
    columns = {f"number_{k}": random.normal(0.5 * (classes == k), 1.0).round(4) for k in range(8)}
    columns["place"] = np.char.add("place ", (random.zipf(1.5, num_nodes) % 40).astype(str))
    words, vocabulary = (
        random.zipf(1.2, (num_nodes, 8)) % 3000,
        np.array([f"word{k}" for k in range(3000 + 10 * count)]),
    )
    tells = random.random(num_nodes) < 0.3  # a word of its class
    words[tells, 0] = 3000 + 10 * classes[tells] + random.integers(0, 10, tells.sum())
    columns["text"] = [" ".join(row) for row in vocabulary[words]]
    labels, given = np.char.add("class ", classes.astype(str)), random.permutation(num_nodes) < num_nodes // 100
    ids = np.char.add("n", np.arange(num_nodes).astype(str))
    pandas.DataFrame({"id": ids, "label": np.where(given, labels, ""), **columns}).to_csv(folder / "nodes.csv", index=False)
    weight = random.pareto(1.5, num_nodes) + 0.1  # how often a node is chosen: degrees by a power law
    by_class = np.argsort(classes, kind="stable")
    sums, ends = np.cumsum(weight[by_class]), np.searchsorted(classes[by_class], np.arange(count), side="right") - 1
    source = random.integers(0, num_nodes, num_edges)
    last, same = sums[ends], random.random(num_edges) < 0.5
    low = np.where(same, np.append(0.0, last)[classes[source]], 0.0)
    high = np.where(same, last[classes[source]], last[-1])
    target = by_class[np.searchsorted(sums, low + random.random(num_edges) * (high - low)).clip(max=num_nodes - 1)]
    pandas.DataFrame({"source": ids[source], "target": ids[target]}).to_csv(folder / "edges.csv", index=False)
    return list(zip(labels.tolist(), given.tolist(), strict=True))


def measured(place: str, truth: list[tuple[str, bool]], row: str, seed: int, base: str | None) -> dict:
    before, start = processor_seconds(), time.perf_counter()
    if row == "pyg gcn":
        graph = load(place)
        guess, memory = np.array(graph.class_names)[pyg_gcn(graph, seed)], 0
    elif row == "trees nearby":
        guess, memory = boosted_trees(place, seed), 0
    else:
        guess, memory = by_command(place, row, seed, base)
    facts = {"seconds": round(time.perf_counter() - start, 1), "cpu": round(processor_seconds() - before, 1)}
    hidden = [i for i, (_, is_given) in enumerate(truth) if not is_given]
    right = np.array([truth[i][0] == guess[i] for i in hidden])
    return {**facts, "megabytes": memory, "accuracy": float(right.mean()), "load": os.getloadavg()[0]}


def processor_seconds() -> float:
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in every)


def by_command(place: str, row: str, seed: int, base: str | None) -> tuple[np.ndarray, int]:
    """The labels of all nodes, and the megabytes of the training at its peak."""
    package = str(Path(base or "").resolve()) if row == "base default" else str(Path(__file__).parents[1])
    kept = tempfile.TemporaryDirectory()
    run, table = Path(kept.name) / "run", Path(kept.name) / "predictions.csv"
    recipe = "quick" if row == "quick" else "default"
    start = [sys.executable, "-m", "gcn_lpa", "--quiet"]
    train = ["train", place, "--recipe", recipe, "--seed", str(seed), "--out", str(run), "--overwrite"]
    settings = {**os.environ, "PYTHONPATH": package}
    training = subprocess.Popen([*start, *train], env=settings, cwd=place, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(training.pid, 0)  # of this command alone, not the most of all before
    if status:
        raise ChildProcessError(f"{train} ended with {os.waitstatus_to_exitcode(status)}")
    peak = used.ru_maxrss // 1024
    predict = ["predict", str(run), "--all", "--out", str(table), "--overwrite"]
    subprocess.run([*start, *predict], env=settings, cwd=place, check=True, stdout=subprocess.DEVNULL)
    found = pandas.read_csv(table, dtype=str).set_index("id")["label"]
    kept.cleanup()
    return found.loc[[f"n{i}" for i in range(len(found))]].to_numpy(), peak


def pyg_gcn(graph: Graph, seed: int) -> np.ndarray:
    """PyG's GCN: two layers of 64, dropout 0.5, Adam at 0.01, 200 epochs, on the columns that the default reads."""
    from torch_geometric.nn.models import GCN

    torch.manual_seed(seed)
    prepared = recipe_for(case_of(graph, graph.labeled)).prepare(graph)
    x = prepared.x.to_dense() if isinstance(prepared.x, SparseMatrix) else prepared.x
    edges = torch.stack([graph.col.long(), graph.row.long()])
    model = GCN(x.shape[1], 64, 2, graph.num_classes, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x, edges)[graph.labeled], graph.y[graph.labeled]).backward()
        optimizer.step()
    with torch.no_grad():
        return model.eval()(x, edges).argmax(dim=1).numpy()


def boosted_trees(place: str, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    graph, x, rows = nearby(place)
    model = HistGradientBoostingClassifier(random_state=seed).fit(x[rows], graph.y.numpy()[rows])
    return np.array(graph.class_names)[model.predict(x)]


def summary(records: list[dict]) -> dict:
    """Of each graph and row the mean seconds and accuracy, and the difference to the reference, paired over seeds."""
    found: dict[str, dict] = {}
    by_row: dict[tuple[str, str], dict[int, dict]] = {}
    for record in records:
        by_row.setdefault((record["graph"], record["row"]), {})[record["seed"]] = record
    for (graph, row), of in sorted(by_row.items()):
        against = by_row.get((graph, "base default"), by_row.get((graph, "default"), {}))
        pairs = [of[k]["accuracy"] - against[k]["accuracy"] for k in of if k in against]
        every = {name: [r[name] for r in of.values()] for name in ("seconds", "cpu", "megabytes")}
        found.setdefault(graph, {})[row] = {
            "draws": len(of),
            "accuracy": str(mean_of(np.array([r["accuracy"] for r in of.values()]))),
            "difference": str(mean_of(np.array(pairs))) if pairs else "",
            **{name: round(float(np.mean(values)), 1) for name, values in every.items()},
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
