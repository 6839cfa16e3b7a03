"""Compare methods on the same splits of a graph: means, paired differences and time, and what is noise."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gcn_lpa.data.checks import check_seed, meant
from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.devices import choose_device, environment, num_threads
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.metrics import METRICS, Scores
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import Recipe, choose_recipe
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.train import num_epochs

LAST = 0.05  # share of the epochs: a best epoch among them says that more would have been better
BEST = "best"  # the recipe, beside the names of methods


@dataclass(frozen=True)
class Record:
    """One method on one split."""

    method: str
    split: str  # `Split.hash`
    seed: int  # of the first weights and dropout
    accuracy: float | None  # on the test nodes; None, as macro-F1, where numbers are predicted
    macro_f1: float | None
    val_accuracy: float | None
    best_epoch: int
    seconds: float  # of preparing, training and choosing the epoch; where splits are trained together, of all by their number
    score: float  # the metric of the comparison on the test nodes


@dataclass(frozen=True)
class ComparisonRow:
    """One method over all splits."""

    method: str
    accuracy: Mean | None
    macro_f1: Mean | None
    difference: Difference | None  # of the metric, so that more is better; None for the reference itself
    seconds: float  # the median of a split
    note: str
    score: Mean  # the metric


@dataclass(frozen=True)
class Comparison:
    """Methods on the same splits. Intervals are over random splits of this graph: they say nothing about other graphs."""

    graph: str
    reference: str
    rows: tuple[ComparisonRow, ...]
    records: tuple[Record, ...]
    recipes: dict[str, Recipe]
    device: str
    environment: dict[str, Any]
    unused: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # changes: the methods without them
    metric: str = "accuracy"  # one of METRICS
    positive: str | None = None  # the class that is ranked

    @property
    def num_splits(self) -> int:
        return len(self.records) // len(self.rows)

    @property
    def verdict(self) -> str:
        """One sentence: who is better or worse than the reference, and whose difference is inside the noise."""
        if self.num_splits < 2:
            return "One split cannot tell a difference from noise; compare on at least 10."
        groups: dict[str, list[str]] = {"better": [], "worse": [], "inside the noise": []}
        for row in self.rows:
            if (gain := row.difference) is not None:
                verdict = "inside the noise" if gain.is_noise else "better" if gain.mean > 0 else "worse"
                groups[verdict].append(f"{row.method} ({gain})")
        parts = [f"{verdict}: {', '.join(names)}" for verdict, names in groups.items() if names]
        differences = "; ".join(parts) or "nothing to compare with it"
        least = 2 / 2**self.num_splits
        few = f" So few splits cannot bring the signed-rank test below p = {least:.2g}." if least > 0.05 else ""
        points = f"in points of {METRICS[self.metric].words} on {self.num_splits} splits"
        return f"Against {self.reference}, {points}: {differences}.{few}"

    @property
    def not_converged(self) -> tuple[str, ...]:
        """The methods of which, on one split or more, the last epoch and not a lack of progress ended a training whose best
        epoch was in its last 5 %: more epochs might have been better.
        """
        names = []
        for record in self.records:
            recipe = self.recipes.get(record.method)
            if recipe is None or not {"epochs", "patience"} <= set(METHODS[recipe.method].fields):
                continue  # no epoch is chosen
            last, best = num_epochs(recipe), record.best_epoch
            if best > (1 - LAST) * last and (not recipe.patience or best + recipe.patience >= last):
                names.append(record.method)
        return tuple(dict.fromkeys(names))

    def to_dict(self) -> dict[str, Any]:
        derived = {"verdict": self.verdict, "splits": self.num_splits, "not_converged": self.not_converged}
        return {**derived, **dataclasses.asdict(self)}


def compare(
    graph: Graph,
    methods: Sequence[str],
    *,
    splits: int | Sequence[Split] = 10,
    seed: int = 0,
    reference: str | None = None,
    metric: str | None = None,
    positive: str | None = None,
    recipe: str | Recipe = "default",
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Comparison:
    """Train and test every method on the same splits.

    Split k is `split(graph, seed=seed + k)`, uniform 60/20/20; seed + k also seeds the model. Every method chooses its
    epoch on the validation nodes and is scored once on the test nodes.

    Args:
        methods: keys of METHODS, or "best", the recipe.
        splits: how many, or the splits themselves.
        reference: the method that the differences are taken to; "gcn", or the first one where gcn is not compared.
        metric: one of METRICS; None: accuracy, or average precision where one of two classes is rare.
        positive: the class that is ranked; None: the rarer of two.
        recipe: that of gcn-lpa and gcn-same: "default", "paper", "official" or a Recipe. Beside "paper" and "official" all
            others have the settings they were published with, else those of `Method.fair`.
        changes: fields to set in the recipes of all methods that use them, e.g. {"epochs": 50}.
        threads: of the CPU; None leaves torch's setting.
        on_record: called with every result as it comes.
    """
    recipes = recipes_of(graph, methods, recipe, changes or {})
    reference = reference or ("gcn" if "gcn" in recipes else next(iter(recipes)))
    if reference not in recipes:
        raise ValueError(f"the reference {reference!r} is not among the methods {', '.join(recipes)}")
    seed, (metric, positive) = check_seed(seed), graph.target.compared_by(metric, positive, graph.y.cpu())
    parts = [split(graph, seed=seed + k) for k in range(splits)] if isinstance(splits, int) else list(splits)
    if not parts:
        raise ValueError("there is no split to compare on; ask for at least one")
    if not all(part.train.any() and part.test.any() for part in parts):
        number = int(graph.labeled.sum())
        raise ValueError(f"{graph.name!r} has {number:,} labelled nodes: too few to learn from and to score")
    where = str(choose_device(device))
    records: list[Record] = []
    seeds = [seed + k for k in range(len(parts))]
    for name, settings in recipes.items():
        with num_threads(threads or torch.get_num_threads()):
            start = time.perf_counter()
            masks = [(part.train, part.val) for part in parts]
            models = learn_many(graph, masks, settings, seeds=seeds, device=where)
            seconds = (time.perf_counter() - start) / len(models)
            for first, part, trained in zip(seeds, parts, models, strict=True):
                scores = evaluate(trained, graph, part.test, positive=positive)
                right, f1 = (scores.accuracy, scores.macro_f1) if isinstance(scores, Scores) else (None, None)
                best = trained.run.best.val_accuracy, trained.run.best_epoch
                score = scores.score if metric == "accuracy" else scores.metrics[metric]
                record = Record(name, part.hash, first, right, f1, *best, seconds, score)
                records.append(record)
                if on_record is not None:
                    on_record(record)
    rows = tuple(_row(name, settings, records, reference, METRICS[metric].sign) for name, settings in recipes.items())
    unused = {}
    for field, value in (changes or {}).items():
        if names := tuple(name for name, settings in recipes.items() if getattr(settings, field) != value):
            unused[field] = names
    about = where, environment(), unused, metric, positive
    return Comparison(graph.name, reference, rows, tuple(records), recipes, *about)


def recipes_of(graph: Graph, methods: Sequence[str], recipe: str | Recipe, changes: Mapping[str, Any]) -> dict[str, Recipe]:
    """The settings of each method on this graph: see `compare`."""
    names = (*METHODS, BEST)
    if unknown := [name for name in methods if name not in names]:
        raise ValueError(f"unknown method {unknown[0]!r}; there are {', '.join(names)}{meant(unknown[0], names)}")
    if not methods:
        raise ValueError(f"there is no method to compare; there are {', '.join(names)}")
    ours = choose_recipe(graph, graph.labeled, recipe, by_folds=False) if isinstance(recipe, str) else recipe
    settings_of = {
        name: choose_recipe(graph, graph.labeled, BEST, by_folds=False) if name == BEST else METHODS[name].beside(ours, recipe)
        for name in methods
    }
    unused = {name: METHODS[settings.method].unused(settings, changes) for name, settings in settings_of.items()}
    if nobody := [field for field in changes if all(field in fields for fields in unused.values())]:
        raise ValueError(f"{nobody[0]} = {changes[nobody[0]]!r}: none of the methods {', '.join(methods)} uses it")
    return {
        name: settings.replace(**{field: value for field, value in changes.items() if field not in unused[name]})
        for name, settings in settings_of.items()
    }


def _row(name: str, recipe: Recipe, records: Sequence[Record], reference: str, sign: int) -> ComparisonRow:
    here = [record for record in records if record.method == name]
    score = np.array([record.score for record in here])
    gain = sign * (score - np.array([record.score for record in records if record.method == reference]))
    return ComparisonRow(
        method=name,
        accuracy=_mean_of(record.accuracy for record in here),
        macro_f1=_mean_of(record.macro_f1 for record in here),
        difference=None if name == reference else Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain)),
        seconds=float(np.median([record.seconds for record in here])),
        note="the recipe best" if name == BEST else METHODS[name].note_on(recipe),
        score=mean_of(score),
    )


def _mean_of(values: Iterable[float | None]) -> Mean | None:
    """The mean of scores; None where there are none."""
    known = [value for value in values if value is not None]
    return mean_of(np.array(known)) if known else None
