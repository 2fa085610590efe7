"""``fn.get_property(key="source_info")`` names each sample: its store, and its start along each of ``dims``, as in the index."""

from __future__ import annotations

import numpy as np
import pytest
from support.stores import Layout, write_array

DIMS = ("time", "y", "x")


def _named(device: str, **arguments: object) -> tuple[list[list[str]], list[np.ndarray]]:
    """The names of the samples of one epoch by output, and their starts."""
    import dali_zarr  # noqa: F401  (loads the operator)
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=3, num_threads=1, device_id=0 if device == "gpu" else None)
    with pipe:
        outputs = fn.zarr_reader(device=device, name="reader", return_index=True, host_memory_limit=128 << 20, **arguments)
        pipe.set_outputs(*(fn.get_property(one, key="source_info") for one in outputs), outputs[-1])
    pipe.build()
    names, starts = [], []
    for _ in range(-(-pipe.reader_meta("reader")["epoch_size"] // 3)):
        *infos, index = (out.as_cpu() for out in pipe.run())
        for sample in range(3):
            names.append([bytes(np.array(info.at(sample))).decode() for info in infos])
            starts.append(np.array(index.at(sample)))
    return names, starts


def _write(root, length=7):
    values = np.arange(length * 4 * 4, dtype="float32").reshape(length, 4, 4)
    for name in ("a", "b"):
        write_array(root, name, values, layout=Layout((2, 4, 4)), dims=DIMS)
    return root


@pytest.mark.parametrize(
    "how",
    [{}, {"dims": ["time", "x"], "window": [2, 2]}, {"random_shuffle": True}, {"offsets": [0, 1]}, {"stack_arrays": True}],
    ids=str,
)
def test_samples_are_named(tmp_path, device, how):
    """Every output of a sample has its name; the order, shuffled or not, is that of the samples."""
    path = str(_write(tmp_path / "store.zarr"))
    names, starts = _named(device, path=path, arrays=["a", "b"], **how)
    dims = how.get("dims", ["time"])
    for of_sample, start in zip(names, starts, strict=True):
        expected = " ".join([path, *(f"{dim}={at}" for dim, at in zip(dims, start, strict=True))])
        assert set(of_sample) == {expected}


def test_joined_stores(tmp_path, device):
    """The store is that of the sample's start; the start counts over all stores, or what is picked of them."""
    paths = [str(_write(tmp_path / name, length)) for name, length in (("one", 3), ("two", 4))]
    names, _ = _named(device, path=paths, arrays=["a"])
    assert [one[0] for one in names[:7]] == [f"{paths[time > 2]} time={time}" for time in range(7)]
    names, _ = _named(device, path=paths, arrays=["a"], pick="time=6,0,3")
    assert [one[0] for one in names] == [f"{paths[1]} time=0", f"{paths[0]} time=1", f"{paths[1]} time=2"]


def test_a_sample_without_dimensions(tmp_path, device):
    """It is the store's only one."""
    write_array(tmp_path, "a", np.float32(3), dims=())
    names, _ = _named(device, path=str(tmp_path), arrays=["a"])
    assert set(map(tuple, names)) == {(str(tmp_path), str(tmp_path))}
