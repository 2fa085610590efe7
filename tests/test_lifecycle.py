"""The operator's life: executors, several pipelines, memory that outlives them, pipelines dropped at a bad moment, interrupts."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import psutil
import pytest
from support.pipelines import batches, build, check, run_script, same, to_numpy
from support.processes import start
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """200 steps of 32 KiB whose values are their number."""
    path = tmp_path_factory.mktemp("life") / "a.zarr"
    values = np.broadcast_to(np.arange(200, dtype="float32")[:, None, None], (200, 64, 128)).copy()
    write_array(path, "a", values, layout=Layout((4, 64, 128)), dims=("time", "lat", "lon"))
    return path


def first_values(pipe, count):
    stream = batches(pipe)
    return [float(v) for _ in range(count) for v in next(stream)[0][:, 0, 0]]


EXECUTORS = [{"exec_dynamic": True}, {"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_executor_delivers_the_same(store, device, executor):
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=4, num_threads=2, device_id=0 if device == "gpu" else None, **executor)
    with pipe:
        pipe.set_outputs(fn.zarr_reader(device=device, path=str(store), arrays=["a"], roi_end=[24], host_memory_limit=64 << 20))
    pipe.build()
    for batch in range(18):
        (out,) = pipe.run()
        first = batch % 6 * 4
        assert to_numpy(out)[:, 0, 0].tolist() == [first, first + 1, first + 2, first + 3], f"batch {batch}"
        assert out.layout() == "HW"


def test_reader_meta(store):
    pipe = build("cpu", 4, path=store, arrays=["a"], num_shards=3, shard_id=2, pad_last_batch=True, stick_to_shard=True)
    assert pipe.reader_meta("reader") == {
        "epoch_size": 200,
        "epoch_size_padded": 201,
        "number_of_shards": 3,
        "shard_id": 2,
        "pad_last_batch": 1,
        "stick_to_shard": 1,
    }


def test_two_pipelines_at_once(store, device):
    """Interleaved, each keeps its own order."""
    one = batches(build(device, 3, path=store, arrays=["a"]))
    two = batches(build(device, 5, path=store, arrays=["a"], random_shuffle=True, seed=4))
    alone = first_values(build(device, 5, path=store, arrays=["a"], random_shuffle=True, seed=4), 20)
    got = []
    for i in range(20):
        assert next(one)[0][:, 0, 0].tolist() == [i * 3, i * 3 + 1, i * 3 + 2]
        got += [float(v) for v in next(two)[0][:, 0, 0]]
    assert got == alone


def test_pipelines_in_threads(store, device):
    """Four threads, each with a pipeline of its own, at the same time."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(3):
                check(device, 4, path=store, arrays=["a"], roi_start=[seed * 10], roi_end=[seed * 10 + 24])
        except BaseException as e:  # noqa: BLE001  (handed to the main thread)
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def test_two_readers_in_one_pipeline(store, device):
    import dali_zarr  # noqa: F401
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=4, num_threads=2, device_id=0 if device == "gpu" else None)
    with pipe:
        common = {"device": device, "path": str(store), "arrays": ["a"], "host_memory_limit": 64 << 20}
        pipe.set_outputs(fn.zarr_reader(**common), fn.zarr_reader(offsets=[10], **common))
    pipe.build()
    for i in range(5):
        a, b = (to_numpy(o)[:, 0, 0] for o in pipe.run())
        same(a + 10, b, f"batch {i}")


def leaves_nothing(once: Callable[[], None]) -> None:
    """Asserts that what is done ever again leaves neither threads nor descriptors behind."""
    me = psutil.Process()
    # What libraries hold is not gone through at each collection.
    gc.collect()
    gc.freeze()
    try:
        for _ in range(3):
            once()
            gc.collect()
        threads, files = me.num_threads(), me.num_fds()
        for _ in range(15):
            once()
            gc.collect()
    finally:
        gc.unfreeze()
    # DALI's own threads, and those of a reader that is gone, end when they get a processor.
    for _ in range(600):
        if me.num_threads() <= threads + 1 and me.num_fds() <= files + 1:
            break
        time.sleep(0.05)
    assert me.num_threads() <= threads + 1
    assert me.num_fds() <= files + 1


@pytest.mark.parametrize("runs", [0, 1, 7])
def test_dropped_in_mid_epoch(store, device, runs):
    def once() -> None:
        pipe = build(device, 2, path=store, arrays=["a"])
        for _ in range(runs):
            pipe.run()

    leaves_nothing(once)


