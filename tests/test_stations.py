"""The way of the data through one command, counted: what is opened, hashed and entered where the example folder is trained."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FUNCTIONS, MODULES = 630, 54  # of the package that a training may enter; its page included. A slow machine says how long is left

COUNTED = """
import json, sys, threading
from pathlib import Path

import gcn_lpa
from gcn_lpa.cli.app import main

PACKAGE = str(Path(gcn_lpa.__file__).parent)
GRAPH = str(Path(PACKAGE, "graph.py"))
run = Path(sys.argv.pop()).resolve()
opened, entered, hashes = [], set(), 0


def listen(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append((str(Path(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode()).resolve()), arguments[1]))


def note(frame, event, argument):
    global hashes
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_flags & 1 and not code.co_name.startswith("<"):
        entered.add((code.co_filename, code.co_qualname))
    if event == "c_call" and code.co_filename == GRAPH and "sha256" in getattr(argument, "__name__", ""):
        hashes += 1


sys.addaudithook(listen)
sys.setprofile(note)
threading.setprofile(note)
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
finally:
    sys.setprofile(None)
    threading.setprofile(None)
reads = [Path(path) for path, mode in opened if mode is None or "r" in mode]
print(json.dumps({
    "inputs": {name: [path.name for path in reads].count(name) for name in ("nodes.csv", "edges.csv")},
    "read_back": sorted({path.name for path in reads if run in path.parents and path.is_file()}),
    "hashes": hashes,
    "functions": len(entered),
    "modules": len({file for file, _ in entered}),
}))
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    out = tmp_path_factory.mktemp("stations") / "run"
    train = ["train", "examples/club", "-o", "label=club", "--out", out, "--report", "--threads", "1"]
    command = [sys.executable, "-c", COUNTED, *map(str, train), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_training_opens_each_input_once_and_hashes_the_graph_once(counted):
    assert counted["inputs"] == {"nodes.csv": 1, "edges.csv": 1}
    assert counted["hashes"] == 1


@pytest.mark.long
def test_a_training_reads_no_file_of_its_run_back(counted):
    assert counted["read_back"] == []


@pytest.mark.long
def test_a_training_and_its_page_pass_few_stations(counted):
    assert counted["functions"] <= FUNCTIONS
    assert counted["modules"] <= MODULES
