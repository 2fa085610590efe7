"""Tables of starts and weights: which samples there are, in which order they come, and how often."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import re
import struct

import numpy as np
import pytest
import zarr
from support import processes
from support.pipelines import build, same, to_numpy
from support.stores import Layout, write_array

SHAPE = (60, 21, 14)
DIMS = ("t", "y", "x")
VALUES = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    base = tmp_path_factory.mktemp("starts")
    write_array(base, "a", VALUES, codec="zstd", layout=Layout((7, 5, 6)), dims=DIMS)
    return base


def random_table(rng, rows, dims, window, outside=0):
    """Starts at which windows fit, or that lie up to ``outside`` beyond."""
    return np.stack([rng.integers(-outside, SHAPE[d] - max(w, 1) + 1 + outside, rows) for d, w in zip(dims, window)], 1)


def expected(start, dims, window, fill=-7):
    """The sample of a row, as NumPy has it; None if it reaches out of the array and there is no ``fill``."""
    lengths = [max(w, 1) for w in window]
    if any(s < 0 or s + n > SHAPE[d] for s, n, d in zip(start, lengths, dims)) and fill is None:
        return None
    reach = 64
    padded = np.pad(VALUES, [(reach, reach) if d in dims else (0, 0) for d in range(3)], constant_values=fill or 0)
    index = [slice(None)] * 3
    for s, n, d, w in zip(start, lengths, dims, window):
        index[d] = slice(s + reach, s + reach + n) if w else s + reach
    return padded[tuple(index)]


def read(pipe, samples, batch_size):
    """Samples and their starts, as many batches as they fill."""
    batches = [[to_numpy(out) for out in pipe.run()] for _ in range(-(-samples // batch_size))]
    return [np.concatenate([batch[i] for batch in batches])[:samples] for i in (0, 1)]


def reader(path, table, dims, window, *, batch_size=5, device="cpu", **args):
    names = [DIMS[d] for d in dims]
    return build(
        device, batch_size, path=path, arrays=["a"], dims=names, window=list(window), starts=table, return_index=True, **args,
    )


CUTS = [((0,), (0,)), ((0,), (3,)), ((1,), (4,)), ((0, 2), (2, 5)), ((2, 0), (0, 4)), ((0, 1, 2), (3, 4, 5))]


@pytest.mark.parametrize(("dims", "window"), CUTS)
@pytest.mark.parametrize("order", [{}, {"random_shuffle": True}, {"random_shuffle": True, "initial_fill": 9}])
def test_rows_are_samples(path, device, dims, window, order):
    rng = np.random.default_rng(sum(dims) + len(order))
    table = random_table(rng, 41, dims, window)
    starts, epochs = [], 3
    pipe = reader(path, table, dims, window, device=device, **order)
    values, index = read(pipe, 41 * epochs, 5)
    for value, start in zip(values, index, strict=True):
        same(value, expected(start, dims, window), f"the sample at {start}")
    for epoch in range(epochs):
        starts.append(index[epoch * 41 : (epoch + 1) * 41])
        if order:
            assert sorted(map(tuple, starts[-1])) == sorted(map(tuple, table)), "each row once"
        else:
            assert (starts[-1] == table).all(), "the order of the table"
    if order:
        assert (starts[0] != table).any() and (starts[0] != starts[1]).any()


@pytest.mark.parametrize("source", ["array", "torch", "npy", "npy of version 2", "big-endian npy", "zarr", "in path", "uint16"])
def test_sources(path, tmp_path, monkeypatch, source):
    table = random_table(np.random.default_rng(3), 30, (0, 1), (2, 3))
    given: object = table
    match source:
        case "torch":
            given = pytest.importorskip("torch").from_numpy(table)
        case "npy":
            np.save(tmp_path / "rows.npy", table)
            given = tmp_path / "rows.npy"
        case "npy of version 2":
            with open(tmp_path / "rows.npy", "wb") as file:
                np.lib.format.write_array(file, table, version=(2, 0))
            given = str(tmp_path / "rows.npy")
        case "big-endian npy":
            np.save(tmp_path / "rows.npy", table.astype(">i8"))
            given = tmp_path / "rows.npy"
        case "zarr":
            zarr.create_array(str(tmp_path / "rows.zarr"), data=table, chunks=(7, 1))
            monkeypatch.chdir(tmp_path)
            given = "./rows.zarr"
        case "in path":
            zarr.create_array(str(path / "index" / "rows"), data=table.astype("int32"), chunks=(8, 2), overwrite=True)
            given = "index/rows"
        case "uint16":
            given = table.astype("uint16")[::-1][::-1]
    _, index = read(reader(path, given, (0, 1), (2, 3)), 30, 5)
    assert (index == table).all()


def test_one_column_needs_no_second_dimension(path, tmp_path):
    rows = np.array([5, 50, 0, 7, 7])
    np.save(tmp_path / "rows.npy", rows)
    for given in (rows, memoryview(rows), tmp_path / "rows.npy"):
        _, index = read(reader(path, given, (0,), (0,)), 5, 5)
        assert (index[:, 0] == rows).all()


@pytest.mark.parametrize(("dims", "window"), CUTS)
def test_rows_out_of_bounds(path, dims, window):
    rng = np.random.default_rng(9)
    table = random_table(rng, 60, dims, window, outside=4)
    fits = np.array([expected(row, dims, window, None) is not None for row in table])
    assert fits.any() and not fits.all()
    values, index = read(reader(path, table, dims, window), int(fits.sum()), 5)
    assert (index == table[fits]).all()
    for value, start in zip(values, index, strict=True):
        same(value, expected(start, dims, window), f"the sample at {start}")
    values, index = read(reader(path, table, dims, window, out_of_bounds_policy="pad", fill_value=-7), 60, 5)
    assert (index == table).all()
    for value, start in zip(values, index, strict=True):
        same(value, expected(start, dims, window), f"the padded sample at {start}")
    first = int(np.argmin(fits))
    with pytest.raises(ValueError, match=rf"starts: row {first} starts at "):
        reader(path, table, dims, window, out_of_bounds_policy="error")


def test_regions_breaks_and_offsets_hold(path):
    table = np.arange(60)
    args = {"breaks": [25], "offsets": [-1, 2], "roi_start": [4], "roi_end": [50]}
    fits = [s for s in range(60) if 4 <= s - 1 and s + 3 < 50 and not (s - 1 < 25 <= s + 3)]
    pipe = build(path=path, arrays=["a"], dims=["t"], window=[2], starts=table, return_index=True, batch_size=4, **args)
    index = np.concatenate([to_numpy(pipe.run()[-1]) for _ in range(len(fits) // 4)])
    # The segment, and the start.
    assert index.tolist() == [[int(s >= 25), s] for s in fits[: len(index)]]


@pytest.mark.parametrize("stick", [False, True])
def test_shards_divide_the_rows(path, stick):
    table = random_table(np.random.default_rng(1), 50, (0, 2), (2, 3))
    for order in ({}, {"random_shuffle": True, "initial_fill": 8}):
        seen: list[tuple[int, ...]] = []
        for shard in range(3):
            count = 50 * (shard + 1) // 3 - 50 * shard // 3
            args = {"shard_id": shard, "num_shards": 3, "stick_to_shard": stick} | order
            _, index = read(reader(path, table, (0, 2), (2, 3), batch_size=4, **args), count, 4)
            seen.extend(map(tuple, index))
        assert sorted(seen) == sorted(map(tuple, table))


ORDERS = {
    "in order": {}, "shuffled": {"random_shuffle": True}, "by chunks": {"random_shuffle": True, "initial_fill": 8},
    "weighted": {"weights": np.arange(1.0, 49), "num_samples": 40},
    "weighted, once each": {"weights": np.arange(1.0, 49), "num_samples": 40, "replacement": False},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
def test_checkpoints_go_on_with_other_shards(path, order, before, after):
    table = random_table(np.random.default_rng(2), 48, (0, 1), (2, 3))
    args = ORDERS[order] | {"checkpointing": True, "batch_size": 2}
    samples = args.get("num_samples", 48)
    _, whole = read(reader(path, table, (0, 1), (2, 3), **args | {"batch_size": 4}), samples, 4)
    seen: list[tuple[int, ...]] = []
    pipes = [reader(path, table, (0, 1), (2, 3), shard_id=i, num_shards=before, **args) for i in range(before)]
    for pipe, _ in itertools.product(pipes, range(3)):
        seen.extend(map(tuple, to_numpy(pipe.run()[1])))
    checkpoint = pipes[0].checkpoint()
    rest = samples - len(seen)
    for shard in range(after):
        pipe = reader(path, table, (0, 1), (2, 3), shard_id=shard, num_shards=after, checkpoint=checkpoint, **args)
        _, index = read(pipe, rest * (shard + 1) // after - rest * shard // after, 2)
        seen.extend(map(tuple, index))
    assert sorted(seen) == sorted(map(tuple, whole))


def test_checkpoints_of_other_tables_are_refused(path):
    table = random_table(np.random.default_rng(2), 48, (0,), (2,))
    weights = np.ones(48)
    for order in ({"random_shuffle": True}, {"weights": weights}):
        pipe = reader(path, table, (0,), (2,), checkpointing=True, **order)
        pipe.run()
        checkpoint = pipe.checkpoint()
        other = table.copy()
        other[17] = (other[17] + 1) % 50
        changes = [{"table": other}]
        if "weights" in order:
            changes += [{"weights": weights * 2}, {"num_samples": 48, "replacement": False}]
        for change in changes:
            given = change.pop("table", table)
            with pytest.raises(Exception, match="the checkpoint was made by a reader of other samples"):
                reader(path, given, (0,), (2,), checkpointing=True, checkpoint=checkpoint, **order | change)
        reader(path, table.copy(), (0,), (2,), checkpointing=True, checkpoint=checkpoint, **order).run()


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
    from support.pipelines import stats_of

    rng = np.random.default_rng(5)
    every = [(s, y, x) for s, (h, w) in enumerate(SHAPES) for y in range(h - 2) for x in range(w - 1)]
    table = rng.permutation(np.array(every * 3))
    args = {"arrays": ["a"], "concat": "samples", "dims": ["y", "x"], "window": [1, 1], "starts": table, "prefetch_queue_depth": 2}
    args |= {"path": stores[0], "random_shuffle": True, "initial_fill": 96, "host_memory_limit": 1 << 18}
    told = stats_of(len(table) // 8, "cpu", 8, **args)
    chunks = 5 * 3 + 1 * 3 + 5 * 3
    assert told["chunks_read"] <= 2 * chunks, told


WRONG = {
    "step": ({"step": [2]}, "starts, step: "), "random_crop": ({"random_crop": ["t"]}, "starts, random_crop: "),
    "two columns": ({"starts": np.zeros((4, 2), int)}, "a column for each of dims \\(t\\), but the table has 2"),
    "no row": ({"starts": np.zeros((0, 1), int)}, "at least one row"),
    "all out": ({"starts": np.array([70, -80])}, "all 2 rows reach beyond"),
    "far out": ({"starts": np.array([3, 1 << 60]), "out_of_bounds_policy": "pad"}, "row 1 starts at 1152921504606846976"),
    "least": ({"starts": np.array([-(1 << 63)]), "out_of_bounds_policy": "error"}, "row 0 starts at -9223372036854775808"),
    "floats": ({"starts": np.zeros(4)}, "an array of whole numbers"), "bools": ({"starts": np.zeros(4, bool)}, "whole numbers"),
    "uint64": ({"starts": np.zeros(4, "uint64")}, "whole numbers that int64 can hold"),
    "three dimensions": ({"starts": np.zeros((4, 1, 1), int)}, "of the shape \\(4, 1, 1\\)"),
    "no file": ({"starts": "nowhere.npy"}, "nowhere.npy"), "no array": ({"starts": "./nowhere.zarr"}, "nowhere.zarr"),
    "remote npy": ({"starts": "s3://bucket/rows.npy"}, "a .npy file on a local disk"),
    "gone": ({"starts": "table:1:1"}, "isn't in this process's memory"),
    "segments": ({"breaks": [6], "segments": [0]}, "starts, segments: starts says where"),
    "pads": ({"pad_before": [1], "out_of_bounds_policy": "edge"}, "starts, pad_before: starts says where"),
    "negative": ({"weights": [1.0, 2.0, -3.0, -4.0]}, "sample 2 is -3"), "nan": ({"weights": [1, np.nan, 1, 1]}, "sample 1 is NaN"),
    "zeros": ({"weights": [0, 0, 0, 0]}, "all 4 are 0"), "few": ({"weights": [1, 1]}, "each of the 4 samples, but found 2"),
    "too many": ({"weights": [1, 0, 1, 1], "replacement": False}, "only 3 have a positive weight"),
    "shuffled": ({"weights": [1, 1, 1, 1], "random_shuffle": True}, "contradict each other"),
    "num_samples": ({"num_samples": 3}, "num_samples: expected weights too"),
    "replacement": ({"replacement": False}, "replacement: expected weights too"),
    "no samples": ({"weights": [1, 1, 1, 1], "num_samples": 0}, "num_samples: expected a whole number of at least 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_contradictions_are_errors(path, case):
    args, message = WRONG[case]
    given = {"starts": np.array([1, 5, 9, 2])} | args
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        build(path=path, arrays=["a"], dims=["t"], window=[2], **given)


def damaged(table):
    """Files that aren't tables, and what is said of them."""
    good, whole = b"\x93NUMPY\x01\x00", table.tobytes()
    header = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n"

    def made(descr="<i8", fortran=False, shape="(30, 2)", data=whole):
        text = (header % (descr, fortran, shape)).encode()
        return good + struct.pack("<H", len(text)) + text + data

    yield b"", "ends after 0 bytes"
    yield b"PK\x03\x04" + bytes(300), "it begins with"
    yield made()[:100], "expected"
    yield made(data=table.tobytes()[:-1]), "was not written completely"
    yield made(data=table.tobytes() + b"x"), "was not written completely"
    yield made(descr="<i4"), "expected int64"
    yield made(descr="<f8"), "expected int64"
    yield made(descr="|O"), "expected int64"
    yield made(shape="(9223372036854775807, 2)"), "more than can be addressed"
    yield made(shape="(1000000000000, 2)"), "was not written completely"
    yield made(shape="(30, 2, 1)"), "one or two dimensions"
    yield made(shape="(30, -2)"), "damaged"
    yield good + struct.pack("<H", 60000) + b"{" * 100, "ends after"
    yield b"\x93NUMPY\x07\x00" + bytes(100), "version 1, 2 or 3"


