"""How long reading your own files takes, beside what pandas alone needs for them.

    python benchmarks/reading.py [--nodes 200000] [--edges 1000000] [--repeats 3] [--out FILE.json]

Two folders are written from a seed, one with ids such as user-012345 and one with whole numbers: nodes.csv (id, label
for a tenth of the nodes, five columns of numbers) and edges.csv. Measured are `gcn-lpa info` on each, the same command
on the 34 nodes of examples/club (start-up), and `pandas.read_csv(dtype=str, keep_default_na=False)` of the two files in
a process of its own, its import not counted. The best of the repeats counts; they take turns.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas

from gcn_lpa.cli.text import table_lines
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment

ROOT = Path(__file__).resolve().parents[1]
CLASSES = ("red", "green", "blue", "black", "white")
PANDAS = """
import sys, time
import pandas
start = time.perf_counter()
frames = [pandas.read_csv(path, dtype=str, keep_default_na=False) for path in sys.argv[1:]]
print(time.perf_counter() - start)
"""


def write_folder(folder, ids, num_edges, rng):
    n = len(ids)
    label = np.where(rng.random(n) < 0.1, np.array(CLASSES)[rng.integers(len(CLASSES), size=n)], "")
    numbers = rng.standard_normal((n, 5)).round(6)
    columns = {"id": ids, "label": label, **{f"f{k}": numbers[:, k] for k in range(5)}}
    ends = ids[rng.integers(n, size=(num_edges, 2))]
    folder.mkdir()
    pandas.DataFrame(columns).to_csv(folder / "nodes.csv", index=False)
    pandas.DataFrame({"source": ends[:, 0], "target": ends[:, 1]}).to_csv(folder / "edges.csv", index=False)
    return folder


def seconds_of_info(folder):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "gcn_lpa", "info", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def seconds_of_pandas(folder):
    command = [sys.executable, "-c", PANDAS, folder / "nodes.csv", folder / "edges.csv"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(folder, repeats):
    turns = [
        (seconds_of_info(ROOT / "examples" / "club"), seconds_of_info(folder), seconds_of_pandas(folder)) for _ in range(repeats)
    ]
    startup, info, alone = map(min, zip(*turns, strict=True))
    reading = info - startup
    return {"info": info, "startup": startup, "reading": reading, "pandas": alone, "ratio": reading / alone}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON, such as benchmarks/results/reading-cpu.json")
    options = parser.parse_args()
    rng = np.random.Generator(np.random.PCG64(options.seed))
    order = rng.permutation(options.nodes)
    kinds = {"text": np.array([f"user-{i:06d}" for i in order]), "whole numbers": order}
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for number, (kind, ids) in enumerate(kinds.items()):
            folder = write_folder(Path(scratch) / str(number), ids, options.edges, rng)
            found[kind] = measure(folder, options.repeats)
    rows = [(kind, *(f"{seconds[name]:.2f}" for name in seconds)) for kind, seconds in found.items()]
    print(*table_lines(("ids", "info, s", "start-up, s", "reading, s", "pandas alone, s", "ratio"), rows), sep="\n")
    print(f"{options.nodes:,} nodes, {options.edges:,} edges, seed {options.seed}; best of {options.repeats}")
    if options.out is not None:
        sizes = {"nodes": options.nodes, "edges": options.edges, "seed": options.seed, "repeats": options.repeats}
        write_json(options.out, {"environment": environment(), **sizes, "seconds": found})


if __name__ == "__main__":
    main()
