"""Rare classes: how well they are ranked, and whether a cut keeps what it promises.

    python benchmarks/rare.py rank --first 100 --draws 5 --workers 16 --out benchmarks/results/rare-cpu.json
    python benchmarks/rare.py cut --first 100 --draws 100 --out benchmarks/results/rare-cut-cpu.json

The tables are generated: accounts of which 1, 3 or 10 % are fraud, and transfers between them, which are directed, weighted and
named as often as money moved. Fraud deals with fraud, two columns tell a little, and so do the amounts. Seeds below 100 are for
development.

rank: the default beside boosted trees that read the columns of neighbours but no labels (scikit-learn, on own columns and the
weighted mean of the neighbours'), on the same labels; average precision and ROC AUC on the nodes without a label. Beside the
tables are minesweeper and streamers who may be mature, on as many random draws of the labels.

cut: trained by `trees`, which takes seconds, the cut of each rule is chosen on out-of-fold predictions; how often precision, recall
and costs of the hidden nodes lie in the 95 % intervals that were promised. Costs are beside those of the best cut in hindsight: of
one cut for all draws, and of the best of each draw, which follows its accidents. `calibrated` is how far above the latter the costs
would be if hidden labels were drawn by the predicted probabilities, where no rule could do better. The table with 10 % was looked
at when intervals were chosen, on draws below 100, and that with 3 %; that with 20 % was not.

Every training is a line of a ledger; a run that was ended goes on.
"""

import argparse
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from gcn_lpa import learn, load
from gcn_lpa.cut import Rule
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction, scores
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.runs.predictions import cut_of
from gcn_lpa.stats import mean_of
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger

LABELED = 0.4  # of the nodes
SHARES = (0.01, 0.03, 0.1)
RULES = (*(Rule(precision=p) for p in (0.8, 0.6, 0.4)), Rule(top=45), Rule(threshold=0.3), Rule(costs=(20.0, 1.0)))
TABLES = {f"accounts, {100 * share:g} % fraud": share for share in (*SHARES, 0.2)}
CUTS = {"accounts, 3 % fraud": 3000, "accounts, 10 % fraud": 1500, "accounts, 20 % fraud": 1000}  # nodes of each
REAL = {"minesweeper": {}, "streamers-es": {"target": "mature"}, "streamers-engb": {"target": "mature"}}
ROWS = ("default", "boosted trees")
PLACES = np.linspace(0.005, 0.9, 180)  # where one cut for all draws may be


def accounts(share: float, seed: int, n: int = 3000) -> Graph:
    """A table of accounts with transfers between them, of which a share is fraud."""
    generator = np.random.Generator(np.random.PCG64([seed, 7]))
    fraud = generator.permutation(n) < round(share * n)
    source = np.repeat(np.arange(n), generator.poisson(4.0, n) + 1)
    inside = fraud[source] & (generator.random(len(source)) < 0.5)  # half of what fraud sends goes to fraud
    target = np.where(inside, generator.choice(np.flatnonzero(fraud), len(source)), generator.choice(n, len(source)))
    amount = np.exp(generator.normal(4.0 + 0.5 * inside, 1.0))
    rows = np.repeat(np.arange(len(source)), generator.poisson(0.5, len(source)) + 1)  # the same two deal more than once
    rows = rows[source[rows] != target[rows]]
    weights = amount[rows] * np.exp(generator.normal(0, 0.3, len(rows)))
    x = generator.normal(size=(n, 8))
    x[:, :2] += 0.7 * fraud[:, None]
    x[:, 2] = np.exp(x[:, 2] + 0.5 * fraud)  # skewed, as money is
    options = {"num_nodes": n, "x": x, "y": fraud.astype(int), "class_names": ("honest", "fraud"), "name": "accounts"}
    return Graph.from_edges(np.stack([source, target], axis=1)[rows], weights=weights, **options)


def labeled(graph: Graph, seed: int) -> torch.Tensor:
    """The nodes that have a label, a mask [n]; the others are scored."""
    chance = np.random.Generator(np.random.PCG64([seed, 8])).random(graph.num_nodes)
    return torch.from_numpy(chance < LABELED) & graph.labeled


