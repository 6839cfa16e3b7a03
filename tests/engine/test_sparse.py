"""The sparse matrix against its dense twin: every operation, every backend, values and gradients."""

import os
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcn_lpa.engine import cpu_kernels, operations
from gcn_lpa.engine.operations import Transpose
from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix, dropout
from tests.helpers import reference_kernels
from tests.helpers.reference_kernels import use_kernels
from tests.helpers.small_graphs import random_walk, sparse_of

BACKENDS = (reference_kernels, cpu_kernels)
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 24, 31, 32, 33, 40, 64, 100, 200)
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_matrix(n, m, seed=0, dtype=torch.float64):
    """A sparse matrix and its dense twin, positive entries; its second row and its last column are empty."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(n, m, generator=generator, dtype=dtype) + 0.1
    dense = dense * (torch.rand(n, m, generator=generator) < 0.4)
    dense[1], dense[:, -1] = 0, 0
    row, col = dense.nonzero(as_tuple=True)
    return SparseMatrix.from_coo(row, col, dense[row, col], (n, m)), dense


def random_graph(n, degree, seed=0):
    """A large directed matrix, `degree` entries in every row, float32."""
    generator = torch.Generator().manual_seed(seed)
    col = torch.randint(n, (n, degree), generator=generator).sort(dim=1).values.flatten()
    rowptr = torch.arange(0, n * degree + 1, degree)
    return SparseMatrix(Pattern(rowptr, col, (n, n)), torch.rand(n * degree, generator=generator))


def noise(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def bits(*tensors):
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


# products


def test_four_nodes_by_hand(backend):
    """A = [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0], [4, 0, 0, 5]]"""
    values = torch.tensor([1.0, 2, 3, 4, 5], requires_grad=True)
    pattern = SparseMatrix.from_coo([0, 0, 1, 3, 3], [0, 1, 2, 0, 3], values.detach(), (4, 4)).pattern
    x = torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40]], requires_grad=True)
    y = SparseMatrix(pattern, values) @ x
    assert y.tolist() == [[5, 50], [9, 90], [0, 0], [24, 240]]
    y.backward(torch.tensor([[1.0, 1], [1, 0], [9, 9], [0, 2]]))
    assert x.grad.tolist() == [[1, 9], [2, 2], [3, 0], [0, 10]]
    assert values.grad.tolist() == [11, 22, 3, 20, 80]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_product_and_both_gradients_equal_the_dense_twin(backend, dtype, width):
    sparse, dense = random_matrix(9, 7, dtype=dtype)
    x, grad = noise(7, width, dtype=dtype), noise(9, width, seed=2, dtype=dtype)
    a, b = sparse.values.requires_grad_(), x.clone().requires_grad_()
    y = sparse @ b
    y.backward(grad)
    torch.testing.assert_close(y, dense @ x, **CLOSE[dtype])
    torch.testing.assert_close(b.grad, dense.T @ grad, **CLOSE[dtype])
    torch.testing.assert_close(a.grad, (grad @ x.T)[dense > 0], **CLOSE[dtype])


def test_each_gradient_alone_is_the_same(backend):
    """The backward pass has a road for both gradients, one for x alone and one for the values alone."""
    sparse, dense = random_matrix(6, 5)
    x, grad = noise(5, 3), noise(6, 3, seed=2)
    alone = x.clone().requires_grad_()
    (sparse @ alone).backward(grad)
    torch.testing.assert_close(alone.grad, dense.T @ grad)
    values = sparse.values.clone().requires_grad_()
    (sparse.with_values(values) @ x).backward(grad)
    torch.testing.assert_close(values.grad, (grad @ x.T)[dense > 0])


@pytest.mark.parametrize("last", [0, 1, 4])
@pytest.mark.parametrize("is_small", [True, False], ids=["in one call", "hop by hop"])
def test_a_polynomial_and_its_gradients_equal_the_dense_twin(is_small, last, two_threads, monkeypatch):
    """Also where the numbers are learned, and where nothing is."""
    if not is_small:
        monkeypatch.setattr(cpu_kernels, "ALONE", 10)
    (matrix, dense), x, numbers = random_matrix(30, 30), noise(30, 3), noise(last + 1, seed=2)
    leaves, twins = ([a.clone().requires_grad_() for a in (numbers, x)] for _ in range(2))
    found = matrix.polynomial(*leaves)
    wanted = sum(twins[0][k] * torch.linalg.matrix_power(dense, k) @ twins[1] for k in range(last + 1))
    torch.testing.assert_close(found, wanted)
    for result in (found, wanted):
        (result * noise(30, 3, seed=3)).sum().backward()
    for leaf, twin in zip(leaves, twins, strict=True):
        torch.testing.assert_close(leaf.grad, twin.grad)
    torch.testing.assert_close(matrix.polynomial(numbers.tolist(), x), wanted.detach())
    learned = matrix.with_values(matrix.values.clone().requires_grad_())
    torch.testing.assert_close(learned.polynomial(numbers, x).detach(), wanted.detach())


@pytest.mark.parametrize("directed", [False, True])
def test_breadth_first_finds_the_hops_of_scipy(directed):
    dense = torch.rand(60, 60, generator=torch.Generator().manual_seed(4)) < 0.02
    dense = dense if directed else dense | dense.T
    matrix = SparseMatrix.from_scipy(scipy.sparse.csr_array(dense.numpy().astype(float)))
    starts = torch.tensor([3, 17])
    far = scipy.sparse.csgraph.dijkstra(matrix.to_scipy(), unweighted=True, indices=starts.numpy()).min(axis=0)
    hops = cpu_kernels.breadth_first(matrix.pattern, starts)
    assert np.array_equal(np.where(hops < 0, np.inf, hops), far)
    assert np.isinf(far).any() and far[np.isfinite(far)].max() > 2


def test_a_vector_is_a_matrix_of_one_column(backend):
    sparse, dense = random_matrix(6, 5)
    assert (sparse @ noise(5)).shape == (6,)
    torch.testing.assert_close(sparse @ noise(5), dense @ noise(5))


def test_rows_of_a_wider_matrix_and_transposed_memory_are_read_right(backend):
    sparse, dense = random_matrix(6, 5)
    wide = noise(5, 9)
    torch.testing.assert_close(sparse @ wide[:, 2:5], dense @ wide[:, 2:5])
    torch.testing.assert_close(sparse @ noise(4, 5).T, dense @ noise(4, 5).T)
    torch.testing.assert_close(sparse @ wide[:, :1].expand(5, 8), dense @ wide[:, :1].expand(5, 8))


def test_a_hub_and_its_leaves(backend):
    """One row with thousands of entries beside rows of one."""
    n = 5000
    leaves = torch.arange(1, n)
    hub = torch.zeros_like(leaves)
    ends = torch.cat([hub, leaves]), torch.cat([leaves, hub])
    star = SparseMatrix.from_coo(*ends, torch.ones(2 * n - 2, dtype=torch.float64), (n, n))
    y = star @ torch.arange(n).double().unsqueeze(1)
    assert y[0].item() == n * (n - 1) / 2
    assert y[1:].count_nonzero() == 0


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 3)])
def test_a_matrix_without_entries(backend, shape):
    empty = SparseMatrix.from_coo([], [], torch.zeros(0), shape)
    x = torch.ones(shape[1], 4, requires_grad=True)
    y = empty @ x
    assert torch.equal(y, torch.zeros(shape[0], 4))
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(empty.row_sums(), torch.zeros(shape[0]))
    assert len(empty.row_softmax().values) == len(empty.T.values) == 0
    assert empty.to_dense().shape == shape


def test_no_columns_give_no_columns_and_no_gradient(backend):
    sparse, _ = random_matrix(6, 5)
    x, values = torch.zeros(5, 0, dtype=torch.float64, requires_grad=True), sparse.values.clone().requires_grad_()
    y = sparse.with_values(values) @ x
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((6, 0), (5, 0))
    assert values.grad.count_nonzero() == 0
    assert sparse.pattern.edge_dot(noise(6, 0), noise(5, 0)).count_nonzero() == 0


@pytest.mark.long  # compiles every kernel anew
def test_eight_byte_indices_give_the_same_bits(backend):
    """Patterns beyond 2³¹ entries count in int64; the kernels must not care."""
    sparse, _ = random_matrix(9, 9)
    narrow = sparse.pattern
    assert narrow.col.dtype == narrow.rowptr.dtype == narrow.order.dtype == torch.int32
    wide = Pattern(narrow.rowptr, narrow.col, sparse.shape)
    wide.rowptr, wide.col = wide.rowptr.long(), wide.col.long()
    assert wide.order.dtype == torch.int64

    def everything(pattern):
        values, x = sparse.values.clone().requires_grad_(), noise(9, 5).requires_grad_()
        matrix = SparseMatrix(pattern, values).row_softmax()
        dot = pattern.edge_dot(x, x)
        y = matrix @ x + matrix.T @ x
        (y.sum() + (matrix.row_sums() * matrix.diagonal()).sum() + dot.square().sum()).backward()
        return bits(y, dot, values.grad, x.grad, dropout(matrix, 0.5, Key(0), 0).values)

    assert everything(wide) == everything(sparse.pattern)


def test_patterns_that_need_eight_byte_indices_get_them():
    assert Pattern(torch.tensor([0, 1]), torch.tensor([2**31]), (1, 2**31 + 1)).col.dtype == torch.int64


# every other operation: ours, and the same on (dense, where it has entries, x)

PRESENT = torch.finfo(torch.float64).tiny
OPERATIONS = {
    "product": (lambda a, x: a @ x, lambda a, at, x: a @ x),
    "T": (lambda a, x: a.T @ (a @ x), lambda a, at, x: a.T @ (a @ x)),
    "T twice": (lambda a, x: a.T.T @ x, lambda a, at, x: a @ x),
    "to_dense": (lambda a, x: a.to_dense() * x[:, :1], lambda a, at, x: a * x[:, :1]),
    "T to_dense": (lambda a, x: a.T.to_dense(), lambda a, at, x: a.T),
    "row_sums": (lambda a, x: a.row_sums(), lambda a, at, x: a.sum(1)),
    "sums of columns": (lambda a, x: a.T.row_sums(), lambda a, at, x: a.sum(0)),
    "diagonal": (lambda a, x: a.diagonal(), lambda a, at, x: a.diagonal()),
    "spread_rows": (
        lambda a, x: a.with_values(a.pattern.spread_rows(x[:, 0].contiguous())).to_dense(),
        lambda a, at, x: x[:, :1] * at,
    ),
    "spread_cols": (
        lambda a, x: a.with_values(a.pattern.spread_cols(x[:, 0].contiguous())).to_dense(),
        lambda a, at, x: x[:, 0] * at,
    ),
    "edge_dot": (
        lambda a, x: a.with_values(a.pattern.edge_dot(x, 2 * x.roll(1))).to_dense(),
        lambda a, at, x: (x @ (2 * x.roll(1)).T) * at,
    ),
    "tanh_attention": (
        lambda a, x: a.with_values(a.pattern.tanh_attention(x, x.roll(1), x[0])).to_dense(),
        lambda a, at, x: ((x.unsqueeze(1) + x.roll(1)).tanh() @ x[0]) * at,
    ),
    "row_normalized": (
        lambda a, x: a.row_normalized() @ x,
        lambda a, at, x: (a / a.sum(1, keepdim=True).clamp_min(PRESENT)) @ x,
    ),
    "symmetric_normalized": (
        lambda a, x: a.symmetric_normalized() @ x,
        lambda a, at, x: (a / (a.sum(1, keepdim=True) * a.sum(1)).clamp_min(PRESENT).sqrt()) @ x,
    ),
    "row_softmax": (
        lambda a, x: a.row_softmax() @ x,
        lambda a, at, x: torch.where(at, a, -torch.inf).softmax(1).where(at, 0) @ x,
    ),
    "symmetric_softmax": (
        lambda a, x: a.symmetric_softmax() @ x,
        lambda a, at, x: (
            (a.exp() * at) / ((a.exp() * at).sum(1, keepdim=True) * (a.exp() * at).sum(1)).clamp_min(PRESENT).sqrt() @ x
        ),
    ),
    "log and add": (
        lambda a, x: a.log().add(x[0, 0] * torch.ones_like(a.values)).row_softmax().to_dense(),
        lambda a, at, x: a / a.sum(1, keepdim=True).clamp_min(PRESENT),
    ),
}


@pytest.fixture
def square():
    """Six nodes, directed; node 1 has no row, node 5 neither row nor column."""
    dense = random_matrix(6, 6, seed=3)[1]
    dense[:, 1], dense[5] = 0, 0
    dense[0, 0] = dense[2, 4] = 0.5
    row, col = dense.nonzero(as_tuple=True)
    return SparseMatrix.from_coo(row, col, dense[row, col], (6, 6)), dense


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_and_their_gradients_equal_the_dense_twin(backend, operation, square):
    (sparse, dense), (ours, twin) = square, OPERATIONS[operation]
    x, weight = noise(6, 4), noise(6, 6, seed=2)
    at = dense > 0

    def with_gradients(function, *leaves):
        leaves = [leaf.clone().requires_grad_() for leaf in leaves]
        out = function(*leaves)
        (out * weight[tuple(slice(size) for size in out.shape)]).sum().backward()
        return out, *(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)

    out, grad_values, grad_x = with_gradients(lambda v, x: ours(sparse.with_values(v), x), sparse.values, x)
    expected, grad_dense, expected_x = with_gradients(lambda a, x: twin(a * at, at, x), dense, x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(grad_values, grad_dense[at])
    torch.testing.assert_close(grad_x, expected_x)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_gradients_equal_finite_differences(backend, operation, square):
    sparse, ours = square[0], OPERATIONS[operation][0]
    inputs = sparse.values.clone().requires_grad_(), noise(6, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda v, x: ours(sparse.with_values(v), x), inputs)


def test_both_directions_of_an_edge_find_each_other(backend):
    """The entry (j, i) at (i, j), by hand: of 0 - 1 - 2 in both directions, and where some ways are not there."""
    both = SparseMatrix.from_coo([0, 1, 1, 2], [1, 0, 2, 1], torch.tensor([1.0, 2, 3, 4]), (3, 3))
    assert both.reversed_values.tolist() == [2, 1, 4, 3]
    one_way = SparseMatrix.from_coo([0, 1], [1, 2], torch.ones(2), (3, 3))
    assert one_way.reversed_values.tolist() == [0, 0]
    values = torch.tensor([5.0, 1, 2, 3], requires_grad=True)  # a self-loop at 0, 0 - 1 both ways, 1 <- 2 alone
    mixed = SparseMatrix(Pattern(torch.tensor([0, 2, 4, 4]), torch.tensor([0, 1, 0, 2]), (3, 3)), values)
    assert mixed.reversed_values.tolist() == [5, 2, 1, 0]
    assert mixed.pattern.reverse.tolist() == [0, 2, 1, -1]
    (mixed.reversed_values * torch.tensor([1.0, 10, 100, 1000])).sum().backward()
    assert values.grad.tolist() == [1, 100, 10, 0]


def test_a_node_that_only_sends_gets_weight_zero_in_the_symmetric_normalisation(backend):
    """0 -> 1 alone: node 0 has degree 0, and D^-½ of it is taken as 0, not as 1e19."""
    arrow = SparseMatrix.from_coo([1], [0], torch.ones(1), (2, 2))
    values = arrow.values.clone().requires_grad_()
    out = arrow.with_values(values).symmetric_normalized().values
    out.sum().backward()
    assert out.tolist() == values.grad.tolist() == [0]


def test_softmax_does_not_overflow(backend):
    scores = SparseMatrix.from_coo([0, 0, 1, 1], [0, 1, 0, 1], torch.tensor([1e4, 1e4, -1e4, 1e4]), (2, 2))
    assert scores.row_softmax().values.tolist() == [0.5, 0.5, 0, 1]


def test_changing_the_type_keeps_the_numbers():
    sparse, dense = random_matrix(6, 5)
    assert torch.equal(sparse.to(torch.float32).to_dense(), dense.float())
    assert sparse.to("cpu").pattern is sparse.pattern
    assert repr(sparse) == f"SparseMatrix(6 x 5, {sparse.num_entries} entries, torch.float64, cpu)"


# how a matrix is made


def test_duplicates_are_summed_and_columns_sorted():
    matrix = SparseMatrix.from_coo([1, 0, 1, 0, 1], [2, 1, 0, 1, 2], torch.tensor([1.0, 2, 3, 4, 5]), (2, 3))
    assert matrix.pattern.rowptr.tolist() == [0, 1, 3]
    assert matrix.pattern.col.tolist() == [1, 0, 2]
    assert matrix.values.tolist() == [6, 3, 6]


def test_scipy_there_and_back():
    original = scipy.sparse.random_array((5, 8), density=0.3, rng=np.random.default_rng(0), format="coo")
    matrix = SparseMatrix.from_scipy(original, torch.float64)
    assert (matrix.to_scipy() != original.tocsr()).nnz == 0
    assert np.array_equal(matrix.to_dense().numpy(), original.toarray())


def test_a_scipy_matrix_with_unsorted_duplicates_is_left_as_it_was():
    original = scipy.sparse.csr_array(([1.0, 2.0, 3.0], [2, 0, 2], [0, 3]), shape=(1, 3))
    assert SparseMatrix.from_scipy(original).to_dense().tolist() == [[2, 0, 4]]
    assert original.indices.tolist() == [2, 0, 2]


def test_an_undirected_pattern_is_its_own_transpose():
    """The columns are not stored a second time."""
    both = SparseMatrix.from_coo([0, 1, 1, 2], [1, 0, 2, 1], torch.ones(4), (3, 3)).pattern
    assert both.T is both
    assert both.order.tolist() == [1, 0, 3, 2]


def test_a_ring_of_arrows_is_not_its_own_transpose(backend):
    """0 <- 1 <- 2 <- 0: every row and every column has one entry, but not the same one."""
    ring = SparseMatrix.from_coo([0, 1, 2], [1, 2, 0], torch.tensor([1.0, 2, 3]), (3, 3))
    assert (ring.T @ torch.tensor([1.0, 10, 100])).tolist() == [300, 1, 20]
    x = torch.ones(3, 1, requires_grad=True)
    (ring @ x).backward(torch.tensor([[1.0], [10], [100]]))
    assert x.grad.flatten().tolist() == [300, 1, 20]


def test_the_fingerprint_tells_patterns_apart():
    one, _ = random_matrix(6, 6)
    again, other = random_matrix(6, 6)[0], random_matrix(6, 6, seed=9)[0]
    assert one.pattern.fingerprint == again.pattern.fingerprint != other.pattern.fingerprint
    assert one.pattern.fingerprint != Pattern(one.pattern.rowptr, one.pattern.col, (6, 7)).fingerprint


def test_wrong_operands_are_refused_with_their_shapes_and_types():
    sparse, _ = random_matrix(6, 5)
    with pytest.raises(ValueError, match=r"cannot multiply 6 x 5 by \(6, 2\)"):
        sparse @ noise(6, 2)
    with pytest.raises(ValueError, match=r"cannot multiply 6 x 5 by \(5, 2, 2\)"):
        sparse @ noise(5, 2, 2)
    with pytest.raises(ValueError, match=r"float64 .*float32"):
        sparse @ torch.ones(5, 2)
    with pytest.raises(ValueError, match=rf"{sparse.num_entries} entries .*\[3\]"):
        sparse.with_values(torch.ones(3))
    with pytest.raises(TypeError, match=r"float32 or float64, not torch.bfloat16"):
        sparse.to(torch.bfloat16) @ torch.ones(5, 2, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["row_sum", "spread_rows", "spread_cols"])
def test_arrays_of_the_wrong_length_are_refused_before_a_kernel_reads_past_their_end(name):
    pattern = random_matrix(6, 5)[0].pattern
    with pytest.raises(ValueError, match=r"\(3,\)"):
        getattr(pattern, name)(noise(3))


def test_edge_dot_refuses_rows_that_do_not_fit():
    pattern = random_matrix(6, 5)[0].pattern
    for u, v in [((5, 2), (5, 2)), ((6, 2), (6, 2)), ((6, 2), (5, 3))]:
        with pytest.raises(ValueError, match="edge_dot"):
            pattern.edge_dot(noise(*u), noise(*v))


# what is kept between products must not go stale


def test_values_changed_in_place_are_seen_by_the_next_backward_pass(backend):
    sparse, dense = random_matrix(6, 5)
    values, x = sparse.values.clone().requires_grad_(), noise(5, 2).requires_grad_()
    matrix = sparse.with_values(values)
    (matrix @ x).sum().backward()
    with torch.no_grad():
        values.mul_(10)
    x.grad = None
    (matrix @ x).sum().backward()
    torch.testing.assert_close(x.grad, 10 * dense.T @ torch.ones(6, 2).double())


def test_a_transpose_taken_without_gradients_does_not_cut_later_ones(backend):
    sparse, _ = random_matrix(6, 5)
    values = sparse.values.clone().requires_grad_()
    matrix = sparse.with_values(values)
    with torch.no_grad():
        matrix.T @ noise(6, 2)
    (matrix @ noise(5, 2)).sum().backward()
    assert values.grad is not None


def test_products_work_in_inference_mode(backend):
    with torch.inference_mode():
        sparse, dense = random_matrix(6, 5)
        torch.testing.assert_close(sparse.T @ (sparse @ noise(5, 2)), dense.T @ (dense @ noise(5, 2)))


def test_the_transpose_is_sorted_once_and_its_values_once_for_many_products(monkeypatch):
    calls = []
    apply = operations.apply
    monkeypatch.setattr(operations, "apply", lambda function, *a: calls.append(function) or apply(function, *a))
    sparse, _ = random_matrix(6, 6)
    matrix, x = sparse.with_values(sparse.values.requires_grad_()), noise(6, 3).requires_grad_()
    y = matrix @ (matrix @ (matrix @ x))
    y.sum().backward()
    assert calls.count(Transpose) == 2  # the values to the order of the transpose, their gradient back


# identity


def test_the_identity_needs_no_product(monkeypatch, backend):
    for kernels in BACKENDS:
        monkeypatch.setattr(kernels, "spmm", lambda *_: pytest.fail("a product was computed"))
    eye, x = SparseMatrix.identity(5, torch.float64), noise(5, 3)
    assert torch.equal(eye @ x, x)
    assert torch.equal(eye.with_values(noise(5)) @ x, noise(5).unsqueeze(1) * x)
    assert eye.pattern.is_identity
    assert not random_matrix(5, 5)[0].pattern.is_identity


def test_only_the_identity_is_taken_for_one():
    turned = SparseMatrix.from_coo([0, 1, 2], [1, 2, 0], torch.ones(3), (3, 3))
    wide = SparseMatrix.from_coo([0, 1, 2], [0, 1, 2], torch.ones(3), (3, 4))
    lower = SparseMatrix.from_coo([0, 0, 2], [0, 1, 2], torch.ones(3), (3, 3))
    assert not any(matrix.pattern.is_identity for matrix in (turned, wide, lower))


def test_a_learned_diagonal_still_gets_its_gradient(backend):
    values = torch.ones(5, dtype=torch.float64, requires_grad=True)
    (SparseMatrix.identity(5).with_values(values) @ noise(5, 3)).sum().backward()
    torch.testing.assert_close(values.grad, noise(5, 3).sum(1))


# sparse features


def test_row_products_are_the_products_of_the_features_of_both_ends(backend):
    x, dense = random_matrix(6, 9)
    pairs = random_matrix(6, 6, seed=5)[0].pattern
    products = x.row_products(pairs)
    assert products.shape == (pairs.num_entries, 9)
    expected = dense[pairs.row.long()] * dense[pairs.col.long()]
    torch.testing.assert_close(products.to_dense(), expected)
    weights = torch.rand(9, dtype=torch.float64, requires_grad=True)
    (products @ weights).square().sum().backward()
    torch.testing.assert_close(weights.grad, 2 * expected.T @ (expected @ weights.detach()))


def test_row_products_of_many_pairs_are_found_in_blocks():
    """All 16 pairs of 4 full rows of 400,000: more than are multiplied at once."""
    full = torch.arange(1.0, 5).repeat_interleave(400_000)
    x = SparseMatrix(Pattern(torch.arange(5) * 400_000, torch.arange(400_000).repeat(4), (4, 400_000)), full)
    pairs = SparseMatrix.from_scipy(scipy.sparse.csr_array(np.ones((4, 4)))).pattern
    sizes = torch.arange(1.0, 5)
    assert torch.equal(x.row_products(pairs).row_sums().view(4, 4), 400_000 * sizes.outer(sizes))


def test_row_products_of_no_pairs():
    no_pairs = SparseMatrix.from_coo([], [], torch.zeros(0), (6, 6)).pattern
    assert random_matrix(6, 9)[0].row_products(no_pairs).shape == (0, 9)


def test_square_norms_of_sparse_rows(backend):
    x, dense = random_matrix(6, 9)
    weights = torch.rand(9, dtype=torch.float64)
    torch.testing.assert_close(x.square_norms(), dense.square().sum(1))
    torch.testing.assert_close(x.square_norms(weights), dense.square() @ weights)


# properties of any matrix


@st.composite
def entries(draw):
    """Size, and (row, col, value) triples with repetitions; values are eighths, so every sum is exact."""
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    triples = draw(st.lists(st.tuples(node, node, st.integers(-40, 40)), max_size=30))
    return n, [(i, j, v / 8) for i, j, v in triples]


def build(n, triples):
    row, col, values = zip(*triples, strict=True) if triples else ((), (), ())
    return SparseMatrix.from_coo(row, col, torch.tensor(values, dtype=torch.float64), (n, n))


def counting(n):
    """Small integers: products with eighths stay exact in any order."""
    return torch.arange(2 * n, dtype=torch.float64).view(n, 2)


@given(entries(), st.randoms())
def test_the_order_in_which_edges_are_named_does_not_matter(data, random):
    n, triples = data
    shuffled = random.sample(triples, len(triples))
    one, other = build(n, triples), build(n, shuffled)
    assert one.pattern.fingerprint == other.pattern.fingerprint
    assert bits(one.values, one @ counting(n)) == bits(other.values, other @ counting(n))


@given(entries())
def test_an_edge_named_twice_is_one_edge_of_the_summed_weight(data):
    n, triples = data
    merged = {}
    for i, j, value in triples:
        merged[i, j] = merged.get((i, j), 0) + value
    one, other = build(n, triples), build(n, [(*pair, value) for pair, value in merged.items()])
    assert one.num_entries == len(merged)
    assert bits(one.values, one @ counting(n)) == bits(other.values, other @ counting(n))


@given(entries(), st.randoms())
def test_relabelling_the_nodes_relabels_the_result(data, random):
    n, triples = data
    name = random.sample(range(n), n)
    x = counting(n)
    relabelled = build(n, [(name[i], name[j], value) for i, j, value in triples])
    moved = torch.empty_like(x)
    moved[name] = x
    assert torch.equal((relabelled @ moved)[name], build(n, triples) @ x)


@pytest.mark.parametrize("kernels", BACKENDS)
@given(data=entries())
def test_the_rows_of_a_softmax_sum_to_one(kernels, data):
    n, triples = data
    with use_kernels(kernels):
        weights = build(n, triples).row_softmax()
        sums = weights.row_sums()
    has_entries = torch.tensor([any(i == row for i, _, _ in triples) for row in range(n)], dtype=torch.float64)
    torch.testing.assert_close(sums, has_entries)
    assert (weights.values > 0).all()


@given(entries())
def test_both_backends_agree_on_any_matrix(data):
    n, triples = data
    results = []
    for kernels in BACKENDS:
        with use_kernels(kernels):
            matrix = build(n, triples)
            results.append((matrix @ counting(n), matrix.T @ counting(n), matrix.row_sums(), matrix.to_dense()))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


# threads


def everything(matrix, x):
    """Bits of a product, its gradients, a softmax, its gradient, a dot and a dropout."""
    values, x = matrix.values.clone().requires_grad_(), x.clone().requires_grad_()
    weights = matrix.with_values(values).row_softmax()
    y = weights @ x
    dot = weights.pattern.edge_dot(x, y)
    (dropout(y, 0.5, Key(1), 0).square().sum() + dot.sum()).backward()
    return bits(weights.values, y, dot, values.grad, x.grad)


@pytest.mark.long
def test_reruns_have_the_same_bits_on_two_threads_and_on_one(two_threads, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "ALONE", 1000)  # every kernel is shared among the threads
    matrix, x = random_graph(40_000, 5), noise(40_000, 33, dtype=torch.float32)
    first = everything(matrix, x)
    assert all(everything(matrix, x) == first for _ in range(4))
    torch.set_num_threads(1)
    assert everything(matrix, x) == first


@pytest.mark.long
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_no_more_threads_run_than_torch_was_given(num_threads, two_threads):
    matrix = random_graph(40_000, 50)
    assert matrix.num_entries * 32 > 3 * cpu_kernels.ALONE, "too small to be shared among threads"
    threads, rows, running, most, lock = set(), [], [0], [0], threading.Lock()

    def kernel(lo, hi):
        with lock:
            threads.add(threading.get_ident())
            rows.append((lo, hi))
            running[0] += 1
            most[0] = max(most[0], running[0])
        np.sin(np.zeros(300_000)).sum()
        with lock:
            running[0] -= 1

    torch.set_num_threads(num_threads)
    cpu_kernels._over_rows(kernel, matrix.pattern, 32)
    assert most[0] <= num_threads
    assert len(threads) <= num_threads
    assert sorted(rows)[0][0] == 0
    assert [hi for _, hi in sorted(rows)] == [*[lo for lo, _ in sorted(rows)[1:]], 40_000]


def test_the_rows_are_shared_out_by_work_not_by_number():
    """Row 0 has 1,000 of the 1,099 entries: it is a share of its own."""
    rowptr = torch.cat([torch.tensor([0]), torch.arange(1000, 1100)])
    shares = Pattern(rowptr, torch.zeros(1099, dtype=torch.int64), (100, 1)).shares(2)
    assert shares == [0, 1, 100]


def test_a_small_product_wakes_no_thread(monkeypatch, two_threads):
    monkeypatch.setattr(cpu_kernels, "_pool", None)
    sparse, _ = random_matrix(6, 5)
    sparse @ noise(5, 2)
    assert cpu_kernels._pool is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_can_multiply(two_threads):
    """Threads do not survive a fork; the child makes its own."""
    matrix, x = random_graph(40_000, 5), noise(40_000, 32, dtype=torch.float32)
    expected = bits(matrix @ x)
    assert cpu_kernels._pool is not None, "too small to be shared among threads"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)  # ends a child that waits for a thread it does not have
            code = 0 if cpu_kernels._pool is None and bits(matrix @ x) == expected and cpu_kernels._pool is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_error_inside_a_thread_reaches_the_caller(two_threads):
    def kernel(lo, hi):
        if lo > 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cpu_kernels._share(kernel, [0, 1, 2])


# memory

PEAK = """
import torch
from gcn_lpa.engine.sparse import Pattern, SparseMatrix

