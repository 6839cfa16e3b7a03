"""Generated blocks are what `python benchmarks/pages.py` writes, and no result stands outside them."""

import json
import re
import shutil

import pytest

from benchmarks import blocks
from benchmarks.pages import BLOCK, PAGES, ROOT, filled
from gcn_lpa.stats import mean_of
from reproduction.statistics import holm, resampled_difference
from reproduction.study import difference_of
from tests.helpers.pages import prose

EVIDENCE = ("accuracy", "performance", "reproduction", "theory", "comparison", "README")
COUNTS = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "fifteen",
    "twenty",
    "half",
    "third",
    "quarter",
    "twice",
]
WORD = re.compile(rf"\b(?:{'|'.join(COUNTS)})\b", re.IGNORECASE)
NAMES = re.compile(  # hold digits and are no numbers
    r"`[^`]*`|(?:Eqs?\.|Tables?|Figures?|Sections?|Theorems?|Lemmas?)\s*[(\d][\d()., and]*"
    r"|\b(?:19|20)\d\d\b|H200|\bL[12]\b|\bF1\b|60/20/20|[\w-]+\.md\b|\b9[05] (?:%|of 100)|\d+ November"
)
VERSION = re.compile(r"(?<= )\d+\.\d+\.\d+|Python 3\.\d+|3\.11")
RESULT = re.compile(r"±|\d+\.\d+|\b\d[\d,]*\s*(?:points?|ms\b|seconds\b|times\b|[KMG]i?B\b|s\b)")
STALE = re.compile(rf"\b(?:{'|'.join(COUNTS[:13])}) (?:of|out of|times|points?|per cent)\b", re.IGNORECASE)
NUMBER = re.compile(rf"\d|{WORD.pattern}", re.IGNORECASE)


def result_numbers(page):
    """What looks like a result in the prose of a page."""
    text = VERSION.sub("", NAMES.sub("", prose(page.read_text(encoding="utf-8"))))
    found = RESULT.findall(text) + STALE.findall(text)
    return found + re.findall(r"\d[\d.,]*", text) if page.stem in EVIDENCE else found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_is_what_the_command_writes(path):
    page = path.read_text(encoding="utf-8")
    assert filled(page) == page
    assert len(BLOCK.findall(page)) == page.count("<!-- generated: ") == page.count("<!-- end -->")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_result_stands_outside_a_block(path):
    assert result_numbers(path) == []


@pytest.mark.parametrize("path", [path for path in PAGES if BLOCK.search(path.read_text("utf-8"))], ids=lambda p: p.name)
def test_any_changed_digit_or_number_word_of_a_block_is_found(path):
    """The test of the test: each digit and number word of a block, changed alone, makes the block another."""
    for start, name, arguments, body, _ in BLOCK.findall(path.read_text(encoding="utf-8")):
        written = "".join(f"{line}\n" for line in blocks.BLOCKS[name](ROOT, *arguments_of(arguments)))
        assert body == written, start
        for found in NUMBER.finditer(body):
            one = str((int(found[0]) + 1) % 10) if found[0].isdecimal() else "thirteen"
            assert body[: found.start()] + one + body[found.end() :] != written


def arguments_of(text):
    return [one.strip() for one in text.split("|")] if text else []


def test_another_result_makes_other_pages(tmp_path):
    """Change one mean of one committed result: the command writes it into every page that shows it."""
    for folder in ("benchmarks/results", "results"):
        (tmp_path / folder).mkdir(parents=True)
        for file in (ROOT / folder).glob("*.*"):
            if file.suffix in (".json", ".jsonl", ".md"):
                (tmp_path / folder / file.name).symlink_to(file)
    file = tmp_path / "benchmarks" / "results" / "accuracy-60-h200.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["rows"]["cora"]["default"]["accuracy"] != "12.3 ± 4.5"
    found["rows"]["cora"]["default"]["accuracy"] = "12.3 ± 4.5"
    file.unlink()
    file.write_text(json.dumps(found))
    pages = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
    changed = {name for name, page in pages.items() if "12.3 ± 4.5" in filled(page, tmp_path)}
    assert changed == {"README.md", "accuracy.md"}
    shutil.rmtree(tmp_path / "results")


def claims():
    return json.loads((ROOT / "benchmarks" / "results" / "our-claims.json").read_text(encoding="utf-8"))


def test_our_claims_are_those_of_the_committed_ledgers():
    from benchmarks import claims as script

    assert json.loads(json.dumps(script.claims())) == claims()
    written = (ROOT / "benchmarks" / "results" / "our-claims.md").read_text(encoding="utf-8")
    assert script.as_markdown(script.claims()) == written


