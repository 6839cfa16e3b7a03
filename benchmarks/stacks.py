"""Many models at once against one: 1, 5 and 10 models of three recipes on Cora, each on a split of its own, as in `compare`.

    python benchmarks/stacks.py [--device cpu] [--repeats 3] [--epochs 200] [--out FILE]

Everything in one run, the sizes in turn, medians of the repeats; the ratio is to one `learn` of the same recipe. The seconds of
the CPU say how busy the machine was: where ten models take as many seconds as seconds of the CPU, they had one core.
"""

import argparse
import resource
import statistics
import time

from gcn_lpa import DEFAULT, METHODS, Recipe, learn, load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import choose_device, environment
from gcn_lpa.learning.learn import learn_many

SIZES = (1, 5, 10)
RECIPES = {
    "hops": Recipe(
        propagation="hops",
        propagation_steps=10,
        residual=False,
        edges="fixed",
        lpa_weight=0,
        normalization="symmetric",
        structure=True,
    ),
    "default": DEFAULT,
    "gcn": METHODS["gcn"].settings(),
}


def seconds_of(graph, parts, recipe, device):
    start, cpu = time.perf_counter(), cpu_seconds()
    if len(parts) == 1:
        learn(graph, *parts[0], recipe, device=device)
    else:
        learn_many(graph, parts, recipe, seeds=range(len(parts)), device=device)
    return time.perf_counter() - start, cpu_seconds() - cpu


def cpu_seconds():
    """Of this process and of those it forked."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", default="benchmarks/results/stacks-cpu.json")
    options = parser.parse_args()
    graph, rows = load("cora"), []
    parts = [(part.train, part.val) for part in (split(graph, seed=k) for k in range(max(SIZES)))]
    for name, recipe in RECIPES.items():
        for size in SIZES:  # compiled, and what is kept of the graph is there
            seconds_of(graph, parts[:size], recipe.replace(epochs=2), options.device)
        found = {size: [] for size in SIZES}
        for _ in range(options.repeats):
            for size in SIZES:
                found[size].append(seconds_of(graph, parts[:size], recipe.replace(epochs=options.epochs), options.device))
        one = statistics.median(seconds for seconds, _ in found[1])
        for size, pairs in found.items():
            seconds, cpu = map(statistics.median, zip(*pairs, strict=True))
            rows.append({"recipe": name, "models": size, "seconds": seconds, "cpu_seconds": cpu, "ratio": seconds / one})
            print(f"{name:8} {size:3} models {seconds:6.2f} s (CPU {cpu:.2f} s) {seconds / one:5.2f} x one", flush=True)
    about = {"device": str(choose_device(options.device)), "epochs": options.epochs, "graph": "cora"}
    write_json(options.out, {**about, "environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