@pytest.mark.parametrize("wrong", [{"path": "/nowhere"}, {"dims": ["nowhere"]}])
def test_build_after_an_error(store, device, wrong):
    """A refused pipeline leaves nothing behind, and the process fit for the next."""

    def once() -> None:
        with pytest.raises(ValueError, match="nowhere"):
            build(device, 2, **{"path": store, "arrays": ["a"], **wrong})

    leaves_nothing(once)
    check(device, 4, path=store, arrays=["a"], roi_end=[20])


def test_an_error_in_mid_epoch_names_the_place(tmp_path, device):
    path = tmp_path / "store.zarr"
    write_array(path, "a", np.zeros((24, 4, 5), "int32"), layout=Layout((1, 4, 5)))
    pipe = build(device, 1, path=path, arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
    pipe.run()
    path.rename(path.with_name("gone"))
    with pytest.raises(RuntimeError, match=f"zarr_reader: store .*{path.name}"):
        for _ in range(24):
            pipe.run()


def test_batches_that_are_kept_are_not_written_again(store):
    pipe = build("cpu", 4, path=store, arrays=["a"], prefetch_queue_depth=2)
    kept = [pipe.run()[0] for _ in range(3)]
    views = [np.asarray(out.as_tensor()) for out in kept]
    first_values(pipe, 12)
    for number, view in enumerate(views):
        assert view[:, 5, 7].tolist() == [4 * number + i for i in range(4)]


def test_outputs_outlive_the_pipeline(store):
    """On the CPU the outputs are the engine's own memory: they stay valid when the pipeline is gone and memory is reused."""
    pipe = build("cpu", 4, path=store, arrays=["a"])
    pipe.run()
    (out,) = pipe.run()
    kept = np.asarray(out.as_tensor())
    before = kept.copy()
    del pipe, out
    gc.collect()
    first_values(build("cpu", 4, path=store, arrays=["a"], roi_start=[100]), 10)
    same(kept, before, "the kept batch")


_LOOP = """
import signal
import sys
# Whoever started this may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from support.pipelines import build
pipe = build(sys.argv[1], 2, path=sys.argv[2], arrays=["a"])
pipe.run()
print("running", flush=True)
while True:
    pipe.run()
"""


@pytest.mark.parametrize("times", range(3))
def test_ctrl_c(store, device, times):
    """SIGINT ends a training loop with a KeyboardInterrupt, whatever the reader does when it comes."""
    process = start(_LOOP, device, str(store))
    try:
        assert process.line() == "running\n", process.communicate(90)
        time.sleep(0.1 + 0.3 * times)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in err
    assert process.returncode in (1, -signal.SIGINT), f"exit status {process.returncode}\n{err}"


def test_exit_with_a_running_pipeline(store, device):
    """A script that simply ends, its pipeline a global, exits with status 0."""
    run_script(_LOOP.replace("while True:", "for _ in range(3):"), device, str(store), timeout=60)


def test_sys_exit_from_a_thread_of_work(store, device):
    """So does one that leaves by an exception in mid-epoch: with the exception's status, not a signal's."""
    process = start(_LOOP.replace("while True:\n    pipe.run()", "raise SystemExit(3)"), device, str(store))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err


_FORK = """
import os, sys
import dali_zarr
from support.pipelines import batches, build
def work():
    stream = batches(build(sys.argv[1], 2, path=sys.argv[2], arrays=["a"]))
    for i in range(10):
        assert next(stream)[0][:, 0, 0].tolist() == [2 * i, 2 * i + 1]
if sys.argv[3] == "after-use":
    work()
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as e:  # noqa: BLE001  (handed to the main thread)
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
    children.append(pid)
assert all(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) == 0 for c in children)
work()
"""


def test_forked_before_the_build(store, device):
    """The plugin is loaded, then the process forks: children and parent each read on their own."""
    run_script(_FORK, device, str(store), "before-use", timeout=100)


def test_forked_after_a_cpu_pipeline(store):
    """A parent that has already read on the CPU may fork; no lock or thread of the engine is missed in the child."""
    run_script(_FORK, "cpu", str(store), "after-use", timeout=100)


def test_spawned_workers(store, device):
    """Two processes read the same store at the same time, one shard each."""
    script = (
        "import sys\nfrom support.pipelines import batches, build\n"
        "s = int(sys.argv[3])\n"
        "stream = batches(build(sys.argv[1], 4, path=sys.argv[2], arrays=['a'], num_shards=2, shard_id=s, stick_to_shard=True))\n"
        "got = [float(v) for _ in range(25) for v in next(stream)[0][:, 0, 0]]\n"
        "assert got == [100.0 * s + i for i in range(100)], got\n"
    )
    workers = [start(script, device, str(store), str(s)) for s in range(2)]
    for worker in workers:
        _, err = worker.communicate(timeout=90)
        assert worker.returncode == 0, err
