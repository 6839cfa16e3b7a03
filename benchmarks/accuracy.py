"""How accurate the recipes `default` and `best` are, beside their own ingredients removed one by one, and beside other methods.

    python benchmarks/accuracy.py --graphs cora,citeseer --splits 5 --out benchmarks/results/accuracy-dev-cpu.json

All methods get the same labels. With `--labels 60` (the default) 60 % of the nodes train, 20 % choose the epoch and fit the weights
of members and votes, and 20 % score once. With `--labels 5` five nodes of each class have a label and there is nothing else: every
method is trained by folds of them, and all other nodes score. `--noise 1` adds as many edges between random pairs as there are.
`--bare` leaves out the columns of the nodes: there are edges and labels alone; row `+ positions` then adds to the degrees and
PageRank of the default POSITIONS eigenvectors of the graph's Laplacian, without their signs.

Splits 0 to 4 are for development; `--first 1000` takes those that are reported. Every training is a line of a ledger beside the
result, so that a run that was stopped goes on, and none is done twice; `--any-code` trains nothing and takes the newest line about
each, also of earlier code, which the result then names. On minesweeper, whose mines were drawn by the generator of
split 0, splits start at 1.
"""

import argparse
import dataclasses
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from ledgers import newest

from gcn_lpa import load, split
from gcn_lpa.calibration import conformal_sets, conformal_threshold, guesses_of, reliability
from gcn_lpa.data.files import write_json
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn, learn_many
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba, scores
from gcn_lpa.recipes import FIXED_EDGES, LAYERS, WITHOUT_FEATURES, Recipe, choose_recipe
from gcn_lpa.stats import mean_of
from gcn_lpa.trained import Trained
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

RIVALS = (
    "gcn",
    "gat",
    "graphsage",
    "jk-net",
    "appnp",
    "gcn-same",
    "correct-and-smooth",
    "label-input",
    "mlp",
    "lr",
    "lpa",
)
POSITIONS = 14
WITHOUT = {  # an ingredient of the default, and the settings that remove it
    "learned edges": {"edges": "fixed", "lpa_weight": 0.0},
    "λ": {"lpa_weight": 0.0},
    "symmetric hops": {"normalization": "row"},
    "votes": {"votes": False},
    "columns of the graph": {"structure": False},
    "convolutions": {"members": ""},
    "three convolutions": {"members": "layers"},
    "hops": {"propagation": "layers", "bias": True, "members": "three-layers", **FIXED_EDGES},
}


def recipe_of(row: str, ours: Recipe, best: Recipe) -> Recipe:
    """The recipe of a row where the default is `ours`."""
    if row in ("default", "best"):
        return {"default": ours, "best": best}[row]
    if row == "+ positions":
        return ours
    if row.startswith("best +"):
        return best.replace(members=f"{best.members} {row.removeprefix('best +').strip()}")
    if row.startswith("best -"):
        gone = row.removeprefix("best -").strip()
        return best.replace(members=" ".join(name for name in best.members.split() if name != gone))
    if row == "- places":  # what nodes without columns are told apart by
        return WITHOUT_FEATURES
    if row.startswith("- "):
        return ours.replace(**WITHOUT[row.removeprefix("- ")])
    return LAYERS if row == "first edition's default" else METHODS[row].fair(ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="cora,citeseer,cora-ml,chameleon-filtered,squirrel-filtered,digits")
    parser.add_argument("--rows", default=",".join(("default", "best", *RIVALS)))
    parser.add_argument("--labels", type=int, default=60, help="60: per cent train; fewer: labels of each class")
    parser.add_argument("--noise", type=float, default=0.0, help="random edges to add, as a share of those there are")
    parser.add_argument("--bare", action="store_true", help="leave out the columns of the nodes")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--any-code", action="store_true", help="train nothing, take also what earlier code trained")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    jobs = [
        {
            **{"graph": graph, "row": row, "labels": given.labels, "noise": given.noise},
            **{"split": given.first + k + skipped, **({"bare": True} if given.bare else {})},
        }
        for k in range(given.splits)
        for graph in given.graphs.split(",")
        for skipped in [int(graph == "minesweeper" and given.first == 0)]
        for row in given.rows.split(",")
    ]
    out, trained_by = Path(given.out), {}
    if given.any_code:
        records, trained_by["codes"] = newest(out.with_suffix(".jsonl"), jobs)
    else:
        ledger = Ledger(out.with_suffix(".jsonl"))
        records = ledger.run(jobs, partial(train, root=given.root, device=given.device), workers=given.workers)
    found = table(records)
    write_json(out, {"rows": found, "code": code_hash(), **trained_by, "environment": environment()})
    for graph, rows in found.items():
        print(graph)
        for row, facts in rows.items():
            print(f"  {row:26} {facts['accuracy']}   {facts['difference']}   {facts['calibration']}")
    return 0


