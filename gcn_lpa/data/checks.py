"""Checks of what a caller hands in: ids, weights and labels in any shape a user has them; and hints in error messages.

Every refusal says which edge, node, row or column is wrong, with the value, and what would be right.
"""

from __future__ import annotations

import difflib
import itertools
import math
import numbers
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

WARNING = "warning: "  # the beginning of a note that is a warning
NO_LABEL = "no column is read as the label"  # in a warning that `train` repeats
UNKNOWN = frozenset(("?", "na", "n/a", "nan", "null", "none", "unknown", "-", "--", "missing"))  # of labels
LONGEST_NAME = 100  # characters of a name that others are compared with
FLOAT32_MAX = float(np.finfo(np.float32).max)
NUMBER = re.compile(r"-?[0-9]{1,4000}")
ADDRESS = re.compile(r"[a-z][a-z0-9+]*://|duckdb:", re.IGNORECASE)
# a password in an address, or a query
SECRET = re.compile(r"^[^?]*://[^?@]*:[^?]*@|\b(?:password|passwd|pwd|passfile)\s*=", re.IGNORECASE)
Names = Sequence[Hashable]


def some(values: Sequence[Any], most: int = 5) -> str:
    """The first values, and how many there are."""
    shown = ", ".join(f"{value!r:.80}" for value in values[:most])
    return shown if len(values) <= most else f"{shown}, … {len(values):,} in all"


