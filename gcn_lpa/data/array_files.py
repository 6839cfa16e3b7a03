"""Files of strangers that are not text: Planetoid's pickles, npz archives of graphs, .npy files of features that stay on the disk,
and Parquet files; and frames.

Sizes are checked before anything is built, and nothing is executed. `pickle.load` runs what a file contains. So of Planetoid's
files (cora, citeseer, pubmed) only those whose sha256 is known are looked at, by a reader that makes arrays, matrices and
adjacency lists, and nothing else that a pickle could name. A Parquet file of a few bytes can hold a billion rows, or one long text
a million times: what it would unpack to is counted first.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import io
import math
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import TASKS, node_mask
from gcn_lpa.data.constructors import EdgeTypes
from gcn_lpa.data.scaling import Block
from gcn_lpa.data.splits import Split
from gcn_lpa.data.table import AT_ONCE, Series, Table, series, table_of
from gcn_lpa.data.table import MAX_COLUMNS as MOST_COLUMNS
from gcn_lpa.graph import Graph

FEATURES_FILE = "features.npy"
MAX_ARCHIVE_BYTES = 64 * 2**20  # on disk, and unpacked
MAX_DIRECTORY_BYTES = 64 * 2**10  # of a zip file: some hundred members
MAX_COLUMNS = 10_000_000
NUMBER_TYPES = "fiub"  # NumPy kinds: floats, integers, booleans
READ_AT_ONCE = 1 << 22  # numbers that are looked at to find one that is not finite
FREE_CELLS, CELLS_PER_BYTE = 2_000_000, 100  # that a Parquet file may hold: no honest table is as uniform as one beyond
FREE_BYTES, BYTES_PER_BYTE = 100 * 2**20, 100  # the same of its text, unpacked

PLANETOID_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
MAX_PICKLE_BYTES = 16 * 2**20  # the largest of the files has 7.6 million
NUM_PUBLIC_VAL = 500  # Planetoid: the nodes after the training nodes


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
    end = raw.rfind(b"PK\x05\x06")  # which holds the length of the directory
    if end < 0 or len(raw) < end + 22:
        raise ValueError("not a zip file")
    size, is_zip64 = int.from_bytes(raw[end + 12 : end + 16], "little"), raw[end - 20 : end - 16] == b"PK\x06\x07"
    if size > MAX_DIRECTORY_BYTES or is_zip64:  # it would take memory as soon as it is opened
        raise ValueError("too many members")
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.getinfo(f"{name}.npy") for name in names}
        size = sum(member.file_size for member in members.values())
        if size > MAX_ARCHIVE_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {MAX_ARCHIVE_BYTES:,}")
        return {name: _read_member(archive, member) for name, member in members.items()}


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


def read_npz_graph(path: Path, name: str, *, directed: bool = False) -> Graph:
    """The graph in an npz archive: see `parse_npz_graph`."""
    return parse_npz_graph(archive_bytes(path), path.name, name, directed=directed)


def archive_bytes(path: Path) -> bytes:
    """The bytes of a file, and no more than show that it is too long."""
    with path.open("rb") as file:
        return file.read(MAX_ARCHIVE_BYTES + 1)


def _matrices(raw: bytes, *more: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """The adjacency and the features in an archive, and all its arrays, with `more` of them."""
    parts = {matrix: [f"{matrix}_{part}" for part in ("data", "indices", "indptr", "shape")] for matrix in ("adj", "attr")}
    arrays = parse_npz(raw, [*parts["adj"], *parts["attr"], *more])
    adjacency, x = (csr_matrix(*(arrays[name] for name in names)) for names in parts.values())
    return adjacency, x, arrays


def parse_npz_graph(raw: bytes, file: str, name: str, *, directed: bool = False) -> Graph:
    """A graph from CSR arrays adj_* and attr_* and a list of labels; word counts stay counts."""
    with refused(file, "an archive of the arrays expected"):
        adjacency, x, arrays = _matrices(raw, "labels")
        return Graph.from_scipy(adjacency, x=x, y=arrays["labels"], directed=directed, name=name)


def read_splits(path: Path, num_nodes: int) -> tuple[Split, ...]:
    """Published splits: masks `train`, `val` and `test`, [splits, n], eight nodes to a byte."""
    with refused(path.name, "an archive of masks expected"):
        arrays = parse_npz(archive_bytes(path), ["train", "val", "test", "num_nodes"])
        if (stated := int(arrays["num_nodes"])) != num_nodes:
            raise ValueError(f"its masks are of {stated:,} nodes; the graph has {num_nodes:,}")
        parts = [np.unpackbits(arrays[part], axis=1)[:, :num_nodes].astype(bool) for part in ("train", "val", "test")]
        masks = zip(*(map(torch.from_numpy, part) for part in parts), strict=True)
        return tuple(Split(train, val, test, "official", k) for k, (train, val, test) in enumerate(masks))


STREAMER_COLUMNS = ("days", "views", "mature", "partner")


def read_streamers(path: Path, name: str, *, target: str = "mature") -> Graph:
    """Friendships of streamers: the games they play are words, the other columns of the table features; one is the target."""
    targets = STREAMER_COLUMNS[1:]
    if target not in targets:
        raise ValueError(f"target = {target!r:.40}; it is one of {', '.join(targets)}")
    with refused(path.name, "an archive of the arrays expected"):
        adjacency, games, arrays = _matrices(archive_bytes(path), *STREAMER_COLUMNS)
        numbers = [column for column in STREAMER_COLUMNS[:2] if column != target]
        flags = [column for column in STREAMER_COLUMNS[2:] if column != target]
        table = scipy.sparse.csr_array(np.stack([arrays[column] for column in numbers + flags], axis=1).astype(float))
        x = scipy.sparse.hstack([games, table], format="csr")
        is_count, y = target in STREAMER_COLUMNS[:2], arrays[target].astype(np.int64)
        classes = None if is_count else (f"not {target}", target)
        graph = Graph.from_scipy(adjacency, x=x, y=y, class_names=classes, task=TASKS[is_count], name=name)
    ends = np.cumsum([games.shape[1], len(numbers), len(flags)]).tolist()
    blocks = Block("games", "words", 0, ends[0]), Block(", ".join(numbers), "numbers", ends[0], ends[1])
    return dataclasses.replace(graph, blocks=(*blocks, Block(", ".join(flags), "table", ends[1], ends[2])))


ACM_TYPES, ACM_LABELS = ("same author", "same subject"), (20, 40, 60)


def read_acm(folder: Path, name: str, *, labels: int = 20) -> Graph:
    """Papers that share an author or a subject: two edge types, and the published split with so many labels a class."""
    if labels not in ACM_LABELS:
        raise ValueError(f"labels = {labels!r:.40}; published splits have {', '.join(map(str, ACM_LABELS))} a class")
    keys, path = [kind.replace(" ", "_") for kind in ACM_TYPES], folder / "acm_kinds.npz"
    parts = [f"{part}_{labels}" for part in ("train", "val", "test")]
    with refused(path.name, "an archive of the arrays expected"):
        names = [*(f"{k}_{i}" for k in keys for i in ("ip", "ix")), *"yd", "xd", "xix", "xip", *parts]
        arrays = parse_npz(path.read_bytes(), names)
        n = len(arrays["y"])
        given = [(arrays[f"{key}_ix"], arrays[f"{key}_ip"]) for key in keys]
        matrices = [csr_matrix(np.ones(len(ix), np.float32), ix, ip, (n, n)) for ix, ip in given]
        x = csr_matrix(arrays["xd"], arrays["xix"], arrays["xip"], (n, int(arrays["d"])))
        either = matrices[0].maximum(matrices[1])
        graph = Graph.from_scipy(either, x=x, y=arrays["y"], name=name)
        types = [Graph.from_scipy(matrix).adjacency for matrix in matrices]
        train, val, test = (node_mask(arrays[part], n, part) for part in parts)
    published = (Split(train, val, test, "official"),)
    return dataclasses.replace(graph, edge_types=EdgeTypes(ACM_TYPES, tuple(types)), published=published)


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


def parquet_pieces(path: Path) -> Iterator[Table]:
    """The rows of a Parquet file, so many cells at a time."""
    start = 0
    for names, columns in _batches(path):
        yield table_of(path, names, columns, start)
        start += len(columns[0]) if columns else 0


def _batches(path: Path) -> Iterator[tuple[list[str], list[Series]]]:
    """Names and cells of a Parquet file, whose texts are stored once each; one that would unpack to far more is refused."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    try:
        with path.open("rb") as file:
            size, facts = path.stat().st_size, parquet.read_metadata(file)
            if facts.num_columns > MOST_COLUMNS:
                raise ValueError(f"it has {facts.num_columns:,} columns; at most {MOST_COLUMNS:,} are read")
            groups = [facts.row_group(k) for k in range(facts.num_row_groups)]
            values = sum(group.column(k).num_values for group in groups for k in range(facts.num_columns))
            cells, unpacked = max(values, facts.num_rows), sum(group.total_byte_size for group in groups)
            most = FREE_BYTES + BYTES_PER_BYTE * size
            if cells > FREE_CELLS + CELLS_PER_BYTE * size:
                raise ValueError(f"it says that it holds {cells:,} cells, in {size:,} bytes")
            leaves = [facts.schema.column(k) for k in range(facts.num_columns)]
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            opened = parquet.ParquetFile(file, metadata=facts, read_dictionary=texts)
            rows, read = max(1, AT_ONCE // 4 // max(1, facts.num_columns)), 0
            for batch in opened.iter_batches(rows) if unpacked <= most else ():
                read += sum(map(_num_bytes, batch.columns))
                if read > most:
                    break
                yield list(map(str, batch.schema.names)), [series(_cells(column)) for column in batch.columns]
            if max(read, unpacked) > most:
                raise ValueError(f"it would unpack to {max(read, unpacked):,} bytes, from {size:,}")
            if facts.num_rows == 0:
                names = list(map(str, opened.schema_arrow.names))
                yield names, [series([]) for _ in names]
    except MemoryError:
        raise
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error!s:.300})") from error


