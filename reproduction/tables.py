"""The tables of the paper and the theorems, each a function from a `Study` to an `Exhibit`.

Accuracies are in per cent on test nodes, ± the half-width of the 95 % t interval over splits. Differences are paired:
taken split by split, with the p-value of Wilcoxon's signed-rank test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcn_lpa.data.datasets import DATASETS, load
from gcn_lpa.data.describe import describe
from gcn_lpa.data.files import read_json
from gcn_lpa.data.splits import split
from gcn_lpa.recipes import LAYERS, PAPER, WITHOUT_FEATURES
from gcn_lpa.stats import Difference, mean_of, said_p
from reproduction.checks import Check
from reproduction.claims import BASELINES, READINGS, SETUP, TABLE1, TABLE2, TABLE2_METHODS, TABLE3, TABLE4_ROWS
from reproduction.data import graph_of
from reproduction.exhibits import Exhibit, LedgerLine, markdown_table
from reproduction.methods import study_methods
from reproduction.recipes import StudyRecipe
from reproduction.statistics import resampled_difference
from reproduction.study import (
    INITIALISATIONS,
    PAPER_DATASETS,
    Cell,
    Grid,
    Study,
    Summary,
    by_split,
    difference_of,
)
from reproduction.theorems import check_theorems
from reproduction.training import learn_once

Tuned = Mapping[str, Mapping[str, Mapping[str, Any]]]  # settings by data set and row
TO_THE_END: dict[str, Any] = {"epochs": 3000, "patience": 100}
CONVERGED: dict[str, dict[str, Any]] = {  # what is changed in a method's published settings
    "mlp": {"epochs": 3000},
    "lpa": {"propagation_steps": 1000},
    **dict.fromkeys(("gcn", "gat", "jk-net", "graphsage", "gcn-lpa"), TO_THE_END),
}
SAMPLED = {"pubmed": 40, "coauthor-cs": 40, "coauthor-phy": 20}  # epochs: some 800 batches, as in the 200 on Cora


def table1(study: Study) -> Exhibit:
    """Statistics of the five data sets."""
    rows, data = [], []
    for name in study.datasets:
        if DATASETS[name].find(study.root) is None:
            raise FileNotFoundError(f"the files of {name} were not found; name their folder with --root or GCN_LPA_DATA")
        found = describe(graph_of(name, study.root))  # refuses files that were changed
        paper = TABLE1[name]._asdict()
        ours = {count: getattr(found, count) for count in paper}
        data.append({"dataset": name, "ours": ours, "paper": paper})
        cells = [f"{ours[count]:,} / {paper[count]:,}" for count in list(ours)[:4]]
        rate = f"{100 * ours['intra_class_edge_rate']:.2f} / {100 * paper['intra_class_edge_rate']:.1f} %"
        rows.append([name, *cells, rate])
    text = "Ours / the paper's. The intra-class rate counts nodes without a label as class 0, as the paper does.\n\n"
    text += markdown_table(["", "nodes", "edges", "features", "classes", "intra-class edges"], rows)
    return Exhibit("table1", "Table 1: statistics of the data sets", text, {"rows": data})


def table2_cells(dataset: str, tuned: Tuned | None = None) -> list[Cell]:
    """The rows of Table 2 on one data set: the paper's eight, the same trained to the end and tuned, and variants that
    separate the effects.
    """
    few = min(2, PAPER[dataset].lpa_iterations)  # leave-one-out is exact for at most two
    by_rows = {"features": "row"}
    published = [Cell(dataset, name, name) for name in TABLE2_METHODS]
    official = Cell(dataset, "official", "gcn-lpa", "official")
    epochs = {"epochs": SAMPLED[dataset]} if dataset in SAMPLED else {}
    sampled = Cell(dataset, "graphsage, sampled", "graphsage-sampled", changes=epochs)
    return [
        *published,
        *(converged(cell) for cell in (*published, official) if cell.method in CONVERGED),
        *(cell for one in (*published, official) if (cell := tuned_cell(one, tuned)) is not None),
        sampled,
        Cell(dataset, "mlp, row-normalised", "mlp", changes=by_rows),
        Cell(dataset, "lr, row-normalised", "lr", changes=by_rows),
        Cell(dataset, "gcn, D⁻¹A", "gcn", changes={"normalization": "row"}),
        Cell(dataset, "gcn-same", "gcn-same"),
        Cell(dataset, "λ = 0", "gcn-lpa", changes={"lpa_weight": 0.0}),
        Cell(dataset, "L2 on edges", "gcn-lpa", changes={"l2_edges": PAPER[dataset].l2}),
        official,
        Cell(dataset, "λ = 0, official", "gcn-lpa", "official", {"lpa_weight": 0.0}),
        Cell(dataset, "held_out", "gcn-lpa", changes={"loss": "held_out"}),
        Cell(dataset, "leave_one_out", "gcn-lpa", changes={"loss": "leave_one_out", "lpa_iterations": few}),
    ]


def converged(cell: Cell) -> Cell:
    """The row trained to the end."""
    changes = {**cell.changes, **CONVERGED[cell.method]}
    return Cell(cell.dataset, f"{cell.row}, converged", cell.method, cell.recipe, changes)


def tuned_cell(cell: Cell, tuned: Tuned | None) -> Cell | None:
    """The row with the settings that a search on validation nodes found for it; None where there was none."""
    found = (tuned or {}).get(cell.dataset, {}).get(cell.row)
    if found is None:
        return None
    own = cell.settings()
    fields = {name: value for name, value in found.items() if name not in ("method", "origin")}
    study_methods()[cell.method].with_changes(own, fields)  # refuses what the method does not use
    changes = {name: value for name, value in fields.items() if getattr(own, name) != value}
    return Cell(cell.dataset, f"{cell.row}, tuned", cell.method, cell.recipe, changes)


def read_tuned(study: Study) -> Tuned | None:
    """`tuned.json` of the study's folder: settings, all or those that differ, by data set and row of Table 2."""
    path = study.out / "tuned.json"
    return read_json(path) if path.is_file() else None


