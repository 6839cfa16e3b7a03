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
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gcn_lpa.data.files import holding
from gcn_lpa.learning.many import end_with_parent
from reproduction.code_version import code_hash

Job = dict[str, Any]
Outcome = dict[str, Any]
Work = Callable[[Job], Outcome]
StackWork = Callable[[list[Job]], list[Outcome]]  # of jobs that are computed together


class Ledger:
    """The file of finished jobs, as far as one code version computed them.

    Args:
        path: without it nothing is kept.
        code: the code version whose outcomes are read; None for this code. The outcomes of another can only be read.
        this: the version of this code, where it is not the hash of all of it.
    """

    def __init__(self, path: Path | str | None = None, *, code: str | None = None, this: str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.this = code_hash() if this is None else this
        self.code = self.this if code is None else code
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
        self.fill([[job] for job in jobs], partial(_one, work), workers=workers, on_outcome=on_outcome)
        return self.read(jobs)

    def read(self, jobs: Sequence[Job]) -> list[Outcome]:
        """`{**job, **outcome}` for every job, in order; all of them have been computed."""
        return [{**job, **self.found[job_key(job)]} for job in jobs]

    def fill(
        self,
        stacks: Sequence[Sequence[Job]],
        work: StackWork,
        *,
        workers: int = 1,
        on_outcome: Callable[[Progress], None] | None = None,
        until: float | None = None,
    ) -> int:
        """Compute the jobs that are not in the file, those of a stack by one call of `work`; how many are left.

        Args:
            until: a time of `time.perf_counter` after which no further stack is begun.
        """
        todo, start = self._missing_of(stacks), time.perf_counter()
        if todo and self.code != self.this:
            raise ValueError(
                f"{self.path} has no outcome of {json.dumps(todo[0][0])} by code {self.code}, and {sum(map(len, todo))} of "
                f"{sum(map(len, stacks))} jobs are missing; this is code {self.this}, which cannot compute them as that code "
                "would"
            )
        with self._held() if todo else contextlib.nullcontext():
            todo = self._missing_of(todo)  # another process may have computed some since the file was read
            total, done = sum(map(len, todo)), 0
            for job, outcome in _compute(todo, work, min(workers, len(todo)), until):
                kept = self._keep(job, outcome)
                done += 1
                if on_outcome is not None:
                    on_outcome(Progress(job, kept, done, total, time.perf_counter() - start))
        return total - done

    def _missing_of(self, stacks: Sequence[Sequence[Job]]) -> list[list[Job]]:
        """Each stack without the jobs that are computed; none has a job twice, or one of another."""
        left = {job_key(job) for job in self.missing([job for stack in stacks for job in stack])}
        found = []
        for stack in stacks:
            mine = {key: job for job in stack if (key := job_key(job)) in left}
            left -= mine.keys()
            found.append(list(mine.values()))
        return [stack for stack in found if stack]

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


def _one(work: Work, stack: Sequence[Job]) -> list[Outcome]:
    """A stack of one job."""
    return [work(stack[0])]


def _compute(stacks: Sequence[list[Job]], work: StackWork, workers: int, until: float | None) -> Iterator[tuple[Job, Outcome]]:
    if workers <= 1:
        for stack in stacks:
            if until is not None and time.perf_counter() > until:
                return
            try:
                outcomes = work(stack)
            except Exception as error:
                raise _failure(stack[0], error) from error
            yield from zip(stack, outcomes, strict=True)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin_worker) as pool:
        waiting = {pool.submit(work, stack): stack for stack in stacks}
        try:
            yield from _collect(waiting, until)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C ends a worker at once, and so does the end of its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


def _collect(waiting: dict[Future[list[Outcome]], list[Job]], until: float | None) -> Iterator[tuple[Job, Outcome]]:
    """Outcomes as they come. After a failure, or that time, nothing new is begun, but what was under way is still yielded."""
    failed: tuple[Job, Exception] | None = None
    for future in as_completed(waiting):
        if future.cancelled():
            continue
        if (error := future.exception()) is None:
            yield from zip(waiting[future], future.result(), strict=True)
        elif not isinstance(error, Exception):
            raise error  # Ctrl-C
        elif failed is None:
            failed = waiting[future][0], error
        if failed is not None or (until is not None and time.perf_counter() > until):
            for other in waiting:
                other.cancel()
    if failed is not None:
        raise _failure(*failed) from failed[1]


def _failure(job: Job, error: Exception) -> Exception:
    """The error of a job with its name. What a user can put right, such as a missing file, keeps its class; others are ours."""
    if isinstance(error, BrokenProcessPool):  # it does not say whose process it was
        return ChildProcessError("a worker process was ended from outside, perhaps for lack of memory: try fewer workers")
    kinds = (ValueError, OSError, ImportError, MemoryError)
    kind: type[Exception] = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
    return kind(f"job {json.dumps(job)} failed: {type(error).__name__}: {error}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
