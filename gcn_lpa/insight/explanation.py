"""An explanation of one prediction, with its votes, as text, for notebooks and for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcn_lpa.data.describe import html_notes, html_table

EQUAL = 12  # decimals up to which two shares are the same
MOST_CLASSES = 3  # that a line of text lists


@dataclass(frozen=True)
class VotePath:
    """A walk from the explained node to a voter; the label travels it the other way."""

    nodes: tuple[Hashable, ...]
    weights: tuple[float, ...]  # a*_ij of each step
    probability: float  # their product


@dataclass(frozen=True)
class Vote:
    """The share of a prediction that one labelled node's label has: I_l(v_a, v_b; k), Definition 2."""

    node: Hashable
    label: str  # the class, or the number as text
    share: float
    by_length: tuple[float, ...]  # of walks of 1, 2, … k steps; they sum to `share`
    path: VotePath  # the most probable of those walks


@dataclass(frozen=True)
class Others:
    """The voters that are not listed one by one."""

    num_voters: int
    scores: dict[str, float]  # the sum of their shares, by class


@dataclass(frozen=True)
class Influence:
    """How much of a node's features arrives at the explained node, Lemma 1."""

    node: Hashable
    share: float


@dataclass(frozen=True)
class NumberFacts:
    """Numbers behind an explanation. On the scale that the model learns on, LPA's is the mean of the numbers of `votes` and
    `others`, each with its share: on a log scale, the mean of their logarithms.
    """

    value: float  # the model's
    low: float | None  # of its 90 % interval; None where too few labels were held out
    high: float | None
    lpa: float | None  # the mean of all votes; None without any
    votes: tuple[float, ...]  # the number of each of the listed votes
    others: float | None  # the mean of those that are not listed
    log_offset: float | None  # of a log scale, log(number + offset)


NUMBERS = "numbers"  # in place of a class, where numbers are predicted


@dataclass(frozen=True)
class Explanation:
    """The prediction of the model, that of label propagation, and who voted. `print` it, or take `to_dict`.

    For every class, the shares of `votes` and of `others` sum to `scores`. The scores sum to 1 less the share of walks that met
    no label within `hops`.
    """

    node: Hashable
    status: str  # "labeled", "reached" or "unreachable" by a given label, as in `predictions`
    given_label: str | None  # of a training or validation node
    distance: int | None  # hops to the nearest training label; only those vote
    method: str
    label: str  # of numbers as text, as `lpa_label` is
    probability: float | None  # None of a number
    probabilities: dict[str, float]  # the model's, of every class
    lpa_label: str | None  # None: no label within `hops`
    scores: dict[str, float]  # LPA's Y^(k) before the last reset, of every class; of NUMBERS the share of all votes
    agree: bool | None  # no class has a higher score than `label`; of numbers: the number of LPA is in the interval
    hops: int
    votes: tuple[Vote, ...]  # the strongest first
    others: Others
    features: tuple[Influence, ...]  # the strongest first
    notes: tuple[str, ...]
    number: NumberFacts | None = None  # where numbers are predicted

    @property
    def unmet(self) -> float:
        """The share of walks that met no label within `hops`."""
        return max(0.0, 1.0 - sum(self.scores.values()))

    @property
    def title(self) -> str:
        if self.given_label is not None:
            role = "trained on" if self.distance == 0 else "validation node, given"
            state = f"{role} as {self.given_label}"
        elif self.distance is None:
            state = "no training label, and none can reach it"
        else:
            state = f"no training label, the nearest is {hops_in_words(self.distance)} away"
        return f"node {self.node}: {state}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: 10 digits of every number, ids that are neither text nor number as text."""
        facts: dict[str, Any] = plain({**dataclasses.asdict(self), "unmet": self.unmet})
        return facts

    def __str__(self) -> str:
        verdict = {None: "", True: "they agree", False: "they disagree"}[self.agree]
        nothing = f"nothing: no label within {hops_in_words(self.hops)}"
        lpa = (nothing, "", "")
        if self.lpa_label:
            lpa = (self.lpa_label, in_words(self.scores.get(self.lpa_label, 1.0)), verdict)
        sure = "" if self.probability is None else in_words(self.probability)
        if self.number is not None:
            has_interval = self.number.low is not None and self.number.high is not None
            sure = f"{self.number.low:.4g} to {self.number.high:.4g}" if has_interval else ""
            lpa = (lpa[0], "", {None: "", True: "in the interval", False: "not in the interval"}[self.agree])
        both = [("", f"{self.method} predicts", self.label, sure, ""), ("", "LPA predicts", *lpa)]
        lines = [self.title, *aligned(both)]
        if self.votes:
            number = len(self.votes) + self.others.num_voters
            voters = f"{number:,} training label{'s' * (number != 1)} within {hops_in_words(self.hops)}"
            missed = f"; {in_words(self.unmet)} of the walks met none" if self.unmet > 10.0**-EQUAL else ""
            total = in_words(sum(self.scores.values()))
            rows = [("", "share", "node", "label", "strongest path")]
            for vote in self.votes:
                path = f"{' → '.join(map(str, vote.path.nodes))}  ({in_words(vote.path.probability)})"
                rows.append(("", in_words(vote.share), str(vote.node), vote.label, path))
            lines += ["", f"votes of {voters}; they sum to {total}{missed}", *aligned(rows)]
        if number := self.others.num_voters:
            scores = self.others.scores
            classes = sorted(scores, key=lambda name: -round(scores[name], EQUAL))
            listed = [f"{name} {in_words(scores[name])}" for name in classes[:MOST_CLASSES]]
            listed += ["…"] * (len(classes) > MOST_CLASSES)
            rest = in_words(sum(scores.values()))
            if self.number is not None and self.number.others is not None:
                listed = [f"mean {self.number.others:.6g}"]
            lines.append(f"  {rest}  {number:,} other{'s' * (number != 1)} ({', '.join(listed)})")
        if self.features:
            features = [("", in_words(one.share), str(one.node)) for one in self.features]
            if (unlisted := 1 - sum(one.share for one in self.features)) > 10.0**-EQUAL:
                features.append(("", in_words(unlisted), "all others"))
            lines += ["", "whose features the model reads", *aligned(features)]
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Both predictions and the votes as tables, for notebooks."""
        lpa = f"nothing within {self.hops} hops" if self.lpa_label is None else self.lpa_label
        scores = (self.method, self.label, self.probability), ("LPA", lpa, self.scores.get(self.lpa_label or ""))
        votes = [(v.share, v.node, v.label, " → ".join(map(str, v.path.nodes))) for v in self.votes]
        both = html_table(self.title, scores, ("model", "prediction", "score"))
        return both + html_table("votes", votes, ("share", "node", "label", "strongest path")) + html_notes(self.notes)


def hops_in_words(number: int) -> str:
    return "1 hop" if number == 1 else f"{number} hops"


def in_words(value: float) -> str:
    """Three decimals, or one digit where they would be zeros."""
    return f"{value:.3f}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns two blanks apart, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def rounded(value: float, digits: int = 10) -> float:
    return float(f"{value:.{digits}g}")


def plain(value: Any) -> Any:
    """For JSON, see `Explanation.to_dict`."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return rounded(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
