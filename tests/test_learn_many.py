"""`learn_many`: each model of a stack becomes what `learn` makes of it alone."""

import dataclasses

import pytest
import torch

import gcn_lpa.stacks
from gcn_lpa.learning import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba
from gcn_lpa.recipes import DEFAULT, LAYERS, PAPER, SELECTION, Recipe
from gcn_lpa.splits import split
from gcn_lpa.stacks import is_stackable, learn_many
from gcn_lpa.tables.datasets import load
from gcn_lpa.train import DivergedError

BLOCKS = load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0)
PARTS = [split(BLOCKS, seed=k) for k in range(5)]  # two stacks where there are two threads
SEEDS = [4, 0, 2**31 + 1, 3, 1]
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


def pairs(parts=PARTS):
    return [(part.train, part.val) for part in parts]


def together(recipe, parts=None, graph=BLOCKS, **options):
    return learn_many(graph, parts or pairs(), recipe, **{"seeds": SEEDS, "device": "cpu", **options})


def alone(recipe, number, parts=None, graph=BLOCKS, **options):
    train, val = (parts or pairs())[number]
    return learn(graph, train, val, recipe, seed=SEEDS[number], device="cpu", **options)


def assert_close(one, other, graph=BLOCKS):
    """The same choice, the same weights to rounding, and the same answers.

    A free edge weight that hardly matters has a gradient of rounding errors, which Adam makes steps of: at most one of 0.01.
    """
    at_most = 0.01 if one.recipe.edges == "free" else 1e-4
    assert one.run.best_epoch == other.run.best_epoch
    assert len(one.run.history) == len(other.run.history)
    for epoch, twin in zip(one.run.history, other.run.history, strict=True):
        assert epoch.val_accuracy == twin.val_accuracy
        for name in ("loss", "gcn", "lpa", "val_loss"):
            value, wanted = getattr(epoch, name), getattr(twin, name)
            assert value == (wanted if wanted is None else pytest.approx(wanted, rel=1e-4, abs=1e-6))
    weights, twins = one.model.state_dict(), other.model.state_dict()
    assert weights.keys() == twins.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, twins[name], rtol=1e-4, atol=at_most)
    said, wanted = predict_proba(one, graph), predict_proba(other, graph)
    assert torch.equal(said.argmax(dim=1), wanted.argmax(dim=1))
    torch.testing.assert_close(said, wanted, rtol=1e-4, atol=1e-4)
    assert one.class_names == other.class_names
    assert torch.equal(one.given(graph), other.given(graph))


def recipe_of(method):
    recipe = METHODS[method].settings().replace(epochs=12)
    return recipe.replace(hidden=8, gcn_layers=min(recipe.gcn_layers, 3), edge_rank=4)


OURS = [name for name, method in METHODS.items() if not method.needs]
HEAVY = {  # over half a second each
    *(
        "gcn-lpa",
        "gcn-same",
        "appnp",
        "correct-and-smooth",
        "label-input",
        "graphsage-sampled",
        "trees",
        "neighbour-lr",
    ),
}


@pytest.mark.parametrize("method", [pytest.param(name, marks=[pytest.mark.long] * (name in HEAVY)) for name in OURS])
def test_every_method_becomes_what_it_becomes_alone(method):
    recipe = recipe_of(method)
    for number, trained in enumerate(together(recipe)):
        assert_close(trained, alone(recipe, number))


def test_which_methods_are_stacked():
    prepared = LAYERS.prepare(BLOCKS)
    stacked = {name for name in OURS if is_stackable(METHODS[name].build(recipe_of(name), prepared, 0))}
    one_by_one = {"mlp", "lr", "lpa", "lpa-reconstruction", "lpa-sparse", "trees", "neighbour-lr", "smoothed-lr"}
    one_by_one |= {"graphsage-sampled"}
    assert stacked == set(OURS) - one_by_one


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
    for number, trained in enumerate(together(recipe)):
        assert_close(trained, alone(recipe, number))


@pytest.mark.long
@pytest.mark.parametrize("select", SELECTION)
def test_each_model_leaves_when_its_own_patience_is_over(select):
    recipe = SMALL.replace(select=select, patience=5)
    order = []
    found = together(recipe, threads=1, on_model=lambda number, trained: order.append((number, trained)))
    ends = [len(trained.run.history) for trained in found]
    assert len(set(ends)) > 1, "the models are to end at different epochs"
    for number, trained in enumerate(found):
        assert_close(trained, alone(recipe, number))
    assert dict(order) == dict(enumerate(found))
    assert [ends[number] for number, _ in order] == sorted(ends)


