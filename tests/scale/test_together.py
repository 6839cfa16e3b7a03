"""Several processes train as one: the same losses, gradients, weights and classes, whatever the cut."""

import dataclasses
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.data.splits import Split, split
from gcn_lpa.graph import Graph
from gcn_lpa.learning.tasks import Batch, Validation
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import predict_run, table_text
from gcn_lpa.runs.train_run import CheckpointFolder, train_run
from gcn_lpa.scale.partition import WAYS, owners, read_facts, read_part, write_partition
from gcn_lpa.scale.planner import Size, estimate
from gcn_lpa.scale.together import Order, require_in_parts
from gcn_lpa.train import World
from tests.helpers.changed_folders import changed, entry, made, without
from tests.helpers.rank_jobs import (
    commanded,
    ended,
    in_type,
    keep_saving,
    on_ranks,
    started,
    trained,
    trained_parts,
    wait_for,
    whole_training,
)

ROOT = Path(__file__).parents[2]
STEPS = 20
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
PAPER_LIKE = Recipe(
    **{"edges": "free", "loss": "literal", "features": "row", "residual": False, "hidden": 8, "gcn_layers": 3},
    **{"lpa_iterations": 4, "lpa_weight": 2.0, "dropout": 0.3, "lr": 0.02},
)  # no edge_dropout: the gradient of a free weight whose edge is left out is rounding, which Adam divides by its ε
SMALL_DEFAULT = DEFAULT.replace(votes=False, members="", hidden=8, edge_rank=4, propagation_steps=3, lr=0.02)
RECIPES = {
    "free": PAPER_LIKE,
    "fixed": PAPER_LIKE.replace(edges="fixed", loss="official", normalization="symmetric", edge_dropout=0.1),
    "default": SMALL_DEFAULT.replace(class_weights="balanced"),
    "hops": SMALL_DEFAULT.replace(
        **{"edges": "gat", "normalization": "row", "edge_dropout": 0.2},
        **{"loss": "held_out", "lpa_iterations": 3, "lpa_ratio": 0.7},
    ),
    "bilinear": PAPER_LIKE.replace(edges="bilinear", loss="influence"),
    "geniepath": PAPER_LIKE.replace(edges="geniepath", edge_rank=4, lpa_iterations=2),
    "two steps": PAPER_LIKE.replace(edges="cosine", edge_rank=4, training="two_step"),
    "lpa": Recipe(method="lpa", propagation_steps=6),
}


def block_graph(*, sparse=False):
    """90 nodes in three blocks, some without edges, some without labels; weights, and a feature that is skewed."""
    rng = np.random.default_rng(4)
    block = np.arange(90) % 3
    chance = np.where(block[:, None] == block[None, :], 0.12, 0.02)
    source, target = np.nonzero(np.triu(rng.random((90, 90)) < chance, 1))
    keep = (source < 87) & (target < 87)
    x = rng.random((90, 6)) + np.eye(3).repeat(2, axis=1)[block]
    x[:, 5] = np.exp(3 * x[:, 5])
    if sparse:
        x = scipy.sparse.csr_array(x * (rng.random(x.shape) < 0.4))
    y = np.where(np.arange(90) % 7 == 6, -1, block)
    edges = np.stack([source, target], axis=1)[keep]
    return Graph.from_edges(edges, weights=rng.random(keep.sum()) + 0.5, num_nodes=90, x=x, y=y, name="blocks")


def split_of(graph):
    number, labeled = torch.arange(graph.num_nodes) % 5, graph.labeled
    return Split(labeled & (number < 3), labeled & (number == 3), labeled & (number == 4), "uniform", 0)


def uneven(parts):
    """The owner of each node: part k has more nodes than part k - 1, and the last has no training node near its end."""
    sizes = np.arange(1, parts + 1)
    return np.searchsorted(np.cumsum(sizes) / sizes.sum(), (np.arange(90) * 7 % 90 + 0.5) / 90)


def alone(graph, recipe, dtype):
    parts = split_of(graph)
    prepared = in_type(recipe.prepare(graph.reveal(parts.train)), dtype)
    val = parts.val.nonzero().squeeze(1)
    batch = Batch(prepared, parts.train.nonzero().squeeze(1))
    return {
        **trained(batch, Validation(prepared, val, graph.y[val], len(val)), recipe, dtype, STEPS, World()),
        "graph": prepared,
    }


