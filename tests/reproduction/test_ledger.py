"""Jobs are computed once by each code version, in any number of processes, however often the whole is killed."""

import ast
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reproduction import code_version, ledger
from reproduction.code_version import code_hash
from reproduction.ledger import Ledger, Progress, job_key
from tests.helpers.ledger_jobs import square

JOBS = [{"n": n} for n in range(5)]
SQUARES = [{"n": n, "square": n * n, "code": code_hash()} for n in range(5)]


def logging(path, **more):
    return [{**job, "log": str(path), **more} for job in JOBS]


def begun(path):
    return [int(line) for line in path.read_text().split()]


def test_outcomes_come_in_the_order_of_the_jobs_with_the_fields_of_both():
    assert Ledger().run(JOBS, square) == SQUARES
    assert Ledger().run([], square) == []


def test_a_job_in_the_file_is_not_computed_again(tmp_path):
    ledger, log = tmp_path / "deep" / "ledger.jsonl", tmp_path / "log"
    first = Ledger(ledger).run(logging(log)[:3], square)
    again = Ledger(ledger)
    assert again.missing(logging(log)) == logging(log)[3:]
    assert again.run(logging(log), square)[:3] == first
    assert begun(log) == [0, 1, 2, 3, 4]
    assert len(ledger.read_text().splitlines()) == 5


def test_a_job_that_is_asked_for_twice_is_computed_once(tmp_path):
    log = tmp_path / "log"
    job = {"n": 3, "log": str(log)}
    same = {"log": str(log), "n": 3}
    results = Ledger().run([job, same, job], square)
    assert begun(log) == [3]
    assert [result["square"] for result in results] == [9, 9, 9]
    assert job_key(job) == job_key(same) != job_key({**job, "n": 4})


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


