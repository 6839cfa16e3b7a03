"""Run folders of strangers: whoever changes a file can also write new checksums, so what the files say is checked."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.learning.learn import learn
from gcn_lpa.recipes import LAYERS
from gcn_lpa.runs.folder import RUN_FILES, load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import predict_run
from gcn_lpa.runs.storage import CHECKPOINT, listed, replace
from gcn_lpa.runs.train_run import PLAN, CheckpointFolder, resume_run, train_run
from gcn_lpa.train import Watch
from gcn_lpa.trained import Trained
from tests.helpers.changed_folders import changed, entry, made, made_in, put, resign, without

SETTINGS = {"edges": "free", "features": "tfidf", "hidden": 4, "epochs": 3, "loss": "held_out"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with everything a folder can hold: TF-IDF, tied edge weights, a calibration, out-of-fold answers."""
    place = tmp_path_factory.mktemp("strangers")
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(40)]
    nodes = pandas.DataFrame(rng.poisson(1.0, (40, 3)), columns=["a", "b", "c"]).assign(id=names)
    nodes["label"] = ["yes" if i % 2 else "no" for i in range(36)] + [""] * 4
    nodes.to_csv(place / "nodes.csv", index=False)
    ends = rng.integers(0, 40, (90, 2))
    pandas.DataFrame([[names[i], names[j]] for i, j in ends], columns=["source", "target"]).to_csv(place / "edges.csv", index=False)
    plan, graph = make_plan(Source(str(place)), changes=SETTINGS)
    train_run(plan, graph, place / "run", device="cpu")
    return place / "run"


DATES = {"kind": "date", "name": "a", "form": "ISO 8601", "mean": 0, "deviation": 1, "cycles": ["decade"]}
NAN, FAR = float("nan"), 2_000_000_000
W, FREE, EDGES = "members.0.0.body.perceptron.weights.0", "members.0.0.edges.weight", "members.0.0.edges._extra_state"
SCORES = "results", "scores"
TINY = {"temperature": 1e-320, "slope": 1.0, "intercept": 0.0}

