"""Tables of starts: which samples there are, and in which order they come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import zarr
from support.pipelines import build, same, stats_of, to_numpy
from support.starts import expected, random_table, read, reader, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("starts"))


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


def test_rows_that_share_chunks_are_read_together(path):
    table = np.random.default_rng(5).permutation(np.repeat(np.arange(56), 12))
    args = {"path": path, "arrays": ["a"], "dims": ["t"], "starts": table, "host_memory_limit": 1 << 20, "prefetch_queue_depth": 2}
    grouped = stats_of(672 // 8, "cpu", 8, random_shuffle=True, initial_fill=96, **args)
    # 8 chunks along t, of 15 each: each is read about once in an epoch.
    assert grouped["chunks_read"] <= 3 * 9 * 15, grouped


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
