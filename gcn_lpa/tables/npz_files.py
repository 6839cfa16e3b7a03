"""Graphs in npz archives: sparse matrices and labels as NumPy arrays, read without pickle."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gcn_lpa.graph import Graph
from gcn_lpa.tables.untrusted import NUMBER_TYPES, array_of_bytes, csr_matrix, read_capped, refused

EXPECTED = "an archive of the arrays expected"
MAX_ARCHIVE_BYTES = 64 * 2**20  # on disk, and unpacked
MAX_DIRECTORY_BYTES = 64 * 2**10  # of a zip file: some hundred members


def read_npz_graph(path: Path, name: str, *, directed: bool = False) -> Graph:
    """A graph from CSR arrays adj_* and attr_* and a list of labels; word counts stay counts."""
    keys = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")]
    arrays = read_npz(path, [*keys, "labels"])
    with refused(path, EXPECTED):
        adjacency, features = (
            csr_matrix(*(arrays[f"{matrix}_{part}"] for part in ("data", "indices", "indptr", "shape")))
            for matrix in ("adj", "attr")
        )
        return Graph.from_scipy(adjacency, x=features, y=arrays["labels"], directed=directed, name=name)


def read_npz(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The named arrays of numbers in an npz archive; one that would unpack to too much is refused."""
    raw = read_capped(path, MAX_ARCHIVE_BYTES)
    with refused(path, EXPECTED):
        _check_directory(raw)
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = {name: archive.getinfo(f"{name}.npy") for name in names}
            size = sum(member.file_size for member in members.values())
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it unpacks to {size:,} bytes, more than {MAX_ARCHIVE_BYTES:,}")
            return {name: _read_npy(archive, member) for name, member in members.items()}


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
    return array_of_bytes(stream.read(), dtype, shape, is_fortran)
