"""A run folder before and while a run is trained: whose files are touched, and what a stopped training leaves."""

import json
import os
import shutil

import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.files import encode_json
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import RUN_FILES, load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.storage import CHECKPOINT, MANIFEST
from gcn_lpa.runs.train_run import (
    PLAN,
    CheckpointFolder,
    claimed,
    clear,
    is_finished,
    resume_run,
    train_run,
    unfinished_plan,
)

QUICK = {"epochs": 2, "hidden": 4, "edge_rank": 4}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]


def on_disk(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def planned(**options):
    return make_plan(Source("karate"), changes=QUICK, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train_run(*planned(), folder, device="cpu")
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A finished run, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


def refused_before_the_work(folder, complaint, **options):
    """Whether `train_run` refuses a folder, says so, and leaves it as it was, without an epoch."""
    before, epochs = on_disk(folder), []
    watch = lambda *stage: epochs.append  # noqa: E731
    with pytest.raises((ValueError, OSError), match=complaint):
        train_run(*planned(seed=1), folder, device="cpu", watch=watch, **options)
    return on_disk(folder) == before and not epochs


# whose files they are


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_of_somebody_else_is_refused_before_the_work(tmp_path, name):
    (tmp_path / name).write_text("mine")
    assert refused_before_the_work(tmp_path, f"{name} is not from a saved run and would be overwritten", overwrite=True)
    assert refused_before_the_work(tmp_path, f"{name} is not from a saved run and would be overwritten", resume=True)


@pytest.mark.parametrize("name", [MANIFEST, f"{CHECKPOINT}/{MANIFEST}", f"{CHECKPOINT}/fit/{MANIFEST}"])
def test_a_manifest_of_somebody_else_is_refused_before_the_work(run, name):
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text('{"name": "my web app"}')
    assert refused_before_the_work(run, "manifest.json: not a manifest: it names no format", overwrite=True)


@pytest.mark.parametrize("name", ["weights.pt", "fit/weights.pt", "fit/meta.json", "layers/checkpoint/weights.pt"])
def test_a_folder_of_checkpoints_of_somebody_else_is_refused_before_the_work(run, name):
    (run / CHECKPOINT / name).parent.mkdir(parents=True)
    (run / CHECKPOINT / name).write_text("mine")
    assert refused_before_the_work(run, "checkpoint is not from a run; choose another folder", overwrite=True)


@pytest.mark.parametrize("name", [CHECKPOINT, f"{CHECKPOINT}/another"])
def test_a_run_where_checkpoints_go_is_refused_before_the_work(finished, run, name):
    shutil.copytree(finished, run / name)
    assert refused_before_the_work(run, "checkpoint is not from a run; choose another folder", overwrite=True)


def test_files_that_are_not_in_the_way_are_left_alone(run):
    theirs = ["notes.txt", "plan.json", "data.json", "fold-2/checkpoint/weights.pt", "trees/checkpoint/meta.json"]
    for name in theirs:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    before = on_disk(run)
    train_run(*planned(seed=1), run, device="cpu", overwrite=True)
    after = on_disk(run)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == b"mine"} == set(theirs)
    assert after["model.safetensors"] != before["model.safetensors"]


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.long
def test_the_table_and_the_page_go_with_their_run_unless_somebody_changed_them(tmp_path):
    words = ["train", "karate", "--out", tmp_path / "run", *FLAGS]
    assert command(*words, "--report").exit_code == 0
    assert {"predictions.csv", "report.html"} < set(os.listdir(tmp_path / "run"))
    shutil.copytree(tmp_path / "run", tmp_path / "edited")
    assert command(*words, "--overwrite").exit_code == 0
    assert not {"predictions.csv", "report.html"} & set(os.listdir(tmp_path / "run"))
    table = tmp_path / "edited" / "predictions.csv"
    table.write_text("corrected by hand")
    assert command("predict", tmp_path / "edited").exit_code == 0  # the run can be read
    for more in (["--overwrite"], ["--resume", "--report"], ["--overwrite", "--report"]):
        refused = command(*["train", "karate", "--out", tmp_path / "edited", *FLAGS, *more])
        assert (refused.exit_code, table.read_text()) == (1, "corrected by hand")
        assert f"{table} was changed after saving and would be overwritten" in refused.stderr
    (tmp_path / "edited" / "report.html").unlink()
    assert command("report", "--quick", tmp_path / "edited").exit_code == 0
    (tmp_path / "edited" / "report.html").write_text("mine")
    refused = command("report", "--quick", tmp_path / "edited")
    assert (refused.exit_code, (tmp_path / "edited" / "report.html").read_text()) == (1, "mine")
    assert "report.html was changed after saving and would be overwritten" in refused.stderr


# a training that was stopped


def test_the_latest_checkpoint_is_the_last_one_saved(tmp_path):
    checkpoints = CheckpointFolder(tmp_path, "fit")
    assert checkpoints.latest() is None
    for epoch in (10, 20):
        checkpoints.save({"W": torch.full((2,), float(epoch))}, {"epoch": epoch, "best": 0.1})
    found = checkpoints.latest()
    assert (found.tensors["W"].tolist(), found.meta) == ([20.0, 20.0], {"epoch": 20, "best": 0.1})
    assert set(os.listdir(checkpoints.folder)) == {"tensors.safetensors", "meta.json", MANIFEST}
    assert CheckpointFolder(tmp_path, "fit-trees").latest() is None


@pytest.mark.parametrize(
    ("tensors", "meta", "complaint"),
    [
        ({"W": torch.tensor([1.0, float("nan")])}, {}, r"tensors\.safetensors: W holds numbers that are not finite"),
        ({}, [], r"meta\.json: it is \[\]; it is an object"),
    ],
)
def test_a_checkpoint_that_cannot_be_one_is_refused(tmp_path, tensors, meta, complaint):
    CheckpointFolder(tmp_path, "fit").save(tensors, meta)
    with pytest.raises(ValueError, match=complaint):
        CheckpointFolder(tmp_path, "fit").latest()


def test_a_plan_comes_back(tmp_path):
    plan, _ = planned(seed=4, split="stratified", checkpoint_every=7)
    assert unfinished_plan(tmp_path) is None
    storage.replace(tmp_path / CHECKPOINT, [(PLAN, encode_json(plan.to_dict()))])
    assert unfinished_plan(tmp_path) == plan
    with pytest.raises(ValueError, match="holds a checkpoint of a run that did not finish"):
        load_run(tmp_path)


def test_a_plan_that_was_changed_or_is_of_another_version_is_refused(tmp_path):
    plan, _ = planned()
    storage.replace(tmp_path / CHECKPOINT, [(PLAN, encode_json(plan.to_dict()))])
    path = tmp_path / CHECKPOINT / PLAN
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 7'))
    with pytest.raises(ValueError, match=r"plan\.json: sha256 .* changed after saving"):
        resume_run(tmp_path)
    storage.replace(tmp_path / CHECKPOINT, [(PLAN, encode_json({**plan.to_dict(), "seed": "3"}))])
    with pytest.raises(ValueError, match=r"plan\.json: seed is '3'; it is a whole number"):
        resume_run(tmp_path)
    storage.replace(tmp_path / CHECKPOINT, [("meta.json", b"{}")])
    with pytest.raises(ValueError, match=r"no plan that this version.*gcn-lpa train NAME_OR_FOLDER --out .* --overwrite"):
        resume_run(tmp_path)
    assert train_run(*planned(), tmp_path, device="cpu", overwrite=True).run.best_epoch > 0


def test_an_error_before_the_first_checkpoint_leaves_nothing_behind(tmp_path):
    plan, _ = planned()
    for folder, is_new in ((tmp_path / "new", True), (tmp_path, False)):
        with pytest.raises(ZeroDivisionError), claimed(folder, plan, resume=False, overwrite=False):
            assert unfinished_plan(folder) == plan
            raise ZeroDivisionError
        assert not on_disk(tmp_path) and folder.exists() != is_new
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, plan, resume=False, overwrite=False):
        CheckpointFolder(tmp_path, "fit").save({}, {"epoch": 1})
        raise ZeroDivisionError
    assert unfinished_plan(tmp_path) == plan
    clear(tmp_path)
    assert not on_disk(tmp_path)


def test_what_a_kill_leaves_of_a_plan_is_removed(run):
    """After the run was saved, and while its plan was being removed."""
    plan = load_run(run).plan
    before = on_disk(run)
    (run / CHECKPOINT).mkdir()
    hidden = run / CHECKPOINT / f".{'0' * 16}.new"
    hidden.mkdir()
    (hidden / PLAN).write_text("{}")
    assert is_finished(run, plan)
    assert on_disk(run) == before and not (run / CHECKPOINT).exists()
    (run / CHECKPOINT).mkdir()
    assert json.loads(encode_json(resume_run(run).plan.to_dict())) == plan.to_dict()
    assert not (run / CHECKPOINT).exists()
