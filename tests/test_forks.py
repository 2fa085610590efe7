"""Forked processes: a child has no copy of the threads of its parent's readers. There each use is an error that says so, nothing
hangs, and what the child inherited can be dropped. The parent goes on as if nothing had happened."""

from __future__ import annotations

import numpy as np
import pytest
from support.pipelines import run_script
from support.stores import Layout, write_array

STEPS = 40

SCRIPT = """
import ctypes, gc, os, sys, time
import numpy as np
import dali_zarr
path = sys.argv[1]

def forked(work):
    # The child ends as scripts do: by the end of the interpreter, which destroys what is left. JAX alone would crash then.
    child = os.fork()
    if not child:
        work()
        (os._exit if "jax" in sys.modules else sys.exit)(7)
    until = time.monotonic() + 20
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, 9)
            raise SystemExit("a child hangs")
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(ended[1]) == 7, os.waitstatus_to_exitcode(ended[1])

def refused(**calls):
    def work():
        # Twice: an error must not end an iteration.
        for name, call in [*calls.items()] * 2:
            try:
                found = call()
            except RuntimeError as error:
                assert "made in another process" in str(error) or "before this process" in str(error), (name, error)
            else:
                raise AssertionError((name, found))
    forked(work)

def dropped(*names):
    def work():
        for name in names:
            del globals()[name]
        gc.collect()
    forked(work)

def pipeline(**how):
    from nvidia.dali.pipeline import Pipeline
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=None, enable_checkpointing=True, **how)
    with pipe:
        pipe.set_outputs(dali_zarr.zarr_reader(path=path, arrays="n", host_memory_limit=64 << 20, name="reader"))
    pipe.build()
    return pipe
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("forks")
    write_array(base, "n", np.arange(STEPS, dtype=np.int32), layout=Layout((4,)), dims=("time",))
    return base


def run(path, script: str, imports: str = "dali") -> None:
    run_script(SCRIPT + script, str(path), imports=imports)


@pytest.mark.parametrize("how", ["", "exec_dynamic=False", "exec_async=False, exec_pipelined=False"])
def test_pipelines(path, how):
    script = f"""
pipe = pipeline({how})
kept = pipe.run()[0]
refused(
    run=pipe.run, meta=pipe.reader_meta, size=lambda: pipe.epoch_size("reader"), state=pipe.checkpoint,
    counters=lambda: dali_zarr.counters(pipe),
)
dropped("pipe", "kept")
def again():
    assert dali_zarr.counters() == [] and kept.as_array().ravel().tolist() == [0, 1, 2, 3]
    assert [pipeline().run()[0].as_array().ravel()[0] for _ in range(3)] == [0] * 3
    assert len(dali_zarr.counters()) == 0
forked(again)
for i in range(1, 10):
    assert pipe.run()[0].as_array().ravel().tolist() == [4 * i + k for k in range(4)]
"""
    run(path, script)


def test_pipelines_whose_output_is_scheduled(path):
    script = """
pipe = pipeline()
pipe.schedule_run()
refused(schedule=pipe.schedule_run, outputs=pipe.outputs, share=pipe.share_outputs, release=pipe.release_outputs)
assert pipe.outputs()[0].as_array().ravel().tolist() == [0, 1, 2, 3]
"""
    run(path, script)


def test_the_library(path):
    script = """
from dali_zarr import _native
reader = _native.Reader({"path": path, "arrays": ["n"], "batch_size": 4})
reader.skip()
refused(next=reader.skip, size=reader.samples, counters=reader.counters)
forked(lambda: reader.__exit__())
reader.skip()
assert reader.counters()["batches"] >= 2
"""
    run(path, script)


def test_iterators(path):
    pytest.importorskip("torch")
    script = """
from nvidia.dali.plugin.pytorch import DALIGenericIterator
it = DALIGenericIterator([pipeline()], ["n"], reader_name="reader")
next(it)
refused(next=lambda: next(it), states=it.checkpoints, made=lambda: DALIGenericIterator(it._pipes, ["n"], reader_name="reader"))
dropped("it")
assert next(it)[0]["n"].ravel().tolist() == [4, 5, 6, 7]
"""
    run(path, script, "torch")


def test_the_dynamic_mode(path):
    pytest.importorskip("torch")
    script = """
