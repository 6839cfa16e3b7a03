"""Parquet files: columns of numbers, text or anything else, by name."""

from __future__ import annotations

from pathlib import Path

from gcn_lpa.tables.columns import Table, series


def read_parquet(path: Path) -> Table:
    import pandas

    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'gcn-lpa[io]'") from error
    except Exception as error:  # pyarrow has its own errors for a damaged file
        raise ValueError(f"{path} is not a Parquet file that can be read ({error})") from error
    columns = {str(name): series(frame[name].tolist()) for name in frame.columns}
    return Table(path, columns, range(1, len(frame) + 1))
