"""Training: the loop against one written out, the choice of the epoch, what is saved on the way, and the scores."""

import dataclasses
import errno
import math

import pytest
import torch
from torch import nn

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn, learn_many, member_jobs
from gcn_lpa.learning.tasks import Batch, Validation, task_of
from gcn_lpa.methods.contract import AtOnce
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.metrics import METRICS
from gcn_lpa.model import GCNLPA
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import HOP_COLUMNS, Recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.runs import storage
from gcn_lpa.runs.train_run import CheckpointFolder
from gcn_lpa.target import Classes
from gcn_lpa.train import (
    PHASES,
    Best,
    DivergedError,
    Epoch,
    JobName,
    Run,
    Watch,
    World,
    _Loop,
    _Step,
    fit,
    fit_at_once,
    is_patience_over,
    num_epochs,
)
from gcn_lpa.trained import Trained
from tests.helpers.trainings import trained_alone

RECIPE = Recipe(hidden=8, epochs=12, edge_rank=4, dropout=0.5, lr=0.05)
TWO_STEP = RECIPE.replace(training="two_step", epochs=6)
EVERY_METHOD = [m if m in ("gcn-lpa", "lpa", "mlp") else pytest.param(m, marks=pytest.mark.long) for m in METHODS]


@pytest.fixture(scope="module")
def world():
    """A small block model and its split."""
    graph = load("sbm", n=40, classes=3, features=5, degree=4.0, noise=1.0)
    return graph, split(graph, seed=1)


def prepared(world, recipe=RECIPE):
    """The graph as the model reads it: the labels of the training nodes and no others."""
    graph, parts = world
    return recipe.prepare(graph.reveal(parts.train))


def full_batch(world, recipe=RECIPE, *, val=True):
    """What `fit` is handed for the whole graph at once: its batches and its validation."""
    (graph, parts), shown = world, prepared(world, recipe)
    chosen = (parts.val if val else torch.zeros_like(parts.val)).nonzero().squeeze(1)
    return [Batch(shown, parts.train.nonzero().squeeze(1))], Validation(shown, chosen, graph.y[chosen], len(chosen))


def fitted(world, recipe=RECIPE, *, val=True, on_epoch=None, seed=0, stop_at=None, **watch):
    """A Trained on the training nodes of the block model, by `learn` or for a few epochs by `learn_many`."""
    graph, parts = world
    told = None if on_epoch is None else lambda _, epoch: on_epoch(epoch)
    options = {
        "seed": seed,
        "device": "cpu",
        "watch": Watch(on_epoch=told, facts={"graph": graph.content_hash()}, **watch),
    }
    nodes = parts.train, parts.val if val else []
    if stop_at is not None:
        return trained_alone(graph, *nodes, recipe, stop_at=stop_at, **options)
    return learn(graph, *nodes, recipe, **options)


def weights(trained):
    model = trained.model.first[0] if isinstance(trained, Trained) else trained
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_time(history):
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in history]


def walk_by_hand(world, recipe, objective, parameters, epochs, *, model=None, first=1):
    """The loop of `fit` written out: plain Adam, and ½ l2 ‖·‖² spelled in the loss."""
    graph, parts = prepared(world, recipe), world[1]
    model = model or GCNLPA(recipe, graph, 0)
    nodes = parts.train.nonzero().squeeze(1)
    optimizer = torch.optim.Adam(parameters(model), lr=recipe.lr)
    for epoch in range(first, first + epochs):
        optimizer.zero_grad()
        cost = objective(model.loss(graph, nodes, Key(0, epoch)))
        cost = cost + recipe.l2 / 2 * sum(p.square().sum() for p in model.weight_parameters())
        cost = cost + recipe.l2_edges / 2 * sum(p.square().sum() for p in model.edge_parameters())
        cost.backward()
        optimizer.step()
    return model


def assert_close(one, other):
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=1e-4, atol=1e-5)


def test_fit_is_adam_on_the_loss_with_half_the_squares_of_the_weights(world):
    recipe = RECIPE.replace(l2=0.05, l2_edges=0.02, epochs=5)
    model = fitted(world, recipe, val=False)
    by_hand = walk_by_hand(world, recipe, lambda loss: loss.total, lambda m: m.parameters(), 5)
    assert_close(model, by_hand)
    assert not same(weights(model), weights(GCNLPA(recipe, prepared(world), 0)))


