"""GCN-LPA once more, dense and in plain torch: the oracle of the model.

It shares with the package the names of settings, readings and parameters, and no code. A is dense, with self-loops if the recipe
wants them. What a step leaves out at random comes in as ready masks.
"""

import torch

TINY = 1e-6  # what the package adds to every vote, so that zero has a logarithm


def spread(walk, seeds, iterations, clamp=True):
    """Y^(k) before the last reset, [n, c]; `clamp` resets the labelled nodes before each step."""
    labeled, y = seeds.sum(1, keepdim=True) > 0, seeds
    for _ in range(iterations):
        y = walk @ (torch.where(labeled, seeds, y) if clamp else y)  # Eqs. (2) and (1)
    return y


def each_forgotten(walk, seeds, iterations):
    """Row a is what is said about a node a whose own label is forgotten, found by forgetting each in turn, [n, c]."""
    others = 1 - torch.eye(len(seeds), dtype=seeds.dtype)
    return torch.stack([spread(walk, seeds * others[a].unsqueeze(1), iterations)[a] for a in range(len(seeds))])


def unclamped(walk, seeds, iterations):
    return spread(walk, seeds, iterations, clamp=False)


def share(own, votes):
    return -((own + TINY) / (votes + TINY).sum(1)).log()


READINGS = {  # how votes are cast; -log Pr of the node's own class, of its votes and of all of them
    "official": (unclamped, lambda own, votes: votes.logsumexp(1) - own),
    "literal": (spread, share),
    "held_out": (spread, share),
    "leave_one_out": (each_forgotten, share),
    "influence": (spread, lambda own, votes: -(own + TINY).log()),
}


def votes_of(reading, walk, labels, iterations, shown=None):
    """What the labels of the nodes `shown`, [n] (None: all), say about every node, [n, c]."""
    cast, _ = READINGS[reading]
    return cast(walk, labels if shown is None else labels * shown.unsqueeze(1), iterations)


def lpa_cost(reading, walk, labels, iterations, shown=None):
    """L_lpa, Eq. (15).

    Args:
        labels: one-hot rows of the training nodes, zero rows elsewhere, [n, c].
    """
    votes = votes_of(reading, walk, labels, iterations, shown)
    costs = READINGS[reading][1]((votes * labels).sum(1), votes)
    scored = labels.sum(1) > 0
    return costs[scored & ~shown if reading == "held_out" else scored].mean()


def cosines(p, x):
    z = x @ p["edges.project"]
    z = z / z.norm(dim=1, keepdim=True)
    return z @ z.T


EDGES = {  # log M, [n, n]; what it says where A is 0 does not matter
    "fixed": lambda p, x, a: torch.zeros_like(a),
    "free": lambda p, x, a: torch.zeros_like(a).masked_scatter(a > 0, p["edges.weight"]),  # row by row
    "agnn": lambda p, x, a: p["edges.scale"] * cosines(p, x),
    "cosine": lambda p, x, a: torch.where(torch.eye(len(a), dtype=torch.bool), p["edges.own"], p["edges.scale"] * cosines(p, x)),
}


class Twin:
    """The model of a recipe on a dense graph.

    Args:
        p: the parameters by their names in the model.
        kept: by layer, what dropout multiplies its input by, [n, d].
        kept_edges: which edges are there in this step, [n, n].
        types: D^-½ A_r D^-½ of each edge type.
    """

    def __init__(self, recipe, a, x, p, *, kept=None, kept_edges=1, types=()):
        self.recipe, self.x, self.p, self.kept, self.types = recipe, x, p, kept or {}, types
        strength = a * EDGES[recipe.edges](p, x, a).exp() * kept_edges  # A* = M ∘ A
        degree = strength.sum(1, keepdim=True)
        self.transition = strength / degree
        self.smoothing = strength / (degree * degree.T).sqrt() if recipe.normalization == "symmetric" else self.transition

    def logits(self):
        return {"layers": self.layers, "hops": self.hops, "relations": self.relations}[self.recipe.propagation]()

    def layers(self):
        p, x, last = self.p, self.x, self.recipe.gcn_layers - 1
        for k in range(last + 1):
            x = x * self.kept.get(k, 1)
            h = self.smoothing @ x @ p[f"body.weights.{k}"]  # Eqs. (3), (16)
            h = h + x @ p[f"body.skips.{k}"] if self.recipe.residual else h
            h = h + p[f"body.biases.{k}"] if self.recipe.bias else h
            if self.recipe.layer_norm and k < last:
                spread_out = (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
                h = (h - h.mean(1, keepdim=True)) / spread_out * p[f"body.norms.{k}.weight"] + p[f"body.norms.{k}.bias"]
            x = h.relu() if k < last else h
        return x

    def perceptron(self):
        x, last = self.x, self.recipe.gcn_layers - 1
        for k in range(last + 1):
            h = (x * self.kept.get(k, 1)) @ self.p[f"body.perceptron.weights.{k}"] + self.p[f"body.perceptron.biases.{k}"]
            x = h.relu() if k < last else h
        return x

    def hops(self):
        f, gamma = self.perceptron(), self.p["body.gamma"]
        return sum(gamma[k] * torch.linalg.matrix_power(self.smoothing, k) @ f for k in range(len(gamma)))

    def columns(self):
        """Of columns that are neither reduced nor divided by a spread."""
        x, last = (
            torch.cat([torch.linalg.matrix_power(self.smoothing, k) @ self.x for k in range(4)], dim=1),
            self.recipe.gcn_layers - 1,
        )
        for k in range(last + 1):
            h = (x * self.kept.get(k, 1)) @ self.p[f"body.weights.{k}"] + self.p[f"body.biases.{k}"]
            x = h.relu() if k < last else h
        return x

    def relations(self):
        f, gamma = self.perceptron(), self.p["body.gamma"]
        powers = [(r, k) for r in range(len(self.types)) for k in range(gamma.shape[1])]
        hops = (gamma[r, k] * torch.linalg.matrix_power(self.types[r], k + 1) @ f for r, k in powers)
        return self.p["body.own"] * f + sum(hops)

    def loss(self, labels, shown=None):
        """(L_gcn, L_lpa, their sum with λ) over the rows of `labels`, Eqs. (17), (15), (18)."""
        recipe, logits, labeled = self.recipe, self.logits(), labels.sum(1) > 0
        gcn = (logits.logsumexp(1) - (logits * labels).sum(1))[labeled].mean()  # Eq. (17)
        lpa = lpa_cost(recipe.loss, self.transition, labels, recipe.lpa_iterations, shown)  # Eq. (15)
        return gcn, lpa, gcn + recipe.lpa_weight * lpa  # Eq. (18)
