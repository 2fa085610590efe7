"""Ragged rows: what is read for them, and with which memory."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
from support.pipelines import build, same
from support.ragged import ARRAYS, Store, random_offsets, samples, write
from support.stores import Layout, write_array

MIB = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return write(tmp_path_factory.mktemp("ragged") / "a.zarr", np.random.default_rng(0))


def rows_of(pipe, batches: int, values, offsets) -> list[int]:
    """The rows in so many batches, whose values are compared."""
    seen: list[int] = []
    for found, index in samples(pipe, batches):
        for value, (row,) in zip(found, index, strict=True):
            same(value, values[offsets[row] : offsets[row + 1]], f"row {row}")
        seen += [int(row) for (row,) in index]
    return seen


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
    assert sorted(rows_of(pipe, rows // 500, values, offsets)) == list(range(rows))
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
    read = {}
    for shuffled in (True, False):
        pipe = build("cpu", 100, random_shuffle=shuffled, initial_fill=900, **args)
        assert sorted(rows_of(pipe, 120, values, offsets)) == sorted(table.tolist())
        counters = dali_zarr.counters(pipe)["reader"]
        read[shuffled] = counters["chunks_read"] / max(counters["batches"] / 120, 1)
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
