"""Arrays in files of strangers: npz archives, and .npy files of features that stay on the disk.

Nothing is unpickled, and sizes are checked before anything is built.
"""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

FEATURES_FILE = "features.npy"
MAX_ARCHIVE_BYTES = 64 * 2**20  # on disk, and unpacked
MAX_DIRECTORY_BYTES = 64 * 2**10  # of a zip file: some hundred members
MAX_COLUMNS = 10_000_000
NUMBER_TYPES = "fiub"  # NumPy kinds: floats, integers, booleans
READ_AT_ONCE = 1 << 22  # numbers that are looked at to find one that is not finite


@contextlib.contextmanager
def refused(file: str, expected: str) -> Iterator[None]:
    """Turn whatever a hostile file provokes into one sentence: it is the file that is wrong."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{file} is refused: it is not {expected} ({error!s:.200})") from error


def parse_npz(raw: bytes, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The named arrays of numbers in an npz archive; one that would unpack to too much is refused."""
    if len(raw) > MAX_ARCHIVE_BYTES:
        raise ValueError(f"it has more than {MAX_ARCHIVE_BYTES:,} bytes, far beyond any file of its kind")
    _check_directory(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.getinfo(f"{name}.npy") for name in names}
        size = sum(member.file_size for member in members.values())
        if size > MAX_ARCHIVE_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {MAX_ARCHIVE_BYTES:,}")
        return {name: _read_member(archive, member) for name, member in members.items()}


def _check_directory(raw: bytes) -> None:
    """The end of a zip file says how long its directory is; a long one takes memory as soon as it is opened."""
    end = raw.rfind(b"PK\x05\x06")
    if end < 0 or len(raw) < end + 22:
        raise ValueError("not a zip file")
    size, is_zip64 = int.from_bytes(raw[end + 12 : end + 16], "little"), raw[end - 20 : end - 16] == b"PK\x06\x07"
    if size > MAX_DIRECTORY_BYTES or is_zip64:
        raise ValueError("too many members")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed in a way NumPy does not use")
    stream = io.BytesIO(archive.read(member))
    shape, is_fortran, dtype = _npy_header(stream)
    if dtype.kind not in NUMBER_TYPES:
        raise ValueError(f"{member.filename} holds {dtype}, not numbers")
    raw = stream.read()
    if len(shape) > 2 or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} and type {dtype} in {len(raw):,} bytes")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if is_fortran else "C")
    return array.astype(dtype.newbyteorder("="))


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of the array that follows."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it has NumPy's format {version}")
    return readers[version](file)


def csr_matrix(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: Any) -> scipy.sparse.csr_array:
    """A CSR matrix whose arrays fit together: SciPy's own routines trust them and would read beyond the end."""
    if np.shape(shape) != (2,):
        raise ValueError(f"a matrix of shape {shape!s:.40}")
    rows, columns = (int(size) for size in shape)
    if not (data.ndim == indices.ndim == indptr.ndim == 1 and indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"):
        raise ValueError("a matrix whose data, indices and indptr are not lists of numbers")
    if not (0 <= columns <= MAX_COLUMNS and len(indptr) == rows + 1 and len(data) == len(indices)):
        raise ValueError(f"a matrix of shape {(rows, columns)} with {len(indptr)} row ends and {len(data)} numbers")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("a matrix whose rows overlap")
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < columns):
        raise ValueError(f"a matrix of {columns} columns with an entry in column {int(indices.max())}")
    if data.dtype == np.float16:  # which SciPy does not know
        data = data.astype(np.float32)
    return scipy.sparse.csr_array((data, indices, indptr), shape=(rows, columns))


def mapped_features(path: Path, num_nodes: int) -> Tensor:
    """The rows of a .npy file of float32 or float16, one for each node, memory-mapped; every number is finite."""
    with refused(path.name, "a .npy file of numbers"):
        with path.open("rb") as file:
            shape, is_fortran, dtype = _npy_header(file)
            start = file.tell()
        if dtype not in (np.dtype("<f4"), np.dtype("<f2")) or is_fortran or len(shape) != 2:
            order = "column" if is_fortran else "row"
            raise ValueError(
                f"{dtype} of shape {shape}, {order} by {order}; it is float32 or float16, [nodes, columns], row by row: write it "
                'with np.save(path, np.ascontiguousarray(x, "float32"))'
            )
        if not 1 <= shape[1] <= MAX_COLUMNS or start + math.prod(shape) * dtype.itemsize != path.stat().st_size:
            raise ValueError(f"an array of shape {shape} in {path.stat().st_size:,} bytes")
    if shape[0] != num_nodes:
        raise ValueError(f"{path.name} has {shape[0]:,} rows, but there are {num_nodes:,} nodes; it has a row for each")
    # "c": what is written to the array does not reach the file
    x = np.memmap(path, dtype, "c", start, shape) if num_nodes else np.zeros(shape, dtype)
    rows = max(1, READ_AT_ONCE // shape[1])
    for first in range(0, num_nodes, rows):
        wrong = np.argwhere(~np.isfinite(x[first : first + rows]))
        if len(wrong):
            row, column = (wrong[0] + (first, 0)).tolist()
            right = "a feature is a finite number"
            raise ValueError(f"{path.name}, row {row}, column {column} is {x[row, column]}; {right}")
    return torch.from_numpy(x)
