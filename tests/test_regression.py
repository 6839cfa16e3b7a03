"""Numbers to predict: the scale, the votes and the losses by brute force, and what a training may not see."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn import metrics

from gcn_lpa import Graph, evaluate, learn, predictions
from gcn_lpa.calibration import FEWEST, PULL
from gcn_lpa.data.splits import label_folds, split
from gcn_lpa.engine.sparse import Key
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.insight.what_if import what_if
from gcn_lpa.learning.ensemble import Parts, fit_weights
from gcn_lpa.losses import READINGS, labels_of
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.metrics import METRICS
from gcn_lpa.propagation import leave_one_out_votes, propagate_labels
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, choose_recipe
from gcn_lpa.regression import Intervals, Numbers, errors_nearby
from gcn_lpa.target import Classes
from gcn_lpa.trained import HeldOut, KnownLabels

SMALL = DEFAULT.replace(**FIXED_EDGES, members="neighbour-lr", hidden=8, epochs=30, patience=0)


def towns(n=120, seed=0, known=0.6, skewed=False):
    """Places on a ring whose number depends on where they are and on a column; a share of them is known."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = 2 * np.sin(2 * np.pi * np.arange(n) / n) + x[:, 0] + 0.3 * rng.normal(size=n)
    y = np.exp(y) if skewed else y
    y[rng.random(n) > known] = np.nan
    edges = [(i, (i + k) % n) for i in range(n) for k in (1, 2)]
    return Graph.from_edges(edges, num_nodes=n, x=x, y=y)


@pytest.fixture(scope="module")
def world():
    graph = towns()
    return graph, learn(graph, recipe=SMALL)


def scaled(graph):
    """A graph with standard scores for labels."""
    target = graph.target.fitted(graph.y)
    return graph.labeled_by(target.translated(graph.y, graph.target), target)


@pytest.mark.parametrize("kind", [Classes(("a", "b")), Numbers()], ids=["classes", "numbers"])
def test_both_targets_have_one_interface(kind):
    other = {Classes: Numbers(), Numbers: Classes(("a", "b"))}[type(kind)]
    assert {name for name in dir(kind) if not name.startswith("_")} - {
        *("mean", "spread", "low", "high", "offset", "standard", "undone", "drawn"),
    } <= {name for name in dir(other) if not name.startswith("_")}


@pytest.mark.parametrize("skewed", [False, True])
def test_standard_scores_have_mean_0_and_spread_1_and_are_undone(skewed):
    graph = towns(skewed=skewed)
    y = graph.y[graph.labeled]
    target = graph.target.fitted(graph.y)
    z = target.translated(y, graph.target)
    assert (target.offset is not None) == skewed
    read = y.numpy()
    read = np.log(read + read.min()) if skewed else read
    np.testing.assert_allclose(z.numpy(), stats.zscore(read), atol=1e-12)
    assert (target.low, target.high) == (float(z.min()), float(z.max()))
    np.testing.assert_allclose(target.undone(z).numpy(), y.numpy(), rtol=1e-9)
    assert target.fitted(z).translated(z, target).allclose(z)  # fitted again it stays


def test_few_negative_or_even_numbers_are_on_no_log_scale():
    skewed = torch.from_numpy(np.random.default_rng(0).lognormal(size=200))
    assert Numbers().fitted(skewed).offset == float(skewed.min())
    assert Numbers().fitted(skewed - 1).offset is None
    assert Numbers().fitted(skewed[:9]).offset is None
    assert Numbers().fitted(torch.linspace(0, 1, 200, dtype=torch.float64)).offset is None


