"""Read the pickles and npz archives of strangers: nothing in them is executed, and they cannot ask for much memory.

A Planetoid file is a Python pickle, so reading one with `pickle.load` runs what it contains. Here its opcodes are
first checked against the few that arrays, matrices and adjacency lists need, and every class it names is replaced
by a stand-in that only stores data. Sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

MAX_PICKLE_BYTES = 16 * 2**20  # the largest Planetoid file has 7.6 million
MAX_PICKLE_OPCODES = 500_000  # the longest Planetoid file has 178 thousand
MAX_ARCHIVE_BYTES = 64 * 2**20  # on disk, and unpacked
MAX_DIRECTORY_BYTES = 64 * 2**10  # of a zip file: some hundred members
MAX_COLUMNS = 10_000_000
NUMBER_TYPES = "fiub"  # NumPy kinds: floats, integers, booleans

OPCODES = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD"),
        *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    }
)


class _Inert:
    """Base of the stand-ins: a class that a pickle may name, and that does nothing but store what it is given.

    Every stand-in is a class with a `__setstate__` and without a `__dict__`, so that no opcode can change one, and
    copies nothing until it is resolved, so that naming one text a thousand times takes the memory of one.
    """

    __slots__ = ("state",)
    state: Any

    def __new__(cls, *arguments: Any) -> _Inert:
        self = super().__new__(cls)
        self.state = None
        return self

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Bytes(_Inert):
    """_codecs.encode(text, "latin1") or bytes(), the way Python 3 writes bytes into an old protocol."""

    __slots__ = ()

    def __init__(self, text: Any = "", *arguments: Any) -> None:
        self.state = text

    @staticmethod
    def resolve(data: Any) -> Any:
        text = data.state if isinstance(data, _Bytes) else data
        return text.encode("latin-1") if isinstance(text, str) else text


class _DType(_Inert):
    """numpy.dtype(code, align, copy)."""

    __slots__ = ("code",)

    def __init__(self, code: str, *arguments: Any) -> None:
        self.code = code

    def resolve(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code) if isinstance(self.code, str) and len(self.code) <= 3 else None
        if dtype is None or dtype.kind not in NUMBER_TYPES:
            raise ValueError(f"an array of type {self.code!r}, not of numbers")
        is_big = isinstance(self.state, tuple) and len(self.state) > 1 and self.state[1] == ">"
        return dtype.newbyteorder(">" if is_big else "<")


class _Array(_Inert):
    """numpy's _reconstruct(ndarray, (0,), code), then a state (version, shape, dtype, is_fortran, bytes)."""

    __slots__ = ()

    def resolve(self) -> np.ndarray:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array without contents")
        _, shape, dtype, is_fortran, data = self.state
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple):
            raise ValueError("an array without type or shape")
        return _array(_Bytes.resolve(data), dtype.resolve(), shape, bool(is_fortran))


class _Buffer(_Inert):
    """numpy's _frombuffer(bytes, dtype, shape, order), which replaces _reconstruct from protocol 5 on."""

    __slots__ = ()

    def __init__(self, data: Any, dtype: Any, shape: Any, order: Any, *arguments: Any) -> None:
        self.state = (data, dtype, shape, order)

    def resolve(self) -> np.ndarray:
        data, dtype, shape, order = self.state
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple):
            raise ValueError("an array without type or shape")
        return _array(bytes(data), dtype.resolve(), shape, order == "F")


class _Matrix(_Inert):
    """scipy.sparse.csr_matrix, whose state is its attributes."""

    __slots__ = ()

    def resolve(self) -> scipy.sparse.csr_array:
        if not isinstance(self.state, dict):
            raise ValueError("a matrix without contents")
        data, indices, indptr = (self._part(name) for name in ("data", "indices", "indptr"))
        return csr_matrix(data, indices, indptr, self.state.get("_shape"))

    def _part(self, name: str) -> np.ndarray:
        part = self.state.get(name)
        if not isinstance(part, (_Array, _Buffer)):
            raise ValueError(f"a matrix without {name}")
        return part.resolve()


