"""Places that give little: nothing to write to, no home, no name, little memory, few files, an old clock, another language."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs users, limits and mounts of Linux")
NOBODY = 12345  # a user that no system knows
TRAIN = ["train", "karate", "--epochs", "3", "--hidden", "4", "--edge-rank", "4"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package without compiled files, that nobody but its owner may write to."""
    place = tmp_path_factory.mktemp("install")
    for parent in (place, *place.parents[: len(place.parts) - len(Path(os.environ.get("TMPDIR", "/tmp")).parts) - 1]):
        os.chmod(parent, 0o755)
    shutil.copytree(ROOT / "gcn_lpa", place / "gcn_lpa", ignore=shutil.ignore_patterns("__pycache__"))
    return place


def command(*arguments, place=ROOT, cwd=None, limits="", prefix=(), **environment):
    """What the command line gives in a bare environment: exit code, output and errors."""
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(place)}
    words = [sys.executable, "-m", "gcn_lpa", *map(str, arguments)]
    script = f'{limits}\nexec "$@"'
    done = subprocess.run(
        [*prefix, "bash", "-c", script, "bash", *words],
        cwd=cwd or ROOT,
        env={**bare, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode >= 0, f"ended by signal {-done.returncode}"
    assert "Traceback" not in done.stderr
    return done


def as_nobody(*words):
    """Run as a user without a name; root keeps its power to read the interpreter, and loses that to write everywhere."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become nobody")
    keep = "--bounding-set=-all,+dac_read_search", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *keep, *words]


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.long), pytest.param("2", marks=pytest.mark.slow)])
def test_an_install_that_cannot_be_written_to_serves_a_user_without_name_and_home(installed, tmp_path, threads):
    """Kernels are compiled in memory; the current folder is read-only too."""
    done = command(*TRAIN, "--threads", threads, place=installed, cwd=installed, prefix=as_nobody())
    assert (done.returncode, done.stderr) == (0, "")
    assert "accuracy" in done.stdout
    assert not list(installed.rglob("__pycache__"))


@pytest.mark.long
def test_a_data_set_that_is_not_here_is_one_sentence_for_a_user_without_a_home(installed):
    done = command("info", "cora-ml", place=installed, prefix=as_nobody())
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cora-ml is read from local files only" in done.stderr


def in_a_mount(size, script):
    """What a script says whose $DISK is a small disk of its own, and `gcn-lpa` the command line."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root to mount a small disk")
    setup = (
        f'DISK=$(mktemp -d) && mount -t tmpfs -o size={size} tmpfs "$DISK" || exit 77\n'
        f'gcn-lpa() {{ "{sys.executable}" -m gcn_lpa "$@"; }}\n'
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", setup + script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    if done.returncode == 77:
        pytest.skip("this machine lets nobody mount a disk")
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_what_was_saved_before_is_intact():
    done = in_a_mount(
        "2m",
        f"""
        gcn-lpa {" ".join(TRAIN)} --out $DISK/run > /dev/null && gcn-lpa predict $DISK/run > $DISK/before || exit 1
        head -c 4M /dev/zero > $DISK/fill 2> /dev/null
        gcn-lpa {" ".join(TRAIN)} --seed 1 --out $DISK/run --overwrite; echo code $?
        gcn-lpa predict $DISK/run --out $DISK/new.csv; echo code $?
        gcn-lpa predict $DISK/run | cmp - $DISK/before && echo intact
        rm $DISK/fill; ls -A $DISK
        gcn-lpa {" ".join(TRAIN)} --seed 1 --out $DISK/run --overwrite > /dev/null; echo code $?; ls -A $DISK/run
        """,
    )
    lines = done.stdout.split("\n")
    assert lines[:5] == ["code 1", "code 1", "intact", "before", "run"]
    assert lines[5] == "code 0"
    assert not [name for name in lines[6:] if name.startswith(".") or name == "plan.json"]
    errors = done.stderr.splitlines()
    assert len(errors) == 2
    for error in errors:
        assert ": No space left on device; free some space or choose another folder" in error


@pytest.mark.slow
def test_a_read_only_disk_is_read_and_one_sentence_where_it_would_be_written_to():
    done = in_a_mount(
        "2m",
        f"""
        gcn-lpa {" ".join(TRAIN)} --out $DISK/run > /dev/null && gcn-lpa predict $DISK/run > /tmp/before.$$ || exit 1
        mount -o remount,ro $DISK
        gcn-lpa predict $DISK/run | cmp - /tmp/before.$$ && echo same; rm /tmp/before.$$
        gcn-lpa evaluate $DISK/run > /dev/null; echo code $?
        gcn-lpa predict $DISK/run --out $DISK/new.csv; echo code $?
        gcn-lpa {" ".join(TRAIN)} --out $DISK/other; echo code $?
        gcn-lpa {" ".join(TRAIN)} --out $DISK/run --overwrite; echo code $?
        """,
    )
    assert done.stdout.splitlines() == ["same", "code 0", "code 1", "code 1", "code 1"]
    assert len(done.stderr.splitlines()) == 3
    for error in done.stderr.splitlines():
        assert ": Read-only file system; choose a folder that can be written to" in error


@pytest.mark.slow
def test_too_little_memory_is_one_sentence_with_the_size_that_was_asked_for():
    """No recipe is so wide; no machine has so much; this machine has, but the process may not take it."""
    large = ["train", "sbm", "-o", "n=20000", "--epochs", "1", "--device", "cpu", "--hidden"]
    done = command(*large, "400000", limits="ulimit -v 6000000", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "gcn-lpa: recipe: hidden = 400000; it is at most 100,000" in done.stderr
    done = command(*large, "90000", limits="ulimit -v 6000000", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "gcn-lpa: training takes about" in done.stderr
    done = command("--quiet", *large, "6000", limits="ulimit -v 4000000", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "gcn-lpa: there is no memory for" in done.stderr
    assert "a smaller --hidden or fewer feature columns would help" in done.stderr


@pytest.mark.long
def test_32_open_files_are_enough(tmp_path):
    done = command(*TRAIN, "--out", tmp_path / "run", limits="ulimit -n 32")
    assert (done.returncode, done.stderr) == (0, "")
    done = command("predict", tmp_path / "run", "--out", tmp_path / "p.csv", limits="ulimit -n 32")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_terminal_without_letters_beyond_ascii_shows_question_marks_and_files_stay_utf_8(tmp_path):
    (tmp_path / "nodes.csv").write_text(
        "id,label\n" + "".join(f"nœud{i},{'rouge é' if i % 2 else 'bleu'}\n" for i in range(9)) + "x,\n",
        encoding="utf-8",
    )
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"nœud{i},nœud{i + 1}\n" for i in range(8)), encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = command("info", tmp_path, **plain)
    assert done.returncode == 0
    assert "rouge ?" in done.stdout
    done = command("train", tmp_path, "--epochs", "3", "--hidden", "4", "--out", tmp_path / "run", **plain)
    assert done.returncode == 0
    done = command("predict", tmp_path / "run", "--all", "--out", tmp_path / "p.csv", **plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nœud1," in (tmp_path / "p.csv").read_text(encoding="utf-8")


BACKWARDS = """
import itertools, sys, time
now = itertools.count(4e9, -3600)
time.time = lambda: next(now)
from gcn_lpa.cli.app import main
sys.exit(main())
"""


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(tmp_path):
    """Every look at the clock is an hour earlier, and all files are of the year 2096."""
    one = command(*TRAIN, "--out", tmp_path / "one")
    assert one.returncode == 0
    script = [sys.executable, "-c", BACKWARDS]
    words = [*TRAIN, "--out", str(tmp_path / "two")]
    for arguments in (words, [*words, "--resume"]):
        done = subprocess.run([*script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        for path in (tmp_path / "two").iterdir():
            os.utime(path, (4e9, 4e9))
    for name in ("model.safetensors", "labels.safetensors", "recipe.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
