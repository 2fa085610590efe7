"""The logger ``dali_zarr``: silent by default, and what it tells where logging is set up."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
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
    assert [record.getMessage() for record in caplog.records] == [
        "the store is opened anew, to go to epoch 5", f"a state of rank 0 of 1 was loaded: {loader!r}",
    ]


def test_silent_by_default(tmp_path):
    loader = f"Loader({str(write(tmp_path))!r}, arrays='a', isel={{'x': 1}}, device='cpu')"
    script = f"from dali_zarr.torch import Loader; next(iter({loader}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert (done.stdout, done.stderr) == ("", "")