def gaps(one, ranks):
    """How far what the ranks found is from what one process did: of gradients and of weights max|Δ| / max|w|.

    Free weights are compared edge by edge.
    """
    graph, found = one["graph"], {"history": 0.0, "gradients": 0.0, "weights": 0.0}
    place = {tuple(edge): k for k, edge in enumerate(torch.stack([graph.row, graph.col]).T.tolist())}
    for rank in ranks:
        assert torch.equal(rank["classes"], one["classes"][rank["ids"]])
        assert rank["best_epoch"] == one["best_epoch"]
        for line, expected in zip(rank["history"], one["history"], strict=True):
            assert [value is None for value in line] == [value is None for value in expected]
            pairs = [(a, b) for a, b in zip(line, expected, strict=True) if b is not None]
            found["history"] = max(found["history"], *(abs(a - b) / max(1, abs(b)) for a, b in pairs))
        mine = torch.tensor([place[tuple(edge)] for edge in rank["edges"].T.tolist()])
        for kind in ("gradients", "weights"):
            assert rank.get(kind, {}).keys() == one.get(kind, {}).keys()
            largest = max((float(whole.abs().max()) for whole in one.get(kind, {}).values()), default=1.0)
            for name, whole in one.get(kind, {}).items():
                expected = whole[mine] if name == "edges.weight" else whole
                found[kind] = max(found[kind], float((rank[kind][name] - expected).abs().max()) / largest)
    return found


def expected_bytes(graph, recipe, rank, dtype):
    """What the planner says that a rank receives in all steps, and the degrees of given edges, which come once."""
    if recipe.method == "lpa":  # one validation
        return rank["halo"] * recipe.propagation_steps * graph.num_classes * dtype.itemsize
    size = Size.of(graph)
    size = dataclasses.replace(size, nodes=len(rank["ids"]), halo=rank["halo"], read=rank["read"])
    if recipe.training == "two_step":
        return rank["received"]  # the planner's is joint training
    once = rank["halo"] if recipe.normalization == "symmetric" and recipe.edges == "fixed" else 0
    return (STEPS * estimate(size, recipe).received / 4 + once) * dtype.itemsize


def measured(parts, folder, names):
    """The gaps between so many ranks and one process, for recipes and types; bytes are as the planner says."""
    graph = block_graph(sparse=parts == 3)
    write_partition(folder, graph, Source("blocks"), uneven(parts), split_of(graph))
    answers = on_ranks(parts, trained_parts, [(folder, RECIPES[name], dtype, STEPS) for name, dtype in names])
    for (name, dtype), ranks in zip(names, zip(*answers, strict=True), strict=True):
        for rank in ranks:
            assert rank["received"] == expected_bytes(graph, RECIPES[name], rank, dtype), (name, dtype)
        yield name, dtype, gaps(alone(graph, RECIPES[name], dtype), ranks)


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_ranks_train_as_one_process(parts, tmp_path):
    chosen = ("free", "default", "hops") if parts in (1, 4) else RECIPES  # benchmarks/distributed.py has all, in both types
    names = [*((name, torch.float64) for name in chosen), *((name, torch.float32) for name in ("free", "default"))]
    for name, dtype, found in measured(parts, tmp_path / "cut", names):
        assert max(found.values()) <= LIMITS[dtype], (name, dtype, found)


def cut_into(folder, name, parts, **options):
    """A named graph in parts, and its split."""
    source = Source(name, None, options)
    graph = source.load()
    nodes = split(graph, seed=0)
    write_partition(folder, graph, source, owners(graph, parts), nodes)
    return graph, nodes


