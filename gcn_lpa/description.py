"""What a user wants to know of a graph before training on it: sizes, classes, homophily, reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph


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


def describe(graph: Graph) -> GraphInfo:
    """Count what a user wants to know of a graph before training on it.

    Homophily as in Platonov et al. (2023), over edges between two labelled nodes, self-loops aside, unweighted.
    """
    y = graph.y.cpu().numpy()
    row, col = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    proper = row != col
    row, col = row[proper], col[proper]
    filled = np.maximum(y, 0)
    known = (y[row] >= 0) & (y[col] >= 0)
    edge, node, adjusted = _homophily(y, row[known], col[known])
    sizes = np.bincount(y[y >= 0], minlength=graph.num_classes)
    has_neighbour = np.zeros(graph.num_nodes, dtype=bool)
    has_neighbour[row] = has_neighbour[col] = True
    matrix = graph.adjacency.to_scipy()
    is_sparse = isinstance(graph.x, SparseMatrix)
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
        intra_class_edge_rate_known=edge,
        edge_homophily=edge,
        node_homophily=node,
        adjusted_homophily=adjusted,
        components=int(csgraph.connected_components(matrix, directed=graph.directed, return_labels=False)),
        isolated=int((~has_neighbour).sum()),
        unreachable=graph.num_nodes - _num_reached(matrix, y >= 0),
        notes=graph.notes,
    )


def _homophily(y: np.ndarray, row: np.ndarray, col: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Edge, node and adjusted homophily over edges whose ends are labelled."""
    if len(row) == 0:
        return None, None, None
    same = y[row] == y[col]
    edge = float(same.mean())
    degree = np.bincount(row)
    per_node = np.bincount(row, weights=same)[degree > 0] / degree[degree > 0]
    ends = np.bincount(np.concatenate([y[row], y[col]]))
    chance = float(np.square(ends / ends.sum()).sum())
    return edge, float(per_node.mean()), (edge - chance) / (1 - chance) if chance < 1 else None


def _num_reached(matrix: scipy.sparse.csr_array, labeled: np.ndarray) -> int:
    """How many nodes a label reaches: a search from one extra node that points to every labelled one."""
    n = len(labeled)
    start = scipy.sparse.csr_array(labeled[None, :].astype(matrix.dtype))
    sends = scipy.sparse.vstack([scipy.sparse.hstack([matrix.T, scipy.sparse.csr_array((n, 1))]), _widen(start)])
    return len(csgraph.breadth_first_order(sends.tocsr(), n, return_predecessors=False)) - 1


def _widen(row: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    return scipy.sparse.hstack([row, scipy.sparse.csr_array((1, 1))])