def test_two_steps_are_the_edges_on_the_lpa_loss_and_then_w_on_the_gcn_loss(world):
    recipe = TWO_STEP.replace(l2=0.0)
    middle = {}
    model = GCNLPA(recipe, prepared(world), 0)
    start = weights(model)

    def note(_, epoch):
        if epoch.epoch == recipe.epochs:
            middle.update(weights(model))

    fit(model, *full_batch(world, val=False), recipe, watch=Watch(on_epoch=note))
    edges = {name for name in start if name.startswith("edges.")}
    assert {name for name in start if not torch.equal(start[name], middle[name])} == edges
    assert {name for name in start if not torch.equal(middle[name], weights(model)[name])} == start.keys() - edges

    by_hand = walk_by_hand(world, recipe, lambda loss: loss.lpa, lambda m: m.edge_parameters(), 6)
    by_hand = walk_by_hand(world, recipe, lambda loss: loss.gcn, lambda m: m.weight_parameters(), 6, model=by_hand, first=7)
    assert_close(model, by_hand)


@pytest.mark.parametrize("changes", [{"edges": "fixed"}, {"lpa_weight": 0.0}, {"lpa_iterations": 0}])
def test_two_steps_without_a_loss_for_the_edges_are_refused(world, changes):
    with pytest.raises(ValueError, match="needs an edge form that learns, and lpa_weight, lpa_iterations and lpa_ratio"):
        fitted(world, TWO_STEP.replace(**changes))


@pytest.mark.parametrize(("rule", "epoch"), [("first_best", 2), ("last_best", 3), ("loss", 4)])
def test_each_rule_chooses_its_epoch(rule, epoch):
    model = nn.Linear(1, 1)
    best = Best(rule)
    for k, (accuracy, cost) in enumerate([(0.5, 0.9), (0.7, 0.8), (0.7, 0.7), (0.6, 0.6), (0.5, 0.65)], start=1):
        nn.init.constant_(model.weight, k)
        best = best.after(Epoch(k, 1.0, 1.0, 0.0, accuracy, cost, 0.0), model)
    assert (best.epoch, best.state["weight"].item()) == (epoch, epoch)


@pytest.mark.parametrize("recipe", [RECIPE, TWO_STEP, RECIPE.replace(select="last_best")], ids=lambda r: r.training)
def test_the_model_ends_with_the_weights_of_its_best_epoch(world, recipe):
    trained = fitted(world, recipe)
    run = trained.run
    scored = [epoch for epoch in run.history if epoch.val_accuracy is not None]
    assert run.best.val_accuracy == max(epoch.val_accuracy for epoch in scored)
    assert run.best_epoch < len(run.history) == num_epochs(recipe)
    until_then = fitted(world, recipe, val=False, stop_at=run.best_epoch)
    assert same(weights(trained), weights(until_then))
    correct = predict_proba(trained, world[0], raw=True).argmax(dim=1) == world[0].y
    assert run.best.val_accuracy == correct[world[1].val].double().mean().item()


def test_patience_stops_after_so_many_epochs_without_a_better_one(world):
    recipe = RECIPE.replace(epochs=50, patience=7)
    whole = fitted(world, recipe.replace(patience=0)).run
    run = fitted(world, recipe).run
    assert len(run.history) == run.best_epoch + 7 < 50
    assert without_time(run.history) == without_time(whole.history)[: len(run.history)]


def test_the_seed_decides_the_weights(world):
    first, again, other = (weights(fitted(world, seed=seed)) for seed in (3, 3, 4))
    assert same(first, again)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_without_validation_nodes_the_last_epoch_is_kept(world):
    run = fitted(world, val=False).run
    assert run.best_epoch == len(run.history) == RECIPE.epochs
    assert {(epoch.val_accuracy, epoch.val_loss) for epoch in run.history} == {(None, None)}


