"""The figures: what they count is known by another road, and the same seed draws the same bytes."""

import itertools
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from gcn_lpa.graph import Graph
from gcn_lpa.propagation import propagate_labels
from reproduction import figure1, figure6, karate, karate_figures, sweeps, verdicts
from reproduction.aggregation import AggregatingGCNLPA
from reproduction.claims import CLAIMS, KARATE, Case
from reproduction.exhibits import Exhibit
from reproduction.karate import best_line, network, noisy_edges

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize(
    ("points", "y", "wrong"),
    [
        (SQUARE, [0, 0, 1, 1], 0),
        (SQUARE, [0, 1, 0, 1], 0),
        (SQUARE, [0, 1, 1, 0], 1),  # exclusive or: one corner must be given up
        ([[0, 0], [1, 1], [2, 2], [3, 3]], [0, 1, 0, 1], 1),  # on one line
        ([[0, 0], [0, 0], [1, 0]], [0, 1, 1], 1),  # two classes on one spot
        ([[1, 1], [1, 1], [1, 1]], [0, 1, 1], 1),  # all on one spot
        ([*SQUARE, [0.5, 0.5]], [0, 0, 0, 0, 1], 1),  # enclosed: better to call all of them 0
        (
            [[0, 0], [4, 0], [0, 4], [1, 1], [1.2, 1], [1, 1.2]],
            [0, 0, 0, 1, 1, 1],
            1,
        ),  # triangle in a triangle: one corner
    ],
)
def test_the_best_line_on_points_one_can_draw(points, y, wrong):
    points, y = np.array(points, dtype=float), np.array(y)
    line = best_line(points, y)
    assert line.num_wrong == wrong
    side = points @ line.normal > line.offset
    assert line.wrong.tolist() in ((side != y).tolist(), (side == y).tolist())


def separable_by_linear_program(points, y):
    """Whether w, b with s_i (w x_i + b) >= 1 exist, s_i = ±1 by class."""
    sign = np.where(y == 1, 1.0, -1.0)[:, None]
    constraints = -sign * np.hstack([points, np.ones((len(points), 1))])
    return linprog(np.zeros(3), A_ub=constraints, b_ub=-np.ones(len(points)), bounds=(None, None)).status == 0


def fewest_wrong_by_subsets(points, y):
    """The size of the smallest set without which a linear program can separate the rest."""
    n = len(points)
    for size in range(n):
        for left_out in itertools.combinations(range(n), size):
            keep = np.setdiff1d(np.arange(n), left_out)
            if separable_by_linear_program(points[keep], y[keep]):
                return size
    raise AssertionError("a single point is separable")


@pytest.mark.long
def test_the_best_line_agrees_with_a_linear_program():
    rng = np.random.default_rng(0)
    for trial in range(25):
        points, y = rng.normal(size=(8, 2)), np.arange(8) % 2
        points += 0.8 * y[:, None] * (trial % 3)
        assert best_line(points, y).num_wrong == fewest_wrong_by_subsets(points, y)


def test_the_best_line_does_not_care_for_an_affine_map():
    rng = np.random.default_rng(1)
    for _ in range(20):
        points, y = rng.normal(size=(34, 2)), rng.integers(0, 2, size=34)
        mapped = points @ np.array([[1.0, 0.99], [0.0, 2e-2]]) + [5.0, -3.0]
        assert best_line(mapped, y).num_wrong == best_line(points, y).num_wrong


def test_a_cloud_too_thin_to_see_is_a_line():
    along, aside = np.arange(6.0), np.array([0, 1, 0, 1, 0, 1])
    for width, wrong in ((0.1, 0), (1e-4, 2)):  # alternating classes: a line along the cloud parts them, none across it
        assert best_line(np.stack([along, width * aside], axis=1), aside).num_wrong == wrong


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twenty_noisy_edges_join_the_classes(karate, seed):
    edges, y = noisy_edges(karate, 20, seed), karate.y.numpy()
    assert len({tuple(sorted(edge)) for edge in edges.tolist()}) == 20
    assert (y[edges[:, 0]] != y[edges[:, 1]]).all()
    before, after = karate.to_scipy().toarray() != 0, network("noisy", seed).to_scipy().toarray() != 0
    assert not before[edges[:, 0], edges[:, 1]].any()
    added = after & ~before
    assert added.sum() == 40
    assert added[edges[:, 0], edges[:, 1]].all()
    assert (before <= after).all()


