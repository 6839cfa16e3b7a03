"""report.html: one file with everything in it, that asks the network for nothing.

Names, labels and notes come from the user's files and stay text: Jinja2 escapes what is written into HTML, `tojson` what is
written into JSON (a </script> in a name cannot end it), and the script sets text, never HTML. A content security policy allows
the page's own script and style, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import shlex
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

import gcn_lpa
from gcn_lpa.calibration import FEWEST
from gcn_lpa.data.describe import GraphInfo, describe
from gcn_lpa.data.files import check_output, write_output
from gcn_lpa.engine.devices import environment
from gcn_lpa.insight.advise import Advice, advise
from gcn_lpa.insight.audit import EdgeAudit, LabelAudit, cross_fit, rank_edges, rank_labels
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.insight.suggest import Suggestion, suggest
from gcn_lpa.insight.what_if import Asked, answer
from gcn_lpa.predict import Prediction
from gcn_lpa.report.graph_view import graph_view
from gcn_lpa.report.pictures import curve, reliability_chart
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import TrainedRun
from gcn_lpa.runs.predictions import CalibrationReport, calibrate_run
from gcn_lpa.runs.storage import encode_tensors

ROWS = 15  # of each list of nodes or edges
EXPLAINED = 250  # nodes whose votes are in the file
VOTERS = 6  # of each of them
REPEATS = 5  # splits of the comparison with rivals: every label is scored once

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Found(Generic[T]):
    """A part of the page, or a sentence on why it is missing."""

    value: T | None
    why_not: str = ""

    @classmethod
    def of(cls, make: Callable[[], T]) -> Found[T]:
        try:
            return cls(make())
        except ValueError as error:  # too few labels, one class, no edge: the library says which
            return cls(None, str(error))


@dataclass(frozen=True)
class NodeRow:
    """A node in a list."""

    id: Hashable
    label: str
    probability: float
    runner_up: str
    status: str


class OpenRun:
    """A run and what all parts of its page share; each is computed when it is first needed."""

    def __init__(self, run: TrainedRun) -> None:
        self.run, self.graph, self.trained = run, run.graph, run.trained

    @property
    def prediction(self) -> Prediction:
        """The models run once for all parts of the page."""
        return self.explainer.prediction

    @cached_property
    def probabilities(self) -> Tensor:
        """Calibrated, as `predict_proba` gives them, [n, c]; the explainer has what the model itself says."""
        return self.explainer.prediction.probabilities

    @cached_property
    def explainer(self) -> Explainer:
        return Explainer.of(self.trained, self.graph)

    @cached_property
    def kind(self) -> np.ndarray:
        """What was done with the label of each node: a position in KINDS, [n]."""
        labeled, run = self.graph.labeled.cpu(), self.run
        kind = torch.where(labeled, 2, 0)
        kind[self.trained.given(self.graph)] = 1
        if run.reserved is not None:
            kind[run.reserved] = 3
        return kind.numpy()

    @cached_property
    def confidence(self) -> Tensor:
        return self.probabilities.amax(dim=1)

    def row(self, at: int) -> NodeRow:
        names, order = self.trained.class_names, self.probabilities[at].argsort(descending=True, stable=True).tolist()
        second = names[order[1]] if len(names) > 1 else ""
        status = self.explainer.status[at]
        return NodeRow(self.graph.node_names[at], names[order[0]], float(self.confidence[at]), second, status)

    @cached_property
    def least_sure(self) -> list[int]:
        open_nodes = np.flatnonzero(~self.run.used.numpy())
        order = np.argsort(self.confidence.numpy()[open_nodes].round(12), kind="stable")
        found: list[int] = open_nodes[order[:ROWS]].tolist()
        return found

    def explain(self, node: Hashable) -> dict[str, Any]:
        """Why a node has its label, with calibrated probabilities, as the script of the page reads it."""
        at = self.graph.index_of(node)
        why, names = self.explainer.explain(self.graph.node_names[at], top=VOTERS), self.trained.class_names
        said = self.probabilities[at].tolist()
        classes = sorted(zip(names, said, (why.scores[name] for name in names), strict=True), key=lambda one: -one[1])
        return {
            "id": str(why.node),
            "method": why.method,
            "hops": why.hops,
            "distance": why.distance,
            "lpa": why.lpa_label,
            "agree": why.agree,
            "unmet": _short(why.unmet),
            "classes": [[name, _short(p), _short(score)] for name, p, score in classes[:6]],
            "votes": [
                [str(vote.node), vote.label, _short(vote.share), list(map(str, vote.path.nodes))] for vote in why.votes
            ],
            "others": [why.others.num_voters, _short(sum(why.others.scores.values()))],
            "features": [[str(one.node), _short(one.share)] for one in why.features],
            "notes": list(why.notes),
        }

    def what_if(self, asked: Asked) -> dict[str, Any]:
        """Which predictions would change, as the script of the page reads it."""
        found = answer(self.explainer, asked).to_dict()
        for shift in (found["model"], found["lpa"]):
            shift["num_changes"], shift["changes"] = len(shift["changes"]), shift["changes"][:50]
        return found


@dataclass(frozen=True)
class Contents:
    """Everything the page says."""

    name: str
    method: str
    created: str
    info: GraphInfo
    results: Any  # of the run
    accuracy_range: tuple[float, float] | None  # 95 %
    class_rows: list[tuple[str, int, int]]  # name, labels given, nodes so labelled
    calibration: Found[CalibrationReport]
    history: list[dict[str, float | None]]
    best_epoch: int
    rivals: Found[Advice]
    labels: Found[LabelAudit]
    edges: Found[EdgeAudit]
    suggestions: Found[list[Suggestion]]
    least_sure: list[NodeRow]
    command: str
    hashes: dict[str, str]
    environment: dict[str, Any]
    explanations: dict[str, dict[str, Any]]
    num_unlabeled: int


def contents(subject: OpenRun, *, trains: bool = True, device: str = "auto", say: Say = lambda text: None) -> Contents:
    """What the page about a run says.

    Args:
        trains: also train models, to compare with rivals and to find suspicious labels and edges.
        say: called with what is being done.
    """
    run, graph, trained = subject.run, subject.graph, subject.trained
    untrained: Found[Any] = Found(None, "left out: it needs models to be trained; make the page without --quick")
    rivals, labels, edges = untrained, untrained, untrained
    if trains:
        say("comparing with rivals")
        rivals = Found.of(lambda: advise(graph, repeats=REPEATS, seed=run.plan.seed, device=device))
        say("looking for suspicious labels and edges")
        given, recipe = trained.given(graph), trained.recipe
        fitted = Found.of(lambda: cross_fit(graph, given, recipe, repeats=1, seed=run.plan.seed, device=device))
        labels = edges = Found(None, fitted.why_not)
        if (models := fitted.value) is not None:
            labels = Found.of(lambda: rank_labels(graph, models))
            edges = Found.of(lambda: rank_edges(graph, models))
    say("choosing nodes to label next")
    suggestions = Found.of(lambda: suggest(trained, graph, n=ROWS, candidates=~run.split.test & ~run.used))
    say("explaining")
    listed = [*subject.least_sure, *(one.node for one in suggestions.value or ())]
    listed += [graph.index_of(one.node) for one in (labels.value.findings[:ROWS] if labels.value else ())]
    for pair in edges.value.findings[:ROWS] if edges.value else ():
        listed += [graph.index_of(pair.source), graph.index_of(pair.target)]
    calibration = Found.of(lambda: calibrate_run(run, prediction=subject.explainer.prediction))
    if calibration.value is not None and calibration.value.num_nodes < FEWEST:
        few = f"{calibration.value.num_nodes} nodes were held out; a diagram of confidence takes {FEWEST}"
        calibration = Found(None, few)
    return Contents(
        name=graph.name,
        method=trained.recipe.method,
        created=f"gcn-lpa {gcn_lpa.__version__}",
        info=describe(graph),
        results=run.results,
        accuracy_range=None if (found := run.results.scores) is None else wilson(found.accuracy, found.num_nodes),
        class_rows=_class_rows(subject),
        calibration=calibration,
        history=[dataclasses.asdict(epoch) for epoch in run.run.history],
        best_epoch=run.run.best_epoch,
        rivals=rivals,
        labels=labels,
        edges=edges,
        suggestions=suggestions,
        least_sure=[subject.row(at) for at in subject.least_sure],
        command=command_of(run),
        hashes=_hashes(run),
        environment=environment(),
        explanations=_explanations(subject, listed),
        num_unlabeled=int((~run.used).sum()),
    )


def _explanations(subject: OpenRun, listed: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Of the nodes in the lists, and of the least sure ones as far as there is room."""
    rest = np.argsort(subject.confidence.numpy().round(12), kind="stable").tolist()
    chosen = list(dict.fromkeys([*listed, *rest]))[:EXPLAINED]
    found = [subject.explain(subject.graph.node_names[at]) for at in chosen]
    return {one["id"]: one for one in found}


