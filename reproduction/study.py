"""Many trainings as one study: the same splits for every row, each training done once, in several processes.

A `Cell` is one row of a table on one data set. Its trainings are jobs of a ledger (`runs.jsonl` in the study's folder),
so an interrupted study continues where it stopped, and tables that share a cell share its trainings. Those of one cell
are trained as one stack where their method allows it (`learn_many`): the same first weights and random bits as one by
one, weights that agree to rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.devices import choose_device, environment
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import PAPER, recipe_of_paper
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.train import DivergedError
from reproduction.code_version import study_hash
from reproduction.data import authors_split, graph_of, with_unknown_as
from reproduction.exhibits import Exhibit, LedgerLine
from reproduction.ledger import Job, Ledger, Outcome, Progress, job_key
from reproduction.methods import settings_of
from reproduction.recipes import StudyRecipe
from reproduction.training import Learned, in_library, learn_many, learn_once

PAPER_DATASETS = tuple(PAPER)
SPLITS = {"cora": 20, "citeseer": 20}  # all others: 10
QUICK_EPOCHS = {"pubmed": 60, "coauthor-cs": 20, "coauthor-phy": 10}  # all others as the recipe says
STACKED = (
    "gcn-lpa",
    "gcn-same",
    "gcn",
    "jk-net",
    "lpa-leave-one-out",
)  # methods of the library that `learn_many` can stack
SLOW = (
    "lpa-reconstruction",
    "lpa-sparse",
    "graphsage-sampled",
)  # an epoch reads features of many neighbours, or has many steps
DEEP, INITIALISATIONS = 5, 3  # on Cora the rounding of a device moves so many layers by points: see `Study.seeds`


@dataclass(frozen=True)
class Cell:
    """One row on one data set: a method, a recipe of the paper and what is changed in it."""

    dataset: str
    row: str
    method: str
    recipe: str = "paper"  # or "official"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> StudyRecipe:
        return settings_of(self.method, recipe_of_paper(self.recipe, self.dataset)).replace(**self.changes)


@dataclass(frozen=True)
class Grid:
    """The cells of a table or figure, and on how many splits they are trained."""

    cells: Sequence[Cell]
    most: int | None = None  # splits; None: as many as the full study has
    quick_epochs: int | None = None  # of a quick study, on data sets not in QUICK_EPOCHS


@dataclass(frozen=True)
class Summary:
    """One cell over its splits; where a split has several initialisations, over their means."""

    cell: Cell
    accuracy: Mean  # on test nodes
    deviation: float | None  # standard deviation over the splits
    train_accuracy: Mean
    difference: Difference | None  # to the reference on the same splits; None for the reference itself
    num_splits: int
    best_epoch: float | None  # median of the epochs chosen
    device: str


@dataclass
class Study:
    """Where and how thoroughly tables and figures are computed.

    Args:
        out: folder of the ledger and the results.
        splits: of every cell; None for as many as the full study has.
        quick: one split, and few epochs on the large graphs.
        split: "uniform", or "authors": the one split of the authors' code, with `splits` initialisations.
        workers: processes; None for what fits the device.
        report: called after every training.
        code: the code version whose trainings are read from the ledger, and none added; None for this code, which trains.
    """

    out: Path
    splits: int | None = None
    quick: bool = False
    split: str = "uniform"
    datasets: tuple[str, ...] = PAPER_DATASETS
    methods: tuple[str, ...] = ()
    device: str = "auto"
    workers: int | None = None
    root: str | None = None
    report: Callable[[Progress], None] | None = None
    code: str | None = None
    notes: list[str] = field(default_factory=list)  # what was reduced

    def __post_init__(self) -> None:
        if unknown := [name for name in self.datasets if name not in PAPER_DATASETS]:
            raise ValueError(f"unknown data set {unknown[0]!r}; the paper has {', '.join(PAPER_DATASETS)}")
        if self.split not in ("uniform", "authors"):
            raise ValueError(f"unknown split {self.split!r}; there are uniform and authors")
        if self.splits is not None and self.splits < 1:
            raise ValueError(f"splits = {self.splits}; there is at least one")
        self.out, self.device = Path(self.out), str(choose_device(self.device))
        if self.workers is None:
            self.workers = 8 if self.device.startswith("cuda") else os.cpu_count() or 1
        self.ledger = Ledger(self.out / "runs.jsonl", code=self.code, this=study_hash())

    def num_splits(self, dataset: str, most: int | None = None) -> int:
        """How many splits a data set gets where the full study has `most`."""
        if self.splits is not None:
            return self.splits
        full = SPLITS.get(dataset, 10) if self.split == "uniform" else 10
        return 1 if self.quick else min(full, most or full)

    def seeds(self, cell: Cell, k: int) -> list[int]:
        """The seeds of the first weights on split k: three for deep networks on Cora, else one."""
        is_deep = cell.dataset == "cora" and cell.settings().gcn_layers >= DEEP
        several = is_deep and not self.quick and self.split == "uniform"
        return [k + 1000 * i for i in range(INITIALISATIONS if several else 1)]

    @property
    def only_reads(self) -> bool:
        """Whether a code version was named: its trainings are read, as many as there are, and none is added."""
        return self.code is not None

    def available(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells; where trainings are only read, those that have any."""
        return [cell for cell in cells if not self.only_reads or not self.ledger.missing([self.job(cell, 0)])]

    def by_text_if_quick(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells; of a quick study without the rows by the authors' code, which Tables 2 and 3 have."""
        if self.quick:
            self.note("the text's reading alone in Figures 3 and 4 and the tables of our own")
        return [cell for cell in cells if not self.quick or not cell.row.endswith(", official")]

    def chosen(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that --dataset and --method select; --method names a row, or the method of several rows."""
        cells = list(cells)
        rows = {cell.row for cell in cells}
        if unknown := [name for name in self.methods if name not in rows | {cell.method for cell in cells}]:
            raise ValueError(f"unknown row {unknown[0]!r}; there are {', '.join(sorted(rows))}")
        named = [cell for cell in cells if cell.row in self.methods]
        named += [cell for cell in cells if cell.method in self.methods and cell.method not in rows]
        return self.available(cell for cell in (named if self.methods else cells) if cell.dataset in self.datasets)

    def job(self, cell: Cell, k: int, seed: int | None = None) -> Job:
        return job_of(cell, self.split, k, seed)

    def trainings(self, grid: Grid) -> list[tuple[str, Job]]:
        """Every training of every cell, with the name of its row. All cells of a data set have the same splits."""
        cells = [self.shortened(cell, grid.quick_epochs) for cell in grid.cells]
        counts: dict[str, int] = {}
        for cell in cells:
            count = self.num_splits(cell.dataset, grid.most)
            if self.only_reads and self.splits is None:
                there = (k for k in range(count) if self.ledger.missing([self.job(cell, k)]))
                count = next(there, count)
            counts[cell.dataset] = min(count, counts.get(cell.dataset, count))
        jobs = [
            (cell.row, self.job(cell, k, seed))
            for cell in cells
            for k in range(counts[cell.dataset])
            for seed in self.seeds(cell, k)
        ]
        further = [job for _, job in jobs if job["seed"] >= 1000] if self.only_reads else []
        absent = set(map(job_key, self.ledger.missing(further)))
        return [(row, job) for row, job in jobs if job_key(job) not in absent]

    def run(self, grid: Grid) -> list[LedgerLine]:
        """Every training of every cell, computed or found in the ledger."""
        rows, jobs = zip(*self.trainings(grid), strict=True) if grid.cells else ((), ())
        self.train(jobs)
        return [{"row": row, **line} for row, line in zip(rows, self.ledger.read(jobs), strict=True)]

    def train(self, jobs: Sequence[Job], until: float | None = None) -> int:
        """Compute the trainings that are not in the ledger, stack by stack, the longest first; how many are left."""
        work = partial(train_stack, device=self.device, root=self.root, threads=self.threads)
        stacks = sorted(stacks_of(jobs), key=lambda stack: -cost(stack[0]) * len(stack))
        return self.ledger.fill(stacks, work, workers=self.workers or 1, on_outcome=self.report, until=until)

    def shortened(self, cell: Cell, quick_epochs: int | None) -> Cell:
        """The cell as a quick study trains it."""
        epochs = QUICK_EPOCHS.get(cell.dataset, quick_epochs) if self.quick else None
        if epochs is None or cell.method in ("lr", "lpa"):
            return cell
        slow = cell.method in SLOW
        epochs = max(1, epochs // 10) if slow else epochs
        self.note(f"{epochs} epochs on {cell.dataset}{f' for {cell.row}' if slow else ''}")
        return Cell(cell.dataset, cell.row, cell.method, cell.recipe, {**cell.changes, "epochs": epochs})

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def reductions(self, exhibit: Exhibit) -> list[str]:
        """What is smaller in it than in the full study."""
        return [*(["one split"] if self.quick and self.splits is None and exhibit.runs else []), *self.notes]

    @property
    def threads(self) -> int:
        return max(1, (os.cpu_count() or 1) // (self.workers or 1))

    def summaries(self, cells: Sequence[Cell], runs: Sequence[LedgerLine], reference: str | None = None) -> list[Summary]:
        return [summary(cell, runs, reference) for cell in cells]


def job_of(cell: Cell, kind: str, k: int, seed: int | None = None) -> Job:
    """A training of a cell: on the split of seed k, or on the authors' split; the first weights are of `seed`, or else of k."""
    return {
        "dataset": cell.dataset,
        "method": cell.method,
        "recipe": cell.recipe,
        "changes": dict(sorted(cell.changes.items())),
        "split": kind,
        "split_seed": k if kind == "uniform" else None,
        "seed": k if seed is None else seed,
    }


def cost(job: Job) -> float:
    """Roughly how long the training takes; a GCN on Cora is 1."""
    size = {"cora": 1.0, "citeseer": 1.1, "pubmed": 6.0, "coauthor-cs": 10.0, "coauthor-phy": 30.0}[job["dataset"]]
    method = {"mlp": 1000.0, "graphsage-sampled": 20.0, "lpa-reconstruction": 20.0, "lpa-sparse": 20.0}
    return size * method.get(job["method"], 1.0) * max(1.0, float(job["changes"].get("epochs", 200)) / 400)


def stacks_of(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs that differ in nothing but split and seed together, where their method can be stacked; all others alone."""
    stacks: dict[Any, list[Job]] = {}
    for number, job in enumerate(jobs):
        same = {name: value for name, value in job.items() if name not in ("split_seed", "seed")}
        stacks.setdefault(repr(same) if job["method"] in STACKED else number, []).append(job)
    return list(stacks.values())


def train_stack(jobs: Sequence[Job], *, device: str, root: str | None, threads: int) -> list[Outcome]:
    """Train and test the method of a cell on several splits at once: the outcomes of its jobs.

    A model that diverges is trained again by itself, since of a stack only the others are handed back.
    """
    recipe = settings(jobs[0])
    plain = in_library(recipe)
    if len(jobs) == 1 or plain is None:
        return [train_once(job, device=device, root=root, threads=threads) for job in jobs]
    torch.set_num_threads(threads)
    tasks = [Task.of(job, root) for job in jobs]
    parts, seeds = [(task.train, task.parts.val) for task in tasks], [job["seed"] for job in jobs]
    start = time.perf_counter()
    models = learn_many(tasks[0].graph, parts, plain, seeds=seeds, device=device, threads=threads)
    seconds = (time.perf_counter() - start) / len(jobs)
    return [
        train_once(job, device=device, root=root, threads=threads)
        if isinstance(learned, DivergedError)
        else task.outcome(learned, recipe, seconds, device)
        for job, task, learned in zip(jobs, tasks, models, strict=True)
    ]


def train_once(job: Job, *, device: str, root: str | None, threads: int) -> Outcome:
    """Train and test one method on one split: the outcome of a job."""
    torch.set_num_threads(threads)
    task, recipe = Task.of(job, root), settings(job)
    start = time.perf_counter()
    learned = learn_once(task.graph, task.train, task.parts.val, recipe, seed=job["seed"], device=device, threads=threads)
    return task.outcome(learned, recipe, time.perf_counter() - start, device)


def settings(job: Job) -> StudyRecipe:
    return Cell(job["dataset"], "", job["method"], job["recipe"], job["changes"]).settings()


@dataclass(frozen=True)
class Task:
    """What a job trains and is scored on."""

    graph: Graph
    parts: Split

    @classmethod
    def of(cls, job: Job, root: str | None) -> Task:
        """On the authors' split nodes without a label are class 0 in the scores, and have no label to learn from."""
        graph = graph_of(job["dataset"], root)
        if job["split"] != "authors":
            return cls(graph, split(graph, seed=job["split_seed"]))
        parts = authors_split(graph.num_nodes)
        return cls(with_unknown_as(graph, 0, parts.val | parts.test), parts)

    @property
    def train(self) -> Tensor:
        """The training nodes that have a label, [n]."""
        return self.parts.train & self.graph.labeled

    def outcome(self, learned: Learned, recipe: StudyRecipe, seconds: float, device: str) -> Outcome:
        test = learned.scores(self.graph, self.parts.test)
        return {
            "recipe_hash": recipe.hash(),
            "split_hash": self.parts.hash,
            "best_epoch": None if learned.diverged else learned.run.best_epoch,  # None: the best before training diverged
            "train_accuracy": learned.scores(self.graph, self.train).accuracy,
            "val_accuracy": learned.scores(self.graph, self.parts.val).accuracy,
            "test_accuracy": test.accuracy,
            "test_macro_f1": test.macro_f1,
            "seconds": round(seconds, 3),
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
            "versions": versions(),
        }


@cache
def versions() -> str:
    found = environment()
    return ", ".join(f"{name} {found[name]}" for name in ("gcn_lpa", "python", "torch", "numpy", "scipy"))


def by_split(runs: Sequence[LedgerLine], row: str, dataset: str, score: str = "test_accuracy") -> tuple[list[str], np.ndarray]:
    """The hash of each split of a cell, and its score there: the mean over the initialisations of a split.

    On the authors' split, which is one, each initialisation counts by itself.
    """
    own = [run for run in runs if run["row"] == row and run["dataset"] == dataset]
    groups: dict[Any, list[LedgerLine]] = {}
    for number, run in enumerate(own):
        groups.setdefault(number if run.get("split") == "authors" else run["split_hash"], []).append(run)
    hashes = [group[0]["split_hash"] for group in groups.values()]
    return hashes, np.array([np.mean([run[score] for run in group]) for group in groups.values()])


def difference_of(runs: Sequence[LedgerLine], row: str, other: str, dataset: str) -> np.ndarray:
    """Test accuracy of one row minus that of another, split by split."""
    (splits, own), (same, base) = (by_split(runs, name, dataset) for name in (row, other))
    assert splits == same, "not the same splits"
    return np.asarray(own - base)


def summary(cell: Cell, runs: Sequence[LedgerLine], reference: str | None = None) -> Summary:
    """The mean of a cell, and its difference to the row `reference` of the same data set, split by split."""
    here = [run for run in runs if run["row"] == cell.row and run["dataset"] == cell.dataset]
    _, accuracy = by_split(here, cell.row, cell.dataset)
    difference = None
    if reference != cell.row and any(run["row"] == reference and run["dataset"] == cell.dataset for run in runs):
        gain = difference_of(runs, cell.row, str(reference), cell.dataset)
        difference = Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain))
    epochs = [run["best_epoch"] for run in here if run.get("best_epoch") is not None]
    return Summary(
        cell=cell,
        accuracy=mean_of(accuracy),
        deviation=float(accuracy.std(ddof=1)) if len(accuracy) > 1 else None,
        train_accuracy=mean_of(by_split(here, cell.row, cell.dataset, "train_accuracy")[1]),
        difference=difference,
        num_splits=len(accuracy),
        best_epoch=float(np.median(epochs)) if epochs else None,
        device=", ".join(sorted({str(run.get("device", "")) for run in here})),
    )
