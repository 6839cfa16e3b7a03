"""Training on the parts of a graph, one process each: what `torchrun … -m gcn_lpa train DIR` does.

Every rank builds the same W and has the free edge weights of its own rows. The steps are those of `fit`; rank 0 writes the run
folder, which is like that of any other run, and predictions.csv.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.calibration import Calibration
from gcn_lpa.data.checks import check_seed
from gcn_lpa.data.encoders import Columns
from gcn_lpa.data.files import decode_as, naming
from gcn_lpa.edges import Free
from gcn_lpa.engine.devices import choose_device, num_threads
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.epochs import Checkpoint, DivergedError, Epoch, JobName, Run, Watch
from gcn_lpa.graph import Graph
from gcn_lpa.learning.choose_recipe import case_for
from gcn_lpa.learning.ensemble import Ensemble
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.predict import prediction_table
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.checkpoints import CheckpointFolder, claimed, clear, is_finished
from gcn_lpa.runs.folder import Results, TrainedRun, save_run
from gcn_lpa.runs.plan import Plan, chosen_recipe, with_changes
from gcn_lpa.runs.predictions import table_text
from gcn_lpa.runs.storage import PREDICTIONS
from gcn_lpa.scale.partition import STATUS, AllNodes, PartFacts, RankPart, read_facts, read_nodes, read_part
from gcn_lpa.scale.ranks import TIMEOUT, Ranks, is_torchrun, joined, local_device, num_restarts, refused, world_size
from gcn_lpa.target import Classes
from gcn_lpa.train import Batch, Validation, Watching, fit, fit_at_once, num_epochs
from gcn_lpa.trained import HeldOut, KnownLabels, Trained

METHODS_IN_PARTS = ("gcn-lpa", "gcn", "gcn-same", "lpa")


def require_in_parts(recipe: Recipe) -> None:
    """Refuse by name what several processes cannot do exactly."""
    has_lpa = recipe.method == "gcn-lpa" and recipe.lpa_weight * recipe.lpa_iterations * recipe.lpa_ratio > 0
    reasons = {
        f"method {recipe.method!r}: {', '.join(METHODS_IN_PARTS)} can": recipe.method not in METHODS_IN_PARTS,
        f"members = {recipe.members!r}: they learn from the whole graph; leave them out": bool(recipe.members),
        "votes: their weights need the opinions of all nodes at once; --no-votes leaves them out": recipe.votes,
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
    for said, holds in reasons.items():
        if holds:
            raise ValueError(f"several processes do not train with {said}")


def recipe_in_parts(
    facts: PartFacts, *, recipe: str | Path, method: str | None, changes: Mapping[str, Any] | None
) -> Recipe:
    """The settings that `gcn-lpa train` would choose; of our own recipes without members and votes."""
    if method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    labels_per_class = facts.sizes[0] / max(1, len(facts.class_names))
    case = case_for(facts.num_columns if facts.x_kind == "given" else None, labels_per_class)
    settings = chosen_recipe(recipe, method, facts.graph, case, by_folds=False)
    if recipe in ("default", "best") and (settings.votes or settings.members):
        settings = settings.replace(votes=False, members="", origin=f"{settings.origin}; in parts, without votes")
    settings = with_changes(settings, changes)
    require_in_parts(settings)
    return settings


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
        check_seed(self.seed)
        if facts.seed not in (None, self.seed):
            raise ValueError(
                f"{self.folder} was split with seed {facts.seed}, not {self.seed}; train it with --seed {facts.seed}"
            )
        settings = recipe_in_parts(facts, recipe=self.recipe, method=self.method, changes=self.changes)
        return Plan(
            facts.source, facts.content, settings, self.seed, facts.split, checkpoint_every=self.checkpoint_every
        )


def train_parts(order: Order, watch: Watch | None = None) -> TrainedRun | None:
    """Train on the part of this rank, with the others; gives the run in rank 0, and None elsewhere and where it was finished.

    Started again by torchrun, it goes on from the last checkpoint.

    Args:
        watch: as in `train_run`.
    """
    facts = read_facts(order.folder)
    if world_size() != facts.parts:
        started = f"torchrun started {world_size()} processes" if is_torchrun() else "this is one process"
        raise refused(
            f"{order.folder} has {facts.parts} parts, but {started}: "
            f"torchrun --nproc-per-node {facts.parts} -m gcn_lpa train {order.folder} --out RUN"
        )
    device = local_device(choose_device(order.device))
    with contextlib.ExitStack() as held:
        held.enter_context(joined(device, timeout=order.timeout))
        ranks = Ranks()
        ranks.first(lambda: order.plan(facts))  # rank 0 says what is wrong with it
        together = _Together(order, order.plan(facts), facts, ranks, device)
        is_to_do = ranks.first(lambda: _claimed(order, together.plan, held))
        if not bool(ranks.total(torch.tensor(int(bool(is_to_do))))):
            return None
        recipe = together.plan.recipe
        with num_threads(order.threads, layer=max(facts.rows) * max(recipe.hidden, len(facts.known))):
            return together.run(_on_epoch(watch or Watch(), recipe))


def _on_epoch(watch: Watch, recipe: Recipe) -> Callable[[Epoch], None] | None:
    """What the one model of a training in parts tells its watch."""
    name, on_epoch = JobName("fit", "", num_epochs(recipe)), watch.on_epoch
    if watch.on_plan is not None:
        watch.on_plan([name])
    return None if on_epoch is None else lambda epoch: on_epoch(name, epoch)


def _claimed(order: Order, plan: Plan, held: contextlib.ExitStack) -> bool:
    """Make the run folder ours, or go on with what is in it; whether there is anything left to do. For rank 0 alone."""
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


class _Said(NamedTuple):
    """What the model says of a rank's nodes."""

    before: Tensor  # probabilities before calibration, [own, c]
    shares: Tensor  # of the given labels, [c]


