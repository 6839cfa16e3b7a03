"""The graph as the script of the page draws it: numbers packed into base64, names as JSON.

All nodes are drawn up to MOST_NODES; of a larger graph a sample around the nodes that the page lists. Where there are more than
MOST_EDGES, the edges with the largest learned weight are.

Edges pull like springs, nodes push each other away with a force of 1 / distance (Noack 2009, as in ForceAtlas2). The push is a
convolution, so it is computed on a grid by FFT: 20,000 nodes take seconds where all pairs would take hours. Nodes that are closer
than a cell of the grid are parted by their nearest neighbours at the end.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph
from scipy.spatial import cKDTree

from gcn_lpa.data.describe import edge_ends
from gcn_lpa.insight.drawing import CLASS_COLORS, SHAPES

if TYPE_CHECKING:
    from gcn_lpa.report.page import OpenRun

KINDS = ("no label", "label given", "held out to score", "reserved to calibrate")
MOST_NODES = 20_000
MOST_EDGES = 60_000
STATUS = ("labeled", "reached", "unreachable")


def graph_view(subject: OpenRun, listed: Iterable[int] = ()) -> dict[str, Any]:
    """What the script needs to draw the graph and to name what is drawn."""
    graph, (label, names) = subject.graph, subject.drawn_as
    target, truth = subject.trained.target, subject.trained.labels_of(graph)
    # of a number, whether one is known is all that its range is asked for
    true = np.where(target.known(truth), np.maximum(target.classes(truth), 0), -1)
    edges = learned_edges(subject)
    source, target, weight, links = edges.row, edges.col, edges.data, edges.tocsr()
    nodes = sample(links, listed, MOST_NODES)
    drawn_at = np.full(graph.num_nodes, -1)
    drawn_at[nodes] = np.arange(len(nodes))
    inside = np.flatnonzero((drawn_at[source] >= 0) & (drawn_at[target] >= 0))
    shown = np.sort(inside[np.argsort(-weight[inside], kind="stable")[:MOST_EDGES]])
    drawn = links[nodes][:, nodes].tocsr()
    largest = float(weight.max(initial=0)) or 1.0
    return {
        **subject.prediction.number_texts(nodes),
        "names": [str(graph.node_names[at]) for at in nodes.tolist()],
        "classes": list(names),
        "colors": list(CLASS_COLORS),
        "shapes": [SHAPES[k % len(SHAPES)] for k in range(len(names))],
        "kinds": list(KINDS),
        "statuses": list(STATUS),
        "directed": graph.directed,
        "xy": _packed(np.round(positions(drawn) * 65535), np.uint16),
        "label": _packed(label[nodes], np.uint16),
        "probability": _packed(np.round(subject.sure.numpy()[nodes] * 65535), np.uint16),
        "kind": _packed(subject.kind[nodes], np.uint8),
        "status": _packed(np.array([STATUS.index(subject.prediction.status[at]) for at in nodes]), np.uint8),
        "truth": _packed(true[nodes], np.int16),
        "source": _packed(drawn_at[source[shown]], np.uint16),
        "target": _packed(drawn_at[target[shown]], np.uint16),
        "weight": _packed(np.round(255 * np.sqrt(weight[shown] / largest)), np.uint8),
        "note": note(graph.num_nodes, len(nodes), len(inside), len(shown)),
    }


def note(num_nodes: int, drawn: int, edges: int, edges_drawn: int, around: str = "this page lists") -> str:
    """What of the graph is not drawn; empty where all of it is."""
    parts = []
    if drawn < num_nodes:
        parts.append(f"a sample of {drawn:,} of the {num_nodes:,} nodes, around those that {around}")
    if edges_drawn < edges:
        parts.append(f"the {edges_drawn:,} of {edges:,} edges between them that weigh most")
    return f"Drawn: {' and '.join(parts)}." if parts else ""


def learned_edges(subject: OpenRun) -> scipy.sparse.coo_array:
    """Every edge once, with what the model's transition gives it, the mean of both directions where it has two, [n, n]."""
    source, target = edge_ends(subject.graph)
    matrix = subject.explainer.transition.to_scipy().tocsr()
    weight = np.asarray(matrix[target, source]).ravel()
    if not subject.graph.directed:
        weight = (weight + np.asarray(matrix[source, target]).ravel()) / 2
    return scipy.sparse.coo_array((np.maximum(weight, 1e-9), (source, target)), shape=matrix.shape)