def similar(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that a text may be misspelt for, of the first 2,000 about as long; none for a long text."""
    if len(text) > LONGEST_NAME:
        return []
    alike = (name for name in names if abs(len(name) - len(text)) <= 3)
    return difflib.get_close_matches(text, itertools.islice(alike, 2_000), n=3)


def meant(text: object, names: Iterable[str]) -> str:
    """The end of a sentence that says what a misspelt name may be meant for; empty where nothing is close."""
    close = similar(str(text), names)
    return f"; did you mean {close[0]}?" if close else ""


def of_another_kind(value: Hashable, names: Iterable[Hashable]) -> str:
    """A hint where a name prints like `value` but has another type, such as 1 and "1"; else nothing."""
    twin = next((name for name in names if type(name) is not type(value) and str(name) == str(value)), None)
    both = f"{value!r} is {type_word(value)}, {twin!r} is {type_word(twin)}"
    return "" if twin is None else f"{both}: ids are of one kind everywhere"


def close_to(value: Hashable, names: Sequence[Hashable]) -> str:
    """A hint where names are like a value but for what spreadsheets change, case, zeros in front, a .0 behind; or misspelt."""

    def bare(name: str) -> str:
        return name.strip().casefold().removesuffix(".0").lstrip("0")

    texts = list(map(str, names))
    close = list(itertools.islice((text for text in texts if bare(text) == bare(str(value))), 3))
    close = close or similar(str(value), texts)
    return of_another_kind(value, names) or (f"close to it: {', '.join(close)}" if close else "")


def type_word(value: Hashable) -> str:
    return "text" if isinstance(value, str) else "a number" if isinstance(value, int) else f"a {type(value).__name__}"


def is_missing(value: Any) -> bool:
    """None, NaN, NaT and pandas' NA."""
    if type(value) is str:
        return False
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def is_address(name: object) -> bool:
    """Whether a name is that of a table in a database, or meant to be; then it is no path."""
    return isinstance(name, str) and ADDRESS.match(name) is not None


def refuse_password(text: str) -> None:
    """Refuse a text with an address and a password in it, without repeating it."""
    if ADDRESS.search(text) and SECRET.search(text):
        right = "leave it out and set PGPASSWORD or ~/.pgpass, so that no file and no list of processes shows it"
        raise ValueError(f"the address of the database holds a password; {right}")


def check_seed(seed: Any) -> int:
    """A seed as a whole number; NumPy's are taken too."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"seed = {seed!r}; it is a whole number")
    whole = int(seed)
    if not 0 <= whole < 2**63:
        raise ValueError(f"seed = {seed}; it is at least 0 and less than 2**63")
    return whole


def node_mask(nodes: Any, num_nodes: int, what: str = "nodes") -> Tensor:
    """Chosen nodes as a boolean mask, [n]: from a mask or from positions, as a tensor, an array or a list."""
    values = nodes if isinstance(nodes, Tensor) else np.array(list(nodes) if isinstance(nodes, set) else nodes)
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
        raise ValueError(
            f"{what} is a boolean mask or a list of positions, not names such as {str(values.reshape(-1)[0])!r:.40}; "
            "graph.positions_of(names) gives their positions"
        )
    chosen = torch.as_tensor(values).cpu()
    if chosen.dtype == torch.bool:
        if chosen.shape != (num_nodes,):
            raise ValueError(f"{what} is a mask of {list(chosen.shape)} entries; the graph has {num_nodes} nodes")
        return chosen
    if chosen.dim() != 1 or (chosen.is_floating_point() and len(chosen)) or chosen.is_complex():
        raise ValueError(f"{what} is a boolean mask or a list of positions, not {chosen.dtype} {list(chosen.shape)}")
    outside = chosen[(chosen < 0) | (chosen >= num_nodes)]
    if len(outside):
        raise ValueError(f"{what} names node {int(outside[0])}, but the graph has nodes 0..{num_nodes - 1}")
    if len(chosen) > 2 and len(chosen) == num_nodes and int(chosen.max()) <= 1:
        raise ValueError(f"{what} is {num_nodes} numbers that are 0 or 1: a mask is boolean; positions are named once")
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill(0, chosen.long(), True)


def unique_names(names: Iterable[Hashable]) -> Names:
    """Names, each once; a `range` where they are 0..n-1."""
    if isinstance(names, range) and names == range(len(names)):
        return names
    values = names.tolist() if isinstance(names, (np.ndarray, Tensor)) else list(names)
    if set(map(type, values)) == {str} and len(set(values)) == len(values):
        return tuple(values)
    values = list(map(as_plain, values))
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


@dataclass(frozen=True)
class Ends:
    """Edges as two columns: of ids, or of positions among the node names."""

    source: Any
    target: Any
    are_positions: bool = False


def edge_ends(edges: Any) -> Ends:
    """The two columns of a list of pairs: int64 where all ids are integers that fit, else objects."""
    if isinstance(edges, Tensor):
        edges = edges.detach().cpu().numpy()
    if isinstance(edges, np.ndarray):
        if edges.size == 0:
            return Ends(np.empty(0, np.int64), np.empty(0, np.int64))
        if edges.ndim != 2 or edges.shape[1] != 2:
            hint = "; PyG's [2, E] goes in as edge_index.T" if edges.ndim == 2 and edges.shape[0] == 2 else ""
            raise ValueError(f"edges are pairs (source, target), [E, 2], not {list(edges.shape)}{hint}")
        edges = Ends(*edges.T)
    elif not isinstance(edges, Ends):
        pairs = list(edges)
        for i, pair in enumerate(pairs):
            if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
                raise ValueError(f"edge {i} is {pair!r}, not a pair (source, target); weights go into weights=")
        edges = Ends([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return edges if edges.are_positions else Ends(_ids(edges.source, "source"), _ids(edges.target, "target"))


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
        value = values[i] = as_plain(value)
        if isinstance(value, float):
            if not value.is_integer():
                raise ValueError(f"edge {i} has {side} {value!r}; a node id is an integer, text or another exact value")
            values[i] = int(value)
        elif isinstance(value, Tensor) or not isinstance(value, Hashable):
            raise TypeError(f"edge {i} has {side} {value!r} of type {type(value).__name__}, which cannot be a node id")
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in values):
        return np.asarray(values, dtype=np.int64)
    return _objects(values)


def _objects(values: Sequence[Any]) -> np.ndarray:
    """A list as an array of objects; np.asarray would make text of a 1 beside an "a"."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def name_nodes(
    edges: Any, node_names: Iterable[Hashable] | None, num_nodes: int | None, x: Any, y: Any
) -> tuple[Names, np.ndarray, np.ndarray]:
    """The nodes that a list of edges is about, as `from_edges` documents, and both columns of the list as their positions."""
    ends = edge_ends(edges)
    source, target = ends.source, ends.target
    if node_names is not None:
        names = unique_names(node_names)
        if num_nodes not in (None, len(names)):
            raise ValueError(f"the number of nodes is not clear: num_nodes is {num_nodes}, node_names are {len(names)}")
        if not ends.are_positions:
            source, target = _positions(ends, names, "node_names")
        return names, source, target
    sizes = {"num_nodes is": num_nodes, "the rows of x are": _num_rows(x), "the labels in y are": _num_rows(y)}
    stated = [(size, f"{origin} {size}") for origin, size in sizes.items() if size is not None]
    if len({size for size, _ in stated}) > 1:
        raise ValueError(f"the number of nodes is not clear: {', '.join(phrase for _, phrase in stated)}")
    if stated and all(side.dtype != object or {*map(type, side)} <= {int} for side in (source, target)):
        return range(stated[0][0]), *in_range(source, target, *stated[0])
    further = list(y) if isinstance(y, Mapping) else []
    if source.dtype != object and target.dtype != object and all(type(value) is int for value in further):
        ids = np.concatenate([source, target, np.asarray(further, dtype=np.int64)])
        occurring, positions = np.unique(ids, return_inverse=True)
        return unique_names(occurring), positions[: len(source)], positions[len(source) : 2 * len(source)]
    seen = dict.fromkeys([*source.tolist(), *target.tolist(), *further])
    try:
        names = unique_names(sorted(seen))
    except TypeError:
        names = unique_names(seen)  # ids of mixed types have no order: as they first occur
    source, target = _positions(ends, names, "the graph")
    return names, source, target


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


