"""The stores of the benchmark: ERA5-like float32 fields of 721 x 1440, one field a chunk or a shard.

Written once into a folder and reused while the number of fields is the same; beside them lies a checksum of each field.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from support.fields import weather_fields
from zarr import codecs as zc

LAT, LON = 721, 1440
# 65,920 bytes of float32: the divisors of the grid that come nearest to 64 KiB; 63 inner chunks a field.
INNER = (1, 103, 160)



def _blosc(cname: str, clevel: int, shuffle: str, typesize: int = 4) -> zc.BloscCodec:
    return zc.BloscCodec(cname=cname, clevel=clevel, shuffle=shuffle, typesize=typesize)


# What zarr.create_array is told; `levels` makes a step of that many fields, `batch_size` replaces --batch-size.
STORES: dict[str, dict[str, Any]] = {
    "v3-none": {"zarr_format": 3, "compressors": None},
    "v3-zstd": {"zarr_format": 3, "compressors": zc.ZstdCodec(level=3)},
    "v3-zstd-shards": {"zarr_format": 3, "compressors": zc.ZstdCodec(level=3), "chunks": INNER, "shards": (1, LAT, LON)},
    "v3-zstd-small": {"zarr_format": 3, "compressors": zc.ZstdCodec(level=3), "chunks": INNER},
    "v3-blosc-lz4": {"zarr_format": 3, "compressors": _blosc("lz4", 5, "shuffle")},
    "v3-blosc-zstd": {"zarr_format": 3, "compressors": _blosc("zstd", 3, "shuffle")},
    "v3-blosc-zstd-bit-u2": {"zarr_format": 3, "compressors": _blosc("zstd", 3, "bitshuffle", 2), "dtype": "uint16"},
    "v2-lz4": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "v2-gzip": {"zarr_format": 2, "compressors": numcodecs.GZip(level=5)},
    "v2-blosc-lz4-37": {
        "zarr_format": 2, "compressors": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE), "levels": 37, "batch_size": 2,
    },
}
# What make bench measures by default; the others are for information.
DEFAULT = [name for name in STORES if name not in ("v2-blosc-lz4-37", "v3-zstd-small")]


def dtype_of(name: str) -> str:
    """Returns the type of a store's values."""
    return STORES[name].get("dtype", "float32")


@dataclass(frozen=True)
class Store:
    """A written store: its name in STORES, where it lies, its steps, the bytes of those that differ on disk, and each step's
    CRC-32."""

    name: str
    path: Path
    fields: int
    encoded_bytes: int
    checksums: tuple[int, ...]

    @property
    def step_bytes(self) -> int:
        """Bytes of one decoded step."""
        return LAT * LON * np.dtype(dtype_of(self.name)).itemsize * STORES[self.name].get("levels", 1)


def checksum(field: np.ndarray) -> int:
    """Returns the CRC-32 of a field's bytes. zlib releases the interpreter lock meanwhile."""
    return zlib.crc32(np.ascontiguousarray(field))


def lengthen(path: Path, count: int, epoch: int) -> None:
    """Makes ``count`` written steps into ``epoch``: step i is a hard link to step i % count.

    To every reader they are different chunks, so that none comes from a cache of decoded chunks. The page cache holds
    each file once.
    """
    array = zarr.open_array(str(path), path="field", mode="r+")
    array.resize((epoch, *array.shape[1:]))
    rest = ".0" * (array.ndim - 1)
    for i in range(count, epoch):
        if array.metadata.zarr_format == 2:
            os.link(path / "field" / f"{i % count}{rest}", path / "field" / f"{i}{rest}")
        else:
            written = path / "field" / "c" / str(i % count)
            for chunk in [f for f in written.rglob("*") if f.is_file()]:
                link = path / "field" / "c" / str(i) / chunk.relative_to(written)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(chunk, link)


def prepare(folder: Path, names: list[str], count: int, epoch: int, threads: int) -> list[Store]:
    """Writes the stores that aren't there yet, with ``count`` different fields and ``epoch`` steps. Returns all of
    them."""
    folder.mkdir(parents=True, exist_ok=True)
    fields: np.ndarray | None = None
    done = []
    for name in names:
        path, note = folder / f"{name}-{count}-{epoch}.zarr", folder / f"{name}-{count}-{epoch}.json"
        if not note.exists():
            if fields is None:
                begin = time.perf_counter()
                fields = weather_fields(count, LAT, LON, seed=1, threads=threads)
                print(f"made {count} fields in {time.perf_counter() - begin:.1f} s", flush=True)
            shutil.rmtree(path, ignore_errors=True)
            begin = time.perf_counter()
            steps = _steps(fields, name)
            with ThreadPoolExecutor(threads) as pool:
                sums = list(pool.map(checksum, steps))
            _write(path, name, steps, threads)
            size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
            print(f"wrote {path} ({size / 1e6:.0f} MB) in {time.perf_counter() - begin:.1f} s", flush=True)
            lengthen(path, len(steps), epoch)
            note.write_text(json.dumps({"encoded_bytes": size, "checksums": sums}))
        known = json.loads(note.read_text())
        sums = tuple(known["checksums"][i % len(known["checksums"])] for i in range(epoch))
        done.append(Store(name, path, epoch, known["encoded_bytes"], sums))
    return done


def _steps(fields: np.ndarray, name: str) -> np.ndarray:
    """Returns the fields as a store holds them: as they are, as integers of 16 bits, or several to a step."""
    if np.dtype(dtype_of(name)).kind == "u":
        low, high = float(fields.min()), float(fields.max())
        return np.round((fields - low) * (65_535 / (high - low))).astype(dtype_of(name))
    levels = STORES[name].get("levels")
    if levels is None:
        return fields
    steps = max(1, min(8, len(fields) * 4 // levels))
    return np.stack([fields[(np.arange(levels) + i * levels) % len(fields)] for i in range(steps)])


def _write(path: Path, name: str, fields: np.ndarray, threads: int) -> None:
    dims = ("time", "level", "latitude", "longitude") if fields.ndim == 4 else ("time", "latitude", "longitude")
    how = {"chunks": (1, *fields.shape[1:])} | {k: v for k, v in STORES[name].items() if k not in ("levels", "batch_size", "dtype")}
    attributes = {}
    if how["zarr_format"] == 2:
        attributes["_ARRAY_DIMENSIONS"] = list(dims)
    else:
        how["dimension_names"] = dims
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    try:
        import zarrs  # noqa: F401

        if how["zarr_format"] == 3:
            pipeline = "zarrs.ZarrsCodecPipeline"  # many times faster at small inner chunks
    except ImportError:
        pass
    with zarr.config.set({"codec_pipeline.path": pipeline, "threading.max_workers": threads}):
        array = zarr.create_array(str(path), name="field", shape=fields.shape, dtype=fields.dtype, attributes=attributes, **how)
        step = max(threads, 16)
        for i in range(0, len(fields), step):
            array[i : i + step] = fields[i : i + step]
