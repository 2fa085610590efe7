"""Memory, threads and descriptors stop growing after the first batches, and stay within what was asked for."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import re
from pathlib import Path

import dali_zarr
import numpy as np
import psutil
import pytest
from support.cuda import memory_used
from support.pipelines import build, check, run_script, settled
from support.stores import Layout, metadata, write_array

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """64 steps of 1 MiB."""
    return _written(tmp_path_factory.mktemp("budgets") / "a.zarr", 512)


@pytest.fixture(scope="module")
def small_store(tmp_path_factory):
    """64 steps of 256 KiB."""
    return _written(tmp_path_factory.mktemp("budgets") / "a.zarr", 256)


def _written(path: Path, side: int) -> Path:
    """Noise, which zstd gives up on soon, in chunks that don't fall together with samples, in single fields and in shards."""
    values = np.random.default_rng(0).standard_normal((64, side, side), "float32")
    dims = ("time", "lat", "lon")
    write_array(path, "a", values, codec="zstd", layout=Layout((3, side * 2 // 5, side)), dims=dims)
    write_array(path, "raw", values, codec="none", layout=Layout((1, side, side)), dims=dims)
    write_array(path, "sharded", values, codec="zstd", layout=Layout((1, side // 8, side), shards=(8, side, side)), dims=dims)
    return path


@pytest.mark.quiet_gpu
@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 1}], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("array", ["a", "raw", "sharded"])
def test_nothing_grows(small_store, device, array, order):
    """After two epochs, fourteen more change neither resident memory nor the number of threads and descriptors."""
    me = psutil.Process()
    limit = 32 * MIB
    args = {"dims": ["time"], "window": [2], "step": [1], "host_memory_limit": limit}
    pipe = build(device, 4, path=small_store, arrays=[array], **args, **order)

    def peak(epochs: int) -> int:
        """The most that was resident after a batch. How many batches are there at a moment differs, but not the most."""
        most = 0
        for _ in range(16 * epochs):
            pipe.run()
            most = max(most, me.memory_info().rss)
        gc.collect()
        return most

    def growth(of: list[int]) -> list[int]:
        return [later - earlier for earlier, later in itertools.pairwise(of)]

    def held() -> tuple[int, int]:
        """Threads and descriptors, once no chunk is being read: its file is open meanwhile."""
        settled(pipe)
        return me.num_threads(), me.num_fds()

    peak(2)
    # What earlier tests have freed is given back: a leak would take it first.
    ctypes.CDLL(None).malloc_trim(0)
    peaks = [peak(2)]
    threads, files = held()
    on_device = [memory_used() if device == "gpu" else 0]
    for _ in range(6):
        peaks.append(peak(2))
        on_device.append(memory_used() if device == "gpu" else 0)
    # On a busy machine more batches than before may lie in memory, up to the reader's limit; a leak shows each time. By chance one
    # of 5,000 rows of seven peaks rises each time.
    assert min(growth(peaks)) < MIB // 3 and peaks[-1] - peaks[0] < limit, f"resident memory grew: {growth(peaks)}"
    later = held()
    assert later[0] <= threads, "threads were added"
    assert later[1] <= files, "descriptors were left open"
    # What other processes have on the device counts too, and comes and goes.
    assert min(growth(on_device)) < 3 * MIB, f"device memory grew: {growth(on_device)}"


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


@pytest.mark.quiet_gpu
@pytest.mark.parametrize("limit", [96, 256])
def test_device_memory_limit(store, gpu, limit):
    """So does its device memory, the decoders' workspace included."""
    build(gpu, 1, path=store, arrays=["a"], device_memory_limit=64 * MIB).run()
    taken = []
    # Other processes may take some of it meanwhile, but not each time.
    while len(taken) < 5 and min(taken, default=limit * MIB * 2) >= (limit + 32) * MIB:
        gc.collect()
        before = memory_used()
        pipe = build(gpu, 2, path=store, arrays=["a"], device_memory_limit=limit * MIB)
        for _ in range(40):
            pipe.run()
        taken.append(memory_used() - before)
        del pipe
    assert taken[-1] < (limit + 32) * MIB, taken


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


@pytest.fixture
def huge(tmp_path):
    """Samples of 20 TiB, and a vector that is as long, in chunks of 1 GiB: more than any machine has."""
    _claim(tmp_path, "a", (2, 20 << 40), (1, 1 << 30))
    _claim(tmp_path, "line", (20 << 40,), (1 << 30,))
    return tmp_path


def _claim(path, name, shape, chunks):
    """Metadata of an array of bytes, without any chunk."""
    ones = (1,) * len(shape)
    write_array(path, name, np.zeros(ones, "uint8"), codec="none", layout=Layout(ones))
    file, document = metadata(path, name)
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    file.write_text(json.dumps(document | {"shape": shape, "chunk_grid": grid}))


@pytest.mark.parametrize("limit", [{}, {"host_memory_limit": 1 << 50}, {"host_memory_limit": 1 << 20}], ids=str)
def test_what_the_machine_lacks_is_a_memory_error(huge, device, limit):
    """When the pipeline is built, with the numbers in the first line; nothing is reserved before."""
    before = psutil.Process().memory_info().rss
    args = {"path": huge, "arrays": ["a"]} | limit
    with pytest.raises(MemoryError) as caught:
        build(device, 3, **({"host_memory_limit": None} | args))
    first, _, rest = str(caught.value).partition("\n")
    # Batches that go to a GPU are there from the beginning.
    first = first.removeprefix("zarr_reader: ")
    assert first.startswith(f"{'host' if device == 'cpu' else 'device'} memory: expected at least "), first
    assert all(word in first for word in ("GiB", "3 samples", f"{3 * (20 << 40)} bytes", str(1 << 30), "batch_size")), first
    assert "zarr_reader" in rest and first not in rest
    assert psutil.Process().memory_info().rss - before < 300 * MIB
    e = dali_zarr.explain(batch_size=3, device=device, **args)
    assert e["memory"]["machine_memory"] <= psutil.virtual_memory().total
    if device == "cpu":
        assert e["memory"]["refused"] == first and any(first in text for text in e["advice"])


def test_what_the_machine_lacks_in_the_dynamic_mode(huge):
    run_script(
        "import sys, dali_zarr, nvidia.dali.experimental.dynamic as ndd\n"
        "try:\n"
        "    next(iter(ndd.readers.Zarr(path=sys.argv[1], arrays='a', device='cpu').next_epoch(batch_size=1)))\n"
        "except MemoryError as error:\n"
        "    assert 'host memory: expected at least ' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('no error')\n",
        str(huge), imports="torch",
    )


def test_what_a_gpu_lacks_is_a_memory_error(tmp_path, gpu):
    """With a limit as without one."""
    _claim(tmp_path, "a", (2, 2 << 40), (1, 1 << 28))
    for limit in ({"device_memory_limit": None}, {"device_memory_limit": 1 << 50}, {}):
        with pytest.raises(MemoryError, match="^(zarr_reader: )?device memory: expected at least .*of the GPU"):
            build(gpu, 1, path=tmp_path, arrays=["a"], **limit)


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


SHARING = """
import sys, psutil, dali_zarr
from dali_zarr.torch import Loader
path, share, many = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "many"
args = {"arrays": ["a"], "device": "cpu", "batch_size": 2, "random_shuffle": True, "io_threads": 1, "decode_threads": 1}
rows = lambda batches: sum(len(batch["a"]) for batch in batches)
memory = lambda: dali_zarr.explain(path=path, arrays=["a"])["memory"]
def keeps_to_the_share():
    # What a reader can't do without may be beyond the share while others prepare batches with all of it.
    told = memory()
    assert told["host_memory_taken"] <= share + len(loaders) * told["smallest_host_memory_limit"], told
assert rows(Loader(path, **args)) == 64
before, most, loaders = psutil.Process().memory_info().rss, 0, []
assert memory()["host_memory_taken"] == 0, memory()
assert abs(memory()["host_memory_share"] - share) < 2 << 20, memory()
for seed in range(4 if many else 2):
    loaders.append(Loader(path, seed=seed, **args))
    assert rows(loaders[-1]) == 64
    most = max(most, psutil.Process().memory_info().rss - before)
    keeps_to_the_share()
# Two that are read at the same time.
for one, other in zip(*loaders[:2]):
    assert len(one["a"]) == len(other["a"]) == 2
    most = max(most, psutil.Process().memory_info().rss - before)
    keeps_to_the_share()
own = Loader(path, host_memory_limit=share, **args)
assert memory()["host_memory_taken"] >= share
assert rows(own) == 64 and rows(loaders[0]) == 64
del loaders, own, one, other
import gc; gc.collect()
assert memory()["host_memory_taken"] == 0, memory()
print(most)
"""


@pytest.mark.parametrize("many", ["two", "many"])
def test_loaders_share_half_of_the_memory(store, many):
    """Loaders that are alive, each of which would keep all 64 MiB of decoded chunks and as much in batches."""
    half = psutil.virtual_memory().total // 2
    processes = half // (72 * MIB)
    share = half // processes
    # A few batches may be in the consumer's hands.
    most = int(run_script(SHARING, str(store), str(share), many, env={"LOCAL_WORLD_SIZE": str(processes)}, imports="torch"))
    assert most < share + 48 * MIB, most / MIB
