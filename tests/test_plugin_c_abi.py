"""The C ABI: a C program, built with find_package(dali_zarr), reads what zarr-python wrote."""

from __future__ import annotations

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
    # Nothing of DALI is found.
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return lambda *arguments, **more: run(build / "dump_batches", *arguments, env=environment | more)


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
    assert lines[0] == "epoch 10 padded 10 shard 1 of 3"
    assert lines[1] == "output a dtype 11 layout 'HW' bytes 96 shape 3 4"


def test_ragged_batches_tell_their_lengths(program, tmp_path):
    data = np.arange(20, dtype="int16")
    for name, values in (("data", data), ("ends", np.array([3, 3, 10, 20])), ("label", np.arange(4))):
        zarr.open_group(tmp_path / "r", mode="a").create_array(name, data=values, chunks=(4,))
    spec = {"path": str(tmp_path / "r"), "arrays": ["data", "label"], "ragged_ends": "ends", "batch_size": 2, "max_length": 8}
    done = program(json.dumps(spec), 2)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stderr.decode().splitlines()
    assert lines[1].startswith("output data dtype 2 layout '' bytes 16 shape 8 ragged, a batch ")
    assert lines[2].startswith("output label dtype 4") and "ragged" not in lines[2]
    assert lines[3:] == [f"length {n}" for n in (3, 0, 7, 8)]
    labels = np.arange(4)
    assert done.stdout == data[:3].tobytes() + labels[:2].tobytes() + data[3:18].tobytes() + labels[2:].tobytes()


def test_batches_of_groups_tell_their_shapes(program, tmp_path):
    images = [np.arange(1, y * x + 1, dtype="int16").reshape(y, x) for y, x in ((3, 4), (2, 7), (5, 1))]
    for i, image in enumerate(images):
        zarr.open_group(tmp_path / "g", mode="a").create_group(f"g{i}").create_array("a", data=image, chunks=(2, 2))
    spec = {"path": str(tmp_path / "g"), "arrays": ["a"], "groups": "*", "batch_size": 2, "pad_last_batch": True}
    done = program(json.dumps(spec | {"return_index": True}), 2)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stderr.decode().splitlines()
    assert lines[1].startswith("output a dtype 2 layout '' bytes 70 shape 5 7 ragged, a batch 56")
    assert lines[3:] == ["shapes 3 4 2 7", "shapes 5 1 5 1"]
    first, second, third = (image.tobytes() for image in images)
    numbers = [np.array(n, "int64").tobytes() for n in ([0, 1], [2, 2])]
    assert done.stdout == first + second + numbers[0] + third + third + numbers[1]


def test_errors_have_a_status_and_a_message(program, store):
    done = program(json.dumps({"path": str(store), "arrays": ["b"]}), 1)
    assert done.returncode == 1
    message = done.stderr.decode()
    assert "'b'" in message or '"b"' in message
    assert "zarr_reader" in message


def details(done):
    """The status, the message and the details that the program ends with."""
    *_, first, last = done.stderr.decode().splitlines()
    status, message = first.removeprefix("error ").split(": ", 1)
    found = json.loads(last)
    assert int(status) == done.returncode
    return found.pop("kind"), message, {key: value for key, value in found.items() if value is not None}


def test_errors_tell_where_they_happened(program, store):
    """What programs match: a damaged chunk, a missing array, a file that the system refuses."""
    chunk = store / "a/c/1/0/0"
    chunk.write_bytes(b"damaged")
    spec = {"path": str(store), "arrays": ["a"], "dims": "time", "batch_size": 5}
    kind, message, found = details(program(json.dumps(spec), 3))
    place = {"store": str(store), "array": "a", "chunk": "a/c/1/0/0"}
    assert (kind, found) == ("runtime", {**place, "code": "damaged", "message": message})
    assert message.startswith(f"zarr_reader: store {store}, array 'a', chunk a/c/1/0/0: ")
    chunk.unlink()
    chunk.symlink_to(chunk)
    kind, message, found = details(program(json.dumps(spec), 3))
    assert (kind, found.pop("source")) == ("runtime", "Too many levels of symbolic links (os error 40)")
    assert found == {**place, "code": "unavailable", "key": "a/c/1/0/0", "message": message}
    kind, message, found = details(program(json.dumps({**spec, "arrays": ["b"]}), 1))
    place = {"store": str(store), "known": ["a", "time"]}
    assert (kind, found) == ("value", {**place, "code": "not_found", "name": "b", "message": message})
    kind, message, found = details(program(json.dumps({"path": str(store)}), 1))
    assert (kind, found) == ("value", {**place, "code": "invalid", "message": message})
    kind, message, found = details(program(json.dumps({**spec, "dims": "tim"}), 1))
    assert (kind, found) == ("value", {"code": "invalid", "name": "tim", "known": ["time", "lat", "lon"], "message": message})


