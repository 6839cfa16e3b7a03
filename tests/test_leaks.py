"""Training does not see test labels, and validation labels only choose the epoch: for every method and loss."""

import dataclasses
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import Key
from gcn_lpa.estimator import GCNLPAClassifier
from gcn_lpa.insight import advise as advice
from gcn_lpa.insight import compare as comparison
from gcn_lpa.insight.advise import suggest
from gcn_lpa.insight.audit import audit_edges, audit_labels
from gcn_lpa.learning import learn as folds
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.model import GCNLPA
from gcn_lpa.predict import evaluate, predict_proba
from gcn_lpa.propagation import leave_one_out_votes, propagate_labels
from gcn_lpa.recipes import DEFAULT, LOSSES, Case, Recipe, recipe_for
from gcn_lpa.runs import train_run as stages
from gcn_lpa.runs.plan import Plan, Source
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.train import Watch, fit
from tests.helpers.small_graphs import labels_at, votes_on

OURS = Recipe(hidden=6, edge_rank=4, epochs=8, lr=0.05, select="first_best")
SMALL = {"hidden": 6, "edge_rank": 4, "epochs": 5, "patience": 0, "lr": 0.05}
CASES = {
    **{f"gcn-lpa {loss}": ("gcn-lpa", OURS.replace(loss=loss, lpa_iterations=2)) for loss in LOSSES},
    "gcn-lpa two_step": ("gcn-lpa", OURS.replace(training="two_step")),
    "gcn-lpa free": ("gcn-lpa", OURS.replace(edges="free", lpa_ratio=0.5, class_weights="balanced")),
    "gcn-lpa by loss": ("gcn-lpa", OURS.replace(select="loss", patience=3)),
    "gcn-lpa by ranking": ("gcn-lpa", OURS.replace(select="average_precision", patience=3)),
    "default": ("gcn-lpa", recipe_for(Case(columns="table")).replace(**SMALL)),
    "best": ("gcn-lpa", recipe_for(Case(columns="table"), "best", has_time=True).replace(**SMALL)),
    **{name: (name, method.settings(OURS).replace(epochs=4)) for name, method in METHODS.items() if name != "gcn-lpa"},
}
ROUNDS = ("feature", "threshold", "value")  # of trees, which are kept up to the round that validation nodes choose
QUICK = ("gcn-lpa leave_one_out", "gcn-lpa free")
MARKS = {"best": pytest.mark.slow, **dict.fromkeys(QUICK, ())}
EVERY_CASE = [pytest.param(case, marks=MARKS.get(case, pytest.mark.long)) for case in CASES]


@pytest.fixture(scope="module")
def world():
    graph = load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0)
    return graph, split(graph, seed=0)


def other_labels(graph, mask):
    """The same graph with every label in `mask` changed into the next class."""
    return dataclasses.replace(graph, y=torch.where(mask, (graph.y + 1) % graph.num_classes, graph.y))


def without_labels(graph, mask):
    return dataclasses.replace(graph, y=torch.where(mask, -1, graph.y))


def trace(case, graph, parts):
    """All that training did: the weights after every epoch, its history, and what the model then says."""
    method, recipe = CASES[case]
    if METHODS[method].needs == "pyg":
        pytest.importorskip("torch_geometric", reason=f"{method} needs PyTorch Geometric")
    built, walk = [], []

    def noted(build, *arguments):
        built.append(build(*arguments))
        return built[-1]

    def note(_, epoch):
        losses = epoch.loss, epoch.gcn, epoch.lpa
        state = built[-1].state_dict().items()
        walk.append((losses, {name: (tensor[:1] if name in ROUNDS else tensor).clone() for name, tensor in state}))

    with pytest.MonkeyPatch.context() as patch:
        for name, real in METHODS.items():
            patch.setitem(METHODS, name, dataclasses.replace(real, build=partial(noted, real.build)))
        trained = learn(graph, parts.train, parts.val, recipe, device="cpu", watch=Watch(on_epoch=note))
    run, said = trained.run, [predict_proba(trained, graph, raw=raw) for raw in (True, False)]
    scored = [(epoch.val_accuracy, epoch.val_loss) for epoch in run.history]
    return walk, scored, run.best_epoch, dict(trained.model.state_dict()), said


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("change", [other_labels, without_labels])
@pytest.mark.parametrize("case", EVERY_CASE)
def test_training_does_not_see_test_labels(world, case, change):
    graph, parts = world
    changed = change(graph, parts.test)
    assert not torch.equal(changed.y, graph.y)
    assert same(trace(case, graph, parts), trace(case, changed, parts))