def test_the_vote_of_numbers_is_their_mean_by_brute_force():
    """Every walk of at most three steps that ends at the first known number, weighed by its probability."""
    graph = scaled(towns(n=14, known=0.4))
    walk, y, known = graph.adjacency.row_normalized(), graph.y, graph.labeled.tolist()
    dense = walk.to_dense().double().numpy()

    def ends(node, steps):  # (probability, number) of each walk
        for other in np.flatnonzero(dense[node]):
            if known[other]:
                yield dense[node, other], float(y[other])
            elif steps > 1:
                yield from ((dense[node, other] * p, z) for p, z in ends(other, steps - 1))

    shares = propagate_labels(walk.to(torch.float64), graph.target.seeds(y, torch.float64), 3)
    total = shares.sum(dim=1, keepdim=True)
    found = graph.target.voted(shares / total).squeeze(1)
    for node in range(14):
        p, z = (np.array(side) for side in zip(*ends(node, 3), strict=True))
        assert float(total[node]) == pytest.approx(p.sum(), abs=1e-6)
        assert float(found[node]) == pytest.approx((p * z).sum() / p.sum(), abs=1e-6)


def test_left_out_alone_a_number_has_no_say_in_its_own_vote():
    graph = scaled(towns(n=14, known=0.5))
    walk, nodes = graph.adjacency.row_normalized().to(torch.float64), graph.labeled.nonzero().squeeze(1)
    votes = leave_one_out_votes(walk, graph.target.seeds(graph.y, torch.float64), 2)
    for node in nodes.tolist():
        others = torch.where(torch.arange(14) == node, math.nan, graph.y)
        alone = propagate_labels(walk, graph.target.seeds(others, torch.float64), 2)[node]
        torch.testing.assert_close(votes[node], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_is_the_mean_square_of_what_votes_are_off(reading):
    graph = scaled(towns(n=20, known=0.5))
    nodes, walk, key = graph.labeled.nonzero().squeeze(1), graph.adjacency.row_normalized(), Key(0, 1)
    recipe = DEFAULT.replace(loss=reading, lpa_iterations=2)
    labels = labels_of(recipe, graph, nodes)
    found = float(READINGS[reading](walk, labels, 2, key))
    seeds, z = labels.seeds.double(), graph.y[nodes]
    if reading == "held_out":
        assert 0 < found < 10
        return
    if reading == "leave_one_out":
        votes = leave_one_out_votes(walk.to(torch.float64), seeds, 2)
    else:
        votes = propagate_labels(walk.to(torch.float64), seeds, 2, clamp=reading != "official", labeled=graph.labeled)
    votes = votes[nodes]
    mean = graph.target.voted(votes / votes.sum(dim=1, keepdim=True).clamp_min(1e-12)).squeeze(1)
    middle = (graph.target.low + graph.target.high) / 2
    mean = torch.where(votes.sum(dim=1) > 0, mean, middle)
    assert found == pytest.approx(float((mean - z).square().mean()), rel=1e-3)


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, guess = (torch.from_numpy(rng.lognormal(size=60)) for _ in range(2))
    target = Numbers().fitted(truth)
    found = target.scores(truth, target.standard(guess), Numbers())
    assert found.mae == pytest.approx(metrics.mean_absolute_error(truth, guess))
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(truth, guess))
    assert found.r2 == pytest.approx(metrics.r2_score(target.standard(truth), target.standard(guess)))
    assert found.log and found.score == found.r2 == found.metrics["r2"]


@pytest.mark.parametrize("name", ["r2", "mae", "rmse"])
def test_numbers_that_do_not_count_change_no_metric(name):
    rng = np.random.default_rng(1)
    p, y = torch.from_numpy(rng.normal(size=(3, 20, 1))), torch.from_numpy(rng.normal(size=(3, 20)))
    counts = torch.from_numpy(rng.random((3, 20)) < 0.6)
    alone = [float(METRICS[name](p[k][counts[k]], y[k][counts[k]])) for k in range(3)]
    assert METRICS[name](p, y.masked_fill(~counts, math.nan), counts).tolist() == pytest.approx(alone)


def test_the_weights_are_ridge_s_where_none_is_negative():
    """Σ (y - Σ w p)² / 2σ² + pull ‖w - prior‖², by the normal equations; a member that is noise gets less than its share."""
    rng = np.random.default_rng(2)
    y = torch.from_numpy(rng.normal(size=200))
    members = tuple((y + s * torch.from_numpy(rng.normal(size=200))).unsqueeze(1) for s in (0.3, 3.0))
    found = fit_weights(Parts(members, (), Numbers(low=-3.0, high=3.0)), y)
    assert found.weights[0] > 0.8 > 0.2 > found.weights[1] >= 0
    x = torch.stack(members).squeeze(2) * torch.tensor(found.exponents)[:, None]
    variance = (y - x.mean(dim=0)).square().mean()
    expected = torch.linalg.solve(x @ x.T / variance + 20 * torch.eye(2), x @ y / variance + 10)
    assert found.weights == pytest.approx(expected.tolist(), rel=1e-6)


