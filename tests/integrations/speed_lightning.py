"""Epochs of Lightning's trainer with a model that computes nothing: windows of 4 hours by a DataLoader over zarr-python with two
workers, and by the data module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
import zarr
from dali_zarr.integrations.lightning import DataModule

HOURS, WINDOW = 720, 4


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """What a DataLoader takes."""

    def __init__(self, path: Path):
        self.t2m = zarr.open_group(str(path), mode="r")["t2m"]

    def __len__(self) -> int:
        return HOURS - WINDOW + 1

    def __getitem__(self, hour: int) -> dict[str, torch.Tensor]:
        return {"t2m": torch.from_numpy(self.t2m[hour : hour + WINDOW])}


class Model(lightning.LightningModule):
    count = 0

    def training_step(self, batch: Any, _: int) -> None:
        self.count += len(batch["t2m"])

    def configure_optimizers(self) -> None:
        return None


def epoch(make: Callable[[], Any]) -> int:
    model = Model()
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet).fit(model, make())
    return model.count


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = folder / "era5.zarr"
    values = np.random.default_rng(0).normal(size=(HOURS, 91, 180)).cumsum(-1).astype("f4")
    group = zarr.open_group(str(path), mode="w")
    array = group.create_array("t2m", shape=values.shape, chunks=(24, 91, 180), dtype="f4", dimension_names=("time", "lat", "lon"))
    array[:] = values
    windows: Any = torch.utils.data.DataLoader(Windows(path), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    data = DataModule(path=path, arrays=["t2m"], window=[WINDOW], step=1, batch_size=16, random_shuffle=True, train=slice(None))
    yield "windows of 4 hours", {"DataLoader": partial(epoch, lambda: windows), "dali_zarr": partial(epoch, lambda: data)}
