"""The C ABI: a C program, built with find_package(dali_zarr), reads what zarr-python wrote."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
import zarr

PACKAGE = Path(dali_zarr.__file__).parent
SOURCE = Path(__file__).parent / "c_abi"
DALI = importlib.util.find_spec("nvidia.dali").submodule_search_locations[0]


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, timeout=300, **options)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The C program; called with its arguments it gives the finished process."""
    build = tmp_path_factory.mktemp("c_abi")
    import cmake

    tool = Path(cmake.CMAKE_BIN_DIR) / "cmake"
    configured = run(tool, "-S", SOURCE, "-B", build, f"-Ddali_zarr_DIR={PACKAGE}/lib/cmake/dali_zarr")
    assert configured.returncode == 0, configured.stderr.decode()
    built = run(tool, "--build", build)
    assert built.returncode == 0, built.stdout.decode() + built.stderr.decode()
    # The library holds DALI's operator too, so libdali.so has to be found when the program starts.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(DALI)}
    return lambda *arguments: run(build / "dump_batches", *arguments, env=environment)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    a = group.create_array("a", shape=(10, 3, 4), chunks=(2, 2, 4), dtype="float32", dimension_names=["time", "lat", "lon"])
    a[:] = np.arange(120, dtype="float32").reshape(10, 3, 4)
    t = group.create_array("time", shape=(10,), chunks=(10,), dtype="int64", dimension_names=["time"])
    t[:] = np.arange(10) * 6
    return path


def test_version(program):
    assert program("--version").stdout.decode().strip() == dali_zarr.__version__


def test_batches_equal_what_was_written(program, store):
    spec = {"path": str(store), "arrays": ["a", "time"], "dims": "time", "batch_size": 5, "return_index": True}
    done = program(json.dumps(spec), 3)
    assert done.returncode == 0, done.stderr.decode()
    a = zarr.open_group(store, mode="r")["a"][:]
    expected = b""
    for batch in (slice(0, 5), slice(5, 10), slice(0, 5)):
        index = np.arange(10, dtype="int64")[batch]
        expected += a[batch].tobytes() + (index * 6).tobytes() + index.tobytes()
    assert done.stdout == expected


def test_outputs_and_epoch_are_described(program, store):
    spec = {"path": str(store), "arrays": "a", "dims": ["time"], "num_shards": 3, "shard_id": 1, "dtype": "float64"}
    done = program(json.dumps(spec), 1)
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "epoch 10 padded 12 shard 1 of 3"
    assert lines[1] == "output a dtype 11 layout 'HW' bytes 96 shape 3 4"


def test_errors_have_a_status_and_a_message(program, store):
    done = program(json.dumps({"path": str(store), "arrays": ["b"]}), 1)
    assert done.returncode == 1
    message = done.stderr.decode()
    assert "'b'" in message or '"b"' in message
    assert "zarr_reader" in message


def test_memory_that_the_machine_lacks_has_its_own_status(program, tmp_path):
    shape, chunks = (4, 1 << 22, 1 << 20), (1, 1 << 14, 1 << 14)
    zarr.open_group(tmp_path / "huge.zarr", mode="w").create_array("a", shape=shape, chunks=chunks, dtype="float32")
    done = program(json.dumps({"path": str(tmp_path / "huge.zarr"), "arrays": ["a"]}), 1)
    assert done.returncode == 5
    message = done.stderr.decode()
    assert message.startswith("error 5: zarr_reader: ") and "memory" in message, message


def test_misuse_comes_back_as_errors(program):
    done = program("--misuse")
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("compiler", [["cc", "-x", "c", "-std=c99"], ["c++", "-x", "c++", "-std=c++17"]])
def test_the_header_stands_alone(compiler):
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} isn't installed")
    header = PACKAGE / "include" / "dali_zarr.h"
    done = run(*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", header)
    assert done.returncode == 0, done.stderr.decode()