class _Together:
    """One rank of a training."""

    def __init__(self, order: Order, plan: Plan, facts: PartFacts, ranks: Ranks, device: torch.device) -> None:
        self.order, self.plan, self.facts, self.ranks, self.device = order, plan, facts, ranks, device
        self.part: RankPart = read_part(order.folder, facts, plan.recipe, ranks)
        self.model: Any = METHODS[plan.recipe.method].build(plan.recipe, self.part.graph, plan.seed).to(device)
        self.graph = self.part.graph.to(device)
        ranks.own = own_parameters(self.model)

    def run(self, on_epoch: Callable[[Epoch], None] | None) -> TrainedRun | None:
        try:
            run = self.fitted(on_epoch)
        except DivergedError as error:
            raise refused(str(error)) from None
        if run.interrupted:  # the ranks may be at different epochs: their checkpoint is at one
            raise KeyboardInterrupt
        said = self.said()
        held_out = self.held_out(said)
        calibration = None if held_out is None else held_out.calibration()
        guesses = self.guesses(said, calibration)
        weights = self.edge_weights()
        return self.ranks.first(lambda: self.kept(run, held_out, guesses, weights))

    def fitted(self, on_epoch: Callable[[Epoch], None] | None) -> Run:
        part, plan, facts = self.part, self.plan, self.facts
        identity = {"recipe": plan.recipe.hash(), "seed": plan.seed, "graph": facts.content, "split": facts.split_hash}
        batch = Batch(self.graph, part.train, part.ids, part.ids).to(self.device)
        val, target = part.val.to(self.device), part.val_y.to(self.device)
        checkpoints = RankCheckpoints(self.ranks, self.order.out)
        watching = Watching(on_epoch, checkpoints, plan.checkpoint_every, 0.0, True, {**identity, "cut": facts.cut})
        validation = Validation(self.graph, val, target, facts.sizes[1])
        options: dict[str, Any] = {"seed": plan.seed, "world": self.ranks}
        if METHODS[plan.recipe.method].at_once:
            return fit_at_once(self.model, self.graph, batch.nodes, validation, plan.recipe, **options)
        return fit(self.model, [batch], validation, plan.recipe, capture="never", watching=watching, **options)

    @torch.no_grad()
    def said(self) -> _Said:
        counts = torch.tensor(self.facts.label_counts).double()
        found = F.softmax(self.model(self.graph).double(), dim=1).cpu()
        shares = counts / counts.sum()
        return _Said(torch.where(self.part.nothing.unsqueeze(1), shares, found), shares)

    def held_out(self, said: _Said) -> HeldOut | None:
        """Of all validation nodes, in the order of the graph: every rank finds the same."""
        if self.facts.sizes[1] == 0:
            return None
        at = self.part.val
        rows = torch.cat([self.part.ids[at, None].double(), self.part.val_y[:, None].double(), said.before[at]], dim=1)
        rows = torch.cat(self.ranks.collected(rows))
        rows = rows[rows[:, 0].argsort()]
        return HeldOut(rows[:, 0].long(), rows[:, 1].long(), rows[:, 2:].contiguous(), "validation")

    def guesses(self, said: _Said, calibration: Calibration | None) -> Tensor | None:
        """In rank 0: likeliest class, the next, and the probability of the first, of all nodes, [n, 3]."""
        ranked = said.before.argsort(dim=1, descending=True, stable=True)[:, :2]
        sure = said.before if calibration is None else calibration.calibrator(said.before)
        sure = torch.where(self.part.nothing.unsqueeze(1), said.shares, sure).gather(1, ranked[:, :1])
        rows = self.ranks.gathered(torch.cat([self.part.ids[:, None].double(), ranked.double(), sure], dim=1))
        if rows is None:
            return None
        found = torch.cat(rows)
        return found[found[:, 0].argsort(), 1:]

    def edge_weights(self) -> Tensor | None:
        """In rank 0: the free edge weights of all ranks in the order of the whole graph; None where there are none."""
        if not self.ranks.own:
            return None
        pattern, ids = self.graph.pattern, self.part.halo.ids
        order = np.lexsort((ids[pattern.col.long().cpu()].numpy(), pattern.row.cpu().numpy()))
        mine = self.ranks.own[0].detach().cpu()[torch.from_numpy(order)]
        sizes = self.ranks.gathered(torch.stack([self.part.ids, pattern.rows.rowptr.diff().long().cpu()], dim=1))
        weights = self.ranks.gathered(mine)
        if sizes is None or weights is None:
            return None
        rows = torch.cat(sizes)
        start = torch.zeros(self.facts.num_nodes + 1, dtype=torch.int64)
        start[rows[:, 0] + 1] = rows[:, 1]
        start = start.cumsum(0)
        within = torch.arange(int(start[-1])) - torch.repeat_interleave(rows[:, 1].cumsum(0) - rows[:, 1], rows[:, 1])
        place = torch.repeat_interleave(start[rows[:, 0]], rows[:, 1]) + within
        return torch.empty(int(start[-1])).index_copy(0, place, torch.cat(weights))

    def kept(self, run: Run, held_out: HeldOut | None, guesses: Tensor | None, weights: Tensor | None) -> TrainedRun:
        """Write the run folder and the predictions. For rank 0 alone."""
        assert guesses is not None
        facts, out, nodes = self.facts, self.order.out, read_nodes(self.order.folder, self.facts)
        model = self.model.cpu() if weights is None else with_edge_weights(self.model.cpu(), weights, self.fingerprint)
        columns = None if facts.columns is None else Columns.from_json(facts.columns)
        trained = Trained(
            model=Ensemble([[model]]),
            recipe=self.plan.recipe,
            target=Classes(facts.known),
            num_columns=facts.num_columns,
            x_kind=facts.x_kind,
            scaling=self.part.scaling,
            known=known_labels(facts, nodes),
            run=run,
            calibration=None if held_out is None else held_out.calibration(),
            columns=columns,
            held_out=held_out,
        )
        results = results_of(facts, nodes, guesses[:, 0].long(), self.plan.seed)
        whole = WholeGraph.of(facts, nodes)
        found = TrainedRun(self.plan, whole, trained, nodes.split, results, out)
        save_run(out, found, {PREDICTIONS: table_text(predictions_of(facts, nodes, guesses)).encode()})
        clear(out)
        return found

    @property
    def fingerprint(self) -> str:
        return self.facts.looped if self.plan.recipe.self_loops else self.facts.pattern