def test_folds_and_splits_have_their_share_of_every_range():
    graph = towns(n=200)
    strata = graph.target.strata(graph.y)
    known = graph.labeled.nonzero().squeeze(1)
    rank = torch.from_numpy(stats.rankdata(graph.y[known])) - 1
    assert torch.equal(strata[known], (rank * 10 / len(known)).long())
    folds = label_folds(strata, graph.labeled, 5, seed=(0, 0))
    counts = torch.stack([torch.bincount(strata[fold], minlength=10) for fold in folds])
    assert int((counts.amax(dim=0) - counts.amin(dim=0)).max()) <= 1
    parts = split(graph, seed=3, kind="stratified")
    assert not (parts.train & ~graph.labeled).any()
    with pytest.raises(ValueError, match="split 'per_class' is for classes"):
        split(graph, kind="per_class")


def test_what_is_learned_explains_numbers_that_were_hidden(world):
    graph, trained = world
    truth = towns(known=1.0).y
    table = predictions(trained, graph)
    assert list(table.columns) == ["id", "value", "low", "high", "status"]
    open_nodes = ~graph.labeled.numpy()
    assert metrics.r2_score(truth[open_nodes], table["value"][open_nodes]) > 0.8
    inside = (table["low"] <= truth.numpy()) & (truth.numpy() <= table["high"])
    assert 0.75 < inside[open_nodes].mean() <= 1
    nobody = Graph.from_edges([(0, 1)], num_nodes=2, x=graph.x[:2], y=[1.0, 0.5])
    assert evaluate(trained, nobody, [0, 1]).num_nodes == 2


def test_hidden_numbers_change_nothing_and_the_same_input_gives_the_same_bits(world):
    graph, _ = world
    train = graph.labeled & (torch.arange(graph.num_nodes) % 3 > 0)
    other = dataclasses.replace(graph, y=torch.where(train, graph.y, graph.y * 1000 + 7))
    one, two = (learn(g, train, recipe=SMALL) for g in (graph, other))
    assert one.target == two.target
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name]), name
    assert one.weights == two.weights
    assert torch.equal(one.held_out.probability, two.held_out.probability)


def test_out_of_fold_a_number_is_not_known_to_the_models_that_predict_it(world):
    """Another number at one node leaves its own out-of-fold prediction where it was, but for the scale of all."""
    graph, trained = world
    at = int(trained.held_out.node[0])
    y = graph.y.clone()
    y[at] = float(graph.y[graph.labeled].mean()) + 0.01
    again = learn(dataclasses.replace(graph, y=y), recipe=SMALL)
    was, now = (t.target.undone(t.held_out.probability[:, 0]) for t in (trained, again))
    moved = (now - was).abs()
    assert float(moved[0]) < 0.5 * float((graph.y[at] - y[at]).abs())


def test_the_shares_of_an_explanation_sum_to_the_number_of_lpa_exactly(world):
    graph, trained = world
    explainer = Explainer.of(trained, graph, hops=3)
    for node in (0, 5, 50):
        why = explainer.explain(node, top=2)
        shares = [vote.share for vote in why.votes]
        total = why.scores["numbers"]
        rest = total - sum(shares)
        mean = sum(s * number for s, number in zip(shares, why.number.votes, strict=True))
        mean += rest * (why.number.others or 0)
        assert mean / total == pytest.approx(why.number.lpa, rel=1e-9)
        assert why.number.votes == pytest.approx([float(graph.y[vote.node]) for vote in why.votes])
        assert why.number.low <= why.number.value <= why.number.high
        assert "LPA predicts" in str(why) and why.to_dict()["number"]["lpa"] is not None


