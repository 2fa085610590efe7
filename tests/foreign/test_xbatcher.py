"""Windows with overlap are xbatcher's patches: the same windows, in the same order, of random arrays, sizes and overlaps."""

from __future__ import annotations

from typing import Any

import dali_zarr
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.pipelines import build, to_numpy
from support.stores import Layout, write_array

xarray = pytest.importorskip("xarray")
xbatcher = pytest.importorskip("xbatcher")

SHAPE = (23, 3, 13, 11)
DIMS = ("time", "level", "lat", "lon")
VALUES = np.arange(np.prod(SHAPE), dtype="int32").reshape(SHAPE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A field, one that lacks a dimension, and coordinates."""
    base = tmp_path_factory.mktemp("xbatcher") / "era5.zarr"
    write_array(base, "z", VALUES, codec="zstd", layout=Layout((5, 2, 4, 11)), dims=DIMS)
    write_array(base, "t2m", VALUES[:, 0] * 2, codec="zstd", layout=Layout((4, 13, 3)), dims=("time", "lat", "lon"))
    write_array(base, "time", np.arange(23), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    write_array(base, "lat", np.linspace(60, 0, 13), dims=("lat",))
    return base


def patches(path, window: dict[str, int], overlap: dict[str, int], **sel: Any) -> list[Any]:
    """xbatcher's, one by one. It would stack dimensions without a size, so each has one: the others are taken whole."""
    dataset = xarray.open_zarr(path, consolidated=False)[["z", "t2m"]].sel(sel).load()
    whole = {dim: size for dim, size in dataset.sizes.items() if dim not in window}
    return list(xbatcher.BatchGenerator(dataset, input_dims=window | whole, input_overlap=overlap, preload_batch=False))


def epoch(path, device: str, **how: Any) -> tuple[list[np.ndarray], ...]:
    """The samples of an epoch, by output."""
    pipe = build(device, 8, path=path, arrays=["z", "t2m"], **how)
    size = pipe.reader_meta("reader")["epoch_size"]
    found = [[to_numpy(out) for out in pipe.run()] for _ in range(-(-size // 8))]
    return tuple(list(np.concatenate([batch[i] for batch in found])[:size]) for i in range(len(found[0])))


def compare(found: tuple[list[np.ndarray], ...], expected: list[Any]) -> None:
    for name, samples in zip(("z", "t2m"), found, strict=False):
        assert len(samples) == len(expected)
        for sample, patch in zip(samples, expected, strict=True):
            want = patch[name].transpose(*(dim for dim in DIMS if dim in patch[name].dims)).values
            assert sample.shape == want.shape
            assert np.array_equal(sample, want)


@settings(max_examples=25)
@given(st.data())
def test_patches_with_overlap(path, data):
    """In the order of xbatcher, whose first dimension moves slowest too."""
    dims = data.draw(st.lists(st.sampled_from(["time", "lat", "lon"]), min_size=1, max_size=3, unique=True))
    window = {dim: data.draw(st.integers(1, min(8, SHAPE[DIMS.index(dim)]))) for dim in dims}
    overlap = {dim: data.draw(st.integers(0, size - 1)) for dim, size in window.items()}
    counts = [(SHAPE[DIMS.index(dim)] - size) // (size - overlap[dim]) + 1 for dim, size in window.items()]
    # xbatcher takes milliseconds for each.
    assume(np.prod(counts) <= 150)
    given_overlap = {dim: n for dim, n in overlap.items() if n or data.draw(st.booleans())}
    compare(epoch(path, "cpu", window=window, overlap=given_overlap), patches(path, window, overlap))


def test_patches_of_a_selection(path, device):
    """By labels, along the dimensions of the patches and along others."""
    window, overlap = {"time": 6, "lat": 5}, {"time": 4, "lat": 1}
    sel = {"time": slice("2020-01-01T03", "2020-01-01T20"), "lat": slice(55, 10)}
    compare(epoch(path, device, window=window, overlap=overlap, sel=sel), patches(path, window, overlap, **sel))
    sel = {"time": slice(None, None, 2)}
    compare(epoch(path, device, window=window, overlap=overlap, sel=sel), patches(path, window, overlap, **sel))


def test_shuffled_patches_come_once(path, device):
    window, overlap = {"time": 5, "lon": 4}, {"time": 3, "lon": 2}
    z, *_ = epoch(path, device, window=window, overlap=overlap, random_shuffle=True, seed=7)
    expected = [patch.z.values.tobytes() for patch in patches(path, window, overlap)]
    found = [sample.tobytes() for sample in z]
    # Not compared in the assertion itself, which would show megabytes.
    same, in_order = sorted(found) == sorted(expected), found == expected
    assert same and not in_order


def test_the_loader_and_its_coordinates(path):
    pytest.importorskip("torch")
    window, overlap = {"time": 6, "lat": 5}, {"time": 4, "lat": 2}
    expected = patches(path, window, overlap)
    loader = dali_zarr.torch.Loader(path, arrays=["z"], window=window, overlap=overlap, batch_size=4, device="cpu")
    at = 0
    for batch in loader:
        for values, times, latitudes in zip(batch["z"].numpy(), batch.coords["time"], batch.coords["lat"], strict=True):
            assert (values == expected[at].z.values).all()
            assert (times == expected[at].time.values).all() and (latitudes == expected[at].lat.values).all()
            at += 1
    assert at == len(expected)
