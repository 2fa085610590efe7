"""What GDAL's Zarr driver writes: images and arrays of v2, with Blosc's literal streams, `_CRS` and `.zmetadata`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.configurations import values as random_values
from support.foreign import Foreign, compare, unpack, writer, xarray_values, zarr_python
from support.pipelines import build
from support.stores import chunk_files

rasterio = writer("rasterio")

import gdal_multidim as gdal  # noqa: E402

COMPRESSORS = ("NONE", "BLOSC", "BLOSC", "BLOSC", "ZLIB", "GZIP", "LZMA", "ZSTD")


def _image(path: Path, values: np.ndarray, **options: str) -> None:
    """Writes bands as `gdal_translate -of Zarr` does."""
    from rasterio.transform import from_origin

    bands, height, width = values.shape
    with rasterio.open(
        path, "w", driver="Zarr", width=width, height=height, count=bands, dtype=values.dtype, crs="EPSG:4326",
        transform=from_origin(5.0, 50.0, 0.1, 0.1), **options,
    ) as image:
        image.write(values)


def _by_rasterio(path: Path) -> np.ndarray:
    with rasterio.open(path) as image:
        return image.read()


@pytest.mark.parametrize("cname", ["lz4", "blosclz", "lz4hc", "zlib", "zstd"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_noisy_images(tmp_path, device, cname, dtype):
    """Noise doesn't shrink: GDAL's Blosc then writes chunks that are larger than what they hold and a header."""
    path = tmp_path / "noise.zarr"
    bits = np.random.default_rng(0).integers(0, 1 << 8, (2, 250, 300 * np.dtype(dtype).itemsize), dtype="uint8")
    values = np.nan_to_num(bits.view(dtype))
    _image(path, values, COMPRESS="BLOSC", BLOSC_CNAME=cname, BLOCKSIZE="1,128,128")
    references = {"rasterio": _by_rasterio(path), "zarr-python": zarr_python(path, "noise"), "what was written": values}
    compare(device, Foreign(path, "noise", references, ["Band", "Y", "X"]))


def test_noise_is_larger_than_decoded(tmp_path):
    """What the test above is about: chunks of more than the decoded bytes and Blosc's header."""
    values = np.random.default_rng(0).integers(0, 256, (1, 512, 512), dtype="uint8")
    _image(tmp_path / "noise.zarr", values, COMPRESS="BLOSC", BLOCKSIZE="256,256")
    assert max(os.path.getsize(file) for file in chunk_files(tmp_path / "noise.zarr", "noise")) > 256 * 256 + 16


@pytest.mark.parametrize("interleave", ["BAND", "PIXEL"])
def test_coordinates_and_bands(tmp_path, device, interleave):
    """The image beside the arrays X and Y of its pixels' centres."""
    path = tmp_path / "image.zarr"
    values = np.random.default_rng(1).integers(-1000, 1000, (4, 30, 50)).astype("int16")
    _image(path, values, COMPRESS="ZLIB", BLOCKSIZE="2,16,16" if interleave == "BAND" else "16,16,2", INTERLEAVE=interleave)
    stored = values if interleave == "BAND" else values.transpose(1, 2, 0)
    dims = ["Band", "Y", "X"] if interleave == "BAND" else ["Y", "X", "Band"]
    compare(device, Foreign(path, "image", {"written": stored, "zarr-python": zarr_python(path, "image")}, dims))
    for name, extent in (("X", 50), ("Y", 30)):
        references = {"zarr-python": zarr_python(path, name), "GDAL": gdal.read(path, name, [extent], np.dtype("float64"))}
        compare(device, Foreign(path, name, references, [name]))


def random_array(rng: np.random.Generator, folder: Path) -> Foreign:
    """An array of any rank in a group, written whole or in part."""
    dtype = str(rng.choice(list(gdal.TYPES)))
    shape = tuple(int(n) for n in rng.integers(1, 24, int(rng.integers(0, 5))))
    dims = [str(d) for d in rng.permutation(["time", "lat", "x", "band", "Höhe über Grund"])[: len(shape)]]
    name = str(rng.choice(["a", "group/a", "deep/er/a b", "größe"]))
    options = {"COMPRESS": str(rng.choice(COMPRESSORS)), "DIM_SEPARATOR": str(rng.choice([".", "/"]))}
    if shape:
        options["BLOCKSIZE"] = ",".join(str(int(rng.integers(1, n + 3))) for n in shape)
        options["CHUNK_MEMORY_LAYOUT"] = str(rng.choice(["C", "F"]))
    if options["COMPRESS"] == "BLOSC":
        options |= {
            "BLOSC_CNAME": str(rng.choice(["blosclz", "lz4", "lz4hc", "zlib", "zstd"])), "BLOSC_CLEVEL": str(rng.integers(0, 10)),
            "BLOSC_SHUFFLE": str(rng.choice(["NONE", "BYTE", "BIT"])), "BLOSC_BLOCKSIZE": str(rng.choice([0, 0, 512])),
        }
    if rng.random() < 0.2 and np.dtype(dtype).kind in "iu":
        options["FILTER"] = "DELTA"
    low = [int(rng.integers(0, n)) if rng.random() < 0.2 else 0 for n in shape]
    values = random_values(rng, dtype, tuple(n - a for n, a in zip(shape, low)))
    nodata = float(rng.integers(0, 100)) if rng.random() < 0.5 else None
    packing = {"scale": 0.25, "offset": -3.0} if shape and rng.random() < 0.3 else {}
    with gdal.store(folder) as root:
        gdal.write(root, name, values, dims, shape=shape, low=low, nodata=nodata, **packing, **options)
    written = np.full(shape, nodata or 0, dtype)
    written[tuple(slice(a, None) for a in low)] = values
    references = {"what was written": written, "GDAL": gdal.read(folder, name, shape, values.dtype)}
    # numcodecs doesn't take the option "delta" that GDAL writes.
    if options["COMPRESS"] != "LZMA":
        references["zarr-python"] = zarr_python(folder, name)
        if packing:
            references = {"xarray": xarray_values(folder, name), "by hand": unpack(written, nodata, **packing)}
            return Foreign(folder, name, references, dims, {"mask_and_scale": True})
    return Foreign(folder, name, references, dims)


@pytest.mark.parametrize("seed", range(16))
def test_random(tmp_path, device, seed):
    """A fixed sample of arrays."""
    compare(device, random_array(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


def test_v3_of_gdal_before_3_12_is_refused(tmp_path, device):
    """GDAL up to 3.11 leaves out the codec that makes bytes of elements, which the specification demands."""
    with gdal.store(tmp_path / "a", FORMAT="ZARR_V3") as root:
        gdal.write(root, "a", np.zeros((4, 5), "float32"), ["y", "x"], nodata=1.0, COMPRESS="GZIP")
    with pytest.raises(ValueError, match="codecs"):
        build(device, 1, path=tmp_path / "a", arrays=["a"])


# For the long search by tests/random_foreign.py.
RANDOM = (random_array,)