def test_a_what_if_is_lpa_computed_again(world):
    graph, trained = world
    at = int(graph.labeled.nonzero()[3])
    found = what_if(trained, graph, relabel={at: "9.5"}, hops=2)
    known = trained.prepare(graph)
    y = known.y.clone()
    y[at] = trained.target.standard(torch.tensor(9.5, dtype=torch.float64))
    walk = known.adjacency.to(torch.float64).row_normalized()
    before, after = (propagate_labels(walk, known.target.seeds(one, torch.float64), 2) for one in (known.y, y))
    change = (after[:, 0] / after.sum(dim=1) - before[:, 0] / before.sum(dim=1)).abs()
    change = change[~known.labeled] * (known.target.high - known.target.low)
    assert found.lpa.largest_move == pytest.approx(float(change.nan_to_num().max()), rel=1e-6)
    with pytest.raises(ValueError, match="'many' is no number"):
        what_if(trained, graph, relabel={at: "many"})


def test_a_node_unlike_all_others_gets_no_number_far_beyond_the_labels():
    graph = towns()
    far = torch.cat([graph.x, torch.tensor([[1e4, -1e4]])])
    edges = torch.stack([graph.row, graph.col], dim=1).tolist()
    more = Graph.from_edges(edges, num_nodes=121, x=far, y=[*graph.y.tolist(), math.nan])
    value = predictions(learn(more, recipe=SMALL), more)["value"]
    known = graph.y[graph.labeled]
    room = 0.1 * float(known.max() - known.min()) + 1e-6
    assert value.between(float(known.min()) - room, float(known.max()) + room).all()


def test_what_is_about_classes_is_refused_in_a_sentence(world):
    graph, trained = world
    with pytest.raises(ValueError, match="method 'grand' predicts classes"):
        learn(graph, recipe=DEFAULT.replace(members="grand"))
    with pytest.raises(ValueError, match="class_weights = 'balanced' weighs classes"):
        learn(graph, recipe=SMALL.replace(class_weights="balanced"))
    with pytest.raises(ValueError, match="select = 'roc_auc' is a score of classes"):
        learn(graph, recipe=SMALL.replace(select="roc_auc"))
    with pytest.raises(ValueError, match="abstain is about classes"):
        predictions(trained, graph, abstain=0.5)
    classes = Graph.from_edges([(0, 1)], x=graph.x[:2], y=["a", "b"])
    with pytest.raises(ValueError, match="the labels of this graph are classes"):
        evaluate(trained, classes, [0])


def test_the_recipe_for_numbers_has_no_member_that_cannot_predict_them():
    for graph in (towns(), dataclasses.replace(towns(), x_kind="identity")):
        for name in ("default", "quick", "best"):
            recipe = choose_recipe(graph, graph.labeled, name, has_time=True)
            assert all(METHODS[one.method].for_numbers for one in members_of(recipe).values())
            assert "neighbour-lr" in recipe.members and recipe.select == "loss"


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.for_numbers])
def test_every_method_for_numbers_gives_a_finite_number_for_every_node(name):
    pytest.importorskip("torch_geometric") if METHODS[name].needs == "pyg" else None
    graph = towns(n=90)
    recipe = METHODS[name].settings(DEFAULT)
    fields = {
        "epochs": 60,
        "hidden": 16,
        "heads": 2,
        "patience": 0,
        "select": "loss",
        "features": "auto",
        "members": "",
    }
    recipe = recipe.replace(**{field: value for field, value in fields.items() if field in METHODS[name].fields})
    trained = learn(graph, recipe=recipe)
    table = predictions(trained, graph)
    assert np.isfinite(table["value"]).all()
    assert trained.held_out.probability.shape == (int(graph.labeled.sum()), 3)


def test_a_method_for_classes_alone_says_so():
    for name in {*METHODS} - {name for name, method in METHODS.items() if method.for_numbers}:
        with pytest.raises(ValueError, match=f"method '{name}' predicts classes, and these labels are numbers"):
            learn(towns(), recipe=METHODS[name].settings(DEFAULT))


