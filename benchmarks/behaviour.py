"""What the command line computes, as one sha256 per result: a change of structure must not move any of them.

    python benchmarks/behaviour.py                 compare with benchmarks/results/behaviour.json, exit 1 on a difference
    python benchmarks/behaviour.py --record        write that file

It runs the session of the README, three cells of Table 2 on the CPU, and a training that is killed and resumed. Bits are
those of one machine and thread count, so the record says which; seconds, versions and code hashes are left out.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "behaviour.json"
CLUB = ["examples/club", "-o", "label=club"]
CELLS = [("cora", "gcn-lpa"), ("cora", "gcn"), ("citeseer", "official")]
PLACES = (
    "split_seed",
    "seed",
    "split_hash",
    "best_epoch",
    "train_accuracy",
    "val_accuracy",
    "test_accuracy",
    "test_macro_f1",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    wanted = parser.parse_args().record
    with tempfile.TemporaryDirectory() as scratch:
        found = {**readme_session(Path(scratch)), **table2_cells(Path(scratch)), **resumed_run(Path(scratch))}
    if wanted:
        record = {"machine": platform.machine(), "cpus": os.cpu_count(), "sha256": found}
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return 0
    known = json.loads(RECORD.read_text(encoding="utf-8"))["sha256"]
    for name in sorted({*known, *found}):
        same = known.get(name) == found.get(name)
        print(f"{'same     ' if same else 'DIFFERENT'}  {name}")
    return 0 if known == found else 1


def readme_session(scratch: Path) -> dict[str, str]:
    run, predictions, edges = scratch / "club", scratch / "predictions.csv", scratch / "edges.csv"
    spoken = {
        "info": gcn_lpa("info", *CLUB),
        "train": gcn_lpa("train", *CLUB, "--out", run),
        "predict": gcn_lpa("predict", run, "--out", predictions, "--overwrite"),
        "edges": gcn_lpa("edges", run, "--out", edges, "--overwrite"),
        "explain": gcn_lpa("explain", run, "--node", "member-11", "--top", "3"),
        "evaluate": gcn_lpa("evaluate", run),
    }
    said = {f"readme/{name}": sha256(timeless(text, scratch).encode()) for name, text in spoken.items()}
    files = {"readme/predictions.csv": predictions, "readme/edges.csv": edges}
    return {**said, **{name: sha256(path.read_bytes()) for name, path in files.items()}, "readme/model": model_of(run)}


def table2_cells(scratch: Path) -> dict[str, str]:
    found = {}
    for dataset, method in CELLS:
        out = scratch / f"{dataset}-{method}"
        study = [sys.executable, "-m", "reproduction", "table2", "--dataset", dataset, "--method", method]
        study += ["--splits", "2", "--out", str(out), "--device", "cpu"]
        subprocess.run(study, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        lines = [json.loads(line) for line in (out / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
        facts = [{**line["task"], **line["result"]} for line in lines]
        rows = sorted([fact[place] for place in PLACES] for fact in facts)
        found[f"table2/{dataset}/{method}"] = sha256(json.dumps(rows).encode())
    return found


def resumed_run(scratch: Path) -> dict[str, str]:
    """A training killed after its first checkpoint and resumed; equal to one that nothing disturbed."""
    options = ["train", "digits", "--seed", "3", "--checkpoint-every", "20"]
    gcn_lpa(*options, "--out", scratch / "whole")
    stopped = scratch / "stopped"
    process = subprocess.Popen(command(*options, "--out", stopped), cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None and not list(stopped.glob("checkpoint/*/manifest.json")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    gcn_lpa("train", "--resume", "--out", stopped)
    whole, resumed = model_of(scratch / "whole"), model_of(stopped)
    assert whole == resumed, "the resumed run ended elsewhere than the undisturbed one"
    return {"resumed/model": resumed}


def model_of(run: Path) -> str:
    """The weights of a run without their names, which may change."""
    tensors = [tensor for tensor in load_file(run / "model.safetensors").values() if tensor.dtype.kind == "f"]
    return sha256("".join(sorted(sha256(tensor.tobytes()) for tensor in tensors)).encode())


def timeless(text: str, scratch: Path) -> str:
    return re.sub(r"\d+\.\d s\b", "… s", text.replace(str(scratch), "…"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gcn_lpa", *map(str, arguments)]


def gcn_lpa(*arguments: object) -> str:
    return subprocess.run(command(*arguments), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
