"""Runs on disk: what `gcn-lpa train` does, what it leaves behind, and how later commands find it again.

A named data set is divided into train, validation and test nodes, and scored on the test nodes. A graph of one's own is
not: 80 % of its labelled nodes train while 20 % choose the epoch, by their loss unless a recipe says otherwise; then
the model is fitted anew to all of them for that many epochs. Its scores are those of 5-fold cross-validation, each fold
with a choice of its own.

Probabilities are calibrated on labels that training did not learn from: the validation nodes; a share of them that was
reserved, and chose nothing; or the out-of-fold predictions of the cross-validation.

A run folder is that of `runfolder`, with run.json (seed, epochs), calibration.json, out_of_fold.safetensors where there
was a cross-validation and, where asked for, the graph itself in graph.safetensors and graph.json. While training goes
on it has plan.json, which says what is to be done, and a checkpoint of every stage that was begun, so that `resume_run`
ends where an undisturbed run would have, bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.calibration import (
    Calibrator,
    PerfectECE,
    Reliability,
    check_level,
    check_score,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    fit_calibrator,
    judge,
    perfect_ece,
    reliability,
    reserve,
)
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.graph import Graph, Split, split
from gcn_lpa.intake import check_seed
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import Recipe, recipe_for
from gcn_lpa.tables.datasets import DATASETS, load
from gcn_lpa.train import (
    ClassScores,
    Epoch,
    Run,
    Scores,
    choose_device,
    evaluate,
    learn,
    num_epochs,
    predict_proba,
    predictions,
    scores,
    with_prior,
)

PLAN = "plan.json"
NUM_FOLDS = 5
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of a cell that a spreadsheet takes for a formula

Watch = Callable[[str, int], Callable[[Epoch], None]]  # (name of a stage, its epochs at most) -> on_epoch


@dataclass(frozen=True)
class Source:
    """Where a graph comes from, as it was said: a data set or a path, and the options of reading it."""

    name: str
    root: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        return self.name.lower() in DATASETS

    def load(self) -> Graph:
        options = {**self.options}
        name = options.pop("name", None)  # of the graph; `load` takes its first argument by that name
        graph = load(self.name, self.root, **options)
        return graph if name is None else dataclasses.replace(graph, name=name)


@dataclass(frozen=True)
class Plan:
    """What a training command is going to do; the same plan on the same machine gives the same run.

    `split` is a kind of split, or None for the cross-validation and the fit to all labels of a graph of one's own.
    """

    source: Source
    content: str  # hash of the graph
    recipe: Recipe
    seed: int = 0
    split: str | None = "uniform"
    with_data: bool = False
    checkpoint_every: int = 50
    reserve: float = 0.0  # share of the validation nodes that choose nothing and calibrate label sets

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, plan: Mapping[str, Any]) -> Plan:
        return cls(**{**plan, "source": Source(**plan["source"]), "recipe": Recipe.from_dict(plan["recipe"])})


@dataclass(frozen=True)
class Results:
    """The scores of a run and what they are scores of: "test" nodes, "cross-validation", or "none"."""

    protocol: str
    note: str
    scores: Scores | None = None
    folds: tuple[float, ...] = ()  # accuracy of each fold


class OutOfFold(NamedTuple):
    """What the cross-validation said of every labelled node, by a model that was not given its label."""

    node: Tensor  # [m]
    fold: Tensor  # [m]
    probability: Tensor  # float32 [m, c]


PROMISES = {
    "reserved": "the reserved nodes chose nothing, so a set holds the true label of a further node drawn like them with "
    "at least this probability",
    "validation": "approximate: the validation nodes also chose the epoch, so sets may hold the true label a little less often; "
    "`train --reserve 0.5` keeps some of them apart",
    "cross-validation": "approximate: the scores are those of models without the node's label, the sets those of a model "
    "fitted to all labels, which is rarely worse",
}


@dataclass(frozen=True)
class Calibration:
    """How the probabilities of a run are corrected, and by which nodes: a key of PROMISES, and their number."""

    calibrator: Calibrator
    protocol: str
    num_nodes: int


@dataclass(frozen=True)
class CalibrationReport:
    """How sure a run is and how sure it may be, on nodes whose labels it was not given.

    Of a split, the test nodes. Of a cross-validation, every labelled node, its fold judged by what the others give.
    """

    graph: str
    method: str
    calibration: Calibration
    promise: str
    num_nodes: int  # judged
    accuracy: float
    before: Reliability
    after: Reliability
    ece_before: float
    ece_after: float
    ece_perfect: PerfectECE  # with the confidences after
    level: float
    score: str
    coverage: float
    expected_coverage: tuple[float, float]  # in 95 of 100 cases, where accuracy is below the level
    mean_set_size: float
    set_sizes: tuple[int, ...]  # number of sets with 0, 1, 2, … labels


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with everything around it. `graph` is raw, with all its labels; `split` says which were given."""

    plan: Plan
    graph: Graph
    model: Any
    run: Run
    split: Split
    results: Results
    folder: Path | None = None
    reserved: Tensor | None = None  # validation nodes that chose nothing, [n]
    out_of_fold: OutOfFold | None = None
    calibration: Calibration | None = None  # None: no label was left to calibrate on

    @property
    def given(self) -> Tensor:
        """The nodes whose labels the model was given, [n]."""
        return self.split.train | self.split.val

    @property
    def used(self) -> Tensor:
        """The nodes whose labels were given or are reserved to calibrate, [n]."""
        return self.given if self.reserved is None else self.given | self.reserved

    @property
    def calibrator(self) -> Calibrator:
        return Calibrator() if self.calibration is None else self.calibration.calibrator

    def probabilities(self) -> Tensor:
        """What the model says of every node, before calibration, [n, c]."""
        found = predict_proba(self.model, self.graph, recipe=self.plan.recipe)
        return with_prior(found, self.graph, self.given)


