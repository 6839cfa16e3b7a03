"""What a caller hands in, checked at the door: ids, weights, features and labels in any shape a user has them.

Every refusal says which edge, node, row or column is wrong, with the value, and what would be right.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix

DOUBT = "check: "  # begins a note on what may not be meant; commands that train say it before they do
LONGEST_NAME = 100  # characters of a name that others are compared with
FLOAT32_MAX = float(np.finfo(np.float32).max)
STAND_IN_NOTES = {
    "identity": ("no features: the identity matrix stands in",),
    "degree": ("no features: one-hot ⌊log2(1 + degree)⌋ stands in",),
}


@dataclass(frozen=True)
class Ends:
    """Edges as two columns of ids."""

    source: Any
    target: Any


@dataclass(frozen=True)
class Positions:
    """Edges as two columns of positions among the node names, found by the caller."""

    source: np.ndarray
    target: np.ndarray


def edge_ends(edges: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two columns of a list of pairs: int64 where all ids are integers that fit, else objects."""
    if isinstance(edges, Positions):
        return edges.source, edges.target
    if isinstance(edges, Ends):
        return _ids(edges.source, "source"), _ids(edges.target, "target")
    if isinstance(edges, Tensor):
        edges = edges.detach().cpu().numpy()
    if isinstance(edges, np.ndarray):
        if edges.size == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if edges.ndim != 2 or edges.shape[1] != 2:
            hint = "; PyG's [2, E] goes in as edge_index.T" if edges.ndim == 2 and edges.shape[0] == 2 else ""
            raise ValueError(f"edges are pairs (source, target), [E, 2], not {list(edges.shape)}{hint}")
        return _ids(edges[:, 0], "source"), _ids(edges[:, 1], "target")
    pairs = list(edges)
    for i, pair in enumerate(pairs):
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise ValueError(f"edge {i} is {pair!r}, not a pair (source, target); weights go into weights=")
    return _ids([pair[0] for pair in pairs], "source"), _ids([pair[1] for pair in pairs], "target")


def _ids(column: Any, side: str) -> np.ndarray:
    """One column of ids as int64, or as an object array of hashables; missing ids are refused."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and (len(column) == 0 or int(column.max()) < 2**63):
        return column.astype(np.int64)
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    for i, value in enumerate(values):
        if type(value) is str:
            continue
        if is_missing(value):
            raise ValueError(f"edge {i} has no {side}: {value!r}")
        if isinstance(value, np.generic):
            value = values[i] = value.item()
        if isinstance(value, float):
            if not value.is_integer():
                raise ValueError(f"edge {i} has {side} {value!r}; a node id is an integer, text or another exact value")
            values[i] = int(value)
        elif isinstance(value, Tensor) or not isinstance(value, Hashable):
            raise TypeError(f"edge {i} has {side} {value!r} of type {type(value).__name__}, which cannot be a node id")
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return np.asarray(values, dtype=np.int64)
    ids = np.empty(len(values), dtype=object)
    ids[:] = values
    return ids


def is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas' NA."""
    if type(value) is str:
        return False
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def are_integers(source: np.ndarray, target: np.ndarray) -> bool:
    return all(side.dtype != object or all(type(value) is int for value in side) for side in (source, target))


def stated_size(num_nodes: int | None, x: Any, y: Any) -> tuple[int, str] | None:
    """The number of nodes that num_nodes, the rows of x and the length of y agree on, and a phrase that says so."""
    sizes = {"num_nodes is": num_nodes, "the rows of x are": _num_rows(x), "the labels in y are": _num_rows(y)}
    stated = [(size, f"{origin} {size}") for origin, size in sizes.items() if size is not None]
    if len({size for size, _ in stated}) > 1:
        raise ValueError(f"the number of nodes is not clear: {', '.join(phrase for _, phrase in stated)}")
    return stated[0] if stated else None


def _num_rows(array: Any) -> int | None:
    if array is None or isinstance(array, (str, Mapping)):
        return None
    return int(array.shape[0]) if hasattr(array, "shape") else len(array)