def test_a_run_killed_at_a_job_goes_on_there(tmp_path):
    """A process that is really killed, in the middle of its fourth job."""
    ledger, log = tmp_path / "ledger.jsonl", tmp_path / "log"
    script = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); import reproduction.ledger as l; "
        "from tests.helpers.ledger_jobs import square; l.Ledger(sys.argv[2]).run(json.loads(sys.argv[3]), square)"
    )
    paths = json.dumps([str(Path(__file__).parents[2]), *sys.path])
    deadly = logging(log, deadly=3)
    killed = subprocess.run([sys.executable, "-c", script, paths, str(ledger), json.dumps(deadly)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert begun(log) == [0, 1, 2, 3]
    assert Ledger(ledger).missing(deadly) == deadly[3:]


def test_outcomes_of_other_code_stay_in_the_file_and_are_not_returned(tmp_path, monkeypatch):
    path, log = tmp_path / "ledger.jsonl", tmp_path / "log"
    monkeypatch.setattr(ledger, "code_hash", lambda: "old")
    old = Ledger(path).run(logging(log)[:3], square)
    monkeypatch.setattr(ledger, "code_hash", lambda: "new")
    assert Ledger(path).missing(logging(log)) == logging(log)
    new = Ledger(path).run(logging(log)[:2], square)
    assert begun(log) == [0, 1, 2, 0, 1]
    assert [outcome["code"] for outcome in old + new] == ["old"] * 3 + ["new"] * 2
    assert Ledger(path, code="old").run(logging(log)[:3], square) == old
    assert Ledger(path, code="new").run(logging(log)[:2], square) == new
    assert [json.loads(line)["result"]["code"] for line in path.read_text().splitlines()] == ["old"] * 3 + ["new"] * 2


def test_what_another_code_did_not_compute_is_not_computed_in_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "code_hash", lambda: "new")
    message = r'no outcome of \{"n": 0\} by code old, and 5 of 5 jobs are missing; this is code new'
    with pytest.raises(ValueError, match=message):
        Ledger(tmp_path / "ledger.jsonl", code="old").run(JOBS, square)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_line_without_code_is_of_no_version(tmp_path):
    (tmp_path / "ledger.jsonl").write_text('{"task": {"n": 0}, "result": {"square": 0}}\n')
    assert Ledger(tmp_path / "ledger.jsonl").missing(JOBS) == JOBS


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository of empty files in which the code hash is computed."""
    for room in (*code_version.ROOMS, "gcn_lpa/cli", "reproduction"):
        (tmp_path / room).mkdir()
    for name in code_version.FURTHER:
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setattr(code_version, "ROOT", tmp_path)
    return tmp_path


def test_the_code_hash_sees_code_and_not_comments(tree):
    hashes = []
    texts = [
        '"""A."""\nx = 1\ndef f():\n    raise ValueError("a")\n',
        '"""B."""\nx = (1)  # one\ndef f():\n    """C."""\n    raise ValueError("b")\n',
        '"""B."""\nx = 2\ndef f():\n    raise ValueError("b")\n',
    ]
    for text in texts:
        (tree / "gcn_lpa" / "model.py").write_text(text)
        hashes.append(code_hash.__wrapped__())
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        *[("gcn_lpa/graph.py", True), ("gcn_lpa/losses.py", True), ("gcn_lpa/data/new_format.py", True)],
        *[("gcn_lpa/engine/new_kernel.py", True), ("gcn_lpa/methods/new_family.py", True)],
        *[("gcn_lpa/learning/new_way.py", True), ("reproduction/aggregation.py", True)],
        *[("reproduction/theorems.py", False), ("gcn_lpa/stats.py", False), ("gcn_lpa/__init__.py", False)],
        ("gcn_lpa/cli/app.py", False),
    ],
)
def test_every_file_that_a_training_depends_on_counts(tree, file, counts):
    before = code_hash.__wrapped__()
    (tree / file).write_text("x = 1\n")
    assert (code_hash.__wrapped__() != before) == counts


def test_what_the_lists_of_the_code_hash_name_is_there():
    named = (*code_version.UNRELATED, *code_version.FURTHER, *code_version.NOT_IN_STUDY)
    assert [name for name in named if not (code_version.ROOT / f"{name}.py").is_file()] == []
    assert {*code_version.NOT_IN_STUDY} <= {code_version.module_of(path) for path in code_version.hashed_files()}


def test_what_a_hashed_file_imports_is_hashed_too():
    """But the files of runs and how much memory there is, and what is said to be unrelated."""
    files = list(code_version.hashed_files())
    hashed = {code_version.module_of(path) for path in files}
    imported = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("gcn_lpa", "reproduction"):
                module = node.module.replace(".", "/")
                of_room = (code_version.ROOT / module).is_dir()  # from gcn_lpa.engine import fused
                imported |= {f"{module}/{name.name}" for name in node.names} if of_room else {module}
    others = {name for name in imported - hashed if not name.startswith(("gcn_lpa/runs/", "gcn_lpa/scale/"))}
    assert others <= set(code_version.UNRELATED)


def test_a_damaged_line_is_named(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    Ledger(ledger).run(JOBS, square)
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], "no JSON", *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"ledger.jsonl, line 2: not a finished job \('no JSON'\); remove the line"):
        Ledger(ledger)
    ledger.write_text('{"task": {"n": 1}}\n')
    with pytest.raises(ValueError, match="line 1"):
        Ledger(ledger)


def test_a_failure_names_its_job_and_keeps_what_was_done(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    jobs = [{**job, "wrong": 2} for job in JOBS]
    with pytest.raises(ValueError, match=r'job \{"n": 2, "wrong": 2\} failed: ValueError: 2 is not to be squared'):
        Ledger(ledger).run(jobs, square)
    assert Ledger(ledger).missing(jobs) == jobs[2:]
    with pytest.raises(OSError, match=r'job \{"n": 1, "missing": 1\} failed: FileNotFoundError: no data'):
        Ledger().run([{**job, "missing": 1} for job in JOBS], square)
    with pytest.raises(RuntimeError, match=r'job \{"n": 1, "broken": 1\} failed: KeyError: 1'):
        Ledger().run([{**job, "broken": 1} for job in JOBS], square)


def test_an_outcome_that_json_cannot_hold_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"job \{'n': 0\}: its outcome \{'square': \{0\}\} cannot be kept"):
        Ledger(tmp_path / "ledger.jsonl").run(JOBS, lambda job: {"square": {0}})
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_new_outcome_is_what_a_later_run_reads(tmp_path):
    def work(job):
        return {"pair": (1, 2), "by_size": {3: 0.1}}

    fresh = Ledger(tmp_path / "ledger.jsonl").run(JOBS, work)
    assert fresh == Ledger(tmp_path / "ledger.jsonl").run(JOBS, work)
    assert fresh[0] == {"n": 0, "pair": [1, 2], "by_size": {"3": 0.1}, "code": code_hash()}


def test_progress_counts_new_outcomes_and_tells_the_time_left(tmp_path):
    ledger, told = tmp_path / "ledger.jsonl", []
    Ledger(ledger).run(JOBS[:2], square)
    Ledger(ledger).run(JOBS, square, on_outcome=told.append)
    assert [(one.job["n"], one.outcome["square"], one.done, one.total) for one in told] == [
        (2, 4, 1, 3),
        (3, 9, 2, 3),
        (4, 16, 3, 3),
    ]
    assert 0 < told[0].seconds <= told[-1].seconds
    assert told[-1].seconds_left == 0


def test_time_left_is_that_of_the_jobs_so_far():
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
def test_a_failure_in_a_worker_names_its_job_and_keeps_the_others(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    jobs = [{**job, "wrong": 4} for job in JOBS]
    with pytest.raises(ValueError, match=r'job \{"n": 4, "wrong": 4\} failed: ValueError: 4 is not to be squared'):
        Ledger(ledger).run(jobs, square, workers=2)
    assert Ledger(ledger).missing(jobs) == jobs[4:]


@pytest.mark.long
def test_a_worker_that_is_killed_is_told_as_such(tmp_path):
    with pytest.raises(ChildProcessError, match=r"a worker process was ended from outside.*fewer workers"):
        Ledger().run([{**job, "deadly": 0} for job in JOBS], square, workers=2)


LEFT_BEHIND = """
import os, sys, time
from reproduction.ledger import Ledger

def wait(job):
    os.write(1, f"{os.getpid()}\\n".encode())  # one write, so that two processes do not mix their lines
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


def squares(stack):
    """The work of a stack; it notes how many jobs it was given."""
    return [{**square(job), "together": len(stack)} for job in stack]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_jobs_of_a_stack_are_computed_together_and_those_in_the_file_not_again(tmp_path, workers):
    book = Ledger(tmp_path / "ledger.jsonl")
    book.run(JOBS[1:2], square)
    assert book.fill([JOBS[:3], JOBS[2:]], squares, workers=workers) == 0
    found = Ledger(tmp_path / "ledger.jsonl").read(JOBS)
    assert [line["square"] for line in found] == [0, 1, 4, 9, 16]
    assert [line.get("together") for line in found] == [2, None, 2, 2, 2]  # 2 is of the first stack


def test_no_stack_is_begun_after_that_time(tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl")
    assert book.fill([JOBS[:2], JOBS[2:]], squares, until=time.perf_counter() - 1) == 5
    assert book.missing(JOBS) == JOBS
    assert book.fill([JOBS[:2], JOBS[2:]], squares, until=time.perf_counter() + 60) == 0
