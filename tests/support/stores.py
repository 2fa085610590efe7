"""Writers of test stores: every format, codec, data type and chunk layout that the reader promises to read.

All stores are written as zarr-python writes them (xarray's conventions by hand): the reader must deliver what the
reference implementation meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr import codecs as zc

from support import direct
from support.fields import weather_fields

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)


def _blosc(cname: str, shuffle: str, clevel: int = 5) -> Callable[[str], Any]:
    return lambda dtype: zc.BloscCodec(
        cname=cname, clevel=clevel, shuffle=shuffle, typesize=np.dtype(dtype).itemsize
    )


# What zarr.create_array is told for each codec: v3 chains of bytes-to-bytes codecs, as functions of the data type.
CODECS_V3: dict[str, Callable[[str], list[Any]]] = {
    "none": lambda _: [],
    "zstd": lambda _: [zc.ZstdCodec(level=3)],
    "zstd-fast": lambda _: [zc.ZstdCodec(level=-5)],
    "zstd-checksum": lambda _: [zc.ZstdCodec(level=1, checksum=True)],
    "gzip": lambda _: [zc.GzipCodec(level=5)],
    "blosc-lz4-shuffle": lambda d: [_blosc("lz4", "shuffle")(d)],
    "blosc-lz4-noshuffle": lambda d: [_blosc("lz4", "noshuffle")(d)],
    "blosc-zstd-shuffle": lambda d: [_blosc("zstd", "shuffle", 3)(d)],
    "blosc-zstd-bitshuffle": lambda d: [_blosc("zstd", "bitshuffle", 3)(d)],
    "blosc-blosclz-shuffle": lambda d: [_blosc("blosclz", "shuffle")(d)],
    "blosc-zlib-shuffle": lambda d: [_blosc("zlib", "shuffle")(d)],
    "crc32c": lambda _: [zc.Crc32cCodec()],
    "zstd+crc32c": lambda _: [zc.ZstdCodec(level=3), zc.Crc32cCodec()],
    "gzip+crc32c": lambda _: [zc.GzipCodec(level=1), zc.Crc32cCodec()],
    "numcodecs-zlib": lambda _: [zc.Zlib(level=3)],
    "numcodecs-lz4": lambda _: [zc.LZ4(acceleration=1)],
    "numcodecs-bz2": lambda _: [zc.BZ2(level=3)],
}

# v2 has one compressor.
CODECS_V2: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "zstd": lambda: numcodecs.Zstd(level=3),
    "zstd-checksum": lambda: numcodecs.Zstd(level=1, checksum=True),
    "gzip": lambda: numcodecs.GZip(level=5),
    "zlib": lambda: numcodecs.Zlib(level=5),
    "lz4": lambda: numcodecs.LZ4(acceleration=1),
    "bz2": lambda: numcodecs.BZ2(level=3),
    "blosc-lz4-shuffle": lambda: numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
    "blosc-lz4hc-noshuffle": lambda: numcodecs.Blosc("lz4hc", 5, numcodecs.Blosc.NOSHUFFLE),
    "blosc-zstd-shuffle": lambda: numcodecs.Blosc("zstd", 3, numcodecs.Blosc.SHUFFLE),
    "blosc-zstd-bitshuffle": lambda: numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE),
    "blosc-blosclz-shuffle": lambda: numcodecs.Blosc("blosclz", 5, numcodecs.Blosc.SHUFFLE),
    "blosc-zlib-shuffle": lambda: numcodecs.Blosc("zlib", 5, numcodecs.Blosc.SHUFFLE),
}

# What the GPU decodes by itself (decode_device="gpu" must not refuse it).
GPU_CODECS = {
    "none", "zstd", "zstd-fast", "zstd-checksum", "gzip", "zlib", "lz4", "numcodecs-zlib", "numcodecs-lz4",
    "blosc-lz4-shuffle", "blosc-lz4-noshuffle", "blosc-lz4hc-noshuffle", "blosc-zstd-shuffle", "blosc-zstd-bitshuffle",
    "blosc-zlib-shuffle", "crc32c", "zstd+crc32c", "gzip+crc32c",
}


@dataclass(frozen=True)
class Layout:
    """How an array is cut and stored. ``shards`` and ``index_location`` are v3's; ``order`` "F" reverses the axes in storage:
    v2's own order, v3's transpose codec."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    index_location: str = "end"
    order: str = "C"
    big_endian: bool = False