CHANGES = {
    "model: NaN": ("model.safetensors", made(W, entry(0, NAN)), f"{W} holds numbers that are not"),
    "model: a row less": ("model.safetensors", made(W, lambda w: w[1:]), "size mismatch"),
    "model: another type": ("model.safetensors", made(W, torch.Tensor.double), "is of torch.float64"),
    "model: a tensor less": ("model.safetensors", without(W), "Missing key"),
    "model: a tensor more": ("model.safetensors", put("more", torch.zeros(3)), "Unexpected key"),
    "model: too few edges": ("model.safetensors", made(FREE, lambda w: w[:-1]), "it does not have one weight for each edge"),
    "model: edges cut": ("model.safetensors", made(EDGES, lambda s: s[:-3]), "'free' keeps one weight"),
    "model: other edges": ("model.safetensors", made(EDGES, entry(0, 0)), "'free' keeps one weight"),
    "labels: beyond the classes": ("labels.safetensors", made("y", entry(0, 2)), "beyond the 2"),
    "labels: other ones": ("labels.safetensors", made("y", lambda y: 1 - y), "not those of the graph"),
    "labels: one less": ("labels.safetensors", made("y", lambda y: y[:-1]), "not those of the 36 nodes"),
    "labels: not learned from": ("labels.safetensors", made("trains", torch.logical_not), "that run.json names"),
    "labels: idf too short": ("labels.safetensors", made("idf", lambda idf: idf[:-1]), "each of the 3 columns"),
    "labels: idf NaN": ("labels.safetensors", made("idf", entry(0, NAN)), "each of the 3 columns"),
    "labels: no idf": ("labels.safetensors", without("idf"), "idf goes with features 'tfidf'"),
    "labels: no y": ("labels.safetensors", without("y"), "not as gcn-lpa writes it"),
    "out of fold: node": ("labels.safetensors", made("held_out.node", entry(0, FAR)), "positions, each after the last"),
    "out of fold: fold": ("labels.safetensors", made("held_out.fold", entry(0, -1)), "fold is not a number"),
    "out of fold: NaN": (
        "labels.safetensors",
        made("held_out.probability", entry(0, NAN)),
        "36 rows of 2 probabilities",
    ),
    "out of fold: above 1": ("labels.safetensors", made("held_out.probability", entry(0, 7.0)), "36 rows of 2"),
    "out of fold: one less": ("labels.safetensors", without("held_out.fold"), "fold goes with a cross-validation"),
    "out of fold: protocol": ("trained.json", put("held_out", "guess"), "held_out is 'guess'; it is one of cross-val"),
    "split: a node less": (
        "run.json",
        made_in("split", "nodes", lambda nodes: nodes[1:]),
        "digit from 0 to 4 for each",
    ),
    "split: another digit": ("run.json", made_in("split", "nodes", lambda nodes: f"9{nodes[1:]}"), "digit from 0 to 4"),
    "split: no digits": ("run.json", made_in("split", "nodes", lambda nodes: f"²{nodes[1:]}"), "digit from 0 to 4"),
    "split: another one": (
        "run.json",
        made_in("split", "nodes", lambda nodes: f"0{nodes[1:]}"),
        "hash of the split is",
    ),
    "trained: other seed": ("trained.json", put("seed", 5), "seed is 5, but run.json says 0"),
    "trained: columns": ("trained.json", put("num_columns", 4), "columns make 3 features, not 4"),
    "trained: no columns": ("trained.json", put("num_columns", 0), "num_columns is 0; it is at least 1"),
    "recipe: features": ("recipe.json", put("features", "l2"), "idf goes with features 'tfidf'"),
    "trained: kind of features": ("trained.json", put("x_kind", "none"), "x_kind is 'none'; it is one of given"),
    "trained: one class less": (
        "trained.json",
        put("class_names", ["no"]),
        "beyond the 1 classes, .no. of trained.json",
    ),
    "trained: a class twice": ("trained.json", put("class_names", ["no", "no"]), "names a class twice"),
    "trained: other class names": ("trained.json", put("class_names", ["yes", "no"]), "not those of the graph"),
    "columns: decimal": (
        "trained.json",
        put("columns", 0, "decimal", ";"),
        "column 'a': decimal is ';'; it is one of . ,",
    ),
    "columns: cycles": ("trained.json", put("columns", 0, DATES), "column 'a': cycles are .*; there are month"),
    "columns: deviation": (
        "trained.json",
        put("columns", 0, {**DATES, "cycles": [], "deviation": 1e-320}),
        "are no days since",
    ),
    "trained: one node less": ("trained.json", made("nodes", lambda nodes: nodes[1:]), "not those of the 35 nodes"),
    "trained: a node twice": ("trained.json", put("nodes", 0, "n1"), "names a node twice"),
    "trained: a node that is a list": ("trained.json", put("nodes", 0, ["n0"]), r"nodes holds \['n0'\]"),
    "trained: a node without a name": ("trained.json", put("nodes", 0, None), "nodes holds None; a node is named by"),
    "trained: another node": ("trained.json", put("nodes", 0, "n39"), "nodes that run.json names"),
    "recipe: method": ("recipe.json", put("method", "magic"), "unknown method 'magic'; there are mlp"),
    "recipe: another method": ("recipe.json", put("method", "jk-net"), "Missing key"),
    "recipe: dropout": ("recipe.json", put("dropout", 2.0), r"dropout = 2.0; it is in \[0, 1\)"),
    "recipe: a tiny share": ("recipe.json", put("lpa_ratio", 1e-320), "lpa_ratio = 1e-320; it is 0, or at least 1e-09"),
    "recipe: width": ("recipe.json", put("hidden", 5), "size mismatch"),
    "history: not numbered": ("trained.json", put("history", 0, "epoch", 7), "the epochs are not numbered 1, 2"),
    "history: no epochs": ("trained.json", put("history", []), "it has 0 epochs, but the best is"),
    "run: seed": ("run.json", put("plan", "seed", -1), "seed = -1; it is at least 0"),
    "run: reserve": ("run.json", put("plan", "reserve", 1.5), r"reserve = 1.5; it is a share"),
    "scores: confusion": ("run.json", put(*SCORES, "confusion", [[1]]), "not one of 2 classes"),
    "scores: no classes": ("run.json", put(*SCORES, "per_class", {}), "not one of 0 classes"),
    "scores: accuracy": ("run.json", put(*SCORES, "accuracy", -1), "accuracy = -1.0; it is a share, 0 to 1"),
    "scores: recall": ("run.json", put(*SCORES, "per_class", "no", "recall", 2), "recall = 2.0; it is a share"),
    "scores: a fold": (
        "run.json",
        put("results", "folds", 0, 7),
        "the accuracy of a fold is 7.0; it is between 0 and 1",
    ),
    "scores: protocol": ("run.json", put("results", "protocol", "guess"), "protocol is 'guess'; it is one of test"),
    "calibration: temperature": (
        "trained.json",
        put("calibration", "calibrator", TINY),
        "temperature = 1e-320; it is above 0, from",
    ),
    "weights: negative": (
        "trained.json",
        put("weights", "weights", 0, -1.0),
        r"weights\[0\] = -1.0; it is a number, 0 or",
    ),
    "weights: an exponent less": (
        "trained.json",
        made_in("weights", "exponents", lambda e: e[1:]),
        "each weight has one",
    ),
    "weights: too many experts": ("trained.json", put("weights", "num_members", 99), "num_members = 99; of"),
}
NAMED_ELSEWHERE = {  # the file that is refused, where it is not the one that was changed
    "trained: one class less": "labels.safetensors",
    "trained: other class names": "labels.safetensors",
    "trained: one node less": "labels.safetensors",
    "trained: another node": "labels.safetensors",
    "recipe: features": "labels.safetensors",
    "recipe: another method": "model.safetensors",
    "recipe: width": "model.safetensors",
}


