"""The samples that ranks share in ranks.py, what the documentation promises of them, and how broken promises are noticed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from support.fields import weather_fields

# Hours in a chunk. Seven, so that the shards of 2 and of 4 ranks end within chunks. Arrays without hours have one chunk.
CHUNKS = {"t2m": 7, "u10": 1}
STATIC = "orography"


@dataclass(frozen=True)
class Case:
    """Samples and their order."""

    name: str
    arrays: tuple[str, ...]
    shuffled: bool = True
    offsets: tuple[int, ...] = (0,)

    @property
    def file(self) -> str:
        return self.name.replace(",", "").replace(" ", "-")

    def needs(self, samples: Iterable[int]) -> set[tuple[str, int]]:
        """Returns the chunks of these samples."""
        times = {sample + offset for sample in samples for offset in self.offsets}
        return {(array, time // CHUNKS[array] if array in CHUNKS else 0) for array in self.arrays for time in times}

    def most(self, chunks: int, ranks: int, window: int) -> int:
        """Returns how often all ranks together may read chunks in the first epoch, with shuffling windows of ``window``
        samples.

        A chunk is read once, or up to twice where shuffled pairs reach beyond it. At each border between ranks, both
        may read the same chunks: one if samples come in order, else those of a shuffling window. Each rank reads an
        array without hours once.
        """
        static = int(STATIC in self.arrays)
        hours, times = CHUNKS[self.arrays[0]], len(self.offsets) if self.shuffled else 1
        border = 1
        if self.shuffled:
            border = 0 if hours == 1 else times * (math.ceil(window / hours) + 1)
        return (chunks - static) * times + (ranks - 1) * border + static * ranks


CASES = (
    Case("in sequence, 7 hours a chunk", ("t2m",), shuffled=False),
    Case("shuffled, 7 hours a chunk", ("t2m",)),
    Case("shuffled, with orography", ("t2m", STATIC)),
    Case("pairs shuffled, 7 hours a chunk", ("t2m",), offsets=(0, 1)),
    Case("shuffled, 1 hour a chunk", ("u10",)),
    Case("pairs shuffled, 1 hour a chunk", ("u10",), offsets=(0, 1)),
)
RESUMED = tuple(case for case in CASES if case.arrays == ("t2m",))


def write(path: Path, samples: int) -> None:
    """Writes ERA5-like hours of two arrays, and a field that has no hours."""
    group = zarr.open_group(path, mode="w")
    dims = ["time", "lat", "lon"]
    for seed, (name, hours) in enumerate(CHUNKS.items()):
        values = weather_fields(samples, 32, 64, seed=seed)
        group.create_array(name, data=values, chunks=(hours, 32, 64), dimension_names=dims)
    group.create_array(STATIC, data=weather_fields(1, 32, 64, seed=9)[0], chunks=(32, 64), dimension_names=dims[1:])


def not_once(seen: Iterable[int], samples: int, where: str) -> list[str]:
    """Returns a sentence, unless these are all samples, each exactly once."""
    counts, every = Counter(seen), set(range(samples))
    kinds = {
        "came more than once": {sample for sample, count in counts.items() if count > 1},
        "never came": every - counts.keys(),
        "don't exist": counts.keys() - every,
    }
    found = [f"{len(which)} {kind} (the first is {min(which)})" for kind, which in kinds.items() if which]
    return [f"{where}: expected each of {samples} samples once, but {', '.join(found)}."] if found else []


def not_equal(found: npt.NDArray[Any], wanted: npt.NDArray[Any], where: str) -> list[str]:
    """Returns a sentence, unless these values have the same bits as zarr-python's."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return [f"{where}: expected {wanted.dtype} {wanted.shape}, but found {found.dtype} {found.shape}."]
    if found.tobytes() != wanted.tobytes():
        # By the bits, so that NaN equals NaN, and 0 doesn't equal -0.
        unequal = np.frombuffer(found.tobytes(), np.uint8) != np.frombuffer(wanted.tobytes(), np.uint8)
        return [f"{where}: expected zarr-python's values, but found {np.count_nonzero(unequal)} other bytes."]
    return []


def too_many(read: int, most: int, evictions: int, where: str) -> list[str]:
    """Returns a sentence for more reads than promised. It names evictions: if memory is short, chunks are evicted and
    read again."""
    told = f"{where}: expected at most {most} reads in the first epoch, but found {read} or more, and {evictions} evictions."
    return [told] if read > most else []
