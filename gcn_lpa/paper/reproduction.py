"""Everything the paper shows, by name: `gcn-lpa reproduce NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gcn_lpa.paper import figure6, figures, influence_study, sweeps, tables, verdicts
from gcn_lpa.paper.claims import CLAIMS
from gcn_lpa.paper.study import DATASETS, Result, Study


def drawn(figure: Callable[..., Result]) -> Callable[[Study], Result]:
    """A figure that needs no study: what it is drawn from is computed on the spot."""

    def draw(study: Study) -> Result:
        if study.quick:
            study.note("fewer random starts")
        return figure(study.out, quick=study.quick)

    return draw


PARTS: dict[str, Callable[[Study], Result]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "table3": tables.table3,
    "table4": tables.table4,
    "figure1": drawn(figures.figure1),
    "figure2": drawn(figures.figure2),
    "figure3": sweeps.figure3,
    "figure4": sweeps.figure4,
    "figure5": sweeps.figure5,
    "figure6": drawn(figure6.figure6),
    "figure7": drawn(figures.figure7),
    "table-two-step": tables.table_two_step,
    "table-edges": tables.table_edges,
    "table-lpa": tables.table_lpa,
    "theorems": tables.theorems,
    "influence": influence_study.influence,
}
NAMES = ("all", *PARTS, "claims")
ON_CITESEER = ("table3", "figure3", "figure4")
WITH_ROWS = ("table2", "table-two-step", "table-edges", "table-lpa")  # that can be chosen


def reproduce(what: str, study: Study, *, on_part: Callable[[str], None] | None = None) -> Iterator[Result]:
    """Compute one part or all, write each to `study.out` as Markdown, JSON and pictures, and give it.

    Of all, the parts about data sets that were not chosen are left out, and so are the claims, which are about all five.
    The claims alone are judged by the parts that `study.out` holds; only those that it lacks are computed.
    """
    check_choice(what, study)
    study.out.mkdir(parents=True, exist_ok=True)
    needed = {claim.study for claim in CLAIMS}
    wanted = [name for name in PARTS if what in ("all", name) or (what == "claims" and name in needed)]
    wanted = [name for name in wanted if name not in ON_CITESEER or "citeseer" in study.datasets]
    results: dict[str, Result] = {}
    for name in wanted:
        if what == "claims" and (kept := Result.read(study.out, name)) is not None:
            results[name] = kept
            continue
        if on_part is not None:
            on_part(name)
        study.notes.clear()
        result = results[name] = PARTS[name](study)
        result.reduced = study.reductions(result)
        result.write(study.out)
        yield result
    if what in ("all", "claims") and {*study.datasets} == {*DATASETS}:
        claims = verdicts.judge(results)
        claims.reduced = sorted({note for result in results.values() for note in result.reduced})
        claims.write(study.out)
        yield claims


def check_choice(what: str, study: Study) -> None:
    """Refuse, before anything is computed, what would leave nothing, or hours later too little."""
    if what not in NAMES:
        raise ValueError(f"cannot reproduce {what!r}; there are {', '.join(NAMES)}")
    if study.methods and what not in WITH_ROWS:
        raise ValueError(
            f"--method {study.methods[0]} chooses a row of {', '.join(WITH_ROWS)}; {what} has none to choose"
        )
    if what in ON_CITESEER and "citeseer" not in study.datasets:
        raise ValueError(f"{what} is about citeseer; with --dataset {study.datasets[0]} nothing is left of it")
    if what == "claims" and {*study.datasets} != {*DATASETS}:
        raise ValueError("the claims are about all five data sets; leave --dataset out")
