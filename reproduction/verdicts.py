"""What our runs say of each claim of the paper, by the authors' code and by the text apart.

A claim is measured in one or more parts (data sets, numbers of layers, pairs), each an effect that should be above 0, with a
95 % interval and a p-value. Splits of one data set share training nodes, so intervals over them are those of Nadeau & Bengio
(2003). The p-values are adjusted by Holm over every part of every claim of a reading; a part is decided where its adjusted p
is at most .05. What was counted or timed rather than sampled has no interval.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gcn_lpa.recipes import recipe_of_paper
from gcn_lpa.stats import Difference, said_p
from reproduction.claims import CLAIMS, PROTOCOLS, READINGS, SETUP, TABLE2_METHODS, Claim
from reproduction.exhibits import Exhibit, LedgerLine, markdown_table
from reproduction.karate import find_tally
from reproduction.statistics import holm, paired_rates, paired_spreads, resampled_difference
from reproduction.study import by_split
from reproduction.tables import TABLE3_LOSSES

SECTIONS = {**READINGS, "": "without a reading: data, baselines, untrained networks, time"}
ALPHA = 0.05


@dataclass(frozen=True)
class Effect:
    """One part of a claim: the claim says that `value` is above 0."""

    part: str
    value: float
    interval: float | None = None
    p_value: float | None = None  # None: counted or timed, so that the sign decides
    unit: str = "points"
    reading: str = ""  # a key of SECTIONS
    adjusted: float | None = None  # the p-value by Holm, over all parts of the reading

    @property
    def verdict(self) -> str:
        if self.p_value is not None and (self.p_value if self.adjusted is None else self.adjusted) > ALPHA:
            return "noise"
        return "above" if self.value > 0 else "below"

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" ± {self.interval:.2g}"
        p_value = "" if self.adjusted is None else f" (p {said_p(self.adjusted)})"
        return f"{self.part} {round(self.value, 9):+.2g}{spread}{p_value}"


@dataclass(frozen=True)
class Verdict:
    """What the parts of a claim say of it under one reading."""

    claim: Claim
    reading: str
    effects: tuple[Effect, ...]

    @property
    def verdict(self) -> str:
        found = {effect.verdict for effect in self.effects}
        if {"above", "below"} <= found:
            return "mixed"
        if found == {"noise"}:
            return "inside the noise"
        word = "holds" if "above" in found else "contradicted"
        return word if len(found) == 1 else f"{word} in part"

    @property
    def counts(self) -> str:
        each = [effect.verdict for effect in self.effects]
        return ", ".join(f"{each.count(kind)} {kind}" for kind in ("above", "noise", "below") if kind in each)

    def to_dict(self) -> dict[str, Any]:
        effects = [{**asdict(effect), "verdict": effect.verdict} for effect in self.effects]
        return {
            "key": self.claim.key,
            "sentence": self.claim.sentence,
            "reading": self.reading,
            "verdict": self.verdict,
            "counts": self.counts,
            "effects": effects,
        }


def score_claims(exhibits: Mapping[str, Exhibit]) -> Exhibit:
    """The verdict on every claim whose study is among the exhibits; all their trainings are of one code version."""
    codes = {exhibit.code: name for name, exhibit in exhibits.items() if exhibit.runs}
    if len(codes) > 1:
        each = ", ".join(f"{name} of {code}" for code, name in codes.items())
        raise ValueError(f"the claims would mix trainings of several code versions: {each}; reproduce all by one")
    measured = [(c, MEASURES[c.kind](c, exhibits[c.study])) for c in CLAIMS if c.study in exhibits]
    verdicts = [found for reading in SECTIONS for found in verdicts_of(measured, reading)]
    tables = []
    for reading, said in SECTIONS.items():
        rows = [verdict_row(found) for found in verdicts if found.reading == reading]
        tests = sum(e.p_value is not None for found in verdicts if found.reading == reading for e in found.effects)
        header = ["claim, in our words", "where", "verdict", "parts", "measured"]
        words = f"## {said[0].upper()}{said[1:]}\n\nHolm over {tests} parts.\n\n"
        tables.append(words + markdown_table(header, rows) if rows else "")
    text = (
        "Each effect should be above 0; ± is its 95 % interval, over splits that of Nadeau & Bengio (2003), and p is that of "
        "the same test, adjusted by Holm over all parts of all claims of a reading. A part is above or below 0 where p is at "
        "most .05, and else noise. A claim holds where all of its parts are above, in part where some are and none is below.\n\n"
        + "\n\n".join(filter(None, tables))
    )
    if missing := [c.key for c in CLAIMS if c.study not in exhibits]:
        text += f"\n\nWithout a verdict, as their studies were not run: {', '.join(missing)}."
    data = {"claims": [found.to_dict() for found in verdicts]}
    return Exhibit("claims", "The paper's claims", text, data, code=next(iter(codes), ""))


def verdicts_of(measured: Sequence[tuple[Claim, Sequence[Effect]]], reading: str) -> list[Verdict]:
    """The claims as far as they are measured under one reading, with p-values adjusted over all of them."""
    own = [(claim, [effect for effect in found if effect.reading == reading]) for claim, found in measured]
    tested = [effect.p_value for _, found in own for effect in found if effect.p_value is not None]
    adjusted = iter(holm(tested))

    def corrected(effect: Effect) -> Effect:
        return effect if effect.p_value is None else dataclasses.replace(effect, adjusted=next(adjusted))

    return [Verdict(claim, reading, tuple(map(corrected, found))) for claim, found in own if found]


def verdict_row(found: Verdict) -> list[str]:
    measured = f"{'; '.join(map(str, found.effects))} ({found.effects[0].unit})"
    return [found.claim.sentence, found.claim.where, f"**{found.verdict}**", found.counts, measured]


def accuracies(runs: Sequence[LedgerLine], row: str, dataset: str, score: str = "test_accuracy") -> np.ndarray:
    _, found = by_split(runs, row, dataset, score)
    if not len(found):
        raise ValueError(f"no training of {row!r} on {dataset}; run the study without --dataset and --method")
    return 100 * found


def effect(part: str, differences: np.ndarray, reading: str = "", unit: str = "points") -> Effect:
    """An effect of one value per split."""
    return effect_of(part, resampled_difference(differences, SETUP.test / SETUP.train), reading, unit)


def effect_of(part: str, found: Difference, reading: str, unit: str, scale: float = 1) -> Effect:
    interval = None if found.interval is None else scale * found.interval
    return Effect(part, scale * found.mean, interval, found.p_value, unit, reading)


def better(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a, runs, effects = claim.arguments, exhibit.runs, []
    there = {run["row"] for run in runs}
    for reading in READINGS:
        named = {row: row_of(row, a["better"], reading) for row in (a["better"], *a["worse"])}
        if reading == "official" and not {*named.values()} <= there:
            continue  # the study has the text's reading alone
        for dataset in a["datasets"]:
            own = accuracies(runs, named[a["better"]], dataset)
            for worse in a["worse"]:
                part = f"{dataset}, {worse}" if len(a["worse"]) > 1 else dataset
                effects.append(effect(part, own - accuracies(runs, named[worse], dataset), reading))
    return effects


def row_of(row: str, better: str, reading: str) -> str:
    """The name of a row as a reading has it.

    GCN-LPA by the authors' code is the row "official" of Table 2, beside baselines that have no reading. In our own tables
    both sides are GCN-LPA, and rows of the authors' code end so.
    """
    if reading != "official" or (better == "gcn-lpa" and row != better):
        return row
    return "official" if row == "gcn-lpa" else f"{row}, official"


def best(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """Against the best other method of Table 2, chosen by validation accuracy; GCN-LPA by either reading."""
    a, effects = claim.arguments, []
    for sign, datasets in ((1, a["on"]), (-1, a["not_on"])):
        for dataset in datasets:
            others = [name for name in (*TABLE2_METHODS, "official") if name != a["method"]]
            rival = max(others, key=lambda name, d=dataset: accuracies(exhibit.runs, name, d, "val_accuracy").mean())  # type: ignore[misc]
            gain = accuracies(exhibit.runs, a["method"], dataset) - accuracies(exhibit.runs, rival, dataset)
            effects.append(effect(f"{dataset}, {'over' if sign > 0 else 'below'} {rival}", sign * gain))
    return effects


@dataclass(frozen=True)
class SweptRuns:
    """The trainings of Figure 3 or 4 under one reading."""

    runs: Sequence[LedgerLine]
    setting: str
    reading: str

    def at(self, value: float, layers: int | None = None, score: str = "test_accuracy") -> np.ndarray:
        """The scores with one value of the setting, by split."""
        recipe = recipe_of_paper(self.reading, "citeseer")
        wanted = {self.setting: value, "gcn_layers": recipe.gcn_layers if layers is None else layers}
        found = [
            run
            for run in self.runs
            if run["recipe"] == self.reading
            and wanted == {name: run["changes"].get(name, getattr(recipe, name)) for name in wanted}
        ]
        if not found:
            raise ValueError(f"no training with {wanted} by recipe {self.reading}; run the study in full")
        return 100 * np.array([run[score] for run in sorted(found, key=lambda run: run["seed"])])


def sweeps(claim: Claim, exhibit: Exhibit) -> list[SweptRuns]:
    """One for each reading that the exhibit has."""
    there = {run["recipe"] for run in exhibit.runs}
    return [SweptRuns(exhibit.runs, claim.arguments["vary"], reading) for reading in READINGS if reading in there]


def peak(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a, effects = claim.arguments, []
    for sweep in sweeps(claim, exhibit):
        for layers in a["lines"]:

            def chosen(value: float, sweep: SweptRuns = sweep, layers: int = layers) -> float:
                return float(sweep.at(value, layers, "val_accuracy").mean())

            top = max(a["values"][1:-1], key=chosen)
            for end in (a["values"][0], a["values"][-1]):
                gain = sweep.at(top, layers) - sweep.at(end, layers)
                effects.append(effect(f"{layers} layers, {top:g} over {end:g}", gain, sweep.reading))
    return effects


def better_setting(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a = claim.arguments
    return [
        effect(
            f"{layers} layers, {value:g} over {a['worse']:g}",
            sweep.at(value, layers) - sweep.at(a["worse"], layers),
            sweep.reading,
        )
        for sweep in sweeps(claim, exhibit)
        for layers in a["lines"]
        for value in a["better"]
    ]


def wider_gap(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a, effects = claim.arguments, []
    for sweep in sweeps(claim, exhibit):
        wide, narrow = (
            sweep.at(value, score="train_accuracy") - sweep.at(value, score="test_accuracy") for value in (a["wide"], a["narrow"])
        )
        effects.append(effect(f"λ = {a['wide']:g} over {a['narrow']:g}", wide - narrow, sweep.reading))
    return effects


def by_percent(claim: Claim, exhibit: Exhibit, loss: str) -> np.ndarray:
    """[percent, split]"""
    return np.stack([accuracies(exhibit.runs, f"{loss} {percent} %", "citeseer") for percent in claim.arguments["values"]])


def rises(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    share = np.array(claim.arguments["values"]) / 100
    centred = share - share.mean()
    effects = []
    for loss, reading in TABLE3_LOSSES.items():
        slopes = centred @ by_percent(claim, exhibit, loss) / (centred @ centred)
        effects.append(effect("citeseer", slopes, reading, "points from 0 to 100 %"))
    return effects


def steadier(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """log of the ratio of the standard deviations, first over last: both have the same splits."""
    effects = []
    for loss, reading in TABLE3_LOSSES.items():
        found = by_percent(claim, exhibit, loss)
        unit = "log ratio of standard deviations"
        effects.append(effect_of("citeseer", paired_spreads(found[0], found[-1]), reading, unit))
    return effects


def at_most(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """The mean over the sizes, which are not a sample of anything."""
    effects = []
    for protocol, data in exhibit.data.items():
        extra = list(data["extra_percent"].values())
        part = f"{PROTOCOLS[protocol]}, mean of {len(extra)} sizes ({min(extra):.0f} to {max(extra):.0f} % more time)"
        below = claim.arguments["limit"] - float(np.mean(extra))
        effects.append(Effect(part, below, unit="per cent of time below the limit"))
    return effects


def majority(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    rates = {row["dataset"]: row["ours"][claim.arguments["measure"]] for row in exhibit.data["rows"]}
    return [Effect(dataset, 100 * rate - 50, unit="points above one half") for dataset, rate in rates.items()]


def strengthens(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """On random toys, which have nothing in common."""
    gains = np.array(exhibit.data["toys"][claim.arguments["method"]]["gains"])
    return [effect_of(f"{len(gains)} toys", resampled_difference(gains, 0), "paper", "points of edges", 100)]


def separable(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """Which starts are linearly separable, start by start: both have the same first weights, noisy edges and split."""
    starts = claim.arguments["starts"]
    effects, tallies = [], exhibit.data[starts]
    for more, less in claim.arguments["pairs"]:
        one, other = (np.array(find_tally(tallies, case)["wrong"]) == 0 for case in (more, less))
        part = f"{more.method} {more.network} {more.layers} over {less.method} {less.network} {less.layers}"
        part += f", {int(one.sum())} and {int(other.sum())} of {len(one)} starts"
        reading = "paper" if starts == "trained" else ""
        effects.append(effect_of(part, paired_rates(one, other), reading, "points of separable starts", 100))
    return effects


MEASURES: dict[str, Callable[[Claim, Exhibit], list[Effect]]] = {  # by the kind of a claim
    "better": better,
    "best": best,
    "peak": peak,
    "better_setting": better_setting,
    "wider_gap": wider_gap,
    "rises": rises,
    "steadier": steadier,
    "at_most": at_most,
    "majority": majority,
    "strengthens": strengthens,
    "separable": separable,
}
