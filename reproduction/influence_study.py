"""The paper's argument, measured link by link: a lower LPA loss, more intra-class label influence (Theorem 3), more
intra-class feature influence (Theorem 2), better accuracy (Section 2.4).

Four ways to the edge weights of one recipe: fixed, trained by the GCN alone (λ = 0), jointly, and by LPA alone before the GCN; and
the joint one with a loss in which no node sees its own label. Influences are those of Eqs. (12) and (13) per v_a, so that they are
shares: 1 says that all that reaches a node of the class comes from its class. Pairs whose v_a trained and pairs whose v_a is a
test node are kept apart, and so is what a node gives itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.data.splits import Split, split
from gcn_lpa.engine.devices import choose_device
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.propagation import propagate_labels
from gcn_lpa.recipes import Recipe, recipe_of_paper
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.target import Classes
from gcn_lpa.train import DivergedError
from reproduction.data import graph_of
from reproduction.exhibits import Exhibit, markdown_table
from reproduction.influence import intra_class_feature_influence, intra_class_label_influence
from reproduction.ledger import Job, Outcome, job_key
from reproduction.recipes import StudyRecipe
from reproduction.study import Cell, Study, versions
from reproduction.training import Learned, learn_many

ROWS: dict[str, str] = {
    "gcn": "fixed edges, λ = 0",
    "λ = 0": "edges trained by the GCN loss alone",
    "joint": "edges trained by both losses, Eq. (18), as printed: a node votes for itself",
    "two-step": "edges trained by the LPA loss alone, Eq. (15), then the GCN on them, Eq. (17)",
    "joint, leave-one-out": "as joint, each training node scored as if it had no label; at most two LPA iterations",
    "λ = 0, official": "the authors' code without its LPA loss",
    "joint, official": "the authors' code",
    "two-step, official": "the authors' code, edges first and then the GCN on them",
}
LINKS: dict[str, str] = {  # in the order of the paper's argument
    "lpa_loss_train": "LPA loss, training nodes",
    "label_self": "own label influence, training nodes",
    "label_train": "intra-class label influence, training pairs, without one's own",
    "label_test": "intra-class label influence on test nodes",
    "feature_train": "intra-class feature influence, training pairs",
    "feature_test": "intra-class feature influence on test nodes",
    "lpa_loss_test": "LPA loss, test nodes",
    "train_accuracy": "accuracy, training nodes",
    "test_accuracy": "accuracy, test nodes",
}


def cell_of(dataset: str, row: str) -> Cell:
    few = min(2, recipe_of_paper("paper", dataset).lpa_iterations)
    return {
        "gcn": Cell(dataset, row, "gcn-same"),
        "λ = 0": Cell(dataset, row, "gcn-lpa", changes={"lpa_weight": 0.0}),
        "joint": Cell(dataset, row, "gcn-lpa"),
        "two-step": Cell(dataset, row, "gcn-lpa", changes={"training": "two_step"}),
        "joint, leave-one-out": Cell(dataset, row, "gcn-lpa", changes={"loss": "leave_one_out", "lpa_iterations": few}),
        "λ = 0, official": Cell(dataset, row, "gcn-lpa", "official", {"lpa_weight": 0.0}),
        "joint, official": Cell(dataset, row, "gcn-lpa", "official"),
        "two-step, official": Cell(dataset, row, "gcn-lpa", "official", {"training": "two_step"}),
    }[row]


def jobs(dataset: str, splits: int = 10, *, rows: Sequence[str] = tuple(ROWS), epochs: int | None = None) -> list[Job]:
    """One job for each row on each split."""
    common = {"study": "influence", "dataset": dataset, "changes": {} if epochs is None else {"epochs": epochs}}
    return [{**common, "row": row, "method": cell_of(dataset, row).method, "seed": k} for k in range(splits) for row in rows]


def work(stack: Sequence[Job], *, device: str = "auto", root: str | None = None, threads: int = 1) -> list[Outcome]:
    """Train one row by its recipe for the data set on several splits at once, and measure every link.

    Args:
        root: the folder of the data sets.
    """
    torch.set_num_threads(threads)
    dataset, row = stack[0]["dataset"], stack[0]["row"]
    recipe = cell_of(dataset, row).settings().replace(**stack[0]["changes"])
    graph, device = graph_of(dataset, root), str(choose_device(device))
    reach = recipe_of_paper("paper", dataset).lpa_iterations  # the same for every row
    seeds = [job["seed"] for job in stack]
    parts = [split(graph, seed=seed) for seed in seeds]
    found = train_and_measure(graph, parts, recipe, iterations=reach, seeds=seeds, device=device)
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    return [{**one, "device": name, "versions": versions()} for one in found]


def influence_study(
    graph: Graph,
    splits: int | Sequence[Split] = 10,
    *,
    rows: Mapping[str, Recipe],
    iterations: int = 5,
    device: str = "auto",
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """The same on any graph: each of `rows`, a name and a recipe, trained and measured on each split.

    Args:
        iterations: k of the label influence and the LPA loss that are measured, the same for every row.
    """
    parts = [split(graph, seed=k) for k in range(splits)] if isinstance(splits, int) else list(splits)
    records = []
    for row, recipe in rows.items():
        found = train_and_measure(graph, parts, recipe, iterations=iterations, seeds=range(len(parts)), device=device)
        for k, one in enumerate(found):
            records.append({"dataset": graph.name, "row": row, "seed": k, **one})
            if on_record is not None:
                on_record(records[-1])
    return records


def train_and_measure(
    graph: Graph,
    parts: Sequence[Split],
    recipe: Recipe,
    *,
    iterations: int,
    seeds: Sequence[int],
    device: str = "auto",
) -> list[dict[str, Any]]:
    """One row of the study on each split: accuracies, overall and per class, and the links."""
    start = time.perf_counter()
    models = learn_many(graph, [(one.train, one.val) for one in parts], recipe, seeds=seeds, device=device)
    seconds = (time.perf_counter() - start) / len(parts)
    for outcome in models:
        if isinstance(outcome, DivergedError):
            raise outcome
    return [
        {
            "split_hash": one.hash,
            "recipe_hash": StudyRecipe.of(recipe).hash(),
            "best_epoch": learned.run.best_epoch,
            "val_accuracy": learned.run.best.val_accuracy,
            "class_names": list(graph.class_names),
            "seconds": round(seconds, 3),
            **_scored(learned, graph, one, iterations),
        }
        for one, learned in zip(parts, models, strict=True)
        if isinstance(learned, Learned)
    ]


def _scored(learned: Learned, graph: Graph, parts: Split, iterations: int) -> dict[str, Any]:
    test, links = learned.scores(graph, parts.test), measure(learned.model, graph, parts, iterations)
    return {
        "train_accuracy": learned.scores(graph, parts.train).accuracy,
        "test_accuracy": test.accuracy,
        **links,
        "classes": {**links["classes"], "test_accuracy": [one.recall for one in test.per_class.values()]},
    }


@torch.no_grad()
def measure(model: GCNLPA, graph: Graph, parts: Split, iterations: int) -> dict[str, Any]:
    """Losses and influences under the edges of a model: over all classes, and per class under "classes"."""
    recipe = model.recipe
    prepared = recipe.prepare(graph).to(next(model.parameters()).device)
    transition, y = model.transition(prepared), prepared.y
    train, test = parts.train.to(y.device), parts.test.to(y.device)
    seeds = graph.target.seeds(torch.where(train, y, -1), transition.dtype)
    votes = propagate_labels(transition, seeds, iterations, labeled=train)
    label = partial(intra_class_label_influence, transition, y, train, iterations, num_classes=graph.num_classes)
    feature = partial(
        intra_class_feature_influence, transition, y, recipe.gcn_layers, num_classes=graph.num_classes, with_self=False
    )
    others = label(targets=train, with_self=False)
    sums = {
        "label_self": label(targets=train) - others,
        "label_train": others,
        "label_test": label(targets=test),
        "feature_train": feature(targets=train, sources=train),
        "feature_test": feature(targets=test),
    }
    counts = [torch.bincount(y[mask & (y >= 0)], minlength=graph.num_classes) for mask in (train, test)]
    nodes = {name: counts[name.endswith("test")] for name in sums}  # of each class, that the sum goes over
    return {
        "lpa_loss_train": _lpa_cost(votes, y, train),
        "lpa_loss_test": _lpa_cost(votes, y, test),
        "lpa_test_accuracy": float((votes.argmax(dim=1) == y)[test].float().mean()),
        **{name: float(total.sum() / nodes[name].sum()) for name, total in sums.items()},
        "classes": {name: (total / nodes[name].clamp_min(1)).tolist() for name, total in sums.items()},
    }


def _lpa_cost(votes: Tensor, y: Tensor, mask: Tensor) -> float:
    """J of Eq. (15) on these nodes, which is printed for training nodes and measured for test nodes too."""
    nodes = mask.nonzero().squeeze(1)
    return float(Classes.mean_cost(votes.index_select(0, nodes), y.index_select(0, nodes), "share"))


def summary(records: Iterable[Mapping[str, Any]], *, to: str = "λ = 0") -> list[dict[str, Any]]:
    """For each data set, row and link its mean over the splits with a 95 % interval, and its difference to the row `to` split by
    split; and per class the same of the links that are known per class. Rows of the authors' code are compared with its own.
    """
    records, rows, first = list(records), [], to
    for dataset in dict.fromkeys(record["dataset"] for record in records):
        here = [record for record in records if record["dataset"] == dataset]
        for row in dict.fromkeys(record["row"] for record in here):
            to = f"{first}, official" if row.endswith(", official") else first
            base = {record["seed"]: record for record in here if record["row"] == to}
            own = [record for record in here if record["row"] == row]
            paired = [base[record["seed"]] for record in own] if row != to and base else []
            links = {name: _link([r[name] for r in own], [r[name] for r in paired]) for name in LINKS}
            classes = {
                name: {
                    link: _link(*([r["classes"][link][i] for r in some] for some in (own, paired))) for link in own[0]["classes"]
                }
                for i, name in enumerate(own[0]["class_names"])
            }
            rows.append({"dataset": dataset, "row": row, "splits": len(own), "to": to, "links": links, "classes": classes})
    return rows


def _link(own: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    mean, difference = mean_of(np.array(own)), None
    if base:
        gain = np.array(own) - np.array(base)
        difference = Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain))
    return {"mean": vars(mean), "difference": None if difference is None else vars(difference)}


def study_jobs(study: Study) -> list[Job]:
    """The jobs of every data set; where trainings are only read, those that are there with what they are compared to."""
    datasets = [name for name in study.datasets if not study.quick or name in ("cora", "citeseer")]
    rows = [row for row in ROWS if not study.quick or not row.endswith(", official")]
    if study.quick:
        study.note("Cora and Citeseer only, and the text's reading alone")
    found = [
        job
        for dataset in datasets
        for job in jobs(dataset, study.num_splits(dataset, 10), rows=rows, epochs=_epochs(study, dataset))
    ]
    if not study.only_reads:
        return found
    absent = {job_key(job) for job in study.ledger.missing(found)}
    there = [job for job in found if job_key(job) not in absent]
    compared = {job["dataset"] for job in there if job["row"] == "λ = 0"}
    return [job for job in there if job["dataset"] in compared]


def train(study: Study, todo: Sequence[Job], until: float | None = None) -> int:
    """Compute the jobs that are not in the ledger, those of a row together; how many are left."""
    stacks: dict[tuple[str, str], list[Job]] = {}
    for job in todo:
        stacks.setdefault((job["dataset"], job["row"]), []).append(job)
    here = partial(work, device=study.device, root=study.root, threads=study.threads)
    options: dict[str, Any] = {"workers": study.workers or 1, "on_outcome": study.report, "until": until}
    return study.ledger.fill(list(stacks.values()), here, **options)


def influence(study: Study) -> Exhibit:
    """The chain on each data set."""
    todo = study_jobs(study)
    train(study, todo)
    records = study.ledger.read(todo)
    rows = summary(records)
    return Exhibit("influence", "From the LPA loss to accuracy, link by link", text_of(rows), {"rows": rows}, records)


def _epochs(study: Study, dataset: str) -> int | None:
    short = study.shortened(cell_of(dataset, "joint"), 60)
    return short.changes.get("epochs")


def text_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: for each data set a table of the links, what changed from λ = 0, and a table per class."""
    parts = [
        "The paper argues: a lower LPA loss → more intra-class label influence (Theorem 3) → more intra-class feature "
        "influence (Theorem 2) → better accuracy. Each column is one way to edge weights, all with the paper's settings. "
        "Influences are shares of what reaches a node: from labels of its class, within the paper's number of LPA iterations; "
        "from features of its class, within its GCN layers, the node itself left out. The LPA loss is Eq. (15) as printed, on "
        "training nodes and on test nodes.",
        "\n".join(f"- {row}: {said}" for row, said in ROWS.items() if any(r["row"] == row for r in rows)),
    ]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        names = [row["row"] for row in here]
        count = here[0]["splits"]
        parts.append(f"## {dataset}, {count} split{'s' if count > 1 else ''}")
        parts.append(markdown_table(["", *names], _lines(here, lambda row, link: _mean(row["links"][link]))))
        changed = [row for row in here if row["row"] != row["to"]]
        if changed and here[0]["splits"] > 1:
            bases = " and ".join(dict.fromkeys(row["to"] for row in changed))
            parts.append(f"Difference to {bases}, split by split; an interval that holds 0 is noise:")
            lines = _lines(changed, lambda row, link: _difference(row["links"][link]))
            parts.append(markdown_table(["", *(row["row"] for row in changed)], lines))
            parts.append("\n".join(f"- {row['row']} against {row['to']}: {chain(row)}" for row in changed))
        parts.append("Per class, each as λ = 0 / joint / two-step:")
        parts.append(_class_table(here))
    return "\n\n".join(parts)


