"""Crops of 32 x 64 x 64 of an image and its label, four of each of four volumes of 64 x 256 x 256: MONAI's Dataset and DataLoader
with two workers and a transform that reads the volume, and the loader, which reads the crops. It runs with build/integrations/monai
in PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from dali_zarr.torch import Loader
from monai.data import DataLoader, Dataset
from monai.transforms import Compose, EnsureChannelFirstd, RandSpatialCropSamplesd

KEYS, SHAPE, WINDOW = ["image", "label"], (64, 256, 256), (32, 64, 64)


def read(sample: dict[str, Any]) -> dict[str, Any]:
    group = zarr.open_group(sample["path"], mode="r")
    return {key: group[key][:] for key in KEYS}


def epoch(loader: Any) -> int:
    return sum(len(batch["image"]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    rng, paths = np.random.default_rng(0), [str(folder / f"{number}.zarr") for number in range(4)]
    for path in paths:
        group = zarr.open_group(path, mode="w")
        for name, values in (("image", rng.normal(1000, 200, SHAPE).astype("i2")), ("label", rng.integers(0, 3, SHAPE, "u1"))):
            how: Any = {"chunks": (32, 64, 64), "dtype": values.dtype, "dimension_names": ["z", "y", "x"]}
            group.create_array(name, shape=SHAPE, **how)[:] = values
    crops = RandSpatialCropSamplesd(KEYS, WINDOW, num_samples=4, random_size=False)
    transform = Compose([read, EnsureChannelFirstd(KEYS, channel_dim="no_channel"), crops])
    data = Dataset([{"path": path} for path in paths * 4], transform)
    theirs = DataLoader(data, batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    ours = Loader(
        paths, arrays=KEYS, concat="samples", dims=["z", "y", "x"], window=list(WINDOW), random_crop=["z", "y", "x"],
        samples_per_volume=16, batch_size=8, random_shuffle=True, device="cpu",
    )
    yield "crops of four volumes", {"MONAI": partial(epoch, theirs), "dali_zarr": partial(epoch, ours)}
