"""The stages of a training command: the fits that make up a run, and how a run that was stopped goes on.

A named data set is divided into train, validation and test nodes, and scored on the test nodes. Your own graph is not: each
fold of its labels in turn chooses the epoch of a model that learns from the others, and scores it; the models of all folds
predict together (`learn_folds`). Where a column says when nodes came, the model is trained on the past, without the nodes and
edges that came later, and scored on the future; a second one, trained on a random split of the same sizes, says how much better
that looks.

Probabilities are calibrated on labels that training did not learn from: the validation nodes; a share of them that was
reserved, and chose nothing; or the out-of-fold predictions of the cross-validation.

While a run goes on, its folder has the plan and a checkpoint of every stage that was begun: the first stage in the folder
itself, every other one in a folder of its name, and in these folders those of the members of a team. `resume_run` ends where
an undisturbed run would have, bit for bit.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.calibration import reserve
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.files import explained, holding, remove_stale
from gcn_lpa.folds import NUM_FOLDS, learn_folds
from gcn_lpa.graph import Graph
from gcn_lpa.intake import check_seed
from gcn_lpa.learning import learn
from gcn_lpa.methods.team import LIBRARY, members_of
from gcn_lpa.planner import require_room
from gcn_lpa.predict import evaluate, scores
from gcn_lpa.runs.codec import (
    PLAN,
    OutOfFold,
    Results,
    TrainedRun,
    finished_run,
    graph_of,
    load_run,
    read_plan,
    read_run,
    save_run,
    write_plan,
)
from gcn_lpa.runs.confidence import calibrated
from gcn_lpa.runs.growing import past_of, time_note
from gcn_lpa.runs.plan import Plan
from gcn_lpa.splits import Split, shuffled, split
from gcn_lpa.train import Epoch, num_epochs
from gcn_lpa.trained import Trained

FIRST_STAGES = ("fit", "fold-1")
CHECKPOINT_SECONDS = 1.0  # a save waits for the disk: on a small graph that takes longer than the epochs it would save
Watch = Callable[[str, int, int], Callable[[Epoch], None]]  # (a stage, its epochs at most, stages to come) -> on_epoch


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
        watch: given the name of each stage, its number of epochs and the number of stages to come, returns the stage's
            `on_epoch`.
    """
    folder = None if out is None else Path(out)
    unfinished = folder is not None and resume and (folder / PLAN).exists()
    if folder is not None and resume and not unfinished and (folder / storage.MANIFEST).exists():
        return finished_run(folder, plan)
    stages = _Stages(plan, graph, folder, choose_device(device), threads, watch)
    check_seed(plan.seed)
    stages.check()  # before the folder is touched
    if folder is None:
        return calibrated(stages.run())
    is_new = not folder.exists()
    make_folder(folder)
    with holding(folder):
        if not unfinished:
            claim(folder, overwrite)
            write_plan(folder, plan)
        elif read_plan(folder) != plan:
            raise ValueError(f"{folder} holds an unfinished run with other settings or data; choose another folder")
        try:
            trained = calibrated(stages.run())
        except Exception:  # not Ctrl-C: such a run can be resumed
            if not unfinished and storage.latest_checkpoint(folder) is None:
                withdraw(folder, is_new)
            raise
        save_run(folder, trained)
        if not trained.run.interrupted:
            clear(folder)
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
    plan = read_plan(folder)
    return train_run(plan, graph_of(plan, folder, data), folder, resume=True, **options)


def evaluate_run(folder: str | Path, data: str | Path | None = None) -> Results:
    """The scores of a run: on its test nodes, computed anew; of your own data, those of the cross-validation.

    Args:
        data: where the graph is now, if not where it was; refused if it is not the graph of the run.
    """
    files = storage.load(folder)
    plan, results = read_run(files)
    if results.protocol != "test":
        if data is not None:
            graph_of(plan, Path(folder), data)
        return results
    run = load_run(folder, data)
    return dataclasses.replace(results, scores=evaluate(run.trained, run.graph, run.split.test))


