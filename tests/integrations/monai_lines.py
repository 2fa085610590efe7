"""Runs the lines of docs/from/monai.md, and compares their samples with those of MONAI's Dataset, RandSpatialCropd and DataLoader.
Prints JSON: the number of equal samples, and the losses of a model with both."""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import torch  # noqa: E402
import zarr  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402
from monai.data import DataLoader, Dataset, list_data_collate  # noqa: E402
from monai.transforms import Compose, EnsureChannelFirstd, RandFlipd, RandSpatialCropd  # noqa: E402
from support.documents import page  # noqa: E402

KEYS, WINDOW, SIZES = ["image", "label"], (8, 12, 10), [(16, 20, 24), (18, 14, 24), (9, 20, 11)]


def lines(folder: Path) -> dict[str, Any]:
    """The names that the page's blocks define, as they are run in a folder of the small stores."""
    runpy.run_path(str(ROOT / "examples" / "small_stores.py"))["image"](folder / "image.zarr")
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.chdir(folder):
        for block in page(ROOT / "docs" / "from" / "monai.md").blocks:
            if block.language == "python":
                exec(compile(block.source, block.place, "exec"), names)
        before = [tuple(one["image"].shape) for one in map(names["transformed"], names["as_before"])]
    assert before == [(4, 2, 16, 32, 32)] * 2, before
    return names


def write(folder: Path) -> list[str]:
    for number, size in enumerate(SIZES):
        group = zarr.open_group(str(folder / f"{number}.zarr"), mode="w")
        for name, shape, dtype in (("image", (2, *size), "i2"), ("label", size, "u1")):
            values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(number)).numpy().astype(dtype)
            chunks = ((1,) if len(shape) == 4 else ()) + (4, 8, 8)
            dims = ("c", "z", "y", "x")[-len(shape) :]
            group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, dimension_names=dims)[:] = values
    return [str(folder / f"{number}.zarr") for number in range(len(SIZES))]


def flips() -> Any:
    return RandFlipd(KEYS, prob=0.5, spatial_axis=[0, 2]).set_random_state(3)


def theirs(paths: list[str], order: list[int]) -> Any:
    """A data set of MONAI of as many crops as volumes are named."""

    def read(sample: dict[str, Any]) -> dict[str, Any]:
        group = zarr.open_group(sample["path"], mode="r")
        return {key: group[key][:] for key in KEYS}

    crop, flip = RandSpatialCropd(KEYS, WINDOW, random_size=False), flips()
    channels = [EnsureChannelFirstd("image", channel_dim=0), EnsureChannelFirstd("label", channel_dim="no_channel")]
    transform = Compose([read, *channels, crop, flip])
    loader = DataLoader(Dataset([{"path": paths[number]} for number in order], transform), batch_size=4, num_workers=0)
    # Compose and the loader have given them other states.
    crop.set_random_state(1)
    flip.set_random_state(3)
    return loader


def ours(names: dict[str, Any], paths: list[str], order: list[int]) -> Iterator[Any]:
    """The page's places. With several volumes a row begins with the number of the volume."""
    places = [names["Places"](size, WINDOW, 1, seed=1) for size in SIZES]
    for one in places[1:]:
        one.random = places[0].random

    class Rows:
        def __iter__(self) -> Iterator[list[int]]:
            for number in order:
                for place in places[number]:
                    yield [number, *place]

    loader = Loader(
        paths, arrays=KEYS, concat="samples", dims=["z", "y", "x"], window=list(WINDOW), step=[1, 1, 1], sampler=Rows(),
        batch_size=4, device="cpu", host_memory_limit="64MiB", collate="list",
    )
    flip, channel_first = flips(), EnsureChannelFirstd("label", channel_dim="no_channel")
    for _ in range(2):
        for batch in loader:
            samples = [dict(zip(batch, sample, strict=True)) for sample in zip(*batch.values(), strict=True)]
            yield list_data_collate([flip(channel_first(sample)) for sample in samples])


def losses(batches: Iterator[Any]) -> list[float]:
    torch.manual_seed(0)
    layer, found = torch.nn.Conv3d(2, 1, 3, padding=1), []
    optimizer = torch.optim.SGD(layer.parameters(), 1e-5)
    for batch in batches:
        loss = (layer(batch["image"].float()) - batch["label"].float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        names, paths, count = lines(Path(name)), write(Path(name)), 0
        in_order = [number % 3 for number in range(24)]
        for order in (in_order, torch.randperm(24, generator=torch.Generator().manual_seed(5)).remainder(3).tolist()):
            loader = theirs(paths, order)
            both = zip(ours(names, paths, order), (batch for _ in range(2) for batch in loader), strict=True)
            for one, other in both:
                for key in KEYS:
                    mine, wanted = torch.as_tensor(one[key]), torch.as_tensor(other[key])
                    assert mine.dtype == wanted.dtype and torch.equal(mine, wanted), (key, mine.dtype, wanted.dtype)
                count += len(one["image"])
        loader = theirs(paths, in_order)
        found = {"equal": count, "losses": [
            losses(ours(names, paths, in_order)), losses(batch for _ in range(2) for batch in loader),
        ]}
        print("FOUND" + json.dumps(found))
