"""How long commands take on a graph of 34 nodes, where nearly all is start-up, beside `python -c "import torch"`.

    python benchmarks/startup.py                   print the times, write benchmarks/results/startup-cpu.json
    python benchmarks/startup.py --repeats 1       a quick look

The commands take turns, so that a busy moment of the machine meets all of them; the ratios are of the best times. A first
round, which compiles modules and kernels, is not counted. Bytecode is written even where PYTHONDONTWRITEBYTECODE is set.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment

ROOT = Path(__file__).resolve().parents[1]
CLUB = ["examples/club", "-o", "label=club"]
GCN_LPA = ["-m", "gcn_lpa"]
HELP_SECONDS = 0.3
RATIOS = {"predict": 1.6, "train": 3.2}  # at most so many times as long as the import of torch


def commands(folder):
    """What is timed, by name; `train` needs an empty place, and `predict` the run that it leaves there."""
    run = folder / "run"
    return {
        "import torch": ["-c", "import torch"],
        "help": [*GCN_LPA, "--help"],
        "info": [*GCN_LPA, "info", *CLUB],
        "train": [*GCN_LPA, "train", *CLUB, "--out", run],
        "predict": [*GCN_LPA, "predict", run, "--out", folder / "predictions.csv", "--overwrite"],
    }


def seconds_of(arguments):
    writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=writing, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(repeats):
    """The seconds of each command, [repeats] each."""
    seconds = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(repeats + 1):
            shutil.rmtree(Path(scratch, "run"), ignore_errors=True)
            for name, arguments in commands(Path(scratch)).items():
                took = seconds_of(arguments)
                if repeat:
                    seconds.setdefault(name, []).append(took)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "startup-cpu.json")
    options = parser.parse_args()
    seconds = measure(options.repeats)
    torch = min(seconds["import torch"])
    results = [
        {"command": name, "best": min(some), "median": statistics.median(some), "times_import_torch": min(some) / torch}
        for name, some in seconds.items()
    ]
    for one in results:
        limit = f"  at most {RATIOS[one['command']]}" if one["command"] in RATIOS else ""
        ratio = f"{one['times_import_torch']:.2f} x import torch{limit}"
        print(f"{one['command']:14}best {one['best']:.2f} s  median {one['median']:.2f} s  {ratio}")
    limits = {"help_seconds": HELP_SECONDS, "times_import_torch": RATIOS}
    record = {"benchmark": "startup", "repeats": options.repeats, "limits": limits, "results": results}
    write_json(options.out, {**record, "environment": environment()})
    is_slow = any(one["times_import_torch"] > RATIOS.get(one["command"], float("inf")) for one in results)
    sys.exit(1 if is_slow or min(seconds["help"]) > HELP_SECONDS else 0)


if __name__ == "__main__":
    main()
