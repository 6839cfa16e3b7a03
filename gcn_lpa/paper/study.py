"""Many trainings as one study: the same splits for every row, each training done once, in several processes.

A `Cell` is one row of a table on one data set. Its trainings are jobs of a ledger (`runs.jsonl` in the study's folder),
so an interrupted study continues where it stopped, and tables that share a cell share its trainings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcn_lpa import storage
from gcn_lpa.engine.devices import choose_device
from gcn_lpa.graph import Graph
from gcn_lpa.learning import learn_whole
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.paper.exhibits import Exhibit, LedgerLine
from gcn_lpa.predict import predict_proba, scores
from gcn_lpa.recipes import PAPER, Recipe, recipe_for
from gcn_lpa.runs.ledger import Job, Ledger, Outcome, Progress
from gcn_lpa.splits import split
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.tables.datasets import load_known
from gcn_lpa.train import DivergedError

FIRST_EDITION = "a5d3f6de4a39"  # the code version of the trainings in results/
PAPER_DATASETS = tuple(PAPER)
SPLITS = {"cora": 20, "citeseer": 20}  # all others: 10
QUICK_EPOCHS = {"pubmed": 60, "coauthor-cs": 20, "coauthor-phy": 10}  # all others as the recipe says


@dataclass(frozen=True)
class Cell:
    """One row on one data set: a method, a recipe of the paper and what is changed in it."""

    dataset: str
    row: str
    method: str
    recipe: str = "paper"  # or "official"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> Recipe:
        return METHODS[self.method].settings(recipe_for(self.recipe, self.dataset)).replace(**self.changes)


@dataclass(frozen=True)
class Summary:
    """One cell over its splits."""

    cell: Cell
    accuracy: Mean  # on test nodes
    deviation: float | None  # standard deviation over the splits
    train_accuracy: Mean
    difference: Difference | None  # to the reference on the same splits; None for the reference itself
    num_runs: int


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
        code: the code version whose trainings are read from the ledger; None for this code.
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
        self.ledger = Ledger(self.out / "runs.jsonl", code=self.code)

    def num_splits(self, dataset: str, most: int | None = None) -> int:
        """How many splits a data set gets where the full study has `most`."""
        if self.splits is not None:
            return self.splits
        full = SPLITS.get(dataset, 10) if self.split == "uniform" else 10
        return 1 if self.quick else min(full, most or full)

    def chosen(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that --dataset and --method select; --method names a row, or the method of several rows."""
        cells = list(cells)
        rows = {cell.row for cell in cells}
        if unknown := [name for name in self.methods if name not in rows | {cell.method for cell in cells}]:
            raise ValueError(f"unknown row {unknown[0]!r}; there are {', '.join(sorted(rows))}")
        named = [cell for cell in cells if cell.row in self.methods]
        named += [cell for cell in cells if cell.method in self.methods and cell.method not in rows]
        return [cell for cell in (named if self.methods else cells) if cell.dataset in self.datasets]

    def run(
        self, cells: Sequence[Cell], *, most: int | None = None, quick_epochs: int | None = None
    ) -> list[LedgerLine]:
        """Every training of every cell, computed or found in the ledger."""
        jobs, rows = [], []
        for cell in cells:
            cell = self.shortened(cell, quick_epochs)
            for k in range(self.num_splits(cell.dataset, most)):
                jobs.append(job_of(cell, self.split, k))
                rows.append(cell.row)
        order = sorted(range(len(jobs)), key=lambda i: -cost(jobs[i]))  # the longest first, graph by graph
        work = partial(train_once, device=self.device, root=self.root, threads=self.threads)
        found = self.ledger.run([jobs[i] for i in order], work, workers=self.workers or 1, on_outcome=self.report)
        lines = dict(zip(order, found, strict=True))
        return [{"row": rows[i], **lines[i]} for i in range(len(jobs))]

    def shortened(self, cell: Cell, quick_epochs: int | None) -> Cell:
        """The cell as a quick study trains it."""
        epochs = QUICK_EPOCHS.get(cell.dataset, quick_epochs) if self.quick else None
        if epochs is None or cell.method in ("lr", "lpa"):
            return cell
        slow = cell.method in ("lpa-reconstruction", "lpa-sparse")  # an epoch reads the features of all neighbours
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

    def summaries(
        self, cells: Sequence[Cell], runs: Sequence[LedgerLine], reference: str | None = None
    ) -> list[Summary]:
        return [summary(cell, runs, reference) for cell in cells]