def in_range(source: np.ndarray, target: np.ndarray, n: int, origin: str) -> tuple[np.ndarray, np.ndarray]:
    """Both columns as positions 0..n-1; `origin` is the phrase that says why there are n nodes."""
    for side, ids in (("starts at", source), ("points to", target)):
        wrong = np.flatnonzero((ids < 0) | (ids >= n))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(f"edge {i} {side} node {ids[i]}, but {origin}; ids other than 0..{n - 1} need node_names=")
    return source.astype(np.int64), target.astype(np.int64)


def unique_names(names: Iterable[Hashable]) -> Sequence[Hashable]:
    """Names, each once; a `range` where they are 0..n-1."""
    if isinstance(names, range) and names == range(len(names)):
        return names
    values = names.tolist() if isinstance(names, (np.ndarray, Tensor)) else list(names)
    if set(map(type, values)) == {str} and len(set(values)) == len(values):
        return tuple(values)
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    first: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if is_missing(value):
            raise ValueError(f"node {i} has no name: {value!r}")
        if not isinstance(value, Hashable):
            raise TypeError(f"node {i} is named {value!r} of type {type(value).__name__}, which cannot be a node id")
        if first.setdefault(value, i) != i:
            raise ValueError(f"nodes {first[value]} and {i} have the same name {value!r}")
    if all(type(value) is int and value == i for i, value in enumerate(values)):
        return range(len(values))
    return tuple(values)


def of_another_kind(value: Hashable, names: Iterable[Hashable]) -> str:
    """A hint where a name prints like `value` but is of another type, such as 1 and "1"; else nothing."""
    twin = next((name for name in names if type(name) is not type(value) and str(name) == str(value)), None)
    return (
        ""
        if twin is None
        else f"{value!r} is {_kind(value)}, {twin!r} is {_kind(twin)}: ids are of one kind everywhere"
    )


def alike_names(names: Sequence[Hashable]) -> list[str]:
    """A note where two nodes have names that print the same, such as 1 and "1"."""
    if isinstance(names, range) or len(set(map(type, names))) < 2:
        return []
    printed: dict[str, Hashable] = {}
    for name in names:
        if (other := printed.setdefault(str(name), name)) is not name:
            kinds = f"{other!r} ({_kind(other)}) and {name!r} ({_kind(name)})"
            return [f"{DOUBT}{kinds} are two nodes; are ids of both kinds meant?"]
    return []


def _kind(value: Hashable) -> str:
    return "text" if isinstance(value, str) else "a number" if isinstance(value, int) else f"a {type(value).__name__}"


def names_from_ids(
    source: np.ndarray, target: np.ndarray, more: Iterable[Hashable]
) -> tuple[Sequence[Hashable], np.ndarray, np.ndarray]:
    """The ids that occur, as names, and both columns as positions among them."""
    extra = list(more)
    if source.dtype != object and target.dtype != object and all(type(value) is int for value in extra):
        both = np.concatenate([source, target, np.asarray(extra, dtype=np.int64)])
        unique, positions = np.unique(both, return_inverse=True)
        return unique_names(unique), positions[: len(source)], positions[len(source) : 2 * len(source)]
    seen = dict.fromkeys([*source.tolist(), *target.tolist(), *extra])
    try:
        names = unique_names(sorted(seen))
    except TypeError:
        names = unique_names(seen)  # ids of mixed types have no order: as they first occur
    return names, *positions_of(source, target, names, "the graph")


def positions_of(
    source: np.ndarray, target: np.ndarray, names: Sequence[Hashable], origin: str
) -> tuple[np.ndarray, np.ndarray]:
    index = {name: i for i, name in enumerate(names)}
    found = []
    for side, ids in (("starts at", source), ("points to", target)):
        values = ids.tolist()
        positions = np.fromiter((index.get(value, -1) for value in values), dtype=np.int64, count=len(ids))
        missing = np.flatnonzero(positions < 0)
        if len(missing):
            i = int(missing[0])
            hint = of_another_kind(values[i], names) or some(names)
            raise ValueError(f"edge {i} {side} node {values[i]!r}, which {origin} does not hold ({hint})")
        found.append(positions)
    return found[0], found[1]


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed}; it is at least 0 and less than 2**63")


