"""Label propagation, graph convolution and their joint loss, against dense twins, closed forms and hand calculation."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gcn_lpa.choice import WITHOUT_FEATURES
from gcn_lpa.edges import drop_edges, initial_weight
from gcn_lpa.engine import class_blocks
from gcn_lpa.engine.class_blocks import class_block
from gcn_lpa.engine.counter_random import Key
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.losses import class_weights, labels_of
from gcn_lpa.model import GCNLPA, lpa_loss, lpa_votes, propagate_labels
from gcn_lpa.recipes import LAYERS, LOSSES, OFFICIAL, PAPER, Recipe

PAIRS = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]  # two triangles joined by 2 - 3
FEATURES = [[1.0, 0.0, 2.0], [0.0, 1.0, 0.5], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]]
LABELS = [0, 0, 1, -1, 1, -1]
TRAIN = torch.tensor([0, 1, 2, 4])
PLAIN = Recipe(edges="fixed", features="raw", lpa_weight=0, residual=False, dropout=0.0, hidden=4)


def six_nodes(weighted=True, x=FEATURES, **options):
    weights = [1 + k / 4 for k in range(len(PAIRS))] if weighted else None
    return Graph.from_edges(PAIRS, weights=weights, x=x, y=LABELS, class_names=("a", "b"), self_loops=True, **options)


def in_float64(graph):
    return dataclasses.replace(
        graph, adjacency=graph.adjacency.to(torch.float64), x=graph.x.to(torch.float64), _derived={}
    )


def sparse_of(dense):
    row, col = dense.nonzero(as_tuple=True)
    return SparseMatrix.from_coo(row, col, dense[row, col], tuple(dense.shape))


def random_walk(n, seed=0, self_loops=True):
    """A dense D⁻¹A of a connected undirected graph with random weights, float64."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(n, n, generator=generator, dtype=torch.float64) * (torch.rand(n, n, generator=generator) < 0.4)
    a = (
        a
        + a.T
        + torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
        + torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    )
    a.fill_diagonal_(0.7 if self_loops else 0.0)
    return a / a.sum(1, keepdim=True)


def one_hot(labels, num_classes=2):
    """Rows of zeros where the label is -1."""
    y = torch.tensor(labels)
    return F.one_hot(y.clamp_min(0), num_classes).double() * (y >= 0).unsqueeze(1)


def random_model(recipe, graph, seed=0):
    """A model in float64 whose parameters are all random, edges and biases too."""
    model = GCNLPA(recipe, graph, seed).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def labels_at(nodes, target, walk, recipe, *, num_classes=2, key=None):
    """The labels `target` of `nodes` as a loss reads them."""
    y = torch.full((walk.shape[0],), -1).index_copy(0, nodes, target)
    settings = num_classes, recipe.lpa_ratio, key.seed if key else 0, walk.dtype
    return labels_of(y, nodes, *settings, walk.pattern)


def votes_on(walk, nodes, target, recipe, key=None):
    """What LPA says about each of `nodes`, and which of them are scored."""
    return lpa_votes(walk, labels_at(nodes, target, walk, recipe, key=key), recipe, key)


def lpa_cost(walk, nodes, target, recipe, key=None, num_classes=2):
    return lpa_loss(walk, labels_at(nodes, target, walk, recipe, num_classes=num_classes, key=key), recipe, key)


# label propagation


def test_a_label_needs_as_many_iterations_as_hops():
    walk = Graph.from_edges([(0, 1), (1, 2)], y=[0, 0, 0]).adjacency.row_normalized()  # 0 - 1 - 2
    seeds = torch.tensor([[1.0], [0.0], [0.0]])
    assert propagate_labels(walk, seeds, 0).tolist() == [[1.0], [0.0], [0.0]]
    assert propagate_labels(walk, seeds, 1).tolist() == [[0.0], [0.5], [0.0]]
    assert propagate_labels(walk, seeds, 2).tolist() == [[0.5], [0.5], [0.5]]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lemma_2_closed_form_equals_propagation_on_unlabelled_nodes(k, seed):
    """Σ_j A_UU^(j-1) A_UL Y_L: walks through unlabelled nodes that end at a labelled one."""
    walk, seeds = random_walk(6, seed), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    uu, ul = walk[unlabeled][:, unlabeled], walk[unlabeled][:, labeled]
    closed = sum(torch.linalg.matrix_power(uu, j - 1) @ ul for j in range(1, k + 1)) @ seeds[labeled]
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k)[unlabeled], closed)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_lemma_2_equals_the_enumeration_of_all_walks(k):
    """The influence of labelled b on unlabelled a: each walk counted, every step with the row of the node it leaves."""
    walk, seeds = random_walk(6), one_hot(LABELS)
    y = propagate_labels(sparse_of(walk), seeds, k)
    unlabeled = [i for i in range(6) if LABELS[i] < 0]
    for a in unlabeled:
        votes = [0.0, 0.0]
        for length in range(1, k + 1):
            for between in itertools.product(unlabeled, repeat=length - 1):
                for b in set(range(6)) - set(unlabeled):
                    nodes = (a, *between, b)
                    votes[LABELS[b]] += math.prod(walk[i, j].item() for i, j in itertools.pairwise(nodes))
        assert y[a].tolist() == pytest.approx(votes)


