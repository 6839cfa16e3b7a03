"""Every method, edge form and member names its sources, and a run prints those of what it uses."""

import re

import pytest

from gcn_lpa import learn, load, split
from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.methods.citations import OF_EDGES, OF_METHODS, bibtex, cited, entries
from gcn_lpa.methods.registry import MEMBERS, METHODS
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, LAYERS, WITH_FEW_LABELS
from tests.helpers.pages import ROOT


def test_every_method_and_edge_form_names_its_sources():
    assert OF_METHODS.keys() == METHODS.keys()
    assert OF_EDGES.keys() == {"fixed", *EDGE_FORMS}
    assert all(OF_METHODS.values())


def test_every_key_is_an_entry_and_every_entry_is_used():
    used = {key for keys in (*OF_METHODS.values(), *OF_EDGES.values()) for key in keys}
    everything = DEFAULT.replace(members=" ".join(MEMBERS), clusters=2)
    used |= set(cited(everything, calibrated=True))
    assert used == entries().keys()


@pytest.mark.parametrize(("key", "entry"), entries().items())
def test_an_entry_is_bibtex_with_author_title_and_year(key, entry):
    assert entry.startswith("@") and entry.count("{") == entry.count("}")
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, flags=re.MULTILINE))
    assert {"author", "title", "year"} <= fields.keys()
    assert re.fullmatch(rf"[a-z]+{fields['year']}[a-z]+", key)
    assert fields["author"].lower()[:2] == key[:2]


def test_a_recipe_cites_what_it_uses_and_nothing_else():
    plain = LAYERS.replace(**FIXED_EDGES, votes=False)
    assert cited(plain) == ["wang2020unifying", "kipf2017semi"]
    assert "chien2021adaptive" in cited(DEFAULT) and "thekumparampil2018attention" in cited(DEFAULT)
    few = cited(WITH_FEW_LABELS)
    assert {"feng2020graph", "gasteiger2019predict", "luo2024classic", "zhu2002learning"} <= set(few)
    assert len(few) == len(set(few)) and "thekumparampil2018attention" not in few
    assert cited(plain, calibrated=True)[-1] == "guo2017calibration"
    assert "chiang2019cluster" in cited(plain.replace(clusters=3))


def test_the_sources_of_how_it_works_are_those_of_the_entries():
    """Each entry's first author is named on the page, but for those of baselines that no ensemble has."""
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    names = {"Frasca", "Wang", "Kipf", "Gasteiger", "Chien", "Thekumparampil", "Feng", "Huang", "Shi", "Luo", "Chiang"}
    authors = {re.search(r"author = \{(\w+)", entry)[1] for entry in entries().values()}
    assert names <= authors
    assert [name for name in names if name not in page] == []


def test_a_trained_model_prints_its_entries():
    graph = load("karate")
    parts = split(graph, seed=0)
    trained = learn(graph, parts.train, parts.val, LAYERS.replace(**FIXED_EDGES, epochs=2), device="cpu")
    assert trained.citations() == bibtex(trained.recipe, calibrated=trained.calibration.changes)
    assert trained.citations().startswith("@article{wang2020unifying,")
