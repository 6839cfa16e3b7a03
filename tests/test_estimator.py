"""The estimator against scikit-learn's own checks, brute force, dense arithmetic and its own other doors."""

import dataclasses
import doctest
import pickle
import runpy
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from gcn_lpa.estimator import GCNLPAClassifier, GCNLPARegressor, row_keys
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import LAYERS, WITHOUT_FEATURES, Recipe

ROOT = Path(__file__).parents[1]


PLAIN = LAYERS.replace(features="raw", bias=True, feature_dropout=0.0, residual=False, lr=0.03, patience=30, select="loss")


def quick(**settings):
    """One network of two layers, without members and votes."""
    plain = {"recipe": PLAIN, "epochs": 15, "hidden": 8, "device": "cpu", "metric": "euclidean"}
    return GCNLPAClassifier(**{**plain, **settings})


@pytest.fixture(scope="module")
def blobs():
    """Three clouds of 20 points in the plane."""
    return make_blobs(60, centers=3, cluster_std=0.5, random_state=1)


def weights(classifier):
    return {name: tensor.tolist() for name, tensor in classifier.trained_.model.state_dict().items()}


def neighbours_by_hand(X, k):
    """A symmetric 0/1 matrix that joins each row to its k nearest others."""
    near = np.zeros((len(X), len(X)))
    for i in range(len(X)):
        distance = np.square(X - X[i]).sum(axis=1)
        distance[i] = np.inf
        near[i, np.argsort(distance, kind="stable")[:k]] = 1
    return np.maximum(near, near.T)


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "classifier",
    [
        pytest.param(quick(metric="auto"), marks=pytest.mark.long),
        pytest.param(GCNLPAClassifier(), marks=pytest.mark.slow),
    ],
)
def test_it_passes_every_check_of_scikit_learn(classifier):
    results = check_estimator(classifier, on_skip=None)
    assert len(results) > 40
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}  # SciPy's switch


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_graph_joins_every_row_to_its_nearest(blobs, k):
    X = blobs[0][:12]
    graph = quick(n_neighbors=k, epochs=1).fit(X, blobs[1][:12]).graph_
    assert np.array_equal(graph.to_scipy().toarray(), neighbours_by_hand(X, k))


def test_neighbours_are_those_of_scaled_rows_where_these_tell_more_labels():
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1], 40)
    X = np.stack([y + generator.normal(0, 0.2, 80), 1000 * generator.normal(size=80)], axis=1)  # the unit of noise is large
    graph = quick(metric="auto", n_neighbors=3, epochs=1).fit(X, y).graph_.to_scipy().toarray()
    assert np.array_equal(graph, neighbours_by_hand(StandardScaler().fit_transform(X), 3))
    as_given = quick(metric="euclidean", n_neighbors=3, epochs=1).fit(X, y).graph_.to_scipy().toarray()
    assert np.array_equal(as_given, neighbours_by_hand(X, 3))
    same_unit = X * [1, 1e-4]  # what tells the label is far apart: standardised, noise would count as much
    graph = quick(metric="auto", n_neighbors=3, epochs=1).fit(same_unit, y).graph_.to_scipy().toarray()
    assert np.array_equal(graph, neighbours_by_hand(same_unit, 3))


@pytest.mark.parametrize("scale", [[1, 1000], [1, 1]])
def test_a_new_row_is_attached_by_the_distance_that_was_chosen(scale):
    generator = np.random.default_rng(1)
    y = np.repeat([0, 1], 30)
    X = np.stack([2 * y + generator.normal(0, 0.3, 60), generator.normal(size=60)], axis=1) * scale
    recipe = PLAIN.replace(features="auto")
    classifier = quick(metric="auto", n_neighbors=5, epochs=60, recipe=recipe).fit(X, y)
    new = np.array([[-0.1, 2.0], [2.1, -2.0], [0.2, 0.3], [1.9, 1.4]]) * scale
    assert classifier.predict(new).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_few_rows_are_all_joined(num_rows):
    X = np.random.default_rng(0).normal(size=(num_rows, 2))
    classifier = quick(n_neighbors=7).fit(X, np.arange(num_rows) % 2)
    assert np.array_equal(classifier.graph_.to_scipy().toarray(), 1 - np.eye(num_rows))
    assert np.allclose(classifier.predict_proba(X + 1).sum(axis=1), 1)


