"""Trees and logistic regression on tables of nodes: scikit-learn's own answers, votes by brute force, files of strangers."""

import dataclasses
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.scaling import Block
from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.linear import stratified_folds
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.trees import (
    VOTE_FOLDS,
    WORDS,
    NeighbourLR,
    Trees,
    label_shares,
    neighbour_columns,
    share_between,
    table_columns,
    vote_folds,
    votes_by_others,
)
from gcn_lpa.predict import evaluate, predict_proba
from gcn_lpa.recipes import (
    DEFAULT,
    WITH_FEW_LABELS,
    WITH_STRUCTURE,
    WITHOUT_FEATURES,
    case_of,
    choose_recipe,
    recipe_for,
)
from gcn_lpa.target import Classes
from gcn_lpa.trained import Trained
from tests.helpers.changed_folders import changed, entry, made

TABULAR = ("trees", "neighbour-lr")


def noisy_graph(n=80, classes=3, columns=4, seed=0):
    """Random edges of random weights, some self-loops, one node alone; the class is a threshold of the first column."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, n - 1, (3 * n, 2))
    x = rng.normal(size=(n, columns)).astype(np.float32)
    y = np.digitize(x[:, 0] + 0.3 * rng.normal(size=n), np.linspace(-0.6, 0.6, classes - 1))
    names = [f"c{k}" for k in range(classes)]
    return Graph.from_edges(ends, weights=rng.uniform(0.5, 2, 3 * n), x=x, y=y, num_nodes=n, class_names=names, name="noisy")


def told_by_degree(n, seed, columns=0):
    """The class of a node is whether it has more than four neighbours; columns say nothing."""
    rng = np.random.default_rng(seed)
    busy = rng.random(n) < 0.5
    ends = rng.choice(n, (3 * n, 2), p=np.where(busy, 9, 1) / np.where(busy, 9, 1).sum())
    matrix = scipy.sparse.coo_array((np.ones(3 * n), ends.T), shape=(n, n)).tocsr()
    degree = np.diff((matrix + matrix.T).tocsr().indptr)
    x = rng.normal(size=(n, columns)).astype(np.float32) if columns else None
    return Graph.from_scipy(matrix, x=x, y=(degree > 4).astype(int), class_names=["few", "many"])


def wide(graph):
    """The same graph with three hundred sparse columns."""
    rng = np.random.default_rng(1)
    counts = (rng.random((graph.num_nodes, 300)) < 0.05).astype(np.float32)
    counts[:, 0] = graph.y.numpy() == 0
    return dataclasses.replace(graph, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(counts)))


def built(name, graph, **changes):
    """A model before it learns, and its graph."""
    recipe = METHODS[name].settings().replace(**changes)
    prepared = recipe.prepare(graph)
    return METHODS[name].build(recipe, prepared, 0), prepared


def fitted(name, graph, nodes, **changes):
    """A model that learned from `nodes`, and the graph it then predicts on."""
    model, prepared = built(name, graph, **changes)
    prepared = prepared.reveal(torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, nodes, True))
    model.fit_at_once(prepared, nodes)
    return model, prepared


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_trees_give_scikit_learn_s_own_probabilities(classes):
    graph, nodes = noisy_graph(classes=classes), torch.arange(0, 80, 2)
    model, prepared = fitted("trees", graph, nodes)
    x, y = model.columns(prepared).double().numpy(), prepared.y.numpy()
    twin = model.estimator(y[nodes]).fit(x[nodes], y[nodes])
    assert len(model.feature) > 1
    np.testing.assert_allclose(model(prepared).softmax(dim=1).numpy(), twin.predict_proba(x), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("stored", ["few columns", "many", "many, dense"])
def test_neighbour_lr_gives_scikit_learn_s_own_probabilities(stored):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    graph, nodes = noisy_graph(), torch.arange(0, 80, 2)
    if stored != "few columns":
        graph = wide(graph)
        graph = graph if stored == "many" else dataclasses.replace(graph, x=graph.x.to_dense())
    model, prepared = fitted("neighbour-lr", graph, nodes, structure=False, features="raw")
    walk, x = prepared.adjacency.between_nodes(), prepared.x if stored != "many" else prepared.x.to_dense()
    x = torch.cat([x, prepared.structural_features_of_edges()], dim=1) if stored == "few columns" else x
    around = neighbour_columns(walk, x) if stored == "few columns" else [walk @ x]
    columns = torch.cat([x, *around, model.votes(prepared, walk)], dim=1).double().numpy()
    if stored == "few columns":
        columns = StandardScaler().fit(columns[nodes]).transform(columns)
    y = graph.y.numpy()[nodes]
    scale, penalty = model.chosen(columns[nodes], y)
    columns = columns * scale
    twin = LogisticRegression(C=penalty, max_iter=200).fit(columns[nodes], y)
    np.testing.assert_allclose(model(prepared).softmax(dim=1).numpy(), twin.predict_proba(columns), atol=2e-3)


def test_a_column_that_hardly_varies_among_the_labelled_says_little_of_others():
    """Measured by its own spread there, 1e-6, a value of 1 elsewhere would be a million deviations away."""
    plain, nodes = noisy_graph(), torch.arange(0, 40)
    x = plain.x.numpy().copy()
    x[:, 0] = 0
    x[:40, 0] = np.random.default_rng(1).normal(size=40) * 1e-6
    x[40:, 0] = 1 + np.arange(len(x) - 40) % 2
    graph = dataclasses.replace(plain, x=torch.from_numpy(x))
    model, prepared = fitted("neighbour-lr", graph, nodes, structure=False, features="raw")
    logits = model(prepared)[40:]
    assert float((logits - logits.mean(dim=1, keepdim=True)).abs().max()) < 50


def test_neighbours_columns_by_hand():
    """1 and 2 send to 0 with weights 1 and 3, 0 to itself; nobody sends to 3."""
    graph = Graph.from_edges(
        [(1, 0), (2, 0), (0, 0), (0, 1), (0, 2)],
        weights=[1, 3, 9, 1, 1],
        x=[[7.0], [2.0], [6.0], [4.0]],
        directed=True,
        num_nodes=4,
    )
    mean, least, most = neighbour_columns(graph.adjacency.between_nodes(), graph.x)
    assert mean.ravel().tolist() == [5, 7, 7, 4]
    assert least.ravel().tolist() == [2, 7, 7, 4]
    assert most.ravel().tolist() == [6, 7, 7, 4]


def test_a_block_of_columns_at_a_time_gives_the_same(monkeypatch):
    graph = noisy_graph()
    walk, x = (
        graph.adjacency.between_nodes(),
        torch.from_numpy(np.random.default_rng(0).normal(size=(80, 7)).astype(np.float32)),
    )
    whole = neighbour_columns(walk, x)
    monkeypatch.setattr("gcn_lpa.methods.trees.BLOCK", 1)
    assert all(torch.equal(a, b) for a, b in zip(whole, neighbour_columns(walk, x), strict=True))


def test_some_rows_at_a_time_give_the_same(monkeypatch):
    model, prepared = fitted("trees", noisy_graph(), torch.arange(0, 80, 2))
    at_once = model(prepared)
    monkeypatch.setattr("gcn_lpa.methods.trees.ROWS", 7)
    assert torch.equal(model(prepared), at_once)


def test_shares_of_labels_by_hand():
    """0 - 1 - 2 - 3 with label a at 0 and b at 3; one vote against the weight of one neighbour, half for each class."""
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)], num_nodes=4)
    seeds = torch.tensor([[1.0, 0], [0, 0], [0, 0], [0, 1]])
    found = label_shares(graph.adjacency.between_nodes(), seeds, Classes(("a", "b")), 50).exp()
    assert torch.allclose(found[1, :2], torch.tensor([(0.5 + 0.25) / 1, 0.25 / 1]))  # node 0 has half of the weight
    assert torch.allclose(found[1, 2:4], torch.tensor([0.25 / 0.75, (0.25 + 0.25) / 0.75]))  # 1 → 2 → 3 has a quarter
    assert torch.allclose(found[1, 4:], torch.tensor([2 / 3 + 0.005, 1 / 3 + 0.005]) / 1.01, atol=1e-4)


def test_votes_come_from_the_labels_of_other_folds_alone():
    """By brute force: for every labelled node, hide its fold and walk along dense matrices."""
    graph = noisy_graph()
    y = torch.where(torch.arange(80) % 3 == 0, graph.y, -1)
    walk = graph.adjacency.between_nodes()
    folds = vote_folds(y, 5, walk.pattern)
    found, dense = votes_by_others(walk, y, graph.target, 4, 5), walk.to_dense()
    degree = (dense > 0).sum(dim=1, keepdim=True).clamp_min(1)
    for node in range(80):
        hidden = (folds == folds[node]) & (y >= 0) if y[node] >= 0 else torch.zeros(80, dtype=torch.bool)
        seeds = torch.zeros(80, 3)
        for other in torch.nonzero((y >= 0) & ~hidden).ravel().tolist():
            seeds[other, y[other]] = 1
        far, known = seeds, seeds.sum(dim=1) > 0
        for _ in range(4):
            far = dense @ torch.where(known[:, None], seeds, far)
        masses = torch.stack([(dense @ seeds)[node], (dense @ dense @ seeds)[node], far[node]])
        smoothing = torch.tensor([1 / degree[node], 1 / degree[node], 0.01]).unsqueeze(1)
        shares = (masses + smoothing / 3) / (masses.sum(dim=1, keepdim=True) + smoothing)
        assert torch.allclose(found[node], shares.log().ravel(), atol=1e-4)


def test_another_label_of_its_own_changes_no_vote_for_a_node(monkeypatch):
    """With the folds as they are; other labels change them, but a fold tells nothing of its nodes."""
    graph = noisy_graph()
    walk = graph.adjacency.between_nodes()
    folds = vote_folds(graph.y, 0, walk.pattern)
    monkeypatch.setattr("gcn_lpa.methods.trees.vote_folds", lambda y, seed, pattern: folds)
    votes = votes_by_others(walk, graph.y, graph.target, 20, 0)
    for node in range(0, 80, 7):
        other = votes_by_others(
            walk, graph.y.index_fill(0, torch.tensor([node]), (int(graph.y[node]) + 1) % 3), graph.target, 20, 0
        )
        assert torch.equal(other[node], votes[node])
        assert not torch.equal(other, votes)


def test_every_fold_has_its_share_of_every_class():
    y = np.repeat([0, 1, 2], [50, 23, 4])
    folds = stratified_folds(y, VOTE_FOLDS, seed=3)
    counts = np.array([[np.sum((folds == fold) & (y == k)) for k in range(3)] for fold in range(VOTE_FOLDS)])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert not np.array_equal(folds, stratified_folds(y, VOTE_FOLDS, seed=4))


def separation(folds_of, column):
    """How far a vote ranks nodes of the class it is for above the others, 0 to ½, where labels were drawn at random."""
    graph, rng, found = noisy_graph(n=400), np.random.default_rng(0), []
    for seed in range(20):
        y = torch.from_numpy(np.where(rng.random(400) < 0.15, rng.integers(0, 2, 400), -1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gcn_lpa.methods.trees.vote_folds", folds_of)
            votes = votes_by_others(graph.adjacency.between_nodes(), y, Classes(("a", "b")), 20, seed)[y >= 0]
        rank, is_one = votes[:, column].argsort().argsort().double(), y[y >= 0] == 1
        found.append(float(rank[is_one].mean() - rank[~is_one].mean()) / len(is_one))
    return np.mean(found)


@pytest.mark.long
@pytest.mark.parametrize("column", [3, 5])  # two hops, and LPA
def test_labels_that_say_nothing_do_not_seem_to(column):
    """The band is two standard errors of the mean over the twenty draws, 0.022 each."""
    assert abs(separation(vote_folds, column)) < 0.045
    assert separation(lambda y, seed, pattern: torch.full_like(y, -1), column) > 0.3  # a node that meets its own label again


@pytest.mark.long
@pytest.mark.parametrize("name", TABULAR)
@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1], [0, 0, 1], [2, 1, 0], [0] * 29 + [1], [0] * 10 + [1] * 10 + [2] * 10])
def test_few_labels_are_enough(name, labels):
    graph, nodes = noisy_graph(), torch.arange(len(labels))
    y = graph.y.clone()
    y[nodes] = torch.tensor(labels)
    model, prepared = fitted(name, dataclasses.replace(graph, y=y), nodes)
    shares = model(prepared).softmax(dim=1)
    assert torch.isfinite(shares).all()
    unseen = [k for k in range(3) if k not in labels]
    assert (shares[:, unseen] == 0).all()


@pytest.mark.long
def test_trees_find_a_threshold_that_logistic_regression_cannot():
    """The class is whether two columns have the same sign."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    graph = Graph.from_edges(rng.integers(0, 600, (1200, 2)), x=x, y=y, num_nodes=600)
    nodes, test = torch.arange(300), slice(300, 600)
    right = {}
    for name in TABULAR:
        model, prepared = fitted(name, graph, nodes)
        right[name] = float((model(prepared).argmax(dim=1) == graph.y)[test].double().mean())
    assert right["trees"] > 0.85
    assert right["neighbour-lr"] < 0.65


