"""The wheel, installed with its core dependencies alone into an environment outside the clone, runs the README's session."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.helpers.pages import README, ROOT, blocks, missing, session

EXTRAS = {"torch_geometric", "pyarrow", "triton", "pytest", "hypothesis"}


def output(command, folder):
    """What a command prints, in an environment that knows nothing of this clone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.mark.slow
def test_the_installed_wheel_runs_the_session_of_the_readme(tmp_path):
    output([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("gcn_lpa-*.whl")
    output([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    programs = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    output([programs / "python", "-m", "pip", "install", "-c", ROOT / "constraints.txt", wheel], tmp_path)
    found = "import gcn_lpa, pkgutil; print(gcn_lpa.__file__, *[m.name for m in pkgutil.iter_modules()])"
    where, *modules = output([programs / "python", "-c", found], tmp_path).split()
    assert where.startswith(str(tmp_path / "venv"))
    assert EXTRAS & set(modules) <= {"triton"}  # CUDA builds of torch bring triton

    shutil.copytree(ROOT / "examples" / "club", tmp_path / "examples" / "club")
    commands = [one for text in blocks(README, "console") for one in session(text)]
    assert {shlex.split(command)[1] for command, _ in commands} >= {"train", "predict", "explain"}
    for command, shown in commands:
        program, *arguments = shlex.split(command)
        assert missing(shown, output([programs / program, *arguments], tmp_path).splitlines()) == [], command
