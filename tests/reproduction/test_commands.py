"""The study from the command line: `python -m reproduction`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproduction import commands, reproduce

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(commands.app, [str(argument) for argument in arguments])


def test_every_part_of_the_study_is_a_command():
    assert tuple(commands.PARTS) == reproduce.NAMES
    shown = run("--help").stdout
    assert all(name in shown for name in (*commands.PARTS, "bench", "measure"))
    wrong = run("tabel2")
    assert (wrong.exit_code, "tabel2" in wrong.stderr) == (2, True)


def test_results_go_to_a_folder_that_git_does_not_keep():
    assert "[default: build/study]" in " ".join(run("table2", "--help").stdout.split())
    assert "/build/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_table_is_kept_in_the_folder(tmp_path):
    made = run("table4", "--out", tmp_path, "--device", "cpu")
    assert (made.exit_code, made.stderr) == (0, "table4 …\n")
    assert made.stdout.startswith("# Table 4: the settings\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table4.json", "table4.md"]
    made, kept = (json.loads((folder / "table4.json").read_text())["data"] for folder in (tmp_path, ROOT / "results"))
    assert made.keys() == kept.keys()
    for dataset, settings in kept.items():  # a field that was added since is off, and not of the hash
        assert settings == {field: made[dataset][field] for field in settings}


@pytest.mark.parametrize("name", ["figure1", "theorems"])
def test_a_part_that_trains_by_recipes_of_the_library_is_made(name, tmp_path):
    made = run(name, "--quick", "--out", tmp_path, "--device", "cpu")
    assert (made.exit_code, made.stderr) == (0, f"{name} …\n")
    assert {f"{name}.md", f"{name}.json"} <= {path.name for path in tmp_path.iterdir()}


def test_a_model_is_trained_to_be_measured():
    made = run("measure", "karate", "--check", "theorem-1")
    assert (made.exit_code, "learned weights [karate]" in made.stdout) == (0, True)


def test_a_failure_is_one_line(tmp_path):
    wrong = run("figure3", "--dataset", "cora", "--out", tmp_path / "out", "--device", "cpu")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("gcn-lpa: figure3 is about citeseer; with --dataset cora nothing is left of it")


@pytest.mark.long
def test_the_trainings_are_listed_and_methods_skipped(tmp_path):
    where = ["--device", "cpu", "--out", tmp_path]
    lines = json.loads(run("table3", "--plan", "--json", *where).stdout)
    assert sum(line["left"] for line in lines) == sum(line["trainings"] for line in lines) == 2 * 6 * 10
    assert run("table3", "--plan", *where).stdout.splitlines()[-1] == "120 of 120 trainings are left"
    none = run("table3", "--minutes", 1, "--skip", "gcn-lpa", *where)
    assert none.stdout == "0 trainings are left; the same command goes on\n"
    wrong = run("table3", "--skip", "gcn-lpa")
    assert (wrong.exit_code, "--skip goes with --plan or --minutes" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("device", "said"), [("foo", "unknown device 'foo'"), ("cuda", "torch sees no GPU")])
def test_a_device_that_is_not_there_is_one_line(device, said, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("bench", "kernels", "--device", device)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


@pytest.mark.parametrize("sizes", ["inf", "x", "nan", "", "100,", "0", "-5"])
def test_sizes_that_are_no_numbers_of_nodes_are_mistyped(sizes):
    result = run("bench", "kernels", f"--sizes={sizes}", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"sizes is {sizes!r}" in result.stderr


@pytest.mark.long
def test_it_is_a_module_to_run_and_the_library_does_not_know_it(tmp_path):
    made = [sys.executable, "-m", "reproduction", "-q", "table4", "--json", "--out", str(tmp_path), "--device", "cpu"]
    done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[0]["name"] == "table4"
    knows = "import sys, gcn_lpa.cli.app, gcn_lpa.estimator, gcn_lpa.insight.tune; print('reproduction' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", knows], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"
