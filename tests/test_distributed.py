"""Several processes train as one: the same losses, gradients, weights and classes, whatever the cut."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch
from rank_jobs import in_type, on_ranks, trained, trained_parts

from gcn_lpa.graph import Graph
from gcn_lpa.planner import Size, estimate
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.runs.plan import Source
from gcn_lpa.scale.partition import write_partition
from gcn_lpa.splits import Split
from gcn_lpa.train import ALONE, Batch, Validation

STEPS = 20
PAPER_LIKE = Recipe(
    **{"edges": "free", "loss": "literal", "features": "row", "residual": False, "hidden": 8, "gcn_layers": 3},
    **{"lpa_iterations": 4, "lpa_weight": 2.0, "dropout": 0.3, "lr": 0.02},
)  # no edge_dropout: the gradient of a free weight whose edge is left out is rounding, which Adam divides by its ε
SMALL_DEFAULT = DEFAULT.replace(votes=False, hidden=8, edge_rank=4, propagation_steps=3, lr=0.02)
RECIPES = {
    "free": PAPER_LIKE,
    "fixed": PAPER_LIKE.replace(edges="fixed", loss="official", normalization="symmetric"),
    "default": SMALL_DEFAULT.replace(class_weights="balanced"),
    "hops": SMALL_DEFAULT.replace(
        **{"propagation": "hops", "edges": "gat", "normalization": "symmetric", "edge_dropout": 0.2},
        **{"loss": "held_out", "lpa_iterations": 3, "lpa_ratio": 0.7},
    ),
    "bilinear": PAPER_LIKE.replace(edges="bilinear", loss="influence"),
    "geniepath": PAPER_LIKE.replace(edges="geniepath", edge_rank=4, lpa_iterations=2),
    "two steps": PAPER_LIKE.replace(edges="cosine", edge_rank=4, training="two_step"),
    "lpa": Recipe(method="lpa", propagation_steps=6),
}


def block_graph(*, sparse=False):
    """90 nodes in three blocks, some without edges, some without labels; weights, and a feature that is skewed."""
    rng = np.random.default_rng(4)
    block = np.arange(90) % 3
    chance = np.where(block[:, None] == block[None, :], 0.12, 0.02)
    source, target = np.nonzero(np.triu(rng.random((90, 90)) < chance, 1))
    keep = (source < 87) & (target < 87)
    x = rng.random((90, 6)) + np.eye(3).repeat(2, axis=1)[block]
    x[:, 5] = np.exp(3 * x[:, 5])
    if sparse:
        x = scipy.sparse.csr_array(x * (rng.random(x.shape) < 0.4))
    y = np.where(np.arange(90) % 7 == 6, -1, block)
    edges = np.stack([source, target], axis=1)[keep]
    return Graph.from_edges(edges, weights=rng.random(keep.sum()) + 0.5, num_nodes=90, x=x, y=y, name="blocks")


def split_of(graph):
    number, labeled = torch.arange(graph.num_nodes) % 5, graph.labeled
    return Split(labeled & (number < 3), labeled & (number == 3), labeled & (number == 4), "uniform", 0)


def uneven(parts):
    """The owner of each node: part k has more nodes than part k - 1, and the last has no training node near its end."""
    sizes = np.arange(1, parts + 1)
    return np.searchsorted(np.cumsum(sizes) / sizes.sum(), (np.arange(90) * 7 % 90 + 0.5) / 90)


def alone(graph, recipe, dtype):
    parts = split_of(graph)
    prepared = in_type(recipe.prepare(graph.reveal(parts.train)), dtype)
    val = parts.val.nonzero().squeeze(1)
    batch = Batch(prepared, parts.train.nonzero().squeeze(1))
    return {**trained(batch, Validation(prepared, val, graph.y[val]), recipe, dtype, STEPS, ALONE), "graph": prepared}


def gaps(one, ranks):
    """How far what the ranks found is from what one process did: of gradients and of weights max|Δ| / max|w|.

    Free weights are compared edge by edge.
    """
    graph, found = one["graph"], {"history": 0.0, "gradients": 0.0, "weights": 0.0}
    place = {tuple(edge): k for k, edge in enumerate(torch.stack([graph.row, graph.col]).T.tolist())}
    for rank in ranks:
        assert torch.equal(rank["classes"], one["classes"][rank["ids"]])
        assert rank["best_epoch"] == one["best_epoch"]
        for line, expected in zip(rank["history"], one["history"], strict=True):
            assert [value is None for value in line] == [value is None for value in expected]
            pairs = [(a, b) for a, b in zip(line, expected, strict=True) if b is not None]
            found["history"] = max(found["history"], *(abs(a - b) / max(1, abs(b)) for a, b in pairs))
        mine = torch.tensor([place[tuple(edge)] for edge in rank["edges"].T.tolist()])
        for kind in ("gradients", "weights"):
            assert rank.get(kind, {}).keys() == one.get(kind, {}).keys()
            largest = max((float(whole.abs().max()) for whole in one.get(kind, {}).values()), default=1.0)
            for name, whole in one.get(kind, {}).items():
                expected = whole[mine] if name == "edges.weight" else whole
                found[kind] = max(found[kind], float((rank[kind][name] - expected).abs().max()) / largest)
    return found


def expected_bytes(graph, recipe, rank, dtype):
    """What the planner says that a rank receives in all steps, and the degrees of given edges, which come once."""
    if recipe.method == "lpa":  # one validation
        return rank["halo"] * recipe.propagation_steps * graph.num_classes * dtype.itemsize
    size = Size.of(graph)
    size = dataclasses.replace(size, nodes=len(rank["ids"]), halo=rank["halo"], read=rank["read"])
    if recipe.training == "two_step":
        return rank["received"]  # the planner's is joint training
    once = rank["halo"] if recipe.propagation == "both" else 0
    return (STEPS * estimate(size, recipe).received / 4 + once) * dtype.itemsize


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_ranks_train_as_one_process(parts, tmp_path):
    graph, limits = block_graph(sparse=parts == 3), {torch.float64: 1e-12, torch.float32: 1e-5}
    write_partition(tmp_path / "cut", graph, Source("blocks"), uneven(parts), split_of(graph))
    names = [*((name, torch.float64) for name in RECIPES), *((name, torch.float32) for name in ("free", "default"))]
    answers = on_ranks(parts, trained_parts, [(tmp_path / "cut", RECIPES[name], dtype, STEPS) for name, dtype in names])
    for (name, dtype), ranks in zip(names, zip(*answers, strict=True), strict=True):
        found = gaps(alone(graph, RECIPES[name], dtype), ranks)
        assert max(found.values()) <= limits[dtype], (name, dtype, found)
        for rank in ranks:
            assert rank["received"] == expected_bytes(graph, RECIPES[name], rank, dtype), (name, dtype)