def make_plan(
    source: Source,
    *,
    method: str | None = None,
    recipe: str | Path = "default",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    split: str | None = None,
    with_data: bool = False,
    checkpoint_every: int = 50,
    reserve: float = 0.0,
) -> tuple[Plan, Graph]:
    """Read the graph and settle what is to be done with it.

    Args:
        method: a key of METHODS; without one that of the recipe, which is "gcn-lpa" unless a file says otherwise.
        recipe: "default", "paper", "official", or a JSON file with the fields of `Recipe`.
        changes: fields of the recipe that shall differ.
        split: a kind of `gcn_lpa.split`; None is uniform for a named data set, and all labels for one's own graph.
        reserve: share of the validation nodes that choose nothing, for label sets with a guarantee.
    """
    check_seed(seed)
    if method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    graph, kind = source.load(), split or ("uniform" if source.is_named else None)
    if reserve and kind is None:
        raise ValueError(
            f"reserve = {reserve}, but without a split all labels train, and the cross-validation calibrates; "
            "choose a split such as 'uniform' to reserve validation nodes"
        )
    if Path(recipe).suffix == ".json":
        said = storage.read_json(recipe)
        if not isinstance(said, dict):
            raise ValueError(f'{recipe}: a recipe is an object of settings, such as {{"lr": 0.01}}, not {said!r:.40}')
        settings = Recipe.from_dict(said)
        settings = settings if method is None else settings.replace(method=method)
    else:
        ours = recipe_for(str(recipe), graph.name, has_features=graph.x_kind == "given")
        settings = METHODS[method or "gcn-lpa"].settings(ours)
        if kind is None:  # of a few validation nodes, many epochs get all right, and the first of them knows little
            settings = settings.replace(select="loss")
    if settings.method not in METHODS:
        raise ValueError(f"{recipe}: unknown method {settings.method!r}; there are {', '.join(METHODS)}")
    if changes:
        changed = ", ".join(f"{name} = {value}" for name, value in changes.items())
        settings = settings.replace(origin=f"{settings.origin}; with {changed}", **changes)
    return Plan(source, graph.content_hash(64), settings, seed, kind, with_data, checkpoint_every, reserve), graph


