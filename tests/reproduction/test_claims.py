"""The paper's numbers as data: that they are what its source prints, and that they agree with each other."""

import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from gcn_lpa.edges import EDGE_FORMS
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import PAPER, Recipe
from reproduction import claims
from reproduction.claims import BASELINES, CLAIMS, TABLE1, TABLE2, TABLE3, TABLE4, Case, Printed
from reproduction.recipes import SPACE, StudyRecipe

FIVE = ["cora", "citeseer", "pubmed", "coauthor-cs", "coauthor-phy"]


def test_the_tables_have_the_five_data_sets_in_the_order_of_the_paper():
    assert list(TABLE1) == list(TABLE2) == list(TABLE4) == FIVE
    assert all(list(column) == list(claims.TABLE2_METHODS) for column in TABLE2.values())
    assert set(claims.TABLE2_METHODS) <= set(METHODS)


@pytest.mark.parametrize(
    ("method", "total"),  # of the five means and of the five intervals, added up on paper
    [
        *[("mlp", (398.3, 6.4)), ("lr", (419.4, 5.9)), ("lpa", (424.1, 3.8)), ("gcn", (442.5, 4.4))],
        *[("gat", (440.9, 2.8)), ("jk-net", (440.4, 4.0)), ("graphsage", (433.8, 7.3)), ("gcn-lpa", (446.7, 3.3))],
    ],
)
def test_the_rows_of_table_2_add_up(method, total):
    sums = [math.fsum(column[method][part] for column in TABLE2.values()) for part in (0, 1)]
    assert sums == pytest.approx(total, abs=1e-9)


def test_table_3_ends_at_the_number_of_table_2():
    assert TABLE3[100] == TABLE2["citeseer"]["gcn-lpa"] == (78.7, 0.6)
    means = [cell.mean for cell in TABLE3.values()]
    assert means == sorted(means)


def test_table_3_is_not_steadier_at_every_step():
    """The text claims it; 20 % has the widest interval of all."""
    assert max(TABLE3, key=lambda ratio: TABLE3[ratio].interval) == 20
    assert TABLE3[100].interval < TABLE3[0].interval


def test_the_bold_numbers_are_the_highest():
    best = {name: max(column, key=lambda method: column[method].mean) for name, column in TABLE2.items()}
    assert best == dict.fromkeys(FIVE, "gcn-lpa") | {"cora": "jk-net"}


def test_one_margin_of_the_paper_is_outside_its_own_intervals():
    margins = {name: claims.margin(name) for name in FIVE}
    assert {name: (rival, round(gap.mean, 1)) for name, (rival, gap) in margins.items()} == {
        "cora": ("jk-net", -0.6),
        "citeseer": ("jk-net", 0.4),
        "pubmed": ("gcn", 0.6),
        "coauthor-cs": ("gat", 1.0),
        "coauthor-phy": ("gat", 0.6),
    }
    assert [name for name, (_, gap) in margins.items() if not gap.is_noise] == ["coauthor-cs"]


def test_a_difference_has_the_length_of_both_intervals():
    gap = Printed(5.0, 0.3).minus(Printed(4.0, 0.4))
    assert gap == pytest.approx((1.0, 0.5))
    assert not gap.is_noise
    assert str(gap) == "1.0 ± 0.5"


def test_table_4_is_what_the_recipes_run():
    printed = {  # Appendix F
        "hidden": (32, 16, 32, 32, 32),
        "gcn_layers": (5, 2, 2, 2, 2),
        "lpa_iterations": (5, 5, 1, 2, 3),
        "l2": (1e-4, 5e-4, 2e-4, 1e-4, 1e-4),
        "lpa_weight": (10, 1, 1, 2, 1),
        "dropout": (0.2, 0, 0, 0.2, 0.2),
        "lr": (0.05, 0.2, 0.1, 0.1, 0.05),
    }
    for field, row in printed.items():
        assert tuple(TABLE4[name][field] for name in FIVE) == row
    assert list(claims.TABLE4_ROWS.values()) == list(printed)
    assert {recipe.epochs for recipe in PAPER.values()} == {claims.SETUP.epochs}


