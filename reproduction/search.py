"""The search of Appendix F: from a recipe that works, one setting at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from gcn_lpa.graph import Graph
from gcn_lpa.insight.tune import Search, Searching, Tuning, TuningTrial
from gcn_lpa.recipes import Recipe


def one_at_a_time(
    graph: Graph,
    train: Tensor,
    val: Tensor,
    start: Recipe,
    out: Path,
    search: Search,
    on_trial: Callable[[TuningTrial], None] | None = None,
) -> Tuning:
    """As `gcn_lpa.tune`, but each setting in turn takes its best value, the others kept; again, until a round changes nothing.

    The paper did so on every data set but Cora, from the settings it had found there.
    """
    out.mkdir(parents=True, exist_ok=True)
    return _OneAtATime(graph, train, val, start, out, search, on_trial).run()


class _OneAtATime(Searching):
    def walk(self) -> None:
        best, reached = self.first, -math.inf
        while (found := self.value(best) or 0.0) > reached:
            reached = found
            for name, values in self.choices.items():
                tried = [{**best, name: value} for value in values]
                best = max((best, *tried), key=lambda settings: self.value(settings) or 0.0)  # the first of equals
