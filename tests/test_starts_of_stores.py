"""Tables of starts whose first column names one of several stores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.pipelines import build, same, stats_of, to_numpy
from support.starts import read
from support.stores import Layout, write_array

SHAPES = [(20, 9), (7, 30), (40, 8)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of other shapes and chunks, and what is in them."""
    base = tmp_path_factory.mktemp("stores")
    values = [np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + 10_000 * i for i, shape in enumerate(SHAPES)]
    chunks = [(4, 4), (7, 10), (9, 3)]
    for i, value in enumerate(values):
        write_array(base / f"{i}.zarr", "a", value, codec="zstd", layout=Layout(chunks[i]), dims=("y", "x"))
    return [base / f"{i}.zarr" for i in range(3)], values


def one_by_one(stores, table, *, batch_size=5, device="cpu", **args):
    """A reader of crops of 3 x 2, by rows (store, y, x)."""
    given = {
        "path": stores[0], "arrays": ["a"], "concat": "samples", "dims": ["y", "x"], "window": [3, 2], "starts": table,
        "return_index": True,
    }
    return build(device, batch_size, **given | args)


def rows_of_stores(rng, rows, outside=0):
    store = rng.integers(0, len(SHAPES), rows)
    low = [[-outside, -outside]] * rows
    high = [(SHAPES[s][0] - 2 + outside, SHAPES[s][1] - 1 + outside) for s in store]
    return np.concatenate([store[:, None], rng.integers(low, high)], axis=1)


def crop(stores, row, fill=-7):
    store, y, x = (int(n) for n in row)
    padded = np.pad(stores[1][store], 8, constant_values=fill)
    return padded[y + 8 : y + 11, x + 8 : x + 10]


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True}, {"random_shuffle": True, "initial_fill": 9}])
def test_rows_name_stores_that_come_one_after_the_other(stores, device, order):
    table = rows_of_stores(np.random.default_rng(8), 47)
    values, index = read(one_by_one(stores, table, device=device, **order), 94, 5)
    for value, row in zip(values, index, strict=True):
        same(value, crop(stores, row), f"the sample {row}")
    for epoch in (index[:47], index[47:]):
        assert sorted(map(tuple, epoch)) == sorted(map(tuple, table)), "each row once"
        assert order or (epoch == table).all(), "the order of the table"


def test_rows_of_stores_that_are_out_of_bounds(stores):
    table = rows_of_stores(np.random.default_rng(9), 80, outside=3)
    fits = [0 <= y <= SHAPES[s][0] - 3 and 0 <= x <= SHAPES[s][1] - 2 for s, y, x in table]
    _, index = read(one_by_one(stores, table), sum(fits), 5)
    assert (index == table[fits]).all()
    values, index = read(one_by_one(stores, table, out_of_bounds_policy="pad", fill_value=-7), 80, 5)
    assert (index == table).all()
    for value, row in zip(values, index, strict=True):
        same(value, crop(stores, row), f"the padded sample {row}")
    with pytest.raises(ValueError, match=rf"starts: row {fits.index(False)} starts at "):
        one_by_one(stores, table, out_of_bounds_policy="error")
    for store in (3, -1):
        with pytest.raises(IndexError, match=rf"starts: row 2 is of store {store}, but the stores are numbered from 0 to 2"):
            one_by_one(stores, np.array([[0, 0, 0], [2, 0, 0], [store, 0, 0]]))
    with pytest.raises(ValueError, match="the number of the store .* and each of dims \\(y, x\\), but the table has 2 columns"):
        one_by_one(stores, table[:, 1:])


def test_samples_of_stores_are_named_and_loaded(stores):
    """By the loader, in `source_info` and by explain."""
    import dali_zarr
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    table = np.array([[2, 5, 1], [0, 3, 2], [1, 0, 7]])
    args = {
        "path": [str(path) for path in stores[0]], "arrays": ["a"], "concat": "samples", "dims": ["y", "x"], "window": [3, 2],
        "starts": table,
    }
    pipe = Pipeline(batch_size=3, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(fn.get_property(fn.zarr_reader(**args), key="source_info"))
    pipe.build()
    (names,) = pipe.run()
    found = [bytes(np.array(names.at(i))).decode() for i in range(3)]
    assert found == [f"{stores[0][s]} y={y} x={x}" for s, y, x in table]
    told = dali_zarr.explain(**args)
    assert told["samples"] == 3 and "3 starts from a table" in str(told)
    pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    (batch,) = Loader(batch_size=3, device="cpu", **args)
    assert (batch.index.numpy() == table).all()
    for value, row in zip(batch["a"].numpy(), table, strict=True):
        same(value, crop(stores, row), f"the sample {row}")


def test_a_table_need_not_name_all_stores(stores):
    table = np.array([[2, 5, 1], [2, 37, 6], [0, 0, 0]])
    pipe = one_by_one(stores, table, batch_size=3)
    assert pipe.reader_meta("reader")["epoch_size"] == 3
    values, index = read(pipe, 3, 3)
    assert (index == table).all() and (values[1] == crop(stores, table[1])).all()
    # A single store has its number too.
    single = one_by_one((stores[0][1], None), [[0, 2, 3], [0, 4, 28]], batch_size=2)
    values, _ = read(single, 2, 2)
    same(values[1], stores[1][1][4:7, 28:30], "of the only store")


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "initial_fill": 8}, {"weights": np.arange(1.0, 49)}])
def test_rows_of_stores_are_divided_and_resumed(stores, order):
    table = rows_of_stores(np.random.default_rng(2), 48)
    _, whole = read(one_by_one(stores, table, batch_size=4, **order), 48, 4)
    args = {"checkpointing": True, "batch_size": 2} | order
    seen: list[tuple[int, ...]] = []
    pipes = [one_by_one(stores, table, shard_id=i, num_shards=2, **args) for i in range(2)]
    for pipe, _ in itertools.product(pipes, range(3)):
        seen.extend(map(tuple, to_numpy(pipe.run()[1])))
    checkpoint = pipes[0].checkpoint()
    for shard in range(3):
        pipe = one_by_one(stores, table, shard_id=shard, num_shards=3, checkpoint=checkpoint, **args)
        _, index = read(pipe, 12, 2)
        seen.extend(map(tuple, index))
    assert sorted(seen) == sorted(map(tuple, whole))
    other = table.copy()
    other[3] = [2, 1, 1]
    with pytest.raises(Exception, match="the checkpoint was made by a reader of other samples"):
        one_by_one(stores, other, num_shards=2, checkpoint=checkpoint, **args)


def test_rows_of_stores_that_share_chunks_are_read_together(stores):

    rng = np.random.default_rng(5)
    every = [(s, y, x) for s, (h, w) in enumerate(SHAPES) for y in range(h - 2) for x in range(w - 1)]
    table = rng.permutation(np.array(every * 3))
    args = {"arrays": ["a"], "concat": "samples", "dims": ["y", "x"], "window": [1, 1], "starts": table, "prefetch_queue_depth": 2}
    args |= {"path": stores[0], "random_shuffle": True, "initial_fill": 96, "host_memory_limit": 1 << 18}
    told = stats_of(len(table) // 8, "cpu", 8, **args)
    chunks = 5 * 3 + 1 * 3 + 5 * 3
    assert told["chunks_read"] <= 2 * chunks, told
