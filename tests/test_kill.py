"""A command that is killed at any moment leaves files that can be read, and ends as if nothing had happened when run again."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.train_run import PLAN, CheckpointFolder
from tests.helpers.karate_training import train

ROOT = Path(__file__).parents[1]
FLAGS = ["--checkpoint-every", "1", "--epochs", "6", "--hidden", "4", "--edge-rank", "4", "--loss", "held_out"]
ALONE = ["--device", "cpu", "--threads", "1"]  # threads do not cross a fork
EACH = 36  # kills of each command: some come when it has already ended
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

# Imports and warms up once. Then each line of its input says what to do: a fork does it, and is sent a signal after so many
# seconds (inf: never). The fork is not reaped before that, so its process id cannot have become another's.
SERVER = """
import json, os, signal, sys, time, tests.helpers.karate_training
import gcn_lpa.cli.app, gcn_lpa.calibration, gcn_lpa.insight.audit, matplotlib.figure
import reproduction.commands, reproduction.reproduce
from gcn_lpa.runs import train_run
train_run.CHECKPOINT_SECONDS = 0.0
tests.helpers.karate_training.train(None)
print(flush=True)
for line in sys.stdin:
    words, seconds, number = json.loads(line)
    start = time.perf_counter()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        is_study = words[0] == "reproduce"
        sys.argv[1:] = words[is_study:]
        try:
            code = (reproduction.commands if is_study else gcn_lpa.cli.app).main()
        except SystemExit as exit:
            code = exit.code
        os._exit(code or 0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    print(json.dumps([time.perf_counter() - start, status]), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """What is killed: its words, where {out} is its folder, {run} a finished run and {begun} one that was interrupted."""

    words: list[str]
    starts_with: str = ""  # what {out} holds before
    is_run: bool = False  # {out} is a run folder


OUT = ["--out", "{out}/table.csv", "--overwrite"]
COMMANDS = {
    "train": Command(["train", "karate", "--out", "{out}", "--resume", *FLAGS, *ALONE], is_run=True),
    "train, own": Command(
        ["train", str(ROOT / "examples" / "club"), "-o", "label=club", "--out", "{out}", "--resume", *FLAGS, *ALONE],
        is_run=True,
    ),
    "resume": Command(["train", "--resume", "--out", "{out}", *ALONE], starts_with="begun", is_run=True),
    "audit": Command(["audit", "{run}", "--labels", "--repeats", "1", "--folds", "2", *ALONE, *OUT]),
    "explain": Command(["explain", "{run}", "--node", "1", "--picture", "{out}/plot.png"]),
    "predict": Command(["predict", "{run}", *OUT]),
    "reproduce": Command(
        [
            *["reproduce", "table2", "--dataset", "cora", "--method", "lpa", "--splits", "3", "--workers", "1"],
            *["--device", "cpu", "--out", "{out}"],
        ]
    ),
}


class Forks:
    """Runs commands in another process, which can be killed."""

    def __init__(self, place):
        self.place = place
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], env=environment, text=True, cwd=ROOT, **pipes)
        self.server.stdout.readline()
        self.run(Command(["train", "karate", "--out", "{out}", *FLAGS, *ALONE]), place / "run")
        self.begin(place / "begun")

    def run(self, command, out, kill_after=None, number=0):
        """The seconds a command took and how it ended; it is sent a signal if it is not done by then."""
        names = {"out": out, "run": self.place / "run", "begun": self.place / "begun"}
        words = [word.format(**names) for word in command.words]
        print(json.dumps([words, kill_after, int(number)]), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def begin(self, folder):
        """A training that was killed and has a checkpoint."""
        while not (folder / "checkpoint" / "fit" / "manifest.json").exists() or (folder / "manifest.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.run(COMMANDS["train"], folder, kill_after=random.uniform(0, 0.3), number=signal.SIGKILL)

    def close(self):
        with self.server:  # closes its pipes, which ends it
            pass


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


def untimed(value):
    """A JSON value without what tells the time, the machine or the place."""
    if isinstance(value, dict):
        kept = {key: untimed(one) for key, one in value.items() if key not in ("seconds", "environment", "out")}
        return kept
    return [untimed(one) for one in value] if isinstance(value, list) else value


def kept(folder):
    """Every file below a folder with what it says, but for the time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, data = str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b""
        if path.name == "manifest.json" or path.suffix == ".md":
            data = b""  # their hashes and sentences tell the time
        elif path.suffix == ".json":
            data = json.dumps(untimed(json.loads(data))).encode()
        elif path.suffix == ".jsonl":
            data = json.dumps(sorted(map(json.dumps, untimed(list(map(json.loads, data.splitlines())))))).encode()
        found[name] = data
    return found


def check_whole(command, out, reference):
    """What a kill left can be read: a run or a checkpoint, and files that are the old or the new, never a part."""
    if command.is_run:
        for place in (out / "checkpoint").glob("*/"):
            CheckpointFolder(out, place.name).latest()
        if (out / "manifest.json").exists():
            load_run(out)
        return
    for name, data in kept(out).items():
        if not name.startswith(".") and Path(name).suffix in (".csv", ".png", ".json", ".md"):
            assert data in (reference[name], b"old"), name


def place_for(command, forks, out):
    if command.starts_with:
        shutil.copytree(forks.place / command.starts_with, out)
    else:
        out.mkdir()
        for word in command.words:
            if word.startswith("{out}/"):
                (out / Path(word).name).write_text("old")
    return out


def kill_and_repeat(forks, tmp_path, name, count):
    """Kill a command so many times, at moments and with signals in turn; returns how the killed ones had ended."""
    command, chance, ends = COMMANDS[name], random.Random(name), Counter()
    whole = place_for(command, forks, tmp_path / name)
    duration, status = forks.run(command, whole)
    assert status == 0
    reference = kept(whole)
    for number in range(count):
        sent = SIGNALS[number % 3]
        out = place_for(command, forks, tmp_path / f"{name}-{number}")
        _, status = forks.run(command, out, kill_after=chance.uniform(0, duration), number=sent)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, 130, -sent), code
        ends["not hit" if code == 0 else sent.name] += 1
        check_whole(command, out, reference)
        _, status = forks.run(command, out)
        assert status == 0
        assert kept(out) == reference  # no leftover, no other bit
        shutil.rmtree(out)
    return ends


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_ends_as_if_it_had_not_been_killed(forks, tmp_path, name, request):
    if name == "reproduce":
        request.getfixturevalue("datasets")
    kill_and_repeat(forks, tmp_path, name, 1)


def test_a_training_killed_while_its_plan_was_written_can_be_started_again(tmp_path):
    hidden = tmp_path / "checkpoint" / f".{'0' * 16}.new"
    hidden.mkdir(parents=True)
    (hidden / PLAN).write_text('{"half')
    assert train(tmp_path).run.best_epoch > 0
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_more_than_200_killed_commands_end_as_if_they_had_not_been_killed(forks, tmp_path, datasets):
    ends = {name: kill_and_repeat(forks, tmp_path, name, EACH) for name in COMMANDS}
    hit = sum(count for counts in ends.values() for end, count in counts.items() if end != "not hit")
    write_json(
        ROOT / "benchmarks" / "results" / "kills.json",
        {
            "kills": EACH * len(COMMANDS),
            "while_it_ran": hit,
            "torn": 0,
            "leftovers_after_the_next_run": 0,
            "other_bits_after_the_next_run": 0,
            "ends": {name: dict(sorted(counts.items())) for name, counts in ends.items()},
            "environment": environment(),
        },
    )
    assert hit >= 200
