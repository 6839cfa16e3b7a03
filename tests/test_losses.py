"""Five readings of Eq. (15) against hand calculation, brute force and the dense twin, and what their labels are."""

import math

import pytest
import torch
from torch.nn import functional as F

from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import READINGS, labels_of
from gcn_lpa.model import GCNLPA
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import LOSSES
from tests.helpers import twin
from tests.helpers.small_graphs import (
    FEATURES,
    LABELS,
    PLAIN,
    TRAIN,
    in_float64,
    labels_at,
    lpa_cost,
    one_hot,
    one_way,
    random_walk,
    six_nodes,
    sparse_of,
    votes_on,
)


def test_every_reading_has_a_name_in_recipes_and_a_dense_twin():
    assert set(READINGS) == set(LOSSES) == set(twin.READINGS)


STEPS = {"leave_one_out": (1, 2)}  # a recipe refuses more
RATIOS = {"held_out": (1.0,)}  # the twin has one mask for both shares


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize(
    ("loss", "k", "ratio"),
    [(loss, k, ratio) for loss in READINGS for k in STEPS.get(loss, (1, 2, 5)) for ratio in RATIOS.get(loss, (1.0, 0.6))],
)
def test_every_reading_equals_its_dense_twin(loss, k, ratio, directed):
    """Votes, cost and the gradient of the edges; also where only a part of the labels are seeds, or edges go one way.

    The twin of `leave_one_out` forgets each label in turn.
    """
    for seed in range(3):
        dense = one_way(random_walk(8, seed)) if directed else random_walk(8, seed)
        nodes, target = torch.tensor([0, 1, 2, 4, 6, 7]), torch.tensor([0, 1, 1, 0, 1, 0])
        recipe, key = PLAIN.replace(loss=loss, lpa_iterations=k, lpa_ratio=ratio), Key(seed, 1)
        walk, labels = sparse_of(dense), labels_at(nodes, target, sparse_of(dense), recipe, seed=seed)
        shown, _ = seeds_and_targets(8, recipe, key)
        y = one_hot(torch.full((8,), -1).index_copy(0, nodes, target))
        values, same = walk.values.clone().requires_grad_(), dense.clone().requires_grad_()
        votes, _ = votes_on(walk.with_values(values), labels, recipe, key)
        torch.testing.assert_close(votes, twin.votes_of(loss, same, y, k, shown)[nodes])
        ours, theirs = lpa_cost(walk.with_values(values), labels, recipe, key), twin.lpa_cost(loss, same, y, k, shown)
        torch.testing.assert_close(ours, theirs)
        ours.backward()
        theirs.backward()
        torch.testing.assert_close(values.grad, same.grad[dense > 0])


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_every_lpa_loss_equal_finite_differences(loss):
    recipe, walk = PLAIN.replace(loss=loss, lpa_iterations=2), sparse_of(random_walk(8))
    labels = labels_at(torch.arange(6), torch.tensor([0, 1, 1, 0, 0, 1]), walk, recipe)
    cost = lambda values: lpa_cost(walk.with_values(values), labels, recipe, Key(3, 1))  # noqa: E731
    assert torch.autograd.gradcheck(cost, (walk.values.clone().requires_grad_(),))


THREE = Graph.from_edges([(0, 1), (1, 2)], y=[0, 1, -1], class_names=("a", "b"), self_loops=True)  # 0 - 1 - 2
BY_HAND = [  # rows of the walk: (1/2, 1/2, 0), (1/3, 1/3, 1/3), (0, 1/2, 1/2)
    ("literal", 1, (math.log(2) + math.log(2)) / 2),  # votes (1/2, 1/2) and (1/3, 1/3)
    ("literal", 2, (math.log(2) - math.log(0.6)) / 2),  # node 2 now says (0, 1/2): node 1 hears (1/3, 1/2)
    ("influence", 1, (math.log(2) + math.log(3)) / 2),
    ("influence", 2, (math.log(2) + math.log(2)) / 2),
    ("official", 1, math.log(2)),  # (1/2, 1/2) and (1/3, 1/3) as logits
    ("official", 2, (math.log(2) + math.log(1 + math.exp(5 / 18 - 4 / 9))) / 2),  # (5/12, 5/12), (5/18, 4/9)
]


@pytest.mark.parametrize(("loss", "k", "expected"), BY_HAND)
def test_three_nodes_by_hand(loss, k, expected):
    recipe, walk = PLAIN.replace(loss=loss, lpa_iterations=k), THREE.adjacency.row_normalized().to(torch.float64)
    cost = lpa_cost(walk, labels_at(torch.tensor([0, 1]), torch.tensor([0, 1]), walk, recipe), recipe)
    assert cost.item() == pytest.approx(expected, abs=1e-5)


