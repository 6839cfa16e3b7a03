"""Label propagation and influence: known by closed forms, by listing every walk, by autograd, and by what must add up."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.engine import fused
from gcn_lpa.engine.fused import class_block
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import READINGS, labels_of
from gcn_lpa.propagation import feature_influence, label_influence, propagate_labels
from gcn_lpa.recipes import Recipe
from tests.helpers import twin
from tests.helpers.small_graphs import LABELS, in_float64, one_hot, random_walk, sparse_of

N = 8


def random_mask(seed, n=N):
    return torch.from_numpy(np.random.default_rng(seed + 100).random(n) < 0.4)


def walks(dense, start, length):
    """Every walk of so many steps from `start` and its probability."""
    if length == 0:
        yield (start,), 1.0
        return
    for there in dense[start].nonzero().flatten().tolist():
        for path, probability in walks(dense, there, length - 1):
            yield (start, *path), float(dense[start, there]) * probability


# label propagation


def test_a_label_needs_as_many_iterations_as_hops():
    walk = Graph.from_edges([(0, 1), (1, 2)], y=[0, 0, 0]).adjacency.row_normalized()  # 0 - 1 - 2
    seeds = torch.tensor([[1.0], [0.0], [0.0]])
    assert propagate_labels(walk, seeds, 0).tolist() == [[1.0], [0.0], [0.0]]
    assert propagate_labels(walk, seeds, 1).tolist() == [[0.0], [0.5], [0.0]]
    assert propagate_labels(walk, seeds, 2).tolist() == [[0.5], [0.5], [0.5]]


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_propagation_equals_the_dense_loop(k, clamp):
    """All nodes, and those that are asked for, in their order."""
    for seed in range(3):
        walk, seeds, at = random_walk(6, seed), one_hot(LABELS), torch.tensor([4, 0, 3])
        expected = twin.spread(walk, seeds, k, clamp)
        torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k, clamp=clamp), expected)
        torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k, clamp=clamp, at=at), expected[at])


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lemma_2_closed_form_equals_propagation_on_unlabelled_nodes(k, seed):
    """Σ_j A_UU^(j-1) A_UL Y_L: walks through unlabelled nodes that end at a labelled one."""
    walk, seeds = random_walk(6, seed), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    uu, ul = walk[unlabeled][:, unlabeled], walk[unlabeled][:, labeled]
    closed = sum(torch.linalg.matrix_power(uu, j - 1) @ ul for j in range(1, k + 1)) @ seeds[labeled]
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k)[unlabeled], closed)


def test_labelled_nodes_hear_what_their_neighbours_say_before_the_last_reset():
    """A_LL Y_L + A_LU Y_U^(k-1), not their own label again."""
    walk, seeds = random_walk(6), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    before = propagate_labels(sparse_of(walk), seeds, 3)[unlabeled]
    expected = walk[labeled][:, labeled] @ seeds[labeled] + walk[labeled][:, unlabeled] @ before
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, 4)[labeled], expected)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_without_the_reset_propagation_is_a_power_of_the_matrix(k):
    walk, seeds = random_walk(6), one_hot(LABELS)
    expected = torch.linalg.matrix_power(walk, k) @ seeds
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k, clamp=False), expected)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_converged_propagation_equals_the_linear_solve(seed, self_loops):
    """(I - A_UU)⁻¹ A_UL Y_L, the harmonic solution of Eq. (4)."""
    walk, seeds = random_walk(6, seed, self_loops), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    uu, ul = walk[unlabeled][:, unlabeled], walk[unlabeled][:, labeled]
    solution = torch.linalg.solve(torch.eye(len(uu)).double() - uu, ul @ seeds[labeled])
    converged = propagate_labels(sparse_of(walk), seeds, 2000)
    torch.testing.assert_close(converged[unlabeled], solution, rtol=1e-9, atol=1e-9)
    expected = walk[labeled][:, labeled] @ seeds[labeled] + walk[labeled][:, unlabeled] @ solution
    torch.testing.assert_close(converged[labeled], expected, rtol=1e-9, atol=1e-9)


def test_soft_labels_and_confidences_travel_as_they_are():
    """Propagation is linear in the seeds: half the confidence, half the vote; a soft label is a mixture of votes."""
    walk, sure = sparse_of(random_walk(6)), one_hot(LABELS)
    doubt = torch.tensor([0.5, 0.25, 1.0, 0.0, 0.75, 0.0]).double().unsqueeze(1)
    soft = doubt * sure + (1 - doubt) * sure.flip(1)
    alone = [propagate_labels(walk, sure * torch.eye(6).double()[i].unsqueeze(1) + 0, 3) for i in range(6)]
    assert propagate_labels(walk, soft, 3).sum() == pytest.approx(propagate_labels(walk, sure, 3).sum())
    torch.testing.assert_close(propagate_labels(walk, 0.3 * sure, 3), 0.3 * propagate_labels(walk, sure, 3))
    torch.testing.assert_close(propagate_labels(walk, soft, 1), walk @ soft)
    assert alone[3].count_nonzero() == 0  # a node without label has nothing to say


def test_the_influence_of_a_label_is_its_column_of_the_closed_form():
    """∂y_a / ∂y_b by autograd equals Lemma 2; a labelled node between them cuts the walk."""
    path = sparse_of(torch.tensor([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 1, 0]]).double())
    seeds = torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64, requires_grad=True)  # 0 - 1 - 2 - 3
    influence = torch.autograd.grad(propagate_labels(path, seeds, 6)[3, 0], seeds)[0]
    assert influence.flatten().tolist()[0] == 0  # node 2 is labelled and absorbs what comes from 0
    assert influence.flatten().tolist()[2] == 1


@pytest.mark.parametrize("clamp", [True, False])
def test_gradients_of_propagation_equal_finite_differences(clamp):
    walk, seeds = sparse_of(random_walk(6)), one_hot(LABELS).requires_grad_()
    values = walk.values.clone().requires_grad_()
    labeled = (seeds.detach().sum(1) > 0).double().unsqueeze(1)

    def spread(values, seeds):  # unlabelled rows stay zero: whether a row is a seed is not differentiable
        return propagate_labels(walk.with_values(values), seeds * labeled, 3, clamp=clamp)

    assert torch.autograd.gradcheck(spread, (values, seeds))


@given(st.integers(0, 1000), st.integers(1, 6))
def test_label_mass_never_grows(seed, k):
    """Rows of the walk sum to 1, so no node gets more than the largest seed."""
    y = propagate_labels(sparse_of(random_walk(6, seed)), one_hot(LABELS), k)
    assert (y >= 0).all()
    assert (y.sum(1) <= 1 + 1e-12).all()


# a block of classes at a time, on a CPU


@pytest.mark.parametrize("loss", ["literal", "official", "held_out", "influence"])
def test_labels_that_walk_in_blocks_of_classes_give_the_same_loss_and_gradient(monkeypatch, loss):
    """The other road: all classes at once. 7 classes in blocks of 3, 3 and 1 walk twice, and keep nothing in between."""
    edges = np.random.default_rng(0).integers(0, 60, (300, 2))
    graph = in_float64(Graph.from_edges(edges, num_nodes=60, y=np.arange(60) % 7, self_loops=True))
    labels = labels_of(Recipe(loss=loss), graph, torch.arange(0, 60, 2))
    widths, product = Counter(), SparseMatrix.__matmul__
    monkeypatch.setattr(SparseMatrix, "__matmul__", lambda a, x: widths.update([x.shape[1]]) or product(a, x))
    results = []
    for most, expected in ((2**28, {7: 4}), (3 * 4 * 60, {3: 16, 1: 8})):  # four steps, forwards and once more
        monkeypatch.setattr(fused, "MOST_KEPT", most)
        widths.clear()
        scores = torch.linspace(-1, 1, graph.pattern.num_entries, dtype=torch.float64).requires_grad_()
        cost = READINGS[loss](SparseMatrix(graph.pattern, scores).row_softmax(), labels, 4, Key(3, 1))
        cost.backward()
        results.append((cost.detach(), scores.grad))
        assert widths == expected
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 1e-12 * one.abs().max()


def test_the_block_of_classes_keeps_the_steps_within_bounds():
    assert class_block(1000, 40, 5) == 40  # all: little is kept
    assert class_block(111e6 / 16, 172, 5) == 7  # 7 · 5 · 6,937,500 < 2²⁸ < 8 · 5 · 6,937,500
    assert class_block(1e10, 172, 5) == 1


# influence


@pytest.mark.parametrize("seed", range(4))
def test_label_influence_is_the_sum_over_all_walks_that_end_at_their_first_labelled_node(seed):
    dense = random_walk(N, seed)
    transition = sparse_of(dense)
    labeled, iterations = random_mask(seed), 4
    expected = torch.zeros(iterations, N, N, dtype=torch.float64)
    for a, length in itertools.product(range(N), range(1, iterations + 1)):
        for path, probability in walks(dense, a, length):
            if labeled[path[-1]] and not any(labeled[v] for v in path[1:-1]):  # the start counts as unlabelled
                expected[length - 1, a, path[-1]] += probability
    found = label_influence(transition, labeled, torch.arange(N), iterations)
    torch.testing.assert_close(found.by_length, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.total, expected.sum(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_feature_influence_is_the_sum_over_all_walks_of_that_length(layers):
    dense = random_walk(N)
    transition = sparse_of(dense)
    expected = torch.zeros(N, N, dtype=torch.float64)
    for a in range(N):
        for path, probability in walks(dense, a, layers):
            expected[a, path[-1]] += probability
    found = feature_influence(transition, torch.arange(N), layers)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_the_votes_add_up_to_the_score_of_every_node(iterations, dtype):
    """Labelled nodes too: their score is the one before the last reset."""
    transition, labeled = sparse_of(random_walk(N, 1)).to(dtype), random_mask(1)
    seeds = F.one_hot(torch.arange(N) % 3, 3).to(dtype) * labeled.unsqueeze(1)
    found = label_influence(transition, labeled, torch.arange(N), iterations)
    assert found.total.dtype == dtype
    torch.testing.assert_close(found.total @ seeds, propagate_labels(transition, seeds, iterations))
    assert not found.total[:, ~labeled].any()


def test_all_nodes_absorb_all_walks_in_the_end():
    transition, labeled = sparse_of(random_walk(N, 2)), random_mask(2)
    total = label_influence(transition, labeled, torch.arange(N), 500).total.sum(dim=1)
    torch.testing.assert_close(total, torch.ones(N, dtype=torch.float64))


def test_the_influences_know_no_gradient():
    """They are read off a trained model's transition, which has one."""
    transition = sparse_of(random_walk(N))
    learned = transition.with_values(transition.values.requires_grad_())
    assert not label_influence(learned, random_mask(0), torch.tensor([0]), 2).total.requires_grad
    assert not feature_influence(learned, torch.tensor([0]), 2).requires_grad