def similar(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that a text may be misspelt for, of the first 2,000 about as long; a long text has none."""
    if len(text) > LONGEST_NAME:
        return []
    alike = (name for name in names if abs(len(name) - len(text)) <= 3)
    return difflib.get_close_matches(text, itertools.islice(alike, 2_000), n=3)


def meant(text: object, names: Iterable[str]) -> str:
    """What a misspelt name may be meant for, to end a sentence with; else nothing."""
    close = similar(str(text), names)
    return f"; did you mean {close[0]}?" if close else ""


def written_alike(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that are the text but for case, zeros in front, a .0 behind or blanks: spreadsheets change those."""

    def bare(name: str) -> str:
        return name.strip().casefold().removesuffix(".0").lstrip("0")

    return list(itertools.islice((name for name in names if bare(name) == bare(text)), 3))


def some(values: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(f"{value!r:.80}" for value in values[:most])
    return shown if len(values) <= most else f"{shown}, … {len(values):,} in all"


def edge_weights(weights: Any, num_edges: int, edge: Callable[[int], str]) -> np.ndarray:
    """Positive, finite weights in float64; `edge(i)` names the edge in the error."""
    if weights is None:
        return np.ones(num_edges)
    values = _array(weights)
    if values.shape != (num_edges,):
        raise ValueError(f"weights has shape {list(values.shape)} for {num_edges} edges")
    numbers = values.astype(np.float64) if values.dtype.kind in "fiub" else _numbers(values)
    wrong = np.flatnonzero(~((numbers > 0) & (numbers <= FLOAT32_MAX)))
    if len(wrong):
        i = int(wrong[0])
        shown = values[i].item() if isinstance(values[i], np.generic) else values[i]
        raise ValueError(f"{edge(i)} has weight {shown!r}; a weight is positive and finite (leave the edge out for 0)")
    return numbers


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)


def _numbers(values: np.ndarray) -> np.ndarray:
    """Objects as float64, NaN where one is not a number."""
    numbers = np.full(len(values), np.nan)
    for k, value in enumerate(values.tolist()):
        if isinstance(value, int) and abs(value) > FLOAT32_MAX:
            numbers[k] = math.inf  # float() itself refuses integers beyond 64-bit floats
        elif isinstance(value, (int, float, np.integer, np.floating)):
            numbers[k] = float(value)
    return numbers


def float32_weights(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    with np.errstate(over="ignore", under="ignore"):
        values = matrix.data.astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(wrong):
        raise ValueError(f"weight {matrix.data[wrong[0]]} is beyond 32-bit floats; scale the weights")
    return scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def node_features(x: Any, adjacency: scipy.sparse.csr_array) -> tuple[Tensor | SparseMatrix, str]:
    """Features as float32, dense or sparse as given, every number finite; and where they come from."""
    if x is None or (isinstance(x, str) and x == "identity"):
        return SparseMatrix.identity(adjacency.shape[0]), "identity"
    if isinstance(x, str):
        if x != "degree":
            raise ValueError(f"x is {x!r}; without features of your own it is 'identity' or 'degree'")
        return _degree_features(adjacency), "degree"
    array = _feature_array(x)
    if array.ndim != 2 or array.shape[0] != adjacency.shape[0] or array.shape[1] == 0:
        raise ValueError(f"features are [{adjacency.shape[0]}, d], a row per node; x is {list(array.shape)}")
    if isinstance(array, np.ndarray):
        values = _float32_features(array.reshape(-1), lambda k: divmod(k, array.shape[1]))
        return torch.from_numpy(values).view(array.shape), "given"
    row, col = array.coords
    values = _float32_features(array.data, lambda k: (row[k], col[k]))
    matrix = scipy.sparse.coo_array((values, (row, col)), shape=array.shape).tocsr()
    matrix.eliminate_zeros()
    features = SparseMatrix.from_scipy(matrix)
    return features, "identity" if features.pattern.is_identity and bool((features.values == 1).all()) else "given"


def _feature_array(x: Any) -> Any:
    """Features as a NumPy array where they are dense, as a SciPy COO array where they are sparse."""
    if isinstance(x, SparseMatrix):
        x = x.to_scipy()
    elif isinstance(x, Tensor) and x.layout != torch.strided:
        x = x.detach().cpu().to_sparse_coo().coalesce()
        return scipy.sparse.coo_array((x.values().numpy(), x.indices().numpy()), shape=tuple(x.shape))
    if scipy.sparse.issparse(x):
        return scipy.sparse.coo_array(x)
    if isinstance(x, (list, tuple)) and len({len(row) for row in x if hasattr(row, "__len__")}) > 1:
        raise ValueError(f"the rows of x have different lengths: {sorted({len(row) for row in x})}")
    return _array(x)


def _float32_features(values: np.ndarray, place: Callable[[int], tuple[int, int]]) -> np.ndarray:
    """A float32 copy in which every number is finite; `place(k)` gives the row and column for the error."""
    numbers = values if values.dtype.kind in "fiub" else _numbers(values)
    with np.errstate(over="ignore"):
        result = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(result))
    if len(wrong):
        row, column = place(int(wrong[0]))
        value = values[wrong[0]]
        shown = value.item() if isinstance(value, np.generic) else value
        raise ValueError(f"x has {shown!r} in row {row}, column {column}; features are finite 32-bit floats")
    return result


def _degree_features(adjacency: scipy.sparse.csr_array) -> SparseMatrix:
    """One column per doubling of the degree: survives row normalisation and carries over to other graphs."""
    n = adjacency.shape[0]
    degree = np.diff(adjacency.indptr) - (adjacency.diagonal() != 0)
    bucket = np.frexp(1.0 + degree)[1] - 1
    matrix = scipy.sparse.csr_array((np.ones(n), bucket, np.arange(n + 1)), shape=(n, int(bucket.max()) + 1))
    return SparseMatrix.from_scipy(matrix)


def node_labels(
    y: Any, node_names: Sequence[Hashable], class_names: Iterable[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Class positions, -1 where unknown, and the class names: given ones, or those that occur, sorted."""
    names = None if class_names is None else tuple(map(str, class_names))
    if names is not None and len(set(names)) != len(names):
        raise ValueError(f"class_names repeats {next(name for name in names if names.count(name) > 1)!r}")
    n = len(node_names)
    if isinstance(y, Mapping):
        strange = y.keys() - set(node_names)
        if strange:
            node = next(node for node in y if node in strange)
            hint = of_another_kind(node, node_names) or some(node_names)
            raise ValueError(f"y labels node {node!r}, which the graph does not hold ({hint})")
        y = [y.get(node) for node in node_names]
    if y is None:
        return torch.full((n,), -1), names or ()
    values = _label_values(y, n, node_names)
    if values.dtype != object:
        return _integer_labels(values, names, node_names)
    return _text_labels(values, names, node_names)


def _label_values(y: Any, n: int, node_names: Sequence[Hashable]) -> np.ndarray:
    """Labels as int64 with -1 for unknown, or as objects: text, with None for unknown."""
    if isinstance(y, (list, tuple)):
        values = np.empty(len(y), dtype=object)  # np.asarray would make text of a 1 beside an "a"
        values[:] = y
    else:
        values = _array(y)
    if values.size == n and values.ndim == 2:  # a column
        values = values.reshape(n)
    if values.shape != (n,):
        raise ValueError(f"labels are one per node, [{n}]; y is {list(values.shape)}")
    if values.dtype.kind == "i":
        return values.astype(np.int64)
    if set(map(type, values)) == {str, type(None)}:  # as of a file, and of millions of nodes
        texts = values.copy()
        texts[values == ""] = None
        return texts
    labels = [_label(value, node_names[i]) for i, value in enumerate(values.tolist())]
    if all(label is None or (type(label) is int and abs(label) < 2**63) for label in labels):
        return np.asarray([-1 if label is None else label for label in labels], dtype=np.int64)
    meaning: dict[str, Any] = {}
    texts = np.empty(n, dtype=object)
    for i, label in enumerate(labels):
        if label is not None and not (type(label) is int and label == -1):
            texts[i] = str(label)
            if meaning.setdefault(texts[i], label) != label:
                raise ValueError(f"labels {meaning[texts[i]]!r} and {label!r} have one name; give all of them as text")
    return texts


def _label(value: Any, node: Hashable) -> int | str | None:
    """An integer, text or boolean; None where it is missing."""
    if is_missing(value) or (isinstance(value, str) and value == ""):
        return None
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.str_)):
        return value.item()
    raise ValueError(f"label {value!r} of node {node!r} is not a class; labels are integers, text or booleans")


def _integer_labels(
    values: np.ndarray, names: tuple[str, ...] | None, node_names: Sequence[Hashable]
) -> tuple[Tensor, tuple[str, ...]]:
    wrong = np.flatnonzero(values < -1)
    if len(wrong):
        raise ValueError(f"label {values[wrong[0]]} of node {node_names[wrong[0]]!r} is negative; unknown is -1")
    if names is not None:
        beyond = np.flatnonzero(values >= len(names))
        if len(beyond):
            i = int(beyond[0])
            raise ValueError(f"label {values[i]} of node {node_names[i]!r} is beyond the {len(names)} class_names")
        return torch.from_numpy(values), names
    classes = np.unique(values[values >= 0])
    positions = np.where(values >= 0, np.searchsorted(classes, values), -1)
    return torch.from_numpy(positions), tuple(map(str, classes.tolist()))


def _text_labels(
    values: np.ndarray, names: tuple[str, ...] | None, node_names: Sequence[Hashable]
) -> tuple[Tensor, tuple[str, ...]]:
    if names is None:
        occurring = {value for value in values if value is not None}
        names = tuple(sorted(occurring, key=_natural_order(occurring)))
    index = {name: i for i, name in enumerate(names)}
    for i, value in enumerate(values):
        if value is not None and value not in index:
            raise ValueError(f"label {value!r} of node {node_names[i]!r} is not among the class_names {some(names)}")
    return torch.tensor([-1 if value is None else index[value] for value in values], dtype=torch.int64), names


def _natural_order(texts: set[str]) -> Any:
    """Numbers written as text sort as numbers, so that class "10" does not come before "2"."""
    are_numbers = all(text.isascii() and text.lstrip("-").isdigit() for text in texts)
    return (lambda text: (int(text), text)) if are_numbers else None


def networkx_features(graph: Any, features: str | Sequence[str] | None) -> Any:
    if features is None:
        return None
    attributes = [features] if isinstance(features, str) else list(features)
    for node, data in graph.nodes(data=True):
        for attribute in attributes:
            if attribute not in data:
                raise ValueError(f"node {node!r} has no attribute {attribute!r}; every node needs its features")
    columns = [[data[attribute] for _, data in graph.nodes(data=True)] for attribute in attributes]
    return np.asarray(columns[0]) if isinstance(features, str) else np.stack([np.asarray(c) for c in columns], axis=1)


def node_mask(nodes: Any, num_nodes: int, what: str = "nodes") -> Tensor:
    """Chosen nodes as a boolean mask, [n]: from a mask or from positions, as a tensor, an array or a list."""
    chosen = torch.as_tensor(np.asarray(nodes) if not isinstance(nodes, Tensor) else nodes).cpu()
    if chosen.dtype == torch.bool:
        if chosen.shape != (num_nodes,):
            raise ValueError(f"{what} is a mask of {list(chosen.shape)} entries; the graph has {num_nodes} nodes")
        return chosen
    if chosen.dim() != 1 or (chosen.is_floating_point() and len(chosen)) or chosen.is_complex():
        raise ValueError(f"{what} is a boolean mask or a list of positions, not {chosen.dtype} {list(chosen.shape)}")
    outside = chosen[(chosen < 0) | (chosen >= num_nodes)]
    if len(outside):
        raise ValueError(f"{what} names node {int(outside[0])}, but the graph has nodes 0..{num_nodes - 1}")
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill(0, chosen.long(), True)
