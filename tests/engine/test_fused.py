"""The fused loops equal the plain ones of the heart: values and every gradient, with the same random bits."""

import gc
import itertools
import weakref
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from tests.helpers.triton_interpreter import DEVICE, test_in_a_process_of_their_own, triton  # noqa: F401

# The interpreter is on before the kernels are imported.
# isort: split
from gcn_lpa.engine import cpu_kernels, fused, gpu_fused, gpu_kernels
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import LOSSES, PAPER
from gcn_lpa.target import Classes
from tests.helpers import reference_kernels
from tests.helpers.reference_kernels import use_kernels

pytestmark = [
    pytest.mark.long,  # together: the interpreter is slow
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # in lanes that are masked
]
CLOSE, EXACT = {"rtol": 1e-4, "atol": 1e-5}, {"rtol": 1e-5, "atol": 1e-5}
N = 21  # no multiple of a block of rows


def transition(hub=False, seed=0):
    """A random D⁻¹A in float32, not symmetric; row 5 is empty, and with a hub row 0 and column 0 are full."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(N, N, generator=generator) * (torch.rand(N, N, generator=generator) < 0.2)
    if hub:
        dense[0], dense[:, 0] = 0.5, 0.5
    dense[5] = 0
    row, col = dense.nonzero(as_tuple=True)
    return SparseMatrix.from_coo(row, col, dense[row, col], (N, N)).to(DEVICE).row_normalized()


@pytest.fixture(params=[False, True], ids=["thin rows", "hub"])
def hub(request, monkeypatch):
    """Whether a row and a column are so long that they are cut into chunks."""
    if request.param:
        monkeypatch.setattr(gpu_kernels, "LONG", 8)
    return request.param


def noise(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


# the fused loops alone: None where there is none
relu_stack, cost_of = fused.relu_layers, fused.mean_cost


def propagation(transition, seeds, iterations, *, labeled, clamp=True, at=None):
    return fused.propagate(None, transition, seeds, iterations, clamp, labeled, at)


def plain_stack(matrix, x, weights, rates, key=None, at=None):
    """The layers one by one."""
    with use_kernels(reference_kernels):
        for k, weight in enumerate(weights):
            x = dropout(x if k == 0 else x.relu(), rates[min(k, 1)], key, layer=k)
            x = matrix @ (x @ weight)
    return x if at is None else x.index_select(0, at)


def with_gradients(function, leaves):
    """The result and the gradient of each leaf, for an uneven upstream gradient."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    upstream = noise(out.numel(), seed=9).view(out.shape)
    grads = torch.autograd.grad((out * upstream).sum(), leaves, allow_unused=True)
    return [out, *(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves, strict=True))]


def assert_alike(fast, plain, leaves, close=CLOSE):
    """The same result and gradients, the plain ones by the reference kernels; the result."""
    ours = with_gradients(fast, leaves)
    with use_kernels(reference_kernels):
        expected = with_gradients(plain, leaves)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, **close)
    return ours[0].detach()


DROPOUT, NO_DROPOUT = (0.3, 0.5), (0.0, 0.0)
STACKS = [
    (11, 16, 7),
    (11, 32, 40),
    (11, 20, 7),
    (11, 32, 32, 32, 32, 7),
    (11, 7),
    (11, 64, 3),
    (5, 1, 1),
    (11, 16, 20, 9),
]


@pytest.mark.parametrize(
    ("widths", "rates", "learned"),  # of the layers, input first; of input and hidden dropout; whether edges are
    [
        *[(widths, DROPOUT, True) for widths in STACKS],
        *[(widths, NO_DROPOUT, learned) for widths in STACKS[:3] for learned in (True, False)],
        *[(widths, DROPOUT, False) for widths in STACKS[:2]],
    ],
    ids=str,
)
def test_the_fused_layers_equal_the_plain_loop(widths, rates, learned, hub):
    matrix, x, key = transition(hub), noise(N, widths[0]), Key(3, 2)
    weights = [noise(a, b, seed=k) / a**0.5 for k, (a, b) in enumerate(itertools.pairwise(widths))]

    def run(stack, *leaves):
        values, x, *weights = leaves
        out = stack(matrix.with_values(values if learned else values.detach()), x, weights, rates, key)
        assert out is not None, "no fused kernel for these widths"
        return out

    leaves = (matrix.values, x, *weights)
    assert_alike(partial(run, relu_stack), partial(run, plain_stack), leaves)


