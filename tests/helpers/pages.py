"""The pages of README.md and docs/: their prose, their blocks of code, and their sessions."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
NEAR = 0.02  # of a number with a fraction: machines differ in the last digits of a training


def blocks(page, kind):
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == kind]


def session(text):
    """[(command, the lines shown below it)] of a console block."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(lines[0], lines[1:]) for lines in (part.rstrip("\n").split("\n") for part in parts)]


def missing(shown, printed):
    """The shown lines that were not printed, in their order."""
    rest, lost = list(printed), []
    for line in shown:
        at = next((k for k, other in enumerate(rest) if is_same(line, other)), None)
        if at is None:
            lost.append(line)
        else:
            rest = rest[at + 1 :]
    return lost


def is_same(line, other):
    """Whether two lines have the same words and numbers; seconds and the last digits may differ."""
    line, other = (re.sub(r"\d+\.\d s\b", "… s", re.sub(r" +", " ", text)).strip() for text in (line, other))
    if NUMBER.sub("#", line) != NUMBER.sub("#", other):
        return False
    return all(is_near(one, two) for one, two in zip(NUMBER.findall(line), NUMBER.findall(other), strict=True))


def is_near(one, two):
    if "." not in one + two:
        return one == two
    a, b = (float(text.replace(",", "")) for text in (one, two))
    return abs(a - b) <= NEAR * max(1, abs(a))


def prose(text):
    """A page without code, tables, generated blocks, comments, images and headings: paragraphs and items of lists."""
    text = FENCE.sub("\n\n", GENERATED.sub("\n\n", text))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    lines = ["" if line.startswith(("|", "#")) else line for line in text.splitlines()]
    return re.sub(r"^\s*(?:- |\d+\. )", "\n", "\n".join(lines), flags=re.MULTILINE)


def sentences(text):
    """The sentences of the prose, each as its words; code counts as one word."""
    found = []
    for paragraph in re.split(r"\n\s*\n", prose(text)):
        flat = re.sub(r"`[^`]*`", "code", " ".join(paragraph.split()))
        found += [words_of(one) for one in re.split(r"(?<=[.!?])[*\")]*\s+(?=[^a-z])", flat)]
    return [words for words in found if words]


def words_of(text):
    return re.findall(r"[^\W_][\w'’-]*", text)
