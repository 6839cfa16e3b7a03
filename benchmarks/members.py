"""What members and ensembles of them reach with few labels: every member is trained once by folds, and pooled in many ways.

    python benchmarks/members.py train --graphs cora,citeseer --labels 5 --seeds 1,2 --device cuda --folder build/members
    python benchmarks/members.py pool --folder build/members --out benchmarks/results/members-few-h200.json

`train` keeps the out-of-fold and test log-probabilities of every member, for at most TEST test nodes, in float16. `pool` fits the
ensemble weights to out-of-fold predictions, as `learn` does, and scores each ensemble on the test nodes: so an ensemble costs
seconds to try, and all of them share one training. DEVELOPMENT graphs are those that members are chosen on; LEFT_OUT ones are only
looked at for the result. `shop-SEED` is generated: goods bought together, in classes of unequal size, with dense noisy columns.
`/bare` behind a name leaves the columns out. Labels are drawn equally per class, or with `--draw share` as they occur.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from gcn_lpa import load
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning import ensemble, learn
from gcn_lpa.learning.ensemble import Parts, fit_weights, parts_of
from gcn_lpa.recipes import choose_recipe
from gcn_lpa.stats import mean_of
from gcn_lpa.target import Classes

TEST = 1500
LEFT_OUT = ("coauthor-phy", "pubmed", "streamers-es", "actor", "shop-7", "cora-ml", "acm-subject")
TRAINED = "strong-hops strong-appnp far-grand smoothed-lr gcn appnp layers batch-norm grand"
WITHOUT_COLUMNS = "hops appnp gcn neighbour-lr"
FEW = ("hops", "smoothed-lr", "gcn", "appnp", "batch-norm", "grand")
ENSEMBLES = {
    "default": FEW,
    "best": (*FEW, "strong-hops", "strong-appnp", "far-grand"),
    **{f"default - {name}": tuple(one for one in FEW if one != name) for name in FEW},
    "default + strong-hops": (*FEW, "strong-hops"),
    "default + layers": (*FEW, "layers"),
    "former default": ("strong-hops", "smoothed-lr"),
}
SINGLE = (*FEW, "strong-hops", "strong-appnp", "far-grand", "layers")
PULLS = (5.0, 50.0)  # beside that of the library


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "pool"))
    parser.add_argument("--graphs", default="cora,citeseer,coauthor-cs,squirrel-filtered,chameleon-filtered,shop-1")
    parser.add_argument("--labels", default="5,20")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--draw", choices=("class", "share"), default="class")
    parser.add_argument("--members", help=f"those to train beside the default's; {TRAINED}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--root")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "pool":
        return pool(given.folder, given.out)
    given.folder.mkdir(parents=True, exist_ok=True)
    for labels in map(int, given.labels.split(",")):
        for seed in map(int, given.seeds.split(",")):
            for name in given.graphs.split(","):
                job = {"graph": name, "labels": labels, "seed": seed, "draw": given.draw}
                path = given.folder / f"{name.replace('/', '-')}-{labels}-{given.draw}-{seed}.npz"
                if not path.exists():
                    start = time.perf_counter()
                    found = trained(job, given.members, given.root, given.device)
                    np.savez_compressed(path, job=json.dumps(job), **found)
                    print(f"{path.stem}: {time.perf_counter() - start:.0f} s", flush=True)
    return 0


def trained(job: dict, members: str | None, root: str | None, device: str) -> dict:
    """Out-of-fold and test predictions of the default's members and of `members`."""
    graph = graph_of(job["graph"], root)
    train = drawn(graph, job["labels"], job["seed"], job["draw"])
    ours, kept = choose_recipe(graph, train), {}
    names = members or (TRAINED if graph.x_kind == "given" else WITHOUT_COLUMNS)
    recipe = ours.replace(members=" ".join(dict.fromkeys([*ours.members.split(), *names.split()])))

    def keep(whole, tasks, parts, votes, weigh=learn._weighed_by_folds):
        kept.update(graph=whole.graph, tasks=tasks, parts=Parts.joined(parts))
        return weigh(whole, tasks, parts, votes)

    original, learn._weighed_by_folds = learn._weighed_by_folds, keep
    try:
        model = learn.learn(graph, train, recipe=recipe, seed=job["seed"], device=device)
    finally:
        learn._weighed_by_folds = original
    tasks, labels = kept["tasks"], kept["graph"].y.cpu()
    at = (graph.labeled & ~train).nonzero().squeeze(1)
    at = at[torch.from_numpy(np.sort(np.random.default_rng(7).permutation(len(at))[:TEST]))]
    final = parts_of(model.model, recipe.prepare(kept["graph"]).to(device)).of(at)
    place = np.array([model.target.names.index(n) if n in model.target.names else -1 for n in graph.class_names])
    first = "hops" if graph.x_kind == "given" else "free-layers"
    return {
        "members": np.array([first, *recipe.members.split()]),
        **{f"oof{end}": halves(logs) for end, logs in (("", kept["parts"].members), ("_votes", kept["parts"].votes))},
        **{f"test{end}": halves(logs) for end, logs in (("", final.members), ("_votes", final.votes))},
        "y": torch.cat([labels[task.val] for task in tasks]).numpy(),
        "known": torch.cat([torch.isin(labels[task.val], labels[task.train]) for task in tasks]).numpy(),
        "truth": place[graph.y[at].numpy()],
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


def halves(logs: tuple) -> np.ndarray:
    return np.stack([log.clamp_min(-60).numpy().astype(np.float16) for log in logs])


def graph_of(name: str, root: str | None) -> Graph:
    base = name.removesuffix("/bare")
    if base.startswith("shop-"):
        graph = shop(int(base.removeprefix("shop-")))
    elif base.startswith("acm-"):
        graph = load("acm", root)
        kind = graph.edge_types.names.index(f"same {base.removeprefix('acm-')}")
        graph = dataclasses.replace(graph, adjacency=graph.edge_types.matrices[kind], edge_types=None, name=base)
    else:
        graph = load(base, root)
    if base == name:
        return graph
    return dataclasses.replace(graph, x=SparseMatrix.identity(graph.num_nodes), x_kind="identity", blocks=())


def shop(seed: int, n: int = 4000, c: int = 8, degree: int = 30, columns: int = 700, alike: float = 0.83) -> Graph:
    """Goods joined where they were bought together: lognormal degrees, classes of unequal size in four groups each."""
    rng = np.random.default_rng(seed)
    shares = np.arange(1, c + 1) ** -0.8
    y = rng.choice(c, n, p=shares / shares.sum())
    group, weight, count = 4 * y + rng.integers(0, 4, n), rng.lognormal(0, 1, n), n * degree // 2
    source, kind = rng.choice(n, count, p=weight / weight.sum()), rng.random(count)
    target = rng.choice(n, count, p=weight / weight.sum())
    for near, least, most in ((group, 0.0, 0.75 * alike), (y, 0.75 * alike, alike)):
        for k in np.unique(near):
            here, pool = (
                np.flatnonzero((near[source] == k) & (kind >= least) & (kind < most)),
                np.flatnonzero(near == k),
            )
            target[here] = rng.choice(pool, len(here), p=weight[pool] / weight[pool].sum())
    joined = source != target
    ends = source[joined], target[joined]
    matrix = scipy.sparse.csr_array((np.ones(joined.sum(), np.float32), ends), shape=(n, n))
    matrix = matrix + matrix.T
    matrix.data[:] = 1.0
    base, tilt = rng.beta(1, 2, columns), rng.normal(0, 0.35, (c, columns)) * (rng.random((c, columns)) < 0.3)
    chance = 1 / (1 + np.exp(-(np.log(base / (1 - base)) + tilt[y] + rng.normal(0, 0.5, (n, 1)))))
    x = scipy.sparse.csr_array((rng.random((n, columns)) < chance).astype(np.float32))
    return Graph.from_scipy(matrix, x=x, y=y, class_names=[f"class {k}" for k in range(c)], name=f"shop-{seed}")


def drawn(graph: Graph, per_class: int, seed: int, draw: str) -> torch.Tensor:
    """So many labels of each class, or as many in all as they occur."""
    rng, y = np.random.Generator(np.random.PCG64((seed, per_class))), graph.y.numpy()
    if draw == "class":
        nodes = np.concatenate([rng.permutation(np.flatnonzero(y == k))[:per_class] for k in range(graph.num_classes)])
    else:
        nodes = rng.permutation(np.flatnonzero(y >= 0))[: per_class * graph.num_classes]
    return torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, torch.from_numpy(nodes), True)


