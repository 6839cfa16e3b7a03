"""A trained model on a graph that has grown: nodes, edges and labels came or went; or on another graph with the same columns.

Nothing is trained again. Every label of the graph votes at once, also those that came after training. Edges are scored from
the features of their ends, or keep the given weight. Free edge weights belong to the edges they were learned for: they are
found again by the names of both ends, and a new edge gets its given weight where that is asked for.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.edges import carried, forms_for_new_edges, has_free_weights, shared_entries
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.fusion import Fusion, Opinions
from gcn_lpa.graph import Graph
from gcn_lpa.intake import node_mask
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.methods.team import members_of
from gcn_lpa.predict import predict_proba, predictions

if TYPE_CHECKING:
    from gcn_lpa.trained import Trained

ASK = "extend=True (on the command line --extend)"


@dataclass(frozen=True)
class Growth:
    """What a graph has that the one before had not, and what became of the predictions.

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
    nodes_new: int | None = None
    nodes_gone: int | None = None
    edges_new: int | None = None
    edges_gone: int | None = None
    edges_reweighted: int | None = None
    predictions: int | None = None
    predictions_changed: int | None = None


@dataclass(frozen=True)
class AmongVoters(Fusion):
    """A fusion where no label of some classes votes: votes then tell apart the classes that have voters, and no others.

    By themselves they would count the silence as votes against: with labels of one class alone, every node would be pulled
    there. A class without a voter gets what the votes say of the others on average, weighed as they vote.
    """

    has_voters: tuple[bool, ...]  # of each class

    def __call__(self, opinions: Opinions) -> Tensor:
        return super().__call__(Opinions(opinions.experts, tuple(map(self._among_voters, opinions.votes))))

    def _among_voters(self, votes: Tensor) -> Tensor:
        heard = torch.tensor(self.has_voters)
        logs = votes[:, heard]
        return torch.where(heard, votes, (logs.softmax(dim=1) * logs).sum(dim=1, keepdim=True))


class Past(NamedTuple):
    """The graph that a model was trained on, and where each of its nodes is now, -1 where it is gone, [n before]."""

    graph: Graph
    place: Tensor

    def brought(self, classes: Tensor, num_nodes: int) -> Tensor:
        """A class for every node then as one for every node now, -1 where it is new, [n]."""
        stays, found = self.place >= 0, torch.full((num_nodes,), -1)
        found[self.place[stays]] = classes[stays]
        return found


