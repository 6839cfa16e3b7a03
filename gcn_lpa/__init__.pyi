"""The public names: type checkers read this file, and `__init__.py` the module of each name."""

from gcn_lpa.data.datasets import as_graph as as_graph
from gcn_lpa.data.datasets import load as load
from gcn_lpa.data.describe import describe as describe
from gcn_lpa.data.read_folder import read_csv as read_csv
from gcn_lpa.data.splits import Split as Split
from gcn_lpa.data.splits import split as split
from gcn_lpa.estimator import GCNLPAClassifier as GCNLPAClassifier
from gcn_lpa.graph import Graph as Graph
from gcn_lpa.insight.advise import advise as advise
from gcn_lpa.insight.advise import suggest as suggest
from gcn_lpa.insight.audit import audit_edges as audit_edges
from gcn_lpa.insight.audit import audit_labels as audit_labels
from gcn_lpa.insight.compare import compare as compare
from gcn_lpa.insight.explain import explain as explain
from gcn_lpa.insight.explain import explain_all as explain_all
from gcn_lpa.insight.tune import tune as tune
from gcn_lpa.insight.what_if import what_if as what_if
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
from gcn_lpa.recipes import choose_recipe as choose_recipe
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
from gcn_lpa.train import DivergedError as DivergedError
from gcn_lpa.train import Watch as Watch
from gcn_lpa.trained import Trained as Trained

__version__: str
