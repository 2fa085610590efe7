"""Shuffled batches of 8 samples of PhysicsNeMo's TimeSeriesDataModule: 3 fields on HEALPix of 12 x 32 x 32 cells, two times in, two
out, from a store of 96 times that it has written: its own DataLoader in this process, and the adapter. It runs with
build/integrations/physicsnemo in PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dali_zarr.integrations import physicsnemo as adapter
from physicsnemo.datapipes.healpix.data_modules import TimeSeriesDataModule
from physicsnemo_batches import made, write


def epoch(loader: Any) -> int:
    return sum(len(target) for _, target in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    write(folder, 96, 32)
    splits = {f"{part}_date_{end}": "2018-01-12T21" for part in ("train", "val", "test") for end in ("start", "end")}
    splits["train_date_start"] = "2018-01-01"
    how: dict[str, Any] = {"batch_size": 8, "input_time_dim": 2, "output_time_dim": 2, "splits": splits}
    kinds = {"PhysicsNeMo": TimeSeriesDataModule, "dali_zarr": adapter.TimeSeriesDataModule}
    loaders = {name: made(kind, folder, **how).train_dataloader()[0] for name, kind in kinds.items()}
    yield "two times in, two out", {name: partial(epoch, loader) for name, loader in loaders.items()}
