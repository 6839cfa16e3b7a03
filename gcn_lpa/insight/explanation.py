"""Why a node got its label: the training labels that voted for it, along which edges, and what would change it.

Lemma 2 of the paper makes label propagation a vote: a walk leaves the node along `transition` = D*⁻¹A*, ends at the first labelled
node it meets within k hops, and counts for the label there. The share of walks that end at a labelled node is its vote, and the
votes for a class add up to LPA's score of that class, exactly (Theorem 3). The GCN walks the same edges but decides by features, so
an explanation says what both say, whether they agree, and whose features the GCN looks at (Lemma 1).

Only the labels that a model was trained on are read. The same model and graph give the same bytes: nothing is drawn at random,
and what is equal to 12 digits is in the order of the nodes.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from scipy.sparse import csgraph
from torch import Tensor

from gcn_lpa.edges import Free
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.insight.answers import Change, Effect, Explanation, Influence, Others, Path, Vote, WhatIf
from gcn_lpa.insight.paths import EQUAL, is_highest, part_of, ranked, rounded, strongest_paths, winner, winners
from gcn_lpa.insight.wording import hops_in_words
from gcn_lpa.methods.linear import FeaturesOnly
from gcn_lpa.methods.networks import APPNP, LabelInput, personalized
from gcn_lpa.methods.propagation import AdaptiveLPA, LabelPropagation, labels_of, one_hot
from gcn_lpa.model import GCNLPA, propagate_labels
from gcn_lpa.predict import predict_proba, with_prior
from gcn_lpa.recipes import Recipe
from gcn_lpa.theory.influence import feature_influence, label_influence

if TYPE_CHECKING:
    from gcn_lpa.runs.codec import TrainedRun


MOVED = 1e-6  # of a probability or score: less is rounding


BLOCK = 1 << 23  # numbers in a dense block of votes, 64 MB


VOTERS = 3  # of each node in the table of all


def explain(
    model: Any, graph: Graph, node: Hashable, *, known: Tensor, recipe: Recipe, top: int | None = 10,
    hops: int | None = None,
) -> Explanation:  # fmt: skip
    """Why `model` and label propagation label a node as they do. For several nodes keep an `Explainer`.

    Args:
        graph: raw, as it was loaded.
        node: its name, or a text that prints like it.
        known: the nodes whose labels the model was trained on, [n]; of a run `run.split.train`.
        top: voters and features to list; None: all.
        hops: how far a label travels; None: as the recipe says.
    """
    return Explainer.of(model, graph, known, recipe=recipe, hops=hops).explain(node, top=top)


def explain_all(
    model: Any, graph: Graph, *, known: Tensor, recipe: Recipe, nodes: Tensor | None = None, hops: int | None = None
) -> Any:
    """A DataFrame with a row for each of `nodes`, a mask, or for every node without a known label: see `Explainer.table`."""
    return Explainer.of(model, graph, known, recipe=recipe, hops=hops).table(nodes)


def what_if(
    model: Any, graph: Graph, *, known: Tensor, recipe: Recipe, hops: int | None = None,
    label: Mapping[Any, str] | None = None, relabel: Mapping[Any, str] | None = None,
    unlabel: Iterable[Hashable] = (), remove_edges: Iterable[tuple[Hashable, Hashable]] = (),
) -> WhatIf:  # fmt: skip
    """Which predictions would change with other labels or fewer edges: see `Explainer.what_if`."""
    explainer = Explainer.of(model, graph, known, recipe=recipe, hops=hops)
    return explainer.what_if(label=label, relabel=relabel, unlabel=unlabel, remove_edges=remove_edges)


P = ParamSpec("P")


R = TypeVar("R")


def _few_threads(graph: Graph, recipe: Recipe) -> AbstractContextManager[None]:
    """On a small graph, torch's own loops get one thread: see `num_threads`."""
    return num_threads(None, layer=graph.num_nodes * max(recipe.hidden, graph.num_classes))


