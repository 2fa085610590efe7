"""How chunks of local stores are read: past the page cache, and by GPUDirect Storage. The values are the same."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest
from support.oracle import Oracle
from support.pipelines import build, same, to_numpy
from support.stores import Layout, chunk_files, write_array

DIMS = ("time", "lat", "lon")
# Fields of 363 KB: small chunks take no part in reads past the host.
SHAPE = (12, 301, 302)
STORES = {
    "none": {"codec": "none", "layout": Layout((1, 301, 302))},
    "none-many": {"codec": "none", "layout": Layout((12, 301, 302))},
    "none-shards": {"codec": "none", "layout": Layout((1, 301, 302), shards=(4, 301, 302))},
    "zstd": {"codec": "zstd", "layout": Layout((2, 301, 302))},
    "zstd-shards": {"codec": "zstd", "layout": Layout((1, 151, 302), shards=(4, 302, 302))},
    "blosc": {"codec": "blosc-lz4-shuffle", "layout": Layout((3, 301, 302)), "zarr_format": 2},
    "bz2": {"codec": "bz2", "layout": Layout((1, 301, 302)), "zarr_format": 2},
    "tiny": {"codec": "zstd", "layout": Layout((1, 31, 51))},
}


@pytest.fixture
def tmp_path(disk_path):
    """Files in memory are always in the page cache, and GPUDirect Storage refuses them."""
    return disk_path


@pytest.fixture
def values():
    return np.round(np.random.default_rng(0).standard_normal(SHAPE) * 64).astype("float32")


def batches(path, batch_size=4) -> list[np.ndarray]:
    """What an epoch and a half deliver."""
    found = Oracle(batch_size, path=path, arrays=["a"]).batches()
    return [next(found)[0] for _ in range(SHAPE[0] * 3 // 2 // batch_size)]


def compare(device, path, expected, **args):
    """The pipeline, after batches whose values were right."""
    pipe = build(device, len(expected[0]), path=path, arrays=["a"], **args)
    for number, want in enumerate(expected):
        same(to_numpy(pipe.run()[0]), want, f"batch {number}")
    return pipe


def resident(path) -> int:
    """Pages of a file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        pages = (ctypes.c_ubyte * (-(-len(mapped) // mmap.PAGESIZE)))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), pages) == 0
        return sum(p & 1 for p in pages)


def forget(path) -> None:
    """Drops a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("kind", STORES)
def test_past_the_page_cache(tmp_path, device, values, kind):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    files, expected = chunk_files(tmp_path, "a"), batches(tmp_path)
    for file in files:
        forget(file)
    if sum(map(resident, files)):
        pytest.skip("this file system keeps everything in memory")
    compare(device, tmp_path, expected, use_o_direct=True)
    assert sum(map(resident, files)) == 0
    compare(device, tmp_path, expected)
    assert sum(map(resident, files)) > 0


def test_arguments_that_are_refused(tmp_path, values):
    write_array(tmp_path, "a", values, dims=DIMS, codec="zstd", layout=Layout((1, 301, 302)))
    with pytest.raises(ValueError, match='io: expected "posix" or "gds", but found "uring"'):
        build("cpu", 1, path=tmp_path, io="uring")
    with pytest.raises(ValueError, match='io="gds" needs device="gpu"'):
        build("cpu", 1, path=tmp_path, io="gds")
    with pytest.raises(ValueError, match="use_o_direct: expected a local path"):
        build("cpu", 1, path="http://127.0.0.1:1/x", arrays=["a"], use_o_direct=True)


def skip_without_cufile(error: ValueError) -> None:
    if "cuFile" in str(error):
        pytest.skip(f"no GPUDirect Storage here, nor its compatibility mode: {error}")


@pytest.mark.parametrize("kind", STORES)
def test_gpudirect_storage(tmp_path, gpu, values, kind):
    """Also where cuFile has only its compatibility mode."""
    import dali_zarr

    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    if kind == "bz2":
        with pytest.raises(ValueError, match='io="gds": expected chunks in local files that are uncompressed or decoded by'):
            build(gpu, 1, path=tmp_path, io="gds")
        return
    expected = batches(tmp_path)
    try:
        pipe = compare(gpu, tmp_path, expected, io="gds")
    except ValueError as e:
        skip_without_cufile(e)
        raise
    counters = next(iter(dali_zarr.counters(pipe).values()))
    reads = counters["reads"]
    assert counters["reads_gds"] == (0 if kind == "tiny" else reads), counters
    assert next(iter(dali_zarr.counters(compare(gpu, tmp_path, expected, io="posix")).values()))["reads_gds"] == 0


def test_gpudirect_storage_with_little_memory_and_missing_chunks(tmp_path, gpu, values):
    write_array(tmp_path, "a", values, dims=DIMS, missing=((3, 0, 0), (7, 0, 0)), **STORES["none"])
    write_array(tmp_path, "b", values, dims=DIMS, **STORES["zstd-shards"])
    try:
        build(gpu, 2, path=tmp_path, arrays=["a", "b"], io="gds", device_memory_limit=1)
    except ValueError as e:
        skip_without_cufile(e)
        least = int(str(e).split("at least ")[1].split()[0])
    expected = Oracle(2, path=tmp_path, arrays=["a", "b"]).batches()
    pipe = build(gpu, 2, path=tmp_path, arrays=["a", "b"], io="gds", device_memory_limit=least)
    for number in range(9):
        for got, want in zip(pipe.run(), next(expected), strict=True):
            same(to_numpy(got), want, f"batch {number}")


@pytest.mark.parametrize("kind", ["none", "zstd"])
def test_damaged_files_by_gpudirect_storage(tmp_path, gpu, values, kind):
    write_array(tmp_path, "a", values, dims=DIMS, **STORES[kind])
    file = sorted(chunk_files(tmp_path, "a"))[0]
    os.truncate(file, file.stat().st_size - 5)
    try:
        pipe = build(gpu, 12, path=tmp_path, arrays=["a"], io="gds")
    except ValueError as e:
        skip_without_cufile(e)
        raise
    with pytest.raises(RuntimeError, match="truncated|chunk a/c/0"):
        pipe.run()
