"""The numbers of docs/accuracy.md are those of the committed result."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
FOUND = json.loads((ROOT / "benchmarks" / "results" / "accuracy-dev-cpu.json").read_text(encoding="utf-8"))["rows"]


def test_the_table_is_that_of_the_result():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    rows = {
        cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:])
    }
    assert list(rows) == list(FOUND["cora"])
    for row, cells in rows.items():
        assert cells == [FOUND[graph][row]["accuracy"] for graph in FOUND], row


def test_a_difference_in_the_text_is_one_of_the_result():
    (said,) = re.findall(r"squirrel \+([\d.]+ ± [\d.]+)", PAGE)
    assert FOUND["squirrel-filtered"]["- columns of the graph"]["difference"] == f"-{said}"