def test_ctrl_c_keeps_the_best_so_far(world):
    def stop(epoch):
        if epoch.epoch == 5:
            raise KeyboardInterrupt

    trained, until_then = fitted(world, on_epoch=stop), fitted(world, stop_at=5)
    assert trained.run.interrupted
    assert not until_then.run.interrupted
    assert (trained.run.best_epoch, len(trained.run.history)) == (until_then.run.best_epoch, 5)
    assert same(weights(trained), weights(until_then))


@pytest.mark.parametrize("method", ["gcn-lpa", "mlp"])
def test_ctrl_c_ends_the_work_of_those_who_train_many(world, method, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    graph, parts = world
    monkeypatch.setattr("sklearn.neural_network.MLPClassifier._backprop", stop)
    recipe = METHODS[method].settings(RECIPE)
    with pytest.raises(KeyboardInterrupt):
        learn_many(graph, [(parts.train, parts.val)], recipe, device="cpu", watch=Watch(on_epoch=stop))


def test_ctrl_c_before_the_first_epoch_is_not_swallowed(world, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GCNLPA, "loss", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted(world)


def test_a_loss_that_is_no_number_ends_training_with_the_best_intact(world, monkeypatch):
    until_then = fitted(world, stop_at=6)
    real = GCNLPA.loss

    def breaks_at_seven(self, graph, nodes, key):
        loss = real(self, graph, nodes, key)
        return loss._replace(gcn=loss.gcn * (math.nan if int(key.step) == 7 else 1))

    monkeypatch.setattr(GCNLPA, "loss", breaks_at_seven)
    with pytest.raises(DivergedError, match=r"diverged at epoch 7 with lr = 0\.05 .*loss is nan.*try lr = 0\.005") as error:
        fitted(world)
    run = error.value.run
    assert (run.best_epoch, len(run.history)) == (until_then.run.best_epoch, 6)
    model = GCNLPA(RECIPE, prepared(world))
    with pytest.raises(DivergedError):
        fit(model, *full_batch(world), RECIPE)
    assert same(weights(model), weights(until_then))


def test_a_first_loss_that_is_no_number_leaves_nothing_trained(world, monkeypatch):
    real = GCNLPA.loss
    monkeypatch.setattr(GCNLPA, "loss", lambda *given: real(*given)._replace(gcn=torch.tensor(math.inf)))
    with pytest.raises(DivergedError, match="diverged at epoch 1 ") as error:
        fitted(world)
    assert error.value.run.history == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda train, val: (train & False, val), "no node to train on"),
        (lambda train, val: (train, train), "in more than one of train, val and test"),
        (lambda train, val: (~val, val), r"\d+ nodes of train have no label, the first is node \d+"),
        (lambda train, val: (train, ~train), r"\d+ nodes of val have no label"),
        (lambda train, val: (train[1:], val), r"train is a mask of \[39\] entries; the graph has 40 nodes"),
        (lambda train, val: (train.float(), val), "train is a boolean mask or a list of positions, not torch.float32"),
        (lambda train, val: (train, [40]), r"val names node 40, but the graph has nodes 0\.\.39"),
    ],
)
def test_nodes_are_checked_at_the_door(world, change, message):
    graph, parts = world
    with pytest.raises(ValueError, match=message):
        learn(graph.reveal(parts.train | parts.val), *change(parts.train, parts.val), RECIPE, device="cpu")


def test_nodes_are_masks_or_positions(world):
    graph, parts = world
    at = [part.nonzero().squeeze(1) for part in (parts.train, parts.val)]
    by_position = learn(graph, at[0].tolist(), at[1].numpy(), RECIPE, device="cpu")
    assert same(weights(by_position), weights(fitted(world)))


