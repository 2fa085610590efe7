"""A store and short-hands for the tests of dali_zarr.torch.Loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.stores import Layout, write_array

STEPS = 23
HOURS = np.arange("2020-01-01", "2020-01-02", dtype="datetime64[h]").astype("datetime64[ns]")[:STEPS]


def write(base: Path) -> Path:
    """Numbered samples, fields that belong to them, hours and levels."""
    write_array(base, "n", np.arange(STEPS, dtype=np.int64), layout=Layout((4,)), dims=("time",))
    write_array(base, "u", np.arange(STEPS, dtype=np.uint16) + 65000, layout=Layout((4,)), dims=("time",))
    write_array(base, "row", np.arange(STEPS * 3, dtype="float32").reshape(STEPS, 3), layout=Layout((4, 3)), dims=("time", "lat"))
    write_array(base, "field", fields(), layout=Layout((2, 2, 3, 4)), dims=("time", "level", "lat", "lon"))
    write_array(base, "level", np.array([1000, 500], dtype="int32"), dims=("level",))
    write_array(base, "lat", np.array([0.5, 1.5, 2.5]), dims=("lat",))
    write_array(
        base, "time", np.arange(STEPS, dtype=np.int64), dims=("time",),
        attributes={"units": "hours since 2020-01-01", "calendar": "standard"},
    )
    return base


def fields() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((STEPS, 2, 3, 5)).astype("float32")


def make(path: Path, device: str = "cpu", batch_size: int = 4, **args: Any):
    """Makes a loader with small memory limits. It reads the array ``n`` if no arrays are named, and gives each sample once."""
    from dali_zarr.torch import Loader

    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    return Loader(path, device=device, batch_size=batch_size, **limits, **({"arrays": ["n"], "uneven": "exact"} | args))


def numbers(batches) -> list[list[int]]:
    return [batch["n"].tolist() for batch in batches]


def flat(epoch) -> list[int]:
    return [n for batch in epoch for n in batch]
