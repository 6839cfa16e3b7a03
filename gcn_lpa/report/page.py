"""report.html: one file with everything in it, that asks the network for nothing.

Names, labels and notes come from the user's files and stay text: Jinja2 escapes what is written into HTML, `tojson` what is
written into JSON (a </script> in a name cannot end it), and the script sets text, never HTML. A content security policy allows
the page's own script and style, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

import gcn_lpa
from gcn_lpa.calibration import FEWEST
from gcn_lpa.data.describe import describe
from gcn_lpa.data.edge_columns import EdgeWeights
from gcn_lpa.data.files import check_output, write_output
from gcn_lpa.engine.devices import environment
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.insight.advise import advise
from gcn_lpa.insight.advise import suggestions as suggested
from gcn_lpa.insight.audit import cross_fit, kept_fit, rank_edges, rank_labels
from gcn_lpa.insight.edge_effects import edge_effects, effect_sentences
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.insight.findings import EdgeAudit, EdgeFinding, LabelAudit, LabelFinding
from gcn_lpa.insight.importance import importance
from gcn_lpa.insight.what_if import Asked, answer
from gcn_lpa.metrics import Scores
from gcn_lpa.predict import Prediction
from gcn_lpa.report.cuts import rare_class
from gcn_lpa.report.graph_view import graph_view
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import TrainedRun
from gcn_lpa.runs.predictions import CalibrationReport, calibrate_run
from gcn_lpa.runs.storage import encode_tensors
from gcn_lpa.train import Epoch
from gcn_lpa.trained import HeldOut, Trained

ROWS = 15  # of each list of nodes or edges
SUSPICIOUS = 4.0  # times the rate of errors: what is listed as looking wrong
SURE_ENOUGH = 0.9  # probability from which a node is not among the least sure
EXPLAINED = 250  # nodes whose votes are in the file
VOTERS = 6  # of each of them
MOST_CELLS = 30  # of each of them
REPEATS = 5  # splits of the comparison with rivals: every label is scored once
SHUFFLES = 2  # of each column
MOST_MARKS = 500  # held-out numbers that are drawn

Say = Callable[[str], None]


class OpenRun:
    """A run and what all parts of its page share; each is computed when it is first needed."""

    def __init__(self, run: TrainedRun) -> None:
        self.run, self.graph, self.trained = run, run.graph, run.trained

    @cached_property
    def explainer(self) -> Explainer:
        return Explainer.of(self.trained, self.graph)

    @property
    def prediction(self) -> Prediction:
        """The models run once for all parts of the page."""
        return self.explainer.prediction

    @cached_property
    def kind(self) -> np.ndarray:
        """What was done with the label of each node: a position in KINDS, [n]."""
        kind = torch.where(self.graph.labeled.cpu(), 2, 0)
        kind[self.trained.given(self.graph)] = 1
        if self.run.reserved is not None:
            kind[self.run.reserved] = 3
        return kind.numpy()

    @property
    def sure(self) -> torch.Tensor:
        """How sure each prediction is, [n]."""
        return self.trained.target.sureness(self.prediction.probabilities)

    @cached_property
    def drawn_as(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """What each node is drawn as, [n], and its name."""
        return self.trained.target.groups(self.prediction.probabilities)

    @cached_property
    def by_confidence(self) -> list[int]:
        """All nodes, the least sure first."""
        sure = self.sure
        order: list[int] = np.argsort(sure.numpy().round(12), kind="stable").tolist()
        return order

    @property
    def least_sure(self) -> list[int]:
        """The first of them whose label was not given."""
        used = self.run.used.numpy()
        rows = [at for at in self.by_confidence if not used[at]][:ROWS]
        return [at for at in rows if self.sure[at] < SURE_ENOUGH]

    def likeliest(self, name: str | None) -> list[tuple[str, list[tuple[Hashable, float]]]]:
        """Nodes without a given label, the likeliest first: of each class, or of the one that is named; or the highest numbers."""
        open_nodes, names = (~self.run.used).nonzero().squeeze(1), self.trained.class_names or ("highest numbers",)
        p = self.prediction.probabilities[open_nodes]
        chosen = [k for k, one in enumerate(names) if name in (None, one)][:ROWS]
        found = []
        for k in chosen:
            is_here = torch.ones(len(p), dtype=torch.bool) if name or not self.trained.class_names else p.argmax(dim=1) == k
            order = [at for at in p[:, k].argsort(descending=True, stable=True).tolist() if is_here[at]]
            rows = order[: ROWS if len(chosen) == 1 else max(3, ROWS // len(chosen))]
            values = p[rows, k] if self.trained.class_names else self.trained.target.words(p[rows, 0])
            ids = [self.graph.node_names[at] for at in open_nodes[rows].tolist()]
            found.append((names[k], list(zip(ids, map(float, values), strict=True))))
        return [(one, rows) for one, rows in found if rows]

    def explain(self, node: Hashable) -> dict[str, Any]:
        """Why a node has its label, with calibrated probabilities, as the script of the page reads it."""
        at = self.graph.index_of(node)
        why, names = self.explainer.explain(self.graph.node_names[at], top=VOTERS), self.trained.class_names
        given = self.prediction.probabilities[at].tolist() if names else []
        classes = sorted(zip(names, given, (why.scores[name] for name in names), strict=True), key=lambda one: -one[1])
        return {
            "method": why.method,
            "hops": why.hops,
            "lpa": why.lpa_label,
            "agree": why.agree,
            "classes": [[name, _short(p), _short(score)] for name, p, score in classes[:6]],
            "votes": [[str(vote.node), vote.label, _short(vote.share), list(map(str, vote.path.nodes))] for vote in why.votes],
            "others": [why.others.num_voters, _short(sum(why.others.scores.values()))],
            "features": [[str(one.node), _short(one.share)] for one in why.features],
            "columns": self.columns_of(at),
            "notes": list(why.notes),
            "number": None if names else [why.label, why.lpa_label],
        }

    def columns_of(self, at: int) -> list[tuple[str, str]]:
        """The columns of a node and its cells, as they were read; words are left out."""
        if self.graph.columns is None:
            return []
        x = self.graph.x
        row = x.to_scipy()[[at]].toarray()[0] if isinstance(x, SparseMatrix) else x[at].numpy()
        return self.graph.columns.cells_of(row)[:MOST_CELLS]

    def what_if(self, asked: Asked) -> dict[str, Any]:
        """Which predictions would change, as the script of the page reads it."""
        found = answer(self.explainer, asked).to_dict()
        for shift in (found["model"], found["lpa"]):
            shift["num_changes"], shift["changes"] = len(shift["changes"]), shift["changes"][:50]
        return found


class Section(NamedTuple):
    """A section of the page, or a sentence on why it is missing."""

    value: Any
    why_not: str = ""


def section(make: Callable[[], Any]) -> Section:
    try:
        return Section(make())
    except ValueError as error:  # too few labels, one class, no edge: the library says which
        return Section(None, str(error))


def contents(subject: OpenRun, *, trains: bool = True, device: str = "auto", say: Say = lambda text: None) -> dict[str, Any]:
    """What the page about a run says, for its template.

    Args:
        trains: also compare with rivals, shuffle columns, and train models that find suspicious labels where training kept none.
        say: called with what is being done.
    """
    run, graph, trained = subject.run, subject.graph, subject.trained
    names, known = trained.class_names, trained.known.on(graph)[0]
    rivals = matters = Section(None, "left out, as it takes longer than training: gcn-lpa report RUN adds it")
    fitted = section(lambda: kept_fit(subject.prediction, graph))
    if trains:
        options: dict[str, Any] = {"seed": run.plan.seed, "device": device}
        say("comparing with rivals")
        rivals = section(lambda: advise(graph, repeats=REPEATS, **options))
        say("shuffling columns")
        matters = section(lambda: importance(trained, graph, repeats=SHUFFLES, seed=run.plan.seed))
        if fitted.value is None:
            say("looking for suspicious labels and edges")
            fitted = section(lambda: cross_fit(graph, trained.given(graph), trained.recipe, **options))
    labels = edges = fitted
    if fitted.value is not None:
        labels = section(lambda: rank_labels(graph, fitted.value))
        edges = section(lambda: rank_edges(graph, fitted.value))
    say("choosing nodes to label next")
    suggestions = section(lambda: suggested(subject.explainer, n=ROWS, candidates=~run.split.test & ~run.used))
    say("explaining")
    listed = [*subject.least_sure, *(one.node for one in suggestions.value or ())]
    doubted = [one for one in labels.value.findings[:ROWS] if is_suspicious(one, labels.value)] if labels.value else []
    strange = [one for one in edges.value.findings[:ROWS] if is_suspicious(one, edges.value)] if edges.value else []
    listed += [graph.index_of(one.node) for one in doubted]
    for pair in strange:
        listed += [graph.index_of(pair.source), graph.index_of(pair.target)]
    explained = list(dict.fromkeys([*listed, *subject.by_confidence]))[:EXPLAINED]
    calibration = section(lambda: calibrate_run(run, prediction=subject.prediction))
    numbers = None if names else calibration.value
    if calibration.value is not None and calibration.value.num_nodes < FEWEST:
        few = f"{calibration.value.num_nodes} nodes were held out; a diagram of confidence takes {FEWEST}"
        calibration = Section(None, few)
    rare = section(lambda: rare_class(subject, chart)).value if names else None
    likeliest = subject.likeliest(None if rare is None else rare["name"])
    learns = trained.used_edge_weights is not None or (trained.method.has_edge_weights and trained.recipe.edges != "fixed")
    predicted = subject.prediction.probabilities.argmax(dim=1)[~run.used]
    each = (known[known >= 0], predicted) if names else ()
    counts = (torch.bincount(y, minlength=len(names)).tolist() for y in each)
    hashes = {"graph (sha256 of its content)": run.plan.content, "split": run.split.hash}
    if run.folder is not None:  # the page may be made before the file is there
        weights = encode_tensors(trained.model.state_dict())
        hashes["model.safetensors (sha256)"] = hashlib.sha256(weights).hexdigest()
    return {
        "name": graph.name,
        "method": trained.recipe.method,
        "created": f"gcn-lpa {gcn_lpa.__version__}",
        "info": describe(graph),
        "results": run.results,
        "accuracy_range": wilson(found.accuracy, found.num_nodes) if isinstance(found := run.results.scores, Scores) else None,
        "numbers": numbers,
        "number_chart": None if numbers is None else number_chart(trained),
        "class_rows": list(zip(names, *counts, strict=True)),
        "calibration": calibration,
        "rare": rare,
        "likeliest": likeliest,
        "edge_width": "learned weight" if learns else "given weight",
        "reliability": reliability_chart(calibration.value) if names and calibration.value is not None else None,
        "curves": curves(run.run.history, run.run.best_epoch, trained.target.rate),
        "importance": matters,
        "edge_columns": edge_columns(trained.edge_weights),
        "rivals": rivals,
        "labels": labels,
        "doubted": doubted,
        "edges": edges,
        "strange": strange,
        "suggestions": suggestions,
        "least_sure": subject.prediction.table().iloc[subject.least_sure].to_dict("records"),
        "command": command_of(run),
        "hashes": hashes,
        "environment": environment(),
        "explanations": {str(graph.node_names[at]): subject.explain(graph.node_names[at]) for at in explained},
        "num_unlabeled": int((~run.used).sum()),
    }


def is_suspicious(finding: LabelFinding | EdgeFinding, audit: LabelAudit | EdgeAudit) -> bool:
    """Whether an error is much likelier than anywhere."""
    return finding.suspicion >= SUSPICIOUS * audit.rate


def number_chart(trained: Trained) -> dict[str, Any]:
    """Held-out numbers beside their predictions."""
    held_out, scale = cast(HeldOut, trained.held_out), cast(Any, trained.target)
    kept = np.unique(np.linspace(0, len(held_out.y) - 1, MOST_MARKS).round().astype(int))
    drawn, axis = scale.drawn(torch.stack([held_out.probability[kept, 0], held_out.y[kept]], dim=1))
    low, high = float(drawn.min()), float(drawn.max())
    marks = [(x, y, 2.5, f"predicted {x:.4g}, given {y:.4g}") for x, y in drawn.tolist()]
    names = "Held-out numbers", f"predicted{axis}", f"given{axis}"
    return chart(names, (low, low), (high, high), [("as given", "rule", [(low, low), (high, high)])], marks=marks)


def edge_columns(weights: EdgeWeights | None) -> dict[str, Any] | None:
    """What the columns of edges say about their weight: sentences, and the rows of each column; None where nothing was learned."""
    if weights is None:
        return None
    rows = edge_effects(weights) if weights.is_used else []
    most = max((row.weight for row in rows), default=1.0)
    return {"sentences": effect_sentences(weights), "rows": rows, "most": most}


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
    page = page_of(OpenRun(run), trains=trains, device=device, say=say)
    storage.save(run.folder, {storage.PAGE: page}, is_addition=True)
    return run.folder / storage.PAGE


def page_of(
    subject: OpenRun, *, trains: bool = True, device: str = "auto", live: bool = False, say: Say = lambda text: None
) -> bytes:
    """The page about a run, as HTML.

    Args:
        trains, device, say: as in `contents`.
        live: whether a server answers what the page asks.
    """
    from jinja2 import DictLoader, Environment

    page = contents(subject, trains=trains, device=device, say=say)
    say("drawing the graph")
    listed = [subject.graph.index_of(node) for node in page["explanations"]]
    view = {**graph_view(subject, listed), "explanations": page["explanations"], "live": live}
    view["cuts"] = page["rare"] and page["rare"]["rows"]
    places = (files("gcn_lpa.report") / "templates" / name for name in ("report.html.j2", "report.js", "report.css"))
    texts = {place.name: place.read_text(encoding="utf-8") for place in places}
    script, style = texts["report.js"], texts["report.css"]
    environment = Environment(loader=DictLoader(texts), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["percent"] = lambda rate: "–" if rate is None else f"{100 * rate:.1f} %"
    environment.filters["number"] = lambda value: f"{value:,}"
    own = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    server = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{own[0]}'; style-src 'sha256-{own[1]}'; connect-src {server}; "
        "base-uri 'none'; form-action 'none'"
    )
    given: dict[str, Any] = {"page": page, "view": view, "live": live, "rows": ROWS, "script": script, "style": style}
    text = environment.get_template("report.html.j2").render(**given, policy=policy)
    return text.encode("utf-8", "replace")  # a lone surrogate in a name has no UTF-8


WIDTH, HEIGHT = 440, 220  # of a chart
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34
Points = Sequence[tuple[float, float]]


def chart(
    names: tuple[str, str, str],
    low: tuple[float, float],
    high: tuple[float, float],
    lines: Iterable[tuple[str, str, Points]],
    *,
    marks: Iterable[tuple[float, float, float, str]] = (),
    kept: float | None = None,
) -> dict[str, Any]:
    """A chart as the template draws it.

    Args:
        names: of the chart and of its axes.
        low, high: the corners, in the units of the axes.
        lines: name, class of CSS and points; what is above the upper corner is drawn at it.
        marks: x, y, radius and words.
        kept: x of a vertical line, the epoch that was kept.
    """

    size = high[0] - low[0], high[1] - low[1]

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - low[0]) / (size[0] or 1), (min(y, high[1]) - low[1]) / (size[1] or 1)
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(TOP + (1 - up) * (HEIGHT - TOP - BOTTOM), 1)

    ticks = [[low[axis] + size[axis] * k / 4 for k in range(5)] for axis in (0, 1)]
    texts = [[f"{value:.{0 if size[axis] >= 5 else 2}f}" for value in ticks[axis]] for axis in (0, 1)]
    places = [place(x, y) for x, y in zip(*ticks, strict=True)]
    return {
        "names": names,
        "ticks": [list(zip(at, words, strict=True)) for at, words in zip(zip(*places, strict=True), texts, strict=True)],
        "lines": [(name, css, " ".join("{},{}".format(*place(x, y)) for x, y in points)) for name, css, points in lines],
        "marks": [(*place(x, y), radius, words) for x, y, radius, words in marks],
        "kept": None if kept is None else place(kept, low[1])[0],
    }


def curves(history: Sequence[Epoch], best_epoch: int, score: str) -> list[dict[str, Any]]:
    """Charts of the losses and the validation score over the epochs; none where there are no two epochs."""
    if len(history) < 2:
        return []
    fields = {"loss": "training loss", "val_loss": "validation loss", "val_accuracy": f"validation {score}"}
    lines = []
    for field, name in fields.items():
        points = [(epoch.epoch, max(0.0, value)) for epoch in history if (value := getattr(epoch, field)) is not None]
        lines.append((name, "one" if field == "loss" else "two", points))
    charts = []
    for title, axis, drawn in (("Loss", "loss", lines[:2]), (f"Validation {score}", score, lines[2:])):
        if drawn := [line for line in drawn if len(line[2]) > 1]:
            heights = sorted(y for _, _, points in drawn for _, y in points)
            high = 1.0 if axis == score else heights[int(0.99 * (len(heights) - 1))] or 1.0
            charts.append(chart((title, "epoch", axis), (1, 0), (len(history), high), drawn, kept=best_epoch))
    return charts


def reliability_chart(found: CalibrationReport) -> dict[str, Any]:
    """Accuracy over confidence after calibration; the size of a mark says how many nodes are in its bin."""
    bins = zip(found.after.confidence, found.after.accuracy, found.after.count, strict=True)
    marks = [
        (
            confidence,
            accuracy,
            round(3 + 9 * (count / max(found.after.count)) ** 0.5, 1),
            f"confidence {confidence:.2f}: {100 * accuracy:.0f} % of {count:,} nodes right",
        )
        for confidence, accuracy, count in bins
        if count
    ]
    perfect = ("perfectly calibrated", "rule", [(0, 0), (1, 1)])
    return chart(("Reliability", "confidence", "accuracy"), (0, 0), (1, 1), [perfect], marks=marks)