def test_learn_shows_the_model_the_labels_of_train_and_no_others(world, monkeypatch):
    graph, parts = world
    shown = []

    class Watched(GCNLPA):
        def __init__(self, recipe, graph, seed):
            super().__init__(recipe, graph, seed)
            shown.append(graph.y)

        def forward(self, graph):
            shown.append(graph.y)
            return super().forward(graph)

        def outputs(self, graph, nodes):
            shown.append(graph.y)
            return super().outputs(graph, nodes)

        def loss(self, graph, nodes, key=None):
            shown.append(graph.y)
            return super().loss(graph, nodes, key)

    monkeypatch.setitem(METHODS, "gcn-lpa", dataclasses.replace(METHODS["gcn-lpa"], build=Watched))
    trained = fitted(world, seed=5)
    assert len(shown) == 2 + 2 * RECIPE.epochs  # built, each step and its validation, and the prediction that calibrates
    assert all(torch.equal(y, torch.where(parts.train, graph.y, -1)) for y in shown)
    assert torch.equal(trained.given(graph), parts.train | parts.val)


def test_learn_is_fit_on_the_whole_graph_as_one_batch_bit_for_bit(world):
    model = GCNLPA(RECIPE, prepared(world), 5)
    run = fit(model, *full_batch(world), RECIPE, seed=5)
    trained = fitted(world, seed=5)
    assert same(weights(trained), weights(model))
    assert without_time(trained.run.history) == without_time(run.history)
    assert trained.run.best_epoch == run.best_epoch


def halves(world):
    """The block model cut into its even and its odd nodes, each half a graph of its own."""
    graph, parts = world
    for start in (0, 1):
        ids = torch.arange(start, graph.num_nodes, 2)
        half = Graph.from_scipy(
            graph.to_scipy()[ids.numpy()][:, ids.numpy()], x=graph.x[ids], y=graph.y[ids], class_names=graph.class_names
        )
        train = parts.train[ids]
        yield Batch(
            RECIPE.prepare(half.reveal(train)),
            train.nonzero().squeeze(1),
            node_ids=ids,
            random_ids=ids if start else None,
        )


def test_two_batches_are_two_steps_of_adam_and_their_losses_the_mean(world):
    """The loop written out: a step on one half, then on the other, both with the random bits of the epoch."""
    batches, recipe = list(halves(world)), RECIPE.replace(l2=0.0, epochs=4)
    none = Validation(prepared(world), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0)
    model, by_hand = (GCNLPA(recipe, prepared(world), 0) for _ in range(2))
    run = fit(model, batches, none, recipe, seed=3)
    optimizer, means = torch.optim.Adam(by_hand.parameters(), lr=recipe.lr), []
    for epoch in range(1, 5):
        terms = []
        for batch in batches:
            optimizer.zero_grad()
            loss = by_hand.loss(batch.graph, batch.nodes, Key(3, epoch, batch.random_ids))
            loss.total.backward()
            optimizer.step()
            terms.append([float(term.detach()) for term in (loss.total, loss.gcn, loss.lpa)])
        means.append([sum(pair) / 2 for pair in zip(*terms, strict=True)])
    assert [(line.loss, line.gcn, line.lpa) for line in run.history] == [pytest.approx(mean, rel=1e-4) for mean in means]
    assert_close(model, by_hand)


@pytest.mark.parametrize("stop_at", [0, -3])
def test_training_has_at_least_one_epoch(world, stop_at):
    with pytest.raises(ValueError, match=f"stop_at = {stop_at}; training has at least 1 epoch"):
        fitted(world, stop_at=stop_at)
    assert len(fitted(world, stop_at=1).run.history) == 1


def test_a_run_prints_in_one_line():
    run = Run(RECIPE, 3, (Epoch(1, 0.5, 0.5, 0.0, 0.75, 1.0, 0.25), Epoch(2, 0.4, 0.4, 0.0, 0.5, 1.0, 0.25)), 1)
    assert repr(run) == "Run: gcn-lpa, seed 3, epoch 1 of 2 (validation 75.0 %), 0.5 s"
    unscored = Run(RECIPE, 0, (Epoch(1, 0.5, 0.5, 0.0, None, None, 0.25),), 1, interrupted=True)
    assert repr(unscored) == "Run: gcn-lpa, seed 0, interrupted, epoch 1 of 1, 0.2 s"


class Majority(AtOnce):
    """Learns at once: every node gets the most frequent class of the training nodes."""

    def __init__(self, num_classes):
        super().__init__()
        self.register_buffer("counts", torch.zeros(num_classes))

    def fit_at_once(self, graph, nodes):
        self.counts.copy_(torch.bincount(graph.y[nodes], minlength=len(self.counts)))

    def forward(self, graph):
        return self.counts.log().expand(graph.num_nodes, -1)


