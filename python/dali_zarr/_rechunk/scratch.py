"""The array between two copies as plain files, where tasks run in this process and write to a folder.

The system's page cache holds the files, so encoding and decoding them would cost more than it saves.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .layout import Wanted
from .state import FOLDER


class Scratch:
    """An array of plain files, with what tasks use of zarr-python's arrays. A chunk is a file with those of its
    elements that are inside of the array, in C order. A chunk without a file has the fill value."""

    shards = None

    def __init__(self, root: Path, array: Wanted, chunks: tuple[int, ...]):
        self.shape, self.ndim, self.chunks = array.shape, len(array.shape), chunks
        self.dtype, self.fill_value = array.dtype, array.fill_value
        self._folder = root / FOLDER / "scratch" / (array.name or "array")
        self._folder.mkdir(parents=True, exist_ok=True)

    def __setitem__(self, region: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        """Writes a region of whole chunks."""
        for file, _, within in self._chunks_of(region):
            with open(file, "wb", buffering=0) as out:
                _all(out.write, np.ascontiguousarray(block[within]))

    def __getitem__(self, region: tuple[slice, ...]) -> npt.NDArray[Any]:
        block = np.empty([part.stop - part.start for part in region], self.dtype)
        for file, chunk, within in self._chunks_of(region):
            into = block[within]
            shape = tuple(part.stop - part.start for part in chunk)
            whole = into if into.shape == shape and into.flags.c_contiguous else np.empty(shape, self.dtype)
            try:
                with open(file, "rb", buffering=0) as found:
                    _all(found.readinto, whole)
            except FileNotFoundError:
                whole[...] = self.fill_value
            if whole is not into:
                into[...] = whole[tuple(
                    slice(max(part.start - one.start, 0), part.stop - one.start) for part, one in zip(region, chunk, strict=True)
                )]
        return block

    def _chunks_of(self, region: tuple[slice, ...]) -> Iterator[tuple[str, tuple[slice, ...], tuple[slice, ...]]]:
        """Yields for each chunk in a region: its file, its place in the array, and the part of the region's block that
        is in it."""
        grid = [range(part.start // extent, -(-part.stop // extent)) for part, extent in zip(region, self.chunks, strict=True)]
        for at in itertools.product(*grid):
            chunk = tuple(
                slice(i * extent, min((i + 1) * extent, length))
                for i, extent, length in zip(at, self.chunks, self.shape, strict=True)
            )
            within = tuple(
                slice(max(one.start - part.start, 0), min(one.stop, part.stop) - part.start)
                for one, part in zip(chunk, region, strict=True)
            )
            yield os.path.join(self._folder, ".".join(map(str, at))), chunk, within


def _all(move: Any, array: npt.NDArray[Any]) -> None:
    """Reads or writes all bytes of an array: the system moves at most 2 GiB at a time."""
    flat: Any = array.reshape(-1).view(np.uint8)
    rest = memoryview(flat)
    while rest:
        count = move(rest)
        if not count:
            raise EOFError("an intermediate file is shorter than its chunk; remove the target")
        rest = rest[count:]
