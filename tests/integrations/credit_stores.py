"""Stores for CREDIT, written by xarray as its users write them, and configurations that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

LEVELS = [10, 30, 60, 90, 120, 137]
LATITUDES, LONGITUDES = 12, 20
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}


def write(folder: Path, days: int = 5, cells: tuple[int, int] = (LATITUDES, LONGITUDES), **encoding: Any) -> None:
    """Two years of a few days each side of the new year, as one store a year: six-hourly fields on levels and one level, radiation,
    a daily sea surface temperature, a daily climatology, and fields that don't vary in time."""
    rng = np.random.default_rng(0)
    where = {"latitude": np.linspace(80, -80, cells[0]), "longitude": np.arange(cells[1]) * 360 / cells[1]}

    def field(*shape: int) -> Any:
        return (rng.normal(size=(*shape, *cells)).cumsum(-1) / 10).astype("f4")

    flat = ("time", "latitude", "longitude")
    deep = ("time", "level", "latitude", "longitude")
    for year in (2017, 2018):
        first = pd.Timestamp("2018-01-01") - pd.Timedelta(days=days) if year == 2017 else pd.Timestamp("2018-01-01")
        times = pd.date_range(first, periods=4 * days, freq="6h")
        variables: dict[str, Any] = {name: (deep, field(len(times), len(LEVELS))) for name in ("T", "U")}
        variables |= {name: (flat, field(len(times))) for name in ("SP", "tp")} | {"t2m": (flat, field(len(times)) + 280)}
        how: dict[str, Any] = {name: {"chunks": (1, *one[1].shape[1:])} | encoding for name, one in variables.items()}
        how["t2m"] |= PACKED
        xr.Dataset(variables, where | {"time": times, "level": LEVELS}).to_zarr(folder / f"era5_{year}.zarr", encoding=how)
        sun = xr.Dataset({"tsi": (flat, field(len(times)).astype("f8"))}, where | {"time": times})
        sun.to_zarr(folder / f"solar_{year}.zarr", encoding={"tsi": {"chunks": (4, *cells)} | encoding})
        noons = pd.date_range(first, periods=days, freq="24h")
        sea = field(days)
        sea[:, 0, 0] = np.nan
        xr.Dataset({"sst": (flat, sea)}, where | {"time": noons}).to_zarr(folder / f"sst_{year}.zarr")
    year = pd.date_range("2000-01-01", "2000-12-31", freq="24h")
    xr.Dataset({"ozone": (flat, field(len(year)))}, where | {"time": year}).to_zarr(folder / "ozone.zarr")
    fixed = {name: (flat[1:], field()) for name in ("Z", "LSM")}
    xr.Dataset(fixed, where).to_zarr(folder / "static.zarr")
    with_time = {name: (flat, values[None]) for name, (_, values) in fixed.items()}
    xr.Dataset(with_time, where | {"time": times[:1]}).to_zarr(folder / "dated.zarr")
    noleap = xr.date_range("2017-12-27", periods=8 * days, freq="6h", calendar="noleap", use_cftime=True)
    xr.Dataset({"SP": (flat, field(len(noleap)))}, where | {"time": noleap}).to_zarr(folder / "cesm.zarr")


def source(folder: Path, **more: Any) -> dict[str, Any]:
    """A source with all types of fields."""
    era5 = {"path": f"{folder}/era5_%Y.zarr"}
    variables = {
        "prognostic": {"vars_3D": ["T", "U"], "vars_2D": ["SP", "t2m"], **era5},
        "dynamic_forcing": {"vars_2D": ["tsi"], "path": f"{folder}/solar_%Y.zarr"},
        "static": {"vars_2D": ["Z", "LSM"], "path": f"{folder}/static.zarr"},
        "diagnostic": {"vars_2D": ["tp"], **era5},
    }
    variables |= more.pop("variables", {})
    return {"dataset_type": "local", "level_coord": "level", "levels": [10, 60, 137], "variables": variables} | more


def only(folder: Path, kind: str, variable: str, file: str, **more: Any) -> dict[str, Any]:
    """A source of one variable."""
    return {"dataset_type": "local", "variables": {kind: {"vars_2D": [variable], "path": f"{folder}/{file}"}}} | more


def data(sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The ``data`` of a configuration."""
    times = {"start_datetime": "2017-12-31", "end_datetime": "2018-01-02", "timestep": "6h"}
    return {"source": sources, "forecast_len": 1, "history_len": 1} | times | more


def configuration(of: dict[str, Any], batch_size: int = 3, **more: Any) -> dict[str, Any]:
    """What ``load_dataset`` and ``load_dataloader`` take."""
    trainer = {"train_batch_size": batch_size, "valid_batch_size": batch_size, "thread_workers": 0, "valid_thread_workers": 0}
    return {"data": of, "seed": 7, "trainer": trainer} | more
