"""dali_zarr.torch.Dataset: samples by number, under torch's DataLoader with and without workers."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
from support.loaders import HOURS, STEPS, fields, write
from support.stores import Layout, write_array

torch = pytest.importorskip("torch", reason="the Dataset for PyTorch needs it")

from dali_zarr.torch import Dataset  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Subset, WeightedRandomSampler  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"))


def make(path, device="cpu", **how):
    limits = {"host_memory_limit": "128MiB"} | ({"device_memory_limit": "256MiB"} if device == "gpu" else {})
    return Dataset(path, device=device, **({"arrays": ["n", "field"]} | limits | how))


def test_samples_by_number(path, device):
    dataset = make(path, device)
    assert len(dataset) == STEPS
    for i in (3, 22, 0, -1, np.int64(5), torch.tensor(7)):
        sample = dataset[i]
        n = int(i) % STEPS
        assert sample["n"].item() == n and list(sample) == ["n", "field"] and type(sample) is dict
        np.testing.assert_array_equal(sample["field"].cpu().numpy(), fields()[n])
        assert sample["field"].device.type == ("cuda" if device == "gpu" else "cpu")
    numbers = np.random.default_rng(1).integers(0, STEPS, 3000)
    assert [sample["n"].item() for sample in dataset.__getitems__(numbers)] == numbers.tolist()
    assert dataset.__getitems__([]) == []
    for bad in (STEPS, -STEPS - 1):
        with pytest.raises(IndexError):
            dataset[bad]
    with pytest.raises(TypeError, match="expected whole numbers"):
        dataset["7"]
    assert dataset[1]["n"].item() == 1, "errors of numbers change nothing"


def test_all_samples_in_turn(path):
    """A sequence ends with an IndexError."""
    assert [sample["n"].item() for sample in make(path, arrays=["n"])] == list(range(STEPS))


@pytest.mark.parametrize("workers", [0, 2])
def test_under_a_dataloader(path, workers):
    dataset = make(path)
    sampler = WeightedRandomSampler([1.0] * STEPS, 40, generator=torch.Generator().manual_seed(3))
    expected = list(WeightedRandomSampler([1.0] * STEPS, 40, generator=torch.Generator().manual_seed(3)))
    batches = list(DataLoader(dataset, batch_size=6, sampler=sampler, num_workers=workers))
    assert [n for batch in batches for n in batch["n"].tolist()] == expected
    np.testing.assert_array_equal(torch.cat([batch["field"] for batch in batches]).numpy(), fields()[expected])
    if workers:
        return
    assert dataset[3]["n"].item() == 3
    own = DataLoader(dataset, batch_sampler=BatchSampler(range(STEPS), 5, True))
    assert [batch["n"].tolist() for batch in own] == [list(range(i, i + 5)) for i in range(0, 20, 5)]
    assert [batch["n"].tolist() for batch in DataLoader(Subset(dataset, [4, 2]), batch_size=2)] == [[4, 2]]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used before"])
def test_workers_of_each_kind(path, method, used):
    dataset = make(path)
    if used:
        assert dataset[2]["n"].item() == 2
    context = multiprocessing.get_context(method)
    batches = list(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context))
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(STEPS))
    np.testing.assert_array_equal(torch.cat([batch["field"] for batch in batches]).numpy(), fields())
    assert dataset[5]["n"].item() == 5


def test_pickles(path):
    dataset = make(path, arrays=["n"], offsets={"now": 0, "then": [1, 2]}, return_index=True)
    assert dataset[4]["then"]["n+2"].item() == 6
    copy = pickle.loads(pickle.dumps(dataset))
    sample = copy[4]
    assert (sample["now"]["n"].item(), sample["then"]["n+1"].item(), sample["index"].tolist()) == (4, 5, [4])
    assert len(copy) == STEPS - 2


def test_by_labels_and_rows(path):
    dataset = make(path, sel={"time": slice(HOURS[5], HOURS[12])}, window={"time": 2}, step=1, arrays=["n"], return_index=True)
    assert len(dataset) == 7
    assert dataset[2]["n"].tolist() == [7, 8]
    row = dataset[2]["index"]
    assert dataset.__getitems__(torch.stack([row, row]))[1]["n"].tolist() == [7, 8]


def test_ragged_samples(tmp_path):
    lengths = [3, 0, 5]
    write_array(tmp_path, "x", np.arange(8, dtype="int32"), layout=Layout((3,)), dims=("i",))
    write_array(tmp_path, "ends", np.cumsum(lengths), dims=("row",))
    dataset = make(tmp_path, arrays=["x"], ragged_ends="ends")
    rows = [[0, 1, 2], [], [3, 4, 5, 6, 7]]
    assert [sample["x"].tolist() for sample in dataset.__getitems__([2, 1, 0, 2])] == [rows[n] for n in [2, 1, 0, 2]]


def test_random_windows_depend_on_epoch_and_sample(tmp_path):
    write_array(tmp_path, "a", np.arange(1000, dtype="int32").reshape(10, 100), layout=Layout((1, 100)), dims=("t", "x"))
    dataset = make(tmp_path, arrays=["a"], window={"t": 0, "x": 5}, random_crop=["x"])
    first = [dataset[i]["a"][0].item() for i in range(10)]
    assert [sample["a"][0].item() for sample in dataset.__getitems__([3, 3, 1])] == [first[3], first[3], first[1]]
    dataset.set_epoch(1)
    assert [dataset[i]["a"][0].item() for i in range(10)] != first


def test_what_is_refused(path):
    with pytest.raises(ValueError, match="random_shuffle: expected none in the caller's order"):
        make(path, random_shuffle=True)
    with pytest.raises(ValueError, match="expected an array 'nothing'"):
        make(path, arrays=["nothing"])


def test_a_damaged_chunk(tmp_path, device):
    write_array(tmp_path, "n", np.arange(20, dtype="int64"), layout=Layout((1,)), dims=("t",), codec="zstd")
    (tmp_path / "n" / "c" / "7").write_bytes(b"no zstd")
    dataset = make(tmp_path, device, arrays=["n"])
    with pytest.raises(RuntimeError, match="c/7"):
        dataset.__getitems__([5, 6, 7, 8, 9])
    assert [sample["n"].item() for sample in dataset.__getitems__([5, 6, 8])] == [5, 6, 8]
