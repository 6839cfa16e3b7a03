"""Which labels and which edges look wrong, with the evidence.

No label is scored by a model that was trained on it. `cross_fit` hides each fold of the labels in turn, so that the prediction for
a labelled node comes from the other labels. Label propagation with that one node left out (Theorem 3 of the paper: "treat v_a as
unlabelled") is the second kind of evidence.

Both audits ask the same question: does this look like what is given, or like something drawn at random? The given labels are
compared with all other labels of the same nodes, the edges with random pairs of nodes. A logistic regression on two or three kinds
of evidence learns from the graph itself how much each kind counts, also where neighbours tend to differ.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.describe import html_table, node_hops
from gcn_lpa.data.splits import label_folds, split
from gcn_lpa.train import Epoch, JobName, Watch
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.insight.evidence import (
    ERROR_RATE,
    LEAST,
    ErrorModel,
    PairEvidence,
    class_evidence,
    edge_ends,
    joined,
    label_evidence,
    posteriors_of,
    random_pairs,
    suspicion_of,
    votes_without_own,
    weights_near_labels,
)
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.learning.tasks import with_classes
from gcn_lpa.predict import predict_proba
from gcn_lpa.propagation import one_hot
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.trained import Trained

PATIENCE = 20  # epochs without a lower validation loss before the search for the number of epochs ends
TINY = 1e-12  # share of an edge, so that zero has a logarithm
WEIGHT_POWER = 0.5  # of 0, ¼, ½, 1, 2 the best on Cora with 20 % of noise, seeds that no benchmark uses
SHOWN = 20  # findings that a notebook shows; to_frame has all


@dataclass(frozen=True)
class CrossFit:
    """Predictions for each node by models that were not trained on its label."""

    probabilities: Tensor  # [n, c], float64; of an unlabelled node the mean over all models
    weights: Tensor | None  # learned for each entry of the graph's adjacency, as multiples of the given ones, [E]
    given: Tensor  # [n], the nodes whose labels were used
    epochs: int  # of every model
    folds: int
    repeats: int
    seed: int
    recipe: Recipe

    @property
    def settings(self) -> tuple[int, int, int, int, Recipe]:
        return self.epochs, self.folds, self.repeats, self.seed, self.recipe


def cross_fit(
    graph: Graph,
    given: Any = None,
    recipe: Recipe = DEFAULT,
    *,
    folds: int = 5,
    repeats: int = 3,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_fit: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Train `folds` · `repeats` models, each without the labels of one fold, and predict with each the nodes of that fold.

    The number of epochs is found first, with a fifth of the labels, where their loss is lowest: ranking needs probabilities, and
    those of a model trained for accuracy are too sure. That number is all that a label contributes to its own score.

    Args:
        given: the nodes whose labels may be used, a mask or positions; None: all labelled ones. Others are not read.
        repeats: with new folds and first weights each; probabilities are averaged.
        on_fit: called with the number of models trained and of all.
    """
    check_seed(seed)
    check_seed(seed + repeats - 1)
    given, recipe = _checked_given(graph, given, folds, repeats), recipe.replace(members="")  # the first member alone
    labels, nobody = graph.y.cpu(), torch.zeros_like(given)
    hidden, total, done = graph.reveal(given), folds * repeats + 1, itertools.count(1)
    options: dict[str, Any] = {"classes": graph.class_names, "device": device, "threads": threads}
    parts = split(hidden, (0.8, 0.2, 0.0), seed)
    searching = recipe.replace(select="loss", patience=PATIENCE)
    (searched,) = learn_many(hidden, [(parts.train, parts.val)], searching, seeds=seed, **options)
    epochs = searched.run.best_epoch
    if on_fit is not None:
        on_fit(next(done), total)

    def on_epoch(name: JobName, epoch: Epoch) -> None:
        if on_fit is not None and epoch.epoch == epochs:
            on_fit(next(done), total)

    rounds = [(seed + k, label_folds(labels, given, folds, seed=(seed, k))) for k in range(repeats)]
    left_out = [(first, fold) for first, masks in rounds for fold in masks]
    models = learn_many(
        hidden,
        [(given & ~fold, nobody) for _, fold in left_out],
        recipe,
        seeds=[first for first, _ in left_out],
        stop_at=epochs,
        watch=Watch(on_epoch=None if on_fit is None else on_epoch),
        **options,
    )
    learns_edges = recipe.method == "gcn-lpa" and recipe.edges != "fixed"
    out_of_fold = torch.zeros(graph.num_nodes, graph.num_classes, dtype=torch.float64)
    log_weights = torch.zeros(graph.adjacency.num_entries, dtype=torch.float64)
    for (_, fold), trained in zip(left_out, models, strict=True):
        found = predict_proba(trained, hidden, raw=True)
        out_of_fold[fold] += found[fold] / repeats
        out_of_fold[~given] += found[~given] / (repeats * folds)
        if learns_edges:
            log_weights += _log_multiples(trained, hidden) / (repeats * folds)
    weights = log_weights.exp() if learns_edges else None
    return CrossFit(out_of_fold, weights, given, epochs, folds, repeats, seed, recipe)


