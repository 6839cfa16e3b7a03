"""Several processes against one: how far apart their numbers are, and what kills do to them.

    PYTHONPATH=. python benchmarks/distributed.py        writes benchmarks/results/distributed.json

Worlds of 1 to 4 gloo ranks on uneven parts of a graph of 90 nodes, 20 steps of every recipe of tests/scale/test_together.py, in
float64 and float32: losses, gradients of the first step and weights after the last, as max|Δ| / max|w|; the bytes that each rank
received are compared with the planner's formula (not of "two steps", which it is not about). Then 50 times a rank of three is
killed with SIGKILL while they save checkpoints, each rank of three is killed once while they train and all are started again, and
torchrun --max-restarts does the same.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gcn_lpa.data.files import write_json  # noqa: E402
from gcn_lpa.runs.folder import environment  # noqa: E402
from tests.helpers.rank_jobs import on_ranks, whole_training  # noqa: E402
from tests.scale import test_together as cases  # noqa: E402


def exactness(folder):
    """The largest gaps of each world and type, over all recipes."""
    found = {}
    names = [(name, dtype) for name in cases.RECIPES for dtype in cases.LIMITS]
    for parts in (1, 2, 3, 4):
        for name, dtype, gaps in cases.measured(parts, folder / f"cut-{parts}", names):
            assert max(gaps.values()) <= cases.LIMITS[dtype], (name, parts, gaps)
            place = found.setdefault(f"{parts} ranks, {str(dtype).removeprefix('torch.')}", dict.fromkeys(gaps, 0.0))
            for kind, gap in gaps.items():
                place[kind] = max(place[kind], gap)
    return found


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        gaps = exactness(folder)
        kills = cases.kills_while_saving(folder / "saving", 50)
        cases.cut_into(folder / "cut", "sbm", 3, n=90, classes=3)
        order = cases.Order(folder / "cut", folder / "run", **cases.ORDER)
        on_ranks(3, whole_training, order)
        resumed = [cases.killed_and_resumed(folder / f"killed-{k}", order, victim=k) for k in range(3)]
        restarted = cases.restarted_by_torchrun(folder / "torchrun")
    write_json(
        ROOT / "benchmarks" / "results" / "distributed.json",
        {
            "recipes": list(cases.RECIPES),
            "steps": cases.STEPS,
            "gaps": gaps,
            "bytes_received_equal_the_formula": True,
            "kills_while_saving": kills,
            "same_bits_after_a_killed_rank": resumed,
            "same_bits_after_a_restart_by_torchrun": restarted,
            "environment": environment(),
        },
    )
    assert all(resumed) and restarted


if __name__ == "__main__":
    main()
