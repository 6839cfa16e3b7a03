"""Node classification with GCN-LPA, Wang & Leskovec, "Unifying Graph Convolutional Neural Networks and Label
Propagation" (2020).

The public names are imported when they are first used, so that `import gcn_lpa` takes no time and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with _MODULE
    from gcn_lpa.calibration import Calibrator as Calibrator
    from gcn_lpa.calibration import conformal_sets as conformal_sets
    from gcn_lpa.calibration import conformal_threshold as conformal_threshold
    from gcn_lpa.calibration import expected_calibration_error as expected_calibration_error
    from gcn_lpa.calibration import fit_calibrator as fit_calibrator
    from gcn_lpa.description import GraphInfo as GraphInfo
    from gcn_lpa.description import describe as describe
    from gcn_lpa.engine.backends import use_backend as use_backend
    from gcn_lpa.engine.counter_random import Key as Key
    from gcn_lpa.engine.sparse import Pattern as Pattern
    from gcn_lpa.engine.sparse import SparseMatrix as SparseMatrix
    from gcn_lpa.estimator import GCNLPAClassifier as GCNLPAClassifier
    from gcn_lpa.graph import Graph as Graph
    from gcn_lpa.graph import Split as Split
    from gcn_lpa.insight.advice import Advice as Advice
    from gcn_lpa.insight.advice import advise as advise
    from gcn_lpa.insight.answers import Explanation as Explanation
    from gcn_lpa.insight.answers import WhatIf as WhatIf
    from gcn_lpa.insight.auditing import EdgeAudit as EdgeAudit
    from gcn_lpa.insight.auditing import LabelAudit as LabelAudit
    from gcn_lpa.insight.auditing import audit_edges as audit_edges
    from gcn_lpa.insight.auditing import audit_labels as audit_labels
    from gcn_lpa.insight.cleaning import try_cleaning as try_cleaning
    from gcn_lpa.insight.comparison import Comparison as Comparison
    from gcn_lpa.insight.comparison import compare as compare
    from gcn_lpa.insight.drawing import draw_explanation as draw_explanation
    from gcn_lpa.insight.explanation import Explainer as Explainer
    from gcn_lpa.insight.explanation import explain as explain
    from gcn_lpa.insight.explanation import explain_all as explain_all
    from gcn_lpa.insight.suggestions import Suggestion as Suggestion
    from gcn_lpa.insight.suggestions import suggest as suggest
    from gcn_lpa.insight.what_ifs import what_if as what_if
    from gcn_lpa.learning import learn as learn
    from gcn_lpa.model import GCNLPA as GCNLPA
    from gcn_lpa.model import propagate_labels as propagate_labels
    from gcn_lpa.predict import Scores as Scores
    from gcn_lpa.predict import evaluate as evaluate
    from gcn_lpa.predict import predict_proba as predict_proba
    from gcn_lpa.predict import predictions as predictions
    from gcn_lpa.recipes import Recipe as Recipe
    from gcn_lpa.runs.codec import load_run as load_run
    from gcn_lpa.runs.confidence import calibrate_run as calibrate_run
    from gcn_lpa.runs.output import predict_run as predict_run
    from gcn_lpa.runs.stages import resume_run as resume_run
    from gcn_lpa.runs.stages import train_run as train_run
    from gcn_lpa.splits import split as split
    from gcn_lpa.tables.datasets import load as load
    from gcn_lpa.tables.datasets import table1 as table1
    from gcn_lpa.tables.own_files import read_csv as read_csv
    from gcn_lpa.theory.checks import Check as Check
    from gcn_lpa.theory.influence import LabelInfluence as LabelInfluence
    from gcn_lpa.theory.influence import feature_influence as feature_influence
    from gcn_lpa.theory.influence import label_influence as label_influence
    from gcn_lpa.theory.theorems import check_theorems as check_theorems
    from gcn_lpa.train import Run as Run
    from gcn_lpa.train import fit as fit

    __version__: str

_MODULE = {
    "Calibrator": "calibration",
    "conformal_sets": "calibration",
    "conformal_threshold": "calibration",
    "expected_calibration_error": "calibration",
    "fit_calibrator": "calibration",
    "load": "tables.datasets",
    "read_csv": "tables.own_files",
    "table1": "tables.datasets",
    "GraphInfo": "description",
    "describe": "description",
    "Check": "theory.checks",
    "check_theorems": "theory.theorems",
    "LabelInfluence": "theory.influence",
    "feature_influence": "theory.influence",
    "label_influence": "theory.influence",
    "propagate_labels": "model",
    "Advice": "insight.advice",
    "advise": "insight.advice",
    "Suggestion": "insight.suggestions",
    "suggest": "insight.suggestions",
    "EdgeAudit": "insight.auditing",
    "LabelAudit": "insight.auditing",
    "audit_edges": "insight.auditing",
    "audit_labels": "insight.auditing",
    "try_cleaning": "insight.cleaning",
    "Comparison": "insight.comparison",
    "compare": "insight.comparison",
    "Graph": "graph",
    "Split": "graph",
    "split": "splits",
    "Key": "engine.counter_random",
    "Pattern": "engine.sparse",
    "SparseMatrix": "engine.sparse",
    "use_backend": "engine.backends",
    "GCNLPA": "model",
    "Recipe": "recipes",
    "Run": "train",
    "Scores": "predict",
    "evaluate": "predict",
    "fit": "train",
    "learn": "learning",
    "predict_proba": "predict",
    "GCNLPAClassifier": "estimator",
    "Explainer": "insight.explanation",
    "Explanation": "insight.answers",
    "WhatIf": "insight.answers",
    "draw_explanation": "insight.drawing",
    "explain": "insight.explanation",
    "explain_all": "insight.explanation",
    "what_if": "insight.what_ifs",
    "calibrate_run": "runs.confidence",
    "load_run": "runs.codec",
    "predict_run": "runs.output",
    "resume_run": "runs.stages",
    "train_run": "runs.stages",
    "predictions": "predict",
}

__all__ = list(_MODULE)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("gcn_lpa.storage").version_of("gcn-lpa")
    elif name in _MODULE:
        value = getattr(import_module(f"gcn_lpa.{_MODULE[name]}"), name)
    else:
        raise AttributeError(
            f"gcn_lpa has no {name!r}; it has {', '.join(__all__)} and its modules, which are imported by name"
        )
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE, "__version__"})
