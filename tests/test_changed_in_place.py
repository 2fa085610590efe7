"""What a program writes into the tensors of a batch reaches no later batch, however chunks, fills and static arrays are kept."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")

from dali_zarr.torch import Dataset, Loader  # noqa: E402

STEPS, LAT, LON = 41, 6, 10


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Chunks that are whole samples, that several samples share, that are missing, in shards, uncompressed and not; and a mask that
    is the same for all samples."""
    path = tmp_path_factory.mktemp("in-place") / "store.zarr"
    rng = np.random.default_rng(5)
    group = zarr.create_group(path)
    values = {}
    for name, chunk, more in (
        ("whole", (1, LAT, LON), {}), ("raw", (1, LAT, LON), {"compressors": None}), ("shared", (7, LAT, 4), {}),
        ("sharded", (1, LAT, 5), {"shards": (4, LAT, LON)}), ("missing", (1, LAT, LON), {"fill_value": 3.5}),
    ):
        array = group.create_array(
            name, shape=(STEPS, LAT, LON), chunks=chunk, dtype="f4", dimension_names=["time", "lat", "lon"], **more
        )
        values[name] = rng.normal(size=array.shape).astype("f4")
        if name == "missing":
            values[name][:] = 3.5
            values[name][5] = array[5] = 1
        else:
            array[:] = values[name]
    mask = group.create_array("mask", shape=(LAT, LON), chunks=(LAT, LON), dtype="f4", dimension_names=["lat", "lon"])
    mask[:] = rng.normal(size=mask.shape).astype("f4")
    return path, values, mask[:]


def checked(batch, values, mask):
    """Compares a batch, and then writes over it."""
    starts = batch.index[:, 0].tolist()
    for offset, name in ((0, "now"), (2, "later")):
        for array, found in batch[name].items():
            wanted = np.stack([mask if array == "mask" else values[array][s + offset : s + offset + 3] for s in starts])
            np.testing.assert_array_equal(found.cpu().numpy(), wanted, err_msg=f"{array} of {name} at {starts}")
    for group in batch.values():
        for tensor in group.values():
            tensor.fill_(-77)
    return len(starts)


@pytest.mark.parametrize("memory", [{}, {"host_memory_limit": "1MiB"}], ids=["kept", "short of memory"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_later_batches_have_the_values_of_the_store(store, device, memory, shuffled):
    path, values, mask = store
    loader = Loader(
        path, arrays=[*values, "mask"], dims=["time"], window=3, step=1, offsets={"now": 0, "later": 2}, batch_size=4,
        device=device, random_shuffle=shuffled, **({} if device == "gpu" else memory),
    )
    assert [sum(checked(batch, values, mask) for batch in loader) for _ in range(3)] == [STEPS - 4] * 3


def test_samples_of_a_data_set(store):
    path, values, _ = store
    data = Dataset(path, arrays=["whole", "shared"], dims=["time"], window=2, step=1, device="cpu")
    for i in (3, 3, 4, 3):
        sample = data[i]
        for array, tensor in sample.items():
            np.testing.assert_array_equal(tensor.numpy(), values[array][i : i + 2])
            tensor.fill_(-77)
