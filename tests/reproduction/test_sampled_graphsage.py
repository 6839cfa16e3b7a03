"""Samples of neighbours and GraphSAGE on them, against brute force, dense matrices and counts."""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.engine.sparse import Key
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import PAPER
from reproduction.methods import settings_of
from reproduction.sampled_graphsage import SampledGraphSAGE, sampled_blocks, selected_rows
from reproduction.sampling import sample_neighbours
from reproduction.training import batches_of, learn_once

RECIPE = settings_of("graphsage-sampled", PAPER["cora"]).replace(features="raw", hidden=8)


def random_graph(num_nodes=80, *, sparse=False):
    rng = np.random.default_rng(1)
    edges = rng.integers(0, num_nodes, (6 * num_nodes, 2))
    x = rng.standard_normal((num_nodes, 5)).astype(np.float32)
    x = scipy.sparse.csr_array(x * (x > 0)) if sparse else x
    return Graph.from_edges(edges, num_nodes=num_nodes, x=x, y=np.arange(num_nodes) % 3)


def drawn(graph, nodes, size, key):
    found = sample_neighbours(graph.pattern, torch.as_tensor(nodes), size, key, layer=0)
    ends = found.rowptr.tolist()
    return [found.col[a:b].tolist() for a, b in pairwise(ends)]


def test_a_sample_is_a_set_of_neighbours_and_all_of_those_of_a_node_with_few():
    graph = random_graph()
    matrix = graph.adjacency.to_scipy()
    for size in (1, 5, 12, 40):
        for node, sample in enumerate(drawn(graph, range(80), size, Key(3, 1))):
            neighbours = matrix.indices[matrix.indptr[node] : matrix.indptr[node + 1]].tolist()
            assert len(sample) == min(size, len(neighbours))
            assert sample == sorted(set(sample))
            assert set(sample) <= set(neighbours)


@pytest.mark.long
def test_every_set_of_neighbours_is_drawn_equally_often():
    """A star of 5 leaves: 10 pairs, each in 2,000 draws 200 ± 54, four standard deviations."""
    star = Graph.from_edges([(0, k) for k in range(1, 6)], num_nodes=6)
    counts = Counter(tuple(drawn(star, [0], 2, Key(0, step))[0]) for step in range(2000))
    assert set(counts) == set(combinations(range(1, 6), 2))
    assert all(abs(count - 200) < 4 * np.sqrt(2000 * 0.1 * 0.9) for count in counts.values())


def test_what_a_node_draws_does_not_depend_on_its_batch():
    graph, key = random_graph(), Key(5, 7)
    together = drawn(graph, range(80), 4, key)
    assert drawn(graph, [31], 4, key)[0] == together[31]
    assert drawn(graph, [70, 31, 2], 4, key) == [together[k] for k in (70, 31, 2)]
    assert drawn(graph, range(80), 4, Key(5, 8)) != together
    assert drawn(graph, range(80), 4, Key(6, 7)) != together


def test_rows_of_a_sparse_matrix_are_those_of_the_dense_one():
    x = random_graph(sparse=True).x
    rows = torch.tensor([7, 0, 79, 7])
    assert torch.equal(selected_rows(x, rows).to_dense(), x.to_dense()[rows])


@pytest.mark.parametrize("sparse", [False, True])
def test_samples_of_all_neighbours_give_the_logits_of_the_whole_graph(sparse):
    """The other roads: layer by layer on the whole graph, and dense matrices."""
    graph = random_graph(sparse=sparse)
    model = SampledGraphSAGE(RECIPE.replace(samples="99 99"), graph, 0)
    nodes = torch.tensor([3, 60, 11])
    exact = model(graph)
    assert torch.allclose(model.sampled(graph, nodes, Key(0, 1)), exact[nodes], atol=1e-5)
    walk = (graph.adjacency.to_dense() > 0).float()
    walk = walk / walk.sum(dim=1, keepdim=True)
    x = graph.x.to_dense()
    for k in range(2):
        x = walk @ x @ model.weights[k] + x @ model.own[k] + model.biases[k]
        x = x.relu() if k == 0 else x
    assert torch.allclose(exact, x, atol=1e-5)


def test_a_sampled_layer_reads_no_more_than_its_samples():
    """3 nodes read at most 2 neighbours each, and those 9 nodes at most 4 each."""
    first, last = sampled_blocks(random_graph().pattern, torch.tensor([3, 60, 11]), [4, 2], Key(0, 1))
    assert (last.mean.shape[0], last.mean.num_entries) == (3, 6)
    assert len(last.sources) <= 3 + 6
    assert first.mean.shape[0] == len(last.sources)
    assert len(first.sources) <= 5 * len(last.sources)
    assert torch.allclose(first.mean.row_sums(), torch.ones(len(last.sources)))


@pytest.mark.long
def test_the_mean_of_sampled_means_is_the_mean_of_all_neighbours():
    """A sample is an unbiased estimate of one layer: 4,000 draws, within five standard errors."""
    graph = random_graph()
    rows, node = graph.pattern, torch.tensor([5])
    value = graph.x[:, 0]
    draws = torch.stack([value[sample_neighbours(rows, node, 3, Key(0, step), 0).col.long()].mean() for step in range(4000)])
    all_of_them = value[graph.col[graph.row == 5].long()].mean()
    assert abs(draws.mean() - all_of_them) < 5 * draws.std() / np.sqrt(4000)


def test_batches_divide_the_training_nodes():
    graph, train = random_graph(), torch.arange(50)
    batches = batches_of(graph, train, 16)
    assert [len(batch.nodes) for batch in batches] == [16, 16, 16, 2]
    assert sorted(torch.cat([batch.nodes for batch in batches]).tolist()) == list(range(50))
    assert len(batches_of(graph, train, 512)) == len(batches_of(graph, train, 0)) == 1  # 512 are more than there are


def test_training_on_samples_learns_and_the_same_seed_learns_the_same():
    """Two cliques joined by one edge, whose features are four standard deviations apart."""
    pairs = [(a, b) for side in (0, 8) for a, b in combinations(range(side, side + 8), 2)]
    x = np.random.default_rng(0).standard_normal((16, 3)) + np.repeat([[-2.0], [2.0]], 8, axis=0)
    graph = Graph.from_edges([*pairs, (0, 8)], x=x, y=[0] * 8 + [1] * 8)
    recipe = RECIPE.replace(batch_size=3, samples="4 2", epochs=30)
    train = torch.arange(16) % 8 < 3
    one, two = (learn_once(graph, train, torch.zeros_like(train), recipe, device="cpu") for _ in "ab")
    assert [epoch.loss for epoch in one.run.history] == [epoch.loss for epoch in two.run.history]
    assert one.probabilities.argmax(dim=1).tolist() == [0] * 8 + [1] * 8


def test_samples_that_are_no_numbers_are_refused():
    for samples, why in {
        "": "samples = ''; it has a number of neighbours for each layer, such as '25 10'",
        "25 0": "samples has '0'; it is a number of neighbours, 1 to 1,000",
        "25 ten": "samples has 'ten'",
        "25 10001": "samples has '10001'",
        "9" * 5000: "samples has '9999",
    }.items():
        with pytest.raises(ValueError, match=why):
            SampledGraphSAGE(RECIPE.replace(samples=samples), random_graph(), 0)
    with pytest.raises(ValueError, match="batch_size = -1; it is not negative"):
        RECIPE.replace(batch_size=-1)
