"""Numbers to predict: the default and the best beside rivals, and whether intervals hold what they promise.

    python benchmarks/regression.py --first 100 --draws 10 --best --workers 16 --out benchmarks/results/numbers-cpu.json

Streamers have views, read on a log scale, log(1 + views); pages of chameleon have the fifth that their traffic is in, 0 to 4. Of
both 10 or 50 % of the nodes are known. The tables are generated, and 40 % of their numbers are known: money is skewed, as the
exponential of a sum; noisy numbers are half noise, and the noise of uneven ones depends on the place. Of each there is one in
which the edges tell, one in which columns do, one in which both do, and one in which edges do and a quarter of the nodes has none.
Seeds below 100 are for development; every third graph, streamers-es and the tables of both, had no say in any choice, but for the
uneven one.

Rivals, all told to learn the same scale: scikit-learn's ridge regression on own columns, and on own columns, the neighbours' means
and degrees, with the penalty chosen by cross-validation; its boosted trees on the latter; label propagation of numbers; and a GCN
of PyTorch Geometric, two layers of width 64, with a fifth of the labels to choose the epoch. R² and the mean absolute error are on
that scale, on the nodes without a label. Intervals are those of 90 % that the default predicts, in terciles of how far the true
numbers of neighbours spread, beside intervals of one width by the same held-out errors. Winkler's score is the width and twenty
times how far outside the number is.

Every training is a line of a ledger; a run that was ended goes on, and `--any-code` trains nothing and takes the newest lines.
"""

import argparse
import dataclasses
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from ledgers import newest

from gcn_lpa import learn, load
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction
from gcn_lpa.recipes import choose_recipe
from gcn_lpa.regression import Intervals
from gcn_lpa.stats import mean_of, signed_rank_test
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

ALPHAS = np.logspace(-2, 4, 13)
KINDS = ("money", "skewed", "noisy", "uneven")
TELLING = ("edges", "columns", "both", "isolated")
REAL = ("streamers-engb", "streamers-es", "chameleon")
ROWS = ("default", "best", "ridge, own columns", "ridge, neighbours' too", "boosted trees", "LPA", "GCN (PyG)")


def table(kind: str, telling: str, seed: int, n: int = 1200) -> Graph:
    """Places in a square, joined to those near them, with a number that a smooth field and two of eight columns make."""
    rng = np.random.default_rng([seed, KINDS.index(kind), TELLING.index(telling)])
    place, x = rng.random((n, 2)), rng.normal(size=(n, 8))
    near = scipy.spatial.cKDTree(place).query(place, k=6)[1][:, 1:]
    field = np.sin(7 * place[:, 0]) + np.cos(5 * place[:, 1])
    columns = x[:, 0] + 0.5 * np.maximum(x[:, 1], 0) * x[:, 0]
    signal = {"columns": columns, "both": field + columns}.get(telling, field)
    signal = (signal - signal.mean()) / signal.std()
    uneven = 0.4 * np.exp(np.sin(6 * place[:, 0] + 3 * place[:, 1]))
    y = signal + {"money": 0.5, "skewed": 0.3, "noisy": 1.0, "uneven": uneven}[kind] * rng.normal(size=n)
    y = np.exp(y) * 1000 if kind == "money" else np.exp(1.5 * y) if kind == "skewed" else y
    edges = np.stack([np.repeat(np.arange(n), 5), near.ravel()], axis=1)
    if telling == "isolated":
        apart = rng.random(n) < 0.25
        edges = edges[~apart[edges].any(axis=1)]
    return Graph.from_edges(edges, num_nodes=n, x=x, y=y, task="regression", name=f"{kind}, {telling}")


def known(graph: Graph, share: float, seed: int) -> torch.Tensor:
    order = np.random.Generator(np.random.PCG64([seed, 9])).permutation(graph.num_nodes)
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(order[: round(share * graph.num_nodes)])] = True
    return mask


def on_scale(graph: Graph, y: np.ndarray) -> np.ndarray:
    """Numbers on the scale that all are scored on."""
    return y if graph.name.startswith(("noisy", "uneven", "chameleon")) else np.log1p(np.maximum(y, 0))


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