def _checked_given(graph: Graph, given: Any, folds: int, repeats: int) -> Tensor:
    """The mask of the labels that may be used, on the CPU, if there is something to audit."""
    check_graph(graph)
    mask = graph.labeled.cpu() if given is None else node_mask(given, graph.num_nodes, "given")
    labels = graph.y.cpu()[mask]
    if (labels < 0).any():
        raise ValueError(f"{int((labels < 0).sum())} of the {len(labels)} nodes of `given` have no label")
    if repeats < 1 or folds < 2:
        raise ValueError(f"folds = {folds} and repeats = {repeats}; they are at least 2 and 1")
    if len(labels) < folds or len(labels.unique()) < 2:
        raise ValueError(
            f"an audit with {folds} folds needs {folds} labelled nodes and two classes among them; "
            f"there are {len(labels)} nodes of {len(labels.unique())} classes"
        )
    return mask


def _log_multiples(trained: Trained, graph: Graph) -> Tensor:
    """log a*_ij / a_ij, both row-normalised, for each entry of the raw graph's adjacency, [E]."""
    prepared = trained.prepare(graph).to(trained.device)
    with torch.no_grad():
        learned = trained.model.transition(prepared).values
    given = prepared.adjacency.row_normalized().values
    logs = [values.cpu().double().clamp_min(TINY).log() for values in (learned, given)]
    keys, prepared_keys = (g.row.cpu().long() * g.num_nodes + g.col.cpu().long() for g in (graph, prepared))
    multiples: Tensor = (logs[0] - logs[1]).index_select(0, torch.searchsorted(prepared_keys, keys))  # no self-loops
    return multiples


@dataclass(frozen=True)
class LabelFinding:
    """One labelled node. `suspicion` is the chance that its label is wrong, if the stated rate of all labels is."""

    node: Hashable
    label: str
    suggested: str  # the label that the evidence supports best; it may be the given one
    suspicion: float
    model: float  # probability of the given label, by models that were not trained on it
    neighbours: float | None  # share of the given label among the votes of other labels; None where no vote arrives
    evidence: str

    def __str__(self) -> str:
        other = f", rather {self.suggested}" if self.suggested != self.label else ""
        return f"{self.suspicion:.3f}  {self.node}: {self.label}{other}\n       {self.evidence}"


@dataclass(frozen=True)
class EdgeFinding:
    """One edge. `suspicion` is the chance that it is a random pair, if the stated rate of all edges is.

    `status` is "judged", or "abstains" where an end has no features and no label reaches it.
    """

    source: Hashable
    target: Hashable
    source_class: str
    target_class: str
    suspicion: float
    agreement: float  # Σ_c p_source[c] p_target[c]: the chance that both ends have the same class
    similarity: float | None  # cosine of the features; None where nodes have none
    common_neighbours: int
    weight: float | None  # learned, as a multiple of the given one; None where it has no meaning
    status: str
    evidence: str

    def __str__(self) -> str:
        abstains = "" if self.status == "judged" else "  (abstains)"
        return f"{self.suspicion:.3f}  {self.source} – {self.target}{abstains}\n       {self.evidence}"


Finding = TypeVar("Finding", LabelFinding, EdgeFinding)


