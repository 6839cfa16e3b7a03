"""A ledger of finished work: many small jobs, in several processes, none computed twice by the same code.

A job is a dict of JSON values that says everything its outcome depends on but the code. Its outcome is another dict. Both
are appended as one line of a JSON Lines file as soon as the outcome is there, so an interrupted study continues where it
stopped. Each outcome carries the hash of the code that computed it. A ledger reads the outcomes of one code version:
lines of another stay in the file and are not returned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcn_lpa.files import holding
from gcn_lpa.runs.code_version import code_hash

Job = dict[str, Any]
Outcome = dict[str, Any]
Work = Callable[[Job], Outcome]


class Ledger:
    """The file of finished jobs, as far as one code version computed them.

    Args:
        path: without it nothing is kept.
        code: the code version whose outcomes are read; None for this code. The outcomes of another can only be read.
    """

    def __init__(self, path: Path | str | None = None, *, code: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.code = code_hash() if code is None else code
        self.found: dict[str, Outcome] = {}
        self._read()

    def _read(self) -> None:
        if self.path is None or not self.path.exists():
            return
        whole = self.path.read_bytes().splitlines(keepends=True)
        if whole and not whole[-1].endswith(b"\n"):
            whole.pop()  # cut off by a kill: that job is computed again
        for number, line in enumerate(whole, 1):
            self._read_line(line, number)

    def _read_line(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            key, outcome = job_key(entry["task"]), entry["result"]
            if outcome.get("code") == self.code:
                self.found[key] = outcome
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            shown = line.decode(errors="replace").rstrip()[:60]
            raise ValueError(
                f"{self.path}, line {number}: not a finished job ({shown!r}); remove the line to compute it again"
            ) from error

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Those not computed yet, each once, in their order."""
        unknown = {job_key(job): job for job in jobs}
        return [job for key, job in unknown.items() if key not in self.found]

    def run(
        self,
        jobs: Sequence[Job],
        work: Work,
        *,
        workers: int = 1,
        on_outcome: Callable[[Progress], None] | None = None,
    ) -> list[Outcome]:
        """`{**job, **outcome}` for every job, in order; those in the file are read, the others computed.

        The first job that fails ends it, with an error that names the job; what was computed until then is kept.

        Args:
            work: a function of a module, since other processes import it.
            workers: processes; 1 computes here.
            on_outcome: called with each new outcome.
        """
        todo, start = self.missing(jobs), time.perf_counter()
        if todo and self.code != code_hash():
            raise ValueError(
                f"{self.path} has no outcome of {json.dumps(todo[0])} by code {self.code}, and {len(todo)} of "
                f"{len(jobs)} jobs are missing; this is code {code_hash()}, which cannot compute them as that code would"
            )
        with self._held() if todo else contextlib.nullcontext():
            todo = self.missing(todo)  # another process may have computed some since the file was read
            for done, (job, outcome) in enumerate(_compute(todo, work, min(workers, len(todo))), 1):
                kept = self._keep(job, outcome)
                if on_outcome is not None:
                    on_outcome(Progress(job, kept, done, len(todo), time.perf_counter() - start))
        return [{**job, **self.found[job_key(job)]} for job in jobs]

    def _keep(self, job: Job, outcome: Outcome) -> Outcome:
        """Append a finished job; returns its outcome as a later run will read it."""
        try:
            line = json.dumps({"task": job, "result": {**outcome, "code": self.code}})
        except TypeError as error:
            raise TypeError(f"job {job}: its outcome {outcome!r:.200} cannot be kept: {error}") from error
        if self.path is not None:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        kept: Outcome = json.loads(line)["result"]
        self.found[job_key(job)] = kept
        return kept

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """The folder of the file for this process alone; what others have added is read, what a kill left of a line cut off."""
        if self.path is None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with holding(self.path.parent):
            self._read()
            text = self.path.read_bytes() if self.path.exists() else b""
            if text and not text.endswith(b"\n"):
                with self.path.open("r+b") as file:
                    file.truncate(text.rfind(b"\n") + 1)
            yield


@dataclass(frozen=True)
class Progress:
    """One new outcome, and how far the whole is: `done` of `total` new ones in so many seconds."""

    job: Job
    outcome: Outcome
    done: int
    total: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        return self.seconds / self.done * (self.total - self.done)

    def __str__(self) -> str:
        return f"{self.done} of {self.total}, {_duration(self.seconds)}, about {_duration(self.seconds_left)} left"


def job_key(job: Job) -> str:
    """A name for the job that does not depend on the order of its fields."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]


def _compute(jobs: Sequence[Job], work: Work, workers: int) -> Iterator[tuple[Job, Outcome]]:
    if workers <= 1:
        for job in jobs:
            try:
                outcome = work(job)
            except Exception as error:
                raise _failure(job, error) from error
            yield job, outcome
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            yield from _collect(waiting)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """A process whose parent was killed would compute on, and then wait for ever. Ctrl-C ends it at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _collect(waiting: dict[Future[Outcome], Job]) -> Iterator[tuple[Job, Outcome]]:
    """Outcomes as they come. After a failure nothing new is begun, but what was under way is still yielded."""
    failed: tuple[Job, Exception] | None = None
    for future in as_completed(waiting):
        if future.cancelled():
            continue
        if (error := future.exception()) is None:
            yield waiting[future], future.result()
        elif not isinstance(error, Exception):
            raise error  # Ctrl-C
        elif failed is None:
            failed = waiting[future], error
            for other in waiting:
                other.cancel()
    if failed is not None:
        raise _failure(*failed) from failed[1]


def _failure(job: Job, error: Exception) -> Exception:
    """The error of a job with its name. What a user can put right, such as a missing file, keeps its class; others are ours."""
    if isinstance(error, BrokenProcessPool):  # it does not say whose process it was
        return ChildProcessError(
            "a worker process was ended from outside, perhaps for lack of memory: try fewer workers"
        )
    kinds = (ValueError, OSError, ImportError, MemoryError)
    kind: type[Exception] = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
    return kind(f"job {json.dumps(job)} failed: {type(error).__name__}: {error}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