def test_literal_reads_the_votes_before_the_last_reset():
    """After it every labelled node repeats its own label: loss 0, gradient 0."""
    values = THREE.adjacency.row_normalized().values.clone().requires_grad_()
    walk, recipe = THREE.adjacency.with_values(values), PLAIN.replace(loss="literal", lpa_iterations=2)
    lpa_cost(walk, labels_at(torch.tensor([0, 1]), torch.tensor([0, 1]), walk, recipe), recipe).backward()
    assert values.grad.count_nonzero() > 0


def test_the_leave_one_out_loss_of_a_directed_graph_is_that_of_forgetting_each_label_in_turn():
    """Arcs with a way back, 0 ⇄ 1 and 4 ⇄ 5, and without; two hops; through a model on its own graph."""
    arcs = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (0, 5)]
    graph = Graph.from_edges(
        arcs, weights=[1 + k / 4 for k in range(9)], x=FEATURES, y=LABELS, class_names=("a", "b"), directed=True
    )
    recipe = PLAIN.replace(loss="leave_one_out", lpa_iterations=2, lpa_weight=1.0)
    graph = in_float64(recipe.prepare(graph))
    cost = GCNLPA(recipe, graph).double().loss(graph, TRAIN, Key(0, 1)).lpa
    walk = torch.eye(6, dtype=torch.float64)
    for k, (source, target) in enumerate(arcs):
        walk[target, source] = 1 + k / 4
    torch.testing.assert_close(cost, twin.lpa_cost("leave_one_out", walk / walk.sum(1, keepdim=True), one_hot(LABELS), 2))


@pytest.mark.parametrize("k", [1, 2])
def test_leave_one_out_votes_do_not_depend_on_the_nodes_own_label(k):
    """Flip the label of one node: what the others say about it stays."""
    walk, nodes, target = sparse_of(random_walk(8)), torch.arange(6), torch.tensor([0, 1, 1, 0, 0, 1])
    recipe = PLAIN.replace(loss="leave_one_out", lpa_iterations=k)
    votes, _ = votes_on(walk, labels_at(nodes, target, walk, recipe), recipe)
    for a in range(6):
        flipped = torch.where(nodes == a, 1 - target, target)
        again, _ = votes_on(walk, labels_at(nodes, flipped, walk, recipe), recipe)
        torch.testing.assert_close(again[a], votes[a], rtol=0, atol=1e-12)
        assert not torch.equal(again, votes)


def seeds_and_targets(number, recipe, key):
    """Which of so many labelled nodes are seeds, read off one step on the identity, and which are scored."""
    nodes, identity = torch.arange(number), SparseMatrix.identity(number)
    plain = recipe.replace(lpa_iterations=1, loss="literal" if recipe.loss == "leave_one_out" else recipe.loss)
    labels = labels_at(nodes, torch.zeros_like(nodes), identity, plain, seed=key.seed)
    votes, scored = votes_on(identity, labels, plain, key)
    return votes.sum(1) > 0, scored


