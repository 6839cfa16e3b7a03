"""The versions and the machine that a result belongs to."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import gcn_lpa
from gcn_lpa.data.json_files import encode_json
from gcn_lpa.runs import environment as module
from gcn_lpa.runs.environment import environment

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


def test_a_source_tree_without_metadata_has_the_version_of_its_pyproject(monkeypatch, tmp_path):
    """As where the package is found through PYTHONPATH; and "unknown" where it was copied without pyproject.toml."""

    def nothing_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing_installed)
    found = environment()
    assert (found["gcn_lpa"], found["torch"]) == (VERSION, "unknown")
    assert gcn_lpa.__getattr__("__version__") == VERSION
    monkeypatch.setattr(module, "__file__", str(tmp_path / "gcn_lpa" / "runs" / "environment.py"))
    assert environment()["gcn_lpa"] == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "7"\n')
    assert environment()["gcn_lpa"] == "unknown"
