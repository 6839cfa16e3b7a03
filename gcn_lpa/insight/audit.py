"""Which labels and which edges look wrong, with the evidence.

No label is scored by a model that was trained on it: `cross_fit` hides each fold of the labels in turn. Label propagation with one
node left out (Theorem 3 of the paper: "treat v_a as unlabelled") is the second kind of evidence.

Both audits ask whether something looks like what is given or like something drawn at random: given labels are compared with all
other labels of the same nodes, edges with random pairs of nodes. A logistic regression learns how much each kind of evidence
counts, also where neighbours tend to differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import check_seed, node_mask
from gcn_lpa.data.describe import edge_ends, node_hops
from gcn_lpa.data.splits import label_folds, split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.insight.findings import EdgeAudit, EdgeFinding, LabelAudit, LabelFinding
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.learning.tasks import with_target
from gcn_lpa.predict import Prediction, check_trained
from gcn_lpa.propagation import leave_one_out_votes
from gcn_lpa.recipes import DEFAULT, Recipe
from gcn_lpa.regression import Numbers
from gcn_lpa.target import Target
from gcn_lpa.train import Epoch, JobName, Watch
from gcn_lpa.trained import Trained

PATIENCE = 20  # epochs without a lower validation loss before the search for the number of epochs ends
TINY = 1e-12  # share of an edge, so that zero has a logarithm
WEIGHT_POWER = 0.5  # of 0, ¼, ½, 1, 2 the best on Cora with 20 % of noise, seeds that no benchmark uses
ERROR_RATE = 0.05  # of labels or edges, before anything is known
LEAST = 1e-6  # probability, so that zero has a logarithm
LEAST_AGREEMENT = 1e-3  # of two nodes; below it more disagreement is no more evidence
UNSURE = 0.5  # a node whose likeliest class has less than this is of unknown class
MAX_RANDOM_PAIRS = 200_000
DRAWN = 20  # other labels that a number is compared with
Pairs = tuple[np.ndarray, np.ndarray]  # of nodes, [p] each


@dataclass(frozen=True)
class CrossFit:
    """Predictions for each node by models that were not trained on its label."""

    # float64; of an unlabelled node the mean over all models; of numbers standard scores, [n, 2]
    probabilities: Tensor  # [n, c]
    weights: Tensor | None  # learned for each entry of the graph's adjacency, as multiples of the given ones, [E]
    given: Tensor  # [n], the nodes whose labels were used
    settings: tuple[int, int, int, int, Recipe]  # epochs of every model, folds, repeats, seed, recipe: see `Audit`
    target: Target  # of the labels that were used


def cross_fit(
    graph: Graph,
    given: Any = None,
    recipe: Recipe = DEFAULT,
    *,
    folds: int = 5,
    repeats: int = 1,
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
    seed = check_seed(seed)
    check_seed(seed + repeats - 1)
    check_graph(graph)
    labels, recipe = graph.y.cpu(), recipe.replace(members="")  # the first member alone
    given = graph.labeled.cpu() if given is None else node_mask(given, graph.num_nodes, "given")
    num_given, num_classes = int(given.sum()), len(labels[given].unique())
    if num_unknown := int((given & ~graph.labeled.cpu()).sum()):
        raise ValueError(f"{num_unknown} of the {num_given} nodes of `given` have no label")
    if repeats < 1 or folds < 2:
        raise ValueError(f"folds = {folds} and repeats = {repeats}; they are at least 2 and 1")
    if num_given < folds or num_classes < 2:
        raise ValueError(
            f"an audit with {folds} folds needs {folds} labelled nodes and two classes among them; "
            f"there are {num_given} nodes of {num_classes} classes"
        )
    strata = graph.target.strata(torch.where(given, labels, graph.target.unknown))
    target = graph.target if graph.numbers is None else graph.target.fitted(labels[given])
    hidden, total, done = graph.reveal(given), folds * repeats + 1, itertools.count(1)
    options: dict[str, Any] = {"target": target, "device": device, "threads": threads}
    parts = split(hidden, (0.8, 0.2, 0.0), seed)
    searching = recipe.replace(select="loss", patience=PATIENCE)
    (searched,) = learn_many(hidden, [(parts.train, parts.val)], searching, seeds=seed, **options)
    epochs = searched.run.best_epoch
    if on_fit is not None:
        on_fit(next(done), total)

    def on_epoch(name: JobName, epoch: Epoch) -> None:
        if on_fit is not None and epoch.epoch == epochs:
            on_fit(next(done), total)

    left_out = [(seed + k, fold) for k in range(repeats) for fold in label_folds(strata, given, folds, seed=(seed, k))]
    masks = [(given & ~fold, torch.zeros_like(given)) for _, fold in left_out]
    options |= {"seeds": [first for first, _ in left_out], "watch": Watch(on_epoch=on_fit and on_epoch)}
    models = learn_many(hidden, masks, recipe, stop_at=epochs, **options)
    learns = recipe.method == "gcn-lpa" and recipe.edges != "fixed"
    out_of_fold = torch.zeros(graph.num_nodes, graph.target.vote_width, dtype=torch.float64)
    log_weights = torch.zeros(graph.adjacency.num_entries, dtype=torch.float64)
    for (_, fold), trained in zip(left_out, models, strict=True):
        probabilities = Prediction.of(trained, hidden).output
        out_of_fold[fold] += probabilities[fold] / repeats
        out_of_fold[~given] += probabilities[~given] / (repeats * folds)
        if learns:
            log_weights += _log_multiples(trained, hidden) / (repeats * folds)
    weights = log_weights.exp() if learns else None
    return CrossFit(out_of_fold, weights, given, (epochs, folds, repeats, seed, recipe), target)


def kept_fit(prediction: Prediction, graph: Graph) -> CrossFit:
    """The same from what training kept, where it held out every label of a raw graph in turn: nothing is trained."""
    trained, held_out = prediction.trained, prediction.trained.held_out
    if held_out is None or held_out.fold is None:
        raise ValueError("left out: training did not hold out each label in turn; gcn-lpa report RUN trains for it")
    probabilities = prediction.uncalibrated.index_copy(0, held_out.node, held_out.probability)
    learns = trained.recipe.method == "gcn-lpa" and trained.recipe.edges != "fixed"
    settings = trained.run.best_epoch, int(held_out.fold.max()) + 1, 1, trained.run.seed, trained.recipe
    weights = _log_multiples(trained, graph).exp() if learns else None
    return CrossFit(probabilities, weights, held_out.mask(graph), settings, trained.target)


def _log_multiples(trained: Trained, graph: Graph) -> Tensor:
    """log a*_ij / a_ij, both row-normalised, for each entry of the raw graph's adjacency, [E]."""
    prepared = trained.prepare(graph).to(trained.device)
    with torch.no_grad():
        learned = trained.model.transition(prepared).values
    given = prepared.adjacency.row_normalized().values
    logs = [values.cpu().double().clamp_min(TINY).log() for values in (learned, given)]
    keys, prepared_keys = (g.row.cpu().long() * g.num_nodes + g.col.cpu().long() for g in (graph, prepared))
    at = torch.searchsorted(prepared_keys, keys).clamp_max(len(prepared_keys) - 1)  # no self-loops
    return torch.where(prepared_keys[at] == keys, (logs[0] - logs[1])[at], 0.0)  # edges that were left out say nothing


