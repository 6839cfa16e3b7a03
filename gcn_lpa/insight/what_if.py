"""Which predictions would change with other labels or fewer edges; a model is trained again only where that is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.checks import similar
from gcn_lpa.graph import Graph
from gcn_lpa.insight.answers import Change, Shift, WhatIf
from gcn_lpa.insight.explain import Explainer, few_threads
from gcn_lpa.insight.paths import EQUAL, part_of, winners
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.learning.updated import carried
from gcn_lpa.predict import predict_proba
from gcn_lpa.trained import Trained

MOVED = 1e-6  # of a probability or score: less is rounding


@dataclass(frozen=True)
class Asked:
    """The changes of a what-if."""

    label: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # a class for nodes that have no known label
    relabel: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # another class for nodes that have one
    unlabel: Iterable[Hashable] = ()  # nodes whose known label is taken away
    remove_edges: Iterable[tuple[Hashable, Hashable]] = ()  # both directions go where the graph is undirected


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
        label: a class for nodes that have no known label.
        relabel: another class for nodes that have one.
        unlabel: nodes whose known label is taken away.
        remove_edges: pairs of nodes that are joined; both directions go where the graph is undirected.
        hops: how far a label travels; None: as the recipe says.
        retrain: also train two models, without and with the changes, from the same first weights, and compare them.
    """
    nodes = [unlabel] if isinstance(unlabel, str) else list(unlabel)
    explainer, changes = (
        Explainer.of(trained, graph, hops=hops),
        Asked(label or {}, relabel or {}, nodes, list(remove_edges)),
    )
    found = answer(explainer, changes)
    if not retrain:
        return found
    how = f"trained again: two {found.method} models, without and with the changes, from the same first weights"
    return dataclasses.replace(found, retrained=retrained(explainer, graph, changes), notes=(how, *found.notes[1:]))


def retrained(explainer: Explainer, graph: Graph, changes: Asked) -> Shift:
    """What changes between a model that is trained on the known labels and one that is trained with the changes."""
    trained, names = explainer.trained, explainer.trained.class_names
    known, trains = trained.known.on(graph)
    y, _ = other_labels(explainer, dict(changes.label), dict(changes.relabel), list(changes.unlabel))
    moved = y != explainer.graph.y
    kept, _ = other_edges(graph, list(changes.remove_edges))
    before = dataclasses.replace(graph, y=known, class_names=names, public=None)
    after = before.with_adjacency(part_of(graph.adjacency, kept), y=torch.where(moved, y, known))
    said = []
    for one, learns in ((before, trains), (after, torch.where(moved, y >= 0, trains))):
        val = one.labeled & ~learns
        epochs = None if val.any() else trained.run.best_epoch
        options: dict[str, Any] = {"seeds": trained.run.seed, "classes": names, "stop_at": epochs}
        (again,) = learn_many(one, [(learns, val)], trained.recipe, **options)
        said.append(predict_proba(again, one, raw=True).double())
    return shift(before, (y < 0).nonzero().squeeze(1), *said)


def answer(explainer: Explainer, changes: Asked) -> WhatIf:
    """`what_if` for one explainer and several questions."""
    with few_threads(explainer.graph, explainer.recipe):
        return _answer(explainer, changes)


def _answer(explainer: Explainer, changes: Asked) -> WhatIf:
    method = explainer.recipe.method
    y, asked = other_labels(explainer, dict(changes.label), dict(changes.relabel), list(changes.unlabel))
    kept, removed = other_edges(explainer.graph, list(changes.remove_edges))
    if not asked and not removed:
        raise ValueError("nothing is asked: give a node to label, relabel or unlabel, or an edge to remove")
    other = changed(explainer, y, kept if removed else None)
    notes = [f"nothing was trained again: {method} has the weights of the run"]
    if asked and not explainer.trained.method.reads_labels and explainer.trained.weights is None:
        notes.append(
            f"labels reach {method} only when it is trained: train it again (retrain) to see what they do to it"
        )
    if removed:
        notes.append("edges that stay keep their scores; each node's shares are divided anew among them")
    predicted = (y < 0).nonzero().squeeze(1)
    return WhatIf(
        asked=(*asked, *removed),
        method=method,
        hops=explainer.hops,
        num_nodes=len(predicted),
        model=shift(explainer.graph, predicted, explainer.model_output, other.model_output),
        lpa=shift(explainer.graph, predicted, after_reset(explainer), other.scores),
        notes=tuple(notes),
    )


