"""Processes that end while threads are in readers end with their own status."""

from __future__ import annotations

import numpy as np
import pytest
from support.pipelines import start
from support.server import Server
from support.stores import Layout, write_array

SCRIPT = """
import os, sys, threading, time
import numpy as np
import dali_zarr
path = sys.argv[1]
began = threading.Semaphore(0)

def pipeline():
    from nvidia.dali.pipeline import Pipeline
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(dali_zarr.zarr_reader(path=path, arrays="n", host_memory_limit=64 << 20))
    return pipe

def run_pipeline():
    pipe = pipeline()
    while True:
        pipe.run()
        began.release()

def run_loader():
    from dali_zarr.torch import Loader
    loader = Loader(path, arrays="n", batch_size=2, device="cpu", host_memory_limit="64MB")
    while True:
        for batch in loader:
            began.release()

def run_dynamic():
    from nvidia.dali.experimental import dynamic
    reader = dynamic.readers.Zarr(path=path, arrays=["n"], host_memory_limit=64 << 20)
    while True:
        for (batch,) in reader.next_epoch(batch_size=2):
            dynamic.as_tensor(batch).evaluate()
            began.release()

threads = [threading.Thread(target=RUN, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(COUNT):
    assert began.acquire(timeout=60)
time.sleep(0.05)
"""


@pytest.fixture
def store(tmp_path):
    write_array(tmp_path / "s.zarr", "n", np.arange(400, dtype=np.int32), layout=Layout((4,)), dims=("time",))
    return tmp_path


def ends(script: str, path: object, imports: str = "dali") -> tuple[int, str]:
    process = start(script, str(path), imports=imports)
    try:
        _, err = process.communicate(60)
    finally:
        process.kill()
    return process.returncode, err


@pytest.mark.parametrize("run", ["run_pipeline", "run_loader", "run_dynamic"])
@pytest.mark.parametrize(("how", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('its own')", 1)])
def test_daemon_threads_that_read(store, run, how, status):
    if run != "run_pipeline":
        pytest.importorskip("torch")
    script = SCRIPT.replace("RUN", run).replace("COUNT", "20") + how
    found, err = ends(script, store / "s.zarr", "dali" if run == "run_pipeline" else "torch")
    assert found == status, err
    # Nothing but the program's own exception is printed.
    assert err.count("Traceback") == (status == 1) and "terminate" not in err, err


@pytest.mark.parametrize("run", ["run_pipeline", "run_loader", "run_dynamic"])
def test_daemon_threads_that_wait_for_a_chunk(store, run):
    if run != "run_pipeline":
        pytest.importorskip("torch")

    def late(number: int, method: str, path: str) -> float | None:
        return 60.0 if "/c/" in path and "/c/0" not in path else None

    with Server(store, fault=late) as server:
        script = SCRIPT.replace("RUN", run).replace("COUNT", "2") + "time.sleep(0.3)\nsys.exit(3)"
        found, err = ends(script, server.url + "/s.zarr", "dali" if run == "run_pipeline" else "torch")
    assert found == 3 and "Traceback" not in err and "terminate" not in err, err


def test_threads_that_are_no_daemons_finish_first(store):
    script = SCRIPT[: SCRIPT.index("threads =")] + """
def run():
    pipe = pipeline()
    for _ in range(300):
        pipe.run()
        began.release()
    print("finished", flush=True)

threading.Thread(target=run).start()
began.acquire()
sys.exit(3)
"""
    process = start(script, str(store / "s.zarr"))
    out, err = process.communicate(60)
    assert (process.returncode, out, err) == (3, "finished\n", "")
