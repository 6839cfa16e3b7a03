"""Random graphs whose training is measured, here and in a process of its own."""

import numpy as np
import scipy.sparse

from gcn_lpa.graph import Graph

NUM_NODES = 30_000


def random_graph(num_nodes, degree, columns, classes, *, sparse=False, directed=False):
    rng = np.random.default_rng(0)
    edges = rng.integers(0, num_nodes, (num_nodes * degree // 2, 2))
    x = rng.standard_normal((num_nodes, columns), dtype=np.float32)
    if sparse:
        x = scipy.sparse.csr_array(x * (rng.random(x.shape) < 20 / columns))
    y = np.arange(num_nodes) // 10 % classes
    return Graph.from_edges(edges, num_nodes=num_nodes, x=x, y=y, directed=directed)
