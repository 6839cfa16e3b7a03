"""Edge forms: one contract for all of them, and each against its formula written out on six nodes."""

import dataclasses
import math
import subprocess
import sys

import pytest
import scipy.sparse
import torch

from gcn_lpa import edges
from gcn_lpa.edges import EDGE_FORMS, Bilinear, edge_form, log_softplus
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import LAYERS
from tests.helpers.small_graphs import PAIRS, in_float64, with_edge_columns

FEATURES = [
    [1.0, 0.0, 2.0, 0.5],
    [0.0, 1.0, 0.0, -1.0],
    [3.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 1.0, 2.0],
    [0.0] * 4,
    [0.5] * 4,
]
INDUCTIVE = [name for name in EDGE_FORMS if name != "free"]


def six_nodes(x=FEATURES, pairs=PAIRS):
    weights = [1 + k / 4 for k in range(len(pairs))]
    return with_edge_columns(Graph.from_edges(pairs, weights=weights, x=x, y=[0, 0, 0, 1, 1, 1], self_loops=True))


def with_sparse_features(graph):
    return dataclasses.replace(graph, x=SparseMatrix.from_scipy(scipy.sparse.csr_array(graph.x.numpy())))


def new_form(name, graph, seed=0, **settings):
    """A form as training starts with it."""
    return edge_form(LAYERS.replace(edges=name, **settings), graph, generator=torch.Generator().manual_seed(seed))


def form_of(name, graph, seed=0, **settings):
    """A form whose parameters are all random, so that nothing is zero by its start."""
    form = new_form(name, graph, seed, edge_rank=3, **settings)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in form.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=generator) / 2)
    return form


@pytest.mark.parametrize("name", EDGE_FORMS)
class TestEveryForm:
    @pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
    def test_gives_one_finite_number_per_edge(self, name, sparse, karate):
        for graph in (six_nodes(), with_edge_columns(karate.with_self_loops())):
            graph = with_sparse_features(graph) if sparse and isinstance(graph.x, torch.Tensor) else graph
            scores = form_of(name, graph)(graph)
            assert scores.shape == (graph.pattern.num_entries,)
            assert scores.dtype == torch.float32
            assert scores.isfinite().all()

    def test_leaves_a_star_positive_with_exactly_the_support_of_a(self, name):
        graph = six_nodes()
        scores = graph.adjacency.log().add(form_of(name, graph)(graph))
        assert (scores.values.exp() > 0).all()
        assert torch.equal(scores.row_softmax().to_dense() > 0, graph.adjacency.to_dense() > 0)

    def test_sends_gradients_to_every_parameter(self, name):
        graph = six_nodes()
        form = form_of(name, graph)
        scores = form(graph)
        if name == "fixed":
            assert list(form.parameters()) == []
            return
        (scores * torch.linspace(1, 2, len(scores))).sum().backward()
        for parameter in form.parameters():
            assert parameter.grad.isfinite().all()
            assert (parameter.grad != 0).all()

    def test_gradients_equal_finite_differences(self, name):
        graph = in_float64(six_nodes())
        form = form_of(name, six_nodes()).double()
        names, values = zip(*form.named_parameters(), strict=True) if name != "fixed" else ((), ())
        if values:
            call = lambda *values: torch.func.functional_call(form, dict(zip(names, values, strict=True)), (graph,))  # noqa: E731
            assert torch.autograd.gradcheck(call, tuple(value.detach().requires_grad_() for value in values))

    def test_sparse_and_dense_features_give_the_same_scores_and_gradients(self, name):
        graph, results = six_nodes(), []
        for same in (graph, with_sparse_features(graph)):
            form = form_of(name, same)
            scores = form(same)
            if name != "fixed":
                scores.square().sum().backward()
            results.append([scores, *(parameter.grad for parameter in form.parameters())])
        for dense, sparse in zip(*results, strict=True):
            torch.testing.assert_close(dense, sparse, rtol=1e-5, atol=1e-5)

    def test_works_on_a_graph_without_edges(self, name):
        lonely = Graph.from_edges([], num_nodes=3, x=[[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]], y=[0, 1, 0])
        lonely = with_edge_columns(lonely)
        assert form_of(name, lonely)(lonely).shape == (0,)

    def test_gradients_are_finite_for_nodes_without_features(self, name):
        """Node 4 of the six has a row of zeros: no direction, no distance to itself."""
        graph = six_nodes(x=[[0.0, 0.0]] * 6)
        form = form_of(name, graph)
        if name != "fixed":
            form(graph).sum().backward()
        assert form(graph).isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in form.parameters())


