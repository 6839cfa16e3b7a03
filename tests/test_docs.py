"""The documentation without the tool that makes a site of it: links lead somewhere, every page is in the navigation, and what
is said of other tools is so."""

import ast
import importlib.metadata
import pkgutil
import re
import runpy
from pathlib import Path

import pytest
import typer

import gcn_lpa
from gcn_lpa.cli.app import app
from gcn_lpa.data.datasets import reading_options
from gcn_lpa.runs.folder import RUN_FILES
from tests.helpers.pages import FENCE, prose, words_of

ROOT = Path(__file__).parents[1]
CONF = runpy.run_path(str(ROOT / "docs" / "conf.py"))
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "results").glob("*.md")])
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")


MANUAL = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "results"]
MODULES = [module.name for module in pkgutil.walk_packages(gcn_lpa.__path__, "gcn_lpa.")]
SPAN = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:`|\()")  # a dotted name, or a call of one, as inline code
ANYWHERE = re.compile(r"\bgcn_lpa(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"\.(csv|db|html|ipynb|json|md|npy|npz|png|pyi?|safetensors|toml|txt|xlsx)$")
OWNERS = {  # of names that stand for an object or a class
    "advice": "gcn_lpa.insight.advise.Advice",
    "graph": "gcn_lpa.Graph",
    "trained": "gcn_lpa.Trained",
    "Explainer": "gcn_lpa.insight.explain.Explainer",
    "Graph": "gcn_lpa.Graph",
    "Prediction": "gcn_lpa.predict.Prediction",
    "Trained": "gcn_lpa.Trained",
    "Updated": "gcn_lpa.learning.updated.Updated",
}
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def exists(name):
    """Whether a dotted name is there, as it stands or below the package, or belongs to one of OWNERS."""
    head, _, rest = name.partition(".")
    if head in OWNERS:
        owner = pkgutil.resolve_name(OWNERS[head])
        return hasattr(owner, rest) or rest in owner.__dataclass_fields__
    for full in [name, *(f"{module}.{rest}" for module in MODULES if module.endswith(f".{head}")), f"gcn_lpa.{name}"]:
        try:
            pkgutil.resolve_name(full)
        except (ImportError, AttributeError):
            continue
        return True
    return False


def anchors(page):
    """The anchors of a page as GitHub and MyST make them of its headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return set(map(anchor_of, headings))


def anchor_of(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert ROOT in [file, *file.parents], f"{target} leads out of the repository"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_every_name_of_the_package_in_the_manual_exists(page):
    text = page.read_text(encoding="utf-8")
    named = {name for name in SPAN.findall(text) if not FILE.search(name)} | set(ANYWHERE.findall(text))
    for block in BLOCK.findall(text):
        lines = block.splitlines()
        code = [line[4:] for line in lines if line.startswith((">>> ", "... "))] if ">>> " in block else lines
        for node in ast.walk(ast.parse("\n".join(code))):
            if isinstance(node, ast.ImportFrom):
                named |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert sorted(name for name in named if not exists(name)) == []


def test_every_file_that_the_guide_for_contributors_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|pyi|json))`", text)
    assert len(named) > 20
    rooms = [ROOT, ROOT / "gcn_lpa", ROOT / "tests"]
    assert [name for name in named if not any((room / name).is_file() for room in rooms)] == []


def test_the_page_of_the_estimator_has_its_settings_and_their_defaults():
    text = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8").split("## Settings\n")[1]
    written = {}
    for names, values in re.findall(r"^\| (`.*?) \| (.*?) \|", text, flags=re.MULTILINE):
        defaults = ast.literal_eval(f"[{values}]")
        names = re.findall(r"`(\w+)`", names)
        written |= dict(zip(names, defaults * len(names) if len(defaults) == 1 else defaults, strict=True))
    assert written == gcn_lpa.GCNLPAClassifier().get_params()


