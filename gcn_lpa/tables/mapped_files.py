"""Dense features that stay on the disk: a .npy file, memory-mapped."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcn_lpa.tables.untrusted import MAX_COLUMNS, refused

NAME = "features.npy"
READ_AT_ONCE = 1 << 22  # numbers that are looked at to find one that is not finite


def mapped_features(path: Path, num_nodes: int) -> Tensor:
    """The rows of a .npy file of float32 or float16, one for each node, memory-mapped; every number is finite."""
    with refused(path, "a .npy file of numbers"):
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = header(file)
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
            raise ValueError(
                f"{path.name}, row {row}, column {column} is {x[row, column]}; a feature is a finite number"
            )
    return torch.from_numpy(x)
