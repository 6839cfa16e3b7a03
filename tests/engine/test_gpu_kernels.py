"""The GPU kernels against a dense twin: on a GPU where there is one, else through Triton's interpreter."""

import pytest
import torch

from tests.helpers.triton_interpreter import DEVICE, test_in_a_process_of_their_own, triton  # noqa: F401

# The interpreter is on before the kernels are imported.
# isort: split
from gcn_lpa.engine import gpu_kernels
from gcn_lpa.engine.sparse import Key, Pattern, SparseMatrix, dropout
from tests.helpers import reference_kernels
from tests.helpers.reference_kernels import use_kernels

N, M = 18, 24  # rows and columns of the test matrix
WIDTHS = (1, 7, 8, 33, 40, 130)
CLOSE = {
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
}


@pytest.fixture(params=[8, 512], ids=["long rows cut", "no long rows"])
def long(request, monkeypatch):
    """Rows with more entries than this are cut into chunks; the hub of `hub_matrix` has 24."""
    monkeypatch.setattr(gpu_kernels, "LONG", request.param)


def hub_matrix(dtype=torch.float64, n=N, m=M):
    """A sparse matrix and its dense twin: row 0 and column 2 are full, row 1 is empty, the rest is thin."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(n, m, generator=generator, dtype=torch.float64) + 0.1
    kept = torch.rand(n, m, generator=generator) < 0.1
    kept[0], kept[:, 2], kept[1] = True, True, False
    dense = (dense * kept).to(dtype)
    row, col = dense.nonzero(as_tuple=True)
    matrix = SparseMatrix.from_coo(row, col, dense[row, col].double(), (n, m)).to(dtype)
    return matrix.to(DEVICE), dense.to(DEVICE)


def noise(*shape, seed=1, dtype=torch.float64):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype).to(DEVICE)


def test_four_nodes_by_hand():
    """A = [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0], [4, 0, 0, 5]]"""
    matrix = SparseMatrix.from_coo([0, 0, 1, 3, 3], [0, 1, 2, 0, 3], torch.tensor([1.0, 2, 3, 4, 5]), (4, 4)).to(DEVICE)
    values = matrix.values.clone().requires_grad_()
    x = torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40]], device=DEVICE, requires_grad=True)
    y = matrix.with_values(values) @ x
    assert y.tolist() == [[5, 50], [9, 90], [0, 0], [24, 240]]
    y.backward(torch.tensor([[1.0, 1], [1, 0], [9, 9], [0, 2]], device=DEVICE))
    assert x.grad.tolist() == [[1, 9], [2, 2], [3, 0], [0, 10]]
    assert values.grad.tolist() == [11, 22, 3, 20, 80]


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "width"),
    [*[(torch.float64, width) for width in WIDTHS], *[(dtype, 33) for dtype in (torch.float32, torch.bfloat16)]],
    ids=str,
)
def test_product_and_both_gradients_equal_the_dense_twin(long, dtype, width):
    sparse, dense = hub_matrix(dtype)
    x, grad = noise(M, width, dtype=dtype), noise(N, width, seed=2, dtype=dtype)
    values, b = sparse.values.requires_grad_(), x.clone().requires_grad_()
    y = sparse @ b
    y.backward(grad)
    at, exact = dense > 0, (dense.double(), x.double(), grad.double())
    torch.testing.assert_close(y.double(), exact[0] @ exact[1], **CLOSE[dtype])
    torch.testing.assert_close(b.grad.double(), exact[0].T @ exact[2], **CLOSE[dtype])
    torch.testing.assert_close(values.grad.double(), (exact[2] @ exact[1].T)[at], **CLOSE[dtype])


@pytest.mark.long
def test_rows_beyond_the_first_programs_are_reached(long):
    """150 rows: several programs of every kernel, the last of them not full."""
    sparse, dense = hub_matrix(n=150)
    x, values = noise(M, 3), sparse.values.clone().requires_grad_()
    soft = sparse.with_values(values).row_softmax()
    y = soft @ x
    y.backward(noise(150, 3, seed=2))
    twin, at = dense.clone().requires_grad_(), dense > 0
    expected = torch.where(at, twin, -torch.inf).softmax(1).where(at, 0) @ x
    expected.backward(noise(150, 3, seed=2))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(values.grad, twin.grad[at])
    torch.testing.assert_close(sparse.row_sums(), dense.sum(1))


@pytest.mark.long
def test_each_gradient_alone_is_the_same(long):
    sparse, dense = hub_matrix()
    x, grad = noise(M, 9), noise(N, 9, seed=2)
    alone = x.clone().requires_grad_()
    (sparse @ alone).backward(grad)
    torch.testing.assert_close(alone.grad, dense.T @ grad)
    values = sparse.values.clone().requires_grad_()
    (sparse.with_values(values) @ x).backward(grad)
    torch.testing.assert_close(values.grad, (grad @ x.T)[dense > 0])


@pytest.mark.long
def test_strided_operands_are_read_right(long):
    sparse, dense = hub_matrix()
    wide = noise(M, 20)
    torch.testing.assert_close(sparse @ wide[:, 3:12], dense @ wide[:, 3:12])
    torch.testing.assert_close(sparse @ noise(5, M).T, dense @ noise(5, M).T)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_row_operations_equal_the_dense_twin(long, dtype):
    sparse, dense = hub_matrix(dtype)
    at = dense > 0
    torch.testing.assert_close(sparse.row_sums(), dense.sum(1))
    torch.testing.assert_close(sparse.T.row_sums(), dense.sum(0))
    torch.testing.assert_close(sparse.T @ noise(N, 3, dtype=dtype), dense.T @ noise(N, 3, dtype=dtype))
    soft = torch.where(at, dense, -torch.inf).softmax(1).where(at, 0)
    torch.testing.assert_close(sparse.row_softmax().to_dense(), soft)
    u, v = noise(N, 9, dtype=dtype), noise(M, 9, seed=2, dtype=dtype)
    torch.testing.assert_close(sparse.pattern.edge_dot(u, v), (u @ v.T)[at], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_gradients_of_row_operations_equal_autograd_on_the_dense_twin(long):
    sparse, dense = hub_matrix()
    at, weight = dense > 0, noise(N, M, seed=3)
    values, twin = sparse.values.clone().requires_grad_(), dense.clone().requires_grad_()
    u, v = noise(N, 5).requires_grad_(), noise(M, 5, seed=2).requires_grad_()
    soft = sparse.with_values(values).row_softmax()
    ours = (soft.values * weight[at]).sum() + (soft.pattern.edge_dot(u, v) * weight[at]).sum()
    ours = ours + sparse.with_values(values).row_sums().square().sum()
    grads = torch.autograd.grad(ours, (values, u, v))
    soft = torch.where(at, twin, -torch.inf).softmax(1).where(at, 0)
    theirs = (soft * weight).sum() + ((u @ v.T) * weight)[at].sum() + (twin * at).sum(1).square().sum()
    expected = torch.autograd.grad(theirs, (twin, u, v))
    torch.testing.assert_close(grads[0], expected[0][at])
    torch.testing.assert_close(grads[1:], expected[1:])


@pytest.mark.long
def test_a_row_of_thousands_is_summed_exactly():
    """1 + 2 + … + 4,999 in one row, cut into chunks of 512."""
    n = 5000
    leaves = torch.arange(1, n)
    star = SparseMatrix.from_coo(torch.zeros(n - 1).long(), leaves, torch.ones(n - 1, dtype=torch.float64), (2, n)).to(DEVICE)
    x = torch.arange(n, dtype=torch.float64, device=DEVICE).unsqueeze(1).repeat(1, 3).requires_grad_()
    values = star.values.requires_grad_()
    y = star @ x
    y.sum().backward()
    assert y.tolist() == [[n * (n - 1) / 2] * 3, [0] * 3]
    assert torch.equal(values.grad, 3 * torch.arange(1.0, n, dtype=torch.float64, device=DEVICE))
    assert x.grad[1:].unique().tolist() == [1]
    assert star.row_sums().tolist() == [n - 1, 0]
    assert star.row_softmax().values.tolist() == pytest.approx([1 / (n - 1)] * (n - 1))


@pytest.mark.long
def test_bfloat16_is_summed_in_float32(long):
    """In bfloat16 itself 256 + 1 is 256: the sum of a thousand ones would stop there."""
    ones = SparseMatrix.from_coo(torch.zeros(1000).long(), torch.arange(1000), torch.ones(1000), (1, 1000))
    ones = ones.to(torch.bfloat16).to(DEVICE)
    assert (ones @ torch.ones(1000, 2, dtype=torch.bfloat16, device=DEVICE)).tolist() == [[1000, 1000]]
    assert ones.row_sums().tolist() == [1000]


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 3)])
def test_a_matrix_without_entries(shape):
    empty = SparseMatrix.from_coo([], [], torch.zeros(0), shape).to(DEVICE)
    x = torch.ones(shape[1], 4, device=DEVICE, requires_grad=True)
    y = empty @ x
    assert torch.equal(y.cpu(), torch.zeros(shape[0], 4))
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(empty.row_sums().cpu(), torch.zeros(shape[0]))
    assert len(empty.row_softmax().values) == 0


def test_no_columns_give_no_columns():
    sparse, _ = hub_matrix()
    x = noise(M, 0).requires_grad_()
    y = sparse.with_values(sparse.values.requires_grad_()) @ x
    y.sum().backward()
    assert y.shape == (N, 0)
    assert sparse.values.grad.count_nonzero() == 0


@pytest.mark.long
def test_eight_byte_indices_give_the_same_bits(long):
    sparse, _ = hub_matrix()
    wide = Pattern(sparse.pattern.rowptr, sparse.pattern.col, sparse.shape)
    wide.rowptr, wide.col = wide.rowptr.long(), wide.col.long()
    results = []
    for pattern in (sparse.pattern, wide):
        x, values = noise(M, 7).requires_grad_(), sparse.values.clone().requires_grad_()
        y = SparseMatrix(pattern, values).row_softmax() @ x
        y.square().sum().backward()
        results.append([tensor.tolist() for tensor in (y, x.grad, values.grad)])
    assert results[0] == results[1]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("seed", "step", "layer"), [(0, 0, 0), (7, 3, 2), (2**63 + 11, 2**31 + 5, 1002)])
def test_dropout_draws_the_same_bits_as_the_reference(dtype, seed, step, layer):
    x, rows = noise(60, 33, dtype=dtype), (torch.arange(60) * 2**28).to(DEVICE)  # ids beyond 32 bits
    sparse, _ = hub_matrix(dtype)
    results = []
    for kernels in (gpu_kernels, reference_kernels):
        with use_kernels(kernels):
            arguments = 0.3, Key(seed, step), layer
            both = [(dropout(x, *arguments, ids), dropout(sparse, *arguments, ids).values) for ids in (None, rows)]
            results.append([tensor for pair in both for tensor in pair])
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours, theirs)


def assert_same_bits(ours, theirs):
    """The same numbers are kept; on a GPU, where the 1 / (1 - rate) given to a kernel has 32 bits, to those in float64."""
    if DEVICE == "cuda" and ours.dtype == torch.float64:
        assert torch.equal(ours == 0, theirs == 0)
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=0)
    else:
        assert torch.equal(ours, theirs)


def test_dropout_of_a_stack_draws_the_bits_of_each_seed():
    seeds, x, values = torch.tensor([3, 2**40 + 1]), noise(2, M, 7), noise(2, hub_matrix()[0].num_entries)
    matrix, step = hub_matrix()[0], torch.tensor([5], device=DEVICE)
    row, places = torch.arange(M, device=DEVICE), (matrix.pattern.row, matrix.pattern.col)
    dense = gpu_kernels.dropout(x, row, None, 0.3, seeds, step, 1)
    sparse = gpu_kernels.dropout(values, *places, 0.3, seeds, step, 1)
    for k, seed in enumerate(seeds.tolist()):
        assert_same_bits(dense[k], reference_kernels.dropout(x[k], row, None, 0.3, seed, step, 1))
        assert_same_bits(sparse[k], reference_kernels.dropout(values[k], *places, 0.3, seed, step, 1))


def test_dropout_reads_its_step_from_the_device_and_goes_back_where_it_kept():
    x = noise(M, 7).abs().requires_grad_()
    step = torch.tensor([9], device=DEVICE)
    out = dropout(x, 0.25, Key(1, step), 0)
    assert torch.equal(out, dropout(x, 0.25, Key(1, 9), 0))
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out > 0).double() / 0.75)


@pytest.mark.long
def test_gradients_equal_finite_differences(monkeypatch):
    monkeypatch.setattr(gpu_kernels, "LONG", 1)  # the last row has three entries
    sparse = SparseMatrix.from_coo([0, 0, 2, 2, 2], [0, 2, 0, 1, 2], torch.rand(5).double(), (3, 3)).to(DEVICE)
    values = sparse.values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, x: sparse.with_values(v).row_softmax() @ x, (values, noise(3, 2).requires_grad_()))


@pytest.mark.parametrize(("entries", "longest"), [(0, 16), (60_000, 16), (600_000, 32), (1_800_000, 64), (10**9, 128)])
def test_rows_of_a_small_matrix_are_cut_sooner(entries, longest):
    assert gpu_kernels.longest_whole(entries) == longest


@pytest.mark.parametrize(("longest", "is_cut"), [(32, False), (33, True)])
def test_rows_are_cut_where_the_longest_is_more_than_twice_what_may_be_whole(longest, is_cut):
    row = torch.cat([torch.zeros(longest).long(), torch.ones(17).long(), torch.full((16,), 2)])
    col = torch.cat([torch.arange(longest), torch.arange(17), torch.arange(16)])
    plan = gpu_kernels.schedule(SparseMatrix.from_coo(row, col, torch.ones(len(col)), (3, longest)).to(DEVICE).pattern)
    if is_cut:
        assert (plan.long.row.tolist(), plan.short.tolist(), plan.longest) == ([0, 1], [2], 16)
        lengths = plan.long.chunk_end - plan.long.chunk_start
        assert lengths.tolist() == [16, 16, 1, 16, 1]
    else:
        assert plan.long is None and plan.short is None and plan.longest > longest
