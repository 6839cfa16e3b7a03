"""Mini-batches: a graph cut into clusters with few edges between them, and one gradient step for each (Chiang et al. 2019).

An edge between two clusters is in no batch: while training, convolutions, hops and label propagation stop at the border, and
a free weight of such an edge stays as it is given. That is an approximation, and `share_cut` says of how many edges.
Validation and predictions have the whole graph.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import Recipe
from gcn_lpa.train import Batch


def batches_of(prepared: Graph, train: Tensor, recipe: Recipe) -> list[Batch]:
    """The training nodes of a prepared graph, a mask [n], as one batch, or one of each cluster that has some of them.

    A method that follows no gradient, such as a team's trees, learns from all nodes at once.
    """
    if not recipe.clusters or "clusters" not in METHODS[recipe.method].fields:
        return [Batch(prepared, train.nonzero().squeeze(1))]
    cluster, sliceable = clusters(prepared, recipe.clusters), dataclasses.replace(prepared, x_kind="given")
    stored = prepared.x if prepared.mapped and isinstance(prepared.x, Tensor) else None
    if stored is not None:
        sliceable = dataclasses.replace(sliceable, x=stored[:, :0])
    batches = []
    for k in range(recipe.clusters):
        inside = torch.from_numpy(cluster == k)
        if (train & inside).any():
            part = dataclasses.replace(sliceable.subgraph(inside), x_kind=prepared.x_kind)
            part.pattern.cut_from = prepared.pattern.fingerprint, entries_inside(prepared, inside)
            at = inside.nonzero().squeeze(1)
            batches.append(Batch(part, train[inside].nonzero().squeeze(1), at, stored=stored))
    return batches


def entries_inside(graph: Graph, nodes: Tensor) -> Tensor:
    """The numbers of the entries between two of the nodes, a mask: those of their `subgraph`, in its order."""
    nodes = nodes.to(graph.device)
    return (nodes.index_select(0, graph.row) & nodes.index_select(0, graph.col)).nonzero().squeeze(1)


def clusters(graph: Graph, number: int) -> np.ndarray:
    """The cluster of each node, 0 … number - 1, [n]: about as many nodes in each, few edges between them, by METIS."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("clusters are found by METIS: pip install 'gcn-lpa[scale]'") from error
    if not 1 <= number <= graph.num_nodes:
        raise ValueError(f"clusters = {number}; {graph.name!r} has {graph.num_nodes:,} nodes to cut into clusters")
    matrix = graph.adjacency.to_scipy()
    joined = scipy.sparse.csr_array(matrix + matrix.T if graph.directed else matrix)
    others = joined - scipy.sparse.diags_array(joined.diagonal())  # a new matrix: ours shares its arrays with the graph
    others.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(others.indptr, others.indices)
    return np.array(pymetis.part_graph(number, adjacency).vertex_part)


def share_cut(graph: Graph, cluster: np.ndarray) -> float:
    """The share of the edges that are between two clusters, and in no batch."""
    joins = (graph.row != graph.col).cpu().numpy()
    between = cluster[graph.row.cpu().numpy()] != cluster[graph.col.cpu().numpy()]
    return float(between.sum() / max(1, joins.sum()))
