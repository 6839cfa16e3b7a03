"""A run folder while its training goes on: what is to be done, how far each model has come, and who may use the folder.

checkpoint/plan.json             what is to be done
checkpoint/STAGE, STAGE-MEMBER   of each model that was begun: meta.json and tensors.safetensors

All of it is gone when the run is complete. The plan goes last: until then the run can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gcn_lpa.data.files import encode_json, holding
from gcn_lpa.epochs import Checkpoint
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import RUN_FILES, read_run
from gcn_lpa.runs.plan import Plan
from gcn_lpa.runs.storage import CHECKPOINT, MANIFEST, encode_tensors, inside

PLAN, META, TENSORS = "plan.json", "meta.json", "tensors.safetensors"


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