@pytest.mark.parametrize("case", EVERY_CASE)
def test_validation_labels_change_no_step(world, case):
    graph, parts = world
    walk, scored, _, _, _ = trace(case, graph, parts)
    other_walk, other_scored, _, _, _ = trace(case, other_labels(graph, parts.val), parts)
    shared = min(len(walk), len(other_walk))  # patience may end one of them earlier
    assert shared >= 1
    assert same(walk[:shared], other_walk[:shared])
    assert scored[-1] != other_scored[-1]  # by other labels


@pytest.mark.parametrize("case", EVERY_CASE)
def test_the_proof_can_fail_training_labels_do_change_the_weights(world, case):
    graph, parts = world
    assert not same(trace(case, graph, parts), trace(case, other_labels(graph, parts.train), parts))


def folded(graph, nodes, name):
    """All that comes of learning from folds of the labels of `nodes`."""
    recipe = recipe_for(Case(columns="table"), name.removesuffix(" alone")).replace(**SMALL)
    if name.endswith(" alone"):
        recipe = recipe.replace(members="")
    trained = learn(graph, nodes, None, recipe, device="cpu")
    held_out = trained.held_out.node, trained.held_out.fold, trained.held_out.probability
    return dict(trained.model.state_dict()), trained.weights, held_out, predict_proba(trained, graph)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("default alone", marks=pytest.mark.long),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("default", "best")),
    ],
)
def test_folds_do_not_see_labels_of_other_nodes(world, name):
    """Members, votes, selection and out-of-fold predictions included; and the proof can fail."""
    graph, parts = world
    found = folded(graph, parts.train, name)
    for change in (other_labels, without_labels):
        assert same(found, folded(change(graph, ~parts.train), parts.train, name))
    assert not same(found, folded(other_labels(graph, parts.train), parts.train, name))


def with_a_class_of_its_own(graph, node):
    """The same graph where one node has a class that no other has, listed between the others."""
    names = (graph.class_names[0], "seen nowhere else", *graph.class_names[1:])
    y = torch.where(graph.y > 0, graph.y + 1, graph.y)
    return dataclasses.replace(graph, y=y.index_fill(0, torch.tensor([node]), 1), class_names=names)


@pytest.mark.parametrize("case", EVERY_CASE)
def test_a_class_that_only_a_test_node_has_changes_nothing_but_counts_as_an_error(world, case):
    graph, parts = world
    node = int(parts.test.nonzero()[0])
    changed = with_a_class_of_its_own(graph, node)
    assert same(trace(case, graph, parts), trace(case, changed, parts))
    trained = learn(changed, parts.train, parts.val, CASES[case][1], device="cpu")
    assert trained.class_names == graph.class_names
    called = predict_proba(trained, changed, raw=True).argmax(dim=1)
    right = (called == graph.y) & parts.test
    right[node] = False
    found = evaluate(trained, changed, parts.test)
    assert found.accuracy == int(right.sum()) / int(parts.test.sum())
    assert (found.per_class["seen nowhere else"].support, found.per_class["seen nowhere else"].recall) == (1, 0.0)
    assert evaluate(trained, changed, [node]).accuracy == 0.0


# every door: whatever the labels that were not given, the answer is the same


def permuted(graph, mask):
    nodes = mask.nonzero().squeeze(1)
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(graph, y=graph.y.index_copy(0, nodes, graph.y[nodes[order]]))


def of_one_class(graph, mask):
    return dataclasses.replace(graph, y=torch.where(mask, 0, graph.y))