def mixed_graph(num_words=300, num_categories=20):
    """Three numbers, the first of which tells the class; categories, of which three have a fourth of the nodes each; words."""
    graph, rng = noisy_graph(columns=3), np.random.default_rng(2)
    kind = np.where(np.arange(80) % 4 < 3, np.arange(80) % 4, 3 + np.arange(80) // 4 % (num_categories - 3))
    words = rng.random((80, num_words)) < 0.1
    parts = graph.x.numpy(), np.eye(num_categories)[kind], words
    x = SparseMatrix.from_scipy(scipy.sparse.csr_array(np.hstack(parts).astype(np.float32)))
    ends = np.cumsum([0, *(part.shape[1] for part in parts)]).tolist()
    named = zip(("numbers", "table", "about"), ("numbers", "table", "words"), ends[:-1], ends[1:], strict=True)
    return dataclasses.replace(graph, x=x, blocks=tuple(Block(*each) for each in named))


@pytest.mark.parametrize("structure", [False, True])
def test_trees_leave_words_aside_where_columns_are_many(structure):
    graph = mixed_graph()
    model, prepared = fitted("trees", graph, torch.arange(0, 80, 2), features="auto", structure=structure)
    own = [*range(6), *(range(323, 329) if structure else [])]  # other categories have one node or two of 80
    assert model.picked.tolist() == own
    columns, own = model.columns(prepared), prepared.x.to_dense()[:, own]
    assert columns.shape == (80, 4 * (12 if structure else 10) + 9)
    assert torch.equal(columns[:, : own.shape[1]], own)
    torch.testing.assert_close(model(prepared), model(dataclasses.replace(prepared, x=prepared.x.to_dense())))


def test_trees_leave_rare_categories_aside_where_columns_are_many():
    """Each of the first three has a quarter of the nodes, and each of the others one or none."""
    graph = mixed_graph(num_words=1, num_categories=230)
    model, prepared = fitted("trees", graph, torch.arange(0, 80, 2), features="auto", structure=False)
    assert model.picked.tolist() == [0, 1, 2, 3, 4, 5]
    for x in (SparseMatrix.from_scipy(scipy.sparse.csr_array(prepared.x.to_dense())), prepared.x.to_dense()):
        assert table_columns(dataclasses.replace(prepared, x=x)).tolist() == [0, 1, 2, 3, 4, 5]
    x = torch.zeros(80, 234)
    x[0, 7] = 1
    assert table_columns(dataclasses.replace(prepared, x=x)).tolist() == [7]  # at least one


def test_a_table_that_leaves_no_room_for_the_place_in_the_graph_is_wide():
    """195 columns and seven about the graph are more than 200; `info` promises the latter to trees."""
    for num_words, is_wide in ((170, False), (171, True)):
        graph = mixed_graph(num_words=num_words)  # beside 23 others
        model, _ = built("trees", graph, features="auto", structure=False)
        assert (model.picked is not None) == is_wide
        assert model.num_own == (6 if is_wide else 193) + 4


def test_of_many_numbers_trees_read_those_that_tell_most():
    """scikit-learn's F-test has them in the same order; what other nodes' labels say has no part in it."""
    from sklearn.feature_selection import f_classif

    graph = noisy_graph(columns=300)
    graph = dataclasses.replace(graph, blocks=(Block("numbers", "numbers", 0, 300),))
    nodes = torch.arange(0, 80, 2)
    model, prepared = fitted("trees", graph, nodes, features="auto", structure=False)
    tested = f_classif(prepared.x[nodes].double().numpy(), graph.y[nodes].numpy())[0]
    picked = model.picked.tolist()
    assert picked == sorted(np.argsort(-tested)[:50].tolist())
    assert 0 in picked
    others = dataclasses.replace(graph, y=torch.where(torch.arange(80) % 2 == 0, graph.y, 2 - graph.y))
    again, _ = fitted("trees", others, nodes, features="auto", structure=False)
    assert again.picked.tolist() == picked
    constant = torch.cat([torch.ones(6, 1), torch.arange(6.0).unsqueeze(1)], dim=1)
    for x in (constant.numpy(), scipy.sparse.csr_array(constant.numpy())):
        assert share_between(x, np.array([0, 0, 1, 1, 3, 3])).tolist() == pytest.approx([0, 16 / 17.5])


def test_kept_trees_read_the_columns_that_they_learned_from(tmp_path):
    """Also of a graph whose own columns are filled otherwise."""
    graph = mixed_graph(num_categories=230)
    recipe = choose_recipe(graph, graph.labeled, by_folds=False).replace(epochs=3)
    assert recipe.members.split()[0] == "trees"
    trained = learn(graph, torch.arange(0, 80, 2), torch.arange(1, 80, 2), recipe, device="cpu")
    trained.save_pretrained(tmp_path / "kept")
    again = Trained.from_pretrained(tmp_path / "kept")
    x = graph.x.to_dense()
    x[:, 3:233] = x[:, 3:233].flip(1)
    other = dataclasses.replace(graph, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(x)))
    for new in (graph, other):
        assert torch.equal(predict_proba(again, new), predict_proba(trained, new))