def pool(folder: Path, out: Path | None) -> int:
    rows: dict = {}
    for path in sorted(folder.glob("*.npz")):
        data = np.load(path)
        job, names = json.loads(str(data["job"])), [str(name) for name in data["members"]]
        if not job["graph"].endswith("/bare"):
            rows.setdefault(job["graph"], []).append({"job": job, **scored(data, names)})
    found = {"graphs": {graph: {row: mean(jobs, row) for row in rows_of(jobs)} for graph, jobs in rows.items()}}
    every = {
        "development": [job for graph, jobs in rows.items() if graph not in LEFT_OUT for job in jobs],
        "left out": [job for graph, jobs in rows.items() if graph in LEFT_OUT for job in jobs],
    }
    for name, jobs in every.items():
        if jobs:
            found[name] = {row: {**mean(jobs, row), "less": less(jobs, row)} for row in rows_of(jobs)}
            found[name]["draws"] = len(jobs)
    for name in every:
        for row, facts in found.get(name, {}).items():
            if row != "draws":
                print(f"{name:12} {row:26} {facts['accuracy']:6.2f}   default less this {facts['less']}")
    if out is not None:
        jobs = [job["job"] for of_graph in rows.values() for job in of_graph]
        devices = sorted({str(np.load(path)["device"]) for path in folder.glob("*.npz")})
        write_json(out, {**found, "jobs": jobs, "trained_on": devices, "environment": environment()})
        out.with_suffix(".md").write_text(tables(found, rows), encoding="utf-8")
    return 0


