"""A ledger of finished work: many small tasks, in several processes, none computed twice.

A task is a dict of JSON values that says all that its result depends on. Its result is another dict. Both are appended
as one line of a JSON Lines file the moment the result is there, so that what was killed goes on where it stopped.
"""

from __future__ import annotations

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

Task = dict[str, Any]
Result = dict[str, Any]
Work = Callable[[Task], Result]


class Ledger:
    """The file of finished tasks. Without a path nothing is kept."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.found: dict[str, Result] = {}
        if self.path is not None and self.path.exists():
            whole = self.path.read_bytes().splitlines(keepends=True)
            if whole and not whole[-1].endswith(b"\n"):
                whole.pop()  # cut off by a kill: that task is computed again
            for number, line in enumerate(whole, 1):
                self._read(line, number)

    def _read(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            self.found[task_key(entry["task"])] = entry["result"]
        except (ValueError, KeyError, TypeError) as error:
            shown = line.decode(errors="replace").rstrip()[:60]
            raise ValueError(
                f"{self.path}, line {number}: not a finished task ({shown!r}); remove the line to compute it again"
            ) from error

    def missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Those not computed yet, each once, in their order."""
        unknown = {task_key(task): task for task in tasks}
        return [task for key, task in unknown.items() if key not in self.found]

    def run(
        self,
        tasks: Sequence[Task],
        work: Work,
        *,
        workers: int = 1,
        on_result: Callable[[Progress], None] | None = None,
    ) -> list[Result]:
        """`{**task, **result}` for every task, in order; those in the file are read, the others computed.

        The first task that fails ends it, with an error that names the task; what was computed until then is kept.

        Args:
            work: a function of a module, since other processes import it.
            workers: processes; 1 computes here.
            on_result: told of each new result.
        """
        todo, start = self.missing(tasks), time.perf_counter()
        if todo and self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._end_the_last_line()
        for done, (task, result) in enumerate(_compute(todo, work, min(workers, len(todo))), 1):
            kept = self._keep(task, result)
            if on_result is not None:
                on_result(Progress(task, kept, done, len(todo), time.perf_counter() - start))
        return [{**task, **self.found[task_key(task)]} for task in tasks]

    def _keep(self, task: Task, result: Result) -> Result:
        """Append a finished task; returns its result as a later run will read it."""
        try:
            line = json.dumps({"task": task, "result": result})
        except TypeError as error:
            raise TypeError(f"task {task}: its result {result!r:.200} cannot be kept: {error}") from error
        if self.path is not None:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        kept: Result = json.loads(line)["result"]
        self.found[task_key(task)] = kept
        return kept

    def _end_the_last_line(self) -> None:
        """Cut off what a kill left of a line."""
        assert self.path is not None
        if self.path.exists() and (text := self.path.read_bytes()) and not text.endswith(b"\n"):
            with self.path.open("r+b") as file:
                file.truncate(text.rfind(b"\n") + 1)


@dataclass(frozen=True)
class Progress:
    """One new result, and how far the whole is: `done` of `total` new ones in so many seconds."""

    task: Task
    result: Result
    done: int
    total: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        return self.seconds / self.done * (self.total - self.done)

    def __str__(self) -> str:
        return f"{self.done} of {self.total}, {_duration(self.seconds)}, about {_duration(self.seconds_left)} left"


def task_key(task: Task) -> str:
    """A name for the task that does not depend on the order of its fields."""
    return hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:16]


def _compute(tasks: Sequence[Task], work: Work, workers: int) -> Iterator[tuple[Task, Result]]:
    if workers <= 1:
        for task in tasks:
            try:
                result = work(task)
            except Exception as error:
                raise _failure(task, error) from error
            yield task, result
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        waiting = {pool.submit(work, task): task for task in tasks}
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


def _collect(waiting: dict[Future[Result], Task]) -> Iterator[tuple[Task, Result]]:
    """Results as they come. After a failure nothing new is begun, but what was under way is still given."""
    failed: tuple[Task, Exception] | None = None
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


def _failure(task: Task, error: Exception) -> Exception:
    """The error of a task with its name. What a user can put right, such as a missing file, stays what it was; others are ours."""
    if isinstance(error, BrokenProcessPool):  # of all that were under way: it does not tell whose process it was
        return ChildProcessError(
            "a worker process was ended from outside, perhaps for lack of memory: try fewer workers"
        )
    kinds = (ValueError, OSError, ImportError, MemoryError)
    kind: type[Exception] = next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)
    return kind(f"task {json.dumps(task)} failed: {type(error).__name__}: {error}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
