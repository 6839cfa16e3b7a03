"""Folds of the labels: each label is predicted by models that did not learn it, and chooses nothing for itself."""

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.splits import label_folds
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import Kept
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.train import DivergedError, Watch
from tests.helpers.trainings import trained_alone

SMALL = {"hidden": 6, "edge_rank": 4, "epochs": 5, "patience": 0, "lr": 0.05}


def by_folds(graph, recipe, nodes=None, **options):
    return learn(graph, nodes, None, recipe, **{"device": "cpu", **options})


def test_folds_share_out_each_class_evenly(blocks):
    given = torch.arange(60) % 3 > 0
    folds = label_folds(blocks.y, given, 5, seed=(0, 0))
    assert torch.equal(torch.stack(folds).sum(dim=0), given.long())
    for k in range(3):
        sizes = [int((fold & (blocks.y == k)).sum()) for fold in folds]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("many", [0, 10**9], ids=["many labels", "few labels"])
def test_out_of_fold_predictions_are_those_of_a_model_without_the_fold(blocks, monkeypatch, many):
    """With few labels, after as many epochs as the other folds choose; with many, at the fold's own best epoch."""
    monkeypatch.setattr("gcn_lpa.learning.learn.MANY_LABELS", many)
    recipe = DEFAULT.replace(**{**SMALL, "epochs": 20}, members="", votes=False, select="loss")
    trained = by_folds(blocks, recipe)
    folds = label_folds(blocks.y, blocks.labeled, 5, seed=(0, 0))
    alone = [trained_alone(blocks, ~fold, fold, recipe) for fold in folds]
    best = [one.run.best_epoch for one in alone]
    assert len(set(best)) > 1
    for k, fold in enumerate(folds):
        model = alone[k]
        if many:
            stop_at = max(1, round(float(np.median(best[:k] + best[k + 1 :]))))
            model = trained_alone(blocks, ~fold, [], recipe, stop_at=stop_at, target=blocks.target)
        expected = predict_proba(model, blocks, raw=True)[fold]
        assert torch.allclose(trained.held_out.probability[fold], expected, atol=1e-6)
        assert set(trained.held_out.fold[fold].tolist()) == {k}
    assert torch.equal(trained.held_out.y, blocks.y)


def test_nodes_that_no_label_reaches_are_calibrated_by_folds_without_their_edges(blocks, monkeypatch):
    """By hand: each fold's model predicts its fold on the graph in which those nodes have no edge."""
    monkeypatch.setattr("gcn_lpa.learning.learn.MANY_LABELS", 0)  # each fold keeps its own epoch
    kept = scipy.sparse.diags_array((torch.arange(60) >= 2).numpy().astype(np.float32))  # nodes 0 and 1 are alone
    matrix = scipy.sparse.csr_array(kept @ blocks.adjacency.to_scipy() @ kept)
    matrix.eliminate_zeros()
    graph = blocks.with_adjacency(SparseMatrix.from_scipy(matrix))
    given = torch.arange(60) >= 2
    recipe = DEFAULT.replace(**SMALL, members="", votes=False, select="loss")
    trained = by_folds(graph, recipe, given)
    found = []
    for fold in label_folds(graph.y, given, 5, seed=(0, 0)):
        rest = scipy.sparse.diags_array((~fold).numpy().astype(np.float32))
        fewer = scipy.sparse.csr_array(rest @ matrix @ rest)
        fewer.eliminate_zeros()
        without = graph.with_adjacency(SparseMatrix.from_scipy(fewer))
        model = trained_alone(graph, given & ~fold, fold, recipe)
        found.append((predict_proba(model, without, known=given & ~fold, raw=True)[fold], graph.y[fold]))
    probabilities, y = (torch.cat(part) for part in zip(*found, strict=True))
    expected = Calibration.fitted(*held_out_pair(trained), "cross-validation", trained.held_out.fold)
    expected = expected.with_cut_off(probabilities, y)
    for name in ("temperature", "slope", "intercept"):
        values = (getattr(one.unreachable, name) for one in (trained.calibration, expected))
        assert np.isclose(*values, rtol=1e-3), name
    reached = by_folds(blocks, recipe, given)
    assert reached.calibration.unreachable is None


