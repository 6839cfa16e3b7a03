"""Planetoid's files (cora, citeseer, pubmed), read without executing anything in them and in little memory.

A Planetoid file is a Python pickle, so reading one with `pickle.load` runs what it contains. Here its opcodes are read
one by one, only the few that arrays, matrices and adjacency lists need, and what they would make is noted, not made.
Sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import dataclasses
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from gcn_lpa.graph import Graph
from gcn_lpa.splits import Split
from gcn_lpa.tables.untrusted import NUMBER_TYPES, array_of_bytes, csr_matrix, read_capped, refused

MAX_PICKLE_BYTES = 16 * 2**20  # the largest Planetoid file has 7.6 million
MAX_PICKLE_OPCODES = 500_000  # the longest Planetoid file has 178 thousand
PLANETOID_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
NUM_PUBLIC_VAL = 500  # Planetoid: the nodes after the training nodes
MAX_EDGE_ENDS = 1_000_000  # in a Planetoid adjacency list; Pubmed has 108 thousand

PLANETOID_SHA256 = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
}

CONSTANTS = (
    *("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
DICT = ("collections defaultdict",)
MATRIX = ("scipy.sparse.csr csr_matrix", "scipy.sparse._csr csr_matrix")
ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
BUFFER = ("numpy._core.numeric _frombuffer",)  # from protocol 5 on
BYTES = ("_codecs encode", "__builtin__ bytes")  # as Python 3 writes them into an old protocol
NAMES = {*DICT, *MATRIX, *ARRAY, *BUFFER, *BYTES, "numpy dtype", "numpy ndarray", "__builtin__ list", "builtins list"}


@dataclasses.dataclass(eq=False)
class _Made:
    """What a pickle says of an object: the name of what makes it, the arguments and the state. Nothing is made."""

    name: str
    arguments: Any = ()
    state: Any = None


def read_pickle(path: Path) -> Any:
    """The array, CSR matrix or adjacency list in a Planetoid file; anything else is refused, unexecuted."""
    raw = read_capped(path, MAX_PICKLE_BYTES)
    with refused(path, "one of Planetoid's files"):
        value = _parse(raw)
        if isinstance(value, _Made):
            return _matrix(value) if value.name in MATRIX else _array(value)
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} instead of an array, a matrix or a dict")
        return value


def _parse(raw: bytes) -> Any:
    """The value of a pickle that uses only what Planetoid's need: numbers, text, tuples, lists, dicts, and known names."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items, stack[start:] = stack[start:], []
        return items

    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if count > MAX_PICKLE_OPCODES:
            raise ValueError(f"it has more than {MAX_PICKLE_OPCODES:,} opcodes")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[opcode.name]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(opcode.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "APPEND" | "APPENDS":
                items = since_mark() if opcode.name == "APPENDS" else [stack.pop()]
                _as(list, stack[-1]).extend(items)
            case "SETITEM" | "SETITEMS":
                items = since_mark() if opcode.name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                keys = [key if type(key) is int else _as(str, key) for key in items[::2]]  # whose hashes take no time
                _as(dict, stack[-1]).update(zip(keys, items[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL":
                name = argument if opcode.name == "GLOBAL" else f"{_as(str, stack.pop(-2))} {_as(str, stack.pop())}"
                if name not in NAMES:
                    raise ValueError(f"it asks for {str(name).replace(' ', '.')}")
                stack.append(_Made(name))
            case "REDUCE" | "NEWOBJ":
                arguments, maker = stack.pop(), _as(_Made, stack.pop())
                stack.append({} if maker.name in DICT else _Made(maker.name, _as(tuple, arguments)))
            case "BUILD":
                state = stack.pop()
                _as(_Made, stack[-1]).state = state
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case name if name in CONSTANTS:
                stack.append(argument)
            case name:
                raise ValueError(f"it uses {name}")
    raise ValueError("it does not end")


def _as(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {type(value).__name__.strip('_')} in place of a {kind.__name__.strip('_')}")
    return value


def _array(made: Any) -> np.ndarray:
    if _as(_Made, made).name in BUFFER:
        data, dtype, shape, order = made.arguments
        is_fortran = order == "F"
    elif made.name in ARRAY:
        _, shape, dtype, is_fortran, data = _as(tuple, made.state)
    else:
        raise ValueError(f"a {made.name} instead of an array or a matrix")
    return array_of_bytes(_bytes(data), _number_type(dtype), _as(tuple, shape), bool(is_fortran))


def _matrix(made: _Made) -> scipy.sparse.csr_array:
    state = _as(dict, made.state)
    data, indices, indptr = (_array(state.get(name)) for name in ("data", "indices", "indptr"))
    return csr_matrix(data, indices, indptr, _as(tuple, state.get("_shape")))


def _number_type(made: Any) -> np.dtype[Any]:
    code = _as(str, _as(_Made, made).arguments[0])
    dtype = np.dtype(code) if len(code) <= 3 else None
    if dtype is None or dtype.kind not in NUMBER_TYPES:
        raise ValueError(f"an array of type {code!r:.40}, not of numbers")
    is_big = _as(tuple, made.state)[1:2] == (">",)
    found: np.dtype[Any] = dtype.newbyteorder(">" if is_big else "<")
    return found


def _bytes(data: Any) -> bytes:
    if isinstance(data, _Made) and data.name in BYTES:
        data = data.arguments[0] if data.arguments else b""
    return data.encode("latin-1") if isinstance(data, str) else bytes(data) if isinstance(data, bytearray) else data


def read_planetoid(folder: Path, name: str, class_names: tuple[str, ...]) -> Graph:
    """A Planetoid data set with its public split: 20 nodes per class train, the next 500 validate, test.index tests.

    Nodes that are in neither `allx` nor the test index (15 of Citeseer) have no features and no label.
    """
    parts = {part: read_pickle(folder / f"ind.{name}.{part}") for part in PLANETOID_PARTS[:-1]}
    test = _read_index(folder / f"ind.{name}.test.index")
    _check_planetoid(name, parts, test)
    n, num_all = len(parts["graph"]), parts["allx"].shape[0]
    place = np.full(n, num_all + len(test))  # of each node among the rows of allx, tx, and one row of zeros
    place[:num_all] = np.arange(num_all)
    place[test] = num_all + np.arange(len(test))
    num_features, num_classes = parts["allx"].shape[1], parts["ally"].shape[1]
    x = scipy.sparse.vstack([parts["allx"], parts["tx"], scipy.sparse.csr_array((1, num_features))]).tocsr()[place]
    one_hot = np.concatenate([parts["ally"], parts["ty"], np.zeros((1, num_classes))])[place]
    y = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    graph = Graph.from_edges(
        _adjacency_pairs(name, parts["graph"]),
        num_nodes=n,
        x=x,
        y=y,
        class_names=class_names if len(class_names) == num_classes else map(str, range(num_classes)),
        name=name,
    )
    train, val, tested = (torch.zeros(n, dtype=torch.bool) for _ in range(3))
    num_train = len(parts["y"])
    train[:num_train] = True
    val[num_train : num_train + NUM_PUBLIC_VAL] = True
    tested[torch.from_numpy(test)] = True
    return dataclasses.replace(graph, public=Split(train, val & ~tested, tested, "public"))


def _read_index(path: Path) -> np.ndarray:
    lines = path.read_bytes()[: 2**20].split()
    if not lines or not all(line.isdigit() and len(line) < 10 for line in lines):
        raise ValueError(f"{path.name} is not a list of node numbers")
    return np.asarray([int(line) for line in lines])


def _check_planetoid(name: str, parts: dict[str, Any], test: np.ndarray) -> None:
    """The eight files must belong together."""
    for part in ("x", "tx", "allx"):
        if not scipy.sparse.issparse(parts[part]):
            raise ValueError(f"ind.{name}.{part} is not a sparse matrix")
    for part in ("y", "ty", "ally"):
        if not isinstance(parts[part], np.ndarray) or parts[part].ndim != 2:
            raise ValueError(f"ind.{name}.{part} is not an array of one-hot labels")
    if not isinstance(parts["graph"], dict):
        raise ValueError(f"ind.{name}.graph is not an adjacency list")
    for features, labels in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        sizes = parts[features].shape, parts[labels].shape
        expected = (sizes[0][0], parts["allx"].shape[1]), (sizes[0][0], parts["ally"].shape[1])
        if sizes != expected:
            raise ValueError(f"ind.{name}.{features} and ind.{name}.{labels} have shapes {sizes}, not {expected}")
    n = len(parts["graph"])
    if len(test) != parts["tx"].shape[0] or len(set(test.tolist())) != len(test) or not test.max() < n:
        raise ValueError(f"ind.{name}.test.index does not number the {parts['tx'].shape[0]} rows of tx among {n} nodes")
    if parts["allx"].shape[0] > n or parts["x"].shape[0] > n:
        raise ValueError(f"ind.{name}.allx has more rows than ind.{name}.graph has nodes")


def _adjacency_pairs(name: str, adjacency: dict[Any, Any]) -> np.ndarray:
    """Every (node, neighbour) of an adjacency list, [E, 2]."""
    if not all(isinstance(neighbours, list) for neighbours in adjacency.values()):
        raise ValueError(f"ind.{name}.graph has a node without a list of neighbours")
    counts = [len(neighbours) for neighbours in adjacency.values()]
    if sum(counts) > MAX_EDGE_ENDS:  # one list can stand in a pickle many times
        raise ValueError(f"ind.{name}.graph has {sum(counts):,} edges, more than {MAX_EDGE_ENDS:,}")
    ends = [end for neighbours in adjacency.values() for end in neighbours]
    if not all(type(node) is int for node in (*adjacency, *ends)):
        raise ValueError(f"ind.{name}.graph has a node that is not a number")
    return np.stack([np.repeat(np.fromiter(adjacency, np.int64), counts), np.asarray(ends, dtype=np.int64)], axis=1)
