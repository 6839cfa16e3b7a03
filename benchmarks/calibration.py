"""How far confidence can be trusted: calibration error and label sets on test nodes, over random splits.

    python benchmarks/calibration.py --device cuda --workers 4 --out benchmarks/results/calibration.json

Every run is one of `gcn-lpa train`, 60/20/20. What calibrates it is a protocol:

reserved          half of the validation nodes choose the epoch, the other half calibrate (`train --reserve 0.5`)
validation        all validation nodes choose the epoch and calibrate
cross-validation  the labels of training and validation nodes, as your own graph has them: five folds calibrate, and the
                  model is fitted to all of them

ECE has 15 equally wide bins over the test nodes of all splits together, beside that of a perfectly calibrated model with
the same confidences. Finished runs are kept in OUT with the ending .jsonl; a killed benchmark continues from there.
"""

import argparse
import dataclasses
import functools
import os
import sys
from pathlib import Path

import numpy as np
import torch

from gcn_lpa.calibration import (
    Guesses,
    apply_temperature,
    conformal_sets,
    conformal_threshold,
    guesses_of,
    perfect_ece,
    reliability,
)
from gcn_lpa.data.datasets import load
from gcn_lpa.data.files import write_json
from gcn_lpa.data.splits import split
from gcn_lpa.engine.devices import choose_device, environment
from gcn_lpa.insight.drawing import BLUE, ORANGE, figure_at
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import Prediction
from gcn_lpa.recipes import LAYERS
from gcn_lpa.runs.plan import Plan, Source, make_plan
from gcn_lpa.runs.predictions import held_out_of
from gcn_lpa.runs.train_run import train_run
from gcn_lpa.stats import mean_of
from reproduction.ledger import Ledger

DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-phy")
PROTOCOLS = ("reserved", "validation", "cross-validation")
LEVELS = (0.8, 0.9, 0.95)
STAGES = ("model", "temperature", "calibrated")


@functools.lru_cache(maxsize=1)
def graph_of(name):
    return load(name)


def recipe_of(method):
    """The default settings; their hash is part of a job, so that no outcome of other settings is read from the file."""
    return METHODS[method].settings(LAYERS)


def trained(job):
    """The run of a job, and the masks of its split."""
    graph = graph_of(job["dataset"])
    changes = {} if job["epochs"] is None else {"epochs": job["epochs"]}
    source, parts = Source(job["dataset"]), split(graph, seed=job["seed"])
    own = job["protocol"] == "cross-validation"
    reserve = 0.5 if job["protocol"] == "reserved" else 0.0
    plan, _ = make_plan(source, method=job["method"], changes=changes, seed=job["seed"], reserve=reserve)
    if own:  # as `make_plan` does for your own folder, without writing one
        graph = graph.reveal(parts.train | parts.val)
        recipe = plan.recipe.replace(select="loss")
        plan = Plan(source, graph.content_hash(64), recipe, job["seed"], split=None)
    return train_run(plan, graph, device=job["device"], threads=1), parts


def work(job):
    torch.set_num_threads(1)
    run, parts = trained(job)
    y, raw = graph_of(job["dataset"]).y[parts.test], Prediction.of(run.trained, run.graph).uncalibrated
    fitted = run.trained.calibration.calibrator
    p = raw[parts.test]
    stages = p, apply_temperature(p.clamp_min(1e-300).log(), fitted.temperature), fitted(p)
    held_out = held_out_of(run.trained, job["dataset"])
    return {
        "accuracy": float((p.argmax(dim=1) == y).double().mean()),
        "best_epoch": run.run.best_epoch,
        "seconds": run.run.seconds,
        "calibrator": dataclasses.asdict(fitted),
        "num_calibration": run.trained.calibration.num_nodes,
        "sets": [{"score": "lac", "level": level, **describe(held_out, p, y, level)} for level in LEVELS],
        "confidence": {
            name: np.round(guesses_of(q, y).confidence.numpy(), 6).tolist() for name, q in zip(STAGES, stages, strict=True)
        },
        "correct": "".join("01"[int(right)] for right in guesses_of(p, y).correct),
    }


def describe(held_out, p, y, level):
    threshold = conformal_threshold(held_out.probability, held_out.y, level)
    sets = conformal_sets(p, threshold)
    return {
        "coverage": float(sets.gather(1, y.unsqueeze(1)).double().mean()),
        "size": float(sets.sum(dim=1).double().mean()),
    }


def pooled(records, stage):
    confidence = torch.tensor([c for record in records for c in record["confidence"][stage]], dtype=torch.float64)
    correct = torch.tensor([right == "1" for record in records for right in record["correct"]])
    return Guesses(confidence, correct)


def summary(records):
    """One row: a data set, a method and a protocol over all splits."""
    first, guesses = records[0], {stage: pooled(records, stage) for stage in STAGES}
    sets = {}
    for k, one in enumerate(first["sets"]):
        found = [record["sets"][k] for record in records]
        means = {name: dataclasses.asdict(mean_of(np.array([f[name] for f in found]))) for name in ("coverage", "size")}
        sets[f"{one['score']} {one['level']}"] = means
    return {
        **{name: first[name] for name in ("dataset", "method", "protocol")},
        "splits": len(records),
        "test_nodes": len(guesses["model"].correct),
        "accuracy": dataclasses.asdict(mean_of(np.array([record["accuracy"] for record in records]))),
        "ece": {stage: reliability(found).ece for stage, found in guesses.items()},
        "ece_perfect": perfect_ece(guesses["calibrated"].confidence)._asdict(),
        "bins": {stage: dataclasses.asdict(reliability(found)) for stage, found in guesses.items()},
        "sets": sets,
    }


