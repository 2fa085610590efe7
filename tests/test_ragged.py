"""Ragged rows: each sample is the elements from one offset of the store to the next, against NumPy."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr
from support.pipelines import build, same
from support.ragged import ARRAYS, Store, check, samples, write
from support.stores import Layout, write_array


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


@pytest.mark.parametrize("max_length", [None, 1, 9, 1000])
@pytest.mark.parametrize("by", [{}, {"ragged_ends": "meta/ends"}], ids=["offsets", "ends"])
def test_rows_in_order(store, device, by, max_length):
    cut = {} if max_length is None else {"max_length": max_length}
    assert check(store, device, 8, 13, **by, **cut) == [i % 100 for i in range(104)]


@pytest.mark.parametrize("batch_size", [1, 7, 50, 150])
@pytest.mark.parametrize("initial_fill", [1, 10, 1000])
def test_each_row_once_when_shuffled(store, device, batch_size, initial_fill):
    """Also where a batch is longer than an epoch."""
    count = -(-300 // batch_size)
    seen = check(store, device, batch_size, count, random_shuffle=True, seed=3, initial_fill=initial_fill)
    epochs = [seen[at : at + 100] for at in range(0, 300, 100)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) == 3


def test_shards_share_the_rows(store, device):
    args = {"random_shuffle": True, "seed": 5, "num_shards": 3, "stick_to_shard": True, "pad_last_batch": True}
    seen = [check(store, device, 8, 5, shard_id=shard, **args) for shard in range(3)]
    assert sorted({row for rows in seen for row in rows}) == list(range(100))
    assert [len(set(rows)) for rows in seen] == [33, 33, 34]


def test_regions_steps_and_picked_rows(store, device):
    """They count rows."""
    assert check(store, device, 4, 5, roi_start=[10], roi_end=[-20], step=[4]) == [10 + 4 * i for i in range(18)] + [10, 14]
    rows = [99, 5, 5, 0, 17, 3]
    assert check(store, device, 3, 4, pick=[f"0={','.join(map(str, rows))}"]) == rows * 2


def test_other_dimensions_are_cut_as_usual(store, device):
    pipe = build(
        device, 6, path=store.path, arrays=["frames"], ragged="X/indptr", dims=["0", "2"], window=[0, 2], return_index=True,
    )
    for frames, index in samples(pipe, 30):
        for found, (row, start) in zip(frames, index, strict=True):
            same(found, np.ascontiguousarray(store.row("frames", row)[:, :, start : start + 2]), f"row {row} at {start}")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_stores(tmp_path, device, zarr_format, seed):
    """With values that are normalised and cast, in every order."""
    rng = np.random.default_rng(seed)
    store = write(tmp_path / "a", rng, int(rng.integers(2, 60)), int(rng.integers(0, 70)) or 1, zarr_format)
    if not store.values["X/data"].size:
        pytest.skip("all rows are empty")
    args = {"random_shuffle": bool(seed % 2), "max_length": int(rng.integers(1, 80)), "pad_last_batch": bool(seed % 3)}
    check(store, device, int(rng.integers(1, 20)), 12, **args)
    pipe = build(
        device, 5, path=store.path, arrays=["X/data", "obs/label"], ragged="X/indptr", mean=[3.0], stddev=[0.5], dtype="float64",
    )
    for data, labels in samples(pipe, 4):
        for found, label in zip(data, labels, strict=True):
            row = round(float(label) * 0.5 + 3)
            expected = (store.row("X/data", row).astype("float64") - 3) / 0.5
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_batches_of_empty_rows(tmp_path, device):
    """A batch of them has no byte; so may all that there are."""
    offsets = np.array([0, 0, 0, 0, 0, 0, 5, 5, 5])
    write_array(tmp_path, "data", np.arange(5.0), layout=Layout((2,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((4,)))
    write_array(tmp_path, "none", np.zeros(9, "int64"), layout=Layout((4,)))
    pipe = build(device, 2, path=tmp_path, arrays=["data"], ragged="indptr")
    lengths = [len(row) for (rows,) in samples(pipe, 4) for row in rows]
    assert lengths == [0, 0, 0, 0, 0, 5, 0, 0]
    pipe = build(device, 2, path=tmp_path, arrays=["data"], ragged="none")
    assert all(row.shape == (0,) for (rows,) in samples(pipe, 6) for row in rows)


def test_stores_are_joined(tmp_path, device):
    """Each has rows of its own."""
    stores = [write(tmp_path / f"{i}", np.random.default_rng(i), 20 + i) for i in range(3)]
    first = [0, 20, 41]
    pipe = build(device, 9, path=[s.path for s in stores], arrays=ARRAYS, ragged="X/indptr", return_index=True, random_shuffle=True)
    seen = set()
    for batch in samples(pipe, 7):
        for row, *found in zip((int(i[0]) for i in batch[-1]), *batch, strict=True):
            at = int(np.searchsorted(first, row, "right")) - 1
            seen.add(row)
            for name, value in zip(ARRAYS, found, strict=False):
                same(value, np.asarray(stores[at].row(name, row - first[at])), f"{name}, row {row}")
    assert seen == set(range(63))


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True}], ids=["in-order", "shuffled"])
def test_a_table_of_rows(tmp_path, store, device, order):
    """Rows may be in it several times: each has memory in a batch."""
    longest = int(np.argmax(np.diff(store.offsets)))
    rows = np.array([longest] * 5 + [7, 99, 0, 7])
    np.save(tmp_path / "rows.npy", rows[:, None])
    seen = check(store, device, 5, 9, starts=str(tmp_path / "rows.npy"), **order)
    assert sorted(seen) == sorted(rows.tolist() * 5)
    np.save(tmp_path / "beyond.npy", np.array([[5], [100]]))
    with pytest.raises(ValueError, match="starts: expected rows from 0 to before 100, but found 100"):
        check(store, device, 5, 1, starts=str(tmp_path / "beyond.npy"), out_of_bounds_policy="pad")


def test_rows_by_weights(tmp_path, store, device):
    """A batch may hold the longest row as often as it has samples."""
    weights = np.zeros(100)
    longest = int(np.argmax(np.diff(store.offsets)))
    weights[longest] = 1
    np.save(tmp_path / "weights.npy", weights)
    assert check(store, device, 16, 3, weights=str(tmp_path / "weights.npy")) == [longest] * 48


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 7, "initial_fill": 20}], ids=["in-order", "shuffled"])
def test_checkpoints_continue(store, device, order):
    """With the same shards exactly, and with others every row of the epoch once."""
    args = {"path": store.path, "arrays": ["X/data", "obs/label"], "ragged": "X/indptr", "pad_last_batch": True, **order}

    def rows(pipe, count):
        return [(int(label), data.tobytes()) for batch in samples(pipe, count) for data, label in zip(*batch, strict=True)]

    straight = rows(build(device, 8, **args), 12)
    pipe = build(device, 8, checkpointing=True, **args)
    begun = rows(pipe, 5)
    checkpoint = pipe.checkpoint()
    again = build(device, 8, checkpointing=True, checkpoint=checkpoint, **args)
    assert begun + rows(again, 7) == straight
    rest: list[int] = []
    for shard in range(3):
        one = build(device, 4, checkpointing=True, checkpoint=checkpoint, num_shards=3, shard_id=shard, **args)
        rest += [label for label, _ in rows(one, 5)]
    assert {label for label, _ in begun} | set(rest) == set(range(100))
    assert len(set(rest)) == 60


@pytest.mark.parametrize("change", ["offsets", "max_length", "dense"])
def test_checkpoints_of_other_rows_are_refused(tmp_path, store, change):
    path = tmp_path / "a.zarr"
    shutil.copytree(store.path, path)
    args = {"path": path, "arrays": ["X/data"], "ragged": "X/indptr"}
    pipe = build(checkpointing=True, **args)
    pipe.run()
    checkpoint = pipe.checkpoint()
    build(checkpointing=True, checkpoint=checkpoint, **args).run()
    if change == "offsets":
        moved = store.offsets.copy()
        at = int(np.argmax(np.diff(moved) > 1))
        moved[at + 1] -= 1
        zarr.open_array(path / "X/indptr", mode="r+")[:] = moved
    elif change == "max_length":
        args["max_length"] = 3
    else:
        del args["ragged"]
    with pytest.raises(Exception, match="rows|samples"):
        build(checkpointing=True, checkpoint=checkpoint, **args).run()
