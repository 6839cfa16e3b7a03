"""Put the LPA regulariser on a PyG model: two GCNConv layers whose edge weights must also carry labels.

Needs PyTorch Geometric: pip install "gcn-lpa[pyg]"
"""

import torch
from torch.nn import functional as F
from torch_geometric.nn import GCN
from torch_geometric.utils import add_remaining_self_loops

from gcn_lpa import load, split
from gcn_lpa.edges import AGNN
from gcn_lpa.pyg import LPARegularizer

graph = load("digits").with_features("l2")
parts, data = split(graph, (0.1, 0.1, 0.8), seed=0), graph.to_pyg()
edge_index, _ = add_remaining_self_loops(data.edge_index, num_nodes=data.num_nodes)

torch.manual_seed(0)
net = GCN(data.num_features, 32, num_layers=2, out_channels=graph.num_classes, normalize=False)
form = AGNN(data.num_features, rank=16, generator=torch.Generator().manual_seed(0))
regularizer = LPARegularizer(form, loss="leave_one_out", iterations=1)
optimizer = torch.optim.Adam([*net.parameters(), *regularizer.parameters()], lr=0.01)

for epoch in range(1, 101):
    optimizer.zero_grad()
    weight = regularizer(edge_index, data.x)  # positive, those into a node sum to 1
    out = net(data.x, edge_index, weight)
    loss = F.cross_entropy(out[parts.train], data.y[parts.train])
    lpa = regularizer.loss(edge_index, weight, data.y, parts.train)
    (loss + 0.3 * lpa).backward()
    optimizer.step()
    if epoch % 20 == 0:
        right = (out.argmax(dim=1) == data.y)[parts.test].float().mean()
        print(f"epoch {epoch}: loss {loss:.3f}, LPA loss {lpa:.3f}, test accuracy {right:.3f}")