PICKED = {
    "beyond the columns": [0, 1, 323],
    "below them": [-1, 1, 2],
    "twice": [0, 1, 1],
    "out of order": [2, 1, 0],
    "two rows": [[0, 1], [2, 3]],
    "more than there is room for": list(range(201)),
}


@pytest.mark.parametrize("case", PICKED)
def test_picked_columns_of_a_stranger_are_refused(case):
    model, _ = built("trees", mixed_graph(), features="auto", structure=False)
    with pytest.raises(ValueError, match="columns 0 to 322, each after the last"):
        model.load_state_dict({**model.state_dict(), "picked": torch.tensor(PICKED[case])})


def test_a_table_stays_one_where_columns_are_many():
    """Its edges are learned as without it; features that are words alone, or nobody knows what, have no trees."""

    def chosen(graph):
        return recipe_for(dataclasses.replace(case_of(graph, graph.labeled), labels="many"))

    graph = mixed_graph()
    many = dataclasses.replace(graph, blocks=(Block("numbers", "numbers", 0, 323),))
    words = dataclasses.replace(graph, blocks=(Block("words", "words", 0, 323),))
    for one, members in (
        *((graph, "trees layers three-layers"), (many, "trees layers three-layers"), (words, "layers three-layers")),
        *(
            (graph.with_features("auto"), "trees layers three-layers"),
            (graph.with_features("l2"), "layers three-layers"),
        ),
        *(
            (words.with_features("auto"), "layers three-layers"),
            (dataclasses.replace(graph, blocks=()), "layers three-layers"),
        ),
        (words.with_features(words.scaling("auto", structure=True)), "layers three-layers"),
    ):
        assert (chosen(one).members, chosen(one).edges) == (members, "cosine")
    assert chosen(noisy_graph()).edges == "fixed"


