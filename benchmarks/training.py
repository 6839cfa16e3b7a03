"""200 epochs of GCN-LPA against 200 epochs of a plain PyG GCN of the same depth and width, on the same features.

The paper's settings (Table 4), one run, same machine: python benchmarks/training.py [--out FILE] [cora coauthor-cs …]
An epoch is a training step and one evaluation of the whole graph. PyG gets its features dense, as its data sets give
them, and sparse (X W by torch.sparse.mm, then GCNConv's propagation), and the faster of the two counts.
"""

import argparse
import statistics
import time
from itertools import pairwise

import torch
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from gcn_lpa import learn, load, split
from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.recipes import PAPER


class PyGGCN(torch.nn.Module):
    def __init__(self, widths, dropout, sparse):
        super().__init__()
        self.convolutions = torch.nn.ModuleList(GCNConv(a, b, cached=True, bias=False) for a, b in pairwise(widths))
        self.dropout, self.sparse = dropout, sparse

    def forward(self, x, edge_index):
        for k, convolution in enumerate(self.convolutions):
            if k == 0 and self.sparse:
                kept = F.dropout(x.values(), self.dropout, self.training)
                z = torch.sparse.mm(torch.sparse_coo_tensor(x.indices(), kept, x.shape), convolution.lin.weight.T)
                x = convolution.propagate(edge_index, x=z, edge_weight=None)
            else:
                x = convolution(F.dropout(x, self.dropout, self.training), edge_index)
            if k < len(self.convolutions) - 1:
                x = x.relu()
        return x


def pyg_seconds(graph, parts, recipe, epochs, sparse):
    graph = recipe.prepare(graph)
    matrix = graph.x.to_scipy().tocoo()
    index = torch.stack([torch.from_numpy(matrix.row).long(), torch.from_numpy(matrix.col).long()])
    x = torch.sparse_coo_tensor(index, torch.from_numpy(matrix.data), matrix.shape).coalesce()
    x = x if sparse else x.to_dense()
    edge_index = torch.stack([graph.col.long(), graph.row.long()])
    widths = [graph.num_features, *[recipe.hidden] * (recipe.gcn_layers - 1), graph.num_classes]
    model = PyGGCN(widths, recipe.dropout, sparse)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.l2)
    start = time.perf_counter()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index)[parts.train], graph.y[parts.train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            (model(x, edge_index)[parts.val].argmax(1) == graph.y[parts.val]).float().mean().item()
    return time.perf_counter() - start


def our_seconds(graph, parts, recipe, epochs):
    start = time.perf_counter()
    learn(graph, parts.train, parts.val, recipe.replace(epochs=epochs), device="cpu")
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["cora", "coauthor-cs"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out")
    options, results = parser.parse_args(), []
    for name in options.names:
        graph, recipe = load(name), PAPER[name]
        parts = split(graph, seed=0)
        our_seconds(graph, parts, recipe, 2)  # compile the kernels
        ours = [our_seconds(graph, parts, recipe, options.epochs) for _ in range(options.repeats)]
        rivals = {
            f"pyg gcn, {kind} features": [
                pyg_seconds(graph, parts, recipe, options.epochs, kind == "sparse") for _ in range(options.repeats)
            ]
            for kind in ("dense", "sparse")
        }
        mean = statistics.median(ours)
        best = min(statistics.median(times) for times in rivals.values())
        print(
            f"{name}: our gcn-lpa {mean:.2f} s",
            *(f"{r} {statistics.median(t):.2f} s" for r, t in rivals.items()),
            sep=", ",
        )
        print(f"{name}: PyG's faster GCN takes {best / mean:.2f} times as long as our GCN-LPA")
        results.append({"dataset": name, "recipe": recipe.to_dict(), "our gcn-lpa": ours, **rivals, "ratio": best / mean})
    if options.out:
        facts = {"benchmark": "training", "epochs": options.epochs, "environment": environment()}
        write_json(options.out, {**facts, "results": results})


if __name__ == "__main__":
    main()