@pytest.mark.parametrize("name", INDUCTIVE)
def test_relabelling_the_nodes_relabels_the_edges(name):
    graph, order = six_nodes(), [4, 2, 5, 0, 3, 1]  # node i is called order[i]
    x = [FEATURES[order.index(i)] for i in range(6)]
    relabelled = six_nodes(x=x, pairs=[(order[i], order[j]) for i, j in PAIRS])
    form = form_of(name, graph)
    scores = graph.adjacency.with_values(form(graph)).to_dense()
    again = relabelled.adjacency.with_values(form(relabelled)).to_dense()
    torch.testing.assert_close(again[order][:, order], scores)


@pytest.mark.parametrize("name", INDUCTIVE)
def test_feature_based_forms_score_a_graph_they_have_never_seen(name):
    form = form_of(name, six_nodes())
    other = with_edge_columns(Graph.from_edges([(0, 1), (1, 2)], x=FEATURES[:3], y=[0, 1, 0]))
    assert form(other).isfinite().all()


# each form against its formula, edge by edge, in plain Python numbers


def dot(u, v):
    return sum(a * b for a, b in zip(u, v, strict=True))


def times(matrix, x):
    """xᵀ W"""
    return [dot(x, column) for column in zip(*matrix, strict=True)]


def cosine(u, v):
    lengths = math.sqrt(dot(u, u) * dot(v, v))
    return dot(u, v) / lengths if lengths else 0.0


FORMULAS = {  # of the parameters p, the features of both ends and the number of the entry
    "fixed": lambda p, x, y, e: 0.0,
    "free": lambda p, x, y, e: p["weight"][e],
    "bilinear": lambda p, x, y, e: math.log(math.log(1 + math.exp(dot(times(p["left"], x), y)))),
    "gat": lambda p, x, y, e: leaky(
        dot([a for a, _ in p["attend"]], times(p["project"], x)) + dot([b for _, b in p["attend"]], times(p["project"], y))
    ),
    "agnn": lambda p, x, y, e: p["scale"][0] * cosine(times(p["project"], x), times(p["project"], y)),
    "cosine": lambda p, x, y, e: (  # of a self-loop both ends are the one row
        p["own"][0] if x is y else p["scale"][0] * cosine(times(p["project"], x), times(p["project"], y))
    ),
    "gaan": lambda p, x, y, e: dot(times(p["left"], x), times(p["right"], y)),
    "geniepath": lambda p, x, y, e: dot(
        p["attend"], [math.tanh(a + b) for a, b in zip(times(p["left"], x), times(p["right"], y), strict=True)]
    ),
    "gaussian": lambda p, x, y, e: -sum((a - b) ** 2 / math.exp(s) ** 2 for a, b, s in zip(x, y, p["log_sigma"], strict=True)),
    "columns": lambda p, x, y, e: by_columns(p["weight"], e),
}


def by_columns(learned, e):
    """The functions of a graph of six nodes written out: an amount between knots, a kind, and how often an edge is listed."""
    graph = six_nodes()
    functions = graph.edge_columns.functions
    i, j = graph.row[e].item(), graph.col[e].item()
    listed = [{graph.edge_columns.row[k].item(), graph.edge_columns.col[k].item()} for k in range(8)]
    total = [0.0] * sum(function.width for function in functions.each)
    at = 0
    for function, rank in zip(functions.each, (7, 3, 1), strict=True):  # what is learned of each
        own, learned = learned[:rank], learned[rank:]
        values = [sum(own[:k]) for k in range(len(function.knots))] if function.knots else own
        mean = sum(s * v for s, v in zip(function.shares, values, strict=True))
        total[at : at + len(values)] = [v - mean for v in values]
        at += len(values)
    weights = []
    for k in [k for k in range(8) if listed[k] == {i, j}]:
        basis = graph.edge_columns.basis.to_dense()[k].tolist()
        weights.append(math.exp(sum(b * t for b, t in zip(basis, total, strict=True))))
    return math.log(sum(weights) / len(weights)) if weights else 0.0  # self-loops are not listed


def leaky(score):
    return score if score > 0 else 0.2 * score


