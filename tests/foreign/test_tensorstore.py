"""What tensorstore writes: v2 and v3 in every layout that its drivers know, whole or in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configurations import values as random_values
from support.foreign import Foreign, compare, tensorstore, writer, zarr_python
from support.stores import DTYPES

ts = writer("tensorstore")

CNAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz")


def _blosc(rng: np.random.Generator) -> dict[str, Any]:
    return {"cname": str(rng.choice(CNAMES)), "clevel": int(rng.integers(0, 10)), "blocksize": int(rng.choice([0, 0, 256, 4096]))}


def _compressors(rng: np.random.Generator) -> list[dict[str, Any]]:
    """v3 codecs of bytes, none to three."""
    choices = [
        {"name": "gzip", "configuration": {"level": int(rng.integers(0, 10))}},
        {"name": "zstd", "configuration": {"level": int(rng.integers(-5, 10))}},
        {"name": "crc32c"},
        {
            "name": "blosc",
            "configuration": _blosc(rng)
            | {"shuffle": str(rng.choice(["noshuffle", "shuffle", "bitshuffle"])), "typesize": int(rng.integers(1, 9))},
        },
    ]
    return [choices[int(i)] for i in rng.integers(0, len(choices), int(rng.choice([0, 1, 1, 1, 2, 3])))]


def _endian(rng: np.random.Generator) -> str:
    return str(rng.choice(["little", "big"]))


def _chain(rng: np.random.Generator, shape: tuple[int, ...], depth: int) -> list[dict[str, Any]]:
    """v3 codecs for chunks of this shape; with ``depth``, shards in up to as many layers."""
    codecs: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        order = [int(k) for k in rng.permutation(len(shape))]
        codecs.append({"name": "transpose", "configuration": {"order": order}})
        shape = tuple(shape[k] for k in order)
    if depth and rng.random() < 0.6:
        inner = tuple(int(rng.choice([d for d in range(1, n + 1) if n % d == 0])) for n in shape)
        index = [{"name": "bytes", "configuration": {"endian": _endian(rng)}}]
        index += [{"name": "crc32c"}] if rng.random() < 0.7 else []
        configuration = {
            "chunk_shape": inner, "codecs": _chain(rng, inner, depth - 1), "index_codecs": index,
            "index_location": str(rng.choice(["start", "end"])),
        }
        return [*codecs, {"name": "sharding_indexed", "configuration": configuration}]
    return [*codecs, {"name": "bytes", "configuration": {"endian": _endian(rng)}}, *_compressors(rng)]


def _fill(rng: np.random.Generator, dtype: str) -> Any:
    """A fill value as v3's metadata spell it."""
    d = np.dtype(dtype)
    if d.kind == "b":
        return bool(rng.random() < 0.5)
    if d.kind in "iu":
        info = np.iinfo(d)
        return int([0, 1, info.min, info.max][int(rng.integers(0, 4))])
    return [0.0, 1.5, "NaN", "Infinity", "-Infinity", "0x" + "7e01ab9c12345678"[: 2 * d.itemsize]][int(rng.integers(0, 6))]


def _scalar(fill: Any, dtype: str) -> np.ndarray:
    """The value of a fill value in metadata."""
    if isinstance(fill, str) and fill.startswith("0x"):
        return np.array(int(fill, 16), f"u{np.dtype(dtype).itemsize}").view(dtype)
    return np.array(float(fill) if isinstance(fill, str) else fill, dtype)


def _transposed_shards(codecs: list[dict[str, Any]]) -> bool:
    names = [codec["name"] for codec in codecs]
    if "sharding_indexed" not in names:
        return False
    return "transpose" in names or _transposed_shards(codecs[-1]["configuration"]["codecs"])


def _write(rng: np.random.Generator, spec: dict[str, Any], values: np.ndarray, fill: np.ndarray) -> np.ndarray:
    """Writes all of the array or a box of it, and returns what it then holds."""
    store = ts.open(spec, create=True).result()
    if rng.random() < 0.6 or values.ndim == 0:
        store.write(values).result()
        return values
    low = [int(rng.integers(0, n)) for n in values.shape]
    box = tuple(slice(a, int(rng.integers(a + 1, n + 1))) for a, n in zip(low, values.shape))
    store[box].write(values[box]).result()
    expected = np.full_like(values, fill)
    expected[box] = values[box]
    return expected


