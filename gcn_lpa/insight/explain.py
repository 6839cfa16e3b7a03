"""Why a node got its label: the training labels that voted for it, along which edges, and whose features it read.

Lemma 2 of the paper makes label propagation a vote: a walk leaves the node along `transition` = D*⁻¹A*, ends at the first labelled
node it meets within k hops, and counts for the label there. The share of walks that end at a labelled node is its vote, and the
votes for a class add up to LPA's score of that class, exactly (Theorem 3). The GCN walks the same edges but decides by features, so
an explanation says what both say, whether they agree, and whose features the GCN looks at (Lemma 1).

Only the labels that a model was trained on vote; those that chose the epoch are shown as given. The same model and graph give the
same bytes: nothing is drawn at random, and what is equal to 12 digits is in the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.checks import node_mask
from gcn_lpa.data.describe import node_hops
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.insight.answers import Explanation, Influence, Others, Vote, VotePath, hops_in_words
from gcn_lpa.insight.paths import EQUAL, is_highest, ranked, rounded, strongest_paths, winner, winners
from gcn_lpa.methods.hops import edge_type_matrices, personalized, walk, walk_edge_types
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import Prediction, posteriors
from gcn_lpa.propagation import feature_influence, label_influence, one_hot, propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.trained import Trained

BLOCK = 1 << 23  # numbers in a dense block of votes, 64 MB
VOTERS = 3  # of each node in the table of all
SMOOTHED = "smoothed-lr"  # a member whose features walk in a way of their own, and as exactly

FeatureShares = tuple[Tensor | None, list[str]]  # of each node, [n], or None where no features travel; and notes


def explain(
    trained: Trained, graph: Graph, node: Hashable, *, top: int | None = 10, hops: int | None = None
) -> Explanation:
    """Why a model and label propagation label a node as they do. For several nodes keep an `Explainer`.

    Args:
        graph: raw, as it was loaded.
        node: its name, or a text that prints like it.
        top: voters and features to list; None: all.
        hops: how far a label travels; None: as the recipe says.
    """
    return Explainer.of(trained, graph, hops=hops).explain(node, top=top)


def explain_all(trained: Trained, graph: Graph, *, nodes: Any = None, hops: int | None = None) -> Any:
    """A DataFrame with a row for each of `nodes`, or for every node without a given label: see `Explainer.table`."""
    return Explainer.of(trained, graph, hops=hops).table(nodes)


def few_threads(graph: Graph, recipe: Recipe) -> AbstractContextManager[None]:
    """On a small graph, torch's own loops get one thread: see `num_threads`."""
    return num_threads(None, layer=graph.num_nodes * max(recipe.hidden, graph.num_classes))