def test_labels_of_both_targets_are_read_written_and_compared():
    classes, numbers = Classes(("a", "b")), Numbers(10.0, 2.0, -1.0, 1.0)
    assert classes.texts(torch.tensor([1, -1])) == ["b", None]
    assert numbers.texts(torch.tensor([0.5, math.nan]).double()) == ["11", None]
    assert (classes.read("b"), numbers.read("11")) == (1, 0.5)
    with pytest.raises(ValueError, match="no class 'c'"):
        classes.read("c")
    with pytest.raises(ValueError, match="'c' is no number"):
        numbers.read("c")
    before, after = torch.tensor([[0.9, 0.1], [0.0, 0.0]]), torch.tensor([[0.2, 0.8], [0.0, 0.5]])
    assert classes.named(before).tolist() == [0, -1] and classes.named(after).tolist() == [1, 1]
    assert classes.moves(before, after).tolist() == pytest.approx([0.7, 0.5])
    assert classes.score_of(before, classes.named(before)).tolist() == pytest.approx([0.9, 0.0])
    before, after = torch.tensor([[1.0], [math.nan], [math.nan]]), torch.tensor([[0.5], [-3.0], [math.nan]])
    assert numbers.moves(before, after).tolist() == [0.5, 3.0, 0.0]
    votes = torch.tensor([[0.75, 0.25], [0.0, 0.0]])  # a share of three quarters of the highest number
    assert numbers.tallied(votes).squeeze(1).nan_to_num(9).tolist() == [0.5, 9.0] and classes.tallied(votes) is votes


def test_both_targets_say_how_unsure_they_are_and_in_which_group():
    classes, numbers = Classes(("a", "b")), Numbers(10.0, 2.0, -1.0, 1.0)
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert classes.uncertainty(p).tolist() == [0, 1] and classes.sureness(p).tolist() == [1, 0.5]
    assert (classes.groups(p)[0].tolist(), classes.groups(p)[1]) == ([0, 0], ("a", "b"))
    z = torch.stack([torch.linspace(-1, 1, 10), torch.linspace(0.1, 1, 10)], dim=1).double()
    assert numbers.uncertainty(z).tolist() == pytest.approx(torch.linspace(0.1, 1, 10).tolist())
    place, names = numbers.groups(z)
    assert np.bincount(place).tolist() == [2] * 5 and names[0].startswith("below 8.")
    y = torch.tensor([-1.0, 0.0, 1.0, math.nan]).double()
    assert numbers.quartiles(y) == (8.0, 10.0, 12.0) and classes.quartiles(torch.tensor([0])) is None
    assert numbers.classes(y).tolist() == [-1] * 4 and classes.classes(torch.tensor([1, -1])).tolist() == [1, -1]
    numbers_only = pytest.raises(ValueError, match="about classes")
    with numbers_only:
        numbers.only_classes("this is about classes")
    assert classes.only_classes("this is about classes") is None


def held_out_numbers(spread, near, seed=0):
    """Predictions of 0 for numbers that are off by `near` times a normal draw, [m, 3], those numbers, and five folds."""
    y = near * torch.from_numpy(np.random.default_rng(seed).normal(size=len(near)))
    return torch.stack([torch.zeros_like(near), spread, near], dim=1), y, torch.arange(len(near)) % 5


def test_nodes_that_no_label_reaches_have_intervals_by_their_own_errors():
    """With errors three times as large, a third of the nodes has intervals three times as wide, and both are covered."""
    apart = torch.from_numpy(np.random.default_rng(1).random(3000) < 1 / 3)
    predicted, y, fold = held_out_numbers(torch.zeros(3000).double(), torch.ones(3000).double())
    y, first, then = torch.where(apart, 3 * y, y), slice(0, 1500), slice(1500, 3000)
    fitted = Intervals.fitted(predicted[first], y[first], "cross-validation", fold[first], apart[first])
    unit = fitted.unit(predicted[then], apart[then])
    assert float(unit.max() / unit.min()) == pytest.approx(3, rel=0.15)
    half = fitted.radius(predicted[first], y[first], apart[first], 0.9) * unit
    for group in (apart[then], ~apart[then]):
        assert float((y[then].abs() <= half)[group].double().mean()) == pytest.approx(0.9, abs=0.03)
    by_folds = fitted.crossed(predicted[first], y[first], fold[first], apart[first], 0.9)
    assert float((y[first].abs() <= by_folds).double().mean()) == pytest.approx(0.9, abs=0.02)
    few = torch.arange(100) < FEWEST - 1
    assert not any(Intervals.fitted(predicted[:100] * 0 + 1, y[:100], "reserved", None, few).slopes)


