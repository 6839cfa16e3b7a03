"""The shape of the package: who imports whom, and that the door to it is light."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gcn_lpa
from gcn_lpa.insight import drawing as palette

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gcn_lpa"
LONGEST_CHAIN, MOST_MODULES, MOST_LINES = 14, 100, 27_000
DOORS = ("__init__", "__main__")  # of the package: they may import everything


def layers_of_contributing():
    """The rows of the map, lowest first."""
    rows = {}
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    for line in filter(None, "".join(blocks).splitlines()):
        number, _, *names = line.split()
        rows[int(number)] = [name.strip(",") for name in names]
    return [rows[number] for number in sorted(rows)]


LAYERS = layers_of_contributing()
LAYER = {name: number for number, row in enumerate(LAYERS) for name in row}
FORBIDDEN = {  # of a layer's modules, what they may not import all the same
    "edges": r"engine\.(?!sparse|fused)",
    "losses": r"engine\.(?!sparse|fused)|scale",
    "model": r"engine\.(?!sparse|fused)|data",
    "propagation": r"engine\.(?!sparse|fused)|graph|data",
    "data": r"recipes",
    "learning": r"runs|scale",
}
UPWARDS = {("trained", "runs.folder")}  # `save_pretrained` and `from_pretrained`, inside the two functions


def module_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {module_of(path): path for path in FILES}


def layer_of(module):
    return LAYER[module.split(".")[0]]


def may_import(module, other):
    if module in DOORS:
        return True
    if other in DOORS:
        return module.startswith("cli.") or module in ("engine.devices", "report.page")  # commands; for the version
    room = module.split(".")[0]
    if room in FORBIDDEN and re.match(FORBIDDEN[room], other):
        return False
    return layer_of(other) <= layer_of(module) or (module, other) in UPWARDS


def imports(source, module="graph", *, only_when_imported=False):
    """The modules of ours that a source imports; what only annotations need does not count."""
    found, nodes = set(), [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            nodes += node.orelse
            continue
        if only_when_imported and isinstance(node, ast.FunctionDef):
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
    if top in ("reproduction", "benchmarks", "tests"):
        return top
    if top != "gcn_lpa":
        return None
    while inner and ".".join(inner) not in MODULES:
        inner.pop()
    return ".".join(inner) or "__init__"


def test_the_map_is_the_tree():
    rooms = {module.split(".")[0] for module in MODULES} - set(DOORS)
    assert rooms == set(LAYER)
    assert sum(map(len, LAYERS)) == len(LAYER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    module = module_of(path)
    found = imports(path.read_text(encoding="utf-8"), module)
    assert {other for other in found if other not in MODULES or not may_import(module, other)} == set()


def longest_chain():
    """The longest way along imports from one module to another, both included; a circle has no end."""
    graph = {
        module: imports(path.read_text(encoding="utf-8"), module, only_when_imported=True) - set(DOORS)
        for module, path in MODULES.items()
        if module not in DOORS
    }
    order = graphlib.TopologicalSorter(graph).static_order()  # a CycleError names the circle
    chains = {}
    for module in order:
        chains[module] = [module, *max((chains[other] for other in graph[module]), key=len, default=[])]
    return max(chains.values(), key=len)


def test_a_chain_of_imports_is_short():
    assert len(longest_chain()) <= LONGEST_CHAIN, longest_chain()


def test_the_package_is_of_a_size_that_one_person_can_carry():
    assert len(MODULES) <= MOST_MODULES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= MOST_LINES
    assert len(gcn_lpa.__all__) <= 45


def test_the_heart_reads_in_five_minutes():
    source = MODULES["model"].read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 240
    assert len(imports(source, "model")) <= 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_tells_one_story(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch, gcn_lpa.train", {"train"}),
        ("import gcn_lpa", {"__init__"}),
        ("from gcn_lpa import model, Graph", {"model", "__init__"}),
        ("from reproduction.claims import TABLE_2", {"reproduction"}),
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
        *[("train", "model", True), ("model", "train", True), ("data.datasets", "graph", True)],
        *[("model", "methods.networks", False), ("methods.networks", "model", True), ("train", "methods.hops", False)],
        *[("graph", "engine.sparse", True), ("model", "engine.operations", False), ("model", "engine.sparse", True)],
        *[("data.splits", "recipes", False), ("learning.learn", "runs.folder", False), ("losses", "scale.halo", False)],
        *[("runs.plan", "learning.learn", True), ("insight.audit", "cli.app", False)],
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
    assert getattr(found, "__module__", home).startswith("gcn_lpa.")
    assert name in dir(gcn_lpa)


def test_a_public_name_is_never_the_name_of_a_module():
    """Once a module is imported it is an attribute of the package, and would hide the function."""
    assert set(gcn_lpa.__all__) & {module.split(".")[0] for module in MODULES} == set()


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
        if path.name != "drawing.py"
        for colour in re.findall(r"#[0-9a-f]{6}", path.read_text(encoding="utf-8").lower())
    }
    assert {(module, colour) for module, colour in spelled if colour in colours} == set()


MOST_FILES = 20  # that a new kind of target touches
OF_NUMBERS = re.compile(
    r"\b(Numbers|Intervals|NumberScores|NumberFacts)\b|\bscale is (not )?None|target\.scale\b|(graph|info|case)\.numbers\b|"
    r"\.number is (not )?None|is_floating_point\(|\by\.dtype\.kind [!=]= 'f'|[=(] ?'regression'"
)


def test_few_files_know_which_kind_of_target_there_is():
    """Those whose code names what only numbers have, or asks whether labels are numbers: all else asks the target."""
    knows = {module for module, path in MODULES.items() if OF_NUMBERS.search(ast.unparse(without_docstrings(path)))}
    assert len(knows) <= MOST_FILES, sorted(knows)


def without_docstrings(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
KINDS_OF_TEST = {  # what crosses modules, and so mirrors none
    *["architecture", "benchmarks", "docs", "fuzz", "hardened", "kill", "leaks", "notebooks", "pages", "prose"],
    *["run", "sessions", "startup", "stations", "wheel"],
    *["cli/manners", "cli/mistakes", "data/doors", "data/encoder_contract"],
    *["data/mapped_files", "data/untrusted", "engine/gpu", "methods/method_fields"],
    *["reproduction/aggregations", "reproduction/figures", "reproduction/theory", "runs/resigned"],
}


def subject_of(path):
    """tests/data/test_encoders.py -> data/encoders."""
    return path.with_name(path.name.removeprefix("test_")).relative_to(ROOT / "tests").with_suffix("").as_posix()


def has_module(subject):
    """Whether a test file is about a module: test_many.py and test_many_workers.py are about many.py."""
    folder = ROOT if subject.startswith("reproduction/") else PACKAGE
    place, _, name = subject.rpartition("/")
    words = name.split("_")
    return any((folder / place / f"{'_'.join(words[:k])}.py").is_file() for k in range(1, len(words) + 1))


def test_tests_mirror_modules():
    """And what crosses modules says so here."""
    subjects = {subject_of(path) for path in TEST_FILES}
    assert {subject for subject in subjects if not has_module(subject)} == KINDS_OF_TEST


def test_no_test_module_imports_another():
    """Neither do the programs that tests give to other processes."""
    modules, found = {path.stem for path in TEST_FILES}, {}
    for path in (ROOT / "tests").rglob("*.py"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "import" in line]
        found[path.name] = modules & set(re.findall(r"\btest_\w+", "\n".join(lines)))
    assert {name: imported for name, imported in found.items() if imported} == {}
