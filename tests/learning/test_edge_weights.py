"""Columns of edges weigh them where held-out labels support it, and change no bit where they do not."""

import dataclasses

import numpy as np
import pandas
import pytest
import torch

from gcn_lpa.data.edge_columns import ASIDE, GONE
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.graph import Graph
from gcn_lpa.insight.explain import explain
from gcn_lpa.learning import edge_weights
from gcn_lpa.learning.learn import learn
from gcn_lpa.learning.stacks import are_stackable
from gcn_lpa.learning.tasks import Job, task_of
from gcn_lpa.predict import Prediction, edge_table, evaluate, predict_proba
from gcn_lpa.recipes import Recipe, choose_recipe
from gcn_lpa.train import JobName
from gcn_lpa.trained import Trained

RECIPE = Recipe(
    features="raw",
    propagation="hops",
    propagation_steps=3,
    edges="fixed",
    lpa_weight=0.0,
    normalization="symmetric",
    hidden=8,
    epochs=60,
    patience=20,
    lr=0.05,
    select="loss",
    votes=True,
    edge_weights=True,
)


def two_kinds(tells=True, seed=0, n=90):
    """Edges of the kind "friend" join nodes of one class, of the kind "seller" any two; without `tells` both join any."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    source, target = rng.integers(n, size=(2, 6 * n))
    kind = rng.choice(["friend", "seller"], size=6 * n)
    for k in np.flatnonzero(kind == "friend") if tells else ():
        target[k] = rng.choice(np.flatnonzero(y == y[source[k]]))
    nodes = pandas.DataFrame({"id": np.arange(n), "label": np.array(["x", "y"])[y], "noise": rng.normal(size=n)})
    edges = pandas.DataFrame({"source": source, "target": target, "kind": kind, "amount": rng.lognormal(size=6 * n)})
    return read_csv(nodes, edges)


@pytest.fixture(scope="module")
def telling():
    graph = two_kinds()
    train = torch.arange(graph.num_nodes) % 2 == 0
    return graph, train, learn(graph, train, recipe=RECIPE, device="cpu")


@pytest.mark.long
def test_a_kind_of_edges_that_tells_weighs_more(telling):
    graph, train, trained = telling
    weights = trained.used_edge_weights
    assert weights is not None
    assert weights.gain > 2 * weights.error
    names = list(weights.functions.names)
    start = sum(function.width for function in weights.functions.each[: names.index("kind")])
    friend, seller = weights.levels[start : start + 2].tolist()
    assert friend > seller + 1
    plain = dataclasses.replace(graph, edge_columns=None)
    without = learn(plain, train, recipe=RECIPE.replace(edge_weights=False), device="cpu")
    assert evaluate(trained, graph, ~train).accuracy > evaluate(without, plain, ~train).accuracy + 0.05


@pytest.mark.long
def test_what_tells_nothing_changes_no_bit():
    graph = two_kinds(tells=False)
    train = torch.arange(graph.num_nodes) % 2 == 0
    trained = learn(graph, train, recipe=RECIPE, device="cpu")
    assert trained.edge_weights is not None
    assert trained.used_edge_weights is None
    plain = dataclasses.replace(graph, edge_columns=None)
    without = learn(plain, train, recipe=RECIPE.replace(edge_weights=False), device="cpu")
    assert torch.equal(predict_proba(trained, graph), predict_proba(without, plain))
    assert all(torch.equal(a, b) for a, b in zip(trained.model.parameters(), without.model.parameters(), strict=True))


def test_functions_of_a_fold_do_not_know_its_labels(telling):
    """Other labels of fold 0 leave the weights that its predictions walk as they were, to the bit."""
    graph, train, _ = telling
    fold = train & (torch.arange(graph.num_nodes) % 10 == 0)
    rest = train & ~fold
    recipe = RECIPE.replace(epochs=15, patience=0)

    def weights_where(changed):
        one = dataclasses.replace(graph, y=torch.where(changed, 1 - graph.y, graph.y))
        parts = [(rest, torch.zeros_like(fold)), (fold, torch.zeros_like(fold))]
        tasks = [task_of(one, *part, recipe.replace(**edge_weights.LEARNS, edge_weights=False)) for part in parts]
        jobs = [Job(JobName(), task, recipe.replace(**edge_weights.LEARNS), 0) for task in tasks]
        return [job.run(torch.device("cpu")).model.edges.weight.detach() for job in jobs]

    before, after = weights_where(torch.zeros_like(fold)), weights_where(fold)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@pytest.mark.long
def test_labels_of_test_nodes_are_not_seen(telling):
    graph, train, trained = telling
    other = dataclasses.replace(graph, y=torch.where(train, graph.y, 1 - graph.y))
    again = learn(other, train, recipe=RECIPE, device="cpu")
    assert again.edge_weights == trained.edge_weights
    assert torch.equal(predict_proba(again, graph), predict_proba(trained, graph))


def test_everything_walks_the_learned_weights(telling):
    graph, _, trained = telling
    prepared = trained.prepare(graph)
    walked = trained.walked(graph)
    assert 0 < walked.num_edges < graph.num_edges  # sellers stand aside
    given, fewer = graph.with_self_loops().adjacency, walked.with_self_loops().adjacency
    expected = fewer.values * walked.edge_columns.log_mask(fewer.pattern, trained.edge_weights.levels).exp()
    assert torch.equal(prepared.adjacency.values, expected)
    table = edge_table(trained, graph)
    assert table["weight"].tolist() == given.values.tolist()
    share = fewer.with_values(expected).row_normalized().to_scipy().toarray()
    there = share[table["target"].astype(int), table["source"].astype(int)]
    np.testing.assert_allclose(table["learned"], there, rtol=1e-4)
    why = explain(trained, graph, int(graph.node_names[1]))
    assert 0 < sum(vote.share for vote in why.votes) <= 1 + 1e-6


def test_a_model_keeps_what_it_learned_of_edges(telling, tmp_path):
    graph, _, trained = telling
    trained.save_pretrained(tmp_path / "model")
    again = Trained.from_pretrained(tmp_path / "model")
    assert again.edge_weights == trained.edge_weights
    assert torch.equal(predict_proba(again, graph), predict_proba(trained, graph))


def test_a_graph_without_the_columns_is_refused(telling):
    graph, _, trained = telling
    with pytest.raises(ValueError, match=r"weighs edges by their columns, 'kind', 'amount'.*have none"):
        predict_proba(trained, dataclasses.replace(graph, edge_columns=None))
    with pytest.raises(ValueError, match="read it with edge_functions="):
        predict_proba(trained, two_kinds(seed=3))


def test_folds_with_weights_of_their_own_are_no_stack(telling):
    graph, train, trained = telling
    recipe = RECIPE.replace(edge_weights=False)
    tasks = [task_of(graph, train & (torch.arange(graph.num_nodes) % 3 != k), [], recipe) for k in range(2)]
    jobs = [Job(JobName(), task, recipe, 0) for task in tasks]
    assert are_stackable(jobs)
    weighed = [task.weighed(trained.edge_weights.of_fold(k)) for k, task in enumerate(tasks)]
    assert not are_stackable([dataclasses.replace(job, task=task) for job, task in zip(jobs, weighed, strict=True)])


def test_the_default_reads_columns_of_edges_where_there_are_any():
    graph = two_kinds()
    assert choose_recipe(graph, graph.labeled).edge_weights
    assert not choose_recipe(dataclasses.replace(graph, edge_columns=None), graph.labeled).edge_weights


@pytest.mark.long
def test_validation_nodes_decide_where_they_are_given(telling):
    graph, train, _ = telling
    val = ~train & (torch.arange(graph.num_nodes) % 3 == 0)
    trained = learn(graph, train, val, recipe=RECIPE, device="cpu")
    assert len(trained.edge_weights.folds) == 1
    assert trained.used_edge_weights is not None


def drowned(n=150):
    """Forty random edges for each that joins nodes of one class: no small step from the given weights would help."""
    rng = np.random.default_rng(3)
    y = rng.integers(2, size=n)
    friend = np.array([(i, rng.choice(np.flatnonzero(y == y[i]))) for i in range(n) for _ in range(2)])
    ends = np.concatenate([friend, rng.integers(n, size=(80 * n, 2))])
    kind = np.array(["friend"] * len(friend) + ["seller"] * (80 * n))
    nodes = pandas.DataFrame({"id": np.arange(n), "label": np.array(["x", "y"])[y], "noise": rng.normal(size=n)})
    return read_csv(nodes, pandas.DataFrame({"source": ends[:, 0], "target": ends[:, 1], "kind": kind}))


def test_edges_of_the_type_that_tells_stand_alone_where_idle_ones_drown_them():
    graph = drowned()
    train = torch.arange(graph.num_nodes) % 2 == 0
    trained = learn(graph, train, recipe=RECIPE, device="cpu")
    weights = trained.used_edge_weights
    assert weights is not None
    names = list(weights.functions.names)
    start = sum(function.width for function in weights.functions.each[: names.index("kind")])
    friend, seller = weights.levels[start : start + 2].tolist()
    assert seller < ASIDE / 2 < friend
    assert evaluate(trained, graph, ~train).accuracy > 0.8


def test_the_recipe_is_chosen_for_the_edges_that_are_walked(monkeypatch):
    """A graph that is large by its idle edges alone gets the recipe of the small graph that they leave, by every door."""
    graph = drowned()
    monkeypatch.setattr("gcn_lpa.recipes.LARGE", 2000)
    monkeypatch.setattr("gcn_lpa.recipes.DEFAULT", RECIPE)
    train = torch.arange(graph.num_nodes) % 2 == 0
    parts = train, ~train & (torch.arange(graph.num_nodes) % 3 == 0)
    chosen = choose_recipe(graph, train, by_folds=False)
    assert chosen.propagation == "columns"
    by_name, by_recipe = (learn(graph, *parts, recipe=one, device="cpu") for one in ("default", chosen))
    suited = choose_recipe(by_name.walked(graph), train, by_folds=False)
    assert suited.propagation == by_name.recipe.propagation == "hops"
    assert by_name.recipe == suited.replace(edge_weights=True)
    assert torch.equal(predict_proba(by_name, graph), predict_proba(by_recipe, graph))
    own = chosen.replace(hidden=8, members="")
    assert learn(graph, *parts, recipe=own, device="cpu").recipe == own


def test_edge_types_of_another_graph_are_those_that_were_learned():
    """Other shares of the types, fewer of them, or those alone that are left out; but no type that is new."""
    rng, n = np.random.default_rng(3), 120
    y = rng.integers(2, size=n)
    pairs = [(i, int(rng.choice(np.flatnonzero(y == y[i])))) for i in range(n) for _ in range(3)]
    pairs += rng.integers(n, size=(40 * n, 2)).tolist()
    kinds, x = ["friend"] * 3 * n + ["seller"] * 40 * n, torch.from_numpy(rng.normal(size=(n, 2)))
    graph = Graph.from_edges(pairs, edge_types=kinds, x=x, y=y)
    train, val = torch.arange(n) % 2 == 0, torch.arange(n) % 4 == 1
    recipe = RECIPE.replace(propagation="relations")
    trained = learn(graph, train, val, recipe=recipe, device="cpu")
    assert list(trained.relations) == ["friend"]
    for edges in (slice(0, 30 * n), slice(0, n), slice(3 * n, 30 * n)):
        other = Graph.from_edges(pairs[edges], edge_types=kinds[edges], x=x, y=y)
        assert Prediction.of(trained, other).probabilities.isfinite().all()
    new = Graph.from_edges(pairs, edge_types=["stranger", *kinds[1:]], x=x, y=y)
    with pytest.raises(ValueError, match=r"of the type 'stranger', which the model has not seen; it knows 'friend', 'seller'"):
        predict_proba(trained, new)


def test_a_node_without_a_telling_edge_keeps_the_others():
    """By hand: 0 – 1 is a friend; sellers 0 – 1 and 1 – 2 go or stay; 3 has sellers alone, and 4 no edge."""
    edges = [(0, 1, "friend"), (0, 2, "friend"), (0, 1, "seller"), (1, 2, "seller"), (1, 3, "seller"), (2, 3, "seller")]
    table = pandas.DataFrame(edges, columns=["source", "target", "kind"])
    graph = read_csv(pandas.DataFrame({"id": range(5), "label": list("xyxyx")}), table, relation="kind")
    functions = graph.edge_columns.functions
    levels = torch.tensor(functions.alone()[0])
    fewer = graph.without_idle(levels).adjacency.to_scipy().toarray()
    ratio = 2 / 4  # as many friends for each seller
    expected = np.zeros((5, 5))
    for i, j, weight in ((0, 1, 1.0), (0, 2, 1.0), (1, 3, ratio), (2, 3, ratio)):
        expected[i, j] = expected[j, i] = weight
    np.testing.assert_allclose(fewer, expected)
    assert graph.without_idle(levels).edge_types.names == ("friend",)
    gone = graph.without_idle(torch.where(levels == ASIDE, GONE, levels))
    assert gone.num_edges == 2


def test_each_category_is_tried_alone_where_they_are_few():
    functions = two_kinds().edge_columns.functions
    start = sum(function.width for function in functions.each[: functions.names.index("kind")])
    alone = functions.alone()
    assert len(alone) == 2
    assert [levels[start : start + 2] for levels in alone] == [(0.0, ASIDE), (ASIDE, 0.0)]
    assert not any(level for levels in alone for level in (*levels[:start], *levels[start + 2 :]))


def test_what_is_not_used_is_shown_as_it_was_learned():
    """No category alone stands in for functions that held-out labels do not support."""
    graph = two_kinds(tells=False)
    trained = learn(graph, torch.arange(graph.num_nodes) % 2 == 0, recipe=RECIPE, device="cpu")
    assert trained.used_edge_weights is None
    assert min(map(min, trained.edge_weights.folds)) > ASIDE
