"""Columns of edges: how they are read, what their functions are, and how edges between the same two nodes add up."""

import dataclasses
import json
import math

import numpy as np
import pandas
import pytest
import torch

from gcn_lpa.data.array_files import read_frame
from gcn_lpa.data.describe import harmful_edges, told_by_neighbours
from gcn_lpa.data.edge_columns import (
    COUNT,
    TYPE,
    EdgeColumns,
    EdgeFunctions,
    EdgeWeights,
    ListedEdges,
    quantiles,
    read_edge_columns,
)
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.graph import Graph

NODES = pandas.DataFrame({"id": list("abcd"), "label": ["x", "y", "x", "y"], "age": [1, 2, 3, 4]})
EDGES = pandas.DataFrame(
    {
        "source": ["a", "b", "c", "b", "a"],
        "target": ["b", "c", "d", "a", "b"],
        "amount": [10.0, 20.0, None, 30.0, 10.0],
        "when": ["2024-01-01", "2024-01-11", "2024-01-01", "2024-01-21", "2024-01-01"],
        "kind": ["home", "work", "home", "", "home"],
        "paid": ["yes", "no", "no", "yes", "yes"],
        "note": ["first of all", "then we met", "later on", "at the end", "no more to say"],
        "same": ["1", "1", "1", "1", "1"],
    }
)


def read(edges=EDGES, **options):
    return read_csv(NODES, edges, **options)


def functions_of(graph):
    return {function.name: function for function in graph.edge_columns.functions.each}


def test_each_column_is_read_by_what_it_holds():
    graph = read()
    found = functions_of(graph)
    assert list(found) == ["amount", "when", "kind", "paid", COUNT]
    assert found["amount"].knots == (10, 20, 30)
    assert found["when"].knots == (19723, 19733, 19743)  # days since 1970
    assert found["kind"].values == ("home", "work")
    assert found["paid"].values == ("no", "yes")
    assert found[COUNT].knots == (1, 2)  # a -> b is listed twice
    assert "column 'note' of the frame of edges is left aside: edges are not weighed by texts" in graph.notes
    assert not any("same" in note and "warning" in note for note in graph.notes)


def test_the_basis_is_that_of_straight_lines_between_knots_and_one_for_each_value():
    function = functions_of(read())["amount"]
    basis = function.basis(np.array([10.0, 15.0, 30.0, 99.0, -5.0, np.nan])).toarray()
    expected = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert basis.tolist() == expected
    kinds = functions_of(read())["kind"].basis(np.array([0.0, 1.0, 2.0, np.nan])).toarray()
    assert kinds.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]  # a new value has no function


def test_many_values_have_knots_at_quantiles():
    assert quantiles(np.arange(1000.0)) == pytest.approx(np.arange(10) * 100 + 50.0, abs=1)
    assert quantiles(np.array([3.0, 1.0, np.nan, 1.0])) == (1, 3)


def test_all_functions_are_zero_on_average_over_the_edges_they_were_learned_for():
    columns = read().edge_columns
    levels = columns.functions.levels()
    learned = torch.from_numpy(np.random.default_rng(0).normal(size=levels.shape[1])).float()
    values, start = levels @ learned, 0
    for function in columns.functions.each:
        here = columns.basis.to_dense()[:, start : start + function.width]
        assert (here @ values[start : start + function.width]).mean().abs() < 1e-6
        start += function.width


