"""Several ranks in one test: processes forked from one that has imported everything, and what they do."""

import dataclasses
import multiprocessing
import os
import pickle
import queue
import socket
import traceback

import torch

from gcn_lpa.methods.registry import METHODS
from gcn_lpa.scale.partition import read_facts, read_part
from gcn_lpa.scale.ranks import Ranks, joined
from gcn_lpa.scale.together import own_parameters
from gcn_lpa.train import Batch, Validation, Watching, fit

PATIENCE = 120  # seconds that a test waits for its ranks
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["gcn_lpa.scale.together", "gcn_lpa.cli.app", "numba", "pandas"])


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def _rank(rank, size, port, answers, job, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        with joined(torch.device("cpu"), timeout=60):
            answers.put((rank, pickle.dumps(job(rank, *arguments)), None))  # torch would send a file descriptor
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))


def on_ranks(size, job, *arguments):
    """What `job(rank, *arguments)` gives in each of so many ranks."""
    answers, port = CONTEXT.Queue(), free_port()
    processes = [CONTEXT.Process(target=_rank, args=(k, size, port, answers, job, arguments)) for k in range(size)]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=PATIENCE) for _ in processes]
    except queue.Empty:
        raise AssertionError("a rank did not answer") from None
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    failures = [failure for _, _, failure in found if failure]
    assert not failures, failures[0]
    return [pickle.loads(answer) for _, answer, _ in sorted(found, key=lambda one: one[0])]


def trained_parts(rank, cases):
    return [trained_part(rank, *case) for case in cases]


def trained_part(rank, folder, recipe, dtype, steps):
    """Train on the part of a rank; what there is to compare with one process."""
    ranks = Ranks()
    part = read_part(folder, read_facts(folder), recipe, ranks)
    everywhere = int(ranks.total(torch.tensor(len(part.val))))
    graph = in_type(part.graph, dtype)
    part = dataclasses.replace(part, graph=graph)
    validation = Validation(graph, part.val, part.val_y, everywhere)
    found = trained(Batch(graph, part.train, part.ids), validation, recipe, dtype, steps, ranks)
    ends = part.ids[graph.row.long()], part.halo.ids[graph.col.long()]
    travels = {"halo": sum(part.halo.wanted), "read": sum(part.halo.sent)}
    return {**found, "ids": part.ids, "edges": torch.stack(ends), **travels}


def in_type(graph, dtype):
    return dataclasses.replace(graph, adjacency=graph.adjacency.to(dtype), x=graph.x.to(dtype))


def trained(batch, validation, recipe, dtype, steps, world):
    """`steps` epochs of `fit`: the history, the gradient of the first step, the weights after the last, and the classes."""
    model = METHODS[recipe.method].build(recipe, batch.graph, 0).to(dtype)
    if isinstance(world, Ranks):
        world.own = own_parameters(model)
    kept = {}

    def note(epoch):
        if epoch.epoch == 1:
            kept["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        if epoch.epoch == steps:
            kept["weights"] = {name: p.detach().clone() for name, p in model.named_parameters()}

    run = fit(model, [batch], validation, recipe.replace(epochs=steps), watching=Watching(on_epoch=note), world=world)
    lines = [(e.loss, e.gcn, e.lpa, e.val_accuracy, e.val_loss) for e in run.history]
    received = getattr(world, "received", 0)
    with torch.no_grad():
        classes = model(batch.graph).argmax(dim=1)
    return {**kept, "history": lines, "best_epoch": run.best_epoch, "classes": classes, "received": received}