def test_other_seeds_draw_other_noise(karate):
    assert noisy_edges(karate, 20, 0).tolist() == noisy_edges(karate, 20, 0).tolist()
    assert noisy_edges(karate, 20, 0).tolist() != noisy_edges(karate, 20, 1).tolist()


def test_too_much_noise_is_refused(two_cliques):
    assert len(noisy_edges(two_cliques, 15, 0)) == 15
    with pytest.raises(ValueError, match="16 noisy edges are asked for, but only 15 pairs"):
        noisy_edges(two_cliques, 16, 0)
    with pytest.raises(ValueError, match="unknown network 'loud'; there are original, noisy"):
        network("loud", 0)


@pytest.mark.parametrize("kind", karate.NETWORKS)
def test_edges_inside_a_class_are_ten_times_stronger(kind):
    plain, strong = (network(kind, 4, strengthening=s).to_scipy().toarray() for s in (1.0, KARATE.strengthening))
    y = network(kind, 4).y.numpy()
    same = y[:, None] == y[None, :]
    assert (strong[same] == 10 * plain[same]).all()
    assert (strong[~same] == plain[~same]).all()
    assert set(plain.ravel()) == {0, 1}
    assert plain.sum() / 2 == 78 + (20 if kind == "noisy" else 0)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_untrained_embedding_is_the_formula_of_the_paper(layers):
    """X ← σ(D⁻¹A X W), from X = I, with A by hand and the W of the model."""
    case, seed = Case("gcn-lpa", "noisy", layers), 3
    graph = network("noisy", seed)
    y = graph.y.numpy()
    A = graph.to_scipy().toarray() * np.where(y[:, None] == y[None, :], 10.0, 1.0) + np.eye(34)
    model = AggregatingGCNLPA(karate.untrained_recipe(layers), graph, seed)
    assert [tuple(w.shape) for w in model.body.weights] == [(34, 2), *[(2, 2)] * (layers - 1)]
    assert all(w.abs().max() <= 1 for w in model.body.weights)
    x = np.eye(34)
    for weight in model.body.weights:
        x = 1 / (1 + np.exp(-(A / A.sum(axis=1, keepdims=True)) @ x @ weight.detach().double().numpy()))
    assert karate.untrained(case, seed).points == pytest.approx(x, abs=1e-12)


def test_methods_share_their_weights_and_noise():
    gcn, stronger = (karate.untrained_recipe(2), karate.untrained_recipe(2))
    graph = network("noisy", 5)
    assert gcn == stronger
    one, other = AggregatingGCNLPA(gcn, graph, 5), AggregatingGCNLPA(stronger, graph, 5)
    assert all(torch.equal(a, b) for a, b in zip(one.body.weights, other.body.weights, strict=True))


def test_a_trained_embedding_learns_its_labels():
    found = karate.trained(Case("gcn", "original", 1), 0, 60)
    assert found.line.num_wrong == 0
    assert found.test_accuracy > 0.8


def test_the_recipes_of_trained_models_differ_in_their_edges_only():
    recipes = {name: karate.trained_recipe(name, 2, 200).to_dict() for name in karate.TRAINED}
    changed = {key for key in recipes["gcn"] if len({str(recipe[key]) for recipe in recipes.values()}) > 1}
    assert changed == {"edges", "lpa_weight", "loss"}
    assert recipes["gcn-lpa"]["edges"] == "free"
    assert recipes["gcn-lpa"]["loss"] == "literal"


def test_a_tally_counts_separable_starts():
    embeddings = [karate.untrained(Case("gcn-lpa", "original", 4), seed) for seed in range(10)]
    cell = karate.tally(Case("gcn-lpa", "original", 4), embeddings)
    assert cell["starts"] == 10
    assert cell["separable"] == sum(wrong == 0 for wrong in cell["wrong"]) / 10
    y = network("original", 0).y.numpy()
    assert [wrong == 0 for wrong in cell["wrong"]] == [separable_by_linear_program(e.points * 1e3, y) for e in embeddings]
    p, z = cell["separable"], 1.959964  # Wilson's interval
    middle = (p + z**2 / 20) / (1 + z**2 / 10)
    half = z / (1 + z**2 / 10) * np.sqrt(p * (1 - p) / 10 + z**2 / 400)
    assert cell["separable_interval"] == pytest.approx([middle - half, middle + half], abs=1e-6)
    assert karate.find_tally([cell], Case("gcn-lpa", "original", 4)) is cell
    with pytest.raises(ValueError, match="no starts of"):
        karate.find_tally([cell], Case("gcn", "original", 4))


