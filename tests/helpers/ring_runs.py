"""Runs on a ring of nodes, and names of nodes that would like to be markup."""

from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>boom()</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "{{ 7*7 }}",
    "a&b",
)


def folder_of(tmp_path, names, classes=("good", "bad")):
    """A ring of nodes of two classes, two labels each, with a column of text."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    labels = [f'"{classes[k % 2]}"' if k < 4 else "" for k in range(len(names))]
    nodes = [f"{name},{label},{k}" for k, (name, label) in enumerate(zip(quoted, labels, strict=True))]
    edges = [f"{quoted[k]},{quoted[(k + 1) % len(names)]}" for k in range(len(names))]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join(["id,label,size", *nodes, ""]), encoding="utf-8")
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges, ""]), encoding="utf-8")
    return folder


def run_of(tmp_path, names=None, **options):
    names = names or [f"n{k}" for k in range(12)]
    plan, graph = make_plan(Source(str(folder_of(tmp_path, names, **options))), changes={"epochs": 3})
    return train_run(plan, graph, tmp_path / "run")
