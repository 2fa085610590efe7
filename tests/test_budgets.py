"""Memory, threads and descriptors stop growing after the first batches, and stay within what was asked for."""

from __future__ import annotations

import gc
import itertools
import re

import numpy as np
import psutil
import pytest
from support.cuda import memory_used
from support.pipelines import build, check
from support.stores import Layout, write_array

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """64 steps of 1 MiB, in zstd chunks that don't fall together with samples: 64 MiB decoded."""
    path = tmp_path_factory.mktemp("budgets") / "a.zarr"
    values = np.random.default_rng(0).integers(0, 4096, (64, 512, 512)).astype("float32")
    write_array(path, "a", values, codec="zstd", layout=Layout((3, 200, 512)), dims=("time", "lat", "lon"))
    write_array(path, "raw", values, codec="none", layout=Layout((1, 512, 512)), dims=("time", "lat", "lon"))
    write_array(
        path, "sharded", values, codec="zstd", layout=Layout((1, 64, 512), shards=(8, 512, 512)), dims=("time", "lat", "lon"),
    )
    return path


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 1}], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("array", ["a", "raw", "sharded"])
def test_nothing_grows(store, device, array, order):
    """After two epochs, fifteen more change neither resident memory nor the number of threads and descriptors."""
    me = psutil.Process()
    pipe = build(device, 4, path=store, arrays=[array], dims=["time"], window=[2], step=[1], **order)

    def peak(epochs: int) -> int:
        """The most that was resident after a batch. How many batches are there at a moment differs by 30 MiB, but not the most."""
        most = 0
        for _ in range(16 * epochs):
            pipe.run()
            most = max(most, me.memory_info().rss)
        gc.collect()
        return most

    peak(2)
    peaks, threads, files = [peak(3)], me.num_threads(), me.num_fds()
    on_device = memory_used() if device == "gpu" else 0
    peaks += [peak(3) for _ in range(4)]
    # On a busy machine one peak is 15 MiB above another now and then; a leak shows each time.
    growth = [later - earlier for earlier, later in itertools.pairwise(peaks)]
    assert min(growth) < 2 * MIB and sum(growth) < 48 * MIB, f"resident memory grew: {growth}"
    assert me.num_threads() <= threads, "threads were added"
    assert me.num_fds() <= files, "descriptors were left open"
    if device == "gpu":
        assert memory_used() - on_device < 12 * MIB, "device memory grew"


@pytest.mark.parametrize("limit", [32, 64, 160])
def test_host_memory_limit(store, device, limit):
    """The reader's memory stays below its limit, plus the batches that DALI holds."""
    me = psutil.Process()
    build(device, 1, path=store, arrays=["raw"]).run()  # one-time costs of the libraries
    gc.collect()
    before = me.memory_info().rss
    pipe = build(device, 2, path=store, arrays=["a"], host_memory_limit=limit * MIB)
    for _ in range(40):
        pipe.run()
    # Two batches of 2 MiB in DALI's queue and one in use; stacks and allocator slack.
    assert me.memory_info().rss - before < (limit + 24) * MIB


@pytest.mark.parametrize("limit", [96, 256])
def test_device_memory_limit(store, gpu, limit):
    """So does its device memory, nvCOMP's workspace included."""
    build(gpu, 1, path=store, arrays=["a"], device_memory_limit=64 * MIB).run()
    gc.collect()
    before = memory_used()
    pipe = build(gpu, 2, path=store, arrays=["a"], device_memory_limit=limit * MIB)
    for _ in range(40):
        pipe.run()
    assert memory_used() - before < (limit + 32) * MIB


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_small_queues_deliver_everything(store, device, depth):
    """The smallest depth and few threads are slow but complete."""
    pipe = build(
        device, 4, path=store, arrays=["sharded"], prefetch_queue_depth=depth, io_threads=1, decode_threads=1,
    )
    for _ in range(20):
        pipe.run()


@pytest.mark.parametrize("name", ["io_threads", "decode_threads"])
def test_thread_counts_are_kept(store, device, name):
    """Ten more threads asked for are ten more threads."""
    me = psutil.Process()

    def threads(count: int) -> int:
        pipe = build(device, 2, path=store, arrays=["a"], **{"io_threads": 1, "decode_threads": 1} | {name: count})
        pipe.run()
        return me.num_threads()

    few = threads(1)
    gc.collect()
    assert threads(11) - few == 10


@pytest.mark.parametrize("io_threads", [1, 4])
def test_the_smallest_limit_is_enough_for_chunks_of_all_sizes(tmp_path, io_threads):
    """What the error names as the least does, also where ranges of many sizes come and go in one block."""
    rng = np.random.default_rng(7)
    values = rng.integers(0, 250, (30, 22, 55)).astype("uint8").cumsum(0, dtype="uint8")
    layout = Layout((6, 6, 20), shards=(18, 18, 100))
    write_array(tmp_path, "a", values, codec="blosc-zstd-shuffle", layout=layout, dims=("t", "y", "x"))
    args = {
        "path": tmp_path, "arrays": ["a"], "dims": ["t", "y"], "window": [1, 9], "step": [2, 5],
        "io_threads": io_threads,
    }
    with pytest.raises(ValueError, match="at least") as caught:
        build("cpu", 4, host_memory_limit=1, **args)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    check("cpu", 4, epochs=3, host_memory_limit=least, **args)


def test_the_smallest_host_limit(store, gpu):
    """It is that of one chunk, however much device memory there is; and it does."""
    smallest = []
    for device_limit in (96 * MIB, 1024 * MIB):
        args = {"path": store, "arrays": ["a"], "device_memory_limit": device_limit}
        with pytest.raises(ValueError, match="host_memory_limit: expected at least") as e:
            build(gpu, 2, host_memory_limit=1, **args)
        smallest.append(int(re.search(r"at least (\d+) bytes", str(e.value))[1]))
        check(gpu, 2, host_memory_limit=smallest[-1], **args)
    assert smallest[0] == smallest[1]
