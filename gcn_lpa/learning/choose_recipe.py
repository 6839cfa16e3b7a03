"""Which recipe suits a graph: by how many labels it has, and what its columns and edges are. docs/accuracy.md says why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gcn_lpa.data.scaling import single_columns
from gcn_lpa.graph import Graph
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, LAYERS, Recipe, recipe_of_paper

FEW_LABELS = 40  # a class; with fewer, learned edges and structural features cost accuracy: docs/accuracy.md
FEW_WITHOUT_COLUMNS = 10  # labels a class that trees on structural features want at least
TABLE_COLUMNS = 190  # of features at most that are a table, and no bag of words: trees are grown on them
COLUMNS = ("none", "table", "wide table", "words")

WITH_FEW_LABELS = DEFAULT.replace(
    **FIXED_EDGES,
    l2=5e-3,
    structure=False,
    members="smoothed-lr",
    origin="default where few nodes have labels, docs/accuracy.md",
)
WITHOUT_FEATURES = LAYERS.replace(
    votes=True,
    edges="free",
    loss="held_out",
    lpa_iterations=5,
    features="raw",
    residual=False,
    origin="default where nodes have no features",
)
WITH_STRUCTURE = WITHOUT_FEATURES.replace(
    structure=True,
    members="trees neighbour-lr",
    origin="default where nodes have no features; with trees, on structural features",
)


@dataclass(frozen=True)
class Case:
    """What a graph and its training labels are like, as far as a recipe depends on it."""

    few_labels: bool = False
    columns: str = "words"  # one of COLUMNS: a wide table has words beside single columns
    edge_types: bool = False

    def __str__(self) -> str:
        columns = {"none": "no columns", "words": "words"}.get(self.columns, f"a {self.columns}")
        amount = "few labels" if self.few_labels else "many labels"
        return ", ".join([amount, columns, *(["edge types"] if self.edge_types else [])])


def case_of(graph: Graph, train: Tensor) -> Case:
    """The case of a graph whose labels of the nodes `train`, a mask, are learned from."""
    return case_for(
        graph.num_features if graph.x_kind == "given" else None,
        int(train.sum()) / max(1, graph.num_classes),
        has_single_columns=bool(single_columns(graph.blocks)),
        num_edge_types=1 if graph.edge_types is None else len(graph.edge_types.names),
    )


def case_for(
    num_columns: int | None, labels_per_class: float, *, has_single_columns: bool = False, num_edge_types: int = 1
) -> Case:
    """The case of nodes with so many feature columns, None: without any."""
    columns = "wide table" if has_single_columns else "words"
    if num_columns is None:
        columns = "none"
    elif num_columns <= TABLE_COLUMNS:
        columns = "table"
    least = FEW_WITHOUT_COLUMNS if columns == "none" else FEW_LABELS
    return Case(labels_per_class < least, columns, num_edge_types > 1)


def choose_recipe(
    graph: Graph, train: Tensor, name: str = "default", *, by_folds: bool = False, has_time: bool = False
) -> Recipe:
    """The recipe of a name for a graph: see `named_recipe`.

    Args:
        train: the nodes whose labels are learned from, a mask.
    """
    return named_recipe(name, graph.name, case_of(graph, train), by_folds=by_folds, has_time=has_time)


def named_recipe(name: str, dataset: str, case: Case, *, by_folds: bool = False, has_time: bool = False) -> Recipe:
    """The recipe `default`, `best`, `paper` or `official`; the last two know the five data sets of the paper.

    Args:
        by_folds: whether folds of the labels choose the epochs: by their loss, as many epochs get all of a few nodes right.
        has_time: in `best`, also three layers of 256, which take ten times as long.
    """
    is_ours = name in ("default", "best")
    recipe = recipe_for(case, name, wide=has_time) if is_ours else recipe_of_paper(name, dataset)
    return recipe.replace(select="loss") if by_folds else recipe


def recipe_for(case: Case, name: str = "default", *, wide: bool = False) -> Recipe:
    """The recipe `default` or `best` for a case; `best` is the default with more members."""
    if case.columns == "none":
        recipe, more = WITHOUT_FEATURES if case.few_labels else WITH_STRUCTURE, "layers"
    else:
        recipe = WITH_FEW_LABELS if case.few_labels else DEFAULT
        more = "label-input correct-and-smooth"
        if case.few_labels:
            more = "cosine-hops linear"
        elif case.columns != "table":
            more = f"hops cosine-layers {more}"
        if case.edge_types:
            recipe = recipe.replace(propagation="relations", origin=f"{recipe.origin}; hops along each edge type")
        members = f"trees {recipe.members}"  # soon done: first where time is short
        if case.columns == "table":
            origin = f"{recipe.origin}; with trees and along the given edges, as features are a table"
            recipe = recipe.replace(**FIXED_EDGES, members=members, origin=origin)
        elif case.columns == "wide table":
            recipe = recipe.replace(members=members, origin=f"{recipe.origin}; with trees on columns that are no words")
    if name == "default":
        return recipe
    names = [*recipe.members.split(), *more.split(), *(["wide"] if wide else [])]
    if "trees" in names and "neighbour-lr" not in names:
        names.insert(1, "neighbour-lr")
    return recipe.replace(members=" ".join(names), origin=f"best, beside {recipe.origin}")