def _class_rows(subject: OpenRun) -> list[tuple[str, int, int]]:
    names = subject.trained.class_names
    known = subject.trained.known.on(subject.graph)[0]
    predicted = subject.probabilities.argmax(dim=1)[~subject.run.used]
    counts = (torch.bincount(y, minlength=len(names)).tolist() for y in (known[known >= 0], predicted))
    return list(zip(names, *counts, strict=True))


def wilson(rate: float, number: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate that was counted on so many nodes."""
    middle = (rate + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(rate * (1 - rate) / number + z * z / (4 * number * number))
    return max(0.0, middle - half), min(1.0, middle + half)


def command_of(run: TrainedRun) -> str:
    """The command that trains the run again."""
    plan, source = run.plan, run.plan.source
    words = ["gcn-lpa", "train", source.name, "--seed", str(plan.seed)]
    words += [] if source.root is None else ["--root", source.root]
    words += [] if plan.split is None else ["--split", plan.split]
    words += ["--reserve", str(plan.reserve)] if plan.reserve else []
    words += [] if run.folder is None else ["--recipe", str(run.folder / "recipe.json")]
    for key, value in source.options.items():
        words += ["-o", f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"]
    return shlex.join(words)


def _hashes(run: TrainedRun) -> dict[str, str]:
    found = {"graph (sha256 of its content)": run.plan.content, "split": run.split.hash}
    if run.folder is not None:  # the page may be made before the file is there
        weights = encode_tensors(run.trained.model.state_dict())
        found["model.safetensors (sha256)"] = hashlib.sha256(weights).hexdigest()
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def write_report(
    run: TrainedRun,
    out: str | Path | None = None,
    *,
    trains: bool = True,
    device: str = "auto",
    say: Say = lambda text: None,
) -> Path:
    """Write the page about a run and return where it is.

    Args:
        out: the file, replaced if it is there; None: report.html in the run folder, replaced if a run wrote it.
        trains, device, say: as in `contents`.
    """
    if out is not None:
        check_output(out, overwrite=True)
        write_output(out, page_of(OpenRun(run), trains=trains, device=device, say=say))
        return Path(out)
    if run.folder is None:
        raise ValueError("the run is kept in no folder; out says where the page goes")
    storage.check_free(run.folder, [storage.PAGE])
    storage.add(run.folder, {storage.PAGE: page_of(OpenRun(run), trains=trains, device=device, say=say)})
    return run.folder / storage.PAGE


def page_of(
    subject: OpenRun, *, trains: bool = True, device: str = "auto", live: bool = False, say: Say = lambda text: None
) -> bytes:
    """The page about a run, as HTML; the arguments are those of `contents` and `render`."""
    return render(subject, contents(subject, trains=trains, device=device, say=say), live=live, say=say)


def render(subject: OpenRun, found: Contents, *, live: bool = False, say: Say = lambda text: None) -> bytes:
    """The page as HTML; `live` where a server answers what it asks."""
    from jinja2 import Environment, FunctionLoader

    say("drawing the graph")
    listed = [subject.graph.index_of(node) for node in found.explanations]
    view = {**graph_view(subject, listed), "explanations": found.explanations, "live": live}
    environment = Environment(
        loader=FunctionLoader(_template), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"percent": _percent, "number": lambda value: f"{value:,}"}
    script, style = _template("report.js"), _template("report.css")
    text = environment.get_template("report.html.j2").render(
        page=found,
        view=view,
        live=live,
        rows=ROWS,
        curves=curve(found.history, found.best_epoch),
        reliability=None if found.calibration.value is None else reliability_chart(found.calibration.value),
        script=script,
        style=style,
        policy=policy(script, style, live),
    )
    return text.encode("utf-8", "replace")  # a lone surrogate in a name has no UTF-8


def policy(script: str, style: str, live: bool) -> str:
    """The content security policy: our script, our style, and where a server answers, that server."""
    own = (f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (script, style))
    script_hash, style_hash = own
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {script_hash}; style-src {style_hash}; connect-src {asks}; base-uri 'none'; "
        "form-action 'none'"
    )


def _template(name: str) -> str:
    return (files("gcn_lpa.report") / "templates" / name).read_text(encoding="utf-8")


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
