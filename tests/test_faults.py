"""Broken storage ends in a RuntimeError at the batch that needed it, which names the chunk; never in a wrong value or a hang."""

from __future__ import annotations

import os
import shutil
import struct

import numpy as np
import pytest
from support.pipelines import batches, build, check, same
from support.stores import CODECS_V2, CODECS_V3, Layout, chunk_files, sample_values, write_array

SHAPE = (6, 16, 32)
DIMS = ("time", "lat", "lon")
LAYOUT = Layout((2, 16, 32))


def run_all(device, path, rounds=6, **args):
    """Runs through the store, more than once if it must."""
    pipe = build(device, 2, path=path, arrays=["a"], **args)
    for _ in range(rounds):
        pipe.run()


def fails(device, path, *words, **args):
    """Asserts that reading raises a RuntimeError with all ``words`` in its message."""
    with pytest.raises(RuntimeError) as caught:
        run_all(device, path, **args)
    for word in ("zarr_reader", "'a'", str(path), *words):
        assert word in str(caught.value), f"{word!r} isn't in {caught.value}"
    return str(caught.value)


def store(path, codec, zarr_format=3, layout=LAYOUT):
    """Compressible values without zeros, so that neither codec can shrink a chunk to a header."""
    values = np.round(sample_values("float64", SHAPE, seed=1).clip(-99, 99), 1).astype("float32") + 1000
    values = np.nan_to_num(values, nan=1.0)
    write_array(path, "a", values, zarr_format=zarr_format, codec=codec, layout=layout, dims=DIMS)
    return values


ALL = [(3, c) for c in CODECS_V3] + [(2, c) for c in CODECS_V2]


@pytest.mark.parametrize(("zarr_format", "codec"), ALL)
@pytest.mark.parametrize("keep", [0, 1, 9, 0.5, -1], ids=["empty", "one-byte", "a-header", "half", "all-but-one"])
def test_truncated_chunk(tmp_path, device, zarr_format, codec, keep):
    """A chunk that ends early, wherever it is cut."""
    store(tmp_path, codec, zarr_format)
    file = chunk_files(tmp_path, "a")[1]
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    fails(device, tmp_path, "1", str(file.relative_to(tmp_path / "a")))


def unfetched(file):
    """Leaves of a file what git-annex and DataLad have before `get`: a link to content that isn't there."""
    file.unlink()
    file.symlink_to("../.git/annex/objects/Xk/qz/MD5E-s4096--0123")
    return "symbolic link", str(file), "MD5E-s4096--0123", "datalad get", "git annex get"


@pytest.mark.parametrize(("zarr_format", "shards"), [(2, None), (3, None), (3, (4, 16, 32))], ids=["v2", "v3", "shard"])
def test_chunk_that_is_not_fetched(tmp_path, device, zarr_format, shards):
    """A link whose target is missing is an error at the batch that needs it, not the fill value."""
    values = store(tmp_path, "zstd", zarr_format, Layout(LAYOUT.chunks, shards=shards))
    words = unfetched(chunk_files(tmp_path, "a")[1])
    pipe = build(device, 2, path=tmp_path, arrays=["a"], prefetch_queue_depth=1)
    same(next(batches(pipe))[0], values[:2], "what is there")
    fails(device, tmp_path, *words)


