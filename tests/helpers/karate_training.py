"""A training of karate without the command line, here and in a process that is killed."""

from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run

SETTINGS = {"epochs": 6, "hidden": 4, "edge_rank": 4, "loss": "held_out"}


def train(folder):
    """A training without the command line."""
    plan, graph = make_plan(Source("karate"), changes=SETTINGS, checkpoint_every=1, split="uniform")
    return train_run(plan, graph, folder, device="cpu", threads=1, resume=True)