@pytest.mark.long
def test_a_run_in_parts_is_a_run_like_any_other(tmp_path):
    """Its accuracy, labels, edge weights and calibration are those of one process, and every command reads its folder."""
    options = {"n": 120, "classes": 3, "homophily": 0.7, "noise": 1.5}
    graph, _ = cut_into(tmp_path / "cut", "sbm", 3, **options)
    changes = {"epochs": 30, "edges": "free", "loss": "held_out", "lpa_iterations": 2, "hidden": 8, "votes": False}
    changes["members"] = ""
    found = on_ranks(3, whole_training, Order(tmp_path / "cut", tmp_path / "run", changes=changes))
    plan, _ = make_plan(Source("sbm", None, options), changes=changes)
    one = train_run(plan, graph, tmp_path / "one", device="cpu")
    assert found == [one.results.scores.accuracy, None, None]
    together = load_run(tmp_path / "run")
    assert together.results.scores == dataclasses.replace(one.results.scores, metrics={})  # of ranks the labels are known
    ours, theirs = (run.trained.model.first[0].edges.weight for run in (together, one))
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert together.trained.calibration.calibrator.temperature == pytest.approx(
        one.trained.calibration.calibrator.temperature, rel=1e-3
    )
    tables = (tmp_path / "run" / "predictions.csv", io.StringIO(table_text(predict_run(together))))
    by_ranks, by_one = map(pandas.read_csv, tables)
    pandas.testing.assert_frame_equal(by_ranks, by_one, check_exact=False, rtol=0, atol=2e-6)  # sums in another order
    assert predict_run(together).label.tolist() == predict_run(one).label.tolist()


EPOCHS = {
    "epochs": 16,
    "propagation": "layers",
    "edges": "free",
    "loss": "held_out",
    "lpa_iterations": 2,
    "hidden": 4,
    "select": "last_best",
}
ORDER = {"changes": EPOCHS, "checkpoint_every": 3, "timeout": 60.0}


def bits_of(folder):
    """What a run computed, without its times."""
    history = json.loads((folder / "trained.json").read_text())["history"]
    return (folder / "model.safetensors").read_bytes(), [{**epoch, "seconds": 0} for epoch in history]


def killed_and_resumed(folder, order, victim):
    """Whether a run whose rank `victim` was killed after a checkpoint, and which was resumed, has the bits of `order.out`."""
    again = dataclasses.replace(order, out=folder, resume=True)
    processes, answers = started(3, whole_training, again)
    wait_for(first_save(folder))
    os.kill(processes[victim].pid, signal.SIGKILL)
    lost = ended(processes, answers, 2)
    assert all("got no answer from the others" in failure for _, failure in lost.values())
    whole_checkpoint(folder)
    with pytest.raises(ValueError, match="was saved by several processes: start them again, with torchrun"):
        CheckpointFolder(folder, "fit").latest()
    on_ranks(3, whole_training, again)
    return bits_of(folder) == bits_of(order.out)


def first_save(run):
    """What is there once a rank has saved."""
    return run / storage.CHECKPOINT / "fit-rank-0-b" / storage.MANIFEST


def whole_checkpoint(folder):
    """The parts of three ranks in the last checkpoint that all of them have, each compared with its sha256."""
    saves = [[CheckpointFolder(folder, "fit", f"-rank-{rank}-{turn}").latest() for turn in "ab"] for rank in range(3)]
    ages = [{len(one.meta["history"]): one for one in found if one is not None} for found in saves]
    last = max(set.intersection(*map(set, ages)))
    return [of_rank[last] for of_rank in ages]


@pytest.mark.long
def test_a_rank_that_is_killed_changes_no_bit(tmp_path):
    cut_into(tmp_path / "cut", "sbm", 3, n=90, classes=3)
    order = Order(tmp_path / "cut", tmp_path / "run", **ORDER)
    on_ranks(3, whole_training, order)
    assert killed_and_resumed(tmp_path / "killed", order, victim=1)
    assert not (tmp_path / "killed" / storage.CHECKPOINT).exists()


def kills_while_saving(folder, times, seed=0):
    """Kill a rank of three while they save checkpoints, so many times; how far the last save had come each time.

    After each kill all ranks have the parts of one save, not older than any before, every file of it with its sha256.
    """
    rng, last, stages = random.Random(seed), 0, Counter()
    for _ in range(times):
        before = first_save(folder).read_bytes() if first_save(folder).exists() else b""
        processes, answers = started(3, keep_saving, folder, 5_000)
        wait_for(first_save(folder))
        while first_save(folder).read_bytes() == before:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        os.kill(processes[rng.randrange(3)].pid, signal.SIGKILL)
        ended(processes, answers, 2)
        stages["writing" if any((folder / storage.CHECKPOINT).glob("*/.*.new")) else "between"] += 1
        parts = whole_checkpoint(folder)
        (number,) = {len(part.meta["history"]) for part in parts}
        assert all((part.tensors["k"] == number).all() for part in parts)
        assert number >= last
        last = number
    return {"kills": times, "torn": 0, "stage_of_the_last_save": dict(stages)}


