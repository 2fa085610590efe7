"""What a notebook shows: batches as pictures with their coordinates, loaders and batches as text, counters of loaders."""

from __future__ import annotations

import shutil

import dali_zarr
import numpy as np
import pytest
import zarr
from support.stores import Layout, write_array, write_era5

torch = pytest.importorskip("torch", reason="the Loader for PyTorch needs it")
pytest.importorskip("matplotlib", reason="pictures need it").use("agg")
pytest.importorskip("xarray", reason="pictures need it")

from dali_zarr._loading import pictures  # noqa: E402
from dali_zarr.torch import Batch, Loader  # noqa: E402

SMALL = {"batch_size": 4, "device": "cpu", "host_memory_limit": "64MB"}
LATITUDES = np.linspace(55, -55, 12)


@pytest.fixture(scope="module")
def era5(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebooks") / "era5.zarr"
    write_era5(path, hours=24)
    zarr.open_group(path)["time"].attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    write_array(path, "level", np.array([1000, 850, 500, 300, 100]), dims=("level",))
    write_array(path, "latitude", LATITUDES, dims=("latitude",))
    return path


def fields(batch, sample=0):
    return {output.title: pictures.field_of(output, sample) for output in batch._outputs("")}


def test_fields_have_the_coordinates_of_the_store(era5):
    """Of each output its own: the labels of its offset, and what is selected."""
    sel = {"level": [500, 850], "time": slice("2020-01-01T03", None)}
    loader = Loader(era5, arrays=["t2m", "z"], sel=sel, offsets={"now": 0, "later": [6, 9]}, **SMALL)
    batch = next(iter(loader))
    found = fields(batch, 1)
    assert {name: field.dims for name, field in found.items()} == {
        "now/t2m": ("latitude", "longitude"), "now/z": ("level", "latitude", "longitude"),
        "later/t2m+6": ("latitude", "longitude"), "later/z+6": ("level", "latitude", "longitude"),
        "later/t2m+9": ("latitude", "longitude"), "later/z+9": ("level", "latitude", "longitude"),
    }
    for name, hour in (("now/t2m", 4), ("later/t2m+6", 10), ("later/z+9", 13)):
        assert found[name].time.values == np.datetime64(f"2020-01-01T{hour:02}")
        assert np.array_equal(found[name].latitude, LATITUDES) and "longitude" not in found[name].coords
    assert found["now/z"].level.values.tolist() == [500, 850]
    z = zarr.open_array(era5 / "z")[13][[2, 1]]
    assert np.array_equal(found["later/z+9"], z)


def test_stacks_windows_and_transforms(era5):
    loader = Loader(era5, arrays=["t2m", "z"], sel={"level": [500, 850]}, offsets={"in": 0, "out": 2}, stack_arrays=True, **SMALL)
    found = fields(next(iter(loader)))
    assert found["out"].time.values == np.datetime64("2020-01-01T02")
    assert found["out"].channel.values.tolist() == ["t2m", "z 500", "z 850"]
    cut = {"dims": ["time", "latitude"], "window": [2, 3], "step": [2, 3]}
    found = fields(next(iter(Loader(era5, arrays=["t2m"], offsets=[0, 4], **cut, **SMALL))), 1)
    assert found["t2m+4"].time.values.tolist() == [np.datetime64(f"2020-01-01T0{n}", "ns").astype(int) for n in (4, 5)]
    assert np.array_equal(found["t2m+4"].latitude, LATITUDES[3:6])
    from nvidia.dali import fn

    def made(given):
        return {"t2m": given["t2m"], "mean": fn.reductions.mean(given["t2m"], axes=[0])}

    found = fields(next(iter(Loader(era5, arrays=["t2m"], transform=made, **SMALL))))
    assert "time" in found["t2m"].coords and found["mean"].dims == ("dim_0",) and not found["mean"].coords


def test_pictures(era5):
    """A panel for each field, with the title that tells where it is; 16 at most."""
    batch = next(iter(Loader(era5, arrays=["t2m", "z", "lsm", "time"], **SMALL)))
    figure = batch.plot(cmap="RdBu_r")
    titles = [ax.get_title() for ax in figure.axes if ax.get_visible() and ax.get_title()]
    assert len(titles) == 1 + 5 + 1
    assert titles[0] == "t2m\ntime 2020-01-01" and titles[2].endswith("time 2020-01-01, level 850")
    (drawn,) = (one for ax in figure.axes if ax.get_title().startswith("t2m") for one in (*ax.images, *ax.collections))
    assert np.array_equal(np.ma.getdata(drawn.get_array()), batch["t2m"][0].numpy())
    figure = batch.plot(range(4))
    assert len([ax for ax in figure.axes if ax.get_title()]) == 16
    with pytest.raises(IndexError, match="expected a sample below 4, but found 4"):
        batch.plot(4)
    with pytest.raises(TypeError, match="plot: expected the number of a sample, or several, but found 'z'"):
        batch.plot("z")
    with pytest.raises(ValueError, match="scalars have no picture"):
        next(iter(Loader(era5, arrays=["time"], **SMALL))).plot()
    with pytest.raises(AttributeError, match="doesn't come from a loader"):
        Batch({"t2m": torch.zeros(3)}).plot()


def test_titles_and_units(era5, tmp_path):
    """A title has the labels of the array's own dimensions alone; colours and axes have units, unless values are normalised."""
    path = tmp_path / "units.zarr"
    shutil.copytree(era5, path)
    group = zarr.open_group(path)
    group["t2m"].attrs.update({"units": "K", "long_name": "2 metre temperature"})
    group["latitude"].attrs["units"] = "degrees_north"
    given = {"path": path, "arrays": ["t2m", "z"], "sel": {"level": 500}, **SMALL}
    figure = next(iter(Loader(**given))).plot()
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == ["t2m\ntime 2020-01-01", "z\ntime 2020-01-01, level 500"]
    labels = {ax.get_ylabel() for ax in figure.axes}
    assert {"2 metre temperature [K]", "latitude [degrees_north]"} <= labels
    figure = next(iter(Loader(**given, mean={"t2m": 280, "z": 0}))).plot()
    assert "2 metre temperature" in {ax.get_ylabel() for ax in figure.axes}


def test_batches_and_loaders_as_text(era5):
    loader = Loader(era5, arrays=["t2m", "z"], offsets={"now": 0, "later": 6}, shard_id=1, num_shards=2, **SMALL)
    assert repr(loader) == (
        f"<Loader of t2m, z from '{era5}': 18 samples, 3 batches of 4, to the CPU, rank 1 of 2, epoch 0>"
    )
    inner = "Batch({'t2m': float32 (4, 12, 20), 'z': float32 (4, 5, 12, 20)})"
    assert repr(next(iter(loader))) == f"Batch({{'now': {inner}, 'later': {inner}}})"


def test_counters_of_loaders(era5, tmp_path):
    write_array(tmp_path, "a", np.zeros((8, 3), "float32"), layout=Layout((1, 3)), dims=("time", "x"))
    loader, other = Loader(era5, arrays=["t2m"], **SMALL), Loader(tmp_path, arrays="a", **SMALL)
    batches = iter(loader)
    next(batches)
    found = dali_zarr.counters(loader)
    assert (found["arrays"], found["batches"] >= 1) == (["t2m"], True)
    assert dali_zarr.counters(other)["arrays"] == ["a"]
    assert dali_zarr.counters(batches)["arrays"] == ["t2m"]
    with pytest.raises(TypeError, match="expected a loader, a pipeline, an iterator of DALI's, .* but found"):
        dali_zarr.counters(next(batches))


def test_jax(era5):
    jax = pytest.importorskip("jax", reason="the Loader for JAX needs it")
    from dali_zarr.jax import Loader

    loader = Loader(era5, arrays=["t2m"], offsets={"now": 0, "later": 6}, **SMALL)
    batch = next(iter(loader))
    assert repr(batch) == "Batch({'now': Batch({'t2m': float32 (4, 12, 20)}), 'later': Batch({'t2m': float32 (4, 12, 20)})})"
    assert fields(batch)["later/t2m"].time.values == np.datetime64("2020-01-01T06")
    assert [ax.get_title() for ax in batch.plot().axes[:2]] == ["now/t2m\ntime 2020-01-01", "later/t2m\ntime 2020-01-01T06:00"]
    assert dali_zarr.counters(loader)["batches"] >= 1 and repr(loader).startswith("<Loader of t2m from ")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    assert dali_zarr.counters(Loader(era5, arrays=["t2m"], sharding=sharding, drop_last=True, **SMALL))["arrays"] == ["t2m"]
