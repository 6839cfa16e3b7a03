"""Tune every method of Table 2 that has settings of Appendix F, all with the same budget, and write `tuned.json`.

    python benchmarks/tuned.py --out results [--trials 20] [--datasets cora,…] [--rows gcn,…] [--workers 8]

On Cora a search of so many trials on each of two development splits (`gcn_lpa.tune` in the space of Appendix F); of the winners
and the published settings the one with the highest mean validation accuracy over both splits is kept. On every other data set the
same, one setting at a time from Cora's winner, as the paper did. Test nodes are never looked at, and the splits are not those of
Table 2, which are seeds 0 to 19. Every search is a line of `tuned.jsonl`, so that an interrupted run goes on.
`python3 run.py reproduce table2 --out results` then has rows `…, tuned`.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from gcn_lpa.data.files import write_json
from gcn_lpa.data.splits import split
from gcn_lpa.insight.tune import Search, tune
from gcn_lpa.learning.learn import learn
from gcn_lpa.train import DivergedError
from reproduction.data import graph_of
from reproduction.ledger import Job, Ledger, Outcome
from reproduction.recipes import SPACE
from reproduction.search import one_at_a_time
from reproduction.study import PAPER_DATASETS, Cell
from reproduction.training import in_library

DEVELOPMENT = (1000, 1001)  # seeds of the splits
STRATEGIES = {"optuna": tune, "coordinate": one_at_a_time}
ROWS = {  # of Table 2: method and recipe; LR and LPA have no setting in the space
    **{name: (name, "paper") for name in ("mlp", "gcn", "gat", "jk-net", "graphsage", "gcn-lpa")},
    "official": ("gcn-lpa", "official"),
}


def work(job: Job, *, device: str, root: str | None) -> Outcome:
    """A search on one split, or the validation accuracy of one recipe there."""
    graph = graph_of(job["dataset"], root)
    parts = split(graph, seed=job["split_seed"])
    recipe = in_library(Cell(job["dataset"], "", *ROWS[job["row"]], job["changes"]).settings())
    if job["trials"] == 0:
        options = {"seed": 0, "device": device, "threads": 1}
        try:
            best = learn(graph, parts.train, parts.val, recipe, **options).run.best
        except DivergedError:
            return {"val_accuracy": 0.0}
        return {"val_accuracy": best.val_accuracy}
    edges = {"l2_edges": SPACE["l2"]} if job["row"] == "official" else {}  # its L2 is on both, so both are searched
    search = Search(job["trials"], device=device, threads=1, space={**SPACE, **edges})
    with tempfile.TemporaryDirectory() as folder:
        found = STRATEGIES[job["strategy"]](graph, parts.train, parts.val, recipe, Path(folder), search)
    changes = {name: after for name, (_, after) in found.changes.items()}
    return {
        "changes": {**job["changes"], **changes},
        "val_accuracy": found.val_score,
        "trials_done": len(found.trials),
    }


def search_all(
    ledger: Ledger, starts: dict[tuple[str, str], dict], trials: int, strategy: str, **options
) -> dict[tuple[str, str], dict]:
    """The best settings of each (data set, row), from the changes in `starts`, on the mean of the development splits."""

    def job(dataset, row, seed, changes, trials, strategy):
        names = {"dataset": dataset, "row": row, "split_seed": seed, "changes": changes}
        return {**names, "trials": trials, "strategy": strategy}

    searches = [job(*key, seed, start, trials, strategy) for key, start in starts.items() for seed in DEVELOPMENT]
    found = ledger.run(searches, **options)
    candidates = {key: [{}, start] for key, start in starts.items()}
    for line, asked in zip(found, searches, strict=True):
        candidates[asked["dataset"], asked["row"]].append(line["changes"])
    scores = [
        job(*key, seed, changes, 0, "")
        for key, all_changes in candidates.items()
        for changes in all_changes
        for seed in DEVELOPMENT
    ]
    reached: dict[tuple[str, str, str], list[float]] = {}
    for line, asked in zip(ledger.run(scores, **options), scores, strict=True):
        key = asked["dataset"], asked["row"], repr(sorted(asked["changes"].items()))
        reached.setdefault(key, []).append(line["val_accuracy"])

    def mean(key, changes):
        values = reached[(*key, repr(sorted(changes.items())))]
        return sum(values) / len(values)

    return {key: max(each, key=partial(mean, key)) for key, each in candidates.items()}  # the first of equals


def tuned(out: Path, trials: int, datasets: tuple[str, ...], rows: tuple[str, ...], workers: int, where: dict) -> dict:
    ledger, options = Ledger(out / "tuned.jsonl"), {"work": partial(work, **where), "workers": workers}
    found = search_all(ledger, {("cora", row): {} for row in rows}, trials, "optuna", **options)
    others = {(name, row): found["cora", row] for name in datasets if name != "cora" for row in rows}
    found |= search_all(ledger, others, trials, "coordinate", **options) if others else {}
    settings: dict[str, dict] = {}
    for (dataset, row), changes in found.items():
        settings.setdefault(dataset, {})[row] = changes
    write_json(out / "tuned.json", settings)
    return settings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--datasets", default=",".join(PAPER_DATASETS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--root")
    asked = parser.parse_args()
    chosen = tuple(asked.datasets.split(",")), tuple(asked.rows.split(","))
    print(tuned(asked.out, asked.trials, *chosen, asked.workers, {"device": asked.device, "root": asked.root}))
