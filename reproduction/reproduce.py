"""Everything the paper shows, by name: `python -m reproduction NAME`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from reproduction import figure1, figure6, influence_study, karate_figures, own_tables, sweeps, tables, verdicts
from reproduction.claims import CLAIMS
from reproduction.exhibits import Exhibit
from reproduction.ledger import Job, job_key
from reproduction.methods import study_methods
from reproduction.study import PAPER_DATASETS, Grid, Study, cost


def drawn(figure: Callable[..., Exhibit]) -> Callable[[Study], Exhibit]:
    """A figure without a ledger: what it is drawn from is computed each time."""

    def draw(study: Study) -> Exhibit:
        if study.quick:
            study.note("fewer random starts")
        return figure(study.out, quick=study.quick)

    return draw


PARTS: dict[str, Callable[[Study], Exhibit]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "table3": tables.table3,
    "table4": tables.table4,
    "figure1": drawn(figure1.figure1),
    "figure2": drawn(karate_figures.figure2),
    "figure3": sweeps.figure3,
    "figure4": sweeps.figure4,
    "figure5": sweeps.figure5,
    "figure6": drawn(figure6.figure6),
    "figure7": drawn(karate_figures.figure7),
    "table-two-step": own_tables.table_two_step,
    "table-edges": own_tables.table_edges,
    "table-lpa": own_tables.table_lpa,
    "table-why": own_tables.table_why,
    "theorems": tables.theorems,
    "influence": influence_study.influence,
}
NAMES = ("all", *PARTS, "claims")
ON_CITESEER = ("table3", "figure3", "figure4")
WITH_ROWS = ("table2", "table-two-step", "table-edges", "table-lpa", "table-why")  # that can be chosen
GRIDS: dict[str, Callable[[Study], Grid]] = {  # of the parts that are made of trainings
    "table2": tables.table2_grid,
    "table3": tables.table3_grid,
    "figure3": sweeps.figure3.grid,
    "figure4": sweeps.figure4.grid,
    **{
        part.name: part.grid
        for part in (own_tables.table_two_step, own_tables.table_edges, own_tables.table_lpa, own_tables.table_why)
    },
}


def reproduce(what: str, study: Study, *, on_part: Callable[[str], None] | None = None) -> Iterator[Exhibit]:
    """Compute one part or all, write each to `study.out` as Markdown, JSON and pictures, and yield it.

    "all" drops the parts about data sets that were not chosen, and the claims, which need all five. "claims" scores the
    claims by the parts that `study.out` holds, and computes only the parts that it lacks.
    """
    wanted = parts_of(what, study)
    exhibits = kept_parts(wanted, study) if what == "claims" else {}
    todo = [name for name in wanted if name not in exhibits]
    study.out.mkdir(parents=True, exist_ok=True)
    for name in todo:
        if on_part is not None:
            on_part(name)
        study.notes.clear()
        exhibit = exhibits[name] = PARTS[name](study)
        exhibit.reduced = study.reductions(exhibit)
        exhibit.write(study.out)
        yield exhibit
    if what in ("all", "claims") and {*study.datasets} == {*PAPER_DATASETS}:
        claims = verdicts.score_claims(exhibits)
        claims.reduced = sorted({note for exhibit in exhibits.values() for note in exhibit.reduced})
        claims.write(study.out)
        yield claims


def parts_of(what: str, study: Study) -> list[str]:
    """The names of the parts that "all", "claims" or one part asks for."""
    check_choice(what, study)
    needed = {claim.study for claim in CLAIMS}
    wanted = [name for name in PARTS if what in ("all", name) or (what == "claims" and name in needed)]
    return [name for name in wanted if name not in ON_CITESEER or "citeseer" in study.datasets]


def trainings_of(what: str, study: Study, skip: Sequence[str] = ()) -> dict[str, list[Job]]:
    """The trainings that each part is made of, but those of the methods `skip`; no training twice."""
    if unknown := [name for name in skip if name not in study_methods()]:
        raise ValueError(f"unknown method {unknown[0]!r}; there are {', '.join(study_methods())}")
    found: dict[str, list[Job]] = {}
    seen: set[str] = set()
    for name in parts_of(what, study):
        if name == "influence":
            jobs = influence_study.study_jobs(study)
        else:
            jobs = [job for _, job in study.trainings(GRIDS[name](study))] if name in GRIDS else []
        own = {key: job for job in jobs if (key := job_key(job)) not in seen and job["method"] not in skip}
        seen |= own.keys()
        found[name] = list(own.values())
    return {name: jobs for name, jobs in found.items() if jobs}


def train(what: str, study: Study, *, minutes: float | None = None, skip: Sequence[str] = ()) -> int:
    """Train for so many minutes and write no table: how many trainings are left for the next call."""
    until = None if minutes is None else time.perf_counter() + 60 * minutes
    jobs = [job for own in trainings_of(what, study, skip).values() for job in own]
    left = study.train([job for job in jobs if "study" not in job], until)
    return left + influence_study.train(study, [job for job in jobs if "study" in job], until)


def plan(what: str, study: Study, skip: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What `train` would do, a line for each cell: its part, data set, method and settings, and how much is left."""
    lines: dict[str, dict[str, Any]] = {}
    for part, jobs in trainings_of(what, study, skip).items():
        for job in jobs:
            facts = {"part": part, **{name: job.get(name) for name in ("dataset", "method", "recipe", "changes")}}
            line = lines.setdefault(json.dumps(facts), {**facts, "trainings": 0, "left": 0, "cost": 0})
            left = len(study.ledger.missing([job]))
            line.update(trainings=line["trainings"] + 1, left=line["left"] + left, cost=line["cost"] + cost(job) * left)
    return list(lines.values())


def kept_parts(names: list[str], study: Study) -> dict[str, Exhibit]:
    """The parts that the folder of the study holds; trainings of another code version are refused."""
    kept = {name: found for name in names if (found := Exhibit.read(study.out, name)) is not None}
    for name, found in kept.items():
        if found.runs and found.code != study.ledger.code:
            raise ValueError(
                f"{study.out / name}.json is of code {found.code}, not {study.ledger.code}; --code {found.code} scores the "
                "claims by that version, another --out computes them by this one"
            )
    return kept


def check_choice(what: str, study: Study) -> None:
    """Refuse, before anything is computed, a choice that leaves nothing, or too little for the claims."""
    if what not in NAMES:
        raise ValueError(f"cannot reproduce {what!r}; there are {', '.join(NAMES)}")
    if study.methods and what not in WITH_ROWS:
        raise ValueError(f"--method {study.methods[0]} chooses a row of {', '.join(WITH_ROWS)}; {what} has none to choose")
    if what in ON_CITESEER and "citeseer" not in study.datasets:
        raise ValueError(f"{what} is about citeseer; with --dataset {study.datasets[0]} nothing is left of it")
    if what == "claims" and {*study.datasets} != {*PAPER_DATASETS}:
        raise ValueError("the claims are about all five data sets; leave --dataset out")