@pytest.mark.long
def test_kills_while_saving_leave_a_whole_checkpoint(tmp_path):
    assert kills_while_saving(tmp_path, 3)["kills"] == 3


@pytest.mark.slow
def test_50_kills_while_saving_leave_a_whole_checkpoint(tmp_path):
    assert sum(kills_while_saving(tmp_path, 50)["stage_of_the_last_save"].values()) == 50


def restarted_by_torchrun(folder):
    """Whether torchrun, after a rank was killed, starts all again and ends with the bits of a run that was not disturbed."""
    cut_into(folder / "cut", "sbm", 3, n=90, classes=3)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**EPOCHS, "checkpoint_every": 3}.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--max-restarts=2", "-m", "gcn_lpa"]

    def start(out):
        words = [*command, "train", str(folder / "cut"), "--out", str(folder / out), *flags]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    agent = start("run")
    said = agent.communicate(timeout=120)[1]
    assert agent.returncode == 0, said
    agent = start("killed")
    wait_for(first_save(folder / "killed"))
    ranks = [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]
    os.kill(ranks[1], signal.SIGKILL)
    said = agent.communicate(timeout=120)[1]
    assert agent.returncode == 0, said
    assert "got no answer from the others" in said
    return bits_of(folder / "killed") == bits_of(folder / "run")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_torchrun_starts_killed_ranks_again_and_no_bit_changes(tmp_path):
    assert restarted_by_torchrun(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_reach_the_others_ends_with_one_sentence(rank, tmp_path):
    cut_into(tmp_path / "cut", "karate", 2)
    words = ["train", str(tmp_path / "cut"), "--out", str(tmp_path / "run"), "--timeout", "1"]
    code, said = ended(*started(2, commanded, words, only=[rank]), 1)[rank][0]
    assert code == 1
    assert said.count("\n") == 1
    assert said.startswith(f"gcn-lpa: rank {rank} of 2 cannot reach the others at 127.0.0.1:")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_rank_that_no_longer_answers_ends_the_others_in_time(tmp_path):
    """It is stopped, not ended: nothing closes its connections."""
    processes, answers = started(3, keep_saving, tmp_path, 10, 1.0)
    wait_for(first_save(tmp_path))
    os.kill(processes[2].pid, signal.SIGSTOP)
    lost = [answers.get(timeout=30) for _ in range(2)]
    os.kill(processes[2].pid, signal.SIGKILL)
    assert sorted(rank for rank, *_ in lost) == [0, 1]
    assert all("got no answer from the others" in failure for *_, failure in lost)
    whole_checkpoint(tmp_path)


@pytest.mark.long
def test_a_training_that_diverges_is_told_once_and_leaves_no_run(tmp_path):
    cut_into(tmp_path / "cut", "sbm", 2, n=40, classes=2)
    order = Order(tmp_path / "cut", tmp_path / "run", changes={**EPOCHS, "lr": 1e30})
    found = ended(*started(2, whole_training, order), 2)
    assert "training diverged at epoch" in found[0][1]
    assert "SystemExit: 0" in found[1][1]  # rank 0 fails for all
    assert not (tmp_path / "run" / storage.MANIFEST).exists()


CHANGES_REFUSED = {
    "edge_weights": {"edge_weights": True},
    "relations": {"propagation": "relations"},
    "clusters": {"clusters": 4},
    "gaussian": {"edges": "gaussian"},
    "glorot": {"edges": "free", "edge_init": "glorot"},
    "leave_one_out": {"loss": "leave_one_out", "lpa_iterations": 2},
    "method 'gat'": {"method": "gat"},
    "select = 'roc_auc'": {"select": "roc_auc"},
}


@pytest.mark.parametrize("word", CHANGES_REFUSED)
def test_what_ranks_cannot_do_exactly_is_refused_by_name(word):
    require_in_parts(Recipe())
    with pytest.raises(ValueError, match=f"several processes do not train with .*{word}"):
        require_in_parts(Recipe().replace(**CHANGES_REFUSED[word]))


def test_a_member_that_ranks_cannot_train_is_refused_by_name():
    recipe = Recipe().replace(members="trees neighbour-lr")
    require_in_parts(recipe, 100)
    with pytest.raises(ValueError, match=r"member neighbour-lr: several processes do not train .* on 1,000 columns"):
        require_in_parts(recipe, 1000)


def test_a_part_has_its_own_rows_and_no_label_of_a_test_node(tmp_path):
    """By brute force: every entry of the graph is in the part of its row, under the names of both ends."""
    graph, nodes = cut_into(tmp_path / "cut", "sbm", 4, n=60, classes=3)
    facts, found = read_facts(tmp_path / "cut"), {}
    for rank in range(4):
        for other in set(range(4)) - {rank}:
            (tmp_path / "cut" / f"part-{other}.safetensors").rename(tmp_path / f"hidden-{other}")
        part = read_part(tmp_path / "cut", facts, Recipe(self_loops=False), SimpleNamespace(rank=rank))
        for other in set(range(4)) - {rank}:
            (tmp_path / f"hidden-{other}").rename(tmp_path / "cut" / f"part-{other}.safetensors")
        row, col = part.ids[part.graph.row.long()].tolist(), part.halo.ids[part.graph.col.long()].tolist()
        found |= dict(zip(zip(row, col, strict=True), part.graph.adjacency.values.tolist(), strict=True))
        assert torch.equal(part.graph.y, torch.where(nodes.train, graph.y, -1)[part.ids])
        assert torch.equal(part.val_y, graph.y[part.ids][nodes.val[part.ids]])
        kept = load_file(tmp_path / "cut" / f"part-{rank}.safetensors")
        assert (kept["y"][nodes.test[part.ids]] == -1).all()
    entries = zip(graph.row.tolist(), graph.col.tolist(), graph.adjacency.values.tolist(), strict=True)
    assert found == {(i, j): weight for i, j, weight in entries}


@pytest.mark.parametrize("name", ["parts.json", "part-1.safetensors", "scalings.safetensors"])
def test_a_part_that_was_changed_is_refused_by_name(name, tmp_path):
    cut_into(tmp_path / "cut", "karate", 2)
    content = (tmp_path / "cut" / name).read_bytes()
    (tmp_path / "cut" / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=name):
        read_part(tmp_path / "cut", read_facts(tmp_path / "cut"), Recipe(), SimpleNamespace(rank=1))


NAN, FAR = float("nan"), 2_000_000_000

# What a kernel would read with: each of these was a crash, or 15 GB, before it was checked.
PART = {
    "negative columns": made("adjacency.col", lambda col: -col - 1),
    "columns far away": made("adjacency.col", entry(3, FAR)),
    "last rowptr far away": made("adjacency.rowptr", entry(-1, FAR)),
    "last rowptr too small": made("adjacency.rowptr", entry(-1, 3)),
    "rowptr descending": made("adjacency.rowptr", entry(5, 0)),
    "first rowptr": made("adjacency.rowptr", entry(0, 1)),
    "rowptr too short": made("adjacency.rowptr", lambda rowptr: rowptr[:-1]),
    "columns of floats": made("adjacency.col", torch.Tensor.float),
    "columns in two dimensions": made("adjacency.col", lambda col: torch.stack([col, col])),
    "columns out of order": made("adjacency.col", lambda col: col.flip(0)),
    "too few weights": made("adjacency.values", lambda values: values[:-1]),
    "weights of another type": made("adjacency.values", torch.Tensor.double),
    "weight NaN": made("adjacency.values", entry(0, NAN)),
    "weight infinite": made("adjacency.values", entry(0, float("inf"))),
    "weight negative": made("adjacency.values", entry(0, -1.0)),
    "feature NaN": made("x", entry(2, NAN)),
    "features too narrow": made("x", lambda x: x[:, :2]),
    "features too short": made("x", lambda x: x[:-1]),
    "features of another type": made("x", torch.Tensor.double),
    "label beyond the classes": made("y", entry(0, 3)),
    "label negative": made("y", entry(0, -2)),
    "labels too short": made("y", lambda y: y[:-1]),
    "labels of floats": made("y", torch.Tensor.float),
    "rows sent that are of others": made("send", entry(0, FAR)),
    "rows of nobody": made("ids", entry(0, FAR)),
    "no labels": without("y"),
}


def test_a_part_that_kernels_cannot_walk_is_refused_before_they_try(tmp_path):
    cut_into(tmp_path / "cut", "sbm", 2, n=40, classes=3, features=5)
    for k, (name, change) in enumerate(PART.items()):
        folder = changed(tmp_path / "cut", tmp_path / str(k), "part-1.safetensors", change)
        with pytest.raises(ValueError, match=r"part-1\.safetensors"):  # and not an error of a kernel
            read_part(folder, read_facts(folder), Recipe(), SimpleNamespace(rank=1))
            pytest.fail(f"{name} was read")


def test_the_command_writes_the_parts_and_says_how_to_train_them(tmp_path):
    done = CliRunner().invoke(app, ["partition", "karate", "--parts", "2", "--by", "stream", "--out", str(tmp_path / "cut")])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == f"torchrun --nproc-per-node 2 -m gcn_lpa train {tmp_path / 'cut'} --out RUN"
    again = CliRunner().invoke(app, ["partition", "karate", "--parts", "2", "--out", str(tmp_path / "cut")])
    assert (again.exit_code, "--overwrite" in again.stderr) == (1, True)
    alone = CliRunner().invoke(app, ["train", str(tmp_path / "cut"), "--out", str(tmp_path / "run")])
    assert alone.exit_code == 1
    assert "has 2 parts, but this is one process: torchrun --nproc-per-node 2" in alone.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_one_part_is_trained_without_torchrun_and_a_finished_run_is_left_alone(tmp_path):
    cut_into(tmp_path / "cut", "karate", 1)
    words = ["train", str(tmp_path / "cut"), "--out", str(tmp_path / "run"), "--epochs", "3"]
    first = CliRunner().invoke(app, words)
    assert (first.exit_code, "uniform split, seed 0, 1 parts" in first.stdout) == (0, True)
    before = bits_of(tmp_path / "run")
    again = CliRunner().invoke(app, [*words, "--resume"])
    assert (again.exit_code, " ".join(again.stdout.split())) == (0, f"{tmp_path / 'run'} is finished")
    assert bits_of(tmp_path / "run") == before
    other = CliRunner().invoke(app, [*words, "--resume", "--lr", "1"])
    assert (other.exit_code, "with other settings or data" in other.stderr) == (1, True)
    other = CliRunner().invoke(app, [*words, "--resume", "--seed", "1"])
    assert (other.exit_code, "was split with seed 0, not 1; train it with --seed 0" in other.stderr) == (1, True)
    assert CliRunner().invoke(app, words).exit_code == 1  # the folder is not empty


def test_neither_the_model_nor_the_loop_knows_of_ranks():
    for name in ("model", "train"):
        source = (ROOT / "gcn_lpa" / f"{name}.py").read_text(encoding="utf-8")
        assert not re.search(r"torch\.distributed|is_part\b|\brank\b|gcn_lpa\.scale", source)


def test_every_way_gives_every_part_some_nodes():
    graph = block_graph()
    for by in WAYS:
        assert (np.bincount(owners(graph, 4, by), minlength=4) > 0).all()
    with pytest.raises(ValueError, match="parts = 91; 'blocks' has 90 nodes"):
        owners(graph, 91)
    with pytest.raises(ValueError, match="cut by metis or stream"):
        owners(graph, 2, "luck")


def test_streamed_parts_are_even_and_have_fewer_edges_between_them_than_ranges():
    """Of two cliques whose nodes take turns, ranges cut half of the edges, and the stream next to none."""
    first, second = (list(itertools.combinations(range(start, 60, 2), 2)) for start in (0, 1))
    graph = Graph.from_edges(np.array([*first, *second, (0, 1)]), num_nodes=60)
    owner = owners(graph, 2, "stream")
    assert sorted(np.bincount(owner).tolist()) == [30, 30]
    assert sum(owner[i] != owner[j] for i, j in [*first, *second]) == 0
    assert owners(graph, 60, "stream").tolist() == list(range(60))  # of parts of one node none stays empty
