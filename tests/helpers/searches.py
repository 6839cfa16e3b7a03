"""A short search for settings, here and in a process that is killed."""

from gcn_lpa.data.splits import split
from gcn_lpa.insight.tune import Search as Search
from gcn_lpa.insight.tune import tune
from gcn_lpa.recipes import DEFAULT, PAPER
from reproduction import search as study_search
from reproduction.recipes import SPACE as APPENDIX_F  # noqa: F401

QUICK = DEFAULT.replace(epochs=12, patience=0, edges="fixed", propagation="layers", features="l2", structure=False)


def searched(graph, out, search, start=PAPER["cora"], **options):
    parts = split(graph, seed=0)
    return tune(graph, parts.train, parts.val, start, out, search, **options)


def one_at_a_time(graph, out, search, start=PAPER["cora"], on_trial=None):
    parts = split(graph, seed=0)
    return study_search.one_at_a_time(graph, parts.train, parts.val, start, out, search, on_trial)


WALKS = {"optuna": searched, "coordinate": one_at_a_time}
