"""What the doors take and refuse: nodes as masks and positions, and seeds."""

import numpy as np
import pytest
import torch

from gcn_lpa.data.checks import check_seed, node_mask


@pytest.mark.parametrize("nodes", [[0, 2], np.array([0, 2]), torch.tensor([2, 0]), {0, 2}, [True, False, True]])
def test_nodes_are_a_mask_or_positions(nodes):
    assert node_mask(nodes, 3).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (np.array([0, 1, 1, 0]), "train is 4 numbers that are 0 or 1: a mask is boolean"),
        (["a", "b"], r"train is a boolean mask or a list of positions, not names such as 'a'; graph\.positions_of"),
        ([4], r"train names node 4, but the graph has nodes 0\.\.3"),
        ([True, False], r"train is a mask of \[2\] entries; the graph has 4 nodes"),
        ([0.5], r"train is a boolean mask or a list of positions, not torch\.float64"),
    ],
)
def test_what_could_be_misunderstood_is_refused(nodes, message):
    with pytest.raises(ValueError, match=message):
        node_mask(nodes, 4, "train")


def test_a_seed_is_a_whole_number_of_python_or_numpy():
    assert [check_seed(3), check_seed(np.int64(3))] == [3, 3]
    for wrong in (1.5, True, "1"):
        with pytest.raises(TypeError, match="it is a whole number"):
            check_seed(wrong)
    with pytest.raises(ValueError, match="seed = -1; it is at least 0"):
        check_seed(-1)