def test_edges_between_two_nodes_add_up():
    """M_ij is the mean of exp(f) over the listed edges, weighed by their weights as given: by hand on a - b."""
    edges = EDGES.assign(weight=[1.0, 1.0, 1.0, 4.0, 2.0])
    graph = read(edges)
    columns = graph.edge_columns
    levels = torch.linspace(-1, 1, columns.functions.width)
    scores = (columns.basis.to_dense() @ levels).tolist()
    log_mask = graph.adjacency.with_values(columns.log_mask(graph.pattern, levels)).to_dense()
    expected = (1 * math.exp(scores[0]) + 4 * math.exp(scores[3]) + 2 * math.exp(scores[4])) / 7
    assert log_mask[0, 1].item() == pytest.approx(math.log(expected), rel=1e-5)
    assert log_mask[1, 0] == log_mask[0, 1]
    assert log_mask[1, 2].item() == pytest.approx(scores[1], rel=1e-5)
    weighed = graph.weighed(levels)
    assert weighed.adjacency.to_dense()[0, 1].item() == pytest.approx(4 * expected, rel=1e-5)  # the larger direction
    assert weighed.edge_columns is None


def test_functions_of_zero_are_the_given_graph():
    graph = read().with_self_loops()
    assert torch.equal(graph.weighed(torch.zeros(graph.edge_columns.functions.width)).adjacency.values, graph.adjacency.values)


def test_of_arcs_only_those_in_the_direction_of_the_entry_count():
    graph = read(directed=True)
    columns = graph.edge_columns
    levels = torch.linspace(-1, 1, columns.functions.width)
    scores = columns.basis.to_dense() @ levels
    log_mask = graph.adjacency.with_values(columns.log_mask(graph.pattern, levels)).to_dense()
    assert log_mask[0, 1].item() == pytest.approx(scores[3].item(), rel=1e-5)  # b -> a
    assert log_mask[1, 0].item() == pytest.approx(scores[0].item(), rel=1e-5)  # a -> b, twice the same


def test_a_self_loop_that_is_listed_has_columns_and_one_that_is_added_has_none():
    edges = EDGES.assign(source=["a", "b", "c", "b", "a"], target=["a", "c", "d", "a", "b"])
    graph = read(edges).with_self_loops()
    levels = torch.linspace(-1, 1, graph.edge_columns.functions.width)
    log_mask = graph.adjacency.with_values(graph.edge_columns.log_mask(graph.pattern, levels)).to_dense()
    scores = graph.edge_columns.basis.to_dense() @ levels
    assert log_mask[0, 0].item() == pytest.approx(scores[0].item(), rel=1e-5)
    assert log_mask.diagonal()[1:].tolist() == [0, 0, 0]


def test_parts_of_a_graph_have_the_columns_of_their_edges():
    graph = read()
    part = graph.subgraph([0, 1, 3])
    assert part.edge_columns.num_rows == 3
    levels = torch.linspace(-1, 1, graph.edge_columns.functions.width)
    whole = graph.adjacency.with_values(graph.edge_columns.log_mask(graph.pattern, levels)).to_dense()
    here = part.adjacency.with_values(part.edge_columns.log_mask(part.pattern, levels)).to_dense()
    assert here[0, 1] == whole[0, 1]


def test_the_gradient_is_that_of_finite_differences():
    graph = read()
    columns = dataclasses.replace(graph.edge_columns, basis=graph.edge_columns.basis.to(torch.float64))
    levels = torch.linspace(-1, 1, columns.functions.width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: columns.log_mask(graph.pattern, x), levels)


def test_edge_types_are_a_column_where_there_is_no_other():
    graph = Graph.from_edges([(0, 1), (1, 2), (0, 1)], edge_types=["home", "work", "work"], y=[0, 1, 0])
    assert graph.edge_columns is None
    columns = graph.with_type_column().edge_columns
    assert columns.functions.names == (TYPE,)
    levels = torch.tensor([1.0, -1.0])
    log_mask = graph.adjacency.with_values(columns.log_mask(graph.pattern, levels)).to_dense()
    assert log_mask[0, 1].item() == pytest.approx(math.log((math.e + 1 / math.e) / 2), rel=1e-5)
    assert log_mask[2, 1].item() == pytest.approx(-1)


