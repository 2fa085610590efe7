"""The calls of docs/stores/public.md, on small stores that are laid out as the public ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from support.documents import ROOT, page
from support.remote import upload

torch = pytest.importorskip("torch")
pytest.importorskip("xarray")

import dali_zarr.torch  # noqa: E402

BLOSC = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)


def write(group: Any, name: str, values: np.ndarray, dims: str, **attributes: Any) -> None:
    """In Zarr v2 with the names of dimensions that xarray writes. A chunk is one element of the first dimension."""
    chunks = (1, *values.shape[1:]) if values.ndim > 1 else values.shape
    how: dict[str, Any] = {"attributes": {"_ARRAY_DIMENSIONS": dims.split()} | attributes, "compressors": BLOSC}
    group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **how)[...] = values


def fields(group: Any, dims: str, levels: list[int], times: np.ndarray, names: tuple[str, ...], grid: tuple[int, int]) -> None:
    time, level, *_ = dims.split()
    since = ((times - np.datetime64("1900-01-01")) / np.timedelta64(1, "h")).astype("int64")
    write(group, time, since, time, units="hours since 1900-01-01", calendar="proleptic_gregorian")
    write(group, level, np.array(levels), level)
    for name in names:
        values = np.zeros((len(times), len(levels), *grid), "float32") + np.array(levels, "float32")[:, None, None]
        if name == "2m_temperature":
            write(group, name, values[:, 0], dims.replace(f" {level}", ""))
        else:
            write(group, name, values, dims)


def store(url: str, folder: Path) -> Path:
    """A small copy of the layout behind a URL."""
    path, group = folder / "store", zarr.open_group(folder / "store", mode="w", zarr_format=2)
    both = ("2m_temperature", "geopotential")
    if "arco-era5" in url:
        hours = np.arange("2018-12-30", "2019-01-03", dtype="datetime64[h]")
        fields(group, "time level latitude longitude", [1, 500, 850, 1000], hours, both, (6, 8))
    elif "weatherbench2" in url:
        hours = np.arange("2015-12-01", "2016-01-03", 6, dtype="datetime64[h]")
        fields(group, "time level longitude latitude", [50, 500, 850, 1000], hours, both, (8, 6))
    else:
        assert "idr0062A" in url, url
        write(group, "0", np.zeros((2, 40, 130, 140), "uint16"), "")
        del group["0"].attrs["_ARRAY_DIMENSIONS"]
        axes = [{"name": "c", "type": "channel"}, *({"name": name, "type": "space"} for name in "zyx")]
        sizes = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1.0, 0.5, 0.36, 0.36]}]}]
        group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": sizes}]
    return path


EXPECTED = {
    "gs://gcp-public-data-arco-era5": {"input": (4, 3, 6, 8), "target": (4, 3, 6, 8)},
    "gs://weatherbench2": {"input": (64, 3, 8, 6), "target": (64, 3, 8, 6)},
    "s3://earthmover-icechunk-era5": {"pressure/spatial/z": (4, 2, 2, 3), "pressure/spatial/t": (4, 2, 2, 3)},
    "https://uk1s3.embassy.ebi.ac.uk": {"image": (4, 2, 32, 128, 128)},
}


@pytest.mark.filterwarnings("ignore")
def test_the_calls_read_stores_with_these_layouts(tmp_path, monkeypatch, s3, s3_options):
    upload(s3, ROOT / "tests" / "corpus" / "icechunk" / "labels-v2", "icechunkV2")
    real, read = dali_zarr.torch.Loader, []

    def stand_in(path: str, **arguments: Any) -> None:
        """Reads a batch of the small copy, without what is for remote stores only. The Icechunk repository is one that
        Icechunk 2.3 wrote, on a server."""
        (tmp_path / str(len(read))).mkdir()
        for remote in ("storage_options", "cache_dir"):
            arguments.pop(remote, None)
        if "icechunk" in path:
            small, arguments["storage_options"] = "s3://bucket/icechunkV2", s3_options
        else:
            small = store(path, tmp_path / str(len(read)))
        batch = next(iter(real(small, device="cpu", **arguments)))
        (shapes,) = (shapes for beginning, shapes in EXPECTED.items() if path.startswith(beginning))
        assert {name: tuple(values.shape) for name, values in batch.items()} == shapes
        if "input" in batch:
            # The surface field has the first level's number, then come the levels that were asked for.
            assert batch["input"][0, 1:, 0, 0].tolist() == [500, 850]
        read.append(path)

    monkeypatch.setattr(dali_zarr.torch, "Loader", stand_in)
    for block in page(ROOT / "docs" / "stores" / "public.md").blocks:
        if "Loader(" in block.source:
            exec(compile(block.source, block.place, "exec"), {})
    assert len(read) == len(EXPECTED)