def test_what_is_not_a_node_is_named():
    transition = sparse_of(random_walk(N))
    with pytest.raises(ValueError, match=r"there is no node 8; the graph has nodes 0 to 7"):
        label_influence(transition, random_mask(0), torch.tensor([1, 8]), 2)
    with pytest.raises(ValueError, match=r"a mask of 8 booleans"):
        label_influence(transition, torch.tensor([1, 2]), torch.tensor([1]), 2)
    with pytest.raises(ValueError, match=r"iterations = -1; a label travels at least 0 hops"):
        propagate_labels(transition, torch.eye(N), -1)
    with pytest.raises(ValueError, match=r"a walk of 0 steps"):
        feature_influence(transition, torch.tensor([1]), 0)


def test_label_influence_on_cora_is_the_gradient_of_the_score_by_the_label(datasets):
    """∂y_a / ∂y_b of Definition 2, by autograd through Eqs. (1) and (2)."""
    graph = load("cora", datasets).with_self_loops()
    transition, labeled = (
        graph.adjacency.to(torch.float64).row_normalized(),
        split(graph, (0.6, 0.2, 0.2), seed=0).train,
    )
    nodes = torch.tensor([0, 17, 1000, 1358, 2707])
    labels = labeled.to(torch.float64).unsqueeze(1).requires_grad_()  # one class: y_b = 1 where b is labelled
    score = propagate_labels(transition, labels, 5, labeled=labeled)
    found = label_influence(transition, labeled, nodes, 5).total
    for row, node in zip(found, nodes, strict=True):
        (gradient,) = torch.autograd.grad(score[node, 0], labels, retain_graph=True)
        expected = gradient.squeeze(1) * labeled  # an unlabelled node has no label to vary
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-12)
