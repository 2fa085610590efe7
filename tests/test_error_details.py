"""What programs match of an error: a code, a kind and a place, beside the message."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
import zarr
from dali_zarr.torch import Loader
from nvidia.dali import fn, pipeline_def
from support.pipelines import build
from support.server import Server
from support.stores import Layout, chunk_files, write_array

ROOT = Path(__file__).parents[1]
DIMS = ("time", "lat", "lon")
SHAPE = (6, 8, 16)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s.zarr"
    write_array(path, "a", np.ones(SHAPE, "float32"), dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    return path


def raised(error: type[Exception], action) -> dict:
    """Returns the details of the error that ``action`` raises. The exception is of this very class."""
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    found = dali_zarr.error_details(caught.value)
    assert found["message"] in str(caught.value) and "operator" not in found
    return found


def run(path, rounds=6, **arguments):
    pipe = build("cpu", 1, path=str(path), arrays=["a"], **arguments)
    for _ in range(rounds):
        pipe.run()


def test_a_damaged_chunk(store):
    chunk_files(store, "a")[2].write_bytes(b"damaged")
    found = raised(RuntimeError, lambda: run(store))
    place = {"store": str(store), "array": "a", "chunk": "a/c/2/0/0"}
    assert {key: found[key] for key in place} == place
    assert (found["code"], found["kind"]) == ("damaged", "runtime")


def test_wrong_calls(store):
    assert raised(ValueError, lambda: run(store.with_name("no")))["code"] == "not_found"
    unknown = raised(ValueError, lambda: build("cpu", 1, path=str(store), arrays=["aa"]))
    assert (unknown["code"], unknown["name"], unknown["known"], unknown["store"]) == ("not_found", "aa", ["a"], str(store))
    assert raised(ValueError, lambda: run(store, window=[2], dims=["nope"]))["code"] == "invalid"
    assert raised(IndexError, lambda: run(store, pick=["lat=9"]))["code"] == "out_of_range"


def test_memory_that_the_machine_lacks(tmp_path):
    huge, chunks = (4, 1 << 22, 1 << 20), (1, 1 << 14, 1 << 14)
    zarr.open_group(tmp_path, mode="w").create_array("a", shape=huge, chunks=chunks, dtype="float32")
    found = raised(MemoryError, lambda: run(tmp_path))
    assert (found["code"], found["kind"]) == ("out_of_memory", "memory")


def test_what_this_reader_does_not_have(store):
    document = store / "a/zarr.json"
    document.write_text(document.read_text().replace('"zstd"', '"zfpy"'))
    found = raised(ValueError, lambda: run(store))
    assert (found["code"], found["kind"], found["array"]) == ("unsupported", "value", "a")
    text = document.read_text().replace('"zfpy"', '"zstd"').replace('"float32"', '"string"')
    document.write_text(text)
    assert raised(TypeError, lambda: run(store))["code"] == "wrong_type"


@pytest.mark.parametrize(("status", "code", "tries"), [(403, "permission_denied", 1), (503, "unavailable", 3), (400, "failed", 1)])
def test_servers_that_refuse_or_fail(store, status, code, tries):
    """At a batch it is a RuntimeError, while the pipeline is built a ValueError. The code is the same."""
    with Server(store, fault=lambda _n, _m, path: status if "/c/3/" in path else None) as server:
        found = raised(RuntimeError, lambda: run(server.url, storage_options={"max_retries": 2}))
        assert (found["code"], found["tries"], found["chunk"]) == (code, tries, "a/c/3/0/0")
        assert (found["store"], found["key"]) == (f"{server.url}/", "a/c/3/0/0")
        assert str(status) in found["source"]
    with Server(store, fault=lambda *_: status) as server:
        found = raised(ValueError, lambda: run(server.url, storage_options={"max_retries": 0}))
        assert (found["code"], found["kind"]) == (code if status != 400 else "invalid", "value")


def test_a_file_that_the_system_refuses(store):
    chunk = chunk_files(store, "a")[1]
    chunk.unlink()
    chunk.symlink_to(chunk)
    found = raised(RuntimeError, lambda: run(store))
    assert (found["code"], found["source"]) == ("unavailable", "Too many levels of symbolic links (os error 40)")


def test_the_shard_was_replaced_after_its_index_was_read(tmp_path):
    layout = Layout((1, 8, 16), shards=(6, 8, 16))
    for name, value in (("s", 1), ("new", 2)):
        write_array(tmp_path / name, "a", np.full(SHAPE, value, "float32"), dims=DIMS, codec="none", layout=layout)
    pipe = build("cpu", 1, path=str(tmp_path / "s"), arrays=["a"], dali_queue=1, prefetch_queue_depth=1)
    pipe.run()
    chunk_files(tmp_path / "new", "a")[0].replace(chunk_files(tmp_path / "s", "a")[0])

    def run_on():
        for _ in range(48):
            pipe.run()

    assert raised(RuntimeError, run_on)["code"] == "replaced"


def test_each_pipeline_has_its_own_error(store, tmp_path):
    """Both fail on threads of DALI's, one after the other; then the errors are asked for."""
    other = tmp_path / "t.zarr"
    write_array(other, "a", np.ones(SHAPE, "float32"), dims=DIMS, codec="zstd", layout=Layout((1, 8, 16)))
    errors = []
    for path, number in ((store, 1), (other, 3)):
        chunk_files(path, "a")[number].write_bytes(b"damaged")
        with pytest.raises(RuntimeError) as caught:
            run(path)
        errors.append(caught.value)
    found = [(d["store"], d["chunk"]) for d in map(dali_zarr.error_details, errors)]
    assert found == [(str(store), "a/c/1/0/0"), (str(other), "a/c/3/0/0")]


def test_loaders(store):
    chunk_files(store, "a")[2].write_bytes(b"damaged")

    def read():
        for _ in Loader(str(store), arrays=["a"], batch_size=1, device="cpu"):
            pass

    found = raised(RuntimeError, read)
    assert (found["code"], found["chunk"]) == ("damaged", "a/c/2/0/0")


def test_functions_of_the_package(store):
    found = raised(ValueError, lambda: dali_zarr.explain(path=str(store), arrays=["aa"]))
    assert (found["code"], found["name"]) == ("not_found", "aa")
    error = KeyError("other")
    error.__cause__ = ValueError("between")
    error.__cause__.__cause__ = error
    assert dali_zarr.error_details(error) == {}


def test_errors_of_other_operators_have_no_details(store):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        return dali_zarr.zarr_reader(path=str(store), arrays=["a"], dims=["time"]), fn.decoders.image(
            fn.external_source(lambda: [np.zeros(9, "uint8")])
        )

    pipe = pipeline()
    with pytest.raises(RuntimeError) as caught:
        pipe.build()
        for _ in itertools.repeat(None, 3):
            pipe.run()
    assert dali_zarr.error_details(caught.value) == {}


def test_the_codes_of_the_header_are_those_of_the_page():
    page = (ROOT / "docs/reference/python.md").read_text()
    documented = re.findall(r"^\| `\"(\w+)\"` \|", page, re.M)
    header = re.search(r'"code": what went wrong: (.*?)\. No name', (ROOT / "include/dali_zarr.h").read_text(), re.S)
    assert header and documented == re.findall(r'"(\w+)"', header[1])
