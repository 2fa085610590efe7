"""Epochs of the Trainer of Transformers with a model that computes next to nothing: windows of 4 hours by a data set over
zarr-python with two workers, and by a store. It runs with build/integrations/transformers in PYTHONPATH."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import zarr
from dali_zarr.integrations.transformers import Data, Trainer

HOURS, WINDOW = 720, 4


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """What the Trainer takes."""

    def __init__(self, path: Path):
        self.t2m = zarr.open_group(str(path), mode="r")["t2m"]

    def __len__(self) -> int:
        return HOURS - WINDOW + 1

    def __getitem__(self, hour: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.from_numpy(self.t2m[hour : hour + WINDOW])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.count = torch.nn.Parameter(torch.zeros(())), 0

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count += len(pixel_values)
        return {"loss": self.weight * pixel_values[0, 0, 0, 0]}


def epoch(folder: Path, kind: Any, data: Any) -> int:
    quiet: Any = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    args = transformers.TrainingArguments(
        str(folder), num_train_epochs=1, per_device_train_batch_size=16, dataloader_num_workers=2, optim="sgd", **quiet,
    )
    model = Model()
    kind(model=model, args=args, train_dataset=data).train()
    return model.count


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    path = folder / "era5.zarr"
    values = np.random.default_rng(0).normal(size=(HOURS, 91, 180)).cumsum(-1).astype("f4")
    group = zarr.open_group(str(path), mode="w")
    array = group.create_array("t2m", shape=values.shape, chunks=(24, 91, 180), dtype="f4", dimension_names=("time", "lat", "lon"))
    array[:] = values
    data = Data(str(path), arrays={"pixel_values": "t2m"}, window=[WINDOW], step=1)
    theirs = partial(epoch, folder, transformers.Trainer, Windows(path))
    yield "windows of 4 hours", {"Transformers": theirs, "dali_zarr": partial(epoch, folder, Trainer, data)}