@pytest.mark.parametrize("name", TABULAR)
def test_without_features_the_votes_are_the_columns(name, karate):
    graph = dataclasses.replace(karate, x=SparseMatrix.identity(34), x_kind="identity")
    model, prepared = built(name, graph, structure=False)
    assert model.columns(prepared).shape == (34, 6)
    assert isinstance(model, (Trees, NeighbourLR))


@pytest.mark.parametrize("name", TABULAR)
def test_without_features_the_place_in_the_graph_is_four_columns(name, karate):
    """Self-loops or not; PageRank by NetworkX, whose ranks sum to 1 where ours have the mean 1."""
    import networkx

    graph = dataclasses.replace(karate, x=SparseMatrix.identity(34), x_kind="identity")
    model, prepared = built(name, graph)
    club = networkx.from_scipy_sparse_array(karate.adjacency.to_scipy())
    degree = np.array([np.log1p(club.degree(i)) for i in range(34)])
    around = np.array([degree[list(club[i])].mean() for i in range(34)])
    further = np.array([around[list(club[i])].mean() for i in range(34)])
    rank = networkx.pagerank(club, alpha=0.85, tol=1e-12)
    own = np.stack([degree, around, further, np.log(34 * np.array([rank[i] for i in range(34)]))], axis=1)
    columns = model.columns(prepared).numpy()
    assert columns.shape == (34, 4 * 4 + 6)
    np.testing.assert_allclose(columns[:, :4], own, atol=1e-3)
    np.testing.assert_allclose(columns[0, 12:16], own[list(club[0])].max(axis=0), atol=1e-3)
    np.testing.assert_array_equal(model.columns(graph.reveal(prepared.labeled)).numpy(), columns)


