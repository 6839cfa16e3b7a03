"""Influence is the probability of walks: known here by listing every walk, by autograd, and by what must add up."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.model import propagate_labels
from gcn_lpa.splits import split
from gcn_lpa.tables.datasets import load
from gcn_lpa.theory.influence import (
    feature_influence,
    intra_class_feature_influence,
    intra_class_label_influence,
    label_influence,
    label_influence_blocks,
    label_influence_matrix,
)

N = 8


def random_walk(seed, dtype=torch.float64, n=N):
    """Rows of probabilities on a random graph with asymmetric weights, and the same as a dense array."""
    rng = np.random.default_rng(seed)
    joined = rng.random((n, n)) < 0.4
    weights = (joined | joined.T | np.eye(n, dtype=bool)) * rng.uniform(0.1, 3, (n, n))
    dense = torch.from_numpy(weights / weights.sum(axis=1, keepdims=True))
    return SparseMatrix.from_scipy(dense.numpy(), dtype), dense


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


@pytest.mark.parametrize("seed", range(4))
def test_label_influence_is_the_sum_over_all_walks_that_end_at_their_first_labelled_node(seed):
    transition, dense = random_walk(seed)
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
    transition, dense = random_walk(0)
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
    transition, _ = random_walk(1, dtype)
    labeled = random_mask(1)
    seeds = F.one_hot(torch.arange(N) % 3, 3).to(dtype) * labeled.unsqueeze(1)
    found = label_influence(transition, labeled, torch.arange(N), iterations)
    assert found.total.dtype == dtype
    torch.testing.assert_close(found.total @ seeds, propagate_labels(transition, seeds, iterations))
    assert not found.total[:, ~labeled].any()


def test_all_nodes_absorb_all_walks_in_the_end():
    transition, _ = random_walk(2)
    total = label_influence_matrix(transition, random_mask(2), 500).sum(dim=1)
    torch.testing.assert_close(total, torch.ones(N, dtype=torch.float64))


def test_blocks_of_nodes_give_what_all_nodes_give():
    transition, _ = random_walk(3)
    labeled, nodes = random_mask(3), torch.tensor([6, 1, 1, 4, 0])
    parts = list(label_influence_blocks(transition, labeled, 3, nodes, block=2))
    assert [part.nodes.tolist() for part in parts] == [[6, 1], [1, 4], [0]]
    found = torch.cat([part.total for part in parts])
    assert torch.equal(found, label_influence_matrix(transition, labeled, 3)[nodes])


def test_the_influences_know_no_gradient():
    """They are read off a trained model's transition, which has one."""
    transition, _ = random_walk(0)
    learned = transition.with_values(transition.values.requires_grad_())
    assert not label_influence(learned, random_mask(0), torch.tensor([0]), 2).total.requires_grad
    assert not feature_influence(learned, torch.tensor([0]), 2).requires_grad


@pytest.mark.parametrize("with_self", [True, False])
def test_intra_class_influence_sums_the_pairs_of_a_class(with_self):
    transition, _ = random_walk(4)
    labels, labeled, targets = torch.tensor([0, 1, 0, 2, -1, 2, 1, 0]), random_mask(4), random_mask(5)
    label, feature = label_influence_matrix(transition, labeled, 3), feature_influence(transition, torch.arange(N), 2)
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for a, b in itertools.product(range(N), range(N)):
        if targets[a] and labels[a] == labels[b] >= 0 and (with_self or a != b):
            expected[0, labels[a]] += label[a, b]
            expected[1, labels[a]] += feature[a, b] * labeled[b]
    found_label = intra_class_label_influence(transition, labels, labeled, 3, targets=targets, with_self=with_self)
    found_feature = intra_class_feature_influence(
        transition, labels, 2, targets=targets, sources=labeled, with_self=with_self
    )
    torch.testing.assert_close(torch.stack([found_label, found_feature]), expected)


def test_what_is_not_a_node_is_named():
    transition, _ = random_walk(0)
    with pytest.raises(ValueError, match=r"there is no node 8; the graph has nodes 0 to 7"):
        label_influence(transition, random_mask(0), torch.tensor([1, 8]), 2)
    with pytest.raises(ValueError, match=r"a mask of 8 booleans"):
        label_influence(transition, torch.tensor([1, 2]), torch.tensor([1]), 2)
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
