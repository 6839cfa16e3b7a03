"""Does it pay to label the nodes that `gcn-lpa suggest` names, rather than random ones?

python benchmarks/suggest.py [--datasets cora,pubmed] [--seeds 20] [--models gcn,gcn-lpa] [--workers 8] [--out FILE.json]

For each seed 1,000 labelled nodes are the test set, which is never suggestible; of the others five random ones per class
start. Five rounds: a strategy names ten nodes, their labels are revealed, the model is trained again. Start, test set, model
and its first weights are the same for all strategies. No label beyond those is used: every training has the epochs of
its recipe, and keeps the last.

random   ten nodes at random
entropy  the ten with the highest entropy of the posterior
suggest  gcn_lpa.suggest, ten at a time; suggest-1 and so on with another sharpness
"""

import argparse
import functools
import os
from pathlib import Path

import numpy as np
import torch

from gcn_lpa import load, suggest
from gcn_lpa.cli.text import table_lines
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import choose_device, environment
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba, scores
from gcn_lpa.stats import Difference, mean_of, signed_rank_test
from gcn_lpa.target import Classes
from reproduction.ledger import Ledger

STRATEGIES = ("random", "entropy", "suggest")
NUM_TEST = 1000


@functools.cache
def graph_of(name, root):
    return load(name, root)


def start(graph, seed, per_class):
    """The test nodes, the nodes that may be asked for, and those given at the start, as masks."""
    y = graph.y.numpy()
    nodes = np.random.Generator(np.random.PCG64(seed)).permutation(np.flatnonzero(y >= 0))
    test, pool = nodes[:NUM_TEST], nodes[NUM_TEST:]
    first = np.concatenate([pool[y[pool] == label][:per_class] for label in range(graph.num_classes)])
    masks = torch.zeros((3, graph.num_nodes), dtype=torch.bool)
    for mask, part in zip(masks, (test, pool, first), strict=True):
        mask[torch.from_numpy(part)] = True
    return masks.unbind()


def choose(strategy, trained, graph, candidates, batch, seed):
    if strategy.startswith("suggest"):
        _, _, sharpness = strategy.partition("-")
        changed = {"sharpness": float(sharpness)} if sharpness else {}
        found = suggest(trained, graph, n=batch, candidates=candidates, **changed)
        return [one.node for one in found]
    if strategy == "random":
        order = np.random.Generator(np.random.PCG64(seed)).permutation(candidates.nonzero().squeeze(1).numpy())
        return order[:batch].tolist()
    unsure = Classes.uncertainty(predict_proba(trained, graph, raw=True))
    return torch.where(candidates, unsure, -1.0).argsort(descending=True, stable=True)[:batch].tolist()


def work(job):
    torch.set_num_threads(1)
    graph, seed = graph_of(job["dataset"], job["root"]), job["seed"]
    test, pool, given = start(graph, seed, job["per_class"])
    recipe = METHODS[job["model"]].settings()
    recipe = recipe if job["epochs"] is None else recipe.replace(epochs=job["epochs"])
    nobody, accuracies, chosen = torch.zeros_like(given), [], []
    for number in range(job["rounds"] + 1):
        shown = graph.reveal(given)  # all that a strategy may see
        options = {"classes": graph.class_names, "seed": seed, "device": job["device"], "threads": 1}
        trained = learn(shown, given, nobody, recipe, **options)
        accuracies.append(scores(graph, test, predict_proba(trained, shown, raw=True)).accuracy)
        if number < job["rounds"]:
            named = choose(job["strategy"], trained, shown, pool & ~given, job["batch"], [seed, number])
            chosen.append(named)
            given = given.clone()
            given[named] = True
    return {"accuracy": accuracies, "chosen": chosen}


def gains(runs, dataset, model, strategy, other):
    """The paired difference of a strategy to another: after the last round, and on average over the rounds."""
    own, base = (
        np.array([r["accuracy"] for r in runs if (r["dataset"], r["model"], r["strategy"]) == (dataset, model, each)])
        for each in (strategy, other)
    )
    by_seed = {"final": own[:, -1] - base[:, -1], "rounds": own[:, 1:].mean(axis=1) - base[:, 1:].mean(axis=1)}
    return {name: Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain)) for name, gain in by_seed.items()} | {
        "start": mean_of(own[:, 0]),
        "accuracy": mean_of(own[:, -1]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="cora,pubmed")
    parser.add_argument("--models", default="gcn,gcn-lpa", help="keys of METHODS, with their default recipes")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--per-class", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="of every training, for a quick look; without, those of the recipe")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--root", default=os.environ.get("GCN_LPA_DATA"))
    parser.add_argument("--out", type=Path, help="JSON; beside it a ledger, from which a stopped run continues")
    options = parser.parse_args()
    device = str(choose_device(options.device))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    strategies = options.strategies.split(",")
    jobs = [
        {
            "dataset": dataset,
            "model": model,
            "strategy": strategy,
            "seed": seed,
            "rounds": options.rounds,
            "batch": options.batch,
            "per_class": options.per_class,
            "epochs": options.epochs,
            "device": device,
            "root": options.root,
        }
        for dataset in options.datasets.split(",")
        for model in options.models.split(",")
        for seed in seeds
        for strategy in strategies
    ]
    ledger = Ledger(None if options.out is None else options.out.with_suffix(".jsonl"))

    def say(progress):
        job, last = progress.job, progress.outcome["accuracy"][-1]
        named = ", ".join(str(job[key]) for key in ("dataset", "model", "strategy", "seed"))
        print(f"{progress.done}/{progress.total} {named}: {100 * last:.1f}, {progress.seconds:.0f} s", flush=True)

    runs = ledger.run(jobs, work, workers=options.workers, on_outcome=say)
    found, lines = [], []
    for dataset in options.datasets.split(","):
        for model in options.models.split(","):
            for strategy in strategies:
                row = gains(runs, dataset, model, strategy, "random")
                found.append({"dataset": dataset, "model": model, "strategy": strategy, **{k: vars(v) for k, v in row.items()}})
                over = ("", "") if strategy == "random" else (str(row["final"]), str(row["rounds"]))
                lines.append((dataset, model, strategy, str(row["start"]), str(row["accuracy"]), *over))
    header = ("", "model", "strategy", "start", "at the end", "over random", "mean of rounds")
    print(*table_lines(header, lines), sep="\n")
    print(f"{options.seeds} seeds from {options.first_seed}, {device}; ±: 95 % t interval over seeds")
    if options.out is not None:
        for run in runs:
            del run["root"]
        write_json(options.out, {"environment": environment(), "device": device, "summary": found, "runs": runs})


if __name__ == "__main__":
    main()
