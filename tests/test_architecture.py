"""The shape of the package: who imports whom, and that the door to it is light."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gcn_lpa
from gcn_lpa import palette

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gcn_lpa"


def listed_in_contributing():
    """The rows of the map, lowest first, and the files of every room, leftmost first."""
    rows, rooms = {}, {}
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    for line in filter(None, "".join(blocks).splitlines()):
        head, *names = line.split()
        if head.isdigit():
            rows[int(head)] = names
        else:
            rooms[head] = names
    return [rows[number] for number in sorted(rows)], rooms


ROWS, ROOMS = listed_in_contributing()
PLACE = {name: (number, k) for number, row in enumerate(ROWS) for k, name in enumerate(row)}
DOORS = ("__init__", "__main__")  # of the package: they may import everything


def part_of(module):
    """ "graph" -> ("graph", ""), "engine.sparse" -> ("engine", "sparse")."""
    top, _, file = module.partition(".")
    return top, file


def module_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def may_import(module, other):
    (top, file), (other_top, other_file) = part_of(module), part_of(other)
    if top in DOORS:
        return True
    if other_top in DOORS:
        return module == "cli.app"  # for the version
    if top != other_top:
        return PLACE[other_top] < PLACE[top]
    return not other_file or ROOMS[top].index(other_file) < ROOMS[top].index(file)


def imports(source, module="graph"):
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
            assert node.level == 0, "imports name the whole path"
            found |= {ours(f"{node.module}.{name.name}") for name in node.names}
        nodes += ast.iter_child_nodes(node)
    return found - {None, module}


def ours(name):
    """The module that a dotted name is in: gcn_lpa.engine.sparse.Pattern -> engine.sparse; None where it is not ours."""
    top, *inner = name.split(".")
    if top != "gcn_lpa":
        return None
    if not inner or inner[0] not in PLACE:
        return "__init__"
    is_file = len(inner) > 1 and inner[1] in ROOMS.get(inner[0], ())
    return f"{inner[0]}.{inner[1]}" if is_file else inner[0]


FILES = sorted(PACKAGE.rglob("*.py"))


def test_the_map_is_the_tree():
    modules = {module_of(path) for path in FILES} - set(DOORS)
    drawn = {top for row in ROWS for top in row} | {f"{room}.{file}" for room, files in ROOMS.items() for file in files}
    assert modules == drawn
    assert set(ROOMS) == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    module = module_of(path)
    found = imports(path.read_text(encoding="utf-8"), module)
    assert {other for other in found if not may_import(module, other)} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_tells_one_story(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 600


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch, gcn_lpa.train", {"train"}),
        ("import gcn_lpa", {"__init__"}),
        ("from gcn_lpa import model, Graph", {"model", "__init__"}),
        ("from reproduction.claims import TABLE_2", {"paper.claims"}),
        ("from gcn_lpa.engine import sparse", {"engine.sparse"}),
        ("def f():\n    if x:\n        from gcn_lpa.train import fit", {"train"}),
        ("if TYPE_CHECKING:\n    from gcn_lpa.graph import Graph\nelse:\n    import gcn_lpa.cli.app", {"cli.app"}),
        ("import gcn_lpa_extra", set()),
    ],
)
def test_the_walk_sees_every_kind_of_import(source, expected):
    assert imports(source) == expected


@pytest.mark.parametrize(
    ("module", "other", "allowed"),
    [
        *[("train", "model", True), ("model", "train", False), ("edges", "tables.datasets", False)],
        *[("model", "methods.networks", False), ("methods.networks", "model", True), ("train", "methods", False)],
        *[("graph", "engine.sparse", True), ("engine.sparse", "graph", False), ("paper.study", "train", True)],
        *[("engine.sparse", "engine.csr", True), ("engine.csr", "engine.sparse", False), ("recipes", "graph", False)],
    ],
)
def test_the_rule_is_the_one_that_was_drawn(module, other, allowed):
    assert may_import(module, other) == allowed


def test_no_module_is_a_drawer_for_everything():
    names = {path.stem for path in PACKAGE.rglob("*")}
    assert names & {"utils", "util", "common", "base", "core", "helper", "helpers", "misc"} == set()


@pytest.mark.parametrize("name", gcn_lpa.__all__)
def test_every_public_name_resolves(name):
    found, home = getattr(gcn_lpa, name), gcn_lpa._MODULE[name]
    assert getattr(found, "__module__", f"gcn_lpa.{home}").startswith("gcn_lpa.")
    assert name in dir(gcn_lpa)


def test_a_public_name_is_never_the_name_of_a_module():
    """Once a module is imported it is an attribute of the package, and would hide the function."""
    assert set(gcn_lpa.__all__) & {part_of(module_of(path))[0] for path in FILES} == set()


def test_type_checkers_see_the_same_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {node.names[0].asname: node.module for node in block.body if isinstance(node, ast.ImportFrom)}
    assert seen == {name: f"gcn_lpa.{module}" for name, module in gcn_lpa._MODULE.items()}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, gcn_lpa, gcn_lpa.runs.storage; print({'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"gcn_lpa has no 'Grpah'; it has .*Graph"):
        gcn_lpa.Grpah  # noqa: B018


def test_the_version_is_that_of_the_project():
    assert gcn_lpa.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_class_name_means_one_thing():
    """No two classes of the package have the same name, private and nested ones included."""
    places = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{module_of(path)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    assert "Path" not in places  # pathlib's


def test_the_colours_of_classes_come_from_the_one_palette():
    """No other file spells a colour of the palette out."""
    colours = {colour.lower() for colour in (*palette.CLASS_COLORS, palette.GREY, palette.PALE)}
    spelled = {
        (module_of(path), colour)
        for path in FILES
        if path.name != "palette.py"
        for colour in re.findall(r"#[0-9a-f]{6}", path.read_text(encoding="utf-8").lower())
    }
    assert {(module, colour) for module, colour in spelled if colour in colours} == set()


TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
KINDS_OF_TEST = {  # what crosses modules, and so mirrors none
    *["accuracy_page", "architecture", "calibration_order", "docs", "fuzz", "growth_page", "hardened", "kill", "leaks"],
    *["notebooks", "numbers", "readme", "run", "stacks", "startup", "wheel"],
    *["cli/manners", "cli/mistakes", "engine/gpu", "methods/method_fields", "report/page_in_browser", "runs/resigned"],
    *["reproduction/aggregations", "reproduction/figures", "reproduction/theory"],
}


def subject_of(path):
    """tests/data/test_encoders.py -> data/encoders."""
    return path.with_name(path.name.removeprefix("test_")).relative_to(ROOT / "tests").with_suffix("").as_posix()


def test_tests_mirror_modules():
    subjects = {subject_of(path) for path in TEST_FILES}
    folders = {subject: ROOT if subject.startswith("reproduction/") else PACKAGE for subject in subjects}
    assert {name for name in subjects if not (folders[name] / f"{name}.py").is_file()} == KINDS_OF_TEST


def test_no_test_module_imports_another():
    """Neither do the programs that tests give to other processes."""
    modules, found = {path.stem for path in TEST_FILES}, {}
    for path in (ROOT / "tests").rglob("*.py"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "import" in line]
        found[path.name] = modules & set(re.findall(r"\btest_\w+", "\n".join(lines)))
    assert {name: imported for name, imported in found.items() if imported} == {}
