"""How much memory a training takes on the whole graph and on ten clusters in turn, beside what `gcn_lpa.scale.planner` says.

    python benchmarks/memory.py --out benchmarks/results/memory-cpu.json
    python benchmarks/memory.py --device cuda --out benchmarks/results/memory-h200.json
    python benchmarks/memory.py --partition 1e6/1e7 --out benchmarks/results/partition-cpu.json

Each training has a process of its own, which first trains on a small graph, so that kernels are compiled and libraries loaded. On
a CPU it counts how far the resident memory of the process then grows, at its peak, while the graph is made, a model is trained
for two epochs and predicts; on a GPU the most that torch has allocated there. `--plan FILE` measures nothing: it puts what the
planner says now beside the bytes of a result.

On a CPU there is a second table: ten clusters with 256 columns of features in memory, and in a file of 32 or 16 bits a number
(`gcn_lpa.data.array_files`). There only memory that is no file counts: the system drops pages of a file when it needs the room.

`--partition NODES/EDGES` is the command `gcn-lpa partition` on two CSV files, beside a process that reads one of the parts for
training with the recipe that `train` chooses: the peak of each whole process, Python and the libraries too.
"""

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from gcn_lpa import load, split
from gcn_lpa.data.array_files import mapped_features
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS, Recipe
from gcn_lpa.scale.partition import read_facts, read_part
from gcn_lpa.scale.planner import Size, estimate
from gcn_lpa.scale.together import Order

RECIPES = {
    "default, without members": DEFAULT.replace(members=""),
    "2 layers of 64": LAYERS,
    "3 layers of 256": LAYERS.replace(hidden=256, gcn_layers=3),
    "5 layers of 256": LAYERS.replace(hidden=256, gcn_layers=5),
}
CLUSTERS = (0, 10)
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed
PLACES = ("memory", "float32", "float16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="blocks,coauthor-phy", help="blocks: random, of --nodes, or a data set")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--recipes", default=";".join(RECIPES), help="with ; between them")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plan", type=Path, metavar="FILE")
    parser.add_argument("--partition", metavar="NODES/EDGES")
    parser.add_argument("--parts", default="4,8")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        job = json.loads(given.one)
        if "write" in job:
            from quick import write_large  # a script beside this one

            write_large(Path(job["write"]), job["nodes"], job["edges"], seed=0)
        print(json.dumps(read_one(Path(job["parts"])) if "parts" in job else {} if "write" in job else measured(job)))
        return 0
    if given.partition:
        rows = partitioned(*(int(float(number)) for number in given.partition.split("/")), map(int, given.parts.split(",")))
        if given.out is not None:
            write_json(given.out, {"rows": rows, "environment": environment()})
        return 0
    if given.plan:
        write_json(given.plan, planned_anew(json.loads(given.plan.read_text()), given.nodes, given.root))
        return 0
    rows: dict = {}
    for graph in given.graphs.split(","):
        for name in given.recipes.split(";"):
            job = {"graph": graph, "nodes": given.nodes, "recipe": name, "root": given.root, "device": given.device}
            whole, parts = (in_a_process({**job, "clusters": number}) for number in CLUSTERS)
            row = {"whole": whole, "clusters": parts, "share": round(parts["bytes"] / whole["bytes"], 3)}
            rows.setdefault(graph, {})[name] = row
            print(graph, name, json.dumps(row), flush=True)
    mapped: dict = {}
    for place in PLACES if given.device == "cpu" else ():
        job = {"graph": "blocks", "nodes": given.nodes // 2, "recipe": "2 layers of 64", "device": "cpu"}
        mapped[place] = in_a_process({**job, "clusters": 10, "columns": 256, "place": place})
        print("features", place, json.dumps(mapped[place]), flush=True)
    if given.out is not None:
        write_json(given.out, {"rows": rows, "mapped": mapped, "device": given.device, "environment": environment()})
    return 0


def in_a_process(job: dict) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(job)],
        env={**os.environ, **GIVES_BACK},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def partitioned(nodes: int, edges: int, numbers: Iterable[int]) -> dict:
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "graph"
        folder.mkdir()
        in_a_process({"write": str(folder), "nodes": nodes, "edges": edges})  # the peak of a process begins as that of its parent
        for parts in numbers:
            out = Path(place) / f"in-{parts}"
            words = [sys.executable, "-m", "gcn_lpa", "partition", str(folder), "--parts", str(parts), "--out", str(out)]
            cutting = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **GIVES_BACK})
            _, status, used = os.wait4(cutting.pid, 0)
            assert status == 0
            one = in_a_process({"parts": str(out)})
            row = {"partition": 1024 * used.ru_maxrss, **one, "cpu": round(used.ru_utime + used.ru_stime, 1)}
            row["share"] = round(row["partition"] / row["one part"], 2)
            rows[f"{nodes:,} nodes, {edges:,} edges, {parts} parts"] = row
            print(parts, json.dumps(row), flush=True)
    return rows