def test_files_in_fortran_order(path, tmp_path):
    table = random_table(np.random.default_rng(5), 30, (0, 1), (2, 3))
    found = []
    for rows in (table, np.asfortranarray(table), np.asfortranarray(table).astype(">i8")):
        np.save(tmp_path / "rows.npy", rows)
        found.append(read(reader(path, tmp_path / "rows.npy", (0, 1), (2, 3)), 30, 5)[1].tolist())
    assert found[0] == found[1] == found[2] == table.tolist()


def test_damaged_files_are_errors(path, tmp_path):
    table = random_table(np.random.default_rng(3), 30, (0, 1), (2, 3))
    for bytes_, message in damaged(table):
        (tmp_path / "rows.npy").write_bytes(bytes_)
        with pytest.raises((ValueError, TypeError), match=f"starts: .*rows.npy: .*{message}"):
            reader(path, tmp_path / "rows.npy", (0, 1), (2, 3))
    with pytest.raises(ValueError, match="expected a file"):
        (tmp_path / "folder.npy").mkdir()
        reader(path, tmp_path / "folder.npy", (0, 1), (2, 3))


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_those_of_the_samples(path, device, replacement):
    weights = np.array([0, 1, 0.5, 0, 3, 2, 0, 8.0])
    pipe = build(
        device, 5, path=path, arrays=["a"], dims=["t"], window=[7], roi_end=[56], weights=weights, num_samples=5,
        replacement=replacement, return_index=True, seed=3,
    )
    assert pipe.reader_meta("reader")["epoch_size"] == 5
    counts: collections.Counter[int] = collections.Counter()
    for _ in range(600):
        values, index = map(to_numpy, pipe.run())
        same(values[0], VALUES[index[0, 0] : index[0, 0] + 7], "a sample")
        drawn = index[:, 0] // 7
        assert replacement or len(set(drawn)) == 5
        counts.update(drawn.tolist())
    if replacement:
        deviation = sum((counts[i] - 3000 * w) ** 2 / (3000 * w) for i, w in enumerate(weights / weights.sum()) if w)
        # Chi-squared with 4 degrees of freedom.
        assert deviation < 4 + 5 * 8**0.5
    assert set(counts) == set(np.flatnonzero(weights).tolist())