def sample_values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values over the whole range of ``dtype``, extremes and (for floats) NaN, infinities and subnormals included."""
    rng = np.random.default_rng(seed)
    d = np.dtype(dtype)
    if d.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if d.kind in "iu":
        info = np.iinfo(d)
        values = rng.integers(info.min, info.max, shape, dtype=d, endpoint=True)
        special = [info.min, info.max, 0, 1]
    else:
        info = np.finfo(d)
        values = (rng.standard_normal(shape) * 100).astype(d)
        special = [np.nan, np.inf, -np.inf, -0.0, info.smallest_subnormal, info.max, info.min, info.eps]
    flat = values.reshape(-1)
    where = rng.permutation(flat.size)[: min(len(special), flat.size // 2)]
    flat[where] = np.array(special, d)[: len(where)]
    return values


def write_array(
    path: Path | str, name: str, values: np.ndarray, *, zarr_format: int = 3, codec: str = "zstd",
    layout: Layout | None = None, dims: tuple[str | None, ...] | None = None, fill_value: Any = 0,
    attributes: dict[str, Any] | None = None, missing: tuple[tuple[int, ...], ...] = (), filters: list[Any] | None = None,
) -> None:
    """Writes one array into the group at ``path`` (made where needed).

    ``missing`` names regions, by chunk (or shard) coordinates, that are never written.
    """
    layout = layout or Layout(chunks=values.shape)
    attributes = dict(attributes or {})
    if zarr_format == 2 and dims:
        attributes["_ARRAY_DIMENSIONS"] = list(dims)
    codecs = CODECS_V2[codec]() if zarr_format == 2 else CODECS_V3[codec](str(values.dtype))
    how: dict[str, Any] = {"layout": layout, "dims": dims, "fill_value": fill_value, "attributes": attributes}
    if not filters and direct.write(Path(path), name, values, zarr_format=zarr_format, codecs=codecs, missing=missing, **how):
        return
    zarr.open_group(str(path), mode="a", zarr_format=zarr_format)
    dtype = values.dtype.newbyteorder(">") if layout.big_endian and zarr_format == 2 else values.dtype
    kwargs: dict[str, Any] = {
        "store": str(path), "name": name, "shape": values.shape, "dtype": dtype, "chunks": layout.chunks,
        "zarr_format": zarr_format, "fill_value": fill_value,
        # Without this zarr-python leaves out chunks that hold only the fill value.
        "config": {"write_empty_chunks": True},
    }
    if zarr_format == 2:
        kwargs |= {"compressors": codecs, "order": layout.order, "filters": filters}
    else:
        kwargs |= {
            "compressors": codecs,
            "serializer": zc.BytesCodec(endian="big" if layout.big_endian else "little"),
            "dimension_names": dims,
            "filters": list(filters or []),
        }
        if layout.order == "F":
            kwargs["filters"].append(zc.TransposeCodec(order=tuple(range(values.ndim))[::-1]))
        if layout.shards:
            kwargs["shards"] = {"shape": layout.shards, "index_location": layout.index_location}
    array = zarr.create_array(**kwargs, attributes=attributes)
    stored = layout.shards or layout.chunks
    if values.ndim == 0:
        array[...] = values
    elif not missing:
        array[:] = values
    else:
        for coords in np.ndindex(*(-(-n // c) for n, c in zip(values.shape, stored))):
            if coords not in missing:
                region = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, stored))
                array[region] = values[region]


def read_back(path: Path | str, name: str) -> np.ndarray:
    """Reads an array by zarr-python."""
    return zarr.open_array(str(path), path=name, mode="r")[...]


def write_era5(
    path: Path | str, *, zarr_format: int = 3, codec: str = "zstd", hours: int = 24, levels: int = 5, lat: int = 12,
    lon: int = 20, chunk_hours: int = 1, chunk_lat: int | None = None, shard_hours: int | None = None, seed: int = 0,
    consolidated: bool = False, start: int = 0,
) -> dict[str, np.ndarray]:
    """Writes a small ERA5: t2m (time, lat, lon), z (time, level, lat, lon), lsm (lat, lon) and time (time), int64
    hours. Returns the values.

    ``start`` is the hour of the first step, for stores that continue one another.
    """
    fields = weather_fields(hours * (levels + 1), lat, lon, seed=seed).reshape(hours, levels + 1, lat, lon)
    height = np.linspace(500, 50000, levels, dtype=np.float32)[None, :, None, None]
    chunk_lat = chunk_lat or lat
    named = {
        "t2m": (("time", "latitude", "longitude"), fields[:, 0]),
        "z": (("time", "level", "latitude", "longitude"), height + fields[:, 1:] * np.float32(4.0)),
        "lsm": (("latitude", "longitude"), (weather_fields(1, lat, lon, seed=999, mean=0.5, stddev=0.3)[0]).clip(0.01, 1)),
        "time": (("time",), np.arange(start, start + hours, dtype=np.int64)),
    }
    chunks = {
        "t2m": (chunk_hours, chunk_lat, lon), "z": (chunk_hours, max(levels // 2, 1), chunk_lat, lon),
        "lsm": (lat, lon), "time": (max(hours // 3, 1),),
    }
    for name, (dims, values) in named.items():
        shards = None
        if shard_hours and name == "t2m":
            shards = (shard_hours, lat, lon)
        layout = Layout(chunks[name], shards=shards)
        write_array(path, name, values, zarr_format=zarr_format, codec=codec, layout=layout, dims=dims)
    if consolidated:
        zarr.consolidate_metadata(str(path), zarr_format=zarr_format)
    return {name: values for name, (_, values) in named.items()}


def metadata(path: Path | str, name: str = "") -> tuple[Path, dict[str, Any]]:
    """Returns the metadata document of an array or group and its parsed content, for tests that change it."""
    base = Path(path) / name
    for file in ("zarr.json", ".zarray", ".zgroup"):
        if (base / file).exists():
            return base / file, json.loads((base / file).read_text())
    raise FileNotFoundError(f"no Zarr metadata in {base}")


def chunk_files(path: Path | str, name: str) -> list[Path]:
    """The files that hold an array's chunks or shards, sorted."""
    skip = {"zarr.json", ".zarray", ".zattrs"}
    return sorted(p for p in (Path(path) / name).rglob("*") if p.is_file() and p.name not in skip)
