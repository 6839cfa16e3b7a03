"""Many trainings as one study: the same splits for every row, each training done once, in several processes.

A `Cell` is one row of a table on one data set. Its trainings are tasks of a ledger (`runs.jsonl` in the study's folder),
so an interrupted study goes on where it stopped, and tables that share a cell share its trainings.
"""

from __future__ import annotations

import ast
import hashlib
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
from gcn_lpa import train as training
from gcn_lpa.engine.devices import choose_device
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import predict_proba, scores
from gcn_lpa.recipes import PAPER, Recipe, recipe_for
from gcn_lpa.runs.ledger import Ledger, Progress, Task
from gcn_lpa.splits import split
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.tables.datasets import load
from gcn_lpa.train import learn_whole

DATASETS = tuple(PAPER)
SPLITS = {"cora": 20, "citeseer": 20}  # all others: 10
QUICK_EPOCHS = {"pubmed": 60, "coauthor-cs": 20, "coauthor-phy": 10}  # all others as the recipe says
ENGINE = (  # the modules that the numbers of a training depend on
    *(f"engine/{name}" for name in ("csr", "reference", "cpu_kernels", "gpu_kernels", "gpu_fused", "backends")),
    *(f"engine/{name}" for name in ("counter_random", "sparse", "fused")),
    *("intake", "graph", "splits", "recipes", "edges", "model", "train", "predict"),
    *(f"tables/{name}" for name in ("datasets", "planetoid")),
    *(f"methods/{name}" for name in ("linear", "propagation", "networks", "rivals", "registry")),
)


