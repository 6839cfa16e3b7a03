"""Several processes train an ensemble as one process does: members, label votes, ensemble weights and calibration."""

import dataclasses
import json
import os
import signal

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import members_of
from gcn_lpa.recipes import Recipe, case_of
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import load_trained
from gcn_lpa.runs.plan import Plan, Source, chosen_recipe, with_changes
from gcn_lpa.runs.predictions import predict_run
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.scale.partition import write_partition
from gcn_lpa.scale.planner import Size, received
from gcn_lpa.scale.together import Order
from tests.helpers.rank_jobs import (
    ended,
    free_port,
    on_ranks,
    shared_rows,
    started,
    trainings,
    wait_for,
    whole_training,
)

N = 150
SHORT = {"epochs": 6, "hidden": 8}


def graph_of(kind):
    """Three blocks with columns of a kind; some nodes without edges, some of them without columns too."""
    rng = np.random.default_rng(7)
    block = np.arange(N) % 3
    chance = np.where(block[:, None] == block[None, :], 0.08, 0.01)
    edges = np.argwhere(np.triu(rng.random((N, N)) < chance, 1))
    edges = edges[(edges < N - 6).all(axis=1)]
    x = None
    if kind == "table":
        x = (rng.normal(size=(N, 6)) + np.eye(3).repeat(2, axis=1)[block]).astype(np.float32)
        x[:, 4:] = rng.integers(0, 3, (N, 2))
    if kind == "words":
        often = np.full((3, 240), 0.03) + 0.1 * np.eye(3).repeat(80, axis=1)
        x = scipy.sparse.csr_array((rng.random((N, 240)) < often[block] * (np.arange(N) < N - 3)[:, None]) * 1.0)
    return Graph.from_edges(edges, num_nodes=N, x=x, y=block, name=kind)


def cut_into(folder, graph, parts=2):
    nodes = split(graph, seed=0)
    write_partition(folder, graph, Source(graph.name), np.arange(N) * 5 % N % parts, nodes)
    return nodes


ORDERS = {  # a graph, a recipe, and what is changed
    "table": ("table", "default", {}),
    "words": (
        "words",
        "default",
        {"members": "layers smoothed-lr batch-norm grand label-input correct-and-smooth lr trees"},
    ),
    "no columns": ("none", "default", {}),
    "quick": ("words", "quick", {}),
}


@pytest.mark.long
def test_ranks_train_the_ensemble_of_one_process(tmp_path):
    """The same recipe, classes and probabilities; members that are fitted at once have the same bits, also trees; and
    without columns the bytes are those that the planner says.
    """
    orders = []
    for name, (kind, recipe, changes) in ORDERS.items():
        cut_into(tmp_path / name / "cut", graph_of(kind))
        orders.append(Order(tmp_path / name / "cut", tmp_path / name / "run", recipe=recipe, changes=SHORT | changes))
    answers = on_ranks(2, trainings, orders, [free_port() for _ in orders])
    found = set()
    for (name, (kind, named, changes)), of_ranks in zip(ORDERS.items(), zip(*answers, strict=True), strict=True):
        graph = graph_of(kind)
        recipe = chosen_recipe(named, None, kind, case_of(graph, split(graph, seed=0).train), by_folds=False)
        recipe = with_changes(recipe, SHORT | changes)
        one = train_run(Plan(Source(kind), graph.content_hash(64), recipe), graph, device="cpu", threads=1)
        together, table = load_trained(tmp_path / name / "run"), predict_run(one)
        assert together.recipe == one.trained.recipe == recipe
        for rank in of_ranks if kind == "none" else ():
            counts = {"nodes": rank["rows"], "stored": rank["rows"], "halo": rank["halo"], "read": rank["read"]}
            epochs, once = received(dataclasses.replace(Size.of(graph), **counts), recipe)
            assert rank["received"] == once + sum(each * rank["epochs"][member] for member, each in epochs.items())
        by_ranks = pandas.read_csv(tmp_path / name / "run" / "predictions.csv")
        assert by_ranks.label.astype(str).tolist() == table.label.tolist()
        assert by_ranks.status.tolist() == table.status.tolist()
        assert np.allclose(by_ranks.probability, table.probability.astype(float), atol=1e-5)
        assert np.allclose(together.weights.weights, one.trained.weights.weights, atol=1e-4)
        ours, theirs = together.held_out, one.trained.held_out
        assert torch.equal(ours.node, theirs.node) and torch.equal(ours.unreachable, theirs.unreachable)
        for (member, settings), models, others in zip(
            members_of(recipe).items(), together.model.members, one.trained.model.members, strict=True
        ):
            if settings.method in ("trees", "neighbour-lr", "lr"):
                found.add(settings.method)
                for key, tensor in models[0].state_dict().items():
                    assert torch.equal(tensor, others[0].state_dict()[key]), (name, member, key)
    assert found == {"trees", "neighbour-lr", "lr"}


@pytest.mark.long
def test_rows_that_ranks_share_are_those_of_the_whole_graph(tmp_path):
    graph = graph_of("table")
    nodes = cut_into(tmp_path / "cut", graph, 3)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32))
    at, adjacency = nodes.train.nonzero().squeeze(1), graph.with_self_loops().adjacency
    smoothing = torch.from_numpy(adjacency.symmetric_normalized().to_scipy().toarray())
    for found in on_ranks(3, shared_rows, tmp_path / "cut", x):
        ids = found["ids"]
        assert torch.equal(found["product"], (adjacency @ x)[ids])  # to the bit
        assert torch.allclose(found["variance"], x.var(dim=0, correction=0))
        assert torch.allclose(found["slope"], 2 * x.var(dim=0, correction=0), rtol=1e-4)  # of w² var(x) at w = 1
        assert torch.allclose(found["back"], personalized_by_hand(smoothing.T, x)[ids], atol=1e-5)
        assert torch.equal(found["rows"], x[at])
        assert np.array_equal(found["sparse"], x[at].numpy())
        assert torch.equal(at[found["places"]], ids[found["train"]])
        assert found["agreed"] == 0


def personalized_by_hand(smoothing, start):
    z, recipe = start, Recipe()
    for _ in range(recipe.propagation_steps):
        z = (1 - recipe.teleport) * smoothing @ z + recipe.teleport * start
    return z


@pytest.mark.long
def test_members_that_are_whole_are_not_trained_again(tmp_path):
    """A rank is killed while the second member learns; the run that goes on has the bits of one that was not disturbed."""
    cut_into(tmp_path / "cut", graph_of("table"))
    changes = {"epochs": 24, "hidden": 4, "members": "layers trees", "patience": 0}
    order = Order(tmp_path / "cut", tmp_path / "run", changes=changes, checkpoint_every=4, timeout=60.0)
    on_ranks(2, whole_training, order)
    again = dataclasses.replace(order, out=tmp_path / "killed", resume=True)
    processes, answers = started(2, whole_training, again)
    place = tmp_path / "killed" / storage.CHECKPOINT
    wait_for(place / "fit-layers-rank-0-b" / storage.MANIFEST)
    os.kill(processes[1].pid, signal.SIGKILL)
    ended(processes, answers, 1)
    first = max((json.loads((place / f"fit-rank-0-{k}" / "meta.json").read_text())["history"] for k in "ab"), key=len)
    on_ranks(2, whole_training, again)
    history = json.loads((tmp_path / "killed" / "trained.json").read_text())["history"]
    assert [epoch["seconds"] for epoch in history] == [epoch["seconds"] for epoch in first]  # times are never the same twice
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    assert not place.exists()
