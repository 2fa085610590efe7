"""Ragged rows: each sample is the elements from one offset of the store to the next, against NumPy."""

from __future__ import annotations

import json
import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import build, same
from support.ragged import ARRAYS, COLUMNS, DENSE, Store, random_offsets, samples, write
from support.stores import Layout, write_array

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


def check(store: Store, device: str, batch_size: int, count: int, arrays=ARRAYS, **args) -> list[int]:
    """Compares so many batches with NumPy; returns the rows that came, in their order."""
    by = {} if "ragged_ends" in args else {"ragged": "X/indptr"}
    pipe = build(device, batch_size, path=store.path, arrays=[*arrays, "obs/label"], **by, **args)
    seen: list[int] = []
    for batch in samples(pipe, count):
        rows = [int(row) for row in batch[-1]]
        for name, outputs in zip(arrays, batch, strict=False):
            for row, found in zip(rows, outputs, strict=True):
                same(found, np.asarray(store.row(name, row, args.get("max_length"))), f"{name}, row {row}")
        seen += rows
    return seen


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


# ---- what is read, and with which memory ----


def test_chunks_are_read_once_for_rows_nearby(tmp_path):
    """Shuffled among as many rows as some chunks hold, each chunk is read once or twice, however many of its rows there are."""
    rng = np.random.default_rng(0)
    offsets = random_offsets(rng, 4000, 20)
    write_array(tmp_path, "data", rng.standard_normal(offsets[-1]), layout=Layout((1000,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((512,)))
    chunks = -(-int(offsets[-1]) // 1000)
    pipe = build("cpu", 100, path=tmp_path, arrays=["data"], ragged="indptr", random_shuffle=True, initial_fill=800)
    for _ in range(40):
        pipe.run()
    counters = dali_zarr.counters(pipe)["reader"]
    # Some batches ahead are prepared too.
    epochs = counters["batches"] / 40
    assert counters["chunks_read"] <= 2 * chunks * max(epochs, 1) + 10, (counters["chunks_read"], chunks, epochs)


@pytest.mark.parametrize("table", [False, True])
def test_large_windows_join_chunks(tmp_path, table):
    """The last row of a chunk needs the next chunk too. With eight chunks in a block one chunk in eight is read for it once more;
    with a single one nearly each would be. The window is small beside the epoch, as it is of large stores."""
    rng = np.random.default_rng(0)
    offsets = random_offsets(rng, 40_000, 20)
    values = rng.standard_normal(offsets[-1]).astype("float32")
    write_array(tmp_path, "data", values, layout=Layout((100,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((4096,)))
    chunks, rows = -(-len(values) // 100), len(offsets) - 1
    starts = {"starts": rng.permutation(rows)} if table else {}
    pipe = build(
        "cpu", 500, path=tmp_path, arrays=["data"], ragged="indptr", random_shuffle=True, initial_fill=7000, return_index=True,
        prefetch_queue_depth=1, **starts,
    )
    seen: list[int] = []
    for found, index in samples(pipe, rows // 500):
        for value, (row,) in zip(found, index, strict=True):
            same(value, values[offsets[row] : offsets[row + 1]], f"row {row}")
        seen += [int(row) for (row,) in index]
    assert sorted(seen) == list(range(rows))
    counters = dali_zarr.counters(pipe)["reader"]
    # Chunks for some batches of the next epoch are read too.
    assert counters["chunks_read"] <= 1.2 * chunks * counters["batches"] / (rows / 500) + 0.2 * chunks


def test_chunks_are_read_once_for_the_rows_of_a_table(tmp_path):
    """Rows in any order, each three times: those of a chunk come together. In order, nearly every row reads its chunk."""
    rng = np.random.default_rng(0)
    offsets = random_offsets(rng, 4000, 20)
    values = rng.standard_normal(offsets[-1])
    write_array(tmp_path, "data", values, layout=Layout((1000,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((512,)))
    chunks = -(-int(offsets[-1]) // 1000)
    table = rng.permutation(np.repeat(np.arange(4000), 3))
    args = {
        "path": tmp_path, "arrays": ["data"], "ragged": "indptr", "starts": table, "return_index": True,
        "host_memory_limit": 400_000, "prefetch_queue_depth": 1, "io_threads": 1, "decode_threads": 1,
    }
    read, seen = {}, []
    for shuffled in (True, False):
        pipe = build("cpu", 100, random_shuffle=shuffled, initial_fill=900, **args)
        for found, index in samples(pipe, 120):
            for value, (row,) in zip(found, index, strict=True):
                same(value, values[offsets[row] : offsets[row + 1]], f"row {row}")
            seen += [int(row) for (row,) in index] if shuffled else []
        counters = dali_zarr.counters(pipe)["reader"]
        read[shuffled] = counters["chunks_read"] / max(counters["batches"] / 120, 1)
    assert sorted(seen) == sorted(table.tolist())
    # A row at the end of a chunk may need the next one too, three times.
    assert read[True] <= 4 * chunks + 10 and read[False] > 20 * chunks, (read, chunks)
    with pytest.raises(ValueError, match="host_memory_limit: .*a table of 12000 numbers .*larger by at least [0-9]+ bytes"):
        build("cpu", 1, random_shuffle=True, **args | {"host_memory_limit": 170_000})


def test_memory_is_bounded_by_the_longest_rows(store, device):
    """The smallest limit is enough for every batch, and a smaller one is refused with its number."""
    args = {"path": store.path, "arrays": ARRAYS, "ragged": "X/indptr", "random_shuffle": True}
    told = dali_zarr.explain(**args, batch_size=16, device=device)
    smallest = {f"{which}_memory_limit": told["memory"][f"smallest_{which}_memory_limit"] for which in ("host", "device")}
    smallest = {name: limit for name, limit in smallest.items() if limit is not None}
    limits = {name: limit for name, limit in smallest.items() if limit}
    pipe = build(device, 16, **{**args, **limits, "prefetch_queue_depth": 1})
    rows = [int(row) for batch in samples(pipe, 14) for row in batch[ARRAYS.index("obs/label")]]
    assert set(rows) == set(range(100))
    with pytest.raises(ValueError, match=f"host_memory_limit: expected at least {smallest['host_memory_limit']} bytes"):
        build(device, 16, **{**args, **limits, "host_memory_limit": smallest["host_memory_limit"] - 1})


def test_offsets_count_as_host_memory(tmp_path):
    offsets = np.arange(200_001)
    write_array(tmp_path, "data", np.arange(200_000, dtype="int8"), layout=Layout((5000,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((50_000,)))

    def smallest(**args) -> int:
        return dali_zarr.explain(path=tmp_path, arrays="data", **args)["memory"]["smallest_host_memory_limit"]

    assert smallest(ragged="indptr") - smallest() >= 8 * 200_001
    with pytest.raises(ValueError, match="200001 offsets, which take"):
        build(path=tmp_path, arrays="data", ragged="indptr", host_memory_limit=1 * MIB)


def test_a_hundred_thousand_short_rows_in_large_batches(tmp_path):
    rng = np.random.default_rng(2)
    offsets = random_offsets(rng, 100_000, 6)
    data = np.arange(offsets[-1])
    write_array(tmp_path, "data", data, layout=Layout((30_000,)))
    write_array(tmp_path, "indptr", offsets, layout=Layout((30_000,)))
    args = {"arrays": ["data"], "ragged": "indptr", "return_index": True, "random_shuffle": True, "initial_fill": 20_000}
    pipe = build("cpu", 4096, path=tmp_path, **args)
    rows = set()
    for _ in range(25):
        values, index = (out.as_cpu() if hasattr(out, "as_cpu") else out for out in pipe.run())
        found = np.asarray(values.as_reshaped_tensor([sum(shape[0] for shape in values.shape())]))
        numbers = np.asarray(index.as_tensor())[:, 0]
        same(found, np.concatenate([data[offsets[i] : offsets[i + 1]] for i in numbers]), "values")
        rows |= set(numbers.tolist())
    assert len(rows) == 100_000


# ---- checkpoints ----


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


# ---- what is refused ----


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


# ---- told ----


def test_explain(store):
    told = dali_zarr.explain(path=store.path, arrays=ARRAYS, ragged="X/indptr", batch_size=4, max_length=30)
    lengths = np.diff(store.offsets)
    expected = {"rows": 100, "elements": int(lengths.sum()), "longest": int(lengths.max()), "max_length": 30}
    assert expected.items() <= told["ragged"].items() and told["ragged"]["empty"] == int((lengths == 0).sum())
    ragged = {o["name"]: (o["ragged"], o["shape"]) for o in told["outputs"]}
    assert ragged["frames"] == (True, [30, 4, 5]) and ragged["obsm/pca"] == (False, [6])
    assert told["samples"] == 100 and f"{int(lengths.sum())} elements" in str(told)
    assert json.loads(dali_zarr.explain(path=store.path, arrays=DENSE, json=True))["ragged"] is None


# ---- loaders ----


def loader(store: Store, device: str = "cpu", arrays=ARRAYS, batch_size=16, **args):
    from dali_zarr.torch import Loader

    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    return Loader(store.path, arrays=arrays, ragged="X/indptr", batch_size=batch_size, device=device, **limits, **args)


@pytest.mark.parametrize("args", [{}, {"random_shuffle": True}, {"max_length": 6, "pad_last_batch": True}], ids=str)
@pytest.mark.parametrize("how", [None, "nested", "padded"])
def test_torch_loader(store, device, how, args):
    pytest.importorskip("torch")
    of = loader(store, device, collate=how, **args)
    seen = []
    for batch in of:
        rows = batch["obs/label"].tolist()
        assert batch.index[:, 0].tolist() == rows
        for name in ARRAYS:
            found = batch[name].cpu()
            for i, row in enumerate(rows):
                expected = np.asarray(store.row(name, row, args.get("max_length")))
                if name in DENSE:
                    same(found[i].numpy(), expected, name)
                elif how == "padded":
                    length = int(batch["lengths"][i])
                    same(found[i, :length].numpy(), expected, name)
                    assert not found[i, length:].any()
                else:
                    start, end = found.offsets()[i : i + 2].tolist()
                    same(found.values()[start:end].numpy(), expected, name)
        seen += rows
    assert sorted(set(seen)) == list(range(100)) and len(seen) == (112 if args.get("pad_last_batch") else 100)
    with pytest.raises(AttributeError, match="coords"):
        _ = batch.coords
    assert "X/data" in repr(batch)


def test_nested_tensors_share_their_shape(store):
    """So that PyTorch can combine them."""
    torch = pytest.importorskip("torch")
    batch = next(iter(loader(store)))
    product = batch["X/data"] * batch["X/indices"].to(torch.float32)
    same(product.values().numpy(), (batch["X/data"].values() * batch["X/indices"].values()).numpy(), "product")


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_csr(tmp_path, device):
    torch = pytest.importorskip("torch")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(4)
    matrix = sparse.random(50, COLUMNS, density=0.02, format="csr", random_state=rng, dtype="float32")
    for name in ("data", "indices", "indptr"):
        write_array(tmp_path, f"X/{name}", getattr(matrix, name), layout=Layout((37,)))
    write_array(tmp_path, "label", np.arange(50), layout=Layout((9,)))
    store = Store(tmp_path, matrix.indptr, {})
    args = {"arrays": ["X/data", "X/indices", "label"], "collate": "csr", "random_shuffle": True}
    with pytest.raises(ValueError, match="columns: expected the number"):
        loader(store, device, **args)
    attributes = zarr.open_group(tmp_path, mode="r+")["X"].attrs
    attributes.update({"encoding-type": "csr_matrix", "shape": [50, COLUMNS]})
    with pytest.raises(ValueError, match="'X/indices', which holds the columns"):
        loader(store, device, **args, mean={"X/indices": 1.0})
    for narrow in (0, 3):
        with pytest.raises(ValueError, match=f"expected indices from 0 to {narrow - 1}, the columns"):
            next(iter(loader(store, device, **args, columns=narrow)))
    # What changes values doesn't touch the columns, which neither of these types could hold.
    halved = {"dtype": "float16", "mean": [0.0, 0.0, 0.0], "stddev": 2.0}
    for batch in loader(store, device, **args, **halved):
        expected = matrix[(2 * batch["label"]).int().tolist()]
        same(batch["X"].cpu().values().numpy(), (expected.data / 2).astype("float16"), "values")
        same(batch["X"].cpu().col_indices().numpy().astype(expected.indices.dtype), expected.indices, "columns")
    for told in ({}, {"columns": COLUMNS + 1}):
        for batch in loader(store, device, **args, **told):
            found, expected = batch["X"].cpu(), matrix[batch["label"].tolist()]
            assert found.layout == torch.sparse_csr and found.shape == (len(batch["label"]), COLUMNS + bool(told))
            for mine, theirs in (("values", "data"), ("col_indices", "indices"), ("crow_indices", "indptr")):
                same(getattr(found, mine)().numpy(), getattr(expected, theirs).astype(getattr(found, mine)().numpy().dtype), mine)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"collate": "csr"}, "expected the arrays 'data' and 'indices'"),
        ({"collate": "dense"}, "expected 'nested', 'padded' or 'csr'"),
        ({"columns": 3}, "expected collate='csr'"),
    ],
    ids=str,
)
def test_collate_is_checked(store, args, words):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        loader(store, **args)


def test_collate_needs_ragged_outputs(store):
    torch = pytest.importorskip("dali_zarr.torch")
    with pytest.raises(ValueError, match="collate: expected ragged"):
        torch.Loader(store.path, arrays=["obs/label"], collate="padded", device="cpu")


def test_a_transform_may_change_ragged_outputs(store):
    pytest.importorskip("torch")
    from nvidia.dali import fn, types

    def halved(arrays):
        return {"half": fn.cast(arrays["X/data"], dtype=types.FLOAT16), "row": arrays["obs/label"]}

    for batch in loader(store, transform=halved, arrays=["X/data", "obs/label"]):
        for i, row in enumerate(batch["row"].tolist()):
            start, end = batch["half"].offsets()[i : i + 2].tolist()
            same(batch["half"].values()[start:end].numpy(), store.row("X/data", row).astype("float16"), f"row {row}")


def test_loader_states(store):
    pytest.importorskip("torch")

    def rows(of):
        return [batch["obs/label"].tolist() for batch in of]

    straight = loader(store, random_shuffle=True)
    expected = rows(straight)
    begun = loader(store, random_shuffle=True)
    iterator = iter(begun)
    found = [next(iterator)["obs/label"].tolist() for _ in range(3)]
    state = begun.state_dict()
    again = loader(store, random_shuffle=True)
    again.load_state_dict(state)
    assert found + rows(again) == expected


# Offsets with a store of their own, and segments of rows.


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


def test_splits_of_rows(tmp_path):
    """By slices, lists and bools: each part has its rows, in the order of the store, and no other."""
    offsets = np.array([0, 3, 3, 7, 8, 12, 20])
    write_array(tmp_path, "data", np.arange(20), layout=Layout((6,)))
    write_array(tmp_path, "indptr", offsets)
    told = {"path": tmp_path, "arrays": ["data"], "ragged": "indptr", "random_shuffle": True, "device": "cpu"}
    from dali_zarr.torch import Loader

    for train, validation, expected in (
        (slice(0, 4), slice(4, None), {"train": [0, 1, 2, 3], "validation": [4, 5]}),
        ([0, 2, 5], [1, 4], {"train": [0, 2, 5], "validation": [1, 4]}),
        (np.array([True, False] * 3), np.array([False, True] * 3), {"train": [0, 2, 4], "validation": [1, 3, 5]}),
    ):
        parts = dali_zarr.splits(**told, train=train, validation=validation)
        for name, rows in expected.items():
            loader = Loader(**parts[name], batch_size=2)
            found = {int(i): row.tolist() for batch in loader for i, row in zip(batch.index[:, 0], batch["data"].unbind())}
            assert found == {i: list(range(offsets[i], offsets[i + 1])) for i in rows}
        assert not parts["validation"]["random_shuffle"]
    with pytest.raises(ValueError, match="expected parts without common rows, but train and test share 2"):
        dali_zarr.splits(**told, train=slice(0, 4), test=slice(2, None))
    with pytest.raises(ValueError, match="splits: validation: expected at least one of the 6 rows"):
        dali_zarr.splits(**told, train=slice(0, 4), validation=slice(6, None))
    with pytest.raises(ValueError, match="splits: starts: expected the rows in train, validation and test"):
        dali_zarr.splits(**told, starts=[1], train=slice(0, 4))
    with pytest.raises(ValueError, match="splits: by: expected ragged or ragged_ends"):
        dali_zarr.splits(path=tmp_path, arrays=["data"], by="rows", train=slice(0, 4))