@pytest.mark.parametrize("name", TABULAR)
def test_the_identity_that_stands_in_for_features_is_never_dense(name, karate, monkeypatch):
    """Of a million nodes it would have 10¹² numbers."""
    graph = dataclasses.replace(karate, x=SparseMatrix.identity(34), x_kind="identity")
    monkeypatch.delattr(SparseMatrix, "to_dense")
    model, prepared = fitted(name, graph, torch.tensor([0, 1, 2, 3, 32, 33, 30, 31]))
    assert model(prepared).shape == (34, 2)


@pytest.mark.parametrize("name", TABULAR)
@pytest.mark.parametrize("structure", [False, True])
def test_the_place_in_the_graph_stands_once_beside_features(name, structure):
    """Features that are prepared with columns about the graph have it already."""
    graph = noisy_graph(columns=3)
    model, prepared = built(name, graph, structure=structure, features="raw")
    columns = model.columns(prepared)
    assert columns.shape == (80, 4 * (3 + (6 if structure else 4)) + 9)
    torch.testing.assert_close(columns[:, :3], graph.x)
    if not structure:
        torch.testing.assert_close(columns[:, 3:7], graph.structural_features_of_edges())
        torch.testing.assert_close(
            columns[:, 10:14],
            neighbour_columns(prepared.adjacency.between_nodes(), graph.structural_features_of_edges())[0],
        )


