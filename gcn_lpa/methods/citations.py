"""Whose ideas a recipe uses: BibTeX entries of `references.bib`, by method, edge form and setting."""

from __future__ import annotations

import re
from importlib.resources import files

from gcn_lpa.methods.registry import members_of
from gcn_lpa.recipes import Recipe

OF_METHODS = {
    "mlp": ("pedregosa2011scikit",),
    "lr": ("pedregosa2011scikit",),
    "lpa": ("zhu2002learning",),
    "gcn": ("kipf2017semi",),
    "gcn-tuned": ("kipf2017semi", "luo2024classic"),
    "gat": ("velickovic2018graph",),
    "jk-net": ("xu2018representation",),
    "graphsage": ("hamilton2017inductive",),
    "gcn-lpa": ("wang2020unifying", "kipf2017semi"),
    "gcn-same": ("wang2020unifying", "kipf2017semi"),
    "appnp": ("gasteiger2019predict",),
    "correct-and-smooth": ("huang2021combining",),
    "label-input": ("shi2021masked", "kipf2017semi"),
    "grand": ("feng2020graph",),
    "neighbour-lr": ("pedregosa2011scikit",),
    "trees": ("pedregosa2011scikit",),
    "smoothed-lr": ("gasteiger2019predict", "pedregosa2011scikit"),
    "lpa-leave-one-out": ("wang2020unifying", "zhu2002learning"),
}
OF_EDGES = {
    **dict.fromkeys(("fixed", "free", "bilinear", "columns"), ()),
    **dict.fromkeys(("agnn", "cosine"), ("thekumparampil2018attention",)),
    "gat": ("velickovic2018graph",),
    "gaan": ("zhang2018gaan",),
    "geniepath": ("liu2019geniepath",),
    "gaussian": ("zhu2002learning",),
}


def entries() -> dict[str, str]:
    """Every entry of the file by its key."""
    text = (files("gcn_lpa.methods") / "references.bib").read_text(encoding="utf-8")
    return dict(re.findall(r"^(?=@\w+\{([^,]+),)(.*?^\})", text, flags=re.MULTILINE | re.DOTALL))


def cited(recipe: Recipe, *, calibrated: bool = False) -> list[str]:
    """The keys of what a recipe uses, the paper of this package first."""
    keys = ["wang2020unifying"]
    for member in members_of(recipe).values():
        keys += [*OF_METHODS[member.method], *OF_EDGES[member.edges]]
        keys += ["chien2021adaptive"] if member.propagation in ("hops", "relations") else []
        keys += ["frasca2020sign"] if member.propagation == "columns" else []
        keys += ["luo2024classic"] if member.method == "gcn-lpa" and (member.batch_norm or member.layer_norm) else []
    keys += ["zhu2002learning"] if recipe.votes or recipe.lpa_weight > 0 else []
    keys += ["chiang2019cluster"] if recipe.clusters else []
    keys += ["guo2017calibration"] if calibrated else []
    return list(dict.fromkeys(keys))


def bibtex(recipe: Recipe, *, calibrated: bool = False) -> str:
    """The entries of what a recipe uses."""
    found = entries()
    return "\n\n".join(found[key] for key in cited(recipe, calibrated=calibrated))
