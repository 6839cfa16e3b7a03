"""The tables of docs/growth.md are those of the committed results."""

import json
from pathlib import Path

from typer.testing import CliRunner

from gcn_lpa.cli.app import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "growth.md").read_text(encoding="utf-8")


def test_the_plan_of_the_page_is_what_the_command_prints():
    command, shown = PAGE.split("$ gcn-lpa plan ")[1].split("```")[0].split("\n", maxsplit=1)
    assert CliRunner().invoke(app, ["plan", *command.split()]).output == shown


def test_the_gaps_of_the_page_hold_those_of_the_result():
    found = json.loads((ROOT / "benchmarks" / "results" / "distributed.json").read_text(encoding="utf-8"))
    for dtype, said in (("float64", 1.3e-15), ("float32", 9.3e-7)):
        assert f"{said:.1e}".replace("e-0", "e-") in PAGE
        assert max(gap["weights"] for world, gap in found["gaps"].items() if world.endswith(dtype)) <= said
    assert (found["kills_while_saving"]["kills"], found["kills_while_saving"]["torn"]) == (50, 0)
    assert all(found["same_bits_after_a_killed_rank"]) and found["same_bits_after_a_restart_by_torchrun"]
