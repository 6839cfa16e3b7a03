"""Label the nodes of a partly labelled graph: GCN-LPA, Wang & Leskovec (2020), in an ensemble with label votes.

    Graph → Recipe → learn → Trained → predict / explain

The public names are imported when they are first used, so that `import gcn_lpa` takes no time and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with _NAMES
    from gcn_lpa.data.datasets import as_graph as as_graph
    from gcn_lpa.data.datasets import load as load
    from gcn_lpa.data.describe import describe as describe
    from gcn_lpa.data.read_folder import read_csv as read_csv
    from gcn_lpa.data.splits import Split as Split
    from gcn_lpa.data.splits import split as split
    from gcn_lpa.epochs import DivergedError as DivergedError
    from gcn_lpa.epochs import Watch as Watch
    from gcn_lpa.estimator import GCNLPAClassifier as GCNLPAClassifier
    from gcn_lpa.graph import Graph as Graph
    from gcn_lpa.insight.advise import advise as advise
    from gcn_lpa.insight.audit import audit_edges as audit_edges
    from gcn_lpa.insight.audit import audit_labels as audit_labels
    from gcn_lpa.insight.compare import compare as compare
    from gcn_lpa.insight.explain import explain as explain
    from gcn_lpa.insight.explain import explain_all as explain_all
    from gcn_lpa.insight.suggest import suggest as suggest
    from gcn_lpa.insight.tune import tune as tune
    from gcn_lpa.insight.what_if import what_if as what_if
    from gcn_lpa.learning.choose_recipe import choose_recipe as choose_recipe
    from gcn_lpa.learning.learn import calibrate as calibrate
    from gcn_lpa.learning.learn import learn as learn
    from gcn_lpa.methods.registry import METHODS as METHODS
    from gcn_lpa.model import GCNLPA as GCNLPA
    from gcn_lpa.predict import edge_table as edge_table
    from gcn_lpa.predict import evaluate as evaluate
    from gcn_lpa.predict import predict_proba as predict_proba
    from gcn_lpa.predict import predictions as predictions
    from gcn_lpa.propagation import label_influence as label_influence
    from gcn_lpa.propagation import propagate_labels as propagate_labels
    from gcn_lpa.pyg import LPARegularizer as LPARegularizer
    from gcn_lpa.recipes import DEFAULT as DEFAULT
    from gcn_lpa.recipes import Recipe as Recipe
    from gcn_lpa.report.page import write_report as write_report
    from gcn_lpa.runs.folder import TrainedRun as TrainedRun
    from gcn_lpa.runs.folder import load_run as load_run
    from gcn_lpa.runs.plan import Plan as Plan
    from gcn_lpa.runs.plan import Source as Source
    from gcn_lpa.runs.plan import make_plan as make_plan
    from gcn_lpa.runs.predictions import predict_on as predict_on
    from gcn_lpa.runs.predictions import predict_run as predict_run
    from gcn_lpa.runs.train_run import resume_run as resume_run
    from gcn_lpa.runs.train_run import train_run as train_run
    from gcn_lpa.trained import Trained as Trained

    __version__: str

_NAMES = {  # of each module
    "data.datasets": ("as_graph", "load"),
    "data.describe": ("describe",),
    "data.read_folder": ("read_csv",),
    "data.splits": ("Split", "split"),
    "epochs": ("DivergedError", "Watch"),
    "estimator": ("GCNLPAClassifier",),
    "graph": ("Graph",),
    "insight.advise": ("advise",),
    "insight.audit": ("audit_edges", "audit_labels"),
    "insight.compare": ("compare",),
    "insight.explain": ("explain", "explain_all"),
    "insight.suggest": ("suggest",),
    "insight.tune": ("tune",),
    "insight.what_if": ("what_if",),
    "learning.choose_recipe": ("choose_recipe",),
    "learning.learn": ("calibrate", "learn"),
    "methods.registry": ("METHODS",),
    "model": ("GCNLPA",),
    "predict": ("edge_table", "evaluate", "predict_proba", "predictions"),
    "propagation": ("label_influence", "propagate_labels"),
    "pyg": ("LPARegularizer",),
    "recipes": ("DEFAULT", "Recipe"),
    "report.page": ("write_report",),
    "runs.folder": ("TrainedRun", "load_run"),
    "runs.plan": ("Plan", "Source", "make_plan"),
    "runs.train_run": ("resume_run", "train_run"),
    "runs.predictions": ("predict_on", "predict_run"),
    "trained": ("Trained",),
}
_MODULE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _MODULE:
        value = getattr(import_module(f"gcn_lpa.{_MODULE[name]}"), name)
    else:
        raise AttributeError(
            f"gcn_lpa has no {name!r}; it has {', '.join(__all__)} and its modules, which are imported by name"
        )
    globals()[name] = value  # found without this function from now on
    return value


def _version() -> str:
    """That of the installed package; "unknown" of a copy that nobody installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("gcn-lpa")
    except PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE, "__version__"})