@dataclass(frozen=True, eq=False)
class Explainer:
    """A trained model and what all explanations of it share; each part is computed when it is first needed."""

    trained: Trained
    graph: Graph  # prepared, with the labels that the model was trained on and no others, on the CPU
    given: Tensor  # the class of every given label, also of those that only chose the epoch; -1 elsewhere, [n]
    hops: int  # k

    @classmethod
    def of(cls, trained: Trained, graph: Graph, *, hops: int | None = None) -> Explainer:
        """An explainer of a model on a raw graph."""
        if hops is not None and hops < 1:
            raise ValueError(f"hops = {hops}; a label travels at least 1")
        trained.check_columns(graph)
        with few_threads(graph, trained.recipe):
            prepared = trained.prepare(graph).to("cpu")
        recipe = trained.recipe
        own = recipe.propagation_steps if trained.method.features == "none" else max(1, recipe.lpa_iterations)
        return cls(trained, prepared, trained.known.on(graph)[0], own if hops is None else hops)

    @property
    def recipe(self) -> Recipe:
        return self.trained.recipe

    @cached_property
    def transition(self) -> SparseMatrix:
        """D*⁻¹A* in float64, of the learned edges where the model has some and of the given ones where it has not."""
        if not self.learns_edges:
            return self.graph.adjacency.to(torch.float64).row_normalized()
        with torch.no_grad():
            learned = self.trained.model.transition(self.placed).values
        return self.graph.adjacency.with_values(learned.detach().cpu().double()).row_normalized()

    @property
    def learns_edges(self) -> bool:
        return bool(self.trained.model.edge_parameters())

    @cached_property
    def model_output(self) -> Tensor:
        """The model's own output, also for unreached nodes without features, [n, c]."""
        return posteriors(self.trained, self.graph)

    @cached_property
    def probabilities(self) -> Tensor:
        """The model's, before calibration; the shares of the labels for unreached nodes without features, [n, c]."""
        return self.prediction.uncalibrated

    @cached_property
    def prediction(self) -> Prediction:
        return Prediction(self.trained, self.graph, self.given, self.model_output)

    @cached_property
    def scores(self) -> Tensor:
        """LPA's: Y^(k) before the last reset of Eq. (2), [n, c]."""
        return propagate_labels(self.transition, self.seeds, self.hops)

    @cached_property
    def seeds(self) -> Tensor:
        return one_hot(self.graph.y, self.graph.num_classes, torch.float64)

    @cached_property
    def distance(self) -> np.ndarray:
        """Hops from each node to the nearest label that votes, infinite where none can reach it, [n]."""
        return node_hops(self.graph, self.graph.labeled)

    @cached_property
    def status(self) -> list[str]:
        """As `predictions` says: labeled, reached or unreachable."""
        return self.prediction.status

    @cached_property
    def placed(self) -> Graph:
        """The graph on the device of the model."""
        return self.graph.to(self.trained.device)

    def explain(self, node: Hashable, *, top: int | None = 10) -> Explanation:
        """Why a node has its label; `top` as in the function `explain`."""
        if top is not None and top < 1:
            raise ValueError(f"top = {top}; at least 1 voter is listed")
        with few_threads(self.graph, self.recipe):
            return self._explanation(self.graph.index_of(node), top)

    def _explanation(self, at: int, top: int | None) -> Explanation:
        graph = self.graph
        label, lpa = winner(self.probabilities[at]), winner(self.scores[at])
        names = [*graph.class_names, None]
        votes, others = self._votes(at, top)
        features, feature_notes = self._features(at, top)
        near = self.distance[at]
        return Explanation(
            node=graph.node_names[at],
            status=self.status[at],
            given_label=names[int(self.given[at])],
            distance=int(near) if np.isfinite(near) else None,
            method=self.recipe.method,
            label=graph.class_names[label],
            probability=float(self.probabilities[at, label]),
            probabilities=dict(zip(graph.class_names, self.probabilities[at].tolist(), strict=True)),
            lpa_label=names[lpa],
            scores=dict(zip(graph.class_names, self.scores[at].tolist(), strict=True)),
            agree=None if lpa < 0 else bool(is_highest(self.scores[at : at + 1], np.array([label]))[0]),
            hops=self.hops,
            votes=votes,
            others=others,
            features=features,
            notes=(*self._notes(at), *feature_notes),
        )

    def table(self, nodes: Any = None) -> Any:
        """A DataFrame with a row for each of `nodes`, a mask or positions; None: every node without a given label.

        id, label, probability (the model's); lpa_label, agree, lpa_score (LPA's score of the model's label); voter_1, share_1 and
        so on, the strongest three; hops (to the nearest label) and status. Empty where no label is near enough.
        """
        import pandas

        wanted = self.given < 0 if nodes is None else node_mask(nodes, self.graph.num_nodes)
        with few_threads(self.graph, self.recipe):
            columns = self._columns(wanted.nonzero().squeeze(1))
        return pandas.DataFrame({name: pandas.Series(column, dtype=object) for name, column in columns.items()})

    def _columns(self, rows: Tensor) -> dict[str, list[Any]]:
        names, ids = [*self.graph.class_names, None], self.graph.node_names
        labels, lpa = winners(self.probabilities[rows]), winners(self.scores[rows])
        voters, shares = self._strongest_voters(rows)
        near, agree = self.distance[rows.numpy()], is_highest(self.scores[rows], labels)
        columns: dict[str, list[Any]] = {
            "id": [ids[at] for at in rows.tolist()],
            "label": [names[k] for k in labels.tolist()],
            "probability": [rounded(p, 6) for p in self.probabilities[rows, labels].tolist()],
            "lpa_label": [names[k] for k in lpa.tolist()],
            "agree": [None if k < 0 else same for k, same in zip(lpa.tolist(), agree.tolist(), strict=True)],
            "lpa_score": [rounded(s, 6) for s in self.scores[rows, labels].tolist()],
        }
        for rank in range(VOTERS):
            columns[f"voter_{rank + 1}"] = [ids[b] if b >= 0 else None for b in voters[:, rank].tolist()]
            columns[f"share_{rank + 1}"] = [rounded(s, 6) if s > 0 else None for s in shares[:, rank].tolist()]
        columns["hops"] = [int(hops) if np.isfinite(hops) else None for hops in near.tolist()]
        columns["status"] = [self.status[at] for at in rows.tolist()]
        return columns

    def votes_by_voter(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(voters [b], their votes at the nodes `rows` [r, b]), all voters, some at a time.

        It is LPA with a class for every voter. Labelled nodes are reset at each iteration, so only the unlabelled ones need their
        iterations: V^(j+1) = A_UL + A_UU V^(j), and the last for `rows`.
        """
        matrix, labeled = self.transition.to_scipy(), self.graph.labeled.numpy()
        free = np.flatnonzero(~labeled)
        here = matrix[rows.numpy()]
        inner, last = (SparseMatrix.from_scipy(part[:, free], torch.float64) for part in (matrix[free], here))
        enter, arrive = matrix[free].tocsc(), here.tocsc()
        for voters in torch.from_numpy(np.flatnonzero(labeled)).split(max(1, BLOCK // max(1, len(matrix.indptr)))):
            entering = torch.from_numpy(enter[:, voters.numpy()].toarray())
            votes = torch.zeros_like(entering)
            for j in range(self.hops - 1):
                votes = entering + inner @ votes if j else entering
            votes = torch.from_numpy(arrive[:, voters.numpy()].toarray()) + (last @ votes if self.hops > 1 else 0)
            yield voters, votes

    def _votes(self, at: int, top: int | None) -> tuple[tuple[Vote, ...], Others]:
        graph, names = self.graph, self.graph.class_names
        influence = label_influence(self.transition, graph.labeled, torch.tensor([at]), self.hops)
        by_length = influence.by_length[:, 0].numpy()  # [k, n]
        total = by_length.sum(axis=0)
        order = ranked(total)
        listed, rest = order[:top], order[len(order) if top is None else top :]
        paths = strongest_paths(self.transition, graph.labeled, at, self.hops, listed.tolist())
        votes = tuple(
            Vote(
                node=graph.node_names[b],
                label=names[int(graph.y[b])],
                share=float(total[b]),
                by_length=tuple(by_length[:, b].tolist()),
                path=VotePath(tuple(graph.node_names[v] for v in nodes), weights, float(np.prod(weights))),
            )
            for b, (nodes, weights) in zip(listed.tolist(), paths, strict=True)
        )
        labels = graph.y.numpy()[rest]
        left = {name: float(total[rest][labels == k].sum()) for k, name in enumerate(names) if (labels == k).any()}
        return votes, Others(len(rest), left)

    @property
    def features_walk(self) -> str:
        """How features travel to a node: a key of FEATURE_WALKS."""
        walk = self.trained.method.features
        return self.recipe.propagation if walk == "layers" else walk

    def _features(self, at: int, top: int | None) -> tuple[tuple[Influence, ...], list[str]]:
        """Whose features the model reads for a node, and notes about it."""
        if self._is_prior(at):
            return (), []
        shares, notes = FEATURE_WALKS[self.features_walk](self, torch.tensor([at]))
        if shares is None:
            return (), notes
        found = self._beside_smoothed(shares / shares.sum(), at).numpy()
        return tuple(Influence(self.graph.node_names[b], float(found[b])) for b in ranked(found)[:top].tolist()), notes

    @cached_property
    def _smoothed_share(self) -> float:
        """How much the member `smoothed-lr` says beside the first model, of what both say."""
        names = [self.recipe.method, *self.recipe.members.split()]
        if SMOOTHED not in names[1:]:
            return 0.0
        pool = self.trained.weights
        said = dict.fromkeys(names, 1.0)
        if pool is not None:
            said = {name: w * t for name, w, t in zip(names, pool.weights, pool.exponents, strict=False)}
        both = said[names[0]] + said[SMOOTHED]
        return said[SMOOTHED] / both if both > 0 else 0.0

    def _beside_smoothed(self, shares: Tensor, at: int) -> Tensor:
        """Whose features the first model and, as far as it is heard, the member `smoothed-lr` look at."""
        heard = self._smoothed_share
        if heard == 0:
            return shares
        smoothing = self.placed.adjacency.symmetric_normalized().to("cpu").to(torch.float64)
        start = torch.zeros(self.graph.num_nodes, 1, dtype=torch.float64)
        start[at] = 1
        walked = personalized(smoothing.T, start, members_of(self.recipe)[SMOOTHED]).squeeze(1)
        return (1 - heard) * shares + heard * walked / walked.sum()

    def _is_prior(self, at: int) -> bool:
        """Whether the shares of the labels stand for the model's answer: see `with_prior`."""
        return not torch.equal(self.probabilities[at], self.model_output[at])

    def _notes(self, at: int) -> list[str]:
        graph, notes, method = self.graph, [], self.recipe.method
        walks = self.trained.method.features
        if shares := self.trained.shares:
            notes.append(f"labels vote beside the model, with {100 * shares['votes']:.0f} % of the weight")
        if heard := self._smoothed_share:
            both = f"{method} {100 * (1 - heard):.0f} %, {SMOOTHED} {100 * heard:.0f} %"
            notes.append(f"two models look at features, and are counted by how much each is heard: {both}")
        others = [name for name in self.recipe.members.split() if name in shares and name != SMOOTHED]
        if beside := [f"{name} {100 * shares[name]:.0f} %" for name in others]:
            notes.append(f"models of other kinds speak too, and are not explained here: {', '.join(beside)}")
        if walks == "own":
            notes.append(f"{method} uses no edge: the votes are LPA's on the given graph and no part of its prediction")
        elif self.recipe.edges == "fixed" or not self.learns_edges:
            notes.append(f"{method} learns no edge weights: votes travel along the given ones, D⁻¹A")
        if self.given[at] >= 0 and graph.y[at] < 0:
            notes.append("its label helped to choose the epoch; the model did not learn from it, and it has no vote")
        if graph.y[at] >= 0:
            notes.append(
                "the node is labelled itself; LPA's score is read before that label is put back, and its own vote counts"
            )
        elif self.hops < self.distance[at] < np.inf:
            near = int(self.distance[at])
            notes.append(
                f"no label within {hops_in_words(self.hops)}: the nearest is {hops_in_words(near)} away, ask with hops {near}"
            )
        elif not np.isfinite(self.distance[at]):
            origin = "comes from features alone"
            if walks == "none" or self._is_prior(at):
                has_labels = bool((self.given >= 0).any())
                origin = "is the shares of all given labels" if has_labels else "is alike for all classes"
            kind = "training label" if self.status[at] == "reached" else "label"  # of a validation node at most
            notes.append(f"no {kind} can reach this node: what is said of it {origin}")
        best = np.flatnonzero(is_highest(self.scores[at].expand(graph.num_classes, -1), np.arange(graph.num_classes)))
        if len(best) > 1 and self.scores[at, best[0]] > 0:
            names = [graph.class_names[k] for k in best]
            notes.append(f"LPA gives {', '.join(names[:-1])} and {names[-1]} the same score; the first is named")
        return notes

    def _strongest_voters(self, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The strongest voters at each of `rows` and their shares, [r, 3]; voter -1 where there are fewer."""
        best = np.full((len(rows), VOTERS), -1), np.zeros((len(rows), VOTERS))
        for voters, votes in self.votes_by_voter(rows):
            block, each = votes.numpy(), np.arange(len(rows))
            np.round(block, EQUAL, out=block)
            found, shares = [best[0]], [best[1]]
            for _ in range(min(VOTERS, len(voters))):
                first = block.argmax(axis=1)  # of equals the first, as voters ascend
                share = block[each, first]
                found.append(np.where(share > 0, voters.numpy()[first], -1)[:, None])
                shares.append(share[:, None])
                block[each, first] = 0
            nodes, values = np.hstack(found), np.hstack(shares)
            order = np.argsort(-values, axis=1, kind="stable")[:, :VOTERS]  # earlier blocks have the smaller nodes
            best = np.take_along_axis(nodes, order, axis=1), np.take_along_axis(values, order, axis=1)
        return best


def _own_features(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    n = explainer.graph.num_nodes
    return torch.zeros(n, dtype=torch.float64).index_fill(0, nodes, 1), []


def _no_features(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    method = explainer.recipe.method
    return None, [f"{method} is label propagation: the votes are its prediction, and features travel nowhere"]


def _predictions_travel(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    method = explainer.recipe.method
    return None, [f"{method}: no feature influence, since its predictions travel and not its features"]


def _smoothing(explainer: Explainer) -> SparseMatrix:
    """The matrix that the model's own features walk, in float64."""
    model = explainer.trained.model
    networks = [getattr(one, "gcn", one) for one in getattr(model, "first", [model])]
    with torch.no_grad():
        found = [network.smoothing(explainer.placed) for network in networks]
    smoothing: SparseMatrix = found[0].with_values(torch.stack([one.values for one in found]).mean(dim=0))
    return smoothing.to("cpu").to(torch.float64)


def _by_layers(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    recipe = explainer.recipe
    shares = feature_influence(_smoothing(explainer), nodes, recipe.gcn_layers)[0]
    note = "features: what each layer adds of the node's own (residual) is not counted"
    return shares, [note] if recipe.residual else []


def _personalized(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    start = torch.zeros(explainer.graph.num_nodes, 1, dtype=torch.float64).index_fill(0, nodes, 1)
    return personalized(_smoothing(explainer).T, start, explainer.recipe).squeeze(1), []


def _by_hops(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    """Σ_k |γ_k| S^k, row by row."""
    first = getattr(explainer.trained.model, "first", [explainer.trained.model])
    gamma = torch.stack([model.body.gamma.detach().cpu().double().abs() for model in first]).mean(dim=0)
    smoothing = _smoothing(explainer)
    start = torch.zeros(explainer.graph.num_nodes, 1, dtype=torch.float64).index_fill(0, nodes, 1)
    return walk(gamma, smoothing.T, start).squeeze(1), []


def _by_relations(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    """|γ_0| + Σ_r Σ_k |γ_rk| P_r^k, row by row."""
    first = getattr(explainer.trained.model, "first", [explainer.trained.model])
    own, gamma = (
        torch.stack([getattr(model.body, name).detach().cpu().double().abs() for model in first]).mean(dim=0)
        for name in ("own", "gamma")
    )
    kinds = [matrix.to(torch.float64).T for matrix in edge_type_matrices(explainer.graph)]
    start = torch.zeros(explainer.graph.num_nodes, 1, dtype=torch.float64).index_fill(0, nodes, 1)
    said = "features: predictions walk each kind of edge by itself, and labels vote along all edges together"
    return torch.stack(walk_edge_types(own, gamma, kinds, start)).sum(dim=0).squeeze(1), [said]


def _along_given_edges(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    layers, method = explainer.recipe.gcn_layers, explainer.recipe.method
    shares = feature_influence(explainer.transition, nodes, layers)[0]
    return shares, [
        f"features: {layers} steps along the given edges; what {method} itself makes of an edge is not in it"
    ]


def _columns_of_neighbours(explainer: Explainer, nodes: Tensor) -> FeatureShares:
    method = explainer.recipe.method
    return None, [
        f"{method}: no feature influence; it reads the columns of the node and of its neighbours, and the labels nearby"
    ]


FEATURE_WALKS: dict[str, Callable[[Explainer, Tensor], FeatureShares]] = {  # by `Method.features`
    "own": _own_features,
    "none": _no_features,
    "predictions": _predictions_travel,
    "layers": _by_layers,
    "hops": _by_hops,
    "relations": _by_relations,
    "personalized": _personalized,
    "given_edges": _along_given_edges,
    "columns": _columns_of_neighbours,
}
