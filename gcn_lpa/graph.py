"""The one data object: a graph with raw features and labels, its splits, and the doors from and to other libraries.

Formats end here. A `Graph` is never changed: `reveal`, `with_self_loops`, `with_features`, `to` return a new one.
The adjacency is as it was given: self-loops are kept, not added, and features stay raw; what a model wants
(self-loops, normalised features) is applied when it is fitted.

Undirected is the default. Weights of repeated rows are summed within a direction, and of the two directions of a
pair the larger stays, so a list that names every edge twice, (a, b) and (b, a), is the same graph as one that
names it once. Without weights every edge has weight 1 however often it is named.

In a directed graph the edge source → target carries messages to the target: it is the entry [target, source].
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.engine.devices import same_device
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.features import Block, Scaling, structure_columns
from gcn_lpa.intake import (
    STAND_IN_NOTES,
    Ends,
    Positions,
    alike_names,
    are_integers,
    edge_ends,
    edge_weights,
    float32_weights,
    in_range,
    names_from_ids,
    networkx_features,
    node_features,
    node_labels,
    of_another_kind,
    positions_of,
    similar,
    some,
    stated_size,
    unique_names,
)
from gcn_lpa.markup import html_notes, html_table
from gcn_lpa.relations import Relations, loops_added, merged_edges
from gcn_lpa.splits import Split

if TYPE_CHECKING:
    from gcn_lpa.tables.encoders import Columns


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph whose nodes have features and, some of them, a label.

    Build one with `from_edges`, `from_scipy`, `from_networkx`, `from_pyg` or `from_pandas`, or with `gcn_lpa.load`:
    those check what they are given; the constructor trusts its caller.
    """

    adjacency: SparseMatrix  # [n, n] float32, positive weights; entry [i, j] brings j's message to i
    x: Tensor | SparseMatrix  # raw features, [n, d]
    y: Tensor  # class of each node, -1 where unknown, [n] int64
    class_names: tuple[str, ...] = ()
    node_names: Sequence[Hashable] = ()
    name: str = "graph"
    directed: bool = False
    notes: tuple[str, ...] = ()  # what was done to the input
    x_kind: str = "given"  # or "identity", "degree": what stands in where the input has no features
    public: Split | None = None  # the split that was published with the data
    blocks: tuple[Block, ...] = ()  # what the columns of x are; () leaves it to `features.inferred_kind`
    columns: Columns | None = None  # what was made of each column of a table of nodes
    time: Tensor | None = None  # when each node came, float64 [n]; only the order matters
    relations: Relations | None = None  # the edges of each kind, where they have kinds
    mapped: bool = False  # whether dense features are a file, memory-mapped: see `tables.mapped_files`
    _derived: dict[str, Any] = field(default_factory=dict)  # of edges and x; shared by graphs that differ in labels

    def __post_init__(self) -> None:
        parts = self.adjacency, self.x, self.relations
        made_of = self._derived.setdefault("made of", parts)
        if any(was is not now for was, now in zip(made_of, parts, strict=True)):  # a copy with other edges or features
            object.__setattr__(self, "_derived", {"made of": parts})

    @classmethod
    def from_edges(
        cls,
        edges: Any,
        *,
        weights: Any = None,
        kinds: Any = None,
        num_nodes: int | None = None,
        node_names: Iterable[Hashable] | None = None,
        x: Any = None,
        y: Any = None,
        class_names: Iterable[str] | None = None,
        directed: bool = False,
        self_loops: bool = False,
        name: str = "graph",
    ) -> Graph:
        """A graph from pairs (source, target) of integers or any hashable ids.

        Integers are positions 0..n-1 when `num_nodes`, `x` or `y` says how many nodes there are. Otherwise, and for
        all other ids, the nodes are the ids that occur (sorted where they can be), or `node_names`, in that order.

        Args:
            weights: one positive number per pair; 1 without.
            kinds: what kind of edge each pair is, any text: see `Relations`.
            x: features, a row per node: an array, tensor or sparse matrix; or "identity", the default, or "degree".
            y: a label per node, or a mapping from node to label. None, NaN, "" and the integer -1 mean unknown.
            self_loops: add a self-loop of weight 1 to every node that has none.
        """
        source, target = edge_ends(edges)
        stated = stated_size(num_nodes, x, y)
        if node_names is not None:
            names = unique_names(node_names)
            if not isinstance(edges, Positions):
                source, target = positions_of(source, target, names, "node_names")
        elif stated is not None and are_integers(source, target):
            names = range(stated[0])
            source, target = in_range(source, target, *stated)
        else:
            names, source, target = names_from_ids(source, target, y if isinstance(y, Mapping) else ())
        values = edge_weights(weights, len(source), lambda i: f"edge {i}, {_arrow(names, source[i], target[i])},")
        n = len(names)
        matrix = scipy.sparse.coo_array((values, (source, target)), shape=(n, n))
        notes = [] if isinstance(names, range) else [f"{n:,} nodes named by their ids"]
        graph = _assemble(
            matrix,
            weighted=weights is not None,
            x=x,
            y=y,
            class_names=class_names,
            node_names=names,
            directed=directed,
            name=name,
            notes=notes,
        )
        if kinds is not None:
            relations = Relations.of(kinds, matrix, weighted=weights is not None, directed=directed)
            graph = dataclasses.replace(graph, relations=relations if relations.names else None)
        return graph.with_self_loops() if self_loops else graph

    @classmethod
    def from_scipy(
        cls,
        matrix: Any,
        *,
        x: Any = None,
        y: Any = None,
        node_names: Iterable[Hashable] | None = None,
        class_names: Iterable[str] | None = None,
        directed: bool = False,
        name: str = "graph",
    ) -> Graph:
        """A graph from a square SciPy sparse (or dense) matrix whose entry [i, j] is the weight of the edge i → j.

        Stored zeros are no edges. Undirected: of [i, j] and [j, i] the larger stays.
        """
        try:
            coo = scipy.sparse.coo_array(matrix)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"from_scipy needs a sparse or dense matrix, not {type(matrix).__name__} ({error})"
            ) from error
        if coo.ndim != 2 or coo.shape[0] != coo.shape[1]:
            raise ValueError(f"an adjacency matrix is square; this one is {' x '.join(map(str, coo.shape))}")
        n = coo.shape[0]
        names = range(n) if node_names is None else unique_names(node_names)
        if len(names) != n:
            raise ValueError(f"node_names has {len(names)} names for {n} rows of the matrix")
        data = np.asarray(coo.data)
        keep = data != 0
        row, col = coo.coords[0][keep], coo.coords[1][keep]
        values = edge_weights(data[keep], len(row), lambda i: f"entry [{row[i]}, {col[i]}]")
        notes = [f"{int((~keep).sum()):,} stored zeros dropped"] if not keep.all() else []
        entries = scipy.sparse.coo_array((values, (row, col)), shape=(n, n))
        return _assemble(
            entries, x=x, y=y, class_names=class_names, node_names=names, directed=directed, name=name, notes=notes
        )

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        weight: str | None = "weight",
        label: str | None = "label",
        features: str | Sequence[str] | None = None,
        class_names: Iterable[str] | None = None,
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
        given = [value for *_, value in graph.edges(data=weight)] if weight is not None else []
        is_weighted = any(value is not None for value in given)
        return cls.from_edges(
            [pair[:2] for pair in graph.edges()],
            weights=[1.0 if value is None else value for value in given] if is_weighted else None,
            node_names=nodes,
            x=networkx_features(graph, features),
            y=[graph.nodes[node].get(label) for node in nodes] if label is not None else None,
            class_names=class_names,
            directed=directed,
            name=name or graph.name or "graph",
        )

    @classmethod
    def from_pyg(cls, data: Any, *, weight: str = "edge_weight", directed: bool = False, name: str = "graph") -> Graph:
        """A graph from a PyG `Data`: its edge_index, weights, x, y, and its masks as the `public` split.

        Args:
            weight: attribute with one number per edge; where the data has no such attribute, every edge has weight 1.
        """
        index = getattr(data, "edge_index", None)
        if index is None:
            raise TypeError(f"from_pyg needs a torch_geometric.data.Data with an edge_index, not {type(data).__name__}")
        n, given, weights = int(data.num_nodes), getattr(data, "node_names", None), getattr(data, weight, None)
        source, target = in_range(index[0].cpu().numpy(), index[1].cpu().numpy(), n, f"the data has {n} nodes")
        names = range(n) if given is None else unique_names(given)
        values = edge_weights(weights, len(source), lambda i: f"edge {i}, {_arrow(names, source[i], target[i])},")
        graph = _assemble(
            scipy.sparse.coo_array((values, (source, target)), shape=(n, n)),
            weighted=weights is not None,
            x=data.x,
            y=data.y,
            class_names=getattr(data, "class_names", None),
            node_names=names,
            directed=directed,
            name=name,
            notes=[],
        )
        masks = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
        if not all(isinstance(mask, Tensor) and mask.dim() == 1 for mask in masks):
            return graph
        train, val, test = (torch.as_tensor(mask).cpu().bool() for mask in masks)
        return dataclasses.replace(graph, public=Split(train, val, test, "public"))

    @classmethod
    def from_pandas(
        cls, edges: Any, *, source: str = "source", target: str = "target", weight: str = "weight", **options: Any
    ) -> Graph:
        """A graph from a DataFrame with a row per edge; `options` as in `from_edges`.

        Args:
            weight: column of the weights; where the frame has no such column, every edge has weight 1.
        """
        if not hasattr(edges, "columns"):
            raise TypeError(f"from_pandas needs a DataFrame, not {type(edges).__name__}; from_edges takes pairs")
        for column in (source, target):
            if column not in edges.columns:
                raise ValueError(f"the edge list has no column {column!r}; it has {some(list(edges.columns))}")
        pairs = Ends(edges[source].to_numpy(), edges[target].to_numpy())
        return cls.from_edges(pairs, weights=edges[weight].to_numpy() if weight in edges.columns else None, **options)

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        stored = "sparse features" if isinstance(self.x, SparseMatrix) else "features"
        parts = [
            f"{self.num_nodes:,} nodes",
            f"{self.num_edges:,} {kind} edges",
            *([f"{len(self.relations.names)} kinds of edges"] if self.relations is not None else []),
            *([f"{self.num_self_loops:,} self-loops"] if self.num_self_loops else []),
            f"{self.num_features:,} {stored}{'' if self.x_kind == 'given' else f' ({self.x_kind})'}",
            f"{self.num_classes:,} classes",
            f"{int(self.labeled.sum()):,} nodes labelled",
        ]
        head = f"Graph {self.name!r}: {', '.join(parts)}"
        return "\n  ".join([head, *self.notes])

    def _repr_html_(self) -> str:
        """The same as a table, with the size of each class, for notebooks."""
        rows = [part.split(" ", 1)[::-1] for part in repr(self).partition("\n")[0].partition(": ")[2].split(", ")]
        sizes = torch.bincount(self.y[self.labeled], minlength=self.num_classes).tolist()
        rows += [[f"of class {name}", f"{size:,}"] for name, size in [*zip(self.class_names, sizes, strict=True)][:20]]
        return html_table(f"Graph {self.name!r}", rows) + html_notes(self.notes)

    def __sklearn_clone__(self) -> Graph:
        return self  # never changed, so an estimator and its clones can share it

    @property
    def num_nodes(self) -> int:
        return self.adjacency.shape[0]

    @cached_property
    def num_self_loops(self) -> int:
        return int((self.row == self.col).sum())

    @property
    def num_edges(self) -> int:
        """Unordered pairs of an undirected graph, arcs of a directed one; self-loops are not counted."""
        entries = self.adjacency.num_entries - self.num_self_loops
        return entries if self.directed else entries // 2

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def pattern(self) -> Pattern:
        return self.adjacency.pattern

    @property
    def row(self) -> Tensor:
        """The node that receives, for each entry of the adjacency, [E]."""
        return self.pattern.row

    @property
    def col(self) -> Tensor:
        """The node that sends, for each entry of the adjacency, [E]."""
        return self.pattern.col

    @cached_property
    def labeled(self) -> Tensor:
        return self.y >= 0

    @property
    def device(self) -> torch.device:
        return self.y.device

    def to(self, device: torch.device | str) -> Graph:
        if same_device(device, self.device):
            return self  # and keeps what was computed of it
        moved = {name: getattr(self, name).to(device) for name in ("adjacency", "x", "y")}
        relations = None if self.relations is None else self.relations.to(device)
        return dataclasses.replace(self, **moved, relations=relations)

    def reveal(self, mask: Tensor) -> Graph:
        """The same graph with the labels of the nodes in `mask` only; all others are -1."""
        if mask.dtype != torch.bool or mask.shape != self.y.shape:
            raise ValueError(f"a mask is boolean, [{self.num_nodes}], not {mask.dtype} {list(mask.shape)}")
        return dataclasses.replace(self, y=torch.where(mask.to(self.device), self.y, -1))

    def with_unknown_as(self, label: int, nodes: Tensor | None = None) -> Graph:
        """The same graph with unlabelled nodes, or those of the mask `nodes`, put into one class.

        The authors' code scores them as class 0.
        """
        unknown = ~self.labeled if nodes is None else ~self.labeled & nodes.to(self.device)
        return dataclasses.replace(self, y=torch.where(unknown, label, self.y))

    def with_self_loops(self) -> Graph:
        """The same graph with a self-loop of weight 1 at every node that has none."""
        if "self-loops" not in self._derived:
            adjacency, count = loops_added(self.adjacency)
            relations = None if self.relations is None else self.relations.with_self_loops()
            self._derived["self-loops"] = adjacency, relations, count, {}
        adjacency, relations, count, derived = self._derived["self-loops"]
        if not count and relations is self.relations:
            return self
        notes = (*self.notes, *([f"self-loops of weight 1 added to {count:,} nodes"] if count else []))
        return dataclasses.replace(self, adjacency=adjacency, relations=relations, notes=notes, _derived=derived)

    def with_adjacency(self, adjacency: SparseMatrix, **changes: Any) -> Graph:
        """The same nodes with other weights, or with some of the edges; `changes` are other fields."""
        relations = None if self.relations is None else self.relations.within(adjacency.pattern)
        return dataclasses.replace(self, adjacency=adjacency, relations=relations, **changes)

    def scaling(self, kind: str, *, structure: bool = False) -> Scaling:
        """The scaling of a kind, one of FEATURE_KINDS, as learned from this graph; with columns about its `structure`."""
        kind = "raw" if self.x_kind == "identity" else kind
        name = f"scaling {kind} {structure} {self.blocks}"
        if name not in self._derived:
            scaling = Scaling.learned(kind, self._raw_features(), self.blocks)
            if structure and self.x_kind != "identity":
                scaling = scaling.with_structure(self.structure_columns())
            self._derived[name] = scaling
        found: Scaling = self._derived[name]
        return found

    def structure_columns(self) -> np.ndarray:
        """What the place of each node in the graph says about it, raw: see `features.structure_columns`."""
        x = self._raw_features()
        filled = np.diff(x.indptr) if scipy.sparse.issparse(x) else (x != 0).sum(axis=1)
        return structure_columns(self.adjacency.to_scipy(), filled, self.directed)

    def with_features(self, kind: str | Scaling) -> Graph:
        """The same graph with its features scaled: see `Scaling`. Identity features stay what they are."""
        scaling = self.scaling(kind) if isinstance(kind, str) else kind
        if scaling.kind == "raw" and scaling.structure is None and self.x.dtype != torch.float16:
            return self
        name = f"features {scaling.kind}" + (f" {id(scaling)}" if scaling.arrays() else "")
        if name not in self._derived:  # once for all trainings on this graph
            columns = self.structure_columns() if scaling.num_added else None
            x = scaling.in_float32(self._raw_features(), columns, mapped=self.mapped)
            x = SparseMatrix.from_scipy(x) if scipy.sparse.issparse(x) else torch.from_numpy(x)
            self._derived[name] = scaling, x.to(self.device), {}
        _, x, derived = self._derived[name]
        return dataclasses.replace(self, x=x, blocks=scaling.blocks_of(x.shape[1]), _derived=derived)

    def _raw_features(self) -> Any:
        return self.x.to_scipy() if isinstance(self.x, SparseMatrix) else self.x.cpu().numpy()

    def edge_dot(self, u: Tensor | SparseMatrix, v: Tensor | SparseMatrix, weights: Tensor | None = None) -> Tensor:
        """Σ_d w_d u_id v_jd for each entry (i, j) of the adjacency, [E]; no [E, d] array is built.

        Sparse features go with themselves alone, `u is v`; their products are found once per graph.
        """
        if isinstance(u, Tensor) and isinstance(v, Tensor):
            return self.pattern.edge_dot(u if weights is None else u * weights, v)
        if u is not v or not isinstance(u, SparseMatrix):
            raise TypeError("sparse features have an edge_dot with themselves only: edge_dot(graph.x, graph.x)")
        if u is self.x and "products" not in self._derived:
            self._derived["products"] = u.row_products(self.pattern)
        products: SparseMatrix = self._derived["products"] if u is self.x else u.row_products(self.pattern)
        return products.row_sums() if weights is None else products @ weights

    def index_of(self, node_name: Hashable) -> int:
        """The position of a node. Text finds a node whose name prints the same: "17" finds 17."""
        index = self._name_index.get(node_name)
        if index is None and isinstance(node_name, str):
            index = self._printed_index.get(node_name)
        if index is not None:
            return index
        names = self.node_names
        hint = f"its nodes are {some(names)}"
        if isinstance(names, range):
            hint = f"its nodes are 0..{len(names) - 1}"
        elif kinds := of_another_kind(node_name, names):
            hint = kinds
        elif zeros := [name for name in self._printed_index if name.lstrip("0") == str(node_name).lstrip("0")][:3]:
            hint = f"did you mean {', '.join(zeros)}? Zeros in front belong to an id"
        elif close := similar(str(node_name), self._printed_index):
            hint = f"close to it: {', '.join(close)}"
        raise ValueError(f"graph {self.name!r} has no node {node_name!r}; {hint}")

    def positions_of(self, node_names: Sequence[Hashable]) -> np.ndarray:
        """The positions of nodes by their exact names, -1 where the graph has no such node."""
        found = self._name_index
        return np.array([found.get(name, -1) for name in node_names], dtype=np.int64)

    @cached_property
    def _name_index(self) -> dict[Hashable, int]:
        return {name: i for i, name in enumerate(self.node_names)}

    @cached_property
    def _printed_index(self) -> dict[str, int]:
        return {str(name): i for i, name in enumerate(self.node_names)}

    def content_hash(self, length: int = 16) -> str:
        """Hexadecimal digits over pattern, weights, features, labels and names; equal on every machine."""
        digest = hashlib.sha256()
        names = ["range", self.num_nodes] if isinstance(self.node_names, range) else [repr(n) for n in self.node_names]
        named = [] if self.relations is None else [self.relations.names]
        digest.update(json.dumps([self.directed, self.x_kind, list(self.class_names), names, *named]).encode())
        kinds = () if self.relations is None else self.relations.matrices
        for matrix in (self.adjacency, self.x, *kinds):
            if isinstance(matrix, SparseMatrix):
                digest.update(repr(matrix.shape).encode())
                for index in (matrix.pattern.rows.rowptr, matrix.pattern.col):
                    _update(digest, index.long())  # the same whether 32 bits were enough or not
            _update(digest, matrix.values if isinstance(matrix, SparseMatrix) else matrix)
        _update(digest, self.y)
        if self.time is not None:
            _update(digest, self.time)
        return digest.hexdigest()[:length]

    def to_scipy(self) -> scipy.sparse.csr_array:
        """The weights as a SciPy matrix whose entry [i, j] is the edge i → j."""
        matrix = self.adjacency.to_scipy()
        return matrix.T.tocsr() if self.directed else matrix

    def to_networkx(self, *, features: bool = False) -> Any:
        """A NetworkX Graph or DiGraph with edge attribute `weight` and, where known, node attribute `label`.

        Args:
            features: also give every node its row of x, dense, as attribute `x`.
        """
        import networkx

        graph = networkx.DiGraph(name=self.name) if self.directed else networkx.Graph(name=self.name)
        for name, label in zip(self.node_names, self.y.tolist(), strict=True):
            graph.add_node(name, **({"label": self.class_names[label]} if label >= 0 else {}))
        source, target, weight = self._edge_list()
        ends = ([self.node_names[i] for i in side.tolist()] for side in (source, target))
        graph.add_weighted_edges_from(zip(*ends, weight.tolist(), strict=True))
        if features:
            x = self.x.to_dense().cpu().numpy()
            networkx.set_node_attributes(graph, dict(zip(self.node_names, x, strict=True)), "x")
        return graph

    def to_pyg(self) -> Any:
        """A PyG `Data`; both directions of every undirected edge, sparse features as a sparse tensor."""
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise ImportError("to_pyg needs PyTorch Geometric: pip install 'gcn-lpa[pyg]'") from error

        x = self.x
        if isinstance(x, SparseMatrix):
            index = torch.stack([x.pattern.row, x.pattern.col]).long()
            x = torch.sparse_coo_tensor(index, x.values, x.shape, is_coalesced=True, check_invariants=False)
        data = Data(
            x=x,
            edge_index=torch.stack([self.col, self.row]).long(),
            edge_weight=self.adjacency.values,
            y=self.y,
            node_names=self.node_names,
            class_names=self.class_names,
        )
        if self.public is not None:
            data.train_mask, data.val_mask, data.test_mask = self.public.train, self.public.val, self.public.test
        return data

    def to_pandas(self) -> Any:
        """A DataFrame source, target, weight with node names; every undirected edge once."""
        import pandas

        source, target, weight = self._edge_list()
        names = pandas.Series(list(self.node_names))
        ends = {"source": names.iloc[source].to_numpy(), "target": names.iloc[target].to_numpy()}
        return pandas.DataFrame({**ends, "weight": weight})

    def _edge_list(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, target and weight of every edge; an undirected one once, from the smaller position."""
        target, source = self.row.cpu().numpy(), self.col.cpu().numpy()
        weight = self.adjacency.values.detach().cpu().numpy()
        if self.directed:
            return source, target, weight
        once = target <= source
        return target[once], source[once], weight[once]


def check_graph(graph: object) -> None:
    """A name in place of a graph is easily given; say what is wanted."""
    if not isinstance(graph, Graph):
        raise TypeError(f"graph is a gcn_lpa.Graph, such as load gives, not {graph!r:.40}; as_graph makes others one")


def _assemble(
    entries: scipy.sparse.coo_array,
    *,
    x: Any,
    y: Any,
    class_names: Iterable[str] | None,
    node_names: Sequence[Hashable],
    directed: bool,
    name: str,
    notes: list[str],
    weighted: bool = True,
) -> Graph:
    """A graph from checked entries [source, target]: merges duplicates, joins directions, checks x and y."""
    n = len(node_names)
    if n == 0:
        raise ValueError("the graph has no nodes")
    matrix = merged_edges(entries, weighted=weighted, directed=directed)
    adjacency = SparseMatrix.from_scipy(float32_weights(matrix))
    features, x_kind = node_features(x, matrix)
    labels, classes = node_labels(y, node_names, class_names)
    graph = Graph(adjacency, features, labels, classes, node_names, name, directed, (), x_kind)
    stands_in = STAND_IN_NOTES[x_kind] if x is None or isinstance(x, str) else ()
    merged = _merge_note(entries.nnz, graph, weighted)
    return dataclasses.replace(graph, notes=(*notes, *alike_names(node_names), *merged, *stands_in))


def _merge_note(num_rows: int, graph: Graph, weighted: bool) -> list[str]:
    once = graph.num_edges + graph.num_self_loops
    if num_rows == once or (num_rows == graph.adjacency.num_entries and not graph.directed):
        return []
    summed = "weights summed" if graph.directed else "weights summed, of both directions the larger"
    return [f"{num_rows:,} edge rows merged into {once:,} edges, {summed if weighted else 'each of weight 1'}"]


def _arrow(names: Sequence[Hashable], source: int, target: int) -> str:
    return f"{names[source]!r} → {names[target]!r}"


def _update(digest: Any, tensor: Any) -> None:
    array = tensor.detach().cpu().numpy()
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array)
