"""A training that is killed at any moment leaves a folder that can be read, and ends as if nothing had happened."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gcn_lpa import storage
from gcn_lpa.runs.codec import PLAN, load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.stages import train_run

PLANS = {
    "split": {"split": "uniform"},  # one fit
    "own": {"split": None},  # a choice, folds, and a fit to all labels
}
SETTINGS = {"epochs": 6, "hidden": 4, "edge_rank": 4, "loss": "held_out"}

# Imports and warms up once. Then each line of its input says how to train, when to kill (inf: never) and into which
# folder; a fork does it. The fork is not reaped before it is killed, so its process id cannot have become another's.
SERVER = """
import os, signal, sys, time, test_kill
from gcn_lpa.runs import stages
stages.CHECKPOINT_SECONDS = 0.0
test_kill.train(None, "own")
print(flush=True)
for line in sys.stdin:
    kind, kill_after, folder = line.rstrip().split(maxsplit=2)
    start = time.perf_counter()
    if (child := os.fork()) == 0:
        test_kill.train(folder, kind)
        os._exit(0)
    if kill_after != "inf":
        time.sleep(float(kill_after))
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(time.perf_counter() - start, flush=True)
"""


def train(folder, kind):
    """The whole command, in one thread, as threads do not cross a fork. A checkpoint at every epoch: mostly saving."""
    plan, graph = make_plan(Source("karate"), changes=SETTINGS, checkpoint_every=1, **PLANS[kind])
    return train_run(plan, graph, folder, device="cpu", threads=1, resume=True)


class Trainer:
    """Trains in another process, which can be killed."""

    def __init__(self):
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], env=environment, text=True, **pipes)
        self.server.stdout.readline()

    def train(self, folder, kind, kill_after=math.inf):
        """Train into a folder; the process is killed after so many seconds if it is not done by then."""
        print(kind, kill_after, folder, file=self.server.stdin, flush=True)
        return float(self.server.stdout.readline())

    def close(self):
        with self.server:  # closes its pipes, which ends it
            pass


@pytest.fixture(scope="module")
def trainer():
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    trainer = Trainer()
    yield trainer
    trainer.close()


def kept(folder):
    """The files of a run that do not tell the time."""
    files = storage.load(folder).files
    return {name: data for name, data in files.items() if name not in ("history.jsonl", "run.json", "environment.json")}


def kill_and_resume(trainer, tmp_path, count):
    chance = random.Random(0)
    states = set()
    for kind in PLANS:
        duration = trainer.train(tmp_path / kind, kind)
        for number in range(count):
            folder = tmp_path / f"{kind}-{number}"
            trainer.train(folder, kind, kill_after=chance.uniform(0, duration))
            finished = (folder / "manifest.json").exists()
            states.add((kind, finished, (folder / "checkpoint").exists()))
            if finished:
                load_run(folder)
            storage.latest_checkpoint(folder)
            resumed = train(folder, kind)
            assert kept(folder) == kept(tmp_path / kind)
            assert not (folder / PLAN).exists()
            assert not (folder / "checkpoint").exists()
            assert not resumed.run.interrupted
    return states


@pytest.mark.long
def test_a_killed_training_ends_as_if_it_had_not_been_killed(trainer, tmp_path):
    kill_and_resume(trainer, tmp_path, 3)


def test_a_training_killed_while_its_plan_was_written_can_be_started_again(tmp_path):
    (tmp_path / f".{PLAN}.4711.tmp").write_text('{"half')
    assert train(tmp_path, "split").run.best_epoch > 0
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.slow
def test_fifty_killed_trainings_end_as_if_they_had_not_been_killed(trainer, tmp_path):
    states = kill_and_resume(trainer, tmp_path, 25)
    assert {("split", False, True), ("own", False, True)} <= states  # some were killed on the way
