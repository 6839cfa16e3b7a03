"""What our runs say of each claim of the paper: it holds, it is inside the noise, or it is contradicted.

A claim is measured in one or more parts (data sets, numbers of layers, pairs), each an effect with a 95 % interval that
should be above 0. It holds where every part is above 0 by more than its interval, is contradicted where a part is as
far below 0, and is inside the noise otherwise. No correction is made for the number of parts; each is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from gcn_lpa.paper.claims import CLAIMS, TABLE2_METHODS, Claim
from gcn_lpa.paper.exhibits import Exhibit, LedgerLine, markdown_table
from gcn_lpa.paper.karate import find_tally
from gcn_lpa.recipes import PAPER
from gcn_lpa.stats import mean_of


@dataclass(frozen=True)
class Effect:
    """One part of a claim: the claim says that `value` is above 0."""

    part: str
    value: float
    interval: float | None  # None: exact, or a single split
    unit: str = "points"
    exact: bool = False

    @property
    def verdict(self) -> str:
        if self.exact:
            return "holds" if self.value > 0 else "contradicted"
        if self.interval is None or not abs(self.value) > self.interval:
            return "inside the noise"
        return "holds" if self.value > 0 else "contradicted"

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" ± {self.interval:.2g}"
        return f"{self.part} {self.value:+.2g}{spread}"


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    effects: tuple[Effect, ...]

    @property
    def verdict(self) -> str:
        found = {effect.verdict for effect in self.effects}
        if "contradicted" in found:
            return "contradicted"
        return "holds" if found == {"holds"} else "inside the noise"

    @property
    def counts(self) -> str:
        each = [effect.verdict for effect in self.effects]
        kinds = ("holds", "inside the noise", "contradicted")
        return ", ".join(f"{each.count(kind)} {kind}" for kind in kinds if kind in each)

    def to_dict(self) -> dict[str, Any]:
        effects = [{**asdict(effect), "verdict": effect.verdict} for effect in self.effects]
        return {
            "key": self.claim.key,
            "sentence": self.claim.sentence,
            "verdict": self.verdict,
            "effects": effects,
        }


def score_claims(exhibits: Mapping[str, Exhibit]) -> Exhibit:
    """The verdict on every claim whose study is among the exhibits; all their trainings are of one code version."""
    codes = {exhibit.code: name for name, exhibit in exhibits.items() if exhibit.runs}
    if len(codes) > 1:
        each = ", ".join(f"{name} of {code}" for code, name in codes.items())
        raise ValueError(f"the claims would mix trainings of several code versions: {each}; reproduce all by one")
    verdicts = [Verdict(c, tuple(MEASURES[c.kind](c, exhibits[c.study]))) for c in CLAIMS if c.study in exhibits]
    rows = []
    for found in verdicts:
        measured = f"{'; '.join(map(str, found.effects))} ({found.effects[0].unit})"
        rows.append([found.claim.sentence, found.claim.where, f"**{found.verdict}**", found.counts, measured])
    text = (
        "Each effect should be above 0; ± is its 95 % interval. A claim of several parts holds where all do, and is "
        "contradicted where one part is below 0 by more than its interval.\n\n"
        + markdown_table(["claim, in our words", "where", "verdict", "parts", "measured"], rows)
    )
    if missing := [c.key for c in CLAIMS if c.study not in exhibits]:
        text += f"\n\nWithout a verdict, as their studies were not run: {', '.join(missing)}."
    data = {"claims": [found.to_dict() for found in verdicts]}
    return Exhibit("claims", "The paper's claims", text, data, code=next(iter(codes), ""))


def accuracies(runs: Sequence[LedgerLine], row: str, dataset: str, score: str = "test_accuracy") -> np.ndarray:
    found = [run[score] for run in runs if run["row"] == row and run["dataset"] == dataset]
    if not found:
        raise ValueError(f"no training of {row!r} on {dataset}; run the study without --dataset and --method")
    return 100 * np.array(found)


def effect(part: str, differences: np.ndarray, unit: str = "points") -> Effect:
    found = mean_of(differences)
    return Effect(part, found.mean, found.interval, unit)


def better(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """Of GCN-LPA both readings count: that of the text, and that of the authors' code."""
    a = claim.arguments
    readings = {"gcn-lpa": ", text", "official": ", authors' code"} if a["better"] == "gcn-lpa" else {a["better"]: ""}
    effects = []
    for row, said in readings.items():
        for dataset in a["datasets"]:
            own = accuracies(exhibit.runs, row, dataset)
            for worse in a["worse"]:
                effects.append(effect(f"{dataset}, {worse}{said}", own - accuracies(exhibit.runs, worse, dataset)))
    return effects