@cache
def graph_of(name: str, seed: int, root: str | None) -> Graph:
    if ", " in name:
        return table(*name.split(", "), seed)
    if name != "chameleon":
        return load(name, root, target="views")
    graph = load("chameleon-filtered", root)
    adjacency, x = (matrix.to_scipy() for matrix in (graph.adjacency, graph.x))
    return Graph.from_scipy(adjacency, x=x, y=graph.y.double().numpy(), task="regression", name=name)


def scored(job: dict, root: str | None, device: str) -> dict:
    """R², mean absolute error and seconds of one method, and of the default what its intervals hold."""
    seed, row, start = job["seed"], job["row"], time.perf_counter()
    graph = graph_of(job["graph"], seed * (", " in job["graph"]), root)
    train = known(graph, job["known"], seed)
    rows, y = train.numpy(), on_scale(graph, graph.y.numpy())
    told = graph.labeled_by(torch.from_numpy(y), graph.target)
    recipe = METHODS["lpa"].fair(choose_recipe(told, train)) if row == "LPA" else row
    facts = {}
    if row == "default":
        trained = learn(graph, train, seed=seed, device=device, threads=1)  # which finds the scale by itself
        prediction = Prediction.of(trained, graph)
        z = on_scale(graph, prediction.table()["value"].to_numpy())
        facts = {"intervals": intervals(prediction, rows, y)}
    elif row in ("best", "LPA"):
        trained = learn(told, train, recipe=recipe, seed=seed, device=device, threads=1)
        z = Prediction.of(trained, told).table()["value"].to_numpy()
    elif row == "GCN (PyG)":
        z = gcn(graph, columns_of(graph, neighbours=False), y, rows, seed)
    else:
        x = columns_of(graph, neighbours=row != "ridge, own columns")
        z = boosted(x, y, rows, seed) if row == "boosted trees" else ridge(x, y, rows)
    off = (z - y)[~rows]
    r2, seconds = 1 - float(np.square(off).mean() / y[~rows].var()), round(time.perf_counter() - start, 1)
    print(job, round(r2, 3), seconds, facts, flush=True)
    return {"r2": r2, "mae": float(np.abs(off).mean()), "seconds": seconds, "device": device, **facts}


def intervals(prediction: Prediction, rows: np.ndarray, y: np.ndarray) -> dict[str, float | None]:
    """How many intervals hold the number of nodes without a label, how wide they are and by how much better than those of one
    width: of all, of terciles of how far neighbours spread, and of nodes that no label reaches."""
    trained, graph = prediction.trained, prediction.graph
    alike = dataclasses.replace(trained, calibration=Intervals("cross-validation", len(trained.held_out.y)))
    (held, width, score), (_, width_alike, score_alike) = (
        interval_scores(dataclasses.replace(prediction, trained=one), y) for one in (trained, alike)
    )
    spread = neighbours_spread(graph, y)
    of_known = ~rows & ~np.isnan(spread)
    third, two_thirds = np.quantile(spread[of_known], [1 / 3, 2 / 3])
    thirds = spread <= third, (third < spread) & (spread <= two_thirds), spread > two_thirds
    groups = dict(zip(("", "agree", "between", "differ"), (~rows, *(of_known & one for one in thirds)), strict=True))
    groups["unreached"] = ~rows & prediction.unreachable.numpy()
    found: dict[str, float | None] = {}
    for name, group in groups.items():
        of = f" {name}".rstrip()
        found[f"coverage{of}"] = float(held[group].mean()) if group.any() else None
        found[f"width{of}"] = float(width[group].mean() / width_alike[~rows].mean()) if group.any() else None
    return found | {"score": float(score[~rows].mean() / score_alike[~rows].mean())}


