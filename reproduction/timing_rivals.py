"""One training step of ours and of everything a user could pick instead: PyTorch Geometric, and torch's own CSR product."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcn_lpa.data.datasets import load
from gcn_lpa.engine.operations import apply
from gcn_lpa.engine.sparse import Key, SparseMatrix
from gcn_lpa.graph import Graph
from gcn_lpa.model import GCNLPA
from gcn_lpa.recipes import PAPER, Recipe

SETTINGS = PAPER["cora"].replace(features="raw", origin="Cora's settings on identity features, the paper's timing study")
ON_GPU_ONLY = ("our gcn-lpa, 3xTF32",)

Step = Callable[[], Any]


@dataclass(frozen=True)
class Problem:
    """One timing graph, ready for every rival."""

    graph: Graph
    nodes: Tensor  # the labelled ones, [m]
    recipe: Recipe = SETTINGS

    @property
    def target(self) -> Tensor:
        return self.graph.y.index_select(0, self.nodes)

    @classmethod
    def random(cls, n: int, *, classes: int, labeled: int, device: str, hubs: float = 0.0, seed: int = 0) -> Problem:
        graph = SETTINGS.prepare(load("random", n=n, classes=classes, hubs=hubs, seed=seed))
        nodes = np.random.Generator(np.random.PCG64(seed)).choice(n, size=labeled, replace=False)
        return cls(graph.to(device), torch.from_numpy(np.sort(nodes)).to(device))


def optimizer_of(weights: Iterable[nn.Parameter], edges: Iterable[nn.Parameter], recipe: Recipe, device: torch.device) -> Any:
    groups = [
        {"params": list(weights), "weight_decay": recipe.l2},
        {"params": list(edges), "weight_decay": recipe.l2_edges},
    ]
    on_gpu = device.type == "cuda"
    return torch.optim.Adam([g for g in groups if g["params"]], lr=recipe.lr, fused=True, capturable=on_gpu)


def ours(problem: Problem, *, fixed: bool = False) -> Step:
    """Our GCN-LPA; or, with fixed edges and λ = 0, our GCN."""
    recipe = problem.recipe.replace(edges="fixed", lpa_weight=0.0) if fixed else problem.recipe
    device = problem.nodes.device
    model = GCNLPA(recipe, problem.graph.to("cpu"), seed=0).to(device)
    optimizer = optimizer_of(model.weight_parameters(), model.edge_parameters(), recipe, device)
    key = Key(0, torch.zeros(1, dtype=torch.int64, device=device))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(problem.graph, problem.nodes, key).total.backward()
        optimizer.step()
        key.step.add_(1)  # type: ignore[union-attr]

    return step


def ours_by_tensor_cores(problem: Problem) -> Step:
    """Our GCN-LPA with the products x W by three TF32 products each, which is as exact as float32."""
    from gcn_lpa.engine import gpu_fused

    step = ours(problem)

    def by_tensor_cores() -> None:
        before, gpu_fused.PRECISION = gpu_fused.PRECISION, "tf32x3"
        step()
        gpu_fused.PRECISION = before

    return by_tensor_cores


def _weights(problem: Problem) -> nn.ParameterList:
    recipe, graph = problem.recipe, problem.graph
    widths = [graph.num_nodes, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
    new = (torch.empty(a, b, device=problem.nodes.device) for a, b in pairwise(widths))
    return nn.ParameterList(nn.Parameter(nn.init.xavier_uniform_(w)) for w in new)


def _plain_step(problem: Problem, weights: nn.ParameterList, product: Callable[[Tensor], Tensor]) -> Step:
    """A GCN on identity features, as one writes it by hand around a constant product A X."""
    recipe = problem.recipe
    optimizer = optimizer_of(weights, [], recipe, problem.nodes.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        z = F.dropout(torch.ones_like(weights[0][:, :1]), recipe.dropout) * weights[0]
        for weight in list(weights)[1:]:
            z = F.dropout(product(z).relu(), recipe.dropout) @ weight
        F.cross_entropy(product(z)[problem.nodes], problem.target).backward()
        optimizer.step()

    return step


def csr_gcn(problem: Problem) -> Step:
    """A GCN on torch's own CSR product (cuSPARSE or MKL) with the transpose kept, as an expert would write it."""
    walk = problem.graph.adjacency.row_normalized()

    def csr(matrix: SparseMatrix) -> Tensor:
        where = matrix.pattern.rowptr, matrix.pattern.col, matrix.values
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor|invariant)", UserWarning)  # beta, and not checked
            return torch.sparse_csr_tensor(*where, size=matrix.shape, check_invariants=False)

    forward, backward = csr(walk), csr(walk.T)

    class KeptTranspose(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return forward @ x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return backward @ grad.contiguous()

    return _plain_step(problem, _weights(problem), lambda x: apply(KeptTranspose, x))


def pyg_gcn(problem: Problem) -> Step:
    """PyG's GCNConv (scatter) with edge weights normalised once."""
    walk, convolutions, weights, edge_index = _pyg_parts(problem)
    optimizer = optimizer_of(weights, [], problem.recipe, problem.nodes.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        _pyg_loss(problem, weights, convolutions, edge_index, walk.values).backward()
        optimizer.step()

    return step


def pyg_gcn_lpa(problem: Problem) -> Step:
    """GCN-LPA from GCNConv, PyG's softmax and scatter, as a user would write it."""
    from torch_geometric.utils import scatter, softmax

    walk, convolutions, weights, edge_index = _pyg_parts(problem)
    n, recipe = problem.graph.num_nodes, problem.recipe
    scores = nn.Parameter(torch.zeros_like(walk.values))
    optimizer = optimizer_of(weights, [scores], recipe, problem.nodes.device)
    seeds = torch.zeros(n, problem.graph.num_classes, device=problem.nodes.device)
    seeds[problem.nodes, problem.target] = 1
    labeled = seeds.sum(dim=1, keepdim=True) > 0
    source, destination = edge_index

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        weight = softmax(scores, destination, num_nodes=n)
        loss = _pyg_loss(problem, weights, convolutions, edge_index, weight)
        y = seeds
        for k in range(recipe.lpa_iterations):
            y = torch.where(labeled, seeds, y) if k else y
            y = scatter(weight.unsqueeze(1) * y.index_select(0, source), destination, dim=0, dim_size=n, reduce="sum")
        votes = y[problem.nodes]
        share = votes.gather(1, problem.target.unsqueeze(1)).squeeze(1) / votes.sum(dim=1).clamp_min(1e-6)
        (loss - recipe.lpa_weight * share.clamp_min(1e-6).log().mean()).backward()
        optimizer.step()

    return step


def _pyg_parts(problem: Problem) -> Any:
    from torch_geometric.nn import GCNConv

    recipe, device = problem.recipe, problem.nodes.device
    walk = problem.graph.adjacency.row_normalized()
    edge_index = torch.stack([walk.pattern.col.long(), walk.pattern.row.long()])  # source, destination
    widths = [*[recipe.hidden] * (recipe.gcn_layers - 1), problem.graph.num_classes]
    convolutions = [GCNConv(a, b, normalize=False, bias=False).to(device) for a, b in pairwise(widths)]
    first = GCNConv(1, 1, normalize=False, bias=False).to(device)  # only its product: with identity features X W is W
    start = torch.empty(problem.graph.num_nodes, recipe.hidden, device=device)
    embedding = nn.Parameter(nn.init.xavier_uniform_(start))
    weights = [embedding, *(p for convolution in convolutions for p in convolution.parameters())]
    return walk, [first, *convolutions], weights, edge_index


def _pyg_loss(problem: Problem, weights: Any, convolutions: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
    rate = problem.recipe.dropout
    z = F.dropout(torch.ones_like(weights[0][:, :1]), rate) * weights[0]
    x = convolutions[0].propagate(edge_index, x=z, edge_weight=edge_weight)
    for convolution in convolutions[1:]:
        x = convolution(F.dropout(x.relu(), rate), edge_index, edge_weight)
    return F.cross_entropy(x[problem.nodes], problem.target)


RIVALS: dict[str, Callable[[Problem], Step]] = {
    "pyg gcn": pyg_gcn,
    "pyg gcn-lpa": pyg_gcn_lpa,
    "csr gcn": csr_gcn,
    "our gcn": lambda problem: ours(problem, fixed=True),
    "our gcn-lpa": ours,
    "our gcn-lpa, 3xTF32": ours_by_tensor_cores,
}