from nvidia.dali.experimental import dynamic
make = lambda: dynamic.readers.Zarr(path=path, arrays=["n"], host_memory_limit=64 << 20, enable_checkpointing=True)
taken = lambda batches: np.asarray(dynamic.as_tensor(next(batches)[0])).ravel().tolist()
reader = make()
batches = reader.next_epoch(batch_size=4)
assert taken(batches) == [0, 1, 2, 3]
refused(
    next=lambda: taken(reader.next_epoch(batch_size=4)), going_on=lambda: taken(batches),
    state=reader.get_state, meta=reader.get_metadata,
    counters=lambda: dali_zarr.counters(reader),
)
dropped("reader", "batches")
assert taken(batches) == [4, 5, 6, 7]
"""
    run(path, script, "torch")


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_loaders(path, kind):
    pytest.importorskip(kind)
    device = ", device='cpu'" if kind == "torch" else ""
    script = f"""
from dali_zarr.{kind} import Loader
loader = Loader(path, arrays="n", batch_size=4, host_memory_limit="64MB"{device})
state = loader.state_dict()
it = iter(loader)
first = next(it)
refused(
    next=lambda: next(it), iter=lambda: next(iter(loader)), state=loader.state_dict, load=lambda: loader.load_state_dict(state),
    epoch=lambda: loader.set_epoch(3), counters=loader.counters, of_iteration=it.counters, told=lambda: dali_zarr.counters(loader),
)
dropped("loader", "it", "first")
def describes():
    assert len(loader) == 10 and loader.epoch == 0 and "10 batches" in repr(loader)
forked(describes)
assert np.concatenate([np.asarray(batch["n"]) for batch in it]).tolist() == list(range(4, {STEPS}))
"""
    run(path, script, "torch")


def test_memory_of_readers_is_counted_anew(path):
    """What the parent's readers have, and locks that its threads hold, is nothing to a child."""
    script = """
pipe = pipeline()
pipe.run()
taken = lambda: dali_zarr.explain(path=path, arrays="n")["memory"]["host_memory_taken"]
def of_child():
    assert taken() == 0, taken()
    of_its_own = pipeline()
    of_its_own.run()
    assert taken() > 0
assert taken() > 0
forked(of_child)
assert taken() > 0
"""
    run(path, script)


def test_what_is_in_device_memory_is_never_destroyed(path):
    """Shown without a GPU too: here any tensor counts as one on a GPU, and DALI is said to find a GPU."""
    pytest.importorskip("torch")
    script = """
import threading, weakref
import torch
from nvidia.dali import backend_impl
from nvidia.dali.experimental.dynamic._thread_pool import ThreadPool
pipe = pipeline()
backend_impl.GetCUDADeviceCount = lambda: 1
of_globals = torch.zeros(1)
# A class of Python that is derived from one of C++.
pool = ThreadPool(1, device_id=None)
seen = [weakref.ref(of_globals), weakref.ref(pool)]
ready, ends = threading.Event(), threading.Event()
def holds():
    of_frame = torch.zeros(1)
    seen.append(weakref.ref(of_frame))
    ready.set()
    ends.wait()
thread = threading.Thread(target=holds)
thread.start()
ready.wait()
def work():
    del globals()["of_globals"], globals()["pool"]
    gc.collect()
    assert [one() is not None for one in seen] == [True, True, True]
forked(work)
ends.set()
thread.join()
del of_globals, pool
gc.collect()
assert [one() for one in seen] == [None, None, None], "the parent keeps nothing"
"""
    run(path, script, "torch")


def test_a_thread_forks_while_others_read(path):
    """Locks that other threads hold stay locked in the child."""
    script = """
import threading
from concurrent.futures import ThreadPoolExecutor
ends = threading.Event()
def read():
    while not ends.is_set():
        pipe = pipeline()
        for _ in range(3):
            pipe.run()
        dali_zarr.counters()
with ThreadPoolExecutor(2) as pool:
    reading = [pool.submit(read) for _ in range(2)]
    for _ in range(5):
        forked(lambda: (dali_zarr.counters(), dali_zarr.explain(path=path, arrays="n"), os._exit(7)))
    ends.set()
    for one in reading:
        one.result()
"""
    run(path, script)
