"""Documentation in plain words: how long pages and sentences are, and which words they use."""

import re
import statistics

import pytest

from tests.helpers.pages import FENCE, PAGES, README, prose, sentences, words_of

MOST_WORDS, MOST_OF_README, MOST_OF_HOW_TO = 13_000, 700, 900
HOW_TO = (
    *("data", "databases", "edges", "training", "advice", "report", "explaining", "auditing", "confidence"),
    *("rare", "growth", "large", "estimator"),
)
# Rows of results have the names of their time.
RESULTS = re.compile(r"<!-- generated: (?:table|scores) .*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
GLOSSARY = (  # concept: written, and not
    ("structural features", r"columns about the graph|place of a node|\bplaces\b"),
    ("ensemble", r"\bteams?\b|\bis heard\b|\bare heard\b|\bspeaks?\b|\bexperts?\b|\bopinions?\b"),
    ("edge type", r"kinds? of edges?|edges of one kind"),
    ("prediction", r"\btold\b|\bopinion\b|what the model said"),
    ("label votes", r"votes of those"),
    ("held-out labels", r"labels that were not taught|what the others say of it"),
    ("training nodes", r"\bthe taught\b|\btaught\b"),
    ("settings", r"what it is made of|what they are made of"),
    ("significantly", r"beyond noise|above the noise"),
    ("warning", r"\bdoubts?\b"),
    ("accuracy", r"what they reach"),
    ("new nodes", r"grown (?:graph|folder)"),
    ("weights", r"\blistens?\b|\bhears?\b|nobody listens"),
)


def counted(page):
    return len(words_of(prose(page.read_text(encoding="utf-8"))))


def test_the_documentation_is_short():
    assert sum(map(counted, PAGES)) <= MOST_WORDS
    assert counted(README) <= MOST_OF_README


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in HOW_TO], ids=lambda page: page.name)
def test_a_how_to_page_is_short(page):
    assert counted(page) <= MOST_OF_HOW_TO


def test_half_of_all_sentences_have_fewer_than_twenty_words():
    lengths = [len(words) for page in PAGES for words in sentences(page.read_text(encoding="utf-8"))]
    assert len(lengths) > 500 and statistics.median(lengths) < 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_has_more_than_forty_words(page):
    assert [" ".join(words) for words in sentences(page.read_text(encoding="utf-8")) if len(words) > 40] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_a_word_that_the_glossary_replaces(page):
    text = CODE.sub("", RESULTS.sub("", FENCE.sub("", page.read_text(encoding="utf-8"))))
    assert [found for _, banned in GLOSSARY for found in re.findall(banned, text, flags=re.IGNORECASE)] == []


def test_the_words_of_the_glossary_are_used():
    text = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in PAGES).lower()
    assert [written for written, _ in GLOSSARY if written not in text] == []


def test_sentences_are_counted_as_by_hand():
    text = "# Title\n\nOne two three. Four `a b c` five!\n\n- six seven\n\n| no | words |\n\n```\nnone\n```\n"
    assert [len(words) for words in sentences(text)] == [3, 3, 2]
