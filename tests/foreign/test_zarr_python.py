"""What the newest zarr-python writes, beyond the layouts of the other suites: grids that aren't regular, shards within shards, and
filters that convert values. Version 3.1, the last one for Python 3.11, lacks some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
import zarr.codecs as zc
from support.foreign import Foreign, compare, tensorstore, writer, zarr_python

pytestmark = pytest.mark.filterwarnings("ignore")
VALUES = np.random.default_rng(0).integers(-1000, 1000, (20, 30)).astype("i4")
VOLUME = np.random.default_rng(1).integers(0, 256, (12, 10, 8)).astype("u2")
FLOATS = np.random.default_rng(2).standard_normal((20, 30)) * 20

GRIDS: dict[str, dict[str, Any]] = {
    "lists": {"chunks": [[5, 7, 8], [10, 10, 10]]}, "a list and a number": {"chunks": [4, [10, 20]]},
    "repeated lengths": {"chunks": [[2] * 10, [3, 3, 3, 3, 3, 5, 5, 5]]},
    "compressed": {"chunks": [[5, 7, 8], [10, 20]], "compressors": zc.ZstdCodec(level=3)},
    "transposed": {"chunks": [[5, 7, 8], [10, 20]], "filters": zc.TransposeCodec(order=(1, 0))},
    "shards": {"chunks": [5, 10], "shards": [[5, 10, 5], [10, 20]]},
    "fill values": {"chunks": [[5, 7, 8], [10, 20]], "fill_value": int(VALUES[0, 0])},
}
LITTLE, ZSTD = zc.BytesCodec(endian="little"), zc.ZstdCodec(level=1)


def _shards(chunk_shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"serializer": zc.ShardingCodec(chunk_shape=chunk_shape, **more)}


CHAINS: dict[str, dict[str, Any]] = {
    "shards within shards": _shards((3, 10, 4), codecs=[zc.ShardingCodec(chunk_shape=(3, 5, 2), codecs=[LITTLE, ZSTD])]),
    "a transposition between": _shards((3, 10, 4), codecs=[
        zc.TransposeCodec(order=(2, 0, 1)),
        zc.ShardingCodec(chunk_shape=(2, 3, 5), codecs=[zc.TransposeCodec(order=(1, 2, 0)), LITTLE]),
    ]),
    "a compressor around shards": _shards((3, 5, 4)) | {"compressors": ZSTD},
    "an index at the start": _shards((3, 5, 4), codecs=[LITTLE, ZSTD], index_location="start"),
    "an index without a checksum": _shards((3, 5, 4), index_codecs=[zc.BytesCodec(endian="big")]),
}
# What writes the inner chunks of a shard in another order has no place in the metadata.
ORDERS = get_args(getattr(zc, "SubchunkWriteOrder", None))


def _away(values: np.ndarray) -> np.ndarray:
    """Rounds to the nearest whole number, and halves away from 0."""
    return np.trunc(values + np.copysign(0.5, values))


# The array's type, the filters, and what they make of its values.
FILTERS: dict[str, tuple[str, list[dict[str, Any]], Callable[[np.ndarray], np.ndarray]]] = {
    "to a smaller type": (
        "float32", [{"data_type": "int16", "rounding": "nearest-even", "out_of_range": "clamp"}],
        # Integers have no -0.0.
        lambda v: np.rint(v) + np.float32(0.0),
    ),
    "to a larger type": ("int8", [{"data_type": "int16", "out_of_range": "clamp"}], lambda v: v),
    "around the type's end": ("int32", [{"data_type": "uint8", "out_of_range": "wrap"}], lambda v: v.astype("u1").astype("i4")),
    "scaled": (
        "float64",
        [{"offset": 1.0, "scale": 100.0}, {"data_type": "int16", "rounding": "nearest-away", "out_of_range": "clamp"}],
        lambda v: _away((v - 1.0) * 100.0) / 100.0 + 1.0,
    ),
    "scaled alone": ("float32", [{"offset": 2.5, "scale": 0.25}], lambda v: (v - np.float32(2.5)) + np.float32(2.5)),
}


def _written(path: Path, values: np.ndarray, **how: Any) -> None:
    group = zarr.open_group(str(path), mode="a")
    group.create_array("a", shape=values.shape, dtype=values.dtype, **how)[...] = values


def _references(path: Path, values: np.ndarray) -> dict[str, np.ndarray]:
    return {"what was written": values, "zarr-python": zarr_python(path, "a")}


def test_versions():
    """The suite is about the newest version that this Python has."""
    assert zarr.__version__ >= ("3.4" if hasattr(zc, "CastValue") else "3.1")


@pytest.mark.parametrize("grid", GRIDS if hasattr(zc, "CastValue") else [])
def test_rectilinear(tmp_path, device, grid):
    with zarr.config.set({"array.rectilinear_chunks": True}):
        _written(tmp_path / "s", VALUES, **GRIDS[grid])
        compare(device, Foreign(tmp_path / "s", "a", _references(tmp_path / "s", VALUES)))


@pytest.mark.parametrize("chain", CHAINS)
def test_shards(tmp_path, device, chain):
    _written(tmp_path / "s", VOLUME, **{"chunks": (6, 10, 8), "filters": None, "compressors": None} | CHAINS[chain])
    references = _references(tmp_path / "s", VOLUME)
    if "compressor" not in chain:
        references["tensorstore"] = tensorstore(tmp_path / "s", "a")
    compare(device, Foreign(tmp_path / "s", "a", references))


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_inner_chunks(tmp_path, device, order):
    sharding = zc.ShardingCodec(chunk_shape=(3, 5, 4), codecs=[LITTLE, ZSTD], subchunk_write_order=order)
    _written(tmp_path / "s", VOLUME, chunks=(6, 10, 8), serializer=sharding, compressors=None)
    references = _references(tmp_path / "s", VOLUME) | {"tensorstore": tensorstore(tmp_path / "s", "a")}
    compare(device, Foreign(tmp_path / "s", "a", references))


@pytest.mark.parametrize("shards", [None, (16, 24)])
@pytest.mark.parametrize("name", FILTERS if hasattr(zc, "CastValue") else [])
def test_filters_that_convert(tmp_path, device, name, shards):
    """What is read is what went through them."""
    writer("cast_value_rs")
    dtype, steps, by_hand = FILTERS[name]
    filters = [zc.ScaleOffset(**step) if "scale" in step else zc.CastValue(**step) for step in steps]
    _written(tmp_path / "s", FLOATS.astype(dtype), chunks=(8, 12), shards=shards, filters=filters, serializer=LITTLE)
    references = {"by hand": by_hand(FLOATS.astype(dtype)), "zarr-python": zarr_python(tmp_path / "s", "a")}
    compare(device, Foreign(tmp_path / "s", "a", references))
