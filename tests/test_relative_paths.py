"""Relative paths are those of the directory that is current when a reader is made, whatever is current later."""

from __future__ import annotations

import json
import os

import dali_zarr
import numpy as np
import pytest
from dali_zarr import _arguments, _native
from support.pipelines import same, to_numpy
from support.stores import Layout, write_array

DIMS = ("time", "x")
VALUES = np.arange(40, dtype=np.int32).reshape(10, 4)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two directories with the same names and other values; the first one is current."""
    for offset, name in ((0, "here"), (1000, "there")):
        folder = tmp_path / name
        write_array(folder / "data.zarr", "a", VALUES + offset, dims=DIMS, codec="zstd", layout=Layout((1, 4)))
        (folder / "part.bin").write_bytes((VALUES + offset).tobytes())
        metadata = {
            "zarr_format": 2, "shape": [10, 4], "chunks": [10, 4], "dtype": "<i4", "compressor": None, "filters": None,
            "fill_value": 0, "order": "C",
        }
        refs = {
            ".zgroup": json.dumps({"zarr_format": 2}), "a/.zarray": json.dumps(metadata),
            "a/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": DIMS}), "a/0.0": ["part.bin", 0, VALUES.nbytes],
        }
        (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def defined(**arguments):
    """A pipeline that isn't built yet."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=10, num_threads=1, device_id=None)
    def pipeline():
        return fn.zarr_reader(dims=["time"], **arguments)

    return pipeline()


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "data.zarr"}, {"path": "./data.zarr"}, {"path": ["../here/data.zarr"]}, {"arrays": ["./data.zarr/a"]},
        {"arrays": {"b": "../here/data.zarr/a"}}, {"path": "reference://refs.json"},
    ],
    ids=str,
)
def test_a_pipeline_is_built_elsewhere(places, monkeypatch, arguments):
    options = {"virtual_chunks": f"file://{places}/"} if "refs" in str(arguments) else {}
    pipe = defined(**arguments, storage_options=options)
    monkeypatch.chdir(places / "there")
    pipe.build()
    same(to_numpy(pipe.run()[0]), VALUES, "the first directory's values")


@pytest.mark.parametrize(
    "arguments", [{"path": "data.zarr"}, {"arrays": ["./data.zarr/a"]}, {"path": "data.zarr", "starts": "starts.npy"}], ids=str
)
def test_the_dynamic_mode_begins_elsewhere(places, monkeypatch, arguments):
    """It makes the operator when the first epoch begins."""
    import nvidia.dali.experimental.dynamic as ndd

    np.save("starts.npy", [[i] for i in range(10)])
    np.save(places / "there" / "starts.npy", [[9]] * 10)
    reader = ndd.readers.Zarr(dims=["time"], **arguments)
    monkeypatch.chdir(places / "there")
    (batch,) = next(iter(reader.next_epoch(batch_size=10)))
    same(np.asarray(ndd.as_tensor(batch)).reshape(10, 4), VALUES, "the first directory's values")


def test_all_paths_become_absolute_and_outputs_keep_their_names(places):
    np.save("starts.npy", [[3]])
    given = {
        "path": "data.zarr", "arrays": ["a", "./data.zarr/a"], "breaks": ["./data.zarr/ends"], "starts": "starts.npy",
        "ragged": "./rows.zarr", "cache_dir": "cache", "storage_options": {"virtual_chunks": "s3://bucket/"},
    }
    here = str(places / "here")
    found = _arguments.resolved(given)
    assert found == _arguments.resolved(found)
    assert found["path"] == f"{here}/data.zarr" and found["arrays"] == {"a": "a", "./data.zarr/a": f"{here}/data.zarr/a"}
    assert found["breaks"] == [f"{here}/data.zarr/ends"] and found["starts"] == f"{here}/starts.npy"
    assert found["ragged"] == f"{here}/rows.zarr" and found["cache_dir"] == f"{here}/cache"
    assert found["storage_options"] == ["virtual_chunks=s3://bucket/", f"_directory={here}"]
    for path in ("s3://bucket/a", "file:///a", "/a", "simplecache::s3://bucket/a", "simplecache::a"):
        assert _arguments.resolved({"path": path})["path"] == path
    told = dali_zarr.explain("data.zarr", arrays=["a", "./data.zarr/a"], dims=["time"])
    assert [array["output"] for array in told["arrays"]] == ["a", "./data.zarr/a"]
    assert told["path"] == [f"{here}/data.zarr", f"{here}/data.zarr/a"]


def test_the_engine_does_the_same(places):
    """For programs that use it without this package."""
    told = _native.explain({"path": "data.zarr", "arrays": ["a", "./data.zarr/a"], "dims": ["time"]})
    here = str(places / "here")
    assert told["path"] == [f"{here}/data.zarr", f"{here}/data.zarr/a"]
    assert [array["output"] for array in told["arrays"]] == ["a", "./data.zarr/a"]


def test_no_current_directory(places):
    """A relative path is an error then, an absolute one is read."""
    gone = places / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="store data.zarr: .*there is nothing"):
        dali_zarr.explain("data.zarr", arrays=["a"])
    assert dali_zarr.explain(f"{places}/here/data.zarr", arrays=["a"])["samples"] == 10


@pytest.mark.parametrize("path", ["user:secret@host/x", "file://user:secret@host/x", "reference://user:secret@host/x.json"])
def test_secrets_are_hidden_in_paths(places, path):
    options = {"virtual_chunks": "user:secret@bucket/"}
    for arguments in ({"path": path}, {"arrays": [f"./{path}"]}, {"path": "data.zarr", "storage_options": options}):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            dali_zarr.explain(**arguments)
        assert "...@" in str(caught.value) and "user:secret" not in str(caught.value), caught.value
        assert "user:secret" not in str(dali_zarr.error_details(caught.value))