def _cells(column: Any) -> list[Any]:
    import pyarrow

    try:
        return list(column.to_pandas().tolist())
    except pyarrow.ArrowNotImplementedError:  # lists of texts that are stored once each
        return list(column.to_pylist())


def _num_bytes(array: Any) -> int:
    """How many bytes an Arrow array has when each cell has a text of its own."""
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind) and not pyarrow.types.is_primitive(kind.value_type):
        lengths = compute.cast(compute.binary_length(array.dictionary), pyarrow.int64())
        return compute.sum(lengths.take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_num_bytes, array.flatten()))
    return _num_bytes(array.values) if pyarrow.types.is_nested(kind) else array.nbytes


def read_frame(frame: Any, role: str) -> Table:
    """A table of a frame of pandas or polars, or of Arrow; errors call it by its role and count its rows from 1."""
    path = Path("graph", f"the frame of {role}")
    if hasattr(frame, "iloc"):
        columns = [series(frame.iloc[:, k].tolist()) for k in range(frame.shape[1])]
        return table_of(path, list(map(str, frame.columns)), columns)
    if not hasattr(frame, "__arrow_c_stream__"):
        known = "a frame is one of pandas or polars (of a lazy one its .collect()), or an Arrow table"
        raise TypeError(f"{path.name} is a {type(frame).__module__}.{type(frame).__name__}; {known}")
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("frames of polars and Arrow tables need pyarrow: pip install 'gcn-lpa[io]'") from error
    table = pyarrow.table(frame)
    return table_of(path, table.column_names, [series(_cells(column)) for column in table.columns])