@dataclass(frozen=True)
class Audit(Generic[Finding]):
    """The findings, the most suspicious first, and how they were made."""

    graph: str
    findings: tuple[Finding, ...]
    influence: dict[str, float]  # what a standard deviation of each kind of evidence adds to the log-odds of an error
    rate: float  # the share of labels or edges taken to be wrong
    epochs: int
    folds: int
    repeats: int
    seed: int
    recipe: Recipe

    subject: ClassVar[str]  # these and their errors in words
    error: ClassVar[str]
    html_columns: ClassVar[tuple[str, ...]]  # fields of a finding that a notebook shows

    @property
    def summary(self) -> str:
        judged = [row for row in self.findings if not isinstance(row, EdgeFinding) or row.status == "judged"]
        doubted, rest = sum(row.suspicion > 0.5 for row in judged), len(self.findings) - len(judged)
        unscored = f" {rest:,} are not scored: an end has no features, and no label reaches it." if rest else ""
        return (
            f"{doubted:,} of {len(judged):,} {self.subject} are more likely wrong than right, if {100 * self.rate:g} % of all are "
            f"{self.error}.{unscored} By {self.folds * self.repeats} models, none of which was shown the labels it judges."
        )

    def to_frame(self) -> Any:
        """A DataFrame with a row per finding."""
        import pandas

        rows: tuple[Any, ...] = self.findings
        columns = {spec.name: [getattr(row, spec.name) for row in rows] for spec in dataclasses.fields(rows[0])}
        ids = dict.fromkeys(("node", "source", "target"), object)  # as they are, whatever they look like
        return pandas.DataFrame({name: pandas.Series(column, dtype=ids.get(name)) for name, column in columns.items()})

    def _repr_html_(self) -> str:
        rows = [[getattr(row, name) for name in self.html_columns] for row in self.findings[:SHOWN]]
        header = ["rather" if name == "suggested" else name for name in self.html_columns]
        return html_table(self.summary, rows, header)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class LabelAudit(Audit[LabelFinding]):
    """The labelled nodes, the most suspicious first."""

    subject, error = "labels", "wrong at random"
    html_columns = ("suspicion", "node", "label", "suggested", "evidence")


class EdgeAudit(Audit[EdgeFinding]):
    """The edges, the most suspicious first and those it abstains from at the end."""

    subject, error = "edges", "random pairs"
    html_columns = ("suspicion", "source", "target", "status", "evidence")


def audit_labels(trained: Trained, graph: Graph, *, rate: float = ERROR_RATE, **options: Any) -> LabelAudit:
    """Rank the labels a model was given by how little the rest of the graph supports them; models are trained for it.

    Args:
        rate: the share of labels taken to be wrong; the suspicions are proportional to it, their order is the same.
        options: folds, repeats, seed, device, threads and on_fit of `cross_fit`.
    """
    return rank_labels(*_cross_fitted(trained, graph, rate, options), rate=rate)


def audit_edges(trained: Trained, graph: Graph, *, rate: float = ERROR_RATE, **options: Any) -> EdgeAudit:
    """Rank the edges by how much they look like a random pair of nodes; models are trained for it.

    Args:
        rate, options: as in `audit_labels`.
    """
    check_graph(graph)
    _check_has_edges(graph)
    return rank_edges(*_cross_fitted(trained, graph, rate, options), rate=rate)


def _cross_fitted(trained: Trained, graph: Graph, rate: float, options: dict[str, Any]) -> tuple[Graph, CrossFit]:
    """The graph with the classes that the model knows, and a `cross_fit` of its recipe on the labels it was given."""
    if not 0 < rate < 1:
        raise ValueError(f"rate = {rate}; it is a share above 0 and below 1")
    check_graph(graph)
    graph = with_classes(graph, trained.class_names)
    return graph, cross_fit(graph, trained.given(graph), trained.recipe, **options)


def _check_has_edges(graph: Graph) -> None:
    if graph.num_edges == 0:
        raise ValueError(f"graph {graph.name!r} has no edge to audit")