@cache
def graph_of(name: str, root: str | None, noise: float, seed: int, bare: bool = False) -> Graph:
    graph = load(name, root)
    if bare:
        graph = dataclasses.replace(graph, x=SparseMatrix.identity(graph.num_nodes), x_kind="identity", blocks=())
    if not noise:
        return graph
    links, random = graph.to_scipy(), np.random.Generator(np.random.PCG64((seed, 17)))
    ends = random.integers(0, graph.num_nodes, (2, round(noise * graph.num_edges)))
    ends = ends[:, ends[0] != ends[1]]
    extra = scipy.sparse.csr_array((np.ones(ends.shape[1], np.float32), (ends[0], ends[1])), shape=links.shape)
    both = links + extra + extra.T
    both.data[:] = 1.0
    x = graph.x.numpy() if isinstance(graph.x, torch.Tensor) else graph.x.to_scipy()
    return Graph.from_scipy(both, x=x, y=graph.y.numpy(), class_names=graph.class_names, name=graph.name)


def positions_of(graph: Graph) -> np.ndarray:
    """|v_i| of the eigenvectors of D^-½AD^-½ with the largest eigenvalues but the first, [n, POSITIONS]."""
    matrix = graph.adjacency.symmetric_normalized().to_scipy().astype(np.float64)
    start = np.random.Generator(np.random.PCG64(0)).standard_normal(graph.num_nodes)
    values, vectors = scipy.sparse.linalg.eigsh(matrix, POSITIONS + 1, which="LA", v0=start, tol=1e-4)
    return np.abs(vectors[:, values.argsort()[::-1][1:]]) * np.sqrt(graph.num_nodes)


@cache
def with_positions(graph: Graph) -> Graph:
    own = graph.structural_features()
    return graph.with_structural_features(np.hstack([own[:, :-2], positions_of(graph), own[:, -2:]]))


def drawn(graph: Graph, per_class: int, seed: int) -> Split:
    """So many nodes of each class to train, none to validate; all others score."""
    random, y = np.random.Generator(np.random.PCG64((seed, per_class))), graph.y.numpy()
    nodes = [random.permutation(np.flatnonzero(y == k))[:per_class] for k in range(graph.num_classes)]
    train = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, torch.from_numpy(np.concatenate(nodes)), True)
    return Split(train, torch.zeros_like(train), graph.labeled & ~train, f"{per_class} a class", seed)


