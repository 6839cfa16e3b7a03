"""Operations of many models as one program: under vmap each model of a stack gets the bits it gets alone."""

import pytest
import scipy.sparse
import torch
from torch.func import grad, vmap

from gcn_lpa.data.datasets import load
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout

B = 3  # models in a stack
N, WIDTH = 9, 5
SEEDS = torch.tensor([3, 2**40 + 1, 5])


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def directed_walk():
    """A matrix that is not symmetric, with a row of its own length each: row 0 is full, row 4 is empty."""
    dense = noise(N, N, seed=1) * (noise(N, N, seed=2) > 0.3)
    dense[0], dense[4] = 1.5, 0
    return SparseMatrix.from_scipy(scipy.sparse.csr_array(dense.numpy()))


A = directed_walk()
E = A.num_entries
X = noise(N, WIDTH, seed=3)
SYMMETRIC = load("karate").adjacency

OPERATIONS = {  # the operation, and the shape of each input that differs from model to model
    "product": (lambda values, x: A.with_values(values) @ x, (E,), (N, WIDTH)),
    "product with shared values": (lambda x: A @ x, (N, WIDTH)),
    "product with shared columns": (lambda values: A.with_values(values) @ X, (E,)),
    "product of one column": (lambda values, x: A.with_values(values) @ x, (E,), (N,)),
    "product with the transpose": (lambda values, x: A.with_values(values).T @ x, (E,), (N, WIDTH)),
    "two products with one matrix": (
        lambda values, x: (matrix := A.with_values(values)) @ (matrix @ x),
        *((E,), (N, WIDTH)),
    ),
    "polynomial": (lambda numbers, x: A.polynomial(numbers, x), (4,), (N, WIDTH)),
    "polynomial with shared numbers": (lambda x: A.polynomial([0.5, 2.0, -1.0], x), (N, WIDTH)),
    "polynomial with shared columns": (lambda numbers: A.polynomial(numbers, X), (4,)),
    "polynomial of learned values": (
        lambda values, x: A.with_values(values).polynomial([1, 2, 3], x),
        (E,),
        (N, WIDTH),
    ),
    "edge_dot": (lambda u, v: A.pattern.edge_dot(u, v), (N, WIDTH), (N, WIDTH)),
    "edge_dot with shared ends": (lambda u: A.pattern.edge_dot(u, X), (N, WIDTH)),
    "edge_dot to shared ends": (lambda v: A.pattern.edge_dot(X, v), (N, WIDTH)),
    "edge_dot with itself": (lambda u: A.pattern.edge_dot(u, u), (N, WIDTH)),
    "tanh_attention": (lambda u, v, a: A.pattern.tanh_attention(u, v, a), (N, WIDTH), (N, WIDTH), (WIDTH,)),
    "row_softmax": (lambda scores: A.with_values(scores).row_softmax().values, (E,)),
    "row_sum": (lambda values: A.pattern.row_sum(values), (E,)),
    "sums of columns": (lambda values: A.with_values(values).T.row_sums(), (E,)),
    "spread_rows": (lambda per_row: A.pattern.spread_rows(per_row), (N,)),
    "spread_cols": (lambda per_col: A.pattern.spread_cols(per_col), (N,)),
    "permute": (lambda values: A.with_values(values).transposed_values, (E,)),
    "reversed_values": (lambda values: A.with_values(values).reversed_values, (E,)),
    "reversed_values of a symmetric pattern": (
        lambda values: SYMMETRIC.with_values(values).reversed_values,
        (SYMMETRIC.num_entries,),
    ),
    "dropout with shared seed": (lambda x: dropout(x, 0.4, Key(7, 2), 1), (N, WIDTH)),
}


def assert_same_bits(function, floats, seeds=()):
    """Values and gradients of the stack against those of each model under plain autograd, bit for bit."""
    result = function(*(part[0] for part in (*floats, *seeds)))
    upstream, stacked = noise(*result.shape, seed=8), [part.clone().requires_grad_() for part in floats]
    together = vmap(function)(*stacked, *seeds)
    gradients = torch.autograd.grad((together * upstream).sum(), stacked)
    for b in range(B):
        leaves = [part[b].clone().requires_grad_() for part in floats]
        alone = function(*leaves, *(part[b] for part in seeds))
        assert torch.equal(together[b], alone)
        (alone * upstream).sum().backward()
        assert all(torch.equal(found[b], leaf.grad) for found, leaf in zip(gradients, leaves, strict=True))
        assert all(leaf.grad.count_nonzero() for leaf in leaves)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_each_model_its_own_bits(name):
    function, *shapes = OPERATIONS[name]
    assert_same_bits(function, [noise(B, *shape, seed=k + 4) for k, shape in enumerate(shapes)])


def test_of_torch_func_the_engine_has_vmap_alone():
    with pytest.raises(NotImplementedError, match=r"call backward\(\)"):
        grad(lambda x: (A @ x).sum())(X)


@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_dropout_gives_each_model_the_bits_of_its_seed(stored):
    def drop(values, seed):
        key = Key(seed, 2)
        return dropout(values, 0.4, key, 1) if stored == "dense" else dropout(A.with_values(values), 0.4, key, 1).values

    floats = [noise(B, *((N, WIDTH) if stored == "dense" else (E,)))]
    assert_same_bits(drop, floats, [SEEDS])
    same_values = floats[0][:1].expand(B, *floats[0].shape[1:])
    masks = vmap(drop)(same_values, SEEDS) != 0
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
