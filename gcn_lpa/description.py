"""What a user wants to know of a graph before training on it: sizes, classes, homophily, reach."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph
from torch import Tensor

from gcn_lpa.choice import facts_of, recipe_for
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph

if TYPE_CHECKING:
    from gcn_lpa.tables.encoders import ColumnSummary


@dataclass(frozen=True)
class GraphInfo:
    """What `describe` counts. Rates and homophilies are None where no edge or no label defines them."""

    name: str
    nodes: int
    edges: int  # without self-loops
    directed: bool
    self_loops: int
    features: int
    feature_kind: str
    nonzeros: int
    classes: int
    class_sizes: dict[str, int]
    labeled: int
    intra_class_edge_rate: float | None  # as the paper counts: a node without label as class 0
    intra_class_edge_rate_known: float | None  # over edges whose two ends are labelled
    edge_homophily: float | None  # the same number under its usual name
    node_homophily: float | None  # mean over nodes of the share of their neighbours in their class
    adjusted_homophily: float | None  # edge homophily less what class sizes alone would give; 1 perfect, 0 none
    components: int
    isolated: int  # nodes without a neighbour but themselves
    unreachable: int  # nodes to which no label can travel
    notes: tuple[str, ...]
    columns: tuple[ColumnSummary, ...] = ()  # what was made of each column of a table of nodes
    graph_columns: GraphColumns | None = None  # that the default recipe adds


@dataclass(frozen=True)
class GraphColumns:
    """Columns about the place of a node in the graph: degrees and PageRank, and how many cells it has where there are cells."""

    number: int
    seen_by: str  # "every model", "trees", or "trees, LR"

    def __str__(self) -> str:
        everyone = self.seen_by == "every model"
        what = "degrees, PageRank, filled cells" if everyone else "degrees, PageRank"
        return f"{what}, neighbours' too -> {self.number} features" + ("" if everyone else f", for {self.seen_by}")


@dataclass(frozen=True)
class Homophily:
    """How often edges join nodes of one class, over the edges whose two ends are labelled; None where there is none."""

    edges: int  # between two labelled nodes, self-loops aside; an undirected edge counts once
    rate: float | None  # edge homophily: the share of them that join one class
    chance: float | None  # the rate if the same ends were joined at random
    node: float | None  # mean over nodes of the share of their labelled neighbours in their class
    adjusted: float | None  # (rate - chance) / (1 - chance): 1 perfect, 0 none; None too where chance is 1


def describe(graph: Graph) -> GraphInfo:
    """Count what a user wants to know of a graph before training on it."""
    y = graph.y.cpu().numpy()
    row, col = _proper_entries(graph)
    found = homophily(graph)
    sizes = np.bincount(y[y >= 0], minlength=graph.num_classes)
    has_neighbour = np.zeros(graph.num_nodes, dtype=bool)
    has_neighbour[row] = has_neighbour[col] = True
    filled = np.maximum(y, 0)
    is_sparse = isinstance(graph.x, SparseMatrix)
    matrix = graph.adjacency.to_scipy()
    return GraphInfo(
        name=graph.name,
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=graph.num_self_loops,
        features=graph.num_features,
        feature_kind=f"{graph.x_kind}, {'sparse' if is_sparse else 'dense'}",
        nonzeros=int((graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x).count_nonzero()),
        classes=graph.num_classes,
        class_sizes=dict(zip(graph.class_names, sizes.tolist(), strict=True)),
        labeled=int((y >= 0).sum()),
        intra_class_edge_rate=float((filled[row] == filled[col]).mean()) if len(row) and (y >= 0).any() else None,
        intra_class_edge_rate_known=found.rate,
        edge_homophily=found.rate,
        node_homophily=found.node,
        adjusted_homophily=found.adjusted,
        components=int(csgraph.connected_components(matrix, directed=graph.directed, return_labels=False)),
        isolated=int((~has_neighbour).sum()),
        unreachable=int(np.isinf(node_hops(graph, y >= 0)).sum()),
        notes=graph.notes,
        columns=() if graph.columns is None else graph.columns.summaries(),
        graph_columns=graph_columns(graph),
    )


def graph_columns(graph: Graph) -> GraphColumns | None:
    """What the default recipe adds to the columns of this graph; None: nothing."""
    recipe = recipe_for("default", graph.name, **facts_of(graph, graph.labeled))
    if recipe.structure and graph.x_kind == "given":
        return GraphColumns(9 if graph.directed else 6, "every model")
    tabular = [said for name, said in (("trees", "trees"), ("neighbour-lr", "LR")) if name in recipe.members.split()]
    return GraphColumns(7 if graph.directed else 4, ", ".join(tabular)) if tabular else None


def homophily(graph: Graph) -> Homophily:
    """Edge, node and adjusted homophily as in Platonov et al. (2023), unweighted."""
    y = graph.y.cpu().numpy()
    row, col = _proper_entries(graph)
    known = (y[row] >= 0) & (y[col] >= 0)
    row, col = row[known], col[known]
    if len(row) == 0:
        return Homophily(0, None, None, None, None)
    same = y[row] == y[col]
    rate = float(same.mean())
    ends = np.bincount(np.concatenate([y[row], y[col]]))
    chance = float(np.square(ends / ends.sum()).sum())
    degree = np.bincount(row)
    per_node = np.bincount(row, weights=same)[degree > 0] / degree[degree > 0]
    adjusted = (rate - chance) / (1 - chance) if chance < 1 else None
    num_edges = len(row) if graph.directed else len(row) // 2
    return Homophily(num_edges, rate, chance, float(per_node.mean()), adjusted)


def _proper_entries(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every entry of the adjacency but the self-loops."""
    row, col = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    proper = row != col
    return row[proper], col[proper]


def node_hops(graph: Graph, given: Tensor | np.ndarray) -> np.ndarray:
    """The number of edges from the nearest given node to each node, in the direction of messages; inf: no way, [n].

    Args:
        given: a boolean mask of the nodes, or their positions.
    """
    n = graph.num_nodes
    nodes = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    starts = np.flatnonzero(nodes) if nodes.dtype == bool else np.unique(nodes)
    sends = graph.pattern.columns if graph.directed else graph.pattern.rows  # the rows of the transpose: who receives
    rowptr, col = sends.rowptr.cpu().numpy(), sends.col.cpu().numpy()
    # breadth first from one more node, number n, that sends to every given one
    rowptr, col = np.append(rowptr, rowptr[-1] + len(starts)), np.append(col, starts.astype(col.dtype))
    whole = scipy.sparse.csr_array((np.ones(len(col), np.int8), col, rowptr), shape=(n + 1, n + 1))
    order, sender = csgraph.breadth_first_order(whole, n)
    return _depths(order, sender, n + 1)[:n] - 1


def _depths(order: np.ndarray, sender: np.ndarray, n: int) -> np.ndarray:
    """How deep each node is in a breadth-first tree, inf where it is not in it; `order` begins with the root.

    The nodes of a depth are a run of `order`, and so are those that they sent to, which come next.
    """
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(len(order))
    sender_places = [-1, *place[sender[order[1:]]].tolist()]  # ascending
    depths = np.full(n, np.inf)
    begin, end, depth = 0, 1, 0
    while begin < end:
        depths[order[begin:end]] = depth
        begin, end, depth = end, bisect_left(sender_places, end), depth + 1
    return depths
