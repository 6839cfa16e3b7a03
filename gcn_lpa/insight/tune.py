"""Search for the recipe of a graph on its validation nodes, by Optuna.

`learn` hides the labels of test nodes; the best recipe is scored once, by `train` with the same split and seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gcn_lpa.data.files import encode_json, holding, write_json
from gcn_lpa.data.splits import Split
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.metrics import METRICS, metric_of, selection
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import Recipe
from gcn_lpa.train import DivergedError, Epoch, JobName, Watch

SPACE: dict[str, tuple[Any, ...]] = {  # around the recipe `default`
    "hidden": (32, 64, 128, 256),
    "gcn_layers": (1, 2, 3),
    "propagation": ("hops", "layers"),
    "propagation_steps": (2, 5, 10, 20),
    "edges": ("fixed", "cosine", "agnn"),
    "lpa_weight": (0.0, 0.1, 0.3, 1.0, 3.0),
    "l2": (0.0, 5e-5, 5e-4, 2e-3, 5e-3),
    "l2_edges": (0.0, 5e-4, 5e-3, 5e-2),
    "dropout": (0.0, 0.2, 0.35, 0.5, 0.65, 0.8),
    "edge_dropout": (0.0, 0.1, 0.2, 0.4),
    "layer_norm": (False, True),
    "lr": (0.003, 0.01, 0.03, 0.1),
}
STUDY, BEST = "study.db", "best.json"
REPORTED = 10  # epochs between two reports to the pruner: each waits for the disk
FEW_NODES = 50  # validation nodes; with fewer, one node is more than the settings differ by


@dataclass(frozen=True)
class Search:
    """How to search. The starting recipe is always the first trial."""

    trials: int = 50  # finished ones in all, those of a study that goes on included
    seed: int = 0  # of the first weights and dropout, the same in all trials, and of the order of trials
    device: str = "auto"
    threads: int | None = None
    metric: str = "accuracy"  # on validation nodes: one of METRICS
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: SPACE)  # values of each setting to try

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials = {self.trials}; a search has at least 1")
        metric_of(self.metric)


@dataclass(frozen=True)
class TuningTrial:
    """One recipe and its score."""

    number: int
    settings: dict[str, Any]
    val_score: float | None  # None: pruned, or training diverged
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """The result of a search. The score of the best of many trials is too high by luck: `train` gives the honest one."""

    start: Recipe
    recipe: Recipe
    val_score: float
    start_score: float
    trials: tuple[TuningTrial, ...]
    importance: dict[str, float]  # share of the variance between trials, by fANOVA; empty where all are alike
    metric: str = "accuracy"  # of the scores

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Of each setting that the search changed, the value before and after."""
        before, after = self.start.to_dict(), self.recipe.to_dict()
        changed = (name for name in before if name != "origin" and before[name] != after[name])
        return {name: (before[name], after[name]) for name in changed}

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "changes": self.changes}


def tune(
    graph: Graph,
    train: Tensor,
    val: Tensor,
    start: Recipe,
    out: str | Path,
    search: Search | None = None,
    on_trial: Callable[[TuningTrial], None] | None = None,
) -> Tuning:
    """Try recipes on the training nodes and keep the one with the best validation score, at its best epoch.

    `out` gets study.db, a study of Optuna in SQLite, and best.json, the best recipe so far. A search that was
    stopped, even killed, goes on from its finished trials when it is asked for again. Trials that fall behind the median of the
    others are pruned. Models beside the main one (`members`) and votes take no part in the trials; the best recipe has them.
    """
    folder = Path(out)
    if not val.any():
        raise ValueError("there is no validation node to choose a recipe by; more labels are needed")
    if folder.exists() and not (folder / STUDY).exists() and (not folder.is_dir() or os.listdir(folder)):
        raise ValueError(f"{folder} holds something else than a search of tune; choose another folder")
    with holding(folder):
        return Searching(graph, train, val, start, folder, search or Search(), on_trial).run()


class _EnoughError(Exception):
    """All trials that were asked for are done."""


