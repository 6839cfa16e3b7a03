"""Which recipe suits a graph: by how many labels it has, and what its columns and edges are. docs/accuracy.md says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gcn_lpa.features import ABOUT_GRAPH, SCALED, WORDS, Block
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, LAYERS, Recipe, recipe_of_paper

FEW_LABELS = 40  # a class; with fewer, edges and columns about the graph teach nothing: docs/accuracy.md
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
WITH_PLACES = WITHOUT_FEATURES.replace(  # of a node in the graph: degrees and PageRank, its neighbours' too
    structure=True,
    members="trees neighbour-lr",
    origin="default where nodes have no features; with trees, on columns about the graph",
)
FEW_PLACES = 10  # labels a class that trees on columns about the graph want at least
TABLE_COLUMNS = 190  # of features at most that are a table, and no bag of words: trees are grown on them
MEMBERS = "hops cosine-layers label-input correct-and-smooth"  # beside the default, in the recipe `best`
MEMBERS_ON_TABLES = "label-input correct-and-smooth"
MEMBERS_WITH_FEW_LABELS = "cosine-hops linear"


def recipe_for(
    name: str,
    dataset: str,
    *,
    has_features: bool = True,
    labels_per_class: float = FEW_LABELS,
    num_columns: int | None = None,
    has_table: bool = False,
    num_kinds: int = 1,
    wide: bool = False,
) -> Recipe:
    """The recipe `default`, `best`, `paper` or `official`; the last two know the five data sets of the paper.

    Args:
        labels_per_class: how many nodes have a label to learn from, on average over the classes.
        num_columns: of the features; None: too many to be a table.
        has_table: whether some of many columns are single ones, and no words; trees are grown on those, edges learned all the same.
        num_kinds: of edges; with two or more, hops walk each kind by itself.
        wide: in `best`, also three layers of 256, which take ten times as long.
    """
    if name in ("default", "best"):
        ours = WITH_FEW_LABELS if labels_per_class < FEW_LABELS else DEFAULT
        if not has_features:
            ours = WITHOUT_FEATURES if labels_per_class < FEW_PLACES else WITH_PLACES
        if num_kinds > 1 and ours.propagation == "hops":
            ours = ours.replace(propagation="relations", origin=f"{ours.origin}; hops along each kind of edge")
        is_table = num_columns is not None and num_columns <= TABLE_COLUMNS
        if has_features and (is_table or has_table):
            changes = FIXED_EDGES if is_table else {}
            how = "and along the given edges, as features are a table" if is_table else "on columns that are no words"
            members = f"trees {ours.members}".strip()  # soon done: first where time is short
            ours = ours.replace(members=members, **changes, origin=f"{ours.origin}; with trees {how}")
        return ours if name == "default" else best_of(ours, wide=wide)
    return recipe_of_paper(name, dataset)


def best_of(ours: Recipe, *, wide: bool = False) -> Recipe:
    """The recipe `best` where the default is `ours`: the same with more members."""
    members = ours.members.split()
    if ours.features == WITHOUT_FEATURES.features:
        beside = "layers"
    elif ours.l2 == WITH_FEW_LABELS.l2:
        beside = MEMBERS_WITH_FEW_LABELS
    else:
        beside = MEMBERS_ON_TABLES if ours.edges == "fixed" else MEMBERS
    members += beside.split()
    if "trees" in members and "neighbour-lr" not in members:
        members.insert(1, "neighbour-lr")
    return ours.replace(members=" ".join([*members, *(["wide"] if wide else [])]), origin=f"best, beside {ours.origin}")


def facts_of(graph: Any, taught: Any) -> dict[str, Any]:
    """What `recipe_for` asks about a graph whose labels of the nodes `taught`, a mask, are learned from."""
    return {
        "has_features": graph.x_kind == "given",
        "labels_per_class": int(taught.sum()) / max(1, graph.num_classes),
        "num_columns": graph.num_features if isinstance(graph.num_features, int) else None,
        "has_table": bool(single_columns(graph.blocks)),
        "num_kinds": 1 if graph.relations is None else len(graph.relations.names),
    }


def single_columns(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of columns that each say something by themselves: no words. None where it is not known what the columns are."""
    found = [block for block in blocks if block.kind not in WORDS]
    return [] if all(block.name in (ABOUT_GRAPH, SCALED) for block in found) else found
