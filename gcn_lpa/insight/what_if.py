"""Which predictions would change with other labels or fewer edges; models are trained again only where that is asked for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.insight.explain import Explainer, few_threads
from gcn_lpa.insight.explanation import EQUAL, aligned, hops_in_words, plain
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.learning.updated import carried
from gcn_lpa.predict import Prediction
from gcn_lpa.trained import Trained

MOVED = 1e-6  # of a probability or score: less is rounding
PRINTED = 20  # changes of each set of predictions


@dataclass(frozen=True)
class Asked:
    """The changes of a what-if."""

    label: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # a class for nodes that have no training label
    relabel: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # another class for nodes that have one
    unlabel: Iterable[Hashable] = ()  # nodes whose training label is taken away
    remove_edges: Iterable[tuple[Hashable, Hashable]] = ()  # both directions go where the graph is undirected


@dataclass(frozen=True)
class Change:
    """A predicted class that changed, with the scores of the two classes; or a number, whose scores are standard scores. None: no
    label is near enough.
    """

    node: Hashable
    before: str | None
    after: str | None
    score_before: float
    score_after: float


@dataclass(frozen=True)
class Shift:
    """The difference between two sets of predictions."""

    changes: tuple[Change, ...]  # the largest move first
    num_moved: int  # nodes one of whose scores moved by more than MOVED
    largest_move: float

    @classmethod
    def between(cls, before: Tensor, after: Tensor, graph: Graph, nodes: Tensor) -> Shift:
        """What changes at `nodes` between two tables of scores, [n, c]."""
        target, before, after = graph.target, before[nodes], after[nodes]
        moves, was, now = target.moves(before, after).numpy(), target.named(before), target.named(after)
        changed = np.flatnonzero(~target.alike(was, now).numpy() & (moves > MOVED))
        order = changed[np.lexsort((changed, -moves[changed].round(EQUAL)))]
        ids = (graph.node_names[at] for at in nodes[order].tolist())
        texts = (target.texts(labels[order]) for labels in (was, now))
        scores = target.score_of(before, was)[order].tolist(), target.score_of(after, now)[order].tolist()
        changes = tuple(itertools.starmap(Change, zip(ids, *texts, *scores, strict=True)))
        return cls(changes, int((moves > MOVED).sum()), float(moves.max(initial=0)))


@dataclass(frozen=True)
class WhatIf:
    """Which predictions would differ: the model's, with the weights it has, and label propagation's, exactly. `retrained`: those
    of a model trained with the changes beside one trained without them, where that was asked for.

    Nodes that have a training label after the changes are not listed: theirs is given.
    """

    asked: tuple[str, ...]
    method: str
    hops: int
    num_nodes: int  # that are predicted
    model: Shift
    lpa: Shift
    notes: tuple[str, ...]
    retrained: Shift | None = None

    def to_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = plain(dataclasses.asdict(self))
        return facts

    def __str__(self) -> str:
        lines = [f"what if: {'; '.join(self.asked)}"]
        shifts = [(self.method, self.model), (f"LPA, {hops_in_words(self.hops)}", self.lpa)]
        if self.retrained is not None:
            shifts.append((f"{self.method}, trained again", self.retrained))
        for name, shift in shifts:
            moved = f"scores of {shift.num_moved:,} moved, by {shift.largest_move:.3f} at most"
            moved = moved if shift.num_moved else "no score moved"
            lines += ["", f"{name}: {len(shift.changes):,} of {self.num_nodes:,} predictions change; {moved}"]
            rows = []
            for one in shift.changes[:PRINTED]:
                was, now = (
                    f"{one.before or 'none'} {one.score_before:.3f}",
                    f"{one.after or 'none'} {one.score_after:.3f}",
                )
                rows.append(("", str(one.node), was, f"→ {now}"))
            lines += aligned(rows)
            if len(shift.changes) > PRINTED:
                lines.append(f"  … and {len(shift.changes) - PRINTED:,} more; --json lists all")
        return "\n".join([*lines, "", *(f"note: {note}" for note in self.notes)])


def what_if(
    trained: Trained,
    graph: Graph,
    *,
    label: Mapping[Any, str] | None = None,
    relabel: Mapping[Any, str] | None = None,
    unlabel: Iterable[Hashable] = (),
    remove_edges: Iterable[tuple[Hashable, Hashable]] = (),
    hops: int | None = None,
    retrain: bool = False,
) -> WhatIf:
    """Which predictions would change if nodes had another label, or none, and edges were not there.

    Label propagation is computed again, exactly. The model is applied again with the weights it has: W and the scores of the
    edges that stay are not trained again. So labels move only models that read labels when they predict.

    Args:
        label: a class for nodes that have no training label.
        relabel: another class for nodes that have one.
        unlabel: nodes whose training label is taken away.
        remove_edges: pairs of nodes that are joined; both directions go where the graph is undirected.
        hops: how far a label travels; None: as the recipe says.
        retrain: also train two models, without and with the changes, from the same first weights, and compare them.
    """
    nodes = [unlabel] if isinstance(unlabel, str) else list(unlabel)
    asked = Asked(label or {}, relabel or {}, nodes, list(remove_edges))
    explainer = Explainer.of(trained, graph, hops=hops)
    answered = answer(explainer, asked)
    if not retrain:
        return answered
    how = f"trained again: two {answered.method} models, without and with the changes, from the same first weights"
    return dataclasses.replace(answered, retrained=retrained(explainer, graph, asked), notes=(how, *answered.notes[1:]))


def answer(explainer: Explainer, asked: Asked) -> WhatIf:
    """`what_if` for one explainer and several questions; nothing is trained again."""
    method = explainer.trained.recipe.method
    with few_threads(explainer.graph, explainer.trained.recipe):
        y, relabelled = other_labels(explainer.graph, asked)
        kept, removed = other_edges(explainer.graph, asked.remove_edges)
        if not relabelled and not removed:
            raise ValueError("nothing is asked: give a node to label, relabel or unlabel, or an edge to remove")
        other = changed(explainer, y, kept if removed else None)
        notes = [f"nothing was trained again: {method} has the weights of the run"]
        if relabelled and not explainer.trained.method.reads_labels and explainer.trained.weights is None:
            notes.append(f"labels reach {method} only when it is trained: retrain to see what they do to it")
        if removed:
            notes.append("edges that stay keep their scores; each node's shares are divided anew among them")
        predicted = (~explainer.graph.target.known(y)).nonzero().squeeze(1)
        target, is_labeled = explainer.graph.target, explainer.graph.labeled.unsqueeze(1)
        kept_labels = target.tallied(target.seeds(explainer.graph.y, torch.float64))
        scores = torch.where(is_labeled, kept_labels, explainer.lpa)  # Eq. (2): a labelled node keeps its label
        lpa = Shift.between(scores, other.lpa, explainer.graph, predicted)
        model = Shift.between(explainer.prediction.output, other.prediction.output, explainer.graph, predicted)
        words = (*relabelled, *removed)
        return WhatIf(words, method, explainer.hops, len(predicted), model, lpa, tuple(notes))


def retrained(explainer: Explainer, graph: Graph, asked: Asked) -> Shift:
    """The difference between a model that is trained on the training labels and one that is trained with the changes."""
    trained, graph = explainer.trained, explainer.trained.walked(graph)
    known, trains = trained.known.on(graph)
    y, _ = other_labels(explainer.graph, asked)
    moved = (y != explainer.graph.y) & (explainer.graph.target.known(y) | explainer.graph.labeled)
    kept, _ = other_edges(graph, asked.remove_edges)
    before = graph.labeled_by(known, trained.target, published=())
    after = before.with_adjacency(part_of(graph.adjacency, kept), y=torch.where(moved, y, known))
    probabilities = []
    for one, learns in ((before, trains), (after, torch.where(moved, before.target.known(y), trains))):
        val = one.labeled & ~learns
        epochs = None if val.any() else trained.run.best_epoch
        options: dict[str, Any] = {"seeds": trained.run.seed, "target": trained.target, "stop_at": epochs}
        (again,) = learn_many(one, [(learns, val)], trained.recipe, **options)
        probabilities.append(Prediction.of(again, one).output)
    predicted = (~before.target.known(y)).nonzero().squeeze(1)
    return Shift.between(probabilities[0], probabilities[1], before, predicted)


def other_labels(graph: Graph, asked: Asked) -> tuple[Tensor, list[str]]:
    """The training labels with the changes asked for, [n], and the changes in words."""
    y, words, seen = graph.y.clone(), [], set()
    for node, name, verb in [
        *((node, name, "label") for node, name in asked.label.items()),
        *((node, name, "relabel") for node, name in asked.relabel.items()),
        *((node, None, "unlabel") for node in asked.unlabel),
    ]:
        at = graph.index_of(node)
        shown = graph.node_names[at]
        if at in seen:
            raise ValueError(f"node {shown!r} is named twice; one change of its label at a time")
        seen.add(at)
        is_known = bool(graph.target.known(y[at]))
        if verb != "label" and not is_known:
            raise ValueError(f"node {shown!r} has no label that the run was trained on; label it instead")
        if verb == "label" and is_known:
            was = str(graph.target.words(y[at : at + 1])[0])
            raise ValueError(f"node {shown!r} was trained on as {was!r}; relabel it instead")
        y[at] = graph.target.unknown if name is None else graph.target.read(name)
        words.append(f"{verb} {shown}" if name is None else f"{verb} {shown} as {name}")
    return y, words


def other_edges(graph: Graph, pairs: Iterable[tuple[Hashable, Hashable]]) -> tuple[Tensor, list[str]]:
    """Which entries of the adjacency stay, [E], and the edges that go in words."""
    words = []
    row, col = graph.row.long(), graph.col.long()
    goes = torch.zeros(len(row), dtype=torch.bool)
    for source, target in pairs:
        a, b = graph.index_of(source), graph.index_of(target)
        arrow = "→" if graph.directed else "–"
        shown = f"{graph.node_names[a]} {arrow} {graph.node_names[b]}"
        if a == b:
            raise ValueError(f"{shown} is a self-loop, which belongs to the recipe; name an edge between two nodes")
        entry = (row == b) & (col == a)
        if not graph.directed:
            entry |= (row == a) & (col == b)
        if not entry.any():
            end = b if graph.directed else a
            joined = [str(graph.node_names[v]) for v in col[row == end].tolist() if v not in (a, b)]
            near = f"is joined to {', '.join(joined[:8])}{', …' if len(joined) > 8 else ''}"
            raise ValueError(f"there is no edge {shown}; {graph.node_names[end]} {near if joined else 'has no edge'}")
        goes |= entry
        words.append(f"remove edge {shown}")
    return ~goes, words


def changed(explainer: Explainer, y: Tensor, kept: Tensor | None) -> Explainer:
    """The same model on other labels and, of the adjacency, only the entries of `kept`."""
    trained, graph = explainer.trained, dataclasses.replace(explainer.graph, y=y)
    if kept is not None:
        part = part_of(graph.adjacency, kept)
        model = carried(trained.model, explainer.placed, part.pattern, torch.arange(graph.num_nodes))
        trained = dataclasses.replace(trained, model=model)
        graph = graph.with_adjacency(part)
    same = (y == explainer.graph.y) | ~(trained.target.known(y) | explainer.graph.labeled)
    given = torch.where(same, explainer.given, y)
    return dataclasses.replace(explainer, trained=trained, graph=graph, given=given)


def part_of(matrix: SparseMatrix, kept: Tensor) -> SparseMatrix:
    """The matrix with only those entries stored that are kept, [E]."""
    coo, keep = matrix.to_scipy().tocoo(), kept.numpy()
    return SparseMatrix.from_coo(coo.row[keep], coo.col[keep], coo.data[keep], matrix.shape)
