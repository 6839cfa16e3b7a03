"""Training on the parts of a graph, one process each: what `torchrun … -m gcn_lpa train DIR` does.

Every rank builds the same W and has the free edge weights of its own rows. The steps are those of `fit`; rank 0 writes the run
folder, which is like that of any other run, and predictions.csv.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.calibration import Calibration, Intervals
from gcn_lpa.data.checks import check_seed
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.files import decode_as, naming
from gcn_lpa.edges import Free
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.learning.tasks import Batch, Validation
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.metrics import METRICS
from gcn_lpa.predict import prediction_table
from gcn_lpa.recipes import Recipe, case_for
from gcn_lpa.runs.folder import Results, TrainedRun, save_run
from gcn_lpa.runs.plan import Plan, chosen_recipe, with_changes
from gcn_lpa.runs.predictions import table_text
from gcn_lpa.runs.storage import PREDICTIONS
from gcn_lpa.runs.train_run import CheckpointFolder, claimed, clear, is_finished
from gcn_lpa.scale.partition import STATUS, AllNodes, PartFacts, RankPart, read_facts, read_nodes, read_part
from gcn_lpa.scale.ranks import TIMEOUT, Ranks, is_torchrun, joined, num_restarts, refused
from gcn_lpa.target import Classes
from gcn_lpa.train import (
    Checkpoint,
    DivergedError,
    JobName,
    Run,
    Watch,
    fit,
    fit_at_once,
    num_epochs,
)
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

METHODS_IN_PARTS = ("gcn-lpa", "gcn", "gcn-same", "lpa")


def require_in_parts(recipe: Recipe) -> None:
    """Refuse by name what several processes cannot do exactly."""
    has_lpa = recipe.method == "gcn-lpa" and recipe.lpa_weight * recipe.lpa_iterations * recipe.lpa_ratio > 0
    reasons = {
        f"method {recipe.method!r}: {', '.join(METHODS_IN_PARTS)} can": recipe.method not in METHODS_IN_PARTS,
        f"members = {recipe.members!r}: they learn from the whole graph; leave them out": bool(recipe.members),
        "votes: their weights need the predictions for all nodes at once; --no-votes leaves them out": recipe.votes,
        f"clusters = {recipe.clusters}: each rank has its part already; --clusters 0": bool(recipe.clusters),
        "edges = 'gaussian': it compares the features of nodes in two parts; 'cosine' sends few numbers of each": (
            recipe.edges == "gaussian"
        ),
        "symmetric_edges: the two directions of an edge may be in two parts": recipe.symmetric_edges,
        "edge_init = 'glorot': it draws the weights of all edges in one go; 'zeros' is the paper's": (
            recipe.edges == "free" and recipe.edge_init == "glorot"
        ),
        "loss = 'leave_one_out' with two LPA iterations: it reads edges of other parts; --lpa-iterations 1, or --loss held_out": (
            has_lpa and recipe.loss == "leave_one_out" and recipe.lpa_iterations == 2
        ),
    }
    reasons[f"select = {recipe.select!r}: it is no sum over nodes; --select loss is"] = recipe.select in METRICS
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"several processes do not train with {reason}")


@dataclass(frozen=True)
class Order:
    """What is to be done with the parts in a folder."""

    folder: Path
    out: Path
    method: str | None = None
    recipe: str | Path = "default"
    changes: Mapping[str, Any] | None = None
    seed: int = 0
    checkpoint_every: int = 50
    resume: bool = False  # go on with the run in `out`, if there is one
    overwrite: bool = False
    device: str = "cpu"
    threads: int | None = None
    timeout: float = TIMEOUT

    def plan(self, facts: PartFacts) -> Plan:
        """The settings that `gcn-lpa train` would choose; of our own recipes without members and votes."""
        check_seed(self.seed)
        if facts.seed not in (None, self.seed):
            raise ValueError(
                f"{self.folder} was split with seed {facts.seed}, not {self.seed}; train it with --seed {facts.seed}"
            )
        if self.method is not None and self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; there are {', '.join(METHODS)}")
        labels_per_class = facts.sizes[0] / max(1, len(facts.class_names))
        case = case_for(facts.num_columns if facts.x_kind == "given" else None, labels_per_class)
        recipe = chosen_recipe(self.recipe, self.method, facts.graph, case, by_folds=False)
        if self.recipe in ("default", "best") and (recipe.votes or recipe.members):
            recipe = recipe.replace(votes=False, members="", origin=f"{recipe.origin}; in parts, without votes")
        recipe = with_changes(recipe, self.changes)
        require_in_parts(recipe)
        return Plan(facts.source, facts.content, recipe, self.seed, facts.split, checkpoint_every=self.checkpoint_every)


def train_parts(order: Order, watch: Watch | None = None) -> TrainedRun | None:
    """Train on the part of this rank, with the others; gives the run in rank 0, and None elsewhere and where it was finished.

    Started again by torchrun, it goes on from the last checkpoint.

    Args:
        watch: as in `train_run`.
    """
    facts = read_facts(order.folder)
    size = int(os.environ["WORLD_SIZE"]) if is_torchrun() else 1
    if size != facts.parts:
        started = f"torchrun started {size} processes" if is_torchrun() else "this is one process"
        raise refused(
            f"{order.folder} has {facts.parts} parts, but {started}: "
            f"torchrun --nproc-per-node {facts.parts} -m gcn_lpa train {order.folder} --out RUN"
        )
    device = choose_device(order.device)
    if device.type == "cuda":  # the GPU of this process among those of its machine
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    with contextlib.ExitStack() as held:
        held.enter_context(joined(device, timeout=order.timeout))
        ranks = Ranks()
        ranks.first(lambda: order.plan(facts))  # rank 0 says what is wrong with it
        together = _Together(order, order.plan(facts), facts, ranks, device)
        if not bool(ranks.total(torch.tensor(int(bool(ranks.first(lambda: _claimed(order, together.plan, held))))))):
            return None
        recipe, watch = together.plan.recipe, watch or Watch()
        name = JobName(epochs=num_epochs(recipe))
        if watch.on_plan is not None:
            watch.on_plan([name])
        with num_threads(order.threads, layer=max(facts.rows) * max(recipe.hidden, len(facts.known))):
            return together.run(name, watch)


def _claimed(order: Order, plan: Plan, held: contextlib.ExitStack) -> bool:
    """Make the run folder ours, or go on with what is in it; whether anything is left to do. For rank 0 alone."""
    resume = order.resume or num_restarts() > 0
    if resume and is_finished(order.out, plan):
        return False
    held.enter_context(claimed(order.out, plan, resume=resume, overwrite=order.overwrite))
    return True


class RankCheckpoints:
    """The checkpoints of processes that train together, as `train.Checkpoints`.

    Each rank saves its part in two folders by turns, and none begins a save before all have ended the last one. So there is
    always a save that all ranks have, whenever one of them is killed.
    """

    def __init__(self, ranks: Ranks, run: Path) -> None:
        self.ranks = ranks
        self.next, self.other = (CheckpointFolder(run, "fit", f"-rank-{ranks.rank}-{turn}") for turn in "ab")

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.next.save(tensors, meta)
        self.next, self.other = self.other, self.next
        self.ranks.total(torch.zeros(1))  # returns when all ranks have saved

    def latest(self) -> Checkpoint | None:
        """The part of this rank in the last save that all have; a save is known by the number of its epochs."""
        found = [folder.latest() for folder in (self.next, self.other)]
        ages = [0 if one is None else _num_epochs_of(one) for one in found]
        every = torch.stack(self.ranks.collected(torch.tensor(ages)))  # [ranks, 2]
        last = max((age for age in ages if bool((every == age).any(dim=1).all())), default=0)
        if last == 0:
            return None
        if ages[0] == last:  # it stays until the next save is complete
            self.next, self.other = self.other, self.next
        return found[ages.index(last)]


def _num_epochs_of(checkpoint: Checkpoint) -> int:
    with naming(checkpoint.meta_file):
        return len(decode_as(list[Any], checkpoint.meta.get("history"), "history"))


def own_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The free edge weights of a model: those of a rank's own rows, which no other rank has."""
    return [p for module in model.modules() if isinstance(module, Free) for p in module.parameters()]