def test_a_model_without_steps_is_fitted_at_once(two_cliques):
    train = torch.tensor([1, 1, 1, 0, 1, 0, 0, 0], dtype=torch.bool)
    val = torch.tensor([0, 0, 0, 1, 0, 1, 1, 0], dtype=torch.bool)
    model, shown, chosen = Majority(2), two_cliques.reveal(train), val.nonzero().squeeze(1)
    at = train.nonzero().squeeze(1)
    run = fit_at_once(model, shown, at, Validation(shown, chosen, two_cliques.y[chosen], len(chosen)), RECIPE)
    assert (run.best_epoch, len(run.history), run.best.val_accuracy) == (1, 1, 1 / 3)
    assert run.best.val_loss == pytest.approx(-(math.log(3 / 4) + 2 * math.log(1 / 4)) / 3)
    torch.testing.assert_close(model(shown).softmax(dim=1), torch.tensor([[0.75, 0.25]]).expand(8, 2))


def kept_in(folder):
    """Checkpoints in a folder, as `learn` takes them."""
    return lambda name: CheckpointFolder(folder, name.stage)


def stopped(world, folder, recipe, at, **options):
    """A run that breaks off after epoch `at`."""

    def breakdown(epoch):
        if epoch.epoch == at:
            raise RuntimeError("breakdown")

    with pytest.raises(RuntimeError, match="breakdown"):
        fitted(world, recipe, checkpoints=kept_in(folder), on_epoch=breakdown, **options)


@pytest.mark.long
@pytest.mark.parametrize("at", [2, 6, 7, 11])
@pytest.mark.parametrize("recipe", [RECIPE, TWO_STEP, RECIPE.replace(patience=3, select="loss")], ids=["joint", "two", "patience"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(world, tmp_path, recipe, at):
    trained = fitted(world, recipe, checkpoints=kept_in(tmp_path / "whole"), every=3)
    run = trained.run
    at = min(at, len(run.history) - 1)  # patience may end the run before
    stopped(world, tmp_path / "part", recipe, at, every=3)
    resumed = fitted(world, recipe, checkpoints=kept_in(tmp_path / "part"), every=3, resume=True)
    assert same(weights(trained), weights(resumed))
    assert resumed.run.best_epoch == run.best_epoch
    assert without_time(resumed.run.history) == without_time(run.history)
    whole, part = (CheckpointFolder(tmp_path / name, "fit").latest() for name in ("whole", "part"))
    assert same(whole.tensors, part.tensors)  # Adam's too
    assert any(name.endswith("exp_avg_sq") for name in whole.tensors)


def test_a_finished_run_is_resumed_without_a_step(world, tmp_path):
    trained, steps = fitted(world, checkpoints=kept_in(tmp_path)), []
    again = fitted(world, checkpoints=kept_in(tmp_path), resume=True, on_epoch=steps.append)
    assert steps == []
    assert again.run == trained.run
    assert same(weights(trained), weights(again))


def test_nothing_to_resume_starts_from_the_beginning(world, tmp_path):
    assert same(weights(fitted(world, checkpoints=kept_in(tmp_path), resume=True)), weights(fitted(world)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"recipe": RECIPE.replace(lr=0.01)}, "recipe"), ({"seed": 1}, "seed"), ({"val": False}, "split")],
)
def test_the_checkpoint_of_another_run_is_refused(world, tmp_path, changes, what):
    stopped(world, tmp_path, RECIPE, 5, every=2)
    with pytest.raises(ValueError, match=f"checkpoint is of another run, with another {what}"):
        fitted(world, checkpoints=kept_in(tmp_path), resume=True, **changes)


