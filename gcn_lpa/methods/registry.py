"""Every method: the paper's baselines (Section 4.2), adaptive LPA (Section 3.2), newer rivals, and GCN-LPA; and the members that
an ensemble may have.

All have one interface: see `contract`. The members of a recipe are the recipe itself, which comes first, and those of MEMBERS that
`recipe.members` names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from gcn_lpa.graph import Graph
from gcn_lpa.methods.hop_columns import HopColumns
from gcn_lpa.methods.hops import Hops, Propagated, RelationHops
from gcn_lpa.methods.label_propagation import AdaptiveLPA, LabelPropagation
from gcn_lpa.methods.linear import FeaturesOnly, SmoothedLR
from gcn_lpa.methods.networks import GRAND, CorrectAndSmooth, GATNetwork, GraphSAGENetwork, JKNet, LabelInput
from gcn_lpa.methods.trees import NeighbourLR, Trees
from gcn_lpa.model import GCNLPA, Body, Convolutions
from gcn_lpa.recipes import DEFAULT, FIXED_EDGES, HOP_COLUMNS, OFFICIAL, PAPER, Recipe

COLUMNS = ("features", "structure")
TRAINING = ("lr", "l2", "epochs", "patience", "select", "class_weights", "clusters")  # of all that follow a gradient
NETWORK = (*COLUMNS, "self_loops", "gcn_layers", "hidden", "dropout", *TRAINING)
EDGES = ("edges", "edge_rank", "edge_init", "edge_mask", "edge_lr", "l2_edges")
LPA = ("lpa_iterations", "lpa_weight", "lpa_ratio", "loss", "training")
GCN = (
    *(*NETWORK, "normalization", "feature_dropout", "edge_dropout", "bias", "residual", "layer_norm", "batch_norm"),
    *("propagation", "propagation_steps", "teleport", "votes"),
)
ADAPTIVE = (
    *("self_loops", *COLUMNS, *EDGES, "propagation_steps", "lr", "epochs", "patience", "select"),
    *("loss", "lpa_iterations", "lpa_ratio", "class_weights"),
)
NEARBY: dict[str, Any] = {  # of methods that read own and neighbours' columns and label votes
    **{"fields": (*COLUMNS, "propagation_steps", "class_weights"), "features": "columns"},
    **{"at_once": True, "reads_labels": True},
}
# how features travel: `insight.explain` follows each
TRAVEL = ("layers", "given_edges", "personalized", "mean_of_hops", "own", "columns", "predictions", "none")
PUBLISHED = ("paper", "official")  # recipes beside which a baseline has the settings it was published with


@dataclass(frozen=True)
class Method:
    """One row of a comparison: how its model is built and with which settings, and what it can do."""

    name: str
    build: Callable[[Recipe, Graph, int], nn.Module]  # from the recipe, the prepared graph and the seed
    recipe: Recipe | Callable[[Recipe], Recipe]  # as published, or made from GCN-LPA's recipe for the same graph
    note: str
    fields: tuple[str, ...]  # of the recipe that it uses; any other is refused
    at_once: bool = False  # whether it is fitted without gradient steps: `methods.contract.FittedAtOnce`
    features: str = "layers"  # how features travel to a node: one of TRAVEL
    reads_labels: bool = False  # whether labels are input when it predicts, so that new ones change its predictions
    needs: str = ""  # the extra that installs its dependencies
    for_numbers: bool = True  # whether it predicts numbers too
    tuned: bool = False  # whether its published width and patience are part of it, where it is compared

    def __post_init__(self) -> None:
        if self.features not in TRAVEL:
            raise ValueError(f"method {self.name!r}: features = {self.features!r}; it is one of {', '.join(TRAVEL)}")

    @property
    def has_edge_weights(self) -> bool:
        """Whether it walks one weight for each edge, learned or given."""
        return "edges" in self.fields or self.features == "layers"

    def settings(self, gcn_lpa: Recipe = DEFAULT) -> Recipe:
        """The recipe of this method where GCN-LPA has `gcn_lpa`; a baseline has its published one."""
        return self.recipe(gcn_lpa) if callable(self.recipe) else self.recipe

    def fair(self, ours: Recipe = DEFAULT) -> Recipe:
        """The same, but a baseline has the columns that GCN-LPA has and trains until it has converged.

        The published settings were chosen for bags of words: on other columns, 200 epochs on rows of sum 1 are too few.
        """
        own = self.settings(ours)
        if callable(self.recipe):
            return own
        wanted = {"features": "auto", "structure": ours.structure}
        if not self.tuned:
            wanted |= {"epochs": 1000, "patience": 100}
        if "heads" not in self.fields and not self.tuned:  # GAT's width is heads × hidden, 64 as published
            wanted["hidden"] = 64
        if self.features == "none":  # labels alone travel
            wanted["propagation_steps"] = 50
        changes = {name: value for name, value in wanted.items() if name in self.fields}
        changed = ", ".join(f"{name} = {value}" for name, value in changes.items() if getattr(own, name) != value)
        return own.replace(**changes, origin=f"as published, but {changed}")

    def beside(self, ours: Recipe, recipe: str | Recipe) -> Recipe:
        """The settings of this method in a comparison where GCN-LPA has `ours`, the recipe of the name `recipe`."""
        return self.settings(ours) if recipe in PUBLISHED else self.fair(ours)

    def note_on(self, recipe: Recipe) -> str:
        """The note, with the differences between these settings and the published ones."""
        is_as_noted = callable(self.recipe) or recipe.origin == self.recipe.origin
        return self.note if is_as_noted else f"{self.note}; here {recipe.origin}"

    def with_changes(self, recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
        """The recipe with fields changed by a user; a field that the method does not use is a ValueError."""
        if unused := self.unused(recipe, changes):
            names = ", ".join(f"{name} = {changes[name]!r}" for name in unused)
            raise ValueError(f"method {self.name!r} does not use {names}; it uses {', '.join(self.fields)}")
        return recipe.replace(**changes)

    def unused(self, recipe: Recipe, changes: Mapping[str, Any]) -> list[str]:
        """The changes that would have no effect: fields the method does not use, set to another value than it has."""
        known = recipe.replace(**changes)  # refuses unknown names and values
        idle = [name for name in changes if name not in (*self.fields, "origin")]
        return [name for name in idle if getattr(known, name) != getattr(recipe, name)]

    def check(self, recipe: Recipe, ours: Recipe = DEFAULT) -> None:
        """Refuse a whole recipe, such as one from a file, in which a field that the method does not use was changed.

        A field counts as changed if it is neither the method's value nor the default of `Recipe`. A recipe has changed none if
        its unused fields are all as they are beside one of the published recipes.
        """
        names = [spec.name for spec in dataclasses.fields(Recipe) if spec.name not in ("method", "origin")]
        idle = [name for name in names if name not in self.fields]
        for published in map(self.settings, (*PAPER.values(), *OFFICIAL.values())):
            if all(getattr(recipe, name) == getattr(published, name) for name in idle):
                return
        own, default = self.settings(ours), Recipe()
        given = {name: getattr(recipe, name) for name in names}
        usual = {name: (getattr(own, name), getattr(default, name)) for name in names}
        self.with_changes(own, {name: value for name, value in given.items() if value not in usual[name]})


_PLAIN = Recipe(
    features="row",
    edges="fixed",
    lpa_weight=0.0,
    residual=False,
    epochs=200,
    patience=0,
    select="first_best",
    origin="default in the packages or their open-source code",  # Section 4.2
)
_TUNED = _PLAIN.replace(
    **{"method": "gcn-tuned", "normalization": "symmetric", "residual": True, "batch_norm": True, "bias": True},
    **{"gcn_layers": 4, "hidden": 256, "dropout": 0.7, "lr": 0.01, "l2": 5e-4, "epochs": 500},
    origin="tunedGNN, for squirrel-filtered",
)
_TABULAR = _PLAIN.replace(
    features="auto",
    self_loops=False,
    propagation_steps=20,
    origin="our trials on development seeds of benchmarks/tables.py",
)
_SMOOTHED = _PLAIN.replace(
    features="auto", propagation_steps=10, teleport=0.1, origin="our trials on development draws of few labels"
)
_ADAPTIVE = _PLAIN.replace(features="l2", edges="agnn", lpa_weight=1.0, lr=0.05, origin="our choice for Section 3.2")
BODIES: dict[str, Callable[..., Body]] = {
    "layers": Convolutions,
    "hops": Hops,
    "relations": RelationHops,
    "columns": HopColumns,
}  # by `recipe.propagation`


def gcn_lpa(recipe: Recipe, graph: Graph, seed: int = 0) -> GCNLPA:
    """The model of a recipe, with the body that `recipe.propagation` names."""
    return GCNLPA(recipe, graph, seed, body=BODIES[recipe.propagation])


def appnp(recipe: Recipe, graph: Graph, seed: int = 0) -> GCNLPA:
    """GCN-LPA with the body of APPNP, along D^-½AD^-½, on fixed or learned edges."""
    return GCNLPA(recipe.replace(normalization="symmetric"), graph, seed, body=Propagated)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "mlp",
            lambda recipe, graph, seed: FeaturesOnly(recipe, graph, seed, hidden=(recipe.hidden,)),
            _PLAIN.replace(method="mlp", features="raw", self_loops=False, hidden=50),
            "scikit-learn's perceptron with 50 hidden units, on raw features; no epoch is selected",
            at_once=True,
            fields=(*COLUMNS, "hidden", "epochs"),
            features="own",
        ),
        Method(
            "lr",
            FeaturesOnly,
            _PLAIN.replace(method="lr", features="raw", self_loops=False),
            "scikit-learn's logistic regression (lbfgs) on raw features, as its default penalty is far too strong for "
            "rows of sum 1; no epoch is selected",
            at_once=True,
            fields=COLUMNS,
            features="own",
        ),
        Method(
            "lpa",
            LabelPropagation,
            _PLAIN.replace(method="lpa", features="raw", propagation_steps=20),
            "label propagation, 20 iterations, labels reset at each; looks at no feature",
            at_once=True,
            fields=("self_loops", "propagation_steps"),
            features="none",
            reads_labels=True,
        ),
        Method(
            "gcn",
            gcn_lpa,
            _PLAIN.replace(method="gcn", normalization="symmetric", hidden=16, dropout=0.5, lr=0.01, l2=5e-4),
            "Kipf & Welling: D^-½AD^-½, 2 layers, width 16, no bias; L2 on both W (their first code: on the first W)",
            fields=GCN,
        ),
        Method(
            "gcn-tuned",
            gcn_lpa,
            _TUNED,
            "Luo et al. (2024): 4 residual convolutions of width 256, batch norm, dropout 0.7, 500 epochs",
            fields=GCN,
            tuned=True,
        ),
        Method(
            "gat",
            GATNetwork,
            _PLAIN.replace(method="gat", hidden=8, heads=8, dropout=0.6, lr=0.005, l2=5e-4),
            "PyG's GATConv, 2 layers, 8 heads of 8; 200 epochs as all (their code: until 100 without improvement)",
            needs="pyg",
            fields=(*NETWORK, "heads"),
            features="given_edges",
        ),
        Method(
            "jk-net",
            JKNet,
            _PLAIN.replace(method="jk-net", gcn_layers=6, hidden=16, dropout=0.5, lr=0.005, l2=5e-4),
            "concat of 6 layers of width 16, dropout after each",
            fields=NETWORK,
            features="given_edges",
        ),
        Method(
            "graphsage",
            GraphSAGENetwork,
            _PLAIN.replace(method="graphsage", self_loops=False, hidden=128, dropout=0.0, lr=0.01, l2=0.0),
            "PyG's SAGEConv, 2 layers, width 128, mean of all neighbours (their code: of a sample of 25 and 10)",
            needs="pyg",
            fields=NETWORK,
            features="given_edges",
        ),
        Method(
            "gcn-lpa",
            gcn_lpa,
            lambda ours: ours.replace(method="gcn-lpa"),
            "the paper's model: learned edges that must also carry labels",
            fields=(*GCN, *EDGES, *LPA, "members", "edge_weights", "folds", "models"),
        ),
        Method(
            "gcn-same",
            gcn_lpa,
            lambda ours: ours.replace(method="gcn-same", edges="fixed", lpa_weight=0.0, training="joint", members=""),
            "GCN-LPA's settings with fixed edges and λ = 0",
            fields=GCN,
        ),
        Method(
            "appnp",
            appnp,
            _PLAIN.replace(method="appnp", hidden=64, dropout=0.5, propagation_steps=10, teleport=0.1),
            "perceptron of width 64, 10 steps of personalised PageRank, α = 0.1",
            fields=(*NETWORK, "propagation_steps", "teleport", *EDGES, "edge_dropout", *LPA),
            features="personalized",
        ),
        Method(
            "correct-and-smooth",
            CorrectAndSmooth,
            _PLAIN.replace(method="correct-and-smooth", hidden=64, dropout=0.5, propagation_steps=50, teleport=0.2),
            "perceptron of width 64, then 50 steps each of correcting and smoothing, α = 0.8, autoscale",
            fields=(*NETWORK, "propagation_steps", "teleport"),
            features="predictions",
            reads_labels=True,
            for_numbers=False,
        ),
        Method(
            "label-input",
            LabelInput,
            _PLAIN.replace(method="label-input", normalization="symmetric", hidden=64, dropout=0.5, label_rate=0.625),
            "GCN of width 64 that reads the labels of a random 62.5 % of the training nodes and is scored on the rest",
            fields=(*NETWORK, "normalization", "label_rate"),
            reads_labels=True,
            for_numbers=False,
        ),
        Method(
            "grand",
            GRAND,
            _PLAIN.replace(method="grand", hidden=64, dropout=0.5, propagation_steps=8),
            "perceptron of width 64 on the mean of 8 hops from a random half of the nodes; two draws must agree",
            fields=(*COLUMNS, "self_loops", "hidden", "dropout", *TRAINING, "propagation_steps"),
            features="mean_of_hops",
            for_numbers=False,
        ),
        Method(
            "neighbour-lr",
            NeighbourLR,
            lambda ours: _TABULAR.replace(method="neighbour-lr", structure=ours.structure),
            "scikit-learn's logistic regression on own columns, mean, minimum and maximum of the neighbours' (of more than 200 "
            "columns the mean), and votes of the labels nearby",
            **NEARBY,
        ),
        Method(
            "trees",
            Trees,
            lambda ours: _TABULAR.replace(method="trees", structure=ours.structure),
            "scikit-learn's gradient-boosted trees on own columns, mean, minimum and maximum of the neighbours', and votes of the "
            "labels nearby; of more than 200 columns on those that tell most",
            **NEARBY,
        ),
        Method(
            "smoothed-lr",
            SmoothedLR,
            lambda ours: _SMOOTHED.replace(method="smoothed-lr", structure=ours.structure),
            "scikit-learn's logistic regression on columns smoothed by personalised PageRank, then once more with the nodes it is "
            "surest of as labels",
            at_once=True,
            fields=(*COLUMNS, "self_loops", "propagation_steps", "teleport", "class_weights"),
            features="personalized",
        ),
        Method(
            "lpa-leave-one-out",
            AdaptiveLPA,
            _ADAPTIVE.replace(method="lpa-leave-one-out"),
            "LPA with weights from the cosine of projected features, learned by the leave-one-out loss at one hop",
            fields=ADAPTIVE,
            features="none",
            reads_labels=True,
        ),
    )
}

SHARED = (*COLUMNS, "self_loops", "class_weights", "epochs", "patience", "select", "l2", "clusters")  # by all members
LEARNED_EDGES = {"edges": "cosine", "normalization": "row", "lpa_weight": 0.3, "l2_edges": 5e-3}
WIDE = {"hidden": 512, "layer_norm": True, "lr": 0.001}


def as_method(name: str, **changes: Any) -> Callable[[Recipe], Recipe]:
    """The member that is another method, with what all members share."""
    return lambda first: METHODS[name].fair(first).replace(**{f: getattr(first, f) for f in SHARED}, **changes)


def as_layers(**changes: Any) -> Callable[[Recipe], Recipe]:
    """The member of residual convolutions along the given edges."""
    return lambda first: first.replace(**{"propagation": "layers", "bias": True, **FIXED_EDGES, **changes})


def longer(member: Callable[[Recipe], Recipe]) -> Callable[[Recipe], Recipe]:
    """A member that needs twice the patience: small steps, or many layers."""
    return lambda first: member(first).replace(patience=2 * first.patience)


def strong(member: Callable[[Recipe], Recipe]) -> Callable[[Recipe], Recipe]:
    """A member with ten times the L2: what is published for rows of sum 1 is weak on rows of length 1."""
    return lambda first: member(first.replace(l2=10 * first.l2))


MEMBERS: dict[str, Callable[[Recipe], Recipe]] = {  # the recipe of each, made from that of the first member
    "hops": lambda first: first.replace(propagation="hops", **FIXED_EDGES),
    "strong-hops": strong(lambda first: first.replace(propagation="hops", **FIXED_EDGES)),
    "hop-columns": lambda first: first.replace(**HOP_COLUMNS),
    "layers": as_layers(),
    "three-layers": as_layers(gcn_layers=3),
    "cosine-layers": as_layers(**LEARNED_EDGES, bias=False),
    "batch-norm": as_layers(gcn_layers=3, batch_norm=True),
    "deep": longer(as_layers(gcn_layers=12, batch_norm=True, dropout=0.2, l2=0.0)),  # after tunedGNN, Luo et al. (2024)
    "wide": longer(as_layers(**WIDE)),
    "wide-three": longer(as_layers(**WIDE, gcn_layers=3, dropout=0.3)),
    "strong-wide": strong(longer(as_layers(**WIDE))),
    "narrow": longer(as_layers(**{**WIDE, "hidden": 64}, dropout=0.3)),
    "gcn": as_method("gcn"),
    "appnp": as_method("appnp"),
    "strong-appnp": strong(as_method("appnp")),
    "grand": strong(as_method("grand", propagation_steps=5)),
    "far-grand": strong(as_method("grand")),
    "label-input": as_method("label-input"),
    "correct-and-smooth": as_method("correct-and-smooth", propagation_steps=20),
    "neighbour-lr": as_method("neighbour-lr"),
    "trees": as_method("trees"),
    "smoothed-lr": as_method("smoothed-lr"),
    "lr": as_method("lr"),
}


def members_of(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe of each member by its name; the name of the first is empty."""
    if recipe.method not in METHODS:
        raise ValueError(f"unknown method {recipe.method!r}; there are {', '.join(METHODS)}")
    if not recipe.members:
        return {"": recipe}
    first = recipe.replace(members="", votes=False, edge_weights=False)
    recipes = {"": first}
    for name in recipe.members.split():
        if name not in MEMBERS:
            raise ValueError(f"recipe: unknown member {name!r}; there are {', '.join(MEMBERS)}")
        recipes[name] = MEMBERS[name](first)
    return recipes
