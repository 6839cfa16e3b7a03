"""What a user wants to know of a graph before training on it: sizes, classes, homophily, reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix

if TYPE_CHECKING:
    from gcn_lpa.data.encoders import ColumnSummary
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
    labeled_edges: int  # between two labelled nodes: those that homophilies are counted over
    intra_class_edge_rate: float | None  # as the paper counts, over all edges: a node without label as class 0
    edge_homophily: float | None  # the share of labelled edges that join one class
    node_homophily: float | None  # mean over nodes of the share of their neighbours in their class
    adjusted_homophily: float | None  # edge homophily less what class sizes alone would give; 1 perfect, 0 none
    components: int
    isolated: int  # nodes without a neighbour but themselves
    unreachable: int  # nodes to which no label can travel
    notes: tuple[str, ...]
    columns: tuple[ColumnSummary, ...] = ()  # what was made of each column of a table of nodes


@dataclass(frozen=True)
class Homophily:
    """How often edges join nodes of one class, over the edges whose two ends are labelled; None where there is none."""

    edges: int  # between two labelled nodes, self-loops aside; an undirected edge counts once
    rate: float | None  # edge homophily: the share of them that join one class
    chance: float | None  # the rate if the same ends were joined at random
    node: float | None  # mean over nodes of the share of their labelled neighbours in their class
    adjusted: float | None  # (rate - chance) / (1 - chance): 1 perfect, 0 none; None too where chance is 1

    def __str__(self) -> str:
        if self.rate is None:
            return "no edge joins two labelled nodes"
        return f"{100 * self.rate:.1f} % of the {self.edges:,} edge{'s' * (self.edges > 1)} between labelled nodes join one class"


def describe(graph: Graph) -> GraphInfo:
    """Count what a user wants to know of a graph before training on it."""
    y = graph.y.cpu().numpy()
    row, col = _proper_entries(graph)
    measured = homophily(graph)
    sizes = np.bincount(y[y >= 0], minlength=graph.num_classes)
    has_neighbour = np.zeros(graph.num_nodes, dtype=bool)
    has_neighbour[row] = has_neighbour[col] = True
    filled = np.maximum(y, 0)
    stored = graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x
    matrix = graph.adjacency.to_scipy()
    return GraphInfo(
        name=graph.name,
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=graph.num_self_loops,
        features=graph.num_features,
        feature_kind=f"{graph.x_kind}, {'sparse' if isinstance(graph.x, SparseMatrix) else 'dense'}",
        nonzeros=int(stored.count_nonzero()),
        classes=graph.num_classes,
        class_sizes=dict(zip(graph.class_names, sizes.tolist(), strict=True)),
        labeled=int((y >= 0).sum()),
        labeled_edges=measured.edges,
        intra_class_edge_rate=float((filled[row] == filled[col]).mean()) if len(row) and (y >= 0).any() else None,
        edge_homophily=measured.rate,
        node_homophily=measured.node,
        adjusted_homophily=measured.adjusted,
        components=int(csgraph.connected_components(matrix, directed=graph.directed, return_labels=False)),
        isolated=int((~has_neighbour).sum()),
        unreachable=int(np.isinf(node_hops(graph, y >= 0)).sum()),
        notes=graph.notes,
        columns=() if graph.columns is None else graph.columns.summaries(),
    )


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
    sends = graph.pattern.columns  # the rows of the transpose: who receives; of an undirected graph the same
    rowptr, col = sends.rowptr.cpu().numpy(), sends.col.cpu().numpy()
    # breadth first from one more node, number n, that sends to every given one
    rowptr, col = np.append(rowptr, rowptr[-1] + len(starts)), np.append(col, starts.astype(col.dtype))
    whole = scipy.sparse.csr_array((np.ones(len(col), np.int8), col, rowptr), shape=(n + 1, n + 1))
    order, sender = csgraph.breadth_first_order(whole, n)
    hops, senders = [np.inf] * (n + 1), sender.tolist()
    hops[n] = -1
    for node in order[1:].tolist():
        hops[node] = hops[senders[node]] + 1
    return np.array(hops[:n])


def html_table(caption: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A caption above a table, for notebooks; every text is escaped. Without a header the first cell of a row is its name."""

    def cell(value: object, tag: str) -> str:
        text = "–" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)
        return f'<{tag} style="text-align:left">{escape(text)}</{tag}>'

    head = f"<thead><tr>{''.join(cell(name, 'th') for name in header)}</tr></thead>" if header else ""
    lines = ("".join(cell(value, "td" if header or k else "th") for k, value in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><p><b>{escape(caption)}</b></p><table>{head}<tbody>{body}</tbody></table></div>"


def html_notes(notes: Iterable[str]) -> str:
    """A paragraph for each note."""
    return "".join(f"<p>{escape(note)}</p>" for note in notes)
