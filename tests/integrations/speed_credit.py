"""Shuffled batches of four samples of CREDIT's local source: 2 fields of 3 of 6 levels, 2 of one level, radiation, 2 static and 1
diagnostic field of 96 x 192 cells, one time in each chunk, two stores. CREDIT's own DataLoader with two workers, and the adapter.
It runs with build/integrations/credit in PYTHONPATH."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import credit_stores as stores
from credit.trainers import utils
from dali_zarr.integrations import credit

own_dataloader = utils.load_dataloader


def epoch(loader: Any) -> int:
    return sum(len(batch["target"]["ERA5"]["ERA5/prognostic/2d/SP"]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    logging.disable(logging.WARNING)
    stores.write(folder, 20, (96, 192))
    data = stores.data({"ERA5": stores.source(folder)}, start_datetime="2017-12-13", end_datetime="2018-01-19")
    conf = stores.configuration(data, 4)
    conf["trainer"]["thread_workers"] = 2
    made = (conf, utils.load_dataset(conf, True), 0, 1, True)
    loaders = {"CREDIT": own_dataloader(*made), "dali_zarr": credit.load_dataloader(*made, device="cpu")}
    yield "samples of 10 fields", {name: partial(epoch, loader) for name, loader in loaders.items()}
