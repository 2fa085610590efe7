"""Runs the lines of docs/from/torchgeo.md. Their boxes are compared with those of its RasterDataset over a GeoTIFF of the same
values. Prints JSON: the number of equal samples, and the losses of a model with both."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import rasterio  # noqa: E402
import torch  # noqa: E402
import zarr  # noqa: E402
from dali_zarr.torch import Loader  # noqa: E402
from support.documents import page  # noqa: E402
from torchgeo.datasets import RasterDataset, stack_samples  # noqa: E402
from torchgeo.samplers import GridGeoSampler, RandomGeoSampler  # noqa: E402


def lines() -> dict[str, Any]:
    """The names that the page's blocks define, as they are run in this folder."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in page(ROOT / "docs" / "from" / "torchgeo.md").blocks:
        if block.language == "python":
            exec(compile(block.source, block.place, "exec"), names)
    return names


def write_geotiff(path: Path, group: Any, left: float, top: float, metres: float, block: int = 16) -> None:
    bands = [group[name][:] for name in ("b02", "b03")]
    rows, columns = bands[0].shape
    how = {"driver": "GTiff", "height": rows, "width": columns, "count": 2, "dtype": "uint16", "crs": "EPSG:32632",
           "compress": "zstd", "tiled": True, "blockxsize": block, "blockysize": block}
    with rasterio.open(path, "w", transform=rasterio.transform.from_origin(left, top, metres, metres), **how) as file:
        for number, band in enumerate(bands, 1):
            file.write(band, number)


def sampler(kind: str, dataset: Any) -> Any:
    if kind == "grid":
        return GridGeoSampler(dataset, size=32, stride=(16, 16))
    if kind == "beyond":
        # Neither 96 nor 80 elements are divided by it: the last boxes reach beyond the scene.
        return GridGeoSampler(dataset, size=32, stride=(20, 20))
    how = {"size": 24 if kind == "small" else 32, "generator": torch.Generator().manual_seed(3)}
    return RandomGeoSampler(dataset, length=24, **how)


def ours(names: dict[str, Any], kind: str, epochs: int) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    loader = names["chips"](sampler(kind, names["Scene"]()), 24 if kind == "small" else 32)
    return (batch["stacked"].cpu() for _ in range(epochs) for batch in loader)


def theirs(dataset: Any, kind: str, epochs: int) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(dataset, 8, sampler=sampler(kind, dataset), collate_fn=stack_samples)
    return (batch["image"] for _ in range(epochs) for batch in loader)


def losses(batches: Iterator[torch.Tensor]) -> list[float]:
    torch.manual_seed(0)
    layer, found = torch.nn.Conv2d(2, 1, 3), []
    optimizer = torch.optim.SGD(layer.parameters(), 1e-9)
    for batch in batches:
        loss = layer(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def two_resolutions(names: dict[str, Any]) -> int:
    """Boxes of a scene as EOPF lays it out: the sampler and the rows have the resolution of the grid."""
    root, values, found = zarr.open_group("scene.zarr", mode="w"), {}, 0
    for metres, name in ((10, "b02"), (20, "b05")):
        group = root.create_group(f"measurements/reflectance/r{metres}m")
        shape = names["rows"] * 10 // metres, names["columns"] * 10 // metres
        values[name] = torch.randint(0, 9999, shape, generator=torch.Generator().manual_seed(metres)).to(torch.int32)
        group.create_array(name, data=values[name].numpy(), chunks=(16, 16), dimension_names=["y", "x"])
        y = names["top"] - metres * (0.5 + torch.arange(shape[0], dtype=torch.float64))
        x = names["left"] + metres * (0.5 + torch.arange(shape[1], dtype=torch.float64))
        for dim, places in (("y", y), ("x", x)):
            group.create_array(dim, data=places.numpy(), dimension_names=[dim], attributes={"units": "m"})
    scene = names["Scene"]()
    scene.res = (20.0, 20.0)
    names["metres"] = 20.0
    rows = names["Rows"](RandomGeoSampler(scene, size=8, length=10, generator=torch.Generator().manual_seed(1)))
    arrays = {"b02": "measurements/reflectance/r10m/b02", "b05": "measurements/reflectance/r20m/b05"}
    for batch in Loader("scene.zarr", arrays=arrays, scale_by="coordinates", grid="b05", window={"y": 160, "x": 160},
                        step={"y": 20, "x": 20}, sampler=rows, batch_size=5, device="cpu"):
        for number, (y, x) in enumerate(batch.index.tolist()):
            assert torch.equal(batch["b05"][number], values["b05"][y : y + 8, x : x + 8])
            assert torch.equal(batch["b02"][number], values["b02"][2 * y : 2 * y + 16, 2 * x : 2 * x + 16])
            found += 1
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = lines()
        write_geotiff(Path("tile.tif"), zarr.open_group("tile.zarr", mode="r"), names["left"], names["top"], names["metres"])
        dataset = RasterDataset("tile.tif")
        assert dataset.bounds[:2] == names["Scene"]().bounds[:2]
        count = 0
        for kind in ("random", "small", "grid", "beyond"):
            for mine, wanted in zip(ours(names, kind, 2), theirs(dataset, kind, 2), strict=True):
                assert mine.dtype == wanted.dtype and torch.equal(mine, wanted), kind
                count += len(mine)
        found = {"equal": count, "losses": [losses(ours(names, "random", 4)), losses(theirs(dataset, "random", 4))]}
        assert two_resolutions(names) == 10
        print("FOUND" + json.dumps(found))