ROWS = {
    "five rows": [7, 3, 20, 0, 11],
    "one row": [2],
    "an empty row": [5],
    "no row": [],
    "all rows": list(range(N))[::-1],
}


@pytest.mark.parametrize(
    ("widths", "rates", "learned", "rows"),
    [
        *[(widths, DROPOUT, True, "five rows") for widths in [*STACKS, (11, 32, 32, 32, 32, 40), (11, 40), (11, 32, 90)]],
        *[((11, 16, 7), rates, learned, "five rows") for rates in (DROPOUT, NO_DROPOUT) for learned in (True, False)],
        *[(widths, DROPOUT, True, rows) for widths in ((11, 16, 16, 3), (11, 3)) for rows in ROWS if rows != "five rows"],
    ],
    ids=str,
)
@pytest.mark.parametrize("small", [0, 50_000], ids=["sum first", "multiply first"])
def test_rows_of_the_fused_layers_equal_those_of_the_plain_loop(widths, rates, learned, rows, small, monkeypatch):
    """The rows of a few nodes, in any order: values and every gradient; "sum first" with a hub."""
    monkeypatch.setattr(fused, "SMALL", small)
    if small == 0:
        monkeypatch.setattr(gpu_kernels, "LONG", 8)
    matrix, x, key, rows = (
        transition(hub=small == 0),
        noise(N, widths[0]),
        Key(3, 2),
        torch.tensor(ROWS[rows], device=DEVICE, dtype=torch.int64),
    )
    weights = [noise(a, b, seed=k) / a**0.5 for k, (a, b) in enumerate(itertools.pairwise(widths))]

    def run(stack, values, x, *weights):
        out = stack(matrix.with_values(values if learned else values.detach()), x, list(weights), rates, key, at=rows)
        assert out is not None, "no fused kernel for these widths"
        return out

    leaves = (matrix.values, x, *weights)
    out = assert_alike(partial(run, relu_stack), partial(run, plain_stack), leaves, EXACT)
    assert out.shape == (len(rows), widths[-1])


