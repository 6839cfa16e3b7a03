"""The answers to questions about a trained model, an explanation with its votes, a what-if with its changes, and their words."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gcn_lpa.data.describe import html_notes, html_table
from gcn_lpa.insight.paths import EQUAL, plain


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
    label: str
    share: float
    by_length: tuple[float, ...]  # of walks of 1, 2, … k steps; they sum to `share`
    path: VotePath  # the most probable of those walks


@dataclass(frozen=True)
class Others:
    """The voters that are not listed one by one."""

    num_voters: int
    scores: dict[str, float]  # what they count together, by class


@dataclass(frozen=True)
class Influence:
    """How much of a node's features arrives at the explained node, Lemma 1."""

    node: Hashable
    share: float


@dataclass(frozen=True)
class Explanation:
    """What the model says of a node, what label propagation says, and who voted. `print` it, or take `to_dict`.

    For every class, the shares of `votes` and what `others` count sum to `scores`. The scores sum to 1 less the share of walks
    that met no label within `hops`.
    """

    node: Hashable
    status: str  # "labeled", "reached" or "unreachable" by a given label, as in `predictions`
    given_label: str | None  # where it is labelled, to train on or to choose the epoch
    distance: int | None  # hops to the nearest label that was trained on; only those vote
    method: str
    label: str
    probability: float
    probabilities: dict[str, float]  # the model's, of every class
    lpa_label: str | None  # None: no label within `hops`
    scores: dict[str, float]  # LPA's Y^(k) before the last reset, of every class
    agree: bool | None  # no class has a higher score than `label`
    hops: int
    votes: tuple[Vote, ...]  # the strongest first
    others: Others
    features: tuple[Influence, ...]  # the strongest first
    notes: tuple[str, ...]

    @property
    def unmet(self) -> float:
        """The share of walks that met no label within `hops`."""
        return max(0.0, 1.0 - sum(self.scores.values()))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: 10 digits of every number, ids that are neither text nor number as text."""
        facts: dict[str, Any] = plain({**dataclasses.asdict(self), "unmet": self.unmet})
        return facts

    def __str__(self) -> str:
        return "\n".join(explanation_lines(self))

    def _repr_html_(self) -> str:
        """Who says what, and the votes, for notebooks."""
        lpa = f"nothing within {self.hops} hops" if self.lpa_label is None else self.lpa_label
        scores = (self.method, self.label, self.probability), ("LPA", lpa, self.scores.get(self.lpa_label or ""))
        votes = [(v.share, v.node, v.label, " → ".join(map(str, v.path.nodes))) for v in self.votes]
        said = html_table(title(self), scores, ("who", "says", "score"))
        return said + html_table("votes", votes, ("share", "node", "label", "strongest path")) + html_notes(self.notes)


@dataclass(frozen=True)
class Change:
    """A prediction that is not what it was; the scores are those of the two labels. None: no label is near enough."""

    node: Hashable
    before: str | None
    after: str | None
    score_before: float
    score_after: float


@dataclass(frozen=True)
class Shift:
    """What a change did to one set of predictions."""

    changes: tuple[Change, ...]  # the largest move first
    num_moved: int  # nodes one of whose scores moved by more than `what_ifs.MOVED`
    largest_move: float


@dataclass(frozen=True)
class WhatIf:
    """Which predictions would differ: the model's, with the weights it has, and label propagation's, exactly. `retrained`: those
    of a model trained with the change beside one trained without it, where that was asked for.

    Nodes that have a training label after the change are not listed: theirs is given.
    """

    asked: tuple[str, ...]
    method: str
    hops: int
    num_nodes: int  # that are predicted
    model: Shift
    lpa: Shift
    notes: tuple[str, ...]
    retrained: Shift | None = None

    def to_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = plain(dataclasses.asdict(self))
        return facts

    def __str__(self) -> str:
        return "\n".join(what_if_lines(self))


def hops_in_words(number: int) -> str:
    return "1 hop" if number == 1 else f"{number} hops"


def explanation_lines(why: Explanation) -> list[str]:
    """An explanation as text."""
    total, num_voters = sum(why.scores.values()), len(why.votes) + why.others.num_voters
    verdict = {None: "", True: "they agree", False: "they disagree"}[why.agree]
    lpa = (number_in_words(why.scores[why.lpa_label]), verdict) if why.lpa_label else ("", "")
    said = [
        ("", f"{why.method} says", why.label, number_in_words(why.probability), ""),
        ("", "LPA says", why.lpa_label or f"nothing: no label within {hops_in_words(why.hops)}", *lpa),
    ]
    lines = [title(why), *_aligned(said)]
    if why.votes:
        voters = f"{num_voters:,} training label{'s' * (num_voters != 1)} within {hops_in_words(why.hops)}"
        missed = f"; {number_in_words(why.unmet)} of the walks met none" if why.unmet > 10.0**-EQUAL else ""
        votes = [
            ("", number_in_words(v.share), str(v.node), v.label, _by_length(v), _arrows(v.path)) for v in why.votes
        ]
        header = ("", "share", "node", "label", "by hops", "strongest path")
        lines += ["", f"votes of {voters}; they sum to {number_in_words(total)}{missed}", *_aligned([header, *votes])]
    if why.others.num_voters:
        classes = sorted(why.others.scores, key=lambda name: -round(why.others.scores[name], EQUAL))
        listed = ", ".join(f"{name} {number_in_words(why.others.scores[name])}" for name in classes[:3])
        rest = number_in_words(sum(why.others.scores.values()))
        who = f"{why.others.num_voters:,} other{'s' * (why.others.num_voters != 1)}"
        lines.append(f"  {rest}  {who} ({listed}{', …' if len(classes) > 3 else ''})")
    if why.features:
        features = [("", number_in_words(one.share), str(one.node)) for one in why.features]
        if (unlisted := 1 - sum(one.share for one in why.features)) > 10.0**-EQUAL:
            features.append(("", number_in_words(unlisted), "all others"))
        lines += ["", "whose features the model looks at", *_aligned(features)]
    return [*lines, *(["", *(f"note: {note}" for note in why.notes)] if why.notes else [])]


def title(why: Explanation) -> str:
    if why.given_label is not None:
        role = "trained on" if why.distance == 0 else "validation node, given"
        state = f"{role} as {why.given_label}"
    elif why.distance is None:
        state = "no training label, and none can reach it"
    else:
        state = f"no training label, the nearest is {hops_in_words(why.distance)} away"
    return f"node {why.node}: {state}"


def number_in_words(value: float) -> str:
    """Three decimals, or one digit where they would be zeros."""
    return f"{value:.3f}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


def _by_length(vote: Vote, most: int = 4) -> str:
    """The lengths of walk that are a hundredth of the vote or more: "1: 0.250, 2: 0.060"."""
    some = [
        f"{k}: {number_in_words(share)}"
        for k, share in enumerate(vote.by_length, start=1)
        if share >= 0.01 * vote.share
    ]
    return ", ".join(some[:most]) + (", …" if len(some) > most else "")


def _arrows(path: VotePath) -> str:
    return f"{' → '.join(map(str, path.nodes))}  ({number_in_words(path.probability)})"


def what_if_lines(answer: WhatIf, most: int = 20) -> list[str]:
    lines = [f"what if: {'; '.join(answer.asked)}"]
    found = [(answer.method, answer.model), (f"LPA, {hops_in_words(answer.hops)}", answer.lpa)]
    if answer.retrained is not None:
        found.append((f"{answer.method}, trained again", answer.retrained))
    for name, shift in found:
        moved = f"scores of {shift.num_moved:,} moved, by {shift.largest_move:.3f} at most"
        moved = moved if shift.num_moved else "no score moved"
        lines += ["", f"{name}: {len(shift.changes):,} of {answer.num_nodes:,} predictions change; {moved}"]
        rows = [
            (
                "",
                str(c.node),
                f"{c.before or 'none'} {c.score_before:.3f}",
                f"→ {c.after or 'none'} {c.score_after:.3f}",
            )
            for c in shift.changes[:most]
        ]
        lines += _aligned(rows)
        if len(shift.changes) > most:
            lines.append(f"  … and {len(shift.changes) - most:,} more; --json lists all")
    return [*lines, "", *(f"note: {note}" for note in answer.notes)]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns two blanks apart, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