@pytest.mark.parametrize("name", EDGE_FORMS)
def test_every_form_is_its_formula(name):
    graph = six_nodes()
    form = form_of(name, graph)
    p = {key: parameter.tolist() for key, parameter in form.named_parameters()}
    ends = enumerate(zip(graph.row.tolist(), graph.col.tolist(), strict=True))
    expected = [FORMULAS[name](p, FEATURES[i], FEATURES[j], e) for e, (i, j) in ends]
    assert form(graph).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_low_rank_bilinear_form_is_u_v_transposed(monkeypatch):
    monkeypatch.setattr(edges, "FULL_KERNEL", 3)
    graph = six_nodes()
    low, full = form_of("bilinear", graph), Bilinear(4, rank=1, generator=torch.Generator())
    assert low.left.shape == low.right.shape == (4, 3)
    monkeypatch.setattr(edges, "FULL_KERNEL", 4)
    full = form_of("bilinear", graph)
    full.left.data = low.left.detach() @ low.right.detach().T
    assert full.right is None
    torch.testing.assert_close(low(graph), full(graph))


def test_a_directed_form_knows_which_end_receives():
    """GaAN is not symmetric: the score of the edge 0 -> 1, entry [1, 0], is (W₁ x_1)ᵀ W₂ x_0."""
    arrow = Graph.from_edges([(0, 1)], x=FEATURES[:2], y=[0, 1], directed=True)
    form = form_of("gaan", arrow)
    x = arrow.x
    torch.testing.assert_close(form(arrow), ((x[1] @ form.left) @ (x[0] @ form.right)).view(1))


@pytest.mark.parametrize(
    ("score", "value", "slope"),
    [
        (-1e4, -1e4, 1.0),
        (-15.0, -15.0, 1.0),
        (-14.999, -14.999, 1.0),
        (0.0, math.log(math.log(2)), 0.5 / math.log(2)),
        (100.0, math.log(100), 0.01),
        (1e6, math.log(1e6), 1e-6),
    ],
)
def test_log_softplus_and_its_gradient_stay_finite(score, value, slope):
    score = torch.tensor([score], requires_grad=True)
    out = log_softplus(score)
    out.backward()
    assert out.item() == pytest.approx(value, rel=1e-6)
    assert score.grad.item() == pytest.approx(slope, rel=1e-3)


def test_log_softplus_has_no_step_where_its_halves_meet():
    score = torch.linspace(-16, -14, 2001, dtype=torch.float64)
    torch.testing.assert_close(log_softplus(score), score.exp().log1p().log(), rtol=0, atol=1e-6)


def test_a_typical_edge_of_the_gaussian_form_starts_at_minus_one():
    graph = six_nodes()
    form = new_form("gaussian", graph)
    assert form(graph).mean().item() == pytest.approx(-1, rel=1e-5)
    constant = six_nodes(x=[[1.0]] * 6)  # no distances: nothing to scale by
    assert new_form("gaussian", constant)(constant).tolist() == pytest.approx([0] * 20)


# free weights


def test_free_weights_start_at_the_input_and_belong_to_their_edges():
    graph = six_nodes()
    form = new_form("free", graph)
    assert form(graph).tolist() == [0] * 20
    form.weight.data = graph.row * 10.0 + graph.col
    scores = graph.adjacency.with_values(form(graph)).to_dense()
    assert scores[2, 3].item() == 23
    assert scores[3, 2].item() == 32


def test_free_weights_of_the_authors_code_start_as_glorot_does_for_a_vector():
    """Uniform in ±√(6 / (E + E)); the variance of 20,000 draws is bound² / 3."""
    n = 10_000
    ring = Graph.from_edges([(i, (i + 1) % n) for i in range(n)], y=[0] * n)
    weight = new_form("free", ring, edge_init="glorot").weight
    bound = math.sqrt(6 / (2 * 2 * n))
    assert weight.abs().max() <= bound
    assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.05)


@pytest.mark.parametrize("other", ["another edge", "another node", "other weights"])
def test_free_weights_refuse_a_graph_with_other_edges_and_name_the_forms_that_can(other):
    graph = six_nodes()
    form = new_form("free", graph)
    if other == "other weights":  # the same edges: the same parameters
        heavier = dataclasses.replace(graph, adjacency=graph.adjacency.with_values(graph.adjacency.values * 2))
        assert torch.equal(form(heavier), form.weight)
        return
    pairs = [*PAIRS[:-1], (0, 5)] if other == "another edge" else PAIRS
    changed = six_nodes(pairs=pairs)
    if other == "another node":
        changed = Graph.from_edges(PAIRS, x=[*FEATURES, [1.0] * 4], y=[0] * 7, self_loops=True)
    with pytest.raises(ValueError, match=r"'free' keeps one weight per training edge") as error:
        form(changed)
    assert all(repr(name) in str(error.value) for name in set(INDUCTIVE) - {"fixed"})