def test_labelled_nodes_hear_what_their_neighbours_say_before_the_last_reset():
    """A_LL Y_L + A_LU Y_U^(k-1), not their own label again."""
    walk, seeds = random_walk(6), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    before = propagate_labels(sparse_of(walk), seeds, 3)[unlabeled]
    expected = walk[labeled][:, labeled] @ seeds[labeled] + walk[labeled][:, unlabeled] @ before
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, 4)[labeled], expected)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_without_the_reset_propagation_is_a_power_of_the_matrix(k):
    walk, seeds = random_walk(6), one_hot(LABELS)
    expected = torch.linalg.matrix_power(walk, k) @ seeds
    torch.testing.assert_close(propagate_labels(sparse_of(walk), seeds, k, clamp=False), expected)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_converged_propagation_equals_the_linear_solve(seed, self_loops):
    """(I - A_UU)⁻¹ A_UL Y_L, the harmonic solution of Eq. (4)."""
    walk, seeds = random_walk(6, seed, self_loops), one_hot(LABELS)
    labeled, unlabeled = seeds.sum(1) > 0, seeds.sum(1) == 0
    uu, ul = walk[unlabeled][:, unlabeled], walk[unlabeled][:, labeled]
    solution = torch.linalg.solve(torch.eye(len(uu)).double() - uu, ul @ seeds[labeled])
    converged = propagate_labels(sparse_of(walk), seeds, None, tolerance=1e-13)
    torch.testing.assert_close(converged[unlabeled], solution, rtol=1e-9, atol=1e-9)
    expected = walk[labeled][:, labeled] @ seeds[labeled] + walk[labeled][:, unlabeled] @ solution
    torch.testing.assert_close(converged[labeled], expected, rtol=1e-9, atol=1e-9)


def test_convergence_in_float32_ends_where_no_label_reaches_and_where_all_nodes_are_labelled(karate):
    walk = karate.adjacency.row_normalized()
    everywhere = F.one_hot(karate.y, 2).float()
    torch.testing.assert_close(propagate_labels(walk, everywhere, None), walk @ everywhere)
    nowhere = torch.zeros(34, 2)
    assert torch.equal(propagate_labels(walk, nowhere, None), nowhere)
    one = nowhere.clone()
    one[33, 1] = 1
    torch.testing.assert_close(propagate_labels(walk, one, None)[:33, 1], torch.ones(33), rtol=0, atol=1e-3)
    assert propagate_labels(SparseMatrix.identity(0), torch.zeros(0, 2), None).shape == (0, 2)


def test_convergence_without_the_reset_is_refused():
    """0 - 1 would pass its label back and forth for ever."""
    pair = Graph.from_edges([(0, 1)], y=[0, 1]).adjacency.row_normalized()
    with pytest.raises(ValueError, match="clamp"):
        propagate_labels(pair, torch.eye(2), None, clamp=False)


def test_soft_labels_and_confidences_travel_as_they_are():
    """Propagation is linear in the seeds: half the confidence, half the vote; a soft label is a mixture of votes."""
    walk, sure = sparse_of(random_walk(6)), one_hot(LABELS)
    doubt = torch.tensor([0.5, 0.25, 1.0, 0.0, 0.75, 0.0]).double().unsqueeze(1)
    soft = doubt * sure + (1 - doubt) * sure.flip(1)
    alone = [propagate_labels(walk, sure * torch.eye(6).double()[i].unsqueeze(1) + 0, 3) for i in range(6)]
    assert propagate_labels(walk, soft, 3).sum() == pytest.approx(propagate_labels(walk, sure, 3).sum())
    torch.testing.assert_close(propagate_labels(walk, 0.3 * sure, 3), 0.3 * propagate_labels(walk, sure, 3))
    torch.testing.assert_close(propagate_labels(walk, soft, 1), walk @ soft)
    assert alone[3].count_nonzero() == 0  # a node without label has nothing to say


def test_the_influence_of_a_label_is_its_column_of_the_closed_form():
    """∂y_a / ∂y_b by autograd equals Lemma 2; a labelled node between them cuts the walk."""
    path = sparse_of(torch.tensor([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 1, 0]]).double())
    seeds = torch.tensor([[1.0], [0.0], [1.0], [0.0]], dtype=torch.float64, requires_grad=True)  # 0 - 1 - 2 - 3
    influence = torch.autograd.grad(propagate_labels(path, seeds, 6)[3, 0], seeds)[0]
    assert influence.flatten().tolist()[0] == 0  # node 2 is labelled and absorbs what comes from 0
    assert influence.flatten().tolist()[2] == 1


@pytest.mark.parametrize("clamp", [True, False])
def test_gradients_of_propagation_equal_finite_differences(clamp):
    walk, seeds = sparse_of(random_walk(6)), one_hot(LABELS).requires_grad_()
    values = walk.values.clone().requires_grad_()
    labeled = (seeds.detach().sum(1) > 0).double().unsqueeze(1)

    def spread(values, seeds):  # unlabelled rows stay zero: whether a row is a seed is not differentiable
        return propagate_labels(walk.with_values(values), seeds * labeled, 3, clamp=clamp)

    assert torch.autograd.gradcheck(spread, (values, seeds))


@given(st.integers(0, 1000), st.integers(1, 6))
def test_label_mass_never_grows(seed, k):
    """Rows of the walk sum to 1, so no node gets more than the largest seed."""
    y = propagate_labels(sparse_of(random_walk(6, seed)), one_hot(LABELS), k)
    assert (y >= 0).all()
    assert (y.sum(1) <= 1 + 1e-12).all()


# what the LPA loss scores


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
    recipe = PLAIN.replace(loss=loss, lpa_iterations=k)
    walk = THREE.adjacency.row_normalized().to(torch.float64)
    cost = lpa_cost(walk, torch.tensor([0, 1]), torch.tensor([0, 1]), recipe)
    assert cost.item() == pytest.approx(expected, abs=1e-5)


def test_literal_reads_the_votes_before_the_last_reset():
    """After it every labelled node repeats its own label: loss 0, gradient 0."""
    values = THREE.adjacency.row_normalized().values.clone().requires_grad_()
    walk = THREE.adjacency.with_values(values)
    recipe = PLAIN.replace(loss="literal", lpa_iterations=2)
    lpa_cost(walk, torch.tensor([0, 1]), torch.tensor([0, 1]), recipe).backward()
    assert values.grad.count_nonzero() > 0


