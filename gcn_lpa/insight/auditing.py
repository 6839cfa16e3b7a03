"""Which labels and which edges look wrong, with the evidence.

Nothing is judged by a model that was taught it. `cross_fit` hides each fold of the labels in turn, so that what it says
of a labelled node comes from the other labels. Beside it stands label propagation with that one node left out
(Theorem 3 of the paper: "treat v_a as unlabelled").

Both audits then ask the same question: does this look like what is given, or like something drawn at random? The
given labels are set against all other labels of the same nodes, the edges against random pairs of nodes, and a
logistic regression on two or three kinds of evidence learns from the user's own graph how much each kind counts. Where
neighbours tend to differ, it learns that too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn import functional as F

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph, split
from gcn_lpa.insight.comparison import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.intake import check_seed
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.model import leave_one_out_votes
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.train import choose_device, evaluate, fit, learn, node_status, num_threads, predict_proba

ERROR_RATE = 0.05  # how many labels or edges are taken to be wrong before anything is known
PATIENCE = 20  # epochs without a lower validation loss before the search for the number of epochs ends
LEAST = 1e-6  # probability, so that zero has a logarithm
TINY = 1e-12  # share of an edge, so that zero has a logarithm
LEAST_AGREEMENT = 1e-3  # of two nodes; below it more disagreement says nothing more
WEIGHT_SAY = 0.5  # of 0, ¼, ½, 1, 2 the best on Cora with 20 % of noise, seeds that no benchmark uses
UNSURE = 0.5  # of a node whose likeliest class has less than this nobody knows the class
MAX_RANDOM_PAIRS = 200_000


@dataclass(frozen=True)
class CrossFit:
    """What models that were not shown a node's label say of it.

    `weights` are those the models learned for each entry of the graph's adjacency, as multiples of the given ones;
    None where they learn none.
    """

    probabilities: Tensor  # [n, c], float64; of an unlabelled node the mean over all models
    weights: Tensor | None  # [E]
    given: Tensor  # [n], the nodes whose labels were used
    epochs: int  # of every model
    folds: int
    repeats: int
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class LabelFinding:
    """One labelled node. `suspicion` is the chance that its label is wrong, if the stated rate of all labels is."""

    node: Hashable
    label: str
    suggested: str  # the label that the evidence supports best; it may be the given one
    suspicion: float
    model: float  # probability of the given label, by models that were not shown it
    neighbours: float | None  # share of the given label among the votes of others; None where no vote arrives
    evidence: str

    def __str__(self) -> str:
        other = f", rather {self.suggested}" if self.suggested != self.label else ""
        return f"{self.suspicion:.3f}  {self.node}: {self.label}{other}\n       {self.evidence}"


@dataclass(frozen=True)
class LabelAudit:
    """The labelled nodes, the most suspicious first."""

    graph: str
    findings: tuple[LabelFinding, ...]
    influence: dict[str, float]  # what a standard deviation of each kind of evidence adds to the log-odds of an error
    rate: float  # the share of labels taken to be wrong
    epochs: int
    folds: int
    repeats: int
    seed: int
    recipe: Recipe

    @property
    def summary(self) -> str:
        doubted = sum(row.suspicion > 0.5 for row in self.findings)
        return (
            f"{doubted:,} of {len(self.findings):,} labels are more likely wrong than right, if {100 * self.rate:g} % of "
            f"all are wrong at random. {_models(self)}"
        )

    def to_frame(self) -> Any:
        """A DataFrame with a row per finding."""
        return _frame(self.findings, LabelFinding)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class EdgeFinding:
    """One edge. `suspicion` is the chance that it is a random pair, if the stated rate of all edges is.

    `status` is "judged", or "abstains" where neither labels nor features speak of an end.
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


