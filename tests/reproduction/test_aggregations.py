"""Sum, maximum and concatenation of neighbours along learned edges, against dense brute force."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from benchmarks import aggregations
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import LAYERS
from reproduction import max_pooling as pooling
from reproduction.aggregation import AggregatingGCNLPA
from reproduction.max_pooling import row_blocks, row_max
from reproduction.recipes import AGGREGATIONS, StudyRecipe
from reproduction.training import learn_once

PAIRS = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]  # two triangles joined by 2 - 3
FEATURES = [[1.0, 0.0, 2.0], [0.0, 1.0, 0.5], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]]
TRAIN = torch.tensor([0, 1, 2, 4])
RECIPE = StudyRecipe(
    **{"features": "raw", "hidden": 4, "gcn_layers": 3, "dropout": 0.0, "edge_rank": 3, "residual": False},
    **{"loss": "literal", "lpa_iterations": 2, "lpa_weight": 2.0, "bias": True, "epochs": 6},
)


def six_nodes(dtype=torch.float64):
    weights = [1 + k / 4 for k in range(len(PAIRS))]
    graph = Graph.from_edges(PAIRS, weights=weights, x=FEATURES, y=[0, 0, 1, -1, 1, -1], self_loops=True)
    return dataclasses.replace(graph, adjacency=graph.adjacency.to(dtype), x=graph.x.to(dtype))


def random_model(recipe, graph, seed=0):
    """A model in float64 whose parameters are all random, edges and biases too."""
    model, generator = AggregatingGCNLPA(recipe, graph, seed).double(), torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.4)
    return model


def dense_logits(model, recipe, graph):
    """The layers as loops over nodes and their neighbours, written from A* = M ∘ A."""
    a = graph.adjacency.to_dense()
    strength = graph.adjacency.with_values(model.edges(graph).exp()).to_dense() * a
    x, last = graph.x, len(model.body.weights) - 1
    for k, weight in enumerate(model.body.weights):
        z = x @ weight
        rows = []
        for i in range(len(x)):
            near = a[i].nonzero().squeeze(1)
            messages = strength[i, near, None] * z[near]
            if recipe.aggregation == "max":
                rows.append(messages.amax(dim=0))
            elif recipe.aggregation == "sum":
                rows.append(messages.sum(dim=0) / (a.sum() / len(a)))
            else:
                rows.append(messages.sum(dim=0) / strength[i].sum())
        h = torch.stack(rows)
        if recipe.aggregation == "concat":
            own = x @ model.body.skips[k]
            h = own + h if k == last else torch.cat([own, h], dim=1)
        elif recipe.residual:
            h = h + x @ model.body.skips[k]
        h = h + model.body.biases[k]
        x = h if k == last else h.relu()
    return x


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("edges", ["fixed", "free", "cosine", "bilinear"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_logits_and_gradients_are_those_of_loops_over_neighbours(aggregation, edges, residual):
    recipe = RECIPE.replace(aggregation=aggregation, edges=edges, residual=residual)
    graph = six_nodes()
    model = random_model(recipe, graph)
    twin = dense_logits(model, recipe, graph)
    torch.testing.assert_close(model(graph), twin)
    parameters = list(model.parameters())
    costs = model.loss(graph, TRAIN, Key(0)).gcn, F.cross_entropy(twin[TRAIN], graph.y[TRAIN])
    ours, theirs = (torch.autograd.grad(cost, parameters, allow_unused=True) for cost in costs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("edges", ["free", "cosine"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradients_of_the_joint_loss_equal_finite_differences(aggregation, edges):
    recipe = RECIPE.replace(aggregation=aggregation, edges=edges, dropout=0.3, activation="sigmoid")
    graph = six_nodes()
    model = random_model(recipe, graph)
    parameters, generator = list(model.parameters()), torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
    model.loss(graph, TRAIN, Key(1, 2)).total.backward()
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, direction, strict=True)).item()

    @torch.no_grad()
    def moved(step):
        for p, d in zip(parameters, direction, strict=True):
            p.add_(step * d)
        cost = model.loss(graph, TRAIN, Key(1, 2)).total.item()
        for p, d in zip(parameters, direction, strict=True):
            p.sub_(step * d)
        return cost

    assert (moved(1e-6) - moved(-1e-6)) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_labels_walk_the_row_normalised_matrix_whatever_features_do(aggregation):
    graph = six_nodes()
    model, plain = (random_model(RECIPE.replace(aggregation=name, edges="free"), graph) for name in (aggregation, "mean"))
    plain.edges.load_state_dict(model.edges.state_dict())
    torch.testing.assert_close(model.transition(graph).to_dense(), plain.transition(graph).to_dense())
    torch.testing.assert_close(*(one.loss(graph, TRAIN, Key(0)).lpa for one in (model, plain)))


def test_the_first_sum_and_maximum_are_of_the_given_graph():
    graph = six_nodes(torch.float32)
    for aggregation, scale in (("sum", graph.adjacency.values.sum() / 6), ("max", 1)):
        for edges in ("free", "cosine"):  # forms that start at M = 1
            model = AggregatingGCNLPA(RECIPE.replace(aggregation=aggregation, edges=edges), graph)
            torch.testing.assert_close(model.smoothing(graph).values, graph.adjacency.values / scale)


def test_a_very_strong_edge_of_a_sum_is_bounded():
    graph = six_nodes(torch.float32)
    model = AggregatingGCNLPA(RECIPE.replace(aggregation="sum", edges="free"), graph)
    with torch.no_grad():
        model.edges.weight.fill_(1000.0)
    assert model(graph).isfinite().all()


# max-pooling


@pytest.mark.parametrize("block", [1, 6, 1 << 22])
def test_the_maximum_of_each_row_and_its_gradient_are_those_of_a_dense_array(block, monkeypatch):
    """Whatever the blocks; rows without an entry, negative messages and equal ones among them."""
    monkeypatch.setattr(pooling, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(7, 5, generator=generator, dtype=torch.float64) * (torch.rand(7, 5, generator=generator) < 0.5)
    dense[3] = 0
    dense[1] = 0.5  # with equal rows of x: ties
    row, col = dense.nonzero(as_tuple=True)
    matrix = SparseMatrix.from_coo(row, col, dense[row, col], (7, 5))
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    x[2] = x[4]
    weight = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    found = []
    for is_dense in (False, True):
        values, columns = matrix.values.clone().requires_grad_(), x.clone().requires_grad_()
        if is_dense:
            full = torch.zeros(7, 5, dtype=torch.float64).index_put((row, col), values)
            messages = torch.where(dense.unsqueeze(2) != 0, full.unsqueeze(2) * columns, -torch.inf)
            out = torch.where(messages.amax(dim=1) > -torch.inf, messages.amax(dim=1), 0)
        else:
            out = row_max(matrix.with_values(values), columns)
        found.append((out, *torch.autograd.grad((out * weight).sum(), (values, columns))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not found[0][0][3].any()


def test_blocks_of_rows_cover_all_of_them_once_and_are_no_larger_than_asked():
    rows = six_nodes().adjacency.pattern
    for most in (1, 4, 7, 100):
        blocks = row_blocks(rows, most)
        assert [first for first, *_ in blocks] == [0, *(last for _, last, *_ in blocks[:-1])]
        assert blocks[-1][1] == 6 and blocks[-1][3] == rows.num_entries
        assert all(end - start <= most or last - first == 1 for first, last, start, end in blocks)


# trained


def two_parts(second=True):
    """Two cliques of four, one of them new: nothing joins them."""
    names = [f"n{i}" for i in range(8 if second else 4)]
    pairs = [(names[i], names[j]) for s in range(0, len(names), 4) for i in range(s, s + 4) for j in range(i + 1, s + 4)]
    pairs = pairs[:5] + pairs[6:]
    x = torch.arange(8 * 3.0).reshape(8, 3).sin()[: len(names)].numpy()
    return Graph.from_edges(pairs, x=x, y=["a", "a", "b", "b", *[None] * (len(names) - 4)], node_names=names)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_what_is_not_joined_to_a_node_changes_nothing_about_it(aggregation):
    recipe = RECIPE.replace(aggregation=aggregation, edges="cosine")
    alone, beside = (
        learn_once(graph, *(torch.arange(graph.num_nodes) == node for node in (0, 2)), recipe, device="cpu")
        for graph in (two_parts(second=False), two_parts())
    )
    if aggregation != "sum":  # which is divided by the mean degree of the whole graph
        torch.testing.assert_close(beside.probabilities[:4], alone.probabilities)
    said = F.softmax(alone.model(RECIPE.prepare(two_parts())).double(), dim=1)
    torch.testing.assert_close(said[:4], alone.probabilities)


@pytest.mark.parametrize("changes", [{}, {"residual": True}, {"layer_norm": True, "bias": False, "dropout": 0.4}])
def test_layers_that_average_are_those_of_the_library(changes):
    """The same first weights, the same gradients of a step with dropout, to rounding."""
    recipe, graph, found = RECIPE.replace(edges="cosine", **changes), six_nodes(torch.float32), []
    for model in (AggregatingGCNLPA(recipe, graph, 3), GCNLPA(recipe.of_library, graph, 3)):
        loss = model.loss(graph, TRAIN, Key(1, 2)).total
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


# recipes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"propagation": "hops"}, "aggregation = 'sum' is of layers; use propagation 'layers'"),
        ({"edge_dropout": 0.2}, "edge_dropout = 0.2 brings rows back to 1, and those of aggregation 'sum'"),
        ({"aggregation": "median"}, "aggregation = 'median'; it is one of mean, sum, max, concat"),
    ],
)
def test_a_recipe_refuses_what_an_aggregation_has_not(changes, words):
    with pytest.raises(ValueError, match=words):
        StudyRecipe.of(LAYERS).replace(**{"aggregation": "sum", **changes})


# the table of benchmarks/aggregations.py


def test_the_table_pairs_splits_and_stands_beside_the_result(tmp_path):
    """Two splits: 50 and 70 % on given edges; learned ones add 10 points to one of them, and λ 10 more to both."""
    gained = {"fixed": (0, 0), "λ = 0": (0.1, 0), "λ": (0.2, 0.1)}
    records = [
        {"graph": "cora", "aggregation": name, "edges": edges, "accuracy": start + more}
        for name in AGGREGATIONS
        for edges, each in gained.items()
        for start, more in zip((0.5, 0.7), each, strict=True)
    ]
    rows = aggregations.table(records)
    cells = list(rows["cora"]["sum"].values())
    assert [cell.split(" ± ")[0] for cell in cells] == ["60.0", "65.0", "75.0", "5.0", "10.0", "0.0"]
    assert cells[4] == "10.0 ± 0.0" and cells[3] == "5.0 ± 63.5"  # t with one degree of freedom, 12.706, times 5
    out = tmp_path / "found.json"
    write_json(out, {"rows": rows})
    aggregations.write_table(out)
    assert (tmp_path / "found.md").read_text() == aggregations.markdown(rows)
