"""Triton on a GPU where there is one, else through its interpreter, which is switched on here before triton is imported."""

import subprocess
import sys

import pytest
import torch

from tests.helpers.reference_kernels import use_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
with pytest.MonkeyPatch.context() as patch:
    if DEVICE == "cpu":
        patch.setenv("TRITON_INTERPRET", "1")  # read when triton, and when a kernel, is imported
    tl = pytest.importorskip("triton.language", reason="triton has no wheel for this system")
    from gcn_lpa.engine import gpu_kernels, gpu_programs

KERNELS = (tl.sum, gpu_programs.mix)
READY = DEVICE == "cuda" or all(type(kernel).__name__ == "InterpretedFunction" for kernel in KERNELS)


@pytest.fixture(autouse=True)
def triton(request, monkeypatch):
    if not READY and request.node.name != test_in_a_process_of_their_own.__name__:
        pytest.skip("triton was imported before its interpreter could be switched on: runs in a process of its own")
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with use_kernels(gpu_kernels):
        yield


def test_in_a_process_of_their_own(request):
    """Where another module (PyG does) has imported triton too early, all tests of this file run in a new process."""
    if not READY:
        command = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            request.config.option.markexpr,
            request.node.path,
        ]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert " passed" in done.stdout