class _Together:
    """One rank of a training."""

    def __init__(self, order: Order, plan: Plan, facts: PartFacts, ranks: Ranks, device: torch.device) -> None:
        self.order, self.plan, self.facts, self.ranks, self.device = order, plan, facts, ranks, device
        self.part: RankPart = read_part(order.folder, facts, plan.recipe, ranks)
        self.model: Any = METHODS[plan.recipe.method].build(plan.recipe, self.part.graph, plan.seed).to(device)
        self.graph = self.part.graph.to(device)
        ranks.own = own_parameters(self.model)

    def run(self, name: JobName, watch: Watch) -> TrainedRun | None:
        try:
            run = self.fitted(name, watch)
        except DivergedError as error:
            raise refused(str(error)) from None
        if run.interrupted:  # the ranks may be at different epochs: their checkpoint is at one
            raise KeyboardInterrupt
        counts, unknown = torch.tensor(self.facts.label_counts).double(), self.part.nothing.unsqueeze(1)
        with torch.no_grad():
            probabilities = F.softmax(self.model(self.graph).double(), dim=1).cpu()
        shares = counts / counts.sum()
        before = torch.where(unknown, shares, probabilities)  # before calibration, [own, c]
        held_out = self.held_out(before)
        calibration = None if held_out is None else held_out.calibration()
        assert not isinstance(calibration, Intervals)  # parts of a graph have classes
        after = before if calibration is None else torch.where(unknown, shares, calibration(before))
        ranked = before.argsort(dim=1, descending=True, stable=True)[:, :2]
        guesses = self.in_order(torch.cat([ranked.double(), after.gather(1, ranked[:, :1])], dim=1))
        weights = self.edge_weights()
        return self.ranks.first(lambda: self.kept(run, held_out, calibration, guesses, weights))

    def fitted(self, name: JobName, watch: Watch) -> Run:
        part, plan, facts = self.part, self.plan, self.facts
        batch = Batch(self.graph, part.train, part.ids, part.ids).to(self.device)
        validation = Validation(self.graph, part.val.to(self.device), part.val_y.to(self.device), facts.sizes[1])
        options: dict[str, Any] = {"seed": plan.seed, "world": self.ranks}
        if METHODS[plan.recipe.method].at_once:
            return fit_at_once(self.model, self.graph, batch.nodes, validation, plan.recipe, **options)
        watch = dataclasses.replace(
            watch,
            checkpoints=lambda _: RankCheckpoints(self.ranks, self.order.out),
            every=plan.checkpoint_every,
            resume=True,
            facts={"graph": facts.content, "split": facts.split_hash, "cut": facts.cut},
        )
        return fit(self.model, [batch], validation, plan.recipe, capture="never", name=name, watch=watch, **options)

    def held_out(self, before: Tensor) -> HeldOut | None:
        """Of all validation nodes, in the order of the graph: every rank finds the same."""
        if self.facts.sizes[1] == 0:
            return None
        at = self.part.val
        rows = torch.cat([self.part.ids[at, None].double(), self.part.val_y[:, None].double(), before[at]], dim=1)
        rows = torch.cat(self.ranks.collected(rows))
        rows = rows[rows[:, 0].argsort()]
        return HeldOut(rows[:, 0].long(), rows[:, 1].long(), rows[:, 2:].contiguous(), "validation")

    def in_order(self, own: Tensor) -> Tensor | None:
        """In rank 0 the rows of all nodes in the order of the graph, [n, …]: here of the two likeliest classes of each and the
        probability of the first."""
        rows = self.ranks.gathered(torch.cat([self.part.ids[:, None].double(), own], dim=1))
        if rows is None:
            return None
        every = torch.cat(rows)
        return every[every[:, 0].argsort(), 1:]

    def edge_weights(self) -> Tensor | None:
        """In rank 0: the free edge weights of all ranks in the order of the whole graph; None where there are none."""
        if not self.ranks.own:
            return None
        pattern, ids = self.graph.pattern, self.part.halo.ids
        order = np.lexsort((ids[pattern.col.long().cpu()].numpy(), pattern.row.cpu().numpy()))
        mine = self.ranks.own[0].detach().cpu()[torch.from_numpy(order)]
        sizes = self.ranks.gathered(torch.stack([self.part.ids, pattern.rowptr.diff().long().cpu()], dim=1))
        weights = self.ranks.gathered(mine)
        if sizes is None or weights is None:
            return None
        node, size = torch.cat(sizes).unbind(dim=1)
        start = torch.zeros(self.facts.num_nodes + 1, dtype=torch.int64)
        start[node + 1] = size
        start = start.cumsum(0)
        within = torch.arange(int(start[-1])) - torch.repeat_interleave(size.cumsum(0) - size, size)
        place = torch.repeat_interleave(start[node], size) + within
        return torch.empty(int(start[-1])).index_copy(0, place, torch.cat(weights))

    def kept(
        self,
        run: Run,
        held_out: HeldOut | None,
        calibration: Calibration | None,
        guesses: Tensor | None,
        weights: Tensor | None,
    ) -> TrainedRun:
        """Write the run folder and the predictions. For rank 0 alone."""
        assert guesses is not None
        facts, recipe, out, nodes = (
            self.facts,
            self.plan.recipe,
            self.order.out,
            read_nodes(self.order.folder, self.facts),
        )
        model = copy.deepcopy(self.model.cpu())
        for module in model.modules():
            if isinstance(module, Free) and weights is not None:
                module.weight = nn.Parameter(weights)
                module.fingerprint = facts.looped if recipe.self_loops else facts.pattern
        trained = Trained(
            model=Ensemble([[model]]),
            recipe=recipe,
            target=Classes(facts.known),
            num_columns=facts.num_columns,
            x_kind=facts.x_kind,
            scaling=self.part.scaling,
            known=known_labels(facts, nodes),
            run=run,
            calibration=calibration,
            columns=None if facts.columns is None else Columns.from_json(facts.columns),
            held_out=held_out,
        )
        first, second, sure = guesses[:, 0].long(), guesses[:, 1].long(), guesses[:, 2]
        results = results_of(facts, nodes, first, self.plan.seed)
        found = TrainedRun(self.plan, without_edges(facts, nodes), trained, nodes.split, results, out)
        status = [STATUS[k] for k in nodes.status.tolist()]
        table = prediction_table(nodes.names, facts.known, (first, sure, second), status)
        table = table[~found.used.numpy()]
        save_run(out, found, {PREDICTIONS: table_text(table).encode()}, num_edges=facts.edges)
        clear(out)
        return found


