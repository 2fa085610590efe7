"""Pushes of samples to readers whose order is the caller's."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import library
from .library import check, loaded

# What a push returns if as much waits as may wait, and the place of samples whose place doesn't matter.
_FULL, _NO_PLACE = -1, 2**64 - 2


def push(reader: int, numbers: npt.NDArray[np.int64], epoch: int, place: int | None) -> bool:
    """Pushes the samples of the next batch to the reader with this number. ``place``: of the first one in its epoch; None: random
    crops don't depend on it. Returns False if as much waits as may wait.

    Raises:
        IndexError: There is no such sample.
        ValueError: There are none, or more than in a batch; or the reader's order is its own.
    """
    first = _NO_PLACE if place is None else place
    # ctypes takes bytes in less time than NumPy takes for the address.
    status = loaded().dali_zarr_push(reader, numbers.tobytes(), len(numbers), epoch, first)
    if status == _FULL:
        return False
    check(status)
    return True


def push_batches(reader: int, samples: Sequence[bytes], sizes: Sequence[int], epoch: int, places: Sequence[int]) -> int:
    """Pushes the next batches of an epoch: the numbers of their samples, each a row of int64, how many each has, and the places of
    their first ones. Returns how many batches were pushed: fewer if as much waits as may wait, or if one isn't right, for which
    the next call raises.

    Raises:
        IndexError, ValueError: As :func:`push`, for the first batch.
    """
    # The call takes microseconds, so it keeps Python's lock.
    called, pushed, count = library.with_gil() or loaded(), ctypes.c_size_t(), len(samples)
    status = called.dali_zarr_push_batches(
        reader, b"".join(samples), struct.pack(f"{count}N", *sizes), struct.pack(f"{count}Q", *places), count, epoch,
        ctypes.byref(pushed),
    )
    if status != _FULL and not pushed.value:
        check(status)
    return pushed.value


def find(reader: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the numbers of samples, given by their rows (sample, column) in the index, for the reader with this number.

    Raises:
        IndexError: There is no such sample.
        ValueError: The index has another number of columns, or starts are drawn at random.
    """
    found = np.empty(len(rows), np.int64)
    check(loaded().dali_zarr_find(reader, rows.ctypes.data, *rows.shape, found.ctypes.data))
    return found
