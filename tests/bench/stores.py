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

STORES: dict[str, dict[str, Any]] = {
    "v3-none": {"zarr_format": 3, "compressors": None},
    "v3-zstd": {"zarr_format": 3, "compressors": zc.ZstdCodec(level=3)},
    "v3-zstd-shards": {"zarr_format": 3, "compressors": zc.ZstdCodec(level=3), "chunks": INNER, "shards": (1, LAT, LON)},
    "v3-blosc-lz4": {"zarr_format": 3, "compressors": zc.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)},
    "v2-lz4": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "v2-gzip": {"zarr_format": 2, "compressors": numcodecs.GZip(level=5)},
}
# What make bench measures by default; the others are for information.
DEFAULT = ["v3-none", "v3-zstd", "v3-zstd-shards", "v2-lz4", "v2-gzip"]


@dataclass(frozen=True)
class Store:
    """A written store: its name in STORES, where it lies, its fields, its size on disk, and each field's CRC-32."""

    name: str
    path: Path
    fields: int
    encoded_bytes: int
    checksums: tuple[int, ...]

    @property
    def decoded_bytes(self) -> int:
        return self.fields * LAT * LON * 4


def checksum(field: np.ndarray) -> int:
    """CRC-32 of a field's bytes; zlib's lets go of the interpreter lock."""
    return zlib.crc32(np.ascontiguousarray(field))


def lengthen(path: Path, count: int, epoch: int) -> None:
    """Makes ``count`` written steps into ``epoch``: step i is a hard link to step i % count.

    To every reader they are different chunks, so that nothing is answered from a cache of decoded ones, while the page
    cache holds each once.
    """
    array = zarr.open_array(str(path), path="field", mode="r+")
    array.resize((epoch, LAT, LON))
    for i in range(count, epoch):
        if array.metadata.zarr_format == 2:
            os.link(path / "field" / f"{i % count}.0.0", path / "field" / f"{i}.0.0")
        else:
            (path / "field" / "c" / str(i) / "0").mkdir(parents=True)
            os.link(path / "field" / "c" / str(i % count) / "0" / "0", path / "field" / "c" / str(i) / "0" / "0")


def prepare(folder: Path, names: list[str], count: int, epoch: int, threads: int) -> list[Store]:
    """Writes those of the stores that aren't there yet: ``count`` different fields, ``epoch`` steps."""
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
            with ThreadPoolExecutor(threads) as pool:
                sums = list(pool.map(checksum, fields))
            _write(path, name, fields, threads)
            size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
            print(f"wrote {path} ({size / 1e6:.0f} MB) in {time.perf_counter() - begin:.1f} s", flush=True)
            lengthen(path, count, epoch)
            note.write_text(json.dumps({"encoded_bytes": size, "checksums": sums}))
        known = json.loads(note.read_text())
        sums = tuple(known["checksums"][i % count] for i in range(epoch))
        done.append(Store(name, path, epoch, known["encoded_bytes"], sums))
    return done


def _write(path: Path, name: str, fields: np.ndarray, threads: int) -> None:
    how = {"chunks": (1, LAT, LON)} | STORES[name]
    attributes = {}
    if how["zarr_format"] == 2:
        attributes["_ARRAY_DIMENSIONS"] = ["time", "latitude", "longitude"]
    else:
        how["dimension_names"] = ("time", "latitude", "longitude")
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    try:
        import zarrs  # noqa: F401

        if how["zarr_format"] == 3:
            pipeline = "zarrs.ZarrsCodecPipeline"  # many times faster at small inner chunks
    except ImportError:
        pass
    with zarr.config.set({"codec_pipeline.path": pipeline, "threading.max_workers": threads}):
        array = zarr.create_array(str(path), name="field", shape=fields.shape, dtype="float32", attributes=attributes, **how)
        step = max(threads, 16)
        for i in range(0, len(fields), step):
            array[i : i + step] = fields[i : i + step]
