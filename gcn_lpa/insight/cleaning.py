"""Whether a repair helps: suspicious labels changed or suspicious edges dropped, and accuracy before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph, check_graph
from gcn_lpa.insight.auditing import EdgeAudit, LabelAudit, rank_edges, rank_labels
from gcn_lpa.insight.cross_fit import checked_given, cross_fit
from gcn_lpa.learning import learn_whole, with_classes
from gcn_lpa.predict import evaluate
from gcn_lpa.splits import split
from gcn_lpa.stats import Difference, Mean, mean_of, signed_rank_test
from gcn_lpa.trained import Trained


@dataclass(frozen=True)
class Cleaning:
    """What cleaning the graph did to accuracy on labels that were neither trained on nor audited."""

    what: str
    changed: float  # edges dropped or labels changed, the mean over splits
    before: Mean
    after: Mean
    difference: Difference
    splits: int
    runs: tuple[dict[str, float], ...]  # seed, changed, before, after

    @property
    def verdict(self) -> str:
        """One sentence."""
        summary = (
            f"{self.what} ({self.changed:,.0f} on average): validation accuracy {100 * self.before.mean:.1f} → "
            f"{100 * self.after.mean:.1f} %, {self.difference} points over {self.splits} splits"
        )
        if self.changed == 0:
            return f"{summary}: there was nothing to change."
        if self.difference.is_noise:
            return f"{summary}: inside the noise, so nothing is shown to be gained or lost."
        return f"{summary}: {'better' if self.difference.mean > 0 else 'worse'}, and more than the noise."

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **dataclasses.asdict(self)}


def try_cleaning(
    trained: Trained,
    graph: Graph,
    *,
    drop_edges: float = 0.0,
    relabel: bool = False,
    splits: int = 5,
    folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    on_split: Callable[[int, int], None] | None = None,
) -> Cleaning:
    """Retrain on the graph without its most suspicious edges, or with suspicious labels changed, and compare.

    For each split a fifth of the given labels is set aside. The rest is audited and trained on, before and after, from
    the same first weights and for the same number of epochs; the fifth only scores. Nothing is written anywhere.

    Args:
        drop_edges: the share of all edges to drop, the most suspicious first; those the audit abstains from stay.
        relabel: give the suggested label to nodes whose suspicion is above one half.
    """
    if not 0 <= drop_edges < 1 or not (drop_edges or relabel):
        raise ValueError(
            f"drop_edges = {drop_edges}; it is a share above 0 and below 1, unless labels are to be changed"
        )
    if splits < 2:
        raise ValueError(f"splits = {splits}; it takes at least 2 to tell an effect from noise")
    check_graph(graph)
    graph = with_classes(graph, trained.class_names)
    recipe, given = trained.recipe, checked_given(graph, trained.given(graph), folds, 1)
    known, nobody = graph.reveal(given), torch.zeros_like(given)
    effects: list[dict[str, float]] = []
    if int(0.2 * int(given.sum())) == 0:
        raise ValueError(f"{int(given.sum())} labels are too few to set a fifth of them aside")
    for k in range(splits):
        parts = split(known, (0.8, 0.2, 0.0), seed + k)
        fitted = cross_fit(
            graph, parts.train, recipe, folds=folds, repeats=1, seed=seed + k, device=device, threads=threads
        )
        cleaned, changed = known, 0
        if relabel:
            cleaned, changed = relabeled(cleaned, rank_labels(graph, fitted))
        if drop_edges:
            cleaned, dropped = without_edges(cleaned, rank_edges(graph, fitted), drop_edges)
            changed += dropped
        found = []
        for one in (known, cleaned):
            options: dict[str, Any] = {"seed": seed + k, "device": device, "threads": threads}
            again = learn_whole(
                one, parts.train, nobody, recipe, classes=one.class_names, stop_at=fitted.epochs, **options
            )
            found.append(evaluate(again, one, parts.val).accuracy)
        effects.append({"seed": seed + k, "changed": changed, "before": found[0], "after": found[1]})
        if on_split is not None:
            on_split(k + 1, splits)
    before, after = (np.array([one[name] for one in effects]) for name in ("before", "after"))
    gain = after - before
    does = [
        *(["labels changed"] if relabel else []),
        *([f"{100 * drop_edges:g} % of edges dropped"] if drop_edges else []),
    ]
    return Cleaning(
        what=" and ".join(does),
        changed=float(np.mean([one["changed"] for one in effects])),
        before=mean_of(before),
        after=mean_of(after),
        difference=Difference(**vars(mean_of(gain)), p_value=signed_rank_test(gain)),
        splits=splits,
        runs=tuple(effects),
    )


def relabeled(graph: Graph, audit: LabelAudit, *, above: float = 0.5) -> tuple[Graph, int]:
    """The same graph with the suggested label where the suspicion is above a bound, and how many labels that changed."""
    y, number = graph.y.clone(), {name: k for k, name in enumerate(graph.class_names)}
    wrong = [row for row in audit.findings if row.suspicion > above and row.suggested != row.label]
    for row in wrong:
        y[graph.index_of(row.node)] = number[row.suggested]
    return dataclasses.replace(graph, y=y), len(wrong)


def without_edges(graph: Graph, audit: EdgeAudit, share: float) -> tuple[Graph, int]:
    """The same graph without the most suspicious `share` of its edges, and how many those are."""
    scored = [row for row in audit.findings if row.status == "judged"]
    dropped = scored[: round(share * len(audit.findings))]
    ends = np.array([[graph.index_of(row.source), graph.index_of(row.target)] for row in dropped], dtype=np.int64)
    source, target = ends.reshape(-1, 2).T
    n, key = graph.num_nodes, (graph.row.cpu().long() * graph.num_nodes + graph.col.cpu().long()).numpy()
    gone = np.isin(key, [target * n + source] if graph.directed else [target * n + source, source * n + target])
    row, col = (side.cpu().numpy()[~gone] for side in (graph.row, graph.col))
    kept = scipy.sparse.csr_array((graph.adjacency.values.cpu().numpy()[~gone], (row, col)), shape=(n, n))
    note = f"{len(dropped):,} suspicious edges dropped"
    adjacency = SparseMatrix.from_scipy(kept).to(graph.device)
    return graph.with_adjacency(adjacency, notes=(*graph.notes, note)), len(dropped)
