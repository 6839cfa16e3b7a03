"""Hints in error messages: what there is, and what a name may be meant for."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

WARNING = "warning: "  # how such a note begins
LONGEST_NAME = 100  # characters of a name that others are compared with


def some(values: Sequence[Any], most: int = 5) -> str:
    """The first of the values, and how many there are."""
    shown = ", ".join(f"{value!r:.80}" for value in values[:most])
    return shown if len(values) <= most else f"{shown}, … {len(values):,} in all"


def similar(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that a text may be misspelt for, of the first 2,000 about as long; a long text has none."""
    if len(text) > LONGEST_NAME:
        return []
    alike = (name for name in names if abs(len(name) - len(text)) <= 3)
    return difflib.get_close_matches(text, itertools.islice(alike, 2_000), n=3)


def meant(text: object, names: Iterable[str]) -> str:
    """What a misspelt name may be meant for, to end a sentence with; else nothing."""
    close = similar(str(text), names)
    return f"; did you mean {close[0]}?" if close else ""


def written_alike(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that are the text but for case, zeros in front, a .0 behind or blanks: spreadsheets change those."""

    def bare(name: str) -> str:
        return name.strip().casefold().removesuffix(".0").lstrip("0")

    return list(itertools.islice((name for name in names if bare(name) == bare(text)), 3))


def of_another_kind(value: Hashable, names: Iterable[Hashable]) -> str:
    """A hint where a name prints like `value` but is of another type, such as 1 and "1"; else nothing."""
    twin = next((name for name in names if type(name) is not type(value) and str(name) == str(value)), None)
    both = f"{value!r} is {type_word(value)}, {twin!r} is {type_word(twin)}"
    return "" if twin is None else f"{both}: ids are of one kind everywhere"


def type_word(value: Hashable) -> str:
    return "text" if isinstance(value, str) else "a number" if isinstance(value, int) else f"a {type(value).__name__}"