def with_edge_weights(model: nn.Module, weights: Tensor, fingerprint: str) -> nn.Module:
    """A model whose free edge weights are those of the whole graph."""
    whole = copy.deepcopy(model)
    for module in whole.modules():
        if isinstance(module, Free):
            module.weight, module.fingerprint = nn.Parameter(weights), fingerprint
    return whole


def known_labels(facts: PartFacts, nodes: AllNodes) -> KnownLabels:
    """The labels that trained and validated, as classes of the model."""
    at = (nodes.split.train | nodes.split.val).nonzero().squeeze(1)
    is_plain = isinstance(nodes.names, range)
    place = {name: k for k, name in enumerate(facts.known)}
    codes = torch.tensor([place.get(name, -1) for name in facts.class_names])
    names = at.tolist() if is_plain else [nodes.names[i] for i in at.tolist()]
    return KnownLabels(names, codes[nodes.y[at]], nodes.split.train[at], facts.pattern if is_plain else "")


def results_of(facts: PartFacts, nodes: AllNodes, guess: Tensor, seed: int) -> Results:
    test = nodes.split.test
    where = f"{facts.split} split, seed {seed}, {facts.parts} parts"
    if not test.any():
        return Results("none", f"{where}: no node was left to score")
    tested = Classes(facts.known).scores(nodes.y[test], guess[test], facts.class_names)
    return Results("test", f"{where}: scored on test nodes whose labels were hidden while training", tested)


def predictions_of(facts: PartFacts, nodes: AllNodes, guesses: Tensor) -> Any:
    """The table of `gcn-lpa predict`, of the nodes whose labels were not given."""
    first, second = guesses[:, 0].long(), guesses[:, 1].long()
    status = [STATUS[k] for k in nodes.status.tolist()]
    table = prediction_table(nodes.names, facts.known, (first, guesses[:, 2], second), status)
    return table[~(nodes.split.train | nodes.split.val).numpy()]


@dataclass(frozen=True, eq=False, repr=False)
class WholeGraph(Graph):
    """The nodes and labels of a graph whose edges and features are elsewhere."""

    counted: int = 0

    @property
    def num_edges(self) -> int:
        return self.counted

    @classmethod
    def of(cls, facts: PartFacts, nodes: AllNodes) -> WholeGraph:
        n, nothing = facts.num_nodes, torch.zeros(0, dtype=torch.int64)
        empty = SparseMatrix.from_coo(nothing, nothing, torch.zeros(0), (n, n))
        described = facts.class_names, nodes.names, facts.graph, facts.directed
        return cls(empty, torch.zeros(n, 0), nodes.y, *described, x_kind=facts.x_kind, counted=facts.edges)
