"""The run folder: a trained run as files and back, and what is there while a training goes on.

A run folder has the files of a `Trained` (`trained_files`) and, beside them:

run.json                   the plan: where the graph comes from, its content hash, seed and split; which nodes train, validate
                           and test; the scores and how they were measured; versions and machine
graph.safetensors, graph.json   the graph itself, where that was asked for
predictions.csv, report.html    for people, where they were asked for

checkpoint/plan.json              of a training that is not finished: what is to be done
checkpoint/STAGE, STAGE-MEMBER    of each model that was begun: meta.json and tensors.safetensors

Nothing of a folder is trusted: every file is checked against the others. `checkpoint` is gone when the run is complete. The plan
goes last: until then the run can be resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcn_lpa.data.files import decode_as, encode_json, holding
from gcn_lpa.data.splits import Split
from gcn_lpa.edges import Free
from gcn_lpa.engine.devices import environment
from gcn_lpa.train import Checkpoint, Run
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs import storage
from gcn_lpa.runs.plan import Plan
from gcn_lpa.runs.storage import CHECKPOINT, MANIFEST, encode_tensors, inside
from gcn_lpa.runs.trained_files import LABELS, SplitFacts, decode_graph, decode_trained, encode_graph, encode_trained
from gcn_lpa.target import Scores
from gcn_lpa.trained import Trained

# every name under which a run may write a file
RUN_FILES = (*storage.FILES, *storage.OUTPUTS, "run.json", "graph.safetensors", "graph.json")
PLAN, META, TENSORS = "plan.json", "meta.json", "tensors.safetensors"
PROTOCOLS = ("test", "cross-validation", "none")


@dataclass(frozen=True)
class Results:
    """The scores of a run and what they are scores of: "test" nodes, "cross-validation", or "none"."""

    protocol: str
    note: str
    scores: Scores | None = None
    folds: tuple[float, ...] = ()  # accuracy of each fold
    random_split: Scores | None = None  # beside the scores on the future: those of as many nodes drawn at random

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol is {self.protocol!r:.40}; it is one of {', '.join(PROTOCOLS)}")
        if odd := [accuracy for accuracy in self.folds if not 0 <= accuracy <= 1]:
            raise ValueError(f"the accuracy of a fold is {odd[0]}; it is between 0 and 1")


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with everything around it. `graph` is raw, with all its labels; `split` says which were given."""

    plan: Plan
    graph: Graph
    trained: Trained
    split: Split
    results: Results
    folder: Path | None = None
    reserved: Tensor | None = None  # validation nodes that chose nothing, [n]

    @property
    def run(self) -> Run:
        return self.trained.run

    @property
    def used(self) -> Tensor:
        """The nodes whose labels were given or are reserved to calibrate, [n]."""
        given = self.split.train | self.split.val
        return given if self.reserved is None else given | self.reserved


@dataclass(frozen=True)
class _RunFacts:
    """run.json."""

    plan: dict[str, Any]  # its recipe is recipe.json
    split: SplitFacts
    results: Results
    about: dict[str, Any]  # for people
    environment: dict[str, Any]


def save_run(
    folder: Path, run: TrainedRun, outputs: Mapping[str, bytes] | None = None, num_edges: int | None = None
) -> None:
    """Make a trained run the state of its folder, which is held, entirely or not at all.

    Args:
        outputs: files for people, of `storage.OUTPUTS`.
        num_edges: where the graph of the run is without its edges.
    """
    plan, graph = run.plan.to_dict(), run.graph
    about = {
        **{"graph": graph.name, "nodes": graph.num_nodes, "edges": num_edges or graph.num_edges},
        **{"epochs": len(run.run.history), "interrupted": run.run.interrupted, "seconds": run.run.seconds},
    }
    del plan["recipe"]
    facts = _RunFacts(plan, SplitFacts.of(run.split, run.reserved), run.results, about, environment())
    files = {**encode_trained(run.trained), "run.json": encode_json(dataclasses.asdict(facts))}
    files |= encode_graph(graph) if run.plan.with_data else {}
    storage.replace(folder, {**files, **(outputs or {})}.items())