def chain(row: Mapping[str, Any]) -> str:
    """Which links moved by more than the noise, in the order of the argument."""
    moved: dict[str, list[str]] = {"down": [], "up": [], "inside the noise": []}
    for link, said in LINKS.items():
        found = Difference(**row["links"][link]["difference"])
        moved["inside the noise" if found.is_noise else "up" if found.mean > 0 else "down"].append(said)
    return ". ".join(f"{way.capitalize()}: {'; '.join(links)}" for way, links in moved.items() if links) + "."


def _lines(rows: Sequence[Mapping[str, Any]], cell: Callable[[Mapping[str, Any], str], str]) -> list[list[str]]:
    return [[said, *(cell(row, link) for row in rows)] for link, said in LINKS.items()]


def _class_table(rows: Sequence[Mapping[str, Any]]) -> str:
    by = {row["row"]: row for row in rows}
    shown = [by[name] for name in ("λ = 0", "joint", "two-step") if name in by]
    header = ["", "label, training", "label, test", "feature, training", "feature, test", "accuracy, test"]
    links = ("label_train", "label_test", "feature_train", "feature_test", "test_accuracy")
    lines = []
    for name in rows[0]["classes"]:
        cells = [" / ".join(f"{row['classes'][name][link]['mean']['mean']:.3f}" for row in shown) for link in links]
        lines.append([name, *cells])
    return markdown_table(header, lines)


def _mean(link: Mapping[str, Any]) -> str:
    mean = Mean(**link["mean"])
    return f"{mean.mean:.4f}" if mean.interval is None else f"{mean.mean:.4f} ± {mean.interval:.4f}"


def _difference(link: Mapping[str, Any]) -> str:
    found = link["difference"]
    return "" if found is None else f"{found['mean']:+.4f} ± {found['interval']:.4f}"