def random_v3(rng: np.random.Generator, folder: Path) -> Foreign:
    """Any array of Zarr v3."""
    dtype = str(rng.choice(DTYPES))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    chunks = tuple(int(rng.integers(1, n + 4)) for n in shape)
    encoding = {"name": "default", "configuration": {"separator": str(rng.choice(["/", "."]))}}
    if rng.random() < 0.3:
        encoding = {"name": "v2", "configuration": {"separator": str(rng.choice(["/", "."]))}}
    fill = _fill(rng, dtype)
    metadata = {
        "shape": shape, "data_type": dtype, "fill_value": fill, "chunk_key_encoding": encoding,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "codecs": _chain(rng, chunks, 2), "attributes": {"by": "tensorstore"},
    }
    dims = None
    if rng.random() < 0.5:
        dims = [str(name) for name in rng.permutation(["time", "lat", "x", "channel", "höhe in m"])[: len(shape)]]
        metadata["dimension_names"] = dims
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    written = _write(rng, spec, random_values(rng, dtype, shape), _scalar(fill, dtype))
    references = {"what was written": written, "tensorstore": tensorstore(folder)}
    # zarr-python compares a shard's inner chunks with the shard's shape before a transpose, and refuses some.
    if not _transposed_shards(metadata["codecs"]):
        references["zarr-python"] = zarr_python(folder)
    return Foreign(folder, "", references, dims)


def random_v2(rng: np.random.Generator, folder: Path) -> Foreign:
    """Any array of Zarr v2."""
    dtype = np.dtype(str(rng.choice(DTYPES)))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    compressors = [
        None, {"id": "zlib", "level": int(rng.integers(0, 10))}, {"id": "gzip", "level": int(rng.integers(0, 10))},
        {"id": "bz2", "level": int(rng.integers(1, 10))}, {"id": "zstd", "level": int(rng.integers(-5, 10))},
        {"id": "blosc", **_blosc(rng), "shuffle": int(rng.integers(-1, 3))},
    ]
    fill = None if rng.random() < 0.4 else _fill(rng, dtype.name)
    if isinstance(fill, str) and fill.startswith("0x"):
        fill = 2.5
    metadata = {
        "shape": shape, "chunks": [int(rng.integers(1, n + 4)) for n in shape],
        "order": "F" if len(shape) > 1 and rng.random() < 0.5 else "C",
        "dtype": dtype.newbyteorder(str(rng.choice(["<", ">"]))).str, "fill_value": fill, "filters": None,
        "compressor": compressors[int(rng.integers(0, len(compressors)))],
        "dimension_separator": str(rng.choice([".", "/"])),
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    written = _write(rng, spec, random_values(rng, dtype.name, shape), _scalar(fill or 0, dtype.name))
    references = {"what was written": written, "tensorstore": tensorstore(folder), "zarr-python": zarr_python(folder)}
    return Foreign(folder, "", references)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [random_v2, random_v3])
def test_random(tmp_path, device, kind, seed):
    """A fixed sample of all ways to store an array."""
    rng = np.random.default_rng(seed)
    compare(device, kind(rng, tmp_path / "a.zarr"), seed)


def _shards(inner: tuple[int, ...], codecs: list[dict[str, Any]]) -> dict[str, Any]:
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return {"name": "sharding_indexed", "configuration": {"chunk_shape": inner, "codecs": codecs, "index_codecs": index}}


@pytest.mark.parametrize("nested", [False, True])
def test_shards_of_many_inner_chunks_take_little_memory(tmp_path, device, nested):
    """Shards that are decoded whole, since they are transposed or within others, are bounded by what they hold."""
    inner = [{"name": "bytes", "configuration": {"endian": "little"}}]
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    codecs = [_shards((64, 64), [_shards((1, 1), inner)])] if nested else [transpose, _shards((1, 1), inner)]
    metadata = {
        "shape": [80, 128], "data_type": "float32", "fill_value": 0.0, "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64, 64]}},
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}, "metadata": metadata}
    values = np.random.default_rng(0).standard_normal((80, 128)).astype("float32")
    ts.open(spec, create=True).result().write(values).result()
    references = {"what was written": values, "tensorstore": tensorstore(tmp_path / "a")}
    compare(device, Foreign(tmp_path / "a", "", references, options={"host_memory_limit": 16 << 20}), tries=2)


# For the long search by tests/random_foreign.py.
RANDOM = (random_v2, random_v3)
