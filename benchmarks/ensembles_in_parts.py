"""The default and quick ensembles by several gloo ranks on one machine, against one process with the same recipe and split.

    PYTHONPATH=. python benchmarks/ensembles_in_parts.py        writes benchmarks/results/ensembles-in-parts.json

Every graph is cut by METIS; training is whole (up to 1000 epochs). Compared are the classes and probabilities of
predictions.csv, which has six digits, the trees, to the bit, and the bytes that came of other ranks, beside the planner's.
Ranks have one thread each, and so has the one process.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pandas  # noqa: E402
import torch  # noqa: E402

from gcn_lpa.data.datasets import load  # noqa: E402
from gcn_lpa.data.files import write_json  # noqa: E402
from gcn_lpa.data.splits import split  # noqa: E402
from gcn_lpa.engine.devices import environment  # noqa: E402
from gcn_lpa.methods.registry import METHODS, members_of  # noqa: E402
from gcn_lpa.runs.folder import load_trained  # noqa: E402
from gcn_lpa.runs.plan import Source, make_plan  # noqa: E402
from gcn_lpa.runs.predictions import predict_run  # noqa: E402
from gcn_lpa.runs.train_run import train_run  # noqa: E402
from gcn_lpa.scale.partition import owners, read_facts, write_partition  # noqa: E402
from gcn_lpa.scale.planner import Size, received  # noqa: E402
from gcn_lpa.scale.together import Order  # noqa: E402
from tests.helpers.mixed_tables import mixed_rows, write_mixed  # noqa: E402
from tests.helpers.rank_jobs import counted_training, on_ranks  # noqa: E402

CASES = [  # graph, recipe, ranks
    *((name, "default", 2) for name in ("mixed table", "no columns", "cora")),
    *((name, "quick", 2) for name in ("mixed table", "no columns", "cora")),
    *((name, "default", 4) for name in ("mixed table", "cora")),
]


def sources(folder):
    """A citation graph, 2,000 nodes with columns of every kind, and 1,000 nodes without columns."""
    table, blocks = write_mixed(folder / "table", mixed_rows(2000)), load("sbm", n=1000)
    plain = folder / "plain"
    plain.mkdir(exist_ok=True)
    labels = pandas.DataFrame({"id": range(1000), "label": [f"class {k}" for k in blocks.y.tolist()]})
    labels.to_csv(plain / "nodes.csv", index=False)
    ends = {"source": blocks.row.tolist(), "target": blocks.col.tolist()}
    pandas.DataFrame(ends).query("source < target").to_csv(plain / "edges.csv", index=False)
    return {"cora": Source("cora"), "mixed table": Source(str(table)), "no columns": Source(str(plain))}


def compared(folder, source, recipe, ranks, alone):
    """How far the ranks are from the one process, `alone`."""
    graph, kind = alone.graph, alone.plan.split
    write_partition(folder / "cut", graph, source, owners(graph, ranks), split(graph, seed=0, kind=kind))
    start = time.perf_counter()
    order = Order(folder / "cut", folder / "run", recipe=recipe)
    answers = on_ranks(ranks, counted_training, order)
    seconds, together, table = time.perf_counter() - start, load_trained(folder / "run"), predict_run(alone)
    rows = pandas.read_csv(folder / "run" / "predictions.csv", dtype={"label": str}, keep_default_na=False)
    names = [recipe.method for recipe in members_of(together.recipe).values()]
    states = [[m[0].state_dict() for m in t.model.members] for t in (together, alone.trained)]
    same = [all(torch.equal(a[key], b[key]) for key in a) for name, a, b in zip(names, *states, strict=True) if name == "trees"]
    return {
        "members": ["first", *together.recipe.members.split()],
        "nodes predicted": len(rows),
        "classes that differ": int((rows.label.to_numpy() != table.label.to_numpy().astype(str)).sum()),
        "largest gap of a probability": float(
            np.abs(rows.probability.to_numpy() - table.probability.to_numpy().astype(float)).max()
        ),
        "trees have the same bits": same,
        "bytes received": [answer["received"] for answer in answers],
        "planned": [planned_bytes(graph, order, answer) for answer in answers],
        "seconds of ranks": round(seconds, 1),
    }


def planned_bytes(graph, order, answer):
    """What the planner says that a rank receives, by the epochs that there were; None: a member has no formula."""
    facts = read_facts(order.folder)
    counts = {"nodes": answer["rows"], "halo": answer["halo"], "read": answer["read"], "labeled": facts.sizes[0]}
    if graph.x_kind == "identity":
        counts["stored"] = answer["rows"]
    size, recipe = dataclasses.replace(Size.of(graph), **counts), order.plan(facts).recipe
    epochs, once = received(size, recipe)
    if {name for name in answer["epochs"] if not METHODS[members_of(recipe)[name].method].at_once} != set(epochs):
        return None
    return round(once + sum(each * answer["epochs"][name] for name, each in epochs.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="a graph")
    only, found, alone = parser.parse_args().only, {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for k, (name, recipe, ranks) in enumerate(CASES):
            if only not in (None, name):
                continue
            source = sources(folder)[name]
            if (name, recipe) not in alone:
                plan, graph = make_plan(source, recipe=recipe, split="uniform")
                start = time.perf_counter()
                alone[name, recipe] = train_run(plan, graph, device="cpu", threads=1), time.perf_counter() - start
            one, seconds = alone[name, recipe]
            result = compared(folder / str(k), source, recipe, ranks, one)
            found[f"{name}, {recipe}, {ranks} ranks"] = {**result, "seconds of one process": round(seconds, 1)}
            print(name, recipe, ranks, found[f"{name}, {recipe}, {ranks} ranks"], flush=True)
            if only is None:  # what is done counts, should it be stopped
                results = ROOT / "benchmarks" / "results" / "ensembles-in-parts.json"
                write_json(results, {"cases": found, "environment": environment()})


if __name__ == "__main__":
    main()
