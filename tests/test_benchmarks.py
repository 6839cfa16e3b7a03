"""The scripts of benchmarks/ find what they import: they are run by hand, so that a move of a module could break them unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

IMPORT_ALL = """
import importlib, sys
sys.path[:0] = ["benchmarks", "."]
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.long
def test_every_script_finds_what_it_imports():
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    assert len(names) > 10
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