def of_new_classes(graph, mask):
    """Half of them in a class that sorts before all others, half in one that sorts behind."""
    names = ("0 new", *graph.class_names, "z new")
    new = torch.arange(graph.num_nodes) % 2 * (len(names) - 1)
    return dataclasses.replace(graph, y=torch.where(mask, new, graph.y + (graph.y >= 0)), class_names=names)


CHANGES = {"permuted": permuted, "one class": of_one_class, "new classes": of_new_classes}
EVERYTHING = DEFAULT.replace(hidden=6, edge_rank=4, epochs=6, patience=0, propagation_steps=3)
QUIET = {"device": "cpu", "threads": 1}


def models_of(monkeypatch, module, name):
    """Everything that a training function of a module gives from now on."""
    real, models = getattr(module, name), []

    def spy(*arguments, **options):
        found = real(*arguments, **options)
        models.extend(found if isinstance(found, list) else [found])
        return found

    monkeypatch.setattr(module, name, spy)
    return models


def weights(models):
    return [(model.class_names, model.run.best_epoch, dict(model.model.state_dict())) for model in models]


def learned(graph, parts):
    return learn(graph, parts.train, parts.val, EVERYTHING, **QUIET)


def door_learn(graph, parts, monkeypatch):
    trained = learned(graph, parts)
    return weights([trained]), predict_proba(trained, graph), trained.weights


def door_compare(graph, parts, monkeypatch):
    models = models_of(monkeypatch, comparison, "learn_many")
    methods = ["mlp", "lr", "lpa", "gcn", "gcn-lpa"]
    comparison.compare(graph, methods, splits=[parts], changes={"epochs": 4}, **QUIET)
    assert len(models) == len(methods)
    return weights(models), [predict_proba(model, graph, raw=True) for model in models]


def door_advise(graph, parts, monkeypatch):
    """Its folds divide classes alike, and so do depend on all labels: here they are given."""
    monkeypatch.setattr(advice, "stratified_folds", lambda *_: [parts, dataclasses.replace(parts, seed=1)])
    models = models_of(monkeypatch, comparison, "learn_many")
    advice.advise(graph, repeats=2, changes={"epochs": 3}, **QUIET)
    assert len(models) >= 8
    return weights(models)


def door_estimator(graph, parts, monkeypatch):
    ids = parts.train.nonzero().squeeze(1).tolist()
    names = [("0", "1", "2")[int(place)] for place in EVERY_LABEL[ids]]
    fitted = GCNLPAClassifier(graph=graph, hidden=6, epochs=4, random_state=0, **QUIET).fit(ids, names)
    return weights([fitted.trained_]), torch.from_numpy(fitted.label_distributions_)


def door_suggest(graph, parts, monkeypatch):
    found = suggest(learned(graph, parts), graph, n=5)
    return [dataclasses.astuple(one) for one in found]


def door_audit_labels(graph, parts, monkeypatch):
    return audit_labels(learned(graph, parts), graph, folds=2, repeats=1, **QUIET).to_dict()


def door_audit_edges(graph, parts, monkeypatch):
    return audit_edges(learned(graph, parts), graph, folds=2, repeats=1, **QUIET).to_dict()


def run_of(graph, parts, monkeypatch, reserve=0.0):
    monkeypatch.setattr(stages, "split", lambda *_, **__: parts)
    plan = Plan(Source("sbm"), graph.content_hash(64), EVERYTHING, split="uniform", reserve=reserve)
    return train_run(plan, graph, **QUIET)


def door_train_and_calibrate(graph, parts, monkeypatch):
    run = run_of(graph, parts, monkeypatch)
    return weights([run.trained]), dataclasses.astuple(run.trained.calibration), predict_proba(run.trained, graph)


def door_reserved_calibration(graph, parts, monkeypatch):
    run = run_of(graph, parts, monkeypatch, reserve=0.5)
    held_out = run.trained.held_out
    return held_out.probability, [run.trained.class_names[k] for k in held_out.y.tolist()], held_out.protocol


