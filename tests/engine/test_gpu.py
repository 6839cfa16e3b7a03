"""What only a GPU can show. Skipped where there is none; the same kernels run interpreted in test_gpu_kernels.py."""

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa import Graph, split
from gcn_lpa.data.datasets import load
from gcn_lpa.engine.sparse import Key, SparseMatrix, dropout
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.tasks import Job, task_of
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import LAYERS, OFFICIAL, PAPER
from gcn_lpa.train import JobName
from reproduction.timing import agreement, captured, check_same_bits
from reproduction.timing_rivals import Problem

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def power_law(n=150_000, hub=120_000, seed=0):
    """A preferential-attachment-like graph, symmetric, in which node 0 has more than `hub` neighbours."""
    rng = np.random.default_rng(seed)
    later = np.arange(1, n)
    earlier = (later * rng.random(n - 1) ** 3).astype(np.int64)  # the older a node, the more it is joined
    row = np.concatenate([later, np.zeros(hub, np.int64)])
    col = np.concatenate([earlier, rng.choice(np.arange(1, n), hub, replace=False)])
    upper = scipy.sparse.coo_array((np.ones(len(row), np.float32), (row, col)), shape=(n, n))
    matrix = (upper + upper.T + scipy.sparse.eye_array(n)).tocsr()
    matrix.data[:] = rng.random(len(matrix.data))
    return SparseMatrix.from_scipy(matrix)


def step(matrix, values, x, grad):
    values, x = values.clone().requires_grad_(), x.clone().requires_grad_()
    out = matrix.with_values(values).row_softmax() @ x
    out.backward(grad)
    return [out.detach(), values.grad, x.grad]


@pytest.mark.parametrize("columns", [1, 7, 32, 40, 200])
def test_products_on_a_power_law_graph_equal_those_in_float64_on_the_cpu(columns):
    matrix = power_law()
    assert int(matrix.pattern.rowptr.diff().max()) > 100_000
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(matrix.num_entries, generator=generator)
    x, grad = (torch.randn(matrix.shape[0], columns, generator=generator) for _ in range(2))
    exact = step(matrix, values.double(), x.double(), grad.double())
    on_gpu = step(matrix.to("cuda"), values.cuda(), x.cuda(), grad.cuda())
    for ours, right in zip(on_gpu, exact, strict=True):
        assert float((ours.cpu().double() - right).norm() / right.norm()) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_on_a_power_law_graph_have_the_same_bits_in_five_reruns(dtype):
    matrix = power_law().to("cuda")
    values, x = (torch.rand(*size, device="cuda").to(dtype) for size in ((matrix.num_entries,), (matrix.shape[0], 32)))
    runs = [step(matrix, values, x, x) for _ in range(5)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_five_trainings_end_in_the_same_bits():
    assert check_same_bits("cuda")


@pytest.mark.parametrize("classes", [2, 7, 40])
def test_the_gradients_of_a_fused_step_are_those_of_float64(classes):
    assert agreement("cuda", n=3000, classes=classes) < 2e-6


def test_bfloat16_products_accumulate_in_float32():
    matrix = power_law(5000, 3000).to("cuda")
    x = torch.rand(5000, 32, device="cuda")
    low = matrix.to(torch.bfloat16)
    exact = matrix.with_values(low.values.float()) @ x.bfloat16().float()
    assert float(((low @ x.bfloat16()).float() - exact).norm() / exact.norm()) < 4e-3


def test_dropout_draws_the_same_bits_as_on_the_cpu():
    x = torch.rand(1000, 33)
    assert torch.equal(dropout(x.cuda(), 0.3, Key(2**40 + 5, 7), 2).cpu(), dropout(x, 0.3, Key(2**40 + 5, 7), 2))


@pytest.mark.parametrize(("hidden", "hubs"), [(32, 0.0), (32, 0.75), (128, 0.75)], ids=["uniform", "hubs", "wide"])
def test_a_captured_step_walks_the_same_path_as_a_plain_one(hidden, hubs):
    """Wide layers leave the fused path."""

    def weights(as_graph):
        problem = Problem.random(2000, classes=7, labeled=200, device="cuda", hubs=hubs)
        model = GCNLPA(problem.recipe.replace(hidden=hidden), problem.graph.to("cpu"), seed=0).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True, capturable=True)
        key = Key(0, torch.zeros(1, dtype=torch.int64, device="cuda"))

        def step():
            optimizer.zero_grad(set_to_none=True)
            model.loss(problem.graph, problem.nodes, key).total.backward()
            optimizer.step()
            key.step.add_(1)

        go = captured(step) if as_graph else step  # capturing takes three steps of its own
        for _ in range(7 if as_graph else 10):
            go()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


@pytest.mark.parametrize("recipe", [LAYERS, PAPER["cora"], OFFICIAL["cora"], LAYERS.replace(edges="gaussian", loss="held_out")])
def test_training_on_the_gpu_is_repeatable_and_as_good_as_on_the_cpu(recipe):
    graph = load("digits")
    parts = split(graph, (0.6, 0.2, 0.2), seed=0)

    def train(device):
        return learn(graph, parts.train, parts.val, recipe.replace(epochs=60), seed=0, device=device)

    first, second, on_cpu = train("cuda"), train("cuda"), train("cpu")
    states = [trained.model.state_dict().values() for trained in (first, second)]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    best = lambda trained: max(epoch.val_accuracy for epoch in trained.run.history)  # noqa: E731
    assert best(first) > best(on_cpu) - 0.03


@pytest.mark.parametrize("method", ["jk-net", "correct-and-smooth", "label-input", "appnp", "grand"])
@pytest.mark.parametrize("name", ["digits", "cora"])  # a table, and words that are sparse
def test_a_captured_step_of_another_method_walks_the_same_path(method, name):
    graph = load(name)
    parts, recipe = split(graph, seed=0), METHODS[method].fair().replace(epochs=20)
    job = Job(JobName("fit", "", 20), task_of(graph, parts.train, parts.val, recipe), recipe, 0)
    states = [job.run(torch.device("cuda"), capture=capture).model.state_dict() for capture in ("always", "never")]
    assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())


def test_a_graph_moves_to_the_gpu_and_back():
    graph = Graph.from_edges([(0, 1), (1, 2)], num_nodes=4, y=[0, 1, None, None])
    assert graph.to("cuda").to("cpu").content_hash() == graph.content_hash()
