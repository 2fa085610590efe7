"""A store of ragged rows, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.pipelines import build, same
from support.stores import Layout, write_array

RAGGED = ("X/data", "X/indices", "X/xyz", "frames")
DENSE = ("obs/label", "obsm/pca")
ARRAYS = [*RAGGED, *DENSE]
COLUMNS = 500


@dataclass
class Store:
    """What was written: each row is ``offsets[i]`` to ``offsets[i + 1]`` of the ragged arrays."""

    path: Path
    offsets: np.ndarray
    values: dict[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def row(self, name: str, i: int, max_length: int | None = None) -> np.ndarray:
        """The sample of row ``i`` of an array."""
        if name in DENSE:
            return self.values[name][i]
        start, end = (int(offset) for offset in self.offsets[i : i + 2])
        return self.values[name][start : end if max_length is None else min(end, start + max_length)]


def random_offsets(rng: np.random.Generator, rows: int, longest: int) -> np.ndarray:
    """Draws offsets of rows. Some rows are empty, among them the first and the last."""
    lengths = rng.integers(0, longest + 1, rows)
    lengths[rng.random(rows) < 0.25] = 0
    lengths[[0, -1]] = 0
    return np.concatenate([[0], np.cumsum(lengths)])


def write(path: Path, rng: np.random.Generator, rows: int = 100, longest: int = 40, zarr_format: int = 3) -> Store:
    """One array of each kind, in chunks that fit neither the rows nor each other; one in shards where the format has them."""
    offsets = random_offsets(rng, rows, longest)
    total = int(offsets[-1])
    values = {
        "X/data": rng.standard_normal(total).astype("float32"),
        "X/indices": rng.integers(0, COLUMNS, total).astype("int32"),
        "X/xyz": rng.standard_normal((total, 3)),
        "frames": rng.integers(0, 256, (total, 4, 5)).astype("uint8"),
        "obs/label": np.arange(rows),
        "obsm/pca": rng.standard_normal((rows, 6)).astype("float32"),
    }
    layouts = {
        "X/data": Layout((53,)), "X/indices": Layout((101,)),
        "X/xyz": Layout((17, 2), shards=(68, 4) if zarr_format == 3 else None),
        "frames": Layout((29, 4, 3)), "obs/label": Layout((7,)), "obsm/pca": Layout((11, 6)),
    }
    codecs = {"X/data": "zstd", "X/indices": "blosc-lz4-shuffle", "frames": "none", "obsm/pca": "gzip"}
    dims = {
        "X/data": ("element",), "X/indices": ("element",), "X/xyz": ("element", "axis"), "frames": ("element", "y", "x"),
        "obs/label": ("obs",), "obsm/pca": ("obs", "component"),
    }
    for name, array in values.items():
        codec = codecs.get(name, "zstd")
        write_array(path, name, array, zarr_format=zarr_format, codec=codec, layout=layouts[name], dims=dims[name])
    write_array(path, "X/indptr", offsets, zarr_format=zarr_format, layout=Layout((13,)))
    write_array(path, "meta/ends", offsets[1:].astype("int32"), zarr_format=zarr_format, layout=Layout((9,)))
    return Store(path, offsets, values)


def samples(pipe: Any, count: int) -> Iterator[list[list[np.ndarray]]]:
    """Yields the batches of a pipeline: for each output its samples."""
    for _ in range(count):
        outputs = [out.as_cpu() if hasattr(out, "as_cpu") else out for out in pipe.run()]
        yield [[np.from_dlpack(out[i]).copy() for i in range(len(out))] for out in outputs]


def check(store: Store, device: str, batch_size: int, count: int, arrays=ARRAYS, **args) -> list[int]:
    """Compares ``count`` batches with NumPy; returns the rows that came, in their order."""
    by = {} if "ragged_ends" in args else {"ragged": "X/indptr"}
    pipe = build(device, batch_size, path=store.path, arrays=[*arrays, "obs/label"], **by, **args)
    seen: list[int] = []
    for batch in samples(pipe, count):
        rows = [int(row) for row in batch[-1]]
        for name, outputs in zip(arrays, batch, strict=False):
            for row, found in zip(rows, outputs, strict=True):
                same(found, np.asarray(store.row(name, row, args.get("max_length"))), f"{name}, row {row}")
        seen += rows
    return seen
