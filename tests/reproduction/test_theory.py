"""What holds of the paper's statements and what does not, on graphs small enough to know the answer."""

import json
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch

from gcn_lpa.cli.app import app as library
from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn
from gcn_lpa.recipes import WITHOUT_FEATURES
from reproduction.checks import walk_matrix
from reproduction.commands import app
from reproduction.counterexamples import COUNTEREXAMPLES, diamond, double_star, line, ring, star
from reproduction.energy import energy, worst_features
from reproduction.lemmas import jacobian
from reproduction.rebuilding import locally_linear, simplex_fit
from reproduction.theorems import (
    THEOREMS,
    check_theorems,
    cumulative_feature_influence,
    expected_label_influence,
)


@pytest.fixture(scope="module")
def found():
    """Every check on the karate club, by name and graph."""
    from gcn_lpa.data.datasets import load

    checks = check_theorems(load("karate"))
    return {(check.name, check.on): check for check in checks}


def fractions_of(graph):
    """D⁻¹A with self-loops in exact arithmetic."""
    dense = graph.with_self_loops().adjacency.to_dense().tolist()
    return [[Fraction(value) / Fraction(sum(row)) for value in row] for row in dense]


def exact_energy(walk, x):
    n = len(x)
    return sum(walk[i][j] * (x[i] - x[j]) ** 2 for i in range(n) for j in range(n)) / 2


def test_theorem_4_is_false_on_the_double_star():
    """D(x) = 1/2 and D(h) = 33/64, in fractions and in float64."""
    graph = double_star()
    walk, x = fractions_of(graph), [Fraction(int(value)) for value in graph.x.flatten().tolist()]
    h = [sum(a * b for a, b in zip(row, x, strict=True)) for row in walk]
    assert (exact_energy(walk, x), exact_energy(walk, h)) == (Fraction(1, 2), Fraction(33, 64))
    transition, features = walk_matrix(graph), graph.x.double()
    assert float(energy(transition, features)) == 1 / 2
    assert float(energy(transition, transition @ features)) == 33 / 64


def test_theorem_4_is_reported_false_there_and_its_symmetric_form_true(found):
    printed, symmetric = (found[f"Theorem 4, {name}", "double star"] for name in ("D(h) ≤ D(x), as printed", "E(h) ≤ E(x)"))
    assert (printed.lhs, printed.rhs, printed.gap, printed.holds) == (33 / 64, 1 / 2, 1 / 64, False)
    assert (symmetric.lhs, symmetric.rhs, symmetric.holds) == (3.0, 4.0, True)
    worst = found["Theorem 4, D(h) ≤ D(x) for every x", "double star"]
    assert worst.lhs / worst.rhs > 33 / 32  # no x does better than the worst


def test_the_worst_features_are_those_of_a_dense_solver():
    """The largest eigenvalue of H^-½ Tᵀ H T H^-½ where H is not 0."""
    transition = walk_matrix(double_star())
    dense, x = transition.to_dense(), worst_features(transition)
    both = dense + dense.T
    values, vectors = torch.linalg.eigh(torch.diag(both.sum(dim=1)) - both)
    basis = vectors[:, 1:] / values[1:].sqrt()  # one component: one constant vector
    moved = dense @ basis
    largest = torch.linalg.eigvalsh(moved.T @ (torch.diag(both.sum(dim=1)) - both) @ moved)[-1]
    ratio = energy(transition, transition @ x) / energy(transition, x)
    torch.testing.assert_close(ratio, largest, rtol=1e-6, atol=0)


def test_lemma_3_drops_half_of_the_gradient(found):
    """At a hub of the double star, x = 1: h = 3/4; ∂D/∂x = (1/8 + 1/8)·2 = 1/2, so x - ∂D/∂x = 1/2."""
    printed = found["Lemma 3, as printed", "double star"]
    assert (abs(printed.lhs), abs(printed.rhs), printed.holds) == (0.75, 0.5, False)
    assert found["Lemma 3, h = x - ½D⁻¹∇E", "double star"].holds
    assert found["Lemma 3, h = x - ½D⁻¹∇E", "karate"].holds


def test_lemma_4_is_false_on_the_star(found):
    """x = 6 at the hub and -1 at its leaves is an eigenvector of the true Hessian with eigenvalue 7(1/7 + 1/2) = 9/2."""
    walk = fractions_of(star())
    both = [[walk[i][j] + walk[j][i] for j in range(7)] for i in range(7)]
    x = [6, -1, -1, -1, -1, -1, -1]
    hx = [sum(both[i][j] * (x[i] - x[j]) for j in range(7)) for i in range(7)]
    assert hx == [Fraction(9, 2) * value for value in x]
    printed = found["Lemma 4, as printed", "star"]
    assert printed.lhs == pytest.approx(4.5, abs=1e-12)
    assert printed.gap == pytest.approx(2.5, abs=1e-12)  # the eigenvalue -2.5 of 2I - ∇²D
    assert not printed.holds
    assert found["Lemma 4, ½∇²E ⪯ 2D", "star"].holds