def brute_force_leave_one_out(walk, nodes, labels, is_seed, k):
    """For each node in turn: forget its label, propagate over the dense matrix, read its row."""
    votes = torch.zeros(len(walk), 2, dtype=walk.dtype)
    for a in nodes.tolist():
        seeds = one_hot(labels) * is_seed.unsqueeze(1)
        seeds[a] = 0
        labeled = seeds.sum(1, keepdim=True) > 0
        y = seeds
        for _ in range(k):
            y = walk @ torch.where(labeled, seeds, y)
        votes = votes + F.one_hot(torch.tensor(a), len(walk)).unsqueeze(1) * y
    return votes


def one_way(walk):
    """Some edges of the walk without their way back; rows still sum to 1."""
    kept = walk * (torch.rand(walk.shape, generator=torch.Generator().manual_seed(9)) < 0.6)
    kept.fill_diagonal_(0.2)
    assert ((kept > 0) != (kept.T > 0)).any()
    assert ((kept > 0) & (kept.T > 0)).sum() > len(walk)  # and some with
    return kept / kept.sum(1, keepdim=True)


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
    walk = walk / walk.sum(1, keepdim=True)
    votes = brute_force_leave_one_out(walk, TRAIN, LABELS, torch.ones(6), 2)[TRAIN]
    share = (votes.gather(1, graph.y[TRAIN].unsqueeze(1)) + 1e-6) / (votes.sum(1, keepdim=True) + 2e-6)
    torch.testing.assert_close(cost, -share.log().mean())


@pytest.mark.parametrize("ratio", [1.0, 0.6])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_leave_one_out_equals_brute_force(seed, directed, k, ratio):
    """Votes, loss and the gradient of the edges; also where only a part of the labels are seeds, or edges go one way."""
    dense, labels = one_way(random_walk(8, seed)) if directed else random_walk(8, seed), [0, 1, 1, -1, 0, -1, 1, 0]
    nodes = torch.tensor([i for i in range(8) if labels[i] >= 0])
    target = torch.tensor(labels)[nodes]
    recipe = PLAIN.replace(loss="leave_one_out", lpa_iterations=k, lpa_ratio=ratio)
    alone = votes_on(SparseMatrix.identity(8).to(torch.float64), nodes, target, recipe.replace(loss="official")).mass
    is_seed = torch.zeros(8, dtype=torch.float64).index_copy(0, nodes, alone.sum(1))
    walk = sparse_of(dense)
    values, twin = walk.values.clone().requires_grad_(), dense.clone().requires_grad_()
    expected = brute_force_leave_one_out(twin, nodes, labels, is_seed, k)
    torch.testing.assert_close(votes_on(walk.with_values(values), nodes, target, recipe).mass, expected[nodes])

    share = (expected[nodes].gather(1, target.unsqueeze(1)) + 1e-6) / (expected[nodes].sum(1, keepdim=True) + 2e-6)
    cost = lpa_cost(walk.with_values(values), nodes, target, recipe)
    torch.testing.assert_close(cost, -share.log().mean())
    cost.backward()
    (-share.log().mean()).backward()
    torch.testing.assert_close(values.grad, twin.grad[dense > 0])


@pytest.mark.parametrize("k", [1, 2])
def test_leave_one_out_votes_do_not_depend_on_the_nodes_own_label(k):
    """Flip the label of one node: what the others say about it stays."""
    walk, nodes = sparse_of(random_walk(8)), torch.arange(6)
    recipe = PLAIN.replace(loss="leave_one_out", lpa_iterations=k)
    target = torch.tensor([0, 1, 1, 0, 0, 1])
    votes = votes_on(walk, nodes, target, recipe).mass
    for a in range(6):
        flipped = target.clone()
        flipped[a] = 1 - flipped[a]
        again = votes_on(walk, nodes, flipped, recipe).mass
        torch.testing.assert_close(again[a], votes[a], rtol=0, atol=1e-12)
        assert not torch.equal(again, votes)


def seeds_and_targets(nodes, recipe, key):
    """Which nodes are seeds, read off one step on the identity, and which are scored."""
    target = torch.zeros_like(nodes)
    identity = SparseMatrix.identity(int(nodes.max()) + 1)
    votes, scored = votes_on(identity, nodes, target, recipe.replace(lpa_iterations=1), key)
    return votes.sum(1) > 0, torch.ones_like(nodes, dtype=torch.bool) if scored is None else scored