@pytest.mark.parametrize("columns", [0, 3], ids=["without features", "with features"])
@pytest.mark.parametrize("directed", [False, True])
def test_a_kept_model_of_places_is_read_as_it_was(tmp_path, directed, columns):
    """Arcs have seven columns, edges four; a graph of the other kind is refused in a sentence."""
    rng = np.random.default_rng(3)
    ends, y = rng.integers(0, 60, (200, 2)), rng.integers(0, 2, 60)
    x = rng.normal(size=(60, columns)).astype(np.float32) if columns else None
    graph, other = (Graph.from_edges(ends, num_nodes=60, y=y, x=x, directed=kind) for kind in (directed, not directed))
    recipe = WITH_FEW_LABELS.replace(members=WITH_STRUCTURE.members) if columns else WITH_STRUCTURE
    trained = learn(graph, torch.arange(40), torch.arange(40, 60), recipe.replace(epochs=3), device="cpu")
    trained.save_pretrained(tmp_path / "kept")
    again = Trained.from_pretrained(tmp_path / "kept")
    assert torch.equal(predict_proba(again, graph), predict_proba(trained, graph))
    assert [again.model.members[k][0].num_own for k in (1, 2)] == [columns + (7 if directed else 4)] * 2
    for name in TABULAR:
        one = learn(graph, torch.arange(40), [], METHODS[name].fair(recipe), device="cpu")
        kinds = ("undirected", "directed")
        with pytest.raises(ValueError, match=f"a graph that is {kinds[directed]}, and this one is {kinds[not directed]}"):
            predict_proba(one, other)


