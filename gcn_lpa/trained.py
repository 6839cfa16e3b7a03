"""What training gives: models with everything that a prediction needs.

A `Trained` predicts on the graph it was trained on and on any other with the same columns. It knows the labels it was trained
with by the names of their nodes, and does not read those of the graph it is given unless `known` names them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.calibration import FOLDS, Calibration
from gcn_lpa.data.array_files import FEATURES_FILE
from gcn_lpa.data.checks import node_mask, some
from gcn_lpa.data.constructors import EdgeTypes
from gcn_lpa.data.describe import html_table
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.scaling import Scaling
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.learning.ensemble import Ensemble, EnsembleWeights
from gcn_lpa.methods.registry import METHODS, Method, members_of
from gcn_lpa.recipes import Recipe
from gcn_lpa.regression import errors_nearby
from gcn_lpa.target import Calibrated, Target
from gcn_lpa.train import Run

if TYPE_CHECKING:
    from gcn_lpa.data.edge_columns import EdgeWeights


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The labels a model was given, by node.

    Nodes with names are found again by them. Nodes without names are positions, which mean the same nodes only in a graph
    with the same edges.
    """

    nodes: Sequence[Hashable]  # names, or positions where `pattern` says in which graph
    y: Tensor  # class or standard score of each, [m]
    trains: Tensor  # whether it was learned from; the others were held out, [m]
    pattern: str = ""  # fingerprint of the edges of a graph without names
    error: Tensor | None = None  # how far the held-out prediction of each number was off, -1 where there is none, [m]
    unknown: float = -1  # the label of other nodes

    @classmethod
    def of(cls, graph: Graph, train: Tensor, val: Tensor, error: Tensor | None = None) -> KnownLabels:
        at = (train | val).nonzero().squeeze(1)
        is_plain = isinstance(graph.node_names, range)
        nodes = at.tolist() if is_plain else [graph.node_names[i] for i in at.tolist()]
        fingerprint = graph.pattern.fingerprint if is_plain else ""
        y, trains = graph.y.cpu().index_select(0, at), train.index_select(0, at)
        errors = None if error is None else error[at].nan_to_num(-1.0)
        return cls(nodes, y, trains, fingerprint, errors, graph.target.unknown)

    def on(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The label of each node of a graph, unknown where none was given, [n], and which of them were learned from, [n]."""
        return self._placed(graph, self.y, self.unknown), self._placed(graph, self.trains, False)

    def errors_near(self, graph: Graph) -> Tensor:
        """How far held-out predictions of numbers were off near each node of a graph, [n]; 1 where no label was held out."""
        error = torch.full_like(self.y, -1.0) if self.error is None else self.error
        if not (error >= 0).any():
            return torch.ones(graph.num_nodes, dtype=self.y.dtype)
        placed = self._placed(graph, torch.where(error >= 0, error, math.nan), math.nan)
        return errors_nearby(graph.adjacency.between_nodes(), placed, float(error[error >= 0].mean())).squeeze(1)

    def _placed(self, graph: Graph, values: Tensor, missing: float) -> Tensor:
        """What there is of each label, [m], at its node of a graph, [n]."""
        placed = torch.full((graph.num_nodes,), missing, dtype=values.dtype)
        is_plain = isinstance(graph.node_names, range)
        if is_plain != bool(self.pattern) or (is_plain and self.pattern != graph.pattern.fingerprint):
            return placed
        places = np.asarray(self.nodes, dtype=np.int64) if is_plain else graph.positions_of(self.nodes)
        if is_plain and len(places) and not 0 <= places.min() <= places.max() < graph.num_nodes:
            raise ValueError(f"labels are known of node {places.max()}, but the graph has {graph.num_nodes} nodes")
        here = torch.from_numpy(places >= 0)
        placed[torch.from_numpy(places)[here]] = values[here]
        return placed


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions for labelled nodes by models that did not learn from their labels, before calibration.

    They score a run, calibrate it, and set the threshold of label sets. `protocol` names whose labels these are:
    "cross-validation" (out-of-fold predictions of all training nodes), "validation" or "reserved" nodes.
    """

    node: Tensor  # positions, ascending, [m]
    y: Tensor  # their classes or standard scores, [m]
    # float64; where labels vote, by weights fitted to others of these nodes; of numbers score, spread and errors nearby, [m, 3]
    probability: Tensor  # [m, c]
    protocol: str
    fold: Tensor | None = None  # of a cross-validation: the number of each node's fold, [m]
    unreachable: Tensor | None = None  # the nodes that no label reached when they were predicted, [m]; None: not known
    cut_off: tuple[Tensor, Tensor] | None = None  # probabilities and classes of some, predicted without their edges

    def mask(self, graph: Graph) -> Tensor:
        """These nodes, [n]."""
        return torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, self.node, True)

    def errors(self, graph: Graph) -> Tensor | None:
        """How far each number was off, NaN at nodes that were not held out, [n]; None of classes."""
        off = graph.target.errors(self.probability, self.y)
        return None if off is None else off.new_full((graph.num_nodes,), math.nan).index_copy(0, self.node, off)

    def with_errors_near(self, graph: Graph) -> HeldOut:
        """Of numbers the errors nearby too, beside each prediction: of models that saw neither its label nor theirs.

        They are those of the other half of its fold, so that none is its own.
        """
        if (error := self.errors(graph)) is None:
            return self
        group = torch.arange(len(self.y)) % 2 + (0 if self.fold is None else 2 * self.fold)
        usual, at = float(error[self.node].mean()), torch.zeros_like(error, dtype=torch.int64).index_copy(0, self.node, group)
        met = errors_nearby(graph.adjacency.between_nodes(), error, usual, at)[self.node].gather(1, (group ^ 1).unsqueeze(1))
        return dataclasses.replace(self, probability=torch.cat([self.probability, met], dim=1))

    def crossed(self) -> Tensor:
        """The probabilities, each calibrated as the other folds ask for, [m, c]."""
        folds = torch.arange(len(self.y)) % FOLDS if self.fold is None else self.fold
        apart = torch.zeros_like(folds, dtype=torch.bool) if self.unreachable is None else self.unreachable
        calibrated = self.probability.clone()
        for k in folds.unique().tolist():
            here, others = folds == k, folds != k
            probability, y = self.probability[others], self.y[others]
            fitted = Calibration.fitted(probability, y, self.protocol, folds[others], apart[others])
            calibrated[here] = fitted(self.probability[here], apart[here])
        return calibrated

    def calibration(self, target: Target) -> Calibrated:
        """The calibration that these predictions ask for; of numbers how wide intervals are."""
        fitted = target.calibration.fitted(self.probability, self.y, self.protocol, self.fold, self.unreachable)
        return fitted.with_cut_off(*self.cut_off) if isinstance(fitted, Calibration) and self.cut_off is not None else fitted


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """An ensemble, its recipe, its target, what was learned of the columns, the labels it knows, and its calibration.

    `learn` makes one; `evaluate`, `predict_proba`, `predictions`, `explain`, `suggest` take it.
    """

    model: Ensemble  # in eval mode
    recipe: Recipe
    target: Target
    num_columns: int
    x_kind: str  # of the graph it was trained on: "given", "identity" or "degree"
    scaling: Scaling
    known: KnownLabels
    run: Run
    calibration: Calibrated | None = None
    weights: EnsembleWeights | None = None  # of members and label votes; None: members alike, and labels do not vote
    columns: Columns | None = None  # what was made of each column of the table of nodes
    held_out: HeldOut | None = None
    relations: Mapping[str, float] = field(default_factory=dict)  # the share of each edge type in the predictions
    left_out: Mapping[str, str] = field(default_factory=dict)  # members that were not trained, and why
    edge_weights: EdgeWeights | None = None  # what was learned of them; None: nothing

    def __repr__(self) -> str:
        return f"Trained: {self.recipe.method}, {self.target}, {self.num_columns:,} columns; {self.run!r}"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        run, best = self.run, self.run.best
        rows = [
            ("method", f"{self.recipe.method}: {self.method.note}"),
            ("recipe", self.recipe.origin),
            ("predicts", str(self.target)),
            ("columns", f"{self.num_columns:,} ({self.x_kind})"),
            ("epoch", f"{run.best_epoch} of {len(run.history)}, {run.seconds:.1f} s"),
            ("validation", None if best.val_accuracy is None else f"{100 * best.val_accuracy:.1f} %"),
            ("calibration", None if self.calibration is None else str(self.calibration)),
            *((f"weight of {name}", share) for name, share in self.shares.items()),
        ]
        return html_table("Trained", rows)

    def radius(self, level: float) -> float:
        """Half the width of the interval of a number, in units of its node; infinite where too few labels were held out."""
        kept, intervals = self.held_out, cast(Any, self.calibration)
        return math.inf if kept is None else float(intervals.radius(kept.probability, kept.y, kept.unreachable, level))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the columns of its probabilities."""
        return self.target.names

    @property
    def method(self) -> Method:
        return METHODS[self.recipe.method]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def votes(self) -> bool:
        """Whether labels vote when it predicts, or a member reads them: of a plain GCN they only train."""
        methods = (METHODS[member.method] for member in members_of(self.recipe).values())
        return self.weights is not None or any(method.reads_labels for method in methods)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the weight that each member and the label votes have; empty where they were not weighed."""
        if self.weights is None:
            return {}
        weights, number = self.weights.weights, self.weights.num_members
        names = [self.recipe.method, *self.recipe.members.split(), "votes"]
        shares = dict(zip(names, [*weights[:number], sum(weights[number:])], strict=True))
        total = sum(shares.values()) or 1.0
        return {name: weight / total for name, weight in shares.items()}

    def predict_updated(self, graph: Graph, *, before: Graph | None = None, **options: Any) -> Any:
        """The table of `predictions` for an updated graph, or for another with the same columns.

        All its labels vote at once, so these predictions cannot be scored by them; `evaluate` and `predictions` use no other
        labels than the model was given.

        Args:
            before: the graph it was trained on, as in `Updated.of`.
            options: of `predictions`.
        """
        from gcn_lpa.learning.updated import Updated

        return Updated.of(self, graph, before).table(**options)

    def given(self, graph: Graph) -> Tensor:
        """The nodes of a graph whose labels the model was given, to learn from or held out, [n]."""
        return self.target.known(self.known.on(graph)[0])

    def prepare(self, graph: Graph, known: Any = None) -> Graph:
        """A raw graph as the models read it: columns scaled, self-loops added, and no labels but those they may use.

        Args:
            known: nodes, a mask or positions, whose labels in `graph` are used; None: the labels it was trained on.
        """
        self.check_columns(graph)
        graph = self.walked(graph)
        if known is None:
            y, trains = self.known.on(graph)
            y = torch.where(trains, y, self.target.unknown)
        else:
            mask = node_mask(known, graph.num_nodes, "known")
            y = torch.where(mask, self.labels_of(graph), self.target.unknown)
        shown = graph.labeled_by(y, self.target)
        if self.relations:
            shown = dataclasses.replace(shown, edge_types=self._edge_types_of(graph))
        shown = shown.with_features(self.scaling)
        shown = shown.with_self_loops() if self.recipe.self_loops else shown
        return shown if (weights := self.used_edge_weights) is None else shown.weighed(weights.levels)

    def walked(self, graph: Graph) -> Graph:
        """A raw graph with columns of its edges, where these weigh them, without the edges that were left out when training."""
        weights = self.used_edge_weights
        return graph if weights is None else graph.with_type_column(weights.functions).without_idle(weights.levels)

    @property
    def used_edge_weights(self) -> EdgeWeights | None:
        """What was learned of the columns of edges, where held-out labels support it."""
        return self.edge_weights if self.edge_weights is not None and self.edge_weights.is_used else None

    def check_columns(self, graph: Graph) -> None:
        """Refuse a graph whose columns are not those it was trained on."""
        check_graph(graph)
        is_as_wide = graph.num_features == self.num_columns and graph.x_kind == self.x_kind
        if not is_as_wide and self.x_kind == "identity":
            raise ValueError(
                f"the model was trained without features, on a graph of {self.num_columns:,} nodes, and knows each of them by "
                f"its position; it cannot predict on one of {graph.num_nodes:,} nodes. Train with features (features='degree' "
                "makes some of the edges), or on that graph; or say which graph it was trained on, before=…"
            )
        if not is_as_wide:
            raise ValueError(
                f"the model was trained on {self.num_columns:,} columns ({self.x_kind}), but {graph.name!r} has "
                f"{graph.num_features:,} ({graph.x_kind}); it needs the same columns in the same order"
            )
        ours, theirs = self.columns, graph.columns
        if ours is None and theirs is not None and self.x_kind == "given":
            raise ValueError(
                f"the model was trained on an array of features, such as {FEATURES_FILE}, but those of {graph.name!r} were "
                "read from columns of a table: nothing says that they mean the same"
            )
        self._check_edge_columns(graph)
        if ours is not None and theirs is not None and ours is not theirs and not ours.means_the_same(theirs):
            raise ValueError(
                f"the columns of {graph.name!r} were read otherwise than those the model was trained on, so its features mean "
                "something else; read it with columns=trained.columns"
            )

    def _check_edge_columns(self, graph: Graph) -> None:
        """Refuse a graph whose edges do not have the columns that the model weighs them by."""
        if (weights := self.used_edge_weights) is None or not graph.num_edges:
            return
        columns, ours = graph.with_type_column(weights.functions).edge_columns, weights.functions
        if columns is None:
            names = f"{some(ours.names)}, but the edges of {graph.name!r} have none"
            raise ValueError(f"the model weighs edges by their columns, {names}")
        if columns.functions != ours:
            raise ValueError(
                f"the columns of the edges of {graph.name!r} were read otherwise than those the model was trained on; read it "
                "with edge_functions=trained.edge_weights.functions"
            )

    def _edge_types_of(self, graph: Graph) -> EdgeTypes:
        if graph.edge_types is None and (graph.num_edges == 0 or self.used_edge_weights is not None):
            return EdgeTypes.without_edges(tuple(self.relations), graph.num_nodes).to(graph.device)
        if graph.edge_types is None:
            raise ValueError(
                f"the model weighs edge types, {some(tuple(self.relations))}, but the edges of {graph.name!r} have none; "
                "read it with option relation=…, the column of edges that says them"
            )
        return graph.edge_types.named(tuple(self.relations))

    def labels_of(self, graph: Graph) -> Tensor:
        """The labels of a graph as classes or standard scores of the model, unknown where it does not know them, [n]."""
        return self.target.translated(graph.y.cpu(), graph.target)

    def citations(self) -> str:
        """BibTeX of the methods it uses, the paper of this package first."""
        from gcn_lpa.methods.citations import bibtex

        return bibtex(self.recipe, calibrated=isinstance(self.calibration, Calibration) and self.calibration.changes)

    def save_pretrained(self, folder: str | Path) -> None:
        """Keep it in a folder, entirely or not at all; `from_pretrained` reads it again."""
        from gcn_lpa.runs.folder import save_trained

        save_trained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Trained:
        """What `save_pretrained` or `gcn-lpa train --out` kept in a folder."""
        from gcn_lpa.runs.folder import load_trained

        return load_trained(folder)