def test_held_out_nodes_are_seeds_or_targets_never_both_and_drawn_anew_each_step():
    nodes, recipe = torch.arange(1000), PLAIN.replace(loss="held_out")
    seeds, targets = seeds_and_targets(nodes, recipe, Key(0, 5))
    assert torch.equal(seeds, ~targets)
    assert abs(seeds.float().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(1000)
    assert torch.equal(seeds_and_targets(nodes, recipe, Key(0, 5))[0], seeds)
    steps = [seeds_and_targets(nodes, recipe, Key(0, step))[0] for step in range(20)]
    assert len({tuple(step.tolist()) for step in steps}) == 20
    assert torch.stack(steps).any(0).float().mean() > 0.99  # every node gets its turn


def test_held_out_scores_the_targets_alone():
    walk, nodes, target = sparse_of(random_walk(8)), torch.arange(8), torch.tensor([0, 1, 1, 0, 0, 1, 1, 0])
    recipe, key = PLAIN.replace(loss="held_out", lpa_iterations=3), Key(3, 1)
    seeds, targets = seeds_and_targets(nodes, recipe, key)
    assert targets.any()
    assert seeds.any()
    votes = propagate_labels(walk, one_hot(target.tolist()) * seeds.unsqueeze(1), 3)
    share = (votes.gather(1, target.unsqueeze(1)).squeeze(1) + 1e-6) / (votes.sum(1) + 2e-6)
    torch.testing.assert_close(lpa_cost(walk, nodes, target, recipe, key), -share.log()[targets].mean())


@pytest.mark.parametrize("loss", ["official", "literal", "influence"])
def test_the_label_ratio_thins_the_seeds_and_no_targets(loss):
    """Table 3: the same seeds at every step, so that a part of the labels is never seen."""
    nodes, recipe = torch.arange(1000), PLAIN.replace(loss=loss, lpa_ratio=0.4)
    seeds, targets = seeds_and_targets(nodes, recipe, Key(0, 1))
    assert targets.all()
    assert abs(seeds.float().mean().item() - 0.4) < 5 * math.sqrt(0.24 / 1000)
    assert torch.equal(seeds_and_targets(nodes, recipe, Key(0, 2))[0], seeds)
    assert not torch.equal(seeds_and_targets(nodes, recipe, Key(1, 1))[0], seeds)
    more = seeds_and_targets(nodes, recipe.replace(lpa_ratio=0.7), Key(0, 1))[0]
    assert (more | ~seeds).all()  # a larger share contains the smaller one
    assert seeds_and_targets(nodes, recipe.replace(lpa_ratio=1.0), Key(0, 1))[0].all()


@pytest.mark.parametrize("off", [{"lpa_ratio": 0.0}, {"lpa_iterations": 0}, {"lpa_weight": 0.0}])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_labels_iterations_or_weight_the_lpa_term_is_zero(loss, off):
    recipe = PLAIN.replace(**{"edges": "free", "loss": loss, "lpa_weight": 2.0, **off})
    graph = six_nodes()
    cost = GCNLPA(recipe, graph).loss(graph, TRAIN, Key(0))
    assert cost.lpa.item() == 0
    assert cost.total.item() == cost.gcn.item()


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
        return 3 * lpa_cost(matrix, torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), recipe).item()

    detour, direct = walk(0.1, 0, 0.9), walk(0.6, 0.4, 0)
    seeds = one_hot([-1, 0, 1, -1])
    assert propagate_labels(detour, seeds, 3)[0].tolist() == pytest.approx([0.1, 0])
    assert propagate_labels(direct, seeds, 3)[0].tolist() == pytest.approx([0.6, 0.4])
    assert cost("literal", detour) == pytest.approx(0, abs=1e-4)
    assert cost("literal", direct) == pytest.approx(-math.log(0.6), abs=1e-4)
    assert cost("influence", detour) == pytest.approx(-math.log(0.1), abs=1e-4)
    assert cost("influence", direct) == pytest.approx(-math.log(0.6), abs=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_every_lpa_loss_equal_finite_differences(loss):
    walk, nodes, target = sparse_of(random_walk(8)), torch.arange(6), torch.tensor([0, 1, 1, 0, 0, 1])
    recipe = PLAIN.replace(loss=loss, lpa_iterations=2)
    cost = lambda values: lpa_cost(walk.with_values(values), nodes, target, recipe, Key(3, 1))  # noqa: E731
    assert torch.autograd.gradcheck(cost, (walk.values.clone().requires_grad_(),))


def test_class_weights_by_hand():
    """Three labels of class 0 and one of class 1: 4 / (2·3) and 4 / (2·1); a class without labels counts as one."""

    def weights(y, nodes, num_classes):
        pattern = SparseMatrix.identity(len(y)).pattern
        return class_weights(labels_of(y, nodes, num_classes, 1.0, 0, torch.float32, pattern), num_classes).tolist()

    assert weights(torch.tensor([0, 0, 1, 0]), torch.arange(4), 2) == pytest.approx([2 / 3, 2])
    assert weights(torch.tensor([0, 0]), torch.arange(2), 3) == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    mask = torch.tensor([True, False, True, True, False, True])  # the same four as a mask
    assert weights(torch.tensor([0, 1, 0, 1, -1, 0]), mask, 2) == pytest.approx([2 / 3, 2])


@pytest.mark.parametrize("loss", ["official", "literal"])
def test_balanced_classes_weigh_both_losses(loss):
    """Labels 0, 0, 1: the mean is over classes of the mean over their nodes."""
    graph = six_nodes()
    recipe = PLAIN.replace(loss=loss, lpa_weight=1.0, lpa_iterations=2)
    nodes = torch.tensor([0, 1, 2])
    balanced = GCNLPA(recipe.replace(class_weights="balanced"), graph).loss(graph, nodes, Key(0))
    plain = GCNLPA(recipe, graph)
    logits = plain(graph)
    gcn = [F.cross_entropy(logits[i], graph.y[i]).item() for i in range(3)]
    assert balanced.gcn.item() == pytest.approx(((gcn[0] + gcn[1]) / 2 + gcn[2]) / 2, rel=1e-5)
    votes = votes_on(plain.transition(graph), nodes, graph.y[nodes], recipe).mass
    if loss == "literal":
        votes = ((votes + 1e-6) / (votes + 1e-6).sum(1, keepdim=True)).log()
    lpa = [F.cross_entropy(votes[i], graph.y[i]).item() for i in range(3)]
    assert balanced.lpa.item() == pytest.approx(((lpa[0] + lpa[1]) / 2 + lpa[2]) / 2, rel=1e-5)


# the convolution


def dense_walk(graph):
    a = graph.adjacency.to_dense()
    return a / a.sum(1, keepdim=True)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_lpa_and_with_fixed_edges_it_is_a_plain_row_normalised_gcn(layers):
    """Logits, loss and the gradient of every W."""
    graph = in_float64(six_nodes())
    model = random_model(PLAIN.replace(gcn_layers=layers), graph)
    weights = [weight.detach().clone().requires_grad_() for weight in model.body.weights]
    x = graph.x
    for weight in weights[:-1]:
        x = torch.relu(dense_walk(graph) @ x @ weight)
    logits = dense_walk(graph) @ x @ weights[-1]
    cost = F.cross_entropy(logits[TRAIN], graph.y[TRAIN])
    ours = model.loss(graph, TRAIN, Key(0))
    torch.testing.assert_close(model(graph), logits)
    torch.testing.assert_close(ours.total, cost)
    ours.total.backward()
    cost.backward()
    for weight, twin in zip(model.body.weights, weights, strict=True):
        torch.testing.assert_close(weight.grad, twin.grad)


def test_symmetric_normalisation_is_that_of_kipf_and_welling():
    graph = in_float64(six_nodes())
    model = random_model(PLAIN.replace(normalization="symmetric"), graph)
    a = graph.adjacency.to_dense()
    scale = a.sum(1).rsqrt()
    smooth = scale.unsqueeze(1) * a * scale
    first, second = (weight.detach() for weight in model.body.weights)
    torch.testing.assert_close(model(graph), smooth @ torch.relu(smooth @ graph.x @ first) @ second)


def test_symmetric_normalisation_of_learned_edges():
    """D*^-½ A* D*^-½ with A* = M ∘ A; the walk of the labels stays D*⁻¹A*."""
    graph = in_float64(six_nodes())
    model = random_model(PLAIN.replace(normalization="symmetric", edges="free"), graph)
    strength = graph.adjacency.with_values(graph.adjacency.values * model.edges(graph).exp()).to_dense().detach()
    scale = strength.sum(1).rsqrt()
    transition, smoothing = model.walks(graph)
    torch.testing.assert_close(smoothing.to_dense().detach(), scale.unsqueeze(1) * strength * scale)
    torch.testing.assert_close(transition.to_dense().detach(), strength / strength.sum(1, keepdim=True))


def twin_layers(model, recipe, graph):
    """(h, x) of every layer, in dense torch: h = P x, x' = σ(norm(h W + x W' + b))."""
    activation = {"relu": torch.relu, "sigmoid": torch.sigmoid, "identity": lambda x: x}
    p = model.transition(graph).to_dense().detach()
    x, pairs = graph.x if isinstance(graph.x, torch.Tensor) else graph.x.to_dense(), []
    for k, weight in enumerate(model.body.weights):
        h, is_last = p @ x, k == len(model.body.weights) - 1
        out = h @ weight
        out = out + x @ model.body.skips[k] if recipe.residual else out
        out = out + model.body.biases[k] if recipe.bias else out
        if recipe.layer_norm and not is_last:
            centred = out - out.mean(1, keepdim=True)
            out = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
            out = out * model.body.norms[k].weight + model.body.norms[k].bias
        x = activation[recipe.output_activation if is_last else recipe.activation](out)
        pairs.append((h, x))
    return pairs


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": True},
        {"bias": True},
        {"layer_norm": True},
        {"activation": "sigmoid", "output_activation": "sigmoid", "init": "uniform"},
        {"activation": "identity", "edges": "free"},
        {"residual": True, "bias": True, "layer_norm": True, "output_activation": "relu", "edges": "agnn"},
    ],
    ids=str,
)
def test_embed_gives_h_and_x_of_every_layer(options, sparse):
    recipe = PLAIN.replace(gcn_layers=3, **options)
    graph = six_nodes(x=scipy.sparse.csr_array(FEATURES) if sparse else FEATURES)
    model, graph = random_model(recipe, graph), in_float64(graph)
    expected = twin_layers(model, recipe, graph)
    for (h, x), (twin_h, twin_x) in zip(model.embed(graph), expected, strict=True):
        torch.testing.assert_close(h.to_dense() if isinstance(h, SparseMatrix) else h, twin_h)
        torch.testing.assert_close(x, twin_x)
    torch.testing.assert_close(model(graph), expected[-1][1])


