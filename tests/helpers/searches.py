"""A short search for settings, here and in a process that is killed."""

from gcn_lpa.data.splits import split
from gcn_lpa.insight.tune import tune
from gcn_lpa.recipes import DEFAULT, PAPER

QUICK = DEFAULT.replace(epochs=12, patience=0, edges="fixed", propagation="layers", features="l2", structure=False)


def searched(graph, out, search, start=PAPER["cora"], **options):
    parts = split(graph, seed=0)
    return tune(graph, parts.train, parts.val, start, out, search, **options)
