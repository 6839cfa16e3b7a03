"""What an audit finds: labels and edges that look wrong, with the evidence, the most suspicious first."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from gcn_lpa.data.describe import html_table
from gcn_lpa.recipes import Recipe

SHOWN = 20  # findings that a notebook shows; to_frame has all


@dataclass(frozen=True)
class LabelFinding:
    """One labelled node. `suspicion` is the chance that its label is wrong, if the stated rate of all labels is.

    Where labels are numbers, `model` and `neighbours` are how far the label is from what they say, in spreads of all labels.
    """

    node: Hashable
    label: str
    suggested: str  # the label that the evidence supports best; it may be the given one
    suspicion: float
    model: float  # probability of the given label, by models that were not trained on it
    neighbours: float | None  # share of the given label among the votes of other labels; None where no vote arrives
    evidence: str

    def __str__(self) -> str:
        other = f", rather {self.suggested}" if self.suggested != self.label else ""
        return f"{self.suspicion:.3f}  {self.node}: {self.label}{other}\n       {self.evidence}"


@dataclass(frozen=True)
class EdgeFinding:
    """One edge. `suspicion` is the chance that it is a random pair, if the stated rate of all edges is.

    `status` is "judged", or "abstains" where an end has no features and no label reaches it.
    """

    source: Hashable
    target: Hashable
    source_class: str
    target_class: str
    suspicion: float
    agreement: float  # Σ_c p_source[c] p_target[c]: the chance that both ends have the same class
    similarity: float | None  # cosine of the features; None where nodes have none
    common_neighbours: int
    weight: float | None  # learned, as a multiple of the given one; None where it has no meaning
    status: str
    evidence: str

    def __str__(self) -> str:
        abstains = "" if self.status == "judged" else "  (abstains)"
        return f"{self.suspicion:.3f}  {self.source} – {self.target}{abstains}\n       {self.evidence}"


Finding = TypeVar("Finding", LabelFinding, EdgeFinding)


@dataclass(frozen=True)
class Audit(Generic[Finding]):
    """The findings, the most suspicious first, and how they were made."""

    graph: str
    findings: tuple[Finding, ...]
    influence: dict[str, float]  # what a standard deviation of each kind of evidence adds to the log-odds of an error
    rate: float  # the share of labels or edges taken to be wrong
    epochs: int
    folds: int
    repeats: int
    seed: int
    recipe: Recipe

    subject: ClassVar[str]  # these and their errors in words
    error: ClassVar[str]
    html_columns: ClassVar[tuple[str, ...]]  # fields of a finding that a notebook shows

    @property
    def summary(self) -> str:
        judged = [row for row in self.findings if not isinstance(row, EdgeFinding) or row.status == "judged"]
        doubted, rest = sum(row.suspicion > 0.5 for row in judged), len(self.findings) - len(judged)
        unscored = f" {rest:,} are not scored: an end has no features, and no label reaches it." if rest else ""
        return (
            f"{doubted:,} of {len(judged):,} {self.subject} are more likely wrong than right, if {100 * self.rate:g} % of all are "
            f"{self.error}.{unscored} By {self.folds * self.repeats} models, none of which was shown the labels it judges."
        )

    def to_frame(self) -> Any:
        """A DataFrame with a row per finding."""
        import pandas

        rows: tuple[Any, ...] = self.findings
        columns = {spec.name: [getattr(row, spec.name) for row in rows] for spec in dataclasses.fields(rows[0])}
        ids = dict.fromkeys(("node", "source", "target"), object)  # as they are, whatever they look like
        return pandas.DataFrame({name: pandas.Series(column, dtype=ids.get(name)) for name, column in columns.items()})

    def _repr_html_(self) -> str:
        rows = [[getattr(row, name) for name in self.html_columns] for row in self.findings[:SHOWN]]
        header = ["rather" if name == "suggested" else name for name in self.html_columns]
        return html_table(self.summary, rows, header)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class LabelAudit(Audit[LabelFinding]):
    """The labelled nodes, the most suspicious first."""

    subject, error = "labels", "wrong at random"
    html_columns = ("suspicion", "node", "label", "suggested", "evidence")


class EdgeAudit(Audit[EdgeFinding]):
    """The edges, the most suspicious first and those it abstains from at the end."""

    subject, error = "edges", "random pairs"
    html_columns = ("suspicion", "source", "target", "status", "evidence")
