"""The answers to questions about a trained model: an explanation with its votes, a what-if with its changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from gcn_lpa.data.describe import html_notes, html_table
from gcn_lpa.insight.paths import plain
from gcn_lpa.insight.wording import explanation_lines, title, what_if_lines


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
