"""How sure a run is and how sure it may be: its calibration, its label sets, and what they promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gcn_lpa import storage
from gcn_lpa.calibration import (
    PerfectECE,
    Reliability,
    check_level,
    conformal_sets,
    conformal_threshold,
    coverage_range,
    fit_calibrator,
    judge,
    perfect_ece,
    reliability,
)
from gcn_lpa.runs.codec import Calibration, TrainedRun, encode_calibration, load_run

PROMISES = {
    "reserved": "the reserved nodes chose nothing, so a set holds the true label of a further node drawn like them with "
    "at least this probability",
    "validation": "approximate: the validation nodes also chose the epoch, so sets may hold the true label a little less often; "
    "`train --reserve 0.5` keeps some of them apart",
    "cross-validation": "approximate: the scores are those of models without the node's label, the sets those of a model "
    "fitted to all labels, which is rarely worse",
}


@dataclass(frozen=True)
class CalibrationReport:
    """How sure a run is and how sure it may be, on nodes whose labels it was not given.

    Of a split, the test nodes. Of a cross-validation, every labelled node, its fold judged by what the others give.
    """

    graph: str
    method: str
    calibration: Calibration
    promise: str
    num_nodes: int  # judged
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

    A run kept by an older version gets its calibration now, and keeps it.

    Args:
        level: how often a set shall hold the true label.
        score: a key of `calibration.SCORES`.
    """
    check_level(level)
    trained = load_run(folder, data)
    if trained.calibration is None:
        trained = calibrated(trained)
        storage.save(folder, {**storage.load(folder).files, **encode_calibration(trained)})
    return calibration_report(trained, level=level, score=score)


def calibrated(trained: TrainedRun) -> TrainedRun:
    """The run with its calibration, if there are labels to calibrate on."""
    probabilities, y, protocol = calibration_evidence(trained, required=False)
    if len(y) == 0:
        return trained
    return dataclasses.replace(
        trained, calibration=Calibration(fit_calibrator(probabilities, y), protocol, num_nodes=len(y))
    )


def calibration_report(trained: TrainedRun, *, level: float = 0.9, score: str = "lac") -> CalibrationReport:
    """What `calibrate_run` tells, of a run in memory."""
    probabilities, y, protocol = calibration_evidence(trained)
    if trained.calibration is None:
        trained = calibrated(trained)
    assert trained.calibration is not None
    if trained.out_of_fold is not None:
        before, truth, fold = probabilities, y, trained.out_of_fold.fold
        after, sets = torch.zeros_like(before), torch.zeros(before.shape, dtype=torch.bool)
        for k in fold.unique().tolist():
            here, others = fold == k, fold != k
            after[here] = fit_calibrator(before[others], y[others])(before[here])
            threshold = conformal_threshold(before[others], y[others], level, score=score)
            sets[here] = conformal_sets(before[here], threshold, score=score)
    else:
        if not trained.split.test.any():
            raise ValueError("the run has no test nodes on which its confidence could be judged")
        before, truth = trained.probabilities()[trained.split.test], trained.graph.y[trained.split.test]
        after = trained.calibrator(before)
        sets = conformal_sets(before, conformal_threshold(probabilities, y, level, score=score), score=score)
    judged, sizes = judge(after, truth), sets.sum(dim=1)
    tables = reliability(judge(before, truth)), reliability(judged)
    return CalibrationReport(
        graph=trained.graph.name,
        method=trained.plan.recipe.method,
        calibration=trained.calibration,
        promise=PROMISES[protocol],
        num_nodes=len(truth),
        accuracy=float(judged.correct.double().mean()),
        before=tables[0],
        after=tables[1],
        ece_before=tables[0].ece,
        ece_after=tables[1].ece,
        ece_perfect=perfect_ece(judged.confidence),
        level=level,
        score=score,
        coverage=float(sets.gather(1, truth.unsqueeze(1)).double().mean()),
        expected_coverage=coverage_range(len(y), len(truth), level),
        mean_set_size=float(sizes.double().mean()),
        set_sizes=tuple(torch.bincount(sizes, minlength=trained.graph.num_classes + 1).tolist()),
    )


class Evidence(NamedTuple):
    """What a run is calibrated on: probabilities before calibration, [m, c], labels, [m], and a key of PROMISES."""

    probabilities: Tensor
    y: Tensor
    protocol: str


def calibration_evidence(trained: TrainedRun, *, required: bool = True) -> Evidence:
    """The nodes that calibrate a run; none is a ValueError where they are required."""
    found = trained.out_of_fold
    if found is not None:
        return Evidence(found.probability.double(), trained.graph.y[found.node], "cross-validation")
    nodes, protocol = trained.split.val, "validation"
    if trained.reserved is not None:
        nodes, protocol = trained.reserved, "reserved"
    if not nodes.any():
        if required:
            raise ValueError(
                f"{trained.folder or 'the run'} keeps no labels to calibrate on: no validation nodes, and no predictions of a "
                "cross-validation; train it anew, with two labelled nodes or more"
            )
        return Evidence(torch.zeros(0, trained.graph.num_classes), torch.zeros(0, dtype=torch.int64), "none")
    return Evidence(trained.probabilities()[nodes], trained.graph.y[nodes], protocol)