@pytest.mark.parametrize("replacement", [True, False])
def test_each_draw_has_a_crop_of_its_own(path, device, replacement):
    """By the seed, the epoch and the position alone: whatever the shards are, and after a checkpoint."""
    weights = np.arange(60) % 3 if not replacement else np.where(np.arange(60) == 7, 1.0, 0.0)
    count = 36
    args = {
        "path": path, "arrays": ["a"], "dims": ["t", "y", "x"], "window": [0, 5, 4], "random_crop": ["y", "x"], "weights": weights,
        "num_samples": count, "replacement": replacement, "return_index": True, "seed": 2,
    }
    values, index = read(build(device, 6, **args), 40 * count, 6)
    for value, (t, y, x) in zip(values, index, strict=True):
        same(value, VALUES[t, y : y + 5, x : x + 4], f"the crop at {t, y, x}")
    if replacement:
        assert (index[:, 0] == 7).all()
        places = [len(set(map(tuple, epoch))) for epoch in index.reshape(40, count, 3)]
        assert min(places) > 20, "17 x 11 places, and 36 draws of one sample"
        times = np.bincount(index[:, 1] * 11 + index[:, 2], minlength=187)
        mean = len(index) / 187
        assert abs(((times - mean) ** 2 / mean).sum() - 186) < 5 * (2 * 186) ** 0.5, "chi-squared"
    of_shards = [read(build(device, 6, shard_id=s, num_shards=3, stick_to_shard=True, **args), 24, 6)[1] for s in range(3)]
    for epoch in range(2):
        together = np.concatenate([found[epoch * 12 : (epoch + 1) * 12] for found in of_shards])
        np.testing.assert_array_equal(together, index[epoch * count : (epoch + 1) * count])
    pipe = build(device, 6, checkpointing=True, **args)
    for _ in range(8):
        pipe.run()
    again = build(device, 6, checkpointing=True, checkpoint=pipe.checkpoint(), **args)
    np.testing.assert_array_equal(read(again, count, 6)[1], index[48 : 48 + count])


