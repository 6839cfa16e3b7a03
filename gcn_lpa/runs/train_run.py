"""A training command: what is learned from which nodes, how it is scored, and how a run that was stopped goes on.

A named data set is divided into train, validation and test nodes, and scored on the test nodes. Your own graph is not: it is
learned by folds of its labels, and scored by cross-validation. Where a column says when nodes came, the model is trained on the
past, without the nodes and edges that came later, and scored on the future.

While a run goes on, its folder has the plan and a checkpoint of every model that was begun. `resume_run` ends where an
undisturbed run would have, bit for bit.

checkpoint/plan.json              what is to be done
checkpoint/STAGE, STAGE-MEMBER    of each model that was begun: meta.json and tensors.safetensors

`checkpoint` is gone when the run is complete. The plan goes last: until then the run can be resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.calibration import reserve
from gcn_lpa.data.files import encode_json, holding
from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.devices import choose_device
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import calibrate, learn
from gcn_lpa.methods.registry import members_of
from gcn_lpa.predict import evaluate, scores
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import RUN_FILES, Results, TrainedRun, graph_of, load_run, read_run, save_run
from gcn_lpa.runs.plan import Plan
from gcn_lpa.runs.storage import CHECKPOINT, MANIFEST, encode_tensors, inside
from gcn_lpa.scale.planner import require_room
from gcn_lpa.train import Checkpoint, JobName, Watch
from gcn_lpa.trained import HeldOut, Trained

CHECKPOINT_SECONDS = 1.0  # a save waits for the disk: on a small graph that takes longer than the epochs it would save
PLAN, META, TENSORS = "plan.json", "meta.json", "tensors.safetensors"
Outputs = Callable[[TrainedRun], Mapping[str, bytes]]


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
    outputs: Outputs | None = None,
) -> TrainedRun:
    """Do what `plan` says with the graph it was made for; with `out`, keep the result in that run folder.

    Ctrl-C keeps the best so far; the folder can then be resumed. An error before the first checkpoint leaves no
    unfinished run behind.

    Args:
        resume: go on with the run of the same plan in `out`, if there is one; if it is finished, return it.
        overwrite: replace the run in `out`; it stays until the new run is complete. Files of others are refused.
        watch: what is called after every epoch.
        outputs: makes files for people of the run, by name, which are kept in the folder with it.
    """
    folder = None if out is None else Path(out)
    if folder is not None and resume and is_finished(folder, plan):
        return _finished(folder, None, outputs)
    if graph.content_hash(64) != plan.content:
        raise ValueError(f"{graph.name!r} is not the graph that the plan was made for; make_plan makes one for it")
    training = _Training(plan, graph, folder, choose_device(device), threads, watch or Watch())
    # what cannot be done is refused before the folder is touched
    members_of(plan.recipe)
    require_room(graph, plan.recipe, training.device)
    parts, reserved = parts_of(plan, graph)
    if folder is None:
        return training.run(parts, reserved)
    with claimed(folder, plan, resume=resume, overwrite=overwrite):
        run = training.run(parts, reserved)
        save_run(folder, run, {} if outputs is None or run.run.interrupted else outputs(run))
        if not run.run.interrupted:
            clear(folder)
    return run


def resume_run(folder: str | Path, data: str | Path | None = None, *, outputs: Outputs | None = None, **options: Any) -> TrainedRun:
    """Finish a training that was stopped; a run that is complete is returned as it is.

    Args:
        data: where the graph is now, if not where it was.
        outputs: as in `train_run`; the files are added to a run that is complete.
        options: `device`, `threads` and `watch` of `train_run`.
    """
    folder = Path(folder)
    plan = unfinished_plan(folder)
    if plan is None:
        return _finished(folder, data, outputs)
    return train_run(plan, graph_of(plan, folder, data), folder, resume=True, outputs=outputs, **options)


def _finished(folder: Path, data: str | Path | None, outputs: Outputs | None) -> TrainedRun:
    """The run that a folder holds complete, to which files for people are added."""
    run = load_run(folder, data)
    if outputs is not None:
        storage.check_free(folder, storage.OUTPUTS)  # before the work
        storage.save(folder, outputs(run), is_addition=True)
    return run


def evaluate_run(run: TrainedRun, *, positive: str | None = None) -> Results:
    """The scores of a run: on its test nodes, computed anew; of your own data, those of the cross-validation.

    Args:
        positive: the class whose ranking is scored; None: the rarer of two, where it is rare.
    """
    trained, found = run.trained, run.results
    if found.protocol == "test":
        return dataclasses.replace(found, scores=evaluate(trained, run.graph, run.split.test, positive=positive))
    if found.scores is None or positive is None or trained.held_out is None:
        return found
    held_out = trained.held_out
    every = scores(run.graph, held_out.mask(run.graph), spread(held_out, run.graph), trained.target, positive)
    return dataclasses.replace(found, scores=every)


def spread(held_out: HeldOut, graph: Graph) -> Tensor:
    """The held-out probabilities of each node of a graph, zeros elsewhere, [n, c]."""
    p = held_out.probability
    return p.new_zeros(graph.num_nodes, p.shape[1]).index_copy(0, held_out.node, p)


def parts_of(plan: Plan, graph: Graph) -> tuple[Split, Tensor | None]:
    """The nodes that train, choose and test, and the validation nodes that choose nothing, [n]; without a split all train."""
    if plan.split is None:
        labeled = graph.labeled.cpu()
        return Split(labeled, torch.zeros_like(labeled), torch.zeros_like(labeled), "all labels", plan.seed), None
    parts = split(graph, seed=plan.seed, kind=plan.split)
    if not plan.reserve:
        return parts, None
    kept = reserve(parts.val, plan.reserve, plan.seed)
    if not kept.any():
        raise ValueError(f"reserve = {plan.reserve} of {int(parts.val.sum())} validation nodes is not one node")
    return dataclasses.replace(parts, val=parts.val & ~kept), kept


@dataclass(frozen=True, eq=False)
class _Training:
    plan: Plan
    graph: Graph
    folder: Path | None
    device: torch.device
    threads: int | None
    watch: Watch

    def run(self, parts: Split, reserved: Tensor | None) -> TrainedRun:
        graph, plan = self.graph, self.plan
        if plan.split is None:
            trained, results = self.by_folds(parts)
        elif plan.split == "time":
            trained, results = self.over_time(parts)
        else:
            trained = self.learned(graph, parts.train, parts.val)
            tested = evaluate(trained, graph, parts.test) if parts.test.any() else None
            hidden = "scored on test nodes whose labels were hidden while training"
            note = f"{plan.split} split, seed {plan.seed}: {hidden if tested else 'no node was left to score'}"
            results = Results("test" if tested else "none", note, tested)
        if reserved is not None and (known := reserved & trained.target.known(trained.labels_of(graph))).any():
            trained = calibrate(trained, graph, known)
        plan = dataclasses.replace(plan, recipe=trained.recipe)  # without members that there was no time for
        return TrainedRun(plan, graph, trained, parts, results, self.folder, reserved)

    def over_time(self, parts: Split) -> tuple[Trained, Results]:
        """Train on the past, score on the future."""
        past, then = past_of(self.graph, parts)
        trained = self.learned(past, then.train, then.val)
        sizes = f"({past.num_nodes:,} nodes and the {past.num_edges:,} edges between them)"
        note = f"trained on the past {sizes}, scored on the future"
        return trained, Results("test", note, evaluate(trained, self.graph, parts.test))

    def by_folds(self, parts: Split) -> tuple[Trained, Results]:
        graph, labeled = self.graph, parts.train
        trained = self.learned(graph, labeled, None)
        held_out = trained.held_out
        if held_out is None:
            why = "interrupted before all folds were trained: nothing to score"
            few = "too few labels to score: no class has two of them"
            return trained, Results("none", why if trained.run.interrupted else few)
        probabilities = spread(held_out, graph)
        every = scores(graph, held_out.mask(graph), probabilities, trained.target)
        if held_out.fold is None:
            number, labels = len(held_out.node), int(labeled.sum())
            note = f"scored on {number:,} of {labels:,} labelled nodes, by models that did not learn their labels"
            return trained, Results("cross-validation", note, every)
        folds = [held_out.node[held_out.fold == k] for k in range(int(held_out.fold.max()) + 1)]
        accuracies = tuple(scores(graph, fold, probabilities, trained.target).score for fold in folds)
        note = f"{len(folds)}-fold cross-validation: every labelled node scored by models that did not learn its label"
        return trained, Results("cross-validation", note, every, accuracies)

    def learned(self, graph: Graph, train: Tensor, val: Tensor | None) -> Trained:
        """Learn as planned, with checkpoints in the run folder."""
        plan, watch, folder = self.plan, self.watch, self.folder
        if folder is not None:

            def checkpoints(name: JobName) -> CheckpointFolder:
                return CheckpointFolder(folder, "-".join(filter(None, (name.stage, name.member))))

            changes: dict[str, Any] = {"every": plan.checkpoint_every, "seconds": CHECKPOINT_SECONDS, "resume": True}
            watch = dataclasses.replace(watch, checkpoints=checkpoints, facts={"graph": plan.content}, **changes)
        options: dict[str, Any] = {"threads": self.threads, "minutes": plan.minutes or None, "watch": watch}
        return learn(graph, train, val, plan.recipe, seed=plan.seed, device=str(self.device), **options)


def past_of(graph: Graph, parts: Split) -> tuple[Graph, Split]:
    """The graph as it was before the first test node came, and the split of that graph."""
    assert graph.time is not None
    was_there = graph.time < graph.time[parts.test].min()
    train, val, test = (mask[was_there] for mask in (parts.train, parts.val, parts.test))
    return graph.subgraph(was_there), Split(train, val, test, parts.kind, parts.seed)


# a training that is not finished


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one model in a run folder, as `train.Checkpoints`.

    Of processes that train together each has two such folders: `RankCheckpoints`.
    """

    run: Path
    name: str  # of the stage, and of the member
    rank: str = ""

    @property
    def folder(self) -> Path:
        return inside(inside(self.run, CHECKPOINT), self.name + self.rank)

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        storage.replace(self.folder, [(TENSORS, encode_tensors(tensors)), (META, encode_json(meta))])

    def latest(self) -> Checkpoint | None:
        if not self.rank and any(self.folder.parent.glob(f"{self.name}-rank-*")):
            raise ValueError(f"{self.folder} was saved by several processes: start them again, with torchrun --resume")
        files = storage.read(self.folder)
        if files is None:
            return None
        tensors: dict[str, Tensor] = files.read(TENSORS)
        with files.explained(TENSORS):
            if broken := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
                raise ValueError(f"{broken[0]} holds numbers that are not finite")
        return Checkpoint(tensors, files.read(META, dict[str, Any]), self.folder / TENSORS, self.folder / META)