ROWS2 = {
    "gcn-lpa": "the text: free edges, Eqs. (1), (2), (15) to (18), Table 4's settings (loss `literal`)",
    "gcn, converged": "…, converged: until 100 epochs bring no better validation accuracy, 3,000 at most (mlp: until "
    "scikit-learn stops, lpa: 1,000 iterations); lr as published has converged",
    "gcn, tuned": "…, tuned: the settings of tuned.json, found on validation nodes with the same budget for all",
    "graphsage, sampled": "in batches of 512, from a sample of 25 and 10 neighbours, as in its paper; some 800 batches, which "
    "are 200 epochs on Cora and Citeseer, 40 on Pubmed and Coauthor-CS, 20 on Coauthor-Phy",
    "mlp, row-normalised": "the perceptron on rows that sum to 1, as the GNNs read them",
    "lr, row-normalised": "the regression on rows that sum to 1: scikit-learn's default penalty is far too strong for them",
    "gcn, D⁻¹A": "Kipf & Welling's settings on the matrix of the paper",
    "gcn-same": "GCN-LPA's settings with fixed edges",
    "λ = 0": "GCN-LPA's settings with trainable edges and no LPA loss",
    "L2 on edges": "the text, with the L2 weight on the edges' parameters too, as in the authors' code",
    "official": "the authors' code: see docs/theory.md",
    "λ = 0, official": "the authors' code without its LPA loss",
    "held_out": "each step half of the training labels predict the other half",
    "leave_one_out": "each training node is scored as if it had no label; at most two LPA iterations",
}
LPA_TERM = {  # what is asked of the LPA loss, and the rows whose difference answers
    "the authors' code: with the LPA loss, minus without": ("official", "λ = 0, official"),
    "the authors' code, minus fixed edges": ("official", "gcn-same"),
    "the authors' code, minus the text without the LPA loss": ("official", "λ = 0"),
    "the text: with the LPA loss, minus without": ("gcn-lpa", "λ = 0"),
    "the text, minus fixed edges": ("gcn-lpa", "gcn-same"),
}


KINDS = {"": "as published", ", converged": "to the end", ", tuned": "tuned"}  # how the names of rows end
AGAINST = {  # both sides of one kind
    f"{name}, both {said}": (f"official{suffix}", f"{name}{suffix}") for suffix, said in KINDS.items() for name in BASELINES
}


def table2_grid(study: Study) -> Grid:
    tuned = read_tuned(study)
    cells = [cell for dataset in PAPER_DATASETS for cell in table2_cells(dataset, tuned)]
    if study.quick:
        study.note("no row that is trained to the end")
        cells = [cell for cell in cells if not cell.row.endswith(", converged")]
    return Grid(study.chosen(cells))