def test_held_out_nodes_are_seeds_or_targets_never_both_and_drawn_anew_each_step():
    recipe = PLAIN.replace(loss="held_out")
    seeds, targets = seeds_and_targets(1000, recipe, Key(0, 5))
    assert torch.equal(seeds, ~targets)
    assert abs(seeds.float().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(1000)
    assert torch.equal(seeds_and_targets(1000, recipe, Key(0, 5))[0], seeds)
    steps = [seeds_and_targets(1000, recipe, Key(0, step))[0] for step in range(20)]
    assert len({tuple(step.tolist()) for step in steps}) == 20
    assert torch.stack(steps).any(0).float().mean() > 0.99  # every node gets its turn


@pytest.mark.parametrize("loss", ["official", "literal", "influence"])
def test_the_label_ratio_thins_the_seeds_and_no_targets(loss):
    """Table 3: the same seeds at every step, so that a part of the labels is never seen."""
    recipe = PLAIN.replace(loss=loss, lpa_ratio=0.4)
    seeds, targets = seeds_and_targets(1000, recipe, Key(0, 1))
    assert targets.all()
    assert abs(seeds.float().mean().item() - 0.4) < 5 * math.sqrt(0.24 / 1000)
    assert torch.equal(seeds_and_targets(1000, recipe, Key(0, 2))[0], seeds)
    assert not torch.equal(seeds_and_targets(1000, recipe, Key(1, 1))[0], seeds)
    more = seeds_and_targets(1000, recipe.replace(lpa_ratio=0.7), Key(0, 1))[0]
    assert (more | ~seeds).all()  # a larger share contains the smaller one
    assert seeds_and_targets(1000, recipe.replace(lpa_ratio=1.0), Key(0, 1))[0].all()


def test_theorem_3_maximising_the_probability_need_not_maximise_the_influence():
    """Node 0 has weight .1 to its own class and .9 to a dead end, or .6 to its own and .4 to the other class.

    Pr(correct) is 1 and .6, the influence .1 and .6: "∝" hides the sum over classes. Nodes 1 (own class), 2 (other) and
    3 (dead end) listen to themselves only, so that their own cost is 0.
    """

    def walk(own, other, dead_end):
        dense = torch.eye(4).double()
        dense[0] = torch.tensor([0, own, other, dead_end]).double()
        return sparse_of(dense)

    def cost(loss, matrix):
        recipe = PLAIN.replace(loss=loss, lpa_iterations=3)
        labels = labels_at(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), matrix, recipe)
        return 3 * lpa_cost(matrix, labels, recipe).item()

    detour, direct = walk(0.1, 0, 0.9), walk(0.6, 0.4, 0)
    seeds = one_hot([-1, 0, 1, -1])
    assert propagate_labels(detour, seeds, 3)[0].tolist() == pytest.approx([0.1, 0])
    assert propagate_labels(direct, seeds, 3)[0].tolist() == pytest.approx([0.6, 0.4])
    assert cost("literal", detour) == pytest.approx(0, abs=1e-4)
    assert cost("literal", direct) == pytest.approx(-math.log(0.6), abs=1e-4)
    assert cost("influence", detour) == pytest.approx(-math.log(0.1), abs=1e-4)
    assert cost("influence", direct) == pytest.approx(-math.log(0.6), abs=1e-4)


def test_the_official_loss_has_a_floor():
    """Rows in [0, 1] as logits: with 7 classes a perfect vote still costs log(e + 6) - 1 = 1.17."""
    nodes, identity = torch.arange(7), SparseMatrix.identity(7)
    recipe = PLAIN.replace(loss="official", lpa_iterations=5)
    cost = lpa_cost(identity, labels_at(nodes, nodes, identity, recipe, num_classes=7), recipe)
    assert cost.item() == pytest.approx(math.log(math.e + 6) - 1)
    assert cost.item() == pytest.approx(1.17, abs=0.005)


def test_class_weights_by_hand():
    """Three labels of class 0 and one of class 1: 4 / (2·3) and 4 / (2·1); a class without labels counts as one."""
    recipe = PLAIN.replace(class_weights="balanced")

    def weights(y, nodes, classes):
        graph = Graph.from_edges([], num_nodes=len(y), y=y, class_names=tuple("abc"[:classes]))
        return labels_of(recipe, graph, nodes).weight.tolist()

    assert weights([0, 0, 1, 0], torch.arange(4), 2) == pytest.approx([2 / 3, 2 / 3, 2, 2 / 3])
    assert weights([0, 0], torch.arange(2), 3) == pytest.approx([1 / 3, 1 / 3])
    mask = torch.tensor([True, False, True, True, False, True])  # the same four as a mask
    assert weights([0, 1, 0, 1, -1, 0], mask, 2) == pytest.approx([2 / 3, 0, 2 / 3, 2, 0, 2 / 3])


@pytest.mark.parametrize("loss", ["official", "literal"])
def test_balanced_classes_weigh_both_losses(loss):
    """Labels 0, 0, 1: the mean is over classes of the mean over their nodes."""
    graph, nodes = six_nodes(), torch.tensor([0, 1, 2])
    recipe = PLAIN.replace(loss=loss, lpa_weight=1.0, lpa_iterations=2)
    balanced = GCNLPA(recipe.replace(class_weights="balanced"), graph).loss(graph, nodes, Key(0))
    plain = GCNLPA(recipe, graph)
    votes, _ = votes_on(plain.transition(graph), labels_of(recipe, graph, nodes), recipe)
    if loss == "literal":
        votes = ((votes + 1e-6) / (votes + 1e-6).sum(1, keepdim=True)).log()
    for term, rows in ((balanced.gcn, plain(graph)[:3]), (balanced.lpa, votes)):
        first, second, third = F.cross_entropy(rows, graph.y[:3], reduction="none").tolist()
        assert term.item() == pytest.approx(((first + second) / 2 + third) / 2, rel=1e-5)