def test_rows_that_share_chunks_are_read_together(path):
    from support.pipelines import stats_of

    table = np.random.default_rng(5).permutation(np.repeat(np.arange(56), 12))
    args = {"path": path, "arrays": ["a"], "dims": ["t"], "starts": table, "host_memory_limit": 1 << 20, "prefetch_queue_depth": 2}
    grouped = stats_of(672 // 8, "cpu", 8, random_shuffle=True, initial_fill=96, **args)
    # 8 chunks along t, of 15 each: each is read about once in an epoch.
    assert grouped["chunks_read"] <= 3 * 9 * 15, grouped


def kept_tables() -> int:
    """Whether the next name is known tells nothing, so the memory that tables take is looked at."""
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_tables_are_given_back_with_their_pipelines(path):
    table = np.zeros((1 << 21, 1), np.int64)
    pipe = reader(path, table, (0,), (0,))
    # The definition is over, and nothing but the pipeline holds the table.
    gc.collect()
    pipe.run()
    del pipe
    gc.collect()
    before = kept_tables()
    for _ in range(8):
        reader(path, table, (0,), (0,)).run()
        gc.collect()
    assert kept_tables() - before < 4 * table.nbytes, "of eight tables of 16 MiB, half would be 64 MiB"


def test_names_are_released(path):
    import dali_zarr
    from dali_zarr._arguments import tables

    name = tables.named("starts", np.array([3, 1]))
    again = tables.named("starts", name)
    assert again is name and re.fullmatch(rf"table:{os.getpid()}:\d+", name)
    text = str(name)
    spec = {"path": str(path), "arrays": ["a"], "dims": ["t"], "starts": name}
    assert dali_zarr.explain(**spec)["samples"] == 2
    del name, again, spec
    gc.collect()
    with pytest.raises(ValueError, match="isn't in this process's memory"):
        dali_zarr.explain(path=str(path), arrays=["a"], dims=["t"], starts=text)


def test_a_pipeline_in_another_process_says_that_its_table_is_gone(path, tmp_path):
    pipe = reader(path, np.array([3, 1]), (0,), (0,))
    (tmp_path / "pipe").write_bytes(pipe.serialize())
    code = (
        "import sys, dali_zarr\nfrom nvidia.dali.pipeline import Pipeline\n"
        "pipe = Pipeline.deserialize(open(sys.argv[1], 'rb').read())\npipe.build()\n"
    )
    process = processes.start(code, tmp_path / "pipe")
    _, err = process.communicate(60)
    assert process.returncode and "save it as .npy and give its path" in err


def test_tables_count_against_the_limit(path):
    table = np.zeros((1 << 19, 1), np.int64)
    args = {"random_shuffle": True, "initial_fill": 64}
    with pytest.raises(ValueError, match="host_memory_limit: expected at least .* bytes of tables of starts and weights"):
        reader(path, table, (0,), (0,), host_memory_limit=(4 << 20) + 9000)
    with pytest.raises(ValueError, match="host_memory_limit: "):
        reader(path, table, (0,), (0,), host_memory_limit=7 << 20, **args)
    reader(path, table, (0,), (0,), host_memory_limit=12 << 20, **args).run()


def test_a_long_table_opens_fast(path, tmp_path):
    """A hundredth of what it is made for."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", random_table(rng, 1_000_000, (0, 2), (2, 3)))
    pipe = reader(path, tmp_path / "rows.npy", (0, 2), (2, 3), random_shuffle=True)
    assert pipe.reader_meta("reader")["epoch_size"] == 1_000_000
    values, index = read(pipe, 5, 5)
    same(values[0], expected(index[0], (0, 2), (2, 3)), "the first sample")


def test_explain_and_loader(path):
    import dali_zarr

    table = np.array([[3], [50], [3], [7]])
    args = {"path": str(path), "arrays": ["a"], "dims": ["t"], "starts": table}
    told = dali_zarr.explain(**args)
    assert told["samples"] == 4 and "4 starts from a table" in str(told)
    told = dali_zarr.explain(weights=[1, 2, 3, 4], num_samples=7, **args)
    assert told["samples"] == 7 and "7 drawn by weights with replacement" in str(told)
    told = dali_zarr.explain(weights=[1, 2, 3, 4], num_samples=3, replacement=False, **args)
    assert "3 drawn by weights without replacement" in str(told)
    torch = pytest.importorskip("torch")
    from dali_zarr.torch import Loader

    loader = Loader(**args, batch_size=2, device="cpu", return_index=True)
    for _ in range(2):
        index = torch.cat([batch["index"] for batch in loader])
        assert (index.numpy() == table).all()
