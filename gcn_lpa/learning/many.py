"""One executor for many models: folds, members, splits.

On a GPU the models of one recipe are trained as one stack; trees have processes on the CPU there too. On a CPU several processes
train one model each at a time: two processes do in half the time what one does, where two threads wait for each other in all that
is not a product. Where a graph is so large that one model has all threads, or so small that processes are not worth their start,
models are trained one after the other. A model has the same bits in a process as here; in a stack the same to rounding.

Processes are forked: they have all that this one has in memory, and begin at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from gcn_lpa.engine.devices import SMALL, num_cpu_threads, num_threads
from gcn_lpa.learning.tasks import Job
from gcn_lpa.train import DivergedError, Epoch, Fit, Watch

FEWEST_NODES = 5000  # of all jobs together, that several processes are begun for: fewer train in seconds
FLOATS_PER_ROW, FLOATS_PER_EDGE = 30, 40  # that a training holds at most, roughly, beside a layer's width
Outcome = Fit | DivergedError | None  # None: interrupted before it had a best epoch


@dataclass(frozen=True)
class Outcomes:
    """What became of groups of jobs; a group that there was no time for is missing."""

    groups: dict[int, list[Outcome]]
    interrupted: bool = False


def fit_many(
    groups: Sequence[Sequence[Job]],
    *,
    device: torch.device,
    threads: int | None = None,
    watch: Watch | None = None,
    until: float | None = None,
    must_begin: bool = True,
) -> Outcomes:
    """Train all jobs; those of a group have one recipe. Ctrl-C ends it and gives what is done by then.

    Args:
        until: a time of `time.perf_counter`: a group that would end later, if it took as long as the longest before it, is left
            out; one that is fitted at once, if it would begin later.
        must_begin: the first group is always trained.
    """
    jobs = [job for group in groups for job in group]
    executor = _Executor(groups, device, watch or Watch(), until, must_begin)
    if executor.watch.on_plan is not None:
        executor.watch.on_plan([job.name for job in jobs])
    with num_threads(threads, layer=max(job.task.layer(job.recipe) for job in jobs)), warnings.catch_warnings():
        # scikit-learn's perceptron ends at Ctrl-C with a warning and what it has so far: here it ends with an error
        warnings.filterwarnings("error", message="Training interrupted by user")
        workers = num_workers(jobs, threads)
        try:
            if workers > 1:
                executor.in_processes(workers)
            else:
                executor.here()
        except Exception as error:
            if is_interruption(error):
                raise KeyboardInterrupt from None
            raise
    return Outcomes(executor.outcomes, executor.interrupted)


def is_interruption(error: BaseException | None) -> bool:
    """Whether an error was raised because of Ctrl-C, as by scikit-learn, whose trees fail at it with errors of many kinds."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def num_workers(jobs: Sequence[Job], threads: int | None = None) -> int:
    """How many processes train at a time: as many as there are threads, jobs, and room in memory; 1 where they do not pay."""
    first = max(jobs, key=lambda job: job.task.layer(job.recipe))
    graph, layer = first.task.prepared, first.task.layer(first.recipe)
    if is_soon_done(jobs) or layer >= SMALL or first.recipe.clusters or torch.cuda.is_available() or not can_fork():
        return 1
    needed = 4 * (FLOATS_PER_ROW * layer + FLOATS_PER_EDGE * graph.adjacency.num_entries)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(jobs), num_cpu_threads() if threads is None else threads, int(free / needed)))


def is_soon_done(jobs: Sequence[Job]) -> bool:
    """Whether processes would take longer to begin than jobs here; a graph has as many nodes in each."""
    return max(job.task.prepared.num_nodes for job in jobs) * len(jobs) < FEWEST_NODES


