"""The one data object: a graph with raw features and labels, and its splits.

Formats end here. A `Graph` is never changed: `reveal`, `with_self_loops`, `with_features`, `to` return a new one. The adjacency and
the features are as given; self-loops are added and features normalised when a model is fitted.

In a directed graph the edge source → target carries messages to the target: it is the entry [target, source].
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data import constructors
from gcn_lpa.data.checks import node_mask, of_another_kind, similar, some
from gcn_lpa.data.constructors import DIRECTIONS, EdgeTypes, loops_added
from gcn_lpa.data.describe import homophily, html_notes, html_table
from gcn_lpa.data.scaling import Block, Scaling, structural_features
from gcn_lpa.data.splits import Split
from gcn_lpa.engine.sparse import Pattern, SparseMatrix
from gcn_lpa.regression import Numbers
from gcn_lpa.target import Classes, Target

if TYPE_CHECKING:
    from gcn_lpa.data.edge_columns import EdgeColumns, EdgeFunctions
    from gcn_lpa.data.encoders import Columns

T = TypeVar("T")
MOST_CLASSES = 20  # whose sizes a notebook shows


@dataclass(eq=False)
class Derived:
    """Results computed from edges and features, once for all graphs that share them and differ in labels.

    `dataclasses.replace` hands it on; `Graph` begins a new one where `parts` differ from those of the graph.
    """

    parts: tuple[object, ...] = ()  # adjacency, x, edge types, edge columns
    results: dict[Any, Any] = field(default_factory=dict)
    before: Derived | None = None  # of the graph before features were scaled or self-loops added

    @property
    def first(self) -> Derived:
        """Of the graph as it was read."""
        return self if self.before is None else self.before.first


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph whose nodes have features and, some of them, a label.

    Build one with `from_edges`, `from_scipy`, `from_networkx` or `from_pyg`, or with `gcn_lpa.load`:
    those check what they are given; the constructor trusts its caller.
    """

    adjacency: SparseMatrix  # [n, n] float32, positive weights; entry [i, j] brings j's message to i
    x: Tensor | SparseMatrix  # raw features, [n, d]
    y: Tensor  # class of each node, -1 where unknown, [n] int64; or its number, NaN where unknown, [n] float64
    class_names: tuple[str, ...] = ()
    node_names: Sequence[Hashable] = ()
    name: str = "graph"
    directed: bool = False
    notes: tuple[str, ...] = ()  # how the input was read, and warnings about it
    x_kind: str = "given"  # or "identity", "degree": the stand-in where the input has no features
    published: tuple[Split, ...] = ()  # the splits that were published with the data
    blocks: tuple[Block, ...] = ()  # the kinds of the columns of x; (): unknown, see `scaling.inferred_kind`
    columns: Columns | None = None  # the encoding of each column of a table of nodes
    time: Tensor | None = None  # when each node came, float64 [n]; only the order matters
    edge_types: EdgeTypes | None = None  # the edges of each type, where they have types
    edge_columns: EdgeColumns | None = None  # the edges as they were listed, with what their columns say
    mapped: bool = False  # whether dense features are a memory-mapped file
    numbers: Numbers | None = None  # where labels are numbers: the scale that y is on
    _derived: Derived = field(default_factory=Derived)

    from_edges = classmethod(constructors.from_edges)
    from_scipy = classmethod(constructors.from_scipy)
    from_networkx = classmethod(constructors.from_networkx)
    from_pyg = classmethod(constructors.from_pyg)
    to_scipy = constructors.to_scipy
    to_networkx = constructors.to_networkx
    to_pyg = constructors.to_pyg
    to_pandas = constructors.to_pandas

    def __post_init__(self) -> None:
        parts = self.adjacency, self.x, self.edge_types, self.edge_columns
        if not self._derived.parts:
            self._derived.parts = parts
        elif any(was is not now for was, now in zip(self._derived.parts, parts, strict=True)):
            object.__setattr__(self, "_derived", Derived(parts))

    def __repr__(self) -> str:
        stored = "sparse features" if isinstance(self.x, SparseMatrix) else "features"
        parts = [
            f"{self.num_nodes:,} nodes",
            f"{self.num_edges:,} {'directed' if self.directed else 'undirected'} edges",
            *([f"{len(self.edge_types.names)} edge types"] if self.edge_types is not None else []),
            *([f"{self.num_self_loops:,} self-loops"] if self.num_self_loops else []),
            f"{self.num_features:,} {stored}{'' if self.x_kind == 'given' else f' ({self.x_kind})'}",
            f"{self.num_classes:,} classes" if self.numbers is None else str(self.numbers),
            f"{int(self.labeled.sum()):,} nodes labelled",
        ]
        return "\n  ".join([f"Graph {self.name!r}: {', '.join(parts)}", *self.notes])

    def _repr_html_(self) -> str:
        """The same as a table, with homophily and the size of each class, for notebooks."""
        rows = [part.split(" ", 1)[::-1] for part in repr(self).partition("\n")[0].partition(": ")[2].split(", ")]
        sizes = [int((self.y == k).sum()) for k in range(min(self.num_classes, MOST_CLASSES))]
        rows += [[f"of class {name}", f"{n:,}"] for name, n in zip(self.class_names, sizes, strict=False)]
        rows.append(["homophily", str(homophily(self))])
        return html_table(f"Graph {self.name!r}", rows) + html_notes(self.notes)

    def __sklearn_clone__(self) -> Graph:
        return self  # never changed, so an estimator and its clones can share it

    @property
    def num_nodes(self) -> int:
        return self.adjacency.shape[0]

    @cached_property
    def num_self_loops(self) -> int:
        return int(np.count_nonzero(self.adjacency.to_scipy().diagonal()))  # no row number for each entry

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
    def target(self) -> Target:
        return self.numbers or Classes(self.class_names)

    @property
    def pattern(self) -> Pattern:
        return self.adjacency.pattern

    @property
    def row(self) -> Tensor:
        """The receiving node of each entry of the adjacency, [E]."""
        return self.pattern.row

    @property
    def col(self) -> Tensor:
        """The sending node of each entry of the adjacency, [E]."""
        return self.pattern.col

    @cached_property
    def labeled(self) -> Tensor:
        return self.target.known(self.y)

    @property
    def device(self) -> torch.device:
        return self.y.device

    def to(self, device: torch.device | str) -> Graph:
        y = self.y.to(device)
        if y is self.y:  # it is there already
            return self
        types = None if self.edge_types is None else self.edge_types.to(device)
        columns = None if self.edge_columns is None else self.edge_columns.to(device)
        adjacency, x = self.adjacency.to(device), self.x.to(device)
        return dataclasses.replace(self, adjacency=adjacency, x=x, y=y, edge_types=types, edge_columns=columns)

    def reveal(self, mask: Tensor) -> Graph:
        """The same graph with the labels of the nodes in `mask` only; all others are unknown."""
        if mask.dtype != torch.bool or mask.shape != self.y.shape:
            raise ValueError(f"a mask is boolean, [{self.num_nodes}], not {mask.dtype} {list(mask.shape)}")
        return dataclasses.replace(self, y=torch.where(mask.to(self.device), self.y, self.target.unknown))

    def labeled_by(self, y: Tensor, target: Target, **changes: Any) -> Graph:
        """The same graph with other labels, those of a target, [n]."""
        changes = {"y": y.to(self.device), "class_names": target.names, "numbers": target.scale, **changes}
        return dataclasses.replace(self, **changes)

    def subgraph(self, nodes: Any) -> Graph:
        """The nodes of a mask or of positions, under their names, and the edges between them; on the CPU."""
        mask = node_mask(nodes, self.num_nodes)
        rows = mask.nonzero().squeeze(1).numpy()
        x: Tensor | SparseMatrix
        if self.x_kind == "identity":
            x = SparseMatrix.identity(len(rows))
        elif isinstance(self.x, SparseMatrix):
            x = SparseMatrix.from_scipy(self.x.to_scipy()[rows])
        else:
            x = self.x.cpu()[mask]
        return dataclasses.replace(
            self,
            adjacency=SparseMatrix.from_scipy(self.adjacency.to_scipy()[rows][:, rows]),
            x=x,
            y=self.y.cpu()[mask],
            node_names=[self.node_names[i] for i in rows.tolist()],
            published=(),
            time=None if self.time is None else self.time[mask],
            edge_types=None if self.edge_types is None else self.edge_types.between(rows),
            edge_columns=None if self.edge_columns is None else self.edge_columns.between(rows, self.num_nodes),
        )

    def with_self_loops(self) -> Graph:
        """The same graph with a self-loop of weight 1 at every node that has none."""
        results = self._derived.results
        if "loops" not in results:
            types = None if self.edge_types is None else self.edge_types.with_self_loops()
            results["loops"] = *loops_added(self.adjacency), types, Derived(before=self._derived)
        adjacency, count, types, derived = results["loops"]
        if not count and types is self.edge_types:
            return self
        notes = (*self.notes, *([f"self-loops of weight 1 added to {count:,} nodes"] if count else []))
        return dataclasses.replace(self, adjacency=adjacency, edge_types=types, notes=notes, _derived=derived)

    def with_adjacency(self, adjacency: SparseMatrix, **changes: Any) -> Graph:
        """The same nodes with other weights, or with some of the edges; `changes` are other fields."""
        types = None if self.edge_types is None else self.edge_types.within(adjacency.pattern)
        return dataclasses.replace(self, adjacency=adjacency, edge_types=types, **changes)

    def weighed(self, levels: Tensor) -> Graph:
        """The same graph whose edges have the weights A ∘ M that functions of their columns give, [functions.width].

        Edges of one type come to be the columns where there are no others. Its features stay those of the given edges.
        """
        columns = self.with_type_column().edge_columns
        if columns is None:
            raise ValueError(f"the model weighs edges by their columns, but the edges of {self.name!r} have none")
        self.structural_features_of_edges()  # of the given edges, for all that comes of this graph
        with torch.no_grad():
            mask = columns.log_mask(self.pattern, levels.to(self.device)).exp()
        adjacency, derived = self.adjacency.with_values(self.adjacency.values * mask), Derived(before=self._derived)
        return dataclasses.replace(self, adjacency=adjacency, edge_columns=None, _derived=derived)

    def without_idle(self, levels: Tensor) -> Graph:
        """The same graph without the edges that stand aside by functions of their columns, [functions.width].

        Aside, they stay at nodes without any other, where they together weigh what the telling edges of a node do on average.
        """
        columns = self.with_type_column().edge_columns
        if columns is None or not (idle := columns.idle(levels)).any():
            return self
        results, key = self._derived.results, ("without idle", tuple(levels.tolist()))
        if key not in results:
            shares, has_none = columns.shares(self.pattern)
            listed = shares.with_values(columns.weight.index_select(0, shares.pattern.col.long()).to(shares.dtype))
            telling = torch.minimum(listed @ (~idle).to(shares.device, shares.dtype), self.adjacency.values)
            joins, names, ratio = self.row != self.col, *columns.functions.idle(levels)
            alone = (self.pattern.row_sum(telling * joins) == 0).float()
            aside = self.pattern.spread_rows(alone) + (0 if self.directed else self.pattern.spread_cols(alone))
            rest = self.adjacency.values * torch.where(has_none > 0, 1.0, ratio * (aside * joins > 0))
            values = torch.where(telling > 0, telling, rest)
            adjacency = SparseMatrix(self.pattern.within(values > 0), values[values > 0])
            types = None if self.edge_types is None else self.edge_types.without(names)
            types = None if types is None else types.within(adjacency.pattern)
            results[key] = adjacency, columns.of(~idle), types, Derived()
        adjacency, columns, types, derived = results[key]
        return dataclasses.replace(self, adjacency=adjacency, edge_columns=columns, edge_types=types, _derived=derived)

    def with_type_column(self, functions: EdgeFunctions | None = None) -> Graph:
        """The same graph, whose edges have a column that says their type if they have types and no columns.

        Args:
            functions: as they were learned of the types of another graph; one that they do not know is refused.
        """
        if self.edge_columns is not None or self.edge_types is None or self.edge_types.names == DIRECTIONS:
            return self
        first = self._derived.first  # without added self-loops, which are of no type
        key = "type column", None if functions is None else functions.each
        if key not in first.results:
            from gcn_lpa.data.edge_columns import EdgeColumns  # which reads tables: few graphs need it

            first.results[key] = EdgeColumns.of_types(cast(EdgeTypes, first.parts[2]), functions, directed=self.directed)
        return dataclasses.replace(self, edge_columns=first.results[key])

    def scaling(self, kind: str, *, structure: bool = False) -> Scaling:
        """The scaling of a kind, one of FEATURE_KINDS, as learned from this graph; with structural features."""
        kind, structure = ("raw", False) if self.x_kind == "identity" else (kind, structure)

        def learned() -> Scaling:
            scaling = Scaling.learned(kind, self._raw_features(), self.blocks)
            return scaling.with_structure(self.structural_features()) if structure else scaling

        return self.once((kind, structure, self.blocks), learned)

    def with_features(self, kind: str | Scaling) -> Graph:
        """The same graph with its features scaled: see `Scaling`. Identity features stay what they are."""
        scaling = self.scaling(kind) if isinstance(kind, str) else kind
        if scaling.kind == "raw" and scaling.structure is None and self.x.dtype != torch.float16:
            return self
        results, key = self._derived.results, scaling if scaling.arrays() else scaling.kind
        if key not in results:  # once for all trainings on this graph
            structural = self.structural_features() if scaling.num_added else None
            array = scaling.in_float32(self._raw_features(), structural, mapped=self.mapped)
            x = SparseMatrix.from_scipy(array) if scipy.sparse.issparse(array) else torch.from_numpy(array)
            results[key] = x.to(self.device), Derived(before=self._derived)
        x, derived = results[key]
        return dataclasses.replace(self, x=x, blocks=scaling.blocks_of(x.shape[1]), _derived=derived)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """A result of edges and features alone, computed once for all graphs that share them and differ in labels."""
        results = self._derived.results
        if key not in results:
            results[key] = compute()
        return cast(T, results[key])

    def structural_features(self) -> np.ndarray:
        """Degrees, PageRank and numbers of filled cells, raw: see `data.structural_features`, [n, s]."""

        def compute() -> np.ndarray:
            x = self._raw_features()
            num_cells = np.diff(x.indptr) if scipy.sparse.issparse(x) else (x != 0).sum(axis=1)
            return structural_features(self.adjacency.to_scipy(), self.directed, num_cells)

        return self.once("structure", compute)

    def structural_features_of_edges(self) -> Tensor:
        """Those that need no features, degrees and PageRank, of the graph as it was read: raw, float32, [n, s]."""
        derived = self._derived.first
        if "structure of edges" not in derived.results:
            columns = structural_features(self.adjacency.to_scipy(), self.directed)
            derived.results["structure of edges"] = torch.from_numpy(columns.astype(np.float32))
        return cast(Tensor, derived.results["structure of edges"]).to(self.device)

    def with_structural_features(self, columns: np.ndarray) -> Graph:
        """The same graph with these structural features, [n, s], in place of those that its edges would give."""
        of_edges = torch.from_numpy(columns[:, :-2].astype(np.float32))
        results = {"structure": columns, "structure of edges": of_edges}
        return dataclasses.replace(self, _derived=Derived(results=results))

    def _raw_features(self) -> Any:
        return self.x.to_scipy() if isinstance(self.x, SparseMatrix) else self.x.cpu().numpy()

    def feature_dot(self, weights: Tensor) -> Tensor:
        """Σ_d w_d x_id x_jd for each entry (i, j) of the adjacency, [E]; no [E, d] array is built."""
        if isinstance(self.x, Tensor):
            return self.pattern.edge_dot(self.x * weights, self.x)
        if "products" not in self._derived.results:
            self._derived.results["products"] = self.x.row_products(self.pattern)
        return cast(SparseMatrix, self._derived.results["products"]) @ weights

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
        return np.array([self._name_index.get(name, -1) for name in node_names], dtype=np.int64)

    @cached_property
    def _name_index(self) -> dict[Hashable, int]:
        return {name: i for i, name in enumerate(self.node_names)}

    @cached_property
    def _printed_index(self) -> dict[str, int]:
        return {str(name): i for i, name in enumerate(self.node_names)}

    def content_hash(self, length: int = 16) -> str:
        """Hexadecimal digits of all that was read: edges, features, labels, names, encodings. Equal on every machine."""
        return self._content[:length]

    @cached_property
    def _content(self) -> str:
        digest = hashlib.sha256()
        names = ["range", self.num_nodes] if isinstance(self.node_names, range) else [repr(n) for n in self.node_names]
        facts: list[Any] = [self.directed, self.x_kind, list(self.class_names), names]
        facts += [] if self.edge_types is None else [self.edge_types.names]
        facts += [] if self.columns is None else [self.columns.to_json()]
        facts += [[block.kind, block.start, block.stop] for block in self.blocks]
        digest.update(json.dumps(facts).encode())
        facts_of_edges = [] if self.edge_columns is None else [self.edge_columns.functions.to_json()]
        digest.update(json.dumps(facts_of_edges).encode() if facts_of_edges else b"")
        for part in () if self.edge_columns is None else self.edge_columns.parts():
            _update(digest, part)
        types = () if self.edge_types is None else self.edge_types.matrices
        for matrix in (self.adjacency, self.x, *types):
            if isinstance(matrix, SparseMatrix):
                digest.update(repr(matrix.shape).encode())
                for index in (matrix.pattern.rowptr, matrix.pattern.col):
                    _update(digest, index.long())  # the same whether 32 bits were enough or not
            _update(digest, matrix.values if isinstance(matrix, SparseMatrix) else matrix)
        _update(digest, self.y)
        if self.time is not None:
            _update(digest, self.time)
        return digest.hexdigest()


def check_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"graph is a gcn_lpa.Graph, such as load gives, not {graph!r:.40}; as_graph makes others one")


def _update(digest: Any, tensor: Any) -> None:
    array = tensor.detach().cpu().numpy()
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array)