@pytest.mark.long
@pytest.mark.parametrize("recording", [1, 1000])
def test_models_that_are_done_may_stay_in_the_stack_for_a_while(recording, monkeypatch):
    """On a GPU, where the step is recorded: they go on, and their best weights stay what they were."""
    monkeypatch.setattr(gcn_lpa.stacks, "RECORDING", recording)
    monkeypatch.setattr(gcn_lpa.stacks, "CapturedStep", lambda step: step)
    sizes, init, only = [], gcn_lpa.stacks._Stack.__init__, gcn_lpa.stacks._StackedStep.only

    def as_on_a_gpu(stack, *arguments):
        init(stack, *arguments)
        stack.captures = True

    def noted(step, models):
        sizes.append(len(models))
        return only(step, models)

    monkeypatch.setattr(gcn_lpa.stacks._Stack, "__init__", as_on_a_gpu)
    monkeypatch.setattr(gcn_lpa.stacks._StackedStep, "only", noted)
    recipe = SMALL.replace(patience=5)
    found = together(recipe, threads=1)
    ends = [len(trained.run.history) for trained in found]
    assert len(set(ends)) == 3
    assert sizes == ([] if recording == 1000 else [2, 1])
    for number, trained in enumerate(found):
        assert_close(trained, alone(recipe, number))


def test_without_validation_the_last_epoch_is_kept():
    parts = [(part.train, []) for part in PARTS]
    recipe = SMALL.replace(epochs=12)
    for number, trained in enumerate(together(recipe, parts, stop_at=[5, None, 9, 9, 1])):
        stop_at = (5, None, 9, 9, 1)[number]
        assert trained.run.best_epoch == (stop_at or 12)
        assert_close(trained, alone(recipe, number, parts, stop_at=stop_at))


@pytest.mark.long
def test_one_model_may_have_validation_nodes_and_another_none():
    parts = [(part.train, part.val if k % 2 else []) for k, part in enumerate(PARTS)]
    for number, trained in enumerate(together(SMALL, parts)):
        assert_close(trained, alone(SMALL, number, parts))


@pytest.mark.long
def test_models_of_different_classes_are_stacked_apart():
    """Without class 2 among its labels a model knows two classes, as it would alone."""
    parts = [*pairs(), ((BLOCKS.y < 2) & PARTS[0].train, (BLOCKS.y < 2) & PARTS[0].val)]
    found = learn_many(BLOCKS, parts, SMALL, seeds=7, device="cpu")
    assert [len(trained.class_names) for trained in found] == [3, 3, 3, 3, 3, 2]
    for (train, val), trained in zip(parts, found, strict=True):
        assert_close(trained, learn(BLOCKS, train, val, SMALL, seed=7, device="cpu"))


@pytest.mark.parametrize(("threads", "wanted"), [(1, [5, 5]), (2, [3, 2, 3, 2])])
def test_a_stack_that_is_too_large_is_divided_and_then_shared_among_threads(threads, wanted, monkeypatch):
    sizes = []

    class Counted(gcn_lpa.stacks._Stack):
        def __init__(self, models, *rest):
            sizes.append(len(models))
            super().__init__(models, *rest)

    monkeypatch.setattr(gcn_lpa.stacks, "_Stack", Counted)
    monkeypatch.setattr(gcn_lpa.stacks, "LARGEST", 5 * BLOCKS.num_nodes * SMALL.hidden)
    found = learn_many(BLOCKS, pairs() * 2, SMALL.replace(epochs=3), seeds=0, device="cpu", threads=threads)
    assert sizes == wanted
    assert len(found) == 10


def scrambled(graph, keep):
    """The graph with the classes of all nodes but those of `keep` moved on by one."""
    return dataclasses.replace(graph, y=torch.where(keep, graph.y, (graph.y + 1) % graph.num_classes))