def best(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """Against the best other method of Table 2, chosen by validation accuracy."""
    a, effects = claim.arguments, []
    for sign, datasets in ((1, a["on"]), (-1, a["not_on"])):
        for dataset in datasets:
            others = [name for name in TABLE2_METHODS if name != a["method"]]
            rival = max(others, key=lambda name, d=dataset: accuracies(exhibit.runs, name, d, "val_accuracy").mean())  # type: ignore[misc]
            gain = accuracies(exhibit.runs, a["method"], dataset) - accuracies(exhibit.runs, rival, dataset)
            effects.append(effect(f"{dataset}, {'over' if sign > 0 else 'below'} {rival}", sign * gain))
    return effects


def along(
    runs: Sequence[LedgerLine], setting: str, value: float, layers: int | None = None, score: str = "test_accuracy"
) -> np.ndarray:
    """The scores of the trainings with one value of a setting, by split."""
    recipe = PAPER["citeseer"]
    wanted = {setting: value, "gcn_layers": recipe.gcn_layers if layers is None else layers}

    def is_wanted(run: LedgerLine) -> bool:
        settings = {name: run["changes"].get(name, getattr(recipe, name)) for name in wanted}
        return run["recipe"] == "paper" and settings == wanted

    found = [run for run in runs if is_wanted(run)]
    if not found:
        raise ValueError(f"no training with {wanted}; run the study in full")
    return 100 * np.array([run[score] for run in sorted(found, key=lambda run: run["seed"])])


def peak(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a, effects = claim.arguments, []
    for layers in a["lines"]:

        def scores(value: float, score: str = "test_accuracy", layers: int = layers) -> np.ndarray:
            return along(exhibit.runs, a["vary"], value, layers, score)

        top = max(a["values"][1:-1], key=lambda value: scores(value, "val_accuracy").mean())
        for end in (a["values"][0], a["values"][-1]):
            effects.append(effect(f"{layers} layers, {top:g} over {end:g}", scores(top) - scores(end)))
    return effects


def better_setting(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a = claim.arguments
    effects = []
    for layers in a["lines"]:
        base = along(exhibit.runs, a["vary"], a["worse"], layers)
        for value in a["better"]:
            gain = along(exhibit.runs, a["vary"], value, layers) - base
            effects.append(effect(f"{layers} layers, {value:g} over {a['worse']:g}", gain))
    return effects


def wider_gap(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    a = claim.arguments

    def gap(value: float) -> np.ndarray:
        train, test = (along(exhibit.runs, a["vary"], value, score=f"{part}_accuracy") for part in ("train", "test"))
        return np.asarray(train - test)

    return [effect(f"λ = {a['wide']:g} over {a['narrow']:g}", gap(a["wide"]) - gap(a["narrow"]))]


def by_percent(claim: Claim, exhibit: Exhibit, loss: str) -> np.ndarray:
    """[percent, split]"""
    return np.stack(
        [accuracies(exhibit.runs, f"{loss} {percent} %", "citeseer") for percent in claim.arguments["values"]]
    )


def rises(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    share = np.array(claim.arguments["values"]) / 100
    centred = share - share.mean()
    effects = []
    for loss in ("literal", "official"):
        slopes = centred @ by_percent(claim, exhibit, loss) / (centred @ centred)
        effects.append(effect(f"loss {loss}", slopes, "points from 0 to 100 %"))
    return effects


def steadier(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """log of the ratio of the standard deviations, first over last, with the interval of the F distribution."""
    effects = []
    for loss in ("literal", "official"):
        found = by_percent(claim, exhibit, loss)
        k = found.shape[1]
        if k < 3:
            effects.append(Effect(f"loss {loss}", 0.0, None, "log ratio of standard deviations"))
            continue
        first, last = found[0].std(ddof=1), found[-1].std(ddof=1)
        width = 0.5 * math.log(stats.f.ppf(0.975, k - 1, k - 1))
        effects.append(Effect(f"loss {loss}", math.log(first / last), width, "log ratio of standard deviations"))
    return effects


def at_most(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    limit, effects = claim.arguments["limit"], []
    for protocol, data in exhibit.data.items():
        below = limit - np.array(list(data["extra_percent"].values()))
        effects.append(effect(f"protocol {protocol}", below, "per cent of time below the limit"))
    return effects


def majority(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    rates = {row["dataset"]: row["ours"][claim.arguments["measure"]] for row in exhibit.data["rows"]}
    return [
        Effect(dataset, 100 * rate - 50, None, "points above one half", exact=True) for dataset, rate in rates.items()
    ]


def strengthens(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """On random toys."""
    value, interval = exhibit.data["toys"][claim.arguments["method"]]["gain"]
    return [Effect("random toys", 100 * value, None if interval is None else 100 * interval, "points of edges")]


def separable(claim: Claim, exhibit: Exhibit) -> list[Effect]:
    """Which starts are linearly separable, start by start: both have the same first weights, noisy edges and split."""
    effects, tallies = [], exhibit.data[claim.arguments["starts"]]
    for more, less in claim.arguments["pairs"]:
        one, other = (np.array(find_tally(tallies, case)["wrong"]) == 0 for case in (more, less))
        part = f"{more.method} {more.network} {more.layers} over {less.method} {less.network} {less.layers}"
        effects.append(effect(part, 100.0 * (one.astype(float) - other), "points of separable starts"))
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
