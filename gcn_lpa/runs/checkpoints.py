"""A run folder while its training goes on: what is to be done, how far each model has come, and who may use the folder.

checkpoint/plan.json             what is to be done
checkpoint/STAGE, STAGE-MEMBER   of each model that was begun: meta.json, and tensors.safetensors or a file of each rank

All of it is gone when the run is complete. The plan goes last: until then the run can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gcn_lpa.data.files import encode_json, holding
from gcn_lpa.epochs import Checkpoint
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import RUN_FILES, read_run
from gcn_lpa.runs.plan import Plan
from gcn_lpa.runs.storage import CHECKPOINT, MANIFEST, RunFolder, encode_tensors, inside

if TYPE_CHECKING:
    from gcn_lpa.scale.ranks import Ranks

PLAN, META, TENSORS = "plan.json", "meta.json", "tensors.safetensors"


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of one model in a run folder, as `train.Checkpoints`."""

    run: Path
    name: str  # of the stage, and of the member

    @property
    def folder(self) -> Path:
        return inside(inside(self.run, CHECKPOINT), self.name)

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        storage.replace(self.folder, {TENSORS: encode_tensors(tensors), META: encode_json(meta)})

    def latest(self) -> Checkpoint | None:
        found = storage.read(self.folder)
        if found is not None and shard_name(0) in found.files:
            raise ValueError(
                f"{self.folder} was saved by several processes: start them again, with torchrun and --resume"
            )
        return None if found is None else checkpoint_of(found, TENSORS)


def shard_name(rank: int) -> str:
    """The file of a checkpoint that one of several processes writes."""
    return f"rank-{rank}.safetensors"


def checkpoint_of(found: RunFolder, tensors: str) -> Checkpoint:
    """A checkpoint whose tensors are in the file of this name."""
    saved = found.tensors(tensors)
    with found.explained(tensors):
        if broken := [name for name, tensor in saved.items() if not tensor.isfinite().all()]:
            raise ValueError(f"{broken[0]} holds numbers that are not finite")
    return Checkpoint(saved, found.read(META, dict[str, Any]), found.folder / tensors, found.folder / META)


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
        goes_on = resume and is_unfinished(folder)
        if goes_on and read_plan(folder) != plan:
            raise ValueError(f"{folder} holds an unfinished run with other settings or data; choose another folder")
        storage.check_free(folder, RUN_FILES)
        if not goes_on:
            _require_room(folder, overwrite)
            write_plan(folder, plan)
        try:
            yield
        except Exception:  # not Ctrl-C: such a run can be resumed
            if not goes_on and not any((folder / CHECKPOINT).glob(f"*/{MANIFEST}")):
                clear(folder)
                if is_new and not os.listdir(folder):
                    os.rmdir(folder)
            raise


def _require_room(folder: Path, overwrite: bool) -> None:
    """Refuse, before the work, a folder that a new run may not be put into."""
    if not (has_plan := is_unfinished(folder)):
        clear(folder)  # what a process that was killed before it had written its plan has left
    if not overwrite and os.listdir(folder):
        state = (
            f"holds an unfinished run: `gcn-lpa train --resume --out {folder}` goes on with it"
            if has_plan
            else "is not empty"
        )
        raise ValueError(f"{folder} {state}; choose another folder, or --overwrite to start anew")
    clear(folder)
    if os.path.lexists(folder / CHECKPOINT):
        raise ValueError(f"{folder / CHECKPOINT} is not from a run; choose another folder, or move it away")


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


def write_plan(folder: Path, plan: Plan) -> None:
    storage.replace(inside(folder, CHECKPOINT), {PLAN: encode_json(plan.to_dict())})


def read_plan(folder: Path) -> Plan:
    found = storage.read(inside(folder, CHECKPOINT))
    if found is None or PLAN not in found.files:
        command = f"gcn-lpa train NAME_OR_FOLDER --out {shlex.quote(str(folder))} --overwrite"
        raise ValueError(f"{folder / CHECKPOINT}: no plan that this version of gcn-lpa wrote; start anew: {command}")
    plan: Plan = found.read(PLAN, Plan)
    return plan


def clear(folder: Path) -> None:
    """Remove what only an unfinished run needs, and nothing of anybody else."""
    place = inside(folder, CHECKPOINT)
    inner = [inside(place, name) for name in (os.listdir(place) if place.is_dir() else ())]
    for path in (*filter(Path.is_dir, inner), place):
        entries = storage.listed(path)
        if not entries or entries.keys() & {PLAN, META}:  # else it is a folder of another kind, such as a finished run
            storage.discard(path)


class RankCheckpoints:
    """The checkpoints of processes that train together, as `train.Checkpoints`: a shard of each rank; rank 0 commits them all."""

    def __init__(self, ranks: Ranks, place: CheckpointFolder) -> None:
        self.ranks, self.place = ranks, place

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        folder, ranks = self.place.folder, self.ranks
        ranks.first(lambda: storage.begin(folder))
        entries = self._entries(storage.write_part(folder, shard_name(ranks.rank), storage.encode_tensors(tensors)))

        def commit() -> None:
            storage.commit(folder, {**entries, META: storage.write_part(folder, META, encode_json(meta))})

        ranks.first(commit)

    def _entries(self, shard: storage.Entry) -> dict[str, storage.Entry]:
        """What the manifest says of the shards of all ranks, given this one's: once all of them are on the disk."""
        row = [shard["size"], *bytes.fromhex(shard["sha256"])]
        rows = torch.cat(self.ranks.collected(torch.tensor([row], dtype=torch.int64))).tolist()
        return {
            shard_name(rank): {"sha256": bytes(digest).hex(), "size": size} for rank, (size, *digest) in enumerate(rows)
        }

    def latest(self) -> Checkpoint | None:
        shard = shard_name(self.ranks.rank)
        found = storage.read(self.place.folder, (shard, META))
        return None if found is None else checkpoint_of(found, shard)
