"""Which nodes train, which validate and which test."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.checks import NO_LABEL, WARNING, check_seed, meant

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph

SPLIT_KINDS = ("uniform", "stratified", "official", "per_class", "time")


@dataclass(frozen=True, eq=False)
class Split:
    """Which nodes train, which validate and which test: three boolean masks without a node in common."""

    train: Tensor
    val: Tensor
    test: Tensor
    kind: str = "own"
    seed: int | None = None

    def __post_init__(self) -> None:
        masks = {"train": self.train, "val": self.val, "test": self.test}
        for part, mask in masks.items():
            if mask.dtype != torch.bool or mask.shape != self.train.shape or mask.dim() != 1:
                raise ValueError(f"{part} must be a boolean mask of the nodes, not {mask.dtype} {tuple(mask.shape)}")
        shared = (self.train & self.val) | (self.train & self.test) | (self.val & self.test)
        if shared.any():
            raise ValueError(f"node {int(shared.nonzero()[0])} is in more than one of train, val and test")

    def __repr__(self) -> str:
        sizes = "/".join(f"{int(mask.sum()):,}" for mask in (self.train, self.val, self.test))
        return f"Split {self.hash} ({self.kind}, seed {self.seed}): {sizes} nodes train/validate/test"

    @cached_property
    def hash(self) -> str:
        """10 hexadecimal digits over the masks: who has the same has the same split."""
        digest = hashlib.sha256(str(len(self.train)).encode())
        for mask in (self.train, self.val, self.test):
            digest.update(np.packbits(mask.cpu().numpy()).tobytes())
        return digest.hexdigest()[:10]


def split(
    graph: Graph,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    *,
    kind: str = "uniform",
    per_class: int = 20,
    num_val: int = 500,
) -> Split:
    """Divide the labelled nodes into train, validation and test; the same seed gives the same split everywhere.

    uniform: the paper's, int(0.2 m) validation and int(0.2 m) test nodes of the m labelled ones, the rest trains.
    stratified: the same sizes, each class divided alike.
    official: a split that was published with the data: the one of Planetoid, or number `seed` of several.
    per_class: `per_class` training nodes of each class, then `num_val` validation nodes, the rest tests.
    time: the earliest train, the next validate and the latest test; nodes of one time stay together (`graph.time`).

    Args:
        fractions: train, val and test. Where they sum to 1, train takes what rounding leaves.
    """
    if kind not in SPLIT_KINDS:
        raise ValueError(f"unknown split {kind!r}; there are {', '.join(SPLIT_KINDS)}{meant(kind, SPLIT_KINDS)}")
    seed = check_seed(seed)
    if kind == "official":
        return _published(graph, seed)
    if kind == "time":
        return _time_split(graph, fractions)
    labels = graph.target.strata(graph.y.cpu()).numpy()
    nodes = np.random.Generator(np.random.PCG64(seed)).permutation(np.flatnonzero(labels >= 0))
    require_labels(graph)
    if kind == "per_class":
        train, val, test = _per_class(nodes, labels[nodes], graph, per_class, num_val)
    else:
        if len(fractions) != 3 or min(fractions) < 0 or not sum(fractions) <= 1 + 1e-9:
            right = "three shares of the labelled nodes that sum to at most 1"
            raise ValueError(f"fractions are {right}, not {fractions}")
        num_val, num_test = int(fractions[1] * len(nodes)), int(fractions[2] * len(nodes))
        is_exhaustive = math.isclose(sum(fractions), 1)
        num_train = len(nodes) - num_val - num_test if is_exhaustive else int(fractions[0] * len(nodes))
        if num_train == 0:
            raise ValueError(f"no node is left to train on: {fractions} of {len(nodes)} labelled nodes")
        if kind == "stratified":
            nodes = _spread_classes(nodes, labels[nodes], (num_val, num_test))
        val, test = nodes[:num_val], nodes[num_val : num_val + num_test]
        train = nodes[num_val + num_test :][:num_train]
    return _split_of(graph.num_nodes, train, val, test, kind, seed)


def _published(graph: Graph, seed: int) -> Split:
    number = len(graph.published)
    if not number:
        raise ValueError(
            f"{graph.name!r} has no official split here (cora, citeseer, pubmed and acm have one; minesweeper, actor and the "
            "filtered wiki graphs ten, in a file NAME_masks.npz beside theirs)"
        )
    if number > 1 and seed >= number:
        raise ValueError(f"{graph.name!r} has {number} official splits, 0 to {number - 1}; seed {seed} names none")
    return graph.published[seed if number > 1 else 0]


def _time_split(graph: Graph, fractions: tuple[float, float, float]) -> Split:
    if graph.time is None:
        raise ValueError(f"{graph.name!r} does not say when its nodes came; option time=… names the column that does")
    nodes = np.flatnonzero(graph.labeled.cpu().numpy())
    time = graph.time.numpy()[nodes]
    moments, counts = np.unique(time, return_counts=True)
    if len(moments) < 3:
        right = "it takes three to train, validate and test"
        raise ValueError(f"the labelled nodes of {graph.name!r} came at {len(moments)} times; {right}")
    share = np.cumsum(counts) / counts.sum()
    last = int(np.abs(share[:-2] - fractions[0]).argmin())  # of the training nodes
    until = last + 1 + int(np.abs(share[last + 1 : -1] - fractions[0] - fractions[1]).argmin())
    bounds = np.searchsorted(moments[[last, until]], time)  # 0, 1 or 2
    train, val, test = (nodes[bounds == k] for k in range(3))
    return _split_of(graph.num_nodes, train, val, test, "time", None)


def require_labels(graph: Graph) -> None:
    """Refuse a graph without labels; a column that could be the label is asked for."""
    if not graph.labeled.any():
        asked = next((note.removeprefix(WARNING) for note in graph.notes if NO_LABEL in note), None)
        hint = asked or "give some of its nodes a label"
        raise ValueError(f"{graph.name!r} has no labelled node to train on; {hint}")


def require_classes(graph: Graph) -> None:
    """Refuse a graph without labels, or with labels of one class or number: there is nothing to tell apart."""
    require_labels(graph)
    classes = torch.unique(graph.y[graph.labeled])
    if len(classes) == 1:
        kind = "classes" if graph.class_names else "numbers"
        label = graph.target.words(classes.cpu()).tolist()[0]
        raise ValueError(f"every label of {graph.name!r} is {label!r}; to tell {kind} apart it takes labels of two")


def _split_of(num_nodes: int, train: np.ndarray, val: np.ndarray, test: np.ndarray, kind: str, seed: int | None) -> Split:
    masks = torch.zeros((3, num_nodes), dtype=torch.bool)
    for mask, nodes in zip(masks, (train, val, test), strict=True):
        mask[torch.from_numpy(nodes)] = True
    return Split(*masks.unbind(), kind, seed)  # type: ignore[call-arg,arg-type]


def _spread_classes(nodes: np.ndarray, labels: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """`nodes` in an order whose first `sizes[0]` and next `sizes[1]` hold every class in proportion."""
    parts = []
    for size in sizes:
        classes, counts = np.unique(labels, return_counts=True)
        taken = np.zeros(len(nodes), dtype=bool)
        for label, share in zip(classes, _apportion(size, counts), strict=True):
            taken[np.flatnonzero(labels == label)[:share]] = True
        parts.append(nodes[taken])
        nodes, labels = nodes[~taken], labels[~taken]
    return np.concatenate([*parts, nodes])


def _apportion(total: int, counts: np.ndarray) -> np.ndarray:
    """`total` seats in proportion to `counts`: whole shares, then the largest remainders."""
    exact = total * counts / max(1, counts.sum())
    seats: np.ndarray = np.floor(exact).astype(np.int64)
    for _ in range(total - int(seats.sum())):
        remainder = exact - seats - 10 * (seats + 1 >= counts)  # a class gives its last node only when all others have
        seats[np.argmax(np.where(seats < counts, remainder, -np.inf))] += 1
    return seats


def _per_class(
    nodes: np.ndarray, labels: np.ndarray, graph: Graph, per_class: int, num_val: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    graph.target.only_classes("split 'per_class' is for classes; 'uniform' and 'stratified' are for numbers too")
    train = np.zeros(len(nodes), dtype=bool)
    for label, name in enumerate(graph.class_names):
        members = np.flatnonzero(labels == label)
        if len(members) < per_class:
            raise ValueError(f"class {name!r} has {len(members)} labelled nodes, {per_class} are asked for to train")
        train[members[:per_class]] = True
    rest = nodes[~train]
    if num_val > len(rest):
        raise ValueError(f"{num_val} validation nodes are asked for, but {len(rest)} labelled nodes are left")
    return nodes[train], rest[:num_val], rest[num_val:]


def label_folds(labels: Tensor, given: Tensor, folds: int, *, seed: tuple[int, int]) -> list[Tensor]:
    """Masks that share out the given nodes at random, those of a class evenly, [n] each."""
    nodes = np.random.Generator(np.random.PCG64(seed)).permutation(np.flatnonzero(given.numpy()))
    nodes = nodes[np.argsort(labels.numpy()[nodes], kind="stable")]
    masks = torch.zeros((folds, len(given)), dtype=torch.bool)
    for k, mask in enumerate(masks):
        mask[torch.from_numpy(nodes[k::folds].copy())] = True
    return list(masks)