def shows(row):
    """The goals for the default model with reserved nodes, and whether each is met."""
    accuracy, coverage = row["accuracy"]["mean"], row["sets"]["lac 0.9"]["coverage"]["mean"]
    return {
        "coverage at least 88 %": coverage >= 0.88,
        "coverage at most 92 % where accuracy is below 90 %": accuracy >= 0.9 or coverage <= 0.92,
        "ECE at most 2.5 %": row["ece"]["calibrated"] <= 0.025,
    }


def line(row):
    accuracy, ece, perfect, lac = row["accuracy"]["mean"], row["ece"], row["ece_perfect"], row["sets"]["lac 0.9"]
    spread = lac["coverage"]["interval"]
    return (
        f"{row['dataset']:<13}{row['method']:<9}{row['protocol']:<17}{100 * accuracy:6.1f}"
        + "".join(f"{100 * ece[stage]:7.2f}" for stage in STAGES)
        + f"{100 * perfect['mean']:8.2f}/{100 * perfect['high']:.2f}{100 * lac['coverage']['mean']:8.1f}"
        + (f" ± {100 * spread:.1f}" if spread is not None else "      ")
        + f"{lac['size']['mean']:7.2f}"
    )


def draw_reliability(before, after, path, *, title):
    """The two reliability diagrams over each other, and how many nodes are in each bin.

    The grey bars are where 95 of 100 points after calibration would be if it were perfect.
    """
    bins = len(before.count)
    with figure_at(path, (5, 5.6), dpi=160) as figure:
        top, bottom = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
        top.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="perfect")
        at, nodes = np.array(after.confidence), np.array(after.count, dtype=np.float64)
        chance = 1.96 * np.sqrt(at * (1 - at) / np.maximum(nodes, 1))
        low, high = np.maximum(at - chance, 0)[nodes > 0], np.minimum(at + chance, 1)[nodes > 0]
        top.vlines(at[nodes > 0], low, high, color="#CCCCCC", linewidth=6, label="perfect, by chance")
        series = [("before", before, ORANGE, "s", "--"), ("after", after, BLUE, "o", "-")]
        for k, (name, one, color, marker, dash) in enumerate(series):
            filled = np.array(one.count) > 0
            points = np.array(one.confidence)[filled], np.array(one.accuracy)[filled]
            look = {"color": color, "marker": marker, "markersize": 5}
            top.plot(*points, dash, label=f"{name}: ECE {100 * one.ece:.1f} %", **look)
            middles = [(i + 0.3 + 0.4 * k) / bins for i in range(bins)]
            bottom.bar(middles, one.count, width=0.4 / bins, color=color, label=name)
        top.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy", title=title)
        bottom.set(xlabel="confidence", ylabel="nodes")
        figure.legend(*top.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
        for axes in (top, bottom):
            axes.grid(alpha=0.3, linewidth=0.5)
            axes.set_axisbelow(True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--methods", default="gcn-lpa,gcn", help="the first with every protocol, the others reserved")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="fewer than the recipe's, to try the script")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--root", help="folder with the data sets; $GCN_LPA_DATA without")
    parser.add_argument("--out", type=Path, default=Path("calibration.json"))
    parser.add_argument("--plots", type=Path, help="folder for the reliability diagrams")
    options = parser.parse_args()
    if options.root is not None:
        os.environ["GCN_LPA_DATA"] = options.root  # the other processes inherit it
    device, methods = str(choose_device(options.device)), options.methods.split(",")
    groups = [
        {"dataset": dataset, "method": method, "protocol": protocol}
        for dataset in options.datasets.split(",")
        for method in methods
        for protocol in options.protocols.split(",")
        if protocol == "reserved" or method == methods[0]
    ]
    settings = {"epochs": options.epochs, "device": device}
    jobs = [
        {**group, "seed": seed, "recipe": recipe_of(group["method"]).hash(), **settings}
        for group in groups
        for seed in range(options.splits)
    ]

    def say(progress):
        job, result = progress.job, progress.outcome
        names = " ".join(str(job[name]) for name in ("dataset", "method", "protocol", "seed"))
        left = f"{progress.done}/{progress.total}, {progress.seconds_left:.0f} s left"
        print(f"{names}: {100 * result['accuracy']:.1f} %, {result['seconds']:.1f} s ({left})", file=sys.stderr)

    records = Ledger(options.out.with_suffix(".jsonl")).run(jobs, work, workers=options.workers, on_outcome=say)
    rows = [summary([r for r in records if all(r[key] == group[key] for key in group)]) for group in groups]
    print(f"{'':<39}{'acc.':>6}{'ECE':>7}{'T':>7}{'T+curve':>8}{'perfect':>10}{'coverage .9':>14}{'size':>7}")
    for row in rows:
        print(line(row))
    verdicts = {row["dataset"]: shows(row) for row in rows if row["protocol"] == "reserved" and row["method"] == methods[0]}
    for claim in next(iter(verdicts.values()), {}):
        failed = [dataset for dataset, verdict in verdicts.items() if not verdict[claim]]
        print(f"{claim}: {'not on ' + ', '.join(failed) if failed else 'yes, on all'}")
    runs = [{k: v for k, v in record.items() if k not in ("confidence", "correct")} for record in records]
    facts = {"benchmark": "calibration", "device": device, "environment": environment()}
    write_json(options.out, {**facts, "shows": verdicts, "summary": rows, "runs": runs})
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for group in groups:
            found = [r for r in records if all(r[key] == group[key] for key in group)]
            tables = [reliability(pooled(found, stage)) for stage in ("model", "calibrated")]
            name, title = "-".join(group.values()), f"{group['dataset']}, {group['method']}, {len(found)} splits"
            draw_reliability(*tables, options.plots / f"{name}.png", title=title)


if __name__ == "__main__":
    main()
