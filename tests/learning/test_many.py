"""One executor for many models: each becomes what it becomes alone, wherever it is trained."""

import dataclasses
import subprocess
import sys
import time

import pytest
import torch

from gcn_lpa.data.splits import split
from gcn_lpa.learning.learn import learn, learn_many
from gcn_lpa.learning.many import fit_many, num_workers
from gcn_lpa.learning.tasks import Job, task_of
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS
from gcn_lpa.train import DivergedError, Fit, JobName, Watch

SMALL = LAYERS.replace(hidden=8, edge_rank=4, epochs=5)
SEEDS = [4, 0, 2**31 + 1, 3, 1]
CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2], ids=["one by one", "in processes"])
def workers(request, monkeypatch):
    monkeypatch.setattr("gcn_lpa.learning.many.num_workers", lambda *_: request.param)
    return request.param


def parts_of(graph):
    return [split(graph, seed=k) for k in range(5)]


def pairs(graph):
    return [(part.train, part.val) for part in parts_of(graph)]


def jobs_of(graph, recipe, seeds=SEEDS):
    tasks = [task_of(graph, train, val, recipe) for train, val in pairs(graph)]
    return [
        Job(JobName(f"split-{k}", "", recipe.epochs), task, recipe, seed)
        for k, (task, seed) in enumerate(zip(tasks, seeds, strict=True))
    ]


@pytest.mark.long
@pytest.mark.parametrize("recipe", [SMALL, DEFAULT.replace(hidden=8, epochs=5, members="layers trees")], ids=["one", "members"])
def test_every_model_has_the_bits_it_has_alone_and_every_epoch_is_told(blocks, workers, recipe):
    epochs, done, plans, parts = [], [], [], pairs(blocks)[: 2 if recipe.members else 5]
    watch = Watch(plans.append, lambda name, epoch: epochs.append((name, epoch.epoch)), done.append)
    seeds = SEEDS[: len(parts)]
    found = learn_many(blocks, parts, recipe, seeds=seeds, device="cpu", threads=2, watch=watch)
    for (train, val), seed, trained in zip(parts, seeds, found, strict=True):
        alone = learn(blocks, train, val, recipe, seed=seed, device="cpu", threads=1)
        assert (trained.recipe, trained.weights, trained.run.best_epoch) == (
            alone.recipe,
            alone.weights,
            alone.run.best_epoch,
        )
        assert torch.equal(predict_proba(trained, blocks), predict_proba(alone, blocks))
    (names,) = plans
    assert len(names) == len(parts) * (1 + len(recipe.members.split()))
    assert len(done) == len(names)
    assert {name.member for name, _ in epochs} == {"", *recipe.members.split()}
    assert sum(name.member == "" for name, _ in epochs) == len(parts) * recipe.epochs


def test_a_model_that_diverges_leaves_the_others_alone(blocks, workers, monkeypatch):
    real = METHODS["gcn-lpa"]

    def build(recipe, graph, seed):
        model = real.build(recipe, graph, seed)
        if seed == SEEDS[1]:
            model.body.weights[0].data[0, 0] = float("inf")
        return model

    monkeypatch.setitem(METHODS, "gcn-lpa", dataclasses.replace(real, build=build))
    outcomes = fit_many([jobs_of(blocks, SMALL)], device=CPU).groups[0]
    assert isinstance(outcomes[1], DivergedError) and outcomes[1].run.history == ()
    assert all(isinstance(outcomes[k], Fit) for k in (0, 2, 3, 4))
    with pytest.raises(DivergedError, match="training diverged at epoch 1"):
        learn_many(blocks, pairs(blocks), SMALL, seeds=SEEDS, device="cpu")


