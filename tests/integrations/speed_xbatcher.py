"""Batches of an ERA5-like store of 90 MB: xbatcher's own generator, and the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import xbatcher
from dali_zarr.integrations.xbatcher import BatchGenerator

CUTS: dict[str, dict[str, Any]] = {
    "windows of 4 hours": {"input_dims": {"time": 4, "lat": 91, "lon": 180}},
    "patches of 4 x 32 x 32": {"input_dims": {"time": 4, "lat": 32, "lon": 32}},
    "batches of 10 patches": {"input_dims": {"lat": 32, "lon": 32}, "batch_dims": {"time": 4}, "concat_input_dims": True},
}


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 720, 91, 180)).cumsum(-1).astype("f4")
    dims = ("time", "lat", "lon")
    coordinates = {"lat": np.linspace(90, -90, 91), "lon": np.arange(180) * 2.0, "time": np.arange(720)}
    dataset = xr.Dataset({"t2m": (dims, values[0]), "msl": (dims, values[1])}, coordinates)
    dataset.to_zarr(folder / "era5.zarr", consolidated=False, encoding={name: {"chunks": (24, 91, 180)} for name in ("t2m", "msl")})
    for cut, how in CUTS.items():
        kinds = {"xbatcher": xbatcher.BatchGenerator, "dali_zarr": BatchGenerator}
        yield cut, {name: partial(epoch, folder / "era5.zarr", kind, how) for name, kind in kinds.items()}


def epoch(path: Path, kind: Any, how: dict[str, Any]) -> int:
    """Opens the dataset each time, since xbatcher may load what it doesn't cut."""
    return sum(batch.load().t2m.size > 0 for batch in kind(xr.open_zarr(path, consolidated=False), **how))
