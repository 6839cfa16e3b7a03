"""Whether the same commands still give the same predictions, bit for bit.

    python benchmarks/bits.py                 compare with benchmarks/results/bits.json; exit code 1 where a case differs
    python benchmarks/bits.py --record        write that file anew
    python benchmarks/bits.py --only cora     the cases whose name holds this text

Every case trains with the command line, on files that it writes itself or on Cora from $GCN_LPA_DATA, and hashes what `predict`
prints of every node: labels and all probabilities with all their digits, calibrated and raw. Where a hash differs, the
probabilities of the first nodes, kept in bits.npz, say by how much. Bits are those of one machine, one version of torch and one
thread; elsewhere they are compared all the same, and the output says that the machine is another.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "bits.json"
NUMBERS = RECORD.with_suffix(".npz")
FIRST = 100  # nodes whose probabilities are kept
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
COMMAND = [sys.executable, "-m", "gcn_lpa"]
WORDS = ["graph", "label", "money", "tree", "bank", "river", "north", "south", "paper", "claim", "model", "trial"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {"cases": {}, "machine": {}}
    numbers = dict(np.load(NUMBERS)) if NUMBERS.exists() else {}
    wrong = []
    if before["machine"] != machine() and not given.record:
        print(f"recorded on another machine: {before['machine']}")
    for name, case in CASES.items():
        if given.only not in name:
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            tables = case(Path(folder))
        for kind, table in tables.items():
            key, digest = f"{name}, {kind}", hashlib.sha256(table.encode()).hexdigest()[:16]
            values = probabilities(table)
            verdict = "same"
            if key not in before["cases"]:
                verdict = "new"
            elif digest != before["cases"][key]:
                verdict, wrong = f"DIFFERENT by {distance(values, numbers.get(key))}", [*wrong, key]
            print(f"{key:40} {verdict:24} {time.perf_counter() - start:6.1f} s", flush=True)
            if given.record:
                before["cases"][key], numbers[key] = digest, values
    if given.record:
        RECORD.write_text(json.dumps({"machine": machine(), "cases": before["cases"]}, indent=2) + "\n")
        np.savez_compressed(NUMBERS, **numbers)
        return 0
    return 1 if wrong else 0


def probabilities(table: str) -> np.ndarray:
    """The probabilities in a table of `predict`, JSON or CSV, of its first nodes."""
    rows = json.loads(table) if table.lstrip().startswith("[") else list(csv.DictReader(table.splitlines()))
    names = [name for name in rows[0] if name.startswith("p:")] or ["probability"]
    return np.array([[float(row[name]) for name in names] for row in rows[:FIRST]])


def distance(one: np.ndarray, other: np.ndarray | None) -> str:
    return "unknown" if other is None or one.shape != other.shape else f"{np.abs(one - other).max():.1e}"


def machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"cpu": cpu, "platform": platform.machine(), **{name: version(name) for name in ("torch", "numpy", "numba")}}


def run(*arguments: object) -> str:
    """What a command prints; its error is ours."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"gcn-lpa {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def predictions(folder: Path) -> dict[str, str]:
    """What a run says of every node, calibrated and raw."""
    return {kind: run("predict", folder, "--all", "--all-classes", "--json", *flags) for kind, flags in KINDS}


KINDS = (("calibrated", ()), ("raw", ("--raw",)))


def trained(folder: Path, *arguments: object) -> dict[str, str]:
    run("train", *arguments, "--out", folder / "run", "--threads", 1, "--device", "cpu")
    return predictions(folder / "run")


def write_csv(path: Path, *rows: tuple[object, ...]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def table(folder: Path, *, nodes: int = 240, labeled: float = 0.4, columns: bool = True, types: bool = False) -> Path:
    """Customers in three classes: numbers, skewed money, dates, categories, text, missing cells; edges mostly within a class."""
    draw, place = random.Random(nodes), folder / "data"
    place.mkdir()
    classes = [draw.randrange(3) for _ in range(nodes)]
    rows = []
    for i, c in enumerate(classes):
        cells = (
            f"{draw.gauss(30 + 4 * c, 8):.1f}",
            "" if draw.random() < 0.1 else f"{draw.lognormvariate(9 + c / 2, 1.5):.2f}",
            f"2024-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}",
            draw.choices(("free", "pro", "team"), [1 + 2 * (c == k) for k in range(3)])[0],
            " ".join(draw.choices(WORDS, k=5)),
        )
        label = "abc"[c] if draw.random() < labeled else ""
        rows.append((f"u{i}", label, *(cells if columns else ())))
    names = ("id", "label", *(("age", "income", "joined", "plan", "bio") if columns else ()))
    write_csv(place / "nodes.csv", names, *rows)
    edges = []
    for i in range(nodes):
        for kind, rate in (("cites", 0.8), ("same city", 0.2)):
            near = [j for j in range(nodes) if classes[j] == classes[i]] if draw.random() < rate else range(nodes)
            j = draw.choice(near)
            edges += [(f"u{i}", f"u{j}", *((kind,) if types else ()))] if i != j else []
    write_csv(place / "edges.csv", ("source", "target", *(("kind",) if types else ())), *edges)
    return place


def readme_session(folder: Path) -> dict[str, str]:
    return trained(folder, "examples/club", "-o", "label=club")


def resumed_run(folder: Path) -> dict[str, str]:
    """A training that is killed after its first checkpoint, and then goes on."""
    out, checkpoint = folder / "run", folder / "run" / "checkpoint" / "fit" / "manifest.json"
    arguments = ["train", "cora", "--recipe", "paper", "--epochs", "400", "--checkpoint-every", "5", "--out", str(out)]
    arguments += ["--threads", "1", "--device", "cpu"]
    with subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not checkpoint.exists():
            if process.poll() is not None:
                raise SystemExit("the training ended before its first checkpoint")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    run(*arguments, "--resume")
    return predictions(out)


def two_ranks(folder: Path) -> dict[str, str]:
    """Two processes under torchrun, each with half of the graph."""
    run("partition", "digits", "--parts", 2, "--by", "stream", "--out", folder / "parts")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "gcn_lpa"]
    arguments = ["train", folder / "parts", "--out", folder / "run", "--epochs", 30, "--threads", 1]
    done = subprocess.run([*torchrun, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return {"probabilities": (folder / "run" / "predictions.csv").read_text()}


CASES = {
    "readme session": readme_session,
    "mixed table": lambda at: trained(at, table(at)),
    "mixed table, few labels": lambda at: trained(at, table(at, labeled=0.1)),
    "mixed table, best": lambda at: trained(at, table(at), "--recipe", "best"),
    "mixed table, split": lambda at: trained(at, table(at), "--split", "stratified"),
    "no columns": lambda at: trained(at, table(at, columns=False)),
    "no columns, few labels": lambda at: trained(at, table(at, columns=False, labeled=0.08)),
    "no columns, best": lambda at: trained(at, table(at, columns=False), "--recipe", "best"),
    "edge types": lambda at: trained(at, table(at, types=True), "-o", "relation=kind"),
    "cora, paper": lambda at: trained(at, "cora", "--recipe", "paper"),
    "cora, official": lambda at: trained(at, "cora", "--recipe", "official"),
    "cora, default": lambda at: trained(at, "cora", "--epochs", 60),
    "cora, few labels": lambda at: trained(at, "cora", "--split", "per_class", "--epochs", 60),
    "cora, resumed": resumed_run,
    "two ranks": two_ranks,
}

if __name__ == "__main__":
    sys.exit(main())