def test_where_all_nodes_have_one_degree_the_lemmas_hold_with_each_edge_counted_once(found):
    """A ring of six with self-loops, x = ±1 in turn: h = -x/3, D(x) = 8, D(h) = 8/9, ∇D = 8x/3, ½∇²D = I - D⁻¹A."""
    walk, x = fractions_of(ring()), [Fraction(int(value)) for value in ring().x.flatten().tolist()]
    h = [sum(a * b for a, b in zip(row, x, strict=True)) for row in walk]
    assert h == [-value / 3 for value in x]
    assert (exact_energy(walk, x), exact_energy(walk, h)) == (8, Fraction(8, 9))
    step = found["Lemma 3, h = x - ½∇D", "ring"]
    assert (abs(step.lhs), step.holds) == (pytest.approx(1 / 3), True)
    bound = found["Lemma 4, ½∇²D ⪯ 2I", "ring"]
    assert (bound.lhs, bound.holds) == (pytest.approx(4 / 3), True)  # x itself is the eigenvector
    printed = found["Theorem 4, D(h) ≤ D(x), as printed", "ring"]
    assert (printed.lhs, printed.rhs, printed.holds) == (pytest.approx(8 / 9), pytest.approx(8), True)
    assert found["Theorem 4, D(h) ≤ D(x) for every x", "ring"].holds


def test_theorem_4_holds_up_to_the_ratio_of_degrees(found):
    """Hubs of the double star have degree 8 with their self-loops, leaves 2."""
    bound = found["Theorem 4, D(h) ≤ (d_max / d_min) D(x)", "double star"]
    assert (bound.lhs, bound.rhs, bound.holds) == (33 / 64, 8 / 2 * 1 / 2, True)


def test_theorem_2_with_one_power_less_is_exact_for_two_steps_without_self_loops():
    """From 0 to 2: one step, 1/2; two steps through 3, 1/2 · 1/3, open with probability β = 1/2."""
    bare = diamond(self_loops=False).adjacency.to(torch.float64).row_normalized()
    exact = expected_label_influence(bare, 0, 2, 2, 0.5)
    assert exact == pytest.approx(1 / 2 + 1 / 2 * 1 / 3 * 1 / 2, abs=1e-15)
    one_less = cumulative_feature_influence(bare, torch.tensor([0]), 2, [1.0, 0.5])[0, 2]
    assert float(one_less) == pytest.approx(exact, abs=1e-15)


@pytest.mark.parametrize(("places", "weights"), [((-1.0, 2.0), (2 / 3, 1 / 3)), ((1.0, 3.0), (3 / 2, -1 / 2))])
def test_lle_rebuilds_a_point_of_a_line_from_any_two_neighbours(places, weights):
    """A point at 0: between its neighbours with weights that are shares, beside them with one that is negative."""
    x = np.array([[0.0], *([place] for place in places)])
    graph = Graph.from_edges([(0, 1), (0, 2)], x=x, y=[0, 0, 1], name="line")
    found = locally_linear(graph, scipy.sparse.csr_array(x), torch.tensor([0]), ridge=1e-12)
    assert found[0].tolist() == pytest.approx([0, *weights], abs=1e-6)


def test_the_steps_of_appendix_a_hold_where_the_mapping_is_known(found):
    steps = [check for (name, _), check in found.items() if name.startswith("Appendix A")]
    assert len(steps) == 3
    assert all(check.holds for check in steps)
    error, bound = found["Theorem 1, known mapping", "400 points in a square"].lhs, steps[1].rhs + steps[2].rhs
    assert error <= steps[1].lhs + steps[2].lhs <= bound  # |y_i - Σ ã_ij y_j| by the triangle inequality


