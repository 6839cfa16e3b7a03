"""Numbers of the literature with the data and the splits they are for; ± is their authors' standard deviation."""

from typing import NamedTuple


class Row(NamedTuple):
    graph: str
    kind: str  # of split
    fractions: tuple[float, float, float]
    seeds: int
    metric: str
    published: str
    source: str


SIXTY, TENTH = (0.6, 0.2, 0.2), (0.1, 0.1, 0.8)
PUBLISHED = (
    Row("minesweeper", "official", SIXTY, 10, "AUC", "97.86 ± 0.24", "tuned GCN, Luo et al. (2024)"),
    Row("squirrel-filtered", "official", SIXTY, 10, "accuracy", "45.01 ± 1.63", "tuned GCN, Luo et al. (2024)"),
    Row("chameleon-filtered", "official", SIXTY, 10, "accuracy", "46.29 ± 3.40", "tuned GCN, Luo et al. (2024)"),
    Row("actor", "official", SIXTY, 10, "accuracy", "38.0", "the highest we found reported"),
    Row("coauthor-cs", "uniform", SIXTY, 3, "accuracy", "96.38 ± 0.11", "tuned GraphSAGE, Luo et al. (2024)"),
    Row("coauthor-phy", "uniform", SIXTY, 3, "accuracy", "97.46 ± 0.10", "tuned GCN, Luo et al. (2024)"),
    Row("pubmed", "stratified", TENTH, 5, "accuracy", "89.31", "LightGBM with neighbours' means, Bazhenov et al. (2025)"),
    Row("cora", "official", SIXTY, 5, "accuracy", "85.4", "GRAND, Feng et al. (2020)"),
    Row("citeseer", "official", SIXTY, 5, "accuracy", "75.4", "GRAND, Feng et al. (2020)"),
    Row("pubmed", "official", SIXTY, 5, "accuracy", "82.7", "GRAND, Feng et al. (2020)"),
)