@dataclass(frozen=True)
class EdgeAudit:
    """The edges, the most suspicious first and those it abstains from at the end."""

    graph: str
    findings: tuple[EdgeFinding, ...]
    influence: dict[str, float]
    rate: float
    epochs: int
    folds: int
    repeats: int
    seed: int
    recipe: Recipe

    @property
    def summary(self) -> str:
        judged = [row for row in self.findings if row.status == "judged"]
        doubted, rest = sum(row.suspicion > 0.5 for row in judged), len(self.findings) - len(judged)
        said = f" Of {rest:,} nothing is said, as neither labels nor features speak of an end." if rest else ""
        return (
            f"{doubted:,} of {len(judged):,} edges are more likely wrong than right, if {100 * self.rate:g} % of all are "
            f"random pairs.{said} {_models(self)}"
        )

    def to_frame(self) -> Any:
        """A DataFrame with a row per finding."""
        return _frame(self.findings, EdgeFinding)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _frame(findings: Sequence[Any], kind: type) -> Any:
    import pandas

    columns = {spec.name: [getattr(row, spec.name) for row in findings] for spec in dataclasses.fields(kind)}
    ids = dict.fromkeys(("node", "source", "target"), object)  # as they are, whatever they look like
    return pandas.DataFrame({name: pandas.Series(column, dtype=ids.get(name)) for name, column in columns.items()})


