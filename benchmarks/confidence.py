"""Does calibration help on folders of one's own, and are nodes that no label reaches as sure as they are right?

    PYTHONPATH=.:benchmarks python benchmarks/confidence.py calibration --keep DIR --out benchmarks/results/confidence-cpu.json
    PYTHONPATH=.:benchmarks python benchmarks/confidence.py alone --out benchmarks/results/confidence-alone-cpu.json

calibration: every run hides most labels, trains `quick` or `default` by folds as `gcn-lpa train FOLDER` does, and scores the hidden
labels: ECE and log loss of the probabilities as the ensemble gives them, calibrated by a curve with the pull of a single node, and
as the product calibrates. The graphs are generated tables of benchmarks/tables.py and benchmarks/rare.py and loaded ones, with few
and many labels; in some, a quarter of the nodes has lost its edges. The pull was chosen without the graphs of OTHERS, on
predictions of benchmarks/members.py and published.py. DIR keeps held-out and hidden predictions, so that a rule can be tried anew
without training.

alone: 60 nodes without a label lose their edges, and no others do; how sure the model is of all nodes that no label reaches, and
how often it is right.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from rare import accounts
from tables import TABLES, write_table

from gcn_lpa import learn, load
from gcn_lpa.calibration import (
    Calibration,
    Calibrator,
    apply_temperature,
    fit_curve,
    fit_temperature,
    guesses_of,
    reliability,
)
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.predict import Prediction
from gcn_lpa.stats import mean_of

OTHERS = ("columns", "edges", "both", "opposites", "scaled", "accounts 0.03", "accounts 0.1", "streamers-es", "actor")
JOBS: list[dict[str, Any]] = [
    {"graph": graph, "labels": labels, "alone": alone, "seed": seed, "recipe": recipe}
    for recipe, graphs, shares, seeds in (
        ("quick", ("columns", "edges", "both", "accounts 0.03", "opposites", "scaled", "accounts 0.1"), (0.05, 0.3), 2),
        (
            "quick",
            ("cora", "chameleon-filtered", "citeseer", "streamers-es", "streamers-engb", "actor"),
            (0.05, 0.3),
            1,
        ),
        ("default", ("columns", "edges", "both", "opposites", "scaled"), (0.05, 0.2), 1),
        ("default", ("cora", "chameleon-filtered", "citeseer"), (0.03, 0.2), 1),
    )
    for labels in shares
    for graph in graphs
    for seed in range(seeds)
    for alone in ((0.0, 0.25) if recipe == "quick" and seed == 0 else (0.0,))
]


def graph_of(job: dict[str, Any]) -> Graph:
    """The graph of a job with all its labels, without the edges of some nodes."""
    name, seed = job["graph"], job["seed"]
    if name.startswith("accounts"):
        graph = accounts(float(name.split()[1]), seed, n=2000)
    elif name in TABLES:
        with tempfile.TemporaryDirectory() as place:
            truth = write_table(Path(place), TABLES[name], seed)
            graph = load(place)
        index = {name: k for k, name in enumerate(graph.class_names)}
        y = torch.tensor([index[label] for label, _ in truth])
        graph = dataclasses.replace(graph, y=y)
    else:
        graph = load(name)
    if not job["alone"]:
        return graph
    kept = np.random.default_rng([seed, 21]).random(graph.num_nodes) >= job["alone"]
    keeps = scipy.sparse.diags_array(kept.astype(np.float32))
    return dataclasses.replace(graph, adjacency=SparseMatrix.from_scipy((keeps @ graph.adjacency.to_scipy() @ keeps).tocsr()))


def trained(job: dict[str, Any], keep: Path) -> dict[str, np.ndarray]:
    """Held-out and hidden predictions of a job, from a file where it was trained before."""
    file = keep / ("-".join(str(value) for value in job.values()).replace(" ", "_") + ".npz")
    if file.is_file():
        return dict(np.load(file))
    graph = graph_of(job)
    given = np.random.default_rng([job["seed"], 22]).random(graph.num_nodes) < job["labels"]
    train = torch.from_numpy(given) & graph.labeled
    start = time.perf_counter()
    model = learn(graph, train, recipe=job["recipe"], seed=job["seed"], device="cpu", threads=1)
    prediction, hidden, held_out = Prediction.of(model, graph), graph.labeled & ~train, model.held_out
    assert held_out is not None and held_out.unreachable is not None
    arrays = {
        "held_out": held_out.probability.numpy(),
        "y": held_out.y.numpy(),
        "fold": (torch.arange(len(held_out.y)) % 5 if held_out.fold is None else held_out.fold).numpy(),
        "apart": held_out.unreachable.numpy(),
        "isolated": isolated(graph)[held_out.node.numpy()],
        "hidden": prediction.uncalibrated[hidden].numpy(),
        "truth": model.labels_of(graph)[hidden].numpy(),
        "hidden_apart": prediction.unreachable[hidden].numpy(),
        "seconds": np.array(time.perf_counter() - start),
    }
    np.savez(file, **arrays)
    return arrays


def isolated(graph: Graph) -> np.ndarray:
    return np.asarray(graph.adjacency.to_scipy().sum(axis=1)).ravel() == 0


def ece(p: torch.Tensor, y: torch.Tensor) -> float:
    return 100 * reliability(guesses_of(p, y)).ece


def log_loss(p: torch.Tensor, y: torch.Tensor) -> float:
    return float(-p.gather(1, y.unsqueeze(1)).clamp_min(1e-12).log().mean())


def own_folders(keep: Path) -> dict[str, Any]:
    runs = []
    for job in JOBS:
        arrays = {name: torch.from_numpy(array) for name, array in trained(job, keep).items()}
        near, rows = ~arrays["apart"], (arrays["truth"] >= 0) & ~arrays["hidden_apart"]
        held_out, y = arrays["held_out"][near], arrays["y"][near]
        found = Calibration.fitted(held_out, y, "cross-validation")
        logs = held_out.double().clamp_min(1e-300).log()
        temperature = fit_temperature(logs, y)
        curve = fit_curve(guesses_of(apply_temperature(logs, temperature), y), pull=1.0)
        hardly_pulled = Calibrator(temperature, *curve)
        p, truth = arrays["hidden"][rows], arrays["truth"][rows]
        ways = {"model": p, "hardly pulled": hardly_pulled(p), "calibrated": found(p)}
        scores = {way: {"ece": ece(q, truth), "log_loss": log_loss(q, truth)} for way, q in ways.items()}
        runs.append({**job, "held_out": len(y), **scores})
        print(runs[-1], flush=True)
    groups = {"chosen on": [run for run in runs if run["graph"] not in OTHERS]}
    groups["left out"] = [run for run in runs if run["graph"] in OTHERS]
    return {"rows": {name: summary(group) for name, group in groups.items()}, "runs": runs}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over runs; how much worse and better than the model's own the ways are, in points of ECE."""
    rows: dict[str, Any] = {"runs": len(runs)}
    for way in ("model", "hardly pulled", "calibrated"):
        apart = np.array([run[way]["ece"] - run["model"]["ece"] for run in runs])
        rows[way] = {key: float(np.mean([run[way][key] for run in runs])) for key in ("ece", "log_loss")}
        rows[way] |= {"to model": str(mean_of(apart / 100)), "worst": float(apart.max())}
    return rows