class _Stages:
    """The fits that make up a run: one for a split; for your own graph one for each fold."""

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
        self.to_come = 1 + (plan.split == "time") if plan.split else min(NUM_FOLDS, int(graph.labeled.sum()))

    def check(self) -> None:
        members_of(self.plan.recipe)
        require_room(self.graph, self.plan.recipe, self.device)
        if self.plan.split is not None:
            self.parts()

    def parts(self) -> Split:
        """The nodes of a run with a split."""
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
        layer = self.graph.num_nodes * max(self.plan.recipe.hidden, self.graph.num_classes)
        with num_threads(self.threads, layer=layer):
            return self.run_own() if self.plan.split is None else self.run_split()

    def run_split(self) -> TrainedRun:
        plan = self.plan
        parts = self.parts()
        if plan.split == "time":
            return self.run_over_time(parts)
        trained = self.fit("fit", parts)
        found = evaluate(trained, self.graph, parts.test) if parts.test.any() else None
        scored = (
            "scored on test nodes whose labels were hidden while training" if found else "no node was left to score"
        )
        note = f"{plan.split} split, seed {plan.seed}: {scored}"
        run = self.finished(trained, parts, Results("test" if found else "none", note, found))
        return dataclasses.replace(run, reserved=self.reserved if plan.reserve else None)

    def run_over_time(self, parts: Split) -> TrainedRun:
        """Train on the past, score on the future, and beside it on nodes drawn at random."""
        past, then = past_of(self.graph, parts)
        trained = self.fit("fit", then, past)
        found, other = evaluate(trained, self.graph, parts.test), None
        if not trained.run.interrupted:
            drawn = shuffled(parts, self.plan.seed)
            usual = self.fit("random", drawn)
            if usual.run.interrupted:
                trained = dataclasses.replace(trained, run=dataclasses.replace(trained.run, interrupted=True))
            else:
                other = evaluate(usual, self.graph, drawn.test)
        results = Results("test", time_note(past, found, other), found, random_split=other)
        run = self.finished(trained, parts, results)
        return dataclasses.replace(run, reserved=self.reserved if self.plan.reserve else None)

    def run_own(self) -> TrainedRun:
        plan, labeled = self.plan, self.graph.labeled.cpu()
        trained = learn_folds(
            self.graph,
            labeled,
            plan.recipe,
            seed=plan.seed,
            classes=self.graph.class_names,  # of your own folder all labels count
            device=str(self.device),
            threads=self.threads,
            minutes=plan.minutes or None,
            options=lambda k: self.options(f"fold-{k + 1}"),
        )
        parts = Split(labeled, torch.zeros_like(labeled), torch.zeros_like(labeled), "all labels", plan.seed)
        if (found := trained.held_out) is None:
            why = "interrupted before all folds were trained: nothing to score"
            few = "too few labels to score: no class has two of them"
            return self.finished(trained, parts, Results("none", why if trained.run.interrupted else few))
        shape = self.graph.num_nodes, len(trained.class_names)
        said = torch.zeros(shape, dtype=torch.float64).index_copy(0, found.node, found.probability)
        accuracies = tuple(
            scores(self.graph, found.node[found.fold == k], said).accuracy for k in range(int(found.fold.max()) + 1)
        )
        note = f"{len(accuracies)}-fold cross-validation: every labelled node scored by models that did not learn its label"
        results = Results("cross-validation", note, scores(self.graph, labeled, said), accuracies)
        out_of_fold = OutOfFold(found.node, found.fold, found.probability.float())
        return dataclasses.replace(self.finished(trained, parts, results), out_of_fold=out_of_fold)

    def finished(self, trained: Trained, parts: Split, results: Results) -> TrainedRun:
        plan = dataclasses.replace(self.plan, recipe=trained.recipe)  # without members that there was no time for
        return TrainedRun(plan, self.graph, trained, parts, results, self.folder)

    def fit(self, stage: str, parts: Split, graph: Graph | None = None) -> Trained:
        plan, device = self.plan, str(self.device)
        until = time.perf_counter() + 60 * plan.minutes if plan.minutes else None
        options = {"seed": plan.seed, "device": device, "threads": self.threads, "until": until, **self.options(stage)}
        return learn(graph or self.graph, parts.train, parts.val, plan.recipe, **options)

    def options(self, stage: str) -> dict[str, Any]:
        """What `learn` needs to be watched and stopped at this stage."""
        plan = self.plan
        self.to_come -= 1
        return {
            "on_epoch": self.watch(stage, num_epochs(plan.recipe), self.to_come) if self.watch else None,
            "checkpoint": None if self.folder is None else _stage_folder(self.folder, stage),
            "checkpoint_every": plan.checkpoint_every,
            "checkpoint_seconds": CHECKPOINT_SECONDS,
            "resume": True,
        }


def _stage_folder(folder: Path, stage: str) -> Path:
    """Where the checkpoint of a stage is."""
    return folder if stage in FIRST_STAGES else storage.inside(folder, stage)


def make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another place for the run")
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


def claim(folder: Path, overwrite: bool) -> None:
    """Make sure that a new run may be put into a folder."""
    remove_stale(folder / PLAN)  # of a run killed while its plan was written
    if not overwrite and os.listdir(folder):
        state = (
            "holds an unfinished run: `gcn-lpa resume` goes on with it" if (folder / PLAN).exists() else "is not empty"
        )
        raise ValueError(f"{folder} {state}; choose another folder, or --overwrite to start anew")
    clear(folder)


def withdraw(folder: Path, is_new: bool) -> None:
    """Take a claim back: the plan goes, and the folder too if it was made for it and is empty."""
    clear(folder)
    if is_new and not os.listdir(folder):
        os.rmdir(folder)


def clear(folder: Path) -> None:
    """Remove what only an unfinished run needs. The plan goes last: until then the run can be resumed."""
    stages = [storage.inside(folder, name) for name in ("random", *(f"fold-{k + 1}" for k in range(NUM_FOLDS)))]
    members = [storage.inside(place, name) for place in [folder, *stages] for name in LIBRARY]
    for place in [*members, *stages]:
        storage.discard_checkpoint(place)
        if place.is_dir() and not os.listdir(place):
            os.rmdir(place)
    storage.discard_checkpoint(folder)
    with explained(folder):
        (folder / PLAN).unlink(missing_ok=True)