def test_a_column_that_relation_names_is_a_category_whatever_it_looks_like():
    edges = EDGES.assign(code=[1, 2, 1, 2, 1])[["source", "target", "code"]]
    assert functions_of(read(edges))["code"].knots == (1, 2)
    assert functions_of(read(edges, relation="code"))["code"].values == ("1", "2")


def test_another_list_is_read_by_the_functions_of_the_first():
    functions = read().edge_columns.functions
    other = pandas.DataFrame(
        {
            "source": ["a"],
            "target": ["c"],
            "amount": [25.0],
            "when": ["2024-01-06"],
            "kind": ["abroad"],
            "paid": ["yes"],
        }
    )
    columns = read(other, edge_functions=functions).edge_columns
    assert columns.functions == functions
    assert columns.basis.to_dense()[0].tolist() == [0, 0.5, 0.5, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 1, 1, 0]
    with pytest.raises(ValueError, match="has no column 'amount', by which the model weighs edges; it has 'when'"):
        read(other.drop(columns="amount"), edge_functions=functions)
    with pytest.raises(ValueError, match="is 'soon'; the column was learned as dates"):
        read(other.assign(when="soon"), edge_functions=functions)


def test_functions_are_kept_as_json():
    functions = read().edge_columns.functions
    assert EdgeFunctions.from_json(json.loads(json.dumps(functions.to_json()))) == functions
    weights = EdgeWeights(functions, ((0.5,) * functions.width,), 0.1, 0.05, True)
    assert EdgeWeights.from_json(json.loads(json.dumps(weights.to_json()))) == weights


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: s["functions"]["knots"][0].reverse(), "at most 10 ascending knots"),
        (lambda s: s["functions"]["shares"][0].pop(), "shares are 4 numbers between 0 and 1"),
        (lambda s: s["functions"]["shares"].pop(), "as many readers as knots and shares"),
        (
            lambda s: s["functions"]["readers"].__setitem__(0, {"kind": "left out", "name": "amount", "why": ""}),
            "column 'amount': edges are not weighed by one of kind 'left out'",
        ),
        (lambda s: s["folds"][0].pop(), "edge weights have 14 values for each fold, not 13"),
        (lambda s: s["folds"][0].__setitem__(0, 1e9), "edge weights are logs of at most"),
        (lambda s: s.update(folds=[]), "edge weights have 14 values for each fold, not 0"),
        (lambda s: s.update(more=1), "edge_weights have functions, folds, gain, error, is_used, not"),
        (lambda s: s.update(gain="high"), "gain is 'high'; it is a number"),
    ],
)
def test_a_state_that_is_none_is_refused(change, problem):
    functions = read().edge_columns.functions
    state = json.loads(json.dumps(EdgeWeights(functions, ((0.0,) * functions.width,), 0.0, 0.0, False).to_json()))
    change(state)
    with pytest.raises(ValueError, match=problem):
        EdgeWeights.from_json(state)


def test_what_was_read_of_edges_is_in_the_hash_of_a_graph():
    plain = read()
    hashes = {
        plain.content_hash(),
        read(EDGES.assign(amount=[11.0, 20.0, None, 30.0, 10.0])).content_hash(),
        read(EDGES.assign(amount=[10.0, 20.0, None, 10.0, 30.0])).content_hash(),
        read(edge_features="").content_hash(),
    }
    assert len(hashes) == 4
    assert read().content_hash() == plain.content_hash()