Run = dict[str, Any]  # a line of the ledger, with the name of its row


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
        report: told of every training.
    """

    out: Path
    splits: int | None = None
    quick: bool = False
    split: str = "uniform"
    datasets: tuple[str, ...] = DATASETS
    methods: tuple[str, ...] = ()
    device: str = "auto"
    workers: int | None = None
    root: str | None = None
    report: Callable[[Progress], None] | None = None
    notes: list[str] = field(default_factory=list)  # what was reduced

    def __post_init__(self) -> None:
        if unknown := [name for name in self.datasets if name not in DATASETS]:
            raise ValueError(f"unknown data set {unknown[0]!r}; the paper has {', '.join(DATASETS)}")
        if self.split not in ("uniform", "authors"):
            raise ValueError(f"unknown split {self.split!r}; there are uniform and authors")
        if self.splits is not None and self.splits < 1:
            raise ValueError(f"splits = {self.splits}; there is at least one")
        self.out, self.device = Path(self.out), str(choose_device(self.device))
        if self.workers is None:
            self.workers = 8 if self.device.startswith("cuda") else os.cpu_count() or 1
        self.ledger = Ledger(self.out / "runs.jsonl")

    def num_splits(self, dataset: str, most: int | None = None) -> int:
        """How many splits a data set gets where the full study has `most`."""
        if self.splits is not None:
            return self.splits
        full = SPLITS.get(dataset, 10) if self.split == "uniform" else 10
        return 1 if self.quick else min(full, most or full)

    def chosen(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that --dataset and --method ask for; a method is the name of a row, or of the method of several."""
        cells = list(cells)
        rows = {cell.row for cell in cells}
        if unknown := [name for name in self.methods if name not in rows | {cell.method for cell in cells}]:
            raise ValueError(f"unknown row {unknown[0]!r}; there are {', '.join(sorted(rows))}")
        named = [cell for cell in cells if cell.row in self.methods]
        named += [cell for cell in cells if cell.method in self.methods and cell.method not in rows]
        return [cell for cell in (named if self.methods else cells) if cell.dataset in self.datasets]

    def run(self, cells: Sequence[Cell], *, most: int | None = None, quick_epochs: int | None = None) -> list[Run]:
        """Every training of every cell, computed or found in the ledger."""
        tasks, rows = [], []
        for cell in cells:
            cell = self.shortened(cell, quick_epochs)
            for k in range(self.num_splits(cell.dataset, most)):
                tasks.append(task_of(cell, self.split, k))
                rows.append(cell.row)
        order = sorted(range(len(tasks)), key=lambda i: -cost(tasks[i]))  # the longest first, graph by graph
        work = partial(train_once, device=self.device, root=self.root, threads=self.threads)
        found = self.ledger.run([tasks[i] for i in order], work, workers=self.workers or 1, on_result=self.report)
        results = dict(zip(order, found, strict=True))
        return [{"row": rows[i], **results[i]} for i in range(len(tasks))]

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

    def reductions(self, result: Result) -> list[str]:
        """What is smaller in it than in the full study."""
        return [*(["one split"] if self.quick and self.splits is None and result.runs else []), *self.notes]

    @property
    def threads(self) -> int:
        return max(1, (os.cpu_count() or 1) // (self.workers or 1))

    def summaries(self, cells: Sequence[Cell], runs: Sequence[Run], reference: str | None = None) -> list[Summary]:
        return [summary(cell, runs, reference) for cell in cells]


def task_of(cell: Cell, kind: str, k: int) -> Task:
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


def cost(task: Task) -> float:
    """Which training is longer, roughly."""
    size = {"cora": 1.0, "citeseer": 1.1, "pubmed": 6.0, "coauthor-cs": 10.0, "coauthor-phy": 30.0}[task["dataset"]]
    return size * {"mlp": 1000.0, "lpa-reconstruction": 20.0, "lpa-sparse": 20.0}.get(task["method"], 1.0)


def train_once(task: Task, *, device: str, root: str | None, threads: int) -> dict[str, Any]:
    """Train and test one method on one split; what a line of the ledger says."""
    torch.set_num_threads(threads)
    graph = graph_of(task["dataset"], root)
    if task["split"] == "authors":
        graph = graph.with_unknown_as(0)
        parts = split(graph, kind="authors")
    else:
        parts = split(graph, seed=task["split_seed"])
    recipe = Cell(task["dataset"], "", task["method"], task["recipe"], task["changes"]).settings()
    start = time.perf_counter()
    model, run = learn_or_diverge(
        METHODS[task["method"]].build, graph, parts.train, parts.val, recipe,
        seed=task["seed"], device=device, threads=threads,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    probabilities = predict_proba(model, graph, recipe=recipe)
    test = scores(graph, parts.test, probabilities)
    return {
        "recipe_hash": recipe.hash(),
        "split_hash": parts.hash,
        "best_epoch": None if run is None else run.best_epoch,  # None: training diverged, and the best so far was kept
        "train_accuracy": scores(graph, parts.train, probabilities).accuracy,
        "val_accuracy": scores(graph, parts.val, probabilities).accuracy,
        "test_accuracy": test.accuracy,
        "test_macro_f1": test.macro_f1,
        "seconds": round(seconds, 3),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "versions": versions(),
        "code": code_hash(),
    }


def learn_or_diverge(build: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, training.Run | None]:
    """`learn`; where training diverges, the model at the best epoch before that, and no Run."""
    built: list[Any] = []

    def remember(*parts: Any) -> Any:
        built.append(build(*parts))
        return built[-1]

    try:
        return learn_whole(remember, *arguments, **options)
    except ValueError as error:
        if "training diverged" not in str(error):
            raise
        return built[-1], None


@lru_cache(maxsize=1)
def graph_of(dataset: str, root: str | None) -> Graph:
    return load(dataset, root)


@cache
def versions() -> str:
    found = storage.environment()
    return ", ".join(f"{name} {found[name]}" for name in ("gcn_lpa", "python", "torch", "numpy", "scipy"))


@cache
def code_hash() -> str:
    """Twelve hex digits that change with the code of ENGINE, but not with its layout, comments, docstrings and errors."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for module in ENGINE:
        tree = _Bare().visit(ast.parse((package / f"{module}.py").read_text(encoding="utf-8")))
        for node in tree.body:
            digest.update(f"{module} {_spelled(node)}".encode())
    return digest.hexdigest()[:12]


class _Bare(ast.NodeTransformer):
    """Takes away what no number depends on."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> None:
        return None


def _spelled(node: Any) -> str:
    """A syntax tree as text; unlike `ast.dump`, the same in every version of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(_spelled, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(f'{name}={_spelled(value)}' for name, value in fields)})"


def summary(cell: Cell, runs: Sequence[Run], reference: str | None = None) -> Summary:
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


@dataclass
class Result:
    """A table or figure: the text for people, the data behind it, and every training it is made of."""

    name: str
    title: str
    text: str  # Markdown, without the title
    data: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # pictures
    reduced: list[str] = field(default_factory=list)  # what is smaller than in the full study

    def markdown(self) -> str:
        pictures = [f"![{self.title}]({path.name})" for path in self.files if path.suffix == ".png"]
        reduced = [f"Reduced for a quick run: {'; '.join(self.reduced)}."] if self.reduced else []
        return "\n\n".join([f"# {self.title}", *reduced, self.text.strip(), *pictures, *self.origin()]) + "\n"

    def origin(self) -> list[str]:
        """Where the numbers come from."""
        if not self.runs:
            return []
        facts = {key: sorted({str(run[key]) for run in self.runs}) for key in ("device", "versions", "code")}
        hours = sum(run["seconds"] for run in self.runs) / 3600
        return [
            f"{len(self.runs):,} trainings, {hours:.2f} hours one after the other, on {', '.join(facts['device'])}; "
            f"{'; '.join(facts['versions'])}; code {', '.join(facts['code'])}."
        ]

    def write(self, out: Path) -> list[Path]:
        text, facts = out / f"{self.name}.md", out / f"{self.name}.json"
        storage.write_atomic(text, self.markdown().encode())
        content = {
            "name": self.name, "title": self.title, "reduced": self.reduced, "data": self.data,
            "environment": storage.environment(), "code": code_hash(), "runs": self.runs,
        }  # fmt: skip
        storage.write_json(facts, content)
        return [text, facts, *self.files]

    @classmethod
    def read(cls, out: Path, name: str) -> Result | None:
        """What `write` left in a folder, without its text and pictures; None where there is nothing."""
        path = out / f"{name}.json"
        if not path.is_file():
            return None
        found = storage.read_json(path)
        return cls(name, found["title"], "", found["data"], found["runs"], reduced=found["reduced"])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(header), "|".join(["---", *["---:"] * (len(header) - 1)]), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)