def test_the_transition_is_the_row_softmax_of_log_a_plus_log_m():
    graph = in_float64(six_nodes())
    model = random_model(PLAIN.replace(edges="free"), graph)
    a_star = graph.adjacency.to_dense() * graph.adjacency.with_values(model.edges(graph).exp()).to_dense()
    torch.testing.assert_close(model.transition(graph).to_dense(), a_star / a_star.sum(1, keepdim=True))


# the joint loss


def test_the_official_loss_equals_a_dense_transcription_of_the_published_formula():
    """Row softmax of free variables, no Eq. (2), the output of LPA as logits of a softmax cross-entropy over the
    training nodes; X·W before A·; no bias. Loss and the gradient of every variable."""
    graph = in_float64(six_nodes(weighted=False))
    recipe = OFFICIAL["citeseer"].replace(hidden=4, lpa_weight=1.5, lpa_iterations=3, features="raw")
    model = random_model(recipe, graph)
    at = graph.adjacency.to_dense() > 0
    edges = torch.full(at.shape, -torch.inf).double().masked_scatter(at, model.edges.weight.detach()).requires_grad_()
    first, second = (weight.detach().clone().requires_grad_() for weight in model.body.weights)

    a = torch.exp(edges) / torch.exp(edges).sum(1, keepdim=True)
    outputs = a @ (torch.relu(a @ (graph.x @ first)) @ second)
    labels = torch.zeros(6, 2).double()
    labels[TRAIN, graph.y[TRAIN]] = 1
    predicted = a @ (a @ (a @ labels))

    def softmax_cross_entropy(logits):
        log_p = logits[TRAIN] - logits[TRAIN].exp().sum(1, keepdim=True).log()
        return -(labels[TRAIN] * log_p).sum(1).mean()

    cost = softmax_cross_entropy(outputs) + 1.5 * softmax_cross_entropy(predicted)
    cost.backward()
    ours = model.loss(graph, TRAIN, Key(0))
    ours.total.backward()
    torch.testing.assert_close(ours.gcn, softmax_cross_entropy(outputs))
    torch.testing.assert_close(ours.lpa, softmax_cross_entropy(predicted))
    torch.testing.assert_close(model.edges.weight.grad, edges.grad[at])
    torch.testing.assert_close(model.body.weights[0].grad, first.grad)
    torch.testing.assert_close(model.body.weights[1].grad, second.grad)


