"""The evidence for and against labels and edges, how it is weighed, and the words that report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.propagation import leave_one_out_votes

ERROR_RATE = 0.05  # of labels or edges, before anything is known
LEAST = 1e-6  # probability, so that zero has a logarithm
LEAST_AGREEMENT = 1e-3  # of two nodes; below it more disagreement is no more evidence
UNSURE = 0.5  # a node whose likeliest class has less than this is of unknown class
MAX_RANDOM_PAIRS = 200_000

Pairs = tuple[np.ndarray, np.ndarray]  # of nodes, [p] each


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

    Args:
        around: the weights of the neighbours, see `joined`.
        seeds: Y^(0), one-hot rows of the given labels, [n, c].
    """
    num_neighbours = around.pattern.row_sum(torch.ones_like(around.values)).unsqueeze(1)
    return leave_one_out_votes(around.row_normalized(), seeds, 2) * num_neighbours


def edge_ends(graph: Graph) -> Pairs:
    """The two ends of every edge, an undirected one once, self-loops left out."""
    target, source = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    once = (target != source) if graph.directed else (target < source)
    return (source[once], target[once]) if graph.directed else (target[once], source[once])


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
    num_classes = probabilities.shape[1]
    likelihood = torch.full_like(probabilities, rate / max(1, num_classes - 1))
    likelihood[torch.arange(len(labels)), labels.clamp_min(0)] = 1 - rate
    posteriors = torch.where(given.unsqueeze(1), probabilities.clamp_min(LEAST) * likelihood, probabilities)
    return posteriors / posteriors.sum(dim=1, keepdim=True)


def weights_near_labels(graph: Graph, edges: Pairs, weights: Tensor | None, given: Tensor) -> np.ndarray:
    """The learned weight of each edge, the geometric mean of its directions; NaN where no end is labelled, [edges]."""
    source, target = edges
    if weights is None:
        return np.full(len(source), np.nan)
    key, entry = (graph.row.cpu().long() * graph.num_nodes + graph.col.cpu().long()).numpy(), weights.numpy()
    ways = [(target, source)] if graph.directed else [(target, source), (source, target)]
    found = [entry[np.searchsorted(key, i.astype(np.int64) * graph.num_nodes + j)] for i, j in ways]
    labeled = given.numpy()
    return np.where(labeled[source] | labeled[target], np.exp(np.log(found).mean(axis=0)), np.nan)


@dataclass(frozen=True)
class PairEvidence:
    """The evidence on pairs of nodes, an entry per pair."""

    agreement: np.ndarray
    similarity: np.ndarray | None
    common: np.ndarray  # number of common neighbours
    closeness: np.ndarray  # the same, each by 1 / log(1 + its degree)

    @classmethod
    def of(
        cls, pairs: Pairs, posteriors: Tensor, x: Tensor | SparseMatrix | None, around: SparseMatrix
    ) -> PairEvidence:
        n, (one, other) = around.shape[0], pairs
        numbers = scipy.sparse.csr_array((np.arange(1.0, len(one) + 1), (one, other)), shape=(n, n))
        matrix = SparseMatrix.from_scipy(numbers, torch.float64)
        place = np.argsort(matrix.values.numpy(), kind="stable")  # of each pair among the entries of the pattern
        pattern = matrix.pattern
        links = around.with_values(torch.ones_like(around.values))
        degree, shared = links.row_sums(), links.row_products(pattern)
        similarity = None
        if isinstance(x, SparseMatrix):
            similarity = x.row_products(pattern).row_sums().numpy()[place]
        elif x is not None:
            similarity = pattern.edge_dot(x, x).numpy()[place]
        return cls(
            pattern.edge_dot(posteriors, posteriors).numpy()[place],
            similarity,
            shared.row_sums().numpy()[place].round(),
            (shared @ (1 / (1 + degree).log().clamp_min(0.5))).numpy()[place],
        )

    @property
    def columns(self) -> np.ndarray:
        """The evidence as `ErrorModel` reads it, [pairs, 2 or 3]."""
        similarity = [] if self.similarity is None else [self.similarity]
        return np.stack([np.log(self.agreement + LEAST_AGREEMENT), *similarity, np.log1p(self.closeness)], axis=1)

    def in_words(self, k: int, weight: float | None) -> str:
        """What the two nodes of pair `k` have in common, and the learned weight of their edge."""
        shared = int(self.common[k])
        parts = [f"{shared or 'no'} common neighbour{'' if shared == 1 else 's'}"]
        if self.similarity is not None:
            parts.append(f"feature cosine {self.similarity[k]:.2f}")
        if weight is not None:
            parts.append(f"learned weight × {weight:.2f}")
        return "; ".join(parts)


@dataclass(frozen=True)
class ErrorModel:
    """A logistic regression that separates what is given from what is drawn at random."""

    coefficients: np.ndarray  # of standardised evidence
    intercept: float
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def learn(cls, given: np.ndarray, random: np.ndarray) -> ErrorModel:
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


def suspicion_of(log_ratio: float, rate: float) -> float:
    """The chance of an error, if `rate` of what is given was drawn at random: rate · f_random / f_given, at most 1."""
    return min(1.0, rate * float(np.exp(min(log_ratio, 50.0))))


def label_evidence(names: Sequence[str], label: int, model: np.ndarray, counts: np.ndarray) -> str:
    """In words: the labels of the neighbours, and the prediction of models that were not trained on the node's own."""
    best, total, most = int(model.argmax()), int(counts.sum()), int(counts.argmax())
    predicted = f"the model, not shown this label, says {names[best]} ({percent(model[best])})"
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
