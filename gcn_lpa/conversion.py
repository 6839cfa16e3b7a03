"""What other libraries call a graph -> Graph."""

from __future__ import annotations

from typing import Any

import scipy.sparse

from gcn_lpa.graph import Graph
from gcn_lpa.tables.own_files import read_csv


def as_graph(graph: Any) -> Graph:
    """A `Graph` of a NetworkX graph, a SciPy sparse matrix, a PyG `Data`, or of pandas: a frame of edges or (nodes, edges).

    Labels and weights are found by their usual names. `Graph.from_networkx` and its like take options.
    """
    if isinstance(graph, Graph):
        return graph
    if scipy.sparse.issparse(graph):
        return Graph.from_scipy(graph)
    if hasattr(graph, "nodes") and hasattr(graph, "is_directed"):
        return Graph.from_networkx(graph)
    if hasattr(graph, "edge_index"):
        return Graph.from_pyg(graph)
    if hasattr(graph, "columns"):
        return read_csv(None, graph)
    if isinstance(graph, tuple) and len(graph) == 2 and all(hasattr(table, "columns") for table in graph):
        return read_csv(*graph)
    raise TypeError(
        "graph is a gcn_lpa.Graph, a NetworkX graph, a SciPy sparse matrix, a PyG Data, a pandas frame of edges or a pair of "
        f"frames (nodes, edges), not {type(graph)}"
    )
