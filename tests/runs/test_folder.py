"""The versions and the machine that a result belongs to, and where its data are."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

from typer.testing import CliRunner

import gcn_lpa
from gcn_lpa.cli.app import app
from gcn_lpa.data.files import encode_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source
from tests.helpers.ring_runs import folder_of

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


def test_a_run_finds_its_data_from_any_folder_and_after_both_have_moved(tmp_path, monkeypatch):
    (tmp_path / "project" / "runs").mkdir(parents=True)
    folder_of(tmp_path / "project", [f"n{k}" for k in range(12)])
    monkeypatch.chdir(tmp_path / "project")
    words = ["train", "--nodes", "data/nodes.csv", "--edges", "data/edges.csv", "--method", "lpa", "--out", "runs/one"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert load_run("runs/one").plan.source == Source("data/edges.csv", None, {"nodes": "data/nodes.csv"})
    monkeypatch.chdir(tmp_path / "project" / "runs")
    assert load_run("one").plan.source.name == str(Path("..", "data", "edges.csv"))
    (tmp_path / "project").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert load_run("moved/runs/one").graph.num_nodes == 12
    assert str(tmp_path) not in Path("moved/runs/one/run.json").read_text()


def test_an_option_named_like_a_file_may_be_a_number(tmp_path):
    """`labels` is a file of a folder, and of acm how many labels a class has."""
    source = Source("acm", None, {"labels": 20})
    assert source.seen_from(tmp_path) == source == source.found_from(tmp_path)
