"""Stacks: each model of many that are trained as one program becomes what it becomes alone.

They are for GPUs, where `fit_many` uses them; here they run on the CPU, which is the same program.
"""

import dataclasses

import pytest
import scipy.sparse
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.learning import stacks
from gcn_lpa.learning.stacks import are_stackable, fit_stack
from gcn_lpa.learning.tasks import Job, Kept, task_of
from gcn_lpa.methods.registry import METHODS, gcn_lpa
from gcn_lpa.recipes import LAYERS, LOSSES, PAPER, SELECTION, Recipe
from gcn_lpa.train import DivergedError, Fit, JobName, Watch
from tests.helpers.small_graphs import with_edge_columns

BLOCKS = load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0)
PARTS = [(part.train, part.val) for part in (split(BLOCKS, seed=k) for k in range(5))]
SEEDS = [4, 0, 2**31 + 1, 3, 1]
CPU = torch.device("cpu")
SMALL = LAYERS.replace(hidden=8, edge_rank=4, epochs=50)
HOPS = Recipe(
    propagation="hops",
    propagation_steps=10,
    residual=False,
    edges="fixed",
    lpa_weight=0,
    normalization="symmetric",
    structure=True,
    hidden=8,
    epochs=50,
)


def jobs_of(recipe, parts=PARTS, graph=BLOCKS, stop_at=None, target=None, kept=False):
    tasks = [task_of(graph, train, val, recipe, target) for train, val in parts]
    ends = stop_at or [None] * len(tasks)
    return [
        Job(JobName(f"split-{k}", "", recipe.epochs), task, recipe, seed, end, Kept() if kept else None)
        for k, (task, seed, end) in enumerate(zip(tasks, SEEDS * 2, ends, strict=False))
    ]


def outputs(fit, task):
    with torch.no_grad():
        return fit.model(task.prepared).double().softmax(dim=1)


def assert_close(job, fit, alone):
    """The same choice, the same weights to rounding, and the same answers.

    A free edge weight that hardly matters has a gradient of rounding errors, which Adam makes steps of: at most one of 0.01.
    """
    at_most = 0.01 if job.recipe.edges == "free" else 1e-4
    assert fit.run.best_epoch == alone.run.best_epoch
    assert len(fit.run.history) == len(alone.run.history)
    for epoch, twin in zip(fit.run.history, alone.run.history, strict=True):
        assert epoch.val_accuracy == twin.val_accuracy
        for name in ("loss", "gcn", "lpa", "val_loss"):
            value, wanted = getattr(epoch, name), getattr(twin, name)
            assert value == (wanted if wanted is None else pytest.approx(wanted, rel=1e-4, abs=1e-6))
    weights, twins = fit.model.state_dict(), alone.model.state_dict()
    assert weights.keys() == twins.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, twins[name], rtol=1e-4, atol=at_most)
    torch.testing.assert_close(outputs(fit, job.task), outputs(alone, job.task), rtol=1e-4, atol=1e-4)


def check(recipe, parts=PARTS, **options):
    """Train jobs as a stack and alone, and compare."""
    jobs = jobs_of(recipe, parts, **options)
    fits = fit_stack(jobs, CPU)
    for job, fit in zip(jobs, fits, strict=True):
        assert_close(job, fit, job.run(CPU))
    return fits


def recipe_of(method):
    recipe = METHODS[method].settings().replace(epochs=12, members="")
    return recipe.replace(hidden=8, gcn_layers=min(recipe.gcn_layers, 3), edge_rank=4)


OURS = [name for name, method in METHODS.items() if not method.needs]
STACKED = [name for name in OURS if not METHODS[name].at_once]
HEAVY = {"gcn-lpa", "gcn-same", "appnp", "correct-and-smooth", "label-input"}  # over half a second each


@pytest.mark.parametrize("method", [pytest.param(name, marks=[pytest.mark.long] * (name in HEAVY)) for name in STACKED])
def test_every_method_becomes_what_it_becomes_alone(method):
    check(recipe_of(method))