def table2(study: Study) -> Exhibit:
    """All methods on all data sets."""
    grid = table2_grid(study)
    cells, runs = grid.cells, study.run(grid)
    reference = "gcn" if any(cell.row == "gcn" for cell in cells) else None
    found = study.summaries(cells, runs, reference)
    parts = [
        beside_the_paper(found),
        *effects_of(LPA_TERM, "The LPA term", cells, runs),
        *effects_of(AGAINST, "The authors' code minus each baseline", cells, runs),
        *order_of(cells, runs),
    ]
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        rows = [table2_row(one) for one in found if one.cell.dataset == dataset]
        count = next(one.num_splits for one in found if one.cell.dataset == dataset)
        parts.append(f"## {dataset}, {count} {'splits' if study.split == 'uniform' else 'initialisations'}")
        header = ["", "ours", "paper", "gap", "to gcn", "p", "training accuracy", "median epoch", "device"]
        parts.append(markdown_table(header, rows))
        parts.append(verdict([one for one in found if one.cell.dataset == dataset], reference))
    if several := [one.cell.row for one in found if one.cell.dataset == "cora" and len(study.seeds(one.cell, 0)) > 1]:
        words = f"On Cora the mean of {INITIALISATIONS} initialisations a split: {', '.join(several)}."
        parts += [words] if any(run["seed"] >= 1000 for run in runs) else []
    parts.append("\n".join(f"- {row}: {said}" for row, said in ROWS2.items() if any(c.row == row for c in cells)))
    if study.split == "authors":
        parts.insert(0, "On the one split that the authors' code fixes (NumPy seed 234); intervals are over initialisations.")
    elif (splits := max(one.num_splits for one in found)) == 3:
        parts.insert(
            0,
            "Three repeats as in the paper: a 95 % t interval of three runs is 2.5 standard deviations wide on each side, "
            "3.5 times that of 20 runs.",
        )
    elif splits == 1:
        parts.insert(0, "One split: no interval, and no difference can be told from noise.")
    name = "table2" if study.split == "uniform" else "table2-authors"
    return Exhibit(name, "Table 2: accuracy of all methods", "\n\n".join(parts), {"rows": [facts(o) for o in found]}, runs)


def effects_of(asked: Mapping[str, tuple[str, str]], title: str, cells: Sequence[Cell], runs: Sequence[LedgerLine]) -> list[str]:
    """Differences between two rows on each data set, with both intervals; nothing where no pair of rows is there."""
    rows_of: dict[str, set[str]] = {}
    for cell in cells:
        rows_of.setdefault(cell.dataset, set()).add(cell.row)
    lines = []
    for question, (row, other) in asked.items():
        if any({row, other} <= there for there in rows_of.values()):
            each = (_effect(runs, row, other, name) if {row, other} <= rows_of[name] else "–" for name in rows_of)
            lines.append([question, *each])
    words = (
        "In points, ± the 95 % interval over these splits, in brackets that of Nadeau & Bengio, which allows for the training "
        "nodes that splits share."
    )
    if any(run.get("split") == "authors" for run in runs):
        words = "In points, ± the 95 % interval over initialisations."
    return [f"## {title}", markdown_table(["", *rows_of], lines), words] if lines else []


def _effect(runs: Sequence[LedgerLine], row: str, other: str, dataset: str) -> str:
    gain = 100 * difference_of(runs, row, other, dataset)
    usual, corrected = mean_of(gain), resampled_difference(gain, SETUP.test / SETUP.train)
    if usual.interval is None or any(run.get("split") == "authors" for run in runs):
        return f"{usual.mean:+.2f}" + ("" if usual.interval is None else f" ± {usual.interval:.2f}")
    return f"{usual.mean:+.2f} ± {usual.interval:.2f} ({corrected.interval:.2f})"


def order_of(cells: Sequence[Cell], runs: Sequence[LedgerLine]) -> list[str]:
    """How far our order of the paper's methods is the paper's, on each data set; nothing where one of them is missing."""
    datasets, lines = list(dict.fromkeys(cell.dataset for cell in cells)), []
    rows_of = {name: {cell.row for cell in cells if cell.dataset == name} for name in datasets}
    for suffix, kind in KINDS.items():
        for reading, said in READINGS.items():
            rows = [("official" if name == "gcn-lpa" and reading == "official" else name) for name in TABLE2_METHODS]
            each = []
            for dataset in datasets:
                there = [f"{row}{suffix}" if f"{row}{suffix}" in rows_of[dataset] else row for row in rows]
                is_whole = {*there} <= rows_of[dataset] and (there != rows or not suffix)
                each.append(rank_agreement(runs, there, dataset) if is_whole else "–")
            if {*each} != {"–"}:
                lines.append([f"{kind}, GCN-LPA by {said}", *each])
    words = (
        "Spearman's rank correlation between the paper's eight means and ours, with the 95 % interval of 2,000 resamplings of "
        "the splits: 1 is the paper's order, 0 says nothing of it. Where a method has no row of a kind, it is as published."
    )
    return ["## The order of the methods", markdown_table(["", *datasets], lines), words] if lines else []