def held_out_pair(trained):
    return trained.held_out.probability, trained.held_out.y


@pytest.mark.long
def test_without_time_members_are_left_out(blocks):
    recipe = DEFAULT.replace(**SMALL, members="hops layers smoothed-lr")
    few, whole = by_folds(blocks, recipe, minutes=1e-9), by_folds(blocks, recipe, minutes=10**6)
    assert few.recipe.members == ""
    assert whole.recipe == recipe
    alone = by_folds(blocks, recipe.replace(members=""))
    assert torch.equal(predict_proba(few, blocks), predict_proba(alone, blocks))


@pytest.mark.long
def test_trees_learn_from_all_labels_to_predict_with_the_rounds_that_folds_chose(blocks, monkeypatch):
    given = torch.arange(60) % 2 == 0
    recipe = DEFAULT.replace(**SMALL, members="trees", votes=False)
    trained, alone = by_folds(blocks, recipe, given), members_of(recipe)["trees"]
    folds = label_folds(blocks.y, given, 5, seed=(0, 0))
    grown = [trained_alone(blocks, given & ~fold, fold, alone).model.first[0] for fold in folds]
    rounds = sorted(len(model.feature) for model in grown)
    monkeypatch.setattr("gcn_lpa.methods.trees.ROUNDS", rounds[2])
    for k, model in enumerate(trained.model.members[1]):
        whole = trained_alone(blocks, given, [], alone, seed=k).model.first[0]
        states = model.state_dict(), whole.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


@pytest.mark.parametrize("bytes_kept", [0, 20_000])
def test_weights_kept_while_training_are_those_of_another_training(blocks, monkeypatch, bytes_kept):
    monkeypatch.setattr("gcn_lpa.learning.learn.MANY_LABELS", 10**9)
    recipe = DEFAULT.replace(**SMALL, members="layers")
    kept = by_folds(blocks, recipe)
    monkeypatch.setattr(Kept.__init__, "__defaults__", (bytes_kept, *Kept.__init__.__defaults__[1:]))
    again = by_folds(blocks, recipe)
    assert kept.weights == again.weights
    assert torch.equal(kept.held_out.probability, again.held_out.probability)


def test_a_model_that_diverges_ends_the_training_by_name(blocks):
    recipe = DEFAULT.replace(**SMALL, members="layers")
    with pytest.raises(DivergedError, match="training diverged at epoch"):
        by_folds(blocks, recipe.replace(lr=1e30))


@pytest.mark.parametrize(
    ("stage", "member", "epoch", "left"),
    [("fold-1", "", 3, (1, 1)), ("fold-3", "", 1, (1, 2)), ("fold-2", "layers", 2, (1, 5))],
    ids=["in the first fold", "in the third", "in the second member"],
)
def test_ctrl_c_keeps_the_members_or_folds_that_are_whole(blocks, stage, member, epoch, left):
    def stop(name, record):
        if (name.stage, name.member, record.epoch) == (stage, member, epoch):
            raise KeyboardInterrupt

    recipe = DEFAULT.replace(**SMALL, members="layers smoothed-lr")
    trained = by_folds(blocks, recipe, watch=Watch(on_epoch=stop))
    assert trained.run.interrupted
    assert (len(trained.model.members), len(trained.model.first)) == left
    assert trained.held_out is trained.weights is trained.calibration is None
    assert predict_proba(trained, blocks).shape == (60, 3)


def test_ctrl_c_before_the_first_epoch_is_a_keyboard_interrupt(blocks, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gcn_lpa.train._Step.__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        by_folds(blocks, DEFAULT.replace(**SMALL, members=""))


def test_where_no_class_has_two_labels_there_are_no_folds(blocks):
    one_each = torch.zeros(60, dtype=torch.bool)
    one_each[[int((blocks.y == k).nonzero()[0]) for k in range(3)]] = True
    recipe = DEFAULT.replace(**SMALL, members="")
    assert by_folds(blocks, recipe, one_each).held_out is None
    one_each[int((blocks.y == 0).nonzero()[1])] = True
    trained = by_folds(blocks, recipe, one_each)
    assert len(trained.model.first) == int(trained.held_out.fold.max()) + 1 == 4
