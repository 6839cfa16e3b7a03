"""What our own results support, by the rules the study applies to the paper: Nadeau-Bengio intervals, Holm, Wilcoxon.

    python benchmarks/claims.py

Reads the committed ledgers and results, trains nothing, and writes our-claims.json and our-claims.md. Splits of one graph
share training nodes, so an interval over them is that of Nadeau & Bengio (2003), with √(1/k + test/train); p-values of one family
are adjusted by Holm (1979). Where each seed is a graph of its own, or training nodes are so few that draws hardly overlap, the
interval is the plain one over seeds. Across graphs a method is compared by Wilcoxon's signed-rank test on the mean differences.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from gcn_lpa.data.files import write_json
from gcn_lpa.stats import mean_of, said_p, signed_rank_test
from reproduction.statistics import holm, resampled_difference

RESULTS = Path(__file__).parent / "results"
REPORTED = 1000  # splits from here on are not for development
RIVALS = ("gcn", "gat", "graphsage", "jk-net", "appnp", "gcn-same", "correct-and-smooth", "label-input", "lpa")
OVERLAP = 20 / 60  # test nodes over training nodes of 60/20/20
FEW = (5, 10, 20)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = claims()
    write_json(RESULTS / "our-claims.json", found)
    (RESULTS / "our-claims.md").write_text(as_markdown(found), encoding="utf-8")


def claims() -> dict:
    """Every comparison, as numbers."""
    sixty = accuracies("accuracy-60-h200")
    bare, tables = accuracies("accuracy-60-bare-cpu"), accuracies("tables-cpu")
    few = {f"{graph}, {count}": rows for count in FEW for graph, rows in accuracies(f"accuracy-{count}-h200").items()}
    strongest = {graph: max(RIVALS, key=lambda row: rows[row].mean()) for graph, rows in sixty.items()}
    table_rivals = ("lpa", "lr", "lr nearby", "lightgbm")
    return {
        "default": {rival: family(sixty, "default", rival) for rival in RIVALS},
        "default, all pairs": adjusted(
            [(graph, rival, rows["default"] - rows[rival]) for rival in RIVALS for graph, rows in sixty.items()],
            OVERLAP,
        ),
        "default, strongest": adjusted(
            [(graph, strongest[graph], rows["default"] - rows[strongest[graph]]) for graph, rows in sixty.items()],
            OVERLAP,
        ),
        "best, strongest": adjusted(
            [(graph, strongest[graph], rows["best"] - rows[strongest[graph]]) for graph, rows in sixty.items()], OVERLAP
        ),
        "best": family(sixty, "best", "default"),
        "best + wide": family(sixty, "best + wide", "default"),
        "learned edges": family(sixty, "default", "- learned edges"),
        "best, few labels": adjusted([(name, "default", rows["best"] - rows["default"]) for name, rows in few.items()], 0),
        "no columns": adjusted(
            [(g, r, rows["default"] - rows[r]) for r in ("gcn", "appnp", "label-input", "lpa") for g, rows in bare.items()],
            OVERLAP,
        ),
        "tables": adjusted([(name, r, rows["default"] - rows[r]) for r in table_rivals for name, rows in tables.items()], 0),
    }


def accuracies(name: str) -> dict:
    """[graph][row] of a ledger: the accuracy on each reported split, by the newest line about it."""
    newest: dict = {}
    for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        task = record["task"]
        split = task.get("split", task.get("seed"))
        if split >= REPORTED:
            newest.setdefault(task["graph"], {}).setdefault(task["row"], {})[split] = record["result"]["accuracy"]
    return {
        graph: {row: np.array([values[split] for split in sorted(values)]) for row, values in rows.items()}
        for graph, rows in newest.items()
    }


def family(graphs: dict, ours: str, rival: str) -> dict:
    """One method less another: on each graph, adjusted over the graphs, and across them."""
    parts = adjusted([(graph, rival, rows[ours] - rows[rival]) for graph, rows in graphs.items()], OVERLAP)
    means = np.array([part["mean"] for part in parts])
    across = mean_of(means)
    return {"graphs": parts, "mean": across.mean, "interval": across.interval, "wilcoxon": signed_rank_test(means)}


def adjusted(differences: list, overlap: float) -> list:
    """Each difference with its interval and p, and p adjusted over all of them."""
    tests = [resampled_difference(values, overlap) for *_, values in differences]
    return [
        {
            "on": graph,
            "less": rival,
            "mean": test.mean,
            "interval": test.interval,
            "p": test.p_value,
            "holm": p,
            "splits": len(values),
        }
        for (graph, rival, values), test, p in zip(differences, tests, holm([test.p_value for test in tests]), strict=True)
    ]


def above(parts: list, p: str = "holm", sign: int = 1) -> int:
    """How many differences are significantly above 0, or below it."""
    return sum(part[p] <= 0.05 and sign * part["mean"] > 0 for part in parts)


def as_markdown(found: dict) -> str:
    return "\n".join([*rivals(found), "", *counts(found), "", *each_graph(found), "", *few_labels(found)]) + "\n"


def rivals(found: dict) -> list:
    """Table 1: the default beside each single method, over the graphs."""
    rows = []
    wilcoxon = holm([found["default"][rival]["wilcoxon"] for rival in RIVALS])
    for rival, p in zip(RIVALS, wilcoxon, strict=True):
        parts = found["default"][rival]["graphs"]
        mean = points(found["default"][rival])
        rows.append((rival, mean, str(above(parts)), str(above(parts, sign=-1)), str(len(parts)), said_p(p)))
    heads = (
        "the default less",
        "mean over graphs",
        "higher on",
        "lower on",
        "of graphs",
        "Wilcoxon p, Holm over rivals",
    )
    return table(heads, rows)


def counts(found: dict) -> list:
    """Table 2: how many comparisons of each claim are decided."""
    names = {
        "default, all pairs": "default, each of nine single methods",
        "default, strongest": "default, the best single method of each graph",
        "best, strongest": "best, the best single method of each graph",
        "best": "best, default",
        "best + wide": "best + wide, default",
        "learned edges": "default, the same with fixed edges and λ = 0",
        "best, few labels": "best, default; 5, 10, 20 labels a class (former default)",
        "no columns": "default, four single methods; no columns",
        "tables": "default, LPA, regressions, LightGBM; generated tables",
    }
    rows = []
    for name, words in names.items():
        parts = found[name]["graphs"] if isinstance(found[name], dict) else found[name]
        half = 100 * float(np.median([part["interval"] for part in parts]))
        each = (above(parts, "p"), above(parts), above(parts, "p", -1), above(parts, sign=-1))
        rows.append((words, str(len(parts)), *map(str, each), f"{half:.1f}"))
    heads = ("first less second", "comparisons", "higher", "after Holm", "lower", "after Holm", "median half-width")
    return table(heads, rows)


def each_graph(found: dict) -> list:
    """Table 3: graph by graph, in points; * where it differs from 0 after Holm."""
    columns = {
        "default, strongest": "default less best single",
        "best, strongest": "best less best single",
        "best": "best less default",
        "best + wide": "best + wide less default",
        "learned edges": "learned edges and λ",
    }
    parts = {name: found[name]["graphs"] if isinstance(found[name], dict) else found[name] for name in columns}
    rows = []
    for k, strongest in enumerate(found["default, strongest"]):
        rows.append((strongest["on"], strongest["less"], *(marked(parts[name][k]) for name in columns)))
    means = [found[name] if isinstance(found[name], dict) else None for name in columns]
    rows.append(("mean over graphs", "", *("" if mean is None else points(mean) for mean in means)))
    return table(("", "best single", *columns.values()), rows)


def few_labels(found: dict) -> list:
    """Table 4: `best` less the default with few labels."""
    parts = {part["on"]: marked(part) for part in found["best, few labels"]}
    graphs = dict.fromkeys(name.split(", ")[0] for name in parts)
    rows = [(graph, *(parts[f"{graph}, {count}"] for count in FEW)) for graph in graphs]
    return table(("best less default", *(f"{count} labels a class" for count in FEW)), rows)


def points(part: dict) -> str:
    interval = "" if part["interval"] is None else f" ± {100 * part['interval']:.1f}"
    return f"{100 * part['mean']:+.1f}{interval}".replace("+-0.0", "0.0").replace("-0.0 ", "0.0 ").replace("+0.0 ", "0.0 ")


def marked(part: dict) -> str:
    return points(part) + ("*" if part["holm"] <= 0.05 else "")


def table(heads: tuple, rows: list) -> list:
    lines = [f"| {' | '.join(cells)} |" for cells in [heads, *rows]]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


if __name__ == "__main__":
    main()
