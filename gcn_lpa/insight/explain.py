"""Why a node got its label: the training labels that voted for it, along which edges, and whose features it read.

Lemma 2 of the paper makes label propagation a vote: a walk leaves the node along `transition` = D*⁻¹A*, ends at the first labelled
node it meets within k hops, and counts for the label there. The share of walks that end at a labelled node is its vote. The votes
for a class add up to LPA's score of that class, exactly (Theorem 3). The GCN walks the same edges but decides by features: so an
explanation has both predictions, whether they agree, and whose features the GCN reads (Lemma 1).

Only training labels vote; validation labels are shown as given. The same model and graph give the same bytes: nothing is drawn at
random, and shares that are equal to 12 digits are in the order of the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
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
from gcn_lpa.insight.explanation import (
    EQUAL,
    NUMBERS,
    Explanation,
    Influence,
    NumberFacts,
    Others,
    Vote,
    VotePath,
    hops_in_words,
    rounded,
)
from gcn_lpa.methods.hops import edge_type_matrices, personalized, walk_edge_types
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import Prediction, check_trained, posteriors
from gcn_lpa.propagation import feature_influence, label_influence, propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.trained import Trained

BLOCK = 1 << 23  # numbers in a dense block of votes, 64 MB
VOTERS = 3  # of each node in the table of all
SMOOTHED = "smoothed-lr"  # a member whose features walk too: by personalised PageRank
WITHOUT_FEATURES = {  # notes for the values of `Method.features` with which no features travel
    "none": "{} is label propagation: the votes are its prediction, and features travel nowhere",
    "predictions": "{}: no feature influence, since its predictions travel and not its features",
    "columns": "{}: no feature influence; it reads the columns of the node and of its neighbours, and the labels nearby",
}


def explain(trained: Trained, graph: Graph, node: Hashable, *, top: int | None = 10, hops: int | None = None) -> Explanation:
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
    graph: Graph  # prepared, with the training labels and no others, on the CPU
    given: Tensor  # every training and validation label, unknown elsewhere, [n]
    hops: int  # k

    @classmethod
    def of(cls, trained: Trained, graph: Graph, *, hops: int | None = None) -> Explainer:
        """An explainer of a model on a raw graph."""
        check_trained(trained)
        if hops is not None and hops < 1:
            raise ValueError(f"hops = {hops}; a label travels at least 1")
        trained.check_columns(graph)
        recipe = trained.recipe
        with few_threads(graph, recipe):
            prepared = trained.prepare(graph).to("cpu")
        if hops is None:
            is_lpa = trained.method.features == "none"
            hops = recipe.propagation_steps if is_lpa else max(1, recipe.lpa_iterations)
        return cls(trained, prepared, trained.known.on(graph)[0], hops)

    @cached_property
    def placed(self) -> Graph:
        """The graph on the device of the model."""
        return self.graph.to(self.trained.device)

    @cached_property
    def transition(self) -> SparseMatrix:
        """D*⁻¹A* in float64: of the learned edges, or of the given ones where the model learns none."""
        adjacency = self.graph.adjacency.to(torch.float64)
        if self.trained.model.edge_parameters():
            with torch.no_grad():
                learned = self.trained.model.transition(self.placed).values
            adjacency = adjacency.with_values(learned.cpu().double())
        return adjacency.row_normalized()

    @cached_property
    def scores(self) -> Tensor:
        """LPA's: Y^(k) before the last reset of Eq. (2), [n, c]."""
        seeds = self.graph.target.seeds(self.graph.y, torch.float64)
        return propagate_labels(self.transition, seeds, self.hops)

    @cached_property
    def prediction(self) -> Prediction:
        return Prediction(self.trained, self.graph, self.given, posteriors(self.trained, self.graph))

    @cached_property
    def distance(self) -> np.ndarray:
        """Hops from each node to the nearest label that votes, infinite where none can reach it, [n]."""
        return node_hops(self.graph, self.graph.labeled)

    def explain(self, node: Hashable, *, top: int | None = 10) -> Explanation:
        """Why a node has its label; `top` as in the function `explain`."""
        if top is not None and top < 1:
            raise ValueError(f"top = {top}; at least 1 voter is listed")
        graph, at, classes = self.graph, self.graph.index_of(node), self.graph.class_names
        with few_threads(self.graph, self.trained.recipe):
            names, probabilities = [*classes, None], self.prediction.probabilities[at]
            votes, others = self._votes(at, top)
            is_prior = bool(self.prediction.is_blank[at])
            features, feature_notes = ((), []) if is_prior else self._features(at, top)
            notes = (*self._notes(at, is_prior), *feature_notes)
        near = self.distance[at]
        about: dict[str, Any] = {
            "node": self.graph.node_names[at],
            "status": self.prediction.status[at],
            "distance": int(near) if np.isfinite(near) else None,
            "method": self.trained.recipe.method,
            "hops": self.hops,
            "votes": votes,
            "others": others,
            "features": features,
            "notes": notes,
        }
        if graph.numbers is not None:
            return Explanation(**about, **self._number(at, votes))
        rows = self.prediction.uncalibrated[at], self.scores[at]
        label, lpa = (int(graph.target.named(row.unsqueeze(0))) for row in rows)
        scores = self.scores[at].numpy().round(EQUAL)
        return Explanation(
            **about,
            given_label=graph.target.texts(self.given[[at]])[0],
            label=classes[label],
            probability=float(probabilities[label]),
            probabilities=dict(zip(classes, probabilities.tolist(), strict=True)),
            lpa_label=names[lpa],
            scores=dict(zip(classes, self.scores[at].tolist(), strict=True)),
            agree=None if lpa < 0 else bool(scores[label] == scores.max()),
        )

    @cached_property
    def lpa(self) -> Tensor:
        """What LPA says: the scores of classes, or numbers as standard scores, NaN where no label votes, [n, c]."""
        return self.graph.target.tallied(self.scores)

    def _number(self, at: int, votes: tuple[Vote, ...]) -> dict[str, Any]:
        """What an explanation says where numbers are predicted."""
        scale, graph = self.graph.numbers, self.graph
        assert scale is not None
        low, high = (None if math.isinf(float(end[at])) else float(end[at]) for end in self.prediction.interval())
        low, high = (low, high) if low is not None and high is not None else (None, None)
        value, lpa = (float(scale.undone(z[at, 0])) for z in (self.prediction.uncalibrated, self.lpa))
        listed = torch.tensor([graph.index_of(vote.node) for vote in votes], dtype=torch.int64)
        shares = torch.tensor([vote.share for vote in votes], dtype=torch.float64)
        total = float(self.scores[at].sum())
        left, rest = total - float(shares.sum()), None
        if left > 10.0**-EQUAL and total > 0:
            rest = float(scale.undone((self.lpa[at, 0] * total - (shares * graph.y[listed]).sum()) / left))
        numbers = tuple(scale.undone(graph.y[listed]).tolist())
        has_lpa = not math.isnan(lpa)
        return {
            "given_label": graph.target.texts(self.given[[at]])[0],
            "label": f"{value:.6g}",
            "probability": None,
            "probabilities": {},
            "lpa_label": f"{lpa:.6g}" if has_lpa else None,
            "scores": {NUMBERS: total},
            "agree": low <= lpa <= high if has_lpa and low is not None and high is not None else None,
            "number": NumberFacts(value, low, high, lpa if has_lpa else None, numbers, rest, scale.offset),
        }

    def table(self, nodes: Any = None) -> Any:
        """A DataFrame with a row for each of `nodes`, a mask or positions; None: every node without a given label.

        id, label, probability (the model's); lpa_label, agree, lpa_score (LPA's score of the model's label); voter_1, share_1 and
        so on, the strongest three; hops (to the nearest label) and status. Empty where no label is near enough.
        """
        import pandas

        wanted = ~self.prediction.given if nodes is None else node_mask(nodes, self.graph.num_nodes)
        rows = wanted.nonzero().squeeze(1)
        names, ids = [*self.graph.class_names, None], [*self.graph.node_names, None]
        with few_threads(self.graph, self.trained.recipe):
            columns: dict[str, list[Any]] = {"id": [ids[at] for at in rows.tolist()]}
            if self.graph.numbers is not None:
                columns |= self._number_columns(rows)
            else:
                probabilities, scores = self.prediction.probabilities[rows], self.scores[rows].numpy().round(EQUAL)
                tables = self.prediction.uncalibrated[rows], self.scores[rows]
                labels, lpa = map(self.graph.target.named, tables)
                agree = (scores[np.arange(len(rows)), labels] == scores.max(axis=1, initial=0)).tolist()
                columns |= {
                    "label": [names[k] for k in labels.tolist()],
                    "probability": [rounded(p, 6) for p in probabilities[torch.arange(len(rows)), labels].tolist()],
                    "lpa_label": [names[k] for k in lpa.tolist()],
                    "agree": [None if k < 0 else same for k, same in zip(lpa.tolist(), agree, strict=True)],
                    "lpa_score": [rounded(s, 6) for s in self.scores[rows, labels].tolist()],
                }
            for rank, (voters, shares) in enumerate(zip(*self._strongest_voters(rows), strict=True), start=1):
                columns[f"voter_{rank}"] = [ids[b] for b in voters.tolist()]
                columns[f"share_{rank}"] = [rounded(s, 6) if s > 0 else None for s in shares.tolist()]
            near = self.distance[rows.numpy()].tolist()
            columns["hops"] = [int(hops) if np.isfinite(hops) else None for hops in near]
            columns["status"] = [self.prediction.status[at] for at in rows.tolist()]
        return pandas.DataFrame({name: pandas.Series(column, dtype=object) for name, column in columns.items()})

    def _number_columns(self, rows: Tensor) -> dict[str, list[Any]]:
        """value, low, high (the model's), lpa_value: as many digits as matter, None where there is none."""
        scale = self.graph.numbers
        assert scale is not None
        value, lpa = scale.undone(self.prediction.uncalibrated[:, 0]), scale.undone(self.lpa[:, 0])
        low, high = self.prediction.interval()
        columns = {"value": value, "low": low, "high": high, "lpa_value": lpa}
        return {
            name: [float(f"{number:.6g}") if math.isfinite(number) else None for number in column[rows].tolist()]
            for name, column in columns.items()
        }

    def votes_by_voter(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(voters [b], their votes at the nodes `rows` [r, b]), block by block until all have voted.

        This is LPA with a class for every voter. Labelled nodes are reset at each iteration, so only the unlabelled ones need their
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

    def _strongest_voters(self, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The strongest voters at each of `rows` and their shares, [3, r]; voter -1 where there are fewer."""
        best = np.full((len(rows), VOTERS), -1), np.zeros((len(rows), VOTERS))
        for voters, votes in self.votes_by_voter(rows):
            block, each = votes.numpy(), np.arange(len(rows))
            np.round(block, EQUAL, out=block)
            strongest, shares = [best[0]], [best[1]]
            for _ in range(min(VOTERS, len(voters))):
                first = block.argmax(axis=1)  # of equals the first, as voters ascend
                share = block[each, first]
                strongest.append(np.where(share > 0, voters.numpy()[first], -1)[:, None])
                shares.append(share[:, None])
                block[each, first] = 0
            nodes, values = np.hstack(strongest), np.hstack(shares)
            order = np.argsort(-values, axis=1, kind="stable")[:, :VOTERS]  # earlier blocks have the smaller nodes
            best = np.take_along_axis(nodes, order, axis=1), np.take_along_axis(values, order, axis=1)
        return best[0].T, best[1].T

    def _votes(self, at: int, top: int | None) -> tuple[tuple[Vote, ...], Others]:
        graph, names = self.graph, self.graph.class_names
        influence = label_influence(self.transition, graph.labeled, torch.tensor([at]), self.hops)
        by_length = influence.by_length[:, 0].numpy()  # [k, n]
        total = by_length.sum(axis=0)
        order = ranked(total)
        listed, rest = order[:top], order[len(order) if top is None else top :]
        paths = strongest_paths(self.transition, graph.labeled, at, self.hops, listed.tolist())
        texts = map(str, graph.target.texts(graph.y[torch.from_numpy(listed)]))
        votes = tuple(
            Vote(
                node=graph.node_names[b],
                label=label,
                share=float(total[b]),
                by_length=tuple(by_length[:, b].tolist()),
                path=VotePath(tuple(graph.node_names[v] for v in nodes), weights, float(np.prod(weights))),
            )
            for b, label, (nodes, weights) in zip(listed.tolist(), texts, paths, strict=True)
        )
        if graph.numbers is not None:
            return votes, Others(len(rest), {NUMBERS: float(total[rest].sum())} if len(rest) else {})
        labels = graph.y.numpy()[rest]
        left = {name: float(total[rest][labels == k].sum()) for k, name in enumerate(names) if (labels == k).any()}
        return votes, Others(len(rest), left)

    def _features(self, at: int, top: int | None) -> tuple[tuple[Influence, ...], list[str]]:
        """Whose features the model reads for a node, and notes about it."""
        recipe, method = self.trained.recipe, self.trained.method
        if method.features in WITHOUT_FEATURES:
            return (), [WITHOUT_FEATURES[method.features].format(recipe.method)]
        start = torch.zeros(self.graph.num_nodes, 1, dtype=torch.float64)
        start[at] = 1
        shares, note = self._feature_shares(start)
        shares = shares / shares.sum()
        if smoothed := self._smoothed_share:
            smoothing = self.placed.adjacency.symmetric_normalized().to("cpu").to(torch.float64)
            walked = personalized(smoothing.T, start, members_of(recipe)[SMOOTHED]).squeeze(1)
            shares = (1 - smoothed) * shares + smoothed * walked / walked.sum()
        order = ranked(shares.numpy())[:top].tolist()
        return tuple(Influence(self.graph.node_names[b], float(shares[b])) for b in order), [note] if note else []

    def _feature_shares(self, start: Tensor) -> tuple[Tensor, str]:
        """How much of the features of each node arrives at one, in any unit, [n], and a note; `start` is 1 at that node, [n, 1]."""
        recipe, models, how = self.trained.recipe, self.trained.model.first, self.trained.method.features
        nodes, how = start.squeeze(1).nonzero().squeeze(1), recipe.propagation if how == "layers" else how
        if how == "own":
            return start.squeeze(1), ""
        if how == "given_edges":
            steps = f"{recipe.gcn_layers} steps along the given edges"
            note = f"features: {steps}; what {recipe.method} itself makes of an edge is not in it"
            return feature_influence(self.transition, nodes, recipe.gcn_layers)[0], note
        if how == "relations":  # |γ_0| + Σ_r Σ_k |γ_rk| P_r^k, row by row
            matrices = [matrix.to(torch.float64).T for matrix in edge_type_matrices(self.graph)]
            parts = walk_edge_types(mean_size(models, "own"), mean_size(models, "gamma"), matrices, start)
            note = "features: predictions propagate along each edge type separately, labels vote along all edges"
            return torch.stack(parts).sum(dim=0).squeeze(1), note
        with torch.no_grad():
            matrices = [model.smoothing(self.placed) for model in models]
        mean = torch.stack([matrix.values for matrix in matrices]).mean(dim=0)
        smoothing = matrices[0].with_values(mean).to("cpu").to(torch.float64)
        if how == "personalized":
            return personalized(smoothing.T, start, recipe).squeeze(1), ""
        if how == "mean_of_hops":
            return smoothing.T.polynomial(torch.ones(recipe.propagation_steps + 1), start).squeeze(1), ""
        if how == "hops":  # Σ_k |γ_k| S^k, row by row
            return smoothing.T.polynomial(mean_size(models, "gamma"), start).squeeze(1), ""
        note = "features: what each layer adds of the node's own (residual) is not counted" if recipe.residual else ""
        return feature_influence(smoothing, nodes, recipe.gcn_layers)[0], note

    @cached_property
    def _smoothed_share(self) -> float:
        """The weight of the member `smoothed-lr` as a share of its weight and that of the first member."""
        names, pool = [self.trained.recipe.method, *self.trained.recipe.members.split()], self.trained.weights
        if SMOOTHED not in names[1:]:
            return 0.0
        size = dict.fromkeys(names, 1.0)
        if pool is not None:
            size = {name: w * t for name, w, t in zip(names, pool.weights, pool.exponents, strict=False)}
        both = size[names[0]] + size[SMOOTHED]
        return size[SMOOTHED] / both if both > 0 else 0.0

    def _notes(self, at: int, is_prior: bool) -> list[str]:
        graph, notes, method = self.graph, [], self.trained.recipe.method
        walks = self.trained.method.features
        if shares := self.trained.shares:
            notes.append(f"label votes have {100 * shares['votes']:.0f} % of the ensemble weight")
        if smoothed := self._smoothed_share:
            both = f"{method} {100 * (1 - smoothed):.0f} %, {SMOOTHED} {100 * smoothed:.0f} %"
            notes.append(f"features: those that two members read, by their ensemble weights: {both}")
        others = [name for name in self.trained.recipe.members.split() if name in shares and name != SMOOTHED]
        if beside := [f"{name} {100 * shares[name]:.0f} %" for name in others]:
            notes.append(f"other members of the ensemble are not explained here: {', '.join(beside)}")
        if walks == "own":
            notes.append(f"{method} uses no edge: the votes are LPA's on the given graph and no part of its prediction")
        elif self.trained.used_edge_weights is not None:
            notes.append("votes travel along edges that weigh what their columns say")
        elif self.trained.recipe.edges == "fixed" or not self.trained.model.edge_parameters():
            notes.append(f"{method} learns no edge weights: votes travel along the given ones, D⁻¹A")
        is_given, is_labeled = bool(self.prediction.given[at]), bool(graph.labeled[at])
        if is_given and not is_labeled:
            notes.append("its label helped to choose the epoch; the model did not learn from it, and it has no vote")
        if is_labeled:
            notes.append("the node is labelled itself; LPA reads its score before; its own vote counts")
        elif not np.isfinite(self.distance[at]):
            origin = "comes from features alone"
            if walks == "none" or is_prior:
                has_labels = bool(self.prediction.given.any())
                origin = "is the shares of all given labels" if has_labels else "is equal for all classes"
                origin = "is the mean of all given numbers" if graph.numbers is not None else origin
            is_near = self.prediction.status[at] == "reached"  # by validation nodes at most
            kind = "training label" if is_near else "label"
            notes.append(f"no {kind} can reach this node: its prediction {origin}")
        elif self.distance[at] > self.hops:
            near = int(self.distance[at])
            nearest = f"the nearest is {hops_in_words(near)} away, ask with hops {near}"
            notes.append(f"no label within {hops_in_words(self.hops)}: {nearest}")
        if graph.numbers is not None:
            return notes
        scores = self.scores[at].numpy().round(EQUAL)
        best = [graph.class_names[k] for k in np.flatnonzero(scores == scores.max())]
        if len(best) > 1 and scores.max() > 0:
            notes.append(f"LPA gives {', '.join(best[:-1])} and {best[-1]} the same score; the first is named")
        return notes


def mean_size(models: list[Any], name: str) -> Tensor:
    """The mean over the models of |γ|, a parameter of their bodies, in float64."""
    return torch.stack([getattr(model.body, name).detach().cpu().double().abs() for model in models]).mean(dim=0)


def strongest_paths(
    transition: SparseMatrix, labeled: Tensor, node: int, hops: int, voters: list[int]
) -> list[tuple[list[int], tuple[float, ...]]]:
    """The most probable walk of at most `hops` steps from `node` to each voter that meets no labelled node before it, and the
    weight of each of its steps. Of equals the shortest, then the one that comes through the smaller nodes.

    Found for all voters at once in O(hops · E): the best walk of j steps to v is a best one of j - 1, and one step on.
    """
    enter = transition.pattern.T  # row v: the nodes u from which v is entered
    starts, source = enter.rowptr.numpy(), enter.col.numpy()
    target, weight, is_end = enter.row.numpy(), transition.transposed_values.numpy(), labeled.numpy()
    filled, n = np.diff(starts) > 0, len(is_end)
    at, best, length = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    at[node] = 1
    came_by = []  # for each number of steps, the last step of the best walk to v
    for steps in range(1, hops + 1):
        reach = at[source] * weight
        at = np.zeros(n)
        if len(reach):
            at[filled] = np.maximum.reduceat(reach, starts[:-1][filled])
        hits = np.flatnonzero((reach == at[target]) & (reach > 0))[::-1]
        last = np.full(n, -1)
        last[target[hits]] = hits  # the first of equals is written last
        came_by.append(last)
        better = is_end & (at > best * (1 + 10.0**-EQUAL))
        best[better], length[better] = at[better], steps
        at[is_end] = 0
    paths = []
    for voter in voters:
        nodes, weights = [voter], []
        for last in reversed(came_by[: length[voter]]):
            entry = last[nodes[-1]]
            nodes.append(int(source[entry]))
            weights.append(float(weight[entry]))
        paths.append((nodes[::-1], tuple(weights[::-1])))
    return paths


def ranked(shares: np.ndarray) -> np.ndarray:
    """The nodes with a share, the largest first, equals by their number."""
    nodes = np.flatnonzero(shares > 0)
    order: np.ndarray = nodes[np.lexsort((nodes, -shares[nodes].round(EQUAL)))]
    return order