def boosted(graph: Graph, train: torch.Tensor, seed: int) -> torch.Tensor:
    """Probabilities of boosted trees on own columns and the means of the neighbours', [n, 2]."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    x = graph.x.to_dense().numpy() if hasattr(graph.x, "to_dense") else graph.x.numpy()
    x = np.hstack([x, graph.adjacency.row_normalized().to_scipy() @ x])
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
    rows = train.numpy()
    return torch.from_numpy(model.fit(x[rows], graph.y.numpy()[rows]).predict_proba(x))


@cache
def graph_of(name: str, seed: int, root: str | None) -> Graph:
    return accounts(TABLES[name], seed) if name in TABLES else load(name, root, **REAL[name])


def ranked(job: dict, root: str | None, device: str) -> dict:
    """Average precision and AUC of the rarer class by one method on the nodes without a label, and seconds."""
    seed, start = job["seed"], time.perf_counter()
    graph = graph_of(job["graph"], seed * (job["graph"] in TABLES), root)
    train = labeled(graph, seed)
    if job["row"] == "default":
        p = Prediction.of(learn(graph, train, seed=seed, device=device, threads=1), graph).uncalibrated
    else:
        p = boosted(graph, train, seed)
    positive = graph.class_names[int(torch.bincount(graph.y).argmin())]
    ranking = scores(graph, graph.labeled & ~train, p, positive=positive).ranking
    assert ranking is not None
    facts = {"ap": ranking.average_precision, "auc": ranking.roc_auc, "share": ranking.share}
    facts |= {"seconds": round(time.perf_counter() - start, 1), "device": device}
    print(job, facts, flush=True)
    return facts


def rank(records: list[dict]) -> tuple[dict, str]:
    """Means over draws of both, and how much the default is above, as Markdown too."""
    names = {"ap": "average precision", "auc": "ROC AUC"}
    heads, rows = ["hidden nodes, %", "draws", "share"], {}
    heads += [f"{words}: {row}" for words in names.values() for row in (*ROWS, "difference")]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for graph in dict.fromkeys(record["graph"] for record in records):
        of = {row: [r for r in records if (r["graph"], r["row"]) == (graph, row)] for row in ROWS}
        values = {(key, row): np.array([r[key] for r in of[row]]) for key in (*names, "share") for row in ROWS}
        rows[graph] = {row: {key: str(mean_of(values[key, row])) for key in names} for row in ROWS}
        rows[graph]["difference"] = {key: str(mean_of(values[key, ROWS[0]] - values[key, ROWS[1]])) for key in names}
        share = f"{100 * values['share', ROWS[0]].mean():.1f}"
        cells = [rows[graph][row][key] for key in names for row in (*ROWS, "difference")]
        lines.append([graph, str(len(of["default"])), share, *cells])
    return rows, "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cut(job: dict, root: str | None, device: str) -> dict:
    """Of each rule which promises were kept, and costs."""
    seed, name = job["seed"], job["graph"]
    graph = accounts(TABLES[name], seed, n=CUTS[name])
    train = labeled(graph, seed)
    trained = learn(graph, train, recipe=METHODS["trees"].fair(DEFAULT), seed=seed, device=device, threads=1)
    prediction, hit, found = Prediction.of(trained, graph), graph.y[~train].numpy() == 1, {}
    p = prediction.probabilities[~train, 1].numpy()
    for rule in RULES:
        try:
            one = cut_of(trained, "the run", prediction, ~train, rule)
        except ValueError:  # no cut of the held-out nodes has this precision
            continue
        called = p >= one.threshold
        hits = int((called & hit).sum())
        came: dict[str, float] = {"recall": hits / int(hit.sum())}
        if one.precision is not None:
            came["precision"] = hits / one.called
        if rule.costs is not None:
            came["cost"] = cost(p, hit, one.threshold, rule)
        promised = {key: getattr(one, key) for key in came}
        found[str(rule)] = {
            key: {"came": value, "mean": promised[key].mean, "low": promised[key].low, "high": promised[key].high}
            for key, value in came.items()
        }
    rule = RULES[-1]
    drawn = np.random.default_rng([seed, 3]).random(len(p)) < p
    ours, best = zip(*((cost(p, y, 1 / 21, rule), lowest(p, y, rule)) for y in (hit, drawn)), strict=True)
    costs = {"ours": ours[0], "best": best[0], "ours, drawn": ours[1], "best, drawn": best[1]}
    return {"rules": found, "costs": costs, "places": [cost(p, hit, place, rule) for place in PLACES]}


def cost(p: np.ndarray, hit: np.ndarray, threshold: float, rule: Rule) -> float:
    assert rule.costs is not None
    called = p >= threshold
    return float(rule.costs[0] * (hit & ~called).sum() + rule.costs[1] * (called & ~hit).sum())


def lowest(p: np.ndarray, hit: np.ndarray, rule: Rule) -> float:
    return min(cost(p, hit, threshold, rule) for threshold in [*np.unique(p).tolist(), 2.0])


def promises(records: list[dict]) -> tuple[dict, str]:
    """How often each promise was kept, and costs, as Markdown too."""
    heads = ["cut of hidden nodes", "draws", "precision promised", "came", "kept, %", "width"]
    lines, rows = [[*heads, "recall kept, %", "cost kept, %"]], {}
    lines.append(["---", *["--:"] * (len(lines[0]) - 1)])
    for graph in dict.fromkeys(record["graph"] for record in records):
        every = [record for record in records if record["graph"] == graph]
        for rule in map(str, RULES):
            held = [one["rules"][rule] for one in every if rule in one["rules"]]
            of = {key: [one[key] for one in held if key in one] for key in ("precision", "recall", "cost")}
            kept = {
                key: 100 * float(np.mean([e["low"] - 1e-9 <= e["came"] <= e["high"] + 1e-9 for e in values]))
                for key, values in of.items()
                if values
            }
            mean, came = (float(np.mean([e[key] for e in of["precision"]])) for key in ("mean", "came"))
            width = float(np.mean([e["high"] - e["low"] for e in of["precision"]]))
            rows[f"{graph}: {rule}"] = {
                "draws": len(held),
                "promised": mean,
                "came": came,
                "kept": kept,
                "width": width,
            }
            numbers = f"{100 * mean:.1f}", f"{100 * came:.1f}", f"{kept['precision']:.0f}", f"{100 * width:.0f}"
            cells = *numbers, f"{kept['recall']:.0f}", f"{kept['cost']:.0f}" if "cost" in kept else ""
            lines.append([f"{graph}: {rule}", str(len(held)), *cells])
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    lines = [["costs above the best cut in hindsight, %", "one cut for all draws", "that of each", "that, calibrated"]]
    lines.append(["---", *["--:"] * 3])
    for graph in dict.fromkeys(record["graph"] for record in records):
        every = [record for record in records if record["graph"] == graph]
        total = {key: sum(one["costs"][key] for one in every) for key in every[0]["costs"]}
        fixed = np.array([one["places"] for one in every]).sum(axis=0).min()
        above = [total["ours"] / fixed, total["ours"] / total["best"], total["ours, drawn"] / total["best, drawn"]]
        rows[f"{graph}: costs above hindsight"] = [ratio - 1 for ratio in above]
        lines.append([graph, *(f"{100 * (ratio - 1):.1f}" for ratio in above)])
    return rows, text + "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rank", "cut"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default="", help="graphs whose name begins so")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    names = [name for name in ([*list(TABLES)[:3], *REAL] if given.what == "rank" else CUTS) if name.startswith(given.only)]
    seeds = range(given.first, given.first + given.draws)
    jobs = [{"graph": name, "seed": seed} for seed in seeds for name in names]
    if given.what == "rank":
        jobs = [job | {"row": row} for job in jobs for row in ROWS]
    work = partial(ranked if given.what == "rank" else cut, root=given.root, device=given.device)
    records = Ledger(given.out.with_suffix(".jsonl")).run(jobs, work, workers=given.workers)
    rows, text = (rank if given.what == "rank" else promises)(records)
    facts = {"labeled": LABELED, "rows": rows, "first": given.first, "code": code_hash(), "environment": environment()}
    write_json(given.out, facts)
    given.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
