"""Imported once by the process that ranks are forked from: compiled kernels are loaded there, and not in every rank."""

import torch

import gcn_lpa.cli.app
import gcn_lpa.runs.predictions
import gcn_lpa.scale.together  # noqa: F401
from gcn_lpa.data.datasets import load
from gcn_lpa.engine.devices import num_threads
from gcn_lpa.learning.learn import learn
from gcn_lpa.recipes import DEFAULT

with num_threads(1):
    graph, number = load("sbm", n=40, classes=2), torch.arange(40) % 2
    for edges in ("free", "cosine"):
        learn(
            graph,
            number == 0,
            number == 1,
            DEFAULT.replace(edges=edges, epochs=2, members="trees lr"),
            device="cpu",
            threads=1,
        )