def test_a_shard_with_a_damaged_inner_chunk_is_told_with_its_coordinates(program, tmp_path):
    a = zarr.open_group(tmp_path / "s", mode="w").create_array("a", shape=(8, 4), chunks=(2, 4), shards=(8, 4), dtype="int32")
    a[:] = np.arange(1, 33).reshape(8, 4)
    shard = tmp_path / "s/a/c/0/0"
    content = bytearray(shard.read_bytes())
    content[0] ^= 255
    shard.write_bytes(content)
    kind, _, found = details(program(json.dumps({"path": str(tmp_path / "s"), "arrays": "a", "dims": ["0"]}), 8))
    assert (kind, found["chunk"], len(found["inner_chunk"])) == ("runtime", "a/c/0/0", 2)


def test_a_nul_does_not_cut_a_message(program):
    kind, message, found = details(program(json.dumps({"path": "a\0b.zarr", "arrays": "a"}), 1))
    assert kind == "value" and "/a\\u{0}b.zarr: expected a directory" in message and found["store"] == os.path.abspath("a\0b.zarr")


def test_warnings_go_to_stderr(program, store, tmp_path):
    """Where nobody takes them."""
    spec = json.dumps({"path": str(store), "arrays": "a", "dims": "time"})
    done = program(spec, 2, NVTX_INJECTION64_PATH=str(tmp_path / "nothing.so"))
    warnings = [line for line in done.stderr.decode().splitlines() if line.startswith("dali_zarr: ")]
    (warning,) = warnings
    assert done.returncode == 0 and "nothing.so" in warning


def test_memory_that_the_machine_lacks_has_its_own_status(program, tmp_path):
    shape, chunks = (4, 1 << 22, 1 << 20), (1, 1 << 14, 1 << 14)
    zarr.open_group(tmp_path / "huge.zarr", mode="w").create_array("a", shape=shape, chunks=chunks, dtype="float32")
    done = program(json.dumps({"path": str(tmp_path / "huge.zarr"), "arrays": ["a"]}), 1)
    assert done.returncode == 5
    message = done.stderr.decode()
    assert message.startswith("error 5: zarr_reader: ") and "memory" in message, message


def test_arrays_are_listed(program, store):
    done = program("--arrays", json.dumps({"path": str(store)}))
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["store"], found["is_cut"]) == (str(store), False)
    a, time = found["arrays"]
    assert (a["name"], a["dims"], a["shape"], a["chunks"]) == ("a", ["time", "lat", "lon"], [10, 3, 4], [2, 2, 4])
    assert (time["name"], time["dtype"], time["refused"], time["is_sound"]) == ("time", "int64", None, True)
    done = program("--arrays", json.dumps({"path": str(store), "arrays": ["a", "b"]}))
    assert done.returncode == 1 and "expected an array 'b', but found the arrays 'a', 'time'" in done.stderr.decode()


def test_labels_are_read(program, store):
    done = program("--labels", json.dumps({"path": str(store), "arrays": ["a"]}), "time")
    assert done.returncode == 0, done.stderr.decode()
    told, _, data = done.stdout.partition(b"\n")
    found = json.loads(told)
    assert (found["name"], found["shape"], found["kind"], found["dtype"]) == ("time", [10], "numbers", "int64")
    assert np.frombuffer(data, "int64").tolist() == list(range(0, 60, 6))
    done = program("--labels", json.dumps({"path": str(store), "arrays": ["a"]}), "lat")
    assert done.returncode == 1 and "there is no array 'lat'" in done.stderr.decode()
    assert done.stdout == b"null\n"


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
