"""Random stores with damaged chunks, and what a reader that goes on without them must deliver, in NumPy."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.stores import Layout, write_array

# Codecs of which any changed byte is found. With the others only a missing end is.
CHECKED = ("zstd-checksum", "crc32c", "zstd+crc32c", "gzip+crc32c")
UNCHECKED = ("none", "zstd", "gzip", "blosc-lz4-shuffle", "blosc-zstd-bitshuffle", "numcodecs-lz4", "numcodecs-bz2")
DIMS = ("time", "lat", "lon")


@dataclass
class Damaged:
    """An array, and which of its decoded chunks are bad."""

    name: str
    values: np.ndarray
    fill: float
    layout: Layout
    # Coordinates in the grid of decoded chunks, with the key and the coordinates that are listed.
    bad: dict[tuple[int, ...], tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)

    def chunks_of(self, times: set[int]) -> set[tuple[int, ...]]:
        """Returns the decoded chunks with these elements along time."""
        rows = {t // self.layout.chunks[0] for t in times}
        grid = [range(-(-n // c)) for n, c in zip(self.values.shape[1:], self.layout.chunks[1:], strict=True)]
        return {(row, *rest) for row in rows for rest in itertools.product(*grid)}

    def is_bad(self) -> np.ndarray:
        """Returns whether each element lies in a bad chunk."""
        found = np.zeros(self.values.shape, bool)
        for coords in self.bad:
            found[tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, self.layout.chunks, strict=True))] = True
        return found

    def decoded(self, dtype: str | None = None) -> np.ndarray:
        """Returns the elements with NaN, or the fill value, in place of the bad ones."""
        dtype = dtype or str(self.values.dtype)
        found = self.values.astype(dtype)
        found[self.is_bad()] = np.nan if np.dtype(dtype).kind == "f" else self.fill
        return found


def write(rng: np.random.Generator, path: Path, steps: int, names: tuple[str, ...], dtypes: tuple[str, ...]) -> list[Damaged]:
    """Writes random arrays along time, without damage."""
    return [_array(rng, path, steps, name, str(rng.choice(dtypes))) for name in names]


def _array(rng: np.random.Generator, path: Path, steps: int, name: str, dtype: str) -> Damaged:
    shape = (steps, int(rng.integers(2, 7)), int(rng.integers(2, 9)))
    values = rng.integers(1, 100, shape).astype(dtype)
    chunks = (int(rng.integers(1, 5)), int(rng.integers(1, shape[1] + 1)), shape[2])
    shards, location, codec = None, "end", str(rng.choice([*CHECKED, *UNCHECKED]))
    if rng.random() < 0.4:
        shards = tuple(int(c * rng.integers(1, 4)) for c in chunks)
        location = str(rng.choice(["start", "end"]))
    layout, fill = Layout(chunks, shards=shards, index_location=location), int(rng.integers(0, 2)) * 7
    write_array(path, name, values, codec=codec, layout=layout, dims=DIMS, fill_value=fill)
    return Damaged(name, values, fill, layout, _checked(codec))


def _checked(codec: str) -> Any:
    return _Bad(codec in CHECKED)


class _Bad(dict[tuple[int, ...], tuple[str, "tuple[int, ...] | None"]]):
    """The bad chunks of an array, and whether its codecs find any change."""

    def __init__(self, is_checked: bool):
        super().__init__()
        self.is_checked = is_checked


def damage(rng: np.random.Generator, path: Path, array: Damaged, share: float) -> None:
    """Damages about this share of an array's files, and notes which chunks are bad."""
    stored = array.layout.shards or array.layout.chunks
    for coords in np.ndindex(*(-(-n // c) for n, c in zip(array.values.shape, stored, strict=True))):
        if rng.random() >= share:
            continue
        key = f"{array.name}/c/" + "/".join(map(str, coords))
        file = path / key
        content = bytearray(file.read_bytes())
        is_checked = getattr(array.bad, "is_checked", False)
        kind = str(rng.choice(["cut", "empty", "flip"] if is_checked else ["cut", "empty"]))
        if array.layout.shards is None:
            _break(rng, content, kind)
            array.bad[coords] = (key, None)
        else:
            _break_shard(rng, content, kind, array, coords, key)
        file.write_bytes(content)


def _break(rng: np.random.Generator, content: bytearray, kind: str) -> None:
    if kind == "flip":
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    else:
        del content[0 if kind == "empty" else int(rng.integers(len(content))) :]


def _break_shard(
    rng: np.random.Generator, content: bytearray, kind: str, array: Damaged, shard: tuple[int, ...], key: str,
) -> None:
    """Damages a shard: one inner chunk, or its index, with which all inner chunks are bad."""
    shards = array.layout.shards
    assert shards is not None
    grid = tuple(s // c for s, c in zip(shards, array.layout.chunks, strict=True))
    of_grid = [-(-n // c) for n, c in zip(array.values.shape, array.layout.chunks, strict=True)]
    inner = [tuple(s * g + i for s, g, i in zip(shard, grid, at, strict=True)) for at in np.ndindex(*grid)]
    within = [all(i < n for i, n in zip(coords, of_grid, strict=True)) for coords in inner]
    size = 16 * len(inner) + 4
    if kind == "flip" and rng.random() < 0.7:
        index = content[-size:-4] if array.layout.index_location == "end" else content[: size - 4]
        places = list(struct.iter_unpack("<QQ", bytes(index)))
        at = int(rng.choice([i for i, is_there in enumerate(within) if is_there and places[i][1] < 2**63]))
        offset, length = places[at]
        content[offset + int(rng.integers(length))] ^= 1 << int(rng.integers(8))
        array.bad[inner[at]] = (key, inner[at])
        return
    if kind == "flip":
        first = len(content) - size if array.layout.index_location == "end" else 0
        content[first + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
    else:
        _break(rng, content, kind)
    array.bad.update({coords: (key, None) for coords, is_there in zip(inner, within, strict=True) if is_there})


def replaced(samples: list[int], epochs: list[int], is_bad: Any, k: int) -> int | None:
    """Returns the sample that comes as number ``k`` of an order, if others take the places of those that need bad chunks; None:
    there is none."""
    of_epoch = [i for i, epoch in enumerate(epochs) if epoch == epochs[k]]
    others = [i for i in of_epoch if i >= k] + [i for i in of_epoch if i < k]
    return next((samples[i] for i in others if not is_bad(samples[i])), None)