def test_a_new_row_receives_messages_of_its_neighbours_and_itself(blobs):
    X, y = blobs
    classifier = quick(edges="fixed", n_neighbors=4).fit(X, y)
    new = np.array([[0.3, -0.4], [5.0, 5.0], [-9.0, 2.0]])
    n, m = len(X), len(new)
    matrix = np.zeros((n + m, n + m))
    matrix[:n, :n] = neighbours_by_hand(X, 4)
    for i, row in enumerate(new):
        matrix[n + i, np.argsort(np.square(X - row).sum(axis=1))[:4]] = 1
    matrix += np.eye(n + m)
    transition = matrix / matrix.sum(axis=1, keepdims=True)
    centered = X - X.mean(axis=0)
    features = (np.vstack([X, new]) - X.mean(axis=0)) / np.sqrt(np.square(centered).sum(axis=1).mean())
    logs = []
    for model in classifier.trained_.model.first:  # one for each fold
        parts = model.body.weights, model.body.biases
        (w0, w1), (b0, b1) = ([p.detach().double().numpy() for p in part] for part in parts)
        hidden = np.maximum(transition @ features @ w0 + b0, 0)
        logs.append(np.log(softmax(transition @ hidden @ w1 + b1)))
    expected = classifier.trained_.calibration(torch.from_numpy(softmax(np.mean(logs, axis=0)))).numpy()
    assert np.allclose(classifier.predict_proba(new), expected[n:], atol=1e-5)
    assert np.allclose(classifier.label_distributions_, expected[:n], atol=1e-5)


def test_the_answer_for_a_row_does_not_depend_on_its_company(blobs):
    X, y = blobs
    classifier = quick().fit(X, y)
    rows = np.vstack([X[:3], X[:5] + 0.1])
    together = classifier.predict_proba(rows)
    alone = np.vstack([classifier.predict_proba(row[None]) for row in rows])
    assert np.allclose(together, alone, rtol=0, atol=1e-6)
    assert np.array_equal(together[:3], classifier.label_distributions_[:3])


def test_transduction_is_what_predict_says_of_the_training_rows(blobs):
    X, y = np.vstack([blobs[0], blobs[0][:9], blobs[0][:4]]), np.append(blobs[1], [0] * 13)  # 9 rows twice or thrice
    classifier = quick(n_neighbors=2).fit(X, y)
    assert np.array_equal(classifier.predict(X), classifier.transduction_)
    assert np.array_equal(classifier.predict_proba(X), classifier.label_distributions_)


def test_equal_rows_get_the_mean_of_their_nodes(blobs):
    X, y = np.vstack([blobs[0], blobs[0][:2]]), np.append(blobs[1], blobs[1][:2])
    classifier = quick(n_neighbors=1).fit(X, y)
    each = classifier._predicted(classifier.graph_)
    assert np.allclose(classifier.label_distributions_[0], (each[0] + each[60]) / 2)
    assert np.array_equal(classifier.label_distributions_[0], classifier.label_distributions_[60])
    assert np.allclose(classifier.label_distributions_[2:60], each[2:60])


def test_transduction_covers_the_nodes_that_were_not_in_x(karate):
    ids = np.arange(0, 34, 3)
    classifier = quick(graph=karate).fit(ids, karate.y[ids])
    assert classifier.transduction_.shape == (34,)
    assert np.array_equal(classifier.predict(np.arange(34)), classifier.transduction_)


@pytest.mark.long
@pytest.mark.parametrize("edges", ["agnn", "free", "fixed"])
def test_the_weights_into_a_node_sum_to_one(blobs, edges):
    X, y = blobs
    table = quick(edges=edges, n_neighbors=3).fit(X, y).edge_weights_
    assert np.allclose(table.groupby("target").weight.sum(), np.ones(60), atol=1e-6)
    joined = np.zeros((60, 60))
    joined[table.target, table.source] = 1
    assert np.array_equal(joined, neighbours_by_hand(X, 3) + np.eye(60))