@pytest.mark.parametrize("rows", [None, "five rows"])
@pytest.mark.parametrize("rates", [NO_DROPOUT, DROPOUT], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("kind", ["sparse", "identity", "diagonal"])
def test_the_fused_layers_take_sparse_features(kind, rates, rows, hub, monkeypatch):
    monkeypatch.setattr(fused, "SMALL", 0)
    matrix, key, rows = (
        transition(hub),
        Key(3, 2),
        None if rows is None else torch.tensor(ROWS[rows], device=DEVICE, dtype=torch.int64),
    )
    eye = SparseMatrix.identity(N).to(DEVICE)
    x = {"sparse": transition(seed=4), "identity": eye, "diagonal": eye.with_values(noise(N))}[kind]
    leaves = matrix.values, noise(N, 16) / 4, noise(16, 16, seed=2) / 4, noise(16, 7, seed=3) / 4

    def run(stack, values, *weights):
        return stack(matrix.with_values(values), x, list(weights), rates, key, rows)

    assert_alike(partial(run, relu_stack), partial(run, plain_stack), leaves)


def test_without_a_key_the_fused_layers_drop_nothing():
    matrix, x, weights = transition(), noise(N, 5), [noise(5, 16), noise(16, 3, seed=2)]
    torch.testing.assert_close(
        relu_stack(matrix, x, weights, (0.5, 0.5), None), plain_stack(matrix, x, weights, (0, 0), None), **CLOSE
    )


@pytest.mark.parametrize("rows", [None, "five rows"])
def test_without_a_gradient_the_same_is_computed_and_nothing_kept(rows, hub):
    """Votes walk fifty hops when predicting: kept, they would take fifty times the room."""
    matrix, rows = transition(hub), None if rows is None else torch.tensor(ROWS[rows], device=DEVICE)
    weights = [noise(a, b, seed=k).requires_grad_() for k, (a, b) in enumerate([(5, 16), (16, 16), (16, 3)])]
    with torch.no_grad():
        alone = relu_stack(matrix, noise(N, 5), weights, NO_DROPOUT, None, rows)
    assert torch.equal(alone, relu_stack(matrix, noise(N, 5), weights, NO_DROPOUT, None, rows))

    held = torch.arange(N, device=DEVICE) % 3 == 0
    seeds = F.one_hot(torch.arange(N, device=DEVICE) % 4, 4).float() * held.unsqueeze(1)
    few = None if rows is None else gpu_kernels.listed(rows, matrix.pattern.T)
    walk = partial(gpu_fused.propagation, matrix, seeds, held, 6, True, few)
    every, ends = walk(keeps=True), walk(keeps=False)
    assert (len(every), len(ends)) == (7, 2)
    assert torch.equal(ends[0], every[0]) and torch.equal(ends[1], every[-1])


@pytest.mark.parametrize("clamp", [True, False], ids=["clamp", "no clamp"])
@pytest.mark.parametrize(("iterations", "num_classes"), [(1, 7), (2, 40), (2, 7), (4, 7)])
def test_fused_propagation_equals_the_plain_loop(iterations, num_classes, clamp, hub, monkeypatch):
    """The hub, cut into chunks, is labelled where there are two iterations; edges learned, then fixed."""
    monkeypatch.setattr(gpu_kernels, "LONG", 8)
    matrix = transition(hub=hub)
    held = (torch.rand(N, generator=torch.Generator().manual_seed(iterations)) < 0.4).to(DEVICE)
    held[0] = iterations == 2
    seeds = F.one_hot(torch.arange(N, device=DEVICE) % num_classes, num_classes).float() * held.unsqueeze(1)
    walk = lambda values: propagation(matrix.with_values(values), seeds, iterations, clamp=clamp, labeled=held)  # noqa: E731
    plain = lambda values: propagate_labels(matrix.with_values(values), seeds, iterations, clamp=clamp)  # noqa: E731
    out = assert_alike(walk, plain, [matrix.values])
    torch.testing.assert_close(walk(matrix.values), out, **CLOSE)


@pytest.mark.parametrize(
    ("iterations", "num_classes", "clamp", "rows"),
    [
        *[(iterations, c, True, "five rows") for iterations, c in ((1, 7), (2, 40), (4, 7), (3, 1))],
        *[(3, 3, rows != "one row", rows) for rows in ROWS],
    ],
)
def test_rows_of_fused_propagation_equal_those_of_the_plain_loop(iterations, num_classes, clamp, rows, hub, monkeypatch):
    """The hub is among the five rows, and not the one."""
    monkeypatch.setattr(gpu_kernels, "LONG", 8)
    matrix, rows = transition(hub=hub), torch.tensor(ROWS[rows], device=DEVICE, dtype=torch.int64)
    held = (torch.rand(N, generator=torch.Generator().manual_seed(iterations)) < 0.4).to(DEVICE)
    seeds = F.one_hot(torch.arange(N, device=DEVICE) % num_classes, num_classes).float() * held.unsqueeze(1)
    walk = lambda values: propagation(  # noqa: E731
        matrix.with_values(values), seeds, iterations, clamp=clamp, labeled=held, at=rows
    )
    plain = lambda values: propagate_labels(matrix.with_values(values), seeds, iterations, clamp=clamp)[rows]  # noqa: E731
    assert_alike(walk, plain, [matrix.values], EXACT)


@pytest.mark.parametrize("rows", ["one row", "an empty row", "five rows"])
def test_the_rows_that_rows_read_are_those_that_powers_of_the_matrix_reach(rows, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "FEW", 1.0)  # asked for however many they are
    matrix, rows = transition(), torch.tensor(ROWS[rows], device=DEVICE)
    found = gpu_kernels.listed(rows, matrix.pattern.T)
    for hops in range(1, gpu_kernels.FAR + 1):
        reached = torch.linalg.matrix_power(matrix.to_dense(), hops)[rows].sum(0) > 0
        assert torch.equal(found.within(hops), reached)
    assert found.within(0) is found.within(gpu_kernels.FAR + 1) is None
    assert (torch.nonzero(found.position).squeeze(1).tolist()) == sorted(rows.tolist())
    assert found.position[rows].tolist() == [1 + k for k in range(len(rows))]


def test_what_is_known_of_rows_lives_as_long_as_they_and_the_matrix():
    """A captured step goes on reading it, whatever other rows were asked for since."""
    columns, others = transition().pattern.T, transition(seed=4).pattern.T
    rows, more = torch.tensor([1, 4], device=DEVICE), torch.tensor([2], device=DEVICE)
    found = gpu_kernels.listed(rows, columns)
    assert [gpu_kernels.listed(more, columns).rows.tolist(), gpu_kernels.listed(rows, others).rows.tolist()] == [
        [2],
        [1, 4],
    ]
    assert gpu_kernels.listed(rows, columns) is found
    gone = weakref.ref(found.position)
    del found, columns
    gc.collect()
    assert gone() is None
    known = len(gpu_kernels._LISTED)
    del rows, more
    gc.collect()
    assert len(gpu_kernels._LISTED) == known - 2


def test_rows_that_were_written_to_are_read_again():
    matrix, rows, weights = transition(), torch.tensor([1, 4], device=DEVICE), [noise(N, 16), noise(16, 3, seed=2)]
    x = SparseMatrix.identity(N).to(DEVICE)
    for _ in range(2):
        leaf = weights[0].clone().requires_grad_()
        out = relu_stack(matrix, x, [leaf, weights[1]], NO_DROPOUT, None, rows)
        out.sum().backward()
        with use_kernels(reference_kernels):
            twin = weights[0].clone().requires_grad_()
            expected = plain_stack(matrix, x, [twin, weights[1]], NO_DROPOUT, None, rows)
            expected.sum().backward()
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(leaf.grad, twin.grad, **CLOSE)
        rows.add_(3)


def test_soft_seeds_and_an_empty_side():
    matrix, nobody = transition(), torch.zeros(N, dtype=torch.bool, device=DEVICE)
    soft, everybody = noise(N, 3).abs(), ~nobody
    for seeds, held in ((soft, everybody), (torch.zeros(N, 3, device=DEVICE), nobody)):
        ours = propagation(matrix, seeds, 3, labeled=held)
        with use_kernels(reference_kernels):
            torch.testing.assert_close(ours, propagate_labels(matrix, seeds, 3), **CLOSE)


def test_seeds_that_need_a_gradient_take_the_plain_loop():
    seeds = noise(N, 3).abs().requires_grad_()
    held = torch.ones(N, dtype=torch.bool, device=DEVICE)
    assert propagation(transition(), seeds, 2, labeled=held) is None
    propagate_labels(transition(), seeds, 2).sum().backward()
    assert seeds.grad.count_nonzero() > 0


@pytest.mark.parametrize("order", [1, -1], ids=["cost first", "cost last"])
@pytest.mark.parametrize(("loop", "c"), [("propagate", 3), ("propagate", 8), ("relu_stack", 3), ("relu_stack", 8)])
def test_a_result_that_is_used_twice_gets_both_gradients(loop, c, order):
    """A cost reads the rows of a few nodes, another term reads all."""
    matrix, nodes = transition(), torch.tensor([1, 3], device=DEVICE)
    target, held = torch.tensor([0, 2], device=DEVICE), torch.arange(N, device=DEVICE) < 8
    seeds, weights = noise(N, c).abs() * held.unsqueeze(1), [noise(4, 16), noise(16, c, seed=2)]

    def cost(values):
        a = matrix.with_values(values)
        if loop == "propagate":
            y = propagate_labels(a, seeds, 2)
        else:
            y = relu_stack(a, noise(N, 4), weights, NO_DROPOUT, None)
            y = plain_stack(a, noise(N, 4), weights, NO_DROPOUT, None) if y is None else y
        read = Classes.mean_cost(y.index_select(0, nodes), target, "votes" if loop == "propagate" else "logits")
        terms = [read, (y * noise(N, c)).sum()]
        return sum(terms[::order])

    assert_alike(cost, cost, [matrix.values])


def test_seeds_that_were_written_to_are_read_again():
    matrix, held = transition(), torch.arange(N, device=DEVICE) < 8
    seeds = noise(N, 3).abs() * held.unsqueeze(1)
    before = propagation(matrix, seeds, 2, labeled=held)
    seeds.mul_(2)
    torch.testing.assert_close(propagation(matrix, seeds, 2, labeled=held), 2 * before)


@pytest.mark.skipif(DEVICE != "cpu", reason="the tensors are on the GPU")
def test_a_cpu_has_no_fused_loops():
    matrix, held = transition(), torch.ones(N, dtype=torch.bool, device=DEVICE)
    with use_kernels(cpu_kernels):
        assert relu_stack(matrix, noise(N, 5), [noise(5, 16), noise(16, 3)], (0.0, 0.0), None) is None
        assert propagation(matrix, noise(N, 3), 2, labeled=held) is None


@pytest.mark.parametrize("kind", gpu_fused.COSTS)
@pytest.mark.parametrize("num_classes", [1, 2, 7, 40])
def test_fused_costs_equal_their_formulas(kind, num_classes):
    values = noise(5, num_classes) if kind == "logits" else noise(5, num_classes).abs()
    target = torch.arange(5, device=DEVICE) % num_classes

    def plain(rows):
        own = rows.gather(1, target.unsqueeze(1)).squeeze(1) + 1e-6
        total = {"share": rows.sum(1) + 1e-6 * num_classes, "votes": torch.ones(5, device=DEVICE)}
        if kind == "logits":
            return -(rows.exp() / rows.exp().sum(1, keepdim=True)).gather(1, target.unsqueeze(1)).log().mean()
        return -(own / total[kind]).log().mean()

    ours = with_gradients(lambda values: cost_of(values, target, kind), [values])
    for one, other in zip(ours, with_gradients(plain, [values]), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_costs_of_a_strided_view_are_read_right():
    """The fused loops return the first columns of a padded array."""
    padded = noise(N, 8).abs()
    target = torch.arange(N, device=DEVICE) % 3
    view, copy = padded[:, :3], padded[:, :3].contiguous()
    ours = with_gradients(lambda wide: cost_of(wide[:, :3], target, "share"), [padded])
    theirs = with_gradients(lambda values: cost_of(values, target, "share"), [copy])
    alike = {"rtol": 0, "atol": 0} if DEVICE == "cpu" else CLOSE  # on an H200 the last bit differs
    torch.testing.assert_close(ours[0], theirs[0], **alike)
    torch.testing.assert_close(ours[1][:, : view.shape[1]], theirs[1])
    assert ours[1][:, 3:].count_nonzero() == 0


@pytest.mark.parametrize(("loss", "ratio"), [*[(loss, 1.0) for loss in LOSSES], ("literal", 0.5), ("leave_one_out", 0.5)])
def test_a_step_of_the_model_has_the_same_loss_and_gradients_as_on_the_reference(loss, ratio):
    """Cora's settings on a ring with chords: five layers, dropout, learned edges, every LPA loss.

    Leave-one-out at one hop: at two it subtracts the walk that came back, and where nothing remains the logarithm makes
    a rounding error of 1e-8 large.
    """
    pairs = [(i, (i + step) % N) for step in (1, 5) for i in range(N)]
    graph = Graph.from_edges(pairs, y=[i % 3 for i in range(N)], self_loops=True).to(DEVICE)
    recipe = PAPER["cora"].replace(lpa_iterations=1 if loss == "leave_one_out" else 3, lpa_ratio=ratio, hidden=16)
    recipe = recipe.replace(loss=loss)
    results = []
    for kernels in (gpu_kernels, reference_kernels):
        with use_kernels(kernels):
            model = GCNLPA(recipe, graph.to("cpu"), seed=1).to(DEVICE)
            with torch.no_grad():
                model.edges.weight.add_(noise(*model.edges.weight.shape))
            cost = model.loss(graph, torch.arange(0, N, 2, device=DEVICE), Key(1, 4))
            cost.total.backward()
            results.append([cost.gcn, cost.lpa, *(p.grad for p in model.parameters()), model(graph)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
