"""From a clone to the labelled CSV and the page of the example folder: three commands, each timed.

    python benchmarks/first_page.py             write benchmarks/results/first-page-cpu.json

The clone is made of this repository's last commit, the virtual environment is new, and pip may use its cache.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "first-page-cpu.json"


def commands() -> list[str]:
    """Those of docs/start.md to install, and the training with its page."""
    block = re.search(r"```\n(git clone .*?)```", (ROOT / "docs" / "start.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    if block is None:
        raise ValueError("docs/start.md shows no block that begins with git clone")
    return [*block[1].strip().splitlines(), "gcn-lpa train examples/club -o label=club --out runs/club --report"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORD)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", f"{scratch}/venv"], check=True)
        path = f"{scratch}/venv/bin{os.pathsep}{os.environ['PATH']}"
        place, seconds = Path(scratch), {}
        for command in commands():
            start = time.perf_counter()
            said = command.replace("<this repository>", str(ROOT))
            subprocess.run(said, shell=True, cwd=place, check=True, env={**os.environ, "PATH": path})
            seconds[command] = round(time.perf_counter() - start, 1)
            place = Path(scratch, "gcn-lpa")
        page = place / "runs" / "club" / "report.html"
        rows = (page.parent / "predictions.csv").read_text(encoding="utf-8").count("\n") - 1
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=place, capture_output=True, text=True)
        found = {
            "seconds": seconds,
            "total_seconds": round(sum(seconds.values()), 1),
            "labelled_rows": rows,
            "page_bytes": page.stat().st_size,
            "commit": commit.stdout.strip(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        }
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
