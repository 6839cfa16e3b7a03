"""Features that stay in a file: the same answers as features in memory, and files that are refused."""

import dataclasses

import numpy as np
import pytest
import torch

from gcn_lpa.data.array_files import mapped_features
from gcn_lpa.data.read_folder import read_folder
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import batches_of, task_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.scale.planner import Size, estimate

N = 30
TRAIN, VAL = list(range(16)), list(range(16, 22))
RECIPES = {
    "raw": LAYERS.replace(features="raw"),
    "l2": LAYERS,
    "auto, with structure": DEFAULT.replace(members="", hidden=8),
}


@pytest.fixture
def folder(tmp_path):
    nodes = "".join(f"n{i},{'ab'[i % 2]},{i}\n" for i in range(N))
    edges = "".join(f"n{i},n{(i + step) % N}\n" for i in range(N) for step in (1, 2))
    (tmp_path / "nodes.csv").write_text(f"id,label,place\n{nodes}")
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}")
    return tmp_path


def numbers(dtype=np.float32):
    return np.random.default_rng(0).normal(size=(N, 5)).astype(np.float16).astype(dtype)


@pytest.mark.parametrize("clusters", [0, 2])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_of_a_file_give_the_answers_of_those_in_memory(folder, dtype, name, clusters):
    if clusters:
        pytest.importorskip("pymetis")
    given = dataclasses.replace(read_folder(folder, features="identity"), x=torch.from_numpy(numbers()), x_kind="given")
    np.save(folder / "features.npy", numbers(dtype))
    mapped = read_folder(folder)
    assert mapped.mapped and mapped.x.dtype == (torch.float16 if dtype == np.float16 else torch.float32)
    assert any("the 5 columns of features.npy" in note for note in mapped.notes)
    recipe = RECIPES[name].replace(epochs=3, clusters=clusters)
    said = [predict_proba(learn(one, TRAIN, VAL, recipe, device="cpu"), one, raw=True) for one in (mapped, given)]
    assert torch.equal(*said)
    task = task_of(mapped, TRAIN, VAL, recipe)
    for batch in batches_of(task.prepared, task.train, recipe):
        if clusters:  # a cluster keeps no features
            assert batch.graph.num_features == 0 and batch.stored is task.prepared.x
            assert torch.equal(batch.read().x, task.prepared.x[batch.node_ids])
        else:
            assert batch.read() is batch.graph


def test_a_run_reads_features_of_16_bits_again(folder, tmp_path):
    np.save(folder / "features.npy", numbers(np.float16))
    plan, graph = make_plan(Source(str(folder)), changes={"epochs": 2, "members": ""})
    train_run(plan, graph, tmp_path / "run", device="cpu")
    again = load_run(tmp_path / "run").graph
    assert torch.equal(again.x, graph.x) and not any("no features" in note for note in graph.notes)


def test_the_file_is_never_written_to(folder):
    np.save(folder / "features.npy", numbers())
    before = (folder / "features.npy").read_bytes()
    mapped_features(folder / "features.npy", N).zero_()
    assert (folder / "features.npy").read_bytes() == before


def test_the_plan_counts_no_features_that_are_files(folder):
    np.save(folder / "features.npy", numbers())
    size = Size.of(read_folder(folder))
    assert estimate(size, LAYERS).features == 0
    assert estimate(dataclasses.replace(size, mapped=False), LAYERS).features == 2 * N * 5 * 4  # raw and scaled


WRONG = {
    "float64": (numbers(np.float64), "float64 of shape"),
    "too few rows": (numbers()[:7], "has 7 rows, but there are 30 nodes"),
    "one dimension": (numbers().ravel(), r"of shape \(150,\)"),
    "columns first": (np.asfortranarray(numbers()), "row by row"),
    "objects": (np.array([["a", None]] * N, dtype=object), "is refused: it is not a .npy file of numbers"),
    "not finite": (np.where(np.eye(N, 5, -3) > 0, np.nan, numbers()), "row 3, column 0 is nan"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_table_of_numbers_is_refused(name, folder):
    array, words = WRONG[name]
    np.save(folder / "features.npy", array.astype(np.float32) if name == "not finite" else array)
    with pytest.raises(ValueError, match=words):
        read_folder(folder)


def test_a_file_that_was_cut_off_or_is_none_is_refused(folder):
    np.save(folder / "features.npy", numbers())
    whole = (folder / "features.npy").read_bytes()
    for part in (whole[:-1], whole[:50], b"", b"id,label"):
        (folder / "features.npy").write_bytes(part)
        with pytest.raises(ValueError, match=r"features\.npy is refused: it is not a \.npy file"):
            read_folder(folder)


def test_columns_beside_the_file_are_not_named(folder):
    np.save(folder / "features.npy", numbers())
    with pytest.raises(ValueError, match=r"holds the features, .*: name no columns beside it"):
        read_folder(folder, features="place")


def test_columns_of_a_table_are_not_taken_for_those_of_the_file(folder):
    np.save(folder / "features.npy", numbers())
    trained = learn(read_folder(folder), TRAIN, VAL, RECIPES["raw"].replace(epochs=2), device="cpu")
    (folder / "features.npy").unlink()
    nodes = "".join(f"n{i},{'ab'[i % 2]},{','.join(str(i + k + 0.5) for k in range(5))}\n" for i in range(N))
    (folder / "nodes.csv").write_text(f"id,label,a,b,c,d,e\n{nodes}")
    with pytest.raises(ValueError, match=r"trained on an array of features, such as features.npy, .* read from columns"):
        predict_proba(trained, read_folder(folder))


def test_a_model_of_columns_says_that_the_file_is_in_the_way(folder):
    columns = read_folder(folder, features="place").columns
    np.save(folder / "features.npy", numbers())
    with pytest.raises(ValueError, match=r"was trained on columns of nodes.csv: take features.npy away, or train on it"):
        read_folder(folder, columns=columns)


def test_how_to_write_the_file_is_said(folder):
    np.save(folder / "features.npy", numbers(np.float64))
    with pytest.raises(ValueError, match=r'float64 .* write it with np.save\(path, np.ascontiguousarray\(x, "float32"\)\)'):
        read_folder(folder)