def rank_labels(graph: Graph, fitted: CrossFit, *, rate: float = ERROR_RATE) -> LabelAudit:
    """Rank the labels of a `cross_fit` by how little the rest of the graph supports them.

    Two kinds of evidence count: log p, the probability of the label by models that were not trained on it; and log(1 + v), v the
    votes for it of the other labels within two hops. Votes *against* it do not: a neighbour of another class is common, a node
    without a neighbour of its own class is not.
    """
    given, labels = fitted.given, graph.y.cpu()
    nodes = given.nonzero().squeeze(1)
    around, seeds = joined(graph), one_hot(torch.where(given, labels, -1), graph.num_classes, torch.float64)
    votes = votes_without_own(around, seeds)[nodes]  # [m, c]
    model = fitted.probabilities[nodes]
    evidence = torch.stack([model.clamp_min(LEAST).log(), votes.log1p()], dim=2).numpy()  # [m, c, 2]
    target = labels[nodes].numpy()
    is_given = np.zeros(evidence.shape[:2], dtype=bool)
    is_given[np.arange(len(nodes)), target] = True
    errors = ErrorModel.learn(evidence[is_given], evidence[~is_given])
    doubts = errors.log_ratio(evidence.reshape(-1, 2)).reshape(is_given.shape)  # of every label the node could have
    suggested = doubts.argmin(axis=1)
    shares = (votes / votes.sum(dim=1, keepdim=True)).numpy()  # NaN where there is no vote
    counts = (around.to_scipy() > 0) @ seeds.numpy()
    findings = []
    for k in np.argsort(-doubts[is_given], kind="stable").tolist():
        node, label = int(nodes[k]), int(target[k])
        findings.append(
            LabelFinding(
                node=graph.node_names[node],
                label=graph.class_names[label],
                suggested=graph.class_names[suggested[k]],
                suspicion=suspicion_of(doubts[k, label], rate),
                model=float(model[k, label]),
                neighbours=None if np.isnan(shares[k, label]) else float(shares[k, label]),
                evidence=label_evidence(graph.class_names, label, model[k].numpy(), counts[node].astype(int)),
            )
        )
    influence = dict(zip(("model", "neighbours"), errors.coefficients.tolist(), strict=True))
    return LabelAudit(graph.name, tuple(findings), influence, rate, *fitted.settings)


def rank_edges(graph: Graph, fitted: CrossFit, *, rate: float = ERROR_RATE) -> EdgeAudit:
    """Rank the edges by how much they look like a random pair of nodes.

    Three kinds of evidence count: log Σ_c p_i[c] p_j[c], the chance that both ends are of one class; the cosine of their
    features; and log(1 + s), s = Σ 1 / log(1 + d_z) over the neighbours z they have in common (Adamic & Adar 2003).
    p is `posteriors_of`, for a labelled node by models that were not trained on its label.

    Where an end is labelled the weight that the models learned for the edge counts too: it multiplies the odds by
    weight^-WEIGHT_POWER. Between unlabelled nodes it adds nothing to the above, and its column is empty.
    """
    _check_has_edges(graph)
    source, target = edge_ends(graph)
    around, names = joined(graph), graph.class_names
    posteriors = posteriors_of(fitted.probabilities, graph.y.cpu(), fitted.given, rate)
    others = random_pairs(around, len(source), fitted.seed)
    if len(others[0]) == 0:
        raise ValueError(f"all nodes of graph {graph.name!r} are joined: no pair is left to compare its edges with")
    x = graph.to("cpu").with_features("l2").x if graph.x_kind == "given" else None
    here, there = (PairEvidence.of(ends, posteriors, x, around) for ends in ((source, target), others))
    errors = ErrorModel.learn(here.columns, there.columns)
    weights = weights_near_labels(graph, (source, target), fitted.weights, fitted.given)
    doubts = errors.log_ratio(here.columns) - WEIGHT_POWER * np.log(np.where(np.isnan(weights), 1, weights))
    known = np.isfinite(node_hops(graph, fitted.given))
    known |= x is not None  # without features and out of reach of labels, p is the prior
    judged = known[source] & known[target]
    classes = posteriors.argmax(dim=1).tolist()
    labels = torch.where(fitted.given, graph.y.cpu(), -1).tolist()
    words = [class_evidence(names, row, label) for row, label in zip(posteriors.numpy(), labels, strict=True)]
    findings = []
    for k in np.lexsort((-doubts, ~judged)).tolist():
        a, b = int(source[k]), int(target[k])
        weight = None if np.isnan(weights[k]) else float(weights[k])
        findings.append(
            EdgeFinding(
                source=graph.node_names[a],
                target=graph.node_names[b],
                source_class=names[classes[a]],
                target_class=names[classes[b]],
                suspicion=suspicion_of(doubts[k], rate),
                agreement=float(here.agreement[k]),
                similarity=None if here.similarity is None else float(here.similarity[k]),
                common_neighbours=int(here.common[k]),
                weight=weight,
                status="judged" if judged[k] else "abstains",
                evidence=f"{words[a]} – {words[b]}; {here.in_words(k, weight)}",
            )
        )
    kinds = ("agreement", *(["similarity"] if x is not None else []), "common_neighbours")
    influence = dict(zip(kinds, errors.coefficients.tolist(), strict=True))
    return EdgeAudit(graph.name, tuple(findings), influence, rate, *fitted.settings)
