"""The graph as the script of the page draws it: numbers packed into base64, names as JSON.

All nodes are drawn up to MOST_NODES; of a larger graph a sample around the nodes that the page lists. Where there are more than
MOST_EDGES, the edges with the largest learned weight are.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse

from gcn_lpa.insight.evidence import edge_ends
from gcn_lpa.palette import CLASS_COLORS, SHAPES
from gcn_lpa.report.contents import KINDS, OpenRun
from gcn_lpa.report.layout import positions, sample

MOST_NODES = 20_000
MOST_EDGES = 60_000
STATUS = ("labeled", "reached", "unreachable")


def graph_view(subject: OpenRun, listed: Iterable[int] = ()) -> dict[str, Any]:
    """What the script needs to draw the graph and to name what is drawn."""
    graph, names = subject.graph, subject.trained.class_names
    source, target = edge_ends(graph)
    weight = learned_weights(subject, source, target)
    links = scipy.sparse.csr_array((weight, (source, target)), shape=(graph.num_nodes,) * 2)
    nodes = sample(links, listed, MOST_NODES)
    place = np.full(graph.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    inside = np.flatnonzero((place[source] >= 0) & (place[target] >= 0))
    shown = np.sort(inside[np.argsort(-weight[inside], kind="stable")[:MOST_EDGES]])
    drawn = links[nodes][:, nodes].tocsr()
    truth = subject.trained.classes_of(graph).numpy()
    largest = float(weight.max(initial=0)) or 1.0
    return {
        "names": [str(graph.node_names[at]) for at in nodes.tolist()],
        "classes": list(names),
        "colors": list(CLASS_COLORS),
        "shapes": [SHAPES[k % len(SHAPES)] for k in range(len(names))],
        "kinds": list(KINDS),
        "statuses": list(STATUS),
        "directed": graph.directed,
        "xy": _packed(np.round(positions(drawn) * 65535), np.uint16),
        "label": _packed(subject.probabilities.argmax(dim=1).numpy()[nodes], np.uint16),
        "probability": _packed(np.round(subject.confidence.numpy()[nodes] * 65535), np.uint16),
        "kind": _packed(subject.kind[nodes], np.uint8),
        "status": _packed(np.array([STATUS.index(subject.explainer.status[at]) for at in nodes]), np.uint8),
        "truth": _packed(truth[nodes], np.int16),
        "source": _packed(place[source[shown]], np.uint16),
        "target": _packed(place[target[shown]], np.uint16),
        "weight": _packed(np.round(255 * np.sqrt(weight[shown] / largest)), np.uint8),
        "num_nodes": graph.num_nodes,
        "num_edges": len(source),
        "note": note(graph.num_nodes, len(nodes), len(inside), len(shown)),
    }


def note(num_nodes: int, drawn: int, edges: int, edges_drawn: int) -> str:
    """What of the graph is not drawn; empty where all of it is."""
    parts = []
    if drawn < num_nodes:
        parts.append(f"a sample of {drawn:,} of the {num_nodes:,} nodes, around those that this page lists")
    if edges_drawn < edges:
        parts.append(f"the {edges_drawn:,} of {edges:,} edges between them that weigh most")
    return f"Drawn: {' and '.join(parts)}." if parts else ""


def learned_weights(subject: OpenRun, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """What the model's transition gives each edge, the mean of both directions where it has two, [edges]."""
    matrix = subject.explainer.transition.to_scipy().tocsr()
    weight = np.asarray(matrix[target, source]).ravel()
    if not subject.graph.directed:
        weight = (weight + np.asarray(matrix[source, target]).ravel()) / 2
    positive: np.ndarray = np.maximum(weight, 1e-9)
    return positive


def _packed(values: np.ndarray, kind: Any) -> str:
    return base64.b64encode(values.ravel().astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()
