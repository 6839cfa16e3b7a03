"""Tables that the paper has not: two-step training, edge forms, label propagation alone, and what separates text and code.

Each is a `Grouped`: its cells, and a function from a `Study` to an `Exhibit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.recipes import PAPER
from reproduction.exhibits import Exhibit, markdown_table
from reproduction.study import PAPER_DATASETS, Cell, Grid, Study
from reproduction.tables import accuracy_matrix, effects_of, facts, reported, trained_as, verdict

LARGE = ("coauthor-cs", "coauthor-phy")


@dataclass(frozen=True)
class Grouped:
    """A table per data set with differences to one of its rows."""

    name: str
    title: str
    cells: Callable[[], list[Cell]]
    reference: str
    notes: str
    asked: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # as in `effects_of`

    def grid(self, study: Study) -> Grid:
        return Grid(study.chosen(study.by_text_if_quick(self.cells())), most=10)

    def __call__(self, study: Study) -> Exhibit:
        grid = self.grid(study)
        cells, runs, reference = grid.cells, study.run(grid), self.reference
        there = reference if any(cell.row == reference for cell in cells) else None
        found = study.summaries(cells, runs, there)
        parts = [accuracy_matrix(found), *effects_of(self.asked, "The LPA term", cells, runs)]
        for dataset in dict.fromkeys(cell.dataset for cell in cells):
            own = [one for one in found if one.cell.dataset == dataset]
            rows = [[one.cell.row, str(one.accuracy), *reported(one.difference), *trained_as(one)] for one in own]
            header = ["", "accuracy", f"to {reference}", "p", "training accuracy", "median epoch", "device"]
            parts += [
                f"## {dataset}, {own[0].num_splits} splits",
                markdown_table(header, rows),
                verdict(own, reference),
            ]
        text = "\n\n".join([*parts, self.notes])
        return Exhibit(self.name, self.title, text, {"rows": [facts(one) for one in found]}, runs)


def by_reading(row: str, method: str, changes: Mapping[str, Any]) -> list[Cell]:
    """A row by the text and by the authors' code, on every data set."""
    return [
        Cell(dataset, row if recipe == "paper" else f"{row}, official", method, recipe, changes)
        for recipe in ("paper", "official")
        for dataset in PAPER_DATASETS
    ]


def _by_dataset(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: PAPER_DATASETS.index(cell.dataset))


def two_step_cells() -> list[Cell]:
    """Edges and weights together, one after the other, or edges without LPA."""
    cells = [*by_reading("joint", "gcn-lpa", {}), *by_reading("two-step", "gcn-lpa", {"training": "two_step"})]
    cells += by_reading("λ = 0", "gcn-lpa", {"lpa_weight": 0.0})
    return _by_dataset([*cells, *(Cell(dataset, "fixed edges", "gcn-same") for dataset in PAPER_DATASETS)])


table_two_step = Grouped(
    "table-two-step",
    "Joint or two-step training",
    two_step_cells,
    reference="joint",
    notes="joint: Eq. (18). two-step: the edges by Eq. (15) alone, then the weights by Eq. (17). Settings of Table 4; official: "
    "by the authors' code.",
    asked={
        "the authors' code: joint minus two-step": ("joint, official", "two-step, official"),
        "the text: joint minus two-step": ("joint", "two-step"),
    },
)
FORMS = [form for form in EDGE_FORMS if form not in ("fixed", "cosine")]  # cosine is not of the paper


def edge_cells() -> list[Cell]:
    """Every edge form, without and with the LPA loss."""
    cells = [Cell(dataset, "fixed", "gcn-same") for dataset in PAPER_DATASETS]
    for form in FORMS:
        edges = {} if form == "free" else {"edges": form}  # as in Table 2, whose trainings are these
        cells += by_reading(form, "gcn-lpa", {**edges, "lpa_weight": 0.0})
        cells += by_reading(f"{form} + λ", "gcn-lpa", edges)
    return _by_dataset(cells)


table_edges = Grouped(
    "table-edges",
    "Edge forms with and without the LPA loss",
    edge_cells,
    reference="fixed",
    notes="Settings of Table 4; only the edge form and λ differ: 0, or the paper's in the rows with + λ. Its form is `free`. "
    "official: by the authors' code.",
    asked={
        f"{form}{said}: with the LPA loss, minus without": (f"{form} + λ{said}", f"{form}{said}")
        for said in (", official", "")
        for form in FORMS
    },
)


def lpa_cells() -> list[Cell]:
    """LPA alone, along edges given or learned for it."""
    names = {
        "lpa": "classical",
        "lpa-gaussian": "Gaussian kernel",
        "lpa-reconstruction": "reconstruction",
        "lpa-leave-one-out": "leave-one-out",
        "lpa-sparse": "sparse",
        "lpa-learned": "A* of Eq. (15)",
    }
    few = {"epochs": 50}  # an epoch of these reads every feature of every neighbour
    return [
        Cell(dataset, row, method, changes=few if row in ("reconstruction", "sparse") and dataset in LARGE else {})
        for dataset in PAPER_DATASETS
        for method, row in names.items()
    ]


table_lpa = Grouped(
    "table-lpa",
    "Label propagation alone",
    lpa_cells,
    reference="classical",
    notes="All predict by label propagation; see `reproduction.methods.study_methods` for the settings of each. "
    f"reconstruction and sparse have 50 epochs on {' and '.join(LARGE)}, else all that learn have 200.",
)


def why_cells() -> list[Cell]:
    """What separates the text's model from the authors' code, one change at a time."""
    cells = []
    for dataset in PAPER_DATASETS:
        recipe = PAPER[dataset]
        changes: dict[str, dict[str, Any]] = {
            "the text": {},
            "edges learn at lr / 10": {"edge_lr": recipe.lr / 10},
            "edges learn at lr / 100": {"edge_lr": recipe.lr / 100},
            "softplus mask": {"edge_mask": "softplus"},
            "L2 on log-weights": {"l2_edges": recipe.l2},
            "1,000 epochs": {"epochs": 1000},
            "last best epoch": {"select": "last_best"},
            "no reset, votes as logits": {"loss": "official"},
        }
        cells += [Cell(dataset, row, "gcn-lpa", changes=change) for row, change in changes.items()]
        cells += [Cell(dataset, "the authors' code", "gcn-lpa", "official"), Cell(dataset, "fixed edges", "gcn-same")]
    return cells


table_why = Grouped(
    "table-why",
    "What separates the text's model from the authors' code",
    why_cells,
    reference="the text",
    notes="Settings of Table 4 and the text's model, with one change each. The authors' code has three of them: L2 on log-weights, "
    "the later of two epochs that are equally good on validation nodes, and an LPA loss without reset whose votes are logits.",
)