def test_edge_weights_of_fixed_edges_are_one_over_the_degree():
    graph = Graph.from_edges([("a", "b"), ("b", "c")])
    table = quick(graph=graph, edges="fixed").fit(["a", "c"], [0, 1]).edge_weights_
    found = {(row.source, row.target): row.weight for row in table.itertuples()}
    half, third = pytest.approx(1 / 2), pytest.approx(1 / 3)
    to_b = {(name, "b"): third for name in "abc"}
    assert found == {**to_b, ("a", "a"): half, ("b", "a"): half, ("c", "c"): half, ("b", "c"): half}


@pytest.mark.long
def test_held_out_labels_change_no_weight(karate):
    """Neither those that cross-validation holds back nor those that the graph itself carries."""
    ids, y, fold = np.arange(34), karate.y.numpy(), np.arange(34) % 3
    swapped = np.where(fold == 0, 1 - y, y)
    without = dataclasses.replace(karate, y=torch.full_like(karate.y, -1))

    def first_fold(graph, labels):
        done = cross_validate(quick(graph=graph), ids, labels, cv=PredefinedSplit(fold), return_estimator=True)
        return weights(done["estimator"][0]), done["test_score"][0]

    learned, score = first_fold(karate, y)
    assert first_fold(karate, swapped) == (learned, pytest.approx(1 - score))
    assert first_fold(without, y) == (learned, score)


@pytest.mark.long
def test_a_label_that_is_not_held_out_does_change_them(karate):
    y = karate.y.numpy()
    swapped = np.where(np.arange(34) == 5, 1 - y, y)
    assert weights(quick(graph=karate).fit(range(34), y)) != weights(quick(graph=karate).fit(range(34), swapped))


@pytest.mark.slow
def test_grid_search_in_other_processes_finds_the_same(karate):
    grid = {"edges": ["free", "fixed"]}
    here, there = (
        GridSearchCV(quick(graph=karate), grid, cv=2, n_jobs=jobs).fit(np.arange(34)[:, None], karate.y.numpy())
        for jobs in (None, 2)
    )
    assert here.cv_results_["mean_test_score"].tolist() == there.cv_results_["mean_test_score"].tolist()
    assert weights(here.best_estimator_) == weights(there.best_estimator_)


@pytest.mark.long
def test_a_pipeline_and_a_frame_keep_their_names(blobs):
    X, y = blobs
    frame = pandas.DataFrame(X, columns=["length", "width"])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), quick()).fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == ["length", "width"]
    by_hand = quick().fit(StandardScaler().fit_transform(X), y)
    assert np.array_equal(pipeline.predict_proba(frame), by_hand.label_distributions_)


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "unlabeled"),
    [([None], None), ([float("nan")], None), ([pandas.NA], None), ([-1], -1), ([None, -1, pandas.NA], -1)],
)
def test_a_row_without_a_label_is_as_good_as_an_id_left_out(karate, missing, unlabeled):
    ids, y = np.arange(34), karate.y.tolist()
    partly = [label if i % 4 == 0 else missing[i % len(missing)] for i, label in enumerate(y)]
    left_out = quick(graph=karate).fit(ids[::4], y[::4])
    classifier = quick(graph=karate, unlabeled=unlabeled).fit(ids, partly)
    assert classifier.classes_.tolist() == [0, 1]
    assert np.array_equal(classifier.label_distributions_, left_out.label_distributions_)


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [np.array(["no", "yes"]), np.array(["no", "yes"], dtype=object), np.array([False, True]), np.array([3, 8])]
)
def test_classes_of_any_kind_are_numbered_alike(karate, names):
    ids = np.arange(0, 34, 2)
    numbered = quick(graph=karate).fit(ids, karate.y[ids])
    named = quick(graph=karate).fit(ids, names[karate.y[ids]])
    assert np.array_equal(named.classes_, names)
    assert np.array_equal(named.label_distributions_, numbered.label_distributions_)
    assert np.array_equal(named.predict(ids), names[numbered.predict(ids)])