@dataclass(eq=False)
class _Executor:
    """What `fit_many` was given, and what became of it so far."""

    groups: Sequence[Sequence[Job]]
    device: torch.device
    watch: Watch
    until: float | None
    must_begin: bool
    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    interrupted: bool = False
    longest: float = 0.0  # seconds of a group

    def begins(self) -> Iterator[int]:
        """The groups that there is time for, each asked for when the one before is under way."""
        for number, group in enumerate(self.groups):
            expected = 0.0 if group[0].method.at_once else self.longest
            may_wait = bool(number) or not self.must_begin
            if may_wait and self.until is not None and time.perf_counter() + expected > self.until:
                continue
            self.outcomes[number] = [None] * len(group)
            yield number

    def is_done(self, number: int, k: int, outcome: Outcome) -> None:
        self.outcomes[number][k] = outcome
        if self.watch.on_done is not None:
            self.watch.on_done(self.groups[number][k].name)

    def here(self) -> None:
        """One job after the other, or on a GPU those of a group as one stack."""
        try:
            for number in self.begins():
                start = time.perf_counter()
                for k, outcome in enumerate(self.outcomes_of(self.groups[number])):
                    self.is_done(number, k, outcome)
                    if isinstance(outcome, Fit) and outcome.run.interrupted:
                        raise KeyboardInterrupt
                self.longest = max(self.longest, time.perf_counter() - start)
        except KeyboardInterrupt:
            self.interrupted = True

    def outcomes_of(self, group: Sequence[Job]) -> Iterator[Outcome]:
        if self.device.type == "cuda":
            from gcn_lpa.learning.stacks import are_stackable, fit_stack  # where there is no GPU, nobody needs it

            if are_stackable(group):
                yield from fit_stack(group, self.device, self.watch)
                return
            if group[0].method.at_once and len(group) > 1 and not is_soon_done(group) and can_fork():
                yield from self.beside_gpu(group)
                return
        for job in group:
            outcome: Outcome
            try:
                outcome = job.run(self.device, self.watch)
            except DivergedError as error:
                outcome = error
            yield outcome

    def in_processes(self, workers: int) -> None:
        """Each process has one job at a time."""
        began: dict[int, float] = {}

        def tasks() -> Iterator[tuple[int, int]]:
            for number in self.begins():
                began[number] = time.perf_counter()
                yield from ((number, k) for k in range(len(self.groups[number])))

        def done(task: tuple[int, int], outcome: Outcome) -> None:
            self.is_done(*task, outcome)
            self.longest = max(self.longest, time.perf_counter() - began[task[0]])

        self.interrupted = self.crew(lambda task: self.groups[task[0]][task[1]], done).run(tasks(), workers)

    def beside_gpu(self, group: Sequence[Job]) -> Sequence[Outcome]:
        """Jobs of a method that takes no steps, such as trees: each learns on the CPU in a process of its own."""
        outcomes: list[Outcome] = [None] * len(group)
        if self.crew(group.__getitem__, outcomes.__setitem__).run(iter(range(len(group))), min(len(group), num_cpu_threads())):
            raise KeyboardInterrupt
        return outcomes

    def crew(self, job_of: Callable[[Any], Job], done: Callable[[Any, Outcome], None]) -> Crew:
        """Processes that train the jobs that their tasks name; the weights of a model come back as tensors."""
        if any(group[0].method.at_once for group in self.groups):
            import sklearn.ensemble  # noqa: F401  here, once: each process would import it for itself

        def work(task: Any, tell: Callable[[Epoch], None]) -> Any:
            job, watch = job_of(task), dataclasses.replace(self.watch, on_epoch=lambda _, epoch: tell(epoch))
            try:
                with num_threads(1):  # torch's threads do not survive a fork: waiting for them would never end
                    fit = job.run(torch.device("cpu"), watch)
            except DivergedError as error:
                return error
            return fit.model.state_dict(), fit.run, job.kept

        def hear(task: Any, epoch: Epoch) -> None:
            if self.watch.on_epoch is not None:
                self.watch.on_epoch(job_of(task).name, epoch)

        def received(task: Any, result: Any) -> None:
            if isinstance(result, DivergedError):
                return done(task, result)
            (state, run, kept), job = result, job_of(task)
            model = job.built()
            model.load_state_dict(state)
            if job.kept is not None:
                job.kept.left, job.kept.states = kept.left, kept.states
            return done(task, Fit(model.eval().to(self.device), run))

        return Crew(work, hear, received)