@pytest.mark.parametrize("name", TABULAR)
@pytest.mark.parametrize("stranger", [torch.tensor(10**9), torch.tensor([4, 7])], ids=["many", "two"])
def test_places_of_a_stranger_are_refused(name, stranger, karate):
    model, _ = built(name, karate)
    with pytest.raises(ValueError, match="it is one of 4, 7"):
        model.load_state_dict({**model.state_dict(), "num_places": stranger})


def test_nodes_without_features_are_told_apart_by_their_place():
    """The class of a node is whether it has many neighbours, whoever they are: their labels tell nothing."""
    graph = told_by_degree(300, seed=0)
    parts = split(graph, seed=0)
    recipe = choose_recipe(graph, parts.train, by_folds=False)
    assert recipe == WITH_STRUCTURE
    right = [
        evaluate(learn(graph, parts.train, parts.val, one.replace(epochs=20), device="cpu"), graph, parts.test).accuracy
        for one in (recipe, WITHOUT_FEATURES)
    ]
    assert right[0] > 0.95 > 0.85 > right[1]


@pytest.mark.long
def test_a_table_with_few_labels_is_told_by_the_place_in_the_graph_where_that_tells():
    """By degree alone, with fifteen labels a class: the members without columns about the graph cannot know."""
    graph = told_by_degree(600, seed=2, columns=3)
    taught, chosen, test = torch.arange(30), torch.arange(30, 60), torch.arange(60, 600)
    mask = torch.zeros(600, dtype=torch.bool).index_fill(0, taught, True)
    recipe = choose_recipe(graph, mask, by_folds=False)
    assert not recipe.structure and "trees" in recipe.members.split()
    right = [
        evaluate(learn(graph, taught, chosen, one.replace(epochs=50), device="cpu"), graph, test).accuracy
        for one in (recipe, recipe.replace(members="smoothed-lr"))
    ]
    assert right[0] > 0.9 > right[1] + 0.1


@pytest.mark.long
@pytest.mark.parametrize("name", TABULAR)
def test_a_kept_model_predicts_without_scikit_learn(name, tmp_path, monkeypatch):
    graph = noisy_graph()
    trained = learn(graph, range(0, 80, 2), [], METHODS[name].settings(), device="cpu")
    trained.save_pretrained(tmp_path / "kept")
    monkeypatch.setitem(sys.modules, "sklearn", None)  # importing it is now an error
    again = Trained.from_pretrained(tmp_path / "kept")
    assert torch.equal(predict_proba(again, graph, raw=True), predict_proba(trained, graph, raw=True))


