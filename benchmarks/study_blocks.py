"""The blocks of docs/reproduction.md that are more than a table of a result."""

from pathlib import Path

from benchmarks.blocks import FIVE, block, markdown, plus_minus, result
from gcn_lpa.stats import mean_of


@block
def datasets(root: Path) -> list[str]:
    rows = {one["dataset"]: one["ours"] for one in result(root, "table1")["data"]["rows"]}
    body = [[name, *(f"{rows[d][name]:,}" for d in FIVE)] for name in ("nodes", "edges", "features", "classes")]
    body.append(["intra-class edges, %", *(f"{100 * rows[d]['intra_class_edge_rate']:.1f}" for d in FIVE)])
    return markdown(["", *FIVE.values()], body)


@block
def authors_split(root: Path) -> list[str]:
    """The authors' split beside random ones and the paper."""
    from reproduction.claims import TABLE2

    fixed, random = (
        {(r["row"], r["dataset"]): r for r in result(root, name)["data"]["rows"]} for name in ("table2-authors", "table2")
    )
    rows = []
    for dataset in FIVE:
        for row, paper in (("official", "gcn-lpa"), ("gcn-same", ""), ("gcn", "gcn"), ("gcn-lpa", "gcn-lpa")):
            ours = (
                f"{100 * one['accuracy']:.1f} ± {100 * one['interval']:.1f}" for one in (fixed[row, dataset], random[row, dataset])
            )
            rows.append([f"{FIVE[dataset]}, {row}", *ours, str(TABLE2[dataset][paper]) if paper else ""])
    return markdown(["", "authors' split, ten initialisations", "random splits", "the paper"], rows)


@block
def settings_verdicts(root: Path) -> list[str]:
    """The authors' GCN-LPA beside each baseline, both as published, converged and tuned; Holm over all of the table."""
    from reproduction.statistics import holm, resampled_difference
    from reproduction.study import difference_of

    runs, known = result(root, "table2")["runs"], {run["row"] for run in result(root, "table2")["runs"]}
    stages = {"as published": "", "to the end": ", converged", "tuned": ", tuned"}
    keys, tests = [], []
    for rival in ("gcn", "gat", "jk-net", "graphsage", "lpa", "mlp"):
        for stage, ending in stages.items():
            if rival + ending in known:
                for dataset in FIVE:
                    gains = difference_of(runs, f"official{ending}", rival + ending, dataset)
                    keys.append((rival, stage))
                    tests.append(resampled_difference(gains, 1 / 3))
    cells: dict[tuple[str, str], list[int]] = {}
    for key, test, p in zip(keys, tests, holm([test.p_value for test in tests]), strict=True):
        found = cells.setdefault(key, [0, 0, 0])
        found[1 if p > 0.05 else 0 if test.mean > 0 else 2] += 1
    rows = [
        [
            f"GCN-LPA > {rival}",
            *(" / ".join(map(str, cells[rival, stage])) if (rival, stage) in cells else "" for stage in stages),
        ]
        for rival in dict.fromkeys(rival for rival, _ in keys)
    ]
    return markdown(["higher / not significant / lower, of five data sets", *stages], rows)


@block
def gap(root: Path) -> list[str]:
    """Training less test accuracy: fixed edges, learned edges, and with the LPA loss."""
    from reproduction.statistics import resampled_difference
    from reproduction.study import by_split

    def change(dataset: str, one: str, other: str) -> str:
        runs = [{**run, "gap": run["train_accuracy"] - run["test_accuracy"]} for run in result(root, "table2")["runs"]]
        (_, first), (_, second) = (by_split(runs, row, dataset, "gap") for row in (one, other))
        narrow, wide = mean_of(first - second), resampled_difference(first - second, 1 / 3)
        return f"{plus_minus(narrow, 2, sign=True)} ({100 * (wide.interval or 0):.2f})"

    kinds = {
        "authors' code less fixed edges": ("official", "gcn-same"),
        "authors' code: with the LPA loss less without": ("official", "λ = 0, official"),
        "text: with the LPA loss less without": ("gcn-lpa", "λ = 0"),
    }
    rows = [[said, *(change(dataset, *pair) for dataset in FIVE)] for said, pair in kinds.items()]
    return markdown(["gap of training to test accuracy", *FIVE.values()], rows)


@block
def verdicts(root: Path) -> list[str]:
    """How many claims of the paper have which verdict."""
    each: dict[str, dict[str, int]] = {}
    for claim in result(root, "claims")["data"]["claims"]:
        reading = {"official": "by the authors' code", "paper": "by the text"}.get(claim["reading"], "without a reading")
        each.setdefault(claim["verdict"], {}).setdefault(reading, 0)
        each[claim["verdict"]][reading] += 1
    heads = ("by the authors' code", "by the text", "without a reading")
    return markdown(["verdict", *heads], [[verdict, *(str(found.get(h, 0)) for h in heads)] for verdict, found in each.items()])