def known_labels(facts: PartFacts, nodes: AllNodes) -> KnownLabels:
    """The labels that trained and validated, as classes of the model."""
    at = (nodes.split.train | nodes.split.val).nonzero().squeeze(1)
    is_plain = isinstance(nodes.names, range)
    codes = torch.tensor([facts.known.index(name) if name in facts.known else -1 for name in facts.class_names])
    names = at.tolist() if is_plain else [nodes.names[i] for i in at.tolist()]
    return KnownLabels(names, codes[nodes.y[at]], nodes.split.train[at], facts.pattern if is_plain else "")


def results_of(facts: PartFacts, nodes: AllNodes, guess: Tensor, seed: int) -> Results:
    test = nodes.split.test
    where = f"{facts.split} split, seed {seed}, {facts.parts} parts"
    if not test.any():
        return Results("none", f"{where}: no node was left to score")
    tested = Classes(facts.known).scores(nodes.y[test], guess[test], Classes(facts.class_names))
    return Results("test", f"{where}: scored on test nodes whose labels were hidden while training", tested)


def without_edges(facts: PartFacts, nodes: AllNodes) -> Graph:
    """The nodes and labels of a graph whose edges and features are elsewhere."""
    n, nothing = facts.num_nodes, torch.zeros(0, dtype=torch.int64)
    empty = SparseMatrix.from_coo(nothing, nothing, torch.zeros(0), (n, n))
    described = facts.class_names, nodes.names, facts.graph, facts.directed
    return Graph(empty, torch.zeros(n, 0), nodes.y, *described, x_kind=facts.x_kind)
