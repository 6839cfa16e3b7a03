"""Every setting of a run as one frozen value, the settings of the paper as data, and the recipe that suits a graph.

Flags, JSON and search spaces are made from the fields of `Recipe`; the help text lives on the field. `choose_recipe` looks at how
many labels a graph has, and what its columns and edges are: docs/accuracy.md says why.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, get_type_hints

if TYPE_CHECKING:
    from torch import Tensor

    from gcn_lpa.graph import Graph

LOSSES = ("official", "literal", "held_out", "leave_one_out", "influence")
SELECTION = (
    *("first_best", "last_best", "loss"),
    *("balanced_accuracy", "macro_f1", "roc_auc", "average_precision", "brier"),  # of `metrics.METRICS`
)


def _field(default: Any, help: str, choices: tuple[str, ...] = (), *, added: bool = False) -> Any:
    """A setting. One that was `added` later is off by default, and left out of the hash while it is off."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "added": added})


MOST = {  # far beyond any real training: a stranger's recipe must not take all memory or time
    **dict.fromkeys(("gcn_layers", "heads"), 1_000),
    **dict.fromkeys(("lpa_iterations", "propagation_steps"), 10_000),
    **dict.fromkeys(("hidden", "edge_rank"), 100_000),
    "clusters": 1_000_000,
    **dict.fromkeys(("folds", "models"), 100),
    **dict.fromkeys(("epochs", "patience"), 10_000_000),
}
REMOVED = {"symmetric_edges": False}  # settings there once were, off in every recorded run: their hashes stay
LEAST_WAIT = 30  # epochs that training goes on after the best one, where patience allows
LEAST_SHARE = 1e-9  # of nodes that are drawn: what is left out of fewer is rounded to all
LIMITS: dict[str, tuple[tuple[str, ...], Callable[[float], bool]]] = {
    "at least 1": (
        ("gcn_layers", "hidden", "edge_rank", "epochs", "heads", "propagation_steps", "folds", "models"),
        lambda x: x >= 1,
    ),
    "not negative": (("lpa_iterations", "lpa_weight", "l2", "l2_edges", "patience", "clusters"), lambda x: x >= 0),
    "in [0, 1)": (("dropout", "feature_dropout", "edge_dropout", "label_rate"), lambda x: 0 <= x < 1),
    "in [0, 1]": (("lpa_ratio", "teleport"), lambda x: 0 <= x <= 1),
    f"0, or at least {LEAST_SHARE:g}": (("lpa_ratio", "label_rate"), lambda x: x == 0 or x >= LEAST_SHARE),
    "positive": (("lr", "edge_lr"), lambda x: x > 0),
}
KINDS: dict[Any, tuple[Any, str]] = {  # by the type of a field
    bool: (bool, "True or False"),
    int: (int, "a whole number"),
    float: (int | float, "a finite number"),
    float | None: (int | float | None, "a finite number or None"),
    str: (str, "a text"),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a model and of its training. The defaults are those of `LAYERS`."""

    method: str = _field("gcn-lpa", "which model: a key of METHODS")
    features: str = _field("l2", "what is done to the raw features", ("raw", "row", "l2", "tfidf", "auto"))
    self_loops: bool = _field(True, "add a self-loop of weight 1 to every node that has none")
    gcn_layers: int = _field(2, "number of graph convolutions, K")
    hidden: int = _field(64, "width of the hidden layers")
    lpa_iterations: int = _field(1, "number of hops a label may travel, k")
    lpa_weight: float = _field(0.3, "λ, the weight of the LPA loss, Eq. (18)")
    lpa_ratio: float = _field(1.0, "share of the training nodes that LPA may see; all of them stay targets")
    loss: str = _field("leave_one_out", "what the LPA loss scores", LOSSES)
    training: str = _field("joint", "A* and W together, Eq. (18), or in turn, Eqs. (15), (17)", ("joint", "two_step"))
    edges: str = _field("agnn", "edge form: fixed, free, bilinear, gat, agnn, cosine, gaan, geniepath or gaussian")
    edge_rank: int = _field(32, "width of the projections inside the feature-based edge forms")
    edge_init: str = _field("zeros", "how free edge weights start", ("zeros", "glorot"))
    normalization: str = _field("row", "D⁻¹A as in the paper, or D^-½AD^-½", ("row", "symmetric"))
    dropout: float = _field(0.5, "dropout of the hidden layers")
    feature_dropout: float | None = _field(None, "dropout of the input features; None: as the hidden layers")
    edge_dropout: float = _field(0.0, "share of edges left out at each step; self-loops stay")
    bias: bool = _field(False, "add a bias to every layer")
    residual: bool = _field(True, "add x W' of the node itself to every layer")
    layer_norm: bool = _field(False, "normalise every row of a hidden layer")
    batch_norm: bool = _field(False, "normalise every column of a hidden layer over the nodes", added=True)
    class_weights: str = _field("none", "weight of a class in both losses", ("none", "balanced"))
    lr: float = _field(0.01, "learning rate of Adam")
    l2: float = _field(5e-4, "½·l2·‖W‖² in the loss")
    l2_edges: float = _field(0.0, "½·l2·‖·‖² on the parameters of the edges")
    heads: int = _field(8, "gat: attention heads of every layer but the last, each `hidden` wide")
    propagation_steps: int = _field(20, "lpa, appnp, hops …: how many hops labels or predictions travel")
    teleport: float = _field(0.1, "appnp, hops …: share of its start a node keeps at each hop, α")
    label_rate: float = _field(0.625, "label-input: share of the training labels that are input at each step")
    propagation: str = _field(
        "layers",
        "how features travel: convolutions (layers); predictions that walk several hops, Σ_k γ_k P^k f(x) (hops); hops along "
        "each given edge type by itself, Σ_r Σ_k γ_rk P_r^k f(x) (relations); or "
        "columns that walk before training, f(x, P x, … P^K x) (columns)",
        ("layers", "hops", "relations", "columns"),
        added=True,
    )
    votes: bool = _field(False, "let labels vote when predicting, as far as held-out labels support it", added=True)
    structure: bool = _field(False, "add structural features: degrees, PageRank, filled cells", added=True)
    edge_weights: bool = _field(
        False, "first learn what edges weigh by their columns or type, if held-out labels support it", added=True
    )
    members: str = _field("", "members of the ensemble beside this model, with spaces between", added=True)
    folds: int = _field(5, "parts of the labels held out in turn; 1: a fifth once, then all labels train", added=True)
    models: int = _field(1, "models of each member where nodes to hold out are given; folds have one each", added=True)
    clusters: int = _field(0, "train on parts of the graph in turn, cut by METIS: less memory; 0: all", added=True)
    edge_lr: float | None = _field(None, "learning rate of the parameters of the edges; None: lr", added=True)
    edge_mask: str = _field("exp", "free weights: M = exp(w) or softplus, 1 at w = 0", ("exp", "softplus"), added=True)
    epochs: int = _field(200, "number of training steps on the whole graph")
    patience: int = _field(
        0, "stop after so many epochs without a better score, or as many as that took, 30 at least; 0: when sure"
    )
    select: str = _field(
        "first_best",
        "which epoch is kept: best validation accuracy (first or last), lowest loss, or best of a metric",
        SELECTION,
    )
    origin: str = _field("default: the best of our first trials, also under noisy edges", "where they come from")

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, (kind, words) = getattr(self, name), KINDS[hint]
            is_of_kind = isinstance(value, kind) and isinstance(value, bool) == (hint is bool)
            if not is_of_kind or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"recipe: {name} = {value!r}; it is {words}")
            if hint is not int and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))  # 1 and 1.0 are one setting, with one hash
        for spec in dataclasses.fields(self):
            value, choices = getattr(self, spec.name), spec.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(f"recipe: {spec.name} = {value!r}; it is one of {', '.join(choices)}")
        for words, (names, holds) in LIMITS.items():
            for name in names:
                if (value := getattr(self, name)) is not None and not holds(value):
                    raise ValueError(f"recipe: {name} = {value}; it is {words}")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ValueError(f"recipe: {name} = {getattr(self, name)}; it is at most {most:,}")
        if self.layer_norm and self.batch_norm:
            raise ValueError("recipe: layer_norm and batch_norm are both on; a hidden layer is normalised in one way")
        if self.loss == "leave_one_out" and self.lpa_iterations > 2:
            right = f"one or two LPA iterations, not {self.lpa_iterations}; use loss 'held_out'"
            raise ValueError(f"recipe: leave_one_out is exact for {right}")

    def replace(self, **changes: Any) -> Self:
        unknown = set(changes) - {spec.name for spec in dataclasses.fields(self)}
        if unknown:
            names = ", ".join(spec.name for spec in dataclasses.fields(self))
            raise ValueError(f"a recipe has no field {', '.join(map(repr, sorted(unknown)))}; it has {names}")
        return dataclasses.replace(self, **changes)

    def prepare(self, graph: Graph) -> Graph:
        """The graph as the model reads it: features normalised, self-loops added."""
        graph = graph.with_features(graph.scaling(self.features, structure=self.structure))
        return graph.with_self_loops() if self.self_loops else graph

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; a missing field takes its default, an unknown or wrong-typed one is an error."""
        return cls().replace(**settings)

    def hash(self) -> str:
        """Twelve hex digits that change with any setting but its origin."""
        settings = REMOVED | {
            spec.name: getattr(self, spec.name)
            for spec in dataclasses.fields(self)
            if spec.name != "origin" and not (spec.metadata["added"] and getattr(self, spec.name) == spec.default)
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


LAYERS = Recipe()  # two residual convolutions along AGNN edges
DEFAULT = Recipe(
    features="auto",
    propagation="hops",
    propagation_steps=10,
    normalization="symmetric",
    edges="cosine",
    l2_edges=5e-3,
    structure=True,
    votes=True,
    members="layers three-layers",
    epochs=1000,
    patience=100,
    select="loss",
    origin="default: the best of our trials on development splits, docs/accuracy.md",
)
FIXED_EDGES: dict[str, Any] = {"edges": "fixed", "lpa_weight": 0.0, "normalization": "symmetric", "training": "joint"}
HOP_COLUMNS: dict[str, Any] = {**FIXED_EDGES, "propagation": "columns", "propagation_steps": 3, "normalization": "row"}

_PAPER = Recipe(  # Section 4.3: 200 epochs of Adam, Glorot, row-normalised features, L2 on the W, test accuracy at best validation
    features="row",
    edges="free",
    loss="literal",
    residual=False,
    patience=0,
    epochs=200,
    select="first_best",
    origin="the paper",
)


TABLE_4 = ("hidden", "gcn_layers", "lpa_iterations", "l2", "lpa_weight", "dropout", "lr")  # its rows
PAPER = {
    dataset.lower(): _PAPER.replace(origin=f"the paper, Table 4, {dataset}", **dict(zip(TABLE_4, column, strict=True)))
    for dataset, column in {
        "Cora": (32, 5, 5, 1e-4, 10.0, 0.2, 0.05),
        "Citeseer": (16, 2, 5, 5e-4, 1.0, 0.0, 0.2),
        "Pubmed": (32, 2, 1, 2e-4, 1.0, 0.0, 0.1),
        "Coauthor-CS": (32, 2, 2, 1e-4, 2.0, 0.2, 0.1),
        "Coauthor-Phy": (32, 2, 3, 1e-4, 1.0, 0.2, 0.05),
    }.items()
}
OFFICIAL = {  # the authors' public code with the settings of Table 4
    dataset: recipe.replace(
        loss="official",
        edge_init="glorot",
        l2_edges=recipe.l2,
        select="last_best",
        origin=recipe.origin.replace("the paper", "the authors' code"),
    )
    for dataset, recipe in PAPER.items()
}


def recipe_of_paper(name: str, dataset: str) -> Recipe:
    """The recipe `paper` or `official` for one of the five data sets of the paper."""
    tables = {"paper": PAPER, "official": OFFICIAL}
    if name not in tables:
        raise ValueError(f"unknown recipe {name!r}; there are default, quick, best, paper and official")
    if dataset not in tables[name]:
        known = ", ".join(tables[name])
        raise ValueError(f"recipe {name!r} has no settings for {dataset!r}, only for {known}; use 'default'")
    return tables[name][dataset]


FEW_LABELS = 40  # a class; with fewer, learned edges and structural features cost accuracy: docs/accuracy.md
MANY_LABELS = 200  # a class; with fewer, the kinds of models that few labels want are members of the default
FEW_WITHOUT_COLUMNS = 10  # labels a class that trees on structural features want at least
LARGE = 1_000_000  # nodes and entries from which on the default on a CPU is the quick one
SURE = 2000  # labels from which on the quick one holds out one part of them
TABLE_COLUMNS = 190  # of features at most that are a table, and no bag of words: trees are grown on them
FOR_CLASSES = ("grand", "far-grand", "label-input", "correct-and-smooth")  # members that predict no numbers
OURS = ("default", "quick", "best")  # recipes that are chosen for a graph
COLUMNS = ("none", "table", "wide table", "words")
AMOUNTS = ("few", "some", "many")

WITH_FEW_LABELS = DEFAULT.replace(
    **FIXED_EDGES,
    structure=False,
    members="smoothed-lr gcn appnp batch-norm grand",
    origin="default where few nodes have labels, docs/accuracy.md",
)
TABLE_WITH_FEW_LABELS = WITH_FEW_LABELS.replace(members="smoothed-lr lr gcn batch-norm")
WITH_SOME_LABELS = DEFAULT.replace(
    members=f"{DEFAULT.members} smoothed-lr batch-norm grand",
    origin="default where some nodes have labels, docs/accuracy.md",
)
WITHOUT_FEATURES = LAYERS.replace(
    votes=True,
    edges="free",
    loss="held_out",
    lpa_iterations=5,
    propagation_steps=10,
    features="raw",
    residual=False,
    members="hops appnp",
    origin="default where nodes have no features",
)
WITH_STRUCTURE = WITHOUT_FEATURES.replace(
    structure=True,
    members="trees neighbour-lr hops appnp",
    origin="default where nodes have no features; with trees, on structural features",
)
QUICK = DEFAULT.replace(  # an epoch costs what the labels cost, not what the edges cost
    **HOP_COLUMNS,
    members="trees",
    patience=30,
    origin="quick: members whose epochs do not walk the edges, docs/accuracy.md",
)


@dataclass(frozen=True)
class Case:
    """What a graph and its training labels are like, as far as a recipe depends on it."""

    labels: str = "many"  # one of AMOUNTS
    columns: str = "words"  # one of COLUMNS: a wide table has words beside single columns
    edge_types: bool = False
    edge_columns: bool = False  # or types: edges differ in what may say how much they weigh
    numbers: bool = False  # whether labels are numbers
    is_large: bool = False  # an epoch that walks its edges takes seconds on a CPU
    is_sure: bool = False  # a fifth of its labels says as much as all

    def __str__(self) -> str:
        columns = {"none": "no columns", "words": "words"}.get(self.columns, f"a {self.columns}")
        more = [*(["edge types"] if self.edge_types else []), *(["numbers to predict"] if self.numbers else [])]
        return ", ".join([f"{self.labels} labels", columns, *more])


def case_of(graph: Graph, train: Tensor) -> Case:
    """The case of a graph whose labels of the nodes `train`, a mask, are learned from."""
    from gcn_lpa.data.scaling import single_columns  # imports torch: not for a recipe alone

    columns = "wide table" if single_columns(graph.blocks) else "words"
    if graph.x_kind != "given":
        columns = "none"
    elif graph.num_features <= TABLE_COLUMNS:
        columns = "table"
    few, some = (FEW_WITHOUT_COLUMNS, 0) if columns == "none" else (FEW_LABELS, MANY_LABELS)
    number, num_edge_types = int(train.sum()), 1 if graph.edge_types is None else len(graph.edge_types.names)
    per_class, of_edges = number / max(1, graph.target.vote_width), graph.with_type_column().edge_columns
    return Case(
        "few" if per_class < few else "some" if per_class < some else "many",
        columns,
        edge_types=num_edge_types > 1,
        edge_columns=of_edges is not None and of_edges.differ,
        numbers=graph.numbers is not None,
        is_large=graph.num_nodes + graph.adjacency.num_entries >= LARGE,
        is_sure=number >= SURE,
    )


def choose_recipe(graph: Graph, train: Any, name: str = "default", *, by_folds: bool = True, has_time: bool = False) -> Recipe:
    """The recipe of a name for a graph: see `named_recipe`.

    Args:
        train: the nodes whose labels are learned from, a mask or positions.
    """
    from gcn_lpa.data.checks import node_mask  # imports torch

    mask = node_mask(train, graph.num_nodes, "train")
    return named_recipe(name, graph.name, case_of(graph, mask), by_folds=by_folds, has_time=has_time)


def named_recipe(name: str, dataset: str, case: Case, *, by_folds: bool = False, has_time: bool = False) -> Recipe:
    """The recipe `default`, `quick`, `best`, `paper` or `official`; the last two know the five data sets of the paper.

    Args:
        by_folds: whether folds of the labels choose the epochs: by their loss, as many epochs get all of a few nodes right.
        has_time: in `best`, also many layers and wide ones, which take ten times as long; and a large graph has the whole default.
    """
    is_ours = name in OURS
    recipe = recipe_for(case, name, has_time=has_time) if is_ours else recipe_of_paper(name, dataset)
    if is_ours and case.edge_columns:
        recipe = recipe.replace(edge_weights=True)
    if is_ours and case.numbers:
        recipe = for_numbers(recipe, "smoothed-lr batch-norm appnp" if name == "best" else "")
    return recipe.replace(select="loss") if by_folds else recipe


def for_numbers(recipe: Recipe, more: str = "") -> Recipe:
    """The recipe where labels are numbers: without members that predict classes alone, and with ridge regression, for which few
    numbers suffice, on own columns and on those of the neighbours.
    """
    names = [name for name in recipe.members.split() if name not in FOR_CLASSES]
    columns = ["lr"] if recipe.features != "raw" else []  # without features there is no own column
    members = list(dict.fromkeys([*columns, "neighbour-lr", *names, *more.split()]))
    return recipe.replace(members=" ".join(members), select="loss", origin=f"{recipe.origin}; for numbers")


def recipe_for(case: Case, name: str = "default", *, has_time: bool = False) -> Recipe:
    """The recipe `default`, `quick` or `best` for a case; `best` is the default with more members."""
    if name == "quick" or (name == "default" and case.is_large and not has_time):
        chosen = quick_for(case)
        return chosen if name == "quick" else chosen.replace(origin=f"default of a large graph, which is {chosen.origin}")
    if case.columns == "none":
        recipe, more = WITHOUT_FEATURES if case.labels == "few" else WITH_STRUCTURE, "layers"
    else:
        recipe = {"few": WITH_FEW_LABELS, "some": WITH_SOME_LABELS, "many": DEFAULT}[case.labels]
        if case.columns == "table":
            recipe = TABLE_WITH_FEW_LABELS if case.labels == "few" else DEFAULT
        more = "label-input correct-and-smooth"
        if case.labels == "few":
            more = "strong-hops strong-appnp far-grand"
        elif case.columns != "table":
            more = f"hops cosine-layers {more}"
        if has_time and case.labels != "few":
            more = f"{more}{' trees' if case.columns == 'words' else ''} wide-three wide strong-wide narrow deep"
        if case.edge_types:
            recipe = recipe.replace(propagation="relations", origin=f"{recipe.origin}; hops along each edge type")
        members = f"trees {recipe.members}"  # soon done: first where time is short
        if case.columns == "table":
            origin = f"{recipe.origin}; with trees and along the given edges, as features are a table"
            stands_in = "" if case.labels == "few" else " hop-columns"  # for layers, where these bring nothing
            members = members.replace("trees", f"trees{stands_in}", 1)
            recipe = recipe.replace(**FIXED_EDGES, members=members, origin=origin)
        elif case.columns == "wide table":
            recipe = recipe.replace(members=members, origin=f"{recipe.origin}; with trees on columns that are no words")
    if name == "default":
        return recipe
    names = [*recipe.members.split(), *more.split()]
    if "trees" in names and "neighbour-lr" not in names and case.columns != "words":
        names.insert(1, "neighbour-lr")
    return recipe.replace(members=" ".join(names), models=3 if has_time else 1, origin=f"best, beside {recipe.origin}")


def quick_for(case: Case) -> Recipe:
    """The recipe `quick` for a case: hop columns, trees and label votes; with few labels logistic regressions too.

    On a table that is not large predictions walk as well: the mean age of neighbours says little of their classes.
    """
    recipe = QUICK.replace(folds=1 if case.is_sure else QUICK.folds)
    if case.columns == "table" and not case.is_large:
        hops = {name: getattr(DEFAULT, name) for name in ("propagation", "propagation_steps", "normalization")}
        recipe = recipe.replace(**hops, members="trees hop-columns")
    if case.labels != "few" or case.columns == "none":
        return recipe
    return recipe.replace(structure=False, members="trees smoothed-lr lr" if case.columns == "table" else "smoothed-lr")
