"""The part of the page about a rare class: precision over recall, the gain, and what a cut anywhere would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gcn_lpa.cut import Cut, Rule, Steps
from gcn_lpa.metrics import Scores, rarest
from gcn_lpa.runs.predictions import cut_of

if TYPE_CHECKING:
    from gcn_lpa.report.page import OpenRun

POSITIONS = 40  # of the slider
POINTS = 200  # of a curve


def rare_class(subject: OpenRun, chart: Callable[..., dict[str, Any]]) -> dict[str, Any] | None:
    """Curves of the held-out nodes, and for cuts from the likeliest node down to all what is to be expected; None where no class
    is rare. Too few labels are a ValueError.
    """
    run, trained = subject.run, subject.trained
    held_out, wanted = trained.held_out, ~run.used
    if held_out is None or not wanted.any():
        return None
    number = rarest(held_out.y, trained.target.width)
    if number is None:
        return None
    n = int(wanted.sum())
    tops = np.unique(np.geomspace(1, n, POSITIONS).round().astype(int)).tolist()
    cuts = [cut_of(trained, str(run.folder or "the run"), subject.prediction, wanted, Rule(top=top)) for top in tops]
    score, hit = held_out.crossed()[:, number], held_out.y == number
    steps = Steps.of(score, hit)
    recall, precision = steps.hits / steps.hits[-1], steps.hits / steps.called
    looked = steps.called / len(hit)
    kept = np.unique(np.linspace(0, len(looked) - 1, POINTS).round().astype(int))
    share = float(hit.double().mean())
    expected = int(torch.tensor([abs(cut.called - share * n) for cut in cuts]).argmin())
    places = [(cut.recall.mean, 0.0 if cut.precision is None else cut.precision.mean, cut.called / n) for cut in cuts]

    def drawn(names: tuple[str, str, str], x: torch.Tensor, y: torch.Tensor, rule: Any, at: Any) -> tuple[dict[str, Any], Any]:
        line = ("out-of-fold nodes", "one", list(zip(x[kept].tolist(), y[kept].tolist(), strict=True)))
        marks = [(*place, 6.0, "the cut") for place in at]
        made = chart(names, (0, 0), (1, 1), [line, ("by chance", "rule", rule)], marks=marks)
        spots = [mark[:2] for mark in made["marks"]]
        return {**made, "marks": [made["marks"][expected]]}, spots

    pairs, pair_spots = drawn(
        ("Precision over recall", "recall", "precision"),
        recall,
        precision,
        [(0, share), (1, share)],
        [p[:2] for p in places],
    )
    gain, gain_spots = drawn(
        ("Gain", "share of the nodes that is looked at", "recall"),
        looked,
        recall,
        [(0, 0), (1, 1)],
        [(p[2], p[0]) for p in places],
    )
    rows = [{"cut": _row(cut), "spots": [*first, *second]} for cut, first, second in zip(cuts, pair_spots, gain_spots, strict=True)]
    return {
        "name": trained.class_names[number],
        "ranking": run.results.scores.ranking if isinstance(run.results.scores, Scores) else None,
        "charts": [pairs, gain],
        "rows": rows,
        "start": expected,
        "num_nodes": n,
        "num_held_out": len(hit),
    }


def _row(cut: Cut) -> list[float]:
    """The numbers of a cut, in the order in which the script reads them."""
    parts = (cut.hits, cut.precision, cut.recall)
    numbers = [value for part in parts if part is not None for value in (part.mean, part.low, part.high)]
    return [cut.called, *(float(f"{value:.4g}") for value in (cut.threshold, *numbers))]