@contextlib.contextmanager
def claimed(folder: Path, plan: Plan, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """A run folder for a training, which no other process writes to while the block runs.

    An error before the first checkpoint leaves no unfinished run behind.

    Args:
        resume: go on with the unfinished run of the same plan, if there is one.
        overwrite: a run may be there; it stays until another is saved.
    """
    is_new = not folder.exists()
    with holding(folder):
        is_begun = is_unfinished(folder)
        if (goes_on := resume and is_begun) and read_plan(folder) != plan:
            raise ValueError(f"{folder} holds an unfinished run with other settings or data; choose another folder")
        storage.check_free(folder, RUN_FILES)
        if not goes_on:
            if is_begun and not overwrite:
                state = f"holds an unfinished run: `gcn-lpa train --resume --out {folder}` goes on with it"
                raise ValueError(f"{folder} {state}; choose another folder, or --overwrite to start anew")
            clear(folder)
            if not overwrite and os.listdir(folder):
                raise ValueError(f"{folder} is not empty; choose another folder, or --overwrite to start anew")
            if os.path.lexists(folder / CHECKPOINT):
                raise ValueError(f"{folder / CHECKPOINT} is not from a run; choose another folder, or move it away")
            storage.replace(folder / CHECKPOINT, [(PLAN, encode_json(plan.to_dict()))])
        try:
            yield
        except Exception:  # not Ctrl-C: such a run can be resumed
            if not goes_on and not any((folder / CHECKPOINT).glob(f"*/{MANIFEST}")):
                clear(folder)
                if is_new and not os.listdir(folder):
                    os.rmdir(folder)
            raise


def is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a run to go on with."""
    return (inside(folder, CHECKPOINT) / MANIFEST).exists()


def unfinished_plan(folder: Path) -> Plan | None:
    """The plan of the run that a folder holds unfinished; without one, nothing that belongs to it stays either."""
    if is_unfinished(folder):
        return read_plan(folder)
    if (folder / CHECKPOINT).exists():  # a process was killed while it cleaned up
        with holding(folder):
            clear(folder)
    return None


def is_finished(folder: Path, plan: Plan) -> bool:
    """Whether a folder holds the finished run of a plan; one of another plan is refused."""
    if unfinished_plan(folder) is not None or not (folder / MANIFEST).exists():
        return False
    if read_run(storage.load(folder))[0] != plan:
        raise ValueError(f"{folder} holds a finished run with other settings or data; choose another folder")
    return True


def read_plan(folder: Path) -> Plan:
    files = storage.read(inside(folder, CHECKPOINT))
    if files is None or PLAN not in files.files:
        command = f"gcn-lpa train NAME_OR_FOLDER --out {shlex.quote(str(folder))} --overwrite"
        raise ValueError(f"{folder / CHECKPOINT}: no plan that this version of gcn-lpa wrote; start anew: {command}")
    plan: Plan = files.read(PLAN, Plan)
    return plan


def clear(folder: Path) -> None:
    """Remove what only an unfinished run needs; a folder of another kind, such as a finished run, stays."""
    place = inside(folder, CHECKPOINT)
    inner = [inside(place, name) for name in (os.listdir(place) if place.is_dir() else ())]
    for path in (*filter(Path.is_dir, inner), place):
        storage.discard(path, (PLAN, META))
