"""Places that give little: nothing to write to, no home, no name, little memory, few files, an old clock, another language."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs users, limits and mounts of Linux"),
]
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
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
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


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_install_that_cannot_be_written_to_serves_a_user_without_name_and_home(installed, tmp_path, threads):
    """Kernels are compiled in memory; the current folder is read-only too."""
    done = command(*TRAIN, "--threads", threads, place=installed, cwd=installed, prefix=as_nobody())
    assert (done.returncode, done.stderr) == (0, "")
    assert "accuracy" in done.stdout
    assert not list(installed.rglob("__pycache__"))


def test_a_data_set_that_is_not_here_is_one_sentence_for_a_user_without_a_home(installed):
    done = command("info", "cora-ml", place=installed, prefix=as_nobody())
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cora-ml is read from local files only" in done.stderr