n, degree, d = 100_000, 5, 32
col = torch.randint(n, (n, degree), generator=torch.Generator().manual_seed(0)).sort(dim=1).values.flatten()

def step(matrix, x, grad):
    y = matrix @ x
    y.backward(grad)

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

small = SparseMatrix(Pattern(torch.tensor([0, 1]), torch.tensor([0]), (1, 1)), torch.ones(1).requires_grad_())
step(small, torch.ones(1, d).requires_grad_(), torch.ones(1, d))  # compile
pattern = Pattern(torch.arange(0, n * degree + 1, degree), col, (n, n))
matrix = SparseMatrix(pattern, torch.ones(n * degree).requires_grad_())
del col
pattern.T.order, pattern.shares(2), pattern.T.shares(2)  # once per graph
x, grad = torch.ones(n, d).requires_grad_(), torch.ones(n, d)
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")  # the peak starts from here
before = memory("VmRSS")
step(matrix, x, grad)
print(memory("VmHWM") - before, n * degree * d * 4, 4 * (2 * n * d + n * degree))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc")
def test_a_product_and_its_gradients_need_no_array_of_entries_times_columns():
    """Beyond the outputs (y and both gradients) less than 5 % of [E, d]."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed leaves the process
    done = subprocess.run([sys.executable, "-c", PEAK], env=environment, capture_output=True, text=True, check=True)
    extra, entries_times_columns, outputs = map(int, done.stdout.split())
    assert extra - outputs < 0.05 * entries_times_columns


# edges left out at random


def test_rows_still_sum_to_one_when_edges_are_left_out():
    walk = sparse_of(random_walk(200))
    thin = walk.drop_edges(0.4, Key(1, 2))
    torch.testing.assert_close(thin.row_sums(), torch.ones(200).double())
    assert (thin.diagonal() > 0).all()  # self-loops stay
    off = walk.pattern.row != walk.pattern.col
    left_out = (thin.values[off] == 0).double().mean().item()
    assert abs(left_out - 0.4) < 5 * (0.24 / off.sum().item()) ** 0.5
    kept = thin.values > 0
    ratio = thin.values[kept] / walk.values[kept]  # what is left keeps its proportions
    assert torch.allclose(ratio, (1 / walk.with_values(walk.values * kept).row_sums())[walk.pattern.row[kept].long()])
    assert walk.drop_edges(0.4, None) is walk
    assert walk.drop_edges(0.0, Key(1)) is walk


def test_a_row_that_keeps_almost_nothing_still_sums_to_one():
    """All the weight is on the edge that is left out; what remains, 1e-9, becomes the whole."""
    walk = sparse_of(torch.tensor([[1e-9, 1 - 1e-9], [0.5, 0.5]]).double())
    rows = [walk.drop_edges(0.5, Key(0, step)).row_sums()[0].item() for step in range(10)]
    assert rows == pytest.approx([1.0] * 10)


def test_the_symmetric_softmax_leaves_out_the_same_edges_before_it_counts_degrees():
    walk, key = sparse_of(random_walk(30)), Key(1, 2)
    there = walk.drop_edges(0.4, key).to_dense() > 0
    strength = walk.to_dense().exp() * there
    degree = strength.sum(1)
    found = walk.symmetric_softmax(0.4, key).to_dense()
    torch.testing.assert_close(found, strength / (degree.unsqueeze(1) * degree).sqrt())
    assert torch.equal(walk.symmetric_softmax(0.4).values, walk.symmetric_softmax().values)  # without a key all stay


def test_a_repeated_pattern_is_the_block_diagonal_of_its_copies():
    dense = np.array([[1.0, 0, 2], [0, 0, 3]])
    matrix = SparseMatrix.from_scipy(scipy.sparse.csr_array(dense))
    blocks = matrix.pattern.repeated(3)
    values = torch.arange(1.0, 10)
    wanted = torch.zeros(6, 9)
    for b in range(3):
        wanted[2 * b, 3 * b], wanted[2 * b, 3 * b + 2], wanted[2 * b + 1, 3 * b + 2] = values[3 * b : 3 * b + 3]
    found = SparseMatrix(blocks, values)
    assert torch.equal(found.to_dense(), wanted)
    assert torch.equal(found.T.to_dense(), found.to_dense().T)
    assert matrix.pattern.repeated(3) is blocks
