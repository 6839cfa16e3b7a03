"""The version of the code that a number comes from: a hash of every file that a training's numbers depend on."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = (
    "gcn_lpa",
    *(f"gcn_lpa/{room}" for room in ("data", "engine", "learning", "methods")),
)  # all their files, but these:
UNRELATED = (
    *("gcn_lpa/__init__", "gcn_lpa/__main__", "gcn_lpa/calibration", "gcn_lpa/estimator"),
    *("gcn_lpa/pyg", "gcn_lpa/stats", "gcn_lpa/data/describe"),
)
FURTHER = (  # models of the study, and what is measured beside accuracies in the study of influence
    *("reproduction/aggregation", "reproduction/influence", "reproduction/max_pooling", "reproduction/methods"),
    *("reproduction/neighbourhoods", "reproduction/recipes", "reproduction/sampled_graphsage", "reproduction/sampling"),
    "reproduction/training",
)
NOT_IN_STUDY = (  # what no training of the study of the paper runs: models of its methods on its data sets have no need of it
    *("gcn_lpa/data/column_types", "gcn_lpa/data/table", "gcn_lpa/data/encoders", "gcn_lpa/data/databases"),
    *("gcn_lpa/data/read_folder", "gcn_lpa/learning/ensemble", "gcn_lpa/learning/learn"),
    *("gcn_lpa/learning/updated", "gcn_lpa/methods/trees"),
)


def hashed_files() -> Iterator[Path]:
    """The files of the hash, in order. A new file of a room is one of them by itself."""
    for room in ROOMS:
        yield from (path for path in sorted((ROOT / room).glob("*.py")) if module_of(path) not in UNRELATED)
    yield from (ROOT / f"{name}.py" for name in FURTHER)


def module_of(path: Path) -> str:
    """Its name in the lists above."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


def study_hash() -> str:
    """The hash of what the study of the paper runs: the choice of a recipe, votes, trees and tables of one's own may change.

    The hash follows the files: where they move, it is another, and the lines of the ledger keep the one that they were made by.
    """
    return code_hash(NOT_IN_STUDY)


@cache
def code_hash(without: tuple[str, ...] = ()) -> str:
    """Twelve hex digits that change with the code, but not with its layout, comments, docstrings and errors.

    Args:
        without: files that do not count, such as "gcn_lpa/methods/trees".
    """
    digest = hashlib.sha256()
    for path in hashed_files():
        module = module_of(path)
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