def test_the_settings_of_table_4_are_in_the_search_space():
    assert all(value in SPACE[field] for settings in TABLE4.values() for field, value in settings.items())
    assert list(claims.FIGURE3_ITERATIONS) == [*range(1, 10)]
    assert claims.FIGURE4_LAMBDAS == (0, 1, 2, 5, 10, 15, 20)


def test_the_karate_club_has_the_size_the_paper_gives(karate):
    counts = claims.KARATE.nodes, claims.KARATE.edges, claims.KARATE.classes
    assert counts == (karate.num_nodes, karate.num_edges, karate.num_classes)
    StudyRecipe(hidden=claims.KARATE.width, activation=claims.KARATE.activation, init="uniform")  # is a recipe


def test_every_claim_says_how_it_is_tested():
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.kind in claims.KINDS
        named = set(re.findall(r"`(\w+)`", claims.KINDS[claim.kind]))
        assert named <= set(claim.arguments), claim.key
        assert claim.sentence.endswith(".")
    assert set(Counter(claim.kind for claim in CLAIMS)) == set(claims.KINDS)


def test_claims_speak_of_what_exists():
    names = {*claims.TABLE2_METHODS, *EDGE_FORMS, "joint", "two-step", "free + λ"}
    for claim in CLAIMS:
        arguments = claim.arguments
        assert set(arguments.get("datasets", ())) <= set(FIVE)
        if claim.kind == "better":
            assert {arguments["better"], *arguments["worse"]} <= names
        if "vary" in arguments:
            assert hasattr(Recipe(), arguments["vary"])


def test_the_claims_that_gcn_lpa_wins_follow_table_2():
    for claim in CLAIMS:
        if claim.study == "table2" and claim.kind == "better":
            for name in claim.arguments["datasets"]:
                ours = TABLE2[name]["gcn-lpa"].mean
                assert all(TABLE2[name][rival].mean < ours for rival in claim.arguments["worse"])
    won = {claim.arguments["worse"][0]: claim.arguments["datasets"] for claim in CLAIMS if claim.key[:8] == "gcn-lpa>"}
    assert {rival for rival, names in won.items() if list(names) != FIVE} == {"jk-net"}
    assert set(won) < set(BASELINES)


def test_the_claims_on_karate_pair_panels_of_figure_7():
    panels = {
        Case(method, network, layers)
        for method in ("gcn", "gcn-lpa")
        for network in ("original", "noisy")
        for layers in (1, 2, 3, 4)
    }
    pairs = {pair for claim in CLAIMS if claim.kind == "separable" for pair in claim.arguments["pairs"]}
    assert {case for pair in pairs for case in pair} == panels


@pytest.fixture
def source():
    """The paper's LaTeX, with its tables; it is not part of the repository."""
    path = Path(os.environ.get("GCN_LPA_PAPER", ""))
    if not path.is_file():
        pytest.skip("the source of the paper is not here: $GCN_LPA_PAPER names no file")
    return path.read_text(encoding="utf-8")


def test_table_2_is_read_as_printed(source):
    names = ("MLP", "LR", "LPA", "GCN", "GAT", "JK-Net", "GraphSAGE", "GCN-LPA")
    for method, label in zip(claims.TABLE2_METHODS, names, strict=True):
        row = next(line for line in source.splitlines() if re.match(rf"\s*{label} &.*\\pm", line))
        numbers = [float(number) for number in re.findall(r"\d+\.\d", row)]
        assert numbers == [number for column in TABLE2.values() for number in column[method]]


def test_table_3_is_read_as_printed(source):
    row = next(line for line in source.splitlines() if re.match(r"\s*Accuracy &", line))
    assert [float(n) for n in re.findall(r"\d+\.\d", row)] == [number for cell in TABLE3.values() for number in cell]


def test_table_1_is_read_as_printed(source):
    labels = {"# nodes": "nodes", "# edges": "edges", "# features": "features", "# classes": "classes"}
    for label, field in labels.items():
        row = next(line for line in source.splitlines() if line.strip().startswith("\\" + label))
        counts = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", row)]
        assert counts == [getattr(column, field) for column in TABLE1.values()]
    row = next(line for line in source.splitlines() if "Intra-class edge rate &" in line)
    rates = [float(number) for number in re.findall(r"\d+\.\d", row)]
    assert rates == pytest.approx([100 * column.intra_class_edge_rate for column in TABLE1.values()])
