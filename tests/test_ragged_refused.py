"""Ragged rows: what is refused, and what explain tells."""

from __future__ import annotations

import json
import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import build
from support.ragged import ARRAYS, DENSE, Store, write
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 5, 4, 10], "entry 2 is 4, after 5"),
        ([0, 5, -1, 10], "-1 as entry 2"),
        ([-3, 5, 6, 10], "-3 as entry 0"),
        ([0, 5, 6, 11], "array 'data' has 10 along its first dimension"),
        ([0, 5, 6, 2**62], "more than can be addressed"),
        (np.array([0, 5, 6, 2**63 + 5], "uint64"), "9223372036854775813 as entry 3"),
        ([0], "at least one row"),
        (np.zeros(0, "int64"), "at least one row"),
        ([0.0, 5.0, 10.0], "one dimension of integers"),
        ([[0, 5], [6, 10]], "one dimension of integers"),
    ],
    ids=str,
)
def test_hostile_offsets(tmp_path, offsets, words):
    write_array(tmp_path, "data", np.arange(10), layout=Layout((3,)))
    write_array(tmp_path, "ptr", np.asarray(offsets), layout=Layout((1,) * np.ndim(offsets)))
    with pytest.raises(ValueError, match=words) as caught:
        build(path=tmp_path, arrays=["data"], ragged="ptr")
    assert 'ragged="ptr"' in str(caught.value)


def test_offsets_that_no_memory_holds(tmp_path):
    """Claimed by metadata alone."""
    write_array(tmp_path, "data", np.arange(10), layout=Layout((3,)))
    zarr.open_group(tmp_path, mode="a").create_array("ptr", shape=(1 << 44,), chunks=(1 << 20,), dtype="int64")
    with pytest.raises(ValueError, match="17592186044416 offsets"):
        build(path=tmp_path, arrays=["data"], ragged="ptr")


def test_damaged_offsets(tmp_path, store):
    shutil.copytree(store.path, tmp_path / "a")
    next(p for p in (tmp_path / "a/X/indptr").rglob("3") if p.is_file()).write_bytes(b"damaged")
    with pytest.raises(RuntimeError, match=r"X/indptr.*can't be read"):
        build(path=tmp_path / "a", arrays=["X/data"], ragged="X/indptr")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"ragged": "X/indptr", "ragged_ends": "meta/ends"}, "expected one of them"),
        ({"max_length": 3}, "expected ragged or ragged_ends"),
        ({"ragged": "X/indptr", "max_length": 0}, "at least 1"),
        ({"ragged": "X/nothing"}, "expected an array 'X/nothing'"),
        ({"ragged": "X/indptr", "window": [3]}, "window: expected none along the rows"),
        ({"ragged": "X/indptr", "stride": [3]}, "stride: expected none along the rows"),
        ({"ragged": "X/indptr", "offsets": [0, 1]}, "offsets: expected none"),
        ({"ragged": "X/indptr", "stack_arrays": True}, "stack_arrays: expected none"),
        ({"ragged": "X/indptr", "random_crop": ["0"]}, "random_crop: expected other dimensions"),
        ({"ragged": "X/indptr", "arrays": ["obs/label"]}, "leave ragged out"),
        ({"ragged": "X/indptr", "arrays": ["meta/ends", "X/indptr"]}, "'X/indptr' has 101"),
        ({"ragged": "X/indptr", "isel": {"obs": slice(3)}}, "sel, isel: expected none with ragged"),
    ],
    ids=str,
)
def test_refused(store, args, words):
    with pytest.raises(ValueError, match=words):
        build(path=store.path, **{"arrays": ["X/data"], **args})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_columns_are_no_rows(tmp_path, store, zarr_format, consolidated):
    """CSC is told by its group's attribute, wherever that stands."""
    path = write(tmp_path / "a", np.random.default_rng(0), 20, zarr_format=zarr_format).path
    group = zarr.open_group(path, mode="r+")["X"]
    group.attrs["encoding-type"] = "csr_matrix"
    build(path=path, arrays=["X/data"], ragged="X/indptr").run()
    group.attrs["encoding-type"] = "csc_matrix"
    if consolidated:
        zarr.consolidate_metadata(path)
    with pytest.raises(ValueError, match="stored by rows.*csc_matrix.*convert it"):
        build(path=path, arrays=["X/data"], ragged="X/indptr")


def test_explain(store):
    told = dali_zarr.explain(path=store.path, arrays=ARRAYS, ragged="X/indptr", batch_size=4, max_length=30)
    lengths = np.diff(store.offsets)
    expected = {"rows": 100, "elements": int(lengths.sum()), "longest": int(lengths.max()), "max_length": 30}
    assert expected.items() <= told["ragged"].items() and told["ragged"]["empty"] == int((lengths == 0).sum())
    ragged = {o["name"]: (o["ragged"], o["shape"]) for o in told["outputs"]}
    assert ragged["frames"] == (True, [30, 4, 5]) and ragged["obsm/pca"] == (False, [6])
    assert told["samples"] == 100 and f"{int(lengths.sum())} elements" in str(told)
    assert json.loads(dali_zarr.explain(path=store.path, arrays=DENSE, json=True))["ragged"] is None
