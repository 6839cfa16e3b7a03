"""Draw timings of `python -m reproduction bench epochs` side by side: graphs with and without hubs, each as its file has it.

    python benchmarks/epochs_picture.py benchmarks/results/epochs-work-7-h200.json benchmarks/results/epochs-hubs-7-h200.json \\
        --out benchmarks/results/epochs-h200.png
"""

import argparse
import json
import sys
from pathlib import Path

from reproduction.timing import Timing
from reproduction.timing_report import draw_epochs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    panels = {}
    for file in given.files:
        found = json.loads(file.read_text(encoding="utf-8"))
        title = "degrees by a power law" if found.get("hubs") else "degrees alike"
        panels[title] = [Timing(**timing) for timing in found["timings"]]
    draw_epochs(panels, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
