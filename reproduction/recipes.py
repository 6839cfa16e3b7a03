"""A recipe with the settings that only the study has, and Appendix F as data.

The hash of a `StudyRecipe` is that of the lines in `results/runs.jsonl`: what the library's recipe no longer has is a field here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gcn_lpa.recipes import Recipe
from gcn_lpa.recipes import _field as setting

ACTIVATIONS = ("relu", "sigmoid", "identity")
AGGREGATIONS = ("mean", "sum", "max", "concat")

SPACE: dict[str, tuple[float, ...]] = {  # Appendix F
    "hidden": (8, 16, 32),
    "gcn_layers": (1, 2, 3, 4, 5, 6),
    "lpa_iterations": (1, 2, 3, 4, 5, 6, 7, 8, 9),
    "l2": (1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3),
    "lpa_weight": (0, 1, 2, 5, 10, 15, 20),
    "dropout": (0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "lr": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}


@dataclass(frozen=True, kw_only=True)
class StudyRecipe(Recipe):
    """A `Recipe` of the library and what only methods of the study read."""

    activation: str = setting("relu", "gcn-lpa: σ between layers; sigmoid in Appendix E", ACTIVATIONS)
    output_activation: str = setting("identity", "gcn-lpa: σ after the last layer", ACTIVATIONS)
    init: str = setting("glorot", "gcn-lpa: how W starts; uniform is in [-1, 1], Appendix E", ("glorot", "uniform"))
    edge_sparsity: float = setting(0.0, "lpa-sparse: weight of Σ_j a*_ij, the L1 norm of A* per node")
    aggregation: str = setting(
        "mean",
        "gcn-lpa: the mean of the neighbours, their sum, their maximum in each column, or their mean beside the node's own",
        AGGREGATIONS,
        added=True,
    )
    batch_size: int = setting(0, "graphsage-sampled: training nodes of a gradient step; 0: all of them", added=True)
    samples: str = setting("", "graphsage-sampled: neighbours drawn for each layer, such as '25 10'", added=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("edge_sparsity", "batch_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"recipe: {name} = {getattr(self, name)}; it is not negative")
        if self.aggregation != "mean" and self.propagation != "layers":
            raise ValueError(f"recipe: aggregation = {self.aggregation!r} is of layers; use propagation 'layers'")
        if self.aggregation in ("sum", "max") and self.edge_dropout:
            raise ValueError(
                f"recipe: edge_dropout = {self.edge_dropout} brings rows back to 1, and those of aggregation "
                f"{self.aggregation!r} have no sum to keep; use edge_dropout 0"
            )

    @classmethod
    def of(cls, recipe: Recipe) -> StudyRecipe:
        """The same settings, with those of the study as they are by default."""
        return cls(**recipe.to_dict())

    @property
    def of_library(self) -> Recipe | None:
        """The library's recipe of the same settings; None where a setting of the study alone is not its default."""
        ours = {spec.name for spec in dataclasses.fields(Recipe)}
        further = [spec for spec in dataclasses.fields(self) if spec.name not in ours]
        if any(getattr(self, spec.name) != spec.default for spec in further):
            return None
        return Recipe(**{name: getattr(self, name) for name in ours})
