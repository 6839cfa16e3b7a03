"""What an explanation costs and how exact it is, on the paper's data sets, with the paper's settings and a few epochs of training.

    python benchmarks/explain.py [--datasets cora,pubmed] [--out FILE.json]

For each data set: milliseconds to explain one node once the run is loaded (median over nodes: from nothing, of a further node of
the same `Explainer`, and the first in a process, which loads the compiled kernels), seconds for the table of all nodes, the largest
difference between votes and scores of label propagation over every node and class, and whether five runs, here and in processes of
other hash seeds, give the same bytes. Wall-clock seconds say little on a busy machine, so CPU seconds are given beside them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from reproduction.ledger import Ledger

DATASETS = "cora,citeseer,pubmed,pubmed:5,pubmed:20,coauthor-cs,coauthor-phy"
FRESH = "cora,citeseer,pubmed"
NUM_NODES = 30  # explained one by one
RUNS = 5

FIRST = """
import sys, time
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.runs.folder import load_run
run = load_run(sys.argv[1])
start = time.perf_counter()
Explainer.of(run.trained, run.graph).explain(int(sys.argv[2]))
print(time.perf_counter() - start)
"""


def work(job):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        plan, graph = make_plan(Source(job["dataset"], job["root"]), recipe="paper", changes={"epochs": job["epochs"]})
        train_run(plan, graph, run, device="cpu")
        del graph
        return {**measure(run, job["hops"]), **(fresh_processes(run) if job["fresh"] else {})}


def measure(run, hops):
    """What is measured in this process, after the kernels have been compiled."""
    loaded = load_run(run)
    trained, graph = loaded.trained, loaded.graph
    nodes = np.random.default_rng(0).choice(graph.num_nodes, NUM_NODES, replace=False).tolist()
    Explainer.of(trained, graph, hops=hops).explain(nodes[0])
    from_nothing = [timed(lambda n=n: Explainer.of(trained, graph, hops=hops).explain(n)) for n in nodes]
    explainer = Explainer.of(trained, graph, hops=hops)
    explainer.explain(nodes[0])
    further = [timed(lambda n=n: explainer.explain(n)) for n in nodes]
    everyone = torch.ones(graph.num_nodes, dtype=torch.bool)
    new = Explainer.of(trained, graph, hops=hops)
    table_seconds, table_cpu_seconds = timed(lambda: new.table(everyone))
    answers = {json.dumps(Explainer.of(trained, graph, hops=hops).explain(nodes[0]).to_dict()) for _ in range(RUNS)}
    return {
        "nodes": graph.num_nodes,
        "voters": int(explainer.graph.labeled.sum()),
        "lpa_hops": explainer.hops,
        "one_node_ms": 1000 * statistics.median(clock for clock, _ in from_nothing),
        "one_node_cpu_ms": 1000 * statistics.median(cpu for _, cpu in from_nothing),
        "further_node_ms": 1000 * statistics.median(clock for clock, _ in further),
        "further_node_cpu_ms": 1000 * statistics.median(cpu for _, cpu in further),
        "all_nodes_seconds": table_seconds,
        "all_nodes_cpu_seconds": table_cpu_seconds,
        "same_bytes": len(answers) == 1,
        "load": os.getloadavg()[0],
        **largest_gaps(explainer),
        "largest_gap_of_listed_votes": max(listed_gap(explainer, node) for node in nodes),
    }


def timed(function):
    """Wall-clock seconds, and CPU seconds of all threads."""
    start = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def largest_gaps(explainer):
    """max |Σ votes for a class - LPA's score of it|, over every node and class; LPA in float64, and in the model's float32."""
    graph = explainer.graph
    seeds = F.one_hot(graph.y.clamp_min(0), graph.num_classes).double() * graph.labeled.unsqueeze(1)
    sums = torch.zeros_like(seeds)
    for voters, votes in explainer.votes_by_voter(torch.arange(graph.num_nodes)):
        sums += votes @ seeds[voters]
    with torch.no_grad():
        scores = propagate_labels(explainer.transition, seeds, explainer.hops)
        single = propagate_labels(explainer.trained.model.transition(graph), seeds.float(), explainer.hops)
    return {
        "largest_gap": float((sums - scores).abs().max()),
        "largest_gap_to_float32": float((sums - single).abs().max()),
    }


def listed_gap(explainer, node):
    """The same of one explanation that lists all its voters, found by another walk."""
    why = explainer.explain(node, top=None)
    sums = dict.fromkeys(why.scores, 0.0)
    for vote in why.votes:
        sums[vote.label] += vote.share
    return max(abs(sums[name] - why.scores[name]) for name in sums)


def fresh_processes(run):
    """Whether the command prints the same bytes in each of five processes, and how long a process's first explanation takes."""
    node, printed, first = "17", set(), []
    for seed in range(RUNS):
        variables = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-m", "gcn_lpa", "explain", str(run), "--node", node, "--json"]
        printed.add(subprocess.run(command, env=variables, capture_output=True, check=True).stdout)
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST, str(run), node], capture_output=True, text=True, check=True)
        first.append(float(done.stdout))
    return {"same_bytes_in_processes": len(printed) == 1, "first_in_a_process_ms": 1000 * statistics.median(first)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--datasets", default=DATASETS, help="NAME, or NAME:HOPS for another number of LPA iterations than in Table 4"
    )
    parser.add_argument("--fresh", default=FRESH, help="those for which other processes are started")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--root", default=os.environ.get("GCN_LPA_DATA"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ledger = Ledger(options.out.with_suffix(".jsonl") if options.out else None)
    jobs = []
    for one in options.datasets.split(","):
        name, _, hops = one.partition(":")
        fresh = one in options.fresh.split(",")
        common = {"epochs": options.epochs, "fresh": fresh, "root": options.root}
        jobs.append({"dataset": name, "hops": int(hops) if hops else None, **common})
    results = [{k: v for k, v in one.items() if k != "root"} for one in ledger.run(jobs, work)]
    print(f"{'':14}{'hops':>5}{'one node (cpu)':>19}{'further':>10}{'all nodes (cpu)':>21}{'largest gap':>13}  same bytes")
    for one in results:
        node = f"{one['one_node_ms']:.0f} ms ({one['one_node_cpu_ms']:.0f})"
        table = f"{one['all_nodes_seconds']:.1f} s ({one['all_nodes_cpu_seconds']:.1f})"
        same = one["same_bytes"] and one.get("same_bytes_in_processes", True)
        gap = f"{one['largest_gap']:.1e}"
        print(f"{one['dataset']:14}{one['lpa_hops']:5}{node:>19}{one['further_node_ms']:7.1f} ms{table:>21}{gap:>13}  {same}")
    if options.out:
        write_json(options.out, {"benchmark": "explain", "results": results, "environment": environment()})


if __name__ == "__main__":
    main()