@dataclass(eq=False)
class Searching:
    """A search, with the study of Optuna that remembers it; `walk` says what is tried after the starting recipe."""

    graph: Graph
    train: Tensor
    val: Tensor
    start: Recipe
    folder: Path
    search: Search
    on_trial: Callable[[TuningTrial], None] | None

    def __post_init__(self) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ImportError("tune needs Optuna: pip install 'gcn-lpa[search]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.states = optuna, optuna.trial.TrialState
        if self.search.metric != "accuracy" and "select" in METHODS[self.start.method].fields:
            self.start = self.start.replace(select=selection(self.search.metric))
        self.choices = choices_of(self.start, self.search.space)
        self.first = {name: getattr(self.start, name) for name in self.choices}
        self.study = self.open()

    def open(self) -> Any:
        """The study in the folder, new or going on."""
        optuna, seed = self.optuna, self.search.seed
        connect = partial(sqlite3.connect, self.folder / STUDY, timeout=60)  # an address would end at a ? in the path
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect}),
            study_name="tune",
            direction="maximize" if METRICS[self.search.metric].sign > 0 else "minimize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=5 * REPORTED),
        )
        about = {
            "graph": self.graph.content_hash(64),
            "nodes": Split(self.train, self.val, self.train & self.val).hash,
            "recipe": self.start.hash(),
            "space": hashlib.sha256(encode_json(self.choices)).hexdigest(),
            "seed": seed,
            **({} if self.search.metric == "accuracy" else {"metric": self.search.metric}),
        }
        known = study.user_attrs.get("about", about)
        if other := [name for name in about if known.get(name) != about[name]]:
            raise ValueError(f"{self.folder} holds a search with another {', '.join(other)}; choose another folder")
        study.set_user_attr("about", about)
        for trial in study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            study.tell(trial.number, state=self.states.FAIL)  # it was stopped: not a result
        for _ in study.get_trials(deepcopy=False, states=(self.states.WAITING,)):
            study.tell(study.ask(), state=self.states.FAIL)  # what waits is asked for first
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))  # a new seed: draws are not repeated
        return study

    @property
    def finished(self) -> list[TuningTrial]:
        """The trials with a result, pruned and diverged ones included."""
        found = []
        for trial in self.study.get_trials(deepcopy=False, states=(self.states.COMPLETE, self.states.PRUNED)):
            score = trial.value if trial.state == self.states.COMPLETE else None
            found.append(TuningTrial(trial.number, trial.params, score, trial.duration.total_seconds()))
        return found

    def run(self) -> Tuning:
        with contextlib.suppress(_EnoughError):
            self.value(self.first)
            self.walk()
        trials = tuple(self.finished)
        values = {trial.val_score for trial in trials} - {None}
        if not values:
            raise ValueError("no trial was finished: training diverged with every recipe; start from another --recipe")
        shares = {}
        if len(values) > 1:
            evaluator = self.optuna.importance.FanovaImportanceEvaluator(seed=0)
            shares = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        importance = {name: round(float(share), 4) for name, share in shares.items()}
        first = next((trial.val_score for trial in trials if trial.settings == self.first), None)
        found = self.study.best_value, first or 0.0, trials, importance, self.search.metric
        return Tuning(self.start, self.best, *found)

    def walk(self) -> None:
        """What Optuna's sampler draws, until there are as many trials as were asked for."""
        while True:
            self.attempt()

    def value(self, settings: dict[str, Any]) -> float | None:
        """The validation score of a recipe; one that was tried is not trained again."""
        for trial in self.finished:
            if trial.settings == settings:
                return trial.val_score
        return self.attempt(settings)

    def attempt(self, wanted: dict[str, Any] | None = None) -> float | None:
        """Train one more recipe, the one that is wanted or one that Optuna draws, and tell the study."""
        if len(self.finished) >= self.search.trials:
            raise _EnoughError
        if wanted is not None:
            self.study.enqueue_trial(wanted)
        trial = self.study.ask()
        settings = {name: trial.suggest_categorical(name, values) for name, values in self.choices.items()}
        begun, recipe = time.perf_counter(), self.start.replace(**settings, members="", votes=False)

        def watch(_: JobName, epoch: Epoch) -> None:
            by_epoch = {"accuracy": epoch.val_accuracy, "r2": epoch.val_accuracy, "log_loss": epoch.val_loss}
            known = by_epoch.get(search.metric, epoch.val_score)
            if known is not None and epoch.epoch % REPORTED == 0:
                trial.report(known, epoch.epoch)
                if trial.should_prune():
                    raise self.optuna.TrialPruned

        search, parts = self.search, [(self.train, self.val)]
        options: dict[str, Any] = {"seeds": search.seed, "device": search.device, "threads": search.threads}
        try:
            (trained,) = learn_many(self.graph, parts, recipe, watch=Watch(on_epoch=watch), **options)
            reached, state = trained.run.best.val_accuracy, self.states.COMPLETE
            if search.metric != "accuracy":
                reached = evaluate(trained, self.graph, self.val).metrics[search.metric]
        except (self.optuna.TrialPruned, DivergedError):
            reached, state = None, self.states.PRUNED
        self.study.tell(trial, reached, state=state)
        if any(one.val_score is not None for one in self.finished):
            write_json(self.folder / BEST, self.best.to_dict())
        if self.on_trial is not None:
            self.on_trial(TuningTrial(trial.number, settings, reached, time.perf_counter() - begun))
        return reached

    @property
    def best(self) -> Recipe:
        trial = self.study.best_trial
        origin = f"tune, trial {trial.number} on validation nodes, from {self.start.origin}"
        return self.start.replace(**trial.params, origin=origin)


def choices_of(start: Recipe, space: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values to try of each setting that the method uses: those of the space that the recipe allows, and its own."""
    choices: dict[str, tuple[Any, ...]] = {}
    for name in space:
        default, allowed = getattr(start, name), []
        for value in space[name]:
            with contextlib.suppress(ValueError):  # e.g. leave_one_out is exact for two iterations at most
                allowed.append(getattr(start.replace(**{name: value}), name))
        values = list(dict.fromkeys([*allowed, default]))
        if name in METHODS[start.method].fields and len(values) > 1:
            choices[name] = tuple(values if isinstance(default, str) else sorted(values))
    if not choices:
        raise ValueError(f"method {start.method!r} uses no setting of this space: {', '.join(space)}")
    return choices