_SUMS = (files("gcn_lpa.data") / "planetoid.sha256").read_text(encoding="utf-8")  # as of `sha256sum`
PLANETOID_SHA256 = {name: digest for digest, name in map(str.split, _SUMS.splitlines())}

NAMES = {  # all that the files ask for; Python 2 wrote them
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    ("scipy.sparse.csr", "csr_matrix"): scipy.sparse.csr_matrix,
}


class KnownNames(pickle.Unpickler):
    """Reads a pickle that asks for nothing but `NAMES`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise ValueError(f"it asks for {module}.{name}")
        return NAMES[module, name]


def require_sha256(name: str, raw: bytes) -> None:
    """Refuse bytes that are not those of the published file of this name."""
    digest, known = hashlib.sha256(raw).hexdigest(), PLANETOID_SHA256[name]
    if digest != known:
        raise ValueError(f"its sha256 is {digest[:16]}…, the published file has {known[:16]}…")


def read_known(path: Path) -> bytes:
    """The bytes of one of Planetoid's files; one with another sha256 is refused."""
    with path.open("rb") as file:
        raw = file.read(MAX_PICKLE_BYTES)
    try:
        require_sha256(path.name, raw)
    except ValueError as error:
        raise ValueError(f"{path.name} is refused: {error}; it is a pickle, of which only the known are read") from None
    return raw


def read_pickle(path: Path) -> Any:
    """The array, CSR matrix or adjacency list in a known file."""
    raw = read_known(path)
    with refused(path.name, "one of Planetoid's files"):
        return KnownNames(io.BytesIO(raw), encoding="latin-1").load()


def read_planetoid(folder: Path, name: str, class_names: tuple[str, ...]) -> Graph:
    """A Planetoid data set with its published split: 20 nodes per class train, the next 500 validate, test.index tests.

    Nodes that are in neither `allx` nor the test index (15 of Citeseer) have no features and no label.
    """
    parts = {part: read_pickle(folder / f"ind.{name}.{part}") for part in PLANETOID_PARTS[:-1]}
    test = np.array(read_known(folder / f"ind.{name}.test.index").split(), dtype=np.int64)
    n, num_all = len(parts["graph"]), parts["allx"].shape[0]
    row = np.full(n, num_all + len(test))  # of each node among those of allx, tx, and one row of zeros
    row[:num_all] = np.arange(num_all)
    row[test] = num_all + np.arange(len(test))
    num_features, num_classes = parts["allx"].shape[1], parts["ally"].shape[1]
    x = scipy.sparse.vstack([parts["allx"], parts["tx"], scipy.sparse.csr_array((1, num_features))]).tocsr()[row]
    one_hot = np.concatenate([parts["ally"], parts["ty"], np.zeros((1, num_classes))])[row]
    neighbours = parts["graph"]
    source = np.repeat(np.fromiter(neighbours, np.int64), [len(ends) for ends in neighbours.values()])
    target = np.array([end for ends in neighbours.values() for end in ends], dtype=np.int64)
    graph = Graph.from_edges(
        np.stack([source, target], axis=1),
        num_nodes=n,
        x=x,
        y=np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1),
        class_names=class_names if len(class_names) == num_classes else map(str, range(num_classes)),
        name=name,
    )
    train, val, tested = (torch.zeros(n, dtype=torch.bool) for _ in range(3))
    num_train = len(parts["y"])
    train[:num_train] = True
    val[num_train : num_train + NUM_PUBLIC_VAL] = True
    tested[torch.from_numpy(test)] = True
    return dataclasses.replace(graph, published=(Split(train, val & ~tested, tested, "official"),))