def rank_agreement(runs: Sequence[LedgerLine], rows: Sequence[str], dataset: str) -> str:
    """The rank correlation with the paper's column, and its interval over resampled splits."""
    ours = np.stack([by_split(runs, row, dataset)[1] for row in rows])  # [methods, splits]
    paper = ranks(np.array([TABLE2[dataset][name].mean for name in TABLE2_METHODS]))

    def agreement(means: np.ndarray) -> float:
        return float(np.corrcoef(paper, ranks(means))[0, 1])

    found = agreement(ours.mean(axis=1))
    if ours.shape[1] < 2:
        return f"{found:.2f}"
    rng = np.random.default_rng(0)
    draws = [agreement(ours[:, rng.integers(ours.shape[1], size=ours.shape[1])].mean(axis=1)) for _ in range(2000)]
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{found:.2f} [{low:.2f}, {high:.2f}]"


def ranks(values: np.ndarray) -> np.ndarray:
    """From 1 for the smallest; equal values share the mean of their places."""
    return np.asarray((values[:, None] > values).sum(axis=1) + ((values[:, None] == values).sum(axis=1) + 1) / 2)


def accuracy_matrix(found: Sequence[Summary]) -> str:
    return markdown_table(["", *dict.fromkeys(one.cell.dataset for one in found)], _matrix(found))


def _matrix(found: Sequence[Summary]) -> list[list[str]]:
    datasets = dict.fromkeys(one.cell.dataset for one in found)
    by = {(one.cell.row, one.cell.dataset): str(one.accuracy) for one in found}
    return [[row, *(by.get((row, dataset), "–") for dataset in datasets)] for row in dict.fromkeys(one.cell.row for one in found)]


def beside_the_paper(found: Sequence[Summary]) -> str:
    """Our accuracies, those of one method below each other, and below them the paper's."""
    datasets, lines = list(dict.fromkeys(one.cell.dataset for one in found)), []
    ours = {line[0]: line for line in _matrix(found)}
    for name in TABLE2_METHODS:
        mine = [line for row, line in ours.items() if row == name or row.startswith(f"{name}, ")]
        if name == "gcn-lpa":
            mine = list(ours.values())  # what is left is GCN-LPA too
        for line in mine:
            lines.append(line)
            del ours[line[0]]
        if any(line[0] == name for line in mine):
            lines.append([f"*{name}, the paper*", *(f"*{TABLE2[dataset][name]}*" for dataset in datasets)])
    return markdown_table(["", *datasets], lines)


def table2_row(one: Summary) -> list[str]:
    paper = TABLE2[one.cell.dataset].get(one.cell.row if one.cell.row != "official" else "gcn-lpa")
    printed = ["–", "–"] if paper is None else [str(paper), f"{100 * one.accuracy.mean - paper.mean:+.1f}"]
    return [one.cell.row, str(one.accuracy), *printed, *reported(one.difference), *trained_as(one)]


def trained_as(one: Summary) -> list[str]:
    """The columns of a training: accuracy on its own labels, the median of the epochs chosen, the device."""
    has_epochs = one.best_epoch is not None and one.cell.method not in ("mlp", "lr", "lpa")
    return [str(one.train_accuracy), f"{one.best_epoch:.0f}" if has_epochs else "–", one.device]


def reported(difference: Difference | None) -> tuple[str, str]:
    """The two columns of a difference: itself, and its p-value."""
    return ("", "") if difference is None else (str(difference), said_p(difference.p_value))


