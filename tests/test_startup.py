"""What a command imports before it works, and how it says that memory is lacking."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from gcn_lpa.cli.options import PlainCommand, out_of_memory

CLUB = Path(__file__).parents[1] / "examples" / "club"

# Prints, after the command's own output, which of the packages it has imported.
RUN = """
import sys
from gcn_lpa.cli.app import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
SLOW = ("torch", "torch._dynamo", "sympy", "sklearn", "scipy.stats", "networkx", "matplotlib")
print("imported", *[name for name in SLOW if name in sys.modules])
"""


def imported_by(*arguments):
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, cwd=CLUB.parents[1], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.long
def test_reading_training_and_predicting_import_torch_and_no_other_slow_package(tmp_path):
    assert imported_by("info", CLUB, "-o", "label=club") == ["torch"]
    assert imported_by("train", CLUB, "-o", "label=club", "--epochs", "2", "--out", tmp_path / "run") == ["torch"]
    assert imported_by("predict", tmp_path / "run") == ["torch"]


def test_the_help_and_a_mistyped_command_import_no_torch():
    assert imported_by("predict", "--help") == []
    mistyped = RUN.replace("end.code == 0", "end.code == 2")
    command = [sys.executable, "-c", mistyped, "predict", "--nothing"]
    done = subprocess.run(command, cwd=CLUB.parents[1], capture_output=True, text=True, check=True)
    assert done.stdout == "imported\n"


def too_much(make):
    """The error that a library raises when more memory is asked for than a machine can have."""
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        make(10**16)
    return caught.value


ON_GPU = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 2.1 GiB is free."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (too_much(torch.empty), "there is no memory for 35.5 PiB more; a smaller --hidden or fewer feature columns"),
        (too_much(np.empty), "there is no memory for 71.1 PiB more; a smaller --hidden or fewer feature columns"),
        (torch.OutOfMemoryError(ON_GPU), "the GPU has no memory for 20 GiB more; .* or --device cpu would help"),
        (RuntimeError(ON_GPU), "the GPU has no memory for 20 GiB more"),  # as it arrives from another process
        (MemoryError(), "there is no memory; a smaller --hidden"),
    ],
)
def test_an_error_about_memory_is_one_sentence_with_the_size_and_what_would_help(error, expected):
    app = typer.Typer()

    @app.command(cls=PlainCommand)
    def work() -> None:
        raise error

    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert re.match(f"gcn-lpa: {expected}", result.stderr)


def test_another_error_of_torch_is_a_mistake_of_ours_and_keeps_its_traceback():
    mistake = RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)")
    assert out_of_memory(mistake) is None
    app = typer.Typer()

    @app.command(cls=PlainCommand)
    def work() -> None:
        raise mistake

    assert CliRunner().invoke(app, []).exception is mistake
