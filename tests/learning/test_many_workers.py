"""Tasks shared out among forked processes: what comes back, what is heard on the way, and how all of it ends."""

import os
import signal
import subprocess
import sys
import time
from itertools import count

import pytest
import torch

from gcn_lpa.data.datasets import load
from gcn_lpa.learning.many import Crew, _Executor, can_fork
from gcn_lpa.learning.tasks import Job, task_of
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.train import JobName, Watch

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux alone")


def nothing(task, news):
    pass


def done_by(work, tasks, num_workers=2, hear=nothing):
    """What came of each task, and whether the crew was asked to end."""
    results = {}
    interrupted = Crew(work, hear, results.__setitem__).run(iter(tasks), num_workers)
    return results, interrupted


def test_every_task_is_done_once_by_another_process():
    results, interrupted = done_by(lambda task, tell: (task**2, os.getpid()), range(1, 8))
    assert {task: square for task, (square, _) in results.items()} == {k: k * k for k in range(1, 8)}
    assert os.getpid() not in {process for _, process in results.values()}
    assert not interrupted


def test_a_task_is_asked_for_when_a_process_is_free():
    """So tasks may depend on what came of those before."""
    results = {}

    def tasks():
        yield 1
        while max(results, default=1) < 5:
            yield max(results, default=1) + 1

    Crew(lambda task, tell: task, nothing, results.__setitem__).run(tasks(), 1)
    assert sorted(results) == [1, 2, 3, 4, 5]


def test_news_are_heard_in_this_process():
    heard = []
    done_by(lambda task, tell: [tell(k) for k in range(task)], [2, 3], hear=lambda *news: heard.append(news))
    assert sorted(heard) == [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]


def until_told_to_end(task, tell):
    try:
        for k in count():
            tell(k)
            time.sleep(0.01)
    except KeyboardInterrupt:
        if task == "gives up":
            raise
        return "the best so far"


def test_an_interrupt_ends_what_is_under_way_and_begins_nothing_more():
    def hear(task, news):
        if news == 3:
            raise KeyboardInterrupt

    results, interrupted = done_by(until_told_to_end, ["goes on", "gives up", "comes too late"], hear=hear)
    assert interrupted
    assert results == {"goes on": "the best so far"}


def test_ctrl_c_is_such_an_interrupt_and_the_handler_is_put_back():
    def hear(task, news):
        if news == 3:
            os.kill(os.getpid(), signal.SIGINT)

    results, interrupted = done_by(until_told_to_end, ["one", "two"], hear=hear)
    assert interrupted
    assert set(results) == {"one", "two"}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_a_task_is_raised_here():
    def work(task, tell):
        raise ValueError(f"task {task} is wrong")

    with pytest.raises(ValueError, match="task 1 is wrong"):
        done_by(work, [1, 2], 1)


def test_a_process_that_is_killed_is_an_error():
    with pytest.raises(ChildProcessError, match=r"a process of this training was ended .* try --threads 1"):
        done_by(lambda task, tell: os.kill(os.getpid(), signal.SIGKILL), [1])


class OddError(Exception):
    """It cannot be read again: its constructor takes something else than its message."""

    def __init__(self, value, place):
        super().__init__(f"{value} at {place}")


def test_an_error_that_cannot_be_sent_is_said():
    def work(task, tell):
        raise OddError(task, "home")

    with pytest.raises(RuntimeError, match="OddError: 1 at home"):
        done_by(work, [1], 1)


KILLED = """
import os, signal, time
from gcn_lpa.learning.many import Crew
def work(task, tell):
    tell(os.getpid())
    time.sleep(1000)
heard = []
def hear(task, process):
    heard.append(process)
    if len(heard) == 2:
        print(*heard, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
Crew(work, hear, print).run(iter([1, 2]), 2)
"""


def test_processes_end_with_their_parent_however_it_ends():
    ended = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    for process in ended.stdout.split():
        patience = time.monotonic() + 30
        while os.path.exists(f"/proc/{process}") and time.monotonic() < patience:
            time.sleep(0.01)
        assert not os.path.exists(f"/proc/{process}")


@pytest.mark.parametrize("method", ["trees", "smoothed-lr"])
def test_what_learns_beside_a_gpu_is_what_learns_here(method):
    """Without one too: each model in a process of its own, with the bits that it has in this one."""
    graph = load("karate")
    val = torch.arange(34) % 3 == 0
    task = task_of(graph, ~val, val, METHODS[method].fair())
    jobs = [Job(JobName(f"fold-{k}"), task, METHODS[method].fair(), seed=k) for k in range(3)]
    executor = _Executor([jobs], torch.device("cpu"), Watch(), None, True)
    for job, fit in zip(jobs, executor.beside_gpu(jobs), strict=True):
        here = job.run(torch.device("cpu"))
        assert fit.run.best_epoch == here.run.best_epoch
        pairs = zip(fit.model.state_dict().values(), here.model.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