def test_theorem_2_on_the_diamond(found):
    """Node 0 unlabelled, node 2 labelled, β = 1/2. One step: 1/3. Three steps, worked by hand over the four label patterns."""
    small = walk_matrix(diamond())
    assert expected_label_influence(small, 0, 2, 1, 0.5) == pytest.approx(1 / 3, abs=1e-15)
    walk, exact = fractions_of(diamond()), Fraction(0)
    for one, three in ((False, False), (False, True), (True, False), (True, True)):
        at = [Fraction(1), Fraction(0), Fraction(0), Fraction(0)]
        ends = [False, one, True, three]
        for _ in range(3):
            at = [sum(at[i] * walk[i][j] for i in range(4)) for j in range(4)]
            exact += at[2] / 4
            at = [Fraction(0) if ends[j] else at[j] for j in range(4)]
    assert expected_label_influence(small, 0, 2, 3, 0.5) == pytest.approx(float(exact), abs=1e-15)
    assert round(float(exact), 3) == 0.568
    printed, shifted = (
        float(cumulative_feature_influence(small, torch.tensor([0]), 3, factors)[0, 2])
        for factors in ([1 / 2, 1 / 4, 1 / 8], [1, 1 / 2, 1 / 4])
    )
    assert (round(printed, 3), round(shifted, 3)) == (0.272, 0.544)
    checks = [check for check in check_theorems(diamond_with_labels(), ["theorem-2"]) if check.on == "diamond"]
    assert [check.holds for check in checks] == [False, True, False, True, False, False]
    assert [round(check.rhs, 3) for check in checks] == [0.167, 0.333, 0.292, 0.583, 0.272, 0.544]


def diamond_with_labels():
    edges = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5)]
    return Graph.from_edges(edges, y=[0, 0, 1, 1, 0, 1], name="six")


def test_theorem_2_by_drawing_agrees_with_going_through_all_patterns():
    """Σ_b over all v_b of a path, exact, within the interval that the check prints."""
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4)], y=[0, 1, 0, 1, 0], name="path")
    (drawn, _) = check_theorems(graph, ["theorem-2"])[-2:]
    transition = walk_matrix(graph)
    exact = np.mean([sum(expected_label_influence(transition, a, b, 5, 0.4) for b in range(5) if b != a) for a in range(5)])
    spread = float(drawn.assumptions.split("± ")[1].split(" ")[0])
    assert abs(drawn.lhs - exact) < 2 * spread < 0.1


def test_theorem_3_probability_and_influence_order_weights_differently(found):
    check = found["Theorem 3, more Pr is more influence", "dead end; two sides"]
    assert check.lhs == pytest.approx((1.0, 0.6))
    assert check.rhs == pytest.approx((0.1, 0.6))
    assert not check.holds
    assert found["Theorem 3, y_a[c] = Σ I_l", "karate"].holds
    assert not found["Theorem 3, Σ I_l ∝ Pr", "karate"].holds


def test_theorem_1_needs_its_remainder(found):
    """On the line ε = 0, and the error is |sin x| (1 - cos h), which is o(h) but not 0."""
    points = line(1.0).x.double().flatten()[1:-1]
    expected = float((points.sin().abs() * (1 - np.cos(1.0))).max())
    check = found["Theorem 1, without the remainder", "line"]
    assert check.lhs == pytest.approx(expected, abs=1e-6)
    assert not check.holds
    assert found["Theorem 1, the error is o(spacing)", "line"].holds
    assert found["Theorem 1, known mapping", "400 points in a square"].holds


def test_more_hops_rebuild_features_better_by_least_squares_but_not_to_zero(found):
    check = found["Theorem 1, ‖ε‖ → 0 by choice of weights: least-squares", "karate"]
    assert all(after <= before + 1e-12 for before, after in zip(check.lhs, check.lhs[1:], strict=False))
    assert not check.holds