DOORS = {name.removeprefix("door_"): door for name, door in globals().items() if name.startswith("door_")}
EVERY_LABEL = load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0).y


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_labels_through_that_were_not_given(world, monkeypatch, door, change):
    graph, parts = world
    answers = []
    for seen in (graph, CHANGES[change](graph, parts.test)):
        with monkeypatch.context() as patch:
            answers.append(DOORS[door](seen, parts, patch))
    assert same(*answers)


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS)
def test_the_proof_of_the_doors_can_fail_training_labels_change_every_answer(world, monkeypatch, door):
    graph, parts = world
    answers = []
    for seen in (graph, other_labels(graph, parts.train)):
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "EVERY_LABEL", seen.y)
            answers.append(DOORS[door](seen, parts, patch))
    assert not same(*answers)


@pytest.mark.long
@pytest.mark.parametrize("change", ["permuted", "one class"])
def test_the_model_of_a_fold_learns_nothing_from_the_labels_of_that_fold(world, monkeypatch, change):
    """They choose its epoch and nothing else: here there is one epoch. Folds divide classes alike, so they are given.

    Of your own graph all labels count as known classes, so the list of classes stays.
    """
    graph, _ = world
    parts = [torch.arange(60) % 5 == k for k in range(5)]
    answers = []
    for seen in (graph, CHANGES[change](graph, parts[0])):
        with monkeypatch.context() as patch:
            patch.setattr(folds, "label_folds", lambda *_, **__: parts)
            outcomes = models_of(patch, folds, "fit_many")
            train_run(Plan(Source("own"), seen.content_hash(64), EVERYTHING.replace(epochs=1), split=None), seen, **QUIET)
        models = [fit.model for fit in outcomes[0].groups[0]]
        assert len(models) == 5
        answers.append([dict(model.state_dict()) for model in models])
    (first, second, *_), (first_changed, second_changed, *_) = answers
    assert same(first, first_changed)
    assert not same(second, second_changed)  # which learned from fold 1


@pytest.mark.parametrize("change", ["permuted", "one class", "new classes"])
def test_no_encoder_of_columns_sees_a_label(tmp_path, change):
    """Numbers with gaps, categories, dates, yes and no, lists, words: the features are the same whatever the labels."""
    rows = [
        f"n{i},LABEL{i},{i * 0.37 if i % 7 else ''},{'abc'[i % 3]},2020-0{1 + i % 9}-11,{'yes' if i % 2 else 'no'},"
        f"x{i % 3}|y{i % 4},some words about topic{i % 5} and number {i}\n"
        for i in range(40)
    ]
    labels = [f"class {i % 2}" for i in range(40)]
    changed = {
        "permuted": labels[::-1],
        "one class": ["class 0"] * 40,
        "new classes": [f"new {i % 7}" for i in range(40)],
    }[change]
    graphs = []
    for said in (labels, changed):
        table = "id,label,size,kind,born,paid,tags,words\n" + "".join(rows)
        for i, label in reversed(list(enumerate(said))):
            table = table.replace(f"LABEL{i},", f"{label},")
        (tmp_path / "nodes.csv").write_text(table)
        (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i + 1}\n" for i in range(39)))
        graphs.append(load(tmp_path))
    one, other = graphs
    assert one.class_names != other.class_names or not torch.equal(one.y, other.y)
    assert one.num_features > 20
    assert torch.equal(dense(one.x), dense(other.x))
    assert one.columns.to_json() == other.columns.to_json()


def dense(x):
    return x if isinstance(x, torch.Tensor) else x.to_dense()


class Peeking(GCNLPA):
    """Trains on every label it can find, whatever nodes it was told."""

    def loss(self, graph, nodes, key=None):
        return super().loss(graph, graph.labeled.nonzero().squeeze(1), key)


def peeks(monkeypatch):
    monkeypatch.setitem(METHODS, "gcn-lpa", dataclasses.replace(METHODS["gcn-lpa"], build=Peeking))


