"""Datasets of xarray as a reader's arguments: renamed, transposed and concatenated, beside xarray's own values."""

from __future__ import annotations

import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from support.stores import write_array

torch = pytest.importorskip("torch")
xr = pytest.importorskip("xarray")
pytest.importorskip("dask")

from dali_zarr.torch import Loader  # noqa: E402

TIMES = 6


def write(path, start=0, seed=0):
    rng = np.random.default_rng(seed + start)
    write_array(path, "t2m", rng.normal(280, 9, (TIMES, 5, 7)).astype("f4"), dims=("time", "lat", "lon"))
    write_array(path, "z", rng.normal(5, 2, (TIMES, 3, 5, 7)).astype("f4"), dims=("time", "level", "lat", "lon"))
    write_array(path, "time", np.arange(start, start + TIMES), dims=("time",), attributes={"units": "hours since 2001-01-01"})
    write_array(path, "lat", np.linspace(50, 46, 5), dims=("lat",))
    write_array(path, "lon", np.linspace(0, 12, 7), dims=("lon",))
    write_array(path, "level", np.array([1000, 500, 250]), dims=("level",))
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    base = tmp_path_factory.mktemp("xarray")
    return [write(base / f"{i}.zarr", i * TIMES) for i in range(3)]


def opened(path, dask=True):
    return xr.open_zarr(path, consolidated=False, chunks={} if dask else None)


def compare(ds, **args):
    """A loader of the dataset gives its values, and one of the arguments for it too."""
    lengths = {len(ds[name]) for name in ds.data_vars}
    (length,) = lengths
    for given in ({"path": ds}, dali_zarr.from_xarray(ds)):
        loader = Loader(**given, **args, device="cpu", batch_size=length, host_memory_limit="128MiB")
        (batch,) = loader
        assert set(batch) == set(ds.data_vars)
        for name in ds.data_vars:
            np.testing.assert_array_equal(batch[name].numpy(), ds[name].values, err_msg=name)


CHANGES = {
    "renamed variables": lambda ds: ds.rename(t2m="temperature", z="t2m"),
    "exchanged variables": lambda ds: ds.rename(t2m="z", z="t2m"),
    "renamed dimensions": lambda ds: ds.rename(lat="y", lon="x"),
    "renamed and selected": lambda ds: ds.rename(lat="y", level="p").sel(p=[1000, 250]).isel(y=slice(1, None, 2)),
    "renamed without coordinates": lambda ds: ds.drop_vars(["lat", "lon"]).rename(lat="y", lon="x"),
    "latitude in front": lambda ds: ds.transpose("lat", ...),
    "level in front": lambda ds: ds[["z"]].transpose("level", ...),
    "renamed and transposed": lambda ds: ds.rename(lat="y").transpose("y", ...).isel(time=slice(2, None)),
    "the store's order": lambda ds: ds.transpose("time", ...),
    "one level, longitude in front": lambda ds: ds.sel(level=500).transpose("lon", ...),
}


@pytest.mark.parametrize("dask", [False, True], ids=["lazy", "dask"])
@pytest.mark.parametrize("change", CHANGES)
def test_renamed_and_transposed(stores, change, dask):
    compare(CHANGES[change](opened(stores[1], dask)))


def test_names_in_arguments(stores):
    """Arguments beside a dataset name variables and dimensions as it does."""
    ds = opened(stores[0]).rename(lat="y", t2m="temperature")
    args = {"device": "cpu", "batch_size": 2, "host_memory_limit": "128MiB"}
    loader = Loader(ds, arrays={"t": "temperature"}, window={"y": 2}, step={"y": 2}, dims=["y"], **args)
    (batch,) = loader
    expected = np.stack([ds.temperature.values[:, 0:2], ds.temperature.values[:, 2:4]])
    np.testing.assert_array_equal(batch["t"].numpy(), expected)
    assert dali_zarr.explain(ds, arrays=["z"], random_crop=["y"], window=[3], dims=["y"])["samples"] == 3 // 3


JOINED = {
    "concatenated": lambda parts: xr.concat(parts, "time"),
    "selected": lambda parts: xr.concat(parts, "time").isel(time=slice(3, 15)),
    "two of three": lambda parts: xr.concat(parts, "time").isel(time=slice(7, None)),
    "another order": lambda parts: xr.concat([parts[2], parts[0]], "time"),
    "renamed": lambda parts: xr.concat(parts, "time").rename(time="when", t2m="x"),
    "renamed parts": lambda parts: xr.concat([part.rename(lat="y") for part in parts], "time"),
    "one store twice": lambda parts: xr.concat([parts[0], parts[0].isel(time=slice(0, 3))], "time"),
    "a level": lambda parts: xr.concat([part.sel(level=500) for part in parts], "time"),
}


