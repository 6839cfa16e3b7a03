"""What columns of edges give: the default recipe with the columns of edges.csv and without, on generated graphs.

    PYTHONPATH=. python benchmarks/edge_columns.py --seeds 10 --out benchmarks/results/edge-columns-cpu.json

Every graph has 1,000 nodes of four classes, eight columns of nodes that tell a little, and 6,000 listed edges with an amount, a date
and a type. By design an edge joins two nodes of one class with a probability that is a function of its columns: of whether the
amount is above 1,000, of how old it is, of its type, of the product of the three, or (`none`) of nothing. The settings were fixed on
the seeds 100 and above; those reported are 0 to 9. Both rows are `learn(graph, train)` with the same seed and the same nodes to
learn from, a random tenth; all others are scored; the difference is paired.
"""

from __future__ import annotations

import numpy as np
import pandas

from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.graph import Graph

NODES, EDGES, CLASSES, COLUMNS = 1000, 6000, 4, 8
SIGNAL = 0.5  # distance of the means of the classes in each column, where the noise is 1
TYPES = {"family": 0.25, "colleague": 0.35, "other": 0.4}
DAYS = 1095  # three years
HIGH = {"amount": 0.8, "recency": 0.95, "type": 0.8, "product": 0.95, "none": 0.25}  # the largest probability
AMOUNT, SPREAD = 400.0, 1.2  # median of the amounts, and the deviation of their logs: a fifth is above 1,000


def probability(graph: str, amount: np.ndarray, age: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """That an edge joins nodes of one class by design."""
    parts = {
        "amount": np.where(amount > 1000, 1.0, 0.0),
        "recency": np.exp(-age / 240),
        "type": np.where(kind == "family", 1.0, 0.0),
        "none": np.ones(len(amount)),
    }
    parts["product"] = np.where(amount > AMOUNT, 1.0, 0.1) * np.exp(-age / 900) * np.where(kind == "other", 0.1, 1.0)
    return HIGH[graph] * parts[graph]


def generated(graph: str, seed: int, nodes: int = NODES) -> tuple[Graph, np.ndarray]:
    """A graph with columns of edges, and for each listed edge the probability behind it."""
    rng = np.random.default_rng([seed, 31])
    y = rng.integers(CLASSES, size=nodes)
    x = SIGNAL * rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(nodes, COLUMNS))
    number = EDGES * nodes // NODES
    amount = np.exp(np.log(AMOUNT) + SPREAD * rng.normal(size=number)).round(2)
    age = rng.integers(DAYS, size=number)
    kind = rng.choice(list(TYPES), p=list(TYPES.values()), size=number)
    joined = rng.random(number) < (share := probability(graph, amount, age, kind))
    source, target = rng.integers(nodes, size=(2, number))
    members = [np.flatnonzero(y == k) for k in range(CLASSES)]
    for k in np.flatnonzero(joined):
        target[k] = rng.choice(members[y[source[k]]])
    head = {"id": [f"n{i}" for i in range(nodes)], "label": [f"class {k}" for k in y]}
    table = pandas.DataFrame({**head, **{f"x{k}": x[:, k].round(4) for k in range(COLUMNS)}})
    when = (np.datetime64("2026-01-01") - age).astype(str)
    edges = pandas.DataFrame(
        {
            "source": [f"n{i}" for i in source],
            "target": [f"n{i}" for i in target],
            "amount": amount,
            "date": when,
            "type": kind,
        }
    )
    return read_csv(table, edges), share