def load_run(folder: str | Path, data: str | Path | None = None) -> TrainedRun:
    """Read a run folder and the graph it was trained on.

    Args:
        data: where the graph is now, if not where it was.
    """
    files = storage.load(folder)
    plan, facts = read_run(files)
    trained = decode_trained(files)
    with files.explained("trained.json"):
        if trained.run.seed != plan.seed:
            raise ValueError(f"seed is {trained.run.seed}, but run.json says {plan.seed}")
    is_stored = plan.with_data and data is None
    graph = decode_graph(files, plan.content) if is_stored else graph_of(plan, files.folder, data)
    with files.explained("run.json"):
        parts, reserved = facts.split.masks(graph.num_nodes)
    _check_fit(files, trained, graph, parts)
    return TrainedRun(plan, graph, trained, parts, facts.results, files.folder, reserved if reserved.any() else None)


def save_trained(trained: Trained, folder: str | Path) -> None:
    """Keep a `Trained` alone in a folder, entirely or not at all."""
    storage.save(folder, encode_trained(trained))


def load_trained(folder: str | Path) -> Trained:
    """The `Trained` of a folder that `save_trained` or a training made."""
    return decode_trained(storage.load(folder))


def read_run(files: storage.RunFolder) -> tuple[Plan, _RunFacts]:
    """What was planned and what came of it."""
    recipe: Recipe = files.read("recipe.json", Recipe)
    facts: _RunFacts = files.read("run.json", _RunFacts)
    with files.explained("run.json"):
        plan: Plan = decode_as(Plan, {**facts.plan, "recipe": recipe.to_dict()})
    return plan, facts


def graph_of(plan: Plan, folder: Path, data: str | Path | None) -> Graph:
    """The graph of a run from its source, or from `data`; it must be the one the run was trained on."""
    source = plan.source if data is None else dataclasses.replace(plan.source, name=str(data))
    try:
        graph = source.load()
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the last two: options of a wrong type
        raise ValueError(
            f"the graph of {folder} cannot be read from {source.name!r} ({error}); say where it is with --data PATH"
        ) from error
    if (content := graph.content_hash(64)) != plan.content:
        raise ValueError(
            f"{source.name!r} is not the graph {folder} was trained on (content {content[:10]}…, not "
            f"{plan.content[:10]}…); say where that one is with --data PATH"
        )
    return graph


def _check_fit(files: storage.RunFolder, trained: Trained, graph: Graph, parts: Split) -> None:
    """Refuse a model whose columns, labels or edges are not those of the graph and its split."""
    with files.explained("trained.json"):
        trained.check_columns(graph)
    with files.explained(LABELS):
        y, trains = trained.known.on(graph)
        if not torch.equal(trains, parts.train) or not torch.equal(y >= 0, parts.train | parts.val):
            raise ValueError("the known labels are not those of the nodes that run.json names")
        if not torch.equal(y, torch.where(y >= 0, trained.classes_of(graph), -1)):
            raise ValueError("the known labels are not those of the graph")
    free = [form for form in trained.model.modules() if isinstance(form, Free)]
    with files.explained("model.safetensors"):
        prepared = trained.prepare(graph) if free else graph
        if any(len(form(prepared)) != prepared.pattern.num_entries for form in free):
            raise ValueError("it does not have one weight for each edge of the graph")
    if (held_out := trained.held_out) is not None and len(held_out.node):
        with files.explained(LABELS):
            if int(held_out.node[-1]) >= graph.num_nodes or not graph.labeled.cpu()[held_out.node].all():
                raise ValueError("held-out nodes are not labelled nodes of the graph")
            if held_out.fold is not None and not torch.equal(held_out.node, parts.train.nonzero().squeeze(1)):
                raise ValueError("held-out nodes are not the training nodes of run.json")


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
            raise ValueError(
                f"{self.folder} was saved by several processes: start them again, with torchrun and --resume"
            )
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
    if files is None or PLAN not in files.files or files.is_old:
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
