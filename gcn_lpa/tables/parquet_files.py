"""Parquet files and DataFrames: columns of numbers, text or anything else, by name.

A file of a few bytes can hold a billion rows, or one long text a million times, so what it would unpack to is counted first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcn_lpa.intake import some
from gcn_lpa.tables.columns import MAX_COLUMNS, Table, series

FREE_CELLS, CELLS_PER_BYTE = 2_000_000, 100  # that a file may hold: beyond, no table of nodes or edges is so uniform
FREE_BYTES, BYTES_PER_BYTE = 100 * 2**20, 100  # the same of its text, unpacked


def read_parquet(path: Path) -> Table:
    import pandas

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    try:
        _check_size(path, pyarrow.parquet)
        frame = pandas.read_parquet(path)
        columns = _columns_of(frame)
    except MemoryError:
        raise
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error!s:.300})") from error
    return _table(path, frame, columns)


def read_frame(frame: Any, role: str) -> Table:
    """A table of a DataFrame; errors call it by its role and count its rows from 1."""
    return _table(Path("graph", f"the frame of {role}"), frame, _columns_of(frame))


def _columns_of(frame: Any) -> dict[str, Any]:
    names = dict.fromkeys(frame.columns)
    return {str(name): series(frame.loc[:, name].tolist()) for name in names if list(frame.columns).count(name) == 1}


def _table(path: Path, frame: Any, columns: dict[str, Any]) -> Table:
    if len(columns) < len(frame.columns):
        names = [str(name) for name in frame.columns]
        raise ValueError(f"{path.name} has two columns of one name among {some(names)}; each needs a name of its own")
    return Table(path, columns, range(1, len(frame) + 1))


def _check_size(path: Path, parquet: Any) -> None:
    """Refuse a file that would unpack to far more than its size: what its metadata say, and then its text."""
    size, facts = path.stat().st_size, parquet.read_metadata(path)
    if facts.num_columns > MAX_COLUMNS:
        raise ValueError(f"it has {facts.num_columns:,} columns; at most {MAX_COLUMNS:,} are read")
    groups = [facts.row_group(k) for k in range(facts.num_row_groups)]
    values = sum(group.column(k).num_values for group in groups for k in range(facts.num_columns))
    cells, unpacked = max(values, facts.num_rows), sum(group.total_byte_size for group in groups)
    if cells > FREE_CELLS + CELLS_PER_BYTE * size:
        raise ValueError(f"it says that it holds {cells:,} cells, in {size:,} bytes")
    leaves = [facts.schema.column(k) for k in range(facts.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    if max(unpacked, 0) <= FREE_BYTES + BYTES_PER_BYTE * size and texts:  # each text once, and how often it occurs
        table = parquet.read_table(path, read_dictionary=texts)
        unpacked = sum(_text_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if unpacked > FREE_BYTES + BYTES_PER_BYTE * size:
        raise ValueError(f"it would unpack to {unpacked:,} bytes, from {size:,}")


def _text_bytes(array: Any) -> int:
    """How many bytes the text of an Arrow array has when each cell has its own."""
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.cast(compute.binary_length(array.dictionary), pyarrow.int64())
        return compute.sum(lengths.take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_text_bytes, array.flatten()))
    return _text_bytes(array.values) if pyarrow.types.is_nested(kind) else array.nbytes
