"""Whether a costly member is worth its time: it learns without the first fold, and goes on to the others if that fold says so.

The fold is predicted by the pool of the other members with and without it, by weights that were fitted to others of its nodes. The
gain is that of the mean log likelihood of a held-out label; its noise is one standard error. Costly members are judged only where
hop columns, a member, stand in for them, and where the fold is no handful of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gcn_lpa.learning.ensemble import Parts, cross_fitted
from gcn_lpa.recipes import Recipe

FEWEST = 30  # held-out nodes in the fold: of fewer, nothing can be said
CROSSED = 5  # parts of the fold, each predicted by weights of the others
TINY = 1e-12  # the least probability of a label that counts


@dataclass(frozen=True)
class Worth:
    """What a member adds to the log likelihood of a held-out label, and one standard error of it."""

    gain: float
    noise: float

    @property
    def is_enough(self) -> bool:
        return self.gain > self.noise

    def __str__(self) -> str:
        return f"a held-out label gets {self.gain:+.4f} ± {self.noise:.4f} likelier (log) with it, on the first fold"


def is_judged(recipe: Recipe, num_held_out: int) -> bool:
    """Whether the costly members of an ensemble have to show their worth."""
    return "hop-columns" in recipe.members.split() and num_held_out >= FEWEST


def is_costly(member: Recipe, at_once: bool) -> bool:
    """Whether an epoch of a member walks all edges."""
    return not at_once and member.propagation != "columns"


def worth_of(parts: Parts, y: Tensor, known: list[int], number: int) -> Worth:
    """The worth of member `number` beside the members `known`, on the held-out nodes that the parts are about.

    Args:
        y: the classes of these nodes, [m].
    """
    fold = torch.arange(len(y)) % CROSSED

    def logs(members: list[int]) -> Tensor:
        chosen = Parts(tuple(parts.members[k] for k in members), parts.votes)
        p = cross_fitted(chosen, y, fold).gather(1, y.unsqueeze(1)).squeeze(1)
        return p.clamp_min(TINY).log()

    gain = logs([*known, number]) - logs(known)
    return Worth(float(gain.mean()), float(gain.std()) / math.sqrt(len(gain)))
