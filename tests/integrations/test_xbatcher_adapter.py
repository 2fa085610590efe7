"""The adapter's batches are xbatcher's: values, coordinates, indexes, names and attributes. xbatcher's own tests pass with it."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import dali_zarr
import numpy as np
import pytest
from support.stores import Layout, write_array

xr = pytest.importorskip("xarray", reason="`make integrations` installs it")
xbatcher = pytest.importorskip("xbatcher", reason="`make integrations` installs it")
torch = pytest.importorskip("torch", reason="`make integrations` installs it")

from dali_zarr.integrations.xbatcher import BatchGenerator  # noqa: E402

HERE = Path(__file__).parent
SHAPE = (10, 3, 12, 20)
SMALL = {"host_memory_limit": "64MiB"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Variables of unlike dimensions, one of them packed, coordinates of one and two dimensions, and a dimension without any."""
    base = tmp_path_factory.mktemp("xbatcher") / "era5.zarr"
    rng = np.random.default_rng(0)
    dims = ("time", "level", "lat", "lon")
    write_array(base, "z", rng.normal(size=SHAPE).astype("f4"), codec="zstd", layout=Layout((3, 2, 5, 7)), dims=dims)
    write_array(base, "t2m", rng.integers(0, 99, SHAPE)[:, 0], layout=Layout((4, 6, 20)), dims=("time", "lat", "lon"),
                attributes={"units": "K"})
    packed = {"scale_factor": 0.5, "add_offset": 3.0, "_FillValue": 7}
    shape = SHAPE[:1] + SHAPE[2:]
    write_array(base, "packed", rng.integers(0, 9, shape).astype("i2"), dims=("time", "lat", "lon"), attributes=packed)
    write_array(base, "mask", rng.random(SHAPE[2:]) < 0.5, dims=("lat", "lon"))
    write_array(base, "time", np.arange(10), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    write_array(base, "lat", np.linspace(60, 0, 12), dims=("lat",), attributes={"units": "degrees_north"})
    write_array(base, "level", np.array([1000, 850, 500]), dims=("level",))
    write_array(base, "area", rng.random((12, 20)), dims=("lat", "lon"))
    return base


@pytest.fixture
def opened(path):
    """Opened for each test: xbatcher loads variables that it doesn't cut in place."""
    return xr.open_zarr(path, consolidated=False).set_coords("area")


CUTS = {
    "one dimension": {"input_dims": {"time": 4}},
    "sizes that leave a rest": {"input_dims": {"lat": 5, "lon": 6}},
    "another order": {"input_dims": {"lon": 5, "time": 2}},
    "overlap": {"input_dims": {"time": 4, "lat": 6}, "input_overlap": {"time": 3, "lat": 1}},
    "whole": {"input_dims": {"time": 9, "lat": 12, "lon": 20}},
    "batch_dims": {"input_dims": {"lat": 4, "lon": 5}, "batch_dims": {"time": 2}},
    "two batch_dims": {"input_dims": {"lon": 5}, "batch_dims": {"time": 3, "level": 1}},
    "a batch dimension that overlaps": {"input_dims": {"lon": 10}, "batch_dims": {"time": 4}, "input_overlap": {"time": 2}},
    "input and batch": {"input_dims": {"lat": 3, "lon": 5}, "batch_dims": {"lat": 6, "lon": 10}},
    "input and batch that overlap": {"input_dims": {"lat": 4}, "batch_dims": {"lat": 8}, "input_overlap": {"lat": 2}},
    "input, batch, and another": {"input_dims": {"lat": 3, "lon": 10}, "batch_dims": {"lat": 6, "time": 5}},
}
CHOICES = {
    "all": lambda ds: ds,
    "one variable": lambda ds: ds[["z"]],
    "an array": lambda ds: ds["z"],
    "an array without a name": lambda ds: ds["z"].rename(None),
    "selected": lambda ds: ds[["z", "t2m"]].sel(level=[500, 1000]).isel(lat=slice(0, None, 1), time=slice(1, None)),
    "renamed": lambda ds: ds[["z", "packed"]].rename(z="geopotential"),
    "without coordinates": lambda ds: ds[["z"]].drop_vars(["lat", "area"]),
    "joined": lambda ds: xr.concat([ds[["z"]].isel(time=slice(0, 6)), ds[["z"]].isel(time=slice(6, None))], "time"),
}
# All cuts of the whole dataset, and some of the others.
SOME = ["overlap", "input, batch, and another"]
CASES = [(cut, "all") for cut in CUTS] + list(itertools.product(SOME, list(CHOICES)[1:]))


def same(own, theirs):
    xr.testing.assert_identical(own, theirs)
    for name in own.data_vars if isinstance(own, xr.Dataset) else []:
        assert own[name].dtype == theirs[name].dtype and own[name].dims == theirs[name].dims


def both(ds, **how):
    with warnings.catch_warnings():
        # Both warn of dimensions that have no effect.
        warnings.simplefilter("ignore")
        # xbatcher refuses to concatenate patches of a DataArray of dask. Its other batches are the same, but come later.
        return BatchGenerator(ds, **how, **SMALL), xbatcher.BatchGenerator(ds.compute(), **how)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("concat", [False, True], ids=["", "concat_input_dims"])
@pytest.mark.parametrize(("cut", "choice"), CASES)
def test_batches_are_those_of_xbatcher(opened, cut, choice, concat):
    ds = CHOICES[choice](opened)
    if concat and choice.startswith("an array"):
        with pytest.raises(ValueError, match=r"concat_input_dims: expected a Dataset, .* give ds.to_dataset\(\)"):
            both(ds, concat_input_dims=concat, **CUTS[cut])
        return
    own, theirs = both(ds, concat_input_dims=concat, **CUTS[cut])
    assert len(own) == len(theirs)
    expected = list(theirs)
    for one, other in zip(own, expected, strict=True):
        same(one, other)
    for number in {0, len(own) // 2, len(own) - 1, -1}:
        same(own[number], expected[number])


def test_pieces(opened, monkeypatch):
    """A batch that is read in several pieces."""
    monkeypatch.setattr("dali_zarr.integrations.xbatcher._PIECE", 5000)
    own, theirs = both(opened[["z", "t2m"]], input_dims={"lat": 3, "lon": 4}, batch_dims={"time": 5}, concat_input_dims=True)
    assert own._piece < 10
    for one, other in zip(own, theirs, strict=True):
        same(one, other)


def test_numbers_that_are_none(opened):
    own, _ = both(opened[["z"]], input_dims={"time": 4})
    for number in (len(own), -len(own) - 1):
        with pytest.raises(IndexError, match=f"list index out of range: expected a number below 2, but found {number}"):
            own[number]
    with pytest.raises(NotImplementedError, match="expected an integer"):
        own[[0]]


def test_copies(opened):
    """As a spawned worker process gets a generator."""
    own, theirs = both(opened[["z"]], input_dims={"time": 4})
    copied = pickle.loads(pickle.dumps(own))
    same(copied[1], theirs[1])
    same(next(iter(copied)), theirs[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_its_data_set_for_pytorch(opened, workers):
    """xbatcher's MapDataset, in a DataLoader that shuffles, also in worker processes."""
    loaders = pytest.importorskip("xbatcher.loaders.torch")

    def epoch(kind):
        x, y = (kind(opened[name], {"time": 2, "lat": 4, "lon": 5}) for name in ("t2m", "z"))
        order = torch.Generator().manual_seed(1)
        how = {"generator": order, "num_workers": workers, "batch_size": 3, "shuffle": True}
        return list(torch.utils.data.DataLoader(loaders.MapDataset(x, y), **how))

    for own, theirs in zip(epoch(BatchGenerator), epoch(xbatcher.BatchGenerator), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(own, theirs, strict=True))


REFUSED = {
    "preload_batch: expected True, but found False": {"preload_batch": False},
    "cache: expected None, but found dict": {"cache": {}},
    "cache_preprocess: expected None, but found builtin_function_or_method": {"cache_preprocess": len},
    "input_overlap: expected dimensions of input_dims or batch_dims, but found 'lon'": {"input_overlap": {"lon": 2}},
    "input overlap must be less than": {"input_overlap": {"time": 4}},
    "input sample length must be less than": {"input_dims": {"time": 40}},
    "of the reader's resources .*, but found 'random_shuffle'": {"random_shuffle": True},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(opened, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BatchGenerator(opened[["z"]], **{"input_dims": {"time": 4}} | REFUSED[message])


def test_variables_that_are_refused(opened):
    with pytest.raises(ValueError, match="from_xarray: 'z' isn't as it was opened"):
        BatchGenerator(opened[["z"]] + 1, {"time": 4})
    times = opened[["t2m"]].assign(when=opened.time.variable)
    with pytest.raises(ValueError, match="from_xarray: 'when'"):
        BatchGenerator(times, {"time": 4})


def test_times_are_refused(tmp_path):
    write_array(tmp_path, "when", np.arange(8), dims=("time",), attributes={"units": "hours since 2020-01-01"})
    with pytest.raises(TypeError, match=r"'when' has the type datetime64\[ns\] and is read as int64"):
        BatchGenerator(xr.open_zarr(tmp_path, consolidated=False), {"time": 4})


# What they test is refused, or belongs to xbatcher's cache.
LEFT_OUT = "not preload_batch_false and not cached"


def test_its_own_tests(tmp_path):
    """xbatcher's suite, with generators of the adapter."""
    package = Path(dali_zarr.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(package), str(HERE))), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xbatcher_suite", "-p", "no:cacheprovider", "-k", LEFT_OUT,
               "--rootdir", str(tmp_path), "--pyargs", "xbatcher.tests.test_generators"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout, done.stdout
    print(done.stdout)
