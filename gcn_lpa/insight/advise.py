"""Advice on your own labels: does the graph help, and which node to label next?

`advise` compares features alone, labels alone and both, and says in a sentence which to use.
Every method is trained and scored on the same splits of the labelled nodes: rounds of five stratified folds, so that all labels are
scored equally often, each by models that were not given it. Training sets of such splits overlap, so the usual interval over splits
is too narrow; ours are widened by the formula of Nadeau & Bengio (2003).

`suggest` looks for a node that is predicted with little certainty, and whose label would reach others like it. The reach of a
label is Lemma 2 read backwards. I_l(v_a, v_b; k) is the probability that a walk from v_a ends at v_b when labelled nodes absorb it.
If v_b had a label, its reach would be Σ_a u_a I_l(v_a, v_b; k), with u_a the uncertainty at v_a. For two hops the reach of *all*
nodes is two products with the transpose. Suggestions are a batch: a node that is chosen counts as labelled, and the nodes it
reaches as that much less uncertain.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import node_mask
from gcn_lpa.data.describe import Homophily, homophily, node_hops
from gcn_lpa.data.splits import Split, label_folds, require_labels, split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.insight.compare import BEST, Comparison, Record, compare
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.metrics import METRICS, Metric
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import Recipe
from gcn_lpa.stats import Mean, resampled_mean, signed
from gcn_lpa.trained import Trained

FEATURES_ONLY = ("mlp", "lr")  # the better one counts: with few labels the perceptron takes too few steps to learn
WITH_GRAPH = ("lpa", "gcn", "gcn-lpa")
NUM_FOLDS = 5
FEWEST_LABELS = 10  # with less a fold would score a single node
FEW_VALIDATION = 100  # nodes; of fewer, many epochs get all right, so their loss chooses the epoch
WIDE = 0.05  # half-width of an interval that cannot tell whether the graph helps: ± 5 points
HIDDEN = 0.1  # of accuracy over the commonest class: what an interval may hide before we say that there is nothing
HELPS, HURTS, NEUTRAL = "the graph helps", "the graph hurts", "the graph makes no measurable difference"
UNPREDICTABLE, TOO_FEW = "nothing predicts these labels", "too few labels to tell"


@dataclass(frozen=True)
class AdviceLine:
    """One method over all splits. Differences are paired, split by split; None for the method itself."""

    method: str
    over_features: Mean | None  # the metric minus that of features alone, the better of two; None too without features
    over_chance: Mean  # minus that of giving every node the shares of the classes: of accuracy, of the commonest class
    over_best: Mean | None  # minus that of the best method
    seconds: float  # median of a split
    note: str
    score: Mean  # the metric; where less is better, differences have the other sign


@dataclass(frozen=True)
class Advice:
    """Whether the graph helps, and what to train. `lines` is empty where there were too few labels to train on."""

    graph: str
    verdict: str  # HELPS, HURTS, NEUTRAL, UNPREDICTABLE or TOO_FEW
    sentence: str
    method: str  # the one to use
    recipe: str
    lines: tuple[AdviceLine, ...]
    labeled: int
    unlabeled: int
    unreachable: int  # nodes that no label can reach along edges
    homophily: Homophily
    protocol: str
    notes: tuple[str, ...]
    records: tuple[Record, ...]
    recipes: dict[str, Recipe]
    device: str | None
    metric: str = "accuracy"  # one of METRICS
    positive: str | None = None  # the class that is ranked

    def command(self, source: str | None = None, options: Sequence[str] = ()) -> str:
        """The command line that trains what is advised on the graph read from `source`."""
        how = ["--recipe", "best"] if self.method == "best" else ["--method", self.method, "--recipe", self.recipe]
        return shlex.join(["gcn-lpa", "train", source or self.graph, *how, *options])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def advise(
    graph: Graph,
    *,
    repeats: int = 10,
    seed: int = 0,
    recipe: str = "default",
    changes: Mapping[str, Any] | None = None,
    best: bool = False,
    metric: str | None = None,
    positive: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Advice:
    """Compare features alone (MLP, LR) with LPA, GCN and GCN-LPA on the labelled nodes, and say whether the graph helps.

    Args:
        repeats: splits; each five of them score every labelled node once.
        seed: of the first fold and the first weights.
        recipe: of gcn-lpa: "default", "paper" or "official"; the others have theirs as in `compare`.
        changes: fields to set in every recipe, e.g. {"epochs": 50}.
        best: also try the recipe `best`; it is advised only where it is significantly more accurate than the default.
        metric, positive: as in `compare`.
        on_record: called with every result as it comes.
    """
    check_graph(graph)
    metric, positive = graph.target.compared_by(metric, positive, graph.y.cpu())
    if repeats < 2:
        raise ValueError(f"repeats = {repeats}; without a second split nothing can be told from noise")
    require_labels(graph)
    counts = torch.bincount(graph.target.strata(graph.y[graph.labeled].cpu()), minlength=graph.num_classes)
    comparison: Comparison | None = None
    lines: tuple[AdviceLine, ...] = ()
    protocol = "nothing was trained"
    if counts.sum() >= FEWEST_LABELS and (counts > 0).sum() > 1 and graph.num_edges:
        splits = stratified_folds(graph, repeats, seed)
        few = not graph.class_names or min(int(part.val.sum()) for part in splits) < FEW_VALIDATION
        sizes = " / ".join(f"{int(mask.sum()):,}" for mask in (splits[0].train, splits[0].val, splits[0].test))
        rule = "lowest loss" if few else "highest accuracy"
        purposes = f"to train / choose the epoch ({rule}) / score"
        protocol = f"{len(splits)} splits of the labelled nodes, stratified, {sizes} {purposes}"
        comparison = compare(
            graph,
            [*(FEATURES_ONLY if graph.x_kind == "given" else ()), *WITH_GRAPH, *([BEST] if best else [])],
            splits=splits,
            seed=seed,
            metric=metric,
            positive=positive,
            recipe=recipe,
            changes={**({"select": "loss"} if few else {}), **(changes or {})},
            device=device,
            threads=threads,
            on_record=on_record,
        )
        lines = _lines(graph, comparison, splits)
    if lines:
        verdict, sentence, method = _verdict(lines, METRICS[metric], positive)
    elif graph.num_edges == 0:
        verdict, method = NEUTRAL, FEATURES_ONLY[0]
        sentence = "The graph has no edges: it cannot help, and there is nothing to compare."
    else:
        classes = int((counts > 0).sum())
        verdict, method = TOO_FEW, "gcn" if graph.x_kind == "given" else "lpa"
        sentence = (
            f"Too few labels to tell: {int(counts.sum())} labelled nodes in {classes} {'class' if classes == 1 else 'classes'}; "
            f"a comparison needs {FEWEST_LABELS} labels and two classes."
        )
    if method == BEST:  # then `over_best` of the others is their difference to it
        behind = next(line.over_best for line in lines if line.method == "gcn-lpa")
        method = "gcn-lpa" if behind is None or behind.is_noise else BEST
    return Advice(
        graph=graph.name,
        verdict=verdict,
        sentence=sentence,
        method=method,
        recipe=recipe,
        lines=lines,
        labeled=int(counts.sum()),
        unlabeled=graph.num_nodes - int(counts.sum()),
        unreachable=int(np.isinf(node_hops(graph, graph.labeled)).sum()),
        homophily=homophily(graph),
        protocol=protocol,
        notes=notes_on(graph, counts),
        records=() if comparison is None else comparison.records,
        recipes={} if comparison is None else comparison.recipes,
        device=None if comparison is None else comparison.device,
        metric=metric,
        positive=positive,
    )


def stratified_folds(graph: Graph, repeats: int, seed: int = 0) -> list[Split]:
    """Splits of the labelled nodes, 60 % train, 20 % choose the epoch and 20 % are scored, each class divided alike.

    Split k is fold k mod 5 of round k // 5: the folds of a round score every labelled node once.
    """
    labeled, splits = graph.labeled.cpu(), []
    for k in range(repeats):
        folds = label_folds(graph.target.strata(graph.y.cpu()), labeled, NUM_FOLDS, seed=(seed, k // NUM_FOLDS))
        scored = folds[k % NUM_FOLDS]
        rest = split(graph.reveal(labeled & ~scored), (0.75, 0.25, 0.0), seed + k, kind="stratified")
        splits.append(Split(rest.train, rest.val, scored, "stratified folds", seed + k))
    return splits


def _lines(graph: Graph, comparison: Comparison, splits: Sequence[Split]) -> tuple[AdviceLine, ...]:
    ratio = sum(int(part.test.sum()) for part in splits) / sum(int(part.train.sum()) for part in splits)
    num_scored = int(torch.stack([part.test for part in splits]).any(dim=0).sum())
    metric, labels = METRICS[comparison.metric], graph.y.cpu()
    ranked = None if comparison.positive is None else graph.class_names.index(comparison.positive)
    scores = {
        row.method: metric.sign * np.array([record.score for record in comparison.records if record.method == row.method])
        for row in comparison.rows
    }
    best = max(scores, key=lambda method: scores[method].mean())  # the first of equals
    rivals = [method for method in scores if method in FEATURES_ONLY]
    features = max(rivals, key=lambda method: scores[method].mean(), default=None)
    chance = []
    for part in splits:
        constant = graph.target.prior(labels[part.train | part.val])
        assert constant is not None
        constant = constant.expand(int(part.test.sum()), -1)
        chance.append(metric.sign * float(metric(constant, labels[part.test], None, ranked)))

    def gain(method: str, other: str | None) -> Mean | None:
        if other in (None, method):
            return None
        return resampled_mean(scores[method] - scores[str(other)], ratio, num_scored)

    return tuple(
        AdviceLine(
            method=row.method,
            over_features=gain(row.method, features),
            over_chance=resampled_mean(scores[row.method] - np.array(chance), ratio, num_scored),
            over_best=gain(row.method, best),
            seconds=row.seconds,
            note=row.note,
            score=resampled_mean(metric.sign * scores[row.method], ratio, num_scored),
        )
        for row in comparison.rows
    )


def _verdict(lines: Sequence[AdviceLine], metric: Metric, positive: str | None) -> tuple[str, str, str]:
    """The verdict, a sentence that says it with its numbers, and the method to use."""
    ranked = sorted(lines, key=lambda line: -metric.sign * line.score.mean)  # stable: of equals the first
    constant, best = metric.constant, ranked[0]
    with_graph = next(line for line in ranked if line.method not in FEATURES_ONLY)
    if best.over_chance.is_noise or best.over_chance.mean < 0:
        points = f"{signed(best.over_chance)} points against {constant}"
        if best.over_chance.mean + (best.over_chance.interval or 0) > HIDDEN:
            sentence = f"Too few labels to tell whether anything predicts them: {best.method} does best, {points}."
            return TOO_FEW, sentence, best.method
        sentence = f"Nothing predicts these labels, neither features nor edges: {best.method} does best, {points}."
        return UNPREDICTABLE, sentence, best.method
    of = "" if positive is None else f" of {positive}"
    what = "is right for" if metric.name == "accuracy" else f"has {metric.words}{of}"
    rate = f"{with_graph.method} {what} {100 * with_graph.score.mean:.1f} %"
    rivals = [line.method for line in lines if line.over_best is not None and line.over_best.is_noise]
    also = f" Inside the noise of it: {', '.join(rivals)}." if rivals else ""
    gain = with_graph.over_features
    if gain is None:
        over = f"{signed(best.over_chance)} points over {constant}"
        sentence = f"The edges carry the labels: {rate}, {over}; there are no features to compare with.{also}"
        return HELPS, sentence, best.method
    features = next(line.method for line in ranked if line.method in FEATURES_ONLY)
    if not gain.is_noise and gain.mean > 0:
        sentence = f"The graph helps: {rate}, {signed(gain)} points over features alone ({features}).{also}"
        return HELPS, sentence, with_graph.method
    compared = f"{rate}, {signed(gain)} points against features alone ({features})"
    plain = next(line.over_features for line in lines if line.method == "gcn")
    is_open = gain.mean > 0 and (gain.interval or 0) > WIDE  # whether the graph may help after all
    # gcn-lpa can pass the edges by, gcn cannot
    if plain is not None and not plain.is_noise and plain.mean < 0 and not is_open:
        also = "" if with_graph.method == "gcn" else f"; gcn, which must follow every edge, {signed(plain)}"
        return HURTS, f"Your graph hurts: use {features}. {compared}{also}.", features
    if (gain.interval or 0) > WIDE:
        return TOO_FEW, f"Too few labels to tell whether the graph helps: {compared}.", best.method
    sentence = f"The graph makes no measurable difference: {compared}. {features} is the simpler choice."
    return NEUTRAL, sentence, features


def notes_on(graph: Graph, counts: Tensor) -> tuple[str, ...]:
    """What to know of this graph when reading the numbers."""
    notes = []
    if graph.x_kind != "given":
        notes.append(
            f"no features: {' and '.join(FEATURES_ONLY)} have nothing to read and are left out; for the others "
            f"{graph.x_kind} stands in"
        )
    elif isinstance(graph.x, Tensor):  # words and their like are sparse, and of one scale
        sizes = graph.x.double().square().mean(dim=0).sqrt()  # of each column
        sizes = sizes[sizes > 0]
        if len(sizes) and (scale := float(sizes.max() / sizes.median())) > 100:
            notes.append(f"one feature column is {scale:,.0f} times as large as most; bring them to one scale first")
    scarce = [name for name, count in zip(graph.class_names, counts.tolist(), strict=False) if 0 < count < NUM_FOLDS]
    if scarce and counts.sum() >= FEWEST_LABELS:
        notes.append(
            f"fewer than {NUM_FOLDS} labels in {', '.join(map(repr, scarce[:5]))}{' …' if len(scarce) > 5 else ''}: "
            "not in every fold, and a class of one label is scored by models that never saw it"
        )
    return tuple(notes)


@dataclass(frozen=True)
class Suggestion:
    """A node worth a label. Numbers are as they were when it was chosen, after those before it in the list."""

    node: int
    id: Hashable
    score: float
    guess: str  # the predicted class or number
    probability: float | None  # None of a number, as the next
    runner_up: str  # of a number its interval
    runner_up_probability: float | None
    uncertainty: float  # entropy of the posterior, 0 sure to 1 all alike; of numbers the spread of members and votes
    reach: float  # Σ uncertainty of other nodes, each times the influence the new label would have there

    @property
    def why(self) -> str:
        both = f"{self.guess}, {self.runner_up}"
        if self.probability is not None and self.runner_up_probability is not None:
            probabilities = 100 * self.probability, 100 * self.runner_up_probability
            both = f"{self.guess} {probabilities[0]:.0f} % or {self.runner_up} {probabilities[1]:.0f} %"
        reached = f"{self.reach:.1f} unsure nodes" if self.reach >= 0.05 else "no other unsure node"
        return f"{both}; its label would reach {reached}"


def suggest(trained: Trained, graph: Graph, *, n: int = 20, candidates: Any = None, sharpness: float = 2.0) -> list[Suggestion]:
    """The `n` nodes to label next, best first; fewer where there are fewer. Labels that were not given are not read.

    The score is u² (u + reach): the uncertainty squared, times the uncertainty that the label would cover, its own included. The
    square was chosen on Citeseer, see docs/advice.md.

    Args:
        graph: raw, as it was loaded. Nodes whose labels the model was given are never suggested.
        candidates: the nodes that may be suggested, a mask or positions; None for all.
        sharpness: the exponent of the uncertainty; 0 looks for nodes amid uncertain ones, certain or not themselves.
    """
    return suggestions(Explainer.of(trained, graph), n=n, candidates=candidates, sharpness=sharpness)


def suggestions(explainer: Explainer, *, n: int = 20, candidates: Any = None, sharpness: float = 2.0) -> list[Suggestion]:
    """`suggest` for a model and graph whose predictions and learned transition are at hand."""
    if n < 1:
        raise ValueError(f"n = {n}; at least one suggestion is asked for")
    graph, names, target = explainer.graph, explainer.trained.class_names, explainer.trained.target
    labeled = target.known(explainer.given)
    if target.vote_width < 2:
        raise ValueError(f"{graph.name!r} has {len(names)} class: there is nothing to be unsure of")
    open_nodes = ~labeled if candidates is None else node_mask(candidates, graph.num_nodes, "candidates") & ~labeled
    if not open_nodes.any():
        raise ValueError("no node is left to suggest: every candidate has a label already")
    predicted, walk = explainer.prediction, explainer.transition
    unsure = target.uncertainty(predicted.uncalibrated)
    guess = predicted.guesses()
    chosen: list[Suggestion] = []
    for _ in range(min(n, int(open_nodes.sum()))):
        reached = reach(walk, labeled, unsure)
        score = torch.where(open_nodes, unsure**sharpness * (unsure + reached), -1.0)
        node = int(score.argmax())
        sizes = float(unsure[node]), float(reached[node])
        chosen.append(Suggestion(node, graph.node_names[node], float(score[node]), *guess(node), *sizes))
        labeled[node], open_nodes[node] = True, False
        unsure = unsure * (1 - covered(walk, labeled, node))
    return chosen


def reach(transition: SparseMatrix, labeled: Tensor, weight: Tensor) -> Tensor:
    """Σ_a w_a I_l(v_a, v_b; 2) over the other unlabelled v_a, as if v_b alone were labelled too, for every v_b, [n].

    Exact: a walk that comes to v_b ends there, so the walks that would come back to it are taken off: those that start at v_b, and
    those that stayed there. Longer walks come back in more ways than are cheap to count.

    Args:
        weight: w, [n]; that of labelled nodes does not count.
    """
    is_open = (~labeled).double().numpy()
    away = scipy.sparse.diags_array(is_open) @ transition.to_scipy() @ scipy.sparse.diags_array(is_open)
    w, loop, back = weight.double().numpy() * is_open, away.diagonal(), away.T.tocsr()
    at_first = back @ w
    first = at_first - loop * w
    returns = away.multiply(back).sum(axis=1)  # (Ã²)_bb
    both = first + back @ at_first - returns * w - loop * first
    return torch.from_numpy(both).clamp_min(0)  # rounding leaves -1e-17 of nothing


def covered(transition: SparseMatrix, labeled: Tensor, node: int) -> Tensor:
    """I_l(v_a, v_b; 2) of one labelled v_b on every v_a, 1 on itself and 0 on other labelled nodes, [n]."""
    seed = torch.zeros(len(labeled), 1, dtype=transition.dtype)
    seed[node] = 1
    share = propagate_labels(transition, seed, 2, labeled=labeled)
    return torch.where(labeled.unsqueeze(1), seed, share).squeeze(1)


def read_candidates(path: str | Path, graph: Graph) -> Tensor:
    """The nodes a file names, one id per line, as a mask, [n]; a first line `id` is a header."""
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        name = line.strip()
        if not name or (number == 1 and name == "id"):
            continue
        try:
            mask[graph.index_of(name)] = True
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not mask.any():
        raise ValueError(f"{path} names no node; it holds one id per line")
    return mask


def suggestion_table(chosen: list[Suggestion]) -> Any:
    """A DataFrame id, score, guess, probability, runner_up, uncertainty, reach, why; a row per suggestion, best first."""
    import pandas

    columns = ("id", "score", "guess", "probability", "runner_up", "uncertainty", "reach", "why")
    return pandas.DataFrame({name: [getattr(one, name) for one in chosen] for name in columns})
