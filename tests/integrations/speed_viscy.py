"""Shuffled batches of 8 windows of VisCy's HCSDataModule: 5 of 16 slices of two channels of 256 x 256, normalised, cropped, from a
plate of six positions with three times, a volume in each chunk: its own DataLoader with two workers, and the adapter. It runs with
build/integrations/viscy in PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from dali_zarr.integrations import viscy as adapter
from iohub.ngff import open_ome_zarr
from viscy.data.hcs import HCSDataModule
from viscy.transforms import NormalizeSampled

CHANNELS = ["Phase", "Nuclei"]


def write(path: Path) -> None:
    rng = np.random.default_rng(0)
    statistics = {"mean": 1000.0, "std": 200.0, "median": 1000.0, "iqr": 250.0}
    with open_ome_zarr(path, layout="hcs", mode="w", channel_names=CHANNELS) as plate:
        for name in "012345":
            position = plate.create_position("A", "1", name)
            values = rng.normal(1000, 200, (3, 2, 16, 256, 256)).astype("u2")
            position.create_image("0", values, chunks=(1, 1, 16, 256, 256))
            position.zattrs["normalization"] = {channel: {"fov_statistics": statistics} for channel in CHANNELS}


def made(kind: type, path: Path, **more: Any) -> Any:
    module = kind(
        str(path), *CHANNELS, z_window_size=5, split_ratio=0.9, batch_size=8, yx_patch_size=(128, 128),
        normalizations=[NormalizeSampled(CHANNELS, "fov_statistics")], **more,
    )
    module.setup("fit")
    return module.train_dataloader()


def epoch(loader: Any) -> int:
    return sum(len(batch["source"]) for batch in loader)


def cases(folder: Path) -> Iterator[tuple[str, dict[str, Callable[[], int]]]]:
    path = folder / "plate.zarr"
    write(path)
    theirs = made(HCSDataModule, path, num_workers=2, persistent_workers=True)
    ours = made(adapter.HCSDataModule, path)
    yield "windows of 5 slices", {"VisCy": partial(epoch, theirs), "dali_zarr": partial(epoch, ours)}