def _on_few_threads(method: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(method)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        explainer = cast(Explainer, arguments[0])
        with _few_threads(explainer.graph, explainer.recipe):
            return method(*arguments, **options)

    return run


@dataclass(frozen=True, eq=False)
class Explainer:
    """A trained model and what all explanations of it share; each part is computed when it is first needed."""

    model: Any
    graph: Graph  # prepared, with the labels that the model was trained on and no others, on the CPU
    recipe: Recipe
    hops: int  # k

    @classmethod
    def of(cls, model: Any, graph: Graph, known: Tensor, *, recipe: Recipe, hops: int | None = None) -> Explainer:
        """An explainer of a model that was trained on the labels of `known` in the raw `graph`."""
        if hops is not None and hops < 1:
            raise ValueError(f"hops = {hops}; a label travels at least 1")
        with _few_threads(graph, recipe):
            revealed = recipe.prepare(graph.reveal(known)).to("cpu")
        if unknown := int((known.cpu() & ~revealed.labeled).sum()):
            raise ValueError(f"{unknown} nodes of `known` have no label in the graph")
        is_lpa = isinstance(model, LabelPropagation | AdaptiveLPA)
        own = recipe.propagation_steps if is_lpa else max(1, recipe.lpa_iterations)
        return cls(model, revealed, recipe, own if hops is None else hops)

    @classmethod
    def of_run(cls, trained: TrainedRun, *, hops: int | None = None) -> Explainer:
        """An explainer of what `train_run` or `load_run` gave: of the labels that trained it, not those that chose the epoch."""
        return cls.of(trained.model, trained.graph, trained.split.train, recipe=trained.plan.recipe, hops=hops)

    @cached_property
    def transition(self) -> SparseMatrix:
        """D*⁻¹A* in float64, of the learned edges where the model has some and of the given ones where it has not."""
        with torch.no_grad():
            if isinstance(self.model, GCNLPA):
                scores = self.model.edge_scores(self._placed)
            elif isinstance(self.model, AdaptiveLPA):
                scores = self.model.scores(self._placed)
            else:
                return self.graph.adjacency.to(torch.float64).row_normalized()
        return self.graph.adjacency.with_values(scores.values.detach().cpu().double()).row_softmax()

    @cached_property
    def model_output(self) -> Tensor:
        """What the model itself says, also of nodes of which it can know nothing, [n, c]."""
        return predict_proba(self.model, self.graph)

    @cached_property
    def probabilities(self) -> Tensor:
        """The model's, before calibration; of nodes of which it can know nothing, the shares of the labels, [n, c]."""
        return with_prior(self.model_output, self.graph, self.graph.labeled)

    @cached_property
    def scores(self) -> Tensor:
        """LPA's: Y^(k) before the last reset of Eq. (2), [n, c]."""
        return propagate_labels(self.transition, one_hot(self.graph.y, self.graph).double(), self.hops)

    @cached_property
    def distance(self) -> np.ndarray:
        """Hops from each node to the nearest label, infinite where none can reach it, [n]."""
        sends = self.graph.adjacency.to_scipy().T  # from a node to those that receive its messages
        known = np.flatnonzero(self.graph.labeled.numpy())
        if not len(known):
            return np.full(self.graph.num_nodes, np.inf)
        hops: np.ndarray = csgraph.dijkstra(sends, indices=known, unweighted=True, min_only=True)
        return hops

    @cached_property
    def _placed(self) -> Graph:
        """The graph on the device of the model."""
        tensors = [*self.model.state_dict().values()]
        return self.graph.to(tensors[0].device) if tensors and tensors[0].is_cuda else self.graph

    @_on_few_threads
    def explain(self, node: Hashable, *, top: int | None = 10) -> Explanation:
        """Why a node has its label; `top` as in the function `explain`."""
        if top is not None and top < 1:
            raise ValueError(f"top = {top}; at least 1 voter is listed")
        graph, at = self.graph, self.graph.index_of(node)
        label, lpa = winner(self.probabilities[at]), winner(self.scores[at])
        names = [*graph.class_names, None]
        votes, others = self._votes(at, top)
        features, feature_notes = self._features(at, top)
        near = self.distance[at]
        return Explanation(
            node=graph.node_names[at],
            status="labeled" if near == 0 else "reached" if np.isfinite(near) else "unreachable",
            given_label=names[int(graph.y[at])],
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

    @_on_few_threads
    def table(self, nodes: Tensor | None = None) -> Any:
        """A DataFrame with a row for each of `nodes`, a mask [n]; None: every node without a known label.

        id, label, probability (the model's); lpa_label, agree, lpa_score (LPA's score of the model's label); voter_1, share_1 and
        so on, the strongest three; hops (to the nearest label) and status. Empty where no label is near enough.
        """
        import pandas

        graph, names, ids = self.graph, [*self.graph.class_names, None], self.graph.node_names
        wanted = ~graph.labeled if nodes is None else nodes.cpu()
        if wanted.dtype != torch.bool or wanted.shape != graph.y.shape:
            raise ValueError(f"nodes is a boolean mask, [{graph.num_nodes}], not {wanted.dtype} {list(wanted.shape)}")
        rows = wanted.nonzero().squeeze(1)
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
        columns["status"] = np.select([near == 0, np.isfinite(near)], ["labeled", "reached"], "unreachable").tolist()
        return pandas.DataFrame({name: pandas.Series(column, dtype=object) for name, column in columns.items()})

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

    @_on_few_threads
    def what_if(
        self, *, label: Mapping[Any, str] | None = None, relabel: Mapping[Any, str] | None = None,
        unlabel: Iterable[Hashable] = (), remove_edges: Iterable[tuple[Hashable, Hashable]] = (),
    ) -> WhatIf:  # fmt: skip
        """Which predictions would change if nodes had another label, or none, and edges were not there.

        Label propagation is computed again, exactly. The model is applied again with the weights it has: W and the scores of the
        edges that stay are not trained again. So labels move only models that read labels when they predict.

        Args:
            label: a class for nodes that have no known label.
            relabel: another class for nodes that have one.
            unlabel: nodes whose known label is taken away.
            remove_edges: pairs of nodes that are joined; both directions go where the graph is undirected.
        """
        without: list[Hashable] = [unlabel] if isinstance(unlabel, str) else list(unlabel)
        y, asked = self._other_labels(dict(label or {}), dict(relabel or {}), without)
        kept, removed = self._other_edges(list(remove_edges))
        if not asked and not removed:
            raise ValueError("nothing is asked: give a node to label, relabel or unlabel, or an edge to remove")
        other = self._with(y, kept if removed else None)
        notes = [f"nothing was trained again: {self.recipe.method} has the weights of the run"]
        if asked and not hasattr(self.model, "known"):
            notes.append(
                f"labels reach {self.recipe.method} only when it is trained: train it again to see what they do to it"
            )
        if removed:
            notes.append("edges that stay keep their scores; each node's shares are divided anew among them")
        predicted = (y < 0).nonzero().squeeze(1)
        return WhatIf(
            asked=(*asked, *removed),
            method=self.recipe.method,
            hops=self.hops,
            num_nodes=len(predicted),
            model=self._effect(predicted, self.model_output, other.model_output),
            lpa=self._effect(predicted, self._after_reset, other.scores),
            notes=tuple(notes),
        )

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
                path=Path(tuple(graph.node_names[v] for v in nodes), weights, float(np.prod(weights))),
            )
            for b, (nodes, weights) in zip(listed.tolist(), paths, strict=True)
        )
        labels = graph.y.numpy()[rest]
        left = {name: float(total[rest][labels == k].sum()) for k, name in enumerate(names) if (labels == k).any()}
        return votes, Others(len(rest), left)

    def _features(self, at: int, top: int | None) -> tuple[tuple[Influence, ...], list[str]]:
        """Where the features come from that the model reads for a node, and what is to be said of it."""
        model, method, nodes = self.model, self.recipe.method, torch.tensor([at])
        layers, notes = self.recipe.gcn_layers, []
        if self._is_prior(at):
            return (), []
        if isinstance(model, FeaturesOnly):
            return (Influence(self.graph.node_names[at], 1.0),), []
        if isinstance(model, LabelPropagation | AdaptiveLPA):
            return (), [f"{method} is label propagation: the votes are its prediction, and features travel nowhere"]
        network = model.layers if isinstance(model, LabelInput) else model
        if isinstance(network, GCNLPA):
            with torch.no_grad():
                smoothing = network.smoothing(self._placed, network.transition(self._placed)).to("cpu")
            shares = feature_influence(smoothing.to(torch.float64), nodes, layers)[0]
            if self.recipe.residual:
                notes.append("features: what each layer adds of the node's own (residual) is not counted")
        elif isinstance(model, APPNP):
            smoothing = self.graph.adjacency.to(torch.float64).symmetric_normalized()
            start = torch.zeros(self.graph.num_nodes, 1, dtype=torch.float64).index_fill(0, nodes, 1)
            shares = personalized(smoothing.T, start, self.recipe).squeeze(1)
        elif hasattr(model, "known"):  # Correct & Smooth: what travels are errors and predictions
            return (), [f"{method}: no feature influence, since its predictions travel and not its features"]
        else:
            shares = feature_influence(self.transition, nodes, layers)[0]
            notes.append(
                f"features: {layers} steps along the given edges; what {method} itself makes of an edge is not in it"
            )
        found = (shares / shares.sum()).numpy()
        return tuple(Influence(self.graph.node_names[b], float(found[b])) for b in ranked(found)[:top].tolist()), notes

    def _is_prior(self, at: int) -> bool:
        """Whether the model can know nothing of a node, so that the shares of the labels stand for its answer."""
        return not torch.equal(self.probabilities[at], self.model_output[at])

    def _notes(self, at: int) -> list[str]:
        graph, notes, method = self.graph, [], self.recipe.method
        if isinstance(self.model, FeaturesOnly):
            notes.append(f"{method} uses no edge: the votes are LPA's on the given graph and no part of its prediction")
        elif self.recipe.edges == "fixed" or not isinstance(self.model, GCNLPA | AdaptiveLPA):
            notes.append(f"{method} learns no edge weights: votes travel along the given ones, D⁻¹A")
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
            is_share = isinstance(self.model, LabelPropagation | AdaptiveLPA) or self._is_prior(at)
            origin = "is the shares of all given labels" if is_share else "comes from features alone"
            notes.append(f"no label can reach this node: what is said of it {origin}")
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

    @property
    def _after_reset(self) -> Tensor:
        """LPA's predictions: a labelled node has its own label, Eq. (2), [n, c]."""
        return torch.where(self.graph.labeled.unsqueeze(1), one_hot(self.graph.y, self.graph).double(), self.scores)

    def _effect(self, nodes: Tensor, before: Tensor, after: Tensor) -> Effect:
        names = [*self.graph.class_names, None]
        before, after = before[nodes], after[nodes]
        moves = (after - before).abs().amax(dim=1).numpy()
        was, now = winners(before), winners(after)
        changed = np.flatnonzero((was != now) & (moves > MOVED))
        changes = tuple(
            Change(
                node=self.graph.node_names[int(nodes[i])],
                before=names[was[i]],
                after=names[now[i]],
                score_before=float(before[i, was[i]]) if was[i] >= 0 else 0.0,
                score_after=float(after[i, now[i]]) if now[i] >= 0 else 0.0,
            )
            for i in changed[np.lexsort((changed, -moves[changed].round(EQUAL)))].tolist()
        )
        return Effect(changes, int((moves > MOVED).sum()), float(moves.max(initial=0)))

    def _other_labels(
        self, label: dict[Hashable, str], relabel: dict[Hashable, str], unlabel: list[Hashable]
    ) -> tuple[Tensor, list[str]]:
        """The known labels with the changes asked for, [n], and the changes in words."""
        graph, y, asked, seen = self.graph, self.graph.y.clone(), [], set()
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
            y[at] = -1 if name is None else self._class(name)
            told = {False: "label", True: "relabel"}[has_label]
            asked.append(f"unlabel {shown}" if name is None else f"{told} {shown} as {name}")
        return y, asked

    def _class(self, name: str) -> int:
        names = self.graph.class_names
        if name in names:
            return names.index(name)
        close = difflib.get_close_matches(str(name), names, n=3)
        hint = f"close to it: {', '.join(close)}" if close else f"there are {', '.join(names[:12])}"
        raise ValueError(f"there is no class {name!r}; {hint}")

    def _other_edges(self, pairs: list[tuple[Hashable, Hashable]]) -> tuple[Tensor, list[str]]:
        """Which entries of the adjacency stay, [E], and what goes in words."""
        graph, asked = self.graph, []
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
                joined = [
                    str(graph.node_names[v])
                    for v in col[row == (b if graph.directed else a)].tolist()
                    if v not in (a, b)
                ]
                end = graph.node_names[b if graph.directed else a]
                hint = (
                    f"{end} is joined to {', '.join(joined[:8])}{', …' if len(joined) > 8 else ''}"
                    if joined
                    else f"{end} has no edge"
                )
                raise ValueError(f"there is no edge {shown}; {hint}")
            goes |= entry
            asked.append(f"remove edge {shown}")
        return ~goes, asked

    def _with(self, y: Tensor, kept: Tensor | None) -> Explainer:
        """The same model on other labels and, of the adjacency, only the entries of `kept`."""
        model, graph = copy.deepcopy(self.model), dataclasses.replace(self.graph, y=y)
        if kept is not None:
            part = part_of(graph.adjacency, kept)
            for module in list(model.modules()):
                if isinstance(getattr(module, "edges", None), Free):
                    module.edges = module.edges.restricted(self._placed, part.pattern, kept)
            graph = dataclasses.replace(graph, adjacency=part, _derived={})
        if hasattr(model, "known"):
            model.known.copy_(labels_of(graph, (y >= 0).nonzero().squeeze(1)))
        return dataclasses.replace(self, model=model, graph=graph)