BAD_TREES = {
    "a column far away": (made("members.0.0.feature", entry(5, 2_000_000_000)), "beyond the 49 that the trees read"),
    "a negative column": (made("members.0.0.feature", entry(5, -1)), "beyond the 49 that the trees read"),
    "a column of another type": (made("members.0.0.feature", torch.Tensor.int), "feature is of torch.int32"),
    "a threshold that is no number": (
        made("members.0.0.threshold", entry(0, float("nan"))),
        "threshold holds numbers that are not",
    ),
    "a leaf without end": (
        made("members.0.0.value", entry(0, float("inf"))),
        "value holds numbers that are not finite",
    ),
    "a round less": (made("members.0.0.value", lambda value: value[1:]), "size mismatch for members.0.0.value"),
    "a leaf less": (made("members.0.0.value", lambda value: value[:, 1:]), "size mismatch for members.0.0.value"),
    "a node more": (
        made("members.0.0.feature", lambda feature: feature.repeat(1, 2, 1)),
        "size mismatch for members.0.0.feature",
    ),
    "a class less": (
        made("members.0.0.feature", lambda feature: feature[:, :, 1:]),
        "size mismatch for members.0.0.feature",
    ),
    "no dimension": (
        made("members.0.0.feature", lambda feature: feature[0, 0, 0]),
        "size mismatch for members.0.0.feature",
    ),
}


@pytest.fixture(scope="module")
def kept_trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees") / "kept"
    learn(noisy_graph(), range(0, 80, 2), [], METHODS["trees"].settings(), device="cpu").save_pretrained(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("case", BAD_TREES)
def test_trees_of_strangers_are_checked(kept_trees, tmp_path, case):
    change, message = BAD_TREES[case]
    with pytest.raises(ValueError, match=message):
        Trained.from_pretrained(changed(kept_trees, tmp_path / "changed", "model.safetensors", change))


def word_graph(n=120, num_words=400, seed=5):
    """Words at random, but for one that the neighbours of a class use, and one that the class itself uses."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = (random.random((n, num_words)) < 0.05).astype(np.float32)
    x[:, 7] = (y == 1) & (random.random(n) < 0.9)
    x[:, 301] = (y != 2) | (random.random(n) < 0.1)
    edges = [(i, int(random.choice(np.flatnonzero(y == y[i])))) for i in range(n)]
    return Graph.from_edges([(i, j) for i, j in edges if i != j], x=scipy.sparse.csr_array(x), y=y, num_nodes=n)


def test_of_many_words_trees_read_those_that_tell_most_about_the_labels(tmp_path):
    graph, known = word_graph(), torch.arange(120) < 90
    recipe = METHODS["trees"].fair(DEFAULT.replace(structure=False))
    trained = learn(graph, known, None, recipe, device="cpu")
    model = trained.model.first[0]
    assert len(model.picked) == WORDS and {7, 301} <= set(model.picked.tolist())
    assert model.width == 2 * (WORDS + 4) + 3 * 3  # own and neighbours' means, with four structural features, and votes
    prepared = trained.prepare(graph)
    columns, chosen = model.columns(prepared), prepared.x.to_dense()[:, model.picked]
    assert torch.equal(columns[:, :WORDS], chosen)
    mean = prepared.adjacency.between_nodes() @ chosen
    reached = prepared.adjacency.between_nodes().pattern.rowptr.diff() > 0
    assert torch.equal(columns[reached, WORDS + 4 : 2 * WORDS + 4], mean[reached])
    said = predict_proba(trained, graph)
    assert (said.argmax(dim=1) == graph.y)[90:].double().mean() > 0.8
    trained.save_pretrained(tmp_path / "trees")
    assert torch.equal(predict_proba(Trained.from_pretrained(tmp_path / "trees"), graph), said)
