"""What z5 (C++) writes: v2, and v3 with shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configurations import values as random_values
from support.foreign import Foreign, compare, writer, zarr_python

z5py = writer("z5py")

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


def random_array(rng: np.random.Generator, folder: Path) -> Foreign:
    """An array of either format, written whole or in part."""
    zarr_format = int(rng.integers(2, 4))
    dtype = str(rng.choice(TYPES))
    shape = tuple(int(n) for n in rng.integers(1, 24, int(rng.integers(1, 5))))
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    compression = str(rng.choice(["raw", "gzip", "blosc", "zstd", *(["zlib", "bzip2"] if zarr_format == 2 else [])]))
    options: dict[str, Any] = {"fillvalue": int(rng.integers(0, 5)), "compression": compression}
    if zarr_format == 3 and rng.random() < 0.5:
        options["shards"] = tuple(c * int(rng.integers(1, 4)) for c in chunks)
    name = str(rng.choice(["a", "deep/er/a"]))
    file = z5py.ZarrFile(str(folder), "w", dimension_separator=str(rng.choice([".", "/"])), zarr_format=zarr_format)
    group = file.require_group(name.rpartition("/")[0]) if "/" in name else file
    dataset = group.create_dataset(name.rpartition("/")[2], shape=shape, chunks=chunks, dtype=dtype, **options)
    values = random_values(rng, dtype, shape)
    box = tuple(slice(int(rng.integers(0, n)) if rng.random() < 0.2 else 0, None) for n in shape)
    written = np.full(shape, options["fillvalue"], dtype)
    written[box] = values[box]
    dataset[box] = values[box]
    references = {"what was written": written, "z5": dataset[...], "zarr-python": zarr_python(folder, name)}
    return Foreign(folder, name, references)


@pytest.mark.parametrize("seed", range(12))
def test_random(tmp_path, device, seed):
    """A fixed sample of arrays."""
    compare(device, random_array(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


# For the long search by tests/random_foreign.py.
RANDOM = (random_array,)
