"""Rare classes: how well they are ranked, and whether a cut keeps what it promises.

    python benchmarks/rare.py rank --first 100 --out benchmarks/results/rare-cpu.json
    python benchmarks/rare.py cut --first 100 --draws 100 --out benchmarks/results/rare-cut-cpu.json

The tables are generated: accounts of which 1, 3 or 10 % are fraud, and transfers between them, which are directed, weighted and
named as often as money moved. Fraud deals with fraud, two columns tell a little, and so do the amounts. Seeds below 100 are for
development.

rank: the default beside boosted trees that read the columns of neighbours but no labels (scikit-learn, on own columns and the
weighted mean of the neighbours'), on the same labels; average precision and ROC AUC on the nodes without a label. Beside the
tables are minesweeper and streamers who may be mature, on one random split each, with the labels of the table below.

cut: on a tenth of fraud, trained by `trees`, which takes seconds, the cut of each rule is chosen on out-of-fold predictions; how
often precision, recall and costs of the hidden nodes lie in the 95 % intervals that were promised, and how far the costs are
above those of the best cut in hindsight, which no rule can know.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from gcn_lpa import learn, load
from gcn_lpa.cut import Cut, Rule
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction, scores
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.runs.predictions import cut_of
from gcn_lpa.stats import mean_of

LABELED = 0.4  # of the nodes
SHARES = (0.01, 0.03, 0.1)
RULES = (Rule(precision=0.8), Rule(precision=0.6), Rule(top=45), Rule(threshold=0.3), Rule(costs=(20.0, 1.0)))


def accounts(share: float, seed: int, n: int = 3000) -> Graph:
    """A table of accounts with transfers between them, of which a share is fraud."""
    generator = np.random.Generator(np.random.PCG64([seed, 7]))
    fraud = generator.permutation(n) < round(share * n)
    source = np.repeat(np.arange(n), generator.poisson(4.0, n) + 1)
    inside = fraud[source] & (generator.random(len(source)) < 0.5)  # half of what fraud sends goes to fraud
    target = np.where(inside, generator.choice(np.flatnonzero(fraud), len(source)), generator.choice(n, len(source)))
    amount = np.exp(generator.normal(4.0 + 0.5 * inside, 1.0))
    rows = np.repeat(
        np.arange(len(source)), generator.poisson(0.5, len(source)) + 1
    )  # the same two deal more than once
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


def ranked(graph: Graph, seed: int) -> dict[str, dict[str, float]]:
    """Average precision and AUC of the rarer class by each method on the nodes without a label, and seconds."""
    train, found = labeled(graph, seed), {}
    scored, positive = graph.labeled & ~train, graph.class_names[int(torch.bincount(graph.y).argmin())]
    for name in ("default", "boosted trees"):
        start = time.perf_counter()
        if name == "default":
            p = Prediction.of(learn(graph, train, seed=seed, device="cpu"), graph).uncalibrated
        else:
            p = boosted(graph, train, seed)
        ranking = scores(graph, scored, p, positive=positive).ranking
        assert ranking is not None
        seconds = round(time.perf_counter() - start, 1)
        found[name] = {
            "ap": ranking.average_precision,
            "auc": ranking.roc_auc,
            "share": ranking.share,
            "seconds": seconds,
        }
        print(graph.name, seed, name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)
    return found


def rank(first: int, draws: int) -> dict[str, object]:
    graphs = {
        f"accounts, {100 * share:g} % fraud": [accounts(share, first + k) for k in range(draws)] for share in SHARES
    }
    graphs |= {"minesweeper": [load("minesweeper")], "streamers-es, mature": [load("streamers-es")]}
    runs = {name: [ranked(graph, first + k) for k, graph in enumerate(every)] for name, every in graphs.items()}
    rows = {}
    for name, every in runs.items():
        rows[name] = {
            method: {key: str(mean_of(np.array([one[method][key] for one in every]))) for key in ("ap", "auc", "share")}
            for method in every[0]
        }
    return {"labeled": LABELED, "rows": rows, "runs": runs}


def kept(cut: Cut, called: torch.Tensor, hit: torch.Tensor) -> dict[str, bool]:
    """Of each promise of a cut whether it was kept on nodes whose labels were hidden."""
    hits, all_hits = int((called & hit).sum()), int(hit.sum())
    came: dict[str, float] = {"recall": hits / all_hits}
    if cut.precision is not None:
        came["precision"] = hits / cut.called
    if cut.cost is not None:
        came["cost"] = 20 * (all_hits - hits) + cut.called - hits
    return {name: bool((e := getattr(cut, name)).low - 1e-9 <= value <= e.high + 1e-9) for name, value in came.items()}


def cut(first: int, draws: int) -> dict[str, object]:
    recipe, runs = METHODS["trees"].fair(DEFAULT), []
    for seed in range(first, first + draws):
        graph = accounts(0.1, seed, n=1500)
        train = labeled(graph, seed)
        trained, hit = learn(graph, train, recipe=recipe, seed=seed, device="cpu"), graph.y[~train] == 1
        prediction, every = Prediction.of(trained, graph), {}
        for rule in RULES:
            try:
                found = cut_of(trained, "the run", prediction, ~train, rule)
            except ValueError:  # no cut of the held-out nodes has this precision
                every[str(rule)] = None
                continue
            p = prediction.probabilities[~train, 1]
            every[str(rule)] = kept(found, p >= found.threshold, hit)
            if rule.costs is not None:
                costs = [
                    20 * int((hit & (p < t)).sum()) + int((~hit & (p >= t)).sum()) for t in [*p.unique().tolist(), 2.0]
                ]
                ours = 20 * int((hit & (p < found.threshold)).sum()) + int((~hit & (p >= found.threshold)).sum())
                every["costs in hindsight"] = {"ours": ours, "best": min(costs)}
        runs.append(every)
        print(seed, every, flush=True)
    rows: dict[str, object] = {}
    for rule in map(str, RULES):
        held = [one[rule] for one in runs if one[rule] is not None]
        rows[rule] = {name: [sum(one.get(name, True) for one in held), len(held)] for name in held[0]}
    costs = [one["costs in hindsight"] for one in runs]
    rows["costs above hindsight"] = sum(one["ours"] for one in costs) / sum(one["best"] for one in costs) - 1
    return {"labeled": LABELED, "rows": rows, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rank", "cut"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = {"rank": rank, "cut": cut}[given.what](given.first, given.draws)
    print(json.dumps(result["rows"], indent=2))
    if given.out is not None:
        write_json(given.out, {**result, "first": given.first, "environment": environment()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
