"""Do the audits find planted errors? Ours beside its rivals, in one run, on the same data.

    python benchmarks/audit.py --what labels --datasets cora,citeseer,pubmed --seeds 10 --workers 16 --device cpu --out FILE
    python benchmarks/audit.py --what edges  --datasets cora,citeseer,pubmed --seeds 10 --workers 16 --device cpu --out FILE
    python benchmarks/audit.py --what repair --datasets cora,citeseer,pubmed --seeds 10 --workers 16 --device cpu --out FILE

labels: 5 % of the training labels of a random 60/20/20 split are given another class at random. Every method ranks the
training nodes; scored is the share of planted errors among the first 5 % (precision). Ours sees no other label; the
rivals that need validation nodes to choose an epoch have the clean ones.

    ours                    `rank_labels`
    own loss                cross-entropy of each training label under the model trained on it (GCN-LPA; and Kipf's GCN)
    confidence margin       as in cleanlab: p[given] - max of the others, p by 5-fold cross-validation; and with our 15 models
    self-confidence         cleanlab's other score, p[given], from the same p
    leave-one-out LPA       the share of the given label among the votes of others

edges: as many random edges between classes as 20 % of the edges are added. Scored is the AUC for added against original
edges, between unlabelled (test) nodes, and where one or both ends are labelled.

    ours                    `rank_edges`
    posteriors disagree     1 - Σ_c p_i[c] p_j[c] alone, of the same models
    GAT attention           mean over heads, layers and directions, as it is and times the degree; the model chosen on validation
    free weights            GCN-LPA's own, log M_ij, and a*_ij, mean of both directions
    cosine edges            the weights of the default GCN-LPA, relative to the given ones
    feature cosine, common neighbours

repair: accuracy on test nodes of GCN-LPA before and after a repair, with the labels or edges above planted, and without:
the suggested labels where the suspicion is above one half; a sixth of the edges dropped, which is the share of added ones,
or a twentieth where none were added. The audit sees the labels of training and validation nodes.

Settings of ours were chosen on seeds from 100 on, which are not used here.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import edge_ends
from gcn_lpa.data.files import write_json
from gcn_lpa.data.splits import split
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.insight.audit import cross_fit, joined, rank_edges, rank_labels, votes_without_own
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.networks import edge_index
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import evaluate, predict_proba
from gcn_lpa.recipes import LAYERS
from gcn_lpa.stats import mean_of
from reproduction.ledger import Ledger

FLIPPED, ADDED = 0.05, 0.2
FREE = LAYERS.replace(edges="free")


def flip_labels(graph, nodes, seed):
    """Give FLIPPED of the nodes another class at random; the graph and the mask of the errors."""
    random = np.random.default_rng(seed)
    wrong = random.choice(nodes, round(FLIPPED * len(nodes)), replace=False)
    y = graph.y.clone()
    y[wrong] = (y[wrong] + torch.from_numpy(random.integers(1, graph.num_classes, len(wrong)))) % graph.num_classes
    return dataclasses.replace(graph, y=y), np.isin(np.arange(graph.num_nodes), wrong)


def add_edges(graph, seed):
    """Add ADDED times as many edges at random between nodes of different classes; the graph and the added pairs."""
    random, y = np.random.default_rng(seed), graph.y.numpy()
    source, target = edge_ends(graph)
    pairs, added = set(zip(source.tolist(), target.tolist(), strict=True)), []
    while len(added) < round(ADDED * len(source)):
        a, b = sorted(random.integers(0, graph.num_nodes, 2).tolist())
        if y[a] >= 0 and y[b] >= 0 and y[a] != y[b] and (a, b) not in pairs:
            pairs.add((a, b))
            added.append((a, b))
    edges = np.concatenate([np.stack([source, target], axis=1), np.array(added).reshape(-1, 2)])
    noisy = Graph.from_edges(edges, num_nodes=graph.num_nodes, name=graph.name)
    return dataclasses.replace(graph, adjacency=noisy.adjacency), set(added)


def trained_on(graph, parts, recipe, job):
    recipe, options = recipe.replace(epochs=job["epochs"]), {"seed": job["seed"], "device": job["device"]}
    return learn(graph, parts.train, parts.val, recipe, **options)


def relabeled(graph, audit):
    """The same graph with the suggested label where the suspicion is above one half, and how many labels changed."""
    place, y, changed = {name: k for k, name in enumerate(graph.class_names)}, graph.y.clone(), 0
    for row in audit.findings:
        if row.suspicion > 0.5 and row.suggested != row.label:
            y[graph.index_of(row.node)] = place[row.suggested]
            changed += 1
    return dataclasses.replace(graph, y=y), changed


def without_edges(graph, audit, share):
    """The same graph without the most suspicious `share` of its edges, and how many those are."""
    judged = [row for row in audit.findings if row.status == "judged"]
    dropped = {
        frozenset((graph.index_of(r.source), graph.index_of(r.target))) for r in judged[: round(share * len(audit.findings))]
    }
    source, target = edge_ends(graph)
    kept = [pair for pair in zip(source.tolist(), target.tolist(), strict=True) if frozenset(pair) not in dropped]
    fewer = Graph.from_edges(kept, num_nodes=graph.num_nodes, name=graph.name)
    return dataclasses.replace(graph, adjacency=fewer.adjacency), len(dropped)


def audited_labels(job):
    clean = load(job["dataset"], job["root"])
    parts = split(clean, seed=job["seed"])
    nodes = np.flatnonzero(parts.train.numpy())
    graph, is_wrong = flip_labels(clean, nodes, job["seed"])
    wrong, given = is_wrong[nodes], graph.y.numpy()[nodes]

    def own(probabilities):  # of the given label
        return probabilities[nodes, given]

    def margin(probabilities):
        others = probabilities[nodes].copy()
        others[np.arange(len(nodes)), given] = -1
        return own(probabilities) - others.max(axis=1)

    options = {"seed": job["seed"], "device": job["device"], "folds": job["folds"]}
    recipe = LAYERS.replace(epochs=job["epochs"])
    fitted = cross_fit(graph, parts.train, recipe, repeats=job["repeats"], **options)
    once = cross_fit(graph, parts.train, recipe, repeats=1, **options).probabilities.numpy()
    rank = {row.node: place for place, row in enumerate(rank_labels(graph, fitted).findings)}
    seeds = graph.target.seeds(graph.reveal(parts.train).y, torch.float64)
    votes = votes_without_own(joined(graph), seeds).numpy()
    losses = {}
    for method in ("gcn-lpa", "gcn"):
        trained = trained_on(graph, parts, METHODS[method].settings(LAYERS), job)
        losses[method] = own(predict_proba(trained, graph, raw=True).numpy())
    all_models = fitted.probabilities.numpy()
    support = {  # of the given label: the lowest is the most suspicious
        "ours": np.array([rank[graph.node_names[node]] for node in nodes]),
        "own loss, gcn-lpa": losses["gcn-lpa"],
        "own loss, gcn": losses["gcn"],
        "confidence margin": margin(once),
        "self-confidence": own(once),
        "confidence margin, our models": margin(all_models),
        "self-confidence, our models": own(all_models),
        "leave-one-out LPA": own(votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-12)),
    }
    first = round(FLIPPED * len(nodes))
    return {
        name: {
            "precision": float(wrong[np.argsort(score, kind="stable")[:first]].mean()),
            "auc": float(roc_auc_score(wrong, -score)),
        }
        for name, score in support.items()
    }


def gat_attention(model, graph):
    """α of every entry of the adjacency, the mean over heads and layers."""
    with torch.no_grad():
        x, shares = graph.x @ model.project.weight.T, []
        for k, conv in enumerate(model.convs):
            x, (_, alpha) = conv.eval()(x if k == 0 else F.elu(x), edge_index(graph), return_attention_weights=True)
            shares.append(alpha.mean(dim=1))
    return torch.stack(shares).mean(dim=0).cpu()


def audited_edges(job):
    clean = load(job["dataset"], job["root"])
    graph, added = add_edges(clean, job["seed"])
    parts = split(clean, seed=job["seed"])
    given, recipe = parts.train | parts.val, LAYERS.replace(epochs=job["epochs"])
    fitted = cross_fit(graph, given, recipe, repeats=job["repeats"], folds=job["folds"], seed=job["seed"], device=job["device"])
    ranked = rank_edges(graph, fitted).findings  # those it abstains from are last
    rows = {(row.source, row.target): (row, place) for place, row in enumerate(ranked)}
    source, target = edge_ends(graph)
    pairs = list(zip(source.tolist(), target.tolist(), strict=True))
    found, places = zip(*(rows[graph.node_names[a], graph.node_names[b]] for a, b in pairs), strict=True)
    is_added = np.array([pair in added for pair in pairs])

    def both_ways(prepared, values):
        """The mean over the two directions of an edge."""
        n, values = prepared.num_nodes, values.detach().double().cpu().numpy()
        key = (prepared.row.long() * n + prepared.col.long()).cpu().numpy()
        ends = (source.astype(np.int64), target), (target.astype(np.int64), source)
        return np.mean([values[np.searchsorted(key, i * n + j)] for i, j in ends], axis=0)

    attention = trained_on(graph, parts, METHODS["gat"].settings(LAYERS), job)
    seen = attention.prepare(graph).to(attention.device)
    alpha = gat_attention(attention.model, seen)
    degree = seen.pattern.spread_rows(seen.pattern.row_sum(torch.ones_like(seen.adjacency.values))).cpu()
    free = trained_on(graph, parts, FREE, job)
    prepared = free.prepare(graph).to(free.device)
    with torch.no_grad():
        mask, share = free.model.edges(prepared), free.model.transition(prepared).values
    support = {
        "ours": np.array(places),
        "posteriors disagree": np.array([row.agreement for row in found]),
        "GAT attention": both_ways(seen, alpha),
        "GAT attention × degree": both_ways(seen, alpha * degree),
        "free weights, log M": both_ways(prepared, mask),
        "free weights, a*": both_ways(prepared, share),
        "cosine edges": both_ways(graph, fitted.weights.log()),
        "feature cosine": np.array([row.similarity for row in found]),
        "common neighbours": np.array([row.common_neighbours for row in found]),
    }
    labeled = given.numpy()[source].astype(int) + given.numpy()[target]
    groups = {"unlabelled": labeled == 0, "one label": labeled == 1, "two labels": labeled == 2}
    result = {
        name: {group: float(roc_auc_score(is_added[some], -score[some])) for group, some in groups.items()}
        for name, score in support.items()
    }
    result["abstains"] = float(np.mean([row.status == "abstains" for row in found]))
    return result


def repaired(job):
    clean = load(job["dataset"], job["root"])
    parts = split(clean, seed=job["seed"])
    given = parts.train | parts.val
    flipped, _ = flip_labels(clean, np.flatnonzero(given.numpy()), job["seed"])
    noisy, _ = add_edges(clean, job["seed"])
    cases = {
        "relabel, none planted": (clean, None),
        "relabel, 5 % flipped": (flipped, None),
        "drop 5 %, none planted": (clean, 0.05),
        "drop 1/6, 20 % added": (noisy, ADDED / (1 + ADDED)),
    }
    recipe, result, fits = LAYERS.replace(epochs=job["epochs"]), {}, {}
    for name, (graph, share) in cases.items():
        if id(graph) not in fits:
            options = {
                "repeats": job["repeats"],
                "folds": job["folds"],
                "seed": job["seed"],
                "device": job["device"],
            }
            fits[id(graph)] = cross_fit(graph, given, recipe, **options)
        fitted = fits[id(graph)]
        if share is None:
            better, changed = relabeled(graph, rank_labels(graph, fitted))
        else:
            better, changed = without_edges(graph, rank_edges(graph, fitted), share)
        result[name] = {"changed": changed}
        for when, one in (("before", graph), ("after", better)):
            trained = trained_on(one, parts, LAYERS, job)
            result[name][when] = evaluate(trained, dataclasses.replace(one, y=clean.y), parts.test).accuracy
        result[name]["gain"] = result[name]["after"] - result[name]["before"]
    return result


AUDITS = {"labels": audited_labels, "edges": audited_edges, "repair": repaired}


def work(job):
    torch.set_num_threads(1)
    return {"found": AUDITS[job["what"]](job)}


def say(progress):
    found = next(iter(progress.outcome["found"].values()))
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    print(
        f"[{progress.done}/{progress.total}] {progress.job['dataset']}, seed {progress.job['seed']}: {numbers}",
        f"({progress.seconds_left:.0f} s left)",
        file=sys.stderr,
        flush=True,
    )


def summary(results, datasets):
    """{dataset: {method: {score: mean and interval}}}, and of every rival ours minus it, seed by seed."""
    table = {}
    for dataset in datasets:
        runs = [one["found"] for one in results if one["dataset"] == dataset]
        table[dataset] = {}
        for name in [key for key, value in runs[0].items() if isinstance(value, dict)]:
            table[dataset][name] = {
                score: {
                    **dataclasses.asdict(mean_of(np.array([run[name][score] for run in runs]))),
                    **ours_minus_it(runs, name, score),
                }
                for score in runs[0][name]
            }
    return table


def ours_minus_it(runs, name, score):
    if "ours" not in runs[0]:
        return {}
    return {"ours_minus_it": dataclasses.asdict(mean_of(np.array([run["ours"][score] - run[name][score] for run in runs])))}


def show(table):
    for dataset, rows in table.items():
        scores = list(next(iter(rows.values())))
        print(f"\n{dataset:32}" + "".join(f"{score:>18}" for score in scores))
        for name, found in rows.items():
            cells = (f"{found[s]['mean']:.3f} ± {found[s]['interval'] or float('nan'):.3f}" for s in scores)
            print(f"  {name:30}" + "".join(f"{cell:>18}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=list(AUDITS), required=True)
    parser.add_argument("--datasets", default="cora,citeseer,pubmed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=LAYERS.epochs, help="at most, of every model")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--root", default=os.environ.get("GCN_LPA_DATA"))
    parser.add_argument("--out", type=Path, help="JSON; beside it, .jsonl, finished jobs, from which a killed run continues")
    options = parser.parse_args()
    datasets = options.datasets.split(",")
    same = {name: getattr(options, name) for name in ("what", "epochs", "folds", "repeats", "device", "root")}
    jobs = [{**same, "dataset": dataset, "seed": options.first_seed + k} for dataset in datasets for k in range(options.seeds)]
    ledger = Ledger(None if options.out is None else options.out.with_suffix(".jsonl"))
    results = ledger.run(jobs, work, workers=options.workers, on_outcome=say)
    for result in results:
        del result["root"]
    table = summary(results, datasets)
    show(table)
    if options.out is not None:
        facts = {"benchmark": f"audit {options.what}", "flipped": FLIPPED, "added": ADDED}
        facts["recipe"] = LAYERS.to_dict()
        write_json(options.out, {**facts, "environment": environment(), "summary": table, "runs": results})


if __name__ == "__main__":
    main()