def test_the_proof_can_fail_validation_labels_that_are_shown_to_a_model_that_peeks_are_missed(world, monkeypatch):
    def leaking(model, batches, validation, recipe, **options):
        graph = batches[0].graph
        shown = dataclasses.replace(graph, y=graph.y.index_copy(0, validation.nodes, validation.target))
        return fit(model, [batches[0]._replace(graph=shown)], validation, recipe, **options)

    peeks(monkeypatch)
    monkeypatch.setattr("gcn_lpa.learning.tasks.fit", leaking)
    with pytest.raises(AssertionError):
        test_validation_labels_change_no_step(world, "gcn-lpa literal")


def test_even_a_model_that_peeks_finds_no_validation_labels(world, monkeypatch):
    peeks(monkeypatch)
    test_validation_labels_change_no_step(world, "gcn-lpa literal")


def test_even_a_model_that_peeks_finds_no_test_labels(world, monkeypatch):
    peeks(monkeypatch)
    test_training_does_not_see_test_labels(world, "gcn-lpa literal", other_labels)


def small_walk(world):
    """A transition with uneven weights, the training nodes and their labels."""
    graph, parts = world
    prepared = OURS.prepare(graph)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(prepared.pattern.num_entries, generator=generator, dtype=torch.float64)
    nodes = parts.train.nonzero().squeeze(1)
    return prepared.adjacency.to(torch.float64).log().add(scores).row_softmax(), nodes, graph.y[nodes]


def seed_rows(transition, nodes, target):
    one_hot = F.one_hot(target, 3).to(transition.dtype)
    return one_hot.new_zeros(transition.shape[0], 3).index_copy(0, nodes, one_hot).requires_grad_()


def votes_at(transition, nodes, target, recipe):
    """What LPA says about `nodes`, whose classes are `target`, in the first step of seed 0, and which are scored."""
    return votes_on(transition, labels_at(nodes, target, transition, recipe, num_classes=3), recipe, Key(0, 1))


def own_influence(votes, seeds, node):
    """(how far the votes for `node` depend on its own seed row, how far on those of others)."""
    (gradient,) = torch.autograd.grad(votes[node].sum(), seeds, retain_graph=True)
    return gradient[node].abs().sum().item(), gradient.abs().sum().item() - gradient[node].abs().sum().item()


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_node_left_out_has_no_vote_in_its_own_case(world, iterations):
    transition, nodes, target = small_walk(world)
    seeds = seed_rows(transition, nodes, target)
    votes = leave_one_out_votes(transition, seeds, iterations)
    for node in nodes.tolist():
        own, others = own_influence(votes, seeds, node)
        assert own == pytest.approx(0, abs=1e-12)
        assert others >= 0
    plain = propagate_labels(transition, seeds, iterations)
    assert all(own_influence(plain, seeds, node)[0] > 1e-3 for node in nodes.tolist())  # `literal` does let it vote


@pytest.mark.parametrize(("loss", "iterations"), [("leave_one_out", 1), ("leave_one_out", 2), ("held_out", 1), ("held_out", 5)])
def test_another_label_of_its_own_changes_no_vote_for_a_scored_node(world, loss, iterations):
    """By brute force: give each scored node each other label in turn."""
    transition, nodes, target = small_walk(world)
    recipe = OURS.replace(loss=loss, lpa_iterations=iterations)
    votes, scored = votes_at(transition, nodes, target, recipe)
    chosen = scored.nonzero().squeeze(1).tolist()
    assert 0 < len(chosen) < len(nodes) or loss == "leave_one_out"
    for place in chosen:
        for shift in (1, 2):
            changed = target.clone()
            changed[place] = (changed[place] + shift) % 3
            other, _ = votes_at(transition, nodes, changed, recipe)
            torch.testing.assert_close(other[place], votes[place], rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["official", "literal"])
def test_the_losses_of_the_paper_and_its_code_do_let_a_node_vote_for_itself(world, loss):
    transition, nodes, target = small_walk(world)
    recipe = OURS.replace(loss=loss, lpa_iterations=2)
    changed = target.clone()
    changed[0] = (changed[0] + 1) % 3
    votes = [votes_at(transition, nodes, labels, recipe)[0][0] for labels in (target, changed)]
    assert (votes[0] - votes[1]).abs().max() > 1e-3