def _positions(ends: Ends, names: Names, origin: str) -> list[np.ndarray]:
    """Both columns as positions among the names; an id that is not one of them is refused."""
    index = {name: i for i, name in enumerate(names)}
    columns = []
    for side, values in (("starts at", ends.source.tolist()), ("points to", ends.target.tolist())):
        known = np.fromiter((index.get(value, -1) for value in values), dtype=np.int64, count=len(values))
        if (known < 0).any():
            i = int((known < 0).argmax())
            hint = of_another_kind(values[i], names) or some(names)
            raise ValueError(f"edge {i} {side} node {values[i]!r}, which {origin} does not hold ({hint})")
        columns.append(known)
    return columns


def edge_weights(weights: Any, num_edges: int, edge: Callable[[int], str]) -> np.ndarray:
    """Positive, finite weights in float64; `edge(i)` names the edge in the error."""
    if weights is None:
        return np.ones(num_edges)
    values = as_array(weights)
    if values.shape != (num_edges,):
        raise ValueError(f"weights has shape {list(values.shape)} for {num_edges} edges")
    numbers = as_numbers(values)
    wrong = np.flatnonzero(~((numbers > 0) & (numbers <= FLOAT32_MAX)))
    if len(wrong):
        i = int(wrong[0])
        right = "a weight is positive and finite (leave the edge out for 0)"
        raise ValueError(f"{edge(i)} has weight {as_plain(values[i])!r}; {right}")
    return numbers


def as_array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)


def as_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Values as float64, NaN where an object is not a number."""
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for k, value in enumerate(values.tolist()):
        if isinstance(value, int) and abs(value) > FLOAT32_MAX:
            numbers[k] = math.inf  # float() itself refuses integers beyond 64-bit floats
        elif isinstance(value, (int, float, np.integer, np.floating)):
            numbers[k] = float(value)
    return numbers


TASKS = ("classification", "regression")


def check_task(task: str | None) -> None:
    if task not in (None, *TASKS):
        raise ValueError(f"task = {task!r:.40}; it is one of {', '.join(TASKS)}")


def node_labels(
    y: Any, node_names: Names, class_names: Iterable[str] | None, task: str | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Class positions, -1 where unknown, and the class names: given ones, or those that occur, sorted; or numbers, float64 with NaN
    where unknown, and no names.
    """
    check_task(task)
    names = None if class_names is None else tuple(map(str, class_names))
    if names is not None and len(set(names)) != len(names):
        raise ValueError(f"class_names repeats {next(name for name in names if names.count(name) > 1)!r}")
    if isinstance(y, Mapping):
        strange = y.keys() - set(node_names)
        if strange:
            node = next(node for node in y if node in strange)
            hint = of_another_kind(node, node_names) or some(node_names)
            raise ValueError(f"y labels node {node!r}, which the graph does not hold ({hint})")
        y = [y.get(node) for node in node_names]
    if y is None:
        return torch.full((len(node_names),), -1), names or ()
    if task == "regression" or (task is None and names is None and _are_fractions(y)):
        return torch.from_numpy(_label_numbers(y, node_names)), ()
    values = _label_values(y, node_names)
    if values.dtype == object:
        if names is None:
            occurring = {value for value in values if value is not None}
            are_numbers = all(NUMBER.fullmatch(text) for text in occurring)
            names = tuple(sorted(occurring, key=lambda text: (int(text) if are_numbers else 0, text)))  # "10" after "2"
        index = {None: -1} | {name: i for i, name in enumerate(names)}
        if strange := set(values) - set(index):
            i = next(i for i, value in enumerate(values) if value in strange)
            known = f"the class_names {some(names)}"
            raise ValueError(f"label {values[i]!r} of node {node_names[i]!r} is not among {known}")
        return torch.tensor([index[value] for value in values], dtype=torch.int64), names
    bound = np.inf if names is None else len(names)
    wrong = np.flatnonzero((values < -1) | (values >= bound))
    if len(wrong):
        i = int(wrong[0])
        problem = "is negative; unknown is -1" if values[i] < -1 else f"is beyond the {bound} class_names"
        raise ValueError(f"label {values[i]} of node {node_names[i]!r} {problem}")
    if names is not None:
        return torch.from_numpy(values), names
    classes = np.unique(values[values >= 0])
    positions = np.where(values >= 0, np.searchsorted(classes, values), -1)
    return torch.from_numpy(positions), tuple(map(str, classes.tolist()))