def _packed(values: np.ndarray, kind: Any) -> str:
    return base64.b64encode(values.ravel().astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


CELLS = 128  # of the grid, each way
ROUNDS = 250
LAST_ROUNDS = 60  # in which near nodes are parted
NEAREST = 6
PUSH = 0.1  # beside the springs, which have 1
GRAVITY = 0.25  # pulls to the middle: the square of the radius of a disc of nodes without edges


def positions(adjacency: scipy.sparse.csr_array, *, seed: int = 0) -> np.ndarray:
    """A point of the unit square for each node, [n, 2]; larger weights bring neighbours closer."""
    n = adjacency.shape[0]
    if n == 1:
        return np.full((1, 2), 0.5)
    links = adjacency.maximum(adjacency.T).tocoo()
    row, col, weight = links.row, links.col, np.sqrt(links.data / links.data.mean()) if links.nnz else links.data
    num_links = np.bincount(row, minlength=n)
    mass = 1.0 + num_links
    xy = _start(scipy.sparse.csr_array(links), np.random.Generator(np.random.PCG64(seed)))
    spacing = 1.0 / np.sqrt(n)
    for step in range(ROUNDS):
        apart = xy[col] - xy[row]
        force = np.stack([np.bincount(row, weight * apart[:, k], minlength=n) for k in (0, 1)], axis=1) / spacing
        force += PUSH * spacing * mass[:, None] * _push(xy, mass / mass.mean())
        force -= PUSH * mass[:, None] * (xy - xy.mean(axis=0)) / (GRAVITY * spacing)
        if step >= ROUNDS - LAST_ROUNDS:
            far, who = cKDTree(xy).query(xy, k=min(NEAREST + 1, n))
            short = np.maximum(0.35 * spacing - far, 0) / np.maximum(far, 1e-12)
            force += mass[:, None] * ((xy[:, None] - xy[who]) * short[:, :, None]).sum(axis=1)
        force /= mass[:, None]
        length = np.linalg.norm(force, axis=1, keepdims=True)
        heat = 3 * spacing * (1 - step / ROUNDS) + 0.05 * spacing
        xy = xy + force * np.minimum(1.0, heat / np.maximum(length, 1e-12))
    low, high = xy.min(axis=0), xy.max(axis=0)
    return np.asarray((xy - (low + high) / 2) / max(float((high - low).max()), 1e-12) + 0.5)


def _start(links: scipy.sparse.csr_array, rng: np.random.Generator) -> np.ndarray:
    """Smooth vectors of the graph: neighbours begin close to each other, components apart."""
    n = links.shape[0]
    degree = np.maximum(np.asarray(links.sum(axis=1)).ravel(), 1e-12)
    walk = scipy.sparse.diags_array(1 / degree) @ links
    smooth = rng.standard_normal((n, 2))
    for _ in range(60):
        smooth = np.linalg.qr(0.5 * (smooth + walk @ smooth) - smooth.mean(axis=0))[0]
    spread = np.argsort(np.argsort(smooth, axis=0), axis=0) / n - 0.5  # by rank: outliers take no more room than others
    return np.asarray(spread + 0.02 * rng.standard_normal((n, 2)) / np.sqrt(n))


def _push(xy: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Σ_j m_j (p_i - p_j) / |p_i - p_j|², of masses that are spread over the four cells around each, [n, 2]."""
    low = xy.min(axis=0)
    cell = max(float((xy - low).max()), 1e-12) / (CELLS - 2)
    at = (xy - low) / cell
    corner = np.minimum(at.astype(np.int64), CELLS - 2)
    part = at - corner
    shares = [(dx, dy, abs(1 - dx - part[:, 0]) * abs(1 - dy - part[:, 1])) for dx in (0, 1) for dy in (0, 1)]
    density = np.zeros(CELLS * CELLS)
    for dx, dy, share in shares:
        density += np.bincount((corner[:, 0] + dx) * CELLS + corner[:, 1] + dy, mass * share, minlength=CELLS * CELLS)
    spectrum = np.fft.rfft2(density.reshape(CELLS, CELLS), (2 * CELLS, 2 * CELLS))
    fields = [np.fft.irfft2(spectrum * kernel)[:CELLS, :CELLS].ravel() for kernel in _kernels()]
    push = np.zeros_like(xy)
    for dx, dy, share in shares:
        here = (corner[:, 0] + dx) * CELLS + corner[:, 1] + dy
        push += np.stack([field[here] for field in fields], axis=1) * share[:, None]
    return push / cell


@functools.cache
def _kernels() -> tuple[np.ndarray, np.ndarray]:
    """The spectra of x / (x² + y²) and y / (x² + y²), in cells."""
    away = np.fft.fftfreq(2 * CELLS, 1 / (2 * CELLS))
    x, y = away[:, None], away[None, :]
    square = x**2 + y**2
    square[0, 0] = 1.0
    return np.fft.rfft2(x / square), np.fft.rfft2(y / square)


def sample(adjacency: scipy.sparse.csr_array, first: Iterable[int], most: int) -> np.ndarray:
    """At most `most` nodes, ascending: those of `first`, and what is nearest to them, breadth first; then the first others."""
    n = adjacency.shape[0]
    if n <= most:
        return np.arange(n)
    starts = np.array(list(dict.fromkeys(first)), dtype=np.int64)[:most]
    links = adjacency.maximum(adjacency.T).tocsr()
    rows = np.append(links.indptr, links.indptr[-1] + len(starts))
    cols = np.append(links.indices, starts)
    whole = scipy.sparse.csr_array((np.ones(len(cols), np.int8), cols, rows), shape=(n + 1, n + 1))
    order = csgraph.breadth_first_order(whole, n, return_predecessors=False)[1:]
    kept = np.concatenate([order, np.setdiff1d(np.arange(n), order)])[:most]
    return np.sort(kept)
