"""The versions and the machine that a result belongs to."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import gcn_lpa
from gcn_lpa.data.files import encode_json
from gcn_lpa.engine.devices import environment

VERSION = tomllib.loads((Path(gcn_lpa.__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]


def test_the_environment_is_the_one_we_run_in():
    import numpy
    import torch

    found = environment()
    assert found["gcn_lpa"] == VERSION
    assert found["python"] == sys.version.split()[0]
    assert (found["torch"], found["numpy"]) == (torch.__version__, numpy.__version__)
    assert found["threads"] == torch.get_num_threads()
    assert (found["cuda_device"] is None) != torch.cuda.is_available()
    encode_json(found)


def test_a_copy_that_nobody_installed_has_no_version(monkeypatch):
    def nothing_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing_installed)
    monkeypatch.setitem(vars(gcn_lpa), "__version__", "")  # the answer is kept: it goes with this test
    assert gcn_lpa.__getattr__("__version__") == "unknown"