def test_the_typical_start_is_nearest_to_the_means():
    cells = [{"wrong": [0, 3, 9]}, {"wrong": [8, 3, 4]}]  # means 4 and 5: distances 4 + 3, 1 + 2, 5 + 1
    assert karate.typical_start(cells) == 1


def test_figure6_has_the_waves_of_the_caption():
    """By hand: v_b reaches v_1 at once, v_2 and v_a one iteration later, and never passes v_3."""
    arrows = {(hop.iteration, hop.wave): [] for hop in figure6.hops(3)}
    for hop in figure6.hops(3):
        arrows[hop.iteration, hop.wave].append((hop.source + hop.target, hop.cut))
    assert arrows[1, 1] == arrows[2, 2] == arrows[3, 3] == [("b1", False), ("b3", True)]
    assert arrows[2, 1] == arrows[3, 2] == [("1b", True), ("12", False), ("1a", False)]
    assert arrows[3, 1] == [("21", False), ("2a", False), ("a1", False), ("a2", False), ("a3", True)]


def test_figure6_lists_every_path_to_a():
    nodes = "b123a"
    neighbors = {frozenset(edge) for edge in figure6.SMALL_EDGES}
    walks = [
        ("b", *middle, "a")
        for length in (1, 2, 3)
        for middle in itertools.product(nodes, repeat=length - 1)
        if all(frozenset(step) in neighbors for step in itertools.pairwise(("b", *middle, "a"))) and not set(middle) & {"b", "3"}
    ]
    assert figure6.paths(3) == walks == [("b", "1", "a"), ("b", "1", "2", "a")]
    assert [figure6.weight_of(walk) for walk in walks] == [Fraction(1, 9), Fraction(1, 18)]


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5])
def test_the_waves_add_up_to_label_propagation(iterations):
    graph = Graph.from_edges(figure6.SMALL_EDGES, node_names=list(figure6.SMALL_PLACES))
    seeds = torch.zeros(5, 2)
    seeds[graph.index_of("b"), 0] = seeds[graph.index_of("3"), 1] = 1
    y = propagate_labels(graph.adjacency.row_normalized(), seeds, iterations)
    for node in "12a":
        arrived = sum(h.mass for h in figure6.hops(iterations) if h.iteration == iterations and h.target == node)
        assert float(arrived) == pytest.approx(float(y[graph.index_of(node), 0]))
    total = sum(map(figure6.weight_of, figure6.paths(iterations)), Fraction(0))
    assert float(total) == pytest.approx(float(y[graph.index_of("a"), 0]))  # Lemma 2


@pytest.mark.long
def test_figure6_writes_what_it_says(tmp_path):
    found = figure6.figure6(tmp_path)
    assert found.data["influence"] == "1/6"
    assert found.data["received"] == pytest.approx([0, 1 / 9, 1 / 6])
    assert [path.name for path in found.files] == ["figure6.png", "figure6.svg"]
    json.dumps(found.data, allow_nan=False)


def test_the_toy_is_what_its_description_says():
    toy = figure1.toy_graph(0)
    y, row, col = toy.graph.y, toy.graph.row.long(), toy.graph.col.long()
    assert (toy.graph.num_nodes, toy.graph.num_edges) == (16, 32)
    assert int((y[row] != y[col]).sum()) == 2 * 6
    assert [int(toy.labeled[y == c].sum()) for c in (0, 1)] == [4, 4]


