"""The methods of the study: those of the library, and those that no other user has."""

from __future__ import annotations

from torch import nn

from gcn_lpa.graph import Graph
from gcn_lpa.methods.label_propagation import AdaptiveLPA
from gcn_lpa.methods.registry import ADAPTIVE, METHODS, TRAINING, Method
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import Recipe
from reproduction.aggregation import AggregatingGCNLPA
from reproduction.neighbourhoods import NeighbourhoodLPA, SparseNeighbourhoodLPA
from reproduction.recipes import StudyRecipe
from reproduction.sampled_graphsage import SampledGraphSAGE


def gcn_lpa(recipe: StudyRecipe, graph: Graph, seed: int) -> nn.Module:
    """The library's model, or where a setting of the study asks for them, one with other layers."""
    plain = recipe.of_library
    return AggregatingGCNLPA(recipe, graph, seed) if plain is None else GCNLPA(plain, graph, seed)


_ADAPTIVE = StudyRecipe.of(METHODS["lpa-leave-one-out"].settings()).replace(edges="free", loss="literal", lpa_iterations=5)
_BY_FEATURES = tuple(
    name for name in ADAPTIVE if name not in ("loss", "lpa_iterations", "lpa_ratio", "class_weights")
)  # no label is in their loss
_OWN = (
    Method(
        "gcn-lpa",
        gcn_lpa,  # type: ignore[arg-type]  # `learn_once` gives it a StudyRecipe
        lambda ours: StudyRecipe.of(ours).replace(method="gcn-lpa"),
        METHODS["gcn-lpa"].note,
        fields=(*METHODS["gcn-lpa"].fields, "activation", "output_activation", "init", "aggregation"),
    ),
    Method(
        "graphsage-sampled",
        SampledGraphSAGE,  # type: ignore[arg-type]
        StudyRecipe.of(METHODS["graphsage"].settings()).replace(method="graphsage-sampled", batch_size=512, samples="25 10"),
        "GraphSAGE in batches of 512, the mean of a sample of 25 and 10 neighbours (their code); predicts from all neighbours",
        fields=("features", "structure", "self_loops", "hidden", "dropout", "batch_size", "samples", *TRAINING),
        features="given_edges",
    ),
    Method(
        "lpa-learned",
        AdaptiveLPA,
        _ADAPTIVE.replace(method="lpa-learned"),
        "LPA with a free weight per edge, learned by Eq. (15) as it is printed",
        fields=ADAPTIVE,
        features="none",
        reads_labels=True,
    ),
    Method(
        "lpa-gaussian",
        AdaptiveLPA,
        _ADAPTIVE.replace(method="lpa-gaussian", edges="gaussian"),
        "LPA with a Gaussian kernel of the features, its σ learned by Eq. (15)",
        fields=ADAPTIVE,
        features="none",
        reads_labels=True,
    ),
    Method(
        "lpa-reconstruction",
        NeighbourhoodLPA,
        _ADAPTIVE.replace(method="lpa-reconstruction", self_loops=False),
        "LPA with the positive weights that best rebuild each node's features from its neighbours'",
        fields=_BY_FEATURES,
        features="none",
        reads_labels=True,
    ),
    Method(
        "lpa-sparse",
        SparseNeighbourhoodLPA,
        _ADAPTIVE.replace(method="lpa-sparse", self_loops=False, edge_sparsity=0.1),
        "the same with weights that need not sum to 1 and an L1 penalty on them",
        fields=(*_BY_FEATURES, "edge_sparsity"),
        features="none",
        reads_labels=True,
    ),
)


def study_methods() -> dict[str, Method]:
    """Every method by name; those of the study come after the library's, and its `gcn-lpa` in place of the library's."""
    return {**METHODS, **{method.name: method for method in _OWN}}


def settings_of(method: str, gcn_lpa: Recipe) -> StudyRecipe:
    """The settings of a method where GCN-LPA has those of `gcn_lpa`."""
    return StudyRecipe.of(study_methods()[method].settings(gcn_lpa))