@dataclass(frozen=True, eq=False)
class Grown:
    """A model on a graph that has grown; `of` makes one."""

    trained: Trained
    graph: Graph
    past: Past | None
    adapted: Trained  # with the free weights of the edges there are now

    @classmethod
    def of(cls, trained: Trained, graph: Graph, before: Graph | None = None, *, extend: bool = False) -> Grown:
        """Find in `graph` what the model knows, and refuse what it cannot score.

        Args:
            graph: raw; nodes are known by their names, or by their positions where neither graph has names.
            before: the graph the model was trained on, raw. Free edge weights and models without features need it.
            extend: let a new edge have its given weight beside free ones, and a node without features no row of its own.
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
            if extend and (is_by_position or has_free_weights(trained.model)):
                raise ValueError("extend=True needs the graph that the model was trained on: before=… (--data PATH)")
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
            graph = _with_places_as_features(graph, place, extend)
        if not has_free_weights(trained.model):
            return cls(trained, graph, past, trained)
        old, new = trained.prepare(before), trained.prepare(graph)
        unknown = new.pattern.num_entries - len(shared_entries(new.pattern, old.pattern, place)[0])
        if unknown and not extend:
            raise ValueError(
                f"edge form 'free' keeps one weight per training edge, and {unknown:,} of the {new.pattern.num_entries:,} "
                f"weights that {graph.name!r} takes (both directions, self-loops too) were not trained; {ASK} gives them the "
                f"given weight, and {forms_for_new_edges()} are the forms that generalise: train with one of them"
            )
        model = carried(trained.model, old.to(trained.device), new.pattern, place)
        return cls(trained, graph, past, dataclasses.replace(trained, model=model))

    def table(self, **options: Any) -> Any:
        """The `predictions` for the graph, in which its labels vote; with a column `before`: the class before, "" if new."""
        found = predictions(self.answering, self.graph, known=self.graph.labeled.cpu(), **options)
        if self.class_before is not None:
            names = [*self.trained.class_names, ""]
            found["before"] = np.array([names[k] for k in self.class_before.tolist()], dtype=object)
        return found

    @cached_property
    def silent(self) -> Tensor:
        """The classes that the model was given labels of and none here is of, though others vote, a mask [c]."""
        number = len(self.trained.class_names)
        voters, taught = self.trained.classes_of(self.graph), self.trained.known.y
        num_voters, num_taught = (torch.bincount(y[y >= 0], minlength=number) for y in (voters, taught))
        return (num_voters == 0) & (num_taught > 0) & num_voters.any()

    @cached_property
    def answering(self) -> Trained:
        """`adapted`, in which labels vote among the classes that they are of."""
        fusion = self.adapted.fusion
        if fusion is None or not self.silent.any():
            return self.adapted
        heard = tuple((~self.silent).tolist())
        facts = {**vars(fusion), "weights": self._without_readers(fusion.weights, fusion.num_experts)}
        return dataclasses.replace(self.adapted, fusion=AmongVoters(**facts, has_voters=heard))

    def _without_readers(self, weights: tuple[float, ...], num_experts: int) -> tuple[float, ...]:
        """The weights where members that read labels, to whom silence is a vote against too, leave theirs to the others."""
        members = members_of(self.trained.recipe).values()
        kept = [
            0.0 if METHODS[one.method].reads_labels else weight
            for one, weight in zip(members, weights[:num_experts], strict=True)
        ]
        if sum(kept) == 0:
            return weights
        share = sum(weights[:num_experts]) / sum(kept)
        return (*(weight * share for weight in kept), *weights[num_experts:])

    @cached_property
    def class_before(self) -> Tensor | None:
        """What the model said of every node before, -1 of those that are new, [n]; None without a graph before."""
        if self.past is None:
            return None
        return self.past.brought(_classes(self.trained, self.past.graph), self.graph.num_nodes)

    def growth(self) -> Growth:
        """What is new, what is gone and what changed."""
        graph, known, past = self.graph, self.trained.known, self.past
        y = self.trained.classes_of(graph)
        given = known.on(graph)[0] if past is None else past.brought(known.on(past.graph)[0], graph.num_nodes)
        both = (given >= 0) & (y >= 0)
        foreign = graph.labeled.cpu() & (y < 0)
        methods = [METHODS[member.method] for member in members_of(self.trained.recipe).values()]
        return Growth(
            graph=graph.name,
            nodes=graph.num_nodes,
            edges=graph.num_edges,
            labels=int((y >= 0).sum()),
            labels_new=int(((y >= 0) & (given < 0)).sum()),
            labels_changed=int((both & (y != given)).sum()),
            labels_gone=len(known.nodes) - int(both.sum()),
            unknown_classes=dict(Counter(graph.class_names[k] for k in graph.y.cpu()[foreign].tolist())),
            silent_classes=tuple(self.trained.class_names[k] for k in self.silent.nonzero().squeeze(1).tolist()),
            votes=self.trained.fusion is not None or any(one.reads_labels for one in methods),
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
        now = _classes(self.answering, self.graph, known=self.graph.labeled.cpu())
        return {
            "nodes_new": self.graph.num_nodes - num_stay,
            "nodes_gone": past.graph.num_nodes - num_stay,
            "edges_new": self.graph.num_edges - num_shared,
            "edges_gone": past.graph.num_edges - num_shared,
            "edges_reweighted": int(other.sum()) // per_edge,
            "predictions": int(compared.sum()),
            "predictions_changed": int((compared & (now != self.class_before)).sum()),
        }


def _classes(trained: Trained, graph: Graph, known: Any = None) -> Tensor:
    return predict_proba(trained.with_calibration(None), graph, known=known).argmax(dim=1)


def _has_the_same_order(trained: Trained, graph: Graph) -> bool:
    """Whether the nodes whose labels a model was given are here, in the order they had; of nodes without names that is granted."""
    if isinstance(graph.node_names, range):
        return True
    at = graph.positions_of(trained.known.nodes)
    return bool((at >= 0).all() and (np.diff(at) > 0).all())


def _with_places_as_features(graph: Graph, place: Tensor, extend: bool) -> Graph:
    """The graph with the identity features of the nodes before; a new node's row is zero."""
    stays = (place >= 0).nonzero().squeeze(1)
    if len(stays) < graph.num_nodes and not extend:
        raise ValueError(
            f"the model was trained without features and knows each node by its place; {graph.num_nodes - len(stays):,} nodes of "
            f"{graph.name!r} are new to it: {ASK} lets them have what their neighbours have, and training with features "
            "(features='degree' makes some of the edges) lets them have their own"
        )
    shape = (graph.num_nodes, len(place))
    x = SparseMatrix.from_coo(place[stays].numpy(), stays.numpy(), np.ones(len(stays), dtype=np.float32), shape)
    return dataclasses.replace(graph, x=x, x_kind="identity")


def induced(graph: Graph, nodes: Any) -> Graph:
    """Some nodes, a mask or positions, under their names, and the edges between them."""
    mask = node_mask(nodes, graph.num_nodes)
    at = mask.nonzero().squeeze(1)
    rows = at.numpy()
    adjacency = SparseMatrix.from_scipy(graph.adjacency.to_scipy()[rows][:, rows])
    x: Tensor | SparseMatrix
    if graph.x_kind == "identity":
        x = SparseMatrix.identity(len(at))
    elif isinstance(graph.x, SparseMatrix):
        x = SparseMatrix.from_scipy(graph.x.to_scipy()[rows])
    else:
        x = graph.x.cpu()[mask]
    names = [graph.node_names[i] for i in rows.tolist()]
    y = graph.y.cpu()[mask]
    time = None if graph.time is None else graph.time[mask]
    relations = None if graph.relations is None else graph.relations.between(rows)
    edges: dict[str, Any] = {"adjacency": adjacency, "relations": relations}
    return dataclasses.replace(graph, **edges, x=x, y=y, node_names=names, public=None, time=time)
