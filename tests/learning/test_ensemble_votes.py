"""The pool of model and votes: its weights by another optimiser, its votes by hand, and what it may not see."""

import numpy as np
import pytest
import scipy.optimize
import torch

import gcn_lpa.learning.ensemble
from gcn_lpa import Graph
from gcn_lpa.learning.ensemble import (
    PULL,
    REACH,
    SMOOTHING,
    Parts,
    cross_fitted,
    fit_weights,
    label_votes,
)
from gcn_lpa.target import Classes


def log_rows(m, c, seed, truth=None, strength=0.0):
    """Random log-distributions, [m, c], that lean to the truth by `strength`."""
    scores = torch.randn(m, c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if truth is not None:
        scores[torch.arange(m), truth] += strength
    return scores.log_softmax(dim=1)


Y = torch.tensor([0, 1, 2] * 20)
ABC = Classes(("a", "b", "c"))
PARTS = Parts(
    (log_rows(60, 3, 1, Y, 1.0), log_rows(60, 3, 2, Y, 0.5)),
    (log_rows(60, 3, 3, Y, 1.5), log_rows(60, 3, 4, Y, 0.2)),
    ABC,
)


def test_the_weights_are_the_optimum_that_another_optimiser_finds():
    found = fit_weights(PARTS, Y)
    logs, alike = Classes.tempered(PARTS.all, found.exponents).numpy(), np.array([0.5, 0.5, 0, 0])

    def cost(w):
        pooled = torch.from_numpy(np.einsum("k,kmc->mc", w, logs))
        return float(torch.nn.functional.cross_entropy(pooled, Y, reduction="sum")) + PULL * np.square(w - alike).sum()

    other = scipy.optimize.minimize(cost, alike, bounds=[(0, None)] * 4, method="L-BFGS-B", options={"ftol": 1e-14})
    assert cost(np.array(found.weights)) == pytest.approx(other.fun, rel=1e-6)
    assert min(found.weights) >= 0
    assert found.weights[2] > found.weights[3]  # the vote that leans to the truth


def test_each_exponent_is_the_optimum_that_another_optimiser_finds():
    """Also where parts are nearly flat."""
    flat = tuple(log * 0.02 for log in PARTS.votes)
    found = fit_weights(Parts(PARTS.members, flat, ABC), Y)
    for log, exponent in zip((*PARTS.members, *flat), found.exponents, strict=True):

        def cost(t, log=log):
            likelihood = torch.nn.functional.cross_entropy(t * log, Y, reduction="sum")
            return float(likelihood) + (t - 1) ** 2

        other = scipy.optimize.minimize_scalar(cost, bounds=(0, 200), method="bounded", options={"xatol": 1e-9})
        assert exponent == pytest.approx(max(0, other.x), abs=1e-5)
    assert max(found.exponents) > 1.5


def test_of_very_many_held_out_labels_some_are_enough(monkeypatch):
    """They are in no order: of nodes that take turns at the classes, all classes are among them."""
    many = Parts(
        (log_rows(600, 3, 1, Y.repeat(10), 1.0), log_rows(600, 3, 2, Y.repeat(10), 0.5)),
        (log_rows(600, 3, 3, Y.repeat(10), 1.5), log_rows(600, 3, 4, Y.repeat(10), 0.2)),
        ABC,
    )
    all_of_them = fit_weights(many, Y.repeat(10))
    monkeypatch.setattr(gcn_lpa.learning.ensemble, "ENOUGH", 200)
    some = fit_weights(many, Y.repeat(10))
    assert some == fit_weights(many, Y.repeat(10))
    assert some != all_of_them
    assert some.weights == pytest.approx(all_of_them.weights, abs=0.5)
    assert some(many).argmax(dim=1).eq(all_of_them(many).argmax(dim=1)).double().mean() > 0.9


def test_without_held_out_labels_the_members_weigh_alike_and_no_vote_counts():
    found = fit_weights(PARTS.of(torch.zeros(60, dtype=torch.bool)), Y[:0])
    assert found.weights == (0.5, 0.5, 0.0, 0.0)


def test_the_votes_of_a_path_are_those_counted_by_hand():
    path = Graph.from_edges([(0, 1), (1, 2)], num_nodes=3)  # 0 - 1 - 2, of which 0 is class 0 and 2 class 1
    seeds = Classes(("a", "b")).seeds(torch.tensor([0, -1, 1]))
    near, far = label_votes(path.adjacency, seeds)
    assert near[1].tolist() == pytest.approx([0.5, 0.5])
    assert near[0].tolist() == pytest.approx([0.5, 0.5])  # its neighbour has no label: the prior alone
    assert far[1].tolist() == pytest.approx([0.5, 0.5])
    only = label_votes(path.adjacency, Classes(("a", "b")).seeds(torch.tensor([0, -1, -1])))[0]
    assert only[1, 0].item() == pytest.approx((0.5 + SMOOTHING * 2 / 3) / (0.5 + SMOOTHING))  # half of its neighbours
    assert REACH >= 2


def test_the_label_of_a_node_does_not_move_the_share_of_its_neighbours():
    ring = Graph.from_edges([(k, (k + 1) % 6) for k in range(6)], num_nodes=6, self_loops=True)
    y = torch.tensor([0, 1, -1, 0, -1, 1])
    other = y.clone()
    other[0] = 1
    before, after = (label_votes(ring.adjacency, Classes(("a", "b")).seeds(labels))[0][0] for labels in (y, other))
    assert before.argmax() == after.argmax() == 1  # both neighbours of 0 are of class 1
    assert torch.allclose(before, after, rtol=0, atol=SMOOTHING)  # but for the prior, which counts all labels


def test_a_node_is_weighed_by_the_labels_of_other_folds_alone():
    folds = torch.arange(60) % 3
    before = cross_fitted(PARTS, Y, folds)
    scrambled = torch.where(folds == 0, (Y + 1) % 3, Y)
    after = cross_fitted(PARTS, scrambled, folds)
    assert torch.equal(before[folds == 0], after[folds == 0])
    assert not torch.equal(before[folds == 1], after[folds == 1])
    assert torch.allclose(before.sum(dim=1), torch.ones(60, dtype=torch.float64))


def test_a_member_that_is_absurdly_sure_and_wrong_gets_no_weight():
    """Logs of -4e7, as of a regression that met a column it had never seen vary: the others decide, and nothing is singular."""
    random = np.random.default_rng(5)
    y = torch.from_numpy(random.integers(0, 3, 60))
    good = torch.log_softmax(torch.from_numpy(random.normal(size=(60, 3))) + 2 * torch.eye(3)[y], dim=1)
    for low in (-1e3, -4e7, -1e12):
        absurd = torch.zeros(60, 3, dtype=torch.float64).index_put(
            (torch.arange(60), (y + (y > 0)) % 3), torch.tensor(low).double()
        )
        parts = Parts((good, torch.log_softmax(absurd, dim=1)), (), ABC)
        found = fit_weights(parts, y)
        assert found.exponents[1] < 1e-2
        right = (found(parts).argmax(dim=1) == y).double().mean()
        assert right >= (good.argmax(dim=1) == y).double().mean() - 0.05
