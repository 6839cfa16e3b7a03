"""A ledger of finished work: many small tasks, in several processes, none computed twice.

A task is a dict of JSON values that says all that its result depends on. Its result is another dict. Both are appended
as one line of a JSON Lines file the moment the result is there, so that what was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
            for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
                self._read(line, number)

    def _read(self, line: str, number: int) -> None:
        try:
            entry = json.loads(line)
            self.found[task_key(entry["task"])] = entry["result"]
        except (ValueError, KeyError, TypeError) as error:
            if self.path is not None and number < sum(1 for _ in self.path.open(encoding="utf-8")):
                raise ValueError(
                    f"{self.path}, line {number}: not a finished task ({line[:60]!r}); remove the line to compute it again"
                ) from error  # the last line may have been cut off by a kill: that task is computed again

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
            self._keep(task, result)
            if on_result is not None:
                on_result(Progress(task, result, done, len(todo), time.perf_counter() - start))
        return [{**task, **self.found[task_key(task)]} for task in tasks]

    def _keep(self, task: Task, result: Result) -> None:
        self.found[task_key(task)] = result
        if self.path is not None:
            with self.path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(json.dumps({"task": task, "result": result}) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def _end_the_last_line(self) -> None:
        """Cut off what a kill left of a line."""
        assert self.path is not None
        if self.path.exists() and (text := self.path.read_bytes()) and not text.endswith(b"\n"):
            with self.path.open("r+b") as file:
                file.truncate(text.rfind(b"\n") + 1)


class Progress:
    """One new result, and how far the whole is."""

    def __init__(self, task: Task, result: Result, done: int, total: int, seconds: float) -> None:
        self.task, self.result, self.done, self.total, self.seconds = task, result, done, total, seconds

    @property
    def seconds_left(self) -> float:
        return self.seconds / self.done * (self.total - self.done)


def task_key(task: Task) -> str:
    """A name for the task that does not depend on the order of its fields."""
    return hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:16]


def _compute(tasks: Sequence[Task], work: Work, workers: int) -> Iterator[tuple[Task, Result]]:
    if workers <= 1:
        for task in tasks:
            yield task, work(task)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