def cross_fit(
    graph: Graph,
    given: Tensor | None = None,
    recipe: Recipe = DEFAULT,
    *,
    folds: int = 5,
    repeats: int = 3,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_fit: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Train `folds` · `repeats` models, each without the labels of one fold, and let each speak of the nodes it was not shown.

    The number of epochs is found first, with a fifth of the labels, where their loss is lowest: ranking needs
    probabilities, and those of a model trained for accuracy are too sure. That number is all a label can tell about
    itself.

    Args:
        given: the nodes whose labels may be used, [n]; all labelled ones by default. Other labels are not looked at.
        repeats: with new folds and first weights each; probabilities are averaged.
        on_fit: told the number of models trained and of all.
    """
    check_seed(seed)
    check_seed(seed + repeats - 1)
    given = checked_given(graph, given, folds, repeats)
    prepared = recipe.prepare(graph.reveal(given))
    where = choose_device(device)
    moved = prepared if where.type == "cpu" else prepared.to(where)
    labels, nobody = graph.y.cpu(), torch.zeros_like(given)
    build, total = METHODS[recipe.method].build, folds * repeats + 1
    out_of_fold = torch.zeros(graph.num_nodes, graph.num_classes, dtype=torch.float64)
    log_weights = torch.zeros(graph.adjacency.num_entries, dtype=torch.float64)
    log_given = prepared.adjacency.row_normalized().values.cpu().double().clamp_min(TINY).log()
    entries = positions(graph, prepared) if learns_edges(recipe) else None

    def model_of(
        train: Tensor, val: Tensor, settings: Recipe, seed: int, stop_at: int | None = None
    ) -> tuple[Any, int]:
        shown = train | val
        model: Any = build(settings, prepared.reveal(shown), seed).to(where)
        run = fit(model, moved.reveal(shown), train, val, settings, seed=seed, stop_at=stop_at)
        if run.interrupted:  # by Ctrl-C, which `fit` takes for the end of this training
            raise KeyboardInterrupt
        return model, run.best_epoch

    with num_threads(threads, layer=graph.num_nodes * max(recipe.hidden, graph.num_classes)):
        parts = split(graph.reveal(given), (0.8, 0.2, 0.0), seed)
        _, epochs = model_of(parts.train, parts.val, recipe.replace(select="loss", patience=PATIENCE), seed)
        if on_fit is not None:
            on_fit(1, total)
        for repeat in range(repeats):
            for k, fold in enumerate(label_folds(labels, given, folds, seed=(seed, repeat))):
                rest = given & ~fold
                model, _ = model_of(rest, nobody, recipe, seed + repeat, epochs)
                said = predict_proba(model, moved.reveal(rest))
                out_of_fold[fold] += said[fold] / repeats
                out_of_fold[~given] += said[~given] / (repeats * folds)
                if entries is not None:
                    with torch.no_grad():
                        learned = model.transition(moved.reveal(rest)).values.cpu().double().clamp_min(TINY).log()
                    log_weights += (learned - log_given)[entries] / (repeats * folds)
                if on_fit is not None:
                    on_fit(2 + repeat * folds + k, total)
    weights = None if entries is None else log_weights.exp()
    return CrossFit(out_of_fold, weights, given, epochs, folds, repeats, seed, recipe)


def checked_given(graph: Graph, given: Tensor | None, folds: int, repeats: int) -> Tensor:
    """The mask of the labels that may be used, on the CPU, if there is something to audit."""
    check_graph(graph)
    given = graph.labeled.cpu() if given is None else given.cpu()
    if given.dtype != torch.bool or given.shape != graph.y.shape:
        raise ValueError(
            f"given is a boolean mask of the nodes, [{graph.num_nodes}], not {given.dtype} {list(given.shape)}"
        )
    labels = graph.y.cpu()[given]
    if (labels < 0).any():
        raise ValueError(f"{int((labels < 0).sum())} of the {len(labels)} nodes of `given` have no label")
    if repeats < 1 or folds < 2:
        raise ValueError(f"folds = {folds} and repeats = {repeats}; they are at least 2 and 1")
    if len(labels) < folds or len(labels.unique()) < 2:
        raise ValueError(
            f"an audit with {folds} folds needs {folds} labelled nodes and two classes among them; "
            f"there are {len(labels)} nodes of {len(labels.unique())} classes"
        )
    return given


def label_folds(labels: Tensor, given: Tensor, folds: int, *, seed: tuple[int, int]) -> list[Tensor]:
    """Masks that share out the given nodes at random, those of a class evenly, [n] each."""
    nodes = np.random.Generator(np.random.PCG64(seed)).permutation(np.flatnonzero(given.numpy()))
    nodes = nodes[np.argsort(labels.numpy()[nodes], kind="stable")]
    masks = torch.zeros((folds, len(given)), dtype=torch.bool)
    for k, mask in enumerate(masks):
        mask[torch.from_numpy(nodes[k::folds].copy())] = True
    return list(masks)


def learns_edges(recipe: Recipe) -> bool:
    return recipe.method == "gcn-lpa" and recipe.edges != "fixed"


def positions(graph: Graph, prepared: Graph) -> Tensor:
    """Where each entry of the graph's adjacency is among those of the prepared one, which also has self-loops, [E]."""
    own, all_ = (g.row.cpu().long() * g.num_nodes + g.col.cpu().long() for g in (graph, prepared))
    return torch.searchsorted(all_, own)


def audit_labels(
    graph: Graph,
    given: Tensor | None = None,
    recipe: Recipe = DEFAULT,
    *,
    fitted: CrossFit | None = None,
    rate: float = ERROR_RATE,
    **options: Any,
) -> LabelAudit:
    """Rank the given labels by how little the rest of the graph supports them.

    Two kinds of evidence count: log p, the probability of the label by models that were not shown it; and log(1 + v),
    v the votes for it of the other labels within two hops. Votes *against* do not: that a neighbour is of another class
    is common, that the node has not one of its own is not.

    Args:
        given: the nodes whose labels are audited and used, [n]; all labelled ones by default.
        fitted: a `cross_fit` of the same labels; without one it is made with `options`.
        rate: the share of labels taken to be wrong; the suspicions are proportional to it, their order is the same.
        options: folds, repeats, seed, device, threads and on_fit of `cross_fit`.
    """
    check_rate(rate)
    fitted = fitted or cross_fit(graph, given, recipe, **options)
    given, labels = fitted.given, graph.y.cpu()
    nodes = given.nonzero().squeeze(1)
    votes = votes_without_own(graph, given)[nodes]  # [m, c]
    model = fitted.probabilities[nodes]
    evidence = torch.stack([model.clamp_min(LEAST).log(), votes.log1p()], dim=2).numpy()  # [m, c, 2]
    target = labels[nodes].numpy()
    is_given = np.zeros(evidence.shape[:2], dtype=bool)
    is_given[np.arange(len(nodes)), target] = True
    judge = Judge.learn(evidence[is_given], evidence[~is_given])
    doubts = judge.log_ratio(evidence.reshape(-1, 2)).reshape(is_given.shape)  # of every label the node could have
    suggested = doubts.argmin(axis=1)
    shares = (votes / votes.sum(dim=1, keepdim=True)).numpy()  # NaN where there is no vote
    counts = (joined(graph).to_scipy() > 0) @ one_hot(labels, given, graph.num_classes).numpy()
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
    return LabelAudit(graph.name, tuple(findings), judge.influence("model", "neighbours"), rate, *_settings(fitted))


def joined(graph: Graph) -> SparseMatrix:
    """The weights between two nodes whichever way the edge goes, without self-loops, [n, n] float64."""
    matrix = graph.adjacency.to_scipy().astype(np.float64)
    matrix = (matrix - scipy.sparse.diags_array(matrix.diagonal())).tocsr()
    matrix = matrix.maximum(matrix.T).tocsr()
    matrix.eliminate_zeros()
    return SparseMatrix.from_scipy(matrix, torch.float64)


def one_hot(labels: Tensor, given: Tensor, num_classes: int) -> Tensor:
    return F.one_hot(torch.where(given, labels, 0), num_classes).double() * given.unsqueeze(1)


def votes_without_own(graph: Graph, given: Tensor) -> Tensor:
    """How many neighbours vote for each class, the node's own label left out, [n, c].

    A labelled neighbour has one vote; an unlabelled one passes on the mean of what its own neighbours vote. This is two
    iterations of label propagation, Eqs. (1) and (2), times the number of neighbours.
    """
    around = joined(graph)
    seeds = one_hot(graph.y.cpu(), given, graph.num_classes)
    num_neighbours = around.pattern.row_sum(torch.ones_like(around.values)).unsqueeze(1)
    return leave_one_out_votes(around.row_normalized(), seeds, 2) * num_neighbours


def label_evidence(names: Sequence[str], label: int, model: np.ndarray, counts: np.ndarray) -> str:
    """In words: the labels next to it, and what the models say that were not shown its own."""
    best, total, most = int(model.argmax()), int(counts.sum()), int(counts.argmax())
    said = f"the model, not shown this label, says {names[best]} ({_percent(model[best])})"
    if best != label:
        said += f", {names[label]} {_percent(model[label])}"
    if total == 0:
        return f"no labelled neighbour; {said}"
    if total == 1:
        return f"its one labelled neighbour is {names[most]}; {said}"
    near = f"{counts[most]} of {total} labelled neighbours {'is' if counts[most] == 1 else 'are'} {names[most]}"
    if most != label:
        near += f", {counts[label] or 'none'} {'are' if counts[label] > 1 else 'is'} {names[label]}"
    return f"{near}; {said}"


def audit_edges(
    graph: Graph,
    given: Tensor | None = None,
    recipe: Recipe = DEFAULT,
    *,
    fitted: CrossFit | None = None,
    rate: float = ERROR_RATE,
    **options: Any,
) -> EdgeAudit:
    """Rank the edges by how much they look like a random pair of nodes.

    Three kinds of evidence count: log Σ_c p_i[c] p_j[c], the chance that both ends are of one class; the cosine of their
    features; and log(1 + s), s = Σ 1 / log(1 + d_z) over the neighbours z they have in common (Adamic & Adar 2003).
    p is `beliefs`: of a labelled node not what a model says that has learned its label by heart.

    Where an end is labelled the weight that the models learned for the edge counts too: it multiplies the odds by
    weight^-WEIGHT_SAY. Between unlabelled nodes it adds nothing to the above, and its column is empty.

    Args:
        given, fitted, rate, options: as in `audit_labels`.
    """
    check_rate(rate)
    source, target = edge_ends(graph)
    if len(source) == 0:
        raise ValueError(f"graph {graph.name!r} has no edge to audit")
    fitted = fitted or cross_fit(graph, given, recipe, **options)
    around = joined(graph)
    belief = beliefs(fitted.probabilities, graph.y.cpu(), fitted.given, rate)
    others = random_pairs(around, len(source), fitted.seed)
    if len(others[0]) == 0:
        raise ValueError(f"all nodes of graph {graph.name!r} are joined: no pair is left to compare its edges with")
    x = graph.to("cpu").with_features("l2").x if graph.x_kind == "given" else None
    here, there = (PairEvidence.of(ends, belief, x, around) for ends in ((source, target), others))
    judge = Judge.learn(here.columns(), there.columns())
    weights = weights_near_labels(graph, fitted)
    doubts = judge.log_ratio(here.columns()) - WEIGHT_SAY * np.log(np.where(np.isnan(weights), 1, weights))
    known = np.array(node_status(graph, fitted.given)) != "unreachable"
    known |= x is not None  # where no label and no feature speaks, p is the prior
    judged = known[source] & known[target]
    findings = []
    classes = belief.argmax(dim=1).tolist()
    labels = torch.where(fitted.given, graph.y.cpu(), -1).tolist()
    told = [class_evidence(graph.class_names, row, label) for row, label in zip(belief.numpy(), labels, strict=True)]
    for k in np.lexsort((-doubts, ~judged)).tolist():
        ends = int(source[k]), int(target[k])
        weight = None if np.isnan(weights[k]) else float(weights[k])
        findings.append(
            EdgeFinding(
                source=graph.node_names[ends[0]],
                target=graph.node_names[ends[1]],
                source_class=graph.class_names[classes[ends[0]]],
                target_class=graph.class_names[classes[ends[1]]],
                suspicion=suspicion_of(doubts[k], rate),
                agreement=float(here.agreement[k]),
                similarity=None if here.similarity is None else float(here.similarity[k]),
                common_neighbours=int(here.common[k]),
                weight=weight,
                status="judged" if judged[k] else "abstains",
                evidence=edge_evidence([told[node] for node in ends], here, k, weight),
            )
        )
    return EdgeAudit(graph.name, tuple(findings), judge.influence(*here.names()), rate, *_settings(fitted))


def edge_ends(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of every edge, an undirected one once, self-loops left out."""
    target, source = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    once = (target != source) if graph.directed else (target < source)
    return (source[once], target[once]) if graph.directed else (target[once], source[once])


def beliefs(probabilities: Tensor, labels: Tensor, given: Tensor, rate: float) -> Tensor:
    """What to believe of each node's class, [n, c]: the model, and the given label as an observation that is wrong with
    chance `rate`: p[c] ∝ p_model[c] · (1 - rate if c is the label, else rate / (c - 1)).
    """
    num_classes = probabilities.shape[1]
    likelihood = torch.full_like(probabilities, rate / max(1, num_classes - 1))
    likelihood[torch.arange(len(labels)), labels.clamp_min(0)] = 1 - rate
    belief = torch.where(given.unsqueeze(1), probabilities.clamp_min(LEAST) * likelihood, probabilities)
    return belief / belief.sum(dim=1, keepdim=True)


def weights_near_labels(graph: Graph, fitted: CrossFit) -> np.ndarray:
    """The learned weight of each edge, the geometric mean of its directions; NaN where no end is labelled, [edges]."""
    source, target = edge_ends(graph)
    if fitted.weights is None:
        return np.full(len(source), np.nan)
    key, entry = (graph.row.cpu().long() * graph.num_nodes + graph.col.cpu().long()).numpy(), fitted.weights.numpy()
    ways = [(target, source)] if graph.directed else [(target, source), (source, target)]
    found = [entry[np.searchsorted(key, i.astype(np.int64) * graph.num_nodes + j)] for i, j in ways]
    labeled = fitted.given.numpy()
    return np.where(labeled[source] | labeled[target], np.exp(np.log(found).mean(axis=0)), np.nan)


def random_pairs(around: SparseMatrix, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `number` different pairs of nodes, drawn at random, that no edge joins."""
    n, number = around.shape[0], min(number, MAX_RANDOM_PAIRS)
    one, other = np.random.Generator(np.random.PCG64((seed, 1))).integers(0, n, (2, 2 * number + 100))
    pair = np.minimum(one, other) * n + np.maximum(one, other)
    row, col = around.pattern.row.numpy().astype(np.int64), around.pattern.col.numpy()
    first = np.sort(np.unique(pair, return_index=True)[1])  # in the order of drawing
    pair = pair[first]
    pair = pair[(pair // n != pair % n) & ~np.isin(pair, row * n + col)][:number]
    return pair // n, pair % n


@dataclass(frozen=True)
class PairEvidence:
    """What is known of pairs of nodes, an entry per pair."""

    agreement: np.ndarray
    similarity: np.ndarray | None
    common: np.ndarray  # number of common neighbours
    closeness: np.ndarray  # the same, each by 1 / log(1 + its degree)

    @classmethod
    def of(
        cls, pairs: tuple[np.ndarray, np.ndarray], belief: Tensor, x: Tensor | SparseMatrix | None, around: SparseMatrix
    ) -> PairEvidence:
        n, (one, other) = around.shape[0], pairs
        numbers = scipy.sparse.csr_array((np.arange(1.0, len(one) + 1), (one, other)), shape=(n, n))
        matrix = SparseMatrix.from_scipy(numbers, torch.float64)
        place = np.argsort(matrix.values.numpy(), kind="stable")  # of each pair among the entries of the pattern
        pattern = matrix.pattern
        links = around.with_values(torch.ones_like(around.values))
        degree = links.row_sums()
        shared = links.row_products(pattern)
        similarity = None
        if isinstance(x, SparseMatrix):
            similarity = x.row_products(pattern).row_sums().numpy()[place]
        elif x is not None:
            similarity = pattern.edge_dot(x, x).numpy()[place]
        return cls(
            pattern.edge_dot(belief, belief).numpy()[place],
            similarity,
            shared.row_sums().numpy()[place].round(),
            (shared @ (1 / (1 + degree).log().clamp_min(0.5))).numpy()[place],
        )

    def columns(self) -> np.ndarray:
        """The evidence as the judge wants it, [pairs, 2 or 3]."""
        agreement = np.log(self.agreement + LEAST_AGREEMENT)
        similarity = [] if self.similarity is None else [self.similarity]
        return np.stack([agreement, *similarity, np.log1p(self.closeness)], axis=1)

    def names(self) -> tuple[str, ...]:
        return ("agreement", *(["similarity"] if self.similarity is not None else []), "common_neighbours")


def edge_evidence(told: Sequence[str], pairs: PairEvidence, k: int, weight: float | None) -> str:
    shared = int(pairs.common[k])
    parts = [" – ".join(told), f"{shared or 'no'} common neighbour{'' if shared == 1 else 's'}"]
    if pairs.similarity is not None:
        parts.append(f"feature cosine {pairs.similarity[k]:.2f}")
    if weight is not None:
        parts.append(f"learned weight × {weight:.2f}")
    return "; ".join(parts)


def class_evidence(names: Sequence[str], belief: np.ndarray, label: int) -> str:
    """What the class of a node is thought to be; `label` is the given one, -1 without."""
    best = int(belief.argmax())
    if best == label:
        return f"{names[best]} (given)"
    doubt = f", given as {names[label]}" if label >= 0 else ""
    unknown = "class unknown, at best " if belief[best] < UNSURE else ""
    return f"{unknown}{names[best]} ({_percent(belief[best])}{doubt})"


@dataclass(frozen=True)
class Cleaning:
    """What cleaning the graph did to accuracy on labels that were neither trained on nor audited."""

    what: str
    changed: float  # edges dropped or labels changed, the mean over splits
    before: Mean
    after: Mean
    difference: Difference
    splits: int
    runs: tuple[dict[str, float], ...]  # seed, changed, before, after

    @property
    def verdict(self) -> str:
        """One sentence."""
        told = (
            f"{self.what} ({self.changed:,.0f} on average): validation accuracy {100 * self.before.mean:.1f} → "
            f"{100 * self.after.mean:.1f} %, {self.difference} points over {self.splits} splits"
        )
        if self.changed == 0:
            return f"{told}: there was nothing to change."
        if self.difference.is_noise:
            return f"{told}: inside the noise, so nothing is shown to be gained or lost."
        return f"{told}: {'better' if self.difference.mean > 0 else 'worse'}, and more than the noise."

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **dataclasses.asdict(self)}


def try_cleaning(
    graph: Graph,
    given: Tensor | None = None,
    recipe: Recipe = DEFAULT,
    *,
    drop_edges: float = 0.0,
    relabel: bool = False,
    splits: int = 5,
    folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_split: Callable[[int, int], None] | None = None,
) -> Cleaning:
    """Retrain on the graph without its most suspicious edges, or with suspicious labels changed, and compare.

    For each split a fifth of the given labels is set aside. The rest is audited and trained on, before and after, from
    the same first weights and for the same number of epochs; the fifth only scores. Nothing is written anywhere.

    Args:
        drop_edges: the share of all edges to drop, the most suspicious first; those the audit abstains from stay.
        relabel: give the suggested label to nodes whose suspicion is above one half.
    """
    if not 0 <= drop_edges < 1 or not (drop_edges or relabel):
        raise ValueError(
            f"drop_edges = {drop_edges}; it is a share above 0 and below 1, unless labels are to be changed"
        )
    if splits < 2:
        raise ValueError(f"splits = {splits}; it takes at least 2 to tell an effect from noise")
    given = checked_given(graph, given, folds, 1)
    known, nobody = graph.reveal(given), torch.zeros_like(given)
    effects: list[dict[str, float]] = []
    if int(0.2 * int(given.sum())) == 0:
        raise ValueError(f"{int(given.sum())} labels are too few to set a fifth of them aside")
    for k in range(splits):
        parts = split(known, (0.8, 0.2, 0.0), seed + k)
        fitted = cross_fit(
            graph, parts.train, recipe, folds=folds, repeats=1, seed=seed + k, device=device, threads=threads
        )
        cleaned, changed = known, 0
        if relabel:
            cleaned, changed = relabeled(cleaned, audit_labels(graph, fitted=fitted))
        if drop_edges:
            cleaned, dropped = without_edges(cleaned, audit_edges(graph, fitted=fitted), drop_edges)
            changed += dropped
        found = []
        for one in (known, cleaned):
            model, run = learn(
                METHODS[recipe.method].build, one, parts.train, nobody, recipe, seed=seed + k, device=device,
                threads=threads, stop_at=fitted.epochs,
            )  # fmt: skip
            if run.interrupted:
                raise KeyboardInterrupt
            found.append(evaluate(model, one, parts.val, recipe=recipe).accuracy)
        effects.append({"seed": seed + k, "changed": changed, "before": found[0], "after": found[1]})
        if on_split is not None:
            on_split(k + 1, splits)
    before, after = (np.array([one[name] for one in effects]) for name in ("before", "after"))
    gain = after - before
    does = [
        *(["labels changed"] if relabel else []),
        *([f"{100 * drop_edges:g} % of edges dropped"] if drop_edges else []),
    ]
    return Cleaning(
        what=" and ".join(does),
        changed=float(np.mean([one["changed"] for one in effects])),
        before=mean_of(before),
        after=mean_of(after),
        difference=Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain)),
        splits=splits,
        runs=tuple(effects),
    )


def relabeled(graph: Graph, audit: LabelAudit, *, above: float = 0.5) -> tuple[Graph, int]:
    """The same graph with the suggested label where the suspicion is above a bound, and how many labels that changed."""
    y, number = graph.y.clone(), {name: k for k, name in enumerate(graph.class_names)}
    wrong = [row for row in audit.findings if row.suspicion > above and row.suggested != row.label]
    for row in wrong:
        y[graph.index_of(row.node)] = number[row.suggested]
    return dataclasses.replace(graph, y=y), len(wrong)


def without_edges(graph: Graph, audit: EdgeAudit, share: float) -> tuple[Graph, int]:
    """The same graph without the most suspicious `share` of its edges, and how many those are."""
    judged = [row for row in audit.findings if row.status == "judged"]
    dropped = judged[: round(share * len(audit.findings))]
    ends = np.array([[graph.index_of(row.source), graph.index_of(row.target)] for row in dropped], dtype=np.int64)
    source, target = ends.reshape(-1, 2).T
    n, key = graph.num_nodes, (graph.row.cpu().long() * graph.num_nodes + graph.col.cpu().long()).numpy()
    gone = np.isin(key, [target * n + source] if graph.directed else [target * n + source, source * n + target])
    row, col = (side.cpu().numpy()[~gone] for side in (graph.row, graph.col))
    kept = scipy.sparse.csr_array((graph.adjacency.values.cpu().numpy()[~gone], (row, col)), shape=(n, n))
    note = f"{len(dropped):,} suspicious edges dropped"
    adjacency = SparseMatrix.from_scipy(kept).to(graph.device)
    return dataclasses.replace(graph, adjacency=adjacency, notes=(*graph.notes, note), _derived={}), len(dropped)


@dataclass(frozen=True)
class Judge:
    """A logistic regression that tells what is given from what is drawn at random."""

    coefficients: np.ndarray  # of standardised evidence
    intercept: float
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def learn(cls, given: np.ndarray, random: np.ndarray) -> Judge:
        """From rows of evidence of both kinds, [m, k] and [r, k]; all random rows together weigh ERROR_RATE."""
        from sklearn.linear_model import LogisticRegression

        rows = np.concatenate([given, random])
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        scale = np.where(spread > 0, spread, 1)
        sizes = [len(given), len(random)]
        weight = np.repeat([1 - ERROR_RATE, ERROR_RATE * len(given) / len(random)], sizes)
        model = LogisticRegression(max_iter=1000).fit((rows - mean) / scale, np.repeat([0, 1], sizes), weight)
        prior = np.log(ERROR_RATE / (1 - ERROR_RATE))
        return cls(model.coef_[0], float(model.intercept_[0] - prior), mean, scale)

    def log_ratio(self, rows: np.ndarray) -> np.ndarray:
        """log f_random / f_given: how much more common such evidence is at random, [rows]."""
        ratio: np.ndarray = ((rows - self.mean) / self.scale) @ self.coefficients + self.intercept
        return ratio

    def influence(self, *names: str) -> dict[str, float]:
        return dict(zip(names, self.coefficients.tolist(), strict=True))


def suspicion_of(log_ratio: float, rate: float) -> float:
    """The chance of an error, if `rate` of what is given was drawn at random: rate · f_random / f_given, at most 1."""
    return min(1.0, rate * float(np.exp(min(log_ratio, 50.0))))


def check_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise ValueError(f"rate = {rate}; it is a share above 0 and below 1")


def _models(audit: LabelAudit | EdgeAudit) -> str:
    return f"By {audit.folds * audit.repeats} models, none of which was shown the labels it judges."


def _settings(fitted: CrossFit) -> tuple[int, int, int, int, Recipe]:
    return fitted.epochs, fitted.folds, fitted.repeats, fitted.seed, fitted.recipe


def _percent(share: float) -> str:
    return "< 1 %" if share < 0.005 else "> 99 %" if share > 0.995 else f"{100 * share:.0f} %"
