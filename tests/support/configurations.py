"""Random ways to store an array: format, codec and its options, data type, chunks, shards. A seed gives one way, for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr import codecs as zc

from support.stores import DTYPES

# The format has Snappy too, but numcodecs is built without it.
CNAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz")


@dataclass
class Configuration:
    """A way to store an array: ``arguments`` for zarr-python, and ``text`` that says the same to people."""

    seed: int
    arguments: dict[str, Any] = field(default_factory=dict)
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    text: str = ""

    def write(self, path: Path, name: str) -> None:
        """Writes the array into the group at ``path``, which may hold arrays of both formats."""
        array = zarr.create_array(store=str(path / name), config={"write_empty_chunks": True}, **self.arguments)
        array[...] = self.values


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that compress well, badly or not at all."""
    d = np.dtype(dtype)
    n = int(np.prod(shape))
    kind = rng.choice(["smooth", "quantised", "noise", "runs", "constant"])
    if kind == "constant":
        flat = np.full(n, rng.integers(0, 2), d)
    elif kind == "noise":
        flat = np.frombuffer(rng.bytes(n * d.itemsize), d).copy() if d.kind != "b" else rng.integers(0, 2, n).astype(d)
    elif kind == "runs":
        flat = np.repeat(rng.integers(0, 2 if d.kind == "b" else 100, n // 7 + 1), 7)[:n].astype(d)
    else:
        walk = np.cumsum(rng.standard_normal(n))
        walk = np.round(walk * 8) / 8 if kind == "quantised" else walk
        flat = (walk > 0) if d.kind == "b" else np.mod(walk, 100).astype(d) if d.kind == "u" else walk.astype(d)
    return flat.astype(d).reshape(shape)


def blosc(rng: np.random.Generator, zarr_format: int, itemsize: int, largest: int) -> tuple[Any, str]:
    """A Blosc codec with any options."""
    cname, clevel = str(rng.choice(CNAMES)), int(rng.integers(0, 10))
    shuffle = int(rng.integers(0, 3))
    blocksize = int(rng.choice([0, 0, 0, 1, 200, 1000, 4096, 65_536, largest, 2 * largest]))
    typesize = itemsize if rng.random() < 0.7 else int(rng.choice([1, 2, 3, 4, 7, 8, 12, 16, 17, 255]))
    text = f"blosc {cname}-{clevel} shuffle {shuffle} blocksize {blocksize}"
    if zarr_format == 2:
        return numcodecs.Blosc(cname, clevel, shuffle, blocksize), text
    shuffles = ("noshuffle", "shuffle", "bitshuffle")
    return (
        zc.BloscCodec(cname=cname, clevel=clevel, shuffle=shuffles[shuffle], blocksize=blocksize, typesize=typesize),
        f"{text} typesize {typesize}",
    )


def other(rng: np.random.Generator, zarr_format: int) -> tuple[Any, str]:
    """Another compressor, or none."""
    level = int(rng.integers(1, 9))
    if zarr_format == 2:
        choices = {
            "none": None, f"zstd-{level}": numcodecs.Zstd(level), f"zlib-{level}": numcodecs.Zlib(level),
            f"gzip-{level}": numcodecs.GZip(level), "lz4": numcodecs.LZ4(),
        }
    else:
        choices = {
            "none": None, f"zstd-{level}": zc.ZstdCodec(level=level), f"gzip-{level}": zc.GzipCodec(level=level),
            f"zstd-{level}-checksum": zc.ZstdCodec(level=level, checksum=True),
        }
    name = str(rng.choice(list(choices)))
    return choices[name], name


def configuration(seed: int, steps: int = 6, largest: int = 100_000) -> Configuration:
    """A way to store an array (steps, ...) whose chunks have up to about ``largest`` bytes."""
    rng = np.random.default_rng(seed)
    zarr_format, dtype = int(rng.integers(2, 4)), str(rng.choice(DTYPES))
    itemsize = np.dtype(dtype).itemsize
    rest = tuple(int(n) for n in rng.integers(1, 40, int(rng.integers(1, 4))))
    per_step = int(np.prod(rest)) * itemsize
    if rng.random() < 0.5:
        rest = (*rest[:-1], rest[-1] * max(1, int(rng.integers(1, 1 + max(1, largest // per_step)))))
    shape = (steps, *rest)
    chunks = tuple(int(rng.integers(1, n + 1)) if rng.random() < 0.5 else n for n in shape)
    codec, text = blosc(rng, zarr_format, itemsize, largest) if rng.random() < 0.8 else other(rng, zarr_format)
    arguments: dict[str, Any] = {
        "shape": shape, "dtype": dtype, "chunks": chunks, "zarr_format": zarr_format, "compressors": codec, "fill_value": 0,
    }
    if zarr_format == 2:
        arguments["order"] = str(rng.choice(["C", "F"]))
        if rng.random() < 0.3:
            arguments["dtype"] = np.dtype(dtype).newbyteorder(">")
    else:
        arguments["serializer"] = zc.BytesCodec(endian=str(rng.choice(["little", "big"])))
        arguments["dimension_names"] = ("time", *(f"d{i}" for i in range(len(rest))))
        if rng.random() < 0.4:
            arguments["shards"] = tuple(c * int(rng.integers(1, 4)) for c in chunks)
    keep = {k: v for k, v in arguments.items() if k not in ("compressors", "serializer", "dimension_names")}
    return Configuration(seed, arguments, values(rng, dtype, shape), f"seed {seed}: {text}, {keep}")
