"""Boxes of 128 x 128 of two bands of 2048 x 2048, drawn by torchgeo's sampler: RasterDataset over a GeoTIFF in a DataLoader
with two workers, and the loader over Zarr, with chunks of as many elements. It runs with build/integrations/torchgeo in
PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from dali_zarr.torch import Loader
from torchgeo.datasets import RasterDataset, stack_samples
from torchgeo.samplers import RandomGeoSampler
from torchgeo_lines import lines, write_geotiff

SIDE, SIZE = 2048, 128


def epoch(loader: Any, name: str) -> int:
    return sum(len(batch[name]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    os.chdir(folder)
    names, group = lines(), zarr.open_group("scene.zarr", mode="w")
    for number, name in enumerate(("b02", "b03")):
        band = np.random.default_rng(number).normal(2000, 100, (SIDE, SIDE)).astype("u2")
        array = group.create_array(name, shape=band.shape, dtype="u2", chunks=(256, 256), dimension_names=["y", "x"])
        array[:] = band
    top = names["top"]
    write_geotiff(Path("scene.tif"), group, names["left"], top, names["metres"], 256)
    dataset = RasterDataset("scene.tif")
    sampler = RandomGeoSampler(dataset, size=SIZE, length=512)
    theirs: Any = torch.utils.data.DataLoader(
        dataset, 16, sampler=sampler, num_workers=2, persistent_workers=True, collate_fn=stack_samples,
    )
    ours = Loader(
        "scene.zarr", arrays=["b02", "b03"], stack_arrays=True, window={"y": SIZE, "x": SIZE}, step={"y": 1, "x": 1},
        sampler=names["Rows"](sampler), batch_size=16, dtype="float32", device="cpu",
    )
    yield "boxes of two bands", {"torchgeo": partial(epoch, theirs, "image"), "dali_zarr": partial(epoch, ours, "stacked")}
