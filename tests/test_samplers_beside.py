"""Loaders with a sampler beside what else loaders do: breaks, random windows, several stores, ragged rows, explain, chunks."""

from __future__ import annotations

import dali_zarr
import numpy as np
import pytest
from support.loaders import STEPS, flat, make, numbers, write
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("samplers"))


def test_a_batch_that_nobody_takes_may_fail(tmp_path, device):
    """It was drawn ahead in an iteration that was broken off."""
    write_array(tmp_path, "n", np.arange(20, dtype="int64"), layout=Layout((1,)), dims=("t",), codec="zstd")
    (tmp_path / "n" / "c" / "7").write_bytes(b"no zstd")
    orders = [[1, 7], [2, 3], [4, 7, 5], [6]]

    class Sampler:
        def __iter__(self):
            return iter(orders.pop(0))

    loader = make(tmp_path, device, sampler=Sampler(), batch_size=1, uneven="repeat")
    assert next(iter(loader))["n"].tolist() == [1]
    assert numbers(loader) == [[2], [3]]
    found = []
    with pytest.raises(RuntimeError, match="c/7"):
        found.extend(batch["n"].tolist() for batch in loader)
    assert found == [[4]]
    assert numbers(loader) == [[6]]


def test_a_second_iteration_ends_the_first(path):
    loader = make(path, sampler=range(STEPS), uneven="repeat")
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second)["n"].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="another iteration over this loader has begun"):
        next(first)
    assert flat(numbers(second)) == list(range(4, STEPS))


# What composes.


def test_with_random_windows(tmp_path):
    """Places of random windows depend on the seed, the epoch and the place in it, so they come again after a restore."""
    write_array(tmp_path, "a", np.arange(1000, dtype="int32").reshape(10, 100), layout=Layout((1, 100)), dims=("t", "x"))
    how = {"arrays": ["a"], "window": {"t": 0, "x": 5}, "random_crop": ["x"], "uneven": "repeat", "batch_size": 3}

    def starts(batches):
        return [batch.index[:, 1].tolist() for batch in batches]

    loader = make(tmp_path, sampler=[1] * 12, **how)
    epochs = [starts(loader), starts(loader)]
    assert epochs[0] != epochs[1] and len(set(flat(epochs[0]))) > 6
    other = make(tmp_path, sampler=[1] * 12, **how)
    begun = iter(other)
    next(begun)
    next(begun)
    third = make(tmp_path, sampler=[1] * 12, **how)
    third.load_state_dict(other.state_dict())
    assert starts(third) == epochs[0][2:] and starts(third) == epochs[1]
    with pytest.raises(ValueError, match="random_crop: starts along .* are drawn at random"):
        next(iter(make(tmp_path, sampler=[[1, 5]], **how)))


def test_with_several_stores_masks_and_statistics(tmp_path):
    data = [np.arange(n * 3, dtype="float32").reshape(n, 3) for n in (7, 5)]
    for i, values in enumerate(data):
        write_array(tmp_path / f"{i}", "a", values, layout=Layout((2, 3)), dims=("t", "x"))
    loader = make(
        [tmp_path / "0", tmp_path / "1"], arrays=["a"], window=4, step=1, out_of_bounds_policy="pad", fill_value=-1, mean=2,
        stddev=3, cross_stores=False, pad_before=2, return_mask=True, sampler=[9, 0, 4, 9], uneven="repeat", batch_size=2,
    )
    every = [
        np.stack([(values[t] - 2) / 3 if 0 <= t < len(values) else np.full(3, -1) for t in range(start, start + 4)])
        for values in data for start in range(-2, len(values) - 3)
    ]
    found = torch.cat([batch["a"] for batch in loader]).numpy()
    np.testing.assert_allclose(found, np.stack([every[n] for n in [9, 0, 4, 9]]).astype("float32"))
    masks = torch.cat([batch["mask"] for batch in loader]).numpy()
    np.testing.assert_array_equal(masks, (found != -1).all(axis=2))


def test_ragged_rows(tmp_path):
    lengths = [3, 0, 5, 2, 4]
    ends = np.cumsum(lengths)
    write_array(tmp_path, "x", np.arange(ends[-1], dtype="int32"), layout=Layout((3,)), dims=("i",))
    write_array(tmp_path, "ends", ends, dims=("row",))
    loader = make(tmp_path, arrays=["x"], ragged_ends="ends", sampler=[4, 1, 2, 4, 0], batch_size=2, uneven="repeat")
    rows = [np.arange(end - n, end).tolist() for end, n in zip(ends, lengths, strict=True)]
    assert [row.tolist() for batch in loader for row in batch["x"].unbind()] == [rows[n] for n in [4, 1, 2, 4, 0]]


def test_explain_says_whose_order_it_is(path):
    explained = dali_zarr.explain(path, arrays=["field"], batch_size=2, order="pushed")
    assert explained["order"] == "pushed" and "order: the caller's" in str(explained)
    assert explained["reads"]["shuffled"]["reads_per_chunk"] >= explained["reads"]["in_order"]["reads_per_chunk"]
    with pytest.raises(ValueError, match="random_shuffle: expected none in the caller's order"):
        dali_zarr.explain(path, arrays=["field"], order="pushed", random_shuffle=True)


def test_chunks_are_read_once(path):
    """In an order of the caller's that comes back to chunks soon, and with data that fit in memory in any order."""
    loader = make(path, arrays=["field"], sampler=np.random.default_rng(1).permutation(STEPS), uneven="repeat", batch_size=1)
    list(loader)
    chunks = 12 * 1 * 1 * 2
    assert loader.counters()["chunks_read"] == chunks
