"""Sound stores that hardly any writer makes: chunks longer than they need be, fill values as text, groups that are missing,
damaged or of the other version. zarr-python or numcodecs reads them, or what was written is the oracle."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import dali_zarr.torch
import numcodecs
import numpy as np
import pytest
import zarr
from dali_zarr._commands import bench
from support.pipelines import build, check, same, stats_of, to_numpy
from support.stores import Layout, chunk_files, metadata, sample_values, write_array

SHAPE = (3, 64, 50)
DIMS = ("time", "y", "x")


def epoch(device: str, path: Path, expected: np.ndarray, **args: Any) -> None:
    """Compares an array's steps along its first dimension, twice over."""
    pipe = build(device, 1, path=path, **args)
    for i in range(2 * len(expected)):
        same(to_numpy(pipe.run()[0]), expected[i % len(expected)][None], f"step {i}")


def refused(device: str, *words: str, **args: Any) -> str:
    with pytest.raises(ValueError) as caught:
        build(device, 1, **args)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def blosc_streams(data: bytes, block: int, literals: bool) -> bytes:
    """A Blosc chunk of unsplit LZ4 blocks that don't shrink: stored as they are (GDAL), or as LZ4 blocks of literals only."""
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    starts, streams = [], b""
    for piece in blocks:
        starts.append(16 + 4 * len(blocks) + len(streams))
        if literals:
            more = len(piece) - 15
            length = bytes([min(len(piece), 15) << 4]) + (b"\xff" * (more // 255) + bytes([more % 255]) if more >= 0 else b"")
            piece = length + piece
        streams += struct.pack("<i", len(piece)) + piece
    size = 16 + 4 * len(blocks) + len(streams)
    head = bytes([2, 1, 1 << 5 | 0x10, 1]) + struct.pack("<iii", len(data), block, size)
    return head + struct.pack(f"<{len(blocks)}i", *starts) + streams


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("block", "literals"), [(16 << 10, False), (16 << 10, True), (128, False), (50_000, True)])
def test_noise_in_blosc_streams(tmp_path, device, zarr_format, block, literals):
    """GDAL gives Blosc more room than it needs. Blosc then stores noise stream by stream, a few bytes longer than as a whole."""
    values = np.random.default_rng(0).integers(0, 256, (3, 250, 200), dtype="uint8")
    write_array(
        tmp_path, "a", values, zarr_format=zarr_format, codec="blosc-lz4-noshuffle" if zarr_format == 3 else "blosc-lz4-shuffle",
        layout=Layout((1, 250, 200)), dims=DIMS,
    )
    for i, file in enumerate(chunk_files(tmp_path, "a")):
        chunk = blosc_streams(values[i].tobytes(), block, literals)
        assert numcodecs.Blosc().decode(chunk) == values[i].tobytes()
        file.write_bytes(chunk)
    check(device, 2, path=tmp_path, arrays=["a"], epochs=2)
    if device == "gpu":
        # Literals decode like any other block. Chunks with more streams than a wave has room for go to the CPU.
        stats = stats_of(3, device, 1, path=tmp_path, arrays=["a"])
        assert stats["chunks_decoded_gpu" if block > 128 else "cpu_fallbacks"] > 0, stats


def _gzip(data: bytes) -> bytes:
    empty = bytearray(gzip.compress(b""))
    empty[3] = 4
    empty = bytes(empty[:10]) + struct.pack("<H", 60_000) + bytes(60_000) + bytes(empty[10:])
    return empty * 5 + gzip.compress(data)


def _zlib(data: bytes) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(data[i : i + 1]) + packer.flush(zlib.Z_FULL_FLUSH) for i in range(len(data))) + packer.flush()