@pytest.mark.parametrize("how", JOINED)
def test_concatenated(stores, how):
    ds = JOINED[how]([opened(path) for path in stores])
    compare(ds)
    if how == "another order":
        assert dali_zarr.from_xarray(ds)["path"] == [str(stores[2]), str(stores[0])]
    if how == "two of three":
        assert dali_zarr.from_xarray(ds)["path"] == [str(path) for path in stores[1:]]


def test_concatenated_along_another_dimension(tmp_path):
    paths = [tmp_path / "north.zarr", tmp_path / "south.zarr"]
    for i, path in enumerate(paths):
        write(path)
        write_array(tmp_path / f"new{i}", "lat", np.linspace(50, 46, 5) - 10 * i, dims=("lat",))
        (path / "lat" / "c" / "0").write_bytes((tmp_path / f"new{i}" / "lat" / "c" / "0").read_bytes())
    ds = xr.concat([opened(path)[["t2m"]] for path in paths], "lat")
    args = dali_zarr.from_xarray(ds)
    assert args["dims"] == ["lat"] and args["path"] == [str(path) for path in paths]
    (batch,) = Loader(ds, device="cpu", batch_size=10, host_memory_limit="128MiB")
    np.testing.assert_array_equal(batch["t2m"].numpy(), ds.t2m.transpose("lat", ...).values)


def test_several_files_at_once(stores):
    compare(xr.open_mfdataset([str(path) for path in stores], engine="zarr", consolidated=False))


def test_other_stores(stores):
    """The store that a dataset was opened from is found, as for the store itself."""
    archive = shutil.make_archive(str(stores[0]), "zip", stores[0])
    ds = xr.open_zarr(zarr.storage.ZipStore(archive, mode="r"), consolidated=False)[["t2m"]]
    assert dali_zarr.from_xarray(ds)["path"] == archive
    compare(ds.isel(time=slice(1, 4)))
    compare(xr.open_zarr(stores[0].parent, group="0.zarr", consolidated=False)[["z"]])


REFUSED = {
    "in another order": (lambda a, b: a.transpose("lon", "lat", ...), "in the order of the store, of which one may be in front"),
    "different in front": (
        lambda a, b: xr.Dataset({"t2m": a.t2m.transpose("lat", ...), "z": a.z.transpose("level", ...)}),
        "in front of all variables",
    ),
    "a new dimension": (lambda a, b: xr.concat([a, a], "member"), "'member' is none of them"),
    "exchanged dimensions": (lambda a, b: a[["t2m"]].rename(lat="lon", lon="lat"), "in the order of the store"),
    "merged": (lambda a, b: xr.merge([a[["t2m"]], b[["z"]]], join="outer"), "expected variables of the same stores"),
    "two arrays": (
        lambda a, b: xr.concat([a[["t2m"]], b[["z"]].isel(level=0, drop=True).rename(z="t2m")], "time"), "made of several arrays",
    ),
    "loaded": (lambda a, b: a.load(), "isn't as it was opened"),
    "computed": (lambda a, b: a + 1, "isn't as it was opened"),
    "computed of concatenated": (lambda a, b: xr.concat([a, b], "time").cumsum("time"), "isn't as it was opened|coordinates"),
    "shuffled beside its coordinates": (lambda a, b: a.rename(lat="y").roll(y=2), "isn't as it was opened"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(stores, what):
    make, words = REFUSED[what]
    a, b = (opened(path) for path in stores[:2])
    with pytest.raises(ValueError, match=f"^dali_zarr: from_xarray: .*({words})"):
        Loader(make(a, b), device="cpu")


def test_arguments_beside_datasets(stores):
    ds = opened(stores[0])
    for args in ({"sel": {"level": 500}}, {"isel": {"time": 0}}, {"pick": {"level": [0]}}):
        with pytest.raises(ValueError, match="expected none beside a dataset as path; select in the dataset itself"):
            Loader(ds, device="cpu", **args)
    with pytest.raises(ValueError, match="expected variables of the dataset in path, but found 'q'"):
        Loader(ds, arrays=["q"], device="cpu")
    with pytest.raises(TypeError, match=r"write array.to_dataset\(\)"):
        Loader(ds.t2m, device="cpu")