def test_text_labels_with_gaps_are_text_labels(karate):
    for y in (["a", None, "b", float("nan")], pandas.Series(["a", None, "b", None])):
        assert quick(graph=karate).fit([0, 1, 33, 32], y).classes_.tolist() == ["a", "b"]


@pytest.mark.long
def test_minus_one_is_a_class_until_it_is_said_not_to_be(blobs):
    X, y = blobs
    assert quick().fit(X, np.where(y == 0, -1, 1)).classes_.tolist() == [-1, 1]
    assert quick(unlabeled=-1).fit(X, np.where(y == 0, -1, y)).classes_.tolist() == [1, 2]
    assert quick(unlabeled=float("nan")).fit(X, y - 1).classes_.tolist() == [-1, 0, 1]
    with pytest.raises(ValueError, match=r"y holds -1 beside 2 other classes; pass unlabeled=-1"):
        quick().fit(X, y - 1)


def test_score_counts_rows_whose_label_is_known(blobs):
    X, y = blobs
    classifier = quick().fit(X, y)
    right = classifier.predict(X) == y
    partly = [label if i < 25 else None for i, label in enumerate(y.tolist())]
    assert classifier.score(X, partly) == pytest.approx(right[:25].mean())
    shares = np.arange(60.0)
    assert classifier.score(X, partly, shares) == pytest.approx(np.average(right[:25], weights=shares[:25]))


@pytest.mark.parametrize(
    "shape",
    [
        *(list, np.array, pandas.Series),
        lambda ids: np.array(ids)[:, None],
        lambda ids: pandas.DataFrame({"id": ids}),
        lambda ids: [[name] for name in ids],
        lambda ids: np.array(ids, dtype=object),
    ],
)
def test_ids_come_in_any_container(shape):
    graph = Graph.from_edges([("ann", "bob"), ("bob", "eve"), ("eve", "dan")])
    classifier = quick(graph=graph).fit(shape(["ann", "dan"]), ["x", "y"])
    assert classifier.n_features_in_ == 1
    expected = classifier.label_distributions_[[graph.index_of("eve"), graph.index_of("bob")]]
    assert np.array_equal(classifier.predict_proba(shape(["eve", "bob"])), expected)


def test_an_id_can_be_a_tuple():
    graph = Graph.from_edges([(("ann", 1), ("bob", 2))])
    assert quick(graph=graph).fit([("bob", 2), ("ann", 1)], ["x", "y"]).graph_.y.tolist() == [1, 0]


def test_free_edges_know_their_rows_and_refuse_new_ones(blobs):
    X, y = blobs
    classifier = quick(edges="free").fit(X, y)
    assert np.array_equal(classifier.predict(X[::7]), classifier.transduction_[::7])
    with pytest.raises(ValueError, match=r"'free' keeps one weight per training edge .* 'agnn'"):
        classifier.predict(X + 1)


@pytest.mark.long
def test_the_unit_of_the_features_does_not_matter(blobs):
    X, y = blobs
    assert weights(quick().fit(X, y)) == weights(quick().fit(1024 * X, y))


@pytest.mark.long
def test_one_feature_is_enough_to_tell_three_intervals():
    x = np.linspace(0, 3, 90)
    y = np.minimum(x, 2.99).astype(int)
    assert GCNLPAClassifier().fit(x[:, None], y).score(x[:, None] + 0.001, y) > 0.95


@pytest.mark.long
@pytest.mark.parametrize("X", [np.ones((9, 2)), np.zeros((9, 1)), np.eye(9), scipy.sparse.csr_array(np.eye(9))])
def test_rows_that_say_nothing_have_a_defined_answer(X):
    classifier = quick().fit(X, np.arange(9) % 3)
    for probabilities in (classifier.predict_proba(X), classifier.predict_proba(2 * X + (0 if X[0, 0] else 1))):
        assert np.allclose(probabilities.sum(axis=1), 1)


def test_one_class_is_certain(blobs):
    classifier = quick().fit(blobs[0], ["only"] * 60)
    assert classifier.predict_proba(blobs[0] + 1).tolist() == [[1.0]] * 60


