"""Node classification with GCN-LPA, Wang & Leskovec, "Unifying Graph Convolutional Neural Networks and Label
Propagation" (2020).

The public names are imported when they are first used, so that `import gcn_lpa` takes no time and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with _NAMES
    from gcn_lpa.calibration import Calibration as Calibration
    from gcn_lpa.calibration import Calibrator as Calibrator
    from gcn_lpa.calibration import PerfectECE as PerfectECE
    from gcn_lpa.calibration import Reliability as Reliability
    from gcn_lpa.calibration import conformal_sets as conformal_sets
    from gcn_lpa.calibration import conformal_threshold as conformal_threshold
    from gcn_lpa.calibration import expected_calibration_error as expected_calibration_error
    from gcn_lpa.calibration import fit_calibrator as fit_calibrator
    from gcn_lpa.choice import facts_of as facts_of
    from gcn_lpa.choice import recipe_for as recipe_for
    from gcn_lpa.conversion import as_graph as as_graph
    from gcn_lpa.description import GraphInfo as GraphInfo
    from gcn_lpa.description import Homophily as Homophily
    from gcn_lpa.description import describe as describe
    from gcn_lpa.description import homophily as homophily
    from gcn_lpa.description import node_hops as node_hops
    from gcn_lpa.engine.backends import use_backend as use_backend
    from gcn_lpa.engine.sparse import SparseMatrix as SparseMatrix
    from gcn_lpa.estimator import GCNLPAClassifier as GCNLPAClassifier
    from gcn_lpa.features import Block as Block
    from gcn_lpa.features import Scaling as Scaling
    from gcn_lpa.fusion import Fusion as Fusion
    from gcn_lpa.graph import Graph as Graph
    from gcn_lpa.growth import Grown as Grown
    from gcn_lpa.growth import Growth as Growth
    from gcn_lpa.growth import induced as induced
    from gcn_lpa.insight.advice import Advice as Advice
    from gcn_lpa.insight.advice import AdviceLine as AdviceLine
    from gcn_lpa.insight.advice import advise as advise
    from gcn_lpa.insight.answers import Change as Change
    from gcn_lpa.insight.answers import Explanation as Explanation
    from gcn_lpa.insight.answers import Influence as Influence
    from gcn_lpa.insight.answers import Others as Others
    from gcn_lpa.insight.answers import Shift as Shift
    from gcn_lpa.insight.answers import Vote as Vote
    from gcn_lpa.insight.answers import VotePath as VotePath
    from gcn_lpa.insight.answers import WhatIf as WhatIf
    from gcn_lpa.insight.auditing import EdgeAudit as EdgeAudit
    from gcn_lpa.insight.auditing import EdgeFinding as EdgeFinding
    from gcn_lpa.insight.auditing import LabelAudit as LabelAudit
    from gcn_lpa.insight.auditing import LabelFinding as LabelFinding
    from gcn_lpa.insight.auditing import audit_edges as audit_edges
    from gcn_lpa.insight.auditing import audit_labels as audit_labels
    from gcn_lpa.insight.cleaning import Cleaning as Cleaning
    from gcn_lpa.insight.cleaning import try_cleaning as try_cleaning
    from gcn_lpa.insight.comparison import Comparison as Comparison
    from gcn_lpa.insight.comparison import ComparisonRow as ComparisonRow
    from gcn_lpa.insight.comparison import Memory as Memory
    from gcn_lpa.insight.comparison import Record as Record
    from gcn_lpa.insight.comparison import compare as compare
    from gcn_lpa.insight.drawing import draw_explanation as draw_explanation
    from gcn_lpa.insight.explanation import Explainer as Explainer
    from gcn_lpa.insight.explanation import explain as explain
    from gcn_lpa.insight.explanation import explain_all as explain_all
    from gcn_lpa.insight.suggestions import Suggestion as Suggestion
    from gcn_lpa.insight.suggestions import suggest as suggest
    from gcn_lpa.insight.tuning import Search as Search
    from gcn_lpa.insight.tuning import Tuning as Tuning
    from gcn_lpa.insight.tuning import TuningTrial as TuningTrial
    from gcn_lpa.insight.tuning import tune as tune
    from gcn_lpa.insight.what_ifs import Asked as Asked
    from gcn_lpa.insight.what_ifs import answer as answer
    from gcn_lpa.insight.what_ifs import what_if as what_if
    from gcn_lpa.learning import learn as learn
    from gcn_lpa.methods.registry import METHODS as METHODS
    from gcn_lpa.methods.registry import Method as Method
    from gcn_lpa.model import GCNLPA as GCNLPA
    from gcn_lpa.model import Loss as Loss
    from gcn_lpa.model import propagate_labels as propagate_labels
    from gcn_lpa.predict import ClassScores as ClassScores
    from gcn_lpa.predict import Scores as Scores
    from gcn_lpa.predict import calibrate as calibrate
    from gcn_lpa.predict import edge_table as edge_table
    from gcn_lpa.predict import evaluate as evaluate
    from gcn_lpa.predict import predict_proba as predict_proba
    from gcn_lpa.predict import predictions as predictions
    from gcn_lpa.predict import scores as scores
    from gcn_lpa.progress import ProgressBar as ProgressBar
    from gcn_lpa.pyg import GCNLPANet as GCNLPANet
    from gcn_lpa.pyg import LPARegularizer as LPARegularizer
    from gcn_lpa.recipes import DEFAULT as DEFAULT
    from gcn_lpa.recipes import LAYERS as LAYERS
    from gcn_lpa.recipes import Recipe as Recipe
    from gcn_lpa.runs.codec import OutOfFold as OutOfFold
    from gcn_lpa.runs.codec import Results as Results
    from gcn_lpa.runs.codec import TrainedRun as TrainedRun
    from gcn_lpa.runs.codec import load_run as load_run
    from gcn_lpa.runs.confidence import CalibrationReport as CalibrationReport
    from gcn_lpa.runs.confidence import calibrate_run as calibrate_run
    from gcn_lpa.runs.growing import GrownRun as GrownRun
    from gcn_lpa.runs.growing import predict_on as predict_on
    from gcn_lpa.runs.output import predict_run as predict_run
    from gcn_lpa.runs.plan import Plan as Plan
    from gcn_lpa.runs.plan import Source as Source
    from gcn_lpa.runs.plan import make_plan as make_plan
    from gcn_lpa.runs.stages import evaluate_run as evaluate_run
    from gcn_lpa.runs.stages import resume_run as resume_run
    from gcn_lpa.runs.stages import train_run as train_run
    from gcn_lpa.splits import Split as Split
    from gcn_lpa.splits import split as split
    from gcn_lpa.stacks import learn_many as learn_many
    from gcn_lpa.stats import Difference as Difference
    from gcn_lpa.stats import Mean as Mean
    from gcn_lpa.tables.datasets import load as load
    from gcn_lpa.tables.own_files import read_csv as read_csv
    from gcn_lpa.theory.checks import Check as Check
    from gcn_lpa.theory.influence import LabelInfluence as LabelInfluence
    from gcn_lpa.theory.influence import feature_influence as feature_influence
    from gcn_lpa.theory.influence import label_influence as label_influence
    from gcn_lpa.theory.theorems import check_theorems as check_theorems
    from gcn_lpa.train import Batch as Batch
    from gcn_lpa.train import DivergedError as DivergedError
    from gcn_lpa.train import Epoch as Epoch
    from gcn_lpa.train import Run as Run
    from gcn_lpa.train import Validation as Validation
    from gcn_lpa.train import Watching as Watching
    from gcn_lpa.train import fit as fit
    from gcn_lpa.trained import KnownLabels as KnownLabels
    from gcn_lpa.trained import Trained as Trained

    __version__: str

_NAMES = {  # of each module
    "calibration": (
        "Calibration",
        "Calibrator",
        "PerfectECE",
        "Reliability",
        "conformal_sets",
        "conformal_threshold",
        "expected_calibration_error",
        "fit_calibrator",
    ),
    "choice": ("facts_of", "recipe_for"),
    "conversion": ("as_graph",),
    "description": ("GraphInfo", "Homophily", "describe", "homophily", "node_hops"),
    "engine.backends": ("use_backend",),
    "engine.sparse": ("SparseMatrix",),
    "estimator": ("GCNLPAClassifier",),
    "features": ("Block", "Scaling"),
    "fusion": ("Fusion",),
    "graph": ("Graph",),
    "growth": ("Grown", "Growth", "induced"),
    "insight.advice": ("Advice", "AdviceLine", "advise"),
    "insight.answers": ("Change", "Explanation", "Influence", "Others", "Shift", "Vote", "VotePath", "WhatIf"),
    "insight.auditing": ("EdgeAudit", "EdgeFinding", "LabelAudit", "LabelFinding", "audit_edges", "audit_labels"),
    "insight.cleaning": ("Cleaning", "try_cleaning"),
    "insight.comparison": ("Comparison", "ComparisonRow", "Memory", "Record", "compare"),
    "insight.drawing": ("draw_explanation",),
    "insight.explanation": ("Explainer", "explain", "explain_all"),
    "insight.suggestions": ("Suggestion", "suggest"),
    "insight.tuning": ("Search", "Tuning", "TuningTrial", "tune"),
    "insight.what_ifs": ("Asked", "answer", "what_if"),
    "learning": ("learn",),
    "methods.registry": ("METHODS", "Method"),
    "model": ("GCNLPA", "Loss", "propagate_labels"),
    "predict": (
        "ClassScores",
        "Scores",
        "calibrate",
        "edge_table",
        "evaluate",
        "predict_proba",
        "predictions",
        "scores",
    ),
    "progress": ("ProgressBar",),
    "pyg": ("GCNLPANet", "LPARegularizer"),
    "recipes": ("DEFAULT", "LAYERS", "Recipe"),
    "runs.codec": ("OutOfFold", "Results", "TrainedRun", "load_run"),
    "runs.confidence": ("CalibrationReport", "calibrate_run"),
    "runs.growing": ("GrownRun", "predict_on"),
    "runs.output": ("predict_run",),
    "runs.plan": ("Plan", "Source", "make_plan"),
    "runs.stages": ("evaluate_run", "resume_run", "train_run"),
    "splits": ("Split", "split"),
    "stacks": ("learn_many",),
    "stats": ("Difference", "Mean"),
    "tables.datasets": ("load",),
    "tables.own_files": ("read_csv",),
    "theory.checks": ("Check",),
    "theory.influence": ("LabelInfluence", "feature_influence", "label_influence"),
    "theory.theorems": ("check_theorems",),
    "train": ("Batch", "DivergedError", "Epoch", "Run", "Validation", "Watching", "fit"),
    "trained": ("KnownLabels", "Trained"),
}
_MODULE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE)


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