def train(job: dict, root: str | None, device: str) -> dict:
    seed, per_class = job["split"], job["labels"] if job["labels"] != 60 else 0
    graph = graph_of(job["graph"], root, job["noise"], seed, job.get("bare", False))
    parts = drawn(graph, per_class, seed) if per_class else split(graph, seed=seed)
    graph = with_positions(graph) if job["row"] == "+ positions" else graph
    ours, best = (choose_recipe(graph, parts.train, name, by_folds=False) for name in ("default", "best"))
    recipe, start = recipe_of(job["row"], ours, best), time.perf_counter()
    if per_class:
        recipe = recipe.replace(select="loss")
        trained = learn(graph, parts.train, recipe=recipe, seed=seed, device=device)
    else:
        (trained,) = learn_many(graph, [(parts.train, parts.val)], recipe, seeds=seed, device=device)
    seconds = time.perf_counter() - start
    said, y = predict_proba(trained, graph, raw=True), trained.labels_of(graph)
    return {
        "accuracy": scores(graph, parts.test, said, trained.target).accuracy,
        "nodes": int(parts.test.sum()),
        "log_likelihood": float(said[parts.test].gather(1, y[parts.test].clamp_min(0)[:, None]).clamp_min(1e-9).log().mean()),
        **(ranking(said[parts.test], y[parts.test]) if said.shape[1] == 2 else {}),
        **confidence(trained, parts, said, y),
        "best_epoch": trained.run.best_epoch,
        "epochs": len(trained.run.history),
        "seconds": round(seconds, 2),
        "split_hash": parts.hash,
        "recipe_hash": recipe.hash(),
        "device": device,
    }


def ranking(said: torch.Tensor, y: torch.Tensor) -> dict:
    from sklearn.metrics import average_precision_score, roc_auc_score

    return {
        "auc": float(roc_auc_score(y.numpy(), said[:, 1].numpy())),
        "average_precision": float(average_precision_score(y.numpy(), said[:, 1].numpy())),
    }


def confidence(trained: Trained, parts: Split, said: torch.Tensor, y: torch.Tensor) -> dict:
    """As the product calibrates, on the test nodes: bins of [nodes, mean confidence, correct], and label sets at 90 %."""
    evidence, labels = trained.held_out.probability, trained.held_out.y
    test = parts.test & (y >= 0)
    table = reliability(guesses_of(trained.calibration(said[test]), y[test]))
    sets = conformal_sets(said[test], conformal_threshold(evidence, labels, 0.9))
    held_out = float((evidence.argmax(dim=1) == labels).double().mean())
    return {
        "held_out_accuracy": held_out,
        "bins": [list(b) for b in zip(table.count, table.confidence, table.accuracy, strict=True)],
        "covered": float(sets.gather(1, y[test][:, None]).double().mean()),
        "set_size": float(sets.sum(dim=1).double().mean()),
    }


def table(records: list) -> dict:
    """For each graph and row the mean and 95 % interval over splits, and of the paired difference to the default."""
    found: dict = {}
    for graph in dict.fromkeys(record["graph"] for record in records):
        of = {
            row: [record for record in records if (record["graph"], record["row"]) == (graph, row)]
            for row in dict.fromkeys(record["row"] for record in records)
        }
        accuracy = {row: np.array([record["accuracy"] for record in group]) for row, group in of.items()}
        found[graph] = {
            row: {
                "accuracy": str(mean_of(accuracy[row])),
                "difference": ""
                if row == "default" or "default" not in accuracy
                else str(mean_of(accuracy[row] - accuracy["default"])),
                "calibration": pooled(group),
                **{
                    name: str(mean_of(np.array([record[name] for record in group])))
                    for name in ("auc", "average_precision", "covered", "set_size", "held_out_accuracy", "seconds")
                    if name in group[0]
                },
            }
            for row, group in of.items()
        }
    return found


def pooled(records: list) -> str:
    """The expected calibration error over all splits, and what a perfect forecaster of the same confidences would have."""
    bins = np.array([record["bins"] for record in records])  # [splits, bins, 3]
    count = bins[:, :, 0].sum(axis=0)
    confidence, right = ((bins[:, :, 0] * bins[:, :, k]).sum(axis=0) for k in (1, 2))
    mean = np.divide(confidence, count, out=np.zeros(len(count)), where=count > 0)
    random, total = np.random.Generator(np.random.PCG64(0)), count.sum()
    draws = [np.abs(random.binomial(count.astype(int), mean.clip(0, 1)) - confidence).sum() / total for _ in range(500)]
    return f"ECE {100 * np.abs(right - confidence).sum() / total:.1f} (perfect, 95 %: {100 * np.quantile(draws, 0.95):.1f})"


if __name__ == "__main__":
    sys.exit(main())
