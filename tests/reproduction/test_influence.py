"""Intra-class influence against the sum over all pairs of nodes."""

import itertools

import numpy as np
import pytest
import torch

from gcn_lpa.propagation import feature_influence, label_influence
from reproduction.influence import (
    intra_class_feature_influence,
    intra_class_label_influence,
    label_influence_matrix,
)
from tests.helpers.small_graphs import random_walk, sparse_of

N = 8


def random_mask(seed):
    return torch.from_numpy(np.random.default_rng(seed).random(N) < 0.4)


def test_blocks_of_nodes_give_what_all_nodes_give():
    transition, labeled = sparse_of(random_walk(100)), torch.arange(100) % 3 == 0  # more nodes than a block
    at_once = label_influence(transition, labeled, torch.arange(100), 3).total
    torch.testing.assert_close(label_influence_matrix(transition, labeled, 3), at_once)


@pytest.mark.parametrize("with_self", [True, False])
def test_intra_class_influence_sums_the_pairs_of_a_class(with_self):
    transition, labels = sparse_of(random_walk(N)), torch.tensor([0, 1, 0, 2, -1, 2, 1, 0])
    labeled, targets = random_mask(4), random_mask(5)
    label, feature = label_influence_matrix(transition, labeled, 3), feature_influence(transition, torch.arange(N), 2)
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for a, b in itertools.product(range(N), range(N)):
        if targets[a] and labels[a] == labels[b] >= 0 and (with_self or a != b):
            expected[0, labels[a]] += label[a, b]
            expected[1, labels[a]] += feature[a, b] * labeled[b]
    assert (expected.sum(1) > 0).all()
    options = {"targets": targets, "with_self": with_self}
    of_labels = intra_class_label_influence(transition, labels, labeled, 3, **options)
    of_features = intra_class_feature_influence(transition, labels, 2, sources=labeled, **options)
    torch.testing.assert_close(torch.stack([of_labels, of_features]), expected)