def test_intervals_are_narrow_where_held_out_errors_nearby_are_small_and_only_there():
    near = torch.from_numpy(np.exp(np.random.default_rng(2).normal(size=8000)))
    predicted, y, fold = held_out_numbers(torch.ones_like(near), near)
    fitted = Intervals.fitted(predicted[:4000], y[:4000], "cross-validation", fold[:4000])
    half = fitted.radius(predicted[:4000], y[:4000], None, 0.9) * fitted.unit(predicted[4000:], None)
    for group in (near[4000:] < 0.7, near[4000:] > 1.5):
        assert float((y[4000:].abs() <= half)[group].double().mean()) == pytest.approx(0.9, abs=0.04)
    assert float(half[near[4000:] > 1.5].mean()) > 3 * float(half[near[4000:] < 0.7].mean())
    assert "errors nearby" in str(fitted)
    predicted, y, fold = held_out_numbers(near, torch.ones_like(near))
    assert not any(Intervals.fitted(predicted, y, "cross-validation", fold).slopes)  # they tell nothing: all as wide


def test_the_slopes_are_those_of_a_general_optimiser():
    spread, near = torch.from_numpy(np.random.default_rng(3).random((2, 300)) + 0.1)
    predicted, y, _ = held_out_numbers(spread, near)
    found = Intervals.of((0, 1), predicted, y, None, "reserved")
    f = torch.stack([(spread + 0.05).log(), near.log()], dim=1)
    f = ((f - f.mean(dim=0)) / f.std(dim=0, correction=0)).clamp(-3, 3).numpy()

    def cost(a):
        log_unit = a[0] + f @ a[1:]
        return (log_unit + y.abs().numpy() * np.exp(-log_unit)).sum() + PULL / 2 * (a[1:] ** 2).sum()

    assert found.slopes[:2] == pytest.approx(optimize.minimize(cost, np.zeros(3), tol=1e-12).x[1:], abs=1e-5)


def test_errors_nearby_are_those_that_walks_meet_in_the_other_half_of_the_fold():
    """By powers of D⁻¹A. A node's own error never counts, and neither does one of a model that saw its label."""
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)], num_nodes=6, y=[1.5, 2.0, 0.5, 1.0, 3.5, 2.5])
    node, y = torch.tensor([0, 1, 2, 3, 4]), graph.y[:5]
    predicted = torch.stack([y + torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0]), torch.zeros(5)], dim=1).double()
    held_out = HeldOut(node, y.double(), predicted, "cross-validation", torch.tensor([0, 0, 1, 1, 1]))
    walk, power = graph.adjacency.between_nodes().to_scipy().toarray(), np.eye(6)
    met = sum(power := power @ walk for _ in range(16)) / 16
    error, other = np.arange(1.0, 6.0), [[1], [0], [3], [2, 4], [3]]  # 0, 2 and 4 are the first half of their folds
    wanted = [(met[i, js] @ error[js] + 0.1 * 3) / (met[i, js].sum() + 0.1) for i, js in enumerate(other)]
    found = held_out.with_errors_near(graph)
    assert found.probability[:, 2].numpy() == pytest.approx(wanted)
    everybody = errors_nearby(graph.adjacency.between_nodes(), held_out.errors(graph), 3.0)
    assert everybody[:, 0].numpy() == pytest.approx((met[:, :5] @ error + 0.3) / (met[:, :5].sum(axis=1) + 0.1))
    known = KnownLabels.of(graph, torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool), held_out.errors(graph))
    assert torch.equal(known.errors_near(graph), everybody[:, 0]) and known.error[5] == -1