def test_ctrl_c_in_one_of_many_is_a_keyboard_interrupt_and_gives_what_is_done(blocks, workers):
    def stop(name, epoch):
        if (name.stage, epoch.epoch) == ("split-2", 3):
            raise KeyboardInterrupt

    outcomes = fit_many([jobs_of(blocks, SMALL)], device=CPU, watch=Watch(on_epoch=stop))
    assert outcomes.interrupted
    first = outcomes.groups[0]
    assert [isinstance(outcome, Fit) for outcome in first[:2]] == [True, True]
    assert first[4] is None
    with pytest.raises(KeyboardInterrupt):
        learn_many(
            blocks,
            pairs(blocks),
            SMALL,
            device="cpu",
            watch=Watch(on_epoch=lambda *_: stop(JobName("split-2", "", 5), _[1])),
        )


@pytest.mark.parametrize("kind", [ValueError, UserWarning, SystemError])
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_error_that_scikit_learn_makes_of_ctrl_c_is_a_keyboard_interrupt(blocks, monkeypatch, kind, is_interrupted):
    def fail(*_):
        try:
            raise KeyboardInterrupt if is_interrupted else KeyError
        except (KeyboardInterrupt, KeyError):
            raise kind("'T{=d:sum_gradients' is not a valid buffer format") from None

    monkeypatch.setattr(Job, "run", fail)
    with pytest.raises(KeyboardInterrupt if is_interrupted else kind):
        fit_many([jobs_of(blocks, SMALL)], device=CPU)


def test_a_group_that_there_is_no_time_for_is_left_out_but_never_the_first(blocks, workers):
    groups = [
        jobs_of(blocks, SMALL),
        jobs_of(blocks, SMALL.replace(hidden=4)),
        jobs_of(blocks, METHODS["lr"].settings()),
    ]
    assert list(fit_many(groups, device=CPU, until=time.perf_counter() - 1).groups) == [0]
    assert list(fit_many(groups, device=CPU, until=time.perf_counter() + 10**6).groups) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": [1, 2]}, "seeds has 2 numbers for 5 parts; give one for each, or one for all"),
        ({"seeds": -1}, "seed"),
        ({"stop_at": 0}, "stop_at = 0; training has at least 1 epoch"),
        ({"recipe": SMALL.replace(training="two_step", lpa_weight=0)}, "needs an edge form that learns"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_a_sentence(blocks, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        learn_many(blocks, pairs(blocks), **{"recipe": SMALL, "device": "cpu", **options})


def test_no_part_is_no_model(blocks):
    assert learn_many(blocks, [], SMALL) == []


def test_processes_are_begun_where_they_pay(blocks, monkeypatch):
    jobs = jobs_of(blocks, SMALL)
    assert num_workers(jobs, 2) == 1  # 300 rows in all
    assert num_workers(jobs * 20, 2) == 2
    assert num_workers(jobs * 20, 1) == 1
    monkeypatch.setattr("gcn_lpa.learning.many.SMALL", 400)
    assert num_workers(jobs * 20, 2) == 1  # a layer that all threads share
    monkeypatch.undo()
    monkeypatch.setattr("os.sysconf", lambda name: 1000)
    assert num_workers(jobs * 20, 2) == 2
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    assert num_workers(jobs * 20, 2) == 1  # no memory for two


FORKED = """
import sys, torch
from pathlib import Path
from gcn_lpa import learn
from gcn_lpa.data.datasets import load
from gcn_lpa.train import Watch
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES
from gcn_lpa.runs.train_run import CheckpointFolder
torch.set_num_threads(2)
(torch.ones(10**6) + 1).sum()  # torch has a team of two threads, which a forked process has not
graph = load("sbm", n=34_000, classes=3, features=5, degree=4.0)
assert graph.adjacency.num_entries > 2**15 < graph.num_nodes
recipe = DEFAULT.replace(**FIXED_EDGES, members="", votes=False, hidden=4, epochs=2, patience=0)
learn(graph, recipe=recipe, device="cpu", watch=Watch(checkpoints=lambda name: CheckpointFolder(Path(sys.argv[1]), name.stage)))
print("done")
"""


@pytest.mark.long
def test_forked_processes_wait_for_no_thread_of_their_parent(tmp_path):
    """torch shares loops of 32,768 numbers among threads; those of the parent are not there after a fork."""
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == "done\n", ended.stderr
