"""From two CSV files to predictions: how long each stage takes, and the memory of it all.

    python benchmarks/end_to_end.py --out benchmarks/results/end-to-end-cpu.json

nodes.csv has 200,000 nodes with eight numbers, a category and a label, edges.csv a million edges, of which 70 % stay within a
class. The default recipe without its members is trained for `--epochs` on 60 % of the labels; a longer training makes its share
larger and changes no other stage.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas

from gcn_lpa import read_csv, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import choose_device, environment, num_threads
from gcn_lpa.learning.learn import member_jobs, together
from gcn_lpa.learning.tasks import task_of
from gcn_lpa.predict import predictions
from gcn_lpa.recipes import DEFAULT

CLASSES = np.array(["red", "green", "blue", "white", "black"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), given.nodes, given.edges)
        facts = measured(Path(folder), given)
    total = sum(facts["seconds"].values())
    facts |= {"total": round(total, 2), "shares": {name: round(s / total, 3) for name, s in facts["seconds"].items()}}
    facts |= {"load": os.getloadavg()[0], "settings": {**vars(given), "out": given.out.name}}
    write_json(given.out, {**facts, "environment": environment()})
    for name, seconds in facts["seconds"].items():
        print(f"{name:10} {seconds:8.2f} s   {facts['shares'][name]:.1%}")
    print(f"{'total':10} {total:8.2f} s   {facts['megabytes']:,} MB at the peak, accuracy {facts['accuracy']:.3f}")
    return 0


def write_files(folder: Path, num_nodes: int, num_edges: int) -> None:
    random = np.random.default_rng(0)
    classes = random.integers(0, len(CLASSES), num_nodes)
    columns = {f"number_{k}": random.normal(classes == k, 1.5).round(4) for k in range(8)}
    place = np.char.add("place ", random.integers(0, 12, num_nodes).astype(str))
    nodes = {"id": [f"n{i}" for i in range(num_nodes)], "label": CLASSES[classes], "place": place, **columns}
    pandas.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)
    by_class = np.argsort(classes, kind="stable")
    first = np.searchsorted(classes[by_class], np.arange(len(CLASSES) + 1))
    source = random.integers(0, num_nodes, num_edges)
    same = first[classes[source]] + random.integers(0, np.diff(first).min(), num_edges)
    target = np.where(random.random(num_edges) < 0.7, by_class[same], random.integers(0, num_nodes, num_edges))
    names = np.array(nodes["id"])
    pandas.DataFrame({"source": names[source], "target": names[target]}).to_csv(folder / "edges.csv", index=False)


def measured(folder: Path, given: argparse.Namespace) -> dict:
    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def done(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage], last = round(now - last, 3), now

    recipe = DEFAULT.replace(members="", epochs=given.epochs, patience=0)
    graph = read_csv(folder / "nodes.csv", folder / "edges.csv")
    done("read")
    parts = split(graph, seed=0)
    task = task_of(graph, parts.train, parts.val, recipe)
    done("prepare")
    with num_threads(given.threads):
        fits = {job.name.member: [job.run(choose_device(given.device))] for job in member_jobs(task, recipe, seed=0)}
    done("train")
    with num_threads(given.threads):
        trained = together(task, recipe, fits)
        table = predictions(trained, graph)
    done("predict")
    table.to_csv(folder / "predictions.csv", index=False)
    done("write")
    truth = np.array(graph.class_names)[graph.y.numpy()]
    accuracy = float((table["label"].to_numpy() == truth)[parts.test.numpy()].mean())
    return {"seconds": seconds, "megabytes": peak_megabytes(), "accuracy": round(accuracy, 4)}


def peak_megabytes() -> int:
    facts = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in facts.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


if __name__ == "__main__":
    sys.exit(main())
