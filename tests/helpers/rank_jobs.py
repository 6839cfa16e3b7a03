"""Several ranks in one test: processes forked from one that has imported everything, and what they do."""

import dataclasses
import multiprocessing
import os
import pickle
import queue
import socket
import time
import traceback
from collections import Counter

import scipy.sparse
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.learning.tasks import Batch, Validation
from gcn_lpa.methods.hops import personalized_back
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import Recipe
from gcn_lpa.scale.partition import read_facts, read_part
from gcn_lpa.scale.ranks import Ranks, joined
from gcn_lpa.scale.together import RankCheckpoints, own_parameters, train_parts
from gcn_lpa.train import Watch, fit, fit_at_once

CPU = torch.device("cpu")
PATIENCE = 120  # seconds that a test waits for its ranks
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.helpers.rank_warm"])


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def _rank(rank, size, port, answers, job, arguments):
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    torch.set_num_threads(1)
    try:
        found = job(rank, *arguments)
        answers.put((rank, pickle.dumps(found), None))  # torch would send a file descriptor
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        answers.put((rank, None, said if isinstance(error, ConnectionError) else traceback.format_exc()))


def started(size, job, *arguments, only=None):
    """The processes of so many ranks, or of some of them, which run `job(rank, *arguments)`, and the queue of their answers."""
    answers, port = CONTEXT.Queue(), free_port()
    ranks = range(size) if only is None else only
    processes = [CONTEXT.Process(target=_rank, args=(k, size, port, answers, job, arguments)) for k in ranks]
    for process in processes:
        process.start()
    return processes, answers


def ended(processes, answers, number):
    """So many answers, by rank: (what a job gave, what went wrong). Nothing runs afterwards."""
    try:
        found = [answers.get(timeout=PATIENCE) for _ in range(number)]
    except queue.Empty:
        raise AssertionError("a rank did not answer") from None
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    return {rank: (None if answer is None else pickle.loads(answer), failure) for rank, answer, failure in found}


def on_ranks(size, job, *arguments):
    """What `job(rank, *arguments)` gives in each of so many ranks."""
    found = ended(*started(size, job, *arguments), size)
    failures = [failure for _, failure in found.values() if failure]
    assert not failures, failures[0]
    return [found[rank][0] for rank in range(size)]


def wait_for(path, seconds=60.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.002)


def whole_training(rank, order):
    """`train_parts`, in one rank; the accuracy where that is known."""
    found = train_parts(order)
    return None if found is None else found.results.scores.accuracy


def counted_training(rank, order):
    """`train_parts`, in one rank: the bytes that came, the size of its part, and the epochs of each member by its name."""
    kept, epochs, exchanged = [], Counter(), Ranks.exchanged

    def counted(self, *arguments):
        rows = exchanged(self, *arguments)
        kept.append(rows.nbytes)
        return rows

    Ranks.exchanged = counted
    try:
        train_parts(order, Watch(on_epoch=lambda name, _: epochs.update([name.member])))
    finally:
        Ranks.exchanged = exchanged
    part = load_file(order.folder / f"part-{rank}.safetensors")
    rows = len(part["adjacency.rowptr"]) - 1
    return {"received": sum(kept), "epochs": dict(epochs), "rows": rows, "halo": len(part["ids"]) - rows, "read": len(part["send"])}


def trainings(rank, orders, ports):
    """`counted_training` for one order after the other, each through a port of its own."""
    found = []
    for order, port in zip(orders, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        found.append(counted_training(rank, order))
    return found


def shared_rows(rank, folder, x):
    """What the ranks find together about rows of their own; `x` are rows of the whole graph."""
    with joined(CPU, timeout=60):
        part = read_part(folder, read_facts(folder), Recipe(), Ranks())
        pattern, mine = part.graph.pattern, x[part.ids]
        weights = torch.ones(x.shape[1], requires_grad=True)
        variance, _ = pattern.moments(mine * weights)
        (variance.sum() / pattern.ranks.size).backward()
        return {
            "ids": part.ids,
            "train": part.train,
            "product": part.graph.adjacency @ mine,
            "variance": variance.detach(),
            "slope": pattern.total(weights.grad),
            "back": personalized_back(part.graph.adjacency, mine, Recipe()),
            "rows": pattern.collected(mine[part.train], part.train),
            "sparse": pattern.collected(scipy.sparse.csr_array(mine[part.train].numpy()), part.train).toarray(),
            "places": pattern.places(part.train),
            "agreed": pattern.agreed(lambda: rank),
        }


def keep_saving(rank, folder, numbers, timeout=20.0):
    """Save a checkpoint again and again, of `numbers` numbers each, all of them the number of the save."""
    with joined(CPU, timeout=timeout):
        checkpoints = RankCheckpoints(Ranks(), folder)
        last = checkpoints.latest()
        k = 0 if last is None else len(last.meta["history"])
        while True:
            k += 1
            checkpoints.save({"k": torch.full((numbers,), k)}, {"history": [0] * k})


def commanded(rank, words):
    """Exit code and stderr of a command."""
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stderr


def trained_parts(rank, cases):
    with joined(CPU, timeout=60):
        return [trained_part(rank, *case) for case in cases]


def trained_part(rank, folder, recipe, dtype, steps):
    """Train on the part of a rank; what there is to compare with one process."""
    ranks = Ranks()
    part = read_part(folder, read_facts(folder), recipe, ranks)
    everywhere = int(ranks.total(torch.tensor(len(part.val))))
    graph = in_type(part.graph, dtype)
    part = dataclasses.replace(part, graph=graph)
    validation = Validation(graph, part.val, part.val_y, everywhere)
    found = trained(Batch(graph, part.train, part.ids, part.ids), validation, recipe, dtype, steps, ranks)
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

    def note(_, epoch):
        if epoch.epoch == 1:
            kept["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        if epoch.epoch == steps:
            kept["weights"] = {name: p.detach().clone() for name, p in model.named_parameters()}

    if METHODS[recipe.method].at_once:
        run = fit_at_once(model, batch.graph, batch.nodes, validation, recipe, world=world)
    else:
        watch = Watch(on_epoch=note)
        run = fit(model, [batch], validation, recipe.replace(epochs=steps), watch=watch, world=world)
    lines = [(e.loss, e.gcn, e.lpa, e.val_accuracy, e.val_loss) for e in run.history]
    received = getattr(world, "received", 0)
    with torch.no_grad():
        classes = model(batch.graph).argmax(dim=1)
    return {**kept, "history": lines, "best_epoch": run.best_epoch, "classes": classes, "received": received}