def test_no_array_of_edges_times_columns_is_dense():
    """The basis of 20,000 edges with 8 columns of numbers holds two numbers for each at most."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({f"c{k}": rng.normal(size=20_000) for k in range(8)})
    listed = ListedEdges(rng.integers(100, size=20_000), rng.integers(100, size=20_000), None, False)
    columns, _ = read_edge_columns(read_frame(frame, "edges"), list(frame), listed, (), None)
    assert isinstance(columns, EdgeColumns)
    assert columns.basis.num_entries <= 2 * 9 * 20_000


# edges that do harm


def arrows(directed=True, weight=None, n=120):
    """A ring of two halves of a class each, whose arcs all point the same way; a weight of noise, or one of use."""
    rng = np.random.default_rng(0)
    y = np.arange(n) * 2 // n
    nodes = pandas.DataFrame({"id": np.arange(n), "label": np.array(["x", "y"])[y], "age": np.arange(n)})
    source = np.tile(np.arange(n), 6)
    target = (source + np.repeat(np.arange(1, 7), n)) % n
    away = rng.random(6 * n) < 0.3
    target[away] = rng.integers(n, size=away.sum())
    edges = pandas.DataFrame({"source": source, "target": target})
    if weight == "noise":
        edges["weight"] = rng.lognormal(sigma=3, size=6 * n)
    if weight == "use":
        edges["weight"] = np.where(y[source] == y[target], 2.0, 0.5)
    return read_csv(nodes, edges, directed=directed)


def warnings_of(graph):
    return [note for note in graph.notes if "neighbours tell more labels" in note]


def test_weights_of_noise_are_warned_of_and_those_of_use_are_not():
    (warning,) = warnings_of(arrows(directed=False, weight="noise"))
    assert warning.startswith("warning: without the weight of edges, neighbours tell more labels (9")
    assert warning.endswith("option weight='' leaves it out")
    assert warnings_of(arrows(directed=False, weight="use")) == []
    assert warnings_of(arrows(directed=False)) == []


def test_few_labels_suffice_as_unlabelled_neighbours_pass_them_on():
    graph = arrows(directed=False, weight="noise", n=400)
    (warning,) = harmful_edges(graph.reveal(torch.from_numpy(np.random.default_rng(1).random(400) < 0.15)))
    assert "without the weight of edges" in warning


@pytest.mark.parametrize("directed", [False, True])
def test_labels_within_two_hops_are_those_of_a_walk_that_does_not_see_the_own_label(directed):
    rng = np.random.default_rng(3)
    weights = np.triu(rng.random((9, 9)) * (rng.random((9, 9)) < 0.5), 1)
    weights = weights + np.triu(rng.random((9, 9)) < 0.2, 1).T if directed else weights + weights.T
    y = np.array([0, 1, 0, 1, 1, -1, -1, -1, -1])
    prior = np.bincount(y[:5]) / 5
    for v, (probability, is_first) in enumerate(zip(*told_by_neighbours(weights, y, 2), strict=True)):
        votes, counts = np.zeros(2), []
        for u in np.flatnonzero(weights[v]):
            if y[u] >= 0:
                votes[y[u]] += weights[v, u]
                counts.append(weights[v, u])
            elif (heard := weights[u, :5].sum()) > 0:
                of_others = weights[u, :5] * (np.arange(5) != v) / heard
                np.add.at(votes, y[:5], weights[v, u] * of_others)
                counts.append(weights[v, u] * of_others.sum())
        worth = sum(counts) ** 2 / sum(count**2 for count in counts) if sum(counts) else 0.0
        expected = (worth * votes / (votes.sum() or 1) + prior) / (worth + 1)
        assert np.isclose(probability, expected[y[v]])
        assert is_first == (expected.argmax() == y[v])


def test_directions_along_which_labels_do_not_travel_are_warned_of():
    """All arcs leave labelled hubs' followers: who points at nobody hears of nobody."""
    n = 100
    y = np.arange(n) % 2
    nodes = pandas.DataFrame({"id": np.arange(n), "label": np.array(["x", "y"])[y], "age": np.arange(n)})
    edges = pandas.DataFrame({"source": np.arange(2, n), "target": y[2:]})  # all point at node 0 or 1
    (warning,) = warnings_of(read_csv(nodes, edges, directed=True))
    assert "without the direction of edges" in warning
    assert "option directed=false" in warning
    assert warnings_of(read_csv(nodes, edges)) == []