def test_a_folder_that_is_signed_anew_and_not_changed_is_read(run, tmp_path):
    folder = changed(run, tmp_path / "run", "run.json", lambda facts: facts)
    assert predict_run(load_run(folder)).equals(predict_run(load_run(run)))


def test_a_run_writes_no_file_that_was_not_looked_for_before(run):
    assert set(listed(run)) <= set(RUN_FILES)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_refused_in_one_sentence_that_names_it(run, tmp_path, name):
    file, change, complaint = CHANGES[name]
    folder = changed(run, tmp_path / "run", file, change)
    with pytest.raises(ValueError, match=complaint) as caught:
        load_run(folder)
    assert str(caught.value).startswith(str(folder / NAMED_ELSEWHERE.get(name, file)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["trained.json", "recipe.json", "run.json"])
def test_a_file_that_says_something_else_is_named(run, tmp_path, name):
    for k, text in enumerate(['{"magic": 1}', "[1]", '["\\ud800"]', "[" * 10_000]):
        folder = tmp_path / str(k)
        shutil.copytree(run, folder)
        (folder / name).write_text(text)
        resign(folder)
        with pytest.raises(ValueError, match=r"it has|it is|columns|not valid JSON") as caught:
            load_run(folder)
        assert str(caught.value).startswith(str(folder / name))


def test_the_file_is_named_once_where_a_folder_is_named_like_the_sentence(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = changed(run, Path("t"), "run.json", put("plan", "seed", -1))
    with pytest.raises(ValueError, match=r"^t/run\.json: seed = -1"):
        load_run(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=r"^run\.json: seed = -1"):
        load_run(".")


@pytest.mark.parametrize("kind", ["given", "identity"])
def test_a_number_of_columns_that_no_memory_could_hold_is_refused(karate, tmp_path, kind):
    graph = dataclasses.replace(karate, x_kind=kind)
    learn(graph, [0, 33], [], LAYERS.replace(features="raw", epochs=1), device="cpu").save_pretrained(tmp_path / "model")
    folder = changed(tmp_path / "model", tmp_path / "changed", "trained.json", put("num_columns", 10**12))
    with pytest.raises(ValueError, match="size mismatch") as caught:
        Trained.from_pretrained(folder)
    assert str(caught.value).startswith(str(folder / "model.safetensors"))


def test_votes_weighed_for_another_model_are_refused(run, tmp_path):
    def one_more(facts):
        facts["weights"]["weights"].append(0.0)
        facts["weights"]["exponents"].append(1.0)

    folder = changed(run, tmp_path / "run", "trained.json", one_more)
    with pytest.raises(ValueError, match=r"^the weights are those of 6 members and 5 label votes, but this ensemble has 6 and 4"):
        predict_run(load_run(folder))


CHECKPOINTS = {
    "a row less": ("tensors.safetensors", made("model.body.weights.0", lambda w: w[1:]), r"is \(.*; it is \("),
    "another type": (
        "tensors.safetensors",
        made("best.body.weights.0", torch.Tensor.double),
        "of torch.float64; it is",
    ),
    "a weight less": ("tensors.safetensors", without("model.body.weights.1"), "model.body.weights.1 is missing"),
    "a best weight less": ("tensors.safetensors", without("best.body.weights.1"), "best.body.weights.1 is missing"),
    "a tensor more": ("tensors.safetensors", put("more", torch.zeros(3)), "more is not of this training"),
    "NaN": ("tensors.safetensors", made("model.body.weights.0", entry(0, NAN)), "holds numbers that are not finite"),
    "another epoch": ("tensors.safetensors", put("epoch", torch.tensor([7])), "epoch is 7, after 2 in meta.json"),
    "no best epoch": ("meta.json", put("best_epoch", 0), "best_epoch is 0, of 2 epochs"),
    "a best epoch to come": ("meta.json", put("best_epoch", 3), "best_epoch is 3, of 2 epochs"),
    "a phase too many": ("meta.json", put("phase", 1), "phase is 1; training 'joint' has phases 0 to 0"),
    "an epoch twice": ("meta.json", put("history", 1, "epoch", 1), "not numbered 1, 2"),
    "a loss of text": ("meta.json", put("history", 0, "loss", "low"), r"history\[0\].loss is 'low'; it is a number"),
    "no history": ("meta.json", without("history"), "it has no field 'history'"),
    "no fingerprint": ("meta.json", without("of"), "it has no field 'of'"),
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A checkpoint of a training that was stopped in its third epoch."""
    folder = tmp_path_factory.mktemp("unfinished")
    go_on(folder, stop_at_3)
    return folder


def go_on(folder, on_epoch=None):
    plan, graph = make_plan(Source("karate"), changes={**SETTINGS, "features": "raw", "members": "", "epochs": 6})
    watch = Watch(on_epoch=on_epoch, checkpoints=lambda name: CheckpointFolder(folder, "fit"), every=2, resume=True)
    return learn(graph, [0, 1, 32, 33], [2, 30], plan.recipe, device="cpu", watch=watch)


def stop_at_3(_, epoch):
    if epoch.epoch == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_changed_checkpoint_is_refused_in_one_sentence_that_names_its_file(unfinished, tmp_path, name):
    file, change, complaint = CHECKPOINTS[name]
    changed(unfinished / CHECKPOINT / "fit", tmp_path / CHECKPOINT / "fit", file, change)
    with pytest.raises(ValueError, match=complaint) as caught:
        go_on(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / CHECKPOINT / "fit" / file))
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_is_signed_anew_and_not_changed_is_gone_on_with(unfinished, tmp_path):
    changed(unfinished / CHECKPOINT / "fit", tmp_path / CHECKPOINT / "fit", "meta.json", lambda meta: meta)
    resumed, whole = go_on(tmp_path), go_on(tmp_path / "whole")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


def test_a_file_of_noise_is_named(run, tmp_path):
    for name in ("model.safetensors", "labels.safetensors", "trained.json"):
        folder = tmp_path / name
        shutil.copytree(run, folder)
        (folder / name).write_bytes(os.urandom(200))
        resign(folder)
        with pytest.raises(ValueError, match=r"not a safetensors file|not valid JSON") as caught:
            load_run(folder)
        assert str(caught.value).startswith(str(folder / name))


def test_a_folder_without_a_run_in_it_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    resign(tmp_path / "run")
    with pytest.raises(ValueError, match=r"manifest\.json does not list run\.json"):
        load_run(tmp_path / "run")


# links


def test_a_link_to_a_run_folder_is_the_users_own_affair(run, tmp_path):
    (tmp_path / "here").symlink_to(run)
    assert predict_run(load_run(tmp_path / "here")).equals(predict_run(load_run(run)))


@pytest.mark.parametrize("place", [CHECKPOINT, f"{CHECKPOINT}/fit"])
def test_a_checkpoint_that_is_a_link_is_neither_read_nor_written(tmp_path, place):
    elsewhere = CheckpointFolder(tmp_path / "elsewhere", "fit")
    elsewhere.save({"W": torch.ones(2)}, {"epoch": 1})
    (tmp_path / "run" / place).parent.mkdir(parents=True)
    (tmp_path / "run" / place).symlink_to(tmp_path / "elsewhere" / place)
    before = {path.name: path.read_bytes() for path in elsewhere.folder.iterdir()}
    linked = CheckpointFolder(tmp_path / "run", "fit")
    plan, graph = make_plan(Source("karate"), changes={"epochs": 2})
    acts = (
        linked.latest,
        lambda: linked.save({}, {"epoch": 2}),
        lambda: train_run(plan, graph, tmp_path / "run", device="cpu", overwrite=True),
    )
    for act in acts:
        with pytest.raises(ValueError, match=f"{Path(place).name} is a link"):
            act()
    assert {path.name: path.read_bytes() for path in elsewhere.folder.iterdir()} == before


def test_a_plan_that_is_a_link_is_not_read(tmp_path):
    replace(tmp_path / CHECKPOINT, [(PLAN, b"{}")])
    (tmp_path / CHECKPOINT / PLAN).rename(tmp_path / "elsewhere")
    (tmp_path / CHECKPOINT / PLAN).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"plan\.json is a link"):
        resume_run(tmp_path)


# another format


def test_a_folder_of_another_format_is_refused(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    resign(folder, number=1)
    for command in ("predict", "evaluate", "train --resume --out", "explain --all", "calibrate"):
        refused = CliRunner().invoke(app, [*command.split(), str(folder)])
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert (
            "format 1, but this version of gcn-lpa reads format 2; train it anew, in another folder or after removing this one"
        ) in refused.stderr