def test_which_methods_are_stacked():
    assert {name for name in OURS if are_stackable(jobs_of(recipe_of(name)))} == set(STACKED)
    assert not are_stackable(jobs_of(SMALL)[:1])
    assert not are_stackable(jobs_of(SMALL.replace(clusters=2)))


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe",
    [
        SMALL,
        HOPS,
        HOPS.replace(edges="cosine", lpa_weight=0.3, normalization="row"),
        SMALL.replace(training="two_step", epochs=20),
        SMALL.replace(training="two_step", epochs=20, patience=4),
        SMALL.replace(edges="free", lpa_ratio=0.6, edge_dropout=0.2, class_weights="balanced"),
        PAPER["cora"].replace(epochs=30),
    ],
    ids=["default", "hops", "cosine", "two_step", "two_step and patience", "free", "paper"],
)
def test_a_recipe_is_followed_by_all(recipe):
    check(recipe)


@pytest.mark.long
@pytest.mark.parametrize("select", SELECTION)
def test_each_model_leaves_when_its_own_patience_is_over(select):
    fits = check(SMALL.replace(select=select, patience=1 if select == "brier" else 5))  # which is smooth
    assert len({len(fit.run.history) for fit in fits}) > 1, "the models are to end at different epochs"


@pytest.mark.long
@pytest.mark.parametrize("recording", [1, 1000])
def test_models_that_are_done_may_stay_in_the_stack_for_a_while(recording, monkeypatch):
    """On a GPU, where the step is recorded: they go on, and their best weights stay what they were."""
    monkeypatch.setattr(stacks, "RECORDING", recording)
    monkeypatch.setattr(stacks, "CapturedStep", lambda step: step)
    sizes, init, only = [], stacks._Stack.__init__, stacks._StackedStep.only

    def as_on_a_gpu(stack, *arguments):
        init(stack, *arguments)
        stack.captures = True

    def noted(step, models):
        sizes.append(len(models))
        return only(step, models)

    monkeypatch.setattr(stacks._Stack, "__init__", as_on_a_gpu)
    monkeypatch.setattr(stacks._StackedStep, "only", noted)
    fits = check(SMALL.replace(patience=5))
    assert len({len(fit.run.history) for fit in fits}) >= 3
    assert bool(sizes) == (recording == 1)


def test_without_validation_the_last_epoch_is_kept():
    ends = (5, None, 9, 9, 1)
    fits = check(SMALL.replace(epochs=12), [(train, []) for train, _ in PARTS], stop_at=ends)
    assert [fit.run.best_epoch for fit in fits] == [5, 12, 9, 9, 1]


@pytest.mark.long
def test_one_model_may_have_validation_nodes_and_another_none():
    check(SMALL, [(train, val if k % 2 else []) for k, (train, val) in enumerate(PARTS)])


@pytest.mark.long
def test_models_of_different_classes_are_stacked_apart():
    """Without class 2 among its labels a model knows two classes, as it would alone."""
    parts = [*PARTS, tuple((BLOCKS.y < 2) & mask for mask in PARTS[0])]
    jobs = jobs_of(SMALL, parts)
    assert [len(job.task.graph.class_names) for job in jobs] == [3, 3, 3, 3, 3, 2]
    check(SMALL, parts)


def test_a_stack_that_is_too_large_is_divided(monkeypatch):
    sizes = []

    class Counted(stacks._Stack):
        def __init__(self, jobs, *rest):
            sizes.append(len(jobs))
            super().__init__(jobs, *rest)

    monkeypatch.setattr(stacks, "_Stack", Counted)
    monkeypatch.setattr(stacks, "LARGEST", 3 * BLOCKS.num_nodes * SMALL.hidden)
    assert len(fit_stack(jobs_of(SMALL.replace(epochs=3), PARTS * 2), CPU)) == 10
    assert sizes == [3, 3, 3, 1]


def scrambled(graph, keep):
    """The graph with the classes of all nodes but those of `keep` moved on by one."""
    return dataclasses.replace(graph, y=torch.where(keep, graph.y, (graph.y + 1) % graph.num_classes))