@pytest.mark.parametrize(("zarr_format", "document"), [(2, "a/.zarray"), (2, "a/.zattrs"), (3, "a/zarr.json"), (2, ".zgroup")])
def test_metadata_that_are_not_fetched(tmp_path, zarr_format, document):
    store(tmp_path, "zstd", zarr_format)
    words = unfetched(tmp_path / document)
    with pytest.raises(ValueError, match="zarr_reader") as caught:
        build(path=tmp_path, arrays=["a"])
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", ["a.zip", "a.zarr"])
@pytest.mark.parametrize("inner", ["", "group"])
def test_store_that_is_not_fetched(tmp_path, name, inner):
    path = tmp_path / name
    path.touch()
    words = unfetched(path)
    with pytest.raises(ValueError, match="zarr_reader") as caught:
        build(path=path / inner, arrays=["a"])
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("decode_device", ["auto", "gpu"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_truncated_zstd_never_reaches_the_gpu(tmp_path, gpu, decode_device, keep):
    """After the error the same process still decodes on the GPU."""
    store(tmp_path / "bad", "zstd")
    file = chunk_files(tmp_path / "bad", "a")[0]
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    fails(gpu, tmp_path / "bad", decode_device=decode_device)
    store(tmp_path / "good", "zstd")
    check(gpu, 2, path=tmp_path / "good", arrays=["a"], decode_device=decode_device)


@pytest.mark.parametrize(
    ("zarr_format", "codec"),
    [(3, "zstd-checksum"), (3, "gzip"), (3, "crc32c"), (3, "zstd+crc32c"), (3, "numcodecs-zlib"), (2, "zlib"), (2, "gzip")],
)
def test_checksums_are_verified(tmp_path, device, zarr_format, codec):
    """Where the format carries a checksum, a changed byte is found."""
    store(tmp_path, codec, zarr_format)
    file = chunk_files(tmp_path, "a")[0]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    fails(device, tmp_path)


@pytest.mark.parametrize(("zarr_format", "codec"), ALL)
def test_noise_instead_of_a_chunk(tmp_path, device, zarr_format, codec):
    """A file of noise: an error, or (only without compression, where any bytes of the right length are values) not."""
    store(tmp_path, codec, zarr_format)
    file = chunk_files(tmp_path, "a")[0]
    file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))
    if codec == "none":
        run_all(device, tmp_path)
    else:
        fails(device, tmp_path)


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip", "blosc-lz4-shuffle"])
def test_chunk_of_another_size(tmp_path, device, codec):
    """A chunk that decodes to more than its shape, as when metadata and data come from different writes."""
    store(tmp_path, codec)
    write_array(
        tmp_path / "big", "a", np.ones((6, 16, 64), "float32"), codec=codec, layout=Layout((2, 16, 64)), dims=DIMS,
    )
    shutil.copy(chunk_files(tmp_path / "big", "a")[0], chunk_files(tmp_path, "a")[0])
    fails(device, tmp_path)


def test_directory_instead_of_a_chunk(tmp_path, device):
    store(tmp_path, "zstd")
    file = chunk_files(tmp_path, "a")[0]
    file.unlink()
    file.mkdir()
    fails(device, tmp_path)


def test_only_the_batches_that_need_it_fail(tmp_path, device):
    """What comes before the broken chunk is delivered, to the bit."""
    values = store(tmp_path, "zstd")
    file = chunk_files(tmp_path, "a")[-1]
    file.write_bytes(b"")
    stream = batches(build(device, 2, path=tmp_path, arrays=["a"], prefetch_queue_depth=1, dali_queue=1))
    same(next(stream)[0], values[0:2], "the first batch")
    same(next(stream)[0], values[2:4], "the second batch")
    with pytest.raises(RuntimeError, match="zarr_reader"):
        next(stream)


SHARD = {
    "end": Layout((1, 16, 16), shards=(2, 16, 32)),
    "start": Layout((1, 16, 16), shards=(2, 16, 32), index_location="start"),
}


@pytest.mark.parametrize("location", SHARD)
@pytest.mark.parametrize("keep", [0, 3, 67])
def test_missing_shard_index(tmp_path, device, location, keep):
    """A shard shorter than its index (4 inner chunks of 16 bytes and a checksum: 68 bytes)."""
    store(tmp_path, "zstd", layout=SHARD[location])
    file = chunk_files(tmp_path, "a")[1]
    file.write_bytes(file.read_bytes()[:keep])
    fails(device, tmp_path, "1/0/0")


