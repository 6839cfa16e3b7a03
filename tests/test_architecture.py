"""The shape of the package: who imports whom, and that the door to it is light."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gcn_lpa

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gcn_lpa"

# A module imports from rows below its own; on its own row, only what BESIDE lists.
ROWS = [
    ["_csr", "_cpu", "_reference", "_triton", "sparse", "_intake", "graph", "recipes", "runfolder"],
    ["_download", "_tables", "_untrusted", "data", "edges", "distributed", "fused", "ledger", "influence"],
    ["model", "baselines", "pyg", "sampling", "theory", "calibration"],
    ["train", "explanation"],
    ["runs", "estimator", "search", "auditing", "comparison", "benchmark"],
    ["advising", "suggesting", "paper"],
    ["reporting"],
    ["cli", "__main__", "__init__"],
]
ROW = {module: number for number, row in enumerate(ROWS) for module in row}
BESIDE = {
    "_cpu": ["_csr"],
    "_reference": ["_csr"],
    "_triton": ["_csr"],
    "sparse": ["_csr", "_cpu", "_reference", "_triton"],
    "_intake": ["sparse"],
    "graph": ["_intake", "sparse"],
    "data": ["_download", "_tables", "_untrusted"],
    "baselines": ["model"],  # the LPA baseline is propagate_labels
    "pyg": ["model"],  # the same model behind another door
    "explanation": ["train"],  # for what a trained model predicts
    "theory": ["model"],  # what it measures
    "auditing": ["comparison"],  # what cleaning did is a paired comparison
    "cli": ["__init__"],  # for the version
    "__main__": ["cli"],
}
NEVER = {
    *[("train", "sampling"), ("train", "baselines")],  # it is handed batches and a model
    *[("model", "data"), ("model", "runfolder"), ("model", "distributed")],  # it knows no files and no ranks
}


def module_of(path):
    """gcn_lpa/graph.py -> graph; everything in gcn_lpa/paper/ -> paper."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports(source, package="gcn_lpa"):
    """The modules of ours that a source imports, anywhere in it; what only annotations need does not count."""
    found, nodes = set(), [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {ours(name.name) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            )  # one dot: the package
            origin = ".".join([*above, *filter(None, [node.module])])
            if origin == "gcn_lpa":
                found |= {name.name if name.name in ROW else "__init__" for name in node.names}
            else:
                found.add(ours(origin))
        nodes += ast.iter_child_nodes(node)
    return found - {None}


def ours(name):
    top, *inner = name.split(".")
    return None if top != "gcn_lpa" else inner[0] if inner else "__init__"


def may_import(module, other):
    if (module, other) in NEVER:
        return False
    return ROW[other] < ROW[module] or other == module or other in BESIDE.get(module, [])


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    module = module_of(path)
    assert module in ROW, f"{module} has no row; give it one in ROWS"
    package = ".".join(["gcn_lpa", *path.relative_to(PACKAGE).parts[:-1]])
    wrong = {other for other in imports(path.read_text(encoding="utf-8"), package) if not may_import(module, other)}
    assert wrong == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch, gcn_lpa.train", {"train"}),
        ("import gcn_lpa", {"__init__"}),
        ("from gcn_lpa import model, Graph", {"model", "__init__"}),
        ("from gcn_lpa.paper.claims import TABLE_2", {"paper"}),
        ("from . import edges", {"edges"}),
        ("from .sparse import Pattern", {"sparse"}),
        ("def f():\n    if x:\n        from gcn_lpa.tables.datasets import load", {"data"}),
        ("if TYPE_CHECKING:\n    from gcn_lpa.graph import Graph\nelse:\n    import gcn_lpa.cli.app", {"cli"}),
        ("import gcn_lpa_extra", set()),
    ],
)
def test_the_walk_sees_every_kind_of_import(source, expected):
    assert imports(source) == expected


def test_the_walk_sees_what_a_subpackage_imports_from_above():
    assert imports("from ..train import fit\nfrom . import claims", "gcn_lpa.paper") == {"train", "paper"}


@pytest.mark.parametrize(
    ("module", "other", "allowed"),
    [
        *[("train", "model", True), ("model", "train", False), ("edges", "data", False), ("model", "baselines", False)],
        *[("baselines", "model", True), ("graph", "sparse", True), ("sparse", "graph", False), ("data", "_cpu", True)],
        *[
            ("recipes", "graph", False),
            ("graph", "recipes", False),
            ("train", "sampling", False),
            ("paper", "train", True),
        ],
    ],
)
def test_the_rule_is_the_one_that_was_drawn(module, other, allowed):
    assert may_import(module, other) == allowed


def test_no_module_is_a_drawer_for_everything():
    names = {path.stem for path in PACKAGE.rglob("*")}
    assert names & {"utils", "util", "common", "base", "core", "helper", "helpers", "misc"} == set()


@pytest.mark.parametrize("name", gcn_lpa.__all__)
def test_every_public_name_resolves(name):
    assert getattr(gcn_lpa, name).__module__.startswith("gcn_lpa.")
    assert name in dir(gcn_lpa)


def test_a_public_name_is_never_the_name_of_a_module():
    """Once a module is imported it is an attribute of the package, and would hide the function."""
    assert set(gcn_lpa.__all__) & {module_of(path) for path in PACKAGE.rglob("*.py")} == set()


def test_type_checkers_see_the_same_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {node.names[0].asname: node.module for node in block.body if isinstance(node, ast.ImportFrom)}
    assert seen == {name: f"gcn_lpa.{module}" for name, module in gcn_lpa._MODULE.items()}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, gcn_lpa, gcn_lpa.storage; print({'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"gcn_lpa has no 'Grpah'; it has .*Graph"):
        gcn_lpa.Grpah  # noqa: B018


def test_the_version_is_that_of_the_project():
    assert gcn_lpa.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
