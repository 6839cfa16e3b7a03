"""Tasks shared out among forked processes, which have all that this one has in memory and begin at once.

Threads would wait for each other: on a small graph, Python between two products takes longer than the products.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

Work = Callable[[Any, Callable[[Any], None]], Any]  # (a task, tell) -> its result; `tell` sends news of it on the way
PATIENCE = 0.2  # seconds between two looks for Ctrl-C
LOST = "a process of this training was ended from outside, perhaps for lack of memory: try --threads 1"


def can_fork() -> bool:
    """Only Linux forks a process that has used its libraries safely, and a daemon of multiprocessing may have no children."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def end_with_parent() -> None:
    """End this process when its parent ends, however that happens: it would compute on, and then wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Crew:
    """Forked processes that do tasks.

    Ctrl-C, or a KeyboardInterrupt of `hear`, asks for the end: `tell` then raises KeyboardInterrupt in every process. What the
    tasks under way still return is among the results.
    """

    def __init__(
        self,
        work: Work,
        workers: int,
        hear: Callable[[Any, Any], None] = lambda task, news: None,
        done: Callable[[Any, Any], None] = lambda task, result: None,
    ) -> None:
        """In this process `hear(task, news)` is called for what a task tells, and `done(task, result)` when it is done."""
        self.work, self.num_workers, self.hear, self.done = work, workers, hear, done
        self.results: dict[Any, Any] = {}  # of the tasks that are done
        self.is_asked_to_end = self.interrupted = False

    def run(self, tasks: Iterator[Any]) -> None:
        """Do all tasks; the next one is asked for when a process is free. The first error of a task is raised."""
        with _noting_ctrl_c(self), contextlib.ExitStack() as ends:
            members = []
            for _ in range(self.num_workers):
                members.append(_Member(self.work))
                ends.callback(members[-1].end)
            self.share_out(tasks, members)

    def share_out(self, tasks: Iterator[Any], members: Sequence[_Member]) -> None:
        while True:
            if self.is_asked_to_end and not self.interrupted:
                self.interrupted = True
                for member in members:
                    member.stop()
            for member in members:
                if member.task is None and not self.interrupted and (task := next(tasks, None)) is not None:
                    member.begin(task)
            busy = {member.connection: member for member in members if member.task is not None}
            if not busy:
                return
            for connection in wait(list(busy), PATIENCE):
                self.receive(busy[connection])  # type: ignore[index]

    def receive(self, member: _Member) -> None:
        task = member.task
        try:
            kind, content = pickle.loads(member.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise ChildProcessError(LOST) from None
        if kind == "news":
            if not self.is_asked_to_end:
                try:
                    self.hear(task, content)
                except KeyboardInterrupt:
                    self.is_asked_to_end = True
            return
        member.task = None
        if kind == "failed":
            raise content
        if kind == "done":
            self.results[task] = content
            self.done(task, content)


@contextlib.contextmanager
def _noting_ctrl_c(crew: Crew) -> Iterator[None]:
    """In place of a KeyboardInterrupt, which could come while half a message is read; a second Ctrl-C raises it."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        crew.is_asked_to_end = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Member:
    """One forked process, seen from this one."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.task: Any = None
        self.process = context.Process(target=_serve, args=(work, theirs), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside other threads
            self.process.start()
        theirs.close()

    def begin(self, task: Any) -> None:
        self.task = task
        try:
            self.connection.send_bytes(pickle.dumps(task))
        except BrokenPipeError:
            raise ChildProcessError(LOST) from None

    def stop(self) -> None:
        """Ask for the end; a process that has ended is met where its result is read."""
        with contextlib.suppress(BrokenPipeError):
            self.connection.send_bytes(pickle.dumps(None))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


def _serve(work: Work, connection: Connection) -> None:
    """Do one task after the other, until there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the first one passes it on
    end_with_parent()

    def send(kind: str, content: Any) -> None:
        connection.send_bytes(pickle.dumps((kind, content)))

    def tell(news: Any) -> None:
        send("news", news)
        if connection.poll():  # nothing comes before the task is done but the wish to end
            raise KeyboardInterrupt

    while (task := pickle.loads(connection.recv_bytes())) is not None:
        try:
            send("done", work(task, tell))
        except KeyboardInterrupt:
            send("stopped", None)
        except Exception as error:
            send("failed", _sendable(error))


def _sendable(error: Exception) -> Exception:
    """The error, or where that cannot be pickled and read again, what it says."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