def test_free_weights_bring_their_edges_with_them():
    """A form that was built for no graph takes over weights and the edges they are of."""
    graph = six_nodes()
    form = form_of("free", graph)
    blank = new_form("free", Graph.from_edges([], x=FEATURES[:1], y=[0]))
    blank.load_state_dict(form.state_dict())
    assert torch.equal(blank(graph), form(graph))
    with pytest.raises(ValueError, match="cannot score a graph with other edges"):
        blank(six_nodes(pairs=[*PAIRS[:-1], (0, 5)]))


def test_free_weights_follow_their_parameters_to_another_type():
    graph = in_float64(six_nodes())
    form = form_of("free", six_nodes()).double()
    weights = form.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(form, {"weight": w}, (graph,)), (weights,))


# the family


def test_an_unknown_form_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown edge form 'attention'; there are fixed, free, bilinear, gat"):
        new_form("attention", six_nodes())


@pytest.mark.parametrize("name", EDGE_FORMS)
def test_the_same_generator_gives_the_same_parameters(name):
    graph = six_nodes()
    one, same, other = (new_form(name, graph, seed, edge_init="glorot").state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    random = {key for key in one if not torch.equal(one[key], other[key])}
    if name == "columns":
        assert random == set()  # starts at the given graph
        return
    assert random == set(one) - {"scale", "own", "log_sigma", "_extra_state"}  # constants, of the data, of the edges


# memory

PEAK = """
import dataclasses, sys, torch, scipy.sparse, numpy
from gcn_lpa.edges import EDGE_FORMS, edge_form
from gcn_lpa.graph import Graph
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.recipes import LAYERS
from tests.helpers.small_graphs import PAIRS, in_float64, with_edge_columns

n, degree, d = 10_000, 28, 512
random = numpy.random.default_rng(0)
ends = numpy.stack([numpy.repeat(numpy.arange(n), degree), random.integers(n, size=n * degree)], axis=1)
dense = torch.rand(n, d)
graph = with_edge_columns(Graph.from_edges(ends, x=dense, y=[0] * n))
few = scipy.sparse.random_array((n, d), density=0.02, rng=random, dtype=numpy.float32, format="csr")
sparse = dataclasses.replace(graph, x=SparseMatrix.from_scipy(few))
graph.pattern.T, graph.pattern.order, graph.pattern.fingerprint

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

print(graph.pattern.num_entries * d * 4)
for name in EDGE_FORMS:
    for kind in (graph, sparse):
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # the peak starts from here
        before = memory("VmRSS")
        form = edge_form(LAYERS.replace(edges=name, edge_rank=8), kind, generator=torch.Generator())
        scores = form(kind)
        if name != "fixed":
            scores.sum().backward()
        print(name, memory("VmHWM") - before)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc")
def test_no_form_builds_an_array_of_edges_times_features():
    """[E, d] would take more than 1 GB here; no form needs a quarter of it to score all edges and go back."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    first, *lines = done.stdout.splitlines()
    assert int(first) > 1e9
    peaks = [(line.split()[0], int(line.split()[1])) for line in lines]
    assert len(peaks) == 2 * len(EDGE_FORMS)
    assert [name for name, peak in peaks if peak > 0.25 * int(first)] == []


def test_a_free_weight_is_the_log_of_a_mask_or_of_its_softplus(karate):
    """Both start at M = 1; log(1 + eʷ) for w = 0, 2, -3 beyond the w of M = 1."""
    recipe = LAYERS.replace(edges="free")
    plain, soft = (edge_form(recipe.replace(edge_mask=mask), karate, generator=torch.Generator()) for mask in ("exp", "softplus"))
    assert torch.equal(plain(karate), torch.zeros(karate.pattern.num_entries))
    assert soft(karate).abs().max() < 1e-6
    start = math.log(math.e - 1)
    with torch.no_grad():
        for form in (plain, soft):
            form.weight[:3] = torch.tensor([0.0, 2.0, -3.0])
    assert plain(karate)[:3].tolist() == [0, 2, -3]
    expected = [math.log(math.log1p(math.exp(start + w))) for w in (0, 2, -3)]
    assert soft(karate)[:3].tolist() == pytest.approx(expected, abs=1e-6)
