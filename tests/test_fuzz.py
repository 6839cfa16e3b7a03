"""The fuzzer of everything that reads files of strangers: a short run here, all inputs with --slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("trustme")
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs fork and /proc of Linux")
TESTS = Path(__file__).parent


def python(*arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=3000)
    return done.returncode, done.stdout, done.stderr


PLANTED = """
import os, json, signal
from tests.helpers.fuzz_readers import in_fork, judged
def refuse():
    raise ValueError("no")
def spin():
    import time
    end = time.process_time() + 5.2
    while time.process_time() < end:
        pass
faults = {
    "signal": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "traceback": lambda: {}["key"],
    "execution": lambda: os.system("true"),
    "silent difference": lambda: "another graph",
    "slow": spin,
    "large": lambda: len(b"x" * (550 * 2**20)),
    "": refuse,
}
known = {"silent difference": "the graph"}
print(json.dumps({name: judged(in_fork(act), known.get(name)) for name, act in faults.items()}))
"""


@pytest.mark.long
def test_the_fuzzer_finds_every_kind_of_fault_that_is_planted():
    code, said, errors = python("-c", PLANTED)
    assert code == 0, errors
    assert json.loads(said) == {name: [name] if name else [] for name in json.loads(said)}
    assert len(json.loads(said)) == 7


@pytest.mark.long
def test_150_damaged_inputs_are_refused_or_read_as_they_are():
    code, said, errors = python("tests/helpers/fuzz_readers.py", "--inputs", "150")
    assert code == 0, errors
    assert json.loads(said)["inputs"] >= 150


@pytest.mark.slow
def test_5800_damaged_inputs_are_refused_or_read_as_they_are():
    code, said, errors = python("tests/helpers/fuzz_readers.py", "--out", "benchmarks/results/fuzz.json")
    assert code == 0, errors
    assert json.loads(said)["inputs"] >= 5000