def test_an_edge_of_the_toy_is_stronger_where_its_ends_take_more():
    toy, recipe = figure1.toy_graph(1), karate.trained_recipe("gcn-lpa", 2, 5).replace(hidden=8)
    edges, accuracy = figure1.learned_edges(toy, recipe, 1)
    degree = np.bincount(toy.graph.row.numpy()) + 1  # with the self-loop
    assert len(edges) == 32
    assert all(edge.before == pytest.approx(1 / degree[edge.source] + 1 / degree[edge.target]) for edge in edges)
    assert {edge.is_stronger for edge in edges} == {True, False}
    assert 0 <= accuracy <= 1
    stronger = [edge.intra_class for edge in edges if edge.is_stronger]
    gain = sum(stronger) / len(stronger) - 26 / 32
    assert figure1._edge_facts([(edges, accuracy)])["gain"] == [pytest.approx(gain), None]
    fixed, _ = figure1.learned_edges(toy, recipe.replace(edges="fixed", lpa_weight=0.0), 1)
    assert all(edge.after == pytest.approx(edge.before) for edge in fixed)


@pytest.mark.long
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(figure1.figure1, marks=pytest.mark.slow),
        karate_figures.figure2,
        figure6.figure6,
        pytest.param(karate_figures.figure7, marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_gives_the_same_bytes(tmp_path, monkeypatch, draw):
    full = karate_figures.club
    monkeypatch.setattr(karate_figures, "club", lambda layers, **options: full(layers, **{**options, "starts": (3, 1)}))
    results = []
    for place in ("one", "two"):
        karate.untrained.cache_clear()
        karate.trained.cache_clear()
        results.append(draw(tmp_path / place, quick=True, seed=2))
    first, second = results
    assert [path.name for path in first.files] == [path.name for path in second.files]
    assert {path.suffix for path in first.files} == {".png", ".svg"}
    for one, other in zip(first.files, second.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert (first.text, first.data) == (second.text, second.data)
    json.dumps(first.data, allow_nan=False)


@pytest.mark.long
def test_the_claims_on_karate_can_be_scored():
    mine = [claim for claim in CLAIMS if claim.kind == "separable"]
    cases = {case for claim in mine for pair in claim.arguments["pairs"] for case in pair}
    cells = [karate.tally(case, [karate.untrained(case, seed) for seed in range(4)]) for case in cases]
    exhibits = {name: Exhibit(name, "", "", {"untrained": cells, "trained": cells}) for name in ("figure2", "figure7")}
    scored = {found["key"]: found for found in verdicts.score_claims(exhibits).data["claims"]}
    assert set(scored) == {claim.key for claim in mine}
    assert all(len(scored[claim.key]["effects"]) == len(claim.arguments["pairs"]) for claim in mine)
    wrong = [karate.find_tally(cells, Case(method, "noisy", 2))["wrong"] for method in ("gcn-lpa", "gcn")]
    gain = np.mean(np.equal(wrong[0], 0)) - np.mean(np.equal(wrong[1], 0))
    assert scored["karate-denoising"]["effects"][0]["value"] == pytest.approx(100 * gain)


@pytest.mark.long
def test_a_sweep_has_a_band_where_there_is_an_interval(tmp_path):
    points = [{"layers": n, "k": k, "accuracy": 70 + n + k, "interval": None if n == 2 else 0.5} for n in (1, 2) for k in (1, 2, 3)]
    files = sweeps.draw_sweep(points, "k", tmp_path / "new" / "lines.png", title="t", label="k")
    assert [path.name for path in files] == ["lines.png", "lines.svg"]
    assert files[1].read_text().count("FillBetweenPolyCollection") == 1
    assert files[1].read_text().count("<!-- layers: ") == 2  # a panel each


@pytest.mark.long
def test_drawing_leaves_the_backend_of_a_notebook_alone(tmp_path):
    """What is drawn here must not change what `pyplot` shows there."""
    code = (
        "import matplotlib, sys; matplotlib.use('svg'); from pathlib import Path; out = Path(sys.argv[1])\n"
        "from reproduction import figure6; figure6.figure6(out)\n"
        "from reproduction.timing import Timing; from reproduction.timing_report import draw_epochs\n"
        "draw_epochs({'t': [Timing('our gcn', 10, 60, 1, 1, 1.0, 1.0, False, None)]}, out / 'times.png')\n"
        "print(matplotlib.get_backend(), 'matplotlib.pyplot' in sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "svg False\n"
    assert (tmp_path / "times.png").stat().st_size > 1000