PATIENCE = 0.2  # seconds between two looks for Ctrl-C
LOST = "a process of this training was ended from outside, perhaps for lack of memory: try --threads 1"
Work = Callable[[Any, Callable[[Any], None]], Any]  # (a task, tell) -> its result; `tell` sends news of it on the way


class Crew:
    """Forked processes that do tasks.

    Ctrl-C, or a KeyboardInterrupt of `hear`, asks for the end: `tell` then raises KeyboardInterrupt in every process. What the
    tasks under way still return is done as well.
    """

    def __init__(self, work: Work, hear: Callable[[Any, Any], None], done: Callable[[Any, Any], None]) -> None:
        """In this process `hear(task, news)` is called for what a task tells, and `done(task, result)` when it is done."""
        self.work, self.hear, self.done = work, hear, done
        self.is_asked_to_end = False

    def run(self, tasks: Iterator[Any], num_workers: int) -> bool:
        """Do all tasks; the next one is asked for when a process is free. The first error of a task is raised.

        Returns:
            Whether it was asked to end.
        """
        interrupted, under_way = False, dict[Any, Any]()  # the task of each process that has one
        with _noting_ctrl_c(self), contextlib.ExitStack() as ends:
            processes = [_forked(self.work, ends) for _ in range(num_workers)]
            while True:
                if self.is_asked_to_end and not interrupted:
                    interrupted = True
                    for process in processes:
                        _send(process, None)
                for process in processes:
                    if process not in under_way and not interrupted and (task := next(tasks, None)) is not None:
                        under_way[process] = task
                        _send(process, task)
                if not under_way:
                    return interrupted
                ready: Any
                for ready in wait(list(under_way), PATIENCE):
                    try:
                        kind, content = pickle.loads(ready.recv_bytes())
                    except (EOFError, ConnectionResetError):
                        raise ChildProcessError(LOST) from None
                    if kind == "news":
                        self.take(under_way[ready], content)
                        continue
                    task = under_way.pop(ready)
                    if kind == "failed":
                        raise content
                    if kind == "done":
                        self.done(task, content)

    def take(self, task: Any, news: Any) -> None:
        if not self.is_asked_to_end:
            try:
                self.hear(task, news)
            except KeyboardInterrupt:
                self.is_asked_to_end = True


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


def _forked(work: Work, ends: contextlib.ExitStack) -> Connection:
    """The way to a new process, which does tasks and is killed when `ends` is left."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside other threads
        process.start()
    theirs.close()
    for end in (ours.close, process.close, process.join, process.kill):  # the last one comes first
        ends.callback(end)
    return ours


def _send(process: Connection, task: Any) -> None:
    """A task, or None to ask for the end. That a process has ended is met where its result is read."""
    with contextlib.suppress(BrokenPipeError):
        process.send_bytes(pickle.dumps(task))


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


def _serve(work: Work, connection: Connection) -> None:
    """Do one task after the other, until there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the first one passes it on
    end_with_parent()

    def tell(news: Any) -> None:
        connection.send_bytes(pickle.dumps(("news", news)))
        if connection.poll():  # while a task is under way, the only message is the request to stop
            raise KeyboardInterrupt

    while (task := pickle.loads(connection.recv_bytes())) is not None:
        try:
            message = pickle.dumps(("done", work(task, tell)))
        except KeyboardInterrupt:
            message = pickle.dumps(("stopped", None))
        except Exception as error:
            message = _failure(error)
        connection.send_bytes(message)


def _failure(error: Exception) -> bytes:
    """The message of an error, with its traceback as a note; of one that cannot be pickled and read again, its text."""
    note = f"In a process of this training:\n{''.join(traceback.format_exception(error))}"
    error.add_note(note)
    try:
        message = pickle.dumps(("failed", error))
        pickle.loads(message)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(note)
        return pickle.dumps(("failed", plain))
    return message
