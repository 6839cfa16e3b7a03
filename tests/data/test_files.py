"""Files that a user names, what killed writers leave behind, and two processes at one place."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.files import check_output, holding, lock, write_output
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from reproduction.ledger import Ledger

posix = pytest.mark.skipif(os.name == "nt", reason="needs links, pipes and locks of POSIX")
QUICK = {"epochs": 2, "hidden": 4, "edge_rank": 4}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    write_output(tmp_path / "link.csv", b"new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b"new"
    (tmp_path / "dangling.csv").symlink_to("later.csv")
    write_output(tmp_path / "dangling.csv", b"made")
    assert (tmp_path / "later.csv").read_bytes() == b"made"


@posix
def test_a_file_keeps_its_mode_and_a_new_one_gets_that_of_the_umask(tmp_path):
    (tmp_path / "private.csv").touch(mode=0o600)
    write_output(tmp_path / "private.csv", b"new")
    (tmp_path / "usual").touch()
    write_output(tmp_path / "new.csv", b"new")
    assert (mode(tmp_path / "private.csv"), mode(tmp_path / "new.csv")) == (0o600, mode(tmp_path / "usual"))


@posix
def test_pipes_and_devices_are_written_through_and_need_no_overwrite(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    said = []
    reader = threading.Thread(target=lambda: said.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    check_output(tmp_path / "pipe", overwrite=False)
    write_output(tmp_path / "pipe", b"through")
    reader.join()
    assert said == [b"through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    check_output("/dev/null", overwrite=False)
    write_output("/dev/null", b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with open(tmp_path / "redirected", "w") as file:
        script = "from gcn_lpa.data.files import *; check_output(OUT, overwrite=False); write_output(OUT, b'hi')"
        script = script.replace("OUT", "'/dev/stdout'")
        subprocess.run([sys.executable, "-c", script], stdout=file, check=True)
    assert (tmp_path / "redirected").read_text() == "hi"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/x.csv", "there is no folder .*nowhere to write x.csv in"),
        (".", "is a folder; name a file in it"),
        ("old.csv", "old.csv exists; choose another file, or --overwrite"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, path, message):
    (tmp_path / "old.csv").write_text("old")
    with pytest.raises((ValueError, OSError), match=message):
        check_output(tmp_path / path, overwrite=False)
    if path == "old.csv":
        check_output(tmp_path / path, overwrite=True)


def test_leftovers_of_a_killed_writer_are_removed_and_those_of_a_live_one_are_not(tmp_path):
    (tmp_path / ".x.csv.0123456789abcdef.tmp").write_text("half")
    (tmp_path / ".other.csv.0123456789abcdef.tmp").write_text("half")
    live = tmp_path / ".x.csv.fedcba9876543210.tmp"
    live.write_text("half")
    with live.open("rb") as file:
        lock(file.fileno())
        write_output(tmp_path / "x.csv", b"whole")
    kept = {"x.csv", ".other.csv.0123456789abcdef.tmp", *([live.name] if os.name != "nt" else [])}
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    plan, graph = make_plan(Source("karate"), changes=QUICK, split="uniform")
    train_run(plan, graph, folder, device="cpu")
    return folder


COMMANDS = {
    "predict": ["predict"],
    "edges": ["edges"],
    "explain": ["explain", "--all"],
    "suggest": ["suggest", "-n", "1"],
    "audit": ["audit", "--labels", "--repeats", "1", "--folds", "2"],
}


@pytest.mark.parametrize("name", [*list(COMMANDS)[:4], pytest.param("audit", marks=pytest.mark.long)])
def test_a_command_asks_before_it_replaces_a_file(run, tmp_path, name):
    command, *options = COMMANDS[name]
    if name == "suggest":
        (tmp_path / "ids").write_text("\n".join(map(str, range(34))))
        options += ["--candidates", str(tmp_path / "ids")]
    out = tmp_path / "out.csv"
    out.write_text("mine")
    arguments = [command, str(run), *options, "--out", str(out)]
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, out.read_text()) == (1, "mine")
    assert refused.stderr == f"gcn-lpa: {out} exists; choose another file, or --overwrite to replace it\n"
    assert CliRunner().invoke(app, [*arguments, "--overwrite"]).exit_code == 0
    assert out.read_text() != "mine"


def test_a_plot_in_a_folder_that_is_missing_is_refused_before_the_work(run, tmp_path):
    arguments = ["explain", str(run), "--node", "1", "--picture", str(tmp_path / "nowhere" / "x.png")]
    refused = CliRunner().invoke(app, arguments)
    assert refused.stderr == f"gcn-lpa: there is no folder {tmp_path / 'nowhere'} to write x.png in\n"
    assert refused.exit_code == 1


# two at once


@posix
def test_a_folder_in_use_is_left_alone(tmp_path):
    script = "import sys; from gcn_lpa.data.files import holding\n"
    script += f"with holding({str(tmp_path)!r}): print(flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    plan, graph = make_plan(Source("karate"), changes=QUICK)
    with pytest.raises(ValueError, match=rf"{tmp_path.name} is in use by another process; wait"):
        train_run(plan, graph, tmp_path, device="cpu")
    assert not list(tmp_path.iterdir())
    other.communicate()
    assert train_run(plan, graph, tmp_path, device="cpu").run.best_epoch >= 1


@posix
def test_a_folder_is_held_until_the_block_ends_however_it_ends(tmp_path):
    with pytest.raises(ZeroDivisionError), holding(tmp_path / "new"):
        with pytest.raises(ValueError, match="new is in use by another process"), holding(tmp_path / "new"):
            pass
        raise ZeroDivisionError
    with holding(tmp_path / "new"):
        pass


LEDGER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from tests.helpers.ledger_jobs import slow_square
from reproduction.ledger import Ledger
jobs = json.loads(sys.argv[3])
print(flush=True)
sys.stdin.readline()
told = 0
while True:
    ledger = Ledger(sys.argv[2])
    try:
        ledger.run(jobs, slow_square)
        break
    except ValueError as error:
        assert "is in use by" in str(error), error
        told += 1
        time.sleep(0.005)
print(told)
"""


@posix
@pytest.mark.long
def test_the_ledger_of_two_processes_loses_no_line_and_doubles_none(tmp_path):
    jobs = [{"n": n, "log": str(tmp_path / "log")} for n in range(20)]
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", LEDGER, str(root), str(tmp_path / "l.jsonl"), json.dumps(jobs)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for one in both:
        one.stdout.readline()
    told = _together(both)
    lines = [json.loads(line)["task"]["n"] for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert sorted(lines) == list(range(20))
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(20))
    assert sum(told) > 0
    assert Ledger(tmp_path / "l.jsonl").missing(jobs) == []


def _together(processes):
    for one in processes:
        one.stdin.write("\n")
        one.stdin.flush()
    return [int(one.communicate()[0]) for one in processes]


def test_a_run_folder_can_be_read_while_it_is_held(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    with holding(tmp_path / "run"):
        assert load_run(tmp_path / "run").run.best_epoch >= 1
