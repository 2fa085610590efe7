"""What ngff-zarr writes: OME-Zarr 0.4 to 0.6, whose last version has its axes and places in coordinate systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.foreign import Foreign, compare, writer, zarr_python
from support.pipelines import batches, build, same

ngff_zarr = writer("ngff_zarr")

VERSIONS = ["0.4", "0.5", "0.6"]
AXES = ["z", "y", "x"]
pytestmark = pytest.mark.filterwarnings("ignore")


def _write(path: Path, version: str, scale: float = 0.5, **options) -> dict[str, np.ndarray]:
    """Writes an image of two levels; gives their values by the paths of their arrays."""
    pixels = np.random.default_rng(0).integers(0, 4000, (8, 16, 32)).astype("uint16")
    image = ngff_zarr.to_ngff_image(
        pixels, dims=AXES, scale={"z": 2.0, "y": scale, "x": scale}, translation={"z": 10.0, "y": 0.0, "x": 0.0},
    )
    levels = ngff_zarr.to_multiscales(image, scale_factors=[{"z": 1, "y": 2, "x": 2}], chunks=8)
    ngff_zarr.to_ngff_zarr(str(path), levels, version=version, **options)
    values = [np.asarray(level.data) for level in levels.images]
    assert np.array_equal(values[0], pixels)
    return {dataset.path: value for dataset, value in zip(levels.metadata.datasets, values, strict=True)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shards", [None, 2])
def test_levels(tmp_path, device, version, shards):
    """Every level, by the names of its axes. Only Zarr v3 has shards."""
    options = {} if shards is None or version == "0.4" else {"chunks_per_shard": shards}
    levels = _write(tmp_path / "image.ome.zarr", version, **options)
    assert len(levels) == 2
    for name, values in levels.items():
        references = {"what was written": values, "zarr-python": zarr_python(tmp_path / "image.ome.zarr", name)}
        compare(device, Foreign(tmp_path / "image.ome.zarr", name, references, AXES), tries=3)


@pytest.mark.parametrize("version", VERSIONS)
def test_joined_images(tmp_path, device, version):
    """Stores of one scale are joined along an axis. Others aren't one image."""
    paths = {name: tmp_path / f"{name}.ome.zarr" for name in ("one", "other", "larger")}
    levels = {name: _write(path, version, 1.0 if name == "larger" else 0.5) for name, path in paths.items()}
    first = next(iter(levels["one"]))
    joined = {"arrays": [first], "dims": ["z"], "window": [16]}
    ((found,),) = next(batches(build(device, 1, path=[paths["one"], paths["other"]], **joined)))
    same(found, np.concatenate([levels["one"][first], levels["other"][first]]), "joined")
    with pytest.raises(ValueError, match="coordinateTransformations"):
        build(device, 1, path=[paths["one"], paths["larger"]], **joined)


@pytest.mark.parametrize("version", VERSIONS)
def test_arrays_of_several_images(tmp_path, device, version):
    """Those of one scale give windows side by side, and others are refused. Each array is named by its location."""
    paths = {name: tmp_path / f"{name}.ome.zarr" for name in ("one", "other", "larger")}
    levels = {name: _write(path, version, 1.0 if name == "larger" else 0.5) for name, path in paths.items()}
    first = next(iter(levels["one"]))
    own = {name: f"{path}/{first}" for name, path in paths.items()}
    window = {"dims": ["z", "y"], "window": [4, 8], "step": [4, 8], "return_index": True}
    pipe = build(device, 1, arrays=[own["one"], own["other"]], **window)
    found = batches(pipe)
    for _ in range(pipe.reader_meta("reader")["epoch_size"]):
        (one,), (other,), ((z, y),) = next(found)
        same(one, levels["one"][first][z : z + 4, y : y + 8], "one")
        same(other, one, "other")
    with pytest.raises(ValueError, match="coordinateTransformations"):
        build(device, 1, arrays=[own["one"], own["larger"]], dims=["z"])


@pytest.mark.parametrize("version", ["0.5", "0.6"])
def test_archives(tmp_path, device, version):
    """A single file (.ozx)."""
    levels = _write(tmp_path / "image.ozx", version)
    first = next(iter(levels))
    pipe = build(device, 1, path=tmp_path / "image.ozx", arrays=[first], dims=["z"], window=[8])
    ((found,),) = next(batches(pipe))
    same(found, levels[first], "image")
