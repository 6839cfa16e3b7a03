"""Arrays and matrices from files that cannot be trusted: sizes are checked before anything is built."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

MAX_COLUMNS = 10_000_000
NUMBER_TYPES = "fiub"  # NumPy kinds: floats, integers, booleans


def read_capped(path: Path, most: int) -> bytes:
    """The bytes of a file; one with more than `most` is refused."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"{path.name} is refused: it has more than {most:,} bytes, far beyond any file of its kind")
    return raw


@contextlib.contextmanager
def refused(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever a hostile file provokes into one sentence: it is the file that is wrong."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{path.name} is refused: it is not {expected} ({error!s:.200})") from error


def array_of_bytes(raw: Any, dtype: np.dtype[Any], shape: tuple[Any, ...], is_fortran: bool) -> np.ndarray:
    """An array over bytes, which must be exactly as many as type and shape say."""
    if not isinstance(raw, bytes) or len(shape) > 2 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} and type {dtype} in {len(raw):,} bytes")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if is_fortran else "C")
    return array.astype(dtype.newbyteorder("="))


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