def job_of(cell: Cell, kind: str, k: int) -> Job:
    """The k-th training of a cell: on the split of seed k, or on the authors' split, with the first weights of seed k."""
    return {
        "dataset": cell.dataset,
        "method": cell.method,
        "recipe": cell.recipe,
        "changes": dict(sorted(cell.changes.items())),
        "split": kind,
        "split_seed": k if kind == "uniform" else None,
        "seed": k,
    }


def cost(job: Job) -> float:
    """Roughly how long the training takes; a GCN on Cora is 1."""
    size = {"cora": 1.0, "citeseer": 1.1, "pubmed": 6.0, "coauthor-cs": 10.0, "coauthor-phy": 30.0}[job["dataset"]]
    return size * {"mlp": 1000.0, "lpa-reconstruction": 20.0, "lpa-sparse": 20.0}.get(job["method"], 1.0)


def train_once(job: Job, *, device: str, root: str | None, threads: int) -> Outcome:
    """Train and test one method on one split: the outcome of a job."""
    torch.set_num_threads(threads)
    graph = graph_of(job["dataset"], root)
    if job["split"] == "authors":
        graph = graph.with_unknown_as(0)
        parts = split(graph, kind="authors")
    else:
        parts = split(graph, seed=job["split_seed"])
    recipe = Cell(job["dataset"], "", job["method"], job["recipe"], job["changes"]).settings()
    start = time.perf_counter()
    diverged = False
    try:
        trained = learn_whole(graph, parts.train, parts.val, recipe, seed=job["seed"], device=device, threads=threads)
    except DivergedError as error:  # the model at the best epoch before that
        if error.trained is None:
            raise
        trained, diverged = error.trained, True
    seconds = time.perf_counter() - start
    probabilities, names = predict_proba(trained, graph, raw=True), trained.class_names
    test = scores(graph, parts.test, probabilities, names)
    return {
        "recipe_hash": recipe.hash(),
        "split_hash": parts.hash,
        "best_epoch": None if diverged else trained.run.best_epoch,  # None: the best before training diverged
        "train_accuracy": scores(graph, parts.train, probabilities, names).accuracy,
        "val_accuracy": scores(graph, parts.val, probabilities, names).accuracy,
        "test_accuracy": test.accuracy,
        "test_macro_f1": test.macro_f1,
        "seconds": round(seconds, 3),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "versions": versions(),
    }


@lru_cache(maxsize=1)
def graph_of(dataset: str, root: str | None) -> Graph:
    return load_known(dataset, root)


@cache
def versions() -> str:
    found = storage.environment()
    return ", ".join(f"{name} {found[name]}" for name in ("gcn_lpa", "python", "torch", "numpy", "scipy"))


def summary(cell: Cell, runs: Sequence[LedgerLine], reference: str | None = None) -> Summary:
    """The mean of a cell, and its difference to the row `reference` of the same data set, split by split."""
    own, base = (
        [run for run in runs if run["row"] == row and run["dataset"] == cell.dataset] for row in (cell.row, reference)
    )
    accuracy, difference = np.array([run["test_accuracy"] for run in own]), None
    if base and reference != cell.row:
        assert [run["split_hash"] for run in own] == [run["split_hash"] for run in base], "not the same splits"
        gain = accuracy - np.array([run["test_accuracy"] for run in base])
        difference = Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain))
    return Summary(
        cell=cell,
        accuracy=mean_of(accuracy),
        deviation=float(accuracy.std(ddof=1)) if len(own) > 1 else None,
        train_accuracy=mean_of(np.array([run["train_accuracy"] for run in own])),
        difference=difference,
        num_runs=len(own),
    )
