"""Ragged rows whose offsets are in a store of their own, and segments of rows."""

from __future__ import annotations

import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import build, same
from support.ragged import COLUMNS, Store, samples, write
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


@pytest.mark.parametrize("by", ["ragged", "ragged_ends"])
def test_offsets_of_another_store(tmp_path, store, device, by, monkeypatch):
    """By location, for arrays of a path and for those with stores of their own."""
    values = store.offsets if by == "ragged" else store.offsets[1:]
    write_array(tmp_path / "rows.zarr", "index", values, layout=Layout((7,)))
    monkeypatch.chdir(tmp_path)
    own = {"x": str(store.path / "X" / "data"), "label": str(store.path / "obs" / "label")}
    for location in ("./rows.zarr/index", tmp_path / "rows.zarr" / "index", "./rows.zarr"):
        for how in ({"path": store.path, "arrays": {"x": "X/data", "label": "obs/label"}}, {"arrays": own}):
            pipe = build(device, 4, return_index=True, **how, **{by: location})
            for found, labels, rows in samples(pipe, 25):
                for one, label, (row,) in zip(found, labels, rows, strict=True):
                    same(one, np.asarray(store.row("X/data", int(row))), f"row {row}")
                    assert label == store.row("obs/label", int(row))


def test_a_matrix_of_its_own_store(tmp_path, store):
    """What the group around the offsets says counts: its columns, and that rows can be read."""
    torch = pytest.importorskip("torch")
    path = shutil.copytree(store.path, tmp_path / "cells.zarr")
    group = zarr.open_group(path / "X")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [100, COLUMNS]})
    arrays = {f"X/{name}": f"{path}/X/{name}" for name in ("data", "indices")}
    how = {"batch_size": 100, "device": "cpu", "collate": "csr"}
    (batch,) = dali_zarr.torch.Loader(arrays=arrays, ragged=f"{path}/X/indptr", **how)
    assert batch["X"].shape == (100, COLUMNS) and batch["X"].crow_indices().tolist() == store.offsets.tolist()
    assert torch.equal(batch["X"].values(), torch.from_numpy(store.values["X/data"]))
    group.attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(ValueError, match=r"stored by rows \(csr_matrix\) in group '.*cells.zarr/X', but found csc_matrix"):
        build("cpu", 1, arrays=arrays, ragged=f"{path}/X/indptr")


def test_locations_that_are_refused(tmp_path, store):
    write_array(tmp_path / "rows.zarr", "floats", np.zeros(3))
    arrays = ["X/data"]
    for how, words in (
        ({"path": [store.path] * 2, "ragged": "./r"}, "relative to path, since each of the 2 stores there has rows of its own"),
        ({"path": store.path, "ragged": str(tmp_path / "nowhere")}, "the offsets can't be read: .*nowhere"),
        ({"path": store.path, "ragged": str(tmp_path / "rows.zarr")}, r"integers, but found the shape \[3\] of float64"),
        ({"arrays": [str(store.path / "X" / "data")], "ragged": "X/indptr"}, 'or the location of the array, such as "./cells'),
    ):
        with pytest.raises(ValueError, match=words):
            build("cpu", 1, **{"arrays": arrays} | how)


@pytest.mark.parametrize("own", [False, True])
def test_segments_of_rows(tmp_path, store, device, own):
    """Ends of segments count rows, not elements: the cells of a donor."""
    ends = np.array([10, 37, 60, 100])
    path = shutil.copytree(store.path, tmp_path / "cells.zarr")
    write_array(tmp_path / "donors.zarr" if own else path, "donors/ends", ends)
    breaks = tmp_path / "donors.zarr" / "donors" / "ends" if own else "donors/ends"
    how = {"path": path, "arrays": ["X/data", "obs/label"], "ragged": "X/indptr", "return_index": True}
    for chosen in ([1], [0, 3], [True, False, True, False]):
        numbers = [i for i, one in enumerate(chosen) if one] if isinstance(chosen[0], bool) else chosen
        want = [(s, row) for s in numbers for row in range([0, *ends][s], ends[s])]
        pipe = build(device, 1, breaks=breaks, segments=chosen, **how)
        assert pipe.reader_meta("reader")["epoch_size"] == len(want)
        for (found, labels, index), (segment, row) in zip(samples(pipe, len(want)), want, strict=True):
            assert index[0].tolist() == [segment, row] and labels[0] == row
            same(found[0], np.asarray(store.row("X/data", row)), f"row {row}")
    parts = dali_zarr.splits(**how, breaks=breaks, train=slice(0, 3), test=slice(3, None))
    assert [dali_zarr.explain(**part)["samples"] for part in parts.values()] == [60, 40]
    # As breaks that are given do.
    numbers = dali_zarr.explain(**how, breaks=ends[:-1].tolist(), segments=[1, 2])
    named = dali_zarr.explain(**how, breaks=str(breaks), segments=[1, 2])
    assert numbers["segments"] == named["segments"] and numbers["samples"] == named["samples"] == 50
    with pytest.raises(ValueError, match="from 0 to 100 in ascending order, but found 101 after 60"):
        write_array(tmp_path / "wrong.zarr", "ends", np.array([10, 60, 101]))
        build("cpu", 1, breaks=str(tmp_path / "wrong.zarr" / "ends"), **how)


def test_joined_stores_have_segments_of_rows(tmp_path):
    """Each store's ends count its own rows."""
    stores = [write(tmp_path / f"{i}.zarr", np.random.default_rng(i), rows=20 + 10 * i) for i in range(2)]
    for i, one in enumerate(stores):
        write_array(one.path, "ends", np.array([5, 20 + 10 * i]))
    how = {"path": [one.path for one in stores], "arrays": ["X/data", "obs/label"], "ragged": "X/indptr", "return_index": True}
    pipe = build("cpu", 1, breaks="ends", segments=[1, 2], cross_stores=False, **how)
    want = [(1, row) for row in range(5, 20)] + [(2, row) for row in range(20, 25)]
    for (found, _, index), (segment, row) in zip(samples(pipe, len(want)), want, strict=True):
        assert index[0].tolist() == [segment, row]
        same(found[0], np.asarray(stores[row // 20].row("X/data", row % 20)), f"row {row}")


def test_uneven_coordinates_of_rows(tmp_path, store):
    """Coordinates of the rows tell segments of them."""
    path = shutil.copytree(store.path, tmp_path / "cells.zarr")
    write_array(path, "day", np.where(np.arange(100) < 40, 0, 1000) + np.arange(100), dims=("day",))
    write_array(path, "obs/age", np.arange(100), dims=("day",))
    how = {"path": path, "arrays": ["X/data", "obs/age"], "ragged": "X/indptr", "dims": ["day"]}
    assert dali_zarr.explain(**how, breaks="auto", segments=[0])["samples"] == 40