@pytest.mark.long
@pytest.mark.parametrize("method", ["gcn-lpa", "label-input", "correct-and-smooth", "lpa-leave-one-out"])
def test_no_model_sees_a_label_that_is_not_its_own(method):
    """Other labels outside train and val of all: the same bits. Other labels of one model's nodes: of all others the same."""
    nodes = torch.arange(BLOCKS.num_nodes)
    parts = [(nodes % 4 == k, nodes % 8 == (k + 1) % 4) for k in range(4)] + [(nodes % 5 == 0, nodes % 5 == 1)]
    known = [train | val for train, val in parts]
    recipe = recipe_of(method)

    def results(graph):
        jobs = jobs_of(recipe, parts, graph, target=BLOCKS.target)
        return [
            (
                [*fit.model.state_dict().values(), outputs(fit, job.task)],
                [dataclasses.replace(e, seconds=0) for e in fit.run.history],
            )
            for job, fit in zip(jobs, fit_stack(jobs, CPU), strict=True)
        ]

    def same(one, other):
        return all(map(torch.equal, one[0], other[0])) and one[1] == other[1]

    base = results(BLOCKS)
    everything_else = results(scrambled(BLOCKS, torch.stack(known).any(dim=0)))
    assert all(map(same, base, everything_else))
    for number, keep in enumerate(known):
        others = results(scrambled(BLOCKS, keep))
        assert same(base[number], others[number])
        assert not all(map(same, base, others)), "the labels of the other models were to be changed"


def test_a_second_call_gives_the_same_bits():
    one, other = (fit_stack(jobs_of(SMALL), CPU) for _ in range(2))
    for fit, twin in zip(one, other, strict=True):
        weights, twins = fit.model.state_dict(), twin.model.state_dict()
        assert all(torch.equal(weights[name], twins[name]) for name in weights)


def test_weights_after_each_epoch_are_kept_and_every_epoch_is_told():
    told, jobs = [], jobs_of(SMALL.replace(epochs=6), kept=True)
    fit_stack(jobs, CPU, Watch(on_epoch=lambda name, epoch: told.append((name.stage, epoch.epoch))))
    assert sorted(told) == sorted((job.name.stage, epoch) for job in jobs for epoch in range(1, 7))
    for job, alone in zip(jobs, jobs_of(SMALL.replace(epochs=6), kept=True), strict=True):
        alone.run(CPU)
        for epoch in (1, 3, 6):
            for name, weight in job.kept.states[epoch].items():
                torch.testing.assert_close(weight, alone.kept.states[epoch][name], rtol=1e-4, atol=1e-5)


def test_a_model_that_diverges_leaves_the_stack_and_the_others_go_on(monkeypatch):
    real = METHODS["gcn-lpa"]

    def build(recipe, graph, seed):
        model = real.build(recipe, graph, seed)
        if seed == SEEDS[1]:
            model.body.weights[0].data[0, 0] = float("inf")
        return model

    recipe = SMALL.replace(epochs=5)
    wanted = [job.run(CPU) for job in jobs_of(recipe)]
    monkeypatch.setitem(METHODS, "gcn-lpa", dataclasses.replace(real, build=build))
    jobs = jobs_of(recipe)
    outcomes = fit_stack(jobs, CPU)
    assert isinstance(outcomes[1], DivergedError) and outcomes[1].run.history == ()
    for k in (0, 2, 3, 4):
        assert isinstance(outcomes[k], Fit)
        assert_close(jobs[k], outcomes[k], wanted[k])


# gradients of Σ vmap(loss)


DROPPING = Recipe(
    hidden=6,
    edge_rank=4,
    dropout=0.4,
    feature_dropout=0.3,
    edge_dropout=0.2,
    lpa_iterations=2,
    lpa_weight=2.0,
    lpa_ratio=0.8,
    class_weights="balanced",
    bias=True,
    layer_norm=True,
)
FEW_BLOCKS = load("sbm", n=30, classes=3, features=5, degree=4.0, noise=1.0)
THREE_SEEDS = torch.tensor([3, 2**40 + 1, 5])
FEATURES = ("dense", "sparse", "identity")


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def graph_with(features, recipe):
    """The block model, prepared; as a new object of which nothing has been worked out."""
    x = {
        "dense": lambda: FEW_BLOCKS.x,
        "sparse": lambda: SparseMatrix.from_scipy(scipy.sparse.csr_array((FEW_BLOCKS.x * (FEW_BLOCKS.x > 0)).numpy())),
        "identity": lambda: SparseMatrix.identity(FEW_BLOCKS.num_nodes),
    }[features]()
    return recipe.prepare(with_edge_columns(dataclasses.replace(FEW_BLOCKS, x=x)))