def test_the_official_loss_has_a_floor():
    """Rows in [0, 1] as logits: with 7 classes a perfect vote still costs log(e + 6) - 1 = 1.17."""
    nodes, target = torch.arange(7), torch.arange(7)
    recipe = PLAIN.replace(loss="official", lpa_iterations=5)
    cost = lpa_cost(SparseMatrix.identity(7), nodes, target, recipe, num_classes=7)
    assert cost.item() == pytest.approx(math.log(math.e + 6) - 1)
    assert cost.item() == pytest.approx(1.17, abs=0.005)


@pytest.mark.parametrize("edges", ["free", "bilinear", "gat", "agnn", "gaan", "geniepath", "gaussian"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_the_joint_loss_equal_finite_differences(loss, edges):
    """Along a random direction in the space of all parameters, dropout of features, hidden layers and edges on."""
    recipe = PLAIN.replace(loss=loss, edges=edges, lpa_weight=2.0, lpa_iterations=2, bias=True, residual=True)
    recipe = recipe.replace(dropout=0.3, edge_dropout=0.2, activation="sigmoid", class_weights="balanced", edge_rank=3)
    model, graph = random_model(recipe, six_nodes()), in_float64(six_nodes())
    parameters, generator = list(model.parameters()), torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    model.loss(graph, TRAIN, Key(1, 2)).total.backward()
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction, strict=True)).item()

    def moved(step):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(step * d)
            cost = model.loss(graph, TRAIN, Key(1, 2)).total.item()
            for p, d in zip(parameters, direction, strict=True):
                p.sub_(step * d)
        return cost

    assert (moved(1e-5) - moved(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_the_total_is_gcn_plus_lambda_times_lpa():
    graph = six_nodes()
    cost = GCNLPA(PLAIN.replace(edges="free", loss="literal", lpa_weight=2.5), graph).loss(graph, TRAIN)
    assert cost.total.item() == pytest.approx(cost.gcn.item() + 2.5 * cost.lpa.item())
    assert cost.lpa.item() > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_no_label_outside_the_given_nodes_is_read(loss):
    """Scramble all others: the same bits of loss and gradients."""
    recipe = LAYERS.replace(loss=loss, lpa_iterations=2, class_weights="balanced", features="raw")
    graph, results = six_nodes(), []
    nodes = torch.tensor([0, 2, 4])
    for others in ([0, 1, 0], [1, 0, 1], [-1, -1, -1]):
        y = graph.y.clone()
        y[torch.tensor([1, 3, 5])] = torch.tensor(others)
        scrambled = dataclasses.replace(graph, y=y)
        model = GCNLPA(recipe, scrambled)
        cost = model.loss(scrambled, nodes, Key(0, 3))
        cost.total.backward()
        results.append([cost.total.item(), *(p.grad.numpy().tobytes() for p in model.parameters())])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("change", ["labels", "nodes", "labels in place", "nodes in place", "seed"])
def test_what_one_step_worked_out_is_not_used_for_another_question(change):
    """The same model asked twice gives what a new model gives."""
    recipe = PLAIN.replace(edges="free", loss="literal", lpa_weight=1.0, lpa_iterations=2, lpa_ratio=0.5)
    graph, nodes, key = six_nodes(), TRAIN.clone(), Key(0)
    graph = dataclasses.replace(graph, y=torch.tensor([0, 0, 1, 0, 1, 1]))
    model = GCNLPA(recipe, graph)
    before = model.loss(graph, nodes, key)
    if change == "labels":
        graph = dataclasses.replace(graph, y=graph.y.roll(1))
    elif change == "nodes":
        nodes = nodes + 1
    elif change == "labels in place":
        graph.y.copy_(graph.y.roll(1))
    elif change == "nodes in place":
        nodes.add_(1)
    else:
        key = Key(4)
    after, fresh = model.loss(graph, nodes, key), GCNLPA(recipe, graph).loss(graph, nodes, key)
    assert (after.gcn.item(), after.lpa.item()) == (fresh.gcn.item(), fresh.lpa.item())
    assert (after.gcn.item(), after.lpa.item()) != (before.gcn.item(), before.lpa.item())


def test_a_model_that_took_a_step_in_float32_takes_the_next_in_float64():
    """What it kept of the labels is not of the old type; both steps give what a new model gives."""
    recipe = PLAIN.replace(edges="free", loss="leave_one_out", lpa_weight=1.0, lpa_iterations=2)
    graph = six_nodes()
    model, wide = GCNLPA(recipe, graph), in_float64(graph)
    narrow = model.loss(graph, TRAIN, Key(0, 1)).total
    found = model.double().loss(wide, TRAIN, Key(0, 1)).total
    assert (narrow.dtype, found.dtype) == (torch.float32, torch.float64)
    assert found.item() == GCNLPA(recipe, graph).double().loss(wide, TRAIN, Key(0, 1)).total.item()
    assert found.item() == pytest.approx(narrow.item(), rel=1e-5)
    assert model.float().loss(graph, TRAIN, Key(0, 1)).total.item() == narrow.item()


def test_positions_and_a_mask_are_the_same_question():
    mask = torch.zeros(6, dtype=torch.bool).index_fill(0, TRAIN, True)
    for loss in LOSSES:
        recipe = PLAIN.replace(edges="free", loss=loss, lpa_weight=1.0, lpa_ratio=0.7, class_weights="balanced")
        graph = six_nodes()
        model = GCNLPA(recipe.replace(dropout=0.5), graph)
        by_position, by_mask = (model.loss(graph, nodes, Key(2, 1)) for nodes in (TRAIN, mask))
        torch.testing.assert_close(by_mask.total, by_position.total)
        torch.testing.assert_close(by_mask.lpa, by_position.lpa)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    graph = six_nodes()
    recipe = PLAIN.replace(edges="gaan", residual=True, bias=True, layer_norm=True)
    one, same, other = (GCNLPA(recipe, graph, seed).state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(
        torch.equal(one[name], other[name])
        for name in one
        if name.split(".")[:2] in (["body", "weights"], ["body", "skips"])
    )


def test_the_seed_of_the_model_is_not_the_global_one():
    graph = six_nodes()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    GCNLPA(LAYERS, graph).loss(graph, TRAIN, Key(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_start_as_glorot_or_uniform():
    generator = torch.Generator().manual_seed(0)
    for init, bound in (("glorot", math.sqrt(6 / 300)), ("uniform", 1.0)):
        weight = initial_weight(200, 100, init=init, generator=generator)
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.05)


def test_a_plain_model_has_the_parameters_of_the_paper_and_no_more(karate):
    """Cora's settings on the karate club: five W and one number per edge."""
    graph = karate.with_self_loops()
    model = GCNLPA(PAPER["cora"], graph)
    shapes = [tuple(weight.shape) for weight in model.weight_parameters()]
    assert shapes == [(34, 32), (32, 32), (32, 32), (32, 32), (32, 2)]
    assert [tuple(weight.shape) for weight in model.edge_parameters()] == [(2 * 78 + 34,)]
    assert len(list(model.parameters())) == 6


# randomness of a step


def test_dropout_acts_in_training_alone_and_by_key():
    graph, recipe = six_nodes(), PLAIN.replace(dropout=0.5, hidden=16)
    model = GCNLPA(recipe, graph)
    one, same, other = (model.loss(graph, TRAIN, key).gcn.item() for key in (Key(0, 1), Key(0, 1), Key(0, 2)))
    assert one == same != other
    assert model.loss(graph, TRAIN, Key(1, 1)).gcn.item() not in (one, other)
    assert torch.equal(model(graph), GCNLPA(recipe.replace(dropout=0.0), graph)(graph))
    torch.testing.assert_close(model.loss(graph, TRAIN).gcn, F.cross_entropy(model(graph)[TRAIN], graph.y[TRAIN]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("normalization", ["row", "symmetric"])
def test_eval_never_drops_out_with_or_without_a_key(loss, normalization):
    """Features, hidden layers and edges: in eval mode the loss is that of a recipe without any dropout."""
    recipe = PLAIN.replace(edges="agnn", loss=loss, lpa_weight=1.0, normalization=normalization, hidden=16)
    drops = recipe.replace(dropout=0.5, feature_dropout=0.4, edge_dropout=0.3)
    graph = six_nodes()
    model, without = GCNLPA(drops, graph), GCNLPA(recipe, graph)
    for key in (Key(3, 1), Key(3, 2), None):
        model.eval()
        expected = without.loss(graph, TRAIN, key)
        assert [term.item() for term in model.loss(graph, TRAIN, key)[:2]] == [term.item() for term in expected[:2]]
        model.train()
        assert (model.loss(graph, TRAIN, key).gcn.item() == expected.gcn.item()) == (key is None)


def test_feature_dropout_is_that_of_the_first_layer():
    graph = six_nodes()
    model = GCNLPA(PLAIN.replace(gcn_layers=3, dropout=0.5, feature_dropout=0.1), graph)
    assert [model.body.dropout_rate(k) for k in range(3)] == [0.1, 0.5, 0.5]
    model = GCNLPA(PLAIN.replace(gcn_layers=3, dropout=0.5), graph)
    assert [model.body.dropout_rate(k) for k in range(3)] == [0.5, 0.5, 0.5]


def test_rows_still_sum_to_one_when_edges_are_left_out():
    dense = random_walk(200)
    walk = sparse_of(dense)
    thin = drop_edges(walk, 0.4, Key(1, 2))
    torch.testing.assert_close(thin.row_sums(), torch.ones(200).double())
    assert (thin.diagonal() > 0).all()  # self-loops stay
    off = walk.pattern.row != walk.pattern.col
    left_out = (thin.values[off] == 0).double().mean().item()
    assert abs(left_out - 0.4) < 5 * math.sqrt(0.24 / off.sum().item())
    kept = thin.values > 0
    ratio = thin.values[kept] / walk.values[kept]  # what is left keeps its proportions
    assert torch.allclose(ratio, (1 / walk.with_values(walk.values * kept).row_sums())[walk.pattern.row[kept].long()])
    assert drop_edges(walk, 0.4, None) is walk
    assert drop_edges(walk, 0.0, Key(1)) is walk


def test_a_row_that_keeps_almost_nothing_still_sums_to_one():
    """All the weight is on the edge that is left out; what remains, 1e-9, becomes the whole."""
    dense = torch.tensor([[1e-9, 1 - 1e-9], [0.5, 0.5]]).double()
    walk = sparse_of(dense)
    rows = [drop_edges(walk, 0.5, Key(0, step)).row_sums()[0].item() for step in range(10)]
    assert rows == pytest.approx([1.0] * 10)


@pytest.mark.parametrize("normalization", ["row", "symmetric"])
def test_edge_dropout_reaches_the_convolution(normalization):
    graph = six_nodes()
    model = GCNLPA(PLAIN.replace(edge_dropout=0.5, normalization=normalization), graph)
    costs = {model.loss(graph, TRAIN, Key(0, step)).gcn.item() for step in range(8)}
    assert len(costs) > 1
    torch.testing.assert_close(model.loss(graph, TRAIN).gcn, F.cross_entropy(model(graph)[TRAIN], graph.y[TRAIN]))


# graphs at the edge of what is defined


HARD = {
    "isolated node": Graph.from_edges([(0, 1)], x=[[1.0], [2.0], [3.0]], y=[0, 1, 0]),
    "no edges": Graph.from_edges([], x=[[1.0], [2.0], [3.0]], y=[0, 1, 0]),
    "one class": Graph.from_edges([(0, 1), (1, 2)], x=[[1.0], [2.0], [3.0]], y=[0, 0, 0]),
    "a class without labels": Graph.from_edges(
        [(0, 1), (1, 2)], x=[[1.0], [2.0], [3.0]], y=[0, 1, 1], class_names=("a", "b", "c")
    ),
    "no features": Graph.from_edges([(0, 1), (1, 2)], x=[[0.0], [0.0], [0.0]], y=[0, 1, 0]),
}


@pytest.mark.parametrize("normalization", ["row", "symmetric"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", HARD)
def test_odd_graphs_have_finite_losses_and_gradients(case, loss, normalization):
    graph = HARD[case]
    for edges in ("free", "agnn", "gaussian"):
        recipe = LAYERS.replace(loss=loss, edges=edges, normalization=normalization, lpa_iterations=2, edge_dropout=0.5)
        model = GCNLPA(recipe, graph)
        cost = model.loss(graph, torch.tensor([0, 1, 2]), Key(0)).total
        cost.backward()
        assert cost.isfinite()
        assert model(graph).softmax(1).sum(1).tolist() == pytest.approx([1, 1, 1])
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("loss", ["literal", "official", "held_out", "influence"])
def test_labels_that_walk_in_blocks_of_classes_give_the_same_loss_and_gradient(monkeypatch, loss):
    """The other road: all classes at once. 7 classes in blocks of 3, 3 and 1 walk twice, and keep nothing in between."""
    widths = []

    def watched(transition, seeds, *arguments, **options):
        widths.append(seeds.shape[1])
        return propagate_labels(transition, seeds, *arguments, **options)

    monkeypatch.setattr("gcn_lpa.model.propagate_labels", watched)
    generator = np.random.default_rng(0)
    edges = generator.integers(0, 60, (300, 2))
    graph = Graph.from_edges(edges, num_nodes=60, y=np.arange(60) % 7).with_self_loops()
    recipe = Recipe(edges="free", loss=loss, lpa_iterations=4, features="raw")
    found = {}
    for name, most in {"at once": 2**28, "in blocks": 3 * 4 * 60}.items():
        monkeypatch.setattr("gcn_lpa.engine.class_blocks.MOST_KEPT", most)
        scores = torch.randn(graph.pattern.num_entries, generator=torch.Generator().manual_seed(0)).double()
        scores.requires_grad_()
        transition = SparseMatrix(graph.pattern, scores).row_softmax()
        labels = labels_of(graph.y, torch.arange(0, 60, 2), 7, 1.0, 0, torch.float64, graph.pattern)
        cost = lpa_loss(transition, labels, recipe, Key(3, 1))
        cost.backward()
        found[name] = cost.detach(), scores.grad
    assert (widths[0], sorted(widths[1:])) == (7, [1, 1, 3, 3, 3, 3])
    for one, other in zip(*found.values(), strict=True):
        assert (one - other).abs().max() <= 1e-12 * one.abs().max()


def test_the_block_of_classes_keeps_the_steps_within_bounds():
    assert class_block(1000, 40, 5) == 40  # all: little is kept
    assert class_block(111e6 / 16, 172, 5) == 7  # 7 · 5 · 6,937,500 < 2²⁸ < 8 · 5 · 6,937,500
    assert class_block(1e10, 172, 5) == 1


@pytest.mark.parametrize("options", [{}, {"residual": True, "bias": True}, {"aggregation": "max", "edges": "free"}])
def test_a_large_layer_without_a_gradient_is_that_of_all_columns_at_once(options, monkeypatch):
    """In blocks of 3 of 8 columns; with identity features W itself is a product, and stays as it is."""
    for x in (FEATURES, scipy.sparse.csr_array(FEATURES), np.eye(6)):
        graph = six_nodes(x=x)
        model, graph = random_model(PLAIN.replace(hidden=8, gcn_layers=3, **options), graph), in_float64(graph)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        expected = model(graph)
        monkeypatch.setattr(class_blocks, "FEW", 10)
        monkeypatch.setattr(class_blocks, "COLUMNS", 3)
        with torch.no_grad():
            torch.testing.assert_close(model(graph), expected)
        monkeypatch.undo()
        assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("changes", [{"dropout": 0.0}, {"bias": True}], ids=["training", "prediction"])
def test_where_nothing_is_joined_a_layer_leaves_its_weights_alone(changes):
    """Neither columns nor edges: the identity times the identity times W is W itself, and layers work in place."""
    bare = Graph.from_edges(np.empty((0, 2), dtype=int), num_nodes=6, y=[0, 1, 0, 1, 0, 1])
    recipe = WITHOUT_FEATURES.replace(edges="fixed", lpa_weight=0.0, **changes)
    prepared = recipe.prepare(bare)
    model = GCNLPA(recipe, prepared, 0)
    for parameter in model.parameters():
        parameter.data.sub_(0.1)  # some are negative: relu would show
    before = [parameter.detach().clone() for parameter in model.parameters()]
    first = model(prepared).detach().clone()
    model.train()
    model.loss(prepared, torch.tensor([0, 1]), Key(0)).total.backward()
    model.eval()
    assert all(torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))
    assert torch.equal(model(prepared), first)