@pytest.mark.parametrize("location", SHARD)
def test_corrupt_shard_index(tmp_path, device, location):
    """One bit of the index turned over: its checksum finds it."""
    store(tmp_path, "zstd", layout=SHARD[location])
    file = chunk_files(tmp_path, "a")[0]
    content = bytearray(file.read_bytes())
    content[-60 if location == "end" else 8] ^= 1
    file.write_bytes(content)
    fails(device, tmp_path, "index")


@pytest.mark.parametrize("location", SHARD)
@pytest.mark.parametrize(
    "entry", [(2**63, 100), (0, 2**63), (2**64 - 2, 2**64 - 2), (10**9, 10), (0, 10**9), (2**64 - 1, 5)], ids=str
)
def test_lying_shard_index(tmp_path, device, location, entry):
    """An index with a right checksum whose ranges lie outside the shard."""
    import google_crc32c

    store(tmp_path, "zstd", layout=SHARD[location])
    file = chunk_files(tmp_path, "a")[0]
    content = file.read_bytes()
    index = bytearray(content[-68:-4] if location == "end" else content[:64])
    index[:16] = struct.pack("<QQ", *entry)
    index += struct.pack("<I", google_crc32c.value(bytes(index)))
    file.write_bytes(content[:-68] + index if location == "end" else index + content[68:])
    fails(device, tmp_path)


@pytest.mark.parametrize("location", SHARD)
def test_truncated_shard(tmp_path, device, location):
    """Half of a shard: with the index at its end that is gone, with the index at its start some inner chunks are."""
    store(tmp_path, "zstd", layout=SHARD[location])
    file = chunk_files(tmp_path, "a")[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    fails(device, tmp_path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_store_deleted_while_it_is_read(tmp_path, device, zarr_format):
    """Chunks that vanish with their store aren't missing chunks: no fill values, an error.

    The store goes in one step: while a directory is emptied file by file, a chunk may be gone before the metadata are.
    """
    values = np.ones((400, 4, 4), "float32")
    path = tmp_path / "doomed.zarr"
    write_array(path, "a", values, zarr_format=zarr_format, layout=Layout((1, 4, 4)), dims=DIMS)
    pipe = build(device, 1, path=path, arrays=["a"], prefetch_queue_depth=2)
    same(next(batches(pipe))[0], values[:1], "before")
    path.rename(tmp_path / "gone")
    with pytest.raises(RuntimeError, match="(?s)zarr_reader.*doomed.zarr"):
        for _, found in zip(range(800), batches(pipe)):
            same(found[0], values[:1], "after")


@pytest.mark.parametrize("how", ["renamed", "in place"])
def test_a_local_shard_that_is_replaced_is_an_error_and_never_mixed(tmp_path, device, how):
    """Chunks don't lie where an index that was read before says, nor do batches mix old and new values."""
    values = np.arange(24 * 8 * 16, dtype="int32").reshape(24, 8, 16)
    layout = {"codec": "none", "dims": DIMS, "layout": Layout((1, 8, 16), shards=(24, 8, 16))}
    write_array(tmp_path, "a", values, **layout)
    write_array(tmp_path / "new", "a", values + 1, **layout)
    (old,), (new,) = chunk_files(tmp_path, "a"), chunk_files(tmp_path / "new", "a")
    assert old.stat().st_size == new.stat().st_size
    pipe = build(device, 1, path=str(tmp_path), arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
    for i in range(24):
        same(pipe.run()[0].as_cpu().as_array()[0], values[i], f"sample {i}")
    # Within a file system's tick dates don't tell.
    os.utime(new, ns=(0, old.stat().st_mtime_ns + 1_000_000_000))
    if how == "renamed":
        new.replace(old)
    else:
        old.write_bytes(new.read_bytes())
        os.utime(old, ns=(0, new.stat().st_mtime_ns))
    # A reader that comes while the file is written finds it too short.
    with pytest.raises(RuntimeError, match="replaced since its index was read|truncated or being rewritten"):
        for _ in range(48):
            pipe.run()
