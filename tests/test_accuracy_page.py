"""The numbers of docs/accuracy.md are those of the committed results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- (\S+) (\w+) -->\n((?:\|.*\n)+)", PAGE)


def rows_of(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def cells_of(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_table_says_where_it_is_from():
    assert len(TABLES) == len(re.findall(r"^\|---", PAGE, flags=re.M)) == 11


@pytest.mark.parametrize(("name", "what", "table"), TABLES, ids=lambda text: text[:24])
def test_the_tables_are_those_of_the_results(name, what, table):
    found, (head, _, *lines) = rows_of(name), table.splitlines()
    columns, rows = cells_of(head)[1:], {cells[0]: cells[1:] for cells in map(cells_of, lines)}
    if what == "transposed":  # the ingredients, by graph
        assert list(rows) == list(found["cora"])
        for row, cells in rows.items():
            assert cells == [found[graph][row]["accuracy"] for graph in found], row
        return
    assert sorted(rows) == sorted(found)
    for graph, cells in rows.items():
        assert cells == [found[graph][column][what] for column in columns], graph


def test_a_difference_in_the_text_is_one_of_the_result():
    (said,) = re.findall(r"squirrel \+([\d.]+ ± [\d.]+)", PAGE)
    assert rows_of("accuracy-dev-cpu")["squirrel-filtered"]["- columns of the graph"]["difference"] == f"-{said}"


def test_the_gains_on_tables_are_those_of_the_result():
    found = rows_of("tables-dev-cpu")
    assert f"it is {found['both']['lpa']['difference']} points above" in PAGE
    assert f"(opposites: {found['opposites']['lightgbm']['difference']})" in PAGE


def test_best_is_ahead_where_the_text_says():
    def mean(cell):
        return float(cell["accuracy"].split(" ")[0])

    ahead = [
        graph
        for graph, rows in rows_of("accuracy-60-h200").items()
        if mean(rows["best + wide"]) > max(mean(cell) for row, cell in rows.items() if row != "best + wide")
    ]
    assert len(ahead) == 9
    assert not {"citeseer", "cora-ml", "digits"} & set(ahead)