def train_run(
    plan: Plan,
    graph: Graph,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> TrainedRun:
    """Do what `plan` says with the graph it was made for; with `out`, keep the result in that run folder.

    Ctrl-C keeps the best so far; the folder can then be resumed. An error before the first checkpoint leaves no
    unfinished run behind.

    Args:
        resume: go on with the run of the same plan in `out`, if there is one; if it is finished, return it.
        overwrite: replace the run in `out`; what is there stays until the new run is complete.
        watch: given the name of each stage and its number of epochs, returns the stage's `on_epoch`.
    """
    folder = None if out is None else Path(out)
    unfinished = folder is not None and resume and (folder / PLAN).exists()
    if folder is not None and resume and not unfinished and (folder / storage.MANIFEST).exists():
        return _finished(folder, plan)
    stages = _Stages(plan, graph, folder, choose_device(device), threads, watch)
    check_seed(plan.seed)
    stages.first_parts()  # fails before the folder is touched
    claimed, is_new = False, folder is not None and not folder.exists()
    if folder is not None:
        if unfinished:
            if _read_plan(folder) != plan:
                raise ValueError(f"{folder} holds an unfinished run with other settings or data; choose another folder")
        else:
            _claim(folder, overwrite)
            storage.write_json(folder / PLAN, plan.to_dict())
            claimed = True
    try:
        trained = calibrated(stages.run())
    except Exception:  # not Ctrl-C: such a run can be resumed
        if folder is not None and claimed and storage.latest_checkpoint(folder) is None:
            _withdraw(folder, is_new)
        raise
    if folder is not None:
        save_run(folder, trained)
        if not trained.run.interrupted:
            _clear(folder)
    return trained


def resume_run(folder: str | Path, data: str | Path | None = None, **options: Any) -> TrainedRun:
    """Finish a training that was stopped; a run that is complete is returned as it is.

    Args:
        data: where the graph is now, if not where it was.
        options: `device`, `threads` and `watch` of `train_run`.
    """
    folder = Path(folder)
    if not (folder / PLAN).exists():
        return load_run(folder, data)
    plan = _read_plan(folder)
    return train_run(plan, _graph_of(plan, folder, data), folder, resume=True, **options)


def save_run(folder: str | Path, trained: TrainedRun) -> None:
    """Make a run folder of a trained run, entirely or not at all."""
    plan, run, graph, parts = trained.plan, trained.run, trained.graph, trained.split
    files = {
        "recipe.json": storage.encode_json(plan.recipe.to_dict()),
        "model.safetensors": storage.encode_tensors(trained.model.state_dict()),
        "history.jsonl": storage.encode_lines(dataclasses.asdict(epoch) for epoch in run.history),
        "split.json": storage.encode_json(_encode_split(parts, trained.reserved), indent=None),
        "scores.json": storage.encode_json(dataclasses.asdict(trained.results)),
        "environment.json": storage.encode_json(storage.environment()),
        "data.json": storage.encode_json(
            {
                **dataclasses.asdict(plan.source),
                "content": plan.content,
                "graph": graph.name,
                "nodes": graph.num_nodes,
                "edges": graph.num_edges,
                "stored": plan.with_data,
            }
        ),
        "run.json": storage.encode_json(
            {
                "method": plan.recipe.method,
                "seed": run.seed,
                "split": plan.split,
                "epochs": len(run.history),
                "best_epoch": run.best_epoch,
                "interrupted": run.interrupted,
                "checkpoint_every": plan.checkpoint_every,
                "reserve": plan.reserve,
                "seconds": run.seconds,
            }
        ),
        **_encode_calibration(trained),
        **(_encode_graph(graph) if plan.with_data else {}),
    }
    storage.save(folder, files)


def load_run(folder: str | Path, data: str | Path | None = None) -> TrainedRun:
    """Read a run folder and the graph it was trained on.

    Args:
        data: where the graph is now, if not where it was.
    """
    files = storage.load(folder)
    plan, run, results = _read_run(files)
    stored = "graph.safetensors" in files.files and data is None
    graph = _decode_graph(files) if stored else _graph_of(plan, Path(folder), data)
    said = files.json("split.json")
    parts, reserved = _decode_split(said, graph.num_nodes), _mask(said.get("reserved", []), graph.num_nodes)
    given = parts.train | parts.val
    model = METHODS[plan.recipe.method].build(plan.recipe, plan.recipe.prepare(graph.reveal(given)), plan.seed)
    try:
        model.load_state_dict(files.tensors())
    except RuntimeError as error:
        raise ValueError(
            f"{Path(folder) / 'model.safetensors'} does not fit recipe.json and the graph: {error}"
        ) from error
    trained = TrainedRun(plan, graph, model, run, parts, results, Path(folder))
    return dataclasses.replace(trained, reserved=reserved if reserved.any() else None, **_decode_calibration(files))


def evaluate_run(folder: str | Path, data: str | Path | None = None) -> Results:
    """The scores of a run: on its test nodes, computed anew; of one's own data, those of the cross-validation.

    Args:
        data: where the graph is now, if not where it was; refused if it is not the graph of the run.
    """
    files = storage.load(folder)
    plan, _, results = _read_run(files)
    if results.protocol != "test":
        if data is not None:
            _graph_of(plan, Path(folder), data)
        return results
    trained = load_run(folder, data)
    found = evaluate(trained.model, trained.graph, trained.split.test, recipe=trained.plan.recipe)
    return dataclasses.replace(results, scores=found)


def predict_run(
    folder: str | Path,
    data: str | Path | None = None,
    *,
    every: bool = False,
    raw: bool = False,
    abstain: float | None = None,
    sets: float | None = None,
    score: str = "lac",
    hops: bool = False,
) -> Any:
    """The `predictions` of a run as a DataFrame, with calibrated probabilities.

    Args:
        every: also the nodes whose labels were given, and those reserved for calibration, whose status is "reserved".
        raw: probabilities as the model gives them.
        abstain: below this probability, no label.
        sets: how often the set of a node shall hold its true label, such as 0.9.
        score: of the sets, a key of `calibration.SCORES`.
    """
    if sets is not None:
        check_level(sets)
    check_score(score)
    trained = load_run(folder, data)
    trained = trained if trained.calibration else calibrated(trained)
    table = predictions(
        trained.model,
        trained.graph,
        trained.given,
        recipe=trained.plan.recipe,
        calibrator=None if raw else trained.calibrator,
        abstain=abstain,
        threshold=None if sets is None else conformal_threshold(*calibration_evidence(trained)[:2], sets, score=score),
        score=score,
        hops=hops,
    )
    if trained.reserved is not None:
        table.loc[trained.reserved.numpy(), "status"] = "reserved"
    return table if every else table[~trained.used.numpy()]


def calibrate_run(
    folder: str | Path, data: str | Path | None = None, *, level: float = 0.9, score: str = "lac"
) -> CalibrationReport:
    """How well a run is calibrated, before and after, and what its label sets hold.

    A run kept by an older version gets its calibration now, and keeps it.

    Args:
        level: how often a set shall hold the true label.
        score: a key of `calibration.SCORES`.
    """
    check_level(level)
    trained = load_run(folder, data)
    if trained.calibration is None:
        trained = calibrated(trained)
        storage.save(folder, {**storage.load(folder).files, **_encode_calibration(trained)})
    return calibration_report(trained, level=level, score=score)


def calibrated(trained: TrainedRun) -> TrainedRun:
    """The run with its calibration, if there are labels to calibrate on."""
    probabilities, y, protocol = calibration_evidence(trained, required=False)
    if len(y) == 0:
        return trained
    return dataclasses.replace(
        trained, calibration=Calibration(fit_calibrator(probabilities, y), protocol, num_nodes=len(y))
    )


def calibration_report(trained: TrainedRun, *, level: float = 0.9, score: str = "lac") -> CalibrationReport:
    """What `calibrate_run` tells, of a run in memory."""
    probabilities, y, protocol = calibration_evidence(trained)
    if trained.calibration is None:
        trained = calibrated(trained)
    assert trained.calibration is not None
    if trained.out_of_fold is not None:
        before, truth, fold = probabilities, y, trained.out_of_fold.fold
        after, sets = torch.zeros_like(before), torch.zeros(before.shape, dtype=torch.bool)
        for k in fold.unique().tolist():
            here, others = fold == k, fold != k
            after[here] = fit_calibrator(before[others], y[others])(before[here])
            threshold = conformal_threshold(before[others], y[others], level, score=score)
            sets[here] = conformal_sets(before[here], threshold, score=score)
    else:
        if not trained.split.test.any():
            raise ValueError("the run has no test nodes on which its confidence could be judged")
        before, truth = trained.probabilities()[trained.split.test], trained.graph.y[trained.split.test]
        after = trained.calibrator(before)
        sets = conformal_sets(before, conformal_threshold(probabilities, y, level, score=score), score=score)
    judged, sizes = judge(after, truth), sets.sum(dim=1)
    tables = reliability(judge(before, truth)), reliability(judged)
    return CalibrationReport(
        graph=trained.graph.name,
        method=trained.plan.recipe.method,
        calibration=trained.calibration,
        promise=PROMISES[protocol],
        num_nodes=len(truth),
        accuracy=float(judged.correct.double().mean()),
        before=tables[0],
        after=tables[1],
        ece_before=tables[0].ece,
        ece_after=tables[1].ece,
        ece_perfect=perfect_ece(judged.confidence),
        level=level,
        score=score,
        coverage=float(sets.gather(1, truth.unsqueeze(1)).double().mean()),
        expected_coverage=coverage_range(len(y), len(truth), level),
        mean_set_size=float(sizes.double().mean()),
        set_sizes=tuple(torch.bincount(sizes, minlength=trained.graph.num_classes + 1).tolist()),
    )


class Evidence(NamedTuple):
    """What a run is calibrated on: probabilities before calibration, [m, c], labels, [m], and a key of PROMISES."""

    probabilities: Tensor
    y: Tensor
    protocol: str


def calibration_evidence(trained: TrainedRun, *, required: bool = True) -> Evidence:
    """The nodes that calibrate a run; none is a ValueError where they are required."""
    found = trained.out_of_fold
    if found is not None:
        return Evidence(found.probability.double(), trained.graph.y[found.node], "cross-validation")
    nodes, protocol = trained.split.val, "validation"
    if trained.reserved is not None:
        nodes, protocol = trained.reserved, "reserved"
    if not nodes.any():
        if required:
            raise ValueError(
                f"{trained.folder or 'the run'} keeps no labels to calibrate on: no validation nodes, and no predictions of a "
                "cross-validation; train it anew, with two labelled nodes or more"
            )
        return Evidence(torch.zeros(0, trained.graph.num_classes), torch.zeros(0, dtype=torch.int64), "none")
    return Evidence(trained.probabilities()[nodes], trained.graph.y[nodes], protocol)


def edge_table(model: Any, graph: Graph, *, recipe: Recipe) -> Any:
    """A DataFrame source, target, weight, learned: the weight of the input and a*_ij, the share that the message from
    source has at target, D*⁻¹A*. Both directions of every edge, and the self-loops; the shares at a target sum to 1.
    """
    import pandas

    if not hasattr(model, "transition"):
        raise ValueError(f"method {recipe.method!r} learns no edge weights that could be listed; gcn-lpa does")
    prepared = recipe.prepare(graph)
    with torch.no_grad():
        learned = model.transition(prepared).values.cpu()
    names = pandas.Series(list(graph.node_names), dtype=object)
    return pandas.DataFrame(
        {
            "source": names.iloc[prepared.col.cpu().numpy()].to_numpy(),
            "target": names.iloc[prepared.row.cpu().numpy()].to_numpy(),
            "weight": prepared.adjacency.values.cpu().numpy(),
            "learned": learned.numpy(),
        }
    )


def write_table(path: str | Path, table: Any, *, excel_safe: bool = False) -> None:
    """Write a DataFrame as CSV, entirely or not at all.

    Args:
        excel_safe: put a ' before text that a spreadsheet would run as a formula.
    """
    storage.write_atomic(path, table_text(table, excel_safe=excel_safe).encode())


def table_text(table: Any, *, excel_safe: bool = False) -> str:
    if excel_safe:
        table = table.map(
            lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
        )
    text: str = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


class _Stages:
    """The fits that make up a run: one for a split; for one's own graph the choice, the folds, and the fit to all."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        folder: Path | None,
        device: torch.device,
        threads: int | None,
        watch: Watch | None,
    ) -> None:
        self.plan, self.graph, self.folder = plan, graph, folder
        self.device, self.threads, self.watch = device, threads, watch

    def first_parts(self) -> Split:
        """The nodes of the first stage, "fit" or "choose"."""
        if self.plan.split is None:
            return self.choice(self.graph.labeled.cpu())
        return dataclasses.replace(self.whole, val=self.whole.val & ~self.reserved)

    @cached_property
    def whole(self) -> Split:
        return split(self.graph, seed=self.plan.seed, kind=self.plan.split or "uniform")

    @cached_property
    def reserved(self) -> Tensor:
        """The validation nodes that choose nothing, [n]."""
        share, val = self.plan.reserve, self.whole.val
        kept = reserve(val, share, self.plan.seed).reserved
        if share and not kept.any():
            raise ValueError(f"reserve = {share} of {int(val.sum())} validation nodes is not one node")
        return kept

    def run(self) -> TrainedRun:
        plan = self.plan
        if plan.split is None:
            return self.run_own()
        parts = self.first_parts()
        model, run = self.fit("fit", parts)
        found = evaluate(model, self.graph, parts.test, recipe=plan.recipe) if parts.test.any() else None
        scored = (
            "scored on test nodes whose labels were hidden while training" if found else "no node was left to score"
        )
        note = f"{plan.split} split, seed {plan.seed}: {scored}"
        trained = self.trained(model, run, parts, Results("test" if found else "none", note, found))
        return dataclasses.replace(trained, reserved=self.reserved if plan.reserve else None)

    def run_own(self) -> TrainedRun:
        labeled = self.graph.labeled.cpu()
        parts = self.first_parts()
        model, run = self.fit("choose", parts)
        none = Results("none", "interrupted before the cross-validation was complete")
        if run.interrupted:
            return self.trained(model, run, parts, none)
        validated = self.cross_validate(labeled)
        if validated is None:
            return self.trained(model, dataclasses.replace(run, interrupted=True), parts, none)
        results, out_of_fold = validated
        everything = Split(labeled, torch.zeros_like(labeled), torch.zeros_like(labeled), "all labels", self.plan.seed)
        refitted, again = self.fit("refit", everything, stop_at=run.best_epoch)
        if again.interrupted:
            return self.trained(model, dataclasses.replace(run, interrupted=True), parts, results)
        return dataclasses.replace(self.trained(refitted, run, everything, results), out_of_fold=out_of_fold)

    def trained(self, model: Any, run: Run, parts: Split, results: Results) -> TrainedRun:
        return TrainedRun(self.plan, self.graph, model, run, parts, results, self.folder)

    def choice(self, labeled: Tensor) -> Split:
        """80 % of the labelled nodes to train and 20 % to choose the epoch."""
        return split(self.graph.reveal(labeled), (0.8, 0.2, 0.0), self.plan.seed)

    def cross_validate(self, labeled: Tensor) -> tuple[Results, OutOfFold | None] | None:
        """Every labelled node scored by a model that was not given its label; None if interrupted."""
        nodes = np.flatnonzero(labeled.numpy())
        num_folds = min(NUM_FOLDS, len(nodes))
        if num_folds < 2:
            return Results("none", "one labelled node: nothing is left to score"), None
        order = np.random.Generator(np.random.PCG64(self.plan.seed)).permutation(nodes)
        pooled = torch.zeros(self.graph.num_nodes, self.graph.num_classes, dtype=torch.float64)
        fold_of = torch.zeros(self.graph.num_nodes, dtype=torch.int64)
        accuracies = []
        for k in range(num_folds):
            fold = torch.zeros_like(labeled)
            fold[torch.from_numpy(order[k::num_folds].copy())] = True
            fold_of[fold] = k
            model, run = self.fit(f"fold-{k + 1}", self.choice(labeled & ~fold))
            if run.interrupted:
                return None
            pooled[fold] = predict_proba(model, self.graph, recipe=self.plan.recipe)[fold]
            accuracies.append(scores(self.graph, fold, pooled).accuracy)
        note = f"{num_folds}-fold cross-validation: every labelled node scored by a model that was not given its label"
        results = Results("cross-validation", note, scores(self.graph, labeled, pooled), tuple(accuracies))
        return results, OutOfFold(labeled.nonzero().squeeze(1), fold_of[labeled], pooled[labeled].float())

    def fit(self, stage: str, parts: Split, stop_at: int | None = None) -> tuple[Any, Run]:
        plan = self.plan
        return learn(
            METHODS[plan.recipe.method].build,
            self.graph,
            parts.train,
            parts.val,
            plan.recipe,
            seed=plan.seed,
            device=str(self.device),
            threads=self.threads,
            stop_at=stop_at,
            on_epoch=self.watch(stage, stop_at or num_epochs(plan.recipe)) if self.watch else None,
            checkpoint=None if self.folder is None else _stage_folder(self.folder, stage),
            checkpoint_every=plan.checkpoint_every,
            resume=True,
        )


def _stage_folder(folder: Path, stage: str) -> Path:
    return folder if stage in ("fit", "choose") else folder / stage


def _claim(folder: Path, overwrite: bool) -> None:
    """Make sure that a new run may be put into a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another place for the run")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f".{PLAN}.*.tmp"):  # of a run killed while its plan was written
        leftover.unlink()
    if not overwrite and os.listdir(folder):
        state = (
            "holds an unfinished run: `gcn-lpa resume` goes on with it" if (folder / PLAN).exists() else "is not empty"
        )
        raise ValueError(f"{folder} {state}; choose another folder, or --overwrite to start anew")
    _clear(folder)


def _withdraw(folder: Path, is_new: bool) -> None:
    """Take a claim back: the plan goes, and the folder too if it was made for it and is empty."""
    _clear(folder)
    if is_new and not os.listdir(folder):
        os.rmdir(folder)


def _finished(folder: Path, plan: Plan) -> TrainedRun:
    trained = load_run(folder)
    if trained.plan != plan:
        raise ValueError(f"{folder} holds a finished run with other settings or data; choose another folder")
    return trained


def _clear(folder: Path) -> None:
    """Remove what only an unfinished run needs. The plan goes last: until then the run can be resumed."""
    for stage in ("refit", *(f"fold-{k + 1}" for k in range(NUM_FOLDS))):
        storage.discard_checkpoint(folder / stage)
        if (folder / stage).is_dir() and not os.listdir(folder / stage):
            os.rmdir(folder / stage)
    storage.discard_checkpoint(folder)
    (folder / PLAN).unlink(missing_ok=True)


def _read_plan(folder: Path) -> Plan:
    try:
        return Plan.from_dict(storage.read_json(folder / PLAN))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / PLAN}: not a plan that this version of gcn-lpa wrote: {error}") from error