class Cost(nn.Module):
    """The loss of a model as a call, for `functional_call`."""

    def __init__(self, model, graph):
        super().__init__()
        self.model, self.graph = model, graph

    def forward(self, mask, seed):
        return self.model.loss(self.graph, mask, Key(seed, 2)).total


def models_of(recipe, graph):
    """Models with different weights, none of them zero."""
    models = [gcn_lpa(recipe, graph, seed) for seed in range(len(THREE_SEEDS))]
    with torch.no_grad():
        for seed, model in enumerate(models):
            for parameter in model.parameters():
                parameter.add_(0.2 * noise(*parameter.shape, seed=seed))
    return models


def masks_of(graph):
    return noise(len(THREE_SEEDS), graph.num_nodes, seed=6) > 0  # of different sizes


def stacked_gradients(models, graph, masks):
    costs = [Cost(model, graph) for model in models]
    state = stack_module_state(costs)[0]
    losses = vmap(lambda state, mask, seed: functional_call(costs[0], state, (mask, seed)))(state, masks, THREE_SEEDS)
    return dict(zip(state, torch.autograd.grad(losses.sum(), list(state.values())), strict=True))


def assert_each_gets_what_it_gets_alone(recipe, graph):
    models, masks = models_of(recipe, graph), masks_of(graph)
    found = stacked_gradients(models, graph, masks)
    for b, model in enumerate(models):
        nodes, key = masks[b].nonzero().squeeze(1), Key(int(THREE_SEEDS[b]), 2)
        model.loss(graph, nodes, key).total.backward()
        for name, parameter in model.named_parameters():
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(found[f"model.{name}"][b], parameter.grad, rtol=1e-5, atol=1e-5 * scale)
    return found


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("edges", ["fixed", "free", "agnn"])
def test_each_model_of_a_stack_gets_the_gradients_it_gets_alone(edges, loss, features):
    """Other weights, seeds and training nodes in each; dropout of features, layers and edges on."""
    recipe = DROPPING.replace(edges=edges, loss=loss)
    found = assert_each_gets_what_it_gets_alone(recipe, graph_with(features, recipe))
    of_edges = {name: gradient for name, gradient in found.items() if name.startswith("model.edges.")}
    assert bool(of_edges) == (edges != "fixed")
    for gradient in of_edges.values():  # not silently a constant
        assert all(gradient[b].count_nonzero() > 0 for b in range(len(THREE_SEEDS)))
        assert not torch.allclose(gradient[0], gradient[1])


@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("edges", [form for form in EDGE_FORMS if form not in ("fixed", "free", "agnn")])
def test_every_edge_form_can_be_stacked(edges, features):
    recipe = DROPPING.replace(edges=edges)
    assert_each_gets_what_it_gets_alone(recipe, graph_with(features, recipe))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalization": "symmetric"},
        {"edges": "free"},
        {"loss": "leave_one_out", "lpa_iterations": 1, "residual": False},
        {"loss": "literal", "lpa_iterations": 5, "gcn_layers": 3},
        {"propagation": "hops", "propagation_steps": 3},
    ],
    ids=str,
)
def test_a_stack_follows_the_recipe(changes):
    recipe = DROPPING.replace(**changes)
    assert_each_gets_what_it_gets_alone(recipe, graph_with("dense", recipe))


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("edges", ["fixed", "free", "gaussian"])
def test_a_graph_is_the_same_before_and_after_a_stack(edges, features):
    """What a stack works out of a graph can be kept: afterwards one model gets the bits it gets on a new graph."""
    recipe = DROPPING.replace(edges=edges)

    def alone(graph):
        model = models_of(recipe, graph)[0]
        cost = model.loss(graph, masks_of(graph)[0], Key(3, 2)).total
        cost.backward()
        return [cost.detach(), model(graph).detach(), *(parameter.grad for parameter in model.parameters())]

    graph = graph_with(features, recipe)
    first = stacked_gradients(models_of(recipe, graph), graph, masks_of(graph))
    used, again = alone(graph), stacked_gradients(models_of(recipe, graph), graph, masks_of(graph))
    assert all(torch.equal(one, other) for one, other in zip(used, alone(graph_with(features, recipe)), strict=True))
    assert all(torch.equal(first[name], again[name]) for name in first)