def _one_per_node(y: Any, n: int) -> np.ndarray:
    """Labels as an array, [n]."""
    values = _objects(y) if isinstance(y, (list, tuple)) else as_array(y)
    if values.size == n and values.ndim == 2:  # a column
        values = values.reshape(n)
    if values.shape != (n,):
        several = "; of several labels a node, each column is a run of its own" if values.ndim == 2 else ""
        raise ValueError(f"labels are one per node, [{n}]; y is {list(values.shape)}{several}")
    return values


def _label_values(y: Any, node_names: Names) -> np.ndarray:
    """Labels as int64 with -1 for unknown, or as objects: text, with None for unknown."""
    values = _one_per_node(y, len(node_names))
    if values.dtype.kind == "i":
        return values.astype(np.int64)
    if set(map(type, values)) <= {str, type(None)}:  # as of a file, and of millions of nodes
        texts = values.copy()
        texts[values == ""] = None
        return texts
    labels = [_label(value, node_names[i]) for i, value in enumerate(values.tolist())]
    if all(label is None or (type(label) is int and abs(label) < 2**63) for label in labels):
        return np.asarray([-1 if label is None else label for label in labels], dtype=np.int64)
    meaning: dict[str, Any] = {}
    texts = np.empty(len(values), dtype=object)
    for i, label in enumerate(labels):
        if label is not None and not (type(label) is int and label == -1):
            texts[i] = str(label)
            if meaning.setdefault(texts[i], label) != label:
                raise ValueError(f"labels {meaning[texts[i]]!r} and {label!r} have one name; give all of them as text")
    return texts


def _are_fractions(y: Any) -> bool:
    """Whether labels are floats, or None, of which one at least is no whole number."""
    array = np.asarray(as_array(y)) if not isinstance(y, (list, tuple)) else _objects(y)
    if array.dtype.kind == "f":
        return bool((np.isfinite(array) & (array % 1 != 0)).any())
    values = [as_plain(value) for value in array.ravel().tolist()] if array.dtype == object else []
    known = [value for value in values if not is_missing(value)]
    are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known)
    return are_numbers and any(isinstance(value, float) and math.isfinite(value) and value % 1 for value in known)


def _label_numbers(y: Any, node_names: Names) -> np.ndarray:
    """Labels as float64, NaN where unknown."""
    values = _one_per_node(y, len(node_names))
    if values.dtype.kind in "fiu":
        numbers = values.astype(np.float64)
        missing = np.isnan(numbers)
    else:
        plain = [as_plain(value) for value in values.tolist()]
        missing = np.array([is_missing(value) or value == "" for value in plain], dtype=bool)
        parsed = [None if gone or isinstance(one, bool) else one for one, gone in zip(plain, missing, strict=True)]
        numbers = np.array([math.nan if one is None else _number(one) for one in parsed], dtype=np.float64)
    wrong = np.flatnonzero(~missing & ~(np.abs(numbers) <= FLOAT32_MAX))
    if len(wrong):
        i = int(wrong[0])
        right = "a label of task 'regression' is a number, such as 2.5, or nothing"
        raise ValueError(f"label {as_plain(values[i])!r:.80} of node {node_names[i]!r} is no finite number; {right}")
    return numbers


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, str) and "_" in value else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _label(value: Any, node: Hashable) -> int | str | None:
    """An integer, text or boolean; None where it is missing."""
    value = as_plain(value)
    if is_missing(value) or (isinstance(value, str) and value == ""):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (bool, int, str)):
        return value
    right = "labels are integers, text or booleans, and of numbers their ranges"
    raise ValueError(f"label {value!r} of node {node!r} is not a class; {right}")