def _read_run(files: storage.RunFolder) -> tuple[Plan, Run, Results]:
    try:
        data, facts, found = (files.json(name) for name in ("data.json", "run.json", "scores.json"))
        recipe = Recipe.from_dict(files.json("recipe.json"))
        plan = Plan(
            Source(data["name"], data["root"], data["options"]),
            data["content"],
            recipe,
            facts["seed"],
            facts["split"],
            data["stored"],
            facts["checkpoint_every"],
            facts.get("reserve", 0.0),
        )
        history = tuple(Epoch(**epoch) for epoch in files.lines("history.jsonl"))
        run = Run(recipe, facts["seed"], history, facts["best_epoch"], facts["interrupted"])
        results = Results(found["protocol"], found["note"], _decode_scores(found["scores"]), tuple(found["folds"]))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{files.folder}: not a run that this version of gcn-lpa wrote: {error!r}") from error
    if recipe.method not in METHODS:
        raise ValueError(f"{files.folder}: unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    return plan, run, results


def _decode_scores(found: Mapping[str, Any] | None) -> Scores | None:
    if found is None:
        return None
    return Scores(**{**found, "per_class": {name: ClassScores(**row) for name, row in found["per_class"].items()}})


def _graph_of(plan: Plan, folder: Path, data: str | Path | None) -> Graph:
    """The graph of a run from its source, or from `data`; it must be the one the run was trained on."""
    source = plan.source if data is None else dataclasses.replace(plan.source, name=str(data))
    try:
        graph = source.load()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the graph of {folder} cannot be read from {source.name!r} ({error}); say where it is with --data PATH"
        ) from error
    if (content := graph.content_hash(64)) != plan.content:
        raise ValueError(
            f"{source.name!r} is not the graph {folder} was trained on (content {content[:10]}…, not "
            f"{plan.content[:10]}…); say where that one is with --data PATH"
        )
    return graph


