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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gcn_lpa.edges import Free
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights, Parts
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.predict import Prediction, predict_proba
from gcn_lpa.trained import Trained


@dataclass(frozen=True)
class Changes:
    """What an updated graph has that the one before had not, and what became of the predictions.

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
    silent_classes: tuple[str, ...]  # that the model was given labels of and none here is of, though others vote
    votes: bool  # whether labels vote at all; of a plain GCN they only train
    edges_unweighted: int = 0  # entries that free weights were not learned for, which have their given weight
    nodes_new: int | None = None
    nodes_gone: int | None = None
    edges_new: int | None = None
    edges_gone: int | None = None
    edges_reweighted: int | None = None
    predictions: int | None = None
    predictions_changed: int | None = None


@dataclass(frozen=True)
class AmongVoters(EnsembleWeights):
    """Weights where no label of some classes votes: votes then tell apart the classes that have voters, and no others.

    By themselves they would count the silence as votes against: with labels of one class alone, every node would be pulled
    there. A class without a voter gets what the votes say of the others on average, weighed as they vote.
    """

    has_voters: tuple[bool, ...]  # of each class

    def __call__(self, parts: Parts) -> Tensor:
        return super().__call__(Parts(parts.members, tuple(map(self._among_voters, parts.votes))))

    def _among_voters(self, votes: Tensor) -> Tensor:
        has_voters = torch.tensor(self.has_voters)
        logs = votes[:, has_voters]
        return torch.where(has_voters, votes, (logs.softmax(dim=1) * logs).sum(dim=1, keepdim=True))


class Past(NamedTuple):
    """The graph that a model was trained on, and where each of its nodes is now, -1 where it is gone, [n before]."""

    graph: Graph
    place: Tensor

    def brought(self, classes: Tensor, num_nodes: int) -> Tensor:
        """A class for every node then as one for every node now, -1 where it is new, [n]."""
        stays, now = self.place >= 0, torch.full((num_nodes,), -1)
        now[self.place[stays]] = classes[stays]
        return now


@dataclass(frozen=True, eq=False)
class Updated:
    """A model on an updated graph; `of` makes one."""

    trained: Trained
    graph: Graph
    past: Past | None
    adapted: Trained  # with the free weights of the edges there are now
    edges_unweighted: int = 0

    @classmethod
    def of(cls, trained: Trained, graph: Graph, before: Graph | None = None) -> Updated:
        """Find in `graph` what the model knows, and refuse what it cannot score.

        Args:
            graph: raw; nodes are known by their names, or by their positions where neither graph has names.
            before: the graph the model was trained on, raw. Free edge weights and models without features need it.
        """
        if not isinstance(graph, Graph):
            raise TypeError(f"graph is a gcn_lpa.Graph, such as load gives, not {graph!r:.40}")
        is_by_position = trained.x_kind == "identity"
        if before is None:
            if is_by_position and not _has_the_same_order(trained, graph):
                raise ValueError(
                    f"the model was trained without features and knows each node by its place, but the nodes of {graph.name!r} "
                    "are others, or in another order; the graph it was trained on, before=…, says which is which"
                )
            return cls(trained, graph, None, trained)
        trained.check_columns(before)
        if graph.directed != before.directed:
            kinds = ["undirected", "directed"]
            raise ValueError(
                f"the edges of {graph.name!r} are {kinds[graph.directed]}, those the model was trained on are "
                f"{kinds[before.directed]}; read it with directed={before.directed}"
            )
        place = torch.from_numpy(graph.positions_of(before.node_names))
        past = Past(before, place)
        if is_by_position:
            graph = _with_names_as_features(graph, place)
        if not has_free_weights(trained.model):
            return cls(trained, graph, past, trained)
        old, new = trained.prepare(before), trained.prepare(graph)
        unknown = new.pattern.num_entries - len(shared_entries(new.pattern, old.pattern, place)[0])
        model = carried(trained.model, old.to(trained.device), new.pattern, place)
        return cls(trained, graph, past, dataclasses.replace(trained, model=model), unknown)

    @cached_property
    def prediction(self) -> Prediction:
        """What the model says of the graph, in which its labels vote."""
        return Prediction.of(self.answering, self.graph, self.graph.labeled.cpu())

    def table(self, **options: Any) -> Any:
        """The `predictions` for the graph; with a column `before`: the class before, "" if new."""
        table = self.prediction.table(**options)
        if self.class_before is not None:
            names = [*self.trained.class_names, ""]
            table["before"] = np.array([names[k] for k in self.class_before.tolist()], dtype=object)
        return table

    @cached_property
    def silent(self) -> Tensor:
        """The classes that the model was given labels of and none here is of, though others vote, a mask [c]."""
        number = len(self.trained.class_names)
        voters, taught = self.trained.classes_of(self.graph), self.trained.known.y
        num_voters, num_given = (torch.bincount(y[y >= 0], minlength=number) for y in (voters, taught))
        return (num_voters == 0) & (num_given > 0) & num_voters.any()

    @cached_property
    def answering(self) -> Trained:
        """`adapted`, in which labels vote among the classes that they are of."""
        weights = self.adapted.weights
        if weights is None or not self.silent.any():
            return self.adapted
        others = self._without_readers(weights.weights, weights.num_members)
        has_voters = tuple((~self.silent).tolist())
        changed = AmongVoters(others, weights.exponents, weights.num_members, has_voters)
        return dataclasses.replace(self.adapted, weights=changed)

    def _without_readers(self, weights: tuple[float, ...], num_members: int) -> tuple[float, ...]:
        """The weights where members that read labels, to whom silence is a vote against too, leave theirs to the others."""
        members = members_of(self.trained.recipe).values()
        kept = [
            0.0 if METHODS[member.method].reads_labels else weight
            for member, weight in zip(members, weights[:num_members], strict=True)
        ]
        if sum(kept) == 0:
            return weights
        share = sum(weights[:num_members]) / sum(kept)
        return (*(weight * share for weight in kept), *weights[num_members:])

    @cached_property
    def class_before(self) -> Tensor | None:
        """What the model said of every node before, -1 of those that are new, [n]; None without a graph before."""
        if self.past is None:
            return None
        before = predict_proba(self.trained.with_calibration(None), self.past.graph).argmax(dim=1)
        return self.past.brought(before, self.graph.num_nodes)

    def changes(self) -> Changes:
        """What is new, what is gone and what changed."""
        graph, known, past = self.graph, self.trained.known, self.past
        y = self.trained.classes_of(graph)
        given = known.on(graph)[0] if past is None else past.brought(known.on(past.graph)[0], graph.num_nodes)
        both = (given >= 0) & (y >= 0)
        foreign = graph.labeled.cpu() & (y < 0)
        return Changes(
            graph=graph.name,
            nodes=graph.num_nodes,
            edges=graph.num_edges,
            labels=int((y >= 0).sum()),
            labels_new=int(((y >= 0) & (given < 0)).sum()),
            labels_changed=int((both & (y != given)).sum()),
            labels_gone=len(known.nodes) - int(both.sum()),
            unknown_classes=dict(Counter(graph.class_names[k] for k in graph.y.cpu()[foreign].tolist())),
            silent_classes=tuple(self.trained.class_names[k] for k in self.silent.nonzero().squeeze(1).tolist()),
            votes=self.trained.votes,
            edges_unweighted=self.edges_unweighted,
            **({} if past is None else self._against(past, y)),
        )

    def _against(self, past: Past, y: Tensor) -> dict[str, Any]:
        old, new = past.graph.adjacency, self.graph.adjacency
        at, here = shared_entries(new.pattern, old.pattern, past.place)
        per_edge = 1 if self.graph.directed else 2
        joins = (new.pattern.row != new.pattern.col).cpu()[at]
        other = (new.values.cpu()[at] != old.values.cpu()[here]) & joins
        num_shared, num_stay = int(joins.sum()) // per_edge, int((past.place >= 0).sum())
        assert self.class_before is not None
        compared = (self.class_before >= 0) & (y < 0)
        now = self.prediction.uncalibrated.argmax(dim=1)
        return {
            "nodes_new": self.graph.num_nodes - num_stay,
            "nodes_gone": past.graph.num_nodes - num_stay,
            "edges_new": self.graph.num_edges - num_shared,
            "edges_gone": past.graph.num_edges - num_shared,
            "edges_reweighted": int(other.sum()) // per_edge,
            "predictions": int(compared.sum()),
            "predictions_changed": int((compared & (now != self.class_before)).sum()),
        }


def _has_the_same_order(trained: Trained, graph: Graph) -> bool:
    """Whether the nodes whose labels a model was given are here, in the order they had; of nodes without names that is granted."""
    if isinstance(graph.node_names, range):
        return True
    at = graph.positions_of(trained.known.nodes)
    return bool((at >= 0).all() and (np.diff(at) > 0).all())


def _with_names_as_features(graph: Graph, place: Tensor) -> Graph:
    """The graph with the identity features of the nodes before; a new node's row is zero."""
    stays = (place >= 0).nonzero().squeeze(1)
    shape = (graph.num_nodes, len(place))
    x = SparseMatrix.from_coo(place[stays].numpy(), stays.numpy(), np.ones(len(stays), dtype=np.float32), shape)
    return dataclasses.replace(graph, x=x, x_kind="identity")


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
        form.weight, form.shared, form.fingerprint = nn.Parameter(weights), None, pattern.fingerprint
    return found


def has_free_weights(model: nn.Module) -> bool:
    return any(isinstance(module, Free) for module in model.modules())


def shared_entries(pattern: Pattern, other: Pattern, place: Tensor) -> tuple[Tensor, Tensor]:
    """The entries that both patterns have, as positions in the one and in the other, whose nodes are at `place` in the one."""
    n = pattern.shape[0]
    row, col = (place.index_select(0, end.cpu().long()) for end in (other.row, other.col))
    stays = ((row >= 0) & (col >= 0)).nonzero().squeeze(1)
    wanted = (row * n + col)[stays]
    here = pattern.row.cpu().long() * n + pattern.col.cpu().long()  # ascending
    at = torch.searchsorted(here, wanted).clamp_max(max(0, len(here) - 1))
    found = here[at] == wanted if len(here) else torch.zeros(len(wanted), dtype=torch.bool)
    return at[found], stays[found]
