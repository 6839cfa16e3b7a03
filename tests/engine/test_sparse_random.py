"""Random bits by counter: as many as they should be, independent, and the same wherever they are drawn."""

import math

import pytest
import torch

from gcn_lpa.engine import cpu_kernels
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout, glorot, random_share
from tests.helpers import reference_kernels
from tests.helpers.reference_kernels import use_kernels
from tests.helpers.small_graphs import sparse_of


def noise(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def some_features(n):
    """Sparse features of 30 columns."""
    return sparse_of(noise(n, 30).clamp_min(0))


def bits(*tensors):
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_what_it_should_on_average(rate):
    """A million numbers: the kept share is within five standard deviations of 1 - rate, and the rest is scaled up."""
    x = torch.ones(10_000, 100)
    dropped = dropout(x, rate, Key(3), 0)
    kept = dropped > 0
    sigma = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(kept.float().mean().item() - (1 - rate)) < 5 * sigma
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / (1 - rate)))
    for share in (kept.float().mean(0), kept.float().mean(1)):  # no row and no column stands out
        assert (share - (1 - rate)).abs().max() < 6 * (rate * (1 - rate) / (x.numel() / len(share))) ** 0.5


def test_neighbouring_elements_are_dropped_independently():
    kept = (dropout(torch.ones(1000, 1000), 0.5, Key(4), 0) > 0).double() - 0.5
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.T):
        assert abs((kept * other).mean().item()) < 5 * 0.25 / 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("seed", "step", "layer"), [(0, 0, 0), (7, 3, 2), (2**63 + 11, 2**31 + 5, 1002), (2**40, 0, 1)])
def test_both_backends_draw_the_same_bits(dtype, seed, step, layer):
    x, rows = noise(40, 33, dtype=dtype), torch.arange(40) * 2**28  # ids beyond 32 bits
    sparse = some_features(40).to(dtype)
    results = []
    for kernels in (reference_kernels, cpu_kernels):
        with use_kernels(kernels):
            arguments = 0.3, Key(seed, step), layer
            both = [(dropout(x, *arguments, ids), dropout(sparse, *arguments, ids).values) for ids in (None, rows)]
            results.append([bits(*pair) for pair in both])
    assert results[0] == results[1]


def test_sparse_and_dense_features_lose_the_same_elements(backend):
    sparse = some_features(20)
    assert torch.equal(dropout(sparse, 0.5, Key(1), 0).to_dense(), dropout(sparse.to_dense(), 0.5, Key(1), 0))


def test_a_batch_loses_the_same_elements_as_the_whole_graph(backend):
    x, rows = noise(50, 8), torch.tensor([41, 3, 17])
    batch = x[rows]
    assert torch.equal(dropout(batch, 0.5, Key(1), 0, rows), dropout(x, 0.5, Key(1), 0)[rows])
    sparse = some_features(50)
    few = SparseMatrix.from_scipy(sparse.to_scipy()[rows.numpy()], torch.float64)
    assert torch.equal(dropout(few, 0.5, Key(1), 0, rows).to_dense(), dropout(sparse, 0.5, Key(1), 0).to_dense()[rows])


def test_seed_step_and_layer_each_change_the_bits(backend):
    x = torch.ones(100, 10)
    drawn = [
        dropout(x, 0.5, key, layer).flatten().tolist()
        for key, layer in [(Key(0), 0), (Key(1), 0), (Key(2**32), 0), (Key(0, 1), 0), (Key(0), 1)]
    ]
    assert len({tuple(one) for one in drawn}) == 5


def test_a_step_on_the_device_draws_the_same_bits_as_a_number(backend):
    x = torch.ones(100, 10)
    assert torch.equal(dropout(x, 0.5, Key(1, 9), 0), dropout(x, 0.5, Key(1, torch.tensor([9])), 0))


def test_the_gradient_of_dropout_passes_where_the_element_was_kept(backend):
    x = noise(30, 4).abs().requires_grad_()
    out = dropout(x, 0.25, Key(1), 0)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out > 0).double() / 0.75)


def test_without_a_key_or_a_rate_nothing_is_dropped():
    x, sparse = noise(3, 3), some_features(3)
    assert dropout(x, 0.5, None, 0) is x
    assert dropout(x, 0.0, Key(1), 0) is x
    assert dropout(sparse, 0.5, None, 0) is sparse


def test_a_random_share_depends_on_ids_alone():
    ids = torch.tensor([5, 900, 31, 2**35])
    all_of_them = random_share(torch.arange(1000), 0.5, Key(1), 7)
    assert random_share(ids[:3], 0.5, Key(1), 7).tolist() == all_of_them[ids[:3]].tolist()
    assert random_share(ids, 1.0, Key(1), 7).tolist() == [True] * 4
    assert random_share(ids, 0.0, Key(1), 7).tolist() == [False] * 4
    assert abs(random_share(torch.arange(100_000), 0.3, Key(1), 7).float().mean().item() - 0.3) < 0.01


def test_weights_start_as_glorot():
    """Uniform up to the bound on both sides: mean 0, mean square bound² / 3."""
    weight, bound = glorot(200, 100, generator=torch.Generator().manual_seed(0)), math.sqrt(6 / 300)
    assert 0.99 * bound < weight.abs().max() <= bound
    assert abs(weight.mean().item()) < 5 * bound / math.sqrt(3 * 20_000)
    assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.05)
