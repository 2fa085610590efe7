"""Batches of four samples of three dates from a data set of 360 dates, 20 variables and 4608 cells: anemoi-training's own
DataLoader with two workers, and the adapter. It runs in the environment of anemoi-training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from anemoi.training.data.data_reader import NativeGridDataset
from anemoi.training.data.multidataset import MultiDataset
from anemoi.training.utils.worker_init import worker_init_func
from dali_zarr.integrations.anemoi import BatchLoader
from torch.utils.data import DataLoader

DATES, VARIABLES, CELLS = 360, 20, 4608


def write(path: Path) -> None:
    """A store as anemoi-datasets writes it: one date in each chunk."""
    group = zarr.open_group(str(path), mode="w")
    rng = np.random.default_rng(0)
    values = rng.normal(size=(DATES, VARIABLES, 1, CELLS)).cumsum(-1).astype("f4")
    data = group.create_dataset("data", data=values, chunks=(1, VARIABLES, 1, CELLS))
    data.attrs["_ARRAY_DIMENSIONS"] = ["time", "variable", "ensemble", "cell"]
    dates = np.datetime64("2020-01-01", "s") + np.arange(DATES) * np.timedelta64(6, "h").astype("m8[s]")
    group.create_dataset("dates", data=dates)
    for name in ("latitudes", "longitudes"):
        group.create_dataset(name, data=rng.random(CELLS))
    for name in ("mean", "stdev", "minimum", "maximum"):
        group.create_dataset(name, data=np.ones(VARIABLES))
    group.attrs.update(
        variables=[f"v{i}" for i in range(VARIABLES)], frequency="6h", resolution="o96", version="0.20", missing_dates=[],
        variables_metadata={}, start_date=str(dates[0]), end_date=str(dates[-1]),
    )


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    write(folder / "data.zarr")

    def made() -> Any:
        return MultiDataset({"data": NativeGridDataset(dataset=str(folder / "data.zarr"))}, {"data": [-1, 0, 1]}, shuffle=True)

    theirs: Any = DataLoader(
        made(), batch_size=4, num_workers=2, worker_init_fn=worker_init_func, prefetch_factor=2, persistent_workers=True,
        multiprocessing_context="fork",
    )
    own = BatchLoader(made(), 4, 2, True, "cpu")
    loaders = {"anemoi-training": theirs, "dali_zarr": own}
    yield "samples of three dates", {name: partial(epoch, loader) for name, loader in loaders.items()}


def epoch(loader: Any) -> int:
    return sum(len(batch["data"]) for batch in loader)