def test_a_full_disk_ends_training_with_one_sentence_and_the_last_checkpoint_intact(world, tmp_path, monkeypatch):
    write, calls = storage._write, []

    def write_until_full(path, data):
        calls.append(path)
        if len(calls) > 4:  # two files per checkpoint, and the manifest: in the middle of the second
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(storage, "_write", write_until_full)
    with pytest.raises(OSError, match=r"No space left.*free some space.*saved before is intact"):
        fitted(world, checkpoints=kept_in(tmp_path), every=2)
    monkeypatch.undo()
    assert len(CheckpointFolder(tmp_path, "fit").latest().meta["history"]) == 2
    resumed = fitted(world, checkpoints=kept_in(tmp_path), every=2, resume=True)
    assert same(weights(resumed), weights(fitted(world)))


def test_steps_can_be_undone_and_then_repeat_themselves(world):
    """What capture relies on: the warm-up changes nothing that `restore` does not bring back."""
    model = GCNLPA(RECIPE, prepared(world))
    training = _Loop(model, *full_batch(world), RECIPE, 0, JobName(), Watch(), None, World())
    step = _Step(training, PHASES["joint"][0], epoch=1)
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    first = [step().tolist() for _ in range(3)]
    after = {name: tensor.clone() for name, tensor in step.state().items()}
    step.restore(before)
    assert [step().tolist() for _ in range(3)] == first
    assert same(step.state(), after)
    assert not same(before, after)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes",
    [{}, {"training": "two_step"}, {"edges": "free", "loss": "literal"}, {"class_weights": "balanced"}, HOP_COLUMNS],
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_is_the_plain_step_bit_for_bit(world, changes):
    graph, parts = world
    recipe = RECIPE.replace(**changes)
    (job,) = member_jobs(task_of(graph, parts.train, parts.val, recipe), recipe, seed=0)
    replayed, plain = (job.run(torch.device("cuda"), capture=capture) for capture in ("always", "never"))
    assert same(weights(replayed.model), weights(plain.model))
    assert without_time(replayed.run.history) == without_time(plain.run.history)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(world, seed):
    graph, parts = world
    with pytest.raises(ValueError, match=f"seed = {seed}; it is at least 0"):
        learn(graph, parts.train, parts.val, RECIPE, seed=seed, device="cpu")


@pytest.mark.parametrize(("features", "advice"), [("l2", r"try lr = 1e\+29$"), ("raw", r"e\+29, or features = 'l2'$")])
def test_divergence_does_not_recommend_what_is_already_so(world, features, advice):
    graph, parts = world
    recipe = RECIPE.replace(features=features, lr=1e30)
    with pytest.raises(ValueError, match=advice):
        learn(graph, parts.train, parts.val, recipe, device="cpu")


@pytest.mark.parametrize("name", ["roc_auc", "brier"])
def test_a_metric_chooses_the_epoch_that_it_is_best_at(world, name):
    """The predictions after every epoch, scored by scikit-learn's formulas in `test_metrics`, say which one it is."""
    graph, parts = world
    recipe, y = RECIPE.replace(select=name), graph.y[parts.val]
    found = learn(graph, parts.train, parts.val, recipe)
    scores = []
    for epoch in range(1, recipe.epochs + 1):
        (at,) = learn_many(graph, [(parts.train, torch.zeros_like(parts.val))], recipe, stop_at=epoch)
        scores.append(float(METRICS[name](predict_proba(at, graph, raw=True)[parts.val], y)))
    assert [epoch.val_score for epoch in found.run.history] == pytest.approx(scores, abs=1e-6)
    best = max(scores) if name == "roc_auc" else min(scores)
    assert found.run.best.val_score == pytest.approx(best, abs=1e-6)


TARGETS = {"classes": Classes(("a", "b")), "numbers": Numbers(0.0, 1.0)}


def test_only_a_model_of_classes_ends_where_it_is_certain():
    """A loss of .01 gives held-out classes 99 %; for numbers it is an error that can still be made a tenth."""
    recipe, best = RECIPE.replace(select="loss", patience=0), Best("loss", epoch=40, score=-0.005)
    over = {kind: is_patience_over(recipe, PHASES["joint"][0], best, 60, target) for kind, target in TARGETS.items()}
    assert over == {"classes": True, "numbers": False}
    unsure = Best("loss", epoch=40, score=-0.02)
    assert not is_patience_over(recipe, PHASES["joint"][0], unsure, 60, TARGETS["classes"])