def test_what_readme_and_accuracy_say_in_words_holds():
    """Of the default: above each rival over graphs; none above it on any; of the best of each graph, on one alone."""
    found = claims()
    adjusted = holm([each["wilcoxon"] for each in found["default"].values()])
    assert max(adjusted) <= 0.05
    assert all(each["mean"] > 0 for each in found["default"].values())
    assert not [part for part in found["default, all pairs"] if part["holm"] <= 0.05 and part["mean"] < 0]
    above = {"default, strongest": ["squirrel-directed"], "best, strongest": [], "learned edges": []}
    for name, graphs in above.items():
        parts = found[name]["graphs"] if isinstance(found[name], dict) else found[name]
        decided = [part for part in parts if part["holm"] <= 0.05]
        assert [part["on"] for part in decided if part["mean"] > 0] == graphs == [part["on"] for part in decided], name
    edges = found["learned edges"]
    assert abs(edges["mean"]) < 0.001 + edges["interval"]
    few = found["best, few labels"]
    assert sum(part["p"] <= 0.05 and part["mean"] < 0 for part in few) >= 3


def test_what_reproduction_says_in_words_holds():
    """Tuned, the authors' model is ahead of no graph network; its loss is within the wide interval; GraphSAGE leads."""
    runs = blocks.result(ROOT, "table2")["runs"]
    verdicts = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[-1] for line in blocks.BLOCKS["settings_verdicts"](ROOT)[2:]
    }
    for rival in ("gcn", "gat", "jk-net", "graphsage"):
        assert verdicts[f"GCN-LPA > {rival}"].startswith("0 / ")
    assert sum(verdicts[f"GCN-LPA > {rival}"].endswith(" / 0") for rival in ("gcn", "jk-net", "graphsage")) == 0
    rows = {(row["row"], row["dataset"]): row["accuracy"] for row in blocks.result(ROOT, "table2")["data"]["rows"]}
    for dataset in blocks.FIVE:
        gain = resampled_difference(difference_of(runs, "official", "λ = 0, official", dataset), 1 / 3)
        assert abs(gain.mean) < gain.interval
        assert rows["graphsage", dataset] > max(rows[name, dataset] for name in ("gcn", "gat", "jk-net"))


@pytest.mark.parametrize("name", ["accuracy-60-h200", "accuracy-60-bare-cpu", "accuracy-5-h200", "tables-cpu"])
def test_the_means_are_those_of_the_ledger(name):
    """By the newest line about each training of the reported splits, whichever code did it."""
    from benchmarks.claims import accuracies

    rows = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    each = accuracies(name)
    for graph, methods in rows.items():
        for method, facts in methods.items():
            assert facts["accuracy"] == str(mean_of(each[graph][method])), (graph, method)


def test_our_claims_by_another_road():
    """Nadeau & Bengio, Holm and Wilcoxon written out once more, with SciPy, from the lines of the ledger."""
    from scipy import stats

    values = {}
    for line in (ROOT / "benchmarks" / "results" / "accuracy-60-h200.jsonl").read_text(encoding="utf-8").splitlines():
        task, found = json.loads(line)["task"], json.loads(line)["result"]
        if task["split"] >= 1000:
            values[task["graph"], task["row"], task["split"]] = found["accuracy"]
    graphs, splits = ({key[k] for key in values} for k in (0, 2))
    for rival, each in claims()["default"].items():
        means = []
        for part in each["graphs"]:
            less = [
                values[part["on"], "default", s] - values[part["on"], rival, s]
                for s in sorted(splits)
                if (part["on"], rival, s) in values
            ]
            k, mean = len(less), sum(less) / len(less)
            variance = sum((x - mean) ** 2 for x in less) / (k - 1)
            error = (variance * (1 / k + 0.2 / 0.6)) ** 0.5
            assert part["mean"] == pytest.approx(mean, abs=1e-12)
            assert part["interval"] == pytest.approx(stats.t.ppf(0.975, k - 1) * error)
            assert part["p"] == pytest.approx(2 * stats.t.sf(abs(mean) / error, k - 1))
            means.append(mean)
        assert len(means) == len(graphs)
        assert each["wilcoxon"] == pytest.approx(stats.wilcoxon(means, method="exact").pvalue)
    parts = claims()["default, all pairs"]
    ordered = sorted(parts, key=lambda part: part["p"])
    for rank, part in enumerate(ordered):
        wanted = max(min(1.0, (len(parts) - k) * other["p"]) for k, other in enumerate(ordered[: rank + 1]))
        assert part["holm"] == pytest.approx(wanted)