def audit_labels(trained: Trained, graph: Graph, *, rate: float = ERROR_RATE, **options: Any) -> LabelAudit:
    """Rank the labels a model was given by how little the rest of the graph supports them.

    Out-of-fold predictions of the training judge them. Where it kept none, and with folds, repeats or seed, models are trained.

    Args:
        rate: the share of labels taken to be wrong; the suspicions are proportional to it, their order is the same.
        options: folds, repeats, seed, device, threads and on_fit of `cross_fit`.
    """
    return rank_labels(*_cross_fitted(trained, graph, rate, options), rate=rate)


def audit_edges(trained: Trained, graph: Graph, *, rate: float = ERROR_RATE, **options: Any) -> EdgeAudit:
    """Rank the edges by how much they look like a random pair of nodes; `rate` and `options` as in `audit_labels`."""
    check_graph(graph)
    if graph.num_edges == 0:
        raise ValueError(f"graph {graph.name!r} has no edge to audit")
    return rank_edges(*_cross_fitted(trained, graph, rate, options), rate=rate)


def _cross_fitted(trained: Trained, graph: Graph, rate: float, options: dict[str, Any]) -> tuple[Graph, CrossFit]:
    """The graph with the classes that the model knows, and what training kept of its labels; or a `cross_fit` on them, where it
    did not hold out each of them in turn, and where options say how.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate = {rate}; it is a share above 0 and below 1")
    check_trained(trained)
    check_graph(graph)
    graph, given, kept = with_target(graph, trained.target), trained.given(graph), trained.held_out
    has_kept = kept is not None and kept.fold is not None and torch.equal(given.nonzero().squeeze(1), kept.node)
    if has_kept and not options.keys() & {"folds", "repeats", "seed"}:
        return graph, kept_fit(Prediction.of(trained, graph), graph)
    return graph, cross_fit(graph, given, trained.recipe, **{"seed": trained.run.seed, **options})


def rank_labels(graph: Graph, fitted: CrossFit, *, rate: float = ERROR_RATE) -> LabelAudit:
    """Rank the labels of a `cross_fit` by how little the rest of the graph supports them.

    Two kinds of evidence count: log p / π, the probability of the label by models that were not trained on it, beside its share of
    all labels; and log(1 + v), v its votes by other labels within two hops. Votes against it do not: neighbours of other classes
    are common. Where there is no vote at all, the former alone counts.

    Wrong labels may name all classes alike, or frequent ones more often. Among labels drawn at random a class weighs √π, which is
    in between: weighed alike, most of a rare class would be suspicious.
    """
    given, labels = fitted.given, graph.y.cpu()
    nodes = given.nonzero().squeeze(1)
    if (scale := fitted.target.scale) is not None:
        return _rank_numbers(with_target(graph, scale), scale, nodes, fitted, rate)
    around, seeds = joined(graph), graph.target.seeds(torch.where(given, labels, -1), torch.float64)
    votes = votes_without_own(around, seeds)[nodes]  # [m, c]
    model = fitted.probabilities[nodes]
    target = labels[nodes].numpy()
    share = torch.from_numpy((np.bincount(target, minlength=model.shape[1]) / len(target)).clip(LEAST, 1 - LEAST))
    evidence = torch.stack([(model.clamp_min(LEAST) / share).log(), votes.log1p()], dim=2).numpy()  # [m, c, 2]
    is_given = np.zeros(evidence.shape[:2], dtype=bool)
    is_given[np.arange(len(nodes)), target] = True
    weight = np.broadcast_to((share / (1 - share)).sqrt().numpy(), is_given.shape)[~is_given]
    alone = (votes.sum(dim=1) == 0).numpy()
    coefficients, doubts = label_ratios(evidence[is_given], evidence[~is_given], evidence, alone, weight)  # of every label
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
    influence = dict(zip(("model", "neighbours"), coefficients, strict=True))
    return LabelAudit(graph.name, tuple(findings), influence, rate, *fitted.settings)


def _rank_numbers(graph: Graph, scale: Numbers, nodes: Tensor, fitted: CrossFit, rate: float) -> LabelAudit:
    """`rank_labels` of numbers: how far each is from the prediction of models that were not trained on it, and from the mean of
    the numbers within two hops, beside as many other labels drawn at random.
    """
    y = torch.where(fitted.given, graph.y.cpu(), scale.unknown)
    around = joined(graph)
    votes, truth = votes_without_own(around, scale.seeds(y, torch.float64))[nodes], y[nodes]
    total = votes.sum(dim=1, keepdim=True)
    near = scale.voted(votes / torch.where(total > 0, total, math.nan)).squeeze(1)  # NaN where there is no vote
    model, heard = fitted.probabilities[nodes, 0], (around.to_scipy() > 0) @ fitted.given.double().numpy()

    def evidence(labels: Tensor) -> np.ndarray:  # of labels [m, r], how far they are, with less weight where few vote
        trust = (total / (total + 1)).expand_as(labels)
        columns = (labels - model[:, None]).abs(), trust * (labels - near[:, None]).abs().nan_to_num(0.0)
        return -torch.stack(columns, dim=2).numpy()

    drawn = torch.from_numpy(np.random.default_rng(0).integers(0, len(nodes), (len(nodes), DRAWN)))
    others = evidence(truth[drawn]).reshape(-1, 2)
    own = evidence(truth[:, None]).squeeze(1)
    coefficients, doubts = label_ratios(own, others, own, (total == 0).squeeze(1).numpy(), np.ones(len(others)))
    size, words = float(truth.std(correction=0)) or 1.0, scale.words(truth)
    findings = []
    for k in np.argsort(-doubts, kind="stable").tolist():
        off, far = (float(truth[k] - other[k]) / size for other in (model, near))
        count = int(heard[int(nodes[k])])
        said = f"the model, not shown this label, predicts {float(scale.undone(model[k])):.4g}, {off:+.1f} spreads away"
        heard_from = f"{count} labelled neighbour{'s' * (count != 1)}" if count else "no labelled neighbour"
        if not math.isnan(far):
            heard_from += f"; the numbers nearby have mean {float(scale.undone(near[k])):.4g}"
        findings.append(
            LabelFinding(
                node=graph.node_names[int(nodes[k])],
                label=f"{words[k]:.6g}",
                suggested=f"{float(scale.undone(model[k])):.6g}",
                suspicion=suspicion_of(float(doubts[k]), rate),
                model=off,
                neighbours=None if math.isnan(far) else far,
                evidence=f"{heard_from}; {said}",
            )
        )
    influence = dict(zip(("model", "neighbours"), coefficients, strict=True))
    return LabelAudit(graph.name, tuple(findings), influence, rate, *fitted.settings)


def rank_edges(graph: Graph, fitted: CrossFit, *, rate: float = ERROR_RATE) -> EdgeAudit:
    """Rank the edges by how much they look like a random pair of nodes.

    Three kinds of evidence count: log Σ_c p_i[c] p_j[c], the chance that both ends are of one class; the cosine of their
    features; and log(1 + s), s = Σ 1 / log(1 + d_z) over the neighbours z they have in common (Adamic & Adar 2003).
    p is `posteriors_of`, for a labelled node by models that were not trained on its label.

    Where an end is labelled the weight that the models learned for the edge counts too: it multiplies the odds by
    weight^-WEIGHT_POWER. Between unlabelled nodes it adds nothing to the above, and its column is empty.
    """
    if graph.num_edges == 0:
        raise ValueError(f"graph {graph.name!r} has no edge to audit")
    graph.target.only_classes("edges are judged by the classes of their ends; of numbers, `audit labels` judges those")
    source, target = edge_ends(graph)
    around, names = joined(graph), graph.class_names
    posteriors = posteriors_of(fitted.probabilities, graph.y.cpu(), fitted.given, rate)
    *_, seed, _ = fitted.settings
    others = random_pairs(around, len(source), seed)
    if len(others[0]) == 0:
        raise ValueError(f"all nodes of graph {graph.name!r} are joined: no pair is left to compare its edges with")
    x = graph.to("cpu").with_features("l2").x if graph.x_kind == "given" else None
    here, there = (pair_evidence(ends, posteriors, x, around) for ends in ((source, target), others))
    coefficients, doubts = log_ratios(here.columns, there.columns, here.columns)
    weights = np.full(len(source), np.nan)  # the geometric mean of both directions, where an end is labelled
    if fitted.weights is not None:
        place = (graph.row.cpu().long() * graph.num_nodes + graph.col.cpu().long()).numpy()
        ways = [(target, source)] if graph.directed else [(target, source), (source, target)]
        entries = [np.searchsorted(place, i.astype(np.int64) * graph.num_nodes + j) for i, j in ways]
        mean = np.exp(np.log([fitted.weights.numpy()[entry] for entry in entries]).mean(axis=0))
        is_near = fitted.given.numpy()[source] | fitted.given.numpy()[target]
        weights[is_near] = mean[is_near]
    doubts = doubts - WEIGHT_POWER * np.log(np.where(np.isnan(weights), 1, weights))
    known = np.isfinite(node_hops(graph, fitted.given))
    known |= x is not None  # without features and out of reach of labels, p is the prior
    judged = known[source] & known[target]
    classes = posteriors.argmax(dim=1).tolist()
    labels = torch.where(fitted.given, graph.y.cpu(), -1).tolist()
    words = [class_evidence(names, row, label) for row, label in zip(posteriors.numpy(), labels, strict=True)]
    findings = []
    for k in np.lexsort((-doubts, ~judged)).tolist():
        a, b = int(source[k]), int(target[k])
        weight, shared = None if np.isnan(weights[k]) else float(weights[k]), int(here.common[k])
        similarity = None if here.similarity is None else float(here.similarity[k])
        parts = [f"{words[a]} – {words[b]}", f"{shared or 'no'} common neighbour{'' if shared == 1 else 's'}"]
        parts += [] if similarity is None else [f"feature cosine {similarity:.2f}"]
        parts += [] if weight is None else [f"learned weight × {weight:.2f}"]
        findings.append(
            EdgeFinding(
                source=graph.node_names[a],
                target=graph.node_names[b],
                source_class=names[classes[a]],
                target_class=names[classes[b]],
                suspicion=suspicion_of(doubts[k], rate),
                agreement=float(here.agreement[k]),
                similarity=similarity,
                common_neighbours=shared,
                weight=weight,
                status="judged" if judged[k] else "abstains",
                evidence="; ".join(parts),
            )
        )
    kinds = ("agreement", *(["similarity"] if x is not None else []), "common_neighbours")
    influence = dict(zip(kinds, coefficients, strict=True))
    return EdgeAudit(graph.name, tuple(findings), influence, rate, *fitted.settings)


def joined(graph: Graph) -> SparseMatrix:
    """The weights between two nodes whichever way the edge goes, without self-loops, [n, n] float64."""
    matrix = graph.adjacency.to_scipy().astype(np.float64)
    matrix = (matrix - scipy.sparse.diags_array(matrix.diagonal())).tocsr()
    matrix = matrix.maximum(matrix.T).tocsr()
    matrix.eliminate_zeros()
    return SparseMatrix.from_scipy(matrix, torch.float64)


def votes_without_own(around: SparseMatrix, seeds: Tensor) -> Tensor:
    """How many neighbours vote for each class, the node's own label left out, [n, c].

    A labelled neighbour has one vote; an unlabelled one passes on the mean of what its own neighbours vote. This is two
    iterations of label propagation, Eqs. (1) and (2), times the number of neighbours.
    `around` is `joined`, `seeds` Y^(0), one-hot rows of the given labels, [n, c].
    """
    num_neighbours = around.pattern.row_sum(torch.ones_like(around.values)).unsqueeze(1)
    return leave_one_out_votes(around.row_normalized(), seeds, 2) * num_neighbours


def random_pairs(around: SparseMatrix, number: int, seed: int) -> Pairs:
    """At most `number` different pairs of nodes, drawn at random, that no edge joins."""
    n, number = around.shape[0], min(number, MAX_RANDOM_PAIRS)
    one, other = np.random.Generator(np.random.PCG64((seed, 1))).integers(0, n, (2, 2 * number + 100))
    pair = np.minimum(one, other) * n + np.maximum(one, other)
    row, col = around.pattern.row.numpy().astype(np.int64), around.pattern.col.numpy()
    first = np.sort(np.unique(pair, return_index=True)[1])  # in the order of drawing
    pair = pair[first]
    pair = pair[(pair // n != pair % n) & ~np.isin(pair, row * n + col)][:number]
    return pair // n, pair % n


def posteriors_of(probabilities: Tensor, labels: Tensor, given: Tensor, rate: float) -> Tensor:
    """The posterior of each node's class, [n, c], where a given label is an observation that is wrong with chance `rate`:
    p[c] ∝ p_model[c] · (1 - rate if c is the label, else rate / (number of classes - 1)).
    """
    likelihood = torch.full_like(probabilities, rate / max(1, probabilities.shape[1] - 1))
    likelihood[torch.arange(len(labels)), labels.clamp_min(0)] = 1 - rate
    posteriors = torch.where(given.unsqueeze(1), probabilities.clamp_min(LEAST) * likelihood, probabilities)
    return posteriors / posteriors.sum(dim=1, keepdim=True)


class PairEvidence(NamedTuple):
    """The evidence on pairs of nodes, an entry per pair."""

    columns: np.ndarray  # as `log_ratios` reads it, [pairs, 2 or 3]
    agreement: np.ndarray
    similarity: np.ndarray | None
    common: np.ndarray  # number of common neighbours


def pair_evidence(pairs: Pairs, posteriors: Tensor, x: Tensor | SparseMatrix | None, around: SparseMatrix) -> PairEvidence:
    n, (one, other) = around.shape[0], pairs
    numbers = scipy.sparse.csr_array((np.arange(1.0, len(one) + 1), (one, other)), shape=(n, n))
    matrix = SparseMatrix.from_scipy(numbers, torch.float64)
    place = np.argsort(matrix.values.numpy(), kind="stable")  # of each pair among the entries of the pattern
    pattern = matrix.pattern
    links = around.with_values(torch.ones_like(around.values))
    degree, shared = links.row_sums(), links.row_products(pattern)
    agreement = pattern.edge_dot(posteriors, posteriors).numpy()[place]
    closeness = (shared @ (1 / (1 + degree).log().clamp_min(0.5))).numpy()[place]  # each by 1 / log(1 + its degree)
    columns, similarity = [np.log(agreement + LEAST_AGREEMENT), np.log1p(closeness)], None
    if x is not None:
        products = x.row_products(pattern).row_sums() if isinstance(x, SparseMatrix) else pattern.edge_dot(x, x)
        similarity = products.numpy()[place]
        columns.insert(1, similarity)
    return PairEvidence(np.stack(columns, axis=1), agreement, similarity, shared.row_sums().numpy()[place].round())


def log_ratios(
    given: np.ndarray, random: np.ndarray, rows: np.ndarray, weight: np.ndarray | float = 1.0
) -> tuple[list[float], np.ndarray]:
    """log f_random / f_given of the evidence in `rows`, [..., k]: how much more common it is at random, [...].

    A logistic regression separates the evidence that is given, [m, k], from that drawn at random, [r, k], of which each row has a
    weight and which together weighs ERROR_RATE. Its coefficients, of standardised evidence, come first.
    """
    from sklearn.linear_model import LogisticRegression

    both = np.concatenate([given, random])
    mean, spread = both.mean(axis=0), both.std(axis=0)
    scale = np.where(spread > 0, spread, 1)
    drawn = np.broadcast_to(np.asarray(weight, dtype=float), len(random))
    weights = np.concatenate([np.full(len(given), 1 - ERROR_RATE), ERROR_RATE * len(given) * drawn / drawn.sum()])
    model = LogisticRegression(max_iter=1000).fit((both - mean) / scale, np.arange(len(both)) >= len(given), weights)
    intercept = float(model.intercept_[0] - np.log(ERROR_RATE / (1 - ERROR_RATE)))
    flat = rows.reshape(-1, len(mean))
    ratios = ((flat - mean) / scale) @ model.coef_[0] + intercept
    return model.coef_[0].tolist(), ratios.reshape(rows.shape[:-1])


def label_ratios(
    given: np.ndarray, random: np.ndarray, rows: np.ndarray, alone: np.ndarray, weight: np.ndarray
) -> tuple[list[float], np.ndarray]:
    """`log_ratios` of model and votes; of the model alone for nodes without a label near, where no vote is no evidence."""
    coefficients, doubts = log_ratios(given, random, rows, weight)
    if alone.any():
        doubts[alone] = log_ratios(given[:, :1], random[:, :1], rows[alone][..., :1], weight)[1]
    return coefficients, doubts


def suspicion_of(log_ratio: float, rate: float) -> float:
    """The chance of an error, if `rate` of what is given was drawn at random: rate · f_random / f_given, at most 1."""
    return min(1.0, rate * float(np.exp(min(log_ratio, 50.0))))


def label_evidence(names: Sequence[str], label: int, model: np.ndarray, counts: np.ndarray) -> str:
    """In words: the labels of the neighbours, and the prediction of models that were not trained on the node's own."""
    best, total, most = int(model.argmax()), int(counts.sum()), int(counts.argmax())
    predicted = f"the model, not shown this label, predicts {names[best]} ({percent(model[best])})"
    if best != label:
        predicted += f", {names[label]} {percent(model[label])}"
    if total == 0:
        return f"no labelled neighbour; {predicted}"
    if total == 1:
        return f"its one labelled neighbour is {names[most]}; {predicted}"
    near = f"{counts[most]} of {total} labelled neighbours {'is' if counts[most] == 1 else 'are'} {names[most]}"
    if most != label:
        near += f", {counts[label] or 'none'} {'are' if counts[label] > 1 else 'is'} {names[label]}"
    return f"{near}; {predicted}"


def class_evidence(names: Sequence[str], posterior: np.ndarray, label: int) -> str:
    """In words: the likeliest class of a node; `label` is the given one, -1 without."""
    best = int(posterior.argmax())
    if best == label:
        return f"{names[best]} (given)"
    doubt = f", given as {names[label]}" if label >= 0 else ""
    unknown = "class unknown, at best " if posterior[best] < UNSURE else ""
    return f"{unknown}{names[best]} ({percent(posterior[best])}{doubt})"


def percent(share: float) -> str:
    return "< 1 %" if share < 0.005 else "> 99 %" if share > 0.995 else f"{100 * share:.0f} %"