def _zstd(data: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + struct.pack("<I", 200_000) + bytes(200_000) + numcodecs.Zstd(3).encode(data)


def _bz2(data: bytes) -> bytes:
    return numcodecs.BZ2().encode(b"") * 2000 + numcodecs.BZ2().encode(data)


def _lzma(data: bytes) -> bytes:
    return numcodecs.LZMA().encode(data) + bytes(100_000)


LONG = {"gzip": _gzip, "zlib": _zlib, "zstd": _zstd, "bz2": _bz2, "lzma": _lzma}


@pytest.mark.parametrize("codec", LONG)
def test_chunks_longer_than_encoders_make_them(tmp_path, device, codec):
    """Empty members, blocks and frames, extra fields, padding: as numcodecs reads them, beside ordinary chunks."""
    values = sample_values("uint8", SHAPE, seed=1)
    array = zarr.create_array(
        str(tmp_path), name="a", shape=SHAPE, chunks=(1, 64, 50), dtype="u1", zarr_format=2, fill_value=0,
        compressors=numcodecs.get_codec({"id": codec}), attributes={"_ARRAY_DIMENSIONS": list(DIMS)},
    )
    array[...] = values
    long = LONG[codec](values[1].tobytes())
    assert bytes(numcodecs.get_codec({"id": codec}).decode(long)) == values[1].tobytes()
    chunk_files(tmp_path, "a")[1].write_bytes(long)
    for args in ({}, {"cache_size": 4 << 20}, {"host_memory_limit": 64 << 20, "prefetch_queue_depth": 1}):
        check(device, 2, path=tmp_path, arrays=["a"], epochs=2, **args)


def test_a_chunk_that_memory_has_no_room_for(tmp_path, device):
    """The batch that needs it fails with a limit that would do, and that one does."""
    values = sample_values("uint8", SHAPE, seed=1)
    write_array(tmp_path, "a", values, layout=Layout((1, 64, 50)), dims=DIMS)
    file = chunk_files(tmp_path, "a")[1]
    file.write_bytes(b"\x50\x2a\x4d\x18" + struct.pack("<I", 40 << 20) + bytes(40 << 20) + file.read_bytes())
    args = {"path": tmp_path, "arrays": ["a"], "prefetch_queue_depth": 1}
    with pytest.raises(RuntimeError, match="host_memory_limit of") as caught:
        pipe = build(device, 1, host_memory_limit=32 << 20, **args)
        [pipe.run() for _ in range(3)]
    assert "chunk a/c/1/0/0" in str(caught.value)
    limit = int(re.search(r"host_memory_limit of (\d+)", str(caught.value))[1])
    check(device, 1, path=tmp_path, arrays=["a"], epochs=2, host_memory_limit=limit, prefetch_queue_depth=1)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("int16", "0"), ("int32", "-7"), ("uint8", "255"), ("uint64", "18446744073709551615"), ("int8", True), ("float32", "nan"),
     ("float32", "1.5"), ("float64", "inf"), ("float16", "-inf"), ("float64", "1e3"), ("float32", "0"), ("float32", True),
     ("float64", False), ("bool", "1"), ("bool", "true")],
)
def test_fill_values_as_text(tmp_path, device, zarr_format, dtype, fill):
    """n5-zarr wrote them until May 2024. The values are zarr-python's."""
    values = sample_values(dtype, SHAPE, seed=2)
    layout = Layout((1, 64, 50))
    write_array(tmp_path, "a", values, zarr_format=zarr_format, layout=layout, dims=DIMS, missing=((1, 0, 0),))
    file, document = metadata(tmp_path, "a")
    document["fill_value"] = fill
    file.write_text(json.dumps(document))
    check(device, 3, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize(("dtype", "fill"), [("int16", "0.0"), ("uint8", " 7 ")])
def test_fill_values_that_are_numbers_though_zarr_python_refuses_some(tmp_path, device, dtype, fill):
    values = sample_values(dtype, SHAPE, seed=2)
    write_array(tmp_path, "a", values, layout=Layout((1, 64, 50)), dims=DIMS, missing=((1, 0, 0),))
    file, document = metadata(tmp_path, "a")
    document["fill_value"] = fill
    file.write_text(json.dumps(document))
    values[1] = int(float(fill))
    epoch(device, tmp_path, values, arrays=["a"])


@pytest.mark.parametrize(("dtype", "fill"), [
    ("int16", "1.5"), ("uint8", "256"), ("float32", "much"), ("int32", "nan"), ("bool", "no"),
])
def test_fill_values_that_are_no_numbers(tmp_path, device, dtype, fill):
    write_array(tmp_path, "a", sample_values(dtype, SHAPE), layout=Layout((1, 64, 50)), dims=DIMS)
    file, document = metadata(tmp_path, "a")
    document["fill_value"] = fill
    file.write_text(json.dumps(document))
    refused(device, "fill_value", fill, path=tmp_path, arrays=["a"])


@pytest.mark.parametrize("root", ["none", "v2", "v3"])
def test_arrays_without_a_group_or_below_one_of_the_other_version(tmp_path, device, root):
    values = {f"v{n}": sample_values("int16", SHAPE, seed=n) for n in (2, 3)}
    for name, array in values.items():
        write_array(tmp_path / name, "a", array, zarr_format=int(name[1]), layout=Layout((1, 64, 50)), dims=DIMS)
        for file in ("zarr.json", ".zgroup", ".zattrs"):
            (tmp_path / name / file).unlink(missing_ok=True)
    if root != "none":
        zarr.open_group(str(tmp_path), mode="a", zarr_format=int(root[1]))
    pipe = build(device, 3, path=tmp_path, arrays=["v2/a", "v3/a"])
    for found, array in zip(pipe.run(), values.values(), strict=True):
        same(to_numpy(found), array, root)
    refused(device, "v4/a", path=tmp_path, arrays=["v4/a"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"metadata": {}}', '{"metadata": null}'])
@pytest.mark.parametrize("file", [".zmetadata", ".zgroup"])
def test_damaged_documents_beside_sound_arrays(tmp_path, device, file, text):
    values = sample_values("float32", SHAPE, seed=3)
    write_array(tmp_path, "a", values, zarr_format=2, layout=Layout((1, 64, 50)), dims=DIMS)
    (tmp_path / file).write_text(text)
    for arrays in ([], ["a"]):
        epoch(device, tmp_path, values, arrays=arrays)


@pytest.mark.parametrize("consolidated", [None, 5, {}, {"metadata": None}, {"metadata": {}}, {"metadata": {"a": 5}}], ids=str)
def test_damaged_consolidated_metadata(tmp_path, device, consolidated):
    values = sample_values("float32", SHAPE, seed=3)
    write_array(tmp_path, "a", values, layout=Layout((1, 64, 50)), dims=DIMS)
    file, document = metadata(tmp_path)
    file.write_text(json.dumps(document | {"consolidated_metadata": consolidated}))
    epoch(device, tmp_path, values, arrays=["a"])


@pytest.mark.parametrize("outer", [[], [{"name": "crc32c"}]], ids=["read by parts", "read whole"])
def test_shards_without_index_codecs(tmp_path, device, outer):
    values = sample_values("int32", SHAPE, seed=4)
    write_array(tmp_path, "a", values, layout=Layout((1, 16, 25), shards=(1, 64, 50)), dims=DIMS)
    file, document = metadata(tmp_path, "a")
    del document["codecs"][0]["configuration"]["index_codecs"]
    document["codecs"] += outer
    file.write_text(json.dumps(document))
    for chunk in chunk_files(tmp_path, "a") if outer else []:
        chunk.write_bytes(numcodecs.CRC32C(location="end").encode(chunk.read_bytes()))
    epoch(device, tmp_path, values, arrays=["a"])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_byte_order_mark_and_a_version_with_a_point(tmp_path, device, zarr_format):
    values = sample_values("int32", SHAPE, seed=4)
    write_array(tmp_path, "a", values, zarr_format=zarr_format, layout=Layout((1, 64, 50)), dims=DIMS)
    for name in ("", "a"):
        file, document = metadata(tmp_path, name)
        file.write_text(json.dumps(document | {"zarr_format": float(zarr_format)}), encoding="utf-8-sig")
    epoch(device, tmp_path, values, arrays=["a"])


def test_base64(tmp_path, device):
    """Alone, behind filters and compressors, and before one."""
    values = sample_values("int16", SHAPE, seed=5)
    chains = {
        "alone": {"compressors": numcodecs.Base64()},
        "of zstd": {"filters": [numcodecs.Delta("<i2"), numcodecs.Zstd()], "compressors": numcodecs.Base64()},
        "in zlib": {"filters": [numcodecs.Base64()], "compressors": numcodecs.Zlib()},
    }
    for name, codecs in chains.items():
        array = zarr.create_array(
            str(tmp_path), name=name, shape=SHAPE, chunks=(2, 40, 30), dtype="i2", zarr_format=2, fill_value=0, **codecs,
            attributes={"_ARRAY_DIMENSIONS": list(DIMS)},
        )
        array[...] = values
    check(device, 2, path=tmp_path, arrays=list(chains))


def test_locations_that_say_what_to_write_instead(tmp_path, device):
    values = sample_values("int16", SHAPE, seed=5)
    write_array(tmp_path / "s", "a", values, layout=Layout((1, 64, 50)), dims=DIMS)
    epoch(device, f"FILE://{tmp_path}/s", values)
    for chain, words in {
        "simplecache::s3://bucket/a.zarr": ("fsspec", "give s3://bucket/a.zarr itself", "cache_dir"),
        "zip://::gs://bucket/a.zip": ("fsspec", "give gs://bucket/a.zip itself"),
    }.items():
        refused(device, *words, path=chain)
    (tmp_path / "a.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    refused(device, "a.nc", "HDF5 or NetCDF", path=tmp_path / "a.nc")
    refused(device, "zarr.json, which is a part of a store", path=tmp_path / "s" / "zarr.json")


@pytest.mark.parametrize(("codec", "bend", "words"), [
    ("gzip", lambda b: b + b"\nabc", "4 bytes behind them that are none"),
    ("gzip", lambda b: b"", "expected gzip data, but found no bytes at all"),
    ("blosc-lz4-shuffle", lambda b: b"", "expected blosc data, but found no bytes at all"),
    ("blosc-lz4-shuffle", lambda b: b[:9], "expected blosc data, but found 9 bytes that can't be decoded"),
    ("numcodecs-bz2", lambda b: b"", "expected bz2 data, but found no bytes at all"),
])
def test_messages_of_damaged_chunks(tmp_path, device, codec, bend, words):
    write_array(tmp_path, "a", sample_values("int32", SHAPE), codec=codec, layout=Layout((1, 64, 50)), dims=DIMS)
    file = chunk_files(tmp_path, "a")[0]
    file.write_bytes(bend(file.read_bytes()))
    with pytest.raises(RuntimeError, match=f"chunk a/c/0/0/0.*{words}"):
        build(device, 1, path=tmp_path, arrays=["a"]).run()


def test_single_numbers(tmp_path):
    """Nobody gave a step, so no message and no measurement is about one."""
    write_array(tmp_path, "a", np.float32(3))
    loader = dali_zarr.torch.Loader(tmp_path, device="cpu")
    (batch,) = loader
    assert batch["a"].tolist() == [3.0] and batch.coords == {}
    assert bench.bench(str(tmp_path), {"seconds": 0.01}, False)["faster_chunks"] == []
    with pytest.raises(ValueError, match="statistics: expected an array with dimensions, but a has none"):
        dali_zarr.statistics(tmp_path, arrays=["a"])
    for name in ("sel", "isel"):
        with pytest.raises(ValueError, match=f'{name}: no array has a dimension "x"'):
            dali_zarr.explain(tmp_path, arrays=["a"], **{name: {"x": 0}})


@pytest.mark.parametrize("last", [5, 9])
def test_a_mixed_grid_of_zarr_python_3_2(tmp_path, device, last):
    """Lists of chunk lengths in a grid that calls itself regular; the last chunk may reach beyond the array."""
    values = np.arange(6 * 20, dtype="<i4").reshape(6, 20)
    whole = np.pad(values, [(0, 0), (0, last - 5)])
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [6, 20], "data_type": "int32", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, [5, 10, last]]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": ["y", "x"],
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(document))
    for i in range(3):
        for j, (start, end) in enumerate(((0, 5), (5, 15), (15, 15 + last))):
            file = tmp_path / "a" / "c" / str(i) / str(j)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(whole[2 * i : 2 * i + 2, start:end].tobytes())
    epoch(device, tmp_path, values, arrays=["a"])
    assert dali_zarr.explain(path=str(tmp_path), arrays=["a"])["arrays"][0]["stores"][0]["chunks"] == [2, max(10, last)]
