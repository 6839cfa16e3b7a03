"""The README's blocks of code and sessions."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def session(text):
    """[(command, the lines shown below it)] of a console block."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(lines[0], lines[1:]) for lines in (part.rstrip("\n").split("\n") for part in parts)]


def without_numbers(line):
    return re.sub(r"\d[\d,.]*", "#", line)
