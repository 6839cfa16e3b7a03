"""Which columns matter: what tells comes first, a column that says the label is named, and parts of one prediction add up."""

import dataclasses

import numpy as np
import pandas
import pytest
import torch

from gcn_lpa.data.datasets import load
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.edges import Free
from gcn_lpa.insight.importance import (
    EDGES,
    LABELS,
    OTHERS,
    _among_alike,
    _edges_shuffled,
    _judges,
    _told_by_others,
    importance,
    prediction_parts,
    told_by,
)
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.updated import carried
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import posteriors
from gcn_lpa.recipes import LAYERS, Recipe
from gcn_lpa.target import Classes
from tests.helpers.mixed_tables import MIXED, mixed_rows, write_mixed
from tests.helpers.text_tables import read_delimited

QUICK = Recipe(
    features="auto",
    propagation="hops",
    propagation_steps=2,
    edges="fixed",
    lpa_weight=0.0,
    normalization="symmetric",
    hidden=8,
    epochs=40,
    patience=10,
    lr=0.05,
    select="loss",
    votes=True,
    members="trees",
)


def table(n=120, leak=False, seed=0):
    """Labels that `tells` says with noise, `tells a little` with more and `noise` not; edges join any two nodes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    columns = {"tells": y + 0.5 * rng.normal(size=n), "tells a little": y + 2 * rng.normal(size=n)}
    nodes = pandas.DataFrame({"id": np.arange(n), "label": np.array(["x", "y"])[y], **columns, "noise": rng.normal(size=n)})
    if leak:
        nodes["paid"] = np.where(y == 1, 100.0, 3.0) + rng.normal(size=n)
        nodes.loc[:2, "paid"] = 50.0  # of some nodes it does not say it
    edges = pandas.DataFrame({"source": np.arange(n), "target": rng.integers(n, size=n)})
    return read_csv(nodes, edges)


@pytest.fixture(scope="module")
def told():
    graph = table()
    return graph, learn(graph, recipe=QUICK, device="cpu")


@pytest.mark.long
def test_what_tells_most_comes_first_and_noise_is_worth_nothing(told):
    graph, trained = told
    found = importance(trained, graph, repeats=3)
    rows = {row.name: row for row in found.rows}
    assert set(rows) == {"tells", "tells a little", "noise", EDGES, LABELS}
    assert found.rows[0].name == "tells"
    assert rows["tells"].accuracy > 0.1 > abs(rows["noise"].accuracy) - rows["noise"].accuracy_interval
    assert rows["tells"].likelihood > rows["tells a little"].likelihood
    assert found.num_nodes == graph.num_nodes
    assert found.leaking == ()
    assert importance(trained, graph, repeats=3) == found


@pytest.mark.long
def test_a_column_that_says_the_label_is_first_and_named():
    graph = table(leak=True)
    found = importance(learn(graph, recipe=QUICK, device="cpu"), graph, repeats=2)
    assert found.rows[0].name == "paid"
    assert found.leaking == ("paid",)


def test_a_mark_of_a_rare_class_is_told_although_its_false_marks_are_many():
    """By hand: of 1,000 nodes 30 are of the class; all of them are marked, and 50 others: accuracy is best without the mark."""
    y = torch.tensor([1] * 30 + [0] * 970)
    marked = torch.tensor([1.0] * 80 + [0.0] * 920)
    told = told_by(Classes(("no", "yes")), marked.unsqueeze(1), [0], torch.arange(1000), y)
    assert told == pytest.approx((1 + 920 / 970) - 1, abs=1e-3)  # balanced accuracy, from chance on
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(1000, 1)))
    assert told_by(Classes(("no", "yes")), noise, [0], torch.arange(1000), y) < 0.5


@pytest.mark.long
def test_held_out_labels_are_predicted_by_models_that_did_not_learn_from_them(told):
    """Other labels for the nodes of one fold change no probability that the fold is given, before anything is shuffled."""
    from gcn_lpa.insight import importance as module

    graph, trained = told
    judge = module._judges(trained, graph)[0]
    changed = graph.y.clone()
    changed[judge.nodes] = 1 - changed[judge.nodes]
    other = dataclasses.replace(graph, y=changed)
    known = dataclasses.replace(trained.known, y=trained.labels_of(other)[graph.labeled])
    again = module._judges(dataclasses.replace(trained, known=known), other)[0]
    assert torch.equal(judge.probabilities(judge.prepared), again.probabilities(again.prepared))
    assert torch.equal(again.y, 1 - judge.y)


@pytest.mark.long
def test_validation_nodes_judge_where_they_were_given(told):
    graph, _ = told
    train = torch.arange(graph.num_nodes) % 3 != 0
    found = importance(learn(graph, train, ~train, QUICK, device="cpu"), graph, repeats=2)
    assert found.num_nodes == int((~train).sum())
    assert found.rows[0].name == "tells"


@pytest.mark.long
def test_without_held_out_labels_nothing_can_be_said(told):
    graph, trained = told
    with pytest.raises(ValueError, match="no labels were held out"):
        importance(dataclasses.replace(trained, held_out=None), graph)
    with pytest.raises(ValueError, match="repeats = 0"):
        importance(trained, graph, repeats=0)


@pytest.mark.long
def test_parts_are_the_mean_of_an_order_and_its_reverse_by_hand(told):
    graph, trained = told
    prepared, at = trained.prepare(graph), 7
    found = prediction_parts(trained, prepared, at, 1)

    def log_odds(gone):
        x = prepared.x.clone()
        if OTHERS in gone:
            x = prepared.x.mean(dim=0, keepdim=True).expand_as(x).clone()
            x[at] = prepared.x[at]
        for name, k in (("tells", 0), ("tells a little", 1), ("noise", 2)):
            if name in gone:
                x[at, k] = prepared.x[:, k].mean()
        y = torch.full_like(prepared.y, -1) if LABELS in gone else prepared.y
        p = float(posteriors(trained, dataclasses.replace(prepared, x=x, y=y))[at, 1])
        return np.log(p / (1 - p))

    names = [OTHERS, LABELS, "tells", "tells a little", "noise"]
    expected = dict.fromkeys(names, 0.0)
    for order in (names, names[::-1]):
        for k, name in enumerate(order):
            expected[name] += (log_odds(order[:k]) - log_odds(order[: k + 1])) / 2
    assert {part.name: part.value for part in found.parts} == pytest.approx(expected, abs=1e-5)
    assert found.log_odds == pytest.approx(log_odds(()), abs=1e-5)
    assert found.base == pytest.approx(log_odds(names), abs=1e-5)
    sizes = [abs(part.value) for part in found.parts]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.long
@pytest.mark.parametrize("method", ["lr", "trees", "gcn", "neighbour-lr", "smoothed-lr", "mlp"])
def test_parts_sum_to_the_difference_whatever_the_model_is(method, told):
    graph, _ = told
    recipe = METHODS[method].settings().replace(epochs=5)
    trained = learn(graph, graph.labeled, [], recipe, device="cpu")
    found = prediction_parts(trained, trained.prepare(graph), 3, 0)
    assert found.base + sum(part.value for part in found.parts) == pytest.approx(found.log_odds, abs=1e-6)


def test_of_sparse_features_the_filled_ones_are_looked_at():
    rng = np.random.default_rng(0)
    words = ["red apple", "green pear", "red cherry", "green plum"]
    nodes = pandas.DataFrame(
        {
            "id": np.arange(60),
            "label": [["x", "y"][k % 2] for k in range(60)],
            "bio": [f"{words[k % 2 + 2 * rng.integers(2)]} number {k // 2 % 7}" for k in range(60)],
        }
    )
    edges = pandas.DataFrame({"source": np.arange(60), "target": (np.arange(60) + 2) % 60})
    graph = read_csv(nodes, edges, text="bio")
    trained = learn(graph, recipe=METHODS["lr"].settings(), device="cpu")
    found = prediction_parts(trained, trained.prepare(graph), 0, 0)
    assert sum(part.name.startswith("bio") for part in found.parts) == 3  # "red", its fruit and "number"; 0 is no word
    assert found.base + sum(part.value for part in found.parts) == pytest.approx(found.log_odds, abs=1e-6)


def test_positions_of_columns_are_where_their_features_are(tmp_path):
    write_mixed(tmp_path / "mixed", mixed_rows(60))
    path = tmp_path / "mixed" / "nodes.csv"
    graph = read_csv(path, tmp_path / "mixed" / "edges.csv")
    x = graph.x if isinstance(graph.x, torch.Tensor) else graph.x.to_dense()
    found = graph.columns.positions()
    assert sorted(k for at in found.values() for k in at) == list(range(graph.num_features))
    rows = read_delimited(path, ("id", "label"))
    for name in MIXED[2:]:
        if name not in found or not found[name]:
            continue
        nodes = pandas.read_csv(path, dtype=str, keep_default_na=False)
        nodes[name] = nodes[name].to_numpy()[::-1]  # that column alone turned round
        nodes.to_csv(tmp_path / "turned.csv", index=False)
        other = read_csv(tmp_path / "turned.csv", tmp_path / "mixed" / "edges.csv", columns=graph.columns)
        y = other.x if isinstance(other.x, torch.Tensor) else other.x.to_dense()
        changed = ((x != y).any(dim=0)).nonzero().squeeze(1).tolist()
        assert set(changed) <= set(found[name])
        assert torch.equal(y[:, found[name]], x.flip(0)[:, found[name]])
    assert len(rows.columns) == len(MIXED)


def test_free_weights_move_with_the_edges_that_are_shuffled():
    """Each entry of the moved graph has the weight of the entry that it came from, found one by one."""
    club = load("karate")
    recipe = LAYERS.replace(edges="free", loss="literal", features="raw", residual=False, epochs=5)
    trained = learn(club, recipe=recipe, device="cpu")
    judge = _judges(trained, club)[0]
    order = torch.from_numpy(np.random.default_rng(0).permutation(club.num_nodes))
    form = next(module for module in judge.trained.model.modules() if isinstance(module, Free))
    before, weight = judge.prepared.pattern, form.of_entries(judge.prepared).tolist()
    learned = dict(zip(zip(before.row.tolist(), before.col.tolist(), strict=True), weight, strict=True))
    after = _edges_shuffled(judge, order, np.random.default_rng(0)).pattern
    model = carried(judge.trained.model, judge.prepared, after, order.argsort())
    moved = next(module for module in model.modules() if isinstance(module, Free)).weight.tolist()
    cells = zip(after.row.tolist(), after.col.tolist(), strict=True)
    assert moved == [learned[int(order[i]), int(order[j])] for i, j in cells]
    same = torch.arange(club.num_nodes)
    unmoved = _edges_shuffled(judge, same, np.random.default_rng(0))
    assert torch.equal(judge.probabilities(unmoved, same), judge.probabilities(judge.prepared))
    found = importance(trained, club, repeats=1)
    assert {row.name for row in found.rows} == {EDGES, LABELS}


@pytest.mark.long
def test_a_column_that_another_repeats_is_used_and_not_missed():
    """`twin` is `tells` with a little noise: each matters to the model, neither alone; `other` tells what no other column does."""
    rng = np.random.default_rng(2)
    y = rng.integers(2, size=300)
    tells = y + 0.7 * rng.normal(size=300)
    columns = {"tells": tells, "twin": tells + 0.05 * rng.normal(size=300), "other": y + rng.normal(size=300)}
    nodes = pandas.DataFrame({"id": np.arange(300), "label": np.array(["x", "y"])[y], **columns})
    graph = read_csv(nodes, None)
    found = importance(learn(graph, recipe=METHODS["lr"].settings(), device="cpu"), graph, repeats=3)
    rows = {row.name: row for row in found.rows}
    assert min(rows["tells"].likelihood, rows["twin"].likelihood) > 0.02
    assert max(abs(rows["tells"].alone), abs(rows["twin"].alone)) < 0.02 < rows["other"].alone


def test_what_other_columns_say_is_ridge_regression():
    """Beside scikit-learn's, with a penalty of one node for each feature; nodes change places with those next to them alone."""
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    x[:, 2] += x[:, 0] - x[:, 1]
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    told = _told_by_others([[0], [1], [2], [3]], torch.from_numpy(x))
    for k, own in enumerate(told):
        others = np.delete(z, k, axis=1)
        by_hand = Ridge(alpha=4, fit_intercept=False).fit(others, z[:, k]).predict(others)
        shrunk = own[0] / by_hand[0]
        assert np.allclose(own, shrunk * by_hand, atol=1e-9)
    order = _among_alike(told[2], rng)
    assert sorted(order) == list(range(80))
    places = np.argsort(np.argsort(told[2]))
    assert np.abs(places[order] - places).max() < 10 and (order != np.arange(80)).any()
    assert _told_by_others([[0, 1, 2, 3]], torch.from_numpy(x)) == []