def test_every_page_is_in_the_navigation_once():
    listed = [page for pages in CONF["NAVIGATION"].values() for page in pages if "*" not in page]
    assert len(listed) == len(set(listed))
    for page in listed:
        assert (ROOT / f"{page}.md").is_file(), page
    written = {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")} - {"docs/index"}
    assert written <= set(listed)
    assert "results/*" in CONF["NAVIGATION"]["Results of the paper"]


def test_every_page_is_in_the_list_of_the_documentation():
    linked = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_the_api_of_the_site_has_every_public_name():
    source = [(ROOT / "docs" / "api.md").read_text(encoding="utf-8")]
    CONF["add_generated"](None, "docs/api", source)
    named = re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: gcn_lpa\.[\w.]*?(\w+)$", source[0], flags=re.MULTILINE)
    assert sorted(named) == gcn_lpa.__all__
    first = ["# Documentation"]
    CONF["add_generated"](None, CONF["root_doc"], first)
    assert first[0].count("/docs/data\n") == 1


def test_marks_of_restructured_text_in_docstrings_are_themselves():
    lines = ["D*⁻¹A* of `graph.y`, |x| and a*_ij; y_ ends here"]
    CONF["escape"](None, "", "", None, None, lines)
    assert lines == [r"D\*⁻¹A\* of `graph.y`, \|x\| and a\*_ij; \y_ ends here"]


COMPARED = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "package"),
    [("PyTorch Geometric", "torch-geometric"), ("scikit-learn", "scikit-learn"), ("NetworkX", "networkx")],
)
def test_the_comparison_is_with_the_versions_that_are_pinned(name, package):
    version = re.search(rf"^{package}==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[1]
    assert f"{name} {version}" in COMPARED


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch_geometric.nn", "LabelPropagation"),
        ("torch_geometric.nn", "CorrectAndSmooth"),
        ("torch_geometric.explain", "GNNExplainer"),
        ("torch_geometric.explain", "PGExplainer"),
        ("torch_geometric.explain", "CaptumExplainer"),
        ("torch_geometric.data", "HeteroData"),
        ("sklearn.semi_supervised", "LabelSpreading"),
        ("sklearn.calibration", "CalibratedClassifierCV"),
        ("networkx.algorithms.node_classification", "harmonic_function"),
        ("networkx.algorithms.node_classification", "local_and_global_consistency"),
    ],
)
def test_what_the_comparison_says_others_have_is_there(module, name):
    assert f"`{name}`" in COMPARED
    assert hasattr(pytest.importorskip(module), name)


@pytest.mark.parametrize("package", ["torch-geometric", "scikit-learn", "networkx"])
def test_what_the_comparison_says_has_no_command_has_none(package):
    try:
        points = importlib.metadata.distribution(package).entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    assert not [point for point in points if point.group == "console_scripts"]


INTERNAL = {"columns", "edge_functions"}  # options of `read_csv` in Python alone
OTHERS = (  # flags of pip, git, torchrun, run.py and the scripts of benchmarks/
    *("--max-restarts", "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--no-tests", "--slow"),
    *("--dataset", "--quick", "--splits", "--plan", "--what", "--minutes", "--hubs", "--check", "--strict"),
)


def flags_of_commands():
    """Every flag of every command, and the negations of those that are on."""
    commands = typer.main.get_command(app).commands.values()
    return {flag for command in commands for option in command.params for flag in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_every_flag_in_the_manual_is_one(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
    assert sorted(named - flags_of_commands() - {*OTHERS, "--help", "--version", "--quiet", "--debug"}) == []


def test_the_page_of_files_has_the_options_of_reading_and_the_files_of_a_run():
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    options, _, run = text.split("## Columns of nodes")[0], *text.split("A run folder:")
    named = re.findall(r"`([a-z_, ]+)`", " ".join(re.findall(r"^\| (`[a-z_, ]+`) \|", options, flags=re.MULTILINE)))
    assert {name for names in named for name in names.split(", ")} >= set(
        reading_options(str(ROOT / "examples" / "club"))
    ) - INTERNAL
    assert set(re.findall(r"`([\w.]+\.(?:json|safetensors|csv|html))`", run.split("\n\n")[1])) == set(RUN_FILES) | {"manifest.json"}


def test_each_question_is_answered_within_two_hundred_words():
    """Two clicks: to the page of questions, and to a heading, or to the first one; then what stands below it."""
    page = ROOT / "docs" / "questions.md"
    links = re.findall(r"^\| .* \| \[[^\]]+\]\(([^)]+)\) \|$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(links) >= 30
    for link in links:
        path, _, anchor = link.partition("#")
        _, *parts = re.split(r"^#+ (.*)$", FENCE.sub("", (page.parent / path).read_text(encoding="utf-8")), flags=re.MULTILINE)
        below = {anchor_of(heading): text for heading, text in zip(parts[::2], parts[1::2], strict=True)}
        assert len(words_of(prose(below[anchor] if anchor else parts[1]))) <= 200, link
