"""Graphs without files: two that ship with a dependency, and two random ones of any size."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.data.checks import check_seed
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph


def karate() -> Graph:
    import networkx

    return Graph.from_networkx(networkx.karate_club_graph(), weight=None, label="club", name="karate")


def digits(neighbors: int = 10) -> Graph:
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    x, y = load_digits(return_X_y=True)
    graph = Graph.from_scipy(kneighbors_graph(x, neighbors), x=x, y=y, name="digits")
    note = f"every image joined to the {neighbors} nearest, and to those that count it among theirs"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def random_graph(n: int = 1000, degree: float = 5.0, classes: int = 1, hubs: float = 0.0, seed: int = 0) -> Graph:
    """The paper's timing graphs (Section 4.4): n nodes, `degree` neighbours on average, identity features, label 0.

    With more `classes`, labels are drawn uniformly: with one class every loss and gradient is 0. With `hubs`, the expected
    degree of the r-th of the nodes is proportional to r^-hubs, as in real graphs: a power law of exponent 1 + 1 / hubs.
    """
    _require(n=n >= 1, degree=degree >= 0, classes=classes >= 1, hubs=0 <= hubs < 1)
    check_seed(seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    later = np.arange(1, n + 1)  # node i may be joined to i + 1 .. n - 1
    if hubs:
        row, col = _pairs_by_rank(n, round(n * degree / 2), hubs, rng)
    else:
        row, col = _sample_pairs(later, n - later, round(n * degree / 2), rng)
    upper = scipy.sparse.coo_array((np.ones(len(row), np.float32), (row, col)), shape=(n, n)).tocsr()
    y = torch.from_numpy(rng.integers(classes, size=n))
    return Graph(
        adjacency=SparseMatrix.from_scipy(upper + upper.T.tocsr()),
        x=SparseMatrix.identity(n),
        y=y,
        class_names=tuple(map(str, range(classes))),
        node_names=range(n),
        name="random",
        notes=(f"random graph: mean degree {degree:g}, {f'hubs {hubs:g}, ' if hubs else ''}seed {seed}",),
        x_kind="identity",
    )


def _pairs_by_rank(n: int, count: int, hubs: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """So many different pairs i < j, both drawn in proportion to rank^-hubs; ranks are dealt at random."""
    ends = np.cumsum(np.arange(1, n + 1) ** -hubs)
    found = np.empty(0, np.int64)
    if count > n * (n - 1) // 4:
        raise ValueError(
            f"{count} edges are too many for hubs among {n} nodes; at most half of all pairs can be joined"
        )
    while len(found) < count:
        pairs = np.searchsorted(ends, rng.random((2, count)) * ends[-1])
        low, high = pairs.min(0), pairs.max(0)
        drawn = np.concatenate([found, (low * n + high)[low < high]])
        found = drawn[np.sort(np.unique(drawn, return_index=True)[1])]  # in the order in which they were drawn
    low, high = np.divmod(found[:count], n)
    name = rng.permutation(n)
    return np.minimum(name[low], name[high]), np.maximum(name[low], name[high])


def block_model(
    n: int = 1000,
    classes: int = 4,
    degree: float = 10.0,
    homophily: float = 0.8,
    features: int = 16,
    noise: float = 0.5,
    seed: int = 0,
) -> Graph:
    """A contextual stochastic block model: classes of equal size, and a mean feature vector of length 1 for each.

    Args:
        degree: mean number of neighbours.
        homophily: share of edges that join two nodes of one class; exact.
        noise: standard deviation of every feature around the mean of its class.
    """
    _require(n=n >= 1, degree=degree >= 0, classes=classes >= 1, homophily=0 <= homophily <= 1, features=features >= 1)
    check_seed(seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    block = np.sort(np.arange(n) % classes)
    block_end = np.searchsorted(block, block, side="right")
    position, num_edges = np.arange(n), round(n * degree / 2)
    num_intra = round(homophily * num_edges)
    intra = _sample_pairs(position + 1, block_end - position - 1, num_intra, rng)
    inter = _sample_pairs(block_end, n - block_end, num_edges - num_intra, rng)
    order = rng.permutation(n)  # so that the number of a node does not tell its class
    pairs = order[np.concatenate([intra, inter], axis=1).T]
    y = np.empty(n, dtype=np.int64)
    y[order] = block
    means = rng.standard_normal((classes, features))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    x = means[y] + noise * rng.standard_normal((n, features))
    graph = Graph.from_edges(pairs, num_nodes=n, x=x, y=y, class_names=map(str, range(classes)), name="sbm")
    note = f"block model: mean degree {degree:g}, homophily {homophily:g}, feature noise {noise:g}, seed {seed}"
    return dataclasses.replace(graph, notes=(*graph.notes, note))


def _require(**options: bool) -> None:
    right = {"degree": "at least 0", "homophily": "a share of the edges, 0 to 1", "hubs": "at least 0 and less than 1"}
    for option, is_right in options.items():
        if not is_right:
            raise ValueError(f"{option} must be {right.get(option, 'at least 1')}")


def _sample_pairs(
    first: np.ndarray, num_partners: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`count` different pairs (i, first[i] + k), k < num_partners[i], all equally likely; sorted."""
    starts = np.concatenate([[0], np.cumsum(num_partners)])
    if not 0 <= count <= starts[-1]:
        raise ValueError(f"{count:,} edges are asked for where {starts[-1]:,} are possible; lower degree or raise n")
    codes = _sample(int(starts[-1]), count, rng)
    row = np.repeat(np.arange(len(first)), np.diff(np.searchsorted(codes, starts)))
    return row, codes - starts[row] + first[row]


def _sample(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` different numbers below `total`, sorted."""
    if count > total // 2:
        left_out = _sample(total, total - count, rng)
        return np.delete(np.arange(total), left_out)
    codes = np.empty(0, dtype=np.int64)
    while len(codes) < count:  # almost all at once; then those that were drawn twice
        codes = np.concatenate([codes, rng.integers(total, size=count - len(codes))])
        codes.sort()
        codes = codes[np.diff(codes, prepend=-1) > 0]
    return codes