def without_edges(graph: Graph, nodes: np.ndarray) -> Graph:
    kept = np.ones(graph.num_nodes, dtype=np.float32)
    kept[nodes] = 0
    matrix = scipy.sparse.csr_array(scipy.sparse.diags_array(kept) @ graph.adjacency.to_scipy() @ scipy.sparse.diags_array(kept))
    matrix.eliminate_zeros()
    return dataclasses.replace(graph, adjacency=SparseMatrix.from_scipy(matrix))


def alone(_: Path) -> dict[str, Any]:
    runs = []
    for name, labels, seed in itertools.product(("both", "columns", "edges", "opposites"), (0.05, 0.3), (0, 1, 2)):
        graph = graph_of({"graph": name, "alone": 0.0, "seed": seed})
        train = torch.from_numpy(np.random.default_rng([seed, 22]).random(graph.num_nodes) < labels)
        lost = np.random.default_rng([seed, 23]).permutation(np.flatnonzero(~train.numpy()))[:60]
        graph = without_edges(graph, lost)
        model = learn(graph, train, recipe="quick", seed=seed, device="cpu", threads=1)
        found = Prediction.of(model, graph)
        rows = found.unreachable & ~train
        y, p, q = model.labels_of(graph)[rows], found.uncalibrated[rows], found.probabilities[rows]
        as_others = model.calibration.calibrator(p)
        ways = {"model": p, "as others": as_others, "apart": q}
        facts = {way: {"stated": float(r.amax(dim=1).mean()), "log_loss": log_loss(r, y)} for way, r in ways.items()}
        right = float((p.argmax(dim=1) == y).double().mean())
        runs.append({"graph": name, "labels": labels, "seed": seed, "nodes": len(y), "right": right, **facts})
        print(runs[-1], flush=True)
    nodes = np.array([run["nodes"] for run in runs])
    rows = {"runs": len(runs), "nodes": int(nodes.sum())}
    rows["right"] = float(np.average([run["right"] for run in runs], weights=nodes))
    for way in ("model", "as others", "apart"):
        rows[way] = {key: float(np.average([run[way][key] for run in runs], weights=nodes)) for key in ("stated", "log_loss")}
    return {"rows": rows, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calibration", "alone"])
    parser.add_argument("--keep", type=Path, default=Path(), help="folder of predictions that are kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {"calibration": own_folders, "alone": alone}[given.what](given.keep)
    print(json.dumps(result["rows"], indent=2))
    if given.out is not None:
        write_json(given.out, {**result, "device": "cpu", "environment": environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
