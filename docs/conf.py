"""How Sphinx makes a site of the Markdown: `python3 run.py docs`. Pages are read where they are, the API from the docstrings."""

import re
from pathlib import Path
from typing import Any

# What stands at the left of every page. `tests/test_docs.py` sees to it that no page of docs/ is missing.
NAVIGATION = {
    "Start": ["README", "docs/start", "docs/how-it-works", "docs/questions"],
    "Data and training": ["docs/data", "docs/edges", "docs/databases", "docs/training", "docs/growth", "docs/large"],
    "Questions to a run": [
        *(
            "docs/advice",
            "docs/report",
            "docs/explaining",
            "docs/auditing",
            "docs/confidence",
            "docs/rare",
            "docs/numbers",
        ),
        "docs/estimator",
    ],
    "Reference": ["docs/commands", "docs/recipe", "docs/files", "docs/api"],
    "Evidence": ["docs/accuracy", "docs/performance", "docs/reproduction", "docs/theory", "docs/comparison"],
    "Results of the paper": ["results/*"],
    "Project": ["CONTRIBUTING", "SECURITY", "CHANGELOG"],
}

project = "gcn-lpa"
author = "gcn-lpa contributors"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = ["docs/*.md", "results/*.md", "*.md"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to folders, which GitHub follows; tests/test_docs.py looks at all links
default_role = "code"  # docstrings write `names` so
autodoc_typehints = "description"
autodoc_member_order = "bysource"
toc_object_entries = False
html_theme = "alabaster"
html_theme_options = {
    "description": "Label the nodes of a partly labelled graph",
    "page_width": "1200px",
    "font_family": "sans-serif",
}


def add_generated(app: Any, name: str, source: list[str]) -> None:
    """Add the navigation to the first page, and what is public to the page of the API."""
    if name == root_doc:
        for title, pages in NAVIGATION.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{listed}\n```\n"
    elif name == "docs/api":
        import gcn_lpa

        for module in dict.fromkeys(gcn_lpa._MODULE.values()):
            names = [name for name, home in gcn_lpa._MODULE.items() if home == module]
            source[0] += f"\n## {module}\n\n```{{eval-rst}}\n"
            source[0] += "".join(_directive(getattr(gcn_lpa, one), f"{module}.{one}") for one in names)
            source[0] += "```\n"


def _directive(value: object, name: str) -> str:
    if isinstance(value, type):
        return f".. autoclass:: {name}\n   :members:\n   :exclude-members: set_score_request\n\n"  # scikit-learn's own
    return f".. autofunction:: {name}\n\n" if callable(value) else f".. py:data:: {name}\n\n"


def escape(app: Any, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: outside of `code`, what reStructuredText would read as its own marks is itself."""
    for k, line in enumerate(lines):
        parts = re.split(r"(`[^`]+`)", line)
        lines[k] = "".join(part if part.startswith("`") else re.sub(r"([*|\\]|\w_\b)", r"\\\1", part) for part in parts)


def add_entrance(app: Any, error: Exception | None) -> None:
    """A page at the top that leads to the first one."""
    if error is None:
        entrance = '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">'
        Path(app.outdir, "index.html").write_text(entrance + "<title>gcn-lpa</title>\n", encoding="utf-8")


def setup(app: Any) -> None:
    for event, reaction in (
        ("source-read", add_generated),
        ("autodoc-process-docstring", escape),
        ("build-finished", add_entrance),
    ):
        app.connect(event, reaction)