def scored(data, names: list[str]) -> dict[str, float]:
    """The accuracy of every single member and ensemble, in per cent."""
    target = Classes(tuple(map(str, range(data["oof"].shape[-1]))))
    oof, test = (Parts(logs(data[part]), logs(data[f"{part}_votes"]), target) for part in ("oof", "test"))
    y, known, truth = (torch.from_numpy(data[name]) for name in ("y", "known", "truth"))

    def accuracy(probabilities: torch.Tensor) -> float:
        return 100 * float((probabilities.argmax(dim=1) == truth).double().mean())

    def said_by(members: tuple[str, ...], votes: bool = True) -> torch.Tensor:
        chosen = [names.index(name) for name in (*members, *(["trees"] if "trees" in names else []))]
        part = [Parts(tuple(p.members[k] for k in chosen), p.votes if votes else (), p.target) for p in (oof, test)]
        return fit_weights(part[0].of(known), y[known])(part[1])

    def pooled(members: tuple[str, ...], votes: bool = True) -> float:
        return accuracy(said_by(members, votes))

    found = {name: accuracy(test.members[names.index(name)]) for name in SINGLE if name in names}
    found |= {name: pooled(members) for name, members in ENSEMBLES.items() if set(members) <= set(names)}
    found["default - votes"] = pooled(FEW, votes=False)
    said, drawn = said_by(FEW), shares_of(y[known], data["oof"].shape[-1])
    for name, shares in (("estimated", estimated(said, drawn)), ("known", shares_of(truth, len(drawn)))):
        found[f"default, class shares {name}"] = accuracy(said * shares / drawn)
    chosen = [test.members[names.index(name)].softmax(dim=1) for name in FEW]
    found["mean of probabilities"] = accuracy(torch.stack(chosen).mean(dim=0))
    usual = ensemble.PULL
    for pull in PULLS:
        ensemble.PULL = pull
        found[f"default, pull {pull:.0f}"] = pooled(FEW)
    ensemble.PULL = usual
    return found


def shares_of(y: torch.Tensor, number: int) -> torch.Tensor:
    count = torch.bincount(y[y >= 0], minlength=number).double().clamp_min(0.5)
    return count / count.sum()


def estimated(said: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The shares of the classes by expectation and maximisation (Saerens et al. 2002), halfway back to those of the labels."""
    shares = drawn
    for _ in range(100):
        right = said * shares / drawn
        shares = ((right / right.sum(dim=1, keepdim=True)).mean(dim=0) + drawn) / 2
    return shares


def logs(array: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.log_softmax(torch.from_numpy(log.astype(np.float64)), dim=1) for log in array)


def tables(found: dict, rows: dict) -> str:
    """The accuracy by graph, and what the default is above every single method and every other ensemble, as Markdown."""
    shown = ("default", "gcn", "appnp", "grand", "smoothed-lr", "hops", "strong-hops")
    lines = [f"| | draws | {' | '.join(shown)} |", "|---" * (len(shown) + 2) + "|"]
    for graph in sorted(rows, key=lambda name: (name in LEFT_OUT, name)):
        cells = [f"{found['graphs'][graph][row]['accuracy']:.1f}" for row in shown]
        name = f"{graph} (left out)" if graph in LEFT_OUT else graph
        lines.append(f"| {name} | {len(rows[graph])} | {' | '.join(cells)} |")
    parts = [part for part in ("development", "left out") if part in found]
    lines += ["", f"| the default less | {' | '.join(parts)} |", "|---" * (len(parts) + 1) + "|"]
    for row in found[parts[0]]:
        if row not in ("default", "draws"):
            lines.append(f"| {row} | {' | '.join(found[part][row]['less'] for part in parts)} |")
    return "\n".join(lines) + "\n"


def rows_of(jobs: list) -> list[str]:
    """The rows of any of the jobs: members that were added later are not in all."""
    return list(dict.fromkeys(row for job in jobs for row in job if row != "job"))


def mean(jobs: list, row: str) -> dict:
    values = [job[row] for job in jobs if row in job]
    return {"accuracy": round(float(np.mean(values)), 2), "draws": len(values)}


def less(jobs: list, row: str) -> str:
    """The default less this row, paired over draws."""
    return str(mean_of(np.array([job["default"] - job[row] for job in jobs if row in job]) / 100))


if __name__ == "__main__":
    sys.exit(main())