def interval_scores(prediction: Prediction, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each interval whether it holds the number, its width, and its score, where less is better."""
    low, high = (on_scale(prediction.graph, end.numpy()) for end in prediction.interval())
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    return outside == 0, high - low, high - low + 20 * outside


def neighbours_spread(graph: Graph, y: np.ndarray) -> np.ndarray:
    """The standard deviation of the true numbers of the neighbours of each node; NaN where there are fewer than two."""
    links = graph.adjacency.between_nodes().to_scipy().astype(bool).astype(float)
    number = links.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, square = links @ y / number, links @ np.square(y) / number
    return np.where(number > 1, np.sqrt(np.maximum(square - np.square(mean), 0)), np.nan)


def summary(records: list[dict]) -> dict[str, dict]:
    """Means with 95 % intervals, and of each rival by how much the default is above it, with the p of the signed-rank test."""
    found: dict[str, dict] = {}
    for graph, share in dict.fromkeys((record["graph"], record["known"]) for record in records):
        mine = [record for record in records if (record["graph"], record["known"]) == (graph, share)]
        of = {row: [r for r in mine if r["row"] == row] for row in dict.fromkeys(r["row"] for r in mine)}
        facts: dict[str, dict] = {}
        for row, group in of.items():
            facts[row] = {key: str(mean_of(np.array([r[key] for r in group]))) for key in ("r2", "mae", "seconds")}
            if row != "default" and "default" in of:
                gain = np.array([ours["r2"] - other["r2"] for ours, other in zip(of["default"], group, strict=True)])
                test = signed_rank_test(gain) if len(gain) > 1 else None
                facts[row] |= {"default is above by": str(mean_of(gain)), "p": test}
        held = [r["intervals"] for r in of.get("default", [])]
        every = {key: [one[key] for one in held if one[key] is not None] for key in (held[0] if held else {})}
        facts["intervals"] = {key: str(mean_of(np.array(values))) for key, values in every.items() if values}
        found[graph if ", " in graph else f"{graph}, {100 * share:g} %"] = {"draws": len(of[mine[0]["row"]]), **facts}
    return found


def tables(rows: dict) -> str:
    """R² of each method by graph, and what intervals hold, as Markdown."""
    methods = [name for name in ROWS if name in next(iter(rows.values()))]
    heads = ["R², %, of hidden numbers", "draws", *methods]
    lines = [[name, str(row["draws"]), *(row[method]["r2"] for method in methods)] for name, row in rows.items()]
    groups = {"": "all", " agree": "neighbours agree", " between": "between", " differ": "neighbours differ"}
    groups |= {" unreached": "no label reaches"}
    names = {f"coverage{of}": f"hold, %: {words}" for of, words in groups.items()}
    names |= {f"width{of}": f"width, % of one for all: {words}" for of, words in groups.items()}
    names["score"] = "score, % of one width"
    held = [[name, *(row["intervals"].get(key, "") for key in names)] for name, row in rows.items()]
    both = (heads, lines), (["intervals of 90 %", *names.values()], held)
    texts = ("\n".join(f"| {' | '.join(cells)} |" for cells in (top, ["---"] * len(top), *body)) for top, body in both)
    return "\n\n".join(texts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--best", action="store_true", help="the recipe best too, which takes twice as long")
    parser.add_argument("--only", default="", help="graphs whose name begins so")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--any-code", action="store_true", help="train nothing, take also what earlier code trained")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    graphs = [(f"{kind}, {telling}", 0.4) for kind in KINDS for telling in TELLING]
    graphs += [(name, share) for share in (0.1, 0.5) for name in REAL]
    jobs = [
        {"graph": graph, "known": share, "seed": seed, "row": row}
        for seed in range(given.first, given.first + given.draws)
        for graph, share in graphs
        for row in ROWS
        if graph.startswith(given.only) and (given.best or row != "best")
    ]
    out, trained_by = given.out, {}
    if given.any_code:
        records, trained_by["codes"] = newest(out.with_suffix(".jsonl"), jobs)
    else:
        work = partial(scored, root=given.root, device=given.device)
        records = Ledger(out.with_suffix(".jsonl")).run(jobs, work, workers=given.workers)
    rows = summary(records)
    write_json(out, {"rows": rows, "first": given.first, "code": code_hash(), **trained_by, "environment": environment()})
    out.with_suffix(".md").write_text(tables(rows), encoding="utf-8")
    print(tables(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
