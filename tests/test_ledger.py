"""Tasks are computed once, in any number of processes, however often the whole is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gcn_lpa.runs.ledger import Ledger, Progress, task_key

TASKS = [{"n": n} for n in range(5)]
SQUARES = [{"n": n, "square": n * n} for n in range(5)]


def square(task):
    """The work of these tests. A task with a `log` notes there that it was begun."""
    if "log" in task:
        with open(task["log"], "a") as log:
            log.write(f"{task['n']}\n")
    if task["n"] == task.get("wrong"):
        raise ValueError(f"{task['n']} is not to be squared")
    if task["n"] == task.get("missing"):
        raise FileNotFoundError("no data")
    if task["n"] == task.get("broken"):
        raise KeyError(task["n"])
    if task["n"] == task.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": task["n"] ** 2}


def logging(path, **more):
    return [{**task, "log": str(path), **more} for task in TASKS]


def begun(path):
    return [int(line) for line in path.read_text().split()]


def test_results_come_in_the_order_of_the_tasks_with_the_fields_of_both():
    assert Ledger().run(TASKS, square) == SQUARES
    assert Ledger().run([], square) == []


def test_a_task_in_the_file_is_not_computed_again(tmp_path):
    ledger, log = tmp_path / "deep" / "ledger.jsonl", tmp_path / "log"
    first = Ledger(ledger).run(logging(log)[:3], square)
    again = Ledger(ledger)
    assert again.missing(logging(log)) == logging(log)[3:]
    assert again.run(logging(log), square)[:3] == first
    assert begun(log) == [0, 1, 2, 3, 4]
    assert len(ledger.read_text().splitlines()) == 5


def test_a_task_that_is_asked_for_twice_is_computed_once(tmp_path):
    log = tmp_path / "log"
    task = {"n": 3, "log": str(log)}
    same = {"log": str(log), "n": 3}
    results = Ledger().run([task, same, task], square)
    assert begun(log) == [3]
    assert [result["square"] for result in results] == [9, 9, 9]
    assert task_key(task) == task_key(same) != task_key({**task, "n": 4})


@pytest.mark.parametrize("left", [1, 20, -1], ids=["one byte", "half a line", "all but the end of the line"])
def test_a_line_cut_off_by_a_kill_is_computed_again_and_only_that(tmp_path, left):
    ledger, log = tmp_path / "ledger.jsonl", tmp_path / "log"
    complete = Ledger(ledger).run(logging(log), square)
    *whole, last = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(whole) + last[:left])
    log.unlink()
    assert Ledger(ledger).run(logging(log), square) == complete
    assert begun(log) == [4]
    assert ledger.read_bytes() == b"".join([*whole, last])


def test_a_run_killed_at_a_task_goes_on_there(tmp_path):
    """A process that is really killed, in the middle of its fourth task."""
    ledger, log = tmp_path / "ledger.jsonl", tmp_path / "log"
    script = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import test_ledger, gcn_lpa.runs.ledger as l; "
        "l.Ledger(sys.argv[2]).run(json.loads(sys.argv[3]), test_ledger.square)"
    )
    paths = json.dumps([str(Path(__file__).parent), *sys.path])
    deadly = logging(log, deadly=3)
    killed = subprocess.run([sys.executable, "-c", script, paths, str(ledger), json.dumps(deadly)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert begun(log) == [0, 1, 2, 3]
    assert Ledger(ledger).missing(deadly) == deadly[3:]


def test_a_damaged_line_is_named(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    Ledger(ledger).run(TASKS, square)
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], "no JSON", *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"ledger.jsonl, line 2: not a finished task \('no JSON'\); remove the line"):
        Ledger(ledger)
    ledger.write_text('{"task": {"n": 1}}\n')
    with pytest.raises(ValueError, match="line 1"):
        Ledger(ledger)


def test_a_failure_names_its_task_and_keeps_what_was_done(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    tasks = [{**task, "wrong": 2} for task in TASKS]
    with pytest.raises(ValueError, match=r'task \{"n": 2, "wrong": 2\} failed: ValueError: 2 is not to be squared'):
        Ledger(ledger).run(tasks, square)
    assert Ledger(ledger).missing(tasks) == tasks[2:]
    with pytest.raises(OSError, match=r'task \{"n": 1, "missing": 1\} failed: FileNotFoundError: no data'):
        Ledger().run([{**task, "missing": 1} for task in TASKS], square)
    with pytest.raises(RuntimeError, match=r'task \{"n": 1, "broken": 1\} failed: KeyError: 1'):
        Ledger().run([{**task, "broken": 1} for task in TASKS], square)


def test_a_result_that_json_cannot_hold_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"task \{'n': 0\}: its result \{'square': \{0\}\} cannot be kept"):
        Ledger(tmp_path / "ledger.jsonl").run(TASKS, lambda task: {"square": {0}})
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_new_result_is_what_a_later_run_reads(tmp_path):
    def work(task):
        return {"pair": (1, 2), "by_size": {3: 0.1}}

    fresh = Ledger(tmp_path / "ledger.jsonl").run(TASKS, work)
    assert fresh == Ledger(tmp_path / "ledger.jsonl").run(TASKS, work)
    assert fresh[0] == {"n": 0, "pair": [1, 2], "by_size": {"3": 0.1}}


def test_progress_counts_new_results_and_tells_the_time_left(tmp_path):
    ledger, told = tmp_path / "ledger.jsonl", []
    Ledger(ledger).run(TASKS[:2], square)
    Ledger(ledger).run(TASKS, square, on_result=told.append)
    assert [(one.task["n"], one.result["square"], one.done, one.total) for one in told] == [
        (2, 4, 1, 3),
        (3, 9, 2, 3),
        (4, 16, 3, 3),
    ]
    assert 0 < told[0].seconds <= told[-1].seconds
    assert told[-1].seconds_left == 0


def test_time_left_is_that_of_the_tasks_so_far():
    halfway = Progress({}, {}, done=2, total=6, seconds=90.0)
    assert halfway.seconds_left == 180.0
    assert str(halfway) == "2 of 6, 90 s, about 3 min left"
    assert str(Progress({}, {}, 1, 3, 7200.0)) == "1 of 3, 2.0 h, about 4.0 h left"


@pytest.mark.long
def test_two_workers_give_what_one_gives_and_compute_nothing_twice(tmp_path):
    log, ledger = tmp_path / "log", tmp_path / "ledger.jsonl"
    alone = Ledger().run(logging(log), square)
    log.unlink()
    assert Ledger(ledger).run(logging(log), square, workers=2) == alone
    assert sorted(begun(log)) == [0, 1, 2, 3, 4]
    assert Ledger(ledger).run(logging(log), square, workers=2) == alone
    assert sorted(begun(log)) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_a_failure_in_a_worker_names_its_task_and_keeps_the_others(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    tasks = [{**task, "wrong": 4} for task in TASKS]
    with pytest.raises(ValueError, match=r'task \{"n": 4, "wrong": 4\} failed: ValueError: 4 is not to be squared'):
        Ledger(ledger).run(tasks, square, workers=2)
    assert Ledger(ledger).missing(tasks) == tasks[4:]


@pytest.mark.long
def test_a_worker_that_is_killed_is_told_as_such(tmp_path):
    with pytest.raises(ChildProcessError, match=r"a worker process was ended from outside.*fewer workers"):
        Ledger().run([{**task, "deadly": 0} for task in TASKS], square, workers=2)


LEFT_BEHIND = """
import os, sys, time
from gcn_lpa.runs.ledger import Ledger

def wait(task):
    print(os.getpid(), flush=True)
    time.sleep(60)
    return {}

if __name__ == "__main__":
    Ledger().run([{"n": 0}, {"n": 1}], wait, workers=2)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a kill that cannot be caught")
def test_processes_end_with_the_one_that_started_them(tmp_path):
    script = tmp_path / "left_behind.py"
    script.write_text(LEFT_BEHIND)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert all(int(parent.stdout.readline()) > 0 for _ in range(2))  # both are at work
        parent.kill()
        assert parent.stdout.read() == ""  # the pipe is closed: nobody is left who could write to it
