"""A trained model on an updated graph: nodes, edges and labels came or went; or on another graph with the same columns.

Nothing is trained again. Every label of the graph votes at once, also those that came after training. Edges are scored from
the features of their ends, or keep the given weight. Free edge weights belong to the edges they were learned for: they are
found again by the names of both ends, and a new edge has its given weight. A node without features is known by its name; a
new one has what its neighbours have.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcn_lpa.edges import Free
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.learning.ensemble import Ensemble, Parts, parts_of
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.predict import Prediction
from gcn_lpa.trained import Trained


@dataclass(frozen=True)
class Changes:
    """What is new or gone in an updated graph, and what became of the predictions.

    Labels are compared with those the model was given; nodes, edges and predictions with the graph before, None without one.
    Self-loops are no edges here. A prediction is compared where a node is in both graphs and has no label now.
    """

    graph: str
    nodes: int
    edges: int
    labels: int  # that vote
    labels_new: int
    labels_changed: int
    labels_gone: int
    unknown_classes: dict[str, int]  # labels of classes that the model does not know, which cannot vote
    silent_classes: tuple[str, ...]  # of labels that the model was given, of which none is here, though others vote
    votes: bool  # whether labels vote at all; of a plain GCN they only train
    edges_unweighted: int = 0  # entries that free weights were not learned for, which have their given weight
    nodes_new: int | None = None
    nodes_gone: int | None = None
    edges_new: int | None = None
    edges_gone: int | None = None
    edges_reweighted: int | None = None
    predictions: int | None = None
    predictions_changed: int | None = None


@dataclass(frozen=True, eq=False)
class Updated:
    """A model on an updated graph; `of` makes one."""

    trained: Trained
    graph: Graph
    before: Graph | None  # that the model was trained on
    place: Tensor | None  # where each of its nodes is now, -1 where it is gone, [n before]
    adapted: Trained  # with the free weights of the edges there are now
    edges_unweighted: int = 0

    @classmethod
    def of(cls, trained: Trained, graph: Graph, before: Graph | None = None) -> Updated:
        """Find in `graph` what the model knows, and refuse what it cannot score.

        Args:
            graph: raw; nodes are known by their names, or by their positions where neither graph has names.
            before: the graph the model was trained on, raw. Free edge weights and models without features need it.
        """
        check_graph(graph)
        is_by_position = trained.x_kind == "identity"
        if before is None:
            if is_by_position and not isinstance(graph.node_names, range):  # without names the order is granted
                at = graph.positions_of(trained.known.nodes)
                if not ((at >= 0).all() and (np.diff(at) > 0).all()):
                    raise ValueError(
                        f"the model was trained without features and knows each node by its place, but the nodes of {graph.name!r} "
                        "are others, or in another order; the graph it was trained on, before=…, says which is which"
                    )
            return cls(trained, graph, None, None, trained)
        trained.check_columns(before)
        if graph.directed != before.directed:
            kinds = ["undirected", "directed"]
            raise ValueError(
                f"the edges of {graph.name!r} are {kinds[graph.directed]}, those the model was trained on are "
                f"{kinds[before.directed]}; read it with directed={before.directed}"
            )
        place = torch.from_numpy(graph.positions_of(before.node_names))
        if is_by_position:
            stays = (place >= 0).nonzero().squeeze(1)  # the features of the nodes before; a new node's row is zero
            ones = np.ones(len(stays), dtype=np.float32)
            x = SparseMatrix.from_coo(place[stays].numpy(), stays.numpy(), ones, (graph.num_nodes, len(place)))
            graph = dataclasses.replace(graph, x=x, x_kind="identity")
        if not has_free_weights(trained.model):
            return cls(trained, graph, before, place, trained)
        old, new = trained.prepare(before), trained.prepare(graph)
        unknown = new.pattern.num_entries - len(shared_entries(new.pattern, old.pattern, place)[0])
        model = carried(trained.model, old.to(trained.device), new.pattern, place)
        return cls(trained, graph, before, place, dataclasses.replace(trained, model=model), unknown)

    @cached_property
    def prediction(self) -> Prediction:
        """The predictions for the graph, in which its labels vote among the classes that they are of."""
        adapted, weights, known = self.adapted, self.adapted.weights, self.graph.labeled.cpu()
        if weights is None or not self.silent.any():
            return Prediction.of(adapted, self.graph, known)
        reads = [METHODS[member.method].reads_labels for member in members_of(adapted.recipe).values()]
        given, others = weights.weights[: weights.num_members], weights.weights[weights.num_members :]
        kept = [0.0 if is_reader else weight for is_reader, weight in zip(reads, given, strict=True)]
        if sum(kept):  # members that read labels take silence for a vote against: they leave their weight to the others
            share = sum(given) / sum(kept)
            weights = dataclasses.replace(weights, weights=(*(weight * share for weight in kept), *others))
        parts = parts_of(adapted.model, adapted.prepare(self.graph, known).to(adapted.device))
        votes = tuple(among_voters(log, ~self.silent) for log in parts.votes)
        labels = torch.where(known, self.trained.labels_of(self.graph), self.trained.target.unknown)
        adapted = dataclasses.replace(adapted, weights=weights)
        return Prediction(adapted, adapted.walked(self.graph), labels, weights(Parts(parts.members, votes, parts.target)))

    def table(self, **options: Any) -> Any:
        """The `predictions` for the graph; with a column `before`: the class or number before, empty if new."""
        table = self.prediction.table(**options)
        if self.before_now is not None:
            table["before"] = self.trained.target.words(self.before_now)
        return table

    @cached_property
    def silent(self) -> Tensor:
        """The classes of labels that the model was given, of which no label is here, though others vote; a mask [c]."""
        target, labels = self.trained.target, (self.trained.labels_of(self.graph), self.trained.known.y)
        classes = (torch.from_numpy(target.classes(y)) for y in labels)
        num_voters, num_given = (torch.bincount(y[y >= 0], minlength=len(target.names)) for y in classes)
        return (num_voters == 0) & (num_given > 0) & num_voters.any()

    @cached_property
    def before_now(self) -> Tensor | None:
        """What was predicted for every node before, unknown of those that are new, [n]; None without a graph before."""
        if self.before is None:
            return None
        return self._brought(self.trained.target.named(Prediction.of(self.trained, self.before).uncalibrated))

    def _brought(self, labels: Tensor) -> Tensor:
        """A label for every node then as one for every node now, unknown where it is new, [n]."""
        assert self.place is not None
        stays = self.place >= 0
        now = torch.full((self.graph.num_nodes,), self.trained.target.unknown, dtype=labels.dtype)
        now[self.place[stays]] = labels[stays]
        return now

    def changes(self) -> Changes:
        """What is new, what is gone and what changed."""
        graph, known = self.graph, self.trained.known
        y = self.trained.labels_of(graph)
        given = known.on(graph)[0] if self.before is None else self._brought(known.on(self.before)[0])
        is_label = self.trained.target.known
        both = is_label(given) & is_label(y)
        foreign = graph.labeled.cpu() & ~is_label(y)
        return Changes(
            graph=graph.name,
            nodes=graph.num_nodes,
            edges=graph.num_edges,
            labels=int(is_label(y).sum()),
            labels_new=int((is_label(y) & ~is_label(given)).sum()),
            labels_changed=int((both & (y != given)).sum()),
            labels_gone=len(known.nodes) - int(both.sum()),
            unknown_classes=dict(Counter(graph.class_names[k] for k in graph.y.cpu()[foreign].tolist())),
            silent_classes=tuple(self.trained.class_names[k] for k in self.silent.nonzero().squeeze(1).tolist()),
            votes=self.trained.votes,
            edges_unweighted=self.edges_unweighted,
            **self._against_before(y),
        )

    def _against_before(self, y: Tensor) -> dict[str, Any]:
        if self.before is None or self.place is None or self.before_now is None:
            return {}
        graph, before = self.graph, self.before
        old, new = before.adjacency, graph.adjacency
        at, here = shared_entries(new.pattern, old.pattern, self.place)
        per_edge = 1 if graph.directed else 2
        joins = (new.pattern.row != new.pattern.col).cpu()[at]
        other = (new.values.cpu()[at] != old.values.cpu()[here]) & joins
        num_shared, num_stay = int(joins.sum()) // per_edge, int((self.place >= 0).sum())
        target = self.trained.target
        compared = target.known(self.before_now) & ~target.known(y)
        now = target.named(self.prediction.uncalibrated)
        return {
            "nodes_new": graph.num_nodes - num_stay,
            "nodes_gone": before.num_nodes - num_stay,
            "edges_new": graph.num_edges - num_shared,
            "edges_gone": before.num_edges - num_shared,
            "edges_reweighted": int(other.sum()) // per_edge,
            "predictions": int(compared.sum()),
            "predictions_changed": int((compared & ~target.alike(now, self.before_now)).sum()),
        }


def among_voters(votes: Tensor, has_voters: Tensor) -> Tensor:
    """Logs of votes that tell apart the classes of which a label votes, a mask [c], and no others, [n, c].

    By themselves they would count silence as votes against: with labels of one class alone, every node would be pulled there.
    A class without a voter gets the mean of the others, weighed as they vote.
    """
    others = votes[:, has_voters]
    return torch.where(has_voters, votes, (others.softmax(dim=1) * others).sum(dim=1, keepdim=True))


def carried(model: Ensemble, graph: Graph, pattern: Pattern, place: Tensor) -> Ensemble:
    """A copy of a model whose free edge weights are those of the entries of another pattern; 0, the given weight, for new ones.

    Args:
        graph: the prepared graph that the weights were learned for.
        place: the position of every node of `graph` in the other one, -1 where it is gone, [n].
    """
    found = copy.deepcopy(model)
    for form in [module for module in found.modules() if isinstance(module, Free)]:
        learned = form.of_entries(graph).detach()
        weights = learned.new_zeros(pattern.num_entries)
        at, here = shared_entries(pattern, graph.pattern, place)
        weights[at.to(learned.device)] = learned[here.to(learned.device)]
        form.weight, form.fingerprint = nn.Parameter(weights), pattern.fingerprint
    return found


def has_free_weights(model: nn.Module) -> bool:
    return any(isinstance(module, Free) for module in model.modules())


def shared_entries(pattern: Pattern, other: Pattern, place: Tensor) -> tuple[Tensor, Tensor]:
    """The entries that both patterns have, as positions in the one and in the other, whose nodes are at `place` in the one."""
    n = pattern.shape[0]
    row, col = (place.index_select(0, end.cpu().long()) for end in (other.row, other.col))
    stays = ((row >= 0) & (col >= 0)).nonzero().squeeze(1)
    cells = pattern.row.cpu().long() * n + pattern.col.cpu().long()
    wanted = (row * n + col)[stays]
    _, at, found = np.intersect1d(cells.numpy(), wanted.numpy(), assume_unique=True, return_indices=True)
    return torch.from_numpy(at), stays[torch.from_numpy(found)]