def verdict(found: Sequence[Summary], reference: str | None) -> str:
    """A sentence: who is better or worse than the reference, and whose difference is inside the noise."""
    groups: dict[str, list[str]] = {"better": [], "worse": [], "inside the noise": []}
    for one in found:
        if one.difference is not None:
            kind = "inside the noise" if one.difference.is_noise else "better" if one.difference.mean > 0 else "worse"
            groups[kind].append(f"{one.cell.row} ({one.difference})")
    parts = [f"{kind}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Against {reference}: {'; '.join(parts)}." if parts else ""


def facts(one: Summary) -> dict[str, Any]:
    """A summary as JSON."""
    paper = TABLE2[one.cell.dataset].get(one.cell.row)
    return {
        "dataset": one.cell.dataset,
        "row": one.cell.row,
        "recipe_hash": one.cell.settings().hash(),
        "runs": one.num_splits,
        "accuracy": one.accuracy.mean,
        "interval": one.accuracy.interval,
        "deviation": one.deviation,
        "train_accuracy": one.train_accuracy.mean,
        "best_epoch": one.best_epoch,
        "device": one.device,
        "paper": None if paper is None else paper.mean / 100,
        "paper_interval": None if paper is None else paper.interval / 100,
        "difference": None if one.difference is None else vars(one.difference),
    }


TABLE3_LOSSES = {"official": "official", "literal": "paper"}  # how rows begin, and their recipe


def table3_grid(study: Study) -> Grid:
    cells = []
    for name, recipe in TABLE3_LOSSES.items():
        for percent in TABLE3:
            changes = {} if percent == 100 else {"lpa_ratio": percent / 100}
            cells.append(Cell("citeseer", f"{name} {percent} %", "gcn-lpa", recipe, changes))
    return Grid(cells, most=10)


def table3(study: Study) -> Exhibit:
    """Share of the labelled nodes that LPA may see, Citeseer."""
    grid = table3_grid(study)
    cells, runs, parts, data = grid.cells, study.run(grid), list[str](), []
    for name in TABLE3_LOSSES:
        of_loss = [cell for cell in cells if cell.row.startswith(name)]
        found = study.summaries(of_loss, runs, of_loss[0].row)
        rows = []
        for (percent, paper), one in zip(TABLE3.items(), found, strict=True):
            spread = "–" if one.deviation is None else f"{100 * one.deviation:.2f}"
            gap = f"{100 * one.accuracy.mean - paper.mean:+.1f}"
            rows.append([f"{percent} %", str(one.accuracy), spread, str(paper), gap, *reported(one.difference)])
            data.append({"loss": name, "percent": percent, **facts(one)})
        header = ["labels in LPA", "ours", "standard deviation", "paper", "gap", "to 0 %", "p"]
        parts += [f"## Loss `{name}`", markdown_table(header, rows), verdict(found, "0 %")]
    return Exhibit("table3", "Table 3: ratio of labelled nodes in LPA, Citeseer", "\n\n".join(parts), {"rows": data}, runs)


def table4(study: Study) -> Exhibit:
    """The settings as they are run."""
    rows = [
        [printed, *(f"{getattr(PAPER[dataset], name):g}" for dataset in study.datasets)] for printed, name in TABLE4_ROWS.items()
    ]
    recipes = {dataset: StudyRecipe.of(PAPER[dataset]) for dataset in study.datasets}
    hashes = ["recipe hash", *(recipe.hash() for recipe in recipes.values())]
    data = {dataset: {"hash": recipe.hash(), **recipe.to_dict()} for dataset, recipe in recipes.items()}
    text = markdown_table(["", *study.datasets], [*rows, hashes])
    text += "\n\nThe paper's settings, unchanged; 200 epochs of Adam, the first epoch of best validation accuracy is kept."
    return Exhibit("table4", "Table 4: the settings", text, data)


def theorems(study: Study) -> Exhibit:
    """Lemmas 1 to 4, Theorems 1 to 4, Eqs. (4) and (5), each with both of its sides."""
    names = ["karate"] if study.quick else ["karate", "cora"]
    if study.quick:
        study.note("the karate club only, not Cora")
    parts, data = [], []
    for name in names:
        graph = graph_of(name, study.root) if name in PAPER_DATASETS else load(name)
        recipe, masks = PAPER.get(name, LAYERS if graph.x_kind == "given" else WITHOUT_FEATURES), split(graph, seed=0)
        model = learn_once(graph, masks.train, masks.val, recipe, seed=0, device="cpu").model
        checks = check_theorems(graph, model=model)
        held = sum(check.holds for check in checks)
        header = ["statement", "graph", "sides", "gap", "", "measured under"]
        table = markdown_table(header, map(_check_row, checks))
        parts += [f"## {name}: {held} of {len(checks)} hold as measured", table]
        data += [{"graph": name, **check.to_dict()} for check in checks]
    return Exhibit("theorems", "Lemmas and theorems, measured", "\n\n".join(parts), {"checks": data})


def _check_row(check: Check) -> list[str]:
    sides = f"{_side(check.lhs)} {check.relation} {_side(check.rhs)}"
    holds = "holds" if check.holds else "**does not**"
    name, words = (text.replace("|", "\\|") for text in (check.name, check.assumptions))
    return [name, check.on, sides, f"{check.gap:.2g}", holds, words]


def _side(value: float | tuple[float, ...]) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"({', '.join(f'{part:.3g}' for part in value)})"
