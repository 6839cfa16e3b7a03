"""Compare methods on the same splits of a graph: means, paired differences, time and memory, and what is noise."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcn_lpa.data.checks import check_seed, meant
from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.devices import choose_device, environment, num_threads
from gcn_lpa.graph import Graph
from gcn_lpa.learning.choose_recipe import choose_recipe
from gcn_lpa.learning.learn import learn_many
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import Recipe
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.train import num_epochs

LAST = 0.05  # share of the epochs: a best epoch among them says that more would have been better
BEST = "best"  # the recipe, beside the names of methods


@dataclass(frozen=True)
class Record:
    """One method on one split."""

    method: str
    split: str  # `Split.hash`
    seed: int  # of the first weights and dropout
    accuracy: float  # on the test nodes
    macro_f1: float
    val_accuracy: float | None
    best_epoch: int
    seconds: float  # of preparing, training and choosing the epoch; where splits are trained together, of all by their number


@dataclass(frozen=True)
class Memory:
    """Of a process that did nothing but train one method, in MB; Python, torch and the graph are in it.

    Splits that are trained as one stack are in memory together; of processes that it forked, the largest counts.
    """

    before: float  # resident when training began
    peak: float  # highest resident
    gpu_peak: float | None  # highest that torch had in use on the GPU


@dataclass(frozen=True)
class ComparisonRow:
    """One method over all splits."""

    method: str
    accuracy: Mean
    macro_f1: Mean
    difference: Difference | None  # None for the reference itself
    seconds: float  # the median of a split
    memory: Memory | None  # None where methods shared a process
    note: str


@dataclass(frozen=True)
class Comparison:
    """Methods on the same splits. Intervals are over random splits of this graph: they say nothing about other graphs."""

    graph: str
    reference: str
    rows: tuple[ComparisonRow, ...]
    records: tuple[Record, ...]
    recipes: dict[str, Recipe]
    device: str
    environment: dict[str, Any]
    unused: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # changes: the methods without them

    @property
    def num_splits(self) -> int:
        return len(self.records) // len(self.rows)

    @property
    def verdict(self) -> str:
        """One sentence: who is better or worse than the reference, and whose difference is inside the noise."""
        if self.num_splits < 2:
            return "One split cannot tell a difference from noise; compare on at least 10."
        groups: dict[str, list[str]] = {"better": [], "worse": [], "inside the noise": []}
        for row in self.rows:
            if (gain := row.difference) is not None:
                verdict = "inside the noise" if gain.is_noise else "better" if gain.mean > 0 else "worse"
                groups[verdict].append(f"{row.method} ({gain})")
        parts = [f"{verdict}: {', '.join(names)}" for verdict, names in groups.items() if names]
        differences = "; ".join(parts) or "nothing to compare with it"
        least = 2 / 2**self.num_splits
        few = f" So few splits cannot bring the signed-rank test below p = {least:.2g}." if least > 0.05 else ""
        return f"Against {self.reference}, in points of accuracy on {self.num_splits} splits: {differences}.{few}"

    @property
    def not_converged(self) -> tuple[str, ...]:
        """The methods of which, on one split or more, the last epoch and not a lack of progress ended a training whose best
        epoch was in its last 5 %: more epochs might have been better.
        """
        names = []
        for record in self.records:
            recipe = self.recipes.get(record.method)
            if recipe is None or not {"epochs", "patience"} <= set(METHODS[recipe.method].fields):
                continue  # no epoch is chosen
            last, best = num_epochs(recipe), record.best_epoch
            if best > (1 - LAST) * last and (not recipe.patience or best + recipe.patience >= last):
                names.append(record.method)
        return tuple(dict.fromkeys(names))

    def to_dict(self) -> dict[str, Any]:
        derived = {"verdict": self.verdict, "splits": self.num_splits, "not_converged": self.not_converged}
        return {**derived, **dataclasses.asdict(self)}


def compare(
    graph: Graph,
    methods: Sequence[str],
    *,
    splits: int | Sequence[Split] = 10,
    seed: int = 0,
    reference: str | None = None,
    recipe: str | Recipe = "default",
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    isolate: bool = True,
    on_record: Callable[[Record], None] | None = None,
) -> Comparison:
    """Train and test every method on the same splits.

    Split k is `split(graph, seed=seed + k)`, uniform 60/20/20; seed + k also seeds the model. Every method chooses its
    epoch on the validation nodes and is scored once on the test nodes.

    Args:
        methods: keys of METHODS, or "best", the recipe.
        splits: how many, or the splits themselves.
        reference: the method that the differences are taken to; "gcn", or the first one where gcn is not compared.
        recipe: that of gcn-lpa and gcn-same: "default", "paper", "official" or a Recipe. Beside "paper" and "official" all
            others have the settings they were published with, else those of `Method.fair`.
        changes: fields to set in the recipes of all methods that use them, e.g. {"epochs": 50}.
        threads: of the CPU; None leaves torch's setting.
        isolate: give each method a process of its own, in which alone its memory can be measured.
        on_record: called with every result as it comes.
    """
    recipes = recipes_of(graph, methods, recipe, changes or {})
    reference = reference or ("gcn" if "gcn" in recipes else next(iter(recipes)))
    if reference not in recipes:
        raise ValueError(f"the reference {reference!r} is not among the methods {', '.join(recipes)}")
    check_seed(seed)
    parts = [split(graph, seed=seed + k) for k in range(splits)] if isinstance(splits, int) else list(splits)
    if not parts:
        raise ValueError("there is no split to compare on; ask for at least one")
    if not all(part.train.any() and part.test.any() for part in parts):
        raise ValueError(
            f"{graph.name!r} has {int(graph.labeled.sum()):,} labelled nodes: too few to learn from some and score the others"
        )
    where = str(choose_device(device))
    threads = threads or torch.get_num_threads()
    records: list[Record] = []
    memories: dict[str, Memory | None] = {}
    for name, settings in recipes.items():
        trial = Trial(graph, name, settings, tuple(parts), seed, where, threads)
        memories[name] = None
        for result in run_apart(trial) if isolate else run_here(trial):
            if isinstance(result, Memory):
                memories[name] = result
                continue
            records.append(result)
            if on_record is not None:
                on_record(result)
    rows = tuple(_row(name, settings, records, reference, memories[name]) for name, settings in recipes.items())
    unused = {}
    for field, value in (changes or {}).items():
        if names := tuple(name for name, settings in recipes.items() if getattr(settings, field) != value):
            unused[field] = names
    return Comparison(graph.name, reference, rows, tuple(records), recipes, where, environment(), unused)


def recipes_of(
    graph: Graph, methods: Sequence[str], recipe: str | Recipe, changes: Mapping[str, Any]
) -> dict[str, Recipe]:
    """The settings of each method on this graph: see `compare`."""
    names = (*METHODS, BEST)
    if unknown := [name for name in methods if name not in names]:
        raise ValueError(f"unknown method {unknown[0]!r}; there are {', '.join(names)}{meant(unknown[0], names)}")
    if not methods:
        raise ValueError(f"there is no method to compare; there are {', '.join(names)}")
    ours = choose_recipe(graph, graph.labeled, recipe) if isinstance(recipe, str) else recipe
    settings_of = {
        name: choose_recipe(graph, graph.labeled, BEST) if name == BEST else METHODS[name].beside(ours, recipe)
        for name in methods
    }
    unused = {name: METHODS[settings.method].unused(settings, changes) for name, settings in settings_of.items()}
    if nobody := [field for field in changes if all(field in fields for fields in unused.values())]:
        raise ValueError(f"{nobody[0]} = {changes[nobody[0]]!r}: none of the methods {', '.join(methods)} uses it")
    return {
        name: settings.replace(**{field: value for field, value in changes.items() if field not in unused[name]})
        for name, settings in settings_of.items()
    }


@dataclass(frozen=True)
class Trial:
    """One method on all splits."""

    graph: Graph
    method: str
    recipe: Recipe
    splits: tuple[Split, ...]
    seed: int
    device: str
    threads: int


def run_here(trial: Trial) -> Iterator[Record]:
    """Train on all splits, side by side where `learn_many` can, and test."""
    with num_threads(trial.threads):
        start, seeds = time.perf_counter(), [trial.seed + k for k in range(len(trial.splits))]
        parts = [(part.train, part.val) for part in trial.splits]
        models = learn_many(trial.graph, parts, trial.recipe, seeds=seeds, device=trial.device)
        seconds = (time.perf_counter() - start) / len(models)
        for seed, part, trained in zip(seeds, trial.splits, models, strict=True):
            scores = evaluate(trained, trial.graph, part.test)
            yield Record(
                method=trial.method,
                split=part.hash,
                seed=seed,
                accuracy=scores.accuracy,
                macro_f1=scores.macro_f1,
                val_accuracy=trained.run.best.val_accuracy,
                best_epoch=trained.run.best_epoch,
                seconds=seconds,
            )


def run_apart(trial: Trial) -> Iterator[Record | Memory]:
    """The same in a process of its own, which reports its memory at the end."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from gcn_lpa.insight.compare import work; work()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    num_records = 0
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # ended before it had read all: see below
            pickle.dump(trial, stdin)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):  # the end, also in the middle of a result
            while True:
                result = pickle.load(process.stdout)
                if isinstance(result, Exception):
                    raise result
                num_records += isinstance(result, Record)
                yield result
        if process.wait() != 0 or num_records < len(trial.splits):
            raise ChildProcessError(
                f"the process that trained {trial.method} ended with code {process.returncode}, after {num_records} of "
                f"{len(trial.splits)} splits"
            )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def work() -> None:
    """The other end of `run_apart`: a pickled Trial on stdin, its pickled results or an exception on stdout."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing else may be written there
    trial: Trial = pickle.load(sys.stdin.buffer)
    try:
        before = resident_memory()
        for record in run_here(trial):
            pickle.dump(record, out)
            out.flush()
        after = resident_memory()
        if before is not None and after is not None:
            gpu = torch.cuda.max_memory_allocated() / 1e6 if trial.device.startswith("cuda") else None
            pickle.dump(Memory(before[0], after[1], gpu), out)
    except Exception as error:  # sent as the built-in exception that it is: others may not be pickled
        kind: type[Exception] = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        pickle.dump(kind(str(error)), out)
    out.flush()


def resident_memory() -> tuple[float, float] | None:
    """Resident memory of this process now, and at its highest or that of a process it forked, in MB; None: not known here.

    Linux's VmHWM, since its ru_maxrss starts at that of the parent process.
    """
    try:
        import resource
    except ImportError:
        return None
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
        return now, max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return peak, peak


def _row(name: str, recipe: Recipe, records: Sequence[Record], reference: str, memory: Memory | None) -> ComparisonRow:
    here = [record for record in records if record.method == name]
    accuracy = np.array([record.accuracy for record in here])
    gain = accuracy - np.array([record.accuracy for record in records if record.method == reference])
    return ComparisonRow(
        method=name,
        accuracy=mean_of(accuracy),
        macro_f1=mean_of(np.array([record.macro_f1 for record in here])),
        difference=None if name == reference else Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain)),
        seconds=float(np.median([record.seconds for record in here])),
        memory=memory,
        note="the recipe best" if name == BEST else METHODS[name].note_on(recipe),
    )
