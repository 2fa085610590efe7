"""Tables of starts from lists of starts along each dimension."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def product(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Returns a row for each combination of one number of each column. The first column varies slowest.

    Raises:
        MemoryError: The machine has no room for the rows.
    """
    rows = math.prod(len(column) for column in columns)
    size = 8 * rows * len(columns)
    # Twice the size, since the library makes a copy.
    if 2 * size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise MemoryError(
            f"zarr_reader: sel, isel: the lists along dims make {rows} samples, whose starts take {size} bytes, more than there is "
            "room for; give slices, or fewer elements"
        )
    return np.stack(np.meshgrid(*columns, indexing="ij"), axis=-1).reshape(rows, len(columns))