def after_reset(explainer: Explainer) -> Tensor:
    """LPA's predictions: a labelled node has its own label, Eq. (2), [n, c]."""
    return torch.where(explainer.graph.labeled.unsqueeze(1), explainer.seeds, explainer.scores)


def shift(graph: Graph, nodes: Tensor, before: Tensor, after: Tensor) -> Shift:
    """What changes at `nodes` between two tables of scores, [n, c]."""
    names = [*graph.class_names, None]
    before, after = before[nodes], after[nodes]
    moves = (after - before).abs().amax(dim=1).numpy()
    was, now = winners(before), winners(after)
    changed = np.flatnonzero((was != now) & (moves > MOVED))
    changes = tuple(
        Change(
            node=graph.node_names[int(nodes[i])],
            before=names[was[i]],
            after=names[now[i]],
            score_before=float(before[i, was[i]]) if was[i] >= 0 else 0.0,
            score_after=float(after[i, now[i]]) if now[i] >= 0 else 0.0,
        )
        for i in changed[np.lexsort((changed, -moves[changed].round(EQUAL)))].tolist()
    )
    return Shift(changes, int((moves > MOVED).sum()), float(moves.max(initial=0)))


def other_labels(
    explainer: Explainer, label: dict[Hashable, str], relabel: dict[Hashable, str], unlabel: list[Hashable]
) -> tuple[Tensor, list[str]]:
    """The known labels with the changes asked for, [n], and the changes in words."""
    graph, y, asked, seen = explainer.graph, explainer.graph.y.clone(), [], set()
    for node, name, has_label in [
        *((node, name, False) for node, name in label.items()),
        *((node, name, True) for node, name in relabel.items()),
        *((node, None, True) for node in unlabel),
    ]:
        at = graph.index_of(node)
        shown = graph.node_names[at]
        if at in seen:
            raise ValueError(f"node {shown!r} is named twice; one change of its label at a time")
        seen.add(at)
        if has_label and y[at] < 0:
            raise ValueError(f"node {shown!r} has no label that the run was trained on; label it instead")
        if not has_label and y[at] >= 0:
            old = graph.class_names[int(y[at])]
            raise ValueError(f"node {shown!r} was trained on as {old!r}; relabel it instead")
        y[at] = -1 if name is None else class_of(graph, name)
        verb = {False: "label", True: "relabel"}[has_label]
        asked.append(f"unlabel {shown}" if name is None else f"{verb} {shown} as {name}")
    return y, asked


def class_of(graph: Graph, name: str) -> int:
    names = graph.class_names
    if name in names:
        return names.index(name)
    close = similar(str(name), names)
    hint = f"close to it: {', '.join(close)}" if close else f"there are {', '.join(names[:12])}"
    raise ValueError(f"there is no class {name!r}; {hint}")


def other_edges(graph: Graph, pairs: list[tuple[Hashable, Hashable]]) -> tuple[Tensor, list[str]]:
    """Which entries of the adjacency stay, [E], and what goes in words."""
    asked = []
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
            hint = (
                f"is joined to {', '.join(joined[:8])}{', …' if len(joined) > 8 else ''}" if joined else "has no edge"
            )
            raise ValueError(f"there is no edge {shown}; {graph.node_names[end]} {hint}")
        goes |= entry
        asked.append(f"remove edge {shown}")
    return ~goes, asked


def changed(explainer: Explainer, y: Tensor, kept: Tensor | None) -> Explainer:
    """The same model on other labels and, of the adjacency, only the entries of `kept`."""
    trained, graph = explainer.trained, dataclasses.replace(explainer.graph, y=y)
    if kept is not None:
        part = part_of(graph.adjacency, kept)
        model = carried(trained.model, explainer.placed, part.pattern, torch.arange(graph.num_nodes))
        trained = dataclasses.replace(trained, model=model)
        graph = graph.with_adjacency(part)
    given = torch.where(y == explainer.graph.y, explainer.given, y)
    return dataclasses.replace(explainer, trained=trained, graph=graph, given=given)