@pytest.mark.long
def test_sparse_and_dense_rows_are_the_same_rows(blobs):
    X, y = blobs
    sparse = scipy.sparse.csr_array(X)
    for fitted in (quick().fit(X, y), quick().fit(sparse, y)):
        assert np.array_equal(fitted.predict_proba(X), fitted.predict_proba(sparse))
        assert np.allclose(fitted.predict_proba(X + 1), fitted.predict_proba(scipy.sparse.csr_array(X + 1)), atol=1e-6)


def test_rows_have_one_key_if_they_are_equal():
    a, b, c, d = row_keys(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, 1.0 + 1e-15]]))
    assert a == b and len({a, c, d}) == 3
    stored_zero = scipy.sparse.csr_array(([0.0, 1.0], [0, 1], [0, 2]), shape=(1, 2))
    assert row_keys(stored_zero) == [a]


@pytest.mark.long
def test_the_same_seed_gives_the_same_weights(blobs):
    first, second, other = (weights(quick(random_state=seed).fit(*blobs)) for seed in (3, 3, 4))
    assert first == second != other


def test_single_settings_go_before_the_recipe(blobs, karate):
    recipe = Recipe(hidden=4, lr=0.2, epochs=3)
    assert quick(recipe=recipe, hidden=np.int64(6), epochs=None).fit(*blobs).recipe_ == recipe.replace(hidden=6)
    given = GCNLPAClassifier(graph=karate, epochs=2).fit([0, 33], [0, 1])
    assert given.recipe_ == WITHOUT_FEATURES.replace(epochs=2, select="loss")


@pytest.mark.long
def test_a_clone_shares_the_graph_and_a_pickle_learns_and_predicts_the_same(blobs, karate):
    classifier = quick(graph=karate).fit([0, 33], ["a", "b"])
    assert clone(classifier).graph is karate
    assert weights(pickle.loads(pickle.dumps(quick(graph=karate))).fit([0, 33], ["a", "b"])) == weights(classifier)
    assert np.array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(range(34)), classifier.label_distributions_)
    fitted = quick().fit(*blobs)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(blobs[0] + 1), fitted.predict_proba(blobs[0] + 1))


def test_a_stranger_among_the_ids_is_named(karate):
    with pytest.raises(ValueError, match=r"has no node 77; its nodes are 0\.\.33"):
        quick(graph=karate).fit([0, 77], [0, 1])
    with pytest.raises(ValueError, match=r"has no node 34"):
        quick(graph=karate).fit([0, 33], [0, 1]).predict([34])


@pytest.mark.parametrize(
    ("settings", "X", "y", "message"),
    [
        ({}, None, [0, None, 1], "y has 3 labels for 4 rows of X"),
        ({}, None, [None] * 4, "none of the 4 rows of y has a label"),
        ({"unlabeled": 7}, None, [7] * 4, "none of the 4 rows of y has a label"),
        ({}, None, ["a", 1, "b", 2], "y mixes text and numbers"),
        ({}, None, [0.5, 1.5, 2.5, float("nan")], "Unknown label type"),
        ({}, None, [0, 1, float("inf"), 1], "Input y contains infinity"),
        ({}, None, None, "requires y to be passed"),
        ({"graph": "karate"}, np.eye(4), [0, 1, 0, 1], r"with a graph, X is a column of node ids.*\[4, 4\]"),
        ({"graph": "karate"}, scipy.sparse.eye_array(4), [0, 1, 0, 1], "with a graph, X is a column of node ids"),
        ({"graph": "karate"}, [0, 1, 1, 2], [0, 1, 0, 1], "node 1 is in X more than once, with different labels"),
        ({"n_neighbors": 0}, None, [0, 1, 0, 1], "n_neighbors"),
        ({"edges": "glue"}, None, [0, 1, 0, 1], "unknown edge form 'glue'"),
        ({"lr": -1.0}, None, [0, 1, 0, 1], "lr = -1.0; it is positive"),
        ({"lpa_iterations": 5}, None, [0, 1, 0, 1], "use loss 'held_out'"),
        ({"recipe": Recipe(method="gcn")}, None, [0, 1, 0, 1], "trains method 'gcn-lpa'; .* one of 'gcn'"),
        ({"recipe": Recipe(features="tfidf")}, None, [0, 1, 0, 1], "put TfidfTransformer before the estimator"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_would_be_right(karate, settings, X, y, message):
    if "graph" in settings:
        settings = {**settings, "graph": karate}
    rows = np.random.default_rng(0).normal(size=(4, 2)) if X is None else X
    with pytest.raises(ValueError, match=message):
        quick(**settings).fit(rows, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"graph": np.eye(4)}, "graph is a gcn_lpa.Graph, .* not <class 'numpy.ndarray'>"), ({"recipe": 7}, "not 7")],
)
def test_a_graph_and_a_recipe_are_ours(settings, message):
    with pytest.raises(TypeError, match=message):
        quick(**settings).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.slow
