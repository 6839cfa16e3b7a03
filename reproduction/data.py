"""The data of the study: the five graphs of the paper from files that are known, and the one split of the authors' code."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.datasets import DATASETS, load
from gcn_lpa.data.splits import Split
from gcn_lpa.graph import Graph

AUTHORS_SEED = 234  # fixed in the authors' public code


@lru_cache(maxsize=1)
def graph_of(dataset: str, root: str | None) -> Graph:
    return load_known(dataset, root)


def load_known(name: str, root: str | Path | None = None) -> Graph:
    """A named data set like `load`; files that are not the known ones are refused."""
    graph, dataset = load(name, root), DATASETS[name.lower()]
    folder = dataset.find(root)
    if folder is not None and (changed := dataset.changed(folder, graph)):
        raise ValueError(f"{changed}; the known ones are needed here, from {dataset.url or name}")
    return graph


def authors_split(num_nodes: int) -> Split:
    """The one split of the authors' code, over *all* nodes: one without a label teaches nothing there, and is scored as
    class 0 (`with_unknown_as`).
    """
    random = np.random.RandomState(AUTHORS_SEED)
    size = int(0.2 * num_nodes)
    val = random.choice(num_nodes, size, replace=False)
    left = np.setdiff1d(np.arange(num_nodes), val)  # they take list(set(...)), which CPython keeps in this order
    test = random.choice(left, size, replace=False)
    masks = [torch.from_numpy(np.isin(np.arange(num_nodes), nodes)) for nodes in (np.setdiff1d(left, test), val, test)]
    return Split(masks[0], masks[1], masks[2], "authors", AUTHORS_SEED)


def with_unknown_as(graph: Graph, label: int, nodes: Tensor) -> Graph:
    """The same graph with the unlabelled nodes of a mask put into one class."""
    unknown = ~graph.labeled & nodes.to(graph.device)
    return dataclasses.replace(graph, y=torch.where(unknown, label, graph.y))
