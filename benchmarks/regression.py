"""Numbers to predict: the default and the best beside rivals, and whether intervals hold what they promise.

    python benchmarks/regression.py --first 100 --draws 10 --out benchmarks/results/numbers-cpu.json

Streamers have views, read on a log scale, log(1 + views); 10 or 50 % of them are known. The tables are generated, and 40 % of their
numbers are known: money is skewed, as the exponential of a sum; noisy numbers are half noise. Of each there is one in which the
edges tell, one in which columns do, and one in which both do. Seeds below 100 are for development; every third graph, streamers-es
and the tables of both, had no say in any choice.

Rivals, all told to learn the same scale: scikit-learn's ridge regression on own columns, and on own columns, the neighbours' means
and degrees, with the penalty chosen by cross-validation; its boosted trees on the latter; label propagation of numbers; and a GCN
of PyTorch Geometric, two layers of width 64, with a fifth of the labels to choose the epoch. R² and the mean absolute error are on
that scale, on the nodes without a label. Intervals are those of 90 % that the default predicts.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.spatial
import torch

from gcn_lpa import learn, load
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction
from gcn_lpa.recipes import choose_recipe
from gcn_lpa.stats import mean_of, signed_rank_test

ALPHAS = np.logspace(-2, 4, 13)
KINDS = ("money", "skewed", "noisy")
TELLING = ("edges", "columns", "both")


def table(kind: str, telling: str, seed: int, n: int = 1200) -> Graph:
    """Places in a square, joined to those near them, with a number that a smooth field and two of eight columns make."""
    rng = np.random.default_rng([seed, KINDS.index(kind), TELLING.index(telling)])
    place, x = rng.random((n, 2)), rng.normal(size=(n, 8))
    near = scipy.spatial.cKDTree(place).query(place, k=6)[1][:, 1:]
    field = np.sin(7 * place[:, 0]) + np.cos(5 * place[:, 1])
    columns = x[:, 0] + 0.5 * np.maximum(x[:, 1], 0) * x[:, 0]
    signal = {"edges": field, "columns": columns, "both": field + columns}[telling]
    signal = (signal - signal.mean()) / signal.std()
    y = signal + {"money": 0.5, "skewed": 0.3, "noisy": 1.0}[kind] * rng.normal(size=n)
    y = np.exp(y) * 1000 if kind == "money" else np.exp(1.5 * y) if kind == "skewed" else y
    edges = np.stack([np.repeat(np.arange(n), 5), near.ravel()], axis=1)
    return Graph.from_edges(edges, num_nodes=n, x=x, y=y, task="regression", name=f"{kind}, {telling}")


def known(graph: Graph, share: float, seed: int) -> torch.Tensor:
    order = np.random.Generator(np.random.PCG64([seed, 9])).permutation(graph.num_nodes)
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(order[: round(share * graph.num_nodes)])] = True
    return mask


def on_scale(graph: Graph, y: np.ndarray) -> np.ndarray:
    """Numbers on the scale that all are scored on."""
    return y if graph.name.startswith("noisy") else np.log1p(np.maximum(y, 0))


def columns_of(graph: Graph, *, neighbours: bool) -> scipy.sparse.csr_array:
    """Columns of length or spread 1: own, and with neighbours their means and two degrees."""
    scaled = graph.with_features("auto").x
    x = scaled.to_scipy() if isinstance(scaled, SparseMatrix) else scipy.sparse.csr_array(scaled.numpy().astype(float))
    if not neighbours:
        return scipy.sparse.csr_array(x)
    structure = graph.structural_features_of_edges().numpy().astype(float)
    structure = np.sign(structure) * np.log1p(np.abs(structure))
    structure = (structure - structure.mean(axis=0)) / structure.std(axis=0).clip(1e-9)
    return scipy.sparse.csr_array(scipy.sparse.hstack([x, graph.adjacency.between_nodes().to_scipy() @ x, structure]))


def ridge(x: scipy.sparse.csr_array, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(Ridge(solver="sparse_cg", tol=1e-5), {"alpha": ALPHAS}, cv=5)
    return search.fit(x[rows], y[rows]).predict(x)


def boosted(x: scipy.sparse.csr_array, y: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    filled = np.asarray((x[rows] != 0).sum(axis=0)).ravel()
    x = x[:, np.argsort(-filled, kind="stable")[:500]].toarray()  # of thousands of words the most frequent
    return HistGradientBoostingRegressor(early_stopping=False, random_state=seed).fit(x[rows], y[rows]).predict(x)


def gcn(graph: Graph, x: scipy.sparse.csr_array, y: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    from torch_geometric.nn import GCNConv

    torch.manual_seed(seed)
    dense = torch.from_numpy(x.toarray()).float()
    mean, spread = y[rows].mean(), y[rows].std()
    z, index = torch.from_numpy((y - mean) / spread).float(), torch.stack([graph.col, graph.row]).long()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(np.flatnonzero(rows)))
    held, train = order[: len(order) // 5], order[len(order) // 5 :]
    layers = torch.nn.ModuleList([GCNConv(dense.shape[1], 64), GCNConv(64, 1)])
    optimizer, best = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4), (np.inf, np.zeros(len(y)))

    def out() -> torch.Tensor:
        drop = torch.nn.functional.dropout
        h = layers[0](drop(dense, 0.5, layers.training), index).relu()
        return layers[1](drop(h, 0.5, layers.training), index).squeeze(1)

    since = 0
    for _ in range(300):
        layers.train()
        optimizer.zero_grad()
        (out()[train] - z[train]).square().mean().backward()
        optimizer.step()
        layers.eval()
        with torch.no_grad():
            said = out()
        cost, since = float((said[held] - z[held]).square().mean()), since + 1
        if cost < best[0]:
            best, since = (cost, mean + spread * said.numpy()), 0
        if since > 30:
            break
    return best[1]


def one(graph: Graph, share: float, seed: int, *, best: bool) -> dict[str, dict[str, float]]:
    """R², mean absolute error and seconds of every method, and of the default what its intervals hold."""
    train = known(graph, share, seed)
    rows, y, found = train.numpy(), on_scale(graph, graph.y.numpy()), {}
    own, wide = (columns_of(graph, neighbours=it) for it in (False, True))
    told = graph.labeled_by(torch.from_numpy(y), graph.target)

    def ours(recipe: object) -> np.ndarray:
        return (
            Prediction.of(learn(told, train, recipe=recipe, seed=seed, device="cpu"), told).table()["value"].to_numpy()
        )

    def default() -> np.ndarray:
        trained = learn(graph, train, seed=seed, device="cpu")  # which finds the scale by itself
        table = Prediction.of(trained, graph).table()[~rows]
        low, high = (on_scale(graph, table[end].to_numpy()) for end in ("low", "high"))
        held = (low <= y[~rows]) & (y[~rows] <= high)
        width, spread = high - low, np.abs(on_scale(graph, table["value"].to_numpy()) - y[~rows])
        half = np.argsort(width, kind="stable")
        found["intervals"] = {
            "coverage": float(held.mean()),
            "width": float(np.median(width)),
            "error of the narrower half": float(spread[half[: len(half) // 2]].mean()),
            "error of the wider half": float(spread[half[len(half) // 2 :]].mean()),
        }
        return on_scale(graph, Prediction.of(trained, graph).table()["value"].to_numpy())

    methods = {
        "default": default,
        "best": lambda: ours("best"),
        "ridge, own columns": lambda: ridge(own, y, rows),
        "ridge, neighbours' too": lambda: ridge(wide, y, rows),
        "boosted trees": lambda: boosted(wide, y, rows, seed),
        "LPA": lambda: ours(METHODS["lpa"].fair(choose_recipe(told, train))),
        "GCN (PyG)": lambda: gcn(graph, own, y, rows, seed),
    }
    for name, method in methods.items():
        if name == "best" and not best:
            continue
        start, hidden = time.perf_counter(), y[~rows]
        off = method()[~rows] - hidden
        r2 = 1 - float(np.square(off).mean() / hidden.var())
        seconds = round(time.perf_counter() - start, 1)
        found[name] = {"r2": r2, "mae": float(np.abs(off).mean()), "seconds": seconds}
        print(graph.name, share, seed, name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)
    return found


def summary(runs: list[dict[str, dict[str, float]]]) -> dict[str, object]:
    """Means with 95 % intervals, and of each rival by how much the default is above it, with the p of the signed-rank test."""
    rows: dict[str, object] = {}
    for name in runs[0]:
        rows[name] = {key: str(mean_of(np.array([run[name][key] for run in runs]))) for key in runs[0][name]}
        if "r2" in runs[0][name] and name != "default":
            gain = np.array([run["default"]["r2"] - run[name]["r2"] for run in runs])
            test = signed_rank_test(gain) if len(gain) > 1 else None
            rows[name] |= {"default is above by": str(mean_of(gain)), "p": test}
    return rows


def tables(rows: dict) -> str:
    """R² of each method by graph, and what intervals hold, as Markdown."""
    methods = [name for name, facts in next(iter(rows.values())).items() if isinstance(facts, dict) and "r2" in facts]
    heads, lines = ["R², %, of hidden numbers", "draws", *methods], []
    for name, row in rows.items():
        lines.append([name, str(row["draws"]), *(row[method]["r2"] for method in methods)])
    held = [[name, *(row["intervals"][key] for key in ("coverage", "width"))] for name, row in rows.items()]
    halves = ("error of the narrower half", "error of the wider half")
    more = [[row["intervals"][key] for key in halves] for row in rows.values()]
    widths = ["intervals of 90 %", "hold, %", "median width, × 100", *(f"{half}, × 100" for half in halves)]
    both = (heads, lines), (widths, [[*one, *other] for one, other in zip(held, more, strict=True)])
    texts = ("\n".join(f"| {' | '.join(cells)} |" for cells in (top, ["---"] * len(top), *body)) for top, body in both)
    return "\n\n".join(texts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--best", action="store_true", help="the recipe best too, which takes twice as long")
    parser.add_argument("--only", default="", help="graphs whose name begins so")
    parser.add_argument("--minutes", type=float, default=1e9, help="no further draw is begun after so many")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="only write the tables of a result beside it")
    given = parser.parse_args()
    if given.tables is not None:
        rows = json.loads(given.tables.read_text(encoding="utf-8"))["rows"]
        given.tables.with_suffix(".md").write_text(tables(rows), encoding="utf-8")
        return 0
    names = ("streamers-engb", "streamers-es")
    jobs = {f"{name}, 10 %": (name, 0.1) for name in names}
    jobs |= {f"{kind}, {telling}": (None, 0.4) for kind in KINDS for telling in TELLING}
    jobs |= {f"{name}, 50 %": (name, 0.5) for name in names}
    jobs = {name: job for name, job in jobs.items() if name.startswith(given.only)}
    start, runs, rows = time.perf_counter(), {name: [] for name in jobs}, {}
    draws = range(given.first, given.first + given.draws)
    for name, seed in sorted(itertools.product(jobs, draws), key=lambda job: (job[0].endswith("50 %"), job[1])):
        if time.perf_counter() - start < 60 * given.minutes:
            dataset, share = jobs[name]
            graph = table(*name.split(", "), seed) if dataset is None else load(dataset, target="views")
            runs[name].append(one(graph, share, seed, best=given.best))
            rows = {name: {"draws": len(every), **summary(every)} for name, every in runs.items() if every}
            if given.out is not None:  # after each, so that a run that is ended leaves what it has
                write_json(given.out, {"rows": rows, "runs": runs, "first": given.first, "environment": environment()})
    print(json.dumps(rows, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