@pytest.mark.long
@pytest.mark.parametrize("method", ["gcn-lpa", "label-input", "correct-and-smooth", "lpa-learned"])
def test_no_model_sees_a_label_that_is_not_its_own(method):
    """Other labels outside train and val of all: the same bits. Other labels of one model's nodes: of all others the same."""
    nodes = torch.arange(BLOCKS.num_nodes)
    parts = [(nodes % 4 == k, nodes % 8 == (k + 1) % 4) for k in range(4)] + [(nodes % 5 == 0, nodes % 5 == 1)]
    known = [train | val for train, val in parts]
    recipe, names = recipe_of(method), BLOCKS.class_names

    def results(graph):
        found = together(recipe, parts, graph, classes=names)
        shown = [predict_proba(trained, graph) for trained in found]
        return [
            (
                [*trained.model.state_dict().values(), said],
                [dataclasses.replace(e, seconds=0) for e in trained.run.history],
            )
            for trained, said in zip(found, shown, strict=True)
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


@pytest.mark.long
def test_the_number_of_threads_changes_nothing_but_rounding():
    for one, other in zip(together(SMALL, threads=1), together(SMALL, threads=3), strict=True):
        assert_close(one, other)


def test_an_error_in_a_thread_ends_the_training(monkeypatch):
    def fail(self):
        raise ArithmeticError("no gradient today")

    monkeypatch.setattr(gcn_lpa.stacks._StackedStep, "learn", fail)
    with pytest.raises(ArithmeticError, match="no gradient today"):
        together(SMALL, threads=2)


def test_a_second_call_gives_the_same_bits():
    one, other = (together(SMALL) for _ in range(2))
    for trained, twin in zip(one, other, strict=True):
        weights, twins = trained.model.state_dict(), twin.model.state_dict()
        assert all(torch.equal(weights[name], twins[name]) for name in weights)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_model_that_diverges_leaves_the_others_alone(monkeypatch, processes):
    monkeypatch.setattr("gcn_lpa.stacks.num_processes", lambda *_: processes)
    real = METHODS["gcn-lpa"]

    def build(recipe, graph, seed):
        model = real.build(recipe, graph, seed)
        if seed == SEEDS[1]:
            model.body.weights[0].data[0, 0] = float("inf")
        return model

    recipe = SMALL.replace(epochs=5)
    wanted = [alone(recipe, number) for number in range(5)]
    monkeypatch.setitem(METHODS, "gcn-lpa", dataclasses.replace(real, build=build))
    with pytest.raises(DivergedError, match=r"model 1 of 5 \(seed 0\): training diverged at epoch 1") as caught:
        together(recipe)
    assert caught.value.number == 1
    assert caught.value.run.history == ()
    assert caught.value.trained is None
    assert caught.value.models[1] is None
    for number in (0, 2, 3, 4):
        assert_close(caught.value.models[number], wanted[number])


def test_ctrl_c_is_a_keyboard_interrupt():
    def stop(number, trained):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(SMALL.replace(epochs=2), on_model=stop)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": [1, 2]}, "seeds has 2 numbers for 5 parts; give one for each, or one for all"),
        ({"seeds": -1}, "seed"),
        ({"stop_at": 0}, "stop_at = 0; training has at least 1 epoch"),
        ({"recipe": SMALL.replace(training="two_step", lpa_weight=0)}, "needs an edge form that learns"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_a_sentence(options, sentence):
    recipe = options.pop("recipe", SMALL)
    with pytest.raises(ValueError, match=sentence):
        together(recipe, **options)


def test_no_part_is_no_model():
    assert learn_many(BLOCKS, [], SMALL) == []


@pytest.mark.long
@pytest.mark.parametrize("recipe", [SMALL, DEFAULT.replace(hidden=8, epochs=5, members="layers")])
def test_in_processes_every_model_has_the_bits_it_has_alone(recipe, monkeypatch):
    monkeypatch.setattr("gcn_lpa.learning.FEWEST_NODES", 0)
    order = []
    found = together(recipe, threads=2, on_model=lambda number, trained: order.append((number, trained)))
    assert sorted(number for number, _ in order) == [0, 1, 2, 3, 4]
    assert all(found[number] is trained for number, trained in order)
    for number, trained in enumerate(found):
        wanted = alone(recipe, number, threads=1)
        assert (trained.recipe, trained.fusion, trained.run.best_epoch) == (
            wanted.recipe,
            wanted.fusion,
            wanted.run.best_epoch,
        )
        assert torch.equal(predict_proba(trained, BLOCKS), predict_proba(wanted, BLOCKS))
