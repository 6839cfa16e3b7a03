"""Graphs from and to other libraries: `Graph.from_edges`, `.from_scipy`, … and `.to_scipy`, `.to_networkx`, …; and edge types.

The functions here are methods of `Graph`, which names them. All constructors end in `from_edges`, which checks what it is given.

Undirected is the default. Weights of repeated rows are summed within a direction, and of the two directions of a pair the
larger stays. So a list that names every edge twice, (a, b) and (b, a), is the same graph as one that names it once. Without
weights every edge has weight 1 however often it is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data import checks
from gcn_lpa.data.checks import Ends, edge_weights, some
from gcn_lpa.data.describe import alike_names
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.regression import Numbers

if TYPE_CHECKING:
    from gcn_lpa.graph import Graph

STAND_IN_NOTES = {
    "identity": "no features: the identity matrix stands in",
    "degree": "no features: one-hot ⌊log2(1 + degree)⌋ stands in",
}
DIRECTION = "direction"  # in place of a column: the two directions of arcs are the edge types
DIRECTIONS = ("along arcs", "against arcs")
AT_ONCE = 2**22  # edges that are brought into order together
MOST_EDGE_TYPES = 20  # each has its own hop weights, and takes as many products as a whole graph


def from_edges(
    cls: type[Graph],
    edges: Any,
    *,
    weights: Any = None,
    edge_types: Any = None,
    num_nodes: int | None = None,
    node_names: Iterable[Hashable] | None = None,
    x: Any = None,
    y: Any = None,
    class_names: Iterable[str] | None = None,
    task: str | None = None,
    directed: bool = False,
    self_loops: bool = False,
    name: str = "graph",
) -> Graph:
    """A graph from pairs (source, target) of integers or any hashable ids.

    Integers are positions 0..n-1 when `num_nodes`, `x` or `y` says how many nodes there are. Otherwise, and for
    all other ids, the nodes are the ids that occur (sorted where they can be), or `node_names`, in that order.

    Args:
        weights: one positive number per pair; 1 without.
        edge_types: the type of each pair, any text: see `EdgeTypes`.
        x: features, a row per node: an array, tensor or sparse matrix; or "identity", the default, or "degree".
        y: a label per node, or a mapping from node to label. None, NaN, "" and the integer -1 mean unknown.
        task: "classification" or "regression": whether labels are classes or numbers, of which None and NaN alone mean unknown;
            None: numbers where they are floats and one is a fraction.
        self_loops: add a self-loop of weight 1 to every node that has none.
    """
    names, source, target = checks.name_nodes(edges, node_names, num_nodes, x, y)
    if len(names) == 0:
        raise ValueError("the graph has no nodes")
    values = edge_weights(weights, len(source), lambda i: f"edge {i}, {names[source[i]]!r} → {names[target[i]]!r},")
    entries = scipy.sparse.coo_array((values, (source, target)), shape=(len(names), len(names)))
    is_weighted = weights is not None
    matrix = merged_edges(entries, weighted=is_weighted, directed=directed)
    types = None if edge_types is None else EdgeTypes.of(edge_types, entries, weighted=is_weighted, directed=directed)
    del entries, values
    features, x_kind = node_features(x, matrix)
    labels, classes = checks.node_labels(y, names, class_names, task)
    numbers = Numbers() if labels.is_floating_point() else None
    adjacency = SparseMatrix.from_scipy(matrix)
    graph = cls(adjacency, features, labels, classes, names, name, directed, (), x_kind, numbers=numbers)
    notes = [] if isinstance(names, range) else [f"{len(names):,} nodes named by their ids", *alike_names(names)]
    once = graph.num_edges + graph.num_self_loops
    if len(source) != once and (directed or len(source) != adjacency.num_entries):
        summed = "weights summed" if directed else "weights summed, of both directions the larger"
        how = summed if is_weighted else "each of weight 1"
        notes.append(f"{len(source):,} edge rows merged into {once:,} edges, {how}")
    if x is None or isinstance(x, str):
        notes.append(STAND_IN_NOTES[x_kind])
    graph = dataclasses.replace(graph, notes=tuple(notes), edge_types=types if types and types.names else None)
    return graph.with_self_loops() if self_loops else graph


def from_scipy(
    cls: type[Graph],
    matrix: Any,
    *,
    x: Any = None,
    y: Any = None,
    node_names: Iterable[Hashable] | None = None,
    class_names: Iterable[str] | None = None,
    task: str | None = None,
    directed: bool = False,
    name: str = "graph",
) -> Graph:
    """A graph from a square SciPy sparse (or dense) matrix whose entry [i, j] is the weight of the edge i → j.

    Stored zeros are no edges. Undirected: of [i, j] and [j, i] the larger stays.
    """
    try:
        coo = scipy.sparse.coo_array(matrix)
    except (ValueError, TypeError) as error:
        raise TypeError(f"from_scipy needs a sparse or dense matrix, not {type(matrix).__name__} ({error})") from error
    if coo.ndim != 2 or coo.shape[0] != coo.shape[1]:
        raise ValueError(f"an adjacency matrix is square; this one is {' x '.join(map(str, coo.shape))}")
    n = coo.shape[0]
    names = range(n) if node_names is None else checks.unique_names(node_names)
    if len(names) != n:
        raise ValueError(f"node_names has {len(names)} names for {n} rows of the matrix")
    data = np.asarray(coo.data)
    keep = data != 0
    row, col = coo.coords[0][keep], coo.coords[1][keep]
    values = edge_weights(data[keep], len(row), lambda i: f"entry [{row[i]}, {col[i]}]")
    labels: dict[str, Any] = {"y": y, "class_names": class_names, "task": task}
    options: dict[str, Any] = {"x": x, **labels, "directed": directed, "name": name}
    graph = from_edges(cls, Ends(row, col, are_positions=True), weights=values, node_names=names, **options)
    dropped = () if keep.all() else (f"{int((~keep).sum()):,} stored zeros dropped",)
    return dataclasses.replace(graph, notes=(*dropped, *graph.notes))


def from_networkx(
    cls: type[Graph],
    graph: Any,
    *,
    weight: str | None = "weight",
    label: str | None = "label",
    features: str | Sequence[str] | None = None,
    class_names: Iterable[str] | None = None,
    task: str | None = None,
    directed: bool = False,
    name: str | None = None,
) -> Graph:
    """A graph from any NetworkX graph; its nodes become `node_names`.

    Args:
        weight: edge attribute, 1 where an edge lacks it; None ignores weights.
        label: node attribute; a node without it is unlabelled.
        features: one node attribute that holds a vector, or several that hold a number each.
        directed: keep the direction of a DiGraph; without, it is made undirected.
    """
    if not hasattr(graph, "nodes") or not hasattr(graph, "is_directed"):
        raise TypeError(f"from_networkx needs a NetworkX graph, not {type(graph).__name__}")
    if directed and not graph.is_directed():
        raise ValueError("directed=True needs a DiGraph; this NetworkX graph has no directions")
    nodes = list(graph.nodes)
    attributes = dict.fromkeys(key for _, held in graph.nodes(data=True) for key in held)
    if label not in (None, "label", *attributes) and nodes:
        held = some(list(attributes), 8) or "no attribute"
        raise ValueError(f"no node has the attribute {label!r} to take as its label; the nodes have {held}")
    x = None
    if features is not None:
        names = [features] if isinstance(features, str) else list(features)
        if missing := [(node, name) for node, held in graph.nodes(data=True) for name in names if name not in held]:
            right = "every node needs its features"
            raise ValueError(f"node {missing[0][0]!r} has no attribute {missing[0][1]!r}; {right}")
        columns = [np.asarray([held[name] for _, held in graph.nodes(data=True)]) for name in names]
        x = columns[0] if isinstance(features, str) else np.stack(columns, axis=1)
    given = [value for *_, value in graph.edges(data=weight)] if weight is not None else []
    is_weighted = any(value is not None for value in given)
    return from_edges(
        cls,
        [pair[:2] for pair in graph.edges()],
        weights=[1.0 if value is None else value for value in given] if is_weighted else None,
        node_names=nodes,
        x=x,
        y=[graph.nodes[node].get(label) for node in nodes] if label is not None else None,
        class_names=class_names,
        task=task,
        directed=directed,
        name=name or graph.name or "graph",
    )


def from_pyg(
    cls: type[Graph],
    data: Any,
    *,
    weight: str = "edge_weight",
    task: str | None = None,
    directed: bool = False,
    name: str = "graph",
) -> Graph:
    """A graph from a PyG `Data`: its edge_index, weights, x, y, and its masks as the published split.

    Args:
        weight: attribute with one number per edge; where the data has no such attribute, every edge has weight 1.
    """
    index = getattr(data, "edge_index", None)
    if index is None:
        raise TypeError(f"from_pyg needs a torch_geometric.data.Data with an edge_index, not {type(data).__name__}")
    n, given, weights = int(data.num_nodes), getattr(data, "node_names", None), getattr(data, weight, None)
    source, target = checks.in_range(index[0].cpu().numpy(), index[1].cpu().numpy(), n, f"the data has {n} nodes")
    graph = from_edges(
        cls,
        Ends(source, target, are_positions=True),
        weights=weights,
        node_names=range(n) if given is None else given,
        x=data.x,
        y=data.y,
        class_names=getattr(data, "class_names", None),
        task=task,
        directed=directed,
        name=name,
    )
    masks = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
    if not all(isinstance(mask, Tensor) and mask.dim() == 1 for mask in masks):
        return graph
    train, val, test = (torch.as_tensor(mask).cpu().bool() for mask in masks)
    return dataclasses.replace(graph, published=(Split(train, val, test, "official"),))


def node_features(x: Any, adjacency: scipy.sparse.csr_array) -> tuple[Tensor | SparseMatrix, str]:
    """Features as float32, dense or sparse as given, every number finite; and where they come from."""
    n = adjacency.shape[0]
    if x is None or (isinstance(x, str) and x == "identity"):
        return SparseMatrix.identity(n), "identity"
    if isinstance(x, str):
        if x != "degree":
            raise ValueError(f"x is {x!r}; without features of your own it is 'identity' or 'degree'")
        # one column per doubling of the degree: survives row normalisation and carries over to other graphs
        bucket = np.frexp(1.0 + np.diff(adjacency.indptr) - (adjacency.diagonal() != 0))[1] - 1
        matrix = scipy.sparse.csr_array((np.ones(n), bucket, np.arange(n + 1)), shape=(n, int(bucket.max()) + 1))
        return SparseMatrix.from_scipy(matrix), "degree"
    array = _feature_array(x)
    if array.ndim != 2 or array.shape[0] != n or array.shape[1] == 0:
        raise ValueError(f"features are [{n}, d], a row per node; x is {list(array.shape)}")
    is_sparse = scipy.sparse.issparse(array)
    values = array.data if is_sparse else array.reshape(-1)
    with np.errstate(over="ignore"):
        numbers = (values if values.dtype.kind in "fiub" else checks.as_numbers(values)).astype(np.float32)
    if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
        k = int(wrong[0])
        row, column = (side[k] for side in array.tocoo().coords) if is_sparse else divmod(k, array.shape[1])
        right = "features are finite 32-bit floats"
        raise ValueError(f"x has {checks.as_plain(values[k])!r} in row {row}, column {column}; {right}")
    if not is_sparse:
        return torch.from_numpy(numbers).view(array.shape), "given"
    matrix = scipy.sparse.csr_array((numbers, array.indices.copy(), array.indptr.copy()), shape=array.shape)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    features = SparseMatrix.from_scipy(matrix)
    return features, "identity" if features.pattern.is_identity and bool((features.values == 1).all()) else "given"


def _feature_array(x: Any) -> Any:
    """Features as a NumPy array where they are dense, as rows of a SciPy array where they are sparse."""
    if isinstance(x, SparseMatrix):
        x = x.to_scipy()
    elif isinstance(x, Tensor) and x.layout != torch.strided:
        x = x.detach().cpu().to_sparse_coo().coalesce()
        return scipy.sparse.coo_array((x.values().numpy(), x.indices().numpy()), shape=tuple(x.shape)).tocsr()
    if scipy.sparse.issparse(x):
        return scipy.sparse.csr_array(x)
    if isinstance(x, (list, tuple)) and len({len(row) for row in x if hasattr(row, "__len__")}) > 1:
        raise ValueError(f"the rows of x have different lengths: {sorted({len(row) for row in x})}")
    return checks.as_array(x)


@dataclass(frozen=True, eq=False)
class EdgeTypes:
    """The edges of each type, [n, n] each. A pair that is joined in two ways is an edge of both types."""

    names: tuple[str, ...]
    matrices: tuple[SparseMatrix, ...]

    @classmethod
    def of(cls, types: Any, entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> EdgeTypes:
        """The edges [source, target] of each type, merged as in the adjacency; `types` names the type of each edge."""
        values = types.tolist() if isinstance(types, np.ndarray) else list(types)
        if len(values) != entries.nnz:
            raise ValueError(f"there are {len(values):,} edge types for {entries.nnz:,} edges; every edge has one")
        texts = ["" if checks.is_missing(value) else str(value).strip() for value in values]
        if "" in texts:
            raise ValueError(f"edge {texts.index('')} has no type; every edge has one")
        names, codes = np.unique(np.array(texts, dtype=object), return_inverse=True)  # sorted
        if len(names) > MOST_EDGE_TYPES:
            most = f"at most {MOST_EDGE_TYPES} can have weights of their own"
            raise ValueError(f"edges are of {len(names):,} types, {some(names.tolist())}; {most}")
        source, target = entries.coords

        def edges_of(k: int) -> SparseMatrix:
            mask = codes == k
            edges = scipy.sparse.coo_array((entries.data[mask], (source[mask], target[mask])), shape=entries.shape)
            return SparseMatrix.from_scipy(merged_edges(edges, weighted=weighted, directed=directed))

        return cls(tuple(names.tolist()), tuple(map(edges_of, range(len(names)))))

    @classmethod
    def directions(cls, adjacency: SparseMatrix) -> EdgeTypes:
        """The arcs of a directed graph as two types: messages that go along them, and against them."""
        against = SparseMatrix.from_scipy(adjacency.to_scipy().T).to(adjacency.device)
        return cls(DIRECTIONS, (adjacency, against))

    @classmethod
    def without_edges(cls, names: Sequence[str], n: int) -> EdgeTypes:
        empty = scipy.sparse.csr_array((n, n), dtype=np.float32)
        return cls(tuple(names), tuple(SparseMatrix.from_scipy(empty) for _ in names))

    @cached_property
    def smoothing(self) -> tuple[SparseMatrix, ...]:
        """D^-½ A D^-½ of each type."""
        return tuple(matrix.symmetric_normalized() for matrix in self.matrices)

    def each(self, change: Callable[[SparseMatrix], SparseMatrix]) -> EdgeTypes:
        return EdgeTypes(self.names, tuple(map(change, self.matrices)))

    def to(self, device: torch.device | str) -> EdgeTypes:
        return self.each(lambda matrix: matrix.to(device))

    def with_self_loops(self) -> EdgeTypes:
        """With a self-loop of weight 1 for every node and type that has none."""
        added = [loops_added(matrix) for matrix in self.matrices]
        return EdgeTypes(self.names, tuple(matrix for matrix, _ in added)) if any(n for _, n in added) else self

    def between(self, nodes: np.ndarray) -> EdgeTypes:
        """The edges between nodes, by their positions."""
        return self.each(lambda matrix: SparseMatrix.from_scipy(matrix.to_scipy()[nodes][:, nodes]).to(matrix.device))

    def within(self, pattern: Pattern) -> EdgeTypes:
        """The edges that are also entries of a pattern; of those against arcs, whose arcs are."""
        arrays = np.ones(pattern.num_entries, np.float32), pattern.col.cpu().numpy(), pattern.rowptr.cpu().numpy()
        kept = scipy.sparse.csr_array(arrays, shape=pattern.shape)
        masks = (kept, kept.T.tocsr()) if self.names == DIRECTIONS else (kept,) * len(self.names)
        pairs = zip(self.matrices, masks, strict=True)
        matrices = (SparseMatrix.from_scipy(matrix.to_scipy() * mask).to(matrix.device) for matrix, mask in pairs)
        return EdgeTypes(self.names, tuple(matrices))

    def without(self, names: Container[str]) -> EdgeTypes | None:
        """The other types; None where there is no other."""
        left = [pair for pair in zip(self.names, self.matrices, strict=True) if pair[0] not in names]
        return EdgeTypes(*map(tuple, zip(*left, strict=True))) if left else None

    def named(self, names: Sequence[str]) -> EdgeTypes:
        """The edge types that a model knows, in its order; one that it does not know is refused."""
        if tuple(names) == self.names:
            return self
        if unknown := [name for name in self.names if name not in names]:
            known = f"it knows {some(names, MOST_EDGE_TYPES)}"
            raise ValueError(f"edges are of the type {unknown[0]!r:.80}, which the model has not seen; {known}")
        matrices, first = dict(zip(self.names, self.matrices, strict=True)), self.matrices[0]
        empty = EdgeTypes.without_edges(names, first.shape[0]).to(first.device)
        pairs = zip(names, empty.matrices, strict=True)
        return EdgeTypes(empty.names, tuple(matrices.get(name, matrix) for name, matrix in pairs))


def merged_edges(entries: scipy.sparse.coo_array, *, weighted: bool, directed: bool) -> scipy.sparse.csr_array:
    """Entries [source, target] as an adjacency: duplicates summed, or all of weight 1, and both directions joined; in float32."""
    (source, target), n = entries.coords, entries.shape[0]
    num_blocks = -(-entries.nnz // AT_ONCE) or 1  # of rows: what the way there takes is that of one block
    sizes, columns, values = [np.zeros(1, np.int64)], [], []

    def block(row: np.ndarray, col: np.ndarray, first: int, last: int) -> scipy.sparse.csr_array:
        here = slice(None) if num_blocks == 1 else np.flatnonzero((row >= first) & (row < last))
        found = scipy.sparse.coo_array((entries.data[here], (row[here] - first, col[here])), shape=(last - first, n)).tocsr()
        if not weighted:
            found.data[:] = 1  # duplicates were summed
        return found

    for k in range(num_blocks):
        rows = k * n // num_blocks, (k + 1) * n // num_blocks
        found = block(target, source, *rows)
        found = found if directed else found.maximum(block(source, target, *rows))
        with np.errstate(over="ignore", under="ignore"):
            values.append(found.data.astype(np.float32))
        wrong = np.flatnonzero(~(np.isfinite(values[-1]) & (values[-1] > 0)))
        if len(wrong):
            raise ValueError(f"weight {found.data[wrong[0]]} is beyond 32-bit floats; scale the weights")
        sizes.append(np.diff(found.indptr))
        columns.append(found.indices)
    weights = np.concatenate(values)
    values.clear()
    return scipy.sparse.csr_array((weights, np.concatenate(columns), np.concatenate(sizes).cumsum()), shape=entries.shape)


def loops_added(matrix: SparseMatrix) -> tuple[SparseMatrix, int]:
    """The matrix with 1 on its diagonal where nothing is stored, and how often that is."""
    row, col = matrix.pattern.row, matrix.pattern.col
    has_loop = torch.zeros(matrix.shape[0], dtype=torch.bool, device=matrix.device)
    has_loop[row[row == col].long()] = True
    missing = (~has_loop).float().cpu().numpy()
    if not missing.any():
        return matrix, 0
    loops = scipy.sparse.diags_array(missing, dtype=np.float32, format="csr")
    loops.eliminate_zeros()
    return SparseMatrix.from_scipy(matrix.to_scipy() + loops).to(matrix.device), int(missing.sum())


def to_scipy(graph: Graph) -> scipy.sparse.csr_array:
    """The weights as a SciPy matrix whose entry [i, j] is the edge i → j."""
    matrix = graph.adjacency.to_scipy()
    return matrix.T.tocsr() if graph.directed else matrix


def to_networkx(graph: Graph) -> Any:
    """A NetworkX Graph or DiGraph with edge attribute `weight` and, where known, node attribute `label`."""
    import networkx

    converted = networkx.DiGraph(name=graph.name) if graph.directed else networkx.Graph(name=graph.name)
    for name, label in zip(graph.node_names, graph.y.tolist(), strict=True):
        converted.add_node(name, **({"label": graph.class_names[label]} if label >= 0 else {}))
    source, target, weight = _edge_list(graph)
    ends = ([graph.node_names[i] for i in side.tolist()] for side in (source, target))
    converted.add_weighted_edges_from(zip(*ends, weight.tolist(), strict=True))
    return converted


def to_pyg(graph: Graph) -> Any:
    """A PyG `Data`; both directions of every undirected edge, sparse features as a sparse tensor."""
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError("to_pyg needs PyTorch Geometric: pip install 'gcn-lpa[pyg]'") from error

    x = graph.x
    if isinstance(x, SparseMatrix):
        index = torch.stack([x.pattern.row, x.pattern.col]).long()
        x = torch.sparse_coo_tensor(index, x.values, x.shape, is_coalesced=True, check_invariants=False)
    data = Data(
        x=x,
        edge_index=torch.stack([graph.col, graph.row]).long(),
        edge_weight=graph.adjacency.values,
        y=graph.y,
        node_names=graph.node_names,
        class_names=graph.class_names,
    )
    if len(graph.published) == 1:
        (parts,) = graph.published
        data.train_mask, data.val_mask, data.test_mask = parts.train, parts.val, parts.test
    return data


def to_pandas(graph: Graph) -> Any:
    """A DataFrame source, target, weight with node names; every undirected edge once."""
    import pandas

    source, target, weight = _edge_list(graph)
    names = pandas.Series(list(graph.node_names))
    ends = {"source": names.iloc[source].to_numpy(), "target": names.iloc[target].to_numpy()}
    return pandas.DataFrame({**ends, "weight": weight})


def _edge_list(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, target and weight of every edge; an undirected one once, from the smaller position."""
    target, source = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    weight = graph.adjacency.values.detach().cpu().numpy()
    if graph.directed:
        return source, target, weight
    once = target <= source
    return target[once], source[once], weight[once]