def _encode_calibration(trained: TrainedRun) -> dict[str, bytes]:
    """The files that hold a calibration and what it came from; none where there is none."""
    files: dict[str, bytes] = {}
    if trained.calibration is not None:
        files["calibration.json"] = storage.encode_json(dataclasses.asdict(trained.calibration))
    if trained.out_of_fold is not None:
        files["out_of_fold.safetensors"] = storage.encode_tensors(trained.out_of_fold._asdict())
    return files


def _decode_calibration(files: storage.RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        if "calibration.json" in files.files:
            said = files.json("calibration.json")
            calibrator = Calibrator(**{name: float(value) for name, value in said["calibrator"].items()})
            found["calibration"] = Calibration(calibrator, said["protocol"], int(said["num_nodes"]))
        if "out_of_fold.safetensors" in files.files:
            found["out_of_fold"] = OutOfFold(**files.tensors("out_of_fold.safetensors"))
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{files.folder}: not a calibration that this version of gcn-lpa wrote: {error!r}") from error
    return found


def _encode_split(parts: Split, reserved: Tensor | None = None) -> dict[str, Any]:
    masks = {"train": parts.train, "val": parts.val, "test": parts.test}
    masks |= {} if reserved is None else {"reserved": reserved}
    nodes = {name: mask.nonzero().squeeze(1).tolist() for name, mask in masks.items()}
    return {"kind": parts.kind, "seed": parts.seed, "hash": parts.hash, **nodes}


def _decode_split(parts: Mapping[str, Any], num_nodes: int) -> Split:
    train, val, test = (_mask(parts[name], num_nodes) for name in ("train", "val", "test"))
    return Split(train, val, test, parts["kind"], parts["seed"])


def _mask(nodes: list[int], num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.tensor(nodes, dtype=torch.int64)] = True
    return mask


def _encode_graph(graph: Graph) -> dict[str, bytes]:
    """The files that hold a graph; only ids that are text or numbers can be kept in one."""
    names = None if isinstance(graph.node_names, range) else list(graph.node_names)
    if odd := [name for name in names or () if type(name) not in (str, int, float)]:
        raise ValueError(f"node {odd[0]!r} cannot be stored: ids that are text or numbers can")
    tensors = {"y": graph.y}
    for name, matrix in (("adjacency", graph.adjacency), ("x", graph.x)):
        if isinstance(matrix, SparseMatrix):
            tensors[f"{name}.rowptr"], tensors[f"{name}.col"] = matrix.pattern.rows.rowptr, matrix.pattern.col
            tensors[f"{name}.values"] = matrix.values
        else:
            tensors[name] = matrix
    facts = {
        "name": graph.name,
        "directed": graph.directed,
        "x_kind": graph.x_kind,
        "num_features": graph.num_features,
        "class_names": graph.class_names,
        "node_names": names,
        "notes": graph.notes,
        "public": None if graph.public is None else _encode_split(graph.public),
    }
    return {
        "graph.safetensors": storage.encode_tensors({name: tensor.clone() for name, tensor in tensors.items()}),
        "graph.json": storage.encode_json(facts, indent=None),
    }


def _decode_graph(files: storage.RunFolder) -> Graph:
    tensors, facts = files.tensors("graph.safetensors"), files.json("graph.json")
    n = len(tensors["y"])

    def matrix(name: str, width: int) -> Tensor | SparseMatrix:
        if name in tensors:
            return tensors[name]
        pattern = Pattern(tensors[f"{name}.rowptr"], tensors[f"{name}.col"], (n, width))
        return SparseMatrix(pattern, tensors[f"{name}.values"])

    adjacency = matrix("adjacency", n)
    assert isinstance(adjacency, SparseMatrix)
    return Graph(
        adjacency,
        matrix("x", facts["num_features"]),
        tensors["y"],
        tuple(facts["class_names"]),
        range(n) if facts["node_names"] is None else facts["node_names"],
        facts["name"],
        facts["directed"],
        tuple(facts["notes"]),
        facts["x_kind"],
        None if facts["public"] is None else _decode_split(facts["public"], n),
    )
