"""The version of the code that a number comes from: a hash of every file that a training's numbers depend on."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
ROOMS = ("engine", "tables", "methods")  # every file of them, and every flat module but these:
UNRELATED = (
    "__init__",
    "__main__",
    "calibration",
    "conversion",
    "description",
    "estimator",
    "files",
    "folds",
    "growth",
    "markup",
    "palette",
    "planner",
    "progress",
    "pyg",
    "stats",
    "storage",
    "workers",
)
FURTHER = ("theory/influence",)  # measured beside accuracies in the study of influence
NOT_IN_STUDY = (  # what no training of the study of the paper runs: models of its methods on its data sets have no need of it
    *("choice", "fusion", "hops", "methods/smoothed", "methods/tabular"),
    *("tables/cells", "tables/checks", "tables/columns", "tables/csv_files", "tables/encoders"),
    *("tables/mapped_files", "tables/own_files", "tables/parquet_files"),
)


def hashed_files() -> Iterator[Path]:
    """The files of the hash, in order. A new file of a room, or a new flat module, is one of them by itself."""
    yield from (path for path in sorted(PACKAGE.glob("*.py")) if path.stem not in UNRELATED)
    for room in ROOMS:
        yield from sorted((PACKAGE / room).glob("*.py"))
    yield from (PACKAGE / f"{name}.py" for name in FURTHER)


def study_hash() -> str:
    """The hash of what the study of the paper runs: the choice of a recipe, votes, trees and tables of one's own may change."""
    return code_hash(NOT_IN_STUDY)


@cache
def code_hash(without: tuple[str, ...] = ()) -> str:
    """Twelve hex digits that change with the code, but not with its layout, comments, docstrings and errors.

    Args:
        without: files that do not count, such as "methods/tabular".
    """
    digest = hashlib.sha256()
    for path in hashed_files():
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if module in without:
            continue
        tree = _Bare().visit(ast.parse(path.read_text(encoding="utf-8")))
        for node in tree.body:
            digest.update(f"{module} {_spelled(node)}".encode())
    return digest.hexdigest()[:12]


class _Bare(ast.NodeTransformer):
    """Removes what no number depends on."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> None:
        return None


def _spelled(node: Any) -> str:
    """A syntax tree as text; unlike `ast.dump`, the same in every version of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(_spelled, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(f'{name}={_spelled(value)}' for name, value in fields)})"