def read_one(folder: Path) -> dict:
    """The peak of this process, which reads one part, and the share of entries that are between parts."""
    facts = read_facts(folder)
    rank = SimpleNamespace(rank=0)
    part = read_part(folder, facts, Order(folder, folder / "run").plan(facts).recipe, rank)
    row, col = part.graph.pattern.row, part.graph.pattern.col
    return {"one part": peak(), "between parts": round(float((col >= facts.rows[0]).sum() / len(row)), 3)}


def measured(job: dict) -> dict:
    recipe = RECIPES[job["recipe"]].replace(epochs=2, clusters=job["clusters"])
    train(blocks(2000), recipe.replace(hidden=8), job["device"])
    gc.collect()
    is_gpu = job["device"] == "cuda"
    before = resident()
    if "place" in job:
        return no_file(job, recipe)
    graph = graph_of(job["graph"], job["nodes"], job["root"])
    gc.collect()
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
    train(graph, recipe, job["device"])
    taken = torch.cuda.max_memory_allocated() if is_gpu else peak() - before
    return planned(taken, graph, recipe, job["device"])


def planned(taken: float, graph: Graph, recipe: Recipe, device: str) -> dict:
    """Bytes beside what the planner says."""
    plan = estimate(Size.of(graph), recipe)
    assert plan is not None
    expected = plan.gpu if device == "cuda" else plan.peak
    return {"bytes": taken, "estimate": round(expected), "error": round(expected / taken - 1, 3)}


def planned_anew(result: dict, nodes: int, root: str | None) -> dict:
    for name, rows in result["rows"].items():
        graph = graph_of(name, nodes, root)
        for recipe, row in rows.items():
            for kind, clusters in zip(("whole", "clusters"), CLUSTERS, strict=True):
                own = RECIPES[recipe].replace(clusters=clusters)
                row[kind] = planned(row[kind]["bytes"], graph, own, result["device"])
    return result


def graph_of(name: str, nodes: int, root: str | None) -> Graph:
    return blocks(nodes) if name == "blocks" else load(name, root)


def no_file(job: dict, recipe: Recipe) -> dict:
    """What a training takes beside files, at most, where its features are in `job["place"]`."""
    with tempfile.TemporaryDirectory() as folder:
        graph = blocks(job["nodes"], columns=job["columns"])
        if job["place"] != "memory":
            path = Path(folder) / "features.npy"
            np.save(path, graph.x.numpy().astype(job["place"]))
            graph = dataclasses.replace(graph, x=mapped_features(path, graph.num_nodes), mapped=True)
        gc.collect()
        before, most, ended = resident("RssAnon") - graph.x.nbytes * (not graph.mapped), [0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.003):
                most[0] = max(most[0], resident("RssAnon"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        train(graph, recipe, "cpu")
        ended.set()
        watcher.join()
    return {"bytes": most[0] - before}


def train(graph: Graph, recipe: Recipe, device: str) -> None:
    parts = split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, recipe, device=device, threads=1)
    predict_proba(trained, graph, raw=True)


def blocks(num_nodes: int, degree: int = 10, columns: int = 32, classes: int = 10) -> Graph:
    """Nodes in a row, joined to others near by: clusters cut few edges."""
    rng = np.random.default_rng(0)
    one = rng.integers(0, num_nodes, num_nodes * degree // 2)
    other = (one + rng.integers(1, 200, len(one))) % num_nodes
    x = rng.standard_normal((num_nodes, columns), dtype=np.float32)
    y = np.arange(num_nodes) // 10 % classes
    return Graph.from_edges(np.stack([one, other], axis=1), num_nodes=num_nodes, x=x, y=y)


def resident(name: str = "VmRSS") -> int:
    """Bytes of this process in memory now, all of them, or those that are no file."""
    facts = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(next(line for line in facts.splitlines() if line.startswith(name)).split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak() -> int:
    """The most bytes since `forget_peak`."""
    return resident("VmHWM")


if __name__ == "__main__":
    sys.exit(main())
