"""How sure a run is and how sure it may be: its calibration, its label sets, and what they promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gcn_lpa.calibration import (
    FEWEST,
    Calibration,
    PerfectECE,
    Reliability,
    check_level,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    fit_calibrator,
    guesses_of,
    perfect_ece,
    reliability,
)
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.fusion import held_out_probabilities, opinions_of
from gcn_lpa.predict import predict_proba
from gcn_lpa.runs.codec import TrainedRun, load_run

NUM_VOTE_FOLDS = 5
PROMISES = {
    "reserved": "the reserved nodes chose nothing, so a set holds the true label of a further node drawn like them with "
    "at least this probability",
    "validation": "approximate: the validation nodes also chose the epoch, so sets may hold the true label a little less often; "
    "`train --reserve 0.5` keeps some of them apart",
    "cross-validation": "approximate: the scores are those of models without the node's label, the sets those of all "
    "models together, which are rarely worse",
}


@dataclass(frozen=True)
class CalibrationReport:
    """How sure a run is and how sure it may be, on nodes whose labels it was not given.

    Of a split, the test nodes. Of a cross-validation, every labelled node, its fold scored by what the others give.
    """

    graph: str
    method: str
    calibration: Calibration
    promise: str
    num_nodes: int  # scored
    accuracy: float
    before: Reliability
    after: Reliability
    ece_before: float
    ece_after: float
    ece_perfect: PerfectECE  # with the confidences after
    level: float
    score: str
    coverage: float
    expected_coverage: tuple[float, float]  # in 95 of 100 cases, where accuracy is below the level
    mean_set_size: float
    set_sizes: tuple[int, ...]  # number of sets with 0, 1, 2, … labels


def calibrate_run(
    folder: str | Path, data: str | Path | None = None, *, level: float = 0.9, score: str = "lac"
) -> CalibrationReport:
    """How well a run is calibrated, before and after, and what its label sets hold.

    Args:
        level: how often a set shall hold the true label.
        score: a key of `calibration.SCORES`.
    """
    check_level(level)
    return calibration_report(load_run(folder, data), level=level, score=score)


def calibrated(run: TrainedRun) -> TrainedRun:
    """The run with its calibration, if there are labels to calibrate on."""
    with num_threads(None, layer=run.graph.num_nodes * max(run.trained.recipe.hidden, run.graph.num_classes)):
        probabilities, y, protocol = calibration_evidence(run, required=False)
        if len(y) == 0:
            return run
        calibration = Calibration(fit_calibrator(probabilities, y), protocol, num_nodes=len(y))
    return dataclasses.replace(run, trained=run.trained.with_calibration(calibration))


def calibration_report(run: TrainedRun, *, level: float = 0.9, score: str = "lac") -> CalibrationReport:
    """What `calibrate_run` tells, of a run in memory."""
    probabilities, y, protocol = calibration_evidence(run)
    run = run if run.trained.calibration is not None else calibrated(run)
    trained = run.trained
    assert trained.calibration is not None
    if run.out_of_fold is not None:
        before, truth, fold = probabilities, y, run.out_of_fold.fold
        after, sets = torch.zeros_like(before), torch.zeros(before.shape, dtype=torch.bool)
        for k in fold.unique().tolist():
            here, others = fold == k, fold != k
            after[here] = fit_calibrator(before[others], y[others])(before[here])
            threshold = conformal_threshold(before[others], y[others], level, score=score)
            sets[here] = conformal_sets(before[here], threshold, score=score)
    else:
        if not run.split.test.any():
            raise ValueError("the run has no test nodes on which its confidence could be scored")
        known = run.split.test & (trained.classes_of(run.graph) >= 0)
        before, truth = uncalibrated(run)[known], trained.classes_of(run.graph)[known]
        after = trained.calibrator(before)
        sets = conformal_sets(before, conformal_threshold(probabilities, y, level, score=score), score=score)
    guesses, sizes = guesses_of(after, truth), sets.sum(dim=1)
    tables = reliability(guesses_of(before, truth)), reliability(guesses)
    return CalibrationReport(
        graph=run.graph.name,
        method=run.plan.recipe.method,
        calibration=trained.calibration,
        promise=PROMISES[protocol]
        if _is_promised(y, protocol)
        else f"none: {len(y)} labels are too few, it takes {FEWEST}",
        num_nodes=len(truth),
        accuracy=float(guesses.correct.double().mean()),
        before=tables[0],
        after=tables[1],
        ece_before=tables[0].ece,
        ece_after=tables[1].ece,
        ece_perfect=perfect_ece(guesses.confidence),
        level=level,
        score=score,
        coverage=float(sets.gather(1, truth.unsqueeze(1)).double().mean()),
        expected_coverage=coverage_range(len(y), len(truth), level),
        mean_set_size=float(sizes.double().mean()),
        set_sizes=tuple(torch.bincount(sizes, minlength=len(trained.class_names) + 1).tolist()),
    )


class Evidence(NamedTuple):
    """What a run is calibrated on: probabilities before calibration, [m, c], labels, [m], and a key of PROMISES."""

    probabilities: Tensor
    y: Tensor
    protocol: str


def _is_promised(y: Tensor, protocol: str) -> bool:
    """Whether sets hold what they promise: by the reserved nodes however few, by others only roughly and if there are some."""
    return protocol == "reserved" or len(y) >= FEWEST


def set_threshold(run: TrainedRun, level: float, score: str) -> float:
    """Where the label sets of a run end; a ValueError where too few labels were held out to promise anything."""
    probabilities, y, protocol = calibration_evidence(run)
    if not _is_promised(y, protocol):
        raise ValueError(
            f"label sets need {FEWEST} labels that training did not learn from, and there are {len(y)}: with so few, a set "
            "could promise nothing. Predict without --sets, or label more nodes"
        )
    return conformal_threshold(probabilities, y, level, score=score)


def uncalibrated(run: TrainedRun) -> Tensor:
    """What the model says of every node, before calibration, [n, c]."""
    return predict_proba(run.trained.with_calibration(None), run.graph)


def calibration_evidence(run: TrainedRun, *, required: bool = True) -> Evidence:
    """The nodes that calibrate a run; none is a ValueError where they are required."""
    found, y = run.out_of_fold, run.trained.classes_of(run.graph)
    if found is not None:
        return Evidence(found.probability.double(), y[found.node], "cross-validation")
    nodes, protocol = run.split.val, "validation"
    if run.reserved is not None:
        nodes, protocol = run.reserved & (y >= 0), "reserved"
    if not nodes.any():
        if required:
            raise ValueError(
                f"{run.folder or 'the run'} keeps no labels to calibrate on: no validation nodes, and no predictions of a "
                "cross-validation; train it anew, with two labels of a class or more"
            )
        empty = torch.zeros(0, len(run.trained.class_names))
        return Evidence(empty, torch.zeros(0, dtype=torch.int64), "none")
    if protocol == "validation" and run.trained.fusion is not None:
        return Evidence(_by_other_votes(run, nodes, y[nodes]), y[nodes], protocol)
    return Evidence(uncalibrated(run)[nodes], y[nodes], protocol)


def _by_other_votes(run: TrainedRun, nodes: Tensor, y: Tensor) -> Tensor:
    """What is said of validation nodes, each by weights of the votes that were fitted to others, [m, c]."""
    trained = run.trained
    opinions = opinions_of(trained.model, trained.prepare(run.graph).to(trained.device)).of(nodes)
    return held_out_probabilities(opinions, y, torch.arange(len(y)) % NUM_VOTE_FOLDS)