def test_simplex_weights_are_those_of_a_general_solver():
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(6, 4)), rng.normal(size=4)
    found = simplex_fit(scipy.sparse.csr_array(rows), target, np.full(6, 1 / 6), steps=3000)
    best = scipy.optimize.minimize(
        lambda w: ((w @ rows - target) ** 2).sum(),
        np.full(6, 1 / 6),
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_eq_4_holds_on_unlabelled_nodes_only(found):
    assert found["Eq. 4, unlabelled nodes", "karate"].holds
    assert not found["Eq. 4, every node, as printed", "karate"].holds


def test_eq_5_ends_at_one_number_per_component():
    """Two components: two limits, the means by degree."""
    graph = Graph.from_edges([(0, 1), (1, 2), (3, 4)], x=[[0.0], [3.0], [9.0], [1.0], [5.0]], y=[0, 0, 1, 1, 0], name="two")
    mean, fades = check_theorems(graph, ["eq-5"])
    assert mean.holds
    assert fades.holds
    assert fades.lhs[-1] < 1e-12
    transition = walk_matrix(graph)
    limit = torch.linalg.matrix_power(transition.to_dense(), 4096) @ graph.x.double()
    expected = [27 / 7] * 3 + [3.0] * 2  # degrees with self-loops 2, 3, 2: (0·2 + 3·3 + 9·2) / 7
    torch.testing.assert_close(limit.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_the_jacobian_is_that_of_finite_differences():
    rng = np.random.default_rng(3)
    dense = rng.random((5, 5)) + np.eye(5)
    transition = SparseMatrix.from_scipy(dense / dense.sum(axis=1, keepdims=True), torch.float64)
    x, weights = rng.normal(size=(5, 3)), [torch.from_numpy(rng.normal(size=shape)) for shape in ((3, 4), (4, 2))]

    def output(features):
        hidden = torch.relu(transition @ (torch.from_numpy(features) @ weights[0]))
        return (transition @ (hidden @ weights[1]))[1].numpy()

    found = jacobian(transition, scipy.sparse.csr_array(x), weights, 1, torch.arange(5), torch.relu)
    for b, d in np.ndindex(5, 3):
        step = np.zeros((5, 3))
        step[b, d] = 1e-6
        slope = (output(x + step) - output(x - step)) / 2e-6
        np.testing.assert_allclose(found[:, b, d].numpy(), slope, atol=1e-7)


def test_lemma_1_is_exact_without_an_activation(found):
    assert found["Lemma 1, no σ", "karate"].holds
    assert found["Lemma 1, each gate open by a coin", "karate"].holds
    assert not found["Lemma 1, ReLU, W fixed", "karate"].holds
    assert not found["Lemma 1, ã indexed as printed", "karate"].holds


def test_lemma_2_is_exact(found):
    assert found["Lemma 2", "karate"].gap < 1e-12
    assert not found["Lemma 2, ã indexed as printed", "karate"].holds


@pytest.mark.long
def test_a_trained_model_adds_its_edges_and_layers(karate):
    recipe, parts = WITHOUT_FEATURES.replace(epochs=5), split(karate)
    fitted = learn(karate, parts.train, parts.val, recipe, device="cpu")
    checks = check_theorems(karate, ["theorem-1", "theorem-4", "lemma-1"], fitted.model.first[0])
    names = [check.name for check in checks]
    assert "Theorem 1, learned weights" in names
    assert "Lemma 1, trained" in names
    layers = [check for check in checks if "trained model's edges, input of layer" in check.assumptions]
    assert len(layers) == 3 * recipe.gcn_layers
    assert all(check.holds for check in layers if check.name == "Theorem 4, E(h) ≤ E(x)")


@pytest.mark.long
def test_the_same_seed_gives_the_same_checks(karate):
    names = ["theorem-1", "theorem-2", "theorem-3", "lemma-4"]
    assert check_theorems(karate, names, seed=3) == check_theorems(karate, names, seed=3)


def test_a_check_is_plain_data(found):
    for check in found.values():
        assert json.loads(json.dumps(check.to_dict(), allow_nan=False))["name"] == check.name


def test_every_counterexample_is_a_small_graph():
    assert all(build().num_nodes <= 14 for build in COUNTEREXAMPLES.values())


def test_an_unknown_check_is_answered_with_those_there_are(karate):
    with pytest.raises(ValueError, match=f"there is no check 'theorem-5'; there are {', '.join(THEOREMS)}"):
        check_theorems(karate, "theorem-5")
    with pytest.raises(TypeError, match="model is a GCNLPA, or None, not Linear"):
        check_theorems(karate, "theorem-4", torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"graph is a gcn_lpa.Graph, such as load gives, not 'karate'"):
        check_theorems("karate")
    with pytest.raises(ValueError, match="too few labels"):
        check_theorems(Graph.from_edges([(0, 1)], y=[0, 1]))


def test_the_command_prints_both_sides_and_what_holds(capsys):
    assert run_command(["measure", "--check", "theorem-4", "--check", "theorem-2", "--no-train"]) == 0
    text = capsys.readouterr().out
    assert "Theorem 4, D(h) ≤ D(x), as printed [double star]: DOES NOT HOLD\n    0.515625 ≤ 0.5    gap 0.0156\n" in text
    assert "Theorem 2, β^(j-1) [diamond]: holds\n    0.333333 = 0.333333    gap 0\n" in text
    assert "hold as measured" in text


def test_the_command_speaks_json_and_nothing_else(capsys):
    assert run_command(["measure", "karate", "--check", "lemma-2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["graph"] == "karate"
    assert told["checks"][0]["holds"] is True


@pytest.mark.long
def test_the_command_takes_a_run_folder(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert run_command(["train", "karate", "--epochs", "3", "--out", folder], library) == 0
    assert run_command(["measure", folder, "--check", "theorem-1"]) == 0
    assert "learned weights [karate]" in capsys.readouterr().out


def test_an_unknown_check_is_a_failure_of_one_line(capsys):
    assert run_command(["measure", "--check", "theorem-5"]) == 1
    assert capsys.readouterr().err.startswith("gcn-lpa: there is no check 'theorem-5'; there are eq-4, ")


def run_command(arguments, of=app):
    with pytest.raises(SystemExit) as end:
        of(arguments)
    return end.value.code
