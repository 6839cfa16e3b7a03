"""Every number in the tables and result sentences of docs/ and README.md is that of a committed result.

A page is read up to its marks. `<!-- table 2 of results/table2.md -->`: the table below is that one. `<!-- settings -->`: from
here on numbers are settings, formulas, versions or examples; `<!-- results -->` ends that. Fenced code is a session or an
example. Of all else every number stands in a fragment that `tests/helpers/page_fragments.py` makes of the results, and the
page has the fragment word for word.
"""

import re
from pathlib import Path

import pytest

from benchmarks.pages import MARK, PAGES, filled
from tests.helpers.page_fragments import FRAGMENTS, SETTINGS

ROOT = Path(__file__).parents[1]

CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TIED = re.compile(r"<!-- [\w-]+ \w+ -->\n(?:\|.*\n)+")  # by tests/test_accuracy_page.py
TITLES = "Eqs?\\.|Tables?|Figures?|Sections?|Theorems?|Lemmas?|Definition|Appendix"
NAMES = re.compile(  # that hold digits and are no numbers
    rf"`[^`]*`|\]\([^)]*\)|(?:{TITLES})\s*\(?[\d.]+\)?(?:(?:,| and| to| or)\s*\(?[\d.]+\)?)*"
    r"|\b(?:19|20)\d\d\b|H200|\bL[12]\b|\bF1\b|TF32|float(?:32|64)|UTF-8|\b2-D\b|95 %|sha256"
)
NUMBER = re.compile(r"(?<![\w.])[-+−]?\.?\d[\d.,/]*(?:e-?\d+)?|[⁰¹²³⁴-⁹]+")


def result_text(page):
    """What of a page may hold results: no code, no settings, no table that is compared as a whole."""
    text = TIED.sub("", MARK.sub("", CODE.sub("", page)))
    parts = re.split(r"<!-- (settings|results) -->", "<!-- results -->" + text)
    return " ".join(
        " ".join(said for mark, said in zip(parts[1::2], parts[2::2], strict=True) if mark == "results").split()
    )


def settings_text(page):
    parts = re.split(r"<!-- (settings|results) -->", TIED.sub("", MARK.sub("", CODE.sub("", page))))
    return "\n".join(said for mark, said in zip(parts[1::2], parts[2::2], strict=True) if mark == "settings")


def untied(page, fragments):
    """What is wrong with a page: fragments it has not, and numbers that no fragment has."""
    text = result_text(page)
    missing = [fragment for fragment in fragments if fragment not in text]
    for fragment in sorted(fragments, key=len, reverse=True):
        text = text.replace(fragment, " … ")
    text = NAMES.sub(" ", text)
    loose = [text[max(0, found.start() - 40) : found.end() + 10] for found in NUMBER.finditer(text)]
    return missing + loose


def fragments_of(path):
    name = path.relative_to(ROOT).as_posix()
    made = FRAGMENTS[name]() if name in FRAGMENTS else []
    return [*made, *SETTINGS.get(name, ())]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_number_of_a_page_is_that_of_a_result(path):
    assert untied(path.read_text(encoding="utf-8"), fragments_of(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_marked_tables_are_those_of_the_results(path):
    page = path.read_text(encoding="utf-8")
    assert filled(page) == page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_is_marked_as_settings_has_no_interval(path):
    assert not re.search(r"\d ± \.?\d", settings_text(path.read_text(encoding="utf-8")))


def changed_digits(text):
    """The text with one digit changed, for every number in it that is not in a name."""
    hidden = NAMES.sub(lambda found: "x" * len(found[0]), text)
    for found in NUMBER.finditer(hidden):
        digit = hidden[found.end() - 1]
        if digit.isdecimal():
            yield text[: found.end() - 1] + str((int(digit) + 1) % 10) + text[found.end() :]


@pytest.mark.parametrize("path", [ROOT / name for name in FRAGMENTS], ids=lambda path: path.name)
def test_a_changed_digit_is_found(path):
    """The test of the test: the last digit of each number of a page's result text, one after the other."""
    fragments, text = fragments_of(path), result_text(path.read_text(encoding="utf-8"))
    pages = list(changed_digits(text))
    assert pages
    assert all(untied(page, fragments) for page in pages)


def test_a_changed_digit_in_a_marked_table_is_found():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    (cell,) = re.findall(r"\| official \| (\d\d\.\d) ± \d\.\d \| \d\d\.\d ± \d\.\d \| \d", page)
    other = page.replace(f"| official | {cell} ", f"| official | {float(cell) + 0.1:.1f} ")
    assert other != page
    assert filled(other) == page
