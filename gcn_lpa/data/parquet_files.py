"""Parquet files and DataFrames: columns of numbers, text or anything else, by name.

A file of a few bytes can hold a billion rows, or one long text a million times, so what it would unpack to is counted first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcn_lpa.data.hints import some
from gcn_lpa.data.table import MAX_COLUMNS, Series, Table, series

FREE_CELLS, CELLS_PER_BYTE = 2_000_000, 100  # that a file may hold: beyond, no table of nodes or edges is so uniform
FREE_BYTES, BYTES_PER_BYTE = 100 * 2**20, 100  # the same of its text, unpacked
PANDAS_INDEX = "__index_level_"  # how pandas names an index without a name


def read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    try:
        with path.open("rb") as file:
            table = _read(file, path.stat().st_size, pyarrow.parquet)
        names = [str(name) for name in table.column_names]
        columns = [series(_cells(column)) for column in table.columns]
    except MemoryError:
        raise
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error!s:.300})") from error
    return _table(path, names, columns, table.num_rows)


def read_frame(frame: Any, role: str) -> Table:
    """A table of a DataFrame; errors call it by its role and count its rows from 1."""
    columns = [series(frame.iloc[:, k].tolist()) for k in range(frame.shape[1])]
    return _table(Path("graph", f"the frame of {role}"), list(map(str, frame.columns)), columns, len(frame))


def _table(path: Path, names: list[str], columns: list[Series], num_rows: int) -> Table:
    if len(set(names)) < len(names):
        raise ValueError(f"{path.name} has two columns of one name among {some(names)}; each needs a name of its own")
    kept = {name: column for name, column in zip(names, columns, strict=True) if not name.startswith(PANDAS_INDEX)}
    return Table(path, kept, range(1, num_rows + 1))


def _read(file: Any, size: int, parquet: Any) -> Any:
    """The Arrow table in a file, whose texts are stored once each; one that would unpack to far more is refused."""
    facts = parquet.read_metadata(file)
    if facts.num_columns > MAX_COLUMNS:
        raise ValueError(f"it has {facts.num_columns:,} columns; at most {MAX_COLUMNS:,} are read")
    groups = [facts.row_group(k) for k in range(facts.num_row_groups)]
    values = sum(group.column(k).num_values for group in groups for k in range(facts.num_columns))
    cells, unpacked = max(values, facts.num_rows), sum(group.total_byte_size for group in groups)
    if cells > FREE_CELLS + CELLS_PER_BYTE * size:
        raise ValueError(f"it says that it holds {cells:,} cells, in {size:,} bytes")
    if unpacked <= FREE_BYTES + BYTES_PER_BYTE * size:
        leaves = [facts.schema.column(k) for k in range(facts.num_columns)]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        table = parquet.ParquetFile(file, metadata=facts, read_dictionary=texts).read()
        unpacked = sum(_num_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if unpacked > FREE_BYTES + BYTES_PER_BYTE * size:
        raise ValueError(f"it would unpack to {unpacked:,} bytes, from {size:,}")
    return table


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