class _Adjacency(dict[Any, Any]):
    """collections.defaultdict(list), of which only the dict is of interest."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        raise ValueError("an adjacency list with a state")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Inert,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.numeric", "_frombuffer"): _Buffer,
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("scipy.sparse._csr", "csr_matrix"): _Matrix,
    ("collections", "defaultdict"): _Adjacency,
    ("__builtin__", "list"): _Inert,
    ("builtins", "list"): _Inert,
    ("_codecs", "encode"): _Bytes,
    ("__builtin__", "bytes"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _STAND_INS[module, name]


def read_pickle(path: Path) -> Any:
    """The array, CSR matrix or adjacency list in a Planetoid file; anything else is refused, unexecuted."""
    raw = _read_capped(path, MAX_PICKLE_BYTES)
    try:
        _check_opcodes(raw)
        value = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
        if isinstance(value, (_Array, _Buffer, _Matrix)):
            return value.resolve()
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__.strip('_')} instead of an array, a matrix or a dict")
        return value
    except Exception as error:  # whatever a hostile file provokes, it is the file that is wrong
        raise ValueError(f"{path.name} is refused: it is not one of Planetoid's files ({error})") from error


def _check_opcodes(raw: bytes) -> None:
    """Known opcodes and classes only, not too many, no memo slot far beyond those in use (all would be allocated)."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if opcode.name not in OPCODES:
            raise ValueError(f"it uses {opcode.name}")
        if opcode.name == "GLOBAL" and tuple(str(argument).split(" ")) not in _STAND_INS:
            raise ValueError(f"it asks for {str(argument).replace(' ', '.')}")
        if count > MAX_PICKLE_OPCODES:
            raise ValueError(f"it has more than {MAX_PICKLE_OPCODES:,} opcodes")
        if opcode.name in ("BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > count + 256:
            raise ValueError(f"it stores into memo slot {argument:,} after {count:,} opcodes")


def read_npz(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The named arrays of numbers in an npz archive; one that would unpack to too much is refused."""
    raw = _read_capped(path, MAX_ARCHIVE_BYTES)
    try:
        _check_directory(raw)
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = {name: archive.getinfo(f"{name}.npy") for name in names}
            size = sum(member.file_size for member in members.values())
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it unpacks to {size:,} bytes, more than {MAX_ARCHIVE_BYTES:,}")
            return {name: _read_npy(archive, member) for name, member in members.items()}
    except Exception as error:
        raise ValueError(f"{path.name} is refused: it is not an archive of the arrays expected ({error})") from error


def _check_directory(raw: bytes) -> None:
    """The end of a zip file says how long its directory is; a long one takes memory as soon as it is opened."""
    end = raw.rfind(b"PK\x05\x06")
    if end < 0 or len(raw) < end + 22:
        raise ValueError("not a zip file")
    if (
        int.from_bytes(raw[end + 12 : end + 16], "little") > MAX_DIRECTORY_BYTES
        or raw[end - 20 : end - 16] == b"PK\x06\x07"
    ):
        raise ValueError("too many members")


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed in a way NumPy does not use")
    stream = io.BytesIO(archive.read(member))
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"{member.filename} has NumPy's format {version}")
    shape, is_fortran, dtype = read_header[version](stream)
    if dtype.kind not in NUMBER_TYPES:
        raise ValueError(f"{member.filename} holds {dtype}, not numbers")
    return _array(stream.read(), dtype, shape, is_fortran)


def _array(raw: Any, dtype: np.dtype[Any], shape: tuple[Any, ...], is_fortran: bool) -> np.ndarray:
    """An array over bytes, which must be exactly as many as type and shape say."""
    if not isinstance(raw, bytes) or len(shape) > 2 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} and type {dtype} in {len(raw):,} bytes")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if is_fortran else "C")
    return array.astype(dtype.newbyteorder("="))


def csr_matrix(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: Any) -> scipy.sparse.csr_array:
    """A CSR matrix whose arrays fit together: SciPy's own routines trust them and would read beyond the end."""
    if len(shape) != 2:
        raise ValueError(f"a matrix of shape {tuple(shape)}")
    rows, columns = (int(size) for size in shape)
    if not (data.ndim == indices.ndim == indptr.ndim == 1 and indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"):
        raise ValueError("a matrix whose data, indices and indptr are not lists of numbers")
    if not (0 <= columns <= MAX_COLUMNS and len(indptr) == rows + 1 and len(data) == len(indices)):
        raise ValueError(f"a matrix of shape {(rows, columns)} with {len(indptr)} row ends and {len(data)} numbers")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("a matrix whose rows overlap")
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < columns):
        raise ValueError(f"a matrix of {columns} columns with an entry in column {int(indices.max())}")
    return scipy.sparse.csr_array((data, indices, indptr), shape=(rows, columns))


def _read_capped(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"{path.name} is refused: it has more than {most:,} bytes, far beyond any file of its kind")
    return raw
