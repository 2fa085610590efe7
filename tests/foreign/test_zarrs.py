"""What zarrs writes below zarr-python: the same metadata, but chunks and shards that Rust encoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from support.configurations import configuration
from support.foreign import Foreign, compare, tensorstore, writer, zarr_python

writer("zarrs")
writer("tensorstore")


def random_array(rng: np.random.Generator, folder: Path) -> Foreign:
    """One of the ways to store an array of v3 that test_random_configurations.py has, written by zarrs."""
    while (config := configuration(int(rng.integers(0, 1 << 31)))).arguments["zarr_format"] == 2:
        pass
    zarr.open_group(str(folder), mode="w", zarr_format=3)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        config.write(folder, "a")
    references = {
        "what was written": config.values, "zarr-python": zarr_python(folder, "a"), "tensorstore": tensorstore(folder, "a"),
    }
    return Foreign(folder, "a", references, list(config.arguments["dimension_names"]))


@pytest.mark.parametrize("seed", range(12))
def test_random(tmp_path, device, seed):
    """A fixed sample of arrays."""
    compare(device, random_array(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


# For the long search by tests/random_foreign.py.
RANDOM = (random_array,)