def test_the_example_says_what_it_should(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LabelSpreading's, not ours
        runpy.run_path(str(ROOT / "examples" / "own_estimator.py"))
    lines = capsys.readouterr().out.splitlines()
    accuracy = {name: float(value) for name, value in (line.split() for line in lines[1:4])}
    assert accuracy["GCNLPAClassifier"] > accuracy["LogisticRegression"] + 0.01  # five splits: 0.955 and 0.924 on average
    assert lines[4].startswith("karate club: accuracy 0.")


@pytest.mark.long
def test_the_manual_shows_what_happens():
    done = doctest.testfile(str(ROOT / "docs" / "estimator.md"), module_relative=False, encoding="utf-8")
    assert done.attempted > 10 and done.failed == 0


def test_an_unknown_device_is_a_value_error():
    with pytest.raises(ValueError, match="unknown device 'foo'"):
        quick(device="foo").fit([[0.0], [1.0], [2.0]], [0, 1, 1])


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "values", "kind"), [("Int64", (3, 7), "i"), ("boolean", (False, True), "b")])
@pytest.mark.parametrize("shape", [pandas.Series, pandas.array])
@pytest.mark.parametrize("missing", [[], [None, None]])
def test_nullable_labels_keep_their_type(dtype, values, kind, shape, missing):
    low, high = values
    y = shape([low, low, high, high, *missing], dtype=dtype)
    x = np.array([0.0, 0.1, 5.0, 5.1, 0.05, 5.05])[: len(y), None]
    model = quick(n_neighbors=1, epochs=60).fit(x, y)
    assert (model.classes_.dtype.kind, model.classes_.tolist()) == (kind, [low, high])
    assert model.graph_.labeled.sum() == 4
    assert model.predict(x[:4]).tolist() == [low, low, high, high]
    assert model.score(x, y) == 1


NUMBERS = PLAIN.replace(members="neighbour-lr")


@pytest.mark.long
def test_the_regressor_passes_every_check_of_scikit_learn():
    recipe = PLAIN.replace(edges="fixed", lpa_weight=0.0, members="smoothed-lr", votes=True)
    results = check_estimator(GCNLPARegressor(recipe=recipe, epochs=4), on_skip=None)
    assert len(results) > 40
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


def test_the_regressor_predicts_rows_with_and_without_a_number():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    truth = np.sin(2 * X[:, 0]) + X[:, 1]
    y = np.where(np.arange(120) % 3 == 0, np.nan, truth)
    regressor = GCNLPARegressor(recipe=NUMBERS, epochs=60).fit(X[:100], y[:100])
    assert regressor.score(X[100:], truth[100:]) > 0.6
    hidden = np.isnan(y[:100])
    assert regressor.score(X[:100][hidden], truth[:100][hidden]) > 0.6
    low, high = regressor.predict_interval(X[100:], 0.8).T
    assert ((low < regressor.predict(X[100:])) & (regressor.predict(X[100:]) < high)).all()
    assert 0.5 < ((low <= truth[100:]) & (truth[100:] <= high)).mean() <= 1
    assert np.array_equal(regressor.predict(X[:5]), regressor.transduction_[:5])


def test_the_regressor_refuses_what_is_no_number():
    with pytest.raises(ValueError, match="y holds what is no number"):
        GCNLPARegressor().fit(np.eye(3), ["1", "two", "3"])
