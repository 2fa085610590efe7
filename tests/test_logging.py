"""The logger ``dali_zarr``: silent by default, and what it tells where logging is set up."""

from __future__ import annotations

import logging
import re
import time

import numpy as np
import pytest
from support.processes import start
from support.server import Server
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Loader  # noqa: E402


def write(path):
    write_array(path, "a", np.arange(40, dtype="float32").reshape(8, 5), layout=Layout((1, 5)), dims=("time", "x"))
    return path


def make(path, **args):
    return Loader(path, arrays=["a"], batch_size=2, device="cpu", host_memory_limit="64MB", **args)


def test_what_is_told(tmp_path, caplog):
    """How selections are resolved, and when a loader opens its store."""
    caplog.set_level(logging.DEBUG, "dali_zarr")
    loader = make(write(tmp_path), isel={"time": slice(2, None), "x": [0, 3]})
    selected, opened = (record for record in caplog.records if record.name == "dali_zarr")
    assert selected.levelno == logging.DEBUG
    assert "'pick': {'x': [0, 3]}" in selected.getMessage() and "'roi_start': [2]" in selected.getMessage()
    assert (opened.levelno, opened.getMessage()) == (logging.INFO, f"opened {loader!r}")
    caplog.clear()
    next(iter(loader))
    loader.set_epoch(5)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert [record.getMessage() for record in caplog.records if record.name == "dali_zarr"] == [
        "the store is opened anew, to go to epoch 5", f"a state of rank 0 of 1 was loaded: {loader!r}",
    ]


def test_what_the_engine_tells(tmp_path, caplog):
    """Before the build returns, in loggers below ``dali_zarr``; nothing of it by default."""
    make(write(tmp_path / "s"))
    assert not [record for record in caplog.records if record.name.startswith("dali_zarr.")]
    caplog.set_level(logging.DEBUG, "dali_zarr")
    make(tmp_path / "s")
    (opened,) = (record for record in caplog.records if record.name.startswith("dali_zarr."))
    assert (opened.name, opened.levelno) == ("dali_zarr.engine.reader", logging.DEBUG)
    assert opened.getMessage().startswith(f"store {tmp_path / 's'}: opened; an epoch has 8 samples in batches of 2")
    caplog.clear()
    caplog.set_level(logging.INFO, "dali_zarr.engine")
    make(tmp_path / "s")
    assert [record.name for record in caplog.records] == ["dali_zarr"]


def test_what_a_gpu_does_not_decode_is_a_warning(tmp_path, gpu, caplog):
    values = np.arange(40, dtype="float32").reshape(8, 5)
    write_array(tmp_path / "s", "a", values, codec="numcodecs-bz2", layout=Layout((1, 5)), dims=("time", "x"))
    Loader(tmp_path / "s", arrays=["a"], batch_size=2, device="cuda")
    (record,) = (record for record in caplog.records if record.name.startswith("dali_zarr."))
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"store {tmp_path / 's'}, array 'a': its codecs (")


def test_requests_that_are_sent_again(tmp_path, caplog):
    """While the reader runs, by whatever thread."""
    caplog.set_level(logging.DEBUG, "dali_zarr")
    write(tmp_path / "s")
    asked: set[str] = set()

    def fault(_number, _method, path):
        return None if "/c/3/" not in path or path in asked else asked.add(path) or 503

    with Server(tmp_path / "s", fault=fault) as server:
        list(make(server.url))
        until = time.monotonic() + 30
        while not (found := [record for record in caplog.records if record.name == "dali_zarr.engine.store.retry"]):
            assert time.monotonic() < until
            time.sleep(0.05)
    (record,) = found
    assert re.match(f"store {server.url}/: key \"a/c/3/0\": try 1 failed: .*503.*; the next follows in ", record.getMessage())


WARNS = """
import logging, sys
from dali_zarr.torch import Loader
logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
next(iter(Loader(sys.argv[1], arrays="a", device="cpu")))
"""


def run(script, path, imports, **environment):
    """What a process prints, to both."""
    process = start(script, path, imports=imports, env=environment)
    done = process.communicate(timeout=170)
    assert process.returncode == 0, done
    return done


def test_warnings_of_threads_are_not_lost(tmp_path):
    """Also those that come shortly before the interpreter ends, which waits for nothing else."""
    missing = str(tmp_path / "nothing.so")
    _, err = run(WARNS, write(tmp_path / "s"), "only torch", NVTX_INJECTION64_PATH=missing)
    (line,) = err.splitlines()
    assert line.startswith(f"dali_zarr.engine.nvtx WARNING: NVTX_INJECTION64_PATH: can't load {missing}")


FORKS = """
import logging, os, sys, warnings
# Of forks in processes with threads, from Python 3.12 on.
warnings.simplefilter("ignore", DeprecationWarning)
from dali_zarr import _log, _native
logging.basicConfig(level="DEBUG", stream=sys.stdout, format="%(message)s")

def opened():
    with _log.engine(), _native.Reader({"path": sys.argv[1], "arrays": ["a"]}) as reader:
        reader.skip()

opened()
for _ in range(20):
    child = os.fork()
    if not child:
        opened()
        sys.stdout.flush()
        os._exit(0)
    opened()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_forks_have_a_log_of_their_own(tmp_path):
    """And neither waits for what the other one holds."""
    out, err = run(FORKS, write(tmp_path / "s"), "dali")
    assert out.count("store ") == 41 and err == ""


def test_silent_by_default(tmp_path):
    loader = "Loader(sys.argv[1], arrays='a', isel={'x': 1}, device='cpu')"
    script = f"import sys; from dali_zarr.torch import Loader; next(iter({loader}))"
    # Not with PyTorch's compiler: at the end Triton tells of its own leaks.
    assert run(script, write(tmp_path), "only torch") == ("", "")
