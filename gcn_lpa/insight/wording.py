"""Explanations and what-ifs in words, for a terminal of 80 columns and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gcn_lpa.insight.paths import EQUAL

if TYPE_CHECKING:
    from gcn_lpa.insight.answers import Explanation, Vote, VotePath, WhatIf


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
